"""Tables and verdicts say what was worked out by hand; cells mix no runs that differ."""

import fnmatch
import hashlib
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import load
import numpy as np
import pandas as pd
import publish
import pytest
import report
import run
import same_numbers
from cells import a_run, cell_named
from conftest import ROOT, only_run
from scipy import stats

ROW = report.read_published()[0]


def published(mean, spread, seeds, steps=100, protocol="greedy", random=22.0):
    """A row like those of published.csv, for [ppo] and [ppo-mine] on CartPole-v1."""
    cause = "ppo: a cause; ppo-mine: too few steps"
    return ROW._replace(
        env="CartPole-v1", tables="ppo ppo-*", protocol=protocol, mean=mean, steps=steps,
        spread=math.nan if spread is None else spread, seeds=seeds, published_env="CartPole-v0",
        source="a paper", url="https://example.org", note="", causes=cause, random=random,
        same_settings="", method="",
    )  # fmt: skip


def test_the_interval_is_welch_s_where_the_numbers_of_seeds_differ():
    ours, theirs = np.array([3.0, 4.0, 5.0]), np.arange(11.0)
    low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
    row = published(theirs.mean(), theirs.std(ddof=1), len(theirs))
    assert report.half_width(ours, row) == pytest.approx((high - low) / 2)


def test_verdicts():
    cases = [
        # mean 4, standard deviation 1, t(2) = 4.303: half width 4.303 / sqrt(3) = 2.484
        ([3, 4, 5], published(1.5, None, 3), "above"),
        ([3, 4, 5], published(6.5, None, 3), "below"),
        ([3, 4, 5], published(1.55, None, 3), "no difference detected"),
        # a random policy has 22 on CartPole: a fifth of the distance is 3.12, then 56.4
        ([3, 4, 5], published(6.4, None, 3), "too noisy to say"),
        ([300, 301, 302], published(304, None, 3), "slightly below"),
        # one agent: half width 4.303 sqrt(1 + 1 / 3) = 4.968
        ([3, 4, 5], published(-0.97, 9.0, 1), "above"),
        ([3, 4, 5], published(8.97, None, 1), "below"),
        ([3, 4, 5], published(-0.96, 9.0, 1), "too noisy to say"),  # a fifth is 4.59
        ([300, 301, 302], published(300, 9.0, 1), "no difference detected"),
        # Welch: standard error sqrt(1/3 + 1/3), t(4) = 2.776: half width 2.267
        ([3, 4, 5], published(1.7, 1.0, 3), "above"),
        ([3, 4, 5], published(6.3, 1.0, 3), "below"),
        ([3, 4, 5], published(1.8, 1.0, 3), "no difference detected"),
        # a fifth of the distance is 3.42 and 3.36; the intervals reach down to -3.17 and -3.47
        ([3, 4, 5], published(4.9, 1.0, 3), "no difference detected"),
        ([3, 4, 5], published(5.2, 1.0, 3), "too noisy to say"),
        # where a random policy's return is not known, a fifth of the published one
        ([3, 4, 5], published(4.0, 1.0, 3, random=0.0), "too noisy to say"),
        ([500, 500, 500], published(500.0, 0.0, 1), "no difference detected"),
        ([500, 500, 500], published(499.0, 0.0, 1), "above"),
        ([3, 9], published(-1e9, 1.0, 1), "too few seeds to tell"),
        ([3], published(-1e9, 1.0, 1), "one seed of ours"),
        ([3, 4, 5], published(1.5, 9.0, 1, steps=94), "trained longer"),
        ([3, 4, 5], published(-3, 9.0, 1, steps=95), "above"),  # within 5%
        ([3, 4, 5], published(-3, 9.0, 1, steps=105), "above"),
        ([3, 4, 5], published(-3, 9.0, 1, steps=106), "above, after 94% of its steps"),
        ([3, 4, 5], published(9, 9.0, 1, steps=800), "below, after 12% of its steps"),
    ]
    found = [report.verdict(np.array(ours, float), 100, row) for ours, row, _ in cases]
    assert found == [expected for *_, expected in cases]


def test_interquartile_mean():
    assert report.iqm(np.array([100, 1, 0, 2, 3, 4, 5, 6])) == 3.5  # of 2, 3, 4, 5
    assert report.iqm(np.array([1, 2, 3, 4, 100])) == 3  # of 2, 3, 4
    assert report.iqm(np.array([1, 2, 9])) == 4  # of all


def test_bootstrap_intervals():
    assert report.interval(report.iqm, np.array([1.0, 2, 3, 4])) is None
    assert tuple(report.interval(np.mean, np.ones(5))) == (1, 1)
    # a resample of one 1 and nine 0 has 3 ones or less with probability 0.987, 2 or less with 0.930
    low, high = report.interval(np.mean, np.eye(10)[0])
    assert (low, high) == pytest.approx((0, 0.3))


