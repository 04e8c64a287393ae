from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import problems
from dsgd.problems.models import Convolution

CIFAR, DIGITS = (1, 32, 32, 3), (1, 8, 8, 1)
TINY = problems.Transformer(vocabulary=11, context=6, width=8, layers=2, heads=2)


def drawn(network, inputs):
    """Variables that are normal everywhere: also biases, which start at 0."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(network.init, jax.random.key(0), inputs)
    return jax.tree.map(lambda leaf: 0.5 * rng.normal(size=leaf.shape).astype(np.float32), shapes)


@pytest.mark.parametrize(
    ("network", "inputs", "count"),
    [
        (problems.MLP(10), jnp.zeros(DIGITS), 4_810),
        (problems.MLP(10), jnp.zeros(CIFAR), 197_322),
        (problems.CNN(10), jnp.zeros(CIFAR), 5_514),
        (problems.ResNet18(10), jnp.zeros(CIFAR), 11_173_962),
        (problems.Transformer(), jnp.zeros((1, 64), jnp.uint8), 137_216),
    ],
    ids=["mlp, digits", "mlp", "cnn", "resnet-18", "transformer"],
)
def test_docstrings_say_how_many_parameters_there_are(network, inputs, count):
    shapes = jax.eval_shape(network.init, jax.random.key(0), inputs)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count
    assert f"{count:,}" in type(network).__doc__


def test_convolution_is_that_of_xla():
    """Both forms of `xla.convolve` are compared with each other, too."""
    layer = Convolution(5, 2, 3, bias=False)
    x = jax.random.normal(jax.random.key(0), (2, 7, 8, 3))
    variables = layer.init(jax.random.key(1), x)
    assert set(variables["params"]) == {"kernel"}
    kernel = variables["params"]["kernel"].reshape(3, 3, 3, 5)
    expected = jax.lax.conv_general_dilated(
        x, kernel, (2, 2), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(layer.apply(variables, x), expected, rtol=1e-4, atol=1e-5)


def test_convolution_adds_its_bias():
    x, bias = np.ones((1, 4, 4, 2), np.float32), np.arange(3, dtype=np.float32)
    variables = {"params": {"kernel": np.zeros((18, 3), np.float32), "bias": bias}}
    np.testing.assert_array_equal(
        Convolution(3).apply(variables, x), np.broadcast_to(bias, (1, 4, 4, 3))
    )


def test_a_residual_block_that_computes_nothing_passes_its_input_on():
    """With scales of 0, F(x) = 0."""
    from dsgd.problems.models import ResidualBlock

    block = ResidualBlock(4, 1, 2)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 5, 4)), jnp.float32)
    variables = jax.tree.map(jnp.zeros_like, block.init(jax.random.key(0), x))
    np.testing.assert_array_equal(block.apply(variables, x), np.maximum(x, 0))


def test_resnet_sees_each_sample_whole_and_on_its_own():
    """A change in a corner reaches the logits; the other samples of a batch do not matter, as they
    would to batch norm.
    """
    network = problems.ResNet18(3, width=4, groups=2)
    x = np.random.default_rng(1).normal(size=(2, 8, 8, 1)).astype(np.float32)
    cornered, others = np.array(x), np.array(x)
    cornered[0, 7, 7] = 100
    others[1] += 1
    apply, variables = jax.jit(network.apply), drawn(network, x)
    logits, moved, same = (
        np.asarray(apply(variables, inputs))[0] for inputs in (x, cornered, others)
    )
    assert np.abs(moved - logits).min() > 1e-2
    np.testing.assert_allclose(same, logits, rtol=1e-5, atol=1e-5)


def test_transformer_is_causal():
    """A change at position t changes no output before t, and the ones from t on."""
    tokens = np.random.default_rng(0).integers(0, 11, size=(1, 6))
    variables = drawn(TINY, tokens)
    changed = np.repeat(tokens, 6, axis=0)
    changed[np.arange(6), np.arange(6)] += 1
    changed %= 11
    logits = np.asarray(jax.jit(TINY.apply)(variables, np.concatenate([tokens, changed])))
    for t in range(6):
        np.testing.assert_array_equal(logits[1 + t, :t], logits[0, :t])
        assert (np.abs(logits[1 + t, t:] - logits[0, t:]).max(axis=1) > 1e-3).all()


def test_transformer_knows_positions_and_reads_shorter_sequences():
    tokens = np.full((1, 6), 3)
    variables = drawn(TINY, tokens)
    apply = jax.jit(TINY.apply)
    logits = np.asarray(apply(variables, tokens))
    assert np.abs(np.diff(logits[0], axis=0)).max() > 0.1
    np.testing.assert_allclose(apply(variables, tokens[:, :4]), logits[:, :4], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"sequences of 7 tokens; expected at most context = 6"):
        TINY.apply(variables, np.full((1, 7), 3))
