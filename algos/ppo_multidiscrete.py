"""PPO with several discrete actions at once: MultiDiscrete, MultiBinary and Tuple of Discrete.

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

import math
from dataclasses import dataclass
from functools import partial

import gymnasium as gym
import ppo
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:Match-v0"  # Environment with several discrete actions at once.
    autoregressive: bool = False  # Draws components one after the other, each given those before.


def multi_categorical_log_prob_and_entropy(logits, actions, nvec):
    """log pi(a), entropy [nats] of independent softmaxes, summed over the components of an action.

    logits (batch, sum(nvec)); actions (batch, d); nvec, the d numbers of choices -> (batch,) twice.
    """
    shapes = (len(logits), sum(nvec)), (len(logits), len(nvec))
    assert (logits.shape, actions.shape) == shapes, (logits.shape, actions.shape, nvec)
    components = zip(logits.split(nvec, dim=1), actions.unbind(dim=1), strict=True)
    scores = [ppo.categorical_log_prob_and_entropy(*component) for component in components]
    log_probs, entropies = zip(*scores, strict=True)
    return sum(log_probs), sum(entropies)


class Agent(ppo.Agent):
    """ppo's, with a softmax for each of the d components of an action, counted from 0."""

    def __init__(self, args, obs_space, action_space, nvec):  # of all choices, as one Discrete
        self.nvec = nvec
        super().__init__(args, obs_space, action_space)

    def sample(self, outputs, rng, greedy=False):  # logits (batch, sum(nvec)) -> (batch, d)
        logits = outputs.split(self.nvec, dim=1)
        return torch.stack([ppo.Agent.sample(self, x, rng, greedy) for x in logits], dim=1)

    def log_prob_and_entropy(self, outputs, actions):
        return multi_categorical_log_prob_and_entropy(outputs, actions, self.nvec)


class AutoregressiveAgent(Agent):
    """P(a) = P(a_1 | s) P(a_2 | s, a_1) ... Each component has a network, which takes what `policy`
    lets through, the features, and the components before it, one-hot.

    Entropies are of each component given the stored ones before it. On average their sum is the
    entropy of the whole, but its gradient lacks how earlier components lead to later entropies.
    """

    def make_networks(self, args, input_shape, num_outputs):
        super().make_networks(args, input_shape, num_outputs)
        num_inputs = 512 if self.sees_images else input_shape[0]
        self.actor = nn.ModuleList()
        for n in self.nvec:
            # with hidden layers: a linear one could not say "as a_1 in this state, else not"
            self.actor.append(ppo.mlp(num_inputs, args.hidden_size, args.activation, n, 0.01))
            num_inputs += n

    def policy(self, features):
        return features

    def next_logits(self, features, actions):
        """Of component i, given those before it, (batch, i) -> (batch, nvec[i])."""
        i = actions.shape[1]
        one_hots = [F.one_hot(actions[:, j], self.nvec[j]) for j in range(i)]
        return self.actor[i](torch.cat([features, *one_hots], dim=1))

    def sample(self, outputs, rng, greedy=False):  # features (batch, n) -> (batch, d)
        actions = torch.zeros((len(outputs), 0), dtype=torch.int64, device=outputs.device)
        for _ in self.nvec:
            drawn = ppo.Agent.sample(self, self.next_logits(outputs, actions), rng, greedy)
            actions = torch.cat([actions, drawn[:, None]], dim=1)
        return actions

    def log_prob_and_entropy(self, outputs, actions):  # of stored actions: all components are known
        logits = [self.next_logits(outputs, actions[:, :i]) for i in range(len(self.nvec))]
        return super().log_prob_and_entropy(torch.cat(logits, dim=1), actions)


def make_agent(args, obs_space, action_space):
    nvec = []
    components = action_space if isinstance(action_space, gym.spaces.Tuple) else ()
    if isinstance(action_space, gym.spaces.MultiDiscrete):
        nvec = action_space.nvec.ravel().tolist()
    elif isinstance(action_space, gym.spaces.MultiBinary):
        nvec = [2] * math.prod(action_space.shape)
    elif all(isinstance(component, gym.spaces.Discrete) for component in components):
        nvec = [int(component.n) for component in components]
    if not nvec:
        taken = "MultiDiscrete, MultiBinary and Tuple of Discrete"
        ppo.fail(f"ppo_multidiscrete takes {taken}, not {action_space}")
    if len(obs_space.shape) == 3 and not args.autoregressive:
        ppo.refuse_typed(args, "hidden_size activation", "with images")
    agent_class = partial(AutoregressiveAgent if args.autoregressive else Agent, nvec=nvec)
    return ppo.make_agent(args, obs_space, gym.spaces.Discrete(sum(nvec)), agent_class)


if __name__ == "__main__":
    ppo.main("ppo_multidiscrete", Args, make_agent, ppo.train, ppo.evaluation_policy)
