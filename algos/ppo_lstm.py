"""PPO with a memory: an LSTM in front of policy and value, for tasks whose observations hide what
matters.

Papers    LSTM doi 10.1162/neco.1997.9.8.1735; PPO as in ppo.py.
Run       python algos/ppo_lstm.py --config benchmarks/variants.toml    CartPole without velocities
          python algos/ppo_lstm.py --env-id mypackage.envs:MyEnv-v0 --norm-obs    vectors only

It imports ppo.py, which must lie beside it, and holds only what differs:
- policy and value look at the output of an LSTM, whose state is 0 when an episode begins;
- a rollout keeps the state that it began with; later epochs start from it again, with new weights;
- the value of each step's successor goes on from the state after that step;
- a minibatch holds whole environments, with all their steps in order.
"""

from dataclasses import dataclass

import numpy as np
import ppo
import torch
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    lstm_size: int = 64  # Length of the LSTM's output, and of its cell.

    def check(self):
        super().check()
        ppo.require_range(self, "lstm_size", low=1)
        if self.num_envs % self.num_minibatches:
            ppo.fail(f"num_minibatches={self.num_minibatches} must divide num_envs={self.num_envs}")


def train(args: Args, run: ppo.Run):  # ppo's, with a state that goes from step to step
    state = np.zeros((args.num_envs, 2 * args.lstm_size), np.float32)  # as after a checkpoint

    def collect(agent, run, args):
        nonlocal state
        obs = run.obs
        old_state = state
        actions, new_state = agent.act(obs, old_state, run.rng)
        next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))
        if args.clip_reward:
            rewards = np.sign(rewards)
        state = new_state * ~(terminated | truncated)[:, None]
        transition = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs}
        transition |= {"terminated": terminated, "truncated": truncated}
        # no reset in next_state
        return transition | {"state": old_state, "next_state": new_state}

    ppo.train(args, run, collect=collect, make_batch=make_sequences)


@torch.no_grad()
def make_sequences(agent, buffer, args, running_returns):
    """As ppo.rollout_batch, but the first axes are (envs, steps): a row is an environment."""

    def rows(array):  # (steps, envs, ...) -> (envs, steps, ...)
        return torch.as_tensor(array, device=agent.device).transpose(0, 1)

    batch = {"obs": rows(buffer["obs"]), "actions": rows(buffer["actions"])}
    batch["ended"] = rows(buffer["terminated"] | buffer["truncated"])
    batch["state"] = torch.as_tensor(buffer["state"][0], device=agent.device)
    batch["log_probs"], _, batch["values"] = agent.evaluate_actions(batch)
    values = batch["values"].T.cpu().numpy()
    # one step on from the state in which each successor was met, which no reset has touched
    next_obs = torch.as_tensor(buffer["next_obs"], device=agent.device).flatten(0, 1)
    next_state = torch.as_tensor(buffer["next_state"], device=agent.device).flatten(0, 1)
    outputs, _ = agent.remember(agent.features(next_obs), next_state)
    next_values = agent.value(outputs).cpu().numpy().reshape(values.shape)
    advantages, running_returns = ppo.rollout_advantages(
        agent, buffer, values, next_values, args, running_returns
    )
    batch["advantages"] = rows(advantages)
    batch["returns"] = batch["advantages"] + batch["values"]
    return batch, running_returns


class Agent(ppo.Agent):
    """ppo's, with an LSTM in front of both networks. Its state, output and cell beside each other,
    is (batch, 2 n); the caller keeps it, the agent remembers nothing.
    """

    def make_networks(self, args, input_shape, num_outputs):
        self.lstm = nn.LSTMCell(*input_shape, args.lstm_size)
        for name, parameter in self.lstm.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter)
        super().make_networks(args, (args.lstm_size,), num_outputs)

    def remember(self, features, state):
        """One step: (batch, obs_dim), state -> what policy and value look at, (batch, n); state."""
        output, cell = self.lstm(features, state.chunk(2, dim=1))
        return output, torch.cat([output, cell], dim=1)

    def unroll(self, features, state, ended):
        """All steps of a rollout: (steps, batch, obs_dim), the state before them, (steps, batch) ->
        (steps, batch, n). After a step that ended an episode the state is 0.
        """
        outputs = []
        for step_features, step_ended in zip(features, ended, strict=True):
            output, state = self.remember(step_features, state)
            outputs.append(output)
            state = state * ~step_ended[:, None]
        return torch.stack(outputs)

    def forward(self, obs, state):  # (batch, obs_dim), state -> logits or means, state; for acting
        output, state = self.remember(self.features(obs), state)
        return self.policy(output), state

    @torch.no_grad()
    def act(self, obs, state, rng, greedy=False):
        """(num_envs, obs_dim), state -> actions, the state after this step; arrays."""
        outputs, state = self(*(torch.as_tensor(x, device=self.device) for x in (obs, state)))
        return self.sample(outputs, rng, greedy).cpu().numpy(), state.cpu().numpy()

    def evaluate_actions(self, batch):  # (envs, steps, ...) -> log pi(a), entropy, V, (envs, steps)
        obs, ended, actions = (batch[name].transpose(0, 1) for name in ("obs", "ended", "actions"))
        features = self.features(obs.flatten(0, 1)).unflatten(0, ended.shape)
        outputs = self.unroll(features, batch["state"], ended).flatten(0, 1)
        scores = self.log_prob_and_entropy(self.policy(outputs), actions.flatten(0, 1))
        return [x.reshape(ended.shape).T for x in (*scores, self.value(outputs))]


def make_agent(args, obs_space, action_space):
    if len(obs_space.shape) == 3:
        ppo.fail("ppo_lstm takes vectors, not images")
    return ppo.make_agent(args, obs_space, action_space, Agent)


def evaluation_policy(agent, rng, args):  # each environment plays one episode: nothing to reset
    state = None

    def choose_actions(obs):
        nonlocal state
        state = np.zeros((len(obs), 2 * args.lstm_size), np.float32) if state is None else state
        actions, state = agent.act(obs, state, rng, greedy=True)
        return agent.to_env(actions)

    return choose_actions


if __name__ == "__main__":
    ppo.main("ppo_lstm", Args, make_agent, train, evaluation_policy)
