"""Proximal Policy Optimization (PPO): many small policy steps on one rollout, kept close to the
policy that collected it by clipping the probability ratio.

Papers    PPO arXiv 1707.06347; GAE arXiv 1506.02438; which details matter: arXiv 2006.05990.
Run       python algos/ppo.py                                         CartPole-v1
          python algos/ppo.py --config benchmarks/lunarlander.toml    and others of benchmarks/
Expect    a greedy return of 500 on CartPole-v1 on all of ten seeds, in half a minute on one core.

Deliberate differences from the papers, all of them common practice but the last:
- advantages are normalised in each minibatch; the gradient's norm is clipped; Adam with eps 1e-5;
- the value loss is half the mean squared error: the paper's coefficient of 1 is vf_coef 2 here;
- weights start orthogonal: gain sqrt(2), in the policy's last layer 0.01, in the value's 1;
- an episode cut by a time limit is bootstrapped from its true last observation, as in theory.
"""

import hashlib
import importlib
import json
import math
import os
import random
import re
import shlex
import signal
import sys
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm


@dataclass
class Args:
    env_id: str = "CartPole-v1"  # Environment; `package.module:Id-v0` imports that module first.
    seed: int = 1  # Determines the run: same machine, same command, same seed, same weights.
    total_timesteps: int = 102_400  # Training budget, summed over all environments [steps].
    num_envs: int = 8  # Environments stepped side by side.
    num_steps: int = 32  # Length of a rollout in each environment [steps].
    learning_rate: float = 2e-3  # Adam's step size, at the start.
    anneal_lr: bool = True  # Lowers the learning rate linearly to 0.
    gamma: float = 0.98  # Discount factor.
    gae_lambda: float = 0.8  # 0: the one-step TD error, 1: the return to the rollout's end less V.
    num_minibatches: int = 1  # Minibatches in one epoch.
    update_epochs: int = 10  # Passes over each rollout.
    norm_adv: bool = True  # Normalises advantages in each minibatch to mean 0 and deviation 1.
    clip_coef: float = 0.2  # Change of the probability ratio beyond which nothing more is gained.
    anneal_clip: bool = True  # Lowers clip_coef linearly to 0, along with the learning rate.
    clip_vloss: bool = False  # Clips the change of the value, too, by clip_coef [units of return].
    ent_coef: float = 0.0  # Weight of the entropy bonus.
    vf_coef: float = 0.5  # Weight of the value loss.
    max_grad_norm: float = 0.5  # Largest norm of the gradient of all parameters together.
    target_kl: float | None = None  # Mean KL of an epoch that ends the update [nats]; None: never.
    norm_obs: bool = False  # Normalises vectors by earlier rollouts' moments, clips them to +-10.
    norm_reward: bool = False  # Divides rewards by the deviation of returns, clips them to +-10.
    clip_reward: bool = False  # Learns from the sign of the reward; logged returns are not clipped.
    bf16: bool = False  # Images: convolutions in bfloat16, slow on a CPU without support for it.
    hidden_size: int = 64  # Width of both hidden layers of a network for vectors.
    activation: Literal["tanh", "relu"] = "tanh"  # After each of those layers.
    log_std_init: float = 0.0  # Continuous actions: log of the deviation [half the range].
    checkpoint_frequency: int = 100_000  # Steps between checkpoints; each ends running episodes.

    def check(self):
        require_range(self, "total_timesteps num_envs num_steps num_minibatches", low=1)
        require_range(self, "update_epochs hidden_size checkpoint_frequency", low=1)
        require_range(self, "learning_rate clip_coef ent_coef vf_coef target_kl max_grad_norm")
        require_range(self, "gamma gae_lambda", high=1)
        if self.total_timesteps % self.num_envs:
            fail(f"num_envs={self.num_envs} must divide total_timesteps={self.total_timesteps}")
        if (steps := self.iteration_steps) % self.num_minibatches:
            fail(f"num_minibatches={self.num_minibatches} must divide num_envs * num_steps={steps}")

    @property
    def iteration_steps(self) -> int:  # of a rollout: steps between calls of run.end_iteration
        return self.num_envs * self.num_steps


def train(args, run, optimizer=None, collect=None, make_batch=None, loss_of=None, parts=None):
    # a variant may bring its own of these, and more parts for the checkpoints
    collect, make_batch = collect or collect_step, make_batch or rollout_batch
    agent, loss_of = run.agent, loss_of or ppo_loss
    if optimizer is None:
        # eps 1e-5, as in openai/baselines: with 1e-8 a gradient of 1e-7 still takes a whole step
        settings = {"lr": args.learning_rate, "eps": 1e-5, "fused": True}
        optimizer = torch.optim.Adam(agent.parameters(), **settings)
    first_rates = [group["lr"] for group in optimizer.param_groups]
    running_returns = np.zeros(args.num_envs)  # in no checkpoint: all episodes end there
    step = run.start(agent=agent, optimizer=optimizer, **(parts or {}))
    while step < args.total_timesteps:
        remaining = linear_schedule(1.0, 0.0, args.total_timesteps, step)
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)
        if args.anneal_lr:
            for group, rate in zip(optimizer.param_groups, first_rates, strict=True):
                group["lr"] = rate * remaining

        agent.eval()  # dropout, for example, is for learning alone
        buffer = RolloutBuffer()
        steps_left = (args.total_timesteps - step) * args.num_steps // args.iteration_steps
        for _ in range(min(args.num_steps, steps_left)):
            buffer.add(**collect(agent, run, args))
        batch, running_returns = make_batch(agent, buffer, args, running_returns)

        agent.train()
        scalars = update(agent, optimizer, batch, args, clip_coef, run.rng, loss_of)
        if agent.obs_moments is not None:  # only now: acting and learning saw the same moments
            agent.obs_moments.update(buffer["obs"].reshape(-1, *run.obs_space.shape))
        scalars["charts/learning_rate"] = optimizer.param_groups[0]["lr"]
        step = run.end_iteration(scalars)


def collect_step(agent, run, args):
    """A step of every environment: what the buffer keeps of it, (num_envs, ...) each. `next_obs` is
    what the actions led to; where that ended an episode, run.obs is the next one's beginning.
    """
    obs = run.obs
    actions = agent.act(obs, run.rng)
    next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))
    if args.clip_reward:
        rewards = np.sign(rewards)
    step = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs}
    return step | {"terminated": terminated, "truncated": truncated}


