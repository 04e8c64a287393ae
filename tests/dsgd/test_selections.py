"""Who participates: frequencies compared with inclusion probabilities, bounds, and errors."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import algorithms
import dsgd
import topologies
from dsgd import Now, Round, clusters, problems
from dsgd.clusters import Quantity, presence, successive
from dsgd.clusters.quantity import binomial_bound
from dsgd.engine import run_keys

N, DRAWS = 6, 4000


def participants(quantity: Quantity, workers: int = N) -> np.ndarray:
    """Returns which workers participate in each of many draws, bool `[DRAWS, workers]`."""

    @jax.jit
    @jax.vmap
    def draw(key):
        return jax.vmap(lambda n: quantity.sample(key, jnp.float32(0), n) > 0)(jnp.arange(workers))

    return np.asarray(draw(jax.random.split(jax.random.key(3), DRAWS)))


def require_frequencies(drawn: np.ndarray, inclusion) -> None:
    """Asserts that each worker's frequency is within 5 standard errors of its probability."""
    expected = np.broadcast_to(inclusion, drawn.shape[1])
    error = 5 * np.sqrt(expected * (1 - expected) / len(drawn))
    assert (np.abs(drawn.mean(0) - expected) <= error + 1e-7).all(), (drawn.mean(0), expected)


SIZES = np.array([20.0, 3.0, 7.0, 1.0, 11.0, 5.0])


def successive_sampling(weights: np.ndarray, k: int) -> np.ndarray:
    """Returns the inclusion probabilities from the probabilities of all orders of k workers."""
    pi = np.zeros(len(weights))
    for order in itertools.permutations(range(len(weights)), k):
        left = weights.sum() - np.cumsum([0, *weights[list(order)]])[:k]
        pi[list(order)] += np.prod(weights[list(order)] / left)
    return pi


