"""A flag that was typed and has no effect is refused, with the reason."""

import importlib

import pytest

NO_EFFECT = [
    ("ppo", "--log-std-init 0.5", "log_std_init", "with discrete actions"),
    ("a2c", "--log-std-init 0.5", "log_std_init", "with discrete actions"),
    ("ppo", "--env-id environments:Colour-v0 --hidden-size 32", "hidden_size", "with images"),
    ("a2c", "--env-id environments:Colour-v0 --activation relu", "activation", "with images"),
    ("dqn", "--env-id environments:Colour-v0 --hidden-sizes 8 8", "hidden_sizes", "with images"),
    ("dqn", "--v-min 0", "v_min", "without n_atoms"),
    ("dqn", "--n-atoms 51 --loss mse", "loss", "with n_atoms"),
    (
        "dqn",
        "--exploration-steps 500 --exploration-fraction 0.5",
        "exploration_fraction",
        "with exploration_steps",
    ),
    ("td3", "--policy-noise 0 --noise-clip 0.3", "noise_clip", "without policy_noise"),
    ("td3_sac", "--alpha 0.2 --target-entropy -1", "target_entropy", "with a constant alpha"),
    (
        "dqn_prioritised",
        "--priority-exponent 0 --importance-exponent 0.5",
        "importance_exponent",
        "with priority_exponent 0",
    ),
    (
        "dqn_quantile",
        "--importance-exponent 0.5",
        "importance_exponent",
        "with priority_exponent 0",
    ),
    ("dqn_apex", "--exploration-fraction 0.5", "exploration_fraction", "with actors"),
    ("dqn_apex", "--lockstep --actor-timeout 9", "actor_timeout", "with lockstep"),
    (
        "ppo_imitation",
        "--imitation-coef 0 --imitation-steps 900",
        "imitation_steps",
        "without imitation_coef",
    ),
    ("ppo_multi", "--no-agent-id", "agent_id", "where no agents share a policy"),
    (
        "ppo_pqn",
        "--env-id environments:Colour-v0 --hidden-size 32",
        "hidden_size",
        "with images",
    ),
]


@pytest.mark.parametrize("script, flags, name, reason", NO_EFFECT)
def test_a_flag_without_effect_is_refused(script, flags, name, reason, refused):
    importlib.import_module(script)
    said = refused(script, *flags.split())
    assert f"{name}=" in said and f"has no effect {reason}" in said
