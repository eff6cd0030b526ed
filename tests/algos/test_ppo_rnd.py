"""ppo_rnd.py: the bonus, its scale, its critic's own notion of time, and that it stays apart."""

import gymnasium as gym
import numpy as np
import ppo
import ppo_rnd
import pytest
import torch
from conftest import before, calls, hash_of_parameters, randomise, train
from gymnasium.spaces import Box, Discrete

T, B, F = 7, 3, 5  # steps, environments, length of observations
OBS = Box(-1, 1, (F,), np.float32)


def make_parts(**settings):
    args = ppo_rnd.Args(**{"num_envs": B, "num_steps": T, "hidden_size": 11} | settings)
    torch.manual_seed(0)
    agent = randomise(ppo_rnd.make_agent(args, OBS, Discrete(2)))
    return args, agent, randomise(ppo_rnd.Curiosity(args, OBS))


def play(rng):
    """A rollout with ends of both kinds, what each step led to, and what is acted on after it."""
    buffer = ppo.RolloutBuffer()
    obs, next_obs = rng.normal(size=(2, T, B, F)).astype(np.float32)
    for t in range(T):
        ends = np.zeros((2, B), bool)
        ends[0, 1], ends[1, 2] = t == 2, t in (4, T - 1)
        over = ends.any(axis=0)[:, None]
        if t < T - 1:
            next_obs[t] = np.where(over, next_obs[t], obs[t + 1])
        rewards = rng.normal(size=B).astype(np.float32)
        step = {"obs": obs[t], "actions": rng.integers(2, size=B), "rewards": rewards}
        buffer.add(**step, next_obs=next_obs[t], terminated=ends[0], truncated=ends[1])
    after = np.where(over, rng.normal(size=(B, F)), next_obs[-1]).astype(np.float32)
    return buffer, next_obs, after


def test_the_error_by_hand():
    """Target 3 x and -x, predictor 1 and 1, of x = 2: squares 25 and 9, mean 17. Beyond five
    standard deviations x counts as five: squares 14^2 and 6^2, mean 116.
    """
    curiosity = ppo_rnd.Curiosity(ppo_rnd.Args(), OBS)
    curiosity.target, curiosity.predictor = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
    with torch.no_grad():
        for network, weights, bias in (("target", (3, -1), 0), ("predictor", (0, 0), 1)):
            getattr(curiosity, network).weight[:] = torch.tensor(weights)[:, None]
            getattr(curiosity, network).bias[:] = bias
    curiosity.obs_moments = ppo.RunningMoments((1,))
    curiosity.obs_moments.mean[:], curiosity.obs_moments.var[:] = 10, 4
    errors = curiosity.errors(torch.tensor([[14.0], [20.0], [50.0]]))
    np.testing.assert_allclose(errors.detach(), [17, 116, 116], rtol=1e-5)


def with_bonuses(args, agent, curiosity, buffer, after):
    """The batch with what add_bonuses adds, ppo's own, and the mean bonus."""
    batch, _ = ppo.rollout_batch(agent, buffer, args, np.zeros(B))
    plain = {name: tensor.clone() for name, tensor in batch.items()}
    _, bonus = ppo_rnd.add_bonuses(batch, agent, curiosity, buffer, after, args, np.zeros(B))
    return batch, plain, bonus


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_terminal_observation_that_is_no_number_is_nothing_new(value):
    """It counts as if nothing had moved there, in bonuses, statistics and losses alike."""
    found = []
    for end_of in (lambda obs: value, lambda obs: obs[:3]):
        args, agent, curiosity = make_parts()
        buffer, next_obs, after = play(np.random.default_rng(0))
        next_obs[2, 1, :3] = end_of(buffer["obs"][2, 1])  # a termination
        batch, _, bonus = with_bonuses(args, agent, curiosity, buffer, after)
        loss, _ = ppo_rnd.curiosity_loss(agent, curiosity, batch)
        loss.backward()
        gradients = [p.grad for p in curiosity.learners()]
        found.append([*batch.values(), *curiosity.buffers(), loss, *gradients, torch.tensor(bonus)])
    for ours, expected in zip(*found, strict=True):
        assert torch.isfinite(ours).all() and torch.equal(ours, expected)


