"""A problem as a static argument of a compiled function."""

from clpinn.formulation.problem import Problem


class Identity:
    """A problem compared and hashed by identity, so that functions compile for problems whose class has no hash."""

    def __init__(self, problem: Problem):
        self.problem = problem

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.problem is self.problem

    def __hash__(self) -> int:
        return id(self.problem)
