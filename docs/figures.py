"""The figure of docs/natural.md: one step of the natural gradient on Burgers, measured. python docs/figures.py

A network is trained for 60 steps. Then one more step is computed from the formulas of the page, in plain NumPy, and
drawn: the candidates, the rows that are taken, the kernel's eigenvalues beside the damping, and the batch's sum of
squares at each step length, beside that of an independent batch. Takes about a minute; writes docs/natural-step.svg.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.ticker
import numpy as np
from jax.flatten_util import ravel_pytree

import clpinn as cl

matplotlib.use("agg")
import matplotlib.pyplot as plt

ROWS, CANDIDATES, CAUSALITY, DAMPING, NOISE = 1024, 8, 1e5, 1e-6, 1e-6
NETWORK_STEPS = 60
INK, BLUE, ORANGE = "#333333", "#0072B2", "#D55E00"


def log_sizes(surrogate: cl.Surrogate) -> np.ndarray:
    """Coefficients of log S(theta): the root mean square of |u_t| + 2 |u u_x| + nu/pi |u_xx|, fitted over nu."""
    numbers, nus = np.random.default_rng(1), surrogate.problem.parameters["nu"].spaced(64)
    x, t = numbers.uniform(-1, 1, (64, 64)), numbers.uniform(0, 1, (64, 64))
    at = {"x": x, "t": t, "nu": nus[:, None]}
    u, u_t, u_x, u_xx = (surrogate.derivative(name, **at) for name in ("u", "u_t", "u_x", "u_xx"))
    terms = np.abs(u_t) + 2 * np.abs(u * u_x) + nus[:, None] / np.pi * np.abs(u_xx)
    return np.polyfit(np.log(nus), np.log(np.sqrt(np.mean(terms**2, axis=1))), 2)


def drawn(surrogate: cl.Surrogate, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (count, 2) and thetas (count, 1), a tenth of the points denser at the edges of the domain."""
    problem = surrogate.problem
    point_key, edge_key, theta_key = jax.random.split(jax.random.key(seed), 3)
    points = np.array(problem.coordinates.sample(count, point_key, "uniform"))
    points[: count // 10] = problem.coordinates.sample(count // 10, edge_key, "chebyshev")
    return points, problem.parameters.sample(count, theta_key, "chebyshev")


def taken(points: np.ndarray, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the rows that are taken from the candidates, and the weight of each."""
    order = np.argsort(points[:, 1])
    before = np.cumsum(np.clip(scaled[order], -1, 1) ** 2) / len(scaled)
    causal = 1 / (1 + CAUSALITY * np.interp(points[:, 1], points[order, 1], before))
    size = np.abs(scaled) * np.sqrt(causal)
    share = 0.5 * causal / causal.sum() + 0.5 * size / size.sum()
    chosen = np.searchsorted(np.cumsum(share), (np.arange(ROWS) + 0.5) / ROWS).clip(0, len(share) - 1)
    return chosen, np.sqrt(causal[chosen] / (ROWS * len(share) * share[chosen]))


def main() -> None:
    surrogate = cl.train(cl.problems.Burgers(), steps=NETWORK_STEPS, seed=0)
    problem, coefficients = surrogate.problem, log_sizes(surrogate)
    with jax.enable_x64(True):
        flat, unflatten = ravel_pytree(surrogate.network)

        def residual(flat, x, theta):
            (found,) = cl.residuals(problem, unflatten(flat), x, theta).values()
            return found

        many = jax.jit(jax.vmap(residual, in_axes=(None, 0, 0)))
        slopes = jax.jit(lambda *batch: jax.lax.map(lambda one: jax.grad(residual)(flat, *one), batch, batch_size=256))

        def batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
            """Candidates with their scaled residuals, the rows taken, and each row's weight over its size."""
            points, thetas = drawn(surrogate, seed, CANDIDATES * ROWS)
            sizes = np.exp(np.polyval(coefficients, np.log(thetas[:, 0])))
            scaled = np.asarray(many(flat, jnp.asarray(points), jnp.asarray(thetas))) / sizes
            chosen, weights = taken(points, scaled)
            return points, thetas, scaled, chosen, weights / sizes[chosen]

        points, thetas, scaled, chosen, factors = batch(2)
        x, theta = jnp.asarray(points[chosen]), jnp.asarray(thetas[chosen])
        rows = np.asarray(many(flat, x, theta)) * factors
        jacobian = np.asarray(slopes(x, theta)) * factors[:, None]
        kernel = jacobian @ jacobian.T
        mean = np.mean(np.diagonal(kernel))
        damping = mean * (DAMPING + NOISE * rows**2 / np.mean(rows**2))
        direction = jacobian.T @ np.linalg.solve(kernel + np.diag(damping), rows)

        other_points, other_thetas, _, other_chosen, other_factors = batch(3)
        other = jnp.asarray(other_points[other_chosen]), jnp.asarray(other_thetas[other_chosen])
        lengths = 0.5 ** np.arange(8)
        own_sums, other_sums = [], []
        for length in (0.0, *lengths):
            moved = flat - length * jnp.asarray(direction)
            own_sums.append(np.sum((np.asarray(many(moved, x, theta)) * factors) ** 2))
            other_sums.append(np.sum((np.asarray(many(moved, *other)) * other_factors) ** 2))

    plt.rcParams.update({"font.size": 8, "axes.edgecolor": INK, "svg.hashsalt": "clpinn", "svg.fonttype": "none"})
    figure, ((draw, take), (solve, shorten)) = plt.subplots(2, 2, figsize=(7.6, 5.4), layout="constrained")
    colours = draw.scatter(
        points[:, 1], points[:, 0], c=np.log10(np.abs(scaled) + 1e-12), s=1.5, cmap="viridis", vmin=-5, vmax=-1,
        rasterized=True, linewidths=0,
    )  # fmt: skip
    figure.colorbar(colours, ax=draw, label="log10 |scaled residual|")
    draw.set(title=f"1  Draw: {len(points)} candidates", xlabel="t", ylabel="x")
    weights = rows / (scaled[chosen] + 1e-300) * np.sqrt(ROWS)
    take.scatter(
        points[chosen, 1], points[chosen, 0], s=5 * weights, color=BLUE, alpha=0.6, rasterized=True, linewidths=0
    )
    take.set(title=f"2  Take: {ROWS} rows (area: weight)", xlabel="t", ylabel="x")
    eigenvalues = np.sort(np.linalg.eigvalsh(kernel))[::-1] / mean
    solve.semilogy(np.arange(1, ROWS + 1), eigenvalues.clip(1e-14), color=BLUE)
    solve.axhline(DAMPING + NOISE, color=ORANGE, ls="--")
    solve.text(ROWS, 1.5 * (DAMPING + NOISE), "mean damping", color=ORANGE, ha="right", va="bottom")
    solve.set(title="3  Solve: eigenvalues of J Jᵀ / mean diagonal", xlabel="number", ylim=(1e-13, 1e4))
    shorten.loglog(lengths, np.array(own_sums[1:]) / own_sums[0], "o-", color=BLUE, label="this batch")
    shorten.loglog(lengths, np.array(other_sums[1:]) / other_sums[0], "s--", color=ORANGE, label="another batch")
    shorten.axhline(1, color=INK, lw=0.5)
    shorten.set(
        title="4  Shorten: sum of squares, after / before",
        yticks=[0.5, 1, 2, 4],
        yticklabels=["0.5", "1", "2", "4"],
        xlabel="step length s",
    )
    shorten.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    shorten.legend(frameon=False)
    file = Path(__file__).parent / "natural-step.svg"
    figure.savefig(file, dpi=85, metadata={"Date": None})
    print(f"{file}: {file.stat().st_size / 1e3:.0f} kB")
    for length, own, other_sum in zip(lengths, own_sums[1:], other_sums[1:]):
        print(f"s = {length:g}: this batch {own / own_sums[0]:.2e}, another {other_sum / other_sums[0]:.2e}")


if __name__ == "__main__":
    main()
