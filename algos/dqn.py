"""Deep Q-learning (DQN): one network learns the value of every action from replayed steps, with
targets from a copy of itself that follows slowly. Double, dueling, C51 and n-step are switches.

Papers    DQN doi 10.1038/nature14236; double arXiv 1509.06461; dueling arXiv 1511.06581;
          C51 arXiv 1707.06887; n-step returns as in Rainbow, arXiv 1710.02298.
Run       python algos/dqn.py                                                  CartPole-v1
          python algos/dqn.py --double --dueling --n-step 3                    any combination
          python algos/dqn.py --n-atoms 51                             C51, returns of 0 to 100
Expect    a greedy return of 500 on CartPole-v1 on 17 of 20 seeds, in half a minute on one core.

Deliberate differences from the papers:
- an episode cut by a time limit is bootstrapped from its true last observation, as in theory;
- every stored step can be sampled, the newest with as many rewards as there are so far;
- Adam, its learning rate falling to 0, and a gradient whose norm is clipped, in C51 as well; a
  dueling network's gradient is not scaled down before it enters the trunk;
- by default ten-step returns, uncorrected for older policies' actions (the paper: --n-step 1);
- by default the target network moves a little each time (--tau 1 copies it, as the papers do).
"""

import copy
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
    total_timesteps: int = 40_000  # Training budget, summed over all environments [steps].
    num_envs: int = 1  # Environments stepped side by side.
    learning_rate: float = 2e-3  # Adam's step size, at the start.
    anneal_lr: bool = True  # Lowers the learning rate linearly to 0.
    buffer_size: int = 100_000  # Transitions in the replay buffer, over all environments.
    gamma: float = 0.99  # Discount factor.
    learning_starts: int = 1_000  # Steps of random actions before the first update.
    train_frequency: int = 8  # Steps between updates, summed over all environments.
    gradient_steps: int = 4  # Gradient steps of an update, each on a new minibatch.
    batch_size: int = 128  # Transitions in a minibatch.
    target_network_frequency: int = 8  # Steps between updates of the target network.
    tau: float = 0.02  # Share of the online network that the target takes over; 1 copies it.
    start_e: float = 1.0  # Probability of a random action at the start.
    end_e: float = 0.1  # Probability of a random action at the end of its linear schedule.
    exploration_fraction: float = 0.2  # Length of that schedule, as a share of total_timesteps.
    exploration_steps: int | None = None  # The same in steps; None: by exploration_fraction.
    eval_epsilon: float = 0.0  # Probability of a random action in evaluations; atari.toml: 0.001.
    double: bool = False  # The online network chooses the next action, the target values it.
    dueling: bool = False  # Splits the network into a state value and advantages of actions.
    n_atoms: int = 1  # Atoms of the distribution of returns (C51 has 51); 1: its mean, plain DQN.
    v_min: float = 0.0  # Return at the first atom.
    v_max: float = 100.0  # Return at the last atom.
    n_step: int = 10  # Rewards summed before the target network's value is added; the paper has 1.
    loss: Literal["huber", "mse"] = "huber"  # Of the TD error; with atoms always cross-entropy.
    max_grad_norm: float = 10.0  # Largest norm of the gradient of all parameters; inf: no limit.
    adam_eps: float = 1e-8  # Adam's epsilon.
    clip_reward: bool = False  # Learns from the sign of the reward; logged returns are not clipped.
    bf16: bool = False  # Images: convolutions in bfloat16, slow on a CPU without support for it.
    hidden_sizes: tuple[int, int] = (128, 128)  # Widths of the two hidden layers, for vectors.
    checkpoint_frequency: int = 50_000  # Steps between checkpoints; each ends running episodes.

    def check(self):
        require_range(self, "total_timesteps num_envs buffer_size train_frequency n_step", low=1)
        require_range(self, "gradient_steps batch_size target_network_frequency n_atoms", low=1)
        require_range(self, "exploration_steps hidden_sizes checkpoint_frequency", low=1)
        require_range(self, "learning_rate learning_starts max_grad_norm adam_eps")
        require_range(self, "gamma tau start_e end_e exploration_fraction eval_epsilon", high=1)
        for name in ("total_timesteps", "train_frequency", "buffer_size"):
            if (value := getattr(self, name)) % self.num_envs:
                fail(f"num_envs={self.num_envs} must divide {name}={value}")
        if not -1e38 < self.v_min < self.v_max < 1e38:  # float32 must hold their distance
            fail(f"v_min={self.v_min} must lie below v_max={self.v_max}, both finite")

    @property
    def iteration_steps(self) -> int:  # steps between calls of run.end_iteration
        return self.train_frequency


