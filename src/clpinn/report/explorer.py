"""The live explorer: a page, or a section of a page, in which the trained network itself runs."""

import base64
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from clpinn.drawing.colours import BOTH_SIGNS, SIGNED, VALUES, map_bytes
from clpinn.errors import TranslationError
from clpinn.exports.translate.javascript import javascript, script_json
from clpinn.exports.translate.program import Program
from clpinn.exports.translate.tracing import program_of, trace
from clpinn.formulation.domain import Box, Grid, Points
from clpinn.formulation.geometry import placed
from clpinn.formulation.membership import is_inside
from clpinn.formulation.problem import Problem
from clpinn.formulation.references import kept_table, reference_at
from clpinn.formulation.shaped import domain_values, shape_at
from clpinn.report.fields import answers_inside
from clpinn.runs.directory import plain
from clpinn.surrogate.error_map import ErrorMap
from clpinn.surrogate.error_process import LEVELS
from clpinn.surrogate.surrogate import Surrogate

POINTS, THETAS, NUMBERS = 1700, 100, 280_000
"""Upper limits of reference points per theta, of thetas, and of reference values in all: about 1.5 MB in a page."""
ROUNDING = 1e-6
"""Points up to this fraction of a shape's extent outside it are drawn."""

SCRIPTS = (
    "axes elements colours pictures panel geometry domain view errors reference estimates words sensitivity drawing "
    "redraws player downloads controls cursor fragment explore"
).split()
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


Columns = Mapping[str, np.ndarray]
"""Columns of errors.csv by name."""


def explorer_page(surrogate: Surrogate, references: bool = True) -> str:
    """A whole HTML page with the explorer: one file that needs no server and no internet."""
    title = "".join(f"&#{ord(letter)};" for letter in type(surrogate.problem).__name__)
    return PAGE.replace("TITLE", title).replace("SECTION", explorer_html(surrogate, references))


def explorer_html(surrogate: Surrogate, references: bool = True, errors: Columns | None = None) -> str:
    """The explorer as a section of a page: style, markup and script, the network and references included.

    References are shown at a selection of candidate thetas. They come from disk where an evaluation has kept them;
    otherwise they are computed, which may take a while. The network is the base; heads of single thetas are left out.
    `errors` are the columns of a run's errors.csv: the page then states the same errors as the run's summary. If the
    surrogate has a map of estimated errors, the page states and draws them, too.
    """
    folder, domain = files("clpinn.report") / "explorer", _domain_program(surrogate.problem)
    unmasked = surrogate.problem.domain is not None and domain is None
    inserts = {
        "STYLE": (folder / "style.css").read_text("utf-8"),
        "SCRIPT": "\n".join((folder / f"{name}.js").read_text("utf-8") for name in SCRIPTS),
        "DATA": script_json(_data(surrogate, references, errors) | {"unmasked": unmasked}),
        "PROGRAM": javascript(program_of(surrogate, by_theta=True)),
        "DOMAIN": "null" if domain is None else javascript(domain),
        "PLACE": "null" if surrogate.problem.place is None else javascript(_place_program(surrogate.problem)),
    }
    text = (folder / "section.html").read_text("utf-8")
    # All at once, so that nothing is replaced inside an insert.
    return re.sub("|".join(inserts), lambda match: inserts[match[0]], text)


def _place_program(problem: Problem) -> Program:
    """The physical coordinates by name of a point of the box."""

    def point(x: jax.Array, theta: jax.Array) -> dict[str, jax.Array]:
        physical = placed(problem, dict(zip(problem.axes, (*x, *theta), strict=True)))
        return {name: jnp.asarray(value) for name, value in physical.items()}

    return trace(point, problem.coordinates.names, problem.parameters.names, jnp.float64)


def _domain_program(problem: Problem) -> Program | None:
    """The signed distance of a point of the box to the boundary; None without a shape, or if it has no translation."""
    if problem.domain is None:
        return None

    def point(x: jax.Array, theta: jax.Array) -> dict[str, jax.Array]:
        given = dict(zip(problem.axes, (*x, *theta), strict=True))
        low, high = shape_at(problem, given).bounds
        # Constants in the page are in single precision: what is on the boundary counts as inside nevertheless.
        return {"distance": domain_values(problem, given)["distance"] - ROUNDING * jnp.linalg.norm(high - low)}

    try:
        return trace(point, problem.coordinates.names, problem.parameters.names, jnp.float64)
    except TranslationError:
        return None