def test_probability_of_improvement():
    assert report.improvement(np.array([1, 2]), np.array([1, 0])) == 3.5 / 4
    low, high = report.interval(report.improvement, np.arange(5.0), np.arange(6.0, 13.0))
    assert (low, high) == (0, 0)


def test_training_return():
    scalars = {
        "charts/episodic_return": [(500, 10.0), (1000, 20.0)],
        "charts/episodic_length": [(500, 100.0), (1000, 250.0)],
    }
    points = report.training_episodes(scalars, one_a_point=False)
    assert points == [(500, 10.0, 5.0), (1000, 20.0, 2.0)]
    assert report.last_episodes(points, count=3) == (2 * 20 + 1 * 10) / 3
    assert report.last_episodes(points, count=100) == (2 * 20 + 5 * 10) / 7
    # 40 steps to a window: (0, 40], (40, 80], ...
    points = [(40, 1.0, 1.0), (41, 2.0, 1.0), (80, 5.0, 2.0), (4000, 7.0, 1.0)]
    assert report.windows(points, 4000) == {40: 1, 80: 4, 4000: 7}


def test_a_cell_comes_back_from_its_files(results):
    (cell,) = report.read_cells(report.RESULTS)
    assert cell.values("greedy").tolist() == [3, 4, 5]
    assert cell.values("training").tolist() == [1.5, 2, 2.5]
    assert cell.values("best").tolist() == [10, 20, 30]
    steps, returns = cell.curve("training")  # where all seeds have one
    assert steps.tolist() == [100] and returns.tolist() == [[2], [4], [4]]
    for text in ("{", "{}", "[]", "[" * 100_000):
        (report.RESULTS / "CartPole-v1-ppo-mine.json").write_text(text)
        with pytest.raises(report.UserError, match="cannot be read as a cell"):
            report.read_cells(report.RESULTS)


def test_the_tables(results, monkeypatch):
    rows = [published(7.5, 1.0, 5, steps=150_000), published(9.5, 9.0, 1, steps=103)]
    rows.append(published(1.9, 0.5, 3, protocol="training")._replace(note="a note", steps=99_000))
    (cell,) = report.read_cells(report.RESULTS)

    def columns(rows):
        line = report.results_table([cell], rows).splitlines()[-1]
        return [column.strip() for column in line.strip("|").split("|")]

    link = "[a paper](https://example.org)"
    command = "python algos/ppo.py --seed 1 --gamma 0.9"
    assert columns(rows) == [
        "CartPole-v1", "ppo-mine †", "100", "3 (1-3)", "4.0 ± 1.0", "",
        f"9.5 (1 agent, 0k, v0), {link}",  # its spread is over episodes
        "below: too few steps", "2.0", f"`{command}`",
    ]  # fmt: skip
    trained = "1.9 ± 0.50 (3 seeds, 99k, v0)"
    verdict = "no difference detected, after 0% of its steps"
    theirs = f"{trained}, training: ours 2.0 ± 0.50, {link}"
    assert columns(rows[2:])[6:8] == [theirs, verdict]
    assert columns([])[6:8] == ["", ""]
    lines = [publish.short_tables([cell], part).splitlines()[-1] for part in (rows, rows[2:])]
    begin, ours = "| CartPole-v1 | ppo-mine † |", "(3 seeds, 0k) |"
    assert lines == [
        f"{begin} greedy | 4.0 ± 1.0 {ours} 9.5 (1 agent, 0k, v0, a paper) | below | 2.0 |",
        f"{begin} training | 2.0 ± 0.50 {ours} {trained[:-1]}, a paper) | {verdict} | 2.0 |",
    ]
    monkeypatch.setattr(report, "read_published", lambda: rows)
    path = report.RESULTS / "verdicts.csv"
    verdicts = pd.read_csv(io.StringIO(report.documents(report.RESULTS)[path]))
    assert verdicts["published"].tolist()[0] == "7.5 ± 1.0 (5 seeds, 150k, v0)"
    assert verdicts["ours is"][0].startswith("below, after 0% of")
    assert verdicts["source"].tolist() == ["a paper", "a paper", "a paper, a note"]
    # flags that change no number are left out: those of a folder, evaluations and default threads
    cell.about["command"] += " --exp-name mine --eval-frequency 5 --torch-threads 1"
    for threads, words in {1: "", 2: " --torch-threads 1"}.items():
        cell.about["args"]["torch_threads"] = threads
        assert columns(rows)[-1] == f"`{command}{words}`"
    other = report.Cell({"runs": [{"seed": seed} for seed in (2, 5, 6, 7, 11, 12)]}, None)
    assert report.seeds_of(other) == "6 (2, 5-7, 11-12)"