@torch.no_grad()
def rollout_batch(agent, buffer, args, running_returns):
    """The rollout as tensors, (steps * envs, ...), and the running returns for the next one."""

    def flat(array):  # (steps, envs, ...) -> (steps * envs, ...)
        return torch.as_tensor(array, device=agent.device).flatten(0, 1)

    batch = {"obs": flat(buffer["obs"]), "actions": flat(buffer["actions"])}
    batch["log_probs"], _, batch["values"] = agent.evaluate_actions(batch)
    final_obs = torch.as_tensor(buffer.not_acted_on("next_obs"), device=agent.device)
    final_values = agent.value(agent.features(final_obs)).cpu().numpy()
    values = batch["values"].cpu().numpy().reshape(-1, args.num_envs)
    advantages, running_returns = rollout_advantages(
        agent, buffer, values, final_values, args, running_returns
    )
    batch["advantages"] = flat(advantages)
    batch["returns"] = batch["advantages"] + batch["values"]  # A = R - V: the critic learns R
    return batch, running_returns


def rollout_advantages(agent, buffer, values, final_values, args, running_returns):
    """GAE of a rollout, (steps, envs), and the running returns for the next one, (envs,).

    values (steps, envs): V of obs; final_values: V of buffer.not_acted_on("next_obs").
    """
    rewards, terminated, truncated = buffer["rewards"], buffer["terminated"], buffer["truncated"]
    ended = terminated | truncated
    if args.norm_reward:
        sums, running_returns = discounted_returns(rewards, ended, args.gamma, running_returns)
        agent.return_moments.update(sums.reshape(-1))
        rewards = np.clip(rewards / agent.return_moments.std().item(), -10, 10)
    final_values, last_values = np.split(final_values, [ended.sum()])
    next_values = successor_values(values, last_values, ended, final_values)
    coefs = args.gamma, args.gae_lambda
    return gae(rewards, values, next_values, terminated, truncated, *coefs), running_returns


