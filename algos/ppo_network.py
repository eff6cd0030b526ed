"""PPO with networks of one's own: RLlib's convolutions, IMPALA's residual network, a shared trunk,
batch normalisation.

Papers    batch normalisation arXiv 1502.03167, IMPALA arXiv 1802.01561; PPO as in ppo.py. It
          imports ppo.py, which must lie beside it, and holds only what differs.
Run       python algos/ppo_network.py                      CartPole-v1, with a shared trunk
          python algos/ppo_network.py --batch-norm --env-id tasks:MilliCartPole-v0
          python algos/ppo_network.py --config benchmarks/atari.toml:ppo --env-id ALE/Pong-v5

What differs from ppo.py:
- images of 84 x 84 pixels go through RLlib's convolutions, with 16, 32 and 256 channels; what is
  left is one pixel, and the policy's last layer a 1 x 1 convolution of it, as it is there;
- with --impala images of any size go through IMPALA's residual network, without its memory;
- policy and value share all but their last layers, or, with --no-share-trunk, nothing;
- with --batch-norm each hidden layer is normalised before its activation, by running statistics in
  the loss, too: by a minibatch's own an observation would mean something else beside others. Each
  rollout renews them once, when the log-probabilities that acted are known and before the update:
  what learns is what acts next, and the ratio of new to old counts this change as well.
"""

from dataclasses import dataclass
from functools import partial

import ppo
import torch
from torch import nn

MOMENTUM = 0.02  # of running statistics: torch's 0.1 changes the policy too much between rollouts
BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d


@dataclass
class Args(ppo.RunArgs):
    share_trunk: bool = True  # Policy and value share all but their last layers.
    batch_norm: bool = False  # Normalises what hidden layers give out, before their activations.
    impala: bool = False  # Images: IMPALA's residual network instead of RLlib's convolutions.

    def check(self):
        super().check()
        if self.bf16 and not self.share_trunk:
            ppo.fail("bf16 is for convolutions that policy and value share")
        if self.impala and self.batch_norm:
            ppo.fail("batch_norm is not for the residual network of impala")


@torch.no_grad()
def make_batch(agent, buffer, args, running_returns):
    """ppo's; then moves running means and variances a step to those of the rollout."""
    batch, running_returns = ppo.rollout_batch(agent, buffer, args, running_returns)
    normalised = any(isinstance(layer, BATCH_NORMS) for layer in agent.modules())
    if normalised and len(batch["obs"]) > 1:  # a single observation has no variance
        agent.train(False, renew=True)
        agent.evaluate_actions(batch)
        agent.eval()
    return batch, running_returns


def hidden_layers(args, input_shape):
    """Two for vectors: (batch, inputs) -> (batch, hidden_size)."""
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[args.activation]
    layers = []
    n = args.hidden_size
    for num_inputs in (*input_shape, n):
        norm = [nn.BatchNorm1d(n, momentum=MOMENTUM)] if args.batch_norm else []
        layers += [ppo.initialise(nn.Linear(num_inputs, n)), *norm, activation()]
    return layers


def convolutions(args, image_shape):
    """RLlib's, rllib/models/torch/visionnet.py: (batch, n, 84, 84) -> (batch, 256, 1, 1)."""
    if image_shape[1:] != (84, 84):  # what they leave exactly one pixel of
        ppo.fail(f"ppo_network takes images of 84 x 84 pixels, not {image_shape[1:]}")
    # padded as by TensorFlow's "same": 84 pixels to 88, then 21 to 24, the odd ones at the end
    layers = []
    sizes = (image_shape[0], 16, 8, 4), (16, 32, 4, 2), (32, 256, 11, 1)
    for padding, size in zip(((2, 2, 2, 2), (1, 2, 1, 2), None), sizes, strict=True):
        norm = [nn.BatchNorm2d(size[1], momentum=MOMENTUM)] if args.batch_norm else []
        layers += [nn.ZeroPad2d(padding)] if padding else []
        layers += [ppo.initialise(nn.Conv2d(*size)), *norm, nn.ReLU(inplace=True)]
    return layers


class Residual(nn.Module):
    """x + conv(ReLU(conv(ReLU(x)))): (batch, channels, h, w) -> the same."""

    def __init__(self, channels: int):
        super().__init__()
        convs = [ppo.initialise(nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(2)]
        self.layers = nn.Sequential(nn.ReLU(), convs[0], nn.ReLU(), convs[1])

    def forward(self, x):
        return x + self.layers(x)


def impala_layers(args, image_shape):
    """The large network of arXiv 1802.01561, figure 3, without LSTM: (batch, n, h, w) -> (batch,
    256). Each of three blocks halves height and width.
    """
    channels, *size = image_shape
    layers = []
    for n in (16, 32, 32):
        layers += [ppo.initialise(nn.Conv2d(channels, n, 3, padding=1))]
        layers += [nn.MaxPool2d(3, stride=2, padding=1), Residual(n), Residual(n)]
        channels = n
        size = [(pixels + 1) // 2 for pixels in size]
    last = ppo.initialise(nn.Linear(channels * size[0] * size[1], 256))
    return [*layers, nn.ReLU(), nn.Flatten(), last, nn.ReLU()]


class Agent(ppo.Agent):
    """ppo's, with other networks. `make_networks` is the place for yours."""

    def make_networks(self, args, input_shape, num_outputs):
        images = self.sees_images
        if images:
            ppo.refuse_typed(args, "hidden_size activation", "with images")
            make = impala_layers if args.impala else convolutions
        else:
            ppo.refuse_typed(args, "impala", "with vectors")
            make = hidden_layers

        def hidden(wanted):  # new layers at each call: two networks must not share by mistake
            return make(args, input_shape) if wanted else []

        share = args.share_trunk
        self.trunk = nn.Sequential(*hidden(share))  # of no layers it gives out what it gets
        self.actor = nn.Sequential(*hidden(not share))
        pixel = make is convolutions  # what they give out is an image of one pixel
        n = 256 if images else args.hidden_size
        last = nn.Conv2d(n, num_outputs, 1) if pixel else nn.Linear(n, num_outputs)
        flatten = [nn.Flatten()] if pixel else []
        self.actor.extend([ppo.initialise(last, 0.01), *flatten])
        self.critic = nn.Sequential(*hidden(not share), *flatten)
        self.critic.append(ppo.initialise(nn.Linear(n, 1), 1.0))

    def features(self, obs):  # (batch, *obs_shape) -> what policy and value take
        features = super().features(obs)  # of images, what the trunk makes of them
        return features if self.sees_images else self.trunk(features)

    def train(self, mode=True, renew=False):  # torch's eval() calls it, too
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, BATCH_NORMS):
                layer.train(renew)
        return self


make_agent = partial(ppo.make_agent, agent_class=Agent)
train = partial(ppo.train, make_batch=make_batch)

if __name__ == "__main__":
    ppo.main("ppo_network", Args, make_agent, train, ppo.evaluation_policy)
