"""PPO with discrete and continuous actions at once, in a Tuple or Dict, such as which club to take
and how hard to swing it.

Papers    a softmax beside a Gaussian arXiv 1903.01344; PPO as in ppo.py.
Run       python algos/ppo_hybrid.py --config variants             tasks:Golf-v0

It imports ppo.py, which must lie beside it, and holds only what differs:
- an action travels as gymnasium flattens it: one row with a one-hot for each choice, and the real
  numbers. The actor has an output for each column: a logit there, a mean here;
- given the observation, the parts are independent: log-probabilities and entropies are summed.
"""

from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import numpy as np
import ppo
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:Golf-v0"  # Environment with discrete and continuous actions at once.


def leaves(space):
    """The parts of a space, nested ones too, in the order in which gymnasium flattens them."""
    if isinstance(space, gym.spaces.Dict):
        parts = space.values()
    elif isinstance(space, gym.spaces.Tuple):
        parts = space
    elif isinstance(space, gym.spaces.MultiDiscrete):
        parts = [gym.spaces.Discrete(n) for n in space.nvec.ravel()]
    else:
        return [space]
    return [leaf for part in parts for leaf in leaves(part)]


def is_real(space):
    return isinstance(space, gym.spaces.Box) and space.dtype.kind == "f"


class Flat(gym.spaces.Box):
    """Actions of another space, flattened: which columns are of a choice, which are numbers."""

    def __init__(self, space):
        parts = leaves(space)
        known = all(isinstance(part, gym.spaces.Discrete) or is_real(part) for part in parts)
        if not known or gym.spaces.flatdim(space) == 0:
            ppo.fail(f"actions must be Discrete, MultiDiscrete and Box of reals, not {space}")
        self.choices = []
        self.numbers = []
        stop = 0
        for part in parts:
            start = stop
            stop += gym.spaces.flatdim(part)
            if is_real(part):
                self.numbers += range(start, stop)
            else:
                self.choices.append(slice(start, stop))
        flat = gym.spaces.flatten_space(space)
        super().__init__(np.float64(flat.low), np.float64(flat.high), dtype=np.float64)


class Agent(ppo.Agent):
    """ppo's for continuous actions, in some of whose columns there are choices."""

    def __init__(self, args, obs_space, action_space):
        super().__init__(args, obs_space, action_space)
        self.choices = action_space.choices
        self.numbers = action_space.numbers
        self.log_std = nn.Parameter(torch.full((len(self.numbers),), args.log_std_init))

    def sample(self, outputs, rng, greedy=False):  # (batch, columns) -> (batch, columns)
        actions = outputs.clone()
        actions[:, self.numbers] = super().sample(outputs[:, self.numbers], rng, greedy)
        for choice in self.choices:
            logits = outputs[:, choice]
            if not greedy:  # Gumbel-max, as in ppo
                noise = torch.as_tensor(rng.gumbel(size=logits.shape), dtype=torch.float32)
                logits = logits + noise.to(logits.device)
            actions[:, choice] = F.one_hot(logits.argmax(dim=1), logits.shape[1]).float()
        return actions

    def log_prob_and_entropy(self, outputs, actions):  # summed over the parts
        numbers = outputs[:, self.numbers], actions[:, self.numbers]
        log_prob, entropy = super().log_prob_and_entropy(*numbers)
        for choice in self.choices:
            chosen = actions[:, choice].argmax(dim=1)
            score = ppo.categorical_log_prob_and_entropy(outputs[:, choice], chosen)
            log_prob = log_prob + score[0]
            entropy = entropy + score[1]
        return log_prob, entropy

    def to_env(self, actions):
        scaled = actions.astype(np.float64)  # one-hots stay as they are
        scaled[:, self.numbers] = super().to_env(actions)[:, self.numbers]
        return scaled


def make_env(env_id, **keywords):
    """ppo's environment, which takes flattened actions."""
    env = ppo.make_env(env_id, **keywords)
    with ppo.closed_on_error([env]):
        unflatten = partial(gym.spaces.unflatten, env.action_space)
        return gym.wrappers.TransformAction(env, unflatten, Flat(env.action_space))


make_envs = partial(ppo.make_envs, make_env=make_env)


def make_agent(args, obs_space, action_space):
    if not isinstance(action_space, Flat):  # of games, which make_env does not make
        ppo.fail(f"actions must be a Tuple or Dict of Discrete and Box, not {action_space}")
    if len(obs_space.shape) == 3:
        ppo.refuse_typed(args, "hidden_size activation", "with images")
    if not action_space.numbers:
        ppo.refuse_typed(args, "log_std_init", "without continuous actions")
    return ppo.make_agent(args, obs_space, action_space, Agent)


if __name__ == "__main__":
    ppo.main("ppo_hybrid", Args, make_agent, ppo.train, ppo.evaluation_policy, make_envs)
