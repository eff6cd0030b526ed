# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "gymnasium==1.4.0", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "threadpoolctl==3.8.0", "pygame-ce==2.5.8",
#   "box2d==2.3.10", "mujoco==4.0.0", "ale-py==0.12.1", "imageio==2.38.1", "imageio-ffmpeg==0.8.1"]
# ///
"""Advantage actor-critic (A2C): one policy gradient step on each short rollout, with a learned
value as the baseline. It is PPO with one epoch, one minibatch and so nothing to clip.

Papers    A3C arXiv 1602.01783; GAE arXiv 1506.02438.
Run       python algos/a2c.py                                         CartPole-v1
          python algos/a2c.py --config benchmarks/lunarlander.toml    and any file of benchmarks/
Expect    a greedy return of 500 on CartPole-v1 on all of ten seeds, in twenty seconds on one core.

Deliberate differences from the papers:
- not asynchronous: all environments step together, and one update learns from all of them;
- advantages by GAE: with gae_lambda 1 they are the n-step returns of A3C, less the value;
- the value loss is half the mean squared error: double a coefficient taken from other code;
- the gradient's norm is clipped; losses are means over the rollout, where the paper sums;
- weights start orthogonal: gain sqrt(2), in the policy's last layer 0.01, in the value's 1;
- an episode cut by a time limit is bootstrapped from its true last observation, as in theory.
"""

import contextlib
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
from dataclasses import asdict, dataclass
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
    total_timesteps: int = 200_000
    """Training budget, summed over all environments [steps]."""
    num_envs: int = 8
    """Environments stepped side by side."""
    num_steps: int = 5
    """Length of a rollout in each environment [steps]."""
    optimizer: Literal["rmsprop_tf", "rmsprop", "adam"] = "rmsprop_tf"
    """RMSprop as TensorFlow has it (see RMSpropTF) or as torch has it, or Adam."""
    learning_rate: float = 2e-3
    """The optimizer's step size, at the start."""
    anneal_lr: bool = True
    """Lowers the learning rate linearly to 0."""
    anneal_steps: int | None = None
    """Length of this linear schedule [steps]; None: total_timesteps."""
    gamma: float = 0.98
    """Discount factor."""
    gae_lambda: float = 1.0
    """GAE's lambda: 0 is the one-step TD error, 1 the n-step return to the rollout's end less V."""
    num_microbatches: int = 1
    """Parts of a rollout whose gradients are summed into one step: the same step in less memory."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 1.0
    """Weight of the value loss, which is half the mean squared error."""
    max_grad_norm: float = 0.5
    """Largest norm of the gradient of all parameters together."""
    norm_obs: bool = False
    """Normalises vectors by the mean and variance of earlier rollouts, and clips them to +-10."""
    norm_reward: bool = False
    """Divides rewards by the standard deviation of the discounted return; clips them to +-10."""
    clip_reward: bool = False
    """Learns from the sign of the reward, as is usual on Atari; logged returns are not clipped."""
    bf16: bool = False
    """Images: convolutions compute in bfloat16, which is slow on a CPU without support for it."""
    hidden_size: int = 64
    """Width of both hidden layers of a network for vectors."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation after each of those layers."""
    log_std_init: float = 0.0
    """Continuous actions: log of the standard deviation at the start; 0 is half the range."""
    checkpoint_frequency: int = 100_000
    """Steps between checkpoints, rounded up to whole rollouts. Each ends all running episodes."""

    def check(self):
        require_range(self, "total_timesteps num_envs num_steps num_microbatches", low=1)
        require_range(self, "anneal_steps hidden_size checkpoint_frequency", low=1)
        require_range(self, "learning_rate ent_coef vf_coef max_grad_norm", low=0)
        require_range(self, "gamma gae_lambda", low=0, high=1)
        if self.total_timesteps % self.num_envs or self.iteration_steps % self.num_microbatches:
            fail("num_envs must divide total_timesteps, num_microbatches num_envs * num_steps")

    @property
    def iteration_steps(self) -> int:  # of a rollout: steps between calls of run.end_iteration
        return self.num_envs * self.num_steps


