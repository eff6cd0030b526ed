"""PPO by several processes that take every gradient step together: on the cores of a machine, on
several hosts, on several GPUs. torch.distributed starts them and carries what they send each other.

Papers    PPO as in ppo.py; gradients averaged over workers: DD-PPO arXiv 1911.00357.
Run       python -m torch.distributed.run --nproc-per-node 2 algos/ppo_parallel.py --num-envs 4
          python algos/ppo_parallel.py                  one process, which trains ppo.py's weights

It imports ppo.py, which must lie beside it, and holds only what differs:
- a rank, as torch calls such a process, has num_envs environments, noise and minibatches of its
  own; budgets, frequencies and the curves' x axis count the steps of all ranks;
- gradients become their mean over all ranks before ppo.py clips them, and so do the losses shown;
- the KL for target_kl, and the moments that normalise, are those of all ranks' samples;
- advantages are normalised in each rank's own minibatch, as is the custom;
- rank 0 alone writes the run folder, evaluates and prints; its curves have the episodes of all;
- before each rollout all take rank 0's weights and buffers;
- at the start and after each checkpoint all go on from rank 0's state, with generators that follow
  from seed, rank and step: so a run that is resumed ends as one that was never stopped.
"""

import contextlib
import io
import itertools
import os
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta

import numpy as np
import ppo
import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    num_envs: int = 8  # Environments of each rank, stepped side by side.
    num_minibatches: int = 1  # Minibatches in one epoch, in each rank.
    num_ranks: int | None = None  # Processes that train; None: all that torch has started.

    def check(self):
        asked = self.num_ranks
        self.num_ranks = 1
        super().check()  # with the rollout of one rank, which its minibatches divide
        self.num_ranks = num_ranks()
        if self.evaluate and self.num_ranks > 1:
            ppo.fail(f"evaluate takes one process, not {self.num_ranks}")
        if not self.evaluate and asked not in (None, self.num_ranks):
            start = f"start it by python -m torch.distributed.run --nproc-per-node {asked}"
            ppo.fail(f"num_ranks={asked}, but there are {self.num_ranks}: {start}")
        num_envs = self.num_envs * self.num_ranks
        steps = self.total_timesteps
        if steps % num_envs:
            ppo.fail(f"num_envs * num_ranks={num_envs} must divide total_timesteps={steps}")
        if ":" in self.device and self.num_ranks > 1:
            ppo.fail(f"device={self.device}: each rank takes a GPU of its own, so name none")

    @property
    def iteration_steps(self) -> int:
        return (self.num_ranks or 1) * super().iteration_steps


def train(args: Args, run: ppo.Run):
    if num_ranks() == 1:
        return ppo.train(args, run)
    if dist.get_rank() == 0:
        trained = run.saved and run.saved["trained"]  # then only the evaluation is left
        step = args.total_timesteps if trained else run.step_count
        from_rank_0({"args": asdict(args), "step": step})
    from_all(torch.zeros(()))  # once all have made their environments

    own_step = run.step

    def step_of_all(actions):
        run.step_count += (args.num_ranks - 1) * args.num_envs  # of the others
        return own_step(actions)

    run.step = step_of_all
    ppo.RunningMoments.update = update_moments  # also of moments that an edit of ppo.py adds

    def collect(agent, run, args):
        if run.step_count % run.checkpoint_steps == 0:
            share_state(run)
        elif run.step_count % args.iteration_steps == 0:  # before a rollout
            share({name: part for name, part in run.parts.items() if isinstance(part, nn.Module)})
        return ppo.collect_step(agent, run, args)

    def make_batch(agent, buffer, args, running_returns):
        share_episodes(run)
        return ppo.rollout_batch(agent, buffer, args, running_returns)

    def loss_of(agent, minibatch, args, clip_coef):
        return shared_loss(agent, minibatch, args, clip_coef, learned_beside(agent, run.parts))

    ppo.train(args, run, collect=collect, make_batch=make_batch, loss_of=loss_of)
    from_all(torch.zeros(()))  # nobody leaves while another still waits for what it sent
    dist.destroy_process_group()


