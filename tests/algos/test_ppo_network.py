"""Networks of one's own: shapes, what is shared, and batch normalisation; see test_weights.py."""

import numpy as np
import ppo
import ppo_network
import pytest
import torch
from conftest import new_run, train
from gymnasium.spaces import Box, Discrete
from torch import nn

VECTORS, IMAGES = Box(-1, 1, (7,), np.float32), Box(0, 255, (4, 84, 84), np.uint8)
BATCH, ACTIONS = 11, Discrete(3)


def random_agent(space, **settings):
    """Weights, and with batch normalisation statistics too, that are far from where they start."""
    torch.manual_seed(0)
    agent = ppo_network.make_agent(ppo_network.Args(hidden_size=13, **settings), space, ACTIONS)
    agent.eval()  # as ppo.train does before a rollout
    with torch.no_grad():
        for p in agent.parameters():
            p.add_(torch.randn(p.shape), alpha=0.1)
        for layer in norms(agent):
            layer.running_mean.normal_(std=0.5)
            layer.running_var.uniform_(0.5, 2)
    return agent


def norms(agent):
    return [m for m in agent.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


def observations(space):
    rng = np.random.default_rng(0)
    if space is IMAGES:
        return rng.integers(256, size=(BATCH, *space.shape), dtype=np.uint8)
    return rng.uniform(-1, 1, (BATCH, 7)).astype(np.float32)


def statistics(agent):
    return [layer.running_mean.clone() for layer in norms(agent)]


RLLIB = {
    "trunk.1": (16, 4, 8, 8), "trunk.4": (32, 16, 4, 4), "trunk.6": (256, 32, 11, 11),
    "actor.0": (3, 256, 1, 1), "critic.1": (1, 256),
}  # fmt: skip
SEPARATE = {f"{part}.{i}": RLLIB[f"trunk.{i}"] for part in ("actor", "critic") for i in (1, 4, 6)}
SEPARATE |= {"actor.8": (3, 256, 1, 1), "critic.9": (1, 256)}


@pytest.mark.parametrize("share_trunk, layers", [(True, RLLIB), (False, SEPARATE)])
def test_the_shapes_are_those_of_rllib(share_trunk, layers):
    state = random_agent(IMAGES, share_trunk=share_trunk).state_dict()
    expected = {f"{name}.weight": shape for name, shape in layers.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    assert {name: tuple(x.shape) for name, x in state.items()} == expected


@pytest.mark.parametrize("share_trunk, trunks", [(True, 1), (False, 2)])
def test_impala_has_the_shapes_and_the_parameters_of_the_paper(share_trunk, trunks):
    """By hand: first convolutions 4 9 16 + 16 = 592, 16 9 32 + 32 = 4,640, 32 9 32 + 32 = 9,248,
    four others in each block, 2,320 or 9,248 each; 84 pixels become 42, 21, 11, and 32 11 11 =
    3,872 features 256 by 991,488; heads 256 3 + 3 = 771 and 257.
    """
    agent = random_agent(IMAGES, impala=True, share_trunk=share_trunk)
    trunk = 592 + 4 * 2320 + 4640 + 4 * 9248 + 9248 + 4 * 9248 + 991_488
    assert sum(p.numel() for p in agent.parameters()) == trunks * trunk + 771 + 257
    shapes, part = [], agent.trunk if share_trunk else agent.critic
    with torch.no_grad():
        x = torch.zeros(BATCH, 4, 84, 84)
        for layer in part:
            x = layer(x)
            if isinstance(layer, nn.MaxPool2d | nn.Linear):
                shapes.append(tuple(x.shape[1:]))
    in_turn = [type(layer) for layer in list(part)[12:16]]
    assert in_turn == [nn.ReLU, nn.Flatten, nn.Linear, nn.ReLU]
    assert shapes == [(16, 42, 42), (32, 21, 21), (32, 11, 11), (256,), (1,)][: 3 + trunks]


def test_a_residual_block_by_hand():
    """Kernels that pass on each pixel, the second one threefold: -1 stays, 2 becomes 2 + 3 2."""
    block = ppo_network.Residual(2)
    for layer, factor in zip(block.layers[1::2], (1.0, 3.0), strict=True):
        nn.init.dirac_(layer.weight)
        layer.weight.data *= factor
    x = torch.tensor([-1.0, 2.0]).repeat(1, 2, 3, 1)
    torch.testing.assert_close(block(x), torch.tensor([-1.0, 8.0]).repeat(1, 2, 3, 1))


def test_impala_trains_on_images_of_any_size(refused):
    settings = dict(num_envs=2, num_steps=4, total_timesteps=16, torch_threads=1, impala=True)
    run = new_run(ppo_network, env_id="environments:Colour-v0", **settings)
    first = {name: array.copy() for name, array in run.arrays().items()}
    ppo_network.train(run.args, run)
    assert not [k for k, array in run.arrays().items() if np.array_equal(array, first[k])]
    assert "impala=True has no effect with vectors" in refused("ppo_network", "--impala")
    assert "batch_norm" in refused("ppo_network", "--impala", "--batch-norm")


@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("share_trunk", [False, True])
def test_policy_and_value_share_a_trunk_or_nothing(space, share_trunk):
    agent = random_agent(space, share_trunk=share_trunk)
    agent.value(agent.features(torch.tensor(observations(space)))).sum().backward()
    moved = {name for name, p in agent.named_parameters() if p.grad is not None and p.grad.any()}
    parts = {name.split(".")[0] for name in moved}
    assert parts == ({"trunk", "critic"} if share_trunk else {"critic"})
    assert moved == {n for n, _ in agent.named_parameters() if n.split(".")[0] in parts}


def test_separate_networks_of_vectors_are_ppo():
    settings = dict(total_timesteps=1024, norm_obs=True, norm_reward=True)
    plain = train(ppo, **settings).hash()
    assert train(ppo_network, **settings, share_trunk=False).hash() == plain
    assert new_run(ppo, **settings).hash() != plain


def test_a_renewal_moves_the_statistics_a_step_to_those_of_the_rollout():
    agent = random_agent(VECTORS, share_trunk=False, batch_norm=True)
    obs = torch.tensor(observations(VECTORS))
    inputs, old = {}, {n: (n.running_mean.clone(), n.running_var.clone()) for n in norms(agent)}

    def look(layer, x, _):
        if layer.training:  # once: as all of the rollout goes through it
            inputs[layer] = x[0]

    for layer in old:
        layer.register_forward_hook(look)
    buffer, args = ppo.RolloutBuffer(), ppo_network.Args(num_envs=1, batch_norm=True)
    for row in obs.numpy():
        step = {"obs": row[None], "next_obs": row[None], "actions": np.zeros(1, np.int64)}
        step |= {"rewards": np.zeros(1, np.float32), "terminated": np.zeros(1, np.bool_)}
        buffer.add(**step, truncated=np.zeros(1, np.bool_))
    ppo_network.make_batch(agent, buffer, args, np.zeros(1))
    for layer, (mean, var) in old.items():
        x = inputs[layer]
        assert len(x) == BATCH and not layer.training and layer.num_batches_tracked == 1
        torch.testing.assert_close(layer.running_mean, 0.98 * mean + 0.02 * x.mean(dim=0))
        torch.testing.assert_close(layer.running_var, 0.98 * var + 0.02 * x.var(dim=0))


def test_statistics_of_images_move_as_slowly():
    agent = random_agent(IMAGES, batch_norm=True)
    assert {layer.momentum for layer in norms(agent)} == {0.02}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "environments:Square-v0"])
