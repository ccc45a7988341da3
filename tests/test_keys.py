"""Keys and first weights on the host are those of jax.random, bit for bit."""

import jax
import numpy as np
import pytest

from clpinn.keys import constant, fold_in, generator, make_key, split, uniform, words

SEEDS = (0, 1, 12345, 2**31, 2**32 - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_are_those_of_jax(seed):
    key = jax.random.key(seed)
    assert words(make_key(seed)) == words(key)
    for count in (2, 3, 7):
        assert split(make_key(seed), count) == [words(part) for part in jax.random.split(key, count)]
    for number in (0, 1, 77, 10**6):
        assert fold_in(make_key(seed), number) == words(jax.random.fold_in(key, number))
    # A JAX key serves as well, and both seed the same generator.
    assert split(key) == split(make_key(seed))
    assert generator(key).random() == generator(make_key(seed)).random()


@pytest.mark.parametrize("double", (True, False))
@pytest.mark.parametrize("shape", ((3, 42), (21, 42), (50, 1)))
def test_first_weights_are_those_of_jax(shape, double):
    limit = np.sqrt(6 / sum(shape))
    with jax.enable_x64(double):
        dtype = np.float64 if double else np.float32
        expected = jax.random.uniform(jax.random.key(5), shape, dtype, -limit, limit)
        weights = uniform(make_key(5), shape, dtype, limit)
    assert weights.dtype == dtype and np.array_equal(weights, expected)


def test_a_seed_of_any_length_is_a_key():
    assert make_key(10**20 + 7) == make_key((10**20 + 7) % 2**64) != make_key(7)


def test_without_a_key_nothing_is_drawn_or_stored():
    assert split(None, 3) == [None] * 3
    huge = jax.eval_shape(
        lambda: (uniform(None, (10**9, 10**9), np.float32, 1.0), constant(None, 10**12, np.float32, 1))
    )
    assert [leaf.shape for leaf in huge] == [(10**9, 10**9), (10**12,)]
    assert np.array_equal(constant(None, 3, np.float32, 1.0), constant(make_key(0), 3, np.float32, 1.0))
