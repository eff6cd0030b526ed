"""Speed of our scripts beside stable-baselines3 and sbx-rl: `make speed`, on a machine at rest.

    python benchmarks/speed.py                              everything, the peers in .venv-peers
    python benchmarks/speed.py ppo-cartpole td3-halfcheetah --repeats 5
    python benchmarks/speed.py solve-cartpole scaling profile

Each cell trains with the same hyperparameters in every library, one process at a time, in turns. A
script's speed is read from its curves: steps over seconds between two points, start-up excluded.
The table gives medians and the range over the repetitions; ratios are of medians of this one run.
The share of the ceiling is the time that the cell's floating-point operations and environment steps
would take alone, by what this machine was measured to do, over the time a step took.

`solve-...` is the time from the start of the process until the last 20 training episodes have the
mean return at which the environment counts as solved, with each library's best known settings, on
a seed of its own for each repetition. `scaling` is the speed of PPO with 1 to 64 environments and
rollouts of 512 steps in all, and of two runs side by side. `seeds` is the processor time for ten
seeds of PPO on CartPole: by ppo_seeds.py, by ppo.py one after another and two at a time, and by
stable-baselines3, start-up and everything included. `profile` says what the time of a step
goes into, by maintain/profiled.py, in the same cells; beside it `arithmetic`, what the
floating-point operations would take alone.

Only when they are named: `gpu`, the speed of our scripts on a GPU; `actors`, that of dqn_apex.py on
an environment that waits, which needs Ray.
"""

import argparse
import contextlib
import csv
import itertools
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAINTAIN = ROOT / "benchmarks" / "maintain"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
RESULTS = ROOT / "benchmarks" / "results"
LIBRARIES = {"sb3": "stable_baselines3", "sbx": "sbx"}


@dataclass
class Cell:
    """One algorithm on one environment with the same settings everywhere."""

    flags: str
    """Of our script, whose name comes first."""
    env_id: str
    first: int
    """Speed counts from this step of the training..."""
    last: int
    """... to this one, where it ends."""
    peers: dict
    """By library: its algorithm and the keywords that it takes."""
    must: float
    """What our speed is to be, as a multiple of the faster peer's, or of `must_over`."""
    mflop: float
    """Floating-point operations of learning and acting, per environment step [millions]."""
    num_envs: int = 1
    threads: int = 1
    must_over: str = ""


def mlp_mflop(*sizes: int) -> float:
    """Of a dense network's forward pass for one input, in millions; backward it is twice that."""
    return sum(2 * a * b for a, b in itertools.pairwise(sizes)) / 1e6


