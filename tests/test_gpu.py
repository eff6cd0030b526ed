"""CUDA graphs, on a GPU. Without one most of these tests are skipped."""

import importlib

import numpy as np
import ppo
import pytest
import td3
import torch
from conftest import new_run, train

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

PONG = dict(env_id="ALE/Pong-v5", num_envs=3, total_timesteps=150, eval_episodes=1)
ROLLOUTS = dict(num_steps=5, anneal_lr=True, learning_rate=1e-2)
REPLAY = dict(buffer_size=600, learning_starts=30, batch_size=7)
PENDULUM = dict(env_id="Pendulum-v1", num_envs=3, total_timesteps=150, eval_episodes=1)
CARTPOLE = PENDULUM | dict(env_id="CartPole-v1")
EPSILON = dict(eval_epsilon=1.0, train_frequency=3, anneal_lr=True)
RUNS = {
    "ppo of images": PONG | ROLLOUTS | dict(num_minibatches=3),
    "ppo": PENDULUM | ROLLOUTS | dict(num_minibatches=3, norm_obs=True),
    "a2c of images": PONG | ROLLOUTS,
    "a2c": PENDULUM | ROLLOUTS,
    "dqn of images": PONG | REPLAY | EPSILON,
    "dqn": CARTPOLE | REPLAY | EPSILON | dict(dueling=True, double=True),
    "td3": PENDULUM | REPLAY,
}


def final_hash(script, **settings):
    run = train(script, device="cuda", **settings)
    return script.run_hash(run.agent), run


@needs_cuda
@pytest.mark.parametrize("name", RUNS)
def test_cuda_graphs_learn_what_plain_calls_do(name, monkeypatch):
    script = importlib.import_module(name.split()[0])
    recorded, _ = final_hash(script, **RUNS[name])
    untrained, _ = final_hash(script, **RUNS[name] | dict(learning_rate=1e-30))
    monkeypatch.setattr(script.Run, "recorded", lambda self, function, *optimizers: function)
    plain, _ = final_hash(script, **RUNS[name])
    assert recorded == plain != untrained


@needs_cuda
def test_a_recorded_function_follows_its_inputs_and_what_changes_in_place():
    weight, calls = torch.tensor([2.0, 3.0, 5.0], device="cuda"), []

    def function(batch, negate: bool, factor: float):
        calls.append(negate)
        y = factor * (batch["x"] * weight).sum(dim=1)
        return {"y": -y if negate else y}

    recorded = new_run(ppo, device="cuda").recorded(function)
    rng = np.random.default_rng(0)
    for i in range(5):
        for size in (2, 7):
            for negate in (False, True):
                x = torch.as_tensor(rng.standard_normal((size, 3), np.float32), device="cuda")
                expected = (-i if negate else i) * (x * weight).sum(dim=1)
                torch.testing.assert_close(recorded({"x": x}, negate, float(i))["y"], expected)
        weight.mul_(1.5)
    assert len(calls) == 8  # each of the four once plainly, once while it was recorded


@needs_cuda
def test_a_recorded_step_follows_the_learning_rate():
    p = torch.nn.Parameter(torch.zeros(3, device="cuda"))
    optimizer = torch.optim.Adam([p], lr=0.5, fused=True)

    def step(gradient):
        p.grad = gradient
        optimizer.step()

    recorded = new_run(ppo, device="cuda").recorded(step, optimizer)
    gradient = torch.ones(3, device="cuda")
    for rate in (0.5, 0.25, 0.0, 1.0):
        before, optimizer.param_groups[0]["lr"] = p.detach().clone(), rate
        recorded(gradient)  # with a gradient that stays, Adam's step is the learning rate
        torch.testing.assert_close(before - p, torch.full_like(p, rate))


@needs_cuda
def test_a_resumed_run_on_a_gpu_is_the_run_that_was_not_stopped():
    settings = RUNS["td3"] | dict(checkpoint_frequency=75)
    whole, _ = final_hash(td3, **settings)
    _, run = final_hash(td3, **settings | dict(total_timesteps=75))
    resumed, _ = final_hash(td3, **settings, resume=str(run.folder))
    assert resumed == whole


def test_on_a_cpu_functions_are_called_as_they_are():
    run = new_run(ppo, device="cpu")
    optimizer = torch.optim.Adam([torch.zeros(3)], lr=0.5)
    assert run.recorded(len, optimizer) is len and optimizer.param_groups[0]["lr"] == 0.5
