"""One contract for every optimiser, then what each promises for itself."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from clpinn.errors import ClpinnError
from clpinn.training.checkpoint import load, save
from clpinn.training.optimizers import Objective, Optimizer, adam, lbfgs
from clpinn.training.optimizers.adam import Adam
from clpinn.training.optimizers.lbfgs import LBFGS
from clpinn.training.optimizers.natural import Linearised, Natural

OPTIMIZERS = [Adam(learning_rate=1e-2), LBFGS(history=10), LBFGS(history=10, line_search=True), Natural(momentum=0.5)]
DTYPES = ["float32", "float64"]


@pytest.fixture(params=OPTIMIZERS, ids=["adam", "lbfgs", "lbfgs-line-search", "natural"])
def optimizer(request: pytest.FixtureRequest) -> Optimizer:
    return request.param


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def quadratic(parameters: Any) -> jax.Array:
    """Rows whose sum of squares is convex, of condition number 25, with the least value 0 at a = 1, b = -2."""
    factors = jnp.array([1.0, 2.0, 5.0], parameters["a"].dtype)
    return jnp.concatenate([factors * (parameters["a"] - 1), parameters["b"][0].ravel() + 2])


def rosenbrock(parameters: Any) -> jax.Array:
    """Rows whose sum of squares is a curved valley, gentler than Rosenbrock's, with the least value 0 at one."""
    x = jnp.concatenate([parameters["a"], parameters["b"][0].ravel()])
    return jnp.concatenate([1 - x, math.sqrt(2) * (x[1:] - x[:-1] ** 2)])


def start(dtype: str) -> dict[str, Any]:
    return {"a": jnp.array([-0.5, 0.4, 0.3], dtype), "b": (jnp.array([[0.2, -0.1]], dtype), None)}


def total(rows: jax.Array) -> jax.Array:
    """The sum of squares of rows; a single value is one already."""
    return rows if rows.ndim == 0 else jnp.sum(rows**2)


class Counted:
    """An objective that counts its calls. On the host, so that a traced call would count once only."""

    def __init__(self, rows: Callable[[Any], jax.Array]):
        self.function = jax.jit(jax.value_and_grad(lambda parameters: total(rows(parameters))))
        self.calls = 0

    def __call__(self, parameters: Any) -> Any:
        self.calls += 1
        return self.function(parameters)

    def broken(self, where: str, bad: float) -> Callable[[Any], Any]:
        """The same with a value, or a derivative, that is not finite."""

        def broken(parameters: Any) -> tuple[jax.Array, Any]:
            value, gradient = self(parameters)
            if where == "value":
                return jnp.full_like(value, bad), gradient
            return value, {**gradient, "a": gradient["a"].at[1].set(bad)}

        return broken


class CountedRows(Counted):
    """The same for an optimiser that works on rows."""

    def __init__(self, rows: Callable[[Any], jax.Array]):
        super().__init__(rows)
        self.rows = rows

    def __call__(self, parameters: Any) -> Linearised:
        self.calls += 1
        flat, unflatten = ravel_pytree(parameters)
        jacobian = jax.jacfwd(lambda flat: self.rows(unflatten(flat)))(flat)
        return Linearised(
            np.asarray(self.rows(parameters), float),
            np.asarray(jacobian, float),
            lambda moved: float(self.function(moved)[0]),
        )

    def broken(self, where: str, bad: float) -> Callable[[Any], Any]:
        def broken(parameters: Any) -> Linearised:
            rows, jacobian, value = self(parameters)
            rows, jacobian = np.array(rows), np.array(jacobian)
            (rows if where == "value" else jacobian[0])[1] = bad
            return Linearised(rows, jacobian, value)

        return broken


def objective_of(optimizer: Any, rows: Callable[[Any], jax.Array]) -> Counted:
    return (CountedRows if isinstance(optimizer, Natural) else Counted)(rows)


def run(optimizer: Optimizer, objective: Objective, parameters: Any, steps: int) -> tuple[Any, Any, Any]:
    """Parameters and state after at most that many steps, and the list of them."""
    state, taken = optimizer.init(parameters), []
    for _ in range(steps):
        parameters, state, step = optimizer.step(objective, parameters, state)
        taken.append(step)
        if step.finished:
            break
    return parameters, state, taken


