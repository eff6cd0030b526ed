"""DQN with hindsight experience replay (HER): a step is also learned from as if its goal had been
what its episode reached later, so that rewards teach long before the first success.

Papers    HER arXiv 1707.01495, its strategy "future"; DQN and its switches as in dqn.py.
Run       python algos/dqn_her.py --config variants                      tasks:BitFlip-v0

It imports dqn.py, and the goals from td3_her.py with its td3.py. These three must lie beside it. It
holds only what differs from dqn.py, as td3_her.py says at its top. Besides:
- the true last observation of every episode is kept, since with another goal the task may go on.
With --n-sampled-goal 0 it is dqn with one-step returns, to the last bit.
"""

from dataclasses import dataclass

import dqn
import numpy as np
from td3_her import Hindsight, HindsightArgs, make_goal_env


@dataclass
class Args(HindsightArgs, dqn.RunArgs):
    env_id: str = "tasks:BitFlip-v0"  # Environment with goals.
    n_step: int = 1  # Rewards summed before the target network's value is added: always one.


def train(args: Args, run: dqn.Run):
    with make_goal_env(run) as env:
        hindsight = Hindsight(run, env)
        if args.clip_reward:
            compute_reward = hindsight.compute_reward
            hindsight.compute_reward = lambda *goals: np.sign(np.float32(compute_reward(*goals)))
        buffer = ReplayBuffer(run, hindsight)
        dqn.train(args, run, buffer=buffer, parts={"hindsight": hindsight})


class ReplayBuffer(dqn.ReplayBuffer):
    """dqn's, of single steps."""

    def __init__(self, run, hindsight):
        super().__init__(run.args.buffer_size, run.args.num_envs, run.obs_space)
        self.hindsight = hindsight

    def add(self, obs, actions, rewards, terminated, truncated, next_obs, following_obs):
        # dqn keeps the last observation of an episode that was cut, so here all are
        ended = terminated | truncated
        never = np.zeros_like(ended)
        super().add(obs, actions, rewards, never, ended, next_obs, following_obs)
        self.hindsight.add(obs, rewards, next_obs, terminated, truncated)

    def draw(self, batch_size, rng):
        ages, envs = super().draw(batch_size, rng)
        self.rows = (self.total - ages) * self.num_envs + envs
        return ages, envs

    def sample(self, batch_size, n_step, gamma, rng):
        batch = super().sample(batch_size, n_step, gamma, rng)
        return self.hindsight.relabel(batch, self.rows, rng)


if __name__ == "__main__":
    dqn.main("dqn_her", Args, dqn.make_agent, train, dqn.evaluation_policy)
