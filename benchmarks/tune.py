"""Searches settings of a script: all points of a grid, or those that Optuna's TPE asks for.

    python benchmarks/tune.py FILE.toml                the grid of all lists in the file
    python benchmarks/tune.py FILE.toml --trials 40    40 points by TPE: pip install optuna==5.0.0
    python benchmarks/tune.py FILE.toml --dry-run      prints the commands, no more
    python benchmarks/tune.py FILE.toml -- --env-id Acrobot-v1    flags for the script

The file has the command of the default, as it is typed in the repository's root, and the ranges:

    command = "python algos/ppo.py --config lunarlander"
    [ranges]
    num_envs = [8, 16]                                         these values, of any type
    learning_rate = { low = 1e-4, high = 1e-2, log = true }    anything between, by TPE alone
    num_minibatches = "= num_envs * num_steps // 64"           tied to others by + - * / // ( )

A trial trains one point on a few seeds, the same for all, each by a plain command of the script.
Its score is the mean over seeds of the greedy return at the end. The best trial and the default are
then trained on fresh seeds, which choose nothing. runs/tune/FILE/ has the run folders, the table
study.md and the picture study.png. The same command goes on where it was stopped, and runs nothing
again that was finished. Exit status: 0 when the best trial was confirmed, 1 when there was nothing
to confirm or that failed, 2 for wrong input, 128 + n when stopped by signal n.
"""

import argparse
import ast
import hashlib
import itertools
import json
import math
import operator
import os
import re
import shlex
import signal
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import report
import run
from report import UserError

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
OPERATORS |= {ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv}


