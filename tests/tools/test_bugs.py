"""The collection of mistakes: data that fits the scripts, and a sample of what `make bugs` does."""

import importlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT, parse

sys.path.insert(0, str(ROOT / "bugs"))
import check

import pictures

CATALOGUE = check.load()
BUGS = {bug["name"]: bug for bug in CATALOGUE["bug"]}
PICTURED = [name for name in BUGS if "picture" in BUGS[name]]


def test_there_are_as_many_names_as_bugs():
    assert len(BUGS) == len(CATALOGUE["bug"]) > 100


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_fits_its_script(name):
    bug = BUGS[name]
    assert check.broken(bug) != (ROOT / "algos" / bug["file"]).read_text()
    assert {"story", "source", "symptom", "test"} <= bug.keys()
    assert bug["seen"] in CATALOGUE["seen"]
    # test_copies.py would stop any change; what counts is who stops it by what it does
    file, function = bug["test"].split("[")[0].split("::")
    assert file != "tests/plumbing/test_copies.py"
    assert f"def {function}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("name", BUGS)
def test_its_flags_are_those_of_the_script(name):
    script = BUGS[name]["file"].removesuffix(".py")
    module, parent = importlib.import_module(script), importlib.import_module(script.split("_")[0])
    args_class = module.RunArgs if module is parent else module.Args  # a variant's has all of them
    parent.parse_args(script, args_class, BUGS[name]["flags"])


@pytest.mark.parametrize("name", PICTURED)
def test_a_picture_is_made_of_its_points_and_those_of_its_flags(name):
    bug = BUGS[name]
    module = importlib.import_module(bug["file"].removesuffix(".py"))
    args = parse(module, bug["picture"]["flags"])
    points = pictures.read_points(pictures.csv_of(bug), pictures.first_row(bug))
    assert points, f"{name}.csv has other flags, run: python bugs/pictures.py"
    for curves in points.values():
        assert len(curves) >= 5 and curves.keys() == set(check.SEEDS)
        assert all(max(curve) == args.total_timesteps for curve in curves.values())
    picture = (pictures.PICTURES / f"{name}.png").read_bytes()
    assert len(picture) < 60_000
    assert pictures.digest(bug).encode() in picture, "run: python bugs/pictures.py --draw"
    story = check.README.read_text().split(f"\n### {name}\n")[1].split("\n### ")[0]
    assert f"](pictures/{name}.png)" in story and len(bug["picture"]["caption"]) > 20


def test_there_are_pictures_of_all_kinds_and_no_others():
    assert len(PICTURED) >= 12
    assert {path.stem for path in pictures.CURVES.iterdir()} == set(PICTURED)
    assert {path.stem for path in pictures.PICTURES.iterdir()} == set(PICTURED)


def test_a_curve_is_the_mean_over_stretches_of_the_run(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "runs" / "env" / "algo" / "run") as writer:
        for step, value in ((0, 9), (1, 1), (40, 3), (41, 5), (999, 7), (1000, 8)):
            writer.add_scalar("tag", value, step)
            writer.add_scalar("other", 0, step)
    # 25 stretches of 40 steps; the first begins behind step 0
    assert pictures.curve(tmp_path, "tag", 1000) == {40: 2, 80: 5, 1000: 7.5}


@pytest.mark.parametrize("flags, status", [(("--", "--gama", "1"), 1), (("--seeds", "0"), 2)])
def test_runs_that_all_fail_are_no_success(flags, status):
    command = [sys.executable, ROOT / "bugs" / "run.py", "gae-end-one-step-off", *flags]
    assert subprocess.run(command, capture_output=True).returncode == status


def test_the_readme_opens_with_ten_mistakes_and_a_table_by_symptom():
    _, ten, symptoms, *_ = check.README.read_text().split("\n## ")
    costly = {name for name in BUGS if "costly" in BUGS[name]}
    assert len(costly) == 10 == len(re.findall(r"^\d+\. \*\*\[", ten, re.MULTILINE))
    assert set(re.findall(r"\]\(#([\w-]+)\)", ten)) == costly
    assert set(re.findall(r"pictures/([\w-]+)\.png", ten)) == costly & set(PICTURED)
    listed = " ".join(CATALOGUE["symptoms"].values()).split()
    assert set(listed) <= BUGS.keys() and len(set(listed)) > 50
    assert all(f"[{name}](#{name})" in symptoms for name in listed)


def test_a_text_that_is_not_there_once_is_refused():
    bug = dict(BUGS["gae-across-episodes"], before="import")
    with pytest.raises(ValueError, match=r"times in algos/ppo\.py, not once"):
        check.broken(bug)


def test_the_readme_is_written_from_the_data():
    assert check.README.read_text() == check.readme(CATALOGUE), "run: python bugs/check.py"


def test_a_sample_is_killed_and_a_change_that_is_no_mistake_survives(capsys):
    quick = ("c51-softmax-over-actions", "gae-end-one-step-off", "polyak-the-wrong-way-round")
    healthy = BUGS["gae-across-episodes"]
    harmless = dict(healthy, name="harmless", after=healthy["before"] + "  # the same")
    wrong = dict(healthy, after="decays = gamma * gae_lambda * ~(terminted | truncated)")
    survivors = check.check_all([*(BUGS[name] for name in quick), harmless, wrong])
    _, *rows, last = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["killed"] * 3 + ["SURVIVED"] * 2
    assert survivors == 2 and last.startswith("killed 3 of 5 in ")
