"""DQN with noisy layers: in place of random actions it explores by noise in the network's weights,
whose size it learns. With all switches on it is Rainbow.

Papers    noisy layers arXiv 1706.10295, the factorised kind; Rainbow arXiv 1710.02298; DQN and its
          switches as in dqn.py, prioritised replay as in dqn_prioritised.py.
Run       python algos/dqn_noisy.py                                                  CartPole-v1
          python algos/dqn_noisy.py --double --dueling --n-step 3 --n-atoms 51 \\
              --priority-exponent 0.5                                                Rainbow

It imports dqn.py and dqn_prioritised.py, which must lie beside it, and holds only what differs:
- linear layers behind the trunk have the weights mu + sigma * noise, and learn both mu and sigma;
- each pass through a network draws noise of its own: when the agent acts, and in each gradient step
  for Q, for its targets, and for the choice of actions by --double;
- after the first `learning_starts` steps no action is random;
- evaluations play by mu alone.
"""

import math
from dataclasses import dataclass
from functools import partial

import dqn
import dqn_prioritised
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args(dqn_prioritised.Args):
    sigma_0: float = 0.5  # Of a layer with p inputs sigma is at the start this over the root of p.
    start_e: float = 0.0  # Probability of a random action beside the noise, at the start.
    end_e: float = 0.0  # The same at the end of its linear schedule.
    priority_exponent: float = 0.0  # 0 replays all steps alike, 1 in proportion to errors.

    def check(self):
        super().check()
        dqn.require_range(self, "sigma_0", high=1e6)


def train(args: Args, run: dqn.Run):
    if args.priority_exponent == 0:  # without the sum tree, which takes time
        return dqn.train(args, run)
    dqn_prioritised.train(args, run)


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * f(e_out) f(e_in)^T) x + mu_b + sigma_b * f(e_out); the noise e_in
    (inputs,) and e_out (outputs,) is new in every pass, and one for all rows. Equations 9 to 11.
    """

    def __init__(self, mu: nn.Linear, sigma_0: float):
        super().__init__()
        self.mu = mu  # starts as dqn's layer: uniform in +-1 / sqrt(inputs), as in section 3.2
        sigma = sigma_0 / math.sqrt(mu.in_features)
        self.weight_sigma = nn.Parameter(torch.full_like(mu.weight, sigma))
        if mu.bias is not None:
            self.bias_sigma = nn.Parameter(torch.full_like(mu.bias, sigma))
        self.noisy = True  # whether or not in training mode: the agent acts in evaluation mode

    def forward(self, x):  # (batch, inputs) -> (batch, outputs)
        if not self.noisy:
            return self.mu(x)
        # by the CPU's generator, whose state is in checkpoints
        of_inputs = noise_factor(torch.randn(self.mu.in_features)).to(x.device)
        of_outputs = noise_factor(torch.randn(self.mu.out_features)).to(x.device)
        weight = self.mu.weight + self.weight_sigma * torch.outer(of_outputs, of_inputs)
        bias = self.mu.bias
        if bias is not None:
            bias = bias + self.bias_sigma * of_outputs
        return F.linear(x, weight, bias)


def noise_factor(noise):
    """f(e) = sign(e) sqrt(|e|), below equation 11; any shape."""
    return noise.sign() * noise.abs().sqrt()


class QNetwork(dqn.QNetwork):
    """dqn's, with noise in what follows the trunk: in q_head, or in a dueling network's two heads.

    The paper has convolutions before it. On CartPole noise in the trunk, too, was worse.
    """

    def __init__(self, args, obs_space, num_actions):
        super().__init__(args, obs_space, num_actions)
        for name, child in self.named_children():
            if name != "trunk":
                setattr(self, name, with_noise(child, args.sigma_0))


def with_noise(module: nn.Module, sigma_0: float) -> nn.Module:
    """The module, with a noisy layer in the place of each linear one, at any depth."""
    if isinstance(module, nn.Linear):
        if type(module).forward is not nn.Linear.forward:
            dqn.fail(f"the noise would replace the forward of {type(module).__name__}")
        return NoisyLinear(module, sigma_0)
    for name, child in module.named_children():
        setattr(module, name, with_noise(child, sigma_0))
    return module


def evaluation_policy(agent, rng, args):
    """By mu alone; between its actions the agent, which goes on learning, has its noise."""
    policy = dqn.evaluation_policy(agent, rng, args)
    layers = [module for module in agent.modules() if isinstance(module, NoisyLinear)]

    def without_noise(obs):
        for layer in layers:
            layer.noisy = False
        actions = policy(obs)
        for layer in layers:
            layer.noisy = True
        return actions

    return without_noise


make_agent = partial(dqn.make_agent, network_class=QNetwork)

if __name__ == "__main__":
    dqn.main("dqn_noisy", Args, make_agent, train, evaluation_policy)
