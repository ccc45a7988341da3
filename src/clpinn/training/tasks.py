"""The task pool: which thetas are trained densely (active), which sparsely (replay), and how they change places.

A pool holds thetas only, never solution labels, and every move returns a new pool.
"""

from dataclasses import dataclass

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float

from clpinn.errors import ProblemError
from clpinn.formulation.thetas import Theta, Thetas

Losses = Float[np.ndarray, " tasks"]


@dataclass(frozen=True, eq=False)
class Moves:
    """What an event changed: each is a theta of shape (parameters,), or None.

    `entered` is new to the pool, `restored` came back from replay to the active set, `to_replay` went the other
    way, `dropped` left the pool.
    """

    entered: Theta | None = None
    to_replay: Theta | None = None
    restored: Theta | None = None
    dropped: Theta | None = None


def _thetas(values: np.ndarray) -> np.ndarray:
    """A read-only copy in double precision."""
    copy = np.array(values, dtype=np.float64)
    copy.setflags(write=False)
    return copy


def _marks(values: np.ndarray) -> np.ndarray:
    copy = np.array(values, dtype=bool)
    copy.setflags(write=False)
    return copy


class TaskPool(eqx.Module):
    """Active and replay tasks, shapes (n_active, parameters) and (n_replay, parameters), on the host.

    `kept` marks active tasks that are never displaced. `replay_capacity` is 0 for no replay and None for no limit. A
    pool that is `uncapped` has no limit and lets every newcomer in, whatever its loss.
    """

    active: Thetas = eqx.field(converter=_thetas)
    replay: Thetas = eqx.field(converter=_thetas)
    kept: Bool[np.ndarray, " n_active"] = eqx.field(converter=_marks)
    active_capacity: int = eqx.field(static=True)
    replay_capacity: int | None = eqx.field(static=True)
    uncapped: bool = eqx.field(static=True, default=False)

    @staticmethod
    def from_corners(
        corners: Thetas, active_capacity: int, replay_capacity: int | None = 0, uncapped: bool = False
    ) -> "TaskPool":
        """A pool that starts with the corners of the box, shape (corners, parameters), and never displaces them."""
        corners = np.asarray(corners, dtype=float)
        if active_capacity < len(corners):
            raise ProblemError(
                f"The active set needs room for its {len(corners)} initial tasks, which are never displaced, but its "
                f"capacity is {active_capacity}. Raise the active capacity to at least {len(corners)}, better more, "
                "or use fewer parameters."
            )
        none = np.zeros((0, corners.shape[1]))
        return TaskPool(corners, none, np.ones(len(corners), bool), active_capacity, replay_capacity, uncapped)

    @staticmethod
    def fixed(thetas: Thetas) -> "TaskPool":
        """A pool whose tasks, shape (tasks, parameters), never change."""
        return TaskPool.from_corners(thetas, active_capacity=len(thetas))

    def __check_init__(self) -> None:
        if self.active.ndim != 2 or self.replay.ndim != 2 or self.active.shape[1] != self.replay.shape[1]:
            raise ProblemError(
                "Active and replay tasks need the shapes (tasks, parameters) with the same number of parameters, but "
                f"got {self.active.shape} and {self.replay.shape}."
            )
        if self.kept.shape != (len(self.active),):
            raise ProblemError(
                f"kept needs one mark for each of the {len(self.active)} active tasks, but has the shape "
                f"{self.kept.shape}."
            )
        if self.replay_capacity is not None and self.replay_capacity < 0:
            raise ProblemError(
                f"The replay capacity must not be negative, but is {self.replay_capacity}. Use 0 for no replay and "
                "None for no limit."
            )
        if self.uncapped and self.replay_capacity is not None:
            raise ProblemError(
                f"A pool that lets every newcomer in needs replay without a limit, but its replay capacity is "
                f"{self.replay_capacity}. Use tasks.replay=None with tasks.uncapped=true."
            )
        replay_capacity = len(self.replay) if self.replay_capacity is None else self.replay_capacity
        if len(self.active) > self.active_capacity or len(self.replay) > replay_capacity:
            raise ProblemError(
                f"{len(self.active)} active and {len(self.replay)} replay tasks do not fit the capacities "
                f"{self.active_capacity} and {self.replay_capacity}. Raise them, or start with fewer tasks."
            )
        if not np.isfinite(self.thetas).all():
            raise ProblemError("A task holds a parameter that is not finite. Leave it out.")
        distinct, counts = np.unique(self.thetas, axis=0, return_counts=True)
        if (counts > 1).any():
            raise ProblemError(
                f"The task {distinct[counts > 1][0].tolist()} is in the pool twice. List each task once."
            )

    @property
    def thetas(self) -> Thetas:
        """All tasks, the active ones first."""
        return np.concatenate([self.active, self.replay])

    @property
    def is_full(self) -> bool:
        """Whether the active set is full."""
        return len(self.active) >= self.active_capacity

    def event(
        self, newcomer: Theta | None, newcomer_loss: float, active_losses: Losses, replay_losses: Losses
    ) -> tuple["TaskPool", Moves]:
        """Let a newcomer of shape (parameters,) in, or exchange tasks, by the rules for a full active set.

        Losses are unweighted task losses, in the order of `active` and `replay`; one that is not a number counts
        as the worst. Without a newcomer (None) only an exchange with replay can happen. A newcomer to the active
        set takes the place of the task it displaces, so the other tasks keep their order.
        """
        active_losses = _worst_where_nan(active_losses, len(self.active), "active")
        replay_losses = _worst_where_nan(replay_losses, len(self.replay), "replay")
        # Without a newcomer any task is worse than it.
        newcomer_loss = np.nan_to_num(newcomer_loss, nan=np.inf) if newcomer is not None else -np.inf
        if newcomer is not None:
            newcomer = np.array(newcomer, dtype=float)
            self._refuse(newcomer)
            if not self.is_full:
                active, kept = np.concatenate([self.active, newcomer[None]]), np.append(self.kept, False)
                return self._with(active, self.replay, kept), Moves(entered=newcomer)
        if not self.is_full or self.kept.all():
            return self, Moves()

        displaceable = np.flatnonzero(~self.kept)
        lowest = int(displaceable[np.argmin(active_losses[displaceable])])
        displaced = self.active[lowest]
        active = np.array(self.active)
        if self.replay_capacity == 0:
            if newcomer is None:
                return self, Moves()
            active[lowest] = newcomer
            return self._with(active, self.replay, self.kept), Moves(entered=newcomer, dropped=displaced)

        room = self.replay_capacity is None or len(self.replay) < self.replay_capacity
        worst = int(np.argmax(replay_losses)) if len(self.replay) else None
        worst_loss = -np.inf if worst is None else replay_losses[worst]
        if room and newcomer is not None and (self.uncapped or worst is None or newcomer_loss > worst_loss):
            if active_losses[lowest] > newcomer_loss and not self.uncapped:
                return self, Moves()
            active[lowest] = newcomer
            replay = np.concatenate([self.replay, displaced[None]])
            return self._with(active, replay, self.kept), Moves(entered=newcomer, to_replay=displaced)
        if worst is None or active_losses[lowest] > worst_loss:
            return self, Moves()
        restored = self.replay[worst]
        active[lowest] = restored
        replay = np.array(self.replay)
        replay[worst] = displaced
        return self._with(active, replay, self.kept), Moves(to_replay=displaced, restored=restored)

    def _with(self, active: np.ndarray, replay: np.ndarray, kept: np.ndarray) -> "TaskPool":
        return TaskPool(active, replay, kept, self.active_capacity, self.replay_capacity, self.uncapped)

    def _refuse(self, newcomer: np.ndarray) -> None:
        if newcomer.shape != self.active.shape[1:]:
            raise ProblemError(
                f"A newcomer needs the shape {self.active.shape[1:]}, one value a parameter, but got {newcomer.shape}."
            )
        if (self.thetas == newcomer).all(axis=1).any():
            raise ProblemError(
                f"The newcomer {newcomer.tolist()} is already in the pool. Choose among tasks in neither set."
            )


def _worst_where_nan(losses: np.ndarray, count: int, name: str) -> np.ndarray:
    losses = np.asarray(losses, dtype=float)
    if losses.shape != (count,):
        raise ProblemError(f"Expected one loss for each of the {count} {name} tasks, but got the shape {losses.shape}.")
    return np.where(np.isnan(losses), np.inf, losses)
