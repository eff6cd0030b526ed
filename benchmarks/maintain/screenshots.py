"""TensorBoard in a real browser, over short runs of all four scripts: `make screenshots`.

    python benchmarks/maintain/screenshots.py    scalars.png, hparams.png and reference.png
    python benchmarks/maintain/screenshots.py --folder OTHER    elsewhere than in pictures/
    python benchmarks/maintain/screenshots.py --short    after a thousand steps, to test this file

Trains into runs/screenshots/, and a run beside our seeds into runs/beside-reference/, unless these
have the runs from the last time. Opens the pages in a headless Chromium, waits until each shows
every run and what else it should, and writes what is seen. Without Chromium it says so and ends
with exit status 0.
"""

import argparse
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (1, 2)
CARTPOLE = "--torch-threads 1 --eval-frequency 2000 --log-frequency 1000"
RUNS = {  # script: flags, and those of a short run
    "ppo": (f"--total-timesteps 30720 {CARTPOLE}", "--total-timesteps 2048"),
    "a2c": (f"--total-timesteps 60000 {CARTPOLE}", "--total-timesteps 2000"),
    "dqn": (f"--total-timesteps 15000 {CARTPOLE}", "--total-timesteps 2000"),
    "td3": (
        "--env-id Pendulum-v1 --total-timesteps 5000 --learning-starts 500 --learning-rate 1e-3 "
        "--hidden-sizes 64 64 --batch-size 128 --torch-threads 1 --eval-frequency 500",
        "--total-timesteps 1000",
    ),
}
REFERENCE = "lunarlander:ppo"  # beside a run of the same table
REFERENCE_PAGE = {
    "reference.png": (
        "?darkMode=false&smoothing=0&tagFilter=episodic_return#timeseries",
        520,
        ["charts/episodic_return", "eval/episodic_return"],
    ),
}
PAGES = {  # picture: the page, its height in pixels, and what it must show besides all runs
    "scalars.png": (
        "?darkMode=false&smoothing=0&tagFilter=episodic_return%7Centropy%7Cq_values#timeseries",
        900,
        "charts/episodic_return eval/episodic_return losses/entropy losses/q_values".split(),
    ),
    "hparams.png": (
        "?darkMode=false#hparams",
        600,
        "algo env_id learning_rate seed tau n_atoms eval/episodic_return".split(),
    ),
}
WIDTH = 1400
# what of a list a page does not say, its components' inner pages (shadow roots) included; joined
# without a space, since TensorBoard cuts a long tag in two
MISSING = """(function (wanted) {
    function text(node) {
        if (node.nodeType == Node.TEXT_NODE) return node.data
        if (["SCRIPT", "STYLE", "TEMPLATE", "svg"].includes(node.nodeName)) return ""
        return [...node.childNodes, ...(node.shadowRoot?.childNodes ?? [])].map(text).join("")
    }
    const all = text(document.body)
    return wanted.filter(word => !all.includes(word))
})"""


def train(name: str, seed: int, runs_dir: Path, short: bool, flags: str = ""):
    if list(runs_dir.glob(f"*/{name}/{seed}-*/result.json")):
        return
    usual, fewer = RUNS[name]
    words = (flags or usual).split()
    command = [sys.executable, ROOT / "algos" / f"{name}.py", *words, "--seed", str(seed)]
    command += [*(fewer.split() if short else ()), "--runs-dir", runs_dir]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def tensorboard(runs_dir: Path, temporary: Path):
    """The address of a TensorBoard that has read the runs."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", runs_dir]
    command += ["--port", "0", "--load_fast", "false"]  # port 0: any that is free
    log = temporary / "tensorboard.log"
    with open(log, "w") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            while not (found := re.search(r"at (http://\S+)", log.read_text())):
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            time.sleep(5)  # it reads in the background
            yield found[1]
        finally:
            process.kill()


class Browser:
    """A headless Chromium, spoken to by its DevTools protocol over a pipe."""

    def __init__(self, chromium: str, profile: Path):
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}"]
        # it listens on file 3 and answers on file 4
        pipes = ["sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "sh"]
        channels = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen([*pipes, *command], **channels)
        self.count, self.session = 0, {}

    def call(self, method: str, **params) -> dict:
        """The result of a method of the protocol."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params, **self.session}
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            answer = b""
            while not answer.endswith(b"\0"):
                byte = self.process.stdout.read(1)
                assert byte, "chromium is gone"
                answer += byte
            answer = json.loads(answer[:-1])
            if answer.get("id") == self.count:  # else an event
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str, height: int):
        self.session = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=address)

    def missing(self, wanted: list[str]) -> list[str]:
        expression = f"{MISSING}({json.dumps(wanted)})"
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value", wanted)

    def photograph(self, address: str, pages: dict, names: list[str], folder: Path):
        """Pictures of pages, once each shows these runs and what else it should."""
        for picture, (page, height, shown) in pages.items():
            self.open(address + page, height)
            self.wait_for([*names, *shown])
            path = folder / picture
            path.write_bytes(self.picture())
            size = path.stat().st_size
            assert 20_000 < size < 300_000, f"{path} has {size} bytes"
            print(f"{picture}: {size / 1000:.0f} kB")

    def wait_for(self, wanted: list[str]):
        end = time.monotonic() + 120
        while missing := self.missing(wanted):
            assert time.monotonic() < end, f"the page does not show {', '.join(missing)}"
            time.sleep(0.5)

    def picture(self) -> bytes:
        """A PNG of the page, once it looks the same for some seconds: curves come last."""
        before, now = None, b""
        while now != before:
            time.sleep(4)
            before, now = now, base64.b64decode(self.call("Page.captureScreenshot")["data"])
        return now


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
    os.environ["TQDM_DISABLE"] = "1"  # eight trainings side by side
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        root = Path(temporary) if options.short else ROOT / "runs"
        runs_dir, beside = root / "screenshots", root / "beside-reference"
        jobs = [(name, seed) for name in RUNS for seed in SEEDS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: train(*job, runs_dir, options.short), jobs))
        finished = [path.parent for path in runs_dir.glob("*/*/*/result.json")]
        names = [str(folder.relative_to(runs_dir)) for folder in finished]
        assert len(names) == len(jobs), names
        train("ppo", 1, beside, options.short, f"--config {REFERENCE} --eval-frequency 50000")
        command = [sys.executable, ROOT / "benchmarks" / "reference.py", REFERENCE]
        subprocess.run([*command, "--runs-dir", beside], check=True, stdout=subprocess.DEVNULL)
        shots = [(runs_dir, PAGES, names), (beside, REFERENCE_PAGE, ["reference/"])]
        browser = Browser(chromium, Path(temporary) / "profile")
        try:
            for folder, pages, shown in shots:
                with tensorboard(folder, Path(temporary)) as address:
                    browser.photograph(address, pages, shown, options.folder)
        finally:
            browser.call("Browser.close")
            browser.process.wait(60)


if __name__ == "__main__":
    main()
