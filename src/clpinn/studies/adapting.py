"""Cells that adapt what another cell trained: at fixed targets, or at all thetas that were not trained.

Targets are adapted in groups. A group that is done is kept in the cell's folder, so a cell that was stopped goes on
with the next one.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clpinn.errors import StudyError
from clpinn.files import write_json
from clpinn.formulation.domain import Points
from clpinn.problems import BENCHMARKS
from clpinn.protocol import TARGETS
from clpinn.runs.adaptation import joined, measured_adaptation
from clpinn.runs.directory import RunDirectory
from clpinn.runs.records import plain, read_json
from clpinn.surrogate.adapt_settings import AdaptSettings
from clpinn.surrogate.adaptations import AdaptationName
from clpinn.surrogate.surrogate import Surrogate

ADAPTED = "adapted.json"
"""What an adaptation gave, in the folder of its cell."""
GROUP = 32
"""Targets of a group."""


def by_adam(way: AdaptationName = "head", steps: int | None = None, **options: Any) -> AdaptSettings:
    """The options of the paper's adaptation: Adam in single precision, and its result is always used."""
    return AdaptSettings(way, "adam", steps, precision="single", always=True, **options)


@dataclass(frozen=True)
class Adapting:
    """How a cell adapts the surrogate of its base."""

    settings: AdaptSettings = field(default_factory=by_adam)
    checkpoints: tuple[int, ...] = ()
    """Steps of Adam at which errors are measured, besides those at the end."""
    targets: Literal["fixed", "unseen"] = "fixed"
    """Thetas: those of `protocol.TARGETS`, or all candidates that the base was not trained on."""
    most: int | None = None
    """At most so many of them."""


def adapt_cell(adapting: Adapting, base: RunDirectory, folder: Path, key: str) -> None:
    """Adapt the surrogate of a base at its targets, and write what that gave to a folder. `key` is that of the cell."""
    with RunDirectory(folder).locked():
        if (folder / ADAPTED).exists():  # another process was faster
            return
        surrogate = base.surrogate
        thetas, groups = targets(adapting, surrogate), []
        for first in range(0, len(thetas), GROUP):
            file = folder / f"group-{first // GROUP:03d}.json"
            if not file.exists():
                some = thetas[first : first + GROUP]
                measured = measured_adaptation(
                    surrogate, some, adapting.settings, adapting.checkpoints, base.settings.seed
                )
                write_json(file, {"key": key, "figures": plain(measured)})
            groups.append(checked_figures(file, key))
        ended = {name: base.metrics[name] for name in ("outcome", "recoveries")}
        write_json(folder / ADAPTED, {"key": key, "figures": plain(_figures(joined(groups)) | ended)})


def checked_figures(file: Path, key: str) -> dict[str, Any]:
    """The figures that a file of an adaptation holds; one of another cell is an error."""
    content = read_json(file, {"key": str, "figures": dict})
    if content["key"] != key:
        raise StudyError(f"{file} is of another cell. Nothing was changed. Remove that file.")
    return content["figures"]


def targets(adapting: Adapting, surrogate: Surrogate) -> Points:
    if adapting.targets == "unseen":
        return surrogate.unseen(adapting.most)
    name = next((name for name, kind in BENCHMARKS.items() if isinstance(surrogate.problem, kind)), "")
    if name not in TARGETS:
        raise StudyError(
            f"{type(surrogate.problem).__name__} has no fixed targets; only {', '.join(TARGETS)} have. Use "
            "targets='unseen'."
        )
    return np.array(TARGETS[name][: adapting.most])


def _figures(found: dict[str, Any]) -> dict[str, Any]:
    """What a table needs: summaries by number of steps, with the errors of all targets."""
    before, *later = found["results"]
    checkpoints = {}
    for result in later:
        summary = result["summary"]
        checkpoints[str(max(result["steps"]))] = summary | {
            "improved": summary["improved"] / summary["targets"],
            "difficult_improved": summary["difficult_improved"] / summary["difficult"],
            "mse_before": _mean(before, "mse"),
            "mse_after": _mean(result, "mse"),
            "seconds_per_target": result["seconds"],
            "targets_before": _over_outputs(before),
            "targets_after": _over_outputs(result),
        }
    return {"checkpoints": checkpoints, "online": found["trainable"], "thetas": found["thetas"]}


def _mean(result: dict[str, Any], figure: str) -> float:
    """The mean of a figure over outputs and targets."""
    return float(np.mean([figures[figure] for figures in result["outputs"].values()]))


def _over_outputs(result: dict[str, Any]) -> list[float]:
    """The relative error of each target, the mean over outputs."""
    return np.mean([figures["rel_l2"] for figures in result["outputs"].values()], axis=0).tolist()
