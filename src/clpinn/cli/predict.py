"""`clpinn predict` and `clpinn export`: a surrogate's answers, and the surrogate for other programs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from clpinn.cli.display import shown_warnings
from clpinn.cli.options import (
    CHANGED_PROBLEM,
    GIVEN_PROBLEM,
    JSON,
    POINTS,
    SURROGATE,
    VALUES,
    load_surrogate,
    parse_scalars,
    print_json,
)
from clpinn.cli.tables import print_line, print_prediction

FEW_VALUES, LINE_VALUES = 100, 10_000
"""Fields with at most this many values are printed; the same for fields on a line."""


def predict(
    run: SURROGATE,
    given: VALUES = None,
    out: Annotated[Path | None, typer.Option(help="File for the field: .nc, .csv or .vtk.")] = None,
    points: POINTS = None,
    error: Annotated[bool, typer.Option(help="Estimate the error at that theta.")] = True,
    given_problem: GIVEN_PROBLEM = None,
    changed_problem: CHANGED_PROBLEM = False,
    as_json: JSON = False,
) -> None:
    """Predict the solution at a theta: a field for a file, or values at single points."""
    import numpy as np

    from clpinn.exports.export import write_field

    surrogate, values = load_surrogate(run, given_problem, changed_problem), parse_scalars(given or [])
    problem = surrogate.problem
    with shown_warnings():
        field = surrogate.field(points, **values)
        theta = {name: values[name] for name in problem.parameters}
        single_theta = all(np.ndim(value) == 0 for value in theta.values())
        estimate = surrogate.error(**theta) if error and single_theta else None
    coordinates = {str(name): array.values.tolist() for name, array in field.coords.items() if name not in theta}
    prediction: dict[str, Any] = {
        "theta": {name: np.asarray(value).tolist() for name, value in theta.items()},
        "point": {name: value for name, value in coordinates.items() if not isinstance(value, list)},
        "grid": {str(name): size for name, size in field.sizes.items()},
    }
    prediction["outputs"] = {
        str(name): {"min": float(array.min()), "max": float(array.max()), "mean": float(array.mean())}
        for name, array in field.data_vars.items()
    }
    if field[problem.outputs[0]].size <= (LINE_VALUES if len(field.sizes) == 1 else FEW_VALUES):
        prediction["coordinates"] = {name: row for name, row in coordinates.items() if isinstance(row, list)}
        prediction["values"] = {str(name): array.values.tolist() for name, array in field.data_vars.items()}
    if estimate is not None:
        prediction["error"] = estimate.summary()
    if out is not None:
        write_field(field, out)
        prediction["file"] = str(out)
    if as_json:
        print_json(prediction)
    else:
        print_prediction(f"{type(problem).__name__}, {' '.join(given or [])}", prediction, estimate)


def export(
    run: SURROGATE,
    file: Annotated[
        Path,
        typer.Argument(
            help="For the surrogate: .onnx, .stablehlo, .mlir. For a field at a theta: .nc, .csv, .vtk, .vtu, .xdmf."
        ),
    ],
    given: VALUES = None,
    points: POINTS = None,
    given_problem: GIVEN_PROBLEM = None,
    changed_problem: CHANGED_PROBLEM = False,
    as_json: JSON = False,
) -> None:
    """Write a run's surrogate, or a field of it, in a format that other programs read."""
    from clpinn.exports.export import export as write

    with shown_warnings():
        write(load_surrogate(run, given_problem, changed_problem), file, points, **parse_scalars(given or []))
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes": size})
    else:
        print_line(f"written: {file} ({size / 1e3:.0f} kB)")
