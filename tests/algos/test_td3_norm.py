"""--norm-obs and --layer-norm of td3.py and td3_sac.py: what is normalised, by what, and when."""

import numpy as np
import pytest
import td3
import td3_sac
import torch
from conftest import before, new_run
from gymnasium.spaces import Box
from torch import nn

OBS, ACTIONS = 2, 3
VECTORS, ACTION_SPACE = Box(-np.inf, np.inf, (OBS,), np.float32), Box(-1, 1, (ACTIONS,))
TINY = dict(env_id="Pendulum-v1", num_envs=2, total_timesteps=222, learning_starts=50,
    batch_size=16, buffer_size=130, hidden_sizes=(11, 13), checkpoint_frequency=100,
    norm_obs=True, layer_norm=True)  # fmt: skip


@pytest.fixture(params=[td3, td3_sac], ids=["td3", "td3_sac"])
def module(request):
    return request.param


def make_agent(module, **settings):
    torch.manual_seed(0)
    return module.make_agent(module.Args(hidden_sizes=(11, 13), **settings), VECTORS, ACTION_SPACE)


def test_acting_normalises_by_hand(module):
    """Means 3 and -1, variances 4 and 0.25: (7, -2) is (2, -2), and (1003, -1) is (10, 0)."""
    agent = make_agent(module, norm_obs=True)
    agent.obs_moments.mean[:] = torch.tensor([3.0, -1.0])
    agent.obs_moments.var[:] = torch.tensor([4.0, 0.25])
    raw, by_hand = np.float32([[7, -2], [1003, -1]]), torch.tensor([[2.0, -2.0], [10.0, 0.0]])
    with torch.no_grad():
        expected = agent.actor(by_hand)[:, :ACTIONS].tanh()  # of td3_sac means alone
    np.testing.assert_allclose(agent.act(raw, None), expected, rtol=1e-5, atol=1e-6)


def test_minibatches_are_normalised_by_what_was_acted_on_before(module, monkeypatch):
    """Each observation once, after the updates of its step: neither what is replayed counts nor
    what evaluations see, and the target networks get the same moments. The buffer's are raw.
    """
    acted, sampled, normalised, sample = [], [], [], td3.ReplayBuffer.sample
    update = td3.td3_update if module is td3 else td3_sac.sac_update

    def watched_sample(*given):
        sampled.append((sample(*given), len(acted) - 1))  # without those of this step
        return sampled[-1][0]

    def watched_update(agent, target, optimizers, batch, *others):
        normalised.append(batch)
        return update(agent, target, optimizers, batch, *others)

    before(monkeypatch, td3.ReplayBuffer, "add", lambda _, obs, *rest: acted.append(obs.copy()))
    monkeypatch.setattr(td3.ReplayBuffer, "sample", watched_sample)
    run = new_run(module, **TINY, n_step=3, eval_frequency=60)
    module.train(run.args, run, update=watched_update)
    assert len(normalised) == 172 and len(acted) == 111
    for (raw, steps), batch in zip(sampled, normalised, strict=True):
        seen = np.concatenate(acted[:steps]).astype(np.float64)
        for name in ("obs", "next_obs"):
            expected = (raw[name] - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8)
            np.testing.assert_allclose(batch[name], expected.clip(-10, 10), rtol=1e-4, atol=1e-5)
    moments, all_acted = run.agent.obs_moments, np.concatenate(acted)
    assert moments.count == 222
    np.testing.assert_allclose(moments.mean, all_acted.mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(moments.var, all_acted.var(axis=0, dtype=np.float64))


def test_critics_alone_have_layer_norm_before_each_relu(module):
    """The mean and the variance of a row's units, as in eq. 4 of arXiv 1607.06450."""
    agent, plain = make_agent(module, layer_norm=True), make_agent(module)
    assert not any(isinstance(layer, nn.LayerNorm) for layer in agent.actor.modules())
    for p, q in zip(agent.actor.parameters(), plain.actor.parameters(), strict=True):
        assert p.shape == q.shape
    x = np.random.default_rng(0).normal(size=(7, OBS + ACTIONS)).astype(np.float32)
    for critic in agent.critics:
        weights = [p.detach().numpy() for p in critic.parameters()]
        expected = x
        for w, b, gain, bias in (weights[:4], weights[4:8]):
            z = expected @ w.T + b
            z = z - z.mean(axis=1, keepdims=True)
            z = z / np.sqrt((z**2).mean(axis=1, keepdims=True) + 1e-5)
            expected = np.maximum(gain * z + bias, 0)
        expected = expected @ weights[8].T + weights[9]
        obs, actions = torch.tensor(x[:, :OBS]), torch.tensor(x[:, OBS:])
        pairs = (obs, actions) if module is td3 else (torch.tensor(x),)
        found = critic(*pairs).detach().numpy().reshape(7, 1)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
