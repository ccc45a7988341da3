"""The report of a study as a file: a page with figures, Markdown, CSV or JSON, by the file's ending."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from clpinn.errors import StudyError
from clpinn.files import write_text
from clpinn.formulation.references import Progress
from clpinn.report.page import SCROLLS, embedded, html
from clpinn.runs.display import Display
from clpinn.runs.records import plain
from clpinn.studies.figures import CAPTIONS, KINDS
from clpinn.studies.running import CELLS, Plan, tables
from clpinn.studies.study import Study
from clpinn.studies.tables import Table, lines, markdown, missing, notes, to_records

COMPARED = (
    "Figures are mean ± population standard deviation over seeds. The paper's are those of its full budget on a GPU. "
    "The ratio is found / paper. A loss that is not finite ends a run, as in the paper."
)


def report_study(
    study: Study, out: Path | str, plans: Sequence[Plan] = (), folder: Path | str = CELLS, progress: bool = True
) -> list[Table]:
    """Write the report of a study to a file, and return its tables: one per plan, by default each that was run."""
    with Display(quiet=not progress) as display:
        found = tables(study, plans, folder)
        write_report(found, Path(out), display.evaluation)
    return found


def write_report(found: Sequence[Table], path: Path, progress: Progress | None = None) -> None:
    """Write the tables of a study to a file, complete or not at all."""
    write: dict[str, Callable[[], str]] = {
        ".html": lambda: page(found, progress),
        ".md": lambda: as_markdown(found),
        ".csv": lambda: as_csv(found),
        ".json": lambda: json.dumps(plain([record for table in found for record in to_records(table)]), indent=1),
    }
    if path.suffix not in write:
        raise StudyError(f"A report ends with {', '.join(write)}, but got {path.name}.")
    write_text(path, write[path.suffix]())


def as_markdown(found: Sequence[Table]) -> str:
    """All tables as Markdown."""
    parts = [f"# {found[0].study.name}"]
    for table in found:
        parts += [table.header, markdown(table)]
    return "\n\n".join(parts) + "\n"


def as_csv(found: Sequence[Table]) -> str:
    """One line per problem, row and column."""
    records = [record for table in found for record in to_records(table)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(records[0]))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def page(found: Sequence[Table], progress: Progress | None = None) -> str:
    """One page: for each budget and problem a table and its figures."""
    study = found[0].study
    sections = [f"<h1>Study {escape(study.name)}</h1>"]
    if study.published:
        sections.append(f'<p class="note">{COMPARED}</p>')
    if count := missing(found):
        sections.append(f'<p class="note">{count} cells have not ended. They are shown as missing.</p>')
    parts = [(table, problem) for table in found for problem in table.study.problems]
    for i, (table, problem) in enumerate(parts):
        if problem == table.study.problems[0]:
            sections.append(f"<p><b>{escape(table.header)}</b></p>")
        sections += _of_problem(table, problem)
        if progress:
            progress("figures", i + 1, len(parts))
    return html(f"Study {study.name}", sections)


def _of_problem(table: Table, problem: str) -> list[str]:
    special = notes(table.study, problem)
    heading = f"{problem}, {100 * table.budget:g} % of the budget" + (f", {special}" if special else "")
    titles, rows = lines(table, problem)
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    sections = [
        f"<h2>{escape(heading)}</h2>\n{SCROLLS}"
        f'<div class="wide" tabindex="0"><table class=many><tr>{head}</tr>{body}</table></div>'
    ]
    shown: list[Any] = []
    for kind in table.study.figures:
        figure = KINDS[kind](table, problem)
        if figure is not None:
            shown.append(embedded(figure, kind, f"{kind} of {table.study.name}, {problem}", CAPTIONS[kind]))
    return [*sections, f'<div class="side">{"".join(shown)}</div>'] if shown else sections
