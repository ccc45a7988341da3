"""Batches of residual rows: sizes of terms, values and Jacobian against plain computations, drawing, scales."""

import math
import subprocess
import sys
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import clpinn as cl
from clpinn.formulation.problem import magnitudes
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.training import rows as rows_module
from clpinn.training.rows import Batch, Pool, Rows


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def tiny(problem: cl.Problem, seed: int = 0, width: int = 4):
    return make(problem, Architecture("fnn", width, 1), jax.random.key(seed), jnp.float64)


# Sizes of terms ---------------------------------------------------------------------------------------------


class Waves(cl.Problem):
    """u = sin(x + 2 t), with an amplitude."""

    coordinates = cl.Box(x=(-1, 1), t=(-1, 1))
    parameters = cl.Box(a=(1, 5))

    def reference(self, x, t, a):
        return {"u": a * jnp.sin(x + 2 * t)}


POINT = np.array([0.3, 0.2]), np.array([2.0])
U, UX, UT, UXX = 2 * math.sin(0.7), 2 * math.cos(0.7), 4 * math.cos(0.7), -2 * math.sin(0.7)


@pytest.mark.parametrize(
    "residual, expected",
    [
        (lambda self, d: d.u_t, abs(UT)),
        (lambda self, d: d.u_t - 3, abs(UT) + 3),
        (lambda self, d: 3 - d.u_t, abs(UT) + 3),
        (lambda self, d, x: d.u_t + d.u * d.u_x - x, abs(UT) + 2 * abs(U * UX) + 0.3),
        (lambda self, d, a: a * d.u_xx + d.u**3, 2 * abs(UXX) + 3 * abs(U**3)),
        (lambda self, d: d.u_t - d.u_t, 0.0),
        (lambda self, d: jnp.exp(d.u) - 1, math.exp(U) * U),
        (lambda self, d: d.u_x - 1 / d.u, abs(UX) + 1 / U),
        (lambda self, d: d.u_x + jnp.log(d.u), abs(UX) + 1),
    ],
)
def test_sizes_of_terms_by_hand(residual, expected):
    problem = type("Here", (Waves,), {"residual": residual})()
    found = magnitudes(problem, None, None, *map(jnp.asarray, POINT))
    assert set(found) == {"residual"}
    np.testing.assert_allclose(sum(found["residual"].values()), expected, rtol=1e-12, atol=1e-12)


def test_sizes_of_terms_of_several_residuals_and_a_condition():
    class Several(Waves):
        conditions = (
            cl.Condition("start", lambda d, x, a: d.u - a * jnp.sin(x), on=cl.at(t=0), points=4),
            cl.Condition("ends", lambda d, t: {"value": d.u, "flux": 10 * d.u_x - t}, on=cl.boundary("x"), points=4),
        )

        def residual(self, d, a):
            return {"z": d.u_t - d.u_x, "b": a * d.u + 7}

    problem = Several()
    start, ends = problem.conditions
    expected = [
        (None, {"z": abs(UT) + abs(UX), "b": 2 * U + 7}),
        (start, {"start": U + 2 * math.sin(0.3)}),
        (ends, {"value": U, "flux": 10 * abs(UX) + 0.2}),
    ]
    for condition, sizes in expected:
        found = magnitudes(problem, condition, None, *map(jnp.asarray, POINT))
        assert set(found) == set(sizes)
        for name, size in sizes.items():
            np.testing.assert_allclose(sum(found[name].values()), size, rtol=1e-12)


# Values and the Jacobian ------------------------------------------------------------------------------------


class Mixed(cl.Problem):
    """Several residuals whose names are not in alphabetical order, conditions with weights, data of two outputs."""

    coordinates = cl.Box(x=(0, 1), t=(0, 2))
    parameters = cl.Box(nu=cl.log(0.01, 1), c=(1, 2))
    outputs = ("u", "v")
    conditions = (
        cl.Condition("walls", lambda d, t: {"right": d.u - t, "left": d.v_x}, on=cl.boundary("x"), points=4, weight=3),
        cl.Condition("begin", lambda d, x: d.u * d.v - x, on=cl.at(t=0), points=4, weight=0.25),
        cl.Data(
            "sensors",
            {"x": [0.1, 0.2, 0.9], "t": [0, 1, 2], "nu": [0.5, 0.6, 0.02], "c": [1, 2, 1.5]},
            {"v": [1, 2, 3], "u": [-4, 5, -6]},
            weight=0.5,
        ),
    )

    def residual(self, d, nu, c, x):
        return {"z": d.u_t - nu * d.u_xx, "a": 5 * d.v_t + c * d.u * d.v_x - x}


