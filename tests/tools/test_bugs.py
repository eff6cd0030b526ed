"""Mutants fit the scripts, `make bugs` works, and the page of mistakes says what is so."""

import collections
import importlib
import re

import check
import mistakes
import pytest
from conftest import ROOT, parse

MUTANTS = check.load()
# a report, a paper, what others wrote without calling it a mistake, or nobody but us
SOURCE = r"[\w.-]+/[\w.-]+#\d+|(arXiv|doi|(code|documentation|changelog) of) .+|own(: .+)?"
NAMED = {mutant["name"]: mutant for mutant in MUTANTS}
PAGE = (ROOT / "docs" / "when-it-does-not-learn.md").read_text()
ENTRIES = re.findall(r"^```diff\n# algos/(\w+\.py): ([\w-]+)\n(.*?)^```$", PAGE, re.M | re.S)


def what_is_wrong(mutant: dict) -> str | None:
    fields = {"script", "name", "function", "before", "after", "source", "test"}
    if mutant.keys() != fields:
        return f"the fields are {sorted(mutant)}"
    if not all(re.fullmatch(SOURCE, part) for part in mutant["source"].split("; ")):
        return f"the source is {mutant['source']}"
    try:
        if check.broken(mutant) == (ROOT / check.path_of(mutant)).read_text():
            return "it changes nothing"
    except (ValueError, SyntaxError) as error:
        return str(error)
    file, function = mutant["test"].split("[")[0].split("::")
    if file == "tests/plumbing/test_copies.py":  # any change fails there, whatever it does
        return f"{file} is no test of a mistake"
    if not (ROOT / file).exists() or f"def {function}(" not in (ROOT / file).read_text():
        return f"there is no {file}::{function}"
    return None


def test_every_mutant_fits_its_script_and_has_a_test():
    assert len(MUTANTS) > 200
    assert len(NAMED) == len(MUTANTS)  # no two have one name
    wrong = {m["name"]: text for m in MUTANTS if (text := what_is_wrong(m))}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def lines(source: str) -> set[str]:
    """The lines of a script, without indentation and remarks."""
    return {line.strip().split("  #")[0] for line in source.splitlines()}


def test_the_page_shows_right_and_wrong_lines_of_the_scripts():
    assert len(ENTRIES) > 25 and len(PAGE.split()) <= 4000
    for script, name, diff in ENTRIES:
        assert NAMED[name]["script"] == script
        healthy = lines((ROOT / "algos" / script).read_text())
        changed = {"+": healthy, "-": lines(check.broken(NAMED[name]))}
        for line in diff.splitlines():
            assert line[2:].strip() in changed[line[0]], (name, line)


def test_the_page_counts_and_cites_what_the_data_cites():
    reports = {part for mutant in MUTANTS for part in mutant["source"].split("; ")}
    for name, target in re.findall(r"\[([^\]]+#\d+)\]\((.*?)\)", PAGE):
        assert name in reports, name
        assert target == f"https://github.com/{name.replace('#', '/issues/')}"
    kinds = (r".*#\d", r"(arXiv|doi) ", r"(code|documentation|changelog) ", r"own")
    count = collections.Counter(
        next(kind for kind in kinds if re.match(kind, mutant["source"])) for mutant in MUTANTS
    )
    shares = [int(share) for share in re.findall(r"(\d+) %", PAGE.split("## Where these")[1])]
    assert shares == pytest.approx([100 * count[k] / len(MUTANTS) for k in kinds], abs=5)


def test_each_picture_is_drawn_from_the_points_beside_it():
    shown = set(re.findall(r"\]\(pictures/([\w-]+)\.png\)", PAGE))
    assert shown == {path.stem for path in mistakes.PICTURES.glob("*.png")} > set()
    for name in shown:
        path = mistakes.PICTURES / f"{name}.csv"
        script, flags, _, points = mistakes.read(path)
        assert script == NAMED[name]["script"]
        args = parse(importlib.import_module(script.removesuffix(".py")), flags)
        assert set(points["kind"]) == {"healthy", "broken"}
        for _, curves in points.groupby("kind"):
            last = curves.groupby("seed")["step"].max()
            assert last.to_dict() == dict.fromkeys(mistakes.SEEDS, args.total_timesteps)
        assert mistakes.digest(path).encode() in path.with_suffix(".png").read_bytes(), name


def test_a_curve_is_the_mean_over_stretches_of_the_run(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "env" / "algo" / "run") as writer:
        for step, value in ((0, 9), (1, 1), (40, 3), (41, 5), (999, 7), (1000, 8)):
            writer.add_scalar("tag", value, step)
            writer.add_scalar("other", 0, step)
    # 25 stretches of 40 steps; the first begins behind step 0
    assert mistakes.curve(tmp_path, "tag", 1000) == {40: 2, 80: 5, 1000: 7.5}
