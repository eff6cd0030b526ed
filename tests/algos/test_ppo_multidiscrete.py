"""Actions of several discrete components: joint distributions enumerated, spaces, exact resume."""

import itertools

import gymnasium as gym
import numpy as np
import ppo
import ppo_multidiscrete
import pytest
import tasks  # noqa: F401, registers Match-v0
import torch
from conftest import new_run, randomise, train
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple

NVEC, OBS, BATCH = [2, 3, 5], Box(-1, 1, (7,), np.float32), 11
IMAGES = Box(0, 255, (3, 36, 36), np.uint8)
ALL = list(itertools.product(*map(range, NVEC)))  # the 30 actions, by their index


class Told(gym.Env):
    """One step: the reward is the share of components that are as the observation tells."""

    observation_space = Box(0, 1, (2,), np.float32)

    def __init__(self, space, first=0, last=(1, 2)):
        self.action_space, self.first, self.last = space, first, np.array(last)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bit = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.bit], {}

    def step(self, action):
        assert action in self.action_space, action
        goal = self.first + self.last * self.bit  # in each the first choice or the last one
        share = np.mean(np.array(action).ravel() == goal)
        return np.zeros(2, np.float32), float(share), True, False, {}


FIRST = np.array([7, -1])
TOLD = {
    "Told": {"space": MultiDiscrete([2, 3])},
    "ToldTuple": {"space": Tuple([Discrete(2), Discrete(3)])},
    "ToldTupleFrom": {
        "space": Tuple([Discrete(2, start=7), Discrete(3, start=-1)]), "first": FIRST,
    },
    "ToldFrom": {"space": MultiDiscrete([2, 3], start=FIRST), "first": FIRST},
    "ToldMatrix": {"space": MultiDiscrete([[2], [3]])},
}  # fmt: skip


def one_component():
    env = gym.make("CartPole-v1")
    return gym.wrappers.TransformAction(env, lambda action: int(action[0]), MultiDiscrete([2]))


for name, kwargs in TOLD.items():
    gym.register(f"{name}-v0", Told, kwargs=kwargs)
gym.register("OneComponent-v0", one_component)
YES_OR_NO = {"Binary": MultiBinary((3, 1)), "Twos": MultiDiscrete([[2], [2], [2]])}
for name, space in YES_OR_NO.items():
    gym.register(f"{name}-v0", Told, kwargs={"space": space, "last": 1})


def random_agent(space=OBS, **settings):
    torch.manual_seed(0)
    args = ppo_multidiscrete.Args(hidden_size=13, **settings)
    return randomise(ppo_multidiscrete.make_agent(args, space, MultiDiscrete(NVEC)))


def observations():
    return np.random.default_rng(0).uniform(-1, 1, (BATCH, 7)).astype(np.float32)


def joint(agent, obs):
    """P of all actions by their index, (batch, actions), and entropies, as the loss sees them."""
    columns, entropies = [], []
    for action in itertools.product(*map(range, agent.nvec)):
        actions = torch.tensor(action).expand(len(obs), -1)
        log_probs, entropy, _ = agent.evaluate_actions(
            {"obs": torch.tensor(obs), "actions": actions}
        )
        columns.append(log_probs.exp().detach().numpy())
        entropies.append(entropy.detach().numpy())
    return np.stack(columns, axis=1), np.stack(entropies, axis=1)


def test_log_probs_and_entropies_are_those_of_products_by_hand():
    first, second = [1 / 4, 3 / 4], [1 / 2, 1 / 3, 1 / 6]
    actions = torch.tensor(list(itertools.product(range(2), range(3))))
    logits = torch.log(torch.tensor([first + second] * 6)) + torch.tensor([3.0] * 2 + [-5.0] * 3)
    scores = ppo_multidiscrete.multi_categorical_log_prob_and_entropy(logits, actions, [2, 3])
    log_probs, entropies = scores
    expected = torch.tensor([3, 2, 1, 9, 6, 3]) / 24
    torch.testing.assert_close(log_probs.exp(), expected)
    of_joint = -(expected * expected.log()).sum()
    torch.testing.assert_close(entropies, of_joint.expand(6))
    with pytest.raises(AssertionError):  # of another number of components
        ppo_multidiscrete.multi_categorical_log_prob_and_entropy(logits, actions[:, :1], [2, 3])


