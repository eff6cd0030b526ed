"""Compares run folders, CleanRL's too: which arguments and scripts differ, what looks wrong in the
curves, and where each run lies among the seeds in benchmarks/results/.

    python benchmarks/compare.py RUN RUN                   and compare.png beside the first of them
    python benchmarks/compare.py RUN --picture mine.png    elsewhere

Nothing that a folder names is executed. Exit status: 0, or 2 for wrong input.
"""

import contextlib
import itertools
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import report
from matplotlib.figure import Figure
from report import Cell, UserError, number

FIRST_EPISODES = 20  # above whose mean return the last ones should be


@dataclass
class AnyRun:
    """A run folder of ours, or one of CleanRL's."""

    folder: Path
    algo: str
    args: dict
    scalars: dict
    points: list  # of training_episodes
    finished: bool = False  # for all that one can see
    versions: dict = field(default_factory=dict)  # of packages and of the script; not of CleanRL's
    command: str = ""
    resumed: list = field(default_factory=list)  # (step, versions), each time

    @property
    def env_id(self) -> str:
        return self.args.get("env_id", "?")

    @property
    def text(self) -> dict:
        """Arguments and versions as text, as far as it can be read beside others."""
        versions = {name: str(value)[:12] for name, value in self.versions.items()}
        return {name: str(value) for name, value in (self.args | versions).items()}


def has_its_last_evaluation(folder: Path, scalars: dict) -> bool:
    """Whether a run of ours is finished, and its curves go to its end."""
    try:
        steps = report.read_json(folder / "result.json")["steps"]
        return steps in dict(scalars.get("eval/episodic_return", ()))
    except report.UNREADABLE:
        return False


def read_any_run(folder: Path) -> AnyRun:
    ours = (folder / "args.json").exists()
    try:
        scalars, texts = report.read_events(folder)
        if not any(scalars.values()):
            raise UserError(f"{folder} has no curves")
        points = report.training_episodes(scalars, one_a_point=not ours)
    except report.UNREADABLE as error:
        raise UserError(f"the curves of {folder} cannot be read: {error!r}") from None
    if ours:
        finished = has_its_last_evaluation(folder, scalars)
        try:
            saved = report.read_json(folder / "args.json")
            run = AnyRun(folder, str(saved["algo"]), dict(saved["args"]), scalars, points, finished)
            run.versions = dict(saved.get("versions", {}))
            run.command = str(saved.get("command", ""))
            run.resumed = [(int(x["step"]), dict(x["versions"])) for x in saved.get("resumed", [])]
        except report.UNREADABLE as error:
            raise UserError(f"{folder}/args.json cannot be read: {error!r}") from None
    elif "hyperparameters/text_summary" not in texts:
        raise UserError(f"{folder} is a run neither of ours nor of CleanRL's")
    else:  # CleanRL's arguments are a table in a text: |name|value|
        lines = texts["hyperparameters/text_summary"].splitlines()[2:]
        # an argument of several lines has no row of its own
        args = dict(line[1:-1].split("|", 1) for line in lines if line.count("|") > 2)
        last = max(step for curve in scalars.values() for step, _ in curve)
        scalars.pop("eval/episodic_return", None)  # single episodes, counted from 0, with epsilon
        run = AnyRun(folder, args.get("exp_name", folder.name), args, scalars, points)
    try:
        for name in ("total_timesteps", "num_envs", "gamma"):
            float(run.args.get(name, 1))
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{folder} has no number as {name}: {error}") from None
    if not ours:  # its last episode ends a little before the budget does
        run.finished = last >= 0.95 * float(args.get("total_timesteps", 0))
    return run


# Beside other runs --------------------------------------------------------------------------------


def print_differences(runs: list[AnyRun]):
    """What differs in arguments and versions, a run in each column, and whose script does."""
    columns = {f"run {i}": run.text for i, run in enumerate(runs, 1)}
    table = pd.DataFrame(columns).drop("runs_dir", errors="ignore").sort_index().fillna("-")
    table = table[table.nunique(axis="columns") > 1]
    print(report.printable(table.to_string()) if len(table) else "No argument differs.")
    for (k, first), (i, run) in itertools.combinations(enumerate(runs, 1), 2):
        script, other = (x.versions.get("script") for x in (run, first))
        if run.algo == first.algo and script and other and script != other:
            known = report.same_numbers({"script": script, "command": run.command}, other)
            text = "which trains the same weights" if known else "which may be why they differ"
            script = report.printable(f"{run.algo}.py")
            print(f"Run {i} is of another version of {script} than run {k}, {text}.")
    print()


