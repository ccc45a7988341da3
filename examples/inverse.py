"""An inverse problem, the viscosity of a Burgers flow from 50 noisy measurements: python examples/inverse.py

The surrogate gives the flow at every viscosity, and JAX gives its derivative by the viscosity. So a fit takes a few
Gauss-Newton steps of some milliseconds each. It can be repeated for many draws of the noise.

The derivative also says how well the viscosity can be known at all. No unbiased estimate has a standard deviation below
the noise divided by the norm of the derivative (Cramér and Rao). If the flow has a sharp layer, few of the 50 points
lie in it, so they determine the viscosity less well.
"""

import jax
import jax.numpy as jnp
import numpy as np

import clpinn as cl

NUS, POINTS, NOISE, DRAWS = (0.02, 0.05, 0.1, 0.3, 1.0), 50, 0.01, 10
"""True viscosities; measured points; noise relative to the standard deviation of u; draws of the noise."""


def trained() -> cl.Surrogate:
    """One network for all viscosities."""
    return cl.train(cl.problems.Burgers(), steps=150, seed=0)


def measured(nu: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, times and noisy values of u, each of shape (POINTS,)."""
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
        """One Gauss-Newton step, at most a factor of e and inside the box, and the expected standard deviation."""
        rest, slope = misfit(log_nu, *data), jax.jacfwd(misfit)(log_nu, *data)
        change = jnp.clip(slope @ rest / (slope @ slope), -1, 1)
        deviation = NOISE * jnp.std(data[-1]) / jnp.linalg.norm(slope)
        return jnp.clip(log_nu - change, jnp.log(box.low), jnp.log(box.high)), deviation

    results = {}
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
        results[nu] = {"median": float(np.median(errors)), "expected": 0.6745 * float(np.median(deviations))}
        print(
            f"nu = {nu}: median error of {DRAWS} draws {results[nu]['median']:.2%}, "
            f"expected of the best estimate {results[nu]['expected']:.2%}"
        )
    return results


if __name__ == "__main__":
    main(trained())
