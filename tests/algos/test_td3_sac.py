"""td3_sac.py: the density is one, what is soft in targets and losses, the quantiles of TQC, and a
task whose best policy is known at every temperature.
"""

import functools
import itertools
import math

import numpy as np
import pytest
import td3
import td3_sac
import torch
from conftest import before, calls, curves, train
from test_td3 import ACTION_SPACE, ACTIONS, BATCH, OBS, VECTORS, random_batch

TINY = dict(env_id="Pendulum-v1", total_timesteps=300, learning_starts=50, batch_size=16,
    buffer_size=200, hidden_sizes=(16, 16), checkpoint_frequency=100)  # fmt: skip
TQC = {"quantiles": 5, "drop": 2}


def agents(**settings):
    """An agent, another as its target, and their arguments."""
    torch.manual_seed(0)
    args = td3_sac.Args(hidden_sizes=(11, 13), **settings)
    agent, target = (td3_sac.make_agent(args, VECTORS, ACTION_SPACE) for _ in range(2))
    for p in (*agent.critics.parameters(), *target.critics.parameters()):
        # so that neither critic is always the smaller one
        torch.nn.init.normal_(p, std=0.5) if p.ndim > 1 else torch.nn.init.zeros_(p)
    return agent, target, args


def noise_of(seed):
    noise = np.random.default_rng(seed).standard_normal((BATCH, ACTIONS), np.float32)
    return torch.tensor(noise)


def test_log_probabilities_by_hand():
    """Mean u, sigma 1, where log N(u) is -0.9189: at a = 0.5 less log 0.75; at u = 50, where tanh
    is 1 in float32, less log(1 - tanh^2) = -98.6137. Two dimensions add up.
    """
    u = torch.tensor([[0.0, math.atanh(0.5)], [50.0, -50.0]])
    found = td3_sac.squashed_log_prob(u, u, torch.zeros_like(u))
    expected = [2 * -0.9189385 - math.log(0.75), 2 * (-0.9189385 + 98.613706)]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=0)


def test_a_sample_has_the_density_of_its_own_action():
    """As torch.distributions computes it, in half ranges whatever the bounds; with gradients."""
    agent, _, _ = agents()
    obs, noise = random_batch()["obs"], noise_of(1)
    actions, log_probs = agent.sample(obs, noise)
    with torch.no_grad():
        mean, log_std = agent.actor(obs)[:, :ACTIONS], agent.actor(obs)[:, ACTIONS:].clamp(-5, 2)
        torch.testing.assert_close(actions, torch.tanh(mean + log_std.exp() * noise))
        normal = torch.distributions.Normal(mean, log_std.exp())
        squash = torch.distributions.TanhTransform()
        policy = torch.distributions.TransformedDistribution(normal, squash)
        expected = policy.log_prob(actions.detach()).sum(dim=1)
    torch.testing.assert_close(log_probs, expected, atol=1e-4, rtol=1e-4)
    assert actions.requires_grad and log_probs.requires_grad


@pytest.mark.parametrize("raw, expected", [(-9.0, -5.0), (0.5, 0.5), (9.0, 2.0)])
def test_log_sigma_stays_between_its_bounds(raw, expected):
    agent, _, _ = agents()
    with torch.no_grad():
        agent.actor[-1].weight.zero_()
        agent.actor[-1].bias[ACTIONS:] = raw
    assert (agent.policy(torch.zeros(2, OBS))[1] == expected).all()


def test_quantiles_against_loops():
    """The loss of TQC; sizes are unequal primes."""
    rng, m, n = np.random.default_rng(0), 5, 11
    theta, y = rng.normal(size=(BATCH, m)), 2 * rng.normal(size=(BATCH, n))
    total = 0.0
    for b, i, j in itertools.product(range(BATCH), range(m), range(n)):
        u = y[b, j] - theta[b, i]
        huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
        total += abs((2 * i + 1) / (2 * m) - (u < 0)) * huber
    expected = total / y.size / m
    found = td3_sac.quantile_huber_loss(torch.tensor(theta), torch.tensor(y))
    assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize("tqc", [{}, TQC])
