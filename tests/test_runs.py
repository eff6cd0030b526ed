"""What every script promises of a run, through its command: repeats, resumes, saves, refuses."""

import ast
import contextlib
import dataclasses
import hashlib
import importlib
import json
import math
import os
import pty
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
import tomllib
import weakref
from pathlib import Path
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, SCRIPTS, only_run, scalars
from threadpoolctl import threadpool_info, threadpool_limits

# Short runs that still update, by script. The replay buffers wrap in all of them.
STEPS = {"ppo": 3072, "a2c": 3072, "dqn": 3072, "td3": 1024}  # td3 has an update to every step
SHORT = {
    "ppo": "--total-timesteps 3072 --checkpoint-frequency 512".split(),
    "a2c": "--total-timesteps 3072 --checkpoint-frequency 512 --num-steps 8".split(),
    "td3": "--total-timesteps 1024 --checkpoint-frequency 256 --env-id Pendulum-v1 "
    "--learning-starts 100 --buffer-size 300 --batch-size 16 --hidden-sizes 16 16 "
    "--log-frequency 50".split(),
    "dqn": "--total-timesteps 3072 --checkpoint-frequency 512 --buffer-size 700 "
    "--gradient-steps 1".split(),
}
SECOND = {
    "ppo": "--env-id Pendulum-v1 --total-timesteps 3072 --checkpoint-frequency 512 "
    "--norm-obs --norm-reward --num-minibatches 2 --clip-vloss".split(),
    "a2c": "--env-id Pendulum-v1 --total-timesteps 3072 --checkpoint-frequency 512 "
    "--num-steps 8 --norm-obs --norm-reward --optimizer adam --share-trunk yes".split(),
    "td3": "--env-id LunarLanderContinuous-v3 --total-timesteps 1024 --checkpoint-frequency 256 "
    "--learning-starts 100 --buffer-size 300 --batch-size 16 --hidden-sizes 16 16 --num-envs 2 "
    "--policy-frequency 3 --log-frequency 50".split(),
    "dqn": "--env-id LunarLander-v3 --total-timesteps 3072 --checkpoint-frequency 512 "
    "--buffer-size 700 --gradient-steps 1 --num-envs 2 --double --dueling --n-atoms 11 "
    "--n-step 3 --tau 0.5".split(),
}
ATARI = {
    "ppo": "--env-id ALE/Breakout-v5 --total-timesteps 512 --checkpoint-frequency 128 "
    "--num-envs 2 --num-minibatches 2 --update-epochs 2 --episodic-life --clip-reward "
    "--eval-episodes 1 --torch-threads 1 --log-frequency 64".split(),
    "a2c": "--env-id ALE/Breakout-v5 --total-timesteps 512 --checkpoint-frequency 128 "
    "--num-envs 2 --num-steps 16 --num-microbatches 2 --network rllib --episodic-life "
    "--clip-reward --eval-episodes 1 --torch-threads 1 --log-frequency 64".split(),
    "dqn": "--env-id ALE/Breakout-v5 --total-timesteps 1024 --checkpoint-frequency 256 "
    "--num-envs 2 --train-frequency 32 --gradient-steps 1 --learning-starts 200 "
    "--buffer-size 300 --n-step 3 --episodic-life --clip-reward --eval-epsilon 1 "
    "--eval-episodes 1 --torch-threads 1 --log-frequency 64".split(),
}
PYBULLET = {
    "ppo": "--env-id HalfCheetahBulletEnv-v0 --total-timesteps 2048 --checkpoint-frequency 512 "
    "--norm-obs --norm-reward --num-minibatches 2".split(),
    "a2c": "--env-id HalfCheetahBulletEnv-v0 --total-timesteps 2048 --checkpoint-frequency 512 "
    "--num-steps 8 --norm-obs --norm-reward --log-frequency 256".split(),
    "td3": "--env-id HalfCheetahBulletEnv-v0 --total-timesteps 1024 --checkpoint-frequency 256 "
    "--learning-starts 100 --buffer-size 300 --batch-size 16 --hidden-sizes 16 16 "
    "--log-frequency 64".split(),
}
KINDS = (SECOND, ATARI, PYBULLET)  # SHORT and its like are killed in test_hostile.py
SETTINGS = [(name, kind[name]) for name in SCRIPTS for kind in KINDS if name in kind]
NO_SCHEDULE = {
    "ppo": ["--no-anneal-lr", "--no-anneal-clip"],
    "a2c": ["--no-anneal-lr"],
    "dqn": ["--exploration-steps", "2000", "--anneal-steps", "4000", "--keep-replay"],
    "td3": ["--keep-replay"],
}
TAGS = {
    "ppo": "charts/learning_rate losses/policy_loss losses/value_loss losses/entropy "
    "losses/approx_kl losses/clipfrac losses/explained_variance",
    "a2c": "charts/learning_rate losses/policy_loss losses/value_loss losses/entropy "
    "losses/explained_variance",
    "dqn": "charts/epsilon charts/learning_rate losses/td_loss losses/q_values losses/q_spread",
    "td3": "losses/qf1_loss losses/qf2_loss losses/qf1_values losses/actor_loss",
}


@pytest.fixture(params=SCRIPTS)
def name(request):
    return request.param


def test_the_seed_rules_the_run_and_evaluation_changes_nothing(script, name):
    first = script(name, *SHORT[name])
    assert script(name, *SHORT[name]).hash == first.hash
    assert script(name, *SHORT[name], "--eval-frequency", 500).hash == first.hash
    assert script(name, *SHORT[name], "--seed", 2).hash != first.hash


