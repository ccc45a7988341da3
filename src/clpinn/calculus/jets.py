"""Derivatives by forward Taylor streams.

A `Jet` carries a value and some of its partial derivatives (its streams) through a computation. The functions below
(`linear`, `tanh`, ...) accept a plain array or a Jet. So a network is written once and gives both values and
derivatives. A stream that is known to be zero is left out and costs nothing.

Products follow Leibniz' rule, elementwise functions follow Faà di Bruno's formula. Streams are propagated forward
instead of nesting automatic differentiation, as in Taylor mode (Bettencourt, Johnson, Duvenaud, 2019) and the forward
Laplacian (Li et al., arXiv:2307.08214). Both rules contain the highest derivatives linearly. So a weighted sum of
highest derivatives can be propagated as one stream, an `Operator` (collapsed Taylor mode, Dangel et al.,
arXiv:2505.13644).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Index = tuple[int, ...]
"""Order of differentiation along each axis: (2, 0) is u_xx for the axes (x, t)."""


@dataclass(frozen=True, eq=False)
class Operator:
    """A sum of coefficient × partial derivative, propagated as one stream. Its key in a jet is the operator itself.

    A jet must also track every index strictly below one of the operator's indices. It need not track the operator's
    indices themselves.
    """

    coefficients: Mapping[Index, Array]

    def __hash__(self) -> int:
        # Not by address, so that sets of keys have the same order in every process, and so have the computations.
        return hash(tuple(self.coefficients))


Key = Index | Operator
Terms = Sequence[tuple[Any, tuple[Any, ...]]]
"""A sum of factor × product of streams: pairs of the factor and the keys of the streams."""


def closure(indices: Iterable[Index]) -> frozenset[Index]:
    """All indices below or equal to the given ones. Leibniz and Faà di Bruno need them all."""
    return frozenset(below for index in indices for below in product(*(range(order + 1) for order in index)))


@dataclass(frozen=True)
class Jet:
    """A value and partial derivatives at one point.

    `streams[index]` is the partial derivative of that index; an absent stream is zero. `keep` holds all tracked keys:
    indices (closed downwards, see `closure`) and operators.
    """

    streams: Mapping[Key, Array]
    keep: frozenset[Key]

    @property
    def value(self) -> Array:
        return self.streams[_zero(self.keep)]

    def __getitem__(self, item: int | slice) -> "Jet":
        return self._map(lambda stream: stream[item])

    def reshape(self, *shape: int) -> "Jet":
        return self._map(lambda stream: stream.reshape(shape))

    def __add__(self, other: "Jet | Array | float") -> "Jet":
        if not isinstance(other, Jet):
            other = constant(other, self.keep)
        streams = dict(self.streams)
        for index, stream in other.streams.items():
            streams[index] = streams[index] + stream if index in streams else stream
        return Jet(streams, self.keep)

    def __mul__(self, other: "Jet | Array | float") -> "Jet":
        if not isinstance(other, Jet):
            return self._map(lambda stream: stream * other)
        return self._product(other, lambda a, b: a * b)

    def __matmul__(self, other: "Jet") -> "Jet":
        return self._product(other, lambda a, b: a @ b)

    __radd__ = __add__
    __rmul__ = __mul__

    def _product(self, other: "Jet", multiply: Callable[[Array, Array], Array]) -> "Jet":
        """Leibniz' rule for a product that is linear in both factors."""
        streams: dict[Key, Array] = {}
        for key in self.keep:
            for factor, (a, b) in _terms(key, _splits):
                if a in self.streams and b in other.streams:
                    term = factor * multiply(self.streams[a], other.streams[b])
                    streams[key] = streams[key] + term if key in streams else term
        return Jet(streams, self.keep)

    def _map(self, function: Callable[[Array], Array]) -> "Jet":
        return Jet({index: function(stream) for index, stream in self.streams.items()}, self.keep)


def indices(keep: frozenset[Key]) -> frozenset[Index]:
    """All tracked indices, including those inside an operator."""
    return frozenset(index for key in keep for index in (key.coefficients if isinstance(key, Operator) else [key]))


def _zero(keep: frozenset[Key]) -> Index:
    return (0,) * len(next(iter(indices(keep))))


def _terms(key: Key, rule: Callable[[Index], Terms]) -> Terms:
    """The terms of a rule, `_splits` or `_partitions`, for an index or an operator.

    A term that contains the index itself looks the same for every index of an operator. So these terms together are one
    term with the operator's stream.
    """
    if not isinstance(key, Operator):
        return rule(key)
    first = next(iter(key.coefficients))
    highest = [(factor, tuple(key if k == first else k for k in keys)) for factor, keys in rule(first) if first in keys]
    lower = [
        (factor * c, keys) for index, c in key.coefficients.items() for factor, keys in rule(index) if index not in keys
    ]
    return [*highest, *lower]


