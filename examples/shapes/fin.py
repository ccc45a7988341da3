"""A cooling fin. Parameters: its length, and the heat transfer from its sides (a Robin condition)."""

import numpy as np

import clpinn as cl


class Fin(cl.Problem):
    coordinates = cl.Box(x=(0, 4), y=(0, 1))
    parameters = cl.Box(length=(1, 4), h=cl.log(0.1, 2))
    outputs = ("T",)
    conditions = (
        cl.Condition("sides", lambda d, h: d.T_n + h * d.T, on=cl.on("top")),
        cl.Condition("symmetry and tip", lambda d: d.T_n, on=cl.on("bottom", "right")),
    )

    def domain(self, length):  # half of the fin, from its root to its tip
        return cl.Rectangle(x=(0, length), y=(0, 1))

    def residual(self, d):
        return d.T_xx + d.T_yy

    def constrain(self, raw, x):
        return 1 + x * raw

    def reference(self, x, y, length, h):
        x, y, length, h = np.broadcast_arrays(*(np.asarray(v, float) for v in (x, y, length, h)))
        assert np.ptp(length) == np.ptp(h) == 0, "one theta at a time"
        total = np.zeros(x.shape)
        for b in eigenvalues(h.flat[0]):
            decay = (np.exp(-b * x) + np.exp(b * (x - 2 * length))) / (1 + np.exp(-2 * b * length))
            total += 4 * np.sin(b) / (2 * b + np.sin(2 * b)) * np.cos(b * y) * decay
        return {"T": total}


def eigenvalues(h):
    """The first solutions of b tan b = h, by bisection."""
    low = np.arange(400) * np.pi
    high = low + np.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        above = middle * np.tan(middle) > h
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2
