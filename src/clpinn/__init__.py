"""Parameterized physics-informed neural networks: one network u(x, t; theta) for a whole family of PDEs."""

from clpinn import problems
from clpinn.derivatives import Derivatives
from clpinn.domain import Axis, Box, Grid, Interior, at, boundary, log, periodic
from clpinn.errors import ClpinnError, DomainError, OutsideBoxWarning, ProblemError
from clpinn.evaluate import Metrics, aggregate, evaluate, reference_residual
from clpinn.networks import FNN, ParamFNN, QuadraticFNN
from clpinn.problem import Condition, Data, Problem, condition_residuals, named_derivatives, residuals, values
from clpinn.runs import Result, load_network, train
from clpinn.settings import Settings, paper, scaled

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
    "aggregate",
    "at",
    "boundary",
    "condition_residuals",
    "evaluate",
    "load_network",
    "log",
    "named_derivatives",
    "paper",
    "periodic",
    "problems",
    "reference_residual",
    "residuals",
    "scaled",
    "train",
    "values",
]
