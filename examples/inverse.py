"""An inverse problem: the viscosity of a Burgers flow from 50 noisy measurements: python examples/inverse.py

The surrogate knows the flow at every viscosity, and JAX its derivative by it. So a fit is a handful of Gauss-Newton
steps, milliseconds each, and can be repeated for many draws of the noise.
"""

import jax
import jax.numpy as jnp
import numpy as np

import clpinn as cl

NU, POINTS, NOISE, DRAWS = 0.05, 50, 0.01, 10
"""What is to be found; how many points are measured; the noise, relative to the spread of u; how often."""


def trained() -> cl.Surrogate:
    """One network for all viscosities."""
    return cl.train(cl.problems.Burgers(), steps=150, seed=0)


def measured(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, times and noisy values of u."""
    numbers = np.random.default_rng(seed)
    x, t = numbers.uniform(-1, 1, POINTS), numbers.uniform(0, 1, POINTS)
    u = cl.problems.Burgers().reference(x=x, t=t, nu=NU)["u"]
    return x, t, u + NOISE * np.std(u) * numbers.standard_normal(POINTS)


def main(surrogate: cl.Surrogate) -> dict[str, float]:
    u, box = surrogate.function(), surrogate.problem.parameters["nu"]

    def misfit(log_nu, x, t, values):
        return u(x=x, t=t, nu=jnp.exp(log_nu))["u"] - values

    @jax.jit
    def step(log_nu, *data):
        """Gauss-Newton, at most a factor of e, inside the box."""
        rest, slope = misfit(log_nu, *data), jax.jacfwd(misfit)(log_nu, *data)
        change = jnp.clip(slope @ rest / (slope @ slope), -1, 1)
        return jnp.clip(log_nu - change, jnp.log(box.low), jnp.log(box.high))

    found = []
    with jax.enable_x64(True):
        for draw in range(DRAWS):
            log_nu = jnp.log(0.1)
            for _ in range(15):
                log_nu = step(log_nu, *measured(draw))
            found.append(float(jnp.exp(log_nu)))
    errors = np.abs(np.array(found) / NU - 1)
    print(f"nu = {NU}; found: {', '.join(f'{nu:.5f}' for nu in found)}")
    print(f"median error of {DRAWS} draws: {np.median(errors):.2%}, largest: {np.max(errors):.2%}")
    return {"median": float(np.median(errors)), "largest": float(np.max(errors))}


if __name__ == "__main__":
    main(trained())
