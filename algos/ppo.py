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

import collections
import contextlib
import copy
import fcntl
import hashlib
import importlib
import inspect
import io
import json
import math
import multiprocessing.connection
import os
import pickle
import random
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
import tomllib
import traceback
import zipfile
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, create_empty_array
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
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
    gae_lambda: float = 0.8  # 0: one-step TD error; 1: return to the rollout's end, less V.
    num_minibatches: int = 1  # Minibatches in one epoch.
    update_epochs: int = 10  # Passes over each rollout.
    norm_adv: bool = True  # Normalises advantages in each minibatch to mean 0 and deviation 1.
    clip_coef: float = 0.2  # The ratio of new to old probability is clipped to 1 +- this.
    anneal_clip: bool = True  # Lowers clip_coef linearly to 0.
    clip_vloss: bool = False  # Clips the change of the value, too, by clip_coef [units of return].
    ent_coef: float = 0.0  # Weight of the entropy bonus.
    vf_coef: float = 0.5  # Weight of the value loss.
    max_grad_norm: float = 0.5  # Largest norm of the gradient of all parameters together.
    target_kl: float | None = None  # An epoch with a mean KL above it is the last one [nats].
    norm_obs: bool = False  # Normalises vectors by earlier rollouts' moments, clips them to +-10.
    norm_reward: bool = False  # Divides rewards by the deviation of returns, clips them to +-10.
    clip_reward: bool = False  # Learns from the sign of the reward; logged returns are not clipped.
    episodic_life: bool = False  # Atari: learns as if a lost life ended the episode; scores go on.
    sticky_actions: float = 0.0  # Atari: probability that the game repeats the last action.
    bf16: bool = False  # Images: convolutions in bfloat16, slow on a CPU without support for it.
    hidden_size: int = 64  # Width of both hidden layers of a network for vectors.
    activation: Literal["tanh", "relu"] = "tanh"  # After each of those layers.
    log_std_init: float = 0.0  # Continuous actions: log of the deviation [half their range].
    # a run resumes exactly without the state of its environments: so episodes end at a checkpoint
    checkpoint_frequency: int = 100_000  # Steps between checkpoints; each ends running episodes.

    def check(self):
        check_games(self)
        require_range(self, "total_timesteps num_envs num_steps num_minibatches", low=1)
        require_range(self, "update_epochs hidden_size checkpoint_frequency", low=1)
        require_range(self, "learning_rate clip_coef ent_coef vf_coef target_kl max_grad_norm")
        require_range(self, "gamma gae_lambda", high=1)
        if self.total_timesteps % self.num_envs:
            fail(f"num_envs={self.num_envs} must divide total_timesteps={self.total_timesteps}")
        if (steps := self.iteration_steps) % self.num_minibatches:
            fail(f"num_minibatches={self.num_minibatches} must divide num_envs * num_steps={steps}")

    @property
    def iteration_steps(self) -> int:  # steps of all environments from one update to the next
        return self.num_envs * self.num_steps


def train(args, run, optimizer=None, collect=None, make_batch=None, loss_of=None, parts=None):
    """Rollout, update, repeat. `run` has the agent, the environments and a generator: see Run. The
    rest is for variants, such as ppo_lstm.py: functions of their own, and `parts`, which
    checkpoints keep by name.
    """
    collect = collect or collect_step
    make_batch = make_batch or rollout_batch
    loss_of = loss_of or ppo_loss
    agent = run.agent
    if optimizer is None:
        # eps 1e-5, as in openai/baselines: with 1e-8 even a gradient of 1e-7 moves a weight by lr
        adam = {"lr": args.learning_rate, "eps": 1e-5, "fused": True}
        optimizer = torch.optim.Adam(agent.parameters(), **adam)
    first_rates = [group["lr"] for group in optimizer.param_groups]  # before annealing
    # for norm_reward: each running episode's discounted rewards so far; no checkpoint keeps
    # them, since every episode ends there
    running_returns = np.zeros(args.num_envs)
    step = run.start(agent=agent, optimizer=optimizer, **(parts or {}))
    while step < args.total_timesteps:
        remaining = linear_schedule(1.0, 0.0, args.total_timesteps, step)
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)
        if args.anneal_lr:
            for group, rate in zip(optimizer.param_groups, first_rates, strict=True):
                group["lr"] = rate * remaining

        agent.eval()  # dropout, for example, is for learning alone
        buffer = RolloutBuffer()
        # num_envs; in ppo_parallel.py those of all ranks
        steps_at_once = args.iteration_steps // args.num_steps
        steps_left = max(1, (args.total_timesteps - step) // steps_at_once)
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
    """One step of every environment, as the buffer keeps it: arrays (num_envs, ...) by name.

    next_obs is what the actions led to, even at an episode's end, where run.obs is already the
    first of the next.
    """
    obs = run.obs
    actions = agent.act(obs, run.rng)
    next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))
    if args.clip_reward:
        rewards = np.sign(rewards)
    return {
        "obs": obs,
        "actions": actions,
        "rewards": rewards,
        "next_obs": next_obs,
        "terminated": terminated,
        "truncated": truncated,
    }


@torch.no_grad()
def rollout_batch(agent, buffer, args, running_returns):
    """The rollout as tensors, (steps * envs, ...), and the running returns for the next one."""

    def flat(array):  # (steps, envs, ...) -> (steps * envs, ...)
        return torch.as_tensor(array, device=agent.device).flatten(0, 1)

    batch = {"obs": flat(buffer["obs"]), "actions": flat(buffer["actions"])}
    if agent.sees_images:  # the layout that `features` needs, made once for all
        batch["obs"] = batch["obs"].contiguous(memory_format=torch.channels_last)
    # in one pass, not step by step while acting: the weights are still those that acted
    batch["log_probs"], _, batch["values"] = agent.evaluate_actions(batch)
    values = batch["values"].cpu().numpy().reshape(-1, args.num_envs)
    # V(s') separately: where an episode was cut, next_obs is not the next row's obs
    next_values = agent.value(agent.features(flat(buffer["next_obs"])))
    next_values = next_values.cpu().numpy().reshape(-1, args.num_envs)
    advantages, running_returns = rollout_advantages(
        agent, buffer, values, next_values, args, running_returns
    )
    batch["advantages"] = flat(advantages)
    batch["returns"] = batch["advantages"] + batch["values"]  # A = R - V: the critic learns R
    return batch, running_returns


def rollout_advantages(agent, buffer, values, next_values, args, running_returns):
    """GAE of a rollout, (steps, envs), and the running returns for the next one, (envs,).

    values, next_values (steps, envs): V of obs, and of next_obs.
    """
    rewards, terminated, truncated = buffer["rewards"], buffer["terminated"], buffer["truncated"]
    ended = terminated | truncated
    if args.norm_reward:
        sums, running_returns = discounted_returns(rewards, ended, args.gamma, running_returns)
        agent.return_moments.update(sums.reshape(-1))
        rewards = np.clip(rewards / agent.return_moments.std().item(), -10, 10)
    advantages = gae(
        rewards, values, next_values, terminated, truncated, args.gamma, args.gae_lambda
    )
    return advantages, running_returns