def _data(surrogate: Surrogate, references: bool, errors: Columns | None) -> dict[str, Any]:
    """The problem as the page needs it, besides the network."""
    problem = surrogate.problem

    def axes(box: Box) -> list[dict[str, Any]]:
        named = zip(box, box.axes, strict=True)
        return [
            {"name": name, "low": axis.low, "high": axis.high, "scale": axis.scale, "unit": problem.units.get(name)}
            for name, axis in named
        ]

    return {
        "title": type(problem).__name__,
        "equation": problem.equation,
        "coordinates": axes(problem.coordinates),
        "parameters": axes(problem.parameters),
        "outputs": list(problem.outputs),
        "tasks": surrogate.tasks.tolist(),
        "heads": 0 if surrogate.heads is None else len(surrogate.heads.thetas),
        "extent": None if problem.place is None else _extent(problem),
        "estimates": None if surrogate.errors is None else _estimates(surrogate.errors),
        "references": _references(surrogate, errors) if references and problem.reference is not None else None,
        "colours": {"values": _base64(map_bytes(VALUES)), "signed": _base64(map_bytes(SIGNED)), "share": BOTH_SIGNS},
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _extent(problem: Problem) -> list[dict[str, Any]]:
    """The physical coordinates' ranges over all thetas."""
    points = problem.coordinates.grid(**dict.fromkeys(problem.coordinates, 9)).points
    thetas = problem.parameters.grid(**dict.fromkeys(problem.parameters, 3)).points
    rows = np.concatenate([np.hstack([points, np.tile(theta, (len(points), 1))]) for theta in thetas])
    physical = placed(problem, dict(zip(problem.axes, rows.T)))
    ranges = [(float(np.min(physical[name])), float(np.max(physical[name]))) for name in problem.coordinates]
    return [{"low": low, "high": high if high > low else low + 1, "scale": "linear"} for low, high in ranges]


def _references(surrogate: Surrogate, errors: Columns | None) -> dict[str, Any]:
    """Errors of the base network at a selection of candidates, on a selection of the evaluation grid.

    The page computes the reference from them: network minus error. So it draws errors that are smaller than the
    rounding of its weights to single precision.
    """
    problem, grid = surrogate.problem, surrogate.problem.evaluation
    selected = _thinned(grid, POINTS)
    shape = [len(indices) for indices in selected]
    thetas = _thinned(problem.candidates, min(THETAS, max(1, NUMBERS // (int(np.prod(shape)) * len(problem.outputs)))))
    rows, columns = _flat(problem.candidates, thetas), _flat(grid, selected)
    table, points = kept_table(problem), grid.points[columns]
    chosen = problem.candidates.points[rows]
    if table is None:
        exact = np.stack([reference_at(problem, points, theta) for theta in chosen])
    else:
        exact = np.asarray(table[rows])[:, :, columns]
    difference = np.stack([_predicted(surrogate, points, theta) for theta in chosen]) - exact
    relative = _errors_at(problem, errors, chosen)
    if relative is None:
        outside = np.isnan(exact) if problem.domain is not None else False
        norms, misses = (np.linalg.norm(np.where(outside, 0, rows), axis=2) for rows in (exact, difference))
        relative = np.where(norms > 0, misses / np.where(norms > 0, norms, 1), np.nan)
    else:
        shape = list(grid.shape)
    return {
        "kind": problem.reference_kind,
        "axes": [axis[indices].tolist() for axis, indices in zip(grid.values.values(), selected)],
        "thetas": chosen.tolist(),
        "errors": _base64(_continued(problem, difference, points, chosen).astype("<f4").tobytes()),
        "relative": plain(relative.tolist()),
        "points": " × ".join(map(str, shape)),
    }


def _estimates(errors: ErrorMap) -> dict[str, Any]:
    """Estimated errors of the base network at the map's thetas, and the processes that interpolate their norms."""
    processes: list[dict[str, Any] | None] = []
    for name in errors.problem.outputs:
        process = errors.processes.get(name)
        if process is None:
            processes.append(None)
            continue
        numbers = process.numbers()
        whitening = {"whitening": _base64(numbers["whitening"].astype("<f8").tobytes())}
        processes.append({key: np.asarray(value).tolist() for key, value in numbers.items()} | whitening)
    fields = _continued(errors.problem, errors.fields, errors.grid.points, errors.thetas)
    return {
        "axes": [axis.tolist() for axis in errors.grid.values.values()],
        "thetas": errors.thetas.tolist(),
        "errors": _base64((-fields).astype("<f4").tobytes()),  # network minus solution, as those of references
        "resolved": errors.resolved.tolist(),
        "reasons": list(errors.reasons),
        "level": float(ndtri(LEVELS[-1])),
        "processes": processes,
    }


def _predicted(surrogate: Surrogate, points: Points, theta: np.ndarray) -> np.ndarray:
    """The base network at points of the box, shape (outputs, points); NaN outside a domain that is a shape."""
    problem = surrogate.problem
    named = dict(zip(problem.parameters, theta.tolist()))
    answers = answers_inside(replace(surrogate, heads=None), points, named)
    return np.stack([np.broadcast_to(answers[name], len(points)) for name in problem.outputs])


def _continued(problem: Problem, errors: np.ndarray, points: Points, thetas: Points) -> np.ndarray:
    """Errors (thetas, outputs, points); outside a domain that is a shape those of the nearest point inside.

    The page interpolates between points, also in cells that the boundary cuts. It draws nothing outside.
    """
    if problem.domain is None:
        return errors
    from scipy.spatial import KDTree  # here, because it takes long to import

    scaled = np.stack([axis.to_unit(column) for axis, column in zip(problem.coordinates.axes, points.T)], axis=1)
    continued = errors.copy()
    for row, theta in zip(continued, thetas, strict=True):
        inside = is_inside(problem, points, theta)
        if inside.any() and not inside.all():
            nearest = np.flatnonzero(inside)[KDTree(scaled[inside]).query(scaled[~inside])[1]]
            row[:, ~inside] = row[:, nearest]
    return continued


def _errors_at(problem: Problem, errors: Columns | None, thetas: Points) -> np.ndarray | None:
    """Relative L2 errors of a run at these thetas, shape (thetas, outputs); None if the run has not evaluated them."""
    if errors is None or not all(f"rel_l2_{name}" in errors for name in problem.outputs):
        return None
    evaluated = np.stack([errors[name] for name in problem.parameters], axis=1) if len(problem.parameters) else None
    rows = []
    for theta in thetas:
        found = [0] if evaluated is None else np.flatnonzero(np.all(evaluated == theta, axis=1))
        if not len(found):
            return None
        rows.append([errors[f"rel_l2_{name}"][found[0]] for name in problem.outputs])
    return np.array(rows)


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
