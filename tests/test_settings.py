import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from small import Decay

import clpinn as cl
from clpinn.errors import SettingsError
from clpinn.formulation.thetas import same_as_any
from clpinn.keys import make_key
from clpinn.networks.architecture import Architecture
from clpinn.presets import natural, paper, scaled
from clpinn.problems import BENCHMARKS, load_problem
from clpinn.protocol import METHODS, RIVALS, TARGETS
from clpinn.training.events import Events
from clpinn.training.settings import Settings, from_dict, override, to_dict
from clpinn.training.state import Timing


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize("method", METHODS)
def test_round_trip(name, method):
    settings = scaled(paper(load_problem(name, paper=True), method), 0.1)
    assert from_dict(to_dict(settings)) == settings


def test_the_papers_protocol():
    """Networks, capacities, steps and intervals as published."""
    expected = {
        "schaffer": (30, 4, 15, 20_000, 20_000, (1000, 1000, 500), 10),
        "burgers": (50, 4, 9, 20_000, 20_000, (2000, 2000, 1000), 10),
        "allen_cahn": (50, 4, 9, 20_000, 10_000, (2000, 1000, 1000), 20),
        "kovasznay": (50, 4, 10, 10_000, 10_000, (1000, 500, 500), 15),
        "poisson_boltzmann": (30, 5, 80, 40_000, 20_000, (500, 250, 250), 50),
    }
    for name, (width, depth, capacity, adam, lbfgs, intervals, evaluations) in expected.items():
        ac, acr, acr2 = (paper(load_problem(name, paper=True), method) for method in ("ac", "acr", "acr2"))
        assert (ac.network.width, ac.network.depth, ac.network.kind) == (width, depth, "fnn")
        assert (ac.tasks.active, ac.tasks.replay, acr.tasks.replay) == (capacity, 0, capacity)
        assert (ac.adam.steps, ac.lbfgs.steps) == (adam, lbfgs)
        assert tuple(s.tasks.interval for s in (ac, acr, acr2)) == intervals
        assert (ac.tasks.evaluations, ac.tasks.kappa) == (evaluations, 5)
        assert acr2.network.kind == "param-fnn" and acr2.network.depth == depth - 1
        assert acr2.tasks.density == ("full" if name in ("schaffer", "burgers") else "sparse")
        assert acr.tasks.density == "sparse" and acr.tasks.search_prior == (name == "schaffer")
        assert paper(load_problem(name, paper=True), "ag").tasks.interval == intervals[0]
    assert paper(cl.problems.PoissonBoltzmann(), "uni").adam.steps == 20_000
    full = paper(cl.problems.Burgers(hard=False), "acr2-full")
    assert full.adam.decay == "branch" and full.lbfgs.freeze
    adam, lbfgs = dataclasses.replace(full.adam, decay="none"), dataclasses.replace(full.lbfgs, freeze=False)
    assert dataclasses.replace(full, method="acr2", adam=adam, lbfgs=lbfgs) == paper(
        cl.problems.Burgers(hard=False), "acr2"
    )


@pytest.mark.parametrize("method", ["acr", "p2inn"])
def test_the_paper_wants_burgers_with_soft_conditions(method, tmp_path):
    with pytest.raises(
        SettingsError, match=r"soft conditions, but got hard=True. Use cl.problems.Burgers\(hard=False\)"
    ):
        paper(cl.problems.Burgers(), method)
    # The natural preset takes both forms, and its tasks are the paper's.
    hard, soft = (natural(cl.problems.Burgers(hard=hard), method) for hard in (True, False))
    assert hard == soft and hard.tasks.linear == ("nu",)


def test_fixed_lists_fit_and_lie_in_the_box():
    for name in BENCHMARKS:
        problem = load_problem(name, paper=True)
        tasks = paper(problem, "fix").tasks
        assert len(set(tasks.fixed)) == len(tasks.fixed) == tasks.active
        problem.parameters.check(np.array(tasks.fixed), forbid=True)


@pytest.mark.parametrize("name", TARGETS)
def test_fixed_targets_are_candidates_and_no_method_starts_with_one(name):
    problem = load_problem(name, paper=True)
    targets = np.array(TARGETS[name])
    box = problem.parameters
    assert same_as_any(targets, problem.candidates.points, box).all() and len(np.unique(targets, axis=0)) >= 3
    for method in (*METHODS, *RIVALS):
        settings = paper(problem, method)
        held_out = dataclasses.replace(settings, tasks=dataclasses.replace(settings.tasks, exclude=TARGETS[name]))
        events = Events(problem, held_out, make_key(0), Timing())
        events.check_tasks(box.centre[None])  # Meta-PINN starts there
        assert not same_as_any(events.first_pool().thetas, targets, box).any()


@pytest.mark.parametrize("budget", [1.0, 0.1, 0.013, 1e-5])
def test_a_budget_keeps_the_number_of_events(budget):
    for name in BENCHMARKS:
        full = paper(load_problem(name, paper=True), "acr")
        less = scaled(full, budget)
        assert less.adam.steps // less.tasks.interval == full.adam.steps // full.tasks.interval
        assert less.adam.steps % less.tasks.interval == 0
        assert less.tasks.interval == max(1, round(budget * full.tasks.interval))


