"""Shapes in space."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from clpinn.errors import DomainError
from clpinn.shapes.carried import Cap, Renamed, Wall
from clpinn.shapes.pieces import Bounds, Facets, Piece, Sphere
from clpinn.shapes.plane import Disk, Rectangle
from clpinn.shapes.shape import Shape, joined_parts, number, numbers


class Ball(Shape):
    """`cl.Ball((0, 0, 0), 1)`: the centre and the radius. Its boundary is called "ball", or `name`."""

    centre: Float[Array, " 3"]
    radius: Float[Array, ""]
    name: str = eqx.field(static=True)

    def __init__(self, centre: Any, radius: ArrayLike, name: str = "ball"):
        self.centre, self.radius, self.name = numbers(centre, 3, "The centre"), number(radius), name

    @property
    def space(self) -> int:
        return 3

    @property
    def bounds(self) -> Bounds:
        return self.centre - self.radius, self.centre + self.radius

    def distance(self, x: Array) -> Array:
        return jnp.linalg.norm(x - self.centre) - self.radius

    def pieces(self) -> tuple[Piece, ...]:
        return (Sphere(self.centre, self.radius, names=(self.name,)),)

    def mistake(self) -> str | None:
        if not self.radius > 0:
            return f"the radius of {self.name!r} must be above zero, but is {float(self.radius):g}"
        return None


class Extrusion(Shape):
    """`cl.Extrusion(shape, (0, 2))`: a plane shape in the first two coordinates, drawn along the third.

    Its boundary has the pieces of that shape, and "bottom" and "top". With a `name` all pieces have this name, too. If
    the shape has sides called bottom and top itself, give it other names, or use `cl.Cuboid`.
    """

    shape: Shape
    low: Float[Array, ""]
    high: Float[Array, ""]
    name: str | None = eqx.field(static=True)

    def __init__(self, shape: Shape, z: Any, name: str | None = None):
        if shape.space != 2:
            raise DomainError(f"Only a shape in the plane can be extruded, but this one has {shape.space} coordinates.")
        self.shape, self.name = shape, name
        self.low, self.high = numbers(z, 2, "The third axis of an extrusion")

    @property
    def space(self) -> int:
        return 3

    @property
    def bounds(self) -> Bounds:
        low, high = self.shape.bounds
        return jnp.append(low, self.low), jnp.append(high, self.high)

    def distance(self, x: Array) -> Array:
        beyond = jnp.maximum(self.low - x[2], x[2] - self.high)
        return jnp.maximum(self.shape.distance(x[:2]), beyond)

    def pieces(self) -> tuple[Piece, ...]:
        pieces: list[Piece] = [Wall(piece, self.low, self.high) for piece in self.shape.pieces()]
        for name, height in (("bottom", self.low), ("top", self.high)):
            pieces.append(Cap(self.shape, self.shape.bounds, height, name == "top", (name,)))
        return tuple(pieces if self.name is None else [Renamed(piece, (self.name, *piece.names)) for piece in pieces])

    def mistake(self) -> str | None:
        if not self.low < self.high:
            return f"an extrusion needs low < high, but is from {float(self.low):g} to {float(self.high):g}"
        return self.shape.mistake()

    def joined(self, cut_out: bool) -> Iterator[Shape]:
        if cut_out:  # its walls and ends go on outside
            yield self
        else:
            for part in joined_parts(self.shape):
                yield part if self.name is None else part.named(self.name)


def Cylinder(centre: Any, radius: ArrayLike, z: Any, name: str | None = None) -> Extrusion:
    """`cl.Cylinder((0, 0), r, (0, 2))`: a disk in the first two coordinates, drawn along the third.

    Its boundary has the pieces "side", "bottom" and "top", which all have the `name` as well, if there is one.
    """
    return Extrusion(Disk(centre, radius, "side"), z, name)


def Cuboid(*, name: str | None = None, **sides: Any) -> Extrusion:
    """`cl.Cuboid(x=(0, 1), y=(0, 1), z=(0, 2))`, with the sides left and right, front and back, bottom and top.

    The first axis is from left to right, the second from front to back.
    """
    if len(sides) != 3:
        raise DomainError(f"Expected 3 intervals, as in cl.Cuboid(x=(0, 1), y=(0, 1), z=(0, 2)), but got {sides}.")
    *flat, third = sides
    plane = Rectangle(**{axis: sides[axis] for axis in flat}, sides=("front", "right", "back", "left"))
    return Extrusion(plane, sides[third], name)


class Surface(Shape):
    """What a closed surface of triangles encloses: `cl.Surface("part.stl")`, or `cl.Surface(corners)`.

    Files are read by trimesh (`pip install 'clpinn[meshes]'`): STL, OBJ, PLY and others. `corners` is an array of shape
    (triangles, 3, 3), anticlockwise as seen from outside. The shape does not depend on theta, but it can be moved. Its
    boundary is called "surface", or `name`.
    """

    corners: Float[Array, "triangles 3 3"]
    name: str = eqx.field(static=True)

    def __init__(self, source: Any, name: str = "surface"):
        corners: Any = _surface_in(Path(source)) if isinstance(source, str | Path) else np.asarray(source, float)
        if corners.ndim != 3 or corners.shape[1:] != (3, 3) or len(corners) < 4:
            raise DomainError(
                f"A surface needs corners of shape (triangles, 3, 3), at least four triangles, but got {corners.shape}."
            )
        open_edges = _open_edges(corners)
        if open_edges:
            raise DomainError(
                f"The surface {str(source) if isinstance(source, str | Path) else name!r} is not closed: {open_edges} "
                "of its edges do not belong to exactly two triangles that run along them in opposite directions. "
                "Repair the mesh, for example by trimesh.repair."
            )
        volume = np.sum(np.einsum("ti,ti->t", corners[:, 0], np.cross(corners[:, 1], corners[:, 2]))) / 6
        if volume < 0:
            corners = corners[:, ::-1]
        self.corners, self.name = corners, name

    @property
    def space(self) -> int:
        return 3

    @property
    def bounds(self) -> Bounds:
        points = self.corners.reshape(-1, 3)
        return jnp.min(points, axis=0), jnp.max(points, axis=0)

    def distance(self, x: Array) -> Array:
        """0.5 - the winding number (solid angles by van Oosterom and Strackee 1983), scaled to the extent."""
        a, b, c = (self.corners[:, i] - x for i in range(3))
        la, lb, lc = (jnp.linalg.norm(v, axis=1) for v in (a, b, c))
        above = jnp.sum(a * jnp.cross(b, c), axis=1)
        below = la * lb * lc + jnp.sum(a * b, axis=1) * lc + jnp.sum(b * c, axis=1) * la + jnp.sum(c * a, axis=1) * lb
        winding = jnp.sum(jnp.arctan2(above, below)) / (2 * jnp.pi)
        low, high = self.bounds
        return (0.5 - winding) * jnp.linalg.norm(high - low)

    def pieces(self) -> tuple[Piece, ...]:
        return (Facets(self.corners, names=(self.name,)),)

    def joined(self, cut_out: bool) -> Iterator[Shape]:
        if cut_out or not self._convex:  # the plane of a triangle goes on beyond it
            yield self

    @property
    def _convex(self) -> bool:
        a, b, c = (self.corners[:, i] for i in range(3))
        normals = np.cross(b - a, c - a)
        points = np.unique(self.corners.reshape(-1, 3), axis=0)
        heights = normals @ points.T - np.sum(normals * a, axis=1)[:, None]
        return bool(np.max(heights) <= 1e-9 * np.ptp(points) ** 3)


def _surface_in(path: Path) -> np.ndarray:
    """The triangles of a mesh file, kept while it stays the same: a problem draws its shape many times."""
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    return _read_surface(path, changed).copy()


@lru_cache(maxsize=4)
def _read_surface(path: Path, changed: int) -> np.ndarray:
    try:
        import trimesh
    except ImportError:
        raise DomainError(
            f"Reading {path} needs trimesh: pip install 'clpinn[meshes]'. Or give the corners of the triangles as an "
            "array of shape (triangles, 3, 3)."
        ) from None
    if not path.is_file():
        raise DomainError(f"There is no file {path}. Give the path of a mesh, such as an STL file.")
    try:
        mesh = trimesh.load(path, force="mesh")
        corners = np.asarray(mesh.triangles, float)  # pyright: ignore[reportAttributeAccessIssue]
    except Exception as error:
        raise DomainError(f"{path} could not be read as a mesh: {type(error).__name__}: {error}.") from error
    return corners


def _open_edges(corners: np.ndarray) -> int:
    """The number of directed edges without a partner in the opposite direction."""
    points, index = np.unique(np.round(corners.reshape(-1, 3), 12), axis=0, return_inverse=True)
    triangles = index.reshape(-1, 3)
    edges = np.concatenate([triangles[:, [i, (i + 1) % 3]] for i in range(3)])
    codes, counts = np.unique(edges @ np.array([len(points), 1]), return_counts=True)
    partners = np.isin(codes, edges[:, ::-1] @ np.array([len(points), 1]))
    return int(np.sum(~partners | (counts != 1)))
