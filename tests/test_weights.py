"""What algos/README.md says of the networks: names and shapes, and the way to other frameworks."""

import importlib
import re

import a2c
import dqn
import numpy as np
import ppo
import pytest
import td3
import torch
from conftest import ROOT
from numpy.lib.stride_tricks import sliding_window_view

README = (ROOT / "algos" / "README.md").read_text()
LISTS = re.findall(r"```\npython algos/(\w+)\.py(.*)\n([^`]+)```", README)


@pytest.mark.parametrize("name, flags, text", LISTS)
def test_the_readme_lists_every_parameter(name, flags, text):
    listed = {}
    for line in text.splitlines():
        what, shape = line.split(maxsplit=1)
        listed[what] = tuple(int(n) for n in re.findall(r"\d+", shape))
    for script in (ppo, a2c) if name in ("ppo", "a2c") else (importlib.import_module(name),):
        args = script.parse_args(flags.split())
        envs = script.make_envs(args, 1)
        state = script.make_agent(args, *script.agent_spaces(envs)).state_dict()
        envs.close()
        shapes = {key: tuple(value.shape) for key, value in state.items()}
        expected = {}
        for what, shape in listed.items():
            layer = {f"{what}.weight": shape, f"{what}.bias": shape[:1]}
            expected |= {what: shape} if what in shapes else layer
        assert shapes == expected


def code_of_the_readme() -> dict:
    (block,) = re.findall("```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(block, names)
    return names


def same_padding(x, size, stride):
    """As Keras and Flax pad: to ceil(pixels / stride) outputs, the larger half behind."""
    amounts = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[1:3]]
    sides = [(total // 2, total - total // 2) for total in amounts]
    return np.pad(x, [(0, 0), *sides, (0, 0)])


def forward(layers, activation, kernels, biases, x):
    """Layers in NumPy, channels last: (name,) is dense, (name, stride, padding) a convolution."""
    for i, (name, *settings) in enumerate(layers):
        if settings:
            stride, padding = settings
            size = kernels[name].shape[0]
            x = same_padding(x, size, stride) if padding == "same" else x
            windows = sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]
            x = np.tensordot(windows, kernels[name], axes=([4, 5, 3], [0, 1, 2])) + biases[name]
        else:
            x = x.reshape(len(x), -1) @ kernels[name] + biases[name]
        x = activation(x) if i + 1 < len(layers) else x
    return x.reshape(len(x), -1)


def relu(x):
    return np.maximum(x, 0)


NATURE = [("trunk.0", 4, "valid"), ("trunk.2", 2, "valid"), ("trunk.4", 1, "valid")]
RLLIB = [("trunk.0", 4, "same"), ("trunk.3", 2, "same"), ("trunk.5", 1, "valid")]
NETWORKS = {  # what makes it, shape of the observation, layers, which of them flattens what
    "ppo, vectors": (
        lambda shape: ppo.Agent(shape, num_actions=3, hidden_size=11),
        (7,), [("actor.0",), ("actor.2",), ("actor.4",)], np.tanh, None, None,
    ),
    "ppo, images": (
        lambda shape: ppo.Agent(shape, num_actions=3),
        (4, 52, 84), [*NATURE, ("trunk.7",), ("actor",)], relu, "trunk.7", (64, 3, 7),
    ),
    "a2c, RLlib's network": (
        lambda shape: a2c.Agent(shape, num_actions=3, network="rllib"),
        (4, 84, 84), [*RLLIB, ("actor.1", 1, "valid")], relu, None, None,
    ),
    "dqn, images": (
        lambda shape: dqn.QNetwork(shape, 3),
        (4, 52, 84), [*NATURE, ("q_head.0",), ("q_head.2",)], relu, "q_head.0", (64, 3, 7),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "make, shape, layers, activation, flat, pixels", NETWORKS.values(), ids=NETWORKS.keys()
)
def test_a_network_travels_to_other_frameworks_and_back(
    make, shape, layers, activation, flat, pixels
):
    code = code_of_the_readme()
    torch.manual_seed(0)
    agent = make(shape)
    with torch.no_grad():  # biases of 0 would hide their loss
        for p in agent.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    weights = {name: tensor.numpy() for name, tensor in agent.state_dict().items()}
    kernels, biases = {}, {}
    for name in {name for name, *_ in layers}:
        kernels[name] = code["to_kernel"](
            weights[f"{name}.weight"], pixels if name == flat else None
        )
        biases[name] = weights[f"{name}.bias"]

    obs = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    if len(shape) == 1:
        obs = obs / 255
    with torch.no_grad():
        expected = agent(obs).squeeze(2) if isinstance(agent, dqn.QNetwork) else agent.policy(obs)
    x = obs.numpy()
    if len(shape) == 3:
        x = np.moveaxis(x, 1, 3).astype(np.float32) / 255
    logits = forward(layers, activation, kernels, biases, x)
    scale = expected.abs().max().item()
    np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-4, atol=1e-5 * scale)

    for name, kernel in kernels.items():
        back = code["to_weight"](np.array(kernel), pixels if name == flat else None)
        original = weights[f"{name}.weight"]
        assert back.shape == original.shape and back.dtype == original.dtype
        assert np.ascontiguousarray(back).tobytes() == original.tobytes()


def test_weights_of_ppo_start_a2c(tmp_path):
    agents = []
    for script in (ppo, a2c):
        torch.manual_seed(len(agents))
        agents.append(script.Agent((7,), num_actions=3))
    ppo.save_weights(agents[0], tmp_path / "init.npz")
    a2c.load_weights(agents[1], tmp_path / "init.npz", only_learned=True)
    assert ppo.run_hash(agents[0]) == a2c.run_hash(agents[1])


@pytest.mark.parametrize("only_learned", [False, True])
@pytest.mark.parametrize(
    "script, make, name",
    [
        (
            ppo,
            lambda top: ppo.Agent((7,), action_low=[-1, -2], action_high=[1, top]),
            "action_high",
        ),
        (
            a2c,
            lambda top: a2c.Agent((7,), action_low=[-1, -2], action_high=[1, top]),
            "action_high",
        ),
        (td3, lambda top: td3.Agent(7, [-1, -2], [1, top], (5, 3)), "action_high"),
        (dqn, lambda top: dqn.QNetwork((7,), 3, n_atoms=11, v_min=-1, v_max=top), "support"),
    ],
)
def test_weights_that_mean_something_else_are_refused(script, make, name, only_learned, tmp_path):
    path, agent = tmp_path / "weights.npz", make(5)
    script.save_weights(make(2), path)
    before = script.run_hash(agent)
    with pytest.raises(script.UserError, match=f"{name} is not the agent's"):
        script.load_weights(agent, path, only_learned)
    assert script.run_hash(agent) == before
    script.load_weights(make(2), path, only_learned)
