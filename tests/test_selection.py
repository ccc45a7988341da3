from typing import Any

import jax
import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from clpinn.errors import DomainError, ProblemError
from clpinn.formulation.domain import Box, log
from clpinn.formulation.thetas import nearest_distance, to_unit
from clpinn.training import gaussian_process, selection
from clpinn.training.gaussian_process import Posterior
from clpinn.training.selection import Bayesian, Fixed, GridGreedy, Uniform
from clpinn.training.tasks import TaskPool

KEY = jax.random.key(0)
LINE = Box(nu=(0, 1))
LINE_CANDIDATES = LINE.grid(nu=21).points
PLANE = Box(nu=log(0.001, 0.1), rho=(3, 5))


class Counted:
    """A synthetic loss that remembers each batch it was asked for."""

    def __init__(self, loss):
        self.loss, self.batches = loss, []

    def __call__(self, thetas: np.ndarray) -> np.ndarray:
        self.batches.append(np.array(thetas))
        return self.loss(thetas)

    @property
    def count(self) -> int:
        return sum(map(len, self.batches))


def peak(thetas: np.ndarray) -> np.ndarray:
    return np.exp(-30 * (thetas[:, 0] - 0.63) ** 2)


# Initial tasks ----------------------------------------------------------------------------------------------


def test_uniform_is_equally_spaced_on_the_scale_of_one_axis():
    assert Uniform().initial(LINE, 5, KEY).ravel() == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert Uniform().initial(Box(a=log(0.001, 1)), 4, KEY).ravel() == pytest.approx([0.001, 0.01, 0.1, 1])


def test_uniform_is_low_discrepancy_in_more_axes():
    thetas = Uniform().initial(PLANE, 16, KEY)
    unit = to_unit(thetas, PLANE)
    # A Sobol set of 16 has exactly one point in each sixteenth of each axis.
    assert all(sorted((unit[:, axis] * 16).astype(int)) == list(range(16)) for axis in (0, 1))
    assert np.array_equal(thetas, Uniform().initial(PLANE, 16, KEY))
    assert not np.array_equal(thetas, Uniform().initial(PLANE, 16, jax.random.key(1)))


def test_fixed_returns_its_list_and_refuses_nonsense():
    assert Fixed(((0.2,), (0.7,))).initial(LINE, 2, KEY).tolist() == [[0.2], [0.7]]
    with pytest.raises(ProblemError, match="do not fit an active set of 1"):
        Fixed(((0.2,), (0.7,))).initial(LINE, 1, KEY)
    with pytest.raises(ProblemError, match="one value for each of nu, rho"):
        Fixed(((0.2,),)).initial(PLANE, 1, KEY)
    with pytest.raises(DomainError):
        Fixed(((1.5,),)).initial(LINE, 1, KEY)


@pytest.mark.parametrize("selector", [GridGreedy(), Bayesian(5, 5.0)])
def test_searching_selectors_start_with_the_corners(selector):
    assert np.array_equal(selector.initial(PLANE, 9, KEY), PLANE.corners())


@pytest.mark.parametrize("selector", [Uniform(), Fixed(((0.2,),))])
def test_the_others_never_select(selector):
    query = Counted(peak)
    pool = TaskPool.fixed(selector.initial(LINE, 2, KEY))
    assert selector.select(query, pool, LINE_CANDIDATES, LINE, None, KEY) is None
    assert query.count == 0


@pytest.mark.parametrize("selector", [Uniform(), GridGreedy(), Bayesian(5, 5.0)])
def test_a_problem_without_parameters_has_one_task(selector):
    box = Box()
    pool = TaskPool.from_corners(selector.initial(box, 3, KEY), 3)
    assert pool.active.shape == (1, 0)
    found = selector.select(lambda thetas: np.ones(len(thetas)), pool, np.zeros((1, 0)), box, None, KEY)
    assert found is None or found.newcomer is None


# The contract of searching selectors ------------------------------------------------------------------------

SEARCHING = [GridGreedy(), Bayesian(6, 5.0), Bayesian(6, 5.0, coverage=0.2)]


@pytest.mark.parametrize("selector", SEARCHING)
def test_a_selection_reports_exactly_what_was_queried(selector):
    query = Counted(peak)
    pool = TaskPool(np.array([[0.0], [1.0], [0.33]]), np.array([[0.5]]), np.array([True, True, False]), 3, 2)
    found = selector.select(query, pool, LINE_CANDIDATES, LINE, None, KEY)
    assert found.queries == query.count == len(found.losses) == len(found.scores)
    assert np.array_equal(found.queried, np.concatenate(query.batches))
    assert found.losses == pytest.approx(peak(found.queried))
    assert found.active_losses == pytest.approx(peak(pool.active))
    assert found.replay_losses == pytest.approx(peak(pool.replay))
    assert (found.newcomer == LINE_CANDIDATES).all(axis=1).any()
    assert nearest_distance(found.newcomer[None], pool.thetas, LINE)[0] > 1e-6
    assert found.newcomer_loss == pytest.approx(peak(found.newcomer[None])[0])
    again = selector.select(Counted(peak), pool, LINE_CANDIDATES, LINE, None, KEY)
    assert np.array_equal(found.queried, again.queried)