class RunningMoments(nn.Module):
    """Mean and variance of everything seen so far; buffers, so they are saved with the weights."""

    def __init__(self, shape: tuple):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.version = None

    def update(self, x):
        """Merges the moments of x, (batch, *shape), exactly: Chan, Golub, LeVeque 1983, eq. 2.1."""
        x = np.asarray(x, np.float64)
        mean, var, count = (t.cpu().double().numpy() for t in (self.mean, self.var, self.count))
        delta, total = x.mean(axis=0) - mean, count + len(x)
        squares = count * var + len(x) * x.var(axis=0) + delta**2 * count * len(x) / total
        self.mean.copy_(torch.as_tensor(mean + delta * len(x) / total))
        self.var.copy_(torch.as_tensor(squares / total))
        self.count += len(x)

    def std(self):
        return torch.sqrt(self.var + 1e-8)

    def normalised(self, x):  # (batch, *shape), a tensor or an array
        if torch.is_tensor(x):
            return ((x - self.mean) / self.std()).clip(-10, 10)
        if self.version != self.var._version:  # changed since it was last looked up
            self.version, self.arrays = self.var._version, (self.mean.numpy(), self.std().numpy())
        mean, std = self.arrays
        return ((x - mean) / std).clip(-10, 10)


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


def initialise(layer, gain: float = math.sqrt(2)):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(num_inputs: int, hidden_size: int, activation: str, num_outputs: int, gain: float):
    make_activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]
    return Layers(
        initialise(nn.Linear(num_inputs, hidden_size)),
        make_activation(),
        initialise(nn.Linear(hidden_size, hidden_size)),
        make_activation(),
        initialise(nn.Linear(hidden_size, num_outputs), gain),
    )


