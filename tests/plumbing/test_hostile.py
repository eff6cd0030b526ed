"""Hostile surroundings: senseless command lines, kills at any moment, full disks.

`make test` tries a dozen command lines and a kill or two, `make torture` a thousand and a hundred.
"""

import importlib
import json
import multiprocessing
import os
import random
import resource
import runpy
import signal
import string
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT, SCRIPTS, only_run, scalars
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

SEED = int(os.environ.get("TORTURE", 0))  # 0: not `make torture`
EXAMPLES = 1000 if SEED else 12
KILLS, PARTS = (5, 5) if SEED else (1, 1)  # so many parts for each script, for two cores to share

NAMES = sorted({f.name for name in SCRIPTS for f in fields(importlib.import_module(name).RunArgs)})
FLAGS = [f"--{form}" for n in NAMES for form in (n, n.replace("_", "-"), f"no-{n}")]
ODD = "0 1 -1 7 2.5 nan inf -inf 1e999 1_000 True None yes auto cpu . / runs".split()
ODD += ["", " ", "--", "-", "-h", "--=", "=", "ALE/Pong-v5", "CartPole-v1:", ":", "é"]
TEXTS = st.integers().map(str), st.text(string.printable, max_size=8)
VALUES, FLAG = st.one_of(st.sampled_from(ODD), *TEXTS), st.sampled_from(FLAGS)
WORDS = st.one_of(FLAG, VALUES, st.tuples(FLAG, VALUES).map("=".join))


