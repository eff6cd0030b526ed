"""PPO for several agents in one world: a policy for each, one for all, or any number between.

Papers    independent PPO arXiv 2011.09533; shared policies that are told which agent they act for
          arXiv 2005.13625; PettingZoo, whose parallel environments these are, arXiv 2009.14471.
Run       python algos/ppo_multi.py                      tasks:Differ, a game of two
          python algos/ppo_multi.py --num-policies 1 --no-agent-id    which one policy cannot win
          python algos/ppo_multi.py --config benchmarks/variants.toml:ppo_multi-spread
          the last one needs pip install pettingzoo==1.27.0 mpe2==1.1.1

It imports ppo.py, which must lie beside it, and holds only what differs:
- a row of all arrays, in ppo.py an environment, is an agent in a world. --num-envs, --eval-episodes
  and all steps count rows: a world of one agent is ppo, and one of two counts twice;
- agent i acts by policy i % num_policies. Each policy has networks, statistics, an optimizer and a
  clipped gradient of its own, and meets the others in the world alone;
- an agent may die before its world ends, which is when all are gone. Its row then waits for the
  next episode: nobody learns from these steps, and they enter no statistics.
"""

import importlib
from dataclasses import dataclass, replace
from functools import partial

import gymnasium as gym
import numpy as np
import ppo
import torch
from gymnasium.vector.utils import batch_space
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:Differ"
    """A module with a parallel_env(), such as mpe2.simple_spread_v3, or `module:callable`."""
    num_envs: int = 8
    """Agents stepped side by side, in all worlds together: a multiple of those in one."""
    eval_episodes: int = 12
    """Episodes of an evaluation, counted like num_envs: each agent of a world plays one."""
    num_agents: int | None = None
    """Given to the environment's constructor under this name; None: its own number."""
    num_policies: int | None = None
    """Agent i acts by policy i % num_policies: with 1 all share one; None: one for each agent."""
    agent_id: bool = True
    """Where agents share a policy, their observations begin with a one-hot of the agent."""

    def check(self):
        super().check()
        ppo.require_range(self, "num_agents num_policies", low=1)


class Worlds:
    """Copies of a PettingZoo parallel environment, as ppo.SyncEnvs: row n w + i is agent i of the
    n in world w.
    """

    def __init__(self, worlds, agent_id):
        self.envs, self.agents = worlds, worlds[0].possible_agents
        self.spaces = [worlds[0].observation_space(agent) for agent in self.agents]
        if any(len(space.shape or ()) == 3 for space in self.spaces):
            ppo.fail("ppo_multi takes vectors, not images")
        n = len(self.agents)
        self.num_envs, self.ids = n * len(worlds), np.eye(n) if agent_id else np.zeros((n, 0))
        # where agents see vectors of different lengths, the shorter ones end in zeros
        size = self.ids.shape[1] + max(map(gym.spaces.flatdim, self.spaces))
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        actions = [worlds[0].action_space(agent) for agent in self.agents]  # may differ in length
        self.single_action_space = gym.spaces.Tuple(actions)
        self.action_space = batch_space(actions[0], self.num_envs)

    @property
    def alive(self):  # (rows,): whether an agent is there to act on the last observations
        return np.array([agent in world.agents for world in self.envs for agent in self.agents])

    def observe(self, obs):  # {agent: obs} of one world -> (n, size), 0 where there is none
        rows = np.zeros((len(self.agents), *self.single_observation_space.shape), np.float32)
        for i, agent in enumerate(self.agents):
            if agent in obs:
                shown = [*self.ids[i], *gym.spaces.flatten(self.spaces[i], obs[agent])]
                rows[i, : len(shown)] = shown
        return rows

    def reset(self, seed):  # (rows,), of which a world takes the first of its own
        seeds = map(int, seed[:: len(self.agents)])
        resets = [world.reset(seed=s) for world, s in zip(self.envs, seeds, strict=True)]
        self.returns = np.zeros(self.num_envs)
        return np.concatenate([self.observe(obs) for obs, _ in resets]), {}

    def step(self, actions):
        """As ppo.SyncEnvs. The last info of an agent has its `episodic_return`."""
        n, obs, final_obs, infos = len(self.agents), [], {}, [{} for _ in actions]
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        for w, world in enumerate(self.envs):
            living = [(n * w + i, x) for i, x in enumerate(self.agents) if x in world.agents]
            next_obs, *outcome = world.step({agent: actions[row] for row, agent in living})
            obs.append(self.observe(next_obs))
            for row, agent in living:
                rewards[row], terminated[row], truncated[row], info = (x[agent] for x in outcome)
                self.returns[row] += rewards[row]
                if terminated[row] or truncated[row]:
                    final_obs[row] = obs[w][row % n]
                    info, self.returns[row] = {**info, "episodic_return": self.returns[row]}, 0
                infos[row] = info
            if not world.agents:  # not before all are gone
                obs[w] = self.observe(world.reset()[0])
        return np.concatenate(obs), rewards, terminated, truncated, final_obs, infos

    def close(self):
        for world in self.envs:
            world.close()


