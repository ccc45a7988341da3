import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clpinn.errors import ProblemError
from clpinn.formulation.domain import Box
from clpinn.training.tasks import TaskPool

CORNERS = np.array([[0.0], [1.0]])
NONE = np.array([])


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=float).reshape(-1, 1)


def pool_of(active, replay=(), replay_capacity: int | None = 2, kept=(True, True, False, False)) -> TaskPool:
    """A full active set of four whose first two tasks are corners."""
    return TaskPool(column(*active), column(*replay), np.array(kept), len(active), replay_capacity)


def values(theta: np.ndarray | None) -> list[float] | None:
    return None if theta is None else theta.tolist()


# The rules, one by one --------------------------------------------------------------------------------------


@pytest.mark.parametrize("replay_capacity", [0, 2, None])
def test_a_newcomer_enters_while_there_is_room(replay_capacity):
    pool = TaskPool.from_corners(CORNERS, 3, replay_capacity)
    after, moves = pool.event(np.array([0.5]), 0.0, np.array([9.0, 9.0]), NONE)
    assert after.active.ravel().tolist() == [0, 1, 0.5]
    assert after.kept.tolist() == [True, True, False]
    assert values(moves.entered) == [0.5]
    assert moves.to_replay is moves.restored is moves.dropped is None
    assert len(pool.active) == 2


def test_without_replay_the_newcomer_replaces_the_lowest_loss_even_if_it_is_better_itself():
    pool = pool_of([0, 1, 0.3, 0.6], replay_capacity=0)
    after, moves = pool.event(np.array([0.5]), 0.1, np.array([0.0, 0.0, 3.0, 2.0]), NONE)
    assert after.active.ravel().tolist() == [0, 1, 0.3, 0.5]
    assert values(moves.entered) == [0.5] and values(moves.dropped) == [0.6]
    assert moves.to_replay is moves.restored is None
    assert len(after.replay) == 0


def test_with_empty_replay_the_newcomer_enters_and_the_lowest_moves_to_replay():
    after, moves = pool_of([0, 1, 0.3, 0.6]).event(np.array([0.5]), 5.0, np.array([0.0, 0.0, 3.0, 2.0]), NONE)
    assert after.active.ravel().tolist() == [0, 1, 0.3, 0.5]
    assert after.replay.ravel().tolist() == [0.6]
    assert values(moves.entered) == [0.5] and values(moves.to_replay) == [0.6]
    assert moves.restored is moves.dropped is None


def test_a_newcomer_worse_than_replay_enters():
    pool = pool_of([0, 1, 0.3, 0.6], [0.2])
    after, moves = pool.event(np.array([0.5]), 5.0, np.array([0.0, 0.0, 3.0, 2.0]), np.array([4.0]))
    assert after.active.ravel().tolist() == [0, 1, 0.3, 0.5]
    assert after.replay.ravel().tolist() == [0.2, 0.6]
    assert moves.restored is None


@pytest.mark.parametrize("newcomer_loss", [1.0, 4.0])  # better, and equal: only a worse one enters
def test_otherwise_the_worst_replay_task_is_restored_in_exchange(newcomer_loss):
    pool = pool_of([0, 1, 0.3, 0.6], [0.1, 0.2], replay_capacity=3)
    after, moves = pool.event(np.array([0.5]), newcomer_loss, np.array([0.0, 0.0, 3.0, 2.0]), np.array([1.0, 4.0]))
    assert after.active.ravel().tolist() == [0, 1, 0.3, 0.2]
    assert after.replay.ravel().tolist() == [0.1, 0.6]
    assert values(moves.restored) == [0.2] and values(moves.to_replay) == [0.6]
    assert moves.entered is moves.dropped is None


def test_with_replay_full_only_the_exchange_happens():
    pool = pool_of([0, 1, 0.3, 0.6], [0.1, 0.2])
    after, moves = pool.event(np.array([0.5]), 99.0, np.array([0.0, 0.0, 3.0, 2.0]), np.array([4.0, 1.0]))
    assert after.active.ravel().tolist() == [0, 1, 0.3, 0.1]
    assert after.replay.ravel().tolist() == [0.6, 0.2]
    assert values(moves.restored) == [0.1] and moves.entered is None


