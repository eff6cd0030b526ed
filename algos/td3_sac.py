"""Soft Actor-Critic (SAC): TD3 with a stochastic policy that is paid for its entropy, so that it
learns how much to explore. With quantiles of the return it is Truncated Quantile Critics (TQC).

Papers    SAC arXiv 1801.01290, its learned temperature arXiv 1812.05905; TQC arXiv 2005.04269.
Run       python algos/td3_sac.py --config variants                       Pendulum-v1
          python algos/td3_sac.py --quantiles 25 --drop 2                 TQC on HalfCheetah-v5

It imports td3.py, which must lie beside it, and holds only what differs:
- the policy is a Gaussian, squashed by tanh; what it draws takes the place of noise on its actions;
- targets and the actor's loss count -alpha log pi(a|s), and the temperature alpha is learned so
  that the policy's mean entropy reaches a target;
- actor and critics learn at every step, and targets draw actions from the current actor;
- TQC: each critic gives quantiles, and of those of both target critics the largest are left out.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import td3
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args(td3.RunArgs):
    learning_starts: int = 10_000  # Steps of uniformly random actions before the first update.
    alpha: float | None = None  # Temperature [reward per nat]; None: learned, from 1 on.
    target_entropy: float | None = None  # Of actions in [-1, 1] [nats]; None: -1 per dimension.
    quantiles: int = 1  # Outputs of each critic; 1: Q alone, which is SAC. TQC: 25.
    drop: int = 0  # Target quantiles left out for each critic, the largest of both. TQC: 2.
    # no flags: the policy brings its own noise, and there are two critics
    exploration_noise: ClassVar = 1.0  # in deviations of the policy
    policy_noise: ClassVar = 0.0  # only td3's check reads this and noise_clip
    noise_clip: ClassVar = 0.0
    policy_frequency: ClassVar = 1
    twin: ClassVar = True

    def check(self):
        super().check()
        td3.require_range(self, "alpha drop", high=1e9)
        if self.alpha is not None:
            td3.refuse_typed(self, "target_entropy", "with a constant alpha")
        if self.drop >= self.quantiles:
            td3.fail(f"drop={self.drop} must be smaller than quantiles={self.quantiles}")


def train(args: Args, run: td3.Run, optimizers=None, buffer=None, update=None, parts=None):
    agent = run.agent
    if optimizers is None:
        adam = {"lr": args.learning_rate, "fused": True}
        optimizers = {
            "actor_optimizer": torch.optim.Adam(agent.actor.parameters(), **adam),
            "critic_optimizer": torch.optim.Adam(agent.critics.parameters(), **adam),
            "alpha_optimizer": torch.optim.Adam([agent.log_alpha], **adam),
        }
    td3.train(args, run, optimizers, buffer, update or sac_update, parts)


def sac_update(agent, target, optimizers, batch, args, rng, gradient_step):
    """One step of critics, actor, temperature and target critics. Returns scalars for curves."""
    noises = rng.standard_normal((2, *batch["actions"].shape), np.float32)
    next_noise, noise = torch.as_tensor(noises, device=agent.device)
    scalars = update_critics(agent, target, optimizers, batch, next_noise, args)
    if gradient_step % args.policy_frequency == 0:
        scalars |= update_actor(agent, optimizers, batch["obs"], noise, args)
    td3.polyak(target, agent, args.tau)  # of all that q_values might use
    return scalars


def update_critics(agent, target, optimizers, batch, noise, args):
    """One step of the critics. noise: normal, of s', (batch, action_dim). Returns scalars."""
    losses, q_mean = q_losses(agent, target, batch, noise, args)
    td3.descend(optimizers["critic_optimizer"], sum(losses))
    scalars = {f"losses/qf{i}_loss": loss.detach() for i, loss in enumerate(losses, start=1)}
    return scalars | {"losses/qf1_values": q_mean}


def update_actor(agent, optimizers, obs, noise, args):
    """One step of the actor and one of the temperature. noise: normal. Returns scalars."""
    with td3.frozen(agent.critics):
        loss, log_probs = policy_loss(agent, obs, noise, args)
    td3.descend(optimizers["actor_optimizer"], loss)
    scalars = {"losses/actor_loss": loss.detach(), "losses/entropy": -log_probs.mean()}
    scalars["losses/alpha"] = agent.alpha()
    if args.alpha is None:
        loss = alpha_loss(agent.log_alpha, log_probs, agent.target_entropy)
        td3.descend(optimizers["alpha_optimizer"], loss)
        scalars["losses/alpha_loss"] = loss.detach()
    return scalars


def q_losses(agent, target, batch, noise, args):
    """Each critic's loss, the first one's mean Q. noise: normal, of s', (batch, action_dim)."""
    with torch.no_grad():
        next_actions, log_probs = agent.sample(batch["next_obs"], noise)  # there is no target actor
        next_q = torch.cat(target.q_values(batch["next_obs"], next_actions), dim=1)
        num_quantiles = len(target.critics) * (args.quantiles - args.drop)
        kept = num_quantiles if args.quantiles > 1 else 1
        given = batch["rewards"], batch["terminated"], batch["discounts"]
        y = soft_target(*given, next_q, kept, log_probs, agent.alpha())
    q_values = agent.q_values(batch["obs"], batch["actions"])
    loss_of = quantile_huber_loss if args.quantiles > 1 else F.mse_loss
    return [loss_of(q, y) for q in q_values], q_values[0].detach().mean()


