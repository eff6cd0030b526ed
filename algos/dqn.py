# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "gymnasium==1.4.0", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "threadpoolctl==3.8.0", "pygame-ce==2.5.8",
#   "box2d==2.3.10", "mujoco==4.0.0", "ale-py==0.12.1", "imageio==2.38.1", "imageio-ffmpeg==0.8.1"]
# ///
"""Deep Q-learning (DQN): one network learns the value of every action from replayed steps, with
targets from a copy of itself that follows slowly. Double, dueling, C51 and n-step are switches.

Papers    DQN doi 10.1038/nature14236; double arXiv 1509.06461; dueling arXiv 1511.06581;
          C51 arXiv 1707.06887; n-step returns as in Rainbow, arXiv 1710.02298.
Run       python algos/dqn.py                                                  CartPole-v1
          python algos/dqn.py --double --dueling --n-step 3                    any combination
          python algos/dqn.py --n-atoms 51 --v-min 0 --v-max 50                C51: the support
              must hold the discounted returns, which on CartPole-v1 lie between 0 and 50
Expect    a greedy return of 500 on CartPole-v1 on nine of ten seeds, in half a minute on one core.

Deliberate differences from the papers:
- an episode cut by a time limit is bootstrapped from its true last observation, as in theory;
- every stored step can be sampled, the newest with as many rewards as there are so far;
- Adam, its learning rate falling to 0, and a gradient whose norm is clipped, in C51 as well; a
  dueling network's gradient is not scaled down before it enters the trunk;
- by default five-step returns, uncorrected for older policies' actions (the paper: --n-step 1);
- by default the target network moves a little each time (--tau 1 copies it, as the papers do).
"""

