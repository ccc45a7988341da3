"""Arguments and options that several commands share, and what they stand for."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from clpinn.errors import ClpinnError

PROBLEM = Annotated[str, typer.Argument(help="A benchmark (clpinn problems lists them), or your own: my_pde.py:Heat.")]
GIVEN_PROBLEM = Annotated[
    str | None,
    typer.Option(
        "--problem", help="The problem of the run, my_pde.py:Heat. Needed if the run was started from Python or moved."
    ),
]
RUN = Annotated[Path, typer.Argument(help="The directory of a run that has ended.")]
SURROGATE = Annotated[
    Path, typer.Argument(help="The directory of a run that has ended, or a surrogate's file (.clpinn) in one.")
]
VALUES = Annotated[
    list[str] | None,
    typer.Argument(
        help="All parameters by name: nu=0.03, or several values: nu=0.01,0.02. Coordinates are optional: t=0.5."
    ),
]
POINTS = Annotated[
    int | None, typer.Option(help="Number of values on each coordinate.", show_default="those of the evaluation grid")
]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(value: Any) -> None:
    """Print a value as JSON; numbers that are not finite become null, because JSON has no NaN."""
    from clpinn.runs.directory import plain

    print(json.dumps(plain(value), indent=2, allow_nan=False))


def load_given_problem(name: str | None) -> Any:
    """The problem that --problem names, or None."""
    from clpinn.problems import load_problem

    return None if name is None else load_problem(name)


def load_surrogate(path: Path, given_problem: str | None) -> Any:
    """The surrogate of a run, or of a file in a run directory (adapted.clpinn)."""
    from clpinn.runs.directory import RunDirectory
    from clpinn.surrogate.surrogate import load

    problem = load_given_problem(given_problem)
    if not path.is_file():
        return RunDirectory(path, problem).surrogate
    directory = RunDirectory(path.parent, problem)
    return load(path, directory.problem if problem is not None or directory.started else None)


def parse_values(words: list[str]) -> dict[str, Any]:
    """Values by name, each of shape (values,), from words such as "nu=0.01,0.02" and "rho=4"."""
    import numpy as np

    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            values[name] = np.array([float(number) for number in text.split(",")])
        except ValueError:
            equals = ""
        if not equals:
            raise ClpinnError(f"A theta is given as name=value, such as nu=0.0113, but got {word!r}.")
    return values


def parse_thetas(box: Any, words: list[str]) -> Any:
    """Thetas of shape (thetas, parameters), from words such as "nu=0.01,0.02" and "rho=4"."""
    import numpy as np

    values = parse_values(words)
    box.require(values, complete=True)
    try:
        return np.stack(np.broadcast_arrays(*(values[name] for name in box)), axis=1)
    except ValueError:
        counts = ", ".join(f"{len(row)} of {name}" for name, row in values.items())
        raise ClpinnError(f"Give as many values of each parameter, or a single one, but got {counts}.") from None


def parse_scalars(words: list[str]) -> dict[str, Any]:
    """As `parse_values`, with a single value as a number."""
    return {name: row[0] if len(row) == 1 else row for name, row in parse_values(words).items()}
