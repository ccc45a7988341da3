"""Runs by the natural gradient."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from running import FILES, counters, lines, natural_for, same
from small import Decay

import clpinn as cl
from clpinn.networks.architecture import count
from clpinn.presets import natural
from clpinn.problems import load_problem
from clpinn.runs.callbacks import Callbacks
from clpinn.runs.run import run
from clpinn.training import checkpoint
from clpinn.training.batches import Batches
from clpinn.training.settings import override
from clpinn.training.stages import natural as natural_stage
from clpinn.training.stages.natural import EVENTS_UNTIL, VALIDATION_STEPS
from clpinn.training.trainer import Trainer


@pytest.mark.parametrize("method", ["free", "uni", "ag", "acr", "acr2"])
def test_every_method_under_natural(method, tmp_path):
    result = run(Decay(), natural_for(method, "steps=40"), tmp_path)
    metrics, searching = result.metrics, method not in ("free", "uni")
    names = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert names == FILES | ({"events.jsonl"} if searching else set())
    assert (metrics["outcome"], metrics["steps"], metrics["optimizer"]) == ("steps", 40, "natural")
    assert metrics == json.loads((tmp_path / "metrics.json").read_text())
    history = lines(tmp_path / "history.jsonl")
    assert [row["step"] for row in history] == list(range(VALIDATION_STEPS, 41, VALIDATION_STEPS))
    assert all(np.isfinite(row["validation"]) and row["stage"] == "natural" for row in history)
    assert metrics["validation"] == history[-1]["validation"] < 0.1  # a network at its start has about 1
    assert all(set(row["terms"]) == {"residual", "start"} for row in history)
    assert all(row["loss"] == pytest.approx(sum(row["terms"].values())) for row in history)
    events = lines(tmp_path / "events.jsonl")
    if not searching:
        assert (metrics["active"], metrics["replay"]) == (0 if method == "free" else 4, 0)
    else:  # two corners and a newcomer per event
        assert metrics["active"] + metrics["replay"] == 4
        assert metrics["active"] == len(events[-1]["active"]) and metrics["replay"] == len(events[-1]["replay"])
    assert (metrics["queries"] > 0) == searching == bool(events)
    if searching:
        # None after the share of a run that is theirs, and the first brings a newcomer to the corners.
        assert [event["step"] for event in events] == [10, 20] and EVENTS_UNTIL == 0.7
        assert events[0]["newcomer"] is not None and len(events[0]["active"]) == 3
        assert events[0]["newcomer"] in events[0]["active"] and 0 < metrics["coverage_hole"] < 1


def test_natural_gradient_learns(tmp_path):
    """Over five seeds the worst error was below 6e-4."""
    size = ["network.width=10", "network.depth=2", "natural.rows=128"]
    result = run(Decay(), natural_for("free", *size, "steps=150"), tmp_path)
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 2e-3
    assert result.metrics["outputs"]["u"]["rel_l2_macro"] < 1e-3
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(result.network))
    assert not jax.config.jax_enable_x64


@pytest.mark.slow
def test_outputs_and_conditions_of_very_different_size_are_all_learned(tmp_path):
    """An output of size 1e-4 beside one of size 1; over two seeds both errors were below 6e-4."""
    problem = load_problem("examples/trace.py:Trace")
    chosen = natural(problem)
    chosen = dataclasses.replace(
        chosen,
        network=dataclasses.replace(chosen.network, width=16, depth=2),
        natural=dataclasses.replace(chosen.natural, rows=300),
        steps=300,
    )
    metrics = run(problem, chosen, tmp_path).metrics
    assert metrics["outputs"]["u"]["rel_l2_macro"] < 0.005 and metrics["outputs"]["w"]["rel_l2_macro"] < 0.01


def test_a_path_that_leaves_the_solution_early_is_not_taken(tmp_path):
    """Without causal weights prey grows without predators: errors of 1.8 and 0.9 after as many steps."""
    problem = load_problem("examples/predator_prey.py:PredatorPrey")
    size = ["network.width=14", "network.depth=3", "natural.rows=400", "steps=120"]
    outputs = run(problem, override(natural(problem), size), tmp_path).metrics["outputs"]
    assert all(error["rel_l2_macro"] < 0.02 for error in outputs.values())


@pytest.mark.parametrize("size", [1e6, 0.0])
def test_an_output_of_any_size_is_learned_beside_another(tmp_path, size):
    """u of size 1, w of size 1e6 or zero: nothing but the equations says so."""

    class Sizes(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=(1, 2))
        outputs = ("u", "w")
        conditions = (cl.Condition("ends", lambda d: {"u": d.u, "w": d.w}, on=cl.boundary("x"), points=2),)
        candidates = parameters.grid(a=3)
        evaluation = coordinates.grid(x=51)

        def residual(self, d, x, a):
            return {"first": d.u_xx + 4 * a * jnp.cos(2 * x), "second": d.w_xx + 8 * size}

        def reference(self, x, a):
            bump = np.cos(2 * x) - 1 + x * (1 - np.cos(2))
            return {"u": a * bump, "w": 4 * size * x * (1 - x) + 0 * a}

    options = ["network.width=10", "network.depth=2", "natural.rows=128", "steps=200"]
    metrics = run(Sizes(), override(natural(Sizes()), options), tmp_path).metrics
    assert metrics["outputs"]["u"]["rel_l2_macro"] < 0.05
    assert metrics["outputs"]["w"]["max_abs"] < 0.05 * (size or 1)


@pytest.mark.parametrize("size", [1e-4, 0.5, 1e5])
def test_a_new_amplitude_changes_no_function(size):
    """Neither the network's nor that of a step along its momentum."""
    with jax.enable_x64(True):
        chosen = Trainer(Decay(), natural_for())
        state = chosen.init()
        network = eqx.tree_at(lambda n: n.output.weight, state.network, size * state.network.output.weight)
        optimizer, scales = state.natural
        phi = np.linspace(-1e-5, 1e-5, optimizer.momentum.size) * size
        phi[-1] = 0  # the amplitude's own
        state = dataclasses.replace(state, network=network, natural=(optimizer._replace(momentum=phi), scales))
        after = chosen.stages["natural"]._rescaled(state)
        inputs = jnp.full(Decay().coordinates.feature_count, 0.3), jnp.full(Decay().parameters.feature_count, -0.7)
        assert (after is state) == (size == 0.5)
        np.testing.assert_allclose(after.network(*inputs), network(*inputs), rtol=1e-12)
        norm = np.linalg.norm(after.network.output.weight)
        assert norm == pytest.approx(1.0) or after is state
        np.testing.assert_allclose(after.network.output.amplitude * norm, np.linalg.norm(network.output.weight))
        step = ravel_pytree(network.output)[0].size
        moved, wanted = after.natural[0].momentum[-step:], phi[-step:]
        np.testing.assert_allclose(moved[:-1] * after.network.output.amplitude, wanted[:-1], rtol=1e-12)


