"""Studies as data: cells that are shared, the paper's rows, tables with means and ratios, reports."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from small import Decay

import clpinn as cl
from clpinn.errors import StudyError
from clpinn.networks.architecture import count
from clpinn.networks.make import make
from clpinn.protocol import TARGETS
from clpinn.runs.display import Display
from clpinn.studies.cells import CellResult, keep, kept_result
from clpinn.studies.cost import seconds_left, total_rows
from clpinn.studies.page import as_csv, as_markdown, page, write_report
from clpinn.studies.paper import STUDIES
from clpinn.studies.running import Plan, load_study
from clpinn.studies.study import Cell
from clpinn.studies.tables import COLUMNS, column, notes, table, to_records

DECAY = "tests/small.py:Decay"
TINY = ("network.width=5", "network.depth=1", "steps=4")


def pair(**options):
    """A study of two rows and two seeds."""
    variants = (cl.Variant("narrow", settings=TINY), cl.Variant("wide", settings=(*TINY, "network.width=6")))
    return cl.Study((DECAY,), variants, seeds=(0, 1), name="pair", **options)


def metrics(macro, **more):
    errors = {"mse": macro**2, "rel_l2_macro": macro, "rel_l2_worst": 2 * macro}
    return {"macro": errors, "res_pde_macro": 0.5, "outcome": "finished", "recoveries": 0, "outputs": {}} | more


def results(study, figures, budget=1.0):
    """Results by the names of cells, from figures by (row, seed)."""
    cells = study.cells(budget)
    return {cells[DECAY, row, seed].name: CellResult(metrics(value), {}, []) for (row, seed), value in figures.items()}


# Cells -------------------------------------------------------------------------------------------------------------


def test_a_cell_is_its_settings_and_its_problem():
    cells = pair().cells()
    assert len({cell.key for cell in cells.values()}) == 4
    again = pair(question="the same cells").cells()
    assert [cell.name for cell in again.values()] == [cell.name for cell in cells.values()]
    first = cells[DECAY, "narrow", 0]
    assert first.settings.steps == 4 and first.settings.network.width == 5 and first.name.startswith("Decay-free-0-")
    assert pair().cells(0.5)[DECAY, "narrow", 0].settings.steps == 2


def test_defaults_are_no_part_of_a_key():
    """So a setting that is added later, with what was done before as its default, loses no run."""
    cell = pair().cells()[DECAY, "narrow", 0]
    explicit = cl.Variant("narrow", settings=(*TINY, "probe=0", "natural.momentum=0.8"))
    same = cl.Study((DECAY,), (explicit,), seeds=(0,)).cells()[DECAY, "narrow", 0]
    assert same.key == cell.key
    other = cl.Variant("narrow", settings=(*TINY, "natural.momentum=0.7"))
    assert cl.Study((DECAY,), (other,), seeds=(0,)).cells()[DECAY, "narrow", 0].key != cell.key


def test_problems_of_one_name_have_cells_of_their_own(tmp_path):
    """Also a problem that was edited. One that calls Python counts with its text."""
    text = Path("tests/small.py").read_text()
    edited = text.replace("d.u_t + k * d.u + d.u_x", "d.u_t + 2 * k * d.u + d.u_x")
    calling = text.replace("return d.u_t + k", "return d.u_t + jax.pure_callback(lambda k: k, k, k)")
    keys = set()
    for name, content in (("a", text), ("b", edited), ("c", calling), ("d", calling + "# edited")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "small.py").write_text(content.replace("import jax.numpy", "import jax\nimport jax.numpy"))
        study = cl.Study((f"{tmp_path}/{name}/small.py:Decay",), (cl.Variant("a", settings=TINY),), seeds=(0,))
        keys |= {cell.key for cell in study.cells().values()}
    assert len(keys) == 4 and pair().cells()[DECAY, "narrow", 0].key in {
        cell.key for cell in cl.Study((f"{tmp_path}/a/small.py:Decay",), pair().variants[:1]).cells().values()
    }


def test_an_adaptation_costs_hours():
    cells = STUDIES["finetune"]().cells().values()
    of_burgers = next(cell for cell in cells if cell.problem == "burgers")
    assert total_rows(of_burgers) == 5 * 500 * (5000 + 200 + 400 + 300)  # targets, steps, the paper's points
    problem = of_burgers.loaded
    few = replace(of_burgers, adaptation=replace(of_burgers.adaptation, targets="unseen"))
    assert total_rows(few) / total_rows(of_burgers) == (len(problem.candidates.points) - 9 - 9) / 5
    seconds = seconds_left([(of_burgers, 0.5)], Display(quiet=True))
    assert seconds > 0


def test_studies_share_their_runs():
    main = STUDIES["main"]().cells()
    burgers = {row: main["burgers", row, 0].key for row in ("FIX", "AC", "ACR", "ACR2-arch")}
    shared = {
        ("selection-weights", "fixed, equal"): "FIX",
        ("selection-weights", "selected, dynamic"): "AC",
        ("replay", "none"): "AC",
        ("replay", "sparse"): "ACR",
        ("architecture", "ParamFNN"): "ACR2-arch",
        ("query-budget", "10"): "AC",
        ("imbalance", "ACR2-arch"): "ACR2-arch",
        ("queries", "AC"): "AC",
        ("timing", "ACR"): "ACR",
        ("atlas", "ACR"): "ACR",
    }
    for (study, row), method in shared.items():
        assert STUDIES[study]().cells()["burgers", row, 0].key == burgers[method], (study, row)
    for study in ("finetune", "finetune-grid", "external"):
        cell = STUDIES[study]().cells()["burgers", "head", 0]
        assert cell.base is not None and cell.base.key == burgers["ACR"] and cell.key != cell.base.key
    heads = [STUDIES[study]().cells()["burgers", "head", 0].key for study in ("finetune", "external")]
    assert heads[0] == heads[1]


def test_targets_are_held_out_of_every_base():
    for name in ("main", "external"):
        for (problem, row, _), cell in STUDIES[name]().cells().items():
            if problem in TARGETS:
                assert cell.settings.tasks.exclude == TARGETS[problem], row


@pytest.mark.parametrize(
    "problem, weights",
    [("schaffer", 3871), ("burgers", 10451), ("allen_cahn", 10501), ("kovasznay", 10553), ("poisson_boltzmann", 4891)],
)
def test_the_architectures_compared_are_of_the_same_size(problem, weights):
    cells = STUDIES["architecture"]().cells()
    for row in ("FNN of the same size", "ParamFNN"):
        cell = cells[problem, row, 0]
        assert count(make(cell.loaded, cell.settings.network, jax.random.key(0))) == weights


def test_what_is_published_belongs_to_a_row_and_a_column():
    compared = 0
    for name, make_study in STUDIES.items():
        study = make_study()
        for problem, rows in study.published.items():
            labels = {variant.label for variant in study.rows(problem)}
            assert problem in study.problems and set(rows) <= labels, (name, problem, set(rows) - labels)
            for row, figures in rows.items():
                unknown = {key for key in figures if key not in COLUMNS and "@" not in key}
                assert not unknown, (name, row, unknown)
                compared += len(figures)
    assert compared > 300
    assert STUDIES["main"]().published["burgers"]["ACR2-arch"]["macro"] == [0.001771, 0.0001146]


def test_a_budget_scales_steps_and_intervals_and_keeps_events():
    cell = STUDIES["main"]().cells(0.01)["schaffer", "AC", 0].settings
    assert (cell.adam.steps, cell.tasks.interval, cell.lbfgs.steps) == (200, 10, 200)
    search = STUDIES["search"]().cells(0.01)["schaffer", "AC", 0].settings
    assert (search.adam.steps, search.tasks.interval, search.lbfgs.steps) == (20, 1, 1)
    for rows in (50_000, 1_000):
        settings = STUDIES["minibatch"]().cells()["burgers", str(rows), 0].settings
        assert settings.batch_rows == (None if rows == 50_000 else rows) and settings.adam.steps * rows == 10**8
        assert settings.points.interior == 50_000 and settings.tasks.fixed == ((0.01,),)


# Parts of a study --------------------------------------------------------------------------------------------------


def test_part_of_a_study():
    part = STUDIES["main"]().narrowed(["burgers", "poisson_boltzmann"], [1, 2], ["batch=0.5"], ["AC", "ACR"])
    cells = part.cells()
    assert {key[2] for key in cells} == {1, 2} and {key[1] for key in cells} == {"AC", "ACR"}
    assert all(cell.settings.batch == 0.5 for cell in cells.values())  # also where the study has its own
    assert {key[2] for key in STUDIES["main"]().cells() if key[0] == "poisson_boltzmann"} == {0}
    assert STUDIES["main"]().cells()["poisson_boltzmann", "AC", 0].settings.batch == 0.05


@pytest.mark.parametrize(
    "make_wrong, message",
    [
        (lambda: STUDIES["main"]().narrowed(["heat"]), "has no problem 'heat'. It has schaffer, burgers"),
        (lambda: STUDIES["main"]().narrowed(labels=["AX"]), "has no variant 'AX'. It has UNI, FIX"),
        (lambda: cl.Study((), (cl.Variant("a"),)), "at least one of its problems"),
        (lambda: cl.Study((DECAY,), (cl.Variant("a"), cl.Variant("a"))), "is there twice"),
        (lambda: load_study("mian"), "There is no study called 'mian'"),
        (lambda: load_study("nowhere.py:Sweep"), "There is no file nowhere.py"),
        (lambda: load_study("tests/small.py:Decay"), "has no study called 'Decay'. It has none"),
        (lambda: pair().cells(math.nan), "budget must be above zero"),
        (lambda: cl.Study((DECAY,), (cl.Variant("a"),)).cells(0.1), "this run has no bound on them"),
        (lambda: table(pair(columns=("maco",)), 1.0, {}), "has no column 'maco'. It has mse"),
        (lambda: cl.Study((DECAY,), (cl.Variant("a", at=("k=1",)),)).cells(), "at. is the theta of a standard PINN"),
    ],
)
def test_bad_input_is_told(make_wrong, message):
    with pytest.raises(cl.ClpinnError, match=message):
        make_wrong()


def test_a_study_of_a_file_finds_problems_beside_it(tmp_path):
    (tmp_path / "rod.py").write_text(Path("examples/heat.py").read_text())
    text = "import clpinn as cl\nSweep = cl.Study(('rod.py:Heat',), (cl.Variant('a', settings=('steps=2',)),))\n"
    (tmp_path / "sweep.py").write_text(text)
    for name in (f"{tmp_path}/sweep.py:Sweep", f"{tmp_path}/sweep.py"):
        study = load_study(name)
        assert study.name == "Sweep" and study.problems == (f"{tmp_path}/rod.py:Heat",)
        assert [cell.name.partition("-")[0] for cell in study.cells().values()] == ["Heat"] * 3


# Tables ------------------------------------------------------------------------------------------------------------


def test_a_table_aggregates_over_seeds_and_compares():
    published = {DECAY: {"narrow": {"macro": [0.1, 0.01]}}}
    study = pair(published=published)
    found = table(study, 1.0, results(study, {("narrow", 0): 0.1, ("narrow", 1): 0.3, ("wide", 0): 0.5}))
    narrow, wide = found.rows
    entry = narrow.entries["macro"]
    assert entry.found is not None and entry.found.mean == pytest.approx(0.2) and entry.found.sd == pytest.approx(0.1)
    assert entry.ratio == pytest.approx(2.0)
    assert (narrow.done, narrow.missing, wide.done, wide.missing) == ((0, 1), (), (0,), (1,))
    assert wide.entries["macro"].ratio is None
    records = {(r["row"], r["column"]): r for r in to_records(found)}
    assert records["narrow", "worst"]["mean"] == pytest.approx(0.4) and records["wide", "macro"]["missing"] == 1


def test_means_are_over_one_budget():
    study = pair()
    other = results(study, {("narrow", 0): 0.1}, budget=0.5)
    assert table(study, 1.0, other).rows[0].done == ()
    assert table(study, 0.5, other).rows[0].done == (0,)


def test_a_run_that_diverged_counts_as_not_finite():
    study = pair()
    found = results(study, {("narrow", 0): 0.1, ("narrow", 1): 0.3})
    cell = study.cells()[DECAY, "narrow", 1]
    found[cell.name] = CellResult(metrics(0.3, outcome="diverged", recoveries=2), {}, [])
    row = table(study, 1.0, found).rows[0]
    entry = row.entries["macro"].found
    assert entry is not None and (entry.mean, entry.seeds, entry.non_finite) == (0.1, (0,), (1,))
    assert row.diverged == (1,) and row.recoveries == 2


def test_a_reduction_is_that_of_the_means():
    """As in the paper: seeds with large errors count more."""
    adaptation = cl.Adapting(targets="unseen")
    study = cl.Study((DECAY,), (cl.Variant("a", adaptation=adaptation),), seeds=(0, 1), columns=("reduction",))
    found = {}
    for seed, (before, after) in enumerate([(1.0, 0.5), (9.0, 0.9)]):
        figures = {"before": before, "after": after, "reduction": 1 - after / before}
        cell = study.cells()[DECAY, "a", seed]
        found[cell.name] = CellResult({"checkpoints": {"500": figures}, "outcome": "finished"}, {}, [])
    entry = table(study, 1.0, found).rows[0].entries["reduction"]
    assert entry.by_seed == {0: 0.5, 1: 0.9} and entry.found is not None
    assert entry.found.mean == pytest.approx(1 - 1.4 / 10) and entry.found.sd == pytest.approx(0.2)


def test_headers_say_what_the_budget_is_of():
    headers = {name: table(STUDIES[name](), 0.1, {}).header for name in ("main", "search", "finetune")}
    assert "Budget: 10 % of the steps." in headers["main"] and "as few steps as the events allow" in headers["search"]
    assert "10 % of the steps of the bases; adaptations make all of theirs" in headers["finetune"]


def test_an_error_at_one_theta():
    study = cl.Study((DECAY,), (cl.Variant("a", settings=TINY),), seeds=(0,), columns=("rel_l2@1", "res_pde@2"))
    errors = {"k": [1.0, 2.0], "rel_l2_u": [0.25, 0.5], "res_pde": [3.0, 4.0]}
    (cell,) = study.cells().values()
    row = table(study, 1.0, {cell.name: CellResult(metrics(0.1), errors, [])}).rows[0]
    assert row.entries["rel_l2@1"].by_seed == {0: 0.25} and row.entries["res_pde@2"].by_seed == {0: 4.0}
    assert column("rel_l2@1").title == "rel l2 at 1"
    diverged = {cell.name: CellResult(metrics(0.1, outcome="diverged"), errors, [])}
    assert math.isnan(table(study, 1.0, diverged).rows[0].entries["rel_l2@1"].by_seed[0])


def test_the_mean_largest_error_is_that_of_the_outputs():
    outputs = {"u": {"max_abs_mean": 0.25}, "v": {"max_abs_mean": 0.75}}
    study = pair(columns=("max_abs_mean",))
    cell = study.cells()[DECAY, "narrow", 0]
    found = table(study, 1.0, {cell.name: CellResult(metrics(0.1, outputs=outputs), {}, [])})
    assert found.rows[0].entries["max_abs_mean"].by_seed == {0: 0.5}


def test_headings_name_the_settings_that_all_rows_have():
    main = STUDIES["main"]()
    assert notes(main, "poisson_boltzmann") == "batch=0.05" and notes(main, "burgers") == ""


def test_reports(tmp_path):
    study = pair(question="How wide?", published={DECAY: {"narrow": {"macro": [0.1, None]}}}, figures=("dots",))
    found = [table(study, 0.5, results(study, {("narrow", 0): 0.1, ("narrow", 1): 0.3}, budget=0.5))]
    text = as_markdown(found)
    assert "50 % of the steps" in text and "| narrow | 2 of 2 |" in text and "| 0.2 ± 0.1 | 0.1 | 2 |" in text
    assert "| wide | 0 of 2 | missing |" in text
    rows = list(csv.DictReader(as_csv(found).splitlines()))
    assert {row["row"] for row in rows} == {"narrow", "wide"} and float(rows[0]["mean"]) == pytest.approx(0.05)
    html = page(found)
    assert "2 cells have not ended" in html and "0.2 ± 0.1" in html and html.count("<figure>") == 1
    for ending in (".html", ".md", ".csv", ".json"):
        write_report(found, tmp_path / f"report{ending}")
    assert json.loads((tmp_path / "report.json").read_text())[0]["study"] == "pair"
    with pytest.raises(StudyError, match=r"ends with .html, .md, .csv, .json, but got report.xlsx"):
        write_report(found, tmp_path / "report.xlsx")


def test_kept_results_come_back(tmp_path):
    cell: Cell = pair().cells()[DECAY, "narrow", 0]
    assert kept_result(cell, tmp_path) is None
    result = CellResult(metrics(0.1), {"k": [1.0]}, [{"step": 1}])
    keep(cell, result, tmp_path, "abc1234")
    again = kept_result(cell, tmp_path)
    assert again is not None and again.metrics == result.metrics and again.commit == "abc1234"


def test_plans_choose_parts():
    assert Plan(0.1, ("burgers",), (1,)).applied(STUDIES["main"]()).problems == ("burgers",)
    assert Decay().parameters.names == ("k",)
