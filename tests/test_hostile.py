"""Hostile surroundings: senseless command lines, damaged files, full disks, broken environments.

`make test` tries a dozen of each and four kills, `make torture` a thousand and a hundred. It prints
what came of them and its seed; `make torture SEED=...` tries the same again.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import re
import resource
import shutil
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


def hostile(test):
    healthy = [HealthCheck.function_scoped_fixture]
    same_again = settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=healthy
    )
    return seed(SEED)(same_again(test))


TRAINING = {
    "ppo": "--env-id Pendulum-v1 --total-timesteps 512 --num-envs 2 --norm-obs".split(),
    "a2c": "--total-timesteps 200 --num-envs 2".split(),
    "dqn": "--total-timesteps 512 --learning-starts 100 --hidden-sizes 8 8 "
    "--buffer-size 1000".split(),
    "td3": "--env-id Pendulum-v1 --total-timesteps 300 --learning-starts 250 --batch-size 8 "
    "--hidden-sizes 8 8 --buffer-size 1000".split(),
}
SHARED = "--eval-episodes 1 --keep-replay --checkpoint-frequency 128".split()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of each script, {name: folder}, with all its files."""
    found = {}
    for name in SCRIPTS:
        folder = tmp_path_factory.mktemp(name)
        command = [sys.executable, ROOT / "algos" / f"{name}.py", *TRAINING[name], *SHARED]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        found[name] = only_run(folder)
        (found[name] / "result.json").unlink()
    return found


@pytest.fixture(scope="module")
def intact(finished):
    """What these runs resume with."""
    found = {name: resume(importlib.import_module(name), finished[name]) for name in SCRIPTS}
    assert all(isinstance(digest, str) for digest in found.values())
    return found