def make_envs(args, num_envs, training=True, **keywords):
    """As many worlds as have num_envs agents together."""
    keywords |= {} if args.num_agents is None else {"num_agents": args.num_agents}
    module, _, name = args.env_id.partition(":")
    try:
        make = getattr(importlib.import_module(module), name or "parallel_env")
        first = make(**keywords)
    except (ImportError, AttributeError, TypeError) as error:  # module, callable, its arguments
        pins = {"pettingzoo": "pettingzoo==1.27.0", "mpe2": "mpe2==1.1.1"}
        pin = pins.get(error.name) if isinstance(error, ImportError) else None
        ppo.fail(f"environment {args.env_id}: {error}" + (f"; pip install {pin}" if pin else ""))
    n = len(first.possible_agents)
    for field in ("num_envs", "eval_episodes"):
        if getattr(args, field) % n:
            ppo.fail(f"{field}={getattr(args, field)} must be a multiple of the {n} agents")
    worlds = [first, *(make(**keywords) for _ in range(num_envs // n - 1))]
    return Worlds(worlds, args.agent_id and (args.num_policies or n) < n)


class Agents(nn.Module):
    """The policies, each a ppo.Agent, and who acts by which."""

    def __init__(self, args, obs_space, action_spaces):
        super().__init__()
        self.num_agents = len(action_spaces)
        spaces = action_spaces[: args.num_policies]
        self.policies = nn.ModuleList(ppo.make_agent(args, obs_space, space) for space in spaces)

    def to(self, device):  # as Run asks; a policy moves what it acts on
        for policy in self.policies:
            policy.device = device
        return super().to(device)

    def owners(self, num_rows):  # (num_rows,): which policy a row acts by
        return np.arange(num_rows) % self.num_agents % len(self.policies)

    def by_policy(self, function, array):
        """function(policy, its rows of array), of each policy, in the order of the rows."""
        owners = self.owners(len(array))
        parts = [function(policy, array[owners == p]) for p, policy in enumerate(self.policies)]
        order = owners.argsort(kind="stable")  # of the rows in parts
        return np.concatenate(parts)[order.argsort()]

    def act(self, obs, rng, greedy=False):  # (rows, obs_dim) -> (rows,) or (rows, action_dim)
        return self.by_policy(lambda policy, rows: policy.act(rows, rng, greedy), obs)

    def to_env(self, actions):
        return self.by_policy(ppo.Agent.to_env, actions)


def make_agent(args, obs_space, action_spaces):
    n = len(action_spaces)
    k = args.num_policies or n
    if k > n:
        ppo.fail(f"num_policies={k} is more than the {n} agents")
    if len({(type(space), space.shape) for space in action_spaces}) > 1:
        ppo.fail(f"ppo_multi takes actions of one kind, not {action_spaces}")
    if any(action_spaces[i] != action_spaces[i % k] for i in range(n)):
        ppo.fail(f"agents that share a policy must have the same actions, not {action_spaces}")
    return Agents(args, obs_space, action_spaces)


def make_living_batch(policy, buffer, alive, args, running):
    """As ppo.make_batch, but only of the steps of living agents: alive (steps, rows) of bool."""
    if args.norm_reward:  # as ppo.rollout_advantages does it
        n, ended = buffer.size, buffer.terminated | buffer.truncated
        sums, running = ppo.discounted_returns(buffer.rewards[:n], ended[:n], args.gamma, running)
        policy.return_moments.update(sums[alive])
        buffer.rewards = np.clip(buffer.rewards / policy.return_moments.std().item(), -10, 10)
    batch, _ = ppo.make_batch(policy, buffer, replace(args, norm_reward=False), running)
    # an end cuts both the advantages and the bootstrap, so no dead step enters a living one's
    return {name: x[torch.as_tensor(alive.ravel())] for name, x in batch.items()}, running


def evaluation_policy(agents, rng, args):
    if args.evaluate:  # as in training, where each policy is a vector: see ppo.main
        for policy in agents.policies:
            ppo.Vector(policy)
    return ppo.evaluation_policy(agents, rng, args)


def train(args: Args, run: ppo.Run):  # as ppo's, of each policy by itself
    agents, policies = run.agent, run.agent.policies
    vectors = [ppo.Vector(policy) for policy in policies]
    # with one for all, clipping would shorten the gradient of each by the length of the others
    optimizers = [torch.optim.Adam([v], args.learning_rate, eps=1e-5, fused=True) for v in vectors]
    rows = [agents.owners(args.num_envs) == p for p in range(len(policies))]
    running_returns = [np.zeros(own.sum()) for own in rows]
    returns = {}  # {agent: of its episodes since the last point of the curves}
    parts = {f"optimizer_{p}": optimizer for p, optimizer in enumerate(optimizers)}
    step, obs = run.start(agent=agents, **parts)
    while step < args.total_timesteps:
        learning_rate, clip_coef = ppo.schedules(args, step)
        buffers = [ppo.RolloutBuffer(args.num_steps, own.sum(), run.obs_space) for own in rows]
        lives = []
        for _ in range(min(args.num_steps, (args.total_timesteps - step) // args.num_envs)):
            lives.append(run.envs.alive)
            actions = agents.act(obs, run.rng)
            next_obs, rewards, terminated, truncated, successors = run.step(agents.to_env(actions))
            run.lengths[~lives[-1]] = 0  # the dead only wait
            for i, info in enumerate(run.infos):
                if "episodic_return" in info:
                    name = run.envs.agents[i % agents.num_agents]
                    returns.setdefault(name, []).append(info["episodic_return"])
            if args.clip_reward:
                rewards = np.sign(rewards)
            transition = obs, actions, rewards, terminated, truncated, successors
            for own, buffer in zip(rows, buffers, strict=True):
                buffer.add(*(x[own] for x in transition))
            obs = next_obs

        scalars = {"charts/learning_rate": learning_rate}
        for p, (policy, buffer) in enumerate(zip(policies, buffers, strict=True)):
            alive = np.array(lives)[:, rows[p]]
            if alive.sum() < 2:  # too few for a minibatch
                continue
            optimizers[p].param_groups[0]["lr"] = learning_rate
            rest = alive, args, running_returns[p]
            batch, running_returns[p] = make_living_batch(policy, buffer, *rest)
            learn = partial(ppo.gradient_step, policy, optimizers[p], args, ppo.ppo_loss)
            losses = ppo.update(learn, batch, args, clip_coef, run.rng)
            number = f"/{p}" if len(policies) > 1 else ""
            scalars |= {f"{name}{number}": value for name, value in losses.items()}
            policy.end_rollout(buffer.obs[: buffer.size][alive][None])  # (1, living, obs_dim)
        if run.logs_now():  # where one wins what another loses, the mean of all says nothing
            means = {name: np.mean(x) for name, x in returns.items()}
            scalars |= {f"charts/episodic_return/{name}": mean for name, mean in means.items()}
            returns.clear()
        step = run.end_iteration(scalars)


if __name__ == "__main__":
    ppo.main("ppo_multi", Args, make_agent, train, evaluation_policy, make_envs)
