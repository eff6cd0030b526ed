"""The loop of dqn.py: what it asks for, and when."""

import dqn
import numpy as np
import pytest
from conftest import hash_of_parameters


def train(tmp_path, **settings):
    run = dqn.Run(dqn.RunArgs(runs_dir=str(tmp_path), hidden_sizes=(16, 16), **settings))
    return dqn.train(run.args, run)


def test_epsilon_follows_its_schedule(tmp_path, monkeypatch):
    seen, act = [], dqn.QNetwork.act

    def spy(self, obs, epsilon, rng):
        seen.append(epsilon)
        return act(self, obs, epsilon, rng)

    monkeypatch.setattr(dqn.QNetwork, "act", spy)
    schedule = dict(start_e=0.9, end_e=0.1, exploration_fraction=0.5, learning_starts=100)
    train(tmp_path, total_timesteps=400, num_envs=2, **schedule)
    expected = [1.0 if t < 100 else max(0.9 - 0.8 * t / 200, 0.1) for t in range(0, 400, 2)]
    assert seen == pytest.approx(expected)
    seen.clear()
    at_once = dict(start_e=0.9, end_e=0.1, exploration_fraction=0.0, learning_starts=2)
    train(tmp_path / "at-once", total_timesteps=16, num_envs=2, **at_once)
    assert seen == pytest.approx([1.0] + 7 * [0.1])


def test_the_learning_rate_follows_its_schedule(tmp_path, monkeypatch):
    """It is that of the step before its updates, at 8, 16, ... 80 of which the first 40 count."""
    rates, update = [], dqn.update

    def spy(q_network, target_q_network, optimizer, *rest):
        rates.append(optimizer.param_groups[0]["lr"])
        return update(q_network, target_q_network, optimizer, *rest)

    monkeypatch.setattr(dqn, "update", spy)
    schedule = dict(learning_rate=4e-3, learning_starts=8, train_frequency=8, gradient_steps=1)
    train(tmp_path, total_timesteps=80, anneal_steps=40, **schedule)
    assert rates == pytest.approx([4e-3 * max(1 - t / 40, 0) for t in range(0, 80, 8)])
    rates.clear()
    train(tmp_path / "whole", total_timesteps=80, **schedule)
    assert rates == pytest.approx([4e-3 * (1 - t / 80) for t in range(0, 80, 8)])


def test_the_target_network_is_a_copy_of_its_own_taken_when_it_is_due(tmp_path, monkeypatch):
    states, update = [], dqn.update

    def spy(q_network, target_q_network, *rest):
        states.append((hash_of_parameters(q_network), hash_of_parameters(target_q_network)))
        return update(q_network, target_q_network, *rest)

    monkeypatch.setattr(dqn, "update", spy)
    sizes = dict(train_frequency=8, gradient_steps=1, target_network_frequency=20, tau=1.0)
    train(tmp_path, total_timesteps=240, learning_starts=100, **sizes)
    steps = range(104, 241, 8)  # of the updates
    assert len(states) == len(steps) and states[0][0] == states[0][1]
    for step, (_, target), (q_after, target_after) in zip(steps, states, states[1:], strict=False):
        due = step // 20 > (step - 8) // 20
        assert target_after == (q_after if due else target)


@pytest.mark.parametrize("n_atoms", [1, 7])
def test_the_curves_are_means_over_all_updates_since_the_last_point(tmp_path, monkeypatch, n_atoms):
    returned, points, update, end = [], [], dqn.update, dqn.Run.end_iteration

    def spy(*inputs):
        returned.append(update(*inputs))
        return returned[-1]

    def look(run, scalars):
        if "losses/td_loss" in scalars:
            points.append((scalars, list(returned)))
            returned.clear()
        return end(run, scalars)

    monkeypatch.setattr(dqn, "update", spy)
    monkeypatch.setattr(dqn.Run, "end_iteration", look)
    sizes = dict(total_timesteps=240, learning_starts=100, batch_size=5, log_frequency=60)
    train(tmp_path, n_atoms=n_atoms, v_min=-3.0, v_max=11.0, **sizes)
    assert len(points) > 1
    for scalars, since in points:
        rows = np.concatenate([logits.numpy()[:, 0] for _, logits in since]).astype(np.float64)
        assert rows.shape == (5 * len(since), n_atoms)
        q_values, at_ends = [], []
        for row in rows:
            probs = [np.exp(x) / sum(np.exp(row)) for x in row]
            q = sum(p * z for p, z in zip(probs, np.linspace(-3, 11, n_atoms), strict=True))
            q_values.append(row[0] if n_atoms == 1 else q)
            at_ends.append(probs[0] + probs[-1])
        losses = [loss.item() for loss, _ in since]
        assert scalars["losses/td_loss"] == pytest.approx(np.mean(losses), rel=1e-4)
        assert scalars["losses/q_values"] == pytest.approx(np.mean(q_values), rel=1e-4, abs=1e-5)
        if n_atoms > 1:
            assert scalars["losses/mass_at_ends"] == pytest.approx(np.mean(at_ends), rel=1e-4)
