"""Exports: what is read back by other programs is what the surrogate answers."""

import csv

import jax
import jax.numpy as jnp
import meshio
import numpy as np
import onnxruntime
import pytest
import xarray
from test_surrogate import Rod, made, with_heads

import clpinn as cl
from clpinn.errors import ExportError
from clpinn.exports.export import write_field
from clpinn.exports.programs import program
from clpinn.problems import load_problem

CHANNEL = load_problem("examples/channel.py:Channel")


def test_netcdf_brings_back_the_field(tmp_path):
    surrogate = made(Rod(), jnp.float64)
    cl.export(surrogate, tmp_path / "new" / "field.nc", 9, k=[0.5, 1.0, 2.0])
    field = surrogate.field(9, k=[0.5, 1.0, 2.0])
    with xarray.open_dataset(tmp_path / "new" / "field.nc") as found:
        xarray.testing.assert_identical(found.load(), field)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["field.nc"]
    at = surrogate(x=field["x"].values[:, None], t=field["t"].values, k=1.0)["u"]
    assert np.allclose(field["u"].sel(k=1.0), at, rtol=1e-12)


def test_netcdf_of_a_moved_geometry(tmp_path):
    field = made(CHANNEL).field(4, height=2.0, viscosity=1.0)
    write_field(field, tmp_path / "field.nc")
    with xarray.open_dataset(tmp_path / "field.nc") as found:
        xarray.testing.assert_identical(found.load(), field)


def test_tables_have_a_row_a_point(tmp_path):
    surrogate = made(cl.problems.AllenCahn(), jnp.float64)
    cl.export(surrogate, tmp_path / "field.csv", {"x": 5, "t": 3}, nu=[0.01, 0.02], rho=4.0)
    with (tmp_path / "field.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    assert set(columns) == {"x", "t", "nu", "rho", "u"} and len(rows) == 30
    at = {name: columns[name] for name in ("x", "t", "nu", "rho")}
    assert np.allclose(surrogate(**at)["u"], columns["u"], rtol=1e-12)


@pytest.mark.parametrize("problem", [cl.problems.Burgers(), cl.problems.Kovasznay(), CHANNEL], ids=type)
def test_vtk_is_read_by_others(problem, tmp_path):
    """In physical coordinates, every output, and a flow's velocity as a vector."""
    surrogate = made(problem, jnp.float64)
    theta = dict(zip(problem.parameters, problem.candidates.points[-1].tolist()))
    names = problem.coordinates.names
    cl.export(surrogate, tmp_path / "field.vtk", {names[0]: 5, names[1]: 4}, **theta)
    found = meshio.read(tmp_path / "field.vtk")
    assert len(found.points) == 20 and sum(len(block.data) for block in found.cells) == 12
    at = dict(zip(names, found.points.T)) | theta
    for name, values in surrogate(**at).items():
        assert np.allclose(found.point_data[name].ravel(), values, rtol=1e-9)
    if "v" in problem.outputs:
        flow = np.stack([*(found.point_data[name].ravel() for name in "uv"), np.zeros(20)], axis=1)
        assert np.array_equal(found.point_data["velocity"], flow)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_stablehlo_runs_without_clpinn(tmp_path, dtype):
    surrogate = with_heads(made(Rod(), dtype), np.array([[1.0]]), [True])
    cl.export(surrogate, tmp_path / "rod.stablehlo")
    again = jax.export.deserialize(bytearray((tmp_path / "rod.stablehlo").read_bytes()))
    at = {"x": np.linspace(0, 2, 7), "t": np.linspace(0, 1, 7), "k": np.array([0.5, 1.0] * 3 + [2.0])}
    with jax.enable_x64(dtype == jnp.float64):
        found = again.call(**{name: jnp.asarray(column, dtype) for name, column in at.items()})
    assert np.allclose(found["u"], surrogate(**at)["u"], rtol=1e-5 if dtype == jnp.float32 else 1e-12, atol=1e-6)
    assert "cuda" in again.platforms
    cl.export(surrogate, tmp_path / "rod.mlir")
    assert "stablehlo.dot_general" in (tmp_path / "rod.mlir").read_text()


def test_onnx_runs_without_clpinn(tmp_path):
    surrogate = made(Rod())
    cl.export(surrogate, tmp_path / "rod.onnx")
    at = {"x": np.linspace(0, 2, 7), "t": np.linspace(0, 1, 7), "k": np.full(7, 0.7)}
    session = onnxruntime.InferenceSession(tmp_path / "rod.onnx")
    (found,) = session.run(["u"], {name: column.astype(np.float32) for name, column in at.items()})
    assert np.allclose(found, surrogate(**at)["u"], rtol=1e-5, atol=1e-6)


def test_the_program_needs_no_x64_of_the_caller():
    surrogate = made(Rod(), jnp.float64)
    assert not jax.config.jax_enable_x64
    assert [aval.dtype for aval in program(surrogate).in_avals] == [jnp.float64] * len(surrogate.problem.axes)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("field.xls", {"k": 1.0}, r"Use one of .nc, .csv, .vtk, .stablehlo"),
        ("field", {"k": 1.0}, "says no format"),
        ("field.vtk", {"k": [1.0, 2.0]}, "several values of k"),
        ("rod.stablehlo", {"k": 1.0}, "for any values. Leave k out"),
    ],
)
def test_what_a_format_cannot_hold_is_told(tmp_path, name, given, message):
    with pytest.raises(ExportError, match=message):
        cl.export(made(Rod()), tmp_path / name, **given)
    assert list(tmp_path.iterdir()) == []


def test_four_axes_are_too_many_for_vtk(tmp_path):
    class Room(cl.Problem):
        coordinates = cl.Box(x=(0, 1), y=(0, 1), z=(0, 1), t=(0, 1))

        def residual(self, d):
            return d.u_t - d.u_xx

    surrogate = made(Room())
    with pytest.raises(ExportError, match="at most three axes at one theta, but the field has the axes x, y, z, t"):
        cl.export(surrogate, tmp_path / "room.vtk", 2)
    cl.export(surrogate, tmp_path / "room.vtk", 2, t=0.5)
    assert len(meshio.read(tmp_path / "room.vtk").points) == 8
