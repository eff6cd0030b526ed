"""Small environments with known answers, for --env-id environments:Name-v0."""

import ctypes
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Tuple


def has_dtypes(action, space):
    """Whether each part of an action has the dtype of its space."""
    if isinstance(space, Tuple):
        return all(map(has_dtypes, action, space))
    if isinstance(space, Dict):
        return all(has_dtypes(action[name], part) for name, part in space.items())
    return np.asarray(action).dtype == space.dtype


class Clock(gym.Env):
    """Reward 1 in every step; the observation is the share of `length` that has passed. It ends at
    once where an action is not what its space declares, to the dtype.
    """

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length=5, terminates=False, space=None):
        self.length, self.terminates = length, terminates
        self.action_space = space or self.action_space

    def observe(self):
        return np.array([self.time / self.length], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        assert action in self.action_space, (action, self.action_space)
        assert has_dtypes(action, self.action_space), (action, self.action_space)
        self.time += 1
        over = self.time == self.length
        terminated = over and self.terminates
        return self.observe(), 1.0, terminated, over and not terminated, {}


class Broken(Clock):
    """Rewards of 3e38, whose squares, and even their sums, are too large for float32; or others."""

    def __init__(self, reward=3e38, space=None):
        super().__init__(space=space)
        self.reward = reward

    def step(self, action):  # which is NaN once td3's weights are
        obs, _, terminated, truncated, info = super().step(np.nan_to_num(action))
        return obs, self.reward, terminated, truncated, info


class Mixed(Clock):
    """A Dict observation, and actions that begin at 3."""

    observation_space = Dict({"clock": Box(0, 1, (1,), np.float32), "colour": Discrete(3)})
    action_space = Discrete(2, start=3)

    def observe(self):
        return {"clock": super().observe(), "colour": self.time % 3}


class Global(Clock):
    """Rewards from the generators of Python and NumPy that a whole process shares."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        return obs, random.random() + np.random.random(), terminated, truncated, info


class Noisy(Clock):
    """Observations with noise from torch's generator."""

    def observe(self):
        return (super().observe() + torch.rand(1).numpy()) / 2


class Ending(Clock):
    """Ends after five steps; the second number of the last observation is `last`."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, last=1.0, length=5, space=None):
        super().__init__(length, terminates=True, space=space)
        self.last = last

    def observe(self):
        over = self.time == self.length
        return np.float32([self.time / self.length, self.last if over else 1.0])


class Program(Clock):
    """A simulator that is a program of its own, which close() ends; `last` as in Failing."""

    def __init__(self, last=0):
        super().__init__(length=10)
        self.program = subprocess.Popen(["sleep", "3611"])
        self.last = last
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.last:
            raise ConnectionError("the simulator does not answer")
        return super().step(action)

    def close(self):
        self.program.kill()
        self.program.wait()


class Unsendable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.connection = threading.Lock()


class Panic(BaseException):
    """As simulators in Rust raise it."""


class Foreign(Program):
    """What others' simulators do, of which `what` names one; most of it in the 20th step."""

    made = []  # noqa: RUF012, all of them

    def __init__(self, what=""):
        if what == "second" and self.made:
            raise ConnectionError("the port is taken")
        super().__init__()
        self.made.append(self)
        self.what = what
        if what == "leaves":
            sys.exit(2)
        if what == "slow start":
            time.sleep(3611)
        if what in ("deaf", "rude"):
            for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
                signal.signal(number, signal.SIG_IGN)
        if what == "rude":
            threading.Thread(target=time.sleep, args=(3611,)).start()
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
        if what == "child":
            self.child = multiprocessing.get_context("fork").Process(
                target=time.sleep, args=(3611,)
            )
            self.child.start()

    def step(self, action):
        if self.steps == 20 and self.what == "unsendable":
            raise Unsendable("the simulator gave up")
        if self.steps == 20 and self.what == "quits":
            sys.exit(2)
        if self.steps == 20 and self.what == "panics":
            raise Panic
        if self.steps == 20 and self.what == "killed":  # as by the system, when memory is short
            os.kill(os.getpid(), signal.SIGKILL)
        if self.steps == 20 and self.what == "exits":
            os._exit(2)
        if self.steps == 20 and self.what == "hangs":
            time.sleep(3611)
        if self.steps == 20 and self.what == "hangs in C":  # so that Python handles no signal
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):
                ctypes.CDLL(None).pthread_mutex_lock(mutex)
        if self.steps == 20 and self.what == "no goodbye":
            raise ConnectionError("the simulator died")
        return super().step(action)

    def close(self):
        if self.what == "slow goodbye":
            time.sleep(1)
        super().close()
        if self.what == "child":
            self.child.terminate()
            self.child.join()
        if self.steps == 20 and self.what == "no goodbye":
            raise BrokenPipeError("nobody is there")