@pytest.mark.parametrize("method", ["p2inn", "hyperpinn", "metapinn"])
def test_tasks_of_rivals_are_spaced_as_those_of_uni(method):
    problem = cl.problems.Burgers(hard=False)
    assert paper(problem, method).tasks.linear == paper(problem, "uni").tasks.linear == ("nu",)


def test_a_budget_adds_no_stage():
    assert scaled(paper(cl.problems.Burgers(hard=False), "p2inn"), 0.01).lbfgs.steps == 0


def test_a_problem_of_ones_own_has_room_for_its_corners():
    """And for eight more tasks."""
    for name, corners in (("tests/small.py:Decay", 2), ("examples/channel.py:Channel", 4)):
        problem = load_problem(name)
        tasks = paper(problem, "acr").tasks
        assert len(problem.parameters.corners()) == corners
        assert (tasks.active, tasks.replay) == (corners + 8, corners + 8)


def test_a_problem_of_ones_own_may_have_the_name_of_a_benchmark():
    class Burgers(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(viscosity=cl.log(0.001, 1.0))

        def residual(self, d, viscosity):
            return d.u_x - viscosity * d.u_xx

    assert paper(Burgers(), "fix").tasks.linear == () and paper(Burgers(), "fix").tasks.fixed == ()

    class Ours(cl.problems.Burgers):
        pass

    assert paper(Ours(hard=False), "fix").tasks == paper(cl.problems.Burgers(hard=False), "fix").tasks


def test_the_natural_preset_is_one_for_all_but_for_its_size():
    chosen = {name: natural(BENCHMARKS[name]()) for name in BENCHMARKS}
    sizes = {name: (settings.network.depth, settings.network.width) for name, settings in chosen.items()}
    assert sizes == dict.fromkeys(BENCHMARKS, (4, 21)) | {"poisson_boltzmann": (5, 28)}
    same = {(s.tasks, s.natural, s.precision, s.network.kind) for s in chosen.values()}
    assert len(same) == 1
    assert natural(BENCHMARKS["burgers"](), "acr2").network == Architecture("param-fnn", 30, 3)


def test_settings_without_arguments_are_the_natural_preset():
    assert Settings() == natural(Decay())
    assert (Settings().optimizer, Settings().tasks.selector, Settings().precision) == ("natural", "free", "double")


@pytest.mark.parametrize("method", (*METHODS, *RIVALS))
def test_settings_of_the_paper_name_their_optimiser(method):
    settings = paper(Decay(), method)
    assert (settings.optimizer, settings.precision, settings.method) == ("adam-lbfgs", "single", method)
    assert settings.tasks.selector != "free" and settings.tasks.active > 0


def test_override():
    settings = override(paper(cl.problems.Burgers(hard=False), "acr"), ["adam.steps=7", "tasks.replay=None", "seed=3"])
    assert (settings.adam.steps, settings.tasks.replay, settings.seed) == (7, None, 3)
    assert override(settings, ["tasks.fixed=[[0.1], [0.2]]"]).tasks.fixed == ((0.1,), (0.2,))
    assert override(settings, ["tasks.kappa=3"]).tasks.kappa == 3.0


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("adam.stepz=1", "no setting 'adam.stepz'.*steps"),
        ("adam=1", "group of settings"),
        ("seed.more=1", "single setting"),
        ("adam.steps=many", "adam.steps must be int, but got 'many'"),
        ("adam.steps=1.5", "adam.steps must be int"),
        ("tasks.selector=magic", "one of free, uniform, fixed, grid, bayesian"),
        ("weights.prior=none", "weights.prior must be float, but got 'none'"),
        ("weights.prior=11", "weights.prior must be at most 10, but got 11"),
        ("tasks.kappa=true", "tasks.kappa must be float, but got True"),
        ("seed", "name=value"),
    ],
)
def test_bad_settings_are_named(assignment, message):
    with pytest.raises(SettingsError, match=message):
        override(paper(cl.problems.Burgers(hard=False), "acr"), [assignment])


def test_priors_of_before_were_on_or_off():
    settings = paper(cl.problems.Burgers(hard=False), "acr")
    for assignment, exponent in (("true", 1.0), ("false", 0.0), ("-1", -1.0), ("0.5", 0.5)):
        chosen = override(settings, [f"weights.prior={assignment}", f"tasks.search_prior={assignment}"])
        assert (chosen.weights.prior, chosen.tasks.search_prior) == (exponent, exponent)
        assert isinstance(chosen.weights.prior, float) and isinstance(chosen.tasks.search_prior, float)


def test_bad_method_and_budget():
    with pytest.raises(SettingsError, match="Unknown method 'sgd'. Use one of uni"):
        paper(cl.problems.Burgers(hard=False), "sgd")
    for budget in (0, -1, float("nan")):
        with pytest.raises(SettingsError, match="above zero"):
            scaled(paper(cl.problems.Burgers(hard=False), "acr"), budget)


def test_the_settings_of_the_docs_exist():
    pages = [*Path("docs").glob("*.md"), Path("README.md")]
    assignments = {text for page in pages for text in re.findall(r"--set ([\w.]+=\w+(?:\.\d+)?)", page.read_text())}
    assert len(assignments) > 10
    for assignment in assignments:
        override(paper(load_problem("burgers", paper=True), "acr2"), [assignment])
