"""DQN with quantile regression (QR-DQN): the network learns quantiles of the return, so that its
distribution needs no support that somebody must know in advance.

Papers    QR-DQN arXiv 1710.10044; DQN and its switches as in dqn.py, prioritised replay as in
          dqn_prioritised.py.
Run       python algos/dqn_quantile.py                                               CartPole-v1
          python algos/dqn_quantile.py --double --dueling --n-step 3        any combination
          python algos/dqn_quantile.py --priority-exponent 0.6              prioritised replay

It imports dqn.py and dqn_prioritised.py, which must lie beside it, and holds only what differs:
- the n_atoms outputs of an action are its return's quantiles at (2 i - 1) / (2 n_atoms), i = 1, 2,
  ..., and Q is their mean;
- the targets are r + gamma^n times each quantile of the next action, neither clipped nor projected;
- the loss is quantile regression with a Huber loss; it is the error that sets a priority, too.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import dqn
import dqn_prioritised
import torch
import torch.nn.functional as F


@dataclass
class Args(dqn_prioritised.Args):
    n_atoms: int = 25  # Quantiles of the return; the paper has 200 on Atari.
    kappa: float = 1.0  # Where the Huber loss turns from squared to linear [units of return].
    priority_exponent: float = 0.0  # 0 replays all steps alike, 1 in proportion to their losses.
    # no flags: quantiles have no support, and no other loss
    v_min: ClassVar = 0.0
    v_max: ClassVar = 1.0
    loss: ClassVar = "huber"

    def check(self):
        super().check()
        dqn.require_range(self, "kappa", low=1e-6, high=1e6)


def train(args: Args, run: dqn.Run):
    if args.priority_exponent == 0:  # without the sum tree, which takes time
        return dqn.train(args, run, losses_of=quantile_losses)
    stack = run.obs_space.shape[0] if dqn.is_game(args.env_id) else 1
    buffer = dqn_prioritised.ReplayBuffer(args, run.obs_space, stack)
    dqn.train(args, run, buffer=buffer, losses_of=partial(weighted_losses, buffer))


def weighted_losses(buffer, q_network, target_q_network, batch, args):
    """As in dqn_prioritised.py: weighted, and new priorities by the losses without weights."""
    losses, errors, scalars = quantile_losses(q_network, target_q_network, batch, args)
    steps, envs = batch["steps"].cpu().numpy(), batch["envs"].cpu().numpy()
    buffer.set_errors(steps, envs, errors.cpu().numpy())
    return batch["weights"] * losses, errors, scalars


def quantile_losses(q_network, target_q_network, batch, args):
    """As dqn.dqn_losses, of quantiles: loss and error are the quantile Huber loss."""
    rows = torch.arange(len(batch["actions"]), device=q_network.device)
    with torch.no_grad():
        next_quantiles = target_q_network.logits(batch["next_obs"])  # (batch, actions, atoms)
        ranked = q_network.logits(batch["next_obs"]) if args.double else next_quantiles
        next_actions = q_network.best_actions(q_network.q_values(ranked), batch["next_obs"])
        transition = batch["rewards"], batch["discounts"], batch["terminated"]
        targets = quantile_targets(next_quantiles[rows, next_actions], *transition)
    quantiles = q_network.logits(batch["obs"])
    taken = quantiles[rows, batch["actions"]]  # (batch, atoms)
    losses = quantile_huber_loss(taken, targets, args.kappa)
    with torch.no_grad():
        spread = q_network.q_values(quantiles).std(dim=0, correction=0).mean()
        return losses, losses.detach(), {"q_values": taken.mean(), "q_spread": spread}


def quantile_targets(next_quantiles, rewards, discounts, terminated):
    """r + gamma^n theta_j(s', a*), or r alone where the task ended; algorithm 1 of the paper.

    next_quantiles (batch, atoms); rewards, discounts, terminated (batch,). Returns (batch, atoms).
    """
    columns = (x[:, None].expand_as(next_quantiles) for x in (rewards, discounts, terminated))
    return dqn.td_target(*columns, next_quantiles)


def quantile_huber_loss(quantiles, targets, kappa: float):
    """Of each row sum_i mean_j |tau_i - 1[u_ij < 0]| L(u_ij) / kappa, with u_ij = y_j - theta_i,
    tau_i = (2 i - 1) / (2 atoms) and L Huber's loss, linear beyond kappa; eq. 10 of the paper,
    divided by kappa as in IQN, arXiv 1806.06923.

    quantiles: theta_i, (batch, atoms); targets: y_j, (batch, any number). Returns (batch,).
    """
    assert quantiles.ndim == targets.ndim == 2 and len(quantiles) == len(targets), targets.shape
    n = quantiles.shape[1]
    taus = (torch.arange(n, device=quantiles.device) + 0.5) / n
    u = targets[:, None, :] - quantiles[:, :, None]  # (batch, i, j)
    huber = F.huber_loss(u, torch.zeros_like(u), reduction="none", delta=kappa)
    weights = (taus[:, None] - (u < 0).float()).abs()
    return (weights * huber / kappa).mean(dim=2).sum(dim=1)


class QNetwork(dqn.QNetwork):
    """dqn's, whose `logits` are quantiles: in no order but the one that they learn."""

    def __init__(self, args, obs_space, num_actions):
        super().__init__(args, obs_space, num_actions)
        self.register_buffer("support", None)  # there is none

    def q_values(self, logits):  # (batch, actions, atoms) -> (batch, actions)
        return logits.mean(dim=2)


make_agent = partial(dqn.make_agent, network_class=QNetwork)

if __name__ == "__main__":
    dqn.main("dqn_quantile", Args, make_agent, train, dqn.evaluation_policy)
