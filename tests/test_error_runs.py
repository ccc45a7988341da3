"""Estimated errors where a user looks: the end of a run, clpinn evaluate, predict and adapt."""

import json
import signal
from dataclasses import replace

import numpy as np
import pytest
from small import Inflow
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli import tables
from clpinn.cli.app import app
from clpinn.errors import SettingsError
from clpinn.estimation.estimate import Estimator
from clpinn.runs import session
from clpinn.runs.directory import RunDirectory
from clpinn.training.settings import override

PROBLEM = "tests/small.py:Inflow"


class Unknown(Inflow):
    """The same without a reference."""

    reference = None


def settings(problem):
    return override(cl.natural(problem), ["network.width=8", "natural.rows=128", "steps=40"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few seconds, which has no map."""
    folder = tmp_path_factory.mktemp("error") / "run"
    cl.run(Inflow(), settings(Inflow()), folder, name=PROBLEM, progress=False)
    return folder


def command(*words):
    done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_a_run_ends_with_estimated_errors(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(session, "SHORTEST", 0.0)
    monkeypatch.setattr(session, "SHARE", 1e6)
    monkeypatch.setenv("COLUMNS", "120")
    for problem in (Inflow(), Unknown()):
        folder = tmp_path / type(problem).__name__
        result = cl.run(problem, settings(problem), folder, progress=False)
        estimated = result.metrics["estimated"]
        assert estimated["resolved"] == 1.0 and estimated["thetas"] == 12
        kept = cl.load(folder, problem).errors
        assert kept is not None and kept.summary()["outputs"].keys() == {"u"}
        assert estimated["outputs"]["u"]["macro"]["value"] == pytest.approx(kept.macro["u"].value)
        if problem.reference is not None:
            true = result.metrics["outputs"]["u"]
            for key in ("macro", "worst"):
                assert 0.5 < estimated["outputs"]["u"][key]["value"] / true[f"rel_l2_{key}"] < 2
        tables.print_metrics(json.loads((folder / "metrics.json").read_text()), folder)
        shown = capsys.readouterr().out
        assert "estimated errors (90 % spread), no reference used" in shown
        assert "100% of 12 estimates are resolved" in shown
        assert "corrected by estimated errors at" in shown and "clpinn adapt" not in shown
        assert ("True errors of the network alone: u " in shown) == (problem.reference is not None)


@pytest.mark.slow
def test_a_run_ends_corrected(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "SHORTEST", 0.0)
    monkeypatch.setattr(session, "SHARE", 1e6)
    plain, corrected = (
        cl.run(Inflow(), override(settings(Inflow()), [f"correct={given}"]), tmp_path / given, progress=False)
        for given in ("false", "true")
    )
    assert plain.metrics["correction"] is None and plain.metrics["estimated"]["thetas"] == 7
    assert "box_correction" not in plain.surrogate.record
    correction = corrected.metrics["correction"]
    assert correction["used"] and correction["network_outputs"] == plain.metrics["outputs"]
    errors = corrected.metrics["outputs"]["u"]
    assert errors["rel_l2_worst"] < 0.1 * plain.metrics["outputs"]["u"]["rel_l2_worst"]
    # All files are of the corrected surrogate; the checkpoint is of the network alone, from which a run goes on.
    loaded = cl.load(tmp_path / "true", Inflow())
    assert loaded.digest == corrected.surrogate.digest and loaded.record["outputs"] == corrected.metrics["outputs"]
    directory = RunDirectory(tmp_path / "true", Inflow())
    assert directory.errors["rel_l2_u"].max() == pytest.approx(errors["rel_l2_worst"])
    grid = np.linspace(0, 1, 5)
    network = replace(loaded, network=directory.network)
    np.testing.assert_array_equal(network(x=0.3, t=grid, k=0.9)["u"], plain.surrogate(x=0.3, t=grid, k=0.9)["u"])
    shown = json.loads(command("evaluate", tmp_path / "true", "--problem", PROBLEM, "--json"))
    assert shown["outputs"] == corrected.metrics["outputs"]
    worst = shown["estimated"]["outputs"]["u"]["worst"]["value"]  # estimated afresh, of the corrected surrogate
    assert worst == pytest.approx(errors["rel_l2_worst"], rel=0.2)
    assert cl.load(tmp_path / "true", Inflow()).digest == loaded.digest


def test_a_single_theta_has_no_box_to_correct(tmp_path):
    standard = override(cl.natural(Inflow(), "standard"), ["steps=1"])
    assert not standard.correct and not cl.paper(Inflow(), "acr").correct
    with pytest.raises(SettingsError, match="has a single theta"):
        cl.run(Inflow(), override(standard, ["correct=true"]), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_stop_ends_the_correction(tmp_path, monkeypatch):
    """What was written before the correction stays, and nothing is lost."""
    monkeypatch.setattr(session, "SHORTEST", 0.0)
    monkeypatch.setattr(session, "SHARE", 1e6)
    estimated = []
    at = Estimator.at

    def counted(self, network, theta):
        if len(estimated) == 3:
            signal.raise_signal(signal.SIGINT)
        estimated.append(theta)
        return at(self, network, theta)

    monkeypatch.setattr(Estimator, "at", counted)
    result = cl.run(Inflow(), settings(Inflow()), tmp_path / "run", progress=False)
    assert len(estimated) == 4 and not result.metrics["correction"]["used"]
    assert result.metrics["correction"]["reason"] == "There are 0 checks only. Give more time."
    assert result.metrics["estimated"]["thetas"] == 4 and result.outcome == "steps"


def test_estimates_that_are_not_resolved_are_told_in_the_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    figure = {"value": 1e-3, "low": 9e-4, "high": None}
    outputs = {"u": {"macro": figure, "worst": figure, "worst_at": {"k": 0.5}}}
    metrics = {"has_reference": False, "estimated": {"thetas": 8, "resolved": 0.5, "outputs": outputs}}
    tables.print_metrics(metrics | {"res_pde_macro": 1.0}, "run")
    shown = capsys.readouterr().out
    assert "50% of 8 estimates are resolved; the error at the others is not known" in shown
    assert "1.0e-3 (9.0e-4–not finite)" in shown and "k = 0.5" in shown
    nothing = {"thetas": 8, "resolved": 0.0, "outputs": {}}
    tables.print_metrics(metrics | {"res_pde_macro": 1.0, "estimated": nothing}, "run")
    assert "0% of 8 estimates are resolved" in capsys.readouterr().out


def test_a_short_run_says_how_to_estimate(run, capsys):
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["estimated"] is None
    assert cl.load(run, Inflow()).errors is None
    tables.print_metrics(metrics | {"has_reference": False}, run)
    assert f"To estimate them: clpinn evaluate {run}" in capsys.readouterr().out.replace("\n", "")


def test_evaluate_shows_and_keeps_the_map(run):
    shown = json.loads(command("evaluate", run, "--problem", PROBLEM, "--json"))
    assert shown["estimated"]["resolved"] == 1.0
    directory = RunDirectory(run, Inflow())
    assert directory.surrogate.errors is not None
    assert directory.metrics["estimated"] == shown["estimated"]
    table = command("evaluate", run, "--problem", PROBLEM)
    assert "estimated errors" in table


def test_predict_prints_the_estimate(run):
    words = ("predict", run, "k=0.9", "x=0.5", "t=0.5", "--problem", PROBLEM)
    assert "Estimated relative L2 error at k = 0.9: u " in " ".join(command(*words).split())
    described = json.loads(command(*words, "--json"))
    estimate = cl.load(run, Inflow()).error(k=0.9)
    assert described["error"]["relative_l2"]["u"] == pytest.approx(estimate.relative_l2["u"])
    assert described["error"]["resolved"] is True
    assert "error" not in json.loads(command(*words, "--json", "--no-error"))


def test_adapt_corrects_by_default(run):
    shown = json.loads(command("adapt", run, "k=0.9,1.7", "--problem", PROBLEM, "--json"))
    for row in shown["thetas"]:
        assert row["used"] and "Two resolutions agree" in row["reason"]
        assert row["rel_l2_after"]["u"] < 0.05 * row["rel_l2_before"]["u"]
        assert row["estimate_before"] == pytest.approx(row["rel_l2_before"]["u"], rel=0.05)
    adapted = cl.load(run / "adapted.clpinn", Inflow())
    grid = np.linspace(0, 1, 5)
    np.testing.assert_allclose(adapted(x=0.3, t=grid, k=0.9)["u"], np.exp(-0.9 * grid), atol=1e-3)
    table = command("adapt", run, "k=0.9", "--problem", PROBLEM)
    assert "corrections at 1 thetas, 1 of them used" in table and "surrogate with corrections" in table


@pytest.mark.slow
def test_adapt_corrects_the_whole_box(run, tmp_path):
    file = tmp_path / "box.clpinn"
    words = ("adapt", run, "--box", "--problem", PROBLEM, "--out", file)
    shown = json.loads(command(*words, "--thetas", 24, "--json"))
    assert shown["used"] and shown["file"] == str(file)
    errors = shown["outputs"]["u"]
    assert errors["true_before"]["macro"] == pytest.approx(errors["before"]["macro"], rel=0.1)
    assert errors["true_after"]["worst"] < 0.3 * errors["true_before"]["worst"]
    grid = np.linspace(0, 1, 5)
    np.testing.assert_allclose(cl.load(file, Inflow())(x=0.3, t=grid, k=1.234)["u"], np.exp(-1.234 * grid), atol=1e-3)
    table = command(*words, "--thetas", 24)
    assert "thetas: used" in table and "thetas that it does not know" in table
    few = command(*words, "--thetas", 1)
    assert "no clear gain" in few


def test_adapt_refuses_odd_requests(run):
    for words, message in (
        (("--box", "k=0.9"), "--box corrects all thetas"),
        (("--box", "--way", "head"), "--box corrects all thetas"),
        (("k=0.9", "--seconds", 3), "are for --box"),
    ):
        done = CliRunner().invoke(app, list(map(str, ["adapt", run, "--problem", PROBLEM, *words])))
        assert done.exit_code != 0 and isinstance(done.exception, cl.ClpinnError) and message in str(done.exception)
