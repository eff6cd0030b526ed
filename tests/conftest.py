"""What all tests share: the scripts as modules and as commands, and small environments."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path.stem for path in (ROOT / "algos").glob("*.py"))
os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side: threads would wait for each other
os.environ["PYTHONPATH"] = str(ROOT / "tests")  # so that --env-id environments:Name-v0 is found
sys.path.insert(0, str(ROOT / "algos"))
torch.set_num_threads(1)


class Result:
    """What a finished script left behind."""

    def __init__(self, status: int, out: str, err: str):
        self.status, self.out, self.err = status, out, err

    def line(self, name: str) -> str:
        """The rest of the line of the output that begins with `name`."""
        return re.search(rf"^{name} +(.*)$", self.out, re.MULTILINE).group(1)

    @property
    def hash(self) -> str:
        return self.line("run hash")


@pytest.fixture(scope="session")
def server():
    command = [sys.executable, ROOT / "tests" / "forkserver.py"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def script(server, tmp_path, tmp_path_factory):
    """script("ppo", "--seed", 3) runs algos/ppo.py in an empty folder, which `tmp_path` is.

    With `kill_after` it gets a SIGKILL so many seconds after its start.
    """
    outputs = tmp_path_factory.mktemp("outputs")

    def run(name: str, *flags, ok: bool = True, kill_after: float | None = None) -> Result:
        job = {
            "command": [str(word) for word in (ROOT / "algos" / f"{name}.py", *flags)],
            "cwd": str(tmp_path),
            "out": str(outputs / "out"),
            "err": str(outputs / "err"),
            "kill_after": kill_after,
        }
        print(json.dumps(job), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        result = Result(status, (outputs / "out").read_text(), (outputs / "err").read_text())
        assert status == 0 or not ok, result.err
        return result

    return run


def scalars(folder: Path) -> dict:
    """Every scalar of a run folder, {(tag, step): [values]}, but for the speed."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                group = value.tag.split("/")[0]
                if group in ("charts", "losses", "eval") and value.tag != "charts/SPS":
                    number = value.tensor.float_val[0]
                    found.setdefault((value.tag, event.step), []).append(number)
    return found


def only_run(folder: Path) -> Path:
    """The one run folder below `folder`."""
    (found,) = folder.glob("runs/*/*/*")
    return found


COUNTS = {}  # {what: {script: [how often it was so, of how many]}}, in the process that prints


@pytest.fixture
def count(request):
    """count("files refused", "ppo", True): `make torture` prints the sums over all tests."""
    counts = []
    yield lambda *words: counts.append(words)
    request.node.user_properties.append(("counts", counts))


def pytest_runtest_logreport(report):
    if report.when == "teardown":
        for what, name, it_was_so in dict(report.user_properties).get("counts", []):
            pair = COUNTS.setdefault(what, {}).setdefault(name, [0, 0])
            pair[0] += it_was_so
            pair[1] += 1


def pytest_terminal_summary(terminalreporter):
    if "TORTURE" not in os.environ:
        return
    terminalreporter.section(f"torture with seed {os.environ['TORTURE']}")
    for what, pairs in sorted(COUNTS.items()):
        parts = ", ".join(f"{name} {hits} of {n}" for name, (hits, n) in sorted(pairs.items()))
        hits, n = (sum(column) for column in zip(*pairs.values(), strict=True))
        terminalreporter.write_line(f"{what}: {hits} of {n} ({parts})")


def hash_of_parameters(module) -> list:
    return [p.detach().numpy().tobytes() for p in module.parameters()]


def hand_stepped(env_id, seed, actions):
    """One environment stepped by hand; yields the transition and what the next step begins with."""
    env = gym.make(env_id)
    obs, _ = env.reset(seed=seed)
    for action in actions:
        next_obs, reward, terminated, truncated, _ = env.step(action)
        yield obs, reward, terminated, truncated, next_obs
        obs = env.reset()[0] if terminated or truncated else next_obs
