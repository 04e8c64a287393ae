"""Compressors with extreme inputs: numbers that are not finite, shares and counts, rare draws."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import compressors
from tests.dsgd.compressors.shared import UNOPTIMIZED, see

NORMS = "l2", "linf"
OF_EVERY_WIDTH = [
    *(compressors.random_quantization(bits) for bits in (1, 8)),
    *(compressors.qsgd(levels, norm) for levels in (1, 127) for norm in NORMS),
    *(
        compressors.natural_dithering(levels, norm)
        for levels in (1, 127)
        for norm in ("l2", "linf")
    ),
    *map(compressors.clipping, (1, 8)),
    *(compressors.cast(dtype, "power") for dtype in ("float16", "float8_e5m2", "float4_e2m1fn")),
    *map(compressors.eden, (1, 4)),
    *(compressors.natural, compressors.sign, compressors.one_bit, compressors.two_bit),
    compressors.top_k(0.6, compressors.natural),
    compressors.induced(compressors.sign, compressors.natural),
    compressors.repeated(compressors.natural, 2),
    compressors.buckets(compressors.natural, 2),
    compressors.rotated(compressors.natural),
    compressors.contraction(compressors.natural),
    compressors.whole_model(compressors.natural),
]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_what_is_not_finite_is_not_decoded_as_a_finite_number(dtype):
    """Of every width and type; float32 is a test of each compressor's contract."""
    inf = np.array(np.inf, dtype)
    signalling = (inf.view(f"u{inf.itemsize}") + 1).view(dtype)  # NaN with the smallest mantissa
    with jax.enable_x64(True):
        x = jnp.asarray([[1, -0.5, bad, 0.25, 2] for bad in (np.nan, np.inf, -np.inf)], dtype)
        x = x.at[0, 2].set(signalling)

        @partial(jax.jit, compiler_options=UNOPTIMIZED)
        def decode(x):
            key = jax.random.key(0)
            return [jax.vmap(partial(see, each, key))(x)[:, 2] for each in OF_EVERY_WIDTH]

        found = decode(x)
    for each, values in zip(OF_EVERY_WIDTH, found, strict=True):
        assert np.isnan(values[0]), each.name
        assert not np.isfinite(values).any(), (each.name, values)


def test_zeros_and_the_largest_numbers_of_natural_compression_remain_finite():
    largest = np.finfo(np.float32).max
    x = np.array([0.0, -0.0, largest, -largest, 2.0**127, 1e-45], np.float32)
    keys = jax.random.split(jax.random.key(0), 20)
    draws = np.asarray(jax.vmap(lambda key: see(compressors.natural, key, jnp.asarray(x)))(keys))
    np.testing.assert_array_equal(draws[:, :2], 0)
    for column, sign in ((2, 1), (3, -1)):
        assert set(sign * draws[:, column]) <= {largest, np.float32(2.0**127)}
    np.testing.assert_array_equal(draws[:, 4], x[4])


@pytest.mark.parametrize("name", ["natural", "sign"])
def test_a_run_with_a_gradient_that_is_not_finite_diverges(name):
    problem = dsgd.Problem(
        init=lambda key: jnp.array([1.0, -1.0, 2.0]),
        loss=lambda x, a: jnp.sum(a * jnp.sqrt(x + 1) + x**2),  # the gradient at -1 is infinite
        data=jnp.ones((2, 3)),
        sample=lambda key, data: data,
        name="root",
    )
    method = algorithms.compressed_sgd(
        optax.sgd(0.1), getattr(compressors, name), allow_biased=True
    )
    with pytest.raises(dsgd.Diverged):
        dsgd.run(method, problem, steps=3, key=jax.random.key(0), mesh=1)


COUNTED = {
    "top_k": [0, 0, -5, 0, 4, 0, 0],
    "block_top_k": [0, 0, -5, 2, 4, 0.5, 0],
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_number_of_elements_or_blocks_is_kept(name):
    x, key = jnp.array([3, -1, -5, 2, 4, 0.5, 1]), jax.random.key(0)
    given = {"block": 2} if name == "block_top_k" else {}
    kept = getattr(compressors, name)(k=2, **given)
    np.testing.assert_array_equal(compressors.apply(kept, key, x), COUNTED[name])
    assert [kept.delta(d) for d in (1, 7)] == pytest.approx([1, 2 / (4 if given else 7)])
    whole = getattr(compressors, name)(k=100, **given)
    np.testing.assert_array_equal(compressors.apply(whole, key, x), x)


@pytest.mark.parametrize(
    "make",
    [
        compressors.random_k,
        compressors.shared_random_k,
        lambda k: compressors.with_seed(compressors.random_places(k=k)),
        lambda k: compressors.with_seed(compressors.random_block(k=k)),
    ],
)
def test_a_number_of_elements_is_drawn_and_scaled_up(make):
    x, of_three = np.arange(1, 8, dtype=np.float32), make(k=3)
    kept = np.asarray(compressors.apply(of_three, jax.random.key(1), x))
    assert np.count_nonzero(kept) == 3
    np.testing.assert_allclose(kept[kept != 0], 7 / 3 * x[kept != 0], rtol=1e-6)
    assert [of_three.omega(d) for d in (2, 3, 7)] == pytest.approx([0, 0, 4 / 3])


SHARES = {
    **{
        f"{name}(k=2)": partial(getattr(compressors, name), 2)
        for name in ("top_k", "random_k", "shared_random_k", "random_places", "random_block")
    },
    "block_top_k(k=2)": partial(compressors.block_top_k, 2, 4),
    "sampled_top_k: fraction": partial(compressors.sampled_top_k, 1),
    "sampled_top_k: sample": partial(compressors.sampled_top_k, 0.5, 3),
    "variance_optimal: fraction": partial(compressors.variance_optimal, 1),
    "sketched_sgd: fraction": partial(algorithms.sketched_sgd, optax.sgd(0.1), 1, 8, 4),
    "fetch_sgd: fraction": partial(algorithms.fetch_sgd, optax.sgd(0.1), 1, 8),
    "dion: rank_fraction": partial(algorithms.dion, optax.sgd(0.1), 1),
    r"kimad.top_k: ratios[1]": partial(algorithms.kimad.top_k, [0.5, 1]),
}


@pytest.mark.parametrize("where", SHARES)
def test_an_integer_is_not_a_share(where):
    with pytest.raises(ValueError, match=r"an integer; expected a share, a float") as refused:
        SHARES[where]()
    assert where in str(refused.value)


@pytest.mark.parametrize("given", [{}, {"fraction": 0.5, "k": 1}, {"k": 0}, {"k": -1}])
@pytest.mark.parametrize("name", ["top_k", "random_places"])
def test_a_share_or_a_number_is_required(name, given):
    with pytest.raises(ValueError, match=rf"^{name}: .*expected"):
        getattr(compressors, name)(**given)
