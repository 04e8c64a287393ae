"""Sets of compressors: each choice has the bits, errors and elements of its compressor; invalid
choices are refused.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dsgd
from algorithms import kimad, kimad_sgd
from dsgd import compressors, problems
from dsgd.compressors.sizes import fixed_bits, message_shape
from tests.methods import kimad_sgd as papers

KEY, SGD = jax.random.key(0), optax.sgd(0.1)
PROBLEM = problems.random_quadratic(2, 20)
RATIOS = (0.05, 0.3, 0.5, 0.9, 1.0)
VECTORS = {
    "distinct": np.random.default_rng(0).normal(size=37),
    "one": np.array([-3.0]),
    "ties": np.array([1.0, -1.0, 2.0, 1.0, 0.0, -2.0, 1.0, -1.0]),
    "zeros": np.zeros(9),
}


@partial(jax.jit, static_argnums=0)
def looked_at(choices: kimad.CompressorSet, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the errors, and the decoded message of each choice, `[choices, d]`."""
    errors, found = choices.profile(KEY, x)
    return errors, jax.vmap(lambda choice: choices.apply(x, found, choice))(
        jnp.arange(choices.number)
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", VECTORS)
def test_top_k_is_the_papers_with_real_messages(name, double):
    """Of equal elements the first are selected; if a message is not shorter than the vector, the
    vector is sent.
    """
    vector, word = VECTORS[name], 64 if double else 32
    with jax.enable_x64(double):
        x = jnp.asarray(vector, float)
        choices = kimad.top_k(RATIOS)
        errors, seen = looked_at(choices, x)
        expected = papers.top_k(RATIOS, word)
        np.testing.assert_array_equal(
            seen, np.array([compress(np.asarray(x)) for compress in expected.compressors])
        )
        np.testing.assert_allclose(
            errors, np.sum((np.asarray(seen) - np.asarray(x)) ** 2, axis=1), rtol=1e-5, atol=1e-6
        )
        real = [message_shape(compressors.top_k(ratio), x.shape[0], x.dtype) for ratio in RATIOS]
        bits = [
            8 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(message))
            for message in real
        ]
    sizes = choices.sizes(x.shape[0], x.dtype)
    assert sizes == np.minimum(bits, word * x.shape[0]).tolist() == expected.sizes(x.shape[0])
    assert sizes[-1] == word * x.shape[0]
    assert errors[-1] == 0
    each = [compressors.top_k(ratio).delta(x.shape[0]) for ratio in RATIOS]
    assert choices.delta(x.shape[0]) == min(each)


def test_from_compressors_contains_each_compressor():
    each = [
        compressors.sign,
        compressors.clipping(3),
        compressors.identity,
        compressors.contraction(compressors.random_k(0.3)),
    ]
    choices = kimad.from_compressors(each)
    x = jnp.asarray(VECTORS["distinct"], jnp.float32)
    errors, seen = looked_at(choices, x)
    keys = list(jax.random.split(KEY, len(each)))
    through = jax.jit(
        lambda x: [
            one.decompress(compressors.encode(one, key, x).message, 37)
            for one, key in zip(each, keys, strict=True)
        ]
    )
    expected = np.array(through(x))
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    np.testing.assert_allclose(errors, np.sum((expected - np.asarray(x)) ** 2, axis=1), rtol=1e-5)
    assert choices.sizes(37, x.dtype) == [fixed_bits(compressor, 37) for compressor in each]
    assert choices.delta(37) == min(compressor.delta(37) for compressor in each) > 0
    assert kimad.from_compressors([compressors.random_k(0.1), compressors.sign]).delta(37) is None


TOP = kimad.top_k([0.1])
SIGNS = [compressors.sign, compressors.whole_model(compressors.sign)]
RANDOM = [compressors.sign, compressors.contraction(compressors.random_sparsification(0.4))]
# arguments of `kimad_sgd`, on two workers with a model of 20 elements
REFUSED = [
    ({"compressors": []}, "compressors"),
    ({"down": []}, "down"),
    ({"compressors": SIGNS}, "kimad_sgd: compressors .* layer by layer"),
    ({"down": kimad.whole_model(TOP)}, r"up and whole_model\(top_k\(0.1\)\) down"),
    ({"weights": [1.0, -1.0]}, "weights"),
    ({"weights": [0.0, 0.0]}, "weights .*not all 0"),
    ({"round_time": np.inf}, "round_time"),
    ({"computation": [0.1, -0.1]}, "computation"),
    ({"computation": [0.5, 1.0]}, "round_time = 1.0 s with a computation of 1 s"),
    ({"congestion": -0.5}, "congestion"),
    # at the start
    ({"compressors": [compressors.random_k(0.1)]}, "no contraction for vectors of 20 elements"),
    ({"down": RANDOM}, "random length"),
    ({"weights": [1.0]}, "weights has 1 entries for 2 workers"),
    ({"computation": [0.1] * 3}, "computation has 3 entries for 2 workers"),
    ({"rule": lambda errors, sizes, budget: jnp.int32(0)}, r"rule returned int32\[\]"),
    ({"rule": lambda errors, sizes, budget: jnp.zeros(1)}, r"rule returned float32\[1\]"),
    ({"rule": lambda errors, sizes, budget: [0]}, "rule returned a list"),
]


def test_invalid_arguments_are_refused():
    for arguments, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            dsgd.exchanges(
                kimad_sgd(SGD, **{"compressors": TOP, "round_time": 1.0} | arguments), PROBLEM
            )
    for call, words in (
        (
            lambda: kimad_sgd(SGD, TOP, 1.0).init({"first": jnp.zeros(0)}, 2),
            r"layer \['first'\] has no elements",
        ),
        (lambda: kimad.top_k([0.1, 0.0]), r"kimad.top_k: ratios\[1\] = 0.0"),
        (lambda: kimad.top_k([]), "kimad.top_k: ratios"),
        (lambda: kimad.exponential_average(0.0), "kimad.exponential_average: weight"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
