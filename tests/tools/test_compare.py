"""Runs are compared with each other and with our seeds; what looks wrong in curves is found, and
nothing in healthy ones.
"""

import json
from pathlib import Path

import compare
import numpy as np
import pytest
import report
from cells import a_run, cell_named
from conftest import only_run
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter


def write_curves(folder: Path, value: float, arguments: dict | None = None):
    """Episodes of this return up to step 3000; with CleanRL's table of arguments, if any."""
    with SummaryWriter(folder) as writer:
        for step in range(0, 3000, 10):
            writer.add_scalar("charts/episodic_return", value, step)
            writer.add_scalar("charts/episodic_length", 10, step)
        if arguments:
            rows = "\n".join(f"|{key}|{value}|" for key, value in arguments.items())
            writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")


def write_run(folder: Path, value: float, args=(), **saved):
    """A run of ours on CartPole-v1 that is not finished."""
    write_curves(folder, value)
    about = {"algo": "ppo", "args": {"env_id": "CartPole-v1"} | dict(args)} | saved
    (folder / "args.json").write_text(json.dumps(about))


def finish(folder: Path, steps=3000):
    """With an evaluation after 3000 steps."""
    with SummaryWriter(folder) as writer:
        writer.add_scalar("eval/episodic_return", 4.0, 3000)
    (folder / "result.json").write_text(json.dumps({"steps": steps}))


def test_runs_are_compared_cleanrls_too(results, capsys):
    # an argument without a value is the last cell of its row
    arguments = {"env_id": "CartPole-v1", "exp_name": "ppo", "gamma": "0.90", "hf_entity": ""}
    arguments |= {"note": "first line\nsecond line", "wandb": "\x1b[1m"}
    write_curves(results / "cleanrl", 2.2, arguments)
    with SummaryWriter(results / "cleanrl") as writer:
        writer.add_scalar("eval/episodic_return", 77.0, 9)  # of its tenth episode
    write_run(results / "ours", 8.0, {"gamma": 0.9})
    compare.compare([results / "ours"], results / "compare.png")
    out = capsys.readouterr().out
    assert "not finished, so not compared with" in out and "argument" not in out
    finish(results / "ours")
    report.write_cell("ppo", [a_run(seed, 3.0, gamma=0.5) for seed in (1, 2)], report.RESULTS)
    compare.compare([results / "cleanrl", results / "ours"], results / "compare.png")
    _, out = capsys.readouterr().out.split(" seeds\n")  # of write_cell
    table, rest = out.split("\n\n")
    assert [line.split() for line in table.splitlines()] == [
        ["run", "1", "run", "2"],
        ["exp_name", "ppo", "-"],
        ["gamma", "0.90", "0.9"],
        ["hf_entity", "-"],
        ["wandb", "?[1m", "-"],
    ]
    runs = [line for line in rest.splitlines() if line.startswith("Run")]
    assert runs == [f"Run 1: {results}/cleanrl", f"Run 2: {results}/ours"]
    assert "not compared" not in rest  # with [ppo], since there is a cell with their settings
    ours = compare.read_any_run(results / "ours")
    (said,) = compare.beside_seeds(ours, [cell_named("ppo")])
    assert said == "not compared with [ppo], which has other settings: gamma 0.9, not 0.5"
    seeds = "3 seeds of [ppo-mine] reached 1.5 to 2.5"
    assert f"training return 2.2: {seeds}; 2 lower, 1 higher\n" in rest
    assert "return 77" not in rest
    outside = "it lies outside of them, as 50% of all runs do by chance"
    assert f"training return 8.0: {seeds}; {outside}\n" in rest
    assert (results / "compare.png").stat().st_size > 10_000
    write_curves(results / "cut", 2.2, arguments | {"total_timesteps": 30_000})  # a tenth of them
    compare.compare([results / "cut"], results / "compare.png")
    assert "not finished, so not compared with" in capsys.readouterr().out
    compare.compare([results / "ours"] * 2, results / "compare.png")
    assert capsys.readouterr().out.startswith("No argument differs.\n")
    with pytest.raises(report.UserError, match="has no curves"):
        compare.compare([results], results / "compare.png")
    compare.compare([results / "ours"], results / "mine")
    assert capsys.readouterr().out.endswith(f"{results / 'mine.png'}\n")
    with pytest.raises(report.UserError, match="'foo' is not supported"):
        compare.compare([results / "ours"], results / "compare.foo")