@pytest.mark.parametrize("selector", SEARCHING)
def test_the_peak_is_found(selector):
    pool = TaskPool.from_corners(LINE.corners(), 5)
    found = selector.select(peak, pool, LINE_CANDIDATES, LINE, None, KEY)
    assert abs(found.newcomer[0] - 0.63) < 0.08


@pytest.mark.parametrize("selector", SEARCHING)
def test_without_a_candidate_left_there_are_losses_but_no_newcomer(selector):
    query, pool = Counted(peak), TaskPool.from_corners(LINE.corners(), 5)
    found = selector.select(query, pool, LINE.corners(), LINE, None, KEY)
    assert found.newcomer is None and np.isnan(found.newcomer_loss)
    assert found.active_losses == pytest.approx(peak(pool.active))
    assert found.queries == query.count == 2


@pytest.mark.parametrize("selector", SEARCHING)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_diverged_losses_attract_the_search(selector, bad):
    def loss(thetas):
        return np.where(np.abs(thetas[:, 0] - 0.5) < 0.2, bad, 1 + 0 * thetas[:, 0])

    found = selector.select(loss, TaskPool.from_corners(LINE.corners(), 5), LINE_CANDIDATES, LINE, None, KEY)
    assert abs(found.newcomer[0] - 0.5) < 0.25
    everywhere = selector.select(
        lambda thetas: np.full(len(thetas), bad),
        TaskPool.from_corners(LINE.corners(), 5),
        LINE_CANDIDATES,
        LINE,
        None,
        KEY,
    )
    assert everywhere.newcomer is not None


@pytest.mark.parametrize("selector", SEARCHING)
def test_a_query_of_the_wrong_shape_is_refused(selector):
    with pytest.raises(ProblemError, match="must return the shape"):
        selector.select(
            lambda thetas: np.ones((len(thetas), 1)),
            TaskPool.from_corners(LINE.corners(), 5),
            LINE_CANDIDATES,
            LINE,
            None,
            KEY,
        )


def test_a_corner_off_by_rounding_is_the_same_task():
    box = Box(a=log(0.001, 1))
    candidates = np.array([[0.001 * (1 + 1e-13)], [0.1], [1 - 1e-13]])
    for selector in SEARCHING:
        found = selector.select(
            lambda thetas: 1 / thetas[:, 0], TaskPool.from_corners(box.corners(), 5), candidates, box, None, KEY
        )
        assert found.newcomer.tolist() == [0.1]


# Grid-greedy ------------------------------------------------------------------------------------------------


def test_grid_greedy_batches_and_looks_pool_losses_up():
    query = Counted(peak)
    pool = TaskPool(np.array([[0.0], [1.0], [0.333]]), np.array([[0.65]]), np.array([True, True, False]), 3, 2)
    found = GridGreedy().select(query, pool, LINE_CANDIDATES, LINE, None, KEY)
    assert [len(batch) for batch in query.batches] == [22, 1]  # the grid, the one task off it; the newcomer
    assert found.newcomer == pytest.approx([0.6])  # 0.65 is worse, but in the pool


# Bayesian ---------------------------------------------------------------------------------------------------


def test_bayesian_observes_the_pool_at_once_then_one_at_a_time():
    query = Counted(peak)
    pool = TaskPool(np.array([[0.0], [1.0], [0.33]]), np.array([[0.5]]), np.array([True, True, False]), 3, 2)
    found = Bayesian(7, 5.0).select(query, pool, LINE_CANDIDATES, LINE, None, KEY)
    assert [len(batch) for batch in query.batches] == [4] + [1] * 8
    assert ((found.queried >= 0) & (found.queried <= 1)).all()


def test_the_search_prior_shapes_scores_but_not_losses():
    def prior(thetas):
        return np.where(thetas[:, 0] < 0.3, 100.0, 1.0)

    pool = TaskPool.from_corners(LINE.corners(), 5)
    flat = lambda thetas: np.ones(len(thetas)) + 0 * thetas[:, 0]  # noqa: E731
    found = Bayesian(10, 5.0).select(flat, pool, LINE_CANDIDATES, LINE, prior, KEY)
    assert found.newcomer is not None and found.newcomer[0] < 0.3
    assert found.newcomer_loss == 1 and found.newcomer_score == 100
    assert found.losses == pytest.approx(1) and found.scores == pytest.approx(prior(found.queried))


