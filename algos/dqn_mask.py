"""DQN with action masks: the environment says in every observation which actions are valid, and no
maximum and no random choice takes another. It may also say what each action means.

Papers    DQN and its switches as in dqn.py; actions as embeddings arXiv 1512.07679, section 4.
Run       python algos/dqn_mask.py --env-id tasks:InvalidActions-v0      70 actions, 15 valid ones
          python algos/dqn_mask.py --env-id tasks:ShuffledCartPole-v0    the slots change places

It imports dqn.py, and ppo_mask.py with its ppo.py for how observations are read. These three must
lie beside it. It holds only what differs from dqn.py:
- observations are a Dict: `action_mask` (n,), 1 where an action is valid; perhaps `avail_actions`
  (n, k), a row of k numbers for each action, each Box or MultiBinary; then what the network sees;
- wherever an action is chosen it is a valid one: the greedy, the random, that of the target, and
  the one that --double lets the online network choose, each by the mask of its own observation;
- the mean that --dueling subtracts is over the valid actions;
- with embeddings the network gives k numbers, and Q is their product with the action's row.
"""

from dataclasses import dataclass
from functools import partial

import dqn
import gymnasium as gym
import numpy as np
import torch
from ppo_mask import MaskArgs, embedding_size, require_valid_action, split_obs

make_env = dqn.make_env  # put your own here: the network, too, asks it for the sizes
make_envs = partial(dqn.make_envs, make_env=make_env)


@dataclass
class Args(MaskArgs, dqn.RunArgs):
    pass


class QNetwork(dqn.QNetwork):
    """dqn's; its layers see neither the mask nor the embeddings, only the rest."""

    def __init__(self, args, obs_space, num_actions):
        n = num_actions
        k = embedding_size(args, n, make_env)
        rest = gym.spaces.Box(-np.inf, np.inf, (obs_space.shape[0] - n - n * k,))
        super().__init__(args, rest, k or n)
        self.n = n
        self.k = k

    def logits(self, obs):  # (batch, obs_dim) -> (batch, n, atoms), also of invalid actions
        mask, embeddings, rest = split_obs(obs, self.n, self.k)
        features = self.features(rest)
        logits = self.advantage_head(features) if self.dueling else self.q_head(features)
        logits = logits.reshape(-1, self.k or self.n, self.n_atoms)
        if self.k > 0:  # (batch, n, k) @ (batch, k, atoms)
            logits = embeddings @ logits
        if not self.dueling:
            return logits
        value = self.value_head(features).reshape(-1, 1, self.n_atoms)
        valid = mask[:, :, None] > 0
        # at least 1, since an episode's last observation may have no valid action
        count = valid.sum(dim=1, keepdim=True).clamp(min=1)
        return value + logits - (logits * valid).sum(dim=1, keepdim=True) / count

    def best_actions(self, q_values, obs):  # (batch, n), what they are of -> (batch,)
        mask, _, _ = split_obs(obs, self.n, self.k)
        # only here, since no loss and no curve bears an infinite number; and Q, not C51's logits:
        # a softmax of atoms that are all -1e8 is uniform, and its mean may be the largest Q
        return q_values.where(mask > 0, -torch.inf).argmax(dim=1)

    def random_actions(self, obs, rng):  # (batch, obs_dim) -> (batch,), valid ones, equally likely
        valid = obs[:, : self.n] > 0
        ranks = rng.integers(valid.sum(axis=1))  # the first valid action has rank 0
        return (np.cumsum(valid, axis=1) > ranks[:, None]).argmax(axis=1)

    def act(self, obs, epsilon, rng):
        require_valid_action(obs[:, : self.n])
        return super().act(obs, epsilon, rng)


make_agent = partial(dqn.make_agent, network_class=QNetwork)

if __name__ == "__main__":
    dqn.main("dqn_mask", Args, make_agent, dqn.train, dqn.evaluation_policy, make_envs)
