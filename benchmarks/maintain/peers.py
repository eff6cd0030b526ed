"""Runs one algorithm of stable-baselines3 or sbx-rl for speed.py, in an environment of their own.

Prints a line of JSON: environment steps per second between two steps of the training.
"""

import importlib
import json
import sys
import time

import torch


def main(library, algo, env_id, settings, num_envs, threads, first, last):
    """settings: keywords of the algorithm; SPS is measured from step `first` to step `last`."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import VecFrameStack

    torch.set_num_threads(threads)
    if env_id.startswith("ALE/"):
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        keywords = {"frameskip": 1, "repeat_action_probability": 0.0}
        env = VecFrameStack(make_atari_env(env_id, num_envs, seed=1, env_kwargs=keywords), 4)
        policy = "CnnPolicy"
    else:
        env = make_vec_env(env_id, num_envs, seed=1)
        policy = "MlpPolicy"
    times = []

    class Stopwatch(BaseCallback):
        def _on_step(self):
            if self.num_timesteps >= first:
                times.append((self.num_timesteps, time.perf_counter()))
            return self.num_timesteps < last

    device = {"device": "cpu"} if library == "stable_baselines3" else {}
    make = getattr(importlib.import_module(library), algo)
    model = make(policy, env, **settings, **device, seed=1)
    model.set_logger(Logger(None, []))  # its own would leave a folder behind
    model.learn(10 * last, callback=Stopwatch())
    (step_1, time_1), (step_2, time_2) = times[0], times[-1]
    print(json.dumps({"sps": (step_2 - step_1) / (time_2 - time_1)}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