def update(agent, optimizer, batch, args, clip_coef, rng, loss_of):
    """Epochs of gradient steps on a rollout. Returns scalars for the curves."""
    batch_size = len(batch["obs"])
    rows = {name: len(tensor) for name, tensor in batch.items()}
    assert set(rows.values()) == {batch_size}, rows
    num_steps = batch["advantages"].numel()  # not batch_size: in ppo_lstm.py a row is a sequence
    # fewer minibatches in a short last rollout: norm_adv's deviation needs two steps in each
    num_minibatches = max(1, min(args.num_minibatches, num_steps // 2))
    losses = {}  # by name, those of all minibatches of all epochs
    for _ in range(args.update_epochs):
        log_ratios = []
        for chosen in np.array_split(rng.permutation(batch_size), num_minibatches):
            chosen = torch.as_tensor(chosen, device=agent.device)
            minibatch = {name: tensor[chosen] for name, tensor in batch.items()}
            loss, terms, log_ratio = loss_of(agent, minibatch, args, clip_coef)
            optimizer.zero_grad()
            agent.zero_grad()  # or the norm would include another optimizer's gradients
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
            for name, term in terms.items():
                term = torch.as_tensor(term, dtype=torch.float32, device=agent.device)
                losses.setdefault(name, []).append(term.detach())
            log_ratios.append(log_ratio.detach())
        log_ratios = torch.cat(log_ratios)  # of one whole epoch
        kl = approx_kl(log_ratios).item()
        if args.target_kl is not None and kl > args.target_kl:
            break
    clipped = (log_ratios.exp() - 1).abs() > clip_coef  # as kl: of the last epoch alone
    scalars = {"approx_kl": kl, "clipfrac": clipped.float().mean().item()}
    values = batch["values"].cpu().numpy()
    returns = batch["returns"].cpu().numpy()
    scalars["explained_variance"] = explained_variance(values, returns)
    scalars |= {name: torch.stack(terms).mean().item() for name, terms in losses.items()}
    return {f"losses/{name}": value for name, value in scalars.items()}


def ppo_loss(agent, minibatch, args, clip_coef):
    """The loss of a minibatch, its terms by name (all scalars), and log(new / old), (batch,)."""
    advantages = minibatch["advantages"]
    if args.norm_adv and advantages.numel() > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_probs, entropies, values = agent.evaluate_actions(minibatch)
    entropy = entropies.mean()
    log_ratio = log_probs - minibatch["log_probs"]
    policy_loss = clipped_policy_loss(log_ratio, advantages, clip_coef)
    value_clip = clip_coef if args.clip_vloss else None
    v_loss = value_loss(values, minibatch["values"], minibatch["returns"], value_clip)
    loss = policy_loss + args.vf_coef * v_loss
    if args.ent_coef > 0:  # else its backward pass would be wasted
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
    shapes = [x.shape for x in (rewards, values, next_values, terminated, truncated)]
    assert len(set(shapes)) == 1, shapes
    next_values = np.where(terminated, 0, next_values)  # not by a product: 0 * NaN is NaN
    deltas = rewards + gamma * next_values - values
    decays = gamma * gae_lambda * ~(terminated | truncated)
    advantages = np.zeros_like(deltas)
    advantage = 0.0
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages


def discounted_returns(rewards, ended, gamma, running):
    """The rewards of an episode up to each step, discounted backwards: sum_k gamma^k r_{t-k}. Their
    deviation scales rewards. Also `running` for the next call: the last sums, 0 after an end.
    rewards, ended (steps, envs); running (envs,).
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
    mean, action (batch, action_dim), log_std (action_dim,), or of each state (batch, action_dim)
    -> (batch,), (batch,).
    """
    shapes = mean.shape, log_std.shape, action.shape
    assert mean.shape == action.shape and log_std.shape in (mean.shape, mean.shape[1:]), shapes
    z = (action - mean) / log_std.exp()
    log_prob = (-0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=1)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)
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
        self.transitions = []

    def add(self, **transition):  # arrays (num_envs, ...) by name
        assert len({len(array) for array in transition.values()}) == 1, transition
        # copies, since what a loop keeps of an environment may be changed in place
        self.transitions.append({name: np.array(array) for name, array in transition.items()})

    def __getitem__(self, name):
        return np.stack([transition[name] for transition in self.transitions])


class Agent(nn.Module):
    """A stochastic policy and a state value: two networks for vectors, two heads on one for images.
    Acting and learning both use `features`, `policy` and `value`: to change the agent, edit these.

    Discrete actions are categorical, continuous ones Gaussian, in half ranges: 0 is the middle
    between a dimension's bounds, 1 the upper one; without bounds, in the environment's own units.
    """

    def __init__(self, args: Args, obs_space, action_space):
        super().__init__()
        self.device = torch.device("cpu")  # until Run moves it
        self.discrete = isinstance(action_space, gym.spaces.Discrete)
        self.sees_images = len(obs_space.shape) == 3
        self.bf16 = args.bf16
        self.pixel_max = float(obs_space.high.max())  # 255, but 1 where pixels are on or off
        num_outputs = int(action_space.n) if self.discrete else math.prod(action_space.shape)
        self.make_networks(args, obs_space.shape, num_outputs)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((num_outputs,), args.log_std_init))
            low, high = np.float64([action_space.low, action_space.high]).reshape(2, -1)
            with np.errstate(all="ignore"):  # of infinite bounds
                bounded = high - low < np.finfo(np.float32).max  # which some use for infinity
                # without bounds: the environment's units, from 0 or the bound nearest to it
                self.middle = np.where(bounded, (low + high) / 2, np.clip(0, low, high))
                self.half_range = np.where(bounded, (high - low) / 2, 1)
            self.low = low
            self.high = high
        self.obs_moments = RunningMoments(obs_space.shape) if args.norm_obs else None
        self.return_moments = RunningMoments(()) if args.norm_reward else None

    def make_networks(self, args, input_shape, num_outputs):
        # with the gain of 0.01 the first policy hardly depends on the observation
        if self.sees_images:
            self.trunk = nature_cnn(input_shape)
            self.actor = initialise(nn.Linear(512, num_outputs), 0.01)
            self.critic = initialise(nn.Linear(512, 1), 1.0)
        else:
            self.actor = mlp(*input_shape, args.hidden_size, args.activation, num_outputs, 0.01)
            self.critic = mlp(*input_shape, args.hidden_size, args.activation, 1, gain=1.0)

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

    def sample(self, outputs, rng, greedy=False):  # outputs of `policy` -> actions
        if greedy:
            return outputs.argmax(dim=1) if self.discrete else outputs
        draw = rng.gumbel if self.discrete else rng.standard_normal
        noise = draw(size=outputs.shape)  # by NumPy: the same on every device
        noise = torch.as_tensor(noise, dtype=torch.float32, device=outputs.device)
        if self.discrete:  # Gumbel-max: the argmax of logits plus Gumbel noise samples the softmax
            return (outputs + noise).argmax(dim=1)
        return outputs + self.log_std.exp() * noise

    def log_prob_and_entropy(self, outputs, actions):  # outputs of `policy` -> (batch,), (batch,)
        if self.discrete:
            return categorical_log_prob_and_entropy(outputs, actions)
        return gaussian_log_prob_and_entropy(outputs, self.log_std, actions)

    def evaluate_actions(self, batch):
        """log pi(a), entropy and V of the steps in `batch`, (batch,) each."""
        features = self.features(batch["obs"])
        log_probs, entropies = self.log_prob_and_entropy(self.policy(features), batch["actions"])
        return log_probs, entropies, self.value(features)

    def to_env(self, actions):
        """Scales and clips `actions` for the environment; log-probabilities use the unclipped."""
        if self.discrete:
            return actions
        return (self.middle + self.half_range * actions).clip(self.low, self.high)


def make_agent(args, obs_space, action_space, agent_class=Agent):
    continuous = isinstance(action_space, gym.spaces.Box) and action_space.dtype.kind == "f"
    if not continuous and not isinstance(action_space, gym.spaces.Discrete):
        several = "ppo_multidiscrete.py takes several choices, ppo_hybrid.py a Tuple or a Dict"
        fail(f"actions must be Discrete or a Box of real numbers, not {action_space}; {several}")
    images = len(obs_space.shape) == 3
    if (args.bf16 and not images) or (args.norm_obs and images):
        fail(f"bf16 is for images, norm_obs for vectors, not for {obs_space}")
    if isinstance(action_space, gym.spaces.Discrete):
        refuse_typed(args, "log_std_init", "with discrete actions")
    if images and agent_class is Agent:  # another one may use them
        refuse_typed(args, "hidden_size activation", "with images")
    return agent_class(args, obs_space, action_space)


def evaluation_policy(agent, rng, args):  # made anew for each evaluation: a memory starts empty
    greedy = not is_game(args.env_id)  # in a game a greedy agent can stall for ever
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
        flat = "or gym.wrappers.FlattenObservation in make_env"
        fail(f"images of {image_shape} are too small for convolutions: 36 x 36 at least, {flat}")
    layers = []
    sizes = (image_shape[0], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1)
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
        x = torch.as_tensor(x, dtype=torch.float64, device=self.mean.device)
        n = len(x)
        total = self.count + n
        delta = x.mean(dim=0) - self.mean
        squares = self.count * self.var + n * x.var(dim=0, correction=0)
        self.var.copy_((squares + delta**2 * self.count * n / total) / total)
        self.mean += delta * n / total
        self.count += n

    def std(self):
        return torch.sqrt(self.var + 1e-8)

    def normalised(self, x):  # (batch, *shape)
        return ((x - self.mean) / self.std()).clip(-10, 10).float()


# --------------------------------------------------------------------------------------------------
# The algorithm ends here. First environments: the same bytes in ppo.py, a2c.py and dqn.py.


def make_env(env_id: str, **keywords):
    """One environment with vectors of float32, or with channel-first images of uint8."""
    before_making(env_id)
    env = gym.make(env_id, **keywords)
    space = env.observation_space
    image = isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1
    if not image or 0 in space.shape:
        with closed_on_error([env]):
            return as_vectors(env)
    shape = channels_first(np.zeros(space.shape, np.uint8)).shape
    space = gym.spaces.Box(0, space.high.max(), shape, np.uint8)
    return Converted(env, channels_first, space)


def channels_first(image):
    """Grey (h, w), colour (h, w, c) or a stack (n, h, w, c) of them to (channels, h, w)."""
    image = np.asarray(image)
    if image.ndim > 2:
        height, width, channels = image.shape[-3:]  # if channels come last
        if channels < min(height, width) or height == width != channels:
            image = np.moveaxis(image, -1, -3)
    return image.reshape(-1, *image.shape[-2:])


def make_envs(args, num_envs: int, training: bool = True, make_env=make_env, **keywords):
    """A gym.vector.VectorEnv under same-step autoreset. A batched simulator may take its place."""
    if is_game(args.env_id):
        keywords = json.loads(args.env_kwargs) | keywords
        if keywords.pop("render_mode", None) == "human":  # AtariEnvs.render needs no other
            fail(f"{args.env_id} opens no window, but --capture-video films it")
        with one_line_errors(args.env_id, keywords):
            return make_games(args, num_envs, training, **keywords)
    return side_by_side(args, num_envs, make_env, keywords)


def is_game(env_id: str) -> bool:  # of Atari, which is preprocessed as for the Nature DQN
    return env_id.startswith("ALE/")


def check_games(args):
    """Ends the script where an argument is for Atari's games alone, or not for them."""
    require_range(args, "sticky_actions", high=1)
    if is_game(args.env_id) and args.async_envs:
        fail("async_envs is not for Atari, whose games step side by side in any case")
    if not is_game(args.env_id) and (args.episodic_life or args.sticky_actions):
        fail(f"episodic_life and sticky_actions are for Atari's ALE/..., not for {args.env_id}")


def make_games(args, num_envs: int, training: bool, **env_kwargs):
    importlib.import_module("ale_py")
    settings = {
        "num_threads": min(args.torch_threads, num_envs),
        "reward_clipping": False,
        "life_loss_info": args.episodic_life and training,
        "repeat_action_probability": args.sticky_actions,
        "autoreset_mode": SAME_STEP,
    }
    if taken := ", ".join(sorted(settings.keys() & env_kwargs.keys())):
        fail(f"environment {args.env_id}: {taken} follows from the script's own arguments")
    # no-ops at the start, four frames to an action; the pictures of four actions are stacked
    envs = gym.make_vec(args.env_id, num_envs, "vector_entry_point", **settings | env_kwargs)
    return AtariEnvs(envs)


