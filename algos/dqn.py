"""Deep Q-learning (DQN): one network learns the value of every action from replayed steps, towards
targets of a slowly following copy of itself. Double, dueling, C51 and n-step are switches of it.

Papers    DQN doi 10.1038/nature14236; double arXiv 1509.06461; dueling arXiv 1511.06581;
          C51 arXiv 1707.06887; n-step returns as in Rainbow, arXiv 1710.02298.
Run       python algos/dqn.py                                                  CartPole-v1
          python algos/dqn.py --double --dueling --n-step 3                    any combination
          python algos/dqn.py --n-atoms 51 --v-min 0 --v-max 50                C51: the support
              must hold the discounted returns, which on CartPole-v1 lie between 0 and 50

Expect    in half a minute on one CPU core, the default settings: a greedy return of 500 on
          CartPole-v1 on nine seeds of ten (benchmarks/results/).

Deliberate differences from the papers:
- an episode cut by a time limit is bootstrapped from its true last observation, as the theory asks;
- every stored step can be sampled, the newest ones with as many steps of return as there are;
- Adam, its learning rate falling to 0, and a gradient whose norm is clipped, in C51 as well; of a
  dueling network the gradient that enters the trunk is not scaled down;
- by default five-step returns, uncorrected for older policies' actions (the paper: --n-step 1);
- by default a target network that follows a little each time (--tau 1 copies it, as the papers do).
"""

import argparse
import contextlib
import ctypes
import ctypes.util
import difflib
import hashlib
import importlib
import io
import json
import math
import os
import platform
import random
import re
import shlex
import signal
import sys
import threading
import time
import tomllib
import traceback
import warnings
import zipfile
from collections import deque
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from threadpoolctl import threadpool_limits
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map_only

