"""The tutorial scripts do what they say, here with networks that train faster than theirs."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import clpinn as cl
from clpinn.problems import load_problem
from clpinn.training.settings import override

EXAMPLES = Path("examples").resolve()


class Burgers(cl.problems.Burgers):
    """With less to evaluate at the end of training."""

    candidates = cl.Grid(nu=[0.01, 0.1, 1.0])


def small(problem: cl.Problem, folder: Path, *words: str) -> cl.Surrogate:
    return cl.run(problem, override(cl.natural(problem), words), folder).surrogate


@pytest.fixture(scope="module")
def heat(tmp_path_factory):
    problem = load_problem("examples/heat.py:Heat")
    size = ("network.width=20", "network.depth=2", "natural.rows=256", "steps=60")
    return small(problem, tmp_path_factory.mktemp("heat") / "run", *size)


@pytest.fixture
def script(monkeypatch):
    """Runs a script as far as its definitions."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield lambda name: runpy.run_path(str(EXAMPLES / f"{name}.py"))
    for name in ("heat", "own_pde"):
        sys.modules.pop(name, None)


def test_a_pde_of_ones_own(heat, script, capsys):
    found = script("own_pde")["main"](heat)
    assert found["error"] < 5e-3 and 0 < found["estimate"] < 5e-3
    assert found["slope"] == pytest.approx(np.pi * np.exp(-0.1 * np.pi**2 / 2), rel=1e-2)
    assert "Estimated relative L2 error at kappa = 0.1" in capsys.readouterr().out


def test_a_design_sweep(heat, script):
    found = script("design")["main"](heat)
    assert found["exact"] == pytest.approx(0.466601, abs=1e-6)
    assert found["kappa"] == pytest.approx(found["exact"], rel=2e-2)
    assert found["swept"] == pytest.approx(found["kappa"], rel=1e-3)


@pytest.mark.slow
def test_an_inverse_problem(script, tmp_path):
    """nu from 50 points with 1 % noise, to within 1 % in the median of ten draws wherever these tell as much."""
    size = ("network.width=24", "network.depth=3", "natural.rows=512", "steps=130")
    found = script("inverse")["main"](small(Burgers(), tmp_path / "run", *size))
    assert all(found[nu]["median"] < 0.01 for nu in (0.05, 0.1, 0.3, 1.0))
    assert all(one["median"] < 2 * one["expected"] for one in found.values())
    assert found[0.02]["expected"] > 0.01  # no estimate is better there
