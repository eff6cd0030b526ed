"""Turns the runs of benchmarks/run.py into small CSVs, and those into tables and a picture.

    python benchmarks/report.py runs/sweep --out DIR    writes CSVs, README.md, curves.png
    python benchmarks/report.py --from-csv --out DIR    all but the cells once more, from these

A cell is one table of a config in one environment, over its seeds: <env>-<table>.csv has its
returns, <env>-<table>.json its command, arguments, versions, times and hashes. New seeds join a
cell of the same arguments (but for how often they evaluate) and package versions, if the same
script trained them or, by results/same-numbers.json, one that trains the same weights.

benchmarks/README.md defines every number and verdict. Exit status: 0, or 2 for wrong input.
"""

import argparse
import contextlib
import fnmatch
import functools
import itertools
import json
import math
import os
import re
import shlex
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from google.protobuf.message import DecodeError
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "algos"))
from load import is_script, parts_of  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
SAME_NUMBERS = "same-numbers.json"  # by maintain/same_numbers.py: which scripts train the same
WINDOWS = 100  # points of a training curve
EPISODES = 100  # at the end of training, of which the training return is the mean
KINDS = "greedy", "training", "last100"  # of returns
# what reading a stranger's file may raise
UNREADABLE = OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError
UNREADABLE += RecursionError, MemoryError, EOFError, DecodeError
KEPT = "seed", "seconds", "eval_episodes", "run_hash"  # of a run's result.json, in its cell
MIN_SEEDS = 3  # for a verdict
MIN_SEEDS_INTERVAL = 5  # with fewer, a bootstrap's interval is much too narrow
COMPARED = ["environment", "table", "protocol", "ours", "published", "ours is", "source", "url"]
# of a command, which leave a table's numbers or the name of its record as they are
FREE_FLAGS = {"config", "seed", "env_id", "torch_threads", "runs_dir", "exp_name"}
FREE_FLAGS |= {"eval_frequency", "eval_episodes"}
FREE = {"runs_dir", "config", "resume", "evaluate", "exp_name"}  # arguments that change no number
EQUAL = 0.05  # budgets that differ by no more than this count as equal
FAR = 4  # times our steps: what is published there says little of ours
TITLE = "# Results"  # of a README.md that this tool may write anew
MARKS = "<!-- results: begin -->", "<!-- results: end -->"  # around a document's tables
EARLIER = " †"  # behind a table whose runs are not shown to be those of today's script
# from the easiest on; others come behind them, then Atari
ENVIRONMENTS = ["CartPole-v1", "Pendulum-v1", "LunarLander-v3", "LunarLanderContinuous-v3"]
ENVIRONMENTS += ["HalfCheetahBulletEnv-v0", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5"]
ENVIRONMENTS += ["ALE/Pong-v5", "ALE/Freeway-v5", "ALE/Boxing-v5", "ALE/Breakout-v5"]
ALGORITHMS = ["ppo", "a2c", "dqn", "td3", "sac", "tqc"]  # each has its colour in every picture


class UserError(Exception):
    """Something the user can mend."""


def printable(text: str) -> str:
    """Without what commands a terminal: a stranger's run may say anything."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


@contextlib.contextmanager
def errors_in_a_line():
    """Wrong input ends a tool with one line and exit status 2."""
    try:
        yield
    except (UserError, OSError) as error:
        print(printable(f"{Path(sys.argv[0]).name}: {error}"), file=sys.stderr)
        sys.exit(2)


# shows the docstring of a tool as it is written; --seed is no --seeds
PARSING = dict(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
ArgumentParser = functools.partial(argparse.ArgumentParser, **PARSING)


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number


# Reading runs -------------------------------------------------------------------------------------


def read_json(path: Path):
    """UTF-8, UTF-16 or UTF-32, with or without a byte order mark."""
    return json.loads(path.read_bytes())


def read_toml(path: Path) -> dict:
    """UTF-8, with or without the byte order mark that some editors write."""
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None


def read_events(folder: Path) -> tuple[dict, dict]:
    """The curves, {tag: [(step, value)]}, and the texts, {tag: text}, of a TensorBoard folder."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    def begins_at(events) -> int:  # the step after the checkpoint that was resumed
        return next((event.step for event in events if event.HasField("session_log")), -1)

    scalars = defaultdict(list)
    texts = {}
    paths = sorted(folder.glob("events.out.tfevents.*"))
    files = [list(EventFileLoader(str(path)).Load()) for path in paths]
    for events in sorted(files, key=begins_at):  # not by their names, which clocks gave them
        for event in events:
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

    CleanRL writes one point an episode, our scripts the means since the last point.
    """
    returns, lengths = scalars["charts/episodic_return"], scalars["charts/episodic_length"]
    if one_a_point:
        return [(step, value, 1.0) for step, value in returns]
    points = []
    before = 0
    for (step, value), (_, length) in zip(returns, lengths, strict=False):  # it may still train
        points.append((step, value, max((step - before) / length, 1.0)))
        before = step
    return points


def last_episodes(points: list, count: int = EPISODES) -> float:
    """Mean return of the last `count` episodes, or of all where there are fewer."""
    _, values, numbers = np.array(points[::-1], float).reshape(-1, 3).T
    weights = np.diff(np.minimum(np.cumsum(numbers), count), prepend=0)
    return np.average(values, weights=weights) if points else math.nan


def windows(points: list, total: int, count: int = WINDOWS) -> dict[int, float]:
    """{step: mean return of the episodes that ended in the hundredth of training up to it}."""
    steps, values, numbers = np.array(points, float).reshape(-1, 3).T
    ends = np.ceil(steps * count / total).astype(int) * total // count
    groups = pd.DataFrame({"sum": values * numbers, "count": numbers}).groupby(ends).sum()
    return (groups["sum"] / groups["count"]).to_dict()


def by_kind(versions: dict) -> dict:
    """The versions of packages, and the SHA-256 of the script."""
    packages = {name: value for name, value in versions.items() if name != "script"}
    return {"script": versions["script"], "versions": packages}


def read_run(folder: Path) -> dict:
    """What the results keep of a finished run of ours. Raises UserError when it cannot be read."""
    try:
        saved, result = read_json(folder / "args.json"), read_json(folder / "result.json")
        scalars, _ = read_events(folder)
        points = training_episodes(scalars, one_a_point=False)
        steps = result["steps"]
        greedy = dict(scalars["eval/episodic_return"])
        args = dict(saved["args"])
        texts = result["env_id"], result["algo"], saved["command"], args.get("device", "cpu")
        if not all(isinstance(text, str) for text in texts) or not result["env_id"].isprintable():
            raise ValueError("its env_id, algo, command or device is no text")
        if not math.isfinite(result["eval_return_mean"]):
            raise ValueError("its evaluation is not finite")
        if not math.isclose(greedy.get(steps, math.nan), result["eval_return_mean"], rel_tol=1e-5):
            raise ValueError("its curves lack the evaluation that result.json has")
        returns = {"greedy": greedy, "training": windows(points, steps)}
        returns["last100"] = {steps: last_episodes(points)}
        run = {name: result[name] for name in ("env_id", "algo", *KEPT)} | {"folder": folder}
        run |= {"args": args, "command": saved["command"]}
        run |= {"result": result, "returns": returns, **by_kind(saved["versions"])}
        # fail now, not in the cell or its row
        range(result["seed"]), float(result["seconds"])
        sum([args.get("sticky_actions", 0), args.get("quantiles", 1)])
        shlex.split(saved["command"])
        for later in saved.get("resumed", []):
            for name, value, first in differences(run | by_kind(later["versions"]), run):
                text = f"resumed at step {later['step']} with {name}={value}, begun with {first}"
                raise UserError(f"{folder}: {text}: a run of no single script, so of no cell")
        return run
    except UNREADABLE as error:
        raise UserError(f"{folder} cannot be read as a run: {error!r}") from None


def below(folder: Path, name: str):
    """Files of this name, also in folders that are links, as to another disk."""
    seen = set()
    for path, folders, files in os.walk(folder, followlinks=True):
        for inner in list(folders):
            real = os.path.realpath(Path(path, inner))
            if real in seen:
                folders.remove(inner)
            seen.add(real)
        if name in files:
            yield Path(path, name)


def finished_runs(runs_dir: Path) -> dict[tuple[str, str], list[Path]]:
    """The folders of finished runs below `runs_dir` by table and the folder of its environment."""
    cells = defaultdict(list)
    for path in sorted(below(runs_dir, "args.json")):
        folder, above = path.parent, path.resolve().parents
        script, table = above[1].name, above[min(3, len(above) - 1)].name
        if any((x / "optuna.log").exists() for x in path.parents):  # tune.py's have tables' names
            continue
        if not re.match(rf"{re.escape(script)}(-|$)", table):
            print(f"not of a campaign, left out: {folder}")
        elif not (folder / "result.json").exists():
            print(f"not finished, left out: {folder}")
        else:
            cells[table, above[1].parent.name].append(folder)
    if not cells:
        raise UserError(f"{runs_dir} has no finished run of a campaign: see benchmarks/run.py")
    return cells


def cell_path(env_id: str, table: str, results: Path) -> Path:
    return results / f"{re.sub('[/:]', '-', env_id)}-{table}.csv"


def settings_of(args: dict) -> dict:
    """The arguments that a run's numbers depend on."""
    return {k: v for k, v in args.items() if k not in FREE}


def differences(run: dict, first: dict) -> list[tuple]:
    """(name, its value, the other's) of settings and versions that both runs know."""
    found, expected = (settings_of(x["args"]) | x["versions"] for x in (run, first))
    # the seed differs, in ppo_seeds how many lie beside it; evaluations change no training
    names = (found.keys() & expected.keys()) - {"seed", "num_seeds", "eval_frequency"}
    pairs = [(k, found[k], expected[k]) for k in sorted(names)]
    if not same_numbers(run, first["script"]):
        pairs.append(("script", run["script"], first["script"]))
    return [pair for pair in pairs if pair[1] != pair[2]]


def config_of(command: str) -> str:
    """The table that a command names, such as benchmarks/cartpole.toml:ppo; "" if it names none."""
    match = re.search(r"--config (\S+)", command)
    return match[1] if match else ""


def same_numbers(run: dict, script: str | None) -> bool:
    """Whether a script, by its SHA-256, trains what the run's own script does: it is the same one,
    or it is recorded that a shortened run of the table has the same run hash with both.
    """
    path = RESULTS / SAME_NUMBERS
    own = run["script"]
    if script == own or not path.exists():
        return script == own
    name = config_of(run["command"]).replace(".toml:", ":")
    if other := re.search(r" --env[-_]id[ =](\S+)", run["command"]):
        name += f" --env-id {other[1]}"
    flags = {x.replace("-", "_") for x in re.findall(r" --([\w-]+)", run["command"])}
    equals = (x["scripts"] for x in read_json(path) if f"benchmarks/{x['name']}" == name)
    return flags <= FREE_FLAGS and any({script, own} <= set(scripts) for scripts in equals)


@functools.cache
def script_hash(algo: str) -> str | None:
    """Of today's script, as args.json has it; None where there is none that can be imported."""
    try:
        if not is_script(algo):
            return None
        parent, args_class, *_ = parts_of(algo)
    except Exception as error:  # whatever a reader's script raises
        print(f"{algo}.py cannot be compared with its runs: {error!r}", file=sys.stderr)
        return None
    return parent.versions(args_class)["script"]


def earlier_seeds(runs: list[dict], path: Path) -> list[dict] | None:
    """The runs of the cell at `path`, as read_run gives them, whose seeds are not among `runs`.
    None where those have other settings or versions.
    """
    if not path.exists():
        return []
    cell = read_cell(path)
    shared = {k: cell.about[k] for k in ("env_id", "algo", "args", "versions", "command")}
    found = []
    for result in cell.about["runs"]:
        returns = {kind: cell.points(kind, result["seed"]) for kind in KINDS}
        own = {"folder": path, "seed": result["seed"], "script": result["script"]}
        own["result"] = result | {"steps": cell.about["steps"]}
        found.append({**shared, **own, "returns": returns})
    if any(differences(run, runs[0]) for run in found):
        return None
    return [run for run in found if run["seed"] not in {run["seed"] for run in runs}]


def write_cell(table: str, runs: list[dict], results: Path):
    """Raises UserError unless the runs differ in nothing but their seeds."""
    runs = sorted(runs, key=lambda run: run["seed"])
    first = runs[0]
    for before, run in itertools.pairwise(runs):
        if run["seed"] == before["seed"]:
            raise UserError(f"the same seed twice: {before['folder']} and {run['folder']}")
        if (steps := run["result"]["steps"]) != first["result"]["steps"]:
            text = f"{run['folder']} ended after {steps:,} steps, {first['folder']} after"
            raise UserError(f"{text} {first['result']['steps']:,}: no runs of one cell")
        for name, value, expected in differences(run, first):
            raise UserError(
                f"{run['folder']} has {name}={value}, {first['folder']} {expected}: no runs of one"
                " cell (benchmarks/maintain/same_numbers.py says whether scripts train the same)"
            )
    about = {"env_id": first["env_id"], "table": table, "algo": first["algo"]}
    about |= {"steps": first["result"]["steps"], "command": without(first["command"], "runs-dir")}
    about["args"] = {k: v for k, v in settings_of(first["args"]).items() if k != "seed"}
    about["versions"] = {name: value for run in runs for name, value in run["versions"].items()}
    about["runs"] = [{k: x["result"][k] for k in KEPT} | {"script": x["script"]} for x in runs]
    rows = []
    for kind, run in itertools.product(KINDS, runs):
        rows += [(kind, run["seed"], *point) for point in sorted(run["returns"][kind].items())]
    path = cell_path(first["env_id"], table, results)
    results.mkdir(parents=True, exist_ok=True)
    returns = pd.DataFrame(rows, columns=["kind", "seed", "step", "return"])
    returns.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")
    path.with_suffix(".json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    print(f"{path}: {count_seeds(len(runs))}")


def without(command: str, *flags: str) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(f"--{flag}", f"--{flag.replace('-', '_')}")
    return shlex.join(parser.parse_known_args(shlex.split(command))[1])


def count_seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


# Results and their statistics ---------------------------------------------------------------------


@dataclass
class Cell:
    """One table of a config in one environment, over its seeds."""

    about: dict  # the .json
    returns: pd.DataFrame  # the .csv: kind, seed, step, return

    @property
    def env_id(self) -> str:
        return self.about["env_id"]

    @property
    def table(self) -> str:
        return self.about["table"]

    @property
    def seeds(self) -> list[int]:
        return [run["seed"] for run in self.about["runs"]]

    @property
    def algorithm(self) -> str:
        """Its script's, which for SAC and TQC is one."""
        if self.about["algo"] != "td3_sac":
            return self.about["algo"]
        return "tqc" if self.about["args"].get("quantiles", 1) > 1 else "sac"

    @property
    def marked_table(self) -> str:
        """The table's name, marked unless all runs are shown to train what today's script does."""
        today = {"script": script_hash(self.about["algo"]), "command": self.about["command"]}
        is_today = all(same_numbers(today, run["script"]) for run in self.about["runs"])
        return self.table + EARLIER * (today["script"] is not None and not is_today)

    def points(self, kind: str, seed: int) -> dict[int, float]:
        """{step: return} of a seed."""
        rows = self.returns.query("kind == @kind and seed == @seed")
        return dict(zip(rows["step"], rows["return"], strict=True))

    def curve(self, kind: str):
        """The steps at which every seed has a return, (steps,), and those, (seeds, steps)."""
        rows = self.returns[self.returns["kind"] == kind]
        table = rows.pivot(index="seed", columns="step", values="return")
        table = table.reindex(self.seeds).dropna(axis="columns")
        return table.columns.to_numpy(), table.to_numpy()

    def values(self, protocol: str):
        """One return for each seed, (seeds,), as a protocol of published.csv defines it."""
        if protocol == "training":
            rows = self.returns.query("kind == 'last100'").set_index("seed")["return"]
            return rows.reindex(self.seeds).to_numpy()  # NaN where no episode ended
        if protocol.startswith("training, last "):  # so many percent of the run's steps
            share = int(protocol.split()[-1].removesuffix("%"))
            rows = self.returns.query("kind == 'training'")
            rows = rows[rows["step"] * 100 > (100 - share) * self.about["steps"]]
            return rows.groupby("seed")["return"].mean().reindex(self.seeds).to_numpy()
        returns = self.curve("greedy")[1]
        return returns[:, returns.mean(axis=0).argmax() if protocol == "best" else -1]


def read_cells(results: Path) -> list[Cell]:
    """From the easiest environment on."""
    found = [path for path in results.glob("*.json") if path.with_suffix(".csv").exists()]
    cells = map(read_cell, found)
    return sorted(cells, key=lambda cell: (difficulty(cell.env_id), cell.table))


def difficulty(env_id: str) -> tuple:
    """By which environments are sorted, the easiest first."""
    return env_id.startswith("ALE/"), [*ENVIRONMENTS, env_id].index(env_id), env_id


def read_cell(path: Path) -> Cell:
    try:
        about, returns = read_json(path.with_suffix(".json")), pd.read_csv(path.with_suffix(".csv"))
        for name in ("env_id", "table", "algo", "steps", "command", "args", "versions", "runs"):
            about[name]
        returns[["kind", "seed", "step", "return"]]
        evaluated = returns.query("kind == 'greedy'")["seed"]
        if missing := {run["seed"] for run in about["runs"]} - set(evaluated):
            raise ValueError(f"no greedy return of seed {min(missing)}")
        return Cell(about, returns)
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as a cell: {error!r}") from None


def read_published() -> list:
    """The rows of published.csv, tuples with its columns as names: `mean` is the return, `spread`
    NaN where it is not known, `random` a random policy's return, 0 where that is not known.

    `tables` are those of ours beside which a row stands, `same_settings` the one that has its
    settings, `method` its algorithm where that is another, `causes` why tables are below it.
    """
    rows = pd.read_csv(ROOT / "benchmarks" / "published.csv").rename(columns={"return": "mean"})
    random = pd.read_csv(ROOT / "benchmarks" / "random.csv", index_col="env")["return"]
    rows = rows.assign(random=rows["env"].map(random).fillna(0.0))
    rows = rows.fillna(dict.fromkeys(["same_settings", "method", "note", "causes"], ""))
    return list(rows.itertuples(index=False, name="Published"))


def is_for(row, cell: Cell) -> bool:
    """Whether a published row is to stand beside a cell, all of whose seeds have such a return."""
    matches = (fnmatch.fnmatchcase(cell.table, pattern) for pattern in row.tables.split())
    is_plain = cell.about["args"].get("env_kwargs", "{}") == "{}"  # a changed task is another one
    stands_here = row.env == cell.env_id and any(matches) and is_plain
    return stands_here and all(np.isfinite(cell.values(row.protocol)))


def is_same_task(row, cell: Cell) -> bool:
    return ("sticky" in row.published_env) == (cell.about["args"].get("sticky_actions", 0) > 0)


def is_same_budget(steps: int, others: int) -> bool:
    return abs(steps - others) <= EQUAL * max(steps, others)


def iqm(returns, axis: int = -1):
    """Interquartile mean over seeds: without a quarter, rounded down, at either end."""
    return stats.trim_mean(returns, 0.25, axis=axis)


def interval(statistic, *samples, least: int = MIN_SEEDS_INTERVAL):
    """95% percentile bootstrap over seeds, the last axis, stratified by sample; None where a sample
    has too few of them.
    """
    if min(sample.shape[-1] for sample in samples) < least:
        return None
    rng = np.random.default_rng(0)
    options = dict(method="percentile", n_resamples=2000, vectorized=True, axis=-1, rng=rng)
    return stats.bootstrap(samples, statistic, **options).confidence_interval


def improvement(x, y, axis: int = -1):
    """The probability that a run of x ends above one of y; a draw counts half."""
    x, y = x[..., :, None], y[..., None, :]
    return ((x > y) + (x == y) / 2).mean(axis=(-2, -1))


def half_width(ours, row) -> float:
    """Of the 95% interval of our mean less the published one; ours: (seeds,).

    Welch's for the difference of two means; where the published spread over seeds is not known, its
    mean counts as exact. A single agent is one draw: our seeds' 95% prediction interval.
    """
    n = len(ours)
    variance = ours.var(ddof=1) / len(ours)
    if row.seeds == 1:
        return stats.t.ppf(0.975, n - 1) * math.sqrt(variance * (n + 1))
    theirs = 0.0 if math.isnan(row.spread) else row.spread**2 / row.seeds
    if variance + theirs == 0:
        return 0.0
    total = variance**2 / (n - 1) + theirs**2 / (row.seeds - 1)
    return stats.t.ppf(0.975, (variance + theirs) ** 2 / total) * math.sqrt(variance + theirs)


def verdict(ours, steps: int, row) -> str:
    """How our returns, (seeds,), stand beside a published row of their protocol; see README.md. A
    lower mean with a larger spread never gets the better word.
    """
    part = ""
    if not is_same_budget(steps, row.steps):
        if steps > row.steps:
            return "trained longer"
        part = f", after {steps / row.steps:.0%} of its steps"
    if len(ours) < MIN_SEEDS:
        return f"{'one seed of ours' if len(ours) == 1 else 'too few seeds to tell'}{part}"
    difference = ours.mean() - row.mean
    half = half_width(ours, row)
    fifth = abs(row.mean - row.random) / 5
    if difference > half:
        word = "above"
    elif difference < -half:
        word = "below" if difference - half < -fifth else "slightly below"
    else:
        narrow = half <= fifth and difference - half >= -fifth
        word = "no difference detected" if narrow else "too noisy to say"
    return word + part


def verdict_on(cell: Cell, row) -> str:
    """The verdict, and the cause of a "below"."""
    if not is_same_task(row, cell):
        return "another task"
    found = verdict(cell.values(row.protocol), cell.about["steps"], row)
    causes = dict(text.split(": ", 1) for text in row.causes.split("; ") if text)
    return f"{found}: {causes[cell.table]}" if "below" in found and cell.table in causes else found


# Tables and the picture ---------------------------------------------------------------------------


def number(x: float) -> str:
    if 0 < abs(x) < 1:
        return f"{x:.2f}"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}"


def mean_and_std(x) -> str:
    return f"{number(x.mean())} ± {number(x.std(ddof=1))}" if len(x) > 1 else number(x[0])


def steps_in_short(steps: int) -> str:
    return f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k"


def ours_in_short(cell: Cell, protocol: str) -> str:
    seeds, steps = count_seeds(len(cell.seeds)), steps_in_short(cell.about["steps"])
    return f"{mean_and_std(cell.values(protocol))} ({seeds}, {steps})"


def published_in_short(row, env_id: str) -> str:
    """Return, spread over seeds, seeds and steps of a published row, and its algorithm and
    environment where they are not ours.
    """
    spread = f" ± {number(row.spread)}" if row.seeds > 1 and not math.isnan(row.spread) else ""
    seeds = count_seeds(row.seeds) if row.seeds > 1 else "1 agent"
    about = [row.method, seeds, steps_in_short(row.steps)]
    if row.published_env != env_id:  # "sticky", "v4" or the whole name
        name = env_id.rpartition("v")[0]
        about.append(row.published_env.removeprefix(f"{env_id}, ").removeprefix(name))
    return f"{number(row.mean)}{spread} ({', '.join(filter(None, about))})"


def seeds_of(cell: Cell) -> str:
    """Their number and, in brackets, ranges of them."""
    parts = np.split(np.array(cell.seeds), np.flatnonzero(np.diff(cell.seeds) > 1) + 1)
    names = ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
    return f"{len(cell.seeds)} ({names})" if len(cell.seeds) > 1 else f"1 (seed {names})"


def markdown(columns: list[str], rows: list[list]) -> str:
    head, *lines = [f"| {' | '.join(map(str, line))} |" for line in (columns, *rows)]
    return "\n".join([head, "|" + "---|" * len(columns), *lines])


def nearest(cell: Cell, published: list):
    """The published row that is most like a cell, in the order of README.md; None without any."""

    def unlikeness(row) -> tuple:
        steps = cell.about["steps"]
        is_same = is_same_budget(steps, row.steps)
        order = [row.same_settings == cell.table, is_same or steps < row.steps < FAR * steps]
        order += [is_same_task(row, cell), not row.method, row.seeds >= MIN_SEEDS]
        distance = 0 if is_same else abs(math.log(row.steps / steps))
        return *(not alike for alike in order), distance

    return min((row for row in published if is_for(row, cell)), key=unlikeness, default=None)


def minutes(cell: Cell) -> str:
    """The median wall time of a run, of those on a GPU apart."""
    times = defaultdict(list)
    default = cell.about["args"].get("device", "cpu")
    for run in cell.about["runs"]:
        times[run.get("device", default)].append(run["seconds"] / 60)
    medians = {device: f"{np.median(values):.1f}" for device, values in times.items()}
    return ", ".join(x + " (GPU)" * (device == "cuda") for device, x in medians.items())


def results_table(cells: list[Cell], published: list) -> str:
    """A line for each cell, beside the published return that is most like it."""
    rows = []
    for cell in cells:
        greedy = cell.values("greedy")
        ours = [mean_and_std(greedy), ""]
        theirs = ["", ""]
        if bounds := interval(iqm, greedy):
            ours[1] = f"{number(iqm(greedy))} [{number(bounds[0])}, {number(bounds[1])}]"
        if row := nearest(cell, published):
            text = published_in_short(row, cell.env_id)
            if row.protocol != "greedy":
                text += f", {row.protocol}: ours {mean_and_std(cell.values(row.protocol))}"
            theirs = [f"{text}, [{row.source}]({row.url})", verdict_on(cell, row)]
        about = [cell.env_id, cell.marked_table, f"{cell.about['steps']:,}", seeds_of(cell)]
        flags = ["exp-name", "eval-frequency"]  # they change no number here
        if cell.about["args"].get("torch_threads") == 1 and not cell.env_id.startswith("ALE/"):
            flags.append("torch-threads")  # of vectors the default
        command = without(cell.about["command"], *flags)
        rows.append([*about, *ours, *theirs, minutes(cell), f"`{command}`"])
    columns = ["environment", "table", "steps", "seeds", "greedy return, mean ± std", "IQM [95%]"]
    columns += ["published", "ours is", "minutes a run", "command of the first seed"]
    return markdown(columns, rows) if cells else "No results yet."


def beside(cell: Cell, row) -> list[str]:
    """A cell and a published row, as COMPARED names it."""
    both = ours_in_short(cell, row.protocol), published_in_short(row, cell.env_id)
    source = f"{row.source}, {row.note}" if row.note else row.source
    return [cell.env_id, cell.table, row.protocol, *both, verdict_on(cell, row), source, row.url]


def improvements(cells: list[Cell]) -> pd.DataFrame:
    """P(X > Y) for each two cells of an environment, and its interval where there is one."""
    rows = []
    for a, b in itertools.combinations(cells, 2):
        if a.env_id == b.env_id and min(len(a.seeds), len(b.seeds)) >= MIN_SEEDS:
            x = a.values("greedy")
            y = b.values("greedy")
            bounds = [f"{bound:.2f}" for bound in interval(improvement, x, y) or ()] or ["", ""]
            rows.append([a.env_id, a.table, b.table, f"{improvement(x, y):.2f}", *bounds])
            rows[-1] += [a.about["steps"], b.about["steps"]]
    columns = ["environment", "X", "Y", "P(X > Y)", "low", "high", "steps of X", "steps of Y"]
    return pd.DataFrame(rows, columns=columns)


def documents(results: Path) -> dict[Path, str]:
    """README.md of a folder of cells, and the CSVs that it names."""
    cells = read_cells(results)
    published = read_published()
    parts = [TITLE, results_table(cells, published), *["![Curves](curves.png)"] * bool(cells)]
    parts += [
        "Every published number, by every protocol: [verdicts.csv](verdicts.csv). The probability "
        "that one table's run ends above another's: [improvement.csv](improvement.csv)."
    ]
    pairs = itertools.product(cells, published)
    rows = [beside(cell, row) for cell, row in pairs if is_for(row, cell)]
    verdicts = pd.DataFrame(rows, columns=COMPARED)
    return {
        results / "README.md": "\n\n".join(parts) + "\n",
        results / "verdicts.csv": verdicts.to_csv(index=False, lineterminator="\n"),
        results / "improvement.csv": improvements(cells).to_csv(index=False, lineterminator="\n"),
    }


def between_markers(path: Path, text: str) -> str:
    """The file's content with `text` between its two marker comments."""
    begin, end = MARKS
    content = path.read_text("utf-8")
    if not 0 <= content.find(begin) < content.find(end):
        raise UserError(f"{path} lacks the lines {begin} and {end}")
    head, rest = content.split(begin, 1)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end, 1)[1]}"


