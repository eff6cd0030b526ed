"""What people do with these scripts: build variants on them, and change copies of them.

Whatever they write must be what happens: in acting and in learning, in training and evaluation.
"""

import importlib.util
import itertools
import shutil
import sys

import numpy as np
import ppo
import pytest
import torch
from conftest import ROOT, hash_of_parameters, new_run, only_run, scalars, train
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.spaces import Box, Discrete
from test_runs import TINY

VARIANT = '''"""PPO whose values are kept small.

A whole variant.
"""

from dataclasses import dataclass
from functools import partial

import ppo


@dataclass
class Args(ppo.RunArgs):
    value_decay: float = 0.5  # Weight of the mean squared value.


def loss(agent, minibatch, args, clip_coef):
    loss, terms, log_ratio = ppo.ppo_loss(agent, minibatch, args, clip_coef)
    square = agent.value(agent.features(minibatch["obs"])).square().mean()
    return loss + args.value_decay * square, {**terms, "square": square}, log_ratio


train = partial(ppo.train, loss_of=loss)

if __name__ == "__main__":
    ppo.main("decayed", Args, ppo.make_agent, train, ppo.evaluation_policy)
'''


def load(path):
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_variant_brings_its_arguments_and_its_loss_and_uses_the_rest(
    script, tmp_path, monkeypatch
):
    (tmp_path / "decayed.py").write_text(VARIANT)
    shutil.copy(ROOT / "algos" / "ppo.py", tmp_path)
    flags = "--total-timesteps 2048 --checkpoint-frequency 512 --eval-episodes 2".split()
    plain = script("ppo", *flags, "--runs-dir", "plain")
    variant = tmp_path / "decayed"  # an absolute path
    assert script(variant, *flags, "--value-decay", 0, "--runs-dir", "same").hash == plain.hash
    trained = script(variant, *flags)
    assert trained.hash != plain.hash
    folder = only_run(tmp_path)
    assert folder.parts[-3:-1] == ("CartPole-v1", "decayed")
    assert {tag for tag, _ in scalars(folder)} >= {"losses/square", "losses/entropy"}

    evaluated = script(variant, "--evaluate", folder)
    assert evaluated.line("evaluation") == trained.line("evaluation")
    assert script("ppo", "--evaluate", folder, ok=False).status == 2
    assert "Weight of the mean squared value." in script(variant, "--help").out
    assert "PPO whose values are kept small." in script(variant, "--help").out

    config = "[decayed]\nvalue_decay = 0.5\ntotal_timesteps = 2048\ncheckpoint_frequency = 512\n"
    (tmp_path / "own.toml").write_text(config)
    assert script(variant, "--config", "own.toml", "--runs-dir", "config").hash == trained.hash

    module, end_iteration = load(tmp_path / "decayed.py"), ppo.Run.end_iteration
    settings = dict(total_timesteps=2048, checkpoint_frequency=512, runs_dir="stopped")
    args = module.Args(**settings, eval_episodes=2)
    run = ppo.Run("decayed", args, ppo.make_agent, ppo.evaluation_policy)

    def stop(run, scalars):
        step = end_iteration(run, scalars)
        if step > 1000:
            raise KeyboardInterrupt
        return step

    monkeypatch.setattr(ppo.Run, "end_iteration", stop)
    with pytest.raises(KeyboardInterrupt):
        module.train(args, run)
    assert script(variant, "--resume", run.folder).hash == trained.hash


