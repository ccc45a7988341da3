"""The parts of benchmarks/shapes.py and of its peers that need no training."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clpinn.problems import load_problem

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "shapes.py")))


def test_every_example_has_its_equation_on_a_box(benchmark):
    for name in benchmark.examples():
        example = load_problem(str(ROOT / "examples/shapes" / f"{name}.py"))
        box = load_problem(f"{BENCHMARKS / 'shape_boxes.py'}:{type(example).__name__}")
        assert box.domain is None and box.outputs == example.outputs
        assert (box.coordinates, box.parameters) == (example.coordinates, example.parameters)
        assert [each.name for each in box.conditions][:1] == [each.name for each in example.conditions][:1]
        assert len(box.conditions) == len(example.conditions)


def test_tables_show_each_output_and_the_ratio_to_a_box(benchmark):
    figures, before = {"rel_l2_macro": 1e-5, "rel_l2_worst": 2e-5}, {"rel_l2_macro": 1e-3, "rel_l2_worst": 2e-3}
    cell = {"problem": "plate", "limit": 60.0, "seed": 0, "cores": 2, "steps": 300, "commit": "abc"}
    cell |= {"outputs": {"u": figures, "v": figures}, "quantities": {"concentration": 0.0123}}
    cell |= {"correction": {"network_outputs": {"u": before, "v": before}}, "correction_seconds": 29.7}
    cell |= {"estimated": {"resolved": 0.9, "outputs": {"u": {"macro": {"value": 3e-5}, "worst": {"value": 4e-5}}}}}
    lines = benchmark.error_lines([None, cell])
    assert lines[2] == (
        "| plate | 60 | 0 | 2 | 300 | u | 1.0e-03 / 2.0e-03 | 1.0e-05 / 2.0e-05 | 3.0e-05 / 4.0e-05 | 90% | 30 | "
        "concentration: 1.23% | abc |"
    )
    assert "| v | 1.0e-03 / 2.0e-03 | 1.0e-05 / 2.0e-05 | – | 90% |" in lines[3]
    assert len(lines) == 2 + 2
    times = {"first": 6.0, "step": 0.1, "draw": 0.004}
    cost = {"problem": "plate", "cores": 2, "commit": "abc", "shape": times}
    assert "| 4.0% | 6.0 | 4.0 | 1.50 |" in benchmark.cost_lines([cost | {"box": times | {"first": 4.0}}])[2]
    assert "| 6.0 | – | – |" in benchmark.cost_lines([cost])[2]


def test_quantities_are_compared_with_what_stands_beside_them(benchmark, monkeypatch):
    problem = load_problem(str(ROOT / "examples/shapes/plate_with_hole.py"))
    module = sys.modules[type(problem).__module__]
    monkeypatch.setattr(module, "concentration", lambda surrogate, r, load: 1.01 * (3 - load), raising=False)
    monkeypatch.setattr(module, "flux", lambda surrogate, r, load: 0.98 * r, raising=False)
    monkeypatch.setattr(module, "reference_flux", lambda r, load: r, raising=False)
    errors = benchmark.quantities(SimpleNamespace(problem=problem))
    assert errors == {"concentration": pytest.approx(0.01), "flux": pytest.approx(0.02)}


def test_problems_of_the_peers_are_those_of_the_examples(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    stated = runpy.run_path(str(BENCHMARKS / "peers" / "shapes.py"))["PROBLEMS"]
    annulus, l_shape = (load_problem(str(ROOT / f"examples/shapes/{name}.py")) for name in ("annulus", "l_shape"))
    for example, peer in ((annulus, stated["annulus"]), (l_shape, stated["l_shape"])):
        assert [(axis.low, axis.high) for axis in example.parameters.axes] == [each[:2] for each in peer.parameters]
    x, y = np.array([0.5, -0.3, -0.7, 1.0]), np.array([0.4, 0.6, -0.9, 0.0])
    exact = stated["l_shape"].exact(np, x, y, 0.3)
    np.testing.assert_allclose(exact, l_shape.reference(x, y, 0.3)["u"], rtol=1e-6)
    raw = np.array([0.1, 0.2, 0.3, 0.4])
    constrained = [annulus.constrain(raw[i], x[i], y[i], 0.4) for i in range(4)]
    np.testing.assert_allclose(stated["annulus"].constrain(np, raw, x, y, 0.4), constrained, rtol=1e-6)
