"""Trains until 20 greedy episodes have a mean return, and then prints the steps: for speed.py.

    python benchmarks/maintain/until_solved.py 475 CartPole-v1 ppo --config benchmarks/cartpole.toml

They are played every 2,000 steps, in the environment that the second word names.
"""

import argparse
import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "algos"


def main(threshold: float, evaluated_on: str, name: str, flags: list[str]):
    sys.path.insert(0, str(SCRIPTS))
    script, parent = importlib.import_module(name), importlib.import_module(name.split("_")[0])
    end_iteration = parent.Run.end_iteration

    def look(run, scalars):
        due = run.due(2_000)
        args = run.args
        steps = end_iteration(run, scalars)
        if due:
            run.args = dataclasses.replace(args, env_id=evaluated_on, eval_episodes=20)
            if run.evaluate().mean() >= threshold:
                print(json.dumps({"steps": steps}), flush=True)
                os._exit(0)
            run.args = args
        return steps

    parent.Run.end_iteration = look
    sys.argv = [str(SCRIPTS / f"{name}.py"), *flags]
    args_class = getattr(script, "RunArgs", script.Args)
    parent.main(name, args_class, script.make_agent, script.train, parent.evaluation_policy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("threshold", type=float, help="mean return of 20 episodes")
    parser.add_argument("evaluated_on", help="environment of the episodes")
    parser.add_argument("script", help="of algos/, without .py")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="of the script")
    args = parser.parse_args()
    main(args.threshold, args.evaluated_on, args.script, args.flags)
