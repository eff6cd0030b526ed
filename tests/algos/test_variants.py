"""Variants as runs: what all those of algos/ promise, and the defaults that their page says."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, VARIANTS, parse, scalars, stopped, train_function
from load import parts_of

QUICK = "--total-timesteps 512 --checkpoint-frequency 256 --learning-starts 50 --buffer-size 200 "
QUICK += "--gradient-steps 1 --hidden-sizes 16 16 --n-step 3 --eval-episodes 3 "
ON_POLICY = "--total-timesteps 1024 --checkpoint-frequency 512 --eval-episodes 3 "
IMAGES = "--num-envs 4 --num-steps 16 --total-timesteps 192 --checkpoint-frequency 64 "
IMAGES += "--update-epochs 2 --torch-threads 1 --eval-episodes 2 "
CONTINUOUS = "--env-id Pendulum-v1 --total-timesteps 210 --learning-starts 50 --batch-size 16 "
CONTINUOUS += "--buffer-size 100 --hidden-sizes 16 16 --checkpoint-frequency 70 --eval-episodes 3 "
WORLDS = (
    "--env-id tasks:MultiCartPole --num-agents 2 --num-envs 6 --num-steps 32 --num-minibatches "
)
WORLDS += "2 --total-timesteps 1152 --checkpoint-frequency 384 --eval-episodes 4 --norm-obs "
RUNS = [  # short ones that learn and cross checkpoints; ppo_seeds and dqn_apex have tests of theirs
    f"dqn_her {QUICK} --n-step 1 --double --n-atoms 5 --num-envs 2",
    f"dqn_mask {QUICK} --double --dueling --num-envs 2",
    f"dqn_noisy {QUICK} --double --dueling --n-atoms 5 --priority-exponent 0.5",
    f"dqn_prioritised {QUICK} --dueling --n-atoms 3 --v-min -2 --v-max 4",
    f"dqn_quantile {QUICK} --double --dueling --num-envs 2 --n-atoms 7 --priority-exponent 0.6",
    f"ppo_dict {IMAGES} --env-id test_ppo_dict:ArmCamera-v0 --norm-obs --norm-reward",
    f"ppo_hybrid {ON_POLICY} --norm-obs",
    f"ppo_imitation {ON_POLICY} --demonstrations expert.npz --imitation-steps 1024",
    f"ppo_lstm {ON_POLICY} --env-id tasks:Recall-v0 --num-minibatches 2 --norm-obs --norm-reward "
    "--update-epochs 2",
    f"ppo_mask {ON_POLICY} --ent-coef 0.01",
    f"ppo_multi {WORLDS} --norm-reward --num-policies 2",
    f"ppo_multidiscrete {ON_POLICY} --autoregressive",
    f"ppo_network {ON_POLICY} --batch-norm",
    f"ppo_pqn {ON_POLICY} --norm-obs --norm-reward --no-layer-norm --num-steps 30 "
    "--num-minibatches 3",
    "ppo_pqn --env-id environments:Colour-v0 --num-envs 4 --num-steps 16 --total-timesteps 192 "
    "--checkpoint-frequency 64 --update-epochs 1 --torch-threads 1 --eval-episodes 1",
    f"ppo_rnd {ON_POLICY}",
    f"td3_sac {CONTINUOUS} --norm-obs --layer-norm",
    f"td3_sac {CONTINUOUS} --quantiles 5 --drop 2 --alpha 0.1 --n-step 3 --num-envs 2",
    f"td3_her {CONTINUOUS} --env-id tasks:Reach-v0 --num-envs 3",
    f"td3_sac_her {CONTINUOUS} --env-id tasks:Reach-v0",
]

CURVES = {  # of a variant's own
    "dqn_quantile": "losses/td_loss losses/q_values losses/q_spread",
    "dqn_her": "charts/success_rate",
    "td3_sac": "losses/qf1_loss losses/qf2_loss losses/qf1_values losses/actor_loss losses/alpha "
    "losses/entropy",
    "ppo_pqn": "losses/td_loss losses/q_values losses/values charts/epsilon",
    "ppo_rnd": "charts/bonus losses/prediction_error losses/bonus_value_loss",
}


@pytest.mark.parametrize("line", RUNS, ids=lambda line: line.split()[0])
def test_a_run_is_evaluated_and_resumed_as_it_was(command, monkeypatch, line):
    """By its command; stopped in this process."""
    name, flags = line.split(maxsplit=1)
    module, (parent, _, *parts) = importlib.import_module(name), parts_of(name)
    obs, actions = np.random.default_rng(0).normal(size=(11, 4)), np.arange(11) % 2
    np.savez("expert.npz", observations=obs, actions=actions)
    whole = command(name, flags, "--runs-dir", "whole")
    folder = Path(whole.line("run folder"))
    evaluated = command(name, "--evaluate", folder)
    assert evaluated.line("evaluation") == whole.line("evaluation")
    assert evaluated.hash == whole.hash
    assert {tag for tag, _ in scalars(folder)} >= {*CURVES.get(name, "").split()}

    args = parse(module, flags.split())
    assert folder.parts[1:3] == (args.env_id.replace(":", "-"), name)
    run = parent.Run(name, args, *parts)
    start, agent_class = run.hash(), type(run.agent)
    if hasattr(agent_class, "features"):  # whose axes an edit of ppo's may rely on
        features, axes = agent_class.features, 1 + len(run.obs_space.shape)

        def checked(agent, obs):
            assert obs.ndim == axes, obs.shape
            return features(agent, obs)

        monkeypatch.setattr(agent_class, "features", checked)
    stopped(run, train_function(module), after=3 * args.total_timesteps // 5)
    assert command(name, "--resume", run.folder).hash == whole.hash != start


@pytest.mark.parametrize("line", ["dqn_noisy --sigma-0 3", "td3_sac --alpha 0.1"])
def test_a_variants_own_flags_have_no_effect_on_an_evaluation(capsys, line):
    name, *flag = line.split()
    Path("args.json").write_text(json.dumps({"algo": name, "args": {"seed": 1}}))
    with pytest.raises(SystemExit):
        parse(importlib.import_module(name), ["--evaluate", ".", *flag])
    assert "has no effect in an evaluation" in capsys.readouterr().err


SIX = "--num-envs 6 --total-timesteps 600"
REFUSED = {  # what is wrong: words of the line that says so
    "dqn_noisy --sigma-0 -1": "sigma_0=-1.0 must lie between 0 and",
    "dqn_noisy --exploration-steps 9": "exploration_steps=9 has no effect with start_e = end_e",
    "dqn_prioritised --priority-exponent 1.5": "priority_exponent",
    "dqn_quantile --kappa 0": "kappa=0.0 must lie between 1e-06 and",
    "dqn_quantile --importance-exponent 0.9": "no effect with priority_exponent 0",
    "dqn_quantile --env-id Pendulum-v1": "Discrete",
    "dqn_apex --num-actors 0": "num_actors=0 must lie between 1 and inf",
    "dqn_apex --fragment-steps 20": "fragment_steps",
    "dqn_apex --total-timesteps 1000 --fragment-steps 48": "fragment_steps",
    "dqn_apex --exploration-steps 500": "no effect with actors",
    "dqn_apex --async-envs": "async_envs",
    "dqn_apex --actor-timeout 0": "actor_timeout=0.0 must lie between 0.1 and inf",
    "ppo_dict --env-id environments:Both-v0": "must be a Dict or Tuple with images",
    "ppo_imitation": "needs demonstrations",
    "ppo_imitation --imitation-coef 0 --imitation-steps 9": "imitation_steps=9 has no effect with",
    "ppo_seeds --vary gamma 0.9 0.99 --gamma 0.9": "gamma=0.9 has no effect with vary gamma",
    "dqn_prioritised --priority-exponent 0 --importance-exponent 1": "importance_exponent=1.0 has",
    "dqn_apex --lockstep --actor-timeout 9": "actor_timeout=9.0 has no effect with lockstep",
    "ppo_hybrid --env-id environments:CameraMixture-v0 --hidden-size 32": "no effect with images",
    "ppo_hybrid --env-id environments:Parts-v0 --log-std-init 1": "no effect without continuous",
    "ppo_imitation --demonstrations absent.npz": "No such file",
    "ppo_imitation --demonstrations short.npz": "actions",
    "ppo_imitation --demonstrations wide.npz": "needs ((11, 4), (11,))",
    "ppo_imitation --demonstrations empty.npz": "needs ((0, 4), (0,))",
    "ppo_imitation --demonstrations other.npz": "not in Discrete(2)",
    "ppo_imitation --demonstrations text.npz": "text.npz",
    "ppo_imitation --demonstrations words.npz": "words.npz: could not convert string",
    "ppo_imitation --demonstrations nan.npz": "nan.npz: some numbers are not finite",
    "ppo_imitation --imitation-coef 0 --save-episodes new.npz": "goes with evaluate",
    "ppo_lstm --num-envs 4 --num-minibatches 8": "num_minibatches=8 must divide num_envs=4",
    "ppo_lstm --lstm-size 0": "lstm_size=0 must lie between 1 and inf",
    "ppo_lstm --env-id environments:Colour-v0": "ppo_lstm takes vectors, not images",
    "ppo_multi --num-policies 0": "num_policies=0 must lie between 1 and inf",
    "ppo_multi --async-envs": "async_envs",
    "ppo_multi --no-agent-id": "agent_id=False has no effect where no agents share a policy",
    f"ppo_multi --env-id tasks:MultiCartPole {SIX}": "num_envs=6 must be a multiple of the 4",
    "ppo_multi --env-id tasks:MultiCartPole --eval-episodes 10": "eval_episodes=10 must be a multi",
    "ppo_multi --num-policies 3": "num_policies=3 is more than the 2 agents",
    "ppo_multi --num-agents 3": "environment tasks:Differ with {'num_agents': 3}: Differ() takes",
    'ppo_multi --env-kwargs {"x":1}': "Differ() takes no arguments",
    'ppo_multi --num-agents 2 --env-kwargs {"num_agents":3}': "num_agents=2 is also in env_kwargs",
    "ppo_multi --env-kwargs [1]": "must be a JSON object",
    "ppo_multi --capture-video": "Differ() takes no arguments",
    "ppo_multi --env-id tasks:Same": "tasks:Same is neither a module with",
    "ppo_multi --env-id tasks:HiddenCartPole": "is neither a module with a parallel_env",
    "ppo_multi --env-id nowhere.simple_v3": "nowhere.simple_v3: No module named 'nowhere'",
    f"ppo_multi --env-id test_ppo_multi:Blind --capture-video --eval-episodes 6 {SIX}": "'render'",
    "ppo_multidiscrete --env-id environments:Mixture-v0": "MultiBinary and Tuple of Discrete, not",
    "ppo_multidiscrete --env-id environments:CameraParts-v0 --hidden-size 8": "effect with images",
    "ppo_network --env-id environments:Colour-v0": "84 x 84",
    "ppo_network --bf16 --no-share-trunk": "share",
    "ppo_parallel --env-id environments:Colour-v0 --hidden-size 32": "no effect with images",
    "ppo_pqn --env-id Pendulum-v1": "Discrete",
    "ppo_pqn --start-e 0.1 --exploration-fraction 1": "no effect with start_e = end_e = 0.1",
    "ppo_pqn --env-id environments:Colour-v0 --hidden-size 32": "no effect with images",
    "ppo_rnd --env-id environments:Colour-v0": "vectors",
    "ppo_seeds --num-seeds 0": "num_seeds=0 must lie between 1 and inf",
    "ppo_seeds --vary hidden_size 8 16": "--vary takes one of learning_rate, gamma",
    "ppo_seeds --vary gamma 0.9 high": "--vary gamma takes numbers",
    "ppo_seeds --vary gamma 0.9 1.1": "gamma=1.1 must lie between 0 and 1",
    "ppo_seeds --vary gamma": "max_grad_norm, then values, not gamma",
    "ppo_seeds --vary": "max_grad_norm, then values, not nothing",
    "ppo_seeds --vary learning_rate 1e-3 inf": "learning_rate=inf must be a finite number",
    "ppo_seeds --num-seeds 2 --seed 9223372036854775807": "seed=9223372036854775807 leaves too few",
    "ppo_seeds --target-kl 0.01": "target_kl would end the epochs of all seeds",
    "ppo_seeds --env-id environments:Colour-v0": "ppo_seeds takes vectors, not images",
    "td3_sac --drop 1": "drop",
    "td3_sac --quantiles 5 --drop 5": "drop",
    "td3_sac --alpha -1": "alpha",
    "td3_sac --env-id Pendulum-v1 --target-entropy 0.7": "must be less than uniform actions have",
    "td3_sac --alpha 0.1 --target-entropy -2": "has no effect with a constant alpha",
    "td3_sac --env-id CartPole-v1": "Box",
}


def test_what_a_variant_cannot_take_is_said_in_a_line(refused):
    np.savez("short.npz", observations=np.zeros((11, 4)))
    files = {"wide": (11, 5, 0), "empty": (0, 4, 0), "other": (11, 4, 2)}
    for file, (rows, obs_dim, action) in files.items():
        actions = np.full(rows, action)
        np.savez(f"{file}.npz", observations=np.zeros((rows, obs_dim)), actions=actions)
    Path("text.npz").write_text("observations,actions")
    one = np.zeros(1, np.int64)
    np.savez("words.npz", observations=np.full((1, 4), "a"), actions=one)
    np.savez("nan.npz", observations=np.full((1, 4), np.nan), actions=one)
    said = {line: refused(*line.split(maxsplit=1)) for line in REFUSED}
    assert {line: text for line, text in said.items() if REFUSED[line] not in text} == {}


PAGE = (ROOT / "docs" / "variants.md").read_text()


@pytest.mark.parametrize("name", VARIANTS)
def test_the_page_has_the_defaults(name):
    """Of each flag in a table of the variant's section that has a number behind it."""
    args = importlib.import_module(name).Args
    name = {"dqn_her": "td3_her", "td3_sac_her": "td3_her"}.get(name, name)  # one section for all
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]
    for row in re.findall(r"^\|.*", section, re.MULTILINE):
        for flag, value in re.findall(r"--([\w-]+) (-?\d[\d.e-]*)", row):
            default = getattr(args, flag.replace("-", "_"))
            assert default == pytest.approx(float(value), rel=0.01), flag


NOT_OFFERED = {  # flags of its parent that mean nothing to a variant
    "dqn_quantile": ["--v-min 0", "--v-max 9", "--loss mse"],
    "ppo_dict": ["--bf16"],
    "ppo_pqn": ["--clip-coef 0.1", "--ent-coef 0.1", "--vf-coef 0.1", "--target-kl 0.1",
        "--log-std-init 0.1", "--norm-adv", "--anneal-clip", "--clip-vloss"],
    "td3_sac": ["--policy-noise 0.2", "--exploration-noise 0.1", "--no-twin",
        "--policy-frequency 2"],
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_flags_that_mean_nothing_to_a_variant_are_not_offered(command, name):
    shown = command(name, "--help").out
    assert "--total-timesteps" in shown
    result = command(name, " ".join(NOT_OFFERED[name]), ok=False)
    for flag in (words.split()[0] for words in NOT_OFFERED[name]):
        assert result.status == 2 and flag in result.err and flag not in shown
