"""A trained agent in Python, of any script or variant that lies beside this file.

from load import load

policy, envs = load("runs/CartPole-v1/ppo/1-20261126-120000")
obs, infos = envs.reset(seed=[7])
obs, rewards, terminated, truncated, infos = envs.step(policy(obs))
"""

import ast
import importlib
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))


def load(path, num_envs: int = 1, **keywords):
    """Of a run folder, or a .npz file in one: how its evaluations act, a function from observations
    to actions, (num_envs, ...) each, and as many environments (see make_envs in ppo.py; num_envs of
    ppo_multi are rows, in whole worlds), made with keywords such as render_mode="human". A policy
    may remember: load it anew for new episodes.

    Of what the folder names only the environment is executed: its module is imported.
    """
    is_weights = Path(path).suffix == ".npz" and not Path(path).is_dir()
    name = algo_of(Path(path).parent if is_weights else Path(path))
    parent, args_class, make_agent, evaluation_policy, make_envs = parts_beside(name)
    with parent.generators_restored():  # the caller may train, such as a student of this agent
        args = parent.parse_args(name, args_class, ["--evaluate", str(path), "--device", "auto"])
        args.async_envs = False  # so that a caller can look into them
        args.eval_episodes = num_envs  # the run makes as many, only for their spaces
        args.torch_threads = torch.get_num_threads()
        run = parent.Run(name, args, make_agent, evaluation_policy, make_envs)
        run.envs.close()
        run.agent.eval()
        envs = make_envs(args, num_envs, training=False, **keywords)
    choose_actions = evaluation_policy(run.agent, np.random.default_rng([args.seed, 1, 1]), args)
    return lambda obs: parent.as_declared(choose_actions(obs), envs.single_action_space), envs


def refuse(text):
    """As the scripts do: one line, and exit status 2."""
    print(f"load: {text}", file=sys.stderr)
    end = SystemExit(2)
    end.explained = True  # as of a script's own `fail`
    raise end


def algo_of(folder: Path) -> str:
    """The name of a run's script."""
    path = folder / "args.json"
    try:
        return json.loads(path.read_text("utf-8-sig"))["algo"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        refuse(f"{path}: {type(error).__name__}: {error}")


def parts_beside(name: str):
    """parts_of a script that lies beside this file: what else a folder names is not imported."""
    if not is_script(name):
        refuse(f"no script beside {Path(__file__).name} is named {name!r}")
    return parts_of(name)


def parts_of(name: str):
    """A variant's parent, or the script itself, and what the script gives to its main."""
    module = importlib.import_module(name)
    call = call_of_main(Path(module.__file__))
    if call is None:
        refuse(f"{name}.py has no call of main, so it is no script")

    def value(node):  # what an expression of the script means there
        return eval(compile(ast.Expression(node), module.__file__, "eval"), vars(module))

    main = value(call.func)
    parent = sys.modules[main.__module__]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    try:
        given = inspect.signature(main).bind(*call.args, **keywords).arguments
        parts = [value(given[x]) for x in ("args_class", "make_agent", "evaluation_policy")]
        make_envs = value(given["make_envs"]) if "make_envs" in given else parent.make_envs
    except (TypeError, NameError) as error:
        refuse(f"{name}.py must write out what it gives to main, each at the top level: {error}")
    return parent, *parts, make_envs


def is_script(name) -> bool:
    """Whether a file beside this one has this name and calls main; nothing else is imported."""
    if not re.fullmatch(r"[A-Za-z_]\w*", str(name)):
        return False
    path = Path(__file__).with_name(f"{name}.py")
    return path.is_file() and call_of_main(path) is not None


def call_of_main(path: Path):
    """The call of main with which a script ends, as a syntax tree; None where there is none."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and re.fullmatch(r"(\w+\.)?main", ast.unparse(node.func)):
            return node
    return None
