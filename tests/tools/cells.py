"""What tests of tools share: runs as report.py reads them, a cell of them; copies of the tools."""

import shutil
import sys
from pathlib import Path

from conftest import ROOT, wait_for  # noqa: F401, for tests of tools

sys.path.insert(0, str(ROOT / "benchmarks"))
import report


def a_run(seed: int, final: float, **changed) -> dict:
    """What report.read_run gives."""
    result = {"steps": 100, "seconds": 60 * seed, "eval_episodes": 10, "run_hash": f"{seed}"}
    return {
        "folder": Path(f"runs/{seed}"),
        "env_id": "CartPole-v1",
        "algo": "ppo",
        "seed": seed,
        "result": {"seed": seed, **result},
        "args": {"seed": seed, "runs_dir": "runs", "gamma": 0.9, **changed},
        "versions": {"torch": "2"},
        "script": "5c41",
        "command": "python algos/ppo.py --seed 1 --runs-dir 'my runs/ppo' --gamma 0.9",
        "returns": {
            "greedy": {50: 10.0 * seed, 100: final},
            "training": {60: 1.0, 100: 2.0} if seed == 1 else {100: 4.0},
            "last100": {100: final / 2},
        },
    }


def a_cell(tmp_path, monkeypatch) -> Path:
    """A cell of three seeds, with greedy returns 3, 4, 5 at the end."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.RESULTS.mkdir()
    report.write_cell("ppo-mine", [a_run(seed, seed + 2.0) for seed in (1, 2, 3)], report.RESULTS)
    return tmp_path


NODE = {"object_store_memory": 10**8, "include_dashboard": False}  # of a Ray cluster


def copy_tools(folder: Path):
    """The scripts and the tools, without results."""
    for name in ("algos", "benchmarks"):
        ignored = shutil.ignore_patterns("results", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