class Single(Clock):
    """A simulator with an engine, of which a process can run only one."""

    engines = []  # noqa: RUF012, those that run

    def __init__(self, space=None):
        super().__init__(space=space)
        if self.engines:
            raise RuntimeError("an engine runs here already")
        self.engines.append(self)

    def close(self):
        self.engines.clear()


class Filmed(Single):
    """Of its pictures all but the first may do what `what` says."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None, what=""):
        super().__init__()
        self.render_mode, self.what = render_mode, what

    def render(self):
        if self.time and self.what == "fails":
            raise Unsendable("no picture")
        if self.time and self.what == "dies":
            os._exit(2)
        height = 16 * (self.time + 1) if self.what == "grows" else 32
        return np.zeros((height, 32, 3), np.uint8)


class Stubborn(Clock):
    """It cannot be closed."""

    def close(self):
        raise BrokenPipeError("nobody is there")


class Refused(Foreign):
    """A space that no script takes."""

    def __init__(self, of):
        super().__init__()
        if of == "observations":
            self.observation_space = Dict(path=Sequence(Discrete(3)), place=Box(0, 1, (2,)))
        else:
            self.action_space = MultiBinary(3)


class Born(Clock):
    """Each world is drawn once, when it is made, from generators that a whole process shares."""

    observation_space = Box(0, 1, (3,), np.float32)

    def __init__(self, space=None):
        super().__init__(space=space)
        self.worlds = [random.random(), np.random.random(), torch.rand(1).item()]

    def observe(self):
        return np.float32(self.worlds)


class Handles(Clock):
    """Infos with what cannot be sent to another process, or arrives as an error."""

    class Trouble(Exception):
        def __init__(self, code, text):
            super().__init__(text)

    def step(self, action):
        said = {"handle": threading.Lock(), "trouble": self.Trouble(3, "late"), "time": self.time}
        return *super().step(action)[:4], said


class Mission(gym.Space):
    """Text that is made up, as MiniGrid's, of which gymnasium knows no vector."""

    def __init__(self):
        super().__init__(None, str)

    def sample(self, mask=None, probability=None):
        return "go to the red door"

    def contains(self, x):
        return isinstance(x, str)


class Buggy(Clock):
    """A bug of its own in the constructor, and an argument that it hands on."""

    def __init__(self, size=3, **keywords):
        super().__init__(**keywords)
        self.table = [None + i for i in range(size)]


class Chatty(Clock):
    """Infos of every form, from reset and step, under names that gymnasium uses itself, too."""

    def say(self):
        return {
            "ragged": np.arange(self.np_random.integers(1, 6)),
            "nested": [None, {"goal": None}, {"goal": [1, "two"], "n": {"x": 1}}][self.time % 3],
            "time": self.time,
            "final_info": "a name of its own",
            "_final_obs": [],
            "final_obs": "another",
        }

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        info = self.say()
        del info["final_obs"], info["final_info"]  # which gymnasium gives the step before
        return obs, info

    def step(self, action):
        return *super().step(action)[:4], self.say()


