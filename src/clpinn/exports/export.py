"""A surrogate's fields, and the surrogate itself, in files that other programs read; the ending says the format.

export(surrogate, "field.nc", nu=0.03)          a field at a theta: .nc, .csv, .vtk (fields.py)
export(surrogate, "plate.vtu", r=0.3)            a field on a mesh of a domain that is a shape: .vtu (meshes.py)
export(surrogate, "plate.xdmf", r=0.3)           the same at several times: .xdmf (xdmf.py)
export(surrogate, "burgers.stablehlo")          the surrogate: .stablehlo, .mlir, .onnx (programs.py)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from clpinn.errors import ExportError
from clpinn.exports.fields import FIELDS
from clpinn.exports.meshes import write_mesh
from clpinn.exports.programs import PROGRAMS
from clpinn.exports.xdmf import write_xdmf
from clpinn.files import replacing
from clpinn.surrogate.surrogate import Surrogate

if TYPE_CHECKING:
    import xarray

MESHES = {".vtu": write_mesh, ".xdmf": write_xdmf}
"""What writes a mesh of the domain with a field, by the ending of the file."""


def export(
    surrogate: Surrogate, path: Path | str, count: int | Mapping[str, int] | None = None, /, **given: ArrayLike
) -> None:
    """Write a field, or the surrogate itself, to a file whose ending says the format.

    `count` and the values by name are those of `Surrogate.field`. For .vtu and .xdmf, `count` is the number of points
    along the longest side of the shape.
    """
    path = Path(path)
    if path.suffix in FIELDS:
        write_field(surrogate.field(count, **given), path)
    elif path.suffix in MESHES:
        replacing(path, lambda temporary: MESHES[path.suffix](surrogate, temporary, count, given))
    elif path.suffix in PROGRAMS:
        if given or count is not None:
            raise ExportError(f"{path.suffix} holds the whole surrogate, for any values. Leave {', '.join(given)} out.")
        replacing(path, lambda temporary: temporary.write_bytes(PROGRAMS[path.suffix](surrogate)))
    else:
        raise ExportError(_unknown(path, [*FIELDS, *PROGRAMS, *MESHES]))


def write_field(field: "xarray.Dataset", path: Path | str) -> None:
    """Write a surrogate's field to .nc, .csv or .vtk."""
    path = Path(path)
    if path.suffix in MESHES:
        raise ExportError(
            f"{path.suffix} holds a mesh of the domain, not a grid. Write it from the surrogate: clpinn export RUN "
            f"{path.name} NAME=VALUE, or in Python cl.export(surrogate, {path.name!r}, ...)."
        )
    if path.suffix not in FIELDS:
        raise ExportError(_unknown(path, list(FIELDS)))
    replacing(path, lambda temporary: FIELDS[path.suffix](field, temporary))


def _unknown(path: Path, endings: list[str]) -> str:
    return f"The ending of {path.name} says no format. Use one of {', '.join(endings)}."
