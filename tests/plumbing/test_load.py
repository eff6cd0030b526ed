"""What a trained agent's files are good for: the best weights, --evaluate, and load in Python."""

import ast
import importlib
import json
import random
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import ROOT, SCRIPTS, VARIANTS, before, calls, env_seeds, new_run, stopped, train
from load import load, parts_of
from test_runs import TINY


@pytest.fixture(scope="module", autouse=True)
def below(tmp_path_factory):
    """Module-scoped runs lie in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("trained"))
        yield


def finished(name, **settings):
    run = train(importlib.import_module(name), **TINY[name] | settings)
    run.finish()
    return run


def play(policy, envs, seeds):
    """Returns of one episode in each environment."""
    obs, _ = envs.reset(seed=seeds)
    returns, playing = np.zeros(len(seeds)), np.ones(len(seeds), bool)
    while playing.any():
        obs, rewards, terminated, truncated, _ = envs.step(policy(obs))
        returns += rewards * playing
        playing &= ~(terminated | truncated)
    return returns


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_loaded_agent_plays_as_the_evaluation_of_its_run(name):
    run = finished(name, eval_episodes=3, seed=5)
    result = json.loads((run.folder / "result.json").read_text())
    for path in (run.folder, run.folder / "weights.npz"):
        returns = play(*load(path, num_envs=3), env_seeds(3, 5, 0, 1))
        assert returns.mean() == pytest.approx(result["eval_return_mean"])
        assert returns.std() == pytest.approx(result["eval_return_std"])
    assert not (run.folder / "best.npz").exists()  # without --eval-frequency


def test_keywords_win_over_those_that_a_run_was_trained_with():
    pendulum = {"env_id": "Pendulum-v1", "env_kwargs": '{"g": 9.0, "render_mode": "rgb_array"}'}
    _, envs = load(finished("ppo", **pendulum).folder, g=3.0, render_mode=None)
    assert (envs.envs[0].unwrapped.g, envs.envs[0].render_mode) == (3.0, None)


def test_keywords_reach_games():
    args = ppo.RunArgs(env_id="ALE/Freeway-v5", torch_threads=1)
    keywords = {"full_action_space": True, "render_mode": "rgb_array"}
    assert ppo.make_envs(args, 1, training=False, **keywords).single_action_space.n == 18


def test_a_caller_that_trains_draws_as_if_it_had_not_loaded():
    """Such as a student, whose dropout draws from torch, of a teacher that it loads."""
    run = finished("ppo", seed=3)
    threads = torch.get_num_threads()

    def draws(loads):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        torch.set_num_threads(2)
        if loads:
            load(run.folder)
        return random.random(), np.random.random(), torch.rand(1).item(), torch.get_num_threads()

    try:
        assert draws(loads=True) == draws(loads=False)
    finally:
        torch.set_num_threads(threads)


def test_a_folder_may_have_the_name_of_a_file(command):
    run = finished("ppo", seed=3)
    folder = run.folder.rename(run.folder.with_name("b.npz"))
    assert load(folder)[1].num_envs == 1
    evaluated = command("ppo", "--evaluate", folder)
    assert evaluated.line("run hash") == run.hash()
    run = stopped(new_run(ppo, **TINY["ppo"], seed=3), ppo.train, after=100)
    folder = run.folder.rename(run.folder.with_name("c.npz"))
    assert ppo.parse_args("ppo", ppo.RunArgs, ["--resume", str(folder)]).seed == 3


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """load.py with a copy of a script beside it: beside("ppo", "ppo_copy") is both modules."""

    def copied(name, own_name):
        code = (ROOT / "algos" / f"{name}.py").read_text()
        code = code.replace(f'main("{name}"', f'main("{own_name}"')
        (tmp_path / f"{own_name}.py").write_text(code)
        shutil.copy(ROOT / "algos" / "load.py", tmp_path / "load_here.py")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "load_here", raising=False)
        return importlib.import_module("load_here"), importlib.import_module(own_name)

    return copied


def test_a_copy_of_a_script_is_loaded_under_its_own_name(beside):
    """Though it has the form of a variant's; and on a machine without the device of its run."""
    here, copy = beside("ppo", "ppo_copy")
    run = train(copy, total_timesteps=256)
    run.finish()
    about = json.loads((run.folder / "args.json").read_text())
    about["args"]["device"] = "cuda"
    (run.folder / "args.json").write_text(json.dumps(about))
    policy, envs = here.load(run.folder)
    assert policy(envs.reset(seed=[3])[0]).shape == (1,)
    assert here.parts_of("ppo_copy")[:2] == (copy, copy.RunArgs)


