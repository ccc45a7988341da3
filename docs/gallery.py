"""The gallery of the docs: every example and benchmark, trained for a short time and drawn.

    python docs/gallery.py [--seconds 20 | --steps 100] [--only NAME ...] [--keep FOLDER]

Trains each problem by the command that its section names, draws one picture into docs/gallery/ and writes
docs/gallery.md. Problems are trained one after the other. With --only the other sections keep what docs/gallery/
records of them; --only without a name writes the page alone. --keep keeps the run directories, and a run that is there
is not made again.
"""

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image

import clpinn as cl

matplotlib.use("agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
ROOT, PICTURES = HERE.parent, HERE / "gallery"
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#767676"
MOST_BYTES = 60_000

Theta = dict[str, float]
Draw = Callable[[cl.Surrogate], Any]
"""Draws a picture of a surrogate and returns the matplotlib figure."""


@dataclass(frozen=True)
class Entry:
    """One section of the page. `problem` is what `clpinn train` is given; `draw` makes the picture."""

    title: str
    problem: str
    text: str
    draw: Draw


# Pictures ----------------------------------------------------------------------------------------------------


def text_of(theta: Theta) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in theta.items())


def exact(surrogate: cl.Surrogate, field: Any, theta: Theta, output: str) -> np.ndarray:
    """The reference on the grid of a field, in the field's order of dimensions."""
    names = list(surrogate.problem.coordinates)
    columns = {name: field[name].broadcast_like(field[output]).values for name in names}
    assert surrogate.problem.reference is not None
    return np.asarray(surrogate.problem.reference(**columns, **theta)[output])


def fields(first: Theta, second: Theta, output: str = "u", across: str = "", up: str = "") -> Draw:
    """The output at two thetas over two coordinates, and its error at the second."""

    def draw(surrogate: cl.Surrogate) -> Any:
        coordinates = list(surrogate.problem.coordinates)
        x, y = across or coordinates[0], up or coordinates[1]
        figure, panels = plt.subplots(1, 3, figsize=(7.4, 2.1), layout="constrained")
        for panel, theta in zip(panels, (first, second)):
            field = surrogate.field(80, **theta)
            show(figure, panel, field, x, y, field[output].values, f"{output} at {text_of(theta)}", "viridis")
        error = np.abs(field[output].values - exact(surrogate, field, second, output))
        show(figure, panels[2], field, x, y, error, f"|error| at {text_of(second)}", "magma")
        return figure

    return draw


def show(figure: Any, panel: Any, field: Any, x: str, y: str, values: np.ndarray, title: str, colours: str) -> None:
    columns = [field[name].broadcast_like(field[next(iter(field.data_vars))]).values for name in (x, y)]
    drawn = panel.pcolormesh(*columns, values, cmap=colours, shading="gouraud", rasterized=True)
    figure.colorbar(drawn, ax=panel)
    panel.set(title=title, xlabel=x, ylabel=y)


def curves(thetas: list[Theta], along: str) -> Draw:
    """All outputs along one coordinate, and their errors."""

    def draw(surrogate: cl.Surrogate) -> Any:
        outputs = surrogate.problem.outputs
        figure, panels = plt.subplots(1, 1 + len(thetas), figsize=(7.4, 2.1), layout="constrained")
        for panel, theta in zip(panels, thetas):
            field = surrogate.field(200, **theta)
            for output, colour in zip(outputs, (BLUE, ORANGE)):
                values = exact(surrogate, field, theta, output)
                panel.plot(field[along], field[output], color=colour, label=output)
                panel.plot(field[along][::10], values[::10], ".", color=colour, ms=4)
                panels[-1].semilogy(field[along], np.abs(field[output].values - values), color=colour, lw=1)
            panel.set(title=text_of(theta), xlabel=along)
        panels[0].legend(frameon=False)
        panels[-1].set(title="|error|", xlabel=along)
        return figure

    return draw


def channel(surrogate: cl.Surrogate) -> Any:
    """Profiles across channels of three heights, and the error."""
    figure, panels = plt.subplots(1, 2, figsize=(7.4, 2.1), layout="constrained")
    for height, colour in zip((0.5, 1.0, 2.0), (BLUE, ORANGE, GREY)):
        y = np.linspace(0, height, 100)
        u = surrogate(x=0.5, y=y, height=height, viscosity=1.0)["u"]
        panels[0].plot(u, y, color=colour, label=f"height {height:g}")
        panels[1].semilogy(y / height, np.abs(u - y * (height - y) / 2), color=colour)
    panels[0].legend(frameon=False)
    panels[0].set(title="u across the channel, viscosity = 1", xlabel="u", ylabel="y")
    panels[1].set(title="|error|", xlabel="y / height")
    return figure


