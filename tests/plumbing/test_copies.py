"""What two scripts share is the same bytes in both: a mend is made everywhere or nowhere."""

import ast
import itertools
import re
import sys
import tomllib

import pytest
from conftest import ROOT, SCRIPTS, VARIANTS

LINES = [
    f"\n\n\n# {98 * '-'}\n# {begin}"
    for begin in ("The algorithm ends here. First environments", "Below is what every run needs")
]
# each script's own; dqn's buffer keeps an observation once, td3's whole transitions; ppo's batch
# has log-probabilities, a2c's needs none
OWN = {"Args", "Agent", "ReplayBuffer", "update", "train", "make_agent", "evaluation_policy"}
OWN |= {"rollout_batch"}
READ = [*ROOT.glob("algos/*.py"), *ROOT.glob("benchmarks/**/*.py")]
READ = sorted(str(path.relative_to(ROOT)) for path in READ)
METADATA = re.compile(r"\n# /// script\n((?:#.*\n)+?)# ///\n")  # PEP 723, at the end of each
TRICKS = r"Vector\(|skip_compiler_import|data_ptr|__wrapped__|is_tensor|\._version"


def floors(name):
    """What stands above the line, the environments below it, and what is the same in all four,
    without the metadata and call of main at the end.
    """
    source = (ROOT / "algos" / f"{name}.py").read_text()
    call = f'main("{name}", RunArgs, make_agent, train, evaluation_policy)'
    source, end = source.split('\nif __name__ == "__main__":\n')
    assert end.strip() == call and [source.count(line) for line in LINES] == [1, 1]
    source, _, after = METADATA.split(source)
    assert not after
    upper, below = source.rstrip("\n").split(LINES[0])
    environments, plumbing = below.split(LINES[1])
    return upper, f"#{environments}", f"#{plumbing}"


def imported(path):
    """Names of the modules that a script imports."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(node.module.split(".")[0])
    return modules


def definitions(source):
    """Top-level functions and classes by name, as text."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.get_source_segment(source, node)
    return found


@pytest.mark.parametrize("first, second", list(itertools.combinations(SCRIPTS, 2)))
def test_scripts_agree_where_they_are_copies(first, second):
    upper_1, environments_1, plumbing_1 = floors(first)
    upper_2, environments_2, plumbing_2 = floors(second)
    assert plumbing_1 == plumbing_2
    assert "td3" in (first, second) or environments_1 == environments_2
    functions_1, functions_2 = definitions(upper_1), definitions(upper_2)
    own = OWN - {"Agent"} if (first, second) == ("a2c", "ppo") else OWN
    for name in functions_1.keys() & functions_2.keys() - own:
        assert functions_1[name] == functions_2[name], name


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_plumbing_knows_no_algorithm(name):
    upper, _, plumbing = floors(name)
    tree, known = ast.parse(plumbing), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            known |= {base.id for base in node.bases if isinstance(base, ast.Name)}
        elif isinstance(node, ast.FunctionDef):  # main is given functions by the same names
            given = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
            known |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - given
    assert known & definitions(upper).keys() == {"Args"}


def names_in(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def pairs_things(node):
    """Whether an assignment has two thoughts: values of two kinds or without a common name, and no
    swap.
    """
    if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
        return False
    if not any(isinstance(target, ast.Tuple) for target in node.targets):
        return False
    sides = [names_in(value) for value in node.value.elts]
    targets = set().union(*map(names_in, node.targets))
    kinds = {type(value) for value in node.value.elts}
    alike = len(kinds) == 1 and set.intersection(*sides)
    return not alike and not targets <= set().union(*sides)


@pytest.mark.parametrize("path", READ)
def test_a_line_is_one_thought(path):
    source = (ROOT / path).read_text()
    lines = source.splitlines()
    assert not [lines[n.lineno - 1] for n in ast.walk(ast.parse(source)) if pairs_things(n)]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_with_what_it_is_and_its_loop(name):
    """A docstring on line 1, the imports, Args, train, and then what train calls."""
    source = (ROOT / "algos" / f"{name}.py").read_text()
    assert source.startswith('"""') and ast.get_docstring(ast.parse(source))
    functions = [n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    assert functions[0] == "train" and list(definitions(source))[:2] == ["Args", "train"]


@pytest.mark.parametrize("name", [*SCRIPTS, *VARIANTS])
def test_nothing_stands_between_what_is_written_and_what_runs(name):
    """Speed-ups that a reader would have to know about."""
    source = (ROOT / "algos" / f"{name}.py").read_text()
    assert not [line for line in source.splitlines() if re.search(TRICKS, line)]


@pytest.mark.parametrize("name", [*SCRIPTS, *VARIANTS])
def test_what_is_printed_may_find_no_reader(name):
    """By say, or as an error."""
    tree = ast.parse((ROOT / "algos" / f"{name}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    prints = [ast.unparse(call) for call in calls if getattr(call.func, "id", "") == "print"]
    others = [text for text in prints if "file=sys.stderr" not in text]
    assert others == (["print(line, flush=True)"] if name in SCRIPTS else [])


@pytest.mark.parametrize("name", SCRIPTS)
def test_uv_run_installs_what_requirements_txt_has(name):
    """The metadata at the end of a script, which `uv run algos/ppo.py` reads. It needs nothing
    else, nor a module of this repository.
    """
    path = ROOT / "algos" / f"{name}.py"
    (text,) = METADATA.findall(path.read_text())
    metadata = tomllib.loads("".join(line[2:] + "\n" for line in text.splitlines()))
    assert metadata.keys() == {"requires-python", "dependencies"}
    assert metadata["requires-python"] == ">=3.11,<3.14"  # which box2d has wheels for
    wanted = set(metadata["dependencies"])
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert wanted <= {line.partition(";")[0] for line in lines}
    packages = {pin.split("==")[0] for pin in wanted}
    others = imported(path) - sys.stdlib_module_names
    assert others <= packages and {"tensorboard", "mujoco", "ale-py", "imageio"} <= packages


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_imports_its_parent(name):
    path, parent = ROOT / "algos" / f"{name}.py", name.split("_")[0]
    others = {f"dqn_{x}": {"dqn_prioritised"} for x in ("apex", "noisy", "quantile")}
    others |= {"dqn_mask": {"ppo_mask"}, "dqn_her": {"td3_her"}}
    others = (others | {"td3_sac_her": {"td3_sac", "td3_her"}}).get(name, set())
    assert imported(path) & {*SCRIPTS, *VARIANTS} == {parent} | others