def resumed_otherwise(run: AnyRun) -> list[str]:
    """A sentence for each time that a run was resumed with another script or package."""
    before = run.versions
    lines = []
    for step, versions in run.resumed:
        names = [name for name in before if versions.get(name, before[name]) != before[name]]
        pairs = [(name, str(versions[name])[:12], str(before[name])[:12]) for name in names]
        changed = "; ".join(f"{name} {now}, not {earlier}" for name, now, earlier in pairs)
        if changed:
            lines.append(f"resumed at step {step:,} with {changed}")
        before = before | versions
    return lines


def place(value: float, cell: Cell, protocol: str) -> str:
    """Where a value lies among the seeds of a cell. One more seed is as likely in any place."""
    value = float(f"{value:.6g}")  # as in the CSV
    seeds = cell.values(protocol)
    low, high, n = seeds.min(), seeds.max(), len(seeds)
    counts = {"lower": seeds < value, "higher": seeds > value, "equal": seeds == value}
    text = ", ".join(f"{which.sum()} {word}" for word, which in counts.items() if which.any())
    if not low <= value <= high:
        text = f"it lies outside of them, as {2 / (n + 1):.0%} of all runs do by chance"
    among = f"{report.count_seeds(n)} of [{cell.table}] reached {number(low)} to {number(high)}"
    return f"{protocol} return {number(value)}: {among}; {text}"


def along(run: AnyRun, cell: Cell) -> list[str]:
    """Where a run's training curve lies among those of a cell's seeds, at each hundredth of
    training in which all have a return: a sentence; none for fewer than three seeds.
    """
    steps, seeds = cell.curve("training")  # (steps,), (seeds, steps)
    own = report.windows(run.points, cell.about["steps"]) if run.points else {}
    shared = np.array([step in own for step in steps], np.bool_)
    n = len(seeds)
    if n < report.MIN_SEEDS or not shared.any():
        return []
    steps, seeds = steps[shared], seeds[:, shared]
    values = np.array([float(f"{own[step]:.6g}") for step in steps])  # as in the CSV
    sides = {"below": values < seeds.min(axis=0), "above": values > seeds.max(axis=0)}
    parts = [f"among them at {1 - sum(sides.values()).mean():.0%} of {len(steps)} points"]
    for side, outside in sides.items():
        if outside.any():
            first, last = steps[outside][[0, -1]]
            where = f"steps {first:,} to {last:,}" if last > first else f"step {first:,}"
            parts.append(f"{side} them at {outside.mean():.0%} ({where})")
    by_chance = f"by chance one more seed is outside at {2 / (n + 1):.0%}"
    return [f"training curve beside {n} seeds of [{cell.table}]: {', '.join(parts)}; {by_chance}"]


def other_settings(run: AnyRun, cell: Cell) -> str:
    """The arguments in which a run differs from the runs of a cell, of those that both have."""
    free = {"env_id", "seed", "runs_dir", "device", "torch_threads", "eval_frequency"}
    free |= {"log_frequency", "capture_video", "async_envs", "algo"}

    def same(a: str, b: str) -> bool:
        with contextlib.suppress(ValueError):
            return float(a) == float(b)
        return a == b

    here = run.text
    there = {name: str(value) for name, value in cell.about["args"].items()}
    names = sorted((there.keys() & here.keys()) - free)
    different = [name for name in names if not same(here[name], there[name])]
    return ", ".join(f"{name} {here[name]}, not {there[name]}" for name in different)


def beside_seeds(run: AnyRun, cells: list[Cell]) -> list[str]:
    """Where a run lies among the seeds of each cell with its settings, a sentence each."""
    # CleanRL's ppo_continuous_action is a ppo as well
    algo = run.algo if run.versions else run.algo.split("_")[0]
    here = [c for c in cells if c.env_id == run.env_id and c.about["algo"] == algo]
    if not here:
        return [f"benchmarks/results/ has no seeds of {run.algo} on {run.env_id}"]
    if not run.finished:
        return ["not finished, so not compared with the seeds in benchmarks/results/"]
    greedy = run.scalars.get("eval/episodic_return") or [(0, math.nan)]
    ends = {"training": report.last_episodes(run.points), "greedy": greedy[-1][1]}
    lines = []
    others = []
    for cell in here:
        if settings := other_settings(run, cell):
            others.append(f"not compared with [{cell.table}], which has other settings: {settings}")
            continue
        known = {k: v for k, v in ends.items() if np.isfinite([v, *cell.values(k)]).all()}
        lines += [place(value, cell, protocol) for protocol, value in known.items()]
        lines += along(run, cell)
    return lines or others


# The health of curves -----------------------------------------------------------------------------


