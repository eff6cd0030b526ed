"""PPO with networks of one's own: RLlib's convolutions, a shared trunk, batch normalisation.

Papers    batch normalisation arXiv 1502.03167; PPO as in ppo.py. It imports ppo.py, which must lie
          beside it, and holds only what differs.
Run       python algos/ppo_network.py                      CartPole-v1, with a shared trunk
          python algos/ppo_network.py --batch-norm --env-id tasks:MilliCartPole-v0
          python algos/ppo_network.py --config benchmarks/atari.toml:ppo --env-id ALE/Pong-v5

What differs from ppo.py:
- images of 84 x 84 pixels go through RLlib's convolutions, with 16, 32 and 256 channels; what is
  left is one pixel, and the policy's last layer a 1 x 1 convolution of it, as it is there;
- policy and value share all but their last layers, or, with --no-share-trunk, nothing;
- with --batch-norm each hidden layer is normalised before its activation. Acting, the old
  log-probabilities and the loss all use the running statistics, in evaluation mode, so that what
  acts is what learns; between two rollouts the last one renews them, once.
"""

import itertools
from dataclasses import dataclass
from functools import partial

import ppo
import torch
from torch import nn

MOMENTUM = 0.02  # of running statistics: torch's 0.1 changes the policy too much between rollouts


@dataclass
class Args(ppo.RunArgs):
    share_trunk: bool = True
    """Policy and value share all but their last layers."""
    batch_norm: bool = False
    """Normalises what each hidden layer gives out, before its activation."""

    def check(self):
        super().check()
        if self.bf16 and not self.share_trunk:
            ppo.fail("bf16 is for convolutions that policy and value share")


def hidden_layers(args, input_shape):
    """Two for vectors: (batch, inputs) -> (batch, hidden_size)."""
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[args.activation]
    layers, sizes = [], (*input_shape, args.hidden_size, args.hidden_size)
    for num_inputs, num_outputs in itertools.pairwise(sizes):
        norm = [nn.BatchNorm1d(num_outputs, momentum=MOMENTUM)] if args.batch_norm else []
        layers += [ppo.initialise(nn.Linear(num_inputs, num_outputs)), *norm, activation()]
    return layers


def convolutions(args, image_shape):
    """RLlib's, rllib/models/torch/visionnet.py: (batch, n, 84, 84) -> (batch, 256, 1, 1)."""
    if image_shape[1:] != (84, 84):  # what they leave exactly one pixel of
        ppo.fail(f"ppo_network takes images of 84 x 84 pixels, not {image_shape[1:]}")
    # padded as by TensorFlow's "same": 84 pixels to 88, then 21 to 24, the odd ones at the end
    sizes = (image_shape[0], 16, 8, 4), (16, 32, 4, 2), (32, 256, 11, 1)
    layers = []
    for padding, size in zip(((2, 2, 2, 2), (1, 2, 1, 2), None), sizes, strict=True):
        norm = [nn.BatchNorm2d(size[1], momentum=MOMENTUM)] if args.batch_norm else []
        convolution = ppo.initialise(nn.Conv2d(*size))
        layers += [nn.ZeroPad2d(padding)] if padding else []
        layers += [convolution, *norm, nn.ReLU(inplace=True)]
    return layers


class Agent(ppo.Agent):
    """ppo's, with other networks. `make_networks` is the place for yours."""

    def make_networks(self, args, input_shape, num_outputs):
        def hidden():  # new layers at each call: two networks must not share them by mistake
            make = convolutions if self.sees_images else hidden_layers
            return make(args, input_shape)

        def policy_head():
            if self.sees_images:
                return ppo.initialise(nn.Conv2d(256, num_outputs, 1), 0.01), nn.Flatten()
            return (ppo.initialise(nn.Linear(args.hidden_size, num_outputs), 0.01),)

        def value_head():
            if self.sees_images:
                return nn.Flatten(), ppo.initialise(nn.Linear(256, 1), 1.0)
            return (ppo.initialise(nn.Linear(args.hidden_size, 1), 1.0),)

        if args.share_trunk:
            self.trunk = ppo.Layers(*hidden())
            self.actor, self.critic = ppo.Layers(*policy_head()), ppo.Layers(*value_head())
        else:
            self.trunk = ppo.Layers()  # of no layers: gives out what it gets
            self.actor = ppo.Layers(*hidden(), *policy_head())
            self.critic = ppo.Layers(*hidden(), *value_head())
        self.batch_norm = args.batch_norm
        self.eval()  # for good, but for end_rollout: a module begins in training mode

    def features(self, obs):  # (batch, *obs_shape) -> what policy and value take
        features = super().features(obs)  # of images, what the trunk makes of them
        return features if self.sees_images else self.trunk(features)

    @torch.no_grad()
    def end_rollout(self, obs):  # (steps, envs, *obs_shape), after the update
        """Moves running means and variances a step to those of the rollout."""
        super().end_rollout(obs)
        if self.batch_norm:
            self.train()
            features = self.features(torch.as_tensor(obs, device=self.device).flatten(0, 1))
            self.policy(features), self.value(features)
            self.eval()


make_agent = partial(ppo.make_agent, agent_class=Agent)

if __name__ == "__main__":
    ppo.main("ppo_network", Args, make_agent, ppo.train, ppo.evaluation_policy)
