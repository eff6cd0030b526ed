"""PPO with many seeds at once: agents that know nothing of each other take their gradient steps
together.

Run       python algos/ppo_seeds.py --num-seeds 10                     CartPole-v1, seeds 1 to 10
          python algos/ppo_seeds.py --num-seeds 3 --vary learning_rate 1e-3 2e-3 4e-3
          python algos/ppo_seeds.py --evaluate RUN                     the folder of one

With small networks a gradient step is mostly the start of operations; here each operation serves
all seeds. It imports ppo.py, which must lie beside it, and holds only what differs:
- every seed has a run as ppo.py would make it, with environments, generators, statistics, optimizer
  and folder of its own; the others' folders lie beside the first one's and begin with its name;
- torch.func.vmap applies ppo's loss, written for one agent, to all of them in one pass;
- before a seed collects, Python's and NumPy's generators are set to what it left them at;
- each gradient is clipped by its own norm and applied by itself, so that seed 3 of ten is ppo.py's
  seed 3, but for rounding (and for what draws from torch's generator, such as dropout).
"""

import contextlib
import io
import json
import random
from dataclasses import dataclass, replace

import numpy as np
import ppo
import torch
from torch import nn


@dataclass
class Args(ppo.RunArgs):
    num_seeds: int = 10  # Agents trained at once: with `seed`, seed + 1, and so on.
    vary: tuple[str, ...] | None = None  # A setting, its values, num_seeds each: gamma 0.9 0.99.

    def check(self):
        super().check()
        ppo.require_range(self, "num_seeds", low=1)
        if self.seed + self.num_seeds > 2**63:
            ppo.fail(f"num_seeds={self.num_seeds}: seed={self.seed} leaves too few")
        if self.target_kl is not None:
            ppo.fail("target_kl would end the epochs of all seeds")
        if self.vary is not None:
            field, *values = self.vary or ("nothing",)
            if field not in VARIED or not values:
                words = " ".join(self.vary) or "nothing"
                ppo.fail(f"--vary takes one of {', '.join(VARIED)}, then values, not {words}")
            ppo.refuse_typed(self, field, f"with vary {field}")
            try:
                for value in reversed(values):  # the first one is that of this run folder
                    setattr(self, field, float(value))
                    ppo.checked(replace(self, vary=None))
            except ValueError as error:
                ppo.fail(f"--vary {field} takes numbers: {error}")


VARIED = "learning_rate", "gamma", "gae_lambda", "max_grad_norm"  # what the loss does not read


def train(args: Args, run: ppo.Run):
    seeds = [Seed(0, run)]  # whose folder is there now; the others' begin with its name
    with contextlib.ExitStack() as stack:
        runs, folders = make_runs(args, run, stack)
        for place in list(runs)[1:]:
            seeds.append(Seed(place, runs[place]))
            seeds[-1].run.bar.close()
        learn(args, seeds)
        report(list(runs.values()), folders)


def learn(args: Args, seeds: list):
    while (step := min(seed.step for seed in seeds)) < args.total_timesteps:
        # all of them, but after a kill between two checkpoints those that are behind
        behind = [seed for seed in seeds if seed.step == step]
        remaining = ppo.linear_schedule(1.0, 0.0, args.total_timesteps, step)
        batches = [seed.collect(remaining) for seed in behind]
        clip_coef = args.clip_coef * (remaining if args.anneal_clip else 1.0)
        scalars = update(behind, batches, args, clip_coef)
        for seed, batch, own in zip(behind, batches, scalars, strict=True):
            if seed.agent.obs_moments is not None:
                seed.agent.obs_moments.update(batch["obs"])
            own["charts/learning_rate"] = seed.optimizer.param_groups[0]["lr"]
            seed.step = seed.run.end_iteration(own)


