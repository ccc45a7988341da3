"""Shapes against shapely, trimesh and formulas: membership, boundaries, measures, moments, each for several thetas."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shapely
import trimesh
from shapely import affinity

import clpinn as cl
from clpinn.shapes import points
from clpinn.shapes.shape import Shape

THETAS = np.array([0.3, 0.45, 0.7])
FINE = 256
"""Segments of a quarter of a circle in shapely."""


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def circle(x: float, y: float, radius: float) -> Any:
    # A little larger, so that the polygon has the area of the circle.
    step = np.pi / 2 / FINE
    return shapely.Point(x, y).buffer(radius * np.sqrt(step / np.sin(step)), quad_segs=FINE)


def slice_of(radius: float, start: float, end: float) -> Any:
    angles = np.linspace(start, end, 4 * FINE)
    return shapely.Polygon([(0, 0), *np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=1)])


def below(x: float, y: float, nx: float, ny: float) -> Any:
    """A large square on one side of a line."""
    far = np.array([[0, -9], [-9, -9], [-9, 9], [0, 9]])
    return shapely.Polygon(np.array([x, y]) + far @ np.array([[nx, ny], [-ny, nx]]) / np.hypot(nx, ny))


def square(x: tuple[float, float], y: tuple[float, float]) -> Any:
    return shapely.box(x[0], y[0], x[1], y[1])


class Case(NamedTuple):
    make: Callable[[Any], Shape]
    oracle: Callable[[float], Any]
    """The same as a shapely geometry."""
    accuracy: float = 3e-3
    """Of lengths and areas from 4096 points: pieces that are cut, and polygons, have an error where points miss."""


R, D = cl.Rectangle, cl.Disk
PLATE, WIDE = R(x=(-1, 1), y=(-1, 1)), square((-1, 1), (-1, 1))
ARROW = [(0, 0), (2, 1), (0, 2), (0.5, 1)]
WEDGE = cl.HalfPlane((0, 0), (1, 0)) & cl.HalfPlane((0, 0), (0, 1))
QUARTER = below(0, 0, 1, 0) & below(0, 0, 0, 1)
PLANE = {
    "rectangle": Case(lambda a: R(x=(0, 1 + a), y=(-1, a)), lambda a: square((0, 1 + a), (-1, a)), 1e-12),
    "disk": Case(lambda a: D((a, 1), a), lambda a: circle(a, 1, a), 1e-6),
    "ellipse": Case(
        lambda a: cl.Ellipse((1, a), (2, a)), lambda a: affinity.scale(circle(1, a, 1), 2, a, origin=(1, a)), 1e-5
    ),
    "triangle": Case(
        lambda a: cl.Polygon([(0, 0), (1 + a, 0), (a, 1)]), lambda a: shapely.Polygon([(0, 0), (1 + a, 0), (a, 1)])
    ),
    "clockwise": Case(
        lambda a: cl.Polygon([(0, 0), (a, 1), (1 + a, 0), (0, 0)]),
        lambda a: shapely.Polygon([(0, 0), (a, 1), (1 + a, 0)]),
    ),
    "arrow": Case(lambda a: cl.Polygon([*ARROW[:3], (a, 1)]), lambda a: shapely.Polygon([*ARROW[:3], (a, 1)])),
    "clockwise arrow": Case(
        lambda a: cl.Polygon([(a, 1), *ARROW[2::-1]]), lambda a: shapely.Polygon([*ARROW[:3], (a, 1)])
    ),
    "known polygon": Case(lambda a: cl.Polygon(np.array(ARROW)), lambda a: shapely.Polygon(ARROW)),
    "sector": Case(lambda a: cl.Sector((0, 0), 1 + a, a, 3), lambda a: slice_of(1 + a, a, 3), 1e-5),
    "wide sector": Case(lambda a: cl.Sector((0, 0), 1, -a, 3 + 2 * a), lambda a: slice_of(1, -a, 3 + 2 * a), 1e-5),
    "cut disk": Case(
        lambda a: D((0, 0), 1) & cl.HalfPlane((0, a), (a, 1)), lambda a: circle(0, 0, 1) & below(0, a, a, 1)
    ),
    "hole": Case(lambda a: PLATE - D((0, 0.1), a), lambda a: WIDE - circle(0, 0.1, a), 1e-6),
    "hole that touches a wall": Case(
        lambda a: PLATE - D((1 - a, 0), a), lambda a: WIDE - circle(1 - a, 0, a)
    ),
    "hole half outside": Case(
        lambda a: PLATE - D((1, 0.2), a), lambda a: WIDE - circle(1, 0.2, a)
    ),
    "hole that leaves": Case(
        lambda a: PLATE - D((4 * a, 0), 0.5), lambda a: WIDE - circle(4 * a, 0, 0.5)
    ),
    "notch at a wall": Case(
        lambda a: R(x=(0, 2), y=(0, 2)) - R(x=(2 - a, 2), y=(0.5, 1)),
        lambda a: square((0, 2), (0, 2)) - square((2 - a, 2), (0.5, 1)),
    ),
    "cut along a side": Case(
        lambda a: R(x=(0, 1), y=(0, 1)) - R(x=(1, 2), y=(0, a)), lambda a: square((0, 1), (0, 1)), 1e-3
    ),
    "side by side": Case(
        lambda a: R(x=(0, 1), y=(0, 1)) | R(x=(1, 1 + a), y=(0, 1)), lambda a: square((0, 1 + a), (0, 1)), 1e-12
    ),
    "L": Case(
        lambda a: R(x=(0, 2), y=(0, 1)) | R(x=(0, a), y=(0, 2)),
        lambda a: square((0, 2), (0, 1)) | square((0, a), (0, 2)),
    ),
    "common corner": Case(
        lambda a: R(x=(0, 2), y=(0, 1)) & R(x=(0, a), y=(0, 2)), lambda a: square((0, a), (0, 1))
    ),
    "same": Case(lambda a: D((0, 0), a) | D((0, 0), a), lambda a: circle(0, 0, a), 1e-6),
    "touching from inside": Case(lambda a: D((0, 0), 1) | D((1 - a, 0), a), lambda a: circle(0, 0, 1)),
    "nested": Case(
        lambda a: ((D((0, 0), 1) | R(x=(0, 2), y=(-a, a))) - D((0, 0), a)) & cl.HalfPlane((1.5, 0), (1, 0.5)),
        lambda a: ((circle(0, 0, 1) | square((0, 2), (-a, a))) - circle(0, 0, a)) & below(1.5, 0, 1, 0.5),
    ),
    "wedge cut out": Case(
        lambda a: PLATE - WEDGE.rotate(a).translate(0.2, a),
        lambda a: WIDE - affinity.translate(affinity.rotate(QUARTER, a, (0, 0), True), 0.2, a),
    ),
    "turned wedge": Case(
        lambda a: WEDGE.rotate(a, (0.1, 0)).scale(2.5) & D((0, 0), 1),
        lambda a: circle(0, 0, 1)
        & affinity.scale(affinity.rotate(QUARTER, a, (0.1, 0), True), 2.5, 2.5, origin=(0, 0)),
    ),
    "moved": Case(
        lambda a: (R(x=(0, 2), y=(0, 1)) - D((1, 1), 0.5)).translate(a, -a).rotate(a, (1, a)).scale(2 * a, (3, 0)),
        lambda a: affinity.scale(
            affinity.rotate(affinity.translate(square((0, 2), (0, 1)) - circle(1, 1, 0.5), a, -a), a, (1, a), True),
            2 * a, 2 * a, origin=(3, 0),
        ),
    ),
}  # fmt: skip


def moments(x: Any) -> Any:
    """First and second moments of points (..., space)."""
    pairs = [(i, j) for i in range(x.shape[-1]) for j in range(i + 1)]
    return np.stack([*np.moveaxis(x, -1, 0), *(x[..., i] * x[..., j] for i, j in pairs)], axis=-1)


def triangle_mean(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Mean moments over triangles, exact: the middles of the sides are a rule of degree two."""
    return (moments((a + b) / 2) + moments((b + c) / 2) + moments((c + a) / 2)) / 3


