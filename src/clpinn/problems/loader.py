"""Problems by name: the five benchmarks, and those in a user's file."""

import importlib.util
import sys
from pathlib import Path

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

# Benchmarks that the paper states in another form than our default.
PAPER_FORMS: dict[str, Problem] = {"burgers": Burgers(hard=False)}


def load_problem(name: str, paper: bool = False) -> Problem:
    """A benchmark by its name, in the paper's form if `paper`, or a problem from a file: "my_pde.py:Heat".

    A file is run as Python code, with its own folder importable. The class name may be left out where the file
    holds one problem.
    """
    if paper and name in PAPER_FORMS:
        return PAPER_FORMS[name]
    if name in BENCHMARKS:
        return BENCHMARKS[name]()
    path_text, class_name = (name, "") if name.endswith(".py") else name.rpartition(":")[::2]
    if not path_text.endswith(".py"):
        raise ProblemError(
            f"There is no problem called {name!r}. Use one of {', '.join(BENCHMARKS)}, or a file of your own: "
            "my_pde.py:MyProblem."
        )
    path = Path(path_text)
    if not path.is_file():
        raise ProblemError(f"There is no file {path}. Give the path of a Python file that holds a problem.")
    problem = _class_in(_run_file(path), path, class_name)
    try:
        instance = problem()
    except Exception as error:
        raise ProblemError(
            f"{problem.__name__}() in {path} failed: {type(error).__name__}: {error}. A problem for the command "
            "line needs default values for all its arguments."
        ) from error
    validate(instance)
    return instance


def _run_file(path: Path):
    module_name = f"clpinn_user_{path.stem}"
    specification = importlib.util.spec_from_file_location(module_name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module  # dataclasses look a class's module up here
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


def _class_in(module, path: Path, class_name: str) -> type[Problem]:
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Problem) and value.__module__ == module.__name__
    }
    listed = ", ".join(found) or "none"
    if class_name:
        if class_name not in found:
            raise ProblemError(f"{path} has no problem called {class_name!r}. It has {listed}.")
        return found[class_name]
    if len(found) != 1:
        raise ProblemError(
            f"{path} holds {len(found)} problems ({listed}). Name one: {path}:{next(iter(found), 'MyProblem')}."
        )
    return next(iter(found.values()))
