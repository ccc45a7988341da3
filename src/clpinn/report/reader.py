"""A run directory, read once and only as far as it is asked for."""

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clpinn.errors import ClpinnError, RunError
from clpinn.formulation.problem import Problem
from clpinn.runs.run import load_surrogate, problem_of, read_config
from clpinn.surrogate.surrogate import Surrogate, load


@dataclass(frozen=True)
class Run:
    """The directory of a run that has ended; with its problem where that cannot be found from there."""

    folder: Path
    stated: Problem | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_config(self.folder)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        path = self.folder / "metrics.json"
        if not path.is_file():
            self.config  # noqa: B018  says so where it is no run at all
            raise RunError(f"The run in {self.folder} has not ended yet. Let it end, or resume it: --resume.")
        return json.loads(path.read_text())

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        return self._lines("history.jsonl")

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Events that moved a task, or could have."""
        return [event for event in self._lines("events.jsonl") if event["newcomer"] is not None]

    @cached_property
    def errors(self) -> dict[str, np.ndarray]:
        """Columns of errors.csv by name."""
        with (self.folder / "errors.csv").open() as file:
            rows = list(csv.DictReader(file))
        return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}

    @cached_property
    def problem(self) -> Problem:
        return self.stated or problem_of(self.folder)

    @cached_property
    def surrogate(self) -> Surrogate:
        return load_surrogate(self.folder, self.problem)

    @cached_property
    def adapted(self) -> Surrogate | None:
        """The surrogate with heads that `clpinn adapt` has put beside it, if it has."""
        path = self.folder / "adapted.clpinn"
        return load(path, self.problem) if path.is_file() else None

    @property
    def name(self) -> str:
        """How a figure calls it: problem, method, seed."""
        return f"{self.problem_name}, {self.metrics['method']}, seed {self.metrics['seed']}"

    @property
    def problem_name(self) -> str:
        return str(self.metrics["problem"]).rpartition(":")[2]

    def why_no_problem(self) -> str | None:
        """Why the problem or the surrogate cannot be loaded, if so."""
        try:
            self.surrogate  # noqa: B018
        except (ClpinnError, OSError) as error:
            return str(error)
        return None

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
