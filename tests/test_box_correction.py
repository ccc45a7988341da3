"""A correction over the whole box: its answers, its evidence, its files, and the interpolation that it is made of."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from correcting import X, Y, exact, rewritten, untrained

import clpinn as cl
from clpinn.errors import SurrogateError
from clpinn.estimation.estimate import Estimator
from clpinn.estimation.meshes import common_breaks
from clpinn.estimation.results import OWN, Correction, Estimate, remaining
from clpinn.estimation.splines import Splines, SplineSpace
from clpinn.exports.translate.javascript import javascript
from clpinn.exports.translate.onnx import onnx_model
from clpinn.exports.translate.tracing import program_of
from clpinn.formulation.thetas import features
from clpinn.surrogate import correct_box as module
from clpinn.surrogate.box_correction import BoxCorrected
from clpinn.surrogate.box_kernel import Interpolation, Kernel, _left_out, _matrix, fitted_kernel
from clpinn.surrogate.box_modes import in_common
from clpinn.surrogate.box_search import BoxSearch
from clpinn.surrogate.corrections import Corrected

NEW = (0.55, 0.83, 1.317, 1.98)
"""Values of the parameter that no correction is made at."""


class Turned(cl.Problem):
    """A source with a phase, which is a periodic parameter, and two outputs, one of them small. x'' = y' = known."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(phase=cl.periodic(0, 2 * np.pi), k=cl.log(1, 3))
    outputs = ("u", "v")
    candidates = parameters.grid(phase=4, k=3)
    evaluation = coordinates.grid(x=40)
    conditions = (cl.Condition("start", lambda d: d.v, on=cl.at(x=0), points=1),)

    def residual(self, d, x, phase, k):
        return {"u": d.u_xx + k**2 * jnp.sin(k * x + phase), "v": d.v_x - 1e-3 * jnp.cos(phase) * k}

    def constrain(self, raw, x, phase, k):
        line = jnp.sin(phase) * (1 - x) + jnp.sin(k + phase) * x
        return {"u": line + x * (1 - x) * raw["u"], "v": raw["v"]}

    def reference(self, x, phase, k):
        return {"u": jnp.sin(k * x + phase), "v": 1e-3 * jnp.cos(phase) * k * x}


@pytest.fixture(scope="module")
def base():
    return untrained()


@pytest.fixture(scope="module")
def corrected(base):
    return base.correct_box(thetas=24)


def test_answers_everywhere_are_the_solution(base, corrected):
    for a in NEW:
        assert np.abs(base(x=X, y=Y, a=a)["u"] - exact(a)).max() > 0.01
        np.testing.assert_allclose(corrected(x=X, y=Y, a=a)["u"], exact(a), atol=1e-3)
    np.testing.assert_array_equal(corrected(x=[0.0, 1.0], y=1.0, a=0.83)["u"], 0)  # hard conditions still hold
    assert base.record == {} and not isinstance(base.network, BoxCorrected)


def test_the_evidence(base, corrected):
    record = corrected.record["box_correction"]
    assert record["used"] and record["resolved"] == 1 and record["thetas"] <= 24
    checks = np.array(record["checks"])
    assert len(checks) >= 3 and json.dumps(record)
    figures = record["outputs"]["u"]
    errors = [base.error(a=float(a)).relative_l2["u"] for (a,) in checks]
    assert figures["before"]["macro"] == pytest.approx(np.mean(errors), rel=1e-3)
    assert figures["before"]["worst"] == pytest.approx(np.max(errors), rel=1e-3)
    assert figures["after"]["worst"] < 0.05 * figures["before"]["worst"]
    assert "thetas that it does not know" in record["reason"]
    text = f"from {record['thetas']} thetas. {record['reason']}"
    assert text in repr(corrected) and corrected.field(a=0.83).attrs["box_correction"] == text
    assert "box_correction" not in base.field(a=0.83).attrs


def test_the_map_is_of_the_corrected_surrogate(corrected):
    """Errors at the checks are true, and so are the figures between them."""
    errors = corrected.errors
    np.testing.assert_array_equal(errors.thetas, corrected.record["box_correction"]["checks"])
    problem = corrected.problem
    points = problem.evaluation.points
    for (a,), relative, largest in zip(errors.thetas, errors.relative_l2[:, 0], errors.largest[:, 0]):
        solution = exact(a, *points.T)
        apart = corrected(x=points[:, 0], y=points[:, 1], a=a)["u"] - solution
        # The error that is left is about as small as what the estimates leave themselves.
        assert 0.5 < relative / (np.linalg.norm(apart) / np.linalg.norm(solution)) < 2
        assert 0.5 < largest / np.abs(apart).max() < 2
    figures = corrected.record["box_correction"]["outputs"]["u"]["after"]
    assert figures["worst"] == pytest.approx(errors.relative_l2.max())
    true = []
    for a in np.linspace(0.5, 2, 60):
        solution = exact(a, *points.T)
        apart = corrected(x=points[:, 0], y=points[:, 1], a=a)["u"] - solution
        true.append(np.linalg.norm(apart) / np.linalg.norm(solution))
    assert 0.5 < errors.macro["u"].value / np.mean(true) < 2


