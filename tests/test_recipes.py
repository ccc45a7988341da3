"""The recipes of docs/statements.md, as printed there: each is trained and compared with its exact solution."""

import re
from pathlib import Path

import pytest

import clpinn as cl
from clpinn.formulation.validation import validate
from clpinn.training.settings import override

pytestmark = pytest.mark.slow

BLOCKS = re.findall(r"^```python\n(.*?)^```", Path("docs/statements.md").read_text(), re.M | re.S)
BOUNDS = {
    "Rod": {"u": 1e-3},
    "Gauge": {"u": 1e-3},
    "HalfHeated": {"u": 1e-2},
    "Annulus": {"u": 1e-2},
    "TwoMaterials": {"left": 2e-2, "right": 2e-2},
    "ByFlux": {"w": 3e-2, "q": 1e-2},
    "Forced": {"u": 1e-3},
    "Source": {"u": 1e-2},
    "HiddenSource": {"u": 1e-2, "f": 1e-1},
}
"""Accepted relative L2 errors at the worst theta, by output."""
SMALL = ("network.width=20", "network.depth=2", "natural.rows=256")
STEPS = {"TwoMaterials": 160, "HiddenSource": 160}
"""Steps of training where 80 are too few."""


@pytest.fixture(scope="module")
def recipes() -> dict[str, type[cl.Problem]]:
    names: dict = {"__name__": "recipes"}
    for block in BLOCKS:
        exec(block, names)
    return {
        name: value
        for name, value in names.items()
        if isinstance(value, type) and issubclass(value, cl.Problem) and value.__module__ == "recipes"
    }


def test_every_recipe_has_a_bound(recipes):
    assert set(recipes) == set(BOUNDS)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_recipe_gives_its_exact_solution(recipes, name, tmp_path, record_property):
    problem = recipes[name]()
    validate(problem)
    problem.candidates = problem.parameters.grid(**dict.fromkeys(problem.parameters, 3))
    settings = override(cl.natural(problem), [*SMALL, f"steps={STEPS.get(name, 80)}"])
    result = cl.run(problem, settings, tmp_path / "run", progress=False)
    errors = {output: error["rel_l2_worst"] for output, error in result.metrics["outputs"].items()}
    record_property(name, errors)
    assert set(errors) == set(BOUNDS[name])
    assert all(error < BOUNDS[name][output] for output, error in errors.items()), errors
