"""ppo.py, and a2c.py where both must agree, on environments with known answers and on real ones."""

import a2c
import environments
import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import hand_stepped


def train(tmp_path, script=ppo, **settings):
    """Trains in this process; returns the agent."""
    run = script.Run(script.RunArgs(runs_dir=str(tmp_path), **settings))
    return script.train(run.args, run)


SHARED = dict(total_timesteps=12_800, gamma=0.9, gae_lambda=0.9, max_grad_norm=5.0)
CLOCK = dict(SHARED, num_envs=4, num_steps=32, num_minibatches=2, learning_rate=1e-2)
BOTH = pytest.mark.parametrize(
    "script, settings", [(ppo, CLOCK), (a2c, dict(SHARED, learning_rate=3e-2))]
)


@BOTH
def test_a_time_limit_is_no_end(tmp_path, script, settings):
    agent = train(tmp_path, script, env_id="environments:Blind-v0", **settings)
    assert agent.value(torch.ones(1, 1)).item() == pytest.approx(1 / (1 - 0.9), rel=0.02)


@BOTH
def test_a_termination_is_an_end(tmp_path, script, settings):
    agent = train(tmp_path, script, env_id="environments:EndingClock-v0", **settings)
    values = agent.value(torch.arange(5)[:, None] / 5).tolist()
    expected = [sum(0.9**k for k in range(5 - time)) for time in range(5)]
    assert values == pytest.approx(expected, abs=0.15)


def test_the_value_of_truncated_episodes_also_with_normalisation(tmp_path):
    settings = dict(CLOCK, norm_obs=True, norm_reward=True)
    agent = train(tmp_path, env_id="environments:Blind-v0", **settings)
    scaled = 1 / agent.return_moments.std().item() / (1 - 0.9)
    assert agent.value(torch.ones(1, 1)).item() == pytest.approx(scaled, rel=0.02)


def test_actions_reach_a_goal_in_lopsided_bounds(tmp_path):
    settings = dict(env_id="environments:Target-v0", total_timesteps=20_480, learning_rate=5e-3)
    agent = train(tmp_path, **settings)
    action = agent.to_env(agent.act(np.zeros((1, 2), np.float32), None, greedy=True))[0]
    scale = environments.Target.action_space.high - environments.Target.action_space.low
    np.testing.assert_allclose(action / scale, environments.Target.goal / scale, atol=0.03)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "environments:ShortCartPole-v0"])
def test_what_the_buffer_holds_is_what_single_environments_do(tmp_path, monkeypatch, env_id):
    rows = []
    add = ppo.RolloutBuffer.add
    monkeypatch.setattr(ppo.RolloutBuffer, "add", lambda self, *a: (rows.append(a), add(self, *a)))
    settings = dict(num_envs=3, num_steps=37, total_timesteps=111, num_minibatches=1)
    train(tmp_path, env_id=env_id, seed=5, **settings)
    assert len(rows) == 37
    endings = 0
    for env in range(3):
        seed = ppo.env_seeds(3, 5, 0)[env]
        by_hand = hand_stepped(env_id, seed, [row[1][env] for row in rows])
        for row, (obs, reward, terminated, truncated, next_obs) in zip(rows, by_hand, strict=True):
            np.testing.assert_array_equal(row[0][env], obs)
            assert (row[2][env], row[3][env], row[4][env]) == (reward, terminated, truncated)
            np.testing.assert_array_equal(row[5][env], next_obs)
            endings += terminated or truncated
    assert endings >= 3


def test_every_environment_and_every_stretch_has_seeds_of_its_own():
    seeds = [seed for step in (0, 30, 60) for seed in ppo.env_seeds(5, 1, step)]
    seeds += ppo.env_seeds(5, 1, 0, 1) + ppo.env_seeds(5, 2, 0)  # evaluation; another run
    assert len(set(seeds)) == 25


def test_the_first_ratio_of_every_update_is_one(tmp_path, monkeypatch):
    """The old log-probabilities are of the actions, weights and statistics that acted."""
    ratios, update, loss = [], ppo.update, ppo.clipped_policy_loss
    monkeypatch.setattr(ppo, "update", lambda *a: (ratios.append([]), update(*a))[1])
    monkeypatch.setattr(
        ppo, "clipped_policy_loss", lambda r, *a: (ratios[-1].append(r.tolist()), loss(r, *a))[1]
    )
    settings = dict(env_id="Pendulum-v1", num_envs=2, num_steps=16, total_timesteps=96)
    train(tmp_path, **settings, norm_obs=True, learning_rate=0.02)
    assert len(ratios) == 3
    for of_one_update in ratios:
        assert of_one_update[0] == pytest.approx([0.0] * 32, abs=1e-5)
        assert max(map(abs, of_one_update[-1])) > 0.1


