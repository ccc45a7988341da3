"""Your own PDE, from the equation to a field, its estimated error and a flux: python examples/own_pde.py

The equation is in heat.py. Training takes a few seconds here; a minute gives a better surrogate.
"""

import numpy as np
from heat import Heat

import clpinn as cl


def trained() -> cl.Surrogate:
    """One network for all diffusivities."""
    return cl.train(Heat(), steps=60, seed=0)


def main(surrogate: cl.Surrogate) -> dict[str, float]:
    field = surrogate.field(kappa=[0.02, 0.1, 0.5])
    exact = np.exp(-field["kappa"] * np.pi**2 * field["t"]) * np.sin(np.pi * field["x"])
    error = float(np.sqrt(((field["u"] - exact) ** 2).sum() / (exact**2).sum()))
    print(f"relative error at three diffusivities: {error:.1e}")

    estimate = surrogate.error(kappa=0.1)
    print(estimate)  # this needs no exact solution

    flux = surrogate.derivative("u_x", x=0.0, t=0.5, kappa=0.1)
    print(f"heat flux at the left end: {-0.1 * float(flux):.4f}")
    return {"error": error, "estimate": estimate.relative_l2["u"], "slope": float(flux)}


if __name__ == "__main__":
    main(trained())
