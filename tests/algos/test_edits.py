"""What a reader edits is what runs: edits of copies of the four scripts, and their effects.

An edit is a text that occurs once in a script, and what a reader would put in its place.
"""

import json
import math
import sys
import types
from collections import Counter, deque
from dataclasses import dataclass

import dqn
import numpy as np
import ppo
import pytest
import td3
import td3_sac
import torch
import torch.nn.functional as F
from conftest import ROOT, SCRIPTS, curves, new_run, randomise, stopped
from gymnasium.spaces import Box, Discrete
from torch import nn

ACTOR_CRITIC = ["a2c", "ppo"]
SMALL = {"learning_starts": 100, "batch_size": 32}
SETTINGS = {
    "ppo": {"total_timesteps": 512},
    "a2c": {"total_timesteps": 400, "optimizer": "adam"},
    "dqn": {"total_timesteps": 400} | SMALL,
    "td3": {"total_timesteps": 200, "env_id": "Pendulum-v1", "hidden_sizes": (32, 32)} | SMALL,
}
# of each script the line that makes the network which acts, and its name
CRITIC = "self.critic = mlp(*input_shape, args.hidden_size, args.activation, 1, gain=1.0)"
TRUNK = "self.trunk = nn.Sequential(nn.Linear(*obs_space.shape, num_features), nn.ReLU())"
ACTOR = "self.actor = relu_mlp(obs_dim, sizes, self.action_dim)"
NETWORKS = {
    "ppo": (CRITIC, "actor"),
    "a2c": (CRITIC, "actor"),
    "dqn": (TRUNK, "trunk"),
    "td3": (ACTOR, "actor"),
}
ADAMS = {
    "ppo": "torch.optim.Adam(agent.parameters(), **adam)",
    "a2c": "torch.optim.Adam(agent.parameters(), **settings, fused=True)",
    "dqn": "torch.optim.Adam(q_network.parameters(), **adam)",
    "td3": "torch.optim.Adam(agent.critics.parameters(), **adam)",
}
LOOP = "while step < args.total_timesteps:\n"


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """edited("ppo", (before, after), ...): a copy of algos/ppo.py with these edits, as a module."""

    def edit(script, *edits):
        source = (ROOT / "algos" / f"{script}.py").read_text()
        for before, after in edits:
            assert source.count(before) == 1, (source.count(before), before)
            source = source.replace(before, after)
        module = types.ModuleType(f"edited_{script}")
        module.__file__ = str(tmp_path / f"{module.__name__}.py")
        (tmp_path / f"{module.__name__}.py").write_text(source)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, module.__file__, "exec"), module.__dict__)
        return module

    return edit


def begun(module, **settings):
    """A run of an edited script that has not trained yet, with its first arrays."""
    own = SETTINGS[module.__name__.removeprefix("edited_")] | {"eval_episodes": 2}
    run = new_run(module, **own | settings)
    run.module, run.first = module, {k: v.copy() for k, v in run.arrays().items()}
    return run


def finished(run):
    run.module.train(run.args, run)
    run.finish()
    return run


def trained(module, **settings):
    return finished(begun(module, **settings))


def assert_resumes(module, **settings):
    """A run that is stopped after its checkpoint ends as one that is not, which is returned."""
    whole = trained(module, **settings)
    run = stopped(begun(module, **settings), module.train, after=200)
    torch.rand(3)  # what dropout draws from goes on where it was
    resumed = loaded(run, "--resume")
    module.train(resumed.args, resumed)
    assert resumed.hash() == whole.hash() != run.hash()
    return whole


def loaded(run, flag):
    """Another run of the same module, by --resume or --evaluate."""
    module = run.module
    args = module.parse_args(run.name, module.RunArgs, [flag, str(run.folder)])
    return module.Run(run.name, args, module.make_agent, module.evaluation_policy)


def moved(run, part="") -> dict:
    """Of the arrays in weights.npz that have `part` in their names, whether training moved them."""
    now = {name: array for name, array in run.arrays().items() if name not in run.bounds}
    return {k: not np.array_equal(now[k], run.first[k]) for k in now if part in k}


def change_network(script, code):
    """An edit that does something more with the network that acts, which `NET` stands for."""
    line, name = NETWORKS[script]
    return line, f"{line}; {code.replace('NET', f'self.{name}')}"


def network(run):
    return getattr(run.agent, NETWORKS[run.name.removeprefix("edited_")][1])


def watch(layer) -> list:
    """A list to which each call adds: whether it trains, and whether gradients flow."""
    calls = []

    def hook(called, inputs, output):
        if called is layer:  # the target networks copy the hook, too
            calls.append((layer.training, torch.is_grad_enabled()))

    layer.register_forward_hook(hook)
    return calls


def assert_evaluations_repeat(run):
    """Two of them are alike, and so is one of the agent that the folder holds."""
    run.agent.train()
    returns = run.evaluate()
    assert np.array_equal(run.evaluate(), returns)
    again = loaded(run, "--evaluate")
    assert again.hash() == run.hash()
    assert np.array_equal(again.evaluate(), returns)


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_hook_is_called_whenever_it_acts_or_learns(script, edited):
    hook = f"""    run.calls = []
    for module in (run.agent, run.agent.{NETWORKS[script][1]}):
        module.register_forward_hook(lambda m, x, y: run.calls.append((m is run.agent, len(y))))
    step = run.start("""
    run = begun(edited(script, ("    step = run.start(", hook)))
    args = run.args
    if script == "dqn":
        args.start_e = args.end_e = 0.0
    run.module.train(args, run)
    acting = (args.total_timesteps - getattr(args, "learning_starts", 0)) // args.num_envs
    calls = Counter(run.calls)
    assert calls[True, args.num_envs] == calls[False, args.num_envs] == acting
    assert sum(n for (whole, rows), n in calls.items() if not whole and rows > args.num_envs) > 9


