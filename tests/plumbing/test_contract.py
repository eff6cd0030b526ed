"""Odd environments by scripts, as short trainings: each trains, or is refused before it begins.

Refused means: one line, exit status 2, no run folder. All that stands here was once wrong in this
collection or in another.
"""

import importlib
import json
import math
import re
import sys
import time
from pathlib import Path

import environments
import gymnasium as gym
import numpy as np
import ppo
import pytest
from conftest import SCRIPTS, Result, curves, flags_of, new_run, only_run, stopped, train
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

COMMON = "--total-timesteps 200 --eval-episodes 2 --log-frequency 20"
DISCRETE, REAL, NONE = {"ppo", "a2c", "dqn"}, {"ppo", "a2c", "td3"}, set()
SMALL = {
    "ppo": dict(num_envs=2, num_steps=16, num_minibatches=2, update_epochs=2, hidden_size=8),
    "a2c": dict(num_envs=2, hidden_size=8),
    "dqn": dict(num_envs=2, learning_starts=100, batch_size=8, hidden_sizes=(8, 8)),
    "td3": dict(num_envs=2, learning_starts=100, batch_size=8, hidden_sizes=(8, 8)),
}
SHORT = {script: flags_of(settings) for script, settings in SMALL.items()}
BOX = {"ppo": "", "a2c": "", "dqn": "", "td3": "Box"}  # the suffix of an environment for it


def small(name, env_id, **own):
    """Settings of a short training of a script, in an environment of which there is a ...Box."""
    common = dict(env_id=f"environments:{env_id}{BOX[name.split('_')[0]]}-v0", total_timesteps=200)
    return SMALL[name.split("_")[0]] | common | dict(eval_episodes=2, log_frequency=20) | own


SPACES = {  # the scripts that train; of the line with which the others refuse, a word
    **dict.fromkeys(["UInt8", "Int32Start"], (DISCRETE, "Discrete")),
    **dict.fromkeys(["Matrix", "LargeFloat16", "Lopsided", "Scalar"], (REAL, "Box")),
    "WholeNumbers": (NONE, "int64"),
    "Several": (NONE, "MultiDiscrete"),
    "Parts": (NONE, "Tuple"),
    "Switches": (NONE, "MultiBinary"),
    **dict.fromkeys(["HalfOpen", "Endless", "Wide"], ({"ppo", "a2c"}, "every action needs bounds")),
    **dict.fromkeys(["StackedColour", "Grey"], (DISCRETE, "no vector")),
    **dict.fromkeys(["Mixed", "Number", "Both"], (DISCRETE, "Discrete")),
    "Bytes": (REAL, "Box"),
    "Grid": (NONE, "too small|no vector"),
    "Strip": (NONE, "too small|no vector"),
    **dict.fromkeys(["Empty", "EmptyParts", "EmptyPicture"], (NONE, "empty")),
    "Sentence": (NONE, r"no fixed size\n"),
    "Missions": (NONE, r"observation\['mission'\], .*no fixed size.*FilterObservation"),
    **dict.fromkeys(["Board", "Codes"], (NONE, "FlattenObservation")),
    "FloatImage": (NONE, "makes it uint8"),
    "Cockpit": (NONE, r"observation\['camera'\], .*ppo_dict"),
}


@pytest.mark.parametrize("name", ["ppo", "td3"])  # a2c and dqn have the plumbing of ppo
@pytest.mark.parametrize("env", SPACES)
def test_spaces_are_as_declared_or_refused(command, refused, tmp_path, env, name):
    trains, message = SPACES[env]
    flags = f"--env-id environments:{env}-v0 {COMMON} {SHORT[name]}"
    if env in environments.FILMS or env == "Board":  # to which their width does not apply
        flags = re.sub(r"--hidden-size \d+|--hidden-sizes \d+ \d+", "", flags)
    if name not in trains:
        assert re.search(message, refused(name, flags))
        return
    steps = 120 if env in environments.FILMS else 200
    command(name, flags, "--total-timesteps", steps)
    assert json.loads((only_run(tmp_path) / "result.json").read_text())["steps"] == steps


