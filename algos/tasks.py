"""Small tasks that separate a variant from its parent: what the one learns, the other cannot.

Run       python algos/ppo_lstm.py --env-id tasks:HiddenCartPole-v0
"""

import time

import gymnasium as gym
import numpy as np


class HiddenCartPole(gym.ObservationWrapper):
    """CartPole-v1 without its velocities: one observation does not say where cart and pole move."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation):
        return observation[[0, 2]]  # position and angle


class Recall(gym.Env):
    """A bit is shown at the start, then three blank steps, and then it is to be repeated.

    The return is 1 for the right answer and 0 for the wrong one: 0.5 on average without a memory.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)  # the bit as -1 or 1, then 0; time
    action_space = gym.spaces.Discrete(2)
    blanks = 3

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bit = int(self.np_random.integers(2))
        self.t = 0
        return np.array([2 * self.bit - 1, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        asked = self.t > self.blanks
        reward = float(asked and action == self.bit)
        return np.array([0, self.t / (self.blanks + 1)], np.float32), reward, asked, False, {}


gym.register("HiddenCartPole-v0", HiddenCartPole)
gym.register("Recall-v0", Recall)


class InvalidActions(gym.Env):
    """70 states, drawn anew in every step, and reward 1 for the action that names the state. Only
    15 actions are valid, also drawn in every step, with the right one among them; an invalid one is
    just another wrong one. SB3-contrib tests with it, as InvalidActionEnvDiscrete.
    """

    n = 70
    num_valid = 15
    action_space = gym.spaces.Discrete(n)

    def __init__(self, masked=True):
        parts = {"action_mask": gym.spaces.MultiBinary(self.n), "obs": gym.spaces.Discrete(self.n)}
        self.masked = masked
        self.observation_space = gym.spaces.Dict(parts) if masked else parts["obs"]

    def observe(self):
        valid = self.np_random.choice(self.n, self.num_valid, replace=False)
        self.state = valid[0]
        mask = np.zeros(self.n, np.int8)
        mask[valid] = 1
        return {"action_mask": mask, "obs": self.state} if self.masked else self.state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        reward = float(action == self.state)
        return self.observe(), reward, False, False, {}  # a time limit ends the episode


class ShuffledCartPole(gym.Wrapper):
    """CartPole-v1 whose two pushes lie in two of 31 slots, drawn anew in every step.

    avail_actions says what a slot does: (1, 0) pushes to the left, (0, 1) to the right. The other
    slots are (0, 0), masked, and push to a random side if they are taken all the same.
    """

    slots = 31

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        parts = {"action_mask": gym.spaces.MultiBinary(self.slots)}
        parts["avail_actions"] = gym.spaces.Box(0, 1, (self.slots, 2), np.float32)
        parts["obs"] = self.env.observation_space
        self.observation_space = gym.spaces.Dict(parts)
        self.action_space = gym.spaces.Discrete(self.slots)

    def observe(self, obs):
        self.avail = np.zeros((self.slots, 2), np.float32)
        self.avail[self.np_random.choice(self.slots, 2, replace=False), [0, 1]] = 1
        mask = self.avail.any(axis=1).astype(np.int8)
        return {"action_mask": mask, "avail_actions": self.avail, "obs": obs}

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        return self.observe(obs), info

    def step(self, action):
        valid = self.avail[action].any()
        push = self.avail[action].argmax() if valid else self.np_random.integers(2)
        obs, *rest = self.env.step(int(push))
        return self.observe(obs), *rest


gym.register("InvalidActions-v0", InvalidActions, max_episode_steps=100)
gym.register("UnmaskedActions-v0", InvalidActions, max_episode_steps=100, kwargs={"masked": False})
gym.register("ShuffledCartPole-v0", ShuffledCartPole)


class Match(gym.Env):
    """One step with two actions of four choices: the reward is 1 if they are equal, else 0.

    With a bonus on entropy independent actions stay uniform and match in a quarter of all episodes,
    but actions drawn one after the other can be random and match. Greedy ones hide the difference.
    """

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.MultiDiscrete([4, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action[0] == action[1]), True, False, {}


gym.register("Match-v0", Match)


class FarGoal(gym.Env):
    """FrozenLake without holes: reward 1 for reaching the opposite corner of an n x n grid, else 0.

    The time limit leaves exactly the shortest path, n - 1 steps down and as many to the right, so
    a random walk arrives in C(2n - 2, n - 1) / 4^(2n - 2) of its episodes: for n = 10 in 7e-7.
    Which action leads where differs from cell to cell, so that to prefer one everywhere is no help.
    """

    action_space = gym.spaces.Discrete(4)
    directions = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]])  # left, down, right, up

    def __init__(self, n=10):
        self.n = n
        self.observation_space = gym.spaces.Discrete(n * n)
        rng = np.random.default_rng(0)  # always the same grid
        self.moves = np.stack([rng.permutation(self.directions) for _ in range(n * n)])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return self.cell, {}

    def step(self, action):
        place = np.divmod(self.cell, self.n) + self.moves[self.cell, action]
        row, column = place.clip(0, self.n - 1)  # against a wall nothing moves
        self.cell = int(row * self.n + column)
        arrived = self.cell == self.n * self.n - 1
        return self.cell, float(arrived), arrived, False, {}


