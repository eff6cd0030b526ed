"""a2c.py on environments with known answers, and on CartPole."""

import a2c
import environments
import numpy as np
import pytest
from conftest import new_run, train


@pytest.mark.slow
def test_actions_reach_a_goal_in_lopsided_bounds():
    settings = dict(optimizer="adam", learning_rate=3e-3, log_std_init=-1.0)
    agent = train(a2c, env_id="environments:Target-v0", total_timesteps=20_480, **settings).agent
    action = agent.to_env(agent.act(np.zeros((1, 2), np.float32), None, greedy=True))[0]
    scale = environments.Target.action_space.high - environments.Target.action_space.low
    np.testing.assert_allclose(action / scale, environments.Target.goal / scale, atol=0.04)


def test_the_curves_are_means_over_all_updates_since_the_last_point(monkeypatch):
    losses, batches, points, update = [], [], [], a2c.update

    def spy(agent, optimizer, batch, *rest):
        batches.append({name: tensor.numpy() for name, tensor in batch.items()})
        losses.append(update(agent, optimizer, batch, *rest))
        return losses[-1]

    monkeypatch.setattr(a2c, "update", spy)
    run = new_run(a2c, num_envs=8, num_steps=5, total_timesteps=400, log_frequency=80)
    end_iteration = run.end_iteration
    run.end_iteration = lambda scalars: (points.append(scalars), end_iteration(scalars))[1]
    a2c.train(run.args, run)
    assert len(losses) == len(points) == 10
    assert all(len(scalars) == 1 for scalars in points[::2])  # the learning rate
    for i in range(1, 10, 2):
        for name in ("policy_loss", "value_loss", "entropy"):
            mean = (losses[i - 1][name].item() + losses[i][name].item()) / 2
            assert points[i][f"losses/{name}"] == pytest.approx(mean)
        returns = batches[i]["returns"]
        explained = 1 - np.var(returns - batches[i]["values"]) / np.var(returns)
        assert points[i]["losses/explained_variance"] == pytest.approx(explained, rel=1e-4)


@pytest.mark.slow
def test_cartpole_is_solved_in_half_the_default_budget():
    settings = dict(total_timesteps=100_000, anneal_steps=200_000)  # the default schedule
    assert train(a2c, **settings).evaluate().mean() >= 475