def test_bonuses_go_on_across_ends_and_rewards_do_not():
    args, agent, curiosity = make_parts(gamma=0.7, gamma_int=0.9, gae_lambda=0.6)
    buffer, next_obs, after = play(np.random.default_rng(0))
    batch, plain, bonus = with_bonuses(args, agent, curiosity, buffer, after)

    rows = next_obs.reshape(-1, F)
    x = (next_obs - rows.mean(axis=0)) / rows.std(axis=0)
    with torch.no_grad():
        x = torch.as_tensor(x.clip(-5, 5))
        errors = (curiosity.predictor(x) - curiosity.target(x)).square().mean(dim=2).numpy()
        obs = torch.as_tensor(np.concatenate([buffer["obs"], after[None]]))
        values = curiosity.critic(obs).squeeze(2).numpy()
    sums, running = [], np.zeros(B)
    for error, over in zip(errors, buffer["terminated"] | buffer["truncated"], strict=True):
        sums.append(0.9 * running + error)
        running = np.where(over, 0, sums[-1])
    bonuses = errors / np.std(sums)
    assert bonus == pytest.approx(bonuses.mean(), rel=1e-5)
    advantages = np.zeros((T + 1, B))  # of one episode without an end
    for t in reversed(range(T)):
        delta = bonuses[t] + 0.9 * values[t + 1] - values[t]
        advantages[t] = delta + 0.9 * 0.6 * advantages[t + 1]
    advantages = advantages[:T]

    expected = 2 * plain["advantages"].numpy() + 1 * advantages.flatten()
    np.testing.assert_allclose(batch["advantages"], expected, rtol=1e-4, atol=1e-5)
    returns = (advantages + values[:T]).flatten()
    np.testing.assert_allclose(batch["bonus_returns"], returns, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(batch["returns"], plain["returns"])
    np.testing.assert_array_equal(batch["next_obs"], next_obs.reshape(-1, F))


def test_bonuses_go_on_from_what_is_acted_on_next(monkeypatch):
    """Where the last step of a rollout ended an episode, that is the next one's beginning."""
    told = calls(monkeypatch, ppo_rnd, "add_bonuses")
    settings = dict(env_id="environments:Clock-v0", env_kwargs='{"length": 7}', num_steps=7)
    train(ppo_rnd, **settings, num_envs=B, num_minibatches=1, total_timesteps=84)
    assert len(told) == 4
    for call in told:
        assert call["buffer"]["truncated"][-1].all() and (call["obs_after"] == 0).all()
        assert (call["buffer"]["next_obs"][-1] == 1).all()


def test_sums_of_bonuses_go_on_from_rollout_to_rollout(monkeypatch):
    sums, add_bonuses = [np.zeros(2)], ppo_rnd.add_bonuses

    def spy(*inputs):
        np.testing.assert_array_equal(inputs[-1], sums[-1])
        running, bonus = add_bonuses(*inputs)
        sums.append(running)
        return running, bonus

    monkeypatch.setattr(ppo_rnd, "add_bonuses", spy)
    train(ppo_rnd, num_envs=2, num_steps=8, num_minibatches=1, total_timesteps=48)
    assert len(sums) == 4 and all(running.all() for running in sums[1:])


SMALL = {"total_timesteps": 1536, "checkpoint_frequency": 512, "eval_episodes": 3}


def test_the_target_stays_and_what_learns_moves(monkeypatch):
    first = []
    look = lambda run, curiosity, **_: first.extend(hash_of_parameters(curiosity))  # noqa: E731
    before(monkeypatch, ppo.Run, "start", look)
    curiosity = train(ppo_rnd, **SMALL).parts["curiosity"]
    same = [a == b for a, b in zip(first, hash_of_parameters(curiosity), strict=True)]
    assert same == [True] * 6 + [False] * 12  # three layers a network: target, predictor, critic
    assert curiosity.obs_moments.count == curiosity.return_moments.count == 1536


def test_the_target_is_never_in_training_and_the_predictor_only_where_it_learns(monkeypatch):
    """For dropout, for example."""
    seen = []

    def look(curiosity, next_obs):
        modes = curiosity.target.training, curiosity.predictor.training
        seen.append((*modes, torch.is_grad_enabled()))

    before(monkeypatch, ppo_rnd.Curiosity, "errors", look)
    train(ppo_rnd, **SMALL)
    assert set(seen) == {(False, False, False), (False, True, True)}


def test_without_bonuses_it_is_ppo():
    """Whatever the predictor and the critic of bonuses do, and with a norm that is clipped."""
    settings = SMALL | {"env_id": "CartPole-v1", "max_grad_norm": 0.05}
    settings |= {"norm_obs": True, "norm_reward": True}
    run = train(ppo_rnd, ext_coef=1.0, int_coef=0.0, **settings)
    plain = train(ppo, **settings)
    assert run.hash() == plain.hash()


def test_the_chance_of_a_random_walk_to_arrive():
    """C(2n - 2, n - 1) / 4^(2n - 2), for n = 3 by playing all 4^4 sequences of actions."""
    env = gym.make("tasks:FarGoal-v0", n=3).unwrapped
    arrived = 0
    for actions in np.ndindex(*[4] * 4):
        env.reset()
        arrived += max(env.step(action)[1] for action in actions)
    assert arrived == 6 and gym.spec("FarGoal-v0").max_episode_steps == 2 * (10 - 1)


@pytest.mark.slow
def test_it_finds_the_far_goal_and_ppo_does_not():
    settings = {"env_id": "tasks:FarGoal-v0", "total_timesteps": 51_200, "seed": 3}
    returns = [train(script, **settings).evaluate().mean() for script in (ppo_rnd, ppo)]
    assert returns == [1, 0]


def test_the_predictor_has_a_rate_of_its_own(monkeypatch):
    seen = calls(monkeypatch, ppo, "train")
    rates = dict(learning_rate=0.25, rnd_learning_rate=0.5, anneal_lr=False)
    train(ppo_rnd, **SMALL, **rates)
    assert [group["lr"] for group in seen[0]["optimizer"].param_groups] == [0.25, 0.5]


def test_the_critic_of_bonuses_sees_what_the_other_networks_see():
    args, agent, curiosity = make_parts(norm_obs=True)
    agent.obs_moments.mean[:], agent.obs_moments.var[:] = 3, 4
    seen, value = [], curiosity.value
    curiosity.value = lambda features: seen.append(features) or value(features)
    buffer, _, after = play(np.random.default_rng(0))
    batch, *_ = with_bonuses(args, agent, curiosity, buffer, after)
    ppo_rnd.curiosity_loss(agent, curiosity, batch)
    rows = torch.as_tensor(np.concatenate([buffer["obs"], after[None]])).flatten(0, 1)
    for found, obs in zip(seen, (rows, batch["obs"]), strict=True):
        torch.testing.assert_close(found, ((obs - 3) / 2).clip(-10, 10))


def test_the_grid_of_the_far_goal_is_always_the_same():
    grids = [gym.make("tasks:FarGoal-v0").unwrapped.moves for _ in range(2)]
    np.testing.assert_array_equal(*grids)
