"""The maintainers' tools, and what is said of speeds and of the returns of peers."""

import csv
import importlib
import json

import numpy as np
import peer_returns
import same_numbers
import speed
from conftest import ROOT, parse


def test_of_each_table_the_newest_chain_of_scripts_is_recorded(tmp_path):
    path = tmp_path / "same.json"
    for name, *scripts in ("aab", "acd", "bxy", "ade"):
        same_numbers.record(path, name, "ppo", scripts, "HEAD", "f00")
    found = {old["name"]: old["scripts"] for old in json.loads(path.read_text())}
    assert found == {"a": ["c", "d", "e"], "b": ["x", "y"]}


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
