"""What the train functions do with their parts: what they call, with which values, in which order.

The formulas have tests of their own. Here every script trains for a few steps, in environments
whose rewards are known, while spies look on; what they saw is compared with numbers worked out by
hand. The last tests ask whether it learns.
"""

import a2c
import dqn
import dqn_prioritised
import dqn_quantile
import gymnasium as gym
import numpy as np
import ppo
import ppo_pqn
import pytest
import td3
import torch
from conftest import before, calls, curves, env_seeds, hand_stepped, new_run, stopped, train, vector
from gymnasium.spaces import Box, Discrete
from test_ppo_multidiscrete import Told

REWARDS = np.array([10.0, -5.0, 0.0])


class Known(gym.Env):
    """Episodes of 3, 4 or 5 steps: the first are cut by time, the second end, the third do both.

    The observation is the time and the length, which also say the reward: REWARDS[time % 3].
    """

    observation_space = Box(0, 5, (2,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.integers(3, 6))
        return np.float32([0, self.length]), {}

    def step(self, action):
        reward = REWARDS[self.time % 3]
        self.time += 1
        over = self.time == self.length
        ends = over and self.length > 3, over and self.length != 4
        return np.float32([self.time, self.length]), reward, *ends, {"action": action}


class KnownBox(Known):
    """The same with a continuous action, within lopsided bounds."""

    action_space = Box(10, 1000, (1,), np.float32)


for environment in (Known, KnownBox):
    gym.register(f"{environment.__name__}-v0", environment)
gym.register("ToldOfThree-v0", Told, kwargs={"space": Discrete(3), "last": [2]})

SMALL = {
    ppo: dict(num_steps=5, num_minibatches=1, update_epochs=2, hidden_size=8),
    a2c: dict(num_steps=5, hidden_size=8),
    dqn: dict(
        train_frequency=10, gradient_steps=2, learning_starts=20, batch_size=7, hidden_sizes=(8, 8)
    ),
    td3: dict(learning_starts=20, batch_size=7, hidden_sizes=(8, 8), env_id="KnownBox-v0"),
}
ALL = pytest.mark.parametrize("script", SMALL, ids=lambda script: script.__name__)
ON_POLICY = pytest.mark.parametrize("script", [ppo, a2c], ids=["ppo", "a2c"])
CLIPPING = pytest.mark.parametrize("script", [ppo, a2c, dqn], ids=["ppo", "a2c", "dqn"])


def small(script, **settings):
    """A run of 80 steps, 10 to a rollout, in two environments."""
    sizes = dict(env_id="Known-v0", num_envs=2, total_timesteps=80, log_frequency=1)
    return new_run(script, **{**sizes, **SMALL[script], **settings})


def trained(script, **settings):
    run = small(script, **settings)
    script.train(run.args, run)
    return run


def buffer_of(script):
    return script.RolloutBuffer if script in (ppo, a2c) else script.ReplayBuffer


def rewards_of(obs):
    """What Known gives for an action in `obs`, (batch, 2)."""
    return REWARDS[obs[:, 0].astype(int) % 3]


# --- what is collected ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script, env_id",
    [
        (ppo, "CartPole-v1"),
        (ppo, "environments:ShortCartPole-v0"),
        (ppo, "environments:ShortPendulum-v0"),
        (a2c, "environments:ShortCartPole-v0"),
        (a2c, "environments:ShortPendulum-v0"),
        (dqn, "environments:ShortCartPole-v0"),
        (td3, "environments:ShortPendulum-v0"),
    ],
)
def test_what_the_buffer_holds_is_what_single_environments_do(monkeypatch, script, env_id):
    rows = calls(monkeypatch, buffer_of(script), "add")
    settings = SMALL[script] | dict(env_id=env_id, num_envs=3, total_timesteps=120, seed=5)
    if script is dqn:
        settings |= {"train_frequency": 15, "buffer_size": 3000}
    agent = train(script, **settings).agent
    assert len(rows) == 40
    to_env = (lambda actions: actions) if script is dqn else agent.to_env
    space, ends = gym.make(env_id).action_space, 0
    sent = [script.as_declared(to_env(row["actions"]), space) for row in rows]
    for env, seed in enumerate(env_seeds(3, 5, 0)):
        by_hand = list(hand_stepped(env_id, seed, [actions[env] for actions in sent]))
        for t, (obs, reward, terminated, truncated, next_obs) in enumerate(by_hand):
            row = {name: x[env] for name, x in rows[t].items() if name != "self"}
            np.testing.assert_array_equal(row["obs"], obs)
            assert row["rewards"] == np.float32(reward) and row["terminated"] == terminated
            assert row["truncated"] == truncated
            np.testing.assert_array_equal(row["next_obs"], next_obs)
            if script is dqn and t + 1 < len(rows):
                np.testing.assert_array_equal(row["following_obs"], by_hand[t + 1][0])
            ends += terminated or truncated
    assert ends >= 3


