"""TensorBoard in a real browser, with a run beside our seeds: `make screenshots`.

    python benchmarks/maintain/screenshots.py    pictures/reference.png

Trains into runs/beside-reference/, unless that has the run from the last time. Opens the page in a
headless Chromium, waits until it shows the curves, and writes what is seen. Without Chromium it
says so and ends with exit status 0.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "pictures" / "reference.png"
RUNS = ROOT / "runs" / "beside-reference"
REFERENCE = "lunarlander:ppo"  # beside a run of the same table
PAGE = "?darkMode=false&smoothing=0&tagFilter=episodic_return#timeseries"
SHOWN = ["reference/", "charts/episodic_return", "eval/episodic_return"]
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

    def open(self, address: str):
        self.session = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        size = {"width": 1400, "height": 520, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=address)

    def missing(self, wanted: list[str]) -> list[str]:
        expression = f"{MISSING}({json.dumps(wanted)})"
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value", wanted)

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
    argparse.ArgumentParser(description=__doc__.split("\n\n")[0]).parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no screenshots: there is no chromium here (apt-get install chromium)")
        return
    os.environ["TQDM_DISABLE"] = "1"
    if not list(RUNS.glob("*/ppo/*/result.json")):
        command = [sys.executable, ROOT / "algos" / "ppo.py", "--config", REFERENCE]
        command += ["--eval-frequency", "50000", "--runs-dir", RUNS]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    command = [sys.executable, ROOT / "benchmarks" / "reference.py", REFERENCE, "--runs-dir", RUNS]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        browser = Browser(chromium, Path(temporary) / "profile")
        try:
            with tensorboard(RUNS, Path(temporary)) as address:
                browser.open(address + PAGE)
                browser.wait_for(SHOWN)
                PICTURE.write_bytes(browser.picture())
        finally:
            browser.call("Browser.close")
            browser.process.wait(60)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