def test_statistics_move_once_a_rollout_and_ratios_begin_with_that_change(env_id):
    """The old log-probabilities are of the policy that acted; the loss sees the new statistics, at
    every one of its steps, as will the next rollout.
    """
    make_batch, loss_of = ppo_network.make_batch, ppo.ppo_loss
    rollouts, first = [], []  # statistics after each, and what the first ratios should be

    def log_probs_of(agent, obs, actions):
        with torch.no_grad():
            logits = agent(torch.as_tensor(obs))
        return torch.log_softmax(logits, dim=1).gather(1, torch.as_tensor(actions)[:, None])[:, 0]

    def watched_batch(agent, buffer, *rest):
        if rollouts:  # nothing has moved since: what learned is what acted
            torch.testing.assert_close(statistics(agent), rollouts[-1], rtol=0, atol=0)
        acted = [
            log_probs_of(agent, *pair)
            for pair in zip(buffer["obs"], buffer["actions"], strict=True)
        ]
        before = statistics(agent)
        batch, running = make_batch(agent, buffer, *rest)
        torch.testing.assert_close(batch["log_probs"], torch.cat(acted))
        assert all((new != old).any() for new, old in zip(statistics(agent), before, strict=True))
        rollouts.append(statistics(agent))
        now = log_probs_of(agent, batch["obs"], batch["actions"])
        first.append(now - batch["log_probs"])
        return batch, running

    def watched_loss(agent, minibatch, *rest):
        loss, terms, log_ratio = loss_of(agent, minibatch, *rest)
        if first[-1] is not None:
            torch.testing.assert_close(log_ratio.sort().values, first[-1].sort().values)
        first[-1] = None
        torch.testing.assert_close(statistics(agent), rollouts[-1], rtol=0, atol=0)
        return loss, terms, log_ratio

    settings = dict(env_id=env_id, num_envs=2, num_steps=8, update_epochs=2, torch_threads=1)
    run = new_run(ppo_network, **settings, total_timesteps=80, batch_norm=True, learning_rate=0.01)
    ppo.train(run.args, run, make_batch=watched_batch, loss_of=watched_loss)
    counts = [layer.num_batches_tracked.item() for layer in norms(run.agent)]
    assert counts == [5] * (2 if env_id == "CartPole-v1" else 3) and first == [None] * 5
    before = run.hash()
    run.evaluate()
    assert run.hash() == before


def test_a_rollout_of_one_step_renews_nothing():
    run = train(ppo_network, num_envs=1, num_steps=8, total_timesteps=9, batch_norm=True)
    assert [layer.num_batches_tracked.item() for layer in norms(run.agent)] == [1, 1]


def test_dropout_of_ones_own_drops_in_the_loss_alone():
    agent = random_agent(VECTORS, batch_norm=True)
    agent.trunk.append(nn.Dropout())
    for mode in (True, False):
        agent.train(mode)
        assert agent.trunk[-1].training == mode and not any(n.training for n in norms(agent))
