"""Adaptation: a trained network made sharper at one theta, by the equations there.

By default what is trained is a residual head: a small network on the frozen one's last features that starts at zero and
adds to the raw outputs inside the hard transform. Other ways belong to the rival methods (see `WAYS`). Many thetas are
fitted in one compiled computation, by Levenberg-Marquardt or by the paper's Adam steps. Whether the result is used is
decided by what it was not fitted to: the physics loss on points of their own, and an estimate of the error that is left
(see `Heads`).
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from clpinn.calculus.jets import Jet, tanh
from clpinn.errors import ProblemError
from clpinn.formulation.domain import Points
from clpinn.formulation.problem import Condition, Identity, Problem, checked_thetas, theta_features, values
from clpinn.networks.architecture import precision
from clpinn.networks.hyperpinn import HyperPINN
from clpinn.networks.layers import Linear, Output
from clpinn.networks.metapinn import MetaPINN
from clpinn.networks.p2inn import P2INN
from clpinn.training.rows import Batch, Pool, Rows, with_derivatives

ROWS = 1024
"""Residual rows a head is fitted to, and as many that it is judged by."""
TOGETHER = 8
"""Thetas in one computation, where memory allows it."""
MEMORY_SHARE = 0.5
"""Share of the memory that is free that a computation may take."""
MOST_STEPS, LEAST_PROGRESS = 20, 1e-3
"""A fit ends after so many steps, or when an accepted one lowers the loss by less than this share."""
FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e-12, 1e6
"""Relative to the diagonal of JᵀJ."""
LEAST_SIZE = 1e-6
"""The least norm of a parameter's column of the Jacobian that damping goes by, relative to the largest."""
DAMPINGS = np.array([0.01, 0.1, 1.0, 10.0])
"""What is tried at each step, relative to the damping of the step before."""
JUDGING_DAMPING = 1e-8
"""The same, for the estimate of the error that is left."""
MARGIN = 0.8
"""What the estimated error must fall to, relative to the base's: an estimate errs, too."""
ADAM_STEPS, ADAM_RATE = 500, 1e-3
"""The paper's number of steps; it does not state the learning rate."""


# What is trained ---------------------------------------------------------------------------------------------


class Way(Protocol):
    """What an adaptation trains: where it starts at a theta, and the network it makes."""

    base: Any

    def start(self, theta: Float[Array, " parameters"], key: Array) -> Any: ...

    def network(self, online: Any) -> Any: ...

    def frozen(self, coordinates: Jet, parameters: Jet) -> tuple[Jet, ...]:
        """What training leaves as it is at a point, so that it is computed once and not at every step."""
        ...

    def raw(self, online: Any, coordinates: Jet, parameters: Jet, frozen: tuple[Jet, ...]) -> Jet:
        """The network's outputs at a point, given what is frozen there."""
        ...


class OnWeights:
    """Weights of all layers are trained: nothing is frozen."""

    def network(self, online: Any) -> Any:
        return online

    def frozen(self, coordinates: Jet, parameters: Jet) -> tuple[Jet, ...]:
        return ()

    def raw(self, online: Any, coordinates: Jet, parameters: Jet, frozen: tuple[Jet, ...]) -> Jet:
        return self.network(online)(coordinates, parameters)