import contextlib
import copy
import hashlib
import importlib
import json
import math
import os
import random
import re
import shlex
import sys
import time
import tomllib
from collections import deque
from dataclasses import asdict, dataclass
from functools import partial
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
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """Environment, as gymnasium names it; `package.module:Id-v0` imports that module first."""
    seed: int = 1
    """Determines the run: same machine, same command, same seed, same weights."""
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
    """Transitions that the replay buffer holds, over all environments."""
    gamma: float = 0.98
    """Discount factor."""
    learning_starts: int = 1_000
    """Steps of random actions before the first update."""
    train_frequency: int = 8
    """Steps between updates, summed over all environments."""
    gradient_steps: int = 4
    """Gradient steps of an update, each on a new minibatch."""
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
    """The same length in steps, whatever total_timesteps is; None: by exploration_fraction."""
    eval_epsilon: float = 0.0
    """Probability of a random action in evaluations; 0.001 is usual on Atari."""
    double: bool = False
    """The online network chooses the next action, the target network values it."""
    dueling: bool = False
    """Splits the network into a value of the state and advantages of the actions."""
    n_atoms: int = 1
    """Atoms of the distribution of returns (C51 has 51); 1: only its mean, plain DQN."""
    v_min: float = -10.0
    """Return at the first atom."""
    v_max: float = 10.0
    """Return at the last atom."""
    n_step: int = 5
    """Rewards summed before the target network's value is added; the paper has 1."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the TD error with one atom; with more atoms it is always the cross-entropy."""
    max_grad_norm: float = 10.0
    """Largest norm of the gradient of all parameters together; inf: no limit."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    clip_reward: bool = False
    """Learns from the sign of the reward, as is usual on Atari; logged returns are not clipped."""
    bf16: bool = False
    """Images: convolutions compute in bfloat16, which is slow on a CPU without support for it."""
    hidden_sizes: tuple[int, int] = (128, 128)
    """Widths of the two hidden layers, for vectors."""
    checkpoint_frequency: int = 50_000
    """Steps between checkpoints, rounded up to train_frequency. Each ends all running episodes."""

    def check(self):
        require_range(self, "total_timesteps num_envs buffer_size train_frequency n_step", low=1)
        require_range(self, "gradient_steps batch_size target_network_frequency n_atoms", low=1)
        require_range(self, "anneal_steps exploration_steps checkpoint_frequency", low=1)
        require_range(self, "learning_rate learning_starts max_grad_norm adam_eps", low=0)
        fractions = "gamma tau start_e end_e exploration_fraction eval_epsilon"
        require_range(self, fractions, low=0, high=1)
        for name in ("total_timesteps", "train_frequency", "buffer_size"):
            if getattr(self, name) % self.num_envs:
                fail(f"{name} must divide by num_envs={self.num_envs}")
        if not -1e38 < self.v_min < self.v_max < 1e38:  # float32 must hold their distance
            fail(f"v_min={self.v_min} must lie below v_max={self.v_max}, both finite")

    @property
    def iteration_steps(self) -> int:  # steps between calls of run.end_iteration
        return self.train_frequency


class Layers(nn.Sequential):
    """nn.Sequential that takes arrays, too, for acting. NumPy then computes on the weights' memory,
    faster than torch for a few rows; layers that are not named here are left to torch.
    """

    def __call__(self, x):
        if torch.is_tensor(x):
            return super().__call__(x)
        for layer in self._modules.values():
            if type(layer) is nn.Linear and layer._parameters["bias"] is not None:
                weight, bias = layer._parameters.values()
                address = weight.data_ptr(), bias.data_ptr()
                if layer.__dict__.get("address") != address:  # new, or moved: looked up once
                    layer.address = address
                    layer.arrays = weight.detach().numpy().T, bias.detach().numpy()
                x = x @ layer.arrays[0] + layer.arrays[1]
            elif type(layer) is nn.Tanh:
                x = np.tanh(x)
            elif type(layer) is nn.ReLU:
                x = np.maximum(x, 0)
            else:
                x = layer(torch.as_tensor(x)).numpy(force=True)
        return x


def nature_convolutions(image_shape: tuple):
    """The convolutions of the Nature DQN, and how many features they give."""
    layers, sizes = [], ((image_shape[0], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
    for channels_in, channels_out, kernel_size, stride in sizes:
        layers += [nn.Conv2d(channels_in, channels_out, kernel_size, stride), nn.ReLU(inplace=True)]
    convolutions = nn.Sequential(*layers, nn.Flatten())
    return convolutions, convolutions(torch.zeros(1, *image_shape)).shape[1]


def head(num_inputs: int, hidden_size: int, num_outputs: int):
    first, last = nn.Linear(num_inputs, hidden_size), nn.Linear(hidden_size, num_outputs)
    return Layers(first, nn.ReLU(), last)


class QNetwork(nn.Module):
    """Logits of the return's distribution for every action, (batch, actions, atoms).

    With one atom the logit is Q(s, a) itself. Dueling: the value of the state plus the advantage of
    the action less its mean over the actions, eq. 9 of arXiv 1511.06581, for each atom on its own.
    """

    def __init__(self, args: Args, obs_shape: tuple, num_actions: int):
        super().__init__()
        self.device = torch.device("cpu")  # until Run moves it
        self.num_actions, self.n_atoms, self.dueling = num_actions, args.n_atoms, args.dueling
        self.sees_images, self.bf16 = len(obs_shape) == 3, args.bf16
        if self.sees_images:
            self.trunk, num_features = nature_convolutions(obs_shape)
            hidden_size = 512
        else:
            num_features, hidden_size = args.hidden_sizes
            self.trunk = Layers(nn.Linear(*obs_shape, num_features), nn.ReLU())
        if self.dueling:
            self.value_head = head(num_features, hidden_size, self.n_atoms)
            self.advantage_head = head(num_features, hidden_size, num_actions * self.n_atoms)
        else:
            self.q_head = head(num_features, hidden_size, num_actions * self.n_atoms)
        if self.n_atoms > 1:
            self.register_buffer("support", torch.linspace(args.v_min, args.v_max, self.n_atoms))

    def forward(self, obs):  # (batch, *obs_shape) -> (batch, actions, atoms), for arrays as well
        if self.sees_images:  # uint8 until here; convolutions are faster with the channels last
            obs = obs.to(torch.float32, memory_format=torch.channels_last).div_(255)
            with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
                features = self.trunk(obs).float()
        else:
            features = self.trunk(obs)
        if not self.dueling:
            return self.q_head(features).reshape(-1, self.num_actions, self.n_atoms)
        value = self.value_head(features).reshape(-1, 1, self.n_atoms)
        advantage = self.advantage_head(features).reshape(-1, self.num_actions, self.n_atoms)
        return value + advantage - advantage.mean(axis=1, keepdims=True)

    def q_values(self, logits):  # (batch, actions, atoms) -> (batch, actions)
        if self.n_atoms == 1:
            return logits.squeeze(2)
        if torch.is_tensor(logits):
            return torch.softmax(logits, dim=2) @ self.support
        return self.q_values(torch.from_numpy(logits)).numpy()

    def best_actions(self, obs):  # (batch, *obs_shape) -> (batch,)
        return self.q_values(self.forward(obs)).argmax(axis=1)

    def act(self, obs, epsilon, rng):
        """Epsilon-greedy actions: (num_envs, *obs_shape) -> (num_envs,)."""
        explore = rng.random(len(obs)) < epsilon
        num_random = np.count_nonzero(explore)
        if num_random == len(obs):
            return rng.integers(self.num_actions, size=len(obs))
        if not self.sees_images and self.device.type == "cpu":
            actions = self.best_actions(obs)  # of an array: see Layers
        else:
            with torch.no_grad():
                actions = self.best_actions(torch.as_tensor(obs, device=self.device)).cpu().numpy()
        if num_random > 0:
            actions[explore] = rng.integers(self.num_actions, size=num_random)
        return actions


class ReplayBuffer:
    """The last `capacity` steps, of `num_envs` environments side by side; the oldest are replaced.

    Each observation is kept once: a step's successor is the next step's observation, but the true
    last observation of a truncated episode is kept apart. Of stacked frames (`stack` > 1) only the
    newest is kept; `blank` counts the black ones with which a stack begins after a reset.
    """

    ARRAYS = ("frames", "blank", "actions", "rewards", "terminated", "truncated")

    def __init__(self, capacity: int, num_envs: int, obs_space, stack: int = 1):
        self.length = capacity // num_envs  # steps that can be sampled
        self.slots = self.length + stack  # with one observation after and stack - 1 frames before
        self.stack, self.num_envs, self.total = stack, num_envs, 0  # total: steps added
        shape = (self.slots, num_envs)
        frame_shape = obs_space.shape[1:] if stack > 1 else obs_space.shape
        self.frames = np.zeros((*shape, *frame_shape), obs_space.dtype)  # all of obs if stack is 1
        self.blank = np.zeros(shape, np.uint8)
        self.actions = np.zeros(shape, np.int64)
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)  # the task ended, so nothing follows
        self.truncated = np.zeros(shape, np.bool_)  # by time limit or checkpoint
        self.final_obs = {}  # (slot, env) -> true last observation of a truncated episode

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
        """Keeps an observation of every environment; of a stack, oldest frame first, the newest and
        how many black ones it begins with (a black game counts, too, but is 0 just the same).
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

    def draw(self, batch_size, rng):
        """Steps for a minibatch, uniformly: their ages, 1 for the newest, and environments."""
        ages = rng.integers(1, min(self.total, self.length) + 1, size=batch_size)
        return ages, rng.integers(self.num_envs, size=batch_size)

    def sample(self, batch_size, n_step, gamma, rng):
        """Of the steps t that are drawn: a dict of arrays with the first axis (batch_size,).

        rewards      r_t + gamma r_{t+1} + ..., n of them: n_step, or fewer where the episode or the
                     buffer ends
        discounts    gamma^n
        terminated   whether the task ended with the last of them
        next_obs     s_{t+n}; where terminated whatever came next, which td_target ignores
        """
        ages, envs = self.draw(batch_size, rng)
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

    def state_dict(self) -> dict:
        held = {name: torch.as_tensor(getattr(self, name)[: self.total]) for name in self.ARRAYS}
        final_obs = {key: torch.as_tensor(obs) for key, obs in self.final_obs.items()}
        return {"total": self.total, "final_obs": final_obs, **held}

    def load_state_dict(self, state: dict):
        self.total = state["total"]
        self.final_obs = {key: obs.numpy() for key, obs in state["final_obs"].items()}
        for name in self.ARRAYS:
            getattr(self, name)[: self.total] = state[name]


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
    1; rewards, discounts, terminated (batch,). Returns (batch, atoms): what falls beyond an end
    goes to the atom there, what falls between two atoms is divided between them, by nearness.
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