SAMPLED = clusters.sampled(2, of=N)
COIN = clusters.bernoulli(0.3, 2.0)
MASK = clusters.constant([0.0, 2.0, 3.0, 0.0, 0.0, 5.0])
# Quantities with their bound for N workers, and the inclusion probabilities.
KNOWN = {
    "sampled": (SAMPLED, 2, 1 / 3),
    "coin": (COIN, 6, 0.3),
    "mask": (MASK, 3, [0, 1, 1, 0, 0, 1]),
    "multiple": (0.5 * SAMPLED, 2, 1 / 3),
    "multiple of 0": (0 * COIN, 6, 0),
    "bounded": (clusters.bounded(COIN, 0.5), 6, 0.3),
    "bounded by 0": (clusters.bounded(MASK, 0), 3, 0),
    "slow": (clusters.slow(SAMPLED, [1, 3], 4.0), 2, 1 / 3),
    "servers": (clusters.per_server(clusters.sampled(2, of=3), 2), 4, 2 / 3),
    "servers of a mask": (clusters.per_server(clusters.constant([0, 3]), 3), 3, [0] * 3 + [1] * 3),
    "weighted": (clusters.sampled(3, N, SIZES), 3, successive_sampling(SIZES, 3)),
    "systematic": (clusters.systematic(2, SIZES), 2, 2 * SIZES / 47),
    "some for certain": (clusters.systematic(3, SIZES), 3, [1, *(2 * SIZES[1:] / 27)]),
    "coins": (clusters.bernoulli(SIZES / 20, 3.0), 6, SIZES / 20),
    "never": (clusters.bernoulli(0.0, 2.0), 0, 0),
    "worthless": (clusters.bernoulli(0.4, 0.0), 0, 0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_inclusion_and_the_bound_agree_with_draws(name):
    quantity, most, inclusion = KNOWN[name]
    drawn = participants(quantity)
    assert quantity.most_of(N) == most
    assert drawn.sum(1).max() <= most
    assert quantity.inclusion is not None
    np.testing.assert_allclose(quantity.inclusion, inclusion, rtol=1e-6, atol=1e-9)
    require_frequencies(drawn, inclusion)


@pytest.mark.parametrize(
    "quantity",
    [
        SAMPLED,
        clusters.sampled(3, N, SIZES),
        clusters.systematic(2, SIZES),
        clusters.systematic(3, SIZES),
        clusters.sampled(2, N, among=clusters.constant([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])),
    ],
    ids=repr,
)
def test_exactly_k_workers_are_drawn(quantity):
    assert set(participants(quantity).sum(1)) == {quantity.most_of(N)}


@pytest.mark.parametrize("k", [1, 2, 4, 5])
@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_inclusion_of_successive_sampling_is_exact(k, spread):
    weights = SIZES**spread
    np.testing.assert_allclose(
        successive.inclusion(weights, k), successive_sampling(weights, k), atol=1e-7
    )


@pytest.mark.parametrize("k", [6, 90])
def test_many_distinct_weights_are_represented_by_polynomials(k, monkeypatch):
    """The same as without polynomials."""
    weights = 0.02 + np.random.default_rng(k).pareto(0.9, 240)
    monkeypatch.setattr(successive, "_DISTINCT", 200)
    monkeypatch.setattr(successive, "_LARGEST", 60)
    found = successive.inclusion(weights, k)
    monkeypatch.setattr(successive, "_DISTINCT", 1000)
    np.testing.assert_allclose(found, successive.inclusion(weights, k), rtol=1e-7)
    np.testing.assert_allclose(found.sum(), k, rtol=1e-9)


def test_workers_are_sampled_among_those_that_are_available():
    """All of them if there are fewer than k; the others take no part."""
    available = clusters.square_wave(1.0, 0.0, 8.0, 0.5, phase=[0, 2, 4, 6, 0, 2])
    quantity = clusters.sampled(2, N, SIZES, among=available)
    at = jax.jit(
        jax.vmap(
            lambda key, clock: jax.vmap(lambda n: quantity.sample(key, clock, n))(jnp.arange(N)),
            (0, None),
        )
    )
    keys = jax.random.split(jax.random.key(5), DRAWS)
    for clock, some in ((1.0, [0, 1, 4, 5]), (3.0, [0, 3, 4]), (5.0, [2, 3]), (6.5, [1, 2, 5])):
        drawn = np.asarray(at(keys, jnp.float32(clock))) > 0
        expected = np.zeros(N)
        expected[some] = successive_sampling(SIZES[some], 2)
        require_frequencies(drawn, expected)
    few = participants(
        clusters.sampled(3, N, among=clusters.constant(np.array([0.0, 2, 0, 0, 0, 3])))
    )
    assert (few == np.isin(np.arange(N), [1, 5])).all()


def in_periods(quantity: Quantity, periods: int, every: int = 1, workers: int = N, key: int = 4):
    """Returns participation in a run's rounds, bool `[periods * every, workers]`."""
    cluster = clusters.Cluster(clusters.constant(2.0), present=quantity, participation_period=every)
    run = jax.random.key(key)

    @jax.jit
    @jax.vmap
    def present(step):
        first = jax.random.fold_in(run, step - step % every)
        this_round = Round(step, workers, first, now=Now(cluster, 0.0))
        return presence.present(cluster, this_round, first, run)

    return np.asarray(present(jnp.arange(periods * every)))


def test_workers_take_turns():
    """Each participates once before one participates again, in periods of three rounds."""
    rounds = in_periods(clusters.round_robin(4, of=N), 5, every=3)
    expected = [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5], [0, 1, 2, 3], [0, 1, 4, 5]]
    assert [np.flatnonzero(each).tolist() for each in rounds[::3]] == expected
    assert (rounds.reshape(5, 3, N) == rounds[::3, None]).all()


@pytest.mark.parametrize(
    ("on", "off", "offset", "most"),
    [
        (2, 3, [0, 1, 2, 3, 4, 9], 3),
        (1, 2, [0, 0, 1, 1, 2, 2], 2),
        (3, 0, [0] * N, 6),
        (2, 5, 4, 6),
    ],
)
def test_cycles(on, off, offset, most):
    quantity = clusters.cyclic(on, off, offset)
    drawn = in_periods(quantity, 20)
    t, starts = np.arange(20)[:, None], np.broadcast_to(offset, N)
    np.testing.assert_array_equal(drawn, (t - starts) % (on + off) < on)
    assert drawn.sum(1).max() == quantity.most_of(N) == most


@pytest.mark.parametrize(("on", "off"), [(4.0, 7.0), (1.0, 5.0), (2.5, 1.25), (2.0, 2.0)])
def test_a_markov_chain(on, off):
    """Its share, its transitions and its start: within 5 standard errors, and independent of the
    past.
    """
    workers, periods = 500, 90
    quantity = clusters.markov(on, off)
    x = in_periods(quantity, periods, workers=workers)
    share = on / (on + off)
    assert abs(x[0].mean() - share) < 5 * np.sqrt(share * (1 - share) / workers)
    for before, probability in ((True, 1 - 1 / on), (False, 1 / off)):
        for earlier in (True, False):
            chosen = (x[1:-1] == before) & (x[:-2] == earlier)
            after = x[2:][chosen]
            error = 5 * np.sqrt(probability * (1 - probability) / max(after.size, 1))
            assert abs(after.mean() - probability) <= error if after.size else on == 1
    assert x.sum(1).max() <= quantity.most_of(workers) < workers
    assert quantity.inclusion == pytest.approx(share)
    assert (x != in_periods(quantity, periods, workers=workers, key=6)).any(0).mean() > 0.9


def losses(cluster: clusters.Cluster, workers: int, rounds: int, key: int = 4) -> np.ndarray:
    """Returns which messages between two workers a run loses, bool `[rounds, links]`."""
    run = run_keys.split(jax.random.key(key))[1]
    i, j = map(jnp.asarray, np.triu_indices(workers, 1))

    @jax.jit
    @jax.vmap
    def lost(step):
        key = run_keys.round_keys(run, step)[0]
        this_round = Round(step, workers, key, now=Now(cluster, 0.0))
        participation = presence.participation(cluster, this_round, run)
        assert participation is not None
        return ~participation.arrives(j, i)

    return np.asarray(lost(jnp.arange(rounds)))


# The loss rate, the mean burst, the loss rates of the two states, the share of bad rounds, and the
# correlation of the states of two consecutive rounds.
BURSTS = {
    "long": (0.3, 8.0, 1.0, 0.0, 0.3, 1 - 1 / 8 - 0.3 / (8 * 0.7)),
    "independent": (0.4, 1 / 0.6, 1.0, 0.0, 0.4, 0.0),
    "short": (0.3, 1.25, 1.0, 0.0, 0.3, 1 - 1 / 1.25 - 0.3 / (1.25 * 0.7)),
    "often": (0.75, 3.5, 1.0, 0.0, 0.75, 1 - 1 / 3.5 - 3 / 3.5),
    "two states": (0.26, 5.0, 0.8, 0.2, 0.1, 1 - 1 / 5 - 1 / 45),
}


@pytest.mark.parametrize("name", BURSTS)
def test_bursts(name):
    """Loss rates from the first round on, lag correlations, and the mean length of a burst: within
    5 standard errors over the links, which are independent.
    """
    rate, mean, bad, good, share, correlation = BURSTS[name]
    quantity = clusters.bursts(rate, mean, bad, good)
    cluster = clusters.Cluster(clusters.constant(2.0), delivered=quantity)
    x = losses(cluster, 28, 160).astype(float)

    def require(expected, values):
        assert abs(values.mean() - expected) < 5 * values.std() / np.sqrt(len(values))

    for rounds in (x[0], x[100], x.mean(0)):
        require(rate, rounds)
    variance = share * (1 - share) * (bad - good) ** 2
    for lag in (1, 2, 5):
        products = (x[lag:] - rate) * (x[:-lag] - rate)
        require(variance * correlation**lag, products.mean(0))
    if bad == 1 and good == 0:
        begins = (x[1:] > x[:-1]).mean(0)
        require(0, x[1:].mean(0) - mean * begins)
        for earlier in (0, 1):  # it has no memory beyond the last round
            require(1 - 1 / mean, x[2:][(x[1:-1] == 1) & (x[:-2] == earlier)])
    assert quantity.inclusion == pytest.approx(1 - rate)
    assert (x != losses(cluster, 28, 160, key=6)).any(0).mean() > 0.9


def test_links_take_turns():
    """A selection by periods has periods of one round for links, whatever those of workers are."""
    cluster = clusters.Cluster(
        clusters.constant(2.0),
        present=clusters.constant(3.0),
        participation_period=4,
        delivered=clusters.cyclic(2, 3),
    )
    x = losses(cluster, 4, 12)
    np.testing.assert_array_equal(x, np.tile(np.arange(12)[:, None] % 5 >= 2, 6))


def test_links_without_losses():
    cluster = clusters.Cluster(clusters.constant(2.0), delivered=clusters.bursts(0.0, 5.0))
    assert not losses(cluster, 9, 30).any()


def test_a_method_loses_bursts_of_messages():
    """Decentralized SGD on a ring: the recursion in which a lost message's weight is added to the
    worker's own, and the counted arrivals.
    """
    cluster = clusters.Cluster(clusters.constant(2.0), delivered=clusters.bursts(0.4, 6.0))
    draws, topology, gamma, steps = np.random.default_rng(3), topologies.ring(N), 0.05, 30
    A, b = draws.uniform(0.5, 2, (N, 3)), draws.normal(size=(N, 3))
    method = algorithms.decentralized_sgd(optax.sgd(gamma), topology)
    problem, options = problems.quadratic(A, b), {"cluster": cluster, "mesh": 1}
    result = dsgd.run(method, problem, steps=steps, key=jax.random.key(11), **options)
    x, W, arrived = np.zeros((N, 3)), topology.matrices[0].toarray(), []
    pairs = np.triu_indices(N, 1)
    for lost in losses(cluster, N, steps, key=11):
        kept = np.zeros((N, N))
        kept[pairs] = np.where(lost, 0, W[pairs])
        arrived.append((kept > 0).sum() / (W[pairs] > 0).sum())
        kept += kept.T
        np.fill_diagonal(kept, 1 - kept.sum(1))
        x = kept @ (x - gamma * (A * x - b))
    np.testing.assert_allclose(result.history["arrived"][1:], arrived, rtol=1e-6)
    np.testing.assert_allclose(jax.tree.leaves(result.state.workers)[0], x, rtol=1e-4, atol=1e-6)


def test_long_spells_cost_no_more_draws():
    """A chain with spells of thousands of periods, far from its beginning."""
    x = in_periods(clusters.markov(900.0, 2700.0), 4000, workers=40)
    changes = (x[1:] != x[:-1]).sum()
    expected = 2 * 40 * 4000 / 3600
    assert abs(changes - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize("mean", [0.4, 3.5, 60.0])
def test_poisson_intervals(mean):
    """The share of each period, and the frequencies of the intervals' lengths: within 5 standard
    errors.
    """
    workers, periods = 400, 300
    quantity = clusters.poisson_intervals(mean)
    x = in_periods(quantity, periods, workers=workers)
    share = 1 / (1 + mean)
    for shares in (x[0].mean(), x[periods // 2].mean()):
        assert abs(shares - share) < 5 * np.sqrt(share * (1 - share) / workers)
    lengths = np.concatenate([np.diff(np.flatnonzero(each)) for each in x.T]) - 1
    counts = np.bincount(lengths, minlength=2)
    probabilities = scipy.stats.poisson.pmf(np.arange(counts.size), mean)
    if mean < 10:  # otherwise the end of the run cuts long intervals off
        errors = 5 * np.sqrt(lengths.size * probabilities) + 5
        np.testing.assert_array_less(abs(counts - lengths.size * probabilities), errors)
    else:
        assert abs(lengths.mean() - mean) < 2
        assert abs(lengths.std() - np.sqrt(mean)) < 1
    assert x.sum(1).max() <= quantity.most_of(workers)
    assert quantity.most_of(workers) == binomial_bound(workers, share)
    assert quantity.inclusion == pytest.approx(share)


@pytest.mark.parametrize(
    ("high", "low", "duty", "most"), [(2.0, 0.0, 0.3, 4), (0.0, 3.0, 0.3, 6), (2.0, 3.0, 0.3, 7)]
)
def test_clients_of_time_zones(high, low, duty, most):
    """The largest number of workers that participate at once, at all times of a day."""
    zones = [0, 2, 2, 3.5, 5.2, 8.1, 14]
    wave = clusters.square_wave(high, low, 10.0, duty, zones)
    times, key = jnp.arange(0, 30, 0.05), jax.random.key(2)
    present = jax.vmap(
        lambda clock: jax.vmap(lambda n: wave.sample(key, clock, n))(jnp.arange(len(zones)))
    )(times)
    assert np.asarray(present > 0).sum(1).max() == wave.most_of(len(zones)) == most
    assert clusters.bernoulli(0.25 * wave, 2.0).most_of(len(zones)) == most


@pytest.mark.parametrize("quantity", [clusters.exponential(2.0), SAMPLED + MASK], ids=repr)
def test_without_a_known_bound_all_may_participate(quantity):
    assert quantity.most_of(N) == N
    assert quantity.inclusion is None


@pytest.mark.parametrize(("workers", "p"), [(7, 0.5), (1000, 0.01), (100_000, 0.001), (40, 0.97)])
def test_the_bound_of_independent_draws_is_the_smallest(workers, p):
    B = clusters.bernoulli(p, 2.0).most_of(workers)
    assert scipy.stats.binom.sf(B, workers, p) <= 1e-12 < scipy.stats.binom.sf(B - 1, workers, p)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"most": -2}, "Quantity: most = -2; expected an integer, at least 0"),
        ({"inclusion": 1.5}, "Quantity: inclusion = 1.5; expected probabilities, numbers from 0"),
        ({"inclusion": (0.5, float("nan"))}, r"Quantity: inclusion = \(0.5, nan\); expected prob"),
    ],
)
def test_wrong_bounds_and_probabilities_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Quantity(SAMPLED.sample, "mine", False, **given)


