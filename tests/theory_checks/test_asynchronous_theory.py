"""Methods on the clock against the theorems: distances of Birch SGD, and seconds."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

import jax
import numpy as np
import optax
import pytest
from scipy.sparse.csgraph import shortest_path

import algorithms
import dsgd
from dsgd import clusters, problems
from theory_checks import birch_sgd, bounds
from theory_checks.machinery import chains, clocked_runs, instances, moments, runs
from theory_checks.statements import lower_bound, seconds
from theory_checks.statements import methods_on_the_clock as on_clock
from theory_checks.statements.asynchronous_sgd import OLDEST, with_table
from theory_checks.statements.birch_sgd import LOCAL_METHODS, METHODS, PROFILES, history

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


@pytest.mark.parametrize(("method", "R"), [("local SGD", 2 * 6 - 1), ("Cycle SGD", 6 * 6 / 2 - 1)])
def test_local_steps_have_the_distance_of_the_paper_and_the_iterates_of_the_branch(method, R):
    """The paper counts the gradient itself as well. Cycle SGD needs equally fast workers."""
    assert birch_sgd.local_branch(history(method, "equal")).distances.max() == R
    assert LOCAL_METHODS[method][1] == R
    with jax.enable_x64(True):
        problem, gamma = instances.bowl(6, 2, distance=1.3, smoothness=2.0), 0.02
        of = run(LOCAL_METHODS[method][0](optax.sgd(gamma)), np.full(6, 1.75), 120, problem)
    branch = birch_sgd.local_branch(of)
    expected = birch_sgd.slopes(problem, branch, gamma)[np.unique(branch.run)[1:]]
    ends = np.flatnonzero(np.diff(of["server_steps"][1:], prepend=0))[: len(expected)]
    assert len(ends) > 10
    assert of["grad_sqnorm"][1:][ends] == pytest.approx(expected, rel=1e-9)
    if method == "Cycle SGD":
        assert birch_sgd.local_branch(history(method, "i")).distances.max() > R


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


def test_ratios_of_methods_change_with_the_cluster_as_those_of_their_theorems():
    """Exact seconds to epsilon of four methods on one quadratic. Between two clusters the ratio of
    two methods changes by up to 5, and up to a factor of 2 as that of their theorems.
    """
    names = ("Rennala", "Ringmaster", "Asynchronous SGD", "Mini-batch SGD")
    ratios, relative = [], []
    for times in on_clock.PROFILES.values():
        of = on_clock.case(times, smoothness=2.0, cost=2.5, ratio=4.9)
        found = [on_clock.check(name, of) for name in names]
        assert all(outcome.holds for outcome in found)
        pairs = list(combinations(found, 2))
        ratios.append([a.measured / b.measured for a, b in pairs])
        relative.append([a.ratio / b.ratio for a, b in pairs])
    change, unexplained = (
        np.max(each, axis=0) / np.min(each, axis=0) for each in (ratios, relative)
    )
    assert change.max() > 4
    assert unexplained.max() < 2


def test_clocked_runs_are_runs():
    """Models and clock, with noise-free gradients."""
    A, b = np.tile([2.0, 0.5], (6, 1)), np.random.default_rng(0).normal(size=(6, 2))
    times, start = PROFILES["i"] * 1.25, np.array([0.3, -2.0])
    method = runs.with_step(algorithms.rennala_sgd, 5)
    columns = clocked_runs.quadratic(A, b, noise=0.0, start=start, length=on_clock.LENGTH)
    found = clocked_runs.run(
        on_clock.METHODS["Rennala"].factory,
        columns,
        0.15,
        times,
        length=on_clock.LENGTH,
        batch=clocked_runs.one_column,
    )
    assert on_clock.METHODS["Rennala"].factory is method
    same = run(method(0.15), times, 60, problems.quadratic(A, b, start=start))
    assert found.seconds[:60] == pytest.approx(same["clock"][1:], rel=1e-12)
    assert list(found.steps[:60]) == list(same["server_steps"][1:])
    assert found.slope[:60] == pytest.approx(same["grad_sqnorm"][:60], rel=1e-9)


def test_moments_of_a_method_are_those_of_the_theorem_of_birch_sgd():
    """The noise of each gradient has a column; against means and covariances of stale steps."""
    problem, gamma = instances.bowl(6, 2, distance=1.3, smoothness=2.0, noise=0.6), 0.05
    data, steps = problem.data, 50
    columns = clocked_runs.quadratic(
        np.asarray(data.A), np.asarray(data.b), noise=0.6, start=np.zeros(2), length=on_clock.LENGTH
    )
    ringmaster = on_clock.METHODS["Ringmaster"].factory
    found = clocked_runs.run(
        ringmaster,
        columns,
        gamma,
        PROFILES["i"],
        length=on_clock.LENGTH,
        batch=clocked_runs.one_column,
    )
    logged = {"server_steps": found.steps, "delay": found.events["delay"]}
    of = birch_sgd.distances({name: np.append(0, values) for name, values in logged.items()})
    expected = moments.second_moments(
        with_table(OLDEST),
        problem,
        gamma,
        steps=steps,
        one_worker=True,
        varying=True,
        more=np.resize(of, 64).astype(np.int32),
    )["slope"][:steps]
    ends = np.flatnonzero(np.diff(found.steps, prepend=0))[:steps]
    assert found.slope[ends] == pytest.approx(expected, rel=1e-9)
    k = np.arange(steps)
    branch = birch_sgd.Branch(k - of[:steps], k)
    assert birch_sgd.slopes(problem, branch, gamma) == pytest.approx(expected, rel=1e-9)


def test_the_steps_of_sgd_are_enough_and_one_in_a_hundred_fewer_are_not():
    for ratio in (0.0, 0.3, 2.0, 40.0):
        given = {"smoothness": 2.0, "variance": ratio * EPSILON, "epsilon": EPSILON}
        gamma, K = seconds.sgd_step(**given), seconds.sgd_steps(gap=150.0, **given)
        numbers = {"gap": 150.0, "smoothness": 2.0, "noise": math.sqrt(ratio * EPSILON)}
        at = [bounds.sgd(**numbers, learning_rate=gamma, steps=k) for k in (K, int(0.99 * K))]
        assert at[0] <= EPSILON * (1 + 1e-12) < at[1]


@pytest.mark.parametrize("profile", ["i", "one slow"])
def test_delays_and_steps_of_asynchronous_sgd_are_those_of_the_theorem(profile):
    times = on_clock.PROFILES[profile]
    of = on_clock.case(times, smoothness=2.0, cost=2.5, ratio=4.9)
    found, R = on_clock.measure("Asynchronous SGD", of), seconds.largest_delay(times=list(times))
    at, K = found.seconds, 700
    assert R / 2 <= birch_sgd_delays(found).max() <= R
    bound = min((K + m) / np.sum(1 / np.sort(times)[:m]) for m in range(1, 7))
    assert 0.9 * bound < at[K - 1] <= bound


def test_delay_adaptive_sgd_does_not_wait_for_a_very_slow_worker():
    """Six times as slow as "one slow": its bound stays the same, and that of plain steps grows."""
    before = on_clock.PROFILES["one slow"]
    slower = np.append(before[:-1], 6 * before[-1])
    grown = {}
    for name in ("Delay-adaptive SGD", "Asynchronous SGD"):
        first, second = (
            on_clock.check(name, on_clock.case(times, smoothness=2.0, cost=1.5, ratio=4.9))
            for times in (before, slower)
        )
        assert first.holds
        assert second.holds
        grown[name] = second.measured / first.measured, second.bound / first.bound
    assert max(grown["Delay-adaptive SGD"]) < 1.3
    assert min(grown["Asynchronous SGD"]) > 2


def birch_sgd_delays(found) -> np.ndarray:
    """Returns the delay of each gradient of asynchronous SGD, from the workers' turns."""
    last, delays = np.zeros(6, int), []
    for t, n in enumerate(found.events["worker"].astype(int)):
        delays.append(t - last[n])
        last[n] = t + 1
    return np.array(delays)


