"""Where the numbers of a surrogate come from: problem, box, version, checksum of the weights, training.

Also how wrong a field is estimated to be, and a surrogate in a few words.
"""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from clpinn.formulation.problem import Problem
from clpinn.networks.architecture import precision
from clpinn.surrogate.adaptations import Heads
from clpinn.surrogate.corrections import Corrections
from clpinn.surrogate.error import ESTIMATED
from clpinn.surrogate.error_map import ErrorMap

if TYPE_CHECKING:
    import xarray


def provenance(problem: Problem, digest: str, heads: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance in plain values. `heads` are those that are used."""
    settings = record.get("settings", {})
    entries = {
        "problem": type(problem).__name__,
        "equation": problem.equation or (type(problem).__doc__ or "").strip().split("\n")[0],
        "parameter_box": repr(problem.parameters),
        "source": f"clpinn {version('clpinn')}, a neural network trained on the equations",
        "weights_sha256": digest,
        "heads": heads,
        **{name: settings.get(name) for name in ("method", "optimizer", "seed")},
        **{name: record.get(name) for name in ("steps", "outcome", "validation")},
        "versions": json.dumps(record["versions"]) if "versions" in record else None,
        "box_correction": _box_correction(record),
    }
    return {name: value for name, value in entries.items() if value is not None}


def estimated_at(
    field: "xarray.Dataset", errors: ErrorMap | None, heads: Heads | Corrections | None
) -> dict[str, float | int]:
    """How wrong a field at a single theta is, by a map of the base network's errors: attributes by name.

    There are none without a map, at several thetas, outside the box, and at a theta that a head answers. Where the map
    does not know the errors (`ErrorMap.knows`), only that is told.
    """
    if errors is None or any(field[name].ndim for name in errors.problem.parameters):
        return {}
    theta = np.array([float(field[name]) for name in errors.problem.parameters])
    has_head = heads is not None and bool(np.any(np.all(heads.thetas == theta, axis=1) & heads.used))
    if has_head or not errors.problem.parameters.inside(theta[None]).all():
        return {}
    known = errors.knows(theta)
    entries: dict[str, float | int] = {f"{ESTIMATED}error_resolved": int(known)}
    for name, (low, middle, high) in errors.over(theta[None]).items() if known else ():
        ends = {"": middle, "_low": low, "_high": high}
        entries |= {f"{ESTIMATED}relative_l2_{name}{end}": float(value[0]) for end, value in ends.items()}
    return entries


def facts(problem: Problem, network: Any, record: Mapping[str, Any], heads: str | None) -> dict[str, str]:
    """A surrogate in a few words by name. `heads` says what heads it has."""
    architecture = network.architecture
    entries = {
        "outputs": ", ".join(problem.outputs),
        "coordinates": repr(problem.coordinates),
        "parameters": repr(problem.parameters),
        "network": f"{architecture.kind} {architecture.depth}x{architecture.width}, {precision(network)}",
        "steps": str(record["steps"]) if "steps" in record else None,
        "validation loss": f"{record['validation']:.1e}" if record.get("validation") is not None else None,
        "heads": heads,
        "correction over the box": _box_correction(record),
    }
    return {name: text for name, text in entries.items() if text is not None}


def _box_correction(record: Mapping[str, Any]) -> str | None:
    """What is known of a correction over the box, if there is one."""
    correction = record.get("box_correction", {"used": False})
    return f"from {correction['thetas']} thetas. {correction['reason']}" if correction["used"] else None


def digest(tree: Any) -> str:
    """SHA-256 of all arrays."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()
