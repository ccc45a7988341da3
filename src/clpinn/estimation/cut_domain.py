"""A domain that is a shape, at one theta: it cuts the elements of a spline space on the box around it."""

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from clpinn.formulation.domain import Points
from clpinn.formulation.membership import is_inside
from clpinn.formulation.problem import Problem
from clpinn.formulation.regions import On
from clpinn.formulation.shaped import spanned
from clpinn.formulation.shaped_points import boundary_samples, inside_points
from clpinn.keys import make_key
from clpinn.shapes.points import Samples


class CutDomain:
    """The shape of a problem at a theta."""

    def __init__(self, problem: Problem, theta: Float[np.ndarray, " parameters"]):
        self.problem, self.theta = problem, theta
        self._samples: dict[On, Samples] = {}

    @property
    def spanned(self) -> tuple[str, ...]:
        """The coordinates that the shape spans."""
        return spanned(self.problem)

    def contains(self, points: Float[np.ndarray, "... coordinates"]) -> Bool[np.ndarray, "..."]:
        """Whether points are inside, the boundary included."""
        flat = points.reshape(-1, points.shape[-1])
        return is_inside(self.problem, flat, self.theta).reshape(points.shape[:-1])

    @cached_property
    def somewhere(self) -> Points:
        """A point inside."""
        return inside_points(self.problem, self.theta[None], make_key(0))[0]

    def boundary(self, where: On) -> Samples:
        """Samples all along pieces of the boundary."""
        if where not in self._samples:
            self._samples[where] = boundary_samples(self.problem, where, self.theta)
        return self._samples[where]


def cut_domain(problem: Problem, theta: Float[np.ndarray, " parameters"]) -> CutDomain | None:
    """The shape of a problem at a theta; None if the domain is a box."""
    return None if problem.domain is None else CutDomain(problem, theta)