NATURE_CNN = 18.7  # MFLOP of a forward pass for one image of 84 x 84
PPO_CARTPOLE = dict(
    n_steps=128, batch_size=128, n_epochs=4, learning_rate=2.5e-4, ent_coef=0.01, clip_range=0.2
)
EXPLORATION_FRACTION = 0.02  # ours is 0.2, and peers.py asks for a training ten times as long
DQN_CARTPOLE = dict(
    buffer_size=10_000, learning_starts=1_000, batch_size=128, train_freq=10, gradient_steps=1,
    target_update_interval=500, learning_rate=2.5e-4, policy_kwargs={"net_arch": [120, 84]},
    exploration_fraction=EXPLORATION_FRACTION, exploration_final_eps=0.04,
)  # fmt: skip
DQN_BREAKOUT = dict(
    buffer_size=20_000, learning_starts=1_000, batch_size=32, train_freq=4, gradient_steps=1,
    target_update_interval=1_000, learning_rate=1e-4,
    exploration_fraction=EXPLORATION_FRACTION, exploration_final_eps=0.04,
)  # fmt: skip
TD3_CHEETAH = dict(
    learning_starts=1_000, batch_size=256, train_freq=1, gradient_steps=1, learning_rate=3e-4,
    policy_kwargs={"net_arch": [256, 256]},
)  # fmt: skip
PPO_CHEETAH = dict(n_steps=2048, batch_size=64, n_epochs=10, learning_rate=3e-4)
PPO_BREAKOUT = dict(
    n_steps=128, batch_size=256, n_epochs=4, learning_rate=2.5e-4, ent_coef=0.01, clip_range=0.1
)
PPO_FLAGS = "--no-clip-vloss --no-anneal-lr"
DQN_FLAGS = (
    "--learning-starts 1000 --buffer-size 10000 --batch-size 128 --train-frequency 10 "
    "--gradient-steps 1 --target-network-frequency 500 --learning-rate 2.5e-4 "
    "--hidden-sizes 120 84 --tau 1 --n-step 1 --no-anneal-lr --gamma 0.99"
)
BREAKOUT_DQN_FLAGS = (
    "--env-id ALE/Breakout-v5 --learning-starts 1000 --buffer-size 20000 --batch-size 32 "
    "--train-frequency 4 --gradient-steps 1 --target-network-frequency 1000 --learning-rate 1e-4 "
    "--clip-reward --episodic-life --eval-epsilon 1 --tau 1 --n-step 1 --no-anneal-lr --gamma 0.99"
)
# On a GPU: the first and the last step that count, and what LeanRL says of itself on an H100
# (github.com/pytorch-labs/LeanRL), with an agent and settings of the same kind
ON_GPU = {
    "ppo-breakout": (24_576, 61_440, 6_809),
    "dqn-breakout": (3_600, 9_000, ""),
    "td3-halfcheetah": (2_400, 6_000, 936),
    "ppo-halfcheetah": (8_192, 20_480, 1_774),
}
# "must" is the project's target. Where the fastest peer known is not among these two, it is that
# target over what stable-baselines3 did when it was set: CleanRL's JAX scripts of DQN and C51
CELLS = {
    "ppo-cartpole": Cell(
        f"ppo --config benchmarks/cartpole.toml:ppo-cleanrl {PPO_FLAGS}", "CartPole-v1", 5_120,
        50_176, {"sb3": ("PPO", PPO_CARTPOLE), "sbx": ("PPO", PPO_CARTPOLE)}, 1.6,
        (1 + 1 + 3 * 4) * 2 * mlp_mflop(4, 64, 64, 1), num_envs=4,
    ),
    "ppo-lunarlander": Cell(
        f"ppo --config benchmarks/cartpole.toml:ppo-cleanrl {PPO_FLAGS}",
        "LunarLander-v3", 5_120, 50_176, {"sb3": ("PPO", PPO_CARTPOLE)}, 1.6,
        (1 + 1 + 3 * 4) * 2 * mlp_mflop(8, 64, 64, 1), num_envs=4,
    ),
    "a2c-cartpole": Cell(
        "a2c --num-envs 8 --num-steps 5 --optimizer rmsprop --learning-rate 7e-4 --no-anneal-lr "
        "--gamma 0.99", "CartPole-v1", 8_000, 80_000,
        {"sb3": ("A2C", dict(n_steps=5))}, 1.6,
        (1 + 1 + 3) * 2 * mlp_mflop(4, 64, 64, 1), num_envs=8,
    ),
    "dqn-cartpole": Cell(
        f"dqn {DQN_FLAGS}", "CartPole-v1", 4_000, 30_000,
        {"sb3": ("DQN", DQN_CARTPOLE), "sbx": ("DQN", DQN_CARTPOLE)}, 1.3 * 4_836 / 3_302,
        (1 + 12.8 * 4) * mlp_mflop(4, 120, 84, 2), must_over="sb3",
    ),
    "dqn-lunarlander": Cell(
        f"dqn {DQN_FLAGS} --env-id LunarLander-v3", "LunarLander-v3", 4_000, 30_000,
        {"sb3": ("DQN", DQN_CARTPOLE)}, 1.3, (1 + 12.8 * 4) * mlp_mflop(8, 120, 84, 4),
    ),
    "c51-cartpole": Cell(
        f"dqn {DQN_FLAGS} --n-atoms 101 --v-min -100 --v-max 100", "CartPole-v1", 4_000, 20_000,
        {"sb3": ("DQN", DQN_CARTPOLE)}, 1.3 * 2_297 / 3_302,
        (1 + 12.8 * 4) * mlp_mflop(4, 120, 84, 202),
    ),
    "ppo-halfcheetah": Cell(
        f"ppo --config benchmarks/halfcheetah.toml:ppo-cleanrl {PPO_FLAGS}", "HalfCheetah-v5",
        4_096, 20_480, {"sb3": ("PPO", PPO_CHEETAH), "sbx": ("PPO", PPO_CHEETAH)}, 1.6,
        (1 + 1 + 3 * 10) * 2 * mlp_mflop(17, 64, 64, 6),
    ),
    "td3-halfcheetah": Cell(
        # 999, so that the first update is at a point of the curves, by which it is timed
        "td3 --learning-starts 999 --exploration-noise 0", "HalfCheetah-v5", 1_500, 4_500,
        {"sb3": ("TD3", TD3_CHEETAH), "sbx": ("TD3", TD3_CHEETAH)}, 1.2,
        # a critics' update: both forward, backward and in the target; every second, the actor's
        256 * (2 * 4 * mlp_mflop(23, 256, 256, 1) + mlp_mflop(17, 256, 256, 6)
               + (3 * mlp_mflop(17, 256, 256, 6) + 2 * mlp_mflop(23, 256, 256, 1)) / 2),
        threads=2,
    ),
    "ppo-breakout": Cell(
        f"ppo --config benchmarks/atari.toml {PPO_FLAGS}", "ALE/Breakout-v5", 2_048, 9_216,
        {"sb3": ("PPO", PPO_BREAKOUT)}, 465 / 290, (1 + 1 + 4 * 2.65) * NATURE_CNN,
        num_envs=8, threads=2,
    ),
    "dqn-breakout": Cell(
        f"dqn {BREAKOUT_DQN_FLAGS}", "ALE/Breakout-v5", 1_500, 5_000,
        {"sb3": ("DQN", DQN_BREAKOUT)}, 150 / 116, (1 + 8 * 3.65) * NATURE_CNN, threads=2,
    ),
    "c51-breakout": Cell(
        f"dqn {BREAKOUT_DQN_FLAGS} --n-atoms 51", "ALE/Breakout-v5", 1_500, 5_000,
        {"sb3": ("DQN", DQN_BREAKOUT)}, 140 / 116, (1 + 8 * 3.65) * NATURE_CNN, threads=2,
    ),
}  # fmt: skip


