"""ppo_imitation.py: the loss on demonstrations, its weight, and the file that they come in."""

import contextlib
import math
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ppo
import ppo_imitation
import pytest
import torch
from conftest import env_seeds, hand_stepped, only_run, train
from environments import Clock
from gymnasium.spaces import Box, Discrete

OBS = Box(-1, 1, (3,), np.float32)


def make_agent(action_space, **settings):
    args = ppo_imitation.Args(imitation_coef=0.0, **settings)
    torch.manual_seed(0)
    return args, ppo_imitation.make_agent(args, OBS, action_space)


def test_the_loss_by_hand():
    """pi = (3/4, 1/4) everywhere, for one row with each action; V gets no gradient."""
    _, agent = make_agent(Discrete(2))
    with torch.no_grad():
        agent.actor[-1].weight[:] = 0
        agent.actor[-1].bias[:] = torch.log(torch.tensor([3.0, 1.0]))
    batch = {"obs": torch.eye(3)[:2], "actions": torch.tensor([0, 1])}
    loss = ppo_imitation.imitation_loss(agent, batch)
    assert loss.item() == pytest.approx(-(np.log(3 / 4) + np.log(1 / 4)) / 2)
    loss.backward()
    np.testing.assert_allclose(agent.actor[-1].bias.grad, [1 / 4, -1 / 4], atol=1e-6)
    assert all(p.grad is None for p in agent.critic.parameters())


@pytest.mark.parametrize("step, coef", [(0, 0.8), (250, 0.6), (1000, 0), (2000, 0)])
def test_its_weight_falls_on_a_line(step, coef, monkeypatch):
    """Where it is 0 nothing is drawn. ppo's loss here is 7, that of each row 0.6."""
    args, agent = make_agent(Discrete(2), imitation_steps=1000, imitation_batch_size=5)
    args.imitation_coef = 0.8
    agent.demonstrations = {"obs": np.arange(11)}
    losses, rng = [], np.random.default_rng(2)
    monkeypatch.setattr(ppo, "ppo_loss", lambda *_: (torch.tensor(7.0), {"ppo": 1}, "ratio"))
    of_rows = lambda _, batch: torch.tensor(0.6 * len(batch["obs"]))  # noqa: E731
    monkeypatch.setattr(ppo_imitation, "imitation_loss", of_rows)
    monkeypatch.setattr(ppo, "train", lambda args, run, loss_of: losses.append(loss_of))
    ppo_imitation.train(args, SimpleNamespace(agent=agent, rng=rng, last_step=step))
    loss, terms, log_ratio = losses[0](agent, {}, args, 0.2)
    assert loss.item() == pytest.approx(7 + 3 * coef) and log_ratio == "ratio"
    assert terms == {"ppo": 1} | ({"imitation_loss": pytest.approx(3)} if coef > 0 else {})
    assert (rng.random() == np.random.default_rng(2).random()) == (coef == 0)


def test_actions_of_the_environment_become_those_of_the_policy():
    space = Box(np.float32([-1, 0, 10, -np.inf, 2]), np.float32([3, 0.5, 1000, np.inf, 2]))
    _, agent = make_agent(space)
    actions = np.array([[-1, 0, 10, -7, 2], [3, 0.5, 1000, 9, 2], [2, 0.1, 20, 0, 2]])
    expected = [[-1, -1, -1, -7, 0], [1, 1, 1, 9, 0], [0.5, -0.6, 10 / 495 - 1, 0, 0]]
    found = ppo_imitation.from_env(agent, actions, space)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(agent.to_env(found), actions, rtol=1e-5)


def recording(make):
    envs = ppo.SyncEnvs(make, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    return ppo_imitation.RecordingEnvs(envs, "expert.npz")


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3, start=-1),
        Discrete(3, start=5, dtype=np.int32),
        Box(-1, 1, (2,), np.float16),
        Box(np.array([[-0.1, 0.1]]), np.array([[0.1, 0.7]]), dtype=np.float64),
    ],
)
def test_actions_are_written_and_read_as_the_space_declares_them(space):
    """Through environments that insist on their dtype, start and shape, and the file, and back."""
    args, agent = make_agent(space)
    rng = np.random.default_rng(0)
    shape = (5, 2) if space.shape == () else (5, 2, math.prod(space.shape))
    chosen = rng.integers(3, size=shape) if space.shape == () else rng.uniform(-1, 1, shape)
    envs = recording([lambda: Clock(space=space)] * 2)
    envs.reset(seed=[0, 1])
    for actions in chosen:
        envs.step(ppo.as_declared(agent.to_env(actions), space))
    envs.close()
    with np.load("expert.npz") as file:
        saved, obs = file["actions"], file["observations"]
    assert saved.dtype == space.dtype and saved.shape == (10, *space.shape)
    assert all(space.contains(action) for action in saved)
    if space.shape == ():
        assert set(saved) == {space.start, space.start + 1, space.start + 2}
    np.savez("expert.npz", observations=np.repeat(obs, 3, axis=1), actions=saved)
    args.demonstrations = "expert.npz"
    found = ppo_imitation.read(args, agent, OBS, space)["actions"]
    expected = chosen.swapaxes(0, 1).reshape(10, *shape[2:])  # one episode after the other
    np.testing.assert_allclose(found, expected, atol=1e-3 if space.dtype == np.float16 else 1e-6)
    assert found.dtype == (np.int64 if space.shape == () else np.float32)


