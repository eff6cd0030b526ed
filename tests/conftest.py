"""What all tests share: the scripts as modules and as commands, and small environments."""

import importlib
import importlib.util
import inspect
import itertools
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
SCRIPTS = ["a2c", "dqn", "ppo", "td3"]
VARIANTS = sorted(path.stem for path in (ROOT / "algos").glob("*_*.py"))
os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side: threads would wait for each other
os.environ["PYTHONPATH"] = str(ROOT / "tests")  # so that --env-id environments:Name-v0 is found
sys.path.insert(0, str(ROOT / "algos"))
torch.set_num_threads(1)
# a shell's background job ignores Ctrl-C, and so would the runs that tests stop by it; under nohup
# SIGHUP, too
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import ppo  # noqa: E402, of algos/
from load import parts_of  # noqa: E402

NUMBERS = itertools.count()  # so that runs that begin in the same second have folders of their own


def lacks_package(text) -> bool:
    """Whether it names an environment of a package without a wheel here: see requirements.txt."""
    packages = {"CheetahBulletEnv": "pybullet", "LunarLander": "Box2D", "CarRacing": "Box2D"}
    missing = [name for name in packages if importlib.util.find_spec(packages[name]) is None]
    return any(name in str(text) for name in missing)


def pytest_collection_modifyitems(items):
    for item in items:
        if lacks_package(getattr(item, "callspec", None) and item.callspec.params):
            item.add_marker(pytest.mark.skip(reason="needs PyBullet or Box2D"))


def env_seeds(n: int, *entropy: int) -> list[int]:
    """What the scripts should seed n environments with, written down once more."""
    return [int(s) >> 1 for s in np.random.SeedSequence(entropy).generate_state(n)]


def new_run(module, **settings):
    """A run of a script, a variant or an edited script, here; below ./runs, in `tmp_path`."""
    own = {"exp_name": str(next(NUMBERS)), "runs_dir": str(Path("runs").resolve())}
    if module.__name__ in VARIANTS:
        parent, args_class, *parts = parts_of(module.__name__)
        own["eval_episodes"] = 3
    else:
        parent, args_class, parts = module, module.RunArgs, [
            module.make_agent, module.evaluation_policy, module.make_envs,
        ]  # fmt: skip
    return parent.Run(module.__name__, args_class(**own | settings), *parts)


def train_function(module):
    """What trains: a variant may leave it to its parent."""
    return getattr(module, "train", None) or parts_of(module.__name__)[0].train


def train(module, **settings):
    """The same, trained."""
    run = new_run(module, **settings)
    train_function(module)(run.args, run)
    return run


def stopped(run, train, after: int):
    """The run, trained until Ctrl-C in the first iteration that ends after this step."""
    end_iteration = run.end_iteration

    def stop(scalars):
        step = end_iteration(scalars)
        if run.step_count > after:
            raise KeyboardInterrupt
        return step

    run.end_iteration = stop
    with pytest.raises(KeyboardInterrupt):
        train(run.args, run)
    run.close()  # as main does: another may resume its folder
    return run


def flags_of(settings) -> str:
    """{"num_envs": 2, "hidden_sizes": (8, 8)} as it is typed."""
    values = {k: x if isinstance(x, tuple) else (x,) for k, x in settings.items()}
    return " ".join(f"--{k.replace('_', '-')} {' '.join(map(str, x))}" for k, x in values.items())


def parse(module, argv):
    """The arguments of a command line of a script or a variant."""
    parent, argv = importlib.import_module(module.__name__.split("_")[0]), map(str, argv)
    args_class = module.RunArgs if module is parent else module.Args
    return parent.parse_args(module.__name__, args_class, list(argv))


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Result:
    """What a finished script left behind."""

    def __init__(self, status: int, out: str, err: str):
        self.status, self.out, self.err = status, out, err

    def line(self, name: str) -> str:
        """The rest of the line of the output that begins with `name`."""
        return re.search(rf"^{name} +(.*)$", self.out, re.MULTILINE).group(1)

    @property
    def hash(self) -> str:
        return self.line("run hash")


