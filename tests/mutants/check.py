"""Does its test catch each mistake of the TOML files here? `make bugs`, or with names only these:

    python tests/mutants/check.py gae-across-episodes

NAME.toml has mistakes of algos/NAME.py or benchmarks/NAME.py. First the tests run on the scripts as
they are and must pass. Then each mistake is made in a copy of the scripts, where its test must
fail, but not by an error of syntax or of names.
"""

import argparse
import ast
import contextlib
import functools
import io
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import tomllib
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
COPIED = ("algos", "tests", "benchmarks", "docs")
NO_MISTAKE = ("SyntaxError", "ImportError", "ModuleNotFoundError", "TimeoutError")
WRONG_NAME = re.compile(r"name '\w+' is not defined|has no attribute '|not associated with a value")
PATIENCE = 240  # seconds for a test, and a few more for each that is run with it


def load() -> list[dict]:
    """All mutants, each with its `script`."""
    tables = [(path.stem, tomllib.loads(path.read_text())) for path in sorted(HERE.glob("*.toml"))]
    return [{"script": f"{name}.py", **m} for name, table in tables for m in table["mutant"]]


def path_of(mutant: dict) -> Path:
    """Of its script, below the root."""
    paths = [Path(folder, mutant["script"]) for folder in ("algos", "benchmarks")]
    return next(path for path in paths if (ROOT / path).exists())


tree = functools.cache(ast.parse)


def lines_of(source: str, function: str) -> tuple[int, int]:
    """The first line of a function, method or class, counted from 0, and the one behind it."""
    node, first, last = tree(source), 0, source.count("\n") + 1
    for name in filter(None, function.split(".")):
        inside = (n for n in ast.walk(node) if n is not node and getattr(n, "name", None) == name)
        node = next(inside, None)
        if node is None:
            raise ValueError(f"there is no {function}")
        first, last = node.lineno - 1, node.end_lineno
        first = min([first, *(decorator.lineno - 1 for decorator in node.decorator_list)])
    return first, last


def broken(mutant: dict) -> str:
    """The script with the mistake in it. ValueError where it does not fit, or is no Python."""
    source = (ROOT / path_of(mutant)).read_text()
    first, last = lines_of(source, mutant["function"])
    lines = source.splitlines(keepends=True)
    function = "".join(lines[first:last])
    if (count := function.count(mutant["before"])) != 1:
        raise ValueError(f"`before` is {count} times in {mutant['function'] or 'the script'}")
    function = function.replace(mutant["before"], mutant["after"])
    ast.parse(textwrap.dedent(function))
    return "".join(lines[:first]) + function + "".join(lines[last:])


def run_tests(nodes: list[str], mutant: dict | None = None) -> tuple[int, str]:
    """The status of pytest in a copy (0: all passed; 1: some failed), and what it says."""
    import pytest

    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            leave_out = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=leave_out)
        shutil.copy(ROOT / "pytest.ini", folder)
        if mutant:
            (Path(folder) / path_of(mutant)).write_text(broken(mutant))
        os.chdir(folder)
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(PATIENCE + 5 * len(nodes))
        flags = ["-q", "-x", "--tb=short", "-m", "", "-p", "no:cacheprovider"]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = pytest.main([*flags, *nodes])
        signal.alarm(0)
        os.chdir(ROOT)
    return int(status), output.getvalue()


def too_long(*_):
    raise TimeoutError(f"no end after {PATIENCE} s and more")


def check(mutant: dict) -> tuple[bool, str]:
    """Whether the test fails as it should, and its last words."""
    status, output = run_tests([mutant["test"]], mutant)
    errors = re.findall(r"^E +(\S.*)$", output, re.MULTILINE)
    if status != 1 or not errors:
        return False, output.strip()[-300:] if status else "the test passes"
    return not (errors[0].startswith(NO_MISTAKE) or WRONG_NAME.search(errors[0])), errors[0]


def check_all(mutants: list[dict]) -> int:
    """Prints a row for each, two at a time; returns the number that no test caught."""
    # each task is a fork of a process that has imported what takes seconds, but no script
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "torch.utils.tensorboard", "gymnasium", "tyro"])
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:
        nodes = sorted({mutant["test"] for mutant in mutants})
        status, output = pool.submit(run_tests, nodes).result()
        if status != 0:
            sys.exit(f"without any mistake these tests should pass:\n{output[-3000:]}")
        survivors = 0
        for mutant, (caught, words) in zip(mutants, pool.map(check, mutants), strict=True):
            survivors += not caught
            row = f"{'caught  ' if caught else 'SURVIVED'} {mutant['script']:<8} {mutant['name']} "
            print(row + textwrap.shorten(words, 80, placeholder=" ..."), flush=True)
    print(f"caught {len(mutants) - survivors} of {len(mutants)}")
    return survivors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a mutant; none: all of them")
    mutants, names = load(), parser.parse_args().names
    if unknown := set(names) - {mutant["name"] for mutant in mutants}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    sys.exit(check_all([m for m in mutants if not names or m["name"] in names]) > 0)


if __name__ == "__main__":
    main()