def test_a_copy_of_a_variant_is_loaded_whatever_its_name(beside):
    here, copy = beside("ppo_lstm", "memory")
    assert here.parts_of("memory") == (
        ppo, copy.Args, copy.make_agent, copy.evaluation_policy, ppo.make_envs
    )  # fmt: skip


def test_what_main_is_given_is_loaded_whatever_its_name(beside):
    """And not what stands in its module under the usual one."""
    here, copy = beside("ppo_lstm", "forgetful")
    path = Path(copy.__file__)
    last = "train, evaluation_policy)"
    edited = path.read_text().replace(last, "train, make_envs=mine, evaluation_policy=sampled)")
    path.write_text(edited)
    copy.sampled, copy.mine = object(), object()
    assert here.parts_of("forgetful")[3:] == (copy.sampled, copy.mine)


@pytest.mark.parametrize("given", ["*parts)", "train, only_there)"])
def test_what_main_is_given_must_be_written_out(beside, failure, given):
    here, copy = beside("ppo_lstm", "hidden")
    path = Path(copy.__file__)
    path.write_text(path.read_text().replace("train, evaluation_policy)", given))
    assert "hidden.py must write out what it gives to main" in failure(here.parts_of, "hidden")
    assert "tasks.py has no call of main" in failure(parts_of, "tasks")


