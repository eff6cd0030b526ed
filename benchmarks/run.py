"""Trains a campaign: tables of a config times seeds, as many runs at a time as cores allow.

    python benchmarks/run.py lunarlander --algos ppo dqn --seeds 5    two tables, seeds 1 to 5
    python benchmarks/run.py cartpole --dry-run                       prints the commands, no more
    python benchmarks/run.py atari --algos ppo -- --env-id ALE/Qbert-v5    flags for the script
    python benchmarks/run.py lunarlander --ray ADDRESS                on a Ray cluster

Every run is a plain command of a script in algos/, run in the folder where you stand. Its folder is
runs/CONFIG/TABLE/<env>/<script>/<seed>-<time>/ there, its output <seed>.log beside that. The same
campaign started again skips what is finished, resumes what was cut, and waits for a run that goes
on: its process, whose number is in <seed>.lock, holds the lock on that file. Exit status: 0 when
every run is finished, 1 when one failed, 2 for wrong input, 128 + n when stopped by signal n.
"""

import contextlib
import fcntl
import glob
import importlib
import importlib.util
import json
import math
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen

import report
from report import ArgumentParser, UserError, errors_in_a_line, positive

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted({path.stem for path in (ROOT / "algos").glob("*.py")} - {"load", "tasks"})
sys.path.insert(0, str(ROOT / "algos"))
from load import parts_of  # noqa: E402


@dataclass
class Job:
    """One run of a campaign."""

    table: str
    script: str
    flags: list[str]  # of the command that starts it
    args: dict  # every argument of the script that follows from them
    parent: Path  # of its run folder

    @property
    def log(self) -> Path:
        return self.parent / f"{self.args['seed']}.log"

    def __str__(self):
        return f"{self.table}, {self.args['env_id']}, seed {self.args['seed']}"

    def words(self, resume: Path | None = None) -> list[str]:
        """The command line, without the interpreter."""
        flags = ["--resume", shown(resume)] if resume else self.flags
        return [shown(ROOT / "algos" / f"{self.script}.py"), *flags]


class Unreadable(UserError):
    """A run folder with broken files, which costs its own run alone."""


def python(words: list[str], log, **how) -> Popen:
    """Starts Python with its output in an open file."""
    return Popen(
        [sys.executable, *words],
        **how,
        env={**os.environ, "TQDM_MININTERVAL": "10"},  # seconds between lines of progress
        stdin=DEVNULL,
        stdout=log,
        stderr=STDOUT,
        process_group=0,  # Ctrl-C is for the campaign, which then stops its runs
    )


