"""A trained network with its problem: what training ends with, and what people use.

    surrogate(x=0.1, t=0.5, nu=0.03)                  outputs by name; scalars and arrays broadcast
    surrogate.derivative("u_xx", x=0.1, t=0.5, nu=0.03)
    surrogate.field(nu=0.03)                          an xarray.Dataset on a grid
    surrogate.function()                              a JAX function, for gradients through the surrogate
    surrogate.trust(nu=0.03)                          residual norms there, beside those over the box
    surrogate.adapt(nu=0.0113)                        another surrogate, with a head at that theta
    surrogate.save("burgers.clpinn")                  one file; clpinn.load reads it

A surrogate with heads answers at each of their thetas with the head, everywhere else with the network alone. A value
outside the box or the domain is answered with an OutsideBoxWarning; one that is not finite is an error.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from clpinn.errors import DomainError, SurrogateError, warn_outside
from clpinn.formulation.domain import Grid, Points
from clpinn.formulation.problem import (
    Identity,
    Problem,
    box_point,
    box_points,
    named_derivatives,
    placed,
    validate,
    values,
)
from clpinn.formulation.references import Progress
from clpinn.networks.architecture import Architecture, precision
from clpinn.networks.make import make
from clpinn.networks.standard import StandardPINN
from clpinn.problems import BENCHMARKS
from clpinn.surrogate.adapt import TOGETHER, Heads, Optimizer, WayName, adapt
from clpinn.surrogate.trust import NOTE, ResidualNorms, Trust
from clpinn.training import checkpoint

if TYPE_CHECKING:
    import xarray

CHUNK = 4096
"""Points evaluated at once by a compiled computation."""
BLOCK = 16 * CHUNK
"""Points spread out at once on the host; bounds memory, whatever the arrays broadcast to."""
FORMAT = 1


@dataclass(frozen=True)
class Surrogate:
    """A network that solves a problem over its parameter box. `record` says how it was trained, in plain values."""

    problem: Problem
    network: Any
    heads: Heads | None = None
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, **named: ArrayLike) -> dict[str, np.ndarray]:
        """The outputs at coordinates and parameters given by name, which broadcast against each other."""
        return self._evaluate((), named)

    def derivative(self, name: str, **named: ArrayLike) -> np.ndarray:
        """A derivative of an output along coordinates or parameters: "u_x", "u_xx", "u_nu"."""
        return self._evaluate((name,), named)[name]

    def function(self, *derivatives: str) -> Callable[..., dict[str, Array]]:
        """A pure JAX function of coordinates and parameters by name, which broadcast: the outputs, or derivatives.

        For jax.jit, jax.grad, jax.vmap and the like. It computes in double precision where the network is double and
        JAX's x64 is on where it is called (`with jax.enable_x64(True):`), in single otherwise. Every head costs one
        more evaluation. Values outside the box are not warned of.
        """
        problem, count = self.problem, len(self.problem.coordinates)
        # Held by NumPy in their own precision, as JAX would halve them where x64 is off.
        base, heads = jax.tree.map(np.asarray, (self.network, self._headed))

        def answer(row: Array) -> dict[str, Array]:
            theta = row[count:]
            x, _ = box_point(problem, row[:count], theta)
            found = _answer(problem, derivatives, _as(base, row.dtype), x, theta)
            for at, network in heads:
                there = jnp.all(theta == jnp.asarray(at, row.dtype))
                other = _answer(problem, derivatives, _as(network, row.dtype), x, theta)
                found = {name: jnp.where(there, other[name], value) for name, value in found.items()}
            return found

        many = jax.jit(jax.vmap(answer))

        def function(**named: ArrayLike) -> dict[str, Array]:
            self._require(named)
            dtype = jax.dtypes.canonicalize_dtype(precision(base))
            columns = jnp.broadcast_arrays(*(jnp.asarray(named[name], dtype) for name in problem.axes))
            flat = many(jnp.stack([column.reshape(-1) for column in columns], axis=1))
            return {name: value.reshape(columns[0].shape) for name, value in flat.items()}

        return function

    def at(self, theta: Float[np.ndarray, " parameters"]) -> Any:
        """The network that answers at a theta: with its head, if there is one that is used."""
        if self.heads is None:
            return self.network
        found = np.flatnonzero(np.all(self.heads.thetas == theta, axis=1))
        return self.heads.network(self.problem, self.network, int(found[0])) if len(found) else self.network

    @property
    def tasks(self) -> Points:
        """Thetas that were trained at the end; none where they were drawn over the whole box."""
        tasks = self.record.get("tasks", [])
        return np.asarray(tasks, float).reshape(len(tasks), len(self.problem.parameters))

    # Adaptation --------------------------------------------------------------------------------------------------

    def adapt(self, seed: int = 0, /, **theta: float) -> "Surrogate":
        """A surrogate that is sharper at one theta, given by name; this one stays as it is.

        The head is used only where the evidence says that it is better; `heads.reason(-1)` tells.
        """
        self.problem.parameters.require(theta, complete=True)
        return self.adapt_many([[theta[name] for name in self.problem.parameters]], seed)

    def adapt_many(
        self,
        thetas: ArrayLike,
        seed: int = 0,
        progress: Callable[[int, int], None] = lambda done, of: None,
        way: WayName = "head",
        optimizer: Optimizer = "lm",
        steps: int | None = None,
        together: int = TOGETHER,
    ) -> "Surrogate":
        """A surrogate with a head at each theta (rows, parameters); a head that was there at one is replaced.

        `way` is what is trained: a residual head, or for a rival's network what belongs to it (svd, target, full);
        `optimizer` is lm (Levenberg-Marquardt) or adam (500 steps as in the paper, unless `steps` says other).
        """
        key = jax.random.key(seed)
        heads = adapt(self.problem, self.network, np.asarray(thetas), key, progress, way, optimizer, steps, together)
        return replace(self, heads=heads if self.heads is None else self.heads.joined(heads))

    def unseen(self, most: int | None = None, seed: int = 0) -> Points:
        """The candidate thetas that were not trained, in their order, or as many of them drawn at random."""
        candidates = self.problem.candidates.points
        seen = np.any(np.all(np.isclose(candidates[:, None], self.tasks, rtol=1e-9, atol=0), axis=2), axis=1)
        left = candidates[~seen]
        if len(left) == 0:
            raise DomainError("Every candidate was trained, so none is unseen. Name the thetas to adapt to.")
        if most is None or most >= len(left):
            return left
        return left[np.sort(np.random.default_rng(seed).choice(len(left), most, replace=False))]

    # Fields ------------------------------------------------------------------------------------------------------

    def field(self, count: int | Mapping[str, int] | None = None, /, **given: ArrayLike) -> "xarray.Dataset":
        """The outputs on a grid, with coordinates, parameters, units and provenance.

        Every parameter is given by name; several values give it a dimension. A coordinate may be given, too: a value,
        or a row of them. The others run over the problem's evaluation grid, or over `count` values each, which may
        also be a dict by name. Where the problem moves its geometry (`place`), coordinates are given in the box and
        the dimensions are box_x, box_y, ...; the physical x, y, ... are coordinates of the dataset.
        """
        problem = self.problem
        grid = self._grid(count, given)
        prefix = "" if problem.place is None else "box_"
        dims = {name: f"{prefix}{name}" if name in problem.coordinates.names else name for name in grid}
        shown = [name for name in grid if grid[name].ndim]
        arrays = _outer(grid, shown)
        found = self._blocks((), [arrays[name] for name in problem.axes], physical=False)
        units = {name: {"units": unit} for name, unit in problem.units.items()}
        axis_dims = [dims[name] for name in shown]
        coords: dict[str, Any] = {
            dims[name]: ([dims[name]] * column.ndim, column, units.get(name, {})) for name, column in grid.items()
        }
        if problem.place is not None:
            with jax.enable_x64(True):
                physical = placed(problem, arrays)
            shape = np.broadcast_shapes(*(column.shape for column in arrays.values()))
            coords |= {
                name: (axis_dims, np.broadcast_to(np.asarray(column, float), shape), units.get(name, {}))
                for name, column in physical.items()
            }
        variables = {name: (axis_dims, column, units.get(name, {})) for name, column in found.items()}
        # Which dimensions are coordinates of the problem, and which are parameters.
        about = {"axes": " ".join(dims[name] for name in problem.coordinates)}
        import xarray  # here, as it takes long to import

        return xarray.Dataset(variables, coords, about | self.provenance())

    def _grid(self, count: int | Mapping[str, int] | None, given: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        """Values or single ones of all axes, parameters first."""
        problem = self.problem
        unknown = [name for name in given if name not in problem.axes]
        missing = [name for name in problem.parameters if name not in given]
        if unknown or missing:
            raise _unfit(problem.parameters.names, missing, unknown)
        counts = (
            count
            if isinstance(count, Mapping)
            else {}
            if count is None
            else dict.fromkeys([name for name in problem.coordinates if name not in given], count)
        )
        problem.coordinates.require(counts)
        grid = {}
        for name in (*problem.parameters, *problem.coordinates):
            if name in given:
                try:
                    grid[name] = np.asarray(given[name], dtype=float)
                except ValueError:
                    raise DomainError(f"{name} must be a number or a row of them, but is {given[name]!r}.") from None
                if grid[name].ndim > 1 or grid[name].size == 0:
                    raise DomainError(
                        f"A field needs a value or a row of values of {name}, but got the shape {grid[name].shape}."
                    )
            elif name in counts:
                grid[name] = problem.coordinates[name].spaced(counts[name])
            else:
                grid[name] = problem.evaluation.values[name]
        return grid

    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from, in plain values."""
        record, problem = self.record, self.problem
        settings = record.get("settings", {})
        about = {
            "problem": type(problem).__name__,
            "equation": problem.equation or (type(problem).__doc__ or "").strip().split("\n")[0],
            "parameter_box": repr(problem.parameters),
            "source": f"clpinn {version('clpinn')}, a neural network trained on the equations",
            "weights_sha256": self.digest,
            "heads": 0 if self.heads is None else int(np.sum(self.heads.used)),
            **{name: settings.get(name) for name in ("method", "optimizer", "seed")},
            **{name: record.get(name) for name in ("steps", "outcome", "validation")},
            "versions": json.dumps(record["versions"]) if "versions" in record else None,
        }
        return {name: value for name, value in about.items() if value is not None}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all weights, heads included."""
        found = hashlib.sha256()
        for leaf in jax.tree.leaves((self.network, self.heads)):
            found.update(np.ascontiguousarray(leaf).tobytes())
        return found.hexdigest()

    # Trust -------------------------------------------------------------------------------------------------------

    def trust(self, progress: Progress | None = None, /, **theta: ArrayLike) -> "Trust | xarray.Dataset":
        """How well the equations hold at a theta, beside the whole box; without a theta a map over the candidates.

        Several values of a parameter give a map over those. Numbers are norms of residuals on fresh points, relative
        to the size of the equations' own terms: an indicator of where the surrogate is weak, no bound of its error.
        """
        box, norms = self.problem.parameters, self._residual_norms
        if not theta and len(box):
            return self._map(self.problem.candidates, progress)
        box.require(theta, complete=True)
        grid = Grid(**{name: np.atleast_1d(np.asarray(theta[name], float)) for name in box})
        box.check(grid.points)
        if any(np.ndim(value) for value in theta.values()):
            return self._map(grid, progress)
        here = norms.at(self.at(grid.points[0]), grid.points[0])
        return Trust(dict(zip(box, grid.points[0].tolist())), here, *self._usual_norms)

    def _map(self, grid: Grid, progress: Progress | None) -> "xarray.Dataset":
        rows = []
        for i, theta in enumerate(grid.points):
            rows.append(self._residual_norms.at(self.at(theta), theta))
            if progress:
                progress("residuals", i + 1, len(grid))
        dims = list(grid.values)
        variables = {"norm": np.array([sum(part**2 for part in row.values()) ** 0.5 for row in rows])}
        if len(rows[0]) > 1:
            variables |= {f"norm_{name}": np.array([row[name] for row in rows]) for name in rows[0]}
        shaped = {name: (dims, column.reshape(grid.shape)) for name, column in variables.items()}
        import xarray

        return xarray.Dataset(shaped, dict(grid.values), self.provenance() | {"comment": NOTE})

    @cached_property
    def _residual_norms(self) -> ResidualNorms:
        return ResidualNorms(self.problem)

    @cached_property
    def _usual_norms(self) -> tuple[np.ndarray, np.ndarray]:
        """Norms at thetas all over the box, and at those that were trained (none where they were free)."""
        norms = self._residual_norms
        return tuple(
            np.array([norms.total(self.at(theta), theta) for theta in thetas]) for thetas in (norms.thetas, self.tasks)
        )  # pyright: ignore[reportReturnType]

    # Evaluation --------------------------------------------------------------------------------------------------

    def _require(self, named: Mapping[str, ArrayLike]) -> None:
        axes = self.problem.axes
        unknown, missing = [name for name in named if name not in axes], [name for name in axes if name not in named]
        if unknown or missing:
            raise _unfit(axes, missing, unknown)

    def _evaluate(self, derivatives: tuple[str, ...], named: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        self._require(named)
        axes = self.problem.axes
        try:
            given = [np.asarray(named[name], dtype=float) for name in axes]
            np.broadcast_shapes(*(column.shape for column in given))
        except ValueError as error:
            shapes = ", ".join(f"{name} {np.shape(named[name])}" for name in axes)
            raise DomainError(f"The values must be numbers that broadcast, but came as {shapes}: {error}.") from None
        return self._blocks(derivatives, given, physical=True)

    def _blocks(self, derivatives: tuple[str, ...], given: list[np.ndarray], physical: bool) -> dict[str, np.ndarray]:
        """Outputs or derivatives at columns by axis, which broadcast, block by block; memory is that of the result.

        Coordinates are physical ones, or those of the box.
        """
        problem, count = self.problem, len(self.problem.coordinates)
        moved = physical and problem.place is not None
        ends = np.array([[end(column) for column in given] for end in (np.min, np.max)]) if _all_filled(given) else None
        if ends is not None:
            problem.parameters.check(ends[:, count:])
            self._check_known(ends[:, count:])
            if not moved:
                problem.coordinates.check(ends[:, :count])
        columns = np.broadcast_arrays(*given)
        shape, size = columns[0].shape, columns[0].size
        found = {name: np.empty(size) for name in derivatives or problem.outputs}
        boxed = []
        for start in range(0, size, BLOCK):
            block = slice(start, start + BLOCK)
            rows = np.stack([column.flat[block] for column in columns], axis=1)
            points, thetas = rows[:, :count], rows[:, count:]
            if moved:
                points = box_points(problem, points, thetas)
                boxed += [points.min(axis=0), points.max(axis=0)]
            for network, chosen in self._by_network(thetas):
                for name, part in self._rows(network, derivatives, points[chosen], thetas[chosen]).items():
                    found[name][block][chosen] = part
        if boxed:
            problem.coordinates.check(np.array(boxed))
        return {name: part.reshape(shape)[()] for name, part in found.items()}

    def _check_known(self, ends: Points) -> None:
        """Warn where a standard PINN without heads is asked for another theta than its own."""
        alone = isinstance(self.network, StandardPINN) and self.heads is None and len(self.tasks)
        if alone and not np.all(ends == self.tasks[0]):
            own = ", ".join(f"{name} = {value:g}" for name, value in zip(self.problem.parameters, self.tasks[0]))
            warn_outside(
                f"This is a standard PINN, trained at {own} alone; it knows no other theta. Ask it there, or train "
                "over the whole box: --method free."
            )

    @cached_property
    def _headed(self) -> list[tuple[np.ndarray, Any]]:
        """Each theta with a head that is used, and the network that answers there."""
        heads = () if self.heads is None else self.heads.thetas[self.heads.used]
        return [(theta, self.at(theta)) for theta in heads]

    def _by_network(self, thetas: Points) -> Iterator[tuple[Any, np.ndarray]]:
        """Each network that is needed at these rows, and which of them it answers."""
        left = np.ones(len(thetas), bool)
        for theta, network in self._headed:
            chosen = np.all(thetas == theta, axis=1)
            if chosen.any():
                yield network, chosen
                left &= ~chosen
        if left.any():
            yield self.network, left

    def _rows(
        self, network: Any, derivatives: tuple[str, ...], points: Points, thetas: Points
    ) -> dict[str, np.ndarray]:
        dtype = precision(network)
        # Sizes are rounded up to a power of two, so that few of them are compiled for.
        size = min(CHUNK, 1 << max(len(points) - 1, 0).bit_length())
        parts = []
        with jax.enable_x64(dtype == jnp.float64):
            for start in range(0, len(points), size):
                x, theta = (rows[start : start + size] for rows in (points, thetas))
                filled = [jnp.asarray(np.resize(rows, (size, rows.shape[1])), dtype) for rows in (x, theta)]
                found = _chunk(Identity(self.problem), derivatives, network, *filled)
                parts.append({name: np.asarray(part, float)[: len(x)] for name, part in found.items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    # Files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Write one file: weights, heads, what the problem is, and the training record."""
        name = next((name for name, make in BENCHMARKS.items() if type(self.problem) is make), None)
        about = {
            "surrogate": FORMAT,
            "clpinn": version("clpinn"),
            "problem": name,
            "description": describe(self.problem),
            "network": dataclasses.asdict(self.network.architecture),
            "heads": 0 if self.heads is None else len(self.heads.thetas),
            "way": None if self.heads is None else self.heads.way,
            "record": dict(self.record),
        }
        checkpoint.write(Path(path), {"network": self.network, "heads": self.heads}, about)


