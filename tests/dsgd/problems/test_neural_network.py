from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn

from dsgd import problems

WORKERS = 4


class OneLayer(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(x.shape[0], -1))


@pytest.fixture(scope="module", params=["mlp", "cnn"])
def problem(request):
    return problems.neural_network(request.param, "digits", WORKERS)


@pytest.fixture(scope="module")
def batch(problem):
    return jax.tree.map(lambda leaf: leaf[0, :8], problem.data)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (problems.MLP(7, hidden=(20, 10)), (30,)),
        (problems.MLP(7, hidden=()), (30,)),
        (problems.CNN(7, channels=(4, 8, 12), groups=2), (8, 8, 1)),
    ],
    ids=["two hidden layers", "no hidden layer", "three convolutions"],
)
def test_samples_become_logits_each_on_its_own(network, shape):
    """The other samples of a batch do not matter, as they would to batch norm."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(5, *shape)).astype(np.float32)
    shapes = jax.eval_shape(network.init, jax.random.key(0), inputs)
    variables = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    apply = jax.jit(network.apply)
    logits = np.asarray(apply(variables, inputs))
    assert logits.shape == (5, 7)
    changed = np.concatenate([inputs[:1], 10 * inputs[1:]])
    np.testing.assert_allclose(apply(variables, changed)[0], logits[0], rtol=1e-4, atol=1e-4)
    assert np.abs(logits[0] - logits[1]).max() > 0.1


def test_start_knows_nothing_and_gradient_descent_learns(problem, batch):
    """The first loss is near that of a guess among ten classes; a few steps on eight samples halve
    it.
    """

    @jax.jit
    def descend(params):
        def step(params, _):
            value, slope = jax.value_and_grad(problem.loss)(params, batch)
            return jax.tree.map(lambda x, g: x - 0.3 * g, params, slope), value

        return jax.lax.scan(step, params, length=60)[1]

    losses = np.asarray(descend(jax.jit(problem.init)(jax.random.key(0))))
    assert losses[0] == pytest.approx(np.log(10), rel=0.5)
    assert losses[-1] < losses[0] / 2


def test_module_of_one_s_own_is_used(key):
    problem = problems.neural_network(OneLayer(2), "breast-cancer", WORKERS, l2=0.2)
    params = jax.jit(problem.init)(key)
    mine = jax.tree.map(lambda leaf: leaf[0], problem.data)
    logits = np.asarray(OneLayer(2).apply({"params": params}, mine.inputs), np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), mine.targets]
    expected = np.average(losses, weights=mine.weights) + 0.1 * float(
        optax.tree.norm(params, squared=True)
    )
    assert float(jax.jit(problem.loss)(params, mine)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("logits", [9, 11])
def test_module_with_another_number_of_logits_than_classes_is_refused(logits):
    """A target without a logit would make the loss NaN."""
    with pytest.raises(ValueError, match=f"{logits}.*10"):
        problems.neural_network(OneLayer(logits), "digits", WORKERS)


def test_unknown_model_lists_the_known_ones():
    with pytest.raises(ValueError, match="'resnet'") as error:
        problems.neural_network("resnet", "digits", WORKERS)
    assert all(name in str(error.value) for name in ("mlp", "cnn"))


@pytest.mark.parametrize("model", ["cnn", "resnet-18"])
def test_model_of_images_on_other_data_is_refused_with_their_shape(model):
    with pytest.raises(ValueError, match=rf"'{model}' on breast-cancer.*\(30,\)"):
        problems.neural_network(model, "breast-cancer", WORKERS)
