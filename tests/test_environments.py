"""Every kind of environment as the agent meets it: images, Atari, PyBullet, other spaces, video."""

import random
import subprocess
import sys

import ale_py
import environments
import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import ROOT, only_run
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

gym.register_envs(ale_py)
NEXT_STEP = gym.vector.AutoresetMode.NEXT_STEP


def arguments(env_id, **settings):
    return ppo.RunArgs(env_id=env_id, torch_threads=1, **settings)


@pytest.mark.parametrize(
    "name, channels", [("Colour-v0", 3), ("Grey-v0", 1), ("FourChannels-v0", 4)]
)
def test_images_become_channel_first(name, channels):
    env = ppo.make_env(f"environments:{name}")
    assert env.observation_space == gym.spaces.Box(0, 255, (channels, 37, 41), np.uint8)
    env.reset()
    image, *_ = env.step(0)
    c, row, column = channels - 1, 5, 7
    assert image.dtype == np.uint8 and image[c, row, column] == row + 2 * column + 3 * c + 1


def test_upright_images_stay_upright():
    assert ppo.make_env("environments:UprightGrey-v0").observation_space.shape == (1, 41, 37)


def test_images_of_0_and_1_have_the_whole_range():
    """Networks divide by 255: of 0 and 1 they would see hardly a difference."""
    env = ppo.make_env("environments:Mask-v0")
    obs, _ = env.reset()
    assert obs.dtype == np.uint8 and obs.shape == (1, 37, 41)
    assert obs[0, 0, :3].tolist() == [255, 0, 255]


@pytest.mark.parametrize("name, channels", [("Colour-v0", 3), ("Grey-v0", 1)])
def test_stacked_images_become_channels(name, channels, monkeypatch):
    def stacked(env_id, **keywords):
        return FrameStackObservation(plain(env_id, **keywords), 2)

    plain = gym.make
    monkeypatch.setattr(ppo.gym, "make", stacked)
    env = ppo.make_env(f"environments:{name}")
    assert env.observation_space == gym.spaces.Box(0, 255, (2 * channels, 37, 41), np.uint8)
    env.reset()
    image, *_ = env.step(0)  # the channels of time 0, then those of time 1
    c, row, column = channels - 1, 5, 7
    assert image[c, row, column] == row + 2 * column + 3 * c
    assert image[channels + c, row, column] == row + 2 * column + 3 * c + 1


def test_atari_is_the_same_with_and_without_its_package_in_the_id():
    assert arguments("ale_py:ALE/Pong-v5").env_id == "ALE/Pong-v5"


def test_infos_of_any_form_end_no_run():
    envs = ppo.make_envs(arguments("environments:Telling-v0"), 3)
    envs.reset(seed=[0, 1, 2])
    for t in range(1, 12):
        *_, info = envs.step(np.zeros(3, np.int64))
        # whatever else has that name
        assert list(info["final_obs"]) == ([0, 1, 2] if t % 5 == 0 else [])


def test_a_last_observation_is_kept_where_the_environment_writes_over_it():
    envs = ppo.make_envs(arguments("environments:Reusing-v0"), 3)
    envs.reset(seed=[0, 1, 2])
    for _ in range(5):
        obs, _, _, truncated, info = envs.step(np.zeros(3, np.int64))
    assert truncated.all() and not obs.any()
    assert [final.item() for final in info["final_obs"].values()] == [1, 1, 1]


def test_a_reset_rules_the_generators_of_all():
    envs = ppo.make_envs(arguments("environments:Global-v0"), 3)

    def rewards():
        ppo.reset(envs, 1, 0)
        return [envs.step(np.zeros(3, np.int64))[1].tolist() for _ in range(7)]

    first = rewards()
    for generator in (random, np.random):
        generator.seed(5)
        assert rewards() == first


def test_small_images_are_refused(script, tmp_path):
    result = script("ppo", "--env-id", "environments:Tiny-v0", ok=False)
    assert result.status == 2 and "36 x 36 pixels or larger, not 35 x 41" in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("height, width", [(36, 36), (42, 42), (84, 84), (37, 97)])
def test_the_cnn_takes_images_of_any_size(height, width):
    agent = ppo.Agent((3, height, width), num_actions=5)
    images = torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)
    policy, values = agent(images)
    assert policy.shape == (2, 5) and values.shape == (2,)
    by_hand = agent.trunk(images.float() / 255)
    torch.testing.assert_close(policy, agent.actor(by_hand))
    torch.testing.assert_close(values, agent.critic(by_hand)[:, 0])