class Head(eqx.Module):
    """One hidden layer, half as wide as there are features, and an output layer that is zero at the start."""

    hidden: Linear
    output: Output

    def __init__(self, base: Any, outputs: int, key: Array):
        features, dtype = base.architecture.width, precision(base)
        width = max(1, features // 2)
        self.hidden = Linear(features, width, key, dtype)
        output = Output(width, outputs, key, dtype)
        own = getattr(base, "output", None)
        amplitude = own.amplitude if isinstance(own, Output) else output.amplitude
        self.output = eqx.tree_at(lambda o: (o.weight, o.amplitude), output, (jnp.zeros_like(output.weight), amplitude))

    def __call__(self, features: Any) -> Any:
        return self.output(tanh(self.hidden(features)))


class Adapted(eqx.Module):
    """A frozen network with a head."""

    base: Any
    head: Head

    def __call__(self, coordinates: Any, parameters: Any) -> Any:
        return self.base(coordinates, parameters) + self.head(self.base.shared(coordinates, parameters))


class OnHead:
    """A residual head on the frozen network: the paper's way, and the default."""

    def __init__(self, problem: Problem, base: Any):
        self.base, self.outputs = base, len(problem.outputs)

    def start(self, theta: Float[Array, " parameters"], key: Array) -> Head:
        return Head(self.base, self.outputs, key)

    def network(self, online: Head) -> Adapted:
        return Adapted(self.base, online)

    def frozen(self, coordinates: Jet, parameters: Jet) -> tuple[Jet, ...]:
        return self.base(coordinates, parameters), self.base.shared(coordinates, parameters)

    def raw(self, online: Head, coordinates: Jet, parameters: Jet, frozen: tuple[Jet, ...]) -> Jet:
        base, features = frozen
        return base + online(features)


class OnAll(OnWeights):
    """All weights: the whole network becomes that theta's."""

    def __init__(self, problem: Problem, base: Any):
        self.base = base

    def start(self, theta: Float[Array, " parameters"], key: Array) -> Any:
        return self.base


class Modulation(eqx.Module):
    """The singular values of P2INN's decoder layers, and its shift."""

    values: Float[Array, "layers width"]
    shift: Linear


class OnSingularValues(OnWeights):
    """P2INN's own way: only the singular values of its decoder's layers and the linear shift are trained."""

    def __init__(self, problem: Problem, base: Any):
        if not isinstance(base, P2INN):
            raise ProblemError(f"Only a p2inn is adapted by its singular values, and this is a {type(base).__name__}.")
        self.base = base
        weights = jnp.stack([layer.weight for layer in base.decoder])
        self.left, self.values, self.right = jnp.linalg.svd(weights)

    def start(self, theta: Float[Array, " parameters"], key: Array) -> Modulation:
        return Modulation(self.values, self.base.shift)

    def network(self, online: Modulation) -> P2INN:
        weights = (self.left * online.values[:, None, :]) @ self.right
        return eqx.tree_at(
            lambda n: (*(layer.weight for layer in n.decoder), n.shift), self.base, (*weights, online.shift)
        )


class OnTarget(OnWeights):
    """All weights of the network that a HyperPINN or Meta-PINN makes for the theta."""

    def __init__(self, problem: Problem, base: Any):
        if not isinstance(base, HyperPINN | MetaPINN):
            raise ProblemError(
                f"Only a hyperpinn or metapinn makes a network for each theta, and this is a {type(base).__name__}."
            )
        self.base, self.problem = base, problem

    def start(self, theta: Float[Array, " parameters"], key: Array) -> Any:
        return self.base.target(theta_features(self.problem, theta))


WAYS: dict[str, Callable[[Problem, Any], Way]] = {
    "head": OnHead,
    "full": OnAll,
    "svd": OnSingularValues,
    "target": OnTarget,
}
"""What can be trained at a theta, by its name on the command line."""

WayName = Literal["head", "full", "svd", "target"]
Optimizer = Literal["lm", "adam"]


# What comes of it --------------------------------------------------------------------------------------------


class Heads(eqx.Module):
    """What was trained at several thetas, stacked, and what was found about each.

    Losses are mean squares of scaled residuals at points that the head was not fitted to. The error that is left is
    estimated there too: the linearised equations are solved for the change of the head that would remove the
    residuals, and the outputs' change, relative to the outputs, is the estimate; for the base it is the change from the
    base to there. A head is used where its loss is below the base's, and its estimate well below (`MARGIN`).
    """

    thetas: Points
    heads: Any
    loss_before: Float[np.ndarray, " thetas"]
    loss_after: Float[np.ndarray, " thetas"]
    error_before: Float[np.ndarray, " thetas"]
    error_after: Float[np.ndarray, " thetas"]
    steps: Float[np.ndarray, " thetas"]
    way: str = eqx.field(static=True, default="head")

    @staticmethod
    def blank(problem: Problem, base: Any, way: str, count: int) -> "Heads":
        """Heads of a number of thetas with nothing in them."""
        theta = jnp.zeros(len(problem.parameters))
        one = WAYS[way](problem, base).start(theta, jax.random.key(0))
        stacked = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), one)
        thetas: Any = jnp.zeros((count, len(problem.parameters)))
        names = ("loss_before", "loss_after", "error_before", "error_after", "steps")
        figures: dict[str, Any] = {name: jnp.zeros(count) for name in names}
        return Heads(thetas, stacked, **figures, way=way)

    def joined(self, others: "Heads") -> "Heads":
        """These heads and others, which take the place of those at the same thetas."""
        if self.way != others.way:
            raise ProblemError(
                f"A surrogate with heads adapted by {self.way!r} cannot take some by {others.way!r}. Adapt the base."
            )
        kept = ~np.any(np.all(self.thetas[:, None] == others.thetas, axis=2), axis=1)
        return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[kept], np.asarray(b)]), self, others)

    @property
    def used(self) -> np.ndarray:
        return (self.loss_after < self.loss_before) & (self.error_after < MARGIN * self.error_before)

    def reason(self, i: int) -> str:
        """Why the head of a theta is used, or not."""
        losses = f"the physics loss goes from {self.loss_before[i]:.1e} to {self.loss_after[i]:.1e}"
        errors = f"the estimated error from {self.error_before[i]:.1e} to {self.error_after[i]:.1e}"
        verdict = "The head is used" if self.used[i] else "The head is not used, the base stays"
        return f"{verdict}: on points of their own {losses}, {errors}, which must fall by a fifth."

    def network(self, problem: Problem, base: Any, i: int, always: bool = False) -> Any:
        """The base with the head of a theta, or the base alone where that is not used (unless `always`)."""
        if not (self.used[i] or always):
            return base
        with jax.enable_x64(precision(base) == jnp.float64):
            return WAYS[self.way](problem, base).network(jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), self.heads))


