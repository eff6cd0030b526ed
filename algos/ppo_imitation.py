"""PPO with demonstrations: beside its own loss it imitates an expert's actions, less and less.

Papers    DAPG arXiv 1709.10087: a gradient towards demonstrations beside the policy's own, whose
          weight falls as training goes on. PPO as in ppo.py.
Run       python algos/ppo_imitation.py --evaluate RUN --save-episodes FILE.npz    by an expert
          python algos/ppo_imitation.py --demonstrations FILE.npz --total-timesteps 5120

It imports ppo.py, which must lie beside it, and holds only what differs:
- each gradient step adds weight * mean(-log pi(a | s)) over an expert's steps; the weight
  falls linearly to 0, and from there on this is ppo;
- demonstrations are an .npz file of five arrays, named as in Minari's EpisodeData, a row for each
  step, one episode after the other: observations and actions as the environment has them, rewards,
  terminations, truncations;
- with --save-episodes an evaluation writes such a file; RUN may be one of ppo.py's.
"""

import json
import sys
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import gymnasium as gym
import numpy as np
import ppo
import torch

COLUMNS = "observations actions rewards terminations truncations".split()


@dataclass
class Args(ppo.RunArgs):
    demonstrations: str | None = None
    """An .npz file of an expert's episodes."""
    imitation_coef: float = 1.0
    """Weight of the loss on demonstrations, at the start; 0: they are not read."""
    imitation_steps: int = 50_000
    """Steps until that weight has fallen to 0, on a straight line."""
    imitation_batch_size: int = 256
    """Demonstrated steps in each gradient step, drawn at random."""
    save_episodes: str | None = None
    """Writes the episodes of an evaluation to this .npz file."""

    def check(self):
        super().check()
        ppo.require_range(self, "imitation_coef", low=0)
        ppo.require_range(self, "imitation_steps imitation_batch_size", low=1)
        if self.save_episodes and (not self.evaluate or self.env_id.startswith("ALE/")):
            ppo.fail("save_episodes goes with evaluate, and not with Atari's games")
        if self.imitation_coef > 0 and not (self.demonstrations or self.evaluate):
            ppo.fail("ppo_imitation needs demonstrations, or imitation_coef 0")


def from_env(agent, actions):
    """The inverse of agent.to_env: (n, *action_shape) -> (n,) or, in half ranges, (n, dim)."""
    if agent.discrete:
        return np.int64(actions)
    return np.float32((actions.reshape(len(actions), -1) - agent.middle) / agent.half_range)


class Demonstrations:
    """The steps of an expert, and a generator of its own that draws from them."""

    def __init__(self, args, agent, obs_space, action_space):
        path, self.rng = args.demonstrations, np.random.default_rng([args.seed, 2])
        try:
            with np.load(path, allow_pickle=False) as file:
                obs, actions = file["observations"], file["actions"]
        except (OSError, ValueError, KeyError) as error:
            ppo.fail(f"{path}: {error}")
        shapes = (len(obs), *obs_space.shape), (len(obs), *action_space.shape)
        if (obs.shape, actions.shape) != shapes:
            ppo.fail(f"{path}: shapes {obs.shape}, {actions.shape}; {args.env_id} needs {shapes}")
        # raw: agent.features normalises them as any others, by the statistics of the moment
        self.obs, self.actions = obs.astype(obs_space.dtype), from_env(agent, actions)

    def draw(self, n, device):  # a batch as of ppo, (n, ...)
        rows = self.rng.integers(len(self.obs), size=n)
        columns = {"obs": self.obs[rows], "actions": self.actions[rows]}
        return {name: torch.as_tensor(x, device=device) for name, x in columns.items()}

    def state_dict(self):  # for checkpoints
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, saved):
        self.rng.bit_generator.state = saved["rng"]


def imitation_loss(agent, batch):
    """The mean of -log pi(a | s) over demonstrated steps, a scalar; V has no part in it."""
    log_probs, _, _ = agent.evaluate_actions(batch)
    return -log_probs.mean()


def loss_with_demonstrations(run, agent, mini, args, clip_coef):
    """ppo's, until its weight is 0 with the loss on a batch of demonstrations."""
    loss, parts, log_ratio = ppo.ppo_loss(agent, mini, args, clip_coef)
    step = run.last_step  # where the rollout began, as for ppo's schedules
    coef = ppo.linear_schedule(args.imitation_coef, 0.0, args.imitation_steps, step)
    if coef > 0:
        batch = agent.demonstrations.draw(args.imitation_batch_size, agent.device)
        imitation = imitation_loss(agent, batch)
        loss, parts = loss + coef * imitation, parts | {"imitation_loss": imitation}
    return loss, parts, log_ratio


class RecordingEnvs(ppo.SyncEnvs):
    """Keeps what is played; `close` writes the first episode of each environment to `path`."""

    def reset(self, **keywords):
        self.obs, infos = super().reset(**keywords)
        self.played = []
        return self.obs, infos

    def step(self, actions):
        obs, rewards, terminated, truncated, *rest = super().step(actions)
        self.played.append((self.obs, actions, rewards, terminated, truncated))
        self.obs = obs
        return obs, rewards, terminated, truncated, *rest

    def close(self, **keywords):
        super().close(**keywords)
        columns = [np.stack(column) for column in zip(*self.played, strict=True)]
        lengths = (columns[3] | columns[4]).argmax(axis=0) + 1  # of the first episodes
        episodes = [[x[:n, i] for x in columns] for i, n in enumerate(lengths)]
        columns = [np.concatenate(parts) for parts in zip(*episodes, strict=True)]
        np.savez(self.path, **dict(zip(COLUMNS, columns, strict=True)))
        print(f"episodes     {len(episodes)} of {len(columns[0]):,} steps: {self.path}")


def make_envs(args, num_envs, training=True, **keywords):
    if training or not args.save_episodes:
        return ppo.make_envs(args, num_envs, training, **keywords)
    make = [lambda: ppo.make_env(args.env_id, **keywords)] * num_envs
    envs = RecordingEnvs(make, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.path = args.save_episodes
    return envs


def make_agent(args, obs_space, action_space):
    agent = ppo.make_agent(args, obs_space, action_space)
    if args.imitation_coef > 0 and not args.evaluate:
        agent.demonstrations = Demonstrations(args, agent, obs_space, action_space)
    return agent


def train(args: Args, run: ppo.Run):
    if args.imitation_coef > 0:
        run.start = partial(run.start, demonstrations=run.agent.demonstrations)
        # each step draws anew, with a smaller weight: a CUDA graph would repeat the first
        run.recorded = lambda function, *optimizers: function
    ppo.train(args, run, partial(loss_with_demonstrations, run))


def name_of_run(argv):
    """ppo where one of its runs is evaluated, since its agent is the same; else ppo_imitation."""
    for flag, folder in pairwise(argv):
        about = Path(folder, "args.json")
        if flag == "--evaluate" and about.exists():
            return "ppo" if json.loads(about.read_text())["algo"] == "ppo" else "ppo_imitation"
    return "ppo_imitation"


if __name__ == "__main__":
    name = name_of_run(sys.argv)
    ppo.main(name, Args, make_agent, train, ppo.evaluation_policy, make_envs)
