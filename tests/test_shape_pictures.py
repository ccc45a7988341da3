"""Figures and the explorer of problems whose domain is a shape: nothing is drawn outside, at any theta."""

import csv
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, QuadMesh
from test_explorer import opened, settled, surrogate_of, type_theta, words  # noqa: F401

import clpinn as cl
from clpinn.drawing.fields import filled, value_range
from clpinn.exports.translate.javascript import javascript
from clpinn.formulation.membership import is_inside
from clpinn.formulation.outlines import boundary_curves, distances
from clpinn.report.explorer import _continued, _domain_program, explorer_page
from clpinn.report.fields import answers_inside, fields, plot_reference, streamlines

pytestmark = pytest.mark.slow


class Plate(cl.Problem):
    """A flow in a rectangle around a disk whose radius is a parameter."""

    coordinates = cl.Box(x=(0, 4), y=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.8), a=(1, 2))
    candidates = cl.Grid(r=[0.2, 0.5, 0.8], a=[1.0, 2.0])
    evaluation = cl.Grid(x=np.linspace(0, 4, 31), y=np.linspace(-1, 1, 17))
    outputs = ("u", "v")

    def domain(self, r):
        return cl.Rectangle(x=(0, 4), y=(-1, 1)) - cl.Disk((1, 0), r, name="hole")

    def residual(self, d):
        return d.u_x + d.v_y

    def reference(self, x, y, r, a):
        s = (x - 1) ** 2 + y**2
        return {"u": a * (1 - r**2 * ((x - 1) ** 2 - y**2) / s**2), "v": -a * 2 * r**2 * (x - 1) * y / s**2}


class Heated(cl.Problem):
    """A sector with time, which the shape does not span, and a slice of a ball in space."""

    coordinates = cl.Box(t=(0, 1), x=(-1, 1), y=(-1, 1))
    parameters = cl.Box(angle=(1, 6))

    def domain(self, angle):
        return cl.Sector((0, 0), 1, 0, angle)

    def residual(self, d):
        return d.u_t - d.u_xx - d.u_yy


class Solid(cl.Problem):
    coordinates = cl.Box(x=(-1, 1), y=(-1, 1), z=(-1, 1))
    parameters = cl.Box(r=(0.2, 0.6))

    def domain(self, r):
        return cl.Ball((0, 0, 0), 1) - cl.Cylinder((0, 0), r, (-1, 1))

    def residual(self, d):
        return d.u_xx + d.u_yy + d.u_zz


def run_of(problem: cl.Problem) -> SimpleNamespace:
    """What the figures of fields need of a run."""
    return SimpleNamespace(problem=problem, surrogate=surrogate_of(problem), errors={}, name="run")


# Outlines ----------------------------------------------------------------------------------------------------------


def lengths(curves) -> float:
    return sum(float(np.linalg.norm(np.diff(curve, axis=0), axis=1).sum()) for curve in curves)


def test_an_outline_is_the_boundary_that_is_kept():
    """A hole inside the rectangle, and one that reaches over its left side."""

    class Moved(Plate):
        def domain(self, r):
            return cl.Rectangle(x=(0, 4), y=(-1, 1)) - cl.Disk((r, 0), 0.5, name="hole")

    curves = boundary_curves(Plate(), {"r": 0.5, "a": 1.0})
    assert len(curves) == 5 and lengths(curves) == pytest.approx(12 + np.pi, rel=1e-4)
    curves = boundary_curves(Moved(), {"r": 0.3, "a": 1.0})
    half = np.arccos(0.3 / 0.5)  # of the angle that is cut off
    assert lengths(curves) == pytest.approx(12 - 2 * 0.4 + 0.5 * (2 * np.pi - 2 * half), rel=1e-4)
    for curve in curves:
        np.testing.assert_allclose(distances(Moved(), curve, {"r": 0.3, "a": 1.0}), 0, atol=1e-5)


@pytest.mark.parametrize("sides", [(), ("wall", "in", "wall", "out")])
@pytest.mark.parametrize("clockwise", [False, True])
def test_an_outline_of_a_polygon_has_no_jumps(sides, clockwise):
    class Outlined(Plate):
        def domain(self, r):
            corners = [(0, 0), (2, 0), (2, r), (0, 1)]
            return cl.Polygon(corners[::-1] if clockwise else corners, sides=sides)

    curves = boundary_curves(Outlined(), {"r": 0.7, "a": 1.0})
    assert lengths(curves) == pytest.approx(2 + 0.7 + np.hypot(2, 0.3) + 1)
    assert max(np.linalg.norm(np.diff(curve, axis=0), axis=1).max() for curve in curves) < 0.03


