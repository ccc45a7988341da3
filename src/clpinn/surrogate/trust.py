"""How well a network satisfies the equations at a theta: norms of its residuals on fresh points.

A norm is a root mean square of residuals. Each residual is divided by the size of its equation's own terms and weighted
as in training: 1e-3 means that the terms cancel to about a thousandth. Norms show where a surrogate is weak, and need
no reference. They do not bound the error: how far a residual moves the solution depends on the equation.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from clpinn.errors import DomainError
from clpinn.formulation.domain import Grid, Points
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import Progress
from clpinn.formulation.thetas import theta_text
from clpinn.keys import make_key, split
from clpinn.networks.architecture import cast
from clpinn.shown import html_table
from clpinn.training.batches import TaskMix, row_source

if TYPE_CHECKING:
    import xarray

NetworkAt = Callable[[np.ndarray], Any]
"""The network that answers at a theta."""
POINTS = 512
"""Points of each term at a theta."""
THETAS = 128
"""Thetas all over the box that a theta is compared with."""
NOTE = (
    "Norms of residuals on fresh points, relative to the size of the equations' own terms: an indicator of where the "
    "surrogate is weak, no bound of its error."
)


@dataclass(frozen=True, repr=False)
class Trust:
    """Residual norms at one theta, beside those all over the box and at the trained thetas.

    Attributes:
        theta: The theta by parameter name.
        norms: Norms at the theta by residual name.
        box: Total norms at 128 thetas all over the box.
        trained: Total norms at the trained thetas; empty if training drew all over the box.
        note: What the numbers mean.
    """

    theta: Mapping[str, float]
    norms: Mapping[str, float]
    box: Float[np.ndarray, " thetas"]
    trained: Float[np.ndarray, " tasks"]
    note: str = NOTE

    @property
    def norm(self) -> float:
        """The total norm: all residuals together."""
        return _total(self.norms.values())

    @property
    def rank(self) -> float:
        """The fraction of the box where the total norm is smaller."""
        return float(np.mean(self.box < self.norm))

    def summary(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "theta": dict(self.theta),
            "norm": self.norm,
            "norms": dict(self.norms),
            "rank": self.rank,
            "box_median": float(np.median(self.box)),
            "box_90": float(np.quantile(self.box, 0.9)),
            "box_largest": float(np.max(self.box)),
            "trained_median": float(np.median(self.trained)) if len(self.trained) else None,
            "note": self.note,
        }

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {text}" for name, text in self._facts().items())
        return f"Trust: {facts}"

    def _repr_html_(self) -> str:
        return html_table("Trust", self._facts() | {"note": self.note})

    def _facts(self) -> dict[str, str]:
        theta = {"theta": theta_text(self.theta.keys(), self.theta.values())} if self.theta else {}
        return theta | {
            "residual norm": f"{self.norm:.1e}",
            "smaller in": f"{self.rank:.0%} of the box",
            "median of the box": f"{np.median(self.box):.1e}",
        }

    def __str__(self) -> str:
        summary = self.summary()
        place = f" at {theta_text(self.theta.keys(), self.theta.values())}" if self.theta else ""
        text = (
            f"Residual norm {self.norm:.1e}{place}; over the box the median is {summary['box_median']:.1e}, 90 % are "
            f"below {summary['box_90']:.1e}, none above {summary['box_largest']:.1e}"
        )
        if len(self.trained):
            text += f"; at the trained thetas the median is {summary['trained_median']:.1e}"
        by_name = ", ".join(f"{name} {norm:.1e}" for name, norm in self.norms.items())
        return f"{text}. By name: {by_name}. {self.note}"


class ResidualNorms:
    """Residual norms of networks, in double precision, on the same fresh points at every theta."""

    def __init__(self, problem: Problem, seed: int = 0):
        self._problem = problem
        self._usual: tuple[np.ndarray, np.ndarray] | None = None
        self._size_key, theta_key, self._point_key = split(make_key(seed), 3)
        self.thetas = problem.parameters.sample(THETAS if len(problem.parameters) else 1, theta_key)
        with jax.enable_x64(True):
            self._rows, self._sizes, self._batches = row_source(problem, POINTS, jnp.float64)
        self._points = dict.fromkeys(self._batches.points, self._rows.even(POINTS))

    def at(self, network: Any, theta: Float[np.ndarray, " parameters"]) -> dict[str, float]:
        """Norms by residual name at one theta, of the network that answers there."""
        with jax.enable_x64(True):
            network = cast(network, jnp.float64)
            sizes = self._sizes.measure(network, self._size_key, theta=theta)
            batch = self._batches.uniform(self._point_key, self._points, sizes, TaskMix.single(theta))
            mean_squares = self._rows.value(network, self._batches.without_data(batch))[1]
        return {name: mean_square**0.5 for name, mean_square in mean_squares.items()}

    def total(self, network: Any, theta: Float[np.ndarray, " parameters"]) -> float:
        """The norm of all residuals together at one theta."""
        return _total(self.at(network, theta).values())

    def trust(self, theta: Mapping[str, float], network_at: NetworkAt, tasks: Points) -> Trust:
        """Norms at one theta by name, beside those all over the box and at the tasks (see `Surrogate.trust`)."""
        box = self._problem.parameters
        if len(box) > len(theta) or any(np.ndim(value) for value in theta.values()):
            given = ", ".join(f"{name} = {value}" for name, value in theta.items()) or "none"
            raise DomainError(
                f"trust needs one number for each of {', '.join(box)}, but got {given}. For a map over many thetas use "
                "trust_map."
            )
        row = self._grid(theta).points[0]
        if self._usual is None:
            all_over, at_tasks = (
                np.array([self.total(network_at(each), each) for each in thetas]) for thetas in (self.thetas, tasks)
            )
            self._usual = all_over, at_tasks
        return Trust(dict(zip(box, row.tolist())), self.at(network_at(row), row), *self._usual)

    def over(
        self,
        values: Mapping[str, ArrayLike],
        network_at: NetworkAt,
        progress: Progress | None,
        attributes: Mapping[str, Any],
    ) -> "xarray.Dataset":
        """Norms at a grid of thetas, or at the candidates: the total, and by residual name if there are several."""
        thetas = self._grid(values) if values else self._problem.candidates
        rows = []
        for i, theta in enumerate(thetas.points):
            rows.append(self.at(network_at(theta), theta))
            if progress:
                progress("residuals", i + 1, len(thetas))
        variables = {"norm": np.array([_total(row.values()) for row in rows])}
        if len(rows[0]) > 1:
            variables |= {f"norm_{name}": np.array([row[name] for row in rows]) for name in rows[0]}
        dims = list(thetas.values)
        shaped = {name: (dims, column.reshape(thetas.shape)) for name, column in variables.items()}
        import xarray  # here, because it takes long to import

        return xarray.Dataset(shaped, dict(thetas.values), dict(attributes) | {"comment": NOTE})

    def _grid(self, values: Mapping[str, ArrayLike]) -> Grid:
        box = self._problem.parameters
        box.require(values, complete=True)
        grid = Grid(**{name: np.atleast_1d(np.asarray(values[name], float)) for name in box})
        box.check(grid.points)
        return grid


def _total(norms: Iterable[float]) -> float:
    return sum(norm**2 for norm in norms) ** 0.5
