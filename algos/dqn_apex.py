"""Ape-X DQN: many actors collect, on the cores of this machine or of a cluster, while one learner
learns from the prioritised replay buffer that they fill; Ray carries what they send each other.

Papers    Ape-X arXiv 1803.00933; replay as in dqn_prioritised.py, DQN's switches as in dqn.py.
Run       python algos/dqn_apex.py --env-id tasks:WaitingCartPole-v0 --num-actors 8
          python algos/dqn_apex.py --ray HOST:6379 --num-actors 64         actors on a cluster

It imports dqn.py and dqn_prioritised.py, which must lie beside it, and holds only what differs:
- an actor explores with an epsilon of its own, the first one much, the last one hardly;
- it sends fragments of episodes, with first priorities by the Q that it acts on; n-step returns end
  with the fragment, since that of another actor may follow;
- the learner takes them as they come, learns as much from each as dqn does from as many steps, and
  sends weights with the request for another: an actor always has one more to work on;
- an actor that dies is replaced, and if there is no core for it, others play its steps; a learner
  that dies resumes from its checkpoint;
- curves show the returns of the third of the actors, rounded up, that explores least.
Fragments, and so results, come out differently each time. With --lockstep actors take turns: a run
repeats and resumes exactly, and the slowest actor sets the pace.
"""

import copy
import math
import signal
import socket
import time
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
    num_actors: int = 4  # Processes that collect, each in num_envs environments of its own.
    ray: str | None = None  # Address of a Ray cluster; auto: this machine's; None: only here.
    lockstep: bool = False  # Takes fragments in turns, so that the run can be repeated exactly.
    broadcast_frequency: int = 80  # Steps between new weights for the actors, over all of them.
    fragment_steps: int = 16  # Steps that an actor sends at once, over its environments.
    actor_timeout: float = 30.0  # Wait for a lost actor before others play its steps [seconds].
    start_e: float = 0.4  # Probability of a random action of the first actor.
    end_e: float = 0.4**8  # That of the last; from one to the next it falls by the same factor.

    def check(self):
        super().check()
        dqn.require_range(self, "num_actors broadcast_frequency fragment_steps", low=1)
        dqn.require_range(self, "actor_timeout", low=0.1)
        if self.total_timesteps % self.fragment_steps or self.fragment_steps % self.train_frequency:
            dqn.fail("total_timesteps must divide by fragment_steps, those by train_frequency")
        schedule = "exploration_fraction exploration_steps"
        dqn.refuse_typed(self, schedule, "with actors, each of which has an epsilon of its own")
        if self.lockstep:
            dqn.refuse_typed(self, "actor_timeout", "with lockstep")
        if self.async_envs:
            dqn.fail("async_envs is not for actors, which are processes themselves: take more")

    @property
    def iteration_steps(self) -> int:
        return self.fragment_steps


def train(args: Args, run: dqn.Run):
    # Ray replaces actors; but an exact run ends, since what a dead one played cannot come again
    replaced = {} if args.lockstep else {"max_restarts": -1, "max_task_retries": -1}
    make_actor = ray.remote(num_cpus=1, **replaced)(Actor).remote
    spaces = run.obs_space, run.envs.single_action_space
    actors = [make_actor(args, i, *spaces) for i in range(args.num_actors)]
    try:
        learn(args, run, actors)
    finally:  # Ray ends their processes, but not the programs that simulators are
        closed = [actor.close.remote() for actor in actors]
        ray.wait(closed, num_returns=len(closed), timeout=args.actor_timeout)


