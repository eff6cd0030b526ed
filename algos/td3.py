"""Twin Delayed Deep Deterministic policy gradient (TD3): a deterministic policy climbs a learned
Q, which is kept from overestimating by a second critic, noise on its target and a delayed policy.

Papers    TD3 arXiv 1802.09477; DDPG, from which it comes, arXiv 1509.02971.
Run       python algos/td3.py                                             HalfCheetah-v5
          python algos/td3.py --config benchmarks/lunarlander.toml        LunarLanderContinuous-v3
          python algos/td3.py --config benchmarks/halfcheetah.toml:td3-paper    the paper's settings
Expect    with the paper's settings a return of 8,421 +- 570 on HalfCheetah-v5 in 300,000 steps,
          in 25 minutes on one core; the defaults are those of the authors' current code.

Deliberate differences from the paper:
- actions are scaled to [-1, 1] by each dimension's own bounds, for the networks and the noise;
- every task begins with the same number of random steps, during which nothing is learned.
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
    env_id: str = "HalfCheetah-v5"  # Environment; `package.module:Id-v0` imports that module first.
    seed: int = 1  # Determines the run: same machine, same command, same seed, same weights.
    total_timesteps: int = 1_000_000  # Training budget, summed over all environments [steps].
    num_envs: int = 1  # Environments stepped side by side.
    learning_rate: float = 3e-4  # Adam's step size, for the actor and for the critics.
    buffer_size: int = 1_000_000  # Transitions in the replay buffer, over all environments.
    gamma: float = 0.99  # Discount factor.
    n_step: int = 1  # Rewards summed before the target critics' value is added.
    tau: float = 0.005  # Share of the online networks that the target networks take over.
    batch_size: int = 256  # Transitions in a minibatch.
    learning_starts: int = 25_000  # Steps of uniformly random actions before the first update.
    gradient_steps: int = 1  # Gradient steps for each step of an environment.
    exploration_noise: float = 0.1  # Deviation of the noise on actions taken [half the range].
    policy_noise: float = 0.2  # Deviation of the noise on the target's actions [half the range].
    noise_clip: float = 0.5  # Largest noise on the target's actions [half the range].
    policy_frequency: int = 2  # Updates of the critics for each update of actor and targets.
    twin: bool = True  # Two critics. DDPG: --no-twin --policy-frequency 1 --policy-noise 0.
    hidden_sizes: tuple[int, int] = (256, 256)  # Widths of each network's two hidden layers.
    norm_obs: bool = False  # Normalises by the moments of earlier observations, clips to +-10.
    layer_norm: bool = False  # Normalises hidden layers of the critics before their ReLUs.
    checkpoint_frequency: int = 50_000  # Steps between checkpoints; each ends running episodes.

    def check(self):
        require_range(self, "total_timesteps num_envs buffer_size batch_size gradient_steps", low=1)
        require_range(self, "policy_frequency n_step hidden_sizes checkpoint_frequency", low=1)
        require_range(self, "learning_rate learning_starts exploration_noise")
        require_range(self, "policy_noise noise_clip")
        require_range(self, "gamma tau", high=1)
        if self.policy_noise == 0:
            refuse_typed(self, "noise_clip", "without policy_noise")
        if self.learning_starts >= self.total_timesteps:
            ends = f"total_timesteps={self.total_timesteps}"
            fail(f"learning_starts={self.learning_starts} leaves no update before {ends}")
        if self.total_timesteps % self.num_envs:
            fail(f"num_envs={self.num_envs} must divide total_timesteps={self.total_timesteps}")

    @property
    def iteration_steps(self) -> int:  # steps between calls of run.end_iteration
        return self.num_envs


def train(args: Args, run: "Run", optimizers=None, buffer=None, update=None, parts=None):
    """Act, store, learn, repeat. `run` has agent, environments and a generator: see Run. The rest
    is for variants, such as td3_sac.py: an update or optimizers of their own, and `parts`, which
    checkpoints keep by name.
    """
    agent = run.agent
    target = copy.deepcopy(agent).eval()
    if optimizers is None:
        adam = {"lr": args.learning_rate, "fused": True}
        actor_optimizer = torch.optim.Adam(agent.actor.parameters(), **adam)
        critic_optimizer = torch.optim.Adam(agent.critics.parameters(), **adam)
        optimizers = {"actor_optimizer": actor_optimizer, "critic_optimizer": critic_optimizer}
    if buffer is None:
        obs_dim = run.obs_space.shape[0]
        buffer = ReplayBuffer(args.buffer_size, args.num_envs, obs_dim, agent.action_dim)
    update = update or td3_update
    # counted from learning_starts on: with one gradient step per step it is the step's number
    gradient_step = Counter(args.learning_starts)
    learners = {"agent": agent, "target": target, "buffer": buffer, "gradient_step": gradient_step}
    step = run.start(**learners, **optimizers, **(parts or {}))
    while step < args.total_timesteps:
        obs = run.obs
        if step < args.learning_starts:
            actions = run.rng.uniform(-1, 1, (args.num_envs, agent.action_dim)).astype(np.float32)
        else:
            agent.eval()  # dropout, for example, is for learning alone
            actions = agent.act(obs, run.rng, args.exploration_noise)
        # next_obs: what the actions led to, also at an episode's end; run.obs: acted on next
        next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))
        buffer.add(obs, actions, rewards, next_obs, terminated, truncated)

        # how many of the steps just taken came after learning_starts
        learned_from = min(args.num_envs, step + args.num_envs - args.learning_starts)
        if learned_from > 0:
            agent.train()
            for _ in range(args.gradient_steps * learned_from):
                gradient_step.value += 1
                batch = buffer.sample(args.batch_size, args.n_step, args.gamma, run.rng)
                batch = {k: torch.as_tensor(v, device=run.device) for k, v in batch.items()}
                # the buffer keeps raw ones: the newest moments count, for target networks, too
                batch |= {k: agent.features(batch[k]) for k in ("obs", "next_obs")}
                scalars = update(
                    agent, target, optimizers, batch, args, run.rng, gradient_step.value
                )
                run.log(scalars)
        if agent.obs_moments is not None:  # each once, however often it is replayed
            agent.obs_moments.update(obs)
        step = run.end_iteration({})


class Counter:
    """A number that checkpoints keep."""

    def __init__(self, value: int):
        self.value = value

    def state_dict(self) -> dict:
        return {"value": self.value}

    def load_state_dict(self, state: dict):
        self.value = state["value"]


def td3_update(agent, target, optimizers, batch, args, rng, gradient_step):
    """One step of the critics, less often of the actor and the target networks. Returns scalars
    for the curves.
    """
    noise = args.policy_noise * rng.standard_normal(batch["actions"].shape, np.float32)
    noise = torch.as_tensor(noise, dtype=torch.float32, device=agent.device)
    scalars = update_critics(agent, target, optimizers["critic_optimizer"], batch, noise, args)
    if gradient_step % args.policy_frequency == 0:
        scalars |= update_actor(agent, optimizers["actor_optimizer"], batch["obs"])
        polyak(target, agent, args.tau)
    return scalars


def update_critics(agent, target, optimizer, batch, noise, args):
    """One step of the critics. noise: for the target's actions, not clipped yet, (batch,
    action_dim). Returns scalars for the curves.
    """
    losses, q_mean = q_losses(agent, target, batch, noise, args)
    descend(optimizer, sum(losses))
    scalars = {f"losses/qf{i}_loss": loss.detach() for i, loss in enumerate(losses, start=1)}
    return scalars | {"losses/qf1_values": q_mean}


def update_actor(agent, optimizer, obs):
    """One step of the actor, up the gradient of Q. Returns scalars for the curves."""
    with frozen(agent.critics):  # they only lead the gradient to the actor
        loss = policy_loss(agent, obs)
    descend(optimizer, loss)
    return {"losses/actor_loss": loss.detach()}


def descend(optimizer, loss):
    """One step down the loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@contextlib.contextmanager