def test_the_seed_rules_the_first_weights_and_what_is_drawn(script, name, tmp_path):
    """In an environment that is the same for every seed, so that it does not tell them apart."""
    env = "environments:BlindBox-v0" if name == "td3" else "environments:Clock-v0"
    flags = [*SHORT[name], "--env-id", env]
    for seed in (1, 2):
        script(name, *flags, "--seed", seed, "--save-init", f"{seed}.npz")
    first, second = (np.load(tmp_path / f"{seed}.npz") for seed in (1, 2))
    weights = [key for key in first if key.endswith("weight")]
    assert weights and not any(np.array_equal(first[key], second[key]) for key in weights)
    hashes = {script(name, *flags, "--seed", s, "--init-weights", "1.npz").hash for s in (1, 2, 3)}
    assert len(hashes) == 3


def test_a_death_on_the_last_step_of_a_time_limit_is_a_death(name, tmp_path, monkeypatch):
    buffers, module = [], importlib.import_module(name)
    kind = module.ReplayBuffer if hasattr(module, "ReplayBuffer") else module.RolloutBuffer
    add = kind.add
    monkeypatch.setattr(kind, "add", lambda self, *row: (buffers.append(self), add(self, *row)))
    settings = {"num_steps": 13} if kind.__name__ == "RolloutBuffer" else {"buffer_size": 17}
    env = "DoomedBox" if name == "td3" else "Doomed"
    settings |= dict(env_id=f"environments:{env}-v0", total_timesteps=13, num_envs=1)
    run = module.Run(module.RunArgs(runs_dir=str(tmp_path), **settings))
    module.train(run.args, run)
    found = buffers[0].terminated.reshape(-1)[:13]
    assert np.flatnonzero(found).tolist() == [4, 9]  # its episodes are of five steps


