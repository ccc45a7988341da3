"""The command line, as a user types it."""

import ast
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small import Known
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli import tables
from clpinn.cli.app import app
from clpinn.cli.options import print_json
from clpinn.cli.train import train
from clpinn.formulation.problem import describe
from clpinn.problems import load_problem
from clpinn.training.settings import override, to_dict


def clpinn(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "clpinn", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done


def quick(*arguments) -> str:
    """What a command prints, in this process: the start of another takes seconds."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


COMMANDS = ("problems", "train", "evaluate", "adapt", "predict", "fit", "export", "plot", "report")


def test_help_and_no_arguments():
    """Without arguments the command shows its help, which names and describes every command."""
    shown = clpinn("--help").stdout
    for name in COMMANDS:
        assert f" {name} " in shown
    assert "Train one network for a whole family of PDEs" in shown
    nothing = CliRunner().invoke(app, [])
    assert nothing.exit_code == 2 and "Train one network for a whole family of PDEs" in nothing.output


def test_the_command_says_its_version():
    assert clpinn("--version").stdout == f"clpinn {cl.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_describes_itself_and_its_options(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, [name, "--help"], catch_exceptions=False)
    assert done.exit_code == 0 and f" {name} [OPTIONS]" in done.stdout and "--json" in done.stdout


def test_defaults_that_depend_on_other_options_are_shown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(quick("train", "--help").split())
    for default in ("runs/PROBLEM-METHOD-SEED", "free; acr with adam-lbfgs", "the centre of the box", "one per core"):
        assert f"[default: ({default})]" in shown


def test_commands_import_what_is_slow_only_when_they_run():
    """So the help is there at once."""
    files = list(Path("src/clpinn/cli").glob("*.py"))
    assert len(files) > 5
    for path in files:
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                modules = [getattr(statement, "module", None) or alias.name for alias in statement.names]
                for module in modules:
                    heavy = module.split(".")[0] in ("jax", "numpy", "scipy", "equinox")
                    light = ("clpinn.cli", "clpinn.errors", "clpinn.runs.display")
                    ours = module.startswith("clpinn") and not module.startswith(light)
                    assert not heavy and not ours, f"{path.name} imports {module} at its top"


def test_problems_lists_all_five():
    shown = clpinn("problems").stdout
    for name in ("schaffer", "burgers", "allen_cahn", "kovasznay", "poisson_boltzmann", "u_t + u u_x = (nu/π) u_xx"):
        assert name in shown
    described = json.loads(quick("problems", "--json"))
    assert described["poisson_boltzmann"]["candidates"] == [6, 6, 6, 6]
    assert described["burgers"]["parameters"]["nu"] == {"low": 0.01, "high": 1.0, "scale": "log"}


def test_one_problem_with_a_picture(tmp_path):
    picture = tmp_path / "new" / "burgers.png"
    shown = quick("problems", "burgers", "--plot", str(picture))
    assert "Cole-Hopf" in shown and "5300 interior" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_problem_of_ones_own(tmp_path):
    picture = tmp_path / "channel.svg"
    shown = quick("problems", "examples/channel.py:Channel", "--json", "--plot", str(picture))
    described = json.loads(shown)["examples/channel.py:Channel"]
    assert described["points_per_task"] == {"interior": 2500, "walls": 100, "inlet": 100}
    assert described["equation"].startswith("Fully developed flow")
    assert picture.exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["problems", "heet"], "There is no problem called 'heet'. Use one of schaffer"),
        (["problems", "nowhere.py:Heat"], "There is no file nowhere.py"),
    ],
)
def test_bad_input_is_one_clear_message(arguments, message):
    done = clpinn(*arguments, code=1)
    assert message in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert done.stdout == ""


class NotFinite(Known):
    """A reference that is not finite at one theta, and vanishes at another."""

    def reference(self, x, a):
        return {"u": np.where(a == 0.5, np.nan, a) * x}


def test_numbers_that_are_not_finite_are_named_in_tables_and_null_in_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    settings = override(cl.natural(Known()), ["network.width=4", "natural.rows=16", "steps=1"])
    cl.run(Known(), settings, tmp_path / "run", name="tests/small.py:Known")
    words = ["evaluate", str(tmp_path / "run"), "--problem", "tests/test_cli.py:NotFinite"]
    described = json.loads(quick(*words, "--json"), parse_constant=pytest.fail)
    assert described["outputs"]["u"]["rel_l2_macro"] is None and described["outputs"]["u"]["mse"] is None
    shown = quick(*words)
    assert shown.count("not finite") == 4 and "nan" not in shown.lower()
    row = {"a": 0.5, "used": True, "loss_before": math.nan, "loss_after": 1.0, "estimate_before": 1.0}
    row |= {"estimate_after": math.inf, "rel_l2_before": {"u": math.nan}, "rel_l2_after": {"u": 0.5}}
    tables.print_heads([row], ["a"], ["u"], Path("adapted.clpinn"))
    statistics = dict.fromkeys(("min", "mean", "max"), math.nan)
    tables.print_prediction("title", {"grid": {"x": 99, "t": 99}, "outputs": {"u": statistics}}, None)
    tables.print_prediction("title", {"grid": {}, "outputs": {"u": statistics}, "values": {"u": math.nan}}, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("not finite") == 7 and "nan" not in shown and "inf" not in shown
    print_json({"u": [math.nan, 1.0]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"u": [None, 1.0]}


def test_a_head_that_is_not_used_has_its_reason_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    figures = dict.fromkeys(("loss_before", "loss_after", "estimate_before", "estimate_after"), 1.0)
    rows = [{"a": a, "used": a > 1, "reason": f"because of {a}"} | figures for a in (0.5, 1.5)]
    tables.print_heads(rows, ["a"], [], Path("adapted.clpinn"))
    shown = capsys.readouterr().out
    assert "1 of them used" in shown and "a = 0.5: because of 0.5" in shown and "because of 1.5" not in shown


def test_a_run_goes_on_by_the_optimiser_it_began_with(tmp_path, monkeypatch):
    """The paper's optimiser has another form of Burgers, which the command does not name again."""
    problem = load_problem("burgers", paper=True)
    config = {"problem": "burgers", "description": describe(problem), "settings": to_dict(cl.paper(problem, "uni"))}
    default = tmp_path / "runs" / "burgers-uni-0"
    default.mkdir(parents=True)
    (default / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    calls = []

    def run(problem, settings, folder, resume, *_, **__):
        calls.append((problem.hard, settings.optimizer, settings.steps, str(folder), resume))
        raise cl.ClpinnError("far enough")

    monkeypatch.setattr("clpinn.runs.run.run", run)
    for options in (
        {"out": default, "resume": True},
        {"out": default, "resume": True, "steps": 7},
        {"method": "uni", "resume": True},  # the default directory is asked as one that is named
        {"method": "uni"},
    ):
        with pytest.raises(cl.ClpinnError, match="far enough"):
            train("burgers", **options)
    assert calls == [
        (False, "adam-lbfgs", None, str(default), True),
        (False, "adam-lbfgs", 7, str(default), True),
        (False, "adam-lbfgs", None, "runs/burgers-uni-0", True),
        (True, "natural", None, "runs/burgers-uni-0", False),
    ]
