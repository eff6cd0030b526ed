"""Puts runs into benchmarks/results/, and what is there into the documents: `make report`.

    python benchmarks/maintain/publish.py               runs/ into benchmarks/results/, then this:
    python benchmarks/maintain/publish.py runs/new      another folder of runs
    python benchmarks/maintain/publish.py --from-csv    benchmarks/results/ into README.md, and
                                                        there README.md, improvement.csv,
                                                        verdicts.csv and curves.png

Runs whose settings are not those of a table of benchmarks/*.toml are left out, and so are cells of
other arguments or versions with fewer seeds than benchmarks/results/ has. Exit status: 0, or 2 for
wrong input.
"""

import json
import re
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from report import MIN_SEEDS, ROOT, Cell, UserError

MARKS = "<!-- results: begin -->", "<!-- results: end -->"  # the tables stand between them
# flags of a campaign that make no other setting of a table
FREE_FLAGS = {"config", "seed", "env_id", "torch_threads", "runs_dir", "exp_name"}
FREE_FLAGS |= {"eval_frequency", "eval_episodes"}


def is_of_table(table: str, run: dict) -> bool:
    """Whether a run has the settings that a table of benchmarks/ has now, and no others."""
    args, words = run["args"], shlex.split(run["command"])
    config = next((word for word in words if word.endswith(f".toml:{table}")), table)
    path, tables = ROOT / config.rpartition(":")[0], {}
    if re.fullmatch(r"benchmarks/[^/]+", config) and path.exists():
        tables = report.read_toml(path)
    here, reason = tables.get(table, {}), ""
    # args.json has a table, such as env_kwargs, as JSON
    here = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in here.items()}
    other = {name for name, value in here.items() if args.get(name) != value}
    typed = {word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    other |= {name.removeprefix("no_") for name in typed} - here.keys()
    if not here:
        reason = f"{config} is no table of benchmarks/"
    elif other := sorted(other - FREE_FLAGS):
        text = ", ".join(f"{name}={args.get(name)}" for name in other)
        reason = f"{table} with {text} is not as in {config}"
    if reason:
        print(f"{reason}, left out, --out DIR shows it: {run['folder']}")
    return not reason


def is_no_less(table: str, runs: list[dict]) -> bool:
    """Whether runs are no fewer than those of their cell in benchmarks/results/."""
    path = report.cell_path(runs[0]["env_id"], table, report.RESULTS).with_suffix(".json")
    before = len(report.read_json(path)["runs"]) if path.exists() else 0
    if len(runs) < before:
        print(f"{path.stem} stays, with {before} seeds and not {len(runs)}: --out DIR shows these")
    return len(runs) >= before


def collect(runs_dir: Path):
    """Writes a cell for each table and environment with finished runs below `runs_dir`."""
    for (table, _), folders in report.finished_runs(runs_dir).items():
        runs = [run for run in map(report.read_run, folders) if is_of_table(table, run)]
        if runs:
            path = report.cell_path(runs[0]["env_id"], table, report.RESULTS)
            runs = runs + (report.earlier_seeds(runs, path) or [])
            if is_no_less(table, runs):
                report.write_cell(table, runs, report.RESULTS)


def main_cells(cells: list[Cell], published: list) -> list[Cell]:
    """Of each script in each environment one: with enough seeds and a published return beside it,
    where there is such a cell; among several the one whose table has the shortest name.
    """

    def rank(cell: Cell):
        is_published = report.nearest(cell, published) is not None
        return min(len(cell.seeds), MIN_SEEDS), is_published, -len(cell.table)

    main = {}
    for cell in cells:
        key = cell.env_id, cell.about["algo"]
        main[key] = max(main.get(key, cell), cell, key=rank)
    return list(main.values())


def short_table(cells: list[Cell], published: list) -> str:
    """The table of README.md: a line for each of the main cells."""
    rows = []
    for cell in main_cells(cells, published):
        row = report.nearest(cell, published)
        theirs = "none"
        if row:
            theirs = f"{report.published_in_short(row, cell.env_id)[:-1]}, {row.source})"
        rows.append([cell.env_id, cell.table, report.ours_in_short(cell, "greedy"), theirs])
    columns = ["environment", "table", "ours", "published"]
    return report.markdown(columns, rows) if cells else "No results yet."


def documents() -> dict[Path, str]:
    """What README.md must hold, and the documents of benchmarks/results/."""
    table = short_table(report.read_cells(report.RESULTS), report.read_published())
    return {
        ROOT / "README.md": between_markers(ROOT / "README.md", table),
        **report.documents(report.RESULTS),
    }


def between_markers(path: Path, text: str) -> str:
    """The file's content with `text` between its two marker comments."""
    begin, end = MARKS
    content = path.read_text("utf-8")
    if not 0 <= content.find(begin) < content.find(end):
        raise UserError(f"{path} lacks the lines {begin} and {end}")
    head, rest = content.split(begin, 1)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end, 1)[1]}"


def main():
    parser = report.ArgumentParser(description=__doc__)
    default = ROOT / "runs"
    parser.add_argument("runs_dir", nargs="?", type=Path, default=default, help="default: runs")
    parser.add_argument("--from-csv", action="store_true", help="reads no runs")
    options = parser.parse_args()
    with report.errors_in_a_line():
        report.RESULTS.mkdir(parents=True, exist_ok=True)
        if not options.from_csv:
            collect(options.runs_dir)
        report.write(documents())
        published = report.read_published()
        if shown := main_cells(report.read_cells(report.RESULTS), published):
            report.draw(shown, published, report.RESULTS / "curves.png")


if __name__ == "__main__":
    main()
