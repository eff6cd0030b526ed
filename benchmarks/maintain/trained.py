"""Fills trained/: of each cell the run whose greedy return is nearest to the cell's median.

    python benchmarks/maintain/trained.py runs/new

The median is over the seeds of benchmarks/results/ and those of the finished runs in that folder
that have their table's settings.
Only what plays is copied: args.json, weights.npz and result.json. Rewrites the table of
trained/README.md.
"""

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import publish
import report
from report import ROOT

TRAINED = ROOT / "trained"


def cell_of(about: dict) -> str:
    """The name of a run's cell in benchmarks/results/: environment and table of its config."""
    table = about["args"]["config"].split(":")[-1]
    return report.cell_path(about["args"]["env_id"], table, TRAINED).stem


def recorded_returns(cell: str) -> dict:
    """Seed -> greedy return after training, of the seeds in benchmarks/results/."""
    for folder in (report.RESULTS, report.RESULTS / "variants"):
        if (path := folder / f"{cell}.csv").exists():
            found = report.read_cell(path)
            return dict(zip(found.seeds, found.values("greedy"), strict=True))
    return {}


def copy_run(folder: Path, target: Path):
    """Without the folder that its command named, which was the trainer's own business."""
    target.mkdir(parents=True, exist_ok=True)
    about = report.read_json(folder / "args.json")
    about["command"] = report.without(about["command"], "runs-dir")
    about["args"]["runs_dir"] = "runs"
    (target / "args.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    for name in ("weights.npz", "result.json"):
        shutil.copy(folder / name, target)


def table() -> str:
    rows = []
    for path in sorted(TRAINED.glob("*/result.json")):
        result = report.read_json(path)
        returns = f"{result['eval_return_mean']:,.1f} ± {result['eval_return_std']:,.1f}"
        rows.append([f"`{path.parent.name}`", result["seed"], f"{result['steps']:,}", returns])
    return report.markdown(["agent", "seed", "steps", "return"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, help="a folder of campaigns")
    runs = parser.parse_args().runs
    cells = {}
    with report.errors_in_a_line():
        for (name, _), folders in report.finished_runs(runs).items():
            for folder in folders:
                run = report.read_run(folder)
                if publish.is_of_table(name, run):
                    cells.setdefault(cell_of(run), {})[folder] = run["result"]
        if not cells:
            raise report.UserError(f"{runs} has no finished run of a table")
    for cell, results in cells.items():
        returns = {r["seed"]: r["eval_return_mean"] for r in results.values()}
        median = statistics.median((recorded_returns(cell) | returns).values())
        nearest = min(results, key=lambda f: abs(results[f]["eval_return_mean"] - median))
        copy_run(nearest, TRAINED / cell)
        print(f"{cell}: {nearest.name}, {results[nearest]['eval_return_mean']:,.1f}; {median:,.1f}")
    page = TRAINED / "README.md"
    page.write_text(report.between_markers(page, table()), "utf-8")


if __name__ == "__main__":
    main()