def learned_beside(agent, parts: dict) -> list:
    """Parameters that optimizers among the parts learn beside the agent's."""
    optimizers = [part for part in parts.values() if hasattr(part, "param_groups")]
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    own = set(agent.parameters())
    return [parameter for group in groups for parameter in group if parameter not in own]


def shared_loss(agent, minibatch, args, clip_coef, beside=()):
    """As ppo_loss; the log ratios are those of all ranks."""
    loss, terms, log_ratio = ppo.ppo_loss(agent, minibatch, args, clip_coef)
    # what is decided by their KL, such as when the epochs end, is decided alike
    log_ratio = from_all(log_ratio.detach()).flatten()
    like_loss = {"dtype": loss.dtype, "device": loss.device}  # a term may be a plain number
    terms = {name: torch.as_tensor(x, **like_loss).detach().clone() for name, x in terms.items()}
    return SharedLoss(agent, loss, list(terms.values()), beside), terms, log_ratio


class SharedLoss:
    """A loss of which ppo.update uses backward() alone: here, before it clips the gradients, they
    and the terms for the curves become their means over all ranks. `beside`: what learns besides.
    """

    def __init__(self, agent, loss, terms: list, beside=()):
        self.learned = [p for p in (*agent.parameters(), *beside) if p.requires_grad]
        self.loss = loss
        self.terms = terms

    def backward(self):
        self.loss.backward()
        for p in self.learned:
            if p.grad is None:  # another rank may have one: all must send as many numbers
                p.grad = torch.zeros_like(p)
        average([p.grad for p in self.learned] + self.terms)