class Film(Clock):
    """Pictures of any shape, whose pixels are 0 or `high`."""

    def __init__(self, shape, high=255):
        super().__init__()
        self.observation_space, self.high = Box(0, high, shape, np.uint8), high

    def observe(self):
        return np.uint8(self.np_random.integers(2, size=self.observation_space.shape) * self.high)


class Seen(Clock):
    """Observations of any space."""

    def __init__(self, observation_space, space=None):
        super().__init__(space=space)
        self.observation_space = observation_space

    def observe(self):
        return self.observation_space.sample()


class Loose(Clock):
    """Numbers with an axis too many or too few, and infos that are the same objects for good."""

    def __init__(self, space=None):
        super().__init__(space=space)
        self.info = {"nested": [{"said": np.zeros(1, np.bool_)}]}

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        self.say(False)
        return obs.tolist(), self.info

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        reward = np.full(1, reward, np.float32)
        self.say(truncated)
        return obs.item(), reward, np.array([terminated]), np.array([[truncated]]), self.info

    def say(self, truncated):
        self.info["said"] = truncated
        self.info["nested"][0]["said"][:] = truncated


class Reused(Clock):
    """Two numbers, in one array for good; with `anew` in a new one each time."""

    observation_space = Box(0, 1, (2,), np.float32)

    def __init__(self, anew=False, space=None):
        super().__init__(space=space)
        self.anew, self.memory = anew, np.zeros(2, np.float32)

    def observe(self):
        self.memory[:] = self.time / self.length, self.np_random.random()
        return self.memory.copy() if self.anew else self.memory


class Failing(Clock):
    """Each step takes `seconds`; the one of number `last` raises, or kills its own process."""

    steps = 0

    def __init__(self, last=20, kill=False, seconds=0.0, space=None):
        super().__init__(space=space)
        self.last, self.kill, self.seconds = last, kill, seconds

    def step(self, action):
        self.steps += 1
        time.sleep(self.seconds)
        if self.steps == self.last:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the simulator gave up")
        return super().step(action)


class Batch(gym.vector.VectorEnv):
    """Clocks by the hundred, in NumPy alone: a batched simulator."""

    def __init__(self, num_envs, space):
        self.num_envs, self.single_action_space = num_envs, space
        self.single_observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.spec = None

    def begin(self, rows):
        self.time[rows] = 0
        self.lengths[rows] = self.rng.integers(3, 9, size=self.num_envs)[rows]

    def observe(self):
        return np.stack([self.time / self.lengths, self.lengths / 9], axis=1).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        assert len(seed) == self.num_envs
        self.rng = np.random.default_rng(seed)
        self.time, self.lengths = np.zeros((2, self.num_envs), np.int64)
        self.begin(np.ones(self.num_envs, np.bool_))
        return self.observe(), {}

    def step(self, actions):
        assert all(action in self.single_action_space for action in actions), actions
        self.time += 1
        over = self.time == self.lengths
        terminated = over & (self.lengths % 2 == 0)
        rewards = np.where(actions.reshape(self.num_envs, -1)[:, 0] > 0, 1.0, 0.0)
        infos = {}
        if over.any():
            infos = {"final_obs": self.observe(), "_final_obs": over}
            self.begin(over)
        return self.observe(), rewards, terminated, over & ~terminated, infos


def register(name, entry_point, **keywords):
    if name not in gym.registry:
        gym.register(name, entry_point, **keywords)


THREE, ONE = Discrete(3), Box(-1, 1, (1,), np.float32)
for kind in (Born, Buggy, Clock, Film, Foreign, Handles, Mixed, Noisy, Program, Refused, Single):
    register(f"{kind.__name__}-v0", kind)
register("Filmed-v0", Filmed)
register("Stubborn-v0", Stubborn)
for kind in (Broken, Chatty, Ending, Failing, Global, Loose, Reused):
    for name, space in (("", THREE), ("Box", ONE)):
        register(f"{kind.__name__}{name}-v0", kind, kwargs={"space": space})