class AtariEnvs(gym.vector.VectorWrapper):
    """Games of ale_py. It sets `terminated` at a lost life, too, though the game goes on."""

    frames = 0  # of each game so far, (num_envs,) from the first step on

    def reset(self, *, seed=None, options=None):
        seeds = np.int32(seed) if isinstance(seed, list) else seed
        self.obs, infos = self.env.reset(seed=seeds)
        return self.obs, infos

    def step(self, actions):
        frames = self.frames
        self.obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self.frames = infos["episode_frame_number"]
        # frames count from 0 again in a new game alone, not after a lost life
        over = (terminated | truncated) & (self.frames < frames)
        return self.obs, rewards, terminated, truncated, {**infos, "_final_obs": over}

    @property
    def envs(self):  # films use the first
        return [self]

    def render(self):  # the first game as the agent sees it: 84 x 84, grey
        return self.obs[0, -1]


# --------------------------------------------------------------------------------------------------
# Below is what every run needs: the same bytes in ppo.py, a2c.py, dqn.py and td3.py.
#
# It uses Args, make_envs and what main is given. What stands above it may use
# - fail, require_range, refuse_typed;
# - before_making, as_vectors, Converted, closed_on_error, one_line_errors, side_by_side, for
#   environments;
# - run's agent, rng, device, obs_space, obs, infos, next_infos, step_count, start, step, log and
#   end_iteration.


@dataclass
class RunArgs(Args):
    """The arguments of every script, whatever its algorithm."""

    config: str | None = None  # FILE.toml or FILE.toml:TABLE; `atari`: benchmarks/atari.toml.
    resume: str | None = None  # Continues the run in this folder exactly, from its last checkpoint.
    evaluate: str | None = None  # Plays as the agent of this run folder or .npz, trains nothing.
    exp_name: str = ""  # Names the run: its folder begins with it.
    env_kwargs: str = "{}"  # Arguments of the environment, as JSON: '{"gravity": -5.0}'.
    async_envs: bool = False  # Steps each environment in a process of its own: for slow ones.
    env_timeout: float = 600.0  # Longest time that such a process may take for an answer [s].
    eval_episodes: int = 10  # Episodes of an evaluation, one in each of as many environments.
    eval_max_steps: int = 27_000  # Steps after which an evaluation cuts an episode, as Atari does.
    eval_frequency: int = 0  # Steps between evaluations, best.npz keeps the best; 0: at the end.
    log_frequency: int = 500  # Steps between points of the curves, each the mean since the last.
    capture_video: bool = False  # Films an episode of each evaluation, into the run folder.
    init_weights: str | None = None  # Starts from the weights in this .npz file or run folder.
    device: str = "auto"  # cpu, cuda, mps; auto: CUDA for images if there is any, else the CPU.
    torch_threads: int = 0  # CPU threads of torch; 0: all for images, one for vectors.
    runs_dir: str = "runs"  # Where run folders are made.


class Refused(SystemExit):
    """The end by `fail`, which has said why, unlike that of a simulator which calls sys.exit(2)."""

    explained = True


def fail(text):
    """Ends the script with exit status 2 and one line about what the user can fix."""
    line = f"{Path(sys.argv[0]).name}: {' '.join(str(text).split())}"
    # what a stranger's file says must not command the terminal
    print("".join(c if c.isprintable() else "?" for c in line), file=sys.stderr)
    raise Refused(2)


def say(line: str):
    """Prints a line now. Where nobody reads any more, as behind `| head`, the run goes on."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # the descriptor itself, for the line stays in Python's buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_range(args, names: str, low=0, high=math.inf):
    for name in names.split():
        value = getattr(args, name)  # or a tuple of them
        if value is not None and not low <= np.min(value) <= np.max(value) <= high:
            fail(f"{name}={value} must lie between {low} and {high}")


def refuse_typed(args, names: str, why: str):
    """Ends the script if one of these arguments was typed, though it has no effect."""
    for name in names.split():
        if name in getattr(args, "typed", ()):
            fail(f"{name}={getattr(args, name)} has no effect {why}")


SAME_STEP = gym.vector.AutoresetMode.SAME_STEP  # the step that ends an episode begins the next one


# --- command line ---------------------------------------------------------------------------------

# what an evaluation does not take over from the run whose agent plays
NOT_TAKEN_OVER = {"capture_video", "exp_name", "eval_frequency", "init_weights"}
# what has an effect beside --evaluate
OF_EVALUATION = {"evaluate", "env_id", "env_kwargs", "seed", "eval_episodes", "eval_max_steps"}
OF_EVALUATION |= {"eval_epsilon", "sticky_actions", "capture_video", "device", "torch_threads"}
OF_EVALUATION |= {"bf16", "async_envs", "env_timeout"}


def parse_args(name: str, args_class, argv: list[str]):
    """The arguments typed, and for the others a config's table or those of a saved run."""
    refuse_untyped(args_class)
    text = sys.modules[args_class.__module__].__doc__ or name
    argv = without_exponents(args_class, argv)
    asked = tyro.cli(args_class, args=argv, description=text.split("\n\n")[0])
    if asked.resume and set(argv) - {"--resume", asked.resume, f"--resume={asked.resume}"}:
        fail("a resumed run keeps its arguments: give --resume alone")
    if asked.resume and not os.path.exists(Path(asked.resume, "checkpoint.pt")):
        fail(f"{asked.resume} has no checkpoint.pt, so it is finished or no run")
    words = [word[2:].partition("=")[0].replace("-", "_") for word in argv if word[:2] == "--"]
    # names of the arguments that were typed
    asked.typed = {word if hasattr(asked, word) else word.removeprefix("no_") for word in words}
    source, settings = saved_settings(name, asked)
    if asked.evaluate:
        refuse_typed(asked, "init_weights", "in an evaluation")
    if asked.evaluate and settings and asked.config is None:
        without_effect = {field.name for field in fields(args_class)} - OF_EVALUATION
        refuse_typed(asked, " ".join(sorted(without_effect)), "in an evaluation")
    kinds = {field.name: field.type for field in fields(args_class)}
    flags = []  # so that tyro checks names and types; of a repeated flag the last one counts
    for field, value in settings.items():
        if isinstance(value, bool) and kinds.get(field) in (bool, "bool"):
            flags.append(f"--{field}" if value else f"--no-{field}")
        elif isinstance(value, list):
            flags += [f"--{field}", *map(str, value)]
        elif isinstance(value, dict):
            flags.append(f"--{field}={json.dumps(value, default=str)}")  # TOML has dates
        elif isinstance(value, float):  # of a table 1e6 comes as 1000000.0
            flags.append(without_exponent(f"--{field}={value}"))
        else:
            flags.append(f"--{field}={value}")
    if settings:
        # a table must be valid by itself, the arguments of a run only with those typed
        own = [] if asked.config else argv
        blamed_on(source, lambda: checked(tyro.cli(args_class, args=flags + own)))
    args = tyro.cli(args_class, args=flags + argv)
    args.typed = asked.typed
    return checked(args)


def refuse_untyped(args_class):
    """Ends the script if an edit sets a default in a way that dataclasses ignore."""
    names = {field.name for field in fields(args_class)}
    for each in args_class.__mro__[:-1]:
        typed = inspect.get_annotations(each) if "__dataclass_fields__" in vars(each) else {}
        for name in sorted(names & (vars(each).keys() - typed.keys())):
            fail(f"{each.__name__}.{name} needs its type, and its class @dataclass, or is ignored")


def without_exponents(args_class, argv: list[str]) -> list[str]:
    """What was typed, with numbers in full where they must be whole."""
    others = {field.name for field in fields(args_class) if "int" not in str(field.type)}
    words = []
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
        words.append(word if name in others else without_exponent(word))
    return words


def without_exponent(word: str) -> str:
    """1e6 or --flag=1e6 in full, as an int must be."""
    flag, number = re.fullmatch(r"(--[\w-]+=)?(.*)", word, re.DOTALL).groups()
    whole = re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d\d?|\d+\.0", number)
    return f"{flag or ''}{int(float(number))}" if whole and float(number) % 1 == 0 else word


def checked(args):
    """The arguments, if they are in range."""
    for field, value in asdict(args).items():
        unlimited = field == "max_grad_norm" and value == math.inf
        if isinstance(value, float) and not math.isfinite(value) and not unlimited:
            fail(f"{field}={value} must be a finite number")
    # one name for a game, by which is_game and run folders know it
    args.env_id = args.env_id.removeprefix("ale_py:")
    args.check()
    require_range(args, "eval_episodes eval_max_steps log_frequency", low=1)
    require_range(args, "eval_frequency")
    require_range(args, "env_timeout", low=0.1)
    if not args.async_envs:
        refuse_typed(args, "env_timeout", "without --async-envs")
    require_range(args, "seed", high=2**63 - 1)
    require_range(args, "torch_threads", high=1024)
    if not re.fullmatch(r"(\w[\w.]*:)?[^:]*", args.env_id):
        fail(f"environment {args.env_id} must be a name, or a module and a name: module:Name-v0")
    if not re.fullmatch(r"[\w.+=-]{0,100}", args.exp_name) or args.exp_name.startswith("."):
        fail(f"exp_name={args.exp_name} must be at most 100 letters, digits and -_.+=")
    must = f"--env-kwargs {args.env_kwargs} must be a JSON object"
    try:
        if not isinstance(json.loads(args.env_kwargs), dict):
            fail(f"{must}, such as '{{\"gravity\": -5.0}}'")
    except (ValueError, RecursionError) as error:
        fail(f"{must}: {error}")
    return args