def learn(args: Args, run: dqn.Run, actors: list):  # as dqn.train
    q_network = run.agent
    target_q_network = copy.deepcopy(q_network).eval()
    adam = {"lr": args.learning_rate, "eps": args.adam_eps, "fused": True}
    optimizer = torch.optim.Adam(q_network.parameters(), **adam)
    first_rates = [group["lr"] for group in optimizer.param_groups]
    buffer = dqn_prioritised.ReplayBuffer(args, run.obs_space)  # of Atari's, whole stacks
    losses_of = partial(dqn_prioritised.weighted_losses, buffer)
    learners = {"agent": q_network, "target": target_q_network, "optimizer": optimizer}
    step = run.start(**learners, buffer=buffer)
    while step < args.total_timesteps:
        if step % run.checkpoint_steps == 0:
            end = min(step + run.checkpoint_steps, args.total_timesteps)
            collected = fragments(actors, run, args, step, end)
        started = time.perf_counter()
        actor, transitions, errors, finished = next(collected)
        waited = time.perf_counter() - started
        add_fragment(buffer, transitions, errors)
        if 3 * (actor + 1) > 2 * args.num_actors:
            run.finished += finished
        q_network.train()
        for before in range(step, step + args.fragment_steps, args.train_frequency):
            after = before + args.train_frequency
            if args.anneal_lr:
                remaining = dqn.linear_schedule(1.0, 0.0, args.total_timesteps, before)
                for group, rate in zip(optimizer.param_groups, first_rates, strict=True):
                    group["lr"] = rate * remaining
            for _ in range(args.gradient_steps if after >= args.learning_starts else 0):
                batch = buffer.sample(args.batch_size, args.n_step, args.gamma, run.rng)
                batch = {k: torch.as_tensor(v, device=run.device) for k, v in batch.items()}
                networks = q_network, target_q_network
                run.log(dqn.update(*networks, optimizer, batch, args, losses_of))
            if after // args.target_network_frequency > before // args.target_network_frequency:
                dqn.polyak(target_q_network, q_network, args.tau)
        run.step_count = step = after
        scalars = {"charts/learner_waits": waited / (time.perf_counter() - started)}
        scalars["charts/learning_rate"] = optimizer.param_groups[0]["lr"]
        run.end_iteration(scalars)


