"""The search for settings, with a script whose return is a known function of its arguments."""

import contextlib
import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from conftest import NUMBERS, ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import tune

HILL = """
import argparse, json, sys, time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

@dataclass
class Args:
    env_id: str = "Hill-v0"
    seed: int = 1
    x: float = 0.0
    num_envs: int = 1
    num_minibatches: int = 1
    wide: bool = True
    sizes: tuple = (8, 8)
    pause: float = 0.0

@dataclass
class RunArgs(Args):
    device: str = "auto"
    torch_threads: int = 0
    runs_dir: str = "runs"
    exp_name: str = ""

make_agent = evaluation_policy = make_envs = Run = None  # every script has them

def parse_args(name, args_class, argv):
    parser = argparse.ArgumentParser()
    for field in fields(args_class):
        kind = {bool: {"action": argparse.BooleanOptionalAction}}
        kind[tuple] = {"type": int, "nargs": "*"}
        names = {f"--{field.name}", f"--{field.name.replace('_', '-')}"}
        how = kind.get(field.type, {"type": field.type})
        parser.add_argument(*names, default=field.default, **how)
    return args_class(**vars(parser.parse_args(argv)))

if __name__ == "__main__":
    args = asdict(parse_args("hill", RunArgs, sys.argv[1:]))
    time.sleep(args["pause"])
    if args["x"] == 13:
        sys.exit("hill.py: no luck")
    name = f"{args['exp_name']}-{args['seed']}-now".lstrip("-")
    folder = Path(args["runs_dir"], args["env_id"], "hill", name)
    folder.mkdir(parents=True)
    value = 100 - (args["x"] - 2) ** 2 - abs(args["num_envs"] - 4) + args["seed"]
    args_json, result = {"args": args | {"device": "cpu"}}, {"eval_return_mean": value}
    for name, content in (("args.json", args_json), ("result.json", result)):
        (folder / "new").write_text(json.dumps(content))
        (folder / "new").rename(folder / name)  # whole, as the scripts write it
    with open("finished.txt", "a") as file:
        file.write(f"{args['x']} {args['num_envs']} {args['seed']}\\n")
"""
GRID = """
command = "python algos/hill.py"
[ranges]
num_minibatches = "= num_envs * 2"
x = [1.0, 2.0, 3.5]
num_envs = [2, 4]
"""
RANGE = (
    'command = "python algos/hill.py"\n[ranges]\nx = { low = -9, high = 9 }\nnum_envs = [1, 2, 4]'
)

PPO = """
command = "python algos/ppo.py"
[ranges]
learning_rate = { low = 1e-5, high = 0.1, log = true }
num_steps = { low = 1, high = 1000, log = true }
num_minibatches = "= num_steps"
gamma = { low = 0, high = 1 }
update_epochs = [1, 2, 5]
"""

DQN = """
command = "python algos/dqn.py --gamma 0.9 --no-double"
[ranges]
hidden_sizes = [[64, 32], [16, 16]]
double = [true, false]
max_grad_norm = [0.5, inf]
loss = ["huber", "mse"]
learning_rate = ["1e-3"]
env_kwargs = [{ max_episode_steps = 50 }]
batch_size = "= buffer_size / 1000"
"""


@pytest.fixture
def house(tmp_path, monkeypatch):
    """The programs that take part, a script that takes no time, and a grid; searched from here."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "algos").mkdir()
    for name in ("tune.py", "run.py", "report.py"):
        shutil.copy(ROOT / "benchmarks" / name, tmp_path / "benchmarks")
    (tmp_path / "algos" / "hill.py").write_text(HILL)
    shutil.copy(ROOT / "algos" / "load.py", tmp_path / "algos")
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "range.toml").write_text(RANGE)
    monkeypatch.setattr(tune.run, "ROOT", tmp_path)
    monkeypatch.setattr(tune.run, "SCRIPTS", ["hill", "ppo"])
    monkeypatch.syspath_prepend(tmp_path / "algos")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.modules.pop("hill", None)


def command(house, *flags) -> list[str]:
    return [sys.executable, str(house / "benchmarks" / "tune.py"), *map(str, flags)]


def tuned(house, *flags, status: int = 0) -> str:
    """What the search prints; of wrong input, its complaint."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["tune.py", *map(str, flags)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        os.chdir(house)
        try:
            tune.run.tool(tune.study)
        except SystemExit as exit:
            code = exit.code
    assert code == status, err.getvalue() + out.getvalue()
    return err.getvalue() if status == 2 else out.getvalue()