def test_coverage_keeps_newcomers_away_unless_none_is_far_enough():
    pool = TaskPool.from_corners(LINE.corners(), 5)
    near_corner = lambda thetas: np.exp(-20 * thetas[:, 0])  # noqa: E731
    close = Bayesian(6, 5.0).select(near_corner, pool, LINE_CANDIDATES, LINE, None, KEY)
    apart = Bayesian(6, 5.0, coverage=0.3).select(near_corner, pool, LINE_CANDIDATES, LINE, None, KEY)
    ignored = Bayesian(6, 5.0, coverage=0.9).select(near_corner, pool, LINE_CANDIDATES, LINE, None, KEY)
    assert close.newcomer is not None and apart.newcomer is not None and ignored.newcomer is not None
    assert close.newcomer[0] < 0.3
    assert nearest_distance(apart.newcomer[None], pool.thetas, LINE)[0] >= 0.3 - 1e-12
    assert np.array_equal(ignored.newcomer, close.newcomer)


@pytest.mark.parametrize(("refit", "sizes"), [("doubling", [2, 4, 8]), ("every", list(range(2, 12)))])
def test_when_length_scales_are_fitted_anew(refit, sizes, monkeypatch):
    fitted = []
    fit = gaussian_process.length_scales

    def counted(unit, scores):
        fitted.append(len(unit))
        return fit(unit, scores)

    monkeypatch.setattr(gaussian_process, "length_scales", counted)
    pool = TaskPool.from_corners(LINE.corners(), 5)
    found = Bayesian(10, 5.0, refit=refit).select(peak, pool, LINE_CANDIDATES, LINE, None, KEY)
    assert fitted == sizes and found.queries == 2 + 10 + 1


@pytest.mark.parametrize("selector", SEARCHING)
def test_barred_candidates_are_observed_but_not_chosen(selector):
    pool = TaskPool.from_corners(LINE.corners(), 5)
    first = selector.select(peak, pool, LINE_CANDIDATES, LINE, None, KEY)
    second = selector.select(peak, pool, LINE_CANDIDATES, LINE, None, KEY, first.newcomer[None] + 1e-13)
    assert second.newcomer != pytest.approx(first.newcomer) and second.queries == first.queries
    none = selector.select(peak, pool, LINE_CANDIDATES, LINE, None, KEY, LINE_CANDIDATES)
    assert none.newcomer is None


# The Gaussian process ---------------------------------------------------------------------------------------


