"""Trains a script of algos/ healthy and with one mistake of bugs.toml, side by side.

    python bugs/run.py gae-across-episodes --seeds 3
    python bugs/run.py gae-across-episodes --seeds 3 -- --total-timesteps 20000 --gamma 0.99

Both get the same flags and seeds: those that bugs.toml has for the bug, then what follows `--`. The
runs lie in runs/bugs/NAME/healthy and .../broken, the broken script beside them.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from check import ROOT, broken, load


def train(script: Path, flags: list[str], folder: Path) -> list[float]:
    """Runs the script; returns `eval_return_mean` of all its runs in `folder`."""
    command = [sys.executable, script, *flags, "--runs-dir", folder]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}  # for environments:Name-v0
    subprocess.run([str(word) for word in command], env=environment, check=False)
    results = sorted(folder.glob("*/*/*/result.json"))
    return [json.loads(path.read_text())["eval_return_mean"] for path in results]


def main():
    bugs = {bug["name"]: bug for bug in load()["bug"]}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=bugs, metavar="NAME", help=", ".join(bugs))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind, from seed 1")
    parser.add_argument("flags", nargs="*", help="flags of the script, behind --")
    args = parser.parse_args()
    bug, folder = bugs[args.name], ROOT / "runs" / "bugs" / args.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / bug["file"]).write_text(broken(bug))
    scripts = {"healthy": ROOT / "algos" / bug["file"], "broken": folder / bug["file"]}
    returns = {}
    for seed in range(1, args.seeds + 1):
        for kind, script in scripts.items():
            flags = [*bug["flags"], *args.flags, "--seed", seed]
            returns[kind] = train(script, flags, folder / kind)
    print()
    for kind, values in returns.items():
        mean = f"{np.mean(values):.1f}" if values else "none"
        print(f"{kind:<8} return {mean} over {len(values)} runs: {[round(v, 1) for v in values]}")
    print(f"tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