ROLLOUTS = ["ppo_lstm --num-minibatches 1", "ppo_rnd", "ppo_network --batch-norm"]
ROLLOUTS += ["ppo_seeds --num-seeds 2"]
REPLAYS = ["dqn_noisy", "dqn_quantile", "dqn_prioritised"]
REPLAYS += ["dqn_prioritised --n-atoms 11 --v-min 0 --v-max 5"]
VARIANTS = {  # by environment
    "environments:Odd": [*ROLLOUTS, *REPLAYS, "ppo_pqn"],  # see there
    "environments:Lopsided": [*ROLLOUTS, "td3_sac", "td3_sac --quantiles 5 --drop 2"],
    "environments:Several": ["ppo_multidiscrete"],
    "environments:Mixture": ["ppo_hybrid"],
    "tasks:InvalidActions": ["ppo_mask"],
    "tasks:Doors": ["ppo_dict"],
}


@pytest.mark.parametrize("env, variant", [(env, v) for env, each in VARIANTS.items() for v in each])
def test_variants_train_where_their_parents_do(command, env, variant):
    """Also a last rollout of one step."""
    name, *flags = variant.split()
    shape = "--num-envs 1 --total-timesteps 33 --num-steps 16 --num-minibatches 4"
    shape = {"dqn": SHORT["dqn"], "td3": SHORT["td3"]}.get(name.split("_")[0], shape)
    command(name, " ".join([f"--env-id {env}-v0", COMMON, shape, *flags]))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_train_can_read_every_info(asynchronous):
    said, run = [], new_run(ppo, **small("ppo", "Chatty", async_envs=asynchronous))
    step = run.step

    def spy(actions):
        before, result = run.infos, step(actions)
        said.append((before, run.next_infos, run.infos, result[2] | result[3]))
        return result

    run.step = spy
    ppo.train(run.args, run)
    run.envs.close()
    assert len(said) == 100 and sum(ended.sum() for *_, ended in said) == 40  # of five steps each
    for t, (before, after, next_before, ended) in enumerate(said):
        assert ended[0] or next_before[0] is after[0]
        for i in range(2):
            assert before[i]["time"] == t % 5  # of the reset in the first step and after each end
            info = after[i]
            assert info["time"] == t % 5 + 1 and info["final_obs"] == "another"
            assert info["final_info"] == "a name of its own" and info["_final_obs"] == []
            assert (
                info["nested"]
                == [None, {"goal": None}, {"goal": [1, "two"], "n": {"x": 1}}][(t % 5 + 1) % 3]
            )
            assert isinstance(info["ragged"], np.ndarray) and 1 <= len(info["ragged"]) < 6


ENDS = {
    "ppo": [{}, {"norm_obs": True, "norm_reward": True}],
    "td3": [{}, {"twin": False}, {"norm_obs": True}],
}
ENDS["a2c"], c51 = ENDS["ppo"], dict(n_atoms=11, v_min=0, v_max=5)
ENDS["dqn"] = [{}, {"double": True, "n_step": 1}, c51, c51 | {"double": True, "dueling": True}]
ENDS |= {"dqn_quantile": [{}], "ppo_pqn": [{}], "td3_sac": [{}, {"quantiles": 5, "drop": 2}]}
ENDS["ppo_lstm"] = [{}]


