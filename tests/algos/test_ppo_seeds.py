"""ppo_seeds.py: each of several seeds learns what it would learn alone."""

import contextlib
import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import ppo
import ppo_seeds
import pytest
import report
import torch
from conftest import before, new_run, scalars, train, vector
from torch import nn

CARTPOLE = {"total_timesteps": 1024, "checkpoint_frequency": 512, "num_minibatches": 4}
PENDULUM = {"env_id": "Pendulum-v1", "num_envs": 2, "num_steps": 64, "total_timesteps": 512}
PENDULUM |= {"norm_obs": True, "norm_reward": True, "clip_vloss": True, "ent_coef": 0.01}


@pytest.fixture
def train_seeds(monkeypatch):
    """train_seeds(**settings) trains and returns the runs of all seeds."""
    made, make_runs = [], ppo_seeds.make_runs
    monkeypatch.setattr(ppo_seeds, "make_runs", lambda *x: made.append(make_runs(*x)) or made[-1])

    def train(**settings):
        run = new_run(ppo_seeds, **{"eval_episodes": 2} | settings)
        run.args.check()  # as main does before it makes a run
        run.settings = dataclasses.asdict(run.args)
        with contextlib.redirect_stdout(None):
            ppo_seeds.train(run.args, run)
        return list(made[-1][0].values())

    return train


@pytest.mark.parametrize("settings", [CARTPOLE, PENDULUM], ids=["discrete", "continuous"])
def test_each_seed_learns_what_ppo_learns_with_that_seed(train_seeds, settings):
    runs = train_seeds(num_seeds=3, seed=5, **settings)
    assert [run.args.seed for run in runs] == [5, 6, 7]
    start = new_run(ppo, **settings, seed=6)
    for run in runs:
        expected = train(ppo, **settings, seed=run.args.seed)
        np.testing.assert_allclose(vector(run.agent), vector(expected.agent), atol=5e-5)
        np.testing.assert_allclose(run.returns, expected.returns, rtol=1e-3)
        curves = []
        for each in (run, expected):
            if each.writer:  # train has closed the others
                each.writer.flush()
            curves.append(scalars(each.folder))
        assert curves[0].keys() - {("eval/episodic_return", run.step_count)} == curves[1].keys()
        for point, values in curves[1].items():
            assert curves[0][point] == pytest.approx(values, rel=1e-2, abs=1e-4), point
    assert (vector(runs[1].agent) - vector(start.agent)).abs().max() > 1e-3  # it did learn


@pytest.mark.parametrize(
    "settings",
    [
        {"anneal_lr": False},
        {"anneal_clip": False},
        {"clip_reward": True, "env_id": "Pendulum-v1"},
        {"norm_adv": False, "num_minibatches": 128, "update_epochs": 1, "total_timesteps": 256},
        {"env_id": "environments:Global-v0"},  # draws from generators that a process shares
        # the last observation is none, the last rollout has one step
        {"env_id": "environments:Ending-v0", "env_kwargs": '{"last": NaN}', "total_timesteps": 264},
    ],
    ids=str,
)
def test_every_setting_and_every_generator_has_its_effect_on_each_seed(train_seeds, settings):
    settings = {"total_timesteps": 512, "num_minibatches": 2} | settings
    for run in train_seeds(num_seeds=2, **settings):
        expected = train(ppo, **settings, seed=run.args.seed)
        np.testing.assert_allclose(vector(run.agent), vector(expected.agent), atol=1e-5)
        np.testing.assert_allclose(run.returns, expected.returns, rtol=1e-4, atol=1e-4)


def test_dropout_and_batch_normalisation_are_for_learning_alone(train_seeds, monkeypatch):
    """Dropout draws a noise of its own for each seed; statistics of a layer stay with their own."""
    make_networks = ppo.Agent.make_networks

    def with_layers(agent, args, input_shape, num_outputs):
        make_networks(agent, args, input_shape, num_outputs)
        agent.actor = nn.Sequential(nn.BatchNorm1d(*input_shape), nn.Dropout(0.5), agent.actor)

    monkeypatch.setattr(ppo.Agent, "make_networks", with_layers)
    settings = {"total_timesteps": 512, "update_epochs": 3}
    runs = train_seeds(num_seeds=2, **settings)
    for run in runs:
        np.testing.assert_array_equal(run.evaluate(), run.evaluate())
        mine, theirs = run.agent.actor[0], train(ppo, **settings, seed=run.args.seed).agent.actor[0]
        assert mine.num_batches_tracked == theirs.num_batches_tracked == 6
        torch.testing.assert_close(mine.running_mean, theirs.running_mean, atol=0.1, rtol=0.1)
    means = [run.agent.actor[0].running_mean.numpy() for run in runs]
    assert np.abs(means[0] - means[1]).min() > 1e-4


