"""a2c.py on environments with known answers, and on CartPole."""

import a2c
import environments
import numpy as np
import pytest
from conftest import new_run, stopped, train


@pytest.mark.slow
def test_actions_reach_a_goal_in_lopsided_bounds():
    settings = dict(optimizer="adam", learning_rate=3e-3, log_std_init=-1.0)
    agent = train(a2c, env_id="environments:Target-v0", total_timesteps=20_480, **settings).agent
    action = agent.to_env(agent.act(np.zeros((1, 2), np.float32), None, greedy=True))[0]
    scale = environments.Target.action_space.high - environments.Target.action_space.low
    np.testing.assert_allclose(action / scale, environments.Target.goal / scale, atol=0.04)


@pytest.mark.slow
def test_cartpole_is_solved_in_half_the_default_budget():
    run = stopped(new_run(a2c), a2c.train, after=99_999)  # of 200,000, with their schedule
    assert run.step_count == 100_000 and run.evaluate().mean() >= 475