@pytest.mark.parametrize("name, own", [(name, own) for name, each in ENDS.items() for own in each])
def test_what_follows_the_end_of_the_task_does_not_count(name, own):
    module, hashes = importlib.import_module(name), set()
    for last in (1, "nan"):
        kwargs = json.dumps({"last": float(last)})
        run = train(module, **small(name, "Ending", env_kwargs=kwargs, **own))
        assert all(np.isfinite(array).all() for array in run.arrays().values())
        hashes.add(run.hash())
    assert len(hashes) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_numbers_may_have_an_axis_and_infos_be_reused(monkeypatch, asynchronous):
    own = small("ppo", "Loose", num_envs=3, total_timesteps=150, async_envs=asynchronous)
    run = new_run(ppo, **own)
    step, said = run.step, []

    def heard(actions):
        transition = step(actions)
        for infos in (run.infos, run.next_infos):
            said.append([info["said"] for info in infos])
            assert [info["nested"][0]["said"].item() for info in infos] == said[-1]
        return transition

    monkeypatch.setattr(run, "step", heard)
    ppo.train(run.args, run)
    run.envs.close()
    assert run.returns.shape == (3,) and run.step_count == 150
    assert said[:10] == [[False] * 3] * 9 + [[True] * 3]


def test_a_reward_that_is_not_a_number_ends_the_run_by_its_name(command):
    flags = f'--env-id environments:Broken-v0 --env-kwargs {{"reward":NaN}} {COMMON} {SHORT["ppo"]}'
    with pytest.raises(FloatingPointError, match="reward not finite at step 2") as error:
        command("ppo", flags)
    assert error.value.__notes__[0].startswith("to resume: python ")


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_pictures_of_0_and_1_are_not_divided_by_255(name):
    module, hashes = importlib.import_module(name), set()
    own = small(name, "") | dict(env_id="environments:Film-v0", total_timesteps=120)
    for high in (1, 255):
        kwargs = json.dumps({"shape": [40, 36, 1], "high": high})
        hashes.add(train(module, **own, env_kwargs=kwargs).hash())
    assert len(hashes) == 1


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_an_environment_may_write_every_observation_into_one_array(name):
    module, hashes = importlib.import_module(name), set()
    for anew, asynchronous in ((False, False), (True, False), (False, True)):
        kwargs = json.dumps({"anew": anew})
        run = train(module, **small(name, "Reused", env_kwargs=kwargs, async_envs=asynchronous))
        run.envs.close()
        hashes.add(run.hash())
    assert len(hashes) == 1


def test_arguments_of_an_environment_are_kept(command):
    """By args.json, --resume and --evaluate; a config has them as a table."""
    kwargs, own = '{"length": 3}', small("ppo", "Ending", checkpoint_frequency=64)
    run = stopped(new_run(ppo, **own, env_kwargs=kwargs), ppo.train, after=100)
    saved = json.loads((run.folder / "args.json").read_text())
    assert json.loads(saved["args"]["env_kwargs"]) == {"length": 3}
    result = command("ppo", "--resume", run.folder)
    assert result.hash == train(ppo, **own, env_kwargs=kwargs).hash()
    evaluated = command("ppo", "--evaluate", run.folder)
    assert result.line("evaluation") == evaluated.line("evaluation") == "return 3.0 +- 0.0"

    Path("own.toml").write_text("[ppo]\nenv_kwargs = { length = 4 }\n")
    flags = f"--config own.toml --env-id {own['env_id']} {COMMON} {SHORT['ppo']}"
    result = command("ppo", flags)
    assert result.line("evaluation") == "return 4.0 +- 0.0"
    about = json.loads(Path(result.line("run folder"), "args.json").read_text())
    assert json.loads(about["args"]["env_kwargs"]) == {"length": 4}