gym.register("FarGoal-v0", FarGoal, max_episode_steps=18)


class Differ:
    """Two agents see nothing and act once; each gets 1 if they chose differently, else 0.

    A parallel environment in PettingZoo's terms. One policy that cannot tell who asks gives both
    the same probabilities p, 1 - p, and so differs in 2 p (1 - p) <= 0.5 of all episodes.
    """

    possible_agents = ("agent_0", "agent_1")
    obs_space = gym.spaces.Box(0, 1, (1,), np.float32)
    act_space = gym.spaces.Discrete(2)

    def observation_space(self, agent):
        return self.obs_space

    def action_space(self, agent):
        return self.act_space

    def of_all(self, value):
        return dict.fromkeys(self.possible_agents, value)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self.of_all(np.zeros(1, np.float32)), self.of_all({})

    def step(self, actions):
        self.agents = []
        reward = float(len(set(actions.values())) == 2)
        obs, over = self.of_all(np.zeros(1, np.float32)), self.of_all(True)
        return obs, self.of_all(reward), over, self.of_all(False), self.of_all({})

    def close(self):
        pass


class MultiCartPole:
    """Agents with a CartPole-v1 each. One that drops its pole is gone until the last has ended, as
    in RLlib's MultiAgentCartPole.
    """

    def __init__(self, num_agents=4):
        self.envs = {f"agent_{i}": gym.make("CartPole-v1") for i in range(num_agents)}
        self.possible_agents = list(self.envs)

    def observation_space(self, agent):
        return self.envs[agent].observation_space

    def action_space(self, agent):
        return self.envs[agent].action_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        seeds = [None if seed is None else seed + i for i in range(len(self.agents))]
        starts = [env.reset(seed=s) for env, s in zip(self.envs.values(), seeds, strict=True)]
        return tuple(dict(zip(self.agents, x, strict=True)) for x in zip(*starts, strict=True))

    def step(self, actions):
        steps = {agent: self.envs[agent].step(action) for agent, action in actions.items()}
        self.agents = [a for a, step in steps.items() if not (step[2] or step[3])]
        return tuple({agent: step[k] for agent, step in steps.items()} for k in range(5))

    def close(self):
        for env in self.envs.values():
            env.close()


class MilliCartPole(gym.ObservationWrapper):
    """CartPole-v1 in millimetres and milliradians: up to thousands, which saturate a tanh."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation):
        return 1000 * observation


gym.register("MilliCartPole-v0", MilliCartPole)


class WaitingCartPole(gym.Wrapper):
    """CartPole-v1 that takes 5 ms a step and no processor, as a simulator elsewhere does: actors
    gather speed there, however few cores there are.
    """

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        time.sleep(0.005)
        return self.env.step(action)


gym.register("WaitingCartPole-v0", WaitingCartPole)


class CartPole100(gym.RewardWrapper):
    """CartPole-v1 with 100 a step: discounted returns are far outside of C51's default support."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def reward(self, reward):
        return 100 * reward


gym.register("CartPole100-v0", CartPole100)


class Flat(gym.Env):
    """One step, nothing to see, and reward -scale a^2 for an action a in [-1, 1].

    What SAC learns here is known: the density of u, where a = tanh(u), that is best at a given
    temperature, so entropy and temperature lie on a curve that can be computed.
    """

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, scale=10.0):
        self.scale = scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), -self.scale * float(action[0]) ** 2, True, False, {}


gym.register("Flat-v0", Flat)


class Doors(gym.Env):
    """Ten walls with two doors each, of which one is open: reward 1 for the open one.

    The picture shows from above which, the left or the right one. The vector says where I stand,
    x and y: if y < 0, behind the wall, where the left door is on my right. Either alone is of no
    help, so an agent that is shown one of them gets 5 of 10 on average, whatever it learns.
    """

    action_space = gym.spaces.Discrete(2)  # the door on my left, on my right

    def __init__(self, shown=None):
        parts = {"picture": gym.spaces.Box(0, 255, (36, 36), np.uint8)}
        parts["position"] = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.shown = shown
        self.observation_space = parts[shown] if shown else gym.spaces.Dict(parts)

    def observe(self):
        self.position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.right = self.np_random.integers(2)
        picture = np.zeros((36, 36), np.uint8)
        picture[16:20] = 100
        column = self.np_random.integers(10) + 18 * self.right
        picture[16:20, column : column + 8] = 255
        parts = {"picture": picture, "position": self.position}
        return parts[self.shown] if self.shown else parts

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        behind = self.position[1] < 0
        reward = float(action == (self.right ^ behind))
        return self.observe(), reward, False, False, {}  # a time limit ends the episode