def test_what_a_run_leaves_behind(script, name, tmp_path):
    steps = STEPS[name]
    result = script(name, *SHORT[name], "--eval-frequency", steps // 4)
    folder = only_run(tmp_path)
    assert str(folder.relative_to(tmp_path)) == result.line("run folder")
    saved = json.loads((folder / "result.json").read_text())
    assert saved["steps"] == steps and saved["run_hash"] == result.hash
    assert saved["env_id"] == folder.parts[-3] and saved["algo"] == name and saved["seed"] == 1
    described = json.loads((folder / "args.json").read_text())
    assert described["args"]["total_timesteps"] == steps and "torch" in described["versions"]
    source = (ROOT / "algos" / f"{name}.py").read_bytes()
    assert described["versions"][f"{name}.py"] == hashlib.sha256(source).hexdigest()
    points = scalars(folder)
    tags = {tag for tag, _ in points}
    expected = "charts/episodic_return charts/episodic_length eval/episodic_return " + TAGS[name]
    assert tags == set(expected.split())
    assert max(step for _, step in points) == steps
    evaluations = {step for tag, step in points if tag.startswith("eval")}
    assert evaluations == {steps // 4, steps // 2, steps * 3 // 4, steps}
    (final,) = points["eval/episodic_return", steps]
    assert final == pytest.approx(saved["eval_return_mean"])


def test_evaluate_repeats_an_evaluation_of_one_episode_to_the_digit(script, tmp_path):
    """A product with one row is rounded by where the weights begin in memory: at 30 units apart."""
    flags = "--total-timesteps 1500 --learning-starts 500 --batch-size 32 --eval-episodes 1".split()
    script("td3", "--env-id", "HalfCheetah-v5", *flags, "--hidden-sizes", 30, 30)
    saved = json.loads((only_run(tmp_path) / "result.json").read_text())
    evaluated = script("td3", "--evaluate", only_run(tmp_path))
    assert f"return {saved['eval_return_mean']:.1f} " in evaluated.line("evaluation")


def test_evaluate_repeats_the_last_evaluation(script, name, tmp_path):
    trained = script(name, *SECOND[name])
    evaluated = script(name, "--evaluate", trained.line("run folder"))
    assert evaluated.line("evaluation") == trained.line("evaluation")
    assert evaluated.hash == trained.hash
    other = script(name, "--evaluate", trained.line("run folder"), "--seed", 2)
    assert other.line("evaluation") != trained.line("evaluation") and other.hash == trained.hash
    assert len(list(tmp_path.glob("runs/*/*/*"))) == 1


def kill_after(process, checkpoint, number: int) -> bool:
    """Kills a run at a random moment after its `number`-th checkpoint; whether it still ran."""
    seen, count = checkpoint() and checkpoint().stat().st_mtime_ns, 0
    while count < number and process.poll() is None:
        time.sleep(0.002)
        if checkpoint() and checkpoint().stat().st_mtime_ns != seen:
            seen, count = checkpoint().stat().st_mtime_ns, count + 1
    time.sleep(random.uniform(0, 0.1))
    ran = process.poll() is None
    process.kill()
    process.wait()
    return ran


@pytest.mark.parametrize("name, flags", SETTINGS)
def test_a_killed_run_resumes_to_the_same_end(script, tmp_path, name, flags):
    flags = [*flags, "--eval-frequency", "500", "--eval-episodes", "1"]
    whole = script(name, *flags, "--runs-dir", "whole")

    def checkpoint():
        return next(tmp_path.glob("runs/*/*/*/checkpoint.pt"), None)

    def start(*flags):
        command = [sys.executable, ROOT / "algos" / f"{name}.py", *flags]
        return subprocess.Popen([str(w) for w in command], cwd=tmp_path, stdout=subprocess.DEVNULL)

    assert kill_after(start(*flags), checkpoint, 1 + random.randint(1, 2))  # the first is at step 0
    folder = only_run(tmp_path)
    assert not (folder / "result.json").exists()
    for path in folder.glob("events.out.tfevents.*"):  # as if more had been logged before the kill
        path.write_bytes(path.read_bytes() * 2)
    kill_after(start("--resume", folder), checkpoint, 1)
    script(name, "--resume", folder)
    saved = json.loads((folder / "result.json").read_text())
    assert saved["run_hash"] == whole.hash
    uninterrupted = scalars(tmp_path / whole.line("run folder"))
    resumed = scalars(folder)
    assert all(len(values) == 1 for values in resumed.values())
    assert resumed == uninterrupted and len(resumed) >= 30


def test_a_run_that_goes_on_is_not_resumed_beside_itself(script, tmp_path):
    command = [sys.executable, ROOT / "algos" / "ppo.py", "--total-timesteps", "768000"]
    words = [str(word) for word in command]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        while not list(tmp_path.glob("runs/*/*/*/checkpoint.pt")):
            assert process.poll() is None
            time.sleep(0.01)
        folder = only_run(tmp_path)
        before = sorted(path.name for path in folder.iterdir())
        result = script("ppo", "--resume", folder, ok=False)
        assert (result.status, result.err.count("\n")) == (2, 1)
        assert f"{folder} is in use" in result.err and process.poll() is None
        assert sorted(path.name for path in folder.iterdir()) == before
        process.kill()


TINY = {  # two checkpoints and more; the schedules and the replay buffers go across them
    "ppo": dict(num_envs=4, num_steps=16, total_timesteps=512, env_id="Pendulum-v1", norm_obs=True),
    "a2c": dict(num_envs=4, num_steps=8, total_timesteps=512, norm_reward=True),
    "dqn": dict(total_timesteps=512, learning_starts=50, exploration_fraction=1.0, n_step=3,
        target_network_frequency=150, buffer_size=200, hidden_sizes=(16, 16)),
    "td3": dict(total_timesteps=512, learning_starts=50, env_id="Pendulum-v1", batch_size=16,
        buffer_size=200, hidden_sizes=(16, 16)),
}  # fmt: skip


def test_a_run_resumes_in_the_same_process(name, tmp_path, monkeypatch):
    """As test_a_killed_run_resumes_to_the_same_end, in a second."""
    module = importlib.import_module(name)
    end_iteration = module.Run.end_iteration

    def train(**settings):
        settings = dict(TINY[name], checkpoint_frequency=128, runs_dir=str(tmp_path)) | settings
        run = module.Run(module.RunArgs(**settings))
        return module.run_hash(module.train(run.args, run))

    def stop(run, scalars):
        step = end_iteration(run, scalars)
        if step >= 320:
            raise KeyboardInterrupt
        return step

    whole = train(runs_dir=str(tmp_path / "whole"))
    monkeypatch.setattr(module.Run, "end_iteration", stop)
    with pytest.raises(KeyboardInterrupt):
        train()
    monkeypatch.undo()
    (folder,) = tmp_path.glob("[!w]*/*/*")
    checkpoint = module.load_checkpoint(folder)
    assert checkpoint["step"] == 256
    assert train(resume=str(folder)) == whole


def test_a_run_killed_after_its_last_checkpoint_logs_its_evaluation_once(name, tmp_path):
    """At step 512 a checkpoint, an evaluation and the end meet; result.json is still to come."""
    module = importlib.import_module(name)
    more = dict(checkpoint_frequency=128, eval_frequency=128, eval_episodes=2)
    args = module.RunArgs(**TINY[name], **more, runs_dir=str(tmp_path))
    run = module.Run(args)
    module.train(args, run)
    run.writer.close()
    run.lock.close()
    (point,) = scalars(run.folder)["eval/episodic_return", 512]

    again = module.Run(dataclasses.replace(args, resume=str(run.folder)))
    module.train(again.args, again)
    again.finish()
    assert scalars(run.folder)["eval/episodic_return", 512] == [point]
    result = json.loads((run.folder / "result.json").read_text())
    assert result["eval_return_mean"] == pytest.approx(point, rel=1e-6)


def test_an_evaluation_that_fails_at_a_checkpoint_costs_no_training(name, tmp_path, monkeypatch):
    module = importlib.import_module(name)

    def train(**settings):
        settings = dict(TINY[name], checkpoint_frequency=128, eval_frequency=256) | settings
        run = module.Run(module.RunArgs(**settings))
        return module.run_hash(module.train(run.args, run))

    whole = train(runs_dir=str(tmp_path / "whole"), eval_frequency=0)
    with monkeypatch.context() as patch, pytest.raises(module.RunFailed):
        patch.setattr(module, "evaluate", mock.Mock(side_effect=module.RunFailed))
        train(runs_dir=str(tmp_path))
    (folder,) = tmp_path.glob("[!w]*/*/*")
    assert module.load_checkpoint(folder)["step"] == 256
    assert train(runs_dir=str(tmp_path), resume=str(folder)) == whole


def test_a_run_that_is_prolonged_has_no_result_until_its_new_end(name, tmp_path, monkeypatch):
    module = importlib.import_module(name)
    flags = [*NO_SCHEDULE[name], "--eval-episodes", "1", "--runs-dir", str(tmp_path)]
    args = dataclasses.replace(module.parse_args(flags), **TINY[name], checkpoint_frequency=256)
    run = module.Run(args)
    module.train(args, run)
    run.finish()
    assert module.finished_result(dataclasses.replace(args, resume=str(run.folder)))
    longer = dataclasses.replace(args, resume=str(run.folder), total_timesteps=1024)
    assert module.finished_result(longer) is None
    monkeypatch.setattr(module.Run, "end_iteration", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        module.train(longer, module.Run(longer))
    assert not (run.folder / "result.json").exists()


@pytest.mark.parametrize("rest", ["", ', "eval_return_mean": "5"', ', "eval_return_mean": NaN'])
def test_a_result_without_a_return_is_none(tmp_path, rest):
    import ppo

    (tmp_path / "result.json").write_text(f'{{"steps": 76800{rest}}}')
    assert ppo.finished_result(ppo.RunArgs(resume=str(tmp_path))) is None


def test_torch_threads_are_those_of_numpy_too():
    import ppo

    args = ppo.RunArgs(torch_threads=1)
    with threadpool_limits(2, user_api="blas"):
        ppo.choose_device(args, gym.spaces.Box(-1, 1, (3,)))
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        assert [pool["num_threads"] for pool in pools] == [1] * len(pools) and pools


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_a_resumed_run_is_not_sent_to_a_device_that_it_may_not_take():
    import ppo

    args = ppo.RunArgs(device="cuda", torch_threads=1, resume="runs/some")
    with pytest.raises(ppo.UserError, match=r"cuda: .*; a run is resumed where it was trained"):
        ppo.choose_device(args, gym.spaces.Box(-1, 1, (3,)))


def test_what_was_logged_is_on_the_disk_before_a_run_counts_as_finished(tmp_path, monkeypatch):
    ppo, fsync, sizes = importlib.import_module("ppo"), os.fsync, {}

    def spy(file):
        name = Path(os.readlink(f"/proc/self/fd/{file}")).name
        sizes.pop(name, None)
        sizes[name] = os.fstat(file).st_size
        fsync(file)

    run = ppo.Run(ppo.RunArgs(**TINY["ppo"], runs_dir=str(tmp_path)))
    ppo.train(run.args, run)
    monkeypatch.setattr(os, "fsync", spy)
    run.finish()
    (events,) = run.folder.glob("events.*")
    assert list(sizes) == ["weights.npz.tmp", events.name, "result.json.tmp"]
    assert sizes[events.name] == events.stat().st_size


@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_updates_between_two_points_of_the_curves_do_not_pile_up(name, tmp_path, monkeypatch):
    module, alive, most = importlib.import_module(name), weakref.WeakSet(), []

    def update(*_):
        loss = torch.zeros(())
        alive.add(loss)
        most.append(len(alive))
        return {"loss": loss} if name == "td3" else (loss, torch.zeros(16, 1, 1))

    monkeypatch.setattr(module, "update", update)
    settings = TINY[name] | dict(total_timesteps=2_500, log_frequency=10**9, batch_size=16)
    if name == "dqn":
        settings |= dict(train_frequency=1, gradient_steps=1)
    run = module.Run(module.RunArgs(**settings, runs_dir=str(tmp_path)))
    module.train(run.args, run)
    assert len(most) > 2_400 and max(most) < 2_010


def test_a_finished_run_can_be_given_more_steps(script, name, tmp_path):
    every = STEPS[name] // 4
    flags = [*SHORT[name], *NO_SCHEDULE[name], "--eval-frequency", str(every)]
    short = script(name, *flags)
    folder = tmp_path / short.line("run folder")
    command = json.loads((folder / "args.json").read_text())["command"]
    flags[flags.index("--total-timesteps") + 1] = more = str(STEPS[name] // 2 * 3)
    longer = script(name, "--resume", short.line("run folder"), "--total-timesteps", more)
    whole = script(name, *flags, "--runs-dir", "whole runs")
    assert longer.hash == whole.hash
    assert scalars(folder) == scalars(tmp_path / whole.line("run folder"))
    assert json.loads((folder / "args.json").read_text())["command"] == command
    assert "tensorboard --logdir 'whole runs'\n" in whole.out
    kept = sorted(folder.glob("replay-*.npz"))
    again = script(name, "--resume", short.line("run folder"))
    assert "is finished" in again.out and sorted(folder.glob("replay-*.npz")) == kept


def test_what_a_kill_left_of_the_replay_goes_with_the_next_resume(script, tmp_path, name="td3"):
    folder = tmp_path / script(name, *SHORT[name]).line("run folder")
    left = folder / "replay-000000000001-0.npz"
    left.touch()
    assert "is finished" in script(name, "--resume", folder).out
    assert not list(folder.glob("replay-*.npz"))


def test_the_last_rollout_is_cut_to_the_steps_asked_for(script, name, tmp_path):
    script(name, *SHORT[name], "--total-timesteps", 1600)
    folder = only_run(tmp_path)
    assert json.loads((folder / "result.json").read_text())["steps"] == 1600
    assert max(step for _, step in scalars(folder)) == 1600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on(script, name, tmp_path, number):
    command = [sys.executable, ROOT / "algos" / f"{name}.py", "--total-timesteps", "8000000"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("runs/*/*/*/checkpoint.pt")):
        time.sleep(0.01)
    time.sleep(0.3)
    before = (only_run(tmp_path) / "checkpoint.pt").stat().st_mtime_ns
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 128 + number
    assert (only_run(tmp_path) / "checkpoint.pt").stat().st_mtime_ns == before
    assert f"--resume {only_run(tmp_path).relative_to(tmp_path)}" in err and "Traceback" not in err


def test_a_resume_with_other_versions_says_so(script, tmp_path, name="a2c"):
    script(name, *SHORT[name])
    path = only_run(tmp_path) / "args.json"
    described = json.loads(path.read_text())
    described["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(described))
    (path.parent / "result.json").unlink()
    resumed = script(name, "--resume", path.parent)
    assert resumed.err.splitlines()[0] == "resumed with another torch: it may not be exact"
    described = json.loads(path.read_text())  # which keeps both
    assert described["versions"]["torch"] == "1.0"
    (others,) = described["resumed_with"]
    assert list(others) == ["torch"] and others["torch"] != "1.0"
    del described["versions"], described["command"]
    path.write_text(json.dumps(described))
    (path.parent / "result.json").unlink()
    assert script(name, "--resume", path.parent).hash == resumed.hash


def test_the_versions_name_who_made_the_environment(monkeypatch):
    import ppo

    def versions(entry_point):
        monkeypatch.setattr(ppo, "env_spec", lambda env_id: mock.Mock(entry_point=entry_point))
        return ppo.describe(ppo.RunArgs())["versions"].keys()

    everywhere = versions("gymnasium.envs.classic_control:CartPoleEnv")
    assert "pybullet" in everywhere and "pytest" not in everywhere
    assert "pytest" in versions("pytest.envs:MyEnv")
    assert "pytest" in versions(type("MyEnv", (), {"__module__": "pytest.envs"}))


def test_actions_that_are_not_finite_are_the_agents(script, tmp_path):
    flags = "--env-id Pendulum-v1 --total-timesteps 4000 --learning-rate 1e38".split()
    result = script("a2c", *flags, ok=False)
    assert result.status == 1 and "the agent's actions are not finite after step" in result.err


def test_actions_that_are_not_finite_are_the_agents_in_an_evaluation_too():
    import ppo

    args = ppo.RunArgs(env_id="Pendulum-v1", eval_episodes=2)
    agent = ppo.make_agent(args, *ppo.agent_spaces(ppo.make_envs(args, 1)))
    torch.nn.init.constant_(agent.actor[-1].bias, math.nan)
    with pytest.raises(ppo.RunFailed, match="the agent's actions are not finite in the evaluation"):
        ppo.evaluate(agent, args)


def test_a_missing_tensorboard_is_named_before_files_are_written(monkeypatch, tmp_path, capsys):
    import ppo

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setattr(sys, "argv", ["ppo.py", "--total-timesteps", "512"])
    with pytest.raises(SystemExit) as exit:
        ppo.main()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert exit.value.code == 2 and "tensorboard" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_ends_in_peace(monkeypatch, capsys, number):
    import ppo

    monkeypatch.setattr(sys, "argv", ["ppo.py"])
    monkeypatch.setattr(ppo, "Run", lambda args: signal.raise_signal(number))
    with pytest.raises(SystemExit) as exit:
        ppo.main()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    for late, handler in usual.items():  # a second one would end in a traceback
        assert signal.getsignal(late) is signal.SIG_IGN
        signal.signal(late, handler)
    assert exit.value.code == 128 + number and capsys.readouterr().err == "ppo.py: stopped\n"


COMPILER_ERROR = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})


@pytest.mark.parametrize(
    "error, ours",
    [
        (COMPILER_ERROR("the compiler failed\n  in line 1"), True),
        (RuntimeError("not enough memory: you tried to allocate 8 GB"), True),
        (RuntimeError("sizes do not match"), False),  # a mistake in a script: to be seen whole
    ],
)
def test_what_torch_lacks_is_said_in_a_line(monkeypatch, capsys, error, ours):
    import ppo

    monkeypatch.setattr(sys, "argv", ["ppo.py"])
    monkeypatch.setattr(ppo, "Run", mock.Mock(side_effect=error))
    with pytest.raises(SystemExit if ours else RuntimeError) as raised:
        ppo.main()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if ours:
        first_line = str(error).splitlines()[0]
        assert raised.value.code == 1 and capsys.readouterr().err == f"ppo.py: {first_line}\n"


def test_a_run_is_evaluated_from_inside_its_folder(script, tmp_path, monkeypatch, capsys):
    import ppo

    script("ppo", *SHORT["ppo"])
    monkeypatch.chdir(only_run(tmp_path))
    ppo.evaluate_run(ppo.parse_args(["--evaluate", "."]))
    assert "tensorboard --logdir .\n" in capsys.readouterr().out


def test_memory_is_required_where_the_system_says_how_much_there_is(monkeypatch):
    import dqn

    with pytest.raises(dqn.UserError, match="GB are free"):
        dqn.require_memory("a buffer", 10**15)
    monkeypatch.setattr(Path, "read_text", mock.Mock(side_effect=FileNotFoundError))
    dqn.require_memory("a buffer", 10**15)


def test_a_loss_that_is_not_finite_ends_the_run(script, name, tmp_path):
    env_id = f"environments:{'BrokenBox' if name == 'td3' else 'Broken'}-v0"
    result = script(name, *SHORT[name], "--env-id", env_id, ok=False)
    assert result.status == 1 and "Traceback" not in result.err
    assert re.search(r"losses/\w+ is (nan|inf) at step \d+; the last checkpoint", result.err)
    with np.load(only_run(tmp_path) / "weights.npz") as weights:
        assert all(np.isfinite(weights[k]).all() for k in weights.files if "action_" not in k)


def test_initial_weights_travel_by_name(script, name, tmp_path):
    first = script(name, *SHORT[name], "--save-init", "init.npz")
    with np.load(tmp_path / "init.npz") as file:
        names = list(file.files)
        np.savez(tmp_path / "shuffled.npz", **{key: file[key] for key in reversed(names)})
        first_weight = next(key for key in names if key.endswith("weight"))
        renamed = {("other" if key == first_weight else key): file[key] for key in names}
        np.savez(tmp_path / "renamed.npz", **renamed)
        reshaped = {key: file[key][..., None] for key in names}
        np.savez(tmp_path / "reshaped.npz", **reshaped)
    second = script(name, *SHORT[name], "--init-weights", "shuffled.npz")
    assert second.hash == first.hash
    runs = len(list(tmp_path.glob("runs/*/*/*")))
    for file, message in (("renamed.npz", first_weight), ("reshaped.npz", "shape")):
        refused = script(name, *SHORT[name], "--init-weights", file, ok=False)
        assert refused.status == 2 and message in refused.err and "Traceback" not in refused.err
    assert len(list(tmp_path.glob("runs/*/*/*"))) == runs


def test_statistics_travel_when_both_sides_have_them(script, tmp_path, name="ppo"):
    trained = script(name, *SECOND[name])
    weights = tmp_path / trained.line("run folder") / "weights.npz"
    flags = ["--env-id", "Pendulum-v1", "--total-timesteps", 2048, "--init-weights", weights]
    script(name, *flags, "--norm-obs", "--save-init", "with.npz")
    refused = script(name, *flags, ok=False)  # whose weights are worthless without them
    assert refused.status == 2 and "has obs_moments.count, which the agent has not" in refused.err
    with np.load(weights) as all_of_it, np.load(tmp_path / "with.npz") as file:
        assert (file["obs_moments.mean"] == all_of_it["obs_moments.mean"]).all()
        assert file["obs_moments.count"] > 0 and "return_moments.mean" not in file


def test_a_script_copied_alone_trains(name, tmp_path):
    shutil.copy(ROOT / "algos" / f"{name}.py", tmp_path / "mine.py")
    command = [sys.executable, "mine.py", *SHORT[name]]
    alone = {"OMP_NUM_THREADS": "1"}  # and no PYTHONPATH
    subprocess.run([str(w) for w in command], cwd=tmp_path, check=True, env=alone)
    assert only_run(tmp_path).parts[-2] == name


def test_every_argument_is_read_somewhere(name):
    module = importlib.import_module(name)
    tree = ast.parse((ROOT / "algos" / f"{name}.py").read_text())
    for node in ast.walk(tree):  # checking a value is no use of it
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            node.body = []
    read = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert {f.name for f in dataclasses.fields(module.RunArgs)} - read == set()


def test_help_explains_every_argument(script, name):
    text = " ".join(script(name, "--help").out.split())
    module = importlib.import_module(name)
    for field in dataclasses.fields(module.RunArgs):
        assert "--" + field.name.replace("_", "-") in text
    assert "(default: 1)" in text and "Training budget" in text


TABLES = [
    (path.name, table, settings)
    for path in sorted((ROOT / "benchmarks").glob("*.toml"))
    for table, settings in tomllib.loads(path.read_text()).items()
]


@pytest.mark.parametrize("file, table, settings", TABLES)
def test_every_benchmark_config_is_understood(file, table, settings):
    module = importlib.import_module(table.split("-")[0])
    args = module.parse_args(["--config", f"{ROOT}/benchmarks/{file}:{table}", "--seed", "7"])
    for key, value in settings.items():
        assert getattr(args, key) == (tuple(value) if isinstance(value, list) else value)
    assert args.seed == 7


def test_the_defaults_are_those_of_a_config():
    for name in SCRIPTS:
        module = importlib.import_module(name)
        config = "halfcheetah" if name == "td3" else "cartpole"
        args = module.parse_args(["--config", f"{ROOT}/benchmarks/{config}.toml"])
        assert dataclasses.replace(args, config=None) == module.RunArgs()


def test_a_config_is_utf_8_whatever_the_machine_speaks(tmp_path):
    config = tmp_path / "own.toml"
    config.write_text("# Größe\n[ppo]\nseed = 3\n", "utf-8")
    code = f"import ppo; print(ppo.config_flags({str(config)!r}))"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "algos", env=os.environ | ascii_only,
        text=True, capture_output=True,
    )  # fmt: skip
    assert (process.stdout, process.returncode) == ("['--seed', '3']\n", 0), process.stderr


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--env-id environments:Failing-raises-v0", "ppo.py: environments:Failing-raises-v0 fail"),
        ("--env-id environments:Undrawable-v0 --capture-video --eval-frequency 256", "no video: "),
    ],
)
def test_what_is_said_on_a_terminal_is_not_glued_to_the_bar(tmp_path, flags, said):
    command = [sys.executable, str(ROOT / "algos" / "ppo.py"), "--total-timesteps", "1024"]
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with subprocess.Popen(command + flags.split(), cwd=tmp_path, stdout=terminal, stderr=terminal):
        os.close(terminal)
        output = b""
        with contextlib.suppress(OSError):  # the terminal's end
            while part := os.read(controller, 65536):
                output += part
    os.close(controller)
    lines = [line.rstrip("\r").split("\r")[-1] for line in output.decode().split("\n")]
    assert "/1.02k" in output.decode()  # the progress bar
    assert any(line.startswith(said) for line in lines)
    assert not any(said in line and not line.startswith(said) for line in lines)


