"""A surrogate's fields and the surrogate itself in files that other programs read.

Fields at a theta, by the file's ending:

    .nc          NetCDF, with coordinates, units and provenance (xarray, Python, Julia, MATLAB, ...)
    .csv         one row a point
    .vtk         for ParaView and VisIt: a structured grid in physical coordinates

The surrogate as a function of points and theta:

    .stablehlo   what jax.export wrote; jax.export.deserialize reads it, without clpinn
    .mlir        the same program as StableHLO text, for other compilers
    .onnx        for ONNX runtimes, in single precision, without heads (needs clpinn[export])

    export(surrogate, "field.nc", nu=0.03)
    export(surrogate, "burgers.stablehlo")
"""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import export as jax_export
from numpy.typing import ArrayLike

from clpinn.errors import ExportError
from clpinn.exports.translate.onnx import onnx_model
from clpinn.files import replacing
from clpinn.networks.architecture import precision
from clpinn.surrogate.surrogate import Surrogate

if TYPE_CHECKING:
    import xarray

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
ROWS = 100_000
"""Rows of a table held as text at once."""


def export(
    surrogate: Surrogate, path: Path | str, count: int | Mapping[str, int] | None = None, /, **given: ArrayLike
) -> None:
    """Write a field, or the surrogate itself, to a file whose ending says the format.

    `count` and what is given by name are those of `Surrogate.field`.
    """
    path = Path(path)
    if path.suffix in FIELDS:
        write_field(surrogate.field(count, **given), path)
    elif path.suffix in PROGRAMS:
        if given or count is not None:
            raise ExportError(f"{path.suffix} holds the whole surrogate, for any values. Leave {', '.join(given)} out.")
        replacing(path, lambda temporary: temporary.write_bytes(PROGRAMS[path.suffix](surrogate)))
    else:
        raise ExportError(_unknown(path, [*FIELDS, *PROGRAMS]))


def write_field(field: "xarray.Dataset", path: Path | str) -> None:
    """Write a surrogate's field to .nc, .csv or .vtk."""
    path = Path(path)
    if path.suffix not in FIELDS:
        raise ExportError(_unknown(path, list(FIELDS)))
    replacing(path, lambda temporary: FIELDS[path.suffix](field, temporary))


def _unknown(path: Path, endings: list[str]) -> str:
    return f"The ending of {path.name} says no format. Use one of {', '.join(endings)}."


# Fields -----------------------------------------------------------------------------------------------------


def _netcdf(field: "xarray.Dataset", path: Path) -> None:
    # NetCDF-3 with 64-bit offsets: every reader knows it, and it takes no more than SciPy.
    field.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT")


def _table(field: "xarray.Dataset", path: Path) -> None:
    """One row a point, the last dimension running fastest; numbers with all their digits."""
    named = {name: field[name] for name in [*field.coords, *field.data_vars]}
    import xarray  # here, as it takes long to import

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
        what = f"several values of {', '.join(several)}" if several else f"the axes {', '.join(map(str, dims))}"
        raise ExportError(
            f"A .vtk file holds a grid of at most three axes at one theta, but the field has {what}. Give single "
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
        along = [-1 if other == dim else 1 for other in dims]
        position[:, i] = flat(column.reshape(along) if column.ndim == 1 else column)
    theta = ", ".join(f"{name} = {float(field[name]):g}" for name in field.coords if field[name].ndim == 0)
    title = " ".join(f"{field.attrs.get('problem', '')} {theta}; {field.attrs.get('source', '')}".split())
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
            parts = [flat(field[name].values) if name in field.data_vars else 0 * position[:, 0] for name in "uvw"]
            file.write(b"VECTORS velocity double\n" + big_endian(np.stack(parts, axis=1)))


def _axes(field: "xarray.Dataset") -> list[str]:
    """The dimensions of a field that are coordinates of the problem, not parameters."""
    return [str(name) for name in field.attrs["axes"].split()]


# The surrogate ----------------------------------------------------------------------------------------------


def program(surrogate: Surrogate) -> jax_export.Exported:
    """The surrogate as a function of arrays by name, all of one length, which is left open."""
    dtype = precision(surrogate.network)
    with jax.enable_x64(dtype == np.float64):
        (points,) = jax_export.symbolic_shape("points")
        column = jax.ShapeDtypeStruct((points,), dtype)
        columns = dict.fromkeys(surrogate.problem.axes, column)
        return jax_export.export(jax.jit(surrogate.function()), platforms=PLATFORMS)(**columns)


FIELDS: dict[str, Callable[["xarray.Dataset", Path], None]] = {".nc": _netcdf, ".csv": _table, ".vtk": _vtk}
PROGRAMS: dict[str, Callable[[Surrogate], bytes]] = {
    ".stablehlo": lambda surrogate: bytes(program(surrogate).serialize()),
    ".mlir": lambda surrogate: program(surrogate).mlir_module().encode(),
    ".onnx": lambda surrogate: onnx_model(surrogate).SerializeToString(),
}
