"""Environments in processes, programs that they start, and every way in which a run ends."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import environments
import numpy as np
import ppo
import pytest
import torch
from conftest import ROOT, new_run, only_run, stopped, train, wait_for
from load import load

SMALL = dict(num_envs=2, num_steps=16, update_epochs=2, hidden_size=8, eval_episodes=2)
FLAGS = "--num-envs 2 --num-steps 16 --update-epochs 2 --hidden-size 8 --eval-episodes 2"


def small(name, **own):
    return SMALL | dict(env_id=f"environments:{name}-v0", total_timesteps=320) | own


def processes(session: int) -> dict:
    """{pid: name} of the processes of a session that still run."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = path.read_text().rpartition(")")
        except OSError:  # it has just ended
            continue
        state, _, _, its_session = after.split()[:4]
        if int(its_session) == session and state != "Z":
            found[int(path.parent.name)] = before.partition("(")[2]
    return found


@pytest.mark.parametrize(
    "way, asynchronous",
    [("Ctrl-C", False), ("Ctrl-C", True), ("SIGTERM", True), ("SIGHUP", False), ("error", False)],
)
def test_however_a_run_ends_its_programs_end_with_it(start, tmp_path, way, asynchronous):
    """And it says in a line how to go on."""
    flags = f"{FLAGS} --env-id environments:Program-v0 --total-timesteps 100000000 --env-kwargs"
    kwargs = json.dumps({"last": 600 if way == "error" else 0})
    process = start("ppo", flags, kwargs, *["--async-envs"] * asynchronous)
    if way != "error":
        wait_for(lambda: list(tmp_path.glob("runs/*/*/*/args.json")) or process.poll())
        programs = lambda: list(processes(process.pid).values()).count("sleep")  # noqa: E731
        wait_for(lambda: programs() == 2 or process.poll())
        end = signal.SIGINT if way == "Ctrl-C" else getattr(signal, way)
        (os.killpg if way == "Ctrl-C" and asynchronous else os.kill)(process.pid, end)
    status = {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129, "error": 1}[way]
    said = tmp_path / "err"
    assert process.wait(300) == status, said.read_text()
    wait_for(lambda: not processes(process.pid))
    folder = only_run(tmp_path).relative_to(tmp_path)
    *others, last = (x for x in said.read_text().splitlines() if x.strip() and "steps/s" not in x)
    assert last.endswith(f"to resume: python {ROOT}/algos/ppo.py --resume {folder}")
    assert way == "error" or (others == [] and last.startswith("stopped; "))


def test_a_second_signal_does_not_cut_the_closing_short(start, tmp_path):
    flags = f"{FLAGS} --env-id environments:Foreign-v0 --total-timesteps 100000000 --env-kwargs"
    process = start("ppo", flags, '{"what": "slow goodbye"}')
    wait_for(lambda: list(tmp_path.rglob("args.json")) or process.poll() is not None)
    for _ in range(2):
        process.terminate()
        time.sleep(0.5)
    assert process.wait(300) == 143
    wait_for(lambda: not processes(process.pid))


def test_a_folder_is_held_until_all_is_closed():
    run = new_run(ppo, **small("Clock"))
    run.start(agent=run.agent)
    lock = run.lock
    run.envs.close = lambda: os.fstat(lock)  # an error once it is closed
    run.close()
    with pytest.raises(OSError):
        os.fstat(lock)


def test_a_pause_of_the_whole_run_is_no_silence(monkeypatch):
    """Of which the clock of one wait alone has noticed."""
    answers = [False, False, True]
    monkeypatch.setattr(ppo.gym.vector.AsyncVectorEnv, "_poll_pipe_envs", lambda *_: answers.pop(0))
    envs = object.__new__(ppo.AsyncEnvs)
    envs.timeout = 3
    assert envs._poll_pipe_envs()


def test_a_run_that_is_killed_leaves_no_process_behind(start, tmp_path):
    """Ctrl-C in a terminal goes to the environments' processes, too, which leave it to the run."""
    flags = "--env-id environments:FailingBox-v0 --num-envs 3 --async-envs --eval-frequency 100"
    flags += " --total-timesteps 3000000 --eval-episodes 1 --num-steps 2 --num-minibatches 1"
    flags += " --log-frequency 1 --env-kwargs"
    process = start("ppo", flags, '{"last": 0, "seconds": 0.002}')
    wait_for(lambda: list(tmp_path.rglob("best.npz")) or process.poll() is not None)
    started = processes(process.pid)
    assert len(started) >= 4, (tmp_path / "err").read_text()
    (events,) = tmp_path.rglob("events.*")
    size = events.stat().st_size + 20_000
    for number in started.keys() - {process.pid}:
        os.kill(number, signal.SIGINT)
    wait_for(lambda: events.stat().st_size > size or process.poll() is not None)
    assert process.poll() is None
    process.kill()
    process.wait(300)
    wait_for(lambda: not processes(process.pid))


