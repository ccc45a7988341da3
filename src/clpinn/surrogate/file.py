"""The file of a surrogate (.clpinn): weights, heads, error map, what the problem is, training record. No code."""

import dataclasses
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from clpinn.errors import CheckpointError, ProblemError, SurrogateError
from clpinn.formulation.fingerprint import check_unchanged, fingerprint
from clpinn.formulation.problem import Problem, describe
from clpinn.formulation.validation import validate
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.problems import BENCHMARKS
from clpinn.surrogate.adaptations import Heads
from clpinn.surrogate.box_correction import BoxCorrected, BoxCorrection
from clpinn.surrogate.corrections import WAY, Corrections
from clpinn.surrogate.error_map import ErrorMap, blank_arrays, from_arrays, to_arrays
from clpinn.training import checkpoint

FORMAT = 1
MODEL = "model.clpinn"
"""The surrogate's file in the directory of a run."""


class Contents(NamedTuple):
    """What a file holds."""

    problem: Problem
    network: Any
    heads: Heads | Corrections | None
    record: Mapping[str, Any]
    errors: ErrorMap | None = None


def write(path: Path, contents: Contents) -> None:
    """Write a file, complete or not at all."""
    problem, network, heads, record, errors = contents
    header = {
        "surrogate": FORMAT,
        "clpinn": version("clpinn"),
        "problem": next((name for name, make in BENCHMARKS.items() if type(problem) is make), None),
        "description": describe(problem),
        "fingerprint": fingerprint(problem),
        "network": dataclasses.asdict(network.architecture),
        "heads": 0 if heads is None else len(heads.thetas),
        "way": None if heads is None else heads.way,
        "width": heads.width if isinstance(heads, Heads) else None,
        "always": isinstance(heads, Heads) and heads.always,
        "corrections": heads.shape() if isinstance(heads, Corrections) else None,
        "errors": None if errors is None else list(errors.reasons),
        "record": dict(record),
    }
    tree = {"network": network, "heads": heads}
    if isinstance(network, BoxCorrected):
        header["box_correction"] = network.correction.shape()
        tree = {"network": network.base, "heads": heads, "box_correction": network.correction}
    checkpoint.write(path, tree if errors is None else tree | {"errors": to_arrays(errors)}, header)


def read(path: Path, problem: Problem | None = None, changed_problem: bool = False) -> Contents:
    """What a file holds, or the file of a run's directory. One that is not of a benchmark needs its problem.

    A problem that computes something else than the one of the file is an error, unless `changed_problem`.
    """
    if path.is_dir():
        path /= MODEL
        if not path.is_file():
            raise SurrogateError(
                f"There is no {MODEL} in {path.parent}. Give a surrogate's file, or the directory of a run that has "
                "ended."
            )
    if not path.is_file():
        raise SurrogateError(
            f"There is no file {path}. Give one that a surrogate was saved to (model.clpinn of a run)."
        )
    try:
        header, arrays = checkpoint.read(path)
    except CheckpointError as error:
        raise SurrogateError(f"{path} holds no surrogate: {error}") from None
    if header.get("surrogate") != FORMAT:
        kind = "a checkpoint" if "step" in header else f"a surrogate of clpinn {header.get('clpinn')}"
        raise SurrogateError(
            f"{path} holds {kind}, which this version ({version('clpinn')}) does not read. Use the version that wrote "
            "it, or train again."
        )
    if problem is not None:
        validate(problem)
    try:
        problem = problem or _benchmark(path, header["problem"], header["description"])
        if not changed_problem:
            _require_same(problem, header["description"], header.get("fingerprint"), path)
        if header["network"]["depth"] > len(arrays):
            raise ValueError("fewer arrays than layers")
        # Only shapes: a file must not make us allocate what its header asks for.
        reasons = header.get("errors")  # files of before have none
        blank = eqx.filter_eval_shape(_blank, problem, header)
        if header["way"] == WAY:
            blank["heads"] = Corrections.blank(problem, header["heads"], header["corrections"])
        if reasons is not None:
            blank["errors"] = blank_arrays(problem, len(reasons))
        box_correction = header.get("box_correction")  # files of before have none
        if box_correction is not None:
            blank["box_correction"] = BoxCorrection.blank(problem, box_correction)
        tree = checkpoint.restore(path, arrays, blank)
        shapes, expected = ([leaf.shape for leaf in jax.tree.leaves(leaves)] for leaves in (tree, blank))
        if shapes != expected:
            raise ValueError("arrays of other shapes than the network's")
        if isinstance(tree["heads"], Corrections):
            tree["heads"].check()
        if box_correction is not None:
            tree["box_correction"].check()
            tree["network"] = BoxCorrected(tree["network"], tree["box_correction"])
        errors = None if reasons is None else from_arrays(problem, tree["errors"], reasons)
        record = dict(header["record"])
        _check_record(record, problem)
    except ProblemError:  # a changed problem
        raise
    except (CheckpointError, KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise SurrogateError(f"{path} holds no surrogate: its description makes no sense ({error!r}).") from None
    with jax.enable_x64(True):
        return Contents(problem, jax.tree.map(jnp.asarray, tree["network"]), tree["heads"], record, errors)


def _require_same(
    problem: Problem, description: Mapping[str, Any], fingerprint: Mapping[str, str] | None, path: Path
) -> None:
    """Raise an error if a file is of another problem, or of this one before it was changed."""
    if description["class"] == type(problem).__name__:
        check_unchanged(problem, fingerprint, str(path))
    if describe(problem) != description:
        raise SurrogateError(
            f"{path} is of another problem than the one given: {description}, not {describe(problem)}."
        )


def _check_record(record: Mapping[str, Any], problem: Problem) -> None:
    """Raise a ValueError or TypeError unless the thetas and settings of a training record can be used."""
    for name in ("tasks", "displaced"):
        thetas = record.get(name, [])
        np.asarray(thetas, float).reshape(len(thetas), len(problem.parameters))
    for name in ("settings", "versions"):
        if not isinstance(record.get(name, {}), Mapping):
            raise TypeError(f"{name} is {record[name]!r:.50}")


def _benchmark(path: Path, name: str | None, description: Mapping[str, Any]) -> Problem:
    if name in BENCHMARKS:
        return BENCHMARKS[name](**description["options"])
    raise SurrogateError(
        f"{path} is of a problem of your own, {description['class']}. Load it with that problem: "
        f"clpinn.load({str(path)!r}, problem={description['class']}())."
    )


def _blank(problem: Problem, header: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a file, with arrays of the right shapes; corrections are left out."""
    network, way = make(problem, Architecture(**header["network"]), None), header["way"]
    if not header["heads"] or way == WAY:
        return {"network": network, "heads": None}
    width, always = header.get("width"), bool(header.get("always", False))  # files of before have none
    return {"network": network, "heads": Heads.blank(problem, network, way, header["heads"], width, always)}