def train(args: Args, run: "Run", buffer=None, losses_of=None):
    # a variant may bring a buffer and a loss of its own
    losses_of = losses_of or (dqn_losses if args.n_atoms == 1 else c51_losses)
    if buffer is None:
        stack = run.obs_space.shape[0] if args.env_id.startswith("ALE/") else 1  # see make_envs
        buffer = ReplayBuffer(args.buffer_size, args.num_envs, run.obs_space, stack)
    q_network, target_q_network = run.agent, copy.deepcopy(run.agent).eval()
    settings = {"lr": args.learning_rate, "eps": args.adam_eps, "fused": True}
    optimizer = torch.optim.Adam(q_network.parameters(), **settings)
    first_rates = [group["lr"] for group in optimizer.param_groups]
    explored = args.exploration_steps or max(1, args.exploration_fraction * args.total_timesteps)
    parts = {"agent": q_network, "target": target_q_network, "optimizer": optimizer}
    step = run.start(**parts, buffer=buffer)
    while step < args.total_timesteps:
        if args.anneal_lr:
            remaining = linear_schedule(1.0, 0.0, args.total_timesteps, step)
            for group, rate in zip(optimizer.param_groups, first_rates, strict=True):
                group["lr"] = rate * remaining

        q_network.eval()  # dropout, for example, is for learning alone
        before, end = step, min(step + args.train_frequency, args.total_timesteps)
        while step < end:
            epsilon = linear_schedule(args.start_e, args.end_e, explored, step)
            obs = run.obs
            actions = q_network.act(obs, 1.0 if step < args.learning_starts else epsilon, run.rng)
            # next_obs is what they led to, where that ended an episode not what is acted on next
            next_obs, rewards, terminated, truncated = run.step(actions)
            if args.clip_reward:
                rewards = np.sign(rewards)
            buffer.add(obs, actions, rewards, terminated, truncated, next_obs, run.obs)
            step += args.num_envs

        if step >= args.learning_starts:
            q_network.train()
            for _ in range(args.gradient_steps):
                batch = buffer.sample(args.batch_size, args.n_step, args.gamma, run.rng)
                batch = {k: torch.as_tensor(v, device=run.device) for k, v in batch.items()}
                run.log(update(q_network, target_q_network, optimizer, batch, args, losses_of))
        # where a multiple of the frequency was passed, also when steps of train_frequency miss it
        if step // args.target_network_frequency > before // args.target_network_frequency:
            polyak(target_q_network, q_network, args.tau)
        learning_rate = optimizer.param_groups[0]["lr"]
        run.end_iteration({"charts/epsilon": epsilon, "charts/learning_rate": learning_rate})


def update(q_network, target_q_network, optimizer, batch, args, losses_of):
    """One gradient step. Returns scalars for the curves."""
    losses, _, scalars = losses_of(q_network, target_q_network, batch, args)
    loss = losses.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(q_network.parameters(), args.max_grad_norm)
    optimizer.step()
    scalars["td_loss"] = loss
    return {f"losses/{name}": value.detach() for name, value in scalars.items()}


def dqn_losses(q_network, target_q_network, batch, args):
    """Of each row the loss and the size of the TD error, (batch,), and scalars by name.

    batch: see ReplayBuffer.sample. A scalar q_spread tells how far Q differs from state to state.
    """
    with torch.no_grad():  # the target is a constant: Q(s, a) moves towards it, not it to Q(s, a)
        next_q = target_q_network(batch["next_obs"])  # (batch, actions)
        # double: eq. 4 of arXiv 1509.06461
        ranking = q_network(batch["next_obs"]) if args.double else next_q
        next_actions = q_network.best_actions(ranking, batch["next_obs"])
        next_values = next_q.gather(1, next_actions[:, None]).squeeze(1)
        target = td_target(batch["rewards"], batch["discounts"], batch["terminated"], next_values)
    q_values = q_network(batch["obs"])  # (batch, actions)
    taken = q_values.gather(1, batch["actions"][:, None]).squeeze(1)
    assert taken.shape == target.shape, (taken.shape, target.shape)
    loss_function = F.smooth_l1_loss if args.loss == "huber" else F.mse_loss
    losses = loss_function(taken, target, reduction="none")
    with torch.no_grad():
        spread = q_values.std(dim=0, correction=0).mean()
        return losses, (taken - target).abs(), {"q_values": taken.mean(), "q_spread": spread}


