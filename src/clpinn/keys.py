"""Random keys on the host: the keys and numbers of `jax.random`, without its compilation for every shape.

    key = make_key(seed)                    first, second = split(key)
    generator(fold_in(key, step))           a NumPy generator for each step

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, 2011), JAX's default.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Key = tuple[int, int] | Array
"""Two words of 32 bits, or a JAX key."""

MASK = 0xFFFFFFFF
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def make_key(seed: int) -> Key:
    """The key of a seed. Only its last 64 bits count."""
    return (seed >> 32) & MASK, seed & MASK


def words(key: Key) -> tuple[int, int]:
    """The two words of a key."""
    if isinstance(key, tuple):
        return key
    with jax.ensure_compile_time_eval():  # a key is known where JAX traces for shapes, too
        first, second = np.asarray(jax.random.key_data(key)).tolist()
    return first, second


def split(key: Key | None, count: int = 2) -> list[Key]:
    """Independent keys made of one. No key gives none."""
    return [None if key is None else _threefry(key, i) for i in range(count)]  # pyright: ignore[reportReturnType]


def fold_in(key: Key, number: int) -> Key:
    """The key that belongs to a number."""
    return _threefry(key, number)


def generator(key: Key) -> np.random.Generator:
    """A NumPy generator seeded by a key."""
    return np.random.default_rng(list(words(key)))


def uniform(key: Key | None, shape: tuple[int, int], dtype: Any, limit: float) -> Float[Array, "rows columns"]:
    """Numbers between -limit and limit; zeros without a key, for those who need the shape alone."""
    if key is None:
        return jnp.zeros(shape, dtype)
    kind = np.dtype(dtype)
    high, low = _threefry(key, np.arange(shape[0] * shape[1], dtype=np.uint64))
    bits = high << np.uint64(32) | low if kind.itemsize == 8 else (high ^ low).astype(np.uint32)
    # The leading bits become the mantissa of a number between 1 and 2.
    mantissa = bits >> bits.dtype.type(8 * kind.itemsize - np.finfo(kind).nmant)
    unit = (mantissa | np.ones((), kind).view(bits.dtype)).view(kind) - kind.type(1)
    return _scaled(unit.reshape(shape), kind.type(-limit), kind.type(limit))


def constant(key: Key | None, size: int, dtype: Any, value: float) -> Float[Array, " size"]:
    """The same number `size` times. Without a key nothing is stored where JAX traces for shapes."""
    return jnp.full(size, value, dtype) if key is None else jnp.asarray(np.full(size, value, dtype))


@jax.jit
def _scaled(unit: Array, low: Array, high: Array) -> Array:
    # Compiled, because XLA rounds the product and the sum only once.
    return jax.lax.max(low, unit * (high - low) + low)


def _threefry(key: Key, count: Any) -> Any:
    """Two random words for a count, an integer or an array of unsigned 64-bit integers."""
    first, second = words(key)
    schedule = (first, second, first ^ second ^ 0x1BD11BDA)
    x, y = first + 0 * count, (second + count) & MASK
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = (x + y) & MASK
            y = ((y << rotation | y >> (32 - rotation)) & MASK) ^ x
        x = (x + schedule[(group + 1) % 3]) & MASK
        y = (y + schedule[(group + 2) % 3] + group + 1) & MASK
    return x, y