def main(name: str, *flags: str):
    """Exit status and stderr of a script's main, which neither trains nor listens to signals."""
    module, err = importlib.import_module(name), io.StringIO()
    patches = [
        mock.patch.object(module, "train"),
        mock.patch.object(module.Run, "finish"),
        mock.patch.object(module, "skip_compiler_import"),
        mock.patch.object(module.signal, "signal"),
        mock.patch.object(module.threading, "excepthook"),
        mock.patch.object(sys, "argv", [f"{name}.py", *flags]),
        contextlib.redirect_stderr(err),
        contextlib.redirect_stdout(io.StringIO()),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        try:
            module.main()
            status = 0
        except SystemExit as exit:
            status = exit.code
    return status, err.getvalue()


NAMES = sorted({f.name for name in SCRIPTS for f in fields(importlib.import_module(name).RunArgs)})
FLAGS = [f"--{form}" for n in NAMES for form in (n, n.replace("_", "-"), f"no-{n}")]
VALUES = st.one_of(
    st.sampled_from(
        "0 1 -1 7 2.5 nan inf -inf 1e999 1_000 True None yes auto cpu . / runs".split()
    ),
    st.sampled_from(
        ["", " ", "--", "-", "-h", "--=", "=", "ALE/Pong-v5", "CartPole-v1:", ":", "é"]
    ),
    st.integers().map(str),
    st.text(string.printable, max_size=8),
)
WORDS = st.one_of(
    st.sampled_from(FLAGS), VALUES, st.tuples(st.sampled_from(FLAGS), VALUES).map("=".join)
)


@pytest.mark.parametrize("name", SCRIPTS)
@hostile
@given(words=st.lists(WORDS, max_size=6))
def test_no_command_line_ends_in_a_traceback(name, words, tmp_path, monkeypatch, count):
    monkeypatch.chdir(tmp_path)
    module, status = importlib.import_module(name), None
    try:
        with mock.patch.object(module, "Run", side_effect=module.UserError("would train")):
            status, err = main(name, *words)
    finally:
        count("command lines that ended in a traceback", name, status is None)
    assert status in (0, 2) and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def damaged(content: bytes, cut: bool, where: int) -> bytes:
    if cut:
        return content[: where % len(content)]
    changed = bytearray(content)
    changed[where // 8 % len(content)] ^= 1 << where % 8
    return bytes(changed)


class Loaded(Exception):
    """Ends a script when all of a checkpoint is loaded."""


def plain(x):
    """What can be compared with ==, of whatever a checkpoint is loaded into."""
    if isinstance(x, np.random.Generator):
        return plain(x.bit_generator.state)
    if isinstance(x, torch.Tensor):
        x = x.numpy()
    if isinstance(x, np.ndarray):
        return x.dtype, x.shape, x.tobytes()
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    if hasattr(x, "state_dict"):
        return plain(x.state_dict())
    return plain(vars(x)) if hasattr(x, "__dict__") else x


def resume(module, folder: Path):
    """A digest of all that --resume loads from a run folder, or the UserError that says why not."""
    args = module.load_args(folder)
    args.resume = str(folder)
    restore, loaded = module.Run.restore, {}

    def spy(run):
        restore(run)
        loaded.update(step=run.step_count, parts=plain(run.parts), rng=plain(torch.get_rng_state()))
        raise Loaded

    silent = contextlib.redirect_stdout(io.StringIO())
    with silent, mock.patch.object(module.Run, "restore", spy):
        try:
            module.train(args, module.Run(args))
        except Loaded:
            return hashlib.sha256(repr(loaded).encode()).hexdigest()
        except module.UserError as error:
            assert len(str(error).splitlines()) == 1
            return error


@pytest.mark.parametrize("name", SCRIPTS)
@hostile
@given(cut=st.booleans(), where=st.integers(0, 10**9), file=st.integers(0, 99))
def test_damaged_checkpoints_are_refused_in_a_line(
    name, cut, where, file, finished, intact, tmp_path, count
):
    module, folder = importlib.import_module(name), tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished[name], folder)
    paths = sorted([*folder.glob("replay-*.npz"), folder / "checkpoint.pt"])
    path = paths[file % len(paths)]
    path.write_bytes(damaged(path.read_bytes(), cut, where))
    result = resume(module, folder)
    count("damaged checkpoints refused", name, isinstance(result, module.UserError))
    count("damaged checkpoints loaded as if whole", name, result == intact[name])
    if isinstance(result, module.UserError):
        assert path.name.split("-")[0] in str(result)
    else:  # no bit of what counts was hit
        assert result == intact[name]


@pytest.mark.parametrize("name", SCRIPTS)
@hostile
@given(cut=st.booleans(), where=st.integers(0, 10**9))
def test_damaged_weights_are_refused_in_a_line(name, cut, where, finished, tmp_path, count):
    module = importlib.import_module(name)
    args = module.load_args(finished[name])
    envs = module.make_envs(args, 1)
    agent = module.make_agent(args, *module.agent_spaces(envs))
    envs.close()
    path = tmp_path / "weights.npz"
    module.load_weights(agent, finished[name] / "weights.npz")
    intact = module.run_hash(agent)
    path.write_bytes(damaged((finished[name] / "weights.npz").read_bytes(), cut, where))
    try:
        module.load_weights(agent, path)
        count("damaged weights refused", name, False)
    except module.UserError as error:
        count("damaged weights refused", name, True)
        assert "weights.npz" in str(error) and len(str(error).splitlines()) == 1
    assert module.run_hash(agent) == intact


def test_damage_that_was_once_overlooked(finished, tmp_path):
    import ppo

    folder = tmp_path / "run"
    shutil.copytree(finished["ppo"], folder)
    weights, checkpoint = folder / "weights.npz", folder / "checkpoint.pt"
    content = weights.read_bytes().replace(b"{'descr'", b"z'descr'", 1)  # of an array's header
    weights.write_bytes(content)
    status, err = main("ppo", "--evaluate", str(folder))
    assert (status, err.count("\n")) == (2, 1) and "weights.npz holds no weights" in err
    content = checkpoint.read_bytes()
    number = next(iter(ppo.load_checkpoint(folder)["parts"]["agent"].values())).numpy().tobytes()
    assert content.count(number) == 1
    checkpoint.write_bytes(content.replace(number, number[:-1] + bytes([number[-1] ^ 1])))
    status, err = main("ppo", "--resume", str(folder))  # torch.load would take the wrong number
    assert (status, err.count("\n")) == (
        2,
        1,
    ) and "checkpoint.pt cannot be read: the checksum" in err


@pytest.mark.parametrize("name", SCRIPTS)
def test_files_of_another_script_are_refused_in_a_line(name, finished, tmp_path):
    for other in set(SCRIPTS) - {name}:
        folder = tmp_path / other
        shutil.copytree(finished[name], folder)
        shutil.copy(finished[other] / "checkpoint.pt", folder)
        module = importlib.import_module(name)
        assert isinstance(resume(module, folder), module.UserError)
        status, err = main(name, "--resume", str(finished[other]))
        assert (status, err.count("\n")) == (2, 1) and f"a run of {other}.py" in err
        if {name, other} != {"a2c", "ppo"}:  # these two take each other's weights
            shutil.copy(finished[other] / "weights.npz", folder)
            status, err = main(name, "--evaluate", str(folder))
            assert (status, err.count("\n")) == (2, 1) and "weights.npz" in err


@pytest.mark.parametrize("name, kilobytes", [("dqn", 4), ("dqn", 40), ("ppo", 60)])
def test_a_full_disk_leaves_the_last_checkpoint(script, tmp_path, name, kilobytes):
    """Also where the curves' own thread is the first to meet the limit, or where torch is."""
    flags = "--total-timesteps 4000 --checkpoint-frequency 1000 --num-envs 1".split()
    if name == "dqn":
        flags += "--hidden-sizes 8 8 --log-frequency 8 --learning-starts 100".split()
    else:
        flags += "--num-steps 100 --num-minibatches 1".split()
    whole = script(name, *flags, "--runs-dir", "whole")
    limit = (kilobytes * 1024, kilobytes * 1024)
    process = subprocess.run(
        [sys.executable, ROOT / "algos" / f"{name}.py", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert process.returncode == 1, process.stderr
    assert "Traceback" not in process.stderr and process.stderr.count("\n") == 1, process.stderr
    assert "File too large" in process.stderr
    if "--resume" in process.stderr:
        assert script(name, "--resume", only_run(tmp_path)).hash == whole.hash


KILLED = {  # a second or two each, with a checkpoint every eighth of a second
    "ppo": [
        "--total-timesteps 8192 --checkpoint-frequency 512",
        "--env-id Pendulum-v1 --total-timesteps 8192 --checkpoint-frequency 512 --norm-obs "
        "--norm-reward --num-minibatches 2",
    ],
    "a2c": [
        "--total-timesteps 8000 --checkpoint-frequency 500",
        "--env-id Pendulum-v1 --total-timesteps 8000 --checkpoint-frequency 512 --num-steps 8 "
        "--norm-obs --norm-reward --optimizer adam",
    ],
    "dqn": [
        "--total-timesteps 6144 --checkpoint-frequency 384 --buffer-size 1500 --gradient-steps 1 "
        "--hidden-sizes 32 32",
        "--total-timesteps 4096 --checkpoint-frequency 256 --buffer-size 1500 --gradient-steps 1 "
        "--hidden-sizes 32 32 --num-envs 2 --double --dueling --n-atoms 11 --v-min 0 --v-max 100 "
        "--n-step 3 --tau 0.5",
    ],
    "td3": [
        "--env-id Pendulum-v1 --total-timesteps 1024 --checkpoint-frequency 64 --batch-size 16 "
        "--learning-starts 200 --buffer-size 400 --hidden-sizes 16 16 --log-frequency 50",
        "--env-id Pendulum-v1 --total-timesteps 1536 --checkpoint-frequency 128 --batch-size 16 "
        "--learning-starts 200 --buffer-size 400 --hidden-sizes 16 16 --log-frequency 50 "
        "--num-envs 2 --policy-frequency 3",
    ],
}


def what_remains(folder: Path):
    """All that a finished run leaves and that a repetition has to equal."""
    result = json.loads((folder / "result.json").read_text())
    result = {key: value for key, value in result.items() if key not in ("seconds", "sps")}
    # a kill right behind result.json leaves replay files, too
    files = sorted(p.name for p in folder.iterdir() if not p.name.startswith(("events", "replay")))
    return result, files, scalars(folder)


def last_checkpoint(name: str, folder: Path) -> int:
    """Its step; -1 where it or the weights beside it cannot be read."""
    module = importlib.import_module(name)
    try:
        with np.load(folder / "weights.npz") as file:
            assert all(file[key].dtype for key in file.files)
        return module.load_checkpoint(folder)["step"]
    except (module.UserError, OSError, ValueError):
        return -1


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_killed_at_any_moment_resumes_exactly(script, tmp_path, count, name, part):
    """Each run is killed once to three times, at shares of its length that the seed gives."""
    draw = random.Random(f"{SEED} {name} {part}")
    flags = [*draw.choice(KILLED[name]).split(), "--eval-frequency", "1000", "--eval-episodes", "3"]
    started = time.perf_counter()
    whole = script(name, *flags, "--runs-dir", "whole").line("run folder")
    seconds, expected = time.perf_counter() - started, what_remains(tmp_path / whole)
    kills = runs = 0
    while kills < KILLS:
        runs_dir, before, step = tmp_path / f"runs-{runs}", kills, 0
        runs, command = runs + 1, [*flags, "--runs-dir", runs_dir]
        for _ in range(draw.randint(1, min(3, KILLS - kills))):
            share = draw.random()
            result = script(name, *command, kill_after=share * seconds, ok=False)
            if result.status != -signal.SIGKILL:  # it was faster than the one that was measured
                assert result.status == 0, result.err
                break
            kills += 1
            written = list(runs_dir.glob("*/*/*/checkpoint.pt"))
            count("kills before the first checkpoint", name, not written)
            count("kills in the middle of a write", name, any(runs_dir.glob("*/*/*/*.tmp")))
            if written:
                folder, step_before = written[0].parent, step
                command, step = ["--resume", folder], last_checkpoint(name, folder)
                count("checkpoints lost by a kill", name, step < step_before)
                assert step >= step_before
        if kills > before:
            if not list(runs_dir.glob("*/*/*/result.json")):
                script(name, *command)
            (finished,) = runs_dir.glob("*/*/*/result.json")
            exact = what_remains(finished.parent) == expected
            for _ in range(before, kills):
                count("kills resumed exactly", name, exact)
            assert exact


FAILURES = {  # how: what the line says
    "make": "UserError: environment 'ENV_ID': RuntimeError: out of order (",
    "first": "FloatingPointError: first observation of environment 0: nan",
    "raises": "RuntimeError: out of order (",
    "reset": "RuntimeError: out of order (",
    "shape": "ValueError: ",  # the rest is NumPy's
    "observation": "FloatingPointError: observation of environment 0: inf",
    "reward": "FloatingPointError: reward of environment 0: nan",
    "last": "ValueError: last observation of environment 0: its shape is (3,) instead of (1,)",
}


def env_id_of(name: str, kind: str, how: str) -> str:
    return f"environments:{kind}{'Box' if name == 'td3' else ''}-{how}-v0"


@pytest.mark.parametrize(
    "name, how",
    [
        *((name, "raises") for name in SCRIPTS),
        *(("ppo", how) for how in FAILURES if how not in ("make", "raises")),
    ],
)
def test_an_environment_that_fails_is_named_with_the_step(script, name, how):
    env_id = env_id_of(name, "Failing", how)
    flags = ["--env-id", env_id, "--num-envs", 2, "--total-timesteps", 2048]
    result = script(name, *flags, ok=False)
    assert result.status == 1 and "Traceback" not in result.err
    line = result.err.splitlines()[-1]  # gymnasium warns before it, of a wrong shape
    step = {"reset": 38, "first": 0, "last": 48}.get(how, 40)
    assert f"{env_id} failed after step {step}: {FAILURES[how]}" in line
    assert ("environments.py:" in line) == FAILURES[how].endswith("(")
    assert "; the last checkpoint goes on with" in line


def test_an_environment_that_cannot_be_made_is_refused(script, tmp_path):
    env_id = env_id_of("ppo", "Failing", "make")
    result = script("ppo", "--env-id", env_id, ok=False)
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert f"environment '{env_id}': RuntimeError: out of order (" in result.err
    assert not list(tmp_path.iterdir())


def test_an_environment_that_cannot_be_made_anew_is_named_with_the_step(script):
    env_id = env_id_of("dqn", "FailingLater", "make")
    flags = ["--env-id", env_id, "--num-envs", 2, "--total-timesteps", 2048]
    result = script("dqn", *flags, "--checkpoint-frequency", 512, ok=False)
    said = FAILURES["make"].replace("ENV_ID", env_id)
    assert (result.status, result.err.count("\n")) == (1, 1)
    assert f"{env_id} failed after step 512: {said}" in result.err
    assert "; the last checkpoint goes on with" in result.err


@pytest.mark.parametrize(
    "name, how",
    [
        *((name, "raises") for name in SCRIPTS),
        *(("ppo", how) for how in FAILURES if how not in ("last", "raises", "reset")),
    ],
)
def test_an_environment_that_fails_when_evaluated_is_named_with_the_step(
    script, tmp_path, name, how
):
    """While the environments of training work on. The last checkpoint leads to the same line."""
    module, env_id = importlib.import_module(name), env_id_of(name, "FailingLater", how)
    flags = "--num-envs 2 --total-timesteps 4096 --checkpoint-frequency 3000 --eval-frequency 2000"
    results = [script(name, "--env-id", env_id, *flags.split(), ok=False)]
    folder = only_run(tmp_path)
    assert module.load_checkpoint(folder)["step"] == 0
    results.append(script(name, "--resume", folder, ok=False))
    assert module.load_checkpoint(folder)["step"] == 0
    results.append(script(name, "--evaluate", folder, ok=False))
    said = re.escape(FAILURES[how].replace("ENV_ID", env_id)).replace(
        r"environment\ 0", r"environment\ \d"
    )
    after = r" after step 20\d\d"
    cases = zip(results, (after, after, ""), (True, True, False), strict=True)
    for result, when, hint in cases:
        line = result.err.splitlines()[-1]  # gymnasium warns before it
        assert result.status == 1 and "Traceback" not in result.err
        assert re.search(rf"{env_id} failed in the evaluation{when}: {said}", line), line
        assert ("; the last checkpoint goes on with" in line) == hint


def test_an_environment_that_fails_when_closed_is_named_with_the_step(script):
    env_id = env_id_of("ppo", "Failing", "close")
    flags = ["--env-id", env_id, "--num-envs", 2, "--total-timesteps", 1024]
    for more, when in (([], "in the evaluation after step 1024"), ([512], "after step 512")):
        result = script("ppo", *flags, *[f"--checkpoint-frequency={n}" for n in more], ok=False)
        assert (result.status, result.err.count("\n")) == (1, 1)
        assert f"{env_id} failed {when}: RuntimeError: out of order (" in result.err


def test_an_environment_that_cannot_be_drawn_costs_the_film_only(script):
    flags = "--env-id environments:Undrawable-v0 --total-timesteps 512 --capture-video".split()
    result = script("ppo", *flags)
    assert "no video: RuntimeError: out of paint" in result.err and "Traceback" not in result.err
