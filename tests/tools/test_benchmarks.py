"""Campaigns survive what can happen to them; tables say what was worked out by hand; of curves,
sick ones are told from healthy ones.
"""

import csv
import importlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT, SCRIPTS, only_run, parse

sys.path.insert(0, str(ROOT / "benchmarks" / "maintain"))
sys.path.insert(0, str(ROOT / "benchmarks"))
import peer_returns
import profiled
import report
import run
import same_numbers
import speed

TINY = """
[ppo]
env_id = "CartPole-v1"
total_timesteps = 20_480
checkpoint_frequency = 1024
eval_episodes = 2

[ppo-broken]
env_id = "environments:Broken-v0"
total_timesteps = 6144
"""


@pytest.fixture
def house(tmp_path):
    """A copy of the repository's scripts with a small config and no results."""
    for name in ("algos", "benchmarks"):
        ignored = shutil.ignore_patterns("results", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "benchmarks" / "tiny.toml").write_text(TINY)
    yield tmp_path
    for process in runs_alive(tmp_path):
        os.kill(process, signal.SIGKILL)


@pytest.fixture
def campaign(house):
    """campaign("--seeds", "1") starts one in the house."""
    started = []

    def start(*flags) -> subprocess.Popen:
        command = [sys.executable, str(house / "benchmarks" / "run.py"), "tiny", *flags]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def runs_alive(house: Path) -> list[int]:
    """The processes that train in this folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"algos/ppo.py" in words and (folder / "cwd").resolve().is_relative_to(house):
                found.append(int(folder.name))
        except OSError:  # gone meanwhile
            continue
    return found


def wait_for(condition):
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def checkpoints(house: Path) -> dict:
    """{file: time of its last change} of the runs that are not finished."""
    found = house.glob("runs/tiny/*/*/*/*/checkpoint.pt")
    return {p: p.stat().st_mtime_ns for p in found if not (p.parent / "result.json").exists()}


def cells(house: Path) -> tuple[str, list]:
    """The CSV and the run hashes of the one cell."""
    script = house / "benchmarks" / "report.py"
    subprocess.run([sys.executable, script], check=True, stdout=subprocess.DEVNULL)
    (path,) = (house / "benchmarks" / "results").glob("*.json")
    hashes = [run["run_hash"] for run in json.loads(path.read_text())["runs"]]
    return path.with_suffix(".csv").read_text(), hashes


@pytest.mark.slow
def test_a_campaign_killed_twice_ends_as_one_that_was_not(house, campaign):
    flags = ["--algos", "ppo", "--seeds", "2", "--jobs", "2", "--eval-frequency", "5000"]
    code, out, _ = ended(campaign(*flags))
    assert code == 0 and "2 of 2 runs are finished, 0 failed" in out
    whole, hashes = cells(house)
    (house / "runs").rename(house / "whole")

    first = campaign(*flags)
    wait_for(lambda: len(checkpoints(house)) == 2)
    before = checkpoints(house)
    wait_for(lambda: all(before[p] != t for p, t in checkpoints(house).items()))
    first.kill()
    first.wait()
    killed, survivor = runs_alive(house)
    os.kill(killed, signal.SIGKILL)
    os.kill(survivor, signal.SIGSTOP)  # so that it is still there when the next campaign comes
    second = campaign(*flags)
    lines = []
    while "is running already" not in "".join(lines):
        lines.append(second.stdout.readline())
        assert lines[-1], second.stderr.read() + "".join(lines)
    os.kill(survivor, signal.SIGCONT)
    code, out, _ = ended(second)
    assert code == 0 and "2 of 2 runs are finished, 0 failed" in out
    assert "".join([*lines, out]).count("resumes  python algos/ppo.py") == 1
    assert cells(house) == (whole, hashes)
    assert len(list(house.glob("runs/tiny/ppo/CartPole-v1/ppo/*/result.json"))) == 2

    table = (house / "benchmarks" / "README.md").read_text()
    assert "| CartPole-v1 | ppo | 20,480 | 2 (1 to 2) |" in table and "too few seeds" in table
    assert "| CartPole-v1 | ppo | 20k | " in (house / "README.md").read_text()
    results = [json.loads(p.read_text()) for p in house.glob("runs/tiny/*/*/*/*/result.json")]
    for result in results:
        rows = [line.split(",") for line in whole.splitlines()]
        (final,) = [r for r in rows if r[:3] == ["greedy", str(result["seed"]), "20480"]]
        assert float(final[3]) == pytest.approx(result["eval_return_mean"], rel=1e-5)
    assert (house / "benchmarks" / "results" / "curves.png").stat().st_size > 10_000


def test_a_killed_run_is_reported_and_resumed_by_the_next_campaign(house, campaign):
    flags = ["--algos", "ppo", "--seeds", "1"]
    process = campaign(*flags)
    wait_for(lambda: checkpoints(house))
    os.kill(runs_alive(house)[0], signal.SIGKILL)
    code, out, _ = ended(process)
    assert code == 1 and "0 of 1 runs are finished, 1 failed" in out
    assert "FAILED   ppo, CartPole-v1, seed 1: exit status -9" in out
    code, out, _ = ended(campaign(*flags))
    assert code == 0 and "resumes  python algos/ppo.py --resume runs/tiny/ppo/" in out


@pytest.mark.slow
def test_what_a_dry_run_prints_can_be_pasted(house, campaign):
    code, out, _ = ended(campaign("--algos", "ppo", "--seeds", "2", "--dry-run"))
    assert code == 0 and not (house / "runs").exists()
    lines = out.splitlines()
    assert [shlex.split(line)[5] for line in lines] == ["1", "2"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    subprocess.run(lines[0], shell=True, cwd=house, env=environment, check=True)
    code, out, _ = ended(campaign("--algos", "ppo", "--seeds", "1"))
    assert code == 0 and "1 of 1 runs were finished before" in out and "starts" not in out


@pytest.mark.slow
def test_failures_end_a_campaign_with_a_summary(house, campaign):
    code, out, _ = ended(campaign("--seeds", "1", "--jobs", "1"))
    assert code == 1 and "finished ppo, CartPole-v1, seed 1" in out
    summary, failure = out.splitlines()[-2:]
    assert "1 of 2 runs are finished, 1 failed" in summary
    assert failure.startswith("FAILED   ppo-broken, environments:Broken-v0, seed 1: exit status 1")
    log = house / failure.split("(")[-1].rstrip(")")
    assert "FloatingPointError: not finite at step" in failure and "Traceback" in log.read_text()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_stopped_campaign_stops_its_runs(house, campaign, number):
    flags = ["--algos", "ppo", "--jobs", "2", "--", "--total-timesteps", "8000000"]
    process = campaign(*flags)
    wait_for(lambda: len(checkpoints(house)) == 2)
    process.send_signal(number)
    code, _, err = ended(process)
    assert code == 128 + number and err == "run.py: stopped; the same command goes on\n"
    assert runs_alive(house) == []


@pytest.mark.slow
def test_a_ray_campaign_survives_a_node_and_ends_as_a_local_one(house, campaign, monkeypatch):
    reason = "ray is not installed: pip install -r benchmarks/requirements-ray.txt"
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason=reason)
    flags = ["--algos", "ppo", "--seeds", "2"]
    code, _, _ = ended(campaign(*flags))
    assert code == 0
    local = cells(house)
    (house / "runs").rename(house / "local")

    (house / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(house / "tmp"))  # where the nodes run the script
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # Ray's sockets need a short path
    node = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
    try:
        lost = cluster.add_node(**node)
        cluster.wait_for_nodes()
        process = campaign(*flags, "--ray", cluster.address)
        wait_for(lambda: len(list(house.glob("tmp/*/runs/*/*/*/checkpoint.pt"))) == 2)
        cluster.remove_node(lost, allow_graceful=False)
        code, out, err = ended(process)
        assert code == 0 and "2 of 2 runs are finished, 0 failed" in out
        assert "will be retried" in out + err
    finally:
        cluster.shutdown()
    assert cells(house) == local


BAD_INPUT = {
    "no config": ("nothing --dry-run", "no config benchmarks/nothing.toml, only"),
    "no such table": ("cartpole --algos sac", "has no table [sac], only ppo"),
    "a flag out of range": ("cartpole --algos ppo -- --gamma 2", "gamma=2.0 must lie between"),
    "a misspelt flag": ("cartpole --algos ppo -- --gama 1", "--gama"),
    "a seed for the scripts": ("cartpole --algos ppo -- --seed 1", "no --seed"),
    "a folder for the scripts": ("cartpole --algos ppo -- --runs_dir=x", "no --runs_dir"),
    "a table for the scripts": ("cartpole --algos ppo -- --config x.toml:ppo", "no --config"),
    "a file for a folder": (f"cartpole --algos ppo --runs-dir {__file__}", "is no folder"),
    "no seeds": ("cartpole --seeds 0", "0 must be at least 1"),
    "no Ray there": ("cartpole --algos ppo --ray 127.0.0.1:1", "127.0.0.1:1: [Errno 111]"),
    "a run with other arguments": ("cartpole --algos ppo", "trained with gamma=0.5, not 0.98"),
}


@pytest.mark.parametrize("flags, message", BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_refused(tmp_path, monkeypatch, capsys, flags, message):
    folder = tmp_path / "ppo" / "CartPole-v1" / "ppo" / "1-20260101-000000"
    folder.mkdir(parents=True)
    arguments = f"--config {ROOT}/benchmarks/cartpole.toml:ppo --eval-frequency 5000"
    saved = run.script_args("ppo", f"{arguments} --torch-threads 1".split())
    (folder / "args.json").write_text(json.dumps({"args": saved | {"gamma": 0.5}}))
    monkeypatch.chdir(tmp_path)
    own, _, extra = flags.partition(" -- ")
    words = ["--runs-dir", str(tmp_path), *own.split()]
    words += ["--", *extra.split()] if extra else []
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    with pytest.raises(SystemExit) as exit:
        run.main()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    captured = capsys.readouterr()
    assert exit.value.code == 2
    assert message in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_a_run_that_comes_home_brings_no_files_back_that_are_gone(tmp_path):
    node, home = tmp_path / "node" / "1-time", tmp_path / "home"
    for name in ("args.json", "checkpoint.pt", "videos/a.mp4"):
        (node / name).parent.mkdir(parents=True, exist_ok=True)
        (node / name).write_text(name)
    home.mkdir()
    (home / "1.log").write_text("of another run too")
    run.bring_home(run.files_of(node), home)
    (node / "checkpoint.pt").rename(node / "result.json")
    run.bring_home(run.files_of(node), home)
    assert run.files_of(home / "1-time") == run.files_of(node)
    assert (home / "1.log").exists()


def test_a_folder_that_cannot_be_made_is_refused(monkeypatch, capsys):
    words = f"cartpole --algos ppo --seeds 1 --runs-dir {__file__}/runs".split()
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    with pytest.raises(SystemExit) as exit:
        run.main()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert exit.value.code == 2 and "run.py: --runs-dir: " in capsys.readouterr().err


def test_the_period_of_evaluations_has_one_digit():
    budgets = [1, 100, 50_000, 76_800, 1_000_000, 10_000_000]
    periods = [run.evaluation_period(budget, 20) for budget in budgets]
    assert periods == [1, 5, 2_000, 4_000, 50_000, 500_000]
    assert [run.evaluation_period(76_800, n) for n in (1, 2, 3, 5)] == [0, 40_000, 30_000, 20_000]


def test_a_campaign_with_fewer_evaluations():
    def frequency(flags):
        (job,) = run.plan(run.parse_options(f"cartpole --algos a2c --seeds 1 {flags}".split()), [])
        return job.flags[job.flags.index("--eval-frequency") + 1]

    flags = ("", "--evaluations 4", "--evaluations 1", "--eval-frequency 700")
    assert [frequency(text) for text in flags] == ["10000", "50000", "0", "700"]
    with pytest.raises(SystemExit):  # which of the two?
        frequency("--evaluations 4 --eval-frequency 700")


@pytest.mark.parametrize("name", ["slow", "pposlow", "ppo2"])
def test_a_table_without_a_script_is_told_what_names_look_like(tmp_path, name):
    path = tmp_path / "mine.toml"
    path.write_text(f"[ppo-fast]\n[{name}]\n")
    with pytest.raises(run.UserError, match=rf"no script is named {name}: .*\[ppo-{name}\]"):
        run.read_config(str(path))
    path.write_text("[ppo-fast]\n[dqn]\n")
    assert run.read_config(str(path))[1] == {"ppo-fast": {}, "dqn": {}}


def test_labels_are_moved_apart_and_no_further():
    np.testing.assert_allclose(report.apart([10, 1, 0], 3), [-1, 2, 10])
    np.testing.assert_allclose(report.apart({4.0: [], 4.5: [], 5.0: []}, 2), [2.5, 4.5, 6.5])
    np.testing.assert_allclose(report.apart([0, 3, 6], 3), [0, 3, 6])
    assert len(report.apart([], 3)) == 0


def test_the_time_left_follows_from_the_logs(tmp_path):
    def job(table, seed, log):
        found = run.Job(table, "ppo", [], {"seed": seed, "total_timesteps": 4000}, tmp_path)
        if log:
            found.log.write_text(log)
        return found

    begun = "it begins\n\r  0%|          | 0/4000 [00:00<?, ? steps/s]"
    silent, new = job("ppo", 1, ""), job("ppo-mine", 2, begun)
    assert run.time_left([silent, new], [silent, new], 1) == "time left not known yet"
    line = "\r 12%|#2   | {}/4000 [01:02:03<00:33, {}, return 52.2]"
    half = job("ppo", 3, line.format(400, "99.00 steps/s") + line.format(1000, "10.00 steps/s"))
    over = job("ppo", 4, line.format(4000, "10.00 steps/s") + "\nevaluation   return 9.0\n")
    jobs = [half, new, over]  # 3,000 steps and 4,000 steps at 10 a second: 700 s
    assert run.time_left(jobs, [half, new], 1) == "about 12 min left"
    assert run.time_left(jobs, [half, new], 2) == "about 7 min left"  # the longer one, 400 s
    assert job("ppo", 5, line.format(7, " 2.50s/ steps")).progress() == (7, 0.4)


def test_progress_is_read_from_what_tqdm_writes(tmp_path, monkeypatch):
    from tqdm import tqdm

    job = run.Job("ppo", "ppo", [], {"seed": 1, "total_timesteps": 4096}, tmp_path)
    with open(job.log, "w") as log:
        bar = tqdm(total=4096, initial=1024, unit=" steps", file=log)
        bar.set_postfix_str("return 52.2", refresh=False)
        time.sleep(0.01)
        bar.update(512)
        bar.close()
    step, speed = job.progress()
    assert step == 1536 and 0 < speed <= 512 / 0.01


def test_a_failed_run_is_told_by_its_exception(tmp_path):
    log, progress = tmp_path / "1.log", "\r  9%|9  | 96/999 [00:01<00:09, 96.00 steps/s]"
    log.write_text(f"{progress}\nTraceback\nValueError: no\nto resume: python x.py{progress}")
    assert run.last_line(log) == "ValueError: no"
    assert run.last_line(tmp_path / "none") == "it said nothing"


def published(mean, spread, seeds, steps=100, protocol="greedy"):
    here = ("CartPole-v1", ["ppo", "ppo-*"], protocol, mean, spread, seeds, steps)
    cause = "ppo: a cause; ppo-mine: too few steps"
    return report.Published(*here, "CartPole-v0", "a paper", "https://example.org", "", cause)


@pytest.mark.parametrize(
    "ours, row, expected",
    [
        # mean 4, standard deviation 1, t(2) = 4.303: half width 4.303 / sqrt(3) = 2.484
        ([3, 4, 5], published(1.5, None, 3), "above"),
        ([3, 4, 5], published(6.5, None, 3), "below"),
        ([3, 4, 5], published(1.55, None, 3), "no difference detected"),
        # a random policy has 22 on CartPole: a fifth of the distance is 3.12, then 56.4
        ([3, 4, 5], published(6.4, None, 3), "too noisy to say"),
        ([300, 301, 302], published(304, None, 3), "slightly below"),
        # one agent: half width 4.303 sqrt(1 + 1 / 3) = 4.968
        ([3, 4, 5], published(-0.97, 9.0, 1), "above"),
        ([3, 4, 5], published(8.97, None, 1), "below"),
        ([3, 4, 5], published(-0.96, 9.0, 1), "too noisy to say"),  # a fifth is 4.59
        ([3, 4, 5], published(-3, 9.0, 1), "above"),
        ([300, 301, 302], published(300, 9.0, 1), "no difference detected"),
        # Welch: standard error sqrt(1/3 + 1/3), t(4) = 2.776: half width 2.267
        ([3, 4, 5], published(1.7, 1.0, 3), "above"),
        ([3, 4, 5], published(6.3, 1.0, 3), "below"),
        ([3, 4, 5], published(1.8, 1.0, 3), "no difference detected"),
        # a fifth of the distance is 3.42 and 3.36; the intervals reach down to -3.17 and -3.47
        ([3, 4, 5], published(4.9, 1.0, 3), "no difference detected"),
        ([3, 4, 5], published(5.2, 1.0, 3), "too noisy to say"),
        # where a random policy's return is not known, a fifth of the published one
        ([3, 4, 5], replace(published(4.0, 1.0, 3), env_id="Mine-v0"), "too noisy to say"),
        ([500, 500, 500], published(500.0, 0.0, 1), "no difference detected"),
        ([500, 500, 500], published(499.0, 0.0, 1), "above"),
        ([3, 9], published(-1e9, 1.0, 1), "too few seeds to tell"),
        ([3], published(-1e9, 1.0, 1), "one seed of ours"),
        ([3, 4, 5], published(1.5, 9.0, 1, steps=99), "trained longer"),
        ([3, 4, 5], published(9, 9.0, 1, steps=800), "below, after 12% of its steps"),
        ([3, 4, 5], published(-1, 9.0, 1, steps=800), "above, after 12% of its steps"),
    ],
)
def test_verdicts(ours, row, expected):
    assert report.verdict(np.array(ours, float), 100, row) == expected


def test_worse_and_noisier_seeds_never_get_the_better_word():
    ranks = {"below": 0, "slightly below": 1, "no difference detected": 1, "above": 2}
    rng, unit = np.random.default_rng(0), np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    seen = set()
    for i in range(2000):
        row = published(400, None, 1) if i % 2 else published(400, 20.0, 10)
        mean, std = rng.uniform(200, 500), rng.exponential(30)
        better = report.verdict(mean + std * unit, 100, row)
        mean, std = mean - rng.exponential(30), std + rng.exponential(20)
        worse = report.verdict(mean + std * unit, 100, row)
        seen |= {better, worse}
        if worse in ranks:
            assert ranks[worse] <= ranks.get(better, 0)
    assert seen == {*ranks, "too noisy to say"}


def test_a_single_agent_of_our_own_kind_is_judged_as_such():
    """One more seed of ours is called above or below in one of twenty cases, with any number."""
    rng = np.random.default_rng(0)
    for n in (3, 7):
        draws = rng.normal(200, 30, (1000, n + 1))
        found = [report.verdict(row[1:], 100, published(row[0], 9.0, 1)) for row in draws]
        share = np.mean([text in ("above", "below", "slightly below") for text in found])
        assert 0.03 < share < 0.07


def test_interquartile_mean():
    assert report.iqm(np.array([100, 1, 0, 2, 3, 4, 5, 6])) == 3.5  # of 2, 3, 4, 5
    assert report.iqm(np.array([1, 2, 3, 4, 100])) == 3  # of 2, 3, 4
    assert report.iqm(np.array([1, 2, 9])) == 4  # of all


def test_bootstrap_intervals():
    assert report.interval(report.iqm, np.array([1.0, 2, 3, 4])) is None
    assert tuple(report.interval(np.mean, np.ones(5))) == (1, 1)
    # a resample of one 1 and nine 0 has 3 ones or less with probability 0.987, 2 or less with 0.930
    low, high = report.interval(np.mean, np.eye(10)[0])
    assert (low, high) == pytest.approx((0, 0.3))


def test_probability_of_improvement():
    assert report.improvement(np.array([1, 2]), np.array([1, 0])) == 3.5 / 4
    low, high = report.interval(report.improvement, np.arange(5.0), np.arange(6.0, 13.0))
    assert (low, high) == (0, 0)


def test_training_return():
    scalars = {
        "charts/episodic_return": [(500, 10.0), (1000, 20.0)],
        "charts/episodic_length": [(500, 100.0), (1000, 250.0)],
    }
    points = report.training_episodes(scalars, one_a_point=False)
    assert points == [(500, 10.0, 5.0), (1000, 20.0, 2.0)]
    assert report.last_episodes(points, count=3) == (2 * 20 + 1 * 10) / 3
    assert report.last_episodes(points, count=100) == (2 * 20 + 5 * 10) / 7
    # 40 steps to a window: (0, 40], (40, 80], ...
    points = [(40, 1.0, 1.0), (41, 2.0, 1.0), (80, 5.0, 2.0), (4000, 7.0, 1.0)]
    assert report.windows(points, 4000) == {40: 1, 80: 4, 4000: 7}


def a_run(seed: int, final: float, **changed) -> dict:
    """What report.read_run gives."""
    result = {"steps": 100, "seconds": 60 * seed, "eval_episodes": 10, "run_hash": f"{seed}"}
    return {
        "folder": Path(f"runs/{seed}"),
        "env_id": "CartPole-v1",
        "algo": "ppo",
        "seed": seed,
        "result": {"seed": seed, **result},
        "args": {"seed": seed, "runs_dir": "runs", "gamma": 0.9, **changed},
        "versions": {"torch": "2"},
        "script": "5c41",
        "command": "python algos/ppo.py --seed 1 --runs-dir 'my runs/ppo' --gamma 0.9",
        "returns": {
            "greedy": {50: 10.0 * seed, 100: final},
            "training": {60: 1.0, 100: 2.0} if seed == 1 else {100: 4.0},
            "last100": {100: final / 2},
        },
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A cell of three seeds, with greedy returns 3, 4, 5 at the end."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.RESULTS.mkdir()
    report.write_cell("ppo-mine", [a_run(seed, seed + 2.0) for seed in (1, 2, 3)], report.RESULTS)
    return tmp_path


def test_a_cell_comes_back_from_its_files(results):
    (cell,) = report.read_cells(report.RESULTS)
    assert cell.values("greedy").tolist() == [3, 4, 5]
    assert cell.values("training").tolist() == [1.5, 2, 2.5]
    assert cell.values("best").tolist() == [10, 20, 30]
    steps, returns = cell.curve("training")  # where all seeds have one
    assert steps.tolist() == [100] and returns.tolist() == [[2], [4], [4]]


def test_the_tables(results):
    rows = [published(7.5, 1.0, 5, steps=150), published(9.5, 9.0, 1)]  # the second is the nearer
    rows.append(published(1.9, 0.5, 3, protocol="training"))
    line = report.results_table(report.read_cells(report.RESULTS), rows).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["CartPole-v1", "ppo-mine", "100", "3 (1 to 3)"]
    assert cells[4:7] == ["4.0", "4.0 ± 1.0", "2.0 ± 0.50"]
    assert cells[7:9] == ["9.5 (a paper, CartPole-v0)", "below: too few steps"]
    assert cells[9:] == ["2.0", "`python algos/ppo.py --seed 1 --gamma 0.9`"]
    short = report.short_table(report.read_cells(report.RESULTS), rows).splitlines()[-1]
    expected = "| CartPole-v1 | ppo-mine | 0k | 4.0 | 3 | 9.5 (0k, a paper, CartPole-v0) |"
    assert short == expected
    beside = report.published_table(report.read_cells(report.RESULTS), rows)
    assert "| training | 2.0 ± 0.50 | 3 | 100 | 1.9 ± 0.50 |" in beside
    assert "| 4.0 ± 1.0 | 3 | 100 | 9.5 ± 9.0 | 1 agent | 100 | CartPole-v0 |" in beside
    assert "| 20.0 ± 10.0 | 50 | 2 |" in report.best_table(report.read_cells(report.RESULTS))


def test_a_report_keeps_what_is_better_and_can_go_elsewhere(results, capsys, monkeypatch):
    table = tomllib.loads((ROOT / "benchmarks" / "cartpole.toml").read_text("utf-8"))["ppo"]

    def runs(count, config="benchmarks/cartpole.toml:ppo", **changed):
        command = f"python algos/ppo.py --config {config} --seed 1"
        args = table | changed
        own = {"command": command, "env_id": args["env_id"]}
        return [a_run(seed, 3.0, **args) | own for seed in range(count)]

    assert report.is_no_less("ppo", runs(1))
    report.write_cell("ppo", runs(2), report.RESULTS)
    assert report.is_no_less("ppo", runs(2))
    assert report.is_no_less("ppo", runs(1, env_id="Acrobot-v1"))  # trained elsewhere
    assert not report.is_no_less("ppo", runs(1))
    assert "CartPole-v1-ppo stays, with 2 seeds and not 1" in capsys.readouterr().out
    assert report.is_of_table("ppo", *runs(1))
    assert report.is_of_table("ppo", *runs(1, env_id="Acrobot-v1"))
    (typed,) = runs(1, norm_adv=False)
    typed["command"] += " --eval-frequency 500 --no-norm-adv"
    left_out = {
        "ppo with total_timesteps=512 is not as in": ("ppo", *runs(1, total_timesteps=512)),
        "ppo with norm_adv=False is not as in": ("ppo", typed),
        f"{results}/x.toml:ppo is no table of": ("ppo", *runs(1, f"{results}/x.toml:ppo")),
        "ppo-mine is no table of benchmarks/": ("ppo-mine", *runs(1)),
    }
    for text, arguments in left_out.items():
        assert not report.is_of_table(*arguments)
        assert capsys.readouterr().out.startswith(text)
    elsewhere = results / "elsewhere" / "deep"
    before = (ROOT / "README.md").read_text()
    argv = ["report.py", "--from-csv", "--out", str(elsewhere)]
    monkeypatch.setattr(sys, "argv", argv)
    report.main()
    assert "No results yet" in (elsewhere / "README.md").read_text()
    report.write_cell("ppo-mine", [a_run(seed, 3.0) for seed in (1, 2)], elsewhere)
    report.main()
    assert "| CartPole-v1 | ppo-mine | 100 | 2 (1 to 2) |" in (elsewhere / "README.md").read_text()
    assert (elsewhere / "curves.png").exists() and (ROOT / "README.md").read_text() == before


def test_seeds_of_another_day_join_a_cell(results, monkeypatch):
    path = report.cell_path("CartPole-v1", "ppo-mine", report.RESULTS)
    before = path.read_text(), path.with_suffix(".json").read_text()
    same = report.earlier_seeds([a_run(9, 0.0)], path)
    report.write_cell("ppo-mine", same, report.RESULTS)
    # nothing is lost on the way from the files and back
    assert (path.read_text(), path.with_suffix(".json").read_text()) == before
    assert report.earlier_seeds([a_run(9, 0.0, gamma=0.5)], path) == []
    assert report.earlier_seeds([a_run(9, 0.0, eval_frequency=7)], path) == same
    assert report.earlier_seeds([{**a_run(9, 0.0), "versions": {"torch": "3"}}], path) == []
    assert report.earlier_seeds([{**a_run(9, 0.0), "script": "07e4"}], path) == []

    finals = {2: 44.0, 5: 7.0}  # seed 2 once more, seed 5 for the first time
    monkeypatch.setattr(
        report, "read_run", lambda folder: a_run(seed := int(folder.name), finals[seed])
    )
    for seed in finals:
        folder = results / "ppo-mine" / "CartPole-v1" / "ppo" / f"{seed}"
        folder.mkdir(parents=True)
        for name in ("args.json", "result.json"):
            (folder / name).touch()
    monkeypatch.setattr(report, "is_of_table", lambda table, run: True)
    monkeypatch.chdir(results / "ppo-mine" / "CartPole-v1" / "ppo")  # a relative path will do
    report.collect(Path("."), report.RESULTS)
    (cell,) = report.read_cells(report.RESULTS)
    assert cell.seeds == [1, 2, 3, 5] and cell.values("greedy").tolist() == [3, 44, 5, 7]


def test_seeds_of_scripts_that_train_the_same_share_a_cell(results):
    """Here by way of a third script, between the two."""
    path = report.cell_path("CartPole-v1", "ppo", report.RESULTS)
    command = "python algos/ppo.py --config benchmarks/cartpole.toml:ppo --seed 1"
    old_args = {"gone": 1}  # a flag that the new script no longer has
    old = [{**a_run(seed, 3.0, **old_args), "command": command} for seed in (1, 2)]
    report.write_cell("ppo", old, report.RESULTS)
    new = {**a_run(3, 4.0, exp_name="mine", config="x"), "command": command, "script": "07e4"}

    def record(name, *scripts):
        same_numbers.record(
            report.RESULTS / report.SAME_NUMBERS, name, "ppo", list(scripts), "HEAD", "f00"
        )

    record("cartpole:ppo", "5c41", "3a1f")
    record("cartpole:dqn", "3a1f", "07e4")
    assert report.earlier_seeds([new], path) == []
    record("cartpole:ppo", "07e4", "3a1f")
    elsewhere = {**new, "command": f"{command} --env-id Acrobot-v1"}
    assert report.same_numbers(new, "5c41") and not report.same_numbers(elsewhere, "5c41")
    both = [*report.earlier_seeds([new], path), new]
    assert [run["seed"] for run in both] == [1, 2, 3]
    report.write_cell("ppo", both, report.RESULTS)
    cell = next(cell for cell in report.read_cells(report.RESULTS) if cell.table == "ppo")
    assert [run["script"] for run in cell.about["runs"]] == ["5c41", "5c41", "07e4"]
    other = {**new, "args": new["args"] | {"gone": 2}}
    assert report.earlier_seeds([other], path) == []


def test_seeds_join_a_cell_without_training_episodes(results):
    run = a_run(1, 0.0)
    run["returns"]["training"] = {}
    report.write_cell("ppo", [run], report.RESULTS)
    (again,) = report.earlier_seeds(
        [a_run(9, 0.0)], report.cell_path("CartPole-v1", "ppo", report.RESULTS)
    )
    assert again["returns"] == run["returns"]


def test_a_run_that_lost_a_part_of_its_curves_is_refused(script, tmp_path):
    script("ppo", "--total-timesteps", 2048, "--eval-frequency", 512)
    folder = only_run(tmp_path)
    whole = report.read_run(folder)
    assert sorted(whole["returns"]["greedy"]) == [512, 1024, 1536, 2048]
    (events,) = folder.glob("events.*")
    content = events.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 255
    for damaged in (content[: len(content) // 2], bytes(flipped)):
        events.write_bytes(damaged)
        with pytest.raises(report.UserError, match="lack the evaluation"):
            report.read_run(folder)


def test_what_followed_the_checkpoint_of_a_resumed_run_is_no_part_of_its_curves(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for run_of, (steps, purge) in enumerate([((1, 2, 3, 4), None), ((3, 4, 5), 3)]):
        with SummaryWriter(tmp_path, purge_step=purge, filename_suffix=f".{run_of}") as writer:
            for step in steps:
                writer.add_scalar("losses/x", 10 * run_of + step, step)
                if step < 3:
                    writer.add_scalar("losses/y", step, step)
    scalars, _ = report.read_events(tmp_path)
    assert scalars["losses/x"] == [(1, 1), (2, 2), (3, 13), (4, 14), (5, 15)]
    assert scalars["losses/y"] == [(1, 1), (2, 2)]


def test_cells_have_the_settings_of_their_tables():
    for cell in report.read_cells(ROOT / "benchmarks" / "results"):
        run = {k: cell.about[k] for k in ("env_id", "args", "command")} | {"folder": "here"}
        assert report.is_of_table(cell.table, run), cell.table


def test_arguments_of_the_environment_are_a_setting_of_a_table(tmp_path, monkeypatch):
    """A table in the config, JSON in args.json."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    path = tmp_path / "benchmarks" / "mine.toml"
    path.parent.mkdir()
    path.write_text('[ppo]\nenv_id = "LunarLander-v3"\nenv_kwargs = { gravity = -5.0 }\n')
    args = run.script_args("ppo", ["--config", str(path)])
    command = "python algos/ppo.py --config benchmarks/mine.toml:ppo --seed 1"
    here = {"args": args, "command": command, "folder": "here"}
    assert report.is_of_table("ppo", here)
    assert not report.is_of_table("ppo", {**here, "args": args | {"env_kwargs": "{}"}})