def test_the_published_row_that_is_most_like_a_cell(results):
    """Ours has 100 steps. Each row is more like it than all that follow."""
    (cell,) = report.read_cells(report.RESULTS)
    row = published(1.0, None, 3, 300)
    order = [
        row._replace(same_settings="ppo-mine", steps=900, seeds=1, protocol="training"),
        row._replace(steps=105),  # 5%: as near as can be
        row._replace(steps=130),
        row,
        row._replace(steps=100, seeds=1),
        row._replace(steps=100, method="DQN", published_env="CartPole-v1"),
        row._replace(steps=100, published_env="CartPole-v1, sticky"),
        row._replace(steps=80),  # no verdict by so few steps
        row._replace(steps=400),
    ]
    for i, best in enumerate(order):
        assert report.nearest(cell, [*order[:i:-1], best]) is best
    twins = [row._replace(mean=2.0, steps=95), row._replace(mean=3.0, steps=100, seeds=9)]
    assert report.nearest(cell, twins).mean == 2.0  # the first in the file
    others = [row._replace(tables="dqn"), row._replace(env="Acrobot-v1")]
    assert report.nearest(cell, others) is None


def test_a_changed_task_has_no_verdict(results):
    (cell,) = report.read_cells(report.RESULTS)
    rows = [published(1.5, None, 3), published(1.5, None, 3)._replace(published_env="X, sticky")]

    def verdicts(**args):
        changed = report.Cell(cell.about | {"args": args}, cell.returns)
        return [report.verdict_on(changed, r) for r in rows if report.is_for(r, changed)]

    assert verdicts() == verdicts(env_kwargs="{}") == ["above", "another task"]
    assert verdicts(sticky_actions=0.25) == ["another task", "above"]
    assert verdicts(env_kwargs='{"enable_wind": true}') == []


def test_the_easiest_environment_comes_first():
    names = ["ALE/Pong-v5", "LunarLander-v3", "Mine-v0", "CartPole-v1", "ALE/Alien-v5"]
    expected = ["CartPole-v1", "LunarLander-v3", "Mine-v0", "ALE/Pong-v5", "ALE/Alien-v5"]
    assert sorted(names, key=report.difficulty) == expected


def test_a_cell_of_another_script_is_marked(results, tmp_path, monkeypatch, capsys):
    (cell,) = report.read_cells(report.RESULTS)
    for script, files in {
        "ppo_lstm": ["ppo", "ppo_lstm"],
        "dqn_mask": ["dqn", "dqn_mask", "ppo_mask"],
    }.items():
        code = b"".join((ROOT / "algos" / f"{file}.py").read_bytes() for file in files)
        assert report.script_hash(script) == hashlib.sha256(code).hexdigest()
    monkeypatch.setattr(load, "__file__", str(tmp_path / "load.py"))
    monkeypatch.syspath_prepend(tmp_path)
    for name, error in (("imports", "import not_there"), ("misspelt", "1 +")):
        (tmp_path / f"{name}.py").write_text(f"import ppo\n{error}\nppo.main()\n")
        assert report.script_hash(name) is None
        assert f"{name}.py cannot be compared with its runs: " in capsys.readouterr().err
    for today, table in (("5c41", "ppo-mine"), (None, "ppo-mine"), ("07e4", "ppo-mine †")):
        monkeypatch.setattr(report, "script_hash", lambda algo, today=today: today)
        assert cell.marked_table == table
    cell.about["runs"][2]["script"] = "07e4"  # some of them
    monkeypatch.setattr(report, "script_hash", lambda algo: "5c41")
    assert cell.marked_table == "ppo-mine †"


def cell_of(table: str, seeds, config="a.toml:ppo", script="5c41", steps=100, **args):
    runs = [a_run(seed, float(seed), **args) | {"script": script} for seed in seeds]
    for each in runs:
        each["command"] = f"python algos/ppo.py --config {config} --seed {each['seed']}"
        each["result"] |= {"steps": steps}
    report.write_cell(table, runs, report.RESULTS)
    return cell_named(table)


def test_few_seeds_are_joined_by_those_of_the_same_settings(results):
    few = cell_of("ppo", (1, 2), device="cpu")
    others = [
        cell_of("ppo-gpu", (3, 4), device="cuda", script="07e4", gone=1),
        cell_of("ppo-again", (2, 5)),  # seed 2 is there
        cell_of("ppo-gamma", (6, 7), gamma=0.5),
        cell_of("ppo-b", (8, 9), config="b.toml:ppo"),
    ]
    joined = publish.pooled(few, others)
    assert joined.seeds == [1, 2, 3, 4] and joined.values("greedy").tolist() == [1, 2, 3, 4]
    assert report.minutes(joined) == "1.5, 3.5 (GPU)" and few.seeds == [1, 2]
    assert report.minutes(cell_of("ppo-uneven", (1, 2, 12))) == "2.0"
    enough = cell_of("ppo-five", range(11, 16))
    assert publish.pooled(enough, others) is enough


