"""ppo_parallel.py: ranks that learn together. Here they are forks that meet through a file; what
torch.distributed.run itself does is tested by the slow ones.
"""

import copy
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import ppo
import ppo_parallel
import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, Result, env_seeds, only_run, parse, scalars
from torch import nn
from torch.distributed.run import get_args_parser

PENDULUM = "--env-id Pendulum-v1 --num-envs 3 --num-steps 10 --num-minibatches 2 --norm-obs "
PENDULUM += "--norm-reward --update-epochs 3 --eval-episodes 2 --checkpoint-frequency 100"
FORK = multiprocessing.get_context("fork")
SECONDS = 120  # after which ranks that wait for each other are ended
os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # it warns where the host's name has no address


@pytest.fixture
def on_ranks(tmp_path_factory):
    """on_ranks(n, function) calls function(rank) in n processes: what each gives back, or where it
    ends by an error or by sys.exit, a Result. With group=False they do not meet before the call.
    """
    processes = []

    def call(n, function, group=True, ok=True):
        folder = tmp_path_factory.mktemp("ranks")
        own = [FORK.Process(target=rank_of, args=(folder, r, n, function, group)) for r in range(n)]
        processes.extend(own)
        for process in own:
            process.start()
        for process in own:
            process.join(SECONDS)
            assert process.exitcode is not None, "ranks wait for each other"
        results = [result(folder, rank, process.exitcode) for rank, process in enumerate(own)]
        failed = any(process.exitcode for process in own)
        assert not (ok and failed), [getattr(x, "err", x) for x in results]
        return results

    yield call
    for process in processes:
        process.kill()


def rank_of(folder, rank, n, function, group):
    """What a process does."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(n)}
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    meet, by_file = dist.init_process_group, {"init_method": f"file://{folder}/store"}
    by_file |= {"rank": rank, "world_size": n, "timeout": timedelta(seconds=SECONDS / 2)}
    dist.init_process_group = lambda backend, timeout=None: meet(backend, **by_file)
    if group:
        dist.init_process_group("gloo")
    (folder / f"answer-{rank}").write_bytes(pickle.dumps(function(rank)))


def result(folder, rank, status):
    answer = folder / f"answer-{rank}"
    if answer.exists():
        return pickle.loads(answer.read_bytes())
    return Result(status, *((folder / f"{name}-{rank}").read_text() for name in ("out", "err")))


def parts():
    """What ppo_parallel.join is given."""
    names = ("Args", "make_agent", "train", "make_envs")
    return tuple(getattr(ppo_parallel, name) for name in names)


def script(flags):
    """A function for on_ranks: what the script does when it is started."""

    def run(rank):
        sys.argv = ["ppo_parallel.py", *flags.split()]
        ppo_parallel.join(*parts())
        args_class, make_agent, train, make_envs = parts()
        ppo.main("ppo_parallel", args_class, make_agent, train, ppo.evaluation_policy, make_envs)
        sys.exit(0)

    return run


def trained(flags, look=lambda run: run.hash()):
    """A function for on_ranks: it trains and gives back what `look` finds in the rank's run."""

    def train(rank):
        seen, train = [], ppo_parallel.train
        ppo_parallel.train = lambda args, run: seen.append(run) or train(args, run)
        if rank > 0:
            ppo_parallel.follow(*parts())
        else:
            args = parse(ppo_parallel, flags.split())
            own = ppo_parallel.make_agent, ppo.evaluation_policy, ppo_parallel.make_envs
            run = ppo.Run("ppo_parallel", args, *own)
            ppo_parallel.train(args, run)
            run.finish()
        return look(seen[0])

    return train


def test_another_rank_goes_on_from_a_checkpoint_as_after_a_resume():
    """Whatever an update draws from NumPy, and whatever gradients it leaves."""

    def follower(first_step):
        args = parse(ppo_parallel, f"{PENDULUM} --total-timesteps 540".split())
        args.first_step = first_step
        own = ppo.make_agent, ppo.evaluation_policy, ppo.make_envs
        run = ppo_parallel.FollowingRun("ppo_parallel", args, *own)
        run.start(agent=run.agent)
        return run

    run = follower(0)
    while run.step_count < run.checkpoint_steps:
        run.step(np.zeros((3, 1)))
    np.random.random()  # in an update
    run.agent.log_std.grad = torch.ones(1)
    run.end_iteration({})
    assert run.agent.log_std.grad is None
    draws = np.random.random(), random.random()
    follower(run.step_count)
    assert (np.random.random(), random.random()) == draws