def test_typed_flags_win_over_the_config(script, tmp_path):
    for number, file in enumerate(["mine.toml", "my:own.toml"], start=1):
        (tmp_path / file).write_text("[ppo]\nseed = 5\ngamma = 0.5\nanneal_lr = false\n")
        script("ppo", "--config", file, "--gamma", 0.25, "--total-timesteps", 2048)
        runs = sorted(tmp_path.glob("runs/*/*/*/args.json"))
        assert len(runs) == number
        args = json.loads(runs[-1].read_text())["args"]
        assert (args["seed"], args["gamma"], args["anneal_lr"]) == (5, 0.25, False)


@pytest.mark.skipif(os.name != "posix", reason="closes stderr by the shell")
def test_a_run_needs_no_stderr(tmp_path):
    command = [sys.executable, ROOT / "algos" / "ppo.py", "--total-timesteps", "512"]
    line = f"{shlex.join(map(str, command))} 2>&-"
    done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "run hash" in done.stdout


BAD_INPUT = {
    "an unknown environment": ("--env-id CartPool-v1", "Did you mean: `CartPole`"),
    "a schedule's length without one": (
        "--anneal-steps 64 --no-anneal-lr --no-anneal-clip",
        "anneal_steps is for anneal_lr and anneal_clip",
    ),
    "an unknown version": ("--env-id CartPole-v7", "v7"),
    "a name without its version": ("--env-id CartPole", "near it are CartPole-v1"),
    "a game without its namespace": ("--env-id Pong-v5", "use ALE/Pong-v5"),
    "a misspelt submodule": ("--env-id nowhere.envs.mine:My-v0", "in PYTHONPATH?"),
    "threads beyond counting": ("--torch-threads 100000", "torch_threads=100000 must be"),
    "CleanRL's batch": ("--batch-size 4", "--num-envs times --num-steps"),
    "weights into no folder": ("--save-init nowhere/x.npz", "--save-init nowhere/x.npz"),
    "weights into a folder": ("--save-init done", "--save-init done"),
    "weights without a name": ("--save-init=", "--save-init"),
    "a malformed id": ("--env-id cart:pole:v1", "No module named"),
    "a module that is not there": ("--env-id nowhere.envs:My-v0", "is its folder in PYTHONPATH?"),
    "actions that are integers": ("--env-id environments:WholeActions-v0", "must be real"),
    "observations of any size": ("--env-id environments:Sentence-v0", "no fixed size"),
    "observations of no size": ("--env-id environments:Unseen-v0", "no fixed size, or none"),
    "a seed too large": ("--seed 18446744073709551616", "seed=18446744073709551616 must be"),
    "a device without values": ("--device meta", "--device meta"),
    "no folder for runs": ("--runs-dir bad.toml", "--runs-dir bad.toml"),
    "no name of a run": ("--resume", "--resume"),
    "an empty name of a run": ("--resume=", "is not a run folder"),
    "an empty name of a run to evaluate": ("--evaluate=", "is not a run folder"),
    "an empty name of a config": ("--config=", "--config"),
    "an empty name of weights": ("--init-weights=", "holds no weights"),
    "a space without a policy": ("--env-id environments:ManyActions-v0", "MultiDiscrete"),
    "a misspelt flag": ("--learning-rat 1", "--learning-rate"),
    "a wrong type": ("--num-envs 2.5", "--num-envs"),
    "a flag of CleanRL": ("--track", "TensorBoard"),
    "another flag of CleanRL": ("--no_cuda", "--device"),
    "one out of range": ("--gamma 1.5", "gamma=1.5 must be between 0 and 1"),
    "not a number": ("--learning-rate nan", "learning_rate=nan"),
    "a negative count": ("--num-steps -1", "num_steps=-1 must be at least 1"),
    "sizes that do not divide": ("--num-minibatches 7", "does not split"),
    "an end of a schedule that is none": ("--no-anneal-lr --final-learning-rate 1", "anneal_lr"),
    "steps that do not divide": ("--total-timesteps 1001", "does not divide by num_envs"),
    "a device that is not there": ("--device cuda", "cuda"),
    "a device of no kind": ("--device abacus", "abacus"),
    "no config": ("--config missing.toml", "missing.toml"),
    "no such table": ("--config good.toml:other", "no table [other], only ppo, typo, wrong"),
    "an unknown field": ("--config good.toml:typo", "gama"),
    "a field of a wrong type": ("--config good.toml:wrong", "--num-envs"),
    "a broken config": ("--config bad.toml", "bad.toml"),
    "no run to resume": ("--resume runs/none", "is not a run folder"),
    "no run to evaluate": ("--evaluate .", "is not a run folder"),
    "two commands at once": ("--resume done --evaluate done", "exclude each other"),
    "another's run": ("--resume other", "is a run of sac.py"),
    "a changed argument on resume": ("--resume done --gamma 0.5", "gamma=0.98"),
    "a longer schedule on resume": ("--resume done --total-timesteps 9999992", "schedule"),
    "weights that are not there": ("--init-weights none.npz", "none.npz"),
    "weights that are none": ("--init-weights bad.toml", "holds no weights"),
    "a pickle as weights": ("--init-weights evil.npz", "holds no weights"),
}