def test_losses_of_critics_are_made_of_the_right_parts(tqc):
    """Next actions of the online actor, their values by the target critics, the smallest of them,
    minus alpha log pi.
    """
    agent, target, args = agents(alpha=0.7, **tqc)
    batch, noise = random_batch(1), noise_of(2)
    batch["next_obs"][batch["terminated"]] = torch.nan  # what follows an end does not count
    with torch.no_grad():
        actions, log_probs = agent.sample(batch["next_obs"], noise)
        pairs = torch.cat([batch["next_obs"], actions], dim=1)
        pooled = torch.cat([critic(pairs) for critic in target.critics], dim=1)
        kept = pooled.sort(dim=1).values[:, : 6 if tqc else 1]
        soft = kept - 0.7 * log_probs[:, None]
        y = batch["rewards"][:, None] + batch["discounts"][:, None] * soft
        y[batch["terminated"]] = batch["rewards"][batch["terminated"]][:, None]
        pairs = torch.cat([batch["obs"], batch["actions"]], dim=1)
        q = [critic(pairs) for critic in agent.critics]
        loss_of = td3_sac.quantile_huber_loss if tqc else torch.nn.functional.mse_loss
        expected = [loss_of(x, y) for x in q]
    losses, q_mean = td3_sac.q_losses(agent, target, batch, noise, args)
    torch.testing.assert_close([loss.detach() for loss in losses], expected)
    torch.testing.assert_close(q_mean, q[0].mean())
    assert batch["terminated"].any() and not batch["terminated"].all()
    with pytest.raises(AssertionError):
        column = {"rewards": batch["rewards"][:, None]}
        td3_sac.q_losses(agent, target, batch | column, noise, args)


@pytest.mark.parametrize("tqc", [{}, TQC])
def test_the_loss_of_the_actor(tqc):
    """alpha log pi - Q, the smaller of two or the mean of all quantiles, and its gradient."""
    agent, _, args = agents(alpha=0.7, **tqc)
    obs, noise = random_batch(3)["obs"], noise_of(4)
    loss, log_probs = td3_sac.policy_loss(agent, obs, noise, args)
    actions, expected = agent.sample(obs, noise)
    q = torch.cat([c(torch.cat([obs, actions], dim=1)) for c in agent.critics], dim=1)
    q = q.mean(dim=1) if tqc else torch.minimum(q[:, 0], q[:, 1])
    by_hand = (0.7 * expected - q).mean()
    torch.testing.assert_close(log_probs, expected.detach())
    assert not log_probs.requires_grad
    torch.testing.assert_close(loss, by_hand)
    weights = list(agent.actor.parameters())
    gradients = [torch.autograd.grad(x, weights) for x in (loss, by_hand)]
    torch.testing.assert_close(*gradients)


def updated(rng=None, parts=None, **settings):
    """An agent and its target after one update, and the curves; of `parts` made for the test."""
    agent, target, args = parts or agents(**settings)
    parts = {"actor": agent.actor, "critic": agent.critics}
    optimizers = {f"{k}_optimizer": torch.optim.Adam(m.parameters()) for k, m in parts.items()}
    optimizers["alpha_optimizer"] = torch.optim.Adam([agent.log_alpha])
    rng = rng or np.random.default_rng(0)
    curves = td3_sac.sac_update(agent, target, optimizers, random_batch(), args, rng, 1)
    return agent, target, curves


