"""What lies in a run folder: whose it is, what may be in it, who writes it."""

import collections
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import new_run, parse, scalars, stopped, train
from load import load
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_runs import TINY


def half_a_run(**settings):
    return stopped(
        new_run(ppo, **TINY["ppo"], checkpoint_frequency=128, **settings), ppo.train, 319
    )


def about(folder):
    return json.loads((folder / "args.json").read_text())


def test_who_goes_on_with_the_work_of_another_script_is_told(command, capsys):
    folder = half_a_run().folder
    trained_by = about(folder)
    capsys.readouterr()
    load(folder)
    assert capsys.readouterr().err == ""  # trained by this very script
    theirs = trained_by["versions"] | {"script": "of yesterday", "torch": "2.0.0"}
    earlier = {"step": 128, "versions": {"torch": "1.13.1"}}
    others = {"versions": theirs, "resumed": [earlier]}
    (folder / "args.json").write_text(json.dumps(trained_by | others))
    what = f"torch 1.13.1 and 2.0.0, not {torch.__version__}; another version of its script"
    load(folder)
    assert capsys.readouterr().err == f"{folder} was trained with {what}\n"
    for flag in ("--evaluate", "--resume"):
        assert f"{folder} was trained with {what}\n" in command("ppo", flag, folder).err
    now = {"step": 256, "versions": trained_by["versions"]}
    assert about(folder)["versions"] == theirs and about(folder)["resumed"] == [earlier, now]


@pytest.mark.parametrize("hours", [-1, 1])
def test_curves_stay_in_order_when_the_clock_does_not(monkeypatch, hours):
    folder = half_a_run(log_frequency=64).folder
    whole = train(ppo, **TINY["ppo"], checkpoint_frequency=128, log_frequency=64)
    whole.close()
    now = ppo.time.time
    monkeypatch.setattr(ppo.time, "time", lambda: now() + 3600 * hours)
    train(
        ppo, **TINY["ppo"], checkpoint_frequency=128, log_frequency=64, resume=str(folder)
    ).close()
    assert scalars(folder) == scalars(whole.folder)
    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    steps = [event.step for event in events.Scalars("losses/value_loss")]
    assert steps == sorted(set(steps)) and len(steps) == 8


def test_a_folder_has_one_writer(failure):
    run = new_run(ppo, **TINY["ppo"])
    run.start(agent=run.agent)
    said = failure(new_run, ppo, **TINY["ppo"], resume=str(run.folder))
    assert f"another run trains in {run.folder}" in said
    said = failure(run.start, agent=run.agent)
    assert f"this run has begun: close it, then resume {run.folder}" in said
    run.close()
    new_run(ppo, **TINY["ppo"], resume=str(run.folder)).close()


