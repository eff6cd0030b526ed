"""The loop of dqn.py: what it asks for, and when."""

import dqn
import numpy as np
import pytest
import torch
from conftest import scalars, train

SMALL = dict(hidden_sizes=(16, 16))


def test_epsilon_follows_its_schedule(monkeypatch):
    seen, act = [], dqn.QNetwork.act

    def spy(self, obs, epsilon, rng):
        seen.append(epsilon)
        return act(self, obs, epsilon, rng)

    monkeypatch.setattr(dqn.QNetwork, "act", spy)
    schedule = dict(start_e=0.9, end_e=0.1, exploration_fraction=0.5, learning_starts=100)
    run = train(dqn, **SMALL, total_timesteps=400, num_envs=2, log_frequency=1, **schedule)
    expected = [1.0 if t < 100 else max(0.9 - 0.8 * t / 200, 0.1) for t in range(0, 400, 2)]
    assert seen == pytest.approx(expected)
    run.writer.flush()
    curve = {t: y for (tag, t), (y,) in scalars(run.folder).items() if tag == "charts/epsilon"}
    last = {t: max(0.9 - 0.8 * (t - 2) / 200, 0.1) for t in range(8, 401, 8)}  # of each iteration
    assert curve == pytest.approx(last)
    seen.clear()
    at_once = dict(start_e=0.9, end_e=0.1, exploration_fraction=0.0, learning_starts=2)
    train(dqn, **SMALL, exp_name="at-once", total_timesteps=16, num_envs=2, **at_once)
    assert seen == pytest.approx([1.0] + 7 * [0.1])
    seen.clear()
    in_steps = dict(start_e=0.9, end_e=0.1, exploration_steps=8, learning_starts=0)
    train(dqn, **SMALL, exp_name="in-steps", total_timesteps=16, num_envs=2, **in_steps)
    assert seen == pytest.approx([0.9, 0.7, 0.5, 0.3] + 4 * [0.1])


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


@pytest.mark.parametrize("n_atoms", [1, 7])
def test_the_curves_are_means_over_all_updates_since_the_last_point(monkeypatch, n_atoms):
    """The scalars of an update are of the network before its step."""
    since, points, update, end = [], {}, dqn.update, dqn.Run.end_iteration

    def spy(q_network, target_q_network, optimizer, batch, *rest):
        with torch.no_grad():
            logits = q_network.logits(batch["obs"]).double().numpy()  # (batch, actions, atoms)
        result = update(q_network, target_q_network, optimizer, batch, *rest)
        since.append((result["losses/td_loss"].item(), logits, batch["actions"].numpy()))
        return result

    def look(run, point):
        step = end(run, point)
        if not run.scalars and since:  # they have just been written
            points[step] = list(since)
            since.clear()
        return step

    monkeypatch.setattr(dqn, "update", spy)
    monkeypatch.setattr(dqn.Run, "end_iteration", look)
    sizes = dict(total_timesteps=240, learning_starts=100, batch_size=5, log_frequency=60)
    run = train(dqn, **SMALL, n_atoms=n_atoms, v_min=-3.0, v_max=11.0, **sizes)
    run.writer.flush()
    curves = {key: value for key, (value,) in scalars(run.folder).items()}
    assert len(points) == 3 and sum(map(len, points.values())) == 4 * 18  # steps 104, 112 .. 240
    assert {step for tag, step in curves if tag == "losses/td_loss"} == set(points)
    support = np.linspace(-3, 11, n_atoms)
    for step, updates in points.items():
        q_values, at_ends, spreads = [], [], []
        for _, logits, actions in updates:
            assert logits.shape == (5, 2, n_atoms)
            probs = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
            q = logits[..., 0] if n_atoms == 1 else (probs * support).sum(axis=2)
            rows = np.arange(5)
            q_values.append(q[rows, actions].mean())
            spreads.append(np.mean([q[:, a].std() for a in range(2)]))
            at_ends.append(probs[rows, actions][:, [0, -1]].sum(axis=1).mean())
        by_hand = {
            "td_loss": np.mean([loss for loss, *_ in updates]),
            "q_values": np.mean(q_values),
        }
        by_hand["q_spread"] = np.mean(spreads)
        if n_atoms > 1:
            by_hand["mass_at_ends"] = np.mean(at_ends)
        found = {name: curves[f"losses/{name}", step] for name in by_hand}
        assert found == pytest.approx(by_hand, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_cartpole_is_solved():
    assert train(dqn).evaluate().mean() >= 475
