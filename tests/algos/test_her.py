"""td3_her.py, td3_sac_her.py and dqn_her.py: which goals are possible in hindsight, and what they
are worth; without such goals they are their parents.
"""

import importlib
import json
from collections import Counter, OrderedDict
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import dqn_her
import gymnasium as gym
import numpy as np
import pytest
import td3
import td3_her
from conftest import VARIANTS, before, curves, new_run, train
from gymnasium.spaces import Box, Dict, Discrete

POINT = Box(-1e6, 1e6, (2,), np.float32)
PARTS = {"observation": Box(-1e6, 1e6, (3,), np.float32), "desired_goal": POINT}
PARTS |= {"achieved_goal": POINT, "mode": Discrete(2)}  # an order that is not the alphabet's
DESIRED, ACHIEVED, OBS_DIM = slice(3, 5), slice(5, 7), 9


class Trail(gym.Env):
    """States are numbered; episodes of one to five steps, as the seed decides. Actions do nothing.

    `success` is the name in `info`, `alone` takes one goal at a time, `space` is of other parts.
    """

    observation_space = Dict(OrderedDict(PARTS))
    open = 0  # of all of them

    def __init__(self, action_space=None, success="is_success", alone=False):
        self.action_space = action_space or Box(-1, 1, (1,), np.float32)
        self.success, self.alone = success, alone
        Trail.open += 1

    def observe(self):
        goal = np.float32([-7, -7])
        place = np.float32([self.state, 3])
        obs = np.float32([self.state, 0.5, self.left])
        return {"achieved_goal": place, "mode": 1, "observation": obs, "desired_goal": goal}

    def compute_reward(self, achieved_goal, desired_goal, info):
        rewards = 2 * achieved_goal[..., 0] - 3 * desired_goal[..., 0] + desired_goal[..., 1]
        return rewards.sum() if self.alone else rewards  # of many rows a sum would be wrong

    def compute_terminated(self, achieved_goal, desired_goal, info):
        same = (achieved_goal == desired_goal).all(axis=-1)
        return bool(same.all()) if self.alone else same

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(100))
        self.left = int(self.np_random.integers(1, 6))
        return self.observe(), {}

    def step(self, action):
        self.state += 1
        self.left -= 1
        obs = self.observe()
        reward = float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}).sum())
        over = self.left == 0
        info = {self.success: self.state % 2 == 0}
        return obs, reward, over, False, info

    def close(self):
        Trail.open -= 1


class Other(Trail):
    """Observations of another space."""

    def __init__(self, parts, action_space=None):
        super().__init__(action_space)
        self.observation_space = Dict(parts)


class Mute(Other):
    compute_reward = property()  # there is none


class Hasty(Trail):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return -info["speed"]


class Truth(Trail):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return super().compute_reward(achieved_goal, desired_goal, info) > 0


class Crashing(Trail):
    def compute_terminated(self, achieved_goal, desired_goal, info):
        return info.get("crashed") > 0


NOTHING = Box(-1, 1, (0,))
WRONG = {
    "NoAchieved": {"desired_goal": POINT, "observation": POINT},
    "NoDesired": {"achieved_goal": POINT, "observation": POINT},
    "Unlike": PARTS | {"achieved_goal": PARTS["observation"]},
    "Unkind": PARTS | {"desired_goal": Box(-1, 1, POINT.shape, np.int64)},
    "OneHot": PARTS | {"achieved_goal": Discrete(5), "desired_goal": Discrete(5)},
    "NoNumbers": PARTS | {"achieved_goal": NOTHING, "desired_goal": NOTHING},
}
TWO = Discrete(2)
gym.register("Hasty-v0", Hasty)
gym.register("Crashing-v0", Crashing)
gym.register("Truth-v0", Truth, kwargs={"action_space": TWO})
for name, space in (("", None), ("Discrete", TWO)):
    keywords = {"action_space": space}
    gym.register(f"{name}Trail-v0", Trail, kwargs=keywords)
    gym.register(f"{name}Mute-v0", Mute, kwargs=keywords | {"parts": PARTS})
    for kind, parts in WRONG.items():
        gym.register(f"{name}{kind}-v0", Other, kwargs=keywords | {"parts": parts})