SPELLS = {0: [(0.0, 60.0)], 1: [(20.0, np.inf)], 2: [(0.0, 30.0), (40.0, np.inf)], 3: []}
LIVES = clusters.lifetimes([0, [20], [0, 40], []], [60, [np.inf], [30, np.inf], []])


def test_workers_join_stop_and_return():
    """Each is there in its spells, which include their beginning and not their end; the largest
    number at once is the bound.
    """
    clocks = np.array([0.0, 19.5, 20.0, 29.5, 30.0, 40.0, 59.5, 60.0, 1e30])
    draw = jax.vmap(
        lambda clock: jax.vmap(lambda n: LIVES.sample(jax.random.key(0), clock, n))(jnp.arange(4))
    )
    there = [[any(b <= t < e for b, e in SPELLS[n]) for n in range(4)] for t in clocks]
    np.testing.assert_array_equal(draw(jnp.asarray(clocks, jnp.float32)), there)
    assert LIVES.most_of(4) == 3 == np.sum(there, 1).max()
    assert clusters.lifetimes([2, 5.5, 7], [5.5, 7, 9]).most == 1
    assert LIVES.inclusion is None
    assert not presence.is_drawn(LIVES, 4)
    for t, s in itertools.product([0.0, 25.0, 50.0], [0.0, 12.5, 70.0]):
        seconds = [sum(max(min(e, t + s) - max(b, t), 0) for b, e in SPELLS[n]) for n in range(4)]
        found = [
            LIVES.integrate(jax.random.key(0), jnp.float32(t), jnp.float32(s), n) for n in range(4)
        ]
        np.testing.assert_allclose(found, seconds)


