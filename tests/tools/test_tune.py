"""The search for settings, with a script whose return is a known function of its arguments."""

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import tune
from conftest import NUMBERS, ROOT, wait_for

HILL = """
import argparse, json, sys, time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

@dataclass
class RunArgs:
    env_id: str = "Hill-v0"
    seed: int = 1
    x: float = 0.0
    num_envs: int = 1
    num_minibatches: int = 1
    device: str = "auto"
    torch_threads: int = 0
    runs_dir: str = "runs"
    exp_name: str = ""

make_agent = evaluation_policy = make_envs = Run = None  # every script has them

def parse_args(name, args_class, argv):
    parser = argparse.ArgumentParser()
    for field in fields(args_class):
        names = {f"--{field.name}", f"--{field.name.replace('_', '-')}"}
        parser.add_argument(*names, default=field.default, type=field.type)
    return args_class(**vars(parser.parse_args(argv)))

def main(name, args_class, make_agent, train, evaluation_policy, make_envs=None):
    args = asdict(parse_args("hill", RunArgs, sys.argv[1:]))
    x, seed = args["x"], args["seed"]
    while seed == 2 and Path("second seeds wait").exists():
        time.sleep(0.01)
    if x == 13 or (x, seed) == (2.25, 2):
        sys.exit("hill.py: no luck")
    name = f"{args['exp_name']}-{seed}-now".lstrip("-")
    folder = Path(args["runs_dir"], args["env_id"], "hill", name)
    folder.mkdir(parents=True)
    value = 100 - (x - 2) ** 2 - abs(args["num_envs"] - 4) + seed
    value += 10 * ((x, seed) == (0, 8))  # the default is lucky once
    args_json, result = {"args": args | {"device": "cpu"}}, {"eval_return_mean": value}
    for name, content in (("args.json", args_json), ("result.json", result)):
        (folder / "new").write_text(json.dumps(content))
        (folder / "new").rename(folder / name)  # whole, as the scripts write it
    with open("finished.txt", "a") as file:
        file.write(f"{x} {args['num_envs']} {seed}\\n")

if __name__ == "__main__":
    main("hill", RunArgs, make_agent, None, evaluation_policy)
"""
COMMAND = 'command = "python algos/hill.py"\n[ranges]\n'
GRID = """
command = "python algos/hill.py --exp-name été"
[ranges]
num_minibatches = "= num_envs * 2"
x = [1.0, 2.0, 3.5]
num_envs = [2, 4]
"""

