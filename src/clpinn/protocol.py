"""Published errors of the CL-PINN paper, to set a run's own beside: means over seeds 0, 1, 2 at full budget."""

METHODS = {"uni": "UNI", "fix": "FIX", "ag": "AG", "ac": "AC", "acr": "ACR", "acr2": "ACR2-arch"}
"""Our methods by the paper's names."""

# Relative L2 errors, mean over the evaluation grid, by output.
REL_L2: dict[str, dict[str, dict[str, float]]] = {
    "schaffer": {
        "UNI": {"u": 0.064784},
        "FIX": {"u": 0.9987},
        "AG": {"u": 0.12755},
        "AC": {"u": 0.1601},
        "ACR": {"u": 0.07195},
        "ACR2-arch": {"u": 0.05073},
    },
    "burgers": {
        "UNI": {"u": 0.012153},
        "FIX": {"u": 0.021256},
        "AG": {"u": 0.014551},
        "AC": {"u": 0.02123},
        "ACR": {"u": 0.01025},
        "ACR2-arch": {"u": 0.001771},
    },
    "allen_cahn": {
        "UNI": {"u": 0.11619},
        "FIX": {"u": 0.16286},
        "AG": {"u": 0.05084},
        "AC": {"u": 0.046},
        "ACR": {"u": 0.01467},
        "ACR2-arch": {"u": 0.02439},
    },
    "kovasznay": {
        "UNI": {"u": 0.0181, "v": 0.1534, "p": 0.09144},
        "FIX": {"u": 0.01233, "v": 0.508, "p": 0.2574},
        "AG": {"u": 0.02477, "v": 0.5345, "p": 0.5421},
        "AC": {"u": 0.0525, "v": 0.6523, "p": 0.3873},
        "ACR": {"u": 0.01113, "v": 0.138, "p": 0.08864},
        "ACR2-arch": {"u": 0.008956, "v": 0.1946, "p": 0.1121},
    },
    "poisson_boltzmann": {
        "UNI": {"u": 0.4189},
        "FIX": {"u": 12.67},
        "AG": {"u": 0.03125},
        "AC": {"u": 0.06065},
        "ACR": {"u": 0.03046},
        "ACR2-arch": {"u": 0.04397},
    },
}


def rel_l2(problem: str, method: str) -> dict[str, float] | None:
    """The paper's errors of a problem by output: of the same method, or of its best where it has none such."""
    if problem not in REL_L2:
        return None
    return REL_L2[problem].get(METHODS.get(method, "")) or REL_L2[problem][best(problem)]


def best(problem: str) -> str:
    """The paper's method with the smallest error, all outputs counted alike."""
    return min(REL_L2[problem], key=lambda method: sum(REL_L2[problem][method].values()))