def same(a: Any, b: Any) -> bool:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    pairs = zip(map(np.asarray, jax.tree.leaves(a)), map(np.asarray, jax.tree.leaves(b)), strict=True)
    return all((x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()) for x, y in pairs)


# The contract -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [quadratic, rosenbrock])
def test_objective_decreases(optimizer: Optimizer, function: Callable[[Any], jax.Array], dtype: str):
    parameters, _, steps = run(optimizer, objective_of(optimizer, function), start(dtype), 200)
    factor = 0.5 if isinstance(optimizer, Adam) else 1e-8
    assert float(jnp.sum(function(parameters) ** 2)) < factor * float(steps[0].value)


def test_structure_and_dtype_are_kept(optimizer: Optimizer, dtype: str):
    parameters = start(dtype)
    state = optimizer.init(parameters)
    moved, new_state, _ = optimizer.step(objective_of(optimizer, quadratic), parameters, state)
    for before, after in ((parameters, moved), (state, new_state)):
        assert jax.tree.structure(before) == jax.tree.structure(after)
        for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            host = isinstance(x, np.ndarray | np.generic)  # natural's state is on the host
            assert isinstance(y, np.ndarray | np.generic if host else jax.Array)
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert getattr(x, "weak_type", None) == getattr(y, "weak_type", None)


def test_step_tells_the_value_before_it(optimizer: Optimizer, dtype: str):
    parameters, objective = start(dtype), objective_of(optimizer, rosenbrock)
    state = optimizer.init(parameters)
    for _ in range(5):
        calls = objective.calls
        value, gradient = objective.function(parameters)
        parameters, state, step = optimizer.step(objective, parameters, state)
        assert step.evaluations == objective.calls - calls
        np.testing.assert_allclose(step.value, value, rtol=1e-6)
        norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)))
        np.testing.assert_allclose(step.gradient_norm, norm, rtol=1e-5)
        assert not step.finished and step.reason == ""


def test_deterministic(optimizer: Optimizer, dtype: str):
    first, second = (run(optimizer, objective_of(optimizer, rosenbrock), start(dtype), 30)[:2] for _ in range(2))
    assert same(first, second)


def test_a_run_continues_from_a_checkpoint_bit_for_bit(optimizer: Optimizer, dtype: str, tmp_path: Path):
    objective, parameters = objective_of(optimizer, rosenbrock), start(dtype)
    state = optimizer.init(parameters)
    for count in range(25):
        if count == 15:  # the history of 10 has wrapped
            save(tmp_path, count, (parameters, state), {})
        parameters, state, _ = optimizer.step(objective, parameters, state)

    loaded = load(tmp_path, like=(start(dtype), optimizer.init(start(dtype))))
    assert loaded is not None
    resumed = loaded.tree
    for _ in range(25 - loaded.step):
        resumed = optimizer.step(objective, *resumed)[:2]
    assert same(resumed, (parameters, state))


def test_nothing_recompiles(optimizer: Optimizer, dtype: str):
    jitted: list[Any] = [adam._update, lbfgs.unit_step, lbfgs._direction]
    jitted += [lbfgs._along, lbfgs._slope, lbfgs._arrive]
    objective, parameters = objective_of(optimizer, rosenbrock), start(dtype)
    state, compiled = optimizer.init(parameters), []
    for _ in range(15):
        parameters, state, _ = optimizer.step(objective, parameters, state)
        compiled.append(sum(function._cache_size() for function in jitted))
    assert compiled[1] == compiled[-1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["value", "gradient"])