@torch.no_grad()  # the target is a constant: Q(s, a) moves towards it, not it to Q(s, a)
def q_target(q_network, target_q_network, batch, args):  # batch: see ReplayBuffer.sample
    """What Q of the actions taken should be: (batch,), with atoms distributions, (batch, atoms)."""
    rows = torch.arange(len(batch["actions"]), device=q_network.device)
    next_logits = target_q_network(batch["next_obs"])  # (batch, actions, atoms)
    # double: eq. 4 of arXiv 1509.06461
    ranking_logits = q_network(batch["next_obs"]) if args.double else next_logits
    next_actions = q_network.q_values(ranking_logits).argmax(dim=1)
    next_logits = next_logits[rows, next_actions]  # (batch, atoms): of the best actions alone
    steps = batch["rewards"], batch["discounts"], batch["terminated"]
    if args.n_atoms == 1:
        return td_target(*steps, q_network.q_values(next_logits[:, None]).squeeze(1))
    return project_categorical(q_network.support, torch.softmax(next_logits, dim=1), *steps)


def q_loss(q_network, target_q_network, batch, args):
    """The TD loss of a batch, a scalar, and the logits of the actions taken, (batch, 1, atoms)."""
    target = q_target(q_network, target_q_network, batch, args)
    rows = torch.arange(len(batch["actions"]), device=q_network.device)
    taken_logits = q_network(batch["obs"])[rows, batch["actions"]]  # (batch, atoms)
    if args.n_atoms == 1:
        q_values = q_network.q_values(taken_logits[:, None]).squeeze(1)
        assert q_values.shape == target.shape, (q_values.shape, target.shape)
        loss_function = F.smooth_l1_loss if args.loss == "huber" else F.mse_loss
        loss = loss_function(q_values, target)
    else:
        assert taken_logits.shape == target.shape, (taken_logits.shape, target.shape)
        loss = F.cross_entropy(taken_logits, target)  # of each row, and the mean of the rows
    return loss, taken_logits.detach()[:, None]  # one action, in the shape that q_values takes


def update(q_network, target_q_network, optimizer, args, loss_of, batch):
    """One gradient step. Returns what loss_of returns, for the curves."""
    loss, taken_logits = loss_of(q_network, target_q_network, batch, args)
    optimizer.zero_grad()
    loss.backward()
    clip_gradient(optimizer, args.max_grad_norm)
    optimizer.step()
    return loss.detach(), taken_logits


@torch.no_grad()
def polyak(target, source, tau: float):
    """target <- (1 - tau) target + tau source, for every parameter."""
    for p, q in zip(target.parameters(), source.parameters(), strict=True):
        p.lerp_(q, tau)


def make_agent(args, obs_space, action_space):
    if not isinstance(action_space, gym.spaces.Discrete):
        fail(f"dqn takes Discrete action spaces, not {action_space}")
    return QNetwork(args, obs_space.shape, int(action_space.n))


def evaluation_policy(agent, rng, args):  # made anew for each evaluation, so it may remember
    return lambda obs: agent.act(obs, args.eval_epsilon, rng)


