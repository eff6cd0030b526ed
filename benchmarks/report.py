"""Turns the runs of benchmarks/run.py into small CSVs, and those into tables and a picture.

    python benchmarks/report.py               runs/ into benchmarks/results/, then as the next line
    python benchmarks/report.py --from-csv    benchmarks/results/ into README.md,
                                              benchmarks/README.md and benchmarks/results/curves.png
    python benchmarks/report.py --out DIR     runs/ into DIR alone: its CSVs, README.md, curves.png
    python benchmarks/report.py --compare RUN RUN    any run folders on one picture, CleanRL's too:
                                              which arguments differ, whether the curves look
                                              healthy, and how each run compares with our seeds

A cell is one table of a config in one environment, over its seeds: <env>-<table>.csv has its
returns, <env>-<table>.json its command, arguments, versions, times and hashes. New seeds join a
cell whose arguments (but for how often they evaluate) and package versions are the same, if the
same script trained them or one that trains the same weights: benchmarks/results/same-numbers.json
says which do. Without --out, runs whose settings are not those of a table here are left out, and so
are cells of other arguments or versions with fewer seeds than benchmarks/results/ has.

A verdict beside a published return rests on the 95% interval of the difference between our mean
and the published one, and on a fifth of the distance between the published return and a random
policy's. Ours is "above" or "below" if 0 lies outside of the interval; "slightly below" if all of
the interval lies less than a fifth below 0. If 0 lies inside, "no difference detected" needs an
interval that reaches no more than a fifth below 0 and is no wider than a fifth to either side;
otherwise the seeds are "too noisy to say". So of two cells beside the same number, one with a lower
mean and a larger spread never gets the better word.

benchmarks/README.md defines every number. Exit status: 0, or 2 for wrong input.
"""

import argparse
import contextlib
import csv
import fnmatch
import itertools
import json
import math
import re
import shlex
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SAME_NUMBERS = "same-numbers.json"  # by maintain/same_numbers.py: which scripts train the same
MARKS = "<!-- results: begin -->", "<!-- results: end -->"  # the tables stand between them
WINDOWS = 100  # points of a training curve
EPISODES = 100  # at the end of training, of which the training return is the mean
KINDS = "greedy", "training", "last100"  # of returns
MIN_SEEDS = 3  # for a verdict
MIN_SEEDS_INTERVAL = 5  # with fewer, a bootstrap's interval is much too narrow
# of uniform actions: over 50 episodes or more of ours; of games as in doi 10.1038/nature14236
RANDOM_RETURNS = {
    "CartPole-v1": 22,
    "LunarLander-v3": -184,
    "LunarLanderContinuous-v3": -214,
    "HalfCheetah-v5": -272,
    "HalfCheetahBulletEnv-v0": -1250,
    "ALE/BeamRider-v5": 363.9,
    "ALE/Breakout-v5": 1.7,
    "ALE/Pong-v5": -20.7,
    "ALE/Qbert-v5": 163.9,
    "ALE/SpaceInvaders-v5": 148,
}
# arguments that a run's numbers do not depend on
FREE = {"runs_dir", "config", "resume", "evaluate", "exp_name"}


class UserError(Exception):
    """Something the user can mend: ends the report with this one line and exit status 2."""


# --------------------------------------------------------------------------------------------------
# Reading runs


