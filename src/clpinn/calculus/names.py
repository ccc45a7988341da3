"""Names of derivatives: what `d.u_xx` in a residual means."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from clpinn.calculus.jets import Index
from clpinn.errors import ProblemError


class Derivatives:
    """The argument `d` of a residual: `d.u`, `d.u_t`, `d.v_xy`. A name is looked up when it is used."""

    def __init__(self, lookup: Callable[[str], Array]):
        self._lookup = lookup

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._lookup(name)

    __getitem__ = __getattr__


def requested(function: Callable[[Derivatives], Any], parse: Callable[[str], Any]) -> list[str]:
    """The derivative names that `function(d)` uses, recorded in one abstract trace."""
    names: dict[str, None] = {}

    def record(name: str) -> Array:
        parse(name)
        names[name] = None
        return jnp.zeros(())

    jax.eval_shape(lambda: function(Derivatives(record)))
    return list(names)


@cache
def parse_name(name: str, outputs: tuple[str, ...], axes: tuple[str, ...]) -> tuple[str, Index]:
    """Split a derivative's name into output and index: "u_xxt" is ("u", (2, 1)) for the axes (x, t).

    Axis names may have several letters ("u_x1x2"). Underscores between axis names are allowed. They are required where
    a name can be read in two ways.
    """
    if name in outputs:
        return name, (0,) * len(axes)
    candidates = [output for output in outputs if name.startswith(output + "_")]
    readings = {
        (output, tuple(tokens.count(axis) for axis in axes))
        for output in candidates
        for tokens in _tokens(name[len(output) + 1 :], axes)
    }
    if len(readings) == 1:
        return readings.pop()
    if readings:
        raise ProblemError(
            f"d.{name} can be read in {len(readings)} ways for the axes {', '.join(axes)}. "
            "Put underscores between the axis names, or rename an axis."
        )
    if not candidates:
        raise ProblemError(
            f"d.{name} is not an output or a derivative of one. The outputs are {', '.join(outputs)}; "
            f"write d.{outputs[0]} or, for example, d.{outputs[0]}_{axes[0]}."
        )
    output = candidates[0]
    raise ProblemError(
        f"d.{name} differentiates {output} along {name[len(output) + 1 :]!r}, which is not made of axis "
        f"names. The axes are {', '.join(axes)}."
    )


def _tokens(text: str, axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All ways to split `text` into axis names."""
    if not text:
        return [()]
    splits = []
    for axis in axes:
        if text.startswith(axis):
            rest = text[len(axis) :]
            if rest.startswith("_") and len(rest) > 1:
                rest = rest[1:]
            splits += [(axis, *tail) for tail in _tokens(rest, axes)]
    return splits