def test_a_process_that_dies_ends_the_run_with_its_error(start, tmp_path):
    flags = f"{FLAGS} --env-id environments:Failing-v0 --async-envs --env-kwargs"
    process = start("ppo", flags, '{"kill": true, "last": 40}')
    assert process.wait(300) == 1
    error = (tmp_path / "err").read_text()
    assert " ended with exit status -9\n" in error and "\nto resume: python " in error
    wait_for(lambda: not processes(process.pid))


@pytest.mark.parametrize(
    "what, flags, says",
    [
        ("unsendable", "--async-envs", "Unsendable: the simulator gave up"),
        ("killed", "--async-envs", " ended with exit status -9"),
        ("exits", "--async-envs", " ended with exit status 2"),
        ("hangs in C", "--async-envs --env-timeout 2", "gave no answer for 2 s"),
        ("quits", "", "the run was ended by sys.exit(2); to resume: python"),
        ("panics", "", "environments.Panic\nto resume: python"),
        ("no goodbye", "", "ConnectionError: the simulator died"),
        ("second", "", "ConnectionError: the port is taken"),
        ("child", "", ""),
        ("child", "--async-envs", ""),
        ("rude", "--async-envs", ""),
    ],
)
def test_nothing_is_left_of_a_simulator_of_others(start, tmp_path, what, flags, says):
    flags = f"{FLAGS} --env-id environments:Foreign-v0 --total-timesteps 320 {flags} --env-kwargs"
    process = start("ppo", flags, json.dumps({"what": what}))
    status = process.wait(300)
    error = (tmp_path / "err").read_text()
    assert status == bool(says) and says in error, error
    assert says or ("Traceback" not in error and "stopped" not in error)
    wait_for(lambda: not processes(process.pid))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_simulator_that_was_still_being_made(start, tmp_path, end):
    flags = f"{FLAGS} --env-id environments:Foreign-v0 --async-envs --env-kwargs"
    process = start("ppo", flags, '{"what": "slow start"}')
    wait_for(lambda: "sleep" in processes(process.pid).values() or process.poll() is not None)
    process.send_signal(end)
    assert process.wait(300) in (-signal.SIGKILL, 143)
    wait_for(lambda: not processes(process.pid))


def test_processes_end_where_an_environment_cannot_be_made():
    with pytest.raises(RuntimeError, match="TypeError: unsupported") as raised:
        new_run(ppo, **small("Buggy", async_envs=True))
    assert raised and multiprocessing.active_children() == []


def test_a_constructor_that_ends_its_process_is_named():
    with pytest.raises(ppo.LostEnvironment, match="environment 0 ended with exit status 2"):
        new_run(ppo, **small("Foreign", async_envs=True, env_kwargs='{"what": "leaves"}'))


def test_the_process_of_the_run_makes_no_environment_beside_others():
    environments.Foreign.made.clear()
    run = train(ppo, **small("Foreign", async_envs=True, total_timesteps=32))
    run.finish()
    run.close()
    assert environments.Foreign.made == []


@pytest.mark.parametrize(
    "name, kwargs, says",
    [("Refused", {"of": "observations"}, "path"), ("Clock", {"size": 3}, "'size'")],
)
def test_what_cannot_be_made_in_processes_is_refused_once(start, tmp_path, name, kwargs, says):
    flags = f"{FLAGS} --env-id environments:{name}-v0 --async-envs --env-kwargs"
    assert start("ppo", flags, json.dumps(kwargs)).wait(300) == 2
    (line,) = (tmp_path / "err").read_text().splitlines()
    assert says in line and not (tmp_path / "runs").exists()


SLOW_FORK = """
import multiprocessing, os, time, ppo
os.register_at_fork(after_in_child=lambda: time.sleep(1))
ppo.on_sigterm(ppo.interrupt)
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3611,))
child.start()
child.terminate()
child.join(60)
print(child.exitcode)
child.kill()
"""


