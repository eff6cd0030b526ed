"""ppo_lstm.py: the unrolled LSTM beside torch's own, ends of episodes, states of the bootstrap."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import ppo
import ppo_lstm
import pytest
import torch
from conftest import calls, randomise, train
from gymnasium.spaces import Box, Discrete

T, B, F, H = 13, 5, 3, 7  # steps, environments, length of observations and of the LSTM


def box(n):
    return Box(-1, 1, (n,), np.float32)


def make_agent(action_space, **settings):
    args = ppo_lstm.Args(**{"num_envs": B, "num_steps": T, "lstm_size": H} | settings)
    torch.manual_seed(0)
    return args, randomise(ppo_lstm.make_agent(args, box(F), action_space))


def torch_lstm(agent):
    lstm = torch.nn.LSTM(agent.lstm.input_size, H)
    lstm.load_state_dict({f"{name}_l0": x for name, x in agent.lstm.state_dict().items()})
    return lstm


def episodes(ended):
    """(env, first step, last step + 1) of every episode, or part of one, in a rollout."""
    for env in range(ended.shape[1]):
        cuts = [0, *(int(t) + 1 for t in np.flatnonzero(ended[:, env])), len(ended)]
        yield from ((env, a, b) for a, b in pairwise(cuts) if a < b)


def run_alone(lstm, state, features, env, start, stop):
    """torch.nn.LSTM over one episode: outputs, (n, H), and the state after it, (2 H,)."""
    before = state[env : env + 1] if start == 0 else torch.zeros(1, 2 * H)
    outputs, after = lstm(features[start:stop, env], before.chunk(2, dim=1))
    return outputs, torch.cat(after, dim=1)[0]


def test_weights_start_orthogonal_and_biases_at_zero():
    torch.manual_seed(0)
    lstm = ppo_lstm.make_agent(ppo_lstm.Args(lstm_size=H), box(F), Discrete(2)).lstm
    for weight in (lstm.weight_ih, lstm.weight_hh):  # (4 H, F), (4 H, H)
        torch.testing.assert_close(weight.T @ weight, torch.eye(weight.shape[1]))
    assert (lstm.bias_ih == 0).all() and (lstm.bias_hh == 0).all()


def play(args, agent, rng):
    """A rollout by random observations, ends of both kinds among them; log pi(a) when acting."""
    state = rng.normal(size=(args.num_envs, 2 * H)).astype(np.float32)
    buffer, acted = ppo.RolloutBuffer(), []
    obs = rng.normal(size=(B, F)).astype(np.float32)
    for next_obs in rng.normal(size=(T, B, F)).astype(np.float32):
        actions, after = agent.act(obs, state, rng)
        with torch.no_grad():
            outputs, expected = agent(torch.as_tensor(obs), torch.as_tensor(state))
            log_probs, _ = agent.log_prob_and_entropy(outputs, torch.as_tensor(actions))
        np.testing.assert_array_equal(after, expected)
        acted.append(log_probs.numpy())
        terminated, truncated = rng.random((2, args.num_envs)) < 0.1
        rewards = rng.normal(size=args.num_envs).astype(np.float32)
        step = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs}
        step |= {"terminated": terminated, "truncated": truncated}
        buffer.add(**step, state=state, next_state=after)
        ended = (terminated | truncated)[:, None]
        state = after * ~ended
        obs = np.where(ended, rng.normal(size=(B, F)).astype(np.float32), next_obs)
    return buffer, np.array(acted)


@pytest.mark.parametrize(
    "action_space, settings",
    [(Discrete(3), {}), (Discrete(3), {"norm_obs": True}), (box(2), {})],
    ids=["discrete", "normalised", "continuous"],
)
def test_the_ratio_is_one_before_the_first_step(action_space, settings):
    """With ends inside the rollout and a first state that is not 0, for some of the environments,
    in another order.
    """
    args, agent = make_agent(action_space, **settings)
    rng = np.random.default_rng(0)
    if args.norm_obs:
        agent.obs_moments.update(rng.normal(2, 3, (100, F)))
    buffer, acted = play(args, agent, rng)
    assert (buffer["terminated"] | buffer["truncated"])[:-1].any() and acted.std() > 0.1
    batch, _ = ppo_lstm.make_sequences(agent, buffer, args, np.zeros(B))
    np.testing.assert_allclose(batch["log_probs"].T, acted, atol=1e-5)
    minibatch = {name: tensor[torch.tensor([3, 1])] for name, tensor in batch.items()}
    _, _, log_ratio = ppo.ppo_loss(agent, minibatch, args, 0.2)
    assert log_ratio.shape == (2, T) and log_ratio.abs().max() < 1e-5


def test_values_of_successors_go_on_from_the_state_before_the_reset(monkeypatch):
    """All as the statistics normalise them. The running returns go on to the next rollout."""
    args, agent = make_agent(Discrete(3), norm_obs=True, norm_reward=True)
    agent.obs_moments.update(np.random.default_rng(1).normal(2, 3, (100, F)))
    buffer, _ = play(args, agent, np.random.default_rng(0))
    told = calls(monkeypatch, ppo, "rollout_advantages")
    _, running_returns = ppo_lstm.make_sequences(agent, buffer, args, np.zeros(B))
    (seen,) = told
    ended, lstm = buffer["terminated"] | buffer["truncated"], torch_lstm(agent)
    _, expected = ppo.discounted_returns(buffer["rewards"], ended, args.gamma, np.zeros(B))
    np.testing.assert_array_equal(running_returns, expected)
    assert expected.any()
    values, after = np.zeros((2, T, B), np.float32)  # V of observations, and of their successors
    for env, start, stop in episodes(ended):
        sequence = torch.zeros(stop + 1, B, F)
        sequence[:stop, env] = torch.as_tensor(buffer["obs"][:stop, env])
        sequence[stop, env] = torch.as_tensor(buffer["next_obs"][stop - 1, env])
        sequence = agent.obs_moments.normalised(sequence)
        state = torch.as_tensor(buffer["state"][0])
        outputs, _ = run_alone(lstm, state, sequence, env, start, stop + 1)
        v = agent.value(outputs).detach().numpy()
        values[start:stop, env], after[start:stop, env] = v[:-1], v[1:]
    assert ended[:-1].sum() > 3 and not ended[-1].all()
    np.testing.assert_allclose(seen["values"], values, atol=1e-5)
    np.testing.assert_allclose(seen["next_values"], after, atol=1e-5)


@pytest.mark.parametrize("env_id", ["Clock-v0", "EndingClock-v0"])  # truncated, terminated
def test_states_in_training_are_those_of_the_unrolled_rollout(env_id, monkeypatch):
    """Episodes of five steps in rollouts of seven, and a checkpoint after three of these."""
    rollouts, make_sequences = [], ppo_lstm.make_sequences

    def spy(agent, buffer, args, running_returns):
        ended = buffer["terminated"] | buffer["truncated"]
        lstm, obs = torch_lstm(agent), torch.as_tensor(buffer["obs"])
        state, after = torch.as_tensor(buffer["state"][0]), buffer["next_state"]
        unrolled = np.zeros_like(after[-1])
        for env, start, stop in episodes(ended):  # the last of an environment is kept
            _, expected = run_alone(lstm, state, obs, env, start, stop)
            unrolled[env] = expected.detach()
            np.testing.assert_allclose(after[stop - 1, env], unrolled[env], atol=1e-6)
        rollouts.append((buffer["state"][0], after[-1], unrolled, ended[-1]))
        return make_sequences(agent, buffer, args, running_returns)

    monkeypatch.setattr(ppo_lstm, "make_sequences", spy)
    sizes = {"num_envs": 2, "num_steps": 7, "total_timesteps": 84, "checkpoint_frequency": 42}
    train(ppo_lstm, env_id=f"environments:{env_id}", **sizes, lstm_size=H, eval_episodes=1)
    assert len(rollouts) == 6
    state = np.zeros((2, 2 * H))
    for initial, last, unrolled, ended in rollouts:
        np.testing.assert_array_equal(initial, state)
        np.testing.assert_allclose(last, unrolled, atol=1e-6)
        state = last * ~ended[:, None]
    assert [ended.all() for *_, ended in rollouts] == [False, False, True] * 2
    assert not any(last.any(axis=1).sum() < 2 for _, last, *_ in rollouts)


def test_the_policy_of_an_evaluation_remembers_from_step_to_step():
    args, agent = make_agent(Discrete(4))
    obs = np.random.default_rng(0).normal(size=(T, B, F)).astype(np.float32)
    policy = ppo_lstm.evaluation_policy(agent, None, args)
    played = np.array([policy(x) for x in obs])
    with torch.no_grad():
        outputs, _ = torch_lstm(agent)(torch.as_tensor(obs))
    expected = agent.policy(outputs).argmax(dim=-1).numpy()
    np.testing.assert_array_equal(played, expected)
    assert len(np.unique(expected)) > 1
    forgetful = [ppo_lstm.evaluation_policy(agent, None, args)(x) for x in obs]
    assert (np.array(forgetful) != expected).any()


@pytest.mark.slow
def test_it_recalls_what_no_network_without_a_memory_can():
    """A bit is shown at the start and asked for later: 0.5 is the best without a memory."""
    settings = dict(env_id="tasks:Recall-v0", total_timesteps=20_480, eval_episodes=100)
    assert train(ppo_lstm, **settings).evaluate().mean() == 1
    assert 0.3 < train(ppo, **settings).evaluate().mean() < 0.7


def test_hidden_cartpole_shows_no_velocities():
    obs, _ = gym.make("tasks:HiddenCartPole-v0").reset(seed=3)
    np.testing.assert_array_equal(obs, gym.make("CartPole-v1").reset(seed=3)[0][[0, 2]])


def test_rewards_are_clipped(monkeypatch):
    steps = calls(monkeypatch, ppo.RolloutBuffer, "add")
    sizes = dict(num_envs=2, num_steps=8, num_minibatches=1, total_timesteps=16)
    train(ppo_lstm, env_id="Pendulum-v1", clip_reward=True, **sizes)
    assert {reward for step in steps for reward in step["rewards"]} == {-1}
