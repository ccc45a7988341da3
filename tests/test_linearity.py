"""Which arguments count as linear, and which results count as the same computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clpinn.calculus.linearity import affine, equal

# Expressions of the arguments a, b, c and the known point x, and which arguments they contain linearly.
EXPRESSIONS = {
    "sums and products": (lambda a, b, c, x: -a + 2 * x * b / (1 + x**2) - c**2, {"a": True, "b": True, "c": False}),
    "absent": (lambda a, b, c, x: a - jnp.sin(x), {"a": True}),
    "added to what is nonlinear": (lambda a, b, c, x: a + b * c, {"a": True, "b": False, "c": False}),
    "coefficient is an argument": (lambda a, b, c, x: c * a + b, {"a": False, "b": True, "c": False}),
    "squared": (lambda a, b, c, x: a * a, {"a": False}),
    "twice, once not": (lambda a, b, c, x: a + jnp.sin(a), {"a": False}),
    "divisor": (lambda a, b, c, x: x / a + b / c, {"a": False, "b": False, "c": False}),
    "vectors": (lambda a, b, c, x: jnp.stack([a, b]) @ jnp.array([1.0, 2.0]) + jnp.sum(x * jnp.array([c])),
                {"a": True, "b": True, "c": True}),
    "under jit": (lambda a, b, c, x: jax.jit(lambda v, w: x * v + w**2)(a, b), {"a": True, "b": False}),
    "coefficient by where": (lambda a, b, c, x: jnp.where(x > 0, 1.0, 2.0) * a, {"a": True}),
    "argument in where": (lambda a, b, c, x: jnp.where(b > 0, 1.0, 2.0) * a, {"a": False, "b": False}),
    # A derivative cannot tell these from linear ones.
    "rounded": (lambda a, b, c, x: a + jnp.floor(a) + b.astype(int), {"a": False, "b": False}),
    "cut off": (lambda a, b, c, x: a - jax.lax.stop_gradient(b), {"a": True, "b": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_affine(name):
    expression, expected = EXPRESSIONS[name]
    arguments = dict.fromkeys("abc", jnp.ones(()))
    traced = []

    def at(x):
        uses = affine(lambda given: {"first": expression(**given, x=x), "second": x * given["c"]}, arguments)
        assert uses == {"first": expected, "second": {"c": True}}
        traced.append(name)
        return x

    jax.vmap(at)(jnp.ones(2))
    assert traced


def test_effects_see_all_arguments():
    def shown(given):
        jax.debug.print("{}", given["a"])
        return {"sum": given["a"] + given["b"]}

    assert affine(shown, dict.fromkeys("ab", jnp.ones(()))) == {"sum": {"a": False, "b": False}}


def test_equal_is_the_same_computation():
    def at(x, y):
        table = np.arange(3.0)

        def results():
            return {
                "a": [-1 / x, -1 / x, 1 / x, -1 / y, -2 / x],
                "b": [jnp.where(x > 0, x, y), jnp.where(x > 0, x, y), jnp.where(y > 0, x, y)],
                "c": [jnp.sum(table * x), jnp.sum((table + 1) * x), jnp.sum(np.ones(3) * x)],
                "d": [jnp.float32(0.1), jnp.float32(0.1), jnp.float32(0.1000001)],
            }

        numbers = equal(results)
        assert numbers["a"][0] == numbers["a"][1] and len(set(numbers["a"])) == 4
        assert numbers["b"][0] == numbers["b"][1] and len(set(numbers["b"])) == 2
        assert len(set(numbers["c"])) == 3
        assert numbers["d"][0] == numbers["d"][1] != numbers["d"][2]
        return x

    jax.vmap(at)(jnp.ones(2), jnp.ones(2))
