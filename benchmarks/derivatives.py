"""Loss and gradient of each benchmark's residual on 50,000 points: named derivatives over nested jvp and nested grad.

python benchmarks/derivatives.py [PROBLEM ...]

All three run in one process, turn by turn, in float32 with the paper's network; the median of the turns counts. The
peers differentiate the same network as plain JAX code would: `jvp` nests `jax.jvp`, `grad` nests `jax.grad`.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

from clpinn.calculus.names import Derivatives, parse_name, requested
from clpinn.formulation.calls import call_by_name
from clpinn.formulation.pointwise import residuals, values
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.problems import BENCHMARKS, Burgers

NETWORKS = {"schaffer": (30, 4), "poisson_boltzmann": (30, 5)}


def nested(problem, network, x, theta, derivative):
    """The residual at one point, each derivative by nesting `derivative(function, axis)` of the value."""
    point = dict(zip(problem.axes, (*x, *theta)))

    def lookup(name):
        output, index = parse_name(name, problem.outputs, problem.axes)

        def function(*x):
            return values(problem, network, jnp.stack(x), theta)[output]

        for axis, order in enumerate(index):
            for _ in range(order):
                function = derivative(function, axis)
        return function(*x)

    found = call_by_name(problem.residual, "residual", point, Derivatives(lookup))
    return found if isinstance(found, dict) else {"residual": found}


def by_jvp(function, axis):
    def derivative(*x):
        return jax.jvp(lambda s: function(*x[:axis], s, *x[axis + 1 :]), (x[axis],), (jnp.ones_like(x[axis]),))[1]

    return derivative


def plain(problem, network, x, theta):
    """A loss without named derivatives, for a problem that has none: the value minus the function."""
    from clpinn.problems.schaffer import schaffer

    scaled = jnp.concatenate([x / 5, 2 * (jnp.log(theta) - jnp.log(0.001)) / jnp.log(1000.0) - 1])
    h = scaled
    for layer in network.hidden:
        h = jnp.tanh(h @ layer.weight + layer.bias)
    u = (h @ network.output.weight + network.output.bias)[0]
    return {"residual": u - schaffer(*x, *theta)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(BENCHMARKS))
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    print("| problem | derivatives | named, ms | nested jvp / named | nested grad / named | plain / named |")
    print("|---|---|---|---|---|---|")
    for name in arguments.problems:
        problem = Burgers(hard=False) if name == "burgers" else BENCHMARKS[name]()
        width, depth = NETWORKS.get(name, (50, 4))
        network = make(problem, Architecture("fnn", width, depth), jax.random.key(0))
        keys = jax.random.split(jax.random.key(1))
        x = jnp.asarray(problem.coordinates.sample(arguments.points, keys[0]), jnp.float32)
        theta = jnp.asarray(problem.parameters.sample(arguments.points, keys[1]), jnp.float32)
        ways = {"named": lambda n, a, b, p=problem: residuals(p, n, a, b)}
        asked = requested(
            lambda d, p=problem: call_by_name(p.residual, "residual", dict.fromkeys(p.axes, jnp.zeros(())), d),
            lambda text: text,
        )
        if name == "schaffer":
            ways["plain"] = lambda n, a, b, p=problem: plain(p, n, a, b)
        else:
            ways["jvp"] = lambda n, a, b, p=problem: nested(p, n, a, b, by_jvp)
            ways["grad"] = lambda n, a, b, p=problem: nested(p, n, a, b, jax.grad)

        def loss(network, way, x=x, theta=theta):
            found = jax.vmap(lambda a, b: way(network, a, b))(x, theta)
            return sum(jnp.mean(value**2) for value in found.values())

        steps = {key: jax.jit(jax.value_and_grad(lambda n, w=way: loss(n, w))) for key, way in ways.items()}
        losses = {key: float(step(network)[0]) for key, step in steps.items()}
        assert max(losses.values()) - min(losses.values()) < 1e-3 * losses["named"], losses
        seconds = {key: [] for key in steps}
        begun = time.perf_counter()
        # A short step needs many turns for its median to settle.
        while len(seconds["named"]) < arguments.turns or time.perf_counter() - begun < 5:
            for key, step in steps.items():
                start = time.perf_counter()
                jax.block_until_ready(step(network))
                seconds[key].append(time.perf_counter() - start)
        median = {key: statistics.median(values) for key, values in seconds.items()}
        ratios = [f"{median[key] / median['named']:.2f}" if key in median else "–" for key in ("jvp", "grad", "plain")]
        print(f"| {name} | {', '.join(asked)} | {median['named'] * 1e3:.0f} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
