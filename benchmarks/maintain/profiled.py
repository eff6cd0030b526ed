"""What the time of a training goes into, part by part.

    python benchmarks/maintain/profiled.py 5000 ppo --env-id LunarLander-v3 --total-timesteps 50000

trains with algos/ppo.py and those flags. From step 5000 on it times what `train` calls, each part
without the parts within it, and prints the microseconds per environment step:

    acting        the network's pass for the next actions
    environments  their own steps, and gymnasium's loop over them
    buffer        storing steps and drawing minibatches
    batch         values, advantages and returns of a rollout
    update        losses, gradients and the optimizer
    plumbing      what Run.step and Run.end_iteration add: checks, returns, curves, checkpoints
    loop          the rest: `train` itself, and a microsecond or so for each part that is timed
"""

import argparse
import importlib
import sys
import time
from collections import Counter
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "algos"
PARTS = ("acting", "environments", "buffer", "batch", "update", "plumbing", "loop")


class Clock:
    """Seconds by part. A part that calls another stands still meanwhile."""

    def __init__(self):
        self.spent, self.running = Counter(), []

    def time(self, owner, name: str, part: str):
        """Puts a timed function in the place of `owner.name`, if there is one."""
        function = getattr(owner, name, None)
        if function is None:
            return

        def timed(*args, **keywords):
            self.running.append(0.0)  # seconds within other parts
            started = time.perf_counter()
            try:
                return function(*args, **keywords)
            finally:
                seconds = time.perf_counter() - started
                self.spent[part] += seconds - self.running.pop()
                if self.running:
                    self.running[-1] += seconds

        setattr(owner, name, timed)


def profile(name: str, flags: list[str], first: int) -> dict:
    """Microseconds per environment step by part, from step `first` of a training to its end."""
    sys.path.insert(0, str(SCRIPTS))
    script, clock, points = importlib.import_module(name), Clock(), []
    for owner in (getattr(script, "Agent", None), getattr(script, "QNetwork", None)):
        clock.time(owner, "act", "acting")
    for owner in (script.SyncEnvs, script.AsyncEnvs, script.AtariEnvs):
        clock.time(owner, "step", "environments")
    for owner in (getattr(script, "RolloutBuffer", None), getattr(script, "ReplayBuffer", None)):
        clock.time(owner, "add", "buffer")
        clock.time(owner, "sample", "buffer")
    for function in ("make_batch", "rollout_batch"):
        clock.time(script, function, "batch")
    for function in ("update", "td3_update"):
        clock.time(script, function, "update")
    clock.time(script.Run, "step", "plumbing")
    clock.time(script.Run, "end_iteration", "plumbing")
    end_iteration = script.Run.end_iteration

    def look(run, scalars):
        step = end_iteration(run, scalars)
        if run.step_count >= first and (not points or run.step_count >= run.args.total_timesteps):
            points.append((run.step_count, time.perf_counter(), clock.spent.copy()))
        return step

    script.Run.end_iteration = look
    sys.argv = [str(SCRIPTS / f"{name}.py"), *flags]
    script.main(name, script.RunArgs, script.make_agent, script.train, script.evaluation_policy)
    if len(points) < 2:
        sys.exit(f"profiled.py: the training ends before two points after step {first}")
    (step, start, before), (last, end, spent) = points
    spent["loop"] = end - start - (spent - before).total()
    return {part: (spent[part] - before[part]) / (last - step) * 1e6 for part in PARTS}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("first", type=int, help="the step from which on parts are timed")
    parser.add_argument("script", choices=("ppo", "a2c", "dqn", "td3"))
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="of the script")
    args = parser.parse_args()
    parts = profile(args.script, args.flags, args.first)
    for part, microseconds in parts.items():
        share = microseconds / sum(parts.values())
        print(f"{part:12} {microseconds:8.1f} us a step  {share:4.0%}")


if __name__ == "__main__":
    main()
