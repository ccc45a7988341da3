"""The linearised equations at one theta as least squares in a spline space: their rows, and the solution.

All points of an element share the same few splines, so rows are dense blocks by element. The normal matrix has a narrow
band; its Cholesky factor is the preconditioner of a few conjugate gradient steps on the rows themselves, which take
back the digits that squaring costs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import LinAlgError, cho_solve_banded, cholesky_banded

from clpinn.estimation.elements import BoxElements, Elements
from clpinn.estimation.perturbed_programs import PerturbedPrograms

BLOCK = 4_000_000
"""Numbers in the largest array of a block of elements."""
DAMPING, LARGEST_DAMPING = 1e-14, 1e-6
"""Damping of the normal matrix, relative to its diagonal: at first, and where the factorisation is given up."""
RANGE = 1e-6
"""Relative weights differ by this factor at most."""
EXTENSION = 1e-4
"""Weight of the rows outside of a domain that is a shape. Their squares hardly move the error inside."""
WEAKEST_STEPS = 3
"""Inverse iterations that find the unknowns which change the rows least."""
STEPS, PRECISION = 12, 1e-20
"""Conjugate gradient steps at most, and the reduction of the squared gradient at which they end."""


class Block(NamedTuple):
    """The rows of some elements of one term."""

    matrix: Float[np.ndarray, "elements rows columns"]
    columns: Int[np.ndarray, "elements columns"]
    residuals: Float[np.ndarray, "elements rows"]
    kinds: int
    """Number of residuals at a point: a row is one of them at one point."""

    def by_kind(self, rows: Float[np.ndarray, "elements rows"]) -> Float[np.ndarray, "elements points kinds"]:
        """Numbers by row, with the kinds of residuals apart."""
        return rows.reshape(len(rows), -1, self.kinds)

    def times(self, factor: Float[np.ndarray, " elements"]) -> "Block":
        """The same rows, multiplied by a factor for each element."""
        return self._replace(matrix=self.matrix * factor[:, None, None], residuals=self.residuals * factor[:, None])

    def at(self, unknowns: Float[np.ndarray, " unknowns"]) -> "Block":
        """Rows of linear equations without a right side, at these unknowns."""
        return self._replace(residuals=_times(self, unknowns))


def assembled(
    programs: PerturbedPrograms,
    by_term: Sequence[Sequence[Elements]],
    network: Any,
    theta: np.ndarray,
    unknowns: Float[np.ndarray, " unknowns"],
    amplitudes: Float[np.ndarray, " outputs"],
) -> Iterator[list[Block]]:
    """The rows of each term, the equation first, at the network with the perturbation that the unknowns give.

    The unknowns of an output are in units of its amplitude. Each residual is divided by the root mean square of its
    slopes, so that rows of equations and of conditions count alike; points count by the volume they stand for.
    """
    for number, regions in enumerate(by_term):
        parts = []
        for elements in regions:
            parts += linearised(programs, number, elements, network, theta, unknowns, amplitudes)
        factor = 1 / slope_sizes(programs, parts)
        yield [part.block(factor) for part in parts]


@dataclass(frozen=True)
class Linearised:
    """Residuals and slopes at the points of some elements of a region."""

    elements: Elements
    chosen: Int[np.ndarray, " elements"]
    products: Float[np.ndarray, "indices elements points splines"]
    columns: Int[np.ndarray, "elements columns"]
    residuals: Float[np.ndarray, "elements points residuals"]
    slopes: Float[np.ndarray, "elements points residuals outputs indices"]

    @property
    def measure(self) -> Float[np.ndarray, "elements points"]:
        return self.elements.measure[self.chosen]

    def block(self, factor: Float[np.ndarray, " residuals"]) -> Block:
        weight = np.sqrt(self.measure)[:, :, None] * factor
        slopes = self.slopes * weight[..., None, None]
        elements, points, residuals, outputs, indices = slopes.shape
        # Sums over the derivatives, for all residuals and outputs at once.
        rows = slopes.reshape(elements, points, residuals * outputs, indices) @ self.products.transpose(1, 2, 0, 3)
        rows = rows.reshape(elements, points, residuals, outputs, -1).swapaxes(3, 4)
        count = points * residuals
        return Block(
            rows.reshape(elements, count, -1), self.columns, (self.residuals * weight).reshape(-1, count), residuals
        )


def linearised(
    programs: PerturbedPrograms,
    term: int,
    elements: Elements,
    network: Any,
    theta: np.ndarray,
    unknowns: np.ndarray,
    amplitudes: np.ndarray,
) -> list[Linearised]:
    """Residuals and slopes of a term in a region, some elements at a time."""
    points = elements.points
    total, count, numbers = points.shape
    splines = math.prod(axis.degree + 1 for axis in elements.space.axes)
    outputs = elements.space.outputs
    largest = max(len(programs.indices) * count * splines, count * splines * outputs**2, (splines * outputs) ** 2)
    parts = []
    for chosen in _some_at_a_time(np.arange(total), largest):
        products = elements.products(chosen, programs.indices)
        columns = elements.columns(chosen)
        local = unknowns[columns].reshape(len(chosen), splines, outputs) * amplitudes
        partials = np.einsum("aeqf,efo->eqoa", products, local, optimize=True)
        flat = partials.reshape(-1, outputs, len(programs.indices))
        values, slopes = programs.residuals(term, network, points[chosen].reshape(-1, numbers), theta, flat)
        values = values.reshape(len(chosen), count, -1)
        slopes = slopes.reshape(*values.shape, outputs, len(programs.indices)) * amplitudes[:, None]
        parts.append(Linearised(elements, chosen, products, columns, values, slopes))
    return parts


def slope_sizes(programs: PerturbedPrograms, parts: Sequence[Linearised]) -> Float[np.ndarray, " residuals"]:
    """The root of the integral of each residual's squared slopes, for splines of height one."""
    widths = np.array([2 / axis.intervals for axis in parts[0].elements.space.axes])
    sizes = np.array([math.prod(widths ** -np.array(index, float)) for index in programs.indices])
    square = sum(np.einsum("eq,eqroa->r", part.measure, (part.slopes * sizes) ** 2, optimize=True) for part in parts)
    return np.sqrt(np.maximum(square, 1e-300))


