"""`clpinn plot` and `clpinn report`: figures and pages about runs."""

from pathlib import Path
from typing import Annotated

import typer

from clpinn.cli.display import Display, shown_warnings
from clpinn.cli.options import CHANGED_PROBLEM, GIVEN_PROBLEM, JSON, RUN, load_given_problem, print_json
from clpinn.cli.tables import print_line


def plot(
    run: RUN,
    kind: Annotated[str, typer.Argument(help="fields, errors, estimates, tasks, losses, streamlines or heads.")],
    theta: Annotated[
        list[str] | None,
        typer.Argument(help="Thetas for fields and streamlines: nu=0.01,0.1.", show_default="the best to the worst"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Picture: .png, .svg, .pdf.", show_default="RUN/KIND.png")] = None,
    given_problem: GIVEN_PROBLEM = None,
    changed_problem: CHANGED_PROBLEM = False,
    as_json: JSON = False,
) -> None:
    """Draw one figure of a run."""
    from clpinn.drawing.style import save
    from clpinn.report.figures import plot as draw
    from clpinn.runs.directory import RunDirectory

    directory = RunDirectory(run, load_given_problem(given_problem), changed_problem)
    file = out or run / f"{kind}.png"
    with Display(quiet=as_json) as display, shown_warnings():
        from clpinn.formulation.thetas import parse_thetas

        thetas = parse_thetas(directory.problem.parameters, theta) if theta else None
        save(draw(directory, kind, thetas, display.evaluation), file)
    if as_json:
        print_json({"file": str(file)})
    else:
        print_line(f"picture: {file}")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs that have ended, to show side by side.")],
    out: Annotated[
        Path | None, typer.Option(help="The page.", show_default="RUN/report.html, or report.html for several runs")
    ] = None,
    given_problem: GIVEN_PROBLEM = None,
    changed_problem: CHANGED_PROBLEM = False,
    as_json: JSON = False,
) -> None:
    """Write one self-contained HTML page about one run or several: errors, figures, how to repeat them."""
    from clpinn.report.page import write_page
    from clpinn.runs.directory import RunDirectory

    file = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    problem = load_given_problem(given_problem)
    with Display(quiet=as_json) as display, shown_warnings():
        write_page([RunDirectory(run, problem, changed_problem) for run in runs], file, display.evaluation)
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes": size})
    else:
        print_line(f"report: {file} ({size / 1e3:.0f} kB)")
