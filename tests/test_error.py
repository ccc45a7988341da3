"""Estimated errors: exact where they can be, near the truth where equations are nonlinear, and flagged where not."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from polynomials import Cubic, outputs_on_grid

import clpinn as cl
from clpinn.calculus import jets
from clpinn.estimation import estimate as estimate_module
from clpinn.estimation.estimate import Estimator, _vanishing
from clpinn.estimation.jumps import jumps_by_axis
from clpinn.estimation.meshes import refined_breaks, with_jumps
from clpinn.formulation.references import reference_at
from clpinn.networks.architecture import cast

square = cl.Box(x=(0, 2), y=(-1, 1))
few = cl.Box(a=(0.5, 2.0))


class Soft(cl.Problem):
    """Laplace's equation with soft walls."""

    coordinates = square
    parameters = few
    conditions = (cl.Condition("walls", lambda d, x, y, a: d.u - 1 - a * x * y, on=cl.boundary("x", "y")),)

    def residual(self, d):
        return d.u_xx + d.u_yy

    def reference(self, x, y, a):
        return {"u": 1 + a * x * y}


class Open(Soft):
    """Flux at all walls: a constant may be added to any solution."""

    conditions = (
        cl.Condition("flux x", lambda d, y, a: d.u_x - a * y, on=cl.boundary("x")),
        cl.Condition("flux y", lambda d, x, a: d.u_y - a * x, on=cl.boundary("y")),
    )


