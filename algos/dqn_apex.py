"""Ape-X DQN: many actors collect, on the cores of this machine or of a cluster, while one learner
learns from the prioritised replay buffer that they fill; Ray carries what they send each other.

Papers    Ape-X arXiv 1803.00933; replay as in dqn_prioritised.py, DQN's switches as in dqn.py.
Run       python algos/dqn_apex.py --env-id tasks:WaitingCartPole-v0 --num-actors 8
          python algos/dqn_apex.py --ray HOST:6379 --num-actors 64         actors on a cluster

It imports dqn.py and dqn_prioritised.py, which must lie beside it, and holds only what differs:
- an actor explores with an epsilon of its own, the first one much, the last one hardly;
- it sends fragments of episodes, with first priorities by the Q that it acts on; n-step returns end
  with the fragment if that of another actor follows;
- the learner takes them as they come, learns as much from each as dqn does from as many steps, and
  sends weights with the request for another: an actor always has one more to work at;
- an actor that dies is replaced; a learner that dies resumes from its checkpoint;
- curves show the returns of the third of the actors that explore least.
Fragments, and so results, come out differently each time. With --lockstep actors take turns: a run
repeats and resumes exactly, and the slowest actor sets the pace.
"""

import copy
import math
import socket
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dqn
import dqn_prioritised
import numpy as np
import torch

try:
    import ray
except ImportError:  # evaluations do not need it
    ray = None


@dataclass
class Args(dqn_prioritised.Args):
    num_actors: int = 4
    """Processes that collect, each in num_envs environments of its own."""
    ray: str | None = None
    """Address of a Ray cluster; auto: the one that this machine is part of; None: only here."""
    lockstep: bool = False
    """Takes the actors' fragments in turns, so that the run can be repeated exactly."""
    broadcast_frequency: int = 80
    """Steps between new weights for the actors, summed over all of them."""
    fragment_steps: int = 16
    """Steps that an actor sends at once, summed over its environments."""
    start_e: float = 0.4
    """Probability of a random action of the first actor."""
    end_e: float = 0.4**8
    """That of the last actor; from one to the next it falls by the same factor."""

    def check(self):
        super().check()
        dqn.require_range(self, "num_actors broadcast_frequency", low=1)
        if self.total_timesteps % self.fragment_steps or self.fragment_steps % self.train_frequency:
            dqn.fail("total_timesteps must divide by fragment_steps, those by train_frequency")
        if (self.exploration_fraction, self.exploration_steps) != (0.2, None):
            dqn.fail("no schedule of exploration: the epsilon of an actor never changes")

    @property
    def iteration_steps(self) -> int:
        return self.fragment_steps


def actor_epsilons(num_actors: int, first: float, last: float):
    """From first to last in equal ratios, (num_actors,): with 0.4 and 0.4^8 section 4.1's."""
    shares = np.arange(num_actors) / max(1, num_actors - 1)
    return first ** (1 - shares) * last**shares


class Fragment(dqn.ReplayBuffer):
    """Some steps in a row of one actor; a sample is all of them, by step, then environment."""

    SENT = ("actions", "rewards", "terminated", "truncated")

    def draw(self, batch_size, rng):
        steps, envs = np.divmod(np.arange(self.total * self.num_envs), self.num_envs)
        return self.total - steps, envs

    @torch.no_grad()
    def to_arrays(self, q_network, args: Args, steps_taken: int) -> dict:
        """What is sent: (steps, envs) each, obs one more; TD errors without a target network."""
        batch = self.sample(None, args.n_step, args.gamma, None)
        batch = {name: torch.as_tensor(array) for name, array in batch.items()}
        _, errors, _ = dqn_prioritised.row_losses(q_network, q_network, batch, args)
        arrays = {name: getattr(self, name)[: self.total] for name in self.SENT}
        arrays["errors"] = errors.numpy().reshape(arrays["rewards"].shape)
        arrays |= {"obs": self.frames, "final_obs": self.final_obs, "steps_taken": steps_taken}
        return arrays


