"""ppo_mask.py: an invalid action is never taken and counts nowhere; an embedding moves with its
slot; where all actions are valid it is ppo.
"""

import importlib
import sys

import dqn
import dqn_mask
import gymnasium as gym
import numpy as np
import ppo
import ppo_mask
import pytest
import tasks
import torch
from conftest import hash_of_parameters, new_run, randomise, train
from environments import Seen
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from load import parts_of

N, K, M, BATCH = 5, 3, 7, 11  # actions, numbers of an embedding, of the rest, rows


class Strict(tasks.InvalidActions):
    """The task, where an invalid action is an error."""

    def observe(self):
        obs = super().observe()
        self.mask = obs["action_mask"]
        return obs

    def step(self, action):
        assert self.mask[action] == 1, "an invalid action"
        return super().step(action)


class AllValid(gym.ObservationWrapper):
    """CartPole-v1 with a mask of ones; `embedded`, too: action i is row i of the identity."""

    def __init__(self, embedded=False):
        super().__init__(gym.make("CartPole-v1"))
        self.parts = {"action_mask": np.ones(2, np.int8)}
        spaces = {"action_mask": MultiBinary(2), "obs": self.env.observation_space}
        if embedded:
            self.parts["avail_actions"] = np.eye(2, dtype=np.float32)
            spaces["avail_actions"] = Box(0, 1, (2, 2), np.float32)
        self.observation_space = Dict(spaces)

    def observation(self, observation):
        return self.parts | {"obs": observation}