def test_two_runs_under_natural_are_bit_identical(tmp_path):
    for name in ("a", "b"):
        run(Decay(), natural_for("acr", "steps=30"), tmp_path / name)
    same(tmp_path / "a", tmp_path / "b")


def test_without_bounds_a_run_ends_when_its_progress_does(tmp_path, monkeypatch):
    monkeypatch.setattr(natural_stage, "PATIENCE", 20)
    monkeypatch.setattr(natural_stage, "SHORTEST", 0.5)
    result = run(Decay(), natural_for(), tmp_path)
    assert result.outcome == "finished" and result.metrics["validation"] < 1e-2
    assert counters(tmp_path)["rate"] == 0.5
    # The last twenty steps brought less than a fifth.
    validations = [row["validation"] for row in lines(tmp_path / "history.jsonl")]
    assert len(validations) > 4 and min(validations[-2:]) > 0.8 * min(validations[:-2])


def test_a_problem_without_parameters_under_natural(tmp_path):
    class Alone(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        conditions = (cl.Condition("start", lambda d: d.u - 1, on=cl.at(x=0), points=1),)

        def residual(self, d):
            return d.u_x + d.u

        def reference(self, x):
            return {"u": np.exp(-x)}

    result = run(Alone(), natural_for("free", "steps=40", problem=Alone()), tmp_path)
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 0.02 and result.metrics["coverage_hole"] is None


def test_a_start_that_gets_nowhere_is_followed_by_another(tmp_path, monkeypatch):
    monkeypatch.setattr("clpinn.training.stages.natural.START_STEPS", 10)
    messages: list[str] = []
    run(Decay(), natural_for("free", "steps=90"), tmp_path / "good", callbacks=Callbacks(message=messages.append))
    assert not messages
    monkeypatch.setattr("clpinn.training.stages.natural.NOTHING_LEARNT", 0.0)
    result = run(
        Decay(), natural_for("free", "steps=90"), tmp_path / "bad", callbacks=Callbacks(message=messages.append)
    )
    # Five starts at most, none in the second half of a run.
    assert len(messages) == 4 and all("another start" in text for text in messages)
    with jax.enable_x64(True):
        loaded = checkpoint.load(tmp_path / "bad" / "checkpoint", Trainer(Decay(), natural_for()).init().tree())
    assert loaded is not None and loaded.description["starts"] == 5
    assert result.metrics["steps"] == 90 and np.isfinite(result.metrics["validation"])


def test_patience_waits_for_another_start(tmp_path, monkeypatch):
    """A run without bounds: what is stuck is begun again, with full steps, before progress is asked for."""
    for name, value in (("START_STEPS", 20), ("STARTS", 3), ("PATIENCE", 10), ("NOTHING_LEARNT", 0.0)):
        monkeypatch.setattr(natural_stage, name, value)
    messages: list[str] = []
    rates: list[tuple[int, float]] = []
    recorder = lambda stage, state, step: rates.append((state.step, state.rate)) or ""  # noqa: E731
    monkeypatch.setattr(natural_stage.NaturalStage, "status", recorder)
    run(Decay(), natural_for(), tmp_path, callbacks=Callbacks(message=messages.append))
    assert len(messages) == 2 and all(rate == 1 for step, rate in rates if step <= 40)
    assert rates[-1][1] < 1


def test_an_equation_that_overflows_at_its_sources_size_is_begun_with_less(tmp_path):
    class PoissonBoltzmann(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(S=cl.log(1e4, 1e5))
        candidates = parameters.grid(S=2)

        def constrain(self, raw, x):
            return x * (1 - x) * raw

        def residual(self, d, S):
            return d.u_xx - jnp.sinh(d.u) + S

    problem = PoissonBoltzmann()
    result = run(problem, natural_for("free", "steps=40", problem=problem), tmp_path)
    assert result.outcome == "steps" and result.metrics["recoveries"] == 0
    assert 1 < float(result.network.output.amplitude[0]) < 200


def test_batches_grow_up_to_the_number_of_parameters(tmp_path, monkeypatch):
    """Twofold after so many steps, and not late in a run."""
    monkeypatch.setattr("clpinn.training.stages.natural.GROW_STEPS", 10)
    row_counts: list[int] = []
    draw = Batches.draw

    def counted(self, *arguments, **named):
        batch = draw(self, *arguments, **named)
        row_counts.append(sum(part.weight.size for part in batch.values()))
        return batch

    monkeypatch.setattr("clpinn.training.batches.Batches.draw", counted)
    settings = natural_for("free", "steps=30", "natural.rows=40", "network.width=5", "network.depth=2")
    result = run(Decay(), settings, tmp_path)
    assert 2 * 40 <= count(result.network) < 4 * 40
    assert [size // row_counts[0] for size in row_counts] == [1] * 10 + [2] * 20
    with jax.enable_x64(True):
        trainer = Trainer(Decay(), settings)
        stage = trainer.stages["natural"]
        state = dataclasses.replace(trainer.init(), step=10)
        assert [stage._grown(state, done).growth for done in (0.0, 0.8, 0.81)] == [2, 2, 1]
        monkeypatch.setattr("clpinn.training.stages.natural.memory", lambda: 1e4)
        assert stage._grown(state, 0.0).growth == 1
