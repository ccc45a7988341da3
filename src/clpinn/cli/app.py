"""The clpinn command: all subcommands, and how errors end it."""

import sys

import typer
from rich.text import Text

from clpinn.cli.adapt import adapt
from clpinn.cli.display import console
from clpinn.cli.init import init
from clpinn.cli.predict import export, predict
from clpinn.cli.problems import problems
from clpinn.cli.report import plot, report
from clpinn.cli.train import evaluate, train
from clpinn.errors import ClpinnError, Outcome

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Parameterized physics-informed neural networks: one network for a whole family of PDEs.",
)
for command in (init, problems, train, evaluate, adapt, predict, export, plot, report):
    app.command()(command)


def main() -> None:
    """Run the command. An error of clpinn, or of the file system, is one clear message and an exit code."""
    try:
        app()
    except (ClpinnError, OSError) as error:
        exit_code = getattr(error, "exit_code", 1)
        label = ("stopped: ", "bold") if exit_code == Outcome.STOPPED.exit_code else ("error: ", "bold red")
        console.print(Text.assemble(label, str(error)), soft_wrap=True)
        sys.exit(exit_code)
