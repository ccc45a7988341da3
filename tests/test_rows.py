"""Rows of a batch: values and Jacobian against plain computations, devices, chunks, losses of tasks."""

import subprocess
import sys
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from row_problems import TERMS, WEIGHTS, Mixed, Setup, Small, tiny

import clpinn as cl
from clpinn.training import rows as rows_module
from clpinn.training.batches import TaskMix, row_source
from clpinn.training.residuals import Terms
from clpinn.training.rows import Batch, Rows


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


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

    rows = {}
    for term in batch:
        part = jax.tree.map(jnp.asarray, batch[term])
        by_name = jax.vmap(lambda x, theta, term=term: residuals(term, x, theta))(part.x, part.theta)
        rows |= {name: by_name[name] * part.weight[:, i] for i, name in enumerate(TERMS[term])}
    return rows


def in_order(rows: dict[str, jax.Array]) -> np.ndarray:
    """All rows below each other: by term, then by point, then by name."""
    terms = [np.stack([np.asarray(rows[name]) for name in TERMS[term]], axis=1) for term in sorted(TERMS)]
    return np.concatenate([term.reshape(-1, *term.shape[2:]) for term in terms])


@pytest.mark.parametrize("points", (2, 63, 64, 65, 2048, 2049, 5000))
def test_residuals_of_batches_of_any_size(mixed, points):
    """More points than one call takes, chunks that are filled in part, and terms that a batch leaves out."""
    counts = dict.fromkeys(TERMS, points) | {"interior": 70}
    batch = mixed.source.batches.uniform(jax.random.key(3), counts, mixed.source.sizes.ones(), None)
    batch.pop("sensors")
    residuals = mixed.source.rows.residuals(mixed.network, batch)
    assert set(residuals) == set(batch) and len(residuals["interior"]) == 70
    for name, row in plain_rows(mixed.problem, mixed.network, batch).items():
        term = next(term for term in TERMS if name in TERMS[term])
        column = residuals[term][:, TERMS[term].index(name)]
        np.testing.assert_allclose(column, row, rtol=1e-11, atol=1e-14)


def test_values_and_the_jacobian_are_those_of_the_rows(mixed):
    batch = mixed.draw(0)
    flat, unflatten = ravel_pytree(mixed.network)

    def plain(flat: jax.Array) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        rows = plain_rows(mixed.problem, unflatten(flat), batch)
        return rows, rows

    slopes, expected = jax.jit(jax.jacfwd(plain, has_aux=True))(flat)
    rows, jacobian, by_name, balance = mixed.source.rows.linearised(mixed.network, batch)
    factors = {name: factor for term in TERMS for name, factor in zip(TERMS[term], balance[term], strict=True)}
    balanced = {name: factors[name] * row for name, row in expected.items()}
    np.testing.assert_allclose(rows, in_order(balanced), rtol=1e-11, atol=1e-14)
    balanced = {name: factors[name] * slope for name, slope in slopes.items()}
    np.testing.assert_allclose(jacobian, in_order(balanced), rtol=1e-10, atol=1e-12)
    # Balanced but for the weights of the terms.
    weights = {name: WEIGHTS.get(term, 1) for term, names in TERMS.items() for name in names}
    squares = [float(np.mean(np.sum(slope**2, axis=1))) / weights[name] for name, slope in balanced.items()]
    assert min(factors.values()) == 1 and squares == pytest.approx([squares[0]] * 7, rel=1e-10)
    value, named = mixed.source.rows.value(mixed.network, batch)
    squares = {name: float(np.sum(row**2)) for name, row in expected.items()}
    assert len(squares) == 7 and named == pytest.approx(squares, rel=1e-11)
    assert by_name == pytest.approx(squares, rel=1e-11)
    assert value == pytest.approx(sum(squares.values()), rel=1e-11)


def test_weights_and_sizes_of_a_batch_are_those_of_its_terms(mixed):
    """A point counts as its term's weight over the points of the term, divided by the size squared at its theta."""
    points = {"interior": 6, "walls": 4, "begin": 2, "sensors": 3}
    batch = mixed.source.batches.uniform(jax.random.key(1), points, mixed.sizes, None)
    weights = {"interior": 1, "walls": 3, "begin": 0.25, "sensors": 0.5}
    for name, part in batch.items():
        size = mixed.sizes[name].at(mixed.problem.parameters, part.theta)
        np.testing.assert_allclose(part.weight**2, weights[name] / points[name] / size**2, rtol=1e-12)
    plain = mixed.source.batches.uniform(jax.random.key(1), points, mixed.source.sizes.ones(), None)
    for name, part in plain.items():
        np.testing.assert_allclose(part.weight**2, weights[name] / points[name], rtol=1e-12)
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
    source = row_source(problem, 24, jnp.float64)
    plain = source.batches.uniform(jax.random.key(1), source.batches.points, source.sizes.ones(), None)
    values = source.rows.value(network, plain)[1]
    expected = {"z": 1e6, "a": 1e-6, "q": 2500, "b": 4, "sensors_v": 1e4, "sensors_u": 1e-4}
    assert values == pytest.approx(expected)
    scaled = source.batches.uniform(
        jax.random.key(1), source.batches.points, source.sizes.measure(network, jax.random.key(0)), None
    )
    assert source.rows.value(network, scaled)[1] == pytest.approx(dict.fromkeys(expected, 1.0))