class Hard(cl.Problem):
    """A source and hard walls."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = few

    def residual(self, d, x, t, a):
        return d.u_t - d.u_xx - a * x * (1 - x) - 2 * a * t

    def constrain(self, raw, x, t):
        return t * x * (1 - x) * raw

    def reference(self, x, t, a):
        return {"u": a * t * x * (1 - x)}


class Mixed(cl.Problem):
    """Third order: a hard value at one end, a soft value and slope at the other, and a start in two parts."""

    coordinates = cl.Box(x=(0, 1), y=(0, 1))
    parameters = few
    conditions = (
        cl.Condition("end", lambda d, a: {"value": d.u - a - 1, "slope": d.u_x - 3 * a - 2}, on=cl.at(x=1)),
        cl.Condition("edge", lambda d, x, a: d.u - a * x**3 - x**2, on=cl.at(y=0, x=(0.0, 0.7))),
        cl.Condition("edge too", lambda d, x, a: d.u - a * x**3 - x**2, on=cl.at(y=0, x=(0.7, 1.0))),
    )

    def residual(self, d, a):
        return d.u_xxx + d.u_y - 6 * a

    def constrain(self, raw, x):
        return x * raw

    def reference(self, x, y, a):
        return {"u": a * x**3 + x**2 + 0 * y}


class System(cl.Problem):
    """Two equations of first order. The measured value is wrong and must not matter."""

    coordinates = cl.Box(x=(0, 1))
    parameters = few
    outputs = ("u", "v")
    conditions = (
        cl.Condition("left", lambda d: {"u": d.u - 1, "v": d.v}, on=cl.at(x=0), points=1),
        cl.Data("measured", at={"x": [0.5], "a": [1.3]}, values={"u": [30.0]}),
    )

    def residual(self, d, a):
        return {"first": d.u_x - d.v, "second": d.v_x - 2 * a}

    def reference(self, x, a):
        return {"u": 1 + a * x**2, "v": 2 * a * x}


class Placed(cl.Problem):
    """A domain whose height depends on theta, sheared."""

    coordinates = cl.Box(x=(0, 1), y=(0, 1))
    parameters = few
    conditions = (cl.Condition("walls", lambda d, x, y: d.u - 1 - x * y, on=cl.boundary("x", "y")),)

    def place(self, x, y, a):
        return {"x": x + 0.3 * y, "y": a * y}

    def residual(self, d):
        return d.u_xx + d.u_yy

    def reference(self, x, y):
        return {"u": 1 + x * y}


class Logarithmic(cl.Problem):
    """A logarithmic coordinate: u is linear in log r."""

    coordinates = cl.Box(r=cl.log(1.0, 10.0))
    parameters = few
    conditions = (
        cl.Condition("inner", lambda d: d.u - 1, on=cl.at(r=1.0), points=1),
        cl.Condition("outer", lambda d, a: d.u - 1 - a * math.log(10.0), on=cl.at(r=10.0), points=1),
    )

    def residual(self, d, r):
        return d.u_rr + d.u_r / r

    def reference(self, r, a):
        return {"u": 1 + a * jnp.log(r)}


class Solid(cl.Problem):
    """Three coordinates."""

    coordinates = cl.Box(x=(0, 1), y=(0, 1), t=(0, 1))
    parameters = few
    evaluation = coordinates.grid(x=6, y=6, t=6)
    conditions = (
        cl.Condition("start", lambda d, x, y, a: d.u - 1 - a * x * y, on=cl.at(t=0)),
        cl.Condition("walls", lambda d, x, y, t, a: d.u - 1 - a * x * y - t, on=cl.boundary("x", "y")),
    )

    def residual(self, d):
        return d.u_t - d.u_xx - d.u_yy - 1

    def reference(self, x, y, t, a):
        return {"u": 1 + a * x * y + t}


LINEAR = [Soft, Hard, Mixed, System, Placed, Logarithmic, Solid]


def features(problem):
    return problem.coordinates.feature_count


def estimated(problem, network, theta=(1.3,), **options):
    return Estimator(problem, **options).at(network, np.array(theta))


def true_error(problem, network, theta=(1.3,)):
    """Solution minus outputs, (points, outputs)."""
    exact = reference_at(problem, problem.evaluation.points, np.array(theta)).T
    return exact - outputs_on_grid(problem, network, theta)


@pytest.mark.parametrize("kind", LINEAR)
def test_a_known_polynomial_perturbation_comes_back_to_rounding(kind):
    problem = kind()
    network = Cubic(features(problem), len(problem.outputs))
    estimate, error = estimated(problem, network), true_error(problem, network)
    assert estimate.resolved, estimate.reason
    assert np.abs(error).max() > 1e-2
    np.testing.assert_allclose(estimate.error, error, atol=2e-8 * np.abs(error).max())
    exact = reference_at(problem, problem.evaluation.points, np.array([1.3])).T
    for i, name in enumerate(problem.outputs):
        relative = np.linalg.norm(error[:, i]) / np.linalg.norm(exact[:, i])
        assert estimate.relative_l2[name] == pytest.approx(relative, rel=1e-6)
        assert estimate.largest[name] == pytest.approx(np.abs(error[:, i]).max(), rel=1e-6)


def test_a_wrong_operator_gives_another_error():
    class Wrong(Soft):
        def residual(self, d):
            return d.u_xx + 1.2 * d.u_yy

    network = Cubic(2, 1)
    error = true_error(Soft(), network)
    apart = np.abs(estimated(Wrong(), network).error - error).max()
    assert apart < 1e-3 * np.abs(error).max()  # the same solution solves it, so the error is the same

    class Wronger(Soft):
        def residual(self, d):
            return d.u_xx + d.u_yy + 0.2 * d.u

    assert np.abs(estimated(Wronger(), network).error - error).max() > 1e-2 * np.abs(error).max()


def test_a_wrong_condition_gives_another_error():
    class Wrong(Soft):
        conditions = (cl.Condition("walls", lambda d, x, y, a: d.u - 1.1 - a * x * y, on=cl.boundary("x", "y")),)

    network = Cubic(2, 1)
    shift = estimated(Wrong(), network).error - estimated(Soft(), network).error
    np.testing.assert_allclose(shift, 0.1, atol=1e-8)


def test_slopes_that_are_wrong_are_noticed(monkeypatch):
    """One step rests on the slopes of the residuals: with wrong ones the exact test above fails."""
    monkeypatch.setattr(estimate_module, "LARGE", math.inf)
    network = Cubic(2, 1)
    estimator = Estimator(Hard())
    error = true_error(Hard(), network)
    residuals = type(estimator._programs).residuals

    def wrong(self, term, *rest):
        values, slopes = residuals(self, term, *rest)
        return values, slopes * (1.1 if term == 0 else 1.0)

    monkeypatch.setattr(type(estimator._programs), "residuals", wrong)
    estimate = estimator.at(network, np.array([1.3]))
    assert estimate.newton_steps == 1
    assert np.abs(estimate.error - error).max() > 1e-2 * np.abs(error).max()


def test_what_the_equations_leave_open_is_told():
    estimate = estimated(Open(), Cubic(2, 1))
    assert not estimate.resolved and "do not determine the solution" in estimate.reason

    class Fixed(Open):
        conditions = (*Open.conditions, cl.Integral("mean", lambda d: d.u, on=cl.at(), equals=4.0))

    network = Cubic(2, 1)
    estimate = estimated(Fixed(), network)
    assert estimate.resolved
    np.testing.assert_allclose(estimate.error, true_error(Soft(), network), atol=1e-7)


def test_a_network_in_single_precision():
    problem = Soft()
    with jax.enable_x64(True):
        double = cast(Cubic(2, 1, dtype=jnp.float32), jnp.float64)
    single = Cubic(2, 1, dtype=jnp.float32)
    estimates = [estimated(problem, network) for network in (single, double)]
    assert estimates[0].resolved
    np.testing.assert_allclose(estimates[0].error, estimates[1].error, rtol=1e-12, atol=1e-12)


class Growth(cl.Problem):
    """Logistic growth: nonlinear."""

    coordinates = cl.Box(t=(0, 4))
    parameters = cl.Box(u0=(0.1, 0.5))
    conditions = (cl.Condition("start", lambda d, u0: d.u - u0, on=cl.at(t=0), points=1),)

    def residual(self, d):
        return d.u_t - d.u * (1 - d.u)

    def reference(self, t, u0):
        return {"u": u0 / (u0 + (1 - u0) * jnp.exp(-t))}


def test_a_large_error_takes_more_newton_steps():
    problem = Growth()
    network = eqx.tree_at(lambda n: n.bias, Cubic(1, 1, size=0.02), jnp.array([0.5]))
    estimate, error = estimated(problem, network, (0.3,)), true_error(problem, network, (0.3,))
    assert estimate.resolved, estimate.reason
    assert estimate.newton_steps > 1
    assert "Newton steps" in estimate.reason
    np.testing.assert_allclose(estimate.error, error, atol=1e-3 * np.abs(error).max())


class Travelling(eqx.Module):
    """sin(x - speed t), by the features of a periodic x in (0, 2 pi) and of t in (0, 1)."""

    speed: jax.Array

    def __call__(self, coordinates, parameters):
        sine, cosine = coordinates[0], coordinates[1]  # of x - pi
        phase = (coordinates[2] + 1.0) * (0.5 * self.speed)
        value = (sine * jets.cos(phase) + cosine * jets.sin(phase) * -1.0) * -1.0
        return value.reshape(1)


class Advection(cl.Problem):
    coordinates = cl.Box(x=cl.periodic(0, 2 * np.pi), t=(0, 1))
    parameters = cl.Box(beta=(1.0, 63.0))
    conditions = (cl.Condition("initial", lambda d, x: d.u - jnp.sin(x), on=cl.at(t=0)),)

    def residual(self, d, beta):
        return d.u_t + beta * d.u_x

    def reference(self, x, t, beta):
        return {"u": jnp.sin(x - beta * t)}


@pytest.mark.parametrize("beta", [6.0, 40.0])
def test_advection_over_many_periods_never_looks_good(beta):
    """A speed that is 2 % off: a residual of 2 %, and at 40 an error of a half."""
    with jax.enable_x64(True):
        network = Travelling(jnp.asarray(0.98 * beta))
    problem = Advection()
    error = true_error(problem, network, (beta,))
    estimate = estimated(problem, network, (beta,))
    true = np.linalg.norm(error) / np.linalg.norm(reference_at(problem, problem.evaluation.points, np.array([beta])))
    assert not estimate.resolved or estimate.relative_l2["u"] == pytest.approx(true, rel=0.1)
    if beta == 6.0:
        assert estimate.resolved, estimate.reason


def test_a_solution_that_blows_up_inside_the_box_is_not_resolved():
    class BlowUp(cl.Problem):
        coordinates = cl.Box(t=(0, 1))
        parameters = cl.Box(a=(0.5, 1.5))
        conditions = (cl.Condition("initial", lambda d: d.u - 1, on=cl.at(t=0), points=1),)

        def residual(self, d, a):
            return d.u_t - a * d.u**2

    network = eqx.tree_at(lambda n: n.bias, Cubic(1, 1, size=0.3), jnp.array([2.0]))
    estimate = estimated(BlowUp(), network, (1.4,))
    assert not estimate.resolved
    assert "Newton" in estimate.reason or "differ" in estimate.reason
    before = estimated(BlowUp(), network, (0.5,))  # blows up after the end
    assert before.resolved, before.reason


def test_backward_heat_never_looks_good():
    class Backward(cl.Problem):
        coordinates = cl.Box(x=(0, 1), t=(0, 1))
        parameters = cl.Box(kappa=(0.05, 0.5))
        conditions = (
            cl.Condition("initial", lambda d, x: d.u - jnp.sin(jnp.pi * x), on=cl.at(t=0)),
            cl.Condition("ends", lambda d: d.u, on=cl.boundary("x")),
        )

        def residual(self, d, kappa):
            return d.u_t + kappa * d.u_xx

        def reference(self, x, t, kappa):
            return {"u": jnp.sin(jnp.pi * x) * jnp.exp(kappa * jnp.pi**2 * t)}

    problem, network = Backward(), Cubic(2, 1)
    estimate = estimated(problem, network, (0.5,), functions=3000)
    assert not estimate.resolved or estimate.relative_l2["u"] > 0.5


def test_what_cannot_be_estimated_says_why():
    class Four(cl.Problem):
        coordinates = cl.Box(x=(0, 1), y=(0, 1), z=(0, 1), t=(0, 1))
        parameters = few
        evaluation = coordinates.grid(x=2, y=2, z=2, t=2)

        def residual(self, d):
            return d.u_t - d.u_xx

    class Sensitive(Growth):
        def residual(self, d):
            return d.u_t - d.u * (1 - d.u) + 0 * d.u_u0

    for problem, text in ((Four(), "4 coordinates"), (Sensitive(), "along the parameter u0")):
        estimate = estimated(problem, Cubic(features(problem), 1))
        assert not estimate.resolved
        assert text in estimate.reason
        assert math.isnan(estimate.relative_l2["u"])
        assert estimate.correction is None


def test_budgets_end_an_estimate():
    network = eqx.tree_at(lambda n: n.bias, Cubic(1, 1, size=0.02), jnp.array([0.5]))
    few_functions = estimated(Growth(), network, (0.3,), functions=30)
    assert not few_functions.resolved
    assert "more than 30" in few_functions.reason
    short = estimated(Growth(), network, (0.3,), seconds=1e-9)
    assert not short.resolved
    assert "needs more than 1e-09 s" in short.reason


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"tolerance": 1.0}, {"functions": 0}, {"seconds": 0.0}])
def test_options_that_make_no_sense(options):
    with pytest.raises(cl.ProblemError, match="tolerance between 0 and 1"):
        Estimator(Growth(), **options)


# Jumps and meshes --------------------------------------------------------------------------------------------


class TwoMaterials(cl.Problem):
    """Heat through two materials with the flux as an output; the interface is a parameter."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(k=(0.1, 10.0), middle=(0.3, 0.7))
    outputs = ("T", "q")
    conditions = (
        cl.Condition("warm", lambda d: d.T - 1, on=cl.at(x=0), points=1),
        cl.Condition("cold", lambda d: d.T, on=cl.at(x=1), points=1),
    )

    def residual(self, d, x, k, middle):
        return {"law": d.q + jnp.where(x < middle, 1.0, k) * d.T_x, "balance": d.q_x}

    def reference(self, x, k, middle):
        q = 1 / (middle + (1 - middle) / k)
        return {"T": jnp.where(x < middle, 1 - q * x, q / k * (1 - x)), "q": q + 0 * x}


