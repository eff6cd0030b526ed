"""The formulas and the buffer of dqn.py against hand-worked numbers and independent definitions."""

import dqn
import gymnasium as gym
import numpy as np
import pytest
import torch

BATCH, ACTIONS, ATOMS, OBS = 7, 3, 5, 2
VECTORS = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)


def network(**settings):
    torch.manual_seed(0)
    args = dqn.Args(**{"hidden_sizes": (11, 13), "v_min": -10.0, "v_max": 10.0, **settings})
    return dqn.QNetwork(args, VECTORS, ACTIONS)


def losses_of(n_atoms):
    return dqn.dqn_losses if n_atoms == 1 else dqn.c51_losses


def project_by_hand(support, probs, rewards, discounts, terminated):
    """Eq. 7 of arXiv 1707.06887, term by term, in float64."""
    support, probs = support.astype(np.float64), probs.astype(np.float64)
    n_atoms, gap = len(support), support[1] - support[0]
    projected = np.zeros_like(probs)
    for b in range(len(probs)):
        for i in range(n_atoms):
            for j in range(n_atoms):
                future = 0.0 if terminated[b] else float(discounts[b]) * support[j]
                moved = np.clip(rewards[b] + future, support[0], support[-1])
                share = np.clip(1 - abs(moved - support[i]) / gap, 0, 1)
                projected[b, i] += share * probs[b, j]
    return projected


@pytest.mark.parametrize(
    "v_min, v_max", [(0, 0), (1, 0), (-1e39, 0), (0, 1e39), (0, np.nan), (1e8, 1e8 + 1)]
)
def test_a_support_is_finite_and_has_a_width(v_min, v_max, failure):
    assert "both finite" in failure(dqn.Args(n_atoms=51, v_min=v_min, v_max=v_max).check)


@pytest.mark.parametrize("n_atoms, v_min, v_max", [(51, -10, 10), (31, 0, 250), (31, -500, 500)])
def test_projection_keeps_the_mass_of_every_atom(n_atoms, v_min, v_max):
    """Also at integer positions, beyond the ends, and with the last atom rounded too high."""
    support = torch.linspace(v_min, v_max, n_atoms)
    gap = (v_max - v_min) / (n_atoms - 1)
    rewards = torch.cat([support, support + gap / 3, torch.tensor([-1e6, 1e6])])
    certain = torch.zeros(len(rewards), n_atoms)
    certain[:, 0] = 1
    ends = torch.ones(len(rewards), dtype=torch.bool)
    discounts = torch.ones(len(rewards))
    projected = dqn.project_categorical(support, certain, rewards, discounts, ends)
    torch.testing.assert_close(projected.sum(dim=1), torch.ones(len(rewards)))
    means = (projected * support).sum(dim=1)  # what lies inside keeps its mean
    expected = rewards.clamp(v_min, v_max)
    torch.testing.assert_close(means, expected, atol=1e-3 * gap, rtol=1e-5)


def random_batch(rng, size=BATCH):
    obs, next_obs = rng.normal(size=(2, size, OBS)).astype(np.float32)
    batch = {
        "obs": obs,
        "next_obs": next_obs,
        "actions": rng.integers(ACTIONS, size=size),
        "rewards": rng.normal(scale=3, size=size).astype(np.float32),
        "terminated": np.arange(size) % 3 == 0,
        "discounts": rng.uniform(0.5, 1, size).astype(np.float32),
    }
    return {name: torch.as_tensor(array) for name, array in batch.items()}


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_the_td_loss_by_hand(double, loss):
    batch = random_batch(np.random.default_rng(0))
    online, target = network(), network()
    with torch.no_grad():
        for p in target.parameters():
            p.add_(torch.randn(p.shape) * 0.5)
    q, next_target = online(batch["obs"]), target(batch["next_obs"])
    next_online, errors, losses = online(batch["next_obs"]), [], []
    choices = 0
    for b in range(BATCH):
        chooser = next_online if double else next_target
        choice = max(range(ACTIONS), key=chooser[b].__getitem__)
        choices += choice != max(range(ACTIONS), key=next_target[b].__getitem__)
        value = 0 if batch["terminated"][b] else next_target[b, choice].item()
        y = batch["rewards"][b].item() + batch["discounts"][b].item() * value
        error = q[b, batch["actions"][b]].item() - y
        huber = 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
        errors.append(error)
        losses.append(error**2 if loss == "mse" else huber)
    assert (choices > 0) == double  # the two ways differ on this batch
    assert min(errors) < -1 and max(errors) > 0 and min(map(abs, errors)) < 1
    args = dqn.Args(double=double, loss=loss)
    computed, sizes, scalars = dqn.dqn_losses(online, target, batch, args)
    assert computed.tolist() == pytest.approx(losses, rel=1e-4)
    assert sizes.tolist() == pytest.approx(np.abs(errors), rel=1e-4)
    q = q.detach().numpy()
    taken = q[np.arange(BATCH), batch["actions"]]
    by_hand = {"q_values": taken.mean(), "q_spread": q.std(axis=0).mean()}
    assert {k: x.item() for k, x in scalars.items()} == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_the_categorical_loss_by_hand(double):
    batch = random_batch(np.random.default_rng(1))
    online, target = network(n_atoms=ATOMS), network(n_atoms=ATOMS)
    with torch.no_grad():
        for p in target.parameters():
            p.add_(torch.randn(p.shape))
    logits, next_logits = online.logits(batch["obs"]), target.logits(batch["next_obs"])
    chooser = online if double else target
    choices = chooser.q_values(chooser.logits(batch["next_obs"])).argmax(dim=1)
    probs = torch.stack([next_logits[b, choices[b]].softmax(dim=0) for b in range(BATCH)])
    outcome = (batch[k].numpy() for k in ("rewards", "discounts", "terminated"))
    wanted = project_by_hand(online.support.numpy(), probs.detach().numpy(), *outcome)
    losses, at_ends = [], []
    for b in range(BATCH):
        log_probs = logits[b, batch["actions"][b]].log_softmax(dim=0).tolist()
        losses.append(-sum(w * log_p for w, log_p in zip(wanted[b], log_probs, strict=True)))
        at_ends.append(np.exp(log_probs[0]) + np.exp(log_probs[-1]))
    args = dqn.Args(double=double, n_atoms=ATOMS)
    computed, errors, scalars = dqn.c51_losses(online, target, batch, args)
    assert computed.tolist() == pytest.approx(losses, rel=1e-4) and torch.equal(errors, computed)
    q = online.q_values(logits).detach().numpy()
    taken = q[np.arange(BATCH), batch["actions"]]
    by_hand = {"q_values": taken.mean(), "q_spread": q.std(axis=0).mean()}
    by_hand["mass_at_ends"] = np.mean(at_ends)
    assert {k: x.item() for k, x in scalars.items()} == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("n_atoms", [1, ATOMS])