def test_the_policy_of_an_evaluation_may_have_a_memory():
    """It is made anew for each evaluation, so two of the same agent are the same."""
    memories = []

    def evaluation_policy(agent, rng, args):
        memory = {"steps": 0}
        memories.append(memory)

        def policy(obs):
            memory["steps"] += 1
            return np.full(len(obs), memory["steps"] // 3 % 2)

        return policy

    args = ppo.RunArgs(total_timesteps=768, eval_frequency=256, eval_episodes=3)
    run = ppo.Run("ppo", args, ppo.make_agent, evaluation_policy)
    ppo.train(args, run)  # evaluates at steps 256 and 512
    returns = [run.evaluate() for _ in range(2)]
    assert [memory["steps"] for memory in memories] == [returns[0].max()] * 4
    np.testing.assert_array_equal(*returns)


@pytest.fixture
def edited(tmp_path):
    """edited("ppo", old, new) is a copy of ppo.py, as a module, with `new` in place of `old`."""
    numbers = itertools.count()

    def edit(name, *edits):
        source = (ROOT / "algos" / f"{name}.py").read_text()
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            assert old in source, old
            source = source.replace(old, new)
        path = tmp_path / f"{name}_{next(numbers)}.py"
        path.write_text(source)
        return load(path)

    return edit


OBS, BATCH = Box(-1, 1, (3,), np.float32), 50
ACTIONS = {"discrete": Discrete(4), "continuous": Box(-2, 2, (2,), np.float32)}
EDITS = {  # what to replace, by what
    "nothing": ("import", "import"),
    "features": (
        "return obs if self.obs_moments is None",
        "return 2 * obs if not self.obs_moments",
    ),
    "policy": ("return self.actor(features)", "return -3 * self.actor(features)"),
    "value": ("return self.critic(features)", "return 5 * self.critic(features)"),
}


def random_agent(script, actions):
    torch.manual_seed(0)
    agent = script.Agent(script.RunArgs(), OBS, ACTIONS[actions])
    for p in agent.parameters():  # none of them small, biases included
        torch.nn.init.normal_(p, std=0.5)
    return agent


def observations():
    return np.random.default_rng(0).uniform(-1, 1, (BATCH, 3)).astype(np.float32)


def learned(agent, obs, actions):
    """log pi(a) and V, as the loss asks for them."""
    batch = {"obs": torch.as_tensor(obs), "actions": torch.as_tensor(actions)}
    log_probs, _, values = agent.evaluate_actions(batch)
    return log_probs.detach().numpy(), values.detach().numpy()


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.parametrize("what", EDITS)
def test_ppo_and_a2c_act_by_what_they_learn_once_their_policy_is_edited(edited, name, what):
    script, obs = edited(name, *EDITS[what]), observations()
    agent, plain = random_agent(script, "discrete"), random_agent(ppo, "discrete")
    tables = []  # log pi of each action, (BATCH, 4)
    for each in (agent, plain):
        columns = [learned(each, obs, np.full(BATCH, a))[0] for a in range(4)]
        tables.append(np.stack(columns, axis=1))
    changes = what in ("features", "policy")
    assert (np.abs(tables[0] - tables[1]).max() > 0.1) == changes
    greedy = agent.act(obs, None, greedy=True)
    np.testing.assert_array_equal(greedy, tables[0].argmax(axis=1))
    assert (greedy != tables[1].argmax(axis=1)).any() == changes
    noise = np.random.default_rng(1).gumbel(size=(BATCH, 4))
    sampled = agent.act(obs, np.random.default_rng(1))
    np.testing.assert_array_equal(sampled, (tables[0] + noise).argmax(axis=1))

    agent, plain = random_agent(script, "continuous"), random_agent(ppo, "continuous")
    actions = agent.act(obs, np.random.default_rng(1))
    z = np.random.default_rng(1).standard_normal((BATCH, 2))
    log_std = agent.log_std.detach().numpy()
    expected = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(learned(agent, obs, actions)[0], expected, rtol=1e-4, atol=1e-4)
    assert np.allclose(learned(plain, obs, actions)[0], expected, 1e-3, 1e-3) != changes


@pytest.mark.parametrize("name", ["ppo", "a2c"])
@pytest.mark.parametrize("what", EDITS)
def test_the_bootstrap_of_ppo_and_a2c_follows_an_edited_value(edited, name, what):
    script, rng, gamma = edited(name, *EDITS[what]), np.random.default_rng(2), 0.5
    agent, plain = random_agent(script, "discrete"), random_agent(ppo, "discrete")
    obs, rewards, ended = observations()[:4], rng.random(3).astype(np.float32), np.zeros(1, bool)
    buffer = script.RolloutBuffer()
    for t in range(3):
        step = {"obs": obs[t : t + 1], "next_obs": obs[t + 1 : t + 2], "actions": np.zeros(1, int)}
        step |= {"rewards": rewards[t : t + 1], "terminated": ended, "truncated": ended}
        buffer.add(**step)
    args = script.RunArgs(num_envs=1, gamma=gamma, gae_lambda=1.0)
    make_batch = script.rollout_batch if name == "ppo" else script.make_batch
    batch, _ = make_batch(agent, buffer, args, np.zeros(1))
    with torch.no_grad():
        x = torch.as_tensor(2 * obs if what == "features" else obs)
        values = (5 if what == "value" else 1) * plain.critic(x).squeeze(1).numpy()
    np.testing.assert_allclose(batch["values"].numpy(), values[:3], rtol=1e-4)
    np.testing.assert_allclose(learned(agent, obs, np.zeros(4, int))[1], values, rtol=1e-4)
    returns = [values[3]]  # of the last successor, which no loss sees
    for reward in rewards[::-1]:
        returns.append(reward + gamma * returns[-1])
    np.testing.assert_allclose(batch["returns"].numpy(), returns[:0:-1], rtol=1e-4)


DQN_EDITS = {  # Q' = -3 Q, said where logits are made or where they become Q
    "nothing": (1, "import", "import"),
    "logits": (-3, "return self.q_head(features)", "return -3 * self.q_head(features)"),
    "q_values": (-3, "return logits.squeeze(2)", "return -3 * logits.squeeze(2)"),
}


@pytest.mark.parametrize("what", DQN_EDITS)
def test_dqn_acts_by_what_it_learns_once_its_network_is_edited(edited, what):
    import dqn

    factor, old, new = DQN_EDITS[what]
    networks = []
    for script in (edited("dqn", old, new), dqn):
        torch.manual_seed(0)
        networks.append((script, script.QNetwork(script.RunArgs(), OBS, 4)))
    (script, network), (_, plain) = networks
    obs = observations()
    with torch.no_grad():
        q = factor * plain(torch.as_tensor(obs))
    acted = network.act(obs, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(acted, q.argmax(dim=1))
    batch = {
        "obs": torch.as_tensor(obs[:-1]),
        "next_obs": torch.as_tensor(obs[1:]),
        "actions": torch.arange(BATCH - 1) % 4,
        "rewards": torch.zeros(BATCH - 1),
        "terminated": torch.zeros(BATCH - 1, dtype=torch.bool),
        "discounts": torch.ones(BATCH - 1),
    }
    losses, errors, _ = script.dqn_losses(network, network, batch, script.RunArgs(loss="mse"))
    taken = q[torch.arange(BATCH - 1), batch["actions"]]
    expected = taken - q[1:].max(dim=1).values
    torch.testing.assert_close(losses, expected**2)
    torch.testing.assert_close(errors, expected.abs())


@pytest.mark.parametrize("factor", [1, -1])
def test_td3_acts_by_what_it_learns_once_its_policy_is_edited(edited, factor):
    import td3

    agents, args = [], td3.RunArgs(hidden_sizes=(16, 16))
    script = edited("td3", "return self.actor(obs)", f"return {factor} * self.actor(obs)")
    for module in (script, td3):
        torch.manual_seed(0)
        agents.append(module.Agent(args, 3, -np.ones(2), np.ones(2)))
    (agent, plain), obs = agents, torch.as_tensor(observations())
    with torch.no_grad():
        actions = factor * plain.actor(obs)
        expected = -plain.critics[0](obs, actions).mean()
        y = torch.min(*(critic(obs, actions) for critic in plain.critics))
        losses = [torch.square(critic(obs, actions) - y).mean() for critic in plain.critics]
    np.testing.assert_array_equal(agent.act(obs.numpy(), None), actions)
    torch.testing.assert_close(script.policy_loss(agent, obs).detach(), expected)
    batch = {"obs": obs, "next_obs": obs, "actions": actions, "rewards": torch.zeros(BATCH)}
    batch |= {"terminated": torch.zeros(BATCH, dtype=torch.bool), "discounts": torch.ones(BATCH)}
    found, _ = script.q_losses(agent, agent, batch, torch.zeros(BATCH, 2), args)
    torch.testing.assert_close([loss.detach() for loss in found], losses)


NETWORKS = {"ppo": ["agent"], "a2c": ["agent"], "dqn": ["q_network"]}
NETWORKS["td3"] = ["agent.critics", "agent.actor"]
FORMS = {
    "to 0": "{optimizer}.zero_grad(set_to_none=False)",
    "of the module": "{network}.zero_grad()",
    "by hand": "for p in {network}.parameters(): p.grad = None",
}
CASES = [(name, {}) for name in ("ppo", "dqn", "td3")]
CASES += [("a2c", {"optimizer": kind}) for kind in ("rmsprop_tf", "rmsprop", "adam")]


# what follows where gradients are zeroed, once for each network
FOLLOWS = {"agent.critics": "    sum(losses).back", "agent.actor": "    loss.backward(inputs"}


@pytest.mark.parametrize("name, settings", CASES)
def test_gradients_may_be_zeroed_in_every_usual_form(edited, name, settings):
    settings = TINY[name] | settings | dict(total_timesteps=256)
    weights = hash_of_parameters(train(edited(name, "import", "import"), **settings).agent)
    start = new_run(edited(name, "import", "import"), **settings).agent
    assert hash_of_parameters(start) != weights
    for form in FORMS.values():
        edits = []
        for network in NETWORKS[name]:
            old, follows = "    optimizer.zero_grad()\n", FOLLOWS.get(network, "")
            new = "    " + form.format(optimizer="optimizer", network=network) + "\n"
            edits += [old + follows, new + follows]
        assert hash_of_parameters(train(edited(name, *edits), **settings).agent) == weights, form


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn"])
@pytest.mark.parametrize("zero", ["optimizer", "network"])
def test_gradients_may_be_clipped_as_everywhere(edited, name, zero):
    (network,) = NETWORKS[name]
    call = f"nn.utils.clip_grad_norm_({network}.parameters(), args.max_grad_norm)"
    settings = TINY[name] | dict(total_timesteps=256, max_grad_norm=0.01)
    zeroed = "optimizer.zero_grad()", f"{network if zero == 'network' else zero}.zero_grad()"
    norm = f"torch.stack([p.grad.norm() for p in {network}.parameters()]).norm()"
    factor = f"factor = (args.max_grad_norm / {norm}).clamp(max=1)"
    by_hand = f"{factor}; [p.grad.mul_(factor) for p in {network}.parameters()]"
    runs = [train(edited(name, call, new, *zeroed), **settings) for new in (call, by_hand, "pass")]
    ours, theirs, without = (
        torch.nn.utils.parameters_to_vector(run.agent.parameters()) for run in runs
    )
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-5)
    assert (without - ours).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["ppo", "td3"])
def test_what_the_environment_says_can_be_logged(edited, name, monkeypatch):
    """By one line, where the environments are stepped."""
    said, step = [], HalfCheetahEnv.step

    def spy(self, action):
        result = step(self, action)
        said.append(result[-1]["x_velocity"])
        return result

    monkeypatch.setattr(HalfCheetahEnv, "step", spy)
    call = "truncated = run.step(agent.to_env(actions))\n"
    line = 'np.mean([run.infos[i]["x_velocity"] for i in range(args.num_envs)])'
    line = f'run.log({{"charts/x_velocity": {line}}})\n'
    script = edited(name, call, call + " " * (4 if name == "ppo" else 8) + line)
    settings = dict(env_id="HalfCheetah-v5", num_envs=2, total_timesteps=64, log_frequency=1)
    run = train(script, **settings, **({"num_steps": 4} if name == "ppo" else {}))
    run.writer.flush()
    curve = {k: v for (tag, k), v in scalars(run.folder).items() if tag == "charts/x_velocity"}
    length = run.args.iteration_steps  # each point is the mean of these steps
    assert curve == {
        k: [pytest.approx(np.mean(said[k - length : k]), rel=1e-5)]
        for k in range(length, 65, length)
    }