def read_events(folder: Path) -> tuple[dict, dict]:
    """The curves, {tag: [(step, value)]}, and the texts, {tag: text}, of a TensorBoard folder."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    scalars, texts = defaultdict(list), {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            if event.HasField("session_log"):  # a resumed run: what follows its checkpoint is void
                for tag, points in scalars.items():
                    scalars[tag] = [(step, value) for step, value in points if step < event.step]
            for value in event.summary.value:
                if value.tensor.string_val:
                    texts[value.tag] = value.tensor.string_val[0].decode()
                elif value.tensor.float_val:
                    scalars[value.tag].append((event.step, value.tensor.float_val[0]))
    return scalars, texts


def training_episodes(scalars: dict, one_a_point: bool) -> list[tuple[int, float, float]]:
    """(step, mean return, number of episodes) for each point of charts/episodic_return.

    CleanRL writes one point an episode. Our scripts write the mean of the episodes since the last
    point, and their mean length; so their number is the steps in between divided by that.
    """
    returns, lengths = scalars["charts/episodic_return"], scalars["charts/episodic_length"]
    if one_a_point:
        return [(step, value, 1.0) for step, value in returns]
    points, before = [], 0
    for (step, value), (_, length) in zip(returns, lengths, strict=True):
        points.append((step, value, max((step - before) / length, 1.0)))
        before = step
    return points


def last_episodes(points: list, count: int = EPISODES) -> float:
    """Mean return of the last `count` episodes, or of all where there are fewer."""
    total, left = 0.0, float(count)
    for _, value, number in reversed(points):
        number = min(number, left)
        total, left = total + number * value, left - number
    return total / (count - left) if left < count else math.nan


def windows(points: list, total_timesteps: int) -> dict[int, float]:
    """{step: mean return of the episodes that ended in the hundredth of training up to it}."""
    sums = defaultdict(lambda: np.zeros(2))
    for step, value, number in points:
        window = math.ceil(step * WINDOWS / total_timesteps)
        sums[window * total_timesteps // WINDOWS] += np.array([value * number, number])
    return {step: total / number for step, (total, number) in sums.items()}


def read_run(folder: Path) -> dict:
    """What the results keep of a finished run of ours. Raises UserError when it cannot be read."""
    try:
        saved = json.loads((folder / "args.json").read_text())
        result = json.loads((folder / "result.json").read_text())
        scalars, _ = read_events(folder)
        points, steps = training_episodes(scalars, one_a_point=False), result["steps"]
        versions = dict(saved["versions"])
        script = versions.pop("script")  # its SHA-256
        greedy = dict(scalars["eval/episodic_return"])
        if not math.isclose(greedy.get(steps, math.nan), result["eval_return_mean"], rel_tol=1e-5):
            raise ValueError("its curves lack the evaluation that result.json has")
        return {
            "folder": folder,
            "env_id": result["env_id"],
            "algo": result["algo"],
            "seed": result["seed"],
            "result": result,
            "args": saved["args"],
            "versions": versions,
            "script": script,
            "command": saved["command"],
            "returns": {
                "greedy": greedy,
                "training": windows(points, steps),
                "last100": {steps: last_episodes(points)},
            },
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder} cannot be read as a run: {error!r}") from None


def in_csv(value: float) -> str:
    return f"{value:.6g}"


def collect(runs_dir: Path, results: Path):
    """Writes a cell for each table and environment with finished runs below `runs_dir`."""
    cells = defaultdict(list)
    for path in sorted(runs_dir.rglob("args.json")):
        folder, above = path.parent, path.resolve().parents
        script, table = above[1].name, above[min(3, len(above) - 1)].name
        if not re.match(rf"{re.escape(script)}(-|$)", table):
            print(f"not of a campaign, left out: {folder}")
        elif not (folder / "result.json").exists():
            print(f"not finished, left out: {folder}")
        else:
            run = read_run(folder)
            cells[run["env_id"], table].append(run)
    if not cells:
        raise UserError(f"{runs_dir} has no finished run of a campaign: see benchmarks/run.py")
    for (env_id, table), runs in cells.items():
        if results == RESULTS:
            runs = [run for run in runs if is_of_table(table, run)]
        if not runs:
            continue
        runs = runs + earlier_seeds(runs, cell_path(env_id, table, results))
        if results != RESULTS or is_no_less(table, runs):
            write_cell(table, sorted(runs, key=lambda run: run["seed"]), results)


def cell_path(env_id: str, table: str, results: Path) -> Path:
    return results / f"{env_id.replace('/', '-').replace(':', '-')}-{table}.csv"


def settings_of(args: dict) -> dict:
    """The arguments that a run's numbers depend on."""
    return {k: v for k, v in args.items() if k not in FREE}


def settings(run: dict) -> dict:
    """What runs of one cell have in common: all arguments but the seed."""
    return {k: v for k, v in settings_of(run["args"]).items() if k != "seed"}


def differences(run: dict, first: dict) -> list[tuple]:
    """(name, its value, the other's) of settings and versions that both runs know.

    A flag that only one of their scripts has: same_numbers says whether it matters.
    """
    found, expected = (settings(x) | x["versions"] for x in (run, first))
    names = (found.keys() & expected.keys()) - {"eval_frequency"}  # which changes no training
    pairs = [(k, found[k], expected[k]) for k in sorted(names)]
    if not same_numbers(run, first["script"]):
        pairs.append(("script", run["script"], first["script"]))
    return [pair for pair in pairs if pair[1] != pair[2]]


def same_numbers(run: dict, script: str | None) -> bool:
    """Whether a script, by its SHA-256, trains what the run's own script does: it is the same one,
    or a chain of records says that a shortened run of the table has the same run hash with both.
    """
    path, known = RESULTS / SAME_NUMBERS, {run["script"]}
    records = json.loads(path.read_text()) if path.exists() else []
    match = re.search(r"--config benchmarks/([\w-]+)\.toml:([\w-]+)", run["command"])
    name = ":".join(match.groups()) if match and "--env-id" not in run["command"] else None
    pairs = [set(record["scripts"]) for record in records if record["name"] == name]
    for _ in pairs:
        known = known.union(*(pair for pair in pairs if pair & known))
    return script in known


def earlier_seeds(runs: list[dict], path: Path) -> list[dict]:
    """The runs of the cell at `path`, as read_run gives them, whose seeds are not among `runs`.

    None where `runs` have other settings or versions: those are another cell.
    """
    if not path.exists():
        return []
    cell = read_cell(path)
    found = [
        {
            "folder": path,
            "seed": result["seed"],
            "script": result["script"],
            "result": {**result, "steps": cell.about["steps"]},
            "returns": {kind: cell.returns[kind][result["seed"]] for kind in KINDS},
            **{k: cell.about[k] for k in ("env_id", "algo", "args", "versions", "command")},
        }
        for result in cell.about["runs"]
    ]
    if any(differences(run, runs[0]) for run in found):
        return []
    return [run for run in found if run["seed"] not in {run["seed"] for run in runs}]