def test_a_process_that_is_forked_ends_by_a_sigterm_that_comes_at_once():
    command = [sys.executable, "-c", SLOW_FORK]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "algos")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.stdout == f"{-signal.SIGTERM}\n"


def test_a_process_that_hangs_when_the_run_is_killed_ends_with_its_program(start, tmp_path):
    flags = f"{FLAGS} --env-id environments:Foreign-v0 --total-timesteps 320 --async-envs"
    process = start("ppo", flags, "--env-kwargs", '{"what": "hangs"}')
    wait_for(lambda: list(tmp_path.rglob("args.json")) or process.poll() is not None)
    time.sleep(3)  # until they hang
    programs = [pid for pid, name in processes(process.pid).items() if name == "sleep"]
    assert len(programs) == 2
    for pid in programs:  # which may end by SIGINT, though Ctrl-C is not for their simulator
        status = Path(f"/proc/{pid}/status").read_text()
        ignored = int(re.search(r"SigIgn:\s+(\w+)", status)[1], 16)
        assert not ignored >> (signal.SIGINT - 1) & 1
    process.kill()
    process.wait(300)
    wait_for(lambda: not processes(process.pid))


@pytest.mark.parametrize(
    "name, of",
    [("ppo", "observations"), ("ppo_dict", "observations"), ("ppo", "actions"), ("td3", "actions"),
     ("ppo_hybrid", "actions")],
)  # fmt: skip
def test_a_simulator_that_is_refused_is_closed(refused, name, of):
    environments.Foreign.made.clear()
    refused(name, "--env-id environments:Refused-v0 --env-kwargs", json.dumps({"of": of}))
    assert environments.Foreign.made
    assert all(env.program.poll() is not None for env in environments.Foreign.made)


def test_an_evaluation_closes_its_environments_when_it_fails():
    run = new_run(ppo, **small("Program", env_kwargs='{"last": 3}'))
    run.envs.close()
    made, make_envs = [], run.make_envs
    run.make_envs = lambda *given, **own: made.append(make_envs(*given, **own)) or made[-1]
    with pytest.raises(ConnectionError):
        run.evaluate()
    assert [env.unwrapped.program.poll() for env in made[0].envs] == [-signal.SIGKILL] * 2


def test_who_gives_no_answer_is_named_and_ended():
    slow = small("Failing", env_kwargs='{"seconds": 3611}', async_envs=True, env_timeout=1.0)
    run = new_run(ppo, **slow)
    with pytest.raises(ppo.LostEnvironment, match=r"environments \[0, 1\] gave no answer for 1 s"):
        ppo.train(run.args, run)
    workers = run.envs.processes
    run.close()
    assert not any(worker.is_alive() for worker in workers)


def test_infos_that_no_process_can_send_end_no_run():
    run = new_run(ppo, **small("Handles", async_envs=True))
    run.start(agent=run.agent)
    run.step(np.zeros(2, np.int64))
    assert [sorted(info) for info in run.next_infos] == [["time"], ["time"]]
    run.close()


@pytest.mark.parametrize("name, asynchronous", [("Born", False), ("Born", True), ("Noisy", False)])
def test_what_environments_draw_from_shared_generators_repeats_and_resumes(name, asynchronous):
    """On being made, reset and stepped; in processes, too: each has generators of its own."""
    own = small(name, checkpoint_frequency=64, async_envs=asynchronous)
    whole = train(ppo, **own)
    np.random.seed(5)
    torch.manual_seed(5)
    again = train(ppo, **own)
    cut = stopped(new_run(ppo, **own), ppo.train, after=100)
    resumed = train(ppo, **own, resume=str(cut.folder))
    for run in (whole, again, resumed):
        run.close()
    assert whole.hash() == again.hash() == resumed.hash()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_two_environments_are_made_alike(asynchronous):
    """Nor those before a checkpoint and those after it."""
    run = new_run(ppo, **small("Born", checkpoint_frequency=64, async_envs=asynchronous))
    run.start(agent=run.agent)
    worlds = [*run.obs]
    while run.step_count < 64:
        run.step(np.zeros(2, np.int64))
    worlds += [*run.obs]
    run.close()
    for numbers in zip(*worlds, strict=True):  # from Python's, NumPy's and torch's generator
        assert len({*numbers}) == 4


