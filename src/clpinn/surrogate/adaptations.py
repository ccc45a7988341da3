"""What an adaptation at one theta trains, and the heads that come of it.

By default a residual head is trained: a small network on the frozen network's last features. It starts at zero and adds
to the raw outputs, inside the hard transform. Other adaptations belong to the methods to compare with.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.calculus.jets import Jet, tanh
from clpinn.errors import ProblemError
from clpinn.formulation.domain import Points
from clpinn.formulation.pointwise import theta_features
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import is_among
from clpinn.keys import Key
from clpinn.networks.architecture import count, precision
from clpinn.networks.generated import Generated
from clpinn.networks.layers import Linear, Output
from clpinn.networks.p2inn import P2INN
from clpinn.shown import html_table

MARGIN = 0.8
"""The estimated error of a head must be below this fraction of the base's: estimates are inexact, too."""


class Adaptation(Protocol):
    """What is trained at a theta ("online"), where it starts, and the network it makes of the base."""

    base: Any

    def start(self, theta: Float[Array, " parameters"], key: Key | None) -> Any:
        """What is trained, before the first step."""
        ...

    def network(self, online: Any) -> Any:
        """The network that answers at the theta."""
        ...

    def frozen(self, coordinates: Jet, parameters: Jet) -> tuple[Jet, ...]:
        """What training does not change at a point, so that it is computed once and not at every step."""
        ...

    def raw(self, online: Any, coordinates: Jet, parameters: Jet, frozen: tuple[Jet, ...]) -> Jet:
        """The network's raw outputs at a point, given what is frozen there."""
        ...


# Residual heads ----------------------------------------------------------------------------------------------