WEIGHTS = {"walls": 3, "begin": 0.25, "sensors": 0.5}
TERMS = {"interior": ["a", "z"], "walls": ["left", "right"], "begin": ["begin"], "sensors": ["sensors_u", "sensors_v"]}


class Setup:
    """One problem, network and rows for many tests, so that little is compiled."""

    def __init__(self, rows: int = 80):
        self.problem = Mixed()
        self.network = tiny(self.problem, width=3)
        self.rows = Rows(self.problem, rows, jnp.float64)
        self.scales = self.rows.scales(self.network, jax.random.key(5))

    def draw(self, seed: int, pool: Pool | None = None) -> dict[str, Batch]:
        return self.rows.draw(self.network, jax.random.key(seed), self.scales, pool)


@pytest.fixture(scope="module")
def mixed() -> Setup:
    with jax.enable_x64(True):
        return Setup()


def plain_rows(problem: Mixed, network, batch: dict[str, Batch]) -> dict[str, jax.Array]:
    """The rows of a batch by name, without the engine: each of shape (points,)."""
    conditions = {condition.name: condition for condition in problem.conditions}

    def residuals(term: str, x: jax.Array, theta: jax.Array) -> dict[str, jax.Array]:
        if term == "interior":
            return cl.residuals(problem, network, x, theta)
        if term == "sensors":
            u = cl.values(problem, network, x[:2], x[2:4])
            return {"sensors_v": u["v"] - x[4], "sensors_u": u["u"] - x[5]}
        return cl.condition_residuals(problem, conditions[term], network, x, theta)

    found = {}
    for term in batch:
        part = jax.tree.map(jnp.asarray, batch[term])
        here = jax.vmap(lambda x, theta, term=term: residuals(term, x, theta))(part.x, part.theta)
        found |= {name: here[name] * part.scale[:, i] for i, name in enumerate(TERMS[term])}
    return found


def in_order(found: dict[str, jax.Array]) -> np.ndarray:
    """All rows below each other: by term, then by point, then by name."""
    terms = [np.stack([np.asarray(found[name]) for name in TERMS[term]], axis=1) for term in sorted(TERMS)]
    return np.concatenate([term.reshape(-1, *term.shape[2:]) for term in terms])


def test_values_and_the_jacobian_are_those_of_the_rows(mixed):
    batch = mixed.draw(0)
    flat, unflatten = ravel_pytree(mixed.network)

    def plain(flat: jax.Array) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        found = plain_rows(mixed.problem, unflatten(flat), batch)
        return found, found

    slopes, expected = jax.jit(jax.jacfwd(plain, has_aux=True))(flat)
    rows, jacobian, by_name, balance = mixed.rows.jacobian(mixed.network, batch)
    factors = {name: factor for term in TERMS for name, factor in zip(TERMS[term], balance[term], strict=True)}
    balanced = {name: factors[name] * row for name, row in expected.items()}
    np.testing.assert_allclose(rows, in_order(balanced), rtol=1e-11, atol=1e-14)
    balanced = {name: factors[name] * slope for name, slope in slopes.items()}
    np.testing.assert_allclose(jacobian, in_order(balanced), rtol=1e-10, atol=1e-12)
    # Balanced but for the weights of the terms.
    weights = {name: WEIGHTS.get(term, 1) for term, names in TERMS.items() for name in names}
    squares = [float(np.mean(np.sum(slope**2, axis=1))) / weights[name] for name, slope in balanced.items()]
    assert min(factors.values()) == 1 and squares == pytest.approx([squares[0]] * 7, rel=1e-10)
    value, named = mixed.rows.value(mixed.network, batch)
    squares = {name: float(np.sum(row**2)) for name, row in expected.items()}
    assert len(squares) == 7 and named == pytest.approx(squares, rel=1e-11)
    assert by_name == pytest.approx(squares, rel=1e-11)
    assert value == pytest.approx(sum(squares.values()), rel=1e-11)


def test_weights_and_scales_of_a_batch_are_those_of_its_terms(mixed):
    """A point counts as its term's weight over the points of the term, divided by the size squared at its theta."""
    points = {"interior": 6, "walls": 4, "begin": 2, "sensors": 3}
    batch = mixed.rows.uniform(jax.random.key(1), points, mixed.scales, None)
    weights = {"interior": 1, "walls": 3, "begin": 0.25, "sensors": 0.5}
    for name, part in batch.items():
        size = mixed.scales[name].at(mixed.problem.parameters, part.theta)
        np.testing.assert_allclose(part.scale**2, weights[name] / points[name] / size**2, rtol=1e-12)
    plain = mixed.rows.uniform(jax.random.key(1), points, mixed.rows.unscaled(), None)
    for name, part in plain.items():
        np.testing.assert_allclose(part.scale**2, weights[name] / points[name], rtol=1e-12)
        assert np.array_equal(part.x, batch[name].x) and np.array_equal(part.theta, batch[name].theta)
    assert np.array_equal(batch["sensors"].theta, batch["sensors"].x[:, 2:4])


