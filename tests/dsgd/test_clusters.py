"""Quantities against their distributions and formulas, and what clusters refuse."""

from __future__ import annotations

import inspect
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from dsgd import Now, Round, clusters

WORKERS, DRAWS = 8, 3000
EXPONENTIAL = clusters.exponential(1.0)


@cache
def sampler(quantity: clusters.Quantity):
    """(keys, clock) -> `[DRAWS, WORKERS]`."""
    workers = jnp.arange(WORKERS if quantity.workers is None else quantity.workers)
    of_all = jax.vmap(quantity.sample, (None, None, 0))
    return jax.jit(jax.vmap(lambda key, clock: of_all(key, clock, workers), (0, None)))


@cache
def draws(quantity: clusters.Quantity, clock: float = 0.0, seed: int = 0) -> np.ndarray:
    """`[DRAWS, WORKERS]`, in float64."""
    return np.asarray(
        sampler(quantity)(jax.random.split(jax.random.key(seed), DRAWS), jnp.float32(clock)),
        np.float64,
    )


def at(quantity: clusters.Quantity, clocks, worker: int = 0) -> np.ndarray:
    """At one worker, with one key, `[clocks]`."""
    sample = jax.jit(jax.vmap(lambda clock: quantity.sample(jax.random.key(0), clock, worker)))
    return np.asarray(sample(jnp.asarray(clocks, jnp.float32)), np.float64)


