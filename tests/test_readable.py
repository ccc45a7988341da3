"""Objects as people see them: short texts, small tables in a notebook, pictures."""

import builtins
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from running import natural_for
from small import Decay, Known
from test_one_meaning import Sector
from test_surrogate import made, with_heads

import clpinn as cl
from clpinn.errors import PlotError
from clpinn.formulation.problem import describe
from clpinn.problems import load_problem


class Hostile(Decay):
    """Texts that a notebook must not run."""

    equation = "<script>alert(1)</script> & more"


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> cl.Result:
    return cl.run(Decay(), natural_for("free", "steps=2"), tmp_path_factory.mktemp("run") / "run")


def test_texts_are_short_and_say_what_matters(result):
    headed = with_heads(made(Decay()), np.array([[1.1], [1.5]]), [True, False])
    metrics = cl.evaluate(Decay(), result.surrogate)
    decay = "Decay: outputs u, coordinates Box(x=(0, 1), t=(0, 1)), parameters Box(k=(0.5, 2)), conditions start"
    expected = [
        (Decay(), [decay]),
        (Decay.coordinates, ["Box(x=(0, 1), t=(0, 1))"]),
        (headed, ["Surrogate of Decay: outputs u", "network fnn 2x6, float32", "steps 3", "heads 2, 1 used"]),
        (headed.heads, ["Heads: 2 thetas, 1 used, adapted by head"]),
        (headed.trust(k=1.1), ["Trust: theta k = 1.1, residual norm ", "of the box"]),
        (metrics, ["Metrics: thetas 7, relative L2 error of u ", "worst ", " at k = "]),
        (result, ["Result: problem Decay, outcome steps after 2 steps, relative L2 error of u ", str(result.folder)]),
    ]
    for thing, texts in expected:
        assert len(repr(thing)) < 400 and "\n" not in repr(thing)
        for text in texts:
            assert text in repr(thing)
        assert thing._repr_html_().startswith("<div>") and len(thing._repr_html_()) < 2000


def test_hostile_texts_are_escaped():
    surrogate = made(Hostile())
    for thing in (Hostile(), surrogate, dataclasses.replace(surrogate, record={"steps": Hostile.equation})):
        assert "<script>" not in thing._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in Hostile()._repr_html_()


def test_files_hold_the_text_of_a_box_as_before():
    assert describe(cl.problems.AllenCahn())["parameters"] == repr(cl.problems.AllenCahn.parameters)
    box = cl.Box(x=(0, 1), nu=cl.log(0.01, 1), phi=cl.periodic(0, 360))
    assert repr(box) == "Box(x=(0, 1), nu=log(0.01, 1), phi=periodic(0, 360))"


def test_an_unfinished_problem_has_a_text():
    assert repr(cl.Problem()) == "Problem: outputs u, coordinates None"


# Pictures ----------------------------------------------------------------------------------------------------


def test_a_surrogate_draws_its_field():
    surrogate = made(cl.problems.Burgers(), jnp.float64)
    figure = surrogate.plot(20, nu=[0.03, 0.1])
    panels = [panel for panel in figure.axes if panel.get_xlabel() == "t"]
    assert [panel.get_title(loc="left") for panel in panels] == ["nu = 0.03", "nu = 0.1"]
    drawn = panels[1].collections[0].get_array().reshape(20, 20)
    assert np.allclose(drawn, surrogate.field(20, nu=0.1)["u"])  # (x, t), with x upwards
    (line,) = surrogate.plot(20, nu=0.03, x=0.5).axes[0].lines
    t = np.linspace(0, 1, 20)
    assert np.array_equal(line.get_xdata(), t) and np.allclose(line.get_ydata(), surrogate(x=0.5, t=t, nu=0.03)["u"])


def test_pictures_of_several_outputs_moved_domains_and_many_coordinates(tmp_path):
    flow = made(cl.problems.Kovasznay()).plot(9, Re=40)
    assert len([panel for panel in flow.axes if panel.get_xlabel() == "x"]) == 3
    panel = made(load_problem("examples/channel.py:Channel")).plot(9, height=2.0, viscosity=1.0).axes[0]
    assert panel.get_ylim() == (0, 2)
    made(Sector()).plot(x=np.linspace(-1, 1, 20), y=np.linspace(-1, 1, 20), R=0.5).savefig(tmp_path / "ring.png")

    class Room(cl.Problem):
        coordinates = cl.Box(x=(0, 1), y=(0, 1), z=(0, 1), t=(0, 1))

        def residual(self, d):
            return d.u_t - d.u_xx

    assert made(Room()).plot(5).axes[0].get_xlabel() == "x"
    for given in ({"x": 0.5, "y": 0.5, "z": 0.5, "t": 0.5}, {"x": 0.5}):
        with pytest.raises(PlotError, match="one or two coordinates and at most 6 thetas, but this field has"):
            made(Room()).plot(3, **given)


# Results -----------------------------------------------------------------------------------------------------


def test_a_result_writes_its_report(result, tmp_path, monkeypatch):
    monkeypatch.setattr("clpinn.report.page.KINDS", {})
    assert result.report() == result.folder / "report.html"
    assert (result.folder / "report.html").read_text().startswith("<!doctype html>")
    assert result.report(tmp_path / "page.html").is_file()


def test_metrics_as_a_data_frame(monkeypatch):
    metrics = cl.evaluate(Known(), made(Known()))
    frame = pytest.importorskip("pandas") and metrics.to_dataframe()
    assert list(frame["a"]) == [0.0, 0.5, 1.0] and frame.to_dict("records")[1] == metrics.table()[1]
    known = builtins.__import__

    def without_pandas(name, *rest):
        if name == "pandas":
            raise ImportError(name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(cl.ClpinnError, match="needs pandas: pip install pandas"):
        metrics.to_dataframe()