def heat_profiles(surrogate: cl.Surrogate) -> Any:
    """What examples/own_pde.py asks for: the rod at three diffusivities."""
    figure, panels = plt.subplots(1, 3, figsize=(7.4, 2.1), layout="constrained", sharey=True)
    for panel, kappa in zip(panels, (0.02, 0.1, 0.5)):
        for t, shade in zip((0.0, 0.25, 0.5, 1.0), plt.get_cmap("viridis")([0.0, 0.3, 0.6, 0.85])):
            x = np.linspace(0, 1, 100)
            panel.plot(x, surrogate(x=x, t=t, kappa=kappa)["u"], color=shade, label=f"t = {t:g}")
        panel.set(title=f"kappa = {kappa:g}", xlabel="x")
    panels[0].set_ylabel("u")
    panels[0].legend(frameon=False, loc="lower center", fontsize=6)
    return figure


def design(surrogate: cl.Surrogate) -> Any:
    """What examples/design.py computes: the temperature in the middle, over the diffusivity."""
    kappas = np.geomspace(0.01, 1, 400)
    figure, panels = plt.subplots(1, 2, figsize=(7.4, 2.1), layout="constrained")
    panels[0].semilogx(kappas, surrogate(x=0.5, t=0.5, kappa=kappas)["u"], color=BLUE)
    panels[0].axhline(0.1, color=ORANGE, ls="--")
    panels[0].axvline(np.log(10) / (np.pi**2 * 0.5), color=GREY, lw=0.8)
    panels[0].set(title="u in the middle at t = 0.5, and the limit", xlabel="kappa", ylabel="u")
    panels[1].semilogx(kappas, surrogate.derivative("u_kappa", x=0.5, t=0.5, kappa=kappas), color=BLUE)
    panels[1].set(title="its derivative by kappa", xlabel="kappa")
    return figure


def inverse(surrogate: cl.Surrogate) -> Any:
    """What examples/inverse.py fits: the misfit to 50 noisy measurements, over the viscosity."""
    measured = runpy.run_path(str(ROOT / "examples" / "inverse.py"))["measured"]
    nus = np.geomspace(0.01, 1, 200)
    figure, panels = plt.subplots(1, 2, figsize=(7.4, 2.1), layout="constrained")
    x, t, values = measured(0.05, 0)
    points = panels[0].scatter(t, x, c=values, s=14, cmap="viridis")
    figure.colorbar(points, ax=panels[0])
    panels[0].set(title="50 measurements of u at nu = 0.05", xlabel="t", ylabel="x")
    for nu, colour in zip((0.05, 0.3), (BLUE, ORANGE)):
        x, t, values = measured(nu, 0)
        rest = surrogate(x=x, t=t, nu=nus[:, None])["u"] - values
        panels[1].loglog(nus, np.sqrt(np.mean(rest**2, axis=1)), color=colour, label=f"true nu = {nu:g}")
        panels[1].axvline(nu, color=colour, ls=":")
    panels[1].legend(frameon=False, loc="lower left")
    panels[1].set(title="root mean square misfit", xlabel="nu")
    return figure


# Sections ----------------------------------------------------------------------------------------------------

