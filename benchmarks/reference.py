"""Writes seeds of benchmarks/results/ as event files: TensorBoard shows them beside your runs.

    python benchmarks/reference.py lunarlander         every table of benchmarks/lunarlander.toml
    python benchmarks/reference.py lunarlander:ppo     one of them
    python benchmarks/reference.py CartPole-v1         every table that was trained there
    make tensorboard

Each seed is a folder, runs/reference/<env>/<table>/<seed>, with the tags and steps of a run:
charts/episodic_return, a point for each hundredth of training in which an episode ended, and
eval/episodic_return; and with its arguments for the HParams page. The same command again replaces
them. Exit status: 0, or 2 for wrong input.
"""

import re
import shutil
from pathlib import Path

import report
from report import Cell, UserError
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

TAGS = {"training": "charts/episodic_return", "greedy": "eval/episodic_return"}


def config_of(cell: Cell) -> str:
    """The config whose table a cell was trained by: lunarlander, say."""
    return Path(report.config_of(cell.about["command"])).stem


def chosen(cells: list[Cell], name: str) -> list[Cell]:
    """The cells that an environment's id, CONFIG or CONFIG:TABLE means."""
    config, _, table = name.partition(":")
    found = [cell for cell in cells if cell.env_id == name]
    found = found or [c for c in cells if config_of(c) == config and table in ("", c.table)]
    if not found:
        configs = ", ".join(sorted({config_of(cell) for cell in cells}))
        environments = ", ".join(sorted({cell.env_id for cell in cells}))
        raise UserError(f"no results of {name}, only of {configs}; or of {environments}")
    return found


def write_seed(cell: Cell, seed: int, folder: Path):
    settings = {"algo": cell.about["algo"], "seed": seed, "exp_name": "reference"}
    for name, value in cell.about["args"].items():  # as Run.describe writes them
        value = tuple(value) if isinstance(value, list) else value  # a list only in JSON
        settings[name] = value if isinstance(value, int | float) else str(value)
    with SummaryWriter(folder) as writer:
        writer.file_writer.add_summary(hparams(settings, {})[1])
        for kind, tag in TAGS.items():
            for step, value in cell.points(kind, seed).items():
                writer.add_scalar(tag, value, step)


def write(cells: list[Cell], runs_dir: Path):
    for cell in cells:
        folder = runs_dir / "reference" / re.sub("[/:]", "-", cell.env_id) / cell.table
        if next(folder.rglob("args.json"), None):
            raise UserError(f"{folder} has runs of yours: choose another --runs-dir")
        shutil.rmtree(folder, ignore_errors=True)
        for seed in cell.seeds:
            write_seed(cell, seed, folder / str(seed))
        print(f"{folder}: {report.count_seeds(len(cell.seeds))}")


def main():
    parser = report.ArgumentParser(description=__doc__)
    help = "CONFIG, CONFIG:TABLE or the id of an environment"
    parser.add_argument("names", nargs="+", metavar="NAME", help=help)
    parser.add_argument("--runs-dir", type=Path, default="runs", help="default: runs")
    options = parser.parse_args()
    with report.errors_in_a_line():
        cells = report.read_cells(report.RESULTS) + report.read_cells(report.RESULTS / "variants")
        found = [chosen(cells, name) for name in options.names]
        write([cell for some in found for cell in some], options.runs_dir)


if __name__ == "__main__":
    main()