COMMAND_OF_PPO = COMMAND.replace("hill", "ppo")
PPO = f"""{COMMAND_OF_PPO}
learning_rate = {{ low = 1e-5, high = 0.1, log = true }}
num_steps = {{ low = 1, high = 1e3, log = true }}
num_minibatches = "= num_steps"
gamma = {{ low = 0, high = 1 }}
gae_lambda = {{ low = 0.99996, high = 0.99999 }}
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
    """Beside it, in `house`, the programs that take part and a script that takes no time."""
    root = tmp_path / "house"
    for name in ("benchmarks", "algos"):
        (root / name).mkdir(parents=True)
    for name in ("benchmarks/tune", "benchmarks/run", "benchmarks/report", "algos/load"):
        shutil.copy(ROOT / f"{name}.py", root / f"{name}.py")
    (root / "algos" / "hill.py").write_text(HILL)
    (tmp_path / "grid.toml").write_text(GRID)
    monkeypatch.setattr(tune.run, "ROOT", root)
    monkeypatch.setattr(tune.run, "SCRIPTS", ["hill", "ppo"])
    monkeypatch.syspath_prepend(root / "algos")
    yield tmp_path
    sys.modules.pop("hill", None)


@pytest.fixture
def tuned(house, tool):
    """tuned("grid.toml", ...) is what the search prints; of wrong input, its complaint."""

    def run(*flags, status: int = 0) -> str:
        ended = tool(tune, *flags)
        assert ended.status == status, ended.err + ended.out
        return ended.err if status == 2 else ended.out

    return run


def finished() -> Counter:
    """{"x num_envs seed": how many runs of it came to their end}"""
    path = Path("finished.txt")
    return Counter(path.read_text().splitlines() if path.exists() else [])


def rows(study: str) -> list[list[str]]:
    lines = Path("runs", "tune", study, "study.md").read_text().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_negative_number_is_no_flag():
    assert tune.flags_of({"log_std": -1.5}) == ["--log-std=-1.5"]


def test_the_best_is_confirmed_beside_the_default_on_fresh_seeds_and_nothing_runs_twice(
    house, tuned
):
    lines = tuned("grid.toml", "--dry-run").splitlines()
    assert len(lines) == 3 * (1 + 6) and not (house / "runs").exists()
    assert all(line.startswith("python house/algos/hill.py --torch-threads 1 ") for line in lines)
    said = tuned("grid.toml", "--jobs", 8)
    first, second, *_, last = rows("grid")
    # 100 + seed at the top, (x, num_envs) = (2, 4); the default (0, 1) lies 4 + 3 below it, but
    # above it with seed 8
    name = first[0]
    both = f"trial {name} 106.0 ± 1.6, default 101.0 ± 5.7"
    assert f"On fresh seeds: {both}; P(trial {name} > default) 0.80" in said
    points = {f"{x} {n}" for x in (1.0, 2.0, 3.5) for n in (2, 4)} | {"0.0 1"}
    expected = {f"{point} {seed}" for point in points for seed in (1, 2, 3)}
    expected |= {f"{point} {seed}" for point in ("2.0 4", "0.0 1") for seed in range(4, 9)}
    assert finished() == dict.fromkeys(expected, 1)
    returns = "104.0, 105.0, 106.0, 107.0, 108.0"
    best = ["8", "2.0", "4", "102.0 ± 1.0", "101.0, 102.0, 103.0", "106.0 ± 1.6", returns]
    assert first[1:] == best
    assert second[1:5] == ["8", "1.0", "4", "101.0 ± 1.0"] and second[6:] == [""] * 2
    assert last[:6] == ["default", "1", "0.0", "1", "95.0 ± 1.0", "94.0, 95.0, 96.0"]

    again = tuned("grid.toml", "--jobs", 8)
    assert finished() == dict.fromkeys(expected, 1)
    assert again.split("\n\n")[1:] == said.split("\n\n")[1:]
    # one more value of a list: its points alone are trained
    (house / "grid.toml").write_text(GRID.replace("3.5]", "3.5, 2.5]"))
    tuned("grid.toml", "--jobs", 8)
    new = {f"2.5 {n} {seed}" for n in (2, 4) for seed in (1, 2, 3)}
    assert finished() == dict.fromkeys(expected | new, 1)
    other = tuned("grid.toml", "--", "--env-id", "Hill-v0", "--num-m", 5, status=2)
    assert "was trained with num_minibatches=1, not 5" in other


def study_of(tmp_path, text: str, *flags):
    """A study of ranges, in a folder of its own."""
    (tmp_path / "ranges.toml").write_text(text)
    own = [str(tmp_path / "ranges.toml"), "--runs-dir", str(tmp_path / str(next(NUMBERS)))]
    options = tune.parse_options(own + list(map(str, flags)))
    return tune.Study(options, tune.report.read_toml(options.file), [])


def test_tpe_draws_from_its_ranges_and_repeats_by_its_seed(monkeypatch, tmp_path):
    """Also where some trials fail: those of five epochs."""

    def train(study, trials, seeds):
        for trial in trials:
            if trial.settings["update_epochs"] < 5:
                trial.finished = {seed: seed - trial.settings["gamma"] for seed in seeds}

    monkeypatch.setattr(tune.Study, "train", train)
    found = []
    for seed in (1, 1, 2):
        study = study_of(tmp_path, PPO, "--trials", 20, "--tpe-seed", seed)
        study.search()
        assert study.trials[0] is study.default
        assert study.open().direction.name == "MAXIMIZE"
        found.append([(trial.settings, trial.finished) for trial in study.trials[1:]])
    assert found[0] == found[1] != found[2]
    assert 0 < sum(not returns for _, returns in found[0]) < 20
    for settings, _ in found[0]:
        assert type(settings["num_steps"]) is int and 1 <= settings["num_steps"] <= 1000
        # a range of whole numbers, for a setting that is none
        assert type(settings["gamma"]) is float and 0 <= settings["gamma"] <= 1
        assert 1e-5 <= settings["learning_rate"] <= 0.1
        assert 0.99996 <= settings["gae_lambda"] <= 0.99999
        assert settings["num_minibatches"] == settings["num_steps"]


def test_no_batch_of_tpe_asks_what_another_has_asked(monkeypatch, tmp_path):
    """Also while none has a score, so that all are drawn at random."""
    monkeypatch.setattr(tune.Study, "train", lambda *_: None)
    study = study_of(tmp_path, PPO, "--trials", 12, "--batch", 4)
    study.search()
    assert len({str(trial.params) for trial in study.open().trials}) == 12


def test_numbers_that_are_searched_can_be_read_and_stay_in_their_range():
    for value, low, high, expected in [
        (0.0012345678, 1e-5, 0.1, 0.001235),
        (0.999961234, 0.9, 0.99997, 0.99996),
        (0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2),
    ]:
        assert tune.readable(value, low, high) == expected


def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(house, tuned):
    """While two of its runs are under way, which live on and are waited for; with more trials."""
    (house / "range.toml").write_text(f"{COMMAND}x = {{ low = -9, high = 9 }}\nnum_envs = [1, 2]")
    flags = ["range.toml", "--batch", 2, "--fresh-seeds", 1, "--jobs", 2, "--trials"]
    tuned(*flags, 4, "--runs-dir", "whole")
    whole = finished()
    (house / "finished.txt").unlink()
    (house / "second seeds wait").touch()
    words = [sys.executable, house / "house" / "benchmarks" / "tune.py", *flags]
    words = [*map(str, words), "2", "--runs-dir", "cut"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: finished().total() == 3)  # then there is no room for others
        process.kill()
    (house / "second seeds wait").unlink()
    for jobs in (2, 1):  # and once more, when nothing is left to do
        tuned(*flags, 4, "--runs-dir", "cut", "--jobs", jobs)
        assert finished() == whole and set(whole.values()) == {1}


def test_a_failed_trial_is_shown_and_does_not_end_the_study(house, tuned):
    """Nor is it the best by those of its seeds that did not fail."""
    text = GRID.replace("[1.0, 2.0, 3.5]", '[13.0, 2.25, 1.0, "two"]').replace("[2, 4]", "[4]")
    (house / "unlucky.toml").write_text(text.replace("hill.py", "hill.py --x 13"))
    flags = ["unlucky.toml", "--jobs", 8, "--fresh-seeds", 1]
    said = tuned(*flags)
    first, *failed = rows("unlucky")
    assert first[2] == "1.0" and first[6:] == ["103.0"] * 2 and "P(trial" not in said
    found = {(row[0] == "default", row[2], row[-1]) for row in failed}
    assert found == {
        (True, "13.0", "seed 1: hill.py: no luck"),
        (False, "13.0", "seed 1: hill.py: no luck"),
        (False, "2.25", "seed 2: hill.py: no luck"),
        (False, "two", "seed 1: hill.py: error: argument --x: invalid float value: 'two'"),
    }
    (path,) = house.glob("runs/tune/unlucky/*x=1.0*/*/*/*-3-now/result.json")
    path.write_text("{")
    said = tuned(*flags, status=1)
    broken = f"seed 3: {path.relative_to(house)} cannot be read: "
    assert f"| 103.0 {broken}" in said
    assert "Nothing is confirmed: seed 1: hill.py: no luck" in said


def test_the_default_may_be_the_best_and_is_not_trained_twice(house, tuned):
    best = GRID.replace("hill.py", "hill.py --x 2 --num-envs 4 --num-m 8")
    (house / "good.toml").write_text(best)
    assert "No trial has a better score" in tuned("good.toml", "--jobs", 8)
    assert set(finished().values()) == {1} and len(rows("good")) == 6


def test_of_equal_scores_the_earliest_is_the_best_whatever_fresh_seeds_say(tmp_path):
    study = study_of(tmp_path, f"{COMMAND_OF_PPO}num_steps = [7, 5]")
    trials = [study.default, *(study.trial({"num_steps": n}) for n in ("7", "5"))]
    for trial in trials:
        trial.finished = dict.fromkeys(study.seeds, 3.0)
    trials[2].finished |= dict.fromkeys(study.fresh, 9.0)  # of an earlier start
    assert study.ranked() == trials


def test_expressions():
    values = {"a": 12, "b": 0.5, "name": "x", "none": None, "rate": 0.1, "on": True}

    def tied(text):
        return tune.with_ties({"rate": text}, {}, values)["rate"]

    for text, value in [("a*2 - 3", 21), ("-(a - 2)//3", -4), ("a / 8 + b", 2), ("1e-3", 0.001)]:
        assert tied(f"= {text}") == value
    wrong = "a.real print(a) [a] name none 'x' ().x a,b a:=1 rate nobody a**2 a%5 on True 1j b//0"
    for text in ["a if a else b", "", "lambda: a", "a and b", "a in b", "not a", *wrong.split()]:
        with pytest.raises(tune.UserError):
            tied(f"= {text}")


def test_ties_may_be_chained_and_keep_whole_numbers_whole():
    default = {"steps": 128, "envs": 8, "batches": 4, "rate": 0.1, "epochs": 3}
    ranges = {"batches": "= steps / 32", "steps": "= 2048 / envs", "envs": [4]}
    tied = tune.with_ties(ranges | {"rate": "= epochs / 4"}, {"envs": 4}, default)
    assert tied == {"batches": 16, "steps": 512, "envs": 4, "rate": 0.75}
    assert all(type(tied[name]) is int for name in ("batches", "steps", "envs"))


WRONG = {  # a whole file, or a line of its ranges: (flags, what the complaint has beside the file)
    "x = [": ("", "Invalid"),
    'command = "python mine/hill.py"\n[ranges]\nx = [1.0]': ("", "needs a line command"),
    'command = "python algos/hill.py \'"': ("", "No closing quotation"),
    'command = "python algos/hill.py"': ("", r"needs a table \[ranges\]"),
    'command = "python algos/hill.py --seed 3"\n[ranges]\nx = [1.0]': ("", "takes no --seed"),
    "z = [1]": ("", "no setting z"),
    'runs_dir = ["a", "b"]': ("", "no setting runs_dir to search"),
    "x = 3.0": ("", 'x needs a list, a range or "= expression", not 3.0'),
    "x = []": ("", "x needs a list"),
    'x = "= nobody + 1"': ("", '"= nobody [+] 1": there is no setting nobody'),
    'x = "= x"': ("", "tied to itself"),
    'x = "= 1 / (num_envs - 1)"': ("", r'"= 1 / \(num_envs - 1\)": .*division by zero'),
    "x = { low = 1, high = 2 }": ("", "x is a range: give --trials N"),
    "x = { low = 2, high = 1 }": ("--trials 2", "x: a range is"),
    "x = { high = 2.0 }": ("--trials 2", "x: a range is"),
    "num_envs = { low = 2.5, high = 7 }": ("--trials 2", "num_envs: .* it takes whole numbers"),
    "x = { low = 1.0, high = inf }": ("--trials 2", "x: a range is .* its ends must be finite"),
}


def test_wrong_input_is_refused_with_a_line(house, tuned):
    for text, (flags, complaint) in WRONG.items():
        whole = text.startswith(("command", "[ranges]")) or text == "x = ["
        (house / "wrong.toml").write_text(text if whole else COMMAND + text)
        said = tuned("wrong.toml", *flags.split(), status=2)
        assert re.search(f"tune.py: wrong.toml: .*{complaint}", said.splitlines()[-1]), text
    for flags, complaint in {
        "none.toml": "none.toml: .*No such file",
        "grid.toml --seeds 2": "--seeds is at least 3",
        "grid.toml --trials 0": "must be at least 1",
        "grid.toml -- --z 3": "unrecognized arguments: --z 3",
    }.items():
        assert re.search(complaint, tuned(*flags.split(), status=2).splitlines()[-1]), flags
    assert not (house / "runs").exists()


def test_a_study_knows_what_its_commands_mean(tmp_path):
    """A run whose arguments are others than those expected is refused."""
    study = study_of(tmp_path, DQN, "--dry-run")
    study.search()
    assert len(study.trials) == 1 + 2**4
    for trial in study.trials:
        expected = tune.run.script_args("dqn", trial.command[1:])
        assert trial.args | {"runs_dir": ""} == expected | {"runs_dir": ""}
        assert Path(expected["runs_dir"]).name == trial.job(1).table
    assert trial.args["env_kwargs"] == '{"max_episode_steps": 50}'
    assert trial.args["learning_rate"] == 0.001


def test_another_command_other_seeds_or_other_ranges_are_another_study(tmp_path):
    text = f"{COMMAND_OF_PPO}num_steps = [16, 32]"
    options = [(text, ()), (text, ()), (text.replace("ppo.py", "ppo.py --gamma 0.5"), ())]
    options += [(text.replace("32", "64"), ()), (text, ("--first-seed", 9))]
    options += [(text, ("--seeds", 4)), (text, ("--tpe-seed", 2)), (text, ("--trials", 2))]
    names = [
        study_of(tmp_path, own, "--dry-run", *flags).open().study_name for own, flags in options
    ]
    assert names[0] == names[1] and len({*names}) == len(names) - 1
