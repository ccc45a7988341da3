"""A correction over the whole parameter box: the estimated errors at some thetas, interpolated between them.

The correction of the raw outputs is a sum of products a(theta) φ(x). The modes φ are splines: the principal components
of the corrections at the thetas. Each a is a sum of kernels, one at each theta, that interpolates.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from clpinn.calculus.jets import Jet
from clpinn.formulation.problem import Problem
from clpinn.formulation.thetas import features
from clpinn.networks.architecture import Architecture, cast, precision
from clpinn.surrogate.box_kernel import Kernel, reweighted
from clpinn.surrogate.corrections import Corrected, StackedSplines, composed, inside


class BoxCorrection(eqx.Module):
    """A correction of the raw outputs at every theta.

    Attributes:
        kernel: The kernel.
        places: The thetas with estimated errors, as places of the kernel (thetas, features).
        weights: Weights of the kernels at the thetas (thetas, modes).
        modes: The modes as splines of one space, with modes × outputs values.
    """

    kernel: Kernel
    places: Any
    weights: Any
    modes: StackedSplines

    @staticmethod
    def blank(problem: Problem, shape: Mapping[str, Any]) -> "BoxCorrection":
        """A correction with shapes in place of arrays; `shape` is what `shape` gives."""
        thetas, modes, features = int(shape["thetas"]), int(shape["modes"]), problem.parameters.feature_count

        def blank(*sizes: int) -> Any:
            return jax.ShapeDtypeStruct(sizes, float)

        splines = StackedSplines.shapes(problem, 1, modes * len(problem.outputs), shape["room"], int(shape["degree"]))
        return BoxCorrection(
            Kernel(blank(features), blank(features)), blank(thetas, features), blank(thetas, modes), splines
        )

    def shape(self) -> dict[str, Any]:
        """What `blank` needs besides the arrays, in plain values."""
        thetas, modes = self.weights.shape
        return {"thetas": thetas, "modes": modes, "room": self.modes.room, "degree": self.modes.degree}

    def check(self) -> None:
        """Raise a ValueError unless the arrays can be used: those of a file may hold anything."""
        self.modes.check()
        arrays = self.kernel.scales, self.kernel.bends, self.places, self.weights
        if any(array.dtype.kind != "f" or not np.isfinite(array).all() for array in arrays):
            raise ValueError("a correction over the box that is not finite")
        if not np.all(self.kernel.scales > 0):
            raise ValueError("a correction over the box without a length")

    def for_single_precision(self) -> "BoxCorrection":
        """The same correction with smaller weights, for which rounding matters less; a little less exact."""
        if self.weights.dtype != np.float64:
            return self
        weights = reweighted(np.asarray(self.places), np.asarray(self.weights))
        return eqx.tree_at(lambda tree: tree.weights, self, weights)

    def amounts(self, features: Any, xp: Any = jnp) -> Any:
        """How much of each mode a theta gets."""
        place = self.kernel.places(inside(features, xp), xp)
        return Kernel.between(place, self.places, xp) @ self.weights

    def splines_at(self, features: Any, xp: Any = jnp) -> StackedSplines:
        """The correction at one theta, as splines of that theta alone."""
        amounts, modes = self.amounts(features, xp), self.modes.coefficients
        coefficients = (amounts @ modes.reshape(len(amounts), -1)).reshape(1, -1, *modes.shape[2:])
        return eqx.tree_at(lambda splines: splines.coefficients, self.modes, coefficients)

    def values(self, features: Any) -> Float[Array, "modes outputs"]:
        """The modes at a point."""
        return self.modes.value(np.int32(0), list(features)).reshape(self.weights.shape[1], -1)


class BoxCorrected(eqx.Module):
    """A network with a correction at every theta."""

    base: Any
    correction: BoxCorrection

    @property
    def architecture(self) -> Architecture:
        """The architecture of the base."""
        return self.base.architecture

    def shared(self, coordinates: Any, parameters: Any) -> Any:
        """The last hidden features of the base, which a residual head starts from."""
        return self.base.shared(coordinates, parameters)

    def __call__(self, coordinates: Any, parameters: Any) -> Any:
        raw, correction = self.base(coordinates, parameters), self.correction
        if not isinstance(coordinates, Jet):
            return raw + correction.amounts(parameters) @ correction.values(coordinates)
        amounts = composed(lambda features: correction.amounts(jnp.stack(features)), parameters)
        return raw + amounts @ composed(correction.values, coordinates)


def at_theta(problem: Problem, network: Any, theta: Float[np.ndarray, " parameters"]) -> Any:
    """A network for one theta. A correction over the box is one set of splines there, which takes less time."""
    if not isinstance(network, BoxCorrected):
        return network
    dtype = precision(network.base)
    with jax.enable_x64(dtype == jnp.float64):
        correction = jax.tree.map(np.asarray, network.correction)
        splines = correction.splines_at(features(np.asarray(theta)[None], problem.parameters)[0], np)
        return Corrected(network.base, cast(jax.tree.map(jnp.asarray, splines), dtype), jnp.zeros((), jnp.int32))


class CorrectedByTheta(eqx.Module):
    """The same as `BoxCorrected` in another order: first the splines of a theta, then their values at a point.

    This is faster where a theta's splines are computed once for many points. It gives values, no derivatives.
    """

    base: Any
    correction: BoxCorrection

    def __call__(self, coordinates: Any, parameters: Any) -> Any:
        raw = self.base(coordinates, parameters)
        coordinates, parameters = (each.value if isinstance(each, Jet) else each for each in (coordinates, parameters))
        return raw + self.correction.splines_at(parameters).value(np.int32(0), list(coordinates))


def for_one_theta(network: Any) -> Any:
    """A network that answers fast at many points of one theta, if what depends on theta alone is computed once."""
    return CorrectedByTheta(network.base, network.correction) if isinstance(network, BoxCorrected) else network


def without_box_correction(network: Any) -> Any:
    """The network as it was trained."""
    return network.base if isinstance(network, BoxCorrected) else network


def for_single_precision(network: Any) -> Any:
    """A network that can be rounded to single precision."""
    if not isinstance(network, BoxCorrected):
        return network
    return BoxCorrected(network.base, network.correction.for_single_precision())