@cache
def _splits(index: Index) -> Terms:
    """The terms of Leibniz' rule: all ways to divide the differentiations in `index` between two factors."""
    return tuple(
        (math.prod(map(math.comb, index, left)), (left, tuple(n - k for n, k in zip(index, left, strict=True))))
        for left in product(*(range(order + 1) for order in index))
    )


def constant(value: Array | float, keep: frozenset[Key]) -> Jet:
    """A jet without derivatives."""
    return Jet({_zero(keep): jnp.asarray(value)}, keep)


def variable(value: Array, axis: int, keep: frozenset[Key]) -> Jet:
    """The jet of an independent variable: its derivative along its axis is one."""
    zero = _zero(keep)
    unit = tuple(int(i == axis) for i in range(len(zero)))
    streams: dict[Key, Array] = {zero: value}
    for key in keep:
        if key == unit:
            streams[key] = jnp.ones_like(value)
        elif isinstance(key, Operator) and unit in key.coefficients:
            streams[key] = key.coefficients[unit]
    return Jet(streams, keep)


T = TypeVar("T", Array, Jet)

# Functions of an array or a jet ---------------------------------------------------------------------------


def linear(h: T, weight: Float[Array, "inputs outputs"], bias: Float[Array, " outputs"]) -> T:
    """h @ weight + bias. The bias enters the value only. One product per stream is faster than one stacked product."""
    if isinstance(h, Jet):
        streams = {index: stream @ weight for index, stream in h.streams.items()}
        zero = _zero(h.keep)
        streams[zero] = streams[zero] + bias
        return Jet(streams, h.keep)
    return h @ weight + bias


def tanh(h: T) -> T:
    """tanh, elementwise."""
    if not isinstance(h, Jet):
        return jnp.tanh(h)

    def derivatives(value: Array, order: int) -> list[Array]:
        # From y' = 1 - y², differentiated n times by Leibniz.
        y = [jnp.tanh(value)]
        for n in range(order):
            products = [math.comb(n, k) * y[k] * y[n - k] for k in range(n + 1)]
            y.append((1.0 if n == 0 else 0.0) - sum(products[1:], products[0]))
        return y

    return elementwise(h, derivatives)


def sin(h: T) -> T:
    """Sine, elementwise."""
    if not isinstance(h, Jet):
        return jnp.sin(h)
    return elementwise(h, lambda value, order: _cycle(jnp.sin(value), jnp.cos(value), order))


def cos(h: T) -> T:
    """Cosine, elementwise."""
    if not isinstance(h, Jet):
        return jnp.cos(h)
    return elementwise(h, lambda value, order: _cycle(jnp.cos(value), -jnp.sin(value), order))


def exp(h: T) -> T:
    """Exponential function, elementwise."""
    if not isinstance(h, Jet):
        return jnp.exp(h)
    return elementwise(h, lambda value, order: [jnp.exp(value)] * (order + 1))


def log(h: T) -> T:
    """Natural logarithm, elementwise."""
    if not isinstance(h, Jet):
        return jnp.log(h)

    def derivatives(value: Array, order: int) -> list[Array]:
        powers = [(-1) ** (n - 1) * math.factorial(n - 1) * value**-n for n in range(1, order + 1)]
        return [jnp.log(value), *powers]

    return elementwise(h, derivatives)


def _cycle(value: Array, slope: Array, order: int) -> list[Array]:
    """Derivatives of a sine or cosine: value, slope, -value, -slope, value, ..."""
    return [(value, slope, -value, -slope)[n % 4] for n in range(order + 1)]


def stack(jets: Sequence[Jet], keep: frozenset[Key], dtype: Any) -> Jet:
    """Scalar jets stacked into one jet of a vector; an empty sequence gives an empty vector."""
    if not jets:
        return constant(jnp.zeros((0,), dtype), keep)
    indices = {index for jet in jets for index in jet.streams}
    zeros = jnp.zeros((), dtype)
    return Jet(
        {index: jnp.stack([jet.streams.get(index, zeros) for jet in jets]) for index in indices},
        keep,
    )


def concatenate(parts: Sequence[Any]) -> Any:
    """Vectors, all arrays or all jets, joined end to end."""
    if not isinstance(parts[0], Jet):
        return jnp.concatenate(parts, axis=-1)
    indices = {index for part in parts for index in part.streams}
    return Jet(
        {
            index: jnp.concatenate([part.streams.get(index, jnp.zeros_like(part.value)) for part in parts], axis=-1)
            for index in indices
        },
        parts[0].keep,
    )