@pytest.mark.parametrize(
    "flags", [f"{PENDULUM} --target-kl 0.05", "--num-minibatches 4 --num-envs 4"]
)
def test_one_rank_is_ppo(on_ranks, command, flags):
    flags += " --total-timesteps 540"
    expected = command("ppo", flags, "--runs-dir", "plain").hash
    assert command("ppo_parallel", flags, "--runs-dir", "alone").hash == expected
    (alone,) = on_ranks(1, script(flags), group=False)  # as torch.distributed.run starts one
    assert alone.hash == expected


def share_at_checkpoints_alone():
    """Between them all learn the same: without it, what they share would hide that they do not."""
    share = ppo_parallel.share
    ppo_parallel.share = lambda parts: share(parts) if "optimizer" in parts else None


def test_all_ranks_end_with_one_hash(on_ranks):
    """Across checkpoints, and with a last rollout that is shorter."""

    def look(run):
        counts = [
            moments.count.item() for moments in (run.agent.obs_moments, run.agent.return_moments)
        ]
        return run.hash(), run.step_count, *counts

    def alike(rank):
        share_at_checkpoints_alone()
        return trained(f"{PENDULUM} --total-timesteps 552", look)(rank)

    found = on_ranks(2, alike)
    assert set(found) == {(found[0][0], 552, 552, 552)}


def test_what_a_rank_has_of_its_own_gives_way_to_rank_0_s(on_ranks):
    """Statistics of batch norm, and weights that are drawn anew: all act by the same ones. There is
    no checkpoint.
    """

    def edited(rank):
        start, rollout_batch, collect_step = ppo.Agent.__init__, ppo.rollout_batch, ppo.collect_step
        acted_by = []

        def with_batch_norm(agent, *arguments):
            start(agent, *arguments)
            agent.actor = nn.Sequential(nn.BatchNorm1d(4), agent.actor)

        def drawn_anew(agent, *arguments):
            agent.critic[-1].reset_parameters()
            return rollout_batch(agent, *arguments)

        def watched(agent, run, args):
            acted_by.append(run.hash())
            return collect_step(agent, run, args)

        ppo.Agent.__init__, ppo.rollout_batch = with_batch_norm, drawn_anew
        ppo.collect_step = watched
        flags = "--num-envs 2 --num-steps 16 --total-timesteps 256 --eval-episodes 1"
        return trained(flags, lambda run: acted_by)(rank)

    first, second = on_ranks(2, edited)
    assert first == second and len(set(first)) == 4


def test_ranks_learn_what_one_learns_from_the_samples_of_all(on_ranks):
    """One minibatch without normalised advantages, so that the order does not matter."""
    flags = "--num-envs 5 --num-steps 7 --total-timesteps 140 --no-norm-adv --update-epochs 3 "
    flags += "--max-grad-norm 0.01 --eval-episodes 1 --ent-coef 0.01"
    seen, update, ppo_loss = [], ppo.update, ppo.ppo_loss

    def spied(agent, optimizer, batch, *rest):
        before = copy.deepcopy(agent.state_dict())
        scalars = update(agent, optimizer, batch, *rest)
        seen.append((before, batch, scalars, copy.deepcopy(agent.state_dict())))
        return scalars

    def with_a_plain_number(agent, minibatch, args, clip_coef):
        loss, terms, log_ratio = ppo_loss(agent, minibatch, args, clip_coef)
        return loss, terms | {"clip_coef": clip_coef}, log_ratio

    def both(rank):
        ppo.update, ppo.ppo_loss = spied, with_a_plain_number
        trained(flags)(rank)
        return seen[0]

    (before, batch, scalars, after), (others, other_batch, _, _) = on_ranks(2, both)
    args = parse(ppo, flags.split())
    env = ppo.make_env("CartPole-v1")
    agent = ppo.make_agent(args, env.observation_space, env.action_space)
    agent.load_state_dict(before)
    for name, tensor in others.items():
        assert torch.equal(tensor, before[name]), name
    whole = {name: torch.cat([tensor, other_batch[name]]) for name, tensor in batch.items()}
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    rng = np.random.default_rng(0)
    expected = update(agent, optimizer, whole, args, args.clip_coef, rng, ppo.ppo_loss)
    for name, tensor in agent.state_dict().items():
        torch.testing.assert_close(after[name], tensor, atol=1e-5, rtol=1e-4)
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac"):
        name = f"losses/{name}"
        assert scalars[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-6), name
    assert scalars["losses/clip_coef"] == pytest.approx(args.clip_coef)


