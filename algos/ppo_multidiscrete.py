"""PPO with several discrete actions at once: MultiDiscrete and Tuple of Discrete spaces.

Papers    arXiv 1711.08946 (independent components); arXiv 1705.05035 (one after the other); PPO as
          in ppo.py. It imports ppo.py, which must lie beside it, and holds only what differs.
Run       python algos/ppo_multidiscrete.py --ent-coef 0.4 --no-norm-adv --no-anneal-clip
          the same with --autoregressive: a training return of 0.8 instead of 0.25

What differs from ppo.py:
- the actor's logits are cut into one softmax for each component of the action; log-probabilities
  and entropies are summed over components;
- with --autoregressive each component has a network of its own, which sees the components before
  it: P(a) = P(a_1 | s) P(a_2 | s, a_1) ...
"""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import ppo
import torch
import torch.nn.functional as F
from gymnasium.vector.utils import batch_space
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:Match-v0"
    """Environment, as gymnasium names it; `package.module:Id-v0` imports that module first."""
    autoregressive: bool = False
    """Draws the components one after the other, each given those before it."""


def multi_categorical_log_prob_and_entropy(logits, actions, nvec):
    """log pi(a), entropy [nats] of independent softmaxes, summed over the components of an action.

    logits (batch, sum(nvec)); actions (batch, d); nvec, the d numbers of choices -> (batch,) twice.
    """
    shapes = (len(logits), sum(nvec)), (len(logits), len(nvec))
    assert (logits.shape, actions.shape) == shapes, (logits.shape, actions.shape, nvec)
    parts = zip(logits.split(nvec, dim=1), actions.unbind(dim=1), strict=True)
    scores = [ppo.categorical_log_prob_and_entropy(*part) for part in parts]
    log_probs, entropies = zip(*scores, strict=True)
    return sum(log_probs), sum(entropies)


def one_hot(actions, n: int):  # (batch,) -> (batch, n), arrays or tensors
    if torch.is_tensor(actions):
        return F.one_hot(actions, n).float()
    return np.eye(n, dtype=np.float32)[actions]


class Agent(ppo.Agent):
    """ppo's, with a softmax for each of the d components of an action, counted from 0."""

    def __init__(self, args, obs_space, action_space):
        self.nvec, self.start = action_space.nvec.ravel().tolist(), action_space.start.ravel()
        super().__init__(args, obs_space, gym.spaces.Discrete(sum(self.nvec)))

    def to_env(self, action):  # (batch, d) -> (batch, d)
        return action + self.start

    def sample(self, policy, rng, greedy=False):  # array (batch, sum(nvec)) -> (batch, d)
        parts = np.split(policy, np.cumsum(self.nvec)[:-1], axis=1)
        return np.stack([ppo.Agent.sample(self, part, rng, greedy) for part in parts], axis=1)

    def logits(self, features, actions):  # (batch, n), (batch, d) -> (batch, sum(nvec))
        return self.policy(features)

    def evaluate_actions(self, batch):
        features, actions = self.features(batch["obs"]), batch["actions"]
        logits = self.logits(features, actions)
        scores = multi_categorical_log_prob_and_entropy(logits, actions, self.nvec)
        return *scores, self.value(features)


class AutoregressiveAgent(Agent):
    """P(a) = P(a_1 | s) P(a_2 | s, a_1) ... Each component has a network, which takes what `policy`
    lets through, the features, and the components before it, one-hot.

    Entropies are of each component given the stored ones before it. On average their sum is the
    entropy of the whole, but its gradient lacks how earlier components lead to later entropies.
    """

    def make_networks(self, args, input_shape, num_outputs):
        super().make_networks(args, input_shape, num_outputs)
        sizes = [512 if self.sees_images else input_shape[0]]
        heads = []
        for n in self.nvec:
            # with hidden layers: a linear one could not say "as a_1 in this state, else not"
            heads.append(ppo.mlp(sum(sizes), args.hidden_size, args.activation, n, 0.01))
            sizes.append(n)
        self.actor = nn.ModuleList(heads)

    def policy(self, features):
        return features

    def next_logits(self, features, actions):
        """Of component i, given those before it, (batch, i) -> (batch, nvec[i])."""
        i = actions.shape[1]
        one_hots = [one_hot(actions[:, j], self.nvec[j]) for j in range(i)]
        concatenate = torch.cat if torch.is_tensor(features) else np.concatenate
        return self.actor[i](concatenate([features, *one_hots], 1))

    def sample(self, policy, rng, greedy=False):  # features (batch, n) -> (batch, d)
        actions = np.zeros((len(policy), 0), np.int64)
        for _ in self.nvec:
            inputs = policy, actions
            if self.device.type != "cpu":  # where the networks take no arrays
                inputs = [torch.as_tensor(x, device=self.device) for x in inputs]
            logits = torch.as_tensor(self.next_logits(*inputs)).numpy(force=True)
            drawn = ppo.Agent.sample(self, logits, rng, greedy)
            actions = np.concatenate([actions, drawn[:, None]], axis=1)
        return actions

    def logits(self, features, actions):  # of stored actions, whose components are all known
        parts = [self.next_logits(features, actions[:, :i]) for i in range(len(self.nvec))]
        return torch.cat(parts, dim=1)


def make_envs(args, num_envs, training=True, **keywords):
    """As in ppo.py, but a Tuple of Discrete becomes MultiDiscrete."""
    envs = ppo.make_envs(args, num_envs, training, **keywords)
    parts = envs.single_action_space
    if isinstance(parts, gym.spaces.Tuple) and {type(p) for p in parts} == {gym.spaces.Discrete}:
        space = gym.spaces.MultiDiscrete([p.n for p in parts], start=[p.start for p in parts])
        envs.envs = [gym.wrappers.TransformAction(env, tuple, space) for env in envs.envs]
        envs.single_action_space, envs.action_space = space, batch_space(space, num_envs)
    return envs


def make_agent(args, obs_space, action_space):
    if not isinstance(action_space, gym.spaces.MultiDiscrete):
        ppo.fail(f"ppo_multidiscrete takes MultiDiscrete and Tuple of Discrete, not {action_space}")
    agent_class = AutoregressiveAgent if args.autoregressive else Agent
    return agent_class(args, obs_space, action_space)


if __name__ == "__main__":
    ppo.main("ppo_multidiscrete", Args, make_agent, ppo.train, ppo.evaluation_policy, make_envs)
