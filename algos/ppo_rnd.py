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
- all this is a part of its own beside the agent, with its own optimizer, outside the clipped norm.
Unlike the paper's, networks share nothing, and statistics begin with the first rollout, not with
random steps before it.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import ppo
import torch
import torch.nn.functional as F


@dataclass
class Args(ppo.RunArgs):
    env_id: str = "tasks:FarGoal-v0"
    """Environment, as gymnasium names it; `package.module:Id-v0` imports that module first."""
    ext_coef: float = 2.0
    """Weight of the advantage of the environment's rewards."""
    int_coef: float = 1.0
    """Weight of the advantage of the bonuses."""
    gamma_int: float = 0.99
    """Discount factor of the bonuses; they go on after an episode's end."""
    rnd_learning_rate: float = 2e-3
    """Adam's step size, constant, for the predictor and the critic of bonuses."""

    def check(self):
        super().check()
        ppo.require_range(self, "ext_coef int_coef rnd_learning_rate", low=0)
        ppo.require_range(self, "gamma_int", low=0, high=1)


class Curiosity(torch.nn.Module):
    """The fixed target, its predictor, the critic of bonuses, and the statistics of both scales."""

    def __init__(self, args, obs_space):
        super().__init__()
        sizes = *obs_space.shape, args.hidden_size, args.activation
        self.target = ppo.mlp(*sizes, args.hidden_size, 1.0)
        self.predictor = ppo.mlp(*sizes, args.hidden_size, 1.0)
        self.critic = ppo.mlp(*sizes, 1, 1.0)
        self.obs_moments = ppo.RunningMoments(obs_space.shape)
        self.return_moments = ppo.RunningMoments(())

    def learners(self):  # the target is none of them
        return [*self.predictor.parameters(), *self.critic.parameters()]

    def errors(self, next_obs):
        """(batch, obs_dim) -> squared errors of the prediction, (batch,); section 2.2."""
        # normalised by its own statistics, or a random network hardly varies; clipped to +-5,
        # or what never varied before would be as large as you like: section 2.4
        x = self.obs_moments.normalised(next_obs).clip(-5, 5)
        with torch.no_grad():
            target = self.target(x)
        return (self.predictor(x) - target).square().mean(dim=1)

    def value(self, features):  # (batch, n), as the agent's networks see it -> (batch,)
        return self.critic(features).squeeze(-1)


def successors_of(buffer):
    """What each step led to, before any reset: (steps, envs, *obs_shape)."""
    n = buffer.size
    successors = np.concatenate([buffer.obs[1:n], buffer.last_successors[None]])
    ended = (buffer.terminated | buffer.truncated)[:n]
    if ended.any():
        successors[ended] = np.concatenate(buffer.final_obs)  # by step, then env, as the mask goes
    return successors


def scaled_bonuses(curiosity, errors, ended, args, running):
    """Errors over the standard deviation of their discounted sum; the sums to go on from, (envs,).

    errors, ended (steps, envs). The sum restarts where an episode ends, so that it is 0 at a
    checkpoint. Not centred: a bonus below 0 would punish what is only less new.
    """
    sums, running = ppo.discounted_returns(errors, ended, args.gamma_int, running)
    curiosity.return_moments.update(sums.reshape(-1))  # of all steps and environments
    return errors / curiosity.return_moments.std().item(), running


@torch.no_grad()
def add_bonuses(batch, agent, curiosity, buffer, next_obs, args, running):
    """Adds to ppo's batch what learns from bonuses; returns the sums to go on from.

    next_obs (envs, *obs_shape): what is acted on after the rollout.
    """
    n, successors = buffer.size, successors_of(buffer)
    curiosity.obs_moments.update(successors.reshape(-1, *successors.shape[2:]))
    batch["next_obs"] = torch.as_tensor(successors, device=agent.device).flatten(0, 1)
    errors = curiosity.errors(batch["next_obs"]).cpu().numpy().reshape(n, -1)
    ended = (buffer.terminated | buffer.truncated)[:n]
    bonuses, running = scaled_bonuses(curiosity, errors, ended, args, running)
    # to the critic of bonuses life is one episode: after an end follows the next one's beginning
    obs = np.concatenate([buffer.obs[:n], next_obs[None]])
    features = agent.features(torch.as_tensor(obs, device=agent.device).flatten(0, 1))
    values = curiosity.value(features).cpu().numpy().reshape(n + 1, -1)
    never = np.zeros_like(ended)
    coefs = args.gamma_int, args.gae_lambda
    advantages = ppo.gae(bonuses, values[:-1], values[1:], never, never, *coefs)
    rows = [torch.as_tensor(x, device=agent.device).flatten() for x in (advantages, values[:-1])]
    batch["bonus_returns"] = rows[0] + rows[1]
    batch["advantages"] = args.ext_coef * batch["advantages"] + args.int_coef * rows[0]
    return running, bonuses.mean()


