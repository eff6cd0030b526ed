"""benchmarks/run.py: what it plans, which runs it knows again, what happens on a Ray cluster."""

import importlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import run
from conftest import ROOT, only_run, wait_for

CONFIG = """
[ppo]
env_id = "environments:Clock-v0"
total_timesteps = 256
eval_episodes = 2
exp_name = "mine"

[ppo_seeds]
env_id = "environments:Clock-v0"
total_timesteps = 256
eval_episodes = 2
num_seeds = 2
vary = ["gamma", "0.9", "0.8"]
"""


def planned(tmp_path, flags="", extra=()) -> list:
    """The jobs of a campaign with CONFIG."""
    path = tmp_path / "mine.toml"
    path.write_text(CONFIG)
    words = [str(path), "--runs-dir", str(tmp_path / "runs"), *flags.split()]
    return run.plan(run.parse_options(words), list(extra))


def test_every_job_has_its_own_seed_in_its_command_and_in_its_arguments(tmp_path):
    jobs = planned(tmp_path, "--seeds 3 --first-seed 5 --algos ppo")
    assert [job.args["seed"] for job in jobs] == [5, 6, 7]
    assert [run.script_args("ppo", job.flags)["seed"] for job in jobs] == [5, 6, 7]
    assert [job.log.name for job in jobs] == ["5.log", "6.log", "7.log"]


def test_all_tables_have_a_seed_before_one_has_two(tmp_path):
    jobs = planned(tmp_path, "--seeds 3 --algos ppo ppo_seeds ppo")
    order = [(job.table, job.args["seed"]) for job in jobs]
    assert order == [("ppo", 1), ("ppo_seeds", 1), ("ppo", 2), ("ppo", 3), ("ppo_seeds", 3)]


def test_seeds_that_train_at_once_are_no_more_than_asked_for_and_none_twice(tmp_path):
    jobs = planned(tmp_path, "--seeds 3 --algos ppo_seeds")
    assert [job.args["num_seeds"] for job in jobs] == [2, 1]
    assert all(run.script_args("ppo_seeds", job.flags) == job.args for job in jobs)
    with pytest.raises(run.UserError, match="trains 2 seeds at once"):  # 1 and 2, or 3 and 4
        planned(tmp_path, "--first-seed 2 --algos ppo_seeds")


@pytest.mark.parametrize(
    "text, complaint",
    {
        "[ppo]\nseed = 3\ntorch_threads = 2": "sets seed, torch_threads: that is the campaign's",
        '["ppo-a/b"]': r"\[ppo-a/b\] may hold letters",
    }.items(),
)
def test_what_a_table_may_not_have(tmp_path, text, complaint):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(run.UserError, match=complaint):
        run.plan(run.parse_options([str(tmp_path / "mine.toml")]), [])


def test_a_script_may_have_arguments_that_json_has_not(monkeypatch):
    @dataclass
    class Args:
        file: Path = Path("mine.npz")

    script = SimpleNamespace(parse_args=lambda name, args_class, flags: args_class())
    monkeypatch.setattr(run, "parts_of", lambda name: (script, Args))
    assert run.script_args("mine", []) == {"file": "mine.npz"}  # as write_json has it


def test_what_is_typed_behind_the_campaign_s_own_flags_wins(tmp_path):
    extra = ["--eval-frequency", "500", "--torch-threads", "3"]
    (job,) = planned(tmp_path, "--seeds 1 --algos ppo", extra)
    assert (job.args["eval_frequency"], job.args["torch_threads"]) == (500, 3)
    assert run.script_args("ppo", job.flags) == job.args


@pytest.mark.parametrize("table", ["ppo", "ppo_seeds"])
def test_what_is_finished_is_known_again(tmp_path, command, table):
    """Also by an exp_name, which its folder begins with, and among the folders of ppo_seeds."""
    job, other = planned(tmp_path, f"--seeds {2 if table == 'ppo' else 4} --algos {table}")
    assert run.run_folder(job) == (None, None)
    command(table, "", *job.flags)
    names = sorted(path.name for path in job.parent.iterdir())
    assert len(names) == (1 if table == "ppo" else 4)
    assert names[0].startswith("mine-1-" if table == "ppo" else "1-")
    result = json.loads((job.parent / names[0] / "result.json").read_text())
    assert run.run_folder(job) == (job.parent / names[0], result["eval_return_mean"])
    assert run.run_folder(other) == (None, None)


