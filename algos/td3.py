# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "gymnasium==1.4.0", "tyro==1.0.17",
#   "tensorboard==2.21.0", "tqdm==4.70.1", "threadpoolctl==3.8.0", "pygame-ce==2.5.8",
#   "box2d==2.3.10", "mujoco==4.0.0", "ale-py==0.12.1", "imageio==2.38.1", "imageio-ffmpeg==0.8.1"]
# ///
"""Twin Delayed Deep Deterministic policy gradient (TD3): a deterministic policy climbs a learned
Q, which is kept from overestimating by a second critic, noise on its target and a delayed policy.

Paper     TD3 arXiv 1802.09477; DDPG, from which it comes, arXiv 1509.02971.
Run       python algos/td3.py                                             HalfCheetah-v5
          python algos/td3.py --config benchmarks/lunarlander.toml        LunarLanderContinuous-v3
          python algos/td3.py --config benchmarks/halfcheetah.toml:td3-paper    the paper's settings
Expect    with the paper's settings a return of 8,300 +- 1,000 on HalfCheetah-v5 in 300,000 steps,
          in 40 minutes on one core; the defaults are those of the authors' current code.

Deliberate differences from the paper:
- actions are scaled to [-1, 1] by each dimension's own bounds, for the networks and the noise;
- every task begins with the same number of random steps, during which nothing is learned.
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
    env_id: str = "HalfCheetah-v5"
    """Environment, as gymnasium names it; `package.module:Id-v0` imports that module first."""
    seed: int = 1
    """Determines the run: same machine, same command, same seed, same weights."""
    total_timesteps: int = 1_000_000
    """Training budget, summed over all environments [steps]."""
    num_envs: int = 1
    """Environments stepped side by side. After each step of all come as many updates."""
    learning_rate: float = 3e-4
    """Adam's step size, for the actor and for the critics."""
    buffer_size: int = 1_000_000
    """Transitions that the replay buffer holds, over all environments."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Share of the online networks that the target networks take over each time."""
    batch_size: int = 256
    """Transitions in a minibatch."""
    learning_starts: int = 25_000
    """Steps of uniformly random actions before the first update."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on the actions taken [half the action's range]."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target's actions [half the action's range]."""
    noise_clip: float = 0.5
    """Largest noise on the target's actions [half the action's range]."""
    policy_frequency: int = 2
    """Updates of the critics for each update of the actor and the target networks."""
    twin: bool = True
    """Two critics, the smaller one counts. DDPG: --no-twin --policy-frequency 1 --policy-noise 0"""
    hidden_sizes: tuple[int, int] = (256, 256)
    """Widths of the two hidden layers of each network."""
    checkpoint_frequency: int = 50_000
    """Steps between checkpoints. Each ends all running episodes."""

    def check(self):
        require_range(self, "total_timesteps num_envs buffer_size batch_size", low=1)
        require_range(self, "policy_frequency checkpoint_frequency", low=1)
        at_least_0 = "learning_rate learning_starts exploration_noise policy_noise noise_clip"
        require_range(self, at_least_0, low=0)
        require_range(self, "gamma tau", low=0, high=1)
        if self.total_timesteps % self.num_envs:
            fail("total_timesteps must divide by num_envs")

    @property
    def iteration_steps(self) -> int:  # steps between calls of run.end_iteration
        return self.num_envs


def relu_mlp(num_inputs: int, hidden_sizes: tuple, num_outputs: int):
    first, second = hidden_sizes
    return nn.Sequential(
        nn.Linear(num_inputs, first),
        nn.ReLU(inplace=True),
        nn.Linear(first, second),
        nn.ReLU(inplace=True),
        nn.Linear(second, num_outputs),
    )