DISTRIBUTIONS = {
    "normal": (clusters.normal(2.0, 0.3), scipy.stats.norm(2.0, 0.3)),
    "lognormal": (clusters.lognormal(-1.84, 0.6), scipy.stats.lognorm(0.6, scale=np.exp(-1.84))),
    "exponential": (clusters.exponential(0.2), scipy.stats.expon(scale=0.2)),
    "gamma": (clusters.gamma(2.5, 0.4), scipy.stats.gamma(2.5, scale=0.4)),
    "measured": (
        clusters.measured([1.0, 2.0, 5.0, 5.0]),
        scipy.stats.rv_discrete(values=([1, 2, 5], [0.25, 0.25, 0.5]))(),
    ),
    "sum": (clusters.constant(1.0) + 3 * clusters.exponential(0.5), scipy.stats.expon(1, 1.5)),
    "sum of two alike": (
        clusters.exponential(1.0) + clusters.exponential(1.0),
        scipy.stats.gamma(2),
    ),
    "noise": (clusters.sinusoid(0.0, 1.0, 2.0, noise=0.4), scipy.stats.lognorm(0.4, scale=2.0)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_have_the_distribution(name):
    """And its moments within 5 standard errors; those of the variance from the draws' own fourth
    moments. Workers draw independently.
    """
    quantity, distribution = DISTRIBUTIONS[name]
    each = draws(quantity)
    values = each.ravel()
    mean, variance = (float(moment) for moment in (distribution.mean(), distribution.var()))
    tiny = 1e-6 * mean
    assert abs(values.mean() - mean) <= 5 * np.sqrt(variance / values.size) + tiny
    squares = (values - mean) ** 2
    assert abs(squares.mean() - variance) <= 5 * squares.std() / np.sqrt(values.size) + tiny**2
    assert np.abs(np.corrcoef(each.T) - np.eye(WORKERS)).max() < 5 / np.sqrt(DRAWS)
    if name != "measured":
        assert scipy.stats.kstest(values[:5000], distribution.cdf).pvalue > 1e-3


def test_nobody_takes_less_than_no_time():
    """Of a wide normal distribution the part below 0 is at 0."""
    values = draws(clusters.normal(0.5, 1.0)).ravel()
    part = scipy.stats.norm.cdf(-0.5)
    assert values.min() == 0
    assert abs((values == 0).mean() - part) <= 5 * np.sqrt(part * (1 - part) / values.size)
    mean = 0.5 * scipy.stats.norm.cdf(0.5) + scipy.stats.norm.pdf(0.5)
    assert abs(values.mean() - mean) <= 5 * values.std() / np.sqrt(values.size)


def test_a_coin():
    values = draws(clusters.bernoulli(0.3, 2.5)).ravel()
    assert set(values) == {0.0, 2.5}
    assert abs((values > 0).mean() - 0.3) <= 5 * np.sqrt(0.3 * 0.7 / values.size)


def test_the_noise_of_dropcompute():
    r"""Its B.1: min(Z / alpha, 5.5) with Z from LogNormal(4, 1) and alpha = 2 exp(4.5), whose mean
    is 0.4959.
    """
    alpha = 2 * np.exp(4.5)
    values = draws(clusters.bounded((1 / alpha) * clusters.lognormal(4, 1), 5.5)).ravel()
    mean = scipy.integrate.quad(
        lambda x: scipy.stats.lognorm.sf(x * alpha, 1, scale=np.exp(4)), 0, 5.5
    )[0]
    assert mean == pytest.approx(0.4959, abs=5e-5)
    assert abs(values.mean() - mean) <= 5 * values.std() / np.sqrt(values.size)
    assert values.max() == 5.5


def test_constants_are_of_all_or_of_each():
    assert (draws(clusters.constant(2.5)) == 2.5).all()
    assert (draws(clusters.constant([1, 2, 4])) == [1, 2, 4]).all()
    assert clusters.constant([1, 2, 4]).workers == 3
    assert clusters.constant(1).workers is None


def test_the_same_key_gives_the_same_bits_and_another_other_ones():
    values = draws(EXPONENTIAL)
    np.testing.assert_array_equal(
        values, sampler(EXPONENTIAL)(jax.random.split(jax.random.key(0), DRAWS), jnp.float32(0))
    )
    assert (values != draws(EXPONENTIAL, seed=1)).any(axis=0).all()


def test_a_workers_draw_is_its_own_whoever_else_there_is():
    quantity, keys = EXPONENTIAL, jax.random.split(jax.random.key(0), DRAWS)
    alone = [float(quantity.sample(keys[3], jnp.float32(0), worker)) for worker in range(WORKERS)]
    np.testing.assert_allclose(draws(quantity)[3], alone, rtol=1e-6)


def test_sums_and_multiples():
    quantity = 3 * clusters.constant([1, 2]) + clusters.constant(0.25) * 2
    assert (draws(quantity) == [3.5, 6.5]).all()
    assert quantity.workers == 2
    assert (clusters.constant(1) + clusters.constant([1, 2, 3])).workers == 3


@pytest.mark.parametrize(
    ("quantity", "positive"),
    [
        (clusters.constant(1), True),
        (clusters.constant(0), False),
        (clusters.constant([1, 0]), False),
        (clusters.lognormal(-3, 1), True),
        (clusters.normal(100, 1), False),
        (clusters.exponential(1), False),
        (clusters.gamma(1, 1), False),
        (clusters.bernoulli(1, 1), False),
        (clusters.measured([1, 2]), True),
        (clusters.measured([1, 0]), False),
        (clusters.trace([1, 2], 1), True),
        (clusters.trace(np.array([[1, 0]]), 1), False),
        (clusters.sinusoid(0, 0, 1, 3), True),
        (clusters.square_wave(1, 2, 1), True),
        (clusters.square_wave(1, 0, 1), False),
        (clusters.square_wave(0, 1, 1), False),
        (clusters.exponential(1) + clusters.constant(1), True),
        (clusters.constant(1) + clusters.exponential(1), True),
        (clusters.exponential(1) + clusters.constant(0), False),
        (2 * clusters.constant(1), True),
        (0 * clusters.constant(1), False),
        (clusters.bounded(clusters.constant(2), 1), True),
        (clusters.bounded(clusters.constant(2), 0), False),
        (clusters.bounded(clusters.exponential(2), 1), False),
        (clusters.slow(clusters.constant(2), [0], 3), True),
        (clusters.slow(clusters.exponential(2), [0], 3), False),
        (clusters.per_server(clusters.constant(2), 3), True),
        (clusters.per_server(clusters.exponential(2), 3), False),
        (clusters.sampled(2, of=3), False),
        (clusters.sampled(3, of=3), True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_bandwidths_are_never_0(quantity, positive):
    """An exponential one can be as near to 0 as you like."""
    assert quantity.positive == positive
    for port in ("up", "down"):
        if positive:
            clusters.Cluster(clusters.constant(1.0), **{port: quantity})
        else:
            with pytest.raises(
                ValueError, match=f"Cluster: {port} = .* can be 0; expected a bandwidth > 0 bit/s"
            ):
                clusters.Cluster(clusters.constant(1.0), **{port: quantity})


def test_a_bound():
    np.testing.assert_array_equal(
        draws(clusters.bounded(EXPONENTIAL, 0.7)), np.minimum(draws(EXPONENTIAL), np.float32(0.7))
    )


def test_the_slow_ones():
    expected = draws(EXPONENTIAL) * [1, 3, 1, 3, 1, 1, 1, 1]
    np.testing.assert_allclose(draws(clusters.slow(EXPONENTIAL, [3, 1], 3.0)), expected, rtol=1e-6)
    np.testing.assert_array_equal(draws(clusters.slow(EXPONENTIAL, [], 3.0)), draws(EXPONENTIAL))
    assert clusters.slow(clusters.constant([1, 2]), [0], 0.5).workers == 2


def test_a_cluster_that_names_a_worker_needs_it():
    one = clusters.constant(1.0)
    late = clusters.slow(one, [2, 5], 3.0)
    for quantity in (
        late,
        one + late,
        late + one,
        2 * late,
        clusters.bounded(late, 9.0),
        clusters.slow(late, [1], 2.0),
    ):
        cluster = clusters.Cluster(one, up=quantity)
        cluster.need_workers(6)
        with pytest.raises(
            ValueError,
            match=r"cluster: a quantity names worker 5 .* but the problem has 5 workers; expected workers 0 to 4",
        ):
            cluster.need_workers(5)
    servers = clusters.Cluster(clusters.per_server(clusters.slow(one, [1], 2.0), 4))
    servers.need_workers(5)
    with pytest.raises(ValueError, match="a quantity names worker 4"):
        servers.need_workers(4)


def test_workers_of_one_server_share_each_draw():
    values = draws(clusters.per_server(EXPONENTIAL, 3))
    np.testing.assert_array_equal(values, draws(EXPONENTIAL)[:, [0, 0, 0, 1, 1, 1, 2, 2]])
    assert clusters.per_server(clusters.constant([1, 2]), 3).workers == 6
    assert (draws(clusters.per_server(clusters.constant([1, 2]), 3)) == [1, 1, 1, 2, 2, 2]).all()


def test_samples_without_replacement():
    """Exactly k, each worker as often as another, and each pair: within 5 standard errors."""
    quantity = clusters.sampled(3, of=8)
    values = draws(quantity)
    assert set(values.ravel()) == {0, 1}
    assert (values.sum(axis=1) == 3).all()
    np.testing.assert_allclose(values.mean(axis=0), 3 / 8, atol=5 * np.sqrt(15 / 64 / DRAWS))
    pairs = (values.T @ values / DRAWS)[np.triu_indices(8, 1)]
    np.testing.assert_allclose(pairs, 3 / 28, atol=5 * np.sqrt(3 / 28 / DRAWS))
    assert (quantity.workers, clusters.per_server(quantity, 2).workers) == (8, 16)


def test_a_trace_goes_by_the_clock_and_begins_again():
    of_all, of_each = (
        clusters.trace([5, 6, 7], 2.0),
        clusters.trace(np.array([[1, 2], [3, 4]]), 0.5),
    )
    assert at(of_all, [0, 1.9, 2, 3.9, 4, 5.9, 6, 9, 601], worker=7).tolist() == [
        5,
        5,
        6,
        6,
        7,
        7,
        5,
        6,
        5,
    ]
    assert at(of_each, [0, 0.5, 1.25], worker=0).tolist() == [1, 2, 1]
    assert at(of_each, [0, 0.5, 1.25], worker=1).tolist() == [3, 4, 3]
    assert (of_all.workers, of_each.workers) == (None, 2)


def test_measurements_of_each_worker_are_its_own():
    quantity = clusters.measured(np.array([[1, 2], [3, 4], [5, 6]]))
    values = draws(quantity)
    assert [set(column) for column in values.T] == [{1, 2}, {3, 4}, {5, 6}]
    assert quantity.workers == 3
    assert clusters.measured([1, 2]).workers is None


def test_a_sinusoid():
    clocks = np.linspace(0, 9, 50)
    np.testing.assert_allclose(
        at(clusters.sinusoid(3.0, 0.7, 0.5), clocks), 3 * np.sin(0.7 * clocks) ** 2 + 0.5, rtol=1e-5
    )
    noisy, plain = (
        draws(clusters.sinusoid(3.0, 0.7, 0.5, noise), clock=2.0) for noise in (0.2, 0.0)
    )
    logs = np.log(noisy / plain)
    assert abs(logs.mean()) < 5 * 0.2 / np.sqrt(logs.size)
    assert logs.std() == pytest.approx(0.2, rel=5 / np.sqrt(2 * logs.size))


def test_a_square_wave():
    wave = clusters.square_wave(9.0, 1.0, 4.0, duty=0.25)
    assert at(wave, [0, 0.99, 1, 3.99, 4, 4.99, 5, 401]).tolist() == [9, 9, 1, 1, 9, 9, 1, 1]
    assert at(clusters.square_wave(9.0, 1.0, 4.0), [0, 1.99, 2, 3.99]).tolist() == [9, 9, 1, 1]
    assert set(at(clusters.square_wave(9.0, 1.0, 4.0, duty=1.0), [0, 3.99])) == {9.0}
    assert set(at(clusters.square_wave(9.0, 1.0, 4.0, duty=0.0), [0, 3.99])) == {1.0}


NAMED = {  # arguments that differ in one of them each
    clusters.constant: [(1,), (2,), ([1, 2],), ([2, 1],), ([1, 2, 3],)],
    clusters.normal: [(1, 2), (2, 1)],
    clusters.lognormal: [(1, 2), (2, 1)],
    clusters.exponential: [(1,), (2,)],
    clusters.gamma: [(1, 2), (2, 1)],
    clusters.bernoulli: [(0.5, 1), (1, 0.5)],
    clusters.measured: [([1, 2],), ([1, 3],)],
    clusters.trace: [([1, 2], 1), ([1, 2], 2), ([1, 3], 1)],
    clusters.sinusoid: [(1, 2, 3), (1, 2, 3, 4), (2, 1, 3), (1, 2, 4)],
    clusters.square_wave: [(1, 2, 3), (1, 2, 3, 0.1), (2, 1, 3), (1, 2, 4)],
    clusters.sampled: [(1, 2), (1, 3), (2, 3)],
    clusters.bounded: [(EXPONENTIAL, 1), (EXPONENTIAL, 2), (2 * EXPONENTIAL, 1)],
    clusters.slow: [(EXPONENTIAL, [1], 2), (EXPONENTIAL, [2], 2), (EXPONENTIAL, [1], 3)],
    clusters.per_server: [(EXPONENTIAL, 2), (EXPONENTIAL, 3)],
}


def test_names_tell_all_parameters():
    """A checkpoint knows a cluster by its name."""
    one, two = clusters.exponential(1), clusters.exponential(2)
    made = [make(*arguments) for make, several in NAMED.items() for arguments in several]
    names = [
        quantity.name
        for quantity in (*made, 2 * one, 3 * one, one + two, 2 * (one + two), 2 * one + two)
    ]
    assert len(set(names)) == len(names)
    first, second = clusters.constant(1), clusters.constant(2)
    other = [
        clusters.Cluster(first),
        clusters.Cluster(second),
        clusters.Cluster(first, up=first),
        clusters.Cluster(first, down=first),
        clusters.Cluster(first, up=second),
        clusters.Cluster(first, latency=1.0),
        clusters.Cluster(first, convention="pipelined"),
        clusters.Cluster(first, micro_batches=2),
        clusters.Cluster(first, per_sample=first),
        clusters.Cluster(first, per_sample=second),
        clusters.Cluster(first, noise=0.1),
        clusters.Cluster(first, noise=0.2),
        *[clusters.Cluster(first, overlap=overlap) for overlap in overlaps(first, second)],
        clusters.Cluster(first, present=first),
        clusters.Cluster(first, present=first, present_for=2),
        clusters.Cluster(first, delivered=first),
    ]
    assert len({cluster.name for cluster in other}) == len(other)


def overlaps(one: clusters.Quantity, other: clusters.Quantity) -> list[clusters.Overlap]:
    """Five that differ in one thing each."""
    parts = [
        (one, one, 0.5, 0.1),
        (other, one, 0.5, 0.1),
        (one, other, 0.5, 0.1),
        (one, one, 0.4, 0.1),
        (one, one, 0.5, 0.2),
    ]
    return [clusters.Overlap(*each) for each in parts]


NAN, INFINITE = float("nan"), float("inf")
QUANTITY = EXPONENTIAL
NUMBERS = {  # arguments that are no negative, no infinite number, and not NaN
    clusters.constant: {"value": 1.0},
    clusters.normal: {"mean": 1.0, "std": 1.0},
    clusters.bernoulli: {"probability": 0.5, "value": 1.0},
    clusters.exponential: {"mean": 1.0},
    clusters.gamma: {"shape": 1.0, "scale": 1.0},
    clusters.sinusoid: {"eta": 1.0, "theta": 1.0, "delta": 1.0, "noise": 1.0},
    clusters.square_wave: {"high": 1.0, "low": 1.0, "period": 1.0, "duty": 0.5},
}


@pytest.mark.parametrize("make", NUMBERS, ids=lambda make: make.__name__)
def test_no_numbers_are_refused(make):
    for name in NUMBERS[make]:
        for wrong in (-1.0, NAN, INFINITE):
            with pytest.raises(ValueError, match=rf"^{make.__name__}.*(=|given) {wrong}"):
                make(**{**NUMBERS[make], name: wrong})


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda: clusters.lognormal(-INFINITE, 1),
            "lognormal: mu = -inf; expected a finite number$",
        ),
        (lambda: clusters.lognormal(1, -1.0), "lognormal: sigma = -1.0"),
        (lambda: clusters.constant([1.0, NAN]), "constant: given nan"),
        (lambda: clusters.measured([1, -1]), "measured: given -1"),
        (lambda: clusters.trace(np.array([[1, INFINITE]]), 1), "trace: given inf"),
        (lambda: clusters.trace([1], NAN), "trace: interval = nan"),
        (lambda: clusters.bounded(QUANTITY, -1.0), "bounded: most = -1.0"),
        (lambda: clusters.slow(QUANTITY, [0], NAN), "slow: factor = nan"),
        (lambda: -1.0 * QUANTITY, "Quantity: factor = -1.0"),
        (lambda: clusters.Cluster(QUANTITY, latency=NAN), "Cluster: latency = nan"),
        (lambda: clusters.Cluster(QUANTITY, noise=-1.0), "Cluster: noise = -1.0"),
        (lambda: clusters.Overlap(QUANTITY, QUANTITY, -0.1, 0.1), "Overlap: first = -0.1"),
        (lambda: clusters.Overlap(QUANTITY, QUANTITY, 0.1, NAN), "Overlap: last = nan"),
        (
            lambda: clusters.Cluster(QUANTITY, present_for=0),
            "Cluster: present_for = 0; expected an integer, at least 1",
        ),
        (
            lambda: clusters.Cluster(QUANTITY, present_for=4),
            "Cluster: present_for = 4 but present = None; expected a quantity",
        ),
        (
            lambda: clusters.Cluster(QUANTITY, delivered=clusters.sampled(2, of=3)),
            r"delivered = sampled\(2, of=3\) is for 3 workers; expected a",
        ),
        (
            lambda: clusters.Cluster(QUANTITY, delivered=clusters.slow(QUANTITY, [4], 2.0)),
            "is for 5 workers; expected a quantity of links",
        ),
        (lambda: clusters.bernoulli(1.5, 1), "bernoulli = 1.5; expected a number from 0 to 1"),
        (lambda: clusters.square_wave(1, 1, 1, 1.5), "square_wave: duty = 1.5"),
        (lambda: clusters.gamma(0, 1), "gamma: shape = 0; expected a finite number > 0"),
        (lambda: clusters.sinusoid(1, 1, 0), "sinusoid: delta = 0"),
        (lambda: clusters.square_wave(1, 1, 0), "square_wave: period = 0"),
        (lambda: clusters.trace([1], 0), "trace: interval = 0"),
        (lambda: clusters.slow(QUANTITY, [0], 0), "slow: factor = 0"),
        (
            lambda: clusters.slow(QUANTITY, [0, -1], 2),
            "slow: worker = -1; expected an integer, at least 0",
        ),
        (
            lambda: clusters.per_server(QUANTITY, 0),
            "per_server: size = 0; expected an integer, at least 1",
        ),
        (
            lambda: clusters.constant(np.array([[1, 2]])),
            r"constant: value of shape \(1, 2\); expected one number, or one for each worker",
        ),
        (lambda: clusters.constant(np.array(["a"])), "constant: value = .*; expected a number"),
        (
            lambda: clusters.measured([]),
            r"measured: values of shape \(0,\); expected \[samples\], or \[N, samples\]",
        ),
        (lambda: clusters.trace(np.ones((1, 1, 1)), 1), r"trace: values of shape \(1, 1, 1\)"),
        (lambda: QUANTITY * True, "factor = True; expected a number"),
        (lambda: QUANTITY + 1, "other = 1; expected a quantity"),
        (
            lambda: clusters.constant([1, 2]) + clusters.constant([1, 2, 3]),
            "quantities for different numbers of workers: .* for 2, .* for 3",
        ),
        (
            lambda: clusters.Cluster(clusters.constant([1, 2]), up=clusters.constant([1, 2, 3])),
            "different numbers of workers",
        ),
        (
            lambda: clusters.Cluster(
                QUANTITY,
                up=clusters.trace(np.array([[1], [1]]), 1),
                down=clusters.constant([1, 2, 3]),
            ),
            "different numbers",
        ),
        (lambda: clusters.sampled(0, 2), "sampled: k = 0; expected an integer, at least 1"),
        (lambda: clusters.sampled(3, of=2), "sampled: k = 3 of 2 workers; expected k of at most 2"),
        (
            lambda: clusters.Cluster(QUANTITY, micro_batches=0),
            "Cluster: micro_batches = 0; expected an integer, at least 1",
        ),
        (lambda: clusters.Cluster(QUANTITY, up=clusters.constant(-1.0)), "constant: given -1"),
        (
            lambda: clusters.Cluster(
                clusters.constant([1, 2]), per_sample=clusters.constant([1, 2, 3])
            ),
            "different numbers of workers",
        ),
        (
            lambda: clusters.Overlap(QUANTITY, QUANTITY, 1.5, 0.1),
            "Overlap: first = 1.5; expected a number from 0 to 1",
        ),
        (
            lambda: clusters.Overlap(QUANTITY, QUANTITY, 0.1, 1.01),
            "Overlap: last = 1.01; expected a number from 0 to 1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()


def test_a_clusters_convention_is_a_known_one():
    """Under pytest the annotation would catch it first."""
    fresh = clusters.Cluster(QUANTITY)
    object.__setattr__(fresh, "convention", "duplex")
    with pytest.raises(ValueError, match="convention = 'duplex'"):
        inspect.unwrap(clusters.Cluster.__post_init__)(fresh)


def round_at(clock: float, seed: int = 0) -> Round:
    return Round(jnp.int32(0), 4, jax.random.key(seed), now=Now(None, jnp.float32(clock)))


def test_a_workers_seconds_are_those_of_its_micro_batches():
    cluster = clusters.Cluster(clusters.exponential(1.0), micro_batches=3)
    latencies = np.asarray(cluster.latencies(round_at(0), jnp.arange(4)))
    assert latencies.shape == (4, 3)
    assert len(np.unique(latencies)) == 12
    np.testing.assert_allclose(
        cluster.seconds(round_at(0), jnp.arange(4)), latencies.sum(axis=1), rtol=1e-6
    )
    np.testing.assert_array_equal(
        cluster.latencies(round_at(0), jnp.array([2, 0])), latencies[[2, 0]]
    )
    assert not np.isin(latencies, cluster.latencies(round_at(0, seed=1), jnp.arange(4))).any()


def test_ports_have_their_own_draws_and_go_by_the_clock():
    random, wave = clusters.lognormal(0, 1), clusters.square_wave(4.0, 1.0, 2.0)
    cluster = clusters.Cluster(random, up=random, down=random)
    seconds, (up, down) = (
        cluster.seconds(round_at(0), jnp.arange(4)),
        cluster.bandwidths(round_at(0), jnp.arange(4)),
    )
    assert len(np.unique([seconds, up, down])) == 12
    both = clusters.Cluster(wave, up=clusters.constant([1, 2, 3, 4]), down=wave)
    for clock, level in ((0.5, 4), (1.5, 1)):
        up, down = both.bandwidths(round_at(clock), jnp.array([1, 3]))
        assert (up.tolist(), down.tolist()) == ([2, 4], [level] * 2)
        assert both.seconds(round_at(clock), jnp.arange(2)).tolist() == [level] * 2


def test_ports_that_are_not_given():
    """Sending takes no time, and receiving as long as sending."""
    up, down = clusters.Cluster(QUANTITY).bandwidths(round_at(0), jnp.arange(2))
    assert up.tolist() == down.tolist() == [np.inf] * 2
    up, down = clusters.Cluster(QUANTITY, up=clusters.lognormal(0, 1)).bandwidths(
        round_at(0), jnp.arange(2)
    )
    assert up.tolist() == down.tolist() != [np.inf] * 2
    up, down = clusters.Cluster(QUANTITY, down=clusters.constant(3)).bandwidths(
        round_at(0), jnp.arange(2)
    )
    assert (up.tolist(), down.tolist()) == ([np.inf] * 2, [3] * 2)


def test_a_cluster_is_for_as_many_workers_as_its_parts():
    each = clusters.constant([1, 2, 3])
    assert clusters.Cluster(QUANTITY).workers is None
    parts = (
        {"compute": each},
        {"up": each},
        {"down": each},
        {"per_sample": each},
        {"present": clusters.sampled(2, of=3)},
    )
    backward = ((each, QUANTITY), (QUANTITY, each))
    for part in (*parts, *({"overlap": clusters.Overlap(*both, 0.5, 0.1)} for both in backward)):
        cluster = clusters.Cluster(**{"compute": QUANTITY, **part})
        assert cluster.workers == 3
        with pytest.raises(ValueError, match="cluster: it has 3 workers but the problem has 4"):
            cluster.need_workers(4)
    late = clusters.slow(QUANTITY, [4], 2.0)
    with pytest.raises(ValueError, match="a quantity names worker 4"):
        clusters.Cluster(QUANTITY, per_sample=late).need_workers(4)
