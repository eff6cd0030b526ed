"""An environment of one's own, made of one of gymnasium's MuJoCo environments."""

import gymnasium as gym
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv


class Runner(HalfCheetahEnv):
    pass


gym.register("Runner-v0", Runner, max_episode_steps=13)