def blamed_on(source: str, check):
    """Runs check(); if it ends the script, it does so in one line that begins with `source`."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            check()
    except SystemExit:
        # without the frame that tyro draws around it, and its last sentence
        text = re.sub(r"[─│╭╮╰╯]+", " ", said.getvalue()).partition("For full helptext")[0]
        fail(f"{source}: {text.removeprefix(Path(sys.argv[0]).name + ': ')}")


def saved_settings(name: str, args: RunArgs) -> tuple[str, dict]:
    """What --config, --resume or --evaluate name: where it stands, and the settings."""
    folder = args.evaluate if args.resume is None else args.resume
    if folder and is_weights(folder):  # without args.json beside it settings are typed
        beside = Path(folder).with_name("args.json")
        folder = beside.parent if os.path.exists(beside) else None
    if folder is not None:
        refuse_typed(args, "config", "in an evaluation")
    if args.config is not None:
        return table_of(args.config, name)
    if folder is None:
        return "", {}
    path = Path(folder, "args.json")
    try:
        about = json.loads(path.read_text("utf-8-sig"))
        settings = dict(about["args"])
        algo = about["algo"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fail(f"{path}: {type(error).__name__}: {error}")
    if algo != name:
        fail(f"{folder} is no {name} run, but of {algo}")
    left_out = {"config", "resume", "evaluate"} | (NOT_TAKEN_OVER if args.evaluate else set())
    # an old run may have a flag that is gone by now: it matters only if it was on
    kept = [key for key in settings if settings[key] or hasattr(args, key)]
    return str(path), {key: settings[key] for key in kept if key not in left_out}


def is_weights(path) -> bool:
    return Path(path).suffix == ".npz" and not os.path.isdir(path)


def table_of(config: str, name: str) -> tuple[str, dict]:
    """A table of FILE.toml[:TABLE], by default that of this name."""
    path, ext, table = re.fullmatch(r"(.*?)(\.toml)?(?::([\w-]+))?", config, re.DOTALL).groups()
    folder = Path() if ext else Path(__file__).parent.parent / "benchmarks"
    path = folder / f"{path}.toml"
    table = table or name
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        hint = "" if ext else "; write the .toml of a file of your own"
        fail(f"{path}: {error}{hint}")
    if not isinstance(tables.get(table), dict):
        fail(f"{path} has no table [{table}], but {', '.join(tables) or 'none at all'}")
    if both := tables[table].keys() & {"config", "resume", "evaluate"}:
        fail(f"{path}: a table cannot have {', '.join(sorted(both))}")
    return f"{path}: [{table}]", tables[table]


# --- environments ---------------------------------------------------------------------------------


def before_making(env_id: str):
    """Imports what gym.make does not find by itself, and quietens MuJoCo."""
    if "BulletEnv-" in env_id:
        importlib.import_module("pybullet_envs_gymnasium")
    if "mujoco" in str(gym.registry.get(env_id)):
        mujoco = importlib.import_module("mujoco")
        # no MUJOCO_LOG.TXT, and nothing of what is deprecated in gymnasium's models
        mujoco.set_mju_user_warning(lambda text: None if "deprecated" in text else say(text))


def as_vectors(env):
    """The environment with float32 vectors as observations: Discrete becomes one-hot, for example.
    Ends the script where an observation would lose what it is.
    """
    space = env.observation_space
    for name, part in parts_of(space, "observation"):
        if error := why_no_vector(part, alone=part is space):
            fail(f"environment {env.spec.id}: {name}, {part}, {error}")
    if gym.spaces.flatdim(space) == 0:
        fail(f"environment {env.spec.id}: observations are empty: {space}")
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)
    vectors = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
    return Converted(env, np.asarray, vectors)


def why_no_vector(space, alone: bool) -> str:
    """What a user can do about a space that is not flattened; nothing if it is."""
    shape = space.shape or ()
    picture = len(shape) > 1 and sorted(shape)[-2] >= 36
    small_numbers = space.dtype == np.uint8
    if not is_flattenable(space):
        how = "" if alone else ": gym.wrappers.FilterObservation in make_env leaves it out"
        return f"has no fixed size{how}"
    if picture and small_numbers and not alone:
        by = "algos/ppo_dict.py takes both, gym.wrappers.FilterObservation leaves one out"
        return f"is a picture beside something else: {by}"
    if picture and not small_numbers:
        by = "gym.wrappers.TransformObservation makes it uint8, FlattenObservation a vector"
        return f"is a picture: {by}"
    if small_numbers and len(shape) > 1 and alone and 0 not in shape:
        return "is no vector: gym.wrappers.FlattenObservation in make_env makes it one"
    return ""


def parts_of(space, name: str) -> list:
    """(name, space) of each part of a Dict or Tuple, nested too; of another space itself."""
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return [(name, space)]
    pairs = space.items() if isinstance(space, gym.spaces.Dict) else enumerate(space)
    return [part for key, each in pairs for part in parts_of(each, f"{name}[{key!r}]")]


def is_flattenable(space) -> bool:
    try:
        return space.is_np_flattenable
    except NotImplementedError:  # of a space that gymnasium does not know
        return False


class Converted(gym.ObservationWrapper):
    """The environment with convert(obs), in `space`; rewards and flags become plain numbers."""

    def __init__(self, env, convert, space):
        super().__init__(env)
        self.convert = convert
        self.observation_space = space

    def observation(self, obs):
        # a copy, since some environments write each observation into the same array
        return np.array(self.convert(obs), self.observation_space.dtype).reshape(
            self.observation_space.shape
        )

    def step(self, action):
        obs, *numbers, info = self.env.step(action)
        try:
            reward, terminated, truncated = (np.asarray(x).item() for x in numbers)
        except ValueError as error:
            must = "reward, terminated and truncated must be one number each"
            raise ValueError(f"{must}, not {numbers}") from error
        return self.observation(obs), reward, terminated, truncated, info


@contextlib.contextmanager
def closed_on_error(envs: list):
    """Closes environments that the script cannot take: simulators would go on running."""
    try:
        yield
    except BaseException:
        close_all(envs)
        raise


def close_all(envs: list):
    """Closes each, also after one that cannot be closed."""
    with contextlib.ExitStack() as stack:  # which goes on after what is no Exception, too
        for env in envs:
            stack.callback(close_one, env)


def close_one(env):
    try:
        env.close()
    except Exception as error:
        print(f"closing an environment: {error!r}", file=sys.stderr)


@contextlib.contextmanager
def one_line_errors(env_id: str, keywords: dict):
    """Ends the script in one line where an environment cannot be made as it was asked for."""
    try:
        yield
    except (gym.error.Error, ImportError) as error:
        fail(f"environment {env_id}: {error}")
    except (TypeError, ValueError, LookupError, AssertionError, AttributeError, OSError) as error:
        cause = error.__cause__ or error
        # where the innermost call is gymnasium's own, the arguments did not fit the environment
        innermost = list(traceback.walk_tb(cause.__traceback__))[-1][0]
        package = innermost.f_globals.get("__name__", "").partition(".")[0]
        unknown = any(f"argument '{name}'" in str(cause) for name in keywords)
        if not unknown and package != "gymnasium":
            raise  # a bug of the environment's own
        fail(f"environment {env_id} with {keywords}: {type(cause).__name__}: {cause}")


def side_by_side(args, num_envs: int, make_env, keywords: dict):
    """Environments by make_env, stepped one after the other, or with --async-envs in processes."""
    keywords = json.loads(args.env_kwargs) | keywords

    def make():
        with one_line_errors(args.env_id, keywords):
            return make_env(args.env_id, **keywords)

    if args.async_envs:
        seeds = np.random.randint(2**31, size=num_envs)  # Run.new_envs has seeded this generator
        spec = gym.registry.get(args.env_id)  # which a notebook may have registered, for example
        makers = [in_process(make, i, int(seed), spec) for i, seed in enumerate(seeds)]
        return AsyncEnvs(makers, args.env_timeout)
    envs = []
    with closed_on_error(envs):  # the others, if one cannot be made
        for _ in range(num_envs):
            try:
                envs.append(make())
            except Exception as error:
                if envs:
                    error.add_note("if a process takes only one of these, add --async-envs")
                raise
        return SyncEnvs([lambda env=env: env for env in envs], autoreset_mode=SAME_STEP)


class SyncEnvs(gym.vector.SyncVectorEnv):
    """Environments that are stepped one after the other. infos[i] belongs to obs[i]; what the step
    itself said is infos["final_info"][i], and the last observation of an episode that ended
    infos["final_obs"][i].
    """

    def _add_info(self, infos, info, i):  # gymnasium would merge them, which not all allow
        infos[i] = info
        return infos

    def step(self, actions):  # gymnasium's own takes longer than a CartPole
        if isinstance(actions, tuple):  # of a Tuple space: a column for each part
            actions = zip(*actions, strict=True)
        rows = []
        infos = {"final_obs": {}, "final_info": {}}
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            infos["final_info"][i] = info
            if terminated or truncated:
                infos["final_info"][i] = copied(info)  # a reset may change what it holds
                infos["final_obs"][i] = obs
                obs, info = env.reset()
            infos[i] = info
            rows.append((obs, reward, terminated, truncated))
        obs, rewards, *ends = zip(*rows, strict=True)
        return np.array(obs), np.float64(rewards), *np.array(ends, np.bool_), infos

    def close_extras(self, **_):
        close_all(self.envs)


class LostEnvironment(RuntimeError):
    """A process of AsyncEnvs has ended, or gives no answer."""


class AsyncEnvs(gym.vector.AsyncVectorEnv):
    """The same numbers, from processes that step side by side. This one makes no environment: a
    simulator may start threads and programs, handle signals and change the working directory.
    """

    def __init__(self, makers, timeout: float):
        self.timeout = timeout
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # for these processes: torch here has read it
        settings = {"autoreset_mode": SAME_STEP, "shared_memory": False}
        # a fork of this process would inherit locks that its threads hold: these are forks of one
        # without threads, which has imported what takes long
        multiprocessing.set_forkserver_preload(["torch.utils.tensorboard", "gymnasium", "tyro"])
        super().__init__(makers, context="forkserver", **settings)
        with closed_on_error([self]):
            first = self.call("make_in_process", [0])[0]  # one alone says what is wrong with all
            if first is None or None in self.call("make_in_process", range(1, self.num_envs)):
                raise Refused(2)
        made = first.fn
        self.single_observation_space, self.single_action_space, metadata, self.render_mode = made
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observations = create_empty_array(self.single_observation_space, self.num_envs)
        self.metadata = {**metadata, "autoreset_mode": SAME_STEP}

    def reset(self, **given):
        with self.deaths_named():
            return super().reset(**given)

    def step(self, actions):
        with self.deaths_named():
            return super().step(actions)

    def call(self, name: str, *args, **given):
        with self.deaths_named():
            return super().call(name, *args, **given)

    def set_attr(self, name: str, values):
        with self.deaths_named():
            super().set_attr(name, values)

    @contextlib.contextmanager
    def deaths_named(self):
        """Says which process has ended, where a pipe could only say that it is closed."""
        try:
            yield
        except (EOFError, ConnectionError) as error:
            sentinels = [process.sentinel for process in self.processes]
            ended = multiprocessing.connection.wait(sentinels, 5)
            for i, process in enumerate(self.processes):
                if process.sentinel in ended:
                    what = f"environment {i} ended with exit status {process.exitcode}"
                    raise LostEnvironment(what) from error
            raise

    @property
    def envs(self):  # films use the first
        return [SimpleNamespace(render=self.first_picture)]

    def first_picture(self):
        picture, error = self.call("picture_in_process")[0]
        if error:
            raise RuntimeError(error)
        return picture

    def _check_spaces(self):  # it would wait for ever, and one function makes all environments
        pass

    def _add_info(self, infos, info, i):  # see InProcess
        infos[i] = info["said"]
        infos.setdefault("final_info", {})[i] = info.get("final_info", info)["said"]
        if "final_obs" in info:
            infos.setdefault("final_obs", {})[i] = info["final_obs"]
        return infos

    def _poll_pipe_envs(self, timeout=None):  # gymnasium asks it before it reads
        for _ in range(math.ceil(self.timeout)):  # a run that is stopped loses but one of them
            if super()._poll_pipe_envs(min(1, self.timeout)):
                return True
        silent = [i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll(0)]
        raise LostEnvironment(f"environments {silent} gave no answer for {self.timeout:g} s")

    def close_extras(self, **_):
        """Each process closes its environment; one that does not do so in 5 s is ended."""
        end = time.monotonic() + 5
        pipes = [pipe for pipe in self.parent_pipes if pipe is not None]
        for pipe in pipes:
            with contextlib.suppress(OSError):  # of a process that has ended
                pipe.send(("close", None))
        for pipe in pipes:
            with contextlib.suppress(EOFError, OSError):
                while pipe.poll(max(0, end - time.monotonic())):
                    pipe.recv()  # what it was about to say, or it would wait for us
        for process in self.processes:
            process.join(max(0, end - time.monotonic()))
            process.terminate()
        for process in self.processes:
            process.join(1)
            with contextlib.suppress(ProcessLookupError):  # no program is left, or it has no group
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()


def in_process(make, number: int, seed: int, spec):
    """A function that prepares a process of AsyncEnvs: seeds Python's, NumPy's and torch's
    generators, and registers `spec`. gymnasium calls one here as well, to look at the spaces.
    """
    parent = os.getpid()

    def prepare():
        if os.getpid() != parent:
            os.setpgid(0, 0)  # a group of its own, with what a simulator starts: see close_extras
            multiprocessing.current_process()._config["daemon"] = False  # or it could start nothing
            # Ctrl-C is for the training; programs would inherit SIG_IGN
            signal.signal(signal.SIGINT, lambda *_: None)
            on_sigterm(lambda *_: sys.exit(1))  # which closes the environment
            threading.Thread(target=end_after_training, daemon=True).start()
            torch.manual_seed(seed)
            seed_generators(seed)
            if spec is not None:
                gym.registry.setdefault(spec.id, spec)
        return InProcess(make, number)

    return prepare


def end_after_training():
    """Ends a process of AsyncEnvs, and its programs, if it hangs after the training was killed."""
    multiprocessing.parent_process().join()
    for number in (signal.SIGTERM, signal.SIGKILL):
        time.sleep(5)
        os.killpg(0, number)


def on_sigterm(handler):
    """Calls `handler` on SIGTERM, but not in processes that a simulator forks: SIGTERM ends these,
    even if it comes before they have reset the handler.
    """

    def hold():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def let_through():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def forget():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        let_through()

    signal.signal(signal.SIGTERM, handler)
    os.register_at_fork(before=hold, after_in_parent=let_through, after_in_child=forget)


class InProcess(gym.Wrapper):
    """An environment in a process of AsyncEnvs. Its infos come back under a name of their own."""

    def __init__(self, make, number: int):
        unmade = gym.Env()  # stands in for the one that this process has yet to make
        unmade.observation_space = unmade.action_space = gym.spaces.Discrete(1)
        super().__init__(unmade)
        self.maker_in_process = make
        self.number_in_process = number

    def make_in_process(self, numbers):
        """What the environment has, if its number is among these; None if `fail` has refused it."""
        try:
            if self.number_in_process in numbers:
                with sendable_errors():
                    self.env = self.maker_in_process()
        except SystemExit as end:
            if not getattr(end, "explained", False):
                raise
            return None
        spaces = self.observation_space, self.action_space
        return CloudpickleWrapper((*spaces, self.metadata, self.render_mode))

    def picture_in_process(self):
        """Of the first one; or what went wrong, for which gymnasium would end the process."""
        if self.number_in_process > 0:
            return None, ""
        try:
            return np.array(self.render()), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            seed_generators(seed)
        with sendable_errors():
            obs, info = self.env.reset(seed=seed, options=options)
        return obs, {"said": sendable(info)}

    def step(self, action):
        with sendable_errors():
            *transition, info = self.env.step(action)
        return *transition, {"said": sendable(info)}

    def close(self):
        close_all([self.env])


@contextlib.contextmanager
def sendable_errors():
    """An exception of a simulator's own may not reach another process: its text does."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def sendable(info: dict) -> dict:
    """An info without what cannot reach another process, such as a handle of the simulator."""
    kept = {}
    for name, value in info.items():
        with contextlib.suppress(Exception):  # each class of objects fails in its own way
            kept[name] = pickle.loads(pickle.dumps(value))
    return kept


