"""Theorems of methods on graphs: their ingredients beside plain sums, and methods with a mistake, each found by a row of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest

import algorithms
import topologies
from dsgd import problems
from dsgd.base import Algorithm
from theory_checks import bounds, decentralized_sgd, local_sgd
from theory_checks.machinery.statement import Outcome

Method = Callable[..., Algorithm]


# --- The memory of products of mixing matrices.


@pytest.mark.parametrize("topology", [topologies.ring(5), topologies.star(4), topologies.complete(3)], ids=repr)
def test_the_memory_of_one_symmetric_matrix_is_in_closed_form(topology):
    memory, rho = local_sgd.memory(topology), topology.rho
    eigenvalues = np.linalg.eigvalsh(topology.W)[:-1]
    assert memory.drift == pytest.approx(np.array([[rho / (1 - rho)]]), rel=1e-9, abs=1e-12)
    assert memory.noise[0] ** 2 == pytest.approx(np.sum(eigenvalues**2 / (1 - eigenvalues**2)) / topology.n, rel=1e-7, abs=1e-12)
    assert memory.radius == memory.steady == pytest.approx(rho / (1 - rho), abs=1e-12)


def test_the_memory_of_local_steps_lasts_until_the_mean():
    memory = local_sgd.memory(topologies.complete(4), 3)
    assert memory.drift == pytest.approx(np.tril(np.ones((3, 3)), -1), abs=1e-12)
    assert memory.noise == pytest.approx(np.sqrt(np.arange(3) * 3 / 4), abs=1e-12)
    assert memory.radius == 0
    assert memory.steady == pytest.approx(2)


@pytest.mark.parametrize(("period", "topology"), [(1, topology) for topology in local_sgd.schedules()] + list(local_sgd.local()), ids=repr)
def test_the_memory_is_at_least_the_sum_and_hardly_more(period, topology):
    memory = local_sgd.memory(topology, period)
    matrices = [W for last in topology.matrices for W in [*[np.eye(topology.n)] * (period - 1), last.toarray()]]
    P, N = len(matrices), topology.n
    drift, squares = np.zeros((P, P)), np.zeros(P)
    for end in range(P):
        product = np.eye(N) - 1 / N
        for lag in range(1, 60 * P):
            product = product @ matrices[(end - lag) % P]
            drift[end, (end - lag) % P] += np.linalg.norm(product, 2)
            squares[end] += np.sum(product**2) / N
    for found, plain in ((memory.drift, drift), (memory.noise, np.sqrt(squares))):
        assert (found >= plain - 1e-9).all()
        assert (found <= plain * (1 + 1e-3) + 1e-9).all()


def test_a_matrix_without_rows_that_sum_to_1_has_no_memory():
    directed = topologies.from_matrix([[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    assert local_sgd.memory(directed).steady > 0
    pushed = topologies.from_matrix([[0.5, 0.5, 0.5], [0.25, 0.5, 0.0], [0.25, 0.0, 0.5]])
    with pytest.raises(ValueError, match="need a doubly stochastic W in all rounds"):
        local_sgd.memory(pushed)


# --- Bounds, step sizes, rates of local SGD.


def constants(rng: np.random.Generator) -> dict:
    kinds = {name: float(rng.choice([0.0, 10 ** rng.uniform(-2, 2)])) for name in ("noise", "heterogeneity")}
    period, topology = local_sgd.local()[rng.integers(2)]
    memory = local_sgd.memory(topology, period)
    return {**kinds, "gap": 10 ** rng.uniform(-2, 2), "smoothness": 10 ** rng.uniform(-2, 2), "workers": topology.n, "memory": memory}


def test_local_sgd_at_its_step_size_has_its_rate():
    rng, closest = np.random.default_rng(1), 0.0
    for _ in range(500):
        of, T = constants(rng), int(10 ** rng.uniform(0, 6))
        gamma = local_sgd.step_size(**of, steps=T)
        assert 0 < gamma * of["smoothness"] * (1 + 2 * of["memory"].steady) <= 1 + 1e-12
        ratio = bounds.local_sgd(**of, steps=T, learning_rate=gamma) / local_sgd.rate(**of)(T)
        assert ratio <= 1 + 1e-12
        closest = max(closest, ratio)
    assert closest > 0.9


def test_the_consensus_of_local_sgd_is_a_sum_over_the_rounds_that_were():
    memory = local_sgd.memory(topologies.complete(4), 3)
    of = {"smoothness": 2.0, "noise": 0.0, "heterogeneity": 3.0, "learning_rate": 0.1, "memory": memory}
    apart = [(3 / 2 * (1.2**k - 1)) ** 2 for k in range(3)]
    for T in (1, 2, 3, 4, 8, 300):
        assert local_sgd.consensus(**of, steps=T) == pytest.approx(np.mean([apart[t % 3] for t in range(T)]), rel=1e-12)
    noisy = {**of, "noise": 1.5, "heterogeneity": 0.0, "smoothness": 1e-9}
    assert local_sgd.consensus(**noisy, steps=2) == pytest.approx((0.1 * 1.5) ** 2 * 3 / 4 / 2, rel=1e-6)


def test_one_symmetric_matrix_has_the_bound_of_decentralized_sgd_without_noise():
    ring = topologies.ring(5)
    of = {"gap": 1.0, "smoothness": 2.0, "noise": 0.0, "heterogeneity": 3.0, "workers": 5, "steps": 40, "learning_rate": 0.1}
    found = bounds.local_sgd(**of, memory=local_sgd.memory(ring))
    assert found == pytest.approx(bounds.decentralized_sgd(**of, rho=ring.rho), rel=1e-9)


def test_local_sgd_is_refused_where_disagreement_may_grow():
    problem = problems.random_quadratic(5, 2, smoothness=2.0, noise=1.0)
    radius = local_sgd.memory(topologies.ring(5)).radius
    with pytest.raises(ValueError, match=r"local_sgd: gamma L = .*: need gamma L times the spectral radius of M < 1$"):
        local_sgd.check(problem, topologies.ring(5), steps=3, learning_rate=1.001 / 2 / radius)
    with pytest.raises(ValueError, match="need as many workers as the problem has"):
        local_sgd.check(problem, topologies.ring(4), steps=3)
    with pytest.raises(ValueError, match="need 0 < gamma <= 1 / L"):
        local_sgd.check(problem, topologies.complete(5), 2, steps=3, learning_rate=0.51)
    with pytest.raises(ValueError, match="need an integer, at least 1"):
        local_sgd.memory(topologies.ring(5), 0)


# --- Methods with a mistake.


def scaled(method: Method, factor: float) -> Method:
    """Whose gradients are so many times as large."""

    def build(*arguments):
        inner = method(*arguments)

        def update(key, state, gradients, round):
            return inner.update(key, state, jax.tree.map(lambda leaf: factor * leaf, gradients), round)

        return inner._replace(update=update)

    return build


def on_other_graph(method: Method, other: Callable) -> Method:
    """Which takes another topology than it is given."""
    return lambda optimizer, *rest: method(optimizer, *rest[:-1], other(rest[-1]))


def transposed(topology):
    return topologies.from_matrix([W.T for W in topology.matrices], "transposed")


def slow(topology):
    return topologies.from_matrix([0.003 * np.eye(topology.n) + 0.997 * W.toarray() for W in topology.matrices], "slow")


def stuck(topology):
    """The first matrix of a schedule for ever, beside as much of the mean as makes it converge."""
    return topologies.from_matrix(0.99 * topology.matrices[0].toarray() + 0.01 / topology.n, "stuck")


def longer(optimizer, period, topology):
    return algorithms.local_sgd(optimizer, period + 1, topology)


def more_often(optimizer, period, topology):
    return algorithms.local_sgd(optimizer, 1, topology)


DSGD, LOCAL = algorithms.decentralized_sgd, algorithms.local_sgd
MUTANTS = {
    "DSGD, a gradient 0.3 times as large": (decentralized_sgd.away_from_the_minimum, scaled(DSGD, 0.3), DSGD),
    "DSGD, a gradient 1.02 times as large": (decentralized_sgd.noise_of_the_mean, scaled(DSGD, 1.02), DSGD),
    "DSGD, a gradient 1.01 times as large, lasting": (decentralized_sgd.lasting_disagreement, scaled(DSGD, 1.01), DSGD),
    "DSGD, a gradient 1.01 times as large, random": (decentralized_sgd.random_disagreement, scaled(DSGD, 1.01), DSGD),
    "DSGD, a larger rho": (decentralized_sgd.lasting_disagreement, on_other_graph(DSGD, slow), DSGD),
    "DSGD, a larger rho, the gradient": (decentralized_sgd.balanced_pulls, on_other_graph(DSGD, slow), DSGD),
    "schedules, transposed": (local_sgd.schedules_exactly, on_other_graph(DSGD, transposed), DSGD),
    "schedules, stuck": (local_sgd.schedules_exactly, on_other_graph(DSGD, stuck), DSGD),
    "schedules, stuck, noise": (local_sgd.noise_over_rounds, on_other_graph(DSGD, stuck), DSGD),
    "schedules, a larger rho": (local_sgd.balanced_pulls, on_other_graph(DSGD, slow), DSGD),
    "schedules, a gradient 0.3 times as large": (local_sgd.away_from_the_minimum, scaled(DSGD, 0.3), DSGD),
    "local SGD, one step more": (local_sgd.diverging_workers, longer, LOCAL),
    "local SGD, one step more, noise": (local_sgd.noise_between_averagings, longer, LOCAL),
    "local SGD, no local steps": (local_sgd.local_exactly, more_often, LOCAL),
    "local SGD, a gradient 0.3 times as large": (local_sgd.without_detours, scaled(LOCAL, 0.3), LOCAL),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_built_instance_finds_the_mistake(name):
    extreme, mutant, sound = MUTANTS[name]
    assert all(outcome.holds for outcome in extreme(method=sound)), "the method itself"
    assert any(broken(outcome) for outcome in extreme(method=mutant))


def broken(outcome: Outcome) -> bool:
    """That it does not hold, by numbers: not because nothing could be measured."""
    return not outcome.holds and not math.isnan(outcome.measured)


@pytest.mark.parametrize(
    "extreme",
    [
        decentralized_sgd.balanced_pulls,
        decentralized_sgd.lasting_disagreement,
        decentralized_sgd.random_disagreement,
        local_sgd.balanced_pulls,
        local_sgd.noise_over_rounds,
        local_sgd.diverging_workers,
        local_sgd.noise_between_averagings,
    ],
)
def test_bounds_are_reached(extreme):
    assert all(0.95 < outcome.ratio <= 1 + 1e-9 for outcome in extreme())
