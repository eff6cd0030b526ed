"""dqn_mask.py: a choice of an action, wherever it is made, is among the valid ones of its own
observation; where all actions are valid it is dqn.
"""

import itertools

import dqn
import dqn_mask
import numpy as np
import pytest
import torch
from conftest import new_run, randomise, train
from test_dqn_maths import losses_of
from test_ppo_mask import BATCH, K, N, observations
from test_runs import TINY

C51 = {"n_atoms": 3, "v_min": -2.0, "v_max": 4.0}
SWITCHES = [
    dict(double=double, dueling=dueling, **atoms)
    for double, dueling, atoms in itertools.product((False, True), (False, True), ({}, C51))
]
ENVS = {"Masked-v0": 0, "Embedded-v0": K}


def random_network(env_id, **settings):
    return randomise(new_run(dqn_mask, env_id=env_id, **settings).agent, std=0.3)


@pytest.mark.parametrize("env_id, k", ENVS.items())
@pytest.mark.parametrize("switches", SWITCHES)
def test_the_loss_is_that_of_dqn_with_the_best_valid_actions_put_in_by_hand(env_id, k, switches):
    args, rng = dqn_mask.Args(loss="mse", **switches), np.random.default_rng(0)
    online, target = (random_network(env_id, **switches) for _ in range(2))
    obs, next_obs = (observations(rng, k) for _ in range(2))
    actions = np.array([rng.choice(np.flatnonzero(row[:N])) for row in obs])
    rewards = rng.normal(size=BATCH).astype(np.float32)
    terminated, gamma = rng.random(BATCH) < 0.3, np.float32(0.9)

    def logits(network, row):
        """Of one observation, action by action."""
        rest = torch.as_tensor(row[None, N + N * k :])
        features = network.trunk(rest)
        head = network.advantage_head if args.dueling else network.q_head
        values = head(features).reshape(-1, args.n_atoms).detach().numpy()  # (k or N, atoms)
        if k > 0:
            values = np.stack([row[N + a * k : N + (a + 1) * k] @ values for a in range(N)])
        if args.dueling:
            mean = np.mean([values[a] for a in range(N) if row[a] == 1], axis=0)
            values = values - mean + network.value_head(features).detach().numpy()
        return values

    def q_values(values):
        if args.n_atoms == 1:
            return values[:, 0]
        probs = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
        return probs @ online.support.numpy()

    losses, best, greedy = [], [], []
    for i in range(BATCH):
        valid = [a for a in range(N) if next_obs[i, a] == 1]
        ranking = q_values(logits(online if args.double else target, next_obs[i]))
        best.append(max(valid, key=lambda a: ranking[a]))
        values = q_values(logits(online, next_obs[i]))
        greedy.append(max(valid, key=lambda a: values[a]))
        chosen = logits(target, next_obs[i])[best[i]]  # (atoms,)
        taken = torch.as_tensor(logits(online, obs[i])[actions[i]])
        if args.n_atoms == 1:
            y = rewards[i] + 0.9 * ~terminated[i] * chosen[0]
            losses.append((taken.item() - y) ** 2)
        else:
            numbers = [torch.tensor([x]) for x in (rewards[i], gamma, terminated[i])]
            probs = torch.softmax(torch.as_tensor(chosen), 0)[None]
            y = dqn.project_categorical(online.support, probs, *numbers)[0]
            losses.append(-(y * torch.log_softmax(taken, 0)).sum().item())
    arrays = dict(obs=obs, next_obs=next_obs, actions=actions, rewards=rewards)
    arrays |= dict(terminated=terminated, discounts=np.full(BATCH, gamma))
    batch = {name: torch.as_tensor(x) for name, x in arrays.items()}
    found, _, _ = losses_of(args.n_atoms)(online, target, batch, args)
    np.testing.assert_allclose(found.detach(), losses, rtol=1e-4, atol=1e-5)
    assert len(set(best)) > 2  # not all the same by chance
    chosen = online.best_actions(online(batch["next_obs"]), batch["next_obs"])
    assert chosen.tolist() == greedy
    acted = online.act(next_obs, 0.0, rng)
    assert acted.tolist() == greedy and acted.dtype == np.int64


@pytest.mark.parametrize("env_id, k", ENVS.items())
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_no_action_is_invalid(env_id, k, epsilon):
    network, rng = random_network(env_id), np.random.default_rng(1)
    obs = observations(rng, k, rows=20_000)
    actions = network.act(obs, epsilon, rng)
    assert (obs[np.arange(20_000), actions] == 1).all() and len(set(actions)) == N
    random = (actions != network.act(obs, 0.0, rng)).mean()
    assert (random > 0.2 * epsilon) if epsilon > 0 else random == 0


def test_random_actions_are_uniform_over_the_valid_ones():
    masks = np.float32([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1]])
    network, rng = random_network("Masked-v0"), np.random.default_rng(2)
    drawn = network.random_actions(np.repeat(masks, 30_000, axis=0), rng)
    for mask, actions in zip(masks, drawn.reshape(4, -1), strict=True):
        shares = np.bincount(actions, minlength=N) / 30_000
        np.testing.assert_allclose(shares, mask / mask.sum(), atol=0.015)
    assert network.random_actions(masks[:0], rng).shape == (0,)


SHORT = TINY["dqn"] | dict(checkpoint_frequency=256, num_envs=2, gradient_steps=1)


@pytest.mark.parametrize(
    "env_id, switches",
    [("AllValid-v0", SWITCHES[0]), ("Identity-v0", SWITCHES[2]), ("Identity-v0", SWITCHES[-1])],
)
def test_where_all_actions_are_valid_it_is_dqn(env_id, switches):
    settings = SHORT | switches | dict(exploration_steps=400)
    plain, masked = train(dqn, **settings), train(dqn_mask, env_id=env_id, **settings)
    assert masked.hash() == plain.hash()
    assert masked.evaluate().tolist() == plain.evaluate()[:3].tolist()


@pytest.mark.parametrize("switches", [SWITCHES[0], SWITCHES[-1]])
def test_a_last_observation_may_have_no_valid_action_and_no_numbers(switches):
    """An invalid one would raise; the loss of a run is finite, or `Run` would end it."""
    run = train(dqn_mask, **SHORT | switches | dict(env_id="Ends-v0"))
    assert all(torch.isfinite(p).all() for p in run.agent.parameters())
    assert run.evaluate().tolist() == [3, 3, 3]


@pytest.mark.slow
def test_embeddings_balance_a_pole_whose_actions_change_places():
    run = train(dqn_mask, env_id="tasks:ShuffledCartPole-v0")
    assert run.evaluate().mean() > 400