def frozen(module):
    """A loss that is computed within gives the module's parameters no gradient."""
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def q_losses(agent, target, batch, noise, args):
    """Mean squared TD error of each critic, and the first one's mean Q; all scalars."""
    with torch.no_grad():  # the target is a constant: Q(s, a) moves towards it, not it to Q(s, a)
        next_obs = batch["next_obs"]
        next_actions = smoothed(target.policy(next_obs), noise, args.noise_clip)
        next_q_values = [critic(next_obs, next_actions) for critic in target.critics]
        rewards, terminated = batch["rewards"], batch["terminated"]
        y = bootstrapped_target(rewards, terminated, next_q_values, gamma=batch["discounts"])
    q_values = [critic(batch["obs"], batch["actions"]) for critic in agent.critics]
    assert all(q.shape == y.shape == (len(batch["obs"]),) for q in q_values), y.shape
    return [F.mse_loss(q, y) for q in q_values], q_values[0].detach().mean()


def smoothed(actions, noise, noise_clip):
    """Target policy smoothing, section 5.3 of arXiv 1802.09477: clipped noise, then the bounds.

    actions in [-1, 1], noise: (batch, action_dim). Returns the same shape, in [-1, 1].
    """
    assert actions.shape == noise.shape, (actions.shape, noise.shape)
    return (actions + noise.clamp(-noise_clip, noise_clip)).clamp(-1, 1)


