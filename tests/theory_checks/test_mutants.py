"""Methods with a mistake: the checks find it, on instances on which the method itself holds.

They are tests of tests: what finds mistakes in our methods are the statements, on the same instances (`test_statements`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from budgets import briefly

import algorithms
import topologies
from algorithms import optimizers
from algorithms.asynchronous.delays import Delays
from dsgd import problems
from dsgd.base import Algorithm, Compressor
from dsgd.graphs.topology import Topology
from tests.theory_checks.mistakes import Method, decoding, forgotten, in_server, in_workers, ruled, scaled, stays
from theory_checks import (
    asynchronous_sgd,
    compressed_sgd,
    decentralized_sgd,
    dropcompute,
    dropcompute_convex,
    ef21,
    error_compensated_sgd,
    gradient_descent,
    minibatch_sgd,
    sgd,
)
from theory_checks.machinery.search import Tape
from theory_checks.machinery.statement import Outcome
from theory_checks.statements import kimad

TRIALS = 40


def first_failure(trial: Callable, mutant: Method, sound: Method) -> tuple[int, Outcome] | None:
    """Which random trial finds the mistake first, and its outcome; on all until then, the method without it holds."""
    broken, whole = (Tape(np.random.default_rng(0)) for _ in range(2))
    for number in range(TRIALS):
        outcomes = trial(broken, method=mutant)
        for outcome in trial(whole, method=sound):
            assert outcome.holds, f"the method itself: {outcome}"
        for outcome in outcomes:
            if not outcome.holds:
                return number, outcome
    return None


def stretched(method: Method, factor: Callable[[int], float]) -> Method:
    """Whose steps are so many times as large as they should be, with all that is in them."""

    def build(*arguments):
        inner = method(*arguments)

        def update(state, gradients, round):
            after = inner.update(state, gradients, round)
            x, y = state.server.params, after.server.params
            return after._replace(server=after.server._replace(params=x + factor(round.workers) * (y - x)))

        return inner._replace(update=update)

    return build


# --- SGD and mini-batch SGD.


def with_momentum(optimizer):
    return algorithms.sgd(optax.chain(optax.trace(0.9), optimizer))


# --- Compression.


def biased(optimizer, compressor: Compressor, via: str) -> Algorithm:
    """Its messages are all a little too large."""
    return algorithms.compressed_sgd(optimizer, decoding(compressor, lambda decoded: decoded + 2.0), via)


# --- Staleness.


def staler(optimizer, rule: Delays) -> Algorithm:
    """Four times as stale as it says."""

    def staleness(key, t, parts, moved):
        return jnp.minimum(4 * rule.staleness(key, t, parts, moved), t).astype(jnp.int32)

    return algorithms.asynchronous_sgd(optimizer, Delays(4 * rule.bound, staleness, f"staler({rule.bound})"))


# --- Gossip.


def mixing(matrix: Callable[[np.ndarray], np.ndarray], step_first: bool = True) -> Method:
    """Decentralized SGD with another matrix than it says."""

    def build(optimizer, topology: Topology):
        inner = algorithms.decentralized_sgd(optimizer, topology)
        P = matrix(topology.W)

        def update(state, gradients, round):
            after = inner.update(state, gradients, round)
            stepped = optimizers.step_local(optimizer, state.workers, gradients)
            x, W = state.workers.params, jnp.asarray(P, float)
            mixed = W @ stepped.params if step_first else W @ x + (stepped.params - x)
            return after._replace(workers=stepped._replace(params=mixed))

        return inner._replace(update=update)

    return build


def deaf(W: np.ndarray) -> np.ndarray:
    """Worker 0 listens to nobody: rows sum to 1, columns do not, and the mean drifts to its minimum."""
    P = np.array(W)
    P[0] = np.eye(len(W))[0]
    return P


# --- Kimad.


def below_the_set(optimizer, choices, round_time, **options):
    """Of each layer it sends one element, whatever the set promises."""
    return algorithms.kimad_sgd(optimizer, algorithms.kimad.top_k([0.01]), round_time, **options)


# --- Where it is found.


def of(trial: Callable, via: str) -> Callable:
    return lambda draws, method: trial(draws, via, method=method)


MUTANTS = {
    "GD, a step twice as large": (gradient_descent.trial, scaled(algorithms.gradient_descent, 2.0), algorithms.gradient_descent),
    "GD, no step": (gradient_descent.trial, scaled(algorithms.gradient_descent, 0.0), algorithms.gradient_descent),
    "GD, uphill": (gradient_descent.trial, scaled(algorithms.gradient_descent, -1.0), algorithms.gradient_descent),
    "SGD, momentum": (sgd.trial_exact, with_momentum, algorithms.sgd),
    "SGD, a gradient twice as large": (sgd.trial_exact, scaled(algorithms.sgd, 2.0), algorithms.sgd),
    "mb-SGD, 1/(N - 1)": (
        minibatch_sgd.trial_exact,
        scaled(algorithms.minibatch_sgd, lambda N: N / (N - 1)),
        algorithms.minibatch_sgd,
    ),
    "mb-SGD, no 1/N": (minibatch_sgd.trial_exact, scaled(algorithms.minibatch_sgd, lambda N: N), algorithms.minibatch_sgd),
    "CSGD, server, no 1/N": (
        of(compressed_sgd.trial_exact, "server"),
        stretched(algorithms.compressed_sgd, lambda N: N),
        algorithms.compressed_sgd,
    ),
    "CSGD, ring, no 1/N, as (3.5) is printed": (
        of(compressed_sgd.trial_exact, "ring"),
        stretched(algorithms.compressed_sgd, lambda N: N),
        algorithms.compressed_sgd,
    ),
    "CSGD, server, biased": (of(compressed_sgd.trial_exact, "server"), biased, algorithms.compressed_sgd),
}


@pytest.mark.parametrize("name", briefly(MUTANTS, {"GD, no step", "mb-SGD, no 1/N"}))
def test_random_instances_find_the_mistake(name):
    found = first_failure(*MUTANTS[name])
    assert found is not None, f"none of {TRIALS} random trials finds it"


# --- Directed and built instances: where random ones do not find the mistake, or only after many programs.


def around_minimizer(N: int, d: int, *, away: float, heterogeneity: float = 0.0, noise: float = 0.0):
    """All Hessians are I; the start is near the minimiser, so that what errors leave behind is not hidden by the way there."""
    rng = np.random.default_rng(1)
    b = rng.normal(size=d) + heterogeneity * rng.normal(size=(N, d))
    return problems.quadratic(np.ones((N, d)), b, noise=noise, start=b.mean(axis=0) + away / np.sqrt(d))


def on_quadratic(check: Callable, *arguments, **options) -> Callable:
    """method -> its outcome, on a problem that is made when it is needed, in float64."""
    return lambda method: check(*(make() for make in arguments), method=method, **options)


DIRECTED = {
    "DSGD, one does not listen": (
        on_quadratic(
            lambda problem, topology, **options: decentralized_sgd.check(problem, topology, **options)[0],
            lambda: around_minimizer(5, 2, away=0.1, heterogeneity=1.0),
            lambda: topologies.ring(5),
            steps=300,
            learning_rate=0.02,
        ),
        mixing(deaf),
        algorithms.decentralized_sgd,
    ),
    "DSGD, no step": (
        on_quadratic(
            lambda problem, topology, **options: decentralized_sgd.check(problem, topology, **options)[0],
            lambda: around_minimizer(5, 2, away=3.0),
            lambda: topologies.ring(5),
            steps=300,
            learning_rate=0.2,
        ),
        scaled(algorithms.decentralized_sgd, 0.0),
        algorithms.decentralized_sgd,
    ),
}


@pytest.mark.parametrize("name", briefly(DIRECTED, {"DSGD, one does not listen"}))
def test_a_directed_instance_finds_the_mistake(name):
    check, mutant, sound = DIRECTED[name]
    whole, broken = check(sound), check(mutant)
    assert whole.holds, whole
    assert not broken.holds, broken
    assert broken.measured > 1.2 * broken.bound, "not by a hair's breadth"


BUILT = {
    **{
        f"EC-SGD, lost: {', '.join(parts)}, {name}": (
            extreme,
            in_workers(error_compensated_sgd.any_compressor, **dict.fromkeys(parts, forgotten)),
        )
        for parts, name, extreme in (
            (("worker",), "exact", error_compensated_sgd.bowls),
            (("server",), "biased Q", error_compensated_sgd.vanishing),
            (("worker", "server"), "exact", error_compensated_sgd.bowls),
        )
    },
    "ASGD, staler than it says": (partial(asynchronous_sgd.bowls, (1, 2, 4)), staler),
    "DSGD, gossip before the step": (decentralized_sgd.random_disagreement, mixing(lambda W: W, step_first=False)),
    # Workers send the compressed gradient, servers add it up as if it were the difference.
    "EF21, gradients for differences": (ef21.bowls, in_workers(algorithms.ef21, gradient=forgotten)),
    # Servers do not add what they receive to the mean of the estimates that they have.
    "EF21, estimates that stay": (ef21.bowls, in_workers(algorithms.ef21, mean=stays)),
    "DropCompute divides by what was computed": (dropcompute.bowls, ruled(correction="stochastic")),
    "DropCompute, no stopping times": (dropcompute.stopping_bowls, ruled(stop="preempt")),
    "DropCompute, no stopping times, convex": (dropcompute_convex.stopping_bowls, ruled(stop="preempt")),
    "Kimad, gradients for differences": (kimad.ratios, in_workers(algorithms.kimad_sgd, estimate=forgotten)),
    "Kimad, an estimate that stays": (kimad.ratios, in_server(algorithms.kimad_sgd, updates=stays)),
    "Kimad, a compressor outside alpha": (kimad.mantissas, below_the_set),
}


BRIEFLY = {"EF21, estimates that stay", "DropCompute, no stopping times", "Kimad, an estimate that stays"}


@pytest.mark.parametrize("name", briefly(BUILT, BRIEFLY))
def test_an_instance_built_to_be_hard_finds_the_mistake(name):
    """Where random ones do not, or only after many programs."""
    extreme, mutant = BUILT[name]
    assert all(outcome.holds for outcome in extreme())
    broken = extreme(method=mutant)
    assert any(1.2 * outcome.bound < outcome.measured < np.inf for outcome in broken), broken


def test_mixing_by_hand_is_the_method_where_the_matrix_is_right():
    """So that it is the matrix that is found."""
    problem = problems.random_quadratic(5, 2, heterogeneity=1.0, noise=1.0)
    sound, same = (
        decentralized_sgd.check(problem, topologies.ring(5), steps=50, learning_rate=0.05, method=method)
        for method in (algorithms.decentralized_sgd, mixing(lambda W: W))
    )
    for one, other in zip(sound, same, strict=True):
        assert one.measured == pytest.approx(other.measured, rel=1e-9)
        assert one.holds
