"""Parameterized physics-informed neural networks: one network u(x, t; theta) for a whole family of PDEs."""

from clpinn import problems
from clpinn.calculus.jets import Derivatives
from clpinn.errors import ClpinnError, DomainError, OutsideBoxWarning, ProblemError
from clpinn.exports.export import export
from clpinn.formulation.domain import Axis, Box, Grid, Interior, at, boundary, log, periodic
from clpinn.formulation.problem import (
    Condition,
    Data,
    Problem,
    condition_residuals,
    named_derivatives,
    residuals,
    values,
)
from clpinn.networks import FNN, ParamFNN, QuadraticFNN
from clpinn.presets import natural, paper, scaled
from clpinn.runs.directory import load_network
from clpinn.runs.evaluate import Metrics, aggregate, evaluate, reference_residual
from clpinn.runs.run import run, train
from clpinn.runs.session import Result
from clpinn.surrogate.surrogate import Surrogate, load
from clpinn.surrogate.trust import Trust
from clpinn.training.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "FNN",
    "Axis",
    "Box",
    "ClpinnError",
    "Condition",
    "Data",
    "Derivatives",
    "DomainError",
    "Grid",
    "Interior",
    "Metrics",
    "OutsideBoxWarning",
    "ParamFNN",
    "Problem",
    "ProblemError",
    "QuadraticFNN",
    "Result",
    "Settings",
    "Surrogate",
    "Trust",
    "aggregate",
    "at",
    "boundary",
    "condition_residuals",
    "evaluate",
    "export",
    "load",
    "load_network",
    "log",
    "named_derivatives",
    "natural",
    "paper",
    "periodic",
    "problems",
    "reference_residual",
    "residuals",
    "run",
    "scaled",
    "train",
    "values",
]