def copied(said):
    """An info, or what it holds: arrays, dicts and lists anew, all else as it is."""
    if isinstance(said, np.ndarray):
        return said.copy()
    if isinstance(said, dict):
        return {name: copied(value) for name, value in said.items()}
    if isinstance(said, list):
        return list(map(copied, said))
    return said


def seed_generators(seed: int):
    """For environments without a generator of their own."""
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def torch_seeded(seed: int):
    """Seeds torch's generator for environments, and gives it back to the agent as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def handlers_kept():
    """Restores them: a simulator's own would keep Ctrl-C from closing the others."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def env_seeds(num_envs: int, *entropy: int) -> list[int]:
    """Independent seeds that follow from `entropy`."""
    state = np.random.SeedSequence(entropy).generate_state(num_envs)
    return [int(s) >> 1 for s in state]  # 31 bits, the most that all environments take


def reset(envs, *entropy: int):
    """Resets with seeds that follow from `entropy`; returns observations and infos."""
    seeds = env_seeds(envs.num_envs, *entropy)
    seed_generators(seeds[0])
    for name in ("single_action_space", "action_space"):  # whose sample() has its own generator
        if hasattr(envs, name):
            getattr(envs, name).seed(seeds[0])
    with torch_seeded(seeds[0]):
        return envs.reset(seed=seeds)


def as_declared(actions, space):
    """Converts actions (n, ...), Discrete ones from 0, to `space`'s start, shape and dtype."""
    if isinstance(space, gym.spaces.Tuple):  # a column for each
        return tuple(as_declared(actions[:, i], part) for i, part in enumerate(space))
    actions = actions.reshape(len(actions), *space.shape) + getattr(space, "start", 0)
    actions = actions.astype(space.dtype)
    return actions.clip(space.low, space.high) if isinstance(space, gym.spaces.Box) else actions


def of_each(infos: dict, num_envs: int) -> list[dict]:
    """Each environment's info. In vector environments not made here gymnasium merges infos into
    arrays by name, with a mask `_name` beside each; so do wrappers of vector environments.
    """
    said = [dict(infos.get(i, {})) for i in range(num_envs)]
    for name, values in infos.items():
        if name in range(num_envs) or name in ("final_obs", "final_info") or name.startswith("_"):
            continue
        if isinstance(values, dict):
            values = of_each(values, num_envs)
        for i in np.flatnonzero(infos.get(f"_{name}", np.ones(num_envs))):
            said[i][name] = values[i]
    return said


def play(envs, obs, policy, max_steps: int, add_frame=None):
    """Returns of one episode in each environment, which begins at `obs`, (num_envs,); the first is
    filmed. Says how many were cut after max_steps.
    """
    returns = np.zeros(envs.num_envs)
    playing = np.ones(envs.num_envs, np.bool_)
    shown = {"unit": " episodes", "desc": "evaluation", "position": 0, "delay": 1}  # after 1 s
    with progress_bar(total=envs.num_envs, **shown) as bar:
        for _ in range(max_steps):
            if add_frame and playing[0]:
                try:
                    add_frame(envs.envs[0].render())
                except LostEnvironment:
                    raise
                except Exception as error:  # the returns count all the same
                    print(f"the film ends here: {error!r}", file=sys.stderr)
                    add_frame = None
            actions = as_declared(policy(obs), envs.single_action_space)
            obs, rewards, terminated, truncated, _ = envs.step(actions)
            if not np.isfinite(rewards[playing]).all():
                raise FloatingPointError(f"reward not finite in an evaluation: {rewards}")
            returns[playing] += rewards[playing]
            playing &= ~(terminated | truncated)
            bar.update(np.sum(~playing) - bar.n)
            if not playing.any():
                return returns
    say(f"evaluation   {playing.sum()} episodes cut after {max_steps:,} steps")
    return returns


