"""The natural gradient against NumPy: one step, momentum, damping, failure."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from clpinn.errors import ClpinnError
from clpinn.training.optimizers.natural import Linearised, Natural, NaturalState

EXACT = 1e-13
"""A damping that changes nothing to speak of."""


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


class Fit:
    """Rows r(w) of flattened parameters; counts what is asked for."""

    def __init__(self, rows: Callable[[Any], Any], slopes: Callable[[Any], Any] | None = None):
        self.rows, self.slopes = jax.jit(rows), jax.jit(jax.jacrev(rows))
        if slopes is not None:
            self.rows, self.slopes = rows, slopes
        self.values = self.jacobians = 0

    def value(self, parameters: Any) -> float:
        self.values += 1
        return float(np.sum(np.asarray(self.rows(flat(parameters))) ** 2))

    def __call__(self, parameters: Any) -> Linearised:
        self.jacobians += 1
        w = flat(parameters)
        return Linearised(np.asarray(self.rows(w)), np.asarray(self.slopes(w)), self.value)


def linear(matrix: np.ndarray, right: np.ndarray) -> Fit:
    return Fit(lambda w: matrix @ w - right, lambda _: matrix)


def random_rows(rows: int, parameters: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(rows, parameters)), generator.normal(size=rows)


def start(size: int = 9) -> dict[str, Any]:
    flat = np.linspace(-0.5, 0.7, size)
    return {"a": jnp.asarray(flat[:4].reshape(2, 2)), "b": (jnp.asarray(flat[4:]), None)}


def flat(parameters: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(parameters)[0])


def finite(*trees: Any) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(trees))


# The step ---------------------------------------------------------------------------------------------------


def test_one_step_solves_a_batch_by_the_smallest_change():
    matrix, right = random_rows(5, 9)
    parameters, optimizer = start(), Natural(EXACT, 0.0, 0.0, first_damping=EXACT)
    moved, _, step = optimizer.step(linear(matrix, right), parameters, optimizer.init(parameters), 1.0)
    before = flat(parameters)
    smallest = np.linalg.lstsq(matrix, right - matrix @ before, rcond=None)[0]
    np.testing.assert_allclose(flat(moved), before + smallest, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(matrix @ flat(moved), right, atol=1e-9)
    assert jax.tree.structure(moved) == jax.tree.structure(parameters)
    assert step.length == 1 and not step.finished


def test_a_damped_step_is_that_of_tikhonov():
    """Also where there are more rows than parameters. The damping is relative to the kernel's mean diagonal."""
    for rows in (5, 30):
        matrix, right = random_rows(rows, 9)
        parameters, optimizer = start(), Natural(0.01, 0.0, 0.0, first_damping=0.3)
        moved, _, _ = optimizer.step(linear(matrix, right), parameters, optimizer.init(parameters), 1.0)
        damping = 0.3 * np.sum(matrix**2) / rows
        slope = matrix.T @ (right - matrix @ flat(parameters))
        change = np.linalg.solve(matrix.T @ matrix + damping * np.eye(9), slope)
        np.testing.assert_allclose(flat(moved) - flat(parameters), change, rtol=1e-10)


def test_rows_are_damped_by_their_squared_residual_too():
    """The step is that of weighted least squares; its mean weight is relative to the kernel's mean diagonal."""
    matrix, right = random_rows(30, 9)
    parameters, optimizer = start(), Natural(0.01, 0.0, 0.5, first_damping=0.02)
    moved, _, _ = optimizer.step(linear(matrix, right), parameters, optimizer.init(parameters), 1.0)
    rows = right - matrix @ flat(parameters)
    variance = (0.02 + 0.5 * rows**2 / np.mean(rows**2)) * np.sum(matrix**2) / 30
    weighted = matrix.T / variance
    change = np.linalg.solve(weighted @ matrix + np.eye(9), weighted @ rows)
    np.testing.assert_allclose(flat(moved) - flat(parameters), change, rtol=1e-10)


def test_a_step_tells_what_it_met():
    matrix, right = random_rows(5, 9)
    parameters, optimizer, objective = start(), Natural(0.01, 0.5), linear(matrix, right)
    _, _, step = optimizer.step(objective, parameters, optimizer.init(parameters), 1.0)
    rows = matrix @ flat(parameters) - right
    np.testing.assert_allclose(float(step.value), rows @ rows, rtol=1e-12)
    np.testing.assert_allclose(float(step.gradient_norm), 2 * np.linalg.norm(matrix.T @ rows), rtol=1e-12)
    assert objective.jacobians == 1 and 1 <= objective.values <= optimizer.halvings


def test_no_step_is_longer_than_allowed():
    matrix, right = random_rows(5, 9)
    parameters, optimizer = start(), Natural(EXACT, 0.0, 0.0, first_damping=EXACT)
    state = optimizer.init(parameters)
    full, _, _ = optimizer.step(linear(matrix, right), parameters, state, 1.0)
    part, _, step = optimizer.step(linear(matrix, right), parameters, state, 0.25)
    assert step.length == 0.25
    np.testing.assert_allclose(flat(part) - flat(parameters), 0.25 * (flat(full) - flat(parameters)), rtol=1e-10)


