"""Every kind of environment as the agent meets it: images, Atari, PyBullet, other spaces, video."""

import sys

import ale_py
import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import calls, env_seeds, new_run, only_run
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

gym.register_envs(ale_py)
NEXT_STEP = gym.vector.AutoresetMode.NEXT_STEP


VECTORS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def arguments(env_id, **settings):
    return ppo.RunArgs(env_id=env_id, torch_threads=1, **settings)


def test_after_a_checkpoint_infos_are_those_of_the_reset():
    sizes = dict(num_envs=2, num_steps=3, checkpoint_frequency=6, total_timesteps=12)
    run = new_run(ppo, env_id="environments:Chatty-v0", **sizes)
    run.start(agent=run.agent)
    times = [run.infos[1]["time"]]
    for _ in range(3):
        run.step(np.zeros(2, np.int64))
        times.append(run.infos[1]["time"])
    assert times == [0, 1, 2, 0]  # the third step ends with new environments
    assert run.next_infos[1]["time"] == 3


def test_dict_observations_are_flattened():
    env = ppo.make_env("environments:Mixed-v0")
    env.reset()
    assert env.step(4)[0].tolist() == pytest.approx([0.2, 0, 1, 0])


def test_a_reward_of_several_numbers_is_named():
    """As mo-gymnasium gives them."""
    env = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: np.ones(2))
    env = ppo.Converted(env, np.asarray, env.observation_space)
    env.reset()
    with pytest.raises(ValueError, match=r"reward, .* must be one number each, not .array..1., 1"):
        env.step(1)


@pytest.mark.parametrize(
    "env_id",
    "Taxi-v4 Blackjack-v1 LunarLander-v3 HalfCheetah-v5 HalfCheetahBulletEnv-v0 "
    "environments:ShortCarRacing-v0".split(),
)
def test_ppo_trains_saves_evaluates(command, env_id, tmp_path):
    flags = "--total-timesteps 64 --num-envs 2 --num-steps 16 --eval-episodes 1 --torch-threads 1"
    trained = command("ppo", flags, "--env-id", env_id)
    evaluated = command("ppo", "--evaluate", only_run(tmp_path))
    assert evaluated.line("evaluation") == trained.line("evaluation")
    assert evaluated.hash == trained.hash
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # no MUJOCO_LOG.TXT


def test_atari_observations_equal_those_of_gymnasium(monkeypatch):
    """Frame by frame, until the game is over. Without the random no-ops, which differ by design."""
    make_vec, plain = gym.make_vec, {"noop_max": 0, "use_fire_reset": False}
    monkeypatch.setattr(gym, "make_vec", lambda *a, **k: make_vec(*a, **k, **plain))
    ours = ppo.make_envs(arguments("ALE/Pong-v5"), 1, training=False)
    env = gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    env = AtariPreprocessing(env, noop_max=0)
    theirs = FrameStackObservation(env, 4, padding_type="zero")
    rng = np.random.default_rng(0)
    (obs, _), (expected, _) = ours.reset(seed=np.array([3], np.int32)), theirs.reset(seed=3)
    np.testing.assert_array_equal(obs[0], expected)
    over, steps = False, 0
    while not over:
        action = rng.integers(6)
        obs, rewards, terminated, truncated, infos = ours.step(np.array([action]))
        expected, reward, end, cut, _ = theirs.step(action)
        over = end or cut
        assert (rewards[0], terminated[0], truncated[0]) == (reward, end, cut)
        assert infos["_final_obs"].tolist() == [over]
        np.testing.assert_array_equal(infos["final_obs"][0] if over else obs[0], expected)
        steps += 1
    assert steps > 700