def test_of_an_algorithm_todays_cell_or_that_with_the_most_seeds_is_shown(results):
    rows = [published(1.5, None, 3)._replace(tables="ppo-b*")]

    def shown(*cells):
        return [cell.table for cell in publish.main_cells(list(cells), [], rows)]

    short, more = cell_of("ppo", range(5)), cell_of("ppo-more-seeds", range(6))
    assert shown(short, more) == ["ppo-more-seeds"]
    beside, longer = cell_of("ppo-beside", range(6)), cell_of("ppo-b-longer", range(6), steps=200)
    assert shown(more, beside) == ["ppo-beside"] and shown(beside, longer) == ["ppo-b-longer"]
    assert shown(longer, cell_of("a2c-4m", range(9))) == ["ppo-b-longer"]
    script = report.script_hash("ppo")
    today, few = (cell_of(f"ppo-today-{n}", range(n), script=script) for n in (5, 4))
    assert shown(today, few, longer) == ["ppo-today-5"] and shown(few, longer) == ["ppo-b-longer"]
    sac, tqc = cell_of("td3_sac-x", range(5)), cell_of("td3_sac-y", range(5), quantiles=25)
    for cell in (sac, tqc):
        cell.about["algo"] = "td3_sac"
    found = publish.main_cells([short], [more, tqc, sac], rows)  # of variants SAC and TQC alone
    assert [(cell.table, cell.algorithm) for cell in found] == [
        ("ppo", "ppo"), ("td3_sac-x", "sac"), ("td3_sac-y", "tqc")
    ]  # fmt: skip


def test_atari_stands_apart_and_says_what_more_steps_give(results):
    cells = [cell_of("ppo", range(5)), cell_of("ppo-pong", range(1, 4))]
    cells[1].about |= {"env_id": "ALE/Pong-v5"}
    row = published(0.5, None, 3)._replace(env="ALE/Pong-v5", published_env="ALE/Pong-v5, sticky")
    row = row._replace(method="MR.Q")
    own = row._replace(method="", steps=10**7, mean=20.4, published_env="Pong")
    tables = publish.short_tables(cells, [row, own]).split("\n\n")
    assert [table.count("\n") for table in tables] == [2, 2] and "| none |" in tables[0]
    budget = "not trained to the published budget (20.4 at 10M, a paper)"
    assert f"(MR.Q, 3 seeds, 0k, sticky, a paper) | another task; {budget} |" in tables[1]
    assert "budget" not in publish.short_tables(cells, [row, own._replace(steps=104)])


def test_returns_over_tasks():
    tasks = np.array([0.0]), np.array([4.0, 1.0, 3.0, 2.0])
    # half of the weight is at 0, an eighth at each of the others: the middle half is a quarter of
    # 0 and an eighth of 1 and of 2
    assert publish.iqm_over_tasks(*tasks) == pytest.approx((0.25 * 0 + 0.125 * 1 + 0.125 * 2) * 2)
    same = np.array([5.0, 1.0, 9.0, 2.0]), np.array([3.0, 8.0, 7.0, 4.0])
    assert publish.iqm_over_tasks(*same) == pytest.approx(report.iqm(np.concatenate(same)))
    assert publish.profile(tasks, [0.0, 2.5]).tolist() == [(0 + 1) / 2, (0 + 0.5) / 2]
    # rliable 1.2.0: three tasks of four seeds, get_interval_estimates with 20,000 resamples
    tasks = [1.1, 0.64, 0.94, 0.84], [0.36, 0.44, -0.11, 0.43], [1.16, 1.37, 1.21, 1.18]
    tasks = [np.array(task) for task in tasks]
    assert publish.iqm_over_tasks(*tasks) == pytest.approx(0.85333333)
    ends = report.interval(publish.iqm_over_tasks, *tasks, least=3)
    np.testing.assert_allclose(ends, (0.743, 0.957), atol=0.01)
    found = publish.profile(tasks, [0.5, 0.9, 1.1])
    assert found.tolist() == pytest.approx([0.66666667, 0.5, 0.33333333])


def test_returns_are_normalised_by_a_random_policy_and_a_reference(results):
    envs = {"CartPole-v1": (22, 500), "LunarLander-v3": (-184, 200), "ALE/Pong-v5": (-20.7, 9.3)}
    cells = []
    for env_id, ends in envs.items():
        cell = cell_of("ppo", range(3))
        cell.returns["return"] = cell.returns["seed"].map(lambda i, e=ends: [*e, sum(e) / 2][i])
        cells.append(report.Cell(cell.about | {"env_id": env_id}, cell.returns))
    found = publish.normalised_returns(cells)
    assert list(found) == ["ppo"] and list(found["ppo"]) == list(envs)
    for returns in found["ppo"].values():
        np.testing.assert_allclose(returns, [0, 1, 0.5], atol=1e-9)
    assert publish.normalised_returns(cells[:2]) == {}  # too few tasks
    cells[0] = cell_of("ppo-two", (1, 2))
    assert publish.normalised_returns(cells) == {}  # too few seeds


