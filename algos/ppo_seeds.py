"""PPO with many seeds at once: agents that know nothing of each other take their gradient steps
together.

Run       python algos/ppo_seeds.py --num-seeds 10                     CartPole-v1, seeds 1 to 10
          python algos/ppo_seeds.py --num-seeds 3 --vary learning_rate 1e-3 2e-3 4e-3
          python algos/ppo_seeds.py --evaluate RUN                     the folder of one

With small networks a gradient step is mostly the start of operations; here each operation serves
all seeds. It imports ppo.py, which must lie beside it, and holds only what differs:
- every seed has a run as ppo.py would make it, with environments, generator, statistics, optimizer
  and folder of its own; the others' folders lie beside the first one's and begin with its name;
- torch.func.vmap applies ppo's loss, written for one agent, to all of them in one pass;
- each gradient is clipped and applied by itself, so that seed 3 of ten is ppo.py's seed 3, but for
  rounding.
"""

import contextlib
import json
from dataclasses import dataclass, replace

import numpy as np
import ppo
import torch
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    num_seeds: int = 10
    """Agents trained at once: with `seed`, seed + 1, and so on."""
    vary: tuple[str, ...] = ()
    """A setting and its values, with num_seeds seeds for each: learning_rate 1e-3 2e-3 4e-3."""

    def check(self):
        super().check()
        ppo.require_range(self, "num_seeds", low=1)
        if self.target_kl is not None:
            ppo.fail("target_kl would end the epochs of all seeds")
        if self.vary and self.vary[0] not in VARIED:
            ppo.fail(f"--vary takes one of {', '.join(VARIED)}, not {self.vary[0]}")
        try:
            list(map(float, self.vary[1:]))
        except ValueError as error:
            ppo.fail(f"--vary {self.vary[0]} takes numbers: {error}")


VARIED = "learning_rate", "gamma", "gae_lambda", "max_grad_norm"  # what the loss does not read


