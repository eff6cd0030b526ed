"""The documents say what is so: commands parse, links lead somewhere, tables repeat the code."""

import argparse
import ast
import functools
import importlib
import importlib.util
import inspect
import itertools
import json
import re
import runpy
import shlex
import sys
import types
from dataclasses import fields
from pathlib import Path

import conftest
import environments
import gymnasium as gym
import numpy as np
import onnxruntime
import pandas as pd
import ppo
import pytest
import torch
from conftest import ROOT, SCRIPTS, VARIANTS, lacks_package, new_run, only_run, scalars, stopped
from test_runs import TAGS

sys.path.insert(0, str(ROOT / "benchmarks"))
import run as campaign

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
DOCUMENTS += ("algos/README.md", "benchmarks/README.md", "trained/README.md")
DOCUMENTS += tuple(f"docs/{name}.md" for name in SCRIPTS)
DOCUMENTS += ("docs/variants.md", "docs/changing-a-script.md", "docs/coming-from.md")
DOCUMENTS += ("docs/trackers-and-exports.md", "docs/when-it-does-not-learn.md")
TEXTS = {name: (ROOT / name).read_text() for name in DOCUMENTS}
COMING, EXPORTS = TEXTS["docs/coming-from.md"], TEXTS["docs/trackers-and-exports.md"]
CHANGING = TEXTS["docs/changing-a-script.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOLDERS = ("algos/", "benchmarks/", "docs/", "tests/", ".ci/")


def test_no_document_is_left_out():
    """Of those that belong to the repository; what programs leave in it begins with a dot."""
    hidden = re.compile(r"(^|/)\.|^runs/|^benchmarks/results/")
    paths = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.md")}
    assert {path for path in paths if not hidden.search(path)} == set(DOCUMENTS)


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return FENCE.sub("", text)


def code_spans(text: str) -> list[str]:
    """What stands between backticks, or in an indented line, without a remark behind it."""
    spans = re.findall(r"`([^`\n]+)`", prose(text))
    lines = re.findall(r"^ {4}\s*(\S.*)$", prose(text), re.MULTILINE)
    return [*spans, *(re.split(r" {2,}", line)[0] for line in lines)]


def commands() -> list[tuple[str, str]]:
    """(document, command) for each call of a script or of make."""
    found = []
    for name, text in TEXTS.items():
        lines = "".join(code for kind, code in FENCE.findall(text) if not kind).splitlines()
        for span in [*code_spans(text), *lines]:
            # a loop or a variable of the environment may stand before it
            if match := re.search(r"(?:^|[;=.] )(python (?:algos|benchmarks)/.*|make .*)", span):
                found.append((name, re.sub(r"\$\w+", "1", match[1])))
    return sorted(set(found))


COMMANDS = commands()


def test_lines_are_short():
    """But for tables and commands."""
    texts = TEXTS | {
        path.name: path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.toml")
    }
    for name, text in texts.items():
        lines = prose(text).splitlines()
        assert not [x for x in lines if len(x) > 120 and not x.startswith(("|", "    "))], name


def test_the_documents_are_short():
    def count(text):
        """Of words: a table's lines are none."""
        return sum(bool(re.search(r"\w", word)) for word in text.split())

    before, rest = TEXTS["README.md"].split("<!-- results: begin -->")
    assert count(before) + count(rest.split("<!-- results: end -->")[1]) <= 1500
    assert count(TEXTS["CHANGELOG.md"]) <= 600
    results = [path.read_text() for path in (ROOT / "benchmarks" / "results").rglob("*.md")]
    words = {name: count(text) for name, text in TEXTS.items()}
    assert sum(words.values()) + count(" ".join(results)) <= 25_000, words


@pytest.mark.parametrize("document, command", COMMANDS)
def test_a_command_parses(document, command, tmp_path, monkeypatch):
    words = shlex.split(command)
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets)
        return
    path, flags = words[1], words[2:]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    (tmp_path / "sweep.toml").write_text(toml_of_the_readme())
    if path.startswith("algos/"):
        parse(Path(path).stem, flags)
    elif path == "benchmarks/run.py":
        end = flags.index("--") if "--" in flags else len(flags)
        assert campaign.plan(campaign.parse_options(flags[:end]), flags[end + 1 :])
    elif path == "benchmarks/maintain/trained.py":
        assert len(flags) == 1
    else:
        stop_after_parsing(monkeypatch, path, flags)