# flags of a campaign that make no other setting of a table
FREE_FLAGS = {"config", "seed", "env_id", "torch_threads", "runs_dir", "exp_name"}
FREE_FLAGS |= {"eval_frequency", "eval_episodes"}


def is_of_table(table: str, run: dict) -> bool:
    """Whether a run has the settings that a table of benchmarks/ has now, and no others."""
    args, words = run["args"], shlex.split(run["command"])
    config = next((word for word in words if word.endswith(f".toml:{table}")), table)
    path, tables = ROOT / config.rpartition(":")[0], {}
    if re.fullmatch(r"benchmarks/[^/]+", config) and path.exists():
        tables = tomllib.loads(path.read_text("utf-8"))
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
    path = cell_path(runs[0]["env_id"], table, RESULTS).with_suffix(".json")
    before = len(json.loads(path.read_text())["runs"]) if path.exists() else 0
    if len(runs) < before:
        print(f"{path.stem} stays, with {before} seeds and not {len(runs)}: --out DIR shows these")
    return len(runs) >= before


def write_cell(table: str, runs: list[dict], results: Path):
    """Raises UserError unless the runs differ in nothing but their seeds."""
    first = runs[0]
    for before, run in itertools.pairwise(runs):
        if run["seed"] == before["seed"]:
            raise UserError(f"the same seed twice: {before['folder']} and {run['folder']}")
        for name, value, expected in differences(run, first):
            raise UserError(
                f"{run['folder']} has {name}={value}, {first['folder']} {expected}: no runs of one"
                " cell (benchmarks/maintain/same_numbers.py says whether scripts train the same)"
            )
    about = {
        "env_id": first["env_id"],
        "table": table,
        "algo": first["algo"],
        "steps": first["result"]["steps"],
        "command": without_runs_dir(first["command"]),
        "args": settings(first),
        "versions": {name: value for run in runs for name, value in run["versions"].items()},
        "runs": [
            {k: run["result"][k] for k in ("seed", "seconds", "eval_episodes", "run_hash")}
            | {"script": run["script"]}
            for run in runs
        ],
    }
    path = cell_path(first["env_id"], table, results)
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n")
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["kind", "seed", "step", "return"])
        for kind in KINDS:
            for run in runs:
                for step, value in sorted(run["returns"][kind].items()):
                    writer.writerow([kind, run["seed"], step, in_csv(value)])
    print(f"{path}: {count_seeds(len(runs))}")


def without_runs_dir(command: str) -> str:
    words = shlex.split(command)
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if before != "--runs-dir" and not re.match("--runs-dir(=|$)", word)
    ]
    return shlex.join(kept)


def count_seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


# --------------------------------------------------------------------------------------------------
# Results and their statistics


@dataclass
class Cell:
    """One table of a config in one environment, over its seeds."""

    about: dict  # the .json
    returns: dict  # the .csv, {kind: {seed: {step: return}}}

    @property
    def env_id(self) -> str:
        return self.about["env_id"]

    @property
    def table(self) -> str:
        return self.about["table"]

    @property
    def seeds(self) -> list[int]:
        return [run["seed"] for run in self.about["runs"]]

    def curve(self, kind: str):
        """The steps at which every seed has a return, (steps,), and those, (seeds, steps)."""
        by_seed = [self.returns[kind].get(seed, {}) for seed in self.seeds]
        steps = sorted(set.intersection(*(set(points) for points in by_seed)))
        return np.array(steps), np.array([[points[step] for step in steps] for points in by_seed])

    def values(self, protocol: str):
        """One return for each seed, (seeds,), as a protocol of published.csv defines it."""
        if protocol == "training":
            return self.curve("last100")[1][:, -1]
        returns = self.curve("greedy")[1]
        return returns[:, returns.mean(axis=0).argmax() if protocol == "best" else -1]


def read_cells(results: Path) -> list[Cell]:
    paths = sorted(results.glob("*.json"), key=lambda path: path.stem)
    return [read_cell(path) for path in paths if path.name != SAME_NUMBERS]


def read_cell(path: Path) -> Cell:
    returns = defaultdict(lambda: defaultdict(dict))
    with open(path.with_suffix(".csv"), newline="") as file:
        for row in csv.DictReader(file):
            returns[row["kind"]][int(row["seed"])][int(row["step"])] = float(row["return"])
    return Cell(json.loads(path.with_suffix(".json").read_text()), returns)


@dataclass
class Published:
    """A row of published.csv."""

    env_id: str
    tables: list[str]
    protocol: str
    mean: float
    spread: float | None  # over the seeds, or over the episodes of one agent
    seeds: int
    steps: int
    published_env: str
    source: str
    url: str
    note: str
    causes: str  # why which of our tables are below it: "table: cause; table: cause"

    def cause(self, table: str) -> str:
        causes = dict(text.split(": ", 1) for text in self.causes.split("; ") if text)
        return causes.get(table, "")

    def is_for(self, cell: Cell) -> bool:
        matches = (fnmatch.fnmatchcase(cell.table, pattern) for pattern in self.tables)
        return self.env_id == cell.env_id and any(matches)


