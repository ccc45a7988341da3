"""What is reported of an adaptation: errors at each checkpoint, times, and summaries over targets."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.runs.adaptation import difficult_quartile, measured_adaptation, summary, untrained_standard

KEY = jax.random.key(0)
TARGETS = np.array([[0.6], [1.1], [1.9]])


class Two(cl.Problem):
    """u' = cos(a x), v' = -a v: two outputs that vanish nowhere in the mean."""

    coordinates = cl.Box(x=(0, 1))
    parameters = cl.Box(a=(0.5, 2.0))
    outputs = ("u", "v")
    interior = cl.Interior(40)
    conditions = (cl.Condition("start", lambda d: {"u": d.u - 1, "v": d.v - 1}, on=cl.at(x=0)),)

    def residual(self, d, x, a):
        return {"u": d.u_x - jnp.cos(a * x), "v": d.v_x + a * d.v}

    def reference(self, x, a):
        return {"u": 1 + np.sin(a * x) / a, "v": np.exp(-a * x)}


def base(kind="fnn") -> cl.Surrogate:
    return cl.Surrogate(Two(), make(Two(), Architecture(kind, 8, 2), KEY))


def test_figures_are_those_of_the_heads_and_of_evaluate():
    surrogate = base()
    settings = cl.AdaptSettings(
        optimizer="adam", steps=40, rate=1e-2, precision="single", lbfgs=3, always=True, width=5
    )
    figures = measured_adaptation(surrogate, TARGETS, settings, (10, 40), seed=4)
    assert figures == json.loads(json.dumps(figures))  # plain values
    assert figures["thetas"] == [{"a": 0.6}, {"a": 1.1}, {"a": 1.9}] and figures["settings"]["width"] == 5
    assert figures["trainable"] == 8 * 5 + 5 + 5 * 2 + 2
    first, early, late, end = figures["results"]
    assert [result["steps"] for result in (first, early, late)] == [[0] * 3, [10] * 3, [40] * 3]
    assert all(40 < steps <= 43 for steps in end["steps"]) and end["used"] == [True] * 3 and not any(first["used"])
    times = [result["seconds"] for result in figures["results"]]
    assert times[0] == 0 and np.all(np.diff(times) > 0) and figures["compile_seconds"] > times[-1]
    adapted = surrogate.adapt_many(TARGETS, 4, settings=settings)
    for asked, result in ((surrogate, first), (adapted, end)):
        for name, errors in cl.evaluate(Two(), asked, TARGETS).outputs.items():
            for figure in ("rel_l2", "mse", "max_abs"):
                assert result["outputs"][name][figure] == pytest.approx(getattr(errors, figure).tolist(), rel=1e-5)
    relative = [np.mean([o["rel_l2"] for o in result["outputs"].values()], axis=0) for result in (first, early)]
    assert early["summary"] == summary(*relative) and "summary" not in first
    assert end["summary"]["after"] < early["summary"]["after"]


def test_a_head_that_is_not_used_leaves_the_bases_errors():
    spoiled = cl.AdaptSettings(optimizer="adam", steps=3, rate=10.0)
    first, end = measured_adaptation(base(), TARGETS, spoiled)["results"]
    assert end["used"] == [False] * 3 and first["outputs"] == end["outputs"] and end["summary"]["not_worse"] == 3


def test_a_standard_pinn_from_scratch():
    surrogate = untrained_standard(cl.problems.Burgers(hard=False))
    other = untrained_standard(cl.problems.Burgers(hard=False), seed=1)
    assert not np.array_equal(*(jax.tree.leaves(each.network)[0] for each in (surrogate, other)))
    settings = cl.AdaptSettings(way="full", optimizer="adam", steps=2, precision="single", always=True)
    figures = measured_adaptation(surrogate, np.array([[0.38]]), settings, (1,))
    assert figures["trainable"] == 7851  # as in the paper
    assert [result["steps"] for result in figures["results"]] == [[0], [1], [2]]
    before, *after = [result["outputs"]["u"]["rel_l2"][0] for result in figures["results"]]
    assert len({before, *after}) == 3


def test_a_problem_without_a_reference_is_refused():
    class Unknown(Two):
        reference = None

    with pytest.raises(cl.ProblemError, match="Unknown has none"):
        measured_adaptation(cl.Surrogate(Unknown(), base().network), TARGETS)


@pytest.mark.parametrize(("targets", "difficult"), [(1, 1), (4, 1), (5, 2), (77, 20), (80, 20), (83, 21), (1166, 292)])
def test_the_difficult_quartile_is_rounded_up_as_in_the_paper(targets: int, difficult: int):
    before = np.random.default_rng(0).permutation(targets)
    assert sorted(before[difficult_quartile(before)]) == list(range(targets - difficult, targets))


def test_a_summary_by_hand():
    """The two worst before are difficult, whatever they are after: 0.4 -> 0.1 and 0.8 -> 1.0."""
    figures = summary(np.array([0.1, 0.4, 0.2, 0.8, 0.3]), np.array([0.1, 0.1, 0.05, 1.0, 0.1]))
    assert figures == {
        "targets": 5,
        "improved": 3,
        "not_worse": 4,
        "before": pytest.approx(0.36),
        "after": pytest.approx(0.27),
        "reduction": pytest.approx(0.25),
        "median_before": 0.3,
        "median_after": 0.1,
        "worst_before": 0.8,
        "worst_after": 1.0,
        "difficult": 2,
        "difficult_improved": 1,
        "difficult_before": pytest.approx(0.6),
        "difficult_after": pytest.approx(0.55),
        "difficult_reduction": pytest.approx(1 / 12),
        "difficult_factor": pytest.approx((4 + 0.8) / 2),
    }