def losses(q_network, history, last_batch):
    """The scalars to log: means over the updates since the last call."""
    td_losses, taken_logits = zip(*history, strict=True)
    taken_logits = torch.cat(taken_logits)  # (updates * batch, 1, atoms)
    scalars = {"losses/td_loss": torch.stack(td_losses).mean().item()}
    scalars["losses/q_values"] = q_network.q_values(taken_logits).mean().item()
    if q_network.n_atoms > 1:
        probs = torch.softmax(taken_logits, dim=2).mean(dim=(0, 1))  # (atoms,)
        scalars["losses/mass_at_ends"] = (probs[0] + probs[-1]).item()
    q_values = q_network.q_values(q_network(last_batch["obs"]))  # (batch, actions)
    scalars["losses/q_spread"] = q_values.std(dim=0, correction=0).mean().item()
    return scalars


def learn_once(learn, buffer, args, run, step):
    """A gradient step on a new minibatch. Returns that, and what `losses` wants of the step."""
    batch = buffer.sample(args.batch_size, args.n_step, args.gamma, run.rng)
    batch = {k: torch.as_tensor(v, device=run.device) for k, v in batch.items()}
    return batch, learn(batch)


def train(args, run, loss_of=q_loss, make_buffer=ReplayBuffer, learn_once=learn_once):
    q_network, target_q_network = run.agent, copy.deepcopy(run.agent)
    rate, duration = args.learning_rate, args.anneal_steps or args.total_timesteps
    optimizer = torch.optim.Adam([Vector(q_network)], lr=rate, eps=args.adam_eps, fused=True)
    stack = 4 if args.env_id.startswith("ALE/") else 1  # see make_envs
    buffer = make_buffer(args.buffer_size, args.num_envs, run.obs_space, stack)
    fraction_steps = max(1, args.exploration_fraction * args.total_timesteps)
    exploration_steps = args.exploration_steps or fraction_steps
    history = deque(maxlen=2_000)  # what updates returned since the last point of the curves
    parts = {"agent": q_network, "target": target_q_network, "optimizer": optimizer}
    step, obs = run.start(**parts, buffer=buffer)
    learn = partial(update, q_network, target_q_network, optimizer, args, loss_of)
    learn = run.recorded(learn, optimizer)
    q_network.best_actions = run.recorded(q_network.best_actions)  # on a GPU, as CUDA graphs
    while step < args.total_timesteps:
        before, end = step, min(step + args.train_frequency, args.total_timesteps)
        while step < end:
            epsilon = linear_schedule(args.start_e, args.end_e, exploration_steps, step)
            actions = q_network.act(obs, 1.0 if step < args.learning_starts else epsilon, run.rng)
            # next_obs is acted on next: after an episode's end, the new one's first. successors are
            # what the actions led to: after an episode's end, its true last observation
            next_obs, rewards, terminated, truncated, successors = run.step(actions)
            if args.clip_reward:
                rewards = np.sign(rewards)
            buffer.add(obs, actions, rewards, terminated, truncated, next_obs, successors)
            obs, step = next_obs, step + args.num_envs

        learning_rate = linear_schedule(rate, 0.0 if args.anneal_lr else rate, duration, before)
        optimizer.param_groups[0]["lr"] = learning_rate
        if step >= args.learning_starts:
            for _ in range(args.gradient_steps):
                batch, learned = learn_once(learn, buffer, args, run, before)
                history.append(learned)
        # where a multiple of the frequency was passed, also when steps of train_frequency miss it
        if step // args.target_network_frequency > before // args.target_network_frequency:
            polyak(target_q_network, q_network, args.tau)

        scalars = {"charts/epsilon": epsilon, "charts/learning_rate": learning_rate}
        if history and run.logs_now():
            scalars |= losses(q_network, history, batch)
            history.clear()
        run.end_iteration(scalars)


# --------------------------------------------------------------------------------------------------
# The algorithm ends here. All below is plumbing, the same bytes in ppo.py, a2c.py, dqn.py, td3.py.
# It uses Args and what main is given. The algorithm uses fail, require_range, Vector, clip_gradient
# and run's agent, rng, device, obs_space, start, recorded, step, infos, logs_now and end_iteration.


@dataclass
class RunArgs(Args):
    """The arguments of every script, whatever its algorithm."""

    config: str | None = None
    """Settings: FILE.toml or FILE.toml:TABLE; `lunarlander` is benchmarks/lunarlander.toml."""
    resume: str | None = None
    """Continues the run in this folder exactly: from its last checkpoint, at first from step 0."""
    evaluate: str | None = None
    """Plays episodes with the trained agent of this run folder, and trains nothing."""
    exp_name: str = ""
    """Names the run: its folder begins with it."""
    eval_episodes: int = 10
    """Episodes of an evaluation, one in each of as many environments."""
    eval_frequency: int = 0
    """Steps between evaluations during training; 0: only at the end."""
    log_frequency: int = 500
    """Steps between points of the curves; returns are the mean since the last one."""
    capture_video: bool = False
    """Films an episode of each evaluation, into the run folder."""
    episodic_life: bool = False
    """Atari: a lost life ends the episode for learning; the game goes on, and so does its score."""
    sticky_actions: float = 0.0
    """Atari: probability that the game repeats the last action. gymnasium's ALE ids have 0.25."""
    init_weights: str | None = None
    """Starts from the weights in this .npz file, matched by name."""
    save_init: str | None = None
    """Writes the weights that training starts from to this .npz file."""
    device: str = "auto"
    """cpu, cuda, mps; auto: CUDA for images where there is any, the CPU for vectors."""
    torch_threads: int = 0
    """CPU threads of torch and NumPy; 0: all for images, one for vectors."""
    runs_dir: str = "runs"
    """Where run folders are made."""