@pytest.mark.parametrize("theta", [(0.2, 0.4137), (5.0, 0.6)])
def test_the_kink_between_two_materials_is_resolved(theta):
    problem, network = TwoMaterials(), Cubic(1, 2)
    estimate, error = estimated(problem, network, theta), true_error(problem, network, theta)
    assert estimate.resolved, estimate.reason
    np.testing.assert_allclose(estimate.error, error, atol=1e-7 * np.abs(error).max())


def test_jumps_are_found_where_they_are():
    def numbers(points):
        x, y = points.T
        step = np.where(x < 0.3, 1.0, 2.0) + np.where(y < -0.123456, 0.0, 0.5)
        steep = np.tanh(200 * (x + 0.5))
        slanted = np.where(x < 0.1 * y, 0.0, 1.0)
        return np.stack([step, steep, slanted, x**2], axis=1)

    along_x, along_y = jumps_by_axis(numbers, 2)
    np.testing.assert_allclose(along_x, [0.3], atol=1e-9)
    np.testing.assert_allclose(along_y, [-0.123456], atol=1e-9)


def test_jumps_become_breaks_and_no_interval_is_too_small():
    breaks = with_jumps(np.linspace(-1, 1, 11), np.array([0.31, 0.95]))
    assert {0.31, 0.95} <= set(breaks)
    assert np.all(np.diff(breaks) > 0)
    assert (breaks[0], breaks[-1]) == (-1.0, 1.0)
    breaks = np.linspace(-1, 1, 13)
    for _ in range(40):  # all that is left is in one interval, again and again
        left = np.zeros(len(breaks) - 1)
        left[len(left) // 2] = 1.0
        breaks = refined_breaks(breaks, left, len(breaks) + 2, False)
    assert np.diff(breaks).min() > 1e-8


def test_a_jump_at_an_end_and_rounding_are_none():
    def numbers(points):
        x = points[:, 0]
        return np.stack([np.where(x < 1, 1.0, 0.0), 1 + 1e-15 * np.where(x < 0.1, 0, 1), np.exp(np.log(x + 2))], axis=1)

    assert len(jumps_by_axis(numbers, 1)[0]) == 0

    class Ended(Plain):
        def residual(self, d, x):
            return d.u_xx - jnp.where(x < 1, 0.0, 1.0)

    assert estimated(Ended(), Cubic(1, 1), ()).resolved


class Constant(eqx.Module):
    """The same raw output everywhere."""

    value: jax.Array

    def __call__(self, coordinates, parameters):
        return jets.linear(coordinates, jnp.zeros((len(coordinates.value), 1)), self.value[None])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_constant_network(value):
    with jax.enable_x64(True):
        network = Constant(jnp.asarray(value))
    estimate = estimated(Soft(), network)
    assert estimate.resolved, estimate.reason
    np.testing.assert_allclose(estimate.error, true_error(Soft(), network), atol=1e-7)


def test_a_network_that_is_not_finite():
    with jax.enable_x64(True):
        estimate = estimated(Soft(), Constant(jnp.asarray(np.nan)))
    assert not estimate.resolved
    assert "not finite" in estimate.reason or "not estimated" in estimate.reason


def test_an_output_that_is_zero_has_no_relative_error():
    class Vanishing(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = few
        conditions = (cl.Condition("left", lambda d: d.u, on=cl.at(x=0), points=1),)

        def residual(self, d, a):
            return d.u_x + a * d.u

    estimate = estimated(Vanishing(), Cubic(1, 1))
    assert math.isnan(estimate.relative_l2["u"]) and "u is zero here" in estimate.reason
    assert estimate.largest["u"] > 0


def test_one_number_is_needed_for_each_parameter():
    surrogate = cl.Surrogate(Soft(), Cubic(2, 1))
    for value in ([0.7, 1.3], "a", None):
        with pytest.raises(cl.DomainError, match="One number is needed for each of a"):
            surrogate.error(a=value)


# Surrogates --------------------------------------------------------------------------------------------------


class Plain(cl.Problem):
    """A problem without parameters."""

    coordinates = cl.Box(x=(0, 1))
    conditions = (cl.Condition("ends", lambda d, x: d.u - 1 - x, on=cl.boundary("x")),)
    candidates: ClassVar = cl.Grid()

    def residual(self, d):
        return d.u_xx

    def reference(self, x):
        return {"u": 1 + x}


def test_the_estimate_of_a_surrogate():
    surrogate = cl.Surrogate(Soft(), Cubic(2, 1))
    error = surrogate.error(a=1.3)
    assert error.resolved
    assert error.theta == {"a": 1.3}
    truth = true_error(Soft(), surrogate.network)[:, 0]
    np.testing.assert_allclose(error.field["u"].values.ravel(), truth, atol=1e-7)
    assert error.field["u"].dims == surrogate.field(a=1.3)["u"].dims
    assert "Estimated error" in error.field.attrs["comment"]
    assert str(error).startswith("Estimated relative L2 error at a = 1.3: u ")
    assert "resolved yes" in repr(error) and "Estimated error" in error._repr_html_()
    assert error.summary()["resolved"] is True
    done = []
    many = surrogate.error_many([[1.3], [0.7]], progress=lambda i, of: done.append((i, of)))
    assert many[0].relative_l2 == error.relative_l2
    assert done == [(1, 2), (2, 2)]
    with pytest.raises(cl.ClpinnError, match="a"):
        surrogate.error(b=1.0)


def test_a_problem_without_parameters():
    error = cl.Surrogate(Plain(), Cubic(1, 1)).error()
    assert error.resolved and error.theta == {}
    assert str(error).startswith("Estimated relative L2 error: u ")


def test_a_doubt_that_vanishes_is_none():
    """Only if it falls at two refinements in a row, and is not large any more."""
    assert _vanishing([0.6, 0.4, 0.2]) and _vanishing([9.0, 0.6, 0.4, 0.2])
    assert not _vanishing([0.4, 0.2])  # one fall says little
    assert not _vanishing([0.6, 0.5, 0.2]) and not _vanishing([0.4, 0.3, 0.31])
    assert not _vanishing([3.0, 1.5, 0.7]) and not _vanishing([math.inf, math.inf, math.inf])


def test_a_refinement_is_smaller_rather_than_none():
    """With few functions left, the next resolution takes those that there are."""

    class Steep(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(width=cl.log(0.005, 0.1))
        conditions = (cl.Condition("ends", lambda d, x: d.u - x, on=cl.boundary("x"), points=2),)

        def residual(self, d, width):
            return width * d.u_xx + d.u_x

    network = eqx.tree_at(lambda n: n.bias, Cubic(1, 1, size=0.02), jnp.array([0.5]))
    limited = estimated(Steep(), network, (0.01,), functions=45)
    assert 36 < limited.functions["x"] <= 45  # the first have 29, and the next would have 49
