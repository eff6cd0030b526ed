"""Trained agents as animations for the README: `make animations`.

Trains each with its config in benchmarks/, filming the greedy episode of the last evaluation,
unless runs/pictures/ holds such a run. A film becomes a GIF of 200 columns with a palette of its
own. Where a film cannot be drawn, the script that could not has said why.
"""

import os
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs" / "pictures"
ENVIRONMENTS = {"lunarlander": "LunarLander-v3", "halfcheetah": "HalfCheetah-v5"}
SECONDS = "7"  # then a cheetah's floor ends
FILTER = (
    "fps=12.5,scale=200:-1:flags=lanczos,split[a][b];"
    "[a]palettegen=max_colors=64:stats_mode=diff[palette];[b][palette]paletteuse=dither=none"
)


def film(config: str) -> Path | None:
    """The last film of a finished run; None where there is none."""
    films = RUNS.glob(f"{ENVIRONMENTS[config]}/ppo/*/videos/*.mp4")
    finished = [path for path in films if (path.parents[1] / "result.json").exists()]
    return max(finished, key=os.path.getmtime, default=None)


def train(config: str):
    command = [sys.executable, ROOT / "algos" / "ppo.py"]
    command += ["--config", ROOT / "benchmarks" / f"{config}.toml", "--torch-threads", "1"]
    subprocess.run([*command, "--capture-video", "--runs-dir", RUNS], check=True)


def main():
    for config in ENVIRONMENTS:
        if film(config) is None:
            train(config)
        if film(config) is None:
            sys.exit(f"no film of {config}")
        path = ROOT / "pictures" / f"{config}.gif"
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-i", film(config)]
        subprocess.run([*command, "-t", SECONDS, "-vf", FILTER, path], check=True)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
