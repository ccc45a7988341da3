"""An edited problem is not taken for the one that was trained."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from running import natural_for
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.errors import ClpinnError, ProblemError
from clpinn.formulation.fingerprint import check_unchanged, fingerprint
from clpinn.presets import natural
from clpinn.problems import load_problem
from clpinn.runs.directory import RunDirectory
from clpinn.runs.run import run
from clpinn.training.settings import override

SOURCE = """
import jax
import jax.numpy as jnp
import numpy as np
import clpinn as cl

TABLE = jnp.linspace(0.0, 1.0, 5)
STEADY = jnp.array(0.1)

def twice(value):
    return 2.0 * value

class Own(cl.Problem):
    coordinates = cl.Box(x=(0, 1), y=(0.1, 1))
    parameters = cl.Box(a=(1, 2))
    candidates = parameters.grid(a=3)
    evaluation = coordinates.grid(x=4, y=4)
    conditions = (
        cl.Condition("end", lambda d, y: d.u - jnp.sin(y), on=cl.at(x=1)),
        cl.Data("sensor", at={"x": [0.5], "y": [0.5], "a": [1.5]}, values={"u": [0.25]}),
    )

    def residual(self, d, x, a):
        source = jnp.where(x > 0.5, jnp.interp(x, TABLE, np.arange(5.0)), STEADY)
        return d.u_xy + a * d.u + twice(d.u_x) - jax.nn.softplus(source)

    def constrain(self, raw, x, a):
        return a + x * raw

    def place(self, x, y, a):
        return {"x": x * a, "y": y}
"""
EDITS = {
    "equation": [
        ("+ a * d.u", "- a * d.u"),
        ("2.0 * value", "2.001 * value"),
        ("d.u_xy", "d.u_xx"),
        ("0.0, 1.0, 5", "0.0, 2.0, 5"),
        ("jnp.array(0.1)", "jnp.array(0.2)"),
        ("np.arange(5.0)", "np.arange(5.0) ** 2"),
        ("x > 0.5", "x < 0.5"),
        ("softplus", "silu"),
    ],
    "condition 'end'": [("jnp.sin(y)", "jnp.cos(y)"), ("at(x=1)", "at(x=0)"), ("at(x=1)", "at(x=1), weight=2")],
    "condition 'sensor'": [("[0.25]", "[0.26]"), ('"x": [0.5]', '"x": [0.6]')],
    "constrain": [("a + x * raw", "a + 3 * x * raw")],
    "place": [("x * a", "x * a**2")],
    "coordinates": [("x=(0, 1)", "x=(0, 2)")],
    "parameters": [("a=(1, 2)", "a=cl.log(1, 2)")],
}
HARMLESS = [
    ("import numpy as np", "import numpy as np  # a comment"),
    ("source", "heat"),
    ("twice(value):\n    return 2.0 * value", "twice(argument):\n    return 2.0 * argument"),
    ("d.u_xy", "d.u_y_x"),
    ("at(x=1)", "at(x=1.0), points=77"),
    ("a=3", "a=4"),
    ("2.0 * value", "2 * value"),
    ("twice(d.u_x)", "2.0 * d.u_x"),
    ("jnp.array(0.1)", "0.1"),
    ("jnp.array(0.1)", "np.float32(0.1)"),
]


def loaded(folder: Path, *edit: str) -> cl.Problem:
    file = folder / f"own{len(list(folder.iterdir()))}.py"
    assert not edit or edit[0] in SOURCE
    file.write_text(SOURCE.replace(*edit) if edit else SOURCE)
    return load_problem(f"{file}:Own")


@pytest.mark.parametrize(("part", "edit"), [(part, edit) for part, edits in EDITS.items() for edit in edits])
def test_an_edit_is_named(part, edit, tmp_path):
    recorded = fingerprint(loaded(tmp_path))
    with pytest.raises(ProblemError, match=f"What differs: {part}\\..*--changed-problem"):
        check_unchanged(loaded(tmp_path, *edit), recorded, "RUN")


@pytest.mark.parametrize("edit", HARMLESS)
def test_an_edit_that_computes_the_same_is_none(edit, tmp_path):
    recorded = fingerprint(loaded(tmp_path))
    assert recorded is not None and set(recorded) == {"jax", "outputs", *EDITS}
    check_unchanged(loaded(tmp_path, *edit), recorded, "RUN")


def test_fingerprints_are_the_same_in_another_process_and_precision(tmp_path):
    (tmp_path / "own.py").write_text(SOURCE)
    code = "import json, sys; from clpinn.problems import load_problem, BENCHMARKS\n"
    code += "from clpinn.formulation.fingerprint import fingerprint\n"
    code += "problems = [load_problem(sys.argv[1]), *(make() for make in BENCHMARKS.values())]\n"
    code += "print(json.dumps([fingerprint(problem) for problem in problems]))"
    environment = os.environ | {"JAX_ENABLE_X64": "1", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, f"{tmp_path}/own.py:Own"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    problems = [load_problem(f"{tmp_path}/own.py:Own"), *(make() for make in cl.problems.BENCHMARKS.values())]
    assert json.loads(done.stdout) == [fingerprint(problem) for problem in problems]


def test_numbers_beyond_single_precision_count(tmp_path):
    class Tiny(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        factor = 1e-50

        def residual(self, d):
            return d.u_x - self.factor

    class Huge(Tiny):
        factor = 1e200

    class Other(Tiny):
        factor = 2e-50

    prints = [fingerprint(kind())["equation"] for kind in (Tiny, Huge, Other)]  # pyright: ignore
    assert len(set(prints)) == 3


def test_what_calls_python_or_cannot_be_traced_has_no_fingerprint():
    class Calls(cl.Problem):
        coordinates = cl.Box(x=(0, 1))

        def residual(self, d, x):
            return d.u_x - jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), x.dtype), x)

    class Concrete(cl.Problem):
        coordinates = cl.Box(x=(0, 1))

        def residual(self, d, x):
            return d.u_x - float(x)

    for problem in (Calls(), Concrete()):
        assert fingerprint(problem) is None
        check_unchanged(problem, {"jax": jax.__version__, "equation": "0"}, "RUN")


def test_another_version_of_jax_compares_what_is_not_traced(tmp_path):
    recorded = fingerprint(loaded(tmp_path))
    assert recorded is not None
    recorded["jax"] = "0.0.1"
    check_unchanged(loaded(tmp_path, "a + x * raw", "a + 3 * x * raw"), recorded, "RUN")
    with pytest.raises(ProblemError, match="What differs: coordinates"):
        check_unchanged(loaded(tmp_path, "x=(0, 1)", "x=(0, 2)"), recorded, "RUN")


# Where it is compared ----------------------------------------------------------------------------------------

SMALL = """
import jax.numpy as jnp
import clpinn as cl

