"""Pictures: every shape of problem can be drawn."""

import numpy as np
import pytest

import clpinn as cl
from clpinn.problems import load_problem
from clpinn.report.figures import plot_reference


class Line(cl.Problem):
    """One coordinate, no parameters."""

    coordinates = cl.Box(x=(0, 1))

    def residual(self, d):
        return d.u_x

    def reference(self, x):
        return {"u": 0 * x + 1}


class Solid(cl.Problem):
    """Three coordinates, two outputs."""

    coordinates = cl.Box(x=(0, 1), y=(0, 1), z=(0, 1))
    parameters = cl.Box(a=cl.log(0.1, 10))
    outputs = ("u", "v")

    def residual(self, d):
        return d.u_x + d.v_y

    def reference(self, x, y, z, a):
        return {"u": a * x + z, "v": np.sin(y) * z}


@pytest.mark.parametrize(
    "problem", [Line(), Solid(), cl.problems.Kovasznay(), load_problem("examples/channel.py")], ids=type
)
@pytest.mark.parametrize("ending", [".png", ".pdf"])
def test_every_shape_is_drawn(problem, ending, tmp_path):
    path = tmp_path / f"picture{ending}"
    plot_reference(problem, path)
    assert path.stat().st_size > 5000


def test_a_name_without_an_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match="needs an ending"):
        plot_reference(Line(), tmp_path / "picture")
