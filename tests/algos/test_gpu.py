"""On a GPU everything that learns lies there, computes what a CPU does, and repeats itself exactly.

Without a GPU these tests are skipped.
"""

import importlib

import numpy as np
import ppo
import pytest
import td3
import torch
from conftest import new_run, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PONG = dict(env_id="ALE/Pong-v5", num_envs=3, total_timesteps=150, eval_episodes=1)
ROLLOUTS = dict(num_steps=5, anneal_lr=True, learning_rate=1e-2)
REPLAY = dict(buffer_size=600, learning_starts=30, batch_size=7)
PENDULUM = dict(env_id="Pendulum-v1", num_envs=3, total_timesteps=150, eval_episodes=1)
CARTPOLE = PENDULUM | dict(env_id="CartPole-v1")
EPSILON = dict(eval_epsilon=1.0, train_frequency=3, anneal_lr=True)
RUNS = {
    "ppo of images": PONG | ROLLOUTS | dict(num_minibatches=3),
    "ppo": PENDULUM | ROLLOUTS | dict(num_minibatches=3, norm_obs=True, norm_reward=True),
    "a2c of images": PONG | ROLLOUTS,
    "a2c": PENDULUM | ROLLOUTS,
    "dqn of images": PONG | REPLAY | EPSILON,
    "dqn": CARTPOLE | REPLAY | EPSILON | dict(dueling=True, double=True),
    "dqn with atoms": CARTPOLE | REPLAY | EPSILON | dict(n_atoms=7),
    "td3": PENDULUM | REPLAY,
}
EACH = pytest.mark.parametrize("name", RUNS)


def script_of(name):
    return importlib.import_module(name.split()[0])


def final_hash(script, **settings):
    return train(script, device="cuda", **settings).hash()


def tensors_in(state):
    """All tensors in nested dicts and lists."""
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state
    return [t for v in values if isinstance(v, dict | list | torch.Tensor) for t in tensors_in(v)]


@EACH
def test_what_learns_lies_on_the_gpu(name):
    script = script_of(name)
    run = train(script, device="cuda", **RUNS[name])
    held = []
    for part, module in run.parts.items():
        if isinstance(module, torch.nn.Module | torch.optim.Optimizer):
            held += [(part, tensor) for tensor in tensors_in(module.state_dict())]
    assert len(held) > 10 and run.agent.device.type == "cuda"
    assert {part for part, tensor in held if tensor.device.type != "cuda"} == set()
    assert all(isinstance(array, np.ndarray) for array in run.arrays().values())


def test_images_go_to_the_gpu_and_vectors_to_the_cpu():
    for env_id, device in (("ALE/Pong-v5", "cuda"), ("CartPole-v1", "cpu")):
        assert new_run(ppo, env_id=env_id).device.type == device


@EACH
def test_acting_computes_what_a_cpu_does(name):
    run, rng = new_run(script_of(name), device="cpu", **RUNS[name]), np.random.default_rng(0)
    obs = rng.normal(size=(35, *run.obs_space.shape)).astype(np.float32)
    if "images" in name:
        obs = rng.integers(256, size=obs.shape, dtype=np.uint8)
    with torch.no_grad():
        on_cpu = run.agent(torch.as_tensor(obs))
        on_gpu = run.agent.to("cuda")(torch.as_tensor(obs, device="cuda")).cpu()
    tolerance = 1e-2 if "images" in name else 1e-4  # convolutions may round to TF32
    torch.testing.assert_close(on_gpu, on_cpu, rtol=tolerance, atol=tolerance)


@EACH
def test_a_run_on_a_gpu_repeats_itself_exactly(name):
    script = script_of(name)
    first, second = (final_hash(script, **RUNS[name]) for _ in range(2))
    untrained = final_hash(script, **RUNS[name] | dict(learning_rate=1e-30))
    assert first == second != untrained


def test_a_resumed_run_on_a_gpu_is_the_run_that_was_not_stopped():
    settings = RUNS["td3"] | dict(checkpoint_frequency=75)
    run = train(td3, device="cuda", **settings | dict(total_timesteps=75))
    assert final_hash(td3, **settings, resume=str(run.folder)) == final_hash(td3, **settings)
