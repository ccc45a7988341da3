"""The HTML page of one run, or of several side by side. It is a single file and needs no internet."""

import base64
import io
import json
import shlex
from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from clpinn import protocol
from clpinn.drawing.colours import darken
from clpinn.errors import ClpinnError, TranslationError
from clpinn.files import replacing
from clpinn.formulation.references import Progress
from clpinn.report.captions import caption, heading
from clpinn.report.explorer import explorer_html
from clpinn.report.figures import KINDS, NO_MAP, plot, reasons
from clpinn.runs.directory import RunDirectory
from clpinn.runs.metrics import ending_text
from clpinn.surrogate.error_map import NOTE

LARGEST_SVG = 300_000
"""A drawing with more bytes than this is embedded as pixels."""
PIXELS = ("fields", "streamlines", "heads")
"""Kinds that are pictures rather than drawings."""
WIDE = 5.5
"""From this width on, in inches, a picture on a phone is scrolled rather than reduced."""
SCROLLS = '<p class="scrolls">It is wider than this screen: scroll it sideways →</p>'
"""What a narrow screen shows above a wide figure or table."""


def write_page(runs: list[RunDirectory], path: Path, progress: Progress | None = None) -> None:
    """Write the page of these runs, complete or not at all."""
    if not runs:
        raise ClpinnError("A report needs at least one run, but got none. Give the directory of a run.")
    text = page(runs, progress)
    replacing(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def page(runs: list[RunDirectory], progress: Progress | None = None) -> str:
    """The page as text."""
    for run in runs:
        run.metrics  # noqa: B018  a run that has not ended is an error before anything is drawn
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    sections = [
        f"<h1>{escape(title)}</h1>",
        _explorer(runs),
        *(_problem(run) for run in {run.problem_name: run for run in runs}.values()),
        _summary(runs),
        *_figures(runs, progress),
        *(_repeat(run, len(runs) > 1) for run in runs),
    ]
    return html(title, sections)


def html(title: str, sections: list[str]) -> str:
    """A page of these sections, those that are empty left out."""
    style = (files("clpinn.report") / "page.css").read_text("utf-8")
    policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)} – clpinn</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


# The table --------------------------------------------------------------------------------------------------


def _problem(run: RunDirectory) -> str:
    """The problem: equation, parameters and coordinates."""
    description = run.config["description"]
    equation = "" if run.why_no_problem() else run.problem.equation or (type(run.problem).__doc__ or "").strip()
    lines = [escape(equation.split("\n")[0])] if equation else []
    lines.append(
        f"<code>{escape(description['parameters'])}</code> on <code>{escape(description['coordinates'])}</code>"
    )
    return f"<p><b>{escape(run.problem_name)}</b>: {'; '.join(lines)}</p>"


def _summary(runs: list[RunDirectory]) -> str:
    heads = "".join(f"<th>{escape(_short(run, runs))}</th>" for run in runs)
    rows = [f"<tr><th></th>{heads}</tr>"]
    facts: dict[str, Callable[[dict[str, Any]], str]] = {
        "problem": lambda m: str(m["problem"]).rpartition(":")[2],
        "method": lambda m: m["method"],
        "optimiser": lambda m: m["optimizer"],
        "seed": lambda m: str(m["seed"]),
        "ended": ending_text,
        "wall time": lambda m: f"{m['wall_seconds']:.0f} s",
        "trained thetas": lambda m: "all over the box" if m["method"] == "free" else f"{m['active']}+{m['replay']}",
        "task queries": lambda m: str(m["queries"]),
    }
    for name, fact in facts.items():
        rows.append(_row(name, [escape(fact(run.metrics)) for run in runs]))
    outputs = list(dict.fromkeys(output for run in runs for output in run.metrics["outputs"]))
    for output in outputs:
        for key, name in (("rel_l2_macro", "mean relative L2"), ("rel_l2_worst", "worst relative L2"), ("mse", "MSE")):
            values = [run.metrics["outputs"].get(output, {}).get(key) for run in runs]
            rows.append(_row(f"{output}: {name}", [_figure(value) for value in values], _best(runs, values)))
            if key == "rel_l2_macro":
                rows += _published(runs, output)
    rows += _estimated(runs)
    values = [run.metrics["res_pde_macro"] for run in runs]
    rows.append(_row("mean |residual|", [_figure(value) for value in values], _best(runs, values)))
    notes = []
    if any(map(_estimates, runs)):
        notes.append(f"{NOTE} In brackets: the 90 % spread.")
    if any(run.metrics["problem"] in protocol.REL_L2 for run in runs):
        notes.append("The paper's figures are means over three seeds at its full budget on a GPU; a run has one seed.")
    if any(not run.metrics["has_reference"] for run in runs):
        notes.append("Without a reference solution errors are estimated, or there are residuals only.")
    note = f'<p class="note">{" ".join(notes)}</p>' if notes else ""
    many = len(runs) > 2
    table = f'<div class="wide" tabindex="0"><table{" class=many" if many else ""}>{"".join(rows)}</table></div>'
    return f"<h2>Summary</h2>\n{SCROLLS if many else ''}{table}{note}"