@pytest.fixture
def command(monkeypatch, capsys):
    """command("ppo", "--seed 3", path, ...) runs algos/ppo.py as its command does, here. What is
    split into words is the first argument alone.
    """

    def run(name, flags="", *more, ok: bool = True) -> Result:
        words = [*flags.split(), *map(str, more)]
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        monkeypatch.setattr(ppo, "versions", ppo.versions)  # which ppo_imitation replaces
        capsys.readouterr()  # of what ran before
        status = 0
        try:
            runpy.run_path(str(ROOT / "algos" / f"{name}.py"), run_name="__main__")
        except SystemExit as exit:
            status = exit.code
        captured = capsys.readouterr()
        assert status == 0 or not ok, captured.err
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def tool(monkeypatch, capsys):
    """tool(report, "--from-csv", ...) calls a module's main with this command line, here."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(module, *words) -> Result:
        monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, words)])
        capsys.readouterr()  # of what ran before
        status = 0
        try:
            module.main()
        except SystemExit as exit:
            status = exit.code
        return Result(status, *capsys.readouterr())

    yield run
    for number, handler in handlers.items():  # run.tool sets its own
        signal.signal(number, handler)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """This folder, with a cell in report.RESULTS: three seeds, whose greedy returns are 3, 4, 5."""
    import report
    from cells import a_run  # of tests/tools/

    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.write_cell("ppo-mine", [a_run(seed, seed + 2.0) for seed in (1, 2, 3)], report.RESULTS)
    return tmp_path


@pytest.fixture
def start(tmp_path):
    """start("ppo", "--seed 3", path, ...) runs it as a process in a session of its own, which
    Ctrl-C reaches as a whole. What it says is in the files `out` and `err`.
    """

    def run(name, flags="", *more) -> subprocess.Popen:
        words = [sys.executable, ROOT / "algos" / f"{name}.py", *flags.split(), *more]
        with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
            keywords = {"cwd": tmp_path, "stdout": out, "stderr": err, "start_new_session": True}
            return subprocess.Popen(list(map(str, words)), **keywords)

    return run


@pytest.fixture
def refused(command, tmp_path):
    """refused("ppo", "--gamma 2") is the one line with which it is refused; nothing is written."""

    def run(name, *flags) -> str:
        before = sorted(tmp_path.rglob("*"))
        result = command(name, *flags, ok=False)
        one_line = result.err.count("\n") == 1 and result.out == ""
        assert result.status == 2 and one_line, (name, flags, result.err)
        assert sorted(tmp_path.rglob("*")) == before
        return result.err

    return run


@pytest.fixture
def failure(capsys):
    """failure(function, ...) is the line with which the call ends the program."""

    def call(function, *inputs, **keywords) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            function(*inputs, **keywords)
        err = capsys.readouterr().err
        assert exit.value.code == 2 and err.count("\n") == 1, err
        return err

    return call


def scalars(folder: Path) -> dict:
    """Every scalar of a run folder, as TensorBoard shows it: {(tag, step): [values]}; no speed."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events, found = EventAccumulator(str(folder), {"scalars": 0}).Reload(), {}
    for tag in set(events.Tags()["scalars"]) - {"charts/SPS"}:
        for event in events.Scalars(tag):
            found.setdefault((tag, event.step), []).append(event.value)
    return found


def curves(run) -> dict:
    """{tag: {step: value}} of what a run logged."""
    run.writer.flush()
    found = {}
    for (tag, step), (value,) in scalars(run.folder).items():
        found.setdefault(tag, {})[step] = value
    return found


def only_run(folder: Path) -> Path:
    """The one run folder below `folder`."""
    (found,) = folder.glob("runs/*/*/*")
    return found


def wait_for(condition):
    """Until it holds. Long, so that a busy machine fails no test."""
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def hash_of_parameters(module) -> list:
    return [p.detach().numpy().tobytes() for p in module.parameters()]


def vector(module):
    """All its parameters as they are now, in one vector."""
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


def hand_stepped(env_id, seed, actions):
    """One environment stepped by hand; yields the transition and what the next step begins with."""
    env = gym.make(env_id)
    obs, _ = env.reset(seed=seed)
    for action in actions:
        next_obs, reward, terminated, truncated, _ = env.step(action)
        yield obs, reward, terminated, truncated, next_obs
        obs = env.reset()[0] if terminated or truncated else next_obs


def before(monkeypatch, owner, name, look):
    """Every call of owner.name from now on goes to `look` first."""
    original = getattr(owner, name)

    def spied(*inputs, **keywords):
        look(*inputs, **keywords)
        return original(*inputs, **keywords)

    monkeypatch.setattr(owner, name, spied)


def calls(monkeypatch, owner, name) -> list:
    """Of every call of owner.name from now on the arguments, by name."""
    seen, signature = [], inspect.signature(getattr(owner, name))
    kinds = {parameter.name: parameter.kind for parameter in signature.parameters.values()}

    def look(*inputs, **keywords):
        arguments = signature.bind(*inputs, **keywords).arguments
        for key in [key for key in arguments if kinds[key] is inspect.Parameter.VAR_KEYWORD]:
            arguments |= arguments.pop(key)
        seen.append(arguments)

    before(monkeypatch, owner, name, look)
    return seen


def randomise(module, std=0.5):
    """No parameter is small after it, biases included, so that no mistake hides behind a zero."""
    for p in module.parameters():
        torch.nn.init.normal_(p, std=std)
    return module
