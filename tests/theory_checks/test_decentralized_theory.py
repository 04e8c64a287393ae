"""Theorems of methods on graphs: their ingredients beside plain sums, and methods with a mistake, each found by a row of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import briefly

import algorithms
import topologies
from dsgd import problems
from tests.theory_checks.mistakes import Edit, Method, forgotten, in_workers, scaled
from theory_checks import bounds, decentralized_sgd, local_sgd
from theory_checks.machinery import moments, paths
from theory_checks.machinery.registry import STATEMENTS
from theory_checks.machinery.search import Tape
from theory_checks.machinery.statement import Outcome
from theory_checks.statements import compressed_gossip, corrected_gossip, gradient_tracking, push_sum, scaffold

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
    with pytest.raises(ValueError, match=r"local_sgd: gamma = .*: need gamma L M with a spectral radius below 1$"):
        local_sgd.check(problem, topologies.ring(5), steps=3, learning_rate=1.001 / 2 / radius)
    with pytest.raises(ValueError, match="need as many workers as the problem has"):
        local_sgd.check(problem, topologies.ring(4), steps=3)
    with pytest.raises(ValueError, match="need 0 < gamma <= 1 / L"):
        local_sgd.check(problem, topologies.complete(5), 2, steps=3, learning_rate=0.51)
    with pytest.raises(ValueError, match="need an integer, at least 1"):
        local_sgd.memory(topologies.ring(5), 0)


# --- Linear rates: their numbers.


def test_the_largest_step_of_gradient_tracking_is_where_the_spectral_radius_is_1():
    for topology in gradient_tracking.graphs():
        of = {"smoothness": 2.0, "strong_convexity": 0.3, "topology": topology}
        largest = gradient_tracking.largest_step(**of)
        radii = [
            np.abs(np.linalg.eigvals(gradient_tracking.contraction(**of, learning_rate=share * largest))).max()
            for share in (0.5, 0.999, 1.0, 1.001)
        ]
        assert radii[0] < radii[1] < 1 < radii[3]
        assert radii[2] == pytest.approx(1, abs=1e-9)


def test_compressed_gossip_converges_at_larger_steps_than_its_paper_has():
    """Below the step that the module's docstring derives."""
    for topology in compressed_gossip.graphs():
        delta, beta, omega = 1 - topology.rho, 1 - topology.smallest_eigenvalue, 1 / 4
        s = math.sqrt(1 - omega)
        largest = delta * (1 - s) / (s * beta * (delta + beta))
        assert 0 < compressed_gossip.recommended_consensus_step(delta=delta, beta=beta, omega=omega) < largest < 1
        below, above = (np.abs(np.linalg.eigvals(compressed_gossip.choco_matrix(topology, eta, 4))).max() for eta in (largest, 2 * largest))
        assert below <= 1 + 1e-9
        assert above > 1


def test_the_rate_of_exact_diffusion_is_that_of_its_slowest_part():
    problem = problems.random_quadratic(4, 2, smoothness=2.0, strong_convexity=0.5, equal_hessians=True)
    dense, sparse = topologies.complete(4), topologies.ring(4)
    assert corrected_gossip.linear_rate(problem, dense, 0.1, 0.5) == pytest.approx(0.95**2)
    assert corrected_gossip.linear_rate(problem, dense, 0.9, 0.5) == pytest.approx(0.8**2)
    assert corrected_gossip.linear_rate(problem, sparse, 0.5, 0.5) == pytest.approx(1 - (1 - 1 / 3) / 2)


def test_a_dobrushin_coefficient_is_0_where_rows_are_equal_and_1_where_they_have_nothing_in_common():
    assert push_sum.dobrushin(np.full((3, 3), 1 / 3)) == 0
    assert push_sum.dobrushin(np.eye(3)) == 1
    assert push_sum.dobrushin(np.array([[0.9, 0.1], [0.3, 0.7]])) == pytest.approx(0.6)


def test_hypotheses_of_linear_rates_are_named():
    problem, chain = problems.random_quadratic(3, 2, smoothness=2.0, strong_convexity=0.5), topologies.chain(3)
    with pytest.raises(ValueError, match=r"gradient_tracking: .*need 0 < gamma <= 1 / L"):
        gradient_tracking.check(problem, chain, learning_rate=0.51)
    with pytest.raises(ValueError, match="need one doubly stochastic W"):
        gradient_tracking.check(problems.random_quadratic(4, 2), push_sum.graphs()[0], learning_rate=0.1)
    with pytest.raises(ValueError, match="need 0 < gamma < 2 / L"):
        corrected_gossip.check_linear(problem, chain, learning_rate=1.0, share=0.5, method=algorithms.exact_diffusion)
    with pytest.raises(ValueError, match="need P <= I"):
        corrected_gossip.check_linear(problem, topologies.ring(3), learning_rate=0.1, share=2.0, method=algorithms.d2)
    with pytest.raises(ValueError, match=r"need 0 < gamma < 2 lambda_min\(W~\) / L"):
        corrected_gossip.check_extra(problem, chain, learning_rate=1.0)
    indefinite = problems.quadratic(np.array([[-0.1], [1.0], [1.0]]), np.zeros((3, 1)), start=[1.0])
    with pytest.raises(ValueError, match=r"has the curvature -0\.1: need convex f_n"):
        corrected_gossip.check_extra(indefinite, chain, learning_rate=0.1)


