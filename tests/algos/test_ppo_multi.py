"""ppo_multi.py: who acts by which policy, who is alive, and what a policy learns from; a world of
one agent is ppo.
"""

import json
import sys
from itertools import pairwise
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ppo
import ppo_multi
import pytest
import tasks
import torch
from conftest import (
    before,
    calls,
    curves,
    hash_of_parameters,
    new_run,
    only_run,
    randomise,
    scalars,
)
from conftest import train as train_any
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Tuple
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

HERE = "test_ppo_multi"


class Mortal:
    """Three agents who live 2, 5 and 3 steps. Agent i sees i + 2 numbers: itself, the step, the
    episode, all in one order; it gets 10 i + t in step t. The second one's end is a truncation.
    """

    possible_agents = ("a", "b", "c")

    def __init__(self, lives=(2, 5, 3)):
        self.lives = dict(zip("abc", lives, strict=True))
        self.episode, self.seeds, self.taken = 0, [], []

    def observation_space(self, agent):
        return Box(-np.inf, np.inf, ("abc".index(agent) + 2,), np.float32)

    def action_space(self, agent):
        return Discrete(10)

    def observe(self, agents):
        numbers = {x: [7 + i, self.t, self.episode, 1] for i, x in enumerate(self.possible_agents)}
        return {x: np.float32(numbers[x][: "abc".index(x) + 2]) for x in agents}

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.agents, self.t, self.episode = list(self.possible_agents), 0, self.episode + 1
        return self.observe(self.agents), {x: {"begins": x} for x in self.agents}

    def step(self, actions):
        self.t += 1
        acting, self.agents = self.agents, [x for x in self.agents if self.t < self.lives[x]]
        assert list(actions) == acting
        self.taken.append(actions)
        rewards = {x: 10.0 * self.possible_agents.index(x) + self.t for x in acting}
        ends = {x: self.t == self.lives[x] for x in acting}
        kinds = [{x: ends[x] and (x == "b") == late for x in acting} for late in (0, 1)]
        return self.observe(acting), rewards, *kinds, {x: {"of": x} for x in acting}

    def close(self):
        pass


