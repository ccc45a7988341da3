"""The five benchmarks of the paper, and problems by name."""

from clpinn.problems.allen_cahn import AllenCahn
from clpinn.problems.burgers import Burgers
from clpinn.problems.kovasznay import Kovasznay
from clpinn.problems.loader import BENCHMARKS, load_problem
from clpinn.problems.poisson_boltzmann import PoissonBoltzmann
from clpinn.problems.schaffer import Schaffer

__all__ = ["BENCHMARKS", "AllenCahn", "Burgers", "Kovasznay", "PoissonBoltzmann", "Schaffer", "load_problem"]