@pytest.fixture(scope="module")
def bad_input_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    good = "[ppo]\ngamma = 0.9\n[typo]\ngama = 0.9\n[wrong]\nnum_envs = 2.5\n"
    (folder / "good.toml").write_text(good)
    (folder / "bad.toml").write_text("[ppo\n")
    np.savez(folder / "evil.npz", **{"actor.0.weight": np.array([object()], dtype=object)})
    command = [sys.executable, ROOT / "algos" / "ppo.py", "--total-timesteps", "2048"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    only_run(folder).rename(folder / "done")
    (folder / "other").mkdir()
    (folder / "other" / "args.json").write_text('{"algo": "sac", "args": {}}')
    return folder


@pytest.mark.parametrize("flag", ["--resume=", "--evaluate="])
def test_an_empty_name_is_not_the_run_folder_one_is_in(bad_input_folder, monkeypatch, capsys, flag):
    import ppo

    monkeypatch.chdir(bad_input_folder / "done")
    monkeypatch.setattr(sys, "argv", ["ppo.py", flag])
    with pytest.raises(SystemExit) as error:
        ppo.main()
    assert error.value.code == 2 and "is not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("flags, message", BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_refused(bad_input_folder, monkeypatch, capsys, flags, message):
    import ppo

    before = sorted(bad_input_folder.rglob("*"))
    monkeypatch.chdir(bad_input_folder)
    monkeypatch.setattr(sys, "argv", ["ppo.py", *flags.split()])
    with pytest.raises(SystemExit) as exit:
        ppo.main()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    captured = capsys.readouterr()
    assert exit.value.code == 2
    text = " ".join(captured.err.replace("│", " ").split())
    assert message in text and "Traceback" not in text
    assert len(captured.err.strip().splitlines()) == 1 or "For full helptext" in text  # tyro's box
    assert captured.out == ""
    assert sorted(bad_input_folder.rglob("*")) == before


@pytest.mark.parametrize(
    "field, value, said",
    [
        ("gamma", 0.5, "gamma=0.5"),
        ("num_envs", 4, "num_envs=4"),
        ("activation", "relu", "activation=relu"),
    ],
)
def test_edited_arguments_do_not_go_with_the_checkpoint(
    bad_input_folder, script, tmp_path, field, value, said
):
    folder = tmp_path / "edited"
    shutil.copytree(bad_input_folder / "done", folder)
    (folder / "result.json").unlink()
    described = json.loads((folder / "args.json").read_text())
    described["args"][field] = value
    (folder / "args.json").write_text(json.dumps(described))
    result = script("ppo", "--resume", folder, ok=False)
    assert result.status == 2 and f"/args.json has {said}, its checkpoint" in result.err
    assert len(result.err.splitlines()) == 1


def test_torch_without_memory_says_how_to_go_on(script, tmp_path, monkeypatch, capsys):
    """As when a GPU is full; a mistake in the script itself keeps its traceback."""
    ppo = importlib.import_module("ppo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ppo.py"])
    monkeypatch.setattr(ppo.signal, "signal", lambda *_: None)
    for error in (
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("can't allocate memory"),
    ):

        def update(*_, error=error):
            raise error

        monkeypatch.setattr(ppo, "update", update)
        with pytest.raises(SystemExit) as exit:
            ppo.main()
        err = capsys.readouterr().err
        assert exit.value.code == 1 and "Traceback" not in err
        assert f"ppo.py: {error}; the last checkpoint goes on with:" in err
    monkeypatch.setattr(ppo, "update", lambda *_: torch.zeros(2) + torch.zeros(3))
    with pytest.raises(RuntimeError, match="must match the size"):
        ppo.main()


