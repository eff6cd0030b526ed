"""td3.py against an independent implementation, hand-worked numbers, and what it must learn."""

import importlib
import itertools

import gymnasium as gym
import numpy as np
import pytest
import td3
import td3_sac
import torch
from conftest import calls, train

BATCH, OBS, ACTIONS = 7, 5, 3
NAMES = ("obs", "actions", "rewards", "next_obs", "terminated")
LOW, HIGH = np.float32([-1, 0, 10]), np.float32([3, 0.5, 1000])
VECTORS = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
ACTION_SPACE = gym.spaces.Box(LOW, HIGH)


def agents(**settings):
    """An agent, and another as its target."""
    torch.manual_seed(0)
    args = td3.Args(hidden_sizes=(11, 13), **settings)
    return [td3.make_agent(args, VECTORS, ACTION_SPACE) for _ in range(2)]


def random_batch(rng, dtype=np.float32, gamma=0.99):
    return {
        "discounts": torch.full((BATCH,), gamma, dtype=torch.as_tensor(dtype(0)).dtype),
        "obs": torch.tensor(rng.normal(size=(BATCH, OBS)).astype(dtype)),
        "actions": torch.tensor(rng.uniform(-1, 1, (BATCH, ACTIONS)).astype(dtype)),
        "rewards": torch.tensor(rng.normal(size=BATCH).astype(dtype)),
        "next_obs": torch.tensor(rng.normal(size=(BATCH, OBS)).astype(dtype)),
        "terminated": torch.tensor(rng.random(BATCH) < 0.3),
    }


class NumpyMLP:
    """Two hidden layers of ReLU with hand-written gradients, and Adam; float64."""

    def __init__(self, layers):
        linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
        self.parameters = [
            p.detach().numpy().copy() for layer in linear for p in layer.parameters()
        ]
        self.m = [np.zeros_like(p) for p in self.parameters]
        self.v = [np.zeros_like(p) for p in self.parameters]
        self.steps = 0

    def forward(self, x):
        w1, b1, w2, b2, w3, b3 = self.parameters
        self.x = x
        self.h1 = np.maximum(x @ w1.T + b1, 0)
        self.h2 = np.maximum(self.h1 @ w2.T + b2, 0)
        return self.h2 @ w3.T + b3

    def backward(self, grad):
        """Gradients of the parameters and of the input, for the last forward."""
        _, _, w2, _, w3, _ = self.parameters
        g2 = (grad @ w3) * (self.h2 > 0)
        g1 = (g2 @ w2) * (self.h1 > 0)
        pairs = [(g1, self.x), (g2, self.h1), (grad, self.h2)]
        gradients = [g for out, x in pairs for g in (out.T @ x, out.sum(axis=0))]
        return gradients, g1 @ self.parameters[0]

    def adam(self, gradients, lr, eps=1e-8):
        self.steps += 1
        for p, m, v, g in zip(self.parameters, self.m, self.v, gradients, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g**2 - v)
            m_hat, v_hat = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            p -= lr * m_hat / (np.sqrt(v_hat) + eps)


