"""td3.py: updates row by row, the buffer against plain lists, and what it must learn."""

import importlib
import itertools

import gymnasium as gym
import numpy as np
import pytest
import td3
import td3_sac
import torch
from conftest import before, randomise, train, vector

BATCH, OBS, ACTIONS = 7, 5, 3
LOW, HIGH = np.float32([-1, 0, 10]), np.float32([3, 0.5, 1000])
VECTORS = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
ACTION_SPACE = gym.spaces.Box(LOW, HIGH)


def agents(**settings):
    """An agent, and another as its target."""
    torch.manual_seed(0)
    args = td3.Args(hidden_sizes=(11, 13), **settings)
    return [td3.make_agent(args, VECTORS, ACTION_SPACE) for _ in range(2)]


def random_batch(seed=0):
    rng = np.random.default_rng(seed)
    batch = {
        "obs": rng.normal(size=(BATCH, OBS)),
        "actions": rng.uniform(-1, 1, (BATCH, ACTIONS)),
        "rewards": rng.normal(size=BATCH),
        "next_obs": rng.normal(size=(BATCH, OBS)),
        "discounts": rng.uniform(0.5, 1, BATCH),
    }
    batch = {name: torch.tensor(x, dtype=torch.float32) for name, x in batch.items()}
    return batch | {"terminated": torch.arange(BATCH) % 3 == 0}


def step_down(loss, module):
    """Its parameters after a step of gradient descent by 0.1."""
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    return [p.detach() - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]


@pytest.mark.parametrize("twin", [True, False])
def test_an_update_of_the_critics_row_by_row(twin):
    """Algorithm 1 of arXiv 1802.09477."""
    agent, target = map(randomise, agents(twin=twin))
    args, batch = td3.Args(noise_clip=0.3, twin=twin), random_batch()
    noise = 0.4 * torch.randn(BATCH, ACTIONS)
    y = batch["rewards"].clone()
    for b in torch.nonzero(~batch["terminated"]).flatten():
        next_obs = batch["next_obs"][b : b + 1]
        action = (target.policy(next_obs) + noise[b].clip(-0.3, 0.3)).clip(-1, 1)
        smallest = min(critic(next_obs, action).item() for critic in target.critics)
        y[b] += batch["discounts"][b] * smallest
    q_values = [critic(batch["obs"], batch["actions"]) for critic in agent.critics]
    losses = [((q - y) ** 2).mean() for q in q_values]
    assert len(losses) == 1 + twin
    expected = step_down(sum(losses), agent.critics)
    optimizer = torch.optim.SGD(agent.critics.parameters(), lr=0.1)
    scalars = td3.update_critics(agent, target, optimizer, batch, noise, args)
    torch.testing.assert_close(list(agent.critics.parameters()), expected)
    by_hand = {f"losses/qf{i}_loss": loss.detach() for i, loss in enumerate(losses, start=1)}
    by_hand |= {"losses/qf1_values": q_values[0].detach().mean()}
    torch.testing.assert_close(scalars, by_hand)


def test_an_update_of_the_actor_climbs_the_first_critic():
    agent, _ = agents()
    agent.critics[1].requires_grad_(False)  # by a reader
    obs = random_batch()["obs"]
    loss = -agent.critics[0](obs, agent.policy(obs)).mean()
    expected = step_down(loss, agent.actor)
    optimizer = torch.optim.SGD(agent.actor.parameters(), lr=0.1)
    scalars = td3.update_actor(agent, optimizer, obs)
    torch.testing.assert_close(list(agent.actor.parameters()), expected)
    torch.testing.assert_close(scalars, {"losses/actor_loss": loss.detach()})
    assert all(p.grad is None for p in agent.critics.parameters())  # whoever sums theirs up
    for critic, learns in zip(agent.critics, (True, False), strict=True):
        assert {p.requires_grad for p in critic.parameters()} == {learns}


@pytest.mark.parametrize("function", ["q_losses", "policy_loss"])
def test_a_module_that_is_only_in_a_loss_gets_its_gradient(function, monkeypatch):
    agent, target = agents()
    model = torch.nn.Linear(OBS, 1)
    loss_of = getattr(td3, function)

    def with_model(agent, *inputs):
        losses = loss_of(agent, *inputs)
        added = model(random_batch()["obs"]).mean()
        return ([*losses[0], added], losses[1]) if function == "q_losses" else losses + added

    monkeypatch.setattr(td3, function, with_model)
    optimizers = {
        "actor_optimizer": torch.optim.SGD(agent.actor.parameters(), 0.1),
        "critic_optimizer": torch.optim.SGD(agent.critics.parameters(), 0.1),
    }
    args = td3.Args(policy_frequency=1)
    td3.td3_update(agent, target, optimizers, random_batch(), args, np.random.default_rng(0), 1)
    torch.testing.assert_close(model.weight.grad[0], random_batch()["obs"].mean(dim=0))


@pytest.mark.parametrize("name", ["rewards", "terminated"])
def test_columns_instead_of_vectors_fail_at_once(name):
    agent, target = agents()
    batch = random_batch()
    noise = torch.zeros(BATCH, ACTIONS)
    td3.q_losses(agent, target, batch, noise, td3.Args())
    batch[name] = batch[name][:, None]
    with pytest.raises(AssertionError):
        td3.q_losses(agent, target, batch, noise, td3.Args())