def extension(elements: BoxElements, order: int) -> list[Block]:
    """Rows for the points outside of a domain that is a shape: there the derivatives of this order along each axis are
    small. So the error continues smoothly where no equation holds, and splines that reach inside by little are known.
    """
    if elements.inside is None:
        return []
    axes, outputs = elements.space.axes, elements.space.outputs
    widths = np.array([2 / axis.intervals for axis in axes])
    indices = [tuple(order if j == k else 0 for j in range(len(axes))) for k in range(len(axes))]
    sizes = EXTENSION * widths**order / math.sqrt(elements.volume.sum())
    points, splines = elements.volume.shape[1], math.prod(axis.degree + 1 for axis in axes)
    largest = max(len(axes) * points * splines * outputs**2, (splines * outputs) ** 2)
    blocks = []
    for chosen in _some_at_a_time(np.flatnonzero(~elements.inside.all(axis=1)), largest):
        weight = np.sqrt(np.where(elements.inside[chosen], 0.0, elements.volume[chosen]))
        slopes = elements.products(chosen, indices) * sizes[:, None, None, None] * weight[:, :, None]
        rows = np.einsum("aeqf,or->eqaofr", slopes, np.eye(outputs))
        kinds = len(axes) * outputs
        count = points * kinds
        rows = rows.reshape(len(chosen), count, -1)
        blocks.append(Block(rows, elements.columns(chosen), np.zeros((len(chosen), count)), kinds))
    return blocks


