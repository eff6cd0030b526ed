"""Trained agents as animations for the README: `make animations`.

Each plays its greedy episodes, of which one is filmed. The film becomes a GIF of 200 columns with a
palette of its own. Where it cannot be drawn, the script has said why.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg

ROOT = Path(__file__).resolve().parents[2]
AGENTS = {"lunarlander": "LunarLander-v3-ppo", "halfcheetah": "HalfCheetah-v5-ppo"}
SECONDS = "7"  # then a cheetah's floor ends
FILTER = (
    "fps=12.5,scale=200:-1:flags=lanczos,split[a][b];"
    "[a]palettegen=max_colors=64:stats_mode=diff[palette];[b][palette]paletteuse=dither=none"
)


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()  # --help alone
    for name, agent in AGENTS.items():
        folder = ROOT / "trained" / agent
        command = [sys.executable, ROOT / "algos" / "ppo.py", "--evaluate", folder]
        subprocess.run([*command, "--capture-video"], check=True)
        film = max(folder.glob("videos/*.mp4"), key=os.path.getmtime)
        path = ROOT / "pictures" / f"{name}.gif"
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error", "-i", film]
        subprocess.run([*command, "-t", SECONDS, "-vf", FILTER, path], check=True)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
