"""Pictures and the report page: every shape of problem can be drawn, and a page stands alone."""

import dataclasses
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
import xarray
from matplotlib import rcParams
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from small import Decay, Inflow, made_up_map
from test_surrogate import made
from typer.testing import CliRunner

import clpinn as cl
from clpinn import protocol
from clpinn.cli.app import app
from clpinn.drawing import colours
from clpinn.drawing.style import save
from clpinn.errors import PlotError
from clpinn.formulation.references import reference_at
from clpinn.problems import load_problem
from clpinn.report.captions import caption, heading
from clpinn.report.fields import plot_reference
from clpinn.report.figures import KINDS, plot, reasons
from clpinn.report.page import page
from clpinn.runs.directory import RunDirectory
from clpinn.surrogate.adaptations import Heads
from clpinn.training.settings import override


class Line(cl.Problem):
    """One coordinate, no parameters."""

    coordinates = cl.Box(x=(0, 1))
    evaluation = cl.Grid(x=np.linspace(0, 1, 21))

    def residual(self, d):
        return d.u_x

    def reference(self, x):
        return {"u": np.sin(5 * x)}


class Solid(cl.Problem):
    """Three coordinates, two outputs."""

    evaluation = cl.Grid(x=np.linspace(0, 1, 6), y=np.linspace(0, 1, 5), z=np.linspace(0, 1, 3))

    coordinates = cl.Box(x=(0, 1), y=(0, 1), z=(0, 1))
    parameters = cl.Box(a=cl.log(0.1, 10))
    outputs = ("u", "v")

    def residual(self, d):
        return d.u_x + d.v_y

    def reference(self, x, y, z, a):
        return {"u": a * x + z, "v": np.sin(y) * z}


class Flow(cl.problems.Kovasznay):
    """Three outputs, on few points."""

    evaluation = cl.Grid(x=np.linspace(-0.5, 1.0, 8), y=np.linspace(-0.5, 1.5, 9))


class Channel(type(load_problem("examples/channel.py"))):
    """A geometry that theta moves, on few points and thetas."""

    evaluation = cl.Grid(x=np.linspace(0, 1, 4), y=np.linspace(0, 1, 7))


SHAPES = [Line(), Solid(), Flow(), Channel()]


@pytest.mark.parametrize("problem", SHAPES, ids=type)
def test_the_reference_of_every_shape_is_drawn(problem, tmp_path, monkeypatch):
    """At the box's low corner, middle and high corner: the drawn values are the reference's."""
    saved = []
    monkeypatch.setattr("clpinn.report.fields.save", lambda figure, path: saved.append(figure) or save(figure, path))
    path = tmp_path / "picture.png"
    plot_reference(problem, path)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
    units = [0.0, 0.5, 1.0] if len(problem.parameters) else [0.0]
    thetas = [np.array([axis.from_unit(unit) for axis in problem.parameters.axes]) for unit in units]
    panels = [panel for panel in saved[0].axes if panel.get_label() != "<colorbar>"]
    assert len(panels) == len(problem.outputs) * len(thetas)
    # A third coordinate is at the middle of its axis.
    grid = problem.evaluation.points
    rows = grid[np.isclose(grid[:, 2], 0.5)] if grid.shape[1] > 2 else grid
    for row in range(len(problem.outputs)):
        for column, theta in enumerate(thetas):
            panel = panels[row * len(thetas) + column]
            drawn = panel.collections[0].get_array() if len(problem.coordinates) > 1 else panel.lines[0].get_ydata()
            np.testing.assert_allclose(np.ravel(drawn), reference_at(problem, rows, theta)[row], rtol=1e-12)
            for name, value in zip(problem.parameters if row == 0 else (), theta):
                assert f"{name} = {value:.4g}" in panel.get_title(loc="left")