class ReplayBuffer(dqn_prioritised.ReplayBuffer):
    """dqn_prioritised's, filled by fragments of many actors, one after the other."""

    newest = None  # the actor whose fragment came last, and the steps it had then taken

    def add_fragment(self, actor: int, fragment: dict):
        first, obs, errors = self.total, fragment["obs"], fragment["errors"]
        if self.total > 0 and self.newest != (actor, fragment["steps_taken"] - errors.size):
            self.cut()
        self.newest = actor, fragment["steps_taken"]
        for row in zip(obs, *(fragment[x] for x in Fragment.SENT), obs[1:], obs[1:], strict=False):
            self.add(*row)
        for (t, env), last_obs in fragment["final_obs"].items():  # before a reset, unlike obs[1:]
            self.final_obs[(first + t) % self.slots, env] = last_obs.copy()
        steps, envs = np.indices(errors.shape).reshape(2, -1)
        self.set_errors(first + steps, envs, errors.ravel())

    def cut(self):
        """Marks the newest step as truncated: what follows in the buffer is another episode."""
        t = (self.total - 1) % self.slots
        for env in np.flatnonzero(~(self.terminated[t] | self.truncated[t])).tolist():
            self.truncated[t, env] = True
            self.final_obs[t, env] = self.frames[self.total % self.slots, env].copy()