def test_a_residual_is_divided_by_its_own_size():
    """Whatever the order in which an equation, a condition or data names its parts."""

    class Constants(Mixed):
        conditions = (
            cl.Condition("walls", lambda d: {"q": 0 * d.u + 50, "b": 0 * d.u + 2}, on=cl.boundary("x"), points=4),
            cl.Data(
                "sensors",
                {"x": [0.5, 0.2], "t": [0, 1], "nu": [0.5, 0.1], "c": [1, 2]},
                {"v": [0, 0], "u": [0, 0]},
            ),
        )

        def residual(self, d):
            return {"z": 0 * d.u + 1e3, "a": 0 * d.v + 1e-3}

    problem = Constants()
    network = jax.tree.map(jnp.zeros_like, tiny(problem))
    network = eqx.tree_at(lambda n: n.output.amplitude, network, jnp.ones(2))
    network = eqx.tree_at(lambda n: n.output.bias, network, jnp.array([1e-2, 1e2]))
    found = Rows(problem, 24, jnp.float64)
    plain = found.uniform(jax.random.key(1), found.points, found.unscaled(), None)
    values = found.value(network, plain)[1]
    expected = {"z": 1e6, "a": 1e-6, "q": 2500, "b": 4, "sensors_v": 1e4, "sensors_u": 1e-4}
    assert values == pytest.approx(expected)
    scaled = found.uniform(jax.random.key(1), found.points, found.scales(network, jax.random.key(0)), None)
    assert found.value(network, scaled)[1] == pytest.approx(dict.fromkeys(expected, 1.0))


