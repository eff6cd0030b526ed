"""PPO with curiosity: random network distillation (RND), a bonus for what was rarely seen, so that
an agent finds a reward that random actions never meet.

Papers    RND arXiv 1810.12894; PPO as in ppo.py.
Run       python algos/ppo_rnd.py                            a goal that a random walk never reaches
          python algos/ppo_rnd.py --env-id mypackage.envs:MyEnv-v0    vectors only

It imports ppo.py, which must lie beside it, and holds only what differs:
- a network learns to predict what a second, random and fixed one says of an observation; its
  squared error, large where little was learned, is the bonus for the step that led there;
- the bonus is divided by the standard deviation of its discounted sum, never centred;
- a second critic learns the bonuses' sum, with a discount of its own and across episode ends: to
  die is no way to escape what is still new; the policy follows a weighted sum of both advantages;
- all this is a part of its own beside the agent, with a learning rate of its own, which falls as
  the agent's does, and outside the norm that is clipped.
Unlike the paper's, networks share nothing, and statistics begin with the first rollout, not with
random steps before it.
"""

from dataclasses import dataclass

import numpy as np
import ppo
import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:FarGoal-v0"  # Environment; `package.module:Id-v0` imports that module.
    ext_coef: float = 2.0  # Weight of the advantage of the environment's rewards.
    int_coef: float = 1.0  # Weight of the advantage of the bonuses.
    gamma_int: float = 0.99  # Discount factor of the bonuses; they go on after an episode's end.
    rnd_learning_rate: float = 2e-3  # Adam's, at the start: predictor and critic of bonuses.

    def check(self):
        super().check()
        ppo.require_range(self, "ext_coef int_coef rnd_learning_rate")
        ppo.require_range(self, "gamma_int", high=1)


def train(args: Args, run: ppo.Run):
    curiosity = Curiosity(args, run.obs_space).to(run.device)
    groups = [
        {"params": run.agent.parameters(), "lr": args.learning_rate},
        {"params": curiosity.learners(), "lr": args.rnd_learning_rate},  # annealed alike
    ]
    optimizer = torch.optim.Adam(groups, eps=1e-5, fused=True)
    # the discounted bonuses of each running episode so far; in no checkpoint, since every episode
    # ends there
    running_bonuses = np.zeros(args.num_envs)

    def make_batch(agent, buffer, args, running_returns):
        nonlocal running_bonuses
        curiosity.eval()
        batch, running_returns = ppo.rollout_batch(agent, buffer, args, running_returns)
        running_bonuses, bonus = add_bonuses(
            batch, agent, curiosity, buffer, run.obs, args, running_bonuses
        )
        run.log({"charts/bonus": bonus})
        return batch, running_returns

    def loss_of(agent, minibatch, args, clip_coef):
        curiosity.train()
        curiosity.target.eval()  # fixed: dropout, for example, is for learning alone
        loss, terms, log_ratio = ppo.ppo_loss(agent, minibatch, args, clip_coef)
        rnd_loss, rnd_terms = curiosity_loss(agent, curiosity, minibatch)
        return loss + rnd_loss, terms | rnd_terms, log_ratio

    parts = {"curiosity": curiosity}
    ppo.train(args, run, optimizer, make_batch=make_batch, loss_of=loss_of, parts=parts)


@torch.no_grad()
def add_bonuses(batch, agent, curiosity, buffer, obs_after, args, running):
    """Adds to ppo's batch what learns from bonuses; returns the sums to go on from, and the mean.

    obs_after (envs, obs_dim): what is acted on after the rollout.
    """
    obs = buffer["obs"]
    ended = buffer["terminated"] | buffer["truncated"]
    # of a simulator that gave up: what is no number stays as it was, so that it is nothing new
    next_obs = np.where(np.isfinite(buffer["next_obs"]), buffer["next_obs"], obs)
    batch["next_obs"] = torch.as_tensor(next_obs, device=agent.device).flatten(0, 1)
    curiosity.obs_moments.update(batch["next_obs"])
    errors = curiosity.errors(batch["next_obs"]).cpu().numpy().reshape(ended.shape)
    bonuses, running = scaled_bonuses(curiosity, errors, ended, args, running)
    # to the critic of bonuses life is one episode: after an end follows the next one's beginning
    obs = torch.as_tensor(np.concatenate([obs, obs_after[None]]), device=agent.device)
    values = curiosity.value(agent.features(obs.flatten(0, 1))).cpu().numpy()
    values = values.reshape(-1, len(obs_after))
    never = np.zeros_like(ended)
    advantages = ppo.gae(
        bonuses, values[:-1], values[1:], never, never, args.gamma_int, args.gae_lambda
    )
    advantages = torch.as_tensor(advantages, device=agent.device).flatten()
    values = torch.as_tensor(values[:-1], device=agent.device).flatten()
    batch["bonus_returns"] = advantages + values
    batch["advantages"] = args.ext_coef * batch["advantages"] + args.int_coef * advantages
    return running, bonuses.mean()


def scaled_bonuses(curiosity, errors, ended, args, running):
    """Errors over the standard deviation of their discounted sum; the sums to go on from, (envs,).

    errors, ended (steps, envs). The sum restarts where an episode ends, so that it is 0 at a
    checkpoint. Not centred: a bonus below 0 would punish what is only less new.
    """
    sums, running = ppo.discounted_returns(errors, ended, args.gamma_int, running)
    curiosity.return_moments.update(sums.reshape(-1))  # of all steps and environments
    return errors / curiosity.return_moments.std().item(), running


def curiosity_loss(agent, curiosity, minibatch):
    """The predictor's loss and the critic's; its terms by name."""
    values = curiosity.value(agent.features(minibatch["obs"]))
    v_loss = 0.5 * F.mse_loss(values, minibatch["bonus_returns"])
    error = curiosity.errors(minibatch["next_obs"]).mean()
    return error + v_loss, {"prediction_error": error, "bonus_value_loss": v_loss}


class Curiosity(nn.Module):
    """The fixed target, its predictor, the critic of bonuses, and the statistics of both scales."""

    def __init__(self, args, obs_space):
        super().__init__()
        width = args.hidden_size
        self.target = ppo.mlp(*obs_space.shape, width, args.activation, width, gain=1.0)
        self.predictor = ppo.mlp(*obs_space.shape, width, args.activation, width, gain=1.0)
        self.critic = ppo.mlp(*obs_space.shape, width, args.activation, 1, gain=1.0)
        self.obs_moments = ppo.RunningMoments(obs_space.shape)
        self.return_moments = ppo.RunningMoments(())

    def learners(self):  # all but the target
        fixed = {*self.target.parameters()}
        return [parameter for parameter in self.parameters() if parameter not in fixed]

    def errors(self, next_obs):
        """(batch, obs_dim) -> squared errors of the prediction, (batch,); section 2.2."""
        # normalised by its own statistics, or a random network hardly varies; clipped to +-5,
        # or what never varied before would be as large as you like: section 2.4
        x = self.obs_moments.normalised(next_obs).clip(-5, 5)
        with torch.no_grad():
            target = self.target(x)
        return (self.predictor(x) - target).square().mean(dim=1)

    def value(self, features):  # (..., n), as the agent's networks see it -> (...)
        return self.critic(features).squeeze(-1)


def make_agent(args, obs_space, action_space):
    if len(obs_space.shape) == 3:
        ppo.fail("ppo_rnd takes vectors, not images")
    return ppo.make_agent(args, obs_space, action_space)


if __name__ == "__main__":
    ppo.main("ppo_rnd", Args, make_agent, train, ppo.evaluation_policy)