# lengths of the episodes of each environment, one after the other; of the last it does not end
LENGTHS = [[1, 3, 11, 2, 1, 1, 5], [5, 1, 1, 7, 3, 2, 3], [2, 17, 1, 1, 1]]
K = 4


class Script:
    """Transitions of environments with these lengths, in a replay buffer and in a plain list."""

    def __init__(self, module, capacity, num_envs, env=None, k=K):
        sizes = {"buffer_size": capacity, "num_envs": num_envs, "n_sampled_goal": k}
        space = Box(-np.inf, np.inf, (OBS_DIM,), np.float32)
        agent = SimpleNamespace(action_dim=1)
        run = SimpleNamespace(args=SimpleNamespace(**sizes), obs_space=space, agent=agent, ended=[])
        self.inputs = module, capacity, num_envs, env, k
        self.hindsight = td3_her.Hindsight(run, env or Trail())
        self.hindsight.check_rewards = lambda *transition: None  # these name steps, not goals
        self.buffer = module.ReplayBuffer(run, self.hindsight)
        self.is_dqn = module is dqn_her
        self.num_envs, self.capacity = num_envs, capacity
        self.rows = []
        self.state = np.zeros(num_envs, np.int64)
        self.left = [list(LENGTHS[i]) for i in range(num_envs)]
        self.episode = np.zeros(num_envs, np.int64)

    def reload(self):
        """Goes on with another buffer, which has loaded what this one would save."""
        other = Script(*self.inputs)
        other.buffer.load_state_dict(self.buffer.state_dict())
        other.hindsight.load_state_dict(self.hindsight.state_dict())
        self.buffer, self.hindsight = other.buffer, other.hindsight

    def observe(self):
        obs = np.zeros((self.num_envs, OBS_DIM), np.float32)
        obs[:, 0] = self.state
        obs[:, 1] = np.arange(self.num_envs)
        obs[:, DESIRED] = -100 - self.episode[:, None]  # of the episode's own
        obs[:, ACHIEVED] = np.stack([10 * self.state, np.arange(self.num_envs)], axis=1)
        return obs

    def step(self, times=1):
        for _ in range(times):
            n, obs = self.num_envs, self.observe()
            actions = (self.state % 2).astype(np.int64 if self.is_dqn else np.float32)
            rewards = np.float32(1000 + self.state)
            self.state = self.state + 1
            next_obs = self.observe()
            ended = np.zeros(n, np.bool_)
            for i in range(n):
                self.left[i][0] -= 1
                ended[i] = self.left[i][0] == 0
            terminated = ended & (self.episode % 2 == 0)
            truncated = ended & ~terminated
            for i in range(n):
                row = obs[i], actions[i], rewards[i], next_obs[i], terminated[i]
                self.rows.append((*row, (i, self.episode[i])))
                if ended[i]:
                    self.left[i].pop(0)
            self.state = self.state + ended  # where the next one begins
            self.episode = self.episode + ended
            if self.is_dqn:
                ends = terminated, truncated
                self.buffer.add(obs, actions, rewards, *ends, next_obs, self.observe())
            else:
                actions = actions[:, None]
                self.buffer.add(obs, actions, rewards, next_obs, terminated, truncated)

    def held(self):
        """Of the transitions that are held: obs, actions, rewards, next_obs, terminated, and in a
        list what their episodes reached with them and later.
        """
        first = max(0, len(self.rows) - self.capacity)
        later = [
            {tuple(x[3][ACHIEVED].tolist()) for x in self.rows[r:] if x[5] == self.rows[r][5]}
            for r in range(first, len(self.rows))
        ]
        return [np.array(column) for column in zip(*self.rows[first:], strict=True)][:5], later

    def sample(self, n):
        """A batch, and for each of its rows which of the held ones it is."""
        batch = self.buffer.sample(n, 1, 0.875, np.random.default_rng(len(self.rows)))
        (obs, *_), _ = self.held()
        same = (batch["obs"][:, None, :2] == obs[None, :, :2]).all(axis=2)  # state, environment
        assert (same.sum(axis=1) == 1).all()
        return batch, same.argmax(axis=1)


