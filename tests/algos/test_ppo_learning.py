"""On environments with known answers, and on real ones: mostly slow."""

import a2c
import dqn
import dqn_quantile
import gymnasium as gym
import ppo
import ppo_pqn
import pytest
from conftest import env_seeds, new_run, stopped, train


def test_the_first_ratio_of_every_update_is_one(monkeypatch):
    """The old log-probabilities are of the actions, weights and statistics that acted."""
    ratios, update, loss = [], ppo.update, ppo.clipped_policy_loss
    monkeypatch.setattr(ppo, "update", lambda *a: (ratios.append([]), update(*a))[1])
    monkeypatch.setattr(
        ppo, "clipped_policy_loss", lambda r, *a: (ratios[-1].append(r.tolist()), loss(r, *a))[1]
    )
    settings = dict(env_id="Pendulum-v1", num_envs=2, num_steps=16, total_timesteps=96)
    train(ppo, **settings, norm_obs=True, learning_rate=0.02)
    assert len(ratios) == 3
    for of_one_update in ratios:
        assert of_one_update[0] == pytest.approx([0.0] * 32, abs=1e-5)
        assert max(map(abs, of_one_update[-1])) > 0.1


def test_an_evaluation_counts_one_whole_episode_of_each_environment():
    lengths = []
    for seed in env_seeds(7, 1, 0, 1):
        env = gym.make("environments:Uneven-v0")
        env.reset(seed=seed)
        lengths.append(env.unwrapped.length)
    assert len(set(lengths)) > 3
    run = new_run(ppo, env_id="environments:Uneven-v0", eval_episodes=7)
    assert run.evaluate().tolist() == lengths


SOLVED = [  # script, settings, least return
    (ppo, {}, 475),
    (dqn, {}, 475),
    (dqn_quantile, {"seed": 11, "eval_episodes": 20}, 400),
    (ppo_pqn, {"eval_episodes": 20}, 450),
]


@pytest.mark.slow
@pytest.mark.parametrize("script, settings, least", SOLVED)
def test_cartpole_is_solved(script, settings, least):
    assert train(script, **settings).evaluate().mean() >= least


@pytest.mark.slow
def test_a2c_solves_cartpole_in_half_the_default_budget():
    run = stopped(new_run(a2c), a2c.train, after=99_999)  # of 200,000, with their schedule
    assert run.step_count == 100_000 and run.evaluate().mean() >= 475
