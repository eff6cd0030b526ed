"""What this machine can do at most, with all of its cores or some: for speed.py, more_speeds.py."""

import contextlib
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "algos"))
import ppo


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


def gflops(threads: int) -> float:
    """Of large matrix products in fp32 [1e9 floating-point operations per second]."""
    torch.set_num_threads(threads)
    a, seconds = torch.randn(2048, 2048), []
    for _ in range(10):
        started = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(seconds) / 1e9


def env_sps(cell) -> float:
    """Steps per second of the environments alone, as our scripts make them, one action for ever."""
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
