"""PPO that sees images and vectors together: Dict and Tuple observations, such as the cameras and
the joints of a robot.

Papers    convolutions doi 10.1038/nature14236; PPO as in ppo.py.
Run       python algos/ppo_dict.py --config variants             tasks:Doors-v0
          python algos/ppo_dict.py --norm-obs --env-id mypackage.envs:Robot-v0

It imports ppo.py, which must lie beside it, and holds only what differs:
- a part of an observation is an image if it is a Box of uint8 of 36 x 36 or more; each image has
  convolutions of its own, those of ppo. The other parts are flattened into one vector, as in ppo;
- policy and value are ppo's networks for vectors. What they take is the 512 features of each image
  and the vector, side by side. Without hidden layers they could not say "left if the image shows
  this, else right";
- an observation travels as one row of bytes, in which an image takes no more memory than elsewhere.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import gymnasium as gym
import numpy as np
import ppo
import torch
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:Doors-v0"  # Environment whose observations have images and vectors.
    bf16: ClassVar = False  # no flag


def leaves(space, obs):
    """[(space, observation), ...] of the parts, nested ones too, in the order of the space."""
    if isinstance(space, gym.spaces.Dict):
        pairs = [(part, obs[name]) for name, part in space.items()]
    elif isinstance(space, gym.spaces.Tuple):
        pairs = list(zip(space, obs, strict=True))
    else:
        return [(space, obs)]
    return [leaf for pair in pairs for leaf in leaves(*pair)]


def is_image(space):
    pixels = isinstance(space, gym.spaces.Box) and space.dtype == np.uint8
    return pixels and len(space.shape) > 1 and sorted(space.shape)[-2] >= 36


class Packed(gym.spaces.Box):
    """Observations of another space as rows of bytes: float32 of the vector, then the images.

    To the plumbing a row is an image of shape (1, 1, n), so these agents, too, train on a GPU.
    """

    def __init__(self, space):
        parts = [part for part, _ in leaves(space, space)]
        images = [part for part in parts if is_image(part)]
        self.space = space
        self.pixel_max = [float(part.high.max()) for part in images]
        self.shapes = [ppo.channels_first(np.zeros(part.shape)).shape for part in images]
        vectors = [part for part in parts if not is_image(part)]
        self.vector_size = sum(map(gym.spaces.flatdim, vectors)) or 1  # a zero where there is none
        num_bytes = 4 * self.vector_size + sum(map(math.prod, self.shapes))
        self.padding = np.zeros(-num_bytes % 4, np.uint8)  # every row begins where a float32 may
        super().__init__(0, 255, (1, 1, num_bytes + len(self.padding)), np.uint8)

    def pack(self, obs):
        """An observation of `space` -> (1, 1, n), a new array."""
        parts = leaves(self.space, obs)
        vector = [gym.spaces.flatten(part, x) for part, x in parts if not is_image(part)]
        images = [np.asarray(x, np.uint8) for part, x in parts if is_image(part)]
        pixels = [ppo.channels_first(image).ravel() for image in images]
        numbers = np.concatenate([np.zeros(0), *vector])
        floats = np.zeros(self.vector_size, np.float32)
        floats[: len(numbers)] = numbers
        row = np.concatenate([floats.view(np.uint8), *pixels, self.padding])
        return row.reshape(self.shape)

    def unpack(self, rows):
        """(batch, 1, 1, n) -> vectors (batch, vector_size), then of each image (batch, *shape)."""
        rows = torch.as_tensor(rows).flatten(1)
        sizes = [4 * self.vector_size, *map(math.prod, self.shapes), len(self.padding)]
        _, *images, _ = rows.split(sizes, dim=1)
        images = [x.reshape(-1, *shape) for x, shape in zip(images, self.shapes, strict=True)]
        return rows.view(torch.float32)[:, : self.vector_size], *images


class VectorMoments(ppo.RunningMoments):
    """ppo's, of the vectors in rows of bytes."""

    def __init__(self, packed):
        super().__init__((packed.vector_size,))
        self.packed = packed

    def update(self, rows):
        super().update(self.packed.unpack(rows)[0])


class Agent(ppo.Agent):
    """ppo's for vectors, with convolutions for each image in front."""

    def __init__(self, args, obs_space, action_space, packed):
        self.packed = packed
        super().__init__(args, obs_space, action_space)
        if args.norm_obs:
            self.obs_moments = VectorMoments(packed)

    def make_networks(self, args, input_shape, num_outputs):
        self.trunks = nn.ModuleList(ppo.nature_cnn(shape) for shape in self.packed.shapes)
        num_features = 512 * len(self.trunks) + input_shape[0]
        super().make_networks(args, (num_features,), num_outputs)

    def features(self, obs):  # (batch, 1, 1, n) -> (batch, 512 per image + vector_size)
        vector, *images = self.packed.unpack(obs)
        features = []
        for trunk, image, high in zip(self.trunks, images, self.packed.pixel_max, strict=True):
            image = image.to(torch.float32, memory_format=torch.channels_last) / high
            features.append(trunk(image))
        return torch.cat([*features, super().features(vector)], dim=1)


def make_env(env_id, **keywords):
    """One environment, whose observations are packed. A wrapper of yours belongs below gym.make."""
    ppo.before_making(env_id)
    env = gym.make(env_id, **keywords)
    with ppo.closed_on_error([env]):
        space = env.observation_space
        parts = ppo.parts_of(space, "observation")
        if is_image(space) or not any(is_image(part) for _, part in parts):
            wanted = "a Dict or Tuple with images of uint8, 36 x 36 at least"
            ppo.fail(f"{env_id}: observations must be {wanted}, not {space}")
        if "action_mask" in space.spaces:
            ppo.fail(f"{env_id}: an action_mask is for ppo_mask.py, which takes no images")
        for name, part in parts:
            error = "" if is_image(part) else ppo.why_no_vector(part, alone=False)
            if error:
                ppo.fail(f"{env_id}: {name}, {part}, {error}")
        packed = Packed(space)
        return ppo.Converted(env, packed.pack, packed)


make_envs = partial(ppo.make_envs, make_env=make_env)


def make_agent(args, obs_space, action_space):
    if not isinstance(obs_space, Packed):  # of games, which make_env does not make
        ppo.fail(f"observations must be a Dict or Tuple with images, not {obs_space}")
    if args.norm_obs and all(is_image(part) for _, part in ppo.parts_of(obs_space.space, "")):
        ppo.fail(f"norm_obs is for vectors, and {obs_space.space} has none")
    vectors = gym.spaces.Box(-np.inf, np.inf, (obs_space.vector_size,), np.float32)
    return ppo.make_agent(args, vectors, action_space, partial(Agent, packed=obs_space))


if __name__ == "__main__":
    ppo.main("ppo_dict", Args, make_agent, ppo.train, ppo.evaluation_policy, make_envs)
