"""A PDE family: `Problem`, its soft conditions and measured data, and what a network means for them.

A problem is a description; it holds no state. The functions at the end evaluate it at one point with one theta,
for any network, and are meant to be mapped with `jax.vmap`:

    values(problem, network, x, theta)                 the outputs, by name
    residuals(problem, network, x, theta)              the equation's residuals, by name
    condition_residuals(problem, condition, ...)       those of a soft condition

Here x holds the coordinates of the box (shape (coordinates,)) and theta the parameters (shape (parameters,)).
A network is a callable (coordinate features, parameter features) -> raw outputs that accepts arrays and jets.
None in its place stands for the problem's own reference, if that is written with jax.numpy.
"""

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from clpinn.calculus import jets as derivatives
from clpinn.calculus import linearity
from clpinn.calculus.jets import Derivatives, Index, Jet, Key, Operator
from clpinn.errors import ClpinnError, ProblemError
from clpinn.formulation.domain import At, Boundary, Box, Grid, Interior, Points, Sampler

Scalar = Float[Array, ""]
Network = Callable[[Any, Any], Any] | None

# Values on each axis of a default candidate grid, by the number of parameters: at most about 1300 tasks.
CANDIDATES = {0: 1, 1: 100, 2: 20, 3: 8, 4: 6, 5: 4, 6: 3}
# Values on each axis of a default evaluation grid, by the number of coordinates: about 10,000 points.
EVALUATION = {1: 1000, 2: 100, 3: 25, 4: 10}


@dataclass(frozen=True, eq=False)
class Condition:
    """A soft condition: residual(d, **named) is to vanish at `points` points of the region `on`.

    The residual is written for one point with the same named derivatives as the equation and returns a scalar, or
    a dict of scalars. Its mean square enters the loss with `weight`. Number and sampler of the points are those of
    training as in the paper; the natural gradient draws points of its own at every step.
    """

    name: str
    residual: Callable[..., Any]
    on: At | Boundary
    points: int
    weight: float = 1.0
    sampler: Sampler = "sobol"

    def sample(self, box: Box, key: jax.Array) -> Points:
        return self.on.sample(box, self.points, key, self.sampler)


@dataclass(frozen=True, eq=False)
class Data:
    """Measured values: outputs by name at coordinates and parameters by name, arrays of one length.

    `Data("sensors", at={"x": ..., "t": ..., "nu": ...}, values={"u": ...})`. The residual is output minus value.
    """

    name: str
    at: Mapping[str, ArrayLike] = field(repr=False)
    values: Mapping[str, ArrayLike] = field(repr=False)
    weight: float = 1.0


def _default_candidates(problem: "Problem") -> Grid:
    side = CANDIDATES.get(len(problem.parameters), 2)
    return problem.parameters.grid(**dict.fromkeys(problem.parameters, side))


def _default_evaluation(problem: "Problem") -> Grid:
    side = EVALUATION.get(len(problem.coordinates), 6)
    return problem.coordinates.grid(**dict.fromkeys(problem.coordinates, side))


class Problem:
    """Inherit, name the axes and outputs, write the residual. Everything else is optional.

    `residual(self, d, ...)`: the equation at one point. The other arguments are coordinates and parameters, taken
        by name; leave out those you do not need. Returns a scalar, or a dict of scalars for several equations.
    `constrain(self, raw, ...)`: hard conditions. `raw` is the network's output, a scalar, or a dict by name where
        there are several outputs; returns the same.
    `place(self, ...)`: coordinates mapped by parameters. Takes the coordinates of the box and the parameters,
        returns the physical coordinates as a dict with the same names. Points are drawn in the box; residuals,
        conditions and references see physical coordinates, and derivatives are taken along those. The map must be
        one to one on the whole box, edges included (a polar map starts a little off r = 0).
    `conditions`: a tuple of soft `Condition` and `Data`.
    `prior(self, ...)`: how much a task weighs, as a positive function of the parameters.
    `reference(self, ...)`: the solution, for evaluation only. Takes arrays of all coordinates and parameters,
        broadcasts, returns a dict by output.
    """

    coordinates: Box
    parameters: Box = Box()
    outputs: tuple[str, ...] = ("u",)
    conditions: tuple[Condition | Data, ...] = ()
    interior: Interior = Interior()
    # The thetas that task selection draws from and evaluation reports on, and the coordinates where errors are
    # measured. A grid by default; put another in its place.
    candidates: Grid = cached_property(_default_candidates)  # pyright: ignore[reportAssignmentType]
    evaluation: Grid = cached_property(_default_evaluation)  # pyright: ignore[reportAssignmentType]

    # For people: the equation as text and where the reference comes from.
    equation: str = ""
    reference_kind: str = ""
    # Units of axes and outputs by name, {"x": "m", "t": "s"}; they go with a surrogate's fields.
    units: Mapping[str, str] = {}
    # References of a problem with a version are kept on disk. Change it whenever the reference does; where that
    # depends on an instance, the version must too.
    reference_version: Any = None

    residual: Callable[..., Any]
    constrain: Callable[..., Any] | None = None
    place: Callable[..., Any] | None = None
    prior: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """Coordinates, then parameters: what derivatives can be taken along."""
        return (*self.coordinates.names, *self.parameters.names)


