"""Ideas of others as small variants: what they need of `train` is an argument, never its loop."""

import dqn
import numpy as np
import td3
import td3_sac
import torch
import torch.nn.functional as F
from conftest import new_run

SMALL = {"env_id": "Pendulum-v1", "total_timesteps": 160, "learning_starts": 100}
SMALL |= {"hidden_sizes": (16, 16), "batch_size": 16, "checkpoint_frequency": 130}


def make_run(script, **settings):
    parent = td3 if script is td3_sac else script
    return new_run(script, **({} if parent is dqn else SMALL) | settings)


def test_td3_bc_and_a_buffer_of_ones_own():
    """The actor imitates the buffer's actions, too, arXiv 2106.06860; the buffer weighs rows."""
    seen = []

    class Weighing(td3.ReplayBuffer):
        def sample(self, *how):
            batch = super().sample(*how)
            return batch | {"weights": np.linspace(0, 1, len(batch["rewards"]))}

    def update(agent, target, optimizers, batch, args, rng, gradient_step):
        scalars = td3.td3_update(agent, target, optimizers, batch, args, rng, gradient_step)
        cloning = F.mse_loss(agent.policy(batch["obs"]), batch["actions"], reduction="none")
        cloning = (batch["weights"][:, None] * cloning).mean()
        optimizers["actor_optimizer"].zero_grad()
        cloning.backward()
        optimizers["actor_optimizer"].step()
        seen.append(gradient_step)
        return scalars | {"losses/cloning": cloning.detach()}

    run = make_run(td3)
    buffer = Weighing(1000, 1, *run.obs_space.shape, run.agent.action_dim)
    parts = {"seen": td3.Counter(5)}
    td3.train(run.args, run, buffer=buffer, update=update, parts=parts)
    assert seen == list(range(101, 161)) and buffer.total == 160
    assert run.parts["seen"] is parts["seen"] and run.parts["buffer"] is buffer


def test_an_optimizer_and_a_part_for_dqn():
    run = make_run(dqn, total_timesteps=400, learning_starts=100, batch_size=16)
    optimizer = torch.optim.SGD(run.agent.parameters(), lr=0.1)
    parts = {"mine": td3.Counter(7)}
    before = run.hash()
    dqn.train(run.args, run, optimizer=optimizer, parts=parts)
    assert run.parts["optimizer"] is optimizer and run.parts["mine"] is parts["mine"]
    assert run.hash() != before