def test_the_nature_cnn_has_its_published_shapes():
    agent = ppo.Agent((4, 84, 84), num_actions=6)
    shapes = [tuple(p.shape) for name, p in agent.named_parameters() if "weight" in name]
    cnn = [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]
    assert shapes == [*cnn, (6, 512), (1, 512)]


@pytest.mark.parametrize("name", ["Precise-v0", "Coarse-v0"])
def test_actions_at_the_bounds_are_inside_them_in_float64_and_float16(name):
    envs = ppo.make_envs(arguments(f"environments:{name}"), 3)
    _, space = ppo.agent_spaces(envs)
    assert space.dtype == np.float32
    agent = ppo.Agent((1,), action_low=space.low, action_high=space.high)
    envs.reset(seed=[0, 1, 2])
    for action in np.float32([[-2], [0.5], [2]]), np.float32([[2], [-2], [1]]):
        envs.step(agent.to_env(action))


def test_discrete_observations_become_one_hot():
    env = ppo.make_env("FrozenLake-v1")
    obs, _ = env.reset(seed=0)
    assert obs.tolist() == [1.0] + [0.0] * 15
    env = ppo.make_env("Blackjack-v1")
    assert env.observation_space.shape == (32 + 11 + 2,)


def test_dict_observations_are_flattened_and_can_be_recovered():
    env = ppo.make_env("environments:Mixed-v0")
    env.reset()
    obs, *_ = env.step(1)
    assert obs.tolist() == pytest.approx([0.2, 0, 1, 0])
    recovered = gym.spaces.unflatten(environments.Mixed.observation_space, obs)
    assert recovered["clock"] == pytest.approx(0.2) and recovered["colour"] == 1


@pytest.mark.parametrize(
    "env_id",
    "FrozenLake-v1 Taxi-v4 Blackjack-v1 Acrobot-v1 LunarLander-v3 LunarLanderContinuous-v3 "
    "HalfCheetah-v5 Ant-v5 HalfCheetahBulletEnv-v0 environments:Mixed-v0 environments:Colour-v0 "
    "environments:ShortCarRacing-v0 environments:Narrow-v0 environments:NarrowFrom0-v0 "
    "environments:Scalar-v0 environments:HalfOpen-v0".split(),
)
def test_ppo_trains_saves_evaluates(script, env_id, tmp_path):
    settings = "--total-timesteps 64 --num-envs 2 --num-steps 16 --eval-episodes 1".split()
    trained = script("ppo", "--env-id", env_id, *settings)
    assert "argv" not in trained.out and trained.err == ""
    evaluated = script("ppo", "--evaluate", only_run(tmp_path))
    assert evaluated.line("evaluation") == trained.line("evaluation")
    assert evaluated.hash == trained.hash
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]  # no MUJOCO_LOG.TXT


def test_mujoco_writes_no_log_beside_an_environment_of_ones_own(script, tmp_path):
    script("ppo", "--env-id", "runners:Runner-v0", "--total-timesteps", 128)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_atari_observations_equal_those_of_gymnasium():
    """Frame by frame, until the game is over. Without the random no-ops, which differ by design."""
    ours = ppo.make_atari(arguments("ALE/Pong-v5"), 1, False, noop_max=0, use_fire_reset=False)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    env = AtariPreprocessing(env, noop_max=0)
    theirs = FrameStackObservation(env, 4, padding_type="zero")
    rng = np.random.default_rng(0)
    (obs, _), (expected, _) = ours.reset(seed=[3]), theirs.reset(seed=3)
    np.testing.assert_array_equal(obs[0], expected)
    over, steps = False, 0
    while not over:
        action = rng.integers(6)
        obs, rewards, terminated, truncated, info = ours.step(np.array([action]))
        expected, reward, end, cut, _ = theirs.step(action)
        over = end or cut
        assert (rewards[0], terminated[0], truncated[0]) == (reward, end, cut)
        assert list(info["final_obs"]) == ([0] if over else [])
        np.testing.assert_array_equal(info["final_obs"][0] if over else obs[0], expected)
        steps += 1
    assert steps > 700