def test_the_ending_says_the_format(tmp_path):
    for problem, name, magic in ((Channel(), "picture.pdf", b"%PDF"), (Line(), "picture.svg", b"<?xml")):
        plot_reference(problem, tmp_path / name)
        content = (tmp_path / name).read_bytes()
        assert content.startswith(magic) and len(content) > 5000


def test_a_name_without_an_ending_is_refused(tmp_path):
    with pytest.raises(PlotError, match="needs an ending"):
        plot_reference(Line(), tmp_path / "picture")
    with pytest.raises(PlotError, match=r"could not be drawn.*Give a file such as"):
        plot_reference(Line(), tmp_path / "picture.xyz")


# Figures of runs ---------------------------------------------------------------------------------------------


def made_up(problem: cl.Problem, name: str = "my.py:Own", unresolved: int | None = None) -> RunDirectory:
    """A run that was never trained, with errors by a formula and a made-up map of estimates."""
    run, thetas = RunDirectory(Path("nowhere")), problem.candidates.points
    errors = dict(zip(problem.parameters, thetas.T)) | {"res_pde": np.ones(len(thetas))}
    if problem.reference is not None:
        errors |= {f"rel_l2_{output}": np.arange(1, len(thetas) + 1.0) for output in problem.outputs}
    run.__dict__.update(
        problem=problem,
        surrogate=made(problem, jnp.float64).with_errors(made_up_map(problem, unresolved)),
        errors=errors,
        metrics={"problem": name, "method": "acr", "seed": 0},
        history=[],
        events=[],
    )
    return run


def values_of(line) -> np.ndarray:
    return np.asarray(line.get_ydata(), float)


def test_errors_over_one_parameter_are_a_line():
    run = made_up(cl.problems.Burgers(), "burgers")
    panel = plot(run, "errors").axes[0]
    assert panel.get_xscale() == panel.get_yscale() == "log" and panel.get_xlabel() == "nu"
    drawn, published = panel.lines[0], panel.lines[1]
    assert np.array_equal(values_of(drawn), run.errors["rel_l2_u"])
    assert values_of(published)[0] == 0.01025  # ACR in the paper


def test_errors_over_two_parameters_are_a_map():
    figure = plot(made_up(load_problem("examples/channel.py:Channel")), "errors")
    panel = figure.axes[0]
    field = panel.collections[0].get_array()
    assert field.shape == (20, 20) and field[0, 1] == 21  # the first parameter runs to the right
    assert panel.get_yscale() == "log" and panel.get_xscale() == "linear"


def test_errors_over_four_parameters_are_slices():
    figure = plot(made_up(cl.problems.PoissonBoltzmann()), "errors")
    assert [panel.get_xlabel() for panel in figure.axes] == ["mu1", "mu2", "k", "A"]
    median, through_worst = figure.axes[0].lines
    table = np.arange(1, 1297.0).reshape(6, 216)
    assert np.array_equal(values_of(median), np.median(table, axis=1))
    assert np.array_equal(values_of(through_worst), table[:, -1])


def test_estimates_over_one_parameter_are_a_line_in_a_band():
    """With the estimates as dots, hollow where they are not resolved, and the true errors as a dotted line."""
    run = made_up(cl.problems.Burgers(), unresolved=3)
    errors, panel = run.surrogate.errors, plot(run, "estimates").axes[0]
    low, middle, high = errors.over(run.problem.candidates.points)["u"]
    line, known, unknown, exact = panel.lines[:4]
    np.testing.assert_array_equal(values_of(line), middle)
    assert np.array_equal(known.get_xdata(), errors.thetas[errors.resolved, 0])
    assert np.array_equal(values_of(unknown), errors.relative_l2[3]) and unknown.get_markerfacecolor() == "none"
    assert np.array_equal(values_of(exact), run.errors["rel_l2_u"]) and exact.get_linestyle() == ":"
    band = panel.collections[0].get_paths()[0].vertices[:, 1]
    assert {*low, *high} <= {*band} and panel.get_yscale() == "log"
    named = {text.get_text() for text in panel.get_legend().get_texts()}
    assert named == {"estimated", "90 % band", "estimate", "not resolved", "against the reference"}