ALGO = "dqn"


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """Environment, as gymnasium names it; `package.module:Id-v0` imports that module first."""
    seed: int = 1
    """Rules the whole run: same machine, same command, same seed, same weights."""
    total_timesteps: int = 40_000
    """Training budget, summed over all environments [steps]."""
    num_envs: int = 1
    """Environments stepped side by side."""
    learning_rate: float = 3e-3
    """Adam's step size, at the start."""
    anneal_lr: bool = True
    """Lowers the learning rate linearly to 0."""
    anneal_steps: int | None = None
    """Length of that schedule [steps]; None: total_timesteps."""
    buffer_size: int = 100_000
    """Transitions that the replay buffer holds, of all environments together."""
    gamma: float = 0.98
    """Discount factor."""
    learning_starts: int = 1_000
    """Steps of random actions before the first update."""
    train_frequency: int = 8
    """Steps between updates, summed over all environments."""
    gradient_steps: int = 4
    """Minibatches learned from each time."""
    batch_size: int = 128
    """Transitions in a minibatch."""
    target_network_frequency: int = 8
    """Steps between updates of the target network; at most one every train_frequency steps."""
    tau: float = 0.02
    """Share of the online network that the target network takes over each time; 1 copies it."""
    start_e: float = 1.0
    """Probability of a random action at the start."""
    end_e: float = 0.04
    """Probability of a random action at the end of its schedule."""
    exploration_fraction: float = 0.2
    """Length of that linear schedule, as a share of total_timesteps."""
    exploration_steps: int | None = None
    """Length of that schedule, if it is not to depend on total_timesteps [steps]."""
    eval_epsilon: float = 0.0
    """Probability of a random action in evaluations; 0.001 is usual on Atari."""
    double: bool = False
    """The online network chooses the next action, the target network values it."""
    dueling: bool = False
    """Splits the network into a value of the state and advantages of the actions."""
    n_atoms: int = 1
    """Atoms of the distribution of returns (C51 has 51); 1: its mean alone, plain DQN."""
    v_min: float = -10.0
    """Return at the first atom."""
    v_max: float = 10.0
    """Return at the last atom."""
    n_step: int = 5
    """Rewards summed before the target network is asked; the paper has 1."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the TD error, with one atom; with more it is the cross-entropy."""
    max_grad_norm: float = 10.0
    """Longest gradient, over all parameters together; inf: any."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    clip_reward: bool = False
    """Learns from the sign of the reward, as on Atari. The returns that are logged stay whole."""
    bf16: bool = False
    """Images: convolutions multiply in bfloat16, with 8 bits of precision; all else in float32.
    Slow on a CPU without instructions for it."""
    hidden_sizes: tuple[int, int] = (128, 128)
    """Widths of the two hidden layers, for vectors."""
    checkpoint_frequency: int = 50_000
    """Steps between checkpoints, rounded up to train_frequency. Each ends all running episodes: the
    state of an environment cannot be saved."""

    def __post_init__(self):
        at_least_1 = "total_timesteps num_envs anneal_steps buffer_size train_frequency"
        at_least_1 += " gradient_steps batch_size target_network_frequency exploration_steps"
        require_range(self, at_least_1 + " n_atoms n_step checkpoint_frequency", low=1)
        require_range(self, "seed learning_rate learning_starts max_grad_norm adam_eps", low=0)
        fractions = "gamma tau start_e end_e exploration_fraction eval_epsilon"
        require_range(self, fractions, low=0, high=1)
        if self.anneal_steps and not self.anneal_lr:
            raise UserError("anneal_steps is for anneal_lr")
        for name in ("total_timesteps", "train_frequency", "buffer_size"):
            size = getattr(self, name)
            if size % self.num_envs:
                raise UserError(f"{name}={size} does not divide by num_envs={self.num_envs}")
        if min(self.hidden_sizes) < 1:
            raise UserError(f"hidden_sizes={self.hidden_sizes} must be at least 1")
        finite = -1e38 < self.v_min < self.v_max < 1e38  # so that float32 holds v_max - v_min
        if self.n_atoms > 1 and not (finite and np.float32(self.v_min) < np.float32(self.v_max)):
            raise UserError(f"v_min={self.v_min} must lie below v_max={self.v_max}, both finite")

    @property
    def iteration_steps(self) -> int:  # for the plumbing: steps between calls of run.end_iteration
        return self.train_frequency

    @property
    def budget_is_fixed(self) -> bool:  # for the plumbing: so that --resume keeps a schedule's end
        return self.exploration_steps is None or (self.anneal_lr and self.anneal_steps is None)

    @property
    def threads_pay(self) -> bool:  # for the plumbing: several threads are no faster with vectors
        return False


def nature_convolutions(image_shape: tuple):
    """The convolutions of the Nature DQN, and how many features they give."""
    channels, height, width = image_shape
    if min(height, width) < 36:  # what the convolutions leave at least one pixel of
        size = f"images must be 36 x 36 pixels or larger, not {height} x {width}"
        raise UserError(f"{size}: wrap smaller ones in gymnasium.wrappers.FlattenObservation")
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
    )
    return convolutions, convolutions(torch.zeros(1, *image_shape)).shape[1]


def head(num_inputs: int, hidden_size: int, num_outputs: int):
    return nn.Sequential(
        nn.Linear(num_inputs, hidden_size), nn.ReLU(), nn.Linear(hidden_size, num_outputs)
    )


class InNumpy:
    """Networks of layers, one after the other, for arrays: by NumPy, on the memory of the weights.

    If torch acted on its few observations, DQN on CartPole-v1 would take 1.5 times as long, and PPO
    1.4 times: benchmarks/tricks.py measures what such tricks are worth. The weights are looked up
    once, since that takes longer than to multiply by them.
    """

    def __init__(self, *networks):
        self.layers = [layer for network in networks for layer in self.layers_of(network)]
        self.first = next(nn.ModuleList(self.layers).parameters())
        self.address = None

    def layers_of(self, network):
        if isinstance(network, nn.Sequential):
            return [layer for part in network for layer in self.layers_of(part)]
        return [network]

    def __call__(self, x):  # (batch, inputs) -> (batch, outputs)
        if self.first.data_ptr() != self.address:  # the weights are new, or elsewhere: see flatten
            self.address, self.steps = self.first.data_ptr(), [self.step(m) for m in self.layers]
        for step in self.steps:
            x = step(x)
        return x

    def step(self, layer):
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
            return lambda x: x @ weight + bias
        if isinstance(layer, nn.Tanh):
            return np.tanh
        if isinstance(layer, nn.ReLU):
            return lambda x: np.maximum(x, 0)
        return lambda x: layer(torch.as_tensor(x)).numpy(force=True)


class QNetwork(nn.Module):
    """Logits of the return's distribution for every action, (batch, actions, atoms).

    With one atom the logit is Q(s, a) itself. Dueling: the value of the state plus the advantage of
    the action less its mean over the actions, eq. 9 of arXiv 1511.06581, for each atom on its own.
    """

    def __init__(self, obs_shape, num_actions, n_atoms=1, v_min=-10.0, v_max=10.0, dueling=False,
                 bf16=False, hidden_sizes=(128, 128)):  # fmt: skip
        super().__init__()
        self.num_actions, self.n_atoms, self.dueling = num_actions, n_atoms, dueling
        self.sees_images, self.bf16 = len(obs_shape) == 3, bf16
        if self.sees_images:
            self.trunk, num_features = nature_convolutions(obs_shape)
            hidden_size = 512
        else:
            num_features, hidden_size = hidden_sizes
            self.trunk = nn.Sequential(nn.Linear(*obs_shape, num_features), nn.ReLU())
        if dueling:
            self.value_head = head(num_features, hidden_size, n_atoms)
            self.advantage_head = head(num_features, hidden_size, num_actions * n_atoms)
        else:
            self.q_head = head(num_features, hidden_size, num_actions * n_atoms)
        if n_atoms > 1:
            self.register_buffer("support", torch.linspace(v_min, v_max, n_atoms))
        if not self.sees_images:
            self.in_numpy = {name: InNumpy(part) for name, part in self.named_children()}

    def forward(self, obs):  # (batch, *obs_shape) -> (batch, actions, atoms); array to array
        if self.sees_images:
            # uint8 until here; with AVX-512, convolutions are faster with the channels last
            obs = obs.to(torch.float32, memory_format=torch.channels_last).div_(255)
            with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
                features = self.trunk(obs).float()
        else:
            features = self.feed("trunk", obs.float() if torch.is_tensor(obs) else obs)
        if not self.dueling:
            return self.feed("q_head", features).reshape(-1, self.num_actions, self.n_atoms)
        value = self.feed("value_head", features).reshape(-1, 1, self.n_atoms)
        advantage = self.feed("advantage_head", features)
        advantage = advantage.reshape(-1, self.num_actions, self.n_atoms)
        return value + advantage - advantage.mean(axis=1, keepdims=True)

    def feed(self, part, x):  # the part of that name, for a tensor or an array
        return getattr(self, part)(x) if torch.is_tensor(x) else self.in_numpy[part](x)

    def q_values(self, logits):  # (batch, actions, atoms) -> (batch, actions); array to array
        if self.n_atoms == 1:
            return logits.squeeze(2)
        if torch.is_tensor(logits):
            return torch.softmax(logits, dim=2) @ self.support
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))  # the softmax, but for its sum
        return weights @ self.support.numpy() / weights.sum(axis=2)

    def best_actions(self, obs):  # (batch, *obs_shape) -> (batch,); array to array
        return self.q_values(self(obs)).argmax(axis=1)

    def act(self, obs, epsilon, rng):
        """Epsilon-greedy actions: (num_envs, *obs_shape) -> (num_envs,)."""
        explore = rng.random(len(obs)) < epsilon
        num_random = np.count_nonzero(explore)
        if num_random == len(obs):
            return rng.integers(self.num_actions, size=len(obs))
        if self.sees_images or not self.in_numpy["trunk"].first.is_cpu:
            with torch.no_grad():
                obs = torch.as_tensor(obs, device=self.device)
                actions = self.best_actions(obs).cpu().numpy()
        else:
            actions = self.best_actions(obs)
        if num_random > 0:
            actions[explore] = rng.integers(self.num_actions, size=num_random)
        return actions

    @property
    def device(self):
        return self.trunk[0].weight.device


def flatten(module):
    """Makes all parameters views of one vector, and their gradients views of its gradient.

    Returns the vector, for the optimizer. Clipping and stepping then take one operation instead of
    one for each parameter, and PPO on CartPole-v1 a seventh less time. Gradients are cleared by
    vector.grad.zero_(): after optimizer.zero_grad() vector.grad is None, and no step is taken any
    more.
    """
    parameters = list(module.parameters())
    vector = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    vector.grad = torch.zeros_like(vector)
    sizes = [p.numel() for p in parameters]
    views = zip(vector.data.split(sizes), vector.grad.split(sizes), strict=True)
    for p, (data, grad) in zip(parameters, views, strict=True):
        p.data, p.grad = data.view_as(p), grad.view_as(p)
    return vector


def clip_gradient(vector, max_norm: float):
    """Shortens the gradient of a vector from `flatten` to `max_norm`, if it is longer.

    torch's clip_grad_norm_ does the same in five operations.
    """
    # renorm_ shortens the too long rows of a matrix in place; [None] makes the gradient one row
    vector.grad[None].renorm_(p=2, dim=0, maxnorm=max_norm)


# what a checkpoint keeps, beside final_obs
REPLAY_ARRAYS = ("frames", "blank", "actions", "rewards", "terminated", "truncated")


class ReplayBuffer:
    """The last `capacity` steps, of `num_envs` environments side by side; the oldest go first.

    Each observation is kept once: a step's successor is the next step's observation, but the true
    last observation of a truncated episode is kept beside. Of stacked frames (`stack` > 1) only the
    newest is kept; `blank` counts the black ones that a stack begins with after a reset.
    The size that it says leaves those last observations out, and so is too small where most
    episodes are cut after a few steps.
    """

    def __init__(self, capacity: int, num_envs: int, obs_space, stack: int = 1):
        self.length = capacity // num_envs  # steps that can be sampled
        self.slots = self.length + stack  # with one observation after and stack - 1 frames before
        self.stack, self.num_envs = stack, num_envs
        frame_shape = obs_space.shape[1:] if stack > 1 else obs_space.shape
        frame_bytes = math.prod(frame_shape) * obs_space.dtype.itemsize
        size = self.slots * num_envs * (frame_bytes + 15)  # 15: the arrays below frames
        require_memory(f"a replay buffer of {capacity:,} transitions", size)
        shape = (self.slots, num_envs)
        self.frames = np.zeros((*shape, *frame_shape), obs_space.dtype)  # all of obs if stack is 1
        self.blank = np.zeros(shape, np.uint8)
        self.actions = np.zeros(shape, np.int64)
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)  # the task ended, so nothing follows
        self.truncated = np.zeros(shape, np.bool_)  # by time limit or checkpoint
        self.final_obs = {}  # (slot, env) -> true last observation of a truncated episode
        self.total, self.saved, self.files = 0, 0, []  # steps added; of them saved; where

    def add(self, obs, actions, rewards, terminated, truncated, next_obs, successors):
        """One step of every environment; each argument starts with the axis (num_envs,)."""
        assert actions.shape == rewards.shape == (self.num_envs,), (actions.shape, rewards.shape)
        assert terminated.shape == truncated.shape == (self.num_envs,), terminated.shape
        assert obs.shape == next_obs.shape == successors.shape, (obs.shape, next_obs.shape)
        t = self.total % self.slots
        self.put(t, obs)  # already there, as the last next_obs, except at a start or resume
        self.put((t + 1) % self.slots, next_obs)
        self.actions[t], self.rewards[t] = actions, rewards
        self.terminated[t], self.truncated[t] = terminated, truncated
        for env in range(self.num_envs):
            self.final_obs.pop((t, env), None)  # that of the step overwritten here
            if truncated[env] and not terminated[env]:
                self.final_obs[t, env] = successors[env].copy()
        self.total += 1

    def put(self, slot, obs):
        """Keeps an observation of every environment: of a stack its newest frame and `blank`.

        A stack begins with its oldest frame. `blank` is how many black ones come first; where the
        game itself was black, it counts too much, but then `observations` writes 0 over 0.
        """
        if self.stack == 1:
            self.frames[slot] = obs
        else:
            self.frames[slot] = obs[:, -1]
            seen = obs[:, :-1].any(axis=(2, 3))  # (num_envs, stack - 1): not black
            self.blank[slot] = np.where(seen.any(axis=1), seen.argmax(axis=1), self.stack - 1)

    def observations(self, slots, envs):  # (batch,), (batch,) -> (batch, *obs_shape)
        if self.stack == 1:
            return self.frames[slots, envs]
        offsets = np.arange(1 - self.stack, 1)  # oldest frame first, 0: the newest
        stacked = self.frames[(slots[:, None] + offsets) % self.slots, envs[:, None]]
        stacked[np.arange(self.stack) < self.blank[slots, envs][:, None]] = 0
        return stacked

    def sample(self, batch_size, n_step, gamma, rng):
        """Uniform over the steps t held: a dict of arrays with the first axis (batch_size,).

        rewards      r_t + gamma r_{t+1} + ..., n of them: n_step, fewer at the end of an episode or
                     of what is held
        discounts    gamma^n
        terminated   whether the task ended with the last of them
        next_obs     s_{t+n}; where terminated whatever came next, which td_target leaves out
        """
        ages = rng.integers(1, min(self.total, self.length) + 1, size=batch_size)  # 1: the newest
        envs = rng.integers(self.num_envs, size=batch_size)
        ks, powers = np.arange(n_step), np.float32(gamma ** np.arange(n_step + 1))
        slots = (self.total - ages[:, None] + ks) % self.slots  # (batch_size, n_step)
        flat = slots * self.num_envs + envs[:, None]  # for take, twice as fast as [slots, envs]
        ended = self.terminated.take(flat) | self.truncated.take(flat)
        ended[:, -1] = True  # so that argmax finds the last reward where no episode ended
        counts = np.minimum(ended.argmax(axis=1) + 1, ages)  # (batch_size,): up to the newest step
        rewards = (self.rewards.take(flat) * powers[:-1] * (ks < counts[:, None])).sum(axis=1)
        first = slots[:, 0]
        last = (first + counts - 1) % self.slots
        terminated = self.terminated[last, envs]
        next_obs = self.observations((last + 1) % self.slots, envs)
        for row in np.flatnonzero(self.truncated[last, envs] & ~terminated):
            next_obs[row] = self.final_obs[last[row], envs[row]]
        return {
            "obs": self.observations(first, envs),
            "actions": self.actions[first, envs],
            "rewards": rewards,
            "next_obs": next_obs,
            "terminated": terminated,
            "discounts": powers[counts],
        }

    def save(self, folder, step: int) -> dict:
        """Writes what is new since the last time to files of its own; returns what load needs."""
        first, piece = max(self.saved, self.total - self.slots), self.slots // 8 + 1
        for start in range(first, self.total, piece):  # piece by piece, since each is copied
            slots = np.arange(start, min(start + piece, self.total)) % self.slots
            arrays = {name: getattr(self, name)[slots] for name in REPLAY_ARRAYS}
            pairs = [(i, env) for i in range(len(slots)) for env in range(self.num_envs)]
            ends = [(i, env) for i, env in pairs if (slots[i], env) in self.final_obs]
            arrays["final_keys"] = np.array(ends, np.int64).reshape(-1, 2)
            arrays["final_obs"] = np.array([self.final_obs[slots[i], env] for i, env in ends])
            name = f"replay-{step:012d}-{start}.npz"
            write_file(folder / name, lambda file, arrays=arrays: np.savez(file, **arrays))
            self.files.append([name, len(slots)])
        while sum(count for _, count in self.files[1:]) >= self.slots:
            self.files.pop(0)  # all of it is overwritten by now
        self.saved = self.total
        return {"files": [list(pair) for pair in self.files], "total": self.total}

    def load(self, folder, state: dict):
        self.files = state["files"]
        self.total = self.saved = state["total"]
        start = self.total - sum(count for _, count in self.files)
        for name, count in self.files:
            slots = np.arange(start, start + count) % self.slots
            with np.load(folder / name, allow_pickle=False) as file:
                for array in REPLAY_ARRAYS:
                    getattr(self, array)[slots] = file[array]
                for (i, env), obs in zip(file["final_keys"], file["final_obs"], strict=True):
                    self.final_obs[int(slots[i]), int(env)] = obs
            start += count


def linear_schedule(start: float, end: float, duration: int, step: int) -> float:
    """From `start` at step 0 on a straight line to `end` at step `duration`, constant after it."""
    return start + (end - start) * min(step / duration, 1.0)


def td_target(rewards, discounts, terminated, next_values):
    """r + gamma^n V(s'), or r alone where the task ended; all of one shape."""
    assert rewards.shape == discounts.shape == terminated.shape == next_values.shape, rewards.shape
    return rewards + discounts * ~terminated * next_values


def project_categorical(support, next_probs, rewards, discounts, terminated):
    """Distribution of r + gamma^n Z(s') on the fixed support; eq. 7 of arXiv 1707.06887.

    support (atoms,), evenly spaced [units of return]; next_probs (batch, atoms), each row with sum
    1; rewards, discounts, terminated (batch,). Returns (batch, atoms): what falls beyond an end is
    the share of the atom there, what falls between two atoms goes to both, by nearness.
    """
    n_atoms, v_min, v_max = len(support), support[0], support[-1]
    assert next_probs.shape == (len(rewards), n_atoms), next_probs.shape
    assert rewards.shape == discounts.shape == terminated.shape == (len(rewards),), rewards.shape
    returns = rewards[:, None] + (discounts * ~terminated)[:, None] * support  # (batch, atoms)
    # where each return lies between atoms, (batch, atoms): 0 at the first, n_atoms - 1 at the last
    position = (returns.clamp(v_min, v_max) - v_min) / (v_max - v_min) * (n_atoms - 1)
    # never the last atom, so that there always is one above and the two shares sum to 1
    lower = position.long().clamp(max=n_atoms - 2)
    to_upper = next_probs * (position - lower)
    projected = torch.zeros_like(next_probs)
    projected[:, :-1].scatter_add_(1, lower, next_probs - to_upper)
    projected[:, 1:].scatter_add_(1, lower, to_upper)
    return projected


def q_loss(q_network, target_q_network, batch, args):
    """The TD loss of a batch, a scalar, and the logits of the actions taken, (batch, 1, atoms).

    batch: what ReplayBuffer.sample gives, as tensors.
    """
    rows = torch.arange(len(batch["actions"]), device=q_network.device)
    with torch.no_grad():  # the target is a constant: Q(s, a) moves towards it, not it to Q(s, a)
        next_logits = target_q_network(batch["next_obs"])  # (batch, actions, atoms)
        # double: eq. 4 of arXiv 1509.06461
        ranking_logits = q_network(batch["next_obs"]) if args.double else next_logits
        next_actions = q_network.q_values(ranking_logits).argmax(dim=1)
        next_logits = next_logits[rows, next_actions]  # (batch, atoms): of the best actions alone
        rewards, discounts, terminated = batch["rewards"], batch["discounts"], batch["terminated"]
        if args.n_atoms == 1:
            target = td_target(rewards, discounts, terminated, next_logits.squeeze(1))  # (batch,)
        else:
            next_probs = torch.softmax(next_logits, dim=1)
            target = project_categorical(
                q_network.support, next_probs, rewards, discounts, terminated
            )

    taken_logits = q_network(batch["obs"])[rows, batch["actions"]]  # (batch, atoms)
    if args.n_atoms == 1:
        q_values = taken_logits.squeeze(1)
        assert q_values.shape == target.shape, (q_values.shape, target.shape)
        loss_function = F.smooth_l1_loss if args.loss == "huber" else F.mse_loss
        loss = loss_function(q_values, target)
    else:
        assert taken_logits.shape == target.shape, (taken_logits.shape, target.shape)
        loss = F.cross_entropy(taken_logits, target)  # of each row, and the mean of the rows
    return loss, taken_logits.detach()[:, None]  # one action, in the shape that q_values takes


def update(q_network, target_q_network, optimizer, batch, args):
    """One gradient step. Returns what q_loss does; train makes Q of the logits when it logs."""
    loss, taken_logits = q_loss(q_network, target_q_network, batch, args)
    (vector,) = optimizer.param_groups[0]["params"]  # all parameters: see flatten
    vector.grad.zero_()
    loss.backward()
    clip_gradient(vector, args.max_grad_norm)
    optimizer.step()
    return loss.detach(), taken_logits


@torch.no_grad()
def polyak(target, source, tau: float):
    """target <- (1 - tau) target + tau source, for every parameter."""
    for p, q in zip(target.parameters(), source.parameters(), strict=True):
        p.lerp_(q, tau)


def make_agent(args, obs_space, action_space):
    """The network for these spaces, or a UserError that says why there is none."""
    if not isinstance(action_space, gym.spaces.Discrete):
        other = ": try ppo.py" if isinstance(action_space, gym.spaces.Box) else ""
        raise UserError(f"dqn takes Discrete action spaces, not {action_space}{other}")
    if args.bf16 and len(obs_space.shape) != 3:
        raise UserError("bf16 is for images")
    return QNetwork(
        obs_space.shape,
        int(action_space.n),
        n_atoms=args.n_atoms,
        v_min=args.v_min,
        v_max=args.v_max,
        dueling=args.dueling,
        bf16=args.bf16,
        hidden_sizes=args.hidden_sizes,
    )


def evaluation_action(agent, obs, rng, args):
    return agent.act(obs, args.eval_epsilon, rng)


def train(args: Args, run: "Run"):
    rng = np.random.default_rng(args.seed)
    q_network = make_agent(args, run.obs_space, run.action_space).to(run.device)
    target_q_network = make_agent(args, run.obs_space, run.action_space).to(run.device)
    vector = flatten(q_network)
    optimizer = torch.optim.Adam([vector], lr=args.learning_rate, eps=args.adam_eps, fused=True)
    # Atari's observations are stacks of four frames, see make_atari
    stack = 4 if args.env_id.startswith("ALE/") else 1
    buffer = ReplayBuffer(args.buffer_size, args.num_envs, run.obs_space, stack)
    schedule_steps = args.anneal_steps or args.total_timesteps
    final_learning_rate = 0.0 if args.anneal_lr else args.learning_rate
    fraction_steps = max(1, args.exploration_fraction * args.total_timesteps)
    exploration_steps = args.exploration_steps or fraction_steps
    history = deque(maxlen=2_000)  # what updates returned since the last point of the curves

    step, obs = run.start(
        agent=q_network, target=target_q_network, optimizer=optimizer, rng=rng, buffer=buffer
    )
    if step == 0:  # only now, since run.start may have loaded other weights
        target_q_network.load_state_dict(q_network.state_dict())
    q_network.best_actions = run.recorded(q_network.best_actions)  # on a GPU as CUDA graphs
    learn = run.recorded(
        lambda batch: update(q_network, target_q_network, optimizer, batch, args), optimizer
    )
    while step < args.total_timesteps:
        before, end = step, min(step + args.train_frequency, args.total_timesteps)
        while step < end:
            epsilon = linear_schedule(args.start_e, args.end_e, exploration_steps, step)
            actions = q_network.act(obs, 1.0 if step < args.learning_starts else epsilon, rng)
            # next_obs is acted on next: after an episode's end, the new one's first. successors are
            # what the actions led to: after an episode's end, its true last observation
            next_obs, rewards, terminated, truncated, successors = run.step(actions)
            if args.clip_reward:
                rewards = np.sign(rewards)
            buffer.add(obs, actions, rewards, terminated, truncated, next_obs, successors)
            obs, step = next_obs, step + args.num_envs

        learning_rate = linear_schedule(
            args.learning_rate, final_learning_rate, schedule_steps, before
        )
        set_learning_rate(optimizer, learning_rate)
        if step >= args.learning_starts:
            for _ in range(args.gradient_steps):
                batch = buffer.sample(args.batch_size, args.n_step, args.gamma, rng)
                batch = {k: torch.as_tensor(v, device=run.device) for k, v in batch.items()}
                history.append(learn(batch))
        # where a multiple of the frequency was passed, also when steps of train_frequency miss it
        if step // args.target_network_frequency > before // args.target_network_frequency:
            polyak(target_q_network, q_network, args.tau)

        scalars = {"charts/epsilon": epsilon, "charts/learning_rate": learning_rate}
        if history and run.logs_now():
            td_losses, taken_logits = zip(*history, strict=True)
            taken_logits = torch.cat(taken_logits)  # (updates * batch, 1, atoms)
            scalars["losses/td_loss"] = torch.stack(td_losses).mean().item()
            if args.n_atoms == 1:
                scalars["losses/q_values"] = taken_logits.mean().item()
            else:  # Q is linear in the probabilities: the mean of them has the mean Q
                probs = torch.softmax(taken_logits, dim=2).mean(dim=(0, 1))  # (atoms,)
                scalars["losses/q_values"] = (probs @ q_network.support).item()
                scalars["losses/mass_at_ends"] = (probs[0] + probs[-1]).item()
            if args.batch_size > 1:  # one state has no spread
                with torch.no_grad():
                    q_values = q_network.q_values(q_network(batch["obs"]))  # (batch, actions)
                scalars["losses/q_spread"] = q_values.std(dim=0, correction=0).mean().item()
            history.clear()
        run.end_iteration(scalars)
    return q_network


# --------------------------------------------------------------------------------------------------
# The algorithm ends here. All below is plumbing, the same bytes in every script of this collection.
# It uses ALGO, Args, flatten, make_agent, evaluation_action, train and a replay buffer's save and
# load. The algorithm uses UserError, require_range, set_learning_rate, for a replay buffer
# require_memory and write_file, and of `run` obs_space, action_space, device, start, recorded,
# step, logs_now and end_iteration.


@dataclass
class RunArgs(Args):
    """What every script can do, whatever its algorithm."""

    config: str | None = None
    """Settings from a TOML file: FILE has a table named as the script, or FILE:TABLE names one."""
    resume: str | None = None
    """Goes on exactly where the last checkpoint of this run folder stands."""
    evaluate: str | None = None
    """Plays episodes with the trained agent of this run folder, and trains nothing."""
    eval_episodes: int = 10
    """Episodes of an evaluation, one in each of as many environments."""
    eval_frequency: int = 0
    """Steps between evaluations during training; 0: only at the end."""
    log_frequency: int = 500
    """Steps between points of the curves, each at the end of an iteration; returns are the mean
    since the last one."""
    capture_video: bool = False
    """Films an episode at each evaluation, into the run folder."""
    episodic_life: bool = False
    """Atari: a lost life ends the episode for learning; the game goes on, and so does its score."""
    sticky_actions: float = 0.0
    """Atari: probability that the game repeats the last action. gymnasium's ALE ids have 0.25."""
    keep_replay: bool = False
    """Keeps the replay buffer's files when the run is finished, so that it can be prolonged: from
    its last checkpoint, and if no schedule ends with total_timesteps."""
    init_weights: str | None = None
    """Starts from the weights in this .npz file, matched by name."""
    save_init: str | None = None
    """Writes the weights that training starts from to this .npz file."""
    device: str = "auto"
    """cpu, cuda, mps; auto: CUDA for images where there is any, the CPU for vectors."""
    cuda_graphs: bool = True
    """On CUDA: records what is computed again and again as CUDA graphs, and replays them."""
    torch_threads: int = 0
    """CPU threads of torch, NumPy and Atari; 0: as many as make this script fastest, all or one."""
    runs_dir: str = "runs"
    """Where run folders are made."""

    def __post_init__(self):
        super().__post_init__()
        self.env_id = self.env_id.removeprefix("ale_py:")  # env_spec imports it anyway
        require_range(self, "eval_episodes log_frequency", low=1)
        require_range(self, "eval_frequency", low=0)
        require_range(self, "torch_threads", low=0, high=1024)
        require_range(self, "sticky_actions", low=0, high=1)
        require_range(self, "seed", low=0, high=2**64 - 1)  # torch takes no larger one
        if (self.episodic_life or self.sticky_actions) and not self.env_id.startswith("ALE/"):
            raise UserError("episodic_life and sticky_actions are for Atari games, ALE/...-v5")
        if sum(flag is not None for flag in (self.config, self.resume, self.evaluate)) > 1:
            raise UserError("config, resume and evaluate exclude each other")


NOT_OF_A_RUN = ("config", "resume", "evaluate")  # flags that say what to do, not how to train

# flags of CleanRL without a meaning here, and what to use instead
CLEANRL_FLAGS = {
    "--track": "scalars go to TensorBoard, from the run folder; nothing is uploaded",
    "--cuda": "use --device cuda or --device cpu",
    "--torch-deterministic": "runs always repeat exactly",
    "--exp-name": "the script's name is the algorithm's",
    "--save-model": "the weights are always saved, as weights.npz",
    "--num-iterations": "use --total-timesteps",
    "--minibatch-size": "ppo has --num-minibatches, dqn and td3 --batch-size, a2c neither",
    "--batch-size": "a batch is a rollout, --num-envs times --num-steps",
} | dict.fromkeys(
    ("--wandb-project-name", "--wandb-entity", "--upload-model", "--hf-entity"),
    "nothing is uploaded; a run folder is all there is",
)


class UserError(Exception):
    """Something the user can mend: ends the script with this one line and exit status 2."""


class RunFailed(Exception):
    """The run cannot go on: ends the script with this one line and exit status 1."""


def require_range(args, names: str, low, high=math.inf):
    """Raises UserError for the first of the fields that lies outside; None lies nowhere."""
    for name in names.split():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            limit = f"at least {low}" if high == math.inf else f"between {low} and {high}"
            raise UserError(f"{name}={value} must be {limit}")


def parse_args(argv: list[str]) -> RunArgs:
    """The command line, over the config file or the arguments of a saved run: typed flags win."""
    own = {"--" + f.name.replace("_", "-") for f in fields(RunArgs)}
    for flag in (text.split("=")[0].replace("_", "-") for text in argv):
        if flag.replace("--no-", "--") in CLEANRL_FLAGS.keys() - own:
            raise UserError(f"{flag} is not needed: {CLEANRL_FLAGS[flag.replace('--no-', '--')]}")
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in NOT_OF_A_RUN:
        early.add_argument(f"--{name}", nargs="?")
    known, _ = early.parse_known_args(argv)
    saved = RunArgs()
    if known.config is not None:  # an empty one is refused below, not taken for none
        argv = config_flags(known.config) + argv  # the last of a repeated flag counts
    elif (folder := known.evaluate if known.resume is None else known.resume) is not None:
        saved = load_args(folder)
    args = tyro.cli(RunArgs, args=argv, default=saved, description=__doc__.split("\n\n")[0])
    if args.resume:
        for name, value in settings_of(saved).items():
            if getattr(args, name) == value:
                continue
            kept = f"a resumed run keeps its {name}={value}"
            if name != "total_timesteps":
                raise UserError(f"{kept}: only total_timesteps can be another")
            if saved.budget_is_fixed:
                raise UserError(f"{kept}: a schedule ends with it")
            if args.total_timesteps < value:
                raise UserError(f"total_timesteps can grow from {value}, not shrink")
    return args


def config_flags(config: str) -> list[str]:
    """A table of a TOML file as command-line flags, so that tyro checks its names and types."""
    path, _, table = config.rpartition(":")
    if not Path(path).is_file():  # no table named; a colon may belong to the path
        path, table = config, ALGO
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"--config {path}: {error}") from None
    if not isinstance(tables.get(table), dict):
        raise UserError(f"--config {path}: no table [{table}], only {', '.join(tables) or 'none'}")
    flags = []
    for name, value in tables[table].items():
        if name not in {f.name for f in fields(RunArgs)} - set(NOT_OF_A_RUN):
            raise UserError(f"--config {path}: [{table}] names {name}, no argument of {ALGO}")
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            flags += [f"--{flag}", *map(str, value)]
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def load_args(folder: str) -> RunArgs:
    """The arguments of a saved run."""
    try:
        # as text, since Path("") is the present folder, which may be one
        saved = json.loads(Path(f"{folder}/args.json").read_text())
        if saved["algo"] != ALGO:
            raise UserError(f"{folder} is a run of {saved['algo']}.py, not of {ALGO}.py")
        values = saved["args"].items()
        return RunArgs(**{k: tuple(v) if isinstance(v, list) else v for k, v in values})
    except OSError:
        raise UserError(f"{folder} is not a run folder: it has no args.json") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{folder}/args.json does not fit this script: {error}") from None