def test_terms_may_share_a_name():
    class Same(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        conditions = (cl.Condition("end", lambda d: {"u": 0 * d.u + 3}, on=cl.at(x=1), points=1),)

        def residual(self, d):
            return {"u": 0 * d.u + 2}

    source = row_source(Same(), 20, jnp.float64)
    batch = source.batches.uniform(jax.random.key(0), source.batches.points, source.sizes.ones(), None)
    assert source.rows.value(tiny(Same()), batch) == (pytest.approx(13), {"u": pytest.approx(13)})


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
    network, source = tiny(problem), row_source(problem, 50, jnp.float64)
    assert all(count % len(jax.devices()) == 0 for count in source.batches.points.values()), source.batches.points
    sizes = source.sizes.ones()
    batch = source.batches.uniform(jax.random.key(1), {"interior": 12, "end": 6}, sizes, None)
    rows, jacobian = source.rows.linearised(network, batch)[:2]
    drawn = source.batches.draw(network, jax.random.key(0), sizes)
    assert {name: len(part.x) for name, part in drawn.items()} == source.batches.points
    return [source.rows.value(network, batch)[0], rows @ rows, *(jacobian.T @ rows), *np.sum(jacobian**2, axis=0)]


def test_devices_share_the_rows():
    command = [sys.executable, "-c", DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, cwd="tests", check=True)
    devices, *shared = map(float, done.stdout.split())
    assert len(jax.devices()) == 1 and devices == 3
    np.testing.assert_allclose(shared, sums(), rtol=1e-12)


def test_the_rows_of_a_batch_are_about_as_many_as_asked_for():
    """Counted in residuals: a term with two of them gets half the points."""
    for rows in (40, 200, 700):
        source = row_source(Mixed(), rows, jnp.float64)
        total = sum(count * len(TERMS[name]) for name, count in source.batches.points.items())
        assert rows <= total < rows + 16 and min(source.batches.points.values()) >= 1


def test_points_are_differentiated_in_equal_chunks_and_hardly_more_than_asked_for():
    source = row_source(Small(), 24, jnp.float64)
    chunk = rows_module._chunk
    assert [source.rows.even(points) for points in (0.5, 256, 257, 717, 1024)] == [1, 256, 258, 717, 1024]
    assert all(source.rows.even(points) % chunk(source.rows.even(points)) == 0 for points in range(1, 1200, 7))
    assert [chunk(points) for points in (1, 256, 258, 717, 1024)] == [1, 256, 129, 239, 256]


def test_many_points_are_differentiated_in_chunks(monkeypatch):
    problem = Small()
    network, source = tiny(problem), row_source(problem, 24, jnp.float64)
    batch = source.batches.uniform(jax.random.key(1), {"interior": 8, "end": 7}, source.sizes.ones(), None)
    whole = source.rows.linearised(network, batch)
    monkeypatch.setattr(rows_module, "CHUNK", 3)
    chunks = Rows(Terms(problem), jnp.float64).linearised(network, batch)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(chunks), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_task_losses_are_those_of_single_tasks():
    """The same points for every task."""
    problem = Small()
    network, source = tiny(problem), row_source(problem, 24, jnp.float64)
    sizes = source.sizes.measure(network, jax.random.key(0))
    thetas = np.array([[0.2], [0.9], [0.2]])
    losses = source.batches.task_losses(network, thetas, jax.random.key(3), sizes)
    assert losses.shape == (3,) and losses[0] == losses[2] != losses[1]
    exact = []
    for theta in thetas[:2]:
        size = {name: size_of_term.at(problem.parameters, theta[None])[0, 0] for name, size_of_term in sizes.items()}
        at = jnp.linspace(0, 1, 2001)[:, None]
        inside = jax.vmap(lambda x, theta=theta: cl.residuals(problem, network, x, jnp.asarray(theta)))(at)["residual"]
        ends = [cl.values(problem, network, x, jnp.asarray(theta))["u"] - theta[0] for x in jnp.array([[0.0], [1.0]])]
        inside, ends = np.mean(inside**2) / size["interior"] ** 2, np.mean(np.square(ends)) / size["end"] ** 2
        exact.append(inside + 3 * ends)
    np.testing.assert_allclose(losses[:2], exact, rtol=0.1)
    assert source.batches.task_losses(network, thetas[:0], jax.random.key(3), sizes).shape == (0,)


def test_task_losses_leave_out_data_which_has_thetas_of_its_own(mixed):
    theta = np.array([[0.1, 1.0]])
    losses = mixed.source.batches.task_losses(mixed.network, theta, jax.random.key(3), mixed.sizes)
    points = dict.fromkeys(mixed.source.batches.points, mixed.source.rows.even(1024))
    batch = mixed.source.batches.uniform(jax.random.key(3), points, mixed.sizes, TaskMix(theta, np.ones(1)))
    _, named = mixed.source.rows.value(mixed.network, batch)
    assert named["sensors_u"] > 0
    assert losses == pytest.approx([sum(part for name, part in named.items() if "sensors" not in name)])
