"""The estimated error of a surrogate at a theta, for people: numbers, field and reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from clpinn.estimation.estimate import Estimator
from clpinn.estimation.results import Estimate
from clpinn.formulation.domain import Points
from clpinn.formulation.thetas import theta_text
from clpinn.shown import html_table

if TYPE_CHECKING:
    import xarray

NOTE = "Estimated by solving the linearised equations for the error; no reference is used."
ESTIMATED = "estimated_"
"""How the names of a field's attributes start that say how wrong the field is."""


@dataclass(frozen=True, repr=False)
class ErrorEstimate:
    """The estimated error of a surrogate at one theta.

    Trust the numbers where `resolved` is true: two resolutions agree there. Otherwise `reason` says what limits them.

    Attributes:
        theta: The theta by parameter name.
        relative_l2: Norm of the error, relative to that of the solution, by output.
        largest: Largest absolute error by output.
        resolved: Whether the estimate can be trusted.
        reason: Why it is resolved, or what limits it.
        functions: Number of splines by coordinate.
        difference: How far the last two resolutions are apart, relative to the error.
        newton_steps: Newton steps that were needed: one unless the error is large.
        field: The error on the problem's evaluation grid: solution minus surrogate.
    """

    theta: Mapping[str, float]
    relative_l2: Mapping[str, float]
    largest: Mapping[str, float]
    resolved: bool
    reason: str
    functions: Mapping[str, int]
    difference: float
    newton_steps: int
    field: "xarray.Dataset" = field(compare=False)

    def summary(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "theta": dict(self.theta),
            "relative_l2": dict(self.relative_l2),
            "largest": dict(self.largest),
            "resolved": self.resolved,
            "reason": self.reason,
            "functions": dict(self.functions),
            "difference": self.difference,
            "newton_steps": self.newton_steps,
        }

    def __str__(self) -> str:
        place = f" at {theta_text(self.theta.keys(), self.theta.values())}" if self.theta else ""
        errors = ", ".join(f"{name} {value:.1e}" for name, value in self.relative_l2.items())
        verdict = "" if self.resolved else " Do not trust it: it is not resolved."
        return f"Estimated relative L2 error{place}: {errors}.{verdict} {self.reason}"

    def __repr__(self) -> str:
        return f"ErrorEstimate: {', '.join(f'{name} {text}' for name, text in self._facts().items())}"

    def _repr_html_(self) -> str:
        return html_table("Estimated error", self._facts() | {"reason": self.reason, "note": NOTE})

    def _facts(self) -> dict[str, str]:
        theta = {"theta": theta_text(self.theta.keys(), self.theta.values())} if self.theta else {}
        relative = {f"relative L2 of {name}": f"{value:.1e}" for name, value in self.relative_l2.items()}
        largest = {f"largest of {name}": f"{value:.1e}" for name, value in self.largest.items()}
        return theta | relative | largest | {"resolved": "yes" if self.resolved else "no"}


def _with_field(estimate: Estimate, theta: Mapping[str, float], like: "xarray.Dataset") -> ErrorEstimate:
    """An estimate with its field, on the grid of the surrogate's own field."""
    shape = next(iter(like.data_vars.values())).shape
    errors = {
        name: (like[name].dims, np.reshape(estimate.error[:, i], shape), like[name].attrs)
        for i, name in enumerate(like.data_vars)
    }
    dataset = like.assign(errors)
    kept = {name: value for name, value in like.attrs.items() if not str(name).startswith(ESTIMATED)}
    dataset.attrs = {**kept, "comment": f"Estimated error. {estimate.reason} {NOTE}"}
    return ErrorEstimate(
        theta,
        estimate.relative_l2,
        estimate.largest,
        estimate.resolved,
        estimate.reason,
        estimate.functions,
        estimate.difference,
        estimate.newton_steps,
        dataset,
    )


def error_estimates(
    estimator: Estimator,
    thetas: Points,
    network_at: Callable[[np.ndarray], Any],
    field: Callable[..., "xarray.Dataset"],
    progress: Callable[[int, int], None],
) -> list[ErrorEstimate]:
    """Estimates at thetas (thetas, parameters) of the networks that answer there. `field` gives the outputs at one."""
    estimates = []
    for theta in thetas:
        named = dict(zip(estimator.problem.parameters, theta.tolist(), strict=True))
        estimates.append(_with_field(estimator.at(network_at(theta), theta), named, field(**named)))
        progress(len(estimates), len(thetas))
    return estimates
