"""Searches settings of a script with Optuna: all points of a grid, or those that its TPE asks for.

    python benchmarks/tune.py FILE.toml                the grid of all lists in the file
    python benchmarks/tune.py FILE.toml --trials 40    40 points by TPE
    python benchmarks/tune.py FILE.toml --dry-run      prints the commands, no more
    python benchmarks/tune.py FILE.toml -- --env-id Acrobot-v1    flags for the script

The file has the command of the default, as it is typed where you stand, and the ranges:

    command = "python algos/ppo.py --config lunarlander"
    [ranges]
    num_envs = [8, 16]                                         these values, of any type
    learning_rate = { low = 1e-4, high = 1e-2, log = true }    anything between, by TPE alone
    num_minibatches = "= num_envs * num_steps // 64"           tied to others by + - * / // ( )

A trial trains one point on a few seeds, the same for all. Its score is the mean over seeds of the
greedy return at the end. The best trial and the default are then trained on fresh seeds, which
choose nothing. Everything is in runs/tune/FILE/. The same command continues a stopped search. Exit
status: 0 when the best trial was confirmed, 1 when there was nothing to confirm or that failed, 2
for wrong input, 128 + n when stopped by signal n.
"""

import ast
import contextlib
import hashlib
import io
import json
import math
import operator
import re
import shlex
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import optuna
import report
import run
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from report import UserError, positive

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
OPERATIONS |= {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv}


