"""`clpinn fit`: parameters from measurements."""

from pathlib import Path
from typing import Annotated

import typer

from clpinn.cli.display import shown_warnings
from clpinn.cli.options import (
    CHANGED_PROBLEM,
    GIVEN_PROBLEM,
    JSON,
    SURROGATE,
    load_surrogate,
    parse_scalars,
    print_json,
)
from clpinn.cli.tables import print_fit


def fit(
    run: SURROGATE,
    data: Annotated[
        Path, typer.Argument(help="A CSV file with a line of names: coordinates, outputs, and known parameters if any.")
    ],
    known: Annotated[
        list[str] | None, typer.Argument(help="Values that hold for all measurements, by name: h=0.2 t=0.5.")
    ] = None,
    unknown: Annotated[
        list[str] | None,
        typer.Option(help="A parameter to find; repeat it for several.", show_default="all that have no value"),
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(help="Standard deviation of a measurement.", show_default="estimated from the residuals"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of data and residuals: .png, .svg, .pdf.")] = None,
    given_problem: GIVEN_PROBLEM = None,
    changed_problem: CHANGED_PROBLEM = False,
    as_json: JSON = False,
) -> None:
    """Find parameters from measurements: least squares through a run's surrogate, with 95 % intervals."""
    surrogate = load_surrogate(run, given_problem, changed_problem)
    with shown_warnings():
        result = surrogate.fit(data, unknown or None, noise, **parse_scalars(known or []))
    summary = result.summary()
    if plot is not None:
        from clpinn.drawing.style import save

        save(result.plot(), plot)
        summary["plot"] = str(plot)
    if as_json:
        print_json(summary)
    else:
        print_fit(f"{type(surrogate.problem).__name__}, fitted to {data}", summary)
