"""The examples on shapes: each is trained with the defaults for some steps and compared with its reference.

The reference of the cylinder is proven: by refinement, by drag in two ways, and by a second solver.
"""

import ast
import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import skfem
from scipy.sparse import block_array
from skfem.helpers import ddot, div, grad

from clpinn.presets import natural
from clpinn.problems import load_problem
from clpinn.runs.run import run

EXAMPLES = sorted(path.stem for path in Path("examples/shapes").glob("*.py") if not path.stem.endswith("_reference"))
SIDES = {2: 17, 4: 7}
"""Evaluation points along each axis, by the number of coordinates."""


def example(name):
    return load_problem(f"examples/shapes/{name}.py")


def file_of(problem):
    """The module of an example."""
    return sys.modules[type(problem).__module__]


def trained(name, steps, folder):
    problem = example(name)
    problem.candidates = problem.parameters.grid(**dict.fromkeys(problem.parameters, 2))
    problem.evaluation = problem.coordinates.grid(**dict.fromkeys(problem.coordinates, SIDES[len(problem.coordinates)]))
    return run(problem, dataclasses.replace(natural(problem, "free"), steps=steps), folder, progress=False)


BOUNDS = {
    "annulus": (40, 3e-2),
    "ball": (15, 0.15),
    "fin": (25, 0.1),
    "l_shape": (30, 0.2),
    "two_materials": (50, 0.15),
}
"""Steps, and what the relative L2 error at the corners of the parameter box must be below, in the mean."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_it_learns_in_a_few_steps(name, tmp_path):
    steps, bound = BOUNDS[name]
    result = trained(name, steps, tmp_path)
    errors = {output: part["rel_l2_macro"] for output, part in result.metrics["outputs"].items()}
    assert max(errors.values()) < bound, errors


def test_every_example_is_trained_here():
    assert {*BOUNDS, "plate_with_hole", "cylinder"} == {*EXAMPLES}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_problem_is_stated_in_at_most_40_lines(name):
    text = Path(f"examples/shapes/{name}.py").read_text()
    (problem,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert len((ast.get_source_segment(text, problem) or "").splitlines()) <= 40


# The plate with a hole -----------------------------------------------------------------------------------------------


class Known:
    """A surrogate of known outputs, with derivatives by central differences."""

    def __init__(self, outputs):
        self.outputs = outputs

    def __call__(self, **at):
        with jax.enable_x64(True):
            return {name: np.asarray(values) for name, values in self.outputs(**at).items()}

    def derivative(self, name, **at):
        output, along = name.split("_")
        after, before = (self(**(at | {along: at[along] + step}))[output] for step in (1e-5, -1e-5))
        return (after - before) / 2e-5


@pytest.mark.parametrize(("r", "load"), [(0.1, -1.0), (0.25, 0.0), (0.3, 0.6)])
def test_the_stress_concentration_of_the_exact_solution(r, load):
    problem = example("plate_with_hole")
    assert file_of(problem).concentration(Known(problem.reference), r, load) == pytest.approx(3 - load, rel=1e-6)


@pytest.mark.slow
def test_the_plate_learns_its_stress_concentration(tmp_path):
    result = trained("plate_with_hole", 60, tmp_path)
    assert max(part["rel_l2_macro"] for part in result.metrics["outputs"].values()) < 5e-2
    concentration = file_of(result.surrogate.problem).concentration
    for r, load in ((0.15, 0.5), (0.2, -0.5), (0.25, 0.0)):
        assert concentration(result.surrogate, r, load) == pytest.approx(3 - load, rel=0.1)


# The cylinder --------------------------------------------------------------------------------------------------------

CYLINDER = example("cylinder")
REFERENCE = sys.modules["cylinder_reference"]
POINTS = np.random.default_rng(0).uniform([0, 0], [4, 1], (400, 2)).T


def outside(radius):
    """Points of the channel outside of the cylinder."""
    return POINTS[:, np.hypot(POINTS[0] - 1, POINTS[1]) > radius]


def difference(first, second):
    """The largest difference of two flows by output, over the largest value."""
    return {name: np.max(np.abs(first[name] - second[name])) / np.max(np.abs(second[name])) for name in ("u", "v", "p")}


@pytest.mark.parametrize(("radius", "Re"), [(0.2, 40.0), (0.4, 1.0), (0.4, 40.0)])
def test_the_reference_converges_and_gives_the_drag_in_two_ways(radius, Re):
    x, y = outside(radius)
    coarse, middle, fine = (REFERENCE.solve(radius, Re, count) for count in (4, 6, 12))
    assert max(difference(middle(x, y), fine(x, y)).values()) < 1e-2
    far, near = (max(difference(flow(x, y), fine(x, y)).values()) for flow in (coarse, middle))
    assert near < 0.6 * far
    assert fine.reaction == pytest.approx(middle.reaction, rel=1e-3)
    assert fine.stresses == pytest.approx(fine.reaction, rel=1e-3)
    assert abs(fine.stresses - fine.reaction) < 0.6 * abs(coarse.stresses - coarse.reaction)


def flow_on_triangles(radius, Re, fine):
    """Bases and values of velocity and pressure by Picard's method: another mesh, other elements, and no map."""
    squares = REFERENCE._mesh(fine, skfem)
    mesh = skfem.MeshQuad(np.stack(REFERENCE._place(*squares.p, radius)), squares.t).to_meshtri()
    velocity = skfem.Basis(mesh, skfem.ElementVector(skfem.ElementTriP2()), intorder=5)
    pressure = velocity.with_element(skfem.ElementTriP1())
    stiff = 2 * radius / Re * skfem.BilinearForm(lambda u, w, _: ddot(grad(u), grad(w))).assemble(velocity)
    mass = skfem.BilinearForm(lambda u, q, _: div(u) * q).assemble(velocity, pressure)
    convection = skfem.BilinearForm(lambda u, w, known: np.einsum("ij...,j...,i...", u.grad, known["wind"], w))
    x, y = velocity.doflocs
    along_x = np.isin(np.arange(velocity.N), velocity.split_indices()[0])
    rim = mesh.facets_satisfying(lambda at: np.hypot(at[0] - 1, at[1]) < 1.001 * radius, boundaries_only=True)
    held = np.isclose(x, 0) | np.isclose(y, 1) | (np.isclose(y, 0) & ~along_x)
    held[velocity.get_dofs(rim).all()] = True
    z = np.zeros(velocity.N + pressure.N)
    z[: velocity.N] = np.where(np.isclose(x, 0) & along_x, 1 - y**2, 0.0)
    for _ in range(12):
        moved = stiff + convection.assemble(velocity, wind=np.asarray(velocity.interpolate(z[: velocity.N])))
        system = block_array([[moved, -mass.T], [mass, None]], format="csr")
        z = skfem.solve(*skfem.condense(system, x=z, D=np.flatnonzero(held)))
    return velocity, pressure, z


