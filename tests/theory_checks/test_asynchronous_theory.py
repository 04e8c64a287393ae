"""Methods on the clock against the theorems: distances of Birch SGD, and seconds."""

from __future__ import annotations

import math

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import clusters
from theory_checks import birch_sgd, bounds, minibatch_sgd
from theory_checks.machinery import instances, moments
from theory_checks.statements.asynchronous_sgd import OLDEST, with_table
from theory_checks.statements.birch_sgd import METHODS, PROFILES, history

SIZES = {"ringmaster": 4, "rennala": 6}
EPSILON = 0.75


def constants(ratio: float) -> dict[str, float]:
    """Returns constants with L D / epsilon = 4 and this sigma^2 / epsilon."""
    noise = math.sqrt(ratio * EPSILON)
    return {"gap": 1.5, "smoothness": 2.0, "noise": noise, "epsilon": EPSILON}


def run(method, times, steps, problem=None, **options):
    of = instances.unit_bowl(len(times), [1.0]) if problem is None else problem
    cluster = clusters.Cluster(clusters.constant(times))
    return dsgd.run(
        method, of, steps=steps, key=jax.random.key(0), cluster=cluster, mesh=1, **options
    ).history


def steps_at(of) -> np.ndarray:
    """Returns the seconds after each of the server's steps, from 0 steps on."""
    steps = of["server_steps"][1:].astype(int)
    return np.concatenate([[0], of["clock"][1:][np.searchsorted(steps, range(1, steps.max() + 1))]])


# --- Birch SGD.


@pytest.mark.parametrize("method", METHODS)
def test_measured_distances_are_those_of_the_paper(method):
    found = birch_sgd.distances(history(method, "one slow"))
    assert found.max() == METHODS[method][1] == SIZES[method] - 1
    if method == "rennala":
        assert list(found[:13]) == [*range(6), *range(6), 0]


def test_the_theorem_is_checked_for_the_iterates_of_the_method():
    """Without noise, the mean squares from the distances are those of Rennala's and Ringmaster's
    runs, at the models that they have in common.
    """
    with jax.enable_x64(True):
        problem, gamma = instances.bowl(6, 2, distance=1.3, smoothness=2.0), 0.07
        for method, share in (("ringmaster", 1), ("rennala", SIZES["rennala"])):
            of = run(
                METHODS[method][0](optax.sgd(share * gamma)), PROFILES["one slow"], 120, problem
            )
            table = np.resize(birch_sgd.distances(of), 64).astype(np.int32)
            found = moments.second_moments(
                with_table(OLDEST),
                problem,
                gamma,
                steps=50,
                one_worker=True,
                varying=True,
                more=table,
            )["slope"][: 50 // share * share : share]
            first = np.searchsorted(of["server_steps"][1:], range(1, len(found))) + 1
            models = of["grad_sqnorm"][[0, *first]]
            assert found == pytest.approx(models, rel=1e-9)


def test_distances_beyond_the_hypothesis_are_refused_and_break_the_bound():
    problem, far = instances.bowl(3, 2, distance=1.0, smoothness=2.0), np.full(1, OLDEST)
    with pytest.raises(ValueError, match=r"^birch_sgd: dist = 12, R = 11; expected dist"):
        birch_sgd.check(problem, far, tree_distance=OLDEST - 1, steps=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(birch_sgd, "hypotheses", lambda *of: [])
        assert not birch_sgd.check(problem, far, tree_distance=0, steps=64).holds


def test_the_proofs_inequalities_hold_for_all_constants():
    """In both cases: b up to max(1, R), and above."""
    for R in (0, 1, 2, 5, 100):
        for b in np.concatenate([np.linspace(0, 4 * max(1, R), 400), [1e3, 1e6]]):
            largest = max(1, R, b)
            s, rho = 1 / (2 * largest), R / largest
            right = largest / (R + 1 + b) + b / (4 * largest) * (1 + rho)
            if b <= max(1, R):
                assert right <= 1 + 1e-12
                assert 1 - s - rho**2 / 2 >= 0  # 2 (gamma L R)^2 = rho^2 / 2
            else:
                kappa = (1 - s - rho**2 / 2) / (1 + rho**2 / 2)
                assert kappa >= 0
                assert right < 1 + kappa * (2 - rho) / 4


# --- Seconds.


@pytest.mark.parametrize("profile", PROFILES)
def test_steps_take_at_most_the_seconds_of_the_theorem(profile):
    """B steps of Ringmaster, and one of Rennala. All together take at least as long as their
    gradients.
    """
    times = PROFILES[profile].tolist()
    for method, B in SIZES.items():
        at, each = steps_at(history(method, profile)), 1 if method == "rennala" else B
        t = bounds.batch_seconds(batch_size=B, times=times)
        longest = (at[each:] - at[:-each]).max()
        assert 0.5 * t < longest <= t * (1 + 1e-5)
        fastest = [(B + m) / np.sum(1 / np.sort(times)[:m]) for m in range(1, len(times) + 1)]
        assert t <= 2 * min(fastest)
        gradients = (len(at) - 1) * B / each
        assert gradients / sum(1 / h for h in times) <= at[-1] * (1 + 1e-5)


@pytest.mark.parametrize(("profile", "batch"), [("i", 40), ("one slow", 9)])
def test_steps_of_malenia_take_at_most_the_seconds_of_the_theorem(profile, batch):
    times = PROFILES[profile].tolist()
    of = run(algorithms.malenia_sgd(optax.sgd(0.1), batch), times, 400)
    given = {**constants(batch), "times": times}
    at, K = steps_at(of), 16  # 4 L D / epsilon
    each = bounds.malenia_seconds(**given) / K
    longest = np.diff(at).max()
    assert 0.35 * each < longest <= each * (1 + 1e-5)
    order = bounds.optimal_seconds_different_data(**given)
    assert order < K * each <= 12 * order


@pytest.mark.parametrize("profile", PROFILES)
def test_the_seconds_of_all_steps_are_within_constants_of_the_optimal_order(profile):
    """Rennala's 4 L D / epsilon steps, and those of Birch SGD for Ringmaster: from 1 to 16 and 24
    times the order of the optimal time.
    """
    times = PROFILES[profile].tolist()
    for method, most, K in (("rennala", 16, 16), ("ringmaster", 24, 4 * 4 * (4 + 8))):
        given = constants(SIZES[method])
        bound = getattr(bounds, f"{method}_seconds")(**given, times=times)
        order = bounds.optimal_seconds(**given, times=times)
        measured = steps_at(history(method, profile))[K]
        assert order < measured <= bound <= most * order


def test_ratios_of_methods_in_seconds_are_those_of_their_theorems_within_a_factor_of_four():
    """Rennala with B = sigma^2 / epsilon = 6, and mini-batch SGD, whose steps take as long as the
    slowest worker.
    """
    given, ratios = constants(6), {}
    numbers = {name: value for name, value in given.items() if name != "epsilon"}
    steps = minibatch_sgd.rate(**numbers, workers=6).iterations(EPSILON)
    for profile, h in PROFILES.items():
        times = h.tolist()
        measured = steps_at(history("rennala", profile))[16] / (steps * max(times))
        fast, slow = (
            of(**given, times=times) for of in (bounds.optimal_seconds, bounds.minibatch_seconds)
        )
        ratios[profile] = measured / (fast / slow)
    assert all(1 / 4 < ratio < 4 for ratio in ratios.values()), ratios
