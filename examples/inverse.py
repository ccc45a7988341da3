"""An inverse problem: the viscosity of a Burgers flow from 50 noisy measurements: python examples/inverse.py

The surrogate knows the flow at every viscosity, and JAX its derivative by it. So a fit is a handful of Gauss-Newton
steps, milliseconds each, and can be repeated for many draws of the noise. The same derivative says how well the
viscosity can be known at all: noise over the norm of the derivative is the smallest standard deviation that any
unbiased estimate can have (Cramér and Rao). Where the flow has a sharp layer, few of the points lie in it, and
50 of them do not tell as much.
"""

import jax
import jax.numpy as jnp
import numpy as np

import clpinn as cl

NUS, POINTS, NOISE, DRAWS = (0.02, 0.05, 0.1, 0.3, 1.0), 50, 0.01, 10
"""What is to be found; how many points are measured; the noise, relative to the spread of u; how often."""


def trained() -> cl.Surrogate:
    """One network for all viscosities."""
    return cl.train(cl.problems.Burgers(), steps=150, seed=0)


def measured(nu: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, times and noisy values of u."""
    numbers = np.random.default_rng(seed)
    x, t = numbers.uniform(-1, 1, POINTS), numbers.uniform(0, 1, POINTS)
    u = cl.problems.Burgers().reference(x=x, t=t, nu=nu)["u"]
    return x, t, u + NOISE * np.std(u) * numbers.standard_normal(POINTS)


def main(surrogate: cl.Surrogate) -> dict[float, dict[str, float]]:
    u, box = surrogate.function(), surrogate.problem.parameters["nu"]

    def misfit(log_nu, x, t, values):
        return u(x=x, t=t, nu=jnp.exp(log_nu))["u"] - values

    @jax.jit
    def step(log_nu, *data):
        """Gauss-Newton, at most a factor of e, inside the box; and the standard deviation to be expected."""
        rest, slope = misfit(log_nu, *data), jax.jacfwd(misfit)(log_nu, *data)
        change = jnp.clip(slope @ rest / (slope @ slope), -1, 1)
        deviation = NOISE * jnp.std(data[-1]) / jnp.linalg.norm(slope)
        return jnp.clip(log_nu - change, jnp.log(box.low), jnp.log(box.high)), deviation

    found = {}
    for nu in NUS:
        errors, deviations = [], []
        for draw in range(DRAWS):
            data = measured(nu, draw)
            with jax.enable_x64(True):
                log_nu, deviation = jnp.log(0.1), jnp.inf
                for _ in range(15):
                    log_nu, deviation = step(log_nu, *data)
            errors.append(abs(float(jnp.exp(log_nu)) / nu - 1))
            deviations.append(float(deviation))
        found[nu] = {"median": float(np.median(errors)), "expected": 0.6745 * float(np.median(deviations))}
        print(
            f"nu = {nu}: median error of {DRAWS} draws {found[nu]['median']:.2%}, "
            f"expected of the best estimate {found[nu]['expected']:.2%}"
        )
    return found


if __name__ == "__main__":
    main(trained())
