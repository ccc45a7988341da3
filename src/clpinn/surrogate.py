"""A trained network with its problem: what training ends with, and what people use.

    surrogate(x=0.1, t=0.5, nu=0.03)                  outputs by name; scalars and arrays broadcast
    surrogate.derivative("u_xx", x=0.1, t=0.5, nu=0.03)
    surrogate.adapt(nu=0.0113)                        another surrogate, with a head at that theta
    surrogate.save("burgers.clpinn")                  one file; clpinn.load reads it

A surrogate with heads answers at each of their thetas with the head, everywhere else with the network alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from clpinn import checkpoint
from clpinn.adapt import TOGETHER, Heads, Optimizer, WayName, adapt
from clpinn.domain import Points
from clpinn.errors import ClpinnError, DomainError
from clpinn.networks import Architecture, architecture, make, precision
from clpinn.problem import Identity, Problem, box_points, named_derivatives, validate, values
from clpinn.problems import BENCHMARKS

CHUNK = 4096
"""Points evaluated at once; bounds memory."""
FORMAT = 1


class SurrogateError(ClpinnError):
    """A file that holds no surrogate, or not one that can be used here."""


@dataclass(frozen=True)
class Surrogate:
    """A network that solves a problem over its parameter box. `record` says how it was trained, in plain values."""

    problem: Problem
    network: Any
    heads: Heads | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **named: ArrayLike) -> dict[str, np.ndarray]:
        """The outputs at coordinates and parameters given by name, which broadcast against each other."""
        return self._evaluate(None, named)

    def derivative(self, name: str, **named: ArrayLike) -> np.ndarray:
        """A derivative of an output along coordinates or parameters: "u_x", "u_xx", "u_nu"."""
        return self._evaluate(name, named)[name]

    def at(self, theta: Float[np.ndarray, " parameters"]) -> Any:
        """The network that answers at a theta: with its head, if there is one that is used."""
        if self.heads is None:
            return self.network
        found = np.flatnonzero(np.all(self.heads.thetas == theta, axis=1))
        return self.heads.network(self.problem, self.network, int(found[0])) if len(found) else self.network

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
        trained = np.array(self.record.get("tasks", [])).reshape(-1, candidates.shape[1])
        seen = np.any(np.all(np.isclose(candidates[:, None], trained, rtol=1e-9, atol=0), axis=2), axis=1)
        left = candidates[~seen]
        if len(left) == 0:
            raise DomainError("Every candidate was trained, so none is unseen. Name the thetas to adapt to.")
        if most is None or most >= len(left):
            return left
        return left[np.sort(np.random.default_rng(seed).choice(len(left), most, replace=False))]

    # Evaluation --------------------------------------------------------------------------------------------------

    def _evaluate(self, derivative: str | None, named: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        axes = self.problem.axes
        unknown, missing = [name for name in named if name not in axes], [name for name in axes if name not in named]
        if unknown or missing:
            raise DomainError(
                f"A value is needed for each of {', '.join(axes)}, but "
                + " and ".join(
                    [f"{', '.join(missing)} is missing"] * bool(missing)
                    + [f"there is no {', '.join(unknown)}"] * bool(unknown)
                )
                + "."
            )
        try:
            columns = np.broadcast_arrays(*(np.asarray(named[name], dtype=float) for name in axes))
        except ValueError as error:
            shapes = ", ".join(f"{name} {np.shape(named[name])}" for name in axes)
            raise DomainError(f"The values must be numbers that broadcast, but came as {shapes}: {error}.") from None
        shape, count = columns[0].shape, len(self.problem.coordinates)
        rows = np.stack([column.reshape(-1) for column in columns], axis=1)
        physical, thetas = rows[:, :count], rows[:, count:]
        self.problem.parameters.check(thetas)
        points = box_points(self.problem, physical, thetas)
        self.problem.coordinates.check(points)
        found: dict[str, np.ndarray] = {}
        for network, chosen in self._by_network(thetas):
            for name, part in self._rows(network, derivative, points[chosen], thetas[chosen]).items():
                found.setdefault(name, np.empty(len(rows)))[chosen] = part
        return {name: part.reshape(shape)[()] for name, part in found.items()}

    def _by_network(self, thetas: Points) -> list[tuple[Any, np.ndarray]]:
        """Each network that is needed at these rows, and which of them it answers."""
        left, groups = np.ones(len(thetas), bool), []
        for head in () if self.heads is None else self.heads.thetas[self.heads.used]:
            chosen = np.all(thetas == head, axis=1)
            if chosen.any():
                groups.append((self.at(head), chosen))
                left &= ~chosen
        return [*groups, (self.network, left)] if left.any() or not groups else groups

    def _rows(self, network: Any, derivative: str | None, points: Points, thetas: Points) -> dict[str, np.ndarray]:
        dtype = precision(network)
        # Sizes are rounded up to a power of two, so that few of them are compiled for.
        size = min(CHUNK, 1 << max(len(points) - 1, 0).bit_length())
        parts = []
        with jax.enable_x64(dtype == jnp.float64):
            for start in range(0, len(points), size):
                x, theta = (rows[start : start + size] for rows in (points, thetas))
                filled = [jnp.asarray(np.resize(rows, (size, rows.shape[1])), dtype) for rows in (x, theta)]
                found = _chunk(Identity(self.problem), derivative, network, *filled)
                parts.append({name: np.asarray(part, float)[: len(x)] for name, part in found.items()})
        names = parts[0] if parts else self.problem.outputs if derivative is None else (derivative,)
        return {name: np.concatenate([part[name] for part in parts] or [np.zeros(0)]) for name in names}

    # Files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Write one file: weights, heads, what the problem is, and the training record."""
        name = next((name for name, make in BENCHMARKS.items() if type(self.problem) is make), None)
        about = {
            "surrogate": FORMAT,
            "clpinn": version("clpinn"),
            "problem": name,
            "description": describe(self.problem),
            "network": asdict(architecture(self.network)),
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
    try:
        problem = problem or _benchmark(path, about["problem"], about["description"])
        validate(problem)
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
def _chunk(identity: Identity, derivative: str | None, network: Any, x: Array, theta: Array) -> dict[str, Array]:
    problem = identity.problem
    if derivative is None:
        return jax.vmap(lambda x, theta: values(problem, network, x, theta))(x, theta)
    return jax.vmap(lambda x, theta: named_derivatives(problem, network, x, theta, [derivative]))(x, theta)


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