def test_with_replay_full_nothing_moves_if_the_lowest_active_is_worse_than_replay():
    pool = pool_of([0, 1, 0.3, 0.6], [0.1, 0.2])
    after, moves = pool.event(np.array([0.5]), 99.0, np.array([0.0, 0.0, 3.0, 2.0]), np.array([1.5, 1.0]))
    assert after is pool and moves.entered is moves.restored is moves.to_replay is moves.dropped is None


def test_nothing_moves_if_the_lowest_active_is_worse_than_both():
    pool = pool_of([0, 1, 0.3, 0.6], [0.2])
    for newcomer_loss, replay_loss in [(1.0, 0.5), (0.5, 1.0)]:
        losses = np.array([0.0, 0.0, 3.0, 2.0])
        after, _ = pool.event(np.array([0.5]), newcomer_loss, losses, np.array([replay_loss]))
        assert after is pool


def test_one_worse_rival_is_enough_to_move():
    pool = pool_of([0, 1, 0.3, 0.6], [0.2])
    losses = np.array([0.0, 0.0, 3.0, 2.0])
    assert values(pool.event(np.array([0.5]), 2.5, losses, np.array([1.0]))[1].entered) == [0.5]
    assert values(pool.event(np.array([0.5]), 1.0, losses, np.array([2.5]))[1].restored) == [0.2]


@pytest.mark.parametrize("newcomer_loss", [0.0, 3.5, np.nan])  # below all, below replay, unknown
def test_an_uncapped_pool_lets_every_newcomer_in(newcomer_loss):
    sides = column(0, 1, 0.3, 0.6), column(0.2, 0.1), np.array([True, True, False, False])
    losses = np.array([0.0, 0.0, 3.0, 2.0]), np.array([4.0, 9.0])
    after, moves = TaskPool(*sides, 4, None, uncapped=True).event(np.array([0.5]), newcomer_loss, *losses)
    assert after.active.ravel().tolist() == [0, 1, 0.3, 0.5] and after.replay.ravel().tolist() == [0.2, 0.1, 0.6]
    assert values(moves.entered) == [0.5] and values(moves.to_replay) == [0.6] and after.uncapped
    refused, moves = TaskPool(*sides, 4, None).event(np.array([0.5]), 0.0, *losses)
    assert moves.entered is None and values(moves.restored) == [0.1] and len(refused.replay) == 2
    with pytest.raises(ProblemError, match="its replay capacity is 2. Use tasks.replay=None"):
        TaskPool(*sides, 4, 2, uncapped=True)


@pytest.mark.parametrize("replay_capacity", [0, 2])
def test_nothing_moves_if_every_active_task_is_kept(replay_capacity):
    pool = TaskPool.from_corners(CORNERS, 2, replay_capacity)
    assert pool.event(np.array([0.5]), 9.0, np.array([0.0, 0.0]), NONE)[0] is pool


def test_a_fixed_pool_never_changes():
    pool = TaskPool.fixed(column(0.2, 0.7))
    assert pool.event(np.array([0.5]), 9.0, np.array([0.0, 0.0]), NONE)[0] is pool


def test_nan_counts_as_the_worst():
    pool = pool_of([0, 1, 0.3, 0.6], [0.1, 0.2], replay_capacity=3)
    losses, nan = np.array([0.0, 0.0, np.nan, 2.0]), np.nan
    _, moves = pool.event(np.array([0.5]), nan, losses, np.array([1.0, 4.0]))
    assert values(moves.entered) == [0.5] and values(moves.to_replay) == [0.6]
    _, moves = pool.event(np.array([0.5]), 9.0, losses, np.array([nan, 4.0]))
    assert values(moves.restored) == [0.1]
    _, moves = pool.event(np.array([0.5]), 9.0, np.full(4, nan), np.array([1.0, 4.0]))
    assert moves.to_replay is None