def _some_at_a_time(elements: Int[np.ndarray, " elements"], largest: int) -> list[Int[np.ndarray, " elements"]]:
    """Elements in parts whose arrays have at most BLOCK numbers, if those of one element have so many."""
    at_once = max(1, BLOCK // largest)
    return [elements[start : start + at_once] for start in range(0, len(elements), at_once)]


def relative_weights(blocks: Sequence[Block]) -> list[Float[np.ndarray, " elements"]]:
    """Factors for each element that make all residuals about equally large."""
    sizes = []
    for block in blocks:
        norms = np.linalg.norm(block.matrix, axis=2)
        relative = block.residuals / np.where(norms > 0, norms, 1.0)
        sizes.append(np.sqrt(np.mean(relative**2, axis=1)))
    floor = RANGE * max(float(size.max()) for size in sizes)
    return [1 / (size + floor) if floor > 0 else np.ones_like(size) for size in sizes]


def largest_left(
    terms: Sequence[Sequence[Block]], left: Sequence[Float[np.ndarray, "elements rows"]], whole: Sequence[np.ndarray]
) -> float:
    """The largest fraction that is left of any residual. `left` and `whole` hold rows by block."""
    largest, number = 0.0, 0
    for blocks in terms:
        remaining, all_of = np.zeros(blocks[0].kinds), np.zeros(blocks[0].kinds)
        for block in blocks:
            remaining += np.sum(block.by_kind(left[number]) ** 2, axis=(0, 1))
            all_of += np.sum(block.by_kind(whole[number]) ** 2, axis=(0, 1))
            number += 1
        fractions = remaining[all_of > 0] / all_of[all_of > 0]
        largest = max(largest, math.sqrt(fractions.max(initial=0.0)))
    return largest


# Solution ----------------------------------------------------------------------------------------------------


class Solved(NamedTuple):
    """The solution of least squares."""

    unknowns: Float[np.ndarray, " unknowns"]
    left: list[Float[np.ndarray, "elements rows"]]
    """What is left of the residuals, by block."""
    weakest: Callable[[], tuple[Float[np.ndarray, " unknowns"], float]]
    """Finds the unknowns, of the root mean square one, that change the rows least, and the norm of that change.

    If it is zero, the rows do not determine all unknowns."""


def solved(size: int, blocks: Sequence[Block], wide: Sequence[Block] = ()) -> Solved | None:
    """The unknowns that make matrix · unknowns + residuals smallest; None if the matrix has no Cholesky factor.

    `wide` are blocks of one element with all unknowns. They have no place in the band.
    """
    band, gradient = _normal_equations(size, blocks)
    scale = 1 / np.sqrt(np.where(band[0] > 0, band[0], 1.0))
    for offset in range(len(band)):
        band[offset, : size - offset] *= scale[: size - offset] * scale[offset:]
    rows = np.concatenate([np.zeros((0, size)), *(block.matrix[0] for block in wide)]) * scale
    narrow = _narrowed(rows, len(band))
    for row in narrow:
        _add_square(band, row)
    factor = _factor(band)
    if factor is None:
        return None

    def in_band(vectors: np.ndarray) -> np.ndarray:
        return cho_solve_banded((factor, True), vectors, check_finite=False)

    # The narrow rows in the band stand for the wide ones, which replace them here (Woodbury's formula).
    changes = np.concatenate([rows, narrow])
    reached = in_band(changes.T) if len(changes) else changes.T
    core = np.diag(np.repeat([1.0, -1.0], len(rows))) + changes @ reached

    def preconditioned(vector: np.ndarray) -> np.ndarray:
        step = in_band(scale * vector)
        if len(changes):
            step = step - reached @ np.linalg.solve(core, changes @ step)
        return scale * step

    blocks = [*blocks, *wide]
    gradient = gradient + sum((_transposed_times(size, block, block.residuals) for block in wide), np.zeros(size))
    # Conjugate gradients for least squares (Hestenes and Stiefel 1952; Björck 1996).
    unknowns = np.zeros(size)
    left = [-block.residuals for block in blocks]
    step = preconditioned(-gradient)
    direction, slope = step, float(-gradient @ step)
    first = slope
    for _ in range(STEPS):
        change = [_times(block, direction) for block in blocks]
        square = sum(float(np.vdot(part, part)) for part in change)
        if not (slope > 0 and square > 0):
            break
        length = slope / square
        unknowns = unknowns + length * direction
        left = [part - length * moved for part, moved in zip(left, change)]
        downhill = sum((_transposed_times(size, block, part) for block, part in zip(blocks, left)), np.zeros(size))
        step = preconditioned(downhill)
        before, slope = slope, float(downhill @ step)
        if slope <= PRECISION * first:
            break
        direction = step + (slope / before) * direction

    def weakest() -> tuple[Float[np.ndarray, " unknowns"], float]:
        vector = np.random.default_rng(0).standard_normal(size)
        for _ in range(WEAKEST_STEPS):
            vector = preconditioned(vector / scale**2)
            vector *= math.sqrt(size) / max(float(np.linalg.norm(vector)), 1e-300)
        return vector, math.sqrt(sum(float(np.sum(_times(block, vector) ** 2)) for block in blocks))

    return Solved(unknowns, left, weakest)


def _normal_equations(size: int, blocks: Sequence[Block]) -> tuple[Float[np.ndarray, "band unknowns"], np.ndarray]:
    """The lower band of the normal matrix, and the gradient at zero."""
    width = max(int(np.ptp(block.columns, axis=1).max()) for block in blocks)
    band, gradient = np.zeros((width + 1) * size), np.zeros(size)
    for block in blocks:
        products = block.matrix.swapaxes(1, 2) @ block.matrix
        first, second = np.tril_indices(products.shape[1])
        i, j = block.columns[:, first], block.columns[:, second]
        place = np.abs(i - j) * size + np.minimum(i, j)
        band += np.bincount(place.ravel(), products[:, first, second].ravel(), len(band))
        gradient += _transposed_times(size, block, block.residuals)
    return band.reshape(width + 1, size), gradient


def _narrowed(rows: Float[np.ndarray, "rows unknowns"], width: int) -> Float[np.ndarray, "rows unknowns"]:
    """The part of each row that is largest in a window of this width, as large as the whole row.

    Where nothing but an integral determines the unknowns, such as the mean of a pressure, these parts do, too.
    """
    narrow = np.zeros_like(rows)
    for row, target in zip(rows, narrow, strict=True):
        sums = np.cumsum(np.concatenate([[0.0], row**2]))
        inside = sums[width:] - sums[:-width]
        start = int(np.argmax(inside))
        if inside[start] > 0:
            target[start : start + width] = row[start : start + width] * math.sqrt(sums[-1] / inside[start])
    return narrow


def _add_square(band: Float[np.ndarray, "band unknowns"], row: Float[np.ndarray, " unknowns"]) -> None:
    """Add the outer product of a row with itself, all of which is in the band."""
    places = np.flatnonzero(row)
    if len(places):
        start, part = places[0], row[places[0] : places[-1] + 1]
        for offset in range(len(part)):
            band[offset, start : start + len(part) - offset] += part[offset:] * part[: len(part) - offset]


def _factor(band: np.ndarray) -> np.ndarray | None:
    damping = DAMPING
    while damping <= LARGEST_DAMPING:
        damped = band.copy()
        damped[0] += damping
        try:
            return cholesky_banded(damped, overwrite_ab=True, lower=True, check_finite=False)
        except LinAlgError:
            damping *= 100
    return None


def _times(block: Block, vector: np.ndarray) -> np.ndarray:
    return (block.matrix @ vector[block.columns][:, :, None])[:, :, 0]


def _transposed_times(size: int, block: Block, rows: np.ndarray) -> np.ndarray:
    sums = (rows[:, None, :] @ block.matrix)[:, 0]
    return np.bincount(block.columns.ravel(), sums.ravel(), size)
