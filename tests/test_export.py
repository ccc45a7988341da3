"""Exports: what is read back by other programs is what the surrogate answers."""

import csv
import dataclasses
import json

import jax
import jax.numpy as jnp
import meshio
import numpy as np
import onnxruntime
import pytest
import xarray
from small import Inflow, made_up_map
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


def test_a_field_says_how_wrong_it_is(tmp_path):
    """By the map, at a single theta inside the box that the base network answers; NetCDF and VTK keep it."""
    problem = cl.problems.Kovasznay()
    errors = made_up_map(problem, unresolved=0)
    surrogate = made(problem, jnp.float64).with_errors(errors)
    for name in ("field.nc", "field.vtk"):
        cl.export(surrogate, tmp_path / name, 5, Re=333.0)
    with xarray.open_dataset(tmp_path / "field.nc") as found:
        attributes = found.attrs
    for output, (low, middle, high) in errors.over(np.array([[333.0]])).items():
        told = [attributes[f"estimated_relative_l2_{output}{end}"] for end in ("_low", "", "_high")]
        assert told == [low[0], middle[0], high[0]] and attributes["estimated_error_resolved"] == 1
        title = (tmp_path / "field.vtk").read_bytes().split(b"\n")[1].decode()
        assert f"estimated relative L2 error of {output} {middle[0]:.1e}" in title
    assert len(meshio.read(tmp_path / "field.vtk").points) == 25

    def estimated(asked, **given):
        return {name: value for name, value in asked.field(3, **given).attrs.items() if "estimated" in name}

    assert estimated(surrogate, Re=errors.thetas[0, 0]) == {"estimated_error_resolved": 0}
    assert estimated(surrogate, Re=[100.0, 200.0]) == {} == estimated(surrogate.with_errors(None), Re=100.0)
    with pytest.warns(cl.OutsideBoxWarning):
        assert estimated(surrogate, Re=600.0) == {}
    alone = dataclasses.replace(
        errors,
        **{name: getattr(errors, name)[1:2] for name in ("thetas", "relative_l2", "largest", "resolved", "fields")},
    )
    assert estimated(surrogate.with_errors(alone), Re=100.0) == {"estimated_error_resolved": 0}
    there = estimated(surrogate.with_errors(alone), Re=errors.thetas[1, 0])
    assert there["estimated_relative_l2_u"] == pytest.approx(errors.relative_l2[1, 0])
    headed = with_heads(surrogate, np.array([[100.0], [200.0]]), [True, False])
    assert estimated(headed, Re=100.0) == {} and "estimated_relative_l2_p" in estimated(headed, Re=200.0)


def test_an_estimated_error_field_has_no_other_estimate():
    problem = Inflow()
    surrogate = made(problem, jnp.float64)
    field = surrogate.with_errors(made_up_map(problem)).error(k=1.0).field
    assert not [name for name in field.attrs if name.startswith("estimated_")]


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


def test_onnx_says_how_wrong_it_is(tmp_path):
    errors = made_up_map(Rod())
    cl.export(made(Rod()).with_errors(errors), tmp_path / "rod.onnx")
    told = onnxruntime.InferenceSession(tmp_path / "rod.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(told["estimated_errors"]) == errors.summary()
    cl.export(made(Rod()), tmp_path / "rod.onnx")
    told = onnxruntime.InferenceSession(tmp_path / "rod.onnx").get_modelmeta().custom_metadata_map
    assert "estimated_errors" not in told and json.loads(told["outputs"]) == ["u"]


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