def test_the_reference_agrees_with_a_second_solver():
    radius, Re = 0.3, 10.0
    x, y = outside(1.02 * radius)
    velocity, pressure, z = flow_on_triangles(radius, Re, 10)
    u, v = np.reshape(velocity.probes(np.stack([x, y])) @ z[: velocity.N], (2, -1))
    p = pressure.probes(np.stack([x, y])) @ z[velocity.N :]
    assert max(difference({"u": u, "v": v, "p": p}, REFERENCE.solve(radius, Re)(x, y)).values()) < 5e-3


def test_the_map_of_the_reference_is_one_to_one():
    x, y = outside(0.25)
    back = REFERENCE._place(*REFERENCE._inverse(x, y, 0.25), 0.25)
    assert np.allclose(back, (x, y), atol=1e-12)


def test_the_drag_of_a_known_flow():
    def known(x, y, radius, Re):
        return {"u": ((x - 1) ** 2 + y**2) / 2, "v": (x - 1) * y, "p": x - 1}

    expected = np.pi * 0.3 * (4 * 2 * 0.3 / 5 - 1)
    assert file_of(CYLINDER).drag(Known(known), 0.3, 5.0) == pytest.approx(expected, rel=1e-6)


def test_the_reference_is_a_flow_of_the_problem():
    x = np.array([0.0, 0.0, 1.3, 2.0, 3.0, 1.0])
    y = np.array([0.0, 0.5, 0.0, 1.0, 0.0, 0.6])
    found = CYLINDER.reference(x=x, y=y, radius=np.array([0.3] * 5 + [0.2]), Re=10.0)
    assert np.allclose(found["u"][:4], [1, 0.75, 0, 0], atol=1e-9) and np.allclose(found["v"][:5], 0, atol=1e-9)
    assert found["u"][5] == REFERENCE.solve(0.2, 10.0)(x[5:], y[5:])["u"][0]
    across = np.linspace(0, 1, 201)
    u = CYLINDER.reference(x=np.full(201, 3.5), y=across, radius=0.3, Re=10.0)["u"]
    assert np.trapezoid(u, across) == pytest.approx(2 / 3, rel=1e-4)


@pytest.mark.slow
def test_the_flow_and_the_drag_are_learnt(tmp_path):
    result = trained("cylinder", 40, tmp_path)
    errors = {output: part["rel_l2_macro"] for output, part in result.metrics["outputs"].items()}
    assert max(errors.values()) < 0.2, errors
    file = file_of(CYLINDER)
    for radius, Re in ((0.25, 2.0), (0.3, 10.0)):
        assert file.drag(result.surrogate, radius, Re) == pytest.approx(file.reference_drag(radius, Re), rel=0.1)


def test_without_scikit_fem_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "skfem", None)
    with pytest.raises(ImportError, match="pip install 'scikit-fem"):
        CYLINDER.reference(x=0.5, y=0.5, radius=0.31, Re=3.0)