def test_a_report_keeps_what_is_better(results, capsys):
    table = report.read_toml(ROOT / "benchmarks" / "cartpole.toml")["ppo"]

    def runs(count, config="benchmarks/cartpole.toml:ppo", **changed):
        command = f"python algos/ppo.py --config {config} --seed 1"
        args = table | changed
        own = {"command": command, "env_id": args["env_id"]}
        return [a_run(seed, 3.0, **args) | own for seed in range(count)]

    newer = [{**run, "versions": {"torch": "3"}} for run in runs(2)]
    publish.add_runs("ppo", runs(2), report.RESULTS)
    publish.add_runs("ppo", runs(1, env_id="Acrobot-v1"), report.RESULTS)  # trained elsewhere
    publish.add_runs("ppo", newer[:1], report.RESULTS)
    assert "CartPole-v1-ppo stays, with 2 seeds and not 1" in capsys.readouterr().out
    publish.add_runs("ppo", newer, report.RESULTS)
    assert "replaces 2 seeds of other settings or versions" in capsys.readouterr().out
    (typed,) = runs(1, norm_adv=False)
    typed["command"] += " --eval-frequency 500 --no-norm-adv"
    left_out = {
        "ppo with total_timesteps=512 is not as in": ("ppo", *runs(1, total_timesteps=512)),
        "ppo with norm_adv=False is not as in": ("ppo", typed),
        "not of a table [ppo] in": ("ppo", *runs(1, f"{results}/x.toml:ppo")),
        "not of a table [ppo-mine] in": ("ppo-mine", *runs(1)),
    }
    for text, arguments in left_out.items():
        assert not publish.is_of_table(*arguments)
        assert capsys.readouterr().out.startswith(text)


@pytest.mark.parametrize("flag", ["nothing-here", "--from-cs"])
def test_a_refused_command_writes_nothing(flag, tmp_path, tool):
    """A flag is not completed either: run.py would take --seed 3 for --seeds 3."""
    refused = tool(report, flag, "--out", "new")
    assert refused.status == 2 and flag in refused.err
    assert list(tmp_path.iterdir()) == []


def begun(runs, *names):
    """Folders in which files say that a run is finished, of which report.read_run is replaced."""
    for name in names:
        (runs / name).mkdir(parents=True)
        for file in ("args.json", "result.json"):
            (runs / name / file).touch()


def test_seeds_of_another_day_join_a_cell(results, monkeypatch):
    path = report.cell_path("CartPole-v1", "ppo-mine", report.RESULTS)
    before = path.read_text(), path.with_suffix(".json").read_text()
    same = report.earlier_seeds([a_run(9, 0.0)], path)
    report.write_cell("ppo-mine", same, report.RESULTS)
    # nothing is lost on the way from the files and back
    assert (path.read_text(), path.with_suffix(".json").read_text()) == before
    assert report.earlier_seeds([a_run(9, 0.0, gamma=0.5)], path) is None
    assert report.earlier_seeds([a_run(9, 0.0, eval_frequency=7)], path) == same
    assert report.earlier_seeds([{**a_run(9, 0.0), "versions": {"torch": "3"}}], path) is None
    assert report.earlier_seeds([{**a_run(9, 0.0), "script": "07e4"}], path) is None

    finals = {"2": 44.0, "5": 7.0}  # seed 2 once more, seed 5 for the first time
    monkeypatch.setattr(report, "read_run", lambda x: a_run(int(x.name), finals[x.name]))
    monkeypatch.setattr(publish, "is_of_table", lambda table, run: True)
    folder = results / "ppo-mine" / "CartPole-v1" / "ppo"
    begun(folder, *finals)
    monkeypatch.chdir(folder)  # a relative path will do
    assert report.collect(Path("."), report.RESULTS, publish.add_runs) == []
    (cell,) = report.read_cells(report.RESULTS)
    assert cell.seeds == [1, 2, 3, 5] and cell.values("greedy").tolist() == [3, 44, 5, 7]


def test_seeds_of_scripts_that_train_the_same_share_a_cell(results):
    """Here by way of a third script, between the two."""
    path = report.cell_path("CartPole-v1", "ppo", report.RESULTS)
    command = "python algos/ppo.py --config benchmarks/cartpole.toml:ppo --seed 1"
    # a flag that the new script no longer has
    old = [{**a_run(seed, 3.0, gone=1), "command": command} for seed in (1, 2)]
    report.write_cell("ppo", old, report.RESULTS)
    new = {**a_run(3, 4.0, exp_name="mine", config="x"), "command": command, "script": "07e4"}

    def record(name, *scripts):
        records = report.RESULTS / report.SAME_NUMBERS
        same_numbers.record(records, name, "ppo", list(scripts), "HEAD", "f00")

    record("cartpole:ppo", "5c41", "3a1f")
    record("cartpole:dqn", "3a1f", "07e4")
    assert report.earlier_seeds([new], path) is None
    record("cartpole:ppo", "07e4", "3a1f")
    assert report.same_numbers(new, "5c41")
    for flag in ("--env-id Acrobot-v1", "--env_id=Acrobot-v1", "--gamma 0.5"):
        assert not report.same_numbers({**new, "command": f"{command} {flag}"}, "5c41")
    report.write_cell("ppo", [*report.earlier_seeds([new], path), new], report.RESULTS)
    runs = cell_named("ppo").about["runs"]
    assert [run["script"] for run in runs] == ["5c41", "5c41", "07e4"]
    assert report.earlier_seeds([{**new, "args": new["args"] | {"gone": 2}}], path) is None


