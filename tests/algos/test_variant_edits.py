"""What a reader edits is what runs, in variants."""

import dqn_apex
import numpy as np
import ppo
import ppo_hybrid
import ppo_multi
import ppo_network
import ppo_parallel
import ppo_rnd
import ppo_seeds
import pytest
import td3_sac
import torch
from conftest import new_run
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

SAC = dict(env_id="Pendulum-v1", hidden_sizes=(16, 16), learning_starts=50, batch_size=16)
SAC |= dict(total_timesteps=90, torch_threads=1)


@pytest.mark.parametrize("critics, drop, kept", [(5, 2, 15), (2, 1, 8), (3, 0, 15)])
def test_tqc_with_any_number_of_critics(monkeypatch, critics, drop, kept):
    """The paper has five: the largest `drop` for each are left out of all their quantiles."""
    run = new_run(td3_sac, **SAC, quantiles=5, drop=drop)
    sizes = run.obs_space.shape[0] + 1, (16, 16), 5
    networks = [td3_sac.td3.relu_mlp(*sizes) for _ in range(critics)]
    run.agent.critics = nn.ModuleList(networks)
    run.names = set(run.agent.state_dict())  # as if it had been made so
    targets, loss_of = set(), td3_sac.quantile_huber_loss

    def loss(quantiles, y):
        targets.add(y.shape[1])
        return loss_of(quantiles, y)

    monkeypatch.setattr(td3_sac, "quantile_huber_loss", loss)
    td3_sac.train(run.args, run)
    assert targets == {kept}


def test_sac_s_settings_without_flags_do_what_they_say(monkeypatch):
    """CleanRL's SAC moves the policy every second time; one critic is SAC without the minimum."""
    monkeypatch.setattr(td3_sac.Args, "policy_frequency", 3)
    monkeypatch.setattr(td3_sac.Args, "twin", False)
    run = new_run(td3_sac, **SAC)
    td3_sac.train(run.args, run)
    steps = {
        name: {int(state["step"]) for state in run.parts[f"{name}_optimizer"].state.values()}
        for name in ("actor", "critic")
    }
    assert len(run.agent.critics) == 1 and steps == {"critic": {40}, "actor": {14}}


def test_hybrid_actions_have_the_distribution_of_ppo_s_agent(monkeypatch):
    """A narrower one, for example, in acting and in the loss."""
    space = Dict(choice=Discrete(3), place=Box(-1, 1, (2,)))
    flat = ppo_hybrid.Flat(space)
    agent = ppo_hybrid.make_agent(ppo_hybrid.Args(), Box(-1, 1, (5,)), flat)
    outputs, actions = torch.zeros(1, 5), torch.tensor([[1.0, 0.0, 0.0, 0.1, 0.2]])
    monkeypatch.setattr(
        ppo.Agent, "log_prob_and_entropy", lambda self, means, a: (a.sum(1), torch.ones(1))
    )
    log_prob, entropy = agent.log_prob_and_entropy(outputs, actions)
    assert log_prob.item() == pytest.approx(0.3 - np.log(3))
    assert entropy.item() == pytest.approx(1 + np.log(3))


def test_all_of_curiosity_but_the_target_learns():
    curiosity = ppo_rnd.Curiosity(ppo_rnd.Args(hidden_size=7), Box(-1, 1, (5,)))
    curiosity.inverse = nn.Linear(3, 2)  # of a model like that of ICM
    learned = {id(parameter) for parameter in curiosity.learners()}
    for name, parameter in curiosity.named_parameters():
        assert (id(parameter) in learned) == (not name.startswith("target."))


def test_batch_normalisation_of_a_reader_s_own_is_renewed(monkeypatch):
    layers_of = ppo_network.hidden_layers

    def hidden_layers(args, input_shape):
        return [*layers_of(args, input_shape), nn.BatchNorm1d(args.hidden_size)]

    monkeypatch.setattr(ppo_network, "hidden_layers", hidden_layers)
    run = new_run(ppo_network, num_envs=2, num_steps=16, num_minibatches=1, total_timesteps=96)
    ppo_network.train(run.args, run)
    assert run.agent.trunk[-1].num_batches_tracked == 3


def test_a_copy_of_ppo_seeds_is_itself_for_every_seed(tmp_path):
    policy, made = (lambda agent, rng, args: None), []
    make_envs = lambda *given, **own: made.append(1) or ppo.make_envs(*given, **own)  # noqa: E731
    args = ppo_seeds.Args(num_envs=2, num_steps=8, num_minibatches=1)
    first = ppo.Run("my_seeds", args, ppo_seeds.make_agent, policy, make_envs)
    other = ppo_seeds.make_run(args, tmp_path / "2", first)
    # each makes environments to train in, and only the first tries an evaluation's
    assert (other.name, other.evaluation_policy, len(made)) == ("my_seeds", policy, 3)
    for run in (first, other):
        run.close()


def test_actors_have_the_learner_s_network_and_environments(monkeypatch):
    monkeypatch.setattr(dqn_apex, "make_network", lambda *spaces: nn.Linear(3, 2))
    monkeypatch.setattr(dqn_apex, "make_envs", "mine")
    actor = dqn_apex.Actor(dqn_apex.Args(), 0, Box(-1, 1, (3,)), Discrete(2))
    assert isinstance(actor.agent, nn.Linear) and actor.make_envs == "mine"


def test_a_curriculum_reaches_every_world():
    run = new_run(
        ppo_multi, env_id="tasks:MultiCartPole", num_envs=4, num_agents=2, eval_episodes=2
    )
    run.envs.set_attr("force", 7.0)
    assert [world.force for world in run.envs.envs] == [7.0, 7.0]
    run.close()


@pytest.mark.parametrize("given", [{}, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}])
def test_a_launcher_may_say_nothing_of_this_machine(monkeypatch, given):
    """As Slurm's srun alone: then all ranks are taken to be here."""
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"RANK": "3", "WORLD_SIZE": "5"} | given).items():
        monkeypatch.setenv(name, value)
    found = [ppo_parallel.on_this_machine(name) for name in ("RANK", "WORLD_SIZE")]
    assert found == (["1", "2"] if given else ["3", "5"])