@pytest.mark.parametrize("reference", [True, False])
def test_estimates_over_two_parameters_are_a_map_beside_the_true_one(reference):
    """Both have the same colours."""
    problem = Channel()
    if not reference:
        problem.reference = None
    run = made_up(problem, unresolved=2)
    figure = plot(run, "estimates")
    maps = [
        mesh for panel in figure.axes for mesh in panel.collections if isinstance(mesh, QuadMesh) and panel.get_xlabel()
    ]
    (_, middle, _), shape = run.surrogate.errors.over(problem.candidates.points)["u"], problem.candidates.shape
    np.testing.assert_array_equal(maps[0].get_array(), middle.reshape(shape).T)
    assert len(maps) == 1 + reference
    if reference:
        np.testing.assert_array_equal(maps[1].get_array(), run.errors["rel_l2_u"].reshape(shape).T)
        assert maps[0].norm is maps[1].norm and maps[0].norm.vmax == len(problem.candidates)
    dots, crosses = (marks.get_offsets() for marks in figure.axes[0].collections[1:3])
    assert np.array_equal(dots, run.surrogate.errors.thetas[run.surrogate.errors.resolved])
    assert np.array_equal(crosses, run.surrogate.errors.thetas[[2]])


def test_estimates_over_four_parameters_are_slices():
    run = made_up(cl.problems.PoissonBoltzmann())
    figure = plot(run, "estimates")
    assert [panel.get_xlabel() for panel in figure.axes] == ["mu1", "mu2", "k", "A"]
    table = run.surrogate.errors.over(run.problem.candidates.points)["u"][1].reshape(6, 216)
    np.testing.assert_array_equal(values_of(figure.axes[0].lines[0]), np.median(table, axis=1))


def test_estimates_say_how_many_are_resolved():
    assert "all 10 estimates are resolved" in caption(made_up(cl.problems.Burgers()), "estimates")
    told = caption(made_up(cl.problems.Burgers(), unresolved=0), "estimates")
    assert "no reference is used" in told and "9 of 10 estimates are resolved" in told and "to compare" in told
    assert "to compare" not in caption(made_up(Unknown()), "estimates")


def test_a_run_without_a_map_says_how_to_make_one():
    run = made_up(cl.problems.Burgers())
    run.__dict__["surrogate"] = run.surrogate.with_errors(None)
    with pytest.raises(PlotError, match="no map of estimated errors. clpinn evaluate RUN makes one"):
        plot(run, "estimates")
    alone = {name: getattr(made_up_map(run.problem), name)[:1] for name in ("thetas", "resolved")}
    run.__dict__["surrogate"] = run.surrogate.with_errors(dataclasses.replace(made_up_map(run.problem), **alone))
    assert reasons(run)["estimates"] == "its error is estimated at a single theta"
    nothing = dataclasses.replace(made_up_map(run.problem), resolved=np.zeros(10, bool))
    run.__dict__["surrogate"] = run.surrogate.with_errors(nothing)
    with pytest.raises(PlotError, match="none of its estimates is resolved"):
        plot(run, "estimates")


@pytest.mark.parametrize("problem", SHAPES, ids=type)
def test_fields_of_every_shape(problem, tmp_path):
    figure = plot(made_up(problem), "fields")
    save(figure, tmp_path / "fields.png")
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    wanted = {"Line": 0, "Solid": 2, "Flow": 3, "Channel": 3}[type(problem).__name__]
    assert sum(title.startswith("absolute error") for title in titles) == wanted