def adapt(
    problem: Problem,
    base: Any,
    thetas: Points,
    key: Array,
    progress: Callable[[int, int], None] = lambda done, of: None,
    way: WayName = "head",
    optimizer: Optimizer = "lm",
    steps: int | None = None,
    together: int = TOGETHER,
) -> Heads:
    """Adaptations of a trained network at these thetas (rows, parameters), in double precision whatever its own.

    `steps` bounds a fit (at most 20 of Levenberg-Marquardt, exactly 500 of Adam, unless given). `together` thetas are
    fitted at once, or fewer where memory does not allow as many.
    """
    thetas = checked_thetas(problem, thetas, forbid_outside=True)
    if len(thetas) == 0:
        raise ProblemError("Thetas to adapt to need at least one row, but got none.")
    if way not in WAYS or optimizer not in ("lm", "adam"):
        raise ProblemError(
            f"An adaptation trains one of {', '.join(WAYS)} by lm or adam, but got {way!r} by {optimizer!r}."
        )
    if together < 1 or (steps is not None and steps < 1):
        raise ProblemError(f"An adaptation needs at least one theta and one step, but got {together} and {steps}.")
    dtype = precision(base)
    with jax.enable_x64(True):
        base = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), base)
        chosen = WAYS[way](problem, base)
        rows, solve = _compiled(Identity(problem), way, optimizer, steps)
        scales = rows.scales(base, jax.random.fold_in(key, 0))
        size = sum(leaf.size for leaf in jax.tree.leaves(chosen.start(jnp.asarray(thetas[0]), key)))
        together = min(together, len(thetas), _room(ROWS, size))
        found = []
        for start in range(0, len(thetas), together):
            # The last ones are filled up, so that nothing is compiled anew.
            block = np.resize(thetas[start : start + together], (together, thetas.shape[1]))
            drawn = []
            for i, theta in enumerate(block):
                fit_key, judge_key, head_key = jax.random.split(jax.random.fold_in(key, 1 + start + i), 3)
                pool = Pool(theta[None], np.ones(1))
                # Robust: what the head cannot remove is not to decide about the rest.
                judged = rows.draw(base, judge_key, scales, pool, robust=True)
                if optimizer == "lm":
                    fitted = rows.draw(base, fit_key, scales, pool, robust=True)
                else:  # the paper's points and weights, on no common scale
                    fitted = rows.uniform(fit_key, _paper_points(problem, rows), rows.unscaled(), pool)
                head = chosen.start(jnp.asarray(theta), head_key)
                drawn.append((head, rows.without_data(fitted), rows.without_data(judged)))
            stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *part) for part in zip(*drawn)]
            kept = min(together, len(thetas) - start)
            found.append(jax.tree.map(lambda leaf, kept=kept: np.asarray(leaf)[:kept], solve(base, *stacked)))
            progress(start + kept, len(thetas))
        heads, figures = jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)
        return Heads(thetas, jax.tree.map(lambda leaf: np.asarray(leaf, dtype), heads), **figures, way=way)


