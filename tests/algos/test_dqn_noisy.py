"""dqn_noisy.py: the layer against its equations, and where noise is drawn anew and where not."""

import dqn
import dqn_noisy
import dqn_prioritised
import numpy as np
import pytest
import torch
from conftest import calls, randomise, train
from gymnasium.spaces import Box
from test_runs import TINY
from torch import nn

BATCH, INPUTS, OUTPUTS, ACTIONS = 7, 5, 3, 2


def new_network(obs_shape=(INPUTS,), **settings):
    args = dqn_noisy.Args(hidden_sizes=(11, 13), **settings)
    return dqn_noisy.QNetwork(args, Box(0, 1, obs_shape, np.float32), ACTIONS), args


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_against_a_loop(bias):
    """Equation 9 with the noises of 10 and 11, entry by entry, on the same draws."""
    layer = dqn_noisy.NoisyLinear(nn.Linear(INPUTS, OUTPUTS, bias), 0.5)
    randomise(layer)
    x = torch.randn(BATCH, INPUTS)
    state = torch.get_rng_state()
    found = layer(x)
    torch.set_rng_state(state)
    e_in, e_out = (torch.randn(n).tolist() for n in (INPUTS, OUTPUTS))
    f = [[np.sign(e) * abs(e) ** 0.5 for e in noise] for noise in (e_in, e_out)]
    for row in range(BATCH):
        for i in range(OUTPUTS):
            y = layer.mu.bias[i] + layer.bias_sigma[i] * f[1][i] if bias else 0
            for j in range(INPUTS):
                weight = layer.mu.weight[i, j] + layer.weight_sigma[i, j] * f[1][i] * f[0][j]
                y = y + weight * x[row, j]
            assert found[row, i].item() == pytest.approx(y.item(), abs=1e-5)


@pytest.mark.parametrize("own", [{}, {"dueling": True}, {"obs_shape": (3, 36, 36)}])
def test_the_layers_behind_the_trunk_are_noisy_and_begin_as_in_the_paper(own):
    network, _ = new_network(**own, sigma_0=0.3)
    layers = [m for m in network.modules() if isinstance(m, dqn_noisy.NoisyLinear)]
    assert len(layers) == (4 if own.get("dueling") else 2)
    assert not any(layer in network.trunk.modules() for layer in layers)
    for layer in layers:
        bound = layer.mu.in_features**-0.5
        assert 0.6 * bound < layer.mu.weight.abs().max() <= bound
        for sigma in (layer.weight_sigma, layer.bias_sigma):
            assert sigma.flatten().tolist() == pytest.approx([0.3 * bound] * sigma.numel())


def test_a_bare_layer_and_one_within_blocks_are_noisy_too():
    blocks = nn.Sequential(nn.Sequential(nn.Linear(3, 5), nn.ReLU()))
    blocks = dqn_noisy.with_noise(blocks, 0.5)
    assert isinstance(blocks[0][0], dqn_noisy.NoisyLinear)
    assert isinstance(dqn_noisy.with_noise(nn.Linear(3, 5), 0.5), dqn_noisy.NoisyLinear)


def test_a_layer_whose_own_forward_would_be_lost_is_refused(failure):
    class Scaled(nn.Linear):
        def forward(self, x):
            return 100 * super().forward(x)

    assert "forward of Scaled" in failure(dqn_noisy.with_noise, nn.Sequential(Scaled(3, 5)), 0.5)
    normed = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 5))
    assert isinstance(dqn_noisy.with_noise(normed, 0.5), dqn_noisy.NoisyLinear)


@pytest.mark.parametrize("double", [False, True])
def test_noise_is_drawn_for_each_action_and_for_each_part_of_each_loss(monkeypatch, double):
    """Whatever mode the networks are in; then mu and sigma of the online network alone learn."""
    (network, args), (target, _) = (new_network(double=double) for _ in range(2))
    batch = {name: torch.rand(BATCH, INPUTS) for name in ("obs", "next_obs")}
    batch |= {"rewards": torch.rand(BATCH), "discounts": torch.rand(BATCH)}
    batch |= {"actions": torch.arange(BATCH) % 2, "terminated": torch.zeros(BATCH).bool()}
    drawn = calls(monkeypatch, dqn_noisy, "noise_factor")
    for _ in range(2):
        network.eval().act(batch["obs"].numpy(), 0.0, np.random.default_rng(0))
        losses, *_ = dqn.dqn_losses(network.train(), target.eval(), batch, args)
    passes = 2 * (3 + double)
    assert len(drawn) == passes * 2 * 2  # two layers, of each inputs and outputs
    assert len({tuple(call["noise"].tolist()) for call in drawn}) == len(drawn)
    losses.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in network.parameters())
    assert all(p.grad is None for p in target.parameters())


def test_evaluations_play_by_mu_alone_and_leave_the_agent_its_noise():
    network, args = new_network(sigma_0=100.0)
    obs, state = np.random.default_rng(0).random((101, INPUTS), np.float32), torch.get_rng_state()
    policy = dqn_noisy.evaluation_policy(network.eval(), np.random.default_rng(0), args)
    actions = policy(obs)
    np.testing.assert_array_equal(policy(obs), actions)
    assert torch.equal(torch.get_rng_state(), state)
    plain = dqn.QNetwork(args, Box(0, 1, (INPUTS,)), ACTIONS)
    arrays = network.state_dict().items()
    plain.load_state_dict({k.replace("mu.", ""): v for k, v in arrays if "sigma" not in k})
    np.testing.assert_array_equal(plain.act(obs, 0.0, np.random.default_rng(0)), actions)
    network.last = network(torch.as_tensor(obs))  # as an edit may keep it: no copy can be made
    dqn_noisy.evaluation_policy(network, np.random.default_rng(0), args)(obs)
    assert not torch.equal(network(torch.as_tensor(obs)), network.last)


def test_train_brings_the_buffer_of_prioritised_replay_where_asked_for(monkeypatch):
    buffers = calls(monkeypatch, dqn_prioritised.ReplayBuffer, "__init__")
    acts = calls(monkeypatch, dqn.QNetwork, "act")
    train(dqn_noisy, **TINY["dqn"])
    assert not buffers and {call["epsilon"] for call in acts} == {1.0, 0.0}
    train(dqn_noisy, **TINY["dqn"], priority_exponent=0.6)
    assert len(buffers) == 1