def test_fields_at_thetas_of_ones_choice_show_the_surrogate():
    run = made_up(cl.problems.Burgers())
    figure = plot(run, "fields", np.array([[0.02]]))
    mesh = figure.axes[0].collections[0].get_array().reshape(200, 100)
    assert np.allclose(mesh, run.surrogate.field(nu=0.02)["u"])
    assert any("nu = 0.02" in text.get_text() for text in figure.axes[0].texts)


def test_streamlines_are_those_of_a_flow():
    run = made_up(Flow())
    figure = plot(run, "streamlines", np.array([[20.0]]))
    assert [panel.get_title(loc="left") for panel in figure.axes[:2]] == ["surrogate, Re = 20", "reference, Re = 20"]
    x, y = np.linspace(-0.5, 1.0, 8)[:, None], np.linspace(-0.5, 1.5, 9)
    for panel, flow in zip(figure.axes, (run.surrogate(x=x, y=y, Re=20.0), Flow().reference(x, y, 20.0)), strict=False):
        speed = np.hypot(flow["u"], flow["v"])
        np.testing.assert_allclose(np.ravel(panel.collections[0].get_array()), speed.T.ravel(), rtol=1e-6)
        assert any(isinstance(drawn, LineCollection) for drawn in panel.collections)


def test_tasks_are_drawn_by_what_happened_to_them():
    run = made_up(Decay())
    moved = {"entered": None, "restored": None}
    run.__dict__["events"] = [
        {"event": 1, "active": [[0.5], [2.0], [1.0]], "replay": [], "moved_entered": [1.0], "moved_restored": None},
        {"event": 2, "active": [[0.5], [2.0]], "replay": [[1.0]]} | {f"moved_{k}": v for k, v in moved.items()},
        {"event": 3, "active": [[0.5], [1.0]], "replay": [[2.0]], "moved_entered": None, "moved_restored": [1.0]},
    ]
    lines = {line.get_label(): line.get_xydata().tolist() for line in plot(run, "tasks").axes[0].lines}
    assert lines["newly selected"] == [[1, 1.0]] and lines["restored"] == [[3, 1.0]]
    assert lines["replayed"] == [[2, 1.0], [3, 2.0]] and len(lines["dense"]) == 7


def test_losses_tell_where_the_optimiser_changes():
    run = made_up(Decay())
    stages = ["adam", "adam", "lbfgs", "done"]
    run.__dict__["history"] = [
        {"step": 10 * i, "stage": stage, "loss": 1 / i, "terms": {"a": 0.5, "b": None}, "validation": 2.0}
        for i, stage in enumerate(stages, start=1)
    ]
    panel = plot(run, "losses").axes[0]
    assert panel.get_yscale() == "log" and [text.get_text() for text in panel.texts] == ["L-BFGS"]
    assert panel.lines[-1].get_xdata()[0] == 20 and {"loss", "a", "b", "validation"} <= {
        line.get_label() for line in panel.lines
    }


@pytest.mark.parametrize("problem", [Solid(), Decay()], ids=type)
def test_heads_are_drawn_before_against_after(problem):
    run = made_up(problem)
    thetas = problem.candidates.points[:3]
    with jax.enable_x64(True):
        heads = Heads.blank(problem, run.surrogate.network, "head", 3)
    figures = {"loss_before": [4.0, 2.0, 1.0], "loss_after": [2.0, 1.0, 3.0]}
    figures |= {"error_before": [2.0, 2.0, 2.0], "error_after": [1.0, 1.0, 1.0]}
    heads = dataclasses.replace(heads, thetas=thetas, **{name: np.array(values) for name, values in figures.items()})
    run.__dict__["adapted"] = dataclasses.replace(run.surrogate, heads=heads)
    figure = plot(run, "heads")
    identity, used, kept = figure.axes[0].lines[:3]
    assert len(used.get_xdata()) == 2 and len(kept.get_xdata()) == 1
    errors = cl.evaluate(problem, run.surrogate, thetas=thetas).outputs[problem.outputs[0]].rel_l2
    np.testing.assert_allclose(used.get_xdata(), errors[:2])
    np.testing.assert_allclose(kept.get_ydata(), errors[2:])  # the base answers there
    assert identity.get_xdata()[0] == identity.get_ydata()[0]


