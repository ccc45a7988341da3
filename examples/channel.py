"""Flow in a channel whose height is a parameter: clpinn train examples/channel.py:Channel

It shows how parameters move the geometry.
"""

import clpinn as cl


class Channel(cl.Problem):
    """Fully developed flow under a unit pressure gradient, without slip at the walls y = 0 and y = height.

    The coordinates of the box form the unit square. `place` maps it to the channel. The equation, the conditions and
    the reference are written in physical coordinates.
    """

    coordinates = cl.Box(x=(0, 1), y=(0, 1))
    parameters = cl.Box(height=(0.5, 2.0), viscosity=cl.log(0.1, 10.0))
    outputs = ("u",)
    conditions = (
        cl.Condition("walls", lambda d: d.u, on=cl.boundary("y"), points=100),
        cl.Condition("inlet", lambda d: d.u_x, on=cl.boundary("x"), points=100),
    )

    def place(self, x, y, height):
        return {"x": x, "y": y * height}

    def residual(self, d, viscosity):
        return viscosity * (d.u_xx + d.u_yy) + 1

    def reference(self, x, y, height, viscosity):
        return {"u": y * (height - y) / (2 * viscosity) + 0 * x}
