"""dqn_prioritised.py: steps are drawn by priorities, weighted for it, and given new ones; with
exponent 0 it is dqn.
"""

from fractions import Fraction

import dqn
import dqn_prioritised
import dqn_quantile
import numpy as np
import pytest
import torch
from conftest import calls, scalars, train
from gymnasium.spaces import Box
from test_runs import TINY

ENVS, LENGTH = 3, 7
C51 = {"n_atoms": 3, "v_min": -2.0, "v_max": 4.0}


def new_buffer(exponent=1.0, steps=0, envs=ENVS, **settings):
    """Observations are the numbers of steps, actions those of environments."""
    space, sizes = Box(-1e9, 1e9, (1,), np.float32), {"buffer_size": LENGTH * envs}
    settings |= {"num_envs": envs, "priority_exponent": exponent} | sizes
    buffer = dqn_prioritised.ReplayBuffer(dqn_prioritised.Args(**settings), space)
    for _ in range(steps):
        add(buffer)
    return buffer


def add(buffer):
    n = buffer.num_envs
    obs, no = np.full((n, 1), buffer.total, np.float32), np.zeros(n, np.bool_)
    buffer.add(obs, np.arange(n), np.zeros(n, np.float32), no, no, obs + 1, obs + 1)


def priorities(buffer):
    """{(step, env): priority} of all that can be drawn; the rest must be 0."""
    found = {}
    for step in range(max(0, buffer.total - buffer.length), buffer.total):
        for env in range(buffer.num_envs):
            leaf = step % buffer.slots * buffer.num_envs + env
            found[step, env] = buffer.tree[np.array([leaf])].item()
    assert buffer.tree.total() == pytest.approx(sum(found.values()))
    return found


@pytest.mark.parametrize("n", [1, 2, 7, 13, 32])
def test_the_sum_tree_equals_a_running_sum(n):
    """With leaves that are 0, set more than once and a few at a time; exact in fractions."""
    rng, tree, leaves = np.random.default_rng(n), dqn_prioritised.SumTree(n), np.zeros(n)
    for _ in range(19):
        chosen = rng.integers(n, size=3)
        values = rng.integers(0, 4, size=3) / 8.0
        for leaf, value in zip(chosen, values, strict=True):
            leaves[leaf] = value
        tree[chosen] = leaves[chosen]
        np.testing.assert_array_equal(tree[np.arange(n)], leaves)
        assert tree.total() == leaves.sum()
        if leaves.sum() == 0:
            continue
        shares, ends = np.arange(64) / 64, np.cumsum(leaves)
        expected = [
            next(i for i in range(n) if Fraction(share) * Fraction(ends[-1]) < Fraction(ends[i]))
            for share in shares
        ]
        np.testing.assert_array_equal(tree.find(shares), expected)


def test_no_rounding_leads_to_a_leaf_of_0():
    rng = np.random.default_rng(0)
    for _ in range(200):
        tree, leaves = dqn_prioritised.SumTree(13), rng.random(13) ** 9
        leaves[rng.integers(13, size=11)] = 0
        tree[np.arange(13)] = leaves
        shares = np.r_[0.0, rng.random(11), np.nextafter(1, 0), 1.0]
        assert (leaves[tree.find(shares)] > 0).all()


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_draws_follow_the_priorities_of_what_is_held(exponent):
    buffer, rng = new_buffer(exponent, steps=LENGTH + 4), np.random.default_rng(1)
    b = 0.4 + 0.6 * (LENGTH + 4) * ENVS / dqn_prioritised.Args.total_timesteps
    held = [(step, env) for step in range(4, 4 + LENGTH) for env in range(ENVS)]
    errors = rng.random(len(held)) ** 3
    buffer.set_errors(*np.transpose(held), errors)
    expected = (errors + 1e-6) ** exponent
    expected /= expected.sum()
    counts, weights = dict.fromkeys(held, 0), {}
    for _ in range(400):
        batch = buffer.sample(101, 1, 0.9, rng)
        steps, envs = buffer.drawn
        np.testing.assert_array_equal(batch["obs"][:, 0], steps)  # what is named is what is drawn
        np.testing.assert_array_equal(batch["actions"], envs)
        largest = min(expected[held.index(x)] for x in zip(steps, envs, strict=True))
        for step, env, weight in zip(steps, envs, batch["weights"], strict=True):
            counts[step, env] += 1
            weights[step, env] = weight * largest**-b  # without the division by the largest
    np.testing.assert_allclose(np.array(list(counts.values())) / 40_400, expected, atol=5e-3)
    for key, weight in weights.items():
        assert weight == pytest.approx(expected[held.index(key)] ** -b, rel=1e-5)
    assert len(weights) > 15