class Head(eqx.Module):
    """A hidden layer, by default half as wide as there are features, and an output layer that starts at zero."""

    hidden: Linear
    output: Output

    def __init__(self, base: Any, outputs: int, key: Key | None, width: int | None = None):
        features, dtype = base.architecture.width, precision(base)
        width = width or max(1, features // 2)
        self.hidden = Linear(features, width, key, dtype)
        output = Output(width, outputs, key, dtype)
        base_output = getattr(base, "output", None)
        amplitude = base_output.amplitude if isinstance(base_output, Output) else output.amplitude
        self.output = eqx.tree_at(lambda o: (o.weight, o.amplitude), output, (jnp.zeros_like(output.weight), amplitude))

    def __call__(self, features: Any) -> Any:
        return self.output(tanh(self.hidden(features)))


class Adapted(eqx.Module):
    """A frozen network with a head."""

    base: Any
    head: Head

    def __call__(self, coordinates: Any, parameters: Any) -> Any:
        return self.base(coordinates, parameters) + self.head(self.base.shared(coordinates, parameters))


class HeadAdaptation:
    """A residual head on the frozen network: the paper's adaptation, and the default."""

    def __init__(self, problem: Problem, base: Any, width: int | None = None):
        self.base, self.outputs, self.width = base, len(problem.outputs), width

    def start(self, theta: Float[Array, " parameters"], key: Key | None) -> Head:
        return Head(self.base, self.outputs, key, self.width)

    def network(self, online: Head) -> Adapted:
        return Adapted(self.base, online)

    def frozen(self, coordinates: Jet, parameters: Jet) -> tuple[Jet, ...]:
        return self.base(coordinates, parameters), self.base.shared(coordinates, parameters)

    def raw(self, online: Head, coordinates: Jet, parameters: Jet, frozen: tuple[Jet, ...]) -> Jet:
        base, features = frozen
        return base + online(features)


# Adaptations of weights --------------------------------------------------------------------------------------


class _WeightAdaptation:
    """Weights of many layers are trained: nothing is frozen."""

    def network(self, online: Any) -> Any:
        return online

    def frozen(self, coordinates: Jet, parameters: Jet) -> tuple[Jet, ...]:
        return ()

    def raw(self, online: Any, coordinates: Jet, parameters: Jet, frozen: tuple[Jet, ...]) -> Jet:
        return self.network(online)(coordinates, parameters)


class FullAdaptation(_WeightAdaptation):
    """All weights of the network."""

    def __init__(self, problem: Problem, base: Any):
        self.base = base

    def start(self, theta: Float[Array, " parameters"], key: Key | None) -> Any:
        return self.base


class Modulation(eqx.Module):
    """The singular values of P2INN's decoder layers, and its shift."""

    values: Float[Array, "layers width"]
    shift: Linear


class SingularValueAdaptation(_WeightAdaptation):
    """The singular values of a P2INN's decoder layers and its linear shift, as P2INN's authors do."""

    def __init__(self, problem: Problem, base: Any):
        if not isinstance(base, P2INN):
            raise ProblemError(f"Only a p2inn is adapted by its singular values, and this is a {type(base).__name__}.")
        self.base = base
        weights = jnp.stack([layer.weight for layer in base.decoder])
        self.left, self.values, self.right = jnp.linalg.svd(weights)

    def start(self, theta: Float[Array, " parameters"], key: Key | None) -> Modulation:
        return Modulation(self.values, self.base.shift)

    def network(self, online: Modulation) -> P2INN:
        weights = (self.left * online.values[:, None, :]) @ self.right
        return eqx.tree_at(
            lambda n: (*(layer.weight for layer in n.decoder), n.shift), self.base, (*weights, online.shift)
        )


class TargetAdaptation(_WeightAdaptation):
    """All weights of the network that a HyperPINN or Meta-PINN generates for the theta."""

    def __init__(self, problem: Problem, base: Any):
        if not isinstance(base, Generated):
            raise ProblemError(
                f"Only a hyperpinn or metapinn makes a network for each theta, and this is a {type(base).__name__}."
            )
        self.base, self.problem = base, problem

    def start(self, theta: Float[Array, " parameters"], key: Key | None) -> Any:
        return self.base.target(theta_features(self.problem, theta))


ADAPTATIONS: dict[str, Callable[[Problem, Any], Adaptation]] = {
    "head": HeadAdaptation,
    "full": FullAdaptation,
    "svd": SingularValueAdaptation,
    "target": TargetAdaptation,
}
"""Adaptations by their name: the option `way`."""

AdaptationName = Literal["head", "full", "svd", "target"]


def make_adaptation(problem: Problem, base: Any, way: str, width: int | None = None) -> Adaptation:
    """The adaptation of this name; `width` is that of a head."""
    return ADAPTATIONS[way](problem, base) if width is None else HeadAdaptation(problem, base, width)


# Results -----------------------------------------------------------------------------------------------------


class Heads(eqx.Module):
    """What was trained at several thetas, stacked, with the evidence for each.

    Losses are mean squares of scaled residuals at points that the head was not fitted to. The remaining error is
    estimated at the same points. The linearised equations are solved for the change of the head that would remove the
    residuals; the outputs with that change are the best estimate of the solution. An error is the distance of the
    outputs from this estimate, relative to it: before, with the base, and after, with the head.

    A head is used only if its loss is below the base's and its error well below (`MARGIN`), or `always`.
    """

    thetas: Points
    heads: Any
    loss_before: Float[np.ndarray, " thetas"]
    loss_after: Float[np.ndarray, " thetas"]
    error_before: Float[np.ndarray, " thetas"]
    error_after: Float[np.ndarray, " thetas"]
    steps: Float[np.ndarray, " thetas"]
    way: str = eqx.field(static=True, default="head")
    """Name of the adaptation: head, full, svd or target."""
    always: bool = eqx.field(static=True, default=False)
    """Whether each head is used, whatever its losses and errors say."""

    @staticmethod
    def blank(
        problem: Problem, base: Any, way: str, count: int, width: int | None = None, always: bool = False
    ) -> "Heads":
        """Heads at `count` thetas, with zeros in all arrays. `width` is that of residual heads."""
        theta = jnp.zeros(len(problem.parameters))
        single = make_adaptation(problem, base, way, width).start(theta, None)
        stacked = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), single)
        thetas: Any = jnp.zeros((count, len(problem.parameters)))
        names = ("loss_before", "loss_after", "error_before", "error_after", "steps")
        figures: dict[str, Any] = {name: jnp.zeros(count) for name in names}
        return Heads(thetas, stacked, **figures, way=way, always=always)

    def joined(self, others: Any) -> "Heads":
        """These heads and others. At a theta that both have, the other head replaces this one."""
        if self.way != others.way:
            raise ProblemError(
                f"A surrogate with heads adapted by {self.way!r} cannot take some by {others.way!r}. Adapt the base."
            )
        if (self.width, self.always) != (others.width, others.always):
            ours, theirs = (f"width={heads.width} and always={heads.always}" for heads in (self, others))
            raise ProblemError(f"A surrogate with heads of {ours} cannot take some of {theirs}. Adapt the base.")
        kept = ~is_among(self.thetas, others.thetas)
        return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[kept], np.asarray(b)]), self, others)

    def __repr__(self) -> str:
        return f"Heads: {len(self.thetas)} thetas, {int(np.sum(self.used))} used, adapted by {self.way}"

    def _repr_html_(self) -> str:
        rows = {
            ", ".join(f"{value:.6g}" for value in theta): self.reason(i) for i, theta in enumerate(self.thetas[:10])
        }
        more = {"more": f"{len(self.thetas) - 10} thetas"} if len(self.thetas) > 10 else {}
        return html_table(repr(self), rows | more)

    @property
    def width(self) -> int | None:
        """Width of residual heads; None if something else is trained."""
        return self.heads.hidden.bias.shape[-1] if isinstance(self.heads, Head) else None

    @property
    def trainable(self) -> int:
        """Number of parameters that are trained at each theta."""
        return count(jax.tree.map(lambda leaf: leaf[0], self.heads))

    @property
    def used(self) -> np.ndarray:
        """Whether each head is used, (thetas,)."""
        if self.always:
            return np.ones(len(self.thetas), bool)
        return (self.loss_after < self.loss_before) & (self.error_after < MARGIN * self.error_before)

    def reason(self, i: int) -> str:
        """Why the head of a theta is used, or not."""
        losses = f"the physics loss goes from {self.loss_before[i]:.1e} to {self.loss_after[i]:.1e}"
        errors = f"the estimated error from {self.error_before[i]:.1e} to {self.error_after[i]:.1e}"
        if self.always:
            return f"The head is used, as always was asked for: on fresh points {losses}, {errors}."
        verdict = "The head is used" if self.used[i] else "The head is not used, the base stays"
        return f"{verdict}: on fresh points {losses}, {errors}, which must fall by a fifth."

    def network(self, problem: Problem, base: Any, i: int, always: bool = False) -> Any:
        """The base with the head of a theta, or the base alone if that head is not used (unless `always`)."""
        if not (self.used[i] or always):
            return base
        with jax.enable_x64(precision(base) == jnp.float64):
            online = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), self.heads)
            return ADAPTATIONS[self.way](problem, base).network(online)