@pytest.mark.parametrize("twin", [True, False])
def test_a_hundred_updates_equal_an_independent_implementation(twin):
    """Algorithm 1 of arXiv 1802.09477 in NumPy, in float64. To 1e-6, since Adam divides
    rounding errors by gradients that are nearly 0.
    """
    agent, target = (each.double() for each in agents(twin=twin))
    actor_adam, critic_adam = (
        torch.optim.Adam(part.parameters(), lr=1e-2, fused=True)
        for part in (agent.actor, agent.critics)
    )
    args = td3.Args(gamma=0.97, tau=0.05, noise_clip=0.3, policy_frequency=3, twin=twin)
    actor, actor_target = NumpyMLP(agent.actor), NumpyMLP(target.actor)
    critics = [NumpyMLP(critic.layers) for critic in agent.critics]
    critic_targets = [NumpyMLP(critic.layers) for critic in target.critics]
    assert len(critics) == 1 + twin
    rng = np.random.default_rng(1)
    for step in range(1, 101):
        batch = random_batch(rng, np.float64, args.gamma)
        noise = 0.4 * rng.standard_normal((BATCH, ACTIONS))
        learn_policy = step % args.policy_frequency == 0
        # the updates of one step, as `train` does them: see the tests of what it calls, below
        scalars = td3.update_critics(agent, target, critic_adam, batch, torch.tensor(noise), args)
        if learn_policy:
            scalars |= td3.update_actor(agent, actor_adam, batch["obs"])
            td3.polyak(target, agent, args.tau)

        obs, actions, rewards, next_obs, terminated = (batch[k].numpy() for k in NAMES)
        next_actions = np.tanh(actor_target.forward(next_obs))
        next_actions = np.clip(next_actions + np.clip(noise, -0.3, 0.3), -1, 1)
        pairs = np.concatenate([next_obs, next_actions], axis=1)
        smallest = np.min([critic.forward(pairs)[:, 0] for critic in critic_targets], axis=0)
        y = np.where(terminated, rewards, rewards + 0.97 * smallest)
        first_q = critics[0].forward(np.concatenate([obs, actions], axis=1))
        assert scalars["losses/qf1_values"].item() == pytest.approx(first_q.mean(), abs=1e-6)
        for i, critic in enumerate(critics, start=1):
            errors = critic.forward(np.concatenate([obs, actions], axis=1))[:, 0] - y
            assert scalars[f"losses/qf{i}_loss"].item() == pytest.approx(
                np.mean(errors**2), abs=1e-6
            )
            critic.adam(critic.backward(2 * errors[:, None] / BATCH)[0], lr=1e-2)
        if learn_policy:
            chosen = np.tanh(actor.forward(obs))
            q = critics[0].forward(np.concatenate([obs, chosen], axis=1))
            assert scalars["losses/actor_loss"].item() == pytest.approx(-q.mean(), abs=1e-6)
            _, slope = critics[0].backward(np.full((BATCH, 1), -1 / BATCH))
            actor.adam(actor.backward(slope[:, OBS:] * (1 - chosen**2))[0], lr=1e-2)
            pairs = zip([actor_target, *critic_targets], [actor, *critics], strict=True)
            for slow, fast in pairs:
                for p, q in zip(slow.parameters, fast.parameters, strict=True):
                    p += 0.05 * (q - p)
        else:
            assert "losses/actor_loss" not in scalars

    def close(module, network):
        for p, q in zip(module.parameters(), network.parameters, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), q, rtol=1e-6, atol=1e-6)

    for module, numpy_actor, numpy_critics in (
        (agent, actor, critics),
        (target, actor_target, critic_targets),
    ):
        close(module.actor, numpy_actor)
        for critic, numpy_critic in zip(module.critics, numpy_critics, strict=True):
            close(critic, numpy_critic)


@pytest.mark.parametrize("name", ["rewards", "terminated"])
def test_columns_instead_of_vectors_fail_at_once(name):
    agent, target = agents()
    batch = random_batch(np.random.default_rng(0))
    noise = torch.zeros(BATCH, ACTIONS)
    td3.q_losses(agent, target, batch, noise, td3.Args())
    batch[name] = batch[name][:, None]
    with pytest.raises(AssertionError):
        td3.q_losses(agent, target, batch, noise, td3.Args())


def test_polyak_copies_buffers():
    """As the statistics of a batch norm, of which one counts: a share of a count is no count."""
    source, target = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    for _ in range(5):
        source(torch.randn(7, 3) + 2)
    td3.polyak(target, source, 0.25)
    assert target.num_batches_tracked == 5
    assert torch.equal(target.running_mean, source.running_mean)
    assert torch.equal(target.running_var, source.running_var)
    source(torch.randn(7, 3))
    assert target.num_batches_tracked == 5  # copies, not the same memory


def test_each_dimension_has_its_own_bounds():
    agent, _ = agents()
    edges = agent.to_env(np.float32([[-1, -1, -1], [0, 0, 0], [1, 1, 1], [-0.5, 0.5, 0.1]]))
    by_hand = [[-1, 0, 10], [1, 0.25, 505], [3, 0.5, 1000], [0, 0.375, 554.5]]
    np.testing.assert_allclose(edges, by_hand, rtol=1e-6)
    sent = td3.as_declared(edges, ACTION_SPACE)
    assert (edges >= LOW).all() and (edges <= HIGH).all() and sent.dtype == np.float32
    assert all(action in ACTION_SPACE for action in sent)


