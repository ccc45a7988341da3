"""A design question: which material cools a rod fast enough? python examples/design.py

One call sweeps over thousands of diffusivities. Newton's method then finds the best one, with gradients through the
surrogate.
"""

import jax
import numpy as np
from own_pde import trained

import clpinn as cl

LIMIT, WHEN = 0.1, 0.5
"""The middle of the rod must be colder than LIMIT at the time WHEN."""


def main(surrogate: cl.Surrogate) -> dict[str, float]:
    kappas = np.geomspace(0.01, 1, 5000)
    middle = surrogate(x=0.5, t=WHEN, kappa=kappas)["u"]
    swept = float(kappas[np.argmax(middle < LIMIT)])
    print(f"of {len(kappas)} materials the first that cools enough has kappa = {swept:.4f}")

    function = surrogate.function()
    with jax.enable_x64(True):
        excess = jax.value_and_grad(lambda kappa: function(x=0.5, t=WHEN, kappa=kappa)["u"] - LIMIT)
        kappa = swept
        for _ in range(5):  # Newton's method
            value, slope = excess(kappa)
            kappa = float(kappa - value / slope)
    exact = float(np.log(1 / LIMIT) / (np.pi**2 * WHEN))
    print(f"by gradients: kappa = {kappa:.6f}, exactly: {exact:.6f}")
    return {"swept": swept, "kappa": kappa, "exact": exact}


if __name__ == "__main__":
    main(trained())