def test_what_args_json_has_resolved_is_no_other_setting(tmp_path):
    (job,) = planned(tmp_path, "--seeds 1 --algos ppo", ["--torch-threads", "0"])
    folder = finished(job, torch_threads=2, device="cpu")
    assert job.args["torch_threads"] == 0 and run.run_folder(job) == (folder, 7.5)


def finished(job, **saved) -> Path:
    """The folder of a run that came to its end, with a greedy return of 7.5."""
    folder = job.parent / f"mine-{job.args['seed']}-20260101-000000"
    folder.mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"args": job.args | saved}))
    (folder / "result.json").write_text('{"eval_return_mean": 7.5}')
    return folder


def test_a_table_is_for_the_script_with_the_longest_name(monkeypatch):
    monkeypatch.setattr(run, "SCRIPTS", ["ppo", "ppo-mine"])
    tables = ("ppo", "ppo-fast", "ppo-mine", "ppo-mine-fast", "ppo-mines")
    assert [run.script_of(table) for table in tables] == [
        "ppo", "ppo", "ppo-mine", "ppo-mine", "ppo"
    ]  # fmt: skip


def test_a_run_with_another_setting_or_with_one_more_or_less_is_refused(tmp_path):
    (job,) = planned(tmp_path, "--seeds 1 --algos ppo")
    path = finished(job) / "args.json"
    less = {name: value for name, value in job.args.items() if name != "gae_lambda"}
    for saved, complaint in [
        (job.args | {"gamma": 0.5}, r"was trained with gamma=0\.5, not 0\.98"),
        (job.args | {"momentum": 0.9}, r"momentum=0\.9, not None"),
        (less, r"gae_lambda=None, not 0\.8"),
        (job.args | {"eval_frequency": 7, "total_timesteps": 9}, "total_timesteps=9, not"),
    ]:
        path.write_text(json.dumps({"args": saved}))
        with pytest.raises(run.UserError, match=complaint):
            run.run_folder(job)


def ends(how, files=lambda job: None):
    """A way to start a run that writes some files and ends at once, by how(job)."""

    def start(job):
        files(job)
        return SimpleNamespace(job=job, poll=lambda: how(job), stop=int, close=int)

    return start


def test_as_many_runs_as_there_is_room_for_now(tmp_path):
    """Of a cluster that nodes join and leave."""
    running, room, most = [], [1, 3, 3, 2], []

    def no_luck(job):
        most.append(len(running))
        running.remove(job)
        return "exit status 1: no luck"

    jobs = planned(tmp_path, "--seeds 4 --algos ppo")
    start = ends(no_luck, running.append)
    failures = run.train(jobs, lambda: room.pop(0) if room else 1, start)
    assert len(failures) == 4 and most[0] == 3


def test_a_copy_that_calls_itself_by_its_former_name_is_told_so(tmp_path):
    """Its runs are another script's by their folders, and end well."""
    jobs = planned(tmp_path, "--seeds 1 --algos ppo")
    (failure,) = run.train(jobs, lambda: 1, ends(lambda _: "exit status 0: run hash f00"))
    reason = f"it wrote no finished run into {run.shown(jobs[0].parent)}: does the last line of the"
    assert reason in failure and "f00" not in failure


def test_a_run_that_was_waited_for_in_vain_is_started(tmp_path):
    """That of an earlier campaign, which ended without a result."""
    jobs, started = planned(tmp_path, "--seeds 2 --algos ppo"), []

    def end(job):
        started.append(job.args["seed"])
        if started.count(1) < 2 and job is jobs[0]:
            return ""
        finished(job)
        return "exit status 0: run hash f00"

    assert run.train(jobs, lambda: 1, ends(end)) == [] and started == [1, 1, 2]