def test_corrected_thetas_are_not_called_heads():
    run = made_up(Inflow())
    run.__dict__["adapted"] = run.surrogate.correct(k=1.0)
    figure = plot(run, "heads")
    assert "corrected" in {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert heading(run, "heads") == "Corrected thetas" and "head" not in caption(run, "heads")


def test_kinds_that_make_no_sense_are_told():
    run = made_up(cl.problems.Burgers())
    for kind, message in (
        ("streamlines", "is no flow.*Use one of fields, errors, estimates."),
        ("tasks", "no task was selected"),
        ("losses", "too short"),
        ("heads", "not adapted to single thetas"),
        ("pie", "no kind 'pie'. Use one of fields"),
    ):
        with pytest.raises(PlotError, match=message):
            plot(run, kind)
    assert reasons(made_up(Line()))["errors"] == "the problem has no parameters"


class Unknown(Solid):
    """Without a reference."""

    reference = None


@pytest.mark.parametrize("problem", [Solid(), Channel(), Line()], ids=type)
def test_captions_with_a_reference_speak_of_errors(problem):
    run = made_up(problem)
    shown = caption(run, "fields")
    assert "reference" in shown and "absolute error" in shown
    if len(problem.parameters):
        assert ("smallest" in shown) == (len(problem.outputs) == 1) and "largest error" in shown
        assert "Relative L2 error against the reference" in caption(run, "errors")
        assert heading(run, "errors") == "Errors over the parameters"


def test_captions_without_a_reference_say_what_is_drawn():
    """The fields are at corners and the middle of the box, and the map shows residuals: no caption speaks of errors."""
    run = made_up(Unknown())
    figure = plot(run, "fields")
    thetas = list(dict.fromkeys(text.get_text() for panel in figure.axes for text in panel.texts))
    assert thetas == ["a = 0.1", "a = 1", "a = 10"]
    assert "low corner, the middle and the high corner" in caption(run, "fields")
    assert "Its estimated errors are the kind estimates" in (reasons(run)["errors"] or "")
    run.__dict__["surrogate"] = run.surrogate.with_errors(None)
    assert plot(run, "errors").axes[0].get_ylabel() == "mean |residual|"
    assert caption(run, "errors").startswith("Mean |residual|")
    assert heading(run, "errors") == "Residuals over the parameters"
    for kind in ("fields", "streamlines", "heads"):
        assert "error" not in caption(run, kind)


def test_a_single_theta_is_not_called_the_largest_error():
    """A standard PINN is evaluated at its own theta."""
    run = made_up(Channel())
    run.__dict__["errors"] = {name: column[:1] for name, column in run.errors.items()}
    assert "only one that was evaluated" in caption(run, "fields")


def test_drawing_leaves_matplotlib_as_it_was():
    before = dict(rcParams)
    plot(made_up(Solid()), "errors")
    assert dict(rcParams) == before


# Colours ------------------------------------------------------------------------------------------------------


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Oklab colours of sRGB rows in [0, 1] (Ottosson 2020): equal distances look equally large."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = linear @ np.transpose(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    return np.cbrt(cones) @ np.transpose(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )


def assert_even(table: np.ndarray) -> None:
    """Steps of lightness have one sign and about one length, and so have steps of colour."""
    steps = np.diff(oklab(table)[::5], axis=0)  # five entries at once: a single one is about as large as its rounding
    for lengths in (steps[:, 0] * np.sign(steps[0, 0]), np.linalg.norm(steps, axis=1)):
        assert np.all(lengths > 0.7 * lengths.mean()) and np.all(lengths < 1.4 * lengths.mean())


def test_colour_maps_are_even():
    """Those of figures, and the tables in the page, which are the same."""
    for colour_map in (colours.VALUES, colours.ERRORS):
        assert_even(colour_map(np.arange(256))[:, :3])
    signed = colours.SIGNED(np.arange(256))[:, :3]
    assert_even(signed[:128])
    assert_even(signed[128:])
    lightness = oklab(signed)[:, 0]
    np.testing.assert_allclose(lightness, lightness[::-1], atol=0.002)  # both signs weigh the same
    with pytest.raises(AssertionError):
        assert_even(matplotlib.colormaps["jet"](np.arange(256))[:, :3])


def test_every_field_is_drawn_in_an_even_map():
    names = {colours.VALUES.name, colours.ERRORS.name, colours.SIGNED.name}
    for problem, kinds in ((Flow(), ("fields", "streamlines")), (Channel(), ("fields", "errors", "estimates"))):
        for kind in kinds:
            drawn = [mesh for panel in plot(made_up(problem), kind).axes for mesh in panel.collections]
            used = {mesh.get_cmap().name for mesh in drawn if mesh.get_array() is not None}
            assert used and used <= names
    signed = colours.value_colours(-2.0, 1.0)
    assert (signed["cmap"].name, signed["vmin"], signed["vmax"]) == ("signed", -2.0, 2.0)
    assert colours.value_colours(-0.01, 1.0) == {"cmap": colours.VALUES, "vmin": -0.01, "vmax": 1.0}


def test_a_dark_figure_has_light_ink():
    for kind, problem in (("errors", Solid()), ("estimates", Solid()), ("fields", Channel()), ("streamlines", Flow())):
        figure = plot(made_up(problem), kind)
        light = drawn_pixels(figure)
        colours.darken(figure)
        dark = drawn_pixels(figure)
        assert light[0, 0].mean() > 0.99 and dark[0, 0].mean() < 0.12
        texts = [text.get_color() for text in figure.findobj(Text) if text.get_text()]
        assert texts and all(np.mean(to_rgba(colour)[:3]) > 0.5 for colour in texts)
        # No ink is left that cannot be seen on dark paper, apart from the fields themselves.
        if kind in ("errors", "estimates"):
            assert not np.any(dark.max(axis=2) < 0.05)


def drawn_pixels(figure) -> np.ndarray:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50)
    buffer.seek(0)
    return matplotlib.image.imread(buffer)[..., :3]