class Critic(nn.Module):
    """Q(s, a): (batch, obs_dim), (batch, action_dim) -> (batch,)."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: tuple):
        super().__init__()
        self.layers = relu_mlp(obs_dim + action_dim, hidden_sizes, 1)

    def forward(self, obs, actions):
        return self.layers(torch.cat([obs, actions], dim=1)).squeeze(1)


class Agent(nn.Module):
    """A deterministic policy, which `policy` alone defines, and the critics that teach it.

    Inside, actions are in half ranges: 0 is the middle between a dimension's bounds, -1 and 1 are
    the bounds. So noise and clipping treat each dimension by its own range.
    """

    def __init__(self, args: Args, obs_dim: int, low, high):
        super().__init__()
        self.device = torch.device("cpu")  # until Run moves it
        self.action_dim, sizes = len(low), args.hidden_sizes
        self.actor = nn.Sequential(*relu_mlp(obs_dim, sizes, self.action_dim), nn.Tanh())
        critics = [Critic(obs_dim, self.action_dim, sizes) for _ in range(2 if args.twin else 1)]
        self.critics = nn.ModuleList(critics)
        self.low, self.high = np.float32(low), np.float32(high)
        self.register_buffer("action_low", torch.tensor(self.low))  # for who acts by weights.npz
        self.register_buffer("action_high", torch.tensor(self.high))

    def policy(self, obs):  # (batch, obs_dim) -> (batch, action_dim)
        return self.actor(obs)

    def forward(self, obs):  # for acting
        return self.policy(obs)

    @torch.no_grad()
    def act(self, obs, rng, noise=0.0):
        """(num_envs, obs_dim) -> (num_envs, action_dim) in [-1, 1], with Gaussian noise on it."""
        actions = self(torch.as_tensor(obs, device=self.device)).cpu().numpy()
        if noise > 0:
            actions = actions + noise * rng.standard_normal(actions.shape, np.float32)
        return actions.clip(-1, 1)

    def to_env(self, actions):
        """[-1, 1] -> [low, high], each dimension by its own bounds."""
        middle, half_range = (self.low + self.high) / 2, (self.high - self.low) / 2
        return np.clip(middle + half_range * actions, self.low, self.high)


class ReplayBuffer:
    """The last `capacity` transitions, the oldest overwritten first; a row holds one."""

    def __init__(self, capacity: int, obs_dim: int, action_dim: int):
        self.capacity, self.total = capacity, 0  # total: transitions added
        self.arrays = {
            "obs": np.zeros((capacity, obs_dim), np.float32),
            "actions": np.zeros((capacity, action_dim), np.float32),  # in [-1, 1]
            "rewards": np.zeros(capacity, np.float32),
            "next_obs": np.zeros((capacity, obs_dim), np.float32),  # never what follows a reset
            "terminated": np.zeros(capacity, np.bool_),  # the task ended; not: a time limit cut it
        }

    def add(self, obs, actions, rewards, next_obs, terminated):
        """One step of every environment; each argument starts with the axis (num_envs,)."""
        n = len(rewards)
        slots = np.arange(self.total, self.total + n) % self.capacity
        rows = (obs, actions, rewards, next_obs, terminated)
        for array, row in zip(self.arrays.values(), rows, strict=True):
            assert row.shape == (n, *array.shape[1:]), (row.shape, array.shape)
            array[slots] = row
        self.total += n

    def sample(self, batch_size, rng):
        """Uniform over the transitions held: arrays by name, with the first axis (batch_size,)."""
        slots = rng.integers(min(self.total, self.capacity), size=batch_size)
        return {name: array[slots] for name, array in self.arrays.items()}

    def state_dict(self) -> dict:
        held = {k: torch.as_tensor(array[: self.total]) for k, array in self.arrays.items()}
        return {"total": self.total, **held}

    def load_state_dict(self, state: dict):
        self.total = state["total"]
        for name, array in self.arrays.items():
            array[: self.total] = state[name]


def smoothed(actions, noise, noise_clip):
    """Target policy smoothing, section 5.3 of arXiv 1802.09477: clipped noise, then the bounds.

    actions in [-1, 1], noise: (batch, action_dim). Returns the same shape, in [-1, 1].
    """
    assert actions.shape == noise.shape, (actions.shape, noise.shape)
    return (actions + noise.clamp(-noise_clip, noise_clip)).clamp(-1, 1)


def bootstrapped_target(rewards, terminated, next_q_values, gamma):
    """r + gamma min_i Q_i(s', a'), or r alone where the task ended; eq. 10 of arXiv 1802.09477.

    rewards, terminated (batch,); next_q_values: for each critic (batch,). Returns (batch,).
    """
    next_q = torch.stack(next_q_values).min(dim=0).values
    assert rewards.shape == terminated.shape == next_q.shape, (rewards.shape, next_q.shape)
    return rewards + gamma * ~terminated * next_q


def q_losses(agent, target, batch, noise, args):
    """Mean squared TD error of each critic, and the first one's mean Q; all scalars."""
    with torch.no_grad():  # the target is a constant: Q(s, a) moves towards it, not it to Q(s, a)
        next_obs = batch["next_obs"]
        next_actions = smoothed(target.policy(next_obs), noise, args.noise_clip)
        next_q_values = [critic(next_obs, next_actions) for critic in target.critics]
        y = bootstrapped_target(batch["rewards"], batch["terminated"], next_q_values, args.gamma)
    q_values = [critic(batch["obs"], batch["actions"]) for critic in agent.critics]
    assert all(q.shape == y.shape == (len(batch["obs"]),) for q in q_values), y.shape
    return [F.mse_loss(q, y) for q in q_values], q_values[0].detach().mean()


