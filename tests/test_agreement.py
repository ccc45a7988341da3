"""Whether a reference agrees with its problem: equation, conditions, hard transform, undefined points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import clpinn as cl
from clpinn.cli.app import app
from clpinn.formulation.agreement import check_reference
from clpinn.problems import BENCHMARKS, load_problem

KEY = jax.random.key(0)


class Heat(cl.Problem):
    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(kappa=cl.log(0.01, 1.0))
    conditions = (cl.Condition("ends", lambda d: d.u, on=cl.boundary("x")),)

    def residual(self, d, kappa):
        return d.u_t - kappa * d.u_xx

    def constrain(self, raw, x, t):
        return jnp.sin(jnp.pi * x) + t * raw

    def reference(self, x, t, kappa):
        return {"u": jnp.exp(-kappa * jnp.pi**2 * t) * jnp.sin(jnp.pi * x)}


class HeatInNumPy(Heat):
    def reference(self, x, t, kappa):
        return {"u": np.exp(-kappa * np.pi**2 * t) * np.sin(np.pi * x)}


def verdicts(problem: cl.Problem) -> dict[str, str]:
    return {f"{check.term}: {check.residual}": check.verdict for check in check_reference(problem, KEY)}


def test_a_right_problem_agrees():
    conditions = {"ends: ends": "agrees", "constrain: u at t = 0": "agrees"}
    assert verdicts(Heat()) == {"equation: residual": "agrees"} | conditions
    # Without derivatives of the reference the equation cannot be checked. All else can.
    assert verdicts(HeatInNumPy()) == {"equation: equation": "not checked"} | conditions


@pytest.mark.parametrize("base", [Heat, HeatInNumPy])
def test_mistakes_are_noticed_with_the_worst_point(base):
    class WrongEnds(base):
        conditions = (cl.Condition("ends", lambda d, t: d.u - 5 * t, on=cl.boundary("x")),)

    class WrongStart(base):
        def constrain(self, raw, x, t):
            return 1.5 * jnp.sin(jnp.pi * x) + t * raw

    (ends,) = [check for check in check_reference(WrongEnds(), KEY) if check.term == "ends"]
    assert ends.verdict == "does not agree" and ends.worst["t"] > 0.95 and ends.worst["x"] in (0, 1)
    assert ends.largest == pytest.approx(5 * ends.worst["t"]) and "DOES NOT AGREE" in str(ends)
    (start,) = [check for check in check_reference(WrongStart(), KEY) if check.term == "constrain"]
    assert start.verdict == "does not agree" and start.largest == pytest.approx(0.5, rel=0.01)
    assert start.worst["t"] == 0 and start.worst["x"] == pytest.approx(0.5, abs=0.05)


def test_a_wrong_coefficient_and_a_rounded_one():
    class Wrong(Heat):
        def residual(self, d, kappa):
            return d.u_t - 2 * kappa * d.u_xx

    class Rounded(Heat):
        def residual(self, d, kappa):
            return d.u_t - 1.00001 * kappa * d.u_xx

    assert verdicts(Wrong())["equation: residual"] == "does not agree"
    assert verdicts(Rounded())["equation: residual"] == "nearly"


def test_a_condition_is_judged_by_its_own_terms():
    """A flux at the end is small against the flux inside, and two per cent of it are a mistake."""

    class Flux(cl.Problem):
        coordinates = cl.Box(x=(0, 1))
        parameters = cl.Box(h=(1, 2))
        conditions = (cl.Condition("end", lambda d, h: d.u_x + 1.02 * 2.5 * h * d.u, on=cl.at(x=1)),)

        def residual(self, d, h):
            return d.u_x + 2.5 * h * d.u

        def reference(self, x, h):
            return {"u": jnp.exp(-2.5 * h * x)}

    checks = {check.term: check for check in check_reference(Flux(), KEY)}
    assert checks["equation"].verdict == "agrees" and checks["end"].verdict == "does not agree"
    assert checks["end"].relative == pytest.approx(0.01, rel=0.2)


def test_a_reference_that_is_not_defined_somewhere_does_not_agree():
    class Undefined(Heat):
        def reference(self, x, t, kappa):
            return {"u": jnp.sqrt(x - 0.25)}

    (check,) = [check for check in check_reference(Undefined(), KEY) if check.term == "equation"]
    assert check.verdict == "does not agree" and check.worst["x"] <= 0.25 and "not defined" in str(check)


@pytest.mark.parametrize("name", [*BENCHMARKS, "examples/channel.py:Channel", "examples/trace.py:Trace"])
def test_our_own_problems_agree(name):
    checks = check_reference(load_problem(name), KEY)
    assert checks and all(check.verdict in ("agrees", "not checked") for check in checks)


def test_the_command_ends_with_an_error_where_they_do_not_agree(tmp_path):
    text = """
import clpinn as cl

class Line(cl.Problem):
    coordinates = cl.Box(x=(0, 1))
    conditions = (cl.Condition("left", lambda d: d.u - 5, on=cl.at(x=0)),)

    def residual(self, d):
        return d.u_x - 1

    def reference(self, x):
        return {"u": x}
"""
    (tmp_path / "line.py").write_text(text)
    result = CliRunner().invoke(app, ["problems", f"{tmp_path / 'line.py'}:Line"])
    assert isinstance(result.exception, cl.ClpinnError) and "does not agree" in str(result.exception)
    assert "left: DOES NOT AGREE" in result.output and "equation: agrees" in result.output
