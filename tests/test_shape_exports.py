"""Files with fields of problems whose domain is a shape, meshes of the domain, and random points in it."""

import csv
from math import pi

import jax
import meshio
import numpy as np
import onnxruntime
import pytest
from small import Inflow, made_up_map
from test_explorer import Moved, surrogate_of

import clpinn as cl
from clpinn.errors import DomainError, ExportError
from clpinn.exports.export import write_field
from clpinn.exports.meshes import make_mesh
from clpinn.formulation.geometry import placed
from clpinn.formulation.membership import is_inside
from clpinn.formulation.outlines import distances
from clpinn.formulation.problem import Problem
from clpinn.surrogate.points import surrogate_points
from clpinn.surrogate.surrogate import Surrogate


class Plate(cl.Problem):
    """A flow in a rectangle around a disk whose radius is a parameter."""

    coordinates = cl.Box(x=(0, 4), y=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.8))
    outputs = ("u", "v")
    units = {"u": "m/s"}

    def domain(self, r):
        return cl.Rectangle(x=(0, 4), y=(-1, 1)) - cl.Disk((1, 0), r, name="hole")

    def residual(self, d):
        return d.u_x + d.v_y


class Cooling(Plate):
    """The same with time, which comes first, and a polygon with a dent."""

    coordinates = cl.Box(t=(0, 1), x=(0, 4), y=(-1, 1))

    def domain(self, r):
        return cl.Polygon([(0, -1), (4, -1), (4, 1), (2, r - 1), (0, 1)])


class Solid(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1), z=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.6))

    def domain(self, r):
        return cl.Cuboid(x=(-1, 1), y=(-1, 1), z=(-1, 0)) - cl.Ball((0, 0, 0), r)

    def residual(self, d):
        return d.u_xx + d.u_yy + d.u_zz


