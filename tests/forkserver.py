"""Runs scripts in forks of a process that has imported what they import: two seconds less for each.

Reads a line of JSON for each run, {"command": [script, flags ...], "cwd": ..., "out": ..., "err":
..., "kill_after": seconds or null}, and answers with its exit status.
"""

import json
import os
import runpy
import signal
import sys
import time
import traceback

import gymnasium  # noqa: F401
import numpy  # noqa: F401
import torch.utils.tensorboard  # noqa: F401
import tqdm  # noqa: F401
import tyro  # noqa: F401


def run(command, cwd, out, err, **_) -> int:
    os.chdir(cwd)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv, status = command, 0
    sys.path[0] = os.path.dirname(command[0])  # as Python does
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as exit:
        status = exit.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(run(**job))
        if job["kill_after"] is not None:
            time.sleep(job["kill_after"])
            os.kill(child, signal.SIGKILL)  # who has ended waits below, so this is never another
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