class Walk(gym.Env):
    """Seven steps to the left or right from 0; the reward is the place."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def observe(self):
        return np.array([self.place, self.t], np.float32) / 7

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.place, self.t = self.place + 2 * int(action) - 1, self.t + 1
        return self.observe(), float(self.place), False, self.t == 7, {}


if "Walk-v0" not in gym.registry:
    gym.register("Walk-v0", Walk)


class Many(tasks.MultiCartPole):
    """Agents with an environment each."""

    def __init__(self, env_id="Walk-v0", num_agents=2):
        self.envs = {f"agent_{i}": gym.make(env_id) for i in range(num_agents)}
        self.possible_agents = list(self.envs)


class ShortLife(Mortal):
    def __init__(self):
        super().__init__((1, 30, 2))


class Blind(Mortal):
    def __init__(self, render_mode=None):
        super().__init__()


def train(env_id, **settings):
    return train_any(ppo_multi, env_id=env_id, **{"eval_episodes": 4} | settings)


def train_mortals(**settings):
    return train(f"{HERE}:Mortal", num_envs=6, eval_episodes=3, **settings)


# ---- worlds as a vector of rows


def test_rows_are_agents_in_worlds_and_a_world_goes_on_until_all_are_gone():
    """Two worlds of three agents over six steps, by hand."""
    worlds = ppo_multi.Worlds([Mortal(), Mortal((4, 5, 1))], agent_id=False)
    assert worlds.num_envs == 6 and worlds.single_action_space.shape == ()
    assert worlds.single_observation_space.shape == (4,)  # the longest
    obs, _ = worlds.reset(seed=np.arange(11, 17))
    first = [[7, 0, 0, 0], [8, 0, 1, 0], [9, 0, 1, 1]] * 2
    np.testing.assert_array_equal(obs, first)
    assert [world.seeds for world in worlds.envs] == [[11], [14]]  # of a world's first row

    lives = np.array([2, 5, 3, 4, 5, 1])
    for t in range(1, 6):
        before = t <= lives
        np.testing.assert_array_equal(worlds.alive, before)
        actions = np.arange(6) + t
        obs, rewards, terminated, truncated, infos = worlds.step(actions)
        for w, world in enumerate(worlds.envs):  # the living alone act, each by its own row
            own = [(x, 3 * w + i) for i, x in enumerate("abc")]
            assert world.taken[-1] == {x: row + t for x, row in own if before[row]}
        np.testing.assert_array_equal(rewards, (np.array([0, 10, 20] * 2) + t) * before)
        late = np.array([False, True, False] * 2)
        np.testing.assert_array_equal(terminated, (t == lives) & ~late)
        np.testing.assert_array_equal(truncated, (t == lives) & late)
        shown = np.array([[7, t, 0, 0], [8, t, 1, 0], [9, t, 1, 1]] * 2)
        np.testing.assert_array_equal(infos["_final_obs"], t == lives)
        for row in np.flatnonzero(t == lives):
            np.testing.assert_array_equal(infos["final_obs"][row], shown[row])
            assert infos["final_info"][row] == {"of": "abc"[row % 3]}
        going_on = [row for row in range(6) if t < lives[row]]
        assert all(infos[row] == {"of": "abc"[row % 3]} for row in going_on)
        if t < 5:  # of the dead nothing: a last observation may hold NaN
            np.testing.assert_array_equal(obs, shown * (t < lives)[:, None])
    again = [[7, 0, 0, 0], [8, 0, 2, 0], [9, 0, 2, 1]] * 2  # the second episode
    np.testing.assert_array_equal(obs, again)
    assert worlds.alive.all() and [world.seeds[1:] for world in worlds.envs] == [[None]] * 2
    assert infos[1] == {"begins": "b"} and infos["final_info"][1] == {"of": "b"}  # reset, and last
    _, rewards, *_, infos = worlds.step(np.arange(6))
    assert rewards[5] == 21 and infos[5] == infos["final_info"][5] == {"of": "c"}


def test_what_a_reset_writes_into_infos_is_not_what_the_last_step_said():
    class Reusing(Mortal):
        said = {x: {"at": np.zeros(1)} for x in "abc"}  # noqa: RUF012

        def tell(self, obs, *rest, time):
            for info in self.said.values():
                info["at"][:] = time
            return obs, *rest[:-1], self.said

        def reset(self, seed=None, options=None):
            return self.tell(*super().reset(seed=seed), time=0)

        def step(self, actions):
            return self.tell(*super().step(actions), time=1)

    worlds = ppo_multi.Worlds([Reusing((1, 1, 1))], agent_id=False)
    worlds.reset(seed=np.arange(3))
    *_, infos = worlds.step(np.zeros(3))
    assert [infos["final_info"][row]["at"].item() for row in range(3)] == [1, 1, 1]
    assert [infos[row]["at"].item() for row in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    "settings, shared",
    [
        ({}, False),
        ({"num_policies": 2}, True),
        ({"num_policies": 1}, True),
        ({"num_policies": 1, "agent_id": False}, False),
        ({"num_policies": 3}, False),
    ],
)
def test_who_shares_a_policy_is_told_who_it_is(settings, shared):
    args = ppo_multi.Args(env_id=f"{HERE}:Mortal", num_envs=6, **settings)
    envs = ppo_multi.make_envs(args, 6)
    obs, _ = envs.reset(seed=np.arange(6))
    ids = np.eye(3)[[0, 1, 2] * 2] if shared else np.zeros((6, 0))
    seen = [[7, 0, 0, 0], [8, 0, 1, 0], [9, 0, 1, 1]] * 2
    np.testing.assert_array_equal(obs, np.concatenate([ids, seen], axis=1))
    assert envs.single_observation_space.shape == obs.shape[1:] and obs.dtype == np.float32


@pytest.mark.parametrize("game", [tasks.Differ, tasks.MultiCartPole])
def test_the_tasks_are_parallel_environments_as_pettingzoo_understands_them(game):
    parallel_api_test(type("Game", (game, ParallelEnv), {})(), num_cycles=200)


class Odd(Mortal):
    """Two agents of different actions, and what a world says and how it ends, as some do."""

    possible_agents = ("a", "b")

    def __init__(self, spaces=(), keeps=False, flags=True, said=None):
        super().__init__()
        spaces = spaces or (Discrete(10), Discrete(10))
        self.lives, self.spaces = {"a": 3, "b": 4}, dict(zip("ab", spaces, strict=True))
        self.keeps, self.flags, self.said, self.acted = keeps, flags, said, []

    def action_space(self, agent):
        return self.spaces[agent]

    def observe(self, agents):  # of an agent that ends, not a number
        obs = super().observe(agents)
        ended = [x for x in agents if self.t >= self.lives[x]]
        return obs | {x: np.full_like(obs[x], np.nan) for x in ended}

    def reset(self, seed=None, options=None):
        return super().reset(seed)[0], self.said

    def step(self, actions):
        for agent, action in actions.items():
            assert self.spaces[agent].contains(action), (action, type(action), self.spaces)
        self.acted.append(actions)
        self.t += 1
        ends = {x: self.t >= self.lives[x] for x in self.agents}
        acting = self.agents
        if not self.keeps:
            self.agents = [x for x in acting if not ends[x]]
        flags = ends if self.flags else dict.fromkeys(acting, False)
        rewards, late = dict.fromkeys(acting, 1.0), dict.fromkeys(acting, False)
        return self.observe(acting), rewards, flags, late, self.said


@pytest.mark.parametrize("said", [None, {}, {"a": None}, {"x": 1, "b": {"deep": {"n": [None]}}}])
@pytest.mark.parametrize("keeps, flags", [(False, True), (True, True), (False, False)])
def test_worlds_end_by_flags_or_by_their_list_of_agents_whatever_they_say(keeps, flags, said):
    """One that keeps who has ended in `agents`, and one that drops agents without a flag."""
    worlds = ppo_multi.Worlds([Odd(keeps=keeps, flags=flags, said=said)], agent_id=False)
    worlds.reset(seed=[1, 2])
    for _ in range(3):
        ends = []
        for t in range(1, 5):
            np.testing.assert_array_equal(worlds.alive, [t <= 3, True])
            obs, rewards, terminated, truncated, infos = worlds.step(np.zeros(2, np.int64))
            np.testing.assert_array_equal(rewards, [t <= 3, 1])
            np.testing.assert_array_equal(infos["_final_obs"], terminated | truncated)
            assert np.isfinite(obs).all() and not (terminated if not flags else truncated).any()
            ends.append(infos["_final_obs"])
        by_hand = [[False] * 2, [False] * 2, [True, False], [False, True]]
        np.testing.assert_array_equal(ends, by_hand)
        assert infos["final_info"][1] == ((said or {}).get("b") or {})
        np.testing.assert_array_equal(obs, [[7, 0, 0], [8, 0, worlds.envs[0].episode]][:2])


SPACES = {
    "start": (Discrete(3, start=-1), Discrete(2, start=5)),
    "int32": (Discrete(3, start=-1, dtype=np.int32), Discrete(3, dtype=np.int8)),
    "matrix": (Box(-3, 0.1, (2, 2), np.float32), Box(-3, 0.1, (2, 2), np.float64)),
}


@pytest.mark.parametrize("name", SPACES)
def test_actions_are_what_each_agent_s_space_declares(name, monkeypatch):
    """Trained and evaluated; a last observation is NaN, and the last rollout has a single step."""
    made = []

    class Declared(Odd):
        def __init__(self):
            super().__init__(SPACES[name])
            made.append(self)

    monkeypatch.setattr(tasks, "Declared", Declared, raising=False)
    run = train("tasks:Declared", num_envs=4, num_steps=7, total_timesteps=4 * 15, log_std_init=2.0)
    assert (run.evaluate() == [3, 4] * 2).all()
    assert all(p.isfinite().all() for p in run.agent.parameters())
    for agent, space in zip("ab", SPACES[name], strict=True):
        actions = [x[agent] for world in made for x in world.acted if agent in x]
        assert {x.dtype for x in actions} == {space.dtype} and len(np.unique(actions)) > 1
        if name == "start":
            assert set(actions) == set(range(space.start, space.start + space.n))


# ---- policies


@pytest.mark.parametrize("space", [Discrete(7), Box(-2, 5, (2,), np.float32)], ids=str)
@pytest.mark.parametrize("num_policies", [None, 1, 2, 3])
def test_agent_i_acts_by_policy_i_modulo_their_number(num_policies, space):
    """Three agents in eleven worlds."""
    torch.manual_seed(0)
    args = ppo_multi.Args(num_policies=num_policies)
    obs_space = Box(-1, 1, (5,), np.float32)
    agents = randomise(ppo_multi.make_agent(args, obs_space, Tuple([space] * 3)))
    obs = np.random.default_rng(0).normal(size=(33, 5)).astype(np.float32)
    assert len(agents.policies) == (num_policies or 3)
    actions = agents.act(obs, None, greedy=True)
    played = agents.to_env(actions)
    for i in range(3):
        policy = agents.policies[i % (num_policies or 3)]
        own = policy.act(obs[i::3], None, greedy=True)
        np.testing.assert_allclose(actions[i::3], own, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(played[i::3], policy.to_env(own), rtol=1e-4, atol=1e-5)
    assert len(np.unique(actions)) > 3


def test_what_other_agents_do_leaves_a_policy_alone(monkeypatch):
    """Two agents who never meet, and the second one's rewards a thousand times larger: with one
    clip or one mean of advantages for both, the first would learn other weights.
    """
    settings = dict(num_envs=6, eval_episodes=2, num_steps=7, total_timesteps=6 * 35)
    settings |= dict(norm_adv=False, max_grad_norm=0.1, num_minibatches=3)
    plain, step = train(f"{HERE}:Many", **settings), ppo_multi.Worlds.step

    def larger(self, actions):
        obs, rewards, *rest = step(self, actions)
        return obs, rewards * np.tile([1, 1000], 3), *rest

    monkeypatch.setattr(ppo_multi.Worlds, "step", larger)
    other = train(f"{HERE}:Many", **settings)
    same = [
        hash_of_parameters(a) == hash_of_parameters(b)
        for a, b in zip(plain.agent.policies, other.agent.policies, strict=True)
    ]
    assert same == [True, False]


# ---- as ppo

NORMALISED = dict(norm_obs=True, norm_reward=True, num_minibatches=5, ent_coef=0.01)


def same_arrays(policy, agent):
    mine, theirs = policy.state_dict(), agent.state_dict()
    assert mine.keys() == theirs.keys()
    return all(mine[name].numpy().tobytes() == theirs[name].numpy().tobytes() for name in mine)


@pytest.mark.parametrize(
    "env_id, settings", [("CartPole-v1", {}), ("environments:ShortPendulum-v0", NORMALISED)]
)
def test_a_world_of_one_agent_is_ppo_bit_for_bit(env_id, settings):
    """With a checkpoint within, and a last rollout that is cut short."""
    settings = settings | dict(num_envs=5, num_steps=19, total_timesteps=1000)
    settings |= dict(checkpoint_frequency=400, eval_episodes=7)
    theirs = train_any(ppo, env_id=env_id, **settings)
    world = json.dumps({"env_id": env_id, "num_agents": 1})
    mine = train(f"{HERE}:Many", env_kwargs=world, **settings)
    assert same_arrays(mine.agent.policies[0], theirs.agent)
    np.testing.assert_array_equal(mine.evaluate(), theirs.evaluate())


def test_agents_that_share_a_policy_are_so_many_environments():
    """Five worlds of two agents who never meet, and ten environments of ppo."""
    settings = NORMALISED | dict(num_envs=10, num_steps=11, total_timesteps=1100)
    theirs = train_any(ppo, env_id="Walk-v0", **settings)
    mine = train(f"{HERE}:Many", num_policies=1, agent_id=False, **settings)
    assert same_arrays(mine.agent.policies[0], theirs.agent)


@pytest.mark.parametrize("own", ["--num-agents 4 --num-policies 1", "--num-agents 2"])
def test_policies_may_be_evaluated_with_another_number_of_agents(command, tmp_path, own):
    """If they see no one-hots of how many they are: each of two sees none in any case."""
    flags = "--env-id tasks:MultiCartPole --num-envs 8 --num-steps 16 --total-timesteps 128"
    alone = "--no-agent-id" if "--num-policies" in own else "--num-policies 2"
    command("ppo_multi", f"{flags} {own} {alone} --eval-episodes 4")
    more = "--no-agent-id --num-agents 6 --eval-episodes 12 --evaluate"
    assert len(command("ppo_multi", more, only_run(tmp_path)).line("evaluation")) > 0


# ---- death

DYING = dict(num_envs=8, num_steps=64, total_timesteps=8 * 192, num_policies=2, num_minibatches=4)
DYING |= dict(norm_obs=True, norm_reward=True, checkpoint_frequency=1024)


def test_what_rows_of_the_dead_hold_changes_nothing(monkeypatch):
    """Neither the loss nor how advantages, observations and rewards are normalised."""
    plain, observe = train("tasks:MultiCartPole", **DYING), ppo_multi.Worlds.observe
    rng, filled = np.random.default_rng(0), []

    def noisy(self, obs):
        rows = observe(self, obs)
        for row, agent in zip(rows, self.agents, strict=True):
            if agent not in obs:
                row[:] = rng.normal(5, 100, row.shape)
                filled.append(agent)
        return rows

    monkeypatch.setattr(ppo_multi.Worlds, "observe", noisy)
    noised = train("tasks:MultiCartPole", **DYING)
    assert len(filled) > 100
    assert noised.hash() == plain.hash()
    for policy in noised.agent.policies:  # neither statistic has seen a step of the dead
        lived = policy.obs_moments.count
        assert policy.return_moments.count == lived < DYING["total_timesteps"] / 2


def test_the_dead_only_wait_for_their_next_episode(monkeypatch):
    """In CartPole a length is a return: steps of the dead would make it longer."""
    finished = []
    before(monkeypatch, ppo.Run, "end_iteration", lambda run, _: finished.extend(run.finished))
    train("tasks:MultiCartPole", **DYING | dict(log_frequency=1))
    returns, lengths = np.transpose(finished)
    assert len(finished) > 20 and len(set(returns)) > 5
    np.testing.assert_array_equal(returns, lengths)


def test_a_policy_waits_where_all_its_agents_are_dead(monkeypatch):
    """Agent a lives for the first of thirty steps, and a rollout has eight."""
    weights = []

    def look(run, scalars):
        weights.append([hash_of_parameters(policy) for policy in run.agent.policies])
        assert ("losses/entropy/0" in scalars) == (len(weights) in (1, 4))
        assert "losses/entropy/1" in scalars

    before(monkeypatch, ppo.Run, "end_iteration", look)
    settings = dict(num_envs=6, eval_episodes=3, num_steps=8, total_timesteps=6 * 32)
    train(f"{HERE}:ShortLife", norm_obs=True, norm_reward=True, **settings)
    changed = [[a[p] != b[p] for a, b in pairwise(weights)] for p in range(3)]
    assert changed == [[False, False, True], [True, True, True], [False, False, True]]


def test_every_policy_s_learning_rate_falls_and_each_group_s_by_itself(monkeypatch):
    """With a second group of the first policy at a tenth of the rate."""
    rates, adam = [], torch.optim.Adam

    def grouped(parameters, **settings):
        first, *rest = parameters
        slow = {"params": [first], "lr": settings["lr"] / 10}
        optimizers.append(adam([{"params": rest}, slow], **settings))
        return optimizers[-1]

    def look(run, scalars):
        groups = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
        rates.append([*groups, scalars["charts/learning_rate"]])

    monkeypatch.setattr(torch.optim, "Adam", grouped)
    before(monkeypatch, ppo.Run, "end_iteration", look)
    for anneal in (True, False):
        optimizers = []
        train("tasks:Differ", total_timesteps=1024, learning_rate=0.01, anneal_lr=anneal)
    falls = np.outer([1, 0.75, 0.5, 0.25, *[1] * 4], [0.01, 0.001, 0.01, 0.001, 0.01])
    np.testing.assert_allclose(rates, falls)


def test_policies_act_in_one_mode_and_learn_in_the_other(monkeypatch):
    """For dropout, for example."""
    acting, learning = set(), set()
    before(monkeypatch, ppo.Agent, "act", lambda policy, *_, **__: acting.add(policy.training))
    before(monkeypatch, ppo, "update", lambda policy, *_: learning.add(policy.training))
    train_mortals(total_timesteps=6 * 64).evaluate()
    assert (acting, learning) == ({False}, {True})


# ---- curves, resume, command line


def test_curves_show_each_agent_and_each_policy():
    run = train_mortals(num_steps=10, log_frequency=60, total_timesteps=120)
    run.finish()
    points = scalars(run.folder)
    for name, played in {"a": 3, "b": 65, "c": 66}.items():  # as lives and rewards have it
        curve = {step: x for (tag, step), x in points.items() if tag.endswith(f"return/{name}")}
        assert curve == {60: [played], 120: [played]}
    assert points["charts/episodic_return", 120] == [pytest.approx((3 + 65 + 66) / 3)]
    assert points["eval/episodic_return", 120] == [pytest.approx((3 + 65 + 66) / 3)]
    assert {f"losses/entropy/{p}" for p in range(3)} <= {tag for tag, _ in points}


CALLED = []


def function_of_a_stranger(**keywords):
    CALLED.append(keywords)
    return Mortal()


class Buggy(Mortal):
    def __init__(self):
        super().__init__(3 + None)


@pytest.mark.parametrize("flag", ["--env-id", "--evaluate"])
@pytest.mark.parametrize(
    "env_id", ["os:system", f"{HERE}:function_of_a_stranger", f"{HERE}:Walk", "os", ":x", HERE]
)
def test_only_what_is_a_world_is_called(env_id, flag, refused, tmp_path):
    """Typed, or by a run folder that somebody else wrote."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    args = {"env_id": env_id, "env_kwargs": '{"command": "touch called"}'}
    (folder / "args.json").write_text(json.dumps({"algo": "ppo_multi", "args": args}))
    flags = f"--evaluate {folder}" if flag == "--evaluate" else f"--env-id {env_id}"
    assert f"environment {env_id}" in refused("ppo_multi", flags)
    assert not CALLED and not (tmp_path / "called").exists()


