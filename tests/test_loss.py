"""The loss engine against a plain sum over tasks and points, and its memory."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import clpinn as cl
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
from clpinn.training import pool_loss
from clpinn.training.pool_loss import Collocation, PoolLoss, Tasks


class Measured(cl.Problem):
    """Several equations, conditions with weights, and data."""

    coordinates = cl.Box(x=(0, 1), t=(0, 1))
    parameters = cl.Box(nu=(0.1, 1), c=(1, 2))
    outputs = ("u", "v")
    interior = cl.Interior(60, anchors=np.array([[0.5, 0.5]]))
    conditions = (
        cl.Condition("ends", lambda d, t: {"left": d.u - t, "right": d.v_x}, on=cl.boundary("x"), points=7, weight=3.0),
        cl.Data("sensors", {"x": [0.1, 0.2], "t": [0, 1], "nu": [0.5, 0.6], "c": [1, 2]}, {"v": [1, 2]}, weight=0.5),
    )

    def residual(self, d, nu, c):
        return {"a": d.u_t - nu * d.u_xx, "b": d.v_t + c * d.v_x}


def setup(dtype=jnp.float64, **options):
    problem = Measured()
    network = make(problem, Architecture("fnn", 5, 2), jax.random.key(0), dtype)
    dense = Collocation.sample(problem, jax.random.key(1))
    sparse = Collocation.sample(problem, jax.random.key(1), 0.1)
    return problem, network, dense, sparse, PoolLoss(problem, dense, sparse, dtype, **options)


ACTIVE = np.array([[0.1, 1.0], [1.0, 2.0], [0.4, 1.5]])
REPLAY = np.array([[0.7, 1.2], [0.3, 1.1]])
WEIGHTS = np.array([0.5, 1.5, 2.0]), np.array([0.75, 0.25])


def plain(problem, network, dense, sparse, active, weights_active, replay, weights_replay):
    """The objective as PROTOCOL states it, with loops."""
    condition, data = problem.conditions

    def task(theta, points):
        theta = jnp.asarray(theta)
        inside = jax.vmap(lambda x: cl.residuals(problem, network, x, theta))(points["interior"])
        ends = jax.vmap(lambda x: cl.condition_residuals(problem, condition, network, x, theta))(points["ends"])
        mean = sum(jnp.mean(v**2) for v in inside.values())
        return mean + condition.weight * sum(jnp.mean(v**2) for v in ends.values())

    total = sum(w * task(theta, dense.points) for theta, w in zip(active, weights_active))
    total += sum(w * task(theta, sparse.points) for theta, w in zip(replay, weights_replay))
    misfit = [
        cl.values(problem, network, jnp.array([x, t]), jnp.array([nu, c]))["v"] - v
        for x, t, nu, c, v in zip(*data.at.values(), data.values["v"])
    ]
    return total + data.weight * jnp.mean(jnp.array(misfit) ** 2)


@pytest.mark.parametrize("chunk", [1000, 16])
def test_objective_and_gradient(chunk):
    with jax.enable_x64(True):
        problem, network, dense, sparse, loss = setup(chunk=chunk)
        assert {name: len(p) for name, p in dense.points.items()} == {"interior": 61, "ends": 7}
        assert len(sparse.points["interior"]) == 7
        active = Tasks.padded(ACTIVE, WEIGHTS[0], 4, jnp.float64)
        replay = Tasks.padded(REPLAY, WEIGHTS[1], 5, jnp.float64)
        value, gradient, named = loss.objective(network, active, replay, jax.random.key(0))
        expected, slope = jax.value_and_grad(
            lambda n: plain(problem, n, dense, sparse, ACTIVE, WEIGHTS[0], REPLAY, WEIGHTS[1])
        )(network)
        assert np.isclose(value, expected, rtol=1e-12)
        assert set(named) == {"a", "b", "left", "right", "sensors_v"}
        assert np.isclose(sum(named.values()), value)
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(slope), strict=True):
            assert np.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_task_losses_are_unweighted_and_dense():
    with jax.enable_x64(True):
        problem, network, _, _, loss = setup(chunk=32)
        thetas = problem.parameters.sample(70, jax.random.key(4))
        found = loss.task_losses(network, thetas)
        none = Tasks.padded(np.zeros((0, 2)), np.zeros(0), 1, jnp.float64)
        data = loss.objective(network, none, none, jax.random.key(0))[0]
        for i in (0, 3, 69):
            one = Tasks.padded(thetas[i : i + 1], np.ones(1), 1, jnp.float64)
            assert np.isclose(found[i], loss.objective(network, one, none, jax.random.key(0))[0] - data, rtol=1e-10)
        assert loss.task_losses(network, thetas[:0]).shape == (0,)


def test_a_growing_pool_compiles_nothing_anew():
    _, network, _, _, loss = setup(jnp.float32)
    before = loss._sums.objective._cache_size(), loss._sums.task_losses._cache_size()
    for count in (1, 2, 3):
        active = Tasks.padded(ACTIVE[:count], np.ones(count), 4, jnp.float32)
        replay = Tasks.padded(REPLAY[: count - 1], np.ones(count - 1), 5, jnp.float32)
        loss.objective(network, active, replay, jax.random.key(0))
        loss.task_losses(network, ACTIVE[:count])
    assert loss._sums.objective._cache_size() == before[0] + 1 and loss._sums.task_losses._cache_size() == before[1] + 1


@pytest.mark.parametrize("part", [{"batch": 0.25}, {"batch_rows": 61}], ids=str)
def test_batches_are_unbiased_and_follow_the_key(part):
    with jax.enable_x64(True):
        *_, whole = setup(chunk=8)
        _, network, _, _, loss = setup(chunk=8, **part)
        active = Tasks.padded(ACTIVE, WEIGHTS[0], 3, jnp.float64)
        replay = Tasks.padded(REPLAY, WEIGHTS[1], 2, jnp.float64)
        found = [float(loss.objective(network, active, replay, jax.random.key(i))[0]) for i in range(400)]
        exact = float(whole.objective(network, active, replay, jax.random.key(0))[0])
        error = np.std(found) / np.sqrt(len(found))
        assert abs(np.mean(found) - exact) < 4 * error and error < 0.02 * exact
        assert found[0] == float(loss.objective(network, active, replay, jax.random.key(0))[0]) != found[1]


@pytest.mark.parametrize(
    ("batch_rows", "by_term"), [(1, (1, 1, 1)), (39, (33, 6, 1)), (117, (98, 18, 1)), (234, (197, 35, 2))]
)
def test_a_batch_by_rows_has_exactly_that_many(batch_rows, by_term, monkeypatch):
    """Of 61 × 3 + 7 × 2 rows inside, 7 × 5 at the ends and 2 measured ones. Rows of a padded chunk have no weight."""
    gathered = []

    def counting(points, active, replay, row):
        rows = gather(points, active, replay, row)
        jax.debug.callback(lambda count: gathered.append((points.dense, int(count))), (rows.weight > 0).sum())
        return rows

    gather = pool_loss._gather
    monkeypatch.setattr(pool_loss, "_gather", counting)
    pool_loss._compiled.cache_clear()
    with jax.enable_x64(True):
        _, network, _, _, loss = setup(chunk=8, batch_rows=batch_rows)
        active = Tasks.padded(ACTIVE, WEIGHTS[0], 4, jnp.float64)
        replay = Tasks.padded(REPLAY, WEIGHTS[1], 3, jnp.float64)
        found = float(loss.objective(network, active, replay, jax.random.key(0))[0])
        jax.effects_barrier()
        counts = [sum(count for dense, count in gathered if dense == points) for points in (61, 7, 2)]
        monkeypatch.undo()
        pool_loss._compiled.cache_clear()
        exact = float(setup(chunk=8)[-1].objective(network, active, replay, jax.random.key(0))[0])
    assert tuple(counts) == by_term and abs(sum(by_term) - batch_rows) <= 2
    assert (found == pytest.approx(exact, rel=1e-12)) == (batch_rows == 234)  # all rows are taken once


DEVICES = """
import jax, sys
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
import test_loss
import jax.numpy as jnp, numpy as np
_, network, _, _, loss = test_loss.setup(jnp.float32, chunk=16)
active = test_loss.Tasks.padded(test_loss.ACTIVE, np.ones(3), 3, jnp.float32)
replay = test_loss.Tasks.padded(test_loss.REPLAY, np.ones(2), 2, jnp.float32)
value, gradient, _ = loss.objective(network, active, replay, jax.random.key(0))
print(len(jax.devices()), float(value), float(sum(jnp.sum(g) for g in jax.tree.leaves(gradient))))
"""


def test_devices_share_the_rows():
    found = []
    for devices in ("1", "3"):
        command = [sys.executable, "-c", DEVICES, devices]
        done = subprocess.run(command, capture_output=True, text=True, cwd="tests", check=True)
        found.append([float(word) for word in done.stdout.split()])
    assert (found[0][0], found[1][0]) == (1, 3)
    assert np.allclose(found[0][1:], found[1][1:], rtol=1e-5)


MEMORY = """
import resource
import jax, jax.numpy as jnp, numpy as np
import clpinn as cl
from clpinn.training.pool_loss import Collocation, PoolLoss, Tasks
from clpinn.networks.fnn import FNN
from clpinn.training.pool_loss import Collocation, PoolLoss, Tasks
from clpinn.networks.architecture import Architecture
from clpinn.networks.make import make
problem = cl.problems.PoissonBoltzmann()
network = make(problem, Architecture("fnn", 30, 5), jax.random.key(0))
dense, sparse = (Collocation.sample(problem, jax.random.key(1), f) for f in (1.0, 0.1))
assert (len(dense.points["interior"]), len(sparse.points["interior"])) == (5041, 529)
loss = PoolLoss(problem, dense, sparse, jnp.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
thetas = problem.parameters.sample(160, jax.random.key(2))
active, replay = (Tasks.padded(t, np.ones(80), 80, jnp.float32) for t in (thetas[:80], thetas[80:]))
value = loss.objective(network, active, replay, jax.random.key(0))[0]
assert np.isfinite(float(value))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_of_the_largest_pool():
    """80 × 5041 dense and 80 × 529 sparse rows of Poisson-Boltzmann: far below 1 GB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 500
