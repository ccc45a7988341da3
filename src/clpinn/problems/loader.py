"""Problems by name: the five benchmarks, and those in a user's file."""

import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from clpinn.errors import ProblemError
from clpinn.formulation.problem import Problem
from clpinn.formulation.validation import validate
from clpinn.problems.allen_cahn import AllenCahn
from clpinn.problems.burgers import Burgers
from clpinn.problems.kovasznay import Kovasznay
from clpinn.problems.poisson_boltzmann import PoissonBoltzmann
from clpinn.problems.schaffer import Schaffer

BENCHMARKS: dict[str, type[Problem]] = {
    "schaffer": Schaffer,
    "burgers": Burgers,
    "allen_cahn": AllenCahn,
    "kovasznay": Kovasznay,
    "poisson_boltzmann": PoissonBoltzmann,
}


def paper_form(problem: Problem) -> Problem:
    """The problem as the paper states it: Burgers' equation with soft conditions, any other problem unchanged."""
    if not (isinstance(problem, Burgers) and problem.hard):
        return problem
    # A copy instead of dataclasses.replace: a subclass may have a constructor without `hard`.
    soft = copy.copy(problem)
    object.__setattr__(soft, "hard", False)  # the class is frozen
    return soft


def load_problem(name: str, paper: bool = False) -> Problem:
    """A benchmark by its name, or a problem from a file: "my_pde.py:Heat". With `paper`, in the paper's form.

    A file is run as Python code, and it can import its neighbours. The class name may be left out if the file holds
    one problem.
    """
    if name in BENCHMARKS:
        benchmark = BENCHMARKS[name]()
        return paper_form(benchmark) if paper else benchmark
    path_text, class_name = split_name(name)
    if not path_text:
        raise ProblemError(
            f"There is no problem called {name!r}. Use one of {', '.join(BENCHMARKS)}, or a file of your own: "
            "my_pde.py:MyProblem."
        )
    path = Path(path_text)
    if not path.is_file():
        raise ProblemError(f"There is no file {path}. Give the path of a Python file that holds a problem.")
    make = _class_in(run_file(path), path, class_name)
    try:
        problem = make()
    except Exception as error:
        raise ProblemError(
            f"{make.__name__}() in {path} failed: {type(error).__name__}: {error}. A problem for the command "
            "line needs default values for all its arguments."
        ) from error
    validate(problem)
    return paper_form(problem) if paper else problem


def split_name(name: str) -> tuple[str, str]:
    """The file and the class of a problem's name, "my_pde.py:Heat". Both are empty for a benchmark or no problem."""
    path_text, class_name = (name, "") if name.endswith(".py") else name.rpartition(":")[::2]
    return (path_text, class_name) if path_text.endswith(".py") else ("", "")


def run_file(path: Path) -> ModuleType:
    """The module that a file makes, under a name of its own."""
    module_name = f"clpinn_user_{path.stem}"
    specification = importlib.util.spec_from_file_location(module_name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module  # dataclasses look up the module of a class there
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ProblemError(f"{path} could not be imported: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(folder)
    return module


def _class_in(module: ModuleType, path: Path, class_name: str) -> type[Problem]:
    """The problem class of that name in a module, or the only one if the name is empty."""
    classes = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Problem) and value.__module__ == module.__name__
    }
    listed = ", ".join(classes) or "none"
    if class_name:
        if class_name not in classes:
            raise ProblemError(f"{path} has no problem called {class_name!r}. It has {listed}.")
        return classes[class_name]
    if len(classes) != 1:
        raise ProblemError(
            f"{path} holds {len(classes)} problems ({listed}). Name one: {path}:{next(iter(classes), 'MyProblem')}."
        )
    return next(iter(classes.values()))
