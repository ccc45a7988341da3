"""Studies by name, run and told about: what `clpinn study` does, from Python."""

import json
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from clpinn.errors import StudyError
from clpinn.files import write_text
from clpinn.problems.loader import run_file, split_name
from clpinn.runs.display import Display
from clpinn.runs.records import count, number, read_log
from clpinn.runs.run import stop_signals
from clpinn.studies.cells import CellState, result_of, state_of
from clpinn.studies.cost import seconds_left
from clpinn.studies.paper import STUDIES
from clpinn.studies.schedule import Outcomes, on_this_machine, run_cells
from clpinn.studies.study import Cell, Study
from clpinn.studies.tables import Table, table

CELLS = Path("runs/cells")
"""Where cells are, unless said otherwise. All studies share them."""
PLANS = "plans"
PLAN_FORM = {"budget": number, "problems": [str], "seeds": [count], "settings": [str], "rows": [str]}


@dataclass(frozen=True)
class Plan:
    """What part of a study is run: problems and rows (all if empty), seeds (the study's own if empty), budget."""

    budget: float = 1.0
    problems: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def applied(self, study: Study) -> Study:
        return study.narrowed(self.problems, self.seeds, self.settings, self.rows)


def load_study(name: str) -> Study:
    """A study of the paper by its name, or one of a user's file: "my_study.py:Sweep".

    The file is run as Python code. The name may be left out if the file holds one study. Problems in files are looked
    for in the current folder, then beside the study's file.
    """
    if name in STUDIES:
        return STUDIES[name]()
    path_text, variable = split_name(name)
    if not path_text:
        raise StudyError(
            f"There is no study called {name!r}. clpinn study list shows all, or give a file of your own: "
            "my_study.py:Sweep."
        )
    path = Path(path_text)
    if not path.is_file():
        raise StudyError(f"There is no file {path}. Give the path of a Python file that holds a study.")
    studies = {key: value for key, value in vars(run_file(path)).items() if isinstance(value, Study)}
    listed = ", ".join(studies) or "none"
    if variable and variable not in studies:
        raise StudyError(f"{path} has no study called {variable!r}. It has {listed}.")
    if not variable and len(studies) != 1:
        raise StudyError(f"{path} holds {len(studies)} studies ({listed}). Name one: {path}:Sweep.")
    key, study = next((key, value) for key, value in studies.items() if key == (variable or key))
    problems = {problem: _beside(problem, path) for problem in study.problems}
    variants = tuple(
        replace(v, problems=None if v.problems is None else tuple(problems.get(p, p) for p in v.problems))
        for v in study.variants
    )
    return replace(study, problems=tuple(problems.values()), variants=variants, name=study.name or key)


def _beside(problem: str, study_file: Path) -> str:
    """The name of a problem whose file may lie beside that of the study."""
    file, kind = split_name(problem)
    if not file or Path(file).is_file():
        return problem
    near = study_file.parent / file
    return (f"{near}:{kind}" if kind else str(near)) if near.is_file() else problem


def run_study(
    study: Study,
    plan: Plan = Plan(),
    folder: Path | str = CELLS,
    jobs: int = 1,
    scheduler: str | None = None,
    devices: int | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool = True,
    names: Sequence[str] = (),
) -> Outcomes:
    """Run the cells that are not done: `jobs` at once on this machine, or as tasks of a Dask `scheduler`.

    `names` are patterns of the names of cells, such as "burgers-acr-*"; without any, all are run. Ctrl-C, SIGTERM and
    SIGUSR1 stop it, with a checkpoint of every running cell. The same call goes on from there.
    """
    folder = Path(folder)
    narrowed = plan.applied(study)
    chosen = _chosen(narrowed.cells(plan.budget), names)
    titles = {f"{p}, {row}, seed {seed}": cell for (p, row, seed), cell in chosen.items()}
    stop_file = folder / f"stop-{secrets.token_hex(4)}"
    with Display(quiet=not progress) as display, stop_signals() as stopped:
        if scheduler is None:
            where = on_this_machine(jobs, stopped)
        else:
            from clpinn.studies.cluster import on_cluster  # here, because Dask takes long to import

            where = on_cluster(scheduler, devices, display)

        def stop() -> bool:
            """Whether the study was asked to stop; the workers of a cluster see a file."""
            if stopped() and scheduler is not None:
                stop_file.touch()
            return stopped()

        with where as place:
            _remember(study, plan, folder)
            try:
                common = {"devices": devices or place.devices, "checkpoint_seconds": checkpoint_seconds}
                common |= {"stop_file": str(stop_file.resolve())}
                return run_cells(titles, folder, place, common, display, study.name or "study", stop)
            finally:
                stop_file.unlink(missing_ok=True)


# What is done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overview:
    """The cells of a study with their states, and how long the rest takes on one machine."""

    cells: dict[tuple[str, str, int], tuple[Cell, CellState]]
    hours: float


def overview(
    study: Study,
    plan: Plan = Plan(),
    folder: Path | str = CELLS,
    progress: bool = True,
    names: Sequence[str] = (),
) -> Overview:
    """The cells of a study, which are done, and the hours that the rest takes, one after the other."""
    folder = Path(folder)
    cells = _chosen(plan.applied(study).cells(plan.budget), names)
    states = {key: (cell, state_of(cell, folder)) for key, cell in cells.items()}
    bases = [cell.base for cell in cells.values() if cell.base is not None]
    unique = {cell.name: cell for cell in [*bases, *cells.values()]}
    left = [(cell, state.share) for cell in unique.values() if not (state := state_of(cell, folder)).done]
    with Display(quiet=not progress) as display:
        return Overview(states, seconds_left(left, display) / 3600)


def _chosen(cells: dict[tuple[str, str, int], Cell], names: Sequence[str]) -> dict[tuple[str, str, int], Cell]:
    """The cells whose name fits one of the patterns; all without any."""
    chosen = {
        key: cell for key, cell in cells.items() if not names or any(fnmatchcase(cell.name, each) for each in names)
    }
    if cells and not chosen:
        raise StudyError(
            f"No cell fits {', '.join(names)}. Cells are called {next(iter(cells.values())).name} and so on; --dry "
            "shows all."
        )
    return chosen


def tables(study: Study, plans: Sequence[Plan] = (), folder: Path | str = CELLS) -> list[Table]:
    """The tables of a study: one per plan; by default one for each that was run in this folder, or at full budget."""
    folder = Path(folder)
    made = []
    for plan in plans or remembered(study, folder) or [Plan()]:
        narrowed = plan.applied(study)
        results = {cell.name: result_of(cell, folder) for cell in narrowed.cells(plan.budget).values()}
        made.append(table(narrowed, plan.budget, results))
    return made


def _plans_file(study: Study, folder: Path) -> Path:
    return folder / PLANS / f"{study.name or 'study'}.jsonl"


def _remember(study: Study, plan: Plan, folder: Path) -> None:
    """Note what was asked for, so that a report knows it."""
    known = remembered(study, folder)
    if plan not in known:
        text = "".join(json.dumps(vars(each)) + "\n" for each in [*known, plan])
        write_text(_plans_file(study, folder), text)


def remembered(study: Study, folder: Path | str = CELLS) -> list[Plan]:
    """The plans that were run in this folder, as far as they are those of the study today."""
    file, plans = _plans_file(study, Path(folder)), []
    for row in read_log(file, PLAN_FORM) if file.exists() else []:
        plan = Plan(row["budget"], *(tuple(row[name]) for name in ("problems", "seeds", "settings", "rows")))
        with suppress(StudyError):
            plan.applied(study)
            plans.append(plan)
    return plans