def c51_losses(q_network, target_q_network, batch, args):
    """As dqn_losses, of distributions: loss and error are the cross-entropy, arXiv 1707.06887."""
    rows = torch.arange(len(batch["actions"]), device=q_network.device)
    with torch.no_grad():
        next_logits = target_q_network.logits(batch["next_obs"])  # (batch, actions, atoms)
        ranking_logits = q_network.logits(batch["next_obs"]) if args.double else next_logits
        ranking = q_network.q_values(ranking_logits)
        next_actions = q_network.best_actions(ranking, batch["next_obs"])
        next_probs = torch.softmax(next_logits[rows, next_actions], dim=1)  # (batch, atoms)
        steps = batch["rewards"], batch["discounts"], batch["terminated"]
        target = project_categorical(q_network.support, next_probs, *steps)
    logits = q_network.logits(batch["obs"])
    taken_logits = logits[rows, batch["actions"]]  # (batch, atoms)
    assert taken_logits.shape == target.shape, (taken_logits.shape, target.shape)
    losses = F.cross_entropy(taken_logits, target, reduction="none")
    with torch.no_grad():
        q_values, probs = q_network.q_values(logits), torch.softmax(taken_logits, dim=1)
        scalars = {"q_values": (probs @ q_network.support).mean()}
        scalars["q_spread"] = q_values.std(dim=0, correction=0).mean()
        scalars["mass_at_ends"] = (probs[:, 0] + probs[:, -1]).mean()
        return losses, losses.detach(), scalars


def td_target(rewards, discounts, terminated, next_values):
    """r + gamma^n V(s'), or r alone where the task ended; all of one shape."""
    assert rewards.shape == discounts.shape == terminated.shape == next_values.shape, rewards.shape
    # not by a product: a last observation may be NaN, and 0 * NaN is NaN
    return torch.where(terminated, rewards, rewards + discounts * next_values)


def project_categorical(support, next_probs, rewards, discounts, terminated):
    """Distribution of r + gamma^n Z(s') on the fixed support; eq. 7 of arXiv 1707.06887.

    support (atoms,), evenly spaced [units of return]; next_probs (batch, atoms), each row with sum
    1; rewards, discounts, terminated (batch,). Returns (batch, atoms): what falls beyond an end
    goes to the atom there, what falls between two atoms is divided between them, by nearness.
    """
    n_atoms, v_min, v_max = len(support), support[0], support[-1]
    assert next_probs.shape == (len(rewards), n_atoms), next_probs.shape
    assert rewards.shape == discounts.shape == terminated.shape == (len(rewards),), rewards.shape
    # of what follows an end any distribution will do, but NaN
    next_probs = torch.where(terminated[:, None], 1 / n_atoms, next_probs)
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


@torch.no_grad()
def polyak(target, source, tau: float):
    """target <- (1 - tau) target + tau source, for every parameter; buffers are copied."""
    for p, q in zip(target.parameters(), source.parameters(), strict=True):
        p.lerp_(q, tau)
    for p, q in zip(target.buffers(), source.buffers(), strict=True):
        p.copy_(q)  # the statistics of a batch norm, for example


def linear_schedule(start: float, end: float, duration: int, step: int) -> float:
    """From `start` at step 0 on a straight line to `end` at step `duration`, constant after it."""
    return start + (end - start) * min(step / duration, 1.0)


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

    def add(self, obs, actions, rewards, terminated, truncated, next_obs, following_obs):
        """One step of every environment; each argument starts with the axis (num_envs,).

        following_obs: what is acted on next, which after an episode's end is not next_obs.
        """
        assert actions.shape == rewards.shape == (self.num_envs,), (actions.shape, rewards.shape)
        assert terminated.shape == truncated.shape == (self.num_envs,), terminated.shape
        assert obs.shape == next_obs.shape == following_obs.shape, (obs.shape, next_obs.shape)
        t = self.total % self.slots
        self.put(t, obs)  # already there, as the last following_obs, except at a start or resume
        self.put((t + 1) % self.slots, following_obs)
        self.actions[t], self.rewards[t] = actions, rewards
        self.terminated[t], self.truncated[t] = terminated, truncated
        for env in range(self.num_envs):
            self.final_obs.pop((t, env), None)  # that of the step overwritten here
            if truncated[env] and not terminated[env]:
                self.final_obs[t, env] = next_obs[env].copy()
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


