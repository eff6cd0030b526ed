"""a2c.py on environments with known answers, and on CartPole."""

import a2c
import environments
import numpy as np
import pytest
from conftest import new_run, scalars, stopped, train


@pytest.mark.slow
def test_actions_reach_a_goal_in_lopsided_bounds():
    settings = dict(optimizer="adam", learning_rate=3e-3, log_std_init=-1.0)
    agent = train(a2c, env_id="environments:Target-v0", total_timesteps=20_480, **settings).agent
    action = agent.to_env(agent.act(np.zeros((1, 2), np.float32), None, greedy=True))[0]
    scale = environments.Target.action_space.high - environments.Target.action_space.low
    np.testing.assert_allclose(action / scale, environments.Target.goal / scale, atol=0.04)


def test_the_curves_are_means_over_all_updates_since_the_last_point(monkeypatch):
    losses, batches, update = [], [], a2c.update

    def spy(agent, optimizer, batch, *rest):
        batches.append({name: tensor.numpy() for name, tensor in batch.items()})
        losses.append(update(agent, optimizer, batch, *rest))
        return dict(losses[-1])

    monkeypatch.setattr(a2c, "update", spy)
    run = train(a2c, num_envs=8, num_steps=5, total_timesteps=400, log_frequency=80)
    run.writer.flush()
    curves = {}
    for (tag, step), (value,) in scalars(run.folder).items():
        curves.setdefault(tag, {})[step] = value
    assert len(losses) == 10
    for i, step in enumerate(range(80, 401, 80)):
        two = slice(2 * i, 2 * i + 2)  # the updates since the last point
        for name in ("policy_loss", "value_loss", "entropy"):
            mean = np.mean([scalars[f"losses/{name}"].item() for scalars in losses[two]])
            assert curves[f"losses/{name}"][step] == pytest.approx(mean)
        explained = [
            1 - np.var(batch["returns"] - batch["values"]) / np.var(batch["returns"])
            for batch in batches[two]
        ]
        found = curves["losses/explained_variance"][step]
        assert found == pytest.approx(np.mean(explained), rel=1e-4)
        rates = [2e-3 * (1 - t / 400) for t in (step - 80, step - 40)]
        assert curves["charts/learning_rate"][step] == pytest.approx(np.mean(rates))
    assert {tuple(curve) for tag, curve in curves.items() if tag.startswith("losses/")} == {
        tuple(range(80, 401, 80))
    }


@pytest.mark.slow
def test_cartpole_is_solved_in_half_the_default_budget():
    run = stopped(new_run(a2c), a2c.train, after=99_999)  # of 200,000, with their schedule
    assert run.step_count == 100_000 and run.evaluate().mean() >= 475