def segment_mean(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean moments over segments, exact by Simpson's rule."""
    return (moments(a) + 4 * moments((a + b) / 2) + moments(b)) / 6


def rings(geometry: Any) -> list[np.ndarray]:
    parts = getattr(geometry, "geoms", [geometry])
    return [
        shapely.get_coordinates(ring)
        for part in map(shapely.geometry.polygon.orient, parts)
        for ring in shapely.get_rings(part)
    ]


def exact_moments(geometry: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean moments of a plane geometry, and of its boundary."""
    a, b = (np.concatenate([ring[part] for ring in rings(geometry)]) for part in (slice(-1), slice(1, None)))
    areas, lengths = (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]) / 2, np.linalg.norm(b - a, axis=1)
    inside = areas @ triangle_mean(np.zeros_like(a), a, b) / areas.sum()
    return inside, lengths @ segment_mean(a, b) / lengths.sum()


def agree(samples: np.ndarray, exact: np.ndarray) -> None:
    """Means agree within five standard errors, and a little for the segments of circles."""
    error = np.abs(samples.mean(axis=0) - exact)
    assert len(samples) > 300
    assert np.all(error <= 5 * samples.std(axis=0) / np.sqrt(len(samples)) + 1e-5), error


def grid(space: int) -> np.ndarray:
    """Numbers in the middle of cells of the unit interval or square."""
    if space == 2:
        return ((np.arange(4096) + 0.5) / 4096)[:, None]
    side = (np.arange(64) + 0.5) / 64
    return np.stack([axis.ravel() for axis in np.meshgrid(side, side, indexing="ij")], axis=1)


def everything(make: Callable[[Any], Shape], around: tuple[float, float], space: int) -> dict[str, Any]:
    """What is tested of a shape, for all thetas at once."""
    random = np.random.default_rng(3)
    units, anywhere = random.random((4096, 5)), random.uniform(*around, (2048, space))

    @jax.jit
    @jax.vmap
    def of(theta: Any) -> dict[str, Any]:
        shape = make(theta)
        inside = jax.vmap(lambda unit: points.inside(shape, unit[:space]))(units)
        on = jax.vmap(lambda unit: points.on_boundary(shape, shape.pieces(), unit[: space + 1]))(units)
        return {
            "volume": points.volume(shape, jnp.asarray(grid(space))),
            "measure": points.measure(shape, shape.pieces(), jnp.asarray(grid(space))),
            "distance": jax.vmap(shape.distance)(anywhere),
            "bounds": jnp.stack([*map(jnp.asarray, shape.bounds)]),
            "inside": inside,
            "on": on,
            "on distance": jax.vmap(shape.distance)(on.x),
        }

    return jax.tree.map(np.asarray, of(THETAS)) | {"anywhere": anywhere}


@pytest.mark.parametrize("name", PLANE)
def test_plane_shapes_agree_with_shapely(name):
    case = PLANE[name]
    found = everything(case.make, (-2, 3), 2)
    for i, theta in enumerate(THETAS):
        geometry = case.oracle(theta)
        outline = geometry.boundary
        shapely.prepare([geometry, outline])
        assert found["volume"][i] == pytest.approx(geometry.area, rel=case.accuracy)
        assert found["measure"][i] == pytest.approx(geometry.length, rel=max(case.accuracy, 1e-5))
        x = found["anywhere"]
        clear = shapely.distance(outline, shapely.points(x)) > 1e-4
        assert np.array_equal(found["distance"][i][clear] < 0, shapely.contains_xy(geometry, x)[clear])
        low, high = found["bounds"][i]
        assert np.all(low <= np.add(geometry.bounds[:2], 1e-5)) and np.all(
            high >= np.subtract(geometry.bounds[2:], 1e-5)
        )
        inside, on = ([part[i] for part in found[kind]] for kind in ("inside", "on"))
        exact_inside, exact_on = exact_moments(geometry)
        agree(moments(inside[0][inside[2]]), exact_inside)
        agree(moments(on[0][on[2]]), exact_on)
        boundary, normal = on[0][on[2]], on[1][on[2]]
        assert np.max(shapely.distance(outline, shapely.points(boundary[:1000]))) < 1e-5
        assert np.max(np.abs(found["on distance"][i][on[2]])) < 1e-12
        assert np.allclose(np.linalg.norm(normal, axis=1), 1)
        # Beside corners and tangent circles, a step along the normal may lead elsewhere.
        assert np.mean(shapely.contains_xy(geometry, (boundary - 1e-3 * normal)[:1000])) > 0.98
        assert np.mean(shapely.contains_xy(geometry, (boundary + 1e-3 * normal)[:1000])) < 0.02


# Space -------------------------------------------------------------------------------------------------------------


class Solid(NamedTuple):
    make: Callable[[Any], Shape]
    inside: Callable[[float, np.ndarray], np.ndarray]
    volume: Callable[[float], float]
    area: Callable[[float], float]
    accuracy: float = 1e-2
    centre: Callable[[float], list[float]] | None = None
    """The mean of uniform points inside."""


def in_cylinder(x: np.ndarray, radius: float, low: float, high: float) -> np.ndarray:
    return (np.hypot(x[:, 0], x[:, 1]) < radius) & (low < x[:, 2]) & (x[:, 2] < high)


def turned_back(x: np.ndarray, angle: float, axis: list[float]) -> np.ndarray:
    return x @ trimesh.transformations.rotation_matrix(angle, axis)[:3, :3]


CUBOID = cl.Cuboid(x=(-1, 1), y=(0, 1), z=(0, 1.5))
BOX = trimesh.creation.box((1, 2, 3))
SOLIDS = {
    "ball": Solid(
        lambda a: cl.Ball((0, a, 1), a), lambda a, x: np.linalg.norm(x - [0, a, 1], axis=1) < a,
        lambda a: 4 / 3 * np.pi * a**3, lambda a: 4 * np.pi * a**2, 1e-12, lambda a: [0, a, 1],
    ),
    "cuboid": Solid(
        lambda a: cl.Cuboid(x=(0, 1), y=(0, 2), z=(-a, a)),
        lambda a, x: np.all((x > [0, 0, -a]) & (x < [1, 2, a]), axis=1),
        lambda a: 4 * a, lambda a: 4 + 12 * a, 1e-12, lambda a: [0.5, 1, 0],
    ),
    "cylinder": Solid(
        lambda a: cl.Cylinder((0, 0), a, (0, 2)), lambda a, x: in_cylinder(x, a, 0, 2),
        lambda a: 2 * np.pi * a**2, lambda a: 2 * np.pi * a * (a + 2), 1e-2, lambda a: [0, 0, 1],
    ),
    "extruded ring": Solid(
        lambda a: cl.Extrusion(D((0, 0), 1) - D((0, 0), a), (0, 1)),
        lambda a, x: in_cylinder(x, 1, 0, 1) & ~in_cylinder(x, a, -9, 9),
        lambda a: np.pi * (1 - a**2), lambda a: 2 * np.pi * (1 + a + 1 - a**2), 1e-2, lambda a: [0, 0, 0.5],
    ),
    "ball with a half cut off": Solid(
        lambda a: cl.Ball((0, 0, 0), 1) - cl.Extrusion(cl.HalfPlane((0, 0), (1, 0)), (-2, 2)),
        lambda a, x: (np.linalg.norm(x, axis=1) < 1) & (x[:, 0] > 0),
        lambda a: 2 / 3 * np.pi, lambda a: 3 * np.pi, 1e-2, lambda a: [0.375, 0, 0],
    ),
    "stacked": Solid(
        lambda a: cl.Cylinder((0, 0), 1, (0, 1)) | cl.Cylinder((0, 0), 1, (1 - a, 1 + a)),
        lambda a, x: in_cylinder(x, 1, 0, 1 + a),
        lambda a: np.pi * (1 + a), lambda a: 2 * np.pi * (2 + a), 2e-2, lambda a: [0, 0, (1 + a) / 2],
    ),
    "dent": Solid(
        lambda a: CUBOID - cl.Ball((0, 0, 0.75), a), lambda a, x: np.all((x > [-1, 0, 0]) & (x < [1, 1, 1.5]), axis=1)
        & (np.linalg.norm(x - [0, 0, 0.75], axis=1) > a),
        lambda a: 3 - 2 / 3 * np.pi * a**3, lambda a: 13 + np.pi * a**2, 1e-2,
    ),
    "moved": Solid(
        lambda a: cl.Cylinder((0, 0), 0.5, (0, 1)).rotate(a, axis=(1, 2, 2)).scale(2).translate(0, a, 0),
        lambda a, x: in_cylinder(turned_back((x - [0, a, 0]) / 2, a, [1, 2, 2]), 0.5, 0, 1),
        lambda a: 2 * np.pi, lambda a: 6 * np.pi, 1e-2,
    ),
    "surface": Solid(
        lambda a: cl.Surface(BOX.triangles).scale(2 * a).rotate(a),
        lambda a, x: np.all(np.abs(turned_back(x, a, [0, 0, 1])) < np.multiply([1, 2, 3], a), axis=1),
        lambda a: 48 * a**3, lambda a: 88 * a**2, 2e-2, lambda a: [0, 0, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLIDS)
def test_solids_agree_with_formulas(name):
    case = SOLIDS[name]
    found = everything(case.make, (-1.5, 2), 3)
    for i, theta in enumerate(THETAS):
        assert found["volume"][i] == pytest.approx(case.volume(theta), rel=case.accuracy)
        assert found["measure"][i] == pytest.approx(case.area(theta), rel=case.accuracy)
        assert np.array_equal(found["distance"][i] < 0, case.inside(theta, found["anywhere"]))
        inside, on = ([part[i] for part in found[kind]] for kind in ("inside", "on"))
        assert np.all(case.inside(theta, inside[0][inside[2]]))
        if case.centre is not None:
            agree(inside[0][inside[2]], np.array(case.centre(theta)))
        x, normal = on[0][on[2]], on[1][on[2]]
        # The divergence theorem for the fields x_i e_j: the mean of x_i n_j is the volume over the area for i = j.
        flux = (x[:, :, None] * normal[:, None, :]).reshape(len(x), 9)
        agree(flux, np.eye(3).ravel() * case.volume(theta) / case.area(theta))
        assert np.allclose(np.linalg.norm(normal, axis=1), 1)
        assert np.mean(case.inside(theta, x - 1e-4 * normal)) > 0.99
        assert np.mean(case.inside(theta, x + 1e-4 * normal)) < 0.01
        if name != "surface":  # its distance is that of a winding number
            assert np.max(np.abs(found["on distance"][i][on[2]])) < 1e-12


def test_a_surface_that_is_not_convex():
    outer = trimesh.creation.icosphere(subdivisions=2, radius=1.0)
    hole = trimesh.creation.box((0.5, 0.5, 0.5))
    shape = cl.Surface(np.concatenate([outer.triangles, hole.triangles[:, ::-1]]))
    found = everything(lambda a: shape, (-1.1, 1.1), 3)
    assert found["volume"][0] == pytest.approx(outer.volume - hole.volume, rel=2e-2)
    assert found["measure"][0] == pytest.approx(outer.area + hole.area, rel=1e-9)
    x = found["anywhere"]
    heights = np.max((x @ outer.face_normals.T) - np.sum(outer.face_normals * outer.triangles[:, 0], axis=1), axis=1)
    inside = (heights < 0) & np.any(np.abs(x) > 0.25, axis=1)
    assert np.array_equal(found["distance"][0] < 0, inside)