register("EndingClock-v0", Clock, kwargs={"terminates": True})
register("Timeless-v0", Clock, kwargs={"length": np.inf})
register("ShortCartPole-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=13)
PENDULUM = "gymnasium.envs.classic_control:PendulumEnv"
register("ShortPendulum-v0", PENDULUM, max_episode_steps=13)
CAR = "gymnasium.envs.box2d:CarRacing"
register("ShortCarRacing-v0", CAR, max_episode_steps=20)

ACTIONS = {  # by name an action space that some script does not expect
    "UInt8": Discrete(2, start=200, dtype=np.uint8),
    "Int32Start": Discrete(3, start=-1, dtype=np.int32),
    "Matrix": Box(-0.3, 0.7, (2, 2), np.float64),
    "LargeFloat16": Box(-6e4, 6e4, (1,), np.float16),
    "Lopsided": Box(np.float16([-0.1, 3]), np.float16([0.3, 1e4]), dtype=np.float16),
    "Endless": Box(-np.inf, np.inf, (1,), np.float32),
    "Wide": Box(-3e38, 3e38, (1,), np.float32),  # their distance is too large for float32
    "HalfOpen": Box(0, np.finfo(np.float32).max, (1,), np.float32),  # float32's largest number
    "Scalar": Box(-1, 1, (), np.float64),
    "WholeNumbers": Box(0, 5, (2,), np.int64),
    "Several": MultiDiscrete([2, 3]),
    "Parts": Tuple((Discrete(2), Discrete(3))),
    "Switches": MultiBinary(3),
    "Mixture": Tuple((Discrete(2), Box(-1, 1, (1,)))),
}
for name, space in ACTIONS.items():
    register(f"{name}-v0", Clock, kwargs={"space": space})
# actions that begin at -1, a last observation that is no number
register("Odd-v0", Ending, kwargs={"last": np.nan, "space": ACTIONS["Int32Start"]})
FILMS = {
    "StackedColour": (4, 48, 48, 3),
    "Grey": (48, 44),
    "Grid": (7, 7, 3),
    "Strip": (200, 8),
    "Colour": (37, 41, 3),
    "Square": (84, 84, 3),
}
for name, shape in FILMS.items():
    register(f"{name}-v0", Film, kwargs={"shape": shape})
SPACES = {
    "Number": Box(0, 1, (), np.float64),
    "Both": Tuple((Discrete(3), Box(0, 1, (2, 2)))),
    "Empty": Box(0, 1, (0,), np.float32),
    "EmptyParts": Dict(a=Box(0, 1, (0,))),
    "EmptyPicture": Box(0, 255, (0, 48, 3), np.uint8),
    "Sentence": Sequence(Discrete(3)),
    "Missions": Dict(  # MiniGrid's
        image=Box(0, 255, (7, 7, 3), np.uint8), direction=Discrete(4), mission=Mission()
    ),
    "Board": Box(0, 2, (8, 8), np.uint8),
    "Codes": MultiDiscrete([[2, 3], [5, 7]], dtype=np.uint8),
    "FloatImage": Box(0, 1, (48, 48, 3), np.float32),
    "Cockpit": Dict(camera=Box(0, 255, (48, 44, 3), np.uint8), speed=Box(-1, 1, (1,), np.float32)),
}
for name, space in SPACES.items():
    register(f"{name}-v0", Seen, kwargs={"observation_space": space})
for name in ("Parts", "Mixture"):
    camera = Box(0, 255, (37, 41, 3), np.uint8)
    register(f"Camera{name}-v0", Seen, kwargs={"observation_space": camera, "space": ACTIONS[name]})
memory = Box(0, 255, (3,), np.uint8)  # as that of a game
register("Bytes-v0", Seen, kwargs={"observation_space": memory, "space": ONE})
