"""What tests of tools share: runs as report.py reads them, and cells of them."""

from pathlib import Path

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


def cell_named(table: str) -> report.Cell:
    """The cell of a table in report.RESULTS."""
    (found,) = [cell for cell in report.read_cells(report.RESULTS) if cell.table == table]
    return found
