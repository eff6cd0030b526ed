"""TD3 with hindsight experience replay (HER): a step is also learned from as if its goal had been
what its episode reached later, so that rewards teach long before the first success.

Papers    HER arXiv 1707.01495, its strategy "future"; TD3 as in td3.py.
Run       python algos/td3_her.py --config variants                      tasks:Reach-v0
          python algos/td3_her.py --env-id panda_gym:PandaReach-v3       pip install panda-gym

It imports td3.py, which must lie beside it, and holds only what differs:
- observations are a Dict with achieved_goal, desired_goal and more, such as observation, and the
  environment has compute_reward(achieved_goal, desired_goal, info), for one step or for many: these
  are the goal environments of gymnasium-robotics, panda-gym and highway-env;
- with probability k / (k + 1) a step that is sampled gets another goal: what its episode reached
  with this step or a later one, all equally likely; in an unfinished episode up to the last one;
- its reward is then what compute_reward says of achieved_goal after the step, with an empty info;
  so is the end of the task by compute_terminated, in panda-gym by the task's is_success; without
  either it stays as it was. So does an end that its own goal does not explain, such as a crash.
With --n-sampled-goal 0 it is td3, to the last bit.
"""

import contextlib
import copy
import math
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import td3
import torch


@dataclass
class HindsightArgs:
    """Before the arguments of td3, SAC or dqn."""

    env_id: str = "tasks:Reach-v0"  # Environment with goals.
    n_sampled_goal: int = 4  # k: samples with a goal of hindsight for each one with its own.

    def check(self):
        super().check()
        td3.require_range(self, "n_sampled_goal")
        if self.n_step != 1:
            td3.fail(f"n_step={self.n_step} must be 1: a new goal is that of a single step")


@dataclass
class Args(HindsightArgs, td3.RunArgs):
    pass


def train(args: Args, run: td3.Run, parent=td3):
    with make_goal_env(run) as env:
        hindsight = Hindsight(run, env)
        buffer = ReplayBuffer(run, hindsight)
        parent.train(args, run, buffer=buffer, parts={"hindsight": hindsight})


class ReplayBuffer(td3.ReplayBuffer):
    """td3's, of single steps, with goals of hindsight."""

    def __init__(self, run, hindsight):
        args = run.args
        obs_dim = run.obs_space.shape[0]
        super().__init__(args.buffer_size, args.num_envs, obs_dim, run.agent.action_dim)
        self.hindsight = hindsight

    def add(self, obs, actions, rewards, next_obs, terminated, truncated):
        super().add(obs, actions, rewards, next_obs, terminated, truncated)
        self.hindsight.add(obs, rewards, next_obs, terminated, truncated)

    def sample(self, batch_size, n_step, gamma, rng):
        slots = rng.integers(min(self.total, self.capacity), size=batch_size)
        batch = {name: array[slots] for name, array in self.arrays.items()}
        batch["discounts"] = np.full(batch_size, gamma, np.float32)
        rows = self.total - 1 - (self.total - 1 - slots) % self.capacity
        return self.hindsight.relabel(batch, rows, rng)


