import ast
import dataclasses
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import Known

import clpinn as cl
from clpinn.formulation import references
from clpinn.formulation.pointwise import residual_sizes
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.problems import load_problem
from clpinn.runs.evaluate import Errors, Metrics, aggregate, evaluate


class Slope(eqx.Module):
    """u = slope x, whatever the parameter."""

    slope: jax.Array

    def __call__(self, coordinates, parameters):
        return coordinates * self.slope


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CLPINN_CACHE", str(tmp_path))


def test_metrics_by_hand():
    metrics = evaluate(Known(), Slope(jnp.array(0.75)))
    errors = metrics.outputs["u"]
    # u - a x = (0.75 - a) x on x = -1, 0, 1.
    miss = np.array([0.75, 0.25, -0.25])
    assert np.allclose(errors.mse, miss**2 * 2 / 3)
    assert np.allclose(errors.max_abs, np.abs(miss))
    assert np.isnan(errors.rel_l2[0]) and np.allclose(errors.rel_l2[1:], [0.5, 0.25])
    assert np.allclose(metrics.res_pde, np.abs(miss))
    summary = metrics.summary()
    assert np.isclose(summary["outputs"]["u"]["rel_l2_macro"], 0.375)
    assert np.isclose(summary["outputs"]["u"]["rel_l2_worst"], 0.5)
    assert summary["outputs"]["u"]["worst_at"] == {"a": 0.5}
    assert np.isclose(summary["outputs"]["u"]["max_abs"], 0.75)
    assert np.isclose(summary["outputs"]["u"]["max_abs_mean"], (0.75 + 0.25 + 0.25) / 3)
    assert np.isclose(summary["res_pde_macro"], np.mean(np.abs(miss)))
    assert metrics.table()[1]["a"] == 0.5 and np.isclose(metrics.table()[1]["rel_l2_u"], 0.5)


def test_all_outputs_count_alike():
    """Also where the reference of one is zero everywhere, so that it has no relative error."""
    thetas = np.array([[0.0], [1.0]])

    def errors(mse, relative):
        relative = np.array(relative)
        return Errors(np.array(mse), relative, np.array(mse), ~np.isnan(relative))

    u, v, w = errors([1.0, 3.0], [0.5, 0.1]), errors([4.0, 4.0], [0.2, 0.6]), errors([7.0, 9.0], [np.nan, np.nan])
    metrics = Metrics(("a",), thetas, {"u": u, "v": v}, np.ones(2))
    assert metrics.summary()["macro"] == pytest.approx({"mse": 3.0, "rel_l2_macro": 0.35, "rel_l2_worst": 0.6})
    metrics = Metrics(("a",), thetas, {"u": u, "w": w}, np.ones(2))
    assert metrics.summary()["macro"] == pytest.approx({"mse": 5.0, "rel_l2_macro": 0.3, "rel_l2_worst": 0.5})
    diverged = dataclasses.replace(v, rel_l2=np.array([0.2, np.nan]), defined=np.array([True, True]))
    macro = Metrics(("a",), thetas, {"u": u, "v": diverged}, np.ones(2)).summary()["macro"]
    assert np.isnan(macro["rel_l2_macro"]) and np.isnan(macro["rel_l2_worst"]) and macro["mse"] == 3.0
    assert Metrics(("a",), thetas, {}, np.ones(2)).summary()["macro"] is None


def test_a_network_that_is_not_finite_is_not_hidden():
    summary = evaluate(Known(), Slope(jnp.array(jnp.nan))).summary()
    assert np.isnan(summary["outputs"]["u"]["rel_l2_macro"]) and np.isnan(summary["res_pde_macro"])
    assert summary["outputs"]["u"]["worst_at"] == {"a": 0.5}  # the first with a relative error


def test_chosen_thetas_and_the_box():
    metrics = evaluate(Known(), Slope(jnp.array(1.0)), thetas=np.array([[0.25]]))
    assert np.allclose(metrics.outputs["u"].rel_l2, [3.0])
    with pytest.warns(cl.OutsideBoxWarning, match="a is 2"):
        evaluate(Known(), Slope(jnp.array(1.0)), thetas=np.array([[2.0]]))
    with pytest.raises(cl.DomainError, match="a is 2"):
        evaluate(Known(), Slope(jnp.array(1.0)), thetas=np.array([[2.0]]), forbid_outside=True)
    with pytest.raises(cl.ProblemError, match="1 columns"):
        evaluate(Known(), Slope(jnp.array(1.0)), thetas=np.zeros((2, 3)))


def test_without_a_reference_residuals_are_reported():
    class Blind(Known):
        reference = None

    metrics = evaluate(Blind(), Slope(jnp.array(1.0)))
    assert metrics.outputs == {} and len(metrics.res_pde) == 3


def test_chunks_do_not_change_the_result(monkeypatch):
    problem = cl.problems.Schaffer()
    network = make(problem, Architecture("fnn", 6, 2), jax.random.key(0))
    thetas = np.array([[0.01], [0.3]])
    whole = evaluate(problem, network, thetas)
    monkeypatch.setattr(sys.modules["clpinn.runs.evaluate"], "CHUNK", 777)
    pieces = evaluate(problem, network, thetas)
    assert np.allclose(whole.outputs["u"].mse, pieces.outputs["u"].mse, rtol=1e-6)
    assert np.allclose(whole.res_pde, pieces.res_pde, rtol=1e-6)