def read_published() -> list[Published]:
    with open(ROOT / "benchmarks" / "published.csv", newline="", encoding="utf-8") as file:
        return [
            Published(
                row["env"],
                row["tables"].split(),
                row["protocol"],
                float(row["return"]),
                float(row["spread"]) if row["spread"] else None,
                int(row["seeds"]),
                int(row["steps"]),
                row["published_env"],
                row["source"],
                row["url"],
                row["note"],
                row["causes"],
            )
            for row in csv.DictReader(file)
        ]


def iqm(returns, axis: int = -1):
    """Interquartile mean over seeds: without a quarter, rounded down, at either end."""
    from scipy import stats

    return stats.trim_mean(returns, 0.25, axis=axis)


def interval(statistic, *samples):
    """95% percentile bootstrap over seeds, the last axis; None where a sample has too few of them.

    The seeds of one environment are one stratum, so this is the stratified bootstrap as well.
    """
    from scipy import stats

    if min(sample.shape[-1] for sample in samples) < MIN_SEEDS_INTERVAL:
        return None
    rng = np.random.default_rng(0)
    options = dict(method="percentile", n_resamples=2000, vectorized=True, axis=-1, rng=rng)
    return stats.bootstrap(samples, statistic, **options).confidence_interval


def improvement(x, y, axis: int = -1):
    """The probability that a run of x ends above one of y; a draw counts half."""
    wins = x[..., :, None] > y[..., None, :]
    draws = x[..., :, None] == y[..., None, :]
    return (wins + draws / 2).mean(axis=(-2, -1))


def half_width(ours, row: Published) -> float:
    """Of the 95% interval of our mean less the published one; ours: (seeds,).

    Welch's for the difference of two means; where the published spread over seeds is not known, its
    mean counts as exact. A single agent is one draw: our seeds' 95% prediction interval.
    """
    from scipy import stats

    n, variance = len(ours), ours.var(ddof=1) / len(ours)
    if row.seeds == 1:
        return stats.t.ppf(0.975, n - 1) * math.sqrt(variance * (n + 1))
    theirs = row.spread**2 / row.seeds if row.spread else 0.0
    if variance + theirs == 0:
        return 0.0
    total = variance**2 / (n - 1) + theirs**2 / (row.seeds - 1)
    return stats.t.ppf(0.975, (variance + theirs) ** 2 / total) * math.sqrt(variance + theirs)


def verdict(ours, steps: int, row: Published) -> str:
    """How our returns, (seeds,), stand beside a published row of their protocol: see the top.

    "trained longer", and no verdict, where our budget is the larger; where it is the smaller, the
    verdict says by how much.
    """
    if steps > row.steps:
        return "trained longer"
    part = f", after {steps / row.steps:.0%} of its steps" if steps < row.steps else ""
    if len(ours) < MIN_SEEDS:
        return f"{'one seed of ours' if len(ours) == 1 else 'too few seeds to tell'}{part}"
    difference, half = ours.mean() - row.mean, half_width(ours, row)
    fifth = abs(row.mean - RANDOM_RETURNS.get(row.env_id, 0)) / 5
    if difference > half:
        word = "above"
    elif difference < -half:
        word = "below" if difference - half < -fifth else "slightly below"
    else:
        narrow = half <= fifth and difference - half >= -fifth
        word = "no difference detected" if narrow else "too noisy to say"
    return word + part


def verdict_on(cell: Cell, row: Published) -> str:
    """The verdict, and the cause of a "below"."""
    found = verdict(cell.values(row.protocol), cell.about["steps"], row)
    cause = row.cause(cell.table)
    return f"{found}: {cause}" if "below" in found and cause else found


# --------------------------------------------------------------------------------------------------
# Tables and the picture


def number(x: float) -> str:
    if 0 < abs(x) < 1:
        return f"{x:.2f}"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}"


def mean_and_std(x) -> str:
    return f"{number(x.mean())} ± {number(x.std(ddof=1))}" if len(x) > 1 else number(x[0])


def with_interval(value: float, bounds) -> str:
    return number(value) + (f" [{number(bounds[0])}, {number(bounds[1])}]" if bounds else "")


def seeds_of(cell: Cell) -> str:
    first, last = cell.seeds[0], cell.seeds[-1]
    whole = cell.seeds == list(range(first, last + 1)) and last > first
    names = f"{first} to {last}" if whole else ", ".join(map(str, cell.seeds))
    return f"{len(cell.seeds)} ({'seed ' if last == first else ''}{names})"


def other_env(cell: Cell, row: Published) -> str:
    return f", {row.published_env}" if row.published_env != cell.env_id else ""


