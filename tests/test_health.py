"""What a sick run is told, and that a healthy one is told nothing."""

import importlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SCRIPTS, only_run, scalars
from gymnasium.spaces import Box, Discrete

# flags that make a run sick, and what it is told; each is a mistake that people make
SICK = {
    "a checkpoint before every episode's end": (
        "a2c",
        "--env-id Pendulum-v1 --num-envs 1 --num-steps 8 --total-timesteps 2560 "
        "--checkpoint-frequency 128".split(),
        "no episode has ended",
    ),
    "a learning rate that drowns the policy": (
        "ppo",
        "--num-envs 1 --total-timesteps 6000 --learning-rate 0.1".split(),
        "the entropy is",
    ),
    "a learning rate that drowns the critic": (
        "ppo",
        "--env-id environments:Target-v0 --num-envs 2 --total-timesteps 8000 "
        "--learning-rate 0.05".split(),
        "the explained variance is negative",
    ),
    "one-step targets from a hard copy, learned too fast": (
        "dqn",
        "--total-timesteps 4000 --train-frequency 4 --gradient-steps 1 --batch-size 32 --n-step 1 "
        "--tau 1 --loss mse --learning-rate 0.03 --no-anneal-lr --exploration-steps 600 "
        "--learning-starts 100".split(),
        "Q is ",
    ),
    "a learning rate that silences every unit": (
        "dqn",
        "--total-timesteps 4000 --gradient-steps 1 --learning-rate 1 --no-anneal-lr "
        "--exploration-steps 400 --learning-starts 100".split(),
        "whatever the state",
    ),
    "C51 with the support of Atari's clipped rewards": (
        "dqn",
        "--total-timesteps 6000 --gradient-steps 1 --n-atoms 51".split(),
        "of the return's distribution lies at --v-min and --v-max",
    ),
}
HEALTHY = {
    "ppo": "--num-envs 2 --total-timesteps 8192".split(),
    "a2c": "--num-envs 2 --total-timesteps 8000".split(),
    "dqn": "--total-timesteps 6000 --gradient-steps 1 --n-atoms 51 --v-min 0 --v-max 100".split(),
    "td3": "--env-id Pendulum-v1 --total-timesteps 2200 --learning-starts 200 --batch-size 16 "
    "--hidden-sizes 16 16 --torch-threads 1".split(),
}


def health_texts(folder) -> list:
    """(step, text) of the tag `health`."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    paths = sorted(folder.glob("events.out.tfevents.*"))  # one more for each time it was resumed
    found = []
    for event in itertools.chain(*(EventFileLoader(str(path)).Load() for path in paths)):
        for value in event.summary.value:
            if value.tag == "health/text_summary":
                found.append((event.step, value.tensor.string_val[0].decode()))
    return found


@pytest.mark.parametrize("mistake", SICK)
def test_a_sick_run_is_told_so_once(script, tmp_path, mistake):
    name, flags, symptom = SICK[mistake]
    result = script(name, *flags)
    lines = [line for line in result.err.splitlines() if line.startswith("health: ")]
    texts = health_texts(only_run(tmp_path))
    assert lines == [f"health: {text}" for _, text in texts]
    assert sum(symptom in line for line in lines) == 1, result.err


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_healthy_run_is_told_nothing(script, tmp_path, name):
    result = script(name, *HEALTHY[name])
    assert "health" not in result.err and not health_texts(only_run(tmp_path))
    tags = {tag for tag, _ in scalars(only_run(tmp_path))}
    assert ("losses/mass_at_ends" in tags) == (name == "dqn")


def test_one_state_has_no_spread(script, tmp_path):
    """Of a minibatch of one it would be 0, as of a network that is dead."""
    result = script("dqn", *"--total-timesteps 4000 --batch-size 1 --learning-starts 100".split())
    assert "whatever the state" not in result.err
    tags = {tag for tag, _ in scalars(only_run(tmp_path))}
    assert "losses/q_values" in tags and "losses/q_spread" not in tags


class Watched:
    """A run of which there is nothing but its curves; `texts` is what it was told."""

    def __init__(self, action_space=None, **args):
        defaults = {"total_timesteps": 50_000, "num_envs": 1, "gamma": 0.99}
        self.module, self.texts = importlib.import_module("ppo"), []
        self.run = SimpleNamespace(
            args=SimpleNamespace(**defaults | args),
            action_space=action_space or Discrete(2),
            worth=0.0,
            last_point=0,
            sick_since={},
            warned=set(),
            writer=SimpleNamespace(add_text=lambda tag, text, step: self.texts.append(text)),
            progress=SimpleNamespace(bar=SimpleNamespace(write=lambda text, file: None)),
        )

    def point(self, step, episode=(200.0, 200.0), epsilon=0.1, **losses):
        point = {f"losses/{tag}": value for tag, value in losses.items()}
        point["charts/episodic_return"], point["charts/episodic_length"] = episode
        point["charts/epsilon"] = epsilon
        self.run.step_count = step
        mean_size = abs(episode[0] / episode[1])
        self.run.reward_sizes = np.array([mean_size * (step - self.run.last_point)])
        self.module.Run.watch(self.run, point)

    def told(self, values, **more) -> list:
        """What is said of points a thousand steps apart, with one scalar's values."""
        ((tag, values),) = values.items()
        for i, value in enumerate(values, start=1):
            self.point(1_000 * i, **{tag: value}, **more)
        return self.texts


