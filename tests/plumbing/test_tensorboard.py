"""What TensorBoard shows of runs of all four scripts, asked over HTTP as its page asks."""

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest
from conftest import SCRIPTS, scalars
from test_runs import TAGS

SHORT = {
    "ppo": "--total-timesteps 2048",
    "a2c": "--total-timesteps 2000",
    "dqn": "--total-timesteps 2000 --gradient-steps 1",
    "td3": "--env-id Pendulum-v1 --total-timesteps 600 --learning-starts 200 --batch-size 16 "
    "--hidden-sizes 16 16",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tensorboard")


@pytest.fixture
def runs(server, script, folder, tmp_path):
    """{algorithm: its run folder}, all below folder/runs; trained once for this file."""
    if not (folder / "runs").exists():
        for name in SCRIPTS:
            flags = [*SHORT[name].split(), "--eval-episodes", 2, "--eval-frequency", 500]
            script(name, *flags, "--runs-dir", folder / "runs")
    return {path.parent.name: path for path in folder.glob("runs/*/*/*")}


@pytest.fixture
def ask(runs, folder):
    """ask("scalars/tags") is what TensorBoard answers, from JSON; with `body` it is posted."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder / "runs"]
    command += ["--port", "0", "--load_fast", "false"]  # port 0: any that is free
    log = folder / "log"
    with open(log, "w") as file, subprocess.Popen(command, stderr=file) as process:

        def ask(path, body=None, **query):
            url = f"{address}data/plugin/{path}?{urllib.parse.urlencode(query)}"
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.loads(answer.read())

        try:
            wait_for(lambda: re.search(r"at (http://\S+)", log.read_text()) or process.poll())
            address = re.search(r"at (http://\S+)", log.read_text())[1]
            wait_for(lambda: len(ask("scalars/tags")) == len(runs))
            yield ask
        finally:
            process.kill()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_its_pages_get_the_curves_and_the_hyperparameters(ask, runs):
    # runs by environment and algorithm; every curve, to the last digit of float32
    names = {name: f"{path.parents[1].name}/{name}/{path.name}" for name, path in runs.items()}
    assert sorted(runs) == SCRIPTS and names["td3"].startswith("Pendulum-v1/td3/1-")
    shown = ask("scalars/tags")
    assert shown.keys() == set(names.values())
    for name, run in names.items():
        points = scalars(runs[name])
        expected = {"charts/episodic_return", "charts/episodic_length", "eval/episodic_return"}
        assert {*shown[run]} == expected | {"charts/SPS", *TAGS[name].split()}
        for tag in shown[run].keys() - {"charts/SPS"}:
            curve = {step: value for _, step, value in ask("scalars/scalars", run=run, tag=tag)}
            assert curve and curve == {
                step: pytest.approx(values[0], rel=1e-6)
                for (other, step), values in points.items()
                if other == tag
            }

    # the HParams page: a row to each run, with every argument and the final return
    experiment = ask("hparams/experiment", {"experimentName": ""})
    columns = {info["name"] for info in experiment["hparamInfos"]}
    assert columns >= {"algo", "env_id", "seed", "learning_rate", "clip_coef", "n_atoms", "tau"}
    metric = {"group": "", "tag": "eval/episodic_return"}
    assert metric in [info["name"] for info in experiment["metricInfos"]]
    request = {
        "experimentName": "",
        "allowedStatuses": [f"STATUS_{x}" for x in ("UNKNOWN", "SUCCESS", "FAILURE", "RUNNING")],
        "colParams": [{"metric": metric, "order": "ORDER_DESC"}],
        "startIndex": 0,
        "sliceSize": 100,
    }
    rows = ask("hparams/session_groups", request)["sessionGroups"]
    assert {row["hparams"]["algo"] for row in rows} == set(SCRIPTS) and len(rows) == len(SCRIPTS)
    returns = []
    for row in rows:
        name = row["hparams"]["algo"]
        assert row["name"] == names[name]
        saved = json.loads((runs[name] / "args.json").read_text())["args"]
        for argument, value in saved.items():
            value = str(tuple(value)) if isinstance(value, list) else value
            assert row["hparams"].get(argument) in (value, str(value)), argument
        result = json.loads((runs[name] / "result.json").read_text())
        (value,) = (value for value in row["metricValues"] if value["name"] == metric)
        returns.append(value["value"])
        assert value["trainingStep"] == result["steps"]
        assert value["value"] == pytest.approx(result["eval_return_mean"])
    assert returns == sorted(returns, reverse=True)