@pytest.mark.parametrize("name", ["dqn", "td3"])
def test_a_run_that_ends_before_it_learns_says_so(script, tmp_path, name):
    result = script(name, *SHORT[name], "--learning-starts", 10**6)
    assert "health: the run ends before it learns" in result.err
    assert not [tag for tag, _ in scalars(only_run(tmp_path)) if tag.startswith("losses/")]


def test_dqn_that_learns_in_its_last_step_is_told_nothing(script, tmp_path):
    result = script("dqn", *"--total-timesteps 160 --learning-starts 160".split())
    assert "before it learns" not in result.err
    assert [tag for tag, _ in scalars(only_run(tmp_path)) if tag.startswith("losses/")]


def test_a_run_that_was_moved_names_its_own_folder_for_tensorboard(script, tmp_path):
    first = script("ppo", "--total-timesteps", 512)
    assert first.line("TensorBoard") == "tensorboard --logdir runs"
    only_run(tmp_path).rename(tmp_path / "moved")
    moved = script("ppo", "--evaluate", tmp_path / "moved")
    assert moved.line("TensorBoard") == f"tensorboard --logdir {tmp_path / 'moved'}"


def test_a_damaged_checkpoint_is_refused(bad_input_folder, script, tmp_path):
    for damage in ("cut", "garbage", "gone"):
        folder = tmp_path / damage
        shutil.copytree(bad_input_folder / "done", folder)
        (folder / "result.json").unlink()
        path = folder / "checkpoint.pt"
        content = path.read_bytes()
        path.write_bytes({"cut": content[:5000], "garbage": b"no" * 999, "gone": b""}[damage])
        if damage == "gone":
            path.unlink()
        result = script("ppo", "--resume", damage, ok=False)
        assert result.status == 2 and "checkpoint.pt" in result.err
        assert len(result.err.strip().splitlines()) == 1


