"""The live explorer in a headless Chromium: what the page shows is what JAX computes."""

from dataclasses import replace
from importlib.resources import files

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_report import short_run

import clpinn as cl
from clpinn.formulation.geometry import placed
from clpinn.networks.make import make
from clpinn.problems import load_problem
from clpinn.report.explorer import SCRIPTS, explorer_html, explorer_page
from clpinn.report.figures import KINDS as FIGURES
from clpinn.report.page import page as report
from clpinn.runs.directory import RunDirectory


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

    def open_page(surrogate, references=False, width=1000, text=None, **options):
        path = tmp_path / "page.html"
        path.write_text(text or explorer_page(surrogate, references), "utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith("file:") or complaints.append(asked.url))
        page.goto(path.as_uri())
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


def test_the_reference_beside_is_the_nearest(opened):
    problem = cl.problems.Kovasznay()
    surrogate = surrogate_of(problem)
    page = opened(surrogate, references=True)
    settled(page, lambda: page.get_by_label("Re, exact value").fill("77") or page.keyboard.press("Tab"))
    settled(page, lambda: page.get_by_role("button", name="Go to the reference").click())
    (found,) = page.evaluate("clpinnExplorer.theta()")
    assert found in problem.candidates.values["Re"] and abs(found - 77) <= 10
    caption = page.locator("figcaption")
    assert f"Re = {found:g}" in words(caption)
    page.get_by_label("Output").select_option("v")
    assert page.evaluate("clpinnExplorer.output()") == "v"
    # The difference is that of the network and the reference, on the grid in the page.
    x, y = (np.unique(np.round(np.linspace(0, 99, 34)).astype(int)) for _ in range(2))
    x, y = problem.evaluation.values["x"][x][:, None], problem.evaluation.values["y"][y]
    exact = problem.reference(x, y, found)["v"]
    expected = np.linalg.norm(surrogate(x=x, y=y, Re=found)["v"] - exact) / np.linalg.norm(exact)
    told = words(caption).split("differs by ")[1]
    assert float(told.split()[0]) == pytest.approx(expected, rel=1e-2)


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
    assert "relative L2, 21 points" in page.locator("figcaption").inner_text()


def test_every_control_has_a_name(opened):
    page = opened(surrogate_of(Solid()))
    named = page.evaluate(
        "[...document.querySelectorAll('input, select, canvas:not([hidden] *), button')].map((e) =>"
        "Boolean(e.labels?.length || e.getAttribute('aria-label') || e.textContent))"
    )
    # Three sliders with numbers, the choice of an output, the button, the held range, the field and two cuts.
    assert named == [True] * (6 + 1 + 1 + 1 + 3)


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
    assert len(explorer_page(surrogate_of(cl.problems.Kovasznay(), full_size=True))) < 2e6


def test_a_report_holds_the_explorer_of_its_run(opened, tmp_path, monkeypatch):
    """The page that `clpinn report` writes, under its content security policy."""
    surrogate = short_run(tmp_path / "run")
    monkeypatch.setattr("clpinn.report.page.KINDS", {kind: FIGURES[kind] for kind in ("errors", "tasks", "losses")})
    page = opened(surrogate, text=report([RunDirectory(tmp_path / "run")]))
    settled(page, lambda: page.locator("input[type=range]").first.fill("700"))
    assert_shown_is_computed(page, surrogate)
    assert page.locator("h2", has_text="How to repeat it").count() == 1 and page.locator("figure img").count() == 3
