"""Pages of the docs that benchmarks write, made anew but for what somebody has written below the tables; kept cells."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

BY_HAND = "\n## What it says\n"


def show(title: str, about: str, lines: list[str], out: Path | None) -> None:
    """Print the tables; with `out` write that page, too, and keep its part that is written by hand."""
    print("\n".join(lines))
    if out is not None:
        _, heading, kept = (out.read_text() if out.exists() else "").partition(BY_HAND)
        out.write_text("\n".join([f"# {title}", "", about.strip(), "", *lines, heading + kept]))


def kept_cell(file: Path, measure: Callable[[], dict], only_kept: bool) -> dict | None:
    """What a measurement gave, kept in a file; measured now if that is not there, unless `only_kept`."""
    if not file.exists() and not only_kept:
        cell = measure()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(cell, indent=1))
    return json.loads(file.read_text()) if file.exists() else None


def commit() -> str:
    """The commit that is measured, "-dirty" behind it if files have changed since."""
    described = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return described.stdout.strip()