def load(path: Path | str, problem: Problem | None = None) -> Surrogate:
    """A surrogate from its file. One of a problem of your own needs that problem: no code comes from the file."""
    path = Path(path)
    if not path.is_file():
        raise SurrogateError(
            f"There is no file {path}. Give one that a surrogate was saved to (model.clpinn of a run)."
        )
    try:
        about, arrays = checkpoint.read(path)
    except checkpoint.CheckpointError as error:
        raise SurrogateError(f"{path} holds no surrogate: {error}") from None
    if about.get("surrogate") != FORMAT:
        what = "a checkpoint" if "step" in about else f"a surrogate of clpinn {about.get('clpinn')}"
        raise SurrogateError(
            f"{path} holds {what}, which this version ({version('clpinn')}) does not read. Use the version that wrote "
            "it, or train again."
        )
    if problem is not None:
        validate(problem)
    try:
        problem = problem or _benchmark(path, about["problem"], about["description"])
        if describe(problem) != about["description"]:
            raise SurrogateError(
                f"{path} is of another problem than the one given: {about['description']}, not {describe(problem)}."
            )
        if about["network"]["depth"] > len(arrays):
            raise ValueError("fewer arrays than layers")
        like = eqx.filter_eval_shape(
            _blank, problem, about["network"], about["heads"], about["way"]
        )  # allocates nothing
        tree = checkpoint.restore(path, arrays, like)
        found, wanted = ([leaf.shape for leaf in jax.tree.leaves(one)] for one in (tree, like))
        if found != wanted:
            raise ValueError("arrays of other shapes than the network's")
        record = dict(about["record"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise SurrogateError(f"{path} holds no surrogate: its description makes no sense ({error!r}).") from None
    with jax.enable_x64(True):
        return Surrogate(problem, jax.tree.map(jnp.asarray, tree["network"]), tree["heads"], record)


def _benchmark(path: Path, name: str | None, description: Mapping[str, Any]) -> Problem:
    if name in BENCHMARKS:
        return BENCHMARKS[name](**description["options"])
    raise SurrogateError(
        f"{path} is of a problem of your own, {description['class']}. Load it with that problem: "
        f"clpinn.load({str(path)!r}, problem={description['class']}())."
    )


def _blank(problem: Problem, size: Mapping[str, Any], heads: int, way: str) -> dict[str, Any]:
    """What a file holds, with nothing in it."""
    key = jax.random.key(0)
    network = make(problem, Architecture(**size), key)
    blank = Heads.blank(problem, network, way, heads) if heads else None
    return {"network": network, "heads": blank}


@eqx.filter_jit
def _chunk(identity: Identity, derivatives: tuple[str, ...], network: Any, x: Array, theta: Array) -> dict[str, Array]:
    return jax.vmap(lambda x, theta: _answer(identity.problem, derivatives, network, x, theta))(x, theta)


def _answer(problem: Problem, derivatives: tuple[str, ...], network: Any, x: Array, theta: Array) -> dict[str, Array]:
    """The derivatives named, or the outputs where none is, at one point of the box."""
    if derivatives:
        return named_derivatives(problem, network, x, theta, list(derivatives))
    return values(problem, network, x, theta)


def _as(network: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), network)


def _all_filled(columns: list[np.ndarray]) -> bool:
    return all(column.size for column in columns)


def _outer(grid: Mapping[str, np.ndarray], shown: list[str]) -> dict[str, np.ndarray]:
    """The values of each axis along a dimension of its own, in the order of `shown`; single ones as they are."""
    found = {}
    for name, column in grid.items():
        shape = [-1 if other == name else 1 for other in shown]
        found[name] = column.reshape(shape) if name in shown else column
    return found


def _unfit(axes: tuple[str, ...], missing: list[str], unknown: list[str]) -> DomainError:
    parts = [f"{', '.join(missing)} is missing"] * bool(missing) + [f"there is no {', '.join(unknown)}"] * bool(unknown)
    return DomainError(f"A value is needed for each of {', '.join(axes)}, but {' and '.join(parts)}.")


def describe(problem: Problem) -> dict[str, Any]:
    """What tells a problem from another, in plain values."""
    options = {key: value for key, value in vars(problem).items() if isinstance(value, bool | int | float | str)}
    return {
        "class": type(problem).__name__,
        "options": options,
        "coordinates": repr(problem.coordinates),
        "parameters": repr(problem.parameters),
        "outputs": list(problem.outputs),
    }