def test_the_noise_is_measured_in_half_ranges_and_clipped():
    agent, _ = agents()
    obs = np.random.default_rng(0).normal(size=(4001, OBS)).astype(np.float32)
    greedy = agent.act(obs, None)
    noisy = agent.act(obs, np.random.default_rng(1), noise=0.1)
    inside = np.abs(noisy) < 1
    assert inside.mean() > 0.99
    deviations = (noisy - greedy)[inside.all(axis=1)].std(axis=0)
    np.testing.assert_allclose(deviations, 0.1, rtol=0.05)
    assert np.abs(agent.act(obs, np.random.default_rng(1), noise=9.0)).max() == 1
    in_env = agent.to_env(noisy) - agent.to_env(greedy)
    expected = 0.1 * (HIGH - LOW) / 2
    np.testing.assert_allclose(in_env[inside.all(axis=1)].std(axis=0), expected, rtol=0.05)


def test_evaluations_are_without_noise():
    agent, _ = agents()
    obs, args = np.ones((BATCH, OBS), np.float32), td3.Args(exploration_noise=0.5)
    rngs = np.random.default_rng(0), np.random.default_rng(1)
    first, second = (td3.evaluation_policy(agent, rng, args)(obs) for rng in rngs)
    np.testing.assert_array_equal(first, second)


def times_of(capacity, steps, size):
    """When those steps were taken that a buffer samples."""
    buffer, rng = td3.ReplayBuffer(capacity, 1, 1, 1), np.random.default_rng(0)
    zeros, never = np.zeros((1, 1), np.float32), np.zeros(1, np.bool_)
    for time in range(steps):
        buffer.add(zeros, zeros, np.float32([time]), zeros, never, never)
    return buffer.sample(size, 1, 0.9, rng)["rewards"]


