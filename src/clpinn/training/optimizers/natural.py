"""Natural gradient over residual rows: damped Gauss-Newton steps on mini-batches, with momentum (SPRING).

With residuals r and Jacobian J of a batch, a step is the momentum μφ plus the smallest change that solves the batch's
linearised rows as far as the damping Λ allows: φ ← μφ + Jᵀ(JJᵀ + Λ)⁻¹(r - μJφ), parameters ← parameters - s φ
(Goldshlager, Abrahamsen, Lin 2024, arXiv:2401.10190; for PINNs arXiv:2505.12149). A batch has fewer rows than the
network has parameters, so the linear system is solved in the space of rows.

Λ is diagonal: the same damping for all rows, plus a part in proportion to the row's squared residual. A step nearly
solves its batch, so a residual that the network cannot fit acts as noise. Kriging treats noise of known variance so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float
from threadpoolctl import ThreadpoolController

from clpinn.errors import ClpinnError
from clpinn.machine import on_all_cores
from clpinn.training.optimizers import Step

BLOCK = 128
"""Rows of the kernel that are computed at once on a core."""
ATTEMPTS = 6
"""How often the damping is raised where the kernel cannot be factorised."""


class Linearised(NamedTuple):
    """The rows of a batch near some parameters."""

    rows: Float[np.ndarray, " rows"]
    jacobian: Float[np.ndarray, "rows parameters"]
    """Derivatives with respect to the flattened parameters."""
    value: Callable[[Any], float]
    """The sum of squares of the same rows at any parameters."""


RowObjective = Callable[[Any], Linearised]
"""Linearises the rows of one batch at the parameters."""


class NaturalState(NamedTuple):
    """What the natural gradient remembers between steps."""

    momentum: Float[np.ndarray, " parameters"]
    """φ over the flattened parameters."""
    count: np.ndarray
    """Steps that the momentum was built up in."""
    damping: np.ndarray


@dataclass(frozen=True)
class Natural:
    """The natural gradient. All dampings are relative to the mean of the kernel's diagonal.

    The step length is the best of several halvings of the longest one, which the caller gives. A full step solves its
    batch and forgets others, so the caller lets the longest step fall. The damping starts high. It falls while the
    longest step is the best, and rises where only short steps help.
    """

    damping: float = 1e-8
    """The smallest damping."""
    momentum: float = 0.8
    """μ."""
    noise: float = 1e-6
    """The part of the damping that follows the squared residuals: its mean over the rows."""
    first_damping: float = 0.1
    halvings: int = 8

    def __post_init__(self) -> None:
        if not (self.damping > 0 and 0 <= self.momentum < 1 and self.noise >= 0):
            raise ClpinnError(
                "The natural gradient needs damping above 0, momentum in [0, 1) and noise of at least 0, but got "
                f"{self.damping}, {self.momentum} and {self.noise}."
            )

    def init(self, parameters: Any) -> NaturalState:
        size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
        return NaturalState(np.zeros(size), np.zeros((), int), np.array(self.first_damping))

    def step(
        self, objective: RowObjective, parameters: Any, state: NaturalState, longest: float = 1.0
    ) -> tuple[Any, NaturalState, Step]:
        """New parameters, new state, and what the step met.

        No step is longer than `longest`. Where no length makes the batch better, the parameters stay, the momentum is
        dropped and the damping rises tenfold.
        """
        with _blas().limit(limits=1, user_api="blas"):
            return self._step(objective, parameters, state, longest)

    def _step(
        self, objective: RowObjective, parameters: Any, state: NaturalState, longest: float
    ) -> tuple[Any, NaturalState, Step]:
        rows, jacobian, value_at = objective(parameters)
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is the caller's to deal with
            value, slope = float(rows @ rows), jacobian.T @ rows
        norm = 2 * float(np.linalg.norm(slope))  # of the gradient of the sum of squares
        info = Step(jnp.asarray(value), jnp.asarray(norm), evaluations=1)
        if not np.isfinite(norm):
            return parameters, state, info
        direction = self.momentum * state.momentum
        damping = state.damping + self.noise * rows**2 / max(value / len(rows), np.finfo(float).tiny)
        direction = direction + jacobian.T @ self._solve(jacobian, rows - jacobian @ direction, damping)
        count = state.count + 1
        flat, unflatten = _flattened(parameters)
        # While it builds up, momentum is short by this factor.
        move = direction / np.sqrt(1 - self.momentum ** (2 * int(count)))
        best, best_value = None, value
        for halving in range(self.halvings):
            moved = unflatten(flat - (longest * 0.5**halving * move).astype(flat.dtype))
            moved_value = value_at(moved)
            if moved_value < best_value:
                best, best_value = (moved, halving), moved_value
            elif best is not None:
                break
        if best is None:
            return parameters, self.init(parameters)._replace(damping=np.minimum(10 * state.damping, 1.0)), info
        moved, halving = best
        # Halved after a full step, kept after half of one, doubled after a quarter.
        damping = np.clip(state.damping * 2.0 ** (halving - 1), self.damping, 1.0)
        return moved, NaturalState(direction, count, damping), info._replace(length=longest * 0.5**halving)

    def _solve(self, jacobian: np.ndarray, right: np.ndarray, damping: np.ndarray) -> np.ndarray:
        """(JJᵀ + Λ)⁻¹ right, by Cholesky."""
        kernel = _kernel(jacobian)
        mean = float(np.mean(np.diagonal(kernel)))
        if mean == 0:
            return np.zeros_like(right)
        for attempt in range(ATTEMPTS):
            damped = kernel.copy(order="F")
            np.einsum("ii->i", damped)[:] += damping * 100.0**attempt * mean
            try:
                factor = scipy.linalg.cholesky(damped, lower=True, overwrite_a=True, check_finite=False)
            except scipy.linalg.LinAlgError:
                continue
            return scipy.linalg.cho_solve((factor, True), right, check_finite=False)
        return right / mean


def _flattened(parameters: Any) -> tuple[Float[np.ndarray, " parameters"], Callable[[np.ndarray], Any]]:
    """All parameters in one vector on the host, and what makes parameters of such a vector."""
    leaves, structure = jax.tree.flatten(parameters)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def unflatten(flat: np.ndarray) -> Any:
        parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(flat, ends), leaves, strict=True)]
        return jax.tree.unflatten(structure, map(jnp.asarray, parts))

    return np.concatenate([np.asarray(leaf).reshape(-1) for leaf in leaves]), unflatten


def _kernel(jacobian: np.ndarray) -> np.ndarray:
    """The lower triangle of JJᵀ, block by block over all cores. Entries above it are not set.

    BLAS gets one thread per block: its own threads spin between calls and take the cores from JAX. The result is the
    same on any number of cores.
    """
    kernel = np.zeros((len(jacobian), len(jacobian)), order="F")

    def fill(start: int) -> None:
        end = min(start + BLOCK, len(jacobian))
        kernel[start:end, :end] = jacobian[start:end] @ jacobian[:end].T

    # Long blocks first, so that the cores end together.
    on_all_cores(fill, range(0, len(jacobian), BLOCK)[::-1])
    return kernel


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()