def test_a_parameter_of_one_number_learns(train_seeds, monkeypatch):
    make_networks = ppo.Agent.make_networks

    class Scaled(nn.Sequential):
        def __init__(self, layers):
            super().__init__(layers)
            self.temperature = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return super().forward(x) / self.temperature

    def scaled(agent, *sizes):
        make_networks(agent, *sizes)
        agent.actor = Scaled(agent.actor)

    monkeypatch.setattr(ppo.Agent, "make_networks", scaled)
    for run in train_seeds(num_seeds=2, total_timesteps=512):
        expected = train(ppo, total_timesteps=512, seed=run.args.seed)
        np.testing.assert_allclose(vector(run.agent), vector(expected.agent), atol=1e-5)
        assert run.agent.actor.temperature != 2


def test_every_seed_has_the_agent_that_main_was_given(tmp_path):
    class Agent(ppo.Agent):
        pass

    def make_agent(args, obs_space, action_space):
        return ppo.make_agent(args, obs_space, action_space, Agent)

    args = ppo_seeds.Args(num_seeds=3, runs_dir=str(tmp_path), **CARTPOLE)
    first = ppo.Run("own", args, make_agent, ppo.evaluation_policy)
    first.start(agent=first.agent)
    with contextlib.ExitStack() as stack:
        runs, _ = ppo_seeds.make_runs(args, first, stack)
        assert [type(run.agent) for run in runs.values()] == [Agent] * 3
    first.close()


def test_no_seed_depends_on_another_nor_on_what_a_loss_shows(train_seeds, monkeypatch):
    first, ppo_loss = train_seeds(num_seeds=3, **CARTPOLE), ppo.ppo_loss

    def with_a_plain_number(agent, minibatch, args, clip_coef):
        loss, terms, log_ratio = ppo_loss(agent, minibatch, args, clip_coef)
        count = torch.tensor(len(minibatch["obs"]))
        return loss, terms | {"clip_coef": clip_coef, "count": count}, log_ratio

    monkeypatch.setattr(ppo, "ppo_loss", with_a_plain_number)
    second = train_seeds(num_seeds=2, **CARTPOLE)
    hashes = [[run.hash() for run in runs] for runs in (first, second)]
    assert hashes[0][:2] == hashes[1] and len(set(hashes[0])) == 3


@pytest.mark.parametrize(
    "field, values",
    [
        ("learning_rate", (1e-3, 4e-3)),
        ("gamma", (0.5, 0.9)),
        ("gae_lambda", (0.1, 0.9)),
        ("max_grad_norm", (1e-3, 10.0)),  # a clip over all gradients would couple them
    ],
)
def test_settings_may_differ_between_seeds(train_seeds, field, values):
    settings = {"total_timesteps": 512, "num_minibatches": 2}
    runs = train_seeds(num_seeds=2, vary=(field, *map(str, values)), **settings)
    found = [(getattr(run.args, field), run.args.seed) for run in runs]
    assert found == [(values[0], 1), (values[0], 2), (values[1], 1), (values[1], 2)]
    for (value, seed), run in zip(found, runs, strict=True):
        saved = json.loads((run.folder / "args.json").read_text())["args"]
        assert (saved[field], saved["seed"]) == (value, seed)
    for run in runs[1:3]:
        expected = train(ppo, **settings, seed=run.args.seed, **{field: getattr(run.args, field)})
        np.testing.assert_allclose(vector(run.agent), vector(expected.agent), atol=1e-5)