def test_seeds_join_a_cell_without_training_episodes(results):
    run = a_run(1, 0.0)
    run["returns"]["training"] = {}
    report.write_cell("ppo", [run], report.RESULTS)
    path = report.cell_path("CartPole-v1", "ppo", report.RESULTS)
    (again,) = report.earlier_seeds([a_run(9, 0.0)], path)
    assert again["returns"] == run["returns"]


def test_a_cell_with_a_seed_that_ended_no_training_episode(results, monkeypatch):
    runs = [a_run(seed, seed + 2.0) for seed in (1, 2, 3)]
    runs[1]["returns"]["last100"] = {100: math.nan}
    report.write_cell("ppo", runs, report.RESULTS)
    np.testing.assert_equal(cell_named("ppo").values("training"), [1.5, math.nan, 2.5])
    rows = [published(1.9, 0.5, 3, protocol="training"), published(1.9, 0.5, 3)]
    monkeypatch.setattr(report, "read_published", lambda: rows)
    verdicts = report.documents(report.RESULTS)[report.RESULTS / "verdicts.csv"]
    found = pd.read_csv(io.StringIO(verdicts))[["table", "protocol"]].values.tolist()
    assert sorted(found) == [["ppo", "greedy"], ["ppo-mine", "greedy"], ["ppo-mine", "training"]]


def test_a_bad_cell_does_not_stop_the_others(results, monkeypatch, tool):
    """Two of its runs differ; nor does a run that cannot be read. Studies of tune.py are left out:
    they have the table once more.
    """
    gammas = {"ppo-bad/CartPole-v1/ppo/1": 0.9, "ppo-bad/CartPole-v1/ppo/2": 0.5}
    gammas |= {"ppo-good/CartPole-v1/ppo/1": 0.9, "tune/x/ppo-good/CartPole-v1/ppo/1": 0.9}
    gammas |= {"ppo-good/CartPole-v1/ppo/2": None}
    begun(results / "runs", *gammas)
    (results / "runs" / "tune" / "x" / "optuna.log").touch()
    (results / "study.md").touch()  # of something else

    def read_run(folder):
        gamma = gammas[str(folder.relative_to("runs"))]
        if gamma is None:
            raise report.UserError("broken")
        return a_run(int(folder.name), 3.0, gamma=gamma)

    monkeypatch.setattr(report, "read_run", read_run)
    ended = tool(report, "runs", "--out", "out")
    assert ended.status == 2 and "gamma=0.5, runs/1 0.9" in ended.err and "broken" in ended.err
    (cell,) = report.read_cells(results / "out")
    assert cell.table == "ppo-good" and cell.seeds == [1]
    assert "| ppo-good † |" in (results / "out" / "README.md").read_text()


