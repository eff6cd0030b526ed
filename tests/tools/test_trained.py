"""trained/: agents that play as well as their files say, and the tool that chose them."""

import importlib
import json
import math
from pathlib import Path

import pandas as pd
import pytest
import report
from cells import a_run
from conftest import ROOT, SCRIPTS, VARIANTS, lacks_package
from load import load

import trained

FOLDERS = sorted(path.parent for path in (ROOT / "trained").glob("*/args.json"))


def test_trained_agents_are_small_and_name_no_other_place():
    assert len(FOLDERS) > 9
    assert sum(p.stat().st_size for p in (ROOT / "trained").rglob("*.*")) < 8e6
    for folder in FOLDERS:
        files = {path.name for path in folder.iterdir()} - {"videos"}
        assert files == {"args.json", "weights.npz", "result.json"}, folder
        about = json.loads((folder / "args.json").read_text())
        result = json.loads((folder / "result.json").read_text())
        assert about["algo"] in SCRIPTS + VARIANTS and folder.name == trained.cell_of(about)
        assert about["args"]["runs_dir"] == "runs" and "runs-dir" not in about["command"]
        assert result["steps"] == about["args"]["total_timesteps"]


def test_a_cell_has_the_name_that_it_has_in_the_results(tool, tmp_path):
    args = {"env_id": "tasks:Match-v0", "config": "benchmarks/variants.toml:ppo_mask-mine"}
    assert trained.cell_of({"args": args}) == "tasks-Match-v0-ppo_mask-mine"
    assert tool(trained, tmp_path).status == 2  # which has no run


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
        if lacks_package(folder):
            continue
        policy, envs = load(folder, num_envs=2)
        obs, _ = envs.reset(seed=[3, 5])
        obs, rewards, *_ = envs.step(policy(obs))
        assert obs.shape[0] == rewards.shape[0] == 2
        envs.close()


def test_the_page_has_every_agent():
    page = (ROOT / "trained" / "README.md").read_text()
    assert trained.table() in page


def test_the_run_next_to_the_median_of_its_cell_is_copied(results, monkeypatch, tool):
    copied = []
    monkeypatch.setattr(trained, "copy_run", lambda folder, target: copied.append(folder.name))
    monkeypatch.setattr(trained, "TRAINED", results)
    (results / "README.md").write_text("\n".join(report.MARKS))
    runs = {}
    # beside seeds of 3, 4 and 5; the last has other settings than its table
    for seed, value in ((11, 0.0), (12, 4.5), (13, 9.0), (14, 4.4)):
        run = a_run(seed, value, env_id="CartPole-v1", config="x.toml:ppo-mine")
        run["result"]["eval_return_mean"] = value
        runs[Path(str(seed))] = run
    monkeypatch.setattr(report, "finished_runs", lambda _: {("ppo-mine", "CartPole-v1"): [*runs]})
    monkeypatch.setattr(report, "read_run", runs.get)
    monkeypatch.setattr(trained.publish, "is_of_table", lambda table, run: run["seed"] < 14)
    tool(trained, "new")
    assert copied == ["12"]