@pytest.mark.parametrize("name", ["rewards", "discounts", "terminated"])
def test_outcomes_with_a_second_axis_are_refused(name, n_atoms):
    batch = random_batch(np.random.default_rng(0))
    batch[name] = batch[name][:, None]
    q_network, args = network(n_atoms=n_atoms), dqn.Args(n_atoms=n_atoms)
    with pytest.raises(AssertionError):
        losses_of(n_atoms)(q_network, q_network, batch, args)


def test_epsilon_greedy():
    q_network, rng = network(), np.random.default_rng(0)
    obs = np.tile(np.float32([[0.3, -0.7]]), (20_000, 1))
    best = q_network(torch.as_tensor(obs[:1])).argmax().item()
    assert (q_network.act(obs, 0.0, rng) == best).all()
    for epsilon in (0.6, 1.0):
        counts = np.bincount(q_network.act(obs, epsilon, rng), minlength=ACTIONS) / 20_000
        expected = np.full(ACTIONS, epsilon / ACTIONS)
        expected[best] += 1 - epsilon
        np.testing.assert_allclose(counts, expected, atol=0.015)


class Stream:
    """Random episodes of several environments, stacked as Atari's, and the plain list of them."""

    def __init__(self, seed, num_envs, stack):
        self.rng, self.num_envs, self.stack = np.random.default_rng(seed), num_envs, stack
        self.count, self.history = 0, [[] for _ in range(num_envs)]
        self.obs = np.stack([self.first() for _ in range(num_envs)])

    def frame(self):
        self.count += 1
        return np.full((2, 3), self.count % 251 + 1, np.uint8)  # never black

    def first(self):
        obs = np.zeros((self.stack, 2, 3), np.uint8)
        obs[-1] = self.frame()
        return obs

    def step(self):
        n = self.num_envs
        actions, rewards = self.rng.integers(5, size=n), np.float32(self.rng.normal(size=n))
        terminated, truncated = self.rng.random((2, n)) < 0.12
        lost_life = terminated & (self.rng.random(n) < 0.5)  # terminated, and the game goes on
        next_obs = np.stack([[*self.obs[e][1:], self.frame()] for e in range(n)])
        following_obs = next_obs.copy()
        for e in np.flatnonzero((terminated & ~lost_life) | truncated):
            following_obs[e] = self.first()
        for e in range(n):
            row = (self.obs[e], actions[e], rewards[e], terminated[e], truncated[e], next_obs[e])
            self.history[e].append(row)
        step = (self.obs, actions, rewards, terminated, truncated, next_obs, following_obs)
        self.obs = following_obs
        return step


def n_step_by_hand(history, t, n_step, gamma):
    """What a sample that begins at `t` must be, from the plain list."""
    obs, action, *_ = history[t]
    total, k = 0.0, 0
    while True:
        _, _, reward, terminated, truncated, next_obs = history[t + k]
        total += gamma**k * reward
        k += 1
        if terminated or truncated or k == n_step or t + k == len(history):
            return obs, action, total, next_obs, terminated, gamma**k


