"""dqn_apex.py: what actors send, how it comes into the buffer, and a run with its actors in turns.

Where Ray is missing a stand-in calls the actors in this process; what needs Ray itself is slow.
"""

import contextlib
import json
import pickle
import signal
import sys
from types import SimpleNamespace

import dqn
import dqn_apex
import numpy as np
import pytest
import torch
from conftest import ROOT, before, curves, env_seeds, new_run, only_run, stopped, train, wait_for
from gymnasium.spaces import Box, Discrete
from test_dqn_maths import n_step_by_hand
from test_runs import TINY

ENVS, STEPS = 2, 5  # of a fragment
SPACE, ACTIONS = Box(-1e9, 1e9, (3,), np.float32), Discrete(4)


class Handle:
    """An actor in this process: a call is over at once, and what it takes and gives are copies."""

    def __init__(self, actor):
        self.actor, self.collect = actor, self
        self.calls = []
        self.close = SimpleNamespace(remote=actor.close)

    def remote(self, *arguments):
        self.calls.append(arguments)
        answer = self.actor.collect(*pickle.loads(pickle.dumps(arguments)))
        return Answer(answer, len(self.calls), self.actor.index)


class Answer:
    def __init__(self, value, number, actor):
        self.value, self.number, self.actor = pickle.dumps(value), number, actor