def test_without_a_newcomer_only_replay_can_move():
    losses = np.array([0.0, 0.0, 3.0, 2.0])
    pool = pool_of([0, 1, 0.3, 0.6], [0.2])
    assert values(pool.event(None, np.nan, losses, np.array([4.0]))[1].restored) == [0.2]
    for pool in (pool_of([0, 1, 0.3, 0.6], replay_capacity=0), pool_of([0, 1, 0.3, 0.6])):
        assert pool.event(None, np.nan, losses, NONE)[0] is pool
    room = TaskPool.from_corners(CORNERS, 4)
    assert room.event(None, np.nan, np.array([1.0, 1.0]), NONE)[0] is room


# Errors -----------------------------------------------------------------------------------------------------


def test_too_small_a_capacity_says_what_to_do():
    with pytest.raises(ProblemError, match="2 initial tasks.*capacity is 1.*at least 2"):
        TaskPool.from_corners(CORNERS, 1)


def test_a_duplicate_newcomer_is_refused():
    pool = pool_of([0, 1, 0.3, 0.6], [0.2])
    for theta in (0.3, 0.2):
        with pytest.raises(ProblemError, match="already in the pool"):
            pool.event(np.array([theta]), 1.0, np.zeros(4), np.zeros(1))


def test_other_misuse_is_refused():
    pool = pool_of([0, 1, 0.3, 0.6], [0.2])
    with pytest.raises(ProblemError, match="twice"):
        TaskPool.fixed(column(0.2, 0.2))
    with pytest.raises(ProblemError, match="one loss for each of the 4 active"):
        pool.event(np.array([0.5]), 1.0, np.zeros(3), np.zeros(1))
    with pytest.raises(ProblemError, match="one value a parameter"):
        pool.event(np.array([0.5, 0.5]), 1.0, np.zeros(4), np.zeros(1))
    with pytest.raises(ProblemError, match="not be negative"):
        TaskPool.from_corners(CORNERS, 2, -1)


# Properties -------------------------------------------------------------------------------------------------

loss = st.floats(0, 10) | st.just(np.nan) | st.just(np.inf)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    spare=st.integers(0, 4),
    replay_capacity=st.sampled_from([0, 1, 3, None]),
    events=st.integers(1, 25),
)
def test_invariants_hold_however_many_events(data, spare, replay_capacity, events):
    corners = Box(a=(0, 1), b=(0, 1)).corners()
    pool = TaskPool.from_corners(corners, len(corners) + spare, replay_capacity)
    grid = Box(a=(0, 1), b=(0, 1)).grid(a=8, b=8).points
    for _ in range(events):
        known = {tuple(theta) for theta in pool.thetas}
        newcomer = data.draw(st.sampled_from([theta for theta in grid if tuple(theta) not in known]))
        draw = lambda count: np.array(data.draw(st.lists(loss, min_size=count, max_size=count)))  # noqa: E731
        after, moves = pool.event(newcomer, data.draw(loss), draw(len(pool.active)), draw(len(pool.replay)))

        assert len(after.active) <= after.active_capacity
        assert replay_capacity is None or len(after.replay) <= replay_capacity
        assert len(np.unique(after.thetas, axis=0)) == len(after.thetas)
        assert np.array_equal(after.active[after.kept], corners)
        # The log accounts for every change.
        tasks = {tuple(theta) for theta in after.thetas}
        entered = set() if moves.entered is None else {tuple(moves.entered)}
        dropped = set() if moves.dropped is None else {tuple(moves.dropped)}
        assert tasks == (known | entered) - dropped
        # Thetas and their marks are all there is, so memory has a bound.
        leaves = jax.tree.leaves(after)
        assert [leaf.shape for leaf in leaves] == [after.active.shape, after.replay.shape, (len(after.active),)]
        if replay_capacity is not None:
            bound = (after.active_capacity + replay_capacity) * 2 * 8 + after.active_capacity
            assert sum(leaf.nbytes for leaf in leaves) <= bound
        pool = after


def test_a_pool_is_an_immutable_pytree():
    pool = pool_of([0, 1, 0.3, 0.6], [0.2])
    assert eqx.tree_equal(jax.tree.map(lambda leaf: leaf, pool), pool)
    with pytest.raises(ValueError):
        pool.active[0] = 5.0
    with pytest.raises(AttributeError):
        pool.active_capacity = 9  # pyright: ignore[reportAttributeAccessIssue]


# Coverage ---------------------------------------------------------------------------------------------------