def env_spec(env_id: str):
    """gymnasium's entry for an id, after importing what registers it."""
    module, _, name = env_id.rpartition(":")
    if name.startswith("ALE/"):
        module = "ale_py"
    elif "BulletEnv-" in name and module in ("", "pybullet_envs_gymnasium"):
        module = "pybullet_envs_gymnasium"
        quiet_pybullet()
    if module:
        importlib.import_module(module)
    spec = gym.spec(name)
    if "mujoco" in sys.modules or "mujoco" in str(spec.entry_point):
        quiet_mujoco()
    return spec


def make_envs(args: RunArgs, num_envs: int, training: bool = True, **keywords):
    """Copies of an environment with vectors or channel-first images, under same-step autoreset."""
    try:
        refuse_old_atari_id(args.env_id)
        env_spec(args.env_id)
        if args.env_id.startswith("ALE/"):
            return make_atari(args, num_envs, training)
        make = [lambda: make_env(args.env_id, **keywords)] * num_envs
        return SyncEnvs(make, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    except gym.error.DependencyNotInstalled as error:  # which has its own advice
        raise UserError(f"{args.env_id} needs a package that is missing: {error}") from None
    except ImportError as error:
        advice = f"; pip install {error.name}" if error.name else ""
        if error.name and error.name.split(".")[0] == args.env_id.rpartition(":")[0].split(".")[0]:
            advice = "; is its folder in PYTHONPATH?"
        raise UserError(f"{args.env_id} needs a package that is missing: {error}{advice}") from None
    except UserError:
        raise
    except gym.error.Error as error:
        near = difflib.get_close_matches(args.env_id, gym.registry)
        advice = f"; near it are {', '.join(near)}" if near else ""
        raise UserError(f"environment {args.env_id!r}: {error}{advice}") from None
    except Exception as error:  # in what the user wrote
        raise UserError(f"environment {args.env_id!r}: {what_and_where(error)}") from None


def make_env(env_id: str, **keywords):
    """One environment with vectors of float32 or uint8, or with channel-first images of uint8."""
    env = gym.make(env_id, **keywords)
    space = env.observation_space
    if space.dtype == np.uint8 and len(space.shape) in (2, 3, 4):
        # (H, W) becomes (1, H, W), (H, W, C) (C, H, W), and a stack of them (stack * C, H, W)
        channels_last = len(space.shape) > 2 and space.shape[-1] < min(space.shape[-3:-1])
        unit = np.uint8(255 // max(space.high.max(), 1))  # masks of 0 and 1 become 0 and 255

        def convert(x):
            x = np.moveaxis(x, -1, -3) if channels_last else x
            return x.reshape(-1, *x.shape[-2:]) * unit

        shape = convert(np.empty(space.shape)).shape
        image_space = gym.spaces.Box(0, 255, shape, np.uint8)
        env = gym.wrappers.TransformObservation(env, convert, image_space)
    elif not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)  # Discrete becomes one-hot
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box) or 0 in space.shape:
        text = "its observations have no fixed size, or none"
        raise UserError(f"environment {env_id!r}: {text}: {space}")
    if space.dtype not in (np.uint8, np.float32):
        space = gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        env = gym.wrappers.TransformObservation(env, np.float32, space)
    if isinstance(env.action_space, gym.spaces.Discrete):
        start, n = env.action_space.start, env.action_space.n
        if env.action_space != gym.spaces.Discrete(n):  # not from 0, or not of int64
            # start has the type that the environment takes
            env = gym.wrappers.TransformAction(
                env, lambda a: type(start)(a + start), gym.spaces.Discrete(n)
            )
    if isinstance(env.action_space, gym.spaces.Box) and env.action_space.dtype.kind != "f":
        raise UserError(f"environment {env_id!r}: actions must be real, not {env.action_space}")
    if isinstance(env.action_space, gym.spaces.Box) and env.action_space.dtype != np.float32:
        bounds = env.action_space.low, env.action_space.high  # which float32 may round outwards
        env = gym.wrappers.TransformAction(
            env,
            lambda a: np.asarray(np.clip(a, *bounds), bounds[0].dtype),
            gym.spaces.Box(*(np.asarray(bound, np.float32) for bound in bounds)),
        )
    return env