def test_a_cell_refuses_runs_that_differ(results):
    with pytest.raises(report.UserError, match=r"gamma=0.5, runs/1 0.9"):
        report.write_cell("ppo", [a_run(1, 3.0), a_run(2, 3.0, gamma=0.5)], results)
    with pytest.raises(report.UserError, match="the same seed twice"):
        report.write_cell("ppo", [a_run(1, 3.0), a_run(1, 3.0)], results)


def test_runs_are_compared_cleanrls_too(results, capsys):
    from torch.utils.tensorboard import SummaryWriter

    # an argument without a value is the last cell of its row
    arguments = {"env_id": "CartPole-v1", "exp_name": "ppo", "gamma": "0.90", "hf_entity": ""}
    for name, value in (("cleanrl", 2.2), ("ours", 8.0)):
        with SummaryWriter(results / name) as writer:
            for step in range(0, 3000, 10):
                writer.add_scalar("charts/episodic_return", value, step)
                writer.add_scalar("charts/episodic_length", 10, step)
            if name == "cleanrl":
                rows = "\n".join(f"|{key}|{value}|" for key, value in arguments.items())
                writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
                writer.add_scalar("eval/episodic_return", 77.0, 9)  # of its tenth episode
    saved = {"algo": "ppo", "args": {"env_id": "CartPole-v1", "gamma": 0.9}}
    (results / "ours" / "args.json").write_text(json.dumps(saved))
    report.compare([results / "ours"], results / "compare.png")
    out = capsys.readouterr().out
    assert "not finished, so not compared with" in out and "argument" not in out
    (results / "ours" / "result.json").touch()
    report.write_cell("ppo", [a_run(seed, 3.0, gamma=0.5) for seed in (1, 2)], report.RESULTS)
    report.compare([results / "cleanrl", results / "ours"], results / "compare.png")
    _, out = capsys.readouterr().out.split(" seeds\n")  # of write_cell
    table, rest = out.split("\n\n")
    assert [line.split() for line in table.splitlines()] == [
        ["argument", "run", "1", "run", "2"],
        ["exp_name", "ppo", "-"],
        ["gamma", "0.90", "0.9"],
        ["hf_entity", "-"],
    ]
    header, _, gamma, _ = table.splitlines()
    assert header.index("run 1") == gamma.index("0.90")
    assert header.index("run 2") == gamma.rindex("0.9")
    runs = [line for line in rest.splitlines() if line.startswith("Run")]
    assert runs == [f"Run 1: {results}/cleanrl", f"Run 2: {results}/ours"]
    assert rest.count("not compared with [ppo], which has other settings: gamma 0.9") == 2
    seeds = "3 seeds of [ppo-mine] reached 1.5 to 2.5"
    assert f"training return 2.2: {seeds}; 2 lower, 1 higher\n" in rest
    assert "return 77" not in rest
    outside = "it lies outside of them, as 50% of all runs do by chance"
    assert f"training return 8.0: {seeds}; {outside}\n" in rest
    assert (results / "compare.png").stat().st_size > 10_000
    with SummaryWriter(results / "cut") as writer:  # at a tenth of its budget
        rows = "\n".join(f"|{k}|{v}|" for k, v in (arguments | {"total_timesteps": 30_000}).items())
        writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
        for step in range(0, 3000, 10):
            writer.add_scalar("charts/episodic_return", 2.2, step)
            writer.add_scalar("charts/episodic_length", 10, step)
    report.compare([results / "cut"], results / "compare.png")
    assert "not finished, so not compared with" in capsys.readouterr().out
    report.compare([results / "ours"] * 2, results / "compare.png")
    assert capsys.readouterr().out.startswith("No argument differs.\n")
    with pytest.raises(report.UserError, match="has no curves"):
        report.compare([results], results / "compare.png")
    with pytest.raises(report.UserError, match="'foo' is not supported"):
        report.compare([results / "ours"], results / "compare.foo")


