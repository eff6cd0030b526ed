"""What --bf16 changes and what it does not: convolutions are rounded, all that follows is exact."""

import sys

import a2c
import dqn
import numpy as np
import ppo
import pytest
import torch
from gymnasium import spaces

SHAPE, ACTIONS, BATCH = (3, 44, 52), 5, 17
MAKERS = {
    "ppo": lambda bf16: ppo.Agent(SHAPE, ACTIONS, bf16=bf16),
    "a2c, rllib": lambda bf16: a2c.Agent((3, 84, 84), ACTIONS, bf16=bf16, network="rllib"),
    "dqn": lambda bf16: dqn.QNetwork(SHAPE, ACTIONS, bf16=bf16),
    "dqn, all switches": lambda bf16: dqn.QNetwork(SHAPE, ACTIONS, 7, dueling=True, bf16=bf16),
}


def pixels(shape=SHAPE):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (BATCH, *shape), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_differ_by_rounding_alone(name):
    torch.manual_seed(0)
    plain = MAKERS[name](False)
    rounded = MAKERS[name](True)
    rounded.load_state_dict(plain.state_dict())
    assert all(p.dtype == torch.float32 for p in rounded.parameters())
    obs = pixels((3, 84, 84) if "rllib" in name else SHAPE)
    exact, rough = plain(obs), rounded(obs)
    if isinstance(exact, tuple):  # logits and values
        exact, rough = (
            torch.cat([exact[0], exact[1][:, None]], 1),
            torch.cat([rough[0], rough[1][:, None]], 1),
        )
    assert rough.dtype == torch.float32
    error = (rough - exact).abs().max().item()
    # 8 bits: a relative error of 2^-9 in each product and in each of the trunk's outputs
    assert 0 < error < 0.02 * exact.abs().max().item()
    # a head that computed in bfloat16, too, would give numbers that bfloat16 holds
    assert not torch.equal(rough, rough.to(torch.bfloat16).float())


def test_acting_and_learning_round_alike():
    """So the first ratio of PPO is 1, whatever the sizes of minibatches."""
    torch.manual_seed(0)
    agent, obs = ppo.Agent(SHAPE, ACTIONS, bf16=True), pixels()
    with torch.no_grad():
        acted = agent.policy(obs)
        for size in (1, 2, 5):
            parts = torch.cat([agent.policy(part) for part in obs.split(size)])
            np.testing.assert_allclose(parts.numpy(), acted.numpy(), rtol=0, atol=1e-6)
    learned, _ = agent(obs)
    np.testing.assert_allclose(learned.detach().numpy(), acted.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "script, flags", [(ppo, ""), (a2c, ""), (dqn, ""), (ppo, "--share-trunk no")]
)
def test_vectors_and_trunks_of_their_own_are_refused(script, flags):
    shape = SHAPE if flags else (7,)
    obs_space, action_space = spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(ACTIONS)
    args = script.parse_args(["--bf16", *flags.split()])
    with pytest.raises(script.UserError, match="bf16 is for images"):
        script.make_agent(args, obs_space, action_space)


@pytest.mark.parametrize(
    "flags, capabilities, slow",
    [
        ("--bf16", {"avx2": True, "avx512_f": True, "amx_bf16": False}, True),
        ("--bf16", {"avx512_bf16": True}, False),
        ("--bf16", {"amx_bf16": True}, False),
        ("--bf16", {"bf16": True}, False),  # as ARM's is called
        ("--no-bf16", {}, False),
    ],
)
def test_a_cpu_without_bfloat16_is_said_to_be_slow(
    flags, capabilities, slow, tmp_path, monkeypatch, capsys
):
    tiny = "--env-id environments:Colour-v0 --total-timesteps 20 --num-envs 1 --num-steps 10"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["a2c.py", *tiny.split(), *flags.split()])
    monkeypatch.setattr(a2c.signal, "signal", lambda *_: None)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    a2c.main()
    assert ("health: this CPU does not know bfloat16" in capsys.readouterr().err) == slow