class SyncEnvs(gym.vector.SyncVectorEnv):
    """gymnasium's, but for a step without what nothing here reads: of infos it hands on the last
    observations of episodes alone, as {environment: observation}. To merge the others takes time,
    and fails where they have not the same form. A step of one CartPole takes half of the time, of
    one HalfCheetah three quarters.
    """

    def step(self, actions):
        num_envs, space, rows, final_obs = self.num_envs, self.observation_space, [], {}
        rewards, terminated = np.zeros(num_envs), np.zeros(num_envs, np.bool_)
        truncated = np.zeros(num_envs, np.bool_)
        for i, env in enumerate(self.envs):
            obs, rewards[i], terminated[i], truncated[i], _ = env.step(actions[i])
            if terminated[i] or truncated[i]:
                final_obs[i] = np.array(obs)  # a copy: the reset may write over it
                obs, _ = env.reset()
            rows.append(obs)
        obs = np.array(rows, space.dtype)
        if obs.shape != space.shape:
            raise ValueError(f"observations: their shape is {obs.shape} instead of {space.shape}")
        return obs, rewards, terminated, truncated, {"final_obs": final_obs}


def make_atari(args: RunArgs, num_envs: int, training: bool, **picture):
    """Atari games, preprocessed by ale_py as for the Nature DQN: up to 30 no-ops at the start, four
    frames to an action, the maximum of the last two, grey, 84 x 84, four of them stacked.
    """
    envs = gym.make_vec(
        args.env_id,
        num_envs=num_envs,
        vectorization_mode="vector_entry_point",
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        num_threads=min(args.torch_threads, num_envs),  # more would only be in each other's way
        repeat_action_probability=args.sticky_actions,
        life_loss_info=args.episodic_life and training,
        reward_clipping=False,
        **picture,
    )
    return AtariEnvs(envs)