def update(agent, optimizer, batch, args, clip_coef, rng, loss_of):
    """Epochs of gradient steps on a rollout. Returns scalars for the curves."""
    batch_size = len(batch["obs"])
    # of a short last rollout as many as have two steps in each, of a single step one
    num_minibatches = max(1, min(args.num_minibatches, batch["advantages"].numel() // 2))
    losses = []
    for _ in range(args.update_epochs):
        log_ratios = []
        for rows in np.array_split(rng.permutation(batch_size), num_minibatches):
            rows = torch.as_tensor(rows, device=agent.device)
            minibatch = {name: tensor[rows] for name, tensor in batch.items()}
            loss, terms, log_ratio = loss_of(agent, minibatch, args, clip_coef)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            losses.append({name: term.detach() for name, term in terms.items()})
            log_ratios.append(log_ratio.detach())
        log_ratios = torch.cat(log_ratios)  # of one whole epoch
        kl = approx_kl(log_ratios).item()
        if args.target_kl is not None and kl > args.target_kl:
            break
    scalars = {k: torch.stack([terms[k] for terms in losses]).mean().item() for k in losses[0]}
    clipped = (log_ratios.exp() - 1).abs() > clip_coef
    values, returns = batch["values"].cpu().numpy(), batch["returns"].cpu().numpy()
    scalars |= {"approx_kl": kl, "clipfrac": clipped.float().mean().item()}
    scalars["explained_variance"] = explained_variance(values, returns)
    return {f"losses/{name}": value for name, value in scalars.items()}


def ppo_loss(agent, minibatch, args, clip_coef):
    """The loss of a minibatch, its terms by name (all scalars), and log(new / old), (batch,)."""
    advantages = minibatch["advantages"]
    if args.norm_adv and advantages.numel() > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_probs, entropies, values = agent.evaluate_actions(minibatch)
    log_ratio, entropy = log_probs - minibatch["log_probs"], entropies.mean()
    policy_loss = clipped_policy_loss(log_ratio, advantages, clip_coef)
    value_clip = clip_coef if args.clip_vloss else None
    v_loss = value_loss(values, minibatch["values"], minibatch["returns"], value_clip)
    loss = policy_loss + args.vf_coef * v_loss
    if args.ent_coef > 0:  # else its backward pass would be for nothing
        loss = loss - args.ent_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": v_loss, "entropy": entropy}, log_ratio


def clipped_policy_loss(log_ratio, advantages, clip_coef):
    """The negated clipped surrogate, eq. 7 of arXiv 1707.06347: (batch,), (batch,) -> scalar."""
    assert log_ratio.shape == advantages.shape, (log_ratio.shape, advantages.shape)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return -torch.min(ratio * advantages, clipped * advantages).mean()


def value_loss(values, old_values, returns, clip_coef=None):
    """Half the mean of (V - R)^2; given a clip_coef, of max((V - R)^2, (V_clipped - R)^2), where
    V_clipped is V clipped to V_old +- clip_coef. V, V_old, R are (batch,). Returns a scalar.
    """
    assert values.shape == old_values.shape == returns.shape, (values.shape, returns.shape)
    squares = F.mse_loss(values, returns, reduction="none")
    if clip_coef is not None:
        clipped = old_values + (values - old_values).clamp(-clip_coef, clip_coef)
        squares = torch.max(squares, F.mse_loss(clipped, returns, reduction="none"))
    return 0.5 * squares.mean()


def gae(rewards, values, next_values, terminated, truncated, gamma, gae_lambda):
    """Generalised advantage estimates; eq. 16 of arXiv 1506.02438, cut where episodes end.

    A_t = delta_t + gamma lambda A_{t+1}, without A_{t+1} where the episode ended, and
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), without V(s_{t+1}) only where the task ended.
    rewards, values, next_values (of the true successors, before a reset), terminated (the task
    ended) and truncated (a time limit cut the episode), all (steps, envs) -> A_t, (steps, envs).
    """
    assert rewards.shape == values.shape == next_values.shape == terminated.shape == truncated.shape
    next_values = np.where(terminated, 0, next_values)  # not by a product: 0 * NaN is NaN
    deltas = rewards + gamma * next_values - values
    decays = gamma * gae_lambda * ~(terminated | truncated)
    advantages, advantage = np.zeros_like(deltas), 0.0
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages


def successor_values(values, last_values, ended, final_values):
    """V of every step's true successor, (steps, envs), from V of the observations acted on.

    values, ended (steps, envs): V(s_t), whether the episode ended; last_values (envs,): V of the
    last successors; final_values (ended.sum(),): V of episodes' last observations, by step and env.
    """
    assert values.shape == ended.shape, (values.shape, ended.shape)
    assert final_values.shape == (ended.sum(),), (final_values.shape, ended.sum())
    result = np.concatenate([values[1:], last_values[None]])
    result[ended] = final_values  # the mask goes by step, then env, as they do
    return result


def discounted_returns(rewards, ended, gamma, running):
    """sum_k gamma^k r_{t-k} since the episode began, whose deviation scales rewards, and `running`
    for the next call, 0 after an end. rewards, ended (steps, envs); running (envs,).
    """
    sums = np.zeros(rewards.shape)
    for t in range(len(rewards)):
        sums[t] = gamma * running + rewards[t]
        running = sums[t] * ~ended[t]
    return sums, running


def categorical_log_prob_and_entropy(logits, action):
    """log pi(a), entropy [nats] of a softmax: (batch, actions), (batch,) -> (batch,), (batch,)."""
    assert logits.ndim == 2 and action.shape == logits.shape[:1], (logits.shape, action.shape)
    log_probs = torch.log_softmax(logits, dim=1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=1)
    return log_probs.gather(1, action[:, None]).squeeze(1), entropy


def gaussian_log_prob_and_entropy(mean, log_std, action):
    """log pi(a) and entropy [nats] of independent Gaussians, summed over the action's dimensions:
    mean, action (batch, action_dim), log_std (action_dim,) -> (batch,), (batch,).
    """
    assert mean.shape == action.shape == (len(mean), *log_std.shape), (mean.shape, action.shape)
    z = (action - mean) / log_std.exp()
    log_prob = (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=1)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
    return log_prob, entropy.expand(len(mean))


def approx_kl(log_ratio):
    """KL(old || new) [nats] from old's actions: the mean of r - 1 - log r, with r = new / old."""
    return (log_ratio.exp() - 1 - log_ratio).mean()


def explained_variance(values, returns) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one."""
    return float(1 - np.var(returns - values) / max(np.var(returns), 1e-8))


def linear_schedule(start: float, end: float, duration: int, step: int) -> float:
    """From `start` at step 0 on a straight line to `end` at step `duration`, constant after it."""
    return start + (end - start) * min(step / duration, 1.0)


class RolloutBuffer:
    """One rollout: `add` takes a step of every environment, buffer[name] is (steps, envs, ...)."""

    def __init__(self):
        self.steps = []

    def add(self, **step):  # by name an array (num_envs, ...), which nobody writes to later
        assert len({len(array) for array in step.values()}) == 1, step
        self.steps.append(step)

    def __getitem__(self, name):
        return np.stack([step[name] for step in self.steps])

    def not_acted_on(self, name):
        """Rows that no later step repeats: of next_obs, where an episode ended, by step and
        environment, then after the last step. (ended.sum() + envs, ...).
        """
        rows = [step[name][step["terminated"] | step["truncated"]] for step in self.steps]
        return np.concatenate([*rows, self.steps[-1][name]])


class Agent(nn.Module):
    """A stochastic policy and a state value: two networks for vectors, one of two heads for images.
    Acting and learning both use `features`, `policy` and `value`: to change the agent, edit these.

    Discrete actions are categorical, continuous ones Gaussian, in half ranges: 0 is the middle
    between a dimension's bounds, 1 the upper one; without bounds, in the environment's own units.
    """

    def __init__(self, args: Args, obs_space, action_space):
        super().__init__()
        self.device = torch.device("cpu")  # until Run moves it
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        self.sees_images, self.bf16 = len(obs_space.shape) == 3, args.bf16
        self.pixel_max = float(obs_space.high.max())  # 255, but 1 where pixels are on or off
        num_outputs = int(action_space.n) if self.discrete else math.prod(action_space.shape)
        self.make_networks(args, obs_space.shape, num_outputs)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((num_outputs,), args.log_std_init))
            low, high = np.float64([action_space.low, action_space.high]).reshape(2, -1)
            with np.errstate(all="ignore"):  # infinite bounds; some write them as the largest float
                bounded = high - low < np.finfo(np.float32).max
                self.middle = np.where(bounded, (low + high) / 2, np.clip(0, low, high))
                self.half_range = np.where(bounded, (high - low) / 2, 1)
            self.low, self.high = low, high
        self.obs_moments = RunningMoments(obs_space.shape) if args.norm_obs else None
        self.return_moments = RunningMoments(()) if args.norm_reward else None

    def make_networks(self, args, input_shape, num_outputs):
        # the small gain makes the first policy nearly uniform, whatever the observation
        if self.sees_images:
            self.trunk = nature_cnn(input_shape)
            self.actor = initialise(nn.Linear(512, num_outputs), 0.01)
            self.critic = initialise(nn.Linear(512, 1), 1.0)
        else:
            sizes = *input_shape, args.hidden_size, args.activation
            self.actor, self.critic = mlp(*sizes, num_outputs, 0.01), mlp(*sizes, 1, 1.0)

    def features(self, obs):  # (batch, *obs_shape) -> (batch, n), what policy and value take
        if not self.sees_images:
            return obs if self.obs_moments is None else self.obs_moments.normalised(obs)
        # uint8 until here; convolutions are faster with the channels last
        obs = obs.to(torch.float32, memory_format=torch.channels_last) / self.pixel_max
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
            return self.trunk(obs).float()

    def policy(self, features):  # (batch, n) -> logits or means (batch, actions)
        return self.actor(features)

    def value(self, features):  # (batch, n) -> (batch,)
        return self.critic(features).squeeze(-1)

    def forward(self, obs):  # (batch, *obs_shape) -> logits or means (batch, actions), for acting
        return self.policy(self.features(obs))

    @torch.no_grad()
    def act(self, obs, rng, greedy=False):
        """(num_envs, *obs_shape) -> (num_envs,) or (num_envs, action_dim), sampled or likeliest."""
        outputs = self(torch.as_tensor(obs, device=self.device))
        return self.sample(outputs, rng, greedy).cpu().numpy()

    def sample(self, outputs, rng, greedy=False):  # of `policy` -> actions
        if greedy:
            return outputs.argmax(dim=1) if self.discrete else outputs
        noise = (rng.gumbel if self.discrete else rng.standard_normal)(size=outputs.shape)
        noise = torch.as_tensor(noise, dtype=torch.float32, device=outputs.device)
        if self.discrete:  # Gumbel-max: the argmax of logits plus Gumbel noise samples the softmax
            return (outputs + noise).argmax(dim=1)
        return outputs + self.log_std.exp() * noise

    def log_prob_and_entropy(self, outputs, actions):  # of `policy`, actions -> (batch,), (batch,)
        if self.discrete:
            return categorical_log_prob_and_entropy(outputs, actions)
        return gaussian_log_prob_and_entropy(outputs, self.log_std, actions)

    def evaluate_actions(self, batch):
        """log pi(a), entropy and V of the steps in `batch`, (batch,) each."""
        features = self.features(batch["obs"])
        scores = self.log_prob_and_entropy(self.policy(features), batch["actions"])
        return *scores, self.value(features)

    def to_env(self, actions):
        """Scales and clips `actions` for the environment; log-probabilities use the unclipped."""
        if self.discrete:
            return actions
        return (self.middle + self.half_range * actions).clip(self.low, self.high)


def make_agent(args, obs_space, action_space, agent_class=Agent):
    real = isinstance(action_space, gym.spaces.Box) and action_space.dtype.kind == "f"
    if not real and not isinstance(action_space, gym.spaces.Discrete):
        fail(f"actions must be Discrete or a Box of real numbers, not {action_space}")
    images = len(obs_space.shape) == 3
    if (args.bf16 and not images) or (args.norm_obs and images):
        fail(f"bf16 is for images, norm_obs for vectors, not for {obs_space}")
    return agent_class(args, obs_space, action_space)


def evaluation_policy(agent, rng, args):  # made anew for each evaluation, so it may remember
    greedy = not args.env_id.startswith("ALE/")  # in a game a greedy agent can stall for ever
    return lambda obs: agent.to_env(agent.act(obs, rng, greedy))


def mlp(num_inputs: int, hidden_size: int, activation: str, num_outputs: int, gain: float):
    make_activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]
    return nn.Sequential(
        initialise(nn.Linear(num_inputs, hidden_size)),
        make_activation(),
        initialise(nn.Linear(hidden_size, hidden_size)),
        make_activation(),
        initialise(nn.Linear(hidden_size, num_outputs), gain),
    )


def nature_cnn(image_shape: tuple):
    """Image to 512 features: the convolutions of the Nature DQN, doi 10.1038/nature14236."""
    if min(image_shape[1:]) < 36:
        fail(f"images of {image_shape} are too small for three convolutions: at least 36 x 36")
    layers, sizes = [], ((image_shape[0], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
    for channels_in, channels_out, kernel_size, stride in sizes:
        convolution = nn.Conv2d(channels_in, channels_out, kernel_size, stride)
        layers += [initialise(convolution), nn.ReLU(inplace=True)]
    layers.append(nn.Flatten())
    num_features = nn.Sequential(*layers)(torch.zeros(1, *image_shape)).shape[1]
    return nn.Sequential(*layers, initialise(nn.Linear(num_features, 512)), nn.ReLU(inplace=True))


def initialise(layer, gain: float = math.sqrt(2)):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far; buffers, so they are saved with the weights."""

    def __init__(self, shape: tuple):
        super().__init__()
        # float64: over millions of samples float32 drifts
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def update(self, x):
        """Merges the moments of x, (batch, *shape), exactly: Chan, Golub, LeVeque 1983, eq. 2.1."""
        x, n = torch.as_tensor(x, dtype=torch.float64, device=self.mean.device), len(x)
        delta, total = x.mean(dim=0) - self.mean, self.count + n
        squares = self.count * self.var + n * x.var(dim=0, correction=0)
        self.var.copy_((squares + delta**2 * self.count * n / total) / total)
        self.mean += delta * n / total
        self.count += n

    def std(self):
        return torch.sqrt(self.var + 1e-8)

    def normalised(self, x):  # (batch, *shape)
        return ((x - self.mean) / self.std()).clip(-10, 10).float()


# --------------------------------------------------------------------------------------------------
# The algorithm ends here. All below is plumbing, the same bytes in ppo.py, a2c.py, dqn.py, td3.py.
# It uses Args and what main is given. The algorithm uses fail, require_range and run's agent, rng,
# device, obs_space, obs, infos, last_step, start, step, log and end_iteration.


@dataclass
class RunArgs(Args):
    """The arguments of every script, whatever its algorithm."""

    config: str | None = None  # FILE.toml or FILE.toml:TABLE; `atari`: benchmarks/atari.toml.
    resume: str | None = None  # Continues the run in this folder exactly, from its last checkpoint.
    evaluate: str | None = None  # Plays as the agent of this run folder or .npz, trains nothing.
    exp_name: str = ""  # Names the run: its folder begins with it.
    env_kwargs: str = "{}"  # Arguments of the environment, as JSON: '{"gravity": -5.0}'.
    async_envs: bool = False  # Steps each environment in a process of its own: for slow ones.
    eval_episodes: int = 10  # Episodes of an evaluation, one in each of as many environments.
    eval_frequency: int = 0  # Steps between evaluations, best.npz keeps the best; 0: at the end.
    log_frequency: int = 500  # Steps between points of the curves, each the mean since the last.
    capture_video: bool = False  # Films an episode of each evaluation, into the run folder.
    episodic_life: bool = False  # Atari: for learning a lost life ends the episode, not the score.
    sticky_actions: float = 0.0  # Atari: probability that the game repeats the last action.
    init_weights: str | None = None  # Starts from the weights in this .npz file, matched by name.
    device: str = "auto"  # cpu, cuda, mps; auto: CUDA for images if there is any, else the CPU.
    torch_threads: int = 0  # CPU threads of torch; 0: all for images, one for vectors.
    runs_dir: str = "runs"  # Where run folders are made.


def fail(text):
    """Ends the script with exit status 2 and one line about what the user can fix."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(str(text).split())}", file=sys.stderr)
    sys.exit(2)


def require_range(args, names: str, low=0, high=math.inf):
    for name in names.split():
        value = getattr(args, name)  # or a tuple of them
        if value is not None and not low <= np.min(value) <= np.max(value) <= high:
            fail(f"{name}={value} must lie between {low} and {high}")


def parse_args(name: str, args_class, argv: list[str]):
    """The arguments typed, and for the others a config's table or those of a saved run."""
    text = sys.modules[args_class.__module__].__doc__ or name
    args = tyro.cli(args_class, args=argv, description=text.split("\n\n")[0])
    if args.resume and set(argv) - {"--resume", args.resume, f"--resume={args.resume}"}:
        fail("a resumed run keeps its arguments: give --resume alone")
    if args.resume and not Path(args.resume, "checkpoint.pt").exists():
        fail(f"{args.resume} has no checkpoint.pt, so it is finished or no run")
    flags = []  # so that tyro checks names and types; of a repeated flag the last one counts
    for field, value in saved_settings(name, args).items():
        if isinstance(value, bool):
            flags.append(f"--{field}" if value else f"--no-{field}")
        elif isinstance(value, list):
            flags += [f"--{field}", *map(str, value)]
        else:
            flags.append(f"--{field}={json.dumps(value) if isinstance(value, dict) else value}")
    args = tyro.cli(args_class, args=flags + argv)
    args.check()
    require_range(args, "eval_episodes log_frequency", low=1)
    require_range(args, "seed eval_frequency torch_threads")
    require_range(args, "sticky_actions", high=1)
    if args.env_id.startswith("ALE/"):
        if args.async_envs:
            fail("async_envs is not for Atari, whose games step side by side in any case")
    elif args.episodic_life or args.sticky_actions:
        fail(f"episodic_life and sticky_actions are for Atari's ALE/..., not for {args.env_id}")
    return args


def saved_settings(name: str, args: RunArgs) -> dict:
    """What --config, --resume or --evaluate name; nothing without them."""
    folder = args.evaluate if args.resume is None else args.resume
    if folder and folder.endswith(".npz"):  # without args.json beside it settings are typed
        folder = Path(folder).parent if Path(folder).with_name("args.json").exists() else None
    try:
        if args.config is not None:
            path, ext, table = re.fullmatch(r"(.+?)(\.toml)?(?::([\w-]+))?", args.config).groups()
            root = Path() if ext else Path(__file__).parents[1] / "benchmarks"
            return {**tomllib.loads((root / f"{path}.toml").read_text("utf-8-sig"))[table or name]}
        if folder is None:
            return {}
        about = json.loads(Path(folder, "args.json").read_text("utf-8-sig"))
        return about["args"] if about["algo"] == name else fail(f"{folder} is no {name} run")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fail(f"{args.config or folder}: {type(error).__name__}: {error}")


def make_env(env_id: str, **keywords):
    """One environment with vectors of float32, or with channel-first images of uint8."""
    if "BulletEnv-" in env_id:
        importlib.import_module("pybullet_envs_gymnasium")
    if "mujoco" in str(gym.registry.get(env_id)):
        mujoco = importlib.import_module("mujoco")
        # no MUJOCO_LOG.TXT, and nothing of what is deprecated in gymnasium's models
        mujoco.set_mju_user_warning(lambda text: "deprecated" in text or print(text))
    env = gym.make(env_id, **keywords)
    space, convert = env.observation_space, np.asarray
    if not space.is_np_flattenable or gym.spaces.flatdim(space) == 0:
        fail(f"environment {env_id}: its observations are empty or have no fixed size: {space}")
    if space.dtype == np.uint8 and len(space.shape) > 1:
        shape = channels_first(np.zeros(space.shape, np.uint8)).shape
        space = gym.spaces.Box(0, space.high.max(), shape, np.uint8)
        convert = channels_first
    else:
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
            env = gym.wrappers.FlattenObservation(env)  # Discrete becomes one-hot
        space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
    # a copy, since some environments write each observation into the same array
    copied = lambda obs: np.array(convert(obs), space.dtype)  # noqa: E731
    env = gym.wrappers.TransformObservation(env, copied, space)
    return gym.wrappers.TransformReward(env, lambda reward: np.asarray(reward).item())


def channels_first(image):
    """Grey (h, w), colour (h, w, c) or a stack (n, h, w, c) of them to (channels, h, w)."""
    image = np.asarray(image)
    if image.ndim > 2 and image.shape[-1] < min(image.shape[-3:-1]):  # channels last
        image = np.moveaxis(image, -1, -3)
    return image.reshape(-1, *image.shape[-2:])


def make_envs(args: RunArgs, num_envs: int, training: bool = True, make_env=make_env, **keywords):
    """A gym.vector.VectorEnv under same-step autoreset, of which Run uses this:

    reset(seed=[...]) -> obs, infos; step(actions) -> obs, rewards, terminated, truncated, infos;
    num_envs, single_observation_space (float32 vectors or uint8 images, channels first),
    single_action_space, close(), and for films envs[0].render().
    Where infos["_final_obs"], (num_envs,), is true, an episode ended, infos["final_obs"] has its
    last observation and obs the next one's first. All arrays are new at each step.
    """
    same_step = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    try:
        env_kwargs = json.loads(args.env_kwargs)
        if not isinstance(env_kwargs, dict):
            fail(f"env_kwargs={args.env_kwargs} must be a JSON object: names and values")
        keywords |= env_kwargs
        if not args.env_id.startswith("ALE/"):
            if args.async_envs and training:
                make = [lambda: InProcess(make_env(args.env_id, **keywords))] * num_envs
                return AsyncEnvs(make, **same_step)
            return SyncEnvs([lambda: make_env(args.env_id, **keywords)] * num_envs, **same_step)
        importlib.import_module("ale_py")
        # preprocessed as for the Nature DQN: no-ops at the start, four frames to an action, stacked
        settings = {"num_threads": min(args.torch_threads, num_envs), "reward_clipping": False}
        settings |= {"life_loss_info": args.episodic_life and training, **env_kwargs}
        settings |= {"repeat_action_probability": args.sticky_actions, **same_step}
        return AtariEnvs(gym.make_vec(args.env_id, num_envs, "vector_entry_point", **settings))
    except (gym.error.Error, ImportError, json.JSONDecodeError) as error:
        fail(f"environment {args.env_id}: {error}")
    except TypeError as error:
        if not keywords:
            raise
        fail(f"environment {args.env_id} with {keywords}: {error}")


class SyncEnvs(gym.vector.SyncVectorEnv):
    """Environments that are stepped one after the other; infos[i] is what number i says."""

    def _add_info(self, infos, info, i):  # gymnasium would merge them, which not all allow
        infos.setdefault(i, {}).update(info)
        return infos


class AsyncEnvs(gym.vector.AsyncVectorEnv):
    """The same numbers, from processes that step side by side."""

    _add_info = SyncEnvs._add_info

    def __del__(self):  # gymnasium would wait for one that died
        for process in getattr(self, "processes", []):
            process.terminate()


class InProcess(gym.Wrapper):
    """An environment in a process of its own, for AsyncEnvs."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training
            random.seed(seed)  # for an environment without a generator of its own
            np.random.seed(seed)
        return self.env.reset(seed=seed, options=options)


class AtariEnvs(gym.vector.VectorWrapper):
    """Games of ale_py. It sets `terminated` at a lost life, too, though the game goes on."""

    frames = 0  # (num_envs,): of each game so far

    def reset(self, *, seed, options=None):
        return self.env.reset(seed=np.int32(seed))

    def step(self, actions):
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        frames, self.frames = self.frames, infos["episode_frame_number"]
        over = (terminated | truncated) & (self.frames < frames)
        return obs, rewards, terminated, truncated, {**infos, "_final_obs": over}


def reset(envs, *entropy: int):
    """Resets with independent seeds that follow from `entropy`; returns observations and infos."""
    state = np.random.SeedSequence(entropy).generate_state(envs.num_envs)
    seeds = [int(s) >> 1 for s in state]  # 31 bits, the most that all environments take
    random.seed(seeds[0])  # for environments without a generator of their own
    np.random.seed(seeds[0])
    return envs.reset(seed=seeds)


def as_declared(actions, space):
    """Actions (n, ...), Discrete ones from 0, with the start, shape and dtype that `space` has."""
    if isinstance(space, gym.spaces.Tuple):  # a column for each
        return tuple(as_declared(actions[:, i], part) for i, part in enumerate(space))
    actions = actions.reshape(len(actions), *space.shape) + getattr(space, "start", 0)
    actions = actions.astype(space.dtype)
    return actions.clip(space.low, space.high) if isinstance(space, gym.spaces.Box) else actions


def write_file(path: Path, write):
    """All or nothing, even if the power fails: to another file, synced, then renamed."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class Run:
    """An agent, its environments, its folder, its curves and its checkpoints."""

    def __init__(self, name, args: RunArgs, make_agent, evaluation_policy, make_envs=make_envs):
        self.name, self.args, self.step_count = name, args, 0
        self.evaluation_policy, self.make_envs = evaluation_policy, make_envs
        if args.capture_video:  # now, rather than after hours of training
            envs = make_envs(args, args.eval_episodes, training=False, render_mode="rgb_array")
            try:
                _height, _width, *_ = self.frame(envs, reset(envs, args.seed)[0]).shape
            except Exception as error:
                fail(f"capture_video: {args.env_id} gives no picture: {error!r}")
            envs.close()
        num_envs = args.eval_episodes if args.evaluate else args.num_envs
        self.envs = make_envs(args, num_envs, training=not args.evaluate)
        self.obs_space = self.envs.single_observation_space
        action_space = self.envs.single_action_space
        kind = len(self.obs_space.shape), self.obs_space.dtype
        if kind not in ((1, np.float32), (3, np.uint8)):  # of environments by another make_envs
            fail(f"observations must be float32 vectors or uint8 images, not {self.obs_space}")
        mode = getattr(self.envs, "metadata", {}).get("autoreset_mode")
        if mode not in (None, gym.vector.AutoresetMode.SAME_STEP):
            fail(f"environments must have gym.vector.AutoresetMode.SAME_STEP, not {mode}")
        images = len(self.obs_space.shape) == 3
        if args.device == "auto":
            args.device = "cuda" if images and torch.cuda.is_available() else "cpu"
        try:
            self.device = torch.zeros(1, device=args.device).device
        except (RuntimeError, AssertionError) as error:
            fail(f"--device {args.device}: {error}")
        args.torch_threads = args.torch_threads or (torch.get_num_threads() if images else 1)
        torch.set_num_threads(args.torch_threads)
        torch.backends.cudnn.deterministic = True
        torch.set_flush_denormal(True)  # what Adam remembers of silent units drags a CPU
        torch.manual_seed(args.seed)
        self.rng = np.random.default_rng(args.seed)
        agent = make_agent(args, self.obs_space, action_space)
        self.agent, agent.device = agent.to(self.device), self.device
        self.bounds = {}  # in weights.npz, so that it says by itself what its actions mean
        if isinstance(action_space, gym.spaces.Box):
            self.bounds = {"action_low": action_space.low, "action_high": action_space.high}
        path, self.folder = args.init_weights, args.resume
        if args.evaluate:
            path = Path(args.evaluate)
            path = path if path.suffix == ".npz" else path / "weights.npz"
            self.folder = path.parent
        if path is not None and not args.resume:
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    names = set(arrays) - set(self.bounds)
                    agent.load_state_dict({k: torch.as_tensor(arrays[k]) for k in names})
            except Exception as error:
                fail(f"{path}: {error}")
        # a checkpoint always ends an iteration, so that no half-filled rollout must be saved
        iterations = math.ceil(args.checkpoint_frequency / args.iteration_steps)
        self.checkpoint_steps = iterations * args.iteration_steps  # from one to the next
        self.returns, self.lengths = np.zeros((2, args.num_envs))
        # since the last point of the curves (return, length) of episodes; sum, number of scalars
        self.finished, self.scalars = [], {}
        self.best_return = -math.inf  # of the evaluations so far
        self.folder = Path(self.folder or self.make_folder())

    def make_folder(self) -> Path:
        """A new folder, numbered where runs of one seed start in the same second."""
        args = self.args
        name = f"{args.exp_name}-{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}".lstrip("-")
        folder = Path(args.runs_dir, re.sub("[/:]", "-", args.env_id), self.name, name)
        for number in range(2, 10_000):
            try:
                folder.mkdir(parents=True)
                return folder
            except FileExistsError:
                folder = folder.with_name(f"{name}-{number}")
            except OSError as error:
                fail(error)

    def start(self, **parts) -> int:
        """Begins or resumes; checkpoints keep `parts`. Returns the step."""
        args, self.parts, self.started = self.args, parts, time.perf_counter()
        if args.resume:
            numpy_scalar = [np._core.multiarray.scalar, np.dtype, np.dtypes.Float64DType]
            torch.serialization.add_safe_globals(numpy_scalar)  # schedules by NumPy leave one
            saved = torch.load(self.folder / "checkpoint.pt", map_location="cpu", weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(saved["parts"][name])
            self.rng.bit_generator.state = saved["rng"]
            torch.set_rng_state(saved["torch_rng"])
            self.step_count, self.best_return = saved["step"], saved["best_return"]
            self.started -= saved["seconds"]
        # TensorBoard drops what a process that was killed logged after its last checkpoint
        purge_step = self.step_count + 1 if args.resume else None
        self.writer = SummaryWriter(self.folder, purge_step=purge_step)
        if not args.resume:
            self.save()
            torch.load(self.folder / "checkpoint.pt", weights_only=True)  # fails now, not later
            self.describe()  # args.json comes last: a folder that has it can be resumed
            parse_args(self.name, type(args), ["--resume", str(self.folder)])  # as does this
            self.started = time.perf_counter()
        print(f"{args.env_id}, seed {args.seed}, on {self.device}: {self.folder}", flush=True)
        self.last_step = step = self.step_count
        seconds = 0.1 if sys.stderr.isatty() else 30  # between lines, in a file
        progress = {"total": args.total_timesteps, "initial": step, "unit": " steps"}
        self.bar = tqdm(**progress, leave=False, mininterval=seconds)
        self.obs, self.infos = reset(self.envs, args.seed, step)
        return step

    def describe(self):
        """Writes the settings for TensorBoard's HParams, and args.json, which repeats the run."""
        settings = asdict(self.args)
        plain = {k: v if isinstance(v, int | float) else str(v) for k, v in settings.items()}
        self.writer.file_writer.add_summary(hparams({"algo": self.name, **plain}, {})[1])
        classes = type(self.args).__mro__[:-1]  # one of a notebook has no file
        files = {getattr(sys.modules[c.__module__], "__file__", __file__) for c in classes}
        code = b"".join(Path(file).read_bytes() for file in sorted(files))
        versions = {module.__name__: module.__version__ for module in (torch, np, gym)}
        about = {"algo": self.name, "args": settings, "command": shlex.join(["python", *sys.argv])}
        about["versions"] = versions | {"script": hashlib.sha256(code).hexdigest()}
        text = json.dumps(about, indent=2, default=str) + "\n"
        write_file(self.folder / "args.json", lambda file: file.write(text.encode()))

    def step(self, actions):
        """Steps every environment. Returns next_obs, rewards, terminated, truncated, one row each.

        `obs` then is what to act on: next_obs, but after an end the new episode's first. infos[i]
        is what environment i said; after an end that is of the reset, and in "final_info" the rest
        (at a checkpoint, which resets all, infos["final_info"] is what all had said).
        """
        args, actions = self.args, as_declared(actions, self.envs.single_action_space)
        self.obs, rewards, terminated, truncated, self.infos = self.envs.step(actions)
        self.step_count += args.num_envs
        if not np.isfinite(rewards).all():
            raise FloatingPointError(f"reward not finite at step {self.step_count}: {rewards}")
        self.returns += rewards
        self.lengths += 1
        ended = np.flatnonzero(self.infos.get("_final_obs", terminated | truncated))
        next_obs = self.obs.copy() if len(ended) else self.obs
        for i in ended:
            apart = "final_obs" not in self.infos  # see SyncEnvs
            next_obs[i] = self.infos[i]["final_obs"] if apart else self.infos["final_obs"][i]
            self.finished.append((self.returns[i], self.lengths[i]))
            self.returns[i] = self.lengths[i] = 0
        if self.step_count % self.checkpoint_steps == 0:
            # every episode begins anew, in new environments with seeds that follow from the step:
            # so a run that is resumed here needs nothing of the environments that were
            self.envs.close()
            self.envs = self.make_envs(args, args.num_envs)
            self.obs, infos = reset(self.envs, args.seed, self.step_count)
            self.infos = {**infos, "final_info": self.infos}
            self.returns[:] = self.lengths[:] = 0
            truncated = ~terminated
        return next_obs, rewards.astype(np.float32), terminated, truncated

    def log(self, scalars: dict):
        """Numbers or tensors for the means of the next point of the curves. Of losses all must be
        finite; others may be NaN, as a success rate without an episode, and are left out.
        """
        for name, value in scalars.items():
            if name.startswith("losses/") or math.isfinite(value):
                total, count = self.scalars.get(name, (0.0, 0))
                self.scalars[name] = total + value, count + 1

    def end_iteration(self, scalars: dict) -> int:
        """Logs, evaluates and saves what is due. Returns the step."""
        step, args = self.step_count, self.args
        self.log(scalars)
        saves, ends = self.due(self.checkpoint_steps), step >= args.total_timesteps
        if saves or ends or self.due(args.log_frequency):
            means = {name: float(total) / count for name, (total, count) in self.scalars.items()}
            means["charts/SPS"] = step / (time.perf_counter() - self.started)
            if self.finished:
                returns, lengths = np.mean(self.finished, axis=0)
                means |= {"charts/episodic_return": returns, "charts/episodic_length": lengths}
                self.bar.set_postfix_str(f"return {returns:.1f}", refresh=False)
            self.finished, self.scalars = [], {}
            for name, value in means.items():
                if math.isfinite(value):
                    self.writer.add_scalar(name, value, step)
                elif name.startswith("losses/"):
                    raise FloatingPointError(f"{name} not finite at step {step}: {means}")
        if self.due(args.eval_frequency) and not ends:
            self.log_evaluation()
        if saves:
            self.save()
        self.bar.update(step - self.last_step)
        self.last_step = step
        return step

    def due(self, every: int) -> bool:  # whether a multiple of it lies in this iteration; 0: never
        return every > 0 and self.step_count // every > self.last_step // every

    def frame(self, envs, obs):  # of the film; a game as the agent sees it: 84 x 84, grey
        return obs[0, -1] if self.args.env_id.startswith("ALE/") else envs.envs[0].render()

    def log_evaluation(self):
        """Evaluates. With --eval-frequency best.npz has the weights of the highest mean return."""
        returns = self.evaluate()
        self.writer.add_scalar("eval/episodic_return", returns.mean(), self.step_count)
        if self.args.eval_frequency and returns.mean() > self.best_return:
            self.best_return = returns.mean().item()
            self.save_weights("best.npz")
        return returns

    def evaluate(self):
        """Returns of one episode in each of `eval_episodes` environments; films the first."""
        args, video = self.args, None
        shared = random.getstate(), np.random.get_state(), torch.get_rng_state()  # training's, too
        drawn = {"render_mode": "rgb_array"} if args.capture_video else {}
        envs = self.make_envs(args, args.eval_episodes, training=False, **drawn)
        if args.capture_video:
            name = "evaluation" if args.evaluate else f"step-{self.step_count}"
            film = self.folder / "videos" / f"{name}-seed-{args.seed}.mp4"
            film.parent.mkdir(exist_ok=True)
            video = importlib.import_module("imageio").get_writer(film, fps=30, macro_block_size=2)
        (obs, _), rng = reset(envs, args.seed, 0, 1), np.random.default_rng([args.seed, 1, 1])
        torch.default_generator.manual_seed(args.seed)
        self.agent.eval()
        choose_actions = self.evaluation_policy(self.agent, rng, args)
        returns, playing = np.zeros(args.eval_episodes), np.ones(args.eval_episodes, np.bool_)
        for _ in range(100_000):  # an episode might not end
            if video and playing[0]:
                video.append_data(self.frame(envs, obs))
            actions = as_declared(choose_actions(obs), envs.single_action_space)
            obs, rewards, terminated, truncated, _ = envs.step(actions)
            returns += rewards * playing
            playing &= ~(terminated | truncated)
            if not playing.any():
                break
        else:
            print(f"evaluation   {playing.sum()} episodes cut after 100,000 steps")
        envs.close()
        if video:
            video.close()
        random.setstate(shared[0])
        np.random.set_state(shared[1])
        torch.set_rng_state(shared[2])
        return returns

    def arrays(self) -> dict:
        """What weights.npz holds: parameters, buffers that acting needs, bounds of actions."""
        tensors = self.agent.state_dict().items()
        return {name: tensor.cpu().numpy() for name, tensor in tensors} | self.bounds

    def hash(self) -> str:
        """SHA-256 over the names and arrays of weights.npz."""
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def save(self):
        """Writes weights.npz and checkpoint.pt, after everything logged so far is in its file."""
        self.writer.flush()
        checkpoint = {
            "step": self.step_count,
            "seconds": time.perf_counter() - self.started,
            "rng": self.rng.bit_generator.state,
            "torch_rng": torch.get_rng_state(),
            "best_return": self.best_return,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
        }
        self.save_weights("weights.npz")
        write_file(self.folder / "checkpoint.pt", lambda file: torch.save(checkpoint, file))

    def save_weights(self, name: str):
        write_file(self.folder / name, lambda file: np.savez(file, **self.arrays()))

    def finish(self):
        """Evaluates, writes weights.npz and result.json, and prints the result."""
        self.bar.close()
        steps, seconds = self.step_count, time.perf_counter() - self.started
        self.save()
        self.envs.close()  # before the evaluation: of some simulators only one can run
        returns = self.log_evaluation()
        self.writer.close()
        result = {"env_id": self.args.env_id, "algo": self.name, "seed": self.args.seed}
        result |= {"steps": steps, "seconds": round(seconds, 2), "sps": round(steps / seconds)}
        result |= {"eval_return_mean": returns.mean(), "eval_return_std": returns.std()}
        result |= {"eval_episodes": len(returns), "run_hash": self.hash()}
        text = json.dumps(result, indent=2)
        write_file(self.folder / "result.json", lambda file: file.write(f"{text}\n".encode()))
        (self.folder / "checkpoint.pt").unlink()  # with a replay buffer it is large
        print(f"trained      {steps:,} steps in {seconds:.1f} s, {steps / seconds:,.0f} steps/s")
        self.print_result(returns)

    def print_result(self, returns):
        print(f"evaluation   return {returns.mean():.1f} +- {returns.std():.1f}")
        print(f"run folder   {self.folder}")
        print(f"TensorBoard  tensorboard --logdir {shlex.quote(self.args.runs_dir)}")
        print(f"run hash     {self.hash()}")


def main(name, args_class, make_agent, train, evaluation_policy, make_envs=make_envs):
    """Runs a script. make_agent(args, obs_space, action_space) makes its module, train(args, run)
    trains it, evaluation_policy(agent, rng, args) makes a function from observations to actions.
    """
    args = parse_args(name, args_class, sys.argv[1:])
    run = Run(name, args, make_agent, evaluation_policy, make_envs)
    if run.args.evaluate:
        run.envs.close()
        return run.print_result(run.evaluate())
    resume = f"to resume: {shlex.join(['python', sys.argv[0], '--resume', str(run.folder)])}"
    try:
        train(run.args, run)
        run.finish()
    except KeyboardInterrupt:
        print(f"\nstopped; {resume}", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # Python prints the note below the traceback
        error.add_note(resume)
        raise


# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "gymnasium==1.4.0", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "pygame-ce==2.5.8", "box2d==2.3.10", "mujoco==4.0.0",
#   "ale-py==0.12.1", "imageio==2.38.1", "imageio-ffmpeg==0.8.1"]
# ///

if __name__ == "__main__":
    main("ppo", RunArgs, make_agent, train, evaluation_policy)