def test_a_resumed_run_knows_since_when_it_is_sick(tmp_path, monkeypatch):
    import ppo

    def train(**settings):
        settings |= dict(
            num_envs=1, num_steps=64, num_minibatches=1, update_epochs=1, total_timesteps=4096
        )
        args = ppo.RunArgs(checkpoint_frequency=1024, log_frequency=256, **settings)
        run = ppo.Run(args)
        ppo.train(run.args, run)
        run.writer.close()
        return health_texts(run.folder)

    def stop(run, scalars):
        step = end_iteration(run, scalars)
        if step >= 1500:
            raise KeyboardInterrupt
        return step

    monkeypatch.setattr(ppo, "symptoms", lambda *_: {"a symptom": "it is sick"})
    whole = train(runs_dir=str(tmp_path / "whole"))
    end_iteration = ppo.Run.end_iteration
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ppo.Run, "end_iteration", stop)
        train(runs_dir=str(tmp_path / "stopped"))
    assert whole == [(2304, "since step 256 it is sick")]
    (folder,) = tmp_path.glob("stopped/*/*/*")
    assert train(runs_dir=str(tmp_path / "stopped"), resume=str(folder)) == whole


def test_a_tenth_of_the_run_must_be_sick_without_a_break():
    assert not Watched().told({"explained_variance": [-0.5] * 5 + [0.1] + [-0.5] * 5})
    (text,) = Watched().told({"explained_variance": [0.1] + [-0.5] * 40})
    assert text.startswith("since step 2,000 the explained variance is negative (-0.5)")
    assert not Watched(num_envs=8).told({"explained_variance": [-0.5] * 16})
    assert Watched(num_envs=8).told({"explained_variance": [-0.5] * 17})


# Q of one-step targets on CartPole-v1 with hard updates, and of ten-step targets
OVERESTIMATED = [52, 84, 105, 150, 177, 190, 255, 290, 310, 340, 370, 350]
SOLVED = [10, 31, 52, 61, 70, 77, 84, 88, 91, 96, 103, 95]


@pytest.mark.parametrize("tag", ["q_values", "qf1_values"])
def test_q_above_what_rewards_are_worth(tag):
    (text,) = Watched().told({tag: OVERESTIMATED})
    assert text.startswith("since step 4,000 Q is 310, where the largest mean |reward|, for ever,")
    assert "is worth 100:" in text
    assert not Watched().told({tag: SOLVED})
    assert Watched().told({tag: [-q for q in OVERESTIMATED]}), "grown downwards"
    assert not Watched().told({tag: OVERESTIMATED}, epsilon=0.9), "rewards of random actions"
    assert not Watched().told({tag: OVERESTIMATED}, episode=(0.0, 200.0)), "no reward found yet"
    assert not Watched(gamma=1.0).told({tag: OVERESTIMATED})
    # TD3 on HalfCheetah-v5, whose returns fall and rise before its Q does
    watched = Watched(total_timesteps=150_000)
    for step, mean, q in [(20, -280, 2), (40, 2500, 45), (80, 4500, 220), (150, 6000, 365)]:
        watched.point(1_000 * step, episode=(mean, 1_000), **{tag: q})
    assert not watched.texts


