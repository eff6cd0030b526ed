"""PPO with a memory: an LSTM in front of policy and value, for tasks whose observations hide what
matters.

Papers    LSTM doi 10.1162/neco.1997.9.8.1735; PPO as in ppo.py.
Run       python algos/ppo_lstm.py --config benchmarks/variants.toml    CartPole without velocities
          python algos/ppo_lstm.py --env-id mypackage.envs:MyEnv-v0 --norm-obs    vectors only

It imports ppo.py, which must lie beside it, and holds only what differs:
- policy and value look at the output of an LSTM, whose state is 0 when an episode begins;
- a rollout keeps the state that it began with; later epochs start from it again, with new weights;
- the values of an episode's last observation, and of what follows the rollout, go on from the state
  there;
- a minibatch holds whole environments, with all their steps in order.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import ppo
import torch
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    lstm_size: int = 64
    """Length of the LSTM's output, and of its cell."""

    def check(self):
        super().check()
        ppo.require_range(self, "lstm_size", low=1)
        if self.num_envs % self.num_minibatches:
            ppo.fail(f"num_minibatches={self.num_minibatches} must divide num_envs={self.num_envs}")


def sigmoid(x):  # of tensors or arrays
    return torch.sigmoid(x) if torch.is_tensor(x) else 0.5 + 0.5 * np.tanh(0.5 * x)


def lstm_cell(gates, cell):
    """One step of an LSTM, of tensors or arrays: its output h and its new cell, (batch, n) each.

    gates (batch, 4 n), before their sigmoids and tanh, in torch's order: input, forget, new
    content, output; cell (batch, n).
    """
    n, tanh = cell.shape[1], torch.tanh if torch.is_tensor(gates) else np.tanh
    assert gates.shape == (len(cell), 4 * n), (gates.shape, cell.shape)
    i, f, new, o = (gates[:, k * n : (k + 1) * n] for k in range(4))
    cell = sigmoid(f) * cell + sigmoid(i) * tanh(new)
    return sigmoid(o) * tanh(cell), cell


class Agent(ppo.Agent):
    """ppo's, with an LSTM in front of both networks. Its state, h and cell, is (2, batch, n); the
    caller keeps it, the agent remembers nothing.
    """

    def make_networks(self, args, input_shape, num_outputs):
        n = args.lstm_size
        self.from_input = ppo.Layers(ppo.initialise(nn.Linear(*input_shape, 4 * n), 1.0))
        self.from_output = ppo.Layers(ppo.initialise(nn.Linear(n, 4 * n), 1.0))
        super().make_networks(args, (n,), num_outputs)

    def remember(self, features, state):
        """One step: (batch, obs_dim), state -> what policy and value look at, (batch, n); state."""
        h, cell = lstm_cell(self.from_input(features) + self.from_output(state[0]), state[1])
        return h, (torch if torch.is_tensor(h) else np).stack((h, cell))

    def unroll(self, features, state, ended):
        """All steps of a rollout: (steps, batch, obs_dim), the state before them, (steps, batch) ->
        (steps, batch, n), the state after them. After a step that ended an episode it is 0.
        """
        outputs, (h, cell) = [], state
        for t, from_input in enumerate(self.from_input(features)):  # of all steps in one product
            if t > 0:
                goes_on = ~ended[t - 1, :, None]  # (batch, 1)
                h, cell = h * goes_on, cell * goes_on
            h, cell = lstm_cell(from_input + self.from_output(h), cell)
            outputs.append(h)
        return torch.stack(outputs), torch.stack((h, cell))

    def act(self, obs, state, rng, greedy=False):
        """(num_envs, obs_dim), state as an array -> actions, the state after this step."""
        if self.device.type == "cpu":  # arrays: see ppo.Layers
            features, state = self.remember(self.features(obs), state)
            return self.sample(self.policy(features), rng, greedy), state
        with torch.no_grad():
            obs, state = (torch.as_tensor(x, device=self.device) for x in (obs, state))
            features, state = self.remember(self.features(obs), state)
            policy = self.policy(features).cpu().numpy()
        return self.sample(policy, rng, greedy), state.cpu().numpy()

    def evaluate_actions(self, batch):  # (envs, steps, ...) -> log pi(a), entropy, V, (envs, steps)
        features, state = self.features(batch["obs"]), (batch["h"], batch["cell"])
        outputs, _ = self.unroll(features.transpose(0, 1), state, batch["ended"].T)
        outputs, actions = outputs.transpose(0, 1).flatten(0, 1), batch["actions"].flatten(0, 1)
        policy = self.policy(outputs)
        if self.discrete:
            scores = ppo.categorical_log_prob_and_entropy(policy, actions)
        else:
            scores = ppo.gaussian_log_prob_and_entropy(policy, self.log_std, actions)
        return [x.reshape(batch["ended"].shape) for x in (*scores, self.value(outputs))]


