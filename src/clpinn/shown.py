"""Objects in a notebook: a title and a small table, with every text escaped."""

from collections.abc import Mapping
from html import escape


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """A title and rows of name and text as HTML."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(str(name))}</th>"
        f"<td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<div><strong>{escape(title)}</strong><table>{cells}</table></div>"