def test_a_gradient_is_the_same_to_the_bit_whoever_takes_one_beside_it():
    """Arrays of 63 begin at odd addresses, so that a product rounds by its place in the stack."""
    runs = [new_run(ppo, seed=k, hidden_size=63) for k in range(5)]
    seeds = [ppo_seeds.Seed(place, run) for place, run in enumerate(runs)]
    rng, n = np.random.default_rng(0), 127
    names = "log_probs", "advantages", "values", "returns"
    batch = {name: torch.as_tensor(rng.normal(size=(5, n)), dtype=torch.float32) for name in names}
    batch["obs"] = torch.as_tensor(rng.normal(size=(5, n, 4)), dtype=torch.float32)
    batch["actions"] = torch.as_tensor(rng.integers(2, size=(5, n)))

    def after_a_step(chosen):
        for run in runs:
            run.agent.load_state_dict({k: x.clone() for k, x in first[run.args.seed].items()})
        minibatch = {name: tensor[chosen] for name, tensor in batch.items()}
        ppo_seeds.gradient_steps([seeds[k] for k in chosen], minibatch, 0.2)
        return [[p.grad.numpy().tobytes() for p in seeds[k].agent.parameters()] for k in chosen]

    first = [{k: x.clone() for k, x in run.agent.state_dict().items()} for run in runs]
    whole = after_a_step([0, 1, 2, 3, 4])
    for chosen in ([3], [0], [1, 4], [2, 3, 4], [0, 1]):
        assert after_a_step(chosen) == [whole[k] for k in chosen]


SETTINGS = "--num-seeds 3 --total-timesteps 768 --checkpoint-frequency 256".split()
SETTINGS += "--norm-obs --eval-episodes 2".split()
SETTINGS += "--hidden-size 63".split()  # stacked arrays begin at odd addresses


def stopped(monkeypatch, method, seed, step):
    """A run of these settings that is stopped when `method` of this seed's run is called there, or
    when the file of this name would be written.
    """
    apart = ["--runs-dir", f"{method}{seed}"]  # or one of the same second would be numbered
    args = ppo.parse_args("ppo_seeds", ppo_seeds.Args, [*SETTINGS, *apart])
    run = ppo.Run("ppo_seeds", args, ppo_seeds.make_agent, ppo.evaluation_policy)
    owner, name = (ppo, "write_file") if "." in method else (ppo.Run, method)

    def stop(self, *_, **__):
        if owner is ppo:
            stops = self.name == method and self.parent.name.endswith(f"-{seed}-{seed}")
        else:
            stops = self.args.seed == seed and self.step_count >= step
        if stops:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before(patch, owner, name, stop)
        ppo_seeds.train(args, run)
    return run.folder


def test_it_resumes_exactly_and_ends_with_ordinary_run_folders(command, tmp_path, monkeypatch):
    trained = command("ppo_seeds", " ".join(SETTINGS))
    folder, *others = sorted(tmp_path.glob("runs/CartPole-v1/ppo_seeds/*"))
    assert [path.name.removeprefix(folder.name) for path in others] == ["-2-2", "-3-3"]
    hashes = []
    for path in (folder, *others):
        evaluated = command("ppo_seeds", "--evaluate", path)
        hashes.append(evaluated.hash)
        seed = len(hashes)
        assert f"seed {seed}       return {evaluated.line('evaluation').split()[1]}," in trained.out
    assert trained.hash == hashes[0] and len(set(hashes)) == 3

    for path in others:  # a run of its own, which can be resumed by itself
        saved = json.loads((path / "args.json").read_text())["args"]
        assert (saved["num_seeds"], saved["vary"]) == (1, None)
    first, *rest = map(report.read_run, (folder, *others))
    assert not any(report.differences(run, first) for run in rest)  # but one cell of results

    stops = [("end_iteration", 1, 300), ("save", 2, 256), ("save", 3, 256)]  # between saves
    stops += [("start", 2, 0), ("finish", 3, 0)]  # before a seed's first checkpoint; in the report
    stops += [("args.json", 2, 0), ("args.json", 3, 0)]  # and right after it
    stacks = []  # of gradient steps: the seed in each place
    look = lambda losses: stacks.append([loss.args.seed for loss in losses])  # noqa: E731
    before(monkeypatch, torch.func, "stack_module_state", look)
    for method, seed, step in stops:
        path = stopped(monkeypatch, method, seed, step)
        elsewhere = tmp_path / f"{method}{seed}-{step}"  # folders may be moved together
        path = shutil.copytree(path.parent, elsewhere) / path.name
        with contextlib.chdir(path):
            assert command("ppo_seeds", "--resume .").hash == hashes[0]
        others = sorted(path.parent.glob(f"{path.name}-*"))
        runs = [report.read_run(x) for x in (path, *others)]  # which needs args.json, too
        assert [x["result"]["run_hash"] for x in runs] == hashes
    # some processors round alike in every place, so that the hashes would not show another place
    assert any(1 not in stack for stack in stacks)  # 2 and 3 went on without it
    assert all(stack[seed - 1 : seed] == [seed] for stack in stacks for seed in stack)