def average(tensors: list):
    """Each becomes its mean over all ranks. All go together: one message costs less than many."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    parts = (flat / num_ranks()).split([tensor.numel() for tensor in tensors])
    for tensor, mean in zip(tensors, parts, strict=True):
        tensor.copy_(mean.view_as(tensor))


def from_all(tensor):
    """(...) of each rank -> (ranks, ...), the same on all of them."""
    rows = tensor.new_zeros(num_ranks(), *tensor.shape)
    rows[dist.get_rank()] = tensor
    dist.all_reduce(rows)
    return rows


def from_rank_0(value=None):
    """What rank 0 gives, on all of them: numbers, texts and tensors, in dicts and lists."""
    file = io.BytesIO()
    torch.save(value, file)
    message = [file.getvalue()]
    dist.broadcast_object_list(message)
    return torch.load(io.BytesIO(message[0]), map_location="cpu", weights_only=True)


def num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def share(parts: dict):
    """They become those of rank 0. Batch norm, for one, has statistics of each rank's own samples,
    and an edit may draw new weights.
    """
    states = {name: part.state_dict() for name, part in parts.items()}
    state = from_rank_0(ppo.without_numpy(states))
    if dist.get_rank() > 0:
        for name, part in parts.items():
            part.load_state_dict(state[name])


def share_state(run):
    """All go on from what rank 0 has just saved or read, each with generators of its own."""
    share(run.parts)
    if dist.get_rank() > 0:
        fresh = np.random.default_rng([run.args.seed, run.step_count])
        run.rng.bit_generator.state = fresh.bit_generator.state
        torch.manual_seed(int(run.rng.integers(2**63)))


def share_episodes(run):
    """Hands the (return, length) of the episodes that ended to rank 0, for its curves."""
    lists = [None] * num_ranks() if dist.get_rank() == 0 else None
    dist.gather_object(run.finished, lists)
    run.finished = list(itertools.chain(*lists or []))


def merged_moments(counts, means, variances):
    """Count, mean and variance of all samples, from those of (groups, ...) of them. By count:
    m = sum n_i m_i / sum n_i and M2 = sum [n_i v_i + n_i (m_i - m)^2], whose n-th part is v.
    """
    assert counts.shape == means.shape == variances.shape, (counts.shape, means.shape)
    count = counts.sum(dim=0)
    mean = (counts * means).sum(dim=0) / count
    squares = (counts * (variances + (means - mean) ** 2)).sum(dim=0)
    return count, mean, squares / count


def update_moments(moments, x):
    """ppo.RunningMoments.update, by what all ranks have seen: they stay the same in all of them."""
    x = torch.as_tensor(x, dtype=torch.float64, device=moments.mean.device)
    n = torch.full_like(moments.mean, len(x))
    # the ranks send what is new alone: of the past all have the same, and it counts once
    new = from_all(torch.stack([n, x.mean(dim=0), x.var(dim=0, correction=0)]))
    past = torch.stack([torch.full_like(moments.mean, moments.count), moments.mean, moments.var])
    count, mean, var = merged_moments(*torch.cat([past[None], new]).unbind(dim=1))
    moments.count.copy_(count.flatten()[0])
    moments.mean.copy_(mean)
    moments.var.copy_(var)


make_agent = ppo.make_agent  # put your own here: join and main both take them
make_envs = ppo.make_envs


class FollowingRun(ppo.Run):
    """Of a rank but the first: the same training, without a folder, a curve or an evaluation."""

    def prepare(self, make_agent):
        # environments are made with seeds that follow from it
        self.step_count = self.args.first_step
        super().prepare(make_agent)

    def try_evaluation(self):
        pass

    def start(self, **parts):
        self.parts = parts
        self.obs, infos = ppo.reset(self.envs, self.args.seed, self.step_count)
        self.infos = ppo.of_each(infos, self.args.num_envs)
        self.next_infos = self.infos
        self.seed_learning()
        return self.step_count

    def end_iteration(self, scalars):
        if self.step_count % self.checkpoint_steps == 0:
            self.clear_gradients()
            self.seed_learning()
        return self.step_count


def follow(args_class, make_agent, train, make_envs):
    """What a rank but the first does: it trains as rank 0 was told to."""
    ppo.on_sigterm(ppo.interrupt)
    try:
        told = from_rank_0()
    except RuntimeError:  # rank 0 has left, and has said why
        return
    own = {"seed": rank_seed(told["args"]["seed"], dist.get_rank())}
    own |= {"resume": None, "init_weights": None, "capture_video": False}  # rank 0 alone reads
    args = args_class(**told["args"] | own)
    args.first_step = told["step"]
    run = FollowingRun("ppo_parallel", args, make_agent, ppo.evaluation_policy, make_envs)
    try:
        train(args, run)
    finally:
        run.close()


def rank_seed(seed: int, rank: int) -> int:
    """A seed of its own for each rank but the first, which has `seed` itself."""
    return int(np.random.SeedSequence([seed, 0, 2, rank]).generate_state(1)[0])


def join(args_class, make_agent, train, make_envs):
    """Meets the others, if torch.distributed.run has started this process. Rank 0 comes back, for
    `main`; the others train by what they are given here.
    """
    if "RANK" not in os.environ:
        return
    processes = f"--nproc-per-node={on_this_machine('WORLD_SIZE')}"
    ppo.Run.launcher = ("python", "-m", "torch.distributed.run", processes)
    num_gpus = torch.cuda.device_count()
    if num_gpus:
        torch.cuda.set_device(int(on_this_machine("RANK")) % num_gpus)
    one_each = num_gpus >= int(on_this_machine("WORLD_SIZE"))  # as nccl demands
    backend = "cpu:gloo,cuda:nccl" if one_each else "gloo"
    dist.init_process_group(backend, timeout=timedelta(hours=6))  # while rank 0 evaluates
    from_all(torch.zeros(()))  # nobody leaves while another is still being connected
    if dist.get_rank() > 0:
        with contextlib.suppress(KeyboardInterrupt):  # rank 0 says what was stopped
            follow(args_class, make_agent, train, make_envs)
        sys.exit()


def on_this_machine(name: str) -> str:
    """RANK or WORLD_SIZE among the processes of this machine; not all launchers say it."""
    return os.environ.get(f"LOCAL_{name}") or os.environ[name]


if __name__ == "__main__":
    join(Args, make_agent, train, make_envs)
    ppo.main("ppo_parallel", Args, make_agent, train, ppo.evaluation_policy, make_envs)