gym.register("Doors-v0", Doors, max_episode_steps=10)
gym.register("DoorsPicture-v0", Doors, max_episode_steps=10, kwargs={"shown": "picture"})
gym.register("DoorsPosition-v0", Doors, max_episode_steps=10, kwargs={"shown": "position"})


class Golf(gym.Env):
    """One shot at one of three flags. A point for the club that reaches it, less the square of how
    far the swing is from the club's best one: -1, 0 or 1. The best return is 1.

    `only` leaves one of the two to the agent, at best 1/3: always the middle swing, or the club of
    the first flag. With a weight b on entropy the best deviation of the swing is sqrt(b / 2).
    """

    observation_space = gym.spaces.Discrete(3)  # the flag
    best_swing = np.array([-1.0, 0.0, 1.0])  # with each club

    def __init__(self, only=None):
        parts = {"club": gym.spaces.Discrete(3), "swing": gym.spaces.Box(-2, 2, (1,), np.float32)}
        self.only = only
        self.action_space = parts[only] if only else gym.spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.flag = int(self.np_random.integers(3))
        return self.flag, {}

    def step(self, action):
        parts = {self.only: action} if self.only else action
        club = parts.get("club", 0)
        swing = parts.get("swing", np.zeros(1)).item()
        reward = float(club == self.flag) - (swing - self.best_swing[club]) ** 2
        return self.flag, float(reward), True, False, {}


gym.register("Golf-v0", Golf)
gym.register("GolfClub-v0", Golf, kwargs={"only": "club"})
gym.register("GolfSwing-v0", Golf, kwargs={"only": "swing"})


class BitFlip(gym.Env):
    """n bits and a goal, drawn anew in every episode; an action flips one bit. Each step costs 1
    until all bits are as the goal has them: on average 5 for n = 12, where few random walks arrive.

    Section 4.2 of arXiv 1707.01495.
    """

    def __init__(self, n=12):
        bits = gym.spaces.MultiBinary(n)
        parts = {"achieved_goal": bits, "desired_goal": bits, "observation": bits}
        self.observation_space = gym.spaces.Dict(parts)
        self.action_space = gym.spaces.Discrete(n)
        self.n = n

    def observe(self):
        bits = self.bits.copy()
        return {"achieved_goal": bits, "desired_goal": self.goal.copy(), "observation": bits}

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return (achieved_goal == desired_goal).all(axis=-1)

    def compute_reward(self, achieved_goal, desired_goal, info):
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits = self.np_random.integers(2, size=self.n, dtype=np.int8)
        self.goal = self.bits.copy()
        while (self.goal == self.bits).all():
            self.goal = self.np_random.integers(2, size=self.n, dtype=np.int8)
        return self.observe(), {}

    def step(self, action):
        self.bits[action] ^= 1
        reward = self.compute_reward(self.bits, self.goal, {})
        arrived = bool(self.compute_terminated(self.bits, self.goal, {}))
        return self.observe(), float(reward), arrived, False, {"is_success": arrived}


gym.register("BitFlip-v0", BitFlip, max_episode_steps=12)


class Reach(gym.Env):
    """An arm of two links in the plane is to touch a point, drawn anew in every episode. A step
    turns each joint by at most 0.3 rad and costs 1 until the tip is nearer than 0.1.

    The arm is 2 long, so two random poses are that near with a probability of 0.004.
    """

    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self):
        point = gym.spaces.Box(-2, 2, (2,), np.float32)
        joints = gym.spaces.Box(-1, 1, (4,), np.float32)  # their cosines, then sines
        parts = {"achieved_goal": point, "desired_goal": point, "observation": joints}
        self.observation_space = gym.spaces.Dict(parts)

    def tip(self, joints):
        angles = np.cumsum(joints)
        return np.float32([np.cos(angles).sum(), np.sin(angles).sum()])

    def observe(self):
        tip = self.tip(self.joints)
        joints = np.float32([*np.cos(self.joints), *np.sin(self.joints)])
        return {"achieved_goal": tip, "desired_goal": self.goal.copy(), "observation": joints}

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) < 0.1

    def compute_reward(self, achieved_goal, desired_goal, info):
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.joints, joints_there = self.np_random.uniform(-np.pi, np.pi, (2, 2))
        self.goal = self.tip(joints_there)
        return self.observe(), {}

    def step(self, action):
        self.joints = self.joints + 0.3 * np.float64(action)
        obs = self.observe()
        pair = obs["achieved_goal"], obs["desired_goal"]
        arrived = bool(self.compute_terminated(*pair, {}))
        reward = float(self.compute_reward(*pair, {}))
        return obs, reward, arrived, False, {"is_success": arrived}


gym.register("Reach-v0", Reach, max_episode_steps=50)