class AtariEnvs(gym.vector.VectorWrapper):
    """Hands on last observations as SyncEnvs does, of games that are over alone.

    ale_py sets `terminated` at a lost life, too, where the game goes on and `final_obs` is stale.
    """

    def reset(self, *, seed):
        obs, info = self.env.reset(seed=np.array(seed, np.int32))
        self.frames = info["episode_frame_number"]
        return obs, info

    def step(self, actions):
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        over = (terminated | truncated) & (info["episode_frame_number"] < self.frames)
        self.frames = info["episode_frame_number"]
        final_obs = {i: info["final_obs"][i] for i in np.flatnonzero(over)}
        return obs, rewards, terminated, truncated, {"final_obs": final_obs}


def refuse_old_atari_id(env_id: str):
    """PongNoFrameskip-v4 and its like, games without the preprocessing that is built in here."""
    old = re.fullmatch("([A-Z][A-Za-z]+?)(NoFrameskip|Deterministic)?-v[045]", env_id)
    with contextlib.suppress(ImportError):
        if old and importlib.import_module("ale_py") and f"ALE/{old[1]}-v5" in gym.registry:
            raise UserError(f"environment {env_id!r}: use ALE/{old[1]}-v5")


def quiet_pybullet():
    """PyBullet's C code greets on stdout and stderr. Python keeps its own ways there."""
    if "pybullet" not in sys.modules:
        sys.stdout.flush()
        sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
        stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        with contextlib.suppress(ImportError):
            importlib.import_module("pybullet")
        os.dup2(stderr, 2)


def quiet_mujoco():
    """Keeps MuJoCo 4 from a MUJOCO_LOG.TXT about what is deprecated in gymnasium's models."""
    import mujoco

    mujoco.set_mju_user_warning(
        lambda text: None if "deprecated" in text else print(f"mujoco: {text}", file=sys.stderr)
    )


def env_seeds(num_envs: int, *entropy: int) -> list[int]:
    """Independent seeds for environments; 31 bits, the most that all environments take."""
    return [int(s) >> 1 for s in np.random.SeedSequence(entropy).generate_state(num_envs)]


def reset(envs, *entropy: int):
    """The first observations, by seeds that follow from `entropy`."""
    seeds = env_seeds(envs.num_envs, *entropy)
    random.seed(seeds[0])  # these two for environments without a generator of their own
    np.random.seed(seeds[0])
    obs, _ = envs.reset(seed=seeds)
    require_finite("first observation", obs)
    return obs


def what_and_where(error: Exception) -> str:
    """An error in a line: its type, its words and, where it is not of this script, its place."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f" ({place.filename}:{place.lineno})" if place.filename != __file__ else ""
    return f"{type(error).__name__}: {first_line(error)}{where}"


def environment_failed(env_id: str, when: str, error: Exception, actions=()) -> RunFailed:
    """The environment's own error in a line: which, when, what and where; or whose else it is."""
    if not np.isfinite(actions).all():
        return RunFailed(f"the agent's actions are not finite {when}")
    return RunFailed(f"{env_id} failed {when}: {what_and_where(error)}")


@contextlib.contextmanager
def failures_named(env_id: str, when: str, actions=()):
    try:
        yield
    except Exception as error:
        raise environment_failed(env_id, when, error, actions) from error


def require_finite(what: str, x):
    """Raises FloatingPointError where `x`, whose rows are environments, has a NaN or infinity."""
    # a sum of squares takes half the time of isfinite, which is asked only if it overflowed
    if x.dtype != np.uint8 and not math.isfinite(np.vdot(x, x)) and not np.isfinite(x).all():
        index = tuple(np.argwhere(~np.isfinite(x))[0])
        raise FloatingPointError(f"{what} of environment {index[0]}: {x[index]}")


def true_successors(next_obs, final_obs: dict):
    """`next_obs`, but with the last observation of each environment whose episode ended."""
    successors = next_obs.copy()
    for i, obs in final_obs.items():
        if obs.shape != next_obs[i].shape:
            shapes = f"{obs.shape} instead of {next_obs[i].shape}"
            raise ValueError(f"last observation of environment {i}: its shape is {shapes}")
        successors[i] = obs
    require_finite("last observation", successors)
    return successors


LONGEST_EPISODE = 100_000  # steps of one in an evaluation; without a time limit it might not end


def evaluate(agent, args: RunArgs, when: str = "in the evaluation"):
    """Returns of one episode in each of `eval_episodes` environments with seeds of their own.

    An environment that fails raises RunFailed, which says `when` it was.
    """
    with failures_named(args.env_id, when):
        envs = make_envs(args, args.eval_episodes, training=False)
        obs = reset(envs, args.seed, 0, 1)
    rng = np.random.default_rng([args.seed, 1, 1])
    returns, running = np.zeros(args.eval_episodes), np.ones(args.eval_episodes, np.bool_)
    for _ in range(LONGEST_EPISODE):
        actions = evaluation_action(agent, obs, rng, args).reshape(envs.action_space.shape)
        with failures_named(args.env_id, when, actions):
            obs, rewards, terminated, truncated, _ = envs.step(actions)
            require_finite("observation", obs)
            require_finite("reward", rewards)
        returns += rewards * running
        running &= ~(terminated | truncated)
        if not running.any():
            break
    else:
        text = f"{args.env_id}: an episode has no end after {LONGEST_EPISODE:,} steps {when};"
        print(f"{text} its return so far counts. It needs a time limit", file=sys.stderr)
    with failures_named(args.env_id, when):
        envs.close()
    return returns


def film(agent, args: RunArgs, path: Path):
    """One episode as an mp4. What this machine lacks for it is said in a line, and ends nothing."""
    from tqdm import tqdm  # whose `write` leaves the progress bar whole

    temporary = path.with_suffix(".part.mp4")
    try:
        import imageio

        path.parent.mkdir(exist_ok=True)
        keywords = {"render_mode": "rgb_array"}
        if str(env_spec(args.env_id).entry_point).startswith("gymnasium.envs.mujoco"):
            keywords["camera_name"] = "track"  # else a cheetah runs out of the picture
        envs = make_envs(args, 1, training=False, **keywords)
        obs = reset(envs, args.seed, 0, 1)
        in_colour = None
        if args.env_id.startswith("ALE/"):  # the same game, seen whole and in colour
            size = dict(img_height=210, img_width=160, grayscale=False, stack_num=1)
            in_colour = make_atari(args, 1, training=False, **size)
            pictures = reset(in_colour, args.seed, 0, 1)
        # of a game's 60 frames a second every fourth is seen
        fps = 15 if in_colour else envs.metadata.get("render_fps", 30)
        rng = np.random.default_rng([args.seed, 1, 1])
        with imageio.get_writer(temporary, fps=fps, macro_block_size=2) as video:
            for _ in range(LONGEST_EPISODE):
                video.append_data(pictures[0, 0] if in_colour else envs.envs[0].render())
                actions = evaluation_action(agent, obs, rng, args).reshape(envs.action_space.shape)
                obs, _, terminated, truncated, _ = envs.step(actions)
                if in_colour:
                    pictures, *_ = in_colour.step(actions)
                if terminated[0] or truncated[0]:
                    break
        envs.close()
        os.replace(temporary, path)
        tqdm.write(f"video        {path}")
    except Exception as error:  # drawing fails in as many ways as there are drivers
        temporary.unlink(missing_ok=True)
        tqdm.write(f"no video: {type(error).__name__}: {first_line(error)}", file=sys.stderr)


def draw_without_display():
    """Lets pygame and MuJoCo draw on a machine without a screen; both decide when imported."""
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if ctypes.util.find_library("EGL"):
            os.environ.setdefault("MUJOCO_GL", "egl")


def write_file(path: Path, write):
    """All or nothing, whenever the power goes: written beside, flushed to the disk, renamed."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, content: dict):
    write_file(path, lambda file: file.write(json.dumps(content, indent=2).encode() + b"\n"))


def to_arrays(agent) -> dict:
    """The agent's state_dict as NumPy arrays: parameters, and the buffers that acting needs."""
    return {name: tensor.cpu().numpy() for name, tensor in agent.state_dict().items()}


