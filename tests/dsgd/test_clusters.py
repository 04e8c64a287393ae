"""Quantities compared with their distributions and formulas, and invalid clusters."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dsgd import Now, Round
from dsgd.clusters import (
    Cluster,
    MessageNoise,
    Overlap,
    Quantity,
    bernoulli,
    bounded,
    constant,
    exponential,
    gamma,
    lognormal,
    measured,
    normal,
    per_server,
    sampled,
    sinusoid,
    slow,
    square_wave,
    trace,
)

WORKERS, DRAWS = 8, 3000
EXPONENTIAL = exponential(1.0)


@cache
def sampler(quantity: Quantity):
    """Returns a program (keys, clock) -> `[DRAWS, WORKERS]`."""
    workers = jnp.arange(WORKERS if quantity.workers is None else quantity.workers)
    of_all = jax.vmap(quantity.sample, (None, None, 0))
    return jax.jit(jax.vmap(lambda key, clock: of_all(key, clock, workers), (0, None)))


@cache
def draws(quantity: Quantity, clock: float = 0.0, seed: int = 0) -> np.ndarray:
    """Returns draws `[DRAWS, WORKERS]`, in float64."""
    return np.asarray(
        sampler(quantity)(jax.random.split(jax.random.key(seed), DRAWS), jnp.float32(clock)),
        np.float64,
    )


def values_at(quantity: Quantity, clocks, worker: int = 0) -> np.ndarray:
    """Returns the values for one worker, with one key, `[clocks]`."""
    sample = jax.jit(jax.vmap(lambda clock: quantity.sample(jax.random.key(0), clock, worker)))
    return np.asarray(sample(jnp.asarray(clocks, jnp.float32)), np.float64)


DISTRIBUTIONS = {
    "normal": (normal(2.0, 0.3), scipy.stats.norm(2.0, 0.3)),
    "lognormal": (lognormal(-1.84, 0.6), scipy.stats.lognorm(0.6, scale=np.exp(-1.84))),
    "exponential": (exponential(0.2), scipy.stats.expon(scale=0.2)),
    "gamma": (gamma(2.5, 0.4), scipy.stats.gamma(2.5, scale=0.4)),
    "a coin": (bernoulli(0.3, 2.5), scipy.stats.rv_discrete(values=([0, 1], [0.7, 0.3]))()),
    "measured": (
        measured([1.0, 2.0, 5.0, 5.0]),
        scipy.stats.rv_discrete(values=([1, 2, 5], [0.25, 0.25, 0.5]))(),
    ),
    "sum": (constant(1.0) + 3 * exponential(0.5), scipy.stats.expon(1, 1.5)),
    "sum of two alike": (exponential(1.0) + exponential(1.0), scipy.stats.gamma(2)),
    "noise": (sinusoid(0.0, 1.0, 2.0, noise=0.4), scipy.stats.lognorm(0.4, scale=2.0)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_have_the_distribution(name):
    """Moments are within 5 standard errors; those of the variance come from the draws' own fourth
    moments. Workers draw independently, and another key gives other draws.
    """
    quantity, distribution = DISTRIBUTIONS[name]
    each = draws(quantity)
    values = each.ravel() / (2.5 if name == "a coin" else 1)
    mean, variance = (float(moment) for moment in (distribution.mean(), distribution.var()))
    tiny = 1e-6 * mean
    assert abs(values.mean() - mean) <= 5 * np.sqrt(variance / values.size) + tiny
    squares = (values - mean) ** 2
    assert abs(squares.mean() - variance) <= 5 * squares.std() / np.sqrt(values.size) + tiny**2
    assert np.abs(np.corrcoef(each.T) - np.eye(WORKERS)).max() < 5 / np.sqrt(DRAWS)
    if name in ("measured", "a coin"):
        assert set(values) <= set(range(6))
    else:
        assert scipy.stats.kstest(values[:5000], distribution.cdf).pvalue > 1e-3
    assert (each != draws(quantity, seed=1)).any(axis=0).all()


def test_no_worker_takes_negative_time():
    """A wide normal distribution is truncated below at 0."""
    values = draws(normal(0.5, 1.0)).ravel()
    part = scipy.stats.norm.cdf(-0.5)
    assert values.min() == 0
    assert abs((values == 0).mean() - part) <= 5 * np.sqrt(part * (1 - part) / values.size)
    mean = 0.5 * scipy.stats.norm.cdf(0.5) + scipy.stats.norm.pdf(0.5)
    assert abs(values.mean() - mean) <= 5 * values.std() / np.sqrt(values.size)


# Draws, from the draws of EXPONENTIAL; and the number of workers of the quantity.
FORMULAS = {
    "of all": (constant(2.5), lambda x: 2.5 + 0 * x, None),
    "of each": (constant([1, 2, 4]), lambda x: [1, 2, 4] + 0 * x[:, :3], 3),
    "linear": (
        3 * constant([1, 2]) + constant(0.25) * 2,
        lambda x: [3.5, 6.5] + 0 * x[:, :2],
        2,
    ),
    "of some": (constant(1) + constant([1, 2, 3]), lambda x: [2, 3, 4] + 0 * x[:, :3], 3),
    "bounded": (bounded(EXPONENTIAL, 0.7), lambda x: np.minimum(x, np.float32(0.7)), None),
    "slow": (slow(EXPONENTIAL, [3, 1], 2.0), lambda x: x * [1, 2, 1, 2, 1, 1, 1, 1], None),
    "none slow": (slow(EXPONENTIAL, [], 3.0), lambda x: x, None),
    "slow of each": (slow(constant([1, 2]), [0], 0.5), lambda x: [0.5, 2] + 0 * x[:, :2], 2),
    "servers": (per_server(EXPONENTIAL, 3), lambda x: x[:, [0, 0, 0, 1, 1, 1, 2, 2]], None),
    "servers of each": (
        per_server(constant([1, 2]), 3),
        lambda x: [1, 1, 1, 2, 2, 2] + 0 * x[:, :6],
        6,
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_arithmetic_of_quantities_draws_the_values_of_its_formula(name):
    quantity, expected, workers = FORMULAS[name]
    np.testing.assert_array_equal(draws(quantity), expected(draws(EXPONENTIAL)))
    assert quantity.workers == workers


def test_samples_without_replacement():
    """Exactly k workers, all workers equally often, and all pairs: within 5 standard errors."""
    quantity = sampled(3, of=8)
    values = draws(quantity)
    assert set(values.ravel()) == {0, 1}
    assert (values.sum(axis=1) == 3).all()
    np.testing.assert_allclose(values.mean(axis=0), 3 / 8, atol=5 * np.sqrt(15 / 64 / DRAWS))
    pairs = (values.T @ values / DRAWS)[np.triu_indices(8, 1)]
    np.testing.assert_allclose(pairs, 3 / 28, atol=5 * np.sqrt(3 / 28 / DRAWS))
    assert (quantity.workers, per_server(quantity, 2).workers) == (8, 16)


OF_EACH = trace(np.array([[1, 2], [3, 4]]), 0.5)
WAVE = square_wave(9.0, 1.0, 4.0, duty=0.25)


@pytest.mark.parametrize(
    ("quantity", "worker", "at_clocks"),
    [
        (trace([5, 6, 7], 2.0), 7, {0: 5, 1.9: 5, 2: 6, 4: 7, 6: 5, 601: 5}),
        (OF_EACH, 0, {0: 1, 0.5: 2, 1.25: 1}),
        (OF_EACH, 1, {0: 3, 0.5: 4, 1.25: 3}),
        (WAVE, 0, {0: 9, 0.99: 9, 1: 1, 3.99: 1, 4: 9, 401: 1}),
        (square_wave(9.0, 1.0, 4.0), 0, {0: 9, 1.99: 9, 2: 1, 3.99: 1}),
        (square_wave(9.0, 1.0, 4.0, duty=1.0), 0, {0: 9, 3.99: 9}),
        (square_wave(9.0, 1.0, 4.0, duty=0.0), 0, {0: 1, 3.99: 1}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_changing_quantities_follow_the_clock_and_are_periodic(quantity, worker, at_clocks):
    assert values_at(quantity, list(at_clocks), worker).tolist() == list(at_clocks.values())


def test_measurements_of_each_worker_are_its_own():
    each = measured(np.array([[1, 2], [3, 4], [5, 6]]))
    assert [set(column) for column in draws(each).T] == [{1, 2}, {3, 4}, {5, 6}]
    assert (each.workers, OF_EACH.workers) == (3, 2)
    assert (measured([1, 2]).workers, trace([1, 2], 1).workers) == (None, None)


def test_a_sinusoid():
    clocks = np.linspace(0, 9, 50)
    expected = 3 * np.sin(0.7 * clocks) ** 2 + 0.5
    np.testing.assert_allclose(values_at(sinusoid(3.0, 0.7, 0.5), clocks), expected, rtol=1e-5)
    noisy, plain = (draws(sinusoid(3.0, 0.7, 0.5, noise), clock=2.0) for noise in (0.2, 0.0))
    logs = np.log(noisy / plain)
    assert abs(logs.mean()) < 5 * 0.2 / np.sqrt(logs.size)
    assert logs.std() == pytest.approx(0.2, rel=5 / np.sqrt(2 * logs.size))


POSITIVE = [
    constant(1),
    lognormal(-3, 1),
    measured([1, 2]),
    trace([1, 2], 1),
    sinusoid(0, 0, 1, 3),
    square_wave(1, 2, 1),
    EXPONENTIAL + constant(1),
    constant(1) + EXPONENTIAL,
    2 * constant(1),
    bounded(constant(2), 1),
    slow(constant(2), [0], 3),
    per_server(constant(2), 3),
    sampled(3, of=3),
]
ZERO = [
    constant(0),
    constant([1, 0]),
    normal(100, 1),
    EXPONENTIAL,
    gamma(1, 1),
    bernoulli(1, 1),
    measured([1, 0]),
    trace(np.array([[1, 0]]), 1),
    square_wave(1, 0, 1),
    square_wave(0, 1, 1),
    EXPONENTIAL + constant(0),
    0 * constant(1),
    bounded(constant(2), 0),
    bounded(EXPONENTIAL, 1),
    slow(EXPONENTIAL, [0], 3),
    per_server(EXPONENTIAL, 3),
    sampled(2, of=3),
]


@pytest.mark.parametrize("quantity", [*POSITIVE, *ZERO], ids=lambda quantity: quantity.name)
def test_bandwidths_are_never_0(quantity):
    """An exponential draw can be arbitrarily close to 0."""
    assert quantity.positive == (quantity in POSITIVE)
    for port in ("up", "down"):
        if quantity.positive:
            Cluster(constant(1.0), **{port: quantity})
        else:
            with pytest.raises(ValueError, match=f"Cluster: {port} = .* can be 0"):
                Cluster(constant(1.0), **{port: quantity})


ARGUMENTS = {
    constant: ([1, 2],),
    normal: (1, 2),
    lognormal: (1, 2),
    exponential: (1,),
    gamma: (1, 2),
    bernoulli: (0.25, 1),
    measured: ([1, 2],),
    trace: ([1, 2], 1),
    sinusoid: (1, 2, 3, 4),
    square_wave: (1, 2, 3, 0.1),
    sampled: (1, 3),
    bounded: (EXPONENTIAL, 1),
    slow: (EXPONENTIAL, [1, 2], 3),
    per_server: (EXPONENTIAL, 2),
}


def changes(make, arguments):
    """Returns the quantity, and those that differ from it in one argument each."""
    yield make(*arguments)
    for i, value in enumerate(arguments):
        other = [*value, 5] if isinstance(value, list) else 2 * value
        yield make(*arguments[:i], other, *arguments[i + 1 :])


ONE, TWO = constant(1), constant(2)
CLUSTERS = [
    Cluster(ONE),
    Cluster(TWO),
    *(Cluster(ONE, **{part: q}) for part in ("up", "down", "per_sample") for q in (ONE, TWO)),
    Cluster(ONE, latency=1.0),
    Cluster(ONE, convention="pipelined"),
    Cluster(ONE, micro_batches=2),
    *(Cluster(ONE, noise=noise) for noise in (0.1, 0.2)),
    *(
        Cluster(ONE, overlap=Overlap(*parts))
        for parts in [
            (ONE, ONE, 0.5, 0.1),
            (TWO, ONE, 0.5, 0.1),
            (ONE, TWO, 0.5, 0.1),
            (ONE, ONE, 0.4, 0.1),
            (ONE, ONE, 0.5, 0.2),
        ]
    ),
    Cluster(ONE, present=ONE),
    Cluster(ONE, present=ONE, participation_period=2),
    Cluster(ONE, delivered=ONE),
    *(Cluster(ONE, power=q) for q in (ONE, TWO)),
    *(Cluster(ONE, message_noise=MessageNoise(s)) for s in (0.1, 0.2)),
    *(Cluster(ONE, message_noise=MessageNoise(snr=s)) for s in (0.1, 0.2)),
]


def test_names_contain_all_parameters():
    """A checkpoint identifies a cluster by its name."""
    one, two = exponential(1), exponential(2)
    made = [each for make, given in ARGUMENTS.items() for each in changes(make, given)]
    made += [constant(1), constant([2, 1]), measured([1, 3]), trace([1, 3], 1)]
    made += [3 * one, 5 * one, one + two, 2 * (one + two), 2 * one + two]
    for several in (made, CLUSTERS):
        assert len({each.name for each in several}) == len(several)


def round_at(clock: float, seed: int = 0) -> Round:
    return Round(jnp.int32(0), 4, jax.random.key(seed), now=Now(None, jnp.float32(clock)))


def test_ports_have_their_own_draws_and_follow_the_clock():
    random, wave = lognormal(0, 1), square_wave(4.0, 1.0, 2.0)
    cluster = Cluster(random, up=random, down=random)
    seconds, (up, down) = (
        cluster.seconds(round_at(0), jnp.arange(4)),
        cluster.bandwidths(round_at(0), jnp.arange(4)),
    )
    assert len(np.unique([seconds, up, down])) == 12
    both = Cluster(wave, up=constant([1, 2, 3, 4]), down=wave)
    for clock, level in ((0.5, 4), (1.5, 1)):
        up, down = both.bandwidths(round_at(clock), jnp.array([1, 3]))
        assert (up.tolist(), down.tolist()) == ([2, 4], [level] * 2)
        assert both.seconds(round_at(clock), jnp.arange(2)).tolist() == [level] * 2


def test_defaults_of_ports():
    """Sending takes no time, and receiving takes as long as sending."""
    up, down = Cluster(EXPONENTIAL).bandwidths(round_at(0), jnp.arange(2))
    assert up.tolist() == down.tolist() == [np.inf] * 2
    up, down = Cluster(EXPONENTIAL, up=lognormal(0, 1)).bandwidths(round_at(0), jnp.arange(2))
    assert up.tolist() == down.tolist() != [np.inf] * 2
    up, down = Cluster(EXPONENTIAL, down=constant(3)).bandwidths(round_at(0), jnp.arange(2))
    assert (up.tolist(), down.tolist()) == ([np.inf] * 2, [3] * 2)


EACH, LATE = constant([1, 2, 3]), slow(ONE, [1, 2], 2.0)
PARTS = (
    *({part: EACH} for part in ("compute", "up", "down", "per_sample")),
    {"present": sampled(2, of=3)},
    {"power": EACH},
    {"overlap": Overlap(EACH, ONE, 0.5, 0.1)},
    {"overlap": Overlap(ONE, EACH, 0.5, 0.1)},
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: next(iter(part)))
def test_a_cluster_has_the_number_of_workers_of_its_parts(part):
    cluster = Cluster(**{"compute": ONE, **part})
    assert (cluster.workers, Cluster(ONE).workers) == (3, None)
    cluster.require_workers(3)
    with pytest.raises(ValueError, match=r"cluster: .*3 workers .* 4"):
        cluster.require_workers(4)


@pytest.mark.parametrize(
    ("quantity", "last"),
    [
        (LATE, 2),
        (ONE + LATE, 2),
        (LATE + ONE, 2),
        (2 * LATE, 2),
        (bounded(LATE, 9.0), 2),
        (slow(LATE, [0], 2.0), 2),
        (per_server(LATE, 2), 4),
    ],
)
def test_a_cluster_that_names_a_worker_requires_it(quantity, last):
    for part in ("up", "per_sample"):
        cluster = Cluster(ONE, **{part: quantity})
        cluster.require_workers(last + 1)
        with pytest.raises(ValueError, match=f"names worker {last} "):
            cluster.require_workers(last)
