"""Runs one algorithm of stable-baselines3 or sbx-rl for speed.py, in an environment of their own.

Prints a line of JSON: environment steps per second between two steps of the training, and the
seconds from the start of this process to the first update. With a threshold: the steps until the
last 20 training episodes had this mean return.
"""

import time

STARTED = time.perf_counter()

import importlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402


def main(library, algo, env_id, settings, num_envs, threads, first, last, seed=1, threshold=None):
    """settings: keywords of the algorithm, [a, b] what falls from a to b over the training; SPS is
    measured from step `first` to step `last`.
    """
    import torch

    torch.set_num_threads(threads)
    if env_id.startswith("ALE/"):
        import ale_py
        import gymnasium
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import VecFrameStack

        gymnasium.register_envs(ale_py)
        keywords = {"frameskip": 1, "repeat_action_probability": 0.0}
        env = VecFrameStack(make_atari_env(env_id, num_envs, seed=seed, env_kwargs=keywords), 4)
        policy = "CnnPolicy"
    else:
        from stable_baselines3.common.env_util import make_vec_env

        env, policy = make_vec_env(env_id, num_envs, seed=seed), "MlpPolicy"
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger

    times = []

    class Referee(BaseCallback):
        def _on_rollout_start(self):
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            if len(returns) == 20 and sum(returns) / 20 >= threshold:
                print(json.dumps({"steps": self.num_timesteps}), flush=True)
                os._exit(0)

        def _on_step(self):
            return True

    class Stopwatch(BaseCallback):
        def _on_step(self):
            if self.num_timesteps >= first:
                times.append((self.num_timesteps, time.perf_counter()))
            return self.num_timesteps < last

    device = {"device": "cpu"} if library == "stable_baselines3" else {}
    for name, value in settings.items():
        if isinstance(value, list):
            settings[name] = lambda left, value=value: value[1] + (value[0] - value[1]) * left
    make = getattr(importlib.import_module(library), algo)
    model = make(policy, env, **settings, **device, seed=seed)
    model.set_logger(Logger(None, []))  # its own would leave a folder behind
    if threshold is not None:
        model._stats_window_size = 20
        model.learn(last, callback=Referee())
        print("not solved")
        return
    updates, train = [], model.train

    def timed_train(*args, **keywords):
        result = train(*args, **keywords)
        updates.append(time.perf_counter() - STARTED)
        return result

    model.train = timed_train
    model.learn(10 * last, callback=Stopwatch())
    (step_1, time_1), (step_2, time_2) = times[0], times[-1]
    sps = (step_2 - step_1) / (time_2 - time_1)
    print(json.dumps({"sps": sps, "first_update": updates[0]}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
