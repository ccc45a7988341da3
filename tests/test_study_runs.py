"""Studies that run: in processes here and on a Dask cluster, stopped, killed, and with input that makes no sense."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from running import same
from small import Decay

import clpinn as cl
from clpinn.errors import BusyError, StudyError
from clpinn.machine import cores
from clpinn.runs.directory import RunDirectory
from clpinn.runs.display import Display
from clpinn.runs.run import run
from clpinn.studies import adapting
from clpinn.studies.adapting import adapt_cell
from clpinn.studies.cells import cell_folder, state_of
from clpinn.studies.running import CELLS, Plan, load_study, overview, run_study
from clpinn.studies.schedule import Place, run_cells
from clpinn.studies.work import _why
from clpinn.training.settings import to_dict

ROOT = Path(__file__).parent.parent
STUDY = """
import clpinn as cl

small = ("network.width=5", "network.depth=1", "correct=false", "natural.rows=48")
Quick = cl.Study(
    ("tests/small.py:Decay",),
    (
        cl.Variant("five", settings=(*small, "steps=5")),
        cl.Variant("wider", settings=(*small, "network.width=6", "steps=5")),
    ),
    seeds=(0,),
)
adam = cl.AdaptSettings("head", "adam", 6, width=4, precision="single", always=True)
Adapted = cl.Study(
    ("tests/small.py:Decay",),
    tuple(
        cl.Variant(str(end), settings=(*small, "steps=5"), adaptation=cl.Adapting(adam, (2,), "unseen", 3), steps=end)
        for end in (2, 6)
    ),
    seeds=(0,),
    columns=("before", "after", "reduction", "improved", "online"),
    figures=("dots", "scatter", "horizon"),
)
Long = cl.Study(("tests/small.py:Decay",), (cl.Variant("long", settings=(*small, "steps=150")),), seeds=(0,))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "studies.py"
    path.write_text(STUDY)
    return path


