"""On environments with known answers, and on real ones: mostly slow."""

import a2c
import dqn
import dqn_quantile
import environments
import gymnasium as gym
import numpy as np
import ppo
import ppo_pqn
import pytest
import td3
import torch
from conftest import env_seeds, new_run, stopped, train

SHARED = dict(total_timesteps=12_800, gamma=0.9, gae_lambda=0.9, max_grad_norm=5.0)
CLOCK = dict(SHARED, num_envs=4, num_steps=32, num_minibatches=2, learning_rate=1e-2)
BOTH = pytest.mark.parametrize(
    "script, settings", [(ppo, CLOCK), (a2c, dict(SHARED, learning_rate=3e-2))]
)


@pytest.mark.slow
@BOTH
def test_a_time_limit_is_no_end(script, settings):
    agent = train(script, env_id="environments:Blind-v0", **settings).agent
    value = agent.value(agent.features(torch.ones(1, 1))).item()
    assert value == pytest.approx(1 / (1 - 0.9), rel=0.02)


GOAL = {
    ppo: dict(total_timesteps=20_480, learning_rate=5e-3),
    a2c: dict(total_timesteps=20_480, learning_rate=3e-3, optimizer="adam", log_std_init=-1.0),
    td3: dict(total_timesteps=2500, learning_rate=3e-3, learning_starts=200, batch_size=32,
        hidden_sizes=(32, 32)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("script, settings", GOAL.items(), ids=["ppo", "a2c", "td3"])
def test_actions_reach_a_goal_in_lopsided_bounds(script, settings):
    run = train(script, env_id="environments:Target-v0", **settings)
    action = script.evaluation_policy(run.agent, None, run.args)(np.zeros((1, 2), np.float32))[0]
    scale = environments.Target.action_space.high - environments.Target.action_space.low
    np.testing.assert_allclose(action / scale, environments.Target.goal / scale, atol=0.05)


def test_the_first_ratio_of_every_update_is_one(monkeypatch):
    """The old log-probabilities are of the actions, weights and statistics that acted."""
    ratios, update, loss = [], ppo.update, ppo.clipped_policy_loss
    monkeypatch.setattr(ppo, "update", lambda *a: (ratios.append([]), update(*a))[1])
    monkeypatch.setattr(
        ppo, "clipped_policy_loss", lambda r, *a: (ratios[-1].append(r.tolist()), loss(r, *a))[1]
    )
    settings = dict(env_id="Pendulum-v1", num_envs=2, num_steps=16, total_timesteps=96)
    train(ppo, **settings, norm_obs=True, learning_rate=0.02)
    assert len(ratios) == 3
    for of_one_update in ratios:
        assert of_one_update[0] == pytest.approx([0.0] * 32, abs=1e-5)
        assert max(map(abs, of_one_update[-1])) > 0.1


def test_an_evaluation_counts_one_whole_episode_of_each_environment():
    lengths = []
    for seed in env_seeds(7, 1, 0, 1):
        env = gym.make("environments:Uneven-v0")
        env.reset(seed=seed)
        lengths.append(env.unwrapped.length)
    assert len(set(lengths)) > 3
    run = new_run(ppo, env_id="environments:Uneven-v0", eval_episodes=7)
    assert run.evaluate().tolist() == lengths


def test_evaluation_changes_no_statistics():
    settings = dict(env_id="Pendulum-v1", total_timesteps=512, norm_obs=True, norm_reward=True)
    run = train(ppo, **settings)
    before = run.hash()
    first, second = run.evaluate(), run.evaluate()
    assert run.hash() == before
    np.testing.assert_array_equal(first, second)


SOLVED = [  # script, settings, least return
    (ppo, {}, 475),
    (dqn, {}, 475),
    (dqn_quantile, {"seed": 11, "eval_episodes": 20}, 400),
    (ppo_pqn, {"eval_episodes": 20}, 450),
]


@pytest.mark.slow
@pytest.mark.parametrize("script, settings, least", SOLVED)
def test_cartpole_is_solved(script, settings, least):
    assert train(script, **settings).evaluate().mean() >= least


@pytest.mark.slow
def test_a2c_solves_cartpole_in_half_the_default_budget():
    run = stopped(new_run(a2c), a2c.train, after=99_999)  # of 200,000, with their schedule
    assert run.step_count == 100_000 and run.evaluate().mean() >= 475