def bootstrapped_target(rewards, terminated, next_q_values, gamma):
    """r + gamma min_i Q_i(s', a'), or r alone where the task ended; eq. 10 of arXiv 1802.09477.

    rewards, terminated (batch,); next_q_values: for each critic (batch,); gamma: a number, or of
    each row gamma^n, (batch,). Returns (batch,).
    """
    next_q = torch.stack(next_q_values).min(dim=0).values
    assert rewards.shape == terminated.shape == next_q.shape, (rewards.shape, next_q.shape)
    # where, not a product: a last observation may be NaN, and 0 * NaN is NaN
    return torch.where(terminated, rewards, rewards + gamma * next_q)


def policy_loss(agent, obs):
    """The mean of -Q_1(s, pi(s)), a scalar: its gradient is minus the policy gradient."""
    return -agent.critics[0](obs, agent.policy(obs)).mean()


@torch.no_grad()
def polyak(target, source, tau: float):
    """target <- (1 - tau) target + tau source, for every parameter; buffers are copied."""
    for p, q in zip(target.parameters(), source.parameters(), strict=True):
        p.lerp_(q, tau)
    for p, q in zip(target.buffers(), source.buffers(), strict=True):
        p.copy_(q)  # the statistics of a batch norm, for example


class ReplayBuffer:
    """The last `capacity` transitions, the oldest overwritten first; a row holds one, and the same
    environment's next one lies num_envs rows on.
    """

    def __init__(self, capacity: int, num_envs: int, obs_dim: int, action_dim: int):
        self.capacity = capacity
        self.num_envs = num_envs
        self.total = 0  # transitions added so far
        self.arrays = {
            "obs": np.zeros((capacity, obs_dim), np.float32),
            "actions": np.zeros((capacity, action_dim), np.float32),  # in [-1, 1]
            "rewards": np.zeros(capacity, np.float32),
            "next_obs": np.zeros((capacity, obs_dim), np.float32),  # never what follows a reset
            "terminated": np.zeros(capacity, np.bool_),  # the task ended, so nothing follows
            "truncated": np.zeros(capacity, np.bool_),  # by time limit or checkpoint
        }

    def add(self, obs, actions, rewards, next_obs, terminated, truncated):
        """One step of every environment; each argument starts with the axis (num_envs,)."""
        n = len(rewards)
        assert n == self.num_envs, (n, self.num_envs)  # sample finds later steps by it
        slots = np.arange(self.total, self.total + n) % self.capacity
        transition = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs}
        transition |= {"terminated": terminated, "truncated": truncated}
        for name, new in transition.items():
            array = self.arrays[name]
            assert new.shape == (n, *array.shape[1:]), (new.shape, array.shape)
            array[slots] = new
        self.total += n

    def sample(self, batch_size, n_step, gamma, rng):
        """Uniform over the steps t held: a dict of arrays with the first axis (batch_size,).

        rewards      r_t + gamma r_{t+1} + ..., n of them: n_step, or fewer where the episode or the
                     buffer ends
        discounts    gamma^n
        terminated   whether the task ended with the last of them
        next_obs     s_{t+n}
        """
        arrays = self.arrays
        ks = np.arange(n_step)
        first = rng.integers(min(self.total, self.capacity), size=batch_size)
        # how many later steps of the same environment there are, (batch_size,)
        newer = (self.total - 1 - first) % self.capacity // self.num_envs
        slots = (first[:, None] + ks * self.num_envs) % self.capacity  # (batch_size, n_step)
        ended = arrays["terminated"][slots] | arrays["truncated"][slots]
        ended[:, -1] = True  # so that argmax finds the last reward where no episode ended
        counts = np.minimum(ended.argmax(axis=1), newer) + 1  # (batch_size,)
        last = slots[np.arange(batch_size), counts - 1]
        powers = np.float32(gamma ** np.arange(n_step + 1))
        rewards = arrays["rewards"][slots] * powers[:-1] * (ks < counts[:, None])
        batch = {name: arrays[name][first] for name in ("obs", "actions")}
        batch |= {name: arrays[name][last] for name in ("next_obs", "terminated")}
        return batch | {"rewards": rewards.sum(axis=1), "discounts": powers[counts]}

    def filled(self) -> dict:
        """The arrays; of those with a row for each transition, what was added so far."""
        arrays = self.arrays.items()
        return {k: x[: self.total] if x.shape[:1] == (self.capacity,) else x for k, x in arrays}

    def state_dict(self) -> dict:
        held = {name: torch.as_tensor(array) for name, array in self.filled().items()}
        return {"total": self.total, **held}

    def load_state_dict(self, state: dict):
        self.total = state["total"]
        for name, array in self.filled().items():
            array[...] = state[name]