def test_the_mean_of_the_middle_half():
    assert ppo_seeds.iqm(np.array([9, 2, 1, 3, 1000.0])) == pytest.approx((2 + 3 + 9) / 3)
    np.testing.assert_allclose(ppo_seeds.iqm([[0, 1, 2, 3, 4, 5, 6, 70]] * 2), [3.5, 3.5])


@pytest.mark.parametrize("ends", [None, KeyboardInterrupt])
def test_all_environments_are_closed_however_a_run_ends(train_seeds, monkeypatch, ends):
    closed = []

    def interrupted(run, scalars):
        if ends and run.args.seed == 2:
            raise ends

    before(monkeypatch, ppo.Run, "end_iteration", interrupted)
    before(monkeypatch, ppo.Run, "close", lambda run: closed.append(run.args.seed))
    with pytest.raises(ends) if ends else contextlib.nullcontext():
        train_seeds(num_seeds=3, total_timesteps=256)
    assert sorted(closed) == [2, 3]  # ppo.main closes the first


def test_those_that_are_made_are_closed_when_the_next_cannot_be(train_seeds, monkeypatch):
    closed = []

    def no_memory(args, folder, first):
        if args.seed == 3:
            raise MemoryError

    before(monkeypatch, ppo_seeds, "make_run", no_memory)
    before(monkeypatch, ppo.Run, "close", lambda run: closed.append(run.args.seed))
    with pytest.raises(MemoryError):
        train_seeds(num_seeds=3, total_timesteps=256)
    assert closed == [2]


def test_the_interval_is_that_of_95_percent(tmp_path, capsys):
    """Of three draws of 0, 30, 60 all are the least in 1 of 27: more than 2.5%, less than 5%."""
    folders = [tmp_path / str(seed) for seed in (4, 5, 6)]
    for folder, value in zip(folders[1:], (60, 0), strict=True):
        folder.mkdir()
        result = {"seed": int(folder.name), "eval_return_mean": value}
        (folder / "result.json").write_text(json.dumps(result))
    args = SimpleNamespace(seed=4, num_seeds=3, vary=None)
    first = SimpleNamespace(args=args, evaluate=lambda: np.array([20, 40]))
    ppo_seeds.report([first], folders)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"seed 4       return 30.0, in {folders[0]}"
    assert lines[1] == f"seed 5       return 60.0, in {folders[1]}"
    assert lines[3] == "all 3 seeds   mean 30.0, IQM 30.0"
    assert lines[4] == "95% interval   of the IQM, by bootstrap: 0.0 to 60.0"


def test_each_value_that_is_varied_has_its_own_summary(monkeypatch, capsys):
    results = [
        {"seed": seed, "eval_return_mean": value} for seed, value in ((5, 2), (4, 6), (5, 8))
    ]
    monkeypatch.setattr(ppo_seeds, "result_of", lambda place: results[place - 1])
    args = SimpleNamespace(seed=4, num_seeds=2, vary=("gamma", "0.9", "0.99"))
    first = SimpleNamespace(args=args, evaluate=lambda: np.array([0]))
    ppo_seeds.report([first], range(4))
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    returns = [x[3] for x in words if x[0] in ("seed", "all")]
    assert returns == ["0.0,", "2.0,", "mean", "6.0,", "8.0,", "mean"]
    assert [x[4] for x in words if x[0] == "all"] == ["1.0,", "7.0,"]
    assert [x for x in words if x[0] == "gamma"] == [["gamma", "0.9"], ["gamma", "0.99"]]


def test_the_largest_norms_are_where_the_gradients_are():
    weights = {"layer": nn.Parameter(torch.ones(2, 3, device="meta"))}
    weights["layer"].grad = torch.ones(2, 3, device="meta")
    ppo_seeds.clip_each([0.5, 0.5], weights)  # which would fail if they were on the CPU


def test_a_broken_result_of_a_seed_is_said_in_a_line(tmp_path, failure):
    (tmp_path / "result.json").write_text("{")
    assert f"{tmp_path}/result.json: " in failure(ppo_seeds.result_of, tmp_path)
