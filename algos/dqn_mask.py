"""DQN with action masks: the environment says in every observation which actions are valid, and no
maximum and no random choice takes another. It may also say what each action means.

Papers    DQN and its switches as in dqn.py; actions as embeddings arXiv 1512.07679, section 4.
Run       python algos/dqn_mask.py --env-id tasks:InvalidActions-v0      70 actions, 15 valid ones
          python algos/dqn_mask.py --env-id tasks:ShuffledCartPole-v0    the slots change places

It imports dqn.py, which must lie beside it, and holds only what differs:
- observations are a Dict: `action_mask` (n,), 1 where an action is valid, then perhaps
  `avail_actions` (n, k), a row of k numbers for each action, then all that the network sees;
- wherever an action is chosen it is a valid one: the greedy, the random, that of the target, and
  the one that --double lets the online network choose, each by the mask of its own observation;
- the mean that --dueling subtracts is over the valid actions;
- with embeddings the network gives k numbers, and Q is their product with the action's row.
"""

from dataclasses import dataclass, replace
from functools import partial

import dqn
import gymnasium as gym
import numpy as np
import torch


@dataclass
class Args(dqn.RunArgs):
    env_id: str = "tasks:InvalidActions-v0"
    """Environment whose observations begin with an action_mask."""


def embedding_size(env_id: str, num_actions: int):
    """k of avail_actions, 0 without them, None if observations are not as described above."""
    space = gym.make(env_id).observation_space  # make_env flattens it, its parts in this order
    shapes = {k: x.shape for k, x in space.items()} if isinstance(space, gym.spaces.Dict) else {}
    match list(shapes.items()):
        case [("action_mask", (n,)), ("avail_actions", (m, k)), *_] if n == m == num_actions:
            return k
        case [("action_mask", (n,)), *_] if n == num_actions and "avail_actions" not in shapes:
            return 0


def split_obs(obs, n: int, k: int):
    """(batch, obs_dim) -> mask (batch, n), embeddings (batch, n, k), the rest (batch, m)."""
    start = n + n * k
    return obs[:, :n], obs[:, n:start].reshape(len(obs), n, k), obs[:, start:]


def random_actions(mask, rng):
    """A valid action of each row, all of them equally likely: (batch, n) -> (batch,)."""
    ranks = rng.integers(np.count_nonzero(mask, axis=1))  # the first valid action has rank 0
    return (np.cumsum(mask, axis=1) > ranks[:, None]).argmax(axis=1)


class QNetwork(dqn.QNetwork):
    """dqn's; its layers see neither the mask nor the embeddings, only the rest."""

    def __init__(self, args, obs_shape, num_actions):
        n, k = num_actions, embedding_size(args.env_id, num_actions)
        super().__init__(args, (obs_shape[0] - n - n * k,), k or n)
        self.n, self.k = n, k

    def forward(self, obs):  # (batch, obs_dim) -> (batch, n, atoms), also of invalid actions
        mask, embeddings, rest = split_obs(obs, self.n, self.k)
        features = self.trunk(rest)
        logits = self.advantage_head(features) if self.dueling else self.q_head(features)
        logits = logits.reshape(len(obs), self.k or self.n, self.n_atoms)
        if self.k > 0:  # (batch, n, k) @ (batch, k, atoms)
            logits = embeddings @ logits
        if not self.dueling:
            return logits
        value, mask = self.value_head(features)[:, None], mask[:, :, None]
        mean = (logits * mask).sum(axis=1, keepdims=True) / mask.sum(axis=1, keepdims=True)
        return value + logits - mean

    def best_of(self, logits, obs):  # (batch, n, atoms), (batch, obs_dim) -> (batch,)
        mask, _, _ = split_obs(torch.as_tensor(obs), self.n, self.k)
        q_values = torch.as_tensor(self.q_values(logits))
        # only here, since no loss and no curve bears an infinite number; and Q, not C51's logits:
        # a softmax of atoms that are all -1e8 is uniform, and its mean may be the largest Q
        return q_values.where(mask > 0, -torch.inf).argmax(dim=1)

    def best_actions(self, obs):  # (batch, obs_dim) -> (batch,)
        return self.best_of(self.forward(obs), obs)

    def act(self, obs, epsilon, rng):
        """Epsilon-greedy actions, valid ones: (num_envs, obs_dim) -> (num_envs,)."""
        mask, _, _ = split_obs(obs, self.n, self.k)
        assert mask.any(axis=1).all(), "an action_mask has no valid action"
        explore = rng.random(len(obs)) < epsilon
        with torch.no_grad():
            on_cpu = self.device.type == "cpu"  # of an array: see Layers
            actions = self.best_actions(obs if on_cpu else torch.as_tensor(obs, device=self.device))
        actions = actions.numpy(force=True)
        actions[explore] = random_actions(mask[explore], rng)
        return actions


def q_loss(q_network, target_q_network, batch, args):
    """dqn's, to which the target network seems to know one action, the one that is chosen here."""
    rows = torch.arange(len(batch["actions"]), device=q_network.device)
    next_obs = batch["next_obs"]
    with torch.no_grad():
        next_logits = target_q_network(next_obs)  # (batch, n, atoms)
        ranking_logits = q_network(next_obs) if args.double else next_logits
        chosen_logits = next_logits[rows, q_network.best_of(ranking_logits, next_obs)][:, None]
    return dqn.q_loss(q_network, lambda _: chosen_logits, batch, replace(args, double=False))


def make_agent(args, obs_space, action_space):
    if not isinstance(action_space, gym.spaces.Discrete):
        dqn.fail(f"dqn_mask takes Discrete action spaces, not {action_space}")
    if embedding_size(args.env_id, action_space.n) is None:
        dqn.fail(f"{args.env_id}: observations must be as the top of this script says")
    return QNetwork(args, obs_space.shape, int(action_space.n))


train = partial(dqn.train, loss_of=q_loss)

if __name__ == "__main__":
    dqn.main("dqn_mask", Args, make_agent, train, dqn.evaluation_policy)