@dataclass
class Solve:
    """An environment to be solved: a training until its last 20 episodes have a mean return."""

    flags: str
    env_id: str
    threshold: float
    peers: dict
    must: float
    """Seconds that ours may take, from the start of the process, by the median over seeds."""
    num_envs: int
    every_seed: bool = False
    """Whether every seed must solve it, too."""
    evaluated_on: str = ""
    """An environment to play 20 greedy episodes in every 2,000 steps, which then count instead."""


ZOO_CARTPOLE = dict(  # of rl-zoo, which anneals both to 0 over 100,000 steps
    n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, ent_coef=0.0,
    learning_rate=[1e-3, 0], clip_range=[0.2, 0],
)  # fmt: skip
SOLVES = {
    "solve-cartpole": Solve(
        "ppo --config benchmarks/cartpole.toml", "CartPole-v1", 475,
        {"sb3": ("PPO", ZOO_CARTPOLE), "sbx": ("PPO", ZOO_CARTPOLE)}, 6, num_envs=8,
    ),
    # rl-zoo's settings had not solved it after 8 minutes when the target was set: no peer is run
    "solve-lunarlander": Solve(
        "ppo --config benchmarks/lunarlander.toml", "LunarLander-v3", 200, {}, 45, num_envs=16,
        every_seed=True,
    ),
}  # fmt: skip


@contextlib.contextmanager
def held_to(cores: int):
    """So many cores for what is started within: JAX takes a thread for each that it may use."""
    if not hasattr(os, "sched_setaffinity"):  # macOS, Windows
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def our_flags(cell: Cell, folder: str, device: str = "cpu") -> list:
    """The name of our script, and its flags."""
    flags = ["--total-timesteps", cell.last, "--eval-episodes", 1, "--log-frequency", 500]
    flags += ["--env-id", cell.env_id, "--torch-threads", cell.threads, "--device", device]
    flags += ["--runs-dir", folder]
    return cell.flags.split() + flags


