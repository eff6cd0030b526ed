"""What every script promises of a run: it repeats, resumes, saves, and refuses wrong input.

What main, Run and the other plumbing do is tested with ppo: all four have the same bytes of it.
"""

import ast
import dataclasses
import hashlib
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import dqn
import imageio
import numpy as np
import ppo
import pytest
import torch
from conftest import (
    ROOT,
    SCRIPTS,
    Result,
    calls,
    lacks_package,
    new_run,
    only_run,
    parse,
    scalars,
    stopped,
    train,
)
from tqdm import tqdm

STEPS = {"ppo": 2048, "td3": 512}  # td3 has an update to every step
SHORT = {  # runs that still update; the replay buffer wraps
    "ppo": "--total-timesteps 2048 --checkpoint-frequency 512 --eval-episodes 3",
    "td3": "--total-timesteps 512 --checkpoint-frequency 256 --env-id Pendulum-v1 "
    "--learning-starts 100 --buffer-size 300 --batch-size 16 --hidden-sizes 16 16 "
    "--log-frequency 50 --eval-episodes 3",
}
TAGS = {
    "ppo": "charts/learning_rate losses/policy_loss losses/value_loss losses/entropy "
    "losses/approx_kl losses/clipfrac losses/explained_variance",
    "a2c": "charts/learning_rate losses/policy_loss losses/value_loss losses/entropy "
    "losses/explained_variance",
    "dqn": "charts/epsilon charts/learning_rate losses/td_loss losses/q_values losses/q_spread",
    "td3": "losses/qf1_loss losses/qf2_loss losses/qf1_values losses/actor_loss",
}
TINY = {  # two checkpoints and more; the schedules and the replay buffers go across them
    "ppo": dict(num_envs=4, num_steps=16, total_timesteps=512, env_id="Pendulum-v1", norm_obs=True),
    "a2c": dict(num_envs=4, num_steps=8, total_timesteps=512, norm_reward=True),
    "dqn": dict(total_timesteps=512, learning_starts=50, exploration_fraction=1.0, n_step=3,
        target_network_frequency=150, buffer_size=200, hidden_sizes=(16, 16)),
    "td3": dict(total_timesteps=512, learning_starts=50, env_id="Pendulum-v1", batch_size=16,
        buffer_size=200, hidden_sizes=(16, 16)),
    "td3 of norms": dict(total_timesteps=384, learning_starts=150, env_id="Pendulum-v1",
        batch_size=16, buffer_size=200, hidden_sizes=(16, 16), norm_obs=True, layer_norm=True),
    "dqn of frames": dict(env_id="ALE/Breakout-v5", total_timesteps=384, num_envs=2,
        learning_starts=50, train_frequency=64, gradient_steps=1, batch_size=16, n_step=3,
        buffer_size=200, checkpoint_frequency=256, episodic_life=True, clip_reward=True,
        torch_threads=1),
}  # fmt: skip