def fail(text):
    """Ends the script with exit status 2 and one line about what the user can fix."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(str(text).split())}", file=sys.stderr)
    sys.exit(2)


def require_range(args, names: str, low, high=math.inf):
    for name in names.split():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            fail(f"{name}={value} must lie between {low} and {high}")


def parse_args(name: str, args_class, argv: list[str]):
    """The arguments typed, and for the others a config's table or those of a saved run."""
    about = sys.modules[args_class.__module__].__doc__.split("\n\n")[0]
    args = tyro.cli(args_class, args=argv, description=about)
    saved, folder = {}, args.evaluate if args.resume is None else args.resume
    try:
        if args.config is not None:
            pattern = r"(.+?)(\.toml)?(?::([\w-]+))?"
            path, suffix, table = re.fullmatch(pattern, args.config).groups()
            parent = Path() if suffix else Path(__file__).parents[1] / "benchmarks"
            saved = tomllib.loads((parent / f"{path}.toml").read_text("utf-8"))[table or name]
        elif folder is not None:
            about = json.loads(Path(folder, "args.json").read_text("utf-8"))
            saved = about["args"] if about["algo"] == name else fail(f"{folder} is no {name} run")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        fail(f"{args.config or folder}: {type(error).__name__}: {error}")
    if args.resume and set(argv) - {"--resume", args.resume, f"--resume={args.resume}"}:
        fail("a resumed run keeps its arguments: give --resume alone")
    if args.resume and Path(folder, "result.json").exists():
        fail(f"{folder} is finished")
    flags = []  # so that tyro checks names and types; of a repeated flag the last one counts
    for field, value in saved.items():
        if isinstance(value, bool):
            flags.append(f"--{field}" if value else f"--no-{field}")
        elif isinstance(value, list):
            flags += [f"--{field}", *map(str, value)]
        elif value is not None:
            flags.append(f"--{field}={value}")
    args = tyro.cli(args_class, args=flags + argv)
    args.check()
    require_range(args, "eval_episodes log_frequency", low=1)
    require_range(args, "seed eval_frequency torch_threads", low=0)
    return args


def make_envs(args: RunArgs, num_envs: int, training: bool = True, **keywords):
    """Copies of an environment with vectors or channel-first images, under same-step autoreset."""
    same_step = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    try:
        if not args.env_id.startswith("ALE/"):
            make = [lambda: make_env(args.env_id, **keywords)] * num_envs
            return SyncEnvs(make, **same_step)
        importlib.import_module("ale_py")
        # preprocessed as for the Nature DQN: no-ops at the start, four frames to an action, stacked
        settings = {"num_threads": min(args.torch_threads, num_envs), "reward_clipping": False}
        settings |= {"life_loss_info": args.episodic_life and training}
        settings |= {"repeat_action_probability": args.sticky_actions, **same_step}
        return AtariEnvs(gym.make_vec(args.env_id, num_envs, "vector_entry_point", **settings))
    except (gym.error.Error, ImportError) as error:
        fail(f"environment {args.env_id}: {error}")


def make_env(env_id: str, **keywords):
    """One environment with vectors of float32, or with channel-first images of uint8."""
    if "BulletEnv-" in env_id:
        importlib.import_module("pybullet_envs_gymnasium")
    if "mujoco" in str(gym.registry.get(env_id)):
        mujoco = importlib.import_module("mujoco")
        # no MUJOCO_LOG.TXT, and nothing of what is deprecated in gymnasium's models
        mujoco.set_mju_user_warning(lambda text: "deprecated" in text or print(text))
    env = gym.make(env_id, **keywords)
    space = env.observation_space
    if space.dtype == np.uint8 and len(space.shape) == 3:
        if space.shape[2] < space.shape[0]:  # channels last
            space = gym.spaces.Box(0, 255, (space.shape[2], *space.shape[:2]), np.uint8)
            env = gym.wrappers.TransformObservation(env, lambda x: np.moveaxis(x, 2, 0), space)
    elif not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        env = gym.wrappers.FlattenObservation(env)  # Discrete becomes one-hot
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box):
        fail(f"environment {env_id}: its observations have no fixed size: {space}")
    if len(space.shape) == 1 and space.dtype != np.float32:
        space = gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        env = gym.wrappers.TransformObservation(env, np.float32, space)
    if isinstance(actions := env.action_space, gym.spaces.Discrete) and actions.start != 0:
        from_0 = gym.spaces.Discrete(actions.n)
        env = gym.wrappers.TransformAction(env, lambda action: action + actions.start, from_0)
    return env


class SyncEnvs(gym.vector.SyncVectorEnv):
    """Like gymnasium's, but merges no infos: half the time on CartPole. final_obs: {env: obs}."""

    def step(self, actions):
        rewards, rows, final_obs, infos = np.zeros(self.num_envs), [], {}, []
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        for i, env in enumerate(self.envs):
            obs, rewards[i], terminated[i], truncated[i], info = env.step(actions[i])
            if terminated[i] or truncated[i]:
                final_obs[i] = np.array(obs)  # a copy: the reset may write over it
                obs, _ = env.reset()
            rows.append(obs)
            infos.append(info)
        obs = np.array(rows, self.observation_space.dtype)
        return obs, rewards, terminated, truncated, final_obs, infos