@pytest.mark.parametrize("autoregressive", [False, True])
def test_what_acts_is_what_learns(autoregressive):
    """The distribution in the loss, over all 30 actions, is the one that actions come from."""
    agent, obs = random_agent(autoregressive=autoregressive), observations()[:3]
    probs, entropies = joint(agent, obs)
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-5)
    of_joint = -(probs * np.log(probs)).sum(axis=1)
    # of an autoregressive one on average over actions, of an independent one always
    np.testing.assert_allclose((probs * entropies).sum(axis=1), of_joint, rtol=1e-4)
    assert (entropies.std(axis=1) > 1e-3).all() == autoregressive

    rng, draws = np.random.default_rng(0), 20_000
    for row in range(3):
        drawn = agent.act(np.repeat(obs[row : row + 1], draws, axis=0), rng)
        shares = np.bincount(np.ravel_multi_index(drawn.T, NVEC), minlength=30) / draws
        np.testing.assert_allclose(shares, probs[row], atol=0.015)  # 4 standard deviations


def test_later_components_see_the_stored_ones_before_them_one_hot():
    """P(a_1 | s) P(a_2 | s, a_1) P(a_3 | s, a_1, a_2) by hand, from the networks of the agent."""
    agent, obs = random_agent(autoregressive=True), observations()
    probs, _ = joint(agent, obs)
    for index, action in enumerate(ALL):
        product, hots = np.ones(BATCH), []
        for head, n, a in zip(agent.actor, NVEC, action, strict=True):
            inputs = np.concatenate([obs, *hots], axis=1)
            with torch.no_grad():
                product *= head(torch.tensor(inputs)).softmax(dim=1)[:, a].numpy()
            hots.append(np.tile(np.eye(n, dtype=np.float32)[a], (BATCH, 1)))
        np.testing.assert_allclose(probs[:, index], product, rtol=1e-4)


@pytest.mark.parametrize("space", [OBS, IMAGES], ids=["vectors", "images"])
def test_greedy_takes_the_likeliest_component_given_those_before_it(space):
    agent, obs = random_agent(space, autoregressive=True), observations()
    if space is IMAGES:
        obs = np.random.default_rng(0).integers(256, size=(BATCH, *space.shape), dtype=np.uint8)
    probs = joint(agent, obs)[0].reshape(BATCH, *NVEC)
    for row, action in enumerate(agent.act(obs, None, greedy=True)):
        first = probs[row].sum(axis=(1, 2)).argmax()
        second = probs[row, first].sum(axis=1).argmax()
        assert tuple(action) == (first, second, probs[row, first, second].argmax())


def test_one_component_is_ppo():
    settings = dict(total_timesteps=1024, ent_coef=0.01, eval_episodes=2)
    plain = train(ppo, env_id="CartPole-v1", **settings)
    run = train(ppo_multidiscrete, env_id="OneComponent-v0", **settings)
    assert run.hash() == plain.hash()
    assert run.hash() != new_run(ppo, **settings).hash()
    np.testing.assert_array_equal(run.evaluate(), plain.evaluate())


@pytest.mark.parametrize("autoregressive", [False, True])
def test_all_spaces_of_the_same_components_are_one_and_learn(autoregressive):
    settings = dict(total_timesteps=4096, autoregressive=autoregressive, eval_episodes=7)
    run = train(ppo_multidiscrete, **settings, env_id="ToldTupleFrom-v0")
    np.testing.assert_array_equal(run.evaluate(), np.ones(7))
    settings |= dict(total_timesteps=512)
    hashes = {train(ppo_multidiscrete, **settings, env_id=f"{name}-v0").hash() for name in TOLD}
    assert len(hashes) == 1


def test_a_multibinary_action_is_choices_of_two():
    settings = dict(total_timesteps=512, eval_episodes=5)
    runs = [train(ppo_multidiscrete, **settings, env_id=f"{name}-v0") for name in YES_OR_NO]
    assert runs[0].hash() == runs[1].hash()
    np.testing.assert_array_equal(runs[0].evaluate(), runs[1].evaluate())


@pytest.mark.slow
@pytest.mark.parametrize("autoregressive, expected", [(False, 0.25), (True, 0.802)])
def test_only_one_after_the_other_can_be_random_and_match(autoregressive, expected):
    """With entropy weighted by 0.4: e^2.5 / (e^2.5 + 3) of all episodes, or a quarter of them."""
    # a clip that falls to 0 would hold back the reward's pull and not that of the entropy: 0.755
    settings = dict(total_timesteps=20_480, ent_coef=0.4, norm_adv=False, anneal_clip=False)
    run = train(ppo_multidiscrete, **settings, autoregressive=autoregressive)
    probs, _ = joint(run.agent, np.zeros((1, 1), np.float32))
    assert np.trace(probs.reshape(4, 4)) == pytest.approx(expected, abs=0.03)
