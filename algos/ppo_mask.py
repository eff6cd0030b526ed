"""PPO with action masks: the environment says in every observation which actions are valid, and
only those have a probability. It may also say what each action means, by an embedding.

Papers    masks arXiv 2006.14171; actions as embeddings arXiv 1512.07679, section 4.
Run       python algos/ppo_mask.py --env-id tasks:InvalidActions-v0      70 actions, 15 valid ones
          python algos/ppo_mask.py --env-id tasks:ShuffledCartPole-v0    the slots change places

It imports ppo.py, which must lie beside it, and holds only what differs:
- observations are a Dict: `action_mask` (n,), 1 where an action is valid; perhaps `avail_actions`
  (n, k), a row of k numbers for each action, each Box or MultiBinary; then what the networks see;
- the logit of an invalid action is -1e8, in acting and in the loss: its probability is 0;
- with embeddings the actor gives k numbers, and a logit is their product with the action's row, so
  that actions may change places from step to step, and new ones may come.
"""

import json
from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import numpy as np
import ppo
import torch


@dataclass
class MaskArgs:
    """Before the arguments of ppo or dqn."""

    env_id: str = "tasks:InvalidActions-v0"  # Environment whose observations have an action_mask.


@dataclass
class Args(MaskArgs, ppo.RunArgs):
    pass


make_env = ppo.make_env  # put your own here: the network, too, asks it for the sizes
make_envs = partial(ppo.make_envs, make_env=make_env)


def embedding_size(args, num_actions: int, make_env) -> int:
    """k of avail_actions, 0 without them. Ends the script where observations are not as above."""
    with make_env(args.env_id, **json.loads(args.env_kwargs)) as env:
        flat = env.observation_space
        space = flat
        while isinstance(env, gym.Wrapper) and not isinstance(space, gym.spaces.Dict):
            env = env.env  # down to what make_env flattens, its parts in this order
            space = env.observation_space
    if flat.shape != (gym.spaces.flatdim(space),):
        below = "put wrappers below what flattens them"
        ppo.fail(f"{args.env_id}: the mask is not found in observations {flat}: {below}")
    parts = space.items() if isinstance(space, gym.spaces.Dict) else ()
    numbers = gym.spaces.Box | gym.spaces.MultiBinary  # of other spaces it makes one-hots
    shapes = {name: part.shape if isinstance(part, numbers) else None for name, part in parts}
    match list(shapes.items()):
        case [("action_mask", (n,)), ("avail_actions", (m, k)), _, *_] if n == m == num_actions:
            return k
        case [("action_mask", (n,)), _, *_] if n == num_actions and "avail_actions" not in shapes:
            return 0
    ppo.fail(f"{args.env_id}: observations must be as ppo_mask.py says at its top, not {space}")


def split_obs(obs, n: int, k: int):
    """(batch, obs_dim) -> mask (batch, n), embeddings (batch, n, k), the rest (batch, m)."""
    start = n + n * k
    return obs[:, :n], obs[:, n:start].reshape(len(obs), n, k), obs[:, start:]


def masked(logits, mask):
    """The logits of valid actions, -1e8 for the others: (batch, n), (batch, n) -> (batch, n).

    Its exp is 0 in float32. The entropy, a sum of p log p, would be 0 * -inf with -inf, which is
    NaN; and two of the lowest float32 added are -inf again.
    """
    assert logits.shape == mask.shape, (logits.shape, mask.shape)
    return torch.where(mask > 0, logits, -1e8)


def require_valid_action(mask):
    """Raises unless each row, (num_envs, n), is of 0 and 1, with a 1 among them."""
    if not np.isin(mask, (0, 1)).all():
        raise ValueError(f"an action_mask must be of 0 and 1, not {mask}")
    blocked = np.flatnonzero(~(mask > 0).any(axis=1))
    if len(blocked) > 0:
        raise ValueError(f"no action is valid in the action_mask of environments {blocked}")


class Agent(ppo.Agent):
    """ppo's; its networks see neither the mask nor the embeddings, only the rest."""

    def make_networks(self, args, input_shape, num_outputs):
        self.n = num_outputs
        self.k = embedding_size(args, num_outputs, make_env)
        rest = input_shape[0] - self.n - self.n * self.k
        super().make_networks(args, (rest,), self.k or self.n)

    def features(self, obs):  # (batch, obs_dim) -> mask, embeddings, the rest: see split_obs
        # a normalised mask would be none, and normalised embeddings others than were given
        mask, embeddings, _ = split_obs(obs, self.n, self.k)
        return mask, embeddings, split_obs(super().features(obs), self.n, self.k)[2]

    def policy(self, features):  # -> logits (batch, n)
        mask, embeddings, rest = features
        logits = super().policy(rest)
        if self.k > 0:  # (batch, n, k) @ (batch, k, 1)
            logits = (embeddings @ logits[:, :, None]).squeeze(2)
        return masked(logits, mask)

    def value(self, features):  # -> (batch,)
        return super().value(features[2])

    def act(self, obs, rng, greedy=False):
        require_valid_action(obs[:, : self.n])
        return super().act(obs, rng, greedy)


def make_agent(args, obs_space, action_space):
    if not isinstance(action_space, gym.spaces.Discrete):
        ppo.fail(f"actions must be Discrete, not {action_space}")
    return ppo.make_agent(args, obs_space, action_space, Agent)


if __name__ == "__main__":
    ppo.main("ppo_mask", Args, make_agent, ppo.train, ppo.evaluation_policy, make_envs)