ENTRIES = {
    "burgers": Entry(
        "Burgers: a layer that sharpens",
        "burgers",
        """u_t + u u_x = (nu/π) u_xx on x in [−1, 1], with nu from 0.01 to 1 on a log axis. A sine wave steepens. At
        small nu it forms a layer at x = 0, which is about 1/100 of the domain wide. Initial and boundary values are
        hard conditions. The reference is the Cole-Hopf solution.""",
        fields({"nu": 1.0}, {"nu": 0.01}, across="t", up="x"),
    ),
    "allen_cahn": Entry(
        "Allen-Cahn: phases that separate",
        "allen_cahn",
        """u_t = nu u_xx + rho (u − u³) over two parameters. The reaction rho drives u to ±1. The diffusion nu
        sets how sharp the fronts between the phases are. All conditions are hard. The reference uses spectral
        elements.""",
        fields({"nu": 0.1, "rho": 3.0}, {"nu": 0.001, "rho": 5.0}, across="t", up="x"),
    ),
    "kovasznay": Entry(
        "Kovasznay: a steady flow",
        "kovasznay",
        """The steady Navier-Stokes equations behind a grid, over the Reynolds number Re. There are three outputs u, v
        and p, three equations, and soft conditions on the boundary. The exact solution is known. The picture shows v,
        which is the smallest output.""",
        fields({"Re": 20.0}, {"Re": 100.0}, output="v"),
    ),
    "schaffer": Entry(
        "Schaffer: a function without derivatives",
        "schaffer",
        """u = (sin(x² + y²) − 0.5) / (1 + a (x² + y²))². This benchmark fits a function of two coordinates and
        one parameter. It has rings that decay at a rate set by a. There is no differential equation and no
        condition, so the edges are the hardest part. Short runs are far from the end: see
        [accuracy](accuracy.md) for longer ones.""",
        fields({"a": 1.0}, {"a": 0.01}),
    ),
    "poisson_boltzmann": Entry(
        "Poisson-Boltzmann: four parameters",
        "poisson_boltzmann",
        """−Δu + k² u = f(x, y; mu1, mu2, A): the linearised Poisson-Boltzmann equation over two wave numbers, a
        screening constant and an amplitude. Four parameters and two coordinates make six inputs. This is the hardest
        benchmark, and it needs minutes: see [accuracy](accuracy.md).""",
        fields({"mu1": 1.0, "mu2": 3.0, "k": 5.0, "A": 5.0}, {"mu1": 1.5, "mu2": 3.5, "k": 8.0, "A": 10.0}),
    ),
    "heat": Entry(
        "Heat in a rod",
        "examples/heat.py:Heat",
        """u_t = kappa u_xx over a diffusivity kappa from 0.01 to 1. This is the smallest complete problem: a hard
        initial condition, soft conditions at both ends, and the exact solution. The file has 23 lines, and [your own
        PDE](own-pde.md) explains them.""",
        fields({"kappa": 0.02}, {"kappa": 0.5}, across="t", up="x"),
    ),
    "own_pde": Entry(
        "A script: from the equation to numbers",
        "examples/heat.py:Heat",
        """`examples/own_pde.py` trains the heat problem and uses the result: a field at three diffusivities, its
        estimated error, and the heat flux at one end as a derivative. The picture shows the rod at these
        three diffusivities. Run it with `python examples/own_pde.py`.""",
        heat_profiles,
    ),
    "design": Entry(
        "A script: which material cools fast enough?",
        "examples/heat.py:Heat",
        """`examples/design.py` asks for the diffusivity at which the middle of the rod falls below 0.1 at t = 0.5. A
        sweep over 5000 materials is one call. Newton's method through the surrogate then finds the exact value. The
        grey line is the analytic answer, 0.4666. Run it with `python examples/design.py`.""",
        design,
    ),
    "inverse": Entry(
        "A script: viscosity from measurements",
        "burgers",
        """`examples/inverse.py` finds the viscosity of a Burgers flow from 50 measurements with 1 % noise. The
        surrogate gives the flow and its derivative by nu, so a fit takes milliseconds. It also says how well nu can
        be known at all. Run it with `python examples/inverse.py`.""",
        inverse,
    ),
    "channel": Entry(
        "A channel whose height is a parameter",
        "examples/channel.py:Channel",
        """Flow between two walls under a unit pressure gradient, over the height of the channel and the
        viscosity. The method `place` stretches the unit square to the channel. The equation is written in
        physical coordinates. The condition u_x = 0 has a
        validation loss near 1 however good the solution is, because its only term vanishes.""",
        channel,
    ),
    "predator_prey": Entry(
        "Predators and prey",
        "examples/predator_prey.py:PredatorPrey",
        """The equations of Lotka and Volterra over two rates: a system of ordinary differential equations with two
        outputs. A network can leave the solution early and follow the equations from there. Because the coordinate is
        called `t`, training solves early times first. Dots are the reference, by Runge-Kutta.""",
        curves([{"growth": 0.8, "hunting": 0.5}, {"growth": 1.5, "hunting": 1.2}], "t"),
    ),
    "kuramoto_sivashinsky": Entry(
        "Kuramoto-Sivashinsky: a fourth derivative",
        "examples/kuramoto_sivashinsky.py:KuramotoSivashinsky",
        """u_t + u u_x + u_xx + u_xxxx = 0, over the speed c of a travelling shock. The equation asks for `d.u_xxxx`
        like for any other derivative. Start, ends and slopes are soft conditions. The exact solution is known.""",
        fields({"c": 1.0}, {"c": 5.0}, across="t", up="x"),
    ),
    "trace": Entry(
        "A trace product in SI units",
        "examples/trace.py:Trace",
        """A substance u decays into a trace w of a ten-thousandth, in a layer of 1 cm. Lengths are 0.01,
        diffusivities 1e-7 to 1e-5, and fluxes 314. Nothing is scaled by hand: clpinn divides each residual by the
        size of its own terms. The picture shows the small output w.""",
        fields({"kappa": 1e-7}, {"kappa": 1e-5}, output="w", across="t", up="x"),
    ),
}


