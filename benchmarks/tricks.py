"""What each trick for speed is worth: a script beside its copy with plainer code in that place.

    python benchmarks/tricks.py                            all, on a machine at rest
    python benchmarks/tricks.py adam-fused --repeats 5

Both train in turns, in a cell of speed.py. results/tricks.csv has the median over the repetitions
of how many times as fast the script is as its plainer copy, the lowest and the highest, the
microseconds per step that this is, and the seconds until the first update of both.
"""

import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

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


OUR_STEP = "num_envs, space, rows, final_obs = self.num_envs"
STEP_OF_GYMNASIUM = """obs, rewards, terminated, truncated, infos = super().step(actions)
        final_obs = {i: infos["final_obs"][i] for i in np.flatnonzero(terminated | truncated)}
        return obs, rewards, terminated, truncated, {"final_obs": final_obs}
        """
TRICKS = {
    "dqn-acts-in-numpy": Trick("dqn-cartpole", {
        'if self.sees_images or not self.in_numpy["trunk"].first.is_cpu:': "if True:",
    }),
    "ppo-acts-in-numpy": Trick("ppo-cartpole", {
        "if self.sees_images or not self.policy_in_numpy.first.is_cpu:": "if True:",
    }),
    "moments-looked-up-once": Trick("ppo-halfcheetah", {"if key != self.key:": "if True:"}),
    "gradients-in-one-vector": Trick("ppo-cartpole", {
        "[flatten(agent)], lr=args": "agent.parameters(), lr=args",
        '(vector,) = optimizer.param_groups[0]["params"]  # all parameters: see flatten': "",
        "vector.grad.zero_()\n": "optimizer.zero_grad()\n",
        "clip_gradient(vector, args.max_grad_norm)":
            "nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)",
    }),
    "gradient-clipped-at-once": Trick("ppo-cartpole", {
        "vector.grad[None].renorm_(p=2, dim=0, maxnorm=max_norm)":
            "nn.utils.clip_grad_norm_([vector], max_norm)",
    }),
    "adam-fused": Trick("td3-halfcheetah", {", fused=True": ""}),
    "optimizers-without-bookkeeping": Trick("ppo-cartpole", {
        "            skip_compiler_import()\n": "",
    }),
    "step-of-environments": Trick("dqn-cartpole", {OUR_STEP: STEP_OF_GYMNASIUM + OUR_STEP}),
    "finite-by-a-sum-of-squares": Trick("dqn-cartpole", {
        "not math.isfinite(np.vdot(x, x)) and ": "",
    }),
    "channels-last": Trick("ppo-breakout", {
        "torch.channels_last).div_(255)": "torch.contiguous_format).div_(255)",
        ".contiguous(memory_format=torch.channels_last)": ".contiguous()",
    }),
    "minibatches-by-index-select": Trick("ppo-breakout", {
        "tensor.index_select(0, indices)": "tensor[indices]",
    }),
    "freed-memory-kept": Trick("ppo-breakout", {"        keep_freed_memory()\n": "        pass\n"}),
    "two-threads": Trick("td3-halfcheetah", {
        "    torch.set_num_threads(args.torch_threads)": "    torch.set_num_threads(1)",
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
