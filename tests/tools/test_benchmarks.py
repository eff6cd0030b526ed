"""Campaigns survive what can happen to them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import run
from conftest import ROOT, wait_for

TINY = """
[ppo]
env_id = "CartPole-v1"
total_timesteps = 20_480
checkpoint_frequency = 1024
eval_episodes = 2
"""


@pytest.fixture
def house(tmp_path):
    """A copy of the repository's scripts with a small config and no results."""
    for name in ("algos", "benchmarks"):
        ignored = shutil.ignore_patterns("results")
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


def checkpoints(house: Path) -> dict:
    """{file: time of its last change} of the runs that can be resumed and are not finished."""
    found = house.glob("runs/tiny/*/*/*/*/checkpoint.pt")
    found = [path for path in found if path.with_name("args.json").exists()]
    return {p: p.stat().st_mtime_ns for p in found if not (p.parent / "result.json").exists()}


def cells(house: Path) -> tuple[str, list]:
    """The CSV and the run hashes of the one cell."""
    script = house / "benchmarks" / "maintain" / "publish.py"
    subprocess.run([sys.executable, script], check=True, stdout=subprocess.DEVNULL)
    (path,) = (house / "benchmarks" / "results").glob("*.json")
    hashes = [run["run_hash"] for run in json.loads(path.read_text())["runs"]]
    return path.with_suffix(".csv").read_text(), hashes


@pytest.mark.slow
def test_a_campaign_killed_twice_ends_as_one_that_was_not(house, campaign):
    flags = ["--algos", "ppo", "--seeds", "2", "--jobs", "2", "--evaluations", "4"]
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

    table = (house / "benchmarks" / "results" / "README.md").read_text()
    assert "| CartPole-v1 | ppo | 20,480 | 2 (1-2) |" in table and "too few seeds" in table
    assert "(2 seeds, 20k) | " in (house / "README.md").read_text()
    assert (house / "benchmarks" / "results" / "curves.png").stat().st_size > 10_000


def test_a_killed_run_is_reported_and_resumed_by_the_next_campaign(house, campaign, tool):
    """By the command that a dry run prints."""
    flags = ["--algos", "ppo", "--seeds", "1"]
    dry = tool(run, "benchmarks/tiny.toml", *flags, "--dry-run")
    assert dry.status == 0 and not (house / "runs").exists()
    process = campaign(*flags)
    wait_for(lambda: checkpoints(house))
    os.kill(runs_alive(house)[0], signal.SIGKILL)
    code, out, _ = ended(process)
    assert code == 1 and "0 of 1 runs are finished, 1 failed" in out
    assert f"starts  python algos/ppo.py{dry.out.split('ppo.py')[1]}" in out
    assert "FAILED   ppo, CartPole-v1, seed 1: exit status -9" in out
    code, out, _ = ended(campaign(*flags))
    assert code == 0 and "resumes  python algos/ppo.py --resume runs/tiny/ppo/" in out


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


def results(house: Path) -> list[dict]:
    paths = sorted(house.glob("runs/tiny/*/*/*/*/result.json"))
    return [json.loads(path.read_text()) for path in paths]


OWN = """
import gymnasium
entry_point = "gymnasium.envs.classic_control:CartPoleEnv"
gymnasium.register("Pole-v0", entry_point=entry_point, max_episode_steps=500)
"""