def write(texts: dict[Path, str]):
    for path, text in texts.items():
        path.write_text(text, "utf-8")
        print(path)


def draw(cells: list[Cell], published: list, path: Path):
    """A panel for each environment: the greedy return of each seed, thin, and their mean, or of
    cells with one evaluation the return in training; dashed, in the same colour, a published greedy
    return of the same algorithm, task and number of steps.
    """
    palette = [*map("C{}".format, range(10)), *colormaps["tab20"].colors[1::2]]
    others = sorted({cell.algorithm for cell in cells} - set(ALGORITHMS))
    colors = dict(zip(ALGORITHMS + others, itertools.cycle(palette), strict=False))
    environments = sorted({cell.env_id for cell in cells}, key=difficulty)
    columns = min(len(environments), 3)
    rows = math.ceil(len(environments) / columns)
    figure = Figure(figsize=(max(4.2 * columns, 6), 3.1 * rows + 0.5))
    for panel, env_id in enumerate(environments, 1):
        axis = figure.add_subplot(rows, columns, panel)
        styles = defaultdict(lambda: itertools.cycle(["-", "-.", ":"]))  # of one algorithm
        for cell in (cell for cell in cells if cell.env_id == env_id):
            steps, returns = cell.curve("greedy")
            label = cell.table
            if len(steps) == 1 and len(cell.curve("training")[0]) > 1:
                steps, returns = cell.curve("training")
                label = f"{label}, in training"
            color = colors[cell.algorithm]
            style = next(styles[cell.algorithm])
            marker = "." if len(steps) == 1 else None
            axis.plot(steps, returns.T, style, color=color, linewidth=0.5, alpha=0.4)
            mean = returns.mean(axis=0)
            axis.plot(steps, mean, style, color=color, marker=marker, label=label)
            alike = [r for r in published if r.protocol == "greedy" and not r.method]
            alike = [r for r in alike if is_same_budget(r.steps, cell.about["steps"])]
            if (row := nearest(cell, alike)) and is_same_task(row, cell):
                axis.plot(steps[[0, -1]], [row.mean] * 2, "--", color=color, linewidth=1)
        axis.set_xscale("log")  # budgets differ tenfold
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 300k, 1M
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_title(env_id, fontsize=11)
        axis.legend(fontsize=7, framealpha=0.6)
    figure.supxlabel("environment steps", fontsize=10)
    figure.supylabel("greedy return; dashed: published for these steps", fontsize=10)
    figure.tight_layout()
    save(figure, path)