def save_weights(agent, path: Path):
    write_file(path, lambda file: np.savez(file, **to_arrays(agent)))


def load_weights(agent, path: Path, only_learned: bool = False):
    """Loads an .npz file by name; with `only_learned`, the agent may have statistics that the file
    has not, and the file those of rewards, which acting does not need.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: torch.as_tensor(file[name]) for name in file.files}
    except Exception as error:  # a damaged file fails in as many ways as it has bytes
        raise UserError(f"{path} holds no weights: {first_line(error)}") from None
    wanted, parameters = agent.state_dict(), dict(agent.named_parameters())
    missing, unknown, names = wanted.keys() - arrays, arrays.keys() - wanted, wanted.keys()
    if only_learned:
        missing = {name for name in missing if name in parameters}
        unknown = {name for name in unknown if not name.startswith("return_moments.")}
        names = {name for name in names & arrays if name in parameters or "_moments." in name}
    faults = [f"lacks {name}" for name in sorted(missing)]
    faults += [f"has {name}, which the agent has not" for name in sorted(unknown)]
    if faults:
        raise UserError(f"{path} {'; '.join(faults)}")
    for name in sorted(names):
        if wanted[name].shape != arrays[name].shape:
            shapes = f"{tuple(arrays[name].shape)}, in the agent {tuple(wanted[name].shape)}"
            raise UserError(f"{path}: the shape of {name} is {shapes}")
    # action bounds and a distribution's support: of others the weights mean something else
    for name in sorted((wanted.keys() & arrays) - parameters.keys()):
        if "_moments." not in name and not torch.equal(wanted[name].cpu(), arrays[name]):
            raise UserError(f"{path}: {name} is not the agent's: it was trained with another")
    agent.load_state_dict({name: arrays[name] for name in names}, strict=False)


def remove_replay(folder: Path, needed=()):
    for path in folder.glob("replay-*.npz"):
        if path.name not in needed:
            path.unlink()


def run_hash(agent) -> str:
    """SHA-256 over the names and arrays of weights.npz."""
    digest = hashlib.sha256()
    for name, array in sorted(to_arrays(agent).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Run:
    """One training run: its environments, its folder, its curves and its checkpoints."""

    def __init__(self, args: RunArgs):
        self.args, self.step_count = args, 0
        self.seconds_before, self.started = 0.0, time.perf_counter()
        self.folder = Path(args.resume) if args.resume else None
        # the lock first: another process may be writing the checkpoint
        self.lock = lock(self.folder) if args.resume else None
        self.checkpoint = load_checkpoint(self.folder) if args.resume else None
        self.envs = make_envs(args, args.num_envs)
        self.obs_space, self.action_space = agent_spaces(self.envs)
        self.device = choose_device(args, self.obs_space)
        for name, value in self.checkpoint.get("args", {}).items() if args.resume else ():
            if name != "total_timesteps" and getattr(args, name) != value:
                found = f"{name}={getattr(args, name)}, its checkpoint {name}={value}"
                raise UserError(f"{self.folder}/args.json has {found}: they belong together")
        torch.manual_seed(args.seed)
        # a boundary always ends an iteration, so that no half-filled rollout must be saved
        iterations = math.ceil(args.checkpoint_frequency / args.iteration_steps)
        self.period = iterations * args.iteration_steps  # steps from one checkpoint to the next
        self.episode_returns = np.zeros(args.num_envs)
        self.episode_lengths = np.zeros(args.num_envs)
        self.finished = []  # (return, length) of the episodes since the last point of the curves
        self.worth, self.sick_since, self.warned = 0.0, {}, set()  # see watch
        self.reward_sizes = np.zeros(args.num_envs)  # |rewards| since that point, summed
        self.recent_returns = deque(maxlen=20)
        self.eval_returns = self.progress = None

    def start(self, **parts):
        """Takes what a checkpoint keeps: modules (the `agent`), optimizers, a NumPy generator, and
        replay buffers, which write files of their own.

        Returns the step to go on from, 0 in a new run, and the first observations.
        """
        from torch.utils.tensorboard import SummaryWriter

        self.parts, agent = parts, parts["agent"]
        if self.checkpoint:
            self.restore()
        else:
            if self.args.init_weights is not None:
                load_weights(agent, Path(self.args.init_weights), only_learned=True)
            if self.args.save_init is not None:
                path = Path(self.args.save_init)
                if path.is_dir() or not path.parent.is_dir():
                    raise UserError(f"--save-init {path} is a folder, or lies in none")
                save_weights(agent, path)
            self.folder = new_run_folder(self.args)
            self.lock = lock(self.folder)
        about = describe(self.args)
        if self.checkpoint:
            (self.folder / "result.json").unlink(missing_ok=True)  # of a training with fewer steps
            before = json.loads((self.folder / "args.json").read_text())
            now = about["versions"]
            about |= {k: before[k] for k in ("command", "versions", "resumed_with") if k in before}
            others = {k: now.get(k) for k, v in about["versions"].items() if now.get(k) != v}
            for name in others:
                print(f"resumed with another {name}: it may not be exact", file=sys.stderr)
            if others:
                about["resumed_with"] = [*about.get("resumed_with", []), others]
        write_json(self.folder / "args.json", about)
        purge_step = self.step_count + 1 if self.checkpoint else None
        self.writer = SummaryWriter(self.folder, purge_step=purge_step)
        if not self.checkpoint:
            self.write_header(agent, about["command"])
            self.save()
        where = f"{self.device} with {torch.get_num_threads()} torch thread(s)"
        print(f"{self.args.env_id}, seed {self.args.seed}, on {where}: {self.folder}", flush=True)
        if getattr(self.args, "learning_starts", 0) > self.args.total_timesteps:
            advice = "--learning-starts is above --total-timesteps"
            print(f"health: the run ends before it learns: {advice}", file=sys.stderr)
        if getattr(self.args, "bf16", False) and self.device.type == "cpu":
            known, names = torch.cpu.get_capabilities(), ("amx_bf16", "avx512_bf16", "bf16")
            if not any(known.get(name) for name in names):
                advice = "--no-bf16 is faster, and rounds less"
                print(f"health: this CPU does not know bfloat16: {advice}", file=sys.stderr)
        self.first_step = self.last_step = self.last_point = self.step_count
        self.started = time.perf_counter()
        self.progress = Progress(self.args.total_timesteps, self.step_count)
        return self.step_count, self.reset_envs()

    def recorded(self, function, *optimizers):
        """`function`, on a GPU as CUDA graphs. Optimizers that it steps are made fit for that."""
        if self.device.type != "cuda" or not self.args.cuda_graphs:
            return function
        # that torch says a recorded optimizer is slow where it is not replayed: for one call
        warnings.filterwarnings("ignore", ".*capturable=True")
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["capturable"] = True
            group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
        return Recorded(function)

    def reset_envs(self):
        with failures_named(self.args.env_id, f"after step {self.step_count}"):
            return reset(self.envs, self.args.seed, self.step_count)

    def step(self, actions):
        """Steps every environment once.

        actions (num_envs, ...). Returns next_obs, rewards, terminated, truncated and successors,
        all with the first axis (num_envs,). Where an episode ended, next_obs is the first
        observation of the next and successors the true last one; elsewhere the two are equal.
        """
        actions = actions.reshape(self.envs.action_space.shape)
        try:
            next_obs, rewards, terminated, truncated, info = self.envs.step(actions)
            require_finite("observation", next_obs)
            require_finite("reward", rewards)
            final_obs = info["final_obs"]  # of Atari's lives only after the last one
            successors = true_successors(next_obs, final_obs) if final_obs else next_obs
        except Exception as error:
            when = f"after step {self.step_count}"
            raise environment_failed(self.args.env_id, when, error, actions) from error
        self.step_count += self.args.num_envs
        self.episode_returns += rewards
        self.episode_lengths += 1
        self.reward_sizes += np.abs(rewards)
        for i in final_obs:
            self.finished.append((self.episode_returns[i], self.episode_lengths[i]))
            self.recent_returns.append(self.episode_returns[i])
            self.episode_returns[i] = self.episode_lengths[i] = 0
        if self.step_count % self.period == 0:
            next_obs = self.cut_episodes()
            truncated = ~terminated
        return next_obs, rewards.astype(np.float32), terminated, truncated, successors

    def cut_episodes(self):
        """Begins every episode anew, in new environments with seeds that follow from the step.

        So a run that is resumed here needs nothing of the environments that were.
        """
        with failures_named(self.args.env_id, f"after step {self.step_count}"):
            self.envs.close()
            self.envs = make_envs(self.args, self.args.num_envs)
        self.episode_returns[:] = self.episode_lengths[:] = 0
        return self.reset_envs()

    def end_iteration(self, scalars: dict) -> int:
        """Logs, evaluates and saves what is due. Returns the step."""
        args, step = self.args, self.step_count
        for name, value in scalars.items():
            if not math.isfinite(value):
                raise RunFailed(f"{name} is {value} at step {step}")
        if self.logs_now():
            self.write_scalars(scalars)
        self.eval_returns = None
        try:
            if self.due(args.eval_frequency):
                self.eval_returns = self.evaluate()
        except RunFailed:
            if step % self.period == 0:
                self.save()  # so that it costs no training: a resumed run goes on after it
            raise
        if step % self.period == 0:
            self.save()
        self.progress.show(step, self.sps(), self.recent_returns)
        self.last_step = step
        return step

    def due(self, every: int) -> bool:
        """Whether a multiple of `every` steps lies in this iteration; 0: never."""
        return every > 0 and self.step_count // every > self.last_step // every

    def logs_now(self) -> bool:
        """Whether this iteration ends with a point of the curves."""
        step = self.step_count
        at_end = step >= self.args.total_timesteps
        return self.due(self.args.log_frequency) or step % self.period == 0 or at_end

    def sps(self) -> float:
        return (self.step_count - self.first_step) / (time.perf_counter() - self.started)

    def write_scalars(self, scalars: dict):
        scalars = {**scalars, "charts/SPS": self.sps()}
        if self.finished:
            returns, lengths = np.mean(self.finished, axis=0)
            scalars |= {"charts/episodic_return": returns, "charts/episodic_length": lengths}
            self.finished.clear()
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, self.step_count)
        self.watch(scalars)

    def watch(self, scalars: dict):
        """Says, once, what has looked sick at every point of the curves for a tenth of the run, and
        for 2,000 steps of each environment.
        """
        args, step = self.args, self.step_count
        if args.gamma < 1:
            mean_size = self.reward_sizes.sum() / (step - self.last_point)
            if getattr(args, "clip_reward", False):
                mean_size = 1.0  # the largest that is learned from
            self.worth = max(self.worth, mean_size / (1 - args.gamma))
        self.reward_sizes[:], self.last_point = 0, step
        early = step <= args.total_timesteps / 2
        floor = least_entropy(self.action_space) if early else -math.inf
        found = symptoms(scalars, self.worth, floor)
        self.sick_since = {name: self.sick_since.get(name, step) for name in found}
        for name, since in self.sick_since.items():
            long = step - since >= max(args.total_timesteps / 10, 2_000 * args.num_envs)
            if long and name not in self.warned:
                self.warned.add(name)
                text = f"since step {since:,} {found[name]}"
                self.writer.add_text("health", text, step)
                self.progress.bar.write(f"health: {text}", file=sys.stderr)

    def evaluate(self):
        agent, args = self.parts["agent"], self.args
        returns = evaluate(agent, args, f"in the evaluation after step {self.step_count}")
        if args.capture_video:
            film(agent, args, self.folder / "videos" / f"step-{self.step_count}.mp4")
        self.writer.add_scalar("eval/episodic_return", returns.mean(), self.step_count)
        return returns.tolist()

    def write_header(self, agent, command: str):
        """Hyperparameters for the HParams tab; the command and the table of parameters as text."""
        from torch.utils.tensorboard.summary import hparams

        plain = bool | int | float | str
        values = {k: v if isinstance(v, plain) else str(v) for k, v in asdict(self.args).items()}
        # the run's own values alone: told of an experiment's columns, TensorBoard shows no others,
        # and so of other algorithms only what they have in common with the first
        self.writer.file_writer.add_summary(hparams({"algo": ALGO, **values}, {})[1])
        rows = ["| parameter | shape | count |", "|---|---|---|"]
        for name, p in agent.named_parameters():
            rows.append(f"| {name} | {tuple(p.shape)} | {p.numel():,} |")
        rows.append(f"| all | | {sum(p.numel() for p in agent.parameters()):,} |")
        self.writer.add_text("parameters", "\n".join(rows))
        self.writer.add_text("command", command)

    def save(self):
        """Writes weights.npz and checkpoint.pt, once all that was logged has reached the disk."""
        self.writer.flush()
        checkpoint = {
            "args": settings_of(self.args),
            "step": self.step_count,
            "seconds": self.seconds(),
            "event_files": self.sync_event_files(),
            "eval_returns": self.eval_returns,
            "health": (float(self.worth), self.sick_since, sorted(self.warned)),
            "torch_rng": torch.get_rng_state(),
            "parts": {name: self.state_of(part) for name, part in self.parts.items()},
        }
        save_weights(self.parts["agent"], self.folder / "weights.npz")
        content = io.BytesIO()  # torch, writing, hides an error of the disk behind one of its own
        torch.save(checkpoint, content)
        write_file(self.folder / "checkpoint.pt", lambda file: file.write(content.getbuffer()))
        states = checkpoint["parts"].values()
        needed = {name for state in states for name, _ in state.get("files", [])}
        remove_replay(self.folder, needed)  # of the others the buffer has overwritten all

    def sync_event_files(self) -> dict[str, int]:
        """Returns their sizes, once what was written to them has reached the disk."""
        sizes = {}
        for path in self.folder.glob("events.out.tfevents.*"):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
            sizes[path.name] = path.stat().st_size
        return sizes

    def state_of(self, part):
        if isinstance(part, np.random.Generator):
            return part.bit_generator.state
        if hasattr(part, "save"):  # a replay buffer
            return part.save(self.folder, self.step_count)
        return part.state_dict()

    def restore(self):
        """Sets every part as the checkpoint has it, and cuts from the curves what came after it."""
        path = self.folder / "checkpoint.pt"
        try:
            for name, part in self.parts.items():
                state = self.checkpoint["parts"][name]
                if isinstance(part, np.random.Generator):
                    part.bit_generator.state = state
                elif hasattr(part, "load"):
                    path = self.folder / "replay-*.npz"
                    part.load(self.folder, state)
                    path = self.folder / "checkpoint.pt"
                else:
                    part.load_state_dict(state)
            torch.set_rng_state(self.checkpoint["torch_rng"])
            self.step_count = self.checkpoint["step"]
            self.seconds_before = self.checkpoint["seconds"]
            self.eval_returns = self.checkpoint.get("eval_returns")
            health = self.checkpoint.get("health", (0.0, {}, []))
            self.worth, self.sick_since, self.warned = *health[:2], set(health[2])
        except FileNotFoundError as error:
            raise UserError(f"{error.filename} is gone: only --keep-replay keeps it") from None
        except Exception as error:  # a damaged file fails in as many ways as it has bytes
            text = f"is damaged, or does not fit this script: {first_line(error)}"
            raise UserError(f"{path} {text}") from None
        for path in self.folder.glob("events.out.tfevents.*"):
            size = self.checkpoint["event_files"].get(path.name)
            if size is None:
                path.unlink()
            elif path.stat().st_size > size:
                os.truncate(path, size)

    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def finish(self):
        """The last evaluation, weights.npz and result.json, and what the user wants to know."""
        from torch.utils.tensorboard.summary import hparams

        self.progress.bar.close()
        agent, args, step, seconds = self.parts["agent"], self.args, self.step_count, self.seconds()
        save_weights(agent, self.folder / "weights.npz")
        # where a checkpoint at the end has been evaluated, it has the returns and their point
        returns = np.array(self.eval_returns or self.evaluate())
        self.writer.file_writer.add_summary(hparams({}, {})[2])  # the end of the session
        self.writer.close()
        self.sync_event_files()
        result = {
            "env_id": args.env_id,
            "algo": ALGO,
            "seed": args.seed,
            "steps": step,
            "seconds": round(seconds, 2),
            "sps": round(step / seconds),
            "eval_return_mean": float(returns.mean()),
            "eval_return_std": float(returns.std()),
            "eval_episodes": len(returns),
            "run_hash": run_hash(agent),
        }
        write_json(self.folder / "result.json", result)
        if not args.keep_replay:
            remove_replay(self.folder)
        with failures_named(self.args.env_id, f"after step {step}"):
            self.envs.close()
        if self.lock is not None:
            self.lock.close()
        print(f"trained      {step:,} steps in {seconds:.1f} s, {step / seconds:,.0f} steps/s")
        print_result(self.folder, returns, result["run_hash"])


def least_entropy(action_space) -> float:
    """Entropy [nats] below which a policy explores no more: a hundredth of the uniform one's, or a
    standard deviation of a hundredth of the way from the middle of the bounds to either.
    """
    if isinstance(action_space, gym.spaces.Discrete):
        return 0.01 * math.log(action_space.n)
    return math.prod(action_space.shape) * (math.log(0.01) + 0.5 * math.log(2 * math.pi * math.e))


def symptoms(scalars: dict, worth: float, floor: float) -> dict:
    """What looks sick at a point of the curves: sentences by name, none for a healthy run.

    worth [return]: of the largest mean |reward| so far, for ever; on average a true |Q| is below.
    floor [nats]: of a policy that still explores.
    """
    found = {}
    if "charts/episodic_return" not in scalars:
        found["episodes"] = (
            "no episode has ended: has the environment a time limit? A checkpoint ends episodes"
            " uncounted (--checkpoint-frequency)"
        )
    explained = scalars.get("losses/explained_variance", 0.0)
    if explained < 0:
        found["critic"] = (
            f"the explained variance is negative ({explained:.2g}): the critic is worse than a"
            " constant; --learning-rate, --vf-coef and the scale of rewards (--norm-reward) matter"
        )
    entropy = scalars.get("losses/entropy", math.inf)
    if entropy < floor:
        found["policy"] = (
            f"the entropy is {entropy:.2g}: the policy explores no more, with half of the run to"
            " go; a larger --ent-coef or a smaller --learning-rate keeps it exploring"
        )
    q = scalars.get("losses/q_values", scalars.get("losses/qf1_values", 0.0))
    compared = f"Q is {q:.3g}, where the largest mean |reward|, for ever, is worth {worth:.3g}"
    random = scalars.get("charts/epsilon", 0.0) > 0.5  # so rewards say little of a greedy policy
    if abs(q) > 1.5 * worth > 0 and not random:
        found["q_values"] = (
            f"{compared}: it feeds on its own errors; a smaller --tau or --learning-rate helps"
        )
    spread = scalars.get("losses/q_spread", math.inf)
    if spread < 1e-4 * abs(q):
        found["network"] = (
            f"Q is {q:.3g} whatever the state: the network's units fell silent for good; with a"
            " smaller --learning-rate or a larger --adam-eps they do not"
        )
    mass = scalars.get("losses/mass_at_ends", 0.0)
    beyond = abs(scalars.get("charts/episodic_return", math.inf)) > 2 * abs(q)  # else it may fit
    if mass > 0.5 and beyond and abs(q) < 0.5 * worth:
        found["support"] = (
            f"{mass:.0%} of the return's distribution lies at --v-min and --v-max, and {compared}:"
            " the two are too near to 0"
        )
    return found


class Progress:
    """Steps, speed and recent return: tqdm's line on a terminal, ten plain lines elsewhere."""

    def __init__(self, total: int, step: int):
        from tqdm import tqdm

        self.total, self.step = total, step
        silent = None if sys.stderr else True  # None: where stderr is no terminal
        self.bar = tqdm(total=total, initial=step, unit=" steps", unit_scale=True, disable=silent)

    def show(self, step: int, sps: float, recent_returns):
        a_tenth_more = step * 10 // self.total > self.step * 10 // self.total
        if a_tenth_more or not self.bar.disable:
            text = "no episode ended yet"
            if recent_returns:
                text = f"return {np.mean(recent_returns):.1f}"
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(step - self.step)
        if a_tenth_more and self.bar.disable:
            print(f"{step:>12,} of {self.total:,} steps, {sps:,.0f} steps/s, {text}", flush=True)
        self.step = step


