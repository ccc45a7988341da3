"""Points of a problem whose domain is a shape: inside, on pieces of the boundary, at sections.

A theta comes first, and then a point in the shape of that theta. So the density of thetas does not depend on the size
of the shape. Candidates are computed in JAX in double precision. Those that do not count are drawn again, so points are
exactly uniform.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.errors import DomainError, ProblemError
from clpinn.formulation.domain import Points
from clpinn.formulation.identity import Identity
from clpinn.formulation.problem import Problem
from clpinn.formulation.regions import At, Boundary, On
from clpinn.formulation.shaped import chosen_pieces, shape_of, spanned
from clpinn.formulation.thetas import theta_text
from clpinn.keys import Key, fold_in, generator, make_key, split
from clpinn.shapes import points
from clpinn.shapes.points import Candidate, Samples

TRIES = 20_000
"""Candidates per point at most: where fewer than about one in 1000 counts, a domain or piece counts as empty."""
FEW_TRIES = 200
"""Candidates per point after which as many are drawn at a time as are allowed."""
LARGEST = 8192
"""Candidates of one compiled call at most."""
FEWEST = 256
"""Candidates of one compiled call at least, and candidates that are computed at the same time."""
SAMPLES = {2: 4096, 3: 96}
"""Samples of a piece along each of its directions, by the number of coordinates of the shape."""
CHECKED_THETAS = 64
"""Thetas whose shape is checked before training, besides the corners of the box and its centre."""
PLACE_POINTS = 1024
"""Points of the boundary that show where a shape lies, if the box around it leaves the box of coordinates."""
OVERHANG = 1e-6
"""A shape may reach beyond the box of the coordinates by this fraction of it."""

Region = str | At | On
"""Where points are drawn: "inside", "near" the boundary, at a section, or on pieces of the boundary."""


def inside_points(problem: Problem, thetas: Points, key: Key, edge_share: float = 0.0) -> Points:
    """A point inside the domain of each theta (rows, parameters): (rows, coordinates).

    The first `edge_share` of them are denser towards the boundary, and towards both ends of time.
    """
    edges = int(edge_share * len(thetas))
    space = [_drawn(problem, "near", thetas[:edges], key)[0]] if edges else []
    space.append(_drawn(problem, "inside", thetas[edges:], fold_in(key, 1))[0])
    samplers = np.arange(len(thetas)) < edges
    return _with_time(problem, np.concatenate(space), None, fold_in(key, 2), samplers)


def region_points(problem: Problem, region: At | Boundary | On, thetas: Points, key: Key) -> Points:
    """A point of the region at each theta, (rows, coordinates); on pieces of the boundary with the normal behind it."""
    if isinstance(region, Boundary):
        if region.names != ("t",):
            raise DomainError(
                f"boundary({', '.join(map(repr, region.names))}) is for domains that are boxes. Name pieces of the "
                'boundary instead, as in cl.on("left", "right"), or give none for all of it: cl.on().'
            )
        axis = problem.coordinates["t"]
        ends = np.where(np.arange(len(thetas)) % 2 == 0, axis.low, axis.high)
        return _with_time(problem, _drawn(problem, "inside", thetas, key)[0], ends, key)
    problem.coordinates.require([name for name, _ in (*region.fixed, *region.parts)])
    fixed_time = dict(region.fixed).get("t")
    in_space = [name for name, _ in (*region.fixed, *region.parts) if name != "t"]
    kind: Region = region if isinstance(region, On) or in_space else "inside"
    x, normals = _drawn(problem, kind, thetas, key)
    time = None if fixed_time is None else np.full(len(x), fixed_time)
    drawn = _with_time(problem, x, time, fold_in(key, 2), part=dict(region.parts).get("t"))
    return np.concatenate([drawn, normals], axis=1) if isinstance(region, On) else drawn


def boundary_samples(problem: Problem, region: On, theta: Float[np.ndarray, " parameters"]) -> Samples:
    """Points all along the named pieces of the boundary at a theta, and the length or area that each stands for."""
    with jax.enable_x64(True):
        samples = jax.tree.map(np.asarray, _samples(Identity(problem), region, np.asarray(theta, float)))
    counts = samples.measure > 0
    for name, (low, high) in region.parts:
        if name != "t":
            along = samples.x[:, spanned(problem).index(name)]
            counts &= (low <= along) & (along <= high)
    return Samples(*(rows[counts] for rows in samples))


@partial(jax.jit, static_argnums=(0, 1))
def _samples(identity: Identity, region: On, theta: Array) -> Samples:
    shape = shape_of(identity.problem, theta)
    side = (np.arange(SAMPLES[shape.space]) + 0.5) / SAMPLES[shape.space]
    units = np.stack([axis.ravel() for axis in np.meshgrid(*[side] * (shape.space - 1), indexing="ij")], axis=1)
    return points.boundary_samples(*chosen_pieces(shape, region.names), jnp.asarray(units))


def term_points(problem: Problem, region: At | Boundary | On | None, thetas: Points, key: Key) -> Points:
    """A point of a region for each theta, without a region of the domain's inside. For boxes and for shapes."""
    if problem.domain is not None:
        if region is None:
            return inside_points(problem, thetas, key)
        return region_points(problem, region, thetas, key)
    box = problem.coordinates
    drawn = box.sample(len(thetas), key) if region is None else region.sample(box, len(thetas), key)
    return np.resize(drawn, (len(thetas), drawn.shape[1]))  # a region may be a single point