# --- files ----------------------------------------------------------------------------------------


def write_file(path: Path, write, check=lambda path: None):
    """All or nothing, even if the power fails: to another file, synced, checked, then renamed."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # a link would lead out of the folder
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        check(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error.__context__, KeyboardInterrupt):  # torch.save hides it
            raise error.__context__ from None
        raise


def write_json(path: Path, content: dict):
    text = json.dumps(content, indent=2, default=str) + "\n"
    write_file(path, lambda file: file.write(text.encode()))


def without_numpy(state):
    """A state_dict with Python's numbers in place of NumPy's, which a checkpoint cannot hold."""
    if isinstance(state, np.generic):
        return state.item()
    if type(state) is dict:
        return {without_numpy(key): without_numpy(value) for key, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(map(without_numpy, state))
    return state


def read_checkpoint(path: Path) -> dict:
    """A checkpoint whose checksums are right."""
    try:
        if damaged := zipfile.ZipFile(path).testzip():
            fail(f"{path} is damaged: {damaged}")
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if not 0 <= saved["step"] < 2**63:
            raise ValueError(f"step {saved['step']}")
        return saved
    except pickle.UnpicklingError:  # torch's own text tells how to execute it nevertheless
        fail(f"{path} holds more than tensors, numbers and strings, so it was not read")
    except Exception as error:
        fail(f"{path}: {error}")


def load_weights(agent, path: Path, but: dict):
    """Sets the agent's weights, by name, from an .npz file; the names in `but` are no weights."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            weights = {name: torch.as_tensor(arrays[name]) for name in set(arrays) - set(but)}
        agent.load_state_dict(weights)
    except Exception as error:
        fail(f"{path}: {error}")


def versions(args_class) -> dict:
    """Of the packages, and a hash of the script and of those whose Args it inherits."""
    classes = args_class.__mro__[:-1]  # one of a notebook has no file
    files = {getattr(sys.modules[c.__module__], "__file__", __file__) for c in classes}
    code = b"".join(Path(file).read_bytes() for file in sorted(files))
    found = {module.__name__: module.__version__ for module in (torch, np, gym)}
    return found | {"script": hashlib.sha256(code).hexdigest()}


def put_event_files_first(folder: Path):
    """Renames event files that TensorBoard, which reads them in the order of their names, would
    read after the next one: the clock may have gone back since.
    """
    paths = sorted(folder.glob("events.out.tfevents.*"))
    if paths and paths[-1].name >= f"events.out.tfevents.{int(time.time()):010d}":
        for number, path in enumerate(paths):
            path.rename(path.with_name(f"events.out.tfevents.{number:010d}.{path.name[20:]}"))


def choose_device(name: str, images: bool):
    if name == "auto":
        name = "cuda" if images and torch.cuda.is_available() else "cpu"
    try:
        device = torch.zeros(1, device=name).device
        torch.zeros(1, device=device).item()  # fails for `meta`, without numbers
    except (RuntimeError, AssertionError, ImportError) as error:
        fail(f"--device {name}: {error}")
    return device


def movie(path: Path):
    imageio = importlib.import_module("imageio")
    return imageio.get_writer(path, fps=30, macro_block_size=2)


