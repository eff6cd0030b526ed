"""a2c.py beside ppo.py, and its RMSprop by hand.

What a2c.py shares with ppo.py byte for byte, GAE for one, is tested in test_ppo_maths.py.
"""

import a2c
import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import vector
from torch import nn

STEPS, ENVS, ACTIONS, OBS = 7, 5, 3, 2
SIZES = dict(num_envs=ENVS, num_steps=STEPS, total_timesteps=STEPS * ENVS)


VECTORS = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
DISCRETE = gym.spaces.Discrete(ACTIONS)
CONTINUOUS = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)


def make_agent(script, actions=DISCRETE):
    """A small agent in float64, with the same weights each time."""
    torch.manual_seed(0)
    agent = script.Agent(script.Args(hidden_size=11), VECTORS, actions).double()
    agent.features = lambda obs: obs.double()
    return agent


def fill_buffer(script, agent, rng):
    """A rollout at random, in which episodes end and are cut."""
    buffer = script.RolloutBuffer()
    obs = rng.normal(size=(ENVS, OBS)).astype(np.float32)
    for _ in range(STEPS):
        next_obs, first_obs = rng.normal(size=(2, ENVS, OBS)).astype(np.float32)
        step = {"obs": obs, "actions": agent.act(obs, rng), "next_obs": next_obs}
        step["rewards"] = rng.normal(size=ENVS).astype(np.float32)
        step["terminated"], step["truncated"] = rng.random((2, ENVS)) < 0.2
        buffer.add(**step)
        obs = np.where((step["terminated"] | step["truncated"])[:, None], first_obs, next_obs)
    return buffer


KINDS = [
    (DISCRETE, a2c.RMSpropTF, {"alpha": 0.99}),
    (DISCRETE, torch.optim.Adam, {}),
    (CONTINUOUS, a2c.RMSpropTF, {"alpha": 0.99}),
]


@pytest.mark.parametrize("actions, optimizer, keywords", KINDS)
def test_a2c_is_ppo_with_one_epoch_and_one_minibatch(actions, optimizer, keywords):
    common = dict(ent_coef=0.02, vf_coef=0.7, max_grad_norm=0.4, gamma=0.9, gae_lambda=0.8, **SIZES)
    one = dict(update_epochs=1, num_minibatches=1, norm_adv=False, clip_vloss=False)
    args = {a2c: a2c.Args(**common), ppo: ppo.Args(**common, **one)}
    agents = {script: make_agent(script, actions) for script in args}
    optimizers = {
        script: optimizer(agent.parameters(), lr=0.1, eps=1e-5, **keywords)
        for script, agent in agents.items()
    }
    start = vector(agents[a2c])
    np.testing.assert_array_equal(start, vector(agents[ppo]))
    for number in range(10):
        rng = np.random.default_rng(number)
        buffer = fill_buffer(a2c, agents[a2c], rng)
        batch, _ = a2c.rollout_batch(agents[a2c], buffer, args[a2c], np.zeros(ENVS))
        found = a2c.update(agents[a2c], optimizers[a2c], batch, args[a2c], a2c.a2c_loss)

        rng = np.random.default_rng(number)
        buffer = fill_buffer(ppo, agents[ppo], rng)
        batch, _ = ppo.rollout_batch(agents[ppo], buffer, args[ppo], np.zeros(ENVS))
        settings = args[ppo], args[ppo].clip_coef, rng, ppo.ppo_loss
        expected = ppo.update(agents[ppo], optimizers[ppo], batch, *settings)
        for name in ("losses/value_loss", "losses/entropy", "losses/explained_variance"):
            assert float(found[name]) == pytest.approx(expected[name])
        np.testing.assert_allclose(vector(agents[a2c]), vector(agents[ppo]), rtol=0, atol=1e-10)
    assert abs(vector(agents[a2c]) - start).min() > 1e-8  # all have learned


def test_the_policy_loss_by_hand():
    """-log(1/2) 3 and -log(1/4) (-1): the mean of 3 log 2 and -2 log 2."""
    log_probs = torch.tensor([1 / 2, 1 / 4]).log()
    loss = a2c.policy_gradient_loss(log_probs, torch.tensor([3.0, -1.0]))
    assert loss.item() == pytest.approx(np.log(2) / 2)


def test_rmsprop_is_tensorflows():
    """ms <- alpha ms + (1 - alpha) g^2, from 1; p <- p - lr g / sqrt(ms + eps)."""
    rng, lr, alpha, eps = np.random.default_rng(0), 0.1, 0.9, 0.3
    shapes = [(2, 3), (5,)]
    expected, ms = [rng.normal(size=shape) for shape in shapes], [np.ones(s) for s in shapes]
    parameters = [nn.Parameter(torch.tensor(x)) for x in expected]
    optimizer = a2c.RMSpropTF(parameters, lr=lr, alpha=alpha, eps=eps)
    for _ in range(4):
        for i, p in enumerate(parameters):
            g = rng.normal(size=p.shape)
            p.grad = torch.tensor(g)
            ms[i] = alpha * ms[i] + (1 - alpha) * g**2
            expected[i] = expected[i] - lr * g / np.sqrt(ms[i] + eps)
        optimizer.step()
        for p, x in zip(parameters, expected, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-13)


def test_rmsprop_leaves_alone_what_the_loss_did_not_use():
    used, unused = (nn.Parameter(torch.full((3,), 2.0)) for _ in range(2))
    optimizer = a2c.RMSpropTF([used, unused], lr=0.1, alpha=0.9, eps=1e-5)
    used.pow(2).sum().backward()
    optimizer.step()
    assert (used < 2).all() and (unused == 2).all()


@pytest.mark.parametrize("script", [ppo, a2c])
@pytest.mark.parametrize("obs_shape", [(OBS,), (1, 36, 41)])
def test_the_value_loss_touches_the_policy_only_through_the_trunk_of_images(script, obs_shape):
    images = len(obs_shape) == 3
    dtype = np.uint8 if images else np.float32
    agent = script.Agent(script.Args(), gym.spaces.Box(0, 255, obs_shape, dtype), DISCRETE)
    obs = torch.as_tensor(np.random.default_rng(0).integers(256, size=(STEPS, *obs_shape)))
    obs = obs.to(torch.uint8 if images else torch.float32)
    agent(obs).pow(2).sum().backward()
    of_the_policy = [p for p in agent.parameters() if p.grad is not None]
    agent.zero_grad()
    agent.value(agent.features(obs)).sum().backward()
    touched = sum(p.grad is not None for p in of_the_policy)
    layers = 4 if images else 2
    assert len(of_the_policy) == 2 * (layers + 1)
    assert touched == (2 * layers if images else 0)
