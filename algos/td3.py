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
    policy_frequency: int = 2  # Updates of the critics for each of the actor and the targets.
    twin: bool = True  # Two critics. DDPG: --no-twin --policy-frequency 1 --policy-noise 0.
    hidden_sizes: tuple[int, int] = (256, 256)  # Widths of each network's two hidden layers.
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
    # a variant may bring its own of these, and more parts for the checkpoints
    agent = run.agent
    target = copy.deepcopy(agent).eval()
    if optimizers is None:
        adam = {"lr": args.learning_rate, "fused": True}
        actor_optimizer = torch.optim.Adam(agent.actor.parameters(), **adam)
        critic_optimizer = torch.optim.Adam(agent.critics.parameters(), **adam)
        optimizers = {"actor_optimizer": actor_optimizer, "critic_optimizer": critic_optimizer}
    if buffer is None:
        sizes = args.num_envs, *run.obs_space.shape, agent.action_dim
        buffer = ReplayBuffer(args.buffer_size, *sizes)
    update = update or td3_update
    # begins at learning_starts: so with one gradient step a step it is the number of that step
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
        # next_obs is what they led to, where that ended an episode not what is acted on next
        next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))
        buffer.add(obs, actions, rewards, next_obs, terminated, truncated)

        # of the steps just taken those that came after learning_starts
        learned_from = min(args.num_envs, step + args.num_envs - args.learning_starts)
        if learned_from > 0:
            agent.train()
            for _ in range(args.gradient_steps * learned_from):
                gradient_step.value += 1
                batch = buffer.sample(args.batch_size, args.n_step, args.gamma, run.rng)
                batch = {k: torch.as_tensor(v, device=run.device) for k, v in batch.items()}
                scalars = update(
                    agent, target, optimizers, batch, args, run.rng, gradient_step.value
                )
                run.log(scalars)
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
    noise = rng.standard_normal(batch["actions"].shape, np.float32)
    noise = torch.as_tensor(args.policy_noise * noise, device=agent.device)
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
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
    scalars = {f"losses/qf{i}_loss": loss.detach() for i, loss in enumerate(losses, start=1)}
    return scalars | {"losses/qf1_values": q_mean}


def update_actor(agent, optimizer, obs):
    """One step of the actor, up the gradient of Q. Returns scalars for the curves."""
    loss = policy_loss(agent, obs)
    optimizer.zero_grad()
    loss.backward()  # the critics get gradients, too, which their next step forgets
    optimizer.step()
    return {"losses/actor_loss": loss.detach()}


def q_losses(agent, target, batch, noise, args):
    """Mean squared TD error of each critic, and the first one's mean Q; all scalars."""
    with torch.no_grad():  # the target is a constant: Q(s, a) moves towards it, not it to Q(s, a)
        next_obs = batch["next_obs"]
        next_actions = smoothed(target.policy(next_obs), noise, args.noise_clip)
        next_q_values = [critic(next_obs, next_actions) for critic in target.critics]
        rewards, terminated = batch["rewards"], batch["terminated"]
        y = bootstrapped_target(rewards, terminated, next_q_values, batch["discounts"])
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
    """-Q_1(s, pi(s)), whose gradient is the deterministic policy gradient; a scalar."""
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
        slots = np.arange(self.total, self.total + n) % self.capacity
        transition = obs, actions, rewards, next_obs, terminated, truncated
        for array, new in zip(self.arrays.values(), transition, strict=True):
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
        newer = (self.total - 1 - first) % self.capacity // self.num_envs  # steps of the same env
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

    def state_dict(self) -> dict:
        held = {k: torch.as_tensor(array[: self.total]) for k, array in self.arrays.items()}
        return {"total": self.total, **held}

    def load_state_dict(self, state: dict):
        self.total = state["total"]
        for name, array in self.arrays.items():
            array[: self.total] = state[name]


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
        self.actor = nn.Sequential(*relu_mlp(obs_dim, sizes, self.action_dim), nn.Tanh())
        critics = [Critic(obs_dim, self.action_dim, sizes) for _ in range(2 if args.twin else 1)]
        self.critics = nn.ModuleList(critics)
        self.low = low
        self.high = high

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


class Critic(nn.Module):
    """Q(s, a): (batch, obs_dim), (batch, action_dim) -> (batch,)."""

    def __init__(self, obs_dim: int, action_dim: int, hidden_sizes: tuple):
        super().__init__()
        self.layers = relu_mlp(obs_dim + action_dim, hidden_sizes, 1)

    def forward(self, obs, actions):
        return self.layers(torch.cat([obs, actions], dim=1)).squeeze(1)


def relu_mlp(num_inputs: int, hidden_sizes: tuple, num_outputs: int):
    first, second = hidden_sizes
    return nn.Sequential(
        nn.Linear(num_inputs, first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, num_outputs),
    )


def make_agent(args, obs_space, action_space):
    if not (isinstance(action_space, gym.spaces.Box) and action_space.dtype.kind == "f"):
        fail(f"actions must be a Box of real numbers, not {action_space}")
    if len(obs_space.shape) != 1:
        fail(f"observations must be vectors, not {obs_space}")
    low, high = np.float64([action_space.low, action_space.high]).reshape(2, -1)
    if not (high - low < np.finfo(np.float32).max).all():  # as which many write infinity
        fail(f"every action needs bounds, not {action_space}: try ppo.py")
    return Agent(args, *obs_space.shape, low, high)


def evaluation_policy(agent, rng, args):  # made anew for each evaluation, so it may remember
    return lambda obs: agent.to_env(agent.act(obs, rng))


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
    main("td3", RunArgs, make_agent, train, evaluation_policy)