def test_gradients_are_averaged_before_they_are_clipped(on_ranks):
    """Of (3, 4, 0) and (0, 0, -12), whose norms are clipped to 0.5 later: the mean by hand. The
    loss of rank 1 alone has a term of more parameters. A frozen one gets no gradient, by which
    AdamW would let it decay.
    """
    slopes = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, -12.0]])

    def backward(rank):
        frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        agent = nn.ParameterDict({"all": torch.zeros(3), "one": torch.zeros(2), "none": frozen})
        loss, term = (agent["all"] * slopes[rank]).sum(), torch.tensor(5.0 + 2 * rank)
        if rank == 1:
            loss = loss + 7 * agent["one"].sum()
        ppo_parallel.SharedLoss(agent, loss, [term]).backward()
        assert frozen.grad is None
        return agent["all"].grad.tolist(), agent["one"].grad.tolist(), term.item()

    assert on_ranks(2, backward) == [([1.5, 2.0, -6.0], [3.5, 3.5], 6.0)] * 2


def test_what_an_edit_adds_is_the_same_on_all_ranks(on_ranks):
    """To a copy of ppo.py: moments of a kind of their own, a module beside the agent that learns,
    and a learning rate by NumPy. Across a checkpoint.
    """

    class Narrow(ppo.RunningMoments):
        pass

    def edited(rank):
        share_at_checkpoints_alone()
        torch.manual_seed(rank)
        model, start, ppo_loss = nn.Linear(4, 4), ppo.Agent.__init__, ppo.ppo_loss
        rollout_batch, train = ppo.rollout_batch, ppo.train

        def with_moments(agent, *arguments):
            start(agent, *arguments)
            agent.moments_of_returns = Narrow(())

        def seen(agent, *arguments):
            batch, running_returns = rollout_batch(agent, *arguments)
            agent.moments_of_returns.update(batch["returns"])
            return batch, running_returns

        def with_a_model(agent, minibatch, *arguments):
            loss, *others = ppo_loss(agent, minibatch, *arguments)
            obs = minibatch["obs"]
            return loss + ((model(obs) - obs) ** 2).mean(), *others

        def with_an_optimizer(args, run, **hooks):
            parameters = [*run.agent.parameters(), *model.parameters()]
            optimizer = torch.optim.Adam(parameters, lr=np.float64(1e-2))
            train(args, run, optimizer=optimizer, parts={"model": model}, **hooks)

        ppo.Agent.__init__, ppo.rollout_batch, ppo.ppo_loss = with_moments, seen, with_a_model
        ppo.train = with_an_optimizer
        flags = "--num-envs 2 --num-steps 16 --total-timesteps 512 --checkpoint-frequency 256"
        look = lambda run: (run.hash(), int(run.agent.moments_of_returns.count))  # noqa: E731
        return *trained(f"{flags} --eval-episodes 1", look)(rank), model.weight.tolist()

    first, second = on_ranks(2, edited)
    assert first == second and first[1] == 512


