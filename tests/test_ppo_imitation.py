"""ppo_imitation.py: the loss on demonstrations, its weight, and the file that they come in."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ppo
import ppo_imitation
import pytest
import torch
from conftest import env_seeds, hand_stepped, only_run, stopped
from gymnasium.spaces import Box, Discrete

OBS = Box(-1, 1, (3,), np.float32)


def make_agent(action_space, **settings):
    args = ppo_imitation.Args(imitation_coef=0.0, **settings)
    torch.manual_seed(0)
    agent = ppo_imitation.make_agent(args, OBS, action_space)
    ppo.Vector(agent)
    return args, agent


def write(path, n=11, obs_dim=4, num_actions=2):
    """Demonstrations of somebody who acts at random."""
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(n, obs_dim)), rng.integers(num_actions, size=n)
    np.savez(path, observations=obs, actions=actions)


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
    assert all((p.grad == 0).all() for p in agent.critic.parameters())


@pytest.mark.parametrize("step, coef", [(0, 0.8), (250, 0.6), (1000, 0), (2000, 0)])
def test_its_weight_falls_on_a_line(step, coef):
    args, agent = make_agent(Discrete(2), imitation_steps=1000, imitation_batch_size=5)
    args.imitation_coef = 0.8
    write("expert.npz", obs_dim=3)
    args.demonstrations = "expert.npz"
    both = [ppo_imitation.Demonstrations(args, agent, OBS, Discrete(2)) for _ in range(2)]
    agent.demonstrations, twin = both
    rng = np.random.default_rng(1)
    mini = {"obs": rng.normal(size=(7, 3)), "actions": rng.integers(2, size=7)}
    mini |= {name: rng.normal(size=7) for name in "log_probs advantages values returns".split()}
    mini = {k: torch.as_tensor(x) if k == "actions" else torch.Tensor(x) for k, x in mini.items()}
    run = SimpleNamespace(last_step=step)
    loss, parts, _ = ppo_imitation.loss_with_demonstrations(run, agent, mini, args, 0.2)
    plain, plain_parts, _ = ppo.ppo_loss(agent, mini, args, 0.2)
    if coef == 0:
        assert torch.equal(loss, plain) and set(parts) == set(plain_parts)
        np.testing.assert_array_equal(agent.demonstrations.rng.random(3), twin.rng.random(3))
        return
    imitation = ppo_imitation.imitation_loss(agent, twin.draw(5, "cpu"))
    torch.testing.assert_close(parts["imitation_loss"], imitation)
    torch.testing.assert_close(loss - plain, coef * imitation)


def test_actions_of_the_environment_become_those_of_the_policy():
    space = Box(np.float32([-1, 0, 10, -np.inf]), np.float32([3, 0.5, 1000, np.inf]))
    _, agent = make_agent(space)
    actions = np.array([[-1, 0, 10, -7], [3, 0.5, 1000, 9], [2, 0.1, 20, 0]], np.float32)
    expected = [[-1, -1, -1, -7], [1, 1, 1, 9], [0.5, -0.6, 10 / 495 - 1, 0]]
    found = ppo_imitation.from_env(agent, actions)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(agent.to_env(found), actions, rtol=1e-5)


def test_batches_are_rows_of_the_file():
    """Observations as they are in the file, each beside its own action."""
    args, agent = make_agent(Box(-2, 2, (1,), np.float32), demonstrations="expert.npz")
    args.norm_obs = True
    rows = np.arange(33.0).reshape(11, 3)
    np.savez("expert.npz", observations=rows, actions=rows[:, :1] / 30)
    demonstrations = ppo_imitation.Demonstrations(args, agent, OBS, Box(-2, 2, (1,), np.float32))
    batch = demonstrations.draw(500, "cpu")
    assert batch["obs"].dtype == batch["actions"].dtype == torch.float32
    assert set(map(tuple, batch["obs"].tolist())) == set(map(tuple, rows))
    torch.testing.assert_close(batch["actions"], batch["obs"][:, :1] / 60)


SMALL = "--total-timesteps 2048 --checkpoint-frequency 512 --eval-episodes 5".split()


def check_episodes(file, env_id, num_episodes):
    """Its rows are the evaluation's episodes, played again by hand, and nothing else."""
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
    return columns, f"return {np.mean(returns):.1f} +- {np.std(returns):.1f}", np.diff([0, *stops])


