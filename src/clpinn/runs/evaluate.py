"""Errors of a network against a problem's reference, over the problem's grid of thetas.

Reference solutions are for evaluation only: nothing here is called by training, selection or stopping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from clpinn.errors import ClpinnError
from clpinn.formulation.agreement import check_reference
from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.membership import is_inside
from clpinn.formulation.pointwise import Network, residuals, values
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import Progress, reference_at, reference_table
from clpinn.formulation.shaped_points import inside_points
from clpinn.formulation.thetas import checked_thetas, theta_text
from clpinn.formulation.validation import validate
from clpinn.keys import Key, make_key
from clpinn.networks.architecture import precision
from clpinn.shown import html_table
from clpinn.surrogate.answers import in_chunks
from clpinn.surrogate.box_correction import at_theta
from clpinn.surrogate.surrogate import Surrogate

FEWEST = 16
"""Where fewer points of the evaluation grid are inside a shape, errors are measured at drawn points."""
CHUNK = 16384
"""Points evaluated at once. It bounds the memory for grids of any size."""


@dataclass(frozen=True)
class Errors:
    """Errors of one output, one entry per theta."""

    mse: Float[np.ndarray, " thetas"]
    rel_l2: Float[np.ndarray, " thetas"]
    """NaN where the reference is zero. The macro and worst figures leave those thetas out."""
    max_abs: Float[np.ndarray, " thetas"]
    defined: np.ndarray
    """Whether the reference is not zero, so that a relative error exists. Shape (thetas,)."""

    def summary(self) -> dict[str, float]:
        relative = self.rel_l2[self.defined]
        return {
            "mse": _mean(self.mse),
            "rel_l2_macro": _mean(relative),
            "rel_l2_worst": _largest(relative),
            "max_abs": _largest(self.max_abs),
            "max_abs_mean": _mean(self.max_abs),
        }


@dataclass(frozen=True, repr=False)
class Metrics:
    """Errors and residuals per theta. `outputs` is empty if the problem has no reference."""

    parameters: tuple[str, ...]
    thetas: Points
    outputs: Mapping[str, Errors]
    res_pde: Float[np.ndarray, " thetas"]
    """Mean absolute residual of the equations (Res-PDE)."""

    def summary(self) -> dict[str, Any]:
        """Mean (macro) and worst errors per output, and the theta of the worst. A NaN error gives a NaN figure.

        `macro` has the means over the outputs, which count alike, and the worst over thetas and outputs. It is None
        without a reference.
        """
        return {
            "thetas": len(self.thetas),
            "res_pde_macro": _mean(self.res_pde),
            "outputs": {
                name: errors.summary() | {"worst_at": dict(zip(self.parameters, self.worst_theta(name).tolist()))}
                for name, errors in self.outputs.items()
            },
            "macro": self._over_outputs() if self.outputs else None,
        }

    def _over_outputs(self) -> dict[str, float]:
        summaries = [errors.summary() for errors in self.outputs.values()]
        relative = [errors.summary() for errors in self.outputs.values() if errors.defined.any()]
        return {
            "mse": _mean(np.array([errors["mse"] for errors in summaries])),
            "rel_l2_macro": _mean(np.array([errors["rel_l2_macro"] for errors in relative])),
            "rel_l2_worst": _largest(np.array([errors["rel_l2_worst"] for errors in relative])),
        }

    def worst_theta(self, output: str) -> Float[np.ndarray, " parameters"]:
        """The theta with the largest relative error. An error that is not finite counts as the largest."""
        errors = self.outputs[output]
        return self.thetas[np.argmax(np.where(errors.defined, np.nan_to_num(errors.rel_l2, nan=np.inf), -1.0))]

    def table(self) -> list[dict[str, float]]:
        """One row per theta."""
        rows = []
        for i, theta in enumerate(self.thetas):
            row = {name: float(value) for name, value in zip(self.parameters, theta)}
            for name, errors in self.outputs.items():
                row[f"mse_{name}"] = float(errors.mse[i])
                row[f"rel_l2_{name}"] = float(errors.rel_l2[i])
                row[f"max_abs_{name}"] = float(errors.max_abs[i])
            row["res_pde"] = float(self.res_pde[i])
            rows.append(row)
        return rows

    def to_dataframe(self) -> Any:
        """The table as a pandas.DataFrame, one row per theta. Needs pandas."""
        try:
            import pandas
        except ImportError:
            raise ClpinnError("A data frame needs pandas: pip install pandas. Without it, use table().") from None
        return pandas.DataFrame(self.table())

    def __repr__(self) -> str:
        return f"Metrics: {', '.join(f'{name} {text}' for name, text in self._facts().items())}"

    def _repr_html_(self) -> str:
        return html_table("Metrics", self._facts())

    def _facts(self) -> dict[str, str]:
        summary = self.summary()
        facts = {"thetas": str(summary["thetas"])}
        for name, errors in summary["outputs"].items():
            worst_at = theta_text(errors["worst_at"], errors["worst_at"].values(), digits=4)
            worst = f"worst {errors['rel_l2_worst']:.1e}" + (f" at {worst_at}" if worst_at else "")
            facts[f"relative L2 error of {name}"] = f"{errors['rel_l2_macro']:.1e} ({worst})"
        return facts | {"mean |residual|": f"{summary['res_pde_macro']:.1e}"}


def evaluate(
    problem: Problem,
    network: Network | Surrogate,
    thetas: Points | None = None,
    progress: Progress | None = None,
    forbid_outside: bool = False,
) -> Metrics:
    """Errors on the evaluation grid at the candidates, or at thetas of your choice (rows, parameters).

    A theta outside the box gives a warning, or an error if `forbid_outside`. A surrogate answers with its heads.
    """
    validate(problem)
    points = problem.evaluation.points
    table = None
    if thetas is None:
        thetas = problem.candidates.points
        if problem.reference is not None and problem.reference_version is not None:
            table = reference_table(problem, progress)
    thetas = checked_thetas(problem, thetas, forbid_outside)

    collected: dict[str, list[tuple[float, float, float, bool]]] = {name: [] for name in problem.outputs}
    res_pde = []
    base = network.network if isinstance(network, Surrogate) else network
    with jax.enable_x64(precision(base) == jnp.float64):
        for i, theta in enumerate(thetas):
            network_at_theta = (
                network.at(theta) if isinstance(network, Surrogate) else at_theta(problem, network, theta)
            )
            at, inside = points, is_inside(problem, points, theta)
            on_grid = inside.sum() >= min(FEWEST, len(points))
            if not on_grid:
                at = inside_points(problem, np.tile(theta, (len(points), 1)), make_key(0))
                inside = np.ones(len(at), bool)
            predicted, residual = _predict(problem, network_at_theta, at, theta, inside)
            res_pde.append(residual)
            if problem.reference is not None:
                exact = table[i] if table is not None and on_grid else reference_at(problem, at, theta)
                for name, u, v in zip(problem.outputs, predicted, exact[:, inside]):
                    collected[name].append(_errors(u, v))
            if progress:
                progress("errors", i + 1, len(thetas))
    outputs = {name: Errors(*map(np.array, zip(*rows))) for name, rows in collected.items() if rows}
    return Metrics(problem.parameters.names, thetas, outputs, np.array(res_pde))


def _errors(predicted: np.ndarray, exact: np.ndarray) -> tuple[float, float, float, bool]:
    difference = predicted - exact
    norm = float(np.linalg.norm(exact))
    # A NaN prediction or reference gives a NaN error, as it should.
    relative = float(np.linalg.norm(difference)) / norm if norm != 0 else np.nan
    return float(np.mean(difference**2)), relative, float(np.max(np.abs(difference))), norm != 0


def _predict(
    problem: Problem, network: Network, points: Points, theta: np.ndarray, inside: Bool[np.ndarray, " points"]
) -> tuple[Float[np.ndarray, "outputs points"], float]:
    """Outputs at the points that are inside, and the mean absolute residual there, chunk by chunk."""
    dtype = precision(network)
    at = jnp.asarray(theta, dtype)
    # As many points for every theta, so that one program serves all.
    points = np.where(inside[:, None], points, points[np.argmax(inside)])
    outputs, total, rows, start = [], 0.0, 0, 0
    for chunk, residual in in_chunks(lambda x: _chunk(Identity(problem), network, x, at), [points], CHUNK, dtype):
        counts = inside[start : start + chunk.shape[1]]
        start += chunk.shape[1]
        outputs.append(chunk[:, counts])
        total += float(np.sum(np.abs(residual[:, counts])))
        rows += residual[:, counts].size
    return np.concatenate(outputs, axis=1), total / rows


@eqx.filter_jit
def _chunk(identity: Identity, network: Network, x: Array, theta: Array) -> tuple[Array, Array]:
    problem = identity.problem
    outputs = jax.vmap(lambda point: values(problem, network, point, theta))(x)
    residual = jax.vmap(lambda point: residuals(problem, network, point, theta))(x)
    return jnp.stack([outputs[name] for name in problem.outputs]), jnp.stack(list(residual.values()))


def _mean(entries: np.ndarray) -> float:
    return float(np.mean(entries)) if len(entries) else float("nan")


def _largest(entries: np.ndarray) -> float:
    return float(np.max(entries)) if len(entries) else float("nan")


@dataclass(frozen=True)
class Aggregate:
    """Mean and population standard deviation of a figure over seeds; non-finite ones are listed apart."""

    mean: float
    sd: float
    seeds: tuple[int, ...]
    non_finite: tuple[int, ...]


def aggregate(figures: Mapping[int, float]) -> Aggregate:
    """Aggregate a figure that is given per seed."""
    finite = {seed: value for seed, value in figures.items() if np.isfinite(value)}
    values = np.array(list(finite.values()))
    return Aggregate(
        mean=_mean(values),
        sd=float(np.std(values)) if len(values) else float("nan"),
        seeds=tuple(finite),
        non_finite=tuple(seed for seed in figures if seed not in finite),
    )


def reference_residual(problem: Problem, key: Key) -> dict[str, float] | None:
    """Largest residual of each equation for the reference itself: a check for typing errors.

    It needs a reference written with jax.numpy, and returns None for any other. See `check_reference` for conditions.
    """
    checks = [check for check in check_reference(problem, key) if check.term == "equation"]
    if not checks or not all(check.checked for check in checks):
        return None
    return {check.residual: check.largest for check in checks}