def test_a_place_among_seeds_that_are_all_alike(results):
    report.write_cell("ppo", [a_run(seed, 500.0) for seed in (1, 2, 3)], report.RESULTS)
    expected = "greedy return 500.0: 3 seeds of [ppo] reached 500.0 to 500.0; 3 equal"
    assert compare.place(500.0, cell_named("ppo"), "greedy") == expected


def a_variants_run(versions: dict, points=()) -> compare.AnyRun:
    args = {"env_id": "CartPole-v1"}
    return compare.AnyRun(Path("x"), "ppo_lstm", args, {}, list(points), True, versions)


def test_a_variant_is_placed_among_its_own_seeds(results, capsys):
    """Which lie in results/variants/; CleanRL's are named after the algorithm and the task."""
    cells, points = report.read_cells(report.RESULTS), [(9, 2.2, 1.0)]
    said = compare.beside_seeds(a_variants_run({"torch": "2"}, points), cells)
    assert said == ["benchmarks/results/ has no seeds of ppo_lstm on CartPole-v1"]
    (said,) = compare.beside_seeds(a_variants_run({}, points), cells)
    assert "3 seeds of [ppo-mine] reached 1.5 to 2.5" in said
    variant = {"algo": "ppo_lstm"}
    report.write_cell("ppo_lstm", [a_run(1, 3.0) | variant], report.RESULTS / "variants")
    write_run(results / "x", 2.2, **variant, versions={"torch": "2"})
    finish(results / "x")
    compare.compare([results / "x"], results / "compare.png")
    out = capsys.readouterr().out
    assert "1 seed of [ppo_lstm] reached" in out and "[ppo-mine]" not in out


def test_what_is_not_finite_has_no_place_among_seeds(results):
    assert compare.beside_seeds(a_variants_run({}), report.read_cells(report.RESULTS)) == []
    (runs := [a_run(seed, 3.0) for seed in (1, 2)])[1]["returns"]["last100"] = {100: np.nan}
    report.write_cell("ppo-mine", runs, report.RESULTS)
    cells = report.read_cells(report.RESULTS)
    assert compare.beside_seeds(a_variants_run({}, [(9, 2.2, 1.0)]), cells) == []