def test_processes_are_no_forks_of_one_that_has_threads():
    """Which would hang in the first product of two matrices."""
    run = new_run(ppo, **small("Clock", async_envs=True))
    assert {type(worker).__name__ for worker in run.envs.processes} == {"ForkServerProcess"}
    run.close()


def test_a_simulator_that_runs_once_in_a_process_trains_and_is_evaluated_in_several(monkeypatch):
    run = train(ppo, **small("Single", async_envs=True))
    assert run.evaluate().tolist() == [5, 5]
    run.close()
    monkeypatch.delattr(ppo, "AsyncEnvs")  # whose processes would import the caller's script
    _, envs = load(run.folder)
    envs.close()
    assert type(envs) is ppo.SyncEnvs


def test_what_cannot_be_closed_trains_in_processes():
    run = train(ppo, **small("Stubborn", async_envs=True))
    run.finish()
    assert json.loads((run.folder / "result.json").read_text())["eval_return_mean"] == 5


def unread(*words):
    """Runs Python with a pipe that nobody reads: its exit status, and what it says of errors."""
    reads, writes = os.pipe()
    os.close(reads)
    words = [sys.executable, *words]
    ended = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=100)
    os.close(writes)
    return ended.returncode, re.findall(r".*Error.*", ended.stderr)


def test_a_result_is_written_also_where_nobody_reads_what_is_printed(tmp_path):
    flags = f"{FLAGS} --total-timesteps 64 --eval-frequency 32 --eval-max-steps 2"  # which is said
    assert unread(ROOT / "algos" / "ppo.py", *flags.split()) == (0, [])
    assert (only_run(tmp_path) / "result.json").exists()
    then = "import ppo; ppo.say('a line of the script'); print('one of an edit')"
    assert unread("-c", f"import sys; sys.path.insert(0, {str(ROOT / 'algos')!r}); {then}") == (
        0,
        [],
    )


def test_what_an_evaluation_cannot_make_is_said_before_training():
    with pytest.raises(RuntimeError, match="an engine runs here already") as error:
        new_run(ppo, **small("Single", num_envs=1))
    assert "add --async-envs" in error.value.__notes__[0]
    assert environments.Single.engines == []


def filmed(what):
    own = {"async_envs": True, "capture_video": True, "env_kwargs": json.dumps({"what": what})}
    return train(ppo, **small("Filmed", **own))


@pytest.mark.parametrize("what", ["", "grows", "fails"])
def test_films_come_from_processes_and_one_that_fails_ends_no_evaluation(what, capsys):
    run = filmed(what)
    run.finish()
    run.close()
    assert json.loads((run.folder / "result.json").read_text())["eval_return_mean"] == 5
    (film,) = run.folder.glob("videos/*.mp4")
    assert film.stat().st_size > 0
    assert ("the film ends here" in capsys.readouterr().err) == bool(what)


def test_a_film_of_what_has_ended_ends_the_run():
    run = filmed("dies")
    with pytest.raises(ppo.LostEnvironment, match="environment 0 ended with exit status 2"):
        run.finish()
    run.close()


def test_a_film_that_cannot_be_written_ends_no_evaluation(capsys):
    run = filmed("")
    (run.folder / "videos").write_text("")
    run.finish()
    run.close()
    assert "no film: FileExistsError" in capsys.readouterr().err
    assert json.loads((run.folder / "result.json").read_text())["eval_return_mean"] == 5


def test_who_has_ended_is_named_when_its_attributes_are_set():
    run = new_run(ppo, **small("Clock", async_envs=True))
    run.envs.set_attr("length", 7)
    assert run.envs.get_attr("length") == (7, 7)
    os.kill(run.envs.processes[1].pid, signal.SIGKILL)
    with pytest.raises(ppo.LostEnvironment, match="environment 1 ended with exit status -9"):
        run.envs.set_attr("length", 8)
    run.close()


def test_what_a_simulator_does_on_signals_does_not_replace_what_the_run_does():
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    run = new_run(ppo, **small("Foreign", env_kwargs='{"what": "deaf"}'))
    assert [signal.getsignal(number) for number in numbers] == before
    run.close()


def test_under_nohup_a_hangup_ends_no_run(command):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    command("ppo", "--total-timesteps 64 --num-steps 8 --eval-episodes 1")
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


def test_processes_take_one_thread_each(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    ppo.make_envs(ppo.RunArgs(async_envs=True), 1).close()
    assert os.environ["OMP_NUM_THREADS"] == "1"