@lru_cache(maxsize=8)
def _compiled(identity: Identity, way: str, optimizer: str, steps: int | None) -> tuple[Rows, Callable[..., Any]]:
    """The rows of a problem, and the fit and judgement of stacked heads: compiled once for all bases of one shape."""
    problem = identity.problem
    rows = Rows(problem, ROWS, jnp.float64)
    fit = _levenberg_marquardt(steps or MOST_STEPS) if optimizer == "lm" else _adam(steps or ADAM_STEPS)

    def solve(base: Any, *stacked: Any) -> Any:
        return jax.vmap(_solver(rows, problem, WAYS[way](problem, base), fit))(*stacked)

    return rows, jax.jit(solve)


def _paper_points(problem: Problem, rows: Rows) -> dict[str, int]:
    """As many points of each term as the problem states."""
    counts = {one.name: one.points for one in problem.conditions if isinstance(one, Condition)}
    return {name: counts.get(name, count) for name, count in rows.points.items()} | {
        "interior": problem.interior.points
    }


def _room(rows: int, parameters: int) -> int:
    """How many thetas fit into memory at once: the Jacobian of each, what it is made from, and the normal matrix."""
    each = 8 * (4 * rows * parameters + 2 * min(rows, parameters) ** 2)
    return max(1, math.floor(MEMORY_SHARE * free_memory() / each))


def free_memory() -> int:
    """Bytes of memory that are free, as far as the system tells; 4 GiB where it does not."""
    try:
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 * 1024**3


# Fits --------------------------------------------------------------------------------------------------------

Fit = Callable[[Callable[[Array], Array], Callable[[Array], tuple[Array, Array]], Array], tuple[Array, Array]]
"""From a loss, residuals with their Jacobian, and a start: the end, and the steps it took."""


class _State(eqx.Module):
    """The state of a Levenberg-Marquardt fit."""

    flat: Float[Array, " parameters"]
    value: Float[Array, ""]
    damping: Float[Array, ""]
    steps: Float[Array, ""]
    done: Bool[Array, ""]


def _levenberg_marquardt(most: int) -> Fit:
    def fit(loss: Callable[[Array], Array], linearised: Callable[[Array], tuple[Array, Array]], first: Array):
        def step(state: _State) -> _State:
            change = partial(_change, *linearised(state.flat))
            # Solutions cost little beside the Jacobian, so that several dampings are tried.
            dampings = jnp.maximum(state.damping * DAMPINGS, LEAST_DAMPING)
            moved = state.flat + jax.vmap(change)(dampings)
            found = jax.vmap(loss)(moved)
            best = jnp.argmin(jnp.where(jnp.isfinite(found), found, jnp.inf))
            value, better = found[best], found[best] < state.value  # not where it is not a number
            little = better & (value > (1 - LEAST_PROGRESS) * state.value)
            damping = jnp.where(better, dampings[best], 10 * dampings[-1])
            return _State(
                jnp.where(better, moved[best], state.flat),
                jnp.where(better, value, state.value),
                damping,
                state.steps + 1,
                little | (damping > MOST_DAMPING),
            )

        start = _State(first, loss(first), jnp.asarray(FIRST_DAMPING), jnp.zeros(()), jnp.array(False))
        end = jax.lax.while_loop(lambda state: ~state.done & (state.steps < most), step, start)
        return end.flat, end.steps

    return fit


def _change(residual: Array, jacobian: Array, damping: Array) -> Array:
    """The damped Gauss-Newton step, in the space of parameters or of rows, whichever is smaller.

    Parameters are damped in proportion to what they do (Marquardt 1963). What a head adds is small, and so are the
    derivatives by its hidden weights: damped alike they would never move.
    """
    rows, parameters = jacobian.shape
    size = jnp.linalg.norm(jacobian, axis=0)
    size = jnp.maximum(size, LEAST_SIZE * jnp.max(size))
    jacobian = jacobian / jnp.where(size > 0, size, 1.0)
    if parameters > rows:
        kernel = jacobian @ jacobian.T + damping * jnp.eye(rows, dtype=jacobian.dtype)
        change = -jacobian.T @ jax.scipy.linalg.solve(kernel, residual, assume_a="pos")
    else:
        normal = jacobian.T @ jacobian + damping * jnp.eye(parameters, dtype=jacobian.dtype)
        change = -jax.scipy.linalg.solve(normal, jacobian.T @ residual, assume_a="pos")
    return change / jnp.where(size > 0, size, 1.0)


