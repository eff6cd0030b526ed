"""a2c.py on environments with known answers, and on CartPole."""

import a2c
import environments
import numpy as np
import pytest
import torch


def train(tmp_path, **settings):
    """Trains in this process; returns the agent."""
    run = a2c.Run(a2c.RunArgs(runs_dir=str(tmp_path), **settings))
    return a2c.train(run.args, run)


CLOCK = dict(
    total_timesteps=12_800,
    learning_rate=3e-2,
    gamma=0.9,
    gae_lambda=0.9,
    max_grad_norm=5.0,
)


def test_a_time_limit_is_no_end(tmp_path):
    agent = train(tmp_path, env_id="environments:Blind-v0", **CLOCK)
    assert agent.value(torch.ones(1, 1)).item() == pytest.approx(1 / (1 - 0.9), rel=0.02)


@pytest.mark.parametrize("optimizer", ["rmsprop_tf", "adam"])
def test_a_termination_is_an_end(tmp_path, optimizer):
    settings = dict(CLOCK, optimizer=optimizer)
    agent = train(tmp_path, env_id="environments:EndingClock-v0", **settings)
    values = agent.value(torch.arange(5)[:, None] / 5).tolist()
    expected = [sum(0.9**k for k in range(5 - time)) for time in range(5)]
    assert values == pytest.approx(expected, abs=0.15)


def test_actions_reach_a_goal_in_lopsided_bounds(tmp_path):
    settings = dict(optimizer="adam", learning_rate=3e-3, log_std_init=-1.0)
    agent = train(tmp_path, env_id="environments:Target-v0", total_timesteps=20_480, **settings)
    action = agent.to_env(agent.act(np.zeros((1, 2), np.float32), None, greedy=True))[0]
    scale = environments.Target.action_space.high - environments.Target.action_space.low
    np.testing.assert_allclose(action / scale, environments.Target.goal / scale, atol=0.04)


def test_cartpole_is_solved_in_half_the_default_budget(tmp_path):
    settings = dict(total_timesteps=100_000, anneal_steps=200_000)  # the default schedule
    agent = train(tmp_path, **settings)
    assert a2c.evaluate(agent, a2c.RunArgs()).mean() >= 475
