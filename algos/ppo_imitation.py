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

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import ppo
import torch

COLUMNS = "observations actions rewards terminations truncations".split()
ppo.OF_EVALUATION.add("save_episodes")


@dataclass
class Args(ppo.RunArgs):
    demonstrations: str | None = None  # An .npz file of an expert's episodes.
    imitation_coef: float = 1.0  # Weight of the loss on demonstrations, at the start; 0: no file.
    imitation_steps: int = 50_000  # Steps until that weight has fallen to 0, on a straight line.
    imitation_batch_size: int = 256  # Demonstrated steps in each gradient step, drawn at random.
    save_episodes: str | None = None  # Writes the episodes of an evaluation to this .npz file.

    def check(self):
        super().check()
        ppo.require_range(self, "imitation_coef")
        if self.imitation_coef == 0:
            names = "demonstrations imitation_steps imitation_batch_size"
            ppo.refuse_typed(self, names, "with imitation_coef 0")
        ppo.require_range(self, "imitation_steps imitation_batch_size", low=1)
        if self.save_episodes and (not self.evaluate or ppo.is_game(self.env_id)):
            ppo.fail("save_episodes goes with evaluate, and not with Atari's games")
        if self.save_episodes:
            path = Path(self.save_episodes)
            if path.is_dir() or not os.access(path.parent, os.W_OK):
                ppo.fail(f"save_episodes={path} must be a file, in a folder that can be written to")
        if self.imitation_coef > 0 and not (self.demonstrations or self.evaluate):
            ppo.fail("ppo_imitation needs demonstrations, or imitation_coef 0")


def train(args: Args, run: ppo.Run):
    demonstrations = run.agent.demonstrations
    rng = run.rng  # which is in the checkpoint

    def loss_of(agent, minibatch, args, clip_coef):
        loss, terms, log_ratio = ppo.ppo_loss(agent, minibatch, args, clip_coef)
        step = run.last_step  # where the rollout began, as for the learning rate
        coef = ppo.linear_schedule(args.imitation_coef, 0.0, args.imitation_steps, step)
        if coef > 0:
            batch = draw(demonstrations, args.imitation_batch_size, rng, agent.device)
            imitation = imitation_loss(agent, batch)
            loss = loss + coef * imitation
            terms = terms | {"imitation_loss": imitation}
        return loss, terms, log_ratio

    ppo.train(args, run, loss_of=loss_of)


def imitation_loss(agent, batch):
    """The mean of -log pi(a | s) over demonstrated steps, a scalar; V has no part in it."""
    log_probs, _, _ = agent.evaluate_actions(batch)
    return -log_probs.mean()


def draw(demonstrations, n, rng, device):
    """A batch as of ppo, (n, ...)."""
    rows = rng.integers(len(demonstrations["obs"]), size=n)
    return {k: torch.as_tensor(x[rows], device=device) for k, x in demonstrations.items()}


def make_agent(args, obs_space, action_space):
    agent = ppo.make_agent(args, obs_space, action_space)
    # read now, so that what is wrong with the file is said before there is a run folder
    reads = args.imitation_coef > 0 and not args.evaluate
    agent.demonstrations = read(args, agent, obs_space, action_space) if reads else None
    return agent


def read(args, agent, obs_space, action_space):
    """The steps of an expert by name, one row each: obs as they are, actions as of the policy."""
    path = args.demonstrations
    try:
        with np.load(path, allow_pickle=False) as file:
            obs, actions = file["observations"], file["actions"]
        numbers = actions.astype(np.float64)
        if obs_space.dtype == np.uint8 != obs.dtype:
            raise ValueError(f"pixels are uint8, not {obs.dtype}")
        obs = obs.astype(obs_space.dtype)
        shapes = (len(obs), *obs_space.shape), (len(obs), *action_space.shape)
    except Exception as error:  # many can be: no such file, no zip file, no such array
        ppo.fail(f"{path}: {error}")
    if len(obs) == 0 or (obs.shape, actions.shape) != shapes:
        ppo.fail(f"{path}: shapes {obs.shape}, {actions.shape}; {args.env_id} needs {shapes}")
    if not np.isfinite(numbers).all() or not np.isfinite(obs).all():
        ppo.fail(f"{path}: some numbers are not finite")
    actions = from_env(agent, actions, action_space)
    if agent.discrete:
        inside = (actions >= 0) & (actions < action_space.n)
        if not (inside & (numbers % 1 == 0)).all():
            ppo.fail(f"{path}: some actions are not in {action_space}")
    # raw: agent.features normalises them as any others, by the statistics of the moment
    return {"obs": obs, "actions": actions}


def from_env(agent, actions, space):
    """Undoes agent.to_env and ppo.as_declared: (n, *space.shape) -> (n,) from 0, or (n, dim)."""
    if agent.discrete:
        return np.int64(actions) - space.start
    scale = np.where(agent.half_range > 0, agent.half_range, 1)  # 0: there is only one value
    return np.float32((actions.reshape(len(actions), -1) - agent.middle) / scale)


class RecordingEnvs(gym.vector.VectorWrapper):
    """Keeps what is played; `close` writes the first episode of each environment to `path`."""

    def __init__(self, envs, path):
        super().__init__(envs)
        self.path = Path(path)
        self.played = []
        self.envs = getattr(envs, "envs", None)  # for films

    def reset(self, **keywords):
        self.obs, infos = super().reset(**keywords)
        return self.obs, infos

    def step(self, actions):
        obs, rewards, terminated, truncated, infos = super().step(actions)
        self.played.append((self.obs, actions, rewards, terminated, truncated))
        self.obs = obs
        return obs, rewards, terminated, truncated, infos

    def close(self, **keywords):
        super().close(**keywords)
        if not self.played or sys.exc_info()[0]:  # nothing of an evaluation that was interrupted
            return
        columns = [np.stack(column) for column in zip(*self.played, strict=True)]
        terminated, truncated = columns[3:]
        truncated[-1] |= ~(terminated | truncated).any(axis=0)  # those that the evaluation cut
        lengths = (terminated | truncated).argmax(axis=0) + 1  # of the first episodes
        episodes = [[x[:n, i] for x in columns] for i, n in enumerate(lengths)]
        columns = [np.concatenate(parts) for parts in zip(*episodes, strict=True)]
        arrays = dict(zip(COLUMNS, columns, strict=True))
        ppo.write_file(self.path, lambda file: np.savez(file, **arrays))
        ppo.say(f"episodes     {len(episodes)} of {len(columns[0]):,} steps: {self.path}")


def make_envs(args, num_envs, training=True, **keywords):
    envs = ppo.make_envs(args, num_envs, training, **keywords)
    return envs if training or not args.save_episodes else RecordingEnvs(envs, args.save_episodes)


def name_of_run(argv):
    """ppo where one of its runs is evaluated, since its agent is the same; else ppo_imitation."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--evaluate", default="")
    path = Path(parser.parse_known_args(argv)[0].evaluate)
    about = (path.parent if ppo.is_weights(path) else path) / "args.json"
    try:
        return "ppo" if json.loads(about.read_bytes())["algo"] == "ppo" else "ppo_imitation"
    except (OSError, ValueError, LookupError, TypeError):  # which is said when it is read again
        return "ppo_imitation"


if __name__ == "__main__":
    name = name_of_run(sys.argv[1:])
    if name == "ppo":  # the script that trained it is ppo.py without this one
        versions = ppo.versions
        ppo.versions = lambda args_class: versions(ppo.RunArgs)
    ppo.main(name, Args, make_agent, train, ppo.evaluation_policy, make_envs)