def test_the_buffer_samples_uniformly():
    times = times_of(11, steps=29, size=110_000)
    counts = np.bincount(times.astype(int), minlength=29)
    assert (counts[:18] == 0).all()
    chi_square = ((counts[18:] - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 29.6  # 99.9% of the distribution with 10 degrees of freedom


@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("num_envs, capacity", [(1, 13), (2, 23), (3, 23), (3, 7)])
def test_n_step_returns_against_a_walk_over_whole_episodes(n_step, num_envs, capacity):
    """Every row that is drawn, past the wrap, with both kinds of ends and the newest step."""
    rng, gamma = np.random.default_rng(0), 0.9
    buffer, walks = td3.ReplayBuffer(capacity, num_envs, 1, 1), [[] for _ in range(num_envs)]
    drawn, cut = set(), set()
    for t in range(67):
        obs = np.float32([[100 * t + env] for env in range(num_envs)])
        rewards = rng.normal(size=num_envs).astype(np.float32)
        terminated, truncated = rng.random(num_envs) < 0.1, rng.random(num_envs) < 0.1
        buffer.add(obs, -obs, rewards, obs + 50, terminated, truncated)
        for env, walk in enumerate(walks):
            walk.append((rewards[env], terminated[env], truncated[env]))
        for _ in range(5):
            batch = buffer.sample(11, n_step, gamma, rng)
            for row in range(11):
                start, env = divmod(int(batch["obs"][row, 0]), 100)
                expected, steps, terminal = 0.0, 0, False
                for reward, terminal, limit in walks[env][start : start + n_step]:
                    expected += gamma**steps * reward
                    steps += 1
                    if terminal or limit:
                        cut.add(steps)
                        break
                assert batch["actions"][row, 0] == -batch["obs"][row, 0]
                assert batch["rewards"][row] == pytest.approx(expected, abs=1e-5)
                assert batch["discounts"][row] == pytest.approx(gamma**steps)
                assert batch["terminated"][row] == terminal
                assert batch["next_obs"][row, 0] == 100 * (start + steps - 1) + env + 50
                assert (t - start) * num_envs < capacity + num_envs
                drawn.add(steps)
    assert drawn == cut == set(range(1, min(n_step, -(-capacity // num_envs)) + 1))
    assert batch.keys() == {"obs", "actions", "rewards", "next_obs", "terminated", "discounts"}


def test_training_hands_n_step_and_ends_to_the_buffer(monkeypatch):
    """A checkpoint's cut, too: no return crosses it."""
    added = calls(monkeypatch, td3.ReplayBuffer, "add")
    sampled = calls(monkeypatch, td3.ReplayBuffer, "sample")
    settings = dict(SMALL, total_timesteps=230, checkpoint_frequency=70, n_step=3, gamma=0.7)
    run = train(td3, env_id="Pendulum-v1", num_envs=2, **settings)
    told = {(call["batch_size"], call["n_step"], call["gamma"]) for call in sampled}
    assert told == {(32, 3, 0.7)} and len(sampled) == 30
    assert all(call["rng"] is run.rng for call in sampled)
    ends = [2 * (i + 1) for i, step in enumerate(added) if step["truncated"].all()]
    assert ends == [70, 140, 210] and not any(step["terminated"].any() for step in added)


def test_samples_are_not_consecutive():
    times = times_of(1000, steps=1000, size=1000)
    assert (np.abs(np.diff(times)) < 10).mean() < 0.05  # independent ones: 0.02


SMALL = dict(batch_size=32, hidden_sizes=(32, 32), learning_rate=3e-3, learning_starts=200)


def test_the_first_steps_are_random(monkeypatch):
    acts = calls(monkeypatch, td3.Agent, "act")
    train(td3, **SMALL, total_timesteps=230, env_id="environments:Target-v0")
    assert len(acts) == 30


@pytest.mark.parametrize("num_envs", [1, 2])
def test_there_is_one_update_to_a_step_and_every_third_moves_the_policy(monkeypatch, num_envs):
    order, update_critics, update_actor = [], td3.update_critics, td3.update_actor

    def of_critics(*inputs):
        order.append(False)
        return update_critics(*inputs)

    def of_actor(*inputs):
        assert not order[-1]  # the critics learn first
        order[-1] = True
        return update_actor(*inputs)

    monkeypatch.setattr(td3, "update_critics", of_critics)
    monkeypatch.setattr(td3, "update_actor", of_actor)
    settings = dict(SMALL, total_timesteps=230, num_envs=num_envs, policy_frequency=3)
    train(td3, env_id="environments:Target-v0", **settings)
    assert len(order) == 30 and order == [step % 3 == 0 for step in range(201, 231)]


def test_the_targets_are_copies_that_take_their_share_when_the_policy_learns(monkeypatch):
    states, update_critics, update_actor = [], td3.update_critics, td3.update_actor

    def weights(module):
        return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()

    def of_critics(agent, target, *rest):
        states.append([weights(agent), weights(target), False])
        return update_critics(agent, target, *rest)

    def of_actor(*inputs):
        states[-1][2] = True
        return update_actor(*inputs)

    monkeypatch.setattr(td3, "update_critics", of_critics)
    monkeypatch.setattr(td3, "update_actor", of_actor)
    settings = dict(SMALL, total_timesteps=230, policy_frequency=3, tau=0.25)
    train(td3, env_id="environments:Target-v0", **settings)
    assert len(states) == 30 and torch.equal(*states[0][:2])
    assert sum(due for *_, due in states) == 10
    for (_, target, due), (after, target_after, _) in itertools.pairwise(states):
        expected = 0.75 * target + 0.25 * after if due else target
        torch.testing.assert_close(target_after, expected)
    assert not torch.equal(*states[-1][:2])


@pytest.mark.slow
def test_pendulum_is_learned():
    settings = dict(total_timesteps=6000, learning_starts=1000, gamma=0.95, learning_rate=3e-3)
    settings |= dict(tau=0.01, hidden_sizes=(64, 64), batch_size=64)
    assert train(td3, env_id="Pendulum-v1", **settings).evaluate().mean() > -200


@pytest.mark.parametrize("script", ["dqn", "td3", "td3_sac"])
def test_a_budget_without_an_update_is_refused(script, refused):
    least = 300 if script == "dqn" else 299  # with one update at the end
    flags = "--total-timesteps 300 --learning-starts"
    assert "leaves no update" in refused(script, *f"{flags} {least + 1}".split())
    parse = importlib.import_module(script.split("_")[0]).parse_args
    args_class = importlib.import_module(script).RunArgs if script != "td3_sac" else td3_sac.Args
    parse(script, args_class, f"{flags} {least}".split())
