"""Corrections: the estimated error as a part of the answer, in calls, derivatives, functions and files."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from correcting import Hard, X, Y, exact, rewritten, untrained

import clpinn as cl
from clpinn.errors import SurrogateError
from clpinn.estimation.results import Correction, Estimate
from clpinn.estimation.splines import Splines, SplineSpace
from clpinn.surrogate.corrections import Corrections, StackedSplines


@pytest.fixture(scope="module")
def base():
    return untrained()


@pytest.fixture(scope="module")
def corrected(base):
    return base.correct_many([[0.7], [1.9]])


def test_the_corrected_answer_is_the_solution_and_the_base_is_untouched(base, corrected):
    for a in (0.7, 1.9):
        assert np.abs(base(x=X, y=Y, a=a)["u"] - exact(a)).max() > 0.01
        np.testing.assert_allclose(corrected(x=X, y=Y, a=a)["u"], exact(a), atol=5e-5)
    np.testing.assert_array_equal(corrected(x=X, y=Y, a=1.0)["u"], base(x=X, y=Y, a=1.0)["u"])
    assert base.heads is None
    assert corrected.heads.used.all() and corrected.used_heads == 2
    assert "The correction is used. Two resolutions agree" in corrected.heads.reason(0)


def test_the_correction_is_the_estimate(base, corrected):
    error = base.error(a=0.7)
    added = corrected.field(a=0.7)["u"] - base.field(a=0.7)["u"]
    np.testing.assert_allclose(added.values, error.field["u"].values, atol=1e-14)


def test_hard_conditions_still_hold(corrected):
    for x in (0.0, 1.0):
        np.testing.assert_array_equal(corrected(x=x, y=Y, a=0.7)["u"], 0 * Y)


@pytest.mark.slow
def test_derivatives_of_a_corrected_surrogate(corrected):
    derivatives = {
        "u_x": 0.7 * (1 - 2 * X) * np.sin(Y),
        "u_xx": -2 * 0.7 * np.sin(Y),
        "u_yy": -exact(0.7),
        "u_xy": 0.7 * (1 - 2 * X) * np.cos(Y),
    }
    for name, values in derivatives.items():
        np.testing.assert_allclose(corrected.derivative(name, x=X, y=Y, a=0.7), values, atol=2e-3)
    # Against differences of the answers themselves, far below what the correction adds.
    step = 1e-4
    before, here, after = (corrected(x=X + shift, y=Y, a=0.7)["u"] for shift in (-step, 0.0, step))
    second = corrected.derivative("u_xx", x=X, y=Y, a=0.7)
    np.testing.assert_allclose(second, (before - 2 * here + after) / step**2, atol=2e-5)
    at_the_ends = corrected.derivative("u_x", x=np.array([0.0, 1.0]), y=1.0, a=0.7)
    np.testing.assert_allclose(at_the_ends, 0.7 * np.array([1, -1]) * np.sin(1.0), atol=2e-3)


@pytest.mark.slow
def test_the_function_of_a_corrected_surrogate(base, corrected):
    function = corrected.function()
    with jax.enable_x64(True):
        for a in (0.7, 1.9, 1.0):
            np.testing.assert_allclose(function(x=X, y=Y, a=a)["u"], corrected(x=X, y=Y, a=a)["u"], atol=1e-14)
        mixed = function(x=0.4, y=1.0, a=np.array([0.7, 1.0, 1.9]))["u"]
        slope = jax.grad(lambda x: function(x=x, y=1.0, a=0.7)["u"].sum())(0.4)
    np.testing.assert_allclose(mixed, corrected(x=0.4, y=1.0, a=np.array([0.7, 1.0, 1.9]))["u"], atol=1e-14)
    assert slope == pytest.approx(corrected.derivative("u_x", x=0.4, y=1.0, a=0.7), abs=1e-10)


def test_a_point_outside_the_box_gets_a_finite_answer(corrected):
    with pytest.warns(cl.OutsideBoxWarning):
        answer = corrected(x=1.5, y=0.0, a=0.7)["u"]
    assert abs(answer) < 10


def test_more_corrections_join_and_replace(base, corrected):
    more = corrected.correct_many([[1.9], [1.2]])
    assert more.heads.thetas.ravel().tolist() == [0.7, 1.9, 1.2]
    assert len(more.heads.reasons) == 3
    for a in (0.7, 1.9, 1.2):
        np.testing.assert_allclose(more(x=X, y=Y, a=a)["u"], exact(a), atol=2e-4)
    np.testing.assert_array_equal(more(x=X, y=Y, a=0.7)["u"], corrected(x=X, y=Y, a=0.7)["u"])


def test_heads_and_corrections_do_not_mix(base, corrected):
    with pytest.raises(cl.ProblemError, match="cannot take adaptations by 'head'"):
        corrected.adapt_many([[0.7]], settings=cl.AdaptSettings(steps=1))
    with pytest.raises(cl.ProblemError, match="by 'head' cannot take some by 'correction'"):
        base.adapt_many([[0.7]], settings=cl.AdaptSettings(steps=1)).correct(a=1.0)


def test_what_is_not_resolved_is_not_used(base):
    stopped = base.correct_many([[0.7], [1.9]], functions=210)
    assert not stopped.heads.used.any()
    assert "The correction is not used, the base stays. There is one resolution only" in stopped.heads.reason(0)
    np.testing.assert_array_equal(stopped(x=X, y=Y, a=0.7)["u"], base(x=X, y=Y, a=0.7)["u"])
    joined = stopped.correct(a=0.7)  # the splines of the first have another degree
    np.testing.assert_allclose(joined(x=X, y=Y, a=0.7)["u"], exact(0.7), atol=5e-5)


def test_a_surrogate_in_single_precision(tmp_path):
    base = untrained(precision="single")
    corrected = base.correct(a=0.7)
    assert corrected.heads.used.all()
    assert corrected.heads.splines.coefficients.dtype == np.float32
    np.testing.assert_allclose(corrected(x=X, y=Y, a=0.7)["u"], exact(0.7), atol=2e-5)
    np.testing.assert_allclose(corrected.function()(x=X, y=Y, a=0.7)["u"], exact(0.7), atol=2e-5)
    corrected.save(tmp_path / "single.clpinn")
    loaded = cl.load(tmp_path / "single.clpinn", Hard())
    np.testing.assert_array_equal(loaded(x=X, y=Y, a=0.7)["u"], corrected(x=X, y=Y, a=0.7)["u"])


def test_thetas_outside_the_box_and_none_at_all(base):
    with pytest.raises(cl.ClpinnError, match="outside"):
        base.correct(a=3.0)
    with pytest.raises(cl.ProblemError, match="at least one row"):
        base.correct_many(np.zeros((0, 1)))


# Files -------------------------------------------------------------------------------------------------------


def test_a_file_with_corrections(corrected, tmp_path):
    path = tmp_path / "corrected.clpinn"
    corrected.save(path)
    loaded = cl.load(path, Hard())
    assert loaded.digest == corrected.digest
    assert loaded.heads.reasons == corrected.heads.reasons
    assert repr(loaded.heads) == "Corrections: 2 thetas, 2 used"
    for a in (0.7, 1.0, 1.9):
        np.testing.assert_array_equal(loaded(x=X, y=Y, a=a)["u"], corrected(x=X, y=Y, a=a)["u"])


def knots_that_fall(header, arrays):
    name = next(name for name in arrays if "knots" in name)
    arrays[name] = arrays[name][..., ::-1].copy()


def too_many_intervals(header, arrays):
    name = next(name for name in arrays if "intervals" in name)
    arrays[name] = arrays[name] + np.int32(1000)


def not_finite(header, arrays):
    name = next(name for name in arrays if "coefficients" in name)
    arrays[name] = np.full_like(arrays[name], np.nan)


def intervals_that_are_real(header, arrays):
    name = next(name for name in arrays if "intervals" in name)
    arrays[name] = arrays[name].astype(float)


def knots_all_alike(header, arrays):
    name = next(name for name in arrays if "knots" in name)
    arrays[name] = np.zeros_like(arrays[name])


def without_reasons(header, arrays):
    header["corrections"]["reasons"] = []


def another_room(header, arrays):
    header["corrections"]["room"] = [10**9, 10**9]


def without_shape(header, arrays):
    header["corrections"] = None


@pytest.mark.parametrize(
    "change",
    [
        knots_that_fall,
        knots_all_alike,
        intervals_that_are_real,
        too_many_intervals,
        not_finite,
        without_reasons,
        another_room,
        without_shape,
    ],
)
def test_damaged_corrections_are_refused(corrected, tmp_path, change):
    path = tmp_path / "damaged.clpinn"
    corrected.save(path)
    rewritten(path, change)
    with pytest.raises(SurrogateError, match="holds no surrogate|other structure|other shapes"):
        cl.load(path, Hard())


# Splines -----------------------------------------------------------------------------------------------------


def stacked(spaces, coefficients, room):
    first = spaces[0]
    splines = StackedSplines.blank(
        len(spaces), first.outputs, room, first.axes[0].degree, [axis.periodic for axis in first.axes]
    )
    for i, (space, numbers) in enumerate(zip(spaces, coefficients)):
        splines.fill(i, space, numbers)
    return splines


def test_stacked_splines_are_the_splines_themselves():
    draw = np.random.default_rng(0)
    spaces = []
    for count in (7, 11):
        inner = np.sort(draw.uniform(-0.95, 0.95, count - 1))
        times = np.ones(count - 1, int)
        times[2] = 4  # a kink
        kinked = Splines(np.concatenate([[-1], inner, [1]]), 5, False, times)
        around = Splines(np.concatenate([[-1], np.sort(draw.uniform(-0.95, 0.95, count)), [1]]), 5, True)
        spaces.append(SplineSpace((kinked, around), 2))
    coefficients = [draw.normal(size=(2, *space.counts)) for space in spaces]
    splines = stacked(spaces, coefficients, [20, 25])
    wider = splines.widened([21, 40])
    points = [np.linspace(-1, 1, 23), np.linspace(-0.99, 0.99, 17)]
    with jax.enable_x64(True):
        for i, (space, numbers) in enumerate(zip(spaces, coefficients)):
            expected = space.on_grid(numbers, points)
            for each in (splines, wider):

                def value(x, y, each=each, i=i):
                    return each.value(jnp.asarray(i), [x, jnp.sin(jnp.pi * y), jnp.cos(jnp.pi * y)])

                arrays = jax.tree.map(jnp.asarray, each)
                each = arrays
                found = jax.vmap(lambda x: jax.vmap(lambda y: value(x, y, arrays))(points[1]))(points[0])  # noqa: B023
                np.testing.assert_allclose(np.moveaxis(found, -1, 0), expected, atol=1e-12)


def test_a_knot_that_stands_several_times_lets_derivatives_jump():
    splines = Splines(np.array([-1.0, 0.2, 1.0]), 3, False, np.array([3]))
    assert splines.count == 3 + 1 + 3
    points = np.array([0.2 - 1e-9, 0.2 + 1e-9])
    values, slopes = (splines.basis(points, order) for order in (0, 1))
    np.testing.assert_allclose(values[0], values[1], atol=1e-7)
    assert np.abs(slopes[0] - slopes[1]).max() > 1


def test_corrections_of_estimates_that_have_none():
    problem = Hard()
    nothing = Estimate({"u": np.nan}, {"u": np.nan}, np.zeros((400, 1)), False, "No answer.", {}, np.nan, 0, None)
    corrections = Corrections.of(problem, np.array([[0.7]]), [nothing], float)
    assert not corrections.used.any()
    corrections.check()
    assert replace(nothing, resolved=True).correction is None
    flagged = replace(nothing, resolved=True)
    assert not Corrections.of(problem, np.array([[0.7]]), [flagged], float).used.any()
    space = SplineSpace((Splines(np.linspace(-1, 1, 4), 5, False), Splines(np.linspace(-1, 1, 8), 5, True)), 1)
    good = replace(flagged, correction=Correction(space, np.ones((1, *space.counts))))
    assert Corrections.of(problem, np.array([[0.7]]), [good], float).used.all()
