"""The package as a whole: exports, the one-way flow of imports, no global state."""

import ast
import subprocess
import sys
from pathlib import Path

import clpinn

SOURCE = Path(clpinn.__file__).parent

# Data goes one way: a file imports only from files above it.
FLOW = [
    "errors",
    "threads",
    "derivatives",
    "linearity",
    "domain",
    "problem",
    "references",
    "problems",
    "networks",
    "tasks",
    "selection",
    "weighting",
    "loss",
    "rows",
    "optimizers",
    "checkpoint",
    "settings",
    "trainer",
    "adapt",
    "trust",
    "surrogate",
    "translate",
    "export",
    "evaluate",
    "runs",
    "report",
    "cli",
    "__main__",
]


def test_flow_is_one_way():
    for path in SOURCE.rglob("*.py"):
        stage = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if stage == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("clpinn"):
                names = [
                    f"{node.module}.{alias.name}" if node.module == "clpinn" else node.module for alias in node.names
                ]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("clpinn.")]
            for name in names:
                used = name.split(".")[1]
                assert FLOW.index(used) <= FLOW.index(stage), f"{path.name} imports {name}, which comes later"


def test_every_file_is_in_the_flow():
    found = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if not path.name.startswith("__py")}
    assert found - {"__init__", "py.typed"} == set(FLOW)


def test_exports_are_complete_and_real():
    public = {name for name in vars(clpinn) if not name.startswith("_")}
    modules = {path.name.removesuffix(".py") for path in SOURCE.iterdir()}
    assert public - modules <= set(clpinn.__all__) <= public


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
