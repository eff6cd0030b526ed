"""Parts of the plumbing by themselves: what is sent to environments, what comes back, the curves.

All four scripts have the same bytes of it, so ppo.py stands for them here.
"""

import json
import weakref
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ppo
import pytest
import torch
from conftest import curves, new_run
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space, iterate

# --- actions --------------------------------------------------------------------------------------


def box(low, high, dtype):
    with np.errstate(over="ignore"):  # in float16 gymnasium's own checks overflow
        return Box(np.asarray(low, dtype), np.asarray(high, dtype), dtype=dtype)


LOPSIDED = box([-0.1, 3], [0.3, 1e4], np.float16)  # -0.09998 to 0.30005, 3 to 10000
CUBE = Box(-1, 1, (2, 3), np.float64)
COLUMNS = Tuple((Discrete(3, start=2), Discrete(5, dtype=np.int32), Discrete(2, start=-1)))
DECLARED = {
    "Discrete with a start": (Discrete(3, start=-7), [0, 2, 1], [-7, -5, -6]),
    "int8": (Discrete(3, start=125, dtype=np.int8), [0, 2, 1], [125, 127, 126]),
    "float16": (
        LOPSIDED,
        [[-0.1, 3.0], [0.3001, 1e4], [0.0, 7.5]],
        [[-0.1, 3], [0.3, 1e4], [0, 7.5]],
    ),
    "float64": (
        CUBE,
        [[0.1, -0.2, 0.3, 1 + 1e-12, -1.0, 0.0]],
        [[[0.1, -0.2, 0.3], [1.0, -1.0, 0.0]]],
    ),
    "no axis": (Box(-1, 1, (), np.float64), [[0.1], [-1.0], [1.0]], [0.1, -1.0, 1.0]),
    "MultiDiscrete": (
        MultiDiscrete([2, 3, 5], start=[7, -2, 1], dtype=np.int32),
        [[0, 0, 0], [1, 2, 4]],
        [[7, -2, 1], [8, 0, 5]],
    ),
    "MultiBinary": (MultiBinary(3), [[0, 1, 1], [1, 0, 0]], [[0, 1, 1], [1, 0, 0]]),
}


def is_declared(sent, space, n):
    """What each of n environments gets is an action of its space, to the dtype."""
    got = list(iterate(batch_space(space, n), sent))
    return len(got) == n and all(action in space for action in got)


@pytest.mark.parametrize("name", DECLARED)
def test_actions_are_sent_as_their_space_declares_them(name):
    space, actions, by_hand = DECLARED[name]
    sent = ppo.as_declared(np.array(actions), space)
    assert sent.dtype == space.dtype and sent.shape == (len(actions), *space.shape)
    np.testing.assert_array_equal(sent, np.asarray(by_hand, space.dtype))
    assert is_declared(sent, space, len(actions))


