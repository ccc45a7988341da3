"""The package as a whole: exports, the one-way flow of imports, no global state."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import clpinn

SOURCE = Path(clpinn.__file__).parent

# Data goes one way: a file imports only from rooms above its own, and inside its room only from files above it.
FLOW: dict[str, list[str]] = {
    "errors": [],
    "files": [],
    "machine": [],
    "keys": [],
    "programs": [],
    "shown": [],
    "protocol": [],
    "calculus": ["jets", "names", "linearity"],
    "shapes": ["pieces", "carried", "shape", "plane", "imported", "solid", "points", "cells", "quadrature", "inside"],
    "formulation": [
        "domain",
        "regions",
        "calls",
        "problem",
        "identity",
        "thetas",
        "shaped",
        "membership",
        "shaped_points",
        "outlines",
        "geometry",
        "fingerprint",
        "pointwise",
        "integrals",
        "vanishing",
        "perturbed",
        "validation",
        "references",
        "agreement",
    ],
    "problems": [
        "elements",
        "allen_cahn",
        "burgers",
        "kovasznay",
        "poisson_boltzmann",
        "schaffer",
        "loader",
        "__init__",
    ],
    "networks": ["layers", "architecture", "fnn", "standard", "p2inn", "generated", "hyperpinn", "metapinn", "make"],
    "estimation": [
        "splines",
        "cut_domain",
        "elements",
        "perturbed_programs",
        "least_squares",
        "integral_rows",
        "meshes",
        "jumps",
        "spaces",
        "results",
        "estimate",
    ],
    "training": [
        "tasks",
        "gaussian_process",
        "selection",
        "weighting",
        "residuals",
        "pool_loss",
        "causality",
        "term_sizes",
        "rows",
        "batches",
        "optimizers",
        "checkpoint",
        "settings",
        "state",
        "amplitudes",
        "stages",
        "events",
        "trainer",
    ],
    "drawing": ["colours", "style", "fields", "fits"],
    "surrogate": [
        "adaptations",
        "adapt_settings",
        "adapt_programs",
        "corrections",
        "box_kernel",
        "box_modes",
        "box_correction",
        "adapt",
        "box_search",
        "error_process",
        "error_map",
        "correct_box",
        "answers",
        "field",
        "points",
        "error",
        "provenance",
        "trust",
        "measurements",
        "fit",
        "file",
        "surrogate",
        "calibration",
    ],
    "exports": ["translate", "fields", "meshes", "xdmf", "xdmf", "programs", "export"],
    "presets": [],
    "runs": [
        "display",
        "callbacks",
        "evaluate",
        "adaptation",
        "records",
        "register",
        "directory",
        "error_goal",
        "removal",
        "metrics",
        "session",
        "metapinn",
        "run",
    ],
    "report": [
        "fields",
        "heads",
        "over_parameters",
        "estimates",
        "along_run",
        "figures",
        "captions",
        "explorer",
        "page",
    ],
    "studies": [
        "adapting",
        "study",
        "cost",
        "cells",
        "work",
        "process",
        "schedule",
        "cluster",
        "tables",
        "figures",
        "published",
        "paper",
        "running",
        "page",
    ],
    "cli": [
        "display",
        "options",
        "tables",
        "init",
        "problems",
        "train",
        "adapt",
        "predict",
        "fit",
        "report",
        "study",
        "app",
    ],
    "__main__": [],
}

# A method may hand over to a later room when it is called, if nothing else can. Each such import is listed here.
DELEGATED = {("session.py", "clpinn.report.page.write_page")}


def _imported(path: Path) -> set[str]:
    """Dotted names of all that a file imports from clpinn."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "clpinn":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("clpinn.")}
    return names


def _parts(path: Path) -> list[str]:
    return list(path.relative_to(SOURCE).with_suffix("").parts)


def test_flow_is_one_way():
    rooms = list(FLOW)
    for path in SOURCE.rglob("*.py"):
        room, *inside = _parts(path)
        if room == "__init__":
            continue
        for name in _imported(path):
            _, used, *rest = name.split(".")
            if (path.name, name) in DELEGATED:
                continue
            assert rooms.index(used) <= rooms.index(room), f"{path.name} imports {name}, from a later room"
            if used == room and rest and rest[0] in FLOW[room] and inside[0] in FLOW[room]:
                order = FLOW[room]
                assert order.index(rest[0]) <= order.index(inside[0]), f"{path.name} imports {name}, a later file"


def test_every_file_is_in_the_flow():
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        room, *inside = _parts(path)
        found.setdefault(room, set()).update(inside[:1])
    assert set(found) - {"__init__"} == set(FLOW)
    for room, files in FLOW.items():
        assert found[room] - {"__init__"} == set(files) - {"__init__"}


def test_exports_are_complete_and_real():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(clpinn.__all__) == {*clpinn._MODULE_OF, "problems"} == typed - {"import_module", "Any", "TYPE_CHECKING"}
    for name in clpinn.__all__:
        assert getattr(clpinn, name) is not None and name in dir(clpinn)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        clpinn.nothing  # noqa: B018  # pyright: ignore


def test_no_public_name_shadows_a_module():
    modules = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}
    assert modules & set(clpinn.__all__) == {"problems"}


def test_files_fit_in_the_head():
    lengths = {p: len(p.read_text().splitlines()) for p in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js")]}
    assert {path.name: length for path, length in lengths.items() if length > 400} == {}
    assert np.median(list(lengths.values())) <= 200


def test_help_imports_no_numerics():
    code = "import sys; sys.argv = ['clpinn', '--help']; import clpinn.cli.app as app\n"
    code += "try: app.main()\nexcept SystemExit: pass\n"
    code += "print(sorted({'jax', 'numpy', 'scipy', 'matplotlib', 'xarray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_import_changes_no_global_state():
    code = """
import jax, numpy, os
from jax._src import xla_bridge
def state():
    return jax.config.jax_enable_x64, dict(os.environ), numpy.random.get_state()[1].tolist()
before = state()
import clpinn
assert state() == before
assert not xla_bridge._backends, "importing clpinn started a JAX backend"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version_is_the_packages():
    from importlib.metadata import version

    assert clpinn.__version__ == version("clpinn")