class Own(cl.Problem):
    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(a=(1, 2))
    candidates = parameters.grid(a=3)
    evaluation = coordinates.grid(x=5)

    def residual(self, d, a):
        return d.u_x + a * d.u

    def constrain(self, raw, x):
        return 1 + x * raw
"""
COMMANDS = (
    ["predict", "run", "a=1.5", "x=0.5"],
    ["predict", "run/model.clpinn", "a=1.5", "x=0.5"],
    ["export", "run", "out.csv", "a=1.5"],
    ["plot", "run", "errors", "--out", "out.png"],
    ["evaluate", "run"],
    ["adapt", "run", "a=1.5", "--way", "head", "--steps", "1"],
)


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """A run whose problem file was edited after training."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    Path("own.py").write_text(SMALL)
    problem = load_problem("own.py:Own")
    settings = override(natural(problem, "free"), ["steps=2", "network.width=4", "network.depth=1", "natural.rows=16"])
    run(problem, settings, "run", name="own.py:Own")
    Path("own.py").write_text(SMALL.replace("1 + x * raw", "3 + x * raw"))


def invoke(*words):
    return CliRunner().invoke(app, words)


def test_every_command_notices_an_edited_problem(edited):
    for words in COMMANDS:
        for more in ([], ["--problem", "own.py:Own"]):
            done = invoke(*words, *more)
            assert isinstance(done.exception, ClpinnError), words
            assert "is not the problem that" in str(done.exception) and "What differs: constrain" in str(done.exception)
        assert invoke(*words, "--changed-problem").exit_code == 0, words
    assert invoke("report", "run", "--changed-problem").exit_code == 0


