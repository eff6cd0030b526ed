"""The formulas of ppo.py against numbers worked out by hand and against independent definitions.

Sizes are pairwise different primes, so that a wrong axis cannot hide.
"""

import math

import a2c
import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import calls
from torch import nn
from torch.distributions import Categorical, Independent, Normal

STEPS, ENVS, BATCH, ACTIONS, OBS = 13, 5, 7, 3, 2
VECTORS = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
CONTINUOUS = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)
SIZES = dict(num_envs=5, num_steps=7, total_timesteps=35)


def make_agent(actions=None, **settings):
    return ppo.Agent(ppo.Args(**settings), VECTORS, actions or gym.spaces.Discrete(ACTIONS))


def random_rollout(seed):
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, STEPS, ENVS))
    terminated, truncated = rng.random((2, STEPS, ENVS)) < 0.2
    terminated[-1], truncated[-1] = [True, False, True, False, False], [False, True, True, False, 0]
    terminated[4, 0] = truncated[4, 0] = True  # both at once
    return rewards, values, next_values, terminated, truncated


@pytest.mark.parametrize("seed", range(5))
def test_gae_is_the_sum_over_the_rest_of_the_episode(seed):
    rewards, values, next_values, terminated, truncated = random_rollout(seed)
    gamma, lam = 0.9, 0.7
    expected = np.zeros((STEPS, ENVS))
    for env in range(ENVS):
        for start in range(STEPS):
            for t in range(start, STEPS):  # eq. 16: sum of (gamma lambda)^l delta_{t+l}
                bootstrap = 0.0 if terminated[t, env] else gamma * next_values[t, env]
                delta = rewards[t, env] + bootstrap - values[t, env]
                expected[start, env] += (gamma * lam) ** (t - start) * delta
                if terminated[t, env] or truncated[t, env]:
                    break
    advantages = ppo.gae(rewards, values, next_values, terminated, truncated, gamma, lam)
    np.testing.assert_allclose(advantages, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(AssertionError):
        ppo.gae(rewards, values, next_values[-1], terminated, truncated, gamma, lam)


def test_discounted_returns_begin_anew_with_each_episode():
    rng = np.random.default_rng(0)
    rewards, ended = rng.normal(size=(STEPS, ENVS)), rng.random((STEPS, ENVS)) < 0.3
    ended[-1] = [True, False, True, False, False]
    before, gamma = rng.normal(size=ENVS), 0.9
    sums, after = ppo.discounted_returns(rewards, ended, gamma, before)
    for env in range(ENVS):
        for t in range(STEPS):
            starts = [k + 1 for k in range(t) if ended[k, env]]
            start = starts[-1] if starts else 0
            expected = sum(gamma ** (t - k) * rewards[k, env] for k in range(start, t + 1))
            if not starts:
                expected += gamma ** (t + 1) * before[env]
            assert sums[t, env] == pytest.approx(expected)
        assert after[env] == (0 if ended[-1, env] else sums[-1, env])


def test_categorical_against_torch():
    torch.manual_seed(0)
    logits, action = torch.randn(BATCH, ACTIONS) * 3, torch.randint(ACTIONS, (BATCH,))
    log_prob, entropy = ppo.categorical_log_prob_and_entropy(logits, action)
    reference = Categorical(logits=logits)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())
    with pytest.raises(AssertionError):
        ppo.categorical_log_prob_and_entropy(logits, action[:, None])


def test_gaussian_against_torch():
    torch.manual_seed(0)
    mean, action = torch.randn(2, BATCH, ACTIONS)
    log_std = torch.tensor([-1.0, 0.3, 2.0])
    log_prob, entropy = ppo.gaussian_log_prob_and_entropy(mean, log_std, action)
    reference = Independent(Normal(mean, log_std.exp().expand(BATCH, -1)), 1)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())
    log_std = torch.randn(BATCH, ACTIONS)  # of each state
    log_prob, entropy = ppo.gaussian_log_prob_and_entropy(mean, log_std, action)
    reference = Independent(Normal(mean, log_std.exp()), 1)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())
    for wrong in (log_std[:1], log_std[:, :1], log_std.T):
        with pytest.raises(AssertionError):
            ppo.gaussian_log_prob_and_entropy(mean, wrong, action)


