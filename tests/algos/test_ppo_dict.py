"""ppo_dict.py: each part of an observation arrives where it belongs, and both kinds are needed."""

import gymnasium as gym
import numpy as np
import ppo
import ppo_dict
import pytest
import torch
from conftest import new_run, train
from environments import Clock, Seen
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Sequence, Tuple

BATCH = 7


def pixels(*shape, high=255):
    return Box(0, high, shape, np.uint8)


COLOUR, GREY, ON_OFF = pixels(37, 41, 3), pixels(43, 47), pixels(5, 53, 36, high=1)
ARM, MODE = Box(-np.inf, np.inf, (2,), np.float64), Discrete(3, start=1)
MANY = Dict(  # rows of 4 * 10 + 4,551 + 2,021 + 9,540 bytes: none are left over
    arm=ARM, eyes=Tuple([GREY, Dict(colour=COLOUR, mode=MODE)]), lamp=ON_OFF, on=MultiBinary(5)
)
ONE = Dict(camera=pixels(36, 37), state=Box(-1, 1, (2,), np.float32))  # 8 + 1,332 bytes
ODD = Tuple([pixels(37, 37), Box(-1, 1, (1,), np.float32)])  # 4 + 1,369 bytes, and 3 for the next


class Camera(Clock):
    """The clock, in the vector, and noise; the last observation of an episode has no numbers."""

    observation_space = ONE

    def __init__(self, space=None, last=0.5):
        super().__init__(length=3, terminates=True, space=space)
        self.last = last

    def observe(self):
        camera = self.np_random.integers(256, size=(36, 37), dtype=np.uint8)
        time = self.last if self.time == self.length else self.time
        return {"state": np.float32([time, 0.25]), "camera": camera}  # not in the space's order


SPACES = {"Many": MANY, "One": ONE, "Odd": ODD}
NO_VECTOR = {
    "ImageAlone": Dict(camera=COLOUR),
    "EmptyVector": Dict(camera=COLOUR, arm=Box(0, 1, (0,))),
}
WRONG = {
    "Image": (COLOUR, "must be a Dict or Tuple with images"),
    "Depth": (Dict(camera=COLOUR, depth=Box(0, 1, (48, 48, 1), np.float32)), "is a picture"),
    "FlatDepth": (Dict(camera=COLOUR, depth=Box(0, 1, (48, 47), np.float32)), "is a picture"),
    "Endless": (Dict(camera=COLOUR, path=Sequence(MODE)), "['path'], Sequence"),
    "Masked": (Dict(camera=COLOUR, action_mask=MultiBinary(3)), "is for ppo_mask.py"),
    "SmallImage": (Dict(camera=pixels(35, 43, 3), arm=ARM), "36 x 36 at least"),
    "SmallEndless": (Dict(camera=pixels(7, 7, 3), path=Sequence(MODE)), "36 x 36 at least"),
}
for name, space in (SPACES | NO_VECTOR | {name: wrong[0] for name, wrong in WRONG.items()}).items():
    gym.register(f"{name}Seen-v0", Seen, kwargs={"observation_space": space})
gym.register("Camera-v0", Camera)
gym.register("ArmCamera-v0", Camera, kwargs={"space": Box(-2, 1, (3,), np.float64)})
TINY = dict(num_envs=2, num_steps=8, total_timesteps=96, update_epochs=2, torch_threads=1)
TINY |= dict(checkpoint_frequency=32, eval_episodes=2)


def random_agent(space, **settings):
    torch.manual_seed(0)
    packed = ppo_dict.Packed(space)
    agent = ppo_dict.make_agent(ppo_dict.Args(hidden_size=13, **settings), packed, Discrete(3))
    for p in agent.parameters():  # none of them small, biases included
        p.data.add_(torch.randn(p.shape), alpha=0.05)
    return agent, packed


def samples(space):
    """Whose keys are in another order than those of the space."""
    space.seed(0)
    return [dict(reversed(space.sample().items())) for _ in range(BATCH)]


@pytest.mark.parametrize("rows", [slice(None), slice(3, 4), slice(1, None, 2)])
def test_every_part_comes_out_as_it_went_in(rows):
    packed, observations = ppo_dict.Packed(MANY), samples(MANY)
    assert packed.shapes == [(1, 43, 47), (3, 37, 41), (5, 53, 36)]
    assert packed.shape == (1, 1, 16152)
    batch = torch.as_tensor(np.stack([packed.pack(obs) for obs in observations]))[rows]
    vectors, grey, colour, on_off = packed.unpack(batch)
    for i, obs in enumerate(observations[rows]):
        assert grey[i, 0].tolist() == obs["eyes"][0].tolist()
        assert colour[i, 2, 5, 7] == obs["eyes"][1]["colour"][5, 7, 2]
        assert colour[i].permute(1, 2, 0).tolist() == obs["eyes"][1]["colour"].tolist()
        assert on_off[i].tolist() == obs["lamp"].tolist()
        one_hot = [float(obs["eyes"][1]["mode"] == n) for n in (1, 2, 3)]
        assert vectors[i].tolist() == [*obs["arm"].astype(np.float32), *one_hot, *obs["on"]]
    assert len(vectors) == len(observations[rows])