def test_lost_lives_end_episodes_but_not_the_score():
    settings = dict(env_id="ALE/Breakout-v5", episodic_life=True, num_envs=2, torch_threads=1)
    run = new_run(ppo, **settings)
    run.start()
    whole = gym.make_vec(
        "ALE/Breakout-v5",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        autoreset_mode=NEXT_STEP,
        reward_clipping=False,
        repeat_action_probability=0.0,
    )
    whole.reset(seed=np.array(env_seeds(2, 1, 0), np.int32))
    rng = np.random.default_rng(0)
    scores, done, lives_lost = np.zeros(2), np.zeros(2, bool), np.zeros(2)
    while not done.all():
        actions = rng.integers(4, size=2)
        next_obs, rewards, terminated, _ = run.step(actions)
        true_obs, true_rewards, ended, cut, _ = whole.step(actions)
        playing = ~done
        scores += true_rewards * playing
        np.testing.assert_array_equal(rewards[playing], true_rewards[playing])
        np.testing.assert_array_equal(next_obs[playing], true_obs[playing])
        lives_lost += terminated & playing
        going_on = playing & ~(ended | cut)
        np.testing.assert_array_equal(run.obs[going_on], true_obs[going_on])
        done |= ended | cut
        if done.any() and not done.all():  # the two autoresets differ from here on
            break
    assert lives_lost.max() == 5  # of Breakout's five
    (first,) = np.flatnonzero(done)
    assert [score for score, _ in run.finished] == [scores[first]] and scores[first] > 0
    while lives_lost.min() < 10:  # until each has played a second game, and one perhaps a third
        _, _, terminated, _ = run.step(rng.integers(4, size=2))
        lives_lost += terminated
        assert len(run.finished) == (lives_lost // 5).sum()


def test_atari_games_repeat_from_their_seed_on_any_number_of_threads():
    def play(threads):
        args = ppo.RunArgs(env_id="ALE/Breakout-v5", torch_threads=threads, sticky_actions=0.25)
        envs = ppo.make_envs(args, 3)
        obs, rng = [ppo.reset(envs, 5)[0]], np.random.default_rng(0)
        obs += [envs.step(rng.integers(4, size=3))[0] for _ in range(100)]
        return np.array(obs)

    np.testing.assert_array_equal(play(1), play(2))


def test_a_picture_that_makes_no_film_is_said_before_training(monkeypatch, refused):
    cartpole = gym.make("CartPole-v1").unwrapped
    picture = np.zeros((3, 48, 48), np.uint8)  # the channels first
    monkeypatch.setattr(type(cartpole), "render", lambda env: picture)
    assert "CartPole-v1 gives no picture" in refused("ppo", "--capture-video")


def test_the_evaluation_of_atari_knows_no_lost_lives(monkeypatch):
    made = calls(monkeypatch, gym, "make_vec")
    settings = dict(env_id="ALE/Breakout-v5", episodic_life=True, sticky_actions=0.25)
    new_run(ppo, **settings, torch_threads=1, eval_max_steps=4).evaluate()
    # tried, trained, evaluated
    assert [call["life_loss_info"] for call in made] == [False, True, False]
    assert all(x["repeat_action_probability"] == 0.25 and not x["reward_clipping"] for x in made)


def test_an_evaluation_ends_where_episodes_do_not(capsys):
    settings = dict(env_id="environments:Timeless-v0", eval_episodes=3, eval_max_steps=1053)
    assert new_run(ppo, **settings).evaluate().tolist() == [1053, 1053, 1053]
    assert "evaluation   3 episodes cut after 1,053 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    "env_id, module", [("AntBulletEnv-v0", "pybullet_envs_gymnasium"), ("LunarLander-v3", "Box2D")]
)
def test_a_missing_package_is_named(monkeypatch, failure, env_id, module):
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert module.lower() in failure(ppo.make_envs, arguments(env_id), 1).lower()


def test_a_truncated_episode_is_valued_by_its_normalised_last_observation():
    agent = ppo.Agent(ppo.Args(norm_obs=True), VECTORS, gym.spaces.Discrete(3))
    agent.obs_moments.update(np.array([[1.0, 10.0], [3.0, 30.0]]))
    buffer, rng = ppo.RolloutBuffer(), np.random.default_rng(0)
    obs, final = rng.normal(2, 5, (3, 1, 2)).astype(np.float32), np.float32([[27.0, 70.0]])
    ends = np.array([[False], [True], [False]])
    never = np.zeros(1, np.bool_)
    for t in range(3):
        last = rng.normal(size=(1, 2)).astype(np.float32) if t == 2 else obs[t + 1]
        last = final if ends[t] else last
        step = {"obs": obs[t], "next_obs": last, "terminated": never, "truncated": ends[t]}
        buffer.add(actions=np.zeros(1, np.int64), rewards=np.ones(1, np.float32), **step)
    args = ppo.Args(num_envs=1, gamma=0.9, gae_lambda=0.0, norm_obs=True)
    batch, _ = ppo.rollout_batch(agent, buffer, args, np.zeros(1))

    def value(x):  # normalised by hand
        x = (torch.tensor(x) - torch.tensor([2.0, 20.0])) / torch.tensor([1.0, 10.0])
        return agent.critic(x.clamp(-10, 10)).item()

    expected = [1 + 0.9 * value(o) for o in (obs[1, 0], final[0], last[0])]
    assert batch["returns"].tolist() == pytest.approx(expected, rel=1e-4)


def test_a_film_of_a_game_has_its_newest_frame():
    envs = ppo.make_envs(ppo.RunArgs(env_id="ALE/Pong-v5", torch_threads=1), 1, training=False)
    obs, _ = envs.reset(seed=[3])
    for _ in range(40):
        obs, *_ = envs.step(np.array([2]))
    np.testing.assert_array_equal(envs.envs[0].render(), obs[0, -1])
    assert (obs[0, 0] != obs[0, -1]).any()


def test_games_step_on_as_many_threads_as_asked_for(monkeypatch):
    made = calls(monkeypatch, gym, "make_vec")
    ppo.make_envs(ppo.RunArgs(env_id="ALE/Pong-v5", torch_threads=2), 3).close()
    assert made[0]["num_threads"] == 2
