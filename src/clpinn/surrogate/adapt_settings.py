"""What an adaptation trains, and how: one set of options for Python, the command line and studies."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from clpinn.errors import SettingsError
from clpinn.surrogate.adaptations import ADAPTATIONS, AdaptationName

LM_STEPS = 20
"""Steps of Levenberg-Marquardt at most."""
ADAM_STEPS, ADAM_RATE = 500, 1e-3
"""The paper's number of steps. It does not state the learning rate."""


@dataclass(frozen=True)
class AdaptSettings:
    """The options of an adaptation.

    - `way`: what is trained. "head" is a residual head on the frozen network, "full" all weights, "svd" the singular
      values of a p2inn, "target" the network that a hyperpinn or metapinn generates for the theta.
    - `optimizer`: "lm" is Levenberg-Marquardt on 1024 rows. "adam" is the paper's, on the problem's own points.
    - `steps`: at most so many of lm (20), exactly so many of adam (500).
    - `width`: width of a head's hidden layer. By default half of the base's last hidden layer.
    - `rate`: learning rate of adam. By default 1e-3.
    - `precision`: "double" or, as in the paper, "single". It is that of adam's fit; heads are judged in double.
    - `lbfgs`: at most so many steps of L-BFGS after adam. It ends where no derivative of the loss exceeds 1e-8.
    - `always`: each result is used, whatever its judgement says, as in the paper.
    - `together`: thetas that are fitted at once; fewer if memory is short.
    """

    way: AdaptationName = "head"
    optimizer: Literal["lm", "adam"] = "lm"
    steps: int | None = None
    width: int | None = None
    rate: float | None = None
    precision: Literal["double", "single"] = "double"
    lbfgs: int = 0
    always: bool = False
    together: int = 8

    def __post_init__(self) -> None:
        for name, choices in (
            ("way", tuple(ADAPTATIONS)),
            ("optimizer", ("lm", "adam")),
            ("precision", ("double", "single")),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise SettingsError(f"{name} of an adaptation is one of {', '.join(choices)}, but got {value!r}.")
        for name, least in (("steps", 1), ("width", 1), ("lbfgs", 0), ("together", 1)):
            value = getattr(self, name)
            if not ((value is None and name in ("steps", "width")) or _is_count(value, least)):
                raise SettingsError(f"{name} of an adaptation is a whole number from {least} on, but got {value!r}.")
        if self.rate is not None and not (0 < self.rate < math.inf):
            raise SettingsError(f"rate of an adaptation is a finite number above zero, but got {self.rate!r}.")
        if self.width is not None and self.way != "head":
            raise SettingsError(f"width is that of a head, but way is {self.way}. Choose way head, or leave width out.")
        given = {"rate": self.rate is not None, "precision single": self.precision == "single", "lbfgs": self.lbfgs > 0}
        for name in [name for name, is_given in given.items() if is_given and self.optimizer != "adam"]:
            raise SettingsError(
                f"{name} is an option of adam, but optimizer is {self.optimizer}. Choose optimizer adam, or leave "
                f"{name} out."
            )

    @property
    def step_count(self) -> int:
        """The steps of the optimizer, at most (lm) or exactly (adam)."""
        return self.steps or (LM_STEPS if self.optimizer == "lm" else ADAM_STEPS)

    @property
    def learning_rate(self) -> float:
        """The learning rate of adam."""
        return ADAM_RATE if self.rate is None else self.rate


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


HEADS_BY_LM = AdaptSettings()
"""The default: residual heads, fitted by Levenberg-Marquardt."""