def finished(house) -> Counter:
    """{"x num_envs seed": how many runs of it came to their end}"""
    path = house / "finished.txt"
    return Counter(path.read_text().splitlines() if path.exists() else [])


def rows(house, study: str) -> list[list[str]]:
    lines = (house / "runs" / "tune" / study / "study.md").read_text().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_grid_of_two_by_three_gives_six_commands_tied_in_each(house):
    lines = tuned(house, "grid.toml", "--dry-run").splitlines()
    assert len(lines) == 3 * (1 + 6) and not (house / "runs").exists()
    points = set()
    for line in lines[3:]:
        assert line.startswith("python algos/hill.py --torch-threads 1 ")
        values = dict(re.findall(r"--([\w-]+)[= ](\S+)", line))
        assert int(values["num-minibatches"]) == 2 * int(values["num-envs"])
        points.add((values["x"], values["num-envs"], values["seed"]))
    assert points == {(x, n, s) for x in ("1.0", "2.0", "3.5") for n in "24" for s in "123"}


def test_values_of_any_type_become_flags():
    settings = {"anneal_lr": False, "norm_obs": True, "hidden_sizes": [64, 32], "log_std": -1.5}
    settings["env_kwargs"] = {"gravity": -5.0}
    flags = "--no-anneal-lr --norm-obs --hidden-sizes 64 32 --log-std=-1.5".split()
    assert tune.flags_of(settings) == [*flags, '--env-kwargs={"gravity": -5.0}']


def test_the_best_is_confirmed_beside_the_default_on_fresh_seeds_and_nothing_runs_twice(house):
    said = tuned(house, "grid.toml", "--jobs", 8)
    first, second, *_, last = rows(house, "grid")
    # 100 + seed at the top, (x, num_envs) = (2, 4); the default (0, 1) lies 4 + 3 below it
    name = first[0]
    assert f"trial {name} 106.0 ± 1.6, default 99.0 ± 1.6; P(trial {name} > default) 1.00" in said
    points = {f"{x} {n}" for x in (1.0, 2.0, 3.5) for n in (2, 4)} | {"0.0 1"}
    expected = {f"{point} {seed}" for point in points for seed in (1, 2, 3)}
    expected |= {f"{point} {seed}" for point in ("2.0 4", "0.0 1") for seed in range(4, 9)}
    assert finished(house) == dict.fromkeys(expected, 1)
    returns = "104.0, 105.0, 106.0, 107.0, 108.0"
    best = ["8", "2.0", "4", "102.0 ± 1.0", "101.0, 102.0, 103.0", "106.0 ± 1.6", returns]
    assert first[1:] == best
    assert second[1:5] == ["8", "1.0", "4", "101.0 ± 1.0"] and second[6:] == [""] * 2
    assert last[:6] == ["default", "1", "0.0", "1", "95.0 ± 1.0", "94.0, 95.0, 96.0"]
    for picture in ("optimization_history.png", "slice.png"):
        assert (house / "runs" / "tune" / "grid" / picture).stat().st_size > 10_000

    again = tuned(house, "grid.toml", "--jobs", 8)
    assert finished(house) == dict.fromkeys(expected, 1)
    assert again.split("\n\n")[1:] == said.split("\n\n")[1:]
    # one more value of a list: its points alone are trained
    (house / "grid.toml").write_text(GRID.replace("3.5]", "3.5, 2.5]"))
    tuned(house, "grid.toml", "--jobs", 8)
    new = {f"2.5 {n} {seed}" for n in (2, 4) for seed in (1, 2, 3)}
    assert finished(house) == dict.fromkeys(expected | new, 1)