def test_the_learning_rate_and_the_clipping_follow_their_schedules(tmp_path, monkeypatch):
    seen, update = [], ppo.update

    def spy(learn, batch, args, clip_coef, rng):
        _, optimizer, *_ = learn.args
        seen.append((optimizer.param_groups[0]["lr"], clip_coef))
        return update(learn, batch, args, clip_coef, rng)

    monkeypatch.setattr(ppo, "update", spy)
    schedule = dict(learning_rate=8e-3, final_learning_rate=4e-3, clip_coef=0.4)
    train(tmp_path, **schedule, num_envs=2, num_steps=5, total_timesteps=100)
    expected = [(8e-3 - 4e-3 * i / 10, 0.4 - 0.4 * i / 10) for i in range(10)]
    np.testing.assert_allclose(seen, expected, atol=1e-12)


def test_an_evaluation_counts_one_whole_episode_of_each_environment():
    args = ppo.RunArgs(env_id="environments:Uneven-v0", eval_episodes=7)
    lengths = []
    for seed in ppo.env_seeds(7, 1, 0, 1):
        env = gym.make(args.env_id)
        env.reset(seed=seed)
        lengths.append(env.unwrapped.length)
    assert len(set(lengths)) > 3
    assert ppo.evaluate(ppo.Agent((1,), num_actions=2), args).tolist() == lengths


def test_a_checkpoint_ends_all_episodes(tmp_path, monkeypatch):
    rows = []
    add = ppo.RolloutBuffer.add
    monkeypatch.setattr(ppo.RolloutBuffer, "add", lambda self, *a: (rows.append(a), add(self, *a)))
    settings = dict(num_envs=3, num_steps=5, total_timesteps=60, num_minibatches=1)
    run = ppo.Run(ppo.RunArgs(runs_dir=str(tmp_path), checkpoint_frequency=16, **settings))
    ppo.train(run.args, run)  # 16 rounded up to whole rollouts of 15 steps: 30
    for t, row in enumerate(rows):
        if t + 1 in (10, 20):
            np.testing.assert_array_equal(row[3] | row[4], True)
            first, _ = run.envs.reset(seed=ppo.env_seeds(3, 1, 30)) if t + 1 == 10 else (None, None)
            if t + 1 == 10:
                np.testing.assert_array_equal(rows[t + 1][0], first)
        else:
            assert not row[4].any()


def test_the_returns_of_episodes_cut_by_a_checkpoint_are_not_counted(tmp_path):
    settings = dict(num_envs=2, num_steps=7, total_timesteps=84, num_minibatches=1)
    args = ppo.RunArgs(env_id="environments:Clock-v0", checkpoint_frequency=14, **settings)
    args.runs_dir = str(tmp_path)
    run = ppo.Run(args)  # each stretch of 7 steps holds one episode of 5, and 2 steps of the next
    ppo.train(args, run)
    assert list(run.recent_returns) == [5.0] * 12


def test_observation_statistics_count_what_was_acted_on_once(tmp_path, monkeypatch):
    rows = []
    add = ppo.RolloutBuffer.add
    monkeypatch.setattr(ppo.RolloutBuffer, "add", lambda self, *a: (rows.append(a), add(self, *a)))
    settings = dict(num_envs=3, num_steps=7, total_timesteps=63, num_minibatches=1, norm_obs=True)
    agent = train(tmp_path, env_id="environments:ShortCartPole-v0", **settings)
    acted_on = np.concatenate([row[0] for row in rows])
    assert agent.obs_moments.count == len(acted_on) == 63
    np.testing.assert_allclose(agent.obs_moments.mean.numpy(), acted_on.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(agent.obs_moments.var.numpy(), acted_on.var(axis=0), atol=1e-6)


def test_evaluation_changes_no_statistics(tmp_path):
    settings = dict(env_id="Pendulum-v1", total_timesteps=512, norm_obs=True, norm_reward=True)
    run = ppo.Run(ppo.RunArgs(runs_dir=str(tmp_path), **settings))
    agent = ppo.train(run.args, run)
    before = ppo.run_hash(agent)
    first, second = ppo.evaluate(agent, run.args), ppo.evaluate(agent, run.args)
    assert ppo.run_hash(agent) == before
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("seed", [1, 2])
def test_cartpole_is_solved(tmp_path, seed):
    agent = train(tmp_path, seed=seed)
    assert ppo.evaluate(agent, ppo.RunArgs(seed=seed)).mean() >= 475


def test_pendulum_is_learned(tmp_path):
    settings = dict(env_id="Pendulum-v1", total_timesteps=61_440, num_steps=64, gamma=0.9)
    settings |= dict(gae_lambda=0.95, num_minibatches=8, learning_rate=1e-3, anneal_clip=False)
    agent = train(tmp_path, **settings, norm_obs=True, norm_reward=True)
    returns = ppo.evaluate(agent, ppo.RunArgs(**settings))
    assert returns.mean() > -700  # random: about -1,200