class Ends(gym.Env):
    """Episodes of three steps; every other one is cut instead. What follows the last step has no
    valid action and, where the task ended, no numbers.
    """

    observation_space = Dict(action_mask=MultiBinary(N), obs=Box(-1, 1, (M,), np.float32))
    action_space = Discrete(N)
    ends = 0

    def __init__(self, blocked=False):
        self.blocked = blocked

    def observe(self, valid, number=0.5):
        mask = np.arange(N) % 2 if valid else np.zeros(N)
        return {"action_mask": mask.astype(np.int8), "obs": np.full(M, number, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(True), {}

    def step(self, action):
        assert action % 2 == 1, "an invalid action"
        self.t += 1
        over = self.t == 3
        self.ends += over
        terminated = over and self.ends % 2 == 0
        obs = self.observe(not over and not self.blocked, np.nan if terminated else 0.5)
        return obs, 1.0, terminated, over and not terminated, {}


MASK, AVAIL, REST = MultiBinary(N), Box(-1, 1, (N, K), np.float32), Box(-1, 1, (M,), np.float32)
SPACES = {"Masked-v0": Dict(action_mask=MASK, obs=REST)}
SPACES["Embedded-v0"] = Dict(action_mask=MASK, avail_actions=AVAIL, obs=REST)
SPACES["OneHotRest-v0"] = Dict(action_mask=Box(0, 1, (N,), np.uint8), obs=MultiDiscrete([2, 5]))
WRONG = {
    "Vector-v0": REST,
    "EarlierName-v0": Dict({"action_mask": MASK, "a": REST}),  # which gymnasium sorts
    "NameBetween-v0": Dict({"action_mask": MASK, "avail_actions": AVAIL, "actual": REST}),
    "FlatEmbedding-v0": Dict(action_mask=MASK, avail_actions=MultiBinary(N * K), obs=REST),
    "SmallEmbedding-v0": Dict(
        action_mask=MASK, avail_actions=Box(-1, 1, (N - 1, K), np.float32), obs=REST
    ),
    # these become one-hot when they are flattened, of 2 N numbers
    "MultiDiscreteMask-v0": Dict(action_mask=MultiDiscrete([2] * N), obs=REST),
    "MaskAlone-v0": Dict(action_mask=MASK),
    "DiscreteMask-v0": Dict(action_mask=Discrete(N), obs=REST),
    "DiscreteEmbedding-v0": Dict(
        action_mask=MASK, avail_actions=MultiDiscrete([[4] * K] * N), obs=REST
    ),
}
for name, space in (SPACES | WRONG).items():
    gym.register(name, Seen, kwargs={"observation_space": space, "space": Discrete(N)})
gym.register("Ends-v0", Ends)
gym.register("Strict-v0", Strict, max_episode_steps=100)
gym.register("AllValid-v0", AllValid)
gym.register("Identity-v0", AllValid, kwargs={"embedded": True})


def random_agent(env_id, **settings):
    return randomise(new_run(ppo_mask, env_id=env_id, **settings).agent)


def observations(rng, k=0, rows=BATCH):
    """Random ones; the first five masks have 1 to 5 valid actions."""
    mask = rng.random((rows, N)) < 0.4
    for i in range(rows):
        if i < N or not mask[i].any():
            mask[i] = rng.permutation(N) <= i % N
    numbers = rng.uniform(-1, 1, (rows, N * k + M))
    return np.concatenate([mask, numbers], axis=1).astype(np.float32)


def test_the_parts_are_where_make_env_puts_them():
    for env_id, k in (("Masked-v0", 0), ("Embedded-v0", K), ("OneHotRest-v0", 0)):
        assert ppo_mask.embedding_size(ppo_mask.Args(env_id), N, ppo.make_env) == k
        space = gym.make(env_id).observation_space
        obs = space.sample()
        flat = gym.spaces.flatten(space, obs)[None]
        parts = ppo_mask.split_obs(flat, N, k)
        np.testing.assert_array_equal(parts[0][0], obs["action_mask"])
        rest = gym.spaces.flatten(space["obs"], obs["obs"])
        np.testing.assert_array_equal(parts[2][0], rest)
        if k > 0:
            np.testing.assert_array_equal(parts[1][0], obs["avail_actions"])


@pytest.mark.parametrize("module, parent", [(ppo_mask, ppo), (dqn_mask, dqn)])
def test_a_wrapper_in_make_env_counts(module, parent, monkeypatch):
    """One that takes the embeddings away; the network asks this script's make_env."""
    asked, make_env, make = [], parent.make_env, gym.make
    kept = ["action_mask", "obs"]
    filtered = lambda env_id, **x: gym.wrappers.FilterObservation(make(env_id, **x), kept)  # noqa: E731
    monkeypatch.setattr(gym, "make", filtered)
    assert module.make_envs.keywords == {"make_env": module.make_env}
    assert parts_of(module.__name__)[-1] is module.make_envs  # which main is given
    monkeypatch.setattr(module, "make_env", lambda *x: asked.append(x) or make_env(*x))
    agent = new_run(module, env_id="Embedded-v0").agent
    sizes = [layer.in_features for layer in agent.modules() if hasattr(layer, "in_features")]
    assert (agent.k, sizes[0]) == (0, M) and asked == [("Embedded-v0",)]


@pytest.mark.parametrize("module", [ppo_mask, dqn_mask])
def test_a_wrapper_that_moves_the_mask_is_refused(module, monkeypatch, failure):
    def make_env(env_id):
        return gym.wrappers.FlattenObservation(
            gym.wrappers.FrameStackObservation(ppo.make_env(env_id), 4)
        )

    monkeypatch.setattr(module, "make_env", make_env)
    assert "put wrappers below" in failure(new_run, module, env_id="Masked-v0")


@pytest.mark.parametrize("name", ["ppo_mask", "dqn_mask"])
def test_other_spaces_are_refused(refused, name):
    for env_id in (*WRONG, "CartPole-v1"):
        assert env_id in refused(name, f"--env-id {env_id}")
    assert "Discrete" in refused(name, "--env-id Pendulum-v1")


@pytest.mark.parametrize("env_id, k", [("Masked-v0", 0), ("Embedded-v0", K)])
def test_probabilities_are_a_softmax_over_the_valid_actions(env_id, k):
    agent, obs = random_agent(env_id), observations(np.random.default_rng(0), k)
    tensor = torch.as_tensor(obs)
    with torch.no_grad():
        outputs = agent.actor(tensor[:, N + N * k :]).numpy()  # (BATCH, k or N)
        value = agent.critic(tensor[:, N + N * k :]).squeeze(1)
        columns = [
            agent.evaluate_actions({"obs": tensor, "actions": torch.full((BATCH,), a)})
            for a in range(N)
        ]
    probs = np.stack([log_probs.exp().numpy() for log_probs, _, _ in columns], axis=1)
    expected, entropies = np.zeros((BATCH, N)), np.zeros(BATCH)
    for i in range(BATCH):
        valid = [a for a in range(N) if obs[i, a] == 1]
        for a in valid:
            row = obs[i, N + a * k : N + (a + 1) * k]
            logit = row @ outputs[i] if k > 0 else outputs[i, a]
            expected[i, a] = np.exp(logit)
        expected[i] /= expected[i].sum()
        entropies[i] = -sum(expected[i, a] * np.log(expected[i, a]) for a in valid)
    np.testing.assert_allclose(probs, expected, rtol=1e-4)
    assert (probs[obs[:, :N] == 0] == 0).all()
    np.testing.assert_allclose(columns[0][1], entropies, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(columns[0][2], value)
    np.testing.assert_array_equal(agent.act(obs, None, greedy=True), expected.argmax(axis=1))

    drawn = agent.act(np.repeat(obs, 10_000, axis=0), np.random.default_rng(1))
    for probs, actions in zip(expected, drawn.reshape(BATCH, -1), strict=True):
        shares = np.bincount(actions, minlength=N) / 10_000
        np.testing.assert_allclose(shares, probs, atol=0.02)
        assert (shares[probs == 0] == 0).all()


def test_what_is_normalised_is_the_rest_alone():
    agent, rng = random_agent("Embedded-v0", norm_obs=True), np.random.default_rng(4)
    obs = observations(rng, K)
    agent.obs_moments.update(obs * 3 + 1)
    mask, embeddings, rest = agent.features(torch.as_tensor(obs))
    np.testing.assert_array_equal(mask, obs[:, :N])
    np.testing.assert_array_equal(embeddings.reshape(BATCH, -1), obs[:, N : N + N * K])
    seen = obs[:, N + N * K :]
    expected = (seen - (3 * seen + 1).mean(axis=0)) / (3 * seen).std(axis=0)
    np.testing.assert_allclose(rest, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name, parent", [("ppo_mask", ppo), ("dqn_mask", dqn)])
def test_a_mask_without_a_valid_action_ends_the_run(name, parent, monkeypatch):
    module = importlib.import_module(name)
    flags = ["--env-id", "Ends-v0", "--env-kwargs", '{"blocked": true}']
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
    with pytest.raises(ValueError, match=r"no action is valid in .* of environments \["):
        parent.main(name, module.Args, module.make_agent, parent.train, parent.evaluation_policy)


def test_each_mask_needs_a_valid_action():
    with pytest.raises(ValueError, match=r"of environments \[1\]"):
        ppo_mask.require_valid_action(np.array([[0, 1, 0], [0, 0, 0]]))
    with pytest.raises(ValueError, match="of 0 and 1"):  # of a wrapper that normalises, perhaps
        ppo_mask.require_valid_action(np.array([[0, 0.9, 0.1]]))


def test_a_last_observation_may_have_no_valid_action_and_no_numbers():
    """Returns of 3 rewards; the loss of a run is finite, or `Run` would end it."""
    run = train(ppo_mask, env_id="Ends-v0", total_timesteps=2048, learning_rate=0.01)
    assert all(torch.isfinite(p).all() for p in run.agent.parameters())
    assert run.evaluate().tolist() == [3, 3, 3]


@pytest.mark.parametrize("env_id", ["AllValid-v0", "Identity-v0"])
def test_where_all_actions_are_valid_it_is_ppo(env_id):
    settings = dict(total_timesteps=512, checkpoint_frequency=256, ent_coef=0.01)
    plain, masked = train(ppo, **settings), train(ppo_mask, env_id=env_id, **settings)
    assert masked.hash() == plain.hash()
    assert masked.evaluate().tolist() == plain.evaluate()[:3].tolist()
    # the moments, here of the whole observation, are other arrays; the weights are the same
    plain = train(ppo, **settings, norm_obs=True)
    masked = train(ppo_mask, env_id=env_id, **settings, norm_obs=True)
    assert hash_of_parameters(masked.agent) == hash_of_parameters(plain.agent)


def test_a_run_takes_valid_actions_and_learns():
    settings = dict(env_id="Strict-v0", ent_coef=0.01, total_timesteps=2048)
    assert train(ppo_mask, **settings).evaluate().mean() > 30  # 100/15 by chance


def test_invalid_actions_is_the_task_it_says():
    env, plain = (gym.make(f"tasks:{name}Actions-v0") for name in ("Invalid", "Unmasked"))
    (obs, _), (state, _) = env.reset(seed=0), plain.reset(seed=0)
    for t in range(100):
        mask = obs["action_mask"]
        assert mask.sum() == 15 and mask[state] == 1 and obs["obs"] == state
        action = state if t % 2 else np.flatnonzero(mask == t // 2 % 2)[-1]
        obs, reward, terminated, truncated, _ = env.step(action)
        assert reward == (action == state) and not terminated and truncated == (t == 99)
        state = plain.step(0)[0]


@pytest.mark.slow
def test_embeddings_balance_a_pole_whose_actions_change_places():
    run = train(ppo_mask, env_id="tasks:ShuffledCartPole-v0", total_timesteps=51_200)
    assert run.evaluate().mean() > 400