def shown(path: Path) -> str:
    """A path as it is typed where the user stands."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def script_of(table: str) -> str | None:
    """The script that a table is for: the longest whose name it has, alone or before a hyphen."""
    found = [name for name in SCRIPTS if table == name or table.startswith(f"{name}-")]
    return max(found, key=len, default=None)


def evaluation_period(total_timesteps: int, evaluations: int) -> int:
    """Steps between so many evaluations, to one digit: 76,800 for 20 gives 4,000. 0: at the end."""
    if evaluations == 1:
        return 0
    period = max(total_timesteps / evaluations, 1)
    return int(round(period, -int(math.log10(period))))


def script_args(script: str, flags: list[str]) -> dict:
    """Every argument that `flags` give to a script, which ends with exit status 2 otherwise."""
    parent, args_class, *_ = parts_of(script)
    args = asdict(parent.parse_args(script, args_class, flags))
    return json.loads(json.dumps(args, default=str))  # as args.json has them: lists for tuples


def read_config(name: str) -> tuple[Path, dict]:
    """The file that a name or a path means, and its tables."""
    path = Path(name).resolve() if name.endswith(".toml") else ROOT / "benchmarks" / f"{name}.toml"
    if not path.exists():
        known = sorted(p.stem for p in path.parent.glob("*.toml"))
        raise UserError(f"no config {shown(path)}, only {', '.join(known) or 'none'}")
    tables = report.read_toml(path)
    for table in tables:
        if not re.fullmatch(r"[\w-]+", table):
            raise UserError(f"{shown(path)}: [{table}] may hold letters, digits, - and _")
        if not script_of(table):
            raise UserError(
                f"{shown(path)}: no script is named {table}: a table has the name of its script,"
                f" alone or with a hyphen and a name of yours: [ppo], [ppo-{table}]"
            )
    return path, tables


def plan(options, extra: list[str]) -> list[Job]:
    """Every run of the campaign, seed by seed, so that all tables have some seeds early."""
    path, tables = read_config(options.config)
    if not tables:
        raise UserError(f"{shown(path)} has no table for {', '.join(SCRIPTS)}")
    for table in options.algos or ():
        if table not in tables:
            raise UserError(f"{shown(path)} has no table [{table}], only {', '.join(tables)}")
    for word in extra:
        if re.match("--(seed|runs[-_]dir|config|resume|evaluate)(=|$)", word):
            raise UserError(f"after -- stands no {word.split('=')[0]}: that is the campaign's")
    runs_dir = Path(options.runs_dir or Path("runs", path.stem)).resolve()
    jobs = []
    for table in dict.fromkeys(options.algos or tables):
        if own := {"seed", "runs_dir", "torch_threads", "eval_frequency"} & tables[table].keys():
            raise UserError(f"[{table}] sets {', '.join(sorted(own))}: that is the campaign's")
        script, parent = script_of(table), shown(runs_dir / table)
        flags = ["--config", f"{shown(path)}:{table}", "--seed", str(options.first_seed)]
        flags += ["--torch-threads", str(options.torch_threads), "--runs-dir", parent]
        total = script_args(script, flags + extra)["total_timesteps"]
        period = evaluation_period(total, options.evaluations)
        flags += ["--eval-frequency", str(period), *extra]
        args = script_args(script, flags)
        env = args["env_id"].replace("/", "-").replace(":", "-")  # as the scripts name folders
        first = options.first_seed
        at_once = args.get("num_seeds", 1)  # of ppo_seeds, for example
        if (first - 1) % at_once:  # else a run would train seeds that another one has trained
            text = f"--first-seed must be one more than a multiple of {at_once}"
            raise UserError(f"[{table}] trains {at_once} seeds at once: {text}")
        for seed in range(first, first + options.seeds, at_once):
            flags[3] = str(seed)
            of_seed = {**args, "seed": seed}
            words = list(flags)
            if (left := first + options.seeds - seed) < at_once:
                words.append(f"--num-seeds={left}")
                of_seed["num_seeds"] = left
            jobs.append(Job(table, script, words, of_seed, runs_dir / table / env / script))
    return sorted(jobs, key=lambda job: job.args["seed"])


def run_folder(job: Job) -> tuple[Path | None, float | None]:
    """Where the job was run, None when it has to begin, and its greedy return if it is finished.

    Raises Unreadable, or UserError when a run of this seed had other arguments.
    """
    cut = None
    seed = job.args["seed"]
    name = glob.escape(f"{job.args.get('exp_name', '')}-{seed}-".lstrip("-"))
    for folder in sorted(job.parent.glob(f"{name}*"), reverse=True):
        saved = content(folder / "args.json", "args", dict)  # None: killed before its first step
        if saved is None or saved.get("seed") != seed or folder.match(f"{name}*-*-*-*"):
            continue  # of ppo_seeds: another one of the agents that it trains at once
        there, here = map(report.settings_of, (saved, job.args))
        for key, unresolved in (("device", "auto"), ("torch_threads", 0)):
            if here[key] == unresolved:  # args.json has what it came to
                here[key] = there.get(key)
        follows = "eval_frequency"  # from total_timesteps, which is then to be named
        for key in sorted(there.keys() | here.keys(), key=lambda key: (key == follows, key)):
            if there.get(key) != here.get(key):
                raise UserError(
                    f"{shown(folder)} was trained with {key}={there.get(key)}, not "
                    f"{here.get(key)}: move it away, or choose another --runs-dir"
                )
        greedy_return = content(folder / "result.json", "eval_return_mean", float)
        if greedy_return is not None:
            return folder, greedy_return
        if cut is None and (folder / "checkpoint.pt").exists():
            cut = folder
    return cut, None


def content(path: Path, name: str, kind):
    """What a JSON file has under a name, as this kind; None where there is no such file."""
    try:
        return kind(report.read_json(path)[name])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreadable(f"{shown(path)} cannot be read: {error!r}") from None


TAKEN = 75  # exit status of OWNER where another process has the lock
# Becomes the script, as the owner of the lock on an open file: a POSIX lock is a process's own. No
# worker inherits it, the campaign need not live, and it is gone when the process is.
OWNER = f"""
import fcntl, os, sys
lock = int(sys.argv[1])
try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except (BlockingIOError, PermissionError):
    sys.exit({TAKEN})
