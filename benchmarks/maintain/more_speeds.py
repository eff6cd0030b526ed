"""More speeds of our scripts, on a machine at rest; rows go to results/speed/.

    python benchmarks/maintain/more_speeds.py solve-cartpole scaling profile
    python benchmarks/maintain/more_speeds.py seeds --repeats 2      after `make speed` SB3's, too
    python benchmarks/maintain/more_speeds.py gpu                    on a GPU
    python benchmarks/maintain/more_speeds.py actors --repeats 7     with Ray

`solve-...` is the time from the start of the process until the last 20 training episodes have the
mean return at which the environment counts as solved, with each library's best known settings, on
a seed of its own for each repetition. `scaling` is the speed of PPO with 1 to 64 environments and
rollouts of 512 steps in all, and of two runs side by side. `seeds` is the processor time for ten
seeds of PPO on CartPole: by ppo_seeds.py, by ppo.py one after another and two at a time, and by
stable-baselines3, start-up and everything included. `profile` says what the time of a step goes
into, by profiled.py, in the cells of speed.py; beside it `arithmetic`, what the floating-point
operations would take alone. `gpu` is the speed of our scripts on a GPU, `actors` that of
dqn_apex.py on an environment that waits.
"""

import json
import math
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import speed
from speed import CELLS, ON_GPU, PEERS, SOLVES, SPEEDS, Cell, output_of, run_ours


def solve(cell: Cell, library: str, seed: int, folder: str) -> dict:
    """Seconds and steps until it is solved; none if the budget did not suffice."""
    started = time.perf_counter()
    if library == "ours":
        flags = ["--seed", seed, "--torch-threads", 1, "--device", "cpu", "--runs-dir", folder]
        words = [cell.threshold, cell.evaluated_on, *cell.flags.split(), *flags]
        last = output_of(speed.MAINTAIN / "until_solved.py", *words).strip().splitlines()[-1]
        found = json.loads(last) if last.startswith("{") else {}
    else:
        found = speed.run_peer(cell, library, folder, seed=seed, threshold=cell.threshold)
    return {"seconds": time.perf_counter() - started, **found} if "steps" in found else {}


def median_of(runs: list[dict], name: str) -> tuple:
    """Median, least and most; a run that did not solve its task took for ever."""
    values = sorted(run.get(name, math.inf) for run in runs)
    return statistics.median_high(values), values[0], values[-1]


def measure_solving(name: str, repeats: int, folder: str) -> list[dict]:
    cell, rows = CELLS[name], []
    runs = {library: [] for library in ("ours", *cell.peers)}
    with speed.machine.held_to(1):
        for seed in range(1, repeats + 1):
            for library, results in runs.items():
                results.append(solve(cell, library, seed, folder))
    for library, results in runs.items():
        seconds, fastest, slowest = (round(x, 1) for x in median_of(results, "seconds"))
        row = {"cell": name, "library": library, "seconds": seconds, "fastest": fastest}
        row |= {"slowest": slowest, "steps": median_of(results, "steps")[0]}
        row |= {"must": cell.must if library == "ours" else "", "solved": sum(map(bool, results))}
        rows.append({**row, "repeats": repeats})
    return rows


def median_sps(cell: Cell, repeats: int, folder: str, device: str = "cpu") -> int:
    return round(statistics.median(run_ours(cell, folder, device)["sps"] for _ in range(repeats)))


def measure_scaling(name: str, repeats: int, folder: str) -> list[dict]:
    """SPS of PPO on CartPole by the number of environments, and of two runs at a time, each."""

    def sps_of(num_envs: int):
        flags = f"--num-envs {num_envs} --num-steps {512 // num_envs}"
        own = replace(CELLS["ppo-cartpole"], num_envs=num_envs)
        own.flags = f"ppo --config benchmarks/cartpole.toml:ppo-cleanrl {flags}"
        with tempfile.TemporaryDirectory(dir=folder) as place:
            return run_ours(own, place)["sps"]

    rows = []
    for num_envs, at_once in [(2**k, 1) for k in range(7)] + [(4, 2)]:
        with ThreadPoolExecutor(at_once) as pool:
            runs = [sum(pool.map(sps_of, [num_envs] * at_once)) for _ in range(repeats)]
        row = {"cell": name, "environments": num_envs, "runs_at_once": at_once}
        rows.append(row | {"sps_together": round(statistics.median(runs)), "repeats": repeats})
    return rows


