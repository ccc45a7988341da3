"""Parameterized physics-informed neural networks: one network u(x, t; theta) for a whole family of PDEs.

Names are imported when they are first used, so `import clpinn` and `clpinn --help` start at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clpinn import problems
    from clpinn.calculus.names import Derivatives
    from clpinn.errors import ClpinnError, DomainError, OutsideBoxWarning, ProblemError
    from clpinn.exports.export import export
    from clpinn.formulation.domain import Axis, Box, Grid, log, periodic
    from clpinn.formulation.pointwise import condition_residuals, named_derivatives, residuals, values
    from clpinn.formulation.problem import Condition, Data, Integral, Problem
    from clpinn.formulation.regions import Interior, at, boundary, on
    from clpinn.formulation.vanishing import vanishing
    from clpinn.networks.fnn import FNN, ParamFNN, QuadraticFNN
    from clpinn.presets import natural, paper, scaled
    from clpinn.runs.callbacks import Callbacks, TrainingStep
    from clpinn.runs.directory import load_network
    from clpinn.runs.evaluate import Metrics, aggregate, evaluate, reference_residual
    from clpinn.runs.run import run, train
    from clpinn.runs.session import Result
    from clpinn.shapes.imported import polygon
    from clpinn.shapes.plane import Disk, Ellipse, HalfPlane, Polygon, Rectangle, Sector
    from clpinn.shapes.solid import Ball, Cuboid, Cylinder, Extrusion, Surface
    from clpinn.studies.adapting import Adapting
    from clpinn.studies.page import report_study
    from clpinn.studies.running import Plan, load_study, run_study
    from clpinn.studies.study import Study, Variant
    from clpinn.surrogate.adapt_settings import AdaptSettings
    from clpinn.surrogate.calibration import Calibration, calibrate
    from clpinn.surrogate.error import ErrorEstimate
    from clpinn.surrogate.error_map import ErrorMap
    from clpinn.surrogate.fit import Fit
    from clpinn.surrogate.surrogate import Surrogate, load
    from clpinn.surrogate.trust import Trust
    from clpinn.training.settings import Settings

__version__ = "0.1.0"

_HOMES = {
    "calculus.names": ("Derivatives",),
    "errors": ("ClpinnError", "DomainError", "OutsideBoxWarning", "ProblemError"),
    "exports.export": ("export",),
    "formulation.domain": ("Axis", "Box", "Grid", "log", "periodic"),
    "formulation.pointwise": ("condition_residuals", "named_derivatives", "residuals", "values"),
    "formulation.problem": ("Condition", "Data", "Integral", "Problem"),
    "formulation.regions": ("Interior", "at", "boundary", "on"),
    "formulation.vanishing": ("vanishing",),
    "networks.fnn": ("FNN", "ParamFNN", "QuadraticFNN"),
    "presets": ("natural", "paper", "scaled"),
    "runs.callbacks": ("Callbacks", "TrainingStep"),
    "runs.directory": ("load_network",),
    "runs.evaluate": ("Metrics", "aggregate", "evaluate", "reference_residual"),
    "runs.run": ("run", "train"),
    "runs.session": ("Result",),
    "shapes.imported": ("polygon",),
    "shapes.plane": ("Disk", "Ellipse", "HalfPlane", "Polygon", "Rectangle", "Sector"),
    "shapes.solid": ("Ball", "Cuboid", "Cylinder", "Extrusion", "Surface"),
    "surrogate.adapt_settings": ("AdaptSettings",),
    "studies.adapting": ("Adapting",),
    "studies.page": ("report_study",),
    "studies.running": ("Plan", "load_study", "run_study"),
    "studies.study": ("Study", "Variant"),
    "surrogate.calibration": ("Calibration", "calibrate"),
    "surrogate.error": ("ErrorEstimate",),
    "surrogate.error_map": ("ErrorMap",),
    "surrogate.fit": ("Fit",),
    "surrogate.surrogate": ("Surrogate", "load"),
    "surrogate.trust": ("Trust",),
    "training.settings": ("Settings",),
}
"""Public names by the module that defines them."""
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "FNN",
    "AdaptSettings",
    "Adapting",
    "Axis",
    "Ball",
    "Box",
    "Calibration",
    "Callbacks",
    "ClpinnError",
    "Condition",
    "Cuboid",
    "Cylinder",
    "Data",
    "Derivatives",
    "Disk",
    "DomainError",
    "Ellipse",
    "ErrorEstimate",
    "ErrorMap",
    "Extrusion",
    "Fit",
    "Grid",
    "HalfPlane",
    "Integral",
    "Interior",
    "Metrics",
    "OutsideBoxWarning",
    "ParamFNN",
    "Plan",
    "Polygon",
    "Problem",
    "ProblemError",
    "QuadraticFNN",
    "Rectangle",
    "Result",
    "Sector",
    "Settings",
    "Study",
    "Surface",
    "Surrogate",
    "TrainingStep",
    "Trust",
    "Variant",
    "aggregate",
    "at",
    "boundary",
    "calibrate",
    "condition_residuals",
    "evaluate",
    "export",
    "load",
    "load_network",
    "load_study",
    "log",
    "named_derivatives",
    "natural",
    "on",
    "paper",
    "periodic",
    "polygon",
    "problems",
    "reference_residual",
    "report_study",
    "residuals",
    "run",
    "run_study",
    "scaled",
    "train",
    "values",
    "vanishing",
]


def __getattr__(name: str) -> Any:
    if name == "problems":
        return import_module("clpinn.problems")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'clpinn' has no attribute {name!r}")
    value = getattr(import_module(f"clpinn.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
