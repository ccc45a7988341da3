"""Every benchmark: its reference, called as a user does, solves its equation and satisfies its conditions.

Derivatives of the reference are taken by high-order finite differences. So a wrong sign in the residual, a wrong
argument of the reference or a wrong condition fails here, even if the tests of the solvers pass.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.calculus.names import Derivatives, parse_name
from clpinn.formulation.calls import call_by_name
from clpinn.formulation.problem import Condition
from clpinn.problems import BENCHMARKS, Burgers

# Central differences of eighth order for the first and second derivative.
OFFSETS = np.arange(-4, 5)
WEIGHTS = {
    1: np.array([1 / 280, -4 / 105, 1 / 5, -4 / 5, 0, 4 / 5, -1 / 5, 4 / 105, -1 / 280]),
    2: np.array([-1 / 560, 8 / 315, -1 / 5, 8 / 5, -205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560]),
}
STEP = 1.5e-3


def differences(problem, point, name):
    """A named derivative of the problem's reference at a point."""
    output, index = parse_name(name, problem.outputs, problem.axes)
    axes = [(problem.axes[i], order) for i, order in enumerate(index) if order]
    if not axes:
        return problem.reference(**point)[output]
    ((axis, order),) = axes
    values = problem.reference(**(point | {axis: point[axis] + STEP * OFFSETS}))[output]
    return float(WEIGHTS[order] @ values) / STEP**order


def residual_of_reference(problem, function, point):
    with jax.enable_x64(True):
        result = call_by_name(function, "residual", point, Derivatives(lambda name: differences(problem, point, name)))
    named = result if isinstance(result, dict) else {"residual": result}
    return max(abs(float(value)) for value in named.values())


def points(problem, count, margin):
    """Points away from the edges, so that differences stay inside, and from t = 0, where a layer may start."""
    keys = jax.random.split(jax.random.key(5))
    x = problem.coordinates.sample(count, keys[0])
    low, high = (np.array([getattr(axis, end) for axis in problem.coordinates.axes]) for end in ("low", "high"))
    x = low + margin * (high - low) + (1 - 2 * margin) * (x - low)
    thetas = problem.parameters.sample(count, keys[1])
    return [dict(zip(problem.axes, map(float, (*a, *b)))) for a, b in zip(x, thetas)]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_reference_solves_the_equation(name):
    problem = BENCHMARKS[name]()
    worst = max(residual_of_reference(problem, problem.residual, p) for p in points(problem, 12, 0.1))
    # The remaining residual is the error of the differences in the sharp layers of small nu.
    assert worst < 2e-3


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_wrong_theta_in_the_reference_is_noticed(name):
    problem = BENCHMARKS[name]()
    axis = problem.parameters.names[0]
    wrong = type("Wrong", (), {})()
    wrong.outputs, wrong.axes = problem.outputs, problem.axes
    wrong.reference = lambda **at: problem.reference(**(at | {axis: 1.2 * at[axis]}))
    residuals = [residual_of_reference(wrong, problem.residual, p) for p in points(problem, 6, 0.1)]
    assert max(residuals) > 1e-2


@pytest.mark.parametrize("problem", [Burgers(hard=False), BENCHMARKS["kovasznay"]()], ids=["burgers", "kovasznay"])
def test_reference_satisfies_the_soft_conditions(problem):
    theta = dict(zip(problem.parameters, problem.parameters.sample(1, jax.random.key(1))[0]))
    for condition in problem.conditions:
        assert isinstance(condition, Condition)
        for x in condition.sample(problem.coordinates, jax.random.key(2))[::40]:
            point = dict(zip(problem.coordinates, x)) | theta
            assert residual_of_reference(problem, condition.residual, point) < 1e-7


@pytest.mark.parametrize("name", ["burgers", "allen_cahn", "poisson_boltzmann"])
def test_reference_satisfies_the_hard_conditions(name):
    """Where the hard transform ignores the network, it equals the reference."""
    problem = BENCHMARKS[name]()
    faces = ["x"] if "t" in problem.coordinates.names else ["x", "y"]
    edge = cl.boundary(*faces).sample(problem.coordinates, 20, jax.random.key(0))
    if "t" in problem.coordinates.names:
        edge = np.concatenate([edge, cl.at(t=0).sample(problem.coordinates, 20, jax.random.key(0))])
    theta = dict(zip(problem.parameters, problem.parameters.sample(1, jax.random.key(1))[0]))
    with jax.enable_x64(True):
        for x in edge:
            at = dict(zip(problem.coordinates, x))
            hard = call_by_name(problem.constrain, "constrain", at | theta, jnp.array(123.0))
            assert math.isclose(float(hard), float(problem.reference(**at, **theta)["u"]), abs_tol=1e-9)


def test_schaffer_by_hand():
    value = cl.problems.Schaffer().reference(x=np.array([1.0]), y=2.0, a=0.1)["u"]
    assert np.allclose(value, (math.sin(5) - 0.5) / 1.5**2, rtol=1e-14)
    assert value.dtype == np.float64


def test_references_broadcast_in_double_precision():
    for make in BENCHMARKS.values():
        problem = make()
        x = {
            name: axis.from_unit(np.array([0.2, 0.4]))[:, None]
            for name, axis in zip(problem.coordinates, problem.coordinates.axes)
        }
        theta = {
            name: axis.from_unit(np.array([0.1, 0.5, 0.7]))
            for name, axis in zip(problem.parameters, problem.parameters.axes)
        }
        values = problem.reference(**x, **theta)
        assert set(values) == set(problem.outputs)
        assert all(v.shape == (2, 3) and v.dtype == np.float64 for v in values.values())