def test_a_new_step_has_the_largest_priority_so_far():
    buffer = new_buffer(exponent=0.5, steps=2)
    assert set(priorities(buffer).values()) == {1.0}
    buffer.set_errors(np.array([0, 1]), np.array([2, 1]), np.array([9.0, 0.25]))
    buffer.set_errors(np.array([0]), np.array([2]), np.array([4.0]))
    add(buffer)
    found = priorities(buffer)
    assert [found[0, 2], found[1, 1], found[0, 0]] == pytest.approx([2, 0.5, 1], rel=1e-5)
    assert [found[2, env] for env in range(ENVS)] == pytest.approx([3] * ENVS, rel=1e-5)


def test_an_error_of_0_can_still_be_drawn():
    """p = |error| + 1e-6, then the exponent: not the other way round, nor 0."""
    buffer = new_buffer(exponent=0.5, steps=1)
    buffer.set_errors(np.array([0]), np.array([1]), np.array([0.0], np.float32))
    assert priorities(buffer)[0, 1] == pytest.approx(1e-3)


def test_only_what_can_be_drawn_has_a_priority():
    """`priorities` compares with the total; of stacked frames the buffer has slots to spare."""
    for stack, shape in ((1, (1,)), (4, (4, 2, 2))):
        space = Box(0, 255, shape, np.uint8)
        sizes = {"buffer_size": LENGTH * ENVS, "num_envs": ENVS}
        args, no = dqn_prioritised.Args(**sizes, priority_exponent=1.0), np.zeros(ENVS, np.bool_)
        buffer = dqn_prioritised.ReplayBuffer(args, space, stack)
        for step in range(3 * LENGTH):
            obs = np.zeros((ENVS, *shape), np.uint8)
            buffer.add(obs, np.arange(ENVS), np.zeros(ENVS, np.float32), no, no, obs, obs)
            assert priorities(buffer) and buffer.tree.total() == min(step + 1, LENGTH) * ENVS
            buffer.draw(29, np.random.default_rng(step))
            assert (buffer.drawn[0] >= step + 1 - LENGTH).all() and (buffer.drawn[0] <= step).all()


def test_no_priority_reaches_a_slot_that_was_overwritten_meanwhile():
    buffer = new_buffer(steps=LENGTH)
    drawn = np.array([0, 1, 5]), np.array([0, 2, 1])
    for _ in range(2):
        add(buffer)  # in place of steps 0 and 1
    buffer.set_errors(*drawn, np.array([50.0, 60.0, 7.0]))
    found = priorities(buffer)
    assert found.pop((5, 1)) == pytest.approx(7) and set(found.values()) == {1.0}
    add(buffer)
    assert priorities(buffer)[LENGTH + 2, 0] == pytest.approx(7)  # those errors are not the largest


DRAWN = {"steps": torch.tensor([11, 13]), "envs": torch.tensor([3, 5])}


class Errors:
    """A buffer that keeps the errors it is given."""

    def set_errors(self, steps, envs, errors):
        assert (steps.tolist(), envs.tolist()) == ([11, 13], [3, 5])
        assert isinstance(errors, np.ndarray)
        self.errors = errors.tolist()


def test_a_batch_may_wait_until_others_are_drawn(monkeypatch):
    """Its errors are those of its own steps, whatever was sampled since. Rewards, and so errors,
    are the numbers of the steps.
    """
    buffer, network = new_buffer(steps=LENGTH), torch.nn.Module()
    buffer.rewards[:LENGTH] = np.arange(LENGTH)[:, None]
    rng = np.random.default_rng(0)
    waiting = [buffer.sample(n, 1, 0.9, rng) for n in (5, 5, 11)]

    def losses_of(q_network, target_q_network, batch, args):
        return batch["rewards"], batch["rewards"], {}

    monkeypatch.setattr(dqn, "dqn_losses", losses_of)
    learned = set()
    for batch in waiting:
        learned |= set(zip(batch["steps"].tolist(), batch["envs"].tolist(), strict=True))
        batch = {name: torch.as_tensor(array) for name, array in batch.items()}
        dqn_prioritised.weighted_losses(buffer, network, network, batch, buffer.args)
    found = priorities(buffer)
    assert all(found[key] == pytest.approx(key[0], abs=1e-5) for key in learned)
    assert len(learned) > 9 and all(found[key] == 1 for key in found.keys() - learned)


