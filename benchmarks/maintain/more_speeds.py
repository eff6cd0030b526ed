"""More speeds of our scripts, on a machine at rest; rows go to results/speed/.

    python benchmarks/maintain/more_speeds.py seeds --repeats 2      after `make speed` SB3's, too
    python benchmarks/maintain/more_speeds.py actors --repeats 7     with Ray
    python benchmarks/maintain/more_speeds.py ppo-breakout           on a GPU

`seeds` is the processor time for ten seeds of PPO on CartPole: by ppo_seeds.py, by ppo.py one after
another, and by stable-baselines3, start-up and everything included. `actors` is the speed of
dqn_apex.py on an environment that waits. A cell is the speed of our script on a GPU.
"""

import math
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import speed
from speed import CELLS, ON_GPU, PEERS, Cell, our_sps, output_of, peer_sps


def median_sps(cell: Cell, repeats: int, folder: str, device: str = "cpu") -> int:
    return round(statistics.median(our_sps(cell, folder, device) for _ in range(repeats)))


def measure_seeds(name: str, repeats: int, folder: str) -> list[dict]:
    """Processor and wall seconds for each of ten seeds, by what trains them."""
    cell = replace(CELLS["ppo-cartpole"], first=0, last=51_200)

    def ours(script, more):
        flags = f"--config cartpole:ppo-cleanrl --total-timesteps {cell.last} --torch-threads 1"
        words = f"algos/{script}.py {flags} --eval-episodes 1 {more}".split()
        output_of(*words, "--runs-dir", folder)

    ways = {
        "ppo_seeds, ten at once": lambda: ours("ppo_seeds", "--num-seeds 10"),
        "ppo, one after another": lambda: [ours("ppo", f"--seed {k}") for k in range(1, 11)],
    }
    if PEERS.exists():
        ways["sb3, one after another"] = lambda: [peer_sps(cell, "sb3", folder) for _ in range(10)]
    rows = []
    for way, train in ways.items():
        times = []
        for _ in range(repeats):
            before = os.times()
            train()
            user, system, elapsed = np.subtract(os.times(), before)[[2, 3, 4]]
            times.append(((user + system) / 10, elapsed / 10))
        processor, wall = np.median(times, axis=0).round(2)
        row = {"cell": name, "trained_by": way, "steps": cell.last}
        rows.append({**row, "processor_s": processor, "wall_s": wall, "repeats": repeats})
    return rows


def solve(command: str, seed: int, folder: str) -> float:
    """Seconds until 20 greedy episodes on CartPole-v1 have a mean of 475."""
    started = time.perf_counter()
    words = [475, "CartPole-v1", *command.split(), "--seed", seed, "--runs-dir", folder]
    found = output_of(speed.MAINTAIN / "until_solved.py", *words)
    return time.perf_counter() - started if "steps" in found else math.inf


def measure_actors(name: str, repeats: int, folder: str) -> list[dict]:
    """Speed of dqn.py and of dqn_apex.py with 1 to 8 actors where a step takes 5 ms, and for some
    of them the seconds until it is solved; a run that did not solve it took for ever.
    """
    env_id = "tasks:WaitingCartPole-v0"
    rows = []
    settings = "--total-timesteps 40000 --learning-rate 3e-3 --gamma 0.98 --n-step 5 --loss huber"
    for actors in (0, 1, 2, 4, 8):
        flags = f"dqn_apex --num-actors {actors}" if actors else "dqn"
        cell = Cell(flags, env_id, 2_000, 2_000 + 2_000 * max(1, actors))
        row = {"cell": name, "actors": actors or "dqn", "sps": median_sps(cell, repeats, folder)}
        row |= {"solved": "", "seconds": "", "slowest": ""}
        if actors in (0, 4, 8):
            command = f"{flags} {settings} --env-id {env_id} --torch-threads 1 --device cpu"
            seconds = [solve(command, seed, folder) for seed in range(1, repeats + 1)]
            row |= {"solved": sum(map(math.isfinite, seconds)), "slowest": round(max(seconds), 1)}
            row["seconds"] = round(statistics.median_high(seconds), 1)
        rows.append({**row, "repeats": repeats})
    return rows


def measure_gpu(name: str, repeats: int, folder: str) -> list[dict]:
    import torch

    own = ON_GPU[name]
    cell = replace(CELLS[name], first=own["first"], last=own["last"], threads=CELLS[name].num_envs)
    row = {"cell": name, "sps": median_sps(cell, repeats, folder, "cuda")}
    row |= {"leanrl_h100": own.get("leanrl_h100", ""), "gpu": torch.cuda.get_device_name()}
    return [{**row, "repeats": repeats}]


TASKS = {"seeds": ("seeds.csv", measure_seeds), "actors": ("actors.csv", measure_actors)}
TASKS |= {name: ("gpu.csv", measure_gpu) for name in ON_GPU}

if __name__ == "__main__":
    speed.loop(__doc__, TASKS)