def elementwise(jet: Jet, derivatives: Callable[[Array, int], list[Array]]) -> Jet:
    """f(jet) by Faà di Bruno's formula; `derivatives(value, n)` returns f, f', ..., f^(n) at the value."""
    zero = _zero(jet.keep)
    terms = {
        key: [(factor, blocks) for factor, blocks in _terms(key, _partitions) if jet.streams.keys() >= set(blocks)]
        for key in jet.keep
        if key != zero
    }
    order = max((len(blocks) for rows in terms.values() for _, blocks in rows), default=0)
    f = derivatives(jet.value, order)
    streams: dict[Key, Array] = {zero: f[0]}
    for key, rows in terms.items():
        for factor, blocks in rows:
            term = f[len(blocks)]
            for block in blocks:
                term = term * jet.streams[block]
            term = factor * term
            streams[key] = streams[key] + term if key in streams else term
    return Jet(streams, jet.keep)


@cache
def _partitions(index: Index) -> Terms:
    """The terms of Faà di Bruno's formula: partitions of the differentiations in `index`, with their multiplicity."""
    axes = [axis for axis, order in enumerate(index) for _ in range(order)]
    unit = [tuple(int(i == axis) for i in range(len(index))) for axis in axes]
    partitions: list[list[Index]] = [[]]
    for step in unit:
        grown = []
        for blocks in partitions:
            grown.append([*blocks, step])
            for i, block in enumerate(blocks):
                larger = tuple(a + b for a, b in zip(block, step, strict=True))
                grown.append([*blocks[:i], larger, *blocks[i + 1 :]])
        partitions = grown
    counted = Counter(tuple(sorted(blocks)) for blocks in partitions)
    return tuple((multiplicity, blocks) for blocks, multiplicity in sorted(counted.items()))


def compose(function: Callable[..., dict[str, Array]], jets: Mapping[str, Jet], keep: frozenset[Key]) -> dict[str, Jet]:
    """Jets of `function(**jets)` for any JAX function of scalars that returns a dict of scalars.

    Each argument is replaced by its Taylor polynomial about the point, which has the same derivatives. The composition
    is then differentiated forward. The arguments are scalars, so this is cheap compared with a network.
    """

    def along(*offsets: Array) -> dict[str, Array]:
        return function(**{name: _polynomial(jet, offsets) for name, jet in jets.items()})

    results = expand(along, keep, next(iter(jets.values())).value.dtype)
    for operator in (key for key in keep if isinstance(key, Operator)):
        # The polynomials lack the operator's highest derivatives. These enter linearly, so what is missing is the
        # slope of the function along the operator's stream.
        line, ends = closure([(1,)]), {(0,): _zero(keep), (1,): operator}
        sums = {
            name: Jet({index: jet.streams[key] for index, key in ends.items() if key in jet.streams}, line)
            for name, jet in jets.items()
        }
        for name, slope in compose(function, sums, line).items():
            streams = results[name].streams
            results[name] = Jet({**streams, operator: streams[operator] + slope.streams[(1,)]}, keep)
    return results


def _polynomial(jet: Jet, offsets: Sequence[Array]) -> Array:
    """The Taylor polynomial of a jet at offsets from the point."""
    total = jet.value
    for index, stream in jet.streams.items():
        if not isinstance(index, Operator) and any(index):
            for offset, order in zip(offsets, index, strict=True):
                if order:
                    stream = stream * (offset**order / math.factorial(order))
            total = total + stream
    return total


def expand(function: Callable[..., dict[str, Array]], keep: frozenset[Key], dtype: Any) -> dict[str, Jet]:
    """Jets of `function(*offsets)` at zero offsets, by nested `jax.jvp`."""

    def floating(*offsets: Array) -> dict[str, Array]:
        # A constant may be an integer, which has no derivative.
        return {name: jnp.asarray(value, dtype) for name, value in function(*offsets).items()}

    partials: dict[Index, Callable[..., dict[str, Array]]] = {_zero(keep): floating}
    for index in sorted(indices(keep), key=sum):
        if any(index):
            axis = next(i for i, order in enumerate(index) if order)
            lower = tuple(order - int(i == axis) for i, order in enumerate(index))
            partials[index] = _partial(partials[lower], axis)
    origin = [jnp.zeros((), dtype)] * len(_zero(keep))
    values = {index: partial(*origin) for index, partial in partials.items()}

    def stream(key: Key, name: str) -> Array:
        if isinstance(key, Operator):
            return sum((c * values[index][name] for index, c in key.coefficients.items()), jnp.zeros((), dtype))
        return values[key][name]

    return {name: Jet({key: stream(key, name) for key in keep}, keep) for name in values[_zero(keep)]}


def _partial(function: Callable[..., dict[str, Array]], axis: int) -> Callable[..., dict[str, Array]]:
    def derivative(*offsets: Array) -> dict[str, Array]:
        def line(offset: Array) -> dict[str, Array]:
            return function(*offsets[:axis], offset, *offsets[axis + 1 :])

        return jax.jvp(line, (offsets[axis],), (jnp.ones_like(offsets[axis]),))[1]

    return derivative