@pytest.fixture(params=SCRIPTS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """finished("ppo"): the folder in which a copy of algos/ppo.py, all alone, has trained once, and
    what it wrote to stdout and stderr.
    """
    done = {}

    def run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            shutil.copy(ROOT / "algos" / f"{name}.py", folder / "mine.py")
            flags = f"{SHORT[name]} --eval-frequency {STEPS[name] // 4} --exp-name my-try"
            process = subprocess.run(
                [sys.executable, "mine.py", *flags.split()],
                cwd=folder,
                env={"OMP_NUM_THREADS": "1"},  # and no PYTHONPATH
                capture_output=True,
                text=True,
            )
            assert process.returncode == 0, process.stderr
            done[name] = folder, Result(0, process.stdout, process.stderr)
        return done[name]

    return run


def test_the_seed_rules_the_first_weights_and_what_is_drawn(name, tmp_path):
    """In an environment that is the same for every seed, so that it does not tell them apart."""
    module = importlib.import_module(name)
    env = "EndingBox" if name == "td3" else "Ending"
    settings = TINY[name] | dict(env_id=f"environments:{env}-v0", total_timesteps=128)
    for seed in (1, 2):
        np.savez(f"{seed}.npz", **new_run(module, **settings, seed=seed).arrays())
    first, second = (np.load(tmp_path / f"{seed}.npz") for seed in (1, 2))
    weights = [key for key in first if key.endswith("weight")]
    assert weights and not any(np.array_equal(first[key], second[key]) for key in weights)
    settings["init_weights"] = "1.npz"
    assert len({train(module, **settings, seed=seed).hash() for seed in (1, 2)}) == 2


def test_the_seed_rules_what_spaces_draw():
    run = new_run(ppo, **TINY["ppo"])
    drawn = []
    for _ in range(2):
        ppo.reset(run.envs, 3, 5)
        spaces = run.envs.action_space, run.envs.single_action_space
        drawn.append([[space.sample() for _ in range(20)] for space in spaces])
    np.testing.assert_equal(*drawn)


def test_an_evaluation_leaves_the_generators_that_all_share():
    """In an environment whose rewards come from those of Python and NumPy."""
    settings = TINY["ppo"] | dict(env_id="environments:Global-v0", eval_episodes=3)
    hashes = {train(ppo, **settings, eval_frequency=n).hash() for n in (0, 100)}
    assert len(hashes) == 1
    assert train(ppo, **settings, seed=2).hash() not in hashes


def test_an_evaluation_leaves_the_generator_of_torch_and_does_not_depend_on_it(monkeypatch):
    """And the same of the run's own: an edited policy may draw from both."""

    def sample(agent, outputs, rng, greedy=False):
        drawn = torch.distributions.Categorical(logits=outputs).sample()
        return (drawn + torch.as_tensor(rng.integers(2, size=len(drawn)))) % 2

    monkeypatch.setattr(ppo.Agent, "sample", sample)
    runs = [train(ppo, total_timesteps=512, eval_frequency=n, eval_episodes=5) for n in (0, 256)]
    assert runs[0].hash() == runs[1].hash()
    returns = [runs[0].evaluate().tolist()]
    torch.rand(7)
    returns.append(runs[0].evaluate().tolist())
    assert returns[0] == returns[1] and len({*returns[0]}) > 1


def test_an_argument_without_a_value_comes_back_as_that(tmp_path):
    @dataclasses.dataclass
    class Args(ppo.RunArgs):
        share: float | None = 0.5
        file: Path = Path("a")

    run = ppo.Run("ppo", Args(share=None, file=Path("b")), ppo.make_agent, ppo.evaluation_policy)
    run.start(agent=run.agent)
    args = ppo.parse_args("ppo", Args, ["--resume", str(run.folder)])
    assert args.share is None and args.file == Path("b")


def test_an_argument_that_cannot_come_back_ends_the_run_before_it_begins(failure):
    @dataclasses.dataclass
    class Args(ppo.RunArgs):
        weights: dict[str, float] = dataclasses.field(default_factory=lambda: {"speed": 1.0})

    run = ppo.Run("ppo", Args(), ppo.make_agent, ppo.evaluation_policy)
    assert "--weights" in failure(run.start, agent=run.agent) and run.step_count == 0


def test_a_notebook_may_extend_the_arguments(monkeypatch):
    """Its classes are in a module without a file."""

    @dataclasses.dataclass
    class Args(ppo.RunArgs):
        share: float = 0.5

    Args.__module__ = "notebook"
    monkeypatch.setitem(sys.modules, "notebook", types.ModuleType("notebook"))
    run = ppo.Run("ppo", Args(), ppo.make_agent, ppo.evaluation_policy)
    run.start(agent=run.agent)
    assert json.loads((run.folder / "args.json").read_text())["args"]["share"] == 0.5


def test_a_script_without_a_docstring_has_help_too(monkeypatch, capsys):
    monkeypatch.setattr(ppo, "__doc__", None)
    assert ppo.parse_args("ppo", ppo.RunArgs, ["--seed", "3"]).seed == 3


def test_the_hash_of_a_variant_covers_what_it_builds_on():
    for name, files in (("ppo_rnd", "ppo"), ("dqn_quantile", "dqn dqn_prioritised")):
        run = new_run(importlib.import_module(name))
        run.start(agent=run.agent)
        found = json.loads((run.folder / "args.json").read_text())["versions"]["script"]
        sources = [ROOT / "algos" / f"{file}.py" for file in (*files.split(), name)]
        code = b"".join(path.read_bytes() for path in sources)
        assert found == hashlib.sha256(code).hexdigest()


@pytest.mark.parametrize("name", STEPS)
def test_what_a_run_leaves_behind(finished, name):
    (tmp_path, result), steps = finished(name), STEPS[name]
    folder = only_run(tmp_path)
    assert str(folder.relative_to(tmp_path)) == result.line("run folder")
    assert folder.parts[-2] == name and re.fullmatch(r"my-try-1-\d{8}-\d{6}", folder.name)
    files = [path.name for path in folder.iterdir() if not path.name.startswith("events.out.")]
    assert sorted(files) == ["args.json", "best.npz", "result.json", "weights.npz"]
    saved = json.loads((folder / "result.json").read_text())
    assert saved["steps"] == steps and saved["run_hash"] == result.hash
    assert saved["env_id"] == folder.parts[-3] and saved["algo"] == name and saved["seed"] == 1
    described = json.loads((folder / "args.json").read_text())
    assert described["algo"] == name and "mine.py --total-timesteps" in described["command"]
    assert described["args"]["total_timesteps"] == steps and "torch" in described["versions"]
    source = (ROOT / "algos" / f"{name}.py").read_bytes()
    assert described["versions"]["script"] == hashlib.sha256(source).hexdigest()
    points = scalars(folder)
    tags = {tag for tag, _ in points}
    expected = "charts/episodic_return charts/episodic_length eval/episodic_return " + TAGS[name]
    assert tags == set(expected.split())
    assert max(step for _, step in points) == steps
    evaluations = {step for tag, step in points if tag.startswith("eval")}
    assert evaluations == {steps // 4, steps // 2, steps * 3 // 4, steps}
    (final,) = points["eval/episodic_return", steps]
    assert final == pytest.approx(saved["eval_return_mean"])
    assert f" 0/{steps} [" in result.err


@pytest.mark.parametrize("name", ["a2c", "dqn"])
def test_the_curves_of_the_others(name):
    run = train(importlib.import_module(name), **TINY[name])
    run.finish()
    expected = "charts/episodic_return charts/episodic_length eval/episodic_return " + TAGS[name]
    assert {tag for tag, _ in scalars(run.folder)} == set(expected.split())


@pytest.mark.parametrize("name", STEPS)
def test_another_process_repeats_the_run_and_its_evaluation(finished, command, name, monkeypatch):
    """Also without the evaluations in between; of an evaluation another seed plays others."""
    tmp_path, trained = finished(name)
    assert command(name, SHORT[name]).hash == trained.hash
    monkeypatch.chdir(tmp_path)
    evaluated = command(name, "--evaluate", trained.line("run folder"))
    assert evaluated.line("evaluation") == trained.line("evaluation")
    assert evaluated.hash == trained.hash
    other = command(name, "--seed 2 --evaluate", trained.line("run folder"))
    assert other.line("evaluation") != trained.line("evaluation") and other.hash == trained.hash
    only_run(tmp_path)


def test_a_terminal_sees_how_far_a_run_is_and_its_last_return(monkeypatch, capsys):
    intervals = []

    def bar(mininterval, **settings):
        intervals.append(mininterval)
        return tqdm(mininterval=0, **settings)

    monkeypatch.setattr(ppo, "tqdm", bar)
    settings = dict(env_id="environments:Clock-v0", total_timesteps=512, log_frequency=64)
    train(ppo, **settings)
    error = capsys.readouterr().err
    assert "/512 [" in error and "steps/s, return 5.0" in error
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train(ppo, **settings)
    assert intervals == [30, 0.1]  # seconds, in a file and in a terminal


def test_evaluate_repeats_an_evaluation_of_one_episode_to_the_digit(command, tmp_path):
    """A product with one row is rounded by where the weights begin in memory: at 30 units apart."""
    flags = "--env-id HalfCheetah-v5 --total-timesteps 600 --learning-starts 500 --batch-size 32 "
    trained = command("td3", flags + "--eval-episodes 1 --hidden-sizes 30 30")
    evaluated = command("td3", "--evaluate", only_run(tmp_path))
    assert evaluated.line("evaluation") == trained.line("evaluation")
    assert "TensorBoard" in trained.out and "TensorBoard" not in evaluated.out  # it has no curves


def test_an_evaluation_films_its_first_episode(command):
    settings = dict(env_id="environments:ShortCartPole-v0", total_timesteps=512, num_envs=2)
    plain = train(ppo, **settings, exp_name="plain")
    run = train(ppo, **settings, capture_video=True, eval_episodes=2, eval_frequency=256, seed=1)
    assert run.hash() == plain.hash()
    run.finish()
    command("ppo", "--capture-video --evaluate", run.folder)
    command("ppo", "--seed 2 --evaluate", run.folder)  # films nothing, though the run did
    films = sorted((run.folder / "videos").iterdir())
    names = ["evaluation-seed-1.mp4", "step-256-seed-1.mp4", "step-512-seed-1.mp4"]
    assert [film.name for film in films] == names
    for film in films:
        frames = imageio.mimread(film)
        assert 5 < len(frames) <= 13 and frames[0].shape == (400, 600, 3)  # of 13 steps at most
        assert frames[0].std() > 0 and not np.array_equal(frames[0], frames[-1])


@pytest.mark.parametrize("kind", [kind for kind in TINY if kind != "td3"])  # norms are more
def test_a_run_resumes_in_the_same_process(kind):
    """As test_a_run_killed_at_any_moment_resumes_exactly, in a second."""
    module = importlib.import_module(kind.split()[0])
    settings = dict(checkpoint_frequency=128) | TINY[kind]
    whole = train(module, **settings).hash()
    run = stopped(new_run(module, **settings), module.train, after=319)
    assert torch.load(run.folder / "checkpoint.pt", weights_only=True)["step"] == 256
    assert train(module, **settings, resume=str(run.folder)).hash() == whole


def test_seconds_are_those_of_training_alone(monkeypatch):
    """7 s until the checkpoint of the first half, 2 s more that are lost, 3 s after the resume."""
    now = [1000.0]
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: now[0])
    run = new_run(ppo, **TINY["ppo"], eval_episodes=2)

    def begin(run):
        run.start(agent=run.agent)
        points = {}
        run.writer.add_scalar = lambda tag, value, step: points.update({(tag, step): value})
        return points

    points, half = begin(run), run.checkpoint_steps
    now[0] += 7
    run.step_count = half
    run.end_iteration({})
    assert points["charts/SPS", half] == half / 7
    now[0] += 2

    run.close()
    settings = TINY["ppo"] | {"resume": str(run.folder)}
    now[0] += 5000
    resumed = new_run(ppo, **settings, eval_episodes=2)
    now[0] += 20  # imports and the like
    points = begin(resumed)
    assert resumed.step_count == half
    now[0] += 3
    resumed.step_count = total = run.args.total_timesteps
    resumed.end_iteration({})
    assert points["charts/SPS", total] == total / 10
    resumed.finish()
    result = json.loads((run.folder / "result.json").read_text())
    assert result["seconds"] == 10 and result["sps"] == round(total / 10)


def test_a_folder_with_args_json_can_be_resumed(monkeypatch):
    """A run that ends before its first checkpoint has none yet."""
    run = new_run(ppo, **TINY["ppo"])
    monkeypatch.setattr(ppo.Run, "save", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.start(agent=run.agent)
    assert not (run.folder / "args.json").exists()


def test_vectors_take_one_thread_of_torch():
    torch.set_num_threads(2)
    new_run(ppo)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_a_loss_that_is_not_finite_ends_the_run(command, name, tmp_path):
    env_id = f"environments:{'BrokenBox' if name == 'td3' else 'Broken'}-v0"
    message = r"losses/\w+ not finite at step \d+: .*'losses/\w+': (nan|inf)"
    if name == "td3":  # whose actor follows at once, before a point of the curves
        message = r"actions not finite: \[\[nan\]\]"
    with pytest.raises(FloatingPointError, match=message) as error:
        command(name, SHORT[name], "--env-id", env_id)
    folder = only_run(tmp_path)
    script, path = f"{ROOT}/algos/{name}.py", str(folder.relative_to(tmp_path))
    resume = shlex.join(["python", script, "--resume", path])
    assert error.value.__notes__ == [f"to resume: {resume}"]
    with np.load(folder / "weights.npz") as weights:
        assert all(np.isfinite(weights[k]).all() for k in weights.files if "action_" not in k)
    agent = torch.load(folder / "checkpoint.pt", weights_only=True)["parts"]["agent"]
    assert all(x.isfinite().all() for key, x in agent.items() if "action_" not in key)


def test_initial_weights_travel_by_name(refused):
    init = new_run(ppo, **TINY["ppo"]).arrays()
    np.savez("shuffled.npz", **{key: init[key] for key in reversed(init)})
    first_weight = next(key for key in init if key.endswith("weight"))
    renamed = {("other" if key == first_weight else key): init[key] for key in init}
    np.savez("renamed.npz", **renamed)
    np.savez("reshaped.npz", **{key: init[key][..., None] for key in init})
    plain = train(ppo, **TINY["ppo"])
    assert train(ppo, **TINY["ppo"], init_weights="shuffled.npz").hash() == plain.hash()
    flags = f"--env-id {plain.args.env_id} --norm-obs --init-weights"
    for file, message in (("renamed.npz", first_weight), ("reshaped.npz", "shape")):
        error = refused("ppo", flags, file)
        assert f"{file}: " in error and message in error


def test_statistics_travel_with_the_weights(failure):
    run = train(ppo, **TINY["ppo"])
    run.finish()
    for path in (run.folder, run.folder / "weights.npz"):
        settings = TINY["ppo"] | dict(init_weights=str(path))
        again = new_run(ppo, **settings, seed=2)
        assert again.agent.obs_moments.count == 512 and again.hash() == run.hash()
        assert again.folder is None
    obs = torch.full((1, *run.obs_space.shape), 7.0)
    torch.testing.assert_close(again.agent.features(obs), run.agent.features(obs))
    # an agent without them would see something else
    failure(new_run, ppo, **settings | dict(norm_obs=False))


def test_every_argument_is_read_somewhere(name):
    module = importlib.import_module(name)
    tree = ast.parse((ROOT / "algos" / f"{name}.py").read_text())
    for node in ast.walk(tree):  # checking a value is no use of it
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            node.body = []
    read = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert {f.name for f in dataclasses.fields(module.RunArgs)} - read == set()


def test_help_explains_every_argument(name, capsys):
    module = importlib.import_module(name)
    with pytest.raises(SystemExit) as exit:
        parse(module, ["--help"])
    assert exit.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    source = (ROOT / "algos" / f"{name}.py").read_text()
    for field in dataclasses.fields(module.RunArgs):
        assert "--" + field.name.replace("_", "-") in text
        explained = re.search(rf"^    {field.name}: .*  # (.*)$", source, re.MULTILINE)
        assert explained and " ".join(explained[1].split()[:4]) in text, field.name
    assert "(default: 1)" in text and "Training budget" in text
    assert " ".join(module.__doc__.split("\n\n")[0].split()[:6]) in text


TABLES = [
    (path.name, table, settings)
    for path in sorted((ROOT / "benchmarks").glob("*.toml"))
    for table, settings in tomllib.loads(path.read_text()).items()
]


def test_every_benchmark_config_is_understood():
    for file, table, settings in TABLES:
        module = importlib.import_module(table.split("-")[0])
        args = parse(module, ["--config", f"{ROOT}/benchmarks/{file}:{table}", "--seed", 7])
        read = {key: getattr(args, key) for key in settings} | {"seed": args.seed}
        wanted = {k: tuple(x) if isinstance(x, list) else x for k, x in settings.items()}
        assert read == wanted | {"seed": 7}, (file, table)


def test_the_defaults_are_those_of_a_config():
    for name in SCRIPTS:
        module = importlib.import_module(name)
        config = "halfcheetah" if name == "td3" else "cartpole"
        args = parse(module, ["--config", f"{ROOT}/benchmarks/{config}.toml"])
        assert dataclasses.replace(args, config=None) == module.RunArgs()


def test_a_config_is_found_by_its_name():
    tables = [t for f, t, _ in TABLES if "lunar" in f and t.split("-")[0] == "ppo"]
    wanted = {table: f"lunarlander:{table}" for table in tables}
    for table, config in (wanted | {"ppo": "lunarlander"}).items():
        by_path = parse(ppo, ["--config", f"{ROOT}/benchmarks/lunarlander.toml:{table}"])
        assert parse(ppo, ["--config", config]) == dataclasses.replace(by_path, config=config)


@pytest.mark.parametrize("file", ["mine.toml", "my:own.toml"])
def test_typed_flags_win_over_the_config(tmp_path, file):
    (tmp_path / file).write_text("[ppo]\nseed = 5\ngamma = 0.5\nanneal_lr = false\n")
    for argv in (["--config", file, "--gamma", 0.25], ["--gamma=0.25", f"--config={file}"]):
        args = parse(ppo, argv)
        assert (args.seed, args.gamma, args.anneal_lr) == (5, 0.25, False)
    assert parse(ppo, ["--config", file, "--anneal_lr"]).anneal_lr


LONG = 300 * "x"  # which no file can have as its name
BAD_INPUT = {
    "an unknown environment": ("--env-id CartPool-v1", "Did you mean: `CartPole`"),
    "a misspelt submodule": ("--env-id nowhere.envs.mine:My-v0", "No module named"),
    "a seed beyond 64 bits": ("--seed 1e30", "must lie between 0 and 9223372036854775807"),
    "a device without numbers": ("--device meta", "--device meta: "),
    "a name that leaves the folder": ("--exp-name ../../x", "exp_name=../../x must be"),
    "arguments that are no JSON": ("--env-kwargs {length:3}", "--env-kwargs {length:3} must be"),
    "arguments that are no object": ("--env-kwargs [3]", "JSON object"),
    "a misspelt flag": ("--learning-rat 1", "--learning-rate"),
    "a wrong type": ("--num-envs 2.5", "--num-envs"),
    "one out of range": ("--gamma 1.5", "gamma=1.5 must lie between 0 and 1"),
    "not a number": ("--learning-rate nan", "learning_rate=nan must be a finite number"),
    "sizes that do not divide": ("--num-minibatches 7", "must divide num_envs * num_steps=256"),
    "steps that do not divide": ("--total-timesteps 1001", "must divide total_timesteps=1001"),
    "a device that is not there": ("--device cuda", "cuda"),
    "no config of that name": ("--config missing", "missing.toml"),
    "a file without its ending": ("--config good", "; write the .toml of a file of your own"),
    "no such table": ("--config good.toml:other", "good.toml has no table [other], but "),
    "an unknown field": ("--config good.toml:typo", "good.toml: [typo]: Unrecognized options"),
    "a field of a wrong type": ("--config good.toml:wrong", "good.toml: [wrong]: Value error"),
    "a field out of range": ("--config good.toml:beyond", "good.toml: [beyond]: gamma=2.0 must"),
    "a table that resumes": ("--config good.toml:again", "a table cannot have resume"),
    "a broken config": ("--config bad.toml", "bad.toml: Expected"),
    "no name of a run": ("--resume", "--resume"),
    "no run to resume": ("--resume runs/none", "runs/none has no checkpoint.pt"),
    "a long name to resume": (f"--resume {LONG}", "has no checkpoint.pt"),
    "a long name to begin with": (f"--init-weights {LONG}", "File name too long"),
    "a long name to evaluate": (f"--evaluate {LONG}.npz", "File name too long"),
    "no run to evaluate": ("--evaluate .", "args.json"),
    "another's run": ("--resume other", "other is no ppo run, but of sac?[1m"),
    "a damaged checkpoint": ("--resume damaged", "damaged/checkpoint.pt"),
    "settings that are no table": ("--resume list", "list/args.json: "),
    "a history that is none": ("--evaluate resumed", "resumed/args.json: "),
    "training's flags in an evaluation": ("--evaluate begun --num-envs 3", "num_envs=3 has no"),
    "a table in one": ("--evaluate begun --config good.toml", "config=good.toml has no effect"),
    "other weights in one": ("--evaluate begun --init-weights a", "init_weights=a has no effect"),
    "a finished run": ("--resume done", "done has no checkpoint.pt, so it is finished"),
    "a changed argument on resume": ("--resume begun --gamma 0.5", "give --resume alone"),
    "weights that are not there": ("--init-weights none.npz", "none.npz"),
    "half a file of weights": ("--init-weights half.npz", "half.npz: "),
    "one array as weights": ("--init-weights one.npy", "one.npy: "),
    "no table": ("--config good.toml:single", "good.toml has no table [single]"),
    "a config without a name": ("--config=", "benchmarks/.toml: "),
    "nested without end": (f"--env-kwargs {'[' * 100_000}", "must be a JSON object: "),
    "a config nested without end": ("--config deep.toml", "deep.toml: "),
    "a run nested without end": ("--evaluate deep", "deep/args.json: RecursionError"),
    "no name of an environment": ("--env-id :", "environment : must be a name, or a module and"),
    "a module of a module": ("--env-id a:b:c", "environment a:b:c must be a name, or a module"),
    "a module from nowhere": ("--env-id .foo:Bar-v0", "environment .foo:Bar-v0 must be a name"),
    "a device of a package": ("--device hpu", "--device hpu: "),
    "a wait for nobody": ("--env-timeout 5", "env_timeout=5.0 has no effect without --async-envs"),
    "no time for an answer": ("--async-envs --env-timeout 0", "env_timeout=0.0 must lie between"),
    "gravity upwards": ('--env-id LunarLander-v3 --env-kwargs {"gravity":5}', "gravity (current"),
    "no such map": ('--env-id FrozenLake-v1 --env-kwargs {"map_name":"9x9"}', "KeyError: '9x9'"),
    "no length": ('--env-kwargs {"max_episode_steps":-5}', "environment CartPole-v1 with"),
    "a name for two": ('--env-kwargs {"env_id":"x"}', "multiple values for argument 'env_id'"),
    "no checkpoint": ("--resume strange0", "strange0/checkpoint.pt: "),
    "a checkpoint of no dict": ("--resume strange1", "strange1/checkpoint.pt: "),
    "a step too far": ("--resume strange2", "strange2/checkpoint.pt: step 1000000"),
    "a checkpoint without parts": ("--resume strange3", "strange3/checkpoint.pt: KeyError"),
    "a checkpoint without a generator": ("--resume strange4", "strange4/checkpoint.pt: "),
    "a checkpoint that would execute": ("--resume strange6", "holds more than tensors, numbers"),
    "weights of another size": ("--resume strange5", "size mismatch for "),
    "a pickle as weights": ("--init-weights evil.npz", "evil.npz: Object arrays cannot be loaded"),
}


def test_bad_input_is_refused(command, tmp_path):
    good = "[ppo]\ngamma = 0.9\n[typo]\ngama = 0.9\n[wrong]\nnum_envs = 2.5\n[beyond]\ngamma = 2\n"
    good = f"single = 5\n{good}[again]\nresume = 'begun'\n"
    Path("good.toml").write_text(good)
    Path("bad.toml").write_text("[ppo\n")
    np.savez("evil.npz", **{"actor.0.weight": np.array([object()], dtype=object)})
    run = train(ppo, total_timesteps=512)
    run.writer.flush()
    run.folder.rename("begun")
    shutil.copytree("begun", "done", ignore=shutil.ignore_patterns("checkpoint.pt"))
    run.close()
    shutil.copytree("begun", "damaged")
    damaged = bytearray(Path("begun/checkpoint.pt").read_bytes())
    damaged[damaged.index(b"data/0") + 2000] ^= 1  # a bit of a weight
    Path("damaged/checkpoint.pt").write_bytes(damaged)
    saved = torch.load("begun/checkpoint.pt", weights_only=True)
    strange = [{}, [1, 2], saved | {"step": 10**30}, {"step": 0}, saved | {"rng": {"state": 1}}]
    for number, content in enumerate([*strange, saved, {"step": Path}]):
        shutil.copytree("begun", f"strange{number}")
        torch.save(content, f"strange{number}/checkpoint.pt")
    about = json.loads(Path("begun/args.json").read_text())
    about["args"]["hidden_size"] = 13
    Path("strange5/args.json").write_text(json.dumps(about))
    Path("deep").mkdir()
    Path("deep/args.json").write_text("[" * 100_000)
    Path("deep.toml").write_text(f"a = {'[' * 100_000}")
    Path("list").mkdir()
    Path("list/checkpoint.pt").touch()
    Path("list/args.json").write_text('{"algo": "ppo", "args": [["gamma"]]}')
    shutil.copytree("done", "resumed")
    about = json.loads(Path("done/args.json").read_text())
    Path("resumed/args.json").write_text(json.dumps(about | {"resumed": [1]}))
    Path("half.npz").write_bytes(Path("begun/weights.npz").read_bytes()[:999])
    np.save("one.npy", np.zeros(3))
    Path("done", "result.json").write_text("{}")
    Path("other").mkdir()
    Path("other", "checkpoint.pt").touch()
    Path("other", "args.json").write_text('{"algo": "sac\\u001b[1m", "args": {}}')
    before = sorted(tmp_path.rglob("*"))
    assert "No such file" in command("ppo", "--config", "two\nlines", ok=False).err
    for what, (flags, message) in BAD_INPUT.items():
        if ("cuda" in flags and torch.cuda.is_available()) or lacks_package(flags):
            continue
        result = command("ppo", flags, ok=False)
        text = " ".join(result.err.replace("│", " ").split())
        assert result.status == 2 and message in text and "Traceback" not in text, (what, text)
        one_line = len(result.err.strip().splitlines()) == 1
        assert (one_line or "For full helptext" in text) and result.out == "", what  # tyro's box
        assert sorted(tmp_path.rglob("*")) == before, what


def test_runs_that_start_in_the_same_second_have_folders_of_their_own(monkeypatch):
    monkeypatch.setattr(ppo.time, "strftime", lambda form: "now")
    names = [new_run(ppo, exp_name="twice").make_folder().name for _ in range(3)]
    assert names == ["twice-1-now", "twice-1-now-2", "twice-1-now-3"]


def test_what_another_process_may_read_is_written_whole(monkeypatch):
    written = calls(monkeypatch, ppo, "write_file")
    run = new_run(ppo, eval_episodes=1)
    run.start(agent=run.agent)
    names = sorted(call["path"].name for call in written)
    assert names == ["args.json", "checkpoint.pt", "weights.npz"]
    run.step_count = 1
    run.finish()
    assert written[-1]["path"].name == "result.json"


def test_an_old_run_may_have_had_a_flag_that_is_gone():
    Path("args.json").write_text('{"algo": "ppo", "args": {"seed": 3, "gone": false}}')
    assert parse(ppo, ["--evaluate", "."]).seed == 3


def test_what_an_evaluation_may_be_told():
    def evaluation(env_id, flags):
        about = {"algo": "dqn", "args": {"env_id": env_id}}
        Path("args.json").write_text(json.dumps(about))
        return parse(dqn, ["--evaluate", ".", *flags.split()])

    flags = "--eval-epsilon 0.1 --eval-max-steps 5 --torch-threads 2 --no-bf16"
    args = evaluation("ALE/Pong-v5", f"{flags} --sticky-actions 0.25")
    assert (args.eval_epsilon, args.eval_max_steps, args.sticky_actions) == (0.1, 5, 0.25)
    assert evaluation("CartPole-v1", "--async-envs --env-timeout 5").env_timeout == 5


def test_weights_alone_take_the_settings_of_a_table():
    """What a run's args.json would say."""
    Path("own.toml").write_text("[ppo]\nhidden_size = 13\n")
    args = parse(ppo, "--evaluate alone.npz --config own.toml --activation relu".split())
    assert (args.hidden_size, args.activation) == (13, "relu")


@pytest.mark.parametrize("begun", [False, True])
def test_where_memory_is_missing_a_run_that_has_begun_can_be_resumed(begun, monkeypatch, failure):
    def no_memory(*_):
        raise MemoryError("3 TB")

    def train_a_little(args, run):
        run.start(agent=run.agent)
        no_memory()

    monkeypatch.setattr(sys, "argv", ["ppo.py"])
    parts = (ppo.make_agent, train_a_little) if begun else (no_memory, ppo.train)
    arguments = "ppo", ppo.RunArgs, *parts, ppo.evaluation_policy
    if not begun:
        assert "out of memory: 3 TB" in failure(ppo.main, *arguments)
        return
    with pytest.raises(MemoryError) as raised:
        ppo.main(*arguments)
    assert "to resume: " in raised.value.__notes__[0]


def test_the_bar_of_a_resumed_run_begins_where_the_run_does():
    settings = dict(num_envs=2, num_steps=32, total_timesteps=512, checkpoint_frequency=128)
    run = stopped(new_run(ppo, **settings), ppo.train, after=319)
    resumed = new_run(ppo, **settings, resume=str(run.folder))
    ppo.train(resumed.args, resumed)
    assert (resumed.bar.initial, resumed.bar.n) == (256, 512)
    resumed.close()


def test_numpy_s_own_generator_draws_anew_after_each_checkpoint():
    run = new_run(ppo)
    drawn = []
    for step in (0, 0, 128):
        run.step_count = step
        run.seed_learning()
        drawn.append(np.random.random())
    assert drawn[0] == drawn[1] != drawn[2]
    run.close()