def test_quantities_carry_their_spells():
    """Methods without rounds read them, also those of a multiple or of several servers."""
    for n, spells in SPELLS.items():
        expected = [*spells, *[(np.inf, np.inf)] * (2 - len(spells))]
        np.testing.assert_array_equal(LIVES.spells[n], expected)
    for same in (3 * LIVES, clusters.bounded(LIVES, 0.5), clusters.slow(LIVES, [2], 4.0)):
        np.testing.assert_array_equal(same.spells, LIVES.spells)
    servers = clusters.per_server(LIVES, 3)
    np.testing.assert_array_equal(servers.spells[[4, 6, 8]], LIVES.spells[[1, 2, 2]])
    for other in (0 * LIVES, LIVES + COIN, clusters.bounded(LIVES, 0), COIN):
        assert other.spells is None


TURNS = clusters.round_robin(2, of=N)
WRONG = {
    "k": (lambda: clusters.sampled(7, of=6), "sampled: k = 7 of 6 workers; expected k of at most"),
    "weight": (lambda: clusters.sampled(2, 3, [1, 0, 2]), "sampled: the weight of worker 1 is 0"),
    "negative": (lambda: clusters.sampled(2, 3, [1, 2, -3]), "sampled: weights: given -3; expec"),
    "length": (lambda: clusters.sampled(2, 3, [1, 2]), "sampled: 2 weights of 3 workers; expected"),
    "scalar": (lambda: clusters.systematic(1, 2.0), "systematic: weights of shape"),
    "nobody": (lambda: clusters.systematic(3, [2.0, 5.0]), "systematic: k = 3 of 2 workers; exp"),
    "turn": (lambda: clusters.round_robin(5, of=3), "round_robin: k = 5 of 3 workers; expected"),
    "half": (
        lambda: clusters.cyclic(2, 3, np.array([0.5, 2])),
        "cyclic: offset = .*; expected an integer",
    ),
    "alternates": (lambda: clusters.markov(1.0, 1.0), "markov: on = 1, off = 1, a chain that alt"),
    "spell": (lambda: clusters.markov(0.5, 3.0), r"markov: on = 0.5; expected a number in \[1,"),
    "among": (
        lambda: clusters.sampled(2, 3, among=clusters.constant([1.0, 2.0])),
        r"sampled: among = constant\(.*\), which is for 2 workers; expected a quantity of 3",
    ),
    "nowhere": (lambda: clusters.lifetimes([[], []], [[], []]), "lifetimes: no worker has a sp"),
    "past": (lambda: clusters.lifetimes([2, -3], [9, 9]), "lifetimes: worker 1 begins at .*; exp"),
    "later": (lambda: clusters.lifetimes([np.inf], [np.inf]), "lifetimes: worker 0 .*; expected f"),
    "no time": (lambda: clusters.lifetimes([2], [np.nan]), "lifetimes: worker 0 .*; expected fin"),
    "order": (
        lambda: clusters.lifetimes([[5, 2]], [[6, 3]]),
        "lifetimes: worker 0 begins at .*; expected disjoint spells in ascending order",
    ),
    "overlap": (
        lambda: clusters.lifetimes([[2, 5]], [[5.5, 9]]),
        "lifetimes: worker 0 begins at .*; expected disjoint spells in ascending order",
    ),
    "begin": (lambda: clusters.lifetimes(2.0, [3.0]), "lifetimes: begins = 2.0; expected one num"),
    "end": (lambda: clusters.lifetimes([[2, 5]], [3]), r"lifetimes: begins = .*, ends = .*; exp"),
    "table": (
        lambda: clusters.lifetimes(np.ones((2, 2, 2)), np.full((2, 2, 2), 3.0)),
        "lifetimes: begins = .*; expected an end for each begin",
    ),
    "lives of messages": (
        lambda: clusters.Cluster(clusters.constant(2.0), delivered=LIVES),
        "Cluster: delivered = lifetimes.* is for 4 workers; expected a quantity of links",
    ),
    "all": (lambda: clusters.bursts(1.0, 3.0), r"bursts: rate = 1.0; expected a number in \[0, 1"),
    "burst": (lambda: clusters.bursts(0.2, 0.5), r"bursts: mean = 0.5; expected a number in \[1,"),
    "states": (
        lambda: clusters.bursts(0.2, 3.0, 0.6, 0.3),
        r"bursts: rate = 0.2 with loss rates of 0.3 in the good state and 0.6 in the bad one; exp",
    ),
    "rare": (lambda: clusters.bursts(1e-7, 3.0), "bursts: rate = 1e-07, for which .*; expected no"),
    "long": (
        lambda: clusters.bursts(0.8, 3.0),
        "bursts: rate = 0.8, mean = 3, a chain with fewer than one good .*; expected mean >= 4",
    ),
    "alternating": (
        lambda: clusters.bursts(0.5, 1.0),
        "bursts: rate = 0.5, mean = 1, .*, or one that alternates; expected mean >= 1.001",
    ),
    "chance": (lambda: clusters.bernoulli([0.5, 1.5], 2.0), "bernoulli: probability = .*; expect"),
    "seconds": (lambda: clusters.Cluster(TURNS), "Cluster: compute = round_robin.*, a selection"),
    "messages": (
        lambda: clusters.Cluster(clusters.constant(2.0), delivered=TURNS),
        "Cluster: delivered = round_robin.* is for 6 workers; expected a quantity of links",
    ),
    "multiple": (lambda: 2 * TURNS, "Quantity: quantity = round_robin.*, a selection by part"),
    "sum": (lambda: MASK + TURNS, "Quantity: other = round_robin.*, a selection by participation"),
    "bounded": (lambda: clusters.bounded(TURNS, 2.0), "bounded: quantity = round_robin"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_selections_are_refused(name):
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def test_names_of_selections_contain_all_parameters():
    waves = [clusters.square_wave(2.0, 0.0, 5.0, phase=phase) for phase in (0.0, 2.0, SIZES)]
    quantities = [
        SAMPLED,
        *(clusters.sampled(2, N, weights) for weights in (SIZES, SIZES[::-1])),
        *(clusters.sampled(2, N, among=among) for among in (*waves, COIN)),
        *(clusters.systematic(k, SIZES) for k in (2, 3)),
        clusters.systematic(2, SIZES[::-1]),
        *(clusters.round_robin(*of) for of in ((2, 5), (3, 5), (2, 6))),
        *(clusters.cyclic(*of) for of in ((2, 5), (3, 5), (2, 6))),
        *(clusters.cyclic(2, 5, offset) for offset in (3, [0, 3])),
        *(clusters.markov(*of) for of in ((2.0, 5.0), (3.0, 5.0), (2.0, 6.0))),
        *(clusters.poisson_intervals(mean) for mean in (2.0, 3.0)),
        *(clusters.bursts(*of) for of in ((0.2, 3.0), (0.25, 3.0), (0.2, 4.0))),
        *(clusters.bursts(0.2, 3.0, *of) for of in ((0.8,), (0.8, 0.1))),
        *(
            clusters.lifetimes(*of)
            for of in (([2], [3]), ([2], [4]), ([0], [3]), ([[2]], [np.inf]))
        ),
        *(clusters.bernoulli(p, 2.0) for p in (0.2, [0.2, 0.5], [0.2, 0.6], waves[0], waves[1])),
        *(clusters.sinusoid(2.0, 3.0, 4.0, phase=phase) for phase in (0.0, 0.5, [0.5, 2.0])),
    ]
    assert len({quantity.name for quantity in quantities}) == len(quantities)


def test_workers_of_a_server_take_turns_together():
    rounds = in_periods(clusters.per_server(clusters.round_robin(2, of=3), 2), 3)
    assert [np.flatnonzero(each).tolist() for each in rounds] == [
        [0, 1, 2, 3],
        [0, 1, 4, 5],
        [2, 3, 4, 5],
    ]


def test_a_daily_pattern():
    """A coin whose probability depends on the time of day of each worker."""
    phases = [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]
    quantity = clusters.bernoulli(clusters.sinusoid(0.7, np.pi / 24, 0.2, phase=phases), 3.0)
    draw = jax.vmap(lambda key, n: quantity.sample(key, jnp.float32(30.0), n) > 0, (None, 0))
    keys = jax.random.split(jax.random.key(8), DRAWS)
    drawn = np.asarray(jax.jit(jax.vmap(draw, (0, None)))(keys, jnp.arange(N)))
    hours = 30.0 + np.array(phases)
    require_frequencies(drawn, 0.7 * np.sin(np.pi * hours / 24) ** 2 + 0.2)