IMAGES = "--env-id environments:Colour-v0"
PONG = "--env-id ALE/Pong-v5 --torch-threads 1"
NO_EFFECT = {  # what is typed, and why it is refused
    "dqn --target-network-frequency 4": "target_network_frequency=4 has no effect below train_freq",
    "ppo --bf16": "bf16 is for images",
    "a2c --bf16": "bf16 is for images",
    "dqn --bf16": "bf16 is for images",
    "ppo --log-std-init 0.5": "log_std_init=0.5 has no effect with discrete actions",
    f"ppo {IMAGES} --hidden-size 32": "hidden_size=32 has no effect with images",
    f"dqn {IMAGES} --hidden-sizes 8 8": "hidden_sizes=(8, 8) has no effect with images",
    "dqn --v-min 0": "v_min=0.0 has no effect without n_atoms",
    "dqn --n-atoms 51 --loss mse": "loss=mse has no effect with n_atoms",
    "dqn --exploration-steps 500 --exploration-fraction 0.5": "with exploration_steps",
    "td3 --policy-noise 0 --noise-clip 0.3": "noise_clip=0.3 has no effect without policy_noise",
    "ppo --episodic-life": "episodic_life",
    "ppo --sticky-actions 0.25": "sticky_actions",
    f"ppo {PONG} --async-envs": "async_envs",
    f"ppo {PONG} --norm-obs": "norm_obs for vectors",
    f'ppo {PONG} --env-kwargs {{"render_mode":"human"}}': "opens no window",
    f'ppo {PONG} --env-kwargs {{"grayscale":false}}': "uint8 images",
    f'td3 {PONG} --env-kwargs {{"grayscale":false}}': "ALE",
    "ppo --env-id environments:Reused-v0 --capture-video": "keyword argument 'render_mode'",
}


def test_games_reset_as_other_environments_and_open_no_window(failure):
    args = ppo.RunArgs(env_id="ALE/Pong-v5")
    envs = ppo.make_envs(args, 2, training=False)
    first, _ = envs.reset(seed=7)
    for seed in (None, [7, 8], np.array([7, 8])):
        obs, _ = envs.reset(seed=seed)
        assert obs.shape == (2, 4, 84, 84)
        assert seed is None or np.array_equal(obs, first)
    envs.close()
    said = failure(ppo.make_envs, args, 2, training=False, render_mode="human")
    assert "ALE/Pong-v5 opens no window" in said
    args.env_kwargs = '{"life_loss_info": true}'
    said = failure(ppo.make_envs, args, 2, training=False)
    assert "life_loss_info follows from the script's own arguments" in said


def test_flags_that_cannot_apply_are_refused(refused):
    for line, words in NO_EFFECT.items():
        assert words in refused(*line.split(maxsplit=1)), line


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_last_rollout_of_one_step_trains_and_resumes(name):
    module = importlib.import_module(name)
    settings = SMALL[name] | dict(num_envs=1, total_timesteps=33, num_steps=16)
    settings |= dict(norm_reward=True, norm_obs=True, checkpoint_frequency=32)
    if name == "ppo":
        settings["num_minibatches"] = 4
    run = train(module, **settings)
    assert run.step_count == 33
    assert all(np.isfinite(array).all() for array in run.arrays().values())
    cut = stopped(new_run(module, **settings), module.train, after=31)
    assert train(module, **settings, resume=str(cut.folder)).hash() == run.hash()


# Environments in processes of their own.


@pytest.mark.slow
def test_async_envs_step_slow_environments_at_the_same_time():
    """They sleep, so this holds on a single core, too."""
    seconds, kwargs = {}, json.dumps({"last": 0, "seconds": 0.005})
    own = small("ppo", "Failing", env_kwargs=kwargs, num_envs=8, total_timesteps=1600)
    for asynchronous in (False, True):
        run = new_run(ppo, **own, async_envs=asynchronous)
        started = time.perf_counter()
        ppo.train(run.args, run)
        seconds[asynchronous] = time.perf_counter() - started
        run.envs.close()
    assert seconds[False] > 4 * seconds[True], seconds