def forward(weights, part, x):
    """An MLP in NumPy, from the arrays of weights.npz alone."""
    x = np.tanh(x @ weights[f"{part}.0.weight"].T + weights[f"{part}.0.bias"])
    x = np.tanh(x @ weights[f"{part}.2.weight"].T + weights[f"{part}.2.bias"])
    return x @ weights[f"{part}.4.weight"].T + weights[f"{part}.4.bias"]


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_ppo_weights_stepped_by_hand_act_as_evaluate_does(script, tmp_path, kind):
    import ppo

    flags = {"discrete": SHORT, "continuous": SECOND}[kind]["ppo"]
    trained = script("ppo", *flags)
    with np.load(tmp_path / trained.line("run folder") / "weights.npz") as file:
        weights = dict(file)
    returns = []
    for seed in ppo.env_seeds(10, 1, 0, 1):
        env = gym.make("CartPole-v1" if kind == "discrete" else "Pendulum-v1")
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            if kind == "discrete":
                action = int(forward(weights, "actor", obs).argmax())
            else:
                std = np.sqrt(weights["obs_moments.var"] + 1e-8)
                x = np.clip((obs - weights["obs_moments.mean"]) / std, -10, 10)
                low, high = weights["action_low"], weights["action_high"]
                mean = (low + high) / 2 + (high - low) / 2 * forward(weights, "actor", x)
                action = np.clip(mean, low, high)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
        returns.append(total)
    evaluation = json.loads((tmp_path / trained.line("run folder") / "result.json").read_text())
    assert evaluation["eval_return_mean"] == pytest.approx(np.mean(returns), rel=1e-3)
    assert evaluation["eval_return_std"] == pytest.approx(np.std(returns), rel=1e-2)


