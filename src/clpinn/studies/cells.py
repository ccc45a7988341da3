"""Cells on disk: how far each one is, and what it gave."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clpinn.errors import ClpinnError, Outcome, StudyError
from clpinn.files import write_text
from clpinn.runs.directory import RunDirectory
from clpinn.runs.records import read_json
from clpinn.studies.adapting import ADAPTED, checked_figures
from clpinn.studies.study import Cell
from clpinn.training.settings import Settings, to_dict

HISTORY = ("step", "stage", "loss", "validation", "probe", "probe_worst")
"""What a result keeps of a row of the history."""


@dataclass(frozen=True)
class CellState:
    """How far a cell is."""

    share: float
    """The share of its steps or time that is over: 0 before its start, 1 at its end."""
    outcome: str | None = None
    """How it ended; None if it has not."""

    @property
    def done(self) -> bool:
        return self.outcome is not None

    @property
    def text(self) -> str:
        if self.outcome is not None:
            return f"done ({self.outcome})"
        return f"{self.share:.0%} done" if self.share else "not started"


def cell_folder(cell: Cell, folder: Path) -> Path:
    """The folder of a cell among those of all studies that share `folder`."""
    return folder / cell.name


def state_of(cell: Cell, folder: Path) -> CellState:
    """How far a cell is; a folder that holds something else is an error."""
    own = cell_folder(cell, folder)
    if cell.adaptation is not None:
        if not (own / ADAPTED).exists():
            return CellState(0.0)
        checked_figures(own / ADAPTED, cell.key)
        return CellState(1.0, Outcome.FINISHED.value)
    directory = RunDirectory(own, cell.loaded)
    if not directory.started:
        return CellState(0.0)
    check_settings(cell, directory)
    if directory.ended:
        outcome = directory.metrics["outcome"]
        if outcome != Outcome.STOPPED:
            return CellState(1.0, outcome)
    rows: list[dict[str, Any]] = []
    with suppress(ClpinnError, OSError):
        rows = directory.history
    return CellState(_share(cell.settings, rows[-1]) if rows else 0.0)


def check_settings(cell: Cell, directory: RunDirectory) -> None:
    """Raise an error if a run directory holds the run of other settings than the cell's."""
    stored, wanted = to_dict(directory.settings), to_dict(cell.settings)
    if stored != wanted:
        names = [name for name in wanted if stored.get(name) != wanted[name]]
        raise StudyError(
            f"{directory.folder} holds a run of another configuration: its settings {', '.join(names)} are not those "
            f"of the cell. Nothing was changed. Remove that folder, or choose another one with --cells-in."
        )


def _share(settings: Settings, row: Mapping[str, Any]) -> float:
    """The share of a run that is over when it writes this row of its history."""
    shares = [0.0]
    if settings.steps:
        shares.append(row["step"] / settings.steps)
    if settings.seconds:
        shares.append(row.get("seconds", 0.0) / settings.seconds)
    if settings.optimizer == "adam-lbfgs":
        shares.append(row["step"] / max(1, settings.adam.steps + settings.lbfgs.steps))
    return min(1.0, max(shares))


# What a cell gave --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellResult:
    """What a cell that has ended gave, as plain values. It comes from its folder or from a file of kept results."""

    metrics: dict[str, Any]
    """The content of metrics.json; for an adaptation its figures by checkpoint."""
    errors: dict[str, list[float]]
    """Columns of errors.csv by name; empty for an adaptation."""
    history: list[dict[str, Any]]
    commit: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"metrics": self.metrics, "errors": self.errors, "history": self.history, "commit": self.commit}


def result_of(cell: Cell, folder: Path) -> CellResult | None:
    """What a cell gave; None if it has not ended."""
    if not state_of(cell, folder).done:
        return None
    own = cell_folder(cell, folder)
    if cell.adaptation is not None:
        return CellResult(checked_figures(own / ADAPTED, cell.key), {}, [])
    directory = RunDirectory(own, cell.loaded)
    errors = {name: column.tolist() for name, column in directory.errors.items()}
    history = [{key: row[key] for key in HISTORY if key in row} for row in directory.history]
    return CellResult(directory.metrics, errors, history)


def kept_result(cell: Cell, folder: Path) -> CellResult | None:
    """What a cell gave, from a folder of kept results: one file per cell, CELL.json."""
    file = folder / f"{cell.name}.json"
    if not file.exists():
        return None
    form = {"metrics": dict, "errors": dict, "history": list, "commit": str}
    content = read_json(file, form)
    return CellResult(**{name: content[name] for name in form})


def keep(cell: Cell, result: CellResult, folder: Path, commit: str) -> Path:
    """Write a result to a folder of kept results."""
    file = folder / f"{cell.name}.json"
    content = result.to_dict() | {"commit": commit, "settings": to_dict(cell.settings), "problem": cell.problem}
    write_text(file, json.dumps(content))
    return file
