"""Trained agents as animations for the README: `make animations`.

    python benchmarks/maintain/animations.py                       both of them, into pictures/
    python benchmarks/maintain/animations.py --only lunarlander    one of them
    python benchmarks/maintain/animations.py --seconds 6           cut after so long [s]

Trains each with its config in benchmarks/, filming the greedy episode of the last evaluation,
unless runs/pictures/ holds such a run. A film becomes a GIF of 200 columns with a palette of its
own. Where a film cannot be drawn, the script that could not has said why.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs" / "pictures"
ENVIRONMENTS = {"lunarlander": "LunarLander-v3", "halfcheetah": "HalfCheetah-v5"}
FPS = 12.5
FILTER = (
    f"fps={FPS},scale=200:-1:flags=lanczos,split[a][b];"
    "[a]palettegen=max_colors=64:stats_mode=diff[palette];[b][palette]paletteuse=dither=none"
)


def film(config: str) -> Path | None:
    """The film of a finished run, the newest if there are several; None where there is none."""
    for folder in sorted(RUNS.glob(f"{ENVIRONMENTS[config]}/ppo/*"), reverse=True):
        if (folder / "result.json").exists():
            steps = json.loads((folder / "result.json").read_text())["steps"]
            films = list((folder / "videos").glob(f"step-{steps}-*.mp4"))
            if films:
                return films[0]
    return None


def train(config: str):
    command = [sys.executable, ROOT / "algos" / "ppo.py"]
    command += ["--config", ROOT / "benchmarks" / f"{config}.toml", "--torch-threads", "1"]
    subprocess.run([*command, "--capture-video", "--runs-dir", RUNS], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", choices=ENVIRONMENTS)
    parser.add_argument("--folder", type=Path, default=ROOT / "pictures")
    parser.add_argument("--seconds", type=float, default=7.0)  # then a cheetah's floor ends
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    for config in [options.only] if options.only else ENVIRONMENTS:
        if film(config) is None:
            train(config)
        if film(config) is None:
            sys.exit(f"no film of {config}")
        path = options.folder / f"{config}.gif"
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-i", film(config)]
        command += ["-t", str(options.seconds), "-vf", FILTER, path]
        subprocess.run(command, check=True)
        size = path.stat().st_size
        assert size < 2_000_000, f"{path} has {size} bytes: cut it with --seconds"
        print(f"{path.name}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