class Agent(nn.Module):
    """A deterministic policy, which `policy` alone defines, and the critics that teach it.

    Inside, actions are in half ranges: 0 is the middle between a dimension's bounds, -1 and 1 are
    the bounds. So noise and clipping treat each dimension by its own range.
    """

    def __init__(self, args: Args, obs_dim: int, low, high):
        super().__init__()
        self.device = torch.device("cpu")  # until Run moves it
        self.action_dim = len(low)
        sizes = args.hidden_sizes
        self.actor = relu_mlp(obs_dim, sizes, self.action_dim)
        self.critics = nn.ModuleList()
        for _ in range(2 if args.twin else 1):
            self.critics.append(Critic(obs_dim, self.action_dim, sizes, args.layer_norm))
        self.obs_moments = RunningMoments((obs_dim,)) if args.norm_obs else None
        self.low = low
        self.high = high

    def features(self, obs):  # (batch, obs_dim) -> the same shape, as policy and critics take it
        return obs if self.obs_moments is None else self.obs_moments.normalised(obs)

    def policy(self, features):  # (batch, obs_dim) -> (batch, action_dim) in [-1, 1]
        return self.actor(features).tanh()

    def forward(self, obs):  # for acting
        return self.policy(self.features(obs))

    @torch.no_grad()
    def act(self, obs, rng, noise=0.0):
        """(num_envs, obs_dim) -> (num_envs, action_dim) in [-1, 1], with Gaussian noise on it."""
        actions = self(torch.as_tensor(obs, device=self.device)).cpu().numpy()
        if noise > 0:
            actions = actions + noise * rng.standard_normal(actions.shape, np.float32)
        return actions.clip(-1, 1)

    def to_env(self, actions):
        """[-1, 1] -> [low, high], each dimension by its own bounds."""
        if not np.isfinite(actions).all():  # or a simulator would be blamed for its answer
            raise FloatingPointError(f"actions not finite: {actions}")
        middle = (self.low + self.high) / 2
        half_range = (self.high - self.low) / 2
        return np.clip(middle + half_range * actions, self.low, self.high)


class Critic(nn.Module):
    """Q(s, a): (batch, obs_dim), (batch, action_dim) -> (batch,)."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: tuple, layer_norm: bool):
        super().__init__()
        self.layers = relu_mlp(obs_dim + action_dim, hidden_sizes, 1, layer_norm)

    def forward(self, obs, actions):
        return self.layers(torch.cat([obs, actions], dim=1)).squeeze(1)


def relu_mlp(num_inputs: int, hidden_sizes: tuple, num_outputs: int, layer_norm: bool = False):
    layers = []
    for size in hidden_sizes:
        norm = [nn.LayerNorm(size)] if layer_norm else []
        layers += [nn.Linear(num_inputs, size), *norm, nn.ReLU()]
        num_inputs = size
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))


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


def make_agent(args, obs_space, action_space, agent_class=None):
    if not (isinstance(action_space, gym.spaces.Box) and action_space.dtype.kind == "f"):
        fail(f"actions must be a Box of real numbers, not {action_space}")
    if len(obs_space.shape) != 1:
        fail(f"observations must be vectors, not {obs_space}")
    low, high = np.float64([action_space.low, action_space.high]).reshape(2, -1)
    if not (high - low < np.finfo(np.float32).max).all():  # which some use for infinity
        fail(f"every action needs bounds, not {action_space}: try ppo.py")
    return (agent_class or Agent)(args, *obs_space.shape, low, high)


def evaluation_policy(agent, rng, args):  # made anew for each evaluation: a memory starts empty
    return lambda obs: agent.to_env(agent.act(obs, rng))


# --------------------------------------------------------------------------------------------------
# The algorithm ends here. First environments, of which this script takes those with vectors.


def make_env(env_id: str, **keywords):
    """One environment with vectors of float32."""
    before_making(env_id)
    env = gym.make(env_id, **keywords)
    with closed_on_error([env]):
        return as_vectors(env)


def make_envs(args, num_envs: int, training: bool = True, make_env=make_env, **keywords):
    """A gym.vector.VectorEnv under same-step autoreset. A batched simulator may take its place."""
    return side_by_side(args, num_envs, make_env, keywords)


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
    main("td3", RunArgs, make_agent, train, evaluation_policy)