# --- Paths.


def test_a_path_is_that_of_the_method():
    """Decentralized SGD by hand, from models that differ; the noise is left out."""
    topology, gamma = topologies.chain(3), 0.2
    problem, X = problems.random_quadratic(3, 2, noise=5.0, seed=1), np.random.default_rng(0).normal(size=(3, 2))
    path = paths.follow(moments.with_step(algorithms.decentralized_sgd, topology), problem, gamma, steps=5, models=X)
    assert path.workers.params.shape == (6, 3, 2)
    assert path.step.tolist() == list(range(6))
    for found in path.workers.params:
        assert found == pytest.approx(X, abs=1e-14)
        X = topology.W @ (X - gamma * paths.gradients(problem, X))


def test_gradients_by_hand_are_those_of_the_problem():
    for diagonal in (True, False):
        problem = problems.random_quadratic(3, 2, diagonal=diagonal, seed=1)
        X = np.random.default_rng(0).normal(size=(5, 3, 2))
        expected = jax.vmap(jax.vmap(jax.grad(problem.loss)), (0, None))(jnp.asarray(X), problem.data)
        assert paths.gradients(problem, X) == pytest.approx(np.asarray(expected), rel=1e-12)


def test_the_worst_of_arrays_is_found_with_its_place():
    (outcome,) = paths.worst(np.array([[1.0, 3.0], [1.0, 2.0]]), np.array([[2.0, 4.0], [1.0, 9.0]]), case="here")
    assert (outcome.ratio, outcome.case, outcome.holds) == (1.0, "here, at (1, 0)", True)
    (outcome,) = paths.worst(np.array([1.0, 1.0]), np.array([0.5, 0.9]), case="", scale=np.array([1.0, 1e9]))
    assert (outcome.measured, outcome.bound, outcome.holds) == (1.0, 0.5, False)


# --- Methods with a mistake.


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


def without_gossip(optimizer, topology):
    return algorithms.local_sgd(optimizer, 10**6, topology)


def kept(share: float) -> Edit:
    """Only a share is."""
    return lambda before, after: jax.tree.map(lambda leaf: share * leaf, after)


def eager(method: Method) -> Method:
    """Whose consensus step is a tenth too large."""
    return lambda optimizer, topology, compressor, eta: method(optimizer, topology, compressor, 1.1 * eta)


