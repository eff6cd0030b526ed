"""trained/: agents that play as well as their files say, and the tool that chose them."""

import importlib
import importlib.util
import json
import math
import sys

import pandas as pd
import pytest
from conftest import ROOT, SCRIPTS, VARIANTS
from load import load

sys.path.insert(0, str(ROOT / "benchmarks" / "maintain"))
import trained

FOLDERS = sorted(path.parent for path in (ROOT / "trained").glob("*/args.json"))


def test_trained_agents_are_small_and_name_no_other_place():
    assert len(FOLDERS) > 9
    assert sum(p.stat().st_size for p in (ROOT / "trained").rglob("*.*")) < 6e6
    for folder in FOLDERS:
        files = {path.name for path in folder.iterdir()} - {"videos"}
        assert files == {"args.json", "weights.npz", "result.json"}, folder
        about = json.loads((folder / "args.json").read_text())
        result = json.loads((folder / "result.json").read_text())
        assert about["algo"] in SCRIPTS + VARIANTS and folder.name == trained.cell_of(about)
        assert about["args"]["runs_dir"] == "runs" and "runs-dir" not in about["command"]
        assert result["steps"] == about["args"]["total_timesteps"]


def test_each_agent_is_the_run_of_its_cell_that_is_nearest_to_the_median():
    """But for one, whose cell is of an earlier script; the page says so."""
    for folder in FOLDERS:
        (path,) = (ROOT / "benchmarks" / "results").rglob(f"{folder.name}.json")
        hashes = {run["run_hash"] for run in json.loads(path.read_text())["runs"]}
        result = json.loads((folder / "result.json").read_text())
        if folder.name == "HalfCheetah-v5-td3":
            assert result["run_hash"] not in hashes
            continue
        assert result["run_hash"] in hashes, folder
        rows = pd.read_csv(path.with_suffix(".csv")).query("kind == 'greedy'").sort_values("step")
        distances = rows.groupby("seed")["return"].last()
        distances = (distances - distances.median()).abs()
        assert distances[result["seed"]] <= distances.min() + 1e-3, folder


@pytest.mark.parametrize("name", ["CartPole-v1-ppo", "LunarLander-v3-ppo"])
def test_an_agent_plays_as_its_result_says(name):
    """To the last digit where it was trained; elsewhere within what rounding does to episodes."""
    folder = ROOT / "trained" / name
    about, result = (json.loads((folder / f"{x}.json").read_text()) for x in ("args", "result"))
    script = importlib.import_module(about["algo"])
    args = script.parse_args(about["algo"], script.RunArgs, ["--evaluate", str(folder)])
    run = script.Run(about["algo"], args, script.make_agent, script.evaluation_policy)
    assert run.hash() == result["run_hash"]
    error = result["eval_return_std"] / math.sqrt(result["eval_episodes"])
    assert run.evaluate().mean() == pytest.approx(result["eval_return_mean"], abs=4 * error + 1)


def test_every_agent_can_be_loaded():
    for folder in FOLDERS:
        if "BulletEnv" in folder.name and importlib.util.find_spec("pybullet") is None:
            continue
        policy, envs = load(folder, num_envs=2)
        obs, _ = envs.reset(seed=[3, 5])
        obs, rewards, *_ = envs.step(policy(obs))
        assert obs.shape[0] == rewards.shape[0] == 2
        envs.close()


def write_run(folder, seed, value, config="mine.toml:ppo"):
    folder.mkdir(parents=True)
    command = (
        f"python algos/ppo.py --config {config} --seed {seed} --runs-dir /some/where --gamma 1"
    )
    args = {"env_id": "ALE/Pong-v5", "config": config, "runs_dir": "/x/y"}
    about = {"algo": "ppo", "args": args, "command": command}
    result = {"seed": seed, "steps": 7, "eval_return_mean": value, "eval_return_std": 0.5}
    (folder / "args.json").write_text(json.dumps(about))
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "weights.npz").write_bytes(b"weights of %d" % seed)


def test_the_run_nearest_to_the_median_is_copied(tmp_path, monkeypatch):
    """Of recorded seeds and these: 1, 2, 10, 40, 50. The second run has 10, and is not the best."""
    monkeypatch.setattr(trained, "ROOT", tmp_path)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    rows = "kind,seed,step,return\ngreedy,1,5,9\ngreedy,1,10,1\ngreedy,2,10,2\ntraining,3,10,99\n"
    (tmp_path / "benchmarks" / "results" / "ALE-Pong-v5-ppo.csv").write_text(rows)
    for seed, value in ((5, 40.0), (6, 10.0), (7, 50.0)):
        write_run(tmp_path / "runs" / f"{seed}-now", seed, value)
    (tmp_path / "trained").mkdir()
    page = f"before\n{trained.BEGIN}old\n{trained.END}after\n"
    (tmp_path / "trained" / "README.md").write_text(page)
    trained.main(tmp_path / "runs", tmp_path / "trained")
    copy = tmp_path / "trained" / "ALE-Pong-v5-ppo"
    assert (copy / "weights.npz").read_bytes() == b"weights of 6"
    about = json.loads((copy / "args.json").read_text())
    assert about["command"] == "python algos/ppo.py --config mine.toml:ppo --seed 6 --gamma 1"
    assert about["args"]["runs_dir"] == "runs"
    page = (tmp_path / "trained" / "README.md").read_text()
    assert page.startswith("before") and page.endswith("after\n") and "old" not in page
    assert "| `ALE-Pong-v5-ppo` | 6 | 7 | 10.0 ± 0.5 |" in page


def test_the_page_has_every_agent():
    page = (ROOT / "trained" / "README.md").read_text()
    assert trained.table(ROOT / "trained") in page