# Training and the page ---------------------------------------------------------------------------------------


def trained(problem: str, bound: str, folder: Path) -> tuple[cl.Surrogate, dict[str, Any]]:
    """The surrogate and the metrics of a run, made now if the folder is not there."""
    if not (folder / "metrics.json").exists():
        words = ["train", problem, *bound.split(), "--out", str(folder)]
        subprocess.run([sys.executable, "-m", "clpinn", *words], check=True, cwd=ROOT)
        commit = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=True, cwd=ROOT)
        (folder / "commit").write_text(commit.stdout.strip())
    stated = None
    if ":" in problem:
        file, name = problem.split(":")
        stated = runpy.run_path(str(ROOT / file))[name]()
    return cl.load(folder / "model.clpinn", problem=stated), json.loads((folder / "metrics.json").read_text())


def save(figure: Any, file: Path) -> None:
    """A PNG of at most 60 kB: fewer colours if need be."""
    figure.savefig(file, dpi=110)
    plt.close(figure)
    for colours in (256, 128, 64, 32):
        Image.open(file).convert("RGB").quantize(colours).save(file, optimize=True)
        if file.stat().st_size <= MOST_BYTES:
            return
        figure.savefig(file, dpi=110)


def section(name: str, entry: Entry, record: dict[str, Any]) -> str:
    errors = ", ".join(f"{output} {macro:.1e} / {worst:.1e}" for output, (macro, worst) in record["errors"].items())
    words = f"`clpinn train {entry.problem} {record['bound']}`"
    lines = [f"## {entry.title}", "", f"![{entry.title}](gallery/{name}.png)", ""]
    lines += textwrap.wrap(" ".join(entry.text.split()), 120, break_long_words=False, break_on_hyphens=False)
    measured = f"{record['steps']} steps; macro / worst relative L2 error {errors}; validation loss "
    measured += f"{record['validation']:.1e}. Commit {record['commit']}."
    return "\n".join([*lines, "", f"{words}  ", measured, ""])


def page() -> str:
    intro = """# Gallery

Every example and every benchmark, with one picture. Each was trained on two CPU cores within the short bound that its
command names. Longer runs do better. The macro error is the mean over all thetas of the problem's grid, the worst error
the largest. Made by `python docs/gallery.py`, which trains all problems again.

"""
    records = {name: PICTURES / f"{name}.json" for name in ENTRIES}
    parts = [
        section(name, ENTRIES[name], json.loads(file.read_text())) for name, file in records.items() if file.exists()
    ]
    return intro + "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steps", type=int, help="in place of --seconds: the same result on a busy machine")
    parser.add_argument("--only", nargs="*", choices=list(ENTRIES), default=list(ENTRIES), metavar="NAME")
    parser.add_argument("--keep", type=Path, help="where the run directories stay")
    arguments = parser.parse_args()
    bound = f"--steps {arguments.steps}" if arguments.steps else f"--seconds {arguments.seconds:g}"
    plt.rcParams.update({"font.size": 7, "axes.titlesize": 7})
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only:
            entry = ENTRIES[name]
            folder = (arguments.keep or Path(temporary)) / entry.problem.replace("/", "-").replace(":", "-")
            surrogate, metrics = trained(entry.problem, bound, folder.resolve())
            save(entry.draw(surrogate), PICTURES / f"{name}.png")
            outputs = metrics["outputs"].items()
            record = {
                "bound": bound,
                "steps": metrics["steps"],
                "validation": metrics["validation"],
                "errors": {output: [found["rel_l2_macro"], found["rel_l2_worst"]] for output, found in outputs},
                "commit": (folder / "commit").read_text(),
            }
            (PICTURES / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
            print(f"{name}: {(PICTURES / f'{name}.png').stat().st_size / 1e3:.0f} kB", flush=True)
    (HERE / "gallery.md").write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