def test_of_a_tuple_every_part_gets_its_column():
    sent = ppo.as_declared(np.array([[0, 4, 1], [2, 0, 0], [1, 3, 1], [0, 1, 0]]), COLUMNS)
    assert [part.tolist() for part in sent] == [[2, 4, 3, 2], [4, 0, 3, 1], [0, -1, 0, -1]]
    assert [part.dtype for part in sent] == [np.int64, np.int32, np.int64]
    assert is_declared(sent, COLUMNS, 4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rounding_takes_no_action_beyond_its_bounds(dtype):
    """As where the bounds are exact in float64, in which agents compute, and not in `dtype`."""
    space = box(np.linspace(0.1, 0.3, 7), np.linspace(1, 9, 7), dtype)
    rng = np.random.default_rng(0)
    near = rng.choice([-1e-9, 0, 1e-9], size=(2, 101, 7))
    for bound, offsets in zip((space.low, space.high), near, strict=True):
        assert is_declared(ppo.as_declared(np.float64(bound) + offsets, space), space, 101)


# --- images ---------------------------------------------------------------------------------------

H, W = 37, 41
SHAPES = {
    "grey": ((H, W), lambda c, y, x: (y, x)),
    "colour": ((H, W, 3), lambda c, y, x: (y, x, c)),
    "colour, channels first": ((3, H, W), lambda c, y, x: (c, y, x)),
    "a stack of grey": ((4, H, W), lambda c, y, x: (c, y, x)),
    "a stack of grey, last": ((H, W, 4), lambda c, y, x: (y, x, c)),
    "a stack of colour": ((4, H, W, 3), lambda c, y, x: (c // 3, y, x, c % 3)),
    "a stack of colour, channels first": ((4, 3, H, W), lambda c, y, x: (c // 3, c % 3, y, x)),
    "more channels than rows": ((100, 84, 84), lambda c, y, x: (c, y, x)),
    "planes of a board": ((8, 8, 12), lambda c, y, x: (y, x, c)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_images_have_their_channels_first(name):
    shape, place = SHAPES[name]
    image = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    found = ppo.channels_first(image)
    h, w = next(((n, n) for n in (84, 8) if n in shape), (H, W))
    assert found.shape == (image.size // (h * w), h, w) and found.dtype == np.uint8
    for c, y, x in np.random.default_rng(1).integers([len(found), h, w], size=(211, 3)):
        assert found[c, y, x] == image[place(c, y, x)]


# --- evaluations ----------------------------------------------------------------------------------


def played(rewards, ends):
    """Returns of two environments, with what each says at each step, (steps, 2)."""
    steps = zip(np.float64(rewards), np.array(ends), strict=True)
    envs = SimpleNamespace(num_envs=2, single_action_space=Discrete(2))
    envs.step = lambda actions: (None, *next(steps), np.zeros(2, np.bool_), {})
    return ppo.play(envs, None, lambda obs: np.zeros(2, np.int64), max_steps=11).tolist()


def test_what_follows_an_evaluated_episode_does_not_count():
    rewards = [[1, 2], [np.nan, 3], [np.inf, 5]]
    assert played(rewards, [[True, False], [False, False], [True, True]]) == [1, 10]
    with pytest.raises(FloatingPointError, match="reward not finite in an evaluation"):
        played(rewards, [[False, True], [True, True], [True, True]])


# --- curves ---------------------------------------------------------------------------------------


def logging_run(**settings):
    """A run of 10 steps to an iteration, with a point of the curves every 20."""
    sizes = dict(num_envs=2, num_steps=5, total_timesteps=1000, log_frequency=20)
    run = new_run(ppo, **sizes, **settings)
    run.start(agent=run.agent)
    return run


def end_iteration(run, found):
    run.step_count += 10
    run.end_iteration(found)


def curve(run, tag):
    return curves(run).get(tag, {})


def test_points_of_the_curves_are_means_since_the_last_one():
    run = logging_run()
    run.log({"losses/a": torch.tensor(2.0), "charts/b": 1})
    run.log({"losses/a": torch.tensor(5.0)})
    end_iteration(run, {"losses/a": 11.0, "charts/c": np.float32(0.5)})
    assert curve(run, "losses/a") == {}
    end_iteration(run, {"charts/b": 8.0})
    run.log({"charts/b": -3.0})
    end_iteration(run, {})
    end_iteration(run, {"losses/a": torch.tensor(7.0)})
    assert curve(run, "losses/a") == {20: 6.0, 40: 7.0}
    assert curve(run, "charts/b") == {20: 4.5, 40: -3.0}
    assert curve(run, "charts/c") == {20: 0.5}


def test_updates_between_two_points_of_the_curves_do_not_pile_up():
    run, alive, most = logging_run(), weakref.WeakSet(), []
    for _ in range(999):
        loss = torch.zeros(())
        alive.add(loss)
        run.log({"losses/a": loss})
        most.append(len(alive))
    assert max(most) < 10


def test_what_is_not_known_is_left_out_of_the_means():
    """As a success rate in an iteration without an episode; the loss must be known always."""
    run = logging_run()
    for success in (np.nan, 0.25, np.float32(np.nan), 0.75, torch.tensor(torch.nan), 0.5):
        end_iteration(run, {"charts/success": success, "losses/a": 3.0})
    assert curve(run, "charts/success") == {20: 0.25, 40: 0.75, 60: 0.5}
    assert curve(run, "losses/a") == {20: 3.0, 40: 3.0, 60: 3.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf, torch.tensor(torch.nan), torch.tensor(-torch.inf)])
def test_a_loss_that_is_no_number_stops_the_run(bad):
    run = logging_run()
    run.log({"losses/a": bad})
    run.log({"losses/a": 1.0})
    end_iteration(run, {"losses/a": 1.0})
    with pytest.raises(FloatingPointError, match="losses/a not finite at step 20"):
        end_iteration(run, {"losses/a": 1.0})


# --- the end of a run -----------------------------------------------------------------------------


def test_a_file_is_on_the_disk_before_it_takes_its_name(monkeypatch, tmp_path):
    done, replace = [], ppo.os.replace
    monkeypatch.setattr(ppo.os, "fsync", lambda number: done.append("synced"))
    monkeypatch.setattr(ppo.os, "replace", lambda *paths: done.append("named") or replace(*paths))
    ppo.write_file(tmp_path / "a", lambda file: done.append("written"))
    assert done == ["written", "synced", "named"]


def test_an_interrupt_that_a_writer_hides_comes_through(tmp_path):
    """As torch.save does, whose file then has an unexpected end."""

    def write(file):
        try:
            raise KeyboardInterrupt(15)
        finally:
            raise RuntimeError("unexpected pos")

    with pytest.raises(KeyboardInterrupt):
        ppo.write_file(tmp_path / "checkpoint.pt", write)
    assert not list(tmp_path.iterdir())


def test_the_last_evaluation_comes_when_all_else_has_ended(monkeypatch):
    """The environments are closed by then, since some simulators run only once; what it takes are
    no seconds of training.
    """
    now, order = [1000.0], []
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: now[0])
    run = logging_run()

    def evaluate():
        order.append("evaluated")
        now[0] += 100
        return np.ones(3)

    monkeypatch.setattr(run, "evaluate", evaluate)
    monkeypatch.setattr(run.envs, "close", lambda: order.append("closed"))
    now[0] += 5
    run.step_count = 10
    run.finish()
    assert order[:2] == ["closed", "evaluated"]
    assert json.loads((run.folder / "result.json").read_text())["seconds"] == 5


def test_a_film_ends_with_the_first_episode():
    ends = iter([[True, False], [False, False], [False, True]])
    none = np.zeros(2, np.bool_)
    envs = SimpleNamespace(num_envs=2, single_action_space=Discrete(2))
    envs.step = lambda actions: (None, np.ones(2), np.array(next(ends)), none, {})
    envs.envs, frames = [SimpleNamespace(render=lambda: "frame")], []
    ppo.play(envs, None, lambda obs: np.zeros(2, np.int64), 11, frames.append)
    assert frames == ["frame"]


def test_before_its_first_step_a_run_has_seen_no_episode_end():
    """What hindsight asks where demonstrations are added."""
    run = new_run(ppo)
    assert len(run.ended) == 0
    run.close()


def test_infos_of_other_vector_environments_are_of_each():
    flags = np.array([[True, False], [False, True]])
    nested = {"x": np.array([0, 5]), "_x": flags[1]}
    infos = {"a": np.array([1, 0]), "_a": flags[0], "b": np.array([3, 4])}
    infos |= {"n": nested, "_n": flags[1]}
    assert ppo.of_each(infos, 2) == [{"a": 1, "b": 3}, {"b": 4, "n": {"x": 5}}]
    ours = {0: {"mine": 6}, 1: {}, "final_info": {0: {"mine": 7}, 1: {}}}
    assert ppo.of_each(ours | infos, 2)[0] == {"mine": 6, "a": 1, "b": 3}
    assert ours[0] == {"mine": 6}


@pytest.mark.parametrize("in_processes", [False, True])
def test_what_a_wrapper_of_all_environments_says_reaches_the_run(in_processes, monkeypatch):
    make_envs = ppo.make_envs

    def wrapped(*inputs, **keywords):
        return gym.wrappers.vector.RecordEpisodeStatistics(make_envs(*inputs, **keywords))

    monkeypatch.setattr(ppo, "make_envs", wrapped)
    run = new_run(ppo, num_envs=2, async_envs=in_processes)
    run.start(agent=run.agent)
    ended = []
    while not len(ended):
        run.step(np.ones(2, np.int64))
        ended = run.ended
    assert run.infos[ended[0]]["episode"]["l"] == run.finished[0][1]
    assert [i for i in range(2) if "episode" in run.infos[i]] == list(ended)
    run.close()


def test_all_environments_are_closed_whatever_one_of_them_raises(capsys):
    closed = []

    def environment(error):
        def close():
            closed.append(error)
            if error is not None:
                raise error

        return SimpleNamespace(close=close)

    errors = [None, OSError("no port"), None, KeyboardInterrupt("stop"), None]
    with pytest.raises(KeyboardInterrupt, match="stop"):
        ppo.close_all([environment(error) for error in errors])
    assert sorted(map(id, closed)) == sorted(map(id, errors))
    assert "closing an environment: OSError('no port')" in capsys.readouterr().err


def test_images_take_all_threads_and_no_number_is_denormal():
    torch.set_num_threads(2)
    torch.set_flush_denormal(False)
    run = new_run(ppo, env_id="environments:Colour-v0", num_envs=1)
    torch.set_num_threads(1)
    assert run.args.torch_threads == 2
    assert (torch.full((61,), 1e-30) * 1e-10).sum() == 0
