"""The maintainers' tools, and what is said of speeds and of the returns of peers."""

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import peer_returns
import report
import same_numbers
import speed
from conftest import ROOT, parse
from torch.utils.tensorboard import SummaryWriter


def test_of_each_table_the_newest_chain_of_scripts_is_recorded(tmp_path):
    path = tmp_path / "same.json"
    for name, *scripts in ("aab", "acd", "bxy", "ade"):
        same_numbers.record(path, name, "ppo", scripts, "HEAD", "f00")
    found = {old["name"]: old["scripts"] for old in json.loads(path.read_text())}
    assert found == {"a": ["c", "d", "e"], "b": ["x", "y"]}


def test_what_the_record_says_of_a_commit_need_not_run_again(monkeypatch):
    """Of today's script, 5c41, the hash is f00; that of the commit is recorded to have it, too."""
    monkeypatch.setattr(same_numbers, "script_in", lambda tree, script: "07e4")
    ran, commit = [], Path("commit")
    hashes = {ROOT: ("f00", "5c41"), commit: ("ba2", "07e4")}
    monkeypatch.setattr(
        same_numbers, "trained", lambda tree, command: ran.append(tree) or hashes[tree]
    )
    known = {"scripts": ["1234", "07e4"], "run_hash": "f00"}
    for record, expected in [
        (known, ("f00", "07e4")),
        (known | {"run_hash": "f01"}, hashes[commit]),
        (known | {"scripts": ["1234"]}, hashes[commit]),
    ]:
        found = same_numbers.both(commit, {"a": record}, "a", "ppo --seed 1")
        assert found == (expected, hashes[ROOT])
    assert ran == [ROOT, ROOT, commit, ROOT, commit]


def test_a_script_in_another_tree_is_known_by_what_args_json_has():
    assert same_numbers.script_in(ROOT, "dqn_mask") == report.script_hash("dqn_mask")


def test_what_is_said_of_a_peer_s_returns_is_what_its_seeds_have():
    with open(peer_returns.CSV, newline="") as file:
        returns = [float(row["greedy"]) for row in csv.DictReader(file)]
    mean, std = np.mean(returns), np.std(returns, ddof=1)
    words = {"published.csv": "±", "halfcheetah.toml": "+-"}
    for name, sign in words.items():
        said = f"{mean:,.0f} {sign} {std:.0f}"
        assert said in (ROOT / "benchmarks" / name).read_text("utf-8"), name


def test_the_flags_of_every_cell_parse(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name, cell in speed.CELLS.items():
        script, *flags = speed.our_flags(cell, "runs")
        args = parse(importlib.import_module(script), flags)
        assert args.total_timesteps == cell.last > cell.first, name


def test_only_scripts_with_equal_hashes_are_recorded(results, monkeypatch, tool):
    found = {"equal": (("f00", "old"), ("f00", "new")), "other": (("f01", "old"), ("f00", "new"))}
    monkeypatch.setattr(same_numbers, "commands", lambda names: dict.fromkeys(found, "ppo"))
    monkeypatch.setattr(same_numbers, "both", lambda tree, records, name, command: found[name])
    monkeypatch.setattr(same_numbers, "script_in", lambda *_: "old")
    ended = tool(same_numbers, "--against", "HEAD", "--record")
    (kept,) = same_numbers.read_records().values()
    assert ended.status == 1 and kept["name"] == "equal" and kept["scripts"] == ["old", "new"]


def test_speeds_are_medians_and_the_ratio_is_ours_over_theirs(monkeypatch):
    cell = speed.Cell("ppo", "CartPole-v1", peers={"sb3": "PPO"})
    monkeypatch.setattr(speed, "CELLS", {"mine": cell})
    ours, theirs = iter([100.0, 300.0, 200.0]), iter([50.0, 40.0, 60.0])
    monkeypatch.setattr(speed, "our_sps", lambda *_: next(ours))
    monkeypatch.setattr(speed, "peer_sps", lambda *_: next(theirs))
    rows = speed.measure_speed("mine", 3, "x")
    assert [row["sps"] for row in rows] == [200, 50] and rows[1]["ours_over_it"] == 4


def test_a_new_speed_takes_the_place_of_its_own_cell_alone(tmp_path):
    path = tmp_path / "speed.csv"
    for cell, sps in (("a", 1), ("b", 2), ("a", 3)):
        speed.keep(path, [{"cell": cell, "sps": sps}])
    assert path.read_text() == "cell,sps\nb,2\na,3\n"


def test_our_speed_is_that_of_the_steps_after_the_first(monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "output_of", lambda *_: {})
    with SummaryWriter(tmp_path) as writer:
        for step, seconds in ((500, 0), (1000, 90), (1500, 91), (2000, 92)):
            writer.add_scalar("charts/SPS", 1.0, step, walltime=1e9 + seconds)
    assert speed.our_sps(speed.Cell("ppo", "CartPole-v1", first=900), str(tmp_path)) == 500


def test_cores_are_held_only_while_measuring():
    before = os.sched_getaffinity(0)
    for cores in {1, len(before)}:
        with speed.held_to(cores):
            assert len(os.sched_getaffinity(0)) == cores
        assert os.sched_getaffinity(0) == before


def test_steps_until_solved_are_those_of_the_first_evaluation_that_is_good_enough(tmp_path):
    """In the environment that is named: its episodes have 13 steps, the training's up to 500."""
    said = {}
    for threshold in ("9", "13.5"):  # CartPole-v1 reaches both, an episode of 13 steps only one
        words = [threshold, "environments:ShortCartPole-v0", "ppo", "--total-timesteps", "6144"]
        words = [speed.MAINTAIN / "until_solved.py", *words, "--runs-dir", tmp_path]
        path = {"PYTHONPATH": str(ROOT / "tests")}
        run = subprocess.run(
            [sys.executable, *map(str, words)],
            env=os.environ | path,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        said[threshold] = [json.loads(x) for x in run.stdout.splitlines() if x.startswith("{")]
    assert said == {"9": [{"steps": 2048}], "13.5": []}