class Identity:
    """A problem by identity, so that one of a class without a hash can be compiled for, too."""

    def __init__(self, problem: Problem):
        self.problem = problem

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.problem is self.problem

    def __hash__(self) -> int:
        return id(self.problem)


# A problem and a network at one point -----------------------------------------------------------------------


def values(
    problem: Problem, network: Network, x: Float[Array, " coordinates"], theta: Float[Array, " parameters"]
) -> dict[str, Scalar]:
    """The outputs at one point, by name."""
    keep = frozenset({(0,) * len(problem.axes)})
    outputs = fields(problem, network, x, theta, keep)
    return {name: jet.value for name, jet in outputs.items()}


def named_derivatives(
    problem: Problem, network: Network, x: Array, theta: Array, names: list[str]
) -> dict[str, Scalar]:
    """Derivatives at one point, by name ("u_xx", or "u_nu" along a parameter)."""
    parsed = {name: _parse(problem, name) for name in names}
    keep = derivatives.closure([(0,) * len(problem.axes), *(index for _, index in parsed.values())])
    outputs = fields(problem, network, x, theta, keep)
    zero = jnp.zeros((), x.dtype)
    return {name: outputs[output].streams.get(index, zero) for name, (output, index) in parsed.items()}


def residuals(problem: Problem, network: Network, x: Array, theta: Array) -> dict[str, Scalar]:
    """The equation's residuals at one point, by name; a single one is called "residual"."""
    return _evaluate(problem, problem.residual, "residual", "residual", network, x, theta)


def condition_residuals(
    problem: Problem, condition: Condition, network: Network, x: Array, theta: Array
) -> dict[str, Scalar]:
    """A soft condition's residuals at one point, by name; a single one has the condition's name."""
    where = f"condition {condition.name!r}"
    return _evaluate(problem, condition.residual, where, condition.name, network, x, theta)


def magnitudes(
    problem: Problem, condition: Condition | None, network: Network, x: Array, theta: Array
) -> dict[str, dict[str, Scalar]]:
    """How large the terms of each residual are at one point, by output; of the equation's where `condition` is None.

    What each output's derivatives add to a residual to first order, in absolute values, and by the name "" what is left
    without any. Of u_t + u u_x - f these are u: |u_t| + 2 |u u_x| and "": |f|.
    """
    function, where, name = problem.residual, "residual", "residual"
    if condition is not None:
        function, where, name = condition.residual, f"condition {condition.name!r}", condition.name
    asked, equation = _equation(problem, function, where, name, x, theta)
    zero = jnp.zeros((), x.dtype)
    keep = derivatives.closure([(0,) * len(problem.axes), *(index for _, index in asked)])
    outputs = fields(problem, network, x, theta, keep)
    at = {(output, index): outputs[output].streams.get(index, zero) for output, index in asked}
    slopes = jax.jacrev(equation)(at)
    without = equation(dict.fromkeys(at, zero))
    return {
        residual: {
            output: sum((jnp.abs(slope[key] * at[key]) for key in at if key[0] == output), zero)
            for output in problem.outputs
        }
        | {"": jnp.nan_to_num(jnp.abs(without[residual]), posinf=0.0)}
        for residual, slope in slopes.items()
    }


