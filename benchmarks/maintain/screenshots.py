"""TensorBoard in a real browser, with a run beside our seeds: `make screenshots`.

    python benchmarks/maintain/screenshots.py    pictures/reference.png

Trains into runs/beside-reference/, unless that has the run from the last time. Look at the picture
before you commit it: nothing tests what a headless Chromium saw.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "pictures" / "reference.png"
RUNS = ROOT / "runs" / "beside-reference"
REFERENCE = "lunarlander:ppo"  # beside a run of the same table
PAGE = "?darkMode=false&smoothing=0&tagFilter=episodic_return#timeseries"
# without WebGL the page draws its curves itself, so none is missing when its clock, which waits
# for nothing but the server, comes to 60 seconds
BROWSER = "--headless --no-sandbox --disable-gpu --disable-3d-apis --hide-scrollbars".split()
BROWSER += ["--window-size=1400,520", "--virtual-time-budget=60000"]


def photograph(chromium: str, runs_dir: Path, picture: Path):
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", runs_dir]
    command += ["--port", "0", "--load_fast", "false"]  # port 0: any that is free
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "tensorboard.log"
        with open(log, "w") as file, subprocess.Popen(command, stderr=file) as server:
            try:
                while not (found := re.search(r"at (http://\S+)", log.read_text())):
                    assert server.poll() is None, log.read_text()
                    time.sleep(0.1)
                time.sleep(20)  # it reads in the background
                flags = [f"--user-data-dir={folder}/profile", f"--screenshot={picture}"]
                subprocess.run([chromium, *BROWSER, *flags, found[1] + PAGE], check=True)
            finally:
                server.kill()


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()  # --help alone
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no chromium here (apt-get install chromium)")
    if not list(RUNS.glob("*/ppo/*/result.json")):
        command = [sys.executable, ROOT / "algos" / "ppo.py", "--config", REFERENCE]
        command += ["--eval-frequency", "50000", "--runs-dir", RUNS]
        subprocess.run(command, check=True)
    command = [sys.executable, ROOT / "benchmarks" / "reference.py", REFERENCE, "--runs-dir", RUNS]
    subprocess.run(command, check=True)
    photograph(chromium, RUNS, PICTURE)


if __name__ == "__main__":
    main()