def test_a_mistake_of_the_constructor_keeps_its_traceback():
    with pytest.raises(TypeError, match="unsupported operand"):
        new_run(ppo_multi, env_id=f"{HERE}:Buggy")


class Unfit(Mortal):
    """Two agents with spaces of our choice, who never play."""

    possible_agents, spaces = ("a", "b"), ()

    def __init__(self):
        super().__init__()
        first, second, obs = self.spaces
        self.action_space = {"a": first, "b": second}.get
        self.observation_space = lambda agent: obs


class Unknown(gym.Space):
    """Of a kind that gymnasium does not know."""

    def __repr__(self):
        return "Unknown"


VECTOR = Box(-1, 1, (2,), np.float32)
UNFIT = {  # words of the line that says so: the spaces
    "action masks: not Box(0, 255, (84, 84, 3)": (
        Discrete(2), Discrete(2), Box(0, 255, (84, 84, 3), np.uint8)
    ),
    "action masks: not Dict('action_mask'": (
        Discrete(2), Discrete(2), Dict(action_mask=MultiBinary(2), obs=VECTOR)
    ),
    "action masks: not Box([], [], (0,)": (Discrete(2), Discrete(2), Box(0, 1, (0,))),
    "action masks: not Dict('camera'": (
        Discrete(2), Discrete(2), Dict(camera=Box(0, 255, (40, 40, 3), np.uint8), speed=VECTOR)
    ),
    "action masks: not Box(0.0, 1.0, (40, 40, 3)": (
        Discrete(2), Discrete(2), Box(0, 1, (40, 40, 3), np.float32)
    ),
    "action masks: not Tuple(Dict('action_mask'": (
        Discrete(2), Discrete(2), Tuple([Dict(action_mask=MultiBinary(2)), VECTOR])
    ),
    "action masks: not Sequence(": (Discrete(2), Discrete(2), Sequence(VECTOR)),
    "action masks: not Unknown": (Discrete(2), Discrete(2), Unknown((2,), np.float32)),
    "ppo_multi takes actions of one kind, not": (Discrete(2), Box(-1, 1, (1,), np.float32), VECTOR),
    "actions must be Discrete or a Box of real numbers, not": (
        MultiDiscrete([2, 3]), MultiDiscrete([2, 3]), VECTOR
    ),
    "agents that share a policy must have the same actions": (Discrete(2), Discrete(3), VECTOR),
}  # fmt: skip