def _equation(
    problem: Problem, function: Callable[..., Any], where: str, name: str, x: Array, theta: Array
) -> tuple[dict[tuple[str, Index], None], Callable[[Mapping[tuple[str, Index], Array]], dict[str, Scalar]]]:
    """The derivatives that a residual asks for, and the residuals at this point as a function of them."""
    zero = jnp.zeros((), x.dtype)

    def ask(d: Derivatives, point: Mapping[str, Array]) -> Any:
        return call_by_name(function, where, point, d)

    names = derivatives.requested(
        lambda d: ask(d, dict.fromkeys(problem.axes, zero)), lambda text: _parse(problem, text)
    )
    given = dict(zip(problem.axes, (*x, *theta), strict=True))
    point = given | placed(problem, given)

    def equation(found: Mapping[tuple[str, Index], Array]) -> dict[str, Scalar]:
        return _as_scalars(ask(Derivatives(lambda text: found[_parse(problem, text)]), point), where, name)

    return dict.fromkeys(_parse(problem, text) for text in names), equation


def _evaluate(
    problem: Problem,
    function: Callable[..., Any],
    where: str,
    name: str,
    network: Network,
    x: Array,
    theta: Array,
) -> dict[str, Scalar]:
    asked, equation = _equation(problem, function, where, name, x, theta)
    zero = jnp.zeros((), x.dtype)
    operators = _collapsed(equation, dict.fromkeys(asked, jnp.ones_like(zero)))
    indices = derivatives.closure([(0,) * len(problem.axes), *(index for _, index in asked)])
    collapsed = {index for operator in operators.values() for index in operator.coefficients}
    keep = (indices - collapsed) | set(operators.values())
    outputs = fields(problem, network, x, theta, keep)
    # Collapsed derivatives have no stream and count as zero here; what they add to a residual is the operator's.
    found = equation({(output, index): outputs[output].streams.get(index, zero) for output, index in asked})
    for (residual, output), operator in operators.items():
        found[residual] = found[residual] + outputs[output].streams.get(operator, zero)
    return found


def _collapsed(
    equation: Callable[[Mapping[tuple[str, Index], Array]], dict[str, Scalar]],
    ones: Mapping[tuple[str, Index], Array],
) -> dict[tuple[str, str], Operator]:
    """Sums of highest derivatives, by residual and output, that take the place of the derivatives; {} if none can.

    The highest ones often enter an equation linearly, with coefficients that only the point decides. Then their sum
    is one stream through the network where they were several. Residuals with the same coefficients share one.
    `ones` holds a one for each derivative that the equation asks for: a value at which it can be evaluated.
    """
    indices = [index for _, index in ones]
    highest = {a for a in indices if not any(a != b and all(map(int.__le__, a, b)) for b in indices)}
    if len(highest) < 2:
        return {}
    uses = linearity.affine(equation, ones)
    highest -= {index for use in uses.values() for (_, index), is_affine in use.items() if not is_affine}
    parts = [(residual, key) for residual, use in uses.items() for key in use if key[1] in highest]

    def coefficient(residual: str, key: tuple[str, Index]) -> Array:
        one = ones[key]
        return jax.jvp(lambda value: equation({**ones, key: value})[residual], (one,), (one,))[1].astype(one.dtype)

    def coefficients() -> dict[tuple[str, str], dict[Index, Array]]:
        found = {}
        for residual, (output, index) in parts:
            found.setdefault((residual, output), {})[index] = coefficient(residual, (output, index))
        return found

    same = linearity.equal(coefficients)
    shared: dict[Any, Operator] = {}
    operators = {
        pair: shared.setdefault(tuple(same[pair].items()), Operator(row)) for pair, row in coefficients().items()
    }
    return operators if len(shared) < len({index for _, (_, index) in parts}) else {}


def fields(problem: Problem, network: Network, x: Array, theta: Array, keep: frozenset[Key]) -> dict[str, Jet]:
    """Jets of the outputs along coordinates and parameters."""
    point, boxed = _variables(problem, x, theta, keep)
    if network is None:
        return _reference_fields(problem, point, keep)

    def features(box: Box) -> Jet:
        jets = [jet for name, axis in zip(box, box.axes, strict=True) for jet in axis.features(boxed[name])]
        return derivatives.stack(jets, keep, x.dtype)

    raw = network(features(problem.coordinates), features(problem.parameters))
    outputs = {name: raw[i] for i, name in enumerate(problem.outputs)}
    if problem.constrain is not None:
        outputs = _constrained(problem, outputs, point, keep)
    return outputs