@pytest.mark.slow
def test_derivatives_along_coordinates_and_parameters(corrected):
    a = 0.83
    derivatives = {
        "u_x": a * (1 - 2 * X) * np.sin(Y),
        "u_yy": -exact(a),
        "u_a": exact(1.0),
        "u_xa": (1 - 2 * X) * np.sin(Y),
    }
    for name, values in derivatives.items():
        np.testing.assert_allclose(corrected.derivative(name, x=X, y=Y, a=a), values, atol=0.03)
    # Against differences of the answers themselves, also at a theta of the interpolation.
    for at in (a, 0.5):
        step = 1e-5 if at > 0.5 else 0.0  # no difference leaves the box
        ahead, behind = (corrected(x=X, y=Y, a=at + shift)["u"] for shift in (1e-5, -step))
        np.testing.assert_allclose(
            corrected.derivative("u_a", x=X, y=Y, a=at), (ahead - behind) / (1e-5 + step), atol=2e-4
        )


def test_the_function_and_a_gradient_through_it(corrected):
    function = corrected.function()
    with jax.enable_x64(True):
        values = function(x=X, y=Y, a=np.linspace(0.5, 2, 7))["u"]
        slope = jax.grad(lambda a: function(x=0.4, y=1.0, a=a)["u"].sum())(0.83)
    np.testing.assert_allclose(values, corrected(x=X, y=Y, a=np.linspace(0.5, 2, 7))["u"], atol=1e-13)
    assert slope == pytest.approx(corrected.derivative("u_a", x=0.4, y=1.0, a=0.83), abs=1e-10)


@pytest.mark.slow
def test_its_own_error_is_estimated(corrected):
    """The corrected surrogate is as wrong as it says."""
    error = corrected.error(a=0.83)
    truth = corrected.field(a=0.83)["u"]
    solution = exact(0.83, truth.x.values[:, None], truth.y.values[None]).ravel()
    true = np.linalg.norm(truth.transpose("x", "y").values.ravel() - solution) / np.linalg.norm(solution)
    assert error.resolved and error.relative_l2["u"] == pytest.approx(true, rel=0.25)


def test_a_theta_outside_the_box_gets_a_finite_answer(corrected):
    with pytest.warns(cl.OutsideBoxWarning):
        assert abs(corrected(x=0.5, y=0.0, a=4.0)["u"]) < 10


@pytest.mark.slow
def test_single_thetas_can_be_corrected_on_top(corrected):
    sharper = corrected.correct(a=0.83)
    assert sharper.heads.used.all()
    np.testing.assert_allclose(sharper(x=X, y=Y, a=0.83)["u"], exact(0.83), atol=2e-5)
    np.testing.assert_array_equal(sharper(x=X, y=Y, a=0.7)["u"], corrected(x=X, y=Y, a=0.7)["u"])
    with pytest.raises(cl.ProblemError, match="Correct the box before single thetas"):
        sharper.correct_box()


@pytest.mark.slow
def test_a_head_is_fitted_on_top_in_either_precision(corrected):
    """A correction over the box holds integers. Its weights are too large to be rounded as they are."""
    by_lm = corrected.adapt_many([[0.83]], settings=cl.AdaptSettings(steps=2)).heads
    single, double = (
        corrected.adapt_many([[0.83]], settings=cl.AdaptSettings(optimizer="adam", steps=5, precision=precision)).heads
        for precision in ("single", "double")
    )
    assert by_lm.loss_before == double.loss_before and np.isfinite(by_lm.error_after).all()
    assert single.loss_before[0] == pytest.approx(double.loss_before[0], rel=0.5)
    for leaf in jax.tree.leaves(single.heads):
        assert np.isfinite(leaf).all() and np.array_equal(leaf, np.asarray(leaf, np.float32).astype(leaf.dtype))


def test_a_second_correction_starts_from_the_base(base, corrected):
    again = corrected.correct_box(thetas=24)
    assert again.digest == corrected.digest and not isinstance(again.network.base, BoxCorrected)


