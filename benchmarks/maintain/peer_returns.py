"""What Stable-Baselines3's A2C reaches on HalfCheetah-v5 with rl-zoo's settings for v3.

    make .venv-peers/installed
    .venv-peers/bin/python benchmarks/maintain/peer_returns.py 1 2 3 4 5

Each seed, on one thread, is added as a row of results/peer-returns.csv: the greedy return, mean and
standard deviation of ten episodes, and the mean of the last 100 training episodes.
"""

import argparse
from pathlib import Path

CSV = Path(__file__).resolve().parents[1] / "results" / "peer-returns.csv"
ENV_ID = "HalfCheetah-v5"
STEPS = 1_000_000


def train(seed: int) -> tuple:
    """Greedy return, its deviation, training return. rl-zoo has SB3's defaults for A2C here, in one
    environment, and `normalize: true`.
    """
    import gymnasium as gym
    import torch
    from stable_baselines3 import A2C
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)

    def make():
        return Monitor(gym.make(ENV_ID))

    env = VecNormalize(DummyVecEnv([make]), gamma=0.99)
    env.seed(seed)
    model = A2C("MlpPolicy", env, seed=seed, device="cpu")
    model.learn(STEPS)
    evaluated = VecNormalize(DummyVecEnv([make]), training=False, norm_reward=False)
    evaluated.obs_rms = env.obs_rms
    evaluated.seed(1_000_000 + seed)
    greedy, std = evaluate_policy(model, evaluated, n_eval_episodes=10, deterministic=True)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    return greedy, std, sum(returns) / len(returns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="+", type=int)
    for seed in parser.parse_args().seeds:
        returns = ",".join(f"{float(x):.1f}" for x in train(seed))
        with open(CSV, "a", encoding="utf-8") as file:
            print(f"{ENV_ID},sb3,A2C,{seed},{STEPS},{returns}", file=file)
