"""A field on a mesh of a domain that is a shape, at several times: .xdmf, for ParaView, VisIt and meshio.

The file is plain XML, with the mesh once and the outputs at each time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import numpy as np
from numpy.typing import ArrayLike

from clpinn.exports.fields import estimates
from clpinn.exports.meshes import Mesh, field_on, mesh_at
from clpinn.surrogate.surrogate import Surrogate

if TYPE_CHECKING:
    import xarray

TIMES = 21
"""Times of a file, evenly spaced, unless they are given."""
NAMES = {2: "Triangle", 3: "Tetrahedron"}
GEOMETRIES = {2: "XY", 3: "XYZ"}


def write_xdmf(
    surrogate: Surrogate, path: Path, count: int | Mapping[str, int] | None, given: Mapping[str, ArrayLike]
) -> None:
    """Write the outputs at one theta to a .xdmf file; if there is time, at all the given times, or at 21."""
    box, fixed, times = surrogate.problem.coordinates, dict(given), [None]
    if "t" in box:
        axis = box["t"]
        times = np.atleast_1d(np.asarray(fixed.pop("t", np.linspace(axis.low, axis.high, TIMES)), float)).tolist()
        fixed["t"] = times[0]
    mesh, fixed = mesh_at(surrogate.problem, path.suffix, count, fixed)
    fields = [field_on(surrogate, mesh, fixed if time is None else fixed | {"t": time}) for time in times]
    path.write_text(_xdmf(mesh, fields, times), "utf-8")


def _xdmf(mesh: Mesh, fields: list["xarray.Dataset"], times: list[Any]) -> str:
    space = mesh.points.shape[1]
    attributes = fields[0].attrs
    title = "; ".join([str(attributes.get("problem", "")), *estimates(fields[0]), str(attributes.get("source", ""))])
    lines = [
        '<?xml version="1.0"?>',
        '<Xdmf Version="3.0" xmlns:xi="http://www.w3.org/2001/XInclude">',
        "<Domain>",
        f'<Information Name="clpinn" Value={quoteattr(title)}/>',
        '<Grid Name="series" GridType="Collection" CollectionType="Temporal">',
    ]
    for field, time in zip(fields, times, strict=True):
        lines.append('<Grid Name="step" GridType="Uniform">')
        lines.append("<xi:include xpointer=\"xpointer(//Grid[@Name='mesh']/*[self::Topology or self::Geometry])\"/>")
        lines.append(f'<Time Value="{0.0 if time is None else time!r}"/>')
        for name, values in field.data_vars.items():
            lines.append(f'<Attribute Name={quoteattr(str(name))} AttributeType="Scalar" Center="Node">')
            lines += [_item(values.values), "</Attribute>"]
        lines.append("</Grid>")
    lines += [
        "</Grid>",
        '<Grid Name="mesh" GridType="Uniform">',
        f'<Geometry GeometryType="{GEOMETRIES[space]}">',
        _item(mesh.points),
        "</Geometry>",
        f'<Topology TopologyType="{NAMES[space]}" NumberOfElements="{len(mesh.cells)}">',
        _item(mesh.cells),
        "</Topology>",
        "</Grid>",
        "</Domain>",
        "</Xdmf>",
    ]
    return "\n".join(lines) + "\n"


def _item(values: np.ndarray) -> str:
    """An array as text."""
    shape = " ".join(map(str, values.shape))
    kind, text = ("Int", "%d") if values.dtype.kind == "i" else ("Float", "%.17g")
    rows = "\n".join(" ".join(text % number for number in np.atleast_1d(row)) for row in values)
    return f'<DataItem DataType="{kind}" Dimensions="{shape}" Format="XML" Precision="8">\n{rows}\n</DataItem>'
