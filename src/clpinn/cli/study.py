"""`clpinn study list | run | report`: the paper's tables, or a study of one's own."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from clpinn.cli.display import shown_warnings
from clpinn.cli.options import JSON, print_json
from clpinn.cli.tables import print_line, print_overview, print_studies, print_study
from clpinn.errors import Outcome

study = typer.Typer(
    no_args_is_help=True, help="The paper's tables and ablations as studies of many runs, or a study of your own."
)


class SeveralValues(TyperCommand):
    """A command whose repeatable options take several values: `--seeds 0 1 2` is `--seeds 0 --seeds 1 --seeds 2`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        repeatable = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        spread: list[str] = []
        current = None
        for word, following in zip(args, [*args[1:], "-"]):
            if word.startswith("-"):
                current = word if word in repeatable else None
                if current is None or following.startswith("-"):  # one without a value is for click to refuse
                    spread.append(word)
            else:
                spread += [word] if current is None else [current, word]
        return super().parse_args(ctx, spread)


NAME = Annotated[str, typer.Argument(help="A study (clpinn study list), or your own: my_study.py:Sweep.")]
PROBLEMS = Annotated[list[str] | None, typer.Option(help="Only these problems of the study.", show_default="all")]
SEEDS = Annotated[list[int] | None, typer.Option(help="Seeds: --seeds 0 1 2.", show_default="the study's own")]
ROWS = Annotated[list[str] | None, typer.Option(help="Only these rows of its table.", show_default="all")]
SETTINGS = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting of all cells: --set batch=1.", show_default="none")
]
CELLS_IN = Annotated[
    Path | None,
    typer.Option(
        "--cells-in", help="Folder of the cells' run directories, for all studies.", show_default="runs/cells"
    ),
]


@study.command(name="list")
def list_studies(as_json: JSON = False) -> None:
    """List all studies: the question, the table of the paper, and how many cells."""
    from clpinn.studies.paper import STUDIES

    rows = []
    for name, make in STUDIES.items():
        each = make()
        count = sum(len(variant.seeds or each.seeds) for p in each.problems for variant in each.rows(p))
        rows.append(
            {
                "name": name,
                "question": each.question,
                "source": each.source,
                "problems": list(each.problems),
                "cells": count,
            }
        )
    if as_json:
        print_json(rows)
    else:
        print_studies(rows)


@study.command(name="run", cls=SeveralValues)
def run(
    name: NAME,
    problems: PROBLEMS = None,
    seeds: SEEDS = None,
    rows: ROWS = None,
    budget: Annotated[float, typer.Option(help="Fraction of all steps and times: 0.1 is a tenth.")] = 1.0,
    assign: SETTINGS = None,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            help="Only cells whose names fit: --cells 'burgers-acr-*'. --dry shows names.", show_default="all"
        ),
    ] = None,
    cells_in: CELLS_IN = None,
    jobs: Annotated[int, typer.Option(help="Cells at once on this machine; they share its cores.", min=1)] = 1,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Run on a Dask cluster instead: tcp://host:8786, or a scheduler file (.json)."),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(help="With --scheduler: cores per cell.", show_default="those of a worker", min=1, max=1024),
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Wall time between checkpoints of a cell.")] = 30.0,
    dry: Annotated[bool, typer.Option("--dry", help="Run nothing: show the cells and the hours they take.")] = False,
    as_json: JSON = False,
) -> None:
    """Run the cells of a study that are not done yet.

    Ctrl-C, SIGTERM and SIGUSR1 stop it: every running cell writes a checkpoint. The same command goes on from there.
    Studies share cells: a cell that another study has run is not run again.
    """
    from clpinn.studies.running import CELLS, Plan, load_study, overview, run_study

    plan = Plan(budget, tuple(problems or ()), tuple(seeds or ()), tuple(assign or ()), tuple(rows or ()))
    loaded, folder = load_study(name), cells_in or CELLS
    if dry:
        seen = overview(loaded, plan, folder, not as_json, cells or ())
        values = {"hours": seen.hours, "cells": [_cell_values(key, *pair) for key, pair in seen.cells.items()]}
        if as_json:
            print_json(values)
        else:
            print_overview(loaded.name, values)
        return
    outcomes = run_study(loaded, plan, folder, jobs, scheduler, cores, checkpoint_seconds, not as_json, cells or ())
    if as_json:
        print_json(vars(outcomes))
    else:
        text = f"{loaded.name}: {outcomes.done} cells done"
        if outcomes.failed:
            text += f", {len(outcomes.failed)} failed (logs: {folder}/logs)"
        print_line(text, soft_wrap=True)
        for cell, why in outcomes.failed.items():
            print_line(f"  {cell}: {why}", soft_wrap=True)
        again = "Stopped. The same command goes on from here. " if outcomes.stopped else ""
        print_line(f"{again}The table: clpinn study report {name}", soft_wrap=True)
    if outcomes.stopped or outcomes.failed:
        sys.exit(Outcome.STOPPED.exit_code if outcomes.stopped else 1)


def _cell_values(key: tuple[str, str, int], cell: Any, state: Any) -> dict[str, Any]:
    problem, row, seed = key
    return {"problem": problem, "row": row, "seed": seed, "cell": cell.name, "state": state.text, "done": state.done}


@study.command(name="report", cls=SeveralValues)
def report(
    name: NAME,
    problems: PROBLEMS = None,
    seeds: SEEDS = None,
    rows: ROWS = None,
    budget: Annotated[
        float | None, typer.Option(help="Fraction of all steps and times.", show_default="all that were run")
    ] = None,
    assign: SETTINGS = None,
    cells_in: CELLS_IN = None,
    out: Annotated[Path | None, typer.Option(help="File: .html, .md, .csv or .json.", show_default="NAME.html")] = None,
    as_json: JSON = False,
) -> None:
    """Write the tables and figures of a study. It reads run directories only; what is not done is shown as missing."""
    from clpinn.studies.page import report_study
    from clpinn.studies.running import CELLS, Plan, load_study
    from clpinn.studies.tables import missing

    plan = Plan(budget or 1.0, tuple(problems or ()), tuple(seeds or ()), tuple(assign or ()), tuple(rows or ()))
    plans = [plan] if budget is not None or plan != Plan() else []
    loaded = load_study(name)
    file = out or Path(f"{loaded.name}.html")
    with shown_warnings():
        found = report_study(loaded, file, plans, cells_in or CELLS, progress=not as_json)
    if as_json:
        print_json({"file": str(file), "missing": missing(found)})
    else:
        print_study(found)
        print_line(f"report: {file}", soft_wrap=True)