# The page and the commands -----------------------------------------------------------------------------------


def short_run(out: Path) -> cl.Surrogate:
    """Train for 20 steps with task selection; gives the surrogate."""
    size = ["network.width=6", "network.depth=2", "natural.rows=64", "steps=20", "tasks.interval=10", "tasks.active=4"]
    return cl.run(Decay(), override(cl.natural(Decay(), "acr"), size), out, name="tests/small.py:Decay").surrogate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The directory of a short run; its name has a character to escape."""
    out = tmp_path_factory.mktemp("runs") / "a<b"
    short_run(out)
    return out


class Parts(HTMLParser):
    """Tags of a page, and where it points to."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.sources += [value for name, value in attributes if name in ("src", "srcset", "href", "action", "data")]


def test_a_page_stands_alone_and_says_it_all(folder):
    run = RunDirectory(folder)
    run.__dict__["surrogate"] = run.surrogate.with_errors(made_up_map(run.problem))
    text = page([run])
    found = Parts(text)
    assert found.tags.count("img") == found.tags.count("source") == 5  # in light colours and in dark ones
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[:2] == ["", "Summary"]  # the explorer comes first; it fills in its own title
    assert all(source.startswith("data:image/") for source in found.sources)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", re.sub(r"base64,[^\"]*", "", text))
    metrics = json.loads((folder / "metrics.json").read_text())
    assert f"{metrics['outputs']['u']['rel_l2_macro']:.2e}" in text and "20 steps" in text
    assert "clpinn train tests/small.py:Decay --config config.json" in text
    assert "&quot;jaxlib&quot;" in text and "no reference is used" in text
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text and len(text) < 2_000_000


