"""Stages of a run, one file per family. The loop knows only this interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Float
from numpy import ndarray

from clpinn.formulation.domain import Points
from clpinn.programs import Lowering
from clpinn.training.optimizers import Step
from clpinn.training.state import State

Message = Callable[[str], None]


class Stage(ABC):
    """One optimiser at work. A stage holds what stays the same; everything that changes is in the state.

    `done` is the share of a bounded run that is over, between 0 and 1, and 0 in a run without bounds.
    """

    name: ClassVar[str]
    history_steps: int
    """Steps between two rows of the history."""

    @abstractmethod
    def init(self, network: Any) -> Any:
        """The optimiser's state at the start of a run: what `State` holds under this stage's name."""

    def lowerings(self, network: Any) -> list[Lowering]:
        """What traces and compiles the programs of a step, for a network or its shapes."""
        return []

    def enter(self, state: State) -> State:
        """The state before the first step of the run."""
        return state

    @abstractmethod
    def objective(self, state: State) -> Any:
        """What a step works on: it follows from the pool and its weights, so it is made anew when they change."""

    @abstractmethod
    def step(self, state: State, objective: Any, done: float) -> tuple[State, Step, dict[str, float]]:
        """One step: the new state, what the step met, and the loss by residual name."""

    def check(self, state: State, done: float, message: Message) -> State:
        """What follows a step: validation, and all that depends on it."""
        return state

    @abstractmethod
    def finished(self, state: State, done: float) -> bool:
        """Whether this stage makes no more steps."""

    def event_due(self, state: State, done: float) -> bool:
        """Whether tasks are to be selected and exchanged now."""
        return False

    @abstractmethod
    def remedy(self, state: State) -> tuple[State, str]:
        """A good state made ready to go on after a loss that was not finite, and what was done, in words."""

    @abstractmethod
    def task_losses(self, state: State, thetas: Points) -> Float[ndarray, " thetas"]:
        """The complete loss of each theta."""

    @abstractmethod
    def validation_loss(self, state: State) -> float:
        """The loss on points that are not trained, over the whole box."""

    def undefined(self, state: State) -> list[str]:
        """One message for each term whose residuals are not defined at some points, as far as the stage knows."""
        return []

    def not_learnt(self, state: State) -> list[str]:
        """Names of the residuals that are still as large as their own terms, as far as the stage knows."""
        return []

    def status(self, state: State, step: Step) -> str:
        """What a display shows besides the loss and the validation loss."""
        return ""