def agent_spaces(envs):
    return envs.single_observation_space, envs.single_action_space


def choose_device(args: RunArgs, obs_space):
    """The torch device; resolves `auto` and 0 threads in `args`."""
    images = len(obs_space.shape) == 3
    if args.device == "auto":
        args.device = "cuda" if images and torch.cuda.is_available() else "cpu"
    fastest = torch.get_num_threads() if images or args.threads_pay else 1
    args.torch_threads = args.torch_threads or fastest
    torch.set_num_threads(args.torch_threads)
    threadpool_limits(args.torch_threads, user_api="blas")  # those of NumPy
    torch.backends.cudnn.deterministic = True
    # what Adam remembers of units that fell silent shrinks to denormal numbers, a drag on a CPU
    torch.set_flush_denormal(True)
    if images:
        keep_freed_memory()
    try:
        x = torch.zeros(1, device=args.device)
        x.cpu()
        return x.device
    except (RuntimeError, AssertionError) as error:
        text = first_line(error).split(". ")[0]
        advice = "a run is resumed where it was trained" if args.resume else "try --device cpu"
        raise UserError(f"--device {args.device}: {text}; {advice}") from None


class Recorded:
    """`function` as a CUDA graph: called as it is at first, recorded at the second call, and from
    then on replayed by the GPU alone, where Python would start its operations one by one.

    Inputs are tensors, in dicts too, and flags; each combination of shapes and flags has its graph.
    What else the function reads must be changed in place, else the graph goes on with what it was.
    """

    def __init__(self, function):
        self.function, self.graphs = function, {}

    def __call__(self, *inputs):
        flat, _ = tree_flatten(inputs)
        key = tuple(x.shape if torch.is_tensor(x) else x for x in flat)
        if key not in self.graphs:  # lets torch and the optimizer make what they keep
            self.graphs[key] = None
            now, beside = torch.cuda.current_stream(), torch.cuda.Stream()
            beside.wait_stream(now)
            with torch.cuda.stream(beside):
                outputs = self.function(*inputs)
            now.wait_stream(beside)
            return outputs
        if self.graphs[key] is None:
            held, graph = tree_map_only(torch.Tensor, torch.clone, inputs), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outputs = self.function(*held)
            self.graphs[key] = graph, tree_flatten(held)[0], outputs
        graph, held, outputs = self.graphs[key]
        for x, y in zip(held, flat, strict=True):
            if torch.is_tensor(x):
                x.copy_(y)
        graph.replay()
        return tree_map_only(torch.Tensor, torch.clone, outputs)