class Actor(dqn.Run):
    """Environments, a network that acts in them, and dqn.Run.step; a process of its own, on Ray."""

    def __init__(self, args: Args, index: int, obs_space, action_space):
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # as in dqn.Run
        self.args, self.index, self.obs_space, self.envs = args, index, obs_space, None
        self.agent = dqn.make_agent(args, obs_space, action_space)
        self.vector = dqn.Vector(self.agent)
        self.period = math.inf  # the learner saves

    def collect(self, weights, step: int, epsilon: float, begins: bool):
        """A fragment; returns and lengths of the episodes that ended in it."""
        args, n, self.finished = self.args, self.args.num_envs, []
        if begins or self.envs is None:  # None: Ray has put this actor in the place of a dead one
            self.envs = dqn.make_envs(args, n)
            self.obs = dqn.reset(self.envs, args.seed, step, 0, self.index)  # no evaluation's
            self.rng = np.random.default_rng([args.seed, step, 2, self.index])
            self.step_count, (self.returns, self.lengths) = 0, np.zeros((2, n))
        self.vector.data.copy_(torch.tensor(weights))
        fragment = Fragment(args.fragment_steps, n, self.obs_space)
        for _ in range(args.fragment_steps // n):
            actions = self.agent.act(self.obs, epsilon, self.rng)
            next_obs, rewards, terminated, truncated, successors = self.step(actions)
            rewards = np.sign(rewards) if args.clip_reward else rewards
            fragment.add(self.obs, actions, rewards, terminated, truncated, next_obs, successors)
            self.obs = next_obs
        return fragment.to_arrays(self.agent, args, self.step_count), self.finished


def connect(args: Args):
    """Starts Ray on this machine or joins a cluster, whose machines get a copy of this folder."""
    if ray is None:
        dqn.fail("this needs Ray: pip install -r benchmarks/requirements-ray.txt")
    settings = {"logging_level": "error", "ignore_reinit_error": True}
    settings["runtime_env"] = {"working_dir": str(Path(__file__).parent), "excludes": ["runs"]}
    if args.ray is None:  # a core for each, however many there are: actors may just wait
        settings |= {"num_cpus": args.num_actors, "include_dashboard": False}
    host, _, port = (args.ray or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray itself waits for many minutes where nobody listens
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(args.ray or "local", **settings)
    except (OSError, ValueError) as error:
        dqn.fail(f"--ray {args.ray}: {str(error).splitlines()[0]}")
    if (cores := ray.cluster_resources().get("CPU", 0)) < args.num_actors:
        dqn.fail(f"num_actors={args.num_actors}: the cluster has {cores:g} cores")


def make_agent(args, obs_space, action_space):
    if not args.evaluate:
        connect(args)  # before a run folder is made
    return dqn.make_agent(args, obs_space, action_space)


def fragments(actors: list, vector, args: Args, step: int, end: int):
    """Yields actors' indices and what they collected, from `step` to `end`, where episodes end."""
    n, pending, asked, weights = len(actors), {}, step, ray.put(vector.numpy(force=True))
    epsilons = actor_epsilons(n, args.start_e, args.end_e)

    def ask(i, begins=False):
        nonlocal asked
        if asked < end:
            epsilon = 1.0 if asked < args.learning_starts else epsilons[i]
            pending[actors[i].collect.remote(weights, asked, epsilon, begins)] = i
            asked += args.fragment_steps

    for k in range(n if args.lockstep else 2 * n):  # with two requests it is never idle
        ask(k % n, begins=k < n)
    while pending:
        request = next(iter(pending)) if args.lockstep else ray.wait(list(pending))[0][0]
        i = pending.pop(request)
        yield i, *ray.get(request)
        before, step = step, step + args.fragment_steps
        if step // args.broadcast_frequency > before // args.broadcast_frequency:
            weights = ray.put(vector.numpy(force=True))
        ask(i)


def train(args: Args, run: dqn.Run):  # as dqn_prioritised's, but for the actors
    q_network, target_q_network = run.agent, copy.deepcopy(run.agent)
    vector, rate = dqn.Vector(q_network), args.learning_rate
    optimizer = torch.optim.Adam([vector], lr=rate, eps=args.adam_eps, fused=True)
    sizes = args.buffer_size, args.num_envs, run.obs_space  # of Atari's, whole stacks
    buffer = ReplayBuffer(*sizes, exponent=args.priority_exponent)
    # Ray replaces actors; but an exact run ends, since what a dead one played cannot come again
    replaced = {} if args.lockstep else {"max_restarts": -1, "max_task_retries": -1}
    make_actor = ray.remote(num_cpus=1, **replaced)(Actor).remote
    spaces = run.obs_space, run.envs.single_action_space
    actors = [make_actor(args, i, *spaces) for i in range(args.num_actors)]
    anneal_steps = args.anneal_steps or args.total_timesteps
    history, started, waited = deque(maxlen=2_000), time.perf_counter(), 0.0
    parts = {"agent": q_network, "target": target_q_network, "optimizer": optimizer}
    step, _ = run.start(**parts, buffer=buffer)
    networks, loss_of = (q_network, target_q_network), dqn_prioritised.q_loss
    learn = run.recorded(partial(dqn.update, *networks, optimizer, args, loss_of), optimizer)
    while step < args.total_timesteps:
        if step % run.period == 0:
            end = min(step + run.period, args.total_timesteps)
            collected = fragments(actors, vector, args, step, end)
        since = time.perf_counter()
        actor, fragment, finished = next(collected)
        waited += time.perf_counter() - since
        buffer.add_fragment(actor, fragment)
        if 3 * (actor + 1) > 2 * args.num_actors:
            run.finished += finished
        run.step_count = step = step + args.fragment_steps
        if step == end:
            buffer.cut()  # so that a resumed run finds the same
        for before in range(step - args.fragment_steps, step, args.train_frequency):  # as dqn
            after, learning_rate = before + args.train_frequency, args.learning_rate
            if args.anneal_lr:
                learning_rate = dqn.linear_schedule(learning_rate, 0.0, anneal_steps, before)
            optimizer.param_groups[0]["lr"] = learning_rate
            for _ in range(args.gradient_steps if after >= args.learning_starts else 0):
                batch, learned = dqn_prioritised.learn_once(learn, buffer, args, run, before)
                history.append(learned)
            if after // args.target_network_frequency > before // args.target_network_frequency:
                dqn.polyak(target_q_network, q_network, args.tau)
        scalars = {"charts/learning_rate": learning_rate}
        scalars["charts/learner_waits"] = waited / (time.perf_counter() - started)
        if history and run.logs_now():
            scalars |= dqn.losses(q_network, history, batch)
            history.clear()
        run.end_iteration(scalars)


if __name__ == "__main__":
    dqn.main("dqn_apex", Args, make_agent, train, dqn.evaluation_policy)