def nature_cnn(image_shape: tuple):
    """Image to 512 features: the convolutions of the Nature DQN, doi 10.1038/nature14236."""
    layers, sizes = [], ((image_shape[0], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
    for channels_in, channels_out, kernel_size, stride in sizes:
        convolution = nn.Conv2d(channels_in, channels_out, kernel_size, stride)
        layers += [initialise(convolution), nn.ReLU(inplace=True)]
    layers.append(nn.Flatten())
    num_features = nn.Sequential(*layers)(torch.zeros(1, *image_shape)).shape[1]
    return nn.Sequential(*layers, initialise(nn.Linear(num_features, 512)), nn.ReLU(inplace=True))


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
        num_outputs = int(action_space.n) if self.discrete else math.prod(action_space.shape)
        self.make_networks(args, obs_space.shape, num_outputs)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((num_outputs,), args.log_std_init))
            low, high = np.float32([action_space.low, action_space.high]).reshape(2, -1)
            self.low, self.high = low, high
            with np.errstate(all="ignore"):  # infinite bounds; some write them as the largest float
                bounded = high - low < np.finfo(np.float32).max
                self.middle = np.where(bounded, (low + high) / 2, np.clip(np.float32(0), low, high))
                self.half_range = np.where(bounded, (high - low) / 2, np.float32(1))
            # not read here, but weights.npz shall say by itself what its actions mean
            self.register_buffer("action_low", torch.tensor(low))
            self.register_buffer("action_high", torch.tensor(high))
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
        obs = obs.to(torch.float32, memory_format=torch.channels_last).div_(255)
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
            return self.trunk(obs).float()

    def policy(self, features):  # (batch, n) -> logits or means (batch, actions)
        return self.actor(features)

    def value(self, features):  # (batch, n) -> (batch,)
        return self.critic(features).squeeze(-1)

    def forward(self, obs):  # (batch, *obs_shape) -> logits or means (batch, actions), for acting
        return self.policy(self.features(obs))

    def act(self, obs, rng, greedy=False):
        """(num_envs, *obs_shape) -> (num_envs,) or (num_envs, action_dim), sampled or likeliest."""
        if not self.sees_images and self.device.type == "cpu":  # an array: see Layers
            return self.sample(self.forward(obs), rng, greedy)
        with torch.no_grad():
            policy = self.forward(torch.as_tensor(obs, device=self.device)).cpu().numpy()
        return self.sample(policy, rng, greedy)

    def sample(self, policy, rng, greedy=False):  # what `policy` returns, an array -> actions
        if greedy:
            return policy.argmax(axis=1) if self.discrete else policy
        if self.discrete:  # Gumbel-max: the argmax of logits plus Gumbel noise samples the softmax
            return (policy + rng.gumbel(size=policy.shape)).argmax(axis=1)
        std = self.log_std.detach().exp().cpu().numpy()
        return policy + std * rng.standard_normal(policy.shape, np.float32)

    def to_env(self, action):
        """Scales and clips `action` for the environment; log-probabilities use the unclipped."""
        if self.discrete:
            return action
        return (self.middle + self.half_range * action).clip(self.low, self.high)

    def evaluate_actions(self, batch):
        """log pi(a), entropy and V of the steps in `batch`, (batch,) each."""
        features = self.features(batch["obs"])
        policy, actions = self.policy(features), batch["actions"]
        if self.discrete:
            log_probs, entropies = categorical_log_prob_and_entropy(policy, actions)
        else:
            log_probs, entropies = gaussian_log_prob_and_entropy(policy, self.log_std, actions)
        return log_probs, entropies, self.value(features)

    def end_rollout(self, obs):  # (steps, envs, *obs_shape)
        # after the update, so that acting and learning saw the same statistics
        if self.obs_moments is not None:
            self.obs_moments.update(obs.reshape(-1, *obs.shape[2:]))


class RolloutBuffer:
    """One rollout: arrays of shape (num_steps, num_envs, ...), filled from the top by `add`."""

    def __init__(self, num_steps, num_envs, obs_space):
        shape = num_steps, num_envs
        self.obs = np.zeros((*shape, *obs_space.shape), obs_space.dtype)
        self.actions = None  # made like the first ones that are added
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)  # the task ended
        self.truncated = np.zeros(shape, np.bool_)  # by time limit or checkpoint
        self.size, self.final_obs = 0, []  # of steps with ends: last obs, (ended, *obs_shape)

    def add(self, obs, actions, rewards, terminated, truncated, successors):
        """One step of every environment; each argument starts with the axis (num_envs,)."""
        t, ended = self.size, terminated | truncated
        assert rewards.shape == ended.shape == self.rewards.shape[1:], (rewards.shape, ended.shape)
        assert obs.shape == successors.shape == self.obs.shape[1:], (obs.shape, successors.shape)
        if self.actions is None:
            self.actions = np.zeros((*self.rewards.shape, *actions.shape[1:]), actions.dtype)
        assert actions.shape == self.actions.shape[1:], actions.shape
        self.obs[t], self.actions[t], self.rewards[t] = obs, actions, rewards
        self.terminated[t], self.truncated[t] = terminated, truncated
        if ended.any():
            self.final_obs.append(successors[ended])
        self.last_successors = successors
        self.size += 1


def linear_schedule(start: float, end: float, duration: int, step: int) -> float:
    """From `start` at step 0 on a straight line to `end` at step `duration`, constant after it."""
    return start + (end - start) * min(step / duration, 1.0)


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


def gae(rewards, values, next_values, terminated, truncated, gamma, gae_lambda):
    """Generalised advantage estimates; eq. 16 of arXiv 1506.02438, cut where episodes end.

    A_t = delta_t + gamma lambda A_{t+1}, without A_{t+1} where the episode ended, and
    delta_t = r_t + gamma V(s_{t+1}) - V(s_t), without V(s_{t+1}) only where the task ended.
    rewards, values, next_values (of the true successors, before a reset), terminated (the task
    ended) and truncated (a time limit cut the episode), all (steps, envs) -> A_t, (steps, envs).
    """
    assert rewards.shape == values.shape == next_values.shape == terminated.shape == truncated.shape
    deltas = rewards + gamma * next_values * ~terminated - values
    decays = gamma * gae_lambda * ~(terminated | truncated)
    advantages, running = np.zeros_like(deltas), 0.0
    for t in reversed(range(len(deltas))):
        running = deltas[t] + decays[t] * running
        advantages[t] = running
    return advantages