def test_a_resume_notices_an_edited_problem(edited):
    done = invoke("train", "own.py:Own", "--out", "run", "--resume", "--steps", "4")
    assert isinstance(done.exception, ProblemError) and "What differs: constrain" in str(done.exception)
    assert RunDirectory(Path("run")).settings.steps == 2
    done = invoke("train", "own.py:Own", "--out", "run", "--resume", "--steps", "4", "--changed-problem")
    assert done.exit_code == 0
    assert invoke("predict", "run", "a=1.5", "x=0.5").exit_code == 0  # now it is the run's own


def test_python_notices_an_edited_problem(edited):
    problem = load_problem("own.py:Own")
    for read in (cl.load, lambda path, *more: cl.load_network(path.parent, *more)):
        with pytest.raises(ProblemError, match="What differs: constrain"):
            read(Path("run/model.clpinn"), problem)
    assert cl.load("run/model.clpinn", problem, changed_problem=True)(x=0.0, a=1.5)["u"] == pytest.approx(3.0)
    assert cl.load_network("run", problem, changed_problem=True) is not None


def test_files_without_a_fingerprint_load_as_before(edited):
    config = json.loads(Path("run/config.json").read_text())
    del config["fingerprint"]
    Path("run/config.json").write_text(json.dumps(config))
    assert invoke("evaluate", "run").exit_code == 0


# Settings of a run that goes on ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        (["--seed", "1"], "--seed 1 (the run has 0)"),
        (["--method", "acr"], "--method acr (the run has free)"),
        (["--optimizer", "adam-lbfgs"], "--optimizer adam-lbfgs (the run has natural)"),
        (["--probe", "2"], "--probe 2 (the run has 0)"),
        (["--set", "network.width=9"], "--set network.width=9"),
        (["--config", "other.json"], "--config (the run has other settings)"),
        (["--at", "a=1.5"], "--at is the theta of a standard PINN"),
        (["--budget", "0.5"], "--budget is a share of the paper's steps"),
    ],
)
def test_a_resume_with_other_settings_names_the_difference(edited, flags, difference):
    Path("own.py").write_text(SMALL)
    settings = RunDirectory(Path("run")).config["settings"]
    Path("other.json").write_text(json.dumps({"settings": settings | {"seed": 3}}))
    done = invoke("train", "own.py:Own", "--out", "run", "--resume", "--steps", "3", *flags)
    assert isinstance(done.exception, ClpinnError) and difference in str(done.exception)
    assert RunDirectory(Path("run")).metrics["steps"] == 2


def test_a_resume_with_the_settings_of_the_run_goes_on(edited):
    Path("own.py").write_text(SMALL)
    same = "--seed 0 --method free --optimizer natural --probe 0 --set network.width=4 --config run/config.json"
    done = invoke("train", "own.py:Own", "--out", "run", "--resume", "--steps", "3", *same.split())
    assert done.exit_code == 0 and RunDirectory(Path("run")).metrics["steps"] == 3


def test_a_budget_and_a_theta_are_compared_too(tmp_path, monkeypatch):
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    words = ["train", "tests/small.py:Decay", "--out", str(tmp_path / "run"), "--optimizer", "adam-lbfgs"]
    words += ["--method", "standard", "--at", "k=1.5", "--budget", "0.001", "--set", "network.width=4", "--steps", "3"]
    assert invoke(*words).exit_code == 0
    assert invoke(*words, "--resume").exit_code == 0
    for flags, difference in ((["--budget", "0.002"], "--budget 0.002"), (["--at", "k=1"], "--at k=1")):
        done = invoke(*words[:4], "--resume", *flags)
        assert isinstance(done.exception, ClpinnError) and difference in str(done.exception)


def test_other_devices_are_warned_of(tmp_path):
    problem = load_problem("tests/small.py:Decay")
    settings = replace(natural_for(), steps=2)
    run(problem, settings, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["devices"] = ["one"] * 7
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    messages = []
    callbacks = cl.Callbacks(message=messages.append)
    run(problem, replace(settings, steps=3), tmp_path / "run", resume=True, callbacks=callbacks)
    assert "started on 7 devices and goes on with 1" in messages[0] and "--devices 7" in messages[0]


def test_closed_over_arrays_count():
    def problem(values):
        class Table(cl.Problem):
            coordinates = cl.Box(x=(0, 1))

            def residual(self, d, x):
                return d.u_x - jnp.sum(values * x)

        return Table()

    first, same, other = (fingerprint(problem(jnp.array(row))) for row in ([1.0, 2.0], [1.0, 2.0], [1.0, 3.0]))
    assert first == same != other
