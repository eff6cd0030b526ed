"""What --bf16 changes and what it does not: convolutions are rounded, the heads are exact."""

import a2c
import dqn
import numpy as np
import ppo
import pytest
import torch
from gymnasium import spaces

OBS, ACTIONS, BATCH = spaces.Box(0, 255, (3, 44, 52), np.uint8), spaces.Discrete(5), 17
MAKERS = {
    "ppo": lambda **k: ppo.Agent(ppo.RunArgs(**k), OBS, ACTIONS),
    "a2c": lambda **k: a2c.Agent(a2c.RunArgs(**k), OBS, ACTIONS),
    "dqn": lambda **k: dqn.QNetwork(dqn.RunArgs(**k), OBS, 5),
    "dqn, all switches": lambda **k: dqn.QNetwork(
        dqn.RunArgs(n_atoms=7, dueling=True, **k), OBS, 5
    ),
}


def pixels():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (BATCH, *OBS.shape), dtype=torch.uint8, generator=generator)


def outputs(agent, obs):
    if not hasattr(agent, "value"):
        return agent.logits(obs)
    features = agent.features(obs)
    return torch.cat([agent.policy(features), agent.value(features)[:, None]], dim=1)


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_differ_by_rounding_alone(name):
    torch.manual_seed(0)
    plain, rounded = MAKERS[name](bf16=False), MAKERS[name](bf16=True)
    rounded.load_state_dict(plain.state_dict())
    assert all(p.dtype == torch.float32 for p in rounded.parameters())
    exact, rough = outputs(plain, pixels()), outputs(rounded, pixels())
    assert rough.dtype == torch.float32
    error = (rough - exact).abs().max().item()
    # 8 bits: a relative error of 2^-9 in each product and in each of the trunk's outputs
    assert 0 < error < 0.02 * exact.abs().max().item()
    # a head that computed in bfloat16, too, would give numbers that bfloat16 holds
    assert not torch.equal(rough, rough.to(torch.bfloat16).float())


def test_acting_and_learning_round_alike():
    """So the first ratio of PPO is 1, whatever the sizes of minibatches."""
    torch.manual_seed(0)
    agent, obs = MAKERS["ppo"](bf16=True), pixels()
    with torch.no_grad():
        acted = agent(obs)
        for size in (1, 2, 5):
            parts = torch.cat([agent(part) for part in obs.split(size)])
            np.testing.assert_allclose(parts.numpy(), acted.numpy(), rtol=0, atol=1e-6)
    batch = {"obs": obs, "actions": torch.zeros(BATCH, dtype=torch.int64)}
    learned, _, _ = agent.evaluate_actions(batch)  # with gradients, as in a loss
    expected = torch.log_softmax(acted, dim=1)[:, 0]
    np.testing.assert_allclose(learned.detach().numpy(), expected.numpy(), rtol=0, atol=1e-6)
