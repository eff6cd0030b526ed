"""Draws what a mistake does to a curve, for docs/when-it-does-not-learn.md. `make bug-pictures`.

    python benchmarks/maintain/mistakes.py            draws all, and trains what has no points yet
    python benchmarks/maintain/mistakes.py NAME ...   trains these anew

docs/pictures/NAME.csv belongs to the mistake of this name in tests/mutants/. Its first row says
what was trained, "# SCRIPT.py FLAGS; TAG"; a file that has nothing else is a picture to come. The
points are, for the script as it is and with the mistake, means over equal stretches of each run.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "mutants")]
import check  # noqa: E402
import report  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
SEEDS = (1, 2, 3, 4, 5)
STRETCHES = 25
COLUMNS = ["kind", "seed", "step", "value"]
LABELS = {
    "charts/episodic_return": "return in training",
    "eval/episodic_return": "return when evaluated",
    "losses/q_values": "mean of Q",
}


def read(path: Path) -> tuple[str, list[str], str, pd.DataFrame]:
    """The script, its flags, the tag and the points."""
    with open(path) as file:
        command, tag = file.readline().strip("# \n").split("; ")
    script, *flags = command.split()
    return script, flags, tag, pd.read_csv(path, names=COLUMNS, skiprows=2)


def train(path: Path):
    """Trains both scripts with each seed, and writes the points."""
    (mutant,) = (mutant for mutant in check.load() if mutant["name"] == path.stem)
    script, flags, tag, _ = read(path)
    total = int(flags[flags.index("--total-timesteps") + 1])
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
                rows += ((kind, seed, *point) for point in curve(runs, tag, total).items())
    text = pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False, float_format="%.4g")
    path.write_text(f"# {' '.join((script, *flags))}; {tag}\n{text}")


def curve(runs: Path, tag: str, total: int) -> dict[int, float]:
    """The mean of a scalar over each stretch of the run, {last step: mean}."""
    (path,) = runs.glob("*/*/*/events.out.tfevents.*")
    points = [(*point, 1.0) for point in report.read_events(path.parent)[0][tag] if point[0]]
    return report.windows(points, total, STRETCHES)


def draw(path: Path):
    """The mean over the seeds, and from the lowest to the highest of them."""
    _, _, tag, points = read(path)
    figure = Figure(figsize=(5.4, 2.7))
    axis = figure.subplots()
    for kind, color in (("healthy", "C0"), ("broken", "C3")):
        curves = points.query("kind == @kind").pivot(index="step", columns="seed", values="value")
        # a stretch in which no episode ended has no point of its own
        curves = curves.interpolate("index", limit_direction="both")
        axis.plot(curves.mean(axis=1), color=color, label=kind)
        ends = curves.min(axis=1), curves.max(axis=1)
        axis.fill_between(curves.index, *ends, color=color, alpha=0.2, linewidth=0)
    axis.set(xlabel="steps", ylabel=LABELS.get(tag, tag))
    axis.set_title(path.stem, fontsize=10)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=90, metadata={"Description": digest(path)})


def digest(path: Path) -> str:
    """Of the points, to be found in the picture that is drawn of them."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a mistake with a CSV")
    names = parser.parse_args().names
    paths = sorted(PICTURES.glob("*.csv"))
    if unknown := set(names) - {path.stem for path in paths}:
        parser.error(f"no such CSV in docs/pictures/: {', '.join(sorted(unknown))}")
    for path in paths:
        if path.stem in names or read(path)[-1].empty:
            train(path)
        draw(path)


if __name__ == "__main__":
    main()