def test_the_moments_of_all_ranks_are_those_of_all_they_saw_each_sample_once(on_ranks):
    """Three ranks, three updates, of 2, 3, 5 and more samples of 7 numbers."""
    rng = np.random.default_rng(0)
    sizes = [(2, 3, 5), (11, 13, 17), (19, 1, 23)]
    data = [[rng.normal(rank, 1 + rank, (n, 7)) for rank, n in enumerate(row)] for row in sizes]

    def update(rank):
        moments = ppo.RunningMoments((7,))
        for row in data:
            ppo_parallel.update_moments(moments, row[rank])
        return moments.count.item(), moments.mean.numpy(), moments.var.numpy()

    everything = np.concatenate([x for row in data for x in row])
    found = on_ranks(3, update)
    for count, mean, var in found:
        assert count == len(everything) == 94
        np.testing.assert_allclose(mean, everything.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(var, everything.var(axis=0), rtol=1e-12)
        np.testing.assert_array_equal([mean, var], found[0][1:])


def test_no_two_ranks_play_the_same_nor_what_evaluations_play(on_ranks):
    """At the start and after each of two checkpoints: environments, NumPy's and torch's noise."""
    drawn, noise, seeds, reset = [], [], [], ppo.reset

    def look(rank):
        share = ppo_parallel.share_state

        def shared(run):
            share(run)
            drawn.append(run.rng.bit_generator.state["state"]["state"])
            noise.append(torch.get_rng_state().numpy().tobytes())

        ppo_parallel.share_state = shared
        ppo.reset = lambda envs, *entropy: seeds.append(entropy) or reset(envs, *entropy)
        trained("--num-envs 3 --num-steps 4 --checkpoint-frequency 36 --total-timesteps 108")(rank)
        return drawn, noise, [seed for entropy in seeds[:3] for seed in env_seeds(3, *entropy)]

    found = on_ranks(3, look)
    assert [len(draws) for draws, _, _ in found] == [3] * 3
    assert len({draw for draws, _, _ in found for draw in draws}) == 9
    # nothing draws from rank 0's of torch, which goes on as in ppo
    assert [len({*noise}) for _, noise, _ in found] == [1, 3, 3]
    assert len({state for _, noise, _ in found for state in noise}) == 7
    played = [seed for _, _, of_rank in found for seed in of_rank]
    assert len({*played, *env_seeds(3, 1, 0, 1)}) == 30


def test_all_ranks_collect_at_the_step_that_all_have_reached(on_ranks):
    """As ppo does: what a curriculum goes by. Their generators stay the same objects."""

    def look(rank):
        steps, generators, collect = [], [], ppo.collect_step

        def collect_step(agent, run, args):
            steps.append(run.step_count)
            generators.append(run.rng)
            return collect(agent, run, args)

        ppo.collect_step = collect_step
        trained("--num-envs 3 --num-steps 4 --checkpoint-frequency 24 --total-timesteps 48")(rank)
        return steps, len({id(generator) for generator in generators})

    assert on_ranks(2, look) == [(list(range(0, 48, 6)), 1)] * 2


def test_first_weights_and_later_ones_are_those_of_rank_0(on_ranks, tmp_path):
    """Who reads --init-weights alone, on a machine that may be the only one to have the file."""
    run = ppo.Run("ppo", ppo.RunArgs(seed=9), ppo.make_agent, ppo.evaluation_policy)
    np.savez(tmp_path / "first.npz", **run.arrays())
    flags = "--init-weights first.npz --total-timesteps 512 --learning-rate 0 --eval-episodes 1"

    def elsewhere(rank):
        if rank > 0:
            os.chdir("/")
        return trained(flags)(rank)

    assert on_ranks(2, elsewhere) == [run.hash()] * 2


def test_ranks_that_lose_one_end_and_resume_to_the_same_hash(on_ranks, tmp_path):
    """Rank 1 is killed between two checkpoints."""
    flags = f"{PENDULUM} --total-timesteps 540 --target-kl 0.05"
    whole = on_ranks(2, trained(f"{flags} --exp-name whole"))
    update, calls = ppo.update, []

    def killed(rank):
        def dies(*arguments):
            calls.append(1)
            if rank == 1 and len(calls) == 6:  # at 360 of 540 steps, a checkpoint each 120
                os.kill(os.getpid(), signal.SIGKILL)
            return update(*arguments)

        ppo.update = dies
        trained(f"{flags} --exp-name killed")(rank)

    first, second = on_ranks(2, killed, ok=False)
    assert (first.status, second.status) == (1, -signal.SIGKILL) and "RuntimeError" in first.err
    (folder,) = tmp_path.glob("runs/*/*/killed-*")
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["step"] == 240
    assert on_ranks(2, trained(f"--resume {folder}")) == whole
    assert whole[0] == whole[1]


def test_ranks_whose_loop_ended_early_do_not_train_when_resumed(on_ranks, tmp_path):
    train = ppo.train

    def short(args, run, **own):
        args.total_timesteps = 120
        train(args, run, **own)

    def stopped(run):
        raise KeyboardInterrupt  # in the evaluation

    def ended(rank):
        ppo.train = short
        ppo.Run.evaluate = stopped
        return trained(f"{PENDULUM} --total-timesteps 540")(rank)

    _, second = on_ranks(2, ended, ok=False)
    folder = only_run(tmp_path)
    assert on_ranks(2, trained(f"--resume {folder}"))[0] == second


def test_a_loss_that_is_not_finite_in_one_rank_ends_all_before_a_checkpoint(on_ranks, tmp_path):
    loss, calls = ppo.ppo_loss, []

    def broken(rank):
        def nan(*arguments):
            value, terms, log_ratio = loss(*arguments)
            calls.append(1)
            if rank == 1 and len(calls) == 20:  # the last one before the checkpoint at 256
                value, terms = value * np.nan, {**terms, "policy_loss": value * np.nan}
            return value, terms, log_ratio

        ppo.ppo_loss = nan
        flags = "--num-envs 4 --num-steps 16 --checkpoint-frequency 256 --total-timesteps 512"
        trained(flags)(rank)

    results = on_ranks(2, broken, ok=False)
    assert "losses/policy_loss not finite at step 256" in results[0].err
    saved = torch.load(only_run(tmp_path) / "checkpoint.pt", weights_only=True)
    assert saved["step"] == 0 and results[1].status == 1


def test_curves_show_the_episodes_of_all_ranks(on_ranks, tmp_path):
    """An episode of rank r counts 100 r + 10; two for each rank and rollout."""

    def marked(rank):
        collect = ppo.collect_step

        def ends(agent, run, args):
            marks = list(run.finished)
            step = collect(agent, run, args)
            run.finished = marks
            if run.step_count % run.args.iteration_steps == 0:
                run.finished += [(100 * rank + 10, 1)] * 2
            return step

        ppo.collect_step = ends
        flags = "--env-id environments:Clock-v0 --num-envs 1 --num-steps 4 --log-frequency 12 "
        run = trained(f"{flags} --total-timesteps 36 --eval-episodes 1", lambda run: run)(rank)
        return len(run.finished)

    on_ranks(3, marked)
    found = scalars(only_run(tmp_path))
    for step in (12, 24, 36):
        assert found["charts/episodic_return", step] == [pytest.approx(110)]


REFUSED = {
    "--num-minibatches 3": "num_minibatches=3 must divide num_envs * num_steps=256",
    "--total-timesteps 1000": "num_envs * num_ranks=16 must divide total_timesteps=1000",
    "--num-ranks 3": "num_ranks=3, but there are 2: start it by python -m torch.distributed.run",
    "--evaluate nowhere.npz": "evaluate takes one process, not 2",
    "--device cuda:0": "device=cuda:0: each rank takes a GPU of its own",
    "--env-id Nowhere-v0": "environment Nowhere-v0",
    "--env-id environments:Several-v0": "actions must be Discrete or a Box",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_it_cannot_take_is_said_once_and_in_a_line(on_ranks, tmp_path, flags):
    first, second = on_ranks(2, script(flags), group=False, ok=False)
    assert first.status == 2 and first.err.count("\n") == 1 and REFUSED[flags] in first.err
    assert (second.status, second.out, second.err) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_the_line_that_resumes_starts_as_many(on_ranks):
    def launcher(rank):
        ppo_parallel.join(*parts())  # from which rank 1 does not come back
        return ppo.Run.launcher

    first, _ = on_ranks(2, launcher, group=False)
    assert first == ("python", "-m", "torch.distributed.run", "--nproc-per-node=2")


def test_a_variant_has_its_own_arguments_and_training_on_all_ranks(on_ranks):
    @dataclass
    class Args(ppo_parallel.Args):
        bonus: float = 0.5

    def train(args, run):
        print("bonus", args.bonus, flush=True)
        ppo_parallel.train(args, run)

    def variant(rank):
        flags = "--num-envs 2 --total-timesteps 256 --eval-episodes 2 --bonus 0.25"
        sys.argv = ["ppo_variant.py", *flags.split()]
        ppo_parallel.join(Args, ppo_parallel.make_agent, train, ppo_parallel.make_envs)
        ppo.main("ppo_variant", Args, ppo_parallel.make_agent, train, ppo.evaluation_policy)
        sys.exit(0)

    first, second = on_ranks(2, variant, group=False)
    assert first.out.startswith("bonus 0.25\n") and second.out == "bonus 0.25\n"


def test_help_ends_all(on_ranks):
    first, second = on_ranks(2, script("--help"), group=False)
    assert (first.status, second.status, second.out) == (0, 0, "") and "--num-ranks" in first.out


def test_a_run_of_several_ranks_is_resumed_by_as_many_and_evaluated_by_one(
    on_ranks, command, tmp_path
):
    flags = "--num-envs 2 --total-timesteps 512 --eval-episodes 2 --norm-obs"
    first, second = on_ranks(2, script(flags), group=False)
    assert (first.status, second.status, second.out + second.err) == (0, 0, "")
    folder = only_run(tmp_path)
    evaluated = command("ppo_parallel", "--evaluate", folder)
    assert evaluated.line("evaluation") == first.line("evaluation")
    assert json.loads((folder / "args.json").read_text())["args"]["num_ranks"] == 2
    assert json.loads((folder / "result.json").read_text())["steps"] == 512
    (folder / "checkpoint.pt").touch()
    result = command("ppo_parallel", "--resume", folder, ok=False)
    assert result.status == 2 and "num_ranks=2, but there are 1" in result.err


def test_commands_of_the_page_parse():
    text = (ROOT / "docs" / "variants.md").read_text()
    text += (ROOT / "algos" / "ppo_parallel.py").read_text()
    text += (ROOT / "benchmarks" / "variants.toml").read_text().replace("\n# ", " ")
    found = re.findall(r"-m torch.distributed.run (--.*?ppo_parallel.py.*)", text)
    assert len(found) >= 7
    for command in found:
        words = get_args_parser().parse_args(command.split())
        assert (ROOT / words.training_script).exists()
        if "--resume" not in command:
            parse(ppo_parallel, words.training_script_args)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
PATH = str(ROOT / "algos" / "ppo_parallel.py")
SLOW = "--num-envs 2 --total-timesteps 8192 --checkpoint-frequency 1024 --eval-episodes 2"


def hash_of(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return re.findall(r"run hash +(\w+)", out)


def started(*words, **keywords):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*TORCHRUN, *words], **pipes, **keywords)


@pytest.mark.slow
def test_two_hosts_train_what_one_does(on_ranks, tmp_path):
    """They know each other by an address; only the first one writes."""
    expected = on_ranks(2, trained(SLOW))[0]
    hosts = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        where = f"--nnodes 2 --node-rank {rank} --nproc-per-node 1 --master-addr 127.0.0.2"
        words = f"{where} --master-port {29600 + os.getpid() % 300}".split()
        hosts.append(started(*words, PATH, *SLOW.split(), cwd=tmp_path / str(rank)))
    try:
        assert [hash_of(host) for host in hosts] == [[expected], []]
    finally:
        for host in hosts:
            host.kill()
    assert only_run(tmp_path / "0") and not list((tmp_path / "1").iterdir())


def test_ranks_wait_for_rank_0_as_long_as_an_evaluation_may_take(monkeypatch):
    told = []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(ppo.Run, "launcher", None)
    stand_in = SimpleNamespace(get_rank=lambda: 0)
    stand_in.init_process_group = lambda backend, timeout: told.append(timeout)
    monkeypatch.setattr(ppo_parallel, "dist", stand_in)
    monkeypatch.setattr(ppo_parallel, "from_all", lambda tensor: tensor)
    ppo_parallel.join(*parts())
    assert told[0].total_seconds() >= 3 * 3600
