"""Batches: where points are drawn, how often, and with which weight."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_problems import TERMS, Setup, Small, tiny

import clpinn as cl
from clpinn.training import batches
from clpinn.training.batches import TaskMix, row_source


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def mixed() -> Setup:
    with jax.enable_x64(True):
        return Setup()


def test_points_lie_where_their_term_holds(mixed):
    batches = [mixed.draw(seed) for seed in range(5)]
    batch = {name: jax.tree.map(lambda *parts: np.concatenate(parts), *(b[name] for b in batches)) for name in TERMS}
    box = mixed.problem.coordinates
    for name, part in batch.items():
        assert len(part.x) == len(part.theta) == len(part.weight) == 5 * mixed.source.batches.points[name]
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
    batch = mixed.source.batches.uniform(jax.random.key(4), points, mixed.sizes, TaskMix(THETAS, shares))
    for name in ("interior", "walls", "begin"):
        counts = np.array([np.sum(np.all(batch[name].theta == row, axis=1)) for row in THETAS])
        assert counts.sum() == points[name]
        assert np.all(np.abs(counts - shares / 4 * points[name]) <= 1.5)
    adapted = mixed.draw(4, TaskMix(THETAS, shares))["interior"].theta
    assert all(np.any(np.all(adapted == row, axis=1)) for row in THETAS)
    assert {tuple(theta) for theta in adapted} <= {tuple(theta) for theta in THETAS}


def test_every_task_of_a_pool_sees_every_face(mixed):
    points = {"interior": 3, "walls": 150, "begin": 3, "sensors": 3}
    batch = mixed.source.batches.uniform(jax.random.key(4), points, mixed.sizes, TaskMix(THETAS, np.ones(3)))["walls"]
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
    source = row_source(problem, 256, jnp.float64)
    network = tiny(problem)
    drawn = [
        source.batches.draw(network, jax.random.key(seed), source.sizes.ones())["interior"].x[:, 0]
        for seed in range(10)
    ]
    share = [np.mean(x > 0.9) for x in drawn]
    adapted = (1 - batches.UNIFORM_SHARE) * 10 / 10.9 + batches.UNIFORM_SHARE * 0.1
    assert abs(np.mean(share) - adapted) < 0.03


def test_rows_taken_often_count_less():
    """The expected sum of squares is the mean square over candidates, a tenth of which are denser at the edges."""
    peak = 0.9 * 0.1 + 0.1 * (2 / np.pi) * np.arcsin(np.sqrt(0.1))  # the share of the candidates where x > 0.9
    source, network = row_source(Peak(), 256, jnp.float64), tiny(Peak())
    drawn = (source.batches.draw(network, jax.random.key(seed), source.sizes.ones()) for seed in range(40))
    values = [source.rows.value(network, batch)[0] for batch in drawn]
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
    source = row_source(problem, 60, jnp.float64)
    batch = source.batches.draw(tiny(problem), jax.random.key(0), source.sizes.ones())
    value, named = source.rows.value(tiny(problem), batch)
    assert named == pytest.approx({"p": 4, "q": 25, "end": 9 * weight})
    assert value == pytest.approx(29 + 9 * weight)
    assert np.all(batch["end"].x == 1) and len(np.unique(batch["end"].theta)) > 5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_candidates_that_are_not_finite_do_not_stop_a_draw(bad):
    class Holes(Peak):
        def residual(self, d, x):
            return jnp.where(x > 0.9, bad, 1.0) + 0 * d.u

    source = row_source(Holes(), 64, jnp.float64)
    batch = source.batches.draw(tiny(Holes()), jax.random.key(0), source.sizes.ones())["interior"]
    assert np.isfinite(batch.x).all() and np.isfinite(batch.weight).all()
    assert batch.x[:, 0].max() <= 0.9
    assert source.rows.value(tiny(Holes()), {"interior": batch})[0] == pytest.approx(
        0.9, abs=0.1
    )  # what the others add


def test_a_residual_that_no_weight_moves_is_not_balanced():
    class Contradiction(Small):
        conditions = (cl.Condition("never", lambda d: 0 * d.u + 3, on=cl.at(x=0), points=2),)

    source = row_source(Contradiction(), 24, jnp.float64)
    network = tiny(Contradiction())
    linearised = source.rows.linearised(network, source.batches.draw(network, jax.random.key(0), source.sizes.ones()))
    assert linearised.balance["never"] == [1.0] and linearised.squares["never"] == pytest.approx(9)
