"""Parallelised Q-network (PQN): Q-learning on fresh rollouts of parallel environments, without a
replay buffer or a target network. Layer normalisation keeps it from diverging.

Papers    PQN arXiv 2407.04811; layer normalisation arXiv 1607.06450; rollouts as in ppo.py.
Run       python algos/ppo_pqn.py                          CartPole-v1
          python algos/ppo_pqn.py --no-layer-norm          what the normalisation is for

It imports ppo.py, which must lie beside it, and holds only what differs:
- one network gives Q(s, a) of every action; V(s) is the largest of them, and the policy takes that
  action, or with probability epsilon any;
- the targets are the paper's lambda-returns, R_t = r_t + gamma [(1 - lambda) V(s_{t+1}) + lambda
  R_{t+1}]. With this V they are V(s_t) plus ppo's advantage, so ppo computes them;
- the loss is half the mean of (Q(s_t, a_t) - R_t)^2; the optimizer is RAdam. There is no ratio of
  probabilities, so ppo's curves of one, approx_kl and clipfrac, stay at 0.
Unlike the paper's, an episode cut by a time limit is bootstrapped from its true last observation,
as in ppo.py, and by default the learning rate is larger and rollouts have fewer environments.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import gymnasium as gym
import numpy as np
import ppo
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    learning_rate: float = 2e-3  # RAdam's step size, at the start.
    gamma: float = 0.99  # Discount factor.
    gae_lambda: float = 0.65  # Of the lambda-returns; 0: one reward and V, 1: all rewards.
    num_minibatches: int = 4  # Minibatches in one epoch.
    update_epochs: int = 4  # Passes over each rollout.
    max_grad_norm: float = 10.0  # Largest norm of the gradient of all parameters together.
    hidden_size: int = 128  # Width of both hidden layers of a network for vectors.
    activation: Literal["tanh", "relu"] = "relu"  # After each of those layers.
    layer_norm: bool = True  # Normalises what each hidden layer gives out, before its activation.
    start_e: float = 1.0  # Probability of a random action at the start.
    end_e: float = 0.1  # Probability of a random action at the end of its linear schedule.
    exploration_fraction: float = 0.5  # Length of that schedule, as a share of total_timesteps.
    # no flags: there is neither a ratio to clip, nor an entropy, nor a Gaussian
    norm_adv: ClassVar = False
    clip_coef: ClassVar = 0.0
    anneal_clip: ClassVar = False
    clip_vloss: ClassVar = False
    ent_coef: ClassVar = 0.0
    vf_coef: ClassVar = 1.0
    target_kl: ClassVar = None
    log_std_init: ClassVar = 0.0

    def check(self):
        super().check()
        ppo.require_range(self, "start_e end_e exploration_fraction", high=1)
        if self.start_e == self.end_e:
            ppo.refuse_typed(self, "exploration_fraction", f"with start_e = end_e = {self.end_e}")


def train(args: Args, run: ppo.Run):
    optimizer = torch.optim.RAdam(run.agent.parameters(), lr=args.learning_rate)
    ppo.train(args, run, optimizer=optimizer, collect=collect, loss_of=pqn_loss)


def collect(agent, run, args):
    """ppo's step of every environment, with the epsilon of this step."""
    explored = max(1, args.exploration_fraction * args.total_timesteps)
    agent.epsilon = ppo.linear_schedule(args.start_e, args.end_e, explored, run.step_count)
    run.log({"charts/epsilon": agent.epsilon})
    return ppo.collect_step(agent, run, args)


def pqn_loss(agent, minibatch, args, clip_coef):
    """Half the mean of (Q(s, a) - R)^2, a scalar; its terms by name; no ratio, (batch,)."""
    q_values, _, values = agent.evaluate_actions(minibatch)
    returns = minibatch["returns"]
    assert q_values.shape == returns.shape, (q_values.shape, returns.shape)
    loss = 0.5 * F.mse_loss(q_values, returns)
    terms = {"td_loss": loss, "q_values": q_values.mean(), "values": values.mean()}
    return loss, terms, torch.zeros_like(returns)


class Agent(ppo.Agent):
    """Q of every action; `policy` gives it, to acting and to targets. Edit that to change both."""

    epsilon = 0.0  # probability of a random action, which `collect` sets

    def make_networks(self, args, input_shape, num_outputs):
        if self.sees_images:
            network = ppo.nature_cnn(input_shape)
        else:
            network = ppo.mlp(
                *input_shape, args.hidden_size, args.activation, num_outputs, gain=1.0
            )
        if args.layer_norm:
            network = with_layer_norm(network, input_shape)
        if self.sees_images:  # what `features` goes through
            self.trunk = network
            network = ppo.initialise(nn.Linear(512, num_outputs), 1.0)
        self.q_network = network

    def policy(self, features):  # (batch, n) -> Q (batch, actions)
        return self.q_network(features)

    def value(self, features):  # (batch, n) -> (batch,)
        return self.policy(features).max(dim=1).values

    def sample(self, outputs, rng, greedy=False):  # Q (batch, actions) -> (batch,)
        actions = outputs.argmax(dim=1)
        if greedy:
            return actions
        explore = rng.random(len(outputs)) < self.epsilon
        anything = rng.integers(outputs.shape[1], size=len(outputs))
        return torch.as_tensor(np.where(explore, anything, actions.cpu()))

    def evaluate_actions(self, batch):
        """Q(s, a) of the steps in `batch`, where ppo has log pi(a); no entropy; V(s). (batch,)."""
        q_values = self.policy(self.features(batch["obs"]))
        taken = q_values.gather(1, batch["actions"][:, None]).squeeze(1)
        return taken, None, q_values.max(dim=1).values


def with_layer_norm(layers, input_shape):
    """The layers, and after each with weights, but the last, a normalisation over all its units."""
    x = torch.zeros(1, *input_shape)
    result = []
    for layer in layers.eval():  # of a single row batch normalisation could learn nothing
        if list(layer.children()):
            ppo.fail(f"within {type(layer).__name__} add nn.LayerNorm, and --no-layer-norm")
        x = layer(x)
        result.append(layer)
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer is not layers[-1]:
            result.append(nn.LayerNorm(x.shape[1:]))
    return nn.Sequential(*result).train()


def make_agent(args, obs_space, action_space):
    if not isinstance(action_space, gym.spaces.Discrete):
        ppo.fail(f"actions must be Discrete, not {action_space}")
    if len(obs_space.shape) == 3:
        ppo.refuse_typed(args, "hidden_size activation", "with images")
    return ppo.make_agent(args, obs_space, action_space, Agent)


def evaluation_policy(agent, rng, args):  # greedy in games, too
    return lambda obs: agent.to_env(agent.act(obs, rng, greedy=True))


if __name__ == "__main__":
    ppo.main("ppo_pqn", Args, make_agent, train, evaluation_policy)