def _with_time(
    problem: Problem,
    space: Points,
    time: np.ndarray | None,
    key: Key,
    at_ends: np.ndarray | None = None,
    part: tuple[float, float] | None = None,
) -> Points:
    """Points in space as points of all coordinates. A time that is not given is drawn, of some rows near its ends."""
    if "t" not in problem.coordinates.names:
        return space
    if time is None:
        unit = generator(key).random(len(space))
        if at_ends is not None:
            unit = np.where(at_ends, 0.5 - 0.5 * np.cos(np.pi * unit), unit)
        axis = problem.coordinates["t"]
        time = axis.from_unit(unit) if part is None else part[0] + unit * (part[1] - part[0])
    columns = dict(zip(spanned(problem), space.T, strict=True)) | {"t": time}
    return np.stack([columns[name] for name in problem.coordinates], axis=1)


def _drawn(problem: Problem, region: Region, thetas: Points, key: Key) -> tuple[Points, Points]:
    """A point in space and its normal for each theta, both (rows, space)."""
    identity, space, random = Identity(problem), len(spanned(problem)), generator(key)
    x, normal = np.empty((len(thetas), space)), np.empty((len(thetas), space))
    missing, tries = np.arange(len(thetas)), 0
    while len(missing) and tries < TRIES:
        for rows in np.array_split(missing, -(-len(missing) // LARGEST)):
            # Few rows get several candidates each.
            least = FEWEST if tries < FEW_TRIES else LARGEST
            size = min(LARGEST, max(least, 1 << (len(rows) - 1).bit_length()))
            repeats = size // len(rows)
            at = np.resize(np.arange(len(rows)), size)
            units, of_candidates = np.zeros((LARGEST, space + 2)), np.zeros((LARGEST, thetas.shape[1]))
            units[:size], of_candidates[:size] = random.random((size, space + 2)), thetas[rows][at]
            with jax.enable_x64(True):
                computed = _candidates(identity, region, units, of_candidates, size // FEWEST)
            found = jax.tree.map(lambda array, size=size: np.asarray(array)[:size], computed)
            accepted = np.flatnonzero(found.counts)[::-1]  # of several candidates the first one is kept
            x[rows[at[accepted]]], normal[rows[at[accepted]]] = found.x[accepted], found.normal[accepted]
            done = np.zeros(len(thetas), bool)
            done[rows[at[accepted]]] = True
            missing = missing[~done[missing]]
        tries += repeats
    if len(missing):
        raise DomainError(_empty(problem, region, thetas[missing[0]]))
    return x, normal


@partial(jax.jit, static_argnums=(0, 1))
def _candidates(identity: Identity, region: Region, units: Array, thetas: Array, chunks: int) -> Candidate:
    """LARGEST candidates, of which the first `chunks` times FEWEST are computed: one program for any number."""

    def fill(i: Array, found: Candidate) -> Candidate:
        rows = [jax.lax.dynamic_slice_in_dim(array, i * FEWEST, FEWEST) for array in (units, thetas)]
        computed = jax.vmap(partial(_candidate, identity.problem, region))(*rows)
        return jax.tree.map(lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, i * FEWEST, axis=0), found, computed)

    space = units.shape[1] - 2
    empty = Candidate(jnp.zeros((LARGEST, space)), jnp.zeros((LARGEST, space)), jnp.zeros(LARGEST, bool))
    return jax.lax.fori_loop(0, chunks, fill, empty)


def _candidate(problem: Problem, region: Region, unit: Array, theta: Array) -> Candidate:
    shape, names = shape_of(problem, theta), spanned(problem)
    if region == "inside":
        return points.inside(shape, unit[: shape.space])
    if region == "near":
        return points.near_boundary(shape, unit)
    assert isinstance(region, At | On)
    parts = {names.index(name): ends for name, ends in region.parts if name != "t"}
    fixed = {names.index(name): value for name, value in region.fixed if name != "t"}
    if isinstance(region, At):
        return points.section(shape, fixed, parts, unit[: shape.space])
    found = points.on_boundary(*chosen_pieces(shape, region.names), unit[:-1])
    within = [(ends[0] <= found.x[axis]) & (found.x[axis] <= ends[1]) for axis, ends in parts.items()]
    return found._replace(counts=jnp.all(jnp.stack([found.counts, *within])))


def _empty(problem: Problem, region: Region, theta: Float[np.ndarray, " parameters"]) -> str:
    at = f" at {theta_text(problem.parameters, theta)}" if len(problem.parameters) else ""
    if isinstance(region, str):
        return (
            f"The domain of {type(problem).__name__} is empty{at}, or far smaller than the box around it. Change the "
            "shape, or narrow the box of parameters."
        )
    label = f"on({', '.join(map(repr, region.names))})" if isinstance(region, On) else "at(...)"
    return (
        f"{label} has no points{at}: no such piece is left on the boundary of the domain, or it is outside. Change the "
        "shape or the condition, or narrow the box of parameters."
    )


# Checks before training --------------------------------------------------------------------------------------------


def checked_thetas(problem: Problem) -> Points:
    """The thetas whose shape is checked."""
    box = problem.parameters
    some = [box.corners(), box.centre[None], box.sample(CHECKED_THETAS, make_key(0), "uniform")]
    return np.concatenate(some) if len(box) else np.zeros((1, 0))


def check_domain(problem: Problem) -> None:
    """Raise an error if the shape is wrong at some theta: its numbers, its place, an empty domain, a vanished piece."""
    if problem.domain is None:
        return
    if problem.place is not None:
        raise ProblemError(
            f"{type(problem).__name__} has both a domain and place. Draw the domain as a shape, or map a box by place."
        )
    box, thetas = problem.parameters, checked_thetas(problem)
    axes = [problem.coordinates[name] for name in spanned(problem)]
    if any(axis.scale == "periodic" for axis in axes):
        raise ProblemError("A shape cannot lie in a periodic coordinate. Use a linear one.")
    for theta in thetas:
        with jax.enable_x64(True):
            shape = shape_of(problem, jnp.asarray(theta))
            at = f" at {theta_text(box, theta)}" if len(box) else ""
            mistake = shape.mistake()
            if mistake is not None:
                raise DomainError(f"The domain of {type(problem).__name__} is wrong{at}: {mistake}.")
            low, high = map(np.asarray, shape.bounds)
        _check_place(problem, theta, low, high)
    first, second = split(make_key(1))
    _drawn(problem, "inside", thetas, first)
    for condition in problem.conditions:
        region = getattr(condition, "on", None)
        if isinstance(region, On):
            for name in region.names or (None,):
                part = On((name,) if name else (), region.fixed, region.parts)
                _drawn(problem, part, thetas, second)
        elif region is not None:
            region_points(problem, region, thetas, second)


def _check_place(problem: Problem, theta: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Raise an error if the shape of a theta, in a box from low to high, leaves the box of coordinates."""
    names = spanned(problem)
    axes = [problem.coordinates[name] for name in names]
    at = f" at {theta_text(problem.parameters, theta)}" if len(problem.parameters) else ""
    if not np.isfinite([low, high]).all():
        raise DomainError(
            f"The domain of {type(problem).__name__} may be infinite{at}: there is no finite box around it. Combine "
            "half-planes by & with a shape that is finite, such as cl.Rectangle."
        )
    lowest, highest = np.array([axis.low for axis in axes]), np.array([axis.high for axis in axes])
    slack = OVERHANG * (highest - lowest)
    if np.all((lowest - slack <= low) & (high <= highest + slack)):
        return
    # The box around a combined or turned shape may be larger than the shape: points of its boundary decide.
    x, _ = _drawn(problem, On(()), np.tile(theta, (PLACE_POINTS, 1)), make_key(2))
    low, high = np.min(x, axis=0), np.max(x, axis=0)
    for i, (name, axis) in enumerate(zip(names, axes, strict=True)):
        if not (axis.low - slack[i] <= low[i] and high[i] <= axis.high + slack[i]):
            raise DomainError(
                f"The domain of {type(problem).__name__} reaches from about {low[i]:.4g} to {high[i]:.4g} along "
                f"{name}{at}, outside the box of coordinates [{axis.low:g}, {axis.high:g}]. Widen that box, or change "
                "the shape."
            )
