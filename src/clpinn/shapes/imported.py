"""Plane shapes from other programs: shapely, GeoJSON, arrays."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from clpinn.errors import DomainError
from clpinn.shapes.plane import Polygon
from clpinn.shapes.shape import Shape


def polygon(source: Any, name: str = "polygon") -> Shape:
    """A plane shape from a shapely geometry, GeoJSON (a dict or the path of a file), or an array of corners (n, 2).

    Polygons may have holes and may be several. Holes are called "hole". shapely itself is not needed.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.is_file():
            raise DomainError(f"There is no file {path}. Give the path of a GeoJSON file.")
        try:
            source = json.loads(path.read_text())
        except ValueError as error:
            raise DomainError(f"{path} is not GeoJSON: {error}.") from None
    source = getattr(source, "__geo_interface__", source)
    if not isinstance(source, dict):
        return _outline(source, name)
    kind = source.get("type")
    if kind == "Feature":
        return polygon(source["geometry"], name)
    if kind in ("FeatureCollection", "GeometryCollection"):
        parts = source.get("features", source.get("geometries", []))
        return _joined([polygon(part, name) for part in parts])
    if kind == "Polygon":
        return _with_holes(source["coordinates"], name)
    if kind == "MultiPolygon":
        return _joined([_with_holes(rings, name) for rings in source["coordinates"]])
    raise DomainError(f"Expected a polygon or several, but got GeoJSON of the type {kind!r}.")


def _with_holes(rings: Any, name: str) -> Shape:
    if not rings:
        raise DomainError("The polygon is empty: it has no corners.")
    shape: Shape = _outline(rings[0], name)
    for ring in rings[1:]:
        shape = shape - _outline(ring, "hole")
    return shape


def _outline(ring: Any, name: str) -> Polygon:
    if isinstance(ring, jax.Array):
        raise DomainError(
            "cl.polygon reads plain numbers from other programs. For corners that depend on a parameter use "
            "cl.Polygon(corners)."
        )
    try:
        corners = np.asarray([tuple(corner)[:2] for corner in ring], float)
    except (TypeError, ValueError):
        corners = np.zeros((0, 2))
    if corners.ndim != 2 or len(corners) < 3 or not np.isfinite(corners).all():
        raise DomainError(
            f"Expected corners as rows of two finite numbers, but got {np.shape(ring)}: {str(ring)[:80]}."
        )
    return Polygon(corners, name)


def _joined(shapes: list[Shape]) -> Shape:
    if not shapes:
        raise DomainError("There is no polygon in it.")
    whole = shapes[0]
    for shape in shapes[1:]:
        whole = whole | shape
    return whole