def sizes(points: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Areas of triangles, or volumes of tetrahedra, with their sign."""
    corners = points[cells][..., : cells.shape[1] - 1]
    return np.linalg.det(corners[:, 1:] - corners[:, :1]) / (2 if cells.shape[1] == 3 else 6)


def assert_is_surrogates(mesh: meshio.Mesh, surrogate: Surrogate, **fixed: float) -> None:
    """All outputs at the points of a mesh against the surrogate."""
    names = [name for name in surrogate.problem.coordinates if name != "t"]
    exact = surrogate(**dict(zip(names, mesh.points.T)), **fixed)
    for name, values in exact.items():
        np.testing.assert_array_equal(mesh.point_data[name], values)


@pytest.mark.parametrize("r", [0.2, 0.8])
def test_a_mesh_covers_the_domain(r, tmp_path):
    problem, surrogate = Plate(), surrogate_of(Plate())
    cl.export(surrogate, tmp_path / "field.vtu", 60, r=r)
    mesh = meshio.read(tmp_path / "field.vtu")
    (block,) = mesh.cells
    assert block.type == "triangle" and np.all(mesh.points[:, 2] == 0)
    areas = sizes(mesh.points, block.data)
    assert np.all(areas > 0) and areas.sum() == pytest.approx(8 - pi * r**2, rel=2e-3)
    spacing = 4 / 59
    assert np.sqrt(areas.max()) < spacing and len(np.unique(block.data)) == len(mesh.points)
    assert is_inside(problem, mesh.points[:, :2], np.array([r])).all()
    assert distances(problem, mesh.points[block.data].mean(axis=1)[:, :2], {"r": r}).max() < 0
    # Corners and the circle have points, the circle with no gap between them.
    for corner in ((0, -1), (4, -1), (4, 1), (0, 1)):
        assert np.abs(mesh.points[:, :2] - corner).sum(axis=1).min() < 1e-9
    around = mesh.points[np.abs(np.hypot(mesh.points[:, 0] - 1, mesh.points[:, 1]) - r) < 1e-9]
    angles = np.sort(np.arctan2(around[:, 1], around[:, 0] - 1))
    assert np.max(np.diff([*angles, angles[0] + 2 * pi])) < 1.01 * spacing / r
    assert_is_surrogates(mesh, surrogate, r=r)
    assert mesh.point_data["velocity"].shape == (len(mesh.points), 3)
    np.testing.assert_array_equal(mesh.point_data["velocity"][:, 1], mesh.point_data["v"])
    assert mesh.field_data["r"] == [r] and f"<!-- Plate r = {r}; clpinn" in (tmp_path / "field.vtu").read_text()


@pytest.mark.parametrize(("given", "times"), [({"t": [0.0, 0.25]}, [0, 0.25]), ({}, np.linspace(0, 1, 21))])
def test_a_mesh_at_several_times(given, times, tmp_path):
    surrogate = surrogate_of(Cooling())
    cl.export(surrogate, tmp_path / "field.xdmf", 20, r=0.5, **given)
    with meshio.xdmf.TimeSeriesReader(tmp_path / "field.xdmf") as reader:
        points, cells = reader.read_points_cells()
        assert reader.num_steps == len(times) and cells[0].type == "triangle"
        assert sizes(points, cells[0].data).sum() == pytest.approx(8 - 4 * 1.5 / 2, rel=1e-6)
        for step, expected in enumerate(times):
            time, data, _ = reader.read_data(step)
            assert time == pytest.approx(expected)
            mesh = meshio.Mesh(points, cells, point_data=data)
            assert_is_surrogates(mesh, surrogate, r=0.5, t=float(expected))


def test_a_mesh_without_time_in_xdmf(tmp_path):
    surrogate = surrogate_of(Plate())
    cl.export(surrogate, tmp_path / "field.xdmf", 20, r=0.5)
    with meshio.xdmf.TimeSeriesReader(tmp_path / "field.xdmf") as reader:
        points, cells = reader.read_points_cells()
        assert reader.num_steps == 1
        assert_is_surrogates(meshio.Mesh(points, cells, point_data=reader.read_data(0)[1]), surrogate, r=0.5)
    with pytest.raises(ExportError, match="A .xdmf file holds a mesh of a domain that is a shape"):
        cl.export(surrogate_of(Inflow()), tmp_path / "field.xdmf", k=1)


def test_a_mesh_at_one_time_keeps_out_of_a_dent(tmp_path):
    surrogate = surrogate_of(Cooling())
    cl.export(surrogate, tmp_path / "field.vtu", 40, r=0.5, t=0.25)
    mesh = meshio.read(tmp_path / "field.vtu")
    assert sizes(mesh.points, mesh.cells[0].data).sum() == pytest.approx(8 - 4 * 1.5 / 2, rel=1e-6)
    assert_is_surrogates(mesh, surrogate, r=0.5, t=0.25)
    for wrong in ({"r": 0.5}, {"r": 0.5, "t": [0, 1]}, {"r": 0.5, "t": 0, "x": 1}, {"r": 0.5, "t": 0, "k": 1}):
        with pytest.raises(ExportError, match="one value of each of r, t"):
            cl.export(surrogate, tmp_path / "field.vtu", **wrong)
    with pytest.raises(ExportError, match="single number"):
        cl.export(surrogate, tmp_path / "field.vtu", {"x": 3}, r=0.5, t=0)
    with pytest.raises(ExportError, match="at least two points"):
        cl.export(surrogate, tmp_path / "field.vtu", 1, r=0.5, t=0)


def test_a_mesh_in_space_has_tetrahedra(tmp_path):
    surrogate = surrogate_of(Solid())
    cl.export(surrogate, tmp_path / "field.vtu", 16, r=0.5)
    mesh = meshio.read(tmp_path / "field.vtu")
    (block,) = mesh.cells
    volumes = sizes(mesh.points, block.data)
    assert block.type == "tetra" and np.all(volumes > 0)
    assert volumes.sum() == pytest.approx(4 - 2 / 3 * pi * 0.5**3, rel=0.01)
    for corner in ((-1, -1, -1), (1, 1, 0), (1, -1, -1)):
        assert np.abs(mesh.points - corner).sum(axis=1).min() < 1e-9
    assert distances(Solid(), mesh.points, {"r": 0.5}).max() < 1e-8
    assert_is_surrogates(mesh, surrogate, r=0.5)


def test_parts_that_are_apart_are_not_connected():
    class Two(Plate):
        def domain(self, r):
            return cl.Disk((1, 0), r) | cl.Disk((3, 0), 0.5)

    mesh = make_mesh(Two(), {"r": 0.6}, 80)
    assert sizes(mesh.points, mesh.cells).sum() == pytest.approx(pi * (0.36 + 0.25), rel=3e-3)
    left = mesh.points[mesh.cells][..., 0] < 2
    assert np.all(left.all(axis=1) | ~left.any(axis=1))


def test_a_mesh_has_the_estimated_errors(tmp_path):
    errors = made_up_map(Plate())
    surrogate = surrogate_of(Plate()).with_errors(errors)
    cl.export(surrogate, tmp_path / "field.vtu", 10, r=0.5)
    mesh, text = meshio.read(tmp_path / "field.vtu"), (tmp_path / "field.vtu").read_text()
    _, middle, _ = errors.over(np.array([[0.5]]))["u"]
    assert mesh.field_data["estimated_relative_l2_u"] == pytest.approx(middle)
    assert f"estimated relative L2 error of u {middle[0]:.1e}" in text


def test_programs_of_a_surrogate_with_a_hard_condition_on_a_shape(tmp_path):
    class Hard(Plate):
        constrain = cl.vanishing("hole", "top", outputs=("u",))

    surrogate = surrogate_of(Hard())
    drawn = surrogate.points(50, 3, r=0.5)
    named = {"x": drawn["x"].values, "y": drawn["y"].values, "r": np.full(50, 0.5)}
    exact = surrogate(**named)
    for ending in ("onnx", "stablehlo"):
        cl.export(surrogate, tmp_path / f"plate.{ending}")
    session = onnxruntime.InferenceSession(tmp_path / "plate.onnx", providers=["CPUExecutionProvider"])
    single = {name: values.astype(np.float32) for name, values in named.items()}
    in_onnx = dict(zip([output.name for output in session.get_outputs()], session.run(None, single)))
    program = jax.export.deserialize(bytearray((tmp_path / "plate.stablehlo").read_bytes()))
    dtype = program.in_avals[0].dtype
    with jax.enable_x64(dtype == np.float64):
        in_stablehlo = program.call(**{name: np.asarray(values, dtype) for name, values in named.items()})
    for name, values in exact.items():
        np.testing.assert_allclose(in_onnx[name], values, atol=2e-5 * np.abs(values).max())
        np.testing.assert_allclose(in_stablehlo[name], values, rtol=1e-5, atol=1e-6 * np.abs(values).max())


def test_boxes_have_no_mesh(tmp_path):
    with pytest.raises(ExportError, match="the domain of Inflow is a box. Write .vtk"):
        cl.export(surrogate_of(Inflow()), tmp_path / "field.vtu", k=1)
    with pytest.raises(ExportError, match="cl.export"):
        write_field(surrogate_of(Plate()).field(5, r=0.5), tmp_path / "field.vtu")
    assert list(tmp_path.iterdir()) == []


def test_files_with_grids_are_nan_outside(tmp_path):
    surrogate = surrogate_of(Plate())
    field = surrogate.field(21, r=0.7)
    outside = np.isnan(field["u"].values)
    assert 0 < outside.sum() < outside.size
    cl.export(surrogate, tmp_path / "field.csv", 21, r=0.7)
    with (tmp_path / "field.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == outside.size and {row["u"] for row in rows if row["u"] == "nan"} == {"nan"}
    np.testing.assert_array_equal(np.array([float(row["u"]) for row in rows]), field["u"].values.ravel())
    cl.export(surrogate, tmp_path / "field.nc", 21, r=0.7)
    import xarray

    with xarray.open_dataset(tmp_path / "field.nc", engine="scipy") as read:
        np.testing.assert_array_equal(read["v"].values, field["v"].values)
    cl.export(surrogate, tmp_path / "field.vtk", 21, r=0.7)
    mesh = meshio.read(tmp_path / "field.vtk")
    np.testing.assert_array_equal(mesh.point_data["u"].ravel(), field["u"].values.ravel(order="F"))


# Points ------------------------------------------------------------------------------------------------------------


def points_of(problem: Problem, count: int, seed: int = 0, **theta: float):
    return surrogate_points(problem, surrogate_of(problem)._answers.at, count, seed, theta)


def test_points_lie_in_the_domain_with_the_outputs():
    problem = Plate()
    drawn = points_of(problem, 500, r=0.8)
    points = np.stack([drawn["x"], drawn["y"]], axis=1)
    assert drawn.sizes == {"point": 500} and float(drawn["r"]) == 0.8 and drawn["u"].attrs == {"units": "m/s"}
    assert distances(problem, points, {"r": 0.8}).max() < 0
    # Uniform: the share of the half with the hole is that of its area.
    assert np.mean(points[:, 0] < 2) == pytest.approx((4 - pi * 0.64) / (8 - pi * 0.64), abs=0.06)
    exact = surrogate_of(problem)(x=points[:, 0], y=points[:, 1], r=0.8)
    np.testing.assert_array_equal(drawn["v"], exact["v"])
    assert drawn.equals(points_of(problem, 500, r=0.8)) and not drawn.equals(points_of(problem, 500, 1, r=0.8))


@pytest.mark.parametrize("problem", [Inflow(), Moved(), Cooling()], ids=type)
def test_points_of_boxes_moved_boxes_and_time(problem):
    theta = dict(zip(problem.parameters, problem.parameters.centre.tolist()))
    drawn = points_of(problem, 20, **theta)
    box = {name: drawn[f"box_{name}" if problem.place is not None else name].values for name in problem.coordinates}
    assert problem.coordinates.inside(np.stack([*box.values()], axis=1)).all()
    physical = placed(problem, box | theta)
    exact = surrogate_of(problem)(**{name: np.asarray(physical[name]) for name in problem.coordinates}, **theta)
    for name in problem.outputs:
        np.testing.assert_allclose(drawn[name], exact[name], rtol=1e-6, atol=1e-9)
    for name in problem.coordinates:
        np.testing.assert_allclose(drawn[name], physical[name], rtol=1e-6)


def test_wrong_numbers_of_points_are_errors():
    for count in (0, 1.5, True):
        with pytest.raises(DomainError, match="whole number above zero"):
            points_of(Plate(), count, r=0.5)
    with pytest.raises(DomainError):
        points_of(Plate(), 3)
