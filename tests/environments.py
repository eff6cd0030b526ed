"""Small environments with known answers, for --env-id environments:Name-v0."""

import random

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence


class Clock(gym.Env):
    """Reward 1 in every step; the observation is the share of `length` that has passed."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length=5, terminates=False):
        self.length, self.terminates = length, terminates

    def observe(self):
        return np.array([self.time / self.length], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        over = self.time == self.length
        terminated = over and self.terminates
        return self.observe(), 1.0, terminated, over and not terminated, {}


class Blind(Clock):
    """The same, seen by nobody: under a time limit only V = 1 / (1 - gamma) is right everywhere."""

    def observe(self):
        return np.ones(1, np.float32)


class Target(gym.Env):
    """One step: the reward is minus the squared distance of the action to a corner of its box."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Box(np.float32([-1, 0, 10]), np.float32([3, 0.5, 1000]))
    goal = np.array([2.0, 0.4, 200.0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        assert action in self.action_space, action
        units = (action - self.goal) / (self.action_space.high - self.action_space.low)
        return np.zeros(2, np.float32), -float((units**2).sum()), True, False, {}


class BlindBox(Blind):
    """The same with continuous actions."""

    action_space = Box(-1, 1, (1,), np.float32)


class Endless(Clock):
    """Actions without bounds."""

    action_space = Box(-np.inf, np.inf, (1,), np.float32)


class Wide(Clock):
    """Bounds whose distance is too large for float32."""

    action_space = Box(-3e38, 3e38, (1,), np.float32)


class Broken(Clock):
    """Rewards whose squares, and even their sums, are too large for float32."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 3e38, terminated, truncated, info


class BrokenBox(Broken):
    """The same with continuous actions."""

    action_space = Box(-1, 1, (1,), np.float32)


class Mixed(Clock):
    """A Dict observation, and actions that begin at 3."""

    observation_space = Dict({"clock": Box(0, 1, (1,), np.float32), "colour": Discrete(3)})
    action_space = Discrete(2, start=3)

    def observe(self):
        return {"clock": super().observe(), "colour": self.time % 3}

    def step(self, action):
        assert action in self.action_space, action
        return super().step(action)


class Global(Clock):
    """Rewards from the generators of Python and NumPy that a whole process shares."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, random.random() + np.random.random(), terminated, truncated, info


class GlobalBox(Global):
    """The same with continuous actions."""

    action_space = Box(-1, 1, (1,), np.float32)


class Uneven(Clock):
    """Episodes whose length the seed decides."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.length = int(self.np_random.integers(3, 30))
        return result


class Picture(Clock):
    """Images of any shape; pixel (row, column) of channel c is row + 2 column + 3 c + time."""

    def __init__(self, shape):
        super().__init__()
        self.observation_space = Box(0, 255, shape, np.uint8)

    def observe(self):
        rows, columns, *channels = np.indices(self.observation_space.shape)
        return np.uint8(rows + 2 * columns + (3 * channels[0] if channels else 0) + self.time)


class ManyActions(Clock):
    action_space = MultiDiscrete([2, 3])


class Sentence(Clock):
    """Observations of no fixed size."""

    observation_space = Sequence(Discrete(3))

    def observe(self):
        return (1,) * self.time


class Bytes(BlindBox):
    """Observations like those of a game's memory."""

    observation_space = Box(0, 255, (3,), np.uint8)

    def observe(self):
        return np.full(3, self.time, np.uint8)


class Timeless(Clock):
    """Episodes without an end."""

    def __init__(self):
        super().__init__(length=np.inf)


class Telling(Clock):
    """Infos of another form in every step, and in every environment."""

    def reset(self, *, seed=None, options=None):
        self.goal = None
        return super().reset(seed=seed)[0], {"goal": self.goal}

    def step(self, action):
        self.goal = 2 if self.np_random.random() < 0.5 else None
        legal = np.arange(self.np_random.integers(5))
        info = {"goal": self.goal, "legal": legal, "final_obs": "a name of its own"}
        return *super().step(action)[:4], info


class Scalar(Clock):
    """An action without an axis, in float64."""

    action_space = Box(-1, 1, (), np.float64)

    def step(self, action):
        assert action in self.action_space, action
        return super().step(action)


class HalfOpen(Clock):
    """Actions without an upper bound, said with float32's largest number."""

    action_space = Box(0, np.finfo(np.float32).max, (1,), np.float32)


class Reusing(Clock):
    """Every observation is the same array, written over."""

    memory = None

    def observe(self):
        self.memory = np.zeros(1, np.float32) if self.memory is None else self.memory
        self.memory[:] = super().observe()
        return self.memory


def register(name, entry_point, **keywords):
    if name not in gym.registry:
        gym.register(name, entry_point, **keywords)


register("Clock-v0", Clock)
register("EndingClock-v0", Clock, kwargs={"terminates": True})
register("Doomed-v0", Clock, kwargs={"terminates": True}, max_episode_steps=5)
register("DoomedBox-v0", BlindBox, kwargs={"terminates": True}, max_episode_steps=5)
register("Blind-v0", Blind)
register("BlindBox-v0", BlindBox)
register("Endless-v0", Endless)
register("Wide-v0", Wide)
register("Target-v0", Target)
register("Broken-v0", Broken)
register("BrokenBox-v0", BrokenBox)
register("Mixed-v0", Mixed)
register("Global-v0", Global)
register("GlobalBox-v0", GlobalBox)
register("ManyActions-v0", ManyActions)
register("Telling-v0", Telling)
register("Reusing-v0", Reusing)
register("Sentence-v0", Sentence)
register("Bytes-v0", Bytes)
register("Timeless-v0", Timeless)
register("Scalar-v0", Scalar)
register("HalfOpen-v0", HalfOpen)
register("Uneven-v0", Uneven)
register("Colour-v0", Picture, kwargs={"shape": (37, 41, 3)})
register("FourChannels-v0", Picture, kwargs={"shape": (37, 41, 4)})
register("Tiny-v0", Picture, kwargs={"shape": (35, 41, 3)})
register("ShortCartPole-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=13)
PENDULUM = "gymnasium.envs.classic_control:PendulumEnv"
register("ShortPendulum-v0", PENDULUM, max_episode_steps=13)
CAR = "gymnasium.envs.box2d:CarRacing"
register("ShortCarRacing-v0", CAR, max_episode_steps=20)
