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
import json
from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np
import ppo
import torch
from torch import nn

ppo.OF_EVALUATION |= {"num_agents", "agent_id"}


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:Differ"  # A module with a parallel_env(), or `module:Class`.
    num_envs: int = 8  # Agents in all worlds together: a multiple of those in one.
    eval_episodes: int = 12  # Of an evaluation, counted like num_envs: each agent plays one.
    num_agents: int | None = None  # Argument of the environment of this name; None: its own number.
    num_policies: int | None = None  # Agent i acts by policy i % num_policies; None: by its own.
    agent_id: bool = True  # Tells agents that share a policy who they are, by a one-hot.

    def check(self):
        super().check()
        ppo.require_range(self, "num_agents num_policies", low=1)
        if self.async_envs:
            ppo.fail("async_envs: ppo_multi steps its worlds one after the other")


def train(args: Args, run: ppo.Run):  # as ppo's, of each policy by itself
    agents, policies = run.agent, run.agent.policies
    adam = {"lr": args.learning_rate, "eps": 1e-5, "fused": True}
    optimizers = [torch.optim.Adam(policy.parameters(), **adam) for policy in policies]
    first_rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    rows = [agents.owners(args.num_envs) == p for p in range(len(policies))]
    running_returns = [np.zeros(own.sum()) for own in rows]
    step = run.start(agent=agents, **{f"optimizer_{p}": x for p, x in enumerate(optimizers)})
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    while step < args.total_timesteps:
        remaining = ppo.linear_schedule(1.0, 0.0, args.total_timesteps, step)
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)
        if args.anneal_lr:
            for group, rate in zip(groups, first_rates, strict=True):
                group["lr"] = rate * remaining

        agents.eval()
        buffers = [ppo.RolloutBuffer() for _ in policies]
        for _ in range(min(args.num_steps, (args.total_timesteps - step) // args.num_envs)):
            transition = collect_step(agents, run, args)
            for own, buffer in zip(rows, buffers, strict=True):
                buffer.add(**{name: array[own] for name, array in transition.items()})

        scalars = {"charts/learning_rate": groups[0]["lr"]}
        for p, (policy, buffer) in enumerate(zip(policies, buffers, strict=True)):
            if not (alive := buffer["alive"]).any():
                continue
            batch, running_returns[p] = living_batch(policy, buffer, args, running_returns[p])
            policy.train()
            losses = ppo.update(
                policy, optimizers[p], batch, args, clip_coef, run.rng, ppo.ppo_loss
            )
            if policy.obs_moments is not None:
                policy.obs_moments.update(buffer["obs"][alive])
            number = f"/{p}" if len(policies) > 1 else ""
            scalars |= {f"{name}{number}": value for name, value in losses.items()}
        step = run.end_iteration(scalars)


def collect_step(agents, run, args):
    """ppo's, and who was `alive` to act, (rows,). Logs the returns of each agent."""
    worlds = run.envs  # at a checkpoint others take their place
    alive = worlds.alive
    finished = len(run.finished)
    transition = ppo.collect_step(agents, run, args)
    run.lengths[~alive] = 0  # the dead only wait
    ended = np.flatnonzero(worlds.ended)
    for row, (total, _) in zip(ended, run.finished[finished:], strict=True):
        # where one wins what another loses, the mean of all says nothing
        run.log({f"charts/episodic_return/{worlds.agents[row % agents.num_agents]}": total})
    return transition | {"alive": alive}


def living_batch(policy, buffer, args, running_returns):
    """As ppo.rollout_batch, but only of the steps of living agents."""
    alive = buffer["alive"]  # (steps, rows)
    if args.norm_reward:  # as ppo.rollout_advantages does it
        ended = buffer["terminated"] | buffer["truncated"]
        given = buffer["rewards"], ended, args.gamma, running_returns
        sums, running_returns = ppo.discounted_returns(*given)
        policy.return_moments.update(sums[alive])
        scale = policy.return_moments.std().item()
        for transition in buffer.transitions:
            transition["rewards"] = np.clip(transition["rewards"] / scale, -10, 10)
    own_args = replace(args, norm_reward=False, num_envs=alive.shape[1])
    batch, _ = ppo.rollout_batch(policy, buffer, own_args, running_returns)
    # an end cuts both the advantages and the bootstrap, so no dead step enters a living one's
    alive = torch.as_tensor(alive.ravel(), device=policy.device)
    return {name: tensor[alive] for name, tensor in batch.items()}, running_returns


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
        results = [function(policy, array[owners == p]) for p, policy in enumerate(self.policies)]
        return np.concatenate(results)[owners.argsort(kind="stable").argsort()]

    def act(self, obs, rng, greedy=False):  # (rows, obs_dim) -> (rows,) or (rows, action_dim)
        return self.by_policy(lambda policy, rows: policy.act(rows, rng, greedy), obs)

    def to_env(self, actions):
        return self.by_policy(lambda policy, rows: policy.to_env(rows), actions)


def make_agent(args, obs_space, action_space):
    spaces = action_space.spaces
    n = len(spaces)
    k = args.num_policies or n
    if k > n:
        ppo.fail(f"num_policies={k} is more than the {n} agents")
    if len({(type(space), space.shape) for space in spaces}) > 1:
        ppo.fail(f"ppo_multi takes actions of one kind, not {spaces}")
    if any(spaces[i] != spaces[i % k] for i in range(n)):
        ppo.fail(f"agents that share a policy must have the same actions, not {spaces}")
    return Agents(args, obs_space, spaces)


class Worlds:
    """Copies of a PettingZoo parallel environment: row n w + i is agent i of the n in world w."""

    def __init__(self, worlds, agent_id):
        self.envs = worlds
        self.agents = worlds[0].possible_agents
        self.spaces = [worlds[0].observation_space(agent) for agent in self.agents]
        for space in self.spaces:
            parts = ppo.parts_of(space, "observation")
            unfit = any(ppo.why_no_vector(part, alone=part is space) for _, part in parts)
            masked = any("['action_mask']" in name for name, _ in parts)
            if unfit or masked or gym.spaces.flatdim(space) == 0:
                ppo.fail(f"ppo_multi takes vectors, neither images nor action masks: not {space}")
        n = len(self.agents)
        self.num_envs = n * len(worlds)
        self.ids = np.eye(n) if agent_id else np.zeros((n, 0))
        # where agents see vectors of different lengths, the shorter ones end in zeros
        size = self.ids.shape[1] + max(map(gym.spaces.flatdim, self.spaces))
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        # ppo.as_declared leaves rows of a plain Space as they are: `step` knows whose they are
        self.action_spaces = [worlds[0].action_space(agent) for agent in self.agents]
        self.single_action_space = gym.spaces.Space(self.action_spaces[0].shape, np.float64)
        self.single_action_space.spaces = self.action_spaces

    def observe(self, obs):  # {agent: obs} of one world -> (n, size), 0 where there is none
        rows = np.zeros((len(self.agents), *self.single_observation_space.shape), np.float32)
        for i, agent in enumerate(self.agents):
            if agent in obs:
                shown = [*self.ids[i], *gym.spaces.flatten(self.spaces[i], obs[agent])]
                rows[i, : len(shown)] = shown
        return rows

    def heard(self, said):  # {agent: info} of one world -> n infos; some worlds say nothing
        return [ppo.copied((said or {}).get(agent) or {}) for agent in self.agents]

    def reset(self, seed):  # (rows,), of which a world takes the first of its own
        n = len(self.agents)
        resets = [world.reset(seed=int(seed[n * w])) for w, world in enumerate(self.envs)]
        # (rows,): whether an agent is there to act on the last observations
        self.alive = np.array([x in world.agents for world in self.envs for x in self.agents])
        infos = dict(enumerate(info for _, said in resets for info in self.heard(said)))
        return np.concatenate([self.observe(obs) for obs, _ in resets]), infos

    def step(self, actions):
        n = len(self.agents)
        obs = []
        infos = []
        alive = []
        last_obs = []  # of what the actions led to, where obs is of what is acted on next
        last_infos = []
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        declared = [ppo.as_declared(actions[i::n], x) for i, x in enumerate(self.action_spaces)]
        for w, world in enumerate(self.envs):
            acts = {x: declared[i][w] for i, x in enumerate(self.agents) if x in world.agents}
            world_obs, world_rewards, *ends, said = world.step(acts)
            last_obs.append(self.observe(world_obs))
            last_infos += self.heard(said)
            # some worlds keep in `agents` who has ended, others drop agents without a flag
            there = [x for x in world.agents if not any(flags.get(x) for flags in ends)]
            for row, agent in enumerate(self.agents, n * w):
                if self.alive[row]:
                    rewards[row] = world_rewards[agent]
                    terminated[row] = ends[0][agent]
                    truncated[row] = agent not in there and not terminated[row]
            if not there:  # not before all are gone
                world_obs, said = world.reset()
                there = world.agents
            obs.append(self.observe({x: shown for x, shown in world_obs.items() if x in there}))
            infos += self.heard(said)
            alive += [agent in there for agent in self.agents]
        self.alive = np.array(alive)
        self.ended = terminated | truncated  # (rows,): whose episode ended in this step
        infos = dict(enumerate(infos), final_info=dict(enumerate(last_infos)))
        infos |= {"_final_obs": self.ended, "final_obs": np.concatenate(last_obs)}
        return np.concatenate(obs), rewards, terminated, truncated, infos

    def set_attr(self, name, value):
        for world in self.envs:
            setattr(getattr(world, "unwrapped", world), name, value)

    def close(self):
        ppo.close_all(self.envs)


def maker(env_id):
    """What makes a world; looked at before it is called: a stranger's run may name anything."""
    module, _, name = env_id.partition(":")
    try:
        make = getattr(importlib.import_module(module), name or "parallel_env", None)
    except (ImportError, ValueError, TypeError) as error:
        pins = {"pettingzoo": "pettingzoo==1.27.0", "mpe2": "mpe2==1.1.1"}
        pin = pins.get(getattr(error, "name", None))
        ppo.fail(f"environment {env_id}: {error}" + (f"; pip install {pin}" if pin else ""))
    methods = "reset", "step", "observation_space", "action_space", "close"
    is_world = isinstance(make, type) and all(callable(getattr(make, x, None)) for x in methods)
    if not is_world and not (callable(make) and name in ("", "parallel_env")):
        ppo.fail(
            f"environment {env_id} is neither a module with a parallel_env nor MODULE:CLASS "
            f"with the methods {', '.join(methods)}"
        )
    return make


def make_envs(args, num_envs, training=True, **keywords):
    """As many worlds as have num_envs agents together."""
    make = maker(args.env_id)
    keywords = json.loads(args.env_kwargs) | keywords
    if args.num_agents is not None:
        if "num_agents" in keywords:
            ppo.fail(f"num_agents={args.num_agents} is also in env_kwargs={args.env_kwargs}")
        keywords["num_agents"] = args.num_agents
    try:
        first = make(**keywords)
    except TypeError as error:
        if "argument" not in str(error):  # a mistake of its own, which its traceback shows
            raise
        ppo.fail(f"environment {args.env_id} with {keywords}: {error}")
    n = len(first.possible_agents)
    worlds = [first]
    with ppo.closed_on_error(worlds):
        for field in ("eval_episodes",) if args.evaluate else ("num_envs", "eval_episodes"):
            if getattr(args, field) % n:
                ppo.fail(f"{field}={getattr(args, field)} must be a multiple of the {n} agents")
        if (args.num_policies or n) >= n:
            ppo.refuse_typed(args, "agent_id", "where no agents share a policy")
        for _ in range(num_envs // n - 1):
            worlds.append(make(**keywords))
        return Worlds(worlds, args.agent_id and (args.num_policies or n) < n)


if __name__ == "__main__":
    ppo.main("ppo_multi", Args, make_agent, train, ppo.evaluation_policy, make_envs)
