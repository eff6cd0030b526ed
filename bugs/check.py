"""Is every mistake of bugs.toml caught by the test that claims to catch it? `make bugs`.

    python bugs/check.py                       all of them, two at a time, and rewrites README.md
    python bugs/check.py gae-across-episodes   this one, and why its test fails

First the tests run on the scripts as they are and must pass. Then each mistake is made in a copy
of the scripts, and its test must fail there: not by an error of syntax or of names.
"""

import argparse
import ast
import contextlib
import difflib
import io
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "bugs" / "README.md"
COPIED = ("algos", "tests", "benchmarks")
NO_MISTAKE = ("SyntaxError", "ImportError", "ModuleNotFoundError", "TimeoutError")
WRONG_NAME = re.compile(r"name '\w+' is not defined|has no attribute '|not associated with a value")
PATIENCE = 240  # seconds for a test, and a few more for each that is run with it
SEEDS = (1, 2, 3, 4, 5)  # of the runs behind a picture


def load() -> dict:
    """bugs.toml and the files of the variants beside it, each bug with its flags as a list."""
    catalogue = tomllib.loads((ROOT / "bugs" / "bugs.toml").read_text())
    for path in sorted((ROOT / "bugs").glob("*_*.toml")):
        catalogue["bug"] += tomllib.loads(path.read_text())["bug"]
    for bug in catalogue["bug"]:
        flags = catalogue["flags"].get(bug["file"].removesuffix(".py"), "")
        bug["flags"] = bug.get("flags", flags).split()
        if "picture" in bug:
            bug["picture"]["flags"] = bug["picture"]["flags"].split()
    return catalogue


def broken(bug: dict) -> str:
    """The script with the mistake in it. ValueError where `before` is not there just once."""
    source = (ROOT / "algos" / bug["file"]).read_text()
    if source.count(bug["before"]) != 1:
        text = f"{bug['name']}: `before` occurs {source.count(bug['before'])} times"
        raise ValueError(f"{text} in algos/{bug['file']}, not once")
    source = source.replace(bug["before"], bug["after"])
    ast.parse(source)
    return source


def copy_to(folder: Path):
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def run_tests(folder: Path, nodes: list[str]) -> tuple[int, str]:
    """The exit status of pytest (0: all passed; 1: some failed), and what it says."""
    import pytest

    os.chdir(folder)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE + 5 * len(nodes))
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = pytest.main(["-q", "-x", "--tb=short", "-p", "no:cacheprovider", *nodes])
    signal.alarm(0)
    return int(status), output.getvalue()


def too_long(*_):
    raise TimeoutError(f"no end after {PATIENCE} s and more")


def check_healthy(nodes: list[str]) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as folder:
        copy_to(Path(folder))
        return run_tests(Path(folder), nodes)


def check(bug: dict) -> tuple[bool, str]:
    """Whether the bug's test fails as it should, and its last words."""
    with tempfile.TemporaryDirectory() as folder:
        copy_to(Path(folder))
        (Path(folder) / "algos" / bug["file"]).write_text(broken(bug))
        status, output = run_tests(Path(folder), [bug["test"]])
    if status == 0:
        return False, "the test passes"
    errors = re.findall(r"^E +(\S.*)$", output, re.MULTILINE)
    if status != 1 or not errors:
        return False, output.strip()[-300:]
    crashed = errors[0].startswith(NO_MISTAKE) or WRONG_NAME.search(errors[0])
    return not crashed, errors[0]


def check_all(bugs: list[dict]) -> int:
    """Prints a row for each bug, as it comes; returns the number of survivors."""
    started = time.perf_counter()
    # every task is a fork of a process that has imported what takes seconds, but no script
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "torch.utils.tensorboard", "gymnasium", "tyro"])
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:  # says so if one is lost
        nodes = sorted({bug["test"] for bug in bugs})
        status, output = pool.submit(check_healthy, nodes).result()
        if status != 0:
            sys.exit(f"without any mistake these tests should pass:\n{output[-3000:]}")
        print(f"{len(nodes)} tests pass on the scripts as they are", flush=True)
        survivors = 0
        for bug, (killed, words) in zip(bugs, pool.map(check, bugs), strict=True):
            survivors += not killed
            row = f"{'killed  ' if killed else 'SURVIVED'} {bug['file']:<7} {bug['name']:<50} "
            print(row + textwrap.shorten(words, 80, placeholder=" ..."), flush=True)
    seconds = time.perf_counter() - started
    print(f"killed {len(bugs) - survivors} of {len(bugs)} in {seconds:.0f} s")
    return survivors


