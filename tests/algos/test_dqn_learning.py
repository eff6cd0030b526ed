"""The loop of dqn.py: what it asks for, and when."""

import dqn
import pytest
import torch
from conftest import calls, curves, train

SMALL = dict(hidden_sizes=(16, 16))


def test_epsilon_follows_its_schedule(monkeypatch):
    acts = calls(monkeypatch, dqn.QNetwork, "act")
    schedule = dict(start_e=0.9, end_e=0.1, exploration_fraction=0.5, learning_starts=100)
    run = train(dqn, **SMALL, total_timesteps=400, num_envs=2, log_frequency=1, **schedule)
    expected = [1.0 if t < 100 else max(0.9 - 0.8 * t / 200, 0.1) for t in range(0, 400, 2)]
    assert [act["epsilon"] for act in acts] == pytest.approx(expected)
    last = {t: max(0.9 - 0.8 * (t - 2) / 200, 0.1) for t in range(8, 401, 8)}  # of each iteration
    assert curves(run)["charts/epsilon"] == pytest.approx(last)
    acts.clear()
    at_once = dict(start_e=0.9, end_e=0.1, exploration_fraction=0.0, learning_starts=2)
    train(dqn, **SMALL, exp_name="at-once", total_timesteps=16, num_envs=2, **at_once)
    assert [act["epsilon"] for act in acts] == pytest.approx([1.0] + 7 * [0.1])
    acts.clear()
    in_steps = dict(start_e=0.9, end_e=0.1, exploration_steps=8, learning_starts=0)
    train(dqn, **SMALL, exp_name="in-steps", total_timesteps=16, num_envs=2, **in_steps)
    assert [act["epsilon"] for act in acts] == pytest.approx([0.9, 0.7, 0.5, 0.3] + 4 * [0.1])


def test_the_target_network_takes_its_share_of_the_online_one_when_it_is_due(monkeypatch):
    states, update = [], dqn.update

    def weights(network):
        return torch.cat([p.detach().flatten() for p in network.parameters()]).clone()

    def spy(q_network, target_q_network, *rest):
        states.append((weights(q_network), weights(target_q_network)))
        return update(q_network, target_q_network, *rest)

    monkeypatch.setattr(dqn, "update", spy)
    sizes = dict(train_frequency=8, gradient_steps=1, target_network_frequency=20, tau=0.25)
    train(dqn, **SMALL, total_timesteps=240, learning_starts=100, **sizes)
    steps = range(104, 241, 8)  # of the updates
    assert len(states) == len(steps) and torch.equal(*states[0])
    for step, (_, target), (q_after, target_after) in zip(steps, states, states[1:], strict=False):
        due = step // 20 > (step - 8) // 20
        expected = 0.75 * target + 0.25 * q_after if due else target
        torch.testing.assert_close(target_after, expected)
    assert not torch.equal(*states[-1])
