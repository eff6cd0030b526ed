"""What a process that was killed leaves behind, and what the next one makes of it."""

import json

import ppo
import pytest
from conftest import new_run
from test_runs import TINY


def test_seconds_are_those_of_training_alone(monkeypatch):
    """7 s until the checkpoint of the first half, 2 s more that are lost, 3 s after the resume."""
    now = [1000.0]
    monkeypatch.setattr(ppo.time, "perf_counter", lambda: now[0])
    run = new_run(ppo, **TINY["ppo"], eval_episodes=2)

    def begin(run):
        run.start(agent=run.agent)
        points = {}
        run.writer.add_scalar = lambda tag, value, step: points.update({(tag, step): value})
        return points

    points, half = begin(run), run.checkpoint_steps
    now[0] += 7
    run.step_count = half
    run.end_iteration({})
    assert points["charts/SPS", half] == half / 7
    now[0] += 2

    settings = TINY["ppo"] | {"resume": str(run.folder)}
    now[0] += 5000
    resumed = new_run(ppo, **settings, eval_episodes=2)
    now[0] += 20  # imports and the like
    points = begin(resumed)
    assert resumed.step_count == half
    now[0] += 3
    resumed.step_count = total = run.args.total_timesteps
    resumed.end_iteration({})
    assert points["charts/SPS", total] == total / 10
    resumed.finish()
    result = json.loads((run.folder / "result.json").read_text())
    assert result["seconds"] == 10 and result["sps"] == round(total / 10)


@pytest.mark.parametrize("killed_in", ["save", "describe"])
def test_a_folder_with_args_json_can_be_resumed(killed_in, monkeypatch):
    """A run that is killed right at its start has none yet."""
    run = new_run(ppo, **TINY["ppo"])

    def kill(run):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ppo.Run, killed_in, kill)
        run.start(agent=run.agent)
    assert not (run.folder / "args.json").exists()
    assert (run.folder / "checkpoint.pt").exists() == (killed_in == "describe")
