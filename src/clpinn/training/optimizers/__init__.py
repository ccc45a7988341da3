"""Optimisers, one file each, behind one interface.

An optimiser is its configuration; what changes is in a state passed in and out, a pytree of arrays. The
parameters are any pytree of float arrays: what is frozen is simply not in it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxtyping import Array, Float

# Value and gradient (a pytree like the parameters). Each call counts as one evaluation. It need not be
# traceable: it may loop over chunks and devices on the host.
Objective = Callable[[Any], tuple[Float[Array, ""], Any]]


class Step(NamedTuple):
    """What a step met at the parameters it was given, before it moved them.

    `value` and `gradient_norm` (Euclidean) stay on the device until they are read. Where one of them is not
    finite, parameters and state come back unchanged and `finished` is False: the caller decides what to do.
    """

    value: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    evaluations: int
    finished: bool = False
    reason: str = ""
    length: float = 0.0
    """Length of the step, where the optimiser chooses one."""


class Optimizer(Protocol):
    """A family of steps downhill."""

    def init(self, parameters: Any) -> Any:
        """The state before the first step on an objective. A new objective needs a new state."""
        ...

    def step(self, objective: Objective, parameters: Any, state: Any) -> tuple[Any, Any, Step]:
        """New parameters, new state, and what the step met."""
        ...
