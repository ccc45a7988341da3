"""Hard conditions on shapes: outputs that vanish on pieces of the boundary, whatever the network gives."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from clpinn.errors import ProblemError
from clpinn.formulation.problem import Problem
from clpinn.formulation.shaped import shape_at, spanned
from clpinn.shapes.shape import vanishing_on


class Vanishing:
    """What `cl.vanishing` gives: an attribute of a problem class that multiplies raw outputs by a smooth factor."""

    def __init__(self, names: tuple[str, ...], outputs: tuple[str, ...] | None):
        self.names, self.outputs = names, outputs

    def __get__(self, problem: Problem | None, owner: type) -> Any:
        return self if problem is None else self._of(problem)

    def _of(self, problem: Problem) -> Callable[..., Any]:
        if problem.domain is None:
            raise ProblemError("cl.vanishing needs a domain that is a shape: give the problem a method `domain`.")

        def transform(raw: Any, **point: Any) -> Any:
            unknown = [name for name in self.outputs or () if name not in problem.outputs]
            if unknown:
                raise ProblemError(
                    f"cl.vanishing(outputs=...) names {unknown[0]!r}, but the outputs of {type(problem).__name__} are "
                    f"{', '.join(problem.outputs)}."
                )
            x = jnp.stack([jnp.asarray(point[name]) for name in spanned(problem)])
            factor = vanishing_on(shape_at(problem, point), self.names)(x)
            if not isinstance(raw, dict):
                return factor * raw
            chosen = self.outputs or tuple(raw)
            return {name: factor * value if name in chosen else value for name, value in raw.items()}

        return transform


def vanishing(*names: str, outputs: tuple[str, ...] | None = None) -> Any:
    """Outputs that vanish on pieces of the boundary of a shape (all of it without names), as a hard condition.

        constrain = cl.vanishing("cylinder", "walls")
        constrain = cl.vanishing("cylinder", outputs=("u", "v"))          # p is left as it is

    Or as a part of a `constrain` of your own, for values other than zero:

        wall = cl.vanishing("cylinder")

        def constrain(self, raw, x, y, r):
            return 1 + self.wall(raw, x=x, y=y, r=r)

    The raw output is multiplied by a factor that is zero on the pieces, positive inside, and differentiable as often
    as the equation needs, except at corners.
    """
    return Vanishing(names, (outputs,) if isinstance(outputs, str) else outputs)
