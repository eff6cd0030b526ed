"""Speeds are measured alike for every library, and what is said of them is what was measured."""

import csv
import importlib
import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, SCRIPTS, parse

sys.path.insert(0, str(ROOT / "benchmarks" / "maintain"))
sys.path.insert(0, str(ROOT / "benchmarks"))
import more_speeds
import peer_returns
import profiled
import speed


def test_a_part_that_calls_another_stands_still_meanwhile(monkeypatch):
    clock, parts = profiled.Clock(), SimpleNamespace(inner=lambda: 3)
    clock.time(parts, "inner", "acting")
    parts.outer = lambda: parts.inner() + parts.inner()
    clock.time(parts, "outer", "update")
    ticks = iter([0, 10, 15, 30, 37, 100])  # the outer begins, twice an inner begins and ends
    monkeypatch.setattr(profiled.time, "perf_counter", lambda: next(ticks))
    assert parts.outer() == 6 and clock.spent == {"acting": 5 + 7, "update": 100 - 12}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_part_of_a_training_is_timed(name, tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "maintain" / "profiled.py", 1500, name]
    command += ["--total-timesteps", 2560, "--eval-episodes", 1]
    command += ["--learning-starts", 100] if name in ("dqn", "td3") else []
    words = [str(word) for word in command]
    output = subprocess.run(words, cwd=tmp_path, check=True, text=True, stdout=subprocess.PIPE)
    lines = [line.split() for line in output.stdout.splitlines()[-len(profiled.PARTS) :]]
    parts = {part: float(microseconds) for part, microseconds, *_ in lines}
    assert tuple(parts) == profiled.PARTS
    idle = {"batch"} if name in ("dqn", "td3") else set()
    assert {part for part in parts if parts[part] == 0} == idle


def test_the_peers_explore_as_long_as_our_dqn():
    """peers.py asks for ten times the steps, over which its libraries stretch the schedule."""
    import dqn

    ours = dqn.Args()
    for name in ("dqn-cartpole", "dqn-breakout"):
        settings = speed.CELLS[name].keywords
        assert 10 * settings["exploration_fraction"] == pytest.approx(ours.exploration_fraction)
        assert settings["exploration_final_eps"] == ours.end_e


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind")
def test_what_is_timed_has_as_many_cores_as_threads():
    before = os.sched_getaffinity(0)
    code = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    with speed.machine.held_to(1):
        assert int(subprocess.run(code, stdout=subprocess.PIPE).stdout) == 1
    assert os.sched_getaffinity(0) == before


def test_a_peer_s_seed_trained_again_takes_the_place_of_its_row(tmp_path):
    def row(seed, steps, greedy):
        values = ("Env-v0", "sb3", "A2C", seed, steps, greedy, 2.0, 3.0)
        return dict(zip(peer_returns.COLUMNS, values, strict=True))

    path = tmp_path / "peers.csv"
    for seed, steps, greedy in ((2, 7, 1.0), (1, 7, 4.0), (2, 5, 6.0), (2, 7, 8.0)):
        peer_returns.keep(path, row(seed, steps, greedy))
    found = [line.split(",")[3:6] for line in path.read_text().splitlines()[1:]]
    assert found == [["2", "5", "6.0"], ["1", "7", "4.0"], ["2", "7", "8.0"]]
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_said_of_a_peer_s_returns_is_what_its_seeds_have():
    with open(peer_returns.CSV, newline="") as file:
        returns = [float(row["greedy"]) for row in csv.DictReader(file)]
    mean, std = np.mean(returns), np.std(returns, ddof=1)
    words = {"published.csv": "±", "halfcheetah.toml": "+-"}
    for name, sign in words.items():
        said = f"{mean:,.0f} {sign} {std:.0f}"
        assert said in (ROOT / "benchmarks" / name).read_text("utf-8"), name


def test_ratios_of_speed_are_rounded_down():
    assert speed.times_as_fast(1.749 * 1013, 1013) == 1.74
    speeds = np.random.default_rng(0).uniform(100, 5000, 1000).tolist()
    assert all(speed.times_as_fast(sps, sps) == 1 for sps in speeds)