@pytest.mark.parametrize("name, padding", [("One", 0), ("Odd", 3)])
def test_an_environment_gives_what_it_saw(name, padding):
    env = ppo_dict.make_env(f"{name}Seen-v0")
    space = env.unwrapped.observation_space
    assert len(env.observation_space.padding) == padding
    space.seed(1)
    row, _ = env.reset()
    space.seed(1)
    expected = list(space.sample()) if name == "Odd" else [*space.sample().values()]
    vectors, image = env.observation_space.unpack(row[None])
    assert row in env.observation_space
    assert image[0, 0].tolist() == expected[0].tolist()
    assert vectors[0].tolist() == expected[1].tolist()


def test_features_are_those_of_each_image_then_the_vector():
    agent, packed = random_agent(MANY)
    obs = torch.as_tensor(np.stack([packed.pack(obs) for obs in samples(MANY)]))
    vectors, *images = packed.unpack(obs)
    with torch.no_grad():
        features = agent.features(obs)
        for i, (image, high) in enumerate(zip(images, (255, 255, 1), strict=True)):
            alone = agent.trunks[i](image.float() / high)
            torch.testing.assert_close(features[:, 512 * i : 512 * (i + 1)], alone)
            assert alone.std(dim=0).max() > 0.01
    assert features.shape == (BATCH, 3 * 512 + 10)
    torch.testing.assert_close(features[:, 3 * 512 :], vectors)
    for head, n in ((agent.actor, 3), (agent.critic, 1)):
        shapes = [tuple(layer.weight.shape) for layer in head if hasattr(layer, "weight")]
        assert shapes == [(13, 3 * 512 + 10), (13, 13), (n, 13)]


def test_norm_obs_is_for_the_vector_alone():
    agent, packed = random_agent(MANY, norm_obs=True)
    rows = np.stack([packed.pack(obs) for obs in samples(MANY)])
    before = agent.features(torch.as_tensor(rows)).detach()
    agent.obs_moments.update(rows)
    after = agent.features(torch.as_tensor(rows)).detach()
    torch.testing.assert_close(after[:, :1536], before[:, :1536])
    vectors = packed.unpack(rows)[0].numpy().astype(np.float64)
    expected = (vectors - vectors.mean(axis=0)) / np.sqrt(vectors.var(axis=0) + 1e-8)
    np.testing.assert_allclose(after[:, 1536:], expected.clip(-10, 10), rtol=1e-5, atol=1e-6)
    run = train(ppo_dict, env_id="Camera-v0", norm_obs=True, **TINY)
    moments = run.agent.obs_moments
    assert moments.count == 96  # each observation that was acted on, once
    np.testing.assert_allclose(moments.mean, [2 / 3, 0.25], atol=0.35)
    assert moments.var[1] == 0


@pytest.mark.parametrize("env_id", ["Camera-v0", "ArmCamera-v0"])
def test_processes_and_what_follows_an_end_change_nothing(env_id):
    plain = train(ppo_dict, env_id=env_id, **TINY)
    assert plain.hash() != new_run(ppo_dict, env_id=env_id, **TINY).hash()
    apart = train(ppo_dict, env_id=env_id, async_envs=True, **TINY)
    apart.envs.close()
    nan = train(ppo_dict, env_id=env_id, env_kwargs='{"last": NaN}', **TINY)
    assert plain.hash() == apart.hash() == nan.hash()


def test_small_pictures_join_the_vector():
    packed = ppo_dict.Packed(Dict(camera=COLOUR, map=pixels(5, 7)))
    obs = {"camera": np.zeros((37, 41, 3)), "map": np.arange(35, dtype=np.uint8).reshape(5, 7)}
    vectors, image = packed.unpack(packed.pack(obs)[None])
    assert image.shape == (1, 3, 37, 41)
    assert vectors[0].tolist() == list(range(35))


def test_other_spaces_are_refused(refused):
    for name, (_, text) in WRONG.items():
        short = "--total-timesteps 256 --eval-episodes 1"
        assert text in refused("ppo_dict", f"--env-id {name}Seen-v0 {short}")
    said = refused("ppo_dict", "--env-id CartPole-v1")
    assert "must be a Dict or Tuple with images" in said


@pytest.mark.parametrize("name", NO_VECTOR)
def test_images_need_no_vector_beside_them(name):
    assert train(ppo_dict, env_id=f"{name}Seen-v0", **TINY).step_count == TINY["total_timesteps"]


def test_normalised_observations_need_a_vector(refused):
    assert "has none" in refused("ppo_dict", "--env-id ImageAloneSeen-v0 --norm-obs")


@pytest.mark.slow
def test_only_both_together_open_the_doors():
    settings = dict(learning_rate=1e-3, num_minibatches=4, update_epochs=4, gamma=0.4)
    settings |= dict(total_timesteps=10_240, torch_threads=1, eval_episodes=20)
    assert train(ppo_dict, **settings).evaluate().mean() > 9
    for env_id in ("tasks:DoorsPicture-v0", "tasks:DoorsPosition-v0"):
        assert 3.5 < train(ppo, env_id=env_id, **settings).evaluate().mean() < 6.5


def test_images_of_one_shape_have_convolutions_of_their_own():
    image = Box(0, 255, (37, 41, 3), np.uint8)
    packed = ppo_dict.Packed(Dict(left=image, right=image, arm=Box(-1, 1, (2,))))
    agent = ppo_dict.make_agent(ppo_dict.Args(), packed, Discrete(3))
    left, right = (set(trunk.parameters()) for trunk in agent.trunks)
    assert left and left.isdisjoint(right)
