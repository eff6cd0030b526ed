"""dqn_quantile.py: the loss against a loop, the actions that it is of, and prioritised replay."""

import dqn
import dqn_prioritised
import dqn_quantile
import numpy as np
import pytest
import torch
from conftest import train
from gymnasium.spaces import Box
from test_dqn_prioritised import DRAWN, SHORT, Errors

BATCH, ACTIONS, ATOMS = 7, 3, 5


def loop(quantiles, targets, kappa):
    """Equation 10 of the paper and the line above it, written down once more."""
    losses = []
    for thetas, ys in zip(quantiles.tolist(), targets.tolist(), strict=True):
        loss = 0.0
        for i, theta in enumerate(thetas, 1):
            tau = (2 * i - 1) / (2 * len(thetas))
            for y in ys:
                u = y - theta
                huber = u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)
                loss += (tau if u >= 0 else 1 - tau) * huber / kappa / len(ys)
        losses.append(loss)
    return losses


def test_the_loss_of_a_quantile_with_two_targets_by_hand():
    """tau is 1/2, Huber's losses 1/8 and 5/2."""
    loss = dqn_quantile.quantile_huber_loss(torch.zeros(1, 1), torch.tensor([[0.5, 3.0]]), 1.0)
    assert loss.tolist() == [0.5 * (0.125 + 2.5) / 2]


def test_rows_of_different_batches_are_refused():
    for targets in (torch.zeros(2, 2), torch.zeros(2)):
        with pytest.raises(AssertionError):
            dqn_quantile.quantile_huber_loss(torch.zeros(1, 2), targets, 1.0)


class Table(dqn_quantile.QNetwork):
    """Quantiles are the observation, (batch, actions * atoms), plus what the network has learned
    of each action and atom.
    """

    def __init__(self, start):
        torch.nn.Module.__init__(self)
        self.device = torch.device("cpu")
        self.learned = torch.nn.Parameter(start)

    def logits(self, obs):
        return obs.reshape(-1, ACTIONS, ATOMS) + self.learned


def tables(seed=0):
    """A network, its target, and a batch."""
    torch.manual_seed(seed)
    networks = [Table(0.5 * torch.randn(ACTIONS, ATOMS)) for _ in range(2)]
    batch = {name: torch.randn(BATCH, ACTIONS * ATOMS) for name in ("obs", "next_obs")}
    batch |= {"rewards": torch.randn(BATCH), "discounts": torch.rand(BATCH)}
    batch |= {"actions": torch.arange(BATCH) % ACTIONS, "terminated": torch.arange(BATCH) % 3 == 0}
    return *networks, batch | {"weights": torch.rand(BATCH)}


@pytest.mark.parametrize("double", [False, True])
def test_losses_row_by_row(double):
    """The next action is the one with the largest mean, of the target network or of the other."""
    network, target, batch = tables()
    kappa, chosen = 0.5, set()
    losses, errors, found = dqn_quantile.quantile_losses(
        network, target, batch, dqn_quantile.Args(double=double, kappa=kappa)
    )
    taken, q_values = [], []
    for k in range(BATCH):
        following = batch["next_obs"][k].reshape(ACTIONS, ATOMS)
        ranking = (network if double else target).learned.detach() + following
        best = max(range(ACTIONS), key=lambda a, ranking=ranking: ranking[a].sum().item())
        y = batch["rewards"][k] + torch.zeros(ATOMS)
        if not batch["terminated"][k]:
            chosen.add(best)
            y = y + batch["discounts"][k] * (target.learned.detach()[best] + following[best])
        q_values.append(network.learned.detach() + batch["obs"][k].reshape(ACTIONS, ATOMS))
        taken.append(q_values[-1][batch["actions"][k]])
        expected = loop(taken[-1][None], y[None], kappa)
        assert losses[k].item() == pytest.approx(expected[0], rel=1e-4)
    assert len(chosen) > 1
    other = dqn_quantile.Args(double=not double, kappa=kappa)
    assert (dqn_quantile.quantile_losses(network, target, batch, other)[0] != losses).any()
    torch.testing.assert_close(errors, losses.detach())
    assert found["q_values"].item() == pytest.approx(torch.stack(taken).mean().item(), rel=1e-4)
    spread = torch.stack(q_values).mean(dim=2).std(dim=0, correction=0).mean()
    assert found["q_spread"].item() == pytest.approx(spread.item(), rel=1e-4)


@pytest.mark.parametrize("double", [False, True])
def test_only_the_quantiles_of_the_action_learn(double):
    network, target, batch = tables()
    args = dqn_quantile.Args(double=double)
    batch["actions"][:] = 1
    dqn_quantile.quantile_losses(network, target, batch, args)[0].sum().backward()
    assert target.learned.grad is None
    assert not dqn_quantile.quantile_losses(network, target, batch, args)[1].requires_grad
    assert network.learned.grad.any(dim=1).tolist() == [False, True, False]
    own = torch.autograd.grad(
        dqn_quantile.quantile_losses(network, network, batch, args)[0].sum(), network.learned
    )
    assert own[0].any(dim=1).tolist() == [False, True, False]


def test_priorities_are_the_losses_without_their_weights():
    network, target, batch = tables()
    buffer, args = Errors(), dqn_quantile.Args(priority_exponent=0.6)
    plain, *_ = dqn_quantile.quantile_losses(network, target, batch, args)
    batch |= DRAWN
    losses, errors, _ = dqn_quantile.weighted_losses(buffer, network, target, batch, args)
    torch.testing.assert_close(losses, batch["weights"] * plain)
    np.testing.assert_array_equal(buffer.errors, plain.detach().numpy())
    torch.testing.assert_close(errors, plain.detach())


def test_what_acts_is_the_mean_and_nothing_else_is_saved():
    torch.manual_seed(0)
    network = dqn_quantile.QNetwork(dqn_quantile.Args(n_atoms=ATOMS), Box(-1, 1, (2,)), ACTIONS)
    obs = np.random.default_rng(0).uniform(-1, 1, (BATCH, 2)).astype(np.float32)
    with torch.no_grad():
        means = network.logits(torch.as_tensor(obs)).numpy().mean(axis=2)
        np.testing.assert_allclose(network(torch.as_tensor(obs)), means, rtol=1e-5, atol=1e-7)
    actions = network.act(obs, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(actions, means.argmax(axis=1))
    plain = dqn.QNetwork(dqn.Args(n_atoms=ATOMS), Box(-1, 1, (2,)), ACTIONS)
    assert network.state_dict().keys() == plain.state_dict().keys() - {"support"}


@pytest.mark.parametrize("n_atoms", [1, ATOMS])
def test_train_brings_the_loss_and_where_asked_for_the_buffer(monkeypatch, n_atoms):
    calls = []

    def spy(args, run, buffer=None, losses_of=None):
        calls.append((buffer, losses_of))

    monkeypatch.setattr(dqn, "train", spy)
    train(dqn_quantile, **SHORT | {"n_atoms": n_atoms})
    train(dqn_quantile, **SHORT, priority_exponent=0.6)
    assert calls[0] == (None, dqn_quantile.quantile_losses)
    buffer, losses_of = calls[1]
    assert type(buffer) is dqn_prioritised.ReplayBuffer and buffer.args.priority_exponent == 0.6
    assert losses_of.func is dqn_quantile.weighted_losses and losses_of.args == (buffer,)
