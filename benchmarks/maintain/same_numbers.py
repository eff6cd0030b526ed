"""Do the scripts still train the same weights? Compares the run hashes of two versions of algos/.

    python benchmarks/maintain/same_numbers.py --against HEAD~1     this tree beside a commit
    python benchmarks/maintain/same_numbers.py --against HEAD~1 halfcheetah:td3    one command of it
    python benchmarks/maintain/same_numbers.py --against HEAD~1 --record    and keeps what is equal

Today's tables of benchmarks/*.toml, without those that need demonstrations, Ray, a package that is
not installed, or mpe2, the defaults of the four scripts, and a few commands for what no table uses
run for a few thousand steps, with checkpoints on the way. With --record, tables with equal hashes
go into results/same-numbers.json: report.py then lets seeds of the one script join a cell of the
other. What the record says of the commit's scripts need not run again.
Exit status: 0 if every hash is the same, 1 if not.
"""

import functools
import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import report
from report import ROOT

# lengths that learn and cross two checkpoints; td3 has an update to every step
SHORT = {
    "ppo": "--total-timesteps 8192 --checkpoint-frequency 3000",
    "a2c": "--total-timesteps 6000 --checkpoint-frequency 2000",
    "dqn": "--total-timesteps 5120 --checkpoint-frequency 2000 --learning-starts 1000",
    "td3": "--total-timesteps 1600 --checkpoint-frequency 600 --learning-starts 700",
}
IMAGES = {
    "ppo": "--total-timesteps 2048 --checkpoint-frequency 1024",
    "a2c": "--total-timesteps 800 --checkpoint-frequency 400",
    "dqn": "--total-timesteps 1200 --checkpoint-frequency 500 --learning-starts 400"
    " --buffer-size 800",
}
# cells of a table of another environment
ELSEWHERE = (
    "halfcheetah:ppo-cleanrl --env-id Hopper-v5",
    "halfcheetah:ppo-cleanrl --env-id Walker2d-v5",
)
FOREIGN = "panda_gym", "gymnasium_robotics"
# and mpe2, whose steps count agents, of whom the lengths above are no multiple
MISSING = "mpe2", *(name for name in FOREIGN if importlib.util.find_spec(name) is None)
EVERY = "--torch-threads 1 --eval-episodes 2"  # one for each agent of ppo_multi
MORE = {
    "ppo, a Tuple of Discrete": "ppo --env-id Blackjack-v1 --total-timesteps 4096",
    "ppo, all its switches": "ppo --env-id Pendulum-v1 --norm-obs --norm-reward --clip-vloss"
    " --target-kl 0.01 --ent-coef 0.01 --num-minibatches 4 --activation relu --hidden-size 32"
    " --total-timesteps 8000 --checkpoint-frequency 2500",
    "a2c, all its switches": "a2c --env-id Pendulum-v1 --norm-obs --norm-reward --optimizer adam"
    " --ent-coef 0.01 --total-timesteps 4000 --checkpoint-frequency 1500",
    "dqn, all its switches": "dqn --double --dueling --n-atoms 51 --v-min 0 --v-max 50 --n-step 3"
    " --total-timesteps 4000 --checkpoint-frequency 1500 --buffer-size 2000 --num-envs 4"
    " --env-id MountainCar-v0",
    "dqn, mse": "dqn --loss mse --tau 1 --target-network-frequency 100 --total-timesteps 4000"
    " --exploration-steps 2000",
    "td3, DDPG": "td3 --env-id Pendulum-v1 --no-twin --policy-frequency 1 --policy-noise 0"
    " --total-timesteps 1500 --learning-starts 500 --num-envs 2 --buffer-size 1000"
    " --checkpoint-frequency 400",
}


