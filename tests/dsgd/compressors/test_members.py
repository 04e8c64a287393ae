"""The six members of a compressor, their defaults, and `encode`, which calls any of them."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import Compressor, Encoded, compressors
from dsgd.compressors.sizes import fixed_size
from tests.dsgd.compressors.shared import normal

SIGN, LOW_RANK = compressors.sign, compressors.low_rank(1)


def adding(key, x, by=1.0, last=None):
    """Returns a vector plus the previous one."""
    return x + by * (0 if last is None else last)


class Adding:
    def __call__(self, key, x, last=None):
        return adding(key, x, last=last)


WARM = {
    "a function": adding,
    "a partial": partial(adding, by=1.0),
    "jitted": jax.jit(adding),
    "a callable": Adding(),
    "mapped": jax.vmap(adding),
}


@pytest.mark.parametrize("kind", WARM)
def test_a_parameter_named_last_makes_a_warm_start(kind):
    assert fixed_size(WARM[kind], lambda message, d: message, "adding").warm


@pytest.mark.parametrize(
    "cold",
    [
        lambda key, x: x,
        lambda key, x, scale=2.0: scale * x,
        lambda *arguments: arguments[1],
        max,
        jnp.add,
    ],
)
def test_other_functions_start_cold(cold):
    assert not SIGN._replace(compress=cold).warm


def test_encode_passes_the_previous_message():
    compressor, x = fixed_size(adding, lambda message, d: 2 * message, "adding"), jnp.arange(3.0)
    for last, expected in ((None, x), (jnp.ones(3), x + 1)):
        message, decoded = compressors.encode(compressor, jax.random.key(0), x, last)
        np.testing.assert_array_equal(message, expected)
        np.testing.assert_array_equal(decoded, 2 * expected)
    with pytest.raises(
        ValueError,
        match=r"^encode: last = float32\[3\]",
    ):
        compressors.encode(SIGN, jax.random.key(0), x, x)
    with pytest.raises(ValueError, match=r"^contraction\(adding\): .*without warm start"):
        compressors.contraction(compressor._replace(omega=lambda d: 1.0))


def test_encode_takes_what_compress_decodes():
    x = jnp.asarray(normal(5))
    encoded = compressors.encode(
        SIGN._replace(compress=lambda key, x: Encoded(x, -x)), jax.random.key(0), x
    )
    np.testing.assert_array_equal(encoded.decoded, -x)
    with pytest.raises(
        ValueError,
        match=r"^encode: x = float32\[5, 1\]",
    ):
        compressors.encode(SIGN, jax.random.key(0), x[:, None])


def test_members_that_are_not_given_are_none():
    bare = Compressor(SIGN.compress, SIGN.decompress, SIGN.bits, "bare")
    assert not bare.unbiased
    assert compressors.top_k(0.5, bare).delta is not None
    assert compressors.top_k(0.5, bare).delta(8) is None
    assert compressors.random_k(0.5, bare).omega is None
    assert compressors.buckets(bare, 4)[-2:] == (None, None)
    assert {
        finding.what: finding.holds
        for finding in compressors.check(bare, 5).findings
        if finding.holds is None
    } == {
        "unbiased": None,
        "omega": None,
        "delta": None,
    }


def test_a_compressor_of_the_whole_model_remains_one():
    whole = compressors.whole_model(compressors.ternary)
    made = (
        whole,
        whole._replace(name="mine"),
        compressors.buckets(whole, 4),
        compressors.contraction(whole),
        compressors.whole_model(whole),
    )
    assert not any(compressor.layer_wise for compressor in made)
    assert SIGN.layer_wise
    assert compressors.whole_model(LOW_RANK).warm