class RolloutBuffer(ppo.RolloutBuffer):
    """ppo's, and the states from which values go on: `initial_state` before the first step, and
    those after the steps whose successors are no part of the rollout, before any reset.
    """

    def __init__(self, *sizes, initial_state):
        super().__init__(*sizes)
        self.initial_state, self.final_states = initial_state, []

    def add(self, obs, actions, rewards, terminated, truncated, successors, state):
        super().add(obs, actions, rewards, terminated, truncated, successors)
        self.final_states.append(state[:, terminated | truncated])
        self.last_state = state


@torch.no_grad()
def make_sequences(agent, buffer, args, running):
    """As ppo.make_batch, but the first axes are (envs, steps): a row is an environment."""

    def rows(array):  # (steps, envs, ...) -> (envs, steps, ...)
        return torch.as_tensor(array[: buffer.size], device=agent.device).transpose(0, 1)

    batch = {"obs": rows(buffer.obs), "actions": rows(buffer.actions)}
    batch["ended"] = rows(buffer.terminated | buffer.truncated)
    batch["h"], batch["cell"] = torch.as_tensor(buffer.initial_state, device=agent.device)
    batch["log_probs"], _, batch["values"] = agent.evaluate_actions(batch)
    bootstrap_obs = np.concatenate([*buffer.final_obs, buffer.last_successors])
    states = np.concatenate([*buffer.final_states, buffer.last_state], axis=1)
    obs, states = (torch.as_tensor(x, device=agent.device) for x in (bootstrap_obs, states))
    bootstrap_values = agent.value(agent.remember(agent.features(obs), states)[0]).cpu().numpy()
    values = batch["values"].T.cpu().numpy()
    advantages, running = ppo.rollout_advantages(
        agent, buffer, values, bootstrap_values, args, running
    )
    batch["advantages"] = rows(advantages)
    batch["returns"] = batch["advantages"] + batch["values"]
    return batch, running


def make_agent(args, obs_space, action_space):
    if len(obs_space.shape) == 3:
        ppo.fail("ppo_lstm takes vectors, not images")
    return ppo.make_agent(args, obs_space, action_space, Agent)


def evaluation_policy(agent, rng, args):  # each environment plays one episode: nothing to reset
    state = None

    def policy(obs):
        nonlocal state
        state = np.zeros((2, len(obs), args.lstm_size), np.float32) if state is None else state
        actions, state = agent.act(obs, state, rng, greedy=True)
        return agent.to_env(actions)

    return policy


def train(args: Args, run: ppo.Run):  # as ppo's, but for the lines with `state`
    agent = run.agent
    optimizer = torch.optim.Adam([ppo.Vector(agent)], lr=args.learning_rate, eps=1e-5, fused=True)
    sizes = args.num_steps, args.num_envs, run.obs_space
    running_returns = np.zeros(args.num_envs)
    state = np.zeros((2, args.num_envs, args.lstm_size), np.float32)  # a checkpoint ends it, too
    step, obs = run.start(agent=agent, optimizer=optimizer)
    learn = partial(ppo.gradient_step, agent, optimizer, args, ppo.ppo_loss)
    learn = run.recorded(learn, optimizer)
    while step < args.total_timesteps:
        learning_rate, clip_coef = ppo.schedules(args, step)
        optimizer.param_groups[0]["lr"] = learning_rate
        buffer = RolloutBuffer(*sizes, initial_state=state)
        for _ in range(min(args.num_steps, (args.total_timesteps - step) // args.num_envs)):
            actions, state = agent.act(obs, state, run.rng)
            next_obs, rewards, terminated, truncated, successors = run.step(agent.to_env(actions))
            if args.clip_reward:
                rewards = np.sign(rewards)
            buffer.add(obs, actions, rewards, terminated, truncated, successors, state)
            obs, state = next_obs, state * ~(terminated | truncated)[:, None]

        batch, running_returns = make_sequences(agent, buffer, args, running_returns)
        scalars = ppo.update(learn, batch, args, clip_coef, run.rng)
        agent.end_rollout(buffer.obs[: buffer.size])
        step = run.end_iteration({"charts/learning_rate": learning_rate, **scalars})


if __name__ == "__main__":
    ppo.main("ppo_lstm", Args, make_agent, train, evaluation_policy)
