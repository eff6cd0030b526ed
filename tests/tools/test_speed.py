"""Speeds are measured alike for every library, and what is said of them is what was measured."""

import csv
import importlib
import sys

import numpy as np
import pytest
from conftest import ROOT, parse

sys.path.insert(0, str(ROOT / "benchmarks" / "maintain"))
sys.path.insert(0, str(ROOT / "benchmarks"))
import more_speeds
import peer_returns
import speed


def test_the_peers_explore_as_long_as_our_dqn():
    """peers.py asks for ten times the steps, over which its libraries stretch the schedule."""
    import dqn

    for name in ("dqn-cartpole", "dqn-breakout"):
        settings = speed.CELLS[name].keywords
        ours = dqn.Args.exploration_fraction
        assert 10 * settings["exploration_fraction"] == pytest.approx(ours)
        assert settings["exploration_final_eps"] == dqn.Args.end_e


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
    for name, cell in speed.CELLS.items():
        script, *flags = speed.our_flags(cell, "runs")
        args = parse(importlib.import_module(script), flags)
        assert args.total_timesteps == cell.last > cell.first, name


@pytest.mark.slow
def test_a_run_is_timed_by_its_curves_and_ends_where_it_has_solved_its_task(tmp_path):
    flags = "ppo --config cartpole:ppo-cleanrl"
    sps = speed.our_sps(speed.Cell(flags, "CartPole-v1", 512, 5120), str(tmp_path))
    assert 100 < sps < 1e6
    words = [speed.MAINTAIN / "until_solved.py", 40, "", *flags.split(), "--runs-dir", tmp_path]
    assert 500 <= speed.output_of(*words)["steps"] < 20_480
    words[2] = "CartPole-v1"
    steps = speed.output_of(*words, "--num-envs", 8)["steps"]
    assert steps % 1_024 == 0  # the first of 2,000, by whole rollouts
    assert more_speeds.solve(f"{flags} --total-timesteps 2048", 1, str(tmp_path)) == float("inf")