class QNetwork(nn.Module):
    """Q of every action, with atoms as the mean of a distribution whose logits `logits` gives.

    Dueling: the value of the state plus the advantage of the action less its mean over the actions,
    eq. 9 of arXiv 1511.06581, for each atom on its own.
    """

    def __init__(self, args: Args, obs_space, num_actions: int):
        super().__init__()
        self.device = torch.device("cpu")  # until Run moves it
        self.num_actions, self.n_atoms, self.dueling = num_actions, args.n_atoms, args.dueling
        self.sees_images, self.bf16 = len(obs_space.shape) == 3, args.bf16
        self.pixel_max = float(obs_space.high.max())  # 255, but 1 where pixels are on or off
        if self.sees_images:
            self.trunk, num_features = nature_convolutions(obs_space.shape)
            hidden_size = 512
        else:
            num_features, hidden_size = args.hidden_sizes
            self.trunk = nn.Sequential(nn.Linear(*obs_space.shape, num_features), nn.ReLU())
        if self.dueling:
            self.value_head = head(num_features, hidden_size, self.n_atoms)
            self.advantage_head = head(num_features, hidden_size, num_actions * self.n_atoms)
        else:
            self.q_head = head(num_features, hidden_size, num_actions * self.n_atoms)
        if self.n_atoms > 1:
            self.register_buffer("support", torch.linspace(args.v_min, args.v_max, self.n_atoms))

    def features(self, obs):  # (batch, *obs_shape) -> (batch, num_features)
        if not self.sees_images:
            return self.trunk(obs)
        # uint8 until here; convolutions are faster with the channels last
        obs = obs.to(torch.float32, memory_format=torch.channels_last) / self.pixel_max
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
            return self.trunk(obs).float()

    def logits(self, obs):  # (batch, *obs_shape) -> (batch, actions, atoms); one atom is Q itself
        features = self.features(obs)
        if not self.dueling:
            return self.q_head(features).reshape(-1, self.num_actions, self.n_atoms)
        value = self.value_head(features).reshape(-1, 1, self.n_atoms)
        advantage = self.advantage_head(features).reshape(-1, self.num_actions, self.n_atoms)
        return value + advantage - advantage.mean(dim=1, keepdim=True)

    def q_values(self, logits):  # (batch, actions, atoms) -> (batch, actions)
        if self.n_atoms == 1:
            return logits.squeeze(2)
        return torch.softmax(logits, dim=2) @ self.support

    def forward(self, obs):  # (batch, *obs_shape) -> (batch, actions)
        return self.q_values(self.logits(obs))

    def best_actions(self, q_values, obs):  # (batch, actions), what they are of -> (batch,)
        return q_values.argmax(dim=1)

    def random_actions(self, obs, rng):  # (batch, *obs_shape) -> (batch,)
        return rng.integers(self.num_actions, size=len(obs))

    @torch.no_grad()
    def act(self, obs, epsilon, rng):
        """Epsilon-greedy actions: (num_envs, *obs_shape) -> (num_envs,)."""
        explore = rng.random(len(obs)) < epsilon
        if explore.all():
            return self.random_actions(obs, rng)
        tensors = torch.as_tensor(obs, device=self.device)
        actions = self.best_actions(self(tensors), tensors).cpu().numpy()
        if explore.any():
            actions[explore] = self.random_actions(obs[explore], rng)
        return actions


def make_agent(args, obs_space, action_space, network_class=QNetwork):
    if not isinstance(action_space, gym.spaces.Discrete):
        fail(f"actions must be Discrete, not {action_space}")
    if args.bf16 and len(obs_space.shape) != 3:
        fail(f"bf16 is for images, not for {obs_space}")
    return network_class(args, obs_space, int(action_space.n))


def evaluation_policy(agent, rng, args):  # made anew for each evaluation, so it may remember
    return lambda obs: agent.act(obs, args.eval_epsilon, rng)


def nature_convolutions(image_shape: tuple):
    """The convolutions of the Nature DQN, and how many features they give."""
    if min(image_shape[1:]) < 36:
        fail(f"images of {image_shape} are too small for three convolutions: at least 36 x 36")
    layers, sizes = [], ((image_shape[0], 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
    for channels_in, channels_out, kernel_size, stride in sizes:
        layers += [nn.Conv2d(channels_in, channels_out, kernel_size, stride), nn.ReLU(inplace=True)]
    convolutions = nn.Sequential(*layers, nn.Flatten())
    return convolutions, convolutions(torch.zeros(1, *image_shape)).shape[1]


def head(num_inputs: int, hidden_size: int, num_outputs: int):
    first, last = nn.Linear(num_inputs, hidden_size), nn.Linear(hidden_size, num_outputs)
    return nn.Sequential(first, nn.ReLU(), last)


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
    main("dqn", RunArgs, make_agent, train, evaluation_policy)
