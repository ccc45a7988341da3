"""A field on a mesh of the domain, for domains that are shapes: .vtu, an unstructured grid for ParaView and VisIt.

The mesh has points inside the domain and on its boundary. scipy.spatial.Delaunay connects them to triangles, or to
tetrahedra in space; those whose middle is outside are left out.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from clpinn.errors import ExportError
from clpinn.exports.fields import estimates
from clpinn.formulation.domain import Points
from clpinn.formulation.outlines import boundary_cloud, boundary_curves, bounds, distances
from clpinn.formulation.problem import Problem
from clpinn.formulation.shaped import spanned
from clpinn.surrogate.provenance import ESTIMATED, estimated_at
from clpinn.surrogate.surrogate import Surrogate

if TYPE_CHECKING:
    import xarray

ACROSS = {2: 100, 3: 25}
"""Points along the longest side of a shape by default, by its number of coordinates."""
CLEARANCE = 0.4
"""Points inside keep this fraction of the spacing away from the boundary, so that no cell is much too flat."""
TOO_CLOSE = 0.2
"""Of two points on the boundary that are closer than this fraction of the spacing, one is left out."""
JITTER = 0.05
"""Points in space are moved by up to this fraction of the spacing: a regular grid has no unique tetrahedra."""
FLAT = 1e-4
"""Cells of less than this fraction of a regular cell's size are left out."""
CELL_TYPES = {2: 5, 3: 10}
"""VTK's numbers for triangles and tetrahedra."""


@dataclass(frozen=True)
class Mesh:
    """Points and the cells between them: triangles, or tetrahedra in space."""

    points: Points
    cells: Int[np.ndarray, "cells corners"]


def write_mesh(
    surrogate: Surrogate, path: Path, count: int | Mapping[str, int] | None, given: Mapping[str, ArrayLike]
) -> None:
    """Write the outputs at one theta, and at one time if there is time, to a .vtu file.

    `count` is the number of points along the longest side of the shape.
    """
    mesh, fixed = mesh_at(surrogate.problem, path.suffix, count, given)
    field = field_on(surrogate, mesh, fixed)
    path.write_text(_vtu(field, mesh, fixed, len(spanned(surrogate.problem))), "utf-8")


def mesh_at(
    problem: Problem, ending: str, count: int | Mapping[str, int] | None, given: Mapping[str, ArrayLike]
) -> tuple[Mesh, dict[str, float]]:
    """The mesh for a file with this ending, and the values of all parameters and of the time."""
    if problem.domain is None:
        raise ExportError(
            f"A {ending} file holds a mesh of a domain that is a shape, but the domain of {type(problem).__name__} is "
            "a box. Write .vtk."
        )
    if isinstance(count, Mapping):
        raise ExportError("A mesh has one number of points, that along the longest side. Give a single number.")
    fixed = _fixed_values(problem, ending, given)
    return make_mesh(problem, {name: fixed[name] for name in problem.parameters}, count), fixed


def make_mesh(problem: Problem, theta: Mapping[str, float], count: int | None = None) -> Mesh:
    """A mesh of the domain at one theta, with `count` points along its longest side."""
    low, high = bounds(problem, theta)
    count = ACROSS[len(low)] if count is None else count
    if count < 2:
        raise ExportError(f"A mesh needs at least two points along its longest side, but got {count}.")
    spacing = float(np.max(high - low)) / (count - 1)
    edge = boundary_curves(problem, theta, spacing) if len(low) == 2 else [boundary_cloud(problem, theta, spacing)]
    on_boundary = _apart(np.concatenate(edge), TOO_CLOSE * spacing)
    inner = _lattice(low, high, spacing)
    inner = inner[distances(problem, inner, theta) < -CLEARANCE * spacing]
    return _connected(problem, theta, np.concatenate([on_boundary, inner]), spacing)


def _fixed_values(problem: Problem, ending: str, given: Mapping[str, ArrayLike]) -> dict[str, float]:
    """The single values of all parameters, and of the time if there is one."""
    wanted = [*problem.parameters, *(name for name in problem.coordinates if name not in spanned(problem))]
    missing, unknown = [n for n in wanted if n not in given], [n for n in given if n not in wanted]
    if missing or unknown or any(np.ndim(value) for value in given.values()):
        raise ExportError(
            f"A {ending} file holds a mesh at one value of each of {', '.join(wanted)}, but got "
            f"{', '.join(f'{name}={value}' for name, value in given.items()) or 'none'}. Give single values of all of "
            "them, and of no other coordinate."
        )
    return {name: float(np.asarray(given[name], float)) for name in wanted}


# Meshes ------------------------------------------------------------------------------------------------------------


def _lattice(low: np.ndarray, high: np.ndarray, spacing: float) -> Points:
    """Evenly spaced points in a box: corners of equal triangles, or of cubes that are moved a little."""
    if len(low) == 2:
        height = spacing * np.sqrt(3) / 2
        rows = np.arange(low[1] + height / 2, high[1], height)
        across = np.arange(low[0], high[0], spacing)
        x = across + spacing / 2 * (np.arange(len(rows)) % 2)[:, None]
        return np.stack([x.ravel(), np.repeat(rows, len(across))], axis=1)
    axes = [np.arange(a + spacing / 2, b, spacing) for a, b in zip(low, high, strict=True)]
    points = np.stack([column.ravel() for column in np.meshgrid(*axes, indexing="ij")], axis=1)
    return points + JITTER * spacing * np.random.default_rng(0).uniform(-1, 1, points.shape)