CASES = [(td3_her, 13, 1), (td3_her, 13, 3), (td3_her, 17, 2), (dqn_her, 7, 1), (dqn_her, 21, 3)]


@pytest.mark.parametrize(
    "module, capacity, num_envs, alone",
    [(*case, False) for case in CASES] + [(td3_her, 13, 3, True)],
)
def test_goals_are_those_that_the_episode_reached_later(module, capacity, num_envs, alone):
    """Against a plain list; before and after the oldest were overwritten, with episodes that run,
    that are of one step, and that are longer than the buffer.
    """
    script = Script(module, capacity, num_envs, Trail(alone=alone))
    for steps in (1, 2, 4, 8, 3, 1):
        script.reload()  # amid episodes
        script.step(steps)
        (obs, actions, rewards, next_obs, terminated), later = script.held()
        batch, which = script.sample(8009)
        for name, array in (("obs", obs), ("next_obs", next_obs)):
            kept = [np.delete(x, DESIRED, axis=1) for x in (batch[name], array[which])]
            np.testing.assert_array_equal(*kept)
        goals = batch["obs"][:, DESIRED]
        np.testing.assert_array_equal(batch["next_obs"][:, DESIRED], goals)
        np.testing.assert_array_equal(batch["actions"].reshape(-1), actions[which])
        assert (batch["discounts"] == np.float32(0.875)).all()
        own = (goals == obs[which][:, DESIRED]).all(axis=1)
        reached = next_obs[which][:, ACHIEVED]
        worth = 2 * reached[:, 0] - 3 * goals[:, 0] + goals[:, 1]
        np.testing.assert_array_equal(batch["rewards"], np.where(own, rewards[which], worth))
        arrived = (reached == goals).all(axis=1)
        ends = np.where(own, terminated[which], arrived)
        np.testing.assert_array_equal(batch["terminated"], ends)
        for r, possible in enumerate(later):
            counts = Counter(map(tuple, goals[(which == r) & ~own].tolist()))
            assert set(counts) == possible
            total = (which == r).sum()
            assert abs(sum(counts.values()) / total - K / (K + 1)) < 5 * np.sqrt(0.16 / total)
            for count in counts.values():  # all equally likely
                p = K / (K + 1) / len(possible)
                assert abs(count / total - p) < 5 * np.sqrt(p * (1 - p) / total)
    assert len(script.rows) > capacity


def test_a_goal_may_change_whether_the_task_ends_and_then_what_follows_counts():
    """In dqn, whose buffer has no last observation of an episode that ended by its task. What its
    own goal does not explain, here of every other that ended, is an end for all goals.
    """
    env = Trail()
    env.compute_terminated = lambda achieved, desired, info: np.isin(desired[:, 0], (-100, -104))
    script = Script(dqn_her, 21, 3, env)
    script.step(7)
    (obs, *_, next_obs, terminated), _ = script.held()
    batch, which = script.sample(211)
    new = batch["obs"][:, DESIRED.start] > -100
    ended = terminated[which]
    crashed = ended & (obs[which][:, DESIRED.start] == -102)
    assert min((ended & new & ~crashed).sum(), (new & crashed).sum()) > 5
    assert batch["terminated"].tolist() == np.where(new, crashed, ended).tolist()
    np.testing.assert_array_equal(batch["next_obs"][:, 0], next_obs[which][:, 0])


def near(achieved, desired):
    return (abs(achieved - desired) <= 10).all(axis=-1)


class Task:
    __module__ = "panda_gym.envs.tasks.reach"
    is_success = staticmethod(near)


@pytest.mark.parametrize("task", [None, Task()], ids=["plain", "panda"])
def test_without_compute_terminated_ends_stay_or_are_the_success_of_panda_gym(task):
    env = Trail()
    env.has_wrapper_attr = lambda name: name != "compute_terminated"
    env.task = task
    script = Script(td3_her, 21, 3, env)
    script.step(7)
    batch, which = script.sample(211)
    *_, next_obs, terminated = (array[which] for array in script.held()[0])
    goals = batch["obs"][:, DESIRED]
    new = (goals[:, 0] > -100) & (task is not None)
    ends = np.where(new, near(next_obs[:, ACHIEVED], goals), terminated)
    assert batch["terminated"].tolist() == ends.tolist()
    assert 0 < ends[new].sum() < new.sum() < 211 or task is None


