"""DQN with prioritised replay: the larger a step's TD error was when it was last replayed, the more
often it is replayed, and the less it counts in the loss.

Papers    prioritised replay arXiv 1511.05952, the proportional kind; DQN and its switches as in
          dqn.py.
Run       python algos/dqn_prioritised.py                                      CartPole-v1
          python algos/dqn_prioritised.py --double --dueling --n-step 3        any combination

It imports dqn.py, which must lie beside it, and holds only what differs:
- a sum tree over the replay buffer draws a step with probability P = p^a / sum of all p^a, where
  p is the size of its TD error, of a distribution (C51) the cross-entropy, plus 1e-6;
- a step that was never replayed has the largest p so far, so that it soon is;
- its loss is weighted by (N P)^-b, N the steps held, over the largest such weight of the batch;
  the curve losses/td_loss shows the mean of these weighted losses.
With --priority-exponent 0 it is dqn, to the last bit.
"""

from dataclasses import dataclass
from functools import partial

import dqn
import numpy as np
import torch


@dataclass
class Args(dqn.RunArgs):
    priority_exponent: float = 0.6  # a: 0 replays all steps alike, 1 in proportion to errors.
    importance_exponent: float = 0.4  # b at the start; it rises linearly to 1, full correction.

    def check(self):
        super().check()
        dqn.require_range(self, "priority_exponent importance_exponent", high=1)
        if self.priority_exponent == 0:
            dqn.refuse_typed(self, "importance_exponent", "with priority_exponent 0")


def train(args: Args, run: dqn.Run):
    stack = run.obs_space.shape[0] if dqn.is_game(args.env_id) else 1
    buffer = ReplayBuffer(args, run.obs_space, stack)
    dqn.train(args, run, buffer=buffer, losses_of=partial(weighted_losses, buffer))


def weighted_losses(buffer, q_network, target_q_network, batch, args):
    """dqn's losses, weighted; the steps that the batch was drawn from get new priorities."""
    losses_of = dqn.dqn_losses if args.n_atoms == 1 else dqn.c51_losses
    losses, errors, scalars = losses_of(q_network, target_q_network, batch, args)
    assert losses.shape == batch["weights"].shape, (losses.shape, batch["weights"].shape)
    steps, envs = batch["steps"].cpu().numpy(), batch["envs"].cpu().numpy()
    buffer.set_errors(steps, envs, errors.detach().cpu().numpy())
    return batch["weights"] * losses, errors, scalars


class ReplayBuffer(dqn.ReplayBuffer):
    """dqn's, with a priority for each step, (|error| + 1e-6)^a: 0 for those that cannot be drawn.

    A step is named by its number, counted from 0, and its environment: (batch,) each.
    """

    def __init__(self, args: Args, obs_space, stack: int = 1):
        super().__init__(args.buffer_size, args.num_envs, obs_space, stack)
        self.args = args
        self.largest = 1.0  # priority so far
        self.tree = SumTree(self.slots * self.num_envs)

    def leaves(self, steps, envs):
        return steps % self.slots * self.num_envs + envs

    def add(self, *transition):
        super().add(*transition)
        envs = np.arange(self.num_envs)
        new, gone = (self.leaves(self.total - age, envs) for age in (1, self.length + 1))
        self.tree[gone] = 0.0
        self.tree[new] = self.largest

    def draw(self, batch_size, rng):
        if self.args.priority_exponent == 0:
            ages, envs = super().draw(batch_size, rng)
        else:  # one from each of batch_size equal parts of the sum: appendix B.2.1
            shares = (np.arange(batch_size) + rng.random(batch_size)) / batch_size
            slots, envs = np.divmod(self.tree.find(shares), self.num_envs)
            ages = (self.total - slots) % self.slots
        self.drawn = self.total - ages, envs
        return ages, envs

    def sample(self, batch_size, n_step, gamma, rng):
        """As dqn's, and `weights`, `steps` and `envs`, (batch_size,): the latter name the steps."""
        batch = super().sample(batch_size, n_step, gamma, rng)
        batch["steps"], batch["envs"] = self.drawn
        probabilities = self.tree[self.leaves(*self.drawn)] / self.tree.total()
        start = self.args.importance_exponent
        step = self.total * self.num_envs
        exponent = dqn.linear_schedule(start, 1.0, self.args.total_timesteps, step)
        batch["weights"] = importance_weights(probabilities, exponent)
        return batch

    def set_errors(self, steps, envs, errors):
        """New priorities by the sizes of TD errors, (batch,)."""
        assert steps.shape == envs.shape == errors.shape, (steps.shape, errors.shape)
        held = steps >= self.total - self.length  # others have taken the places of the rest
        priorities = (np.float64(errors[held]) + 1e-6) ** self.args.priority_exponent
        self.tree[self.leaves(steps[held], envs[held])] = priorities
        self.largest = max(self.largest, priorities.max(initial=0.0))

    def state_dict(self) -> dict:
        priorities = torch.as_tensor(self.tree[np.arange(self.slots * self.num_envs)])
        return {**super().state_dict(), "priorities": priorities, "largest": float(self.largest)}

    def load_state_dict(self, state: dict):
        super().load_state_dict(state)
        self.tree[np.arange(self.slots * self.num_envs)] = state["priorities"].numpy()
        self.largest = state["largest"]


def importance_weights(probabilities, exponent: float):
    """(N P)^-b, divided by the largest of the batch, so that N cancels; section 3.4. (batch,)."""
    return np.float32((probabilities / probabilities.min()) ** -exponent)


class SumTree:
    """Numbers, the leaves of a binary tree whose other nodes are the sums of their two children, so
    that to find where a running sum is reached takes one step per level.
    """

    def __init__(self, num_leaves: int):
        self.depth = (num_leaves - 1).bit_length()
        # 1 is the root, 2 n and 2 n + 1 are the children of n
        self.nodes = np.zeros(2 << self.depth)  # float64, since sums of many small numbers matter
        self.first_leaf = 1 << self.depth
        self.changed = []  # leaves that were set, and are not yet in the sums

    def __getitem__(self, leaves):
        return self.nodes[self.first_leaf + leaves]

    def __setitem__(self, leaves, values):  # (n,), (n,)
        self.nodes[self.first_leaf + leaves] = values
        self.changed.append(self.first_leaf + leaves)

    def total(self) -> float:
        """The sum of all leaves."""
        if self.changed:
            nodes = np.concatenate(self.changed)
            self.changed.clear()
            for _ in range(self.depth):
                nodes = nodes >> 1
                # added anew: corrected by differences, sums would drift away from their parts
                self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]
        return self.nodes[1]

    def find(self, shares):
        """Leaves at these shares of the total, from 0 up to but not 1, in running sums: (n,)."""
        sums = shares * self.total()
        nodes = np.ones(len(shares), np.int64)
        for _ in range(self.depth):
            nodes = 2 * nodes
            left = self.nodes[nodes]
            # never into an empty half, where a rounded sum could lead
            right = (sums >= left) & (self.nodes[nodes + 1] > 0)
            sums = sums - left * right
            nodes += right
        return nodes - self.first_leaf


if __name__ == "__main__":
    dqn.main("dqn_prioritised", Args, dqn.make_agent, train, dqn.evaluation_policy)