def parse(name: str, flags: list[str]):
    """The arguments that a script takes from `flags`, with the run folders that they name."""
    script = importlib.import_module(name)
    for flag, folder in itertools.pairwise(flags):
        if flag in ("--resume", "--evaluate"):
            if match := re.fullmatch(r"trained/(.+?)-((?:ppo|a2c|dqn|td3).*)", folder):
                env_id, algo = match[1], match[2].split("-")[0]
            else:
                env_id, algo = Path(folder).parts[-3:-1]
            Path(folder).mkdir(parents=True)
            about = {"algo": algo, "args": {"env_id": env_id}}
            (Path(folder) / "args.json").write_text(json.dumps(about))
            (Path(folder) / "checkpoint.pt").touch()
    if flags == ["--help"]:
        return None
    if name == "ppo_imitation":  # which evaluates runs of its parent, too
        return ppo.parse_args(script.name_of_run(flags), script.Args, flags)
    return conftest.parse(script, flags)


def stop_after_parsing(monkeypatch, path: str, flags: list[str]):
    """Runs a script until argparse is content with the flags."""

    class Parsed(Exception):
        pass

    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(*arguments):
        parse_args(*arguments)
        raise Parsed

    assert re.search(r"ArgumentParser|speed\.loop", (ROOT / path).read_text()), "it would run"
    for folder in ("benchmarks/maintain", "benchmarks"):
        monkeypatch.syspath_prepend(ROOT / folder)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [path, *flags])
    with pytest.raises(Parsed):
        runpy.run_path(str(ROOT / path), run_name="__main__")


def toml_of_the_readme() -> str:
    (text,) = [code for kind, code in FENCE.findall(TEXTS["README.md"]) if kind == "toml"]
    return text


def test_the_environment_of_the_readme_trains(tmp_path, monkeypatch):
    (code,) = [code for kind, code in FENCE.findall(TEXTS["README.md"]) if kind == "py"]
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "envs.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (flags,) = [c.split()[2:] for _, c in COMMANDS if "mypackage" in c and "PYTHONPATH" not in c]
    run = finished(*flags, "--total-timesteps", "8192")
    # random actions take longer than the nine steps that the far end needs
    assert run.evaluate().mean() >= -9


