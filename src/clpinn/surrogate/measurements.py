"""Measurements that parameters are fitted to: from a dict, a data frame, an xarray.Dataset or a CSV file."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from clpinn.errors import DomainError
from clpinn.formulation.problem import Problem


@dataclass(frozen=True)
class Measurements:
    """Measured outputs, and everything that is known about each measurement.

    Attributes:
        columns: Coordinates and known parameters by name, (measurements,).
        values: Measured values by output, (measurements,); NaN where none was measured.
        unknown: The parameters to find.
        notes: What was left out.
    """

    columns: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


def read(
    problem: Problem, data: Any, unknown: Sequence[str] | None = None, known: Mapping[str, ArrayLike] | None = None
) -> Measurements:
    """Measurements of a problem's outputs. `known` are values of further axes, which broadcast.

    Without `unknown`, all parameters are unknown that have neither a column nor a known value.
    """
    given = columns_of(data)
    ignored = [name for name in given if name not in (*problem.axes, *problem.outputs)]
    wrong = [name for name in known or {} if name not in problem.axes]
    if wrong:
        raise DomainError(f"There is no {', '.join(wrong)}. Give values of some of {', '.join(problem.axes)}.")
    columns = {name: given[name] for name in given if name in problem.axes} | dict(known or {})
    values = {name: given[name] for name in problem.outputs if name in given}
    if unknown is None:
        unknown = [name for name in problem.parameters if name not in columns]
    unknown = (unknown,) if isinstance(unknown, str) else tuple(unknown)
    _require_names(problem, columns, values, unknown, given)
    # A column of an unknown parameter says nothing about it.
    ignored += [name for name in columns if name in unknown]
    columns = {name: column for name, column in columns.items() if name not in unknown}
    try:
        arrays = {name: np.asarray(column, float) for name, column in (columns | values).items()}
        spread = dict(zip(arrays, (array.ravel() for array in np.broadcast_arrays(*arrays.values()))))
    except (ValueError, TypeError) as error:
        shapes = ", ".join(f"{name} {np.shape(column)}" for name, column in (columns | values).items())
        raise DomainError(f"Data must be numbers that broadcast, but came as {shapes}: {error}.") from None
    for name in columns:
        if not np.isfinite(spread[name]).all():
            raise DomainError(f"{name} is not finite at one or more measurements. Leave those measurements out.")
    measured = {name: np.where(np.isfinite(spread[name]), spread[name], np.nan) for name in values}
    if not any(np.isfinite(row).any() for row in measured.values()):
        raise DomainError(f"Data has no finite value of {', '.join(measured)}.")
    measured = {name: row for name, row in measured.items() if np.isfinite(row).any()}
    points = {name: spread[name] for name in columns}
    _check_boxes(problem, points)
    notes = (f"Ignored columns of the data: {', '.join(ignored)}.",) if ignored else ()
    return Measurements(points, measured, unknown, notes)


def _require_names(
    problem: Problem, columns: Mapping[str, Any], values: Mapping[str, Any], unknown: tuple[str, ...], given: Any
) -> None:
    """Raise an error unless there is an output, a parameter to find, and a value for each other axis."""
    needed = [name for name in problem.axes if name not in unknown]
    missing = [name for name in needed if name not in columns]
    strange = [name for name in unknown if name not in problem.parameters.names]
    if strange or not unknown or len(set(unknown)) < len(unknown):
        raise DomainError(
            f"unknown must name some of the parameters {', '.join(problem.parameters) or '(there are none)'}, each "
            f"once, but got {', '.join(unknown) or 'none'}."
        )
    if missing or not values:
        raise DomainError(
            f"Data needs a column for some of the outputs {', '.join(problem.outputs)} and for each of "
            f"{', '.join(needed)}, but has {', '.join(map(str, given)) or 'nothing'}. A value that holds for all "
            "measurements can be given by name."
        )


def _check_boxes(problem: Problem, columns: Mapping[str, np.ndarray]) -> None:
    """Warn of values outside their boxes. Whether physical points are inside a moved domain depends on theta."""
    for box in (problem.parameters, problem.coordinates) if problem.place is None else (problem.parameters,):
        names = [name for name in box if name in columns]
        if names:
            others = [name for name in box if name not in names]
            box.without(others).check(np.stack([columns[name] for name in names], axis=1))


def columns_of(data: Any) -> dict[str, Any]:
    """Columns by name, of any kind of data."""
    if isinstance(data, str | Path):
        return _table(Path(data))
    if hasattr(data, "data_vars"):  # an xarray.Dataset
        import xarray

        named = {str(name): data[name] for name in (*data.coords, *data.data_vars)}
        return {name: array.values for name, array in zip(named, xarray.broadcast(*named.values()))}
    if hasattr(data, "columns"):  # a pandas.DataFrame
        return {str(name): data[name].to_numpy() for name in data.columns}
    if isinstance(data, Mapping):
        return dict(data)
    raise DomainError(
        "Data must be a dict of arrays by name, a pandas.DataFrame, an xarray.Dataset or the path of a CSV file, but "
        f"got {type(data).__name__}."
    )


def _table(path: Path) -> dict[str, Any]:
    """The columns of a CSV file with a line of names. An empty cell is a value that was not measured.

    A column in which some cell is no number stays as text.
    """
    if not path.is_file():
        raise DomainError(f"There is no file {path}. Give a CSV file with a line of names and a line per measurement.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DomainError(f"{path} is no CSV file: {error}.") from None
    lines = [(number, row) for number, row in enumerate(lines, 1) if any(row) and not row[0].startswith("#")]
    if len(lines) < 2:
        raise DomainError(f"{path} needs a line of names and at least one line of numbers, but has {len(lines)} lines.")
    (_, names), *rows = lines
    for number, row in rows:
        if len(row) != len(names):
            raise DomainError(f"{path}, line {number}: expected {len(names)} cells, but got {len(row)}.")
    return {name: _numbers([row[i] for _, row in rows]) for i, name in enumerate(names)}


def _numbers(cells: list[str]) -> Any:
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        return np.array(cells)