def calculate(text: str, value_of) -> float:
    """The value of an expression like "= num_envs * 2"; value_of(name) is that of a setting."""

    def value(node):
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name):
                if isinstance(number := value_of(name), int | float):
                    return number
                raise UserError(f'"{text}": {name} is {number}, not a number')
            case ast.UnaryOp(op=ast.USub()):
                return -value(node.operand)
            case ast.BinOp() if type(node.op) in OPERATORS:
                return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise UserError(f'"{text}" may hold names of settings, numbers, + - * / // and ( )')

    try:
        return value(ast.parse(text[1:].strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError) as error:
        raise UserError(f'"{text}": {error.args[0]}') from None


def with_ties(ranges: dict, chosen: dict, default: dict) -> dict:
    """The value of every setting in `ranges`: as chosen, or by its expression over others, which
    may be tied themselves. What is not in `ranges` is as in the default.
    """

    def value_of(name, above=()):
        if name in above:
            raise UserError(f"{name} is tied to itself")
        if name not in default:
            raise UserError(f'"{ranges[above[-1]]}": there is no setting {name}')
        if not isinstance(ranges.get(name), str):
            return chosen.get(name, default[name])
        value = calculate(ranges[name], lambda other: value_of(other, (*above, name)))
        whole = isinstance(default[name], int) and value == int(value)  # 2048 / 8 is a float
        return int(value) if whole else value

    return {name: value_of(name) for name in ranges}


def in_words(value) -> str:
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
            flags.append(f"--{flag}={value}")
    return flags


@dataclass
class Trial:
    name: str
    settings: dict  # those that are searched
    command: list[str]  # the script, then flags; no seed
    args: dict  # every argument of the script
    parent: Path  # of its run folders
    returns: dict = field(default_factory=dict)  # {seed: greedy return} of finished runs
    failure: str = ""

    def job(self, seed: int) -> run.Job:
        script, *flags = self.command
        table, args = self.parent.parts[-3], {**self.args, "seed": seed}
        return run.Job(table, script, [*flags, "--seed", str(seed)], args, self.parent)

    def missing(self, seeds) -> list[int]:
        """Those of the seeds whose runs are not finished; the returns of the others are read."""
        for seed in set(seeds) - self.returns.keys():
            folder, finished = run.run_folder(self.job(seed))
            if finished:
                result = json.loads((folder / "result.json").read_text())
                self.returns[seed] = result["eval_return_mean"]
        return [seed for seed in seeds if not math.isfinite(self.returns.get(seed, math.nan))]

    def of(self, seeds):  # -> returns, (seeds,)
        return np.array([self.returns[seed] for seed in seeds])

    def score(self, seeds) -> float:
        return -math.inf if self.missing(seeds) else self.of(seeds).mean()


class Study:
    """What is searched, and the trials so far, of which the default is the first."""

    def __init__(self, options, extra: list[str]):
        try:
            content = tomllib.loads(options.file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{options.file}: {error}") from None
        match [*shlex.split(str(content.get("command", ""))), *extra]:
            case ["python", path, *flags] if Path(path).stem in run.SCRIPTS:
                self.script, self.flags = Path(path).stem, ["--torch-threads", "1", *flags]
            case _:
                raise UserError(f'{options.file} needs a line command = "python algos/ppo.py"')
        for flag in self.flags:
            if re.match("--(seed|runs[-_]dir|resume|evaluate)(=|$)", flag):
                raise UserError(f"the command takes no {flag.split('=')[0]}: that is the study's")
        self.options, self.ranges = options, content.get("ranges")
        folder = options.runs_dir or run.ROOT / "runs" / "tune" / options.file.stem
        self.folder = folder.resolve()
        os.chdir(run.ROOT)  # where the commands are run, and what their paths are relative to
        self.seeds = range(options.first_seed, options.first_seed + options.seeds)
        self.fresh = range(self.seeds.stop, self.seeds.stop + options.fresh_seeds)
        self.args = run.script_args(self.script, self.flags)
        self.check()
        self.trials = []
        self.default = self.trial(None)

    def check(self):
        if not isinstance(self.ranges, dict) or not self.ranges:
            raise UserError(f"{self.options.file} needs a table [ranges]")
        for name, spec in self.ranges.items():
            if name not in self.args or name == "seed":
                raise UserError(f"{self.script} has no setting {name} to search")
            if isinstance(spec, dict):
                ends = [spec.get("low"), spec.get("high")]
                ordered = all(isinstance(x, int | float) for x in ends) and ends[0] < ends[1]
                wrong = not ordered or (spec.get("log") and ends[0] <= 0)
                if wrong or spec.keys() - {"low", "high", "log"}:
                    raise UserError(f"{name}: a range is {{ low = 1, high = 9, log = true }}")
                if not self.options.trials:
                    raise UserError(f"{name} is a range: give --trials N, or a list for a grid")
            elif not ((isinstance(spec, list) and spec) or str(spec).startswith("=")):
                raise UserError(f'{name} needs a list, a range or "= expression", not {spec!r}')

    def trial(self, chosen: dict | None) -> Trial:
        """The trial of a point, which may be an earlier one; None: the default."""
        settings = {} if chosen is None else with_ties(self.ranges, chosen, self.args)
        every = settings or {name: self.args[name] for name in self.ranges}
        for trial in self.trials:
            if trial.settings == every:
                return trial
        point = ",".join(f"{name}={in_words(value)}" for name, value in settings.items())
        table = f"{self.script}-{re.sub('[^A-Za-z0-9_.,=+-]', '-', point) or 'default'}"
        if len(table) > 200:  # a file system takes 255
            table = table[:180] + hashlib.sha256(point.encode()).hexdigest()[:20]
        name, runs_dir = str(len(self.trials)) if settings else "default", self.folder / table
        command = [self.script, *self.flags, *flags_of(settings), "--runs-dir", run.shown(runs_dir)]
        args = {**self.args, **settings}
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
        run.train(jobs, self.options.jobs, start)
        for trial in trials:
            for seed in trial.missing(seeds)[:1]:
                trial.failure = f"seed {seed}: {run.last_line(trial.job(seed).log)}"

    def search(self):
        """Trains the default and all trials."""
        if not self.options.trials:
            lists = {name: spec for name, spec in self.ranges.items() if isinstance(spec, list)}
            points = itertools.product(*lists.values())
            trials = [self.trial(dict(zip(lists, point, strict=True))) for point in points]
            return self.train([self.default, *trials], self.seeds)
        try:
            import optuna
        except ImportError:
            raise UserError("--trials needs Optuna: pip install optuna==5.0.0") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        how = {"seed": self.options.tpe_seed, "multivariate": True, "constant_liar": True}
        sampler = optuna.samplers.TPESampler(**how)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        # In batches, asked for and told in order: what is asked for then depends on nothing but
        # scores, not on which run ended first, and a study that is restarted asks for the same.
        for first in range(0, self.options.trials, self.options.batch):
            size = min(self.options.batch, self.options.trials - first)
            asked = [study.ask() for _ in range(size)]
            trials = [self.trial(self.suggested(ask)) for ask in asked]
            self.train(trials if first else [self.default, *trials], self.seeds)
            if self.options.dry_run:  # the rest depends on scores
                return
            for ask, trial in zip(asked, trials, strict=True):
                if trial.missing(self.seeds):
                    study.tell(ask, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(ask, trial.score(self.seeds))

    def suggested(self, ask) -> dict:
        """A value for every list and range, by Optuna."""
        chosen = {}
        for name, spec in self.ranges.items():
            if isinstance(spec, list):
                chosen[name] = spec[ask.suggest_categorical(name, range(len(spec)))]
            elif isinstance(spec, dict):
                low, high, log = spec["low"], spec["high"], spec.get("log", False)
                if type(low) is type(high) is int and type(self.args[name]) is not float:
                    chosen[name] = ask.suggest_int(name, low, high, log=log)
                else:  # four digits can be read
                    value = float(f"{ask.suggest_float(name, low, high, log=log):.4g}")
                    chosen[name] = min(max(value, low), high)
        return chosen

    def ranked(self) -> list[Trial]:
        """The best first, those without a score last; of equal ones the earliest first."""
        return sorted(self.trials, key=lambda trial: trial.score(self.seeds), reverse=True)

    def table(self, trials: list[Trial]) -> str:
        names, rows = ["trial", *self.ranges], []
        for seeds in (self.seeds, self.fresh):
            names += [f"seeds {seeds[0]} to {seeds[-1]}", "one by one"]
        for trial in trials:
            rows.append([trial.name, *map(in_words, trial.settings.values())])
            for seeds in (self.seeds, self.fresh):
                returns = [] if trial.missing(seeds) else trial.of(seeds)
                rows[-1].append(report.mean_and_std(returns) if len(returns) else "")
                rows[-1].append(", ".join(map(report.number, returns)))
            rows[-1][-1] += trial.failure
        return report.markdown(f"| {' | '.join(names)} |", rows)

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "study.md").write_text(self.table(self.ranked()) + "\n", "utf-8")

    def confirm(self) -> bool:
        """Trains the best trial and the default on fresh seeds, and says what came of it all."""
        best, default = self.ranked()[0], self.default
        chosen = [default, best] if best is not default else [best]
        self.train([trial for trial in chosen if not trial.missing(self.seeds)], self.fresh)
        self.write()
        shown = self.ranked()[:10]
        print(f"\n{self.table(shown if default in shown else [*shown, default])}\n")
        print(f"All {len(self.trials)}: {run.shown(self.folder / 'study.md')}")
        if best.missing(self.fresh):
            print(f"Nothing is confirmed: {best.failure}")
            return False
        if best is default:
            print("No trial has a better score than the default.")
        elif not default.missing(self.fresh):
            x, y = best.of(self.fresh), default.of(self.fresh)
            print(f"On fresh seeds: trial {best.name} {report.mean_and_std(x)}, default", end=" ")
            print(f"{report.mean_and_std(y)}; P(trial {best.name} > default)", end=" ")
            print(f"{report.improvement(x, y):.2f}")
        script, *flags = best.command[:-2]  # without --runs-dir
        print(f"The best: python {shlex.join([f'algos/{script}.py', *flags])}", flush=True)
        self.draw(best)
        return True

    def draw(self, best: Trial):
        """Scores in the order of the search and over each setting; the fresh seeds one by one."""
        plt = report.pyplot()
        scored = [trial for trial in self.trials if not trial.missing(self.seeds)]
        scores = np.array([trial.score(self.seeds) for trial in scored])
        colors = {id(self.default): "black", id(best): "C3"}
        panels = [name for name, spec in self.ranges.items() if not isinstance(spec, str)]
        columns = min(len(panels) + 2, 4)
        rows = math.ceil((len(panels) + 2) / columns)
        figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 3 * rows), squeeze=False)
        order, *others = axes.flat
        for axis in others[len(panels) + 1 :]:
            axis.remove()
        order.step(range(len(scored)), np.maximum.accumulate(scores), where="post", alpha=0.5)
        ends = np.array([(min(x), max(x)) for x in (trial.of(self.seeds) for trial in scored)])
        order.vlines(range(len(scored)), *ends.T, color="gray", alpha=0.4)  # worst to best seed
        order.xaxis.get_major_locator().set_params(integer=True)
        order.set_ylabel(f"mean of seeds {self.seeds[0]} to {self.seeds[-1]}")
        x_of = {"trial": range(len(scored))}
        for axis, name in zip(others, panels, strict=False):
            x_of[name] = [trial.settings[name] for trial in scored]
            if isinstance(spec := self.ranges[name], list):
                x_of[name] = [in_words(x) for x in x_of[name]]
                axis.plot([in_words(x) for x in spec], [math.nan] * len(spec))  # in this order
            elif spec.get("log"):
                axis.set_xscale("log")
        for axis, (name, x) in zip(axes.flat, x_of.items(), strict=False):
            axis.scatter(x, scores, c=[colors.get(id(trial), "C0") for trial in scored], s=18)
            axis.set_xlabel(name)
        fresh = others[len(panels)]
        for trial in {id(trial): trial for trial in (self.default, best)}.values():
            if not trial.missing(self.fresh):
                names = [trial.name] * len(self.fresh)
                fresh.scatter(names, trial.of(self.fresh), c=colors[id(trial)], s=18, alpha=0.6)
                fresh.scatter(names[:1], trial.of(self.fresh).mean(), c="gray", s=900, marker="_")
        fresh.margins(x=0.5)
        fresh.set_xlabel(f"fresh seeds {self.fresh[0]} to {self.fresh[-1]}")
        figure.suptitle("black: the default; red: the best trial", fontsize=10)
        figure.tight_layout()
        report.save(figure, self.folder / "study.png")


