"""Reference solutions on a problem's evaluation grid, kept on disk.

A reference with a version is computed once and kept in the user's cache directory (CLPINN_CACHE overrides it). A file
ends with its SHA-256; a file that does not match is computed again. Files are written atomically, so two processes at
the same time do the work twice at worst.
"""

import hashlib
import inspect
import io
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from clpinn.errors import CacheError
from clpinn.files import cache_folder, is_intact, write_checked
from clpinn.formulation.domain import Box, Grid, Points
from clpinn.formulation.geometry import placed
from clpinn.formulation.membership import is_inside
from clpinn.formulation.pointwise import reference_values
from clpinn.formulation.problem import Problem

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, how many items are done, and how many there are."""


def reference_at(
    problem: Problem, points: Points, theta: Float[np.ndarray, " parameters"]
) -> Float[np.ndarray, "outputs points"]:
    """The reference at points of the box for one theta, in double precision, outputs in the problem's order.

    Outside a domain that is a shape it is NaN, and the problem is not asked for it.
    """
    inside = is_inside(problem, points, theta)
    if not inside.any():
        return np.full((len(problem.outputs), len(points)), np.nan)
    # As many points for every theta, so that JAX compiles operations once.
    points = np.where(inside[:, None], points, np.asarray(points)[np.argmax(inside)])
    given = dict(zip(problem.coordinates, np.asarray(points, dtype=float).T))
    given |= dict(zip(problem.parameters, np.asarray(theta, dtype=float)))
    with jax.enable_x64(True):
        arguments = {name: given[name] for name in problem.parameters} | placed(problem, given)
        solution = reference_values(problem, arguments)
        rows = [np.broadcast_to(np.asarray(solution[name], dtype=float), len(points)) for name in problem.outputs]
    return np.where(inside, np.stack(rows), np.nan)


def reference_table(problem: Problem, progress: Progress | None = None) -> Float[np.ndarray, "thetas outputs points"]:
    """The reference at every candidate theta and evaluation point; from disk if the problem has a version."""
    thetas, points = problem.candidates.points, problem.evaluation.points
    table = kept_table(problem)
    if table is not None:
        return table
    table = np.empty((len(thetas), len(problem.outputs), len(points)))
    for i, theta in enumerate(thetas):
        table[i] = reference_at(problem, points, theta)
        if progress:
            progress("references", i + 1, len(thetas))
    if problem.reference_version is None:
        return table
    path = _path(problem)
    try:
        _write(path, table)
    except OSError as error:
        warnings.warn(f"The reference could not be kept in {path.parent}: {error}. It is used without.", stacklevel=2)
    return table


def kept_table(problem: Problem) -> Float[np.ndarray, "thetas outputs points"] | None:
    """The table of `reference_table` if it is on disk already, None otherwise."""
    if problem.reference_version is None:
        return None
    shape = (len(problem.candidates), len(problem.outputs), len(problem.evaluation))
    try:
        return _read(_path(problem), shape)
    except OSError:  # absent, or no permission to read
        return None
    except CacheError as error:
        warnings.warn(f"{error} It is computed again.", stacklevel=3)
        return None


def _path(problem: Problem) -> Path:
    return cache_folder() / "references" / f"{_name(problem)}.npy"


def _name(problem: Problem) -> str:
    """A file name that changes with the class and its source, the version, the boxes and the grids."""
    kind = type(problem)
    boxes = [problem.coordinates, problem.parameters]
    identity = [kind.__module__, kind.__qualname__, problem.reference_version, problem.outputs, *boxes]
    digest = hashlib.sha256(repr(identity).encode())
    with suppress(OSError, TypeError):  # the source tells apart classes of the same name in two files
        digest.update(inspect.getsource(kind).encode())
    for grid in (problem.candidates, problem.evaluation):
        digest.update(_grid_bytes(grid))
    return f"{kind.__name__}-{digest.hexdigest()[:24]}"


def _grid_bytes(grid: Grid) -> bytes:
    return b"".join(name.encode() + values.tobytes() for name, values in grid.values.items())


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A table mapped from a file, after its checksum has been verified."""
    if not is_intact(path):
        raise CacheError(f"The cached reference {path} is damaged.")
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    if table.shape != shape or table.dtype != np.float64:
        raise CacheError(f"The cached reference {path} is not of this problem.")
    return table


def _write(path: Path, table: np.ndarray) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": table.dtype.str, "fortran_order": False, "shape": table.shape}
    )
    write_checked(path, chain([header.getvalue()], (row.tobytes() for row in table)))


def by_theta(
    solve: Callable[..., Callable[..., np.ndarray]], box: Box, coordinates: tuple, theta: tuple
) -> Float[np.ndarray, "..."]:
    """Values of solve(*theta)(*coordinates) for arrays that broadcast, with one solve per distinct theta.

    The coordinates must lie in the box, because the polynomials of a solver are meaningless outside.
    """
    arrays = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (*coordinates, *theta)))
    flat = np.stack([array.ravel() for array in arrays], axis=1)
    axes = len(coordinates)
    box.check(flat[:, :axes], forbid=True)
    distinct, row = np.unique(flat[:, axes:], axis=0, return_inverse=True)
    solution = np.empty(len(flat))
    for i, values in enumerate(distinct):
        rows = row.ravel() == i
        solution[rows] = solve(*values)(*flat[rows, :axes].T)
    return solution.reshape(arrays[0].shape)