class Seed:
    """One agent, and what belongs to it while it learns."""

    def __init__(self, run):
        self.run, self.agent, self.args = run, run.agent, run.args
        self.vector, rate = ppo.Vector(run.agent), run.args.learning_rate
        self.optimizer = torch.optim.Adam([self.vector], lr=rate, eps=1e-5, fused=True)
        self.running_returns = np.zeros(run.args.num_envs)
        self.step, self.obs = run.start(agent=run.agent, optimizer=self.optimizer)

    def collect(self):
        """A rollout, as ppo.train has it; returns the buffer."""
        args, agent = self.args, self.agent
        buffer = ppo.RolloutBuffer(args.num_steps, args.num_envs, self.run.obs_space)
        for _ in range(min(args.num_steps, (args.total_timesteps - self.step) // args.num_envs)):
            actions = agent.act(self.obs, self.run.rng)
            next_obs, rewards, *ends, successors = self.run.step(agent.to_env(actions))
            if args.clip_reward:
                rewards = np.sign(rewards)
            buffer.add(self.obs, actions, rewards, *ends, successors)
            self.obs = next_obs
        return buffer


class Loss(nn.Module):
    """ppo's loss of one agent as a module, whose weights torch.func can replace."""

    def __init__(self, agent, args):
        super().__init__()
        self.agent, self.args = agent, args

    def forward(self, mini, clip_coef):
        return ppo.ppo_loss(self.agent, mini, self.args, clip_coef)


def losses_of(seeds):
    """A function of weights (seeds, n) and of a minibatch of each, tensors (seeds, batch, ...),
    that returns what ppo_loss does, with the axis (seeds,) in front.
    """
    module = Loss(seeds[0].agent, seeds[0].args)
    shapes = {name: p.shape for name, p in module.named_parameters()}
    buffers = [dict(Loss(seed.agent, seed.args).named_buffers()) for seed in seeds]
    buffers = {name: torch.stack([x[name] for x in buffers]) for name in buffers[0]}

    def loss(weights, buffers, mini, clip_coef):  # of one
        parts = weights.split([shape.numel() for shape in shapes.values()])
        named = {name: x.view(shapes[name]) for name, x in zip(shapes, parts, strict=True)}
        return torch.func.functional_call(module, {**named, **buffers}, (mini, clip_coef))

    batched = torch.func.vmap(loss, in_dims=(0, 0, 0, None))
    return lambda weights, mini, clip_coef: batched(weights, buffers, mini, clip_coef)


def gradient_steps(seeds, losses, mini, clip_coef):
    """One for each seed. Returns the parts of their losses, (seeds,), and the log ratios."""
    weights = torch.stack([seed.vector.data for seed in seeds]).requires_grad_()
    loss, parts, log_ratios = losses(weights, mini, clip_coef)
    (gradients,) = torch.autograd.grad(loss.sum(), weights)  # (seeds, n): of its own loss each
    for seed, gradient in zip(seeds, gradients, strict=True):
        seed.vector.grad = gradient
        ppo.clip_gradient(seed.optimizer, seed.args.max_grad_norm)
        seed.optimizer.step()
    return {name: part.detach() for name, part in parts.items()}, log_ratios.detach()


def update(seeds, batches, args, clip_coef):
    """ppo.update for every seed, with an order of samples of its own; returns a dict for each."""
    batch = {name: torch.stack([b[name] for b in batches]) for name in batches[0]}
    num_samples, losses, rows = batch["obs"].shape[1], losses_of(seeds), range(len(seeds))
    num_minibatches, history = min(args.num_minibatches, num_samples // 2), []
    for _ in range(args.update_epochs):
        orders, log_ratios = [seed.run.rng.permutation(num_samples) for seed in seeds], []
        for indices in np.array_split(np.stack(orders), num_minibatches, axis=1):
            index = torch.arange(len(seeds))[:, None], torch.as_tensor(indices)
            mini = {name: tensor[index] for name, tensor in batch.items()}
            parts, log_ratio = gradient_steps(seeds, losses, mini, clip_coef)
            history.append(parts)
            log_ratios.append(log_ratio)
    ratios = torch.cat(log_ratios, dim=1)  # (seeds, samples), of the last epoch
    means = {name: torch.stack([x[name] for x in history]).mean(dim=0) for name in history[0]}
    means["approx_kl"] = torch.stack([ppo.approx_kl(x) for x in ratios])
    means["clipfrac"] = ((ratios.exp() - 1).abs() > clip_coef).float().mean(dim=1)
    scalars = [{f"losses/{name}": x[k].item() for name, x in means.items()} for k in rows]
    for k, b in enumerate(batches):
        variance = ppo.explained_variance(b["values"].numpy(), b["returns"].numpy())
        scalars[k]["losses/explained_variance"] = variance
    return scalars


def make_agent(args, obs_space, action_space):
    if len(obs_space.shape) == 3:
        ppo.fail("ppo_seeds takes vectors, not images")
    return ppo.make_agent(args, obs_space, action_space)


def make_runs(args, first):
    """`first` and a run for each other seed: new ones, or those that are there."""
    field, *values = args.vary or ("seed", args.seed)
    settings = [{field: type(getattr(args, field))(value)} for value in values]
    settings = [{**x, "seed": args.seed + k} for x in settings for k in range(args.num_seeds)]
    for name, value in settings[0].items():
        setattr(first.args, name, value)
    runs = [first]
    for k, own in enumerate(settings[1:], 2):
        own["exp_name"] = f"{first.folder.name}-{k}"
        if args.resume:
            (own["resume"],) = map(str, first.folder.parent.glob(f"{first.folder.name}-{k}-*"))
        runs.append(ppo.Run("ppo_seeds", replace(args, **own), make_agent, ppo.evaluation_policy))
    return runs


def iqm(returns):
    """The mean of the middle half, arXiv 2108.13264: (..., seeds) -> (...)."""
    returns, cut = np.sort(returns), np.shape(returns)[-1] // 4
    return returns[..., cut : returns.shape[-1] - cut].mean(axis=-1)


def report(runs):
    """Ends every run but the first, and prints what all seeds reached together."""
    results = [runs[0].evaluate().mean()]
    for run in runs[1:]:
        with contextlib.redirect_stdout(None):
            run.finish()
        result = json.loads((run.folder / "result.json").read_text())
        results.append(result["eval_return_mean"])
    for run, value in zip(runs, results, strict=True):
        print(f"seed {run.args.seed:<7} return {value:.1f}, in {run.folder}")
    drawn = np.random.default_rng(0).choice(results, (10_000, len(results)))
    low, high = np.percentile(iqm(drawn), [2.5, 97.5])
    print(f"all {len(results)} seeds   mean {np.mean(results):.1f}, IQM {iqm(results):.1f}")
    print(f"95% interval   of the IQM, by bootstrap: {low:.1f} to {high:.1f}")


def train(args: Args, run: ppo.Run):
    runs = make_runs(args, run)
    seeds = [Seed(run) for run in runs]
    for seed in seeds[1:]:
        seed.run.bar.close()
    while (step := min(seed.step for seed in seeds)) < args.total_timesteps:
        # all of them, but after a kill between two checkpoints those that are behind
        behind, batches, buffers = [seed for seed in seeds if seed.step == step], [], []
        for seed in behind:
            learning_rate, clip_coef = ppo.schedules(seed.args, step)
            seed.optimizer.param_groups[0]["lr"] = learning_rate
            buffers.append(seed.collect())
            batch, seed.running_returns = ppo.make_batch(
                seed.agent, buffers[-1], seed.args, seed.running_returns
            )
            batches.append(batch)
        scalars = update(behind, batches, args, clip_coef)
        for seed, buffer, own in zip(behind, buffers, scalars, strict=True):
            seed.agent.end_rollout(buffer.obs[: buffer.size])
            rate = seed.optimizer.param_groups[0]["lr"]
            seed.step = seed.run.end_iteration({"charts/learning_rate": rate, **own})
    report(runs)


if __name__ == "__main__":
    ppo.main("ppo_seeds", Args, make_agent, train, ppo.evaluation_policy)