ONE_AT_A_TIME = {  # each answers otherwise where it gets many goals of two numbers
    "indices": lambda a, d, info: -(abs(a[0] - d[0]) + abs(a[1] - d[1])),
    "sum of rows": lambda a, d, info: -abs(a - d)[0] - abs(a - d)[1],
    "far": lambda a, d, info: -1.0 * (abs(a - d)[0] + abs(a - d)[1] > 0.01),
    "if": lambda a, d, info: 0.0 if np.linalg.norm(a - d, axis=-1) < 3 else -1.0,
    "shape": lambda a, d, info: float(a.shape == (2,)),
    "norm of all": lambda a, d, info: -np.linalg.norm(a - d),
    "the same": lambda a, d, info: 0.0,
}


@pytest.mark.parametrize("name", ONE_AT_A_TIME)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_reward_may_be_of_one_goal_at_a_time(name, n):
    function, each = ONE_AT_A_TIME[name], td3_her.OfEach(ONE_AT_A_TIME[name])
    achieved, desired = np.random.default_rng(n).normal(size=(2, n, 2))
    each(desired[:1], desired[:1])  # where it does not show
    for rows in (slice(None), slice(0, 1)):
        pairs = list(zip(achieved[rows], desired[rows], strict=True))
        assert each(achieved[rows], desired[rows]).tolist() == [function(*p, {}) for p in pairs]


def test_goals_alike_do_not_tell_whether_a_reward_takes_many():
    each = td3_her.OfEach(lambda a, d, info: -np.abs(a - d[0]).sum(axis=-1))  # right for one
    achieved, desired = np.array([[2.0], [3.0], [5.0]]), np.array([[7.0], [11.0], [13.0]])
    assert each(achieved[:1], desired[:1]).tolist() == [-5]
    assert each(achieved[:1].repeat(3, axis=0), desired).tolist() == [-5, -9, -11]
    for _ in range(2):
        assert each(achieved, desired).tolist() == [-5, -8, -8]


def test_a_reward_may_write_into_its_goals():
    def compute_reward(a, d, info):
        a -= d
        return -np.abs(a).sum(axis=-1)

    each, (achieved, desired) = td3_her.OfEach(compute_reward), np.arange(12.0).reshape(2, 3, 2)
    for rows in (slice(0, 1), slice(None)):
        assert each(achieved[rows], desired[rows]).tolist() == [-12, -12, -12][rows]
    assert achieved.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_reward_of_many_may_have_an_axis_too_many():
    each = td3_her.OfEach(lambda a, d, info: -np.abs(a - d).sum(axis=1, keepdims=True))
    for n in (1, 3, 2):
        achieved, desired = np.arange(4.0 * n).reshape(2, n, 2)
        assert each(achieved, desired).tolist() == [-4.0 * n] * n


@pytest.mark.parametrize("k", [K, 0])
def test_what_was_reached_must_be_finite_if_it_becomes_a_goal(k):
    script = Script(td3_her, 21, 1, k=k)
    del script.hindsight.check_rewards  # the method again
    obs, end = script.observe(), np.ones(1, np.bool_)
    next_obs = obs.copy()
    next_obs[:, ACHIEVED] = np.nan
    with pytest.raises(FloatingPointError, match="achieved_goal") if k else nullcontext():
        script.hindsight.add(obs, np.zeros(1), next_obs, end, ~end)


def test_a_mistake_in_a_reward_is_no_answer_for_all():
    each = td3_her.OfEach(lambda a, d, info: np.zeros(()) if a.ndim == 2 else a[7])
    with pytest.raises(IndexError):
        each(np.zeros((3, 2)), np.ones((3, 2)))


def test_what_needs_an_info_is_refused(refused):
    said = refused("td3_her", "--env-id Hasty-v0")
    assert "has no compute_reward that does without an info: KeyError: 'speed'" in said
    said = refused("td3_her", "--env-id Crashing-v0")
    assert "has no compute_terminated that does without an info: TypeError: '>' not" in said


