"""The collection of mistakes: data that fits the scripts, and a sample of what `make bugs` does."""

import importlib
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "bugs"))
import check

CATALOGUE = check.load()
BUGS = {bug["name"]: bug for bug in CATALOGUE["bug"]}


def test_there_are_as_many_names_as_bugs():
    assert len(BUGS) == len(CATALOGUE["bug"]) >= 40


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_fits_its_script(name):
    bug = BUGS[name]
    assert check.broken(bug) != (ROOT / "algos" / bug["file"]).read_text()
    assert {"story", "source", "symptom", "test"} <= bug.keys()
    assert bug["seen"] in CATALOGUE["seen"]
    # test_copies.py would stop any change; what counts is who stops it by what it does
    file, function = bug["test"].split("[")[0].split("::")
    assert file != "tests/test_copies.py"
    assert f"def {function}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("name", BUGS)
def test_its_flags_are_those_of_the_script(name):
    module = importlib.import_module(BUGS[name]["file"].removesuffix(".py"))
    module.parse_args(BUGS[name]["flags"])


def test_a_text_that_is_not_there_once_is_refused():
    bug = dict(BUGS["gae-across-episodes"], before="import")
    with pytest.raises(ValueError, match=r"times in algos/ppo\.py, not once"):
        check.broken(bug)


def test_the_readme_is_written_from_the_data():
    assert check.README.read_text() == check.readme(CATALOGUE), "run: python bugs/check.py"
    assert f"has {len(BUGS)} classic mistakes" in (ROOT / "README.md").read_text()


def test_a_sample_is_killed_and_a_change_that_is_no_mistake_survives(capsys):
    quick = ("c51-softmax-over-actions", "gae-end-one-step-off", "polyak-the-wrong-way-round")
    healthy = BUGS["gae-across-episodes"]
    harmless = dict(healthy, name="harmless", after=healthy["before"] + "  # the same")
    survivors = check.check_all([*(BUGS[name] for name in quick), harmless])
    _, *rows, last = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["killed"] * 3 + ["SURVIVED"]
    assert survivors == 1 and last.startswith("killed 3 of 4 in ")
