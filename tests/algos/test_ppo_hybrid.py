"""ppo_hybrid.py: choices and numbers together, by hand, and as every space declares them."""

import gymnasium as gym
import numpy as np
import ppo
import ppo_hybrid
import pytest
import tasks
import torch
from conftest import randomise, train
from environments import Clock
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Tuple
from gymnasium.spaces.utils import flatten

OBS, BATCH = Box(-1, 1, (7,), np.float32), 11
ARM = Box(np.float32([[-0.1, 3]]), np.float32([[0.3, 1e4]]), dtype=np.float32)
GEAR = Discrete(3, start=-1, dtype=np.int8)
NESTED = Dict(
    arm=ARM, hand=Tuple([GEAR, Dict(grip=Box(-1, 1, (), np.float64))]), legs=MultiDiscrete([2, 5])
)


SPACES = {
    "Nested": NESTED,
    "Float16": Tuple([Discrete(2, start=200, dtype=np.uint8), Box(-6e4, 6e4, (2,), np.float16)]),
    "Endless": Tuple([Box(-np.inf, np.inf, (1,), np.float32), Discrete(2)]),
    "Choices": Dict(a=Discrete(2), b=MultiDiscrete([[2], [3]], start=[[1], [2]])),
    "Numbers": Tuple([Box(-1, 1, (2,)), Box(0, 5, (1,))]),
}
WRONG = {
    "Switches": Tuple([Discrete(2), MultiBinary(3)]),
    "WholeNumbers": Dict(a=Box(0, 5, (2,), np.int64)),
    "Path": Tuple([Discrete(2), Sequence(Discrete(2))]),
    "NoNumbers": Dict(a=Box(0, 1, (0,), np.float32)),
}
for name, space in (SPACES | WRONG).items():
    one_step = {"length": 1, "terminates": True, "space": space}
    gym.register(f"Strict{name}-v0", Clock, kwargs=one_step)


def random_agent(space=NESTED, **settings):
    torch.manual_seed(0)
    args = ppo_hybrid.Args(hidden_size=13, log_std_init=-0.5, **settings)
    agent = ppo_hybrid.make_agent(args, OBS, ppo_hybrid.Flat(space))
    randomise(agent.actor)
    randomise(agent.critic)
    return agent


def test_columns_are_where_gymnasium_puts_them():
    flat = ppo_hybrid.Flat(NESTED)
    assert flat.choices == [slice(2, 5), slice(6, 8), slice(8, 13)] and flat.numbers == [0, 1, 5]
    action = {"arm": np.float32([[0.2, 7]]), "hand": (np.int8(1), {"grip": np.float64(0.5)})}
    row = flatten(NESTED, action | {"legs": np.array([1, 3])})
    np.testing.assert_allclose(row[flat.numbers], [0.2, 7, 0.5])
    assert [row[choice].tolist() for choice in flat.choices] == [[0, 0, 1], [0, 1], [0, 0, 0, 1, 0]]


def test_log_probs_and_entropies_are_sums_by_hand():
    """A choice with 1/4 and 3/4, one with 1/2, 1/3 and 1/6, and two Gaussians."""
    space = Tuple([Discrete(2), Box(-1, 1, (2,)), Discrete(3)])
    agent = random_agent(space)
    agent.log_std.data[:] = torch.log(torch.tensor([0.5, 2.0]))
    first, second = torch.tensor([1 / 4, 3 / 4]), torch.tensor([1 / 2, 1 / 3, 1 / 6])
    rows = [[*first.log() + 3, 0.1, -0.2, *second.log() - 5]] * 2
    outputs = torch.tensor(rows, requires_grad=True)
    actions = torch.tensor([[0, 1, 0.6, -0.2, 0, 0, 1], [1, 0, 0.1, 1.8, 1, 0, 0]])
    log_probs, entropies = agent.log_prob_and_entropy(outputs, actions)
    one = 1 / np.sqrt(2 * np.pi)  # the densities: one deviation from the mean, then none
    density = one**2 * np.exp(-0.5) / (0.5 * 2.0)
    expected = [3 / 4 * 1 / 6 * density, 1 / 4 * 1 / 2 * density]
    np.testing.assert_allclose(log_probs.exp().detach(), expected, rtol=1e-5)
    of_choices = -sum((p * p.log()).sum().item() for p in (first, second))
    of_numbers = 2 * 0.5 * np.log(2 * np.pi * np.e)  # and log(0.5) + log(2), which is 0
    np.testing.assert_allclose(entropies.detach(), [of_choices + of_numbers] * 2, rtol=1e-6)
    log_probs.sum().backward()  # every column learns from its own part
    assert (outputs.grad[0].abs() > 0.01).tolist() == [True] * 2 + [True, False] + [True] * 3