def surface(parameters: int, count: int, seed: int):
    """A posterior grown from half of its observations, the observations, and their normalised scores."""
    generator = np.random.default_rng(seed)
    observed = generator.random((count, parameters))
    raw = np.exp(3 * observed[:, 0]) * (1 + 0.5 * np.sin(7 * observed).sum(axis=1) ** 2)
    scores = gaussian_process.normalised(raw)
    scales = gaussian_process.length_scales(observed, raw)
    tracked = generator.random((1500, parameters))
    posterior = Posterior(scales, observed[: count // 2], tracked, count)
    for theta in observed[count // 2 :]:
        posterior.add(theta)
    return posterior, observed, scores


@pytest.mark.parametrize(("parameters", "count"), [(1, 8), (2, 20), (4, 60)])
def test_the_posterior_is_that_of_scikit_learn(parameters, count):
    posterior, observed, scores = surface(parameters, count, seed=1)
    settings: dict[str, Any] = {"kernel": Matern(**{"length_scale": posterior.scales, "nu": 2.5}), "optimizer": None}
    reference: Any = GaussianProcessRegressor(alpha=gaussian_process.NOISE, **settings).fit(observed, scores)
    mean, deviation = reference.predict(posterior.tracked, return_std=True)
    away = deviation > 1e-2  # nearer to an observation the variance is a difference of almost equal numbers
    assert away.sum() > 100
    assert posterior.mean(scores) == pytest.approx(mean, abs=1e-7)
    assert posterior.deviation()[away] == pytest.approx(deviation[away], rel=1e-6)
    bound, _ = posterior.ucb(posterior.tracked, scores, 5.0)
    assert bound[away] == pytest.approx((mean + 5 * deviation)[away], abs=1e-5)
    # A surface that is flat by mistake would pass any comparison of maximisers.
    assert bound.std() > 0.1


@pytest.mark.parametrize(("parameters", "count"), [(1, 8), (2, 20), (4, 60)])
def test_the_gradient_of_ucb(parameters, count):
    posterior, _, scores = surface(parameters, count, seed=2)
    for theta in posterior.tracked[np.argsort(-posterior.deviation())[:5]]:
        error = check_grad(
            lambda x: posterior.ucb(x[None], scores, 5.0)[0][0],
            lambda x: posterior.ucb(x[None], scores, 5.0)[1][0],
            theta,
        )
        size = np.linalg.norm(posterior.ucb(theta[None], scores, 5.0)[1])
        assert error < 1e-4 * max(1.0, size)


@pytest.mark.parametrize(("parameters", "count"), [(1, 6), (2, 15), (4, 30), (4, 100)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_maximiser_beats_a_dense_random_search(parameters, count, seed):
    posterior, _, scores = surface(parameters, count, seed)
    dense = np.random.default_rng(seed + 100).random((20_000, parameters))
    bound, _ = posterior.ucb(dense, scores, 5.0)
    best = gaussian_process.maximise_ucb(posterior, scores, 5.0)
    assert ((best >= 0) & (best <= 1)).all()
    assert bound.std() > 0.1
    assert posterior.ucb(best[None], scores, 5.0)[0][0] >= bound.max() - 1e-3 * bound.std()


# Query totals of the paper ----------------------------------------------------------------------------------

DECADES = [digit * 10.0**-power for power in (3, 2, 1) for digit in range(1, 10)]
SCHAFFER = Box(a=log(0.001, 1)), np.array([[a] for a in [*DECADES, 1.0]])
BURGERS = Box(nu=(0.01, 1)), Box(nu=(0.01, 1)).grid(nu=100).points
ALLEN_CAHN = PLANE, np.array([[nu, rho] for nu in [*DECADES[:18], 0.1] for rho in (3, 3.5, 4, 4.5, 5)])
KOVASZNAY = Box(Re=(5, 500)), Box(Re=(5, 500)).grid(Re=100).points
FOUR = Box(mu1=(1, 2), mu2=(3, 4), k=(5, 10), A=(5, 15))
POISSON_BOLTZMANN = FOUR, FOUR.grid(mu1=6, mu2=6, k=6, A=6).points

# Box and candidates, events (Adam steps / N_resample), active capacity, evaluations, totals of AG and of AC.
PAPER = [
    pytest.param(*SCHAFFER, 20, 15, 10, 580, 429, id="schaffer"),
    pytest.param(*BURGERS, 10, 9, 10, 1010, 172, id="burgers"),
    pytest.param(*ALLEN_CAHN, 10, 9, 20, 960, 285, id="allen_cahn"),
    pytest.param(*KOVASZNAY, 10, 10, 15, 1010, 224, id="kovasznay"),
    pytest.param(*POISSON_BOLTZMANN, 80, 80, 50, 103760, 8400, id="poisson_boltzmann"),
]


def drive(selector, box, candidates, events, capacity, replay_capacity):
    """Run all events on a loss that falls near trained tasks; total of queries reported, made, and the pool."""
    pool = TaskPool.from_corners(selector.initial(box, capacity, KEY), capacity, replay_capacity)
    reported, made = 0, 0
    for key in jax.random.split(KEY, events):
        tasks = pool.thetas
        query = Counted(
            lambda thetas, tasks=tasks: (
                (0.02 + nearest_distance(thetas, tasks, box)) ** 2 * np.exp(3 * to_unit(thetas, box)[:, 0])
            )
        )
        found = selector.select(query, pool, candidates, box, None, key)
        pool, _ = pool.event(found.newcomer, found.newcomer_loss, found.active_losses, found.replay_losses)
        reported, made = reported + found.queries, made + query.count
    return reported, made, pool


@pytest.mark.parametrize(("box", "candidates", "events", "capacity", "evaluations", "grid", "bayesian"), PAPER)
def test_query_totals_are_the_papers(
    box, candidates, events, capacity, evaluations, grid, bayesian, request, monkeypatch
):
    reported, made, pool = drive(GridGreedy(), box, candidates, events, capacity, 0)
    assert reported == made == grid
    assert len(pool.active) == capacity
    if "poisson" in request.node.name:
        # Counts do not depend on how well the surface is searched: few starts and no ascent keep this quick.
        monkeypatch.setattr(selection, "STARTS", 16)
        monkeypatch.setattr(gaussian_process, "ASCENT_STEPS", 1)
        monkeypatch.setattr(gaussian_process, "length_scales", lambda unit, scores: np.full(unit.shape[1], 0.3))
    reported, made, pool = drive(Bayesian(evaluations, 5.0), box, candidates, events, capacity, 0)
    assert reported == made == bayesian
    assert len(pool.active) == capacity


def test_replay_tasks_are_observed_too():
    box, candidates = SCHAFFER
    pool = TaskPool(candidates[[0, 27, 5]], candidates[[9, 12]], np.array([True, True, False]), 3, 4)
    found = Bayesian(10, 5.0).select(lambda thetas: thetas[:, 0], pool, candidates, box, None, KEY)
    assert found.queries == 3 + 2 + 10 + 1