def test_clipped_policy_loss_by_hand():
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 1.1], [2.0, -2.0, 2.0, -2.0, 1.0]
    # min(r A, clip(r) A): 1.2 * 2, 1.5 * -2, 0.5 * 2, 0.8 * -2, 1.1
    expected = -(2.4 - 3.0 + 1.0 - 1.6 + 1.1) / 5
    log_ratio = torch.tensor(ratios).log().requires_grad_()
    loss = ppo.clipped_policy_loss(log_ratio, torch.tensor(advantages), 0.2)
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    # where the clipped term is the smaller one no gradient flows; elsewhere -r A / 5
    assert log_ratio.grad.tolist() == pytest.approx([0, 0.6, -0.2, 0, -0.22])
    with pytest.raises(AssertionError):
        ppo.clipped_policy_loss(log_ratio, torch.tensor(advantages)[:, None], 0.2)


def test_value_loss_by_hand():
    values, old, returns = torch.tensor([[3.0, 1.0], [1.0, 1.0], [4.0, 0.0]])
    assert ppo.value_loss(values, old, returns).item() == pytest.approx(0.5 * (1 + 1) / 2)
    # clipped: 1 + clip(2, -0.5, 0.5) = 1.5, error 2.5^2; and 1, error 1
    clipped = ppo.value_loss(values, old, returns, clip_coef=0.5).item()
    assert clipped == pytest.approx(0.5 * (6.25 + 1) / 2)
    with pytest.raises(AssertionError):
        ppo.value_loss(values, old, returns[:, None])


def test_approx_kl_and_explained_variance_by_hand():
    log_ratio = torch.tensor([math.log(2.0), math.log(0.5)])
    expected = ((2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2))) / 2
    assert ppo.approx_kl(log_ratio).item() == pytest.approx(expected)
    returns = np.array([1.0, 2.0, 3.0, 4.0])
    assert ppo.explained_variance(returns + 7, returns) == 1.0
    assert ppo.explained_variance(np.full(4, 9.0), returns) == 0.0
    assert ppo.explained_variance(-returns, returns) == pytest.approx(-3.0)
    assert np.isfinite(ppo.explained_variance(returns, np.ones(4)))


