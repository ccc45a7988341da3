"""Where the numbers of a surrogate come from: problem, box, version, checksum of the weights, training."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from clpinn.formulation.problem import Problem


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
    }
    return {name: value for name, value in entries.items() if value is not None}


def digest(tree: Any) -> str:
    """SHA-256 of all arrays."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        sha.update(np.ascontiguousarray(leaf).tobytes())
    return sha.hexdigest()
