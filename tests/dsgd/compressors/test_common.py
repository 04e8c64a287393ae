"""Draws that all senders of an exchange share, linear codes, and compressors that use them."""

from __future__ import annotations

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import Common, Compressor, compressors
from dsgd.compressors import (
    buckets,
    chunked_top_k,
    contraction,
    correlated_quantization,
    count_sketch,
    induced,
    perm_k,
    random_block,
    random_k,
    random_places,
    repeated,
    rotated,
    shared_random_k,
    top_k,
    whole_model,
    with_seed,
)
from dsgd.compressors.members import constant_at
from dsgd.compressors.sizes import fixed_size
from tests.dsgd.compressors.shared import (
    STANDARD_ERRORS,
    UNOPTIMIZED,
    normal,
    sqnorm,
    standard_error,
)

D, DRAWS = 24, 4000
HALF = shared_random_k(0.5)
NESTED = [
    HALF,
    whole_model(HALF),
    contraction(HALF),
    buckets(HALF, 10),
    buckets(contraction(HALF), 8),
    top_k(1.0, HALF),
    random_k(1.0, HALF),
    chunked_top_k(4, 4, HALF),
    induced(contraction(HALF), HALF),
    repeated(contraction(shared_random_k(0.25)), 2),
]


def exchange(compressor: Compressor, key: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns what the receivers decode of the messages of N workers, `[N, d]`."""
    N, d = rows.shape

    def send(worker, x):
        own = jax.random.fold_in(key, worker)
        common = Common.of_exchange(key, worker, N)
        return compressor.decompress(compressors.encode(compressor, own, x, None, common)[0], d)

    return jax.vmap(send)(jnp.arange(N), rows)


@cache
def many(compressor: Compressor):
    """Returns a program (rows `[N, d]`) -> decoded messages over exchanges, `[DRAWS, N, d]`."""

    def run(rows):
        keys = jax.random.split(jax.random.key(0), DRAWS)
        return jax.vmap(lambda key: exchange(compressor, key, rows))(keys)

    compiled = jax.jit(run, compiler_options=UNOPTIMIZED)
    return lambda rows: np.asarray(compiled(np.asarray(rows, np.float32)), np.float64)


@pytest.mark.parametrize("compressor", NESTED, ids=lambda compressor: compressor.name)
def test_senders_of_an_exchange_choose_the_same_places(compressor):
    """Also if the compressor is a part of another one; but other ones in another exchange."""
    assert compressor.shares
    draw = jax.jit(partial(exchange, compressor), compiler_options=UNOPTIMIZED)
    one, other = (
        np.asarray(draw(jax.random.key(seed), np.arange(1.0, 4)[:, None] * np.ones(D, np.float32)))
        for seed in range(2)
    )
    np.testing.assert_allclose(one, np.arange(1.0, 4)[:, None] * one[0], rtol=1e-6)
    assert 0 < np.count_nonzero(one[0]) < D
    assert (one[0] != other[0]).any()


def test_buckets_have_different_draws():
    rows = np.ones((1, 20))
    places = np.nonzero(many(buckets(shared_random_k(0.1), 10))(rows)[:, 0])[1].reshape(DRAWS, 2)
    assert 0.8 < np.mean(places[:, 1] != places[:, 0] + 10) < 1


def test_a_compressor_without_common_draws_ignores_them():
    common, x = Common.of_exchange(jax.random.key(1), jnp.int32(2), 4), jnp.asarray(normal(D))
    one, other = (
        compressors.encode(random_k(0.5), jax.random.key(0), x, None, given).decoded
        for given in (None, common)
    )
    assert not compressors.sign.shares
    np.testing.assert_array_equal(one, other)


def test_common_reaches_compress():
    def compress(key, x, common=None):
        assert common is not None
        return x.at[:2].set(jnp.stack([common.worker, common.workers]).astype(x.dtype))

    spy = fixed_size(compress, lambda message, d: message, "spy")
    exchange(rotated(spy), jax.random.key(0), jnp.zeros((3, 8)))
    decoded = exchange(buckets(spy, 4), jax.random.key(0), jnp.zeros((3, 8)))
    np.testing.assert_array_equal(decoded[:, [0, 4]], [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(decoded[:, [1, 5]], 3)


# Elements at random places.


CODES = [random_places(0.3), random_places(1.0), random_block(0.3), random_block(1.0)]


def inclusion(code, d: int) -> np.ndarray:
    """Returns which elements are sent in each draw, bool `[DRAWS, d]`."""
    decoded = many(with_seed(code))(np.ones((1, d)))[:, 0]
    np.testing.assert_allclose(decoded[decoded != 0], decoded.max(), rtol=1e-6)
    return decoded != 0


@pytest.mark.parametrize("d", [1, 3, 10])
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_element_is_one_of_the_k_with_probability_k_over_d(code, d):
    sent, k = inclusion(code, d), int(np.ceil(0.3 * d)) if "0.3" in code.name else d
    np.testing.assert_array_equal(sent.sum(axis=1), k)
    share = k / d
    deviation = STANDARD_ERRORS * np.sqrt(share * (1 - share) / DRAWS) + 1e-12
    assert (np.abs(sent.mean(axis=0) - share) <= deviation).all()


def test_random_places_are_in_different_parts_and_blocks_are_contiguous():
    """The ten elements form a circle with parts of 4, 3 and 3 elements."""
    block = inclusion(random_block(0.3), 10)
    changes = np.sum(block != np.roll(block, 1, axis=1), axis=1)
    np.testing.assert_array_equal(changes, 2)
    spread = inclusion(random_places(0.3), 10)
    gaps = [np.diff(np.r_[at, at[0] + 10]) for at in map(np.flatnonzero, spread)]
    assert max(gap.max() for gap in gaps) <= 7
    assert len({tuple(row) for row in spread}) > 30


@pytest.mark.parametrize("code", CODES[::2], ids=lambda code: code.name)
def test_the_mean_has_the_error_of_one_message_of_the_mean(code):
    rows = np.stack([normal(10) + i for i in range(4)]).astype(np.float32)
    errors = sqnorm(many(with_seed(code))(rows).mean(axis=1) - rows.mean(axis=0))
    expected = constant_at(code.omega, 10) * sqnorm(rows.mean(axis=0, dtype=float))
    assert abs(errors.mean() - expected) <= STANDARD_ERRORS * standard_error(errors)


# Count sketches.


def hashes(rows: int, columns: int, d: int, key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the counters h and signs s of a sketch, `[rows, d]`, read from sketches of single
    elements.
    """
    encode = jax.vmap(partial(count_sketch(rows, columns).encode, key))
    sketches = np.asarray(encode(jnp.eye(d))).transpose(1, 0, 2)  # [rows, d, columns]
    np.testing.assert_array_equal(np.count_nonzero(sketches, axis=2), 1)
    assert set(np.unique(sketches)) <= {-1.0, 0.0, 1.0}
    return np.abs(sketches).argmax(axis=2), sketches.sum(axis=2)


@pytest.mark.parametrize(("rows", "columns", "d"), [(1, 4, 10), (3, 5, 17), (5, 40, 100)])
def test_count_sketch_is_the_papers_with_its_hashes(rows, columns, d):
    key, x = jax.random.key(rows), normal(d)
    h, s = hashes(rows, columns, d, key)
    S = np.zeros((rows, columns))
    for j, i in itertools.product(range(rows), range(d)):
        S[j, h[j, i]] += s[j, i] * x[i]
    estimates = np.median([s[j] * S[j, h[j]] for j in range(rows)], axis=0)
    sketch = count_sketch(rows, columns)
    found = sketch.encode(key, jnp.asarray(x))
    np.testing.assert_allclose(found, S, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sketch.decode(key, found, d), estimates, rtol=1e-5, atol=1e-6)
    for start in range(0, d, columns):  # neighbours do not meet
        assert all(len(set(row)) == len(row) for row in h[:, start : start + columns])


# PermK.


@pytest.mark.parametrize(("N", "d"), [(1, 5), (4, 8), (4, 10), (3, 1), (6, 3), (6, 4), (6, 6)])
def test_perm_k_divides_the_elements_among_the_workers(N, d):
    """Every element is sent by equally many workers, each time multiplied by the number of elements
    of which a worker sends one.
    """
    rows = np.stack([normal(d) + 10 * (i + 1) for i in range(N)]).astype(np.float32)
    decoded = many(perm_k(N))(rows)
    width = N if d > N else min(w for w in range(d, N + 1) if N % w == 0)
    sent = decoded != 0
    np.testing.assert_array_equal(sent.sum(axis=1), max(1, N // width))
    np.testing.assert_allclose(
        decoded[sent], (width * np.broadcast_to(rows, decoded.shape))[sent], rtol=1e-6
    )
    assert sent.sum(axis=2).max() <= -(-d // N)
    share = 1 / width
    deviation = STANDARD_ERRORS * np.sqrt(share * (1 - share) / DRAWS) + 1e-12
    assert (np.abs(sent.mean(axis=0) - share) <= deviation).all()
    assert constant_at(perm_k(N).omega, d) == width - 1


@pytest.mark.parametrize(("N", "d"), [(4, 8), (4, 10), (6, 3), (6, 4), (6, 6)])
def test_the_error_of_perm_ks_mean_is_the_variance_between_workers(N, d):
    rows = (np.random.default_rng(N + d).normal(size=(N, d)) + 2).astype(np.float32)
    between = sqnorm(rows.astype(float)).mean() - sqnorm(rows.mean(axis=0, dtype=float))
    width = N if d > N else min(w for w in range(d, N + 1) if N % w == 0)
    factor = 1 if d > N else (width - 1) / (N - 1)
    errors = sqnorm(many(perm_k(N))(rows).mean(axis=1) - rows.mean(axis=0, dtype=float))
    assert abs(errors.mean() - factor * between) <= STANDARD_ERRORS * standard_error(errors)


def test_the_errors_of_workers_also_cancel_in_a_rotated_basis():
    """All senders of an exchange have the same rotation, which is another one in the next."""
    x, key = np.tile(normal(10), (4, 1)).astype(np.float32), jax.random.key(0)
    decoded = exchange(rotated(perm_k(4)), key, x)
    assert np.abs(decoded - x).max() > 0.1
    np.testing.assert_allclose(decoded.mean(axis=0), x[0], rtol=1e-5, atol=1e-6)
    seeds = [
        compressors.encode(rotated(perm_k(4)), key, jnp.asarray(x[0]), None, common).message.seed
        for common in (Common.of_exchange(jax.random.key(i), jnp.int32(0), 4) for i in range(2))
    ]
    assert (seeds[0] != seeds[1]).any()


# Correlated quantization.


def rounded_up(rows: np.ndarray, bits: int, R: float) -> tuple[np.ndarray, float]:
    """Returns the probability that each element is rounded up, and the distance of the levels."""
    y = (rows / R + 1) * (2**bits - 1) / 2
    return y - np.floor(y), 2 * R / (2**bits - 1)


def mean_error(rows: np.ndarray, bits: int, R: float) -> float:
    r"""Returns the exact $E|\frac1N \sum_n Q_n(x_n) - \bar x|^2$ if each element has its own
    uniform permutation of the N strata, as in the paper.
    """
    (N, _), (p, step) = rows.shape, rounded_up(rows, bits, R)
    within = np.clip(N * p[:, None, :] - np.arange(N)[None, :, None], 0, 1)  # given the stratum
    total = within.sum(axis=1)  # N p
    both = np.einsum("ni,mi->nmi", total, total) - np.einsum("nai,mai->nmi", within, within)
    covariance = both / (N * (N - 1)) - np.einsum("ni,mi->nmi", p, p)
    covariance[np.arange(N), np.arange(N)] = p * (1 - p)
    return step**2 * covariance.sum() / N**2


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize("spread", [0.02, 1.0])
def test_the_error_of_the_correlated_mean_is_the_papers(bits, spread):
    """For close vectors it is far smaller than that of independent rounding."""
    rng = np.random.default_rng(bits)
    rows = np.clip(rng.uniform(-0.9, 0.9, 5) + spread * rng.uniform(-1, 1, (6, 5)), -1, 1)
    rows[:, 0] = 0.75  # all workers have R = 1
    rows = rows.astype(np.float32)
    errors = sqnorm(many(correlated_quantization(bits))(rows).mean(axis=1) - rows.mean(axis=0))
    expected, (p, step) = mean_error(rows, bits, 1.0), rounded_up(rows, bits, 1.0)
    assert abs(errors.mean() - expected) <= STANDARD_ERRORS * standard_error(errors)
    if spread < 0.1:
        assert expected < 0.5 * step**2 * np.sum(p * (1 - p)) / 6**2


def test_one_worker_rounds_as_any_unbiased_quantizer_on_the_same_draws():
    x, key = normal(9), jax.random.key(2)
    p, step = rounded_up(x, 3, 2.0 ** np.ceil(np.log2(np.abs(x).max())))
    u = np.asarray(jax.random.uniform(key, (9,), jnp.float32))
    _, decoded = compressors.encode(correlated_quantization(3), key, jnp.asarray(x))
    np.testing.assert_allclose(decoded, x + step * ((u < p) - p), atol=1e-5)


@pytest.mark.parametrize(
    ("largest", "expected"),
    [(0.0, 0.0), (1.0, 1.0), (1.5, 2.0), (2.0, 2.0), (3e38, np.finfo(np.float32).max)],
)
def test_the_range_is_a_power_of_two(largest, expected):
    x = jnp.asarray([largest, -largest / 2, 0.0], jnp.float32)
    message, decoded = compressors.encode(correlated_quantization(8), jax.random.key(0), x)
    assert message.scale == np.float32(expected)
    assert np.isfinite(decoded).all()