def discounted_returns(rewards, ended, gamma, running):
    """sum_k gamma^k r_{t-k} since the episode began, whose deviation scales rewards, and `running`
    for the next call, 0 after an end. rewards, ended (steps, envs); running (envs,).
    """
    sums = np.zeros(rewards.shape)
    for t in range(len(rewards)):
        sums[t] = gamma * running + rewards[t]
        running = sums[t] * ~ended[t]
    return sums, running


def explained_variance(values, returns) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one."""
    return float(1 - np.var(returns - values) / max(np.var(returns), 1e-8))


def policy_gradient_loss(log_probs, advantages):
    """The mean of -log pi(a) A, section 4 of arXiv 1602.01783: (batch,), (batch,) -> scalar."""
    assert log_probs.shape == advantages.shape, (log_probs.shape, advantages.shape)
    return -(log_probs * advantages).mean()


def squared_error_loss(values, returns):
    """Half the mean squared error: (batch,), (batch,) -> scalar."""
    assert values.shape == returns.shape, (values.shape, returns.shape)
    return 0.5 * F.mse_loss(values, returns)


class RMSpropTF(torch.optim.Optimizer):
    """RMSprop as TensorFlow has it, with which A2C's results on Atari were published.

    s <- alpha s + (1 - alpha) g^2, from s = 1;  p <- p - lr g / sqrt(s + eps).
    torch's own starts from s = 0, so that its first steps are ten times as long (alpha 0.99), and
    divides by sqrt(s) + eps, so that it takes whole steps for far smaller gradients.
    """

    def __init__(self, parameters, lr, alpha, eps):
        super().__init__(parameters, {"lr": lr, "alpha": alpha, "eps": eps})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["square_avg"] = torch.ones_like(p)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                square_avg, grad = self.state[p]["square_avg"], p.grad
                square_avg.mul_(group["alpha"]).addcmul_(grad, grad, value=1 - group["alpha"])
                p.addcdiv_(grad, (square_avg + group["eps"]).sqrt_(), value=-group["lr"])


@torch.no_grad()
def rollout_batch(agent, buffer, args, running):
    """The rollout as tensors, (steps * envs, ...), and the running returns for the next one."""
    n = buffer.size  # less than num_steps in a last rollout that is cut short
    rewards, terminated, truncated = buffer.rewards[:n], buffer.terminated[:n], buffer.truncated[:n]
    ended = terminated | truncated
    if args.norm_reward:
        sums, running = discounted_returns(rewards, ended, args.gamma, running)
        agent.return_moments.update(sums.reshape(-1))
        rewards = np.clip(rewards / agent.return_moments.std().item(), -10, 10)
    batch = {"obs": buffer.obs[:n], "actions": buffer.actions[:n]}
    batch = {k: torch.as_tensor(x, device=agent.device).flatten(0, 1) for k, x in batch.items()}
    batch["values"] = agent.value(agent.features(batch["obs"]))
    # in one pass the values that these lack: of episodes' last observations, last successors
    others = torch.as_tensor(np.concatenate([*buffer.final_obs, buffer.last_successors]))
    others = agent.value(agent.features(others.to(agent.device))).cpu().numpy()
    final_values, last_values = np.split(others, [-len(buffer.last_successors)])
    values = batch["values"].cpu().numpy().reshape(n, -1)
    next_values = successor_values(values, last_values, ended, final_values)
    coefs = args.gamma, args.gae_lambda
    advantages = gae(rewards, values, next_values, terminated, truncated, *coefs)
    batch["advantages"] = torch.as_tensor(advantages, device=agent.device).flatten()
    batch["returns"] = batch["advantages"] + batch["values"]  # A = R - V: the critic learns R
    return batch, running


def a2c_loss(agent, micro, args):
    """The loss of a part of a rollout, and its parts by name; all scalars."""
    log_probs, entropies, values = agent.evaluate_actions(micro)
    pi_loss = policy_gradient_loss(log_probs, micro["advantages"])
    v_loss, entropy = squared_error_loss(values, micro["returns"]), entropies.mean()
    loss = pi_loss + args.vf_coef * v_loss
    if args.ent_coef > 0:  # else its backward pass would be for nothing
        loss = loss - args.ent_coef * entropy
    return loss, {"policy_loss": pi_loss, "value_loss": v_loss, "entropy": entropy}


def update(agent, optimizer, batch, args, loss_of=a2c_loss):
    """One gradient step, from the summed gradients of a rollout's parts. Returns losses by name."""
    batch_size = len(batch["obs"])
    micro_size = math.ceil(batch_size / args.num_microbatches)  # a last rollout may be short
    optimizer.zero_grad()
    losses = {}
    for start in range(0, batch_size, micro_size):
        micro = {name: tensor[start : start + micro_size] for name, tensor in batch.items()}
        loss, parts = loss_of(agent, micro, args)
        share = len(micro["obs"]) / batch_size
        (share * loss).backward()
        losses = {k: losses.get(k, 0) + share * x.detach() for k, x in parts.items()}
    clip_gradient(optimizer, args.max_grad_norm)
    optimizer.step()
    return losses