def calculated(text: str, value_of):
    """The number that "= EXPRESSION" gives, where value_of(name) are those of settings."""

    def value(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        found = value_of(node.id) if isinstance(node, ast.Name) else getattr(node, "value", None)
        if type(found) in (int, float):
            return found
        raise UserError(f'"{text}" may hold numbers, settings that are some, + - * / // and ( )')

    try:
        return value(ast.parse(text.removeprefix("=").strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError) as error:
        raise UserError(f'"{text}": {error}') from None


def with_ties(ranges: dict, chosen: dict, default: dict) -> dict:
    """The value of every setting in `ranges`: as chosen, or by its expression over others, which
    may be tied themselves. What is not in `ranges` is as in the default.
    """

    def value_of(name, above=()):
        if name in above:
            raise UserError(f"{name} is tied to itself")
        if name not in default:
            raise UserError(f'"{ranges[above[-1]]}": there is no setting {name}')
        if not isinstance(text := ranges.get(name), str):
            return chosen.get(name, default[name])
        value = calculated(text, lambda other: value_of(other, (*above, name)))
        if isinstance(default[name], int) and value % 1 == 0:  # 2048 / 8 is a float
            return int(value)
        return value + 0.0

    return {name: value_of(name) for name in ranges}


def readable(value: float, low: float, high: float) -> float:
    """The value with four digits, or as many as keep it in its range and in its place there."""
    for digits in range(4, 18):  # of 17 it is the value itself
        rounded = float(f"{value:.{digits}g}")
        if low <= rounded <= high and abs(rounded - value) <= (high - low) / 10_000:
            break
    return rounded


def in_words(value) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def flags_of(settings: dict) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            flags += [f"--{flag}", *map(str, value)]
        else:
            flags.append(f"--{flag}={in_words(value)}")
    return flags


@dataclass(eq=False)
class Trial:
    name: str
    settings: dict  # those that are searched
    command: list[str]  # the script, then flags; no seed
    args: dict  # every argument of the script
    parent: Path  # of its run folders
    finished: dict = field(default_factory=dict)  # {seed: greedy return}
    failure: str = ""

    def job(self, seed: int) -> run.Job:
        script, *flags = self.command
        table = self.parent.parts[-3]
        args = {**self.args, "seed": seed}
        return run.Job(table, script, [*flags, "--seed", str(seed)], args, self.parent)

    def returns(self, seeds):
        """Of finished runs, (seeds,); NaN for others."""
        for seed in set(seeds) - self.finished.keys():
            try:
                _, greedy_return = run.run_folder(self.job(seed))
            except run.Unreadable as error:
                self.failure = f"seed {seed}: {error}"
                continue
            if greedy_return is not None:
                self.finished[seed] = greedy_return
        return np.array([self.finished.get(seed, math.nan) for seed in seeds])

    def score(self, seeds) -> float:
        """The mean return, -inf where a run is missing."""
        mean = self.returns(seeds).mean()
        return mean if math.isfinite(mean) else -math.inf


class Study:
    """What is searched, and the trials so far, of which the default is the first."""

    def __init__(self, options, content: dict, extra: list[str]):
        words = shlex.split(str(content.get("command", "")))
        path = Path("".join(words[1:2]))  # typed where one stands, or in the repository's root
        path = path if path.exists() else run.ROOT / path
        own = path.resolve().parent == run.ROOT / "algos" and path.stem in run.SCRIPTS
        if words[:1] != ["python"] or not own:
            raise UserError('it needs a line command = "python algos/ppo.py"')
        self.script = path.stem
        self.flags = ["--torch-threads", "1", *words[2:], *extra]
        for flag in self.flags:
            if re.match("--(seed|runs[-_]dir|resume|evaluate)(=|$)", flag):
                raise UserError(f"the command takes no {flag.split('=')[0]}: that is the study's")
        self.options = options
        self.ranges = content.get("ranges")
        self.folder = (options.runs_dir or Path("runs", "tune", options.file.stem)).resolve()
        self.seeds = range(options.first_seed, options.first_seed + options.seeds)
        self.fresh = range(self.seeds.stop, self.seeds.stop + options.fresh_seeds)
        self.args = run.script_args(self.script, self.flags)
        self.space = self.distributions()
        self.trials = []
        self.default = self.trial(None)

    def distributions(self) -> dict:
        """What Optuna draws from; values of a list as text, since it takes no lists of lists."""
        if not isinstance(self.ranges, dict) or not self.ranges:
            raise UserError("it needs a table [ranges]")
        found = {}
        some = {}
        for name, spec in self.ranges.items():
            if name not in self.args or name in report.FREE | {"seed", "eval_frequency"}:
                raise UserError(f"{self.script} has no setting {name} to search")
            if isinstance(spec, list) and spec:
                found[name] = CategoricalDistribution([in_words(value) for value in spec])
                some[name] = spec[0]
            elif isinstance(spec, dict):
                if not self.options.trials:
                    raise UserError(f"{name} is a range: give --trials N, or a list for a grid")
                try:
                    if not all(math.isfinite(spec[end]) for end in ("low", "high")):
                        raise ValueError("its ends must be finite")
                    if type(self.args[name]) is int:  # TOML has 1e3 as a float
                        if spec["low"] % 1 or spec["high"] % 1:
                            raise ValueError("it takes whole numbers")
                        spec |= {"low": int(spec["low"]), "high": int(spec["high"])}
                    types = {type(x) for x in (spec["low"], spec["high"], self.args[name])}
                    kind = IntDistribution if types <= {int, type(None)} else FloatDistribution
                    found[name] = kind(**spec)
                    some[name] = spec["low"]
                except (TypeError, ValueError, LookupError) as error:
                    like = "a range is { low = 1, high = 9, log = true }"
                    raise UserError(f"{name}: {like}: {error}") from None
            elif not str(spec).startswith("="):
                raise UserError(f'{name} needs a list, a range or "= expression", not {spec!r}')
        with_ties(self.ranges, some, self.args)  # says what is wrong with an expression
        return found

    def trial(self, params: dict | None) -> Trial:
        """The trial of what Optuna asked for, which may be an earlier one; None: the default."""
        chosen = {}
        for name, value in (params or {}).items():
            if isinstance(spec := self.ranges[name], list):
                value = next(x for x in spec if in_words(x) == value)
            elif isinstance(value, float):
                value = readable(value, spec["low"], spec["high"])
            chosen[name] = value
        settings = {} if params is None else with_ties(self.ranges, chosen, self.args)
        every = settings or {name: self.args[name] for name in self.ranges}
        for trial in self.trials:
            if trial.settings == every:
                return trial
        point = ",".join(f"{name}={in_words(value)}" for name, value in settings.items())
        table = f"{self.script}-{re.sub('[^A-Za-z0-9_.,=+-]', '-', point) or 'default'}"
        if len(table) > 200:  # a file system takes 255
            table = table[:180] + hashlib.sha256(point.encode()).hexdigest()[:20]
        name = str(len(self.trials)) if settings else "default"
        runs_dir = self.folder / table
        command = [self.script, *self.flags, *flags_of(settings), "--runs-dir", run.shown(runs_dir)]
        args = {**self.args, **settings}  # of a script that refuses them, so that its runs fail
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            args = run.script_args(self.script, [*self.flags, *flags_of(settings)])
        parent = runs_dir / re.sub("[/:]", "-", args["env_id"]) / self.script
        self.trials.append(Trial(name, every, command, args, parent))
        return self.trials[-1]

    def train(self, trials: list[Trial], seeds):
        def start(job):
            self.write()  # so that one can look at any time
            return run.LocalRun(job)

        jobs = [trial.job(seed) for trial in trials for seed in seeds]
        if self.options.dry_run:
            print(*(f"python {shlex.join(job.words())}" for job in jobs), sep="\n")
            return
        run.train(jobs, lambda: self.options.jobs, start)
        for trial in trials:
            missing = np.flatnonzero(~np.isfinite(trial.returns(seeds)))
            for i in missing[:1]:
                said = f"seed {seeds[i]}: {run.last_line(trial.job(seeds[i]).log)}"
                trial.failure = trial.failure or said

    def open(self) -> optuna.Study:
        """Optuna's study of these settings, ranges and seeds, in the journal of the folder."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        options = self.options
        what = [self.args, self.ranges, list(self.seeds), options.tpe_seed, bool(options.trials)]
        how = {"study_name": hashlib.sha256(json.dumps(what).encode()).hexdigest()[:12]}
        if not options.dry_run:
            self.folder.mkdir(parents=True, exist_ok=True)
            backend = JournalFileBackend(str(self.folder / "optuna.log"))
            how |= {"storage": optuna.storages.JournalStorage(backend), "load_if_exists": True}
        return optuna.create_study(direction="maximize", **how)

    def search(self):
        """Trains the default and all trials, in batches, told in the order in which they were asked
        for: so what is asked for depends on scores alone, and a study that was cut goes on as if it
        had not been.
        """
        study = self.open()
        tpe = self.options.trials
        lists = {name: x.choices for name, x in self.space.items() if not tpe}
        total = tpe or math.prod(map(len, lists.values()))
        # at first those of an earlier start, too, of which some may have failed
        trials = [self.default, *(self.trial(x.params) for x in study.trials)]
        while True:
            if not (asked := study.get_trials(states=[TrialState.RUNNING])):  # since it was cut
                seed = self.options.tpe_seed
                done = len(study.trials)
                study.sampler = optuna.samplers.GridSampler(lists, seed)
                if tpe:
                    how = {"multivariate": True, "constant_liar": True}
                    study.sampler = optuna.samplers.TPESampler(seed=seed + done, **how)
                for _ in range(min(self.options.batch if tpe else total, total - done)):
                    study.ask(self.space)
                asked = study.get_trials(states=[TrialState.RUNNING])
            trials += [self.trial(x.params) for x in asked]
            self.train(list(dict.fromkeys(trials)), self.seeds)
            for x in asked:
                score = self.trial(x.params).score(self.seeds)
                good = math.isfinite(score)
                with contextlib.suppress(RuntimeError):  # a grid's end, outside of study.optimize
                    study.tell(x.number, score if good else None, None if good else TrialState.FAIL)
            trials = []
            if len(study.trials) >= total or self.options.dry_run:  # the rest depends on scores
                return

    def ranked(self) -> list[Trial]:
        """The best first, those without a score last; of equal ones the earliest first."""
        return sorted(self.trials, key=lambda trial: trial.score(self.seeds), reverse=True)

    def table(self, trials) -> str:
        columns = ["trial", *self.ranges]
        rows = []
        for seeds in (self.seeds, self.fresh):
            columns += [f"seeds {seeds[0]} to {seeds[-1]}", "one by one"]
        for trial in trials:
            rows.append([trial.name, *map(in_words, trial.settings.values())])
            for seeds in (self.seeds, self.fresh):
                returns = trial.returns(seeds)
                whole = [report.mean_and_std(returns), ", ".join(map(report.number, returns))]
                rows[-1] += whole if np.isfinite(returns).all() else ["", ""]
            rows[-1][-1] = f"{rows[-1][-1]} {trial.failure}".strip()
        return report.markdown(columns, rows)

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "study.md").write_text(self.table(self.ranked()) + "\n", "utf-8")

    def confirm(self) -> bool:
        """Trains the best trial and the default on fresh seeds, and says what came of it all."""
        best = self.ranked()[0]
        default = self.default
        chosen = dict.fromkeys([default, best])
        self.train([x for x in chosen if math.isfinite(x.score(self.seeds))], self.fresh)
        self.write()
        shown = dict.fromkeys([*self.ranked()[:10], default])
        print(f"\n{self.table(shown)}\n")
        print(f"All {len(self.trials)}: {run.shown(self.folder / 'study.md')}")
        x, y = best.returns(self.fresh), default.returns(self.fresh)
        if not np.isfinite(x).all():
            print(f"Nothing is confirmed: {best.failure}")
            return False
        if best is default:
            print("No trial has a better score than the default.")
        elif np.isfinite(y).all():
            better = f"P(trial {best.name} > default) {report.improvement(x, y):.2f}"
            both = f"trial {best.name} {report.mean_and_std(x)}, default {report.mean_and_std(y)}"
            print(f"On fresh seeds: {both}; {better}")
        script, *flags = best.command[:-2]  # without --runs-dir
        path = run.shown(run.ROOT / "algos" / f"{script}.py")
        print(f"The best: python {shlex.join([path, *flags])}", flush=True)
        return True


def parse_options(argv: list[str]):
    parser = report.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="command and ranges: a TOML file")
    parser.add_argument("--trials", type=positive, help="by TPE; default: the whole grid")
    parser.add_argument("--seeds", type=positive, default=3, help="of a trial; at least 3")
    parser.add_argument("--first-seed", type=int, default=1, help="default 1")
    parser.add_argument("--fresh-seeds", type=positive, default=5, help="after them; default 5")
    cores = run.usable_cores()
    parser.add_argument("--jobs", type=positive, default=cores, help="at a time; default: cores")
    parser.add_argument("--tpe-seed", type=int, default=1, help="of the search; default 1")
    parser.add_argument("--batch", type=positive, default=4, help="that TPE asks for; default 4")
    parser.add_argument("--runs-dir", type=Path, help="default: runs/tune/FILE")
    parser.add_argument("--dry-run", action="store_true", help="prints the commands, no more")
    options = parser.parse_args(argv)
    if options.seeds < 3:
        raise UserError("--seeds is at least 3: of fewer, the best is the luckiest")
    return options


def study(flags: list[str], extra: list[str]) -> int:
    options = parse_options(flags)
    content = report.read_toml(options.file)
    try:
        found = Study(options, content, extra)
    except (UserError, ValueError) as error:  # the latter of a command with half a pair of quotes
        raise UserError(f"{options.file}: {error}") from None
    found.search()
    return 0 if options.dry_run or found.confirm() else 1


def main():
    run.tool(study)


if __name__ == "__main__":
    main()
