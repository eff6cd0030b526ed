"""Puts runs into benchmarks/results/, and what is there into the documents: `make report`.

    python benchmarks/maintain/publish.py               runs/ into benchmarks/results/, then this:
    python benchmarks/maintain/publish.py runs/new      another folder of runs
    python benchmarks/maintain/publish.py --from-csv    benchmarks/results/ into README.md, and
                                                        there README.md, improvement.csv,
                                                        verdicts.csv, curves.png, profiles.png

Runs whose settings are not those of a table of benchmarks/*.toml are left out, and so are cells of
other arguments or versions with fewer seeds than benchmarks/results/ has. Exit status: 0, or 2 for
wrong input.
"""

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from report import MIN_SEEDS, MIN_SEEDS_INTERVAL, ROOT, Cell, UserError

# not in README.md: they end while their return still rises, as the beginning of a long run
BEGINNINGS = {"a2c-4m", "a2c-adam-2500k"}
MIN_TASKS = 3  # for a return over tasks
LEVELS = 0.25, 0.5, 0.75, 1.0  # of normalised returns


def is_of_table(table: str, run: dict) -> bool:
    """Whether a run has the settings that a table of benchmarks/ has now, and no others."""
    args = run["args"]
    words = shlex.split(run["command"])
    config, _, name = report.config_of(run["command"]).rpartition(":")
    here = None
    if name == table and re.fullmatch(r"benchmarks/[^/]+", config) and (ROOT / config).exists():
        here = report.read_toml(ROOT / config).get(table)
    if here is None:
        print(f"not of a table [{table}] in benchmarks/, left out: {run['folder']}")
        return False
    # args.json has a table, such as env_kwargs, as JSON
    here = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in here.items()}
    other = {name for name, value in here.items() if args.get(name) != value}
    typed = {word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    other |= {name.removeprefix("no_") for name in typed} - here.keys()
    if other := sorted(other - report.FREE_FLAGS):
        text = ", ".join(f"{name}={args.get(name)}" for name in other)
        print(f"{table} with {text} is not as in {config}, left out: {run['folder']}")
    return not other


def add_runs(table: str, runs: list[dict], results: Path):
    """Writes the cell of those runs that are of the table, and of the earlier seeds there."""
    if runs := [run for run in runs if is_of_table(table, run)]:
        report.add_runs(table, runs, results, may_shrink=False)


# The tables of README.md --------------------------------------------------------------------------


def is_same_training(a: Cell, b: Cell) -> bool:
    """Whether two cells differ in nothing but script, versions, device and threads."""
    configs = {report.config_of(cell.about["command"]) for cell in (a, b)}
    if a.env_id != b.env_id or len(configs) > 1:
        return False
    about = [{"args": c.about["args"], "versions": {}, "script": "", "command": ""} for c in (a, b)]
    return {name for name, *_ in report.differences(*about)} <= {"device", "torch_threads"}


def pooled(cell: Cell, others: list[Cell]) -> Cell:
    """A cell of few seeds with those of other scripts, versions or devices: all that there are."""
    if len(cell.seeds) >= MIN_SEEDS_INTERVAL:
        return cell
    runs = []
    returns = []
    for part in [cell, *(other for other in others if is_same_training(cell, other))]:
        if {run["seed"] for run in runs}.isdisjoint(part.seeds):
            device = {"device": part.about["args"].get("device", "cpu")}
            runs += [run | device for run in part.about["runs"]]
            returns.append(part.returns)
    return Cell(cell.about | {"runs": runs}, pd.concat(returns, ignore_index=True))


def main_cells(cells: list[Cell], variants: list[Cell], published: list) -> list[Cell]:
    """The cell of each algorithm in each environment of `cells`, of SAC and TQC also in `variants`:
    with five seeds or more, all of today's script; then with the most seeds, a published return,
    the most steps, the shortest name.
    """

    def rank(cell: Cell) -> tuple:
        n = len(cell.seeds)
        is_today = cell.marked_table == cell.table
        is_published = report.nearest(cell, published) is not None
        is_first = n >= MIN_SEEDS_INTERVAL and is_today
        return is_first, n, is_published, cell.about["steps"], -len(cell.table)

    environments = {cell.env_id for cell in cells}
    main = {}
    more = [cell for cell in variants if cell.algorithm in ("sac", "tqc")]
    for cell in [*cells, *(cell for cell in more if cell.env_id in environments)]:
        if cell.table not in BEGINNINGS:
            key = cell.env_id, cell.algorithm
            cell = pooled(cell, variants)
            main[key] = max(main.get(key, cell), cell, key=rank)

    def order(cell: Cell) -> tuple:
        known = [*report.ALGORITHMS, cell.algorithm]
        return report.difficulty(cell.env_id), known.index(cell.algorithm)

    return sorted(main.values(), key=order)


def read_main_cells() -> list[Cell]:
    variants = report.read_cells(report.RESULTS / "variants")
    return main_cells(report.read_cells(report.RESULTS), variants, report.read_published())


def verdict_in_short(cell: Cell, row, published: list) -> str:
    """The verdict; for Atari, too, what the algorithm is published with after more steps."""
    verdict = report.verdict_on(cell, row).split(":")[0]
    own = report.nearest(cell, [row for row in published if not row.method])
    if not cell.env_id.startswith("ALE/") or own is None:
        return verdict
    steps = cell.about["steps"]
    if steps >= own.steps or report.is_same_budget(steps, own.steps):
        return verdict
    there = f"{report.number(own.mean)} at {report.steps_in_short(own.steps)}, {own.source}"
    return f"{verdict}; not trained to the published budget ({there})"


def short_tables(cells: list[Cell], published: list) -> str:
    """The tables of README.md, Atari's apart: a line for each of the main cells."""
    columns = ["environment", "table", "measured", "ours", "published", "ours is", "minutes"]
    vectors = []
    atari = []
    for cell in cells:
        protocol = "greedy"
        theirs = "none"
        verdict = ""
        if row := report.nearest(cell, published):
            protocol = row.protocol
            verdict = verdict_in_short(cell, row, published)
            theirs = f"{report.published_in_short(row, cell.env_id)[:-1]}, {row.source})"
        line = [cell.env_id, cell.marked_table, protocol, report.ours_in_short(cell, protocol)]
        rows = atari if cell.env_id.startswith("ALE/") else vectors
        rows.append([*line, theirs, verdict, report.minutes(cell)])
    tables = [report.markdown(columns, rows) for rows in (vectors, atari) if rows]
    return "\n\n".join(tables) or "No results yet."


# Over tasks, as arXiv 2108.13264 does it ----------------------------------------------------------


def normalised_returns(cells: list[Cell]) -> dict[str, dict[str, np.ndarray]]:
    """{algorithm: {environment: (seeds,)}}: greedy returns of cells with a verdict's seeds, 0 for a
    random policy and 1 for the reference of random.csv.
    """
    scales = pd.read_csv(ROOT / "benchmarks" / "random.csv", index_col="env")
    found = {}
    for cell in cells:
        if cell.env_id in scales.index and len(cell.seeds) >= MIN_SEEDS:
            low, high = scales.loc[cell.env_id, ["return", "reference"]]
            returns = (cell.values("greedy") - low) / (high - low)
            found.setdefault(cell.algorithm, {})[cell.env_id] = returns
    return {name: tasks for name, tasks in found.items() if len(tasks) >= MIN_TASKS}


def iqm_over_tasks(*tasks, axis: int = -1):
    """Interquartile mean of the runs of all tasks, (..., seeds) each, of which all weigh the same.
    A run that lies across a quartile counts with the part inside.
    """
    values = np.concatenate(tasks, axis)
    shares = [np.full(task.shape, 1 / task.shape[axis] / len(tasks)) for task in tasks]
    order = np.argsort(values, axis)
    ends = np.cumsum(np.take_along_axis(np.concatenate(shares, axis), order, axis), axis)
    inside = np.diff(np.clip(ends, 0.25, 0.75), prepend=0.25, axis=axis)
    return 2 * (np.take_along_axis(values, order, axis) * inside).sum(axis)


def profile(tasks, levels):
    """The share of runs with a normalised return above each level, of which all tasks weigh the
    same; (levels,).
    """
    return np.mean([(task > np.reshape(levels, (-1, 1))).mean(axis=1) for task in tasks], axis=0)


def table_over_tasks(cells: list[Cell]) -> str:
    rows = []
    for name, tasks in normalised_returns(cells).items():
        returns = list(tasks.values())
        low, high = report.interval(iqm_over_tasks, *returns, least=MIN_SEEDS)
        shares = [f"{share:.0%}" for share in profile(returns, LEVELS)]
        summary = f"{iqm_over_tasks(*returns):.2f} [{low:.2f}, {high:.2f}]"
        rows.append([name, ", ".join(tasks), summary, *shares])
    columns = ["algorithm", "environments", "IQM [95%]", *(f"above {x}" for x in LEVELS)]
    return report.markdown(columns, rows)


def draw_profiles(cells: list[Cell], path: Path):
    figure = Figure(figsize=(6, 3.5))
    levels = np.linspace(0, 1.5, 301)
    axis = figure.add_subplot()
    for name, tasks in normalised_returns(cells).items():
        color = f"C{report.ALGORITHMS.index(name)}"
        shares = profile(list(tasks.values()), levels)
        axis.step(levels, shares, color=color, label=f"{name}, {len(tasks)} tasks")
    axis.set_xlabel("normalised return")
    axis.set_ylabel("share of runs above it")
    axis.legend(fontsize=8)
    figure.tight_layout()
    report.save(figure, path)


def documents() -> dict[Path, str]:
    """What README.md must hold, and the documents of benchmarks/results/."""
    cells = read_main_cells()
    texts = report.documents(report.RESULTS)
    if normalised_returns(cells):
        over_tasks = f"## Over tasks\n\n{table_over_tasks(cells)}\n\n![Profiles](profiles.png)\n"
        texts[report.RESULTS / "README.md"] += f"\n{over_tasks}"
    table = short_tables(cells, report.read_published())
    return {ROOT / "README.md": report.between_markers(ROOT / "README.md", table), **texts}


def main():
    parser = report.ArgumentParser(description=__doc__)
    parser.add_argument("runs_dir", nargs="?", type=Path, default="runs", help="default: runs")
    parser.add_argument("--from-csv", action="store_true", help="reads no runs")
    options = parser.parse_args()
    with report.errors_in_a_line():
        where = options.runs_dir, report.RESULTS
        errors = [] if options.from_csv else report.collect(*where, add_runs)
        report.write(documents())
        if cells := read_main_cells():
            report.draw(cells, report.read_published(), report.RESULTS / "curves.png")
        if normalised_returns(cells):
            draw_profiles(cells, report.RESULTS / "profiles.png")
        if errors:
            raise UserError("\n".join(errors))


if __name__ == "__main__":
    main()
