"""Speed of our scripts beside stable-baselines3 and sbx-rl: `make speed`, on a machine at rest.

    python benchmarks/speed.py                              everything, the peers in .venv-peers
    python benchmarks/speed.py ppo-cartpole td3-halfcheetah --repeats 5

Each cell of maintain/speed.toml trains with the same hyperparameters in every library, one process
at a time, in turns. A script's speed is read from its curves: steps over seconds between two
points, start-up excluded. The table gives medians and the range over the repetitions; ratios are of
medians of this one run. The share of the ceiling is the time that the cell's floating-point
operations and environment steps would take alone, by what this machine was measured to do, over the
time a step took. Rows go to results/speed/speed.csv.
"""

import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from report import ROOT, ArgumentParser, positive, read_toml
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

MAINTAIN = ROOT / "benchmarks" / "maintain"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
RESULTS = ROOT / "benchmarks" / "results" / "speed"
sys.path.insert(0, str(MAINTAIN))
import machine  # noqa: E402

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
    must: float = 0.0
    must_over: str = ""
    mflop: float = 0.0
    threshold: float = 0.0
    evaluated_on: str = ""


def read_cells(tables: dict) -> dict[str, Cell]:
    """Those of [cells], with their settings, and of [solve]."""
    cells = {name: Cell(**row) for name, row in tables["solve"].items()}
    for name, row in tables["cells"].items():
        shared = tables["settings"][row.pop("settings")]
        row |= {"flags": f"{row['flags']} {shared['flags']}", "keywords": shared["peers"]}
        cells[name] = Cell(**row)
    return cells


TABLES = read_toml(MAINTAIN / "speed.toml")
CELLS, ON_GPU = read_cells(TABLES), TABLES["gpu"]
SPEEDS, SOLVES = list(TABLES["cells"]), list(TABLES["solve"])


def output_of(*words, python=sys.executable, folder=ROOT) -> str:
    """What a Python program prints; its complaints go to stderr."""
    command = [str(word) for word in (python, *words)]
    return subprocess.run(command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE).stdout


def our_flags(cell: Cell, folder: str, device: str = "cpu") -> list:
    """The name of our script, and its flags."""
    flags = ["--total-timesteps", cell.last, "--eval-episodes", 1, "--log-frequency", 500]
    flags += ["--env-id", cell.env_id, "--torch-threads", cell.threads, "--device", device]
    return cell.flags.split() + flags + ["--runs-dir", folder]


def run_ours(cell: Cell, folder: str, device: str = "cpu") -> dict:
    """Trains with our script; speed and the seconds to the first update, from its event file."""
    script, *flags = our_flags(cell, folder, device)
    started = time.time()
    output_of(ROOT / "algos" / f"{script}.py", *flags)
    path = max(Path(folder).rglob("events.out.tfevents.*"), key=os.path.getmtime)
    times, updates = {}, []
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == "charts/SPS":
                times[event.step] = event.wall_time
            if value.tag.startswith("losses/"):
                updates.append(event.wall_time - started)
    first, last = min(step for step in times if step >= cell.first), max(times)
    return {"sps": (last - first) / (times[last] - times[first]), "first_update": min(updates)}


def run_peer(cell: Cell, library: str, folder: str, **more) -> dict:
    """What peers.py measures of a library; `more`: what else its main takes."""
    names = ("env_id", "num_envs", "threads", "first", "last")
    task = {name: getattr(cell, name) for name in names} | {"algo": cell.peers[library]}
    task |= {"library": LIBRARIES[library], "settings": cell.keywords, **more}
    output = output_of(MAINTAIN / "peers.py", json.dumps(task), python=PEERS, folder=folder)
    last = output.strip().splitlines()[-1]
    return json.loads(last) if last.startswith("{") else {}


# What is measured: functions of a name, repetitions and a folder, which return rows of a CSV ------


def measure_speed(name: str, repeats: int, folder: str) -> list[dict]:
    """Every library in turns, `repeats` times; a row for each."""
    cell = CELLS[name]
    runs = {library: [] for library in ("ours", *cell.peers)}
    with machine.held_to(cell.threads):
        for _ in range(repeats):
            runs["ours"].append(run_ours(cell, folder))
            for library in cell.peers:
                runs[library].append(run_peer(cell, library, folder))
        ceiling = cell.mflop / machine.gflops(cell.threads) / 1e3 + 1 / machine.env_sps(cell)
    medians = {k: statistics.median(run["sps"] for run in runs[k]) for k in runs}
    rival, rows = cell.must_over or max(cell.peers, key=medians.get), []
    for library, results in runs.items():
        speeds = [run["sps"] for run in results]
        row = {"cell": name, "library": library, "sps": round(medians[library], 1)}
        row |= {"lowest": round(min(speeds), 1), "highest": round(max(speeds), 1)}
        row |= {"ours_over_it": times_as_fast(medians["ours"], medians[library])}
        row |= {"must": round(cell.must, 2) if library == rival else ""}
        row |= {"ceiling_share": round(ceiling * medians[library], 2)}
        row |= {"first_update_s": round(statistics.median(r["first_update"] for r in results), 1)}
        rows.append({**row, "repeats": repeats})
    return rows


def times_as_fast(ours: float, theirs: float) -> float:
    """Rounded down, so that no target is reached by rounding."""
    return math.floor(ours / theirs * 100) / 100


# The loop -----------------------------------------------------------------------------------------


def keep(path: Path, rows: list[dict], order: list[str]):
    """Puts the rows of a cell in the place of its former ones."""
    table = pd.DataFrame(rows).astype(str)
    if path.exists():
        old = pd.read_csv(path, dtype=str, keep_default_na=False)
        table = pd.concat([old[~old["cell"].isin(table["cell"])], table])
    table = table.sort_values("cell", key=lambda cells: cells.map(order.index), kind="stable")
    path.parent.mkdir(exist_ok=True)
    table.to_csv(path, index=False, lineterminator="\n")


def loop(doc: str, tasks: dict, default: list[str]):
    """Measures what the command line names. tasks {name: (csv, function, its cells)}; a function
    of a cell, repetitions and a folder returns rows.
    """
    os.environ["TQDM_DISABLE"] = "1"  # the scripts' progress would stand between the lines here
    parser = ArgumentParser(description=doc)
    parser.add_argument("names", nargs="*", help=f"default: {' '.join(default)}")
    parser.add_argument("--repeats", type=positive, default=3)
    args = parser.parse_args()
    if unknown := set(args.names) - set(tasks):
        parser.error(f"there is no {', '.join(sorted(unknown))}, only {', '.join(tasks)}")
    names = args.names or default
    if any(name in CELLS and CELLS[name].peers for name in names) and not PEERS.exists():
        parser.error("the peers are not installed: make speed does it")
    for name in names:
        csv, measure, cells = tasks[name]
        for cell in cells:
            with tempfile.TemporaryDirectory() as folder:
                rows = measure(cell, args.repeats, folder)
            for row in rows:
                said = (f"{column} {value}" for column, value in row.items() if value != "")
                print(*said, sep=", ", flush=True)
            order = [cell for task in tasks.values() if task[0] == csv for cell in task[2]]
            keep(RESULTS / csv, rows, order)


TASKS = {name: ("speed.csv", measure_speed, [name]) for name in SPEEDS}

if __name__ == "__main__":
    try:
        loop(__doc__, TASKS, list(TASKS))
    except subprocess.CalledProcessError as error:  # which has said on stderr why
        sys.exit(f"speed.py: {shlex.join(error.cmd)} failed")