def recorded(lengths, num_steps, **limits):
    """What is saved of environments that end after so many steps, stepped `num_steps` times."""
    envs = recording([lambda n=n: Clock(n, **limits) for n in lengths])
    envs.reset(seed=[0] * len(lengths))
    for _ in range(num_steps):
        envs.step(np.zeros(len(lengths), np.int64))
    envs.close()
    with np.load("expert.npz") as arrays:
        columns = dict(arrays)
    ended = columns["terminations"] | columns["truncations"]
    return columns, np.diff([0, *np.flatnonzero(ended) + 1]).tolist()


@pytest.mark.parametrize("terminates", [False, True])
def test_episodes_are_saved_whole_whatever_ended_them(terminates):
    columns, lengths = recorded([3, 5, 2], 6, terminates=terminates)
    assert lengths == [3, 5, 2] and len(columns["rewards"]) == 10
    assert columns["terminations"].any() == terminates != columns["truncations"].any()
    clock = [t / n for n in (3, 5, 2) for t in range(n)]
    np.testing.assert_allclose(columns["observations"][:, 0], clock, rtol=1e-6)


def test_what_an_evaluation_cuts_is_saved_as_an_episode_cut_there():
    columns, lengths = recorded([9, 3, 9], 6, terminates=True)
    assert lengths == [6, 3, 6] and len(columns["rewards"]) == 15
    np.testing.assert_array_equal(np.flatnonzero(columns["truncations"]), [5, 14])
    np.testing.assert_array_equal(np.flatnonzero(columns["terminations"]), [8])


def test_an_interrupted_evaluation_saves_nothing():
    envs = recording([lambda: Clock(3)])
    envs.reset(seed=[0])
    with pytest.raises(KeyboardInterrupt), contextlib.closing(envs):
        envs.step(np.zeros(1, np.int64))
        raise KeyboardInterrupt
    assert not Path("expert.npz").exists()


def test_batches_are_rows_of_the_file():
    """Observations as they are in the file, each beside its own action."""
    space = Box(-2, 2, (1,), np.float32)
    args, agent = make_agent(space, demonstrations="expert.npz")
    args.norm_obs = True
    rows = np.arange(33.0).reshape(11, 3)
    np.savez("expert.npz", observations=rows, actions=rows[:, :1] / 30)
    demonstrations = ppo_imitation.read(args, agent, OBS, space)
    batch = ppo_imitation.draw(demonstrations, 500, np.random.default_rng(0), "cpu")
    assert batch["obs"].dtype == batch["actions"].dtype == torch.float32
    assert set(map(tuple, batch["obs"].tolist())) == set(map(tuple, rows))
    torch.testing.assert_close(batch["actions"], batch["obs"][:, :1] / 60)


def test_batches_are_drawn_at_random_from_all_rows():
    demonstrations = {"obs": np.arange(997)}
    rows = ppo_imitation.draw(demonstrations, 101, np.random.default_rng(0), "cpu")["obs"]
    assert len(set(np.diff(rows))) > 50 and rows.min() < 50 and rows.max() > 947


def test_pixels_of_another_kind_are_refused(failure):
    """As whole numbers those from 0 to 1 would all be black."""
    space = Box(0, 255, (1, 36, 36), np.uint8)
    args = ppo_imitation.Args(imitation_coef=0.0, demonstrations="broken.npz")
    agent = ppo_imitation.make_agent(args, space, Discrete(3, start=1))
    np.savez("broken.npz", observations=np.full((2, *space.shape), 0.5), actions=[1, 2])
    said = failure(ppo_imitation.read, args, agent, space, Discrete(3, start=1))
    assert "broken.npz: pixels are uint8, not float64" in said


@pytest.mark.parametrize("text, name", [
    ('{"algo": "ppo"}', "ppo"), ("{", "ppo_imitation"), ("[]", "ppo_imitation"),
])  # fmt: skip
def test_the_script_of_a_run_is_read_where_it_can_be(text, name, tmp_path):
    (tmp_path / "args.json").write_text(text)
    for path in (tmp_path, tmp_path / "weights.npz"):
        assert ppo_imitation.name_of_run(["--evaluate", str(path)]) == name


