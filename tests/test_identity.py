"""When two problems are compiled for once, and when not."""

import numpy as np

import clpinn as cl
from clpinn.formulation.identity import Identity

FACTOR = 2.0


def helper(u):
    return FACTOR * u


class Heat(cl.Problem):
    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(kappa=(0.1, 1))
    conditions = (cl.Condition("start", lambda d, x: d.u - x, on=cl.at(t=0)),)
    speed = 3.0

    def __init__(self, source=1.0):
        self.source = source

    def residual(self, d, kappa):
        return d.u_t - kappa * d.u_xx - self.source + self.speed * helper(d.u)


def same(one: cl.Problem, other: cl.Problem) -> bool:
    first, second = Identity(one), Identity(other)
    assert (first == second) is (second == first) and (first != second or hash(first) == hash(second))
    return first == second


def test_two_instances_of_a_class_are_the_same():
    assert same(Heat(), Heat()) and same(cl.problems.Kovasznay(), cl.problems.Kovasznay())
    assert same(cl.problems.Burgers(), cl.problems.Burgers())
    for problem in (cl.problems.PoissonBoltzmann, cl.problems.AllenCahn, cl.problems.Schaffer):
        assert same(problem(), problem())


def test_attributes_make_a_difference():
    assert not same(Heat(), Heat(source=2.0)) and not same(cl.problems.Burgers(), cl.problems.Burgers(hard=False))
    changed = Heat()
    changed.conditions = (cl.Condition("start", lambda d, x: d.u, on=cl.at(t=0)),)
    assert not same(Heat(), changed)
    changed = Heat()
    changed.field = np.arange(3.0)
    before = Identity(changed)
    changed.field[1] = 7.0  # in place
    assert before != Identity(Heat()) and Identity(changed) != before


def test_a_class_attribute_and_a_global_that_change_make_a_difference(monkeypatch):
    before = Identity(Heat())
    monkeypatch.setattr(Heat, "speed", 4.0)
    assert Identity(Heat()) != before
    monkeypatch.setattr(Heat, "speed", 3.0)
    assert Identity(Heat()) == before
    monkeypatch.setitem(globals(), "FACTOR", 5.0)  # used by a function that the residual calls
    assert Identity(Heat()) != before


def test_a_class_of_the_same_name_is_another():
    def make(power):
        class Own(cl.Problem):
            coordinates = cl.Box(x=(0, 1))

            def residual(self, d):
                return d.u**power

        return Own()

    assert not same(make(2), make(3)) and not same(make(2), make(2))


def test_an_instance_that_changes_is_trained_as_it_is_now():
    class Level(cl.Problem):
        """u = level: what a surrogate answers shows which problem was trained."""

        coordinates = cl.Box(x=(0, 1))
        level = 1.0

        def residual(self, d):
            return d.u - self.level

    problem = Level()
    before = cl.train(problem, steps=5)(x=0.5)["u"]
    problem.level = 3.0
    assert abs(before - 1) < 0.2 and abs(cl.train(problem, steps=5)(x=0.5)["u"] - 3) < 0.2


def test_evaluation_grids_do_not_matter():
    problem = Heat()
    problem.candidates, problem.evaluation  # noqa: B018  kept on the instance once they are asked for
    assert same(problem, Heat())
