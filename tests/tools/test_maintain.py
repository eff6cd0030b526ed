"""The maintainers' tools refuse wrong input in a line, and record what was compared."""

import json
import runpy
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "maintain"))
import same_numbers

MAINTAIN = ROOT / "benchmarks" / "maintain"
WRONG = {
    "trained.py": "the following arguments are required: runs",
    "trained.py nowhere": "nowhere is no folder",
    "until_solved.py": "the following arguments are required: threshold",
    "mistakes.py no-such-mistake": "no such CSV in docs/pictures/: no-such-mistake",
    "same_numbers.py --jobs 0": "--jobs 0 must be at least 1",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_refused_with_a_line(words, tmp_path, monkeypatch, capsys):
    name, *flags = words.split()
    monkeypatch.setattr(sys, "argv", [name, *flags])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(MAINTAIN / name), run_name="__main__")
    assert exit.value.code == 2
    assert WRONG[words] in capsys.readouterr().err.splitlines()[-1]


def test_of_each_table_the_newest_chain_of_scripts_is_recorded(tmp_path):
    path = tmp_path / "same.json"
    for name, *scripts in ("aab", "acd", "bxy", "ade"):
        same_numbers.record(path, name, "ppo", scripts, "HEAD", "f00")
    found = {old["name"]: old["scripts"] for old in json.loads(path.read_text())}
    assert found == {"a": ["c", "d", "e"], "b": ["x", "y"]}