def curiosity_loss(agent, curiosity, mini):
    """The predictor's loss and the critic's; its parts by name."""
    values = curiosity.value(agent.features(mini["obs"]))
    v_loss = 0.5 * F.mse_loss(values, mini["bonus_returns"])
    error = curiosity.errors(mini["next_obs"]).mean()
    return error + v_loss, {"prediction_error": error, "bonus_value_loss": v_loss}


def gradient_steps(agent, curiosity, optimizer, rnd_optimizer, args, mini, clip_coef):
    """ppo's on the agent, then one on what learns of the curiosity; returns what ppo's does."""
    parts, log_ratio = ppo.gradient_step(agent, optimizer, args, ppo.ppo_loss, mini, clip_coef)
    loss, rnd_parts = curiosity_loss(agent, curiosity, mini)
    rnd_optimizer.zero_grad()
    loss.backward()
    rnd_optimizer.step()
    return parts | {name: part.detach() for name, part in rnd_parts.items()}, log_ratio


def make_agent(args, obs_space, action_space):
    if len(obs_space.shape) == 3:
        ppo.fail("ppo_rnd takes vectors, not images")
    return ppo.make_agent(args, obs_space, action_space)


def train(args: Args, run: ppo.Run):  # as ppo's, but for the lines with curiosity or bonuses
    agent, curiosity = run.agent, Curiosity(args, run.obs_space).to(run.device)
    optimizer = torch.optim.Adam([ppo.Vector(agent)], lr=args.learning_rate, eps=1e-5, fused=True)
    rate = args.rnd_learning_rate
    rnd_optimizer = torch.optim.Adam(curiosity.learners(), lr=rate, eps=1e-5, fused=True)
    optimizers = {"optimizer": optimizer, "rnd_optimizer": rnd_optimizer}
    running_returns, running_bonuses = np.zeros((2, args.num_envs))
    step, obs = run.start(agent=agent, curiosity=curiosity, **optimizers)
    learn = partial(gradient_steps, agent, curiosity, *optimizers.values(), args)
    learn = run.recorded(learn, *optimizers.values())
    while step < args.total_timesteps:
        learning_rate, clip_coef = ppo.schedules(args, step)
        optimizer.param_groups[0]["lr"] = learning_rate
        buffer = ppo.RolloutBuffer(args.num_steps, args.num_envs, run.obs_space)
        for _ in range(min(args.num_steps, (args.total_timesteps - step) // args.num_envs)):
            actions = agent.act(obs, run.rng)
            next_obs, rewards, terminated, truncated, successors = run.step(agent.to_env(actions))
            if args.clip_reward:
                rewards = np.sign(rewards)
            buffer.add(obs, actions, rewards, terminated, truncated, successors)
            obs = next_obs

        batch, running_returns = ppo.make_batch(agent, buffer, args, running_returns)
        running_bonuses, bonus = add_bonuses(
            batch, agent, curiosity, buffer, obs, args, running_bonuses
        )
        scalars = ppo.update(learn, batch, args, clip_coef, run.rng)
        agent.end_rollout(buffer.obs[: buffer.size])
        scalars |= {"charts/learning_rate": learning_rate, "charts/bonus": bonus}
        step = run.end_iteration(scalars)


if __name__ == "__main__":
    ppo.main("ppo_rnd", Args, make_agent, train, ppo.evaluation_policy)
