"""`clpinn init`: what it writes is a problem that trains."""

import pytest
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.errors import ClpinnError
from clpinn.problems import load_problem
from clpinn.training.settings import override

SMALL = ("network.width=20", "network.depth=2", "natural.rows=256", "steps=60")


def init(file) -> str:
    return CliRunner().invoke(app, ["init", str(file)], catch_exceptions=False).stdout


def test_the_written_problem_is_right_and_trains(tmp_path):
    file = tmp_path / "my_pde.py"
    output = init(file)
    assert f"clpinn problems {file}" in output and f"clpinn train {file}" in output
    problem = load_problem(str(file))
    assert all(len(line) <= 120 for line in file.read_text().splitlines())
    assert problem.conditions and problem.constrain is not None and len(problem.parameters) == 1
    result = cl.run(problem, override(cl.natural(problem), SMALL), tmp_path / "run", progress=False)
    assert result.metrics["outputs"]["u"]["rel_l2_worst"] < 1e-2


def test_a_file_that_exists_is_left_alone(tmp_path):
    file = tmp_path / "my_pde.py"
    file.write_text("mine")
    with pytest.raises(ClpinnError, match="my_pde.py exists and was not changed. Choose another name."):
        init(file)
    assert file.read_text() == "mine"


def test_the_file_must_be_python(tmp_path):
    with pytest.raises(ClpinnError, match="Add .py to the name"):
        init(tmp_path / "my_pde")
    assert not list(tmp_path.iterdir())
