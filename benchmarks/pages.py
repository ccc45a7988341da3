"""Pages of the docs that benchmarks write: made anew but for what somebody has written below the tables."""

from pathlib import Path

BY_HAND = "\n## What it says\n"


def show(title: str, about: str, lines: list[str], out: Path | None) -> None:
    """Print the tables; with `out` write that page, too, and keep its part that is written by hand."""
    print("\n".join(lines))
    if out is not None:
        _, heading, kept = (out.read_text() if out.exists() else "").partition(BY_HAND)
        out.write_text("\n".join([f"# {title}", "", about.strip(), "", *lines, heading + kept]))
