"""Amplitudes: how large a fresh network must be, by sources, conditions, data, the hard transform and other outputs."""

import dataclasses
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from row_problems import Chained, tiny

import clpinn as cl
from clpinn.training.amplitudes import amplified, enlargements, hidden, overshot, reductions
from clpinn.training.batches import row_source
from clpinn.training.term_sizes import ResidualSizes

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def sizes(term: str, source: float, **outputs: float) -> ResidualSizes:
    """A residual with the same sizes at two thetas."""
    return ResidualSizes(term, np.full(2, source), {name: np.full(2, size) for name, size in outputs.items()})


def test_outputs_are_as_large_as_sources_ask():
    class Sources(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(a=(1, 2))
        outputs = ("u", "v", "w")
        conditions = (cl.Condition("end", lambda d: d.v - 4e3, on=cl.at(x=0), points=1),)

        def constrain(self, raw):
            return {"u": 0 * raw["u"] + 2, "v": 0 * raw["v"] - 5, "w": 0 * raw["w"] + 1}

        def residual(self, d, a):
            return {"first": d.u + 1e6, "second": d.v - d.w, "third": 3 * d.w - 27}

    source = row_source(Sources(), 16, jnp.float64)
    # u is 2 where 1e6 is asked for, v on its end 5 in place of 4e3, w 3 in place of 27; a tenth of each, at least 1.
    np.testing.assert_allclose(
        enlargements(Sources.outputs, source.sizes.by_residual(tiny(Sources()), KEY)), [5e4, 80, 1]
    )
    # 5 is not far more than 4e3, nor 1 than 27; v and w are in one equation without a source.
    assert not overshot(Sources.outputs, source.sizes.by_residual(tiny(Sources()), KEY)).any()


def test_terms_far_larger_than_every_source_are_noticed():
    class Overshot(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        outputs = ("u", "v")
        conditions = (cl.Condition("end", lambda d: d.v - 1e9, on=cl.at(x=0), points=1),)

        def constrain(self, raw):
            return {"u": 0 * raw["u"] + 20, "v": 0 * raw["v"] + 20}

        def residual(self, d):
            return {"first": jnp.exp(d.u) - 1e6, "second": jnp.exp(d.v) - 1e6}

    # exp(20) = 5e8 is far more than 1e6, but the end of v asks for more still.
    sizes = row_source(Overshot(), 16, jnp.float64).sizes.by_residual(tiny(Overshot()), KEY)
    assert overshot(Overshot.outputs, sizes).tolist() == [True, False]


def test_an_output_is_made_as_large_as_its_equation_asks():
    problem = Chained()
    network, source = tiny(problem), row_source(problem, 20, jnp.float64)
    factors = enlargements(problem.outputs, source.sizes.by_residual(network, KEY))
    assert factors[0] == 1 and 1e4 < factors[1] < 1e7
    amplified = eqx.tree_at(lambda n: n.output.amplitude, network, network.output.amplitude * factors)
    np.testing.assert_allclose(enlargements(problem.outputs, source.sizes.by_residual(amplified, KEY)), 1, rtol=0.2)


def test_an_output_becomes_as_small_as_all_that_determines_it():
    def factors(outputs, *residuals):
        return reductions(outputs, residuals, [float(residual.source[0]) for residual in residuals])

    heat, ends, start = sizes("interior", 0, u=5), sizes("ends", 0, u=1), sizes("start", 1e-4, u=0.5)
    np.testing.assert_allclose(factors("u", heat, ends, start), [2e-4])
    # A residual that asks for size one, or nothing that says how large it is: it stays.
    assert factors("u", heat, ends, start, sizes("source", 0.3, u=1)) == [1]
    assert factors("u", heat, ends) == [1]
    # A hundredth is not small.
    assert factors("u", sizes("start", 0.02, u=1)) == [1]
    # Outputs that share a residual shrink together, others by themselves.
    system = sizes("interior", 0, u=1, v=1), sizes("interior", 0, u=2, v=1), sizes("start", 1e-6, u=1)
    np.testing.assert_allclose(factors("uvw", *system, sizes("interior", 1e-9, w=10)), [1e-6, 1e-6, 1e-10])
    # v is driven by 1e-4 u, and u is of size one.
    driven = sizes("interior", 1, u=1), sizes("interior", 0, u=1e-4, v=2)
    np.testing.assert_allclose(factors("uv", *driven), [1, 5e-5])


def test_an_output_behind_the_hard_transform_is_seen():
    given = [sizes("interior", 0, u=1e6, v=1)]
    assert hidden("uv", [sizes("interior", 0, u=1.2e6, v=2)], given).tolist() == [True, False]
    assert hidden("uv", [sizes("interior", 0, u=1.6e6, v=2)], given).tolist() == [False, False]


class Decaying(cl.Problem):
    """u' = -k u with a start of any size, given in one of three ways."""

    coordinates = cl.Box(t=(0, 1))
    parameters = cl.Box(k=(1, 2))
    candidates = parameters.grid(k=3)
    evaluation = coordinates.grid(t=21)

    def __init__(self, size: float, way: str):
        self.size = size
        if way == "condition":
            self.conditions = (cl.Condition("start", lambda d: d.u - size, on=cl.at(t=0)),)
        elif way == "data":
            at = {"t": np.zeros(5), "k": np.linspace(1, 2, 5)}
            self.conditions = (cl.Data("start", at=at, values={"u": np.full(5, size)}),)
        else:
            self.constrain = lambda raw, t: size + t * raw

    def residual(self, d, k):
        return d.u_t + k * d.u

    def reference(self, t, k):
        return {"u": self.size * jnp.exp(-k * t)}


@pytest.mark.parametrize("way", ["condition", "data", "hard"])
@pytest.mark.parametrize("size", [1e-8, 1e-4, 1e6])
def test_an_output_of_any_size_is_learnt(tmp_path, way, size):
    """Errors were 0.05 to 400 for small sizes, 0.3 for the large one behind a hard transform."""
    problem = Decaying(size, way)
    chosen = cl.natural(problem)
    network = dataclasses.replace(chosen.network, width=6, depth=2)
    chosen = dataclasses.replace(chosen, network=network, steps=40)
    chosen = dataclasses.replace(chosen, natural=dataclasses.replace(chosen.natural, rows=60))
    assert cl.run(problem, chosen, tmp_path).metrics["outputs"]["u"]["rel_l2_worst"] < 5e-3


def test_an_output_of_size_one_keeps_its_amplitude():
    for way in ("condition", "data", "hard"):
        problem = Decaying(1.0, way)
        source = row_source(problem, 16, jnp.float64)
        assert amplified(tiny(problem), source.sizes, KEY, lambda _: False).output.amplitude[0] == 1