def test_running_moments_do_not_drift():
    """Two million samples far from 0, a rollout at a time: in float32 the variance is lost."""
    rng, moments = np.random.default_rng(0), ppo.RunningMoments((ACTIONS,))
    offsets, scales = np.array([1e3, -7.0, 0.1]), np.array([0.5, 1e-3, 30.0])
    seen = offsets + scales * rng.normal(size=(2_000_003, ACTIONS))
    for chunk in (seen[:1], *np.array_split(seen[1:], 1009)):
        moments.update(chunk)
    assert moments.count == 2_000_003
    np.testing.assert_allclose(moments.mean.numpy(), seen.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(moments.var.numpy(), seen.var(axis=0), rtol=1e-9)


def test_gaussian_actions_keep_to_the_bounds_of_their_own_dimension():
    largest = np.finfo(np.float32).max
    low = np.array([-1.0, 0.0, 10.0, -np.inf, 5.0, -np.inf, 0.0])
    high = np.array([3.0, 0.5, 1000.0, np.inf, np.inf, -7.0, largest])
    agent = make_agent(gym.spaces.Box(np.float32(low), np.float32(high)))
    with torch.no_grad():
        agent.log_std.copy_(torch.tensor([-1.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]))
    actions = agent.act(np.zeros((20_000, OBS), np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(actions.mean(axis=0), 0, atol=0.2)
    np.testing.assert_allclose(actions.std(axis=0), np.exp([-1, 0, 1, 2, 0, 0, 0]), rtol=0.05)
    sent = agent.to_env(actions)
    assert (sent >= low).all() and (sent <= high).all()
    middle = agent.to_env(np.zeros((1, 7), np.float32))
    np.testing.assert_allclose(middle, [[1.0, 0.25, 505.0, 0.0, 5.0, -7.0, 0.0]])
    half = agent.to_env(np.full((1, 7), 0.5))
    np.testing.assert_allclose(half, [[2.0, 0.375, 752.5, 0.5, 5.5, -7.0, 0.5]])


@pytest.mark.parametrize("script", [ppo, a2c])
@pytest.mark.parametrize("images", [False, True])
def test_weights_start_orthogonal_and_the_first_policy_nearly_uniform(images, script):
    obs_space = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8) if images else VECTORS
    agent = script.Agent(script.Args(log_std_init=-0.7), obs_space, CONTINUOUS)
    kinds = nn.Linear | nn.Conv2d
    layers = {name: x for name, x in agent.named_modules() if isinstance(x, kinds)}
    last = {"actor": 0.01, "critic": 1.0} if images else {"actor.4": 0.01, "critic.4": 1.0}
    assert len(layers) == 6 and layers.keys() >= last.keys()
    for name, layer in layers.items():
        gain = last.get(name, math.sqrt(2))
        weight = layer.weight.detach().flatten(1)
        gram = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), rtol=0, atol=1e-4 * gain)
        assert (layer.bias == 0).all()
    assert agent.log_std.tolist() == pytest.approx([-0.7] * ACTIONS)


def make_update_batch(agent, size):
    torch.manual_seed(0)
    batch = {"obs": torch.randn(size, OBS), "actions": torch.randint(ACTIONS, (size,))}
    batch["log_probs"], _, batch["values"] = agent.evaluate_actions(batch)
    batch |= {"advantages": torch.randn(size), "returns": torch.randn(size)}
    return {name: tensor.detach() for name, tensor in batch.items()}


def run_update(**settings):
    args = ppo.Args(**SIZES, **settings)
    torch.manual_seed(1)
    agent = make_agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    batch, rng = make_update_batch(agent, 35), np.random.default_rng(0)
    scalars = ppo.update(agent, optimizer, batch, args, args.clip_coef, rng, ppo.ppo_loss)
    (steps,) = {state["step"].item() for state in optimizer.state.values()}
    return scalars, steps


@pytest.mark.parametrize("update_epochs", [1, 3])
def test_the_losses_that_are_logged_are_those_of_a_minibatch(update_epochs):
    """At learning rate 0 every epoch has the same: 7 minibatches of 5, all steps once."""
    settings = dict(num_minibatches=7, norm_adv=False)
    scalars, _ = run_update(**settings, update_epochs=update_epochs, learning_rate=0.0)
    torch.manual_seed(1)
    agent = make_agent()
    batch = make_update_batch(agent, 35)
    probs = torch.softmax(agent(batch["obs"]), dim=1).detach().numpy()
    errors = batch["returns"] - batch["values"]
    explained = 1 - (errors.var(correction=0) / batch["returns"].var(correction=0)).item()
    expected = {
        "losses/policy_loss": -batch["advantages"].mean().item(),
        "losses/value_loss": ((batch["values"] - batch["returns"]) ** 2).mean().item() / 2,
        "losses/entropy": -(probs * np.log(probs)).sum(axis=1).mean(),
        "losses/approx_kl": 0.0,
        "losses/clipfrac": 0.0,
        "losses/explained_variance": explained,
    }
    found = {name: scalars[name] for name in expected}
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_kl_and_the_clipped_share_are_of_the_whole_last_epoch():
    args, ratios = ppo.Args(**SIZES, num_minibatches=7, update_epochs=2), []
    agent = make_agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)

    def loss_of(*inputs):
        loss, terms, log_ratio = ppo.ppo_loss(*inputs)
        ratios.append(log_ratio.detach().numpy())
        return loss, terms, log_ratio

    batch, rng = make_update_batch(agent, 35), np.random.default_rng(0)
    # args.clip_coef is that of the start
    scalars = ppo.update(agent, optimizer, batch, args, 0.01, rng, loss_of)
    last = np.concatenate(ratios[7:])
    by_hand = np.mean(np.exp(last) - 1 - last), np.mean(np.abs(np.exp(last) - 1) > 0.01)
    found = scalars["losses/approx_kl"], scalars["losses/clipfrac"]
    assert found == pytest.approx(by_hand, rel=1e-4) and 0.1 < found[1] < 1