def test_periodic_parameters_and_two_outputs():
    base = untrained(Turned())
    corrected = base.correct_box(thetas=80)
    assert corrected.record["box_correction"]["used"]
    x = np.linspace(0, 1, 9)
    for phase, k in ((0.3, 1.2), (6.1, 2.9), (3.3, 2.0)):
        answer, solution = corrected(x=x, phase=phase, k=k), Turned().reference(x, phase, k)
        np.testing.assert_allclose(answer["u"], solution["u"], atol=5e-3)
        np.testing.assert_allclose(answer["v"], solution["v"], atol=5e-3)
    turn = corrected(x=x, phase=np.array([[0.0], [2 * np.pi]]), k=2.0)["u"]
    np.testing.assert_allclose(turn[0], turn[1], atol=1e-10)


def test_single_precision(tmp_path):
    corrected = untrained(precision="single").correct_box(thetas=24)
    assert corrected.network.correction.weights.dtype == np.float32
    np.testing.assert_allclose(corrected(x=X, y=Y, a=1.317)["u"], exact(1.317), atol=1e-3)
    np.testing.assert_allclose(corrected.function()(x=X, y=Y, a=1.317)["u"], exact(1.317), atol=1e-3)


# Exports -----------------------------------------------------------------------------------------------------


def test_pages_and_onnx_have_the_correction(base, corrected, chromium):
    """In single precision, so what the correction adds is right to a few percent of itself."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    answer, added = (
        corrected(x=X, y=Y, a=0.83)["u"],
        np.abs(corrected(x=X, y=Y, a=0.83)["u"] - base(x=X, y=Y, a=0.83)["u"]),
    )
    page = chromium.new_page()
    for by_theta in (False, True):
        script = f"([x, theta]) => [...{javascript(program_of(corrected, by_theta))}(x, theta).u]"
        scripted = page.evaluate(script, [np.stack([X, Y], axis=1).ravel().tolist(), [0.83]])
        np.testing.assert_allclose(scripted, answer, atol=0.03 * added.max())
    page.close()
    session = onnxruntime.InferenceSession(onnx_model(corrected).SerializeToString())
    given = {"x": X, "y": Y, "a": np.full(len(X), 0.83)}
    (graph,) = session.run(None, {name: values.astype(np.float32) for name, values in given.items()})
    np.testing.assert_allclose(graph, answer, atol=0.03 * added.max())


def test_the_function_in_single_precision(base, corrected):
    added = np.abs(corrected(x=X, y=Y, a=0.83)["u"] - base(x=X, y=Y, a=0.83)["u"]).max()
    single = corrected.function()(x=X, y=Y, a=0.83)["u"]
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, corrected(x=X, y=Y, a=0.83)["u"], atol=0.03 * added)


# Safety ------------------------------------------------------------------------------------------------------


def test_without_checks_it_is_not_used(base):
    done: list[int] = []
    few = base.correct_box(9, progress=lambda now, of: done.append(now), stop=lambda: len(done) >= 12)
    record = few.record["box_correction"]
    assert few.network is base.network and not record["used"]
    assert record["reason"] == "There are 3 checks only. Give more time."
    assert len(few.errors.thetas) == 9 + 3  # the map of the base has all estimates
    assert few.errors.relative_l2[0, 0] == pytest.approx(base.error(a=0.5).relative_l2["u"])


class Halfway(Estimator):
    """Errors that are not resolved above a = 1."""

    def at(self, network, theta):
        estimate = super().at(network, theta)
        return replace(estimate, resolved=bool(theta[0] < 1))


def test_thetas_that_are_not_resolved_stay_as_they_are(base):
    result = module.correct_box(Halfway(base.problem), base.network, 40)
    assert 0.2 < result.resolved < 0.8 and np.all(result.checks < 1)
    if result.used:
        at_two = replace(base, network=result.network)(x=X, y=Y, a=2.0)["u"]
        np.testing.assert_allclose(at_two, base(x=X, y=Y, a=2.0)["u"], atol=1e-3)


def test_without_any_estimate_the_reason_is_told(base):
    nothing = module.correct_box(Estimator(base.problem, functions=10), base.network)
    assert not nothing.used and nothing.thetas == 6 and nothing.resolved == 0
    assert len(nothing.errors.thetas) == 18 and not nothing.errors.resolved.any()
    assert nothing.reason.startswith("Only 0 % of the estimates are resolved. The first that is not: The error is not")


class Noisy(Estimator):
    """Corrections that have nothing to do with each other: signs by chance."""

    def at(self, network, theta):
        estimate = super().at(network, theta)
        sign = np.sign(np.sin(1e5 * theta[0]))
        correction = estimate.correction
        assert correction is not None
        return replace(estimate, correction=Correction(correction.space, sign * correction.coefficients))


def test_what_cannot_be_interpolated_is_not_used(base):
    result = module.correct_box(Noisy(base.problem), base.network, 40)
    assert not result.used and result.network is base.network and "no clear gain" in result.reason


def test_time_ends_the_search(base, monkeypatch):
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(module.time, "monotonic", lambda: float(len(done)))  # each theta takes a second
    result = module.correct_box(Estimator(base.problem), base.network, 40, 20.0, lambda *at: done.append(at))
    assert result.thetas == 12 and len(result.checks) == 8 and result.used  # 0.6 of the time, and the rest
    assert done[5] == (6, 14 + 12)  # the first of them is ready at once, and the clock says five of twelve seconds
    assert done[-1] == (1, 1)


def test_slow_estimates_end_with_the_time(base, monkeypatch):
    """Where few thetas fit into the time, there are no checks beyond it."""
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(module.time, "monotonic", lambda: 10.0 * len(done))  # each theta takes ten seconds
    result = module.correct_box(Estimator(base.problem), base.network, None, 15.0, lambda *at: done.append(at))
    assert result.thetas + len(result.checks) == 2 and not result.used and len(result.errors.thetas) == 2


def test_bad_requests(base):
    for given in ({"thetas": 0}, {"seconds": 0.0}):
        with pytest.raises(cl.ProblemError, match="at least one theta and a time above zero"):
            base.correct_box(**given)


# Files -------------------------------------------------------------------------------------------------------


def test_a_file(corrected, tmp_path):
    path = tmp_path / "box.clpinn"
    corrected.save(path)
    loaded = cl.load(path, type(corrected.problem)())
    assert loaded.digest == corrected.digest and loaded.record["box_correction"] == corrected.record["box_correction"]
    np.testing.assert_array_equal(loaded(x=X, y=Y, a=0.83)["u"], corrected(x=X, y=Y, a=0.83)["u"])


def not_finite(header, arrays):
    name = next(name for name in arrays if "weights" in name)
    arrays[name] = np.full_like(arrays[name], np.nan)


def without_length(header, arrays):
    name = next(name for name in arrays if "scales" in name)
    arrays[name] = -arrays[name]


def other_shape(header, arrays):
    header["box_correction"]["thetas"] += 1


def no_shape(header, arrays):
    header["box_correction"] = {"thetas": "many"}


@pytest.mark.parametrize("change", [not_finite, without_length, other_shape, no_shape])
def test_a_damaged_file_is_refused(corrected, tmp_path, change):
    path = tmp_path / "box.clpinn"
    corrected.save(path)
    rewritten(path, change)
    with pytest.raises(SurrogateError, match="holds no surrogate"):
        cl.load(path, type(corrected.problem)())


# The parts ---------------------------------------------------------------------------------------------------


def waves(thetas: np.ndarray) -> np.ndarray:
    """Smooth fields (thetas, outputs, points)."""
    x = np.linspace(0, 1, 30)
    return np.sin(3 * x + 4 * thetas)[:, None]


def test_interpolation_and_what_is_left_out(base):
    thetas = np.linspace(0.5, 2, 9)[:, None]
    fields, seen = waves(thetas), features(thetas, base.problem.parameters)
    kernel = Kernel(np.array([0.3]), np.array([1.0]))
    interpolation = Interpolation(base.problem, kernel, seen, fields)
    np.testing.assert_allclose(interpolation.at(thetas[4]), fields[4], atol=1e-5)
    # The formula of what is left of each field if the others predict it, against leaving it out.
    others = np.arange(9) != 4
    left = fields[4] - Interpolation(base.problem, kernel, seen[others], fields[others]).at(thetas[4])
    products = np.einsum("iop,jop->oij", fields, fields)
    formula = _left_out(np.linalg.inv(_matrix(interpolation.places)), products)[4, 0]
    assert formula == pytest.approx(np.sum(left**2), rel=1e-5)
    unknown = interpolation.unknown(features(np.array([[0.5], [0.59], [1.3]]), base.problem.parameters))
    assert unknown[0] < 1e-3 < unknown[1]


def test_no_theta_is_searched_twice(base):
    """Not even with a kernel to which everything is known."""
    search = BoxSearch(base.problem)
    for _ in range(30):
        theta = search.next_theta()
        search.add(theta, Estimator(base.problem, functions=10).at(base.network, theta))
        search.kernel = Kernel(np.array([2.0]), np.array([0.0]))
    thetas = np.sort(np.array(search.thetas)[:, 0])
    assert np.diff(thetas).min() > 0 and np.diff(thetas).max() < 0.2 and (thetas[0], thetas[-1]) == (0.5, 2.0)


def test_what_a_correction_leaves():
    """The error of other outputs, and what the estimate itself may leave."""
    rng = np.random.default_rng(0)
    outputs, error, corrected = rng.standard_normal((3, 50, 2))
    for difference in (0.0, 0.1):
        names = {"u": 1.0, "v": 1.0}
        given = Estimate(names, names, error, True, "Two agree.", {"x": 9}, difference, 1, None)
        left = remaining(given, outputs, corrected)
        solution, own = outputs + error, OWN * difference * error
        np.testing.assert_array_equal(left.error, solution - corrected)
        for k, name in enumerate(names):
            norms = [np.linalg.norm(part[:, k]) for part in (solution - corrected, own, solution)]
            assert left.relative_l2[name] == pytest.approx(np.hypot(norms[0], norms[1]) / norms[2], rel=1e-12)
            largest = [np.abs(part[:, k]).max() for part in (solution - corrected, own)]
            assert left.largest[name] == pytest.approx(np.hypot(*largest), rel=1e-12)
        assert left.resolved and left.correction is None and left.reason.endswith("Two agree.")


def test_one_theta_of_a_correction_over_the_box(base, corrected):
    """As splines of that theta alone, which answer where many points are asked for."""
    x, y = np.linspace(0, 1, 600), np.linspace(0, 6, 600)
    many, few = (corrected(x=x[:n], y=y[:n], a=0.83)["u"] for n in (600, 60))
    np.testing.assert_allclose(many[:60], few, rtol=1e-12, atol=1e-14)
    mixed = corrected(x=np.tile(x, 2), y=np.tile(y, 2), a=np.repeat([0.83, 1.9], 600))["u"]
    np.testing.assert_array_equal(mixed[:600], many)
    assert isinstance(corrected.at(np.array([0.83])), Corrected) and base.at(np.array([0.83])) is base.network


def test_a_fitted_kernel_predicts_better(base):
    thetas = np.sort(np.random.default_rng(0).uniform(0.5, 2, 20))[:, None]
    fields, seen = waves(thetas), features(thetas, base.problem.parameters)
    products, sizes = np.einsum("iop,jop->oij", fields, fields), np.ones((20, 1))
    start = Kernel(np.array([0.06]), np.array([0.0]))
    fitted = fitted_kernel(start, seen, products, sizes)
    new = np.array([1.234])
    errors = [
        np.abs(Interpolation(base.problem, kernel, seen, fields).at(new) - waves(new[None])[0]).max()
        for kernel in (start, fitted)
    ]
    assert errors[1] < 0.1 * errors[0]


def test_a_bent_axis_is_finer_at_one_end():
    middle = np.array([[-0.999], [0.0], [0.999]])
    straight, low = (Kernel(np.array([1.0]), np.array([bend])).places(middle)[:, 0] for bend in (0.0, 5.0))
    np.testing.assert_allclose(straight, [0.0005, 0.5, 0.9995], atol=1e-4)
    assert low[1] - low[0] > 4 * (low[2] - low[1])
    high = Kernel(np.array([1.0]), np.array([-5.0])).places(middle)[:, 0]
    np.testing.assert_allclose(high, 1 - low[::-1], atol=1e-12)


def test_common_breaks_are_as_fine_as_any_mesh():
    fine_left = np.concatenate([np.linspace(-1, 0, 21), np.linspace(0, 1, 5)[1:]])
    common = common_breaks([fine_left, -fine_left[::-1]], np.inf, np.zeros(0))
    assert np.diff(common).max() <= 0.05 + 1e-12 and len(common) == 41
    assert len(common_breaks([fine_left], 10, np.zeros(0))) == 11
    assert 0.3 in common_breaks([fine_left], np.inf, np.array([0.3]))


def test_corrections_in_common_splines():
    rng = np.random.default_rng(0)
    corrections = []
    for breaks in (np.linspace(-1, 1, 9), np.linspace(-1, 1, 13)):
        space = SplineSpace((Splines(breaks, 4, False), Splines(breaks, 4, True)), 1)
        corrections.append(Correction(space, rng.standard_normal((1, *space.counts))))
    space, coefficients = in_common(corrections)
    grid = [np.linspace(-1, 1, 40), np.linspace(-1, 1, 41)]
    for correction, row in zip(corrections, coefficients):
        values = correction.space.on_grid(correction.coefficients, grid)
        apart = space.on_grid(row.reshape(1, *space.counts), grid) - values
        assert np.linalg.norm(apart) < 0.3 * np.linalg.norm(values)
