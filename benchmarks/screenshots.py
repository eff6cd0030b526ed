"""TensorBoard in a real browser, over short runs of all four scripts: `make screenshots`.

    python benchmarks/screenshots.py                  pictures/scalars.png, pictures/hparams.png
    python benchmarks/screenshots.py --folder OTHER   into another folder
    python benchmarks/screenshots.py --short          after a thousand steps, to test this file

Trains into a temporary folder, opens the pages in a headless Chromium, asserts that the page of the
curves shows every run and the tags, and writes what is seen. The HParams page keeps its table from
the page's text; tests/test_tensorboard.py asks for it over HTTP. Without Chromium it says so and
ends with exit status 0.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEEDS = (1, 2)
CARTPOLE = "--torch-threads 1 --eval-frequency 2000 --log-frequency 1000"
RUNS = {  # script: flags, and those of a short run
    "ppo": (f"--total-timesteps 30720 {CARTPOLE}", "--total-timesteps 2048"),
    "a2c": (f"--total-timesteps 30000 {CARTPOLE}", "--total-timesteps 2000"),
    "dqn": (f"--total-timesteps 20000 {CARTPOLE}", "--total-timesteps 2000"),
    "td3": (
        "--env-id Pendulum-v1 --total-timesteps 5000 --learning-starts 500 --learning-rate 1e-3 "
        "--hidden-sizes 64 64 --batch-size 128 --torch-threads 1 --eval-frequency 500",
        "--total-timesteps 1000",
    ),
}
PAGES = {  # picture: the page, the window, and the tags that its text must have, with all runs
    "scalars.png": (
        "?darkMode=false&smoothing=0&tagFilter=episodic_return%7Centropy%7Cq_values#timeseries",
        "1400,900",
        "charts/episodic_return eval/episodic_return losses/entropy losses/q_values".split(),
    ),
    "hparams.png": ("?darkMode=false#hparams", "1400,600", []),
}


def train(name: str, seed: int, runs_dir: Path, short: bool):
    flags, fewer = RUNS[name]
    command = [sys.executable, ROOT / "algos" / f"{name}.py", *flags.split(), "--seed", str(seed)]
    command += [*(fewer.split() if short else ()), "--runs-dir", runs_dir]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def tensorboard(runs_dir: Path):
    """The address of a TensorBoard that has read the runs."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", runs_dir]
    command += ["--port", "0", "--load_fast", "false"]  # port 0: any that is free
    log = runs_dir / "tensorboard.log"
    with open(log, "w") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            while not (found := re.search(r"at (http://\S+)", log.read_text())):
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            time.sleep(5)  # it reads in the background
            yield found[1]
        finally:
            process.kill()


def browse(chromium: str, address: str, window: str, picture: Path) -> str:
    """Writes the picture of a page once it is drawn; returns its DOM."""
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--force-prefers-reduced-motion", f"--window-size={window}"]
    command += ["--virtual-time-budget=30000"]  # the page draws long after it was loaded
    with tempfile.TemporaryDirectory() as profile:
        command.append(f"--user-data-dir={profile}")
        kept = dict(capture_output=True, text=True, check=True, timeout=300)
        subprocess.run([*command, f"--screenshot={picture}", address], **kept)
        return subprocess.run([*command, "--dump-dom", address], **kept).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "pictures")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no screenshots: there is no chromium here (apt-get install chromium)")
        return
    options.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runs_dir, jobs = Path(folder), [(name, seed) for name in RUNS for seed in SEEDS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: train(*job, runs_dir, options.short), jobs))
        names = [str(path.relative_to(runs_dir)) for path in runs_dir.glob("*/*/*-*")]
        assert len(names) == len(jobs), names
        with tensorboard(runs_dir) as address:
            for picture, (page, window, shown) in PAGES.items():
                path = options.folder / picture
                dom = browse(chromium, address + page, window, path)
                for text in shown and [*shown, *names]:
                    assert text in dom, f"{text} is not on {page}"
                size = path.stat().st_size
                assert 20_000 < size < 300_000, f"{path} has {size} bytes"
                print(f"{path}: {size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