def markdown(header: str, rows: list[list]) -> str:
    lines = [header, "|" + "---|" * (header.count("|") - 1)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def nearest(cell: Cell, published: list[Published]) -> Published | None:
    """The greedy return whose number of steps is the nearest to ours.

    Of several the one of most seeds, and of those the first in published.csv, which lists the
    settings that are most like ours first.
    """
    greedy = [row for row in published if row.is_for(cell) and row.protocol == "greedy"]
    steps = cell.about["steps"]
    return min(greedy, key=lambda row: (abs(row.steps - steps), -row.seeds), default=None)


def main_cells(cells: list[Cell], published: list[Published]) -> list[Cell]:
    """Of each script in each environment one: with enough seeds and a published return beside it,
    where there is such a cell; among several the one whose table has the shortest name.
    """

    def rank(cell: Cell):
        is_published = nearest(cell, published) is not None
        return min(len(cell.seeds), MIN_SEEDS), is_published, -len(cell.table)

    main = {}
    for cell in cells:
        key = cell.env_id, cell.about["algo"]
        main[key] = max(main.get(key, cell), cell, key=rank)
    return list(main.values())


def short_table(cells: list[Cell], published: list[Published]) -> str:
    """The table of README.md: a line for each of the main cells."""
    rows = []
    for cell in main_cells(cells, published):
        beside = "none"
        if row := nearest(cell, published):
            beside = f"{number(row.mean)} ({steps_in_short(row.steps)}, {row.source}"
            beside += f"{other_env(cell, row)})"
        steps, returns = steps_in_short(cell.about["steps"]), number(iqm(cell.values("greedy")))
        rows.append([cell.env_id, cell.table, steps, returns, len(cell.seeds), beside])
    header = "| environment | table | steps | greedy return | seeds | published |"
    return markdown(header, rows) if cells else "No results yet."


def steps_in_short(steps: int) -> str:
    return f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k"


def results_table(cells: list[Cell], published: list[Published]) -> str:
    """A line a cell. `published_table` has every comparison."""
    rows = []
    for cell in cells:
        greedy, steps = cell.values("greedy"), cell.about["steps"]
        beside = ["none", ""]
        if row := nearest(cell, published):
            source = f"{row.source}{other_env(cell, row)}{row.note and ', '}{row.note}"
            beside = [f"{number(row.mean)} ({source})", verdict_on(cell, row)]
        minutes = np.median([run["seconds"] for run in cell.about["runs"]]) / 60
        rows.append(
            [
                cell.env_id,
                cell.table,
                f"{steps:,}",
                seeds_of(cell),
                with_interval(iqm(greedy), interval(iqm, greedy)),
                mean_and_std(greedy),
                mean_and_std(cell.values("training")),
                *beside,
                f"{minutes:.1f}" + (" (GPU)" if cell.about["args"].get("device") == "cuda" else ""),
                f"`{cell.about['command']}`",
            ]
        )
    header = (
        "| environment | table | steps | seeds | greedy return, IQM [95%] | mean ± std "
        "| training return | published greedy return | ours is | minutes a run "
        "| command of one seed |"
    )
    return markdown(header, rows) if cells else "No results yet."


def published_table(cells: list[Cell], published: list[Published]) -> str:
    rows = []
    for cell, row in itertools.product(cells, published):
        if row.is_for(cell):
            ours = cell.values(row.protocol)
            spread = "" if row.spread is None else f" ± {number(row.spread)}"
            rows.append(
                [
                    cell.env_id,
                    cell.table,
                    row.protocol,
                    mean_and_std(ours),
                    len(ours),
                    f"{cell.about['steps']:,}",
                    number(row.mean) + spread,
                    row.seeds if row.seeds > 1 else "1 agent",
                    f"{row.steps:,}",
                    ", ".join(filter(None, (row.published_env, row.note))),
                    f"[{row.source}]({row.url})",
                    verdict_on(cell, row),
                ]
            )
    header = (
        "| environment | table | protocol | ours | seeds | steps | published | seeds | steps | of "
        "| source | we are |"
    )
    return markdown(header, rows) if rows else "None."


def improvement_table(cells: list[Cell]) -> str:
    rows = []
    for a, b in itertools.combinations(cells, 2):
        if a.env_id == b.env_id and min(len(a.seeds), len(b.seeds)) >= MIN_SEEDS:
            x, y = a.values("greedy"), b.values("greedy")
            bounds = interval(improvement, x, y)
            text = f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else ""
            steps = f"{a.about['steps']:,} and {b.about['steps']:,}"
            rows.append([a.env_id, a.table, b.table, f"{improvement(x, y):.2f}{text}", steps])
    header = "| environment | X | Y | P(X > Y) [95%] | steps of X and Y |"
    return markdown(header, rows) if rows else "None."


def best_table(cells: list[Cell]) -> str:
    rows = []
    for cell in cells:
        steps, returns = cell.curve("greedy")
        best = returns.mean(axis=0).argmax()
        text = mean_and_std(returns[:, best])
        rows.append([cell.env_id, cell.table, text, f"{steps[best]:,}", len(steps)])
    header = "| environment | table | best of the mean curve | at step | evaluations |"
    return markdown(header, rows) if rows else "None."


def documents(results: Path) -> dict[Path, str]:
    """What README.md and benchmarks/README.md must hold, or the README.md of other results."""
    cells, published = read_cells(results), read_published()
    details = [
        results_table(cells, published),
        f"![Curves]({'results/' if results == RESULTS else ''}curves.png)" if cells else "",
        "## Beside what is published\n\n" + published_table(cells, published),
        "## Best of the mean curve\n\n" + best_table(cells),
        "## Probability of improvement\n\n" + improvement_table(cells),
    ]
    details = "\n\n".join(filter(None, details))
    if results != RESULTS:
        return {results / "README.md": f"# Results\n\n{details}\n"}
    parts = {"README.md": short_table(cells, published), "benchmarks/README.md": details}
    return {ROOT / name: between_markers(ROOT / name, text) for name, text in parts.items()}


def between_markers(path: Path, text: str) -> str:
    """The file's content with `text` between its two marker comments."""
    begin, end = MARKS
    content = path.read_text("utf-8")
    if not 0 <= content.find(begin) < content.find(end):
        raise UserError(f"{path} lacks the lines {begin} and {end}")
    head, rest = content.split(begin, 1)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end, 1)[1]}"


