"""A field in files that other programs read.

.nc     NetCDF, with coordinates, units, provenance and estimated errors (xarray, Python, Julia, MATLAB, ...)
.csv    one row per point
.vtk    for ParaView and VisIt: a structured grid in physical coordinates

Outside a domain that is a shape, outputs are NaN. meshes.py writes .vtu, a mesh of such a domain.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clpinn.errors import ExportError

if TYPE_CHECKING:
    import xarray

ROWS = 100_000
"""Rows of a table that are held as text at once."""


def _netcdf(field: "xarray.Dataset", path: Path) -> None:
    # NetCDF-3 with 64-bit offsets: every reader knows it, and SciPy alone can write it.
    field.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")


def _table(field: "xarray.Dataset", path: Path) -> None:
    """One row per point, the last dimension running fastest; numbers with all their digits."""
    named = {name: field[name] for name in [*field.coords, *field.data_vars]}
    import xarray  # only now, because it takes long to import

    columns = xarray.broadcast(*named.values())
    dims = field[next(iter(field.data_vars))].dims
    flat = [column.transpose(*dims).values for column in columns]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(named)
        for start in range(0, flat[0].size, ROWS):
            writer.writerows(zip(*(column.flat[start : start + ROWS].tolist() for column in flat), strict=True))


def _vtk(field: "xarray.Dataset", path: Path) -> None:
    """Legacy VTK, binary: a structured grid of points, scalars by output, and the velocity of a flow as a vector."""
    dims = field[next(iter(field.data_vars))].dims
    several = [str(name) for name in dims if name not in _axes(field)]
    if several or len(dims) > 3:
        excess = f"several values of {', '.join(several)}" if several else f"the axes {', '.join(map(str, dims))}"
        raise ExportError(
            f"A .vtk file holds a grid of at most three axes at one theta, but the field has {excess}. Give single "
            "values, or write .nc."
        )
    shape = field[next(iter(field.data_vars))].shape

    def flat(values: np.ndarray) -> np.ndarray:  # the first axis runs fastest
        return np.broadcast_to(values, shape).ravel(order="F")

    def big_endian(values: np.ndarray) -> bytes:
        return np.ascontiguousarray(values, ">f8").tobytes() + b"\n"

    spatial = [name.removeprefix("box_") for name in map(str, dims)]
    position = np.zeros((max(1, int(np.prod(shape))), 3))
    for i, (name, dim) in enumerate(zip(spatial, dims)):
        column = field[name].values
        broadcastable = [-1 if other == dim else 1 for other in dims]
        position[:, i] = flat(column.reshape(broadcastable) if column.ndim == 1 else column)
    theta = ", ".join(f"{name} = {float(field[name]):g}" for name in field.coords if field[name].ndim == 0)
    titles = [f"{field.attrs.get('problem', '')} {theta}", *estimates(field), field.attrs.get("source", "")]
    title = " ".join("; ".join(titles).split())
    sizes = " ".join(map(str, [*shape, *[1] * (3 - len(shape))]))
    with path.open("wb") as file:
        header = ["# vtk DataFile Version 3.0", title.encode("ascii", "replace").decode()[:250], "BINARY"]
        header += ["DATASET STRUCTURED_GRID", f"DIMENSIONS {sizes}", f"POINTS {len(position)} double"]
        file.write(("\n".join(header) + "\n").encode() + big_endian(position))
        file.write(f"POINT_DATA {len(position)}\n".encode())
        for name, variable in field.data_vars.items():
            file.write(f"SCALARS {name} double 1\nLOOKUP_TABLE default\n".encode())
            file.write(big_endian(flat(variable.values)))
        if {"u", "v"} <= set(field.data_vars) and spatial[:2] == ["x", "y"]:
            columns = [flat(field[name].values) if name in field.data_vars else 0 * position[:, 0] for name in "uvw"]
            file.write(b"VECTORS velocity double\n" + big_endian(np.stack(columns, axis=1)))


def estimates(field: "xarray.Dataset") -> list[str]:
    """The estimated relative L2 error of each output in words, where it is known."""
    errors = {name: field.attrs.get(f"estimated_relative_l2_{name}") for name in field.data_vars}
    return [f"estimated relative L2 error of {name} {error:.1e}" for name, error in errors.items() if error is not None]


def _axes(field: "xarray.Dataset") -> list[str]:
    """The dimensions of a field that are coordinates of the problem, not parameters."""
    return [str(name) for name in field.attrs["axes"].split()]


FIELDS: dict[str, Callable[["xarray.Dataset", Path], None]] = {".nc": _netcdf, ".csv": _table, ".vtk": _vtk}
"""How a field is written, by the file's ending."""
