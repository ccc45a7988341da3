"""Arguments and options that several commands share, and what they stand for."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

PROBLEM = Annotated[str, typer.Argument(help="A benchmark (clpinn problems lists them), or your own: my_pde.py:Heat.")]
GIVEN_PROBLEM = Annotated[
    str | None,
    typer.Option(
        "--problem", help="The problem of the run, my_pde.py:Heat. Needed if the run was started from Python or moved."
    ),
]
CHANGED_PROBLEM = Annotated[
    bool,
    typer.Option("--changed-problem", help="Accept that the problem differs from the one that the run was trained on."),
]
RUN = Annotated[Path, typer.Argument(help="The directory of a run that has ended.")]
SURROGATE = Annotated[
    Path, typer.Argument(help="The directory of a run that has ended, or a surrogate's file (.clpinn) in one.")
]
VALUES = Annotated[
    list[str] | None,
    typer.Argument(
        help="All parameters by name: nu=0.03, or several values: nu=0.01,0.02. Coordinates are optional: t=0.5. They "
        "are physical; if the geometry moves (place), box_x=0.5 is one of the box."
    ),
]
POINTS = Annotated[
    int | None,
    typer.Option(help="Number of values on each coordinate.", show_default="those of the evaluation grid", min=1),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(value: Any) -> None:
    """Print a value as JSON; numbers that are not finite become null, because JSON has no NaN."""
    from clpinn.runs.records import plain

    print(json.dumps(plain(value), indent=2, allow_nan=False))


def load_given_problem(name: str | None) -> Any:
    """The problem that --problem names, or None."""
    from clpinn.problems import load_problem

    return None if name is None else load_problem(name)


def load_surrogate(path: Path, given_problem: str | None, changed_problem: bool) -> Any:
    """The surrogate of a run, or of a file in a run directory (adapted.clpinn)."""
    from clpinn.runs.directory import RunDirectory
    from clpinn.surrogate.surrogate import load

    problem = load_given_problem(given_problem)
    if not path.is_file():
        return RunDirectory(path, problem, changed_problem).surrogate
    directory = RunDirectory(path.parent, problem, changed_problem)
    return load(path, directory.problem if problem is not None or directory.started else None, changed_problem)


def parse_scalars(words: list[str]) -> dict[str, Any]:
    """Values by name, from words such as "nu=0.01,0.02" and "rho=4"; a single value is a number, several a row."""
    from clpinn.formulation.thetas import parse_values

    return {name: row[0] if len(row) == 1 else row for name, row in parse_values(words).items()}