def draw(cells: list[Cell], published: list[Published], path: Path):
    """A panel for each environment: IQM of the greedy return over seeds, with its 95% interval.

    The same algorithm, or table where a panel has several of one algorithm, has the same colour
    in all panels, if there are colours enough; dashed beside it is the published return.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    plt = pyplot()
    of_one_algorithm = {(cell.env_id, cell.about["algo"]) for cell in cells}
    by_table = len(of_one_algorithm) < len(cells)
    labels = {id(cell): cell.table if by_table else cell.about["algo"] for cell in cells}
    colors = {label: f"C{i}" for i, label in enumerate(sorted(set(labels.values())))}
    legend_in_panels = len(colors) > 10
    environments = sorted({cell.env_id for cell in cells})
    columns = min(len(environments), 3)
    rows = math.ceil(len(environments) / columns)
    size = max(4.2 * columns, 6), 3.1 * rows + 0.5
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    for axis in axes.flat[len(environments) :]:
        axis.remove()
    for env_id, axis in zip(environments, axes.flat, strict=False):
        lines = []  # (published return, colour)
        for i, cell in enumerate(cell for cell in cells if cell.env_id == env_id):
            label, (steps, returns) = labels[id(cell)], cell.curve("greedy")
            color = f"C{i}" if legend_in_panels else colors[label]
            marker = "." if len(steps) == 1 else None
            axis.plot(steps, iqm(returns.T), color=color, marker=marker, label=label)
            if bounds := interval(iqm, returns.T):
                axis.fill_between(steps, *bounds, color=color, alpha=0.2, linewidth=0)
            if row := nearest(cell, published):
                axis.axhline(row.mean, color=color, linestyle="--", linewidth=1)
                lines.append((row.mean, color))
        axis.set_xscale("log")  # budgets differ tenfold
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 300k, 1M
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_title(env_id, fontsize=11)
        if legend_in_panels:
            axis.legend(fontsize=8)
        low, high = axis.get_ylim()
        lines.sort()
        heights = apart([mean for mean, _ in lines], (high - low) / 14)
        for (mean, color), height in zip(lines, heights, strict=True):
            place = dict(xycoords=("axes fraction", "data"), va="center", fontsize=9, color=color)
            axis.annotate(number(mean), (1.01, height), **place)
    shared = {} if legend_in_panels else colors
    handles = [Line2D([], [], color=color, label=label) for label, color in shared.items()]
    handles.append(Line2D([], [], color="gray", linestyle="--", linewidth=1, label="published"))
    figure.supxlabel("environment steps", fontsize=10, y=0.06)
    figure.supylabel("greedy return", fontsize=10)
    figure.legend(handles=handles, loc="lower center", ncol=6, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    save(figure, path)


def apart(heights, gap: float):
    """The heights from low to high, moved to be `gap` apart, and no further than that takes."""
    from scipy.optimize import isotonic_regression

    below = gap * np.arange(len(heights))  # what is left above it must not fall
    return isotonic_regression(np.sort(list(heights)) - below).x + below if below.size else below


def pyplot():
    import matplotlib

    matplotlib.use("Agg")  # no screen is needed
    import matplotlib.pyplot as plt

    return plt


def save(figure, path: Path):
    try:
        figure.savefig(path, dpi=100)
    except ValueError as error:  # no such format
        raise UserError(f"{path}: {error}") from None
    print(path)


# --------------------------------------------------------------------------------------------------
# Comparing runs


@dataclass
class AnyRun:
    """A run folder of ours, or one of CleanRL's."""

    folder: Path
    env_id: str
    algo: str
    args: dict  # as text
    scalars: dict
    points: list  # of training_episodes
    finished: bool  # for all that one can see


def read_any_run(folder: Path) -> AnyRun:
    scalars, texts = read_events(folder)
    if not scalars:
        raise UserError(f"{folder} has no curves")
    finished = True
    if ours := (folder / "args.json").exists():
        try:
            saved = json.loads((folder / "args.json").read_text())
            args, algo = saved["args"], saved["algo"]
            finished = (folder / "result.json").exists()
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder}/args.json cannot be read: {error!r}") from None
    else:  # CleanRL's arguments are a table in a text: |name|value|
        lines = texts.get("hyperparameters/text_summary", "").splitlines()[2:]
        args = dict(line[1:-1].split("|", 1) for line in lines)
        algo = args.get("exp_name", folder.name)
        last = max(step for points in scalars.values() for step, _ in points)
        # its last episode ends a little before the budget does
        finished = last >= 0.95 * float(args.get("total_timesteps", 0))
        scalars.pop("eval/episodic_return", None)  # single episodes, counted from 0, with epsilon
    args = {name: str(value) for name, value in args.items()}
    try:
        points = training_episodes(scalars, one_a_point=not ours)
    except ValueError as error:
        raise UserError(f"{folder}: its curves cannot be read: {error}") from None
    return AnyRun(folder, args.get("env_id", "?"), algo, args, scalars, points, finished)


