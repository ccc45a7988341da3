"""The live explorer in a headless Chromium: what the page shows is what JAX computes."""

import csv
import io
from dataclasses import replace
from importlib.resources import files

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from small import made_up_map
from test_report import assert_even, short_run

import clpinn as cl
from clpinn.drawing.colours import SIGNED, VALUES, map_bytes
from clpinn.formulation.geometry import placed
from clpinn.networks.make import make
from clpinn.problems import load_problem
from clpinn.report.explorer import SCRIPTS, explorer_html, explorer_page
from clpinn.report.figures import KINDS as FIGURES
from clpinn.report.page import page as report
from clpinn.runs.directory import RunDirectory

pytestmark = pytest.mark.slow


class Solid(cl.Problem):
    """Three coordinates of which one is time, two outputs, no reference."""

    coordinates = cl.Box(x=(0, 1), t=(0, 2), z=cl.log(0.1, 10))
    parameters = cl.Box(a=cl.log(0.1, 10), b=(-1, 1))
    outputs = ("u", "v")

    def residual(self, d):
        return d.u_x + d.v_t


class Line(cl.Problem):
    """One coordinate, no parameters, and texts that try to get out of their place."""

    coordinates = cl.Box(x=(0, 1))
    equation = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
    reference_kind = "<b>by hand</b>"
    evaluation = cl.Grid(x=np.linspace(0, 1, 21))

    def residual(self, d):
        return d.u_x

    def reference(self, x):
        return {"u": np.sin(5 * x)}


