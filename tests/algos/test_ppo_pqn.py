"""ppo_pqn.py: lambda-returns against numbers worked out by hand and a loop, the loss, the epsilon,
and where the normalisation stands.
"""

import numpy as np
import ppo
import ppo_pqn
import pytest
import torch
from conftest import before, calls, curves, hash_of_parameters, new_run, train
from gymnasium.spaces import Box, Discrete
from torch import nn

STEPS, ENVS, ACTIONS = 7, 3, 5


class Table(ppo_pqn.Agent):
    """Q is what is observed, plus what is learned of each action."""

    def make_networks(self, args, input_shape, num_outputs):
        self.learned = nn.Parameter(torch.zeros(num_outputs))

    def policy(self, features):
        return features + self.learned


def table(num_actions=ACTIONS, **settings):
    space = Box(-np.inf, np.inf, (num_actions,), np.float32)
    return Table(ppo_pqn.Args(**settings), space, Discrete(num_actions))


def observed(values, num_actions=ACTIONS):
    """Q (..., num_actions) whose largest is V, (...), and never that of the first action."""
    values = np.asarray(values, np.float32)
    below = np.arange(1, num_actions + 1, dtype=np.float32)[::-1]  # below V, by up to num_actions
    return values[..., None] - below + 1


def batch_of(values, next_values, rewards, terminated, truncated, gamma, gae_lambda):
    """ppo's batch of a rollout. values, next_values (steps, envs): V of what is acted on, and of
    what each action led to.
    """
    agent, buffer = table(gamma=gamma, gae_lambda=gae_lambda), ppo.RolloutBuffer()
    steps, envs = np.shape(values)
    args = ppo_pqn.Args(num_envs=envs, gamma=gamma, gae_lambda=gae_lambda)
    for t in range(steps):
        step = {"obs": observed(values[t]), "next_obs": observed(next_values[t])}
        step |= {"actions": np.zeros(envs, np.int64), "rewards": np.float32(rewards[t])}
        buffer.add(**step, terminated=terminated[t], truncated=truncated[t])
    batch, _ = ppo.rollout_batch(agent, buffer, args, np.zeros(envs))
    return batch


def random_rollout(seed=0):
    rng = np.random.default_rng(seed)
    values, next_values, rewards = rng.normal(size=(3, STEPS, ENVS)).astype(np.float32)
    terminated, truncated = rng.random((2, STEPS, ENVS)) < 0.25
    goes_on = ~(terminated | truncated)[:-1]
    next_values[:-1][goes_on] = values[1:][goes_on]
    assert (terminated & ~truncated).any() and (truncated & ~terminated).any()
    assert not (terminated | truncated)[-1].all()
    return values, next_values, rewards, terminated, truncated


def lambda_returns(next_values, rewards, terminated, truncated, gamma, lam):
    """The paper's recursion, forward from each step, until the episode or the rollout ends."""
    returns = np.zeros((STEPS, ENVS))
    for env in range(ENVS):
        for t in reversed(range(STEPS)):
            if terminated[t, env]:
                following = 0.0
            elif truncated[t, env] or t == STEPS - 1:
                following = next_values[t, env]
            else:
                following = (1 - lam) * next_values[t, env] + lam * returns[t + 1, env]
            returns[t, env] = rewards[t, env] + gamma * following
    return returns


@pytest.mark.parametrize("lam", [0.0, 0.65, 1.0])
def test_returns_equal_the_recursion_of_the_paper(lam):
    rollout = random_rollout()
    batch = batch_of(*rollout, 0.9, lam)
    expected = lambda_returns(*rollout[1:], 0.9, lam)
    np.testing.assert_allclose(batch["returns"].reshape(STEPS, ENVS), expected, atol=2e-6)


def test_the_loss_by_hand():
    """Q = 1 and 4 of the actions taken, returns 3 and 8: half of the mean of 4 and 16 is 5."""
    agent, args = table(2), ppo_pqn.Args()
    minibatch = {"obs": torch.tensor([[1.0, 7.0], [2.0, 4.0]]), "actions": torch.tensor([0, 1])}
    minibatch["returns"] = torch.tensor([3.0, 8.0])
    loss, terms, log_ratio = ppo_pqn.pqn_loss(agent, minibatch, args, 0.0)
    assert loss.item() == 5 and log_ratio.tolist() == [0, 0]
    assert {name: term.item() for name, term in terms.items()} == {
        "td_loss": 5, "q_values": 2.5, "values": 5.5,
    }  # fmt: skip
    loss.backward()  # (Q - R) / 2 of each action, one step of either
    assert agent.learned.grad.tolist() == [-1, -2]
    column = {"returns": minibatch["returns"][:, None]}
    with pytest.raises(AssertionError):
        ppo_pqn.pqn_loss(agent, minibatch | column, args, 0.0)