def place(name: str, value: float, cell: Cell, protocol: str) -> str:
    """Where a value lies among the seeds of a cell. One more seed is as likely in any place."""
    value, seeds = float(in_csv(value)), cell.values(protocol)
    low, high, n = seeds.min(), seeds.max(), len(seeds)
    counts = {
        "lower": (seeds < value).sum(),
        "higher": (seeds > value).sum(),
        "equal": (seeds == value).sum(),
    }
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if not low <= value <= high:
        text = f"it lies outside of them, as {2 / (n + 1):.0%} of all runs do by chance"
    seeds_text = f"{count_seeds(n)} of [{cell.table}] reached {number(low)} to {number(high)}"
    return f"  {name} {number(value)}: {seeds_text}; {text}"


def other_settings(run: AnyRun, cell: Cell) -> str:
    """The arguments in which a run differs from the runs of a cell, of those that both have."""
    free = {"env_id", "seed", "runs_dir", "device", "torch_threads", "eval_frequency"}
    free |= {"log_frequency", "capture_video", "async_envs", "algo"}

    def same(a: str, b: str) -> bool:
        with contextlib.suppress(ValueError):
            return float(a) == float(b)
        return a == b

    there = {name: str(value) for name, value in cell.about["args"].items()}
    names = sorted((there.keys() & run.args.keys()) - free)
    different = [name for name in names if not same(run.args[name], there[name])]
    return ", ".join(f"{name} {run.args[name]}, not {there[name]}" for name in different)


def least_entropy(run: AnyRun) -> float:
    """Entropy [nats] below which a policy explores no more: a hundredth of the uniform one's, or of
    continuous actions that of a standard deviation of 0.01, where 1 is half a dimension's range.
    """
    arrays = {}
    if (path := run.folder / "weights.npz").exists():
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file}
    if "log_std" in arrays:
        return arrays["log_std"].size * (math.log(0.01) + 0.5 * math.log(2 * math.pi * math.e))
    if "continuous" in run.algo:  # CleanRL's, which does not tell the number of dimensions
        return -math.inf
    outputs = [array.size for name, array in arrays.items() if re.match(r"actor\..*bias", name)]
    entropies = [value for _, value in run.scalars.get("losses/entropy", [])]
    return 0.01 * (math.log(outputs[-1]) if outputs else max(entropies, default=0.0))


def health(scalars: dict, args: dict, floor: float) -> list[str]:
    """What looked sick at every point of the curves for a tenth of the run, and for 2,000 steps of
    each environment: a sentence for each symptom, none for a healthy run.

    scalars {tag: [(step, value)]}; args: as text; floor: see least_entropy.
    """
    points = defaultdict(dict)
    for tag, curve in scalars.items():
        for step, value in curve:
            points[step][tag] = value
    total, num_envs = float(args.get("total_timesteps", max(points))), int(args.get("num_envs", 1))
    gamma, clipped = float(args.get("gamma", 1)), args.get("clip_reward") == "True"
    now, worth, since, told = {}, 0.0, {}, {}
    for step in sorted(points):
        now |= points[step]
        if "charts/episodic_length" in points[step] and gamma < 1:
            mean_reward = abs(now["charts/episodic_return"] / now["charts/episodic_length"])
            # of clipped rewards, 1 is the largest that is learned from
            worth = max(worth, (1.0 if clipped else mean_reward) / (1 - gamma))
        scale = 1.0 if args.get("norm_reward") == "True" else worth
        found = symptoms(now, worth, scale, floor if step <= total / 2 else -math.inf)
        if "charts/episodic_return" not in points[step]:
            found["episodes"] = (
                "no episode ended: has the environment a time limit? A checkpoint ends episodes"
                " uncounted (--checkpoint-frequency)"
            )
        since = {name: since.get(name, step) for name in found}
        for name in found:
            if step - since[name] >= max(total / 10, 2_000 * num_envs) and name not in told:
                told[name] = f"from step {since[name]:,} on {found[name]}"
    return list(told.values())