def set_learning_rate(optimizer, learning_rate: float):
    """In place if it is a tensor, see Recorded."""
    group = optimizer.param_groups[0]
    if torch.is_tensor(group["lr"]):
        group["lr"].fill_(learning_rate)
    else:
        group["lr"] = learning_rate


def keep_freed_memory():
    """Lets glibc keep what a minibatch of images frees, for the next one, instead of giving it back
    to the system and fetching it again page by page.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # other systems have no mallopt
        libc, trim_threshold, mmap_threshold = ctypes.CDLL(None), -1, -3  # as in malloc.h
        if libc.mallopt(mmap_threshold, 2**30):
            libc.mallopt(trim_threshold, 2**31 - 1)


def require_memory(what: str, size: int):
    """Says how much memory `size` bytes are; raises UserError when the machine has less to give."""
    free = math.inf
    with contextlib.suppress(OSError):  # other systems do not say
        text = Path("/proc/meminfo").read_text()
        free = 1024 * int(re.search(r"MemAvailable: +(\d+)", text)[1])
    print(f"{what} takes {size / 1e9:.3f} GB")
    if size > free:
        raise UserError(f"{what} takes {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free")


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def settings_of(args: RunArgs) -> dict:
    return {name: value for name, value in asdict(args).items() if name not in NOT_OF_A_RUN}


def describe(args: RunArgs) -> dict:
    """What args.json holds; the version of the script itself is its SHA-256."""
    entry = env_spec(args.env_id).entry_point
    provider = getattr(entry, "__module__", str(entry)).split(".")[0].split(":")[0]
    script = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    versions = {"python": platform.python_version(), f"{ALGO}.py": script}
    for name in ("torch", "numpy", "gymnasium", "mujoco", "box2d", "pybullet", provider):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    command = shlex.join(["python", *sys.argv])
    return {"algo": ALGO, "args": settings_of(args), "command": command, "versions": versions}


def new_run_folder(args: RunArgs) -> Path:
    """runs/<env>/<algo>/<seed>-<time>/, with a number behind it where that is taken."""
    parent = Path(args.runs_dir) / args.env_id.replace("/", "-").replace(":", "-") / ALGO
    name = f"{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, 1000):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"--runs-dir {args.runs_dir}: {error}") from None
    raise UserError(f"{parent} already has a thousand runs named {name}")


def lock(folder: Path):
    """Keeps a second process from a run that goes on, whose files it would mix with its own."""
    try:
        import fcntl

        file = open(folder / "lock", "w")  # noqa: SIM115, it stays open
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file  # closed, or left by its process however that ends, it locks no more
    except BlockingIOError:
        raise UserError(f"{folder} is in use: another process trains there") from None
    except (ImportError, OSError):  # other systems, and disks without locks
        return None


def load_checkpoint(folder: Path) -> dict:
    """checkpoint.pt, after its checksums were compared, which torch.load does not do."""
    path = folder / "checkpoint.pt"
    try:
        with zipfile.ZipFile(path) as file:
            if damaged := file.testzip():
                raise ValueError(f"the checksum of {damaged} is wrong")
        return torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise UserError(f"{folder} has no checkpoint.pt") from None
    except Exception as error:  # a damaged file fails in as many ways as it has bytes
        raise UserError(f"{path} cannot be read: {first_line(error)}") from None


def print_result(folder: Path, returns, digest: str):
    mean, std = returns.mean(), returns.std()
    print(f"evaluation   return {mean:.1f} +- {std:.1f} over {len(returns)} episodes")
    print(f"run folder   {folder}")
    runs_dir = folder
    if folder.resolve().parent.name == ALGO:  # and not moved elsewhere
        runs_dir = [folder, *folder.parents][:4][-1]  # three up, where there are as many
    print(f"TensorBoard  tensorboard --logdir {shlex.quote(str(runs_dir))}")
    print(f"run hash     {digest}")


def evaluate_run(args: RunArgs):
    """`--evaluate`: plays with the weights of a run folder, as its own last evaluation did."""
    folder = Path(args.evaluate)
    envs = make_envs(args, 1)
    obs_space, action_space = agent_spaces(envs)
    with failures_named(args.env_id, "in the evaluation"):
        envs.close()
    agent = make_agent(args, obs_space, action_space).to(choose_device(args, obs_space))
    flatten(agent)  # as in training: where weights begin in memory decides how torch rounds
    load_weights(agent, folder / "weights.npz")
    returns = evaluate(agent, args)
    if args.capture_video:
        film(agent, args, folder / "videos" / f"evaluation-seed-{args.seed}.mp4")
    print_result(folder, returns, run_hash(agent))


def skip_compiler_import():
    """Torch's optimizers import its compiler at their first step: 1.2 s, for what they never use.

    What each step tells the profiler goes, too: nobody listens.
    """
    for method in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(torch.optim.Optimizer, method).__wrapped__
        method.__dynamo_disable = method
    for optimizer in (torch.optim.Adam, torch.optim.RMSprop):
        optimizer.step = torch.no_grad()(optimizer.step.__wrapped__)
        optimizer.step.hooked = True  # as if it had been wrapped for the profiler already


def finished_result(args: RunArgs) -> dict | None:
    """result.json of a run that has nothing left to do."""
    try:
        result = json.loads((Path(args.resume) / "result.json").read_text())
        finished = result["steps"] >= args.total_timesteps
        return result if finished and math.isfinite(result["eval_return_mean"]) else None
    except (OSError, ValueError, TypeError, KeyError):  # not finished, or not by us
        return None


def thread_failed(args):
    """TensorBoard's thread hands an error of the disk to the writer, which raises it once more."""
    if not issubclass(args.exc_type, OSError):
        threading.__excepthook__(args)


def stop(signal_number, _):
    raise KeyboardInterrupt(signal_number)


def main():
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    threading.excepthook = thread_failed
    run = None
    try:
        args = parse_args(sys.argv[1:])
        if args.capture_video:
            draw_without_display()
        if args.evaluate:
            evaluate_run(args)
        elif args.resume and (result := finished_result(args)):
            if not args.keep_replay:  # a kill may have left it
                remove_replay(Path(args.resume))
            print(f"{args.resume} is finished, with a return of {result['eval_return_mean']:.1f}")
        else:
            skip_compiler_import()
            run = Run(args)
            train(args, run)
            run.finish()
        return
    except ImportError as error:
        status, text = 2, f"{error}; pip install {error.name}"
    except UserError as error:
        status, text = 2, " ".join(str(error).split())
    except (RunFailed, OSError, MemoryError) as error:
        status, text = 1, f"{error}{resume_hint(run)}"
    except RuntimeError as error:
        if "memory" not in str(error) and not type(error).__module__.startswith("torch._"):
            raise
        # torch has no memory left, or its compiler does not work
        status, text = 1, f"{first_line(error)}{resume_hint(run)}"
    except KeyboardInterrupt as interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second one would end in a traceback
            signal.signal(number, signal.SIG_IGN)
        status, text = 128 + interrupt.args[0], f"stopped{resume_hint(run)}"
    if run is not None and run.progress is not None:
        run.progress.bar.close()  # ends its line
    print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr)
    sys.exit(status)


def resume_hint(run: Run | None) -> str:
    if run is None or run.folder is None or not (run.folder / "checkpoint.pt").exists():
        return ""
    command = shlex.join(["python", sys.argv[0], "--resume", str(run.folder)])
    return f"; the last checkpoint goes on with: {command}"


if __name__ == "__main__":
    main()
