"""The clpinn command: all subcommands, and how errors end it."""

import gc
import io
import os
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
from clpinn.cli.study import study
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
app.add_typer(study, name="study")


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Parameterized physics-informed neural networks: one network for a whole family of PDEs."""


def main() -> None:
    """Run the command. What a user can mend ends in one clear message and an exit code."""
    gc.set_threshold(100_000)  # imports and traces make many objects that stay
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know ASCII only
    try:
        app()
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        exit_code = getattr(error, "exit_code", 1)
        label = ("stopped: ", "bold") if exit_code == Outcome.STOPPED.exit_code else ("error: ", "bold red")
        console.print(Text.assemble(label, _printable(message)), soft_wrap=True)
        sys.exit(exit_code)


def _message(error: Exception) -> str | None:
    """What to tell the user about an error that is not a mistake of clpinn's own; None for any other."""
    if isinstance(error, ClpinnError | OSError):
        return str(error)
    text = str(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return "There is not enough memory. Ask for fewer points, or for a smaller network (--set network.width=10)."
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms and not _jax_starts():
        return f"JAX cannot start on JAX_PLATFORMS={platforms} on this machine. Unset JAX_PLATFORMS, or set it to cpu."
    return None


def _jax_starts() -> bool:
    import jax

    try:
        return bool(jax.devices())
    except Exception:  # JAX raises whatever its plugins raise
        return False


def _printable(text: str) -> str:
    """A text without control characters, which a file from somebody else may hold."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
