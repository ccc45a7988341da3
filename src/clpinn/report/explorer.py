"""The live explorer: a page, or a section of one, in which the trained network itself runs."""

import base64
import re
from importlib.resources import files
from typing import Any

import numpy as np

from clpinn.exports.translate.javascript import javascript, script_json
from clpinn.exports.translate.tracing import program_of
from clpinn.formulation.domain import Axis, Grid
from clpinn.formulation.problem import Problem, placed
from clpinn.formulation.references import kept_table, reference_at
from clpinn.surrogate.surrogate import Surrogate

POINTS, THETAS, NUMBERS = 1700, 100, 280_000
"""Most reference points a theta, thetas, and numbers in all: about 1.5 MB in a page."""

SCRIPTS = "axes colours pictures panel view reference words drawing redraws player controls cursor explore".split()
"""Files of the folder explorer, in the order of the page's script; each uses only those before it."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE</title>
<style>
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1200px; padding: 1rem; background: #ffffff; }
@media (prefers-color-scheme: dark) { body { background: #14181c; } }
</style>
</head>
<body>
<main>
SECTION
</main>
</body>
</html>
"""


def explorer_page(surrogate: Surrogate, references: bool = True) -> str:
    """A whole HTML page with the explorer: one file that needs neither a server nor a network."""
    title = "".join(f"&#{ord(letter)};" for letter in type(surrogate.problem).__name__)
    return PAGE.replace("TITLE", title).replace("SECTION", explorer_html(surrogate, references))


def explorer_html(surrogate: Surrogate, references: bool = True) -> str:
    """The explorer as a section of a page: style, markup and script, the network and references included.

    References are taken at some candidate thetas: from disk where an evaluation has left them, otherwise they are
    computed, which may take a while. The network is the base; heads of single thetas are left out.
    """
    folder = files("clpinn.report") / "explorer"
    parts = {
        "STYLE": (folder / "style.css").read_text("utf-8"),
        "SCRIPT": "\n".join((folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS),
        "DATA": script_json(_data(surrogate, references)),
        "PROGRAM": javascript(program_of(surrogate)),
    }
    text = (folder / "section.html").read_text("utf-8")
    # All at once, so that nothing is replaced within what was put in.
    return re.sub("|".join(parts), lambda match: parts[match[0]], text)


def _data(surrogate: Surrogate, references: bool) -> dict[str, Any]:
    """What the page knows besides the network."""
    problem = surrogate.problem
    return {
        "title": type(problem).__name__,
        "equation": problem.equation,
        "coordinates": [_axis(name, axis) for name, axis in zip(problem.coordinates, problem.coordinates.axes)],
        "parameters": [_axis(name, axis) for name, axis in zip(problem.parameters, problem.parameters.axes)],
        "outputs": list(problem.outputs),
        "tasks": surrogate.tasks.tolist(),
        "heads": 0 if surrogate.heads is None else len(surrogate.heads.thetas),
        "extent": None if problem.place is None else _extent(problem),
        "references": _references(problem) if references and problem.reference is not None else None,
    }


def _axis(name: str, axis: Axis) -> dict[str, Any]:
    return {"name": name, "low": axis.low, "high": axis.high, "scale": axis.scale}


def _extent(problem: Problem) -> list[dict[str, Any]]:
    """The physical coordinates' ranges over all thetas."""
    points = problem.coordinates.grid(**dict.fromkeys(problem.coordinates, 9)).points
    thetas = problem.parameters.grid(**dict.fromkeys(problem.parameters, 3)).points
    rows = np.concatenate([np.hstack([points, np.tile(theta, (len(points), 1))]) for theta in thetas])
    found = placed(problem, dict(zip(problem.axes, rows.T)))
    ranges = [(float(np.min(found[name])), float(np.max(found[name]))) for name in problem.coordinates]
    return [{"low": low, "high": high if high > low else low + 1, "scale": "linear"} for low, high in ranges]


def _references(problem: Problem) -> dict[str, Any]:
    """Reference values at some of the candidates, on a part of the evaluation grid."""
    points = _thinned(problem.evaluation, POINTS)
    numbers = int(np.prod([len(part) for part in points])) * len(problem.outputs)
    thetas = _thinned(problem.candidates, min(THETAS, max(1, NUMBERS // numbers)))
    rows = _flat(problem.candidates, thetas)
    table = kept_table(problem)
    if table is None:
        at = problem.evaluation.points[_flat(problem.evaluation, points)]
        values = np.stack([reference_at(problem, at, theta) for theta in problem.candidates.points[rows]])
    else:
        values = np.asarray(table[rows])[:, :, _flat(problem.evaluation, points)]
    return {
        "kind": problem.reference_kind,
        "axes": [axis[part].tolist() for axis, part in zip(problem.evaluation.values.values(), points)],
        "thetas": problem.candidates.points[rows].tolist(),
        "values": base64.b64encode(values.astype("<f4").tobytes()).decode(),
    }


def _thinned(grid: Grid, most: int) -> list[np.ndarray]:
    """Which values of each axis to take so that at most so many points are left: ends included, evenly between."""
    counts = list(grid.shape)
    while np.prod(counts) > most and max(counts) > 1:
        counts[int(np.argmax(counts))] -= 1
    parts = []
    for size, count in zip(grid.shape, counts):
        # With a few less the steps may all be the same.
        exact = [fewer for fewer in range(count, max(2, count // 2), -1) if (size - 1) % (fewer - 1) == 0]
        parts.append(np.round(np.linspace(0, size - 1, exact[0] if exact else count)).astype(int))
    return parts


def _flat(grid: Grid, parts: list[np.ndarray]) -> np.ndarray:
    """Numbers of the grid's points that have these values."""
    if not parts:
        return np.array([0])
    return np.ravel_multi_index(np.meshgrid(*parts, indexing="ij"), grid.shape).ravel()
