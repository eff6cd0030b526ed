"""Trains a script of algos/ healthy and with one mistake of bugs.toml, side by side.

    python bugs/run.py gae-across-episodes --seeds 3
    python bugs/run.py gae-across-episodes --seeds 3 -- --total-timesteps 20000 --gamma 0.99

Both get the same flags and seeds: those that bugs.toml has for the bug, then what follows `--`. The
runs lie in runs/bugs/NAME/healthy and .../broken, the broken script beside them.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from check import ROOT, broken, load


def train(script: Path, flags: list[str], folder: Path) -> list[float]:
    """Runs the script once; returns its `eval_return_mean`, or nothing if it failed."""
    command = [sys.executable, script, *flags, "--runs-dir", folder]
    # for environments:Name-v0, and for those of the user
    folders = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    before = set(folder.glob("*/*/*/result.json"))
    subprocess.run([str(word) for word in command], env=environment, check=False)
    results = set(folder.glob("*/*/*/result.json")) - before
    return [json.loads(path.read_text())["eval_return_mean"] for path in results]


def main():
    bugs = {bug["name"]: bug for bug in load()["bug"]}
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(usage="run.py NAME [--seeds N] [-- flags of the script]")
    parser.add_argument("name", choices=bugs, metavar="NAME", help=", ".join(bugs))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind, from seed 1")
    args = parser.parse_args(sys.argv[1:end])
    if args.seeds < 1:
        parser.error("--seeds must be at least 1")
    bug, folder = bugs[args.name], ROOT / "runs" / "bugs" / args.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / bug["file"]).write_text(broken(bug))
    except (ValueError, SyntaxError) as error:
        parser.error(str(error))
    scripts = {"healthy": ROOT / "algos" / bug["file"], "broken": folder / bug["file"]}
    returns = {"healthy": [], "broken": []}
    for seed in range(1, args.seeds + 1):
        for kind, script in scripts.items():
            print(f"\n{kind}, seed {seed}", flush=True)
            flags = [*bug["flags"], *sys.argv[end + 1 :], "--seed", seed]
            returns[kind] += train(script, flags, folder / kind)
    print()
    for kind, values in returns.items():
        print(f"{kind:<8} returns {', '.join(f'{value:.1f}' for value in values) or 'none'}")
    print(f"tensorboard --logdir {shlex.quote(str(folder))}")
    sys.exit(len(returns["healthy"]) < args.seeds)  # a broken run may fail


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