@pytest.mark.parametrize("clip_reward", [False, True])
@CLIPPING
def test_rewards_are_clipped_before_they_are_stored(monkeypatch, script, clip_reward):
    # of sizes above and below 1, since a clip to 1 is no sign
    monkeypatch.setitem(globals(), "REWARDS", np.array([10.0, -0.5, 0.0]))
    rows = calls(monkeypatch, buffer_of(script), "add")
    trained(script, clip_reward=clip_reward)
    for row in rows:
        rewards = rewards_of(row["obs"])
        np.testing.assert_array_equal(row["rewards"], np.sign(rewards) if clip_reward else rewards)


@ALL
def test_the_curves_show_whole_episodes_and_whole_rewards(monkeypatch, script):
    """Also where rewards are clipped for learning; episodes that a checkpoint cuts do not count."""
    rows = calls(monkeypatch, buffer_of(script), "add")
    settings = {} if script is td3 else {"clip_reward": True}
    run = trained(script, log_frequency=20, checkpoint_frequency=40, **settings)
    points, finished, running = {}, [], [[], []]
    for t, row in enumerate(rows, start=1):
        for env, reward in enumerate(rewards_of(row["obs"])):
            running[env].append(reward)
            time, length = row["obs"][env]
            if time == length - 1:
                finished.append((sum(running[env]), len(running[env])))
                running[env] = []
        if 2 * t % 40 == 0:
            running = [[], []]
        if 2 * t % 20 == 0:
            points[2 * t] = np.mean(finished, axis=0)
            finished = []
    for place, name in enumerate(("charts/episodic_return", "charts/episodic_length")):
        by_hand = {step: both[place] for step, both in points.items()}
        assert curves(run)[name] == pytest.approx(by_hand)


@ALL
def test_a_checkpoint_ends_all_episodes(monkeypatch, script):
    """Which is due after 35 steps, rounded up to whole rollouts: 40. New seeds follow from it."""
    rows = calls(monkeypatch, buffer_of(script), "add")
    run = trained(script, checkpoint_frequency=35 if script is not td3 else 40)
    env = gym.make(run.args.env_id)
    for t, row in enumerate(rows, start=1):
        time, length = row["obs"].T
        ended, terminated = time == length - 1, (time == length - 1) & (length > 3)
        cut = ~terminated if t in (20, 40) else ended & (length != 4)
        np.testing.assert_array_equal(row["terminated"], terminated)
        np.testing.assert_array_equal(row["truncated"], cut)
        if t in (1, 21):
            seeds = env_seeds(2, 1, 2 * (t - 1))
            np.testing.assert_array_equal(row["obs"], [env.reset(seed=s)[0] for s in seeds])


@pytest.mark.parametrize("env_id", ["Known-v0", "KnownBox-v0"])
@ON_POLICY
def test_actions_are_drawn_while_it_trains(monkeypatch, script, env_id):
    rows = calls(monkeypatch, script.RolloutBuffer, "add")
    trained(script, env_id=env_id, learning_rate=0.0)
    actions = np.concatenate([row["actions"] for row in rows])
    if env_id == "Known-v0":
        assert 20 < actions.sum() < 60
    else:
        assert len(np.unique(actions)) == 80 and 0.7 < actions.std() < 1.3


# --- what is learned from it ----------------------------------------------------------------------