@pytest.mark.parametrize("after", [0, 3])
def test_a_value_that_is_not_finite_changes_nothing(
    optimizer: Optimizer, dtype: str, bad: float, where: str, after: int
):
    objective = objective_of(optimizer, rosenbrock)
    parameters, state, _ = run(optimizer, objective, start(dtype), after)
    if isinstance(optimizer, LBFGS) and optimizer.line_search:
        # Its value here is known from the search before, so that only a first step can meet a bad one.
        state = state._replace(value_here=jnp.full_like(state.value_here, jnp.nan))

    moved, new_state, step = optimizer.step(objective.broken(where, bad), parameters, state)
    assert same(moved, parameters) and same(new_state, state)
    assert not (np.isfinite(step.value) and np.isfinite(step.gradient_norm))
    assert not step.finished

    # The run can go on from there.
    moved, _, step = optimizer.step(objective, moved, new_state)
    assert np.isfinite(step.value) and not same(moved, parameters)


def test_configuration_is_a_value(optimizer: Optimizer):
    assert optimizer in OPTIMIZERS and hash(optimizer) == hash(optimizer)
    with pytest.raises(AttributeError):
        setattr(optimizer, next(iter(vars(optimizer))), 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Adam(learning_rate=0.0),
        lambda: Adam(learning_rate=float("nan")),
        lambda: LBFGS(history=0),
        lambda: LBFGS(gradient_tolerance=-1.0),
        lambda: Natural(damping=0.0),
    ],
)
def test_senseless_configuration(make: Callable[[], Optimizer]):
    with pytest.raises(ClpinnError, match="but got"):
        make()


# L-BFGS without line search ---------------------------------------------------------------------------------


def torch_lbfgs(
    gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray, steps: int, history: int
) -> list[np.ndarray]:
    """The iterates of torch.optim.LBFGS(lr=1, tolerance_change=0, line_search_fn=None), from its source."""
    iterates, old_y, old_s, ro = [], [], [], []
    g = gradient(x)
    d, t, h_diag, previous_g = np.zeros_like(x), 0.0, 1.0, g
    for n in range(1, steps + 1):
        if n == 1:
            d = -g
        else:
            y, s = g - previous_g, d * t
            ys = y.dot(s)
            if ys > 1e-10:
                if len(old_y) == history:
                    del old_y[0], old_s[0], ro[0]
                old_y.append(y)
                old_s.append(s)
                ro.append(1.0 / ys)
                h_diag = ys / y.dot(y)
            q, al = -g, [0.0] * len(old_y)
            for i in range(len(old_y) - 1, -1, -1):
                al[i] = old_s[i].dot(q) * ro[i]
                q = q - al[i] * old_y[i]
            d = q * h_diag
            for i in range(len(old_y)):
                d = d + old_s[i] * (al[i] - old_y[i].dot(d) * ro[i])
        previous_g = g
        t = min(1.0, 1.0 / np.abs(g).sum()) if n == 1 else 1.0
        if g.dot(d) > 0:
            break
        x = x + t * d
        iterates.append(x)
        g = gradient(x)
    return iterates


def bumpy(x: Any) -> Any:
    """Not quadratic, and of negative curvature here and there, so that pairs are refused."""
    scales = jnp.linspace(0.3, 2.0, x.size)
    return 0.5 * jnp.sum(scales * (x - 1) ** 2) + 0.5 * jnp.sum(jnp.sin(2 * x[1:]) * jnp.cos(x[:-1]))


@pytest.mark.parametrize("history", [3, 100])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_matches_torch(history: int, seed: int):
    with jax.enable_x64(True):
        optimizer, objective = LBFGS(history=history, gradient_tolerance=0.0), Counted(bumpy)
        x = np.random.default_rng(seed).normal(size=8) * 1.5
        expected = torch_lbfgs(lambda x: np.asarray(objective.function(x)[1]), x, 30, history)
        assert len(expected) == 30
        parameters = jnp.asarray(x)
        state = optimizer.init(parameters)
        for count, iterate in enumerate(expected):
            parameters, state, step = optimizer.step(objective, parameters, state)
            assert step.evaluations == 1 and objective.calls == count + 1
            np.testing.assert_allclose(parameters, iterate, rtol=1e-10, atol=1e-11)
        assert history < int(state.pairs) < 29 or history == 100