@pytest.mark.slow
def test_a_ray_campaign_survives_a_node_and_ends_as_a_local_one(house, campaign, monkeypatch):
    """In an environment of one's own, which the nodes find only if it is sent."""
    from ray import cluster_utils

    (house / "own").mkdir()
    (house / "own" / "pole.py").write_text(OWN)
    flags = ["--algos", "ppo", "--seeds", "2", "--", "--total-timesteps", "61440"]
    flags += ["--env-id", "pole:Pole-v0"]
    monkeypatch.setenv("PYTHONPATH", str(house / "own"))
    code, _, _ = ended(campaign(*flags))
    assert code == 0
    local = [result["run_hash"] for result in results(house)]
    (house / "runs").rename(house / "local")

    (house / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(house / "tmp"))  # where the nodes run the script
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # Ray's sockets need a short path
    monkeypatch.delenv("PYTHONPATH")
    node = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
    try:
        lost = cluster.add_node(**node)
        cluster.wait_for_nodes()
        monkeypatch.setenv("PYTHONPATH", str(house / "own"))
        process = campaign("--ray", cluster.address, *flags)
        wait_for(lambda: len(checkpoints(house)) == 2)  # they have come home
        cluster.remove_node(lost, allow_graceful=False)
        wait_for(lambda: len(list(house.glob("tmp/run-*"))) == 1)
        killed = checkpoints(house)
        wait_for(lambda: checkpoints(house) != killed)
        process.kill()  # the campaign, too
        process.wait()
        wait_for(lambda: not list(house.glob("tmp/run-*")))
        with monkeypatch.context() as patch:
            patch.delenv("PYTHONPATH")
            cluster.add_node(**node)
        code, out, _ = ended(campaign("--ray", cluster.address, *flags))
        assert code == 0 and "2 of 2 runs are finished, 0 failed" in out
        assert out.count("resumes on Ray: ppo, pole:Pole-v0, seed ") == 2
    finally:
        cluster.shutdown()
    assert [result["run_hash"] for result in results(house)] == local and len(set(local)) == 2


BAD_INPUT = {
    "nothing --dry-run": "benchmarks/nothing.toml, only",
    "cartpole --algos sac": "has no table [sac], only ppo",
    "cartpole --algos ppo -- --gamma 2": "gamma=2.0 must lie between",
    "cartpole --algos ppo -- --gama 1": "--gama",
    "cartpole --algos ppo -- --seed 1": "no --seed",
    "cartpole --algos ppo -- --config x.toml:ppo": "no --config",
    f"cartpole --algos ppo --runs-dir {__file__}": "Not a directory",
    "cartpole --seeds 0": "0 must be at least 1",
    "cartpole --algos ppo --ray 127.0.0.1:1": "127.0.0.1:1: [Errno 111]",
}


def test_bad_input_is_refused(tmp_path, tool):
    for words, message in BAD_INPUT.items():
        refused = tool(run, "--runs-dir", tmp_path, *words.split())
        assert refused.status == 2 and message in refused.err, (words, refused.err)
        assert "Traceback" not in refused.err and "starts" not in refused.out, words


def test_the_period_of_evaluations_has_one_digit():
    budgets = [1, 100, 50_000, 76_800, 1_000_000, 10_000_000]
    periods = [run.evaluation_period(budget, 20) for budget in budgets]
    assert periods == [1, 5, 2_000, 4_000, 50_000, 500_000]
    assert [run.evaluation_period(76_800, n) for n in (1, 2, 3, 5)] == [0, 40_000, 30_000, 20_000]
    flags = "cartpole --algos a2c --seeds 1 --evaluations 4".split()
    (job,) = run.plan(run.parse_options(flags), [])
    assert job.args["eval_frequency"] == 50_000


def test_a_table_without_a_script_is_told_what_names_look_like(tmp_path):
    path = tmp_path / "mine.toml"
    for name in ("slow", "pposlow", "ppo2"):
        path.write_text(f"[ppo-fast]\n[{name}]\n")
        with pytest.raises(run.UserError, match=rf"no script is named {name}: .*\[ppo-{name}\]"):
            run.read_config(str(path))
    path.write_text("[ppo-fast]\n[dqn]\n")
    assert run.read_config(str(path))[1] == {"ppo-fast": {}, "dqn": {}}


def test_a_run_is_told_by_its_progress_and_a_failed_one_by_its_exception(tmp_path):
    log, line = tmp_path / "1.log", "{}%|#  | 96/999 [00:01<00:09, 96.00 steps/s, return 52.2]"
    log.write_text(f"\rTraceback\nValueError: no\nto resume: x.py\r{line}\r{line.format(9)}")
    assert run.lines_of(log)[-1] == line.format(9)
    assert run.last_line(log) == "ValueError: no"
    assert run.last_line(tmp_path / "none") == "it said nothing"


def test_a_campaign_uses_no_core_that_it_was_not_given(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert run.usable_cores() == 1


TOOLS = ["compare", "reference", "report", "run", "speed", "tune", "maintain/animations"]


@pytest.mark.parametrize("name", [*TOOLS, "maintain/screenshots"])
def test_a_tool_starts_in_a_process_of_its_own(name, tmp_path):
    """Here other tests have put algos/ on the path already."""
    words = [sys.executable, ROOT / "benchmarks" / f"{name}.py", "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
