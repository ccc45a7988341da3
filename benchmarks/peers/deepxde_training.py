"""Training with DeepXDE (PyTorch, float64) for a time: Adam for half of it, then L-BFGS with its defaults."""

import os
from collections.abc import Callable

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde as dde
from common import Run

MOST_STEPS = 1_000_000

dde.config.set_default_float("float64")


class Until(dde.callbacks.Callback):
    """Stops Adam at a time."""

    def __init__(self, run: Run, seconds: float):
        super().__init__()
        self.run, self.seconds = run, seconds

    def on_epoch_end(self):
        self.model.stop_training = self.run.passed() >= self.seconds


class Pieces(Until):
    """Stops L-BFGS at a time: it looks up only after a piece of its iterations, so a piece is half of what fits."""

    def on_epoch_begin(self):
        self.begin = self.run.passed()

    def on_epoch_end(self):
        super().on_epoch_end()
        options = self.model.opt.param_groups[0]
        pace = (self.run.passed() - self.begin) / options["max_iter"]
        options["max_iter"] = int(min(max((self.seconds - self.run.passed()) / pace / 2, 2), 50))


def trained(
    run: Run, network: dde.nn.NN, data: Callable[[int], dde.data.Data], few: int, many: int, rate: float = 1e-3
) -> tuple[Callable, float, int]:
    """What predicts, the seconds and the steps. Adam has `few` rows, new ones every 10 steps; L-BFGS `many` that stay.

    `data` makes the problem with a number of rows; `rate` is the learning rate of Adam.
    """
    adam = dde.Model(data(few), network)
    adam.compile("adam", lr=rate, verbose=0)
    resampled = dde.callbacks.PDEPointResampler(period=10)
    adam.train(MOST_STEPS, display_every=MOST_STEPS, callbacks=[resampled, Until(run, run.seconds / 2)], verbose=0)

    dde.optimizers.set_LBFGS_options(maxiter=MOST_STEPS)
    dde.optimizers.config.LBFGS_options["iter_per_step"] = 10
    lbfgs = dde.Model(data(many), network)
    lbfgs.compile("L-BFGS", verbose=0)
    lbfgs.train(callbacks=[Pieces(run, run.seconds)], verbose=0)
    return lbfgs.predict, run.passed(), adam.train_state.iteration + lbfgs.train_state.iteration
