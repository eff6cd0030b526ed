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


def test_actions_reach_a_goal_in_lopsided_bounds(tmp_path):
    settings = dict(optimizer="adam", learning_rate=3e-3, log_std_init=-1.0)
    agent = train(tmp_path, env_id="environments:Target-v0", total_timesteps=20_480, **settings)
    action = agent.to_env(agent.act(np.zeros((1, 2), np.float32), None, greedy=True))[0]
    scale = environments.Target.action_space.high - environments.Target.action_space.low
    np.testing.assert_allclose(action / scale, environments.Target.goal / scale, atol=0.04)


OPTIMIZERS = {
    "rmsprop_tf": a2c.RMSpropTF,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_curves_the_optimizer_and_its_learning_rate(tmp_path, monkeypatch, name):
    rates, losses, points, update = [], [], [], a2c.update

    def spy(agent, optimizer, batch, args):
        assert type(optimizer) is OPTIMIZERS[name] and optimizer.defaults["eps"] == 1e-5
        rates.append(optimizer.param_groups[0]["lr"])
        losses.append(update(agent, optimizer, batch, args))
        return losses[-1]

    monkeypatch.setattr(a2c, "update", spy)
    schedule = dict(learning_rate=8e-3, final_learning_rate=4e-3, anneal_steps=200)
    sizes = dict(num_envs=8, num_steps=5, total_timesteps=400, log_frequency=80)
    run = a2c.Run(a2c.RunArgs(runs_dir=str(tmp_path), optimizer=name, **schedule, **sizes))
    end_iteration = run.end_iteration
    run.end_iteration = lambda scalars: (points.append(scalars), end_iteration(scalars))[1]
    a2c.train(run.args, run)
    assert rates == pytest.approx([8e-3 - 4e-3 * min(40 * i / 200, 1) for i in range(10)])
    assert [scalars["charts/learning_rate"] for scalars in points] == rates
    assert all(len(scalars) == 1 for scalars in points[::2])
    for i in range(1, 10, 2):  # the mean of the updates since the point before
        mean = ((losses[i - 1] + losses[i]) / 2).tolist()
        names = ("policy_loss", "value_loss", "entropy")
        assert [points[i][f"losses/{name}"] for name in names] == pytest.approx(mean)


def test_what_is_learned_from_and_what_the_statistics_count(tmp_path, monkeypatch):
    rows, add = [], a2c.RolloutBuffer.add
    monkeypatch.setattr(a2c.RolloutBuffer, "add", lambda self, *a: (rows.append(a), add(self, *a)))
    settings = dict(num_envs=3, total_timesteps=63, norm_obs=True, clip_reward=True)
    run = a2c.Run(a2c.RunArgs(runs_dir=str(tmp_path), env_id="environments:Rich-v0", **settings))
    agent = a2c.train(run.args, run)
    acted_on = np.concatenate([row[0] for row in rows])
    assert agent.obs_moments.count == len(acted_on) == 63
    np.testing.assert_allclose(agent.obs_moments.mean.numpy(), acted_on.mean(axis=0), atol=1e-6)
    assert {reward for row in rows for reward in row[2]} == {1.0}
    assert set(run.recent_returns) == {50.0}


def test_cartpole_is_solved_in_half_the_default_budget(tmp_path):
    settings = dict(total_timesteps=100_000, anneal_steps=200_000)  # the default schedule
    agent = train(tmp_path, **settings)
    assert a2c.evaluate(agent, a2c.RunArgs()).mean() >= 475