def test_what_the_actor_and_the_temperature_do_to_other_gradients():
    """Nothing: those of the critics are still those of their own loss."""
    agent, _, _ = updated()
    before, target, args = agents()
    next_noise, _ = np.random.default_rng(0).standard_normal((2, BATCH, ACTIONS), np.float32)
    losses, _ = td3_sac.q_losses(before, target, random_batch(), torch.tensor(next_noise), args)
    sum(losses).backward()
    for p, q in zip(agent.critics.parameters(), before.critics.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


def test_the_target_follows_whatever_the_agent_has():
    """Not its critics alone: a reader may give them an encoder."""
    agent, target, args = agents()
    for module in (agent, target):
        module.encoder = torch.nn.Linear(OBS, OBS)
    old = target.encoder.weight.detach().clone()
    updated(parts=(agent, target, args))
    expected = (1 - args.tau) * old + args.tau * agent.encoder.weight.detach()
    torch.testing.assert_close(target.encoder.weight.detach(), expected)


def test_the_target_networks_do_not_drop_out(monkeypatch):
    modes = set()
    look = lambda agent, target, *_: modes.add((agent.training, target.training))  # noqa: E731
    before(monkeypatch, td3_sac, "q_losses", look)
    train(td3_sac, **TINY | {"total_timesteps": 60})
    assert modes == {(True, False)}


@pytest.mark.parametrize("alpha", [0.25, 0.0])
def test_a_temperature_that_is_given_counts_whatever_the_first_weights_have(alpha):
    run = train(td3_sac, **TINY | {"total_timesteps": 60}, alpha=0.75)
    run.save()
    settings = {"alpha": alpha, "init_weights": str(run.folder / "weights.npz")}
    run = train(td3_sac, **TINY | {"total_timesteps": 100}, **settings)
    assert set(curves(run)["losses/alpha"].values()) == {alpha}
    run.args.alpha = 0.5  # as a schedule in the loop would set it
    assert run.agent.alpha() == 0.5


@pytest.mark.parametrize("wanted, falls", [(None, True), (-40.0, True), (0.0, True), (2.0, False)])
def test_the_target_of_the_entropy(wanted, falls):
    """Without one, -1 for each dimension: the curve of the loss says which."""
    agent, _, curves = updated(target_entropy=wanted)
    target = -ACTIONS if wanted is None else wanted
    expected = curves["losses/entropy"] - target
    torch.testing.assert_close(curves["losses/alpha_loss"], expected)
    assert (agent.log_alpha < 0) == falls


def test_the_two_noises_of_an_update_are_independent(monkeypatch):
    """And normal: over many updates, correlation 0, mean 0 and deviation 1."""
    seen = [calls(monkeypatch, td3_sac, name) for name in ("q_losses", "policy_loss")]
    rng = np.random.default_rng(0)
    for _ in range(60):
        updated(rng)
    first, second = (np.concatenate([x["noise"] for x in each]).ravel() for each in seen)
    for noise in (first, second):
        assert abs(noise.mean()) < 0.1 and abs(noise.std() - 1) < 0.1
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_acting_draws_from_the_policy_and_evaluations_do_not():
    agent, _, _ = agents()
    obs = np.random.default_rng(0).normal(size=(4001, OBS)).astype(np.float32)
    with torch.no_grad():
        mean, log_std = (x.numpy() for x in agent.policy(torch.tensor(obs)))
    greedy = agent.act(obs, None)
    np.testing.assert_allclose(greedy, np.tanh(mean), rtol=1e-5, atol=1e-6)
    acted = agent.act(obs, np.random.default_rng(1), td3_sac.Args.exploration_noise)
    drawn = (np.arctanh(acted.astype(np.float64)) - mean) / np.exp(log_std)
    expected = np.random.default_rng(1).standard_normal(mean.shape, np.float32)
    inside = np.abs(acted) < 0.99
    np.testing.assert_allclose(drawn[inside], expected[inside], atol=1e-3)
    policy = td3.evaluation_policy(agent, None, td3_sac.Args())
    np.testing.assert_array_equal(policy(obs), agent.to_env(greedy))


@functools.cache
def entropies_and_squares():
    """Of policies with mean 0 and these sigmas: H and E a^2, by the rule of Gauss and Hermite."""
    x, weights = np.polynomial.hermite_e.hermegauss(201)
    sigmas = np.exp(np.linspace(np.log(1e-3), np.log(7), 8001))[:, None]
    u, weights = sigmas * x, weights / weights.sum()
    log_probs = -0.5 * x**2 - np.log(sigmas) - 0.5 * np.log(2 * np.pi)
    log_probs = log_probs - 2 * (np.log(2) - u - np.logaddexp(0, -2 * u))
    return -(weights * log_probs).sum(axis=1), (weights * np.tanh(u) ** 2).sum(axis=1)


def best_entropy(alpha):
    """On Flat: the entropy of the sigma with the largest alpha H - 10 E a^2."""
    entropies, squares = entropies_and_squares()
    return entropies[np.argmax(alpha * entropies - 10 * squares)]


@pytest.mark.slow
def test_entropy_and_temperature_are_those_that_are_best():
    """On Flat, where they can be computed: on the curve at every temperature, then at its end."""
    assert best_entropy(0.1586) == pytest.approx(-1.000, abs=1e-3)
    settings = {"env_id": "tasks:Flat-v0", "learning_starts": 200, "log_frequency": 100}
    settings |= {"batch_size": 128, "hidden_sizes": (16, 16), "learning_rate": 1e-2}
    run = train(td3_sac, **settings, total_timesteps=1800)
    alphas, entropies = (curves(run)[f"losses/{name}"] for name in ("alpha", "entropy"))
    assert alphas[300] > 0.5  # so that a long way of it is seen
    for step in range(1100, 1801, 100):
        assert entropies[step] == pytest.approx(best_entropy(alphas[step]), abs=0.03)
    assert alphas[1800] == pytest.approx(0.1586, abs=0.01)
    assert entropies[1800] == pytest.approx(-1, abs=0.02)
    assert np.abs(run.agent.act(np.zeros((1, 1), np.float32), None)) < 0.05


def test_all_learn_at_one_rate():
    sizes = dict(total_timesteps=40, learning_starts=30, batch_size=4, hidden_sizes=(4, 4))
    run = train(td3_sac, env_id="Pendulum-v1", learning_rate=0.125, **sizes)
    optimizers = [part for name, part in run.parts.items() if name.endswith("optimizer")]
    assert [x.param_groups[0]["lr"] for x in optimizers] == [0.125] * 3
