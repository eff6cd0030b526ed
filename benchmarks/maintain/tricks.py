"""What each trick for speed is worth: a script beside its copy with plainer code in that place.

    python benchmarks/maintain/tricks.py                            all, on a machine at rest
    python benchmarks/maintain/tricks.py adam-fused --repeats 5

Both train in turns, in a cell of speed.py. results/tricks.csv has the median over the repetitions
of how many times as fast the script is as its plainer copy, the lowest and the highest, the
microseconds per step that this is, and the seconds until the first update of both.
"""

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from speed import CELLS, RESULTS, ROOT, held_to, keep, parse_names, run_ours


@dataclass
class Trick:
    cell: str
    """Of speed.py."""
    undo: dict
    """What stands in the cell's script, just once, and what would stand there without the trick."""

    @property
    def script(self) -> str:
        return CELLS[self.cell].flags.split()[0] + ".py"

    def plainer(self) -> str:
        """The script without the trick. ValueError where the trick is not in it just once."""
        source = (ROOT / "algos" / self.script).read_text()
        for before, after in self.undo.items():
            if source.count(before) != 1:
                raise ValueError(f"{before!r} occurs {source.count(before)} times in {self.script}")
            source = source.replace(before, after)
        return source


OUR_STEP = "rewards, rows, final_obs, infos = np.zeros(self.num_envs), [], {}, []"
STEP_OF_GYMNASIUM = """obs, rewards, terminated, truncated, infos = super().step(actions)
        final_obs = {i: infos["final_obs"][i] for i in np.flatnonzero(terminated | truncated)}
        return obs, rewards, terminated, truncated, final_obs, [{}] * self.num_envs
        """
IN_NUMPY = 'if not self.sees_images and self.device.type == "cpu":'
TRICKS = {
    "dqn-acts-in-numpy": Trick("dqn-cartpole", {IN_NUMPY: "if False:"}),
    "ppo-acts-in-numpy": Trick("ppo-cartpole", {IN_NUMPY: "if False:"}),
    "moments-looked-up-once": Trick("ppo-halfcheetah", {
        "if self.version != self.var._version:": "if True:",
    }),
    "gradients-in-one-vector": Trick("ppo-cartpole", {
        "[Vector(agent)], lr=args": "agent.parameters(), lr=args",
        "    clip_gradient(optimizer, args.max_grad_norm)":
            "    nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)",
    }),
    "adam-fused": Trick("td3-halfcheetah", {", fused=True": ""}),
    "optimizers-without-bookkeeping": Trick("ppo-cartpole", {
        "    skip_compiler_import()\n": "",
    }),
    "step-of-environments": Trick("dqn-cartpole", {OUR_STEP: STEP_OF_GYMNASIUM + OUR_STEP}),
    "channels-last": Trick("ppo-breakout", {
        "torch.float32, memory_format=torch.channels_last": "torch.float32",
    }),
}  # fmt: skip


def measure(name: str, repeats: int, folder: str) -> dict:
    """The script and its plainer copy in turns, `repeats` times."""
    trick, with_it, without = TRICKS[name], [], []
    (Path(folder) / trick.script).write_text(trick.plainer())
    for _ in range(repeats):
        with_it.append(run_ours(CELLS[trick.cell], folder))
        without.append(run_ours(CELLS[trick.cell], folder, scripts=Path(folder)))
    first_updates = [
        round(statistics.median(run["first_update"] for run in runs), 1)
        for runs in (with_it, without)
    ]
    ratios = [a["sps"] / b["sps"] for a, b in zip(with_it, without, strict=True)]
    saved = [1e6 / b["sps"] - 1e6 / a["sps"] for a, b in zip(with_it, without, strict=True)]
    return {
        "cell": name,
        "measured_in": trick.cell,
        "times_as_fast": round(statistics.median(ratios), 2),
        "lowest": round(min(ratios), 2),
        "highest": round(max(ratios), 2),
        "saved_us_a_step": round(statistics.median(saved), 1),
        "first_update_s": first_updates[0],
        "first_update_without_s": first_updates[1],
        "repeats": repeats,
    }


def main():
    os.environ["TQDM_DISABLE"] = "1"  # the scripts' progress would stand between the lines here
    _, args = parse_names(__doc__, TRICKS, "all", repeats=5)
    for name in args.names or TRICKS:
        with tempfile.TemporaryDirectory() as folder, held_to(CELLS[TRICKS[name].cell].threads):
            row = measure(name, args.repeats, folder)
        print(f"{name:32}" + ", ".join(f"{k} {v}" for k, v in list(row.items())[1:]), flush=True)
        keep(RESULTS / "tricks.csv", name, [row], list(TRICKS))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"tricks.py: {shlex.join(error.cmd)} failed")
