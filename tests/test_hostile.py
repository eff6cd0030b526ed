"""Hostile surroundings: senseless command lines, damaged files, full disks, broken environments.

`make test` tries a dozen of each, `make torture` a thousand.
"""

import contextlib
import hashlib
import importlib
import io
import os
import resource
import shutil
import string
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT, SCRIPTS, only_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 1000 if "TORTURE" in os.environ else 12
hostile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="TORTURE" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
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
def test_no_command_line_ends_in_a_traceback(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    with mock.patch.object(module, "Run", side_effect=module.UserError("would train")):
        status, err = main(name, *words)
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
    name, cut, where, file, finished, intact, tmp_path
):
    module, folder = importlib.import_module(name), tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished[name], folder)
    paths = sorted([*folder.glob("replay-*.npz"), folder / "checkpoint.pt"])
    path = paths[file % len(paths)]
    path.write_bytes(damaged(path.read_bytes(), cut, where))
    result = resume(module, folder)
    if isinstance(result, module.UserError):
        assert path.name.split("-")[0] in str(result)
    else:  # no bit of what counts was hit
        assert result == intact[name]


@pytest.mark.parametrize("name", SCRIPTS)
@hostile
@given(cut=st.booleans(), where=st.integers(0, 10**9))
def test_damaged_weights_are_refused_in_a_line(name, cut, where, finished, tmp_path):
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
    except module.UserError as error:
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


@pytest.mark.parametrize("kilobytes", [4, 40])
def test_a_full_disk_leaves_the_last_checkpoint(script, tmp_path, kilobytes):
    """Also where the curves' own thread is the first to meet the limit."""
    flags = "--total-timesteps 4000 --checkpoint-frequency 1000 --num-envs 1".split()
    flags += "--hidden-sizes 8 8 --log-frequency 8 --learning-starts 100".split()
    whole = script("dqn", *flags, "--runs-dir", "whole")
    limit = (kilobytes * 1024, kilobytes * 1024)
    process = subprocess.run(
        [sys.executable, ROOT / "algos" / "dqn.py", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert process.returncode == 1, process.stderr
    assert "Traceback" not in process.stderr and process.stderr.count("\n") == 1, process.stderr
    assert "File too large" in process.stderr
    if "--resume" in process.stderr:
        assert script("dqn", "--resume", only_run(tmp_path)).hash == whole.hash


@pytest.mark.parametrize(
    "name, how", [*((name, "raises") for name in SCRIPTS), ("ppo", "shape"), ("dqn", "reset")]
)
def test_an_environment_that_fails_is_named_with_the_step(script, name, how, tmp_path):
    env_id = f"environments:Failing{'Box' if name == 'td3' else ''}-{how}-v0"
    flags = ["--env-id", env_id, "--num-envs", 2, "--total-timesteps", 2000]
    result = script(name, *flags, ok=False)
    assert result.status == 1 and "Traceback" not in result.err
    line = result.err.splitlines()[-1]  # gymnasium warns before it, of a wrong shape
    assert f"{env_id} failed after step {38 if how == 'reset' else 40}: " in line
    assert ("RuntimeError: out of order (" in line and "environments.py:" in line) == (
        how != "shape"
    )
    assert "; the last checkpoint goes on with" in line
