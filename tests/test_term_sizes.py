"""Sizes of the residuals' terms: by hand at a point, over theta, and what they ask of a network."""

import math
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_problems import Waves, tiny

import clpinn as cl
from clpinn.formulation.pointwise import residual_sizes
from clpinn.training import term_sizes
from clpinn.training.batches import RowSource, TaskMix, row_source


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


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
    sizes = residual_sizes(problem, None, None, *map(jnp.asarray, POINT))
    assert set(sizes) == {"residual"}
    np.testing.assert_allclose(sum(sizes["residual"].values()), expected, rtol=1e-12, atol=1e-12)


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
    for condition, by_name in expected:
        sizes = residual_sizes(problem, condition, None, *map(jnp.asarray, POINT))
        assert set(sizes) == set(by_name)
        for name, size in by_name.items():
            np.testing.assert_allclose(sum(sizes[name].values()), size, rtol=1e-12)


class Amplitude(cl.Problem):
    """Solutions of very different size, over an amplitude on a log axis."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(A=cl.log(0.03, 30))
    conditions = (cl.Condition("zero", lambda d: d.u, on=cl.at(x=0), points=1),)

    def constrain(self, raw, x, A):
        return A * (1 + x + 0.1 * raw)

    def residual(self, d, A):
        return d.u_x - A


def norms_by_theta(source: RowSource, network, sizes, thetas: np.ndarray, term: str) -> np.ndarray:
    """The root mean square of a term's rows at each theta."""
    norms = []
    for theta in thetas:
        points = dict.fromkeys(source.batches.points, 64)
        batch = source.batches.uniform(jax.random.key(1), points, sizes, TaskMix.single(theta))
        norms.append(math.sqrt(source.rows.value(network, {term: batch[term]})[0]))
    return np.array(norms)


@pytest.mark.parametrize("term", ["interior", "zero"])
def test_residuals_are_comparable_over_theta(term):
    problem = Amplitude()
    network, source = tiny(problem), row_source(problem, 16, jnp.float64)
    thetas = np.array([[0.03], [0.3], [1.0], [3.0], [30.0]])
    plain = norms_by_theta(source, network, source.sizes.ones(), thetas, term)
    scaled = norms_by_theta(source, network, source.sizes.measure(network, jax.random.key(0)), thetas, term)
    assert plain.max() / plain.min() > 700
    assert scaled.max() / scaled.min() < 3 and 1e-3 < scaled.min() < scaled.max() < 10


def test_a_task_is_not_counted_as_smaller_than_a_bound():
    """So that one with hardly any solution does not rule all others."""

    class Vanishing(Amplitude):
        parameters = cl.Box(A=cl.log(1e-9, 1))

    problem = Vanishing()
    network, source = tiny(problem), row_source(problem, 16, jnp.float64)
    for size_of_term in source.sizes.measure(network, jax.random.key(0)).values():
        size = size_of_term.at(problem.parameters, np.array([[1e-9], [1.0]]))[:, 0]
        assert term_sizes.THETA_RANGE * 0.3 < size[0] / size[1] < 0.1


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
    network, source = tiny(problem), row_source(problem, 16, jnp.float64)
    size = source.sizes.measure(network, jax.random.key(0))["ends"].at(
        problem.parameters, np.array([[0.0], [0.5], [1.0]])
    )
    np.testing.assert_allclose(size, 40 / math.sqrt(30), rtol=0.2)


def test_an_output_that_vanishes_is_not_judged_by_ever_less():
    """Sizes that were 10 once count as 1e-5 at least, however small they become."""

    class Fading(Amplitude):
        def constrain(self, raw, A):
            return raw

    source, network = row_source(Fading(), 16, jnp.float64), tiny(Fading())
    small = jax.tree.map(lambda leaf: 1e-3 * leaf, network)
    before = {
        name: eqx.tree_at(lambda s: s.largest, size, np.array([10.0])) for name, size in source.sizes.ones().items()
    }
    free, held = (source.sizes.measure(small, jax.random.key(0), sizes)["zero"] for sizes in (None, before))
    theta = np.array([[1.0]])
    assert (
        free.at(source.rows.terms.problem.parameters, theta)
        < 1e-6
        < held.at(source.rows.terms.problem.parameters, theta)
    )
    np.testing.assert_allclose(held.at(source.rows.terms.problem.parameters, theta), 10 * term_sizes.RUN_RANGE)
    assert held.largest == [10]


@pytest.mark.parametrize("which", ["zero", "not finite inside", "infinite without u", "not finite anywhere"])
def test_sizes_are_finite(which):
    class Odd(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=cl.log(0.1, 1))
        conditions = (cl.Condition("end", lambda d, x: d.u * jnp.sqrt(x - 0.5), on=cl.at(x=1), points=1),)

        def residual(self, d, x):
            if which == "infinite without u":
                return d.u_x - 1 / d.u
            return d.u_x * jnp.log(-x) if which == "not finite anywhere" else d.u_x

    problem = Odd()
    network, source = tiny(problem), row_source(problem, 16, jnp.float64)
    if which == "zero":
        network = jax.tree.map(jnp.zeros_like, network)
    sizes = source.sizes.measure(network, jax.random.key(0))
    for size_of_term in sizes.values():
        size = size_of_term.at(problem.parameters, np.array([[0.1], [0.3], [1.0]]))
        assert np.isfinite(size).all() and size.min() > 1e-12 and size.max() < 1e6
    batch = source.batches.draw(network, jax.random.key(1), sizes)
    assert all(np.isfinite(part.weight).all() for part in batch.values())


@pytest.mark.parametrize("count", [0, 6, 8])
def test_any_number_of_parameters(count):
    class Many(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(**{f"p{i}": (1, 2) for i in range(count)})
        conditions = (cl.Condition("end", lambda d: d.u - 1, on=cl.at(x=0), points=1),)

        def residual(self, d):
            return d.u_x + 100 * d.u

    problem = Many()
    network, source = tiny(problem), row_source(problem, 20, jnp.float64)
    sizes = source.sizes.measure(network, jax.random.key(0))
    batch = source.batches.draw(network, jax.random.key(1), sizes)
    assert batch["interior"].theta.shape == (source.batches.points["interior"], count)
    assert problem.parameters.outside(batch["interior"].theta) == []
    assert np.isfinite(source.rows.value(network, batch)[0])
    size = sizes["interior"].at(problem.parameters, problem.parameters.sample(50, jax.random.key(2)))
    assert size.shape == (50, 1) and 0.1 < size.min() <= size.max() < 1e3
    assert len(sizes["interior"].coefficients) == 1 + count + count * (count + 1) // 2
