"""Results compared with those of public implementations, which `record.py` ran and recorded.

They differ on purpose, so that these are not compared: GRACE's random-k draws with replacement and
does not scale; its natural compression limits exponents to 7 bits; its TernGrad measures the
standard deviation about the mean (equal for the recorded vector, which has a mean of 0); natural
dithering of flpytorch returns its input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import three_points
from dsgd import compressors, network, problems
from dsgd.compressors import rotations
from dsgd.compressors.low_rank import Factors
from tests.dsgd.compressors.shared import as_bits, seen_where

RESULTS: dict[str, dict[str, Any]] = {
    name: {what: np.asarray(value) for what, value in result.items()}
    for name, result in json.loads((Path(__file__).parent / "results.json").read_text())[
        "results"
    ].items()
}
KEY = jax.random.key(0)
COMPRESSORS = {
    "grace top_k": compressors.top_k(0.25),
    "grace sign": compressors.sign,
    "grace threshold": compressors.threshold(0.5),
    "grace qsgd": compressors.qsgd(4),
    "grace clipped_ternary": compressors.clipped_ternary(2.5),
    "flpytorch natural": compressors.natural,
    "flpytorch qsgd": compressors.qsgd(4),
    "flpytorch qsgd linf": compressors.qsgd(4, "linf"),
    "flpytorch ternary": compressors.ternary,
    "flpytorch top_k": compressors.top_k(0.25),
    "bitsandbytes eight_bit": compressors.eight_bit,
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_decoded_vectors_are_those_of_public_code(name):
    """With the same draws, if there are any."""
    result, compressor = RESULTS[name], COMPRESSORS[name]
    x = result["x"].astype(np.float32)
    if "uniform" in result:
        uniform = result["uniform"].astype(np.float32)[None]
        found = seen_where(compressor)(x, uniform=uniform, bits=as_bits(uniform))[0]
    else:
        found = np.asarray(compressors.apply(compressor, KEY, x))
    assert np.ptp(result["decoded"]) > 0
    np.testing.assert_allclose(found, result["decoded"], rtol=2e-6, atol=1e-7)


def test_the_message_of_1_bit_sgd_is_that_of_grace():
    """Its decoding negates the bytes 0 and 1 to 255 and 254, and multiplies a mean by them."""
    result = RESULTS["grace one_bit"]
    message, decoded = compressors.encode(
        compressors.one_bit, KEY, jnp.asarray(result["x"], jnp.float32)
    )
    means, negative = result["means"], result["negative"] == 1
    np.testing.assert_allclose(message.table, means, rtol=1e-6)
    np.testing.assert_allclose(decoded, np.where(negative, means[1], means[0]), rtol=1e-6)
    wrong = np.where(negative, means[1] + 254 * means[0], 255 * means[0])
    np.testing.assert_allclose(result["decoded"], wrong, rtol=1e-6)


def test_natural_dithering_of_flpytorch_does_not_round():
    """The last line of its branch returns the input instead of the rounded vector."""
    result = RESULTS["flpytorch natural_dithering"]
    np.testing.assert_allclose(result["decoded"], result["x"], rtol=1e-6)


def test_the_second_low_rank_message_is_that_of_grace():
    """With a warm start, from the right factor of the first message."""
    result = RESULTS["grace low_rank"]
    x, right = (jnp.asarray(result[what], jnp.float32) for what in ("x", "last"))
    compressor = compressors.low_rank(2, columns=4)
    last = Factors(jnp.zeros((6, 2)), right)
    found = compressors.encode(compressor, KEY, x, last).decoded
    np.testing.assert_allclose(found, result["decoded"], atol=1e-6)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_rotated_vectors_are_quantized_as_by_the_authors_of_eden(bits):
    compressor, y = compressors.eden(bits, "unbiased"), jnp.asarray(RESULTS[f"eden {bits}"]["y"])
    seed = compressors.encode(compressor, KEY, y).message.seed  # equal keys draw equal rotations
    rotation = jax.random.wrap_key_data(seed, impl="threefry2x32")
    x = rotations.rotate_back(rotation, y.astype(jnp.float32), 1)
    found = rotations.rotate(rotation, compressors.encode(compressor, KEY, x).decoded, 1)
    np.testing.assert_allclose(found, RESULTS[f"eden {bits}"]["decoded"], atol=2e-6)


TOP = {k: compressors.top_k(k / 8) for k in (1, 2)}
SGD = optax.sgd(0.1)
METHODS = {
    "ef21": algorithms.ef21(SGD, TOP[2], None, via=network.star),
    "v4": algorithms.three_point(SGD, three_points.v4(TOP[2], TOP[1])),
}


@pytest.mark.parametrize("name", METHODS)
def test_iterates_are_those_of_the_authors_of_3pc(name):
    shared, models = RESULTS["three_point quadratics"], RESULTS[f"three_point {name}"]["models"]
    with jax.enable_x64(True):
        problem = problems.quadratic(shared["A"], shared["b"])
        for rounds in (1, 2, len(models)):
            result = dsgd.run(METHODS[name], problem, steps=rounds, key=KEY)
            np.testing.assert_allclose(result.params, models[rounds - 1], rtol=0, atol=1e-13)