@pytest.mark.parametrize("num_envs, n_step, stack", [(1, 1, 1), (1, 3, 4), (3, 5, 4), (2, 3, 1)])
def test_the_buffer_against_a_plain_list(num_envs, n_step, stack):
    space = gym.spaces.Box(0, 255, (stack, 2, 3), np.uint8)
    length = 37
    buffer = dqn.ReplayBuffer(length * num_envs, num_envs, space, stack)
    stream, rng = Stream(0, num_envs, stack), np.random.default_rng(1)
    for step in range(240):
        buffer.add(*stream.step())
        if step in (20, 150, 220):  # saved, and gone on with in another one
            state = buffer.state_dict()
            buffer = dqn.ReplayBuffer(length * num_envs, num_envs, space, stack)
            buffer.load_state_dict(state)
        sample = buffer.sample(BATCH, n_step, 0.9, rng)
        for row in range(BATCH):
            wanted = [  # every step that is held and could have given this row
                n_step_by_hand(history, t, n_step, 0.9)
                for history in stream.history
                for t in range(max(0, len(history) - length), len(history))
            ]
            found = [w for w in wanted if np.array_equal(w[0], sample["obs"][row])]
            assert len(found) == 1  # no two frames of those held are the same
            _, action, reward, next_obs, terminated, discount = found[0]
            assert sample["actions"][row] == action
            assert sample["rewards"][row] == pytest.approx(reward, rel=1e-4, abs=1e-5)
            assert sample["terminated"][row] == terminated
            assert sample["discounts"][row] == pytest.approx(discount)
            if not terminated:
                np.testing.assert_array_equal(sample["next_obs"][row], next_obs)


def test_a_step_that_does_not_follow_the_last_one_is_refused():
    """Its observation would become the last one's successor; here of data in no order."""
    obs = np.arange(10, dtype=np.float32).reshape(5, 2, 1)
    obs[3, 0] = np.nan  # where nothing was measured, for example
    none, actions = np.zeros(2, np.bool_), np.zeros(2, np.int64)

    def add(buffer, t, next_obs, ends=none):
        buffer.add(obs[t].copy(), actions, np.zeros(2, np.float32), none, ends, next_obs, next_obs)

    buffer = dqn.ReplayBuffer(22, 2, gym.spaces.Box(0, 9, (1,), np.float32))
    for t in range(4):
        add(buffer, t, obs[t + 1])
    add(buffer, 4, obs[3], ends=np.array([False, True]))
    with pytest.raises(ValueError, match="or that step truncated"):
        add(buffer, 0, obs[1])
    add(buffer, 3, obs[4], ends=~none)
    add(buffer, 0, obs[1])
    assert buffer.total == 7


def test_a_field_that_an_edit_adds_is_in_checkpoints():
    buffers = [dqn.ReplayBuffer(6, 2, gym.spaces.Box(-1, 1, (5,), np.float32)) for _ in range(2)]
    for buffer in buffers:
        buffer.bonus = np.zeros((buffer.slots, 2, 3))
        buffer.scales = np.ones(2)  # no steps
    buffers[0].bonus[0] = buffers[0].total = 1
    buffers[0].scales[1] = 5
    state = buffers[0].state_dict()
    buffers[1].load_state_dict(state)
    assert buffers[1].bonus[0].all() and buffers[1].scales.tolist() == [1, 5]
    assert len(state["bonus"]) == 1  # none of the slots that are empty


@pytest.mark.parametrize("n_step", [1, 3])
def test_samples_are_uniform_over_what_is_held_and_independent(n_step):
    buffer = dqn.ReplayBuffer(22, 2, gym.spaces.Box(-1, 1, (1,), np.float32))
    ends, actions = np.zeros(2, np.bool_), np.zeros(2, np.int64)
    for t in range(30):
        obs = np.float32([[2 * t], [2 * t + 1]])  # the number of the transition
        buffer.add(obs, actions, obs[:, 0], ends, ends, obs + 2, obs + 2)
    batch = buffer.sample(22_000, n_step, 0.9, np.random.default_rng(0))
    numbers = batch["obs"][:, 0].astype(int)
    counts = np.bincount(numbers, minlength=60)
    assert counts[:38].sum() == 0
    chi_square = ((counts[38:] - 1000) ** 2 / 1000).sum()
    assert chi_square < 46.8  # the 0.999 quantile at 21 degrees of freedom
    assert (np.diff(numbers) == 2).mean() == pytest.approx(20 / 22**2, abs=0.01)


def test_evaluations_explore_as_much_as_they_are_told():
    q_network, obs = network(), np.zeros((100, OBS), np.float32)

    def actions(seed, **settings):
        rng = np.random.default_rng(seed)
        return dqn.evaluation_policy(q_network, rng, dqn.Args(**settings))(obs)

    np.testing.assert_array_equal(actions(0), actions(1))
    assert (actions(0, eval_epsilon=1.0) != actions(1, eval_epsilon=1.0)).any()


def test_a_transition_of_atari_takes_at_most_7200_bytes():
    space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    buffer = dqn.ReplayBuffer(10_000, 2, space, stack=4)
    assert sum(array.nbytes for array in buffer.arrays.values()) / 10_000 <= 7200