def fragments(actors: list, run, args: Args, step: int, end: int):
    """Yields actors' indices and what they collected, from `step` to `end`, where episodes end."""
    n = len(actors)
    pending = {}  # what a request will return -> the actor asked
    asked = step  # up to which steps were asked for
    weights = ray.put(run.arrays())
    epsilons = actor_epsilons(n, args.start_e, args.end_e)

    def ask(i, begins=False):
        nonlocal asked
        epsilon = 1.0 if asked < args.learning_starts else epsilons[i]
        pending[actors[i].collect.remote(weights, asked, epsilon, begins)] = i
        asked += args.fragment_steps

    for k in range(n if args.lockstep else 2 * n):  # with two requests it is never idle
        if asked < end:
            ask(k % n, begins=k < n)
    while step < end:
        ready = list(pending)[:1]
        if not args.lockstep:
            ready, _ = ray.wait(list(pending), timeout=args.actor_timeout)
        if not ready:  # lost with their machine, for example, while no other has room for them
            silent = set(pending.values())
            others = [i for i in range(n) if i not in silent]
            actors_of = ", ".join(map(str, sorted(silent)))
            dqn.say(f"\nno fragment for {args.actor_timeout:g} s from actors {actors_of}")
            for k in range((end - step) // args.fragment_steps if others else 0):
                ask(others[k % len(others)])
            continue
        i = pending.pop(ready[0])
        yield i, *ray.get(ready[0])
        before = step
        step += args.fragment_steps
        if step // args.broadcast_frequency > before // args.broadcast_frequency:
            weights = ray.put(run.arrays())
        if asked < end:
            ask(i)


def actor_epsilons(num_actors: int, first: float, last: float):
    """From first to last in equal ratios, (num_actors,): with 0.4 and 0.4^8 section 4.1's."""
    shares = np.arange(num_actors) / max(1, num_actors - 1)
    return first ** (1 - shares) * last**shares


class Actor(dqn.Run):
    """Environments, a network that acts in them, and dqn.Run.step; a process of its own, on Ray."""

    def __init__(self, args: Args, index: int, obs_space, action_space):
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # as in dqn.Run
        self.args = args
        self.index = index
        self.obs_space = obs_space
        self.make_envs = make_envs
        self.envs = self.writer = self.bar = self.lock = None  # what dqn.Run.close looks at
        self.agent = make_network(args, obs_space, action_space).eval()
        self.checkpoint_steps = math.inf  # the learner saves

    def collect(self, weights: dict, step: int, epsilon: float, begins: bool):
        """A fragment, as what ReplayBuffer.add takes; the sizes of their TD errors, (steps, envs);
        returns and lengths of the episodes that ended in it.
        """
        args = self.args
        n = args.num_envs
        transitions = []
        self.finished = []
        if begins or self.envs is None:  # None: Ray has put this actor in the place of a dead one
            self.close()
            torch.manual_seed(dqn.env_seeds(1, args.seed, step, 3, self.index)[0])
            try:
                self.envs = self.new_envs(n, step, 0, self.index)
            except SystemExit:  # for Ray a crash, after which it would start this actor again
                raise RuntimeError(f"an actor's machine cannot make {args.env_id}") from None
            self.obs, _ = dqn.reset(self.envs, args.seed, step, 0, self.index)  # no evaluation's
            self.rng = np.random.default_rng([args.seed, step, 2, self.index])
            self.step_count = 0
            self.returns, self.lengths = np.zeros((2, n))
        self.agent.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
        for _ in range(args.fragment_steps // n):
            obs = self.obs
            actions = self.agent.act(obs, epsilon, self.rng)
            next_obs, rewards, terminated, truncated = self.step(actions)
            if args.clip_reward:
                rewards = np.sign(rewards)
            if self.step_count % args.fragment_steps == 0:  # another actor's steps may follow
                truncated = ~terminated
            ends = terminated, truncated
            transitions.append((obs, actions, rewards, *ends, next_obs, self.obs))
        errors = first_errors(self.agent, transitions, args, self.obs_space, self.rng)
        return transitions, errors, self.finished


class Fragment(dqn.ReplayBuffer):
    """Some steps in a row of one actor; a sample is all of them, by step, then environment."""

    def draw(self, batch_size, rng):
        steps, envs = np.divmod(np.arange(self.total * self.num_envs), self.num_envs)
        return self.total - steps, envs


@torch.no_grad()
def first_errors(q_network, transitions: list, args: Args, obs_space, rng):
    """The sizes of a fragment's TD errors, (steps, envs), without a target network."""
    fragment = Fragment(args.fragment_steps, args.num_envs, obs_space)
    for transition in transitions:
        fragment.add(*transition)
    batch = fragment.sample(args.fragment_steps, args.n_step, args.gamma, rng)
    batch = {name: torch.as_tensor(array) for name, array in batch.items()}
    losses_of = dqn.dqn_losses if args.n_atoms == 1 else dqn.c51_losses
    _, errors, _ = losses_of(q_network, q_network, batch, args)
    return errors.numpy().reshape(-1, args.num_envs)


def add_fragment(buffer, transitions: list, errors):
    steps, envs = np.indices(errors.shape).reshape(2, -1)
    steps += buffer.total
    for transition in transitions:
        buffer.add(*transition)
    buffer.set_errors(steps, envs, errors.ravel())


# the learner's, and those of each actor
make_network = dqn.make_agent
make_envs = dqn.make_envs


def make_agent(args, obs_space, action_space):
    if not args.evaluate:
        connect(args)  # before a run folder is made
    return make_network(args, obs_space, action_space)


def connect(args: Args):
    """Starts Ray on this machine or joins a cluster, whose machines get a copy of this folder."""
    if ray is None:
        dqn.fail("this needs Ray: pip install -r benchmarks/requirements-ray.txt")
    settings = {"logging_level": "error", "ignore_reinit_error": True}
    if args.ray is None:  # a core for each, however many there are: actors may just wait
        settings |= {"num_cpus": args.num_actors, "include_dashboard": False}
    else:  # here actors find this folder, and modules of environments, as the script does
        settings["runtime_env"] = {"working_dir": str(Path(__file__).parent), "excludes": ["runs"]}
    host, _, port = (args.ray or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray itself waits for many minutes where nobody listens
            socket.create_connection((host, int(port)), timeout=10).close()
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(args.ray or "local", **settings)
        signal.signal(signal.SIGTERM, handler)  # Ray has set its own
    except (OSError, ValueError) as error:
        dqn.fail(f"--ray {args.ray}: {str(error).splitlines()[0]}")
    if (cores := ray.cluster_resources().get("CPU", 0)) < args.num_actors:
        dqn.fail(f"num_actors={args.num_actors}: the cluster has {cores:g} cores")


if __name__ == "__main__":
    dqn.main("dqn_apex", Args, make_agent, train, dqn.evaluation_policy, make_envs)
