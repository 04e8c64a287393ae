"""Sets of compressors: each choice is the compressor's own, in bits, errors and elements; what
cannot be chosen is refused.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import kimad, kimad_sgd
from dsgd import Loss, compressors, problems, run
from dsgd.compressors.sizes import fixed_bits, message_shape
from theory_checks.recursions import kimad as papers

KEY, SGD = jax.random.key(0), optax.sgd(0.1)
RATIOS = (0.05, 0.3, 0.5, 0.9, 1.0)
VECTORS = {
    "distinct": np.random.default_rng(0).normal(size=37),
    "one": np.array([-3.0]),
    "ties": np.array([1.0, -1.0, 2.0, 1.0, 0.0, -2.0, 1.0, -1.0]),
    "zeros": np.zeros(9),
}


@partial(jax.jit, static_argnums=0)
def looked_at(choices: kimad.Choices, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The errors, and what each choice sends, `[choices, d]`."""
    errors, found = choices.look(KEY, x)
    return errors, jax.vmap(lambda choice: choices.send(x, found, choice))(
        jnp.arange(choices.number)
    )


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", VECTORS)
def test_top_k_is_the_papers_with_real_messages(name, double):
    """Of equals the first; a message that is no shorter than the vector is the vector."""
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


@settings(max_examples=10)
@given(st.integers(1, 3_000), st.lists(st.floats(0.001, 1), min_size=1, max_size=4))
def test_sizes_are_bits_of_messages_of_any_length_and_delta_is_the_least(d, ratios):
    real = [compressors.top_k(ratio) for ratio in ratios]
    bits = [fixed_bits(compressor, d) for compressor in real]
    assert kimad.top_k(ratios).sizes(d, jnp.float32) == np.minimum(bits, 32 * d).tolist()
    assert kimad.top_k(ratios).delta(d) == min(compressor.delta(d) for compressor in real)


def test_any_of_is_each_compressor():
    each = [
        compressors.sign,
        compressors.clipping(3),
        compressors.identity,
        compressors.contraction(compressors.random_k(0.3)),
    ]
    choices = kimad.any_of(each)
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
    assert kimad.any_of([compressors.random_k(0.1), compressors.sign]).delta(37) is None


def test_the_whole_model_is_one_vector():
    whole = kimad.whole_model(kimad.top_k(RATIOS))
    assert not whole.layer_wise
    assert kimad.whole_model(whole) is whole
    assert not kimad.any_of([compressors.whole_model(compressors.sign)]).layer_wise


TOP = kimad.top_k([0.1])
SIGNS = [compressors.sign, compressors.whole_model(compressors.sign)]
BAD = [
    (
        lambda: kimad.top_k([0.1, 0.0]),
        r"kimad.top_k: ratios contain 0.0; expected numbers in \(0, 1\]",
    ),
    (lambda: kimad.top_k([]), r"kimad.top_k: ratios = \[\]; expected a list of at least one"),
    (lambda: kimad_sgd(SGD, [], 1.0), r"kimad_sgd: compressors = \[\]; expected at least one"),
    (lambda: kimad_sgd(SGD, TOP, 1.0, down=[]), r"kimad_sgd: down = \[\]; expected at least one"),
    (
        lambda: kimad_sgd(SGD, SIGNS, 1.0),
        r"kimad.any_of: compressors sign, whole_model\(sign\) mix .*; expected all layer by layer, or all",
    ),
    (
        lambda: kimad_sgd(SGD, TOP, 1.0, down=kimad.whole_model(TOP)),
        r"top_k\(0.1\) up and whole_model\(top_k\(0.1\)\) down; expected both",
    ),
    (
        lambda: kimad_sgd(SGD, TOP, 1.0, weights=[1.0, -1.0]),
        r"weights = \[1.0, -1.0\]; expected finite",
    ),
    (lambda: kimad_sgd(SGD, TOP, 1.0, weights=[0.0, 0.0]), "not all 0"),
    (
        lambda: kimad_sgd(SGD, TOP, np.inf),
        "kimad_sgd: round_time = inf; expected seconds > 0, finite",
    ),
    (
        lambda: kimad_sgd(SGD, TOP, 1.0, computation=[0.1, -0.1]),
        r"computation = \[0.1, -0.1\]; expected seconds >= 0",
    ),
    (
        lambda: kimad_sgd(SGD, TOP, 1.0, computation=[0.5, 1.0]),
        "round_time = 1.0 s with a computation of 1 s; expected a longer round_time",
    ),
    (lambda: kimad_sgd(SGD, TOP, 1.0, congestion=-0.5), "kimad_sgd: congestion = -0.5; expected"),
    (lambda: kimad.exponential_average(0.0), "kimad.exponential_average: weight = 0.0"),
]


def test_what_cannot_be_is_refused_at_once():
    for call, message in BAD:
        with pytest.raises(ValueError, match=message):
            call()


def started(choices, layers: int = 2, **options):
    """A run of two workers, whose model is a layer of so many elements and two more."""
    problem = problems.random_quadratic(2, layers + 2)
    gradient = problem.gradient
    assert gradient is not None

    def split(x):
        return {"first": x[:layers], "second": x[layers:]}

    made = problem._replace(
        init=lambda key: split(problem.init(key)),
        loss=Loss(
            problem.loss,
            lambda params, batch: split(
                gradient(jnp.concatenate([params["first"], params["second"]]), batch)
            ),
        ),
        evaluate=lambda params, data, shared: ({"loss": jnp.zeros(())}, None),
    )
    return run(kimad_sgd(SGD, choices, 1.0, **options), made, steps=1, key=KEY, mesh=1)


RANDOM = [compressors.sign, compressors.contraction(compressors.random_sparsification(0.4))]
UNFIT = [
    ({"layers": 0}, r"kimad_sgd: layer \['first'\] has no elements; expected at least one"),
    (
        {"choices": [compressors.random_k(0.1)], "layers": 20},
        r"random_k\(0.1\) states no contraction for vectors of 20 elements",
    ),
    (
        {"down": RANDOM},
        "has messages of random length; expected a compressor whose message length is known before",
    ),
    ({"weights": [1.0]}, "kimad_sgd: weights has 1 entries for 2 workers; expected one for each"),
    (
        {"computation": [0.1] * 3},
        "kimad_sgd: computation has 3 entries for 2 workers; expected one for each",
    ),
    (
        {"rule": lambda errors, sizes, budget: jnp.int32(0)},
        r"rule returned int32\[\]; expected .* int32 \[2\]",
    ),
    (
        {"rule": lambda errors, sizes, budget: jnp.zeros(2)},
        r"kimad_sgd: the rule returned float32\[2\]; expected",
    ),
    (
        {"rule": lambda errors, sizes, budget: [0, 0]},
        "kimad_sgd: the rule returned a list; expected",
    ),
]


def test_what_does_not_fit_the_problem_is_refused_before_the_first_round():
    for options, message in UNFIT:
        with pytest.raises(ValueError, match=message):
            started(**{"choices": kimad.top_k([0.5]), **options})