def _apart(points: Points, least: float) -> Points:
    """The points without those that are closer than this to an earlier one that stays. Ends of curves come first."""
    from scipy.spatial import KDTree  # here, because it takes long to import

    kept = np.ones(len(points), bool)
    pairs = KDTree(points).query_pairs(least, output_type="ndarray")
    for first, second in pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]:
        if kept[first]:
            kept[second] = False
    return points[kept]


def _connected(problem: Problem, theta: Mapping[str, float], points: Points, spacing: float) -> Mesh:
    """Cells between points; points that belong to no cell are left out."""
    from scipy.spatial import Delaunay  # here, because it takes long to import

    cells = Delaunay(points).simplices
    corners = points[cells]
    sizes = np.linalg.det(corners[:, 1:] - corners[:, :1])
    inside = distances(problem, corners.mean(axis=1), theta) < 0
    kept = inside & (np.abs(sizes) > FLAT * spacing ** points.shape[1])
    cells, sizes = cells[kept], sizes[kept]
    cells[sizes < 0, :2] = cells[sizes < 0, 1::-1]  # VTK wants them anticlockwise
    used, numbers = np.unique(cells, return_inverse=True)
    return Mesh(points[used], numbers.reshape(cells.shape))


def field_on(surrogate: Surrogate, mesh: Mesh, fixed: Mapping[str, float]) -> "xarray.Dataset":
    """The outputs at the points of a mesh, with what is known of them."""
    import xarray  # here, because it takes long to import

    columns = dict(zip(spanned(surrogate.problem), mesh.points.T, strict=True))
    outputs = surrogate(**columns, **fixed)
    field = xarray.Dataset({name: ("point", values) for name, values in outputs.items()}, dict(fixed))
    field = field.assign_attrs(surrogate.provenance())
    return field.assign_attrs(estimated_at(field, surrogate.errors, surrogate.heads))


# Files -------------------------------------------------------------------------------------------------------------


def _vtu(field: "xarray.Dataset", mesh: Mesh, fixed: Mapping[str, float], space: int) -> str:
    """VTK XML with arrays in base64. The title is a comment; theta and the estimated errors are field data, too."""
    position = np.zeros((len(mesh.points), 3))
    position[:, :space] = mesh.points
    ends = np.arange(1, len(mesh.cells) + 1) * mesh.cells.shape[1]
    arrays = [_array(str(name), field[name].values) for name in field.data_vars]
    if {"u", "v"} <= set(field.data_vars):
        zero = np.zeros(len(position))
        velocity = [field[name].values if name in field.data_vars else zero for name in "uvw"]
        arrays.append(_array("velocity", np.stack(velocity, axis=1)))
    known = {name: value for name, value in field.attrs.items() if str(name).startswith(ESTIMATED)}
    values = [_array(name, np.array([float(value)]), tuples=1) for name, value in {**fixed, **known}.items()]
    theta = ", ".join(f"{name} = {value:g}" for name, value in fixed.items())
    title = "; ".join([f"{field.attrs.get('problem', '')} {theta}", *estimates(field), field.attrs.get("source", "")])
    lines = [
        '<?xml version="1.0"?>',
        f"<!-- {' '.join(title.split()).replace('--', '- -')} -->",
        '<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian" header_type="UInt64">',
        "<UnstructuredGrid>",
        "<FieldData>",
        *values,
        "</FieldData>",
        f'<Piece NumberOfPoints="{len(position)}" NumberOfCells="{len(mesh.cells)}">',
        "<Points>",
        _array("points", position),
        "</Points>",
        "<Cells>",
        _array("connectivity", mesh.cells.ravel()),
        _array("offsets", ends),
        _array("types", np.full(len(mesh.cells), CELL_TYPES[space], np.uint8)),
        "</Cells>",
        "<PointData>",
        *arrays,
        "</PointData>",
        "</Piece>",
        "</UnstructuredGrid>",
        "</VTKFile>",
    ]
    return "\n".join(lines) + "\n"


def _array(name: str, values: Float[np.ndarray, "rows ..."] | np.ndarray, tuples: int | None = None) -> str:
    """An array in base64, its length in bytes before it."""
    kinds = {"f": ("Float64", "<f8"), "i": ("Int64", "<i8"), "u": ("UInt8", "u1")}
    kind, dtype = kinds[values.dtype.kind]
    content = np.ascontiguousarray(values, dtype).tobytes()
    encoded = base64.b64encode(np.array([len(content)], "<u8").tobytes() + content).decode()
    attributes = f'type="{kind}" Name={quoteattr(name)} format="binary"'
    if values.ndim > 1:
        attributes += f' NumberOfComponents="{values.shape[1]}"'
    if tuples is not None:
        attributes += f' NumberOfTuples="{tuples}"'
    return f"<DataArray {attributes}>{encoded}</DataArray>"