def test_exploring_actions_are_uniform_and_the_others_greedy():
    agent, rng, n = table(), np.random.default_rng(0), 20_000
    obs = observed(np.random.default_rng(1).normal(size=n))  # the last action is the best
    agent.epsilon = 0.4
    shares = np.bincount(agent.act(obs, rng), minlength=ACTIONS) / n
    np.testing.assert_allclose(shares, [0.08] * 4 + [0.68], atol=0.01)
    agent.epsilon = 0.0
    assert set(agent.act(obs, rng)) == {ACTIONS - 1}
    agent.epsilon = 1.0
    assert set(agent.act(obs, rng, greedy=True)) == {ACTIONS - 1}
    assert len(set(agent.act(obs, rng))) == ACTIONS


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5"])
def test_evaluations_are_greedy_in_games_too(env_id):
    agent = table()
    agent.epsilon = 1.0
    policy = ppo_pqn.evaluation_policy(agent, np.random.default_rng(0), ppo_pqn.Args(env_id=env_id))
    assert set(policy(observed(np.zeros(99)))) == {ACTIONS - 1}


SHORT = dict(total_timesteps=1024, num_envs=4, num_steps=16, checkpoint_frequency=256)


@pytest.mark.parametrize("fraction", [0.25, 0.0])
def test_epsilon_falls_from_step_to_step(monkeypatch, fraction):
    epsilons = []
    run = new_run(ppo_pqn, **SHORT, start_e=0.9, end_e=0.1, exploration_fraction=fraction)
    before(monkeypatch, run, "step", lambda _: epsilons.append(run.agent.epsilon))
    ppo_pqn.train(run.args, run)
    steps, explored = np.arange(0, 1024, 4), 1024 * fraction or 1
    expected = np.maximum(0.9 - 0.8 * steps / explored, 0.1)
    np.testing.assert_allclose(epsilons, expected)
    curve = curves(run)["charts/epsilon"].values()
    assert max(curve) <= 0.9 and np.mean([*curve]) == pytest.approx(expected.mean(), abs=0.05)


def test_rewards_are_scaled_where_asked():
    settings, trained = SHORT | {"total_timesteps": 128}, []
    for norm_reward in (False, True):
        agent = train(ppo_pqn, **settings, norm_reward=norm_reward).agent
        trained.append(hash_of_parameters(agent))
    assert trained[0] != trained[1] and agent.return_moments.count == 128


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_each_hidden_layer_is_normalised_before_its_activation(activation):
    args = ppo_pqn.Args(hidden_size=13, activation=activation)
    agent = ppo_pqn.Agent(args, Box(-1, 1, (2,)), Discrete(ACTIONS))
    kind = nn.Tanh if activation == "tanh" else nn.ReLU
    layers = [nn.Linear, nn.LayerNorm, kind, nn.Linear, nn.LayerNorm, kind, nn.Linear]
    assert [type(layer) for layer in agent.q_network] == layers


def test_layers_before_any_activation_are_normalised():
    layers = ppo_pqn.with_layer_norm(
        nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 2)), [3]
    )
    assert [type(x) for x in layers] == [nn.Linear, nn.LayerNorm, nn.SiLU, nn.Linear]


def test_a_network_may_have_batch_normalisation_of_its_own():
    norm = nn.BatchNorm1d(5)
    layers = ppo_pqn.with_layer_norm(nn.Sequential(nn.Linear(3, 5), norm, nn.Linear(5, 2)), [3])
    assert norm in layers and norm.training and norm.num_batches_tracked == 0


def test_layers_within_another_would_be_left_out(failure):
    block = nn.Sequential(nn.Linear(3, 5), nn.Tanh())
    layers = nn.Sequential(block, nn.Linear(5, 2))
    assert "within Sequential add" in failure(ppo_pqn.with_layer_norm, layers, [3])


def test_without_it_the_network_is_ppos():
    networks = []
    for make in (ppo_pqn.Agent, ppo.Agent):
        torch.manual_seed(0)
        args = ppo_pqn.Args(hidden_size=13, layer_norm=False)
        networks.append(make(args, Box(-1, 1, (2,)), Discrete(ACTIONS)))
    assert str(networks[0].q_network) == str(networks[1].actor)


def test_images_are_normalised_after_each_layer():
    torch.manual_seed(0)
    args = ppo_pqn.Args()
    agent = ppo_pqn.Agent(args, Box(0, 255, (3, 37, 41), np.uint8), Discrete(ACTIONS))
    shapes = [tuple(x.normalized_shape) for x in agent.trunk if isinstance(x, nn.LayerNorm)]
    assert shapes == [(32, 8, 9), (64, 3, 3), (64, 1, 1), (512,)]
    plain = ppo_pqn.Args(layer_norm=False)
    agent = ppo_pqn.Agent(plain, Box(0, 255, (3, 37, 41), np.uint8), Discrete(ACTIONS))
    assert not any(isinstance(x, nn.LayerNorm) for x in agent.modules())


def test_the_optimizer_is_radam_and_its_rate_falls(monkeypatch):
    seen = calls(monkeypatch, ppo, "train")
    train(ppo_pqn, **SHORT, learning_rate=0.01)
    (call,) = seen
    optimizer = call["optimizer"]
    assert type(optimizer) is torch.optim.RAdam and optimizer.param_groups[0]["lr"] < 0.001
    assert call["collect"] is ppo_pqn.collect and call["loss_of"] is ppo_pqn.pqn_loss


def test_the_learning_rate_is_the_one_asked_for(monkeypatch):
    seen = calls(monkeypatch, ppo, "train")
    short = dict(total_timesteps=128, num_envs=4, num_steps=16, anneal_lr=False)
    train(ppo_pqn, **short, learning_rate=0.01)
    assert seen[0]["optimizer"].param_groups[0]["lr"] == 0.01