# Environments that are batched by themselves.


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_natively_batched_environment_trains_and_resumes(name, monkeypatch, capsys):
    module = importlib.import_module(name)

    def make_envs(args, num_envs, training=True, **keywords):
        return environments.Batch(num_envs, environments.THREE)

    def make_run(number):
        own = dict(num_envs=32, total_timesteps=640, checkpoint_frequency=256, exp_name=number)
        own |= {"train_frequency": 64, "buffer_size": 320} if name == "dqn" else {"num_steps": 4}
        args = module.RunArgs(**SMALL[name] | own)
        return module.Run(name, args, module.make_agent, module.evaluation_policy, make_envs)

    whole, cut = make_run("whole"), stopped(make_run("cut"), module.train, after=300)
    module.train(whole.args, whole)
    assert {"charts/episodic_return", "charts/episodic_length"} <= curves(whole).keys()
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--resume", str(cut.folder)])
    parts = module.make_agent, module.train, module.evaluation_policy
    module.main(name, module.RunArgs, *parts, make_envs)
    result = Result(0, capsys.readouterr().out, "")
    assert result.hash == whole.hash() and "return " in result.line("evaluation")


def test_what_is_batched_in_another_way_is_refused(failure):
    """Other observations, and environments that begin anew a step later, as gymnasium's own do."""
    later = {"metadata": gym.make_vec("CartPole-v1").metadata}
    refused = [(later, "SAME_STEP, not AutoresetMode.NEXT_STEP")]
    for shape, dtype in (((5, 3), "f4"), ((3, 41, 43), "f4"), ((2,), "f8")):
        space = {"single_observation_space": Box(-np.inf, np.inf, shape, dtype)}
        refused.append((space, "float32 vectors or uint8 images"))

    for change, words in refused:

        def make_envs(args, num_envs, training=True, change=change, **keywords):
            envs = environments.Batch(num_envs, environments.THREE)
            vars(envs).update(change)
            return envs

        parts = ppo.make_agent, ppo.evaluation_policy, make_envs
        assert words in failure(ppo.Run, "ppo", ppo.RunArgs(), *parts)
        assert not Path("runs").exists()


# Tiny trainings of every shape.

FEW = st.integers(1, 6)
SHAPES = {
    "ppo": dict(num_steps=FEW, num_minibatches=FEW, update_epochs=st.integers(1, 2)),
    "a2c": dict(num_steps=FEW),
    "dqn": dict(
        learning_starts=st.integers(0, 30), buffer_size=st.integers(1, 24), batch_size=FEW,
        train_frequency=st.integers(1, 12), gradient_steps=st.integers(1, 2), n_step=FEW,
        target_network_frequency=FEW, n_atoms=st.sampled_from([1, 2, 5]),
    ),
    "td3": dict(
        learning_starts=st.integers(0, 30), buffer_size=st.integers(1, 24), batch_size=FEW,
        policy_frequency=st.integers(1, 3), n_step=FEW,
    ),
}  # fmt: skip
SHAPE = dict(
    num_envs=st.integers(1, 5), total_timesteps=st.integers(1, 40),
    checkpoint_frequency=st.integers(1, 50), log_frequency=st.integers(1, 30),
    eval_frequency=st.integers(0, 30),
)  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_training_of_any_shape_runs_to_its_end_or_is_refused_before(name):
    module, own = importlib.import_module(name), small(name, "Ending")
    ran = []

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(shape=st.fixed_dictionaries(SHAPE | SHAPES[name]), divides=st.integers(0, 3))
    def try_one(shape, divides):
        if divides:  # else most would be refused
            for size in {"total_timesteps", "train_frequency", "buffer_size"} & shape.keys():
                shape[size] = -(-shape[size] // shape["num_envs"]) * shape["num_envs"]
            if "num_minibatches" in shape:
                steps = shape["num_envs"] * shape["num_steps"]
                shape["num_minibatches"] = math.gcd(shape["num_minibatches"], steps)
        args = module.RunArgs(**own | shape | {"eval_episodes": 1, "exp_name": str(time.time_ns())})
        try:
            args.check()
        except SystemExit as exit:
            assert exit.code == 2
            return
        run = module.Run(name, args, module.make_agent, module.evaluation_policy)
        module.train(run.args, run)
        run.finish()
        assert run.step_count == args.total_timesteps
        assert all(np.isfinite(array).all() for array in run.arrays().values())
        ran.append(shape)

    try_one()
    assert len(ran) > 10