def test_agents_that_do_not_fit_are_refused(refused, monkeypatch):
    for words, spaces in UNFIT.items():
        monkeypatch.setattr(Unfit, "spaces", spaces)
        assert words in refused("ppo_multi", f"--env-id {HERE}:Unfit --num-policies 1")


@pytest.mark.parametrize("package, pin", [("mpe2", "1.1.1"), ("pettingzoo", "1.27.0")])
def test_a_missing_package_is_named(package, pin, monkeypatch, failure):
    monkeypatch.setattr(sys, "path", [])
    for module in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    said = failure(new_run, ppo_multi, env_id=f"{package}.anything_v1")
    assert said.endswith(f"; pip install {package}=={pin}\n")


# ---- that it learns


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, low, high",
    [
        ({}, 0.95, 1),
        ({"num_policies": 1}, 0.95, 1),
        ({"num_policies": 1, "agent_id": False}, 0.3, 0.6),
    ],
    ids=["own", "told", "untold"],
)
def test_one_policy_differs_from_itself_only_if_it_knows_who_acts(settings, low, high):
    """The last returns of training: 2 p (1 - p) is at most 0.5."""
    run = train("tasks:Differ", total_timesteps=20_480, **settings)
    curve = curves(run)["charts/episodic_return"]
    assert low <= np.mean([curve[step] for step in sorted(curve)[-5:]]) <= high