class Run:
    """An agent, its environments, its folder, its curves and its checkpoints."""

    launcher = ("python",)  # what starts the script

    def __init__(self, name, args: RunArgs, make_agent, evaluation_policy, make_envs=make_envs):
        self.name = name
        self.args = args
        self.make_agent = make_agent
        self.evaluation_policy = evaluation_policy
        self.make_envs = make_envs
        self.step_count = 0
        self.folder = Path(args.resume) if args.resume else None
        self.writer = self.bar = self.envs = self.lock = self.saved = None
        with closed_on_error([self]):
            self.prepare(make_agent)

    def prepare(self, make_agent):
        """Makes environments and agent. What the end of a run needs is tried now."""
        args = self.args
        if args.resume:
            self.lock_folder()
            self.saved = read_checkpoint(self.folder / "checkpoint.pt")
            self.step_count = self.saved["step"]
        if args.capture_video or not args.evaluate:
            self.try_evaluation()
        num_envs = args.eval_episodes if args.evaluate else args.num_envs
        self.envs = self.new_envs(num_envs, self.step_count, training=not args.evaluate)
        self.own_envs = self.envs
        self.obs_space = self.envs.single_observation_space
        action_space = self.envs.single_action_space
        kind = len(self.obs_space.shape), self.obs_space.dtype
        if kind not in ((1, np.float32), (3, np.uint8)):  # of environments by another make_envs
            fail(f"observations must be float32 vectors or uint8 images, not {self.obs_space}")
        mode = getattr(self.envs, "metadata", {}).get("autoreset_mode")
        if mode not in (None, SAME_STEP):
            fail(f"environments must have gym.vector.AutoresetMode.SAME_STEP, not {mode}")
        images = len(self.obs_space.shape) == 3
        self.device = choose_device(args.device, images)
        args.device = self.device.type if args.device == "auto" else args.device
        args.torch_threads = args.torch_threads or (torch.get_num_threads() if images else 1)
        torch.set_num_threads(args.torch_threads)
        torch.backends.cudnn.deterministic = True
        torch.set_flush_denormal(True)  # dead units make Adam's moments denormal: slow
        torch.manual_seed(args.seed)
        self.rng = np.random.default_rng(args.seed)
        self.settings = asdict(args)  # from here on a script may change its arguments
        self.agent = make_agent(args, self.obs_space, action_space).to(self.device)
        self.agent.device = self.device
        self.names = set(self.agent.state_dict())
        self.bounds = {}  # in weights.npz, so that it says what its actions mean
        if isinstance(action_space, gym.spaces.Box):
            self.bounds = {"action_low": action_space.low, "action_high": action_space.high}
        if taken := ", ".join(sorted(self.names & self.bounds.keys())):
            fail(f"the agent's {taken} must have another name: weights.npz has bounds by it")
        if (given := args.evaluate or args.init_weights) and not args.resume:
            path = Path(given)
            path = path / "weights.npz" if os.path.isdir(path) else path
            load_weights(self.agent, path, but=self.bounds)
            self.folder = path.parent if args.evaluate else None
        if args.resume or args.evaluate:
            self.warn_of_other_versions()
        # a checkpoint always ends an iteration, so that no half-filled rollout must be saved
        iterations = math.ceil(args.checkpoint_frequency / args.iteration_steps)
        self.checkpoint_steps = iterations * args.iteration_steps  # from one to the next
        self.returns = np.zeros(args.num_envs)  # of the episodes that run
        self.lengths = np.zeros(args.num_envs)
        self.ended = np.zeros(0, np.int64)  # the environments whose episode the last step ended
        self.finished = []  # (return, length) of episodes since the last point of the curves
        self.scalars = {}  # since then, by name: sum and number
        self.at_start = {}  # what must stay as it was when run.start was called, by name
        self.best_return = -math.inf  # of the evaluations so far

    def new_envs(self, num_envs, *entropy, **keywords):
        """Environments, made after seeding what they may draw from on being made."""
        seed = env_seeds(1, self.args.seed, *entropy)[0]
        seed_generators(seed)
        with torch_seeded(seed), handlers_kept():
            return self.make_envs(self.args, num_envs, **keywords)

    def try_evaluation(self):
        """Ends the script now, rather than after hours of training, if the environments of an
        evaluation cannot be made, or give no picture for a film.
        """
        rendering = {"render_mode": "rgb_array"} if self.args.capture_video else {}
        envs = self.new_envs(self.args.eval_episodes, 0, training=False, **rendering)
        with contextlib.closing(envs):
            if not self.args.capture_video:
                return
            reset(envs, self.args.seed)
            try:
                with tempfile.TemporaryDirectory() as folder, movie(Path(folder, "1.mp4")) as video:
                    video.append_data(envs.envs[0].render())
            except Exception as error:
                fail(f"capture_video: {self.args.env_id} gives no picture: {error!r}")

    def warn_of_other_versions(self):
        """Says in a line if another script or other packages trained what is in the folder."""
        path = self.folder / "args.json"
        if not path.exists():
            return
        try:
            about = json.loads(path.read_text("utf-8-sig"))
            trained = [dict(x.get("versions", {})) for x in [about, *about.get("resumed", [])]]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            fail(f"{path}: {error}")
        other = []
        for name, here in versions(type(self.args)).items():
            there = {str(part.get(name, here)) for part in trained} - {here}
            if there and name == "script":
                other.append("another version of its script")
            elif there:
                other.append(f"{name} {' and '.join(sorted(there))}, not {here}")
        if other:
            print(f"{self.folder} was trained with {'; '.join(other)}", file=sys.stderr)

    def make_folder(self) -> Path:
        """A new folder, numbered where runs of one seed start in the same second."""
        args = self.args
        name = f"{args.exp_name}-{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}".lstrip("-")
        folder = Path(args.runs_dir, re.sub("[/:]", "-", args.env_id), self.name, name)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            for number in range(2, 10_000):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    return folder
                folder = folder.with_name(f"{name}-{number}")
        except OSError as error:
            fail(error)

    def lock_folder(self):
        """Ends the script if another run trains in the folder."""
        if self.lock is not None:  # train was called again, as in a notebook
            fail(f"this run has begun: close it, then resume {self.folder}")
        try:
            self.lock = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another run trains in {self.folder}")
        except OSError:
            pass  # some file systems have no locks

    def start(self, **parts) -> int:
        """Begins or resumes; checkpoints keep `parts`. Returns the step."""
        args = self.args
        if error := self.mistake(parts):
            fail(error)
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                fail(f"{name} goes into checkpoints, so it needs state_dict and load_state_dict")
        self.parts = parts
        self.started = time.perf_counter()
        resumed = self.saved
        self.saved = None  # it may be large
        if resumed:
            self.restore(resumed)
            put_event_files_first(self.folder)
            # TensorBoard drops what a process that was killed logged after its last checkpoint
            self.writer = SummaryWriter(self.folder, purge_step=self.step_count + 1)
        else:
            self.folder = self.folder or self.make_folder()
            self.lock_folder()
            self.writer = SummaryWriter(self.folder)
            self.save()
            self.warn_of_unsaved()
        self.describe()  # args.json comes last: a folder that has it can be resumed
        if not resumed:
            self.check_arguments()
            self.started = time.perf_counter()
        say(f"{args.env_id}, seed {args.seed}, on {self.device}: {self.folder}")
        self.last_step = step = self.step_count
        self.bar = progress_bar(total=args.total_timesteps, initial=step, unit=" steps")
        self.obs, infos = reset(self.envs, args.seed, step)
        self.infos = of_each(infos, args.num_envs)
        self.next_infos = self.infos
        self.seed_learning()
        # a loop that ended before its budget had ended for good
        return args.total_timesteps if resumed and resumed.get("trained") else step

    def check_arguments(self):
        """Ends the script now, rather than at a resume, if args.json does not give these back."""
        again = asdict(parse_args(self.name, type(self.args), ["--resume", str(self.folder)]))
        for name in self.settings.keys() - {"config", "resume"}:
            if again[name] != self.settings[name]:
                changed = f"{name}={self.settings[name]!r}, which becomes {again[name]!r}"
                fail(f"a resume would check the arguments again, and change {changed}")

    def seed_learning(self):
        """Seeds Python's and NumPy's own generators after each checkpoint, which does not keep
        them: an edit may draw from them in an update.
        """
        seed_generators(env_seeds(1, self.args.seed, self.step_count, 2)[0])

    def restore(self, saved: dict):
        """Sets what a checkpoint holds."""
        path = self.folder / "checkpoint.pt"
        try:
            for name, part in self.parts.items():
                if name not in saved["parts"]:
                    fail(f"{path} has no {name}: it is of another script")
                part.load_state_dict(saved["parts"][name])
            self.rng.bit_generator.state = saved["rng"]
            torch.set_rng_state(saved["torch_rng"])
            self.best_return = saved["best_return"]
            self.started -= saved["seconds"]
        except Exception as error:
            fail(f"{path}: {type(error).__name__}: {error}")

    def mistake(self, parts: dict) -> str:
        """Says what an edit did that would be lost, or could not be loaded."""
        tensors = self.agent.state_dict()
        names = tensors.keys()
        if any(name.startswith("_orig_mod.") for name in names):
            return "torch.compile of an agent has no effect on act and losses: compile its modules"
        if other := ", ".join(sorted(self.names ^ names)):
            return f"the agent must have {other} from make_agent on or not at all, to be loaded"
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                return f"the agent's {name} is no tensor, so weights.npz cannot hold it"
            if not self.stays(name, (tensor.shape, tensor.dtype)):
                return f"the agent's {name} has another shape or dtype now: no run could load it"
        for name in ("env_id", "env_kwargs", "sticky_actions", "episodic_life"):
            if getattr(self.args, name, None) != self.settings.get(name):
                return f"{name} changed, which a resume would not see: use run.envs.set_attr"
        if self.envs is not self.own_envs:
            return "run.envs is another object, which no resume has: wrap in make_env or make_envs"
        return self.mistake_of_optimizers(parts) or self.unsaved_by_optimizers(parts)

    def stays(self, name: str, value) -> bool:
        """Whether it is what it was at the first call."""
        return self.at_start.setdefault(name, value) == value

    def mistake_of_optimizers(self, parts: dict) -> str:
        """Says which learning rate or group would not resume, or which parameter does not learn."""
        annealed = [part for name, part in parts.items() if name.startswith("optimizer")]
        scheduled = [part.optimizer for part in parts.values() if isinstance(part, LRScheduler)]
        for optimizer in annealed if getattr(self.args, "anneal_lr", False) else ():
            if has_scheduler(optimizer) or optimizer in scheduled:
                return "anneal_lr would set the learning rate of a scheduler: add --no-anneal-lr"
        kept = [getattr(part, "optimizer", None) for part in parts.values()]  # by a scheduler
        for name, part in parts.items():
            if has_scheduler(part) and part not in kept:
                return f"{name} has a scheduler that no checkpoint keeps: give it to run.start"
            sizes = [len(group["params"]) for group in getattr(part, "param_groups", ())]
            if not self.stays(f"groups of {name}", sizes):
                return f"{name} has new groups that no resume has: make them before run.start"
        groups = [group for part in parts.values() for group in getattr(part, "param_groups", ())]
        learned = {id(parameter) for group in groups for parameter in group["params"]}
        for name, parameter in self.agent.named_parameters():
            if learned and parameter.requires_grad and id(parameter) not in learned:
                how = "if it is not to learn, call its requires_grad_(False)"
                return f"{name} is in no optimizer that run.start is given: {how}"
        return ""

    def unsaved_by_optimizers(self, parts: dict) -> str:
        """Says what torch's own state_dict of an optimizer would leave out, though it changes."""
        for name, part in parts.items():
            if getattr(type(part), "state_dict", None) is not torch.optim.Optimizer.state_dict:
                continue
            for own, value in vars(part).items():
                if own.startswith("_") or own in ("defaults", "param_groups", "state"):
                    continue
                lost = self.holds_unsaved(value, parts)
                number = isinstance(value, int | float)
                if lost or (number and not self.stays(f"{name}.{own}", value)):
                    how = f"put it into {name}.state, or write a state_dict"
                    return f"no checkpoint keeps {name}.{own}: {how}"
        return ""

    def holds_unsaved(self, value, parts: dict) -> bool:
        """Whether an attribute is or holds what would need a checkpoint, but is in none."""
        groups = [group for part in parts.values() for group in getattr(part, "param_groups", ())]
        kept = states_in([self.agent, self.rng, torch.default_generator, *parts.values()])
        kept += states_in([group["params"] for group in groups])  # or warn_of_unsaved names them
        return not set(map(id, states_in(value))) <= set(map(id, kept))

    def warn_of_unsaved(self):
        """Says in a line if no part keeps what the agent or an optimizer has."""
        lost = [name for name, _ in self.agent.named_buffers() if name not in self.names]
        for name, value in vars(self.agent).items():
            if self.holds_unsaved(value, self.parts):
                lost.append(name)
        for name in lost:
            how = "if it learns or changes, use persistent buffers, nn.ModuleDict or nn.ModuleList"
            print(f"no checkpoint keeps the agent's {name}: {how}", file=sys.stderr)
        states = [state for part in self.parts.values() for state in part.state_dict().values()]
        kept = [state for state in states if isinstance(state, torch.Tensor)]
        for name, part in self.parts.items():
            for group in getattr(part, "param_groups", ()):
                for tensor in group["params"]:
                    on_device = [x for x in kept if x.device == tensor.device]
                    if not any(x.is_set_to(tensor) for x in on_device):
                        what = f"a tensor of shape {tuple(tensor.shape)}"
                        how = "make it a parameter of a module that run.start is given"
                        print(f"no checkpoint keeps {what} of {name}: {how}", file=sys.stderr)

    def describe(self):
        """Writes the settings for TensorBoard's HParams, and args.json, which repeats the run and
        says with which script and packages it was resumed.
        """
        args = self.settings
        plain = {k: v if isinstance(v, int | float) else str(v) for k, v in args.items()}
        self.writer.file_writer.add_summary(hparams({"algo": self.name, **plain}, {})[1])
        path = self.folder / "args.json"
        if self.args.resume:
            about = json.loads(path.read_text("utf-8-sig"))
            now = {"step": self.step_count, "versions": versions(type(self.args))}
            about["resumed"] = [*about.get("resumed", []), now]
        else:
            about = {"algo": self.name, "args": args, "command": shlex.join(["python", *sys.argv])}
            about["versions"] = versions(type(self.args))
        write_json(path, about)

    def step(self, actions):
        """Steps every environment. Returns next_obs, rewards, terminated, truncated, one row each.

        run.next_infos[i] is what environment i said of this step. What to act on next is run.obs,
        with run.infos: next_obs and next_infos, but after an end those of the reset.
        """
        args = self.args
        num_envs = args.num_envs
        actions = as_declared(actions, self.envs.single_action_space)
        self.obs, rewards, terminated, truncated, infos = self.envs.step(actions)
        self.step_count += num_envs
        if not np.isfinite(rewards).all():
            raise FloatingPointError(f"reward not finite at step {self.step_count}: {rewards}")
        self.returns += rewards
        self.lengths += 1
        self.infos = of_each(infos, num_envs)
        self.next_infos = list(self.infos)
        # the environments whose episode ended by itself, not by a checkpoint
        self.ended = np.flatnonzero(infos.get("_final_obs", terminated | truncated))
        next_obs = self.obs.copy()  # which a script may change
        if len(self.ended):
            last_infos = of_each(infos.get("final_info", {}), num_envs)
        for i in self.ended:
            next_obs[i] = infos["final_obs"][i]
            self.next_infos[i] = last_infos[i]
            self.finished.append((self.returns[i], self.lengths[i]))
            self.returns[i] = 0
            self.lengths[i] = 0
        if self.step_count % self.checkpoint_steps == 0:
            # every episode begins anew, in new environments with seeds that follow from the step:
            # so a run that is resumed here needs nothing of the environments that were
            self.envs.close()
            self.envs = self.own_envs = self.new_envs(num_envs, self.step_count)
            self.obs, infos = reset(self.envs, args.seed, self.step_count)
            self.infos = of_each(infos, num_envs)
            self.returns[:] = 0
            self.lengths[:] = 0
            truncated = ~terminated  # of every environment: its episode ends here
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
        step = self.step_count
        saves = self.due(self.checkpoint_steps)
        ends = step >= self.args.total_timesteps
        self.log(scalars)
        if saves or ends or self.due(self.args.log_frequency):
            if error := self.mistake(self.parts):
                raise RuntimeError(error)
            self.write_curves(step)
        if self.due(self.args.eval_frequency) and not ends:
            self.log_evaluation()
        if saves:
            self.save()
            self.seed_learning()
        self.bar.update(step - self.last_step)
        self.last_step = step
        return step

    def due(self, every: int) -> bool:  # whether a multiple of it lies in this iteration; 0: never
        return every > 0 and self.step_count // every > self.last_step // every

    def write_curves(self, step: int):
        """Writes a point of each curve, the mean since the last one."""
        means = {"charts/SPS": step / (time.perf_counter() - self.started)}
        if self.finished:
            episodic_return, episodic_length = np.mean(self.finished, axis=0)
            means["charts/episodic_return"] = episodic_return
            means["charts/episodic_length"] = episodic_length
            self.bar.set_postfix_str(f"return {episodic_return:.1f}", refresh=False)
        for name, (total, count) in self.scalars.items():
            means[name] = float(total) / count
        self.finished = []
        self.scalars = {}
        for name, value in means.items():
            if math.isfinite(value):
                self.writer.add_scalar(name, value, step)
            elif name.startswith("losses/"):
                raise FloatingPointError(f"{name} not finite at step {step}: {means}")

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
        args = self.args
        rng = np.random.default_rng([args.seed, 1, 1])
        with contextlib.ExitStack() as stack:
            stack.enter_context(generators_restored())  # training may draw from them, too
            video = stack.enter_context(self.film()) if args.capture_video else None
            rendering = {"render_mode": "rgb_array"} if video else {}
            envs = self.new_envs(args.eval_episodes, 0, 1, training=False, **rendering)
            stack.enter_context(contextlib.closing(envs))
            obs, _ = reset(envs, args.seed, 0, 1)  # other seeds than training has
            torch.default_generator.manual_seed(args.seed)
            # acting may change buffers, such as moments of what it sees
            stack.callback(self.agent.load_state_dict, copy.deepcopy(self.agent.state_dict()))
            stack.callback(self.agent.train, self.agent.training)
            self.agent.eval()
            policy = self.evaluation_policy(self.agent, rng, args)
            return play(envs, obs, policy, args.eval_max_steps, video and video.append_data)

    @contextlib.contextmanager
    def film(self):
        name = "evaluation" if self.args.evaluate else f"step-{self.step_count}"
        path = self.folder / "videos" / f"{name}-seed-{self.args.seed}.mp4"
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(exist_ok=True)
                path.unlink(missing_ok=True)  # a link would lead out of the folder
                video = stack.enter_context(movie(path))
            except Exception as error:  # the returns count all the same
                print(f"no film: {error!r}", file=sys.stderr)
                video = None
            yield video

    def arrays(self) -> dict:
        """What weights.npz holds: parameters, buffers that acting needs, bounds of actions."""
        tensors = self.agent.state_dict().items()
        return {name: tensor.cpu().numpy() for name, tensor in tensors} | self.bounds

    def hash(self) -> str:
        """SHA-256 over the names and arrays of weights.npz."""
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def save(self, trained: bool = False):
        """Writes weights.npz and checkpoint.pt, after everything logged so far is in its file. A
        checkpoint that could not be read back ends the run and leaves the last one. trained: only
        the evaluation is left.
        """
        self.writer.flush()
        if self.step_count % self.checkpoint_steps and not trained:
            lies = f"the checkpoint of step {self.step_count} lies within episodes"
            print(f"{lies}, so a resume will differ: see Args.iteration_steps", file=sys.stderr)
        self.clear_gradients()
        parts = {name: without_numpy(part.state_dict()) for name, part in self.parts.items()}
        checkpoint = {
            "step": self.step_count,
            "trained": trained,
            "seconds": time.perf_counter() - self.started,
            "rng": self.rng.bit_generator.state,
            "torch_rng": torch.get_rng_state(),
            "best_return": self.best_return,
            "parts": parts,
        }

        def check(path):  # without reading what the tensors hold
            try:
                torch.load(path, weights_only=True, mmap=True)
            except pickle.UnpicklingError as error:
                kinds = "tensors, numbers, strings, and dicts, lists and tuples of these, no arrays"
                raise TypeError(f"no run could resume from these parts: only {kinds}") from error

        self.save_weights("weights.npz")
        write_file(self.folder / "checkpoint.pt", lambda file: torch.save(checkpoint, file), check)

    def clear_gradients(self):
        """No checkpoint holds a gradient, so none outlives one."""
        for part in self.parts.values():
            if hasattr(part, "zero_grad"):
                part.zero_grad()

    def save_weights(self, name: str):
        write_file(self.folder / name, lambda file: np.savez(file, **self.arrays()))

    def finish(self):
        """Evaluates, writes weights.npz and result.json, and prints the result."""
        self.bar.close()
        steps = self.step_count
        seconds = time.perf_counter() - self.started
        self.save(trained=True)
        self.envs.close()  # before the evaluation: of some simulators only one can run
        speed = f"{steps / seconds:,.0f} steps/s"
        say(f"trained      {steps:,} steps in {seconds:.1f} s, {speed}")
        returns = self.log_evaluation()
        self.writer.close()
        result = {
            "env_id": self.args.env_id,
            "algo": self.name,
            "seed": self.args.seed,
            "steps": steps,
            "seconds": round(seconds, 2),
            "sps": round(steps / seconds),
            "eval_return_mean": returns.mean(),
            "eval_return_std": returns.std(),
            "eval_episodes": len(returns),
            "run_hash": self.hash(),
        }
        write_json(self.folder / "result.json", result)
        (self.folder / "checkpoint.pt").unlink()  # with a replay buffer it is large
        self.print_result(returns)

    def print_result(self, returns):
        say(f"evaluation   return {returns.mean():.1f} +- {returns.std():.1f}")
        say(f"run folder   {self.folder}")
        if not self.args.evaluate:
            say(f"TensorBoard  tensorboard --logdir {shlex.quote(self.args.runs_dir)}")
        say(f"run hash     {self.hash()}")

    def close(self):
        """Closes the environments and the files, however the run ends."""
        with contextlib.ExitStack() as stack:
            if self.lock is not None:  # at last: others must wait for all that follows
                stack.callback(os.close, self.lock)
            for part in (self.envs, self.writer, self.bar):
                if part is not None:
                    stack.callback(part.close)
            self.envs = self.writer = self.bar = self.lock = None

    def how_to_resume(self) -> str:
        needed = "args.json", "checkpoint.pt"
        if self.folder is None or self.args.evaluate:
            return ""
        if not all((self.folder / name).exists() for name in needed):
            return ""
        words = [*self.launcher, sys.argv[0], "--resume", str(self.folder)]
        return f"to resume: {shlex.join(words)}"