@pytest.mark.parametrize("loss, rows", [("huber", [0.125, 2.5]), ("mse", [0.25, 9.0])])
def test_losses_are_weighted_and_errors_are_not(loss, rows):
    """Q = 2, 2 and targets 1.5, 5, the rewards of steps that end their episodes: TD errors 0.5 and
    3. The network gives back what it observes.
    """

    class Table(dqn.QNetwork):
        def __init__(self):
            torch.nn.Module.__init__(self)

        def forward(self, obs):
            return obs

    args, buffer, network = dqn_prioritised.Args(loss=loss), Errors(), Table()
    obs = torch.tensor([[7.0, 2.0], [9.0, 2.0]])
    batch = {"obs": obs, "next_obs": obs, "actions": torch.ones(2, dtype=torch.long)}
    batch |= {"rewards": torch.tensor([1.5, 5.0]), "discounts": torch.ones(2)}
    batch |= {"terminated": torch.ones(2, dtype=torch.bool), "weights": torch.tensor([1.0, 0.25])}
    batch |= DRAWN
    losses, errors, scalars = dqn_prioritised.weighted_losses(buffer, network, network, batch, args)
    assert losses.tolist() == pytest.approx([rows[0], 0.25 * rows[1]])
    assert buffer.errors == errors.tolist() == [0.5, 3.0] and scalars["q_values"] == 2


@pytest.mark.parametrize("num_envs", [1, 2])
def test_weights_make_up_for_all_of_the_bias_in_the_end(monkeypatch, num_envs):
    told = calls(monkeypatch, dqn_prioritised, "importance_weights")
    train(dqn_prioritised, **SHORT, importance_exponent=0.5, num_envs=num_envs)
    exponents = [call["exponent"] for call in told]
    steps = np.arange(56, 513, 8)
    np.testing.assert_allclose(exponents, 0.5 + 0.5 * steps / 512)


SHORT = TINY["dqn"] | dict(checkpoint_frequency=256, gradient_steps=1)
SWITCHES = {
    "mse": dict(loss="mse", num_envs=2, double=True),
    "c51": dict(dueling=True, batch_size=29, **C51),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_with_exponent_0_it_is_dqn(name):
    settings = SHORT | SWITCHES[name]
    plain = train(dqn, **settings, exp_name=f"plain-{name}")
    run = train(dqn_prioritised, **settings, priority_exponent=0.0, exp_name=f"prioritised-{name}")
    assert run.hash() == plain.hash()
    for each in (run, plain):
        each.writer.flush()
    curves = scalars(run.folder)
    assert len(curves) > 3
    assert curves == {key: pytest.approx(x, rel=1e-5) for key, x in scalars(plain.folder).items()}
    if name == "mse":
        assert train(dqn_prioritised, **settings).hash() != plain.hash()


@pytest.mark.parametrize("module", [dqn_prioritised, dqn_quantile])
def test_of_games_each_frame_is_kept_once(module, monkeypatch):
    """Stacks of four would take four times the memory."""
    told = calls(monkeypatch, dqn, "train")
    game = {"env_id": "ALE/Freeway-v5", "total_timesteps": 8, "learning_starts": 8}
    train(module, **game, buffer_size=64, batch_size=4, priority_exponent=0.6, eval_episodes=1)
    assert type(told[0]["buffer"].obs) is dqn.FrameStacks


def test_a_batch_has_a_step_of_each_equal_part_of_the_sum():
    """Of n equal priorities a batch of n has each step once: appendix B.2.1."""
    buffer = new_buffer(steps=LENGTH)
    buffer.sample(LENGTH * ENVS, 1, 0.9, np.random.default_rng(0))
    steps, envs = buffer.drawn
    assert len(set(zip(steps.tolist(), envs.tolist(), strict=True))) == LENGTH * ENVS