def surrogate_of(problem: cl.Problem, full_size: bool = False, **record) -> cl.Surrogate:
    """A random network of the natural preset's kind, small or of its size."""
    preset = cl.natural(problem).network
    width, depth = (preset.width, preset.depth) if full_size else (6, 2)
    with jax.enable_x64(True):
        network = make(problem, replace(preset, width=width, depth=depth), jax.random.key(0), jnp.float64)
    return cl.Surrogate(problem, network, record=record)


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens a surrogate's page from disk; at the end nothing may have been reported or asked of a network."""
    contexts, complaints = [], []

    def open_page(surrogate, references=False, width=1000, text=None, fragment="", **options):
        path = tmp_path / "page.html"
        path.write_text(text or explorer_page(surrogate, references), "utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith("file:") or complaints.append(asked.url))
        page.goto(f"{path.as_uri()}#{fragment}" if fragment else path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def words(locator) -> str:
    """The text of an element, its no-break spaces and minus signs made plain."""
    return locator.inner_text().replace("\u00a0", " ").replace("\u2212", "-")


def settled(page, act) -> None:
    """Do something, and wait until the full field has been drawn."""
    act()
    # By polls: wait_for_function would evaluate texts in the page, which a report forbids.
    while not page.evaluate("clpinnExplorer.settled()"):
        page.wait_for_timeout(5)


def assert_shown_is_computed(page, surrogate) -> int:
    """All values of the field in the page against JAX; how many there were."""
    problem, field = surrogate.problem, page.evaluate("clpinnExplorer.field()")
    points = np.reshape(field["points"], (-1, len(problem.coordinates)))
    named = dict(zip(problem.axes, (*points.T, *field["theta"])))
    exact = surrogate(**named | placed(problem, named))
    for name in problem.outputs:
        assert np.allclose(field["values"][name], exact[name], rtol=1e-5, atol=1e-6)
    return len(points) * len(problem.outputs)


EXAMPLES = [f"examples/{name}.py" for name in ("heat", "channel")]


@pytest.mark.parametrize("name", [*cl.problems.BENCHMARKS, *EXAMPLES])
def test_what_is_shown_is_what_jax_computes(name, opened, record_property):
    problem = load_problem(name)
    surrogate = surrogate_of(problem, full_size=True)
    page = opened(surrogate, references=problem.reference_version is None)
    sliders = page.locator("input[type=range]")
    assert sliders.count() == len(problem.parameters) + ("t" in problem.coordinates.names)
    before = page.evaluate("clpinnExplorer.theta()")
    compared = assert_shown_is_computed(page, surrogate)

    def drag():
        for i in range(len(problem.parameters)):
            for place in (900, 700, 300 + 50 * i):
                sliders.nth(i).fill(str(place))
                page.evaluate("new Promise(requestAnimationFrame)")

    settled(page, drag)
    after = page.evaluate("clpinnExplorer.theta()")
    places = [(300 + 50 * i) / 1000 for i in range(len(after))]
    assert np.allclose(after, [axis.from_unit(u) for axis, u in zip(problem.parameters.axes, places)])
    assert all(a != b for a, b in zip(before, after))
    compared += assert_shown_is_computed(page, surrogate)
    assert compared == 20_000 * len(problem.outputs)
    times = page.evaluate("clpinnExplorer.redrawTimes()")
    record_property(
        f"redraw of {type(problem).__name__}",
        f"median {np.median(times['drag']):.0f} ms dragging, {np.median(times['full']):.0f} ms the full field; "
        f"{compared} values compared",
    )


def type_theta(page, name: str, value: float) -> None:
    settled(page, lambda: page.get_by_label(f"{name}, exact value").fill(str(value)) or page.keyboard.press("Tab"))


def circles_are_drawn(page) -> bool:
    """Whether the first cut has pixels in the colour of the reference (light scheme: #b34700)."""
    return page.evaluate(
        """() => {
            const canvas = document.querySelector(".cut canvas");
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
            copy.drawImage(canvas, 0, 0);
            const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let i = 0; i < data.length; i += 4) {
                const near = Math.abs(data[i] - 0xb3) + Math.abs(data[i + 1] - 0x47) + data[i + 2] < 30;
                if (near && data[i + 3] > 200) count++;
            }
            return count > 10;
        }"""
    )


def test_network_and_reference_are_compared_at_one_theta_only(opened):
    """At other thetas there are no circles and no errors at the cursor; a button leads to the nearest reference."""
    problem = cl.problems.Kovasznay()
    surrogate = surrogate_of(problem)
    page = opened(surrogate, references=True)
    said, cut, caption = (
        page.locator("output").first,
        page.locator(".cut .legend").first,
        page.locator("figcaption").first,
    )
    go = page.get_by_role("button", name="Go to the nearest reference")
    (opening,) = page.evaluate("clpinnExplorer.theta()")
    assert opening in problem.candidates.values["Re"] and go.is_disabled()  # the page opens with a comparison
    assert "reference" in words(cut) and "reference" in words(said) and circles_are_drawn(page)
    type_theta(page, "Re", 77.3)
    assert words(cut) == "network" and "reference" not in words(said) and go.is_enabled()
    assert "Go there to compare" in words(caption) and not circles_are_drawn(page)
    settled(page, go.click)
    (found,) = page.evaluate("clpinnExplorer.theta()")
    assert found in problem.candidates.values["Re"] and abs(found - 77) <= 10 and go.is_disabled()
    assert "reference" in words(cut) and words(page.locator(".reference h3")) == f"Reference at Re = {found:.4g}"
    page.get_by_label("Output").select_option("v")
    assert page.evaluate("clpinnExplorer.output()") == "v"
    # The error is that of the network and the reference, on the grid in the page.
    x, y = (np.unique(np.round(np.linspace(0, 99, 34)).astype(int)) for _ in range(2))
    x, y = problem.evaluation.values["x"][x][:, None], problem.evaluation.values["y"][y]
    error = surrogate(x=x, y=y, Re=found)["v"] - problem.reference(x, y, found)["v"]
    expected = np.linalg.norm(error) / np.linalg.norm(problem.reference(x, y, found)["v"])
    told = words(caption).split("error of v is ")[1]
    assert float(told.split()[0]) == pytest.approx(expected, rel=1e-2)
    # The layer of errors has the exact errors at the nodes, and the cursor's values fit together.
    nodes = np.stack(np.broadcast_arrays(x, y), axis=-1).reshape(-1, 2)
    np.testing.assert_allclose(page.evaluate("p => clpinnExplorer.errors(p)", nodes.tolist()), error.ravel(), rtol=1e-6)
    assert page.evaluate("clpinnExplorer.layer()") == "error"
    assert words(page.locator(".difference h3")) == f"Error at Re = {found:.4g}: network minus reference"
    assert words(page.locator(".difference figcaption")).startswith("Error of v from ")
    told = words(page.locator(".difference figcaption")).removeprefix("Error of v from ").rstrip(".").split(" to ")
    np.testing.assert_allclose([float(end) for end in told], [error.min(), error.max()], rtol=0.05)
    # With a pinned theta the figure shows the change since then, or the error again.
    settled(page, page.get_by_role("button", name="Pin this theta").click)
    assert page.evaluate("clpinnExplorer.layer()") == "change"
    assert f"reference at Re = {found:.4g}" in words(cut)
    settled(page, lambda: page.get_by_label("Show the").select_option("error"))
    assert page.evaluate("clpinnExplorer.layer()") == "error" and "layer=error" in page.url


class Moved(cl.Problem):
    """A geometry that theta moves, two parameters of which one is log, two outputs, no reference."""

    coordinates = cl.Box(x=(0, 2), y=(0, 1))
    parameters = cl.Box(bend=(0.1, 0.5), k=cl.log(0.1, 10))
    outputs = ("u", "v")
    evaluation = cl.Grid(x=np.linspace(0, 2, 5), y=np.linspace(0, 1, 4))

    def place(self, x, y, bend, k):
        return {"x": x + bend * y, "y": y}

    def residual(self, d):
        return d.u_xx + d.v_yy


def said_spread(text: str) -> list[float]:
    """Middle, low and high end of the spread that a page states."""
    middle, ends = text.split(": ", 1)[1].split(" (90 %: ")
    return [float(number) for number in (middle, *ends.split(")")[0].split(" to "))]


@pytest.mark.parametrize("problem", [Solid(), Moved(), cl.problems.Kovasznay()], ids=type)
def test_the_page_states_the_error_that_python_estimates(problem, opened):
    """At thetas between those of the map, for every output."""
    errors = made_up_map(problem)
    page = opened(surrogate_of(problem).with_errors(errors))
    for units in ((0.31, 0.77), (0.0, 1.0), (0.62, 0.05)):
        theta = [float(axis.from_unit(u)) for axis, u in zip(problem.parameters.axes, units)]
        settled(page, lambda theta=theta: page.evaluate("t => { location.hash = `theta=${t.join()}` }", theta))
        page.wait_for_function("t => clpinnExplorer.theta()[0] === t && clpinnExplorer.settled()", arg=theta[0])
        for output in problem.outputs:
            if len(problem.outputs) > 1:
                settled(page, lambda output=output: page.get_by_label("Output").select_option(output))
            exact = errors.over(np.array([theta]))[output][:, 0]
            found = page.evaluate("clpinnExplorer.estimate()")
            np.testing.assert_allclose([found[name] for name in ("low", "middle", "high")], exact, rtol=1e-8)
            told = words(page.locator(".estimate"))
            assert told.startswith(f"Estimated relative L2 error of {output}: ")
            np.testing.assert_allclose(said_spread(told), exact[[1, 0, 2]], rtol=0.06)


@pytest.mark.parametrize("problem", [Solid(), Moved(), Line(), cl.problems.Kovasznay()], ids=type)
def test_the_estimated_error_is_a_layer(problem, opened):
    """At the nearest theta of the map: network minus solution, where there is a reference and where there is none."""
    errors = made_up_map(problem)
    page = opened(surrogate_of(problem).with_errors(errors), references=problem.reference is not None)
    if problem.reference is not None:
        assert page.evaluate("clpinnExplorer.layer()") == "error"
        settled(page, lambda: page.get_by_label("Show the").select_option("estimate"))
    assert page.evaluate("clpinnExplorer.layer()") == "estimate"
    nearest = errors.nearest(np.array(page.evaluate("clpinnExplorer.theta()")))
    output = problem.outputs[-1]
    if len(problem.outputs) > 1:
        settled(page, lambda: page.get_by_label("Output").select_option(output))
    found = page.evaluate("p => clpinnExplorer.estimatedErrors(p)", errors.grid.points.tolist())
    np.testing.assert_allclose(found, -errors.fields[nearest, -1], rtol=1e-6)
    at = " at " + ", ".join(f"{n} = {v:.4g}" for n, v in zip(problem.parameters, errors.thetas[nearest]))
    at = at if len(problem.parameters) else ""
    assert words(page.locator(".difference h3")) == f"Estimated error{at}: network minus solution"
    assert words(page.locator(".difference figcaption")).startswith(f"Estimated error of {output} from ")
    assert page.locator(".difference canvas").is_visible()


def test_an_error_that_nobody_knows_is_not_stated(opened):
    problem = load_problem("examples/heat.py")
    errors = made_up_map(problem, unresolved=4)
    page = opened(surrogate_of(problem).with_errors(errors))
    type_theta(page, "kappa", errors.thetas[4, 0] * 1.01)
    near = f"kappa = {errors.thetas[4, 0]:.4g}"
    assert page.evaluate("clpinnExplorer.estimate()") is None
    assert words(page.locator(".estimate")) == (
        f"The error of u is not known here: the nearest estimate at {near} is not resolved. Only one resolution fits."
    )
    told = words(page.locator(".difference figcaption"))
    assert told.endswith("nearest theta with an estimate. Do not trust it: it is not resolved.")
    type_theta(page, "kappa", errors.thetas[7, 0])
    assert "not" not in words(page.locator(".difference figcaption"))
    # A single estimate, such as that of a standard PINN, says nothing of other thetas.
    arrays = {name: getattr(errors, name)[:1] for name in ("thetas", "relative_l2", "largest", "resolved", "fields")}
    page = opened(surrogate_of(problem).with_errors(replace(errors, **arrays)))
    assert words(page.locator(".estimate")).endswith("not known here: the only estimate is at kappa = 0.01.")
    type_theta(page, "kappa", 0.01)
    assert words(page.locator(".estimate")) == "Estimated relative L2 error of u: 0.001. No reference is used."
    # A map without any resolved estimate has no process.
    nothing = replace(errors, resolved=np.zeros(len(errors.thetas), bool))
    assert "not known here" in words(opened(surrogate_of(problem).with_errors(nothing)).locator(".estimate"))


def test_layers_are_those_that_the_page_has(opened):
    """Without a reference there is no choice of its error; without a map there is no estimate."""
    surrogate = surrogate_of(Moved())
    page = opened(surrogate.with_errors(made_up_map(Moved())), fragment="layer=error")
    assert page.get_by_label("Show the").is_hidden()
    settled(page, page.get_by_role("button", name="Pin this theta").click)
    assert page.locator(".difference option").all_inner_texts() == ["estimated error", "change since the pin"]
    settled(page, lambda: page.get_by_label("Show the").select_option("estimate"))
    assert "layer=estimate" in page.url
    plain = opened(surrogate)
    assert plain.locator(".estimate").is_hidden() and plain.locator(".difference").is_hidden()


def test_errors_below_single_precision_are_drawn(opened):
    """The page holds errors, not references: rounding of its weights does not hide them."""

    class Precise(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        evaluation = cl.Grid(x=np.linspace(0, 1, 21))

        def residual(self, d):
            return d.u_x

    surrogate = surrogate_of(Precise())
    Precise.reference = lambda self, x: {"u": surrogate(x=np.ravel(x))["u"].reshape(np.shape(x)) - 1e-10 * x}
    page = opened(surrogate, references=True)
    errors = page.evaluate("clpinnExplorer.errors([[0], [0.5], [1]])")
    np.testing.assert_allclose(errors, [0, 0.5e-10, 1e-10], atol=1e-14)
    assert words(page.locator(".difference figcaption")) == "Error of u from 0 to 1e-10."


def test_a_pinned_theta_is_compared(opened):
    surrogate = surrogate_of(Solid())
    page = opened(surrogate)
    assert page.locator(".difference").is_hidden()
    type_theta(page, "b", 0.25)
    settled(page, page.get_by_role("button", name="Pin this theta").click)
    pinned = page.evaluate("clpinnExplorer.pin()")
    assert pinned == page.evaluate("clpinnExplorer.theta()") and pinned[1] == 0.25
    type_theta(page, "b", -0.5)
    now = page.evaluate("clpinnExplorer.theta()")
    assert page.evaluate("clpinnExplorer.pin()") == pinned and now[1] == -0.5
    assert words(page.locator(".cut .legend").first) == "now at a = 1, b = -0.5pinned at a = 1, b = 0.25".replace(
        "pinned", "\npinned"
    )
    point = dict(zip("xtz", page.evaluate("clpinnExplorer.cursor()")))
    at_now, at_pin = (float(surrogate(**point, a=a, b=b)["u"]) for a, b in (now, pinned))
    said = words(page.locator("output").first)
    assert float(said.split("u = ")[1].split(";")[0]) == pytest.approx(at_now, rel=1e-4)
    assert float(said.split("pinned ")[1]) == pytest.approx(at_pin, rel=1e-4)
    # The change is a layer of its own beside the field.
    assert page.evaluate("clpinnExplorer.layer()") == "change" and page.locator(".difference").is_visible()
    field = page.evaluate("clpinnExplorer.field()")
    columns = dict(zip("xtz", np.reshape(field["points"], (-1, 3)).T))
    change = np.subtract(*(surrogate(**columns, a=a, b=b)["u"] for a, b in (now, pinned)))
    told = words(page.locator(".difference figcaption")).split("from ")[1].rstrip(".").split(" to ")
    np.testing.assert_allclose([float(end) for end in told], [change.min(), change.max()], rtol=1e-2)
    settled(page, page.get_by_role("button", name="Unpin").click)
    assert page.evaluate("clpinnExplorer.pin()") is None and page.locator(".difference").is_hidden()


class Rod(cl.Problem):
    """One coordinate on a rod whose length is a parameter."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(length=(1, 2))

    def place(self, x, length):
        return {"x": x * length}

    def residual(self, d):
        return d.u_x


class Front(Rod):
    """A front that moves with time."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))

    def place(self, x, t, length):
        return {"x": x * (1 + t * length), "t": t}


class Balloon(Rod):
    """A plane domain that grows with time."""

    coordinates = cl.Box(x=(0, 1), y=(0, 2), t=(0, 1))

    def place(self, x, y, t, length):
        return {"x": x * (1 + t * length) + 0.1 * y, "y": y * length, "t": t}


MOVED = [load_problem("examples/channel.py"), Rod(), Front(), Balloon()]


@pytest.mark.parametrize("problem", [Solid(), *MOVED], ids=type)
def test_sensitivities_are_derivatives_at_the_cursor(problem, opened):
    """At a fixed physical point, also where the parameter moves the geometry."""
    surrogate = surrogate_of(problem)
    page = opened(surrogate)
    theta = dict(zip(problem.parameters, page.evaluate("clpinnExplorer.theta()")))
    point = dict(zip(problem.coordinates, page.evaluate("clpinnExplorer.cursor()")))
    exact = [float(surrogate.derivative(f"u_{name}", **point, **theta)) for name in problem.parameters]
    np.testing.assert_allclose(page.evaluate("clpinnExplorer.derivatives()"), exact, rtol=1e-4, atol=1e-6)
    captions = page.locator(".sensitivities figcaption")
    assert_shown_is_computed(page, surrogate)
    for name, derivative, caption in zip(problem.parameters, exact, captions.all(), strict=True):
        assert words(caption).startswith(f"∂u/∂{name} = ")
        assert float(words(caption).split(" = ")[1].split()[0]) == pytest.approx(derivative, rel=1e-2, abs=1e-6)


def test_a_sensitivity_at_the_edge_is_one_sided(opened):
    """At the upper wall a smaller height would leave the cursor outside; at the end of its axis a larger one would."""
    surrogate = surrogate_of(load_problem("examples/channel.py"))
    for height in (1.0, 2.0):
        page = opened(surrogate, fragment=f"theta={height},1&at=0.5,{height}")
        (derivative, _) = page.evaluate("clpinnExplorer.derivatives()")
        if height == 1.0:
            exact = float(surrogate.derivative("u_height", x=0.5, y=height, height=height, viscosity=1.0))
            assert derivative == pytest.approx(exact, rel=1e-2, abs=1e-4)
        else:
            assert np.isnan(derivative) and "not defined" in words(page.locator(".sensitivities figcaption").first)


def test_the_field_can_be_downloaded_as_a_table(opened):
    surrogate = surrogate_of(load_problem("examples/channel.py"))
    page = opened(surrogate, accept_downloads=True)
    type_theta(page, "height", 1.7)
    with page.expect_download() as download:
        page.get_by_role("button", name="Field (CSV)").click()
    assert download.value.suggested_filename == "Channel-u.csv"
    with download.value.path().open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["box_x", "box_y", "x", "y", "height", "viscosity", "u"] and len(rows) == 10_000
    columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    np.testing.assert_allclose(columns["y"], columns["box_y"] * 1.7, rtol=1e-6)
    exact = surrogate(**{name: columns[name] for name in ("x", "y", "height", "viscosity")})["u"]
    np.testing.assert_allclose(columns["u"], exact, rtol=1e-5, atol=1e-6)


def test_the_picture_can_be_downloaded(opened):
    page = opened(surrogate_of(Solid()), accept_downloads=True)
    with page.expect_download() as download:
        page.get_by_role("button", name="Picture (PNG)").click()
    assert download.value.suggested_filename == "Solid-u.png"
    pixels = matplotlib.image.imread(download.value.path())[..., :3]
    canvas = page.locator(".field canvas").bounding_box()
    assert pixels.shape[1] == round(canvas["width"]) and pixels.shape[0] == round(canvas["height"]) + 34
    assert len(np.unique(np.round(pixels, 1).reshape(-1, 3), axis=0)) > 10  # the field's colours
    assert np.all(pixels[2, 2] == 1)  # on the page's paper


def test_a_link_restores_what_was_seen(opened):
    surrogate = surrogate_of(Solid())
    page = opened(surrogate)
    type_theta(page, "a", 0.3)
    settled(page, page.get_by_role("button", name="Pin this theta").click)
    type_theta(page, "a", 4.0)
    settled(page, lambda: page.get_by_label("Output").select_option("v"))
    page.get_by_role("application").focus()
    settled(page, lambda: page.keyboard.press("Shift+ArrowRight"))
    settled(page, lambda: page.get_by_label("t", exact=True).fill("250"))
    seen = {name: page.evaluate(f"clpinnExplorer.{name}()") for name in ("theta", "pin", "output", "layer", "cursor")}
    assert seen["theta"] == [4.0, 0.0] and seen["pin"] == [0.3, 0.0] and seen["output"] == "v"
    assert seen["cursor"][:2] == pytest.approx([0.4, 0.5])
    said, link = words(page.locator("output").first), page.url
    fresh = page.context.new_page()
    fresh.goto(link)
    restored = {name: fresh.evaluate(f"clpinnExplorer.{name}()") for name in seen}
    assert (
        restored == {**seen, "cursor": pytest.approx(seen["cursor"])} and words(fresh.locator("output").first) == said
    )
    assert (
        fresh.get_by_label("Output").input_value() == "v" and fresh.get_by_label("a, exact value").input_value() == "4"
    )
    # A link that is opened in the same tab is followed, too.
    settled(fresh, lambda: fresh.evaluate("location.hash = 'theta=0.5,0.5&at=0.2,1,3&output=u'"))
    fresh.wait_for_function("clpinnExplorer.theta()[0] === 0.5 && clpinnExplorer.settled()")
    assert fresh.evaluate("[clpinnExplorer.output(), clpinnExplorer.pin()]") == ["u", None]


@pytest.mark.parametrize(
    "fragment",
    ["theta=nan,1", "theta=1e9,-7&at=5,-5,5&pin=3", "output=<b>&layer=x", "at=1,2", "theta=&pin=&at=", "%%%", "x"],
)
def test_a_link_cannot_lead_out_of_the_box(fragment, opened):
    problem = Solid()
    page = opened(surrogate_of(problem), fragment=fragment)
    theta, cursor = (np.array([page.evaluate(f"clpinnExplorer.{name}()")]) for name in ("theta", "cursor"))
    for box, rows in ((problem.parameters, theta), (problem.coordinates, cursor)):
        assert np.all(rows >= [axis.low for axis in box.axes]) and np.all(rows <= [axis.high for axis in box.axes])
    assert page.evaluate("[clpinnExplorer.output(), clpinnExplorer.pin()]") == ["u", None]


class Skewed(cl.Problem):
    """A box that theta shears and bends; both coordinates are lengths."""

    coordinates = cl.Box(x=(0, 2), y=(0, 1))
    parameters = cl.Box(bend=(0.1, 0.5))

    def place(self, x, y, bend):
        return {"x": x + bend * y, "y": y + bend * x**2 / 2}

    def residual(self, d):
        return d.u_xx + d.u_yy


def test_cuts_are_straight_in_physical_space(opened):
    problem, surrogate = Skewed(), surrogate_of(Skewed())
    page = opened(surrogate)
    (bend,) = page.evaluate("clpinnExplorer.theta()")
    x, y = page.evaluate("clpinnExplorer.cursor()")
    for along, (name, held) in enumerate((("y", y), ("x", x))):
        cut = page.evaluate(f"clpinnExplorer.cut({along}, Array.from({{ length: 41 }}, (_, i) => i / 40))")
        points, inside = np.reshape(cut["points"], (-1, 2)), np.array(cut["inside"])
        assert 10 < inside.sum() < 41  # the line leaves the domain
        physical = placed(problem, {"x": points[:, 0], "y": points[:, 1], "bend": bend})
        np.testing.assert_allclose(np.asarray(physical[name])[inside], held, atol=1e-6)
        assert np.all(np.diff(np.asarray(physical["xy"[along]])[inside]) > 0)
        exact = surrogate(**{axis: np.asarray(physical[axis])[inside] for axis in "xy"}, bend=bend)["u"]
        np.testing.assert_allclose(np.array(cut["values"], float)[inside], exact, rtol=1e-5, atol=1e-6)
        assert np.all(np.isnan(np.array(cut["values"], float)[~inside]))
    # The cursor stays where it is in physical space while the geometry moves.
    type_theta(page, "bend", 0.2)
    np.testing.assert_allclose(page.evaluate("clpinnExplorer.cursor()"), [x, y], atol=1e-6)


class Mixed(Skewed):
    """The second coordinate is no length."""

    units = {"x": "m", "y": "K"}


@pytest.mark.parametrize(
    ("problem", "ratio"),
    [
        (Skewed(), 2.5 / 2),
        (cl.problems.Kovasznay(), 0.75),
        (load_problem("examples/heat.py"), None),
        (Solid(), None),
        (Mixed(), None),
    ],
    ids=type,
)
def test_lengths_have_equal_axes(problem, ratio, opened):
    """x and y are lengths; x and t are not, nor is a log axis or one of another unit."""
    page = opened(surrogate_of(problem))
    frame = page.evaluate("clpinnExplorer.frame()")
    canvas = page.locator(".field canvas").bounding_box()
    if ratio is None:
        assert frame["height"] == pytest.approx(canvas["height"] - 50)
        assert frame["width"] == pytest.approx(canvas["width"] - 52 - 84)
    else:
        assert frame["width"] / frame["height"] == pytest.approx(ratio, rel=1e-6)


def test_the_page_has_the_colours_of_the_figures(opened):
    """The colour bar, from top to bottom: as many even steps of lightness."""
    page = opened(surrogate_of(load_problem("examples/heat.py")))
    encoded = page.evaluate("clpinnExplorer.colours()")
    assert bytes(encoded["values"]) == map_bytes(VALUES) and bytes(encoded["signed"]) == map_bytes(SIGNED)
    assert_even(np.reshape(encoded["values"], (-1, 3)) / 255)
    for half in np.split(np.reshape(encoded["signed"], (-1, 3)) / 255, 2):
        assert_even(half)


def test_values_outside_the_box_cannot_be_chosen(opened):
    page = opened(surrogate_of(load_problem("examples/heat.py")))
    for typed, kept in (("7", 1.0), ("-3", 0.01), ("", 0.01)):
        number = page.get_by_label("kappa, exact value")
        number.fill(typed)
        number.press("Tab")
        assert page.evaluate("clpinnExplorer.theta()") == [kept]


def test_keys_and_pointer_move_the_cursor(opened):
    surrogate = surrogate_of(load_problem("examples/heat.py"))
    page = opened(surrogate)
    field, said = page.get_by_role("application"), page.locator("output").first
    field.focus()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("ArrowUp")
    page.wait_for_function("clpinnExplorer.settled()")
    assert words(said).startswith("At x = 0.31, t = 0.6: u = ")
    shown = float(words(said).split("u = ")[1])
    assert shown == pytest.approx(float(surrogate(x=0.31, t=0.6, kappa=0.1)["u"]), rel=1e-4)
    box = field.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 20)
    page.wait_for_function("clpinnExplorer.settled()")
    assert words(said).startswith("At x = 0.9") and "t = 0.0" in words(said)


def test_time_can_be_played_and_tasks_are_marked(opened):
    surrogate = surrogate_of(Solid(), tasks=[[0.5, 0.0], [5.0, 0.5], [5.0, -0.5]])
    page = opened(surrogate, width=375, color_scheme="dark", reduced_motion="reduce")
    assert page.locator(".mark").count() == 2 + 3
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    time = page.get_by_label("t", exact=True)
    before = time.input_value()
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(f"document.querySelectorAll('input[type=range]')[2].value !== '{before}'")
    settled(page, page.get_by_role("button", name="Pause").click)
    settled(page, lambda: time.fill("250"))
    points = np.reshape(page.evaluate("clpinnExplorer.field().points"), (-1, 3))
    assert np.all(points[:, 1] == 0.5) and len(np.unique(points[:, 2])) == 100
    assert_shown_is_computed(page, surrogate)


def test_a_line_and_texts_that_stay_texts(opened):
    surrogate = surrogate_of(Line())
    page = opened(surrogate, references=True)
    assert assert_shown_is_computed(page, surrogate) == 400
    assert page.locator("input[type=range]").count() == 0
    assert page.evaluate("window.broken") is None
    assert page.locator(".equation").inner_text() == Line.equation
    assert "(21 points). Reference: <b>by hand</b>." in words(page.locator(".reference-caption"))


def test_every_control_has_a_name(opened):
    page = opened(surrogate_of(Solid()))
    named = page.evaluate(
        "[...document.querySelectorAll('input, select, canvas, button')].filter((e) => !e.closest('[hidden]'))"
        ".map((e) =>"
        "Boolean(e.labels?.length || e.getAttribute('aria-label') || e.textContent))"
    )
    # Three sliders with numbers, the choice of an output, play, pin, the held range, two downloads, the field, two cuts
    # and two sensitivities.
    assert named == [True] * (6 + 1 + 1 + 1 + 1 + 2 + 3 + 2)


def test_two_sections_fit_one_page(chromium, tmp_path):
    page = chromium.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    path = tmp_path / "both.html"
    sections = [explorer_html(surrogate_of(problem), references=False) for problem in (Line(), Solid())]
    path.write_text("<!DOCTYPE html><meta charset=utf-8>" + "".join(sections), "utf-8")
    page.goto(path.as_uri())
    assert page.locator("h2").all_inner_texts() == ["Line", "Solid"]
    identifiers = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(identifiers) == len(set(identifiers)) and not errors
    page.close()


def test_every_script_is_in_the_page():
    folder = files("clpinn.report") / "explorer"
    assert sorted(f"{name}.js" for name in SCRIPTS) == sorted(
        p.name for p in folder.iterdir() if p.name.endswith(".js")
    )


def test_a_page_stays_small():
    surrogate = surrogate_of(cl.problems.Kovasznay(), full_size=True)
    assert len(explorer_page(surrogate)) < 1.6e6
    assert len(explorer_page(surrogate.with_errors(made_up_map(surrogate.problem)))) < 2e6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run with a reference."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    short_run(folder)
    return RunDirectory(folder)


def some_figures(monkeypatch, *kinds):
    monkeypatch.setattr("clpinn.report.page.KINDS", {kind: FIGURES[kind] for kind in kinds})


def test_a_report_holds_the_explorer_of_its_run(run, opened, monkeypatch):
    """The page that `clpinn report` writes, under its content security policy."""
    some_figures(monkeypatch, "errors", "tasks", "losses")
    page = opened(run.surrogate, text=report([run]), accept_downloads=True)
    assert page.locator("h2").all_inner_texts()[:2] == ["Decay", "Summary"]
    (k,) = page.evaluate("clpinnExplorer.theta()")
    (error,) = run.errors["rel_l2_u"][run.errors["k"] == k]
    assert f"The relative L2 error of u is {error:.3g} (3 × 4 points)." in words(page.locator(".reference-caption"))
    settled(page, lambda: page.locator("input[type=range]").first.fill("700"))
    assert_shown_is_computed(page, run.surrogate)
    assert page.locator("h2", has_text="How to repeat it").count() == 1 and page.locator("figure img").count() == 3
    for button in ("Field (CSV)", "Picture (PNG)"):
        with page.expect_download():
            page.get_by_role("button", name=button).click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_shows_the_figures_of_its_colour_scheme(scheme, run, opened, monkeypatch):
    some_figures(monkeypatch, "losses")
    page = opened(run.surrogate, text=report([run]), color_scheme=scheme)
    shown, light = page.locator("figure img").evaluate("image => [image.currentSrc, image.src]")
    assert (shown == light) == (scheme == "light")
    picture = page.locator("figure img").screenshot()
    corner = matplotlib.image.imread(io.BytesIO(picture), format="png")[3, 3, :3]
    assert np.all(corner > 0.99) if scheme == "light" else np.all(corner < 0.15)


@pytest.mark.parametrize("width", [390, 1000])
def test_what_is_wider_than_a_phone_says_that_it_scrolls(width, run, opened, monkeypatch):
    some_figures(monkeypatch, "fields")
    page = opened(run.surrogate, text=report([run] * 4), width=width)
    hints, boxes = page.locator(".scrolls"), page.locator("div.wide:has(img, table.many)")
    assert hints.count() == boxes.count() == 5  # the table and four figures
    for hint, box in zip(hints.all(), boxes.all()):
        assert hint.is_visible() == (width == 390)
        assert box.evaluate("box => box.scrollWidth > box.clientWidth") == (width == 390)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    last = page.locator("table.many tr").last.locator("td").last
    last.scroll_into_view_if_needed()
    assert last.bounding_box()["x"] + last.bounding_box()["width"] <= width + 1
