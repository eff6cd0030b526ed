"""Draws what mistakes of bugs.toml do to a curve, beside the healthy script. `make bug-pictures`.

    python bugs/pictures.py               trains what curves/ lacks, and draws all of them
    python bugs/pictures.py NAME ...      trains these anew
    python bugs/pictures.py --draw        trains nothing

A mistake with a table [bug.picture] has a picture. curves/NAME.csv holds the points: of every seed
the mean over each of a few equal stretches of the run. What mistakes have in common, the healthy
curves of the same flags, is trained once in a call.
"""

import argparse
import contextlib
import csv
import hashlib
import multiprocessing
import os
import runpy
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from check import ROOT, SEEDS, broken, load

CURVES, PICTURES = ROOT / "bugs" / "curves", ROOT / "bugs" / "pictures"
STRETCHES = 25
LABELS = {
    "charts/episodic_return": "return in training",
    "eval/episodic_return": "return when evaluated",
    "losses/q_values": "mean of Q",
    "losses/qf1_values": "mean of Q",
}


def train(script: Path, flags: list[str], folder: Path):
    """Runs a script in this process, which is one of its own."""
    sys.path.insert(0, str(ROOT / "tests"))  # for environments:Name-v0
    os.chdir(folder)
    sys.argv = [str(script), *flags]
    with open("output", "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    with contextlib.suppress(SystemExit):  # a mistake may end its run early
        runpy.run_path(str(script), run_name="__main__")


def curve(folder: Path, tag: str, total: int) -> dict[int, float]:
    """The mean of a scalar over each stretch of the run, {last step: mean}."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    stretches = {}
    (path,) = folder.glob("runs/*/*/*/events.out.tfevents.*")
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == tag:
                number = -(-event.step * STRETCHES // total)  # the first ends at total / STRETCHES
                stretches.setdefault(number, []).append(value.tensor.float_val[0])
    return {total * k // STRETCHES: float(np.mean(v)) for k, v in sorted(stretches.items()) if k}


def train_all(bugs: list[dict]):
    """Five healthy and five broken runs for each bug, and its CSV as soon as it has them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.tensorboard", "gymnasium", "tyro", "tqdm"])
    fresh = set()  # CSVs whose healthy curves are of the scripts as they are
    # a process for each run, one at a time
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for bug in bugs:
            with tempfile.TemporaryDirectory() as folder:
                wrong = Path(folder) / bug["file"]
                wrong.write_text(broken(bug))
                right = ROOT / "algos" / bug["file"]
                healthy = healthy_curves(bug, fresh) or train_seeds(bug, right, folder, pool)
                curves = train_seeds(bug, wrong, folder, pool)
            write_points(bug, {"healthy": healthy, "broken": curves})
            fresh.add(csv_of(bug))
            print(bug["name"], flush=True)


def train_seeds(bug: dict, script: Path, folder: str, pool) -> dict:
    """{seed: curve} of five runs."""
    picture, curves = bug["picture"], {}
    for seed in SEEDS:
        flags = [*picture["flags"], "--seed", str(seed), "--torch-threads", "1"]
        run = Path(tempfile.mkdtemp(dir=folder))
        pool.submit(train, script, flags, run).result()
        curves[seed] = curve(run, picture["tag"], total(bug))
    return curves


def healthy_curves(bug: dict, fresh: set[Path]) -> dict | None:
    """Those that were just trained for another mistake."""
    for path in fresh:
        if points := read_points(path, first_row(bug)):
            return points["healthy"]


def total(bug: dict) -> int:
    flags = bug["picture"]["flags"]
    return int(flags[flags.index("--total-timesteps") + 1])


def first_row(bug: dict) -> str:
    """What a CSV was made with: another first row says that it is out of date."""
    return f"# {bug['file']} {' '.join(bug['picture']['flags'])}; {bug['picture']['tag']}"


def csv_of(bug: dict) -> Path:
    return CURVES / f"{bug['name']}.csv"


def write_points(bug: dict, points: dict):
    with open(csv_of(bug), "w", newline="") as file:
        file.write(first_row(bug) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kind", "seed", "step", "value"))
        for kind, curves in points.items():
            for seed, curve in curves.items():
                writer.writerows((kind, seed, k, f"{value:.4g}") for k, value in curve.items())


def read_points(path: Path, first_row: str) -> dict:
    """{kind: {seed: {step: value}}}; nothing if there is no file with this first row."""
    if not path.exists():
        return {}
    with open(path) as file:
        if file.readline().rstrip("\n") != first_row:
            return {}
        found = {"healthy": {}, "broken": {}}
        for row in csv.DictReader(file):
            curves = found[row["kind"]]
            curves.setdefault(int(row["seed"]), {})[int(row["step"])] = float(row["value"])
    return found


def digest(bug: dict) -> str:
    """Of the points and of how they are drawn, to be found in the picture."""
    points = csv_of(bug).read_bytes()
    return hashlib.sha256(points + bug["picture"].get("scale", "").encode()).hexdigest()


def draw(bug: dict):
    """The mean over the seeds, and from the lowest to the highest of them."""
    import matplotlib

    matplotlib.use("Agg")  # no screen is needed
    import matplotlib.pyplot as plt

    points = read_points(csv_of(bug), first_row(bug))
    figure, axis = plt.subplots(figsize=(5.4, 2.7))
    for (kind, seeds), color in zip(points.items(), ("C0", "C3"), strict=True):
        steps = sorted(set().union(*seeds.values()))
        # a stretch in which no episode ended has no point of its own
        values = [np.interp(steps, list(curve), list(curve.values())) for curve in seeds.values()]
        axis.plot(steps, np.mean(values, axis=0), color=color, label=kind)
        lowest, highest = np.min(values, axis=0), np.max(values, axis=0)
        axis.fill_between(steps, lowest, highest, color=color, alpha=0.2, linewidth=0)
    axis.set(xlabel="steps", ylabel=LABELS[bug["picture"]["tag"]])
    axis.set_yscale(bug["picture"].get("scale", "linear"))
    axis.set_title(bug["name"], fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.tight_layout()
    made_of = {"Description": digest(bug)}
    figure.savefig(PICTURES / f"{bug['name']}.png", dpi=90, metadata=made_of)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(usage="pictures.py [NAME ...] [--draw]")
    bugs = {bug["name"]: bug for bug in load()["bug"] if "picture" in bug}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(bugs))
    parser.add_argument("--draw", action="store_true", help="trains nothing")
    args = parser.parse_args()
    if unknown := set(args.names) - bugs.keys():
        parser.error(f"no bug with a picture: {', '.join(sorted(unknown))}")
    chosen = [bugs[name] for name in args.names or bugs]
    if not args.draw:
        old = [bug for bug in chosen if not read_points(csv_of(bug), first_row(bug))]
        train_all(chosen if args.names else old)
    for bug in chosen:
        draw(bug)


if __name__ == "__main__":
    main()
