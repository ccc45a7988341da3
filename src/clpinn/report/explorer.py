"""The live explorer: a page, or a section of a page, in which the trained network itself runs."""

import base64
import re
from importlib.resources import files
from typing import Any

import numpy as np

from clpinn.exports.translate.javascript import javascript, script_json
from clpinn.exports.translate.tracing import program_of
from clpinn.formulation.domain import Axis, Grid
from clpinn.formulation.geometry import placed
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import kept_table, reference_at
from clpinn.surrogate.surrogate import Surrogate

POINTS, THETAS, NUMBERS = 1700, 100, 280_000
"""Upper limits of reference points per theta, of thetas, and of reference values in all: about 1.5 MB in a page."""

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
    """A whole HTML page with the explorer: one file that needs no server and no internet."""
    title = "".join(f"&#{ord(letter)};" for letter in type(surrogate.problem).__name__)
    return PAGE.replace("TITLE", title).replace("SECTION", explorer_html(surrogate, references))


def explorer_html(surrogate: Surrogate, references: bool = True) -> str:
    """The explorer as a section of a page: style, markup and script, the network and references included.

    References are shown at a selection of candidate thetas. They come from disk where an evaluation has kept them;
    otherwise they are computed, which may take a while. The network is the base; heads of single thetas are left out.
    """
    folder = files("clpinn.report") / "explorer"
    inserts = {
        "STYLE": (folder / "style.css").read_text("utf-8"),
        "SCRIPT": "\n".join((folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS),
        "DATA": script_json(_data(surrogate, references)),
        "PROGRAM": javascript(program_of(surrogate)),
    }
    text = (folder / "section.html").read_text("utf-8")
    # All at once, so that nothing is replaced inside an insert.
    return re.sub("|".join(inserts), lambda match: inserts[match[0]], text)


def _data(surrogate: Surrogate, references: bool) -> dict[str, Any]:
    """The problem as the page needs it, besides the network."""
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
    physical = placed(problem, dict(zip(problem.axes, rows.T)))
    ranges = [(float(np.min(physical[name])), float(np.max(physical[name]))) for name in problem.coordinates]
    return [{"low": low, "high": high if high > low else low + 1, "scale": "linear"} for low, high in ranges]


def _references(problem: Problem) -> dict[str, Any]:
    """Reference values at a selection of candidates, on a selection of the evaluation grid."""
    selected = _thinned(problem.evaluation, POINTS)
    numbers = int(np.prod([len(indices) for indices in selected])) * len(problem.outputs)
    thetas = _thinned(problem.candidates, min(THETAS, max(1, NUMBERS // numbers)))
    rows = _flat(problem.candidates, thetas)
    table = kept_table(problem)
    if table is None:
        points = problem.evaluation.points[_flat(problem.evaluation, selected)]
        values = np.stack([reference_at(problem, points, theta) for theta in problem.candidates.points[rows]])
    else:
        values = np.asarray(table[rows])[:, :, _flat(problem.evaluation, selected)]
    return {
        "kind": problem.reference_kind,
        "axes": [axis[indices].tolist() for axis, indices in zip(problem.evaluation.values.values(), selected)],
        "thetas": problem.candidates.points[rows].tolist(),
        "values": base64.b64encode(values.astype("<f4").tobytes()).decode(),
    }


def _thinned(grid: Grid, most: int) -> list[np.ndarray]:
    """Indices of values on each axis, evenly spaced with both ends, so that at most `most` points are left."""
    counts = list(grid.shape)
    while np.prod(counts) > most and max(counts) > 1:
        counts[int(np.argmax(counts))] -= 1
    selected = []
    for size, count in zip(grid.shape, counts):
        # With slightly fewer values the steps may all be equal.
        exact = [fewer for fewer in range(count, max(2, count // 2), -1) if (size - 1) % (fewer - 1) == 0]
        selected.append(np.round(np.linspace(0, size - 1, exact[0] if exact else count)).astype(int))
    return selected


def _flat(grid: Grid, selected: list[np.ndarray]) -> np.ndarray:
    """Row numbers of the grid's points at these indices of each axis."""
    if not selected:
        return np.array([0])
    return np.ravel_multi_index(np.meshgrid(*selected, indexing="ij"), grid.shape).ravel()