class AtariEnvs(gym.vector.VectorWrapper):
    """The same for Atari. ale_py sets `terminated` at a lost life, too, though the game goes on."""

    frames = 0  # (num_envs,): of each game so far

    def step(self, actions):
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        over = (terminated | truncated) & (info["episode_frame_number"] < self.frames)
        self.frames = info["episode_frame_number"]
        final_obs = {i: info["final_obs"][i] for i in np.flatnonzero(over)}
        return obs, rewards, terminated, truncated, final_obs, info


def reset(envs, *entropy: int):
    """Resets with independent seeds that follow from `entropy`; returns the first observations."""
    state = np.random.SeedSequence(entropy).generate_state(envs.num_envs)
    seeds = [int(s) >> 1 for s in state]  # 31 bits, the most that all environments take
    random.seed(seeds[0])  # for environments without a generator of their own
    np.random.seed(seeds[0])
    return envs.reset(seed=seeds if isinstance(envs, SyncEnvs) else np.int32(seeds))[0]


def write_file(path: Path, write):
    """All or nothing, even if the power fails: to another file, synced, then renamed."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def to_arrays(agent) -> dict:  # parameters, and the buffers that acting needs
    return {name: tensor.cpu().numpy() for name, tensor in agent.state_dict().items()}


def run_hash(agent) -> str:
    """SHA-256 over the names and arrays of weights.npz."""
    digest = hashlib.sha256()
    for name, array in sorted(to_arrays(agent).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Run:
    """An agent, its environments, its folder, its curves and its checkpoints."""

    def __init__(self, name, args: RunArgs, make_agent, evaluation_policy, make_envs=make_envs):
        self.name, self.args, self.step_count = name, args, 0
        self.evaluation_policy, self.make_envs = evaluation_policy, make_envs
        self.envs = make_envs(args, args.num_envs)
        self.obs_space = self.envs.single_observation_space
        images = len(self.obs_space.shape) == 3
        if args.device == "auto":
            args.device = "cuda" if images and torch.cuda.is_available() else "cpu"
        try:
            self.device = torch.zeros(1, device=args.device).device
        except (RuntimeError, AssertionError) as error:
            fail(f"--device {args.device}: {error}")
        args.torch_threads = args.torch_threads or (torch.get_num_threads() if images else 1)
        torch.set_num_threads(args.torch_threads)
        threadpool_limits(args.torch_threads, user_api="blas")  # those of NumPy
        torch.backends.cudnn.deterministic = True
        torch.set_flush_denormal(True)  # what Adam remembers of silent units drags a CPU
        torch.manual_seed(args.seed)
        self.rng = np.random.default_rng(args.seed)
        agent = make_agent(args, self.obs_space, self.envs.single_action_space)
        self.agent, agent.device = agent.to(self.device), self.device
        path = f"{args.evaluate}/weights.npz" if args.evaluate else args.init_weights
        if path is not None and not args.resume:
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    agent.load_state_dict({k: torch.as_tensor(x) for k, x in arrays.items()})
            except (OSError, ValueError, RuntimeError) as error:
                fail(f"{path}: {error}")
        if args.save_init and not (args.resume or args.evaluate):
            np.savez(args.save_init, **to_arrays(agent))
        # a boundary always ends an iteration, so that no half-filled rollout must be saved
        iterations = math.ceil(args.checkpoint_frequency / args.iteration_steps)
        self.period = iterations * args.iteration_steps  # steps from one checkpoint to the next
        self.returns, self.lengths = np.zeros((2, args.num_envs))
        self.finished = []  # (return, length) of the episodes since the last point of the curves
        new = f"{args.exp_name}-{args.seed}-{time.strftime('%Y%m%d-%H%M%S')}".lstrip("-")
        parent = Path(args.runs_dir, re.sub("[/:]", "-", args.env_id), name)
        self.folder = Path(args.resume or args.evaluate or parent / new)
        self.folder.mkdir(parents=True, exist_ok=bool(args.resume or args.evaluate))

    def start(self, **parts):
        """Begins or resumes; checkpoints keep `parts`. Returns the step and first observations."""
        args, self.parts, self.started = self.args, parts, time.perf_counter()
        if args.resume:
            saved = torch.load(self.folder / "checkpoint.pt", map_location="cpu", weights_only=True)
            for name, part in parts.items():
                part.load_state_dict(saved["parts"][name])
            self.rng.bit_generator.state = saved["rng"]
            torch.set_rng_state(saved["torch_rng"])
            self.step_count = saved["step"]
            self.started -= saved["seconds"]
        # TensorBoard drops what a process that was killed logged after its last checkpoint
        purge_step = self.step_count + 1 if args.resume else None
        self.writer = SummaryWriter(self.folder, purge_step=purge_step)
        if not args.resume:
            settings, files = asdict(args), {__file__, sys.modules[type(args).__module__].__file__}
            plain = {k: v if isinstance(v, int | float) else str(v) for k, v in settings.items()}
            self.writer.file_writer.add_summary(hparams({"algo": self.name, **plain}, {})[1])
            command = shlex.join(["python", *sys.argv])
            about = {"algo": self.name, "args": settings, "command": command}
            about["versions"] = {x.__name__: x.__version__ for x in (torch, np, gym)}
            code = b"".join(Path(file).read_bytes() for file in sorted(files))  # a variant has two
            about["versions"]["script"] = hashlib.sha256(code).hexdigest()
            (self.folder / "args.json").write_text(json.dumps(about, indent=2) + "\n")
            self.save()
            self.started = time.perf_counter()
        print(f"{args.env_id}, seed {args.seed}, on {self.device}: {self.folder}", flush=True)
        self.last_step = step = self.step_count
        self.bar = tqdm(total=args.total_timesteps, initial=step, unit=" steps", leave=False)
        return step, reset(self.envs, args.seed, step)

    def step(self, actions):
        """Steps every environment once; `infos` then holds their infos: a list, for Atari one dict.

        Returns next_obs, rewards, terminated, truncated, successors: (num_envs, ...). After an end,
        next_obs is the next episode's first observation, successors has the true last one.
        """
        actions = actions.reshape(self.envs.action_space.shape)
        next_obs, rewards, terminated, truncated, final_obs, self.infos = self.envs.step(actions)
        successors = next_obs.copy() if final_obs else next_obs
        self.step_count += self.args.num_envs
        self.returns += rewards
        self.lengths += 1
        for i, obs in final_obs.items():
            successors[i] = obs
            self.finished.append((self.returns[i], self.lengths[i]))
            self.returns[i] = self.lengths[i] = 0
        if self.step_count % self.period == 0:
            # every episode begins anew, in new environments with seeds that follow from the step:
            # so a run that is resumed here needs nothing of the environments that were
            self.envs.close()
            self.envs = self.make_envs(self.args, self.args.num_envs)
            next_obs = reset(self.envs, self.args.seed, self.step_count)
            self.returns[:] = self.lengths[:] = 0
            truncated = ~terminated
        return next_obs, rewards.astype(np.float32), terminated, truncated, successors

    def end_iteration(self, scalars: dict) -> int:
        """Logs, evaluates and saves what is due. Returns the step."""
        step, args = self.step_count, self.args
        if not all(map(math.isfinite, scalars.values())):
            raise FloatingPointError(f"not finite at step {step}: {scalars}")
        if self.logs_now():
            scalars = {**scalars, "charts/SPS": step / (time.perf_counter() - self.started)}
            if self.finished:
                returns, lengths = np.mean(self.finished, axis=0)
                scalars |= {"charts/episodic_return": returns, "charts/episodic_length": lengths}
                self.bar.set_postfix_str(f"return {returns:.1f}", refresh=False)
                self.finished.clear()
            for name, value in scalars.items():
                self.writer.add_scalar(name, value, step)
        if self.due(args.eval_frequency) and step < args.total_timesteps:
            self.writer.add_scalar("eval/episodic_return", self.evaluate().mean(), step)
        if step % self.period == 0:
            self.save()
        self.bar.update(step - self.last_step)
        self.last_step = step
        return step

    def due(self, every: int) -> bool:  # whether a multiple of it lies in this iteration; 0: never
        return every > 0 and self.step_count // every > self.last_step // every

    def logs_now(self) -> bool:  # whether this iteration ends with a point of the curves
        at_end = self.step_count % self.period == 0 or self.step_count >= self.args.total_timesteps
        return at_end or self.due(self.args.log_frequency)

    def evaluate(self):
        """Returns of one episode in each of `eval_episodes` environments; films the first."""
        args, in_game, video = self.args, self.args.env_id.startswith("ALE/"), None
        shared = random.getstate(), np.random.get_state()  # training may draw from these, too
        drawn = {"render_mode": "rgb_array"} if args.capture_video else {}
        envs = self.make_envs(args, args.eval_episodes, training=False, **drawn)
        if args.capture_video:
            film = self.folder / "videos" / f"step-{self.step_count}-seed-{args.seed}.mp4"
            film.parent.mkdir(exist_ok=True)
            video = importlib.import_module("imageio").get_writer(film, fps=30, macro_block_size=2)
        obs, rng = reset(envs, args.seed, 0, 1), np.random.default_rng([args.seed, 1, 1])
        policy = self.evaluation_policy(self.agent, rng, args)
        returns, running = np.zeros(args.eval_episodes), np.ones(args.eval_episodes, np.bool_)
        for _ in tqdm(range(100_000), "evaluation", leave=False):  # an episode might not end
            if video and running[0]:  # a game as the agent sees it: 84 x 84, grey
                video.append_data(obs[0, -1] if in_game else envs.envs[0].render())
            actions = policy(obs).reshape(envs.action_space.shape)
            obs, rewards, terminated, truncated, *_ = envs.step(actions)
            returns += rewards * running
            running &= ~(terminated | truncated)
            if not running.any():
                break
        envs.close()
        if video:
            video.close()
        random.setstate(shared[0])
        np.random.set_state(shared[1])
        return returns

    def save(self):
        """Writes weights.npz and checkpoint.pt, after everything logged so far is in its file."""
        self.writer.flush()
        checkpoint = {
            "step": self.step_count,
            "seconds": time.perf_counter() - self.started,
            "rng": self.rng.bit_generator.state,
            "torch_rng": torch.get_rng_state(),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
        }
        arrays = to_arrays(self.agent)
        write_file(self.folder / "weights.npz", lambda file: np.savez(file, **arrays))
        write_file(self.folder / "checkpoint.pt", lambda file: torch.save(checkpoint, file))

    def finish(self):
        """Evaluates, writes weights.npz and result.json, and prints the result."""
        self.bar.close()
        steps, seconds = self.step_count, time.perf_counter() - self.started
        self.save()
        returns = self.evaluate()
        self.writer.add_scalar("eval/episodic_return", returns.mean(), steps)
        self.writer.close()
        self.envs.close()
        result = {"env_id": self.args.env_id, "algo": self.name, "seed": self.args.seed}
        result |= {"steps": steps, "seconds": round(seconds, 2), "sps": round(steps / seconds)}
        result |= {"eval_return_mean": returns.mean(), "eval_return_std": returns.std()}
        result |= {"eval_episodes": len(returns), "run_hash": run_hash(self.agent)}
        text = json.dumps(result, indent=2) + "\n"
        write_file(self.folder / "result.json", lambda file: file.write(text.encode()))
        (self.folder / "checkpoint.pt").unlink()  # with a replay buffer it is large
        print(f"trained      {steps:,} steps in {seconds:.1f} s, {steps / seconds:,.0f} steps/s")
        self.print_result(returns)

    def print_result(self, returns):
        print(f"evaluation   return {returns.mean():.1f} +- {returns.std():.1f}")
        print(f"run folder   {self.folder}")
        print(f"TensorBoard  tensorboard --logdir {shlex.quote(self.args.runs_dir)}")
        print(f"run hash     {run_hash(self.agent)}")

    def recorded(self, function, *optimizers):
        """`function`, on a GPU as CUDA graphs, one for each combination of shapes and flags: called
        once, recorded, then replayed. All else it reads must change in place, but learning rates.
        """
        if self.device.type != "cuda":
            return function
        groups, graphs = [group for optimizer in optimizers for group in optimizer.param_groups], {}
        rates = [torch.tensor(0.0, device=self.device) for group in groups]

        def replayed(*inputs):
            for group, rate in zip(groups, rates, strict=True):
                rate.fill_(group["lr"])  # which train may have set to a float
                group["lr"], group["capturable"] = rate, True
            # of a float that changes, a graph would keep the old value
            inputs = tree_map_only(float, lambda x: torch.tensor(x, device=self.device), inputs)
            flat, _ = tree_flatten(inputs)
            key = tuple(x.shape if torch.is_tensor(x) else x for x in flat)
            if key not in graphs:  # lets torch and the optimizer make what they keep
                graphs[key] = None
                torch.cuda.synchronize()
                with torch.cuda.stream(torch.cuda.Stream()):
                    outputs = function(*inputs)
                torch.cuda.synchronize()
                return outputs
            if graphs[key] is None:
                held = tree_map_only(torch.Tensor, torch.clone, inputs)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    outputs = function(*held)
                graphs[key] = graph, tree_flatten(held)[0], outputs
            graph, held, outputs = graphs[key]
            for x, y in zip(held, flat, strict=True):
                if torch.is_tensor(x):
                    x.copy_(y)
            graph.replay()
            return tree_map_only(torch.Tensor, torch.clone, outputs)

        return replayed


class Vector(nn.Parameter):
    """All parameters of a module as one vector, of which they become views, so that an optimizer's
    step is one operation. Their gradients are views, too; one that zero_grad drops becomes 0.
    """

    def __new__(cls, module):
        parameters = list(module.parameters())
        vector = super().__new__(cls, torch.cat([p.detach().flatten() for p in parameters]))
        vector.gradient, vector.parts = torch.zeros_like(vector.data), []
        sizes = [p.numel() for p in parameters]
        views = zip(vector.data.split(sizes), vector.gradient.split(sizes), strict=True)
        for p, (data, grad) in zip(parameters, views, strict=True):
            p.data, p.grad = data.view_as(p), grad.view_as(p)
            vector.parts.append((p, p.grad))
        return vector

    @property
    def grad(self):
        for p, view in self.parts:
            if p.grad is not view:  # dropped, and maybe made anew by a backward pass
                view.zero_() if p.grad is None else view.copy_(p.grad)
                p.grad = view
        return self.gradient

    @grad.setter
    def grad(self, value):
        self.gradient.zero_() if value is None else self.gradient.copy_(value)


def clip_gradient(optimizer, max_norm: float):
    """Scales the gradient of Vector to max_norm if it is longer, as clip_grad_norm_ does."""
    (vector,) = optimizer.param_groups[0]["params"]
    vector.grad[None].renorm_(p=2, dim=0, maxnorm=max_norm)  # of a matrix of one row


def skip_compiler_import():
    """Keeps torch's optimizers from importing the compiler (1.2 s) and calling it at each step."""
    for method in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(torch.optim.Optimizer, method).__wrapped__
        method.__dynamo_disable = method
    for optimizer in (torch.optim.Adam, torch.optim.RMSprop):
        optimizer.step = torch.no_grad()(optimizer.step.__wrapped__)
    torch.autograd.profiler.record_function = contextlib.nullcontext  # nor the profiler, 50 us each


def main(name, args_class, make_agent, train, evaluation_policy, make_envs=make_envs):
    """Runs a script. make_agent(args, obs_space, action_space) makes its module, train(args, run)
    trains it, evaluation_policy(agent, rng, args) makes a function from observations to actions.
    """
    args = parse_args(name, args_class, sys.argv[1:])
    run = Run(name, args, make_agent, evaluation_policy, make_envs)
    if run.args.evaluate:
        Vector(run.agent)  # as in training: how torch rounds depends on where weights begin
        return run.print_result(run.evaluate())
    skip_compiler_import()
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


if __name__ == "__main__":
    main("dqn", RunArgs, make_agent, train, evaluation_policy)