def test_precision_follows_the_network():
    problem = cl.problems.Kovasznay()
    thetas = np.array([[20.0]])
    with jax.enable_x64(True):
        network = make(problem, Architecture("fnn", 6, 2), jax.random.key(0), jnp.float64)
    single = jax.tree.map(lambda w: jnp.asarray(np.asarray(w, np.float32)), network)
    fine, coarse = evaluate(problem, network, thetas), evaluate(problem, single, thetas)
    for name in problem.outputs:
        assert np.allclose(fine.outputs[name].mse, coarse.outputs[name].mse, rtol=1e-4)
        assert not np.array_equal(fine.outputs[name].mse, coarse.outputs[name].mse)


def test_memory_of_the_largest_evaluation_is_bounded():
    """All 1296 thetas of Poisson-Boltzmann on 10,000 points; the table itself is mapped from disk."""

    class Cheap(cl.problems.PoissonBoltzmann):
        def reference(self, x, y, mu1, mu2, k, A):
            return {"u": mu1 * x + mu2 * y + k * A}

    problem = Cheap()
    network = make(problem, Architecture("fnn", 4, 1), jax.random.key(0))
    references.reference_table(problem)
    evaluate(problem, network, thetas=problem.candidates.points[:2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    metrics = evaluate(problem, network)
    assert len(metrics.thetas) == 1296 and np.isfinite(metrics.outputs["u"].rel_l2).all()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 300


def test_aggregate_over_seeds():
    figures = aggregate({0: 1.0, 1: 3.0, 2: float("nan")})
    assert (figures.mean, figures.sd, figures.seeds, figures.non_finite) == (2.0, 1.0, (0, 1), (2,))
    assert np.isnan(aggregate({0: float("inf")}).mean)


@pytest.mark.parametrize(
    "name",
    [
        "examples/heat.py:Heat",
        "examples/kuramoto_sivashinsky.py",
        "examples/channel.py:Channel",
        "examples/trace.py:Trace",
    ],
)
def test_examples_solve_their_equation(name):
    problem = load_problem(name)
    residuals = cl.reference_residual(problem, jax.random.key(0))
    assert residuals is not None and max(residuals.values()) < 1e-9
    network = make(problem, Architecture("fnn", 6, 2), jax.random.key(0))
    metrics = evaluate(problem, network, thetas=problem.parameters.corners()[:1])
    assert np.isfinite(metrics.summary()["outputs"]["u"]["rel_l2_macro"])


def test_conditions_of_an_example_hold_for_its_reference():
    problem = load_problem("examples/trace.py:Trace")
    with jax.enable_x64(True):
        for condition in problem.conditions:
            assert isinstance(condition, cl.Condition)
            x = jnp.asarray(condition.sample(problem.coordinates, jax.random.key(0)))
            thetas = jnp.asarray(problem.parameters.sample(len(x), jax.random.key(1)))

            def at(a, b, condition=condition):
                return cl.condition_residuals(problem, condition, None, a, b), residual_sizes(
                    problem, condition, None, a, b
                )

            residuals, size = jax.vmap(at)(x, thetas)
            for name, residual in residuals.items():
                assert np.max(np.abs(residual)) <= 1e-12 * np.max(sum(size[name].values()))


@pytest.mark.parametrize("name", ["heat", "kuramoto_sivashinsky"])
def test_examples_are_short(name):
    text = Path(f"examples/{name}.py").read_text()
    (problem,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    lines = [line for line in ast.get_source_segment(text, problem).splitlines() if line.strip()]
    assert 10 < len(lines) <= 25


def test_a_wrong_equation_is_noticed():
    class Wrong(Known):
        def reference(self, x, a):
            return {"u": 1.01 * a * x}

    residuals = cl.reference_residual(Wrong(), jax.random.key(0))
    assert residuals is not None and residuals["residual"] > 1e-3


def test_a_reference_that_cannot_be_traced():
    class Branching(Known):
        def reference(self, x, a):
            return {"u": a * x if a > 0.5 else x}

    assert cl.reference_residual(Branching(), jax.random.key(0)) is None

    class Masked(Known):
        def reference(self, x, a):
            u = np.zeros(len(x))
            u[x > 0] = x[x > 0] * a
            return {"u": u}

    assert cl.reference_residual(Masked(), jax.random.key(0)) is None
    assert cl.reference_residual(cl.problems.AllenCahn(), jax.random.key(0)) is None


def test_a_problem_without_a_hash_is_evaluated():
    @dataclass
    class Plain(Known):
        scale: float = 1.0

    metrics = evaluate(Plain(), Slope(jnp.array(0.75)))
    assert np.allclose(metrics.outputs["u"].max_abs, [0.75, 0.25, 0.25])


def test_a_reference_that_is_not_finite_is_not_hidden():
    class Broken(Known):
        def reference(self, x, a):
            return {"u": jnp.where(a == 0.5, jnp.nan, x)}

    assert np.isnan(evaluate(Broken(), Slope(jnp.array(1.0))).summary()["outputs"]["u"]["rel_l2_macro"])


def test_a_wrong_reference_is_named():
    class Wrong(Known):
        def reference(self, x, a):
            return {"v": x}

    with pytest.raises(cl.ProblemError, match="reference must return a dict with the keys u"):
        evaluate(Wrong(), Slope(jnp.array(1.0)))
