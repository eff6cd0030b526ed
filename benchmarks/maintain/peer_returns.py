"""What Stable-Baselines3's A2C reaches on HalfCheetah-v5 with rl-zoo's settings for v3.

    make .venv-peers/installed
    .venv-peers/bin/python benchmarks/maintain/peer_returns.py --seeds 5

Each seed, on one thread, ends as a row of results/peer-returns.csv: the greedy return, mean and
standard deviation of ten episodes, and the mean of the last 100 training episodes.
"""

import argparse
import csv
import os
from pathlib import Path

CSV = Path(__file__).resolve().parents[1] / "results" / "peer-returns.csv"
ENV_ID, STEPS = "HalfCheetah-v5", 1_000_000
COLUMNS = ("env", "library", "algo", "seed", "steps", "greedy", "std", "training")


def train(seed: int, steps: int) -> tuple:
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
    model.learn(steps)
    evaluated = VecNormalize(DummyVecEnv([make]), training=False, norm_reward=False)
    evaluated.obs_rms = env.obs_rms
    evaluated.seed(1_000_000 + seed)
    greedy, std = evaluate_policy(model, evaluated, n_eval_episodes=10, deterministic=True)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    return greedy, std, sum(returns) / len(returns)


def keep(path: Path, row: dict):
    """Adds a row, in the place of that of the same seed and number of steps."""
    rows = []
    if path.exists():
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    rows = [r for r in rows if any(r[name] != str(row[name]) for name in COLUMNS[:5])] + [row]
    unfinished = path.with_suffix(".tmp")
    with open(unfinished, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda r: (int(r["steps"]), int(r["seed"]))))
    os.replace(unfinished, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=CSV)
    args = parser.parse_args()
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        returns = [round(float(x), 1) for x in train(seed, args.steps)]
        values = (ENV_ID, "sb3", "A2C", seed, args.steps, *returns)
        row = dict(zip(COLUMNS, values, strict=True))
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        keep(args.out, row)


if __name__ == "__main__":
    main()
