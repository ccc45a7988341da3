"""A run directory executes no code: only a file that the user names, or that their own training recorded, is run."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clpinn.cli.app import app
from clpinn.errors import ClpinnError, RunError
from clpinn.files import state_folder
from clpinn.presets import natural
from clpinn.problems import load_problem
from clpinn.runs.directory import RunDirectory
from clpinn.runs.run import run
from clpinn.training.settings import override

OWN = """
import clpinn as cl

class Own(cl.Problem):
    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(a=(1, 2))
    candidates = parameters.grid(a=3)
    evaluation = coordinates.grid(x=5)

    def residual(self, d, a):
        return d.u_x + a * d.u
"""
HOSTILE = f"""
from pathlib import Path
Path({{marker!r}}).write_text("code was run")
{OWN}
"""
COMMANDS = (
    ["predict", "RUN", "a=1.5", "x=0.5"],
    ["predict", "RUN/model.clpinn", "a=1.5", "x=0.5"],
    ["export", "RUN", "out.csv", "a=1.5"],
    ["plot", "RUN", "errors", "--out", "out.png"],
    ["report", "RUN", "--out", "out.html"],
    ["evaluate", "RUN"],
    ["adapt", "RUN", "a=1.5"],
)


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """A run as its owner made it, in a folder that holds its problem file too."""
    folder = tmp_path_factory.mktemp("owner")
    (folder / "own.py").write_text(OWN)
    problem = load_problem(f"{folder}/own.py:Own")
    settings = override(natural(problem, "free"), ["steps=2", "network.width=4", "natural.rows=16"])
    run(problem, settings, folder / "run", name=f"{folder}/own.py:Own")
    return folder


@pytest.fixture
def hostile(sent, tmp_path, monkeypatch):
    """A copy of that run with a hostile problem file inside it and beside it. Its config points at them as told."""
    monkeypatch.chdir(tmp_path)
    copy, marker = tmp_path / "run", tmp_path / "marker"
    shutil.copytree(sent / "run", copy)
    for place in (copy, tmp_path, copy / "code"):
        place.mkdir(exist_ok=True)
        (place / "problem.py").write_text(HOSTILE.format(marker=str(marker)))

    def point(name, started_in):
        config = json.loads((copy / "config.json").read_text())
        config |= {"problem": name, "started_in": str(started_in)}
        (copy / "config.json").write_text(json.dumps(config))
        return copy, marker

    return point


def invoke(words, copy):
    return CliRunner().invoke(app, [word.replace("RUN", str(copy)) for word in words])


@pytest.mark.parametrize(
    ("name", "started_in"),
    [
        ("problem.py:Own", "run"),  # inside, through started_in
        ("problem.py:Own", ""),  # beside, in the current directory
        ("run/problem.py:Own", ""),
        ("run/code/problem.py", ""),
        ("./run/../run/problem.py:Own", "/"),
        ("ABSOLUTE/run/problem.py:Own", ""),
        ("ABSOLUTE/problem.py:Own", "ABSOLUTE"),
    ],
)
def test_no_command_runs_what_a_config_points_at(hostile, tmp_path, name, started_in):
    copy, marker = hostile(name.replace("ABSOLUTE", str(tmp_path)), started_in.replace("ABSOLUTE", str(tmp_path)))
    for words in COMMANDS:
        done = invoke(words, copy)
        # A report comes without the figures that need the problem.
        if words[0] != "report":
            assert isinstance(done.exception, ClpinnError), words
            assert "If you trust the file: --problem my_pde.py:Own" in str(done.exception)
        assert not marker.exists(), words


def test_a_resume_runs_only_the_problem_that_is_named(hostile, sent, tmp_path, monkeypatch):
    monkeypatch.setattr("clpinn.cli.train.use_devices", lambda devices: None)
    copy, marker = hostile("problem.py:Own", "run")
    done = invoke(["train", "burgers", "--out", "RUN", "--resume"], copy)
    assert isinstance(done.exception, ClpinnError) and not marker.exists()
    # The user's own file is run; the one that the config points at is not, and it is not recorded either.
    done = invoke(["train", f"{sent}/own.py:Own", "--out", "RUN", "--resume", "--steps", "3"], copy)
    assert done.exit_code == 0 and not marker.exists()
    assert invoke(["predict", "RUN", "a=1.5", "x=0.5"], copy).exit_code == 0 and not marker.exists()


def test_a_file_that_the_user_names_is_run(hostile):
    copy, marker = hostile("problem.py:Own", "run")
    assert invoke(["predict", "RUN", "a=1.5", "x=0.5", "--problem", "problem.py:Own"], copy).exit_code == 0
    assert marker.exists()


def test_the_users_own_run_finds_its_problem(sent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert type(RunDirectory(sent / "run").problem).__name__ == "Own"


def test_a_record_is_of_one_directory_and_one_token(sent, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(sent / "run", mine)
    with pytest.raises(RunError, match="If you trust the file"):  # copied: another directory
        RunDirectory(mine).problem  # noqa: B018
    problem = load_problem(f"{sent}/own.py:Own")
    directory = RunDirectory(mine, problem)
    directory.write_config(problem, directory.settings, f"{sent}/own.py:Own")
    assert type(RunDirectory(mine).problem).__name__ == "Own"
    for token in ("another", None, 3, ["x"]):  # replaced by somebody else's directory
        config = directory.config | {"token": token}
        (mine / "config.json").write_text(json.dumps(config))
        with pytest.raises(RunError, match="If you trust the file"):
            RunDirectory(mine).problem  # noqa: B018


def test_a_file_inside_the_run_directory_is_not_recorded(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    problem = load_problem(f"{folder}/own.py:Own")
    RunDirectory(folder, problem).write_config(problem, natural(problem), f"{folder}/own.py:Own")
    with pytest.raises(RunError, match="If you trust the file"):
        RunDirectory(folder).problem  # noqa: B018


def test_a_damaged_record_is_no_record(sent, tmp_path, monkeypatch):
    monkeypatch.setenv("CLPINN_STATE", str(tmp_path / "state"))
    problem = load_problem(f"{sent}/own.py:Own")
    directory = RunDirectory(tmp_path / "run", problem)
    directory.write_config(problem, natural(problem), f"{sent}/own.py:Own")
    assert type(RunDirectory(tmp_path / "run").problem).__name__ == "Own"
    (entry,) = (state_folder() / "runs").iterdir()
    for text in ("", "{", "[]", "{}", "[" * 100_000):
        entry.write_text(text)
        with pytest.raises(RunError, match="If you trust the file"):
            RunDirectory(tmp_path / "run").problem  # noqa: B018
    # A state directory that cannot be written does not stop training.
    monkeypatch.setenv("CLPINN_STATE", str(Path(entry)))
    directory.write_config(problem, natural(problem), f"{sent}/own.py:Own")