@pytest.mark.parametrize("name", ["os", "json", "load", "tasks", "evil", "../evil", "a b", 3, None])
def test_what_a_folder_names_is_not_imported(tmp_path, monkeypatch, failure, name):
    """But for a script beside load.py: neither a module of Python's, nor a file that lies here."""
    (tmp_path / "run").mkdir()
    (tmp_path / "evil.py").write_text('open("imported", "w")\nmain("evil")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    about = {"algo": name, "args": {"env_id": "os:system", "env_kwargs": '{"command": "ls"}'}}
    (tmp_path / "run" / "args.json").write_text(json.dumps(about))
    assert f"no script beside load.py is named {name!r}" in failure(load, tmp_path / "run")
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", "[" * 100_000])
def test_a_folder_whose_args_json_is_broken_is_refused(tmp_path, failure, text):
    if text is not None:
        (tmp_path / "args.json").write_text(text)
    assert f"load: {tmp_path}/args.json: " in failure(load, tmp_path)
    with pytest.raises(SystemExit) as end:
        load(tmp_path)
    assert end.value.explained  # so that a script which loads a teacher says no more


def test_a_run_that_was_filmed_is_loaded_without_a_screen(monkeypatch):
    run = train(ppo, total_timesteps=256)
    run.finish()
    about = json.loads((run.folder / "args.json").read_text())
    about["args"]["capture_video"] = True
    (run.folder / "args.json").write_text(json.dumps(about))
    made = calls(monkeypatch, ppo.gym, "make")
    policy, envs = load(run.folder)
    assert made and all(call.get("render_mode") is None for call in made)
    assert len(policy(envs.reset(seed=[3])[0])) == 1
    _, envs = load(run.folder, render_mode="rgb_array")  # unless it is asked for
    envs.reset(seed=[3])
    assert envs.envs[0].render().shape == (400, 600, 3)


def with_returns(monkeypatch, returns):
    """Evaluations that give these mean returns, one after the other."""
    given = iter(returns)
    monkeypatch.setattr(ppo.Run, "evaluate", lambda run: np.full(2, next(given)))


def arrays(path):
    with np.load(path) as file:
        return {name: file[name] for name in file}


def test_best_npz_has_the_weights_of_the_best_evaluation(monkeypatch):
    """Of the first of equal ones; it may be the last."""
    with_returns(monkeypatch, [7.0, 5.0, 7.0, 9.0])
    run, saved = new_run(ppo, total_timesteps=1024, eval_frequency=256), []
    look = lambda run, name: saved.append((name, run.step_count))  # noqa: E731
    before(monkeypatch, ppo.Run, "save_weights", look)
    ppo.train(run.args, run)
    run.finish()
    assert [step for name, step in saved if name == "best.npz"] == [256, 1024]
    best, last = (arrays(run.folder / f"{name}.npz") for name in ("best", "weights"))
    assert best.keys() == last.keys()
    assert all(np.array_equal(best[k], last[k]) for k in best)


def test_a_resumed_run_knows_its_best(monkeypatch):
    """The best return is in the checkpoint: a worse evaluation does not replace it."""
    settings = dict(total_timesteps=1024, eval_frequency=256, checkpoint_frequency=512)
    with_returns(monkeypatch, [9.0, 4.0, 8.0])
    run = stopped(new_run(ppo, **settings), ppo.train, after=600)
    best = arrays(run.folder / "best.npz")
    with_returns(monkeypatch, [5.0, 6.0])
    resumed = new_run(ppo, **settings, resume=str(run.folder))
    ppo.train(resumed.args, resumed)
    resumed.finish()
    assert resumed.best_return == 9.0
    now, last = (arrays(run.folder / f"{name}.npz") for name in ("best", "weights"))
    assert all(np.array_equal(best[k], now[k]) for k in best)
    assert any(not np.array_equal(best[k], last[k]) for k in best)


def test_evaluate_takes_weights_with_and_without_their_settings(command, tmp_path):
    run = command("ppo", "--total-timesteps 1024 --eval-frequency 512 --gamma 0.9")
    folder = tmp_path / run.line("run folder")
    whole = command("ppo", "--evaluate", folder)
    beside = command("ppo", "--evaluate", folder / "weights.npz")
    assert whole.hash == beside.hash and whole.line("evaluation") == beside.line("evaluation")
    (tmp_path / "alone.npz").write_bytes((folder / "best.npz").read_bytes())
    typed = command("ppo", "--eval-episodes 3 --evaluate", tmp_path / "alone.npz")
    assert typed.line("evaluation")
    (tmp_path / "wrong.npz").write_bytes(b"nothing")
    for name in ("wrong", "none"):
        refused = command("ppo", "--evaluate", tmp_path / f"{name}.npz", ok=False)
        assert refused.status == 2 and f"{name}.npz" in refused.err
    assert len(list(tmp_path.glob("runs/*/*/*"))) == 1


def test_settings_may_come_from_any_editor_and_machine(monkeypatch, tmp_path):
    """A byte order mark, lines that end as on Windows, accents and spaces in names; UTF-8, whatever
    the machine speaks.
    """
    read_text = Path.read_text
    # without a default for the encoding
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: read_text(path, encoding))
    folder = tmp_path / "été un"
    folder.mkdir()
    text = "# réglages\r\n[ppo]\r\ngamma = 0.9\r\n"
    (folder / "mine.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    args = ppo.parse_args("ppo", ppo.RunArgs, ["--config", str(folder / "mine.toml")])
    assert args.gamma == 0.9
    about = json.dumps({"algo": "ppo", "args": {"gamma": 0.8}})
    (folder / "args.json").write_bytes(b"\xef\xbb\xbf" + about.encode())
    assert ppo.parse_args("ppo", ppo.RunArgs, ["--evaluate", str(folder)]).gamma == 0.8


@pytest.mark.parametrize("name", [*SCRIPTS, *VARIANTS])
def test_what_is_loaded_has_the_parts_that_main_is_given(name):
    parent, *parts = parts_of(name)
    module = importlib.import_module(name)
    source = (ROOT / "algos" / f"{name}.py").read_text()
    call = ast.parse(source).body[-1].body[-1].value
    assert ast.unparse(call.func) in ("main", f"{parent.__name__}.main")
    given = [eval(ast.unparse(x), vars(module)) for x in call.args[1:] if ast.unparse(x) != "train"]
    given = [x for x in given if x is not getattr(module, "train", parent.train)]
    assert given == parts[: len(given)] and parts[len(given) :] in ([], [parent.make_envs])


def test_a_loaded_game_goes_on_after_a_lost_life(monkeypatch):
    sizes = dict(num_envs=1, num_steps=4, num_minibatches=1, total_timesteps=4, torch_threads=1)
    run = new_run(ppo, env_id="ALE/Breakout-v5", episodic_life=True, **sizes)
    run.start(agent=run.agent)
    run.close()
    made = calls(monkeypatch, gym, "make_vec")
    load(run.folder)[1].close()
    assert not made[-1]["life_loss_info"]


def test_actions_of_a_loaded_agent_are_as_declared_and_without_dropout(monkeypatch):
    run = train(ppo, env_id="environments:Int32Start-v0", total_timesteps=256)
    run.finish()
    modes = set()
    before(monkeypatch, ppo.Agent, "act", lambda agent, *_, **__: modes.add(agent.training))
    policy, envs = load(run.folder)
    action = policy(envs.reset(seed=[3])[0])
    assert action.dtype == np.int32 and modes == {False}
    envs.step(action)


def test_a_loaded_dqn_explores_as_its_evaluation_did():
    run = finished("dqn", learning_starts=200, eval_epsilon=0.5, eval_episodes=3, seed=5)
    path = run.folder / "args.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # an editor may write this mark
    result = json.loads((run.folder / "result.json").read_text())
    returns = play(*load(run.folder, num_envs=3), env_seeds(3, 5, 0, 1))
    assert returns.mean() == pytest.approx(result["eval_return_mean"])


def test_what_trained_in_processes_is_loaded_without():
    folder = finished("ppo").folder
    about = json.loads((folder / "args.json").read_text())
    about["args"]["async_envs"] = True
    (folder / "args.json").write_text(json.dumps(about))
    assert isinstance(load(folder)[1], ppo.SyncEnvs)