def test_runs_stand_side_by_side(folder, monkeypatch):
    first, second = RunDirectory(folder), RunDirectory(folder)
    second.__dict__["metrics"] = first.metrics | {"problem": "burgers", "method": "acr2", "seed": 7}
    monkeypatch.setattr("clpinn.report.page.KINDS", {"losses": KINDS["losses"]})
    text = page([first, second])
    assert Parts(text).tags.count("img") == 2
    assert "ACR2-arch 1.77e-03" in text and "a&lt;b" not in text.split("<h2>")[1]  # two of one name are told by method


def test_the_summary_has_estimates_with_and_without_a_reference(folder, monkeypatch):
    """From the metrics if they are there, otherwise from the surrogate; a run without a map has a dash."""
    monkeypatch.setattr("clpinn.report.page.KINDS", {})
    first, second, third = (RunDirectory(folder) for _ in range(3))
    errors = made_up_map(Decay(), unresolved=1)
    first.__dict__["surrogate"] = first.surrogate.with_errors(errors)
    told = {"macro": {"value": 0.5, "low": 0.25, "high": None}, "worst": {"value": 7.0, "low": 6.0, "high": 8.0}}
    estimated = {"thetas": 4, "resolved": 0.75, "outputs": {"u": told}}
    second.__dict__["metrics"] = second.metrics | {"outputs": {}, "has_reference": False, "estimated": estimated}
    third.__dict__["surrogate"] = third.surrogate.with_errors(None)
    third.__dict__["metrics"] = {name: value for name, value in third.metrics.items() if name != "estimated"}
    rows = {cells[0]: cells[1:] for cells in cells_of(page([first, second, third]))}
    mean = errors.macro["u"]
    assert rows["u: estimated mean relative L2"] == [
        f"{mean.value:.2e} ({mean.low:.2e} to {mean.high:.2e})",
        "5.00e-01 (2.50e-01 to not finite)",
        "–",
    ]
    assert rows["u: estimated worst relative L2"][1] == "7.00e+00 (6.00e+00 to 8.00e+00)"
    assert rows["estimates resolved"] == ["86% of 7 thetas", "75% of 4 thetas", "–"]
    assert "no map of estimated errors. clpinn evaluate RUN makes one" in page([third])


def cells_of(text: str) -> list[list[str]]:
    """The rows of the first table of a page."""
    table = text.split("<h2>Summary</h2>")[1].split("</table>")[0]
    return [re.findall("<td[^>]*>(.*?)</td>", row) for row in table.split("<tr")[2:]]


def test_names_are_escaped(folder, monkeypatch):
    run = RunDirectory(folder)
    run.__dict__["metrics"] = run.metrics | {"problem": "<script>alert(1)</script>", "method": '"><img src=x>'}
    monkeypatch.setattr("clpinn.report.page.KINDS", {})
    monkeypatch.setattr("clpinn.report.page.explorer_html", lambda surrogate, errors: "")
    found = Parts(page([run]))
    assert "script" not in found.tags and "img" not in found.tags


def test_a_run_without_its_problem_still_has_a_page(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text()) | {"problem": None}  # as cl.run writes it
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    run = RunDirectory(tmp_path / "run")
    assert {kind for kind, reason in reasons(run).items() if reason is None} == {"losses"}
    text = page([run])
    assert Parts(text).tags.count("img") == 1 and "script" not in Parts(text).tags
    assert "Some figures are missing" in text and "--problem my_pde.py:Decay" in text and "clpinn.run" in text