def check_episodes(file, env_id, num_episodes):
    """Its rows are the evaluation's episodes, played again by hand. Their returns and lengths."""
    with np.load(file) as arrays:
        columns = dict(arrays)
    assert set(columns) == set(ppo_imitation.COLUMNS)
    ended = columns["terminations"] | columns["truncations"]
    stops = np.flatnonzero(ended) + 1
    assert len(stops) == num_episodes and stops[-1] == len(ended)
    for seed, stop, start in zip(
        env_seeds(num_episodes, 1, 0, 1), stops, [0, *stops], strict=False
    ):
        actions = columns["actions"][start:stop]
        by_hand = list(zip(*hand_stepped(env_id, seed, actions), strict=True))[:4]
        np.testing.assert_array_equal(columns["observations"][start:stop], by_hand[0])
        np.testing.assert_array_equal(columns["rewards"][start:stop], by_hand[1])
        np.testing.assert_array_equal(columns["terminations"][start:stop], by_hand[2])
        np.testing.assert_array_equal(columns["truncations"][start:stop], by_hand[3])
    returns = [part.sum() for part in np.split(columns["rewards"], stops[:-1])]
    return f"return {np.mean(returns):.1f} +- {np.std(returns):.1f}", np.diff([0, *stops])


def test_an_evaluation_is_saved(command, tmp_path):
    flags = "--total-timesteps 1024 --checkpoint-frequency 512 --eval-episodes 5 --norm-obs"
    trained = command("ppo", flags)
    folder = only_run(tmp_path)
    saved = command("ppo_imitation", "--save-episodes expert.npz --evaluate", folder)
    assert saved.line("evaluation") == trained.line("evaluation")
    assert "another version" not in saved.err
    text, lengths = check_episodes(tmp_path / "expert.npz", "CartPole-v1", 5)
    assert text == trained.line("evaluation")
    assert len(set(lengths)) > 1  # else no row after an episode's end could show
    assert saved.line("episodes") == f"5 of {lengths.sum():,} steps: expert.npz"
    again = command(
        "ppo_imitation", "--save-episodes again.npz --async-envs --evaluate", folder / "weights.npz"
    )
    assert again.line("evaluation") == trained.line("evaluation")
    for file in ("nowhere/expert.npz", "runs"):  # before anything is played
        flags = f"--save-episodes {file} --evaluate"
        failed = command("ppo_imitation", flags, folder, ok=False)
        assert failed.status == 2 and "must be a file" in failed.err and not failed.out


def test_without_weight_it_is_ppo():
    settings = dict(total_timesteps=1024, checkpoint_frequency=512)
    plain = train(ppo, **settings).hash()
    assert train(ppo_imitation, **settings, imitation_coef=0.0).hash() == plain
    obs = np.random.default_rng(0).normal(size=(11, 4))
    np.savez("expert.npz", observations=obs, actions=np.arange(11) % 2)
    assert train(ppo_imitation, **settings, demonstrations="expert.npz").hash() != plain


@pytest.mark.slow
def test_one_demonstration_shows_the_way_to_the_far_goal():
    """Which ppo does not find: see test_ppo_rnd.py."""
    import tasks  # noqa: F401

    env, obs, rows = gym.make("FarGoal-v0").unwrapped, 0, []
    env.reset()
    for move in [[0, 1], [1, 0]] * (env.n - 1):
        action = (env.moves[obs] == move).all(axis=1).argmax()
        rows.append((np.eye(env.n**2)[obs], action))
        obs, reward, *_ = env.step(action)
    assert reward == 1
    observations, actions = zip(*rows, strict=True)
    np.savez("expert.npz", observations=observations, actions=actions)
    settings = {"env_id": "tasks:FarGoal-v0", "total_timesteps": 10_240, "imitation_steps": 5120}
    run = train(ppo_imitation, demonstrations="expert.npz", **settings)
    assert run.evaluate().mean() == 1


@pytest.mark.parametrize("action", [0.5, -1])
def test_actions_that_are_none_are_refused(refused, action):
    np.savez("x.npz", observations=np.zeros((1, 4)), actions=np.array([action]))
    said = refused("ppo_imitation", "--total-timesteps 256 --demonstrations x.npz")
    assert "not in Discrete(2)" in said


def test_actions_that_are_not_finite_are_refused(refused):
    np.savez("x.npz", observations=np.zeros((1, 3)), actions=np.full((1, 1), np.nan))
    flags = "--env-id Pendulum-v1 --total-timesteps 256 --demonstrations x.npz"
    assert "some numbers are not finite" in refused("ppo_imitation", flags)


def test_what_is_saved_can_be_filmed(command, tmp_path):
    flags = "--total-timesteps 256 --eval-episodes 1 --env-id environments:ShortCartPole-v0"
    command("ppo", flags)
    folder = only_run(tmp_path)
    command("ppo_imitation", "--capture-video --save-episodes e.npz --evaluate", folder)
    assert Path("e.npz").exists() and len(list(folder.glob("videos/*"))) == 1