def code_of_the_readme() -> dict:
    """What the Python block of README.md defines."""
    (block,) = re.findall("```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(block, names)
    return names


@pytest.mark.parametrize("n_atoms", [1, 51])
@pytest.mark.parametrize("dueling", [False, True])
def test_dqn_weights_stepped_by_hand_act_as_evaluate_does(script, tmp_path, n_atoms, dueling):
    import dqn

    flags = [*SHORT["dqn"], "--n-atoms", n_atoms, "--v-min", 0, "--v-max", 100]
    trained = script("dqn", *flags, "--dueling" if dueling else "--no-dueling")
    folder = tmp_path / trained.line("run folder")
    with np.load(folder / "weights.npz") as file:
        weights = dict(file)
    q_values_by_hand = code_of_the_readme()["q_values"]
    q_network = dqn.QNetwork((4,), 2, n_atoms, 0, 100, dueling, (128, 128))
    dqn.load_weights(q_network, folder / "weights.npz")
    returns, ties, steps = [], 0, 0
    for seed in dqn.env_seeds(10, 1, 0, 1):
        env = gym.make("CartPole-v1")
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            q_values = q_values_by_hand(weights, obs)
            theirs = q_network.q_values(q_network(torch.as_tensor(obs)[None]))[0]
            np.testing.assert_allclose(q_values, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
            action = int(q_network.act(obs[None], 0.0, np.random.default_rng(0))[0])
            tied = np.ptp(q_values) <= 2e-6 * (1 + np.abs(q_values).max())  # but for rounding
            assert tied or action == q_values.argmax()
            ties, steps = ties + tied, steps + 1
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
        returns.append(total)
    assert ties < 0.01 * steps, (ties, steps)
    # ten observations in one batch round otherwise than one, which can tip an action near a tie
    saved = json.loads((folder / "result.json").read_text())
    assert saved["eval_return_mean"] == pytest.approx(np.mean(returns), rel=0.02)


def test_dict_observations_and_actions_that_begin_at_three(script):
    script("ppo", "--env-id", "environments:Mixed-v0", "--total-timesteps", 2048)