def test_a_run_that_lost_a_part_of_its_curves_is_refused(command, tmp_path):
    command("ppo", "--total-timesteps 2048 --eval-frequency 512")
    folder = only_run(tmp_path)
    whole = report.read_run(folder)
    assert sorted(whole["returns"]["greedy"]) == [512, 1024, 1536, 2048]

    def refused(name, content, why=f"{folder} cannot be read"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(report.UserError, match=why):
            report.read_run(folder)
        (folder / name).write_bytes(before)

    def resumed(**versions):
        later = {"step": 1024, "versions": saved["versions"] | versions}
        return json.dumps(saved | {"resumed": [later]})

    diverged = whole["result"] | {"eval_return_mean": math.nan}
    refused("result.json", json.dumps(diverged), "its evaluation is not finite")
    saved = json.loads((folder / "args.json").read_text())
    for name, value in {"script": "07e4", "torch": "0.1"}.items():
        text = f"resumed at step 1024 with {name}={value}, begun with .*: a run of no single script"
        refused("args.json", resumed(**{name: value}), text)
    for field, value in {"args": 5, "command": "'"}.items():
        refused("args.json", json.dumps(saved | {field: value}))
    refused("args.json", json.dumps(saved | {"command": None}), "command or device is no text")
    for field, value in {"sticky_actions": None, "device": [], "quantiles": "25"}.items():
        refused("args.json", json.dumps(saved | {"args": saved["args"] | {field: value}}))
    refused("args.json", "{")
    wrong = {"seed": "2", "seconds": "x", "eval_return_mean": None, "env_id": None, "algo": []}
    for field, value in [*wrong.items(), ("env_id", "a\0b")]:
        refused("result.json", json.dumps(whole["result"] | {field: value}))
    refused("result.json", "[]")
    (events,) = folder.glob("events.*")
    content = events.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 255
    for damaged in (content[: len(content) // 2], bytes(flipped)):
        refused(events.name, damaged, "lack the evaluation")
    (folder / "args.json").write_text(resumed())
    assert report.read_run(folder) == whole


@pytest.mark.parametrize("clock", ["goes on", "goes back"])
def test_what_followed_the_checkpoint_of_a_resumed_run_is_no_part_of_its_curves(clock, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for run_of, (steps, purge) in enumerate([((1, 2, 3, 4), None), ((3, 4, 5), 3)]):
        with SummaryWriter(tmp_path, purge_step=purge, filename_suffix=f".{run_of}") as writer:
            for step in steps:
                writer.add_scalar("losses/x", 10 * run_of + step, step)
                if step < 3:
                    writer.add_scalar("losses/y", step, step)
    if clock == "goes back":  # the name of the later file then comes first
        (later,) = tmp_path.glob("events.out.tfevents.*.1")
        later.rename(tmp_path / "events.out.tfevents.0.1")
    scalars, _ = report.read_events(tmp_path)
    assert scalars["losses/x"] == [(1, 1), (2, 2), (3, 13), (4, 14), (5, 15)]
    assert scalars["losses/y"] == [(1, 1), (2, 2)]


def test_cells_have_the_settings_of_their_tables():
    for cell in report.read_cells(ROOT / "benchmarks" / "results"):
        run = {k: cell.about[k] for k in ("env_id", "args", "command")} | {"folder": "here"}
        assert publish.is_of_table(cell.table, run), cell.table


def test_arguments_of_the_environment_are_a_setting_of_a_table(tmp_path, monkeypatch):
    """A table in the config, JSON in args.json."""
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    text = "[ppo]\nenv_kwargs = { gravity = -5.0 }\n"
    (tmp_path / "benchmarks" / "mine.toml").write_text(text)
    run = {"command": "python algos/ppo.py --config benchmarks/mine.toml:ppo", "folder": "here"}
    for kwargs, is_of_table in (('{"gravity": -5.0}', True), ("{}", False)):
        here = run | {"args": {"env_kwargs": kwargs}}
        assert publish.is_of_table("ppo", here) is is_of_table


def test_a_cell_refuses_a_seed_that_is_there_twice(results):
    with pytest.raises(report.UserError, match="the same seed twice"):
        report.write_cell("ppo", [a_run(1, 3.0), a_run(1, 3.0)], results)


def test_a_cell_refuses_runs_that_ended_at_another_step(results):
    runs = [a_run(1, 3.0), a_run(2, 3.0)]
    runs[1]["result"]["steps"] = 50
    with pytest.raises(report.UserError, match="runs/2 ended after 50 steps, runs/1 after 100"):
        report.write_cell("ppo", runs, results)


def test_large_returns_differ_in_a_cell(results):
    report.write_cell("ppo", [a_run(1, 1_000_000.5), a_run(2, 1_000_001.0)], results)
    (cell,) = report.read_cells(results)
    assert cell.values("greedy").tolist() == [1_000_000.5, 1_000_001]


def test_runs_behind_a_link_are_found_once(tmp_path):
    for seed in ("1", "2"):
        folder = tmp_path / "scratch" / "ppo" / "CartPole-v1" / "ppo" / seed
        folder.mkdir(parents=True)
        for name in ("args.json", "result.json"):
            (folder / name).touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ppo").symlink_to(tmp_path / "scratch" / "ppo")
    (tmp_path / "scratch" / "ppo" / "up").symlink_to(tmp_path)  # without end
    (tmp_path / "runs" / "latest").symlink_to(tmp_path / "scratch" / "ppo")
    for folder in ("runs", "."):
        (found,) = report.finished_runs(tmp_path / folder).values()
        assert [path.name for path in found] == ["1", "2"]


def test_a_damaged_cell_is_named_and_another_file_left_alone(results):
    report.write_cell("ppo", [a_run(1, 3.0), a_run(2, 3.0)], results)
    (results / "vega.json").write_text("{}")
    assert len(report.read_cells(results)) == 1
    path = report.cell_path("CartPole-v1", "ppo", results)
    lines = [line for line in path.read_text().splitlines() if ",2," not in line]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(report.UserError, match="no greedy return of seed 2"):
        report.read_cells(results)


def test_the_documents_hold_what_the_results_say():
    texts = publish.documents() | report.documents(report.RESULTS / "variants")
    for path, text in texts.items():  # but for the marks of earlier scripts, which any edit changes
        written = path.read_text("utf-8")
        assert written.replace(" †", "") == text.replace(" †", ""), f"make report rewrites {path}"


def test_a_published_mean_over_the_end_of_training_stands_beside_the_same_of_ours():
    """Two seeds of 200 steps, a point of the training curve every 50, the last two in 40%."""
    rows = [
        ("training", seed, step, value)
        for seed, values in ((3, [9, 1, 2, 4]), (5, [9, 3, 5, 9]))
        for step, value in zip((50, 100, 150, 200), values, strict=True)
    ]
    returns = pd.DataFrame(rows, columns=["kind", "seed", "step", "return"])
    cell = report.Cell({"steps": 200, "runs": [{"seed": 3}, {"seed": 5}]}, returns)
    assert cell.values("training, last 40%").tolist() == [3, 7]
    assert cell.values("training, last 25%").tolist() == [4, 9]
    # each seed's own points: episodes do not end at the same steps
    odd = pd.DataFrame([("training", 5, 175, 3)], columns=returns.columns)
    cell = report.Cell(cell.about, pd.concat([returns.query("seed != 5 or step != 150"), odd]))
    assert cell.values("training, last 40%").tolist() == [3, 6]
    rows = [("training", 3, step, step) for step in range(1, 301)]
    cell.returns = pd.DataFrame(rows, columns=returns.columns)
    cell.about["steps"] = 300
    assert cell.values("training, last 33%")[0] == 251  # 202 to 300
    cell.about["steps"] = 400
    assert np.isnan(cell.values("training, last 25%")).all()  # no point, but no warning either


def test_published_rows_are_whole():
    """Each can stand beside a table of ours."""
    rows = report.read_published()
    assert len({(r.env, r.tables, r.protocol, r.source, r.mean) for r in rows}) == len(rows)
    scales = pd.read_csv(ROOT / "benchmarks" / "random.csv", index_col="env")
    assert not scales.isna().any(axis=None) and (scales["reference"] > scales["return"]).all()
    paths = (ROOT / "benchmarks").glob("*.toml")
    tables = {table for path in paths for table in report.read_toml(path)}
    for row in rows:
        assert any(fnmatch.filter(tables, pattern) for pattern in row.tables.split()), row
        assert row.same_settings in {"", *tables}
        assert row.env in {"Pendulum-v1", "panda_gym:PandaReach-v3", *scales.index}
        assert re.fullmatch(r"greedy|best|training(, last \d+%)?", row.protocol), row
        assert row.url.startswith("https://")
        assert row.source and row.tables and row.seeds >= 1 and row.steps >= 10_000


def test_one_seed_is_no_probability(results):
    report.write_cell("ppo", [a_run(1, 3.0)], report.RESULTS)
    report.write_cell("ppo-other", [a_run(seed, 9.0) for seed in (1, 2, 3)], report.RESULTS)
    pairs = report.improvements(report.read_cells(report.RESULTS))
    assert pairs.values.tolist() == [
        ["CartPole-v1", "ppo-mine", "ppo-other", "0.00", "", "", 100, 100]
    ]


def test_files_of_any_editor_are_read(tmp_path):
    """A byte order mark, Windows' line ends, accents and spaces."""
    for codec in ("utf-8", "utf-8-sig"):
        (tmp_path / "é è.toml").write_bytes('[ppo]\r\n# été\r\nenv_id = "é v0"\r\n'.encode(codec))
        assert report.read_toml(tmp_path / "é è.toml") == {"ppo": {"env_id": "é v0"}}


def test_a_report_of_nothing_says_so(tmp_path, tool):
    assert tool(report, "--from-csv", "--out", "deep/down").status == 0
    assert "No results yet" in (tmp_path / "deep" / "down" / "README.md").read_text("utf-8")


def test_a_readme_of_ones_own_stays(tmp_path, tool):
    (tmp_path / "README.md").write_text("# My thesis")
    assert "choose another --out" in tool(report, "--from-csv", "--out", ".").err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_report_in_a_plain_c_locale(tmp_path):
    """Cells as an editor of Windows saves them, in a folder with an accent and a space."""
    folder = tmp_path / "résultats du soir"
    folder.mkdir()
    run = a_run(1, 3.0)
    run["command"] += " --exp-name été"
    report.write_cell("ppo-été", [run, {**run, **a_run(2, 4.0)}], folder)
    for path in folder.iterdir():
        content = path.read_text("utf-8").replace("\n", "\r\n")
        path.write_bytes(content.encode("utf-8-sig"))
    command = [sys.executable, ROOT / "benchmarks" / "report.py", "--from-csv", "--out", folder]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run(command, check=True, env=os.environ | plain, stdout=subprocess.DEVNULL)
    assert "| ppo-été † | 100 | 2 (1-2) |" in (folder / "README.md").read_text("utf-8")
    assert (folder / "curves.png").exists()


def test_the_commands_whose_numbers_are_compared_parse(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name, command in same_numbers.commands([]).items():
        script, *flags = f"{command} {same_numbers.EVERY}".split()
        args = run.script_args(script, flags)
        within = args["checkpoint_frequency"] < args["total_timesteps"]
        assert within or name in same_numbers.MORE, name


def test_a_published_return_of_the_same_task_is_a_dashed_line(results, monkeypatch):
    figures = []
    monkeypatch.setattr(report, "save", lambda figure, path: figures.append(figure))
    row = published(7.0, None, 3)
    cells = report.read_cells(report.RESULTS)
    for rows in ([row], [row._replace(published_env="X, sticky")], []):
        report.draw(cells, rows, Path("x.png"))
    heights = [
        [list(line.get_ydata()) for axis in figure.axes for line in axis.lines
         if line.get_linestyle() == "--"]
        for figure in figures
    ]  # fmt: skip
    assert heights == [[[7, 7]], [], []]