@pytest.mark.parametrize("name", ["args.json", "result.json"])
@pytest.mark.parametrize("text", ["", "[", "[]", "{}", '{"args": 3, "eval_return_mean": []}'])
def test_a_broken_run_folder_costs_its_own_run_alone(tmp_path, name, text):
    """Found when the campaign begins, or when its run has ended."""
    jobs, started = planned(tmp_path, "--seeds 3 --algos ppo"), []

    def leave(job, broken=2):
        path = finished(job) / name
        started.append(job.args["seed"])
        if job.args["seed"] == broken:
            path.write_text(text)

    leave(jobs[0], broken=1)
    failures = run.train(jobs, lambda: 1, ends(lambda _: "exit status 0", leave))
    assert started == [1, 2, 3] and len(failures) == 2
    for job, failure in zip(jobs, failures, strict=False):
        folder = run.shown(job.parent / f"mine-{job.args['seed']}-20260101-000000")
        assert failure.startswith(f"{job}: {folder}/{name} cannot be read: ")


def test_what_cannot_be_started_costs_its_own_run_alone(tmp_path):
    def full(job):
        if job.args["seed"] == 1:
            raise OSError("No space left on device")
        finished(job)

    jobs = planned(tmp_path, "--seeds 2 --algos ppo")
    (failure,) = run.train(jobs, lambda: 1, ends(lambda _: "exit status 0", full))
    assert failure == f"{jobs[0]}: No space left on device"


WITH_A_WORKER = """
import os, pathlib, time
print("begun", flush=True)
worker = os.fork() == 0
pathlib.Path("worker" if worker else "run").touch()
while not pathlib.Path("end").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def local(tmp_path, monkeypatch):
    """A job whose process has a worker; both go on until there is a file `end`."""
    monkeypatch.setattr(run, "ROOT", tmp_path)
    (tmp_path / "algos").mkdir()
    (tmp_path / "algos" / "mine.py").write_text(WITH_A_WORKER)
    (tmp_path / "runs").mkdir()
    yield run.Job("mine", "mine", [], {"env_id": "Id-v0", "seed": 3}, tmp_path / "runs")
    (tmp_path / "end").touch()


def test_a_run_is_waited_for_as_long_as_its_own_process_lives(local, tmp_path, capsys):
    """Not as long as a worker that outlived it, though that has its output and all open files."""
    first = run.LocalRun(local)
    wait_for(lambda: (tmp_path / "run").exists() and (tmp_path / "worker").exists())
    second = run.LocalRun(local)
    said = f"is running already, as process {first.process.pid}: {local}"
    assert capsys.readouterr().out.splitlines()[-1].endswith(said)
    assert first.poll() is None and second.poll() is None
    second.stop()  # which is another campaign's to stop
    assert first.poll() is None
    os.kill(first.process.pid, signal.SIGKILL)
    first.close()
    assert second.poll() == "" and "exit status -9" in first.poll()
    second.close()

    (tmp_path / "run").unlink()
    third = run.LocalRun(local)
    wait_for(lambda: (tmp_path / "run").exists())
    assert local.log.read_text() == "begun\nbegun\n"  # of both; nothing is lost
    third.stop()
    third.close()


def test_of_two_campaigns_at_once_one_waits_for_the_other(local, tmp_path, monkeypatch):
    """Both find no run, and both start one: the second process ends at once."""
    first = run.LocalRun(local)
    wait_for(lambda: (tmp_path / "run").exists())
    monkeypatch.setattr(run.LocalRun, "locked", lambda self: False)
    second = run.LocalRun(local)
    second.process.wait()
    assert second.poll() == "" and first.poll() is None
    for each in (first, second):
        each.stop()
        each.close()


def test_a_campaign_works_where_the_user_stands(tmp_path, command, monkeypatch):
    """Its environments and the paths of its table, as for a script alone."""
    entry = "gymnasium.envs.classic_control:CartPoleEnv"
    (tmp_path / "campaigned").mkdir()
    code = f'import gymnasium\ngymnasium.register("Mine-v0", "{entry}", max_episode_steps=9)\n'
    (tmp_path / "campaigned" / "envs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    env_id = "campaigned.envs:Mine-v0"
    command("ppo", f"--env-id {env_id} --total-timesteps 256")
    (only_run(tmp_path) / "weights.npz").rename(tmp_path / "first.npz")
    table = f'[ppo]\nenv_id = "{env_id}"\ntotal_timesteps = 256\ninit_weights = "first.npz"'
    (tmp_path / "mine.toml").write_text(table)
    monkeypatch.setenv("PYTHONPATH", ".")
    jobs = run.plan(run.parse_options(["mine.toml", "--seeds", "1"]), [])
    assert run.train(jobs, lambda: 1, run.LocalRun) == []
    assert len(list(tmp_path.glob("runs/mine/ppo/campaigned.envs-Mine-v0/ppo/1-*/*.json"))) == 2


def test_the_nodes_get_the_scripts_and_environments_that_are_not_there(monkeypatch):
    """Nodes cannot make an environment of an empty list of modules."""
    sent = []
    fake = SimpleNamespace(init=lambda address, runtime_env: sent.append(runtime_env))
    monkeypatch.setitem(sys.modules, "ray", fake)
    run.connect("auto", [])
    run.connect("auto", [run.Job("ppo", "ppo", [], {"env_id": "environments:Clock-v0"}, Path())])
    modules = [about.get("py_modules") for about in sent]
    assert modules == [None, [str(ROOT / "tests" / "environments.py")]]


def test_only_environments_that_are_not_there_are_sent(tmp_path, monkeypatch):
    for name, file in (("mine", "__init__.py"), ("README", "envs.py")):  # a package, a plain folder
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    for name in ("mine", "README"):
        assert run.own_module(f"{name}.envs:Id-v0") == [str(tmp_path / name)]
    assert run.own_module("environments:Clock-v0") == [str(ROOT / "tests" / "environments.py")]
    installed = "mpe2.simple_spread_v3", "gymnasium:A-v0"
    for env_id in ("CartPole-v1", "sys:Id-v0", "tasks:Recall-v0", *installed):
        assert run.own_module(env_id) == []


SCRIPT = """
import pathlib, time
folder = pathlib.Path("runs/1-now")
folder.mkdir(parents=True)
for name in ("args.json", "checkpoint.pt"):
    (folder / name).write_text(name)