class StandIn:
    """Ray's functions that the script calls. Of several answers the newest is ready first."""

    def __init__(self):
        self.options, self.actors, self.most_pending, self.got = [], [], 0, []
        # actors that do not answer; whether one was waited for in vain; what `wait` was told
        self.lost, self.was_lost, self.timeouts = set(), False, []

    def init(self, *address, **settings):
        self.initialised = address, settings

    def cluster_resources(self):
        return {"CPU": 8.0}

    def put(self, arrays):
        arrays = {name: array.copy() for name, array in arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False  # as Ray's are
        return arrays

    def get(self, answer):
        self.got.append(answer.number)  # of this actor's answers
        return pickle.loads(answer.value)

    def wait(self, answers, timeout, num_returns=1):
        assert isinstance(answers, list)
        if num_returns > 1 or answers == [None]:  # of actors that are closed
            return answers, []
        self.most_pending = max(self.most_pending, len(answers))
        self.timeouts.append(timeout)
        ready = [answer for answer in answers if answer.actor not in self.lost][-1:]
        self.was_lost |= not ready
        return ready, [answer for answer in answers if answer not in ready]

    def remote(self, **options):
        self.options.append(options)

        def decorate(actor_class):
            decorated = type("Decorated", (), {})()
            decorated.remote = lambda *arguments: (
                self.actors.append(Handle(actor_class(*arguments))) or self.actors[-1]
            )
            return decorated

        return decorate


@pytest.fixture
def fake(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(dqn_apex, "ray", stand_in)
    return stand_in


SHORT = TINY["dqn"] | dict(learning_starts=48, gradient_steps=1, fragment_steps=16, num_actors=3)
SHORT |= dict(total_timesteps=512, checkpoint_frequency=256, lockstep=True)
del SHORT["exploration_fraction"]


def test_epsilons_are_those_of_the_paper():
    epsilons = dqn_apex.actor_epsilons(4, 0.4, 0.4**8)
    np.testing.assert_allclose(epsilons, [0.4, 0.047, 0.0056, 0.00066], rtol=0.02)
    assert dqn_apex.actor_epsilons(1, 0.4, 0.4**8) == [0.4]
    assert dqn_apex.actor_epsilons(2, 1.0, 0.0).tolist() == [1, 0]


class Stream:
    """The environments of an actor: random steps with ends of both kinds; kept, to be looked at by
    brute force. Observations are (actor, env, number), the last ones of episodes negative.
    """

    single_action_space = ACTIONS

    def __init__(self, actor, network=None, seed=0, **settings):
        args = dict(n_step=3, gamma=0.5, num_envs=ENVS, fragment_steps=STEPS * ENVS) | settings
        self.collector = dqn_apex.Actor(dqn_apex.Args(**args), actor, SPACE, ACTIONS)
        self.actor, self.rng, self.steps = actor, np.random.default_rng(seed), []
        self.collector.agent = network or Sum()
        about = dict(envs=self, obs=self.obs(0), rng=self.rng, step_count=0)
        vars(self.collector).update(about, returns=np.zeros(ENVS), lengths=np.zeros(ENVS))

    def obs(self, number):
        return np.float32([[self.actor, env, number] for env in range(ENVS)])

    def step(self, actions):
        n, rng = len(self.steps), self.rng
        terminated, truncated = rng.random((2, ENVS)) < 0.15
        ended = terminated | truncated
        successors = np.where(ended[:, None], -self.obs(n + 1), self.obs(n + 1))
        rewards = rng.normal(size=ENVS).astype(np.float32)
        self.steps.append((self.obs(n), actions, rewards, terminated, truncated, successors))
        infos = {"final_obs": successors, "_final_obs": ended} if ended.any() else {}
        return self.obs(n + 1), rewards, terminated, truncated, infos

    def fragment(self):
        """Rows and errors."""
        weights = {k: x.numpy() for k, x in self.collector.agent.state_dict().items()}
        fragment = self.collector.collect(weights, 0, 1.0, False)[:2]
        return pickle.loads(pickle.dumps(fragment))


class Sum(dqn.QNetwork):
    """Q of action a is the sum of the observation, plus a."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.device, self.num_actions = torch.device("cpu"), 4

    def forward(self, obs):
        return obs.sum(dim=1, keepdim=True) + torch.arange(4)


def test_first_priorities_are_n_step_errors_by_the_q_acted_on():
    stream = Stream(actor=2)
    for k in range(7):
        (_, errors), steps = stream.fragment(), stream.steps
        assert errors.shape == (STEPS, ENVS)
        for t in range(STEPS):
            for env in range(ENVS):
                first = k * STEPS + t
                history = [[x[env] for x in step] for step in steps[: k * STEPS + STEPS]]
                _, _, rewards, obs, over, discount = n_step_by_hand(history, first, 3, 0.5)
                target = rewards + discount * (0 if over else obs.sum() + 3)
                q = steps[first][0][env].sum() + steps[first][1][env]
                assert errors[t, env] == pytest.approx(abs(target - q), rel=1e-4, abs=1e-4)
    ends = np.array([step[3] for step in stream.steps]), np.array([s[4] for s in stream.steps])
    assert ends[0].any() and (ends[1] & ~ends[0]).any()


class Filled:
    """A buffer with the fragments of three actors, and where each of its steps comes from."""

    def __init__(self, order, capacity=23):
        self.streams = [Stream(actor, seed=actor) for actor in range(1, 4)]
        sizes = {"buffer_size": capacity * ENVS, "num_envs": ENVS}
        args = dqn_apex.Args(**sizes, priority_exponent=1.0)
        self.buffer = dqn_apex.dqn_prioritised.ReplayBuffer(args, SPACE)
        self.origins, self.errors = [], []  # of each step: actor, number; first errors
        for actor in order:
            rows, errors = self.streams[actor].fragment()
            self.errors += list(errors)
            dqn_apex.add_fragment(self.buffer, rows, errors)
            n = len(self.streams[actor].steps)
            self.origins += [(actor, t) for t in range(n - STEPS, n)]

    def expected(self, step, env, n_step, gamma):
        """As the buffer should sample it: until its fragment ends."""
        actor, first = self.origins[step]
        steps, last = self.streams[actor].steps, first // STEPS * STEPS + STEPS - 1
        history = [[x[env] for x in step] for step in steps[: last + 1]]
        return n_step_by_hand(history, first, n_step, gamma)


@pytest.mark.parametrize("n_step", [1, 3, 4, 11])
@pytest.mark.parametrize("order", [[0, 1, 2, 0, 1], [0, 0, 1, 1, 1], [2, 2, 2], [0, 1] * 9, [2]])
def test_steps_of_two_actors_are_never_taken_for_one_episode(order, n_step):
    filled = Filled(order)
    buffer, rng = filled.buffer, np.random.default_rng(0)
    batch = buffer.sample(400, n_step, 0.5, rng)
    for k, (step, env) in enumerate(zip(*buffer.drawn, strict=True)):
        obs, action, rewards, next_obs, over, discount = filled.expected(step, env, n_step, 0.5)
        np.testing.assert_array_equal(batch["obs"][k], obs)
        assert batch["actions"][k] == action
        assert batch["rewards"][k] == pytest.approx(rewards, rel=1e-5, abs=1e-5)
        assert batch["discounts"][k] == pytest.approx(discount)
        assert batch["terminated"][k] == over
        if not over:
            np.testing.assert_array_equal(batch["next_obs"][k], next_obs)


@pytest.mark.parametrize("order", [[0, 1, 2, 0, 1], [1, 1] * 7])
def test_each_step_has_the_priority_its_actor_gave_it(order):
    filled = Filled(order)
    buffer = filled.buffer
    for step in range(max(0, buffer.total - buffer.length), buffer.total):
        for env in range(ENVS):
            priority = buffer.tree[buffer.leaves(step, env)]
            assert priority == pytest.approx(filled.errors[step][env] + 1e-6)


def test_a_fragment_that_is_longer_than_the_buffer_fills_it(fake):
    run = train(dqn_apex, **SHORT | dict(buffer_size=10, fragment_steps=32))
    assert run.parts["buffer"].total == 512 and np.isfinite(run.evaluate()).all()


def small_actor(index=0, env_id="environments:Clock-v0", **settings):
    args = dqn_apex.Args(env_id=env_id, num_envs=ENVS, fragment_steps=3 * ENVS, **settings)
    return dqn_apex.Actor(args, index, Box(0, 1, (1,), np.float32), Discrete(2))


def weights_of(actor, value=0.0):
    arrays = actor.agent.state_dict().items()
    return {name: np.full(x.shape, value, np.float32) for name, x in arrays}


COLUMNS = "obs", "actions", "rewards", "terminated", "truncated", "next_obs", "following_obs"


def columns(rows):
    """Of what an actor sends: (steps, envs, ...) each."""
    return dict(zip(COLUMNS, map(np.array, zip(*rows, strict=True)), strict=True))


def test_what_an_actor_draws_by_torch_follows_from_the_seed_the_step_and_its_number():
    def drawn(index=0, seed=1, step=0):
        actor = small_actor(index, seed=seed)
        actor.collect(weights_of(actor), step, 1.0, True)
        return torch.rand(()).item()

    assert drawn() == drawn()
    assert len({drawn(), drawn(index=1), drawn(seed=2), drawn(step=6)}) == 4


def test_a_sample_of_the_actor_s_own_fragment_knows_its_size_and_has_its_generator(monkeypatch):
    """As the learner's has: for edits of dqn's sample."""
    given = []
    sample = dqn.ReplayBuffer.sample

    def seen(buffer, *arguments):
        given.append(arguments)
        return sample(buffer, *arguments)

    monkeypatch.setattr(dqn.ReplayBuffer, "sample", seen)
    actor = small_actor(n_step=2, gamma=0.5)
    actor.collect(weights_of(actor), 0, 1.0, True)
    assert given == [(3 * ENVS, 2, 0.5, actor.rng)]


def test_an_actor_goes_on_where_its_last_fragment_ended_until_it_is_told_to_begin():
    """Episodes of five steps; fragments of three."""
    actor = small_actor()
    rows, _, finished = actor.collect(weights_of(actor), 0, 1.0, True)
    fragment = columns(rows)
    assert fragment["obs"].ravel() == pytest.approx([0, 0, 0.2, 0.2, 0.4, 0.4])
    assert finished == [] and actor.step_count == 6
    assert fragment["truncated"].tolist() == [[False] * 2, [False] * 2, [True] * 2]
    rows, _, finished = actor.collect(weights_of(actor), 6, 1.0, False)
    fragment = columns(rows)
    assert fragment["obs"][:, 1].ravel() == pytest.approx([0.6, 0.8, 0])
    assert finished == [(5, 5), (5, 5)] and actor.step_count == 12
    assert fragment["truncated"].tolist() == [[False] * 2, [True] * 2, [True] * 2]
    assert fragment["next_obs"][:, 0].ravel() == pytest.approx([0.8, 1, 0.2])
    assert fragment["following_obs"][:, 0].ravel() == pytest.approx([0.8, 0, 0.2])
    rows, _, finished = actor.collect(weights_of(actor), 12, 1.0, True)
    assert rows[0][0].ravel().tolist() == [0, 0]
    assert finished == [] and actor.step_count == 6
    new = small_actor()  # in its place; nobody tells it that it is new
    assert new.collect(weights_of(new), 18, 1.0, False)[0][0][0].ravel().tolist() == [0, 0]


def test_an_actor_acts_by_the_weights_and_epsilon_it_is_sent():
    """Q by the last bias alone: 1 for the second action."""
    actor = small_actor()
    assert not actor.agent.training
    weights = weights_of(actor)
    weights["q_head.2.bias"][1] = 1
    for array in weights.values():
        array.flags.writeable = False
    rows, errors, _ = actor.collect(weights, 0, 0.0, True)
    assert columns(rows)["actions"].tolist() == [[1, 1]] * 3 and errors.min() > 0
    taken = [columns(actor.collect(weights, 0, 1.0, False)[0])["actions"] for _ in range(20)]
    assert 30 < np.sum(taken) < 90


def test_no_two_actors_play_the_same_nor_what_evaluations_play(monkeypatch):
    seeds, actions = [], set()
    look = lambda envs, *entropy: seeds.append(tuple(env_seeds(envs.num_envs, *entropy)))  # noqa: E731
    before(monkeypatch, dqn, "reset", look)
    for index in range(5):
        for step in (0, 1, 2):
            actor = small_actor(index)
            rows = [actor.collect(weights_of(actor), step, 1.0, k == 0)[0] for k in range(6)]
            actions.add(np.concatenate([columns(x)["actions"] for x in rows]).tobytes())
    evaluation = env_seeds(ENVS, 1, 0, 1)  # as Run.evaluate seeds its environments
    assert len(set(seeds)) == len(actions) == 15 and tuple(evaluation) not in seeds


def collected(fake, n, step, end, **settings):
    """Actors, and (actor, fragment) as they come, with a learner whose weights are the step."""
    args = dqn_apex.Args(num_actors=n, num_envs=2, fragment_steps=8, learning_starts=24, **settings)
    args.env_id, space = "environments:Clock-v0", Box(0, 1, (1,), np.float32)
    actors = [fake.remote()(dqn_apex.Actor).remote(args, i, space, Discrete(2)) for i in range(n)]
    values, order = [0], []
    run = SimpleNamespace(arrays=lambda: weights_of(actors[0].actor, values[-1]))
    for actor, _, errors, _ in dqn_apex.fragments(actors, run, args, step, end):
        order.append((actor, 8 * fake.got[-1]))  # the steps that it has then taken
        step += errors.size
        values.append(step)
    asked = sum(len(actor.calls) for actor in actors)
    assert step == end and (asked == len(order) or fake.was_lost)
    return [actor.calls for actor in actors], order


def test_in_lockstep_actors_take_turns(fake):
    calls, order = collected(fake, 3, 40, 96, lockstep=True, broadcast_frequency=8)
    assert order == [(0, 8), (1, 8), (2, 8), (0, 16), (1, 16), (2, 16), (0, 24)]
    for i, of_one in enumerate(calls):
        for k, (weights, step, epsilon, begins) in enumerate(of_one):
            assert begins == (k == 0) and step == 40 + 8 * (3 * k + i)
            assert epsilon == dqn_apex.actor_epsilons(3, 0.4, 0.4**8)[i]
            newest = 40 + 8 * (3 * k + i - 2) if k > 0 else 0  # when its last fragment was used
            assert all((array == newest).all() for array in weights.values())
    calls, _ = collected(fake, 1, 0, 80, lockstep=True, broadcast_frequency=30)
    assert [w["q_head.2.bias"][0] for w, *_ in calls[0]] == [0, 0, 0, 0, 32, 32, 32, 32, 64, 64]
    assert [epsilon for *_, epsilon, _ in calls[0]] == [1.0] * 3 + [0.4] * 7


def test_else_the_first_to_come_is_the_first_to_be_used(fake):
    """The stand-in lets the newest request be the first that is answered."""
    calls, order = collected(fake, 3, 0, 96, broadcast_frequency=8)
    assert order[:3] == [(2, 16), (2, 24), (2, 32)] and len(order) == 12
    assert fake.most_pending == 6  # two requests for each, and never more than are needed
    for of_one in calls:
        assert [begins for *_, begins in of_one] == [True] + [False] * (len(of_one) - 1)


def test_steps_of_a_lost_actor_are_played_by_others(fake, capsys):
    """Of 12 fragments the lost one has two; that they are late is said."""
    fake.lost = {1}
    calls, order = collected(fake, 3, 0, 96, broadcast_frequency=8, actor_timeout=7.0)
    assert [len(of_one) for of_one in calls] == [3, 2, 9] and len(order) == 12
    assert {actor for actor, _ in order} == {0, 2} and set(fake.timeouts) == {7.0}
    assert capsys.readouterr().out == "\nno fragment for 7 s from actors 1\n"
    assert [step for _, step, *_ in calls[1]] == [8, 32]
    assert [of_one[-1][1] for of_one in (calls[0], calls[2])] == [96, 104]


def test_while_all_actors_are_lost_it_waits_and_a_late_answer_is_used(fake, capsys):
    fake.lost = {0, 1}
    wait = fake.wait

    def found_again(answers, timeout):
        if len(fake.timeouts) == 3:
            fake.lost = {0}
        if len(fake.timeouts) == 6:
            fake.lost = set()
        return wait(answers, timeout)

    fake.wait = found_again
    _, order = collected(fake, 2, 0, 48)
    assert [actor for actor, _ in order].count(1) >= 3 and len(order) == 6
    assert capsys.readouterr().out.startswith("\nno fragment for 30 s from actors 0, 1\n" * 3)


def test_with_one_actor_in_lockstep_and_exponent_0_it_is_dqn(fake):
    """Of the same exploration: dqn with an epsilon that never changes and the actor's generator."""
    both = TINY["dqn"] | dict(learning_starts=48, checkpoint_frequency=128, seed=3, double=True)
    both |= dict(start_e=0.4, total_timesteps=504, n_step=1, target_network_frequency=24)
    del both["exploration_fraction"]
    plain = new_run(dqn, **both, end_e=0.4)
    act, own = plain.agent.act, {}

    def act_as_the_actor(obs, epsilon, rng):
        if plain.step_count % plain.checkpoint_steps == 0:
            own["rng"] = np.random.default_rng([3, plain.step_count, 2, 0])
        return act(obs, epsilon, own["rng"])

    plain.agent.act = act_as_the_actor
    dqn.train(plain.args, plain)
    both |= dict(num_actors=1, fragment_steps=8, broadcast_frequency=8, lockstep=True)
    run = train(dqn_apex, **both, priority_exponent=0.0)
    assert run.hash() == plain.hash() and run.step_count == 504


def test_in_a_fragment_of_many_updates_the_target_follows_as_often_as_dqns(fake, monkeypatch):
    """train_frequency 8 and target_network_frequency 24 in fragments of 48: two of six updates."""
    told, update, polyak = [], dqn.update, dqn.polyak

    def learn(q_network, target_q_network, optimizer, *rest):
        assert q_network.training and not target_q_network.training  # for dropout, for example
        rate = optimizer.param_groups[0]["lr"] / dqn.Args.learning_rate
        told.append(round(96 * (1 - rate), 6))  # the step, by its learning rate
        return update(q_network, target_q_network, optimizer, *rest)

    monkeypatch.setattr(dqn, "update", learn)
    monkeypatch.setattr(dqn, "polyak", lambda *nets: (told.append("target"), polyak(*nets)))
    settings = SHORT | dict(fragment_steps=48, total_timesteps=96, target_network_frequency=24)
    run = train(dqn_apex, **settings, train_frequency=8)
    assert told == ["target", 40, "target", 48, 56, 64, "target", 72, 80, 88, "target"]
    assert run.checkpoint_steps == 288  # whole fragments


def test_a_run_in_lockstep_goes_on_where_it_was_stopped(fake):
    settings = SHORT | dict(dueling=True, num_envs=2, n_atoms=3, v_min=-2.0, v_max=4.0)
    whole = train(dqn_apex, **settings)
    assert fake.options[0] == {"num_cpus": 1}  # no actor is replaced
    run = stopped(new_run(dqn_apex, **settings), dqn_apex.train, after=400)
    resumed = train(dqn_apex, **settings, resume=str(run.folder))
    assert resumed.hash() == whole.hash()


def test_a_free_run_replaces_actors_and_takes_all_steps(fake):
    run = train(dqn_apex, **SHORT | dict(lockstep=False))
    replaced = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": -1}
    assert run.step_count == 512 and fake.options == [replaced]


@pytest.mark.parametrize("n, scored", [(1, {0}), (2, {1}), (3, {2}), (4, {2, 3}), (6, {4, 5})])
def test_curves_show_those_that_explore_least(fake, n, scored, monkeypatch):
    """An actor's episodes are as long as its index says."""
    collect = dqn_apex.Actor.collect

    def marked(self, *arguments):
        rows, errors, _ = collect(self, *arguments)
        return rows, errors, [(100 + self.index, 1)]

    monkeypatch.setattr(dqn_apex.Actor, "collect", marked)
    shown = set()
    before(monkeypatch, dqn.Run, "end_iteration", lambda run, _: shown.update(run.finished))
    train(dqn_apex, **SHORT | dict(num_actors=n))
    assert {value - 100 for value, _ in shown} == scored


def test_the_share_of_time_that_the_learner_waits_is_shown(fake, monkeypatch):
    """By a clock that moves three seconds while it waits, and one while it learns."""
    clock, fragments = [0.0], dqn_apex.fragments

    def waits(*arguments):
        for each in fragments(*arguments):
            clock[0] += 3
            yield each

    def learns(*_):
        clock[0] += 1

    monkeypatch.setattr(dqn_apex, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(dqn_apex, "fragments", waits)
    before(monkeypatch, dqn_apex, "add_fragment", learns)
    run = train(dqn_apex, **SHORT | dict(log_frequency=1))
    assert list(curves(run)["charts/learner_waits"].values()) == [0.75] * 32


@pytest.mark.parametrize("ends", [None, KeyboardInterrupt, ConnectionError])
def test_environments_of_actors_are_closed_however_a_run_ends(fake, monkeypatch, ends):
    """And those of before a checkpoint, when new ones are made."""
    opened, closed = [], []

    def interrupted(run, scalars):
        if ends and run.step_count > 400:
            raise ends

    run = new_run(dqn_apex, **SHORT)  # with environments of its own
    own = run.envs
    before(monkeypatch, dqn_apex, "make_envs", lambda *_: opened.append(1))
    before(monkeypatch, dqn.SyncEnvs, "close", closed.append)
    before(monkeypatch, dqn.Run, "end_iteration", interrupted)
    with pytest.raises(ends) if ends else contextlib.nullcontext():
        dqn_apex.train(run.args, run)
    closed = [id(envs) for envs in closed if envs is not own]
    assert len(opened) == len(closed) == len({*closed}) == 6  # three actors, two periods


def test_an_evaluation_needs_no_ray(fake, command, monkeypatch):
    run = train(dqn_apex, **SHORT)
    trained = run.evaluate()
    run.finish()
    run.writer.close()
    monkeypatch.setitem(sys.modules, "ray", None)
    evaluated = command("dqn_apex", "--evaluate", run.folder)
    assert evaluated.hash == run.hash()
    assert evaluated.line("evaluation") == f"return {trained.mean():.1f} +- {trained.std():.1f}"


def test_an_environment_that_an_actor_cannot_make_ends_the_run(fake, monkeypatch):
    """By an error: Ray would take an exit for a crash, and start the actor again for ever."""
    run = new_run(dqn_apex, **SHORT)
    none = lambda *_: dqn.fail("environment CartPole-v1: none")  # noqa: E731
    monkeypatch.setattr(dqn_apex, "make_envs", none)
    with pytest.raises(RuntimeError, match="an actor's machine cannot make CartPole-v1"):
        dqn_apex.train(run.args, run)


@pytest.mark.parametrize("address", [None, "HEAD:6379"])
def test_only_other_machines_get_a_copy_of_the_folder(fake, address, monkeypatch):
    """Here actors find an environment's module as the script does: by PYTHONPATH and folder."""
    answers = lambda *_, **__: SimpleNamespace(close=int)  # noqa: E731
    monkeypatch.setattr(dqn_apex.socket, "create_connection", answers)
    new_run(dqn_apex, **SHORT, ray=address)
    where, settings = fake.initialised
    assert where == (address or "local",) and ("runtime_env" in settings) == (address is not None)


def test_sigterm_still_ends_the_run_where_ray_has_set_a_handler(fake, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    rays = lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_IGN)  # noqa: E731
    monkeypatch.setattr(fake, "init", rays)
    new_run(dqn_apex, **SHORT)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("missing", ["ray", "cluster", "cores"])
def test_what_is_not_there_is_said_in_a_line(fake, missing, monkeypatch, tmp_path, failure):
    if missing == "ray":
        monkeypatch.setattr(dqn_apex, "ray", None)
    address = "ray://127.0.0.1:1" if missing == "cluster" else None
    said = failure(new_run, dqn_apex, num_actors=9 if missing == "cores" else 2, ray=address)
    words = {"ray": "requirements-ray.txt", "cores": "num_actors=9", "cluster": "ray://127.0.0.1:1"}
    assert words[missing] in said and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_on_ray_a_killed_learner_resumes_to_the_end_of_the_stand_in(fake, start, tmp_path):
    """In lockstep: the same with processes as without, and after a SIGKILL."""
    pytest.importorskip("ray")
    settings = dict(num_actors=2, total_timesteps=2000, checkpoint_frequency=800, lockstep=True)
    expected = train(dqn_apex, **settings, runs_dir="stand-in").hash()

    def second_checkpoint():
        found = list(tmp_path.glob("runs/*/*/*/checkpoint.pt"))
        return found and torch.load(found[0], weights_only=True)["step"] >= 800

    process = start(
        "dqn_apex", "--num-actors 2 --total-timesteps 2000 --checkpoint-frequency 800 --lockstep"
    )
    wait_for(lambda: second_checkpoint() or process.poll() is not None)
    process.kill()
    process.wait()
    folder = only_run(tmp_path)
    assert not (folder / "result.json").exists()
    assert start("dqn_apex", "--resume", folder).wait() == 0, (tmp_path / "err").read_text()
    assert json.loads((folder / "result.json").read_text())["run_hash"] == expected


@pytest.fixture
def ray(monkeypatch):
    """Ray, whose actors find the script by PYTHONPATH: it is no script that runs here."""
    found = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'algos'}:{ROOT / 'tests'}")
    yield found
    found.shutdown()


@pytest.mark.slow
def test_on_ray_an_actor_that_dies_is_replaced(ray, monkeypatch):
    came, fragments = [], dqn_apex.fragments

    def kill_one(actors, *rest):
        for each in fragments(actors, *rest):
            came.append((each[0], each[1][0][0], each[1][-1][-1]))
            if len(came) == 20:
                ray.kill(actors[1], no_restart=False)
                ray.get(actors[1].__ray_ready__.remote())  # another one is
            yield each

    monkeypatch.setattr(dqn_apex, "fragments", kill_one)
    settings = dict(env_id="tasks:WaitingCartPole-v0", num_actors=2, total_timesteps=6000)
    run = train(dqn_apex, **settings, gradient_steps=1)
    assert run.step_count == 6000
    of_one = [(n, *fragment) for n, (actor, *fragment) in enumerate(came) if actor == 1]
    pairs = zip(of_one[1:], of_one, strict=False)
    # where an actor's fragment does not go on where its last one ended
    begins = [n for (n, obs, _), (*_, end) in pairs if not np.array_equal(obs, end)]
    assert len(begins) == 1 and begins[0] > 19 and sum(n > begins[0] for n, *_ in of_one) > 2


def test_an_actor_clips_rewards():
    odd = dict(env_id="environments:Broken-v0", env_kwargs='{"reward": -7}')
    for clip, reward in ((True, -1), (False, -7)):
        actor = small_actor(**odd, clip_reward=clip)
        rows, *_ = actor.collect(weights_of(actor), 0, 1.0, True)
        assert (columns(rows)["rewards"] == reward).all()


def test_each_actor_has_a_core_for_one_thread(fake):
    torch.set_num_threads(2)
    small_actor()
    assert torch.get_num_threads() == 1
    new_run(dqn_apex, **SHORT | dict(num_actors=5))
    _, settings = fake.initialised
    assert settings["num_cpus"] == 5  # also where the machine has fewer


def test_the_learner_shows_its_losses(fake):
    run = train(dqn_apex, **SHORT | dict(log_frequency=1))
    assert {"losses/td_loss", "losses/q_values", "losses/q_spread"} <= curves(run).keys()


def test_first_priorities_of_distributions_are_cross_entropies():
    actor = small_actor(n_atoms=3, v_min=-2.0, v_max=4.0, n_step=1, gamma=0.5)
    rng, arrays = np.random.default_rng(1), actor.agent.state_dict().items()
    weights = {name: np.float32(rng.normal(size=x.shape)) for name, x in arrays}
    weights["support"] = actor.agent.support.numpy().copy()
    rows, errors, _ = actor.collect(weights, 0, 1.0, True)
    sent = {name: torch.as_tensor(x).flatten(0, 1) for name, x in columns(rows).items()}
    batch = {name: sent[name] for name in ("obs", "actions", "terminated", "next_obs")}
    batch["rewards"] = sent["rewards"].float()
    batch["discounts"] = torch.full_like(batch["rewards"], 0.5)
    _, expected, _ = dqn.c51_losses(actor.agent, actor.agent, batch, actor.args)
    np.testing.assert_allclose(errors.ravel(), expected, rtol=1e-5)