def test_an_outline_has_the_corners():
    class Triangle(Plate):
        def domain(self, r):
            return cl.Polygon([(0, 0), (3, 0), (1, r)])

    for spacing in (None, 0.3):
        (curve,) = boundary_curves(Triangle(), {"r": 0.7, "a": 1.0}, spacing)
        for corner in ((0, 0), (3, 0), (1, 0.7)):
            assert np.linalg.norm(curve - corner, axis=1).min() < 1e-9


# Figures -----------------------------------------------------------------------------------------------------------


def painted(figure) -> np.ndarray:
    """The pixels of a figure's first panel with a field, its white ones false, up to down."""
    panel = next(axes for axes in figure.axes if any(isinstance(c, QuadMesh) for c in axes.collections))
    for other in figure.axes:
        other.set_visible(other is panel)
    for artist in panel.collections:
        artist.set_visible(isinstance(artist, QuadMesh))
    for artist in (*panel.lines, *panel.patches):
        artist.set_visible(False)
    panel.set_axis_off()
    panel.set_title("")
    for text in panel.texts:
        text.set_visible(False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].min(axis=2) < 255
    box = panel.get_window_extent()
    height = len(pixels)
    return pixels[height - int(box.y1) : height - int(box.y0), int(box.x0) : int(box.x1)]


def assert_only_inside_is_painted(figure, problem, theta) -> None:
    """Pixel by pixel, but for two pixels at the boundary."""
    pixels = painted(figure)
    rows, columns = pixels.shape
    axes = [problem.coordinates[name] for name in "xy"]
    x = axes[0].from_unit((np.arange(columns) + 0.5) / columns)
    y = axes[1].from_unit(1 - (np.arange(rows) + 0.5) / rows)
    nodes = np.stack([column.ravel() for column in np.meshgrid(x, y)], axis=1)
    far = distances(problem, nodes, theta).reshape(rows, columns)
    clear = 3 * (axes[0].high - axes[0].low) / columns
    edge = np.zeros(pixels.shape, bool)
    edge[2:-2, 2:-2] = True
    assert not pixels[far > clear].any()
    assert pixels[(far < -clear) & edge].all()
    assert (far > clear).sum() > 100


@pytest.mark.parametrize("r", [0.2, 0.8])
def test_fields_are_cut_out(r):
    run = run_of(Plate())
    figure = fields(run, np.array([[r, 1.0]]))
    panels = [
        axes for axes in figure.axes if any(isinstance(c, QuadMesh) for c in axes.collections) and axes.get_xlabel()
    ]
    assert len(panels) == 6  # prediction, reference and error of both outputs
    for panel in panels:
        (outline,) = [c for c in panel.collections if isinstance(c, LineCollection)]
        assert len(outline.get_segments()) == 5 and panel.get_aspect() == 1
        (mesh,) = [c for c in panel.collections if isinstance(c, QuadMesh)]
        assert np.isfinite(mesh.get_clim()).all()
    assert_only_inside_is_painted(figure, run.problem, {"r": r, "a": 1.0})


def test_other_pictures_are_cut_out(tmp_path):
    problem, run = Plate(), run_of(Plate())
    assert_only_inside_is_painted(run.surrogate.plot(r=0.6, a=1), problem, {"r": 0.6, "a": 1.0})
    figure = streamlines(run, np.array([[0.7, 1.0]]))
    figure.draw_without_rendering()
    flow = next(axes for axes in figure.axes if axes.get_title(loc="left").startswith("reference"))
    ways = [c for c in flow.collections if isinstance(c, LineCollection)][-1].get_segments()
    assert distances(problem, np.concatenate(ways), {"r": 0.7, "a": 1.0}).max() < 0.2
    plot_reference(problem, tmp_path / "reference.png")
    assert (tmp_path / "reference.png").stat().st_size > 10_000


def test_answers_are_asked_for_inside_only():
    """Outside they are NaN, and nobody is warned."""
    problem = Plate()
    points = problem.evaluation.points
    answers = answers_inside(surrogate_of(problem), points, {"r": 0.5, "a": 1.0})
    inside = is_inside(problem, points, np.array([0.5, 1.0]))
    assert 0 < inside.sum() < len(points)
    for values in answers.values():
        np.testing.assert_array_equal(np.isfinite(values), inside)


