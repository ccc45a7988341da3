"""Intervals of a line in which something counts, cut into a fixed number of cells; strips of the plane made of them.

Everything is for one theta inside a traced computation: what does not fit into the fixed numbers is reported.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

BISECTIONS = 34
"""Halvings of the gap between two samples of which one counts."""
MARGIN = 1e-4
"""The first and the last sample of a smooth part are this fraction of it away from its ends."""


class Intervals(NamedTuple):
    """Intervals of a line; those of length zero are room for others."""

    start: Float[Array, " intervals"]
    length: Float[Array, " intervals"]
    fits: Bool[Array, ""]
    """Whether there was room for all."""


class Cells(NamedTuple):
    """Equal cells of intervals: which interval, and from which fraction of it over how much of it."""

    interval: Int[Array, " cells"]
    first: Float[Array, " cells"]
    size: Float[Array, " cells"]
    """Zero for cells that are left over."""


def gauss(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss' rule on the unit interval."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def first_true(mask: Bool[Array, " numbers"], room: int) -> Int[Array, " room"]:
    """The numbers of the first that are true; behind them the number of all. It compiles faster than nonzero."""
    size = len(mask)
    chosen = jnp.sort(jnp.where(mask, jnp.arange(size), size))[:room]
    return jnp.append(chosen, jnp.full(room - len(chosen), size))


def counting_intervals(
    counts: Callable[[Array], Bool[Array, ""]], breaks: Float[Array, " breaks"], samples: int, room: int
) -> Intervals:
    """The intervals of the unit interval that count, cut at `breaks`, too: sampled between them, ends by bisection."""
    ends = jnp.concatenate([jnp.zeros(1), jnp.asarray(breaks), jnp.ones(1)])
    places, number = _changes(jax.vmap(counts), ends, samples, room, BISECTIONS)
    return between(jnp.append(ends, places), counts, number <= room)


def _changes(
    kinds: Callable[[Array], Array], ends: Float[Array, " ends"], samples: int, room: int, halvings: int
) -> tuple[Float[Array, " room"], Int[Array, ""]]:
    """Places between ascending numbers where the kind of a number changes, by bisection, and how many there are.

    `kinds` gives those of several numbers. Places that are left over are one.
    """
    first, last, size = _gaps(ends, samples)
    found = kinds(jnp.concatenate([first, last])).reshape(2, -1)
    different = (found[0] != found[1]) & size
    changing = first_true(different, room) % len(different)
    like_first = found[0][changing]

    def halve(_: int, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = interval
        middle = (a + b) / 2
        left = kinds(middle) == like_first
        return jnp.where(left, middle, a), jnp.where(left, b, middle)

    places = jax.lax.fori_loop(0, halvings, halve, (first[changing], last[changing]))[0]
    number = jnp.sum(different)
    return jnp.where(jnp.arange(room) < number, places, 1.0), number


def _gaps(ends: Float[Array, " ends"], count: int) -> tuple[Array, Array, Bool[Array, " gaps"]]:
    """Equal gaps of the intervals between ascending numbers: where they begin and end, and which are real."""
    length = jnp.diff(ends)
    cell, _ = allotted(Intervals(ends[:-1], length, jnp.ones((), bool)), count + len(length))
    start, length = ends[cell.interval], length[cell.interval]
    first, last = (jnp.clip(share, MARGIN, 1 - MARGIN) for share in (cell.first, cell.first + cell.size))
    return start + length * first, start + length * last, cell.size > 0


def between(ends: Float[Array, " ends"], counts: Callable[[Array], Bool[Array, ""]], fits: Array) -> Intervals:
    """The intervals between numbers in any order whose middle counts."""
    ends = jnp.sort(ends)
    length = jnp.diff(ends)
    kept = jax.vmap(counts)(ends[:-1] + length / 2)
    return Intervals(ends[:-1], jnp.where(kept, length, 0.0), fits)


def allotted(intervals: Intervals, cells: int) -> tuple[Cells, Bool[Array, ""]]:
    """Cells for intervals: each gets one, longer ones more. Also whether each got one; else the shortest have none."""
    length = intervals.length
    if len(length) > cells:
        longest = jax.lax.top_k(length, cells)[1]
        length = jnp.zeros_like(length).at[longest].set(length[longest])
    number = jnp.sum(length > 0)
    more = jnp.floor((cells - number) * length / jnp.where(number > 0, jnp.sum(length), 1.0) * (1 - 1e-12))
    each = jnp.where(length > 0, 1 + more.astype(int), 0)
    until, cell = np.tri(len(length)) @ each, jnp.arange(cells)  # a product compiles faster than a cumulative sum
    interval = jnp.minimum(jnp.sum(until <= cell[:, None], axis=1), len(length) - 1)
    share = jnp.where(cell < until[-1], 1 / jnp.maximum(each[interval], 1), 0.0)
    first = (cell - until[interval] + each[interval]) * share
    return Cells(interval, first, share), jnp.sum(intervals.length > 0) <= cells


def line_rule(intervals: Intervals, cells: int, order: int = 2) -> tuple[Array, Array, Bool[Array, ""]]:
    """Nodes and weights on intervals, `order` of them in each of so many cells, and whether all intervals have some."""
    nodes, weights = gauss(order)
    cell, enough = allotted(intervals, cells)
    start, length = intervals.start[cell.interval, None], intervals.length[cell.interval, None]
    x = start + length * (cell.first[:, None] + cell.size[:, None] * nodes)
    return x.reshape(-1), (length * cell.size[:, None] * weights).reshape(-1), intervals.fits & enough


def strips_rule(
    slabs: Intervals, along: Callable[[Array], Intervals], across: int, cells: int, lines: int = 3
) -> tuple[Float[Array, "nodes 2"], Float[Array, " nodes"], Bool[Array, ""]]:
    """A rule over a part of the plane: lines across slabs of the first coordinate, each cut to what counts on it.

    `across` cells of the slabs have `lines` lines each, a line has `cells` cells. Lines are denser at both ends of a
    slab, where what counts on them may begin like a square root. Too many slabs become one.
    """
    many = jnp.sum(slabs.length > 0) > across
    low = jnp.min(jnp.where(slabs.length > 0, slabs.start, jnp.inf))
    whole = jnp.max(jnp.where(slabs.length > 0, slabs.start + slabs.length, -jnp.inf)) - low
    one = jnp.arange(len(slabs.start)) == 0
    start = jnp.where(many, jnp.where(one, low, 0.0), slabs.start)
    length = jnp.where(many, jnp.where(one, whole, 0.0), slabs.length)
    cell, _ = allotted(Intervals(start, length, slabs.fits), across)
    nodes, weights = gauss(lines)
    t = cell.first[:, None] + cell.size[:, None] * nodes
    v = (start[cell.interval, None] + length[cell.interval, None] * t**2 * (3 - 2 * t)).reshape(-1)
    weight = (length[cell.interval, None] * cell.size[:, None] * weights * 6 * t * (1 - t)).reshape(-1)
    w, shares, fits = jax.vmap(lambda value: line_rule(along(value), cells))(v)
    x = jnp.stack([jnp.broadcast_to(v[:, None], w.shape), w], axis=-1).reshape(-1, 2)
    return x, (weight[:, None] * shares).reshape(-1), jnp.all(fits | (weight == 0))


def critical_slabs(
    counts: Callable[[Array], Bool[Array, ""]], breaks: Float[Array, " breaks"], lines: int, samples: int, room: int
) -> Intervals:
    """Slabs of the unit square, by its first coordinate, in which what counts on a line does not change its kind.

    The kind is the number of its intervals, and whether they reach the ends of the line.
    """
    places = np.clip(np.linspace(0, 1, samples), MARGIN, 1 - MARGIN)

    def kind(v: Array) -> Array:
        kept = jax.vmap(lambda w: counts(jnp.stack([v, w])))(jnp.asarray(places))
        starts = jnp.sum(kept[1:] & ~kept[:-1])
        return 4 * starts + 2 * kept[0] + kept[-1]

    ends = jnp.concatenate([jnp.zeros(1), jnp.asarray(breaks), jnp.ones(1)])
    places, _ = _changes(lambda numbers: jax.lax.map(kind, numbers), ends, lines, room, BISECTIONS // 2)
    ends = jnp.sort(jnp.append(ends, places))
    middles = ends[:-1] + jnp.diff(ends) / 2
    return Intervals(ends[:-1], jnp.where(jax.lax.map(kind, middles) > 0, jnp.diff(ends), 0.0), jnp.ones((), bool))