def measure_seeds(name: str, repeats: int, folder: str) -> list[dict]:
    """Processor and wall seconds for each of ten seeds, by what trains them."""
    steps, seeds, rows = 51_200, range(1, 11), []
    settings = {"defaults": "", "cleanrl": "--config benchmarks/cartpole.toml:ppo-cleanrl"}
    flags = f"--total-timesteps {steps} --torch-threads 1 --eval-episodes 1 --runs-dir {folder}"
    cell = replace(CELLS["ppo-cartpole"], last=steps, first=0)

    def ours(script, setting, seed=1, more=""):
        output_of(*f"algos/{script}.py {settings[setting]} {flags} --seed {seed} {more}".split())

    def side_by_side(setting):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda seed: ours("ppo", setting, seed), seeds))

    ways = {
        "ppo_seeds, ten at once": lambda s: ours("ppo_seeds", s, more="--num-seeds 10"),
        "ppo, one after another": lambda s: [ours("ppo", s, seed) for seed in seeds],
        "ppo, two at a time": side_by_side,
        "sb3, one after another": lambda s: [speed.run_peer(cell, "sb3", folder) for _ in seeds],
    }
    for setting in settings:
        for way in list(ways)[: 4 if setting == "cleanrl" and PEERS.exists() else 3]:
            times = []
            for _ in range(repeats):
                before, started = os.times(), time.time()
                with speed.machine.held_to(2):
                    ways[way](setting)
                now = os.times()
                spent = now.children_user + now.children_system
                spent -= before.children_user + before.children_system
                times.append((spent / len(seeds), (time.time() - started) / len(seeds)))
            processor, wall = (statistics.median(x) for x in zip(*times, strict=True))
            row = {"cell": name, "settings": setting, "trained_by": way, "steps": steps}
            row |= {"processor_s": round(processor, 2), "wall_s": round(wall, 2)}
            rows.append({**row, "repeats": repeats})
    return rows


def measure_actors(name: str, repeats: int, folder: str) -> list[dict]:
    """Speed of dqn.py and of dqn_apex.py with 1 to 8 actors where a step takes 5 ms, and for some
    of them the seconds until it is solved, by greedy episodes where steps take no time.
    """
    env_id, rows = "tasks:WaitingCartPole-v0", []
    for actors in (0, 1, 2, 4, 8):
        flags = f"dqn_apex --num-actors {actors}" if actors else "dqn"
        cell = Cell(flags, env_id, 2_000, 2_000 + 2_000 * max(1, actors))
        row = {"cell": name, "actors": actors or "dqn", "sps": median_sps(cell, repeats, folder)}
        row |= {"solved": "", "seconds": "", "slowest": ""}
        if actors in (0, 4, 8):
            cell = replace(cell, flags=f"{flags} --env-id {env_id}", threshold=475.0)
            cell.evaluated_on = "CartPole-v1"
            runs = [solve(cell, "ours", seed, folder) for seed in range(1, repeats + 1)]
            seconds, _, slowest = median_of(runs, "seconds")
            row |= {"solved": sum(map(bool, runs)), "seconds": round(seconds, 1)}
            row |= {"slowest": round(slowest, 1)}
        rows.append({**row, "repeats": repeats})
    return rows


def measure_profile(name: str, repeats: int, folder: str) -> list[dict]:
    """Microseconds of a step by part, once."""
    cell = CELLS[name]
    output = output_of(speed.MAINTAIN / "profiled.py", cell.first, *speed.our_flags(cell, folder))
    lines = [line.split() for line in output.splitlines() if "us a step" in line]
    parts = {part: float(microseconds) for part, microseconds, *_ in lines}
    arithmetic = cell.mflop / speed.machine.gflops(cell.threads) * 1e3
    return [{"cell": name, **parts, "arithmetic": round(arithmetic, 1)}]


def measure_gpu(name: str, repeats: int, folder: str) -> list[dict]:
    """SPS of a cell on the GPU."""
    import torch

    own = ON_GPU[name]
    cell = replace(CELLS[name], first=own["first"], last=own["last"], threads=CELLS[name].num_envs)
    row = {"cell": name, "sps": median_sps(cell, repeats, folder, "cuda")}
    row |= {"environments_alone": round(speed.machine.env_sps(cell))}
    row |= {"leanrl_h100": own.get("leanrl_h100", ""), "gpu": torch.cuda.get_device_name()}
    return [{**row, "repeats": repeats}]


TASKS = {name: ("solve.csv", measure_solving, [name]) for name in SOLVES} | {
    "scaling": ("scaling.csv", measure_scaling, ["scaling"]),
    "seeds": ("seeds.csv", measure_seeds, ["seeds"]),
    "profile": ("profile.csv", measure_profile, SPEEDS),
    "gpu": ("gpu.csv", measure_gpu, list(ON_GPU)),
    "actors": ("actors.csv", measure_actors, ["actors"]),
}

if __name__ == "__main__":
    speed.loop(__doc__, TASKS, [*SOLVES, "scaling", "seeds", "profile"])