def policy_loss(agent, obs):
    """-Q_1(s, pi(s)), whose gradient is the deterministic policy gradient; a scalar."""
    return -agent.critics[0](obs, agent.policy(obs)).mean()


@torch.no_grad()
def polyak(target, source, tau: float):
    """target <- (1 - tau) target + tau source, for every parameter."""
    for p, q in zip(target.parameters(), source.parameters(), strict=True):
        p.lerp_(q, tau)


def update(agent, target, optimizers, args, batch, noise, learn_policy: bool):
    """One step of the critics and, with `learn_policy`, of the actor and the target networks.

    optimizers: of the actor and of the critics; noise: for the target's actions, not clipped yet,
    (batch, action_dim). Returns scalars by name.
    """
    actor_optimizer, critic_optimizer = optimizers
    losses, q_mean = q_losses(agent, target, batch, noise, args)
    critic_optimizer.zero_grad()
    sum(losses).backward()
    critic_optimizer.step()
    scalars = {f"losses/qf{i}_loss": loss.detach() for i, loss in enumerate(losses, start=1)}
    scalars["losses/qf1_values"] = q_mean
    if learn_policy:
        actor_loss = policy_loss(agent, batch["obs"])
        actor_optimizer.zero_grad()
        actor_loss.backward(inputs=list(agent.actor.parameters()))  # the critics get no gradient
        actor_optimizer.step()
        polyak(target, agent, args.tau)
        scalars["losses/actor_loss"] = actor_loss.detach()
    return scalars


def make_agent(args, obs_space, action_space):
    if not isinstance(action_space, gym.spaces.Box) or len(obs_space.shape) != 1:
        fail(f"td3 takes vectors and Box action spaces, not {obs_space} and {action_space}")
    low, high = action_space.low.reshape(-1), action_space.high.reshape(-1)
    ranges = np.float64(high) - low
    if not (ranges < np.finfo(np.float32).max).all():  # as which many write infinity
        fail(f"td3 needs bounds of every action, not {action_space}: try ppo.py")
    return Agent(args, *obs_space.shape, low, high)


def evaluation_policy(agent, rng, args):  # made anew for each evaluation, so it may remember
    return lambda obs: agent.to_env(agent.act(obs, rng))


def train(args: Args, run: "Run"):
    agent, target = run.agent, copy.deepcopy(run.agent)
    optimizers = [
        torch.optim.Adam([Vector(networks)], lr=args.learning_rate, fused=True)
        for networks in (agent.actor, agent.critics)
    ]
    buffer = ReplayBuffer(args.buffer_size, *run.obs_space.shape, agent.action_dim)
    history = {}  # scalars of the updates since the last point of the curves, by name
    parts = {"agent": agent, "target": target, "buffer": buffer}
    step, obs = run.start(**parts, actor_optimizer=optimizers[0], critic_optimizer=optimizers[1])
    learn = run.recorded(partial(update, agent, target, optimizers, args), *optimizers)
    agent.forward = run.recorded(agent.forward)  # on a GPU, both replay as CUDA graphs
    while step < args.total_timesteps:
        if step < args.learning_starts:
            actions = run.rng.uniform(-1, 1, (args.num_envs, agent.action_dim)).astype(np.float32)
        else:
            actions = agent.act(obs, run.rng, args.exploration_noise)
        # next_obs is acted on next: after an episode's end, the new one's first. successors are
        # what the actions led to: after an episode's end, its true last observation
        next_obs, rewards, terminated, _, successors = run.step(agent.to_env(actions))
        buffer.add(obs, actions, rewards, successors, terminated)
        obs = next_obs

        for _ in range(args.num_envs):
            step += 1
            if step > args.learning_starts:
                batch = buffer.sample(args.batch_size, run.rng)
                batch = {k: torch.as_tensor(v, device=run.device) for k, v in batch.items()}
                # for the target's actions; those above have exploration_noise on them
                noise = run.rng.standard_normal((args.batch_size, agent.action_dim), np.float32)
                noise = torch.as_tensor(args.policy_noise * noise, device=run.device)
                learn_policy = step % args.policy_frequency == 0
                for name, value in learn(batch, noise, learn_policy).items():
                    history.setdefault(name, deque(maxlen=2_000)).append(value)

        scalars = {}
        if run.logs_now():
            scalars |= {k: torch.stack(tuple(v)).mean().item() for k, v in history.items()}
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
    main("td3", RunArgs, make_agent, train, evaluation_policy)