class Seed:
    """One agent, and what belongs to it while it learns."""

    def __init__(self, place, run):
        self.place = place
        self.run = run
        self.agent = run.agent
        self.args = run.args
        adam = {"lr": run.args.learning_rate, "eps": 1e-5, "fused": True}
        self.optimizer = torch.optim.Adam(run.agent.parameters(), **adam)
        self.first_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.running_returns = np.zeros(run.args.num_envs)
        self.step = run.start(agent=run.agent, optimizer=self.optimizer)
        self.shared = random.getstate(), np.random.get_state()  # some environments draw from these

    def collect(self, remaining):
        """What ppo.train does before an update. Returns the batch."""
        args = self.args
        agent = self.agent
        buffer = ppo.RolloutBuffer()
        if args.anneal_lr:
            for group, rate in zip(self.optimizer.param_groups, self.first_rates, strict=True):
                group["lr"] = rate * remaining
        random.setstate(self.shared[0])
        np.random.set_state(self.shared[1])
        agent.eval()
        for _ in range(min(args.num_steps, (args.total_timesteps - self.step) // args.num_envs)):
            buffer.add(**ppo.collect_step(agent, self.run, args))
        batch, self.running_returns = ppo.rollout_batch(agent, buffer, args, self.running_returns)
        agent.train()
        self.shared = random.getstate(), np.random.get_state()
        return batch


def update(seeds, batches, args, clip_coef):
    """ppo.update for every seed, with an order of samples of its own; returns a dict for each."""
    batch = {name: torch.stack([b[name] for b in batches]) for name in batches[0]}
    num_samples = batch["advantages"].shape[1]
    losses = []
    num_minibatches = max(1, min(args.num_minibatches, num_samples // 2))
    for _ in range(args.update_epochs):
        orders = np.stack([seed.run.rng.permutation(num_samples) for seed in seeds])
        log_ratios = []
        for chosen in np.array_split(orders, num_minibatches, axis=1):
            index = torch.arange(len(seeds))[:, None], torch.as_tensor(chosen)
            minibatch = {name: tensor[index] for name, tensor in batch.items()}
            terms, log_ratio = gradient_steps(seeds, minibatch, clip_coef)
            losses.append(terms)
            log_ratios.append(log_ratio)
    log_ratios = torch.cat(log_ratios, dim=1)  # (seeds, samples), of the last epoch
    means = {"approx_kl": torch.stack([ppo.approx_kl(x) for x in log_ratios])}
    means["clipfrac"] = ((log_ratios.exp() - 1).abs() > clip_coef).float().mean(dim=1)
    pairs = zip(batch["values"].cpu().numpy(), batch["returns"].cpu().numpy(), strict=True)
    means["explained_variance"] = [ppo.explained_variance(*pair) for pair in pairs]
    for name in losses[0]:
        means[name] = torch.stack([terms[name] for terms in losses]).mean(dim=0)
    means = {f"losses/{name}": x for name, x in means.items()}
    return [{name: float(x[k]) for name, x in means.items()} for k in range(len(seeds))]


def gradient_steps(seeds, minibatch, clip_coef):
    """One for each: minibatch (seeds, batch, ...) -> terms (seeds,), log ratios (seeds, batch)."""
    # rounding depends on the place in a stack, and differs in a stack of one: where seeds are
    # missing that are not behind, or if there is no second, copies stand in their places
    places = [seed.place for seed in seeds]
    rows = np.zeros(max(2, places[-1] + 1), np.int64)
    rows[places] = np.arange(len(seeds))
    modules = [Loss(seeds[row].agent, seeds[row].args) for row in rows]
    minibatch = {name: tensor[rows] for name, tensor in minibatch.items()}
    weights, buffers = torch.func.stack_module_state(modules)

    def loss_of(weights, buffers, minibatch):  # of one
        return torch.func.functional_call(modules[0], (weights, buffers), (minibatch, clip_coef))

    losses_of = torch.func.vmap(loss_of, randomness="different")  # of all; noise of its own each
    losses, terms, log_ratios = losses_of(weights, buffers, minibatch)
    losses.sum().backward()  # a seed's weights are in its own loss alone
    clip_each([seeds[row].args.max_grad_norm for row in rows], weights)
    for k, seed in zip(places, seeds, strict=True):
        for name, parameter in modules[k].named_parameters():
            gradients = weights[name].grad
            parameter.grad = None if gradients is None else gradients[k]
        for name, buffer in modules[k].named_buffers():  # of batch normalisation, for example
            buffer.copy_(buffers[name][k])
        seed.optimizer.step()
    terms = {name: term[places].detach() for name, term in terms.items()}
    return terms, log_ratios[places].detach()


@torch.no_grad()
def clip_each(max_norms, weights):
    """Scales each seed's gradients, (seeds, ...), to its own largest norm."""
    gradients = [w.grad for w in weights.values() if w.grad is not None]
    flat = [g.reshape(len(g), -1) for g in gradients]
    norms = torch.stack([g.norm(dim=1) for g in flat]).norm(dim=0)  # (seeds,)
    scales = (torch.tensor(max_norms, device=norms.device) / (norms + 1e-6)).clamp(max=1)
    for g in gradients:
        g.mul_(scales.reshape(-1, *[1] * (g.ndim - 1)))


class Loss(nn.Module):
    """ppo's loss of one agent as a module, whose weights torch.func can replace."""

    def __init__(self, agent, args):
        super().__init__()
        self.agent = agent
        self.args = args

    def forward(self, minibatch, clip_coef):
        loss, terms, log_ratio = ppo.ppo_loss(self.agent, minibatch, self.args, clip_coef)
        # a term may be a plain number, which vmap cannot return, or a count, which has no mean
        like_loss = {"dtype": loss.dtype, "device": loss.device}
        terms = {name: torch.as_tensor(x, **like_loss) for name, x in terms.items()}
        return loss, terms, log_ratio


def make_agent(args, obs_space, action_space):
    if len(obs_space.shape) == 3:
        ppo.fail("ppo_seeds takes vectors, not images")
    return ppo.make_agent(args, obs_space, action_space)


def make_runs(args, first, stack):
    """{place: run} of `first` and of each other seed that is not finished; the folders of all. The
    stack closes the others; ppo.main closes the first.
    """
    field, *values = args.vary or ("seed", args.seed)
    seeds = range(args.seed, args.seed + args.num_seeds)
    alone = {"num_seeds": 1, "vary": None}  # so that args.json says what its own folder has
    settings = [{field: float(value), "seed": seed} | alone for value in values for seed in seeds]
    runs = {0: first}
    folders = [first.folder]
    whole = first.folder.resolve()  # of `.` there is no name
    for place, own in enumerate(settings[1:], 1):
        folder = whole.with_name(f"{whole.name}-{place + 1}-{own['seed']}")
        folders.append(folder)
        if result_of(folder) is None:
            # without args.json, which comes after the first checkpoint, it was killed at its start
            own["resume"] = str(folder) if (folder / "args.json").exists() else None
            runs[place] = make_run(replace(args, **own), folder, first)
            stack.callback(runs[place].close)
    return runs, folders


def make_run(args, folder, first):
    class Run(ppo.Run):
        def make_folder(self):
            folder.mkdir(exist_ok=True)
            return folder

        def try_evaluation(self):
            pass  # the first run has tried it

    return Run(first.name, args, first.make_agent, first.evaluation_policy, first.make_envs)


def result_of(folder):
    """What result.json has, None where the run is not finished."""
    path = folder / "result.json"
    try:
        return json.loads(path.read_text("utf-8")) if path.exists() else None
    except ValueError as error:
        ppo.fail(f"{path}: {error}")


def iqm(returns):
    """The mean of the middle half, arXiv 2108.13264: (..., seeds) -> (...)."""
    returns = np.sort(returns)
    cut = returns.shape[-1] // 4
    return returns[..., cut : returns.shape[-1] - cut].mean(axis=-1)


def report(runs, folders):
    """Ends every run but the first, and prints what all seeds reached together."""
    for run in runs[1:]:
        with contextlib.redirect_stdout(io.StringIO()):
            run.finish()
    args = runs[0].args
    first = {"seed": args.seed, "eval_return_mean": runs[0].evaluate().mean()}
    results = [first, *map(result_of, folders[1:])]
    pairs = list(zip(results, folders, strict=True))
    field, *values = args.vary or ("", "")
    for i, value in enumerate(values):
        if field:
            ppo.say(f"{field} {value}")
        own = pairs[i * args.num_seeds : (i + 1) * args.num_seeds]
        for result, folder in own:
            mean = result["eval_return_mean"]
            ppo.say(f"seed {result['seed']:<7} return {mean:.1f}, in {folder}")
        print_summary([result["eval_return_mean"] for result, _ in own])


def print_summary(returns):
    drawn = np.random.default_rng(0).choice(returns, (10_000, len(returns)))
    low, high = np.percentile(iqm(drawn), [2.5, 97.5])
    ppo.say(f"all {len(returns)} seeds   mean {np.mean(returns):.1f}, IQM {iqm(returns):.1f}")
    ppo.say(f"95% interval   of the IQM, by bootstrap: {low:.1f} to {high:.1f}")


if __name__ == "__main__":
    ppo.main("ppo_seeds", Args, make_agent, train, ppo.evaluation_policy)
