"""On a GPU everything that learns lies there, computes what a CPU does, and repeats itself exactly.

Without a GPU these tests are skipped.
"""

import copy
import importlib

import dqn
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
    run = train(script, device="cuda", **settings)
    return run.hash(), run


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


def same_on_both(function, agent, tolerance, *inputs):
    """What function(agent, *inputs) returns or does to the agent, on a CPU and on a GPU."""
    found = []
    for device in ("cpu", "cuda"):
        copied = copy.deepcopy(agent).to(device)
        copied.device = torch.device(device)
        moved = [{k: v.to(device) for k, v in x.items()} for x in inputs]
        found.append([t.detach().cpu() for t in function(copied, *moved)])
    for on_cpu, on_gpu in zip(*found, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=tolerance, atol=tolerance)


def batch_of(run, size=35):
    """A batch at random, with all that any script's update takes."""
    rng, space = np.random.default_rng(0), run.envs.single_action_space
    obs, next_obs = rng.normal(size=(2, size, *run.obs_space.shape)).astype(np.float32)
    if len(run.obs_space.shape) == 3:
        obs, next_obs = rng.integers(256, size=(2, *obs.shape), dtype=np.uint8)
    batch = {"obs": obs, "next_obs": next_obs, "terminated": rng.random(size) < 0.3}
    batch["actions"] = rng.uniform(-1, 1, (size, *space.shape)).astype(np.float32)
    if hasattr(space, "n"):
        batch["actions"] = rng.integers(space.n, size=size)
    for column in ("rewards", "advantages", "returns", "values", "log_probs"):
        batch[column] = rng.normal(size=size).astype(np.float32)
    batch["log_probs"] = batch["log_probs"] * 0.1 - 1
    batch["discounts"] = np.full(size, 0.9, np.float32)
    return {name: torch.as_tensor(array) for name, array in batch.items()}


def gradients(script, args):
    """A function (agent, batch) -> gradients of the script's loss."""

    def of_agent(agent, batch):
        if script is ppo:
            loss, _, _ = ppo.ppo_loss(agent, batch, args, 0.2)
        elif script is dqn:
            losses_of = dqn.dqn_losses if args.n_atoms == 1 else dqn.c51_losses
            loss = losses_of(agent, copy.deepcopy(agent), batch, args)[0].mean()
        elif script is td3:
            noise = 0.1 * torch.ones_like(batch["actions"])
            losses, _ = td3.q_losses(agent, copy.deepcopy(agent), batch, noise, args)
            loss = sum(losses) + td3.policy_loss(agent, batch["obs"])
        else:
            loss, _ = script.a2c_loss(agent, batch, args)
        loss.backward()
        return [p.grad for p in agent.parameters() if p.grad is not None]

    return of_agent


@EACH
def test_acting_and_learning_compute_what_a_cpu_does(name):
    script = script_of(name)
    run = new_run(script, device="cpu", **RUNS[name])
    batch = batch_of(run)
    tolerance = 1e-2 if "images" in name else 1e-4  # convolutions may round to TF32
    same_on_both(lambda agent, batch: [agent(batch["obs"])], run.agent, tolerance, batch)
    same_on_both(gradients(script, run.args), run.agent, tolerance, batch)


@EACH
def test_a_run_on_a_gpu_repeats_itself_exactly(name):
    script = script_of(name)
    first, _ = final_hash(script, **RUNS[name])
    second, _ = final_hash(script, **RUNS[name])
    untrained, _ = final_hash(script, **RUNS[name] | dict(learning_rate=1e-30))
    assert first == second != untrained


def test_a_resumed_run_on_a_gpu_is_the_run_that_was_not_stopped():
    settings = RUNS["td3"] | dict(checkpoint_frequency=75)
    whole, _ = final_hash(td3, **settings)
    _, run = final_hash(td3, **settings | dict(total_timesteps=75))
    resumed, _ = final_hash(td3, **settings, resume=str(run.folder))
    assert resumed == whole
