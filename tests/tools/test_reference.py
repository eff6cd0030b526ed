"""Our seeds as event files: what TensorBoard reads of them is what a run of ours has."""

import pytest
import reference
import report
from cells import a_run
from conftest import only_run, scalars
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData


def hparams(folder) -> dict:
    """The row of the HParams page."""
    events = EventAccumulator(str(folder)).Reload()
    (content,) = events.PluginTagToContent("hparams").values()
    values = HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}


def test_a_seed_has_the_curves_and_hyperparameters_of_its_run(command, tmp_path, monkeypatch, tool):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    flags = "--env-id Pendulum-v1 --total-timesteps 800 --learning-starts 200 --batch-size 16 "
    flags += "--hidden-sizes 16 8 --eval-frequency 300 --log-frequency 200 --seed 7"
    command("td3", flags)
    run = only_run(tmp_path)
    report.write_cell("td3", [report.read_run(run)], report.RESULTS)
    tool(reference, "Pendulum-v1")
    folder = tmp_path / "runs" / "reference" / "Pendulum-v1" / "td3" / "7"
    # each point ends a hundredth of training, here with one of Pendulum's episodes of 200 steps
    own = {key: value for key, value in scalars(run).items() if "episodic_return" in key[0]}
    assert scalars(folder) == {key: pytest.approx(value, rel=1e-5) for key, value in own.items()}
    assert [step for tag, step in sorted(own) if tag.startswith("charts")] == [200, 400, 600, 800]
    assert [step for tag, step in sorted(own) if tag.startswith("eval")] == [300, 600, 800]
    saved, row = hparams(run), hparams(folder)
    assert saved.keys() == {"algo", *report.read_run(run)["args"]} and saved["seed"] == 7
    assert saved["hidden_sizes"] == "(16, 8)" and row["exp_name"] == "reference"
    assert row | {"exp_name": ""} == {k: v for k, v in saved.items() if k in row}
    assert {"algo", "seed", "learning_rate"} <= row.keys()


def test_the_same_command_again_replaces_them(results, tool):
    for seeds in ((1, 2, 3), (2, 3, 5)):
        cell = [a_run(seed, seed + 2.0) for seed in seeds]
        report.write_cell("ppo-mine", cell, report.RESULTS)
        said = tool(reference, "CartPole-v1", "--runs-dir", "mine").out
        folder = results / "mine" / "reference" / "CartPole-v1" / "ppo-mine"
        assert {path.name for path in folder.iterdir()} == {str(seed) for seed in seeds}
    tag = "eval/episodic_return"
    expected = {(tag, 50): [50.0], (tag, 100): [7.0], ("charts/episodic_return", 100): [4.0]}
    assert scalars(folder / "5") == expected
    assert said.endswith("mine/reference/CartPole-v1/ppo-mine: 3 seeds\n")


def test_runs_of_ones_own_stay(results, tool):
    report.write_cell("ppo", [a_run(1, 3.0)], report.RESULTS)
    own = results / "mine" / "reference" / "CartPole-v1" / "ppo" / "1" / "args.json"
    own.parent.mkdir(parents=True)
    own.touch()
    refused = tool(reference, "CartPole-v1", "--runs-dir", "mine")
    assert refused.status == 2 and "has runs of yours" in refused.err and own.exists()


def test_a_name_is_a_config_one_of_its_tables_or_an_environment(results, tool):
    def named(name):
        return [(cell.env_id, cell.table) for cell in reference.chosen(cells, name)]

    for env_id, table in (("A-v0", "ppo"), ("A-v0", "dqn"), ("x:B-v0", "ppo")):
        run = a_run(1, 3.0) | {"env_id": env_id}
        run["command"] = f"python algos/ppo.py --config benchmarks/small.toml:{table} --seed 1"
        report.write_cell(table, [run], report.RESULTS)
    cells = report.read_cells(report.RESULTS)
    assert named("small") == [("A-v0", "dqn"), ("A-v0", "ppo"), ("x:B-v0", "ppo")]
    assert named("small:ppo") == [("A-v0", "ppo"), ("x:B-v0", "ppo")]
    assert named("A-v0") == [("A-v0", "dqn"), ("A-v0", "ppo")]
    assert named("x:B-v0") == [("x:B-v0", "ppo")]
    for name in ("small:td3", "Nowhere-v0"):
        refused = tool(reference, "small", name)
        assert refused.status == 2 and "small; or of A-v0," in refused.err
        assert f"no results of {name}, only of" in refused.err
    assert not (results / "runs").exists()


def test_our_results_can_all_be_written_by_their_config():
    cells = report.read_cells(report.RESULTS) + report.read_cells(report.RESULTS / "variants")
    for cell in cells:
        assert reference.config_of(cell), cell.about["command"]
        assert cell in reference.chosen(cells, f"{reference.config_of(cell)}:{cell.table}")


def test_variants_have_references_too(results, tool):
    report.write_cell("ppo_lstm", [a_run(1, 3.0)], report.RESULTS / "variants")
    assert "ppo_lstm: 1 seed" in tool(reference, "CartPole-v1", "--runs-dir", "mine").out