def changed_lines(bug: dict) -> str:
    """The lines before and after, as a diff with a line of context."""
    healthy = (ROOT / "algos" / bug["file"]).read_text().splitlines()
    diff = list(difflib.unified_diff(healthy, broken(bug).splitlines(), n=1, lineterm=""))
    lines = [line for line in diff[2:] if not line.startswith("@@")]
    text = textwrap.dedent("\n".join(line[1:] for line in lines)).split("\n")
    return "\n".join(f"{a[0]} {b}".rstrip() for a, b in zip(lines, text, strict=True))


def tidy(text: str) -> str:
    whole = {"break_long_words": False, "break_on_hyphens": False}  # links, above all
    return textwrap.fill(" ".join(text.split()), 100, **whole)


HEADER = """# Classic mistakes of reinforcement learning

{count} mistakes, each made in one place of one script of this collection, with a test that catches
it. Begin with the ten below, look yours up [by symptom](#by-symptom), or
[break a script yourself](#try-one). This page is written from `bugs.toml` and the files beside it.

## The ten that cost people most

Chosen by how often they are reported and how long they stay unnoticed. That is a judgement, not a
measurement.
"""

SYMPTOMS = """## By symptom

The likeliest mistakes for what you see, most telling first. How strongly a curve shows a mistake
depends on the task, and some mistakes show in no curve at all: they need a test.
"""

TRY_ONE = """## Try one

    python bugs/run.py NAME --seeds 3               trains the healthy and the broken script
    python bugs/run.py NAME -- --learning-rate 1e-3  with flags of your own
    python bugs/check.py NAME                       breaks a copy: does the test fail?
    make bugs                                       the same for all of them
    make bug-pictures                               the pictures here, from runs of its own

`check.py` needs `pip install -r requirements-dev.txt`. Mistakes in saving and resuming show only in
runs that are resumed (`--resume`) or loaded (`--evaluate`). A picture shows the healthy and the
broken script with the same flags on the same {seeds} seeds: the line is their mean, the shaded area
goes from the lowest to the highest seed, and `curves/` has the points. Sources like cleanrl#198 are
issues and pull requests on GitHub.

All mistakes follow, in groups:
"""


def readme(catalogue: dict) -> str:
    """README.md as it must be."""
    bugs, titles = catalogue["bug"], catalogue["seen"]
    groups = {key: [bug for bug in bugs if bug["seen"] == key] for key in titles}
    parts = [HEADER.format(count=len(bugs))]
    costly = [bug for bug in bugs if "costly" in bug]
    # those with a picture are seen first
    for i, bug in enumerate(sorted(costly, key=lambda bug: "picture" not in bug), 1):
        item = tidy(bug["costly"])
        if "picture" in bug:
            item += f"\n\n![The curves of {bug['name']}](pictures/{bug['name']}.png)\n"
        parts += [f"{i}. **[{bug['name']}](#{bug['name']})**:", textwrap.indent(item, "   ")]
    parts += ["", SYMPTOMS, "| what you see | mistakes |\n|---|---|"]
    for symptom, names in catalogue["symptoms"].items():
        links = ", ".join(f"[{name}](#{name})" for name in names.split())
        parts.append(f"| {symptom} | {links} |")
    parts += ["", TRY_ONE.format(seeds=len(SEEDS))]
    parts += [f"- [{title}](#{anchor(title)}): {len(groups[key])}" for key, title in titles.items()]
    parts.append("")
    for key, title in titles.items():
        parts.append(f"## {title}\n")
        for bug in groups[key]:
            parts += [
                f"### {bug['name']}\n",
                tidy(bug["story"]) + "\n",
                f"```diff\n# algos/{bug['file']}\n{changed_lines(bug)}\n```\n",
                tidy(f"**How to notice.** {bug['symptom']}") + "\n",
                *picture(bug),
                f"Source: {bug['source']}.\\\nTest: `{bug['test']}`\n",
            ]
    return "\n".join(parts)


def picture(bug: dict) -> list[str]:
    """The lines that show it, for the few that have one."""
    if "picture" not in bug:
        return []
    command = f"`python algos/{bug['file']} {' '.join(bug['picture']['flags'])}`"
    return [
        f"![The curves of {bug['name']}](pictures/{bug['name']}.png)\n",
        f"{tidy(bug['picture']['caption'])}\\\n{command}\n",
    ]


def anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of bugs.toml; none: all of them")
    catalogue, names = load(), parser.parse_args().names
    bugs = catalogue["bug"]
    if unknown := set(names) - {bug["name"] for bug in bugs}:
        parser.error(f"no such bug: {', '.join(sorted(unknown))}")
    bugs = [bug for bug in bugs if not names or bug["name"] in names]
    try:
        for bug in bugs:
            broken(bug)
    except (ValueError, SyntaxError) as error:
        parser.error(str(error))
    if not names:
        README.write_text(readme(catalogue))
    sys.exit(check_all(bugs) > 0)


if __name__ == "__main__":
    main()