print("begun", flush=True)
while not pathlib.Path("end").exists():
    time.sleep(0.05)
(folder / "checkpoint.pt").rename(folder / "result.json")
"""


def test_files_come_home_while_a_run_is_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "script.py").write_text(SCRIPT)
    home = tmp_path / "home"
    for old in (home / "1-now" / "checkpoint.pt", home / "2-other" / "checkpoint.pt"):
        old.parent.mkdir(parents=True)
        old.write_text("old")
    node = run.Node(["script.py"], {"sent/x": b"1"}, "runs")
    (house,) = tmp_path.glob("run-*")
    assert (house / "sent" / "x").read_bytes() == b"1"
    code, output, files, names = node.news()
    assert code is None and output == b"begun\n" and sorted(files) == sorted(names)
    run.bring_home(files, names, home)
    assert {path.name: path.read_text() for path in (home / "1-now").iterdir()} == {
        "args.json": "args.json",
        "checkpoint.pt": "checkpoint.pt",
    }
    assert node.news()[1:3] == (b"", {})  # what has not changed is not sent again
    (house / "end").touch()
    code, output, files, names = node.news()
    assert code == 0 and files == {"1-now/result.json": b"checkpoint.pt"}
    run.bring_home(files, names, home)
    assert sorted(path.name for path in (home / "1-now").iterdir()) == ["args.json", "result.json"]
    assert (home / "2-other" / "checkpoint.pt").read_text() == "old"
    node.cleaner.stdin.close()
    wait_for(lambda: not list(tmp_path.glob("run-*")))


def test_curves_are_read_after_the_checkpoint_and_written_before_it(tmp_path, monkeypatch):
    """So a checkpoint never misses the curves that led to it."""
    (tmp_path / "runs").mkdir()
    for name in ("a", "checkpoint.pt", "events.out.tfevents.1", "result.json"):
        (tmp_path / "runs" / name).touch()
    node, written, replace = run.Node.__new__(run.Node), [], Path.replace
    node.parent, node.sent = tmp_path / "runs", {}
    found = node.changes()
    assert list(found)[-1] == "events.out.tfevents.1"
    monkeypatch.setattr(
        Path, "replace", lambda *pair: written.append(pair[1].name) or replace(*pair)
    )
    run.bring_home(found, list(found), tmp_path / "home")
    assert written == ["a", "events.out.tfevents.1", "checkpoint.pt", "result.json"]


def test_as_many_runs_at_once_as_there_are_cores_for_their_threads(monkeypatch, tool):
    rooms = []
    monkeypatch.setattr(run, "usable_cores", lambda: 9)
    monkeypatch.setattr(run, "train", lambda jobs, room, start: rooms.append(room()) or [])
    for flags in ("--torch-threads 4", "--torch-threads 16", "--jobs 3"):
        tool(run, "cartpole", "--algos", "ppo", "--runs-dir", "x", *flags.split())
    assert rooms == [2, 1, 3]


def test_of_two_cut_runs_the_newer_is_resumed(tmp_path):
    (job,) = planned(tmp_path, "--seeds 1 --algos ppo")
    for day in (1, 2):
        folder = job.parent / f"mine-1-2026010{day}-000000"
        folder.mkdir(parents=True)
        (folder / "args.json").write_text(json.dumps({"args": job.args}))
        (folder / "checkpoint.pt").touch()
    assert run.run_folder(job) == (folder, None)


@pytest.mark.parametrize("device, gpus", [("cpu", 0), ("cuda", 1), ("cuda:1", 1)])
def test_a_node_gives_as_many_cores_as_threads_and_gets_the_first_weights(
    device, gpus, monkeypatch, tmp_path
):
    asked, sent = [], []
    started = SimpleNamespace(news=SimpleNamespace(remote=int))
    node = SimpleNamespace(remote=lambda words, files, parent: sent.append(files) or started)
    ray = SimpleNamespace(remote=lambda **needs: asked.append(needs) or (lambda kind: node))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("[ppo]\ninit_weights = 'first.npz'")
    Path("first.npz").write_bytes(b"weights")
    options = run.parse_options(["mine.toml", "--seeds", "1", "--torch-threads", "3"])
    (job,) = run.plan(options, [])
    job.args["device"] = device
    run.RayRun(job)
    assert asked == [{"num_cpus": 3, "num_gpus": gpus}] and sent[0]["first.npz"] == b"weights"


def ray_run(monkeypatch, folder, get):
    """A run on a node whose news are what `get` returns."""
    errors = SimpleNamespace(RayError=ConnectionError)
    ray = SimpleNamespace(wait=lambda news, timeout: (news, []), get=get, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(run.RayRun, "begin", lambda self: None)
    monkeypatch.setattr(run.RayRun, "stop", lambda self: None)
    (job,) = planned(folder, "--seeds 1 --algos ppo")
    one = run.RayRun(job)
    one.news, one.node = None, SimpleNamespace(news=SimpleNamespace(remote=int))
    return one


def test_what_a_node_says_comes_behind_what_was_said(monkeypatch, tmp_path):
    one = ray_run(monkeypatch, tmp_path, lambda news: (None, b"more\n", {}, []))
    one.job.log.parent.mkdir(parents=True, exist_ok=True)
    one.job.log.write_text("before\n")
    assert one.poll() is None and one.job.log.read_text() == "before\nmore\n"


def test_a_run_that_is_lost_four_times_has_failed(monkeypatch, tmp_path):
    def lost(news):
        raise ConnectionError("gone")

    one = ray_run(monkeypatch, tmp_path, lost)
    assert [one.poll() for _ in range(4)] == [None] * 3 + ["Ray: ConnectionError: gone"]