def test_lost_lives_end_episodes_but_not_the_score(tmp_path):
    args = arguments("ALE/Breakout-v5", episodic_life=True, runs_dir=str(tmp_path), num_envs=2)
    run = ppo.Run(args)
    run.started = 0.0
    whole = gym.make_vec(
        "ALE/Breakout-v5",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        autoreset_mode=NEXT_STEP,
        reward_clipping=False,
        repeat_action_probability=0.0,
    )
    run.reset_envs()
    whole.reset(seed=np.array(ppo.env_seeds(2, 1, 0), np.int32))
    rng = np.random.default_rng(0)
    scores, done, lives_lost = np.zeros(2), np.zeros(2, bool), np.zeros(2)
    while not done.all():
        actions = rng.integers(4, size=2)
        next_obs, rewards, terminated, _, successors = run.step(actions)
        true_obs, true_rewards, ended, cut, _ = whole.step(actions)
        playing = ~done
        scores += true_rewards * playing
        np.testing.assert_array_equal(rewards[playing], true_rewards[playing])
        np.testing.assert_array_equal(successors[playing], true_obs[playing])
        lives_lost += terminated & playing
        going_on = playing & ~(ended | cut)
        np.testing.assert_array_equal(next_obs[going_on], true_obs[going_on])
        done |= ended | cut
        if done.any() and not done.all():  # the two autoresets differ from here on
            break
    assert lives_lost.max() == 5  # of Breakout's five
    (first,) = np.flatnonzero(done)
    assert [score for score, _ in run.finished] == [scores[first]] and scores[first] > 0


def test_atari_games_repeat_from_their_seed_on_any_number_of_threads():
    def play(threads):
        args = ppo.RunArgs(env_id="ALE/Breakout-v5", torch_threads=threads, sticky_actions=0.25)
        envs = ppo.make_atari(args, 3, True)
        obs = [envs.reset(seed=[5, 6, 7])[0]]
        rng = np.random.default_rng(0)
        obs += [envs.step(rng.integers(4, size=3))[0] for _ in range(200)]
        return np.array(obs)

    first = play(1)
    np.testing.assert_array_equal(first, play(1))
    np.testing.assert_array_equal(first, play(2))


def test_the_evaluation_of_atari_knows_no_lost_lives(monkeypatch):
    settings = []
    make_vec = gym.make_vec
    monkeypatch.setattr(gym, "make_vec", lambda *a, **k: (settings.append(k), make_vec(*a, **k))[1])
    args = arguments("ALE/Breakout-v5", episodic_life=True)
    ppo.make_envs(args, 2, training=False)
    ppo.make_envs(args, 2, training=True)
    assert [k["life_loss_info"] for k in settings] == [False, True]
    assert all(k["repeat_action_probability"] == 0 and not k["reward_clipping"] for k in settings)


def test_vectors_of_bytes_are_observations_too(script, tmp_path):
    flags = "--env-id environments:Bytes-v0 --total-timesteps 64 --eval-episodes 1".split()
    script("ppo", *flags, "--num-envs", 2, "--num-steps", 16)
    script("a2c", *flags, "--num-envs", 2, "--num-steps", 16)
    script("td3", *flags, "--learning-starts", 32, "--batch-size", 3)


def test_an_evaluation_ends_where_episodes_do_not(monkeypatch, capsys):
    monkeypatch.setattr(ppo, "LONGEST_EPISODE", 53)
    args = arguments("environments:Timeless-v0", eval_episodes=3)
    agent = ppo.make_agent(args, *ppo.agent_spaces(ppo.make_envs(args, 1)))
    assert ppo.evaluate(agent, args).tolist() == [53, 53, 53]
    assert "no end after 53 steps" in capsys.readouterr().err


@pytest.mark.parametrize("old", ["PongNoFrameskip-v4", "PongDeterministic-v4", "Pong-v0"])
def test_old_atari_ids_are_answered_with_the_new(old):
    with pytest.raises(ppo.UserError, match="use ALE/Pong-v5"):
        ppo.make_envs(arguments(old), 1)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pybullet_envs_gymnasium", None)
    with pytest.raises(ppo.UserError, match="pip install pybullet_envs_gymnasium"):
        ppo.make_envs(arguments("AntBulletEnv-v0"), 1)


def test_a_package_that_gymnasium_misses_is_named_and_no_other_environment(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(ppo.UserError, match="needs a package that is missing: Box2D") as error:
        ppo.make_envs(arguments("LunarLander-v3"), 1)
    assert "near it" not in str(error.value)


@pytest.mark.parametrize("prefix", ["", "pybullet_envs_gymnasium:"])
def test_pybullet_does_not_greet(prefix):
    args = f"ppo.RunArgs(env_id='{prefix}AntBulletEnv-v0')"
    code = f"import ppo; ppo.make_envs({args}, 1); print('here')"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT / "algos", capture_output=True, text=True)
    assert run.stdout == "here\n" and run.stderr == ""