def test_terms_may_share_a_name():
    class Same(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        conditions = (cl.Condition("end", lambda d: {"u": 0 * d.u + 3}, on=cl.at(x=1), points=1),)

        def residual(self, d):
            return {"u": 0 * d.u + 2}

    found = Rows(Same(), 20, jnp.float64)
    batch = found.uniform(jax.random.key(0), found.points, found.unscaled(), None)
    assert found.value(tiny(Same()), batch) == (pytest.approx(13), {"u": pytest.approx(13)})


class Small(cl.Problem):
    """Two terms that compile quickly."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(a=cl.log(0.1, 1))
    conditions = (cl.Condition("end", lambda d, a: d.u - a, on=cl.boundary("x"), points=2, weight=3.0),)

    def residual(self, d, a):
        return d.u_x - a * d.u**2


DEVICES = """
import jax, sys
jax.config.update("jax_num_cpu_devices", 3)
jax.config.update("jax_enable_x64", True)
import numpy as np
import test_rows
print(len(jax.devices()), *test_rows.sums())
"""


def sums() -> list[float]:
    """Figures of a batch of 12 and 6 points in which all rows enter, whatever their order."""
    problem = Small()
    network, found = tiny(problem), Rows(problem, 50, jnp.float64)
    assert all(count % len(jax.devices()) == 0 for count in found.points.values()), found.points
    scales = found.unscaled()
    batch = found.uniform(jax.random.key(1), {"interior": 12, "end": 6}, scales, None)
    rows, jacobian = found.jacobian(network, batch)[:2]
    drawn = found.draw(network, jax.random.key(0), scales)
    assert {name: len(part.x) for name, part in drawn.items()} == found.points
    return [found.value(network, batch)[0], rows @ rows, *(jacobian.T @ rows), *np.sum(jacobian**2, axis=0)]


def test_devices_share_the_rows():
    command = [sys.executable, "-c", DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, cwd="tests", check=True)
    devices, *shared = map(float, done.stdout.split())
    assert len(jax.devices()) == 1 and devices == 3
    np.testing.assert_allclose(shared, sums(), rtol=1e-12)


def test_the_rows_of_a_batch_are_about_as_many_as_asked_for():
    """Counted in residuals: a term with two of them gets half the points."""
    for rows in (40, 200, 700):
        found = Rows(Mixed(), rows, jnp.float64)
        total = sum(count * len(TERMS[name]) for name, count in found.points.items())
        assert rows <= total < rows + 16 and min(found.points.values()) >= 1


def test_points_are_differentiated_in_equal_chunks_and_hardly_more_than_asked_for():
    found = Rows(Small(), 24, jnp.float64)
    chunk = rows_module._chunk
    assert [found.even(points) for points in (0.5, 256, 257, 717, 1024)] == [1, 256, 258, 717, 1024]
    assert all(found.even(points) % chunk(found.even(points)) == 0 for points in range(1, 1200, 7))
    assert [chunk(points) for points in (1, 256, 258, 717, 1024)] == [1, 256, 129, 239, 256]


def test_many_points_are_differentiated_in_chunks(monkeypatch):
    problem = Small()
    network, found = tiny(problem), Rows(problem, 24, jnp.float64)
    batch = found.uniform(jax.random.key(1), {"interior": 8, "end": 7}, found.unscaled(), None)
    whole = found.jacobian(network, batch)
    monkeypatch.setattr(rows_module, "CHUNK", 3)
    chunks = Rows(problem, 24, jnp.float64).jacobian(network, batch)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(chunks), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_task_losses_are_those_of_single_tasks():
    """The same points for every task."""
    problem = Small()
    network, found = tiny(problem), Rows(problem, 24, jnp.float64)
    scales = found.scales(network, jax.random.key(0))
    thetas = np.array([[0.2], [0.9], [0.2]])
    losses = found.task_losses(network, thetas, jax.random.key(3), scales)
    assert losses.shape == (3,) and losses[0] == losses[2] != losses[1]
    exact = []
    for theta in thetas[:2]:
        size = {name: scale.at(problem.parameters, theta[None])[0, 0] for name, scale in scales.items()}
        at = jnp.linspace(0, 1, 2001)[:, None]
        inside = jax.vmap(lambda x, theta=theta: cl.residuals(problem, network, x, jnp.asarray(theta)))(at)["residual"]
        ends = [cl.values(problem, network, x, jnp.asarray(theta))["u"] - theta[0] for x in jnp.array([[0.0], [1.0]])]
        inside, ends = np.mean(inside**2) / size["interior"] ** 2, np.mean(np.square(ends)) / size["end"] ** 2
        exact.append(inside + 3 * ends)
    np.testing.assert_allclose(losses[:2], exact, rtol=0.1)
    assert found.task_losses(network, thetas[:0], jax.random.key(3), scales).shape == (0,)


def test_task_losses_leave_out_data_which_has_thetas_of_its_own(mixed):
    theta = np.array([[0.1, 1.0]])
    losses = mixed.rows.task_losses(mixed.network, theta, jax.random.key(3), mixed.scales)
    points = dict.fromkeys(mixed.rows.points, mixed.rows.even(1024))
    batch = mixed.rows.uniform(jax.random.key(3), points, mixed.scales, Pool(theta, np.ones(1)))
    _, named = mixed.rows.value(mixed.network, batch)
    assert named["sensors_u"] > 0
    assert losses == pytest.approx([sum(part for name, part in named.items() if "sensors" not in name)])


# Drawing ----------------------------------------------------------------------------------------------------


def test_points_lie_where_their_term_holds(mixed):
    batches = [mixed.draw(seed) for seed in range(5)]
    batch = {name: jax.tree.map(lambda *parts: np.concatenate(parts), *(b[name] for b in batches)) for name in TERMS}
    box = mixed.problem.coordinates
    for name, part in batch.items():
        assert len(part.x) == len(part.theta) == len(part.scale) == 5 * mixed.rows.points[name]
        assert mixed.problem.parameters.outside(part.theta) == [] and box.outside(part.x[:, :2]) == []
    assert set(batch["walls"].x[:, 0]) == {0, 1} and set(batch["begin"].x[:, 1]) == {0}
    assert len(np.unique(batch["walls"].x[:, 1])) > 10 and len(np.unique(batch["interior"].theta[:, 0])) > 50
    measured = {(0.1, 0, 0.5, 1, 1, -4), (0.2, 1, 0.6, 2, 2, 5), (0.9, 2, 0.02, 1.5, 3, -6)}
    assert {tuple(row) for row in batch["sensors"].x} == measured


def test_a_batch_follows_its_key(mixed):
    first, again, other = mixed.draw(0), mixed.draw(0), mixed.draw(1)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, first, again)))
    for name in ("interior", "walls", "begin"):
        assert not np.array_equal(first[name].x, other[name].x)
        assert not np.array_equal(first[name].theta, other[name].theta)


THETAS = np.array([[0.01, 1.0], [0.1, 1.5], [1.0, 2.0]])


def test_thetas_of_a_pool_come_as_often_as_their_shares_say(mixed):
    shares = np.array([0.5, 1.0, 2.5])
    points = {"interior": 400, "walls": 100, "begin": 80, "sensors": 3}
    batch = mixed.rows.uniform(jax.random.key(4), points, mixed.scales, Pool(THETAS, shares))
    for name in ("interior", "walls", "begin"):
        counts = np.array([np.sum(np.all(batch[name].theta == row, axis=1)) for row in THETAS])
        assert counts.sum() == points[name]
        assert np.all(np.abs(counts - shares / 4 * points[name]) <= 1.5)
    adapted = mixed.draw(4, Pool(THETAS, shares))["interior"].theta
    assert all(np.any(np.all(adapted == row, axis=1)) for row in THETAS)
    assert {tuple(theta) for theta in adapted} <= {tuple(theta) for theta in THETAS}


def test_every_task_of_a_pool_sees_every_face(mixed):
    points = {"interior": 3, "walls": 150, "begin": 3, "sensors": 3}
    batch = mixed.rows.uniform(jax.random.key(4), points, mixed.scales, Pool(THETAS, np.ones(3)))["walls"]
    for theta in THETAS:
        assert 0.2 < np.mean(batch.x[np.all(batch.theta == theta, axis=1), 0]) < 0.8


class Peak(cl.Problem):
    """A residual of 1, and 100 where x is in the last tenth, whatever the network."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(a=(0, 1))

    def residual(self, d, x):
        return jnp.where(x > 0.9, 100.0, 1.0) + 0 * d.u


def test_rows_with_a_large_residual_are_taken_more_often():
    """Half of a batch follows the residual, half is uniform: of the last tenth 0.5 · 0.1 + 0.5 · 10 / 10.9."""
    problem = Peak()
    found = Rows(problem, 256, jnp.float64)
    network = tiny(problem)
    drawn = [found.draw(network, jax.random.key(seed), found.unscaled())["interior"].x[:, 0] for seed in range(10)]
    share = [np.mean(x > 0.9) for x in drawn]
    adapted = (1 - rows_module.UNIFORM_SHARE) * 10 / 10.9 + rows_module.UNIFORM_SHARE * 0.1
    assert abs(np.mean(share) - adapted) < 0.03


def test_rows_taken_often_count_less():
    """The expected sum of squares is the mean square over candidates, a tenth of which are denser at the edges."""
    peak = 0.9 * 0.1 + 0.1 * (2 / np.pi) * np.arcsin(np.sqrt(0.1))  # the share of the candidates where x > 0.9
    found, network = Rows(Peak(), 256, jnp.float64), tiny(Peak())
    drawn = (found.draw(network, jax.random.key(seed), found.unscaled()) for seed in range(40))
    values = [found.value(network, batch)[0] for batch in drawn]
    assert np.mean(values) == pytest.approx(1 - peak + peak * 100**2, rel=0.02) and np.std(values) < 0.1 * np.mean(
        values
    )


@pytest.mark.parametrize("weight", [1.0, 7.0])
def test_a_batch_of_constant_residuals_keeps_their_mean_square(weight):
    class Constant(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=(0, 1))
        conditions = (cl.Condition("end", lambda d: 0 * d.u - 3, on=cl.at(x=1), points=1, weight=weight),)

        def residual(self, d):
            return {"p": 0 * d.u + 2, "q": 0 * d.u - 5}

    problem = Constant()
    found = Rows(problem, 60, jnp.float64)
    batch = found.draw(tiny(problem), jax.random.key(0), found.unscaled())
    value, named = found.value(tiny(problem), batch)
    assert named == pytest.approx({"p": 4, "q": 25, "end": 9 * weight})
    assert value == pytest.approx(29 + 9 * weight)
    assert np.all(batch["end"].x == 1) and len(np.unique(batch["end"].theta)) > 5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_candidates_that_are_not_finite_do_not_stop_a_draw(bad):
    class Holes(Peak):
        def residual(self, d, x):
            return jnp.where(x > 0.9, bad, 1.0) + 0 * d.u

    found = Rows(Holes(), 64, jnp.float64)
    batch = found.draw(tiny(Holes()), jax.random.key(0), found.unscaled())["interior"]
    assert np.isfinite(batch.x).all() and np.isfinite(batch.scale).all()
    assert batch.x[:, 0].max() <= 0.9
    assert found.value(tiny(Holes()), {"interior": batch})[0] == pytest.approx(0.9, abs=0.1)  # what the others add


def test_a_residual_that_no_weight_moves_is_not_balanced():
    class Contradiction(Small):
        conditions = (cl.Condition("never", lambda d: 0 * d.u + 3, on=cl.at(x=0), points=2),)

    found = Rows(Contradiction(), 24, jnp.float64)
    network = tiny(Contradiction())
    linearised = found.jacobian(network, found.draw(network, jax.random.key(0), found.unscaled()))
    assert linearised.balance["never"] == [1.0] and linearised.named["never"] == pytest.approx(9)


# The common scale -------------------------------------------------------------------------------------------


class Amplitude(cl.Problem):
    """Solutions of very different size, over an amplitude on a log axis."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(A=cl.log(0.03, 30))
    conditions = (cl.Condition("zero", lambda d: d.u, on=cl.at(x=0), points=1),)

    def constrain(self, raw, x, A):
        return A * (1 + x + 0.1 * raw)

    def residual(self, d, A):
        return d.u_x - A


def sizes_by_theta(found: Rows, network, scales, thetas: np.ndarray, term: str) -> np.ndarray:
    """The root mean square of a term's rows at each theta."""
    sizes = []
    for theta in thetas:
        pool = Pool(np.atleast_2d(theta), np.ones(1))
        batch = found.uniform(jax.random.key(1), dict.fromkeys(found.points, 64), scales, pool)
        sizes.append(math.sqrt(found.value(network, {term: batch[term]})[0]))
    return np.array(sizes)


@pytest.mark.parametrize("term", ["interior", "zero"])
def test_residuals_are_comparable_over_theta(term):
    problem = Amplitude()
    network, found = tiny(problem), Rows(problem, 16, jnp.float64)
    thetas = np.array([[0.03], [0.3], [1.0], [3.0], [30.0]])
    plain = sizes_by_theta(found, network, found.unscaled(), thetas, term)
    scaled = sizes_by_theta(found, network, found.scales(network, jax.random.key(0)), thetas, term)
    assert plain.max() / plain.min() > 700
    assert scaled.max() / scaled.min() < 3 and 1e-3 < scaled.min() < scaled.max() < 10


def test_a_task_is_not_counted_as_smaller_than_a_bound():
    """So that one with hardly any solution does not rule all others."""

    class Vanishing(Amplitude):
        parameters = cl.Box(A=cl.log(1e-9, 1))

    problem = Vanishing()
    network, found = tiny(problem), Rows(problem, 16, jnp.float64)
    for scale in found.scales(network, jax.random.key(0)).values():
        size = scale.at(problem.parameters, np.array([[1e-9], [1.0]]))[:, 0]
        assert rows_module.SCALE_RANGE * 0.3 < size[0] / size[1] < 0.1


def test_a_condition_is_judged_by_the_size_inside():
    """u = 0 at the ends, where u is zero already, is judged by how large u is between them."""

    class Ends(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=(0, 1))
        conditions = (cl.Condition("ends", lambda d: d.u, on=cl.boundary("x"), points=2),)

        def constrain(self, raw, x):
            return 0 * raw + 40 * x * (1 - x)

        def residual(self, d):
            return d.u_xx + 80

    problem = Ends()
    network, found = tiny(problem), Rows(problem, 16, jnp.float64)
    size = found.scales(network, jax.random.key(0))["ends"].at(problem.parameters, np.array([[0.0], [0.5], [1.0]]))
    np.testing.assert_allclose(size, 40 / math.sqrt(30), rtol=0.2)


def test_an_output_that_vanishes_is_not_judged_by_ever_less():
    """Sizes that were 10 once count as 1e-5 at least, however small they become."""

    class Fading(Amplitude):
        def constrain(self, raw, A):
            return raw

    found, network = Rows(Fading(), 16, jnp.float64), tiny(Fading())
    small = jax.tree.map(lambda leaf: 1e-3 * leaf, network)
    before = {
        name: eqx.tree_at(lambda s: s.largest, scale, np.array([10.0])) for name, scale in found.unscaled().items()
    }
    free, held = (found.scales(small, jax.random.key(0), scales)["zero"] for scales in (None, before))
    theta = np.array([[1.0]])
    assert free.at(found.problem.parameters, theta) < 1e-6 < held.at(found.problem.parameters, theta)
    np.testing.assert_allclose(held.at(found.problem.parameters, theta), 10 * rows_module.SCALE_FLOOR)
    assert held.largest == [10]


def test_outputs_are_as_large_as_sources_ask():
    class Sources(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=(1, 2))
        outputs = ("u", "v", "w")
        conditions = (cl.Condition("end", lambda d: d.v - 4e3, on=cl.at(x=0), points=1),)

        def constrain(self, raw):
            return {"u": 0 * raw["u"] + 2, "v": 0 * raw["v"] - 5, "w": 0 * raw["w"] + 1}

        def residual(self, d, a):
            return {"first": d.u + 1e6, "second": d.v - d.w, "third": 3 * d.w - 27}

    found = Rows(Sources(), 16, jnp.float64)
    # u is 2 where 1e6 is asked for, v on its end 5 in place of 4e3, w 3 in place of 27; a tenth of each, at least 1.
    np.testing.assert_allclose(found.amplitudes(tiny(Sources()), jax.random.key(0)), [5e4, 80, 1])
    # 5 is not far more than 4e3, nor 1 than 27; v and w are in one equation without a source.
    assert not found.overshot(tiny(Sources()), jax.random.key(0)).any()


def test_terms_far_larger_than_every_source_are_noticed():
    class Overshot(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        outputs = ("u", "v")
        conditions = (cl.Condition("end", lambda d: d.v - 1e9, on=cl.at(x=0), points=1),)

        def constrain(self, raw):
            return {"u": 0 * raw["u"] + 20, "v": 0 * raw["v"] + 20}

        def residual(self, d):
            return {"first": jnp.exp(d.u) - 1e6, "second": jnp.exp(d.v) - 1e6}

    # exp(20) = 5e8 is far more than 1e6, but the end of v asks for more still.
    assert Rows(Overshot(), 16, jnp.float64).overshot(tiny(Overshot()), jax.random.key(0)).tolist() == [True, False]


@pytest.mark.parametrize("which", ["zero", "not finite inside", "infinite without u", "not finite anywhere"])
def test_scales_are_finite(which):
    class Odd(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=cl.log(0.1, 1))
        conditions = (cl.Condition("end", lambda d, x: d.u * jnp.sqrt(x - 0.5), on=cl.at(x=1), points=1),)

        def residual(self, d, x):
            if which == "infinite without u":
                return d.u_x - 1 / d.u
            return d.u_x * jnp.log(-x) if which == "not finite anywhere" else d.u_x

    problem = Odd()
    network, found = tiny(problem), Rows(problem, 16, jnp.float64)
    if which == "zero":
        network = jax.tree.map(jnp.zeros_like, network)
    scales = found.scales(network, jax.random.key(0))
    for scale in scales.values():
        size = scale.at(problem.parameters, np.array([[0.1], [0.3], [1.0]]))
        assert np.isfinite(size).all() and size.min() > 1e-12 and size.max() < 1e6
    batch = found.draw(network, jax.random.key(1), scales)
    assert all(np.isfinite(part.scale).all() for part in batch.values())


@pytest.mark.parametrize("count", [0, 6, 8])
def test_any_number_of_parameters(count):
    class Many(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(**{f"p{i}": (1, 2) for i in range(count)})
        conditions = (cl.Condition("end", lambda d: d.u - 1, on=cl.at(x=0), points=1),)

        def residual(self, d):
            return d.u_x + 100 * d.u

    problem = Many()
    network, found = tiny(problem), Rows(problem, 20, jnp.float64)
    scales = found.scales(network, jax.random.key(0))
    batch = found.draw(network, jax.random.key(1), scales)
    assert batch["interior"].theta.shape == (found.points["interior"], count)
    assert problem.parameters.outside(batch["interior"].theta) == []
    assert np.isfinite(found.value(network, batch)[0])
    size = scales["interior"].at(problem.parameters, problem.parameters.sample(50, jax.random.key(2)))
    assert size.shape == (50, 1) and 0.1 < size.min() <= size.max() < 1e3
    assert len(scales["interior"].coefficients) == 1 + count + count * (count + 1) // 2


class Chained(cl.Problem):
    """v' = 1e6 u: nothing but u says how large v is."""

    coordinates = cl.Box(x=(-1, 1))
    outputs = ("u", "v")
    conditions = (cl.Condition("start", lambda d: d.v, on=cl.at(x=-1), points=1),)

    def residual(self, d):
        return {"first": d.u_x + d.u, "second": d.v_x - 1e6 * d.u}


def test_an_output_is_made_as_large_as_its_equation_asks():
    problem = Chained()
    network, found = tiny(problem), Rows(problem, 20, jnp.float64)
    factors = found.amplitudes(network, jax.random.key(0))
    assert factors[0] == 1 and 1e4 < factors[1] < 1e7
    amplified = eqx.tree_at(lambda n: n.output.amplitude, network, network.output.amplitude * factors)
    np.testing.assert_allclose(found.amplitudes(amplified, jax.random.key(0)), 1, rtol=0.2)


# Causality --------------------------------------------------------------------------------------------------


class Timed(cl.Problem):
    coordinates = cl.Box(x=(0, 1), t=(0, 2))

    def residual(self, d):
        return d.u_t


def held(*regions) -> cl.Problem:
    problem = Timed()
    problem.conditions = tuple(cl.Condition(f"{i}", lambda d: d.u, on=on, points=8) for i, on in enumerate(regions))
    return problem


@pytest.mark.parametrize(
    "regions, flow",
    [
        ([], (1, 1.0)),
        ([cl.at(t=0)], (1, 1.0)),
        ([cl.at(t=0), cl.boundary("x")], (1, 1.0)),
        ([cl.at(t=2)], (1, -1.0)),
        ([cl.at(t=0), cl.at(t=2)], None),
        ([cl.boundary("x", "t")], None),
    ],
)
def test_time_runs_away_from_the_end_that_is_held(regions, flow):
    assert rows_module.flow(held(*regions)) == flow


@pytest.mark.parametrize(
    "constrain, flow",
    [
        (lambda self, raw, t: 1 + t * raw, (1, 1.0)),
        (lambda self, raw, x, t: jnp.sin(x) + 1e-9 * (2 - t) * raw, (1, -1.0)),
        (lambda self, raw, x, t: x + jnp.sin(jnp.pi * t) * raw, None),
        (lambda self, raw, x: x * raw, (1, 1.0)),
    ],
)
def test_time_runs_away_from_an_end_that_holds_exactly(constrain, flow):
    assert rows_module.flow(type("Hard", (Timed,), {"constrain": constrain})()) == flow


def test_time_does_not_run_from_a_moment_between():
    assert rows_module.flow(held(cl.at(t=1.0))) is None


def test_time_that_is_periodic_or_missing_does_not_run():
    assert rows_module.flow(Waves()) == (1, 1.0)
    problem = Timed()
    problem.coordinates = cl.Box(x=(0, 1), t=cl.periodic(0, 2))
    assert rows_module.flow(problem) is None and rows_module.flow(Chained()) is None


def test_causal_weights_fall_with_the_residuals_before():
    """w = 1 / (1 + 1e5 L), where L is the part of the mean square at earlier times."""
    times, squares = np.array([1.5, 0.5, 1.0]), np.array([[4e-5], [1e-5], [2e-5]])
    for region, expected in (
        (cl.at(t=0), {0.0: 1, 0.5: 1 / 2, 0.75: 1 / 3, 1.0: 1 / 4, 1.5: 1 / 8, 2.0: 1 / 8}),
        (cl.at(t=2), {2.0: 1, 1.5: 1 / 5, 1.0: 1 / 7, 0.5: 1 / 8, 0.0: 1 / 8}),
    ):
        found = Rows(held(region), 8, jnp.float64)
        batch = {"interior": Batch(np.stack([0 * times, times], axis=1), np.zeros((3, 0)), np.ones((3, 1)))}
        weights = found.causal(batch, {"interior": np.sqrt(squares)}, 1e5)
        asked = np.array([[0.3, time] for time in expected])
        np.testing.assert_allclose(weights(asked), list(expected.values()), rtol=1e-12)


def test_a_causal_batch_has_the_weighted_mean_square():
    """Over many draws the sum of squares is that of all candidates, each with its weight."""

    class Late(cl.Problem):
        coordinates = cl.Box(t=(0, 1))

        def residual(self, d, t):
            return 0 * d.u + jnp.where(t > 0.5, 0.01 * t, 0.0)

    problem = Late()
    network, found = tiny(problem), Rows(problem, 512, jnp.float64)
    scales, square = found.unscaled(), 7 / 24 * 1e-4
    for causality, expected in ((1e5, np.log1p(1e5 * square) / 1e5), (0, square)):  # dL / (1 + 1e5 L), or dL
        drawn = [found.draw(network, jax.random.key(seed), scales, causality=causality) for seed in range(20)]
        sums = [found.value(network, batch)[0] for batch in drawn]
        assert np.mean(sums) == pytest.approx(expected, rel=0.05)
        early = np.mean([np.mean(batch["interior"].x < 0.5) for batch in drawn])
        assert (early > 0.3) == (causality > 0)  # rows go where they count


def test_causal_weights_stand_residuals_that_are_not_finite():
    found = Rows(held(cl.at(t=0)), 8, jnp.float64)
    batch = {"interior": Batch(np.array([[0.0, 0.5], [0.0, 1.0], [0.0, 1.5]]), np.zeros((3, 0)), np.ones((3, 1)))}
    weights = found.causal(batch, {"interior": np.array([[np.inf], [np.nan], [1e300]])}, 1e5)
    np.testing.assert_allclose(weights(np.array([[0.0, 0.0], [0.0, 2.0]])), [1, 1 / (1 + 2e5)], rtol=1e-12)


def test_a_validation_residual_counts_at_most_as_its_terms():
    found = Rows(held(cl.at(t=0)), 8, jnp.float64)
    rows = {"interior": np.sqrt([[0.5 / 2], [100.0]]), "0": np.sqrt([[0.25 / 4]] * 4)}
    assert found.capped(rows) == pytest.approx((0.5 + 1) / 2 + 0.25)
    assert found.largest(rows) == pytest.approx(0.75)
    rows["interior"][0] = np.nan  # counts as the most
    assert found.capped(rows) == pytest.approx(1 + 0.25) and found.largest(rows) == 1