def study_command(*arguments, before=()):
    return subprocess.Popen(
        [*before, sys.executable, "-m", "clpinn", "study", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    try:
        out, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, out, errors


def undisturbed(study, folder):
    """The folder of a study's only cell, run without a break."""
    run_study(study, folder=folder, progress=False)
    (cell,) = study.cells().values()
    return cell_folder(cell, folder)


def wait_for_history(folder):
    end = time.monotonic() + 300
    while not (folder / "checkpoint").exists() or not any((folder / "checkpoint").glob("*.checkpoint")):
        assert time.monotonic() < end, f"nothing was written to {folder}"
        time.sleep(0.05)


@pytest.mark.slow
def test_the_study_of_the_docs_as_printed(tmp_path, monkeypatch):
    """Its file and its commands; it is not run twice."""
    text = (ROOT / "docs" / "studies.md").read_text()
    (tmp_path / "my_study.py").write_text(re.findall(r"```python\n(.*?)```", text, re.S)[0])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed = re.findall(r"^clpinn study (\w+ my_study.*?) *(?:#.*)?$", text, re.M)
    assert [command.split()[0] for command in printed] == ["run", "run", "report"]
    monkeypatch.chdir(tmp_path)
    dry, out, report = (finished(study_command(*command.split())) for command in printed)
    assert dry[0] == out[0] == report[0] == 0, (dry, out, report)
    assert "0 of 4 cells are done" in dry[1]
    assert "Width: 4 cells done" in out[1] and "wide, seed 1: done (steps)" in out[2]
    assert "How wide should the network be?" in report[1] and "2 of 2" in (tmp_path / "Width.html").read_text()
    study = load_study("my_study.py:Width")
    assert all(state_of(cell, CELLS).done for cell in study.cells().values())
    before = {path: path.stat().st_mtime_ns for path in CELLS.rglob("metrics.json")}
    assert vars(run_study(study, progress=False)) == {"done": 4, "failed": {}, "stopped": False}
    assert before == {path: path.stat().st_mtime_ns for path in CELLS.rglob("metrics.json")} and len(before) == 4
    seen = overview(study, progress=False)
    assert seen.hours == 0 and all(state.done for _, state in seen.cells.values())


@pytest.mark.slow
def test_a_study_of_adaptations(file, tmp_path):
    """Two rows of one trajectory: a base that is trained first, and one cell that adapts it."""
    study, cells = load_study(f"{file}:Adapted"), tmp_path / "cells"
    outcomes = run_study(study, folder=cells, progress=False)
    assert (outcomes.done, outcomes.failed, outcomes.stopped) == (2, {}, False)
    (found,) = cl.report_study(study, tmp_path / "adapted.html", folder=cells, progress=False)
    at_2, at_6 = (row.entries for row in found.rows)
    assert at_2["before"].by_seed == at_6["before"].by_seed and at_2["after"].by_seed != at_6["after"].by_seed
    base = next(iter(study.cells().values())).base
    assert base is not None
    surrogate = cl.load(cell_folder(base, cells), Decay())
    before = cl.evaluate(Decay(), surrogate, surrogate.unseen(3))
    assert at_2["before"].by_seed[0] == pytest.approx(before.summary()["outputs"]["u"]["rel_l2_macro"])
    assert (tmp_path / "adapted.html").read_text().count("<figure>") == 3


def test_groups_of_targets_that_are_done_are_kept(file, tmp_path, monkeypatch):
    study, cells = load_study(f"{file}:Adapted"), tmp_path / "cells"
    monkeypatch.setattr(adapting, "GROUP", 2)
    cell = next(iter(study.cells().values()))
    assert cell.base is not None and cell.adaptation is not None
    run(Decay(), cell.base.settings, cell_folder(cell.base, cells), progress=False)
    base, folder = RunDirectory(cell_folder(cell.base, cells), Decay()), cell_folder(cell, cells)
    adapt_cell(cell.adaptation, base, folder, cell.key)
    whole = json.loads((folder / "adapted.json").read_text())["figures"]
    assert len(whole["thetas"]) == 3 and whole["outcome"] == "steps" and whole["recoveries"] == 0
    first = (folder / "group-000.json").stat().st_mtime_ns
    for name in ("adapted.json", "group-001.json"):  # as after a kill in the second group
        (folder / name).unlink()
    adapt_cell(cell.adaptation, base, folder, cell.key)
    again = json.loads((folder / "adapted.json").read_text())["figures"]
    assert (folder / "group-000.json").stat().st_mtime_ns == first
    for figures in (whole, again):  # times differ
        for checkpoint in figures["checkpoints"].values():
            checkpoint.pop("seconds_per_target")
    assert again == whole
    with RunDirectory(folder).locked(), pytest.raises(BusyError):
        adapt_cell(cell.adaptation, base, folder, cell.key)


def test_cells_are_chosen_by_their_names(file, tmp_path):
    study, folder = load_study(f"{file}:Quick"), tmp_path / "cells"
    first = next(iter(study.cells().values()))
    assert run_study(study, folder=folder, progress=False, names=(f"*{first.key}",)).done == 1
    assert [state.done for _, state in overview(study, folder=folder, progress=False).cells.values()] == [True, False]
    with pytest.raises(StudyError, match=f"No cell fits nothing-\\*. Cells are called {first.name} and so on"):
        run_study(study, folder=folder, progress=False, names=("nothing-*",))


def test_a_cell_that_ends_without_a_result_has_failed(file, tmp_path):
    """A Meta-PINN whose base diverges ends with the code of divergence, and writes no metrics."""

    def ended(code):
        future = Future()
        future.set_result({"code": code, "message": "it diverged"})
        return Place(lambda order: future, 1)

    cells = {"a": next(iter(load_study(f"{file}:Quick").cells().values()))}
    for code in (0, 3):
        outcomes = run_cells(cells, tmp_path / "cells", ended(code), {"devices": 1}, Display(True), "", lambda: False)
        assert (outcomes.done, outcomes.failed) == (0, {"a": "it diverged"})


def test_what_nobody_works_on_is_given_up_at_a_stop(file, tmp_path):
    cells = {"a": next(iter(load_study(f"{file}:Quick").cells().values()))}
    asked = iter([False] + [True] * 99)
    queued = Future()
    queued.add_done_callback(lambda future: future.set_running_or_notify_cancel())
    place = Place(lambda order: queued, 1, has_workers=lambda: False)
    outcomes = run_cells(cells, tmp_path / "cells", place, {"devices": 1}, Display(True), "", lambda: next(asked))
    assert outcomes.stopped and not outcomes.failed and queued.cancelled()


def test_a_killed_cell_says_so(tmp_path):
    assert "was ended by SIGKILL" in _why(-9, tmp_path / "none") and "by SIGSEGV" in _why(-11, tmp_path / "none")


def test_a_report_of_problems_in_files_needs_no_state_of_the_user(file, tmp_path, monkeypatch):
    study, cells = load_study(f"{file}:Quick"), tmp_path / "cells"
    assert run_study(study, folder=cells, progress=False).done == 2
    monkeypatch.setenv("CLPINN_STATE", str(tmp_path / "state of somebody else"))
    (found,) = cl.report_study(study, tmp_path / "quick.md", folder=cells, progress=False)
    assert [row.done for row in found.rows] == [(0,), (0,)]


@pytest.mark.slow
def test_a_stopped_study_goes_on_bit_for_bit(file, tmp_path):
    """Stopped as SLURM does it. Ctrl-C is caught in the same way."""
    study, cells = load_study(f"{file}:Long"), tmp_path / "cells"
    arguments = ("run", f"{file}:Long", "--cells-in", cells, "--checkpoint-seconds", 0)
    process = study_command(*arguments)
    (cell,) = study.cells().values()
    wait_for_history(cell_folder(cell, cells))
    process.send_signal(signal.SIGUSR1)
    code, out, errors = finished(process)
    assert code == 130 and "Stopped. The same command goes on from here." in out, errors
    assert 0 <= state_of(cell, cells).share < 1 and not list(cells.glob("stop-*"))
    code, _, errors = finished(study_command(*arguments))
    assert code == 0, errors
    same(undisturbed(study, tmp_path / "whole"), cell_folder(cell, cells))


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(file, tmp_path):
    """SIGKILL to the Dask worker in the middle of a cell: the other worker goes on from its checkpoint."""
    distributed = pytest.importorskip("distributed")
    study, cells = load_study(f"{file}:Long"), tmp_path / "cells"
    (cell,) = study.cells().values()
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        process = study_command(
            "run", f"{file}:Long", "--cells-in", cells, "--scheduler", cluster.scheduler_address,
            "--cores", cores(), "--checkpoint-seconds", 0,
        )  # fmt: skip
        wait_for_history(cell_folder(cell, cells))
        (busy,) = [worker for worker, tasks in client.processing().items() if tasks]
        os.kill(client.run(os.getpid)[busy], signal.SIGKILL)
        code, _, errors = finished(process)
    assert code == 0, errors
    assert state_of(cell, cells).outcome == "steps"
    same(undisturbed(study, tmp_path / "whole"), cell_folder(cell, cells))


def test_a_full_disk_is_told_and_loses_nothing(file, tmp_path):
    """No file may grow beyond a few kilobytes, so that the cell cannot write its surrogate."""
    arguments = ("run", f"{file}:Quick", "--rows", "five", "--cells-in", tmp_path / "cells")
    code, out, errors = finished(study_command(*arguments, before=("sh", "-c", 'ulimit -f 4; exec "$@"', "sh")))
    assert code == 1 and "1 failed" in out and "File too large" in out, (out, errors)
    code, out, errors = finished(study_command(*arguments))
    assert code == 0 and "1 cells done" in out, errors


@pytest.mark.slow
def test_a_scheduler_that_is_not_there(file, tmp_path):
    study = load_study(f"{file}:Quick")
    pytest.importorskip("distributed")
    for scheduler, message in (
        ("tcp://127.0.0.1:9", "No Dask scheduler answers at tcp://127.0.0.1:9"),
        (str(tmp_path / "none.json"), "There is no scheduler file"),
    ):
        with pytest.raises(StudyError, match=message):
            run_study(study, folder=tmp_path / "cells", scheduler=scheduler, progress=False)
    assert not (tmp_path / "cells").exists()


def test_a_folder_of_another_configuration_is_left_alone(file, tmp_path):
    study, cells = load_study(f"{file}:Quick"), tmp_path / "cells"
    cell = next(iter(study.cells().values()))
    other = to_dict(cell.settings) | {"seed": 5}
    folder = cell_folder(cell, cells)
    folder.mkdir(parents=True)
    config = {"problem": cell.problem, "settings": other, "description": {}, "versions": {}, "devices": []}
    description = {"class": "Decay", "options": {}, "coordinates": "", "parameters": "", "outputs": ["u"]}
    (folder / "config.json").write_text(json.dumps(config | {"description": description}))
    before = (folder / "config.json").read_bytes()
    with pytest.raises(StudyError, match="holds a run of another configuration: its settings seed are not"):
        run_study(study, folder=cells, progress=False)
    assert (folder / "config.json").read_bytes() == before and len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("jobs", [0, 10_000])
def test_jobs_that_make_no_sense(file, tmp_path, jobs):
    with pytest.raises(StudyError, match=f"--jobs needs a number from 1 to .* but got {jobs}"):
        run_study(load_study(f"{file}:Quick"), folder=tmp_path / "cells", jobs=jobs, progress=False)


@pytest.mark.slow
def test_a_table_of_the_paper(tmp_path):
    """Two rows of the main table with hardly a step: .ci/run does it with a hundredth of all steps and all rows."""
    cells, page = tmp_path / "cells", tmp_path / "main.html"
    part = ("main", "--problems", "schaffer", "--budget", "1e-9", "--seeds", "0", "--rows", "AG", "AC")
    code, out, errors = finished(study_command("run", *part, "--cells-in", cells, "--jobs", 2))
    assert code == 0 and "main: 2 cells done" in out, errors
    code, out, errors = finished(study_command("report", *part, "--cells-in", cells, "--out", page))
    assert code == 0, errors
    text = page.read_text()
    assert text.count("1 of 1") == 2 and "missing" not in text and "0.128 ± 0.0152" in text and "<figure>" in text
    tables = cl.report_study(load_study("main"), tmp_path / "main.md", folder=cells, progress=False)
    assert [table.study.problems for table in tables] == [("schaffer",)]  # what was run
    plan = Plan(1e-9, ("schaffer",), (0,))
    (queries,) = cl.report_study(load_study("queries"), tmp_path / "queries.json", [plan], cells, progress=False)
    ratios = {row.label: row.entries["queries"].ratio for row in queries.rows}
    assert ratios == {"AG": 1.0, "AC": 1.0}  # its cells are those of main, and queries do not depend on the budget