@pytest.mark.parametrize("success, share", [(None, None), (np.array([True]), 1.0), (0, 0.0)])
def test_a_success_may_be_none_or_an_array(success, share):
    script, logged = Script(td3_her, 21, 1), []
    script.hindsight.run.ended = [0]
    script.hindsight.run.next_infos = [{"is_success": success}]
    script.hindsight.run.log = logged.append
    script.step(1)
    (found,) = [scalars["charts/success_rate"] for scalars in logged]
    assert np.isnan(found) if share is None else found == share


@pytest.mark.parametrize("module", [td3_her, dqn_her])
def test_rewards_must_be_compute_reward_s(module, capsys):
    """Here they are 10 * (after the step, before) * 2 - 3 * -100 - 100, and once another. Later on,
    where that of a rare event may be the first one, it is said once.
    """
    script = Script(module, 21, 3)
    del script.hindsight.check_rewards  # the method again
    obs = script.observe()
    script.state = script.state + 1
    next_obs, never = script.observe(), np.zeros(3, np.bool_)
    rewards = 2 * next_obs[:, ACHIEVED][:, 0] - 3 * obs[:, DESIRED][:, 0] + obs[:, DESIRED][:, 1]
    rest = next_obs, never, never
    script.hindsight.add(obs, rewards, *rest)
    moved = next_obs.copy()  # a goal that moved before the reward
    moved[0, DESIRED] = 7
    moved_rewards = rewards.copy()
    moved_rewards[0] = 2 * next_obs[0, ACHIEVED][0] - 3 * 7 + 7
    script.hindsight.add(obs, moved_rewards, moved, never, never)
    script.hindsight.add(obs, rewards, moved, never, never)  # one that moved after it
    with pytest.raises(ValueError, match="but compute_reward says"):
        script.hindsight.add(obs, 0.1 * rewards, *rest)
    script.hindsight.total = 1002
    for factor in (1, 0.1, 0.1):
        script.hindsight.add(obs, factor * rewards, *rest)
    said = capsys.readouterr().out
    assert said.count("warning") == said.count("warning: after 1005 steps rewards are [") == 1
    script.hindsight.run.args.n_sampled_goal = 0  # its parent asks for no compute_reward
    script.hindsight.add(obs, 0.1 * rewards, *rest)


def test_rewards_of_hindsight_are_clipped_as_the_others(monkeypatch):
    batches, relabel = [], td3_her.Hindsight.relabel
    monkeypatch.setattr(
        td3_her.Hindsight, "relabel", lambda *x: batches.append(relabel(*x)) or batches[-1]
    )
    train_her("dqn_her", **trail("dqn_her"), total_timesteps=180, clip_reward=True)
    rewards = np.concatenate([batch["rewards"] for batch in batches])
    assert set(rewards.tolist()) == {-1, 0, 1}
    batches.clear()
    train_her("dqn_her", env_id="test_her:Truth-v0", total_timesteps=180, clip_reward=True)
    rewards = np.concatenate([batch["rewards"] for batch in batches])
    assert set(rewards.tolist()) == {0, 1}


def test_goals_come_as_the_environment_declares_them():
    seen = []

    class Bits(Trail):
        goal = gym.spaces.MultiBinary((2, 1))
        observation_space = Dict(PARTS | {"achieved_goal": goal, "desired_goal": goal})

        def compute_reward(self, achieved_goal, desired_goal, info):
            seen.extend([achieved_goal, desired_goal])
            return achieved_goal[:, 0, 0] - 0.5

        def compute_terminated(self, achieved_goal, desired_goal, info):
            return achieved_goal[:, 1, 0] == 1

    script = Script(td3_her, 13, 3, Bits())
    script.step(5)
    batch = script.buffer.sample(31, 1, 0.9, np.random.default_rng(0))
    assert batch["rewards"].dtype == np.float32 and batch["terminated"].dtype == np.bool_
    assert {goals.dtype for goals in seen} == {np.dtype(np.int8)}
    assert {goals.shape[-2:] for goals in seen} == {(2, 1)}


