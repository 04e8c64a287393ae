"""Networks, and the problem of training one."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax import linen as nn

from dsgd import problems

TINY = problems.Transformer(vocabulary=11, context=6, width=8, layers=2, heads=2)


def draw_variables(network, inputs):
    """Returns normally distributed variables, including biases, which start at 0."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(network.init, jax.random.key(0), inputs)
    return jax.tree.map(lambda leaf: 0.5 * rng.normal(size=leaf.shape).astype(np.float32), shapes)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (problems.MLP(7, hidden=(20, 10)), (30,)),
        (problems.CNN(7, channels=(4, 8, 12), groups=2), (8, 8, 1)),
        pytest.param(problems.ResNet18(7, width=4, groups=2), (8, 8, 1), marks=pytest.mark.long),
    ],
    ids=["two hidden layers", "three convolutions", "resnet-18"],
)
def test_networks_process_each_sample_independently(network, shape):
    """A change of the last element affects all logits; the other samples of a batch have no effect,
    unlike with batch norm.
    """
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype(np.float32)
    changed, others = np.array(x), np.concatenate([x[:1], 10 * x[1:]])
    changed.reshape(3, -1)[0, -1] = 100
    apply, variables = jax.jit(network.apply), draw_variables(network, x)
    logits, moved, same = (np.asarray(apply(variables, each))[0] for each in (x, changed, others))
    assert logits.shape == (7,)
    assert np.abs(moved - logits).min() > 1e-2
    np.testing.assert_allclose(same, logits, rtol=1e-4, atol=1e-4)


def test_transformer_is_causal_knows_positions_and_reads_shorter_sequences():
    """A change at position t changes the outputs from t on, and none before t."""
    tokens = np.random.default_rng(0).integers(0, 11, size=(1, 6))
    variables, apply = draw_variables(TINY, tokens), jax.jit(TINY.apply)
    changed = (np.repeat(tokens, 6, axis=0) + np.eye(6, dtype=int)) % 11
    logits = np.asarray(apply(variables, np.concatenate([tokens, changed])))
    for t in range(6):
        np.testing.assert_array_equal(logits[1 + t, :t], logits[0, :t])
        assert (np.abs(logits[1 + t, t:] - logits[0, t:]).max(axis=1) > 1e-3).all()
    shorter = apply(variables, tokens[:, :4])
    np.testing.assert_allclose(shorter, logits[:1, :4], rtol=1e-5, atol=1e-5)
    equal = np.asarray(apply(variables, np.full((1, 6), 3)))
    assert np.abs(np.diff(equal[0], axis=0)).max() > 0.1
    with pytest.raises(ValueError, match=r"7 tokens.* context = 6"):
        TINY.apply(variables, np.full((1, 7), 3))


# The problem


class OneLayer(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(x.shape[0], -1))


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.long)])
def test_initial_predictions_are_uniform_and_gradient_descent_learns(model):
    """The first loss is near that of a guess among ten classes; a few steps on eight samples halve
    it.
    """
    problem = problems.neural_network(model, "digits", 4)
    batch = jax.tree.map(lambda leaf: leaf[0, :8], problem.data)

    def step(params, _):
        value, slope = jax.value_and_grad(problem.loss)(params, batch)
        return jax.tree.map(lambda x, g: x - 0.3 * g, params, slope), value

    start = problem.init(jax.random.key(0))
    losses = jax.jit(lambda params: jax.lax.scan(step, params, length=60)[1])(start)
    assert losses[0] == pytest.approx(np.log(10), rel=0.5)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        # a target without a logit would make the loss NaN
        (OneLayer(9), "digits", "9.*10"),
        (OneLayer(11), "digits", "11.*10"),
        ("resnet", "digits", "'resnet'.*mlp.*cnn"),
        ("cnn", "breast-cancer", r"'cnn' on breast-cancer.*\(30,\)"),
        ("resnet-18", "breast-cancer", r"'resnet-18' on breast-cancer.*\(30,\)"),
    ],
)
def test_models_that_do_not_fit_the_data_are_refused(model, data, words):
    with pytest.raises(ValueError, match=words):
        problems.neural_network(model, data, 4)