def test_runs_of_others_are_refused_and_one_that_is_training_is_read(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for tag in ("charts/episodic_return", "charts/episodic_length"):
            writer.add_scalar(tag, 10.0, 1_000)
        writer.add_scalar("charts/episodic_return", 20.0, 2_000)  # its length is not there yet
    with pytest.raises(report.UserError, match="a run neither of ours nor of CleanRL's"):
        compare.read_any_run(tmp_path)
    saved = {"algo": "ppo", "args": {"env_id": "CartPole-v1"}}
    (tmp_path / "args.json").write_text(json.dumps(saved))
    assert compare.read_any_run(tmp_path).points == [(1_000, 10.0, 100.0)]


def test_the_picture_of_a_comparison_lies_beside_the_first_run(tmp_path, monkeypatch, tool):
    calls = []
    monkeypatch.setattr(compare, "compare", lambda *arguments: calls.append(arguments[1]))
    tool(compare, "runs/CartPole-v1/ppo/1-now", "x/y")
    (tmp_path / "1-now").mkdir()
    monkeypatch.chdir(tmp_path / "1-now")
    tool(compare, ".")
    tool(compare, ".", "--picture", "mine.png")
    own = tmp_path / "runs" / "CartPole-v1" / "ppo" / "compare.png"
    assert calls == [own, tmp_path / "compare.png", Path("mine.png")]


def test_scripts_that_differ_are_named(results, tool):
    """In args.json; the same script twice, another one, and one that trains the same weights."""
    command = "python algos/ppo.py --config benchmarks/cartpole.toml:ppo"
    for name, script in (("a", "5c41" * 16), ("b", "5c41" * 16), ("c", "07e4" * 16)):
        versions = {"torch": "2.13.0", "script": script}
        write_run(results / name, 500.0, command=command, versions=versions)
    assert "version" not in tool(compare, "a", "b").out
    out = tool(compare, "a", "b", "c").out
    assert out.splitlines()[1].split() == ["script", *["5c415c415c41"] * 2, "07e407e407e4"]
    for k in (1, 2):
        assert f"Run 3 is of another version of ppo.py than run {k}, which may be why" in out
    records = [{"name": "cartpole:ppo", "scripts": ["07e4" * 16, "5c41" * 16]}]
    (report.RESULTS / report.SAME_NUMBERS).write_text(json.dumps(records))
    out = tool(compare, "a", "b", "c").out
    assert "Run 3 is of another version of ppo.py than run 1, which trains the same weights" in out


def without_progress(returns, total=10_000):
    """What is said of a run with these returns, each the mean of twenty episodes of 50 steps."""
    points = [(1_000 * i, value, 20.0) for i, value in enumerate(returns, 1)]
    args = {"total_timesteps": total}
    return compare.not_risen(compare.AnyRun(Path(), "a2c", args, {}, points, True))


def test_a_return_that_has_not_risen_above_that_of_the_first_episodes():
    (text,) = without_progress([21.0, 23.0, 20.0, 24.0, 21.0, 20.0, 23.0, 22.0])
    assert text == "its return, 22.0, has not risen above that of its first 20 episodes, 21.0"
    assert without_progress([500.0] * 4 + [9.4] * 6), "unlearned again"
    assert not without_progress([21.0, 23.0, 20.0] + [90.0, 150.0, 120.0] * 2)
    assert not without_progress([21.0] * 4), "less than half of the budget"
    assert not without_progress([21.0] * 5, total=5_000), "the first are among the last hundred"
    # of five points whose means of 20 episodes deviate by 9, an episode deviates by 40
    noisy = [21.0, 33.0, 15.0, 24.0, 39.0, 33.0, 15.0, 24.0, 39.0]
    assert without_progress(noisy) and not without_progress([-9.0, *noisy[1:]])
    # 1.5 and 2.5 standard errors below
    assert without_progress([15.0, *noisy[1:]]) and not without_progress([5.0, *noisy[1:]])


def test_nothing_that_a_folder_names_is_executed(results, monkeypatch, tool):
    """No environment is made, no module imported."""
    (results / "evil.py").write_text('open("imported", "w")\nmain("evil")')
    monkeypatch.syspath_prepend(results)
    for algo in ("evil", "../evil"):
        args = {"env_id": "evil:X-v0", "total_timesteps": 3000}
        write_run(results / "run", 8.0, args, algo=algo, command="python evil.py")
        out = tool(compare, "run").out
        assert "has not risen above that of its first 20 episodes" in out
    assert not (results / "imported").exists()


def test_what_is_broken_in_a_folder_is_a_line(results):
    write_curves(results / "run", 8.0)
    deep = "[" * 100_000
    resumed = '{"algo": "ppo", "args": {}, "resumed": [{"step": 1e999, "versions": {}}]}'
    for text in ("{", "[]", deep, resumed, '{"algo": "ppo"}', '{"algo": "ppo", "args": 1}'):
        (results / "run" / "args.json").write_text(text)
        with pytest.raises(report.UserError, match=r"args\.json cannot be read"):
            compare.read_any_run(results / "run")
    write_run(results / "run", 8.0, {"gamma": [0.9]})
    with pytest.raises(report.UserError, match="has no number as gamma"):
        compare.read_any_run(results / "run")
    write_run(results / "run", 8.0, {"gamma": 10**400})
    with pytest.raises(report.UserError, match="has no number as gamma"):
        compare.read_any_run(results / "run")
    (results / "run" / "args.json").unlink()
    write_curves(results / "theirs", 8.0, {"total_timesteps": None})
    with pytest.raises(report.UserError, match="has no number as total_timesteps"):
        compare.read_any_run(results / "theirs")
    with open(results / "run" / "events.out.tfevents.1", "wb") as file:
        RecordWriter(file).write(b"no event of TensorBoard's")
    with pytest.raises(report.UserError, match=r"curves of .* cannot be read"):
        compare.read_any_run(results / "run")
    (results / "run" / "events.out.tfevents.1").unlink()
    write_run(results / "run", 8.0)
    for data in (b"", b"nothing", b"PK\x03\x04nothing"):
        (results / "run" / "weights.npz").write_bytes(data)
        with pytest.raises(report.UserError, match=r"weights\.npz cannot be read"):
            compare.compare([results / "run"], results / "compare.png")

    np.savez(results / "run" / "weights.npz", **{"actor.0.bias": np.zeros(0)})
    compare.compare([results / "run"], results / "compare.png")
    for purge_step in (None, 1):  # stopped before the first checkpoint, then resumed
        with SummaryWriter(results / "empty", purge_step=purge_step) as writer:
            if purge_step is None:
                writer.add_scalar("losses/value_loss", 1.0, 512)
    with pytest.raises(report.UserError, match="has no curves"):
        compare.read_any_run(results / "empty")


@pytest.mark.parametrize("steps, finished", [(3000, True), (4000, False), ([], False)])
def test_a_run_whose_curves_were_cut_is_not_finished(tmp_path, steps, finished):
    write_run(tmp_path / "run", 8.0)
    assert not compare.read_any_run(tmp_path / "run").finished
    finish(tmp_path / "run", steps)
    assert compare.read_any_run(tmp_path / "run").finished == finished


def test_a_run_that_was_resumed_with_something_else_says_so(results, tool):
    first, second = {"torch": "2.13.0", "script": "5c41" * 16}, {"script": "07e4" * 16}
    steps = [(100, first), (2_000, first | second), (2_500, first | second)]
    resumed = [{"step": step, "versions": versions} for step, versions in steps]
    write_run(results / "run", 8.0, versions=first, resumed=resumed)
    lines = [x for x in tool(compare, "run").out.splitlines() if "resumed at" in x]
    assert lines == ["  resumed at step 2,000 with script 07e407e407e4, not 5c415c415c41"]


def test_where_a_whole_curve_lies_among_the_seeds(results):
    """Of four seeds with returns of 10 to 40 at every hundredth of 1,000 steps."""
    runs = [a_run(seed, 3.0) for seed in (1, 2, 3, 4)]
    for run in runs:
        run["result"]["steps"] = 1_000
        run["returns"]["training"] = {step: 10.0 * run["seed"] for step in range(10, 1_001, 10)}
    report.write_cell("ppo", runs, report.RESULTS)

    def said(returns, table="ppo"):
        run = a_variants_run({}, [(step, value, 1.0) for step, value in returns.items()])
        return compare.along(run, cell_named(table))

    # five points below, one above; where the run has no episode there is no point
    values = {step: 25.0 for step in range(10, 401, 10)}
    low, high = dict.fromkeys((50, 60, 100, 110, 120), 9.0), {400: 41.0}
    assert said(values | low | high) == [
        "training curve beside 4 seeds of [ppo]: among them at 85% of 40 points, below them at 12% "
        "(steps 50 to 120), above them at 2% (step 400); by chance"
        " one more seed is outside at 40%"
    ]
    assert said({10: 10.0, 20: 40.0})[0].startswith(
        "training curve beside 4 seeds of [ppo]: among them at 100% of 2 points; by chance"
    )
    assert said({}) == []
    report.write_cell("two", runs[:2], report.RESULTS)
    assert said(values, "two") == []


def symptoms(args=(), episode=(200.0, 200.0), epsilon=0.1, floor=-np.inf, **losses):
    """What is said of curves with a point every 1,000 steps; a number stands for all points."""
    args = {"total_timesteps": 50_000, "num_envs": 1, "gamma": 0.99} | dict(args)
    length = max(len(values) for values in losses.values() if isinstance(values, list))
    curves = {f"losses/{tag}": values for tag, values in losses.items()}
    curves["charts/epsilon"] = epsilon
    if episode is not None:
        curves |= {"charts/episodic_return": episode[0], "charts/episodic_length": episode[1]}
    points = {}
    for tag, values in curves.items():
        values = values if isinstance(values, list) else [values] * length
        points[tag] = [(1_000 * i, value) for i, value in enumerate(values, 1)]
    return compare.health(points, {name: str(value) for name, value in args.items()}, floor)


NEGATIVE = {"explained_variance": [-0.5] * 20}
# Q of one-step targets on CartPole-v1 with hard updates, and of ten-step targets
OVERESTIMATED = [52, 84, 105, 150, 177, 190, 255, 290, 310, 340, 370, 350]
SOLVED = [10, 31, 52, 61, 70, 77, 84, 88, 91, 96, 103, 95]
CLIPPED = {"clip_reward": True, "gamma": 0.9}  # rewards for ever are worth 10
SMALL, LARGE = (2.0, 200.0), (20_000.0, 200.0)  # episodes with rewards of 0.01, of 100
# C51 on CartPole-v1, solved; below with v_max at what rewards for ever are worth, and at a tenth
ENDS = np.linspace(0.04, 0.93, 20).tolist()
SPARSE = {"clip_reward": True, "gamma": 0.98}
PONG = {"q_values": -2.3, "episode": (-20.0, 200.0)}
FLOOR = 0.01 * np.log(2)

HEALTH = [  # curves and arguments, how the one line about them begins or, where all is well, ""
    # a symptom must last a tenth of the run without a break
    ({"explained_variance": [-0.5] * 5 + [0.1] + [-0.5] * 5}, ""),
    (
        {"explained_variance": [0.1] + [-0.5] * 40},
        "from step 2,000 on the explained variance is negative (-0.5)",
    ),
    ({"explained_variance": [-0.5] * 16, "args": {"num_envs": 8}}, ""),
    # Q is what rewards were worth at their best, though the policy has unlearned since
    ({"q_values": [90.0] * 20, "episode": ([200.0] * 10 + [20.0] * 10, 200.0)}, ""),
    ({"explained_variance": [-0.5] * 17, "args": {"num_envs": 8}}, "from step 1,000 on the expl"),
    # but what is not finite is said at once; of equal returns nothing is explained
    ({"value_loss": [1.0] * 9 + [np.nan] * 2}, "from step 10,000 on losses/value_loss is not fin"),
    ({"explained_variance": [np.nan] + [0.5] * 10}, ""),
    # returns that hardly differ need no explanation: CartPole-v1 solved, gamma 0, no reward found
    (NEGATIVE | {"value_loss": 0.5}, ""),
    (NEGATIVE | {"value_loss": 200.0}, "from step 1,000 on the explained variance"),
    ({"explained_variance": [-1e6] * 20, "value_loss": 0.005, "args": {"gamma": 0}}, ""),
    ({"explained_variance": [-1e5] * 20, "value_loss": 1e-3, "episode": (0, 200)}, ""),
    # rewards that are divided by the deviation of their returns, of whatever size they were
    (
        NEGATIVE | {"value_loss": 0.5, "episode": (-1e6, 200.0), "args": {"norm_reward": True}},
        "from step 1,000 on the explained variance",
    ),
    (NEGATIVE | {"value_loss": 0.5, "episode": (-1e6, 200.0)}, ""),
    # Q above what rewards are worth, or as far below; not while actions are random
    ({"q_values": OVERESTIMATED}, "from step 7,000 on Q is 350, where the largest mean reward"),
    ({"qf1_values": OVERESTIMATED}, "from step 7,000 on Q is 350, where the largest mean reward"),
    ({"q_values": SOLVED}, ""),
    ({"q_values": [-q for q in OVERESTIMATED]}, "from step 7,000 on Q is -350"),
    ({"q_values": OVERESTIMATED, "epsilon": 0.9}, ""),
    ({"q_values": OVERESTIMATED, "episode": (0.0, 200.0)}, ""),
    ({"q_values": OVERESTIMATED, "args": {"gamma": 1.0}}, ""),
    # clipped rewards are worth what they are worth, whatever the game's score
    ({"q_values": [9.0] * 20, "episode": SMALL, "args": {"gamma": 0.9}}, "from step 1,000 on Q is"),
    ({"q_values": [9.0] * 20, "episode": SMALL, "args": CLIPPED}, ""),
    ({"q_values": [21.0] * 20, "episode": LARGE, "args": {"gamma": 0.9}}, ""),
    ({"q_values": [21.0] * 20, "episode": LARGE, "args": CLIPPED}, "from step 1,000 on Q is 21"),
    # mass at the ends of the support is well where the returns are, as most of 0 at v_min
    ({"mass_at_ends": ENDS, "q_values": 91.0}, ""),
    (
        {"mass_at_ends": ENDS, "q_values": 9.7},
        "from step 11,000 on 74% of the return's distribution lies at",
    ),
    ({"mass_at_ends": ENDS, "q_values": 0.26, "episode": (0.4, 20.0), "args": SPARSE}, ""),
    # DQN on Pong whose convolutions have no active unit left, and one that learns
    (PONG | {"q_spread": [0.0] * 20}, "from step 1,000 on Q is -2.3 whatever the state"),
    (PONG | {"q_spread": [0.01] * 20}, ""),
    ({"q_spread": [0.0] * 20, "q_values": 0.0}, ""),
    # entropy is watched in the first half; later the task is solved
    ({"entropy": [0.5] * 3 + [1e-3] * 40, "floor": FLOOR}, "from step 4,000 on the entropy is 0.0"),
    ({"entropy": [0.5] * 22 + [1e-3] * 28, "floor": FLOOR}, ""),
    # an environment without an end; not when the run has just begun
    ({"value_loss": [1.0] * 20, "episode": None}, "from step 1,000 on no episode ended: has the"),
    ({"value_loss": [1.0] * 5, "episode": None}, ""),
]


def test_episodes_of_no_length_say_nothing_of_rewards():
    """As of a run whose curve of lengths, or of returns, is another's."""
    curves = {"charts/episodic_length": [(1, 0.0), (2, 3.0)]}
    assert compare.health(curves, {"gamma": "0.9", "total_timesteps": "2"}, -np.inf) == []


@pytest.mark.parametrize("curves, said", HEALTH)
def test_symptoms_are_found_in_curves_and_none_in_healthy_ones(curves, said):
    found = symptoms(**curves)
    assert len(found) == bool(said), found
    assert all(text.startswith(said) for text in found), found


def test_the_least_entropy_is_in_units_of_the_action_space(tmp_path):
    scalars = {"losses/entropy": [(1, 0.6), (2, 0.1)]}
    run = compare.AnyRun(tmp_path, "ppo", {}, scalars, [], True)
    assert compare.least_entropy(run) == pytest.approx(0.006), "without weights"
    arrays = {"actor.0.bias": np.zeros(64), "actor.2.bias": np.zeros(4)}
    np.savez(tmp_path / "weights.npz", **arrays)
    assert compare.least_entropy(run) == pytest.approx(0.01 * np.log(4))
    np.savez(tmp_path / "weights.npz", log_std=np.zeros(6), **arrays)
    assert -20 < compare.least_entropy(run) < -6.5  # log_std of -4.8, and of -2.5
    cleanrl = compare.AnyRun(tmp_path / "cleanrl", "ppo_continuous_action", {}, scalars, [], True)
    assert compare.least_entropy(cleanrl) == -np.inf, "its weights are not here"


MISTAKES = {  # flags that are mistakes, each made by people, and what is said of the run
    "a learning rate of nothing": (
        "a2c --total-timesteps 6000 --learning-rate 0 --no-anneal-lr",
        "has not risen above that of its first 20 episodes",
    ),
    "a learning rate that drowns the policy": (
        "ppo --num-envs 1 --total-timesteps 6000 --learning-rate 1",
        "the entropy is",
    ),
    "one-step targets from a hard copy, learned too fast": (
        "dqn --total-timesteps 4000 --train-frequency 4 --gradient-steps 1 --batch-size 32 "
        "--n-step 1 --tau 1 --loss mse --learning-rate 0.03 --no-anneal-lr "
        "--exploration-steps 600 --learning-starts 100",
        "Q is ",
    ),
    "C51 with the support of Atari's clipped rewards": (
        "dqn --total-timesteps 6000 --gradient-steps 1 --n-atoms 51 --v-min -10 --v-max 10",
        "of the return's distribution lies at --v-min and --v-max",
    ),
}


HEALTHY = {
    "ppo": "--num-envs 2 --total-timesteps 8192",
    "a2c": "--num-envs 2 --total-timesteps 8000",
    "dqn": "--total-timesteps 6000 --gradient-steps 1 --n-atoms 51 --v-min 0 --v-max 100",
    "td3": "--env-id Pendulum-v1 --total-timesteps 2200 --learning-starts 200 --batch-size 16 "
    "--hidden-sizes 16 16",
}


@pytest.mark.parametrize(
    "mistake",
    [
        name if i == 0 else pytest.param(name, marks=pytest.mark.slow)
        for i, name in enumerate(MISTAKES)
    ],
)
def test_a_run_with_a_mistake_says_so(command, tmp_path, capsys, mistake):
    flags, symptom = MISTAKES[mistake]
    command(*flags.split(maxsplit=1))
    compare.compare([only_run(tmp_path)], tmp_path / "compare.png")
    assert sum(symptom in line for line in capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    "name", ["ppo", "dqn", *(pytest.param(name, marks=pytest.mark.slow) for name in ("a2c", "td3"))]
)
def test_a_healthy_run_says_so(command, tmp_path, capsys, name):
    command(name, HEALTHY[name])
    run = compare.read_any_run(only_run(tmp_path))
    assert compare.health(run.scalars, run.text, compare.least_entropy(run)) == []
    if name in ("ppo", "dqn"):  # the others' runs are too short to learn anything
        compare.compare([run.folder], tmp_path / "compare.png")
        assert "its curves look healthy" in capsys.readouterr().out


def test_the_last_evaluation_is_placed_among_those_of_the_seeds(results):
    write_run(results / "run", 2.2, {"gamma": 0.9})
    with SummaryWriter(results / "run") as writer:
        writer.add_scalar("eval/episodic_return", 99.0, 1000)
    finish(results / "run")
    run = compare.read_any_run(results / "run")
    said = compare.beside_seeds(run, report.read_cells(report.RESULTS))
    assert [x[:20] for x in said if x.startswith("greedy")] == ["greedy return 4.0: 3"]


@pytest.mark.parametrize("own", [{"torch_threads": 4}, {"device": "cuda"}])
def test_where_a_run_was_trained_is_no_setting(results, own):
    cell = [a_run(seed, 3.0, torch_threads=1, device="cpu") for seed in (1, 2, 3)]
    report.write_cell("ppo-mine", cell, report.RESULTS)
    write_run(results / "run", 2.2, {"gamma": 0.9} | own)
    finish(results / "run")
    run = compare.read_any_run(results / "run")
    said = compare.beside_seeds(run, report.read_cells(report.RESULTS))
    assert "3 seeds of [ppo-mine] reached" in said[0]


@pytest.mark.parametrize("total, finished", [(3000, True), (3500, False)])
def test_a_run_of_cleanrl_is_finished_near_its_last_step(results, total, finished):
    arguments = {"env_id": "CartPole-v1", "exp_name": "ppo", "total_timesteps": total}
    write_curves(results / "run", 2.2, arguments)
    assert compare.read_any_run(results / "run").finished == finished