os.ftruncate(lock, 0)
os.write(lock, b"%d" % os.getpid())
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class LocalRun:
    """A run as a process of this machine, or one that an earlier campaign left running."""

    def __init__(self, job: Job):
        self.job = job
        self.process = None
        self.output = open(job.log, "a")  # noqa: SIM115 -- close() closes it, elsewhere
        self.lock = open(job.log.with_suffix(".lock"), "a+")  # noqa: SIM115
        if self.locked():
            self.lock.seek(0)
            say(f"is running already, as process {self.lock.read() or '?'}: {job}")
            return
        folder, greedy_return = run_folder(job)
        if greedy_return is not None:  # since the campaign began
            return
        words = job.words(folder)
        lock = self.lock.fileno()
        say(f"{'resumes' if folder else 'starts'}  python {shlex.join(words)}")
        owner = ["-I", "-c", OWNER, str(lock)]
        self.process = python([*owner, *words], self.output, pass_fds=[lock])

    def locked(self) -> bool:
        """Whether the run's process is there, whoever started it."""
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(self.lock, fcntl.LOCK_UN)
        return False

    def poll(self) -> str | None:
        """None while it runs; then how it ended, or "" when it must be started here."""
        if self.process is None:
            return None if self.locked() else ""
        code = self.process.poll()
        if code in (None, TAKEN):
            return None if code is None else ""
        return f"exit status {code}: {last_line(self.job.log)}"

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()

    def close(self):
        if self.process:
            self.process.wait()
        self.output.close()
        self.lock.close()


class RayRun:
    """A run on a node of a Ray cluster. What it writes comes home while it trains."""

    def __init__(self, job: Job):
        self.job = job
        self.losses = 0
        self.begin()

    def begin(self):
        """Starts it, or resumes it from what is here."""
        import ray

        job = self.job
        config, table = self.job.flags[1].rsplit(":", 1)
        there = Path(config).name if Path(config).is_absolute() else config
        files = {there: Path(config).read_bytes()}
        words = [f"{job.script}.py", "--config", f"{there}:{table}", *job.flags[2:]]
        words += ["--runs-dir", "runs"]
        for name in map(str, job.args.values()):  # weights or demonstrations, for example
            if Path(name).is_file() and not Path(name).is_absolute():
                files[name] = Path(name).read_bytes()
        parent, (folder, _) = Path("runs", *job.parent.parts[-2:]), run_folder(job)
        if folder:
            # of ppo_seeds also the folders of its other agents, whose names begin with this one
            for path in job.parent.glob(f"{glob.escape(folder.name)}*/**/*"):
                if path.is_file():
                    files[str(parent / path.relative_to(job.parent))] = path.read_bytes()
            words = [words[0], "--resume", str(parent / folder.relative_to(job.parent))]
        say(f"{'resumes' if folder else 'starts'} on Ray: {job}")
        gpus = int(job.args["device"].startswith("cuda"))
        needs = {"num_cpus": job.args["torch_threads"], "num_gpus": gpus}
        self.node = ray.remote(**needs)(Node).remote(words, files, str(parent))
        self.news = self.node.news.remote()

    def poll(self) -> str | None:
        """None while it runs; then how it ended."""
        import ray

        if not ray.wait([self.news], timeout=0)[0]:
            return None
        try:
            code, output, files, names = ray.get(self.news)
        except ray.exceptions.RayError as error:  # its node is lost, for example
            text = f"Ray: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self.losses += 1
            if self.losses > 3:
                return text
            say(f"lost {self.job}: {text}")
            self.stop()
            return self.begin()
        with open(self.job.log, "ab") as log:
            log.write(output)
        bring_home(files, names, self.job.parent)
        if code is not None:
            return f"exit status {code}: {last_line(self.job.log)}"
        self.news = self.node.news.remote()

    def stop(self):
        import ray

        ray.kill(self.node)

    close = stop


