"""The loop of dqn.py: what it asks for, and when."""

import dqn
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
