"""Speed of our scripts beside stable-baselines3 and sbx-rl: `make speed`, on a machine at rest.

    python benchmarks/speed.py                              everything, the peers in .venv-peers
    python benchmarks/speed.py ppo-cartpole td3-halfcheetah --repeats 5

Each cell of maintain/speed.toml trains with the same hyperparameters in every library, one process
at a time, in turns. A script's speed is read from its curves: steps over seconds between two
points, start-up excluded. Rows go to results/speed/speed.csv, with medians and the range over the
repetitions; ratios are of medians of one run.
"""

import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from report import ROOT, ArgumentParser, positive, read_toml
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

MAINTAIN = ROOT / "benchmarks" / "maintain"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
RESULTS = ROOT / "benchmarks" / "results" / "speed"
LIBRARIES = {"sb3": "stable_baselines3", "sbx": "sbx"}


@dataclass
class Cell:
    """A row of maintain/speed.toml, which says what each column is."""

    flags: str
    env_id: str
    first: int = 0
    last: int = 100_000
    num_envs: int = 1
    threads: int = 1
    peers: dict = field(default_factory=dict)
    keywords: dict = field(default_factory=dict)


def read_cells(tables: dict) -> dict[str, Cell]:
    """Those of [cells], with their settings."""
    cells = {}
    for name, row in tables["cells"].items():
        shared = tables["settings"][row.pop("settings")]
        row |= {"flags": f"{row['flags']} {shared['flags']}", "keywords": shared["peers"]}
        cells[name] = Cell(**row)
    return cells


TABLES = read_toml(MAINTAIN / "speed.toml")
CELLS = read_cells(TABLES)
ON_GPU = TABLES["gpu"]


@contextlib.contextmanager
def held_to(cores: int):
    """So many cores for what is started within: JAX takes a thread for each that it may use."""
    if not hasattr(os, "sched_setaffinity"):  # macOS, Windows
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def output_of(*words, python=sys.executable, folder=ROOT) -> dict:
    """The JSON in the last line that a Python program prints; its complaints go to stderr."""
    command = [str(word) for word in (python, *words)]
    done = subprocess.run(command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE)
    last = done.stdout.strip().splitlines()[-1]
    return json.loads(last) if last.startswith("{") else {}


def our_flags(cell: Cell, folder: str, device: str = "cpu") -> list:
    """The name of our script, and its flags."""
    flags = ["--total-timesteps", cell.last, "--eval-episodes", 1, "--log-frequency", 500]
    flags += ["--env-id", cell.env_id, "--torch-threads", cell.threads, "--device", device]
    return cell.flags.split() + flags + ["--runs-dir", folder]


def our_sps(cell: Cell, folder: str, device: str = "cpu") -> float:
    """Trains with our script; its steps per second, from its event file."""
    script, *flags = our_flags(cell, folder, device)
    output_of(ROOT / "algos" / f"{script}.py", *flags)
    path = max(Path(folder).rglob("events.out.tfevents.*"), key=os.path.getmtime)
    events = EventFileLoader(str(path)).Load()
    times = {e.step: e.wall_time for e in events for v in e.summary.value if v.tag == "charts/SPS"}
    first, last = min(step for step in times if step >= cell.first), max(times)
    return (last - first) / (times[last] - times[first])


def peer_sps(cell: Cell, library: str, folder: str) -> float:
    """The same of a peer, by peers.py."""
    names = ("env_id", "num_envs", "threads", "first", "last")
    task = {name: getattr(cell, name) for name in names} | {"algo": cell.peers[library]}
    task |= {"library": LIBRARIES[library], "settings": cell.keywords}
    command = MAINTAIN / "peers.py", json.dumps(task)
    return output_of(*command, python=PEERS, folder=folder)["sps"]


def measure_speed(name: str, repeats: int, folder: str) -> list[dict]:
    """Every library in turns, `repeats` times; a row of the CSV for each."""
    cell = CELLS[name]
    rows = []
    speeds = {library: [] for library in ("ours", *cell.peers)}
    with held_to(cell.threads):
        for _ in range(repeats):
            speeds["ours"].append(our_sps(cell, folder))
            for library in cell.peers:
                speeds[library].append(peer_sps(cell, library, folder))
    medians = {library: statistics.median(found) for library, found in speeds.items()}
    for library, found in speeds.items():
        row = {"cell": name, "library": library, "sps": round(medians[library], 1)}
        row |= {"lowest": round(min(found), 1), "highest": round(max(found), 1)}
        row |= {"ours_over_it": round(medians["ours"] / medians[library], 2)}
        rows.append({**row, "repeats": repeats})
    return rows


def keep(path: Path, rows: list[dict]):
    """Puts the rows of a cell in the place of its former ones."""
    table = pd.DataFrame(rows).astype(str)
    if path.exists():
        old = pd.read_csv(path, dtype=str, keep_default_na=False)
        table = pd.concat([old[~old["cell"].isin(table["cell"])], table])
    path.parent.mkdir(exist_ok=True)
    table.to_csv(path, index=False, lineterminator="\n")


def loop(doc: str, tasks: dict):
    """Measures what the command line names. tasks {name: (csv, function)}; a function of a name,
    repetitions and a folder returns rows.
    """
    os.environ["TQDM_DISABLE"] = "1"  # the scripts' progress would stand between the lines here
    parser = ArgumentParser(description=doc)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(tasks)}; none: all of them")
    parser.add_argument("--repeats", type=positive, default=3)
    args = parser.parse_args()
    if unknown := set(args.names) - set(tasks):
        parser.error(f"there is no {', '.join(sorted(unknown))}, only {', '.join(tasks)}")
    names = args.names or list(tasks)
    if any(name in CELLS and CELLS[name].peers for name in names) and not PEERS.exists():
        parser.error("the peers are not installed: make speed does it")
    for name in names:
        csv, measure = tasks[name]
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows = measure(name, args.repeats, folder)
            except subprocess.CalledProcessError as error:  # which has said on stderr why
                sys.exit(f"{parser.prog}: {shlex.join(error.cmd)} failed")
        for row in rows:
            said = (f"{column} {value}" for column, value in row.items() if value != "")
            print(*said, sep=", ", flush=True)
        keep(RESULTS / csv, rows)


if __name__ == "__main__":
    loop(__doc__, {name: ("speed.csv", measure_speed) for name in CELLS})