@pytest.mark.parametrize(
    ("problem", "given"),
    [(Heated(), {"y": -0.5, "angle": 4}), (Solid(), {"z": 0.3, "r": 0.4})],
    ids=["Heated", "Solid"],
)
def test_sections_have_gaps_and_no_outline(problem, given):
    figure = surrogate_of(problem).plot(9, **given)
    figure.draw_without_rendering()
    (mesh,) = [c for c in figure.axes[0].collections if isinstance(c, QuadMesh)]
    assert not any(isinstance(c, LineCollection) for c in figure.axes[0].collections)
    values = np.ma.filled(mesh.get_array(), np.nan)
    assert 0 < np.isnan(values).sum() < values.size


def test_ranges_and_gaps():
    values = np.array([[np.nan, 1.0], [np.nan, np.nan]])
    assert value_range(values, np.array([3.0])) == (1.0, 3.0) and value_range(values[1]) == (0.0, 1.0)
    np.testing.assert_array_equal(filled(values), np.ones((2, 2)))
    np.testing.assert_array_equal(filled(values[1:]), np.zeros((1, 2)))


# The explorer ------------------------------------------------------------------------------------------------------

RECTANGLE = cl.Rectangle(x=(-1, 1), y=(-1, 1))
SHAPES = {
    "rectangle": lambda p: cl.Rectangle(x=(-1, p), y=(-p, 1)),
    "disk": lambda p: cl.Disk((0.2, p), p),
    "ellipse": lambda p: cl.Ellipse((p, 0), (1, p)),
    "polygon": lambda p: cl.Polygon([(-1, -1), (1, -1), (1, p), (0, 0.2 * p), (-1, 1)]),
    "half-plane": lambda p: RECTANGLE & cl.HalfPlane((p, 0), (1, p)),
    "sector": lambda p: cl.Sector((0, 0), 1, 0, 6 * p),
    "moved": lambda p: ((RECTANGLE - cl.Disk((0, 0), p)) | cl.Disk((1, 0), 0.3)).rotate(p).scale(p).translate(0, p),
    "ball": lambda p: (cl.Ball((0, 0, 0), 1) - cl.Cylinder((0, 0), p, (-2, 2))).rotate(p, axis=(1, 1, 0)),
    "extrusion": lambda p: cl.Extrusion(cl.Polygon([(-1, -1), (1, -1), (1, p), (0, 0.2 * p), (-1, 1)]), (-p, 1)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_distances_in_the_page_are_those_of_jax(name, chromium):
    """1000 points at three thetas."""
    shape = SHAPES[name]
    letters = "xyz"[: shape(0.5).space]

    class Drawn(cl.Problem):
        coordinates = cl.Box(**dict.fromkeys(letters, (-1, 1)))
        parameters = cl.Box(p=(0.1, 0.9))

        def domain(self, p):
            return shape(p)

        def residual(self, d):
            return d.u_xx

    program = _domain_program(Drawn())
    assert program is not None
    points = np.random.default_rng(0).uniform(-1, 1, (1000, len(letters)))
    page = chromium.new_page()
    try:
        for p in (0.2, 0.5, 0.8):
            found = page.evaluate(f"rows => [...{javascript(program)}(rows, [{p}]).distance]", points.ravel().tolist())
            # The page has its constants in single precision.
            np.testing.assert_allclose(found, distances(Drawn(), points, {"p": p}), atol=1e-5)
    finally:
        page.close()


def colours_in(page, selector: str, units: np.ndarray) -> np.ndarray:
    """The colours (rows, RGBA) of a figure's canvas at places (rows, 2) of its frame; frames are those of the field."""
    return np.array(
        page.evaluate(
            """([selector, units]) => {
                const canvas = document.querySelector(selector), frame = clpinnExplorer.frame();
                const ratio = canvas.width / canvas.getBoundingClientRect().width;
                const context = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
                context.drawImage(canvas, 0, 0);
                const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
                return units.map(([u, v]) => {
                    const place = [frame.x + u * frame.width, frame.y + (1 - v) * frame.height];
                    const [left, top] = place.map((p) => Math.floor(p * ratio));
                    return [...data.subarray(4 * (top * canvas.width + left), 4 * (top * canvas.width + left) + 4)];
                });
            }""",
            [selector, units.tolist()],
        )
    )


def assert_drawn_inside_only(page, problem, thetas: list[dict[str, float]], selector: str = ".field canvas") -> None:
    """Colours where all thetas have the point, none elsewhere; away from boundaries and the lines of the cursor."""
    random = np.random.default_rng(1)
    units = np.concatenate([random.uniform(0.02, 0.98, (300, 2)), random.uniform((0.1, 0.2), (0.4, 0.8), (300, 2))])
    axes = [problem.coordinates[name] for name in "xy"]
    points = np.stack([axis.from_unit(column) for axis, column in zip(axes, units.T)], axis=1)
    cursor = np.array(page.evaluate("clpinnExplorer.cursor()"))
    by_theta = np.stack([distances(problem, points, theta) for theta in thetas])
    far = (np.abs(points - cursor).min(axis=1) > 0.05) & (np.abs(by_theta).min(axis=0) > 0.05)
    inside, opaque = by_theta.max(axis=0) < 0, colours_in(page, selector, units)[:, 3] > 0
    np.testing.assert_array_equal(opaque[far], inside[far])
    assert (far & ~inside).sum() > 5 and (far & inside).sum() > 100


def test_the_page_draws_the_domain_of_every_theta(opened):  # noqa: F811
    """Values inside are those of JAX, outside there are none: in the field, the reference, errors, cuts and tables."""
    problem = Plate()
    surrogate = surrogate_of(problem)
    page = opened(surrogate, references=True, accept_downloads=True)
    for r in (0.25, 0.75):
        type_theta(page, "r", r)
        field, theta = page.evaluate("clpinnExplorer.field()"), {"r": r, "a": 1.0}
        theta["a"] = page.evaluate("clpinnExplorer.theta()")[1]
        points = np.reshape(field["points"], (-1, 2))
        inside = is_inside(problem, points, np.array(list(theta.values())))
        assert inside.sum() > 1000 and (~inside).sum() > 100
        exact = surrogate(x=points[inside, 0], y=points[inside, 1], **theta)
        for name in problem.outputs:
            values = np.array(field["values"][name], float)
            np.testing.assert_array_equal(np.isfinite(values), inside)
            np.testing.assert_allclose(values[inside], exact[name], rtol=1e-5, atol=1e-6)
        assert_drawn_inside_only(page, problem, [theta])
        near = {0.25: 0.2, 0.75: 0.8}[r]
        for selector in (".reference canvas", ".difference canvas"):
            assert_drawn_inside_only(page, problem, [{**theta, "r": near}], selector)
        low, high = (float(end) for end in words(page.locator(".range")).removeprefix("u from ").split(" to "))
        np.testing.assert_allclose([low, high], [exact["u"].min(), exact["u"].max()], rtol=1e-3, atol=1e-6)
    cut = page.evaluate("clpinnExplorer.cut(0, Array.from({ length: 41 }, (_, i) => i / 40))")
    along = np.reshape(cut["points"], (-1, 2))
    kept = is_inside(problem, along, np.array(list(theta.values())))
    np.testing.assert_array_equal(np.isfinite(np.array(cut["values"], float)), kept)
    assert cut["inside"] == kept.tolist()
    with page.expect_download() as download:
        page.get_by_role("button", name="Field (CSV)").click()
    with download.value.path().open() as file:
        table = np.array([float(row["u"]) for row in csv.DictReader(file)])
    np.testing.assert_array_equal(np.isnan(table), ~inside)


def test_the_boundary_follows_a_slider_that_is_dragged(opened):  # noqa: F811
    """Also in the coarse field, before the drawing has come to rest."""
    problem = Plate()
    page = opened(surrogate_of(problem))
    slider = page.get_by_label("r", exact=True)
    for place in (1000, 0):
        # In one go: between two calls the drawing might come to rest.
        coarse = page.evaluate(
            """async ([id, place]) => {
                const slider = document.getElementById(id);
                slider.value = place;
                slider.dispatchEvent(new Event("input"));
                await new Promise(requestAnimationFrame);
                await new Promise(requestAnimationFrame);
                const canvas = document.querySelector(".field canvas"), frame = clpinnExplorer.frame();
                const ratio = canvas.width / canvas.getBoundingClientRect().width;
                const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
                copy.drawImage(canvas, 0, 0);
                // Between the small and the large circle.
                const at = [frame.x + 0.25 * frame.width - 0.3 * frame.height / 2, frame.y + 0.35 * frame.height];
                const alpha = copy.getImageData(...at.map((p) => Math.floor(p * ratio)), 1, 1).data[3];
                const nodes = clpinnExplorer.field().values.u.length;
                return { settled: clpinnExplorer.settled(), nodes, alpha };
            }""",
            [slider.get_attribute("id"), place],
        )
        assert not coarse["settled"] and coarse["nodes"] < 10_000
        assert (coarse["alpha"] == 0) == (place == 1000)


def test_a_cursor_outside_says_so(opened):  # noqa: F811
    surrogate = surrogate_of(Plate())
    page = opened(surrogate, fragment="theta=0.5,1&at=1,0.3&pin=0.2,1")
    told = words(page.locator("output").first)
    assert told.startswith("At x = 1, y = 0.3: outside the domain; pinned ") and "NaN" not in told
    assert words(page.locator(".sensitivities figcaption").first).startswith("∂u/∂r not defined")
    type_theta(page, "r", 0.25)
    assert words(page.locator("output").first).startswith("At x = 1, y = 0.3: u = ")
    exact = float(surrogate.derivative("u_r", x=1, y=0.3, r=0.25, a=1))
    assert page.evaluate("clpinnExplorer.derivatives()")[0] == pytest.approx(exact, rel=1e-4, abs=1e-6)


def test_a_change_is_drawn_where_both_domains_are(opened):  # noqa: F811
    problem = Plate()
    page = opened(surrogate_of(problem), fragment="theta=0.3,1&pin=0.6,1&layer=change&at=3,0.5")
    both = [{"r": r, "a": 1.0} for r in (0.3, 0.6)]
    assert_drawn_inside_only(page, problem, both[:1])
    assert_drawn_inside_only(page, problem, both, ".difference canvas")


def test_the_page_opens_inside_the_domain(opened):  # noqa: F811
    class Ring(Plate):
        coordinates = cl.Box(x=(-1, 1), y=(-1, 1))

        def domain(self, r):
            return cl.Disk((0, 0), 1) - cl.Disk((0, 0), r)

    page = opened(surrogate_of(Ring()))
    assert "outside" not in words(page.locator("output").first)


def test_a_section_that_misses_the_domain(opened):  # noqa: F811
    """At the top of a ball the section is a point, and beyond a hole there is nothing."""
    page = opened(surrogate_of(Solid()), fragment="theta=0.5&at=0.1,0.1,0.99")
    assert words(page.locator(".range")) == "u nowhere: all is outside"
    assert "Infinity" not in words(page.locator("section"))


def test_a_domain_without_translation_is_drawn_whole(opened):  # noqa: F811
    class Searched(Plate):
        def domain(self, r):
            grown = jax.lax.while_loop(lambda value: value < r, lambda value: value + 0.1, jnp.asarray(0.0, float))
            return cl.Rectangle(x=(0, 4), y=(-1, 1)) - cl.Disk((1, 0), grown + 0 * r)

    surrogate = surrogate_of(Searched())
    assert _domain_program(Searched()) is None
    page = opened(surrogate)
    assert "The shape of the domain cannot run in this page" in words(page.locator(".notes"))
    assert np.isfinite(page.evaluate("clpinnExplorer.field()")["values"]["u"]).all()
    assert "cannot run" not in explorer_notes(opened(surrogate_of(Plate())))


def explorer_notes(page) -> str:
    return words(page.locator(".notes"))


def test_errors_are_continued_over_the_boundary():
    """Inside they stay as they are; outside they are those of the nearest point inside."""
    problem = Plate()
    points, thetas = problem.evaluation.points, np.array([[0.5, 1.0]])
    errors = np.where(is_inside(problem, points, thetas[0]), points[:, 0], np.nan)[None, None]
    continued = _continued(problem, errors, points, thetas)
    inside = np.isfinite(errors)
    np.testing.assert_array_equal(continued[inside], errors[inside])
    assert np.isfinite(continued).all() and np.abs(continued[0, 0] - points[:, 0]).max() < 0.6


def test_pages_of_boxes_have_no_domain():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = explorer_page(surrogate_of(cl.problems.Kovasznay()), references=False)
    assert "null, null);" in page and '"unmasked": false' in page