def test_momentum_is_that_of_spring():
    """φ ← μφ + Jᵀ(JJᵀ + λI)⁻¹(r - μJφ), over several batches; the move is φ, lengthened while it builds up."""
    momentum, damping = 0.6, 0.02
    optimizer = Natural(damping, momentum, 0.0, first_damping=damping)
    parameters = start()
    state, phi, w = optimizer.init(parameters), np.zeros(9), flat(parameters)
    for count in range(1, 4):
        matrix, right = random_rows(3, 9, seed=count)
        rows = matrix @ w - right
        kernel = matrix @ matrix.T
        kernel += float(state.damping) * np.mean(np.diag(kernel)) * np.eye(3)
        phi = momentum * phi + matrix.T @ np.linalg.solve(kernel, rows - momentum * matrix @ phi)
        parameters, state, step = optimizer.step(linear(matrix, right), parameters, state, 1.0)
        w = w - step.length / np.sqrt(1 - momentum ** (2 * count)) * phi
        assert step.length > 0 and int(state.count) == count
        np.testing.assert_allclose(state.momentum, phi, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(flat(parameters), w, rtol=1e-9, atol=1e-12)


# The length of a step and the damping -----------------------------------------------------------------------


def test_damping_falls_after_full_steps_to_its_least():
    optimizer, parameters = Natural(0.01, 0.0, first_damping=0.05), start()
    state, seen = optimizer.init(parameters), []
    for seed in range(5):
        parameters, state, step = optimizer.step(linear(*random_rows(3, 9, seed)), parameters, state, 1.0)
        assert step.length == 1
        seen.append(float(state.damping))
    np.testing.assert_allclose(seen, [0.025, 0.0125, 0.01, 0.01, 0.01])


def test_damping_rises_where_only_short_steps_help():
    """Where arctan is almost level, a full step goes far beyond its zero."""
    objective = Fit(jnp.arctan)
    optimizer = Natural(1e-3, 0.0, first_damping=1e-3)
    parameters = jnp.full(3, 8.0)
    moved, state, step = optimizer.step(objective, parameters, optimizer.init(parameters), 1.0)
    assert 0 < step.length <= 0.25 and float(state.damping) > 1e-3
    assert objective.value(moved) < float(step.value)


def test_damping_stays_within_bounds():
    """However long the steps only shorten, or fail."""
    optimizer = Natural(1e-3, 0.5, first_damping=0.3)
    parameters = jnp.full(3, 8.0)
    for objective in (Fit(jnp.arctan), Worse()):
        state = optimizer.init(parameters)
        for _ in range(6):
            _, state, _ = optimizer.step(objective, parameters, state, 1.0)
            assert 1e-3 <= float(state.damping) <= 1
        assert float(state.damping) == 1


class Worse(Fit):
    """Rows that are larger wherever one goes."""

    def __init__(self):
        super().__init__(lambda w: w, lambda w: np.eye(len(w)))

    def value(self, parameters: Any) -> float:
        return 1e9


def test_where_nothing_is_better_only_momentum_is_dropped():
    matrix, right = random_rows(3, 9)
    optimizer = Natural(1e-3, 0.9, first_damping=0.02)
    parameters, state, _ = optimizer.step(linear(matrix, right), start(), optimizer.init(start()), 1.0)
    assert np.any(state.momentum != 0) and int(state.count) == 1
    moved, after, step = optimizer.step(Worse(), parameters, state, 1.0)
    assert np.array_equal(flat(moved), flat(parameters)) and step.length == 0 and not step.finished
    assert np.all(after.momentum == 0) and int(after.count) == 0
    assert float(after.damping) > float(state.damping)


def test_a_trial_that_is_not_finite_is_passed_over():
    """ln of what is negative beyond half a step: the step is halved until there is a value."""
    objective = Fit(jnp.log)
    optimizer, parameters = Natural(1e-9, 0.0, first_damping=1e-9), jnp.full(2, 6.0)
    moved, _, step = optimizer.step(objective, parameters, optimizer.init(parameters), 1.0)
    assert 0 < step.length < 1 and np.all(flat(moved) > 0)
    assert objective.value(moved) < float(step.value)


# What could break it ----------------------------------------------------------------------------------------


def broken_rows(kind: str) -> tuple[np.ndarray, np.ndarray]:
    matrix, right = random_rows(6, 9)
    if kind == "duplicates":
        matrix, right = np.repeat(matrix[:2], 3, axis=0), np.repeat(right[:2], 3)
    elif kind == "contradiction":
        matrix = np.repeat(matrix[:2], 3, axis=0)
    elif kind == "rank one":
        matrix = np.outer(right, matrix[0])
    elif kind == "zero row":
        matrix[2] = 0
    elif kind == "zero Jacobian":
        matrix = 0 * matrix
    elif kind == "zero residual":
        right = matrix @ flat(start())
    elif kind == "huge and tiny rows":
        matrix, right = matrix * np.logspace(-9, 9, 6)[:, None], right * np.logspace(-9, 9, 6)
    elif kind == "more rows than parameters":
        matrix, right = random_rows(40, 9)
    return matrix, right


KINDS = ["duplicates", "contradiction", "rank one", "zero row", "zero Jacobian", "zero residual"]
KINDS += ["huge and tiny rows", "more rows than parameters"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("damping", "noise"), [(1e-300, 0.0), (1e-8, 0.0), (0.1, 1e-6)])
def test_a_degenerate_batch_does_no_harm(kind: str, damping: float, noise: float):
    matrix, right = broken_rows(kind)
    objective, optimizer = linear(matrix, right), Natural(min(damping, 1e-8), 0.8, noise, first_damping=damping)
    parameters = start()
    state, first = optimizer.init(parameters), objective.value(parameters)
    for _ in range(4):
        parameters, state, step = optimizer.step(objective, parameters, state, 1.0)
        assert finite(parameters, state) and np.isfinite(step.value)
        assert objective.value(parameters) <= (1 + 1e-12) * float(step.value)
    best = np.linalg.norm(matrix @ np.linalg.lstsq(matrix, right, rcond=None)[0] - right) ** 2
    if kind in ("zero Jacobian", "zero residual"):
        assert objective.value(parameters) == pytest.approx(first, abs=1e-20)
        np.testing.assert_allclose(flat(parameters), flat(start()), atol=1e-6)
    elif kind != "huge and tiny rows":
        least = 0.01 if damping >= 1e-8 else 0.5  # without damping a gradient step takes the place of a solution
        assert objective.value(parameters) - best < least * (first - best)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["rows", "jacobian"])