def _reference_fields(problem: Problem, point: dict[str, Jet], keep: frozenset[Key]) -> dict[str, Jet]:
    return derivatives.compose(lambda **named: reference_values(problem, named), point, keep)


def reference_values(problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
    """The problem's reference at physical coordinates and parameters by name."""
    if problem.reference is None:
        raise ProblemError(f"{type(problem).__name__} has no reference. Give the class a method `reference`.")
    found = call_by_name(problem.reference, "reference", given)
    return _with_keys(found, problem.outputs, "reference")


def _with_keys(found: Any, names: Iterable[str], where: str) -> dict[str, Any]:
    """A dict with exactly these keys, or an error that says what came instead."""
    if not isinstance(found, dict) or set(found) != set(names):
        got = ", ".join(map(str, found)) or "an empty dict" if isinstance(found, dict) else type(found).__name__
        raise ProblemError(f"{where} must return a dict with the keys {', '.join(names)}, but returned {got}.")
    return found


def _variables(problem: Problem, x: Array, theta: Array, keep: frozenset[Key]) -> tuple[dict[str, Jet], dict[str, Jet]]:
    """Jets of the physical coordinates and parameters, and of the box coordinates as functions of them."""
    given = dict(zip(problem.axes, (*x, *theta), strict=True))
    if problem.place is None:
        point = {name: derivatives.variable(given[name], i, keep) for i, name in enumerate(problem.axes)}
        return point, point
    physical = placed(problem, given)
    point = {
        name: derivatives.variable(physical.get(name, given[name]), i, keep) for i, name in enumerate(problem.axes)
    }
    names = problem.coordinates.names
    parameters = {name: given[name] for name in problem.parameters}

    def place(box_point: Array, parameters: Mapping[str, Array]) -> Array:
        moved = placed(problem, {**dict(zip(names, box_point, strict=True)), **parameters})
        return jnp.stack([moved[name] for name in names])

    # The box point as a function of the physical one, by chord iterations from the known solution. Each makes one
    # more order of its Taylor series exact, so as many as the highest order asked for are enough.
    inverse = jnp.linalg.inv(jax.jacfwd(place)(x, parameters))
    target = jnp.stack([physical[name] for name in names])

    def box_point(*offsets: Array) -> dict[str, Array]:
        moved = {name: parameters[name] + offsets[len(names) + i] for i, name in enumerate(problem.parameters)}
        goal = target + jnp.stack(offsets[: len(names)])
        found = x
        for _ in range(max(map(sum, derivatives.indices(keep)))):
            found = found - inverse @ (place(found, moved) - goal)
        return dict(zip(names, found, strict=True))

    boxed = derivatives.expand(box_point, keep, x.dtype)
    return point, {**{name: point[name] for name in problem.parameters}, **boxed}


def theta_features(problem: Problem, theta: Float[Array, " parameters"]) -> Float[Array, " features"]:
    """What a network sees of a theta."""
    box = problem.parameters
    found: list[Any] = [part for axis, value in zip(box.axes, theta, strict=True) for part in axis.features(value)]
    return jnp.stack(found) if found else jnp.zeros(0, theta.dtype)


def placed(problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
    """Physical coordinates of a point of the box; the box coordinates themselves where nothing moves them."""
    if problem.place is None:
        return {name: given[name] for name in problem.coordinates}
    moved = call_by_name(problem.place, "place", given)
    return _with_keys(moved, problem.coordinates, "place")


def _constrained(problem: Problem, raw: dict[str, Jet], point: dict[str, Jet], keep: frozenset[Key]) -> dict[str, Jet]:
    """The hard transform, differentiated along with the network's streams."""
    assert problem.constrain is not None
    constrain, single = problem.constrain, len(problem.outputs) == 1

    def transform(**arguments: Array) -> dict[str, Array]:
        inputs = {name: arguments[f"raw {name}"] for name in problem.outputs}
        place = {name: arguments[name] for name in point}
        result = call_by_name(constrain, "constrain", place, inputs[problem.outputs[0]] if single else inputs)
        if single and not isinstance(result, dict):
            result = {problem.outputs[0]: result}
        return _as_scalars(_with_keys(result, problem.outputs, "constrain"), "constrain", "")

    arguments = {f"raw {name}": jet for name, jet in raw.items()} | point
    return derivatives.compose(transform, arguments, keep)


def _parse(problem: Problem, name: str) -> tuple[str, Index]:
    return derivatives.parse_name(name, tuple(problem.outputs), problem.axes)


def _as_scalars(result: Any, where: str, name: str) -> dict[str, Scalar]:
    """One scalar or a dict of scalars, as a dict."""
    named = result if isinstance(result, dict) else {name: result}
    if not named or any(value is None or isinstance(value, list | tuple | str) for value in named.values()):
        got = "nothing" if result is None else "an empty dict" if result == {} else f"a {type(result).__name__}"
        raise ProblemError(
            f"{where} must return a scalar, or a dict of scalars by name, but returned {got}. "
            "Is a `return` missing? Several equations are a dict: {'mass': ..., 'momentum': ...}."
        )
    for key, value in named.items():
        shape = jnp.shape(value)
        if shape != ():
            label = f"{where} [{key!r}]" if isinstance(result, dict) else where
            raise ProblemError(
                f"{label} must return a scalar, or a dict of scalars, but returned the shape {shape}. It is "
                "written for one point: use the named arguments as scalars and return one number for each equation."
            )
    return {key: jnp.asarray(value) for key, value in named.items()}


def call_by_name(function: Callable[..., Any], where: str, available: Mapping[str, Any], *leading: Any) -> Any:
    """Call a user's function with the leading arguments and whatever else its signature names."""
    signature = list(inspect.signature(function).parameters.values())
    if len(signature) < len(leading):
        raise ProblemError(f"{where} must take {len(leading)} argument(s) before the named ones.")
    arguments = {}
    for parameter in signature[len(leading) :]:
        if parameter.kind is parameter.VAR_KEYWORD:
            return function(*leading, **available)
        if parameter.name in available:
            arguments[parameter.name] = available[parameter.name]
        elif parameter.default is parameter.empty:
            raise ProblemError(
                f"{where} asks for {parameter.name!r}, which is neither a coordinate nor a parameter. "
                f"It may ask for {', '.join(available)}."
            )
    return function(*leading, **arguments)


# Physical coordinates and measured data ---------------------------------------------------------------------


def box_point(problem: Problem, target: Array, theta: Array) -> tuple[Array, Array]:
    """Box coordinates of one physical point, and the largest misfit: `place` inverted by Newton's method.

    A JAX function; its derivatives are those of the inverse map.
    """
    if problem.place is None:
        return target, jnp.zeros_like(target[0])
    names = problem.coordinates.names

    def place(x: Array) -> Array:
        moved = placed(problem, dict(zip(problem.axes, (*x, *theta), strict=True)))
        return jnp.stack([moved[name] for name in names])

    def step(_: int, x: Array) -> Array:
        return x - jnp.linalg.solve(jax.jacfwd(place)(x), place(x) - target)

    middle = jnp.asarray(problem.coordinates.centre, target.dtype)
    x = jax.lax.fori_loop(0, 30, step, middle)
    return x, jnp.max(jnp.abs(place(x) - target))


def box_points(problem: Problem, physical: Points, thetas: Points) -> Points:
    """Box coordinates of physical points, one theta a row: the inverse of `place`, by Newton's method."""
    if problem.place is None:
        return np.asarray(physical, dtype=float)
    with jax.enable_x64(True):
        x, misfit = _box_points(Identity(problem), jnp.asarray(physical, float), jnp.asarray(thetas, float))
    scale = max(1.0, float(np.max(np.abs(physical), initial=0.0)))
    failed = ~(np.asarray(misfit) <= 1e-9 * scale)
    if failed.any():
        raise ProblemError(
            f"place could not be inverted at {int(failed.sum())} of {len(failed)} points, the first at "
            f"{np.asarray(physical)[failed][0].tolist()}. It must map the box one to one for every theta."
        )
    return np.asarray(x)


@partial(jax.jit, static_argnums=0)
def _box_points(identity: Identity, physical: Array, thetas: Array) -> tuple[Array, Array]:
    return jax.vmap(lambda target, theta: box_point(identity.problem, target, theta))(physical, thetas)


def data_points(problem: Problem, data: Data) -> tuple[Points, Points, dict[str, np.ndarray]]:
    """A data condition as box coordinates (rows, coordinates), thetas (rows, parameters) and values by output."""
    columns = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in data.at.items()}
    measured = {name: np.atleast_1d(np.asarray(v, dtype=float)) for name, v in data.values.items()}
    missing = [name for name in problem.axes if name not in columns]
    unknown = [name for name in columns if name not in problem.axes]
    strange = [name for name in measured if name not in problem.outputs]
    if missing or unknown or strange or not measured:
        raise ProblemError(
            f"Data {data.name!r} needs values of some of {', '.join(problem.outputs)} at all of "
            f"{', '.join(problem.axes)}, but got values of {', '.join(measured) or 'nothing'} at "
            f"{', '.join(columns) or 'nothing'}."
        )
    lengths = {name: array.shape for name, array in (columns | measured).items()}
    if len(set(lengths.values())) != 1 or any(len(shape) != 1 for shape in lengths.values()):
        raise ProblemError(f"Data {data.name!r} needs arrays of one length, but got {lengths}.")
    if not all(np.isfinite(array).all() for array in (columns | measured).values()):
        raise ProblemError(f"Data {data.name!r} holds a value that is not finite. Leave that row out.")
    rows = len(next(iter(columns.values())))
    thetas = np.stack([columns[name] for name in problem.parameters], axis=1) if len(problem.parameters) else None
    thetas = np.zeros((rows, 0)) if thetas is None else thetas
    physical = np.stack([columns[name] for name in problem.coordinates], axis=1)
    points = box_points(problem, physical, thetas)
    problem.parameters.check(thetas)
    problem.coordinates.check(points)
    return points, thetas, measured


def checked_thetas(problem: Problem, thetas: ArrayLike, forbid_outside: bool = False) -> Points:
    """Thetas (rows, parameters) of the right width; one outside the box is warned of, or an error."""
    found = np.atleast_2d(np.asarray(thetas, dtype=float))
    if found.shape[1] != len(problem.parameters):
        raise ProblemError(
            f"Thetas need {len(problem.parameters)} columns ({', '.join(problem.parameters)}), but got the shape "
            f"{found.shape}."
        )
    problem.parameters.check(found, forbid_outside)
    return found


# Checking a problem -----------------------------------------------------------------------------------------


def validate(problem: Problem) -> None:
    """Raise a ProblemError that says what is wrong, if anything is. Traces the equation; computes nothing."""
    kind = type(problem).__name__
    if not isinstance(problem, Problem):
        what = f"the class {problem.__name__}" if isinstance(problem, type) else repr(problem)
        raise ProblemError(f"Expected an instance of clpinn.Problem, but got {what}.")
    for name in ("coordinates", "residual"):
        if not hasattr(problem, name):
            raise ProblemError(f"{kind} has no {name}. A problem needs coordinates, outputs and a residual.")
    for name in ("coordinates", "parameters"):
        if not isinstance(getattr(problem, name), Box):
            raise ProblemError(f"{kind}.{name} must be a clpinn.Box, but is {getattr(problem, name)!r}.")
    if len(problem.coordinates) == 0:
        raise ProblemError(f"{kind}.coordinates has no axes. Give at least one, e.g. Box(x=(0, 1)).")
    outputs = problem.outputs
    if not isinstance(outputs, tuple) or not outputs or not all(isinstance(o, str) for o in outputs):
        raise ProblemError(f'{kind}.outputs must be a tuple of names such as ("u",), but is {outputs!r}.')
    names = [*problem.axes, *outputs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ProblemError(f"{kind} uses the name {', '.join(twice)} twice. Axes and outputs need names of their own.")
    strange = [name for name in problem.units if name not in names]
    if strange:
        raise ProblemError(f"{kind}.units names {', '.join(strange)}, but there is only {', '.join(names)}.")
    for name in outputs:
        if name.startswith("_") or _reads_as_derivative(name, problem):
            raise ProblemError(
                f"{kind} has an output called {name!r}, which reads as a derivative or cannot be asked for. Rename it."
            )
    for name, box in (("candidates", problem.parameters), ("evaluation", problem.coordinates)):
        grid = getattr(problem, name)
        if not isinstance(grid, Grid):
            raise ProblemError(f"{kind}.{name} must be a clpinn.Grid, but is {type(grid).__name__}.")
        box.require(grid.values, complete=True)
        if tuple(grid.values) != box.names:
            raise ProblemError(f"{kind}.{name} must name its axes in the order of the box: {', '.join(box)}.")
    if not isinstance(problem.conditions, tuple) or not all(
        isinstance(condition, Condition | Data) for condition in problem.conditions
    ):
        raise ProblemError(
            f"{kind}.conditions must be a tuple of clpinn.Condition and clpinn.Data, but is {problem.conditions!r}. "
            "A tuple of one needs a comma: (cl.Condition(...),)."
        )
    if not isinstance(problem.interior, Interior):
        raise ProblemError(f"{kind}.interior must be a clpinn.Interior(points), but is {problem.interior!r}.")
    _require_whole(f"{kind}.interior", problem.interior.points)
    problem.interior.sample(problem.coordinates, jax.random.key(0))

    x, theta = jnp.zeros(len(problem.coordinates)), jnp.zeros(len(problem.parameters))
    inputs = problem.coordinates.feature_count + problem.parameters.feature_count
    weight, bias = jnp.zeros((inputs, len(outputs))), jnp.zeros(len(outputs))

    def network(coordinates: Jet, parameters: Jet) -> Jet:
        return derivatives.linear(derivatives.concatenate([coordinates, parameters]), weight, bias)

    _traced(lambda: residuals(problem, network, x, theta), "residual")
    seen = ["interior"]
    for condition in problem.conditions:
        if condition.name in seen:
            raise ProblemError(
                f"{kind} has two conditions called {condition.name!r}, or one with the name of the equation's own "
                "points, interior. Rename one."
            )
        seen.append(condition.name)
        if not condition.weight > 0:
            raise ProblemError(f"Condition {condition.name!r} needs a weight above zero, but got {condition.weight}.")
        if isinstance(condition, Data):
            data_points(problem, condition)
        else:
            if not isinstance(condition.on, At | Boundary):
                raise ProblemError(
                    f"Condition {condition.name!r} holds on clpinn.at(t=0), clpinn.boundary('x') and the like, but got "
                    f"on={condition.on!r}."
                )
            _require_whole(f"Condition {condition.name!r}", condition.points)
            _traced(
                lambda c=condition: condition_residuals(problem, c, network, x, theta), f"condition {condition.name!r}"
            )
            condition.sample(problem.coordinates, jax.random.key(0))
    for corner in problem.parameters.corners():
        weight_there = task_prior(problem, corner)
        if not (np.isfinite(weight_there) and weight_there > 0):
            raise ProblemError(
                f"{kind}.prior must be positive, but is {weight_there} at {dict(zip(problem.parameters, corner))}."
            )


def _require_whole(where: str, points: Any) -> None:
    if not isinstance(points, int | np.integer):
        raise ProblemError(f"{where} needs a whole number of points, such as 1000, but got {points!r}.")


ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (jax.errors.TracerArrayConversionError, "Use jax.numpy (jnp) in place of numpy there."),
    (jax.errors.TracerBoolConversionError, "Use jnp.where in place of if there."),
    (jax.errors.ConcretizationTypeError, "Use jax.numpy (jnp) and no float() or int() there."),
)


def _traced(function: Callable[[], Any], where: str) -> None:
    """Trace a user's function abstractly; what it raises is told with its place."""
    try:
        jax.eval_shape(function)
    except ClpinnError:
        raise
    except Exception as error:
        raise failed(f"{where} (or constrain, or place)", error) from error


def failed(where: str, error: Exception) -> ProblemError:
    """What a user's function raised, with the line and, where it is a known slip, what to do."""
    text = str(error).strip().split("\n")[0]
    library = str(Path(__file__).parent.parent)
    lines = [
        f" ({frame.filename}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith((library, "<"))
    ]
    advice = next((f" {advice}" for kind, advice in ADVICE if isinstance(error, kind)), "")
    return ProblemError(f"{where} failed: {type(error).__name__}: {text}{''.join(lines[-1:])}{advice}")


def _reads_as_derivative(name: str, problem: Problem) -> bool:
    others = tuple(output for output in problem.outputs if output != name)
    try:
        derivatives.parse_name(name, others, problem.axes)
    except (ProblemError, IndexError):
        return False
    return True


def task_prior(problem: Problem, theta: Float[np.ndarray, " parameters"]) -> float:
    """f_prior of a task; one where the problem has none."""
    if problem.prior is None:
        return 1.0
    return float(call_by_name(problem.prior, "prior", dict(zip(problem.parameters, theta, strict=True))))