def _adam(steps: int) -> Fit:
    optimizer = optax.adam(ADAM_RATE)

    def fit(loss: Callable[[Array], Array], linearised: Callable[[Array], tuple[Array, Array]], first: Array):
        def step(carry: Any, _: None) -> tuple[Any, None]:
            flat, state = carry
            update, state = optimizer.update(jax.grad(loss)(flat), state)
            return (flat + update, state), None

        (flat, _), _ = jax.lax.scan(step, (first, optimizer.init(first)), length=steps)
        return flat, jnp.asarray(float(steps))

    return fit


def _solver(rows: Rows, problem: Problem, way: Way, fit: Fit) -> Callable[..., Any]:
    """The fit of one head to a batch, and what another batch says about it."""

    def solve(head: Any, fitted: dict[str, Batch], judged: dict[str, Batch]) -> tuple[Any, dict[str, Array]]:
        first, unflatten = ravel_pytree(head)

        def residuals(name: str, flat: Array, point: Batch, frozen: Streams) -> Array:
            return rows.at(name, _thawed(way, unflatten(flat), frozen), point)

        def with_frozen(batch: dict[str, Batch]) -> dict[str, tuple[Batch, Streams]]:
            return {name: (part, jax.vmap(partial(_frozen, rows, way, name))(part)) for name, part in batch.items()}

        def loss(batch: dict[str, tuple[Batch, Streams]], flat: Array) -> Array:
            found = [jax.vmap(partial(residuals, name, flat))(*part) for name, part in batch.items()]
            return sum((jnp.sum(part**2) for part in found), jnp.zeros(()))

        def linearised(batch: dict[str, tuple[Batch, Streams]], flat: Array) -> tuple[Array, Array]:
            found, slopes = [], []
            for name, part in batch.items():

                def one(point: Batch, frozen: Streams, name=name) -> tuple[Array, Array]:
                    return with_derivatives(lambda flat: residuals(name, flat, point, frozen), flat)

                rows_of, slopes_of = jax.vmap(one)(*part)
                found.append(rows_of.reshape(-1))
                slopes.append(slopes_of.reshape(-1, len(flat)))
            return jnp.concatenate(found), jnp.concatenate(slopes)

        fit_to, judge_by = with_frozen(fitted), with_frozen(judged)
        end, steps = fit(partial(loss, fit_to), partial(linearised, fit_to), first)
        points = judged["interior"]

        def outputs(flat: Array) -> Array:
            network = way.network(unflatten(flat))
            found = jax.vmap(lambda x, theta: values(problem, network, x, theta))(points.x, points.theta)
            return jnp.stack(list(found.values()))

        left = _change(*linearised(judge_by, end), jnp.asarray(JUDGING_DAMPING))
        now, change = jax.jvp(outputs, (end,), (left,))
        best = now + change
        size = jnp.linalg.norm(best, axis=1)

        def distance(one: Array) -> Array:
            return jnp.max(jnp.linalg.norm(one - best, axis=1) / size)

        return unflatten(end), {
            "loss_before": loss(judge_by, first),
            "loss_after": loss(judge_by, end),
            "error_before": distance(outputs(first)),
            "error_after": distance(now),
            "steps": steps,
        }

    return solve


# What is frozen ----------------------------------------------------------------------------------------------

Streams = list[dict[int, Array]]
"""The streams of some jets, each by its place among the keys that are tracked."""


def _frozen(rows: Rows, way: Way, name: str, point: Batch) -> Streams:
    """What training leaves as it is at a point of a term."""
    found: Streams = []

    def network(coordinates: Jet, parameters: Jet) -> Jet:
        places = {key: place for place, key in enumerate(coordinates.keep)}
        for jet in way.frozen(coordinates, parameters):
            found.append({places[key]: stream for key, stream in jet.streams.items()})
        return way.base(coordinates, parameters)

    rows.at(name, network, point)
    return found


def _thawed(way: Way, online: Any, frozen: Streams) -> Callable[[Jet, Jet], Jet]:
    """The network at the point where `frozen` was found, as a function of what is trained."""

    def network(coordinates: Jet, parameters: Jet) -> Jet:
        keys = list(coordinates.keep)
        jets = [Jet({keys[place]: stream for place, stream in one.items()}, coordinates.keep) for one in frozen]
        return way.raw(online, coordinates, parameters, tuple(jets))

    return network