def test_a_term_may_count_and_a_column_of_another_length_fails_at_once():
    args, agent = ppo.Args(**SIZES, num_minibatches=7, update_epochs=2), make_agent()
    batch = make_update_batch(agent, 35)

    def update():
        optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
        return ppo.update(agent, optimizer, batch, args, 0.2, np.random.default_rng(0), loss_of)

    def loss_of(agent, minibatch, *rest):
        loss, terms, log_ratio = ppo.ppo_loss(agent, minibatch, *rest)
        return loss, terms | {"rows": torch.tensor(len(minibatch["obs"]))}, log_ratio

    assert update()["losses/rows"] == 5
    batch["next_obs"] = torch.zeros(36, 3)
    with pytest.raises(AssertionError, match="'next_obs': 36"):
        update()


def test_target_kl_ends_the_epochs():
    settings = dict(num_minibatches=5, update_epochs=9)
    scalars, steps = run_update(**settings, learning_rate=1e-2, target_kl=1e-3)
    assert steps % 5 == 0 and 5 <= steps < 45 and scalars["losses/approx_kl"] > 1e-3
    assert run_update(**settings, learning_rate=1e-2, target_kl=1e3)[1] == 45


def rows(obs) -> set:
    return set(map(tuple, obs.tolist()))


def test_every_minibatch_sees_its_own_share_of_the_rollout(monkeypatch):
    evaluated = calls(monkeypatch, ppo.Agent, "evaluate_actions")
    run_update(num_minibatches=7, update_epochs=2)
    seen = [call["batch"]["obs"] for call in evaluated]
    minibatches = seen[1:]  # the first call made the batch
    assert [len(m) for m in minibatches] == [5] * 14
    for epoch in (minibatches[:7], minibatches[7:]):
        together = torch.cat(epoch)
        assert torch.equal(together.sort(dim=0).values, seen[0].sort(dim=0).values)
        assert not torch.equal(together, seen[0])
    first_epoch, second_epoch = ([rows(m) for m in minibatches[i : i + 7]] for i in (0, 7))
    neighbours = [rows(m) for m in seen[0].split(5)]
    assert not any(share in neighbours for share in first_epoch)  # steps are dealt one by one
    assert not any(share in first_epoch for share in second_epoch)  # and each time anew


def test_advantages_are_normalised_in_each_minibatch(monkeypatch):
    seen = calls(monkeypatch, ppo, "clipped_policy_loss")
    run_update(num_minibatches=7, update_epochs=1)
    assert len(seen) == 7
    for advantages in (call["advantages"] for call in seen):
        assert advantages.mean().item() == pytest.approx(0, abs=1e-6)
        assert advantages.std().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("size, minibatches", [(13, 6), (3, 1), (2, 1), (1, 1)])
def test_a_short_last_rollout_has_two_steps_in_each_minibatch(size, minibatches):
    agent, args = make_agent(), ppo.Args(**SIZES, num_minibatches=7, update_epochs=1)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-2)
    batch, sizes = make_update_batch(agent, size), []

    def loss_of(agent, minibatch, *rest):
        sizes.append(len(minibatch["obs"]))
        return ppo.ppo_loss(agent, minibatch, *rest)

    ppo.update(agent, optimizer, batch, args, 0.2, np.random.default_rng(0), loss_of)
    assert sum(sizes) == size and len(sizes) == minibatches and min(sizes) >= min(size, 2)