def soft_target(rewards, terminated, discounts, next_q, kept: int, log_probs, alpha):
    """r + gamma^n (Q(s', a') - alpha log pi(a'|s')), or r alone where the task ended, for the
    `kept` smallest Q of each row: one of two in SAC, eq. 2 and 3 of arXiv 1812.05905, all quantiles
    but the largest in TQC. next_q (batch, n), others (batch,); returns (batch, kept), sorted.
    """
    assert rewards.shape == terminated.shape == log_probs.shape == (len(next_q),), rewards.shape
    soft = next_q.sort(dim=1).values[:, :kept] - alpha * log_probs[:, None]
    y = rewards[:, None] + discounts[:, None] * soft
    return torch.where(terminated[:, None], rewards[:, None], y)  # no product, as in td3.py


def quantile_huber_loss(quantiles, targets):
    """Mean over rows, i and j of |tau_i - 1[u_ij < 0]| L(u_ij), where u_ij = y_j - theta_i, tau_i =
    (2 i - 1) / (2 m), L is Huber's loss; arXiv 2005.04269. theta (batch, m), y (batch, any number).
    """
    assert quantiles.ndim == targets.ndim == 2 and len(quantiles) == len(targets), targets.shape
    m = quantiles.shape[1]
    taus = (torch.arange(m, device=quantiles.device) + 0.5) / m
    u = targets[:, None, :] - quantiles[:, :, None]  # (batch, i, j)
    huber = F.huber_loss(u, torch.zeros_like(u), reduction="none")
    return ((taus[:, None] - (u < 0).float()).abs() * huber).mean()


def policy_loss(agent, obs, noise, args):
    """Mean of alpha log pi(a|s) - Q(s, a), a scalar, with the smaller Q or the mean of quantiles;
    eq. 9 of arXiv 1812.05905. And log pi(a|s), (batch,), without gradients.
    """
    actions, log_probs = agent.sample(obs, noise)
    q = torch.cat(agent.q_values(obs, actions), dim=1)
    q = q.mean(dim=1) if args.quantiles > 1 else q.amin(dim=1)
    return (agent.alpha() * log_probs - q).mean(), log_probs.detach()


def alpha_loss(log_alpha, log_probs, target_entropy: float):
    """Mean of -alpha (log pi + target entropy), a scalar; eq. 18 of arXiv 1812.05905. A step down
    lowers alpha where the entropy, the mean of -log pi, is above its target. log_probs (batch,).
    """
    return -log_alpha.exp() * (log_probs + target_entropy).mean()


def squashed_log_prob(u, mean, log_std):
    """log pi of a = tanh(u) for normal u: log N(u) - log(1 - tanh(u)^2), summed over dimensions;
    appendix C of arXiv 1812.05905. All (batch, action_dim); returns (batch,).
    """
    normal = -0.5 * ((u - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    # equals log(1 - tanh(u)^2), which in float32 is log 0 from |u| = 9 on
    log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
    return (normal - log_slope).sum(dim=1)


class Agent(td3.Agent):
    """A squashed Gaussian, which `policy` alone defines, its temperature and the critics. Densities
    are those of actions in half ranges, as td3's agent has them inside.
    """

    def __init__(self, args: Args, obs_dim: int, low, high):
        super().__init__(args, obs_dim, low, high)
        n = obs_dim + self.action_dim
        sizes = args.hidden_sizes
        self.actor = td3.relu_mlp(obs_dim, sizes, 2 * self.action_dim)
        critic_sizes = n, sizes, args.quantiles, args.layer_norm
        self.critics = nn.ModuleList(
            td3.relu_mlp(*critic_sizes) for _ in range(2 if args.twin else 1)
        )
        self.args = args
        target = args.target_entropy
        self.log_alpha = nn.Parameter(torch.zeros(()))  # learned, unless alpha is given
        self.target_entropy = -self.action_dim if target is None else target
        if not -math.inf < self.target_entropy < self.action_dim * math.log(2):
            td3.fail(f"target_entropy={target} must be less than uniform actions have, log 2 each")

    def alpha(self):  # a constant to all but alpha_loss
        return self.log_alpha.detach().exp() if self.args.alpha is None else self.args.alpha

    def policy(self, features):  # (batch, obs_dim) -> mean, log sigma (batch, action_dim)
        mean, log_std = self.actor(features).chunk(2, dim=1)
        # below, densities have no bound; above, sigma 7.4, nearly all actions are at theirs
        return mean, log_std.clamp(-5, 2)

    def sample(self, obs, noise):
        """Actions in [-1, 1] and log pi, (batch,), with gradients. noise: normal, like actions."""
        mean, log_std = self.policy(obs)
        u = mean + log_std.exp() * noise
        return u.tanh(), squashed_log_prob(u, mean, log_std)

    def q_values(self, obs, actions):  # of each critic (batch, quantiles)
        pairs = torch.cat([obs, actions], dim=1)
        return [critic(pairs) for critic in self.critics]

    @torch.no_grad()
    def act(self, obs, rng, noise=0.0):
        """(num_envs, obs_dim) -> (num_envs, action_dim) in [-1, 1]; without noise tanh(mean)."""
        u, log_std = self(torch.as_tensor(obs, device=self.device))
        if noise > 0:
            drawn = noise * rng.standard_normal(u.shape, np.float32)
            u = u + log_std.exp() * torch.as_tensor(drawn, device=self.device)
        return u.tanh().cpu().numpy()


def make_agent(args, obs_space, action_space):
    agent = td3.make_agent(args, obs_space, action_space)
    return Agent(args, *obs_space.shape, agent.low, agent.high)


if __name__ == "__main__":
    td3.main("td3_sac", Args, make_agent, train, td3.evaluation_policy)