def test_the_flags_of_every_cell_parse(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in speed.SPEEDS:
        script, *flags = speed.our_flags(speed.CELLS[name], "runs")
        args = parse(importlib.import_module(script), flags)
        assert args.total_timesteps == speed.CELLS[name].last > speed.CELLS[name].first, name
    for name in speed.SOLVES:
        script, *flags = speed.CELLS[name].flags.split()
        assert parse(importlib.import_module(script), flags).env_id == speed.CELLS[name].env_id


def test_operations_of_a_step():
    """As the head of speed.toml counts them, worked out once more for three cells."""

    def mflop(*sizes):
        return sum(2 * a * b for a, b in itertools.pairwise(sizes)) / 1e6

    actor, critic = mflop(17, 256, 256, 6), mflop(23, 256, 256, 1)
    expected = {
        "ppo-cartpole": (1 + 1 + 3 * 4) * 2 * mflop(4, 64, 64, 1),
        "c51-cartpole": (1 + 128 / 10 * 4) * mflop(4, 120, 84, 202),
        "td3-halfcheetah": 256 * (2 * 4 * critic + actor + (3 * actor + 2 * critic) / 2),
    }
    found = {name: speed.CELLS[name].mflop for name in expected}
    assert found == pytest.approx(expected)


def test_rows_of_a_cell_take_the_place_of_its_former_ones(tmp_path):
    path = tmp_path / "speed" / "x.csv"
    speed.keep(path, [{"cell": "b", "sps": 2.0, "must": ""}], ["a", "b"])
    rows = [{"cell": "a", "sps": n, "must": math.inf} for n in (1.5, 3)]
    speed.keep(path, rows, ["a", "b"])
    speed.keep(path, [{"cell": "b", "sps": 4, "must": ""}], ["a", "b"])
    assert path.read_text("utf-8") == "cell,sps,must\na,1.5,inf\na,3.0,inf\nb,4,\n"


def test_actors_are_measured_beside_dqn_and_a_run_that_solved_nothing_took_for_ever(monkeypatch):
    monkeypatch.chdir(ROOT)
    seconds = {"dqn": 90.0, "dqn_apex --num-actors 4": 30.0}

    def parses(flags):
        script, *flags = flags
        return parse(importlib.import_module(script), flags)

    def run_ours(cell, folder, device):
        args = parses(speed.our_flags(cell, folder))
        assert args.total_timesteps == cell.last > cell.first > args.learning_starts
        return {"sps": 100.0 * getattr(args, "num_actors", 0.9)}

    def solve(task, library, seed, folder):
        assert parses(task.flags.split()).env_id == task.env_id
        for words, found in seconds.items():
            if task.flags.startswith(f"{words} --env-id"):
                return {"seconds": found + seed, "steps": 1}
        return {}

    monkeypatch.setattr(more_speeds, "run_ours", run_ours)
    monkeypatch.setattr(more_speeds, "solve", solve)
    rows = more_speeds.measure_actors("actors", 3, "runs")
    assert [(row["actors"], row["sps"]) for row in rows] == [
        ("dqn", 90), (1, 100), (2, 200), (4, 400), (8, 800)
    ]  # fmt: skip
    assert [row["seconds"] for row in rows] == [92.0, "", "", 32.0, float("inf")]
    assert [row["solved"] for row in rows] == [3, "", "", 3, 0]


@pytest.mark.slow
def test_the_time_to_solve_ends_when_the_threshold_is_reached(tmp_path):
    task = speed.Cell("ppo --total-timesteps 20480", "CartPole-v1", num_envs=8, threshold=40.0)
    solved = more_speeds.solve(task, "ours", 1, str(tmp_path))
    assert 500 <= solved["steps"] < 20_480 and solved["seconds"] > 0
    assert more_speeds.solve(replace(task, threshold=501.0), "ours", 1, str(tmp_path)) == {}
    greedy = more_speeds.solve(replace(task, evaluated_on="CartPole-v1"), "ours", 1, str(tmp_path))
    assert greedy["steps"] % 1_024 == 0  # the first of 2,000, by whole rollouts