@pytest.mark.parametrize("script", ["ppo", "dqn", "td3"])  # a2c has the agent of ppo
def test_a_compiled_network(script, edited):
    """As the page says it: the target network does not call the online one's."""
    graphs = []
    torch._dynamo.reset()  # or the limit of recompilations counts those of other tests

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    module = edited(script, change_network(script, "NET = torch.compile(NET, backend=backend)"))
    module.backend = backend
    run, plain = trained(module), trained(edited(script))
    assert graphs
    compiled = {name.replace("_orig_mod.", ""): array for name, array in run.arrays().items()}
    assert compiled.keys() == plain.arrays().keys() != run.arrays().keys()
    for name, array in plain.arrays().items():
        np.testing.assert_allclose(compiled[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    assert_evaluations_repeat(run)


@pytest.mark.parametrize("script", SCRIPTS)
def test_batch_norm(script, edited):
    """It trains where gradients flow, as dropout would, and there alone."""
    code = "NET.insert(1, nn.BatchNorm1d(NET[0].out_features))"
    run = begun(edited(script, change_network(script, code)))
    layer = network(run)[1]
    calls = watch(layer)
    finished(run)
    assert all(moved(run).values()), moved(run)
    # its statistics are those of the minibatches alone
    assert {*calls} == {(False, False), (True, True)}
    assert layer.num_batches_tracked == sum(trains for trains, _ in calls) > 9
    if script in ("dqn", "td3"):  # the target network's are those of the online network
        target = getattr(run.parts["target"], NETWORKS[script][1])[1]
        assert target.running_mean.equal(layer.running_mean)
        assert target.running_var.equal(layer.running_var)
        assert not target.training
    assert_evaluations_repeat(run)


# --- optimizers and losses ------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_group_of_an_optimizer_keeps_its_own_rate(script, edited):
    agent = "q_network" if script == "dqn" else "agent"
    names = {"dqn": ("q_head", "trunk"), "td3": ("critics.0", "critics.1")}
    quick, slow = names.get(script, ("actor", "critic"))
    adamw = f"""torch.optim.AdamW([
        {{"params": {agent}.get_submodule("{quick}").parameters()}},
        {{"params": {agent}.get_submodule("{slow}").parameters(), "lr": args.learning_rate / 10}},
    ], lr=args.learning_rate, weight_decay=0.1)"""

    run = trained(edited(script, (ADAMS[script], adamw)))
    assert all(moved(run, quick).values()) and all(moved(run, slow).values()), moved(run)
    optimizer = run.parts["critic_optimizer" if script == "td3" else "optimizer"]
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates[0] == pytest.approx(10 * rates[1])
    shares = {"ppo": 0.5, "a2c": 0.1, "dqn": 0.02, "td3": 1.0}  # left before the last update
    assert rates[0] == pytest.approx(run.args.learning_rate * shares[script])


def test_dropout_and_a_scheduler_of_torch_resume(edited):
    cosine = "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)"
    start, end = "    step = run.start(", "        step = run.end_iteration(scalars)\n"
    module = edited(
        "ppo",
        change_network("ppo", "NET.insert(2, nn.Dropout(0.5))"),
        (start, f"    {cosine}\n{start}scheduler=scheduler, "),
        (end, f"        scheduler.step()\n{end}"),
    )
    whole = assert_resumes(module, checkpoint_frequency=256, anneal_lr=False, num_steps=16)
    rates = [group["lr"] for group in whole.parts["optimizer"].param_groups]
    updates = whole.step_count // whole.args.iteration_steps
    expected = whole.args.learning_rate * (1 + math.cos(math.pi * updates / 6)) / 2
    assert rates == [pytest.approx(expected)] and updates == 4


DRAWS = {  # of an update, from the generators that a script shares with environments
    "ppo": ("rng.permutation(batch_size)", "np.random.permutation(batch_size)"),
    "dqn": (
        "rng.integers(1, min(self.total, self.length) + 1, size=batch_size)",
        "np.array(random.choices(range(1, min(self.total, self.length) + 1), k=batch_size))",
    ),
}


@pytest.mark.parametrize("script", DRAWS)
def test_draws_from_numpy_s_and_python_s_own_generators_resume(script, edited):
    settings = {"num_steps": 8, "num_minibatches": 4} if script == "ppo" else {}
    assert_resumes(edited(script, DRAWS[script]), checkpoint_frequency=160, **settings)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_frozen_layer_keeps_its_weights_and_the_others_learn(script, edited):
    run = trained(edited(script, change_network(script, "NET[0].requires_grad_(False)")))
    frozen = f"{NETWORKS[script][1]}.0."
    assert not any(moved(run, frozen).values())
    assert all(learned for name, learned in moved(run).items() if frozen not in name), moved(run)


def test_all_that_the_actor_s_optimizer_holds_gets_a_gradient(edited):
    """Here a scale of observations that the policy has and `agent.actor` has not."""
    module = edited(
        "td3",
        (ACTOR, f"{ACTOR}; self.scale = nn.Parameter(torch.ones(obs_dim))"),
        ("self.actor(features).tanh()\n", "self.actor(self.scale * features).tanh()\n"),
        ("Adam(agent.actor.parameters(), **", "Adam([*agent.actor.parameters(), agent.scale], **"),
    )
    run = trained(module)
    assert all(moved(run).values()) and "scale" in moved(run)


def test_a_parameter_that_no_optimizer_has_is_refused(edited, failure):
    scale = "self.scale = nn.Parameter(torch.ones(obs_dim))"
    run = begun(edited("td3", (ACTOR, f"{ACTOR}; {scale}")))
    assert "scale is in no optimizer" in failure(run.module.train, run.args, run)
    assert run.folder is None  # nothing was written
    assert trained(edited("td3", (ACTOR, f"{ACTOR}; {scale}.requires_grad_(False)")))


CHANGED = {  # an edit of ppo by which a part of the agent would not learn, or not be loaded
    "a new layer": ("initialise(nn.Linear(64, 1), 1.0)", "agent.critic[-1]", "critic.4.weight"),
    "a layer more": ("nn.Linear(64, 1)", "agent.late", "late.bias, late.weight"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_an_agent_that_is_changed_while_it_trains_is_refused(change, edited):
    layer, place, named = CHANGED[change]
    run = begun(edited("ppo", (LOOP, f"{LOOP}        {place} = {layer}\n")))
    with pytest.raises(RuntimeError, match=named):
        run.module.train(run.args, run)


def test_a_layer_that_is_unfrozen_but_in_no_optimizer_is_refused(edited):
    learned = "Adam([p for p in agent.parameters() if p.requires_grad], **adam)"
    module = edited(
        "ppo",
        change_network("ppo", "NET[0].requires_grad_(False)"),
        ("Adam(agent.parameters(), **adam)", learned),
        (LOOP, f"{LOOP}        agent.actor.requires_grad_(step >= 256)\n"),
    )
    run = begun(module)
    with pytest.raises(RuntimeError, match=r"actor\.0\.weight is in no optimizer"):
        module.train(run.args, run)


@pytest.mark.parametrize("script", SCRIPTS)
def test_names_that_weights_npz_has_for_bounds_are_refused(script, edited, failure):
    if script == "dqn":  # which takes no actions with bounds
        return
    line, _ = NETWORKS[script]
    module = edited(script, (line, f"{line}; self.action_low = nn.Parameter(torch.zeros(1))"))
    said = failure(begun, module, env_id="Pendulum-v1")
    assert "the agent's action_low must have another name" in said


@pytest.mark.parametrize("kind", ["LambdaLR", "ReduceLROnPlateau"])
@pytest.mark.parametrize("script", ["ppo", "a2c", "dqn"])
def test_a_scheduler_beside_annealing_is_refused(script, kind, edited, failure):
    start = "    step = run.start("
    what, part = ("optimizer, float", "") if kind == "LambdaLR" else ("optimizer", "s=scheduler, ")
    scheduler = f"    scheduler = torch.optim.lr_scheduler.{kind}({what})\n"
    run = begun(edited(script, (start, f"{scheduler}{start}{part}")))
    assert "add --no-anneal-lr" in failure(run.module.train, run.args, run)
    assert run.folder is None


@pytest.mark.parametrize(
    "name, value", [("env_kwargs", '{"sutton_barto_reward": true}'), ("env_id", "CartPole-v0")]
)
def test_other_environments_than_a_resume_has_are_refused(edited, name, value):
    run = begun(edited("ppo", (LOOP, f"{LOOP}        args.{name} = {value!r}\n")))
    with pytest.raises(RuntimeError, match=rf"{name} changed, .* use run\.envs\.set_attr"):
        run.module.train(run.args, run)


def test_environments_that_the_first_checkpoint_would_replace_are_refused(edited, failure):
    start = "    step = run.start("
    wrap = "    run.envs = gym.vector.VectorWrapper(run.envs)\n"
    run = begun(edited("ppo", (start, wrap + start)))
    assert "run.envs is another object, which no resume has" in failure(
        run.module.train, run.args, run
    )
    assert run.folder is None


@pytest.mark.parametrize("change", [torch.Tensor.double, lambda x: x[:1]])
def test_a_tensor_that_no_run_could_load_is_refused(change):
    run = new_run(ppo)
    assert run.mistake({}) == ""
    bias = run.agent.actor[0].bias
    bias.data = change(bias.data)
    assert "actor.0.bias has another shape or dtype now" in run.mistake({})
    run.close()


def test_a_state_that_is_no_tensor_is_refused(edited):
    """Which torch's own way to save a number is."""
    state = "    def get_extra_state(self):\n        return {'scale': 0.5}\n\n"
    policy = "    def features(self"
    run = new_run(edited("ppo", (policy, state + policy)))
    assert "the agent's _extra_state is no tensor" in run.mistake({})
    run.close()


@pytest.mark.parametrize("script", ["ppo", "td3"])
def test_a_scheduler_that_no_checkpoint_would_keep_is_refused(script, edited, failure):
    """At the start or, if it is made behind it, at the next point of the curves."""
    optimizer = "actor_optimizer" if script == "td3" else "optimizer"
    scheduler = f"    scheduler = torch.optim.lr_scheduler.ExponentialLR({optimizer}, 0.9)\n"
    settings = {} if script == "td3" else {"anneal_lr": False}
    said = f"{optimizer} has a scheduler that no checkpoint keeps: give it to run.start"
    start = "    step = run.start("
    run = begun(edited(script, (start, scheduler + start)), **settings)
    assert said in failure(run.module.train, run.args, run)
    assert run.folder is None
    loop = f"    {LOOP}"
    run = begun(edited(script, (loop, scheduler + loop)), **settings)
    with pytest.raises(RuntimeError, match=said):
        run.module.train(run.args, run)


def test_a_group_that_joins_an_optimizer_in_the_loop_is_refused(edited):
    """No run could load its state: it makes the optimizer as run.start got it."""
    group = '{"params": [torch.nn.Parameter(torch.ones(3))]}'
    joins = f"        optimizer.add_param_group({group})\n"
    run = begun(edited("ppo", (LOOP, LOOP + joins)), anneal_lr=False, total_timesteps=256)
    with pytest.raises(RuntimeError, match="optimizer has new groups"):
        run.module.train(run.args, run)


class Counting(torch.optim.SGD):
    steps = 0

    def step(self):
        self.steps += 1


class Remembering(torch.optim.SGD):
    momenta = ()

    def step(self):
        self.momenta = {group["lr"]: [torch.zeros(3)] for group in self.param_groups}


class Averaging(torch.optim.SGD):
    history = None

    def step(self):
        self.history = deque([[torch.zeros(3)]])


class Drawing(torch.optim.SGD):
    generator = None

    def step(self):
        self.generator = torch.Generator()


class Wrapping(torch.optim.SGD):
    base = None

    def step(self):
        self.base = torch.optim.Adam(self.param_groups)


@pytest.mark.parametrize(
    "kind, name",
    [
        (Counting, "steps"),
        (Remembering, "momenta"),
        (Averaging, "history"),
        (Drawing, "generator"),
        (Wrapping, "base"),
    ],
)
def test_what_an_optimizer_has_beside_its_state_is_refused_if_no_checkpoint_keeps_it(kind, name):
    class Saving(kind):
        def state_dict(self):
            return {}

    run = new_run(ppo)
    learned = [*run.agent.parameters(), *nn.Linear(2, 3).parameters()]
    for optimizer in kind(learned), Saving(learned):
        optimizer.parameters = learned
        optimizer.modules = list(run.agent.modules())
        optimizer.rng = run.rng
        optimizer.scale = 0.5
        optimizer.steps = 0
        assert run.mistake({"optimizer": optimizer}) == ""
        optimizer.step()
        said = run.mistake({"optimizer": optimizer})
        assert f"no checkpoint keeps optimizer.{name}: " in said or optimizer.__class__ is Saving
    assert said == ""
    run.close()


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_agent_that_is_compiled_as_a_whole_is_refused(script, edited, failure):
    """Only its `forward` would be compiled, which neither acting nor learning calls by itself."""
    made = {
        "dqn": "network_class(args, obs_space, int(action_space.n))\n",
        "td3": "(agent_class or Agent)(args, *obs_space.shape, low, high)\n",
    }.get(script, "agent_class(args, obs_space, action_space)\n")
    compiled = f"    return torch.compile({made.strip()})\n"
    run = begun(edited(script, (f"    return {made}", compiled)))
    said = failure(run.module.train, run.args, run)
    assert "torch.compile of an agent has no effect on act and losses" in said
    assert run.folder is None


SECOND = {  # of each script the line that makes the agent's last part, and the last of an update
    "ppo": (CRITIC, "        scalars = update(agent, optimizer, batch, args, clip_coef, run.rng"),
    "a2c": (CRITIC, "        scalars = update(agent, optimizer, batch, args"),
    "dqn": (TRUNK, "                run.log(update(q_network, target_q_network"),
}


@pytest.mark.parametrize("script", SECOND)
def test_the_gradient_of_another_optimizer_is_not_in_the_norm(script, edited):
    """Nor does a resume miss what it left. Here it learns a multiplier."""
    network, update = SECOND[script]
    agent = "q_network" if script == "dqn" else "agent"
    start = "    step = run.start("
    indent = " " * (len(update) - len(update.lstrip()))
    multiplier = (network, f"{network}; self.multiplier = nn.Parameter(torch.ones(()))")
    rates = "    rates = torch.optim.lr_scheduler.StepLR(second, 10)\n"
    parts = "second=second, rates=rates, "
    others = f"[p for p in {agent}.parameters() if p is not {agent}.multiplier]"
    second = (
        (ADAMS[script], ADAMS[script].replace(f"{agent}.parameters()", others)),
        (start, f"    second = torch.optim.SGD([{agent}.multiplier], 0.1)\n{rates}{start}{parts}"),
        (update, f"{indent}(100 * {agent}.multiplier).backward(); second.step()\n{update}"),
    )
    plain = trained(edited(script, multiplier))
    run = assert_resumes(edited(script, multiplier, *second), checkpoint_frequency=128)
    plain = trained(edited(script, multiplier), checkpoint_frequency=128)
    ours, theirs = run.arrays(), plain.arrays()
    assert ours.pop("multiplier") < 0 < theirs.pop("multiplier")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_a_gradient_that_gathers_over_updates_resumes(edited):
    first, second = "    optimizer.zero_grad()\n", "    q_network.zero_grad()  # or the norm"
    module = edited(
        "dqn",
        (first + second, "    #"),
        ("    optimizer.step()\n", """    q_network.updates += 1
    if q_network.updates % 11 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""),
        (TRUNK, f"{TRUNK}; self.register_buffer('updates', torch.zeros(()))"),
    )  # fmt: skip
    assert_resumes(module, checkpoint_frequency=128)


def test_a_loop_that_has_ended_by_itself_does_not_go_on_at_a_resume(edited):
    solved = "        step = run.end_iteration(scalars)\n"
    module = edited("ppo", (solved, f"{solved}        if step >= 300:\n            break\n"))
    run = begun(module, total_timesteps=1024)
    module.train(run.args, run)
    run.log_evaluation = lambda: 1 / 0  # as if it were killed there
    with pytest.raises(ZeroDivisionError):
        run.finish()
    run.close()
    again = loaded(run, "--resume")
    module.train(again.args, again)
    again.finish()
    again.close()
    assert again.hash() == run.hash()
    assert json.loads((run.folder / "result.json").read_text())["steps"] == run.step_count < 1024


def test_the_state_of_a2c_s_optimizer_may_be_cleared(edited):
    clear = "        optimizer.state.clear()\n"
    run = trained(edited("a2c", (LOOP, LOOP + clear)), optimizer="rmsprop")
    assert all(moved(run).values())


OF_ONE_S_OWN = {  # a term of the loss that is named as a curve that there is
    "ppo": ('"entropy": entropy}, log', '"entropy": entropy, "approx_kl": 7.0}, log', "approx_kl"),
    "a2c": (
        "terms = loss_of(agent, batch, args)\n",
        'terms = loss_of(agent, batch, args)\n    terms["explained_variance"] = 7.0\n',
        "explained_variance",
    ),
    "dqn": ('.abs(), {"q_values"', '.abs(), {"td_loss": 7.0, "q_values"', "td_loss"),
}


@pytest.mark.parametrize("script", OF_ONE_S_OWN)
def test_curves_of_one_s_own_replace_others_of_their_names(script, edited):
    before, after, name = OF_ONE_S_OWN[script]
    end = "step = run.step_count" if script == "dqn" else "step = run.end_iteration(scalars)"
    logged = f'run.log({{"charts/episodic_return": 8.0}}); {end}'
    run = trained(edited(script, (before, after), (end, logged)))
    points = curves(run)
    assert {*points["charts/episodic_return"].values()} == {8.0}
    assert {*points[f"losses/{name}"].values()} == {7.0}


def test_a_tensor_that_is_learned_but_not_kept_is_said(capsys):
    for parts in ({}, {"beside": nn.Linear(3, 2)}):
        run = new_run(ppo, **SETTINGS["ppo"])
        beside = parts.get("beside", nn.Linear(3, 2))
        optimizer = torch.optim.Adam([*run.agent.parameters(), *beside.parameters()])
        ppo.train(run.args, run, optimizer=optimizer, parts=parts)
        said = capsys.readouterr().err
        for shape in ("(2, 3)", "(2,)"):
            words = f"no checkpoint keeps a tensor of shape {shape} of optimizer: "
            assert said.count(words) == (not parts)


OF_THE_AGENT = {  # to whether checkpoints keep it
    "self.register_buffer('mu', torch.zeros(3))": True,
    "self.mu = [self.actor, *self.critic.parameters(), self.last, nn.Tanh()]": True,
    "self.mu = {'a name': (None, 2.0, torch.default_generator)}": True,
    "self.register_buffer('mu', torch.zeros(3), persistent=False)": False,
    "self.mu = torch.zeros(3)": False,
    "self.mu = {name: x.clone() for name, x in self.actor.state_dict().items()}": False,
    "self.mu = collections.deque([torch.zeros(3)], maxlen=5)": False,
    "self.mu = [self.actor, {'head': nn.Linear(2, 3)}]": False,
    "self.mu = __import__('dataclasses').make_dataclass('Scale', 'x')(torch.ones(3))": False,
    "self.mu = (nn.Parameter(torch.zeros(3)),)": False,
    "self.mu = torch.Generator()": False,
    "self.mu = np.random.default_rng(0)": False,
    "self.mu = random.Random(0)": False,
}


@pytest.mark.parametrize("mu, kept", OF_THE_AGENT.items())
def test_what_the_agent_has_and_no_checkpoint_keeps_is_said(mu, kept, edited, capsys):
    line, _ = NETWORKS["ppo"]
    trained(edited("ppo", (line, f"{line}; self.register_buffer('last', torch.zeros(())); {mu}")))
    words = "no checkpoint keeps the agent's mu: if it learns or changes, use "
    assert (words not in capsys.readouterr().err) == kept


def test_what_a_part_keeps_for_the_agent_needs_no_word(capsys):
    run = new_run(ppo, **SETTINGS["ppo"])
    run.agent.hidden = [nn.Linear(2, 3)]
    ppo.train(run.args, run, parts={"hidden": run.agent.hidden[0]})
    assert "no checkpoint keeps" not in capsys.readouterr().err


def test_what_an_evaluation_moves_is_put_back(edited):
    """Here a count of what the agent has acted on."""
    sampled = "        outputs = self(torch.as_tensor(obs, device=self.device))\n"
    module = edited(
        "ppo",
        (NETWORKS["ppo"][0], NETWORKS["ppo"][0] + '; self.register_buffer("n", torch.zeros(()))'),
        (sampled, sampled + "        self.n += len(obs)\n"),
    )
    run = trained(module, total_timesteps=512)
    assert run.agent.n == 512
    for training in (True, False):
        run.agent.train(training)
        run.evaluate()
        assert run.agent.training == training
    assert trained(module, total_timesteps=512, eval_frequency=256).hash() == run.hash()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_coefficient_that_is_set_in_the_loop(script, edited):
    name, value = ("ent_coef", 0.02) if script in ACTOR_CRITIC else ("tau", 0.5)
    constant = LOOP, LOOP + f"        args.{name} = {value}\n"
    annealed = LOOP, LOOP + f"        args.{name} = {value} * (1 - step / args.total_timesteps)\n"
    with_flag = trained(edited(script), **{name: value}).hash()
    assert trained(edited(script, constant), **{name: 0.0}).hash() == with_flag
    assert trained(edited(script, annealed), **{name: value}).hash() != with_flag


# --- what acts is what learns ---------------------------------------------------------------------

OBS, BATCH, DISCRETE = Box(-1, 1, (3,), np.float32), 50, Discrete(4)
BOX = Box(-2, 2, (2,), np.float32)
FEATURES = "return obs if self.obs_moments is None", "return 2 * obs if not self.obs_moments"
POLICY = "return self.actor(features)", "return -3 * self.actor(features)"
VALUE = "return self.critic(features)", "return 5 * self.critic(features)"


def random_agent(module, actions=DISCRETE):
    torch.manual_seed(0)
    agent = module.Agent(module.RunArgs(), OBS, actions)
    return randomise(agent)


def observations():
    return np.random.default_rng(0).uniform(-1, 1, (BATCH, 3)).astype(np.float32)


def learned(agent, obs, actions):
    """log pi(a) and V, as the loss asks for them."""
    batch = {"obs": torch.as_tensor(obs), "actions": torch.as_tensor(actions)}
    log_probs, _, values = agent.evaluate_actions(batch)
    return log_probs.detach().numpy(), values.detach().numpy()


@pytest.mark.parametrize("edit", [FEATURES, POLICY], ids=["features", "policy"])
def test_an_edited_policy_acts_by_what_it_learns(edit, edited):
    """a2c has the same Agent, to the byte."""
    module, obs = edited("ppo", edit), observations()
    agent = random_agent(module)
    columns = [learned(agent, obs, np.full(BATCH, a))[0] for a in range(4)]
    log_probs = np.stack(columns, axis=1)
    greedy = agent.act(obs, None, greedy=True)
    np.testing.assert_array_equal(greedy, log_probs.argmax(axis=1))
    assert (greedy != random_agent(ppo).act(obs, None, greedy=True)).any()
    noise = np.random.default_rng(1).gumbel(size=(BATCH, 4))
    sampled = agent.act(obs, np.random.default_rng(1))
    np.testing.assert_array_equal(sampled, (log_probs + noise).argmax(axis=1))

    agent = random_agent(module, BOX)
    actions = agent.act(obs, np.random.default_rng(1))
    z = np.random.default_rng(1).standard_normal((BATCH, 2))
    log_std = agent.log_std.detach().numpy()
    expected = (-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(learned(agent, obs, actions)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("script", ACTOR_CRITIC)
@pytest.mark.parametrize("edit", [FEATURES, VALUE], ids=["features", "value"])
def test_an_edited_value_is_bootstrapped_from(script, edit, edited):
    module, rng, gamma = edited(script, edit), np.random.default_rng(2), 0.5
    agent, plain = random_agent(module), random_agent(ppo)
    obs, rewards, ended = observations()[:4], rng.random(3).astype(np.float32), np.zeros(1, bool)
    buffer = module.RolloutBuffer()
    for t in range(3):
        step = {"obs": obs[t : t + 1], "next_obs": obs[t + 1 : t + 2], "actions": np.zeros(1, int)}
        step |= {"rewards": rewards[t : t + 1], "terminated": ended, "truncated": ended}
        buffer.add(**step)
    args = module.RunArgs(num_envs=1, gamma=gamma, gae_lambda=0.0)
    batch, _ = module.rollout_batch(agent, buffer, args, np.zeros(1))
    with torch.no_grad():
        x = torch.as_tensor(2 * obs if edit is FEATURES else obs)
        values = (5 if edit is VALUE else 1) * plain.critic(x).squeeze(1).numpy()
    np.testing.assert_allclose(batch["values"].numpy(), values[:3], rtol=1e-4)
    np.testing.assert_allclose(learned(agent, obs, np.zeros(4, int))[1], values, rtol=1e-4)
    np.testing.assert_allclose(batch["returns"], rewards + gamma * values[1:], rtol=1e-4)


Q_EDITS = {  # Q' = -3 Q, said where logits are made or where they become Q
    "logits": ("return self.q_head(features)", "return -3 * self.q_head(features)"),
    "q_values": ("return logits.squeeze(2)", "return -3 * logits.squeeze(2)"),
}


@pytest.mark.parametrize("edit", Q_EDITS.values(), ids=Q_EDITS)
def test_an_edited_q_network_acts_by_what_it_learns(edit, edited):
    networks, obs = [], observations()
    for module in (edited("dqn", edit), dqn):
        torch.manual_seed(0)
        networks.append((module, module.QNetwork(module.RunArgs(), OBS, 4)))
    (module, network), (_, plain) = networks
    with torch.no_grad():
        q = -3 * plain(torch.as_tensor(obs))
    acted = network.act(obs, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(acted, q.argmax(dim=1))
    batch = {"obs": torch.as_tensor(obs[:-1]), "next_obs": torch.as_tensor(obs[1:])}
    batch |= {"actions": torch.arange(BATCH - 1) % 4, "rewards": torch.zeros(BATCH - 1)}
    batch["terminated"] = torch.zeros(BATCH - 1, dtype=torch.bool)
    batch["discounts"] = torch.ones(BATCH - 1)
    losses, errors, _ = module.dqn_losses(network, network, batch, module.RunArgs(loss="mse"))
    taken = q[torch.arange(BATCH - 1), batch["actions"]]
    expected = taken - q[1:].max(dim=1).values
    torch.testing.assert_close(losses, expected**2)
    torch.testing.assert_close(errors, expected.abs())


def test_an_edited_actor_acts_by_what_it_learns(edited):
    agents, args = [], td3.RunArgs(hidden_sizes=(16, 16))
    module = edited("td3", ("return self.actor(features)", "return -1 * self.actor(features)"))
    for script in (module, td3):
        torch.manual_seed(0)
        agents.append(script.Agent(args, 3, -np.ones(2), np.ones(2)))
    (agent, plain), obs = agents, torch.as_tensor(observations())
    with torch.no_grad():
        actions = -plain.policy(obs)
        expected = -plain.critics[0](obs, actions).mean()
        y = torch.min(*(critic(obs, actions) for critic in plain.critics))
        losses = [torch.square(critic(obs, actions) - y).mean() for critic in plain.critics]
    np.testing.assert_array_equal(agent.act(obs.numpy(), None), actions)
    torch.testing.assert_close(module.policy_loss(agent, obs).detach(), expected)
    batch = {"obs": obs, "next_obs": obs, "actions": actions, "rewards": torch.zeros(BATCH)}
    batch |= {"terminated": torch.zeros(BATCH, dtype=torch.bool), "discounts": torch.ones(BATCH)}
    found, _ = module.q_losses(agent, agent, batch, torch.zeros(BATCH, 2), args)
    torch.testing.assert_close([loss.detach() for loss in found], losses)


# --- what it does when ----------------------------------------------------------------------------


def test_four_updates_a_step_by_the_loop(edited):
    """UTD 4, as everybody writes it: the same as --gradient-steps 4, and resumed exactly."""
    loop = "for _ in range(args.gradient_steps * learned_from):"
    module = edited("td3", (loop, "for _ in range(4 * args.num_envs):"))
    # by step 190 there were 120 updates: a policy's turn comes every seventh
    settings = {"num_envs": 2, "policy_frequency": 7, "checkpoint_frequency": 190}
    settings |= {"total_timesteps": 220, "learning_starts": 160}
    whole = assert_resumes(module, **settings)
    updates = 4 * (whole.args.total_timesteps - whole.args.learning_starts)
    steps = {int(state["step"]) for state in whole.parts["critic_optimizer"].state.values()}
    assert steps == {updates} and whole.step_count == whole.args.total_timesteps
    assert trained(td3, gradient_steps=4, **settings).hash() == whole.hash()


def test_a_loop_of_another_length_is_saved_as_often(edited):
    """Each action taken three times: the checkpoint that is due within a rollout is at its end."""
    step = "    next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))\n"
    module = edited("ppo", (step, "    run.step(agent.to_env(actions))\n" * 2 + step))
    run = begun(module, total_timesteps=3072, checkpoint_frequency=1024)
    run = stopped(run, module.train, after=1500)  # rollouts of 768 steps
    resumed = loaded(run, "--resume")
    assert resumed.start(agent=resumed.agent) == 1536


def test_a_checkpoint_within_episodes_is_said(edited, capsys):
    """Where Args.iteration_steps is not what the loop does, no resumed run can be the same."""
    actions = "    next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))\n"
    twice = "    run.step(agent.to_env(actions))\n" + actions
    trained(edited("ppo", (actions, twice)), total_timesteps=1024, checkpoint_frequency=256)
    assert "the checkpoint of step 512 lies within episodes" not in capsys.readouterr().err
    thrice = "    run.step(agent.to_env(actions))\n" + twice
    trained(edited("ppo", (actions, thrice)), total_timesteps=768, checkpoint_frequency=256)
    assert "the checkpoint of step 768 lies within episodes" not in capsys.readouterr().err
    trained(edited("ppo", (actions, thrice)), total_timesteps=1536, checkpoint_frequency=512)
    assert "the checkpoint of step 768 lies within episodes" in capsys.readouterr().err
    trained(edited("ppo"), checkpoint_frequency=768)  # 512 steps: the last one is no such
    assert "lies within episodes" not in capsys.readouterr().err
    end = "        step = run.end_iteration(scalars)\n"
    trained(edited("ppo", (end, f"{end}        run.save()\n")), checkpoint_frequency=512)
    assert "the checkpoint of step 256 lies within episodes" in capsys.readouterr().err


REPEATED = {  # each action twice, and what the page asks for then
    "ppo": [
        ("    next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))\n",
         "    for _ in range(2):\n"
         "        next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))\n"),
        ("return self.num_envs * self.num_steps", "return 2 * self.num_envs * self.num_steps"),
    ],
    "dqn": [
        ("            next_obs, rewards, terminated, truncated = run.step(actions)\n",
         "            for _ in range(2):\n"
         "                next_obs, rewards, terminated, truncated = run.step(actions)\n"),
        ("return self.train_frequency", "return 2 * self.train_frequency"),
        ("end = min(step + args.train_frequency,", "end = min(step + 2 * args.train_frequency,"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("script", REPEATED)
def test_each_action_twice(script, edited):
    """To the last step that was asked for, though an iteration is no longer whole there."""
    settings = {"total_timesteps": 640, "checkpoint_frequency": 256}
    whole = assert_resumes(edited(script, *REPEATED[script]), **settings)
    assert whole.step_count == 640


def test_a_wrapper_in_make_env(edited):
    made = "    env = gym.make(env_id, **keywords)\n"
    wrapped = """    env = gym.wrappers.TransformReward(env, lambda reward: 0.5)
    env = gym.wrappers.TimeLimit(env, 6)
"""
    run = trained(edited("ppo", (made, made + wrapped)))
    assert np.array_equal(run.evaluate(), [3.0, 3.0])
    points = curves(run)
    assert {*points["charts/episodic_return"].values()} == {3.0}
    assert {*points["charts/episodic_length"].values()} == {6.0}


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_argument_that_a_script_changes_is_changed_once(script, edited):
    """Not once more when it is resumed; args.json has what was asked for."""
    name, line = {
        "ppo": ("hidden_size", "        self.make_networks(args, obs_space.shape, num_outputs)"),
        "a2c": ("hidden_size", "        self.make_networks(args, obs_space.shape, num_outputs)"),
        "dqn": ("learning_rate", "    target_q_network = copy.deepcopy(q_network).eval()"),
        "td3": ("learning_rate", "    target = copy.deepcopy(agent).eval()"),
    }[script]
    indent = " " * (len(line) - len(line.lstrip()))
    module = edited(script, (line, f"{indent}args.{name} *= 2\n{line}"))
    frequency = 192 if script == "dqn" else 128
    whole = assert_resumes(module, checkpoint_frequency=frequency, total_timesteps=384)
    saved = json.loads((whole.folder / "args.json").read_text())["args"]
    assert 2 * saved[name] == getattr(whole.args, name)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_argument_that_a_resume_would_change_again_is_refused(script, edited, failure):
    """`check` runs once more on what args.json holds."""
    line = "        check_games(self)\n" if script != "td3" else "    def check(self):\n"
    module = edited(script, (line, f"{line}        self.learning_rate *= 1.0 + self.seed\n"))
    flags = ["--env-id", "Pendulum-v1"] if script == "td3" else []
    for seed in (0, 1):
        args = module.parse_args(script, module.RunArgs, [*flags, f"--seed={seed}"])
        run = module.Run(script, args, module.make_agent, module.evaluation_policy)
        if seed == 0:  # here it stays as it is
            run.start(agent=run.agent)
        else:
            said = failure(run.start, agent=run.agent)
            rate = args.learning_rate
            assert f"change learning_rate={rate}, which becomes {2 * rate}" in said
        run.close()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_successor_may_be_changed_in_place(script, edited):
    """Without what is acted on next, whether an episode ends or not."""
    step = "next_obs, rewards, terminated, truncated = run.step(agent.to_env(actions))\n"
    step = step.replace("agent.to_env(actions)", "actions") if script == "dqn" else step
    indent = {"dqn": 12, "td3": 8}.get(script, 4) * " "
    blank = f"{step}{indent}next_obs *= 0.0\n{indent}run.seen.append(run.obs.any(axis=1))\n"
    run = begun(edited(script, (step, blank)))
    run.seen = []
    finished(run)
    assert np.all(run.seen)


def test_a_term_that_only_some_minibatches_have_is_a_curve(edited):
    """In the first of each update no ratio has moved yet."""
    terms = '"entropy": entropy}, log_ratio'
    more = '"entropy": entropy, **({"moved": 2.5} if log_ratio.any() else {"unmoved": 1.5})}'
    found = curves(trained(edited("ppo", (terms, f"{more}, log_ratio"))))
    assert set(found["losses/moved"].values()) == {2.5}
    assert set(found["losses/unmoved"].values()) == {1.5}


def test_a_curriculum_of_first_states(edited):
    """As the page has it: also the first episodes after a checkpoint know the level."""
    page = (ROOT / "docs" / "changing-a-script.md").read_text()
    again = page.partition("    if run.step_count % run.checkpoint_steps == 0:")
    again = again[1] + again[2].partition("```")[0]
    obs = "    obs = run.obs\n"
    level = '    run.envs.set_attr("level", run.step_count)\n'
    made = "    env = gym.make(env_id, **keywords)\n"
    start = """class Start(gym.Wrapper):
    level = -1
    begun = []

    def reset(self, **keywords):
        self.begun.append(self.level)
        return self.env.reset(**keywords)


def make_env("""
    module = edited(
        "ppo",
        (obs, level + again + obs),
        (made, made + "    env = Start(env)\n"),
        ("def make_env(", start),
    )
    run = trained(module, checkpoint_frequency=256, total_timesteps=512)
    n, levels = run.args.num_envs, module.Start.begun
    second = levels.index(256)
    assert levels[: 2 * n] == n * [-1] + n * [0]
    assert levels[second - n : second + n] == n * [-1] + n * [256]
    assert_resumes(module, checkpoint_frequency=256, total_timesteps=512)


@pytest.mark.parametrize("script", ACTOR_CRITIC)
def test_a_rollout_keeps_what_a_loop_changes_in_place(script):
    buffer = ppo.RolloutBuffer()
    age = np.zeros(3, np.int64)
    for _ in range(5):
        age += 1
        buffer.add(age=age)
    assert buffer["age"].T.tolist() == 3 * [[1, 2, 3, 4, 5]]


def test_what_numpy_computes_may_stand_for_a_number(edited):
    """A schedule by np.exp is a float64; a weight among the terms of a loss is no tensor."""
    loop = "    while step < args.total_timesteps:\n"
    noise = loop + "        args.policy_noise = 0.2 * np.exp(-step / 500)\n"
    assert any(moved(trained(edited("td3", (loop, noise))), "actor").values())
    for script, terms, more in (
        (
            "ppo",
            '"entropy": entropy}, log_ratio',
            '"entropy": entropy, "c": args.ent_coef}, log_ratio',
        ),
        ("a2c", '"entropy": entropy}', '"entropy": entropy, "c": args.ent_coef}'),
        ("dqn", '"q_spread": spread}', '"q_spread": spread, "c": 0.25}'),
    ):
        assert "losses/c" in curves(trained(edited(script, (terms, more))))


def test_a_group_may_join_a2c_s_optimizer_later(edited):
    """RMSprop as TensorFlow has it keeps a number for each weight, from the first step on."""
    first = "    first_rates = [group"
    later = """    group = {"params": [optimizer.param_groups[0]["params"].pop()], "lr": 1e-3}
    optimizer.add_param_group(group)
"""
    assert_resumes(edited("a2c", (first, later + first)), optimizer="rmsprop_tf",
                   checkpoint_frequency=160)  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_part_that_no_checkpoint_can_hold_is_refused_at_once(script, edited, capsys):
    start = {"ppo": "**(parts or {})", "a2c": "**(parts or {})"}.get(script, "**(parts or {}))")
    module = edited(script, (start, start.replace("parts or {}", "parts or {'seen': {}}")))
    run = begun(module)
    with pytest.raises(SystemExit):
        module.train(run.args, run)
    assert "seen goes into checkpoints, so it needs state_dict" in capsys.readouterr().err
    assert run.folder is None


# --- variants of a reader's own: what they need of `train` is an argument -------------------------


def test_redq(monkeypatch):
    """Five critics, targets by two of them at random, four updates a step: arXiv 2101.05982."""
    drawn = []

    class Agent(td3_sac.Agent):
        chosen = slice(None)  # of the critics

        def __init__(self, args, obs_dim, low, high):
            super().__init__(args, obs_dim, low, high)
            n = obs_dim + self.action_dim
            self.critics = nn.ModuleList(td3.relu_mlp(n, args.hidden_sizes, 1) for _ in range(5))

        def q_values(self, obs, actions):
            return super().q_values(obs, actions)[self.chosen]

    def update(agent, target, optimizers, batch, args, rng, gradient_step):
        first, second = sorted(rng.choice(5, 2, replace=False))
        target.chosen = slice(first, second + 1, second - first)
        drawn.append((first, second))
        return td3_sac.sac_update(agent, target, optimizers, batch, args, rng, gradient_step)

    monkeypatch.setattr(td3_sac, "Agent", Agent)
    run = new_run(td3_sac, **SETTINGS["td3"] | {"total_timesteps": 160, "gradient_steps": 4})
    first_weights = {name: array.copy() for name, array in run.arrays().items()}
    td3_sac.train(run.args, run, update=update)
    assert len(drawn) == 4 * 60 and len(set(drawn)) > 5
    same = {k for k, array in run.arrays().items() if np.array_equal(array, first_weights[k])}
    assert same == set(run.bounds)  # so all five critics have learned


def test_td3_bc_and_a_buffer_of_ones_own():
    """The actor imitates the buffer's actions, too, arXiv 2106.06860; the buffer weighs rows."""
    seen = []

    class Weighing(td3.ReplayBuffer):
        def sample(self, *how):
            batch = super().sample(*how)
            return batch | {"weights": np.linspace(0, 1, len(batch["rewards"]))}

    def update(agent, target, optimizers, batch, args, rng, gradient_step):
        scalars = td3.td3_update(agent, target, optimizers, batch, args, rng, gradient_step)
        cloning = F.mse_loss(agent.policy(batch["obs"]), batch["actions"], reduction="none")
        cloning = (batch["weights"][:, None] * cloning).mean()
        optimizers["actor_optimizer"].zero_grad()
        cloning.backward()
        optimizers["actor_optimizer"].step()
        seen.append(gradient_step)
        return scalars | {"losses/cloning": cloning.detach()}

    run = new_run(td3, **SETTINGS["td3"] | {"total_timesteps": 160})
    buffer = Weighing(1000, 1, *run.obs_space.shape, run.agent.action_dim)
    parts = {"seen": td3.Counter(5)}
    td3.train(run.args, run, buffer=buffer, update=update, parts=parts)
    assert seen == list(range(101, 161)) and buffer.total == 160
    assert run.parts["seen"] is parts["seen"] and run.parts["buffer"] is buffer


def test_an_optimizer_and_a_part_for_dqn():
    run = new_run(dqn, **SETTINGS["dqn"])
    optimizer = torch.optim.SGD(run.agent.parameters(), lr=0.1)
    parts = {"mine": td3.Counter(7)}
    before = run.hash()
    dqn.train(run.args, run, optimizer=optimizer, parts=parts)
    assert run.parts["optimizer"] is optimizer and run.parts["mine"] is parts["mine"]
    assert run.hash() != before


SAMPLE = "def sample(self, outputs, rng, greedy=False):  # outputs of `policy` -> actions\n"
LOG_PROB = "        return gaussian_log_prob_and_entropy(outputs, self.log_std, actions)\n"
NOISY = "        return outputs + self.log_std.exp() * noise\n"


def test_a_deviation_that_depends_on_the_state(edited):
    """By the formula of the script, which takes one for each state."""
    log_prob = """        mean, log_std = outputs.chunk(2, dim=1)
        return gaussian_log_prob_and_entropy(mean, log_std, actions)
"""
    sizes = "self.make_networks(args, obs_space.shape, num_outputs)"
    parameter = "self.log_std = nn.Parameter(torch.full((num_outputs,), args.log_std_init))\n"
    module = edited(
        "ppo",
        (sizes, sizes.replace("num_outputs", "2 * num_outputs")),
        (parameter, "pass\n"),
        (SAMPLE, SAMPLE + "        outputs, log_std = outputs.chunk(2, dim=1)\n"),
        (NOISY, NOISY.replace("self.log_std", "log_std")),
        (LOG_PROB, log_prob),
    )
    run = trained(module, env_id="Pendulum-v1")
    assert_evaluations_repeat(run)
    last = network(run)[-1]
    changes = last.weight.detach().numpy() - run.first["actor.4.weight"]
    assert (np.abs(changes) > 1e-6).mean(axis=1).min() > 0.9  # rows: of the mean, of its deviation
    with torch.no_grad():
        last.weight[1].normal_(0, 0.5, generator=torch.Generator().manual_seed(0))
        obs = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 4.0]])
        means, log_stds = run.agent(obs).T
    stds = log_stds.exp().numpy()
    assert abs(stds[0] / stds[1] - 1) > 0.1
    rng = np.random.default_rng(0)
    actions = run.agent.act(obs.numpy().repeat(20_000, axis=0), rng).reshape(2, -1)
    np.testing.assert_allclose(actions.std(axis=1), stds, rtol=0.03)
    batch = {"obs": obs, "actions": torch.tensor([[0.3], [0.3]])}
    expected = -0.5 * ((0.3 - means) / log_stds.exp()) ** 2 - log_stds - 0.5 * math.log(2 * math.pi)
    log_probs, entropies, _ = run.agent.evaluate_actions(batch)
    torch.testing.assert_close(log_probs, expected)
    torch.testing.assert_close(entropies, log_stds + 0.5 * math.log(2 * math.pi * math.e))


@pytest.mark.parametrize("typed, decorated", [(True, True), (True, False), (False, True)])
def test_a_default_that_dataclasses_ignore_is_refused(failure, typed, decorated):
    class Args(ppo.RunArgs):
        learning_rate = 1e-9

    if typed:
        Args.__annotations__ = {"learning_rate": float}
    args_class = dataclass(Args) if decorated else Args
    if typed and decorated:
        assert ppo.parse_args("ppo", args_class, []).learning_rate == 1e-9
    else:
        said = failure(ppo.parse_args, "ppo", args_class, [])
        assert "Args.learning_rate needs its type, and its class @dataclass" in said