@pytest.mark.parametrize("name", SCRIPTS if SEED else ["dqn"])
@seed(SEED)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(words=st.lists(WORDS, max_size=6))
def test_no_command_line_ends_in_a_traceback(name, words, tmp_path, monkeypatch, capsys):
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "Run", mock.Mock(side_effect=StopIteration))  # it would train
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    with pytest.raises((SystemExit, StopIteration)) as exit:
        module.main(name, module.RunArgs, module.make_agent, None, module.evaluation_policy)
    status = getattr(exit.value, "code", 0)
    assert status in (0, 2)
    assert (status == 2) == bool(capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_last_checkpoint(command, tmp_path):
    """Where the curves, in a thread of their own, are the first to meet the limit."""
    flags = "--total-timesteps 900 --checkpoint-frequency 600 --num-envs 1 --hidden-sizes 8 8 "
    flags = (flags + "--log-frequency 8 --learning-starts 100").split()
    limit = (20_480, 20_480)  # bytes of each file: enough for the first checkpoint
    process = subprocess.run(
        [sys.executable, ROOT / "algos" / "dqn.py", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert process.returncode == 1, process.stderr
    assert "Traceback" in process.stderr and "File too large" in process.stderr
    folder = only_run(tmp_path)
    assert f"to resume: python {ROOT}/algos/dqn.py --resume" in process.stderr
    whole = command("dqn", *flags, "--runs-dir", "whole")
    assert command("dqn", "--resume", folder).hash == whole.hash


KILLED = {  # a second each, with about eight checkpoints
    "ppo": "--env-id Pendulum-v1 --total-timesteps 4096 --checkpoint-frequency 512 --norm-obs "
    "--norm-reward --num-minibatches 2",
    "a2c": "--env-id Pendulum-v1 --total-timesteps 4000 --checkpoint-frequency 512 --num-steps 8 "
    "--norm-obs --norm-reward --optimizer adam",
    "dqn": "--total-timesteps 2560 --checkpoint-frequency 256 --buffer-size 1500 --num-envs 2 "
    "--gradient-steps 1 --hidden-sizes 32 32 --double --dueling --n-atoms 11 --v-min 0 --v-max 100 "
    "--n-step 3 --tau 0.5",
    "td3": "--env-id Pendulum-v1 --total-timesteps 1024 --checkpoint-frequency 128 --num-envs 2 "
    "--learning-starts 200 --buffer-size 400 --batch-size 16 --hidden-sizes 16 16 "
    "--log-frequency 50 --policy-frequency 3",
}
ATARI = "--env-id ALE/Breakout-v5 --num-envs 2 --episodic-life --clip-reward --torch-threads 1 "
BULLET = "--env-id HalfCheetahBulletEnv-v0 "
LONGER = {  # `make test-slow`
    "ppo": ATARI + "--total-timesteps 512 --checkpoint-frequency 128 --num-minibatches 2 "
    "--update-epochs 2",
    "td3": BULLET + "--total-timesteps 1024 --checkpoint-frequency 256 --learning-starts 100 "
    "--buffer-size 300 --batch-size 16 --hidden-sizes 16 16",
}
SLOW = [(name, flags, 0) for name, flags in LONGER.items()]
CASES = [(name, None, part) for name in SCRIPTS for part in range(PARTS)]
if not SEED:  # that each script resumes is also in test_runs.py, where nothing is killed
    SLOW, CASES = [*SLOW, *((name, None, 0) for name in ("a2c", "dqn", "td3"))], [("ppo", None, 0)]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]


def what_remains(folder: Path):
    """All that a finished run leaves and that a repetition has to equal."""
    result = json.loads((folder / "result.json").read_text())
    result = {key: value for key, value in result.items() if key not in ("seconds", "sps")}
    files = {p.name for p in folder.iterdir() if not p.name.startswith("events")}
    return result, files - {"checkpoint.pt"}, scalars(folder)  # killed before it was deleted


def last_checkpoint(folder: Path) -> int:
    """Its step, once it and the weights beside it are read."""
    with np.load(folder / "weights.npz") as file:
        assert all(file[key].dtype for key in file.files)
    return torch.load(folder / "checkpoint.pt", weights_only=True)["step"]


FORKS = multiprocessing.get_context("forkserver")  # of a process that has imported what takes time
FORKS.set_forkserver_preload(["torch.utils.tensorboard", "gymnasium", "tyro", "tqdm"])


@pytest.mark.parametrize("name, flags, part", CASES)
def test_a_run_killed_at_any_moment_resumes_exactly(monkeypatch, tmp_path, name, flags, part):
    """Each run is killed once to three times, at shares of its length that the seed gives."""
    script = ROOT / "algos" / f"{name}.py"

    def status(*words, kill_after=None):
        """Of a run with these flags, which gets a SIGKILL so many seconds after its start."""
        monkeypatch.setattr(sys, "argv", [str(word) for word in (script, *words)])
        keywords = {"run_name": "__main__"}
        process = FORKS.Process(target=runpy.run_path, args=(str(script),), kwargs=keywords)
        process.start()
        process.join(kill_after)
        process.kill()
        process.join()
        return process.exitcode

    draw = random.Random(f"{SEED} {name} {part}")
    flags = [*(flags or KILLED[name]).split(), "--eval-frequency", "1000"]
    flags += ["--eval-episodes", "1" if "ALE" in flags[1] else "3"]
    started = time.perf_counter()
    assert status(*flags, "--runs-dir", "whole") == 0
    seconds = time.perf_counter() - started
    (whole,) = tmp_path.glob("whole/*/*/*")
    expected, kills, runs = what_remains(whole), 0, 0
    while kills < KILLS:
        runs_dir, before, step = tmp_path / f"runs-{runs}", kills, 0
        runs, command = runs + 1, [*flags, "--runs-dir", runs_dir]
        for _ in range(draw.randint(1, min(3, KILLS - kills))):
            found = status(*command, kill_after=draw.random() * seconds)
            if found != -signal.SIGKILL:  # it was faster than the one that was measured
                assert found == 0
                break
            kills += 1
            if list(runs_dir.glob("*/*/*/result.json")):
                break
            if written := list(runs_dir.glob("*/*/*/checkpoint.pt")):
                folder, step_before = written[0].parent, step
                command, step = ["--resume", folder], last_checkpoint(folder)
                assert step >= step_before
            else:  # begin anew, in a folder of its own
                command[-1] = runs_dir = runs_dir / "again"
        if kills > before:
            if not list(runs_dir.glob("*/*/*/result.json")):
                assert status(*command) == 0
            (finished,) = runs_dir.glob("*/*/*/result.json")
            assert what_remains(finished.parent) == expected
