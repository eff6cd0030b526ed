"""What docs/ says of the networks: names and shapes, and the way to other frameworks."""

import importlib
import re

import a2c
import dqn
import gymnasium as gym
import numpy as np
import ppo
import ppo_network
import pytest
import torch
from conftest import ROOT, parse, train
from numpy.lib.stride_tricks import sliding_window_view
from test_runs import TINY

EXPORTS = (ROOT / "docs" / "trackers-and-exports.md").read_text()
PAGES = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
LISTS = re.findall(r"```\npython algos/(\w+)\.py(.*)\n([^`]+)```", PAGES)


@pytest.mark.parametrize("name, flags, text", LISTS, ids=["".join(x[:2]) for x in LISTS])
def test_the_pages_list_every_parameter(name, flags, text):
    listed = {}
    for line in text.splitlines():
        what, shape = line.split(maxsplit=1)
        listed[what] = tuple(int(n) for n in re.findall(r"\d+", shape))
    for script in (ppo, a2c) if name in ("ppo", "a2c") else (importlib.import_module(name),):
        parent = importlib.import_module(name.split("_")[0])
        run = parent.Run(name, parse(script, flags.split()), script.make_agent, None)
        run.envs.close()
        shapes = {key: value.shape for key, value in run.arrays().items()}
        expected = {}
        for what, shape in listed.items():
            layer = {f"{what}.weight": shape, f"{what}.bias": shape[:1]}
            expected |= {what: shape} if what in shapes else layer
        assert shapes == expected


def code_of_the_page() -> dict:
    names = {}
    for block in re.findall("```python\n(.*?)```", EXPORTS, re.DOTALL):
        exec(block, names)
    return names


def same_padding(x, size, stride):
    """As Keras and Flax pad: to ceil(pixels / stride) outputs, the larger half behind."""
    amounts = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[1:3]]
    sides = [(total // 2, total - total // 2) for total in amounts]
    return np.pad(x, [(0, 0), *sides, (0, 0)])


def forward(layers, kernels, biases, x):
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
        x = relu(x) if i + 1 < len(layers) else x
    return x.reshape(len(x), -1)


def relu(x):
    return np.maximum(x, 0)


WIDE, SQUARE = (gym.spaces.Box(0, 255, (4, n, 84), np.uint8) for n in (52, 84))
ACTIONS = gym.spaces.Discrete(3)
NATURE = [("trunk.0", 4, "valid"), ("trunk.2", 2, "valid"), ("trunk.4", 1, "valid")]
RLLIB = [("trunk.1", 4, "same"), ("trunk.4", 2, "same"), ("trunk.6", 1, "valid")]
NETWORKS = {  # what makes it, for which images, layers, which of them flattens (64, 3, 7)
    "ppo": (
        lambda space: ppo.Agent(ppo.Args(), space, ACTIONS),
        WIDE, [*NATURE, ("trunk.7",), ("actor",)], "trunk.7",
    ),
    "dqn": (
        lambda space: dqn.QNetwork(dqn.Args(), space, 3),
        WIDE, [*NATURE, ("q_head.0",), ("q_head.2",)], "q_head.0",
    ),
    "ppo_network": (
        lambda space: ppo_network.Agent(ppo_network.Args(), space, ACTIONS),
        SQUARE, [*RLLIB, ("actor.0", 1, "valid")], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("make, space, layers, flat", NETWORKS.values(), ids=NETWORKS.keys())
def test_a_network_travels_to_other_frameworks_and_back(make, space, layers, flat):
    code, pixels = code_of_the_page(), (64, 3, 7)
    torch.manual_seed(0)
    agent = make(space)
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

    obs = torch.randint(0, 256, (5, *space.shape), dtype=torch.uint8)
    with torch.no_grad():
        expected = agent(obs)
    x = np.moveaxis(obs.numpy(), 1, 3).astype(np.float32) / 255
    logits = forward(layers, kernels, biases, x)
    scale = expected.abs().max().item()
    np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-4, atol=1e-5 * scale)

    for name, kernel in kernels.items():
        back = code["to_weight"](np.array(kernel), pixels if name == flat else None)
        original = weights[f"{name}.weight"]
        assert back.shape == original.shape and back.dtype == original.dtype
        assert np.ascontiguousarray(back).tobytes() == original.tobytes()


def mlp(weights, part, x, activation):
    """Two hidden layers in NumPy, from the arrays of weights.npz alone."""
    for i in (0, 2):
        x = activation(x @ weights[f"{part}.{i}.weight"].T + weights[f"{part}.{i}.bias"])
    return x @ weights[f"{part}.4.weight"].T + weights[f"{part}.4.bias"]


def weights_and_observations(run):
    run.finish()
    with np.load(run.folder / "weights.npz") as file:
        weights = dict(file)
    obs = np.random.default_rng(0).normal(size=(50, *run.obs_space.shape)).astype(np.float32)
    return weights, obs


KINDS = {"ppo": {"total_timesteps": 512}, "a2c of boxes": TINY["ppo"], "td3": TINY["td3"]}
KINDS["ppo of boxes"] = TINY["ppo"] | {"activation": "relu"}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_npz_alone_says_how_an_evaluation_acts(kind):
    """That load plays what an evaluation plays is tested in test_load.py."""
    script = importlib.import_module(kind.split()[0])
    run = train(script, **KINDS[kind])
    weights, obs = weights_and_observations(run)
    if kind == "ppo":
        expected = mlp(weights, "actor", obs, np.tanh).argmax(axis=1)
    elif kind == "td3":
        expected = np.tanh(mlp(weights, "actor", obs, relu))
    else:
        std = np.sqrt(weights["obs_moments.var"] + 1e-8)
        x = np.clip((obs - weights["obs_moments.mean"]) / std, -10, 10)
        expected = mlp(weights, "actor", x, relu if script is ppo else np.tanh)
    if kind != "ppo":
        low, high = weights["action_low"], weights["action_high"]
        expected = np.clip((low + high) / 2 + (high - low) / 2 * expected, low, high)
    found = script.evaluation_policy(run.agent, np.random.default_rng(1), run.args)(obs)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("n_atoms", [1, 51])
@pytest.mark.parametrize("dueling", [False, True])
def test_weights_npz_alone_gives_the_q_values(n_atoms, dueling):
    """By the function of the page; test_dqn_maths.py tests that evaluations take the best."""
    settings = TINY["dqn"] | dict(n_atoms=n_atoms, v_min=0, v_max=100, dueling=dueling)
    run = train(dqn, **settings)
    weights, obs = weights_and_observations(run)
    found = [code_of_the_page()["q_values"](weights, row) for row in obs]
    expected = run.agent(torch.as_tensor(obs)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
