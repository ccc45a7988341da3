"""Names of a boundary, exact normals, shapes from other programs, smooth factors, and what is refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shapely
import trimesh

import clpinn as cl
from clpinn.errors import DomainError
from clpinn.shapes import points
from clpinn.shapes.shape import Shape, vanishing_on

SQUARE = cl.Rectangle(x=(0, 1), y=(0, 1))
UNITS = ((np.arange(2048) + 0.5) / 2048)[:, None]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def drawn(shape: Shape, *names: str, count: int = 512) -> tuple[np.ndarray, np.ndarray]:
    """Points of the pieces with some of these names, and their normals."""
    pieces = tuple(piece for piece in shape.pieces() if not names or set(names) & set(piece.names))
    units = np.random.default_rng(5).random((count, shape.space + 1))
    found = jax.jit(jax.vmap(lambda unit: points.on_boundary(shape, pieces, unit)))(units)
    counts = np.asarray(found.counts)
    return np.asarray(found.x)[counts], np.asarray(found.normal)[counts]


def distances(shape: Shape, x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(shape.distance))(x))


# Names and normals -------------------------------------------------------------------------------------------------


def test_sides_of_a_rectangle():
    shape = cl.Rectangle(x=(0, 4), y=(-1, 1), name="channel")
    sides = {"bottom": (1, -1, (0, -1)), "right": (0, 4, (1, 0)), "top": (1, 1, (0, 1)), "left": (0, 0, (-1, 0))}
    assert shape.names == ["channel", "bottom", "right", "top", "left"]
    for name, (axis, value, direction) in sides.items():
        x, normal = drawn(shape, name)
        assert len(x) == 512 and np.array_equal(x[:, axis], np.full(512, value))
        assert np.array_equal(normal, np.tile(direction, (512, 1)))
    assert len(np.unique(drawn(shape, "channel")[1], axis=0)) == 4


def test_sides_of_a_cuboid():
    shape = cl.Cuboid(x=(0, 1), y=(0, 2), z=(0, 3), name="box")
    sides = {"left": (0, 0), "right": (0, 1), "front": (1, 0), "back": (1, 2), "bottom": (2, 0), "top": (2, 3)}
    assert set(shape.names) == {"box", *sides}
    for name, (axis, value) in sides.items():
        x, normal = drawn(shape, name, count=64)
        assert len(x) == 64 and np.all(x[:, axis] == value)
        assert np.allclose(normal, np.eye(3)[axis] * (1 if value else -1), atol=1e-15)


def test_sides_of_a_polygon_in_either_direction():
    corners, sides = [(0, 0), (2, 0), (2, 1), (0, 1)], ["low", "right", "high", "left"]
    backwards = [corners[0], *corners[:0:-1]]
    for shape in (cl.Polygon(corners, sides=sides), cl.Polygon(backwards, sides=sides[::-1])):
        for name, normal in zip(sides, [(0, -1), (1, 0), (0, 1), (-1, 0)], strict=True):
            assert np.array_equal(np.unique(drawn(shape, name)[1], axis=0), [normal])
    shared = cl.Polygon(corners, sides=["wall", "out", "wall", "in"])
    assert shared.names == ["polygon", "wall", "out", "in"]
    assert np.allclose(drawn(shared, "wall", count=20000)[0].mean(axis=0), [1, 0.5], atol=0.03)


@pytest.mark.parametrize("sign", [1, -1])
def test_normals_of_circles_are_radial_and_point_into_holes(sign):
    ring = cl.Disk((1, 2), 3, name="outer") - cl.Disk((1, 2), 1, name="inner")
    x, normal = drawn(ring, "outer" if sign == 1 else "inner")
    offset = x - [1, 2]
    assert np.allclose(normal, sign * offset / np.linalg.norm(offset, axis=1)[:, None], atol=1e-14)
    assert np.allclose(np.linalg.norm(offset, axis=1), 3 if sign == 1 else 1)


def test_normals_of_an_ellipse_are_its_gradients():
    x, normal = drawn(cl.Ellipse((0, 0), (3, 1)))
    slope = x / np.array([9, 1])
    assert np.allclose(normal, slope / np.linalg.norm(slope, axis=1)[:, None], atol=1e-13)


def test_further_names():
    shape = SQUARE.named("walls", "top", "bottom").named("all") - cl.Disk((0.5, 0.5), 0.2)
    assert shape.names == ["bottom", "walls", "all", "right", "top", "left", "disk"]
    assert set(np.unique(drawn(shape, "walls")[0][:, 1])) == {0, 1}
    assert np.all(np.linalg.norm(drawn(shape, "all")[0] - 0.5, axis=1) >= 0.5)
    moved = shape.rotate(np.pi / 2).translate(3, 0)
    assert np.allclose(np.unique(np.round(drawn(moved, "right")[0][:, 1], 12)), 1)


def test_a_line_that_two_shapes_share_is_drawn_once_and_belongs_to_both():
    shape = cl.Rectangle(x=(0, 2), y=(0, 1), name="a") | cl.Rectangle(x=(0, 1), y=(0, 2), name="b")
    below = drawn(shape, "left", count=20000)[0][:, 1] < 1
    assert below.mean() == pytest.approx(0.5, abs=0.02)
    heights = drawn(shape, "b", count=20000)[0]
    assert np.mean(heights[heights[:, 0] == 0, 1] < 1) == pytest.approx(0.5, abs=0.03)
    with pytest.raises(AssertionError):  # without "a", its line is not taken away from "b"
        assert np.all(heights[heights[:, 0] == 0, 1] > 1)


def test_in_single_precision_shapes_are_the_same():
    shape = (SQUARE - cl.Disk((0.5, 0.5), 0.25)).rotate(0.3) & cl.HalfPlane((0.6, 0), (1, 0))
    x = np.random.default_rng(0).uniform(-0.5, 1.5, (2000, 2))
    exact = distances(shape, x)
    with jax.enable_x64(False):
        rough = jax.vmap(shape.distance)(jnp.asarray(x, jnp.float32))
        assert rough.dtype == jnp.float32
    assert np.allclose(exact, rough, atol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
def test_a_polygon_with_a_thousand_corners_is_not_unrolled(traced):
    angles = np.linspace(0, 2 * np.pi, 1000, endpoint=False)
    corners = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def of(scale: jax.Array) -> jax.Array:
        shape = cl.Polygon(scale * corners if traced else corners)
        return shape.distance(jnp.ones(2)) + points.measure(shape, shape.pieces(), jnp.asarray(UNITS))

    equations = jax.make_jaxpr(of)(2.0).eqns
    assert len(equations) < 400
    assert cl.Polygon(corners).mistake() is None


def test_bounds_are_tight_where_a_domain_ends_at_its_box():
    assert np.allclose(cl.Sector((0, 0), 2, 0, np.pi / 2).bounds, [[0, 0], [2, 2]])
    assert np.allclose(cl.Sector((1, 0), 1, np.pi / 4, 7 * np.pi / 4).bounds, [[0, -1], [1 + np.sqrt(0.5), 1]])
    assert np.allclose(cl.Sector((0, 0), 1, -0.1, 0.1).bounds, [[0, -np.sin(0.1)], [1, np.sin(0.1)]])
    assert np.allclose(SQUARE.rotate(np.pi / 4).bounds, [[-np.sqrt(0.5), 0], [np.sqrt(0.5), np.sqrt(2)]])


# Other programs ----------------------------------------------------------------------------------------------------

HOLED = shapely.Polygon([(0, 0), (3, 0), (3, 2), (0, 2)], [[(1, 0.5), (2, 0.5), (1.5, 1.5)]])
SEVERAL = shapely.MultiPolygon([HOLED, shapely.Polygon([(4, 0), (5, 0), (4, 1)])])


@pytest.mark.parametrize("geometry", [HOLED, SEVERAL], ids=["holes", "several"])
@pytest.mark.parametrize("form", ["shapely", "dict", "feature", "collection", "file"])
def test_polygons_from_shapely_and_geojson(geometry, form, tmp_path):
    plain = json.loads(shapely.to_geojson(geometry))
    feature = {"type": "Feature", "properties": {}, "geometry": plain}
    file = tmp_path / "shape.geojson"
    file.write_text(json.dumps(feature))
    collection = {"type": "FeatureCollection", "features": [feature]}
    forms = {"shapely": geometry, "dict": plain, "feature": feature, "collection": collection, "file": file}
    shape = cl.polygon(forms[form], name="part")
    assert shape.names == ["part", "hole"]
    x = np.random.default_rng(0).uniform(-1, 6, (3000, 2))
    assert np.array_equal(distances(shape, x) < 0, shapely.contains_xy(geometry, x))
    if form == "shapely":
        assert float(jax.jit(lambda: points.volume(shape, UNITS))()) == pytest.approx(geometry.area, rel=2e-3)


def test_polygons_from_arrays_with_and_without_the_first_corner_repeated():
    corners = np.array([(0, 0), (1, 0), (0, 2)])
    for rows in (corners, np.append(corners, corners[:1], axis=0), corners.tolist()):
        shape = cl.polygon(rows)
        assert shape.corners.shape == (3, 2)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_polygon_closes_alike_whether_numbers_are_traced_or_known():
    def corners(a: jax.Array) -> jax.Array:
        return cl.Polygon([(a, 0.0), (1.0, 0.0), (0.0, 2.0), (a, 0.0)]).corners

    theta = jnp.asarray(0.5)
    assert corners(theta).shape == jax.eval_shape(corners, theta).shape == (3, 2)


def test_surfaces_from_files(tmp_path):
    mesh = trimesh.creation.icosphere(subdivisions=1)
    mesh.export(tmp_path / "part.stl")
    shape = cl.Surface(tmp_path / "part.stl", name="part")
    assert shape.names == ["part"] and shape.corners.shape == (80, 3, 3)
    inside_out = cl.Surface(mesh.triangles[:, ::-1])
    assert inside_out.distance(jnp.zeros(3)) < 0 < inside_out.distance(jnp.ones(3))


# Smooth factors ----------------------------------------------------------------------------------------------------

DISK, LINE = cl.Disk((0.5, 0.5), 0.25), cl.HalfPlane((0.5, 0.5), (1, 0.5))
TETRAHEDRON = trimesh.creation.icosahedron().triangles
FACTORS = {
    "square": (SQUARE, (), 2),
    "one side": (SQUARE, ("left",), 2),
    "disk": (DISK, (), 4),
    "ellipse": (cl.Ellipse((0, 0), (2, 1)), (), 4),
    "hole": (SQUARE - DISK, ("disk",), 4),
    "hole and walls": (SQUARE - DISK, (), 2),
    "two holes that overlap": (SQUARE - (DISK | cl.Disk((0.6, 0.5), 0.2)), ("disk",), 4),
    "line": (SQUARE & LINE, ("line",), 4),
    "arrow": (cl.Polygon([(0, 0), (2, 1), (0, 2), (0.5, 1)]), (), 2),
    "sector": (cl.Sector((0, 0), 1, 0.2, 4.5), (), 2),
    "sector cut out": (SQUARE - cl.Sector((0.5, 0.5), 0.3, 0.2, 4.5), ("arc", "start", "end"), 2),
    "moved": ((SQUARE - DISK).rotate(0.4).scale(3), (), 2),
    "ball": (cl.Ball((0, 0, 0), 1), (), 4),
    "cuboid": (cl.Cuboid(x=(0, 1), y=(0, 1), z=(0, 1)), (), 2),
    "convex surface": (cl.Surface(TETRAHEDRON), (), 2),
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors_vanish_on_their_pieces_only_and_are_smooth(name):
    shape, names, order = FACTORS[name]
    factor = vanishing_on(shape, names)
    extent = float(points.extent(shape.bounds))
    units = np.random.default_rng(1).random((600, shape.space))
    found = jax.jit(jax.vmap(lambda unit: points.inside(shape, unit)))(units)
    inside = np.asarray(found.x)[np.asarray(found.counts) & (distances(shape, np.asarray(found.x)) < -1e-3)]
    boundary, normal = drawn(shape, *names)

    @jax.jit
    @jax.vmap
    def up_to(x: jax.Array) -> list[jax.Array]:
        derivatives, function = [], factor
        for _ in range(order + 1):
            derivatives.append(function(x))
            function = jax.jacfwd(function)
        return derivatives

    values = [np.asarray(order) for order in up_to(np.concatenate([inside, boundary]))]
    within, on = ([order[part] for order in values] for part in (slice(len(inside)), slice(len(inside), None)))
    assert len(inside) > 50 and np.min(within[0]) > 0
    assert np.max(np.abs(on[0])) < 1e-12
    assert np.min(-np.sum(on[1] * normal, axis=1)) > 0
    assert all(np.isfinite(order).all() for order in values)
    # Where the piece is near, the factor is continuous: no jump across the circles that trim sides.
    steps = np.linspace(0, 1, 400)[:, None]
    line = inside[0] + steps * (inside[1] - inside[0])
    assert np.max(np.abs(np.diff(jax.jit(jax.vmap(factor))(line)))) < 0.05 * extent


def test_factors_in_single_precision_have_the_right_slope_on_the_boundary():
    far_disks = [cl.Disk((distance, 0), 0.1) for distance in (3, 10, 100)]
    for shape in (DISK, SQUARE, SQUARE & LINE, *far_disks, SQUARE.rotate(0.4).translate(3, 0)):
        boundary, normal = drawn(shape)
        with jax.enable_x64(False):
            slope = jax.jit(jax.vmap(jax.grad(vanishing_on(shape, ()))))(jnp.asarray(boundary, jnp.float32))
        assert np.all(np.sum(np.asarray(slope) * normal, axis=1) < 0)


def test_the_factor_of_a_small_hole_grows_like_the_distance():
    for hole in (cl.Disk((0, 0), 0.02), cl.Disk((0, 0), 0.4)):
        factor = vanishing_on(cl.Rectangle(x=(-4, 4), y=(-4, 4)) - hole, ("disk",))
        assert factor(jnp.array([3.0, 0.0])) == pytest.approx(3 - hole.radii[0])
    ball = vanishing_on(cl.Cuboid(x=(-4, 4), y=(-4, 4), z=(-4, 4)) - cl.Ball((0, 0, 0), 0.1), ("ball",))
    assert ball(jnp.array([0.0, 0.0, 3.0])) == pytest.approx(2.9)


CUBE = cl.Cuboid(x=(0, 1), y=(0, 1), z=(0, 1))
HIDDEN = {
    "joined": lambda: (SQUARE | DISK, ()),
    "joined and named": lambda: ((SQUARE | DISK).named("wall"), ("wall",)),
    "a lens cut out": lambda: (SQUARE - (DISK & cl.Disk((0.6, 0.5), 0.25)), ("disk",)),
    "a ring cut out": lambda: (SQUARE - (DISK - cl.Disk((0.5, 0.5), 0.1)), ("disk",)),
    "a cube cut out": lambda: (cl.Ball((0, 0, 0), 3) - CUBE, ("top",)),
    "joined and extruded": lambda: (cl.Extrusion(SQUARE | DISK, (0, 1), name="all"), ("all",)),
    "a surface cut out": lambda: (cl.Ball((0, 0, 0), 3) - cl.Surface(TETRAHEDRON), ("surface",)),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_factors_that_would_vanish_inside_are_refused(name):
    shape, names = HIDDEN[name]()
    with pytest.raises(DomainError, match="would vanish inside the domain, too"):
        vanishing_on(shape, names)


def test_other_pieces_of_a_domain_with_joined_parts_have_factors():
    shape = SQUARE - (DISK & cl.Disk((0.6, 0.5), 0.25))
    assert vanishing_on(shape, ("left",))(jnp.array([0.5, 0.5])) > 0
    with pytest.raises(DomainError, match="No piece of the boundary is called 'hole'. The boundary has bottom, right"):
        vanishing_on(shape, ("hole",))


# What is refused ---------------------------------------------------------------------------------------------------

OPEN = trimesh.creation.box().triangles[:-1]
REFUSED = {
    "two corners": (lambda p: cl.Polygon([(0, 0), (1, 1)]), "at least three corners, but got 2"),
    "a corner repeated": (lambda p: cl.Polygon([(0, 0), (1, 1), (0, 0)]), "at least three corners, but got 2"),
    "corners in space": (lambda p: cl.Polygon(np.zeros((4, 3))), "rows of two numbers"),
    "names of sides": (lambda p: cl.Polygon([(0, 0), (1, 0), (0, 1)], sides=("a",)), "as many names of sides"),
    "names of a rectangle": (lambda p: cl.Rectangle(x=(0, 1), y=(0, 1), sides=("a",)), "has four sides"),
    "one interval": (lambda p: cl.Rectangle(x=(0, 1)), "Expected 2 intervals"),
    "a centre in space": (lambda p: cl.Disk((0, 0, 0), 1), "needs 2 numbers"),
    "2 and 3 coordinates": (lambda p: SQUARE - CUBE, "2 coordinates cannot be combined with one in 3"),
    "no shape": (lambda p: SQUARE | 1, "combined with a shape such as"),
    "extruded twice": (lambda p: cl.Extrusion(CUBE, (0, 1)), "Only a shape in the plane"),
    "unknown name": (lambda p: SQUARE.named("wall", "lid"), "called 'lid'. The boundary has bottom, right, top, left"),
    "open surface": (lambda p: cl.Surface(OPEN), "not closed: 3 of its edges"),
    "flat surface": (lambda p: cl.Surface(np.zeros((5, 3))), "triangles, 3, 3"),
    "no mesh": (lambda p: cl.Surface(p / "part.stl"), "There is no file .*part.stl"),
    "broken mesh": (lambda p: cl.Surface(_text(p / "part.obj")), "could not be read as a mesh|needs corners"),
    "no GeoJSON": (lambda p: cl.polygon(p / "a.json"), "There is no file .*a.json"),
    "broken GeoJSON": (lambda p: cl.polygon(_text(p / "a.json")), "is not GeoJSON"),
    "a line": (lambda p: cl.polygon({"type": "LineString", "coordinates": []}), "GeoJSON of the type 'LineString'"),
    "shapely line": (lambda p: cl.polygon(shapely.LineString([(0, 0), (1, 1)])), "of the type 'LineString'"),
    "empty": (lambda p: cl.polygon(shapely.Polygon()), "empty"),
    "no parts": (lambda p: cl.polygon({"type": "FeatureCollection", "features": []}), "no polygon"),
    "a list of words": (lambda p: cl.polygon(["a", "b", "c"]), "rows of two finite numbers"),
}


def _text(path):
    path.write_text("nothing")
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    make, message = REFUSED[name]
    with pytest.raises(DomainError, match=message):
        make(tmp_path)


BOWTIE = [(0, 0), (1, 1), (1, 0), (0, 1)]
MISTAKES = {
    "bowtie": (cl.Polygon(BOWTIE, name="wing"), "the sides 1 and 3 of 'wing' cross"),
    "corner on a side": (cl.Polygon([(0, 0), (4, 0), (4, 1), (2, 0), (0, 1)]), "cross"),
    "repeated": (cl.Polygon([(0, 0), (1, 0), (1, 0), (0, 1)]), "neighbouring corners"),
    "not finite": (cl.Polygon([(0, 0), (1, 0), (np.nan, 1)]), "not finite"),
    "radius": (cl.Disk((0, 0), -1, name="hole"), "radius of 'hole' must be above zero, but is -1"),
    "ball": (cl.Ball((0, 0, 0), 0), "radius of 'ball' must be above zero"),
    "half axis": (cl.Ellipse((0, 0), (1, 0)), "radius of 'ellipse' must be above zero"),
    "rectangle": (cl.Rectangle(x=(1, 0), y=(0, 1)), "low < high"),
    "height": (cl.Cylinder((0, 0), 1, (1, 1)), "low < high"),
    "sector": (cl.Sector((0, 0), 1, 1, 0), "between 0 and 2 pi"),
    "normal": (cl.HalfPlane((0, 0), (0, 0)), "normal of 'line' is zero"),
    "scale": (SQUARE.scale(-1), "factor above zero"),
    "inside others": ((SQUARE - cl.Disk((0, 0), -1)).named("a").translate(1, 0), "radius"),
    "extruded": (cl.Extrusion(cl.Polygon(BOWTIE), (0, 1)), "cross"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_numbers(name):
    shape, message = MISTAKES[name]
    assert message in str(shape.mistake())


@pytest.mark.parametrize("shape", [SQUARE - DISK, CUBE, LINE, cl.Polygon(np.array(BOWTIE)[[0, 2, 1, 3]])])
def test_no_mistakes(shape):
    assert shape.mistake() is None