DSGD, LOCAL = algorithms.decentralized_sgd, algorithms.local_sgd
MUTANTS = {
    "DSGD, a gradient 0.3 times as large": (decentralized_sgd.away_from_the_minimum, scaled(DSGD, 0.3), DSGD),
    "DSGD, a gradient 1.02 times as large": (decentralized_sgd.noise_of_the_mean, scaled(DSGD, 1.02), DSGD),
    "DSGD, a gradient 1.01 times as large, lasting": (decentralized_sgd.lasting_disagreement, scaled(DSGD, 1.01), DSGD),
    "DSGD, a gradient 1.01 times as large, random": (decentralized_sgd.random_disagreement, scaled(DSGD, 1.01), DSGD),
    "DSGD, a larger rho": (decentralized_sgd.lasting_disagreement, on_other_graph(DSGD, slow), DSGD),
    "DSGD, a larger rho, the gradient": (decentralized_sgd.balanced_pulls, on_other_graph(DSGD, slow), DSGD),
    "DSGD, not convex, a gradient 0.3 times as large": (decentralized_sgd.in_a_well, scaled(DSGD, 0.3), DSGD),
    "DSGD, not convex, a gradient 3 times as large": (decentralized_sgd.in_a_well, scaled(DSGD, 3.0), DSGD),
    "DSGD, not convex, no gossip": (decentralized_sgd.on_a_hill, without_gossip, DSGD),
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

GT, EXTRA, ED, D2 = algorithms.gradient_tracking, algorithms.extra, algorithms.exact_diffusion, algorithms.d2
CHOCO, SQUEEZE, PUSH, SCAFFOLD = algorithms.choco_sgd, algorithms.deepsqueeze, algorithms.stochastic_gradient_push, algorithms.scaffold
MUTANTS |= {
    "gradient tracking, uphill": (gradient_tracking.alternating, scaled(GT, -1.0), GT),
    "gradient tracking, the last gradient is forgotten": (gradient_tracking.alternating, in_workers(GT, gradient=forgotten), GT),
    "gradient tracking, transposed": (gradient_tracking.as_printed, on_other_graph(GT, transposed), GT),
    "gradient tracking, a gradient 0.99 times as large": (gradient_tracking.as_printed, scaled(GT, 0.99), GT),
    "CHOCO-gossip, no estimates of others": (compressed_gossip.equal_parameters, in_workers(CHOCO, laplacian=forgotten), CHOCO),
    "CHOCO-gossip, own estimate too small": (compressed_gossip.choco_as_printed, in_workers(CHOCO, x_hat=kept(0.9)), CHOCO),
    "CHOCO-gossip, another consensus step": (compressed_gossip.choco_as_printed, eager(CHOCO), CHOCO),
    "DeepSqueeze, errors are lost": (compressed_gossip.deepsqueeze_as_printed, in_workers(SQUEEZE, error=forgotten), SQUEEZE),
    "DeepSqueeze, another consensus step": (compressed_gossip.deepsqueeze_as_printed, eager(SQUEEZE), SQUEEZE),
    "push-sum, weight is lost": (push_sum.sums_are_kept, in_workers(PUSH, weight=kept(0.9)), PUSH),
    "push-sum, another graph": (push_sum.two_values, on_other_graph(PUSH, slow), PUSH),
    "push-sum, a gradient 0.99 times as large": (push_sum.as_printed, scaled(PUSH, 0.99), PUSH),
    "SCAFFOLD, no control": (scaffold.optimum, in_workers(SCAFFOLD, control=forgotten), SCAFFOLD),
    "SCAFFOLD, control too small": (scaffold.optimum, in_workers(SCAFFOLD, control=kept(0.9)), SCAFFOLD),
}
for name, sound, others, share in (("exact diffusion", ED, EXTRA, 0.5), ("D2", D2, ED, 1.0)):
    MUTANTS |= {
        f"{name}, no correction": (partial(corrected_gossip.slow_duals, share), in_workers(sound, correction=forgotten), sound),
        f"{name}, no correction, equation": (partial(corrected_gossip.energy, share), in_workers(sound, correction=forgotten), sound),
        f"{name}, no correction, optimum": (corrected_gossip.optimum, in_workers(sound, correction=forgotten), sound),
        f"{name}, a gradient 0.9 times as large": (partial(corrected_gossip.mean_alone, share), scaled(sound, 0.9), sound),
        f"{name}, another method": (partial(corrected_gossip.along_eigenvectors, sound.__name__), others, sound),
    }
MUTANTS |= {
    "EXTRA, uphill": (corrected_gossip.to_and_fro, scaled(EXTRA, -1.0), EXTRA),
    "EXTRA, a gradient 3 times as large": (corrected_gossip.to_and_fro, scaled(EXTRA, 3.0), EXTRA),
    "EXTRA, no correction": (corrected_gossip.identity_of_extra, in_workers(EXTRA, correction=forgotten), EXTRA),
    "EXTRA, another method": (partial(corrected_gossip.along_eigenvectors, "extra"), ED, EXTRA),
}


# Of what takes long, some of each kind: the statements themselves, which find mistakes in methods, all run (`test_statements`).
BRIEFLY = {name for name in MUTANTS if not name.startswith(("DSGD", "schedules", "local SGD"))} | {
    "DSGD, a gradient 1.02 times as large",
    "DSGD, not convex, a gradient 3 times as large",
    "schedules, stuck, noise",
    "local SGD, one step more, noise",
}


@pytest.mark.filterwarnings("ignore:.*nothing is sent")  # of the method without gossip
@pytest.mark.parametrize("name", briefly(MUTANTS, BRIEFLY))
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
        local_sgd.noise_over_rounds,
        local_sgd.diverging_workers,
        local_sgd.noise_between_averagings,
        decentralized_sgd.in_a_well,
        decentralized_sgd.on_a_hill,
        gradient_tracking.alternating,
        partial(corrected_gossip.mean_alone, 0.5, algorithms.exact_diffusion),
        partial(corrected_gossip.slow_duals, 0.5, algorithms.exact_diffusion),
        partial(corrected_gossip.slow_duals, 1.0, algorithms.d2),
        corrected_gossip.to_and_fro,
        compressed_gossip.equal_parameters,
        compressed_gossip.equal_parameters_squeezed,
    ],
)
def test_bounds_are_reached(extreme):
    assert all(outcome.holds and outcome.ratio > 0.95 for outcome in extreme())


DRAWN = {
    "gradient tracking, linear": in_workers(GT, gradient=forgotten),
    "exact diffusion, linear": in_workers(ED, correction=forgotten),
    "D2, linear": in_workers(D2, correction=forgotten),
    "EXTRA, monotone": scaled(EXTRA, 3.0),
    "CHOCO-gossip, round by round": in_workers(CHOCO, laplacian=forgotten),
    "CHOCO-gossip, linear": in_workers(CHOCO, x_hat=kept(0.9)),
    "push-sum, spread": in_workers(PUSH, weight=kept(0.9)),
    "SCAFFOLD, closed form": in_workers(SCAFFOLD, control=kept(0.9)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_random_instances_find_the_mistake(name):
    trials: dict[str, Callable] = {statement.name: statement.trial for statement in STATEMENTS}
    mutant, rng = partial(trials[name], method=DRAWN[name]), np.random.default_rng(0)
    assert any(broken(outcome) for _ in range(10) for outcome in mutant(Tape(rng)))