def parse_options(argv: list[str]):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="command and ranges: a TOML file")
    parser.add_argument("--trials", type=run.positive, help="by TPE; default: the whole grid")
    parser.add_argument("--seeds", type=run.positive, default=3, help="of a trial; at least 3")
    parser.add_argument("--first-seed", type=int, default=1, help="default 1")
    parser.add_argument(
        "--fresh-seeds", type=run.positive, default=5, help="those after them; default 5"
    )
    parser.add_argument("--jobs", type=run.positive, help="runs at a time; default: cores")
    parser.add_argument("--tpe-seed", type=int, default=1, help="of the search; default 1")
    parser.add_argument(
        "--batch", type=run.positive, default=4, help="trials that TPE asks for at once; default 4"
    )
    parser.add_argument("--runs-dir", type=Path, help="default: runs/tune/FILE")
    parser.add_argument("--dry-run", action="store_true", help="prints the commands, no more")
    options = parser.parse_args(argv)
    if options.seeds < 3:
        raise UserError("--seeds is at least 3: of fewer, the best is the luckiest")
    options.jobs = options.jobs or run.usable_cores()
    return options


def main():
    signal.signal(signal.SIGINT, run.stop)
    signal.signal(signal.SIGTERM, run.stop)
    argv = sys.argv[1:]
    end = argv.index("--") if "--" in argv else len(argv)
    try:
        study = Study(parse_options(argv[:end]), argv[end + 1 :])
        study.search()
        sys.exit(0 if study.options.dry_run or study.confirm() else 1)
    except UserError as error:
        print(f"tune.py: {error}", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        print(f"tune.py: no picture without {error.name}: pip install -r requirements-dev.txt")
        sys.exit(0)
    except KeyboardInterrupt as interrupt:
        print("tune.py: stopped; the same command goes on", file=sys.stderr)
        sys.exit(128 + interrupt.args[0])


if __name__ == "__main__":
    main()