def test_errors_at_other_thetas_than_the_candidates_are_not_drawn(folder):
    """A standard PINN is evaluated at its own theta."""
    run = RunDirectory(folder)
    run.__dict__["errors"] = {name: column[:1] for name, column in run.errors.items()}
    assert "candidates" in (reasons(run)["errors"] or "")
    with pytest.raises(PlotError, match="not those at the problem's candidates"):
        plot(run, "errors")


def test_the_paper_has_a_best_method():
    assert protocol.best("burgers") == "ACR2-arch" and protocol.best("allen_cahn") == "ACR"
    assert protocol.rel_l2("kovasznay", "free") == protocol.REL_L2["kovasznay"]["ACR"]
    assert protocol.rel_l2("burgers", "uni") == {"u": 0.012153} and protocol.rel_l2("heat", "uni") is None


def clpinn(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_the_commands(folder, tmp_path, monkeypatch):
    """As a user types them: predict, export, plot, report."""
    run, field = str(folder), tmp_path / "field.nc"
    told = clpinn("predict", run, "k=3", "x=0.5", "--points", "5", "--out", str(field), "--json")
    about = json.loads(told.stdout)
    assert about["grid"] == {"t": 5} and len(about["values"]["u"]) == 5 and about["error"]["theta"] == {"k": 3.0}
    assert "warning: k is 3, outside its box" in told.stderr
    with xarray.open_dataset(field) as found:
        assert float(found["k"]) == 3 and found["u"].values.tolist() == about["values"]["u"]
    inside = json.loads(clpinn("predict", run, "k=1", "x=0.5", "--points", "5", "--json").stdout)
    exact = cl.load(folder / "model.clpinn", Decay())(x=0.5, t=np.linspace(0, 1, 5), k=1.0)["u"]
    np.testing.assert_allclose(inside["values"]["u"], exact, rtol=1e-12)
    assert inside["theta"] == {"k": 1.0} and inside["point"] == {"x": 0.5}
    assert inside["coordinates"] == {"t": [0.0, 0.25, 0.5, 0.75, 1.0]}
    shown = clpinn("predict", run, "k=1", "x=0.5", "--points", "5").stdout
    rows = [line.split("│")[1:3] for line in shown.splitlines() if line.startswith("│")]
    assert np.array(rows, float) == pytest.approx(np.stack([np.linspace(0, 1, 5), exact], axis=1), rel=1e-8)
    shown = clpinn("predict", run, "k=1", "x=0.5", "--points", "201").stdout
    lines = [line.split("│")[1] for line in shown.splitlines() if line.startswith("│")]
    assert len(lines) == 25 and float(lines[0]) == 0 and float(lines[-1]) == 1 and "25 of 201 values" in shown
    assert (
        len(json.loads(clpinn("predict", run, "k=1", "x=0.5", "--points", "201", "--json").stdout)["values"]["u"])
        == 201
    )
    over_theta = clpinn("predict", run, "k=1,2", "x=0.5", "t=0.25").stdout
    rows = [line.split("│")[1:3] for line in over_theta.splitlines() if line.startswith("│")]
    assert [float(row[0]) for row in rows] == [1.0, 2.0] and float(rows[0][1]) == pytest.approx(exact[1], rel=1e-8)
    with pytest.raises(cl.DomainError, match="k is missing"):
        clpinn("predict", run)
    clpinn("export", run, str(tmp_path / "decay.mlir"))
    assert "stablehlo" in (tmp_path / "decay.mlir").read_text()
    clpinn("plot", run, "losses", "--out", str(tmp_path / "losses.pdf"))
    assert (tmp_path / "losses.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(PlotError, match="Use one of fields, errors, .*tasks, losses"):
        clpinn("plot", run, "streamlines")
    monkeypatch.setattr("clpinn.report.page.KINDS", {"losses": KINDS["losses"]})
    assert json.loads(clpinn("report", run, "--json").stdout)["bytes"] > 10_000
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    with pytest.raises(cl.ClpinnError, match="is not a run"):
        clpinn("report", run, str(tmp_path))