def symptoms(now: dict, worth: float, scale: float, floor: float) -> dict:
    """What looks sick at a point of the curves: sentences by name.

    worth [return]: of the largest mean reward so far, for ever; on average a true |Q| is below.
    scale: the size of the returns that are learned. floor [nats]: of a policy that still explores.
    """
    found = {}
    explained = now.get("losses/explained_variance", 0.0)
    # the deviation of the returns: Var(returns - values) is at most twice the value loss
    spread = math.sqrt(2 * now.get("losses/value_loss", math.inf) / (1 - min(explained, 0)))
    if explained < 0 and spread > max(0.01 * scale, 1e-3):  # else there is nothing to explain
        found["critic"] = (
            f"the explained variance is negative ({explained:.2g}): the critic is worse than a"
            " constant; try a smaller --learning-rate, another --vf-coef or --norm-reward"
        )
    entropy = now.get("losses/entropy", math.inf)
    if entropy < floor:
        found["policy"] = (
            f"the entropy is {entropy:.2g}: the policy no longer explores, with half of the run to"
            " go; a larger --ent-coef or a smaller --learning-rate keeps it exploring"
        )
    q = now.get("losses/q_values", now.get("losses/qf1_values", 0.0))
    compared = f"Q is {q:.3g}, where the largest mean reward, for ever, is worth {worth:.3g}"
    random = now.get("charts/epsilon", 0.0) > 0.5  # so rewards say little of a greedy policy
    if abs(q) > 2 * worth > 0 and not random:
        found["q_values"] = (
            f"{compared}: it feeds on its own errors; try a smaller --tau or --learning-rate"
        )
    if now.get("losses/q_spread", math.inf) < 1e-4 * abs(q):
        found["network"] = (
            f"Q is {q:.3g} whatever the state: the network's units fell silent for good; try a"
            " smaller --learning-rate or a larger --adam-eps"
        )
    mass = now.get("losses/mass_at_ends", 0.0)
    beyond = abs(now.get("charts/episodic_return", math.inf)) > 2 * abs(q)  # else it may fit
    if mass > 0.5 and beyond and abs(q) < 0.5 * worth:
        found["support"] = (
            f"{mass:.0%} of the return's distribution lies at --v-min and --v-max, and {compared}:"
            " set them further from 0"
        )
    return found


def compare(folders: list[Path], picture: Path):
    runs, cells = [read_any_run(folder) for folder in folders], read_cells(RESULTS)
    if len(runs) > 1:
        print_differing_arguments(runs)
    for i, run in enumerate(runs, 1):
        print(f"Run {i}: {run.folder}")
        sick = health(run.scalars, run.args, least_entropy(run))
        for sentence in sick or ["its curves look healthy"]:
            print(f"  {sentence}")
        here = [cell for cell in cells if cell.env_id == run.env_id]
        # CleanRL's ppo_continuous_action is a ppo as well
        here = [cell for cell in here if run.algo.startswith(cell.about["algo"])]
        if not here:
            print(f"  benchmarks/results/ has no seeds of {run.algo} on {run.env_id}")
        elif not run.finished:
            print("  not finished, so not compared with the seeds in benchmarks/results/")
            continue
        for cell in here:
            if settings := other_settings(run, cell):
                print(f"  not compared with [{cell.table}], which has other settings: {settings}")
                continue
            print(place("training return", last_episodes(run.points), cell, "training"))
            if greedy := run.scalars["eval/episodic_return"]:
                print(place("greedy return", greedy[-1][1], cell, "greedy"))
    figure, axis = pyplot().subplots(figsize=(8, 5))
    for color, run in enumerate(runs):
        steps, returns, _ = zip(*run.points, strict=True) if run.points else ((), (), ())
        label = f"{color + 1}: {run.folder}"
        axis.plot(steps, returns, color=f"C{color}", linewidth=1, label=label)
        if greedy := run.scalars["eval/episodic_return"]:
            axis.plot(*zip(*greedy, strict=True), color=f"C{color}", marker="o", linestyle="")
    axis.set(xlabel="steps", ylabel="return", title="lines: training episodes; dots: greedy")
    axis.legend(fontsize=7)
    figure.tight_layout()
    save(figure, picture)


def print_differing_arguments(runs: list[AnyRun]):
    """A table with a header: an argument that differs in each row, a run in each column."""
    names = sorted(set().union(*(run.args for run in runs)) - {"runs_dir"})
    rows = [[name, *(run.args.get(name, "-") for run in runs)] for name in names]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    if not rows:
        print("No argument differs.\n")
        return
    rows = [["argument", *(f"run {i + 1}" for i in range(len(runs)))], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT / "runs"
    parser.add_argument("runs_dir", nargs="?", type=Path, default=default, help="default: runs")
    parser.add_argument("--from-csv", action="store_true", help="reads the CSVs of --out alone")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: benchmarks/results")
    parser.add_argument("--compare", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument(
        "--picture", type=Path, help="of --compare; default: compare.png beside the first run"
    )
    options = parser.parse_args()
    try:
        if options.compare:
            beside = options.compare[0].resolve().with_name("compare.png")
            compare(options.compare, options.picture or beside)
            return
        results = options.out.resolve()
        results.mkdir(parents=True, exist_ok=True)
        if not options.from_csv:
            collect(options.runs_dir, results)
        for path, text in documents(results).items():
            path.write_text(text, "utf-8")
            print(path)
        if cells := read_cells(results):
            published = read_published()
            shown = main_cells(cells, published) if results == RESULTS else cells
            draw(shown, published, results / "curves.png")
    except (UserError, OSError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        advice = "pip install -r requirements-dev.txt"
        print(f"report.py: a package is missing ({error.name}): {advice}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