@ON_POLICY
def test_rewards_are_scaled_by_the_returns_since_each_episode_began(monkeypatch, script):
    """The running returns go on from rollout to rollout, and begin anew with every episode."""
    rows = calls(monkeypatch, script.RolloutBuffer, "add")
    used = calls(monkeypatch, script, "gae")
    run = trained(script, norm_reward=True, gamma=0.9, checkpoint_frequency=40)
    running, sums = np.zeros(2), []
    for t, row in enumerate(rows):
        running = 0.9 * running + rewards_of(row["obs"])
        sums.append(running)
        running = running * ~(row["terminated"] | row["truncated"])
        if t % 5 == 4:
            rewards = np.array([rewards_of(row["obs"]) for row in rows[t - 4 : t + 1]])
            by_hand = np.clip(rewards / np.std(sums), -10, 10)
            np.testing.assert_allclose(used[t // 5]["rewards"], by_hand, rtol=1e-4)
    moments = run.agent.return_moments
    assert moments.count == 80
    assert moments.mean.item() == pytest.approx(np.mean(sums), rel=1e-4)
    assert moments.var.item() == pytest.approx(np.var(sums), rel=1e-4)


@ON_POLICY
def test_scaled_rewards_are_clipped(monkeypatch, script):
    used = calls(monkeypatch, script, "gae")
    run = small(script, norm_reward=True)
    run.agent.return_moments.var.fill_(0.01)
    run.agent.return_moments.count.fill_(10**9)  # what comes now hardly moves it
    script.train(run.args, run)
    assert {reward for call in used for reward in call["rewards"].flat} == {10, -10, 0}


@ON_POLICY
def test_the_statistics_of_observations_move_after_the_update(monkeypatch, script):
    """Acting, the batch and the update all see those of the rollouts before, each step once."""
    rows, counts = calls(monkeypatch, script.RolloutBuffer, "add"), []
    places = [(script.Agent, "act"), (script, "rollout_batch"), (script.Agent, "evaluate_actions")]
    for place in places:
        before(monkeypatch, *place, lambda agent, *_: counts.append(int(agent.obs_moments.count)))
    run = trained(script, norm_obs=True)
    per_rollout = len(counts) // 8
    assert counts == [10 * rollout for rollout in range(8) for _ in range(per_rollout)]
    acted_on, moments = np.concatenate([row["obs"] for row in rows]), run.agent.obs_moments
    assert moments.count == len(acted_on) == 80
    np.testing.assert_allclose(moments.mean.numpy(), acted_on.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(moments.var.numpy(), acted_on.var(axis=0), rtol=1e-5)


def test_the_first_ratio_of_every_update_is_one(monkeypatch):
    """The old log-probabilities are of the actions, weights and statistics that acted."""
    ratios, update, loss = [], ppo.update, ppo.clipped_policy_loss
    monkeypatch.setattr(ppo, "update", lambda *a: (ratios.append([]), update(*a))[1])
    monkeypatch.setattr(
        ppo, "clipped_policy_loss", lambda r, *a: (ratios[-1].append(r.tolist()), loss(r, *a))[1]
    )
    settings = dict(env_id="Pendulum-v1", num_envs=2, num_steps=16, total_timesteps=96)
    train(ppo, **settings, norm_obs=True, learning_rate=0.02)
    assert len(ratios) == 3
    for of_one_update in ratios:
        assert of_one_update[0] == pytest.approx([0.0] * 32, abs=1e-5)
        assert max(map(abs, of_one_update[-1])) > 0.1


@pytest.mark.parametrize("settings", [{}, {"anneal_clip": False}])
def test_the_policy_and_the_value_are_clipped_by_the_annealed_coefficient(monkeypatch, settings):
    of_policy = calls(monkeypatch, ppo, "clipped_policy_loss")
    of_value = calls(monkeypatch, ppo, "value_loss")
    run = trained(ppo, clip_coef=0.4, clip_vloss=True, **settings)
    shares = [1 - step / 80 if run.args.anneal_clip else 1 for step in range(0, 80, 10)]
    expected = [0.4 * share for share in shares for _ in range(2)]  # two epochs
    assert [call["clip_coef"] for call in of_policy] == pytest.approx(expected)
    assert [call["clip_coef"] for call in of_value] == pytest.approx(expected)
    of_value.clear()
    trained(ppo)
    assert {call["clip_coef"] for call in of_value} == {None}  # only when asked


@pytest.mark.parametrize("script, updates", [(dqn, 7), (td3, 60)], ids=["dqn", "td3"])
def test_the_buffer_samples_what_it_was_told_as_often_as_it_was_told(monkeypatch, script, updates):
    samples = calls(monkeypatch, script.ReplayBuffer, "sample")
    run = trained(script, gamma=0.7, n_step=3, gradient_steps=4)
    assert len(samples) == 4 * updates  # from step 20 on
    told = {(call["batch_size"], call["n_step"], call["gamma"]) for call in samples}
    assert told == {(7, 3, 0.7)} and all(call["rng"] is run.rng for call in samples)


@pytest.mark.parametrize("env_id, stack", [("Known-v0", 1), ("ALE/Pong-v5", 2)])
@pytest.mark.parametrize("module", [dqn, dqn_prioritised], ids=lambda x: x.__name__)
def test_frames_of_atari_are_kept_once(monkeypatch, module, env_id, stack):
    buffers = calls(monkeypatch, dqn.ReplayBuffer, "__init__")
    own = SMALL[dqn] | {"env_id": env_id, "total_timesteps": 20, "torch_threads": 1}
    own |= {"env_kwargs": '{"stack_num": 2}'} if stack == 2 else {}
    train(module, num_envs=2, **own)
    assert buffers[0]["stack"] == stack


def test_the_noises_of_td3(monkeypatch):
    """Every row, update and action has its own; that on the targets' actions is no other's."""
    acts = calls(monkeypatch, td3.Agent, "act")
    updates = calls(monkeypatch, td3, "update_critics")
    samples = calls(monkeypatch, td3.ReplayBuffer, "sample")
    rows = calls(monkeypatch, td3.ReplayBuffer, "add")
    trained(td3, exploration_noise=0.3, policy_noise=0.2, batch_size=101)
    assert [call["noise"] for call in acts] == [0.3] * 30
    assert {call["batch_size"] for call in samples} == {101}
    noise = np.concatenate([call["noise"].numpy() for call in updates])
    assert noise.shape == (60 * 101, 1) and len(np.unique(noise)) > 0.99 * len(noise)
    assert noise.std() == pytest.approx(0.2, rel=0.05) and abs(noise.mean()) < 0.01
    first = np.concatenate([row["actions"] for row in rows[:10]])  # uniform ones
    assert len(np.unique(first)) == 20 and first.min() < -0.7 and first.max() > 0.7


@pytest.mark.parametrize(
    "own, steps, schedule",
    [
        (dict(exploration_fraction=0.5, learning_starts=100), 400, lambda t: 0.9 - 0.8 * t / 200),
        (dict(exploration_fraction=0.0, learning_starts=2), 16, lambda t: 0.1),
        (dict(exploration_steps=8, learning_starts=0), 16, lambda t: 0.9 - 0.1 * t),
    ],
    ids=["fraction", "at-once", "steps"],
)
def test_epsilon_follows_its_schedule(monkeypatch, own, steps, schedule):
    acts = calls(monkeypatch, dqn.QNetwork, "act")
    sizes = dict(hidden_sizes=(16, 16), num_envs=2, log_frequency=1, total_timesteps=steps)
    run = train(dqn, start_e=0.9, end_e=0.1, **sizes, **own)
    by_hand = {t: max(schedule(t), 0.1) for t in range(0, steps, 2)}
    acted = [1.0 if t < own["learning_starts"] else epsilon for t, epsilon in by_hand.items()]
    assert [act["epsilon"] for act in acts] == pytest.approx(acted)
    last = {t: by_hand[t - 2] for t in range(8, steps + 1, 8)}  # of each iteration
    assert curves(run)["charts/epsilon"] == pytest.approx(last)


def test_the_target_network_takes_its_share_of_the_online_one_when_it_is_due(monkeypatch):
    states = []
    look = lambda online, target, *_: states.append((vector(online), vector(target)))  # noqa: E731
    before(monkeypatch, dqn, "update", look)
    sizes = dict(train_frequency=8, gradient_steps=1, target_network_frequency=20, tau=0.25)
    train(dqn, hidden_sizes=(16, 16), total_timesteps=240, learning_starts=100, **sizes)
    steps = range(104, 241, 8)  # of the updates
    assert len(states) == len(steps) and torch.equal(*states[0])
    for step, (_, target), (q_after, target_after) in zip(steps, states, states[1:], strict=False):
        due = step // 20 > (step - 8) // 20
        expected = 0.75 * target + 0.25 * q_after if due else target
        torch.testing.assert_close(target_after, expected)
    assert not torch.equal(*states[-1])


# --- the optimizers -------------------------------------------------------------------------------

OPTIMIZERS = [
    (ppo, {}, {"optimizer": (torch.optim.Adam, {"eps": 1e-5})}),
    (a2c, {}, {"optimizer": (a2c.RMSpropTF, {"eps": 1e-5, "alpha": 0.99})}),
    (
        a2c,
        {"optimizer": "rmsprop"},
        {"optimizer": (torch.optim.RMSprop, {"eps": 1e-5, "alpha": 0.99, "momentum": 0})},
    ),
    (a2c, {"optimizer": "adam"}, {"optimizer": (torch.optim.Adam, {"eps": 1e-5})}),
    (dqn, {"adam_eps": 3e-4}, {"optimizer": (torch.optim.Adam, {"eps": 3e-4})}),
    (td3, {}, {f"{x}_optimizer": (torch.optim.Adam, {"eps": 1e-8}) for x in ("actor", "critic")}),
]


@pytest.mark.parametrize("script, settings, expected", OPTIMIZERS)
def test_the_optimizers_are_made_as_told(script, settings, expected):
    settings = settings if script is td3 else {"anneal_lr": False, **settings}
    run = trained(script, learning_rate=3e-3, **settings)
    modules = {"optimizer": run.agent}
    if script is td3:
        modules = {"actor_optimizer": run.agent.actor, "critic_optimizer": run.agent.critics}
    assert {name for name in run.parts if "optimizer" in name} == set(expected)
    for name, (kind, values) in expected.items():
        assert type(run.parts[name]) is kind
        values = {"lr": 3e-3, **values}
        if kind is torch.optim.Adam:
            values |= {"betas": (0.9, 0.999), "weight_decay": 0, "fused": True}
        (group,) = run.parts[name].param_groups
        assert {key: group[key] for key in values} == values
        assert [*map(id, group["params"])] == [*map(id, modules[name].parameters())]


@pytest.mark.parametrize("settings", [{}, {"anneal_lr": False}])
@CLIPPING
def test_learning_rates_follow_their_schedule(monkeypatch, script, settings):
    """Of every step of the optimizer; the schedule counts the steps before the rollout."""
    rates, kind = [], a2c.RMSpropTF if script is a2c else torch.optim.Adam
    before(monkeypatch, kind, "step", lambda adam: rates.append(adam.param_groups[0]["lr"]))
    run = trained(script, learning_rate=4e-3, **settings)
    steps = range(0, 80, 10)
    by_hand = [4e-3 * (1 - t / 80 if run.args.anneal_lr else 1) for t in steps]
    times = 1 if script is a2c else 2  # epochs, or gradient steps
    learned = by_hand[1:] if script is dqn else by_hand
    assert rates == pytest.approx([rate for rate in learned for _ in range(times)])
    curve = curves(run)["charts/learning_rate"]
    assert curve == pytest.approx({t + 10: rate for t, rate in zip(steps, by_hand, strict=True)})


@pytest.mark.parametrize("script", [ppo, a2c, dqn])
def test_without_annealing_a_schedule_that_a_reader_adds_counts(script, monkeypatch):
    """As torch's schedulers do it, by writing to the groups."""
    rates, kind = [], a2c.RMSpropTF if script is a2c else torch.optim.Adam
    step = kind.step

    def step_and_halve(self):
        rates.append(self.param_groups[0]["lr"])
        step(self)
        self.param_groups[0]["lr"] /= 2

    monkeypatch.setattr(kind, "step", step_and_halve)
    trained(script, learning_rate=4e-3, anneal_lr=False)
    assert rates == pytest.approx([4e-3 / 2**k for k in range(len(rates))]) and len(rates) > 7


@pytest.mark.parametrize("max_grad_norm", [0.01, 1e9])
@CLIPPING
def test_every_step_follows_the_clipped_gradient_of_its_own_loss(
    monkeypatch, script, max_grad_norm
):
    expected, steps = [], 0
    kind = a2c.RMSpropTF if script is a2c else torch.optim.Adam
    name = {ppo: "ppo_loss", a2c: "a2c_loss", dqn: "dqn_losses"}[script]
    loss_of = getattr(script, name)

    def watched(agent, *inputs):
        result = loss_of(agent, *inputs)
        found = torch.autograd.grad(result[0].mean(), [*agent.parameters()], retain_graph=True)
        expected.append(torch.cat([gradient.flatten() for gradient in found]))
        return result

    def compare(optimizer):
        nonlocal steps
        parts, steps = len(expected), steps + 1
        by_hand = sum(expected) / parts
        by_hand *= min(1, max_grad_norm / by_hand.norm().item())
        gradient = torch.cat([p.grad.flatten() for p in optimizer.param_groups[0]["params"]])
        torch.testing.assert_close(gradient, by_hand, rtol=1e-3, atol=1e-6)
        expected.clear()

    before(monkeypatch, kind, "step", compare)
    monkeypatch.setattr(script, name, watched)
    trained(script, max_grad_norm=max_grad_norm)
    assert steps == {ppo: 16, a2c: 8, dqn: 14}[script]


# --- evaluations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id, greedy", [("CartPole-v1", True), ("ALE/Pong-v5", False)])
@ON_POLICY
def test_evaluations_are_greedy_but_on_atari(script, env_id, greedy):
    args = script.RunArgs(env_id=env_id)
    agent = script.Agent(args, Known.observation_space, Discrete(2))
    obs = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    seen = [script.evaluation_policy(agent, np.random.default_rng(s), args)(obs) for s in (1, 2)]
    best = agent(torch.tensor(obs)).argmax(dim=1).numpy()
    assert (seen[0] == best).all() == greedy
    assert np.array_equal(*seen) == greedy


@ALL
def test_evaluations_come_when_they_are_due(monkeypatch, script):
    """And count one whole episode of each environment."""
    steps = []
    before(monkeypatch, script.Run, "evaluate", lambda run: steps.append(run.step_count))
    run = trained(script, eval_frequency=25, eval_episodes=7)
    # at the end of the iteration in which they are due; that at the end of the run is `finish`'s
    assert steps == ([26, 50, 76] if script is td3 else [30, 50])
    # the environments' returns are known, whatever is done: 5, 15 or 10
    env = gym.make(run.args.env_id)
    lengths = [int(env.reset(seed=seed)[0][1]) for seed in env_seeds(7, 1, 0, 1)]
    returns = [{3: 5.0, 4: 15.0, 5: 10.0}[length] for length in lengths]
    expected = dict.fromkeys(steps, np.mean(returns))
    assert curves(run)["eval/episodic_return"] == pytest.approx(expected)
    assert run.evaluate().tolist() == returns


# --- curves ---------------------------------------------------------------------------------------


@ALL
def test_the_curves_are_means_over_all_updates_since_the_last_point(monkeypatch, script):
    own = {"policy_frequency": 3} if script is td3 else {}
    returned, run = [], small(script, log_frequency=20, **own)

    def watched(update):
        def look(*inputs):
            scalars = update(*inputs)
            found = {name: float(value) for name, value in scalars.items()}
            returned.append((run.step_count, found))
            return scalars

        return look

    for name in ("update_critics", "update_actor") if script is td3 else ("update",):
        monkeypatch.setattr(script, name, watched(getattr(script, name)))
    script.train(run.args, run)
    found = curves(run)
    names = {name for _, scalars in returned for name in scalars}
    assert len(names) > 2 and len(returned) >= 8
    for name in names:
        first = min(step for step, scalars in returned if name in scalars)
        assert list(found[name]) == [step for step in (20, 40, 60, 80) if step >= first], name
        for end, mean in found[name].items():
            since = [x for step, x in returned if end - 20 < step <= end]
            values = [scalars[name] for scalars in since if name in scalars]
            assert mean == pytest.approx(np.mean(values), rel=1e-5), name


# --- that it learns -------------------------------------------------------------------------------

LEARNS = {
    ppo: dict(total_timesteps=4096, learning_rate=1e-2),
    a2c: dict(total_timesteps=4000, learning_rate=1e-2),
    dqn: dict(total_timesteps=1500, learning_starts=100, exploration_fraction=0.5),
}


@pytest.mark.parametrize("script, settings", LEARNS.items(), ids=["ppo", "a2c", "dqn"])
def test_it_learns_which_action_is_right(script, settings):
    run = train(script, env_id="ToldOfThree-v0", eval_episodes=30, **settings)
    assert run.evaluate().mean() == 1


SOLVED = [  # script, settings, least return
    (ppo, {}, 475),
    (dqn, {}, 475),
    (dqn_quantile, {"seed": 11, "eval_episodes": 20}, 400),
    (ppo_pqn, {"eval_episodes": 20}, 450),
]


@pytest.mark.slow
@pytest.mark.parametrize("script, settings, least", SOLVED)
def test_cartpole_is_solved(script, settings, least):
    assert train(script, **settings).evaluate().mean() >= least


@pytest.mark.slow
def test_a2c_solves_cartpole_in_half_the_default_budget():
    run = stopped(new_run(a2c), a2c.train, after=99_999)  # of 200,000, with their schedule
    assert run.step_count == 100_000 and run.evaluate().mean() >= 475
