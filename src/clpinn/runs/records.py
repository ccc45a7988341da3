"""The text files of a run as plain values. A file may be damaged or come from somebody else, so its form is checked.

A form is a type, a function that says whether a value fits, a list of one form for lists, or a dict of forms for dicts
that have at least these keys. A log is read as far as its rows fit.
"""

import csv
import json
import math
import reprlib
from pathlib import Path
from typing import Any

import numpy as np

from clpinn.errors import Outcome, RunError

CONFIG = "config.json"
LARGEST = 1e300
"""Numbers beyond this size are damage."""


def number(value: Any) -> bool:
    """A number of a reasonable size, or NaN."""
    plain_number = isinstance(value, int | float) and not isinstance(value, bool)
    return plain_number and (value != value or abs(value) <= LARGEST)


def count(value: Any) -> bool:
    """A whole number from zero on that fits into 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def whole(value: Any) -> bool:
    """A whole number that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def number_or_none(value: Any) -> bool:
    return value is None or number(value)


def text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def hashes_or_none(value: Any) -> bool:
    """The fingerprint of a problem, or None."""
    return value is None or (isinstance(value, dict) and all(isinstance(part, str) for part in value.values()))


def numbers_or_none(value: Any) -> bool:
    return value is None or misfit(value, [number]) is None


def outcome(value: Any) -> bool:
    """The name of a way in which a run can end."""
    return isinstance(value, str) and value in set(Outcome)


def figures_by_name(value: Any) -> bool:
    """A dict of numbers, some of them not finite (None)."""
    return isinstance(value, dict) and all(map(number_or_none, value.values()))


def errors_by_output(value: Any) -> bool:
    """What metrics.json says of each output. Runs of before have no `max_abs_mean`."""
    figures = dict.fromkeys(("mse", "rel_l2_macro", "rel_l2_worst", "max_abs"), number_or_none)
    if not isinstance(value, dict) or any(misfit(errors, figures) is not None for errors in value.values()):
        return False
    others = [(errors.get("worst_at", {}), errors.get("max_abs_mean")) for errors in value.values()]
    return all(figures_by_name(place) and number_or_none(mean) for place, mean in others)


def macro_or_none(value: Any) -> bool:
    """What metrics.json says of all outputs together, or None."""
    return (
        value is None or misfit(value, dict.fromkeys(("mse", "rel_l2_macro", "rel_l2_worst"), number_or_none)) is None
    )


def estimates_or_none(value: Any) -> bool:
    """The summary of a map of estimated errors, or None."""
    if value is None:
        return True
    if misfit(value, {"thetas": count, "resolved": number, "outputs": dict}) is not None:
        return False
    spread = dict.fromkeys(("value", "low", "high"), number_or_none)
    form = {"macro": spread, "worst": spread, "worst_at": figures_by_name}
    return all(misfit(figures, form) is None for figures in value["outputs"].values())


def correction_or_none(value: Any) -> bool:
    """What metrics.json says of a correction over the box, or None."""
    form = {"used": bool, "reason": str, "thetas": count, "resolved": number, "network_outputs": errors_by_output}
    return value is None or misfit(value, form) is None


DESCRIPTION = {"class": str, "options": dict, "coordinates": str, "parameters": str, "outputs": [str]}
CONFIG_FORM = {
    "problem": text_or_none,
    "description": DESCRIPTION,
    "fingerprint": hashes_or_none,
    "settings": dict,
    "versions": dict,
    "devices": [str],
}
METRICS_FORM = {
    "problem": str,
    "method": str,
    "optimizer": str,
    "seed": whole,
    "outcome": outcome,
    "steps": count,
    "recoveries": lambda value: value is None or count(value),
    "wall_seconds": number,
    "peak_memory_mib": number_or_none,
    "queries": count,
    "active": count,
    "replay": count,
    "res_pde_macro": number_or_none,
    "outputs": errors_by_output,
    "macro": macro_or_none,
    "has_reference": bool,
    "estimated": estimates_or_none,
    "correction": correction_or_none,
}
OPTIONAL_METRICS = ("macro", "recoveries", "peak_memory_mib", "estimated", "correction")
"""What metrics.json of older versions does not have; None stands for it."""
HISTORY_FORM = {
    "step": count,
    "stage": str,
    "loss": number_or_none,
    "terms": figures_by_name,
    "validation": number_or_none,
}
MOVES = ("newcomer", "moved_entered", "moved_to_replay", "moved_restored", "moved_dropped")
EVENT_FORM = {
    "step": count,
    "event": count,
    "active": [[number]],
    "replay": [[number]],
    **dict.fromkeys(MOVES, numbers_or_none),
}


def event_thetas(event: dict[str, Any]) -> list[list[float]]:
    """All thetas that an event names."""
    return [*event["active"], *event["replay"], *(event[name] for name in MOVES if event[name] is not None)]


def misfit(value: Any, form: Any, place: str = "") -> str | None:
    """Where a value does not fit a form, as "settings: {...}"; None if it fits."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return f"{place or 'the whole'}: {reprlib.repr(value)}"
        missing = next((name for name in form if name not in value), None)
        if missing is not None:
            return f"{place}{'.' if place else ''}{missing} is missing"
        parts = ((value[name], inner, f"{place}.{name}" if place else name) for name, inner in form.items())
        return next((text for part in parts if (text := misfit(*part)) is not None), None)
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{place}: {reprlib.repr(value)}"
        return next((text for item in value if (text := misfit(item, form[0], place)) is not None), None)
    fits = isinstance(value, form) if isinstance(form, type) else form(value)
    return None if fits else f"{place}: {reprlib.repr(value)}"


def read_json(file: Path, form: Any, defaults: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object of this form. `defaults` stand for what older versions did not write."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(file, str(error) or type(error).__name__) from None
    if isinstance(value, dict):
        value = (defaults or {}) | value
    wrong = misfit(value, form)
    if wrong is not None:
        raise _damaged(file, wrong)
    return value


def read_config(path: Path, form: Any = None) -> dict[str, Any]:
    """A run's config.json, given its directory or the file itself. Without `form`, only its settings are needed."""
    file = path if path.is_file() else path / CONFIG
    if not file.is_file():
        raise RunError(f"{path} is not a run: it has no {CONFIG}. Give the directory of a run.")
    return read_json(file, form or {"settings": dict}, {"fingerprint": None, "versions": {}, "devices": []})


def read_log(file: Path, form: Any) -> list[dict[str, Any]]:
    """The rows of a log, up to the first one that is damaged. A log that does not exist has no rows."""
    rows = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if misfit(row, form) is not None:
            break
        rows.append(row)
    return rows


def read_table(file: Path, names: list[str]) -> dict[str, np.ndarray]:
    """The columns of a CSV file of numbers, by name. These names must be there."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            header, *rows = csv.reader(opened)
        columns = {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate(header)}
    except (ValueError, IndexError, csv.Error) as error:
        raise _damaged(file, str(error)) from None
    missing = [name for name in names if name not in columns]
    if missing or not rows:
        raise _damaged(file, f"no column {missing[0]!r}" if missing else "no rows")
    return columns


def plain(value: Any) -> Any:
    """A value as JSON can hold it; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


def _damaged(file: Path, wrong: str) -> RunError:
    return RunError(f"{file} is damaged ({wrong}). Restore it, or train again.")