def test_what_acts_is_what_learns():
    """Frequencies, means and deviations of 100,000 draws, which are independent of each other."""
    agent, obs = random_agent(), np.random.default_rng(0).uniform(-1, 1, (1, 7)).astype(np.float32)
    agent.log_std.data[:] = torch.tensor([-1.0, 0.0, 0.5])
    actions = agent.act(np.repeat(obs, 100_000, axis=0), np.random.default_rng(1))
    outputs = agent(torch.as_tensor(obs)).detach()[0]
    kinds = []
    for choice in agent.choices:
        probs = torch.softmax(outputs[choice], dim=0)
        np.testing.assert_allclose(actions[:, choice].mean(axis=0), probs, atol=0.01)
        assert (actions[:, choice].sum(axis=1) == 1).all()
        kinds.append(actions[:, choice.start])
    numbers = actions[:, agent.numbers]
    np.testing.assert_allclose(numbers.mean(axis=0), outputs[agent.numbers], atol=0.03)
    np.testing.assert_allclose(numbers.std(axis=0), agent.log_std.exp().detach(), rtol=0.02)
    together = np.corrcoef([*kinds, *numbers.T])
    assert np.abs(together - np.eye(6)).max() < 0.02


def test_greedy_actions_are_the_likeliest_choice_and_the_mean():
    agent = random_agent()
    obs = np.random.default_rng(0).uniform(-1, 1, (BATCH, 7)).astype(np.float32)
    outputs = agent(torch.as_tensor(obs)).detach().numpy()
    actions = agent.act(obs, None, greedy=True)
    np.testing.assert_array_equal(actions[:, agent.numbers], outputs[:, agent.numbers])
    for choice in agent.choices:
        expected = np.eye(choice.stop - choice.start)[outputs[:, choice].argmax(axis=1)]
        np.testing.assert_array_equal(actions[:, choice], expected)


def test_numbers_reach_the_environment_in_its_units_and_choices_as_they_are():
    agent = random_agent()
    action = np.float32([[0.5, -2, 0, 1, 0, -0.25, 0, 1, 0, 0, 0, 0, 1]])
    scaled = agent.to_env(action)[0]
    # the second is clipped
    np.testing.assert_allclose(scaled[agent.numbers], [0.2, 3, -0.25], rtol=1e-6)
    choices = [scaled[choice].tolist() for choice in agent.choices]
    assert choices == [[0, 1, 0], [0, 1], [0, 0, 0, 0, 1]]


TINY = dict(num_envs=2, num_steps=8, total_timesteps=96, update_epochs=2, checkpoint_frequency=32)


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_as_declared(name):
    run = train(ppo_hybrid, **TINY, env_id=f"Strict{name}-v0", log_std_init=1.0)
    assert run.evaluate().tolist() == [1, 1, 1]
    assert {"action_low", "action_high"} <= run.arrays().keys()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_one_part_is_ppo(env_id):
    # without clipping: a norm over one array more, though empty, rounds otherwise
    settings = TINY | dict(env_id=env_id, ent_coef=0.01, max_grad_norm=1e9, eval_episodes=3)
    plain, run = train(ppo, **settings), train(ppo_hybrid, **settings)
    expected, found = plain.agent.state_dict(), run.agent.state_dict()
    assert {name: x for name, x in found.items() if x.numel()}.keys() == expected.keys()
    assert all(torch.equal(found[name], x) for name, x in expected.items())
    assert run.evaluate().tolist() == plain.evaluate().tolist()


def test_other_actions_are_refused(refused):
    for name in WRONG:
        said = refused("ppo_hybrid", f"--env-id Strict{name}-v0")
        assert "MultiDiscrete and Box of reals" in said, name
    assert "Tuple or Dict" in refused("ppo_hybrid", "--env-id ALE/Pong-v5")


def test_golf_is_what_it_says():
    env, flags = gym.make("tasks:Golf-v0"), set()
    for seed in range(30):
        flag, _ = env.reset(seed=seed)
        flags.add(flag)
        best = {"club": np.int64(flag), "swing": np.float32([tasks.Golf.best_swing[flag]])}
        assert env.step(best)[1:4] == (1.0, True, False)
    assert flags == {0, 1, 2}
    for club, swing, reward in ((0, -0.5, 0.75), (1, -0.5, -0.25), (2, 0.0, -1.0)):
        while env.reset()[0] != 0:
            pass
        assert env.step({"club": np.int64(club), "swing": np.float32([swing])})[1] == reward


@pytest.mark.slow
def test_golf_is_learned_with_the_deviation_that_is_best():
    """Of the swing, with a weight of 0.1 on entropy: sqrt(0.1 / 2), here in half ranges of 2."""
    settings = dict(ent_coef=0.1, norm_adv=False, anneal_clip=False, num_minibatches=4)
    settings |= dict(learning_rate=5e-3, total_timesteps=20_480, eval_episodes=100)
    run = train(ppo_hybrid, **settings)
    assert run.evaluate().mean() > 0.98
    assert 2 * run.agent.log_std.exp().item() == pytest.approx(np.sqrt(0.05), rel=0.2)


def test_the_first_deviation_is_the_one_asked_for():
    space = ppo_hybrid.Flat(Tuple([Discrete(3), Box(-1, 1, (2,))]))
    args = ppo_hybrid.Args(log_std_init=-0.5)
    agent = ppo_hybrid.make_agent(args, Box(-1, 1, (4,)), space)
    assert agent.log_std.tolist() == [-0.5] * 2
