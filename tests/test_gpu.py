"""CUDA graphs, on a GPU. Without one most of these tests are skipped."""

import importlib

import numpy as np
import ppo
import pytest
import td3
import torch

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


def final_hash(script, runs_dir, **settings):
    run = script.Run(script.RunArgs(runs_dir=str(runs_dir), device="cuda", **settings))
    agent = script.train(run.args, run)
    run.finish()
    return script.run_hash(agent), run


@needs_cuda
@pytest.mark.parametrize("name", RUNS)
def test_cuda_graphs_learn_what_plain_calls_do(name, tmp_path):
    script = importlib.import_module(name.split()[0])
    recorded, _ = final_hash(script, tmp_path, **RUNS[name])
    plain, _ = final_hash(script, tmp_path, **RUNS[name], cuda_graphs=False)
    untrained, _ = final_hash(script, tmp_path, **RUNS[name] | dict(learning_rate=1e-30))
    assert recorded == plain != untrained


@needs_cuda
def test_a_recorded_function_follows_its_inputs_and_what_changes_in_place():
    weight, calls = torch.tensor([2.0, 3.0, 5.0], device="cuda"), []

    def function(batch, negate: bool):
        calls.append(negate)
        y = (batch["x"] * weight).sum(dim=1)
        return {"y": -y if negate else y}

    recorded, rng = ppo.Recorded(function), np.random.default_rng(0)
    for _ in range(5):
        for size in (2, 7):
            for negate in (False, True):
                x = torch.as_tensor(rng.standard_normal((size, 3), np.float32), device="cuda")
                expected = (-1 if negate else 1) * (x * weight).sum(dim=1)
                y = recorded({"x": x}, negate)["y"]
                torch.testing.assert_close(y, expected)
        weight.mul_(1.5)
    assert len(calls) == 8  # each of the four once plainly, once while it was recorded


@needs_cuda
def test_a_resumed_run_on_a_gpu_is_the_run_that_was_not_stopped(tmp_path):
    settings = RUNS["td3"] | dict(checkpoint_frequency=75, keep_replay=True)
    whole, _ = final_hash(td3, tmp_path, **settings)
    _, run = final_hash(td3, tmp_path, **settings | dict(total_timesteps=75))
    resumed, _ = final_hash(td3, tmp_path, **settings, resume=str(run.folder))
    assert resumed == whole


def test_a_learning_rate_that_is_a_tensor_stays_the_one_that_was_recorded():
    rate = torch.tensor(0.5)
    optimizer = torch.optim.Adam([torch.zeros(3)], lr=rate, capturable=True)
    ppo.set_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25


def test_on_a_cpu_functions_are_called_as_they_are(tmp_path):
    run = ppo.Run(ppo.RunArgs(runs_dir=str(tmp_path), device="cpu"))
    optimizer = torch.optim.Adam([torch.zeros(3)], lr=0.5)
    assert run.recorded(len, optimizer) is len and optimizer.param_groups[0]["lr"] == 0.5
    run.envs.close()