def make_agent(args, obs_space, action_space, agent_class=Agent):
    real = isinstance(action_space, gym.spaces.Box) and action_space.dtype.kind == "f"
    if not real and not isinstance(action_space, gym.spaces.Discrete):
        fail(f"a2c takes Discrete and real-valued Box action spaces, not {action_space}")
    return agent_class(args, obs_space, action_space)


def evaluation_policy(agent, rng, args):  # made anew for each evaluation, so it may remember
    greedy = not args.env_id.startswith("ALE/")  # in a game a greedy agent can stall for ever
    return lambda obs: agent.to_env(agent.act(obs, rng, greedy))


def train(args: Args, run: "Run", loss_of=a2c_loss):
    agent = run.agent
    kinds = {"rmsprop_tf": RMSpropTF, "rmsprop": torch.optim.RMSprop, "adam": torch.optim.Adam}
    settings = {"fused": True} if args.optimizer == "adam" else {"alpha": 0.99}
    rate, duration = args.learning_rate, args.anneal_steps or args.total_timesteps
    optimizer = kinds[args.optimizer]([Vector(agent)], lr=rate, eps=1e-5, **settings)
    running_returns, losses = np.zeros(args.num_envs), []  # a checkpoint ends both
    step, obs = run.start(agent=agent, optimizer=optimizer)
    agent.forward = run.recorded(agent.forward)  # on a GPU, replays as a CUDA graph
    while step < args.total_timesteps:
        learning_rate = linear_schedule(rate, 0.0 if args.anneal_lr else rate, duration, step)
        optimizer.param_groups[0]["lr"] = learning_rate
        buffer = RolloutBuffer(args.num_steps, args.num_envs, run.obs_space)
        for _ in range(min(args.num_steps, (args.total_timesteps - step) // args.num_envs)):
            actions = agent.act(obs, run.rng)
            # next_obs is acted on next: after an episode's end, the new one's first. successors are
            # what the actions led to: after an episode's end, its true last observation
            next_obs, rewards, terminated, truncated, successors = run.step(agent.to_env(actions))
            if args.clip_reward:
                rewards = np.sign(rewards)
            buffer.add(obs, actions, rewards, terminated, truncated, successors)
            obs = next_obs

        batch, running_returns = rollout_batch(agent, buffer, args, running_returns)
        losses.append(update(agent, optimizer, batch, args, loss_of))
        agent.end_rollout(buffer.obs[: buffer.size])
        scalars = {"charts/learning_rate": learning_rate}
        if run.logs_now():  # means of all updates since the last time
            for k in losses[0]:
                scalars[f"losses/{k}"] = torch.stack([x[k] for x in losses]).mean().item()
            values, returns = batch["values"].cpu().numpy(), batch["returns"].cpu().numpy()
            scalars["losses/explained_variance"] = explained_variance(values, returns)
            losses.clear()
        step = run.end_iteration(scalars)


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
    main("a2c", RunArgs, make_agent, train, evaluation_policy)