@pytest.mark.parametrize("profile", ["i", "one slow"])
def test_rounds_of_ringleader_are_those_of_the_theorem(profile):
    """Their seconds, and the numbers of gradients at the first step, of which the harmonic mean is
    least.
    """
    times = on_clock.PROFILES[profile]
    of = on_clock.case(times, smoothness=2.0, cost=1.5, ratio=30.0, seed=3)
    found, N, slowest = on_clock.measure("Ringleader", of), len(times), max(times)
    rows = np.flatnonzero(np.diff(found.steps, prepend=0))
    rows = rows[: len(rows) // N * N].reshape(-1, N)
    ends = np.append(0, found.seconds[rows[:, -1]])
    assert 0.5 * slowest < np.diff(ends).max() <= 2 * slowest
    worker, least = found.events["worker"].astype(int), []
    for before, after in pairwise(rows):
        made = {int(worker[row]): int(row) for row in before}
        assert len(made) == N
        counts = [np.sum(worker[made[n] + 1 : int(after[0]) + 1] == n) for n in range(N)]
        assert all(
            b >= max(1, math.ceil(slowest / h) - 2) for b, h in zip(counts, times, strict=True)
        )
        least.append(N / np.sum(1 / np.array(counts)))
    assert slowest / times.mean() / 3 <= min(least)
    delays = found.events["delay"]
    assert delays.max() <= 2 * N - 2


# --- Graphs.


def line(times, latency) -> list[list[float]]:
    """Returns the seconds of messages on a line."""
    n = np.arange(len(times))
    return (latency * np.abs(n[:, None] - n)).tolist()


def test_on_a_line_seconds_have_three_regimes():
    """LD/eps (h + s h, sqrt(rho s h), or s h / n), with s = sigma^2 / epsilon, up to constants."""
    n, h, given = 40, 2.0, {"gap": 1.5, "smoothness": 2.0, "epsilon": EPSILON}
    for rho in (1e-4, 0.3, 5.0, 1e4):
        for s in (0.1, 3.0, 50.0, 4000.0):
            noise = math.sqrt(s * EPSILON)
            found = bounds.optimal_seconds_on_graph(
                **given, noise=noise, times=n * [h], travel=line(n * [h], rho)
            )
            share = math.sqrt(s * h / rho)
            noisy = s * h if share <= 1 else s * h / n if share >= n else math.sqrt(rho * s * h)
            expected = 4 * (h + noisy)  # L D / epsilon = 4
            assert expected / 3 <= found <= 3 * expected, (rho, s)


def test_seconds_on_graphs_are_within_sixteen_of_the_order_and_become_those_without_messages():
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(100):
        times = (10 ** rng.uniform(-1, 1, 5)).tolist()
        travel = shortest_path(10 ** rng.uniform(-2, 2, (5, 5))).tolist()
        given = {**constants(int(rng.integers(1, 50))), "times": times}
        none = np.zeros((5, 5)).tolist()
        order = bounds.optimal_seconds_on_graph(**given, travel=travel)
        fragile = bounds.fragile_seconds(**given, travel=travel)
        assert order <= fragile <= 16 * order * (1 + 1e-12)
        largest = max(largest, fragile / order)
        each = [bounds.fragile_seconds(**given, travel=travel, pivot=j) for j in range(5)]
        assert min(each) == fragile < max(each)
        assert bounds.fragile_seconds(**given, travel=none) == pytest.approx(
            bounds.rennala_seconds(**given)
        )
        assert bounds.amelie_seconds(**given, travel=none) == bounds.malenia_seconds(**given)
        other = bounds.optimal_seconds_on_graph_different_data(**given, travel=travel)
        assert other <= bounds.amelie_seconds(**given, travel=travel) <= 20 * other
    assert largest > 10


# --- The lower bound.


def test_the_chain_has_the_constants_of_the_papers():
    """The smoothness of F_T is at most 152, its elements at most 23, the gap per element at most
    12; each is at least a tenth of the constant. The gradient is larger than 1 until the last
    element is found, and shows one element at a time.
    """
    T, rng = 7, np.random.default_rng(0)
    gradient, hessian = jax.jit(jax.grad(chains.value)), jax.jit(jax.hessian(chains.value))
    value = jax.jit(chains.value)
    smoothest, largest, lowest = 0.0, 0.0, 0.0
    for _ in range(300):
        x = rng.choice([0.6, 1.0, 3.0]) * rng.normal(size=T)
        x[rng.integers(1, T + 1) :] = 0
        smoothest = max(smoothest, np.abs(np.linalg.eigvalsh(hessian(x))).max())
        g, found = np.asarray(gradient(x)), int(np.max(np.flatnonzero(x), initial=-1)) + 1
        largest, lowest = max(largest, np.abs(g).max()), min(lowest, float(value(np.abs(x) * 9)))
        assert not g[found + 1 :].any()
        assert found == T or np.linalg.norm(g) > 1
    assert chains.SMOOTHNESS / 10 < smoothest <= chains.SMOOTHNESS
    assert chains.LARGEST / 10 < largest <= chains.LARGEST
    gap = float(value(np.zeros(T))) - lowest
    assert T * chains.GAP / 10 < gap <= T * chains.GAP


def test_the_oracle_of_the_chain_is_unbiased_and_has_the_noise_of_the_theorem():
    given = lower_bound.instance(PROFILES["i"], probability=0.05)
    numbers = {name: given[name] for name in ("gap", "smoothness", "noise", "epsilon")}
    problem = chains.chain(2, **numbers)
    data = jax.tree.map(lambda leaf: leaf[0], problem.data)
    of: Any = problem.loss
    x = jax.numpy.asarray(1.4 * data.width * (np.arange(8) < 3))
    exact, shown, hidden = (
        np.asarray(of.gradient(x, data._replace(shown=factor))) for factor in (None, 1 / 0.05, 0.0)
    )
    assert 0.05 * shown + 0.95 * hidden == pytest.approx(exact, rel=1e-12)
    assert np.flatnonzero(np.asarray(shown != hidden)).tolist() == [3]
    variance = 0.05 * np.sum((shown - exact) ** 2) + 0.95 * np.sum((hidden - exact) ** 2)
    assert 0.001 * given["noise"] ** 2 < variance <= given["noise"] ** 2
    draws = jax.vmap(lambda key: problem.sample(key, data).shown)(
        jax.random.split(jax.random.key(0), 4000)
    )
    assert set(np.unique(draws)) == {0.0, 1 / 0.05}
    assert np.mean(draws) == pytest.approx(1, abs=5 * math.sqrt(19 / 4000))
    assert exact == pytest.approx(np.asarray(jax.grad(of.value)(x, data)), rel=1e-12)
    with pytest.raises(ValueError, match=r"^chain: L D / epsilon = 3000; expected at least 3648"):
        chains.chain(2, gap=1500.0, smoothness=2.0, noise=1.0, epsilon=1.0)


def test_the_lower_bound_is_a_constant_of_the_optimal_time_on_every_cluster():
    """At least 1 / (8 * 3648 * 2116), and at most the optimal time; the time of a number of
    gradients is that of a plain count.
    """
    rng = np.random.default_rng(0)
    for _ in range(100):
        times = np.round(8 * 10 ** rng.uniform(0, 1.5, 6)) / 8
        given = lower_bound.instance(
            times, elements=int(rng.integers(2, 40)), probability=10 ** rng.uniform(-3, 0)
        )
        found, order = bounds.lower_seconds(**given), bounds.optimal_seconds(**given)
        assert order / (8 * 3648 * 2116) <= found <= order
        T = chains.length(**{name: given[name] for name in ("gap", "smoothness", "epsilon")})
        count = math.floor(1 / (2 * chains.probability(noise=given["noise"], epsilon=0.75))) + 1
        all_times = np.sort(np.concatenate([h * np.arange(1, count + 1) for h in times]))
        assert found == pytest.approx(T // 2 * all_times[count - 1], rel=1e-9)


def test_without_noise_the_lower_bound_is_beaten():
    """So the noise of the chain, and not its step sizes, takes the seconds. The theorem's own
    bound without noise still holds.
    """
    given = lower_bound.instance(PROFILES["i"])
    method = lower_bound.METHODS["Asynchronous SGD"]
    observed, reached = lower_bound.observe(method, 150 / given["smoothness"], given, noise=0.0)
    assert reached
    assert bounds.lower_seconds(**{**given, "noise": 0.0}) <= observed
    assert observed < bounds.lower_seconds(**given) / 3