def least_entropy(run: AnyRun) -> float:
    """Entropy [nats] below which a policy explores no more: a hundredth of the uniform one's, or of
    continuous actions that of a standard deviation of 0.01, where 1 is half a dimension's range.
    """
    arrays = {}
    if (path := run.folder / "weights.npz").exists():
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file}
        except (*report.UNREADABLE, BadZipFile) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
    if "log_std" in arrays:
        return arrays["log_std"].size * (math.log(0.01) + 0.5 * math.log(2 * math.pi * math.e))
    if "continuous" in run.algo:  # CleanRL's, which does not tell the number of dimensions
        return -math.inf
    outputs = [array.size for name, array in arrays.items() if re.match(r"actor\..*bias", name)]
    entropies = [value for _, value in run.scalars.get("losses/entropy", [])]
    return 0.01 * (math.log(max(outputs[-1], 1)) if outputs else max(entropies, default=0.0))


def not_risen(run: AnyRun) -> list[str]:
    """A sentence if, at half of the budget or later, the return is not above that of the run's own
    first episodes, by more than two standard errors.
    """
    total = float(run.args.get("total_timesteps", math.inf))
    if not run.points or run.points[-1][0] < total / 2:
        return []
    if sum(count for *_, count in run.points) < report.EPISODES + FIRST_EPISODES:
        return []  # the first episodes are among the last
    first = report.last_episodes(run.points[::-1], FIRST_EPISODES)
    last = report.last_episodes(run.points)
    _, values, counts = np.array(run.points[len(run.points) // 2 :], float).T
    variance = np.mean(counts * (values - np.average(values, weights=counts)) ** 2)
    if last > first + 2 * math.sqrt(variance * (1 / FIRST_EPISODES + 1 / report.EPISODES)):
        return []
    beside = f"that of its first {FIRST_EPISODES} episodes, {number(first)}"
    return [f"its return, {number(last)}, has not risen above {beside}"]


def health(scalars: dict, args: dict, floor: float) -> list[str]:
    """What looked wrong at every point of the curves for a tenth of the run, and for 2,000 steps of
    each environment, and what is not finite: a sentence for each symptom, none for a healthy run.

    scalars {tag: [(step, value)]}; args: as text; floor: see least_entropy.
    """
    points = defaultdict(dict)
    for tag, curve in scalars.items():
        for step, value in curve:
            points[step][tag] = value
    total = float(args.get("total_timesteps", max(points)))
    num_envs = float(args.get("num_envs", 1))
    gamma = float(args.get("gamma", 1))
    clipped = args.get("clip_reward") == "True"
    now = {}
    worth = 0.0
    since = {}
    said = {}
    for step in sorted(points):
        now |= points[step]
        for tag, value in points[step].items():
            # CleanRL's explained variance of returns that are all alike is NaN
            if not math.isfinite(value) and tag != "losses/explained_variance":
                said.setdefault("finite", f"from step {step:,} on {tag} is not finite")
        if points[step].get("charts/episodic_length") and gamma < 1:
            mean_reward = abs(now.get("charts/episodic_return", 0) / now["charts/episodic_length"])
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
            if step - since[name] >= max(total / 10, 2_000 * num_envs) and name not in said:
                said[name] = f"from step {since[name]:,} on {found[name]}"
    return list(said.values())


def symptoms(now: dict, worth: float, scale: float, floor: float) -> dict:
    """What looks wrong at a point of the curves: sentences by name.

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
            f"{compared}: its errors feed its targets; try a smaller --tau or --learning-rate"
        )
    if now.get("losses/q_spread", math.inf) < 1e-4 * abs(q):
        found["network"] = (
            f"Q is {q:.3g} whatever the state: the network's units are 0 for every input; try a"
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
    runs = [read_any_run(folder) for folder in folders]
    cells = report.read_cells(report.RESULTS) + report.read_cells(report.RESULTS / "variants")
    if len(runs) > 1:
        print_differences(runs)
    for i, run in enumerate(runs, 1):
        print(f"Run {i}: {run.folder}")
        found = health(run.scalars, run.text, least_entropy(run))
        found += not_risen(run)
        found = found or ["its curves look healthy"]
        for sentence in found + resumed_otherwise(run) + beside_seeds(run, cells):
            print(f"  {sentence}")
    figure = Figure(figsize=(8, 5))
    axis = figure.subplots()
    for i, run in enumerate(runs):
        steps, returns, _ = zip(*run.points, strict=True) if run.points else ((), (), ())
        axis.plot(steps, returns, color=f"C{i}", linewidth=1, label=f"{i + 1}: {run.folder}")
        if greedy := run.scalars.get("eval/episodic_return"):
            axis.plot(*zip(*greedy, strict=True), color=f"C{i}", marker="o", linestyle="")
    axis.set(xlabel="steps", ylabel="return", title="lines: training episodes; dots: greedy")
    axis.legend(fontsize=7)
    figure.tight_layout()
    report.save(figure, picture)


def main():
    parser = report.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("--picture", type=Path, help="default: compare.png beside the first run")
    options = parser.parse_args()
    beside = options.runs[0].resolve().with_name("compare.png")
    with report.errors_in_a_line():
        compare(options.runs, options.picture or beside)


if __name__ == "__main__":
    main()