def test_the_clip_falls_where_it_is_asked_to(monkeypatch):
    told = calls(monkeypatch, ppo, "update")
    for anneal in (True, False):
        train("tasks:Differ", total_timesteps=1024, anneal_clip=anneal)
    shares = np.array([call["clip_coef"] for call in told]) / ppo.Args.clip_coef
    assert shares[:8].min() < 0.5 and (shares[8:] == 1).all() and len(shares) == 16


def test_scaled_rewards_are_clipped(monkeypatch):
    used = calls(monkeypatch, ppo, "gae")
    sizes = dict(num_agents=2, num_envs=2, num_steps=8, total_timesteps=16, eval_episodes=2)
    run = new_run(ppo_multi, env_id="tasks:MultiCartPole", norm_reward=True, **sizes)
    for policy in run.agent.policies:
        policy.return_moments.var.fill_(1e-4)
        policy.return_moments.count.fill_(10**9)
    ppo_multi.train(run.args, run)
    assert {reward for call in used for reward in call["rewards"].flat} == {10}


def test_an_attribute_is_set_below_the_wrappers_of_a_world():
    world = SimpleNamespace(unwrapped=SimpleNamespace(force=1))
    ppo_multi.Worlds.set_attr(SimpleNamespace(envs=[world]), "force", 7)
    assert world.unwrapped.force == 7


def test_each_agent_begins_with_a_pole_of_its_own():
    obs, _ = tasks.MultiCartPole().reset(seed=5)
    assert len({x.tobytes() for x in obs.values()}) == len(obs) > 1