def test_a_step_of_fewer_environments_than_the_buffer_is_of_fails_at_once():
    """Such as a demonstrator's: later steps would be looked for num_envs rows further on."""
    buffer = td3.ReplayBuffer(20, 3, 2, 1)
    row = np.zeros((1, 2), np.float32), np.zeros((1, 1), np.float32), np.zeros(1)
    with pytest.raises(AssertionError, match=r"\(1, 3\)"):
        buffer.add(*row, np.zeros((1, 2), np.float32), np.zeros(1), np.zeros(1))


def test_each_dimension_has_its_own_bounds():
    agent, _ = agents()
    edges = agent.to_env(np.float32([[-1, -1, -1], [0, 0, 0], [1, 1, 1], [-0.5, 0.5, 0.1]]))
    by_hand = [[-1, 0, 10], [1, 0.25, 505], [3, 0.5, 1000], [0, 0.375, 554.5]]
    np.testing.assert_allclose(edges, by_hand, rtol=1e-6)
    sent = td3.as_declared(edges, ACTION_SPACE)
    assert (edges >= LOW).all() and (edges <= HIGH).all() and sent.dtype == np.float32
    assert all(action in ACTION_SPACE for action in sent)
    with pytest.raises(FloatingPointError, match="actions not finite"):
        agent.to_env(np.float32([[0, np.nan, 0]]))


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


def test_samples_are_uniform_and_independent():
    buffer, rng = td3.ReplayBuffer(11, 1, 1, 1), np.random.default_rng(0)
    zeros, never = np.zeros((1, 1), np.float32), np.zeros(1, np.bool_)
    for time in range(29):
        buffer.add(zeros, zeros, np.float32([time]), zeros, never, never)
    times = buffer.sample(110_000, 1, 0.9, rng)["rewards"].astype(int)
    counts = np.bincount(times, minlength=29)
    assert (counts[:18] == 0).all()
    chi_square = ((counts[18:] - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 29.6  # 99.9% of the distribution with 10 degrees of freedom
    assert (np.diff(times) == 1).mean() == pytest.approx(10 / 11**2, abs=0.01)


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


SMALL = dict(batch_size=32, hidden_sizes=(32, 32), learning_rate=3e-3, learning_starts=200)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_update_to_a_step_of_which_every_third_moves_policy_and_targets(monkeypatch, num_envs):
    """The targets are copies, which then take their share; the critics learn first."""
    states = []

    def of_critics(agent, target, *_):
        states.append([vector(agent), vector(target), False])

    def of_actor(*_):
        states[-1][2] = True

    before(monkeypatch, td3, "update_critics", of_critics)
    before(monkeypatch, td3, "update_actor", of_actor)
    settings = dict(SMALL, total_timesteps=230, num_envs=num_envs, policy_frequency=3, tau=0.25)
    train(td3, env_id="Pendulum-v1", **settings)
    assert [due for *_, due in states] == [step % 3 == 0 for step in range(201, 231)]
    assert torch.equal(*states[0][:2])
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


def test_a_variant_may_have_an_agent_of_its_own():
    class Own(td3.Agent):
        pass

    spaces = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))
    assert type(td3.make_agent(td3.Args(), *spaces, agent_class=Own)) is Own
    assert type(td3.make_agent(td3.Args(), *spaces)) is td3.Agent


def test_arrays_of_an_edit_are_kept_whatever_their_length():
    """Such as priorities, one for each transition, in a tree of sums; add fills td3's own."""
    buffers = [td3.ReplayBuffer(7, 1, 3, 2) for _ in range(2)]
    for buffer in buffers:
        buffer.arrays["priorities"] = np.zeros(7)
        buffer.arrays["tree"] = np.zeros(17)
        buffer.arrays["largest"] = np.zeros(())
    no = np.zeros(1, np.bool_)
    for t in (1.0, 2.0):
        obs = np.full((1, 3), t, np.float32)
        buffers[0].add(obs, np.zeros((1, 2), np.float32), obs[:, 0], 5 * obs, no, ~no)
    buffers[0].arrays["priorities"][1] = buffers[0].arrays["tree"][16] = 11
    buffers[0].arrays["largest"][...] = 13
    state = buffers[0].state_dict()
    buffers[1].load_state_dict(state)
    for name, array in buffers[0].arrays.items():
        np.testing.assert_array_equal(buffers[1].arrays[name], array)
    assert buffers[1].arrays["next_obs"][1].tolist() == [10, 10, 10]
    assert buffers[1].arrays["truncated"][:3].tolist() == [True, True, False]
    assert buffers[1].arrays["tree"][16] == 11 and len(state["obs"]) == 2


@pytest.mark.parametrize("script", [td3, td3_sac])
def test_only_the_steps_after_learning_starts_are_learned_from(script):
    """Of the three side by side that reach it one."""
    settings = dict(env_id="Pendulum-v1", num_envs=3, total_timesteps=60, learning_starts=29)
    run = train(script, **settings, batch_size=4, hidden_sizes=(4, 4))
    states = run.parts["critic_optimizer"].state.values()
    assert {int(state["step"]) for state in states} == {60 - 29}
    assert run.parts["gradient_step"].value == 60