def test_clipped_rewards_leave_the_score_alone(tmp_path, monkeypatch):
    rewards, add = [], ppo.RolloutBuffer.add
    monkeypatch.setattr(
        ppo.RolloutBuffer, "add", lambda self, *a: (rewards.extend(a[2]), add(self, *a))
    )
    settings = dict(num_envs=2, num_steps=16, total_timesteps=32, clip_reward=True)
    run = ppo.Run(arguments("environments:Rich-v0", runs_dir=str(tmp_path), **settings))
    ppo.train(run.args, run)
    assert set(rewards) == {1.0} and set(run.recent_returns) == {50.0}


def test_a_truncated_episode_is_valued_by_its_normalised_last_observation():
    agent = ppo.Agent((2,), num_actions=3, norm_obs=True)
    agent.obs_moments.update(np.array([[1.0, 10.0], [3.0, 30.0]]))
    space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    buffer, rng = ppo.RolloutBuffer(3, 1, space), np.random.default_rng(0)
    obs, final = rng.normal(2, 5, (3, 1, 2)).astype(np.float32), np.float32([[7.0, 70.0]])
    ends = np.array([[False], [True], [False]])
    never = np.zeros(1, np.bool_)
    for t in range(3):
        successor = final if ends[t] else rng.normal(size=(1, 2)).astype(np.float32)
        last = successor
        buffer.add(obs[t], np.zeros(1, np.int64), np.ones(1, np.float32), never, ends[t], successor)
    args = ppo.Args(gamma=0.9, gae_lambda=0.0, norm_obs=True)
    batch, _ = ppo.make_batch(agent, buffer, args, np.zeros(1))

    def value(x):  # normalised by hand
        x = (torch.tensor(x) - torch.tensor([2.0, 20.0])) / torch.tensor([1.0, 10.0])
        return agent.critic(x.clamp(-10, 10)).item()

    expected = [1 + 0.9 * value(o) for o in (obs[1, 0], final[0], last[0])]
    assert batch["returns"].tolist() == pytest.approx(expected, rel=1e-4)


def test_a_video_of_the_evaluation(script, tmp_path):
    import imageio

    settings = "--total-timesteps 512 --eval-episodes 2 --capture-video".split()
    result = script("ppo", *settings)
    path = only_run(tmp_path) / "videos" / "step-512.mp4"
    assert result.line("video") == str(path.relative_to(tmp_path))
    frames = [frame for frame in imageio.get_reader(path)]
    assert len(frames) > 5 and frames[0].shape == (400, 600, 3)
    assert not np.array_equal(frames[0], frames[-1])
    script("ppo", "--evaluate", only_run(tmp_path), "--capture-video")
    assert (path.parent / "evaluation-seed-1.mp4").exists()


def test_a_video_that_fails_ends_nothing(script, tmp_path):
    settings = "--env-id environments:Clock-v0 --total-timesteps 512 --capture-video".split()
    plain = script("ppo", *settings[:-1])
    result = script("ppo", *settings)
    assert result.hash == plain.hash
    assert result.err.count("no video: ") == 1 and "Traceback" not in result.err
    assert not list(tmp_path.glob("runs/*/*/*/videos/*"))


@pytest.mark.parametrize(
    "env_id, camera", [("HalfCheetah-v5", "track"), ("Reacher-v5", "track"), ("CartPole-v1", None)]
)
def test_the_camera_follows_who_runs(monkeypatch, tmp_path, env_id, camera):
    """gymnasium 1.4 leaves a cheetah's camera where it is; "track" is one of its model's own."""
    asked = {}
    monkeypatch.setattr(ppo, "make_envs", lambda args, num_envs, **keywords: asked.update(keywords))
    ppo.film(None, ppo.RunArgs(env_id=env_id), tmp_path / "film.mp4")
    assert asked.pop("camera_name", None) == camera
    assert asked == {"training": False, "render_mode": "rgb_array"}
    monkeypatch.undo()
    if camera:  # every model must take the name, those without such a camera too
        ppo.make_envs(ppo.RunArgs(env_id=env_id), 1, camera_name=camera).close()