def test_pairs_of_negative_curvature_are_refused():
    with jax.enable_x64(True):
        parameters = jnp.array([0.1, 0.2])
        _, state, _ = run(LBFGS(history=5), Counted(lambda x: jnp.sum(jnp.cos(x))), parameters, 2)
        assert int(state.pairs) == 0 and float(state.scale) == 1


def test_first_step_has_length_one_in_the_one_norm(dtype: str):
    parameters = jnp.full((4,), 100.0, dtype)
    moved, _, _ = run(LBFGS(), Counted(lambda x: jnp.sum(x**2)), parameters, 1)
    np.testing.assert_allclose(jnp.sum(jnp.abs(moved - parameters)), 1, rtol=1e-4)


@pytest.mark.parametrize("line_search", [False, True])
def test_stops_below_the_gradient_tolerance(line_search: bool):
    with jax.enable_x64(True):
        optimizer = LBFGS(history=10, gradient_tolerance=1e-4, line_search=line_search)
        objective = Counted(quadratic)
        parameters, state, steps = run(optimizer, objective, start("float64"), 100)
        assert steps[-1].finished and steps[-1].reason == "gradient below tolerance"
        gradient = jax.tree.leaves(objective.function(parameters)[1])
        assert max(float(jnp.max(jnp.abs(leaf))) for leaf in gradient) <= 1e-4

        again, _, step = optimizer.step(objective, parameters, state)
        assert step.finished and same(again, parameters)


def test_stops_where_the_direction_does_not_descend():
    def flat(x: Any) -> tuple[jax.Array, Any]:
        return jnp.sum(x), jnp.full(3, 1e-30)  # the slope, its square, is zero in single precision

    moved, _, steps = run(LBFGS(gradient_tolerance=0.0), flat, jnp.zeros(3), 5)
    assert steps[-1].finished and steps[-1].reason == "direction does not descend"
    assert np.isfinite(moved).all()


# L-BFGS with line search ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5, 8])
def test_terminates_on_a_quadratic(size: int):
    with jax.enable_x64(True):
        scales = jnp.linspace(1, 3, size)
        objective = Counted(lambda x: 0.5 * jnp.sum(scales * (x - 1) ** 2))
        optimizer = LBFGS(history=20, line_search=True)
        parameters, _, steps = run(optimizer, objective, jnp.linspace(-1, 0.5, size), 100)
        assert steps[-1].finished and len(steps) <= size + 8
        np.testing.assert_allclose(parameters, 1, atol=1e-8)


def test_line_search_costs_one_evaluation_where_length_one_will_do(dtype: str):
    _, _, steps = run(LBFGS(line_search=True), Counted(quadratic), start(dtype), 12)
    assert steps[0].evaluations >= 2 and min(step.evaluations for step in steps[1:-1]) == 1


def test_line_search_descends_where_unit_steps_do_not():
    def steep(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sqrt(1 + 100 * x**2)) + jnp.sum((x[1:] - 3 * x[:-1]) ** 4)

    with jax.enable_x64(True):
        _, _, steps = run(LBFGS(line_search=True), Counted(steep), jnp.linspace(1, 3, 6), 100)
    values = [float(step.value) for step in steps]
    assert all(after < before for before, after in pairwise(values))
    assert values[-1] < 6 + 1e-6


def test_line_search_comes_back_from_where_the_objective_is_not_finite():
    with jax.enable_x64(True):
        objective = Counted(lambda x: jnp.sum(x - jnp.log(x)))  # least at one, NaN below zero
        parameters, _, steps = run(LBFGS(line_search=True), objective, jnp.array([0.01, 5.0, 40.0]), 60)
    assert steps[-1].finished
    np.testing.assert_allclose(parameters, 1, rtol=1e-6)


def test_line_search_says_when_nothing_is_lower(dtype: str):
    parameters = jnp.ones(3, dtype)
    lying = Counted(lambda x: jnp.sum(x**2))

    def uphill(x: Any) -> tuple[jax.Array, Any]:
        value, gradient = lying(x)
        return value, -gradient

    moved, _, steps = run(LBFGS(line_search=True), uphill, parameters, 5)
    assert len(steps) == 1 and steps[0].finished and steps[0].reason == "line search found no lower value"
    assert same(moved, parameters)