class Hindsight:
    """What every step in a replay buffer reached, where its episode ended, and other goals for it.

    Rows are numbered from 0 as they are added, those of all environments in turn: the step after
    row r is row r + num_envs. As the buffer does, it holds the last `capacity`.
    """

    def __init__(self, run, env):
        self.run = run
        self.env = env  # which is asked
        self.num_envs = run.args.num_envs
        self.capacity = run.args.buffer_size
        space = dict_space(env)
        self.goal_space = space["desired_goal"]
        self.achieved = place_of(space, "achieved_goal")
        self.desired = place_of(space, "desired_goal")
        self.compute_reward = OfEach(attribute(env, "compute_reward"))
        ends = attribute(env, "compute_terminated") or panda_success(env)
        self.compute_terminated = ends and OfEach(ends)
        self.total = 0  # rows added so far
        self.warned = False
        self.first = np.arange(self.num_envs)  # row with which each one's running episode began
        goal_size = gym.spaces.flatdim(self.goal_space)
        self.arrays = {
            "reached": np.zeros((self.capacity, goal_size), np.float32),  # after the step
            "terminated": np.zeros(self.capacity, np.bool_),
            "last": np.zeros(self.capacity, np.int64),  # row of its episode, once that is over
        }

    def add(self, obs, rewards, next_obs, terminated, truncated):
        """One step of every environment, as the replay buffer gets it."""
        reached = next_obs[:, self.achieved]
        if self.run.args.n_sampled_goal > 0 and not np.isfinite(reached).all():
            raise FloatingPointError(f"achieved_goal not finite: hindsight cannot use {reached}")
        if self.run.args.n_sampled_goal > 0 and not self.warned:
            self.check_rewards(obs, rewards, next_obs)
        rows = self.total + np.arange(self.num_envs)
        self.arrays["reached"][rows % self.capacity] = reached
        self.arrays["terminated"][rows % self.capacity] = terminated
        self.total += self.num_envs
        for i in np.flatnonzero(terminated | truncated):
            episode = np.arange(self.first[i], self.total, self.num_envs)
            # newer rows, perhaps of others, have taken the places of the rest
            held = episode[episode >= self.total - self.capacity]
            self.arrays["last"][held % self.capacity] = rows[i]
            self.first[i] = self.total + i
        for i in self.run.ended:  # not by a checkpoint
            infos = self.run.next_infos[i]
            success = infos.get("is_success", infos.get("success", math.nan))  # mazes: success
            # of several parts, or of none
            self.run.log({"charts/success_rate": np.asarray(success, np.float64).mean()})

    def check_rewards(self, obs, rewards, next_obs):
        """Those of hindsight are compute_reward's, so the others must be, too."""
        achieved = self.as_goals(next_obs[:, self.achieved])
        computed = self.compute_reward(achieved, self.as_goals(obs[:, self.desired]))
        right = np.isclose(rewards, computed, rtol=1e-3, atol=1e-3)
        if not right.all():  # some environments, such as PointMaze, move a goal before they reward
            moved = self.compute_reward(achieved, self.as_goals(next_obs[:, self.desired]))
            right |= np.isclose(rewards, moved, rtol=1e-3, atol=1e-3)
        if not right.all():
            said = f"compute_reward says {computed} of these goals in float32"
            error = f"rewards are {rewards}, but {said}: see docs/variants.md, td3_her"
            if self.total < 1000:
                raise ValueError(error)
            self.warned = True  # float32 alone may err once in a million steps, at an edge
            td3.say(f"warning: after {self.total} steps {error}")

    def relabel(self, batch, rows, rng):
        """The batch, which is of these rows, most of them with a goal of hindsight."""
        reached = self.arrays["reached"]
        terminated = self.arrays["terminated"]
        last = self.arrays["last"]
        batch["terminated"] = terminated[rows % self.capacity]
        k = self.run.args.n_sampled_goal
        draws = rng.random(len(rows)) if k > 0 else np.ones(len(rows))
        chosen = np.flatnonzero(draws < k / (k + 1))
        if len(chosen) == 0:
            return batch
        rows = rows[chosen]
        envs = rows % self.num_envs
        newest = self.total - self.num_envs + envs
        ends = np.where(rows < self.first[envs], last[rows % self.capacity], newest)
        later = rows + self.num_envs * rng.integers((ends - rows) // self.num_envs + 1)
        goals = reached[later % self.capacity]
        own_goals = batch["obs"][chosen, self.desired]
        for name in ("obs", "next_obs"):
            batch[name][chosen, self.desired] = goals
        achieved = self.as_goals(reached[rows % self.capacity])
        goals = self.as_goals(goals)
        batch["rewards"][chosen] = self.compute_reward(achieved, goals)
        if self.compute_terminated is not None:
            by_its_goal = self.compute_terminated(achieved, self.as_goals(own_goals))
            crashed = batch["terminated"][chosen] & np.logical_not(by_its_goal)
            ends = self.compute_terminated(achieved, goals)
            batch["terminated"][chosen] = np.logical_or(ends, crashed)
        return batch

    def as_goals(self, rows):  # (n, goal_size) -> (n, *shape), as the environment declares them
        return rows.reshape(-1, *self.goal_space.shape).astype(self.goal_space.dtype)

    def state_dict(self) -> dict:
        held = {k: torch.as_tensor(array[: self.total]) for k, array in self.arrays.items()}
        return {"total": self.total, "first": torch.as_tensor(self.first), **held}

    def load_state_dict(self, state: dict):
        self.total = state["total"]
        self.first = state["first"].numpy()
        for name, array in self.arrays.items():
            array[: self.total] = state[name]


class OfEach:
    """compute_reward or compute_terminated of each row of goals, (n,). Some functions take only one
    at a time, some only many: the first rows that differ tell.
    """

    def __init__(self, function):
        self.function = function
        self.takes_many = None

    def __call__(self, achieved, desired):
        if self.takes_many is None:
            # as many as a goal has no numbers, so that a goal does not pass for many of them
            shape = achieved[0].size + 1, *achieved.shape[1:]
            some = np.resize(achieved, shape), np.resize(desired, shape)
            if all((rows != rows[0]).any() for rows in some):
                self.takes_many = self.agrees(*some)
        if self.takes_many:
            return self.of_many(achieved, desired)
        try:
            return self.one_by_one(achieved, desired)
        except Exception:  # one that takes only many fails in its own way
            if self.takes_many is None and self.agrees(achieved, desired):
                return self.of_many(achieved, desired)
            raise

    def one_by_one(self, achieved, desired):
        pairs = zip(achieved, desired, strict=True)
        return np.array([self.answer(*pair).item() for pair in pairs])

    def of_many(self, achieved, desired):
        values = self.answer(achieved, desired)
        return values[:, 0] if values.shape == (len(achieved), 1) else values

    def answer(self, achieved, desired):  # to copies, into which some functions write
        return np.asarray(self.function(achieved.copy(), desired.copy(), {}))

    def agrees(self, achieved, desired) -> bool:
        """Whether it says of many rows what it says of each, or takes no single one."""
        try:
            values = self.of_many(achieved, desired)
        except Exception:  # each fails in its own way
            return False
        try:
            alone = self.one_by_one(achieved, desired)
        except Exception:  # raised again, and not here, where many have no answer each either
            return values.shape == (len(desired),)
        return values.shape == alone.shape and np.allclose(values, alone)


@contextlib.contextmanager
def make_goal_env(run):
    """An environment to ask what goals are worth. Ends the script where it does not know."""
    args = copy.copy(run.args)
    args.async_envs = False  # it is asked in this process
    with contextlib.ExitStack() as stack:
        with td3.generators_restored():
            envs = run.make_envs(args, 1, training=False)
            stack.enter_context(contextlib.closing(envs))
            if missing := missing_for_goals(envs.envs[0], args.seed):
                td3.fail(f"environment {args.env_id} has no {missing}")
        yield envs.envs[0]


def missing_for_goals(env, seed) -> str:
    """What hindsight needs and this environment has not; empty where it has all."""
    space = dict_space(env)
    goals = space.get("achieved_goal"), space.get("desired_goal")
    numbers = gym.spaces.Box | gym.spaces.MultiBinary  # of others flattening makes one-hots
    alike = all(isinstance(goal, numbers) for goal in goals)
    alike = alike and goals[0].shape == goals[1].shape
    alike = alike and 0 not in goals[0].shape
    if not alike or goals[0].dtype.kind != goals[1].dtype.kind:  # else 0.9 would be goal 0
        return f"achieved_goal and desired_goal, like numbers of one shape, in {space or 'a Dict'}"
    if attribute(env, "compute_reward") is None:
        return "compute_reward(achieved_goal, desired_goal, info)"
    if env.observation_space.shape != (gym.spaces.flatdim(space),):
        below = "put wrappers below what flattens observations"
        return f"goals where {space} has them: {below}"
    obs, _ = env.reset(seed=td3.env_seeds(1, seed)[0])  # goals that may be
    parts = gym.spaces.unflatten(space, obs)
    pair = parts["achieved_goal"][None], parts["desired_goal"][None]
    for name in ("compute_reward", "compute_terminated"):
        function = attribute(env, name)
        try:
            if function is not None:
                OfEach(function)(*pair)
        except Exception as error:  # each fails in its own way
            return f"{name} that does without an info: {type(error).__name__}: {error}"
    return ""


def dict_space(env):
    """The Dict of observations that make_env flattens, perhaps below wrappers; else an empty one.

    Its order is that of the vector; gymnasium sorts the keys of most, but not of all.
    """
    while isinstance(env, gym.Wrapper) and not isinstance(env.observation_space, gym.spaces.Dict):
        env = env.env
    space = env.observation_space
    return space if isinstance(space, gym.spaces.Dict) else gym.spaces.Dict()


def place_of(space, name: str) -> slice:
    """Where a part of a Dict lies in the vector."""
    names = list(space)
    sizes = [gym.spaces.flatdim(part) for part in space.values()]
    start = sum(sizes[: names.index(name)])
    return slice(start, start + sizes[names.index(name)])


def attribute(env, name: str):
    """Of a wrapper or of the environment itself; None if there is none."""
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None


def panda_success(env):
    """What ends the tasks of panda-gym, which have no compute_terminated; None in others."""
    task = getattr(env.unwrapped, "task", None)
    if any(c.__module__.startswith("panda_gym.") for c in type(task).__mro__):
        return lambda achieved, desired, info: task.is_success(achieved, desired)
    return None


if __name__ == "__main__":
    td3.main("td3_her", Args, td3.make_agent, train, td3.evaluation_policy)