def test_minigrid_trains_by_the_module_of_coming_from(tmp_path, monkeypatch):
    """Where the package is not installed, by an environment with its spaces."""
    (code,) = [code for kind, code in FENCE.findall(COMING) if kind == "py"]
    (tmp_path / "mygrid.py").write_text(code)
    if importlib.util.find_spec("minigrid") is None:
        spaces = {"observation_space": environments.SPACES["Missions"]}
        gym.register("MiniGrid-DoorKey-5x5-v0", environments.Seen, kwargs=spaces)
        (tmp_path / "minigrid.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    (flags,) = [words.split()[2:] for name, words in COMMANDS if "mygrid" in words]
    run = finished(*flags, "--total-timesteps", "2048")
    assert run.obs_space.shape == (7 * 7 * 3 + 4,)


def test_the_table_of_variants_has_them_all_with_their_returns():
    """A row to each; what it says of a task are means of results, rounded as here."""
    table = rows(TEXTS["README.md"], "| algorithm | file | source | evidence |")
    files = [name for _, file, *_ in table for name in re.findall(r"`(\w+)\.py`", file)]
    assert sorted(files) == VARIANTS
    page = (ROOT / "benchmarks" / "results" / "variants" / "README.md").read_text()
    page += (ROOT / "benchmarks" / "results" / "README.md").read_text()
    means = re.findall(r"^\|(?: [^|]+ \|){4} (-?[\d,.]+)", page, re.MULTILINE)
    means = [float(mean.replace(",", "")) for mean in means]
    for *_, evidence in table:
        for number in re.findall(r"(?<!\w)-?\d[\d,.]*\b", evidence.partition(": ")[2]):
            digits = len(number.partition(".")[2])
            value = float(number.replace(",", ""))
            assert any(round(mean, digits) == value for mean in means), (number, evidence)


def test_how_long_things_take_is_what_the_results_say():
    def minutes(cell):
        about = json.loads((ROOT / "benchmarks" / "results" / f"{cell}.json").read_text())
        return np.median([run["seconds"] for run in about["runs"]]) / 60

    text = " ".join(TEXTS["README.md"].split())
    assert f"PPO takes {60 * minutes('CartPole-v1-ppo'):.0f} seconds on CartPole-v1" in text
    assert f"{minutes('LunarLander-v3-ppo'):.0f} minutes on LunarLander-v3" in text
    assert f"TD3 {minutes('HalfCheetah-v5-td3') / 60:.0f} hours on HalfCheetah-v5" in text
    assert f"DQN {minutes('ALE-Pong-v5-dqn-1m') / 60:.0f} hours for a million steps of Pong" in text


def test_every_flag_in_prose_is_a_flag():
    known = {"--logdir", "--install", "--help"}
    known |= {"--generate", "--with-requirements"}  # of Ray, of uv
    for library in ("CleanRL", "Spinning Up"):  # the page says what these are called here
        for first, *_ in rows(COMING, f"| {library} | here |"):
            known |= set(re.findall(r"--[\w-]+", first.replace("_", "-")))
    for name in SCRIPTS:
        known |= {f"--{field.name}" for field in fields(importlib.import_module(name).RunArgs)}
    for name in VARIANTS:
        known |= {f"--{field.name}" for field in fields(importlib.import_module(name).Args)}
    others = (
        "maintain/same_numbers.py maintain/publish.py run.py report.py compare.py speed.py tune.py "
        "reference.py"
    )
    for path in (f"benchmarks/{name}" for name in others.split()):
        known |= set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', (ROOT / path).read_text()))
    known = {flag.replace("_", "-") for flag in known}
    for name, text in TEXTS.items():
        for span in re.findall(r"`([^`\n]+)`", prose(text)):
            for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", span.replace("_", "-")):
                assert flag in known or flag.replace("--no-", "--") in known, (name, flag)


@functools.cache
def definitions(path: Path) -> set[str]:
    """Functions and classes of a file, methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [child for child in node.body if isinstance(child, ast.FunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


@functools.cache
def anchors(path: Path) -> set[str]:
    """The headings of a document as GitHub links to them; none is there twice."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    names = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
    assert len(set(names)) == len(names)
    return set(names)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_names_lead_somewhere(name):
    folder = (ROOT / name).parent
    for text, target in re.findall(
        r"\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s]+)\)", prose(TEXTS[name])
    ):
        if target.startswith(("https://", "../../actions/")):  # the second is GitHub's own page
            continue
        file, _, anchor = target.partition("#")
        path = folder / file if file else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target
        if text.startswith("`tasks:"):
            assert text.strip("`").partition(":")[2] in path.read_text(), text
        elif path.suffix == ".py" and "/" not in text and text.strip("`") != path.name:
            assert text.strip("`") in definitions(path), (text, target)
    for line in prose(TEXTS[name]).splitlines():
        assert line.count("`") % 2 == 0, f"code across two lines is not found here: {line}"
    for span in code_spans(TEXTS[name]):
        for word in span.split():
            path = word.split("::")[0].rstrip(",")
            path = re.sub(r"\.toml:[\w-]+$", ".toml", path)
            if path.startswith(FOLDERS) and "NAME" not in path:
                assert list(ROOT.glob(path)), word


def section(document: str, title: str) -> str:
    """Of a document, up to the next heading of this level."""
    return TEXTS[document].split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of the table below this header."""
    lines = text.split(header + "\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


DETAILS = "| detail | source | default | where |"


def flags_of_table(text: str) -> tuple[list[str], list[list[str]]]:
    table = rows(text, DETAILS)
    for row in table:
        assert len(row) == 4 and all(row), row
        assert row[2] == "always" or re.fullmatch(r"`--[^`]+`", row[2]), row
        assert re.search(r"\]\((\.\./algos/)?\w+\.py\)", row[3]), row
    return shlex.split(" ".join(row[2].strip("`") for row in table if row[2] != "always")), table


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_table_of_details_has_every_argument_and_its_default(name, monkeypatch):
    script = importlib.import_module(name)
    monkeypatch.setattr(script, "refuse_typed", lambda *_: None)  # a row alone may have no effect
    flags, table = flags_of_table(section(f"docs/{name}.md", "Details"))
    for row in table:  # one by one: a flag that is there twice could hide a wrong default
        if row[2] != "always":
            assert parse(name, shlex.split(row[2].strip("`"))) == script.RunArgs(), row
        assert set(re.findall(r"\]\((.*?)\)", row[3])) == {f"../algos/{name}.py"}, row
    listed = {flag.replace("--no-", "--") for flag in flags if re.match("--[a-z]", flag)}
    arguments = {f"--{field.name.replace('_', '-')}" for field in fields(script.Args)}
    assert listed == arguments - {"--env-id", "--seed"}


def test_the_table_of_what_every_script_does_has_their_defaults():
    flags, _ = flags_of_table(section("algos/README.md", "What every script does"))
    for name in SCRIPTS:
        script = importlib.import_module(name)
        assert parse(name, flags) == script.RunArgs()
    common = {f"--{field.name.replace('_', '-')}" for field in fields(script.RunArgs)}
    assert {flag.replace("--no-", "--") for flag in flags if flag.startswith("--")} <= common


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_function_that_cites_a_source_is_on_its_page(name):
    source = (ROOT / "algos" / f"{name}.py").read_text()
    upper = ast.parse(source.split("\n# The algorithm ends here.")[0])
    # a2c has ppo's networks, statistics and distributions, which are described there
    pages = TEXTS[f"docs/{name}.md"] + (TEXTS["docs/ppo.md"] if name == "a2c" else "")
    linked = {text.split(".")[0] for text in re.findall(r"\[`([^`]+)`\]", pages)}
    for node in upper.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            texts = [ast.get_docstring(part) or "" for part in (node, *getattr(node, "body", ()))
                     if isinstance(part, ast.FunctionDef | ast.ClassDef)]  # fmt: skip
            if any(re.search(r"arXiv|doi ", text) for text in texts):
                assert node.name in linked


def test_the_healthy_returns_are_those_of_the_results():
    header = "| environment | script | seeds | steps | at 10% | at 25% | at 50% | at the end |"
    table = rows(TEXTS["docs/when-it-does-not-learn.md"], header)
    assert len(table) == 8
    for env_id, script, seeds, _, *shown in table:
        cell = pd.read_csv(ROOT / "benchmarks" / "results" / f"{env_id}-{script}.csv")
        curves = [curve for _, curve in cell[cell.kind == "training"].groupby("seed")]
        assert str(len(curves)) == seeds
        for share, text in zip((0.1, 0.25, 0.5, 1), shown, strict=True):
            step = share * cell.step.max()
            here = pd.Series([c.loc[(c.step - step).abs().idxmin(), "return"] for c in curves])
            expected = f"{here.mean():,.0f} ({here.min():,.0f} to {here.max():,.0f})"
            assert text == expected, (env_id, script, share)


def test_the_returns_of_ppo_seeds_are_those_of_the_results():
    """IQM and interval, beside those of seeds that were trained one by one."""
    for folder, table in (("results/variants", "ppo_seeds-lunarlander"), ("results", "ppo")):
        page = (ROOT / "benchmarks" / folder / "README.md").read_text()
        (row,) = re.findall(rf"^\| LunarLander-v3 \| {table}(?: †)? \|.*$", page, re.MULTILINE)
        assert row.split(" | ")[5] in " ".join(section("docs/variants.md", "ppo_seeds").split())


def test_every_tag_is_explained_and_no_other():
    table = []
    for page in ("algos/README.md", *(f"docs/{name}.md" for name in ("ppo", "dqn", "td3"))):
        table += rows(TEXTS[page], "| tag | scripts | what it is | healthy |")
    assert all(len(row) == 4 and all(row) for row in table)
    documented = {
        row[0].strip("`"): set(SCRIPTS) if row[1] == "all" else set(row[1].split(", "))
        for row in table
    }
    assert len(documented) == len(table)
    plumbing = (ROOT / "algos" / "ppo.py").read_text().split("\n# The algorithm ends here.")[1]
    common = re.findall(r'"((?:charts|eval)/\w+)"', plumbing)
    assert {"charts/SPS", "charts/episodic_return", "eval/episodic_return"} <= set(common)
    own = " ".join(TAGS.values()).split()  # the plumbing reads some of these
    written = {tag: set(SCRIPTS) for tag in common if tag not in own}
    written["losses/mass_at_ends"] = {"dqn"}  # of C51 alone; see tests/algos/test_train.py
    for name, tags in TAGS.items():  # which test_runs.py compares with what runs write
        for tag in tags.split():
            written.setdefault(tag, set()).add(name)
    assert documented == written


def test_the_citation_names_who_the_license_names():
    """And the newest version."""
    text = (ROOT / "CITATION.cff").read_text()
    holder = re.search(r"Copyright \(c\) \d+ (.+)", (ROOT / "LICENSE").read_text())[1]
    assert f"  - name: {holder[0].upper()}{holder[1:]}\n" in text
    version, date = re.search(r"^## (\S+) - (\S+)$", TEXTS["CHANGELOG.md"], re.MULTILINE).groups()
    assert f"\nversion: {version}\n" in text and f"\ndate-released: {date}\n" in text


def changes() -> list[tuple[str, int, str, str]]:
    """The patches: what is changed, in how many lines, the script, the patch."""
    found, title = [], None
    for words, path, patch in re.findall(
        r"(.*?)^```diff\n--- (\S+)\n(.*?)^```$", CHANGING + EXPORTS, re.MULTILINE | re.DOTALL
    ):
        title = ([title, *re.findall(r"\*\*(.+?)\*\*|^## (.+)$", words, re.MULTILINE)])[-1]
        title = "".join(title)
        found.append((title, int(re.findall(r"(\d+) lines?\b", words)[-1]), path, patch))
    return found


CHANGES = changes()
HASHES = {}  # of the scripts as they are, by script and flags
SAME_WEIGHTS = ("A curve of something in `info`", "Weights & Biases", "Trackio")  # only look on
SAME_WEIGHTS += ("An environment that raises now and then",)  # CartPole never does
TRACKERS = {
    "wandb": "def init(**about): open('said', 'a').write(repr(about))",
    "trackio": "def init(**about): open('said', 'a').write(repr(about))\n"
    "def log(means, step): open('said', 'a').write(f'{step} {means}')",
}
SHORT = {
    "ppo": "--total-timesteps 1024 --eval-episodes 1",
    "dqn": "--total-timesteps 2000 --eval-episodes 1",
    "td3": "--env-id Pendulum-v1 --total-timesteps 400 --learning-starts 100 --eval-episodes 1 "
    "--hidden-sizes 16 16 --batch-size 16",
}


def patched(path: str, patch: str) -> str:
    """The script with the patch, whose hunks each stand in one place of it."""
    source = (ROOT / path).read_text()
    for hunk in patch.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(x[1:] for x in lines if x[0] != sign) for sign in "+-")
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_change_takes_the_lines_that_it_says_and_trains(number, command, tmp_path, monkeypatch):
    title, lines, path, patch = CHANGES[number]
    assert len(re.findall(r"^\+.*\S", patch, re.MULTILINE)) == lines
    name = Path(path).stem
    flags = SHORT[name]
    if "x_velocity" in patch or "x_position" in patch:
        flags += " --env-id HalfCheetah-v5"
    if "Conv2d" in patch:
        flags = "--env-id environments:Colour-v0 --total-timesteps 80 --eval-episodes 1 "
        flags += "--learning-starts 40 --batch-size 4 --buffer-size 80"
    if (name, flags) not in HASHES:
        HASHES[name, flags] = command(name, f"{flags} --runs-dir plain").hash
    copy = tmp_path / Path(path).name
    copy.write_text(patched(path, patch))
    tracker = re.search(r"^\+import (\w+)$", patch, re.MULTILINE)
    if tracker:
        fake = types.ModuleType(tracker[1])
        exec(TRACKERS[tracker[1]], vars(fake))
        monkeypatch.setitem(sys.modules, tracker[1], fake)
    same = command(copy.with_suffix(""), flags).hash == HASHES[name, flags]
    assert same == (title in SAME_WEIGHTS)
    points = scalars(only_run(tmp_path))
    if tracker:
        said = (tmp_path / "said").read_text()
        assert only_run(tmp_path).name in said and "'seed': 1" in said
        steps = {step for tag, step in points if tag == "charts/learning_rate"}
        steps |= {step for tag, step in points if tag == "eval/episodic_return"}
        assert "trackio" not in patch or all(f"{step} {{" in said for step in steps)
        assert "trackio" not in patch or "eval/episodic_return" in said
        begun = stopped(new_run(ppo, total_timesteps=1024, eval_episodes=1), ppo.train, after=500)
        resumed = command(copy.with_suffix(""), f"--resume {begun.folder}")
        assert resumed.hash == HASHES[name, flags]  # from its first checkpoint, of step 0
    for tag in re.findall(r'"(charts/.+?)"', patch) + (["losses/kl_penalty"] * ("kl" in patch)):
        assert tag in {tag for tag, _ in points}


def test_what_a_variant_may_replace_are_arguments():
    """Of train all but args, run and what it saves; of main the optional ones."""
    named = {}
    for call, argument, _ in rows(CHANGING, "| call | argument | what it replaces |"):
        named.setdefault(call.strip("`"), set()).add(argument.strip("`"))
    assert set(named) == {"ppo.train", "a2c.train", "dqn.train", "td3.train", "ppo.main"}
    for call, arguments in named.items():
        module, function = call.split(".")
        parameters = inspect.signature(
            getattr(importlib.import_module(module), function)
        ).parameters
        others = {"args", "run", "parts", "name", "args_class", "train"}
        assert arguments == set(parameters) - others, call


def script_of_this_page(begin: str) -> str:
    """The script in docs/changing-a-script.md whose docstring begins so."""
    (code,) = [x for kind, x in FENCE.findall(CHANGING) if kind == "py" and x[3:].startswith(begin)]
    return code


def finished(*flags):
    args = parse("ppo", [*flags, "--eval-episodes", "1"])
    run = ppo.Run("ppo", args, ppo.make_agent, ppo.evaluation_policy)
    ppo.train(args, run)
    run.finish()
    return run


def test_the_export_to_onnx_gives_the_outputs_of_the_agent():
    (code,) = [code for kind, code in FENCE.findall(EXPORTS) if kind == "py"]
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        flags = f"--env-id {env_id} --total-timesteps 256 --num-steps 32 --norm-obs"
        run = finished(*flags.split())
        exec(code.replace("runs/CartPole-v1/ppo/1-...", str(run.folder)), {})
        session = onnxruntime.InferenceSession("policy.onnx")
        obs = np.random.default_rng(0).normal(size=(5, *run.obs_space.shape)).astype(np.float32)
        (outputs,) = session.run(["outputs"], {"obs": obs})
        with torch.no_grad():
            expected = run.agent.eval()(torch.as_tensor(obs)).numpy()
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_an_agent_is_loaded_as_the_readme_says():
    (code,) = [code for kind, code in FENCE.findall(TEXTS["README.md"]) if kind == "python"]
    run, names = finished("--total-timesteps", "256"), {}
    exec(re.sub(r'"(runs|trained)/.*?"', repr(str(run.folder)), code), names)
    assert names["rewards"].shape == names["terminated"].shape == (1,)


def test_a_batched_environment_plugs_in(command, tmp_path):
    """It learns, across a checkpoint, and its corridors are those of the README."""
    (tmp_path / "ppo_corridors.py").write_text(script_of_this_page("PPO on corridors"))
    flags = "--num-envs 32 --total-timesteps 16384 --checkpoint-frequency 6144"
    command(tmp_path / "ppo_corridors", flags)
    result = json.loads((only_run(tmp_path) / "result.json").read_text())
    assert result["eval_return_mean"] >= -9  # as in the README: no more steps than cells


def test_frames_of_car_racing_are_stacked(command, tmp_path):
    """By the line that the README has for it, which is the wrapper of `To change X`, too."""
    (patch,) = (patch for title, _, _, patch in CHANGES if "A wrapper" in title)
    line = re.search(r"^\+ +(.*)$", patch, re.MULTILINE)[1]
    assert f"`{line}`" in TEXTS["README.md"]
    (tmp_path / "ppo.py").write_text(patched("algos/ppo.py", patch))
    flags = "--env-id CarRacing-v3 --num-envs 1 --num-steps 8 --total-timesteps 16 "
    flags += "--update-epochs 1 --eval-episodes 1 --torch-threads 1 --env-kwargs"
    if lacks_package(flags):
        pytest.skip("needs Box2D")
    command(tmp_path / "ppo", flags, '{"max_episode_steps": 10}')
    with np.load(only_run(tmp_path) / "weights.npz") as weights:
        assert weights["trunk.0.weight"].shape == (32, 4 * 3, 8, 8)


def test_the_variant_trains_as_the_change_that_it_was_made_from(command, tmp_path):
    (change,) = (patch for title, _, _, patch in CHANGES if "A term of the loss" in title)
    (tmp_path / "ppo_kl.py").write_text(script_of_this_page("PPO with a penalty"))
    run_hash = command(tmp_path / "ppo_kl", SHORT["ppo"]).hash
    (folder,) = tmp_path.glob("runs/CartPole-v1/ppo_kl/*")
    assert "losses/kl_penalty" in {tag for tag, _ in scalars(folder)}
    (tmp_path / "ppo.py").write_text(patched("algos/ppo.py", change))
    assert command(tmp_path / "ppo", SHORT["ppo"]).hash == run_hash