def test_a_place_among_seeds_that_are_all_alike(results):
    report.write_cell("ppo", [a_run(seed, 500.0) for seed in (1, 2, 3)], report.RESULTS)
    cell = next(cell for cell in report.read_cells(report.RESULTS) if cell.table == "ppo")
    expected = "  greedy return 500.0: 3 seeds of [ppo] reached 500.0 to 500.0; 3 equal"
    assert report.place("greedy return", 500.0, cell, "greedy") == expected


def test_the_picture_of_a_comparison_lies_beside_the_first_run(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(report, "compare", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(sys, "argv", "report.py --compare runs/CartPole-v1/ppo/1-now x/y".split())
    report.main()
    (tmp_path / "1-now").mkdir()
    monkeypatch.chdir(tmp_path / "1-now")
    for words in ("--compare .", "--compare . --picture mine.png"):
        monkeypatch.setattr(sys, "argv", ["report.py", *words.split()])
        report.main()
    pictures = [picture for _, picture in calls]
    own = tmp_path / "runs" / "CartPole-v1" / "ppo" / "compare.png"
    assert pictures == [own, tmp_path / "compare.png", Path("mine.png")]


def test_a_campaign_knows_the_first_of_many_seeds_from_the_others(tmp_path):
    """ppo_seeds.py puts the folders of the others beside it, and they begin with its name."""
    args = run.script_args("ppo_seeds", ["--seed", "11"])
    for name, seed in (("11-now", 11), ("11-now-2-12-now", 12)):
        (tmp_path / name).mkdir()
        about = {"args": {**args, "seed": seed, "device": "cpu"}}
        (tmp_path / name / "args.json").write_text(json.dumps(about))
        (tmp_path / name / "result.json").write_text("{}")
    job = run.Job("ppo_seeds", "ppo_seeds", [], args, tmp_path)
    assert run.run_folder(job) == (tmp_path / "11-now", True)


@pytest.mark.parametrize("results", [report.RESULTS, report.RESULTS / "variants"])
def test_the_documents_hold_what_the_results_say(results):
    for path, text in report.documents(results).items():
        assert path.read_text() == text, f"make report rewrites {path}"


def test_published_rows_are_whole():
    rows = report.read_published()
    assert len({(r.env_id, *r.tables, r.protocol, r.source, r.mean) for r in rows}) == len(rows)
    for row in rows:
        assert row.protocol in ("greedy", "training", "best") and row.url.startswith("https://")
        assert row.source and row.tables and row.seeds >= 1 and row.steps >= 10_000


def test_a_part_that_calls_another_stands_still_meanwhile(monkeypatch):
    clock, parts = profiled.Clock(), SimpleNamespace(inner=lambda: 3)
    clock.time(parts, "inner", "acting")
    parts.outer = lambda: parts.inner() + parts.inner()
    clock.time(parts, "outer", "update")
    ticks = iter([0, 10, 15, 30, 37, 100])  # the outer begins, twice an inner begins and ends
    monkeypatch.setattr(profiled.time, "perf_counter", lambda: next(ticks))
    assert parts.outer() == 6 and clock.spent == {"acting": 5 + 7, "update": 100 - 12}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_part_of_a_training_is_timed(name, tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "maintain" / "profiled.py", 1500, name]
    command += ["--total-timesteps", 2560, "--eval-episodes", 1]
    command += ["--learning-starts", 100] if name in ("dqn", "td3") else []
    words = [str(word) for word in command]
    output = subprocess.run(words, cwd=tmp_path, check=True, text=True, stdout=subprocess.PIPE)
    lines = [line.split() for line in output.stdout.splitlines()[-len(profiled.PARTS) :]]
    parts = {part: float(microseconds) for part, microseconds, *_ in lines}
    assert tuple(parts) == profiled.PARTS
    idle = {"batch"} if name in ("dqn", "td3") else set()
    assert {part for part in parts if parts[part] == 0} == idle


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind")
def test_a_campaign_uses_no_core_that_it_was_not_given():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert run.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_one_seed_is_no_probability(results):
    report.write_cell("ppo", [a_run(1, 3.0)], report.RESULTS)
    report.write_cell("ppo-other", [a_run(seed, 9.0) for seed in (1, 2, 3)], report.RESULTS)
    table = report.improvement_table(report.read_cells(report.RESULTS))
    assert "| ppo-mine | ppo-other | 0.00" in table and "| ppo |" not in table


def test_the_peers_explore_as_long_as_our_dqn():
    """peers.py asks for ten times the steps, over which its libraries stretch the schedule."""
    import dqn

    ours = dqn.Args()
    for settings in (speed.DQN_CARTPOLE, speed.DQN_BREAKOUT):
        assert 10 * settings["exploration_fraction"] == pytest.approx(ours.exploration_fraction)
        assert settings["exploration_final_eps"] == ours.end_e


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind")
def test_what_is_timed_has_as_many_cores_as_threads():
    before = os.sched_getaffinity(0)
    code = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    with speed.held_to(1):
        assert int(subprocess.run(code, stdout=subprocess.PIPE).stdout) == 1
    assert os.sched_getaffinity(0) == before


def test_a_peer_s_seed_trained_again_takes_the_place_of_its_row(tmp_path):
    def row(seed, steps, greedy):
        values = ("Env-v0", "sb3", "A2C", seed, steps, greedy, 2.0, 3.0)
        return dict(zip(peer_returns.COLUMNS, values, strict=True))

    path = tmp_path / "peers.csv"
    for seed, steps, greedy in ((2, 7, 1.0), (1, 7, 4.0), (2, 5, 6.0), (2, 7, 8.0)):
        peer_returns.keep(path, row(seed, steps, greedy))
    found = [line.split(",")[3:6] for line in path.read_text().splitlines()[1:]]
    assert found == [["2", "5", "6.0"], ["1", "7", "4.0"], ["2", "7", "8.0"]]
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_said_of_a_peer_s_returns_is_what_its_seeds_have():
    with open(peer_returns.CSV, newline="") as file:
        returns = [float(row["greedy"]) for row in csv.DictReader(file)]
    mean, std = np.mean(returns), np.std(returns, ddof=1)
    words = {"published.csv": "±", "README.md": "±", "halfcheetah.toml": "+-"}
    for name, sign in words.items():
        said = f"{mean:,.0f} {sign} {std:.0f}"
        assert said in (ROOT / "benchmarks" / name).read_text("utf-8"), name


def test_ratios_of_speed_are_rounded_down():
    assert speed.times_as_fast(1.749 * 1013, 1013) == 1.74
    speeds = np.random.default_rng(0).uniform(100, 5000, 1000).tolist()
    assert all(speed.times_as_fast(sps, sps) == 1 for sps in speeds)


@pytest.mark.parametrize("name", speed.CELLS)
def test_the_flags_of_a_cell_of_speed_parse(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    script, *flags = speed.our_flags(speed.CELLS[name], "runs")
    assert parse(importlib.import_module(script), flags).total_timesteps == speed.CELLS[name].last


@pytest.mark.parametrize("name", same_numbers.commands([]))
def test_a_command_whose_numbers_are_compared_parses(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    script, *flags = f"{same_numbers.commands([])[name]} {same_numbers.EVERY}".split()
    args = run.script_args(script, flags)
    assert args["checkpoint_frequency"] < args["total_timesteps"] or name in same_numbers.MORE


def test_actors_are_measured_beside_dqn_and_a_run_that_solved_nothing_took_for_ever(monkeypatch):
    monkeypatch.chdir(ROOT)
    seconds = {"dqn": 90.0, "dqn_apex --num-actors 4": 30.0}

    def parses(flags):
        script, *flags = flags
        return parse(importlib.import_module(script), flags)

    def run_ours(cell, folder):
        args = parses(speed.our_flags(cell, folder))
        assert args.total_timesteps == cell.last > cell.first > args.learning_starts
        return {"sps": 100.0 * getattr(args, "num_actors", 0.9)}

    def solve(task, library, seed, folder):
        assert parses(task.flags.split()).env_id == task.env_id
        for words, found in seconds.items():
            if task.flags.startswith(f"{words} --env-id"):
                return {"seconds": found + seed, "steps": 1}
        return {}

    monkeypatch.setattr(speed, "run_ours", run_ours)
    monkeypatch.setattr(speed, "solve", solve)
    rows = speed.measure_actors(3, "runs")
    assert [(row["actors"], row["sps"]) for row in rows] == [
        ("dqn", 90), (1, 100), (2, 200), (4, 400), (8, 800)
    ]  # fmt: skip
    assert [row["seconds"] for row in rows] == [92.0, "", "", 32.0, float("inf")]
    assert [row["solved"] for row in rows] == [3, "", "", 3, 0]


@pytest.mark.slow
def test_the_time_to_solve_ends_when_the_threshold_is_reached(tmp_path):
    task = speed.Solve("ppo --total-timesteps 20480", "CartPole-v1", 40.0, {}, 0, num_envs=8)
    solved = speed.solve(task, "ours", 1, str(tmp_path))
    assert 500 <= solved["steps"] < 20_480 and solved["seconds"] > 0
    assert speed.solve(replace(task, threshold=501.0), "ours", 1, str(tmp_path)) == {}
    greedy = speed.solve(replace(task, evaluated_on="CartPole-v1"), "ours", 1, str(tmp_path))
    assert greedy["steps"] % 1_024 == 0  # the first of 2,000, by whole rollouts


class Curves:
    """Curves of a thousand steps between points, made up; `sick` is what is said of them."""

    def __init__(self, floor=-np.inf, **args):
        defaults = {"total_timesteps": 50_000, "num_envs": 1, "gamma": 0.99}
        self.args = {name: str(value) for name, value in (defaults | args).items()}
        self.floor = floor

    def sick(self, episode=(200.0, 200.0), epsilon=0.1, every=1_000, **losses) -> list[str]:
        """losses: lists, a value a point, or one value for all points."""
        length = max(len(values) for values in losses.values() if isinstance(values, list))
        steps = [every * i for i in range(1, length + 1)]
        curves = {f"losses/{tag}": values for tag, values in losses.items()}
        curves |= {"charts/epsilon": epsilon}
        if episode is not None:
            curves |= {"charts/episodic_return": episode[0], "charts/episodic_length": episode[1]}
        curves = {
            tag: list(
                zip(steps, values if isinstance(values, list) else [values] * length, strict=True)
            )
            for tag, values in curves.items()
        }
        return report.health(curves, self.args, self.floor)


def test_a_tenth_of_the_run_must_be_sick_without_a_break():
    assert not Curves().sick(explained_variance=[-0.5] * 5 + [0.1] + [-0.5] * 5)
    (text,) = Curves().sick(explained_variance=[0.1] + [-0.5] * 40)
    assert text.startswith("from step 2,000 on the explained variance is negative (-0.5)")
    assert not Curves(num_envs=8).sick(explained_variance=[-0.5] * 16)
    assert Curves(num_envs=8).sick(explained_variance=[-0.5] * 17)


def test_returns_that_hardly_differ_need_no_explanation():
    negative = [-0.5] * 20
    # CartPole-v1 solved: returns of 100, which values miss by about 1; and one where they differ
    assert not Curves().sick(explained_variance=negative, value_loss=0.5)
    assert Curves().sick(explained_variance=negative, value_loss=200.0)
    # gamma 0: the return is the reward, 1 at every step, and its variance the floor of 1e-8
    assert not Curves(gamma=0).sick(explained_variance=[-1e6] * 20, value_loss=0.005)
    # no reward found yet
    assert not Curves().sick(explained_variance=[-1e5] * 20, value_loss=1e-3, episode=(0, 200))
    # rewards that are divided by the deviation of their returns, of whatever size they were
    large = {"episode": (-1e6, 200.0), "explained_variance": negative}
    assert Curves(norm_reward=True).sick(**large, value_loss=0.5)
    assert not Curves().sick(**large, value_loss=0.5)


# Q of one-step targets on CartPole-v1 with hard updates, and of ten-step targets
OVERESTIMATED = [52, 84, 105, 150, 177, 190, 255, 290, 310, 340, 370, 350]
SOLVED = [10, 31, 52, 61, 70, 77, 84, 88, 91, 96, 103, 95]


@pytest.mark.parametrize("tag", ["q_values", "qf1_values"])
def test_q_above_what_rewards_are_worth(tag):
    (text,) = Curves().sick(**{tag: OVERESTIMATED})
    assert text.startswith("from step 7,000 on Q is 350, where the largest mean reward, for ever,")
    assert "is worth 100:" in text
    assert not Curves().sick(**{tag: SOLVED})
    assert Curves().sick(**{tag: [-q for q in OVERESTIMATED]}), "grown downwards"
    assert not Curves().sick(**{tag: OVERESTIMATED}, epsilon=0.9), "rewards of random actions"
    assert not Curves().sick(**{tag: OVERESTIMATED}, episode=(0.0, 200.0)), "no reward found yet"
    assert not Curves(gamma=1.0).sick(**{tag: OVERESTIMATED})


def test_q_of_clipped_rewards_is_not_held_to_those_of_the_game():
    clipped = {"clip_reward": True, "gamma": 0.9}  # worth 10
    small, large = (2.0, 200.0), (20_000.0, 200.0)  # episodes with rewards of 0.01, of 100
    assert Curves(gamma=0.9).sick(q_values=[9.0] * 20, episode=small)
    assert not Curves(**clipped).sick(q_values=[9.0] * 20, episode=small)
    assert not Curves(gamma=0.9).sick(q_values=[21.0] * 20, episode=large)
    (text,) = Curves(**clipped).sick(q_values=[21.0] * 20, episode=large)
    assert "is worth 10:" in text


def test_mass_at_the_ends_is_well_where_the_returns_are():
    # CartPole-v1 solved, with v_max at what a reward of 1 for ever is worth, and at a tenth of it
    ends = np.linspace(0.04, 0.93, 20).tolist()
    assert not Curves().sick(mass_at_ends=ends, q_values=91.0)
    (text,) = Curves().sick(mass_at_ends=ends, q_values=9.7)
    assert "of the return's distribution lies at --v-min and --v-max, and Q is 9.7" in text
    # a reward in two of five episodes, none else: most returns are 0, which is v_min
    sparse = Curves(clip_reward=True, gamma=0.98)
    assert not sparse.sick(mass_at_ends=ends, q_values=0.26, episode=(0.4, 20.0))


def test_q_that_knows_no_state():
    # DQN on Pong whose convolutions had no active unit left, and one that learns
    (text,) = Curves().sick(q_spread=[0.0] * 20, q_values=-2.3, episode=(-20.0, 200.0))
    assert text.startswith("from step 1,000 on Q is -2.3 whatever the state")
    assert not Curves().sick(q_spread=[0.01] * 20, q_values=-2.3, episode=(-20.0, 200.0))
    assert not Curves().sick(q_spread=[0.0] * 20, q_values=0.0), "no reward found yet"


def test_entropy_is_watched_in_the_first_half():
    collapsed, late = [0.5] * 3 + [1e-3] * 40, [0.5] * 22 + [1e-3] * 28
    (text,) = Curves(floor=0.01 * np.log(2)).sick(entropy=collapsed)
    assert text.startswith("from step 4,000 on the entropy is 0.001")
    assert not Curves(floor=0.01 * np.log(2)).sick(entropy=late), "what is solved need not explore"


def test_the_least_entropy_is_in_units_of_the_action_space(tmp_path):
    run = report.AnyRun(tmp_path, "Mine-v0", "ppo", {}, {}, [], True)
    run.scalars = {"losses/entropy": [(1, 0.6), (2, 0.1)]}
    assert report.least_entropy(run) == pytest.approx(0.006), "without weights"
    arrays = {"actor.0.bias": np.zeros(64), "actor.2.bias": np.zeros(4)}
    np.savez(tmp_path / "weights.npz", **arrays)
    assert report.least_entropy(run) == pytest.approx(0.01 * np.log(4))
    np.savez(tmp_path / "weights.npz", log_std=np.zeros(6), **arrays)
    assert -20 < report.least_entropy(run) < -6.5  # log_std of -4.8, and of -2.5


def test_an_environment_without_an_end_is_told_so():
    (text,) = Curves().sick(value_loss=[1.0] * 20, episode=None)
    assert text.startswith("from step 1,000 on no episode ended: has the environment a time limit?")
    assert not Curves().sick(value_loss=[1.0] * 5, episode=None), "it has just begun"


SICK = {  # flags that make a run sick, and what it is told; each is a mistake that people make
    "a checkpoint before every episode's end": (
        "a2c --env-id Pendulum-v1 --num-envs 1 --num-steps 8 --total-timesteps 2560 "
        "--checkpoint-frequency 128",
        "no episode ended",
    ),
    "a learning rate that drowns the policy": (
        "ppo --num-envs 1 --total-timesteps 6000 --learning-rate 1",
        "the entropy is",
    ),
    "one-step targets from a hard copy, learned too fast": (
        "dqn --total-timesteps 4000 --train-frequency 4 --gradient-steps 1 --batch-size 32 "
        "--n-step 1 --tau 1 --loss mse --learning-rate 0.03 --no-anneal-lr "
        "--exploration-steps 600 --learning-starts 100",
        "Q is ",
    ),
    "a learning rate that silences every unit": (
        "dqn --total-timesteps 4000 --gradient-steps 1 --learning-rate 1 --no-anneal-lr "
        "--exploration-steps 400 --learning-starts 100",
        "whatever the state",
    ),
    "C51 with the support of Atari's clipped rewards": (
        "dqn --total-timesteps 6000 --gradient-steps 1 --n-atoms 51",
        "of the return's distribution lies at --v-min and --v-max",
    ),
}
HEALTHY = {
    "ppo": "--num-envs 2 --total-timesteps 8192",
    "a2c": "--num-envs 2 --total-timesteps 8000",
    "dqn": "--total-timesteps 6000 --gradient-steps 1 --n-atoms 51 --v-min 0 --v-max 100",
    "td3": "--env-id Pendulum-v1 --total-timesteps 2200 --learning-starts 200 --batch-size 16 "
    "--hidden-sizes 16 16",
}


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != list(SICK)[1])) for name in SICK],
)
def test_a_sick_run_is_told_so(script, tmp_path, capsys, mistake):
    flags, symptom = SICK[mistake]
    script(*flags.split())
    report.compare([only_run(tmp_path)], tmp_path / "compare.png")
    assert sum(symptom in line for line in capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    "name", ["ppo", "dqn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a2c", "td3"))]
)
def test_a_healthy_run_is_told_so(script, tmp_path, capsys, name):
    script(name, *HEALTHY[name].split())
    report.compare([only_run(tmp_path)], tmp_path / "compare.png")
    assert "its curves look healthy" in capsys.readouterr().out
