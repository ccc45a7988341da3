"""The clpinn command: all subcommands, and how errors end it."""

import sys
from importlib.metadata import version as package_version
from typing import Annotated

import typer
from rich.text import Text

from clpinn.cli.adapt import adapt
from clpinn.cli.display import console
from clpinn.cli.fit import fit
from clpinn.cli.init import init
from clpinn.cli.predict import export, predict
from clpinn.cli.problems import problems
from clpinn.cli.report import plot, report
from clpinn.cli.train import evaluate, train
from clpinn.errors import ClpinnError, Outcome


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"clpinn {package_version('clpinn')}")
        raise typer.Exit


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (init, problems, train, evaluate, adapt, predict, fit, export, plot, report):
    app.command()(command)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Parameterized physics-informed neural networks: one network for a whole family of PDEs."""


def main() -> None:
    """Run the command. An error of clpinn, or of the file system, is one clear message and an exit code."""
    try:
        app()
    except (ClpinnError, OSError) as error:
        exit_code = getattr(error, "exit_code", 1)
        label = ("stopped: ", "bold") if exit_code == Outcome.STOPPED.exit_code else ("error: ", "bold red")
        console.print(Text.assemble(label, str(error)), soft_wrap=True)
        sys.exit(exit_code)