def _published(runs: list[RunDirectory], output: str) -> list[str]:
    """Rows with the paper's mean relative errors: those of the same method, and of the paper's best method."""
    same, best = [], []
    for run in runs:
        table, method = (
            protocol.REL_L2.get(run.metrics["problem"], {}),
            protocol.PAPER_NAMES.get(run.metrics["method"], ""),
        )
        same.append(f"{method} {_figure(table[method][output])}" if method in table else "–")
        top = protocol.best(run.metrics["problem"]) if table else ""
        best.append(f"{top} {_figure(table[top][output])}" if table else "–")
    rows = {"the paper, same method": same, "the paper, its best": best}
    return [_row(name, cells, kind="paper") for name, cells in rows.items() if any(cell != "–" for cell in cells)]


def _estimates(run: RunDirectory) -> dict[str, Any]:
    """The summary of a run's map of estimated errors; empty if it has none."""
    known = run.metrics.get("estimated")  # it can be read where the problem cannot
    if known is None and run.why_no_problem() is None and run.surrogate.errors is not None:
        known = run.surrogate.errors.summary()
    return known or {}


def _estimated(runs: list[RunDirectory]) -> list[str]:
    """Rows with estimated errors, and how many of the estimates are resolved; none if no run has a map."""
    summaries, rows = [_estimates(run) for run in runs], []
    for output in dict.fromkeys(name for summary in summaries for name in summary.get("outputs", {})):
        for key, name in (("macro", "mean"), ("worst", "worst")):
            spreads = [summary.get("outputs", {}).get(output, {}).get(key) for summary in summaries]
            cells = [_spread(spread) if spread else "–" for spread in spreads]
            values = [spread["value"] if spread else None for spread in spreads]
            rows.append(_row(f"{output}: estimated {name} relative L2", cells, _best(runs, values)))
    if any(summaries):
        shares = [f"{s['resolved']:.0%} of {s['thetas']} thetas" if s else "–" for s in summaries]
        rows.append(_row("estimates resolved", shares))
    return rows


def _spread(spread: dict[str, float | None]) -> str:
    """An estimated figure with the ends of its spread."""
    return f"{_figure(spread['value'])} ({_figure(spread['low'])} to {_figure(spread['high'])})"


def _row(name: str, cells: list[str], best: int | None = None, kind: str = "") -> str:
    marked = "".join(f"<td{' class=best' if i == best else ''}>{cell}</td>" for i, cell in enumerate(cells))
    return f"<tr{f' class={kind}' if kind else ''}><td>{escape(name)}</td>{marked}</tr>"


def _best(runs: list[RunDirectory], values: list[float | None]) -> int | None:
    """The number of the run with the smallest value, where several runs of one problem are compared."""
    known = [(value, i) for i, value in enumerate(values) if value is not None]
    return min(known)[1] if len(known) > 1 and len({run.problem_name for run in runs}) == 1 else None


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2e}"


def _short(run: RunDirectory, runs: list[RunDirectory]) -> str:
    """The name of a run in a column or caption."""
    folder = run.folder.resolve().name
    return folder if [other.folder.resolve().name for other in runs].count(folder) == 1 else run.name


# Figures ----------------------------------------------------------------------------------------------------