class Node:
    """On a node: a script in a temporary folder, of which the news are what changed in `parent`."""

    def __init__(self, words: list[str], files: dict[str, bytes], parent: str):
        house = tempfile.mkdtemp(prefix="run-")
        # this shell outlives the process, however that ends, and leaves nothing of the run behind
        cleaner = 'exec 3<&0; (read pid; cat; kill -9 -"$pid"; sleep 1; rm -rf "$0") <&3 >&2 &'
        shell = ["sh", "-c", cleaner, house]
        self.cleaner = Popen(shell, stdin=PIPE, stderr=DEVNULL, process_group=0)
        for name, content in files.items():
            path = Path(house, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.parent = Path(house, parent)
        self.log = Path(house, "log")
        self.sent = {}
        self.changes()
        with open(self.log, "wb") as log:
            # of the copy of the scripts, which is the folder of this process
            self.process = python([os.path.abspath(words[0]), *words[1:]], log, cwd=house)
        self.cleaner.stdin.write(f"{self.process.pid}\n".encode())
        self.cleaner.stdin.flush()
        self.read = 0

    def news(self) -> tuple[int | None, bytes, dict[str, bytes], list[str]]:
        """Exit status (None: it runs), and what is new: output, {file: content}; all files."""
        until = time.monotonic() + 5
        while (code := self.process.poll()) is None and time.monotonic() < until:
            time.sleep(0.1)
        output = self.log.read_bytes()[self.read :]
        self.read += len(output)
        return code, output, self.changes(), list(self.sent)

    def changes(self) -> dict[str, bytes]:
        found = {}
        before = self.sent
        self.sent = {}
        paths = [path for path in self.parent.rglob("*") if path.is_file()]
        # curves last: so they have all that they had when the checkpoint was written
        for path in sorted(paths, key=lambda path: path.name.startswith("events.out.")):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                name = str(path.relative_to(self.parent))
                time = path.stat().st_mtime_ns
                if before.get(name) != time:
                    found[name] = path.read_bytes()
                self.sent[name] = time
        return found


def bring_home(files: dict[str, bytes], names: list[str], parent: Path):
    """Writes files of run folders below `parent`, whole, and removes those that are not named."""
    last = "checkpoint.pt", "result.json"  # what they need is there before
    for name in sorted(files, key=lambda name: (name.endswith(last), name)):
        path = parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(files[name])
        temporary.replace(path)
    for folder in {Path(name).parent for name in names}:
        for path in (parent / folder).iterdir():
            if path.is_file() and str(folder / path.name) not in names:
                path.unlink()


def own_module(env_id: str) -> list[str]:
    """The file or package of an environment that is neither beside the scripts nor installed."""
    name = env_id.rpartition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(name) if name else None
    places = spec and [*(spec.submodule_search_locations or ()), spec.origin]
    if not places or places[0] in (None, "built-in", "frozen"):
        return []
    path = Path(places[0])  # a package's folder, also of one without an __init__.py
    known = path.is_relative_to(ROOT / "algos") or "site-packages" in path.parts
    return [] if known else [str(path)]


def connect(address: str, jobs: list[Job]):
    """Joins a Ray cluster, whose nodes get a copy of algos/ and of environments of one's own."""
    sent = {"working_dir": str(ROOT / "algos"), "excludes": ["runs"]}
    if modules := {path for job in jobs for path in own_module(job.args["env_id"])}:
        sent["py_modules"] = sorted(modules)  # an empty list would be an error on the nodes
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray itself waits for many minutes where nobody listens
            socket.create_connection((host, int(port)), timeout=10).close()
        import ray

        ray.init(address, runtime_env=sent)
    except ImportError:
        raise UserError("--ray needs: pip install -r benchmarks/requirements-ray.txt") from None
    except (OSError, ValueError) as error:
        raise UserError(f"--ray {address}: {str(error).splitlines()[0]}") from None


def cluster_cores() -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def say(text: str):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def lines_of(log: Path) -> list[str]:
    """The lines of a log; tqdm ends each of its own with a carriage return."""
    text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    return [line.strip() for line in text.splitlines() if line.strip()]


def last_line(log: Path) -> str:
    """What a run said last, but for its progress and how to resume it, which the campaign does."""
    lines = [x for x in lines_of(log) if not re.search(r"\d+/\d+ \[|^to resume: ", x)]
    return lines[-1] if lines else "it said nothing"


def train(jobs: list[Job], room, start) -> list[str]:
    """Trains what is not finished; returns what failed, a line each. start(job) begins a run, and
    room() is how many there may be at the moment.
    """
    waiting = deque()
    running = []
    failures = []
    told = time.monotonic()

    def failed(job, why):
        failures.append(f"{job}: {why}")
        say(f"FAILED   {failures[-1]}")

    for job in jobs:
        try:
            if run_folder(job)[1] is None:
                waiting.append(job)
        except Unreadable as error:
            failed(job, error)
    for parent in {job.parent for job in waiting}:
        parent.mkdir(parents=True, exist_ok=True)
    before = len(jobs) - len(waiting) - len(failures)
    say(f"{before} of {len(jobs)} runs were finished before")
    try:
        while waiting or running:
            while waiting and len(running) < room():
                job = waiting.popleft()
                try:
                    running.append(start(job))
                except (UserError, OSError) as error:
                    failed(job, error)
            time.sleep(0.1)
            for run in list(running):
                try:
                    if (ending := run.poll()) is None:
                        continue
                    greedy_return = run_folder(run.job)[1]
                except (UserError, OSError) as error:
                    greedy_return = None
                    ending = str(error)
                    run.stop()
                running.remove(run)
                run.close()
                if greedy_return is not None:
                    say(f"finished {run.job}: greedy return {greedy_return:.1f}")
                elif ending:
                    if ending.startswith("exit status 0"):
                        ending = f"it wrote no finished run into {shown(run.job.parent)}: does the"
                        ending += " last line of the script have its own name?"
                    failed(run.job, f"{ending} ({shown(run.job.log)})")
                else:
                    waiting.appendleft(run.job)
                told = -math.inf
            if running and time.monotonic() - told >= 60:
                told = time.monotonic()
                finished = len(jobs) - len(running) - len(waiting) - len(failures)
                first = ": ".join([str(running[0].job), *lines_of(running[0].job.log)[-1:]])
                say(f"{finished} of {len(jobs)} finished, {len(running)} running; first {first}")
    finally:
        for run in running:
            run.stop()
        for run in running:
            run.close()
    return failures


def parse_options(argv: list[str]):
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("config", help="a file of benchmarks/ without .toml, or a path to one")
    parser.add_argument("--algos", nargs="+", metavar="TABLE", help="tables of it; default: all")
    parser.add_argument("--seeds", type=positive, default=5, help="how many; default 5")
    parser.add_argument("--first-seed", type=int, default=1, help="default 1")
    parser.add_argument("--jobs", type=positive, help="at a time; default: cores / --torch-threads")
    parser.add_argument("--torch-threads", type=positive, default=1, help="of a run; default 1")
    parser.add_argument("--evaluations", type=positive, default=20, help="of a run; default 20")
    parser.add_argument("--runs-dir", help="default: runs/CONFIG")
    parser.add_argument("--dry-run", action="store_true", help="prints the commands, no more")
    parser.add_argument("--ray", metavar="ADDRESS", help="trains on this Ray cluster")
    return parser.parse_args(argv)


def stop(signal_number, _):
    raise KeyboardInterrupt(signal_number)


def usable_cores() -> int:
    """As many as this process may run on, where the system says so: taskset and Slurm set it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def tool(work):
    """Ends with the exit status of work(flags, flags behind --), of wrong input or of a signal."""
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    flags = sys.argv[1:]
    extra = []
    if "--" in flags:
        end = flags.index("--")
        flags, extra = flags[:end], flags[end + 1 :]
    try:
        with errors_in_a_line():
            sys.exit(work(flags, extra))
    except KeyboardInterrupt as interrupt:
        name = Path(sys.argv[0]).name
        print(f"{name}: stopped; the same command goes on", file=sys.stderr)
        sys.exit(128 + interrupt.args[0])


def campaign(flags: list[str], extra: list[str]) -> int:
    options = parse_options(flags)
    jobs = plan(options, extra)
    if options.dry_run:
        print(*(f"python {shlex.join(job.words())}" for job in jobs), sep="\n")
        return 0
    if options.ray is not None:
        connect(options.ray, jobs)
        signal.signal(signal.SIGTERM, stop)  # Ray has set its own
    cores = cluster_cores if options.ray is not None else usable_cores  # nodes may join later
    room = lambda: options.jobs or max(cores() // options.torch_threads, 1)  # noqa: E731
    failures = train(jobs, room, RayRun if options.ray is not None else LocalRun)
    say(f"{len(jobs) - len(failures)} of {len(jobs)} runs are finished, {len(failures)} failed")
    for failure in failures:
        print(f"FAILED   {failure}")
    return 1 if failures else 0


def main():
    tool(campaign)


if __name__ == "__main__":
    main()
