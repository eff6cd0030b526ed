"""Draws what a mistake does to a curve, for docs/when-it-does-not-learn.md. `make bug-pictures`.

    python benchmarks/maintain/mistakes.py            draws all, and trains what has no points yet
    python benchmarks/maintain/mistakes.py NAME ...   trains these anew

docs/pictures/NAME.csv belongs to the mistake of this name in tests/mutants/. Its first row says
what was trained, "# SCRIPT.py FLAGS; TAG"; a file that has nothing else is a picture to come. The
points are, for the script as it is and with the mistake, means over equal stretches of each run.
"""

import argparse
import csv
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
SEEDS = (1, 2, 3, 4, 5)
STRETCHES = 25
LABELS = {
    "charts/episodic_return": "return in training",
    "eval/episodic_return": "return when evaluated",
    "losses/q_values": "mean of Q",
}


def read(path: Path) -> tuple[str, list[str], str, dict]:
    """The script, its flags and the tag; and {kind: {seed: {step: value}}}."""
    with open(path) as file:
        command, tag = file.readline().strip("# \n").split("; ")
        points = {"healthy": {}, "broken": {}}
        for row in csv.DictReader(file):
            curve = points[row["kind"]].setdefault(int(row["seed"]), {})
            curve[int(row["step"])] = float(row["value"])
    script, *flags = command.split()
    return script, flags, tag, points


def train(path: Path):
    """Trains both scripts with each seed, and writes the points."""
    sys.path.insert(0, str(ROOT / "tests" / "mutants"))
    import check

    (mutant,) = (mutant for mutant in check.load() if mutant["name"] == path.stem)
    script, flags, tag, _ = read(path)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        wrong = Path(folder) / script
        wrong.write_text(check.broken(mutant))
        for kind, file in (("healthy", ROOT / "algos" / script), ("broken", wrong)):
            for seed in SEEDS:
                runs = Path(folder) / f"{kind}-{seed}"
                command = [sys.executable, file, *flags, "--seed", seed, "--torch-threads", 1]
                command = [str(word) for word in (*command, "--runs-dir", runs)]
                subprocess.run(command, check=kind == "healthy")  # a broken one may end early
                total = int(flags[flags.index("--total-timesteps") + 1])
                rows += ((kind, seed, *point) for point in curve(runs, tag, total).items())
    with open(path, "w", newline="") as file:
        file.write(f"# {' '.join((script, *flags))}; {tag}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kind", "seed", "step", "value"))
        writer.writerows((*row[:3], f"{row[3]:.4g}") for row in rows)


def curve(runs: Path, tag: str, total: int) -> dict[int, float]:
    """The mean of a scalar over each stretch of the run, {last step: mean}."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    stretches = {}
    (path,) = runs.glob("*/*/*/events.out.tfevents.*")
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == tag:
                number = -(-event.step * STRETCHES // total)  # the first ends at total / STRETCHES
                stretches.setdefault(number, []).append(value.tensor.float_val[0])
    return {total * k // STRETCHES: float(np.mean(v)) for k, v in sorted(stretches.items()) if k}


def draw(path: Path):
    """The mean over the seeds, and from the lowest to the highest of them."""
    import matplotlib

    matplotlib.use("Agg")  # no screen is needed
    import matplotlib.pyplot as plt

    _, _, tag, points = read(path)
    figure, axis = plt.subplots(figsize=(5.4, 2.7))
    for (kind, seeds), color in zip(points.items(), ("C0", "C3"), strict=True):
        steps = sorted(set().union(*seeds.values()))
        # a stretch in which no episode ended has no point of its own
        values = [np.interp(steps, list(curve), list(curve.values())) for curve in seeds.values()]
        axis.plot(steps, np.mean(values, axis=0), color=color, label=kind)
        lowest, highest = np.min(values, axis=0), np.max(values, axis=0)
        axis.fill_between(steps, lowest, highest, color=color, alpha=0.2, linewidth=0)
    axis.set(xlabel="steps", ylabel=LABELS.get(tag, tag))
    axis.set_title(path.stem, fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.tight_layout()
    made_of = {"Description": digest(path)}
    figure.savefig(path.with_suffix(".png"), dpi=90, metadata=made_of)
    plt.close(figure)


def digest(path: Path) -> str:
    """Of the points, to be found in the picture that is drawn of them."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a mistake with a CSV")
    names, paths = parser.parse_args().names, sorted(PICTURES.glob("*.csv"))
    if unknown := set(names) - {path.stem for path in paths}:
        parser.error(f"no such CSV in docs/pictures/: {', '.join(sorted(unknown))}")
    for path in paths:
        if path.stem in names or not read(path)[-1]["healthy"]:
            train(path)
        draw(path)


if __name__ == "__main__":
    main()