def _figures(runs: list[RunDirectory], progress: Progress | None) -> list[str]:
    reasons_by_run = [reasons(run) for run in runs]
    total = sum(why_not[kind] is None for why_not in reasons_by_run for kind in KINDS)
    done, sections = 0, []
    for kind in KINDS:
        by_text: dict[tuple[str, str], list[str]] = {}  # figures that one heading and caption describe
        for run, why_not in zip(runs, reasons_by_run):
            if why_not[kind] is None:
                name = f"{_short(run, runs)}: {run.name}" if len(runs) > 1 else ""
                drawn = embedded(plot(run, kind), kind, f"{kind} of {run.name}", name)
                by_text.setdefault((heading(run, kind), caption(run, kind)), []).append(drawn)
                done += 1
                if progress:
                    progress("figures", done, total)
        for (title, text), shown in by_text.items():
            sections.append(
                f'<h2>{title}</h2>\n<p class="note">{escape(text)}</p>\n<div class="side">{"".join(shown)}</div>'
            )
    missing = {f"{_short(run, runs)}: {text}": None for run in runs if (text := _missing(run))}
    return [*sections, *(f'<p class="note">Some figures are missing. {escape(text)}</p>' for text in missing)]


def _missing(run: RunDirectory) -> str | None:
    """Why figures are missing that a run could have."""
    if unknown := run.why_no_problem():
        return unknown
    return None if run.surrogate.errors is not None or not len(run.problem.parameters) else f"{NO_MAP}."


def embedded(figure: Figure, kind: str, description: str, name: str) -> str:
    """A figure inside the page, in light colours and in dark ones: the reader's colour scheme chooses."""
    light = _source(figure, kind)
    darken(figure)
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{_source(figure, kind)}">'
    picture = f'<picture>{dark}<img src="{light}" alt="{escape(description)}"></picture>'
    below = f"<figcaption>{escape(name)}</figcaption>" if name else ""
    if kind not in PIXELS or figure.get_figwidth() < WIDE:
        return f"<figure>{picture}{below}</figure>"
    return f'<figure>{SCROLLS}<div class="wide" tabindex="0">{picture}</div>{below}</figure>'  # keys scroll it too


def _source(figure: Figure, kind: str) -> str:
    """A figure as the address of an image."""
    content, form = b"", "svg+xml"
    with matplotlib.rc_context({"svg.hashsalt": "clpinn"}):
        if kind not in PIXELS:
            content = _saved(figure, "svg", metadata={"Date": None})
        if kind in PIXELS or len(content) > LARGEST_SVG:
            content, form = _saved(figure, "png", dpi=120), "png"
    return f"data:image/{form};base64,{base64.b64encode(content).decode()}"


def _saved(figure: Figure, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, **options)
    return buffer.getvalue()


def _explorer(runs: list[RunDirectory]) -> str:
    """The live explorer of a single run."""
    if len(runs) > 1 or runs[0].why_no_problem():
        return ""
    try:
        return explorer_html(runs[0].surrogate, errors=runs[0].errors)
    except TranslationError as error:
        return f'<p class="note">There is no live explorer. {escape(str(error))}</p>'


# How to repeat it -------------------------------------------------------------------------------------------


def _repeat(run: RunDirectory, several: bool) -> str:
    """The command, the configuration and the versions."""
    config, problem = run.config, run.config["problem"]
    heading = f"How to repeat {escape(run.folder.resolve().name)}" if several else "How to repeat it"
    if problem is None:
        how = (
            "<p>This run was started from Python with a user's problem: call <code>clpinn.run</code> with that problem "
        )
        how += "and the settings below.</p>"
    else:
        command = f"clpinn train {shlex.quote(problem)} --config config.json --out runs/again"
        how = "<p>Save the configuration below as <code>config.json</code>, or use the one in the run's directory:</p>"
        how += f"<pre>{escape(command)}</pre>"
        if run.config["settings"].get("seconds"):
            how += "<p>Wall time ended this run: on another machine it makes more or fewer steps.</p>"
    versions = "".join(f"<tr><td>{escape(name)}</td><td>{escape(str(v))}</td></tr>" for name, v in _versions(config))
    return (
        f"<h2>{heading}</h2>\n{how}\n<details><summary>Configuration</summary>"
        f"<pre>{escape(json.dumps(config, indent=2))}</pre></details>\n"
        f'<details><summary>Versions</summary><div class="wide"><table>{versions}</table></div></details>'
    )


def _versions(config: dict[str, Any]) -> list[tuple[str, Any]]:
    return [*config["versions"].items(), ("devices", ", ".join(config["devices"]))]