def save(figure, path: Path):
    path = path if path.suffix else path.with_suffix(".png")  # as matplotlib does
    try:
        figure.savefig(path, dpi=100)
    except ValueError as error:  # no such format
        raise UserError(f"{path}: {error}") from None
    print(path)


def collect(runs_dir: Path, results: Path, add) -> list[str]:
    """Calls add(table, runs, results) for each cell of the finished runs below `runs_dir`. Returns
    a line for each run that cannot be read and each cell that cannot be written.
    """
    errors = []

    def attempt(function, *arguments):  # the other runs and cells are as good as without it
        try:
            return function(*arguments)
        except UserError as error:
            errors.append(str(error))

    for (table, _), folders in finished_runs(runs_dir).items():
        if runs := list(filter(None, (attempt(read_run, folder) for folder in folders))):
            attempt(add, table, runs, results)
    return errors


def add_runs(table: str, runs: list[dict], results: Path, may_shrink: bool = True):
    """Writes the cell of these runs and of the earlier seeds that join them. One of other settings
    or versions is replaced, unless it has more seeds and may not shrink.
    """
    path = cell_path(runs[0]["env_id"], table, results)
    joining = earlier_seeds(runs, path)
    before = len(read_cell(path).seeds) if joining is None else 0
    if len(runs) < before and not may_shrink:
        print(f"{path.stem} stays, with {before} seeds and not {len(runs)}: --out DIR shows these")
        return
    write_cell(table, runs + (joining or []), results)
    if before:
        print(f"replaces {count_seeds(before)} of other settings or versions: {path}")


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("runs_dir", nargs="?", type=Path, default="runs", help="default: runs")
    parser.add_argument("--from-csv", action="store_true", help="reads the CSVs of --out alone")
    parser.add_argument("--out", type=Path, default="report", help="default: report")
    options = parser.parse_args()
    results = options.out.resolve()
    with errors_in_a_line():
        readme = results / "README.md"
        if readme.exists() and not readme.read_text("utf-8").startswith(TITLE):
            raise UserError(f"{readme} is not one of report.py's: choose another --out")
        errors = [] if options.from_csv else collect(options.runs_dir, results, add_runs)
        results.mkdir(parents=True, exist_ok=True)
        write(documents(results))
        if cells := read_cells(results):
            draw(cells, read_published(), results / "curves.png")
        if errors:
            raise UserError("\n".join(errors))


if __name__ == "__main__":
    main()