def commands(only: list[str]) -> dict[str, str]:
    """{name: script and flags}, of which only those named, if any are."""
    found = {f"defaults:{script}": f"{script} {SHORT[script]}" for script in SHORT}
    for path in sorted((ROOT / "benchmarks").glob("*.toml")):
        for table, settings in report.read_toml(path).items():
            missing = settings["env_id"].startswith(MISSING)
            if missing or "demonstrations" in settings or table == "dqn_apex":
                continue
            script = table.split("-")[0]
            parent = script.split("_")[0]  # of a variant
            short = (IMAGES if settings["env_id"].startswith("ALE/") else SHORT)[parent]
            config = f"--config benchmarks/{path.name}:{table}"
            found[f"{path.stem}:{table}"] = f"{script} {config} {short}"
    for name in ELSEWHERE:
        table, env_id = name.split(maxsplit=1)
        found[name] = f"{found[table]} {env_id}"
    found |= MORE
    if unknown := set(only) - found.keys():
        sys.exit(f"no such command: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return {name: text for name, text in found.items() if not only or name in only}


def trained(tree: Path, command: str) -> tuple[str, str]:
    """The run hash of a command with the scripts of `tree`, and the SHA-256 of its script, as
    args.json has it.
    """
    script, *flags = command.split()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, f"algos/{script}.py", *flags, *EVERY.split(), "--runs-dir", folder]
        done = subprocess.run(words, cwd=tree, capture_output=True, text=True)
        found = re.search(r"^run hash +(\w+)$", done.stdout, re.MULTILINE)
        if not found:
            sys.exit(f"{command}: {done.stderr.strip().splitlines()[-1:]}")
        about = json.loads(next(Path(folder).rglob("args.json")).read_bytes())
    return found[1], about["versions"]["script"]


def both(tree: Path, records: dict, name: str, command: str) -> tuple:
    """What `trained` says of the scripts in `tree`, and of today's. The former need not run where
    it is recorded that they train what today's do.
    """
    today = trained(ROOT, command)
    known = records.get(name, {"scripts": ()})
    script = script_in(tree, command.split()[0])
    if script in known["scripts"] and known["run_hash"] == today[0]:
        return (today[0], script), today
    return trained(tree, command), today


def read_records() -> dict:
    path = report.RESULTS / report.SAME_NUMBERS
    return {x["name"]: x for x in json.loads(path.read_bytes())} if path.exists() else {}


@functools.cache
def script_in(tree: Path, name: str) -> str:
    """The SHA-256 of a script there, as args.json has it."""
    code = f"from load import parts_of; parent, args_class, *_ = parts_of({name!r});"
    code += "print(parent.versions(args_class)['script'])"
    words = [sys.executable, "-c", code]
    return subprocess.check_output(words, cwd=tree / "algos", text=True).strip()


def record(path: Path, name: str, command: str, scripts: list[str], commit: str, value: str):
    """Keeps that two versions of a table's script have the same run hash, as have the others of the
    record that one of them is in. Of each table the newest record is kept.
    """
    records = json.loads(path.read_bytes()) if path.exists() else []
    for old in records:
        if old["name"] == name and set(old["scripts"]) & set(scripts):
            scripts = list(dict.fromkeys([*old["scripts"], *scripts]))
    new = {"name": name, "scripts": scripts, "against": commit}
    new |= {"command": f"{command} {EVERY}", "run_hash": value}
    records = [old for old in records if old["name"] != name] + [new]
    path.write_text(json.dumps(sorted(records, key=lambda x: x["name"]), indent=1) + "\n")


def main():
    parser = report.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="e.g. lunarlander:ppo; none: all of them")
    help = "whose scripts and tables run first"
    parser.add_argument("--against", metavar="COMMIT", required=True, help=help)
    parser.add_argument("--record", action="store_true", help="keeps what is equal for report.py")
    parser.add_argument("--jobs", type=report.positive, default=2, help="at a time; default 2")
    options = parser.parse_args()
    wanted = commands(options.names)
    different = 0
    git = partial(subprocess.run, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    commit = git(["git", "rev-parse", "--short", options.against], text=True).stdout.strip()
    archive = git(["git", "archive", options.against, "algos"]).stdout
    with ThreadPoolExecutor(options.jobs) as pool, tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        (Path(folder) / "benchmarks").symlink_to(ROOT / "benchmarks")  # today's tables for both
        found = pool.map(partial(both, Path(folder), read_records()), wanted, wanted.values())
        for name, ((old, its_script), (new, script)) in zip(wanted, found, strict=True):
            verdict = "same" if new == old else f"other, was {old[:16]}"
            print(f"{name:<28} {new[:16]}  {verdict}", flush=True)
            different += new != old
            if options.record and new == old and script != its_script and name not in MORE:
                path = report.RESULTS / report.SAME_NUMBERS
                scripts = [its_script, script]
                record(path, name, wanted[name], scripts, commit, new)
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