def test_a_command_with_exp_name_is_found_as_finished(house):
    """Folders then begin with the name; in a file as an editor of Windows saves it."""
    text = GRID.replace("hill.py", "hill.py --exp-name été").replace("\n", "\r\n")
    (house / "named run.toml").write_bytes(text.encode("utf-8-sig"))
    for _ in range(2):
        tuned(house, "named run.toml", "--jobs", 8, "--fresh-seeds", 1)
        assert finished(house).total() == 21 + 2 and set(finished(house).values()) == {1}


def test_after_a_kill_no_finished_trial_runs_again(house):
    flags = command(house, "grid.toml", "--jobs", 2, "--fresh-seeds", 1, "--", "--pause", 0.3)
    with subprocess.Popen(flags, cwd=house, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while finished(house).total() < 4:
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert finished(house).total() < 12
    # two runs live on; they are waited for
    tuned(house, "grid.toml", "--jobs", 8, "--fresh-seeds", 1, "--", "--pause", 0.3)
    assert len(finished(house)) == 21 + 2 and set(finished(house).values()) == {1}


def search(monkeypatch, tmp_path, *flags) -> list:
    """The trials of a search by TPE for ppo, with a return that is a function of the settings."""

    def train(study, trials, seeds):
        for trial in trials:
            x = trial.settings
            value = -((math.log10(x["learning_rate"]) + 3) ** 2) - abs(x["num_steps"] - 100) / 100
            if x["update_epochs"] < 5:  # else the trial fails
                trial.finished = {seed: value - 5 * x["gamma"] + seed for seed in seeds}

    (tmp_path / "ranges.toml").write_text(PPO)
    monkeypatch.setattr(tune.Study, "train", train)
    own = [str(tmp_path / "ranges.toml"), "--runs-dir", str(tmp_path / str(next(NUMBERS)))]
    options = tune.parse_options(own + list(map(str, flags)))
    study = tune.Study(options, [])
    study.search()
    assert study.trials[0] is study.default
    return [(trial.settings, trial.finished) for trial in study.trials[1:]]


def test_tpe_repeats_goes_on_and_finds_what_is_better(monkeypatch, tmp_path):
    first = search(monkeypatch, tmp_path, "--trials", 40)
    assert first == search(monkeypatch, tmp_path, "--trials", 40)
    folder = ["--runs-dir", tmp_path / "again"]
    assert search(monkeypatch, tmp_path, "--trials", 20, *folder) == first[:20]
    assert search(monkeypatch, tmp_path, "--trials", 40, *folder) == first
    assert search(monkeypatch, tmp_path, "--trials", 40, "--tpe-seed", 2) != first
    for settings, _ in first:
        assert type(settings["num_steps"]) is int and 1 <= settings["num_steps"] <= 1000
        # a range of whole numbers, for a setting that is none
        assert type(settings["gamma"]) is float and 0 <= settings["gamma"] <= 1
        assert 1e-5 <= settings["learning_rate"] <= 0.1
        assert settings["num_minibatches"] == settings["num_steps"]
    scores = [returns[1] if returns else -math.inf for _, returns in first]
    assert -math.inf in scores
    assert np.median(scores[20:]) > np.median(scores[:10])  # the first ten are drawn blindly


def test_a_study_by_tpe_that_is_repeated_runs_nothing_again(house):
    for jobs in (8, 1):
        tuned(house, "range.toml", "--trials", 3, "--batch", 2, "--jobs", jobs, "--fresh-seeds", 1)
        assert finished(house).total() in (13, 14) and set(finished(house).values()) == {1}


def test_a_search_by_tpe_that_was_cut_goes_on_as_if_it_had_not_been(house):
    flags = ["range.toml", "--trials", 4, "--batch", 2, "--fresh-seeds", 1, "--jobs", 2]
    tuned(house, *flags, "--runs-dir", "whole")
    whole = finished(house)
    (house / "finished.txt").unlink()
    flags += ["--runs-dir", "cut"]
    with subprocess.Popen(command(house, *flags), cwd=house, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while finished(house).total() < 5:  # in the first batch
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    tuned(house, *flags)
    assert finished(house) == whole and set(whole.values()) == {1}


def test_a_failed_trial_is_shown_and_does_not_end_the_study(house):
    text = GRID.replace("[1.0, 2.0, 3.5]", "[13.0, 2.0]")
    (house / "unlucky.toml").write_text(text.replace("hill.py", "hill.py --x 13"))
    said = tuned(house, "unlucky.toml", "--jobs", 8, "--fresh-seeds", 1)
    first, second, *failed = rows(house, "unlucky")
    assert [first[2], second[2]] == ["2.0", "2.0"] and first[6:] == ["104.0"] * 2
    assert failed[0][0] == "default" and len(failed) == 3 and "P(trial" not in said
    assert {row[-1] for row in failed} == {"seed 1: hill.py: no luck"}
    assert said.count("| seed 1: hill.py: no luck |") == 3


def test_a_value_that_the_script_refuses_fails_its_trial_alone(house):
    text = 'command = "python algos/hill.py"\n[ranges]\nx = ["2.0", 1.0]\nnum_envs = ["two", 2]'
    (house / "text.toml").write_text(text)
    tuned(house, "text.toml", "--jobs", 8, "--fresh-seeds", 1)
    first, *_, last = rows(house, "text")
    assert first[1:3] == ["2.0", "2"] and last[2] == "two"
    assert "invalid int value: 'two'" in last[-1]


def test_when_nothing_trains_the_exit_status_is_1(house):
    (house / "bad.toml").write_text('command = "python algos/hill.py --x 13"\n[ranges]\nx = [13.0]')
    assert "Nothing is confirmed: seed 1: hill.py: no luck" in tuned(house, "bad.toml", status=1)


def test_the_default_may_be_the_best_and_is_not_trained_twice(house):
    (house / "good.toml").write_text(
        GRID.replace("hill.py", "hill.py --x 2 --num-envs 4 --num-m 8")
    )
    assert "No trial has a better score" in tuned(house, "good.toml", "--jobs", 8)
    assert set(finished(house).values()) == {1} and len(rows(house, "good")) == 6


def test_expressions():
    values = {"a": 12, "b": 0.5, "name": "x", "none": None, "rate": 0.1}

    def calculated(text):
        return tune.with_ties({"rate": text}, {}, values)["rate"]

    for text, value in [("a*2 - 3", 21), ("-(a - 2)//3", -4), ("a / 8 + b", 2), ("1e-3", 0.001)]:
        assert calculated(f"= {text}") == value
    wrong = "a.real print(a) [a] name none 'x' ().x a,b a:=1 rate nobody".split()
    for text in ["a if a else b", "", "lambda: a", *wrong]:
        with pytest.raises(tune.UserError):
            calculated(f"= {text}")


def test_ties_may_be_chained_and_keep_whole_numbers_whole():
    default = {"steps": 128, "envs": 8, "batches": 4, "rate": 0.1, "epochs": 3}
    ranges = {
        "batches": "= steps / 32",
        "steps": "= 2048 / envs",
        "envs": [4],
        "rate": "= epochs / 4",
    }
    tied = tune.with_ties(ranges, {"envs": 4}, default)
    assert tied == {"batches": 16, "steps": 512, "envs": 4, "rate": 0.75}
    assert all(type(tied[name]) is int for name in ("batches", "steps", "envs"))
    with pytest.raises(tune.UserError, match="tied to itself"):
        tune.with_ties({"envs": "= steps", "steps": "= envs"}, {}, default)


WRONG = {
    "no such file": ("", "none.toml: .*No such file"),
    "x = [": ("", "Invalid"),
    "[ranges]\nx = [1.0]": ("", "needs a line command"),
    'command = "python algos/none.py"': ("", "needs a line command"),
    'command = "python mine/hill.py"\n[ranges]\nx = [1.0]': ("", "needs a line command"),
    'command = "python algos/hill.py"': ("", r"needs a table \[ranges\]"),
    'command = "python algos/hill.py --seed 3"\n[ranges]\nx = [1.0]': ("", "takes no --seed"),
    "z = [1]": ("", "no setting z"),
    "x = 3.0": ("", 'x needs a list, a range or "= expression", not 3.0'),
    "x = []": ("", "x needs a list"),
    'x = "num_envs"': ("", "x needs a list"),
    'x = "= nobody + 1"': ("", "no setting nobody"),
    'x = "= x"': ("", "tied to itself"),
    'x = "= 1 / (num_envs - 1)"': ("", "division by zero"),
    "x = { low = 1, high = 2 }": ("", "x is a range: give --trials N"),
    "x = { low = 2, high = 1 }": ("--trials 2", "x: a range is"),
    "x = { low = 0, high = 1, log = true }": ("--trials 2", "x: a range is"),
    "x = [1.0]": ("--seeds 2", "--seeds is at least 3"),
    "x = [2.0]": ("--trials 0", "must be at least 1"),
    "x = [3.0]": ("-- --z 3", "unrecognized arguments: --z 3"),
}


def test_wrong_input_is_refused_with_a_line(house):
    for text, (flags, complaint) in WRONG.items():
        name = "none.toml" if text == "no such file" else "wrong.toml"
        if not re.match("command|.ranges|x = .$", text):
            text = f'command = "python algos/hill.py"\n[ranges]\n{text}'
        (house / "wrong.toml").write_text(text)
        said = tuned(house, name, *flags.split(), status=2)
        assert re.search(complaint, said.splitlines()[-1]), text
        assert not (house / "runs").exists(), text


def test_other_arguments_in_an_old_folder_are_refused(house):
    tuned(house, "grid.toml", "--jobs", 8)
    said = tuned(house, "grid.toml", "--", "--pause", 0.1, status=2)
    assert "was trained with pause=0.0, not 0.1" in said


def test_a_study_knows_what_its_commands_mean(tmp_path):
    """A run whose arguments are others than those expected is refused."""
    (tmp_path / "dqn.toml").write_text(DQN)
    study = tune.Study(tune.parse_options([str(tmp_path / "dqn.toml"), "--dry-run"]), [])
    study.search()
    assert len(study.trials) == 1 + 2**4
    for trial in study.trials:
        expected = tune.run.script_args("dqn", trial.command[1:])
        assert trial.args | {"runs_dir": ""} == expected | {"runs_dir": ""}
        assert Path(expected["runs_dir"]).name == trial.job(1).table
    assert trial.args["env_kwargs"] == '{"max_episode_steps": 50}'
    assert trial.args["learning_rate"] == 0.001


@pytest.mark.slow
def test_a_real_script_is_tuned(house):
    shutil.copy(ROOT / "algos" / "ppo.py", house / "algos")
    text = 'command = "python algos/ppo.py --total-timesteps 512 --eval-episodes 1"\n'
    text += '[ranges]\nnum_steps = [16]\nnum_minibatches = "= num_steps / 8"\nanneal_lr = [false]'
    (house / "real.toml").write_text(text)
    said = tuned(house, "real.toml", "--fresh-seeds", 1, "--jobs", 2)
    assert "2 trials" not in said and len(rows(house, "real")) == 2
    (folder,) = house.glob("runs/tune/real/ppo-num_steps=16,*anneal_lr=False/CartPole-v1/ppo/1-*")
    args = (folder / "args.json").read_text()
    assert '"num_minibatches": 2' in args and '"torch_threads": 1' in args