class Part:
    """Something that a script wants to find again."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_numbers_of_numpy_in_a_part_come_back_as_pythons():
    state = {"level": np.int64(7), 3: [np.float32(0.5), (np.bool_(True), "text", None)]}
    run = new_run(ppo, **TINY["ppo"])
    run.start(agent=run.agent, part=Part(state))
    run.close()
    part = Part(None)
    resumed = new_run(ppo, **TINY["ppo"], resume=str(run.folder))
    resumed.start(agent=resumed.agent, part=part)
    assert part.state == {"level": 7, 3: [0.5, (True, "text", None)]}
    assert [type(x) for x in (part.state["level"], *part.state[3])] == [int, float, tuple]


@pytest.mark.parametrize(
    "state", [collections.deque([1, 2]), collections.defaultdict(list), np.zeros(3), Part(1)]
)
def test_a_checkpoint_that_could_not_be_read_leaves_the_last_one(state):
    run, part = new_run(ppo, **TINY["ppo"]), Part({"good": 1})
    run.start(agent=run.agent, part=part)
    before = (run.folder / "checkpoint.pt").read_bytes()
    part.state = {"bad": state}
    run.step_count = run.checkpoint_steps
    with pytest.raises(TypeError, match="no run could resume from these parts"):
        run.end_iteration({})
    assert (run.folder / "checkpoint.pt").read_bytes() == before
    assert not list(run.folder.glob("*.tmp"))


def test_a_full_disk_leaves_no_temporary_file(monkeypatch):
    run = new_run(ppo)

    def fsync(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        run.start(agent=run.agent)
    assert not list(run.folder.glob("*.tmp")) and not (run.folder / "checkpoint.pt").exists()


def test_a_link_in_a_stranger_s_folder_leads_nowhere(tmp_path):
    run = stopped(new_run(ppo, total_timesteps=512, checkpoint_frequency=256), ppo.train, after=200)
    mine = tmp_path / "mine"
    mine.write_text("a thesis")
    for name in ("args.json", "weights.npz", "checkpoint.pt", "result.json"):
        (run.folder / f"{name}.tmp").symlink_to(mine)
    resumed = new_run(ppo, **vars(run.args) | {"resume": str(run.folder)})
    ppo.train(resumed.args, resumed)
    resumed.finish()
    assert mine.read_text() == "a thesis"


def test_what_cannot_be_resumed_is_not_said_to_be(monkeypatch):
    run = new_run(ppo, **TINY["ppo"])
    assert run.how_to_resume() == ""  # before its folder is made
    monkeypatch.setattr(ppo.Run, "describe", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.start(agent=run.agent)
    assert run.how_to_resume() == ""  # a checkpoint, but no args.json
    monkeypatch.undo()
    shutil.rmtree(run.folder)
    run.close()
    again = new_run(ppo, **TINY["ppo"])
    again.start(agent=again.agent)
    assert again.how_to_resume().endswith(f"--resume {again.folder}")
    again.launcher = "python", "-m", "mpi"
    assert again.how_to_resume().startswith("to resume: python -m mpi ")
    evaluation = new_run(ppo, **TINY["ppo"], evaluate=again.folder)
    assert evaluation.how_to_resume() == ""  # of the run that it evaluates


def test_a_number_may_have_an_exponent(tmp_path):
    (tmp_path / "own.toml").write_text("[ppo]\ntotal_timesteps = 1e6\nlearning_rate = 1e-3\n")
    for argv in (["--total-timesteps", "1e6"], ["--total-timesteps=1e6"], ["--config", "own.toml"]):
        args = parse(ppo, [*argv, "--ent-coef", "2.5e1", "--target-kl", "1e-2"])
        assert args.total_timesteps == 10**6 and type(args.total_timesteps) is int
        assert (args.ent_coef, args.target_kl) == (25.0, 0.01)
    assert args.learning_rate == 1e-3


@dataclass
class Tagged(ppo.RunArgs):
    tag: str = "2.0"
    release: Path = Path("2.0")
    version: Literal["1e3", "2.0"] = "2.0"


def test_text_that_looks_like_a_number_stays_as_it_is(tmp_path):
    (tmp_path / "own.toml").write_text('[ppo]\ntag = "1e3"\n')
    saved = {"algo": "ppo", "args": {"seed": 1, "tag": "3.0"}}
    (tmp_path / "args.json").write_text(json.dumps(saved))
    for words, tag in {
        "--exp-name mine": "2.0", "--tag 1e3": "1e3", "--tag=3.0 --seed 1e1": "3.0",
        "--config own.toml": "1e3", "--evaluate .": "3.0",
    }.items():  # fmt: skip
        assert ppo.parse_args("ppo", Tagged, words.split()).tag == tag, words
    args = ppo.parse_args("ppo", Tagged, "--release 2.0 --version 1e3".split())
    assert (args.release, args.version) == (Path("2.0"), "1e3")


@dataclass
class Undecided(ppo.RunArgs):
    wanted: bool | None = None


@pytest.mark.parametrize("wanted", [True, False, None])
def test_an_argument_may_be_true_false_or_none(tmp_path, wanted):
    assert ppo.parse_args("ppo", Undecided, f"--wanted {wanted}".split()).wanted is wanted
    saved = {"algo": "ppo", "args": {"wanted": wanted, "norm_obs": True, "anneal_lr": False}}
    (tmp_path / "args.json").write_text(json.dumps(saved))
    args = ppo.parse_args("ppo", Undecided, "--evaluate .".split())
    assert (args.wanted, args.norm_obs, args.anneal_lr) == (wanted, True, False)


def test_a_date_of_a_table_comes_as_text(tmp_path):
    (tmp_path / "own.toml").write_text("[ppo]\nenv_kwargs = { start = 2024-01-01 }\n")
    assert json.loads(parse(ppo, ["--config", "own.toml"]).env_kwargs) == {"start": "2024-01-01"}


def test_runs_that_have_no_place_are_refused(refused, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "File exists" in refused("ppo", "--runs-dir link")


def test_a_bug_in_a_constructor_keeps_its_traceback(command, refused, tmp_path, monkeypatch):
    code = "import gymnasium\ngymnasium.register('Faulty-v0', lambda: None + 1)\n"
    (tmp_path / "my_gymnasium.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    flags = "--env-id environments:Buggy-v0 --env-kwargs"
    for kwargs in ('{"size": 2}', "{}"):
        with pytest.raises(TypeError, match="unsupported operand"):
            command("ppo", flags, kwargs)
    with pytest.raises(TypeError, match="unsupported operand"):  # gymnasium is not its package
        command("ppo", "--env-id my_gymnasium:Faulty-v0")
    assert "unexpected keyword argument 'colour'" in refused("ppo", flags, '{"colour": 2}')
    assert "with {'colour': 2}: " in refused(
        "ppo", "--env-id ALE/Pong-v5 --env-kwargs", '{"colour": 2}'
    )


class Spaceless(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, misspelt=False):
        if misspelt:
            self.actoin_space.seed(1)


def test_an_environment_without_actions_is_refused_but_a_misspelt_name_is_a_bug(command, refused):
    gym.register("Spaceless-v0", Spaceless)
    said = refused("ppo", "--env-id Spaceless-v0")
    assert "Spaceless-v0" in said and "must specify an action space" in said
    with pytest.raises(AttributeError, match="actoin_space"):
        command("ppo", "--env-id Spaceless-v0 --env-kwargs", '{"misspelt": true}')


def test_a_game_has_one_name():
    assert parse(ppo, ["--env-id", "ale_py:ALE/Pong-v5"]).env_id == "ALE/Pong-v5"


def test_a_link_in_the_place_of_a_film_leads_nowhere(tmp_path):
    (tmp_path / "mine").write_text("a thesis")
    run = new_run(ppo, total_timesteps=256, env_id="environments:ShortCartPole-v0")
    run.folder = tmp_path / "run"
    (run.folder / "videos").mkdir(parents=True)
    film = run.folder / "videos" / "step-0-seed-1.mp4"
    film.symlink_to(tmp_path / "mine")
    with run.film() as video:
        video.append_data(np.zeros((36, 36, 3), np.uint8))
    assert (tmp_path / "mine").read_text() == "a thesis" and not film.is_symlink()