TINY = dict(num_envs=2, total_timesteps=300, learning_starts=50, buffer_size=100, batch_size=16)
TINY |= dict(hidden_sizes=(16, 16), checkpoint_frequency=130, log_frequency=50, torch_threads=1)
NAMES = [name for name in VARIANTS if name.endswith("_her")]
PARENTS = {"td3_her": "td3", "td3_sac_her": "td3_sac", "dqn_her": "dqn"}


def train_her(name, **settings):
    module = importlib.import_module(name)
    own = TINY | ({"train_frequency": 4} if name[:3] == "dqn" else {})
    return train(module, **own | settings)


def trail(name):
    return {"env_id": f"test_her:{'Discrete' if name == 'dqn_her' else ''}Trail-v0"}


@pytest.mark.parametrize("name", NAMES)
def test_without_goals_of_hindsight_it_is_its_parent(name):
    own = trail(name) if name != "dqn_her" else {"env_id": "tasks:BitFlip-v0"}
    own["total_timesteps"] = 180
    plain = train_her(PARENTS[name], **own, n_step=1)
    same = train_her(name, **own, n_sampled_goal=0)
    assert same.hash() == plain.hash() != train_her(name, **own).hash()
    assert curves(same).keys() - curves(plain).keys() == {"charts/success_rate"}


@pytest.mark.parametrize("name", ["td3_her", "dqn_her"])
def test_processes_change_nothing_and_every_environment_is_closed(name):
    open_before = Trail.open
    settings = trail(name) | {"total_timesteps": 180}
    plain, apart = (train_her(name, **settings, async_envs=x) for x in (False, True))
    assert plain.hash() == apart.hash()
    for run in (plain, apart):
        run.close()
    assert Trail.open == open_before


def test_the_success_rate_is_of_episodes_that_no_checkpoint_cut(monkeypatch):
    """Of an environment whose episodes succeed where they end in an even state."""
    told, logged, ends = [], [], []
    run = new_run(td3_her, **TINY, **trail("td3_her"))

    def look(buffer, obs, actions, rewards, next_obs, terminated, truncated):
        ends.append((terminated | truncated).sum())
        told.extend(next_obs[i, 0] % 2 == 0 for i in run.ended)

    before(monkeypatch, td3_her.ReplayBuffer, "add", look)
    before(monkeypatch, run, "log", lambda scalars: logged.extend(
        rate for name, rate in scalars.items() if name == "charts/success_rate"
    ))  # fmt: skip
    td3_her.train(run.args, run)
    assert logged == told and 50 < len(told) < sum(ends)
    rates = curves(run)["charts/success_rate"]
    assert len(rates) > 4 and 0 < np.mean(list(rates.values())) < 1
    maze, silent = (
        train_her("td3_her", **trail("td3_her"), env_kwargs=json.dumps({"success": name}))
        for name in ("success", "another")
    )
    assert max(curves(maze)["charts/success_rate"].values()) > 0
    assert "charts/success_rate" not in curves(silent)


class Numbered(gym.ObservationWrapper):
    """Has a number for its observation, which flattening makes a one-hot."""

    def __init__(self, env):
        super().__init__(env)
        parts = {**env.observation_space, "observation": gym.spaces.Discrete(7)}
        self.observation_space = gym.spaces.Dict(parts)

    def observation(self, observation):
        return {**observation, "observation": 5}


class Tenfold(gym.Wrapper):
    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, 10 * reward, *rest

    def compute_reward(self, achieved_goal, desired_goal, info):
        return 10 * self.env.unwrapped.compute_reward(achieved_goal, desired_goal, info)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_rewards_are_asked_of_the_environments_of_the_run(asynchronous):
    """Those of a make_envs that a copy of the script gives to main."""

    def make_env(env_id, **keywords):
        return td3.as_vectors(Tenfold(gym.make(env_id, **keywords)))

    run = new_run(td3_her, **TINY, **trail("td3_her"), async_envs=asynchronous)
    run.make_envs = partial(td3.make_envs, make_env=make_env)
    with td3_her.make_goal_env(run) as env:
        goals = np.float32([[1, 2]]), np.float32([[3, 5]])
        plain = env.unwrapped.compute_reward(*goals, {})
        hindsight = td3_her.Hindsight(run, env)
        assert hindsight.env is env
        np.testing.assert_array_equal(hindsight.compute_reward(*goals), 10 * plain)
        assert plain.all()
    run.close()