@pytest.mark.parametrize("name", ["ppo", "ppo_imitation"])
def test_an_evaluation_is_saved(script, tmp_path, name):
    coef = ["--imitation-coef", "0"] if name == "ppo_imitation" else []
    trained = script(name, *SMALL, *coef, "--norm-obs")
    folder = only_run(tmp_path)
    saved = script("ppo_imitation", "--evaluate", folder, "--save-episodes", "expert.npz")
    assert saved.line("evaluation") == trained.line("evaluation")
    _, text, lengths = check_episodes(tmp_path / "expert.npz", "CartPole-v1", 5)
    assert text == trained.line("evaluation")
    assert len(set(lengths)) > 1  # else no row after an episode's end could show
    assert saved.line("episodes") == f"5 of {lengths.sum():,} steps: expert.npz"


def test_continuous_actions_are_saved_as_the_environment_has_them(script, tmp_path):
    script("ppo", "--env-id", "environments:Target-v0", *SMALL)
    script("ppo_imitation", "--evaluate", only_run(tmp_path), "--save-episodes", "expert.npz")
    columns, *_ = check_episodes(tmp_path / "expert.npz", "environments:Target-v0", 5)
    low, high = np.float32([[-1, 0, 10], [3, 0.5, 1000]])
    assert (columns["actions"] >= low).all() and (columns["actions"] <= high).all()


def test_without_weight_it_is_ppo(script):
    plain = script("ppo", *SMALL)
    assert script("ppo_imitation", *SMALL, "--imitation-coef", 0).hash == plain.hash
    write("expert.npz")
    flags = "--demonstrations", "expert.npz"
    assert script("ppo_imitation", *SMALL, *flags, "--runs-dir", "other").hash != plain.hash


def test_a_run_resumes_exactly_and_is_evaluated_alike(script, tmp_path):
    write("expert.npz")
    flags = [*SMALL, "--demonstrations=expert.npz", "--imitation-steps=1536"]
    complete = script("ppo_imitation", *flags)
    evaluated = script("ppo_imitation", "--evaluate", only_run(tmp_path))
    assert evaluated.line("evaluation") == complete.line("evaluation")

    args = ppo.parse_args("ppo_imitation", ppo_imitation.Args, [*flags, "--runs-dir=stopped"])
    run = ppo.Run("ppo_imitation", args, ppo_imitation.make_agent, ppo.evaluation_policy)
    stopped(run, ppo_imitation.train, after=600)
    assert script("ppo_imitation", "--resume", run.folder).hash == complete.hash


@pytest.mark.parametrize(
    "flags, words",
    [
        ("", "needs demonstrations"),
        ("--demonstrations absent.npz", "No such file"),
        ("--demonstrations short.npz", "actions"),
        ("--demonstrations wide.npz", "needs ((11, 4), (11,))"),
        ("--imitation-coef 0 --save-episodes new.npz", "goes with evaluate"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_leaves_nothing(script, tmp_path, flags, words):
    np.savez("short.npz", observations=np.zeros((11, 4)))
    write("wide.npz", obs_dim=5)
    failed = script("ppo_imitation", *flags.split(), ok=False)
    assert failed.status == 2 and words in failed.err and failed.err.count("\n") == 1
    assert not list(tmp_path.glob("runs*"))


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
    args = ppo_imitation.Args(demonstrations="expert.npz", **settings)
    run = ppo.Run("ppo_imitation", args, ppo_imitation.make_agent, ppo.evaluation_policy)
    ppo_imitation.train(args, run)
    assert run.evaluate().mean() == 1