def states_in(value) -> list:
    """What an attribute is or holds that may change: tensors, optimizers, generators."""
    if isinstance(value, nn.Module):
        value = [*value.parameters(), *value.buffers()]
    if isinstance(value, dict):
        value = list(value.values())
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name, None) for field in fields(value)]
    if isinstance(value, list | tuple | collections.deque):
        return [state for each in value for state in states_in(each)]
    generators = torch.Generator | np.random.Generator | random.Random
    kinds = torch.Tensor | torch.optim.Optimizer | generators
    return [value] if isinstance(value, kinds) else []


def has_scheduler(part) -> bool:
    """Whether a scheduler of torch sets its learning rate; ReduceLROnPlateau leaves no trace."""
    return any("initial_lr" in group for group in getattr(part, "param_groups", ()))


def progress_bar(**settings):
    seconds = 0.1 if sys.stderr.isatty() else 30  # between lines, in a file
    return tqdm(**settings, leave=False, mininterval=seconds)


@contextlib.contextmanager
def generators_restored():
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def interrupt(signum, frame):
    raise KeyboardInterrupt(signum)


@contextlib.contextmanager
def undisturbed():
    """Lets no second signal cut the closing short, which may take a while; Ctrl-C still does."""
    with handlers_kept():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        yield


def main(name, args_class, make_agent, train, evaluation_policy, make_envs=make_envs):
    """Runs a script. make_agent(args, obs_space, action_space) makes its module, train(args, run)
    trains it, evaluation_policy(agent, rng, args) makes a function from observations to actions.
    """
    args = parse_args(name, args_class, sys.argv[1:])
    on_sigterm(interrupt)  # ends as Ctrl-C does
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, interrupt)
    run = None
    try:
        run = Run(name, args, make_agent, evaluation_policy, make_envs)
        if args.evaluate:
            run.envs.close()
            return run.print_result(run.evaluate())
        train(run.args, run)
        run.finish()
    except KeyboardInterrupt as stopped:
        how = run.how_to_resume() if run else ""
        print("\nstopped" + (f"; {how}" if how else ""), file=sys.stderr)
        sys.exit(128 + (stopped.args[0] if stopped.args else signal.SIGINT))
    except SystemExit as ended:
        if getattr(ended, "explained", False):
            raise
        how = run.how_to_resume() if run else ""
        text = f"the run was ended by sys.exit({ended.code!r})"
        raise RuntimeError(text + (f"; {how}" if how else "")) from ended
    except BaseException as error:  # Python prints the note below the traceback
        if isinstance(error, MemoryError) and not (run and run.folder):
            fail(f"out of memory: {error}")
        if how := run and run.how_to_resume():
            error.add_note(how)
        raise
    finally:
        if run:
            with undisturbed():
                run.close()


# /// script
# requires-python = ">=3.11,<3.14"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "gymnasium==1.4.0", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "pygame-ce==2.5.8", "box2d==2.3.10", "mujoco==4.0.0",
#   "ale-py==0.12.1", "imageio==2.38.1", "imageio-ffmpeg==0.8.1"]
# ///

if __name__ == "__main__":
    main("ppo", RunArgs, make_agent, train, evaluation_policy)