def test_the_environment_that_is_asked_gets_a_seed_that_all_take():
    run = new_run(td3_her, **TINY, **trail("td3_her"), seed=5_000_000_000)

    class Old(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            np.random.RandomState(seed)
            return self.env.reset(seed=seed, options=options)

    def make_env(env_id, **keywords):
        return td3.as_vectors(Old(gym.make(env_id, **keywords)))

    run.make_envs = partial(td3.make_envs, make_env=make_env)
    with td3_her.make_goal_env(run):
        run.close()


@pytest.mark.parametrize("wrapper", ["stack", "time"])
def test_a_wrapper_that_moves_the_goals_is_refused(wrapper, failure):
    """As one above what flattens does, even where the last part of the Dict is no Box."""

    def make_env(env_id, **keywords):
        env = gym.make(env_id, max_episode_steps=11, **keywords)
        env = td3.as_vectors(Numbered(env))
        if wrapper == "time":
            return gym.wrappers.TimeAwareObservation(env)
        return gym.wrappers.FlattenObservation(gym.wrappers.FrameStackObservation(env, 3))

    run = new_run(td3_her, **TINY, **trail("td3_her"))
    run.make_envs = partial(td3.make_envs, make_env=make_env)
    said = failure(td3_her.train, run.args, run)
    assert "put wrappers below what flattens observations" in said
    run.close()


@pytest.mark.parametrize("name", NAMES)
def test_what_has_no_goals_is_refused(refused, name):
    kind = "Discrete" if name == "dqn_her" else ""
    short = "--total-timesteps 60 --learning-starts 50 --eval-episodes 1"
    for wrong in WRONG:
        said = refused(name, f"--env-id test_her:{kind}{wrong}-v0 {short}")
        assert "has no achieved_goal and desired_goal, like numbers of one shape, in Dict(" in said
    said = refused(name, f"--env-id test_her:{kind}Mute-v0")
    assert "has no compute_reward(achieved_goal, desired_goal, info)" in said
    plain = "CartPole-v1" if name == "dqn_her" else "Pendulum-v1"
    assert f"environment {plain} has no achieved_goal" in refused(name, f"--env-id {plain}")
    assert "n_step=3 must be 1" in refused(name, f"--n-step 3 {short}")
    assert "n_sampled_goal=-1 must lie" in refused(name, "--n-sampled-goal -1")


def test_the_bits_are_flipped():
    env = gym.make("tasks:BitFlip-v0")
    obs, _ = env.reset(seed=1)
    wrong = np.flatnonzero(obs["achieved_goal"] != obs["desired_goal"])
    for action in wrong:
        obs, reward, terminated, _, info = env.step(action)
        assert terminated == info["is_success"] == (action == wrong[-1]) == reward + 1
    env.reset(seed=1)
    ends = [env.step(3)[1:4] for _ in range(12)]  # the same bit over and over
    assert ends == [(-1, False, False)] * 11 + [(-1, False, True)]
    assert obs in env.observation_space


def test_the_arm_turns_and_has_arrived_where_its_tip_is_near():
    env = gym.make("tasks:Reach-v0")
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    angles = np.arctan2(obs["observation"][2:], obs["observation"][:2])
    for step in range(1, 51):
        if step == 50:  # from here on it need not move
            env.unwrapped.goal = obs["achieved_goal"]
        action = env.action_space.sample() * np.float32(step < 50)
        obs, reward, terminated, truncated, info = env.step(action)
        assert obs in env.observation_space and truncated == (step == 50)
        angles = angles + 0.3 * action
        links = np.array([[np.cos(x), np.sin(x)] for x in np.cumsum(angles)])
        np.testing.assert_allclose(obs["achieved_goal"], links.sum(axis=0), atol=1e-5)
        near = np.linalg.norm(obs["achieved_goal"] - obs["desired_goal"]) < 0.1
        assert near == terminated == info["is_success"] and reward == float(near) - 1
    assert near