def run_ours(cell: Cell, folder: str, device: str = "cpu") -> dict:
    """Trains with our script; speed and the seconds to the first update, from its event file."""
    script, *flags = our_flags(cell, folder, device)
    command = [sys.executable, ROOT / "algos" / f"{script}.py", *flags]
    started = time.time()
    subprocess.run([str(w) for w in command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    times, updates = {}, []
    for event in events(max(Path(folder).rglob("events.out.tfevents.*"), key=os.path.getmtime)):
        for value in event.summary.value:
            if value.tag == "charts/SPS":
                times[event.step] = event.wall_time
            if value.tag.startswith("losses/"):
                updates.append(event.wall_time - started)
    first = min(step for step in times if step >= cell.first)
    last = max(times)
    return {"sps": (last - first) / (times[last] - times[first]), "first_update": min(updates)}


def events(path: Path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return EventFileLoader(str(path)).Load()


def peer_command(task, library: str, **more) -> list:
    """task: a Cell or a Solve; more: what else the main of peers.py takes."""
    algo, settings = task.peers[library]
    arguments = {
        "library": LIBRARIES[library],
        "algo": algo,
        "env_id": task.env_id,
        "settings": settings,
        "num_envs": task.num_envs,
        **more,
    }
    return [str(PEERS), str(MAINTAIN / "peers.py"), json.dumps(arguments)]


def run_peer(cell: Cell, library: str, folder: str) -> dict:
    command = peer_command(cell, library, threads=cell.threads, first=cell.first, last=cell.last)
    process = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if process.returncode:
        words = process.stderr.strip() or f"exit status {process.returncode}"
        sys.exit(f"{library} failed: {words.splitlines()[-1]}")
    return json.loads(process.stdout.strip().splitlines()[-1])


UNTIL_SOLVED = """
import collections, dataclasses, importlib, json, os, sys
sys.path.insert(0, "algos")
name, threshold, evaluated_on, *sys.argv = sys.argv[1:]
script, returns, seen = importlib.import_module(name), collections.deque(maxlen=20), 0
parent = getattr(script, "dqn", script)  # of a variant
end_iteration = parent.Run.end_iteration
def look(run, scalars):
    global seen
    returns.extend(episode[0] for episode in run.finished[seen:])
    due, args = run.due(2_000), run.args
    steps = end_iteration(run, scalars)
    seen = len(run.finished)
    if evaluated_on:
        returns.clear()
        if due:
            run.args = dataclasses.replace(args, env_id=evaluated_on, eval_episodes=20)
            returns.extend(run.evaluate())
            run.args = args
    if len(returns) == returns.maxlen and sum(returns) / len(returns) >= float(threshold):
        print(json.dumps({"steps": steps}), flush=True)
        os._exit(0)
    return steps
parent.Run.end_iteration = look
sys.argv.insert(0, f"algos/{name}.py")
args_class = getattr(script, "RunArgs", script.Args)
parent.main(name, args_class, script.make_agent, script.train, parent.evaluation_policy)
"""


def solve(task: Solve, library: str, seed: int, folder: str) -> dict:
    """Seconds and steps until it is solved; none if the budget did not suffice."""
    if library == "ours":
        script, *flags = task.flags.split()
        flags += ["--seed", seed, "--torch-threads", 1, "--device", "cpu", "--runs-dir", folder]
        task_words = script, task.threshold, task.evaluated_on
        command = [sys.executable, "-c", UNTIL_SOLVED, *task_words, *flags]
    else:
        more = {"first": 0, "last": 100_000, "seed": seed, "threshold": task.threshold}
        command = peer_command(task, library, threads=1, **more)
    started = time.perf_counter()
    output = subprocess.run(
        [str(w) for w in command], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    seconds, last = time.perf_counter() - started, output.strip().splitlines()[-1]
    solved = last.startswith("{") and "steps" in json.loads(last)
    return {"seconds": seconds, "steps": json.loads(last)["steps"]} if solved else {}


def measure_solving(name: str, repeats: int, folder: str) -> list[dict]:
    task, rows = SOLVES[name], []
    runs = {library: [] for library in ("ours", *task.peers)}
    for seed in range(1, repeats + 1):
        for library in runs:
            runs[library].append(solve(task, library, seed, folder))
    for library, results in runs.items():
        solved = [run for run in results if run]
        # the median of all repetitions: one that is not solved counts as the longest
        seconds = sorted([run["seconds"] for run in solved]) + [math.inf] * results.count({})
        steps = sorted([run["steps"] for run in solved]) + [math.inf] * results.count({})
        row = {
            "cell": name,
            "library": library,
            "seconds": round(statistics.median_high(seconds), 1),
            "fastest": round(seconds[0], 1),
            "slowest": round(seconds[-1], 1),
            "steps": statistics.median_high(steps),
            "must": task.must if library == "ours" else "",
            "solved": len(solved),
            "repeats": repeats,
        }
        rows.append(row)
        verdict = ""
        if row["must"]:
            enough = len(solved) == repeats or not task.every_seed
            good = row["seconds"] < row["must"] and enough
            verdict = f"must be under {row['must']} s: {'reached' if good else 'MISSED'}"
        print(
            f"{name:18} {library:5} {row['seconds']:>6} s ({row['fastest']} to {row['slowest']}), "
            f"{row['steps']:,} steps, {len(solved)} of {repeats} solved  {verdict}",
            flush=True,
        )
    return rows


def measure_scaling(repeats: int, folder: str) -> list[dict]:
    """SPS of PPO on CartPole by the number of environments, and of two runs at a time, each."""
    settings = "ppo --config benchmarks/cartpole.toml:ppo-cleanrl --num-envs {} --num-steps {}"

    def speed(num_envs: int):
        flags = settings.format(num_envs, 512 // num_envs)
        cell = Cell(flags, "CartPole-v1", 5_120, 50_176, {}, 0, 0, num_envs=num_envs)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            return run_ours(cell, own)["sps"]

    rows = []
    for num_envs, at_once in [(2**k, 1) for k in range(7)] + [(4, 2)]:
        with ThreadPoolExecutor(at_once) as pool:
            runs = [sum(pool.map(speed, [num_envs] * at_once)) for _ in range(repeats)]
        row = {
            "cell": "scaling",
            "environments": num_envs,
            "runs_at_once": at_once,
            "sps_together": round(statistics.median(runs)),
            "repeats": repeats,
        }
        rows.append(row)
        print("scaling          " + ", ".join(f"{k} {v:,}" for k, v in list(row.items())[1:-1]))
    return rows


def measure_seeds(repeats: int, folder: str) -> list[dict]:
    """Processor and wall seconds for each of ten seeds, by what trains them."""
    steps, rows = 51_200, []
    settings = {"defaults": "", "cleanrl": "--config benchmarks/cartpole.toml:ppo-cleanrl"}
    flags = f"--total-timesteps {steps} --torch-threads 1 --eval-episodes 1 --runs-dir {folder}"
    cell = replace(CELLS["ppo-cartpole"], last=steps, first=0)

    def ours(script, setting, seed=1, more=""):
        words = f"algos/{script}.py {settings[setting]} {flags} --seed {seed} {more}".split()
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def side_by_side(setting):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda seed: ours("ppo", setting, seed), range(1, 11)))

    ways = {
        "ppo_seeds, ten at once": lambda s: ours("ppo_seeds", s, more="--num-seeds 10"),
        "ppo, one after another": lambda s: [ours("ppo", s, seed) for seed in range(1, 11)],
        "ppo, two at a time": side_by_side,
        "sb3, one after another": lambda s: [run_peer(cell, "sb3", folder) for _ in range(10)],
    }
    for setting in settings:
        for way in list(ways)[: 4 if setting == "cleanrl" and PEERS.exists() else 3]:
            times = []
            for _ in range(repeats):
                before, started = os.times(), time.time()
                ways[way](setting)
                now = os.times()
                spent = now.children_user + now.children_system
                spent -= before.children_user + before.children_system
                times.append((spent / 10, (time.time() - started) / 10))
            processor, wall = (statistics.median(x) for x in zip(*times, strict=True))
            row = {"cell": "seeds", "settings": setting, "trained_by": way, "steps": steps}
            row |= {"processor_s": round(processor, 2), "wall_s": round(wall, 2)}
            rows.append({**row, "repeats": repeats})
            print("seeds            " + ", ".join(f"{k} {v}" for k, v in list(row.items())[1:]))
    return rows


def measure_actors(repeats: int, folder: str) -> list[dict]:
    """Speed of dqn.py and of dqn_apex.py with 1 to 8 actors where a step takes 5 ms, and for some
    of them the seconds until it is solved, by greedy episodes where steps take no time.
    """
    env_id, rows = "tasks:WaitingCartPole-v0", []
    for actors in (0, 1, 2, 4, 8):
        flags = f"dqn_apex --num-actors {actors}" if actors else "dqn"
        cell = Cell(flags, env_id, 2_000, 2_000 + 2_000 * max(1, actors), {}, 0, 0)
        speeds = [run_ours(cell, folder)["sps"] for _ in range(repeats)]
        row = {"cell": "actors", "actors": actors or "dqn", "sps": round(statistics.median(speeds))}
        row |= {"solved": "", "seconds": "", "slowest": ""}
        if actors in (0, 4, 8):
            flags += f" --env-id {env_id}"
            task = Solve(flags, env_id, 475, {}, 0, num_envs=1, evaluated_on="CartPole-v1")
            runs = [solve(task, "ours", seed, folder) for seed in range(1, repeats + 1)]
            seconds = sorted([run["seconds"] for run in runs if run]) + [math.inf] * runs.count({})
            row |= {"solved": repeats - runs.count({}), "slowest": round(seconds[-1], 1)}
            row["seconds"] = round(statistics.median_high(seconds), 1)
        rows.append({**row, "repeats": repeats})
        print("actors           " + ", ".join(f"{k} {v}" for k, v in list(row.items())[1:]))
    return rows


def measure_profile(name: str, folder: str) -> dict:
    """Microseconds of a step by part, once."""
    cell, profiled = CELLS[name], MAINTAIN / "profiled.py"
    command = [sys.executable, profiled, cell.first, *our_flags(cell, folder)]
    output = subprocess.run(
        [str(w) for w in command], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    lines = [line.split() for line in output.splitlines() if "us a step" in line]
    parts = {part: float(microseconds) for part, microseconds, *_ in lines}
    arithmetic = cell.mflop / measured_gflops(cell.threads) * 1e3
    return {"cell": name, **parts, "arithmetic": round(arithmetic, 1)}


def measure_gpu(name: str, repeats: int, folder: str) -> dict:
    """SPS of a cell on the GPU."""
    import torch

    first, last, leanrl = ON_GPU[name]
    cell = replace(CELLS[name], first=first, last=last, threads=CELLS[name].num_envs)
    row = {
        "cell": name,
        "sps": round(
            statistics.median(run_ours(cell, folder, "cuda")["sps"] for _ in range(repeats))
        ),
        "environments_alone": round(measured_env_sps(cell)),
        "leanrl_h100": leanrl,
        "gpu": torch.cuda.get_device_name(),
        "repeats": repeats,
    }
    print("gpu              " + ", ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    return row


def measured_gflops(threads: int) -> float:
    """Of large matrix products in fp32 [1e9 floating-point operations per second]."""
    import torch

    torch.set_num_threads(threads)
    a, seconds = torch.randn(2048, 2048), []
    for _ in range(10):
        started = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(seconds) / 1e9


def measured_env_sps(cell: Cell) -> float:
    """Steps per second of the environments alone, as our scripts make them, one action for ever."""
    sys.path.insert(0, str(ROOT / "algos"))
    import ppo

    args = ppo.RunArgs(env_id=cell.env_id, num_envs=cell.num_envs, torch_threads=cell.threads)
    envs = ppo.make_envs(args, cell.num_envs)
    ppo.reset(envs, 1)
    actions, steps = envs.action_space.sample(), 0
    started = time.perf_counter()
    while time.perf_counter() - started < 2:
        envs.step(actions)
        steps += cell.num_envs
    envs.close()
    return steps / (time.perf_counter() - started)


def times_as_fast(ours: float, theirs: float) -> float:
    """Rounded down, so that no target is reached by rounding."""
    return math.floor(ours / theirs * 100) / 100


def measure(name: str, repeats: int, folder: str) -> list[dict]:
    """Every library in turns, `repeats` times; a row for each."""
    cell, runs = CELLS[name], {"ours": []} | {library: [] for library in CELLS[name].peers}
    for _ in range(repeats):
        runs["ours"].append(run_ours(cell, folder))
        for library in cell.peers:
            runs[library].append(run_peer(cell, library, folder))
    ceiling = cell.mflop / measured_gflops(cell.threads) / 1e3 + 1 / measured_env_sps(cell)
    medians = {k: statistics.median(run["sps"] for run in runs[k]) for k in runs}
    fastest, rows = max(cell.peers, key=medians.get), []
    for library, results in runs.items():
        speeds = [run["sps"] for run in results]
        row = {
            "cell": name,
            "library": library,
            "sps": round(medians[library], 1),
            "lowest": round(min(speeds), 1),
            "highest": round(max(speeds), 1),
            "ours_over_it": times_as_fast(medians["ours"], medians[library]),
            "must": round(cell.must, 2) if library == (cell.must_over or fastest) else "",
            "ceiling_share": round(ceiling * medians[library], 2),
            "first_update_s": round(statistics.median(r["first_update"] for r in results), 1),
            "repeats": repeats,
        }
        rows.append(row)
    return rows


def show(rows: list[dict]):
    for row in rows:
        verdict = ""
        if row["must"]:
            verdict = "reached" if float(row["ours_over_it"]) >= float(row["must"]) else "MISSED"
            verdict = f"must {row['must']}: {verdict}"
        print(
            f"{row['cell']:16} {row['library']:5} {row['sps']:>9,} SPS "
            f"({row['lowest']:,} to {row['highest']:,})  ours {row['ours_over_it']} x  "
            f"{row['ceiling_share']:4} of the ceiling  first update {row['first_update_s']} s  "
            f"{verdict}",
            flush=True,
        )


def keep(path: Path, name: str, rows: list[dict], order: list[str]):
    """Puts the rows of a cell in the place of its former ones."""
    kept = []
    if path.exists():
        with open(path, newline="") as file:
            kept = [row for row in csv.DictReader(file) if row["cell"] != name]
    kept = sorted(kept + rows, key=lambda row: order.index(row["cell"]))
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


def parse_names(doc: str, names, without_any: str, repeats: int) -> tuple:
    """The command line's parser and arguments: what is to be measured, and how often."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}; none: {without_any}")
    parser.add_argument("--repeats", type=int, default=repeats)
    args = parser.parse_args()
    if unknown := set(args.names) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}, only {', '.join(names)}")
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    return parser, args


def main():
    os.environ["TQDM_DISABLE"] = "1"  # the scripts' progress would stand between the lines here
    names = [*CELLS, *SOLVES, "scaling", "seeds", "profile", "gpu", "actors"]
    parser, args = parse_names(__doc__, names, "all but gpu and actors", repeats=3)
    tasks, chosen = {**CELLS, **SOLVES}, args.names or names[:-2]
    has_peers = any(tasks[name].peers for name in chosen if name in tasks)
    if has_peers and not PEERS.exists():
        parser.error("the peers are not installed: make speed does it")
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            if name in CELLS:
                with held_to(CELLS[name].threads):
                    rows = measure(name, args.repeats, folder)
                show(rows)
                keep(RESULTS / "speed.csv", name, rows, names)
            elif name in SOLVES:
                with held_to(1):
                    rows = measure_solving(name, args.repeats, folder)
                keep(RESULTS / "solve.csv", name, rows, names)
            elif name == "scaling":
                rows = measure_scaling(args.repeats, folder)
                keep(RESULTS / "scaling.csv", name, rows, names)
            elif name == "seeds":
                with held_to(2):
                    rows = measure_seeds(args.repeats, folder)
                keep(RESULTS / "seeds.csv", name, rows, names)
            elif name == "actors":
                rows = measure_actors(args.repeats, folder)
                keep(RESULTS / "actors.csv", name, rows, names)
            elif name == "gpu":
                for cell in ON_GPU:
                    row = measure_gpu(cell, args.repeats, folder)
                    keep(RESULTS / "gpu.csv", cell, [row], names)
            else:
                for cell in CELLS:
                    row = measure_profile(cell, folder)
                    print("profile          " + ", ".join(f"{k} {v}" for k, v in row.items()))
                    keep(RESULTS / "profile.csv", cell, [row], names)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:  # which has said on stderr why
        sys.exit(f"speed.py: {shlex.join(error.cmd)} failed")
