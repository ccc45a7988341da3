"""What a user sees while a command works: the display of runs, and warnings. All of it goes to standard error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.text import Text

from clpinn.runs.display import Display, console

__all__ = ["Display", "console", "shown_warnings"]


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Show each warning as one line on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True)