def test_rewards_are_worth_their_size_also_where_they_cancel_out():
    """First costs, then gains: Q is large halfway, though the mean reward is 0."""
    import ppo

    settings = dict(env_id="LunarLander-v3", num_envs=3, total_timesteps=96, gamma=0.9)
    run = ppo.Run(ppo.RunArgs(**settings, torch_threads=1))
    run.writer = SimpleNamespace(add_scalar=lambda *_: None)
    run.last_point, run.progress, run.first_step = 0, None, 0
    run.reset_envs()
    rng, sizes = np.random.default_rng(0), []
    for steps in (7, 11):
        rewards = np.array([run.step(rng.integers(4, size=3))[1] for _ in range(steps)])
        assert rewards.min() < 0 < rewards.max()
        sizes.append(np.abs(rewards).mean())
        run.write_scalars({})
        assert run.worth == pytest.approx(10 * max(sizes))
    run.envs.close()


def test_q_of_clipped_rewards_is_not_held_to_those_of_the_game():
    clipped = {"clip_reward": True, "gamma": 0.9}  # worth 10
    small, large = (2.0, 200.0), (20_000.0, 200.0)  # episodes with rewards of 0.01, of 100
    assert Watched(gamma=0.9).told({"q_values": [9.0] * 20}, episode=small)
    assert not Watched(**clipped).told({"q_values": [9.0] * 20}, episode=small)
    assert not Watched(gamma=0.9).told({"q_values": [16.0] * 20}, episode=large)
    (text,) = Watched(**clipped).told({"q_values": [16.0] * 20}, episode=large)
    assert "is worth 10:" in text


def test_mass_at_the_ends_is_well_where_the_returns_are():
    # CartPole-v1 solved, with v_max at what a reward of 1 for ever is worth, and at a tenth of it
    ends = {"mass_at_ends": np.linspace(0.04, 0.93, 20)}
    assert not Watched().told(ends, q_values=91.0)
    (text,) = Watched().told(ends, q_values=9.7)
    assert "of the return's distribution lies at --v-min and --v-max, and Q is 9.7" in text
    # a reward in two of five episodes, none else: most returns are 0, which is v_min
    sparse = {"clip_reward": True, "gamma": 0.98}
    assert not Watched(**sparse).told(ends, q_values=0.26, episode=(0.4, 20.0))


def test_q_that_knows_no_state():
    # DQN on Pong whose convolutions had no active unit left, and one that learns
    (text,) = Watched().told({"q_spread": [0.0] * 20}, q_values=-2.3)
    assert text.startswith("since step 1,000 Q is -2.3 whatever the state")
    assert not Watched().told({"q_spread": [0.01] * 20}, q_values=-2.3)
    assert not Watched().told({"q_spread": [0.0] * 20}, q_values=0.0), "no reward found yet"


def test_entropy_is_watched_in_the_first_half_in_units_of_the_action_space():
    collapsed, late = [0.5] * 3 + [1e-3] * 40, [0.5] * 22 + [1e-3] * 28
    (text,) = Watched().told({"entropy": collapsed})
    assert text.startswith("since step 4,000 the entropy is 0.001")
    assert not Watched().told({"entropy": late}), "what is solved need not explore"
    assert not Watched(Box(-1, 1, (6,))).told({"entropy": [-6.5] * 40}), "log_std of -2.5"
    assert Watched(Box(-1, 1, (6,))).told({"entropy": [-20.0] * 40}), "log_std of -4.8"