def test_rows_that_are_not_finite_change_nothing(bad: float, where: str):
    matrix, right = random_rows(4, 9)
    good, optimizer, parameters = linear(matrix, right), Natural(1e-3, 0.7, first_damping=0.1), start()
    parameters, state, _ = optimizer.step(good, parameters, optimizer.init(parameters), 1.0)

    class Bad(Fit):
        def __call__(self, parameters: Any) -> Linearised:
            rows, jacobian, value = good(parameters)
            rows, jacobian = np.array(rows), np.array(jacobian)
            if where == "rows":
                rows[2] = bad
            else:
                jacobian[1, 3] = bad
            return Linearised(rows, jacobian, value)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        moved, after, step = optimizer.step(Bad(good.rows, good.slopes), parameters, state, 1.0)
    assert np.array_equal(flat(moved), flat(parameters))
    assert isinstance(after, NaturalState) and all(np.array_equal(a, b) for a, b in zip(after, state, strict=True))
    assert not (np.isfinite(float(step.value)) and np.isfinite(float(step.gradient_norm))) and not step.finished
    # The run can go on from there.
    moved, _, step = optimizer.step(good, moved, after, 1.0)
    assert np.isfinite(float(step.value)) and good.value(moved) < float(step.value)


@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.0},
        {"damping": -1.0},
        {"damping": np.nan},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"momentum": np.nan},
    ],
)
def test_senseless_options(options: dict[str, float]):
    with pytest.raises(ClpinnError, match="but got"):
        Natural(**options)


# A nonlinear fit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_nonlinear_fit_converges(momentum: float):
    """A sum of two exponentials, all 16 points in each batch: far below what a gradient step would reach."""
    t = jnp.linspace(0, 2, 16)
    data = 2 * jnp.exp(-t) + 0.5 * jnp.exp(-4 * t)
    objective = Fit(lambda w: w[0] * jnp.exp(-w[1] * t) + w[2] * jnp.exp(-w[3] * t) - data)
    optimizer, parameters = Natural(1e-10, momentum, first_damping=0.1), jnp.array([1.0, 0.5, 1.0, 3.0])
    state, first = optimizer.init(parameters), objective.value(parameters)
    for _ in range(60):
        parameters, state, _ = optimizer.step(objective, parameters, state, 1.0)
    assert objective.value(parameters) < 1e-12 * first
    np.testing.assert_allclose(parameters, [2.0, 1.0, 0.5, 4.0], rtol=1e-3)


def test_steps_are_deterministic():
    def steps() -> tuple[np.ndarray, NaturalState]:
        optimizer, parameters = Natural(1e-6, 0.9, first_damping=0.1), start()
        state = optimizer.init(parameters)
        for seed in range(5):
            parameters, state, _ = optimizer.step(linear(*random_rows(4, 9, seed)), parameters, state, 0.5)
        return flat(parameters), state

    (first, first_state), (second, second_state) = steps(), steps()
    assert first.tobytes() == second.tobytes() and first_state.momentum.tobytes() == second_state.momentum.tobytes()
