from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from dsgd import problems
from dsgd.engine import loop

WORKERS = 4


class OneLayer(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(x.reshape(x.shape[0], -1))


class WithWidths(nn.Module):
    widths: list[int]

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.widths:
            x = nn.Dense(width)(x)
        return x


@pytest.fixture(scope="module", params=["mlp", "cnn"])
def problem(request):
    return problems.neural_network(request.param, "digits", WORKERS)


@pytest.fixture(scope="module")
def batch(problem):
    return jax.tree.map(lambda leaf: leaf[0, :8], problem.data)


def flat(params) -> np.ndarray:
    return np.asarray(ravel_pytree(params)[0])


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (problems.MLP(7), (8, 8, 1)),
        (problems.MLP(7, hidden=(20, 10)), (30,)),
        (problems.MLP(7, hidden=()), (30,)),
        (problems.CNN(7), (9, 6, 3)),
        (problems.CNN(7, channels=(4, 8, 12), groups=2), (8, 8, 1)),
    ],
    ids=["mlp", "two hidden layers", "no hidden layer", "cnn", "three convolutions"],
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


def test_every_key_draws_its_own_start(problem):
    init = jax.jit(problem.init)
    first, same, other = (flat(init(jax.random.key(seed))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert not np.allclose(first, other)


def test_start_knows_nothing_and_gradient_descent_learns(problem, batch):
    """The first loss is near that of a guess among ten classes; a few steps on eight samples halve it."""

    @jax.jit
    def descend(params):
        def step(params, _):
            value, slope = jax.value_and_grad(problem.loss)(params, batch)
            return jax.tree.map(lambda x, g: x - 0.3 * g, params, slope), value

        return jax.lax.scan(step, params, length=60)[1]

    losses = np.asarray(descend(jax.jit(problem.init)(jax.random.key(0))))
    assert losses[0] == pytest.approx(np.log(10), rel=0.5)
    assert losses[-1] < losses[0] / 2


def test_l2_weighs_half_the_squared_norm_of_all_parameters(key):
    plain, weighed = (problems.neural_network(OneLayer(10), "digits", WORKERS, l2=l2) for l2 in (0.0, 0.2))
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), jax.eval_shape(plain.init, key))
    mine = jax.tree.map(lambda leaf: leaf[0], plain.data)
    extra = jax.jit(lambda params: weighed.loss(params, mine) - plain.loss(params, mine))(params)
    assert float(extra) == pytest.approx(0.1 * (64 * 10 + 10), rel=1e-5)


def test_module_of_one_s_own_is_used(key):
    problem = problems.neural_network(OneLayer(2), "breast-cancer", WORKERS)
    params = jax.jit(problem.init)(key)
    mine = jax.tree.map(lambda leaf: leaf[0], problem.data)
    logits = np.asarray(OneLayer(2).apply({"params": params}, mine.inputs), np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), mine.targets]
    expected = np.average(losses, weights=mine.weights)
    assert float(jax.jit(problem.loss)(params, mine)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("logits", [3, 9, 11])
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


def test_same_network_built_twice_is_one_compiled_program():
    first, second = (loop.without_arrays(problems.neural_network("mlp", "breast-cancer", WORKERS)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    wider = problems.MLP(2, hidden=(65,))
    assert first != loop.without_arrays(problems.neural_network(wider, "breast-cancer", WORKERS))._replace(name=first.name)


def test_module_with_a_list_among_its_fields_can_run():
    """What a run compiles is looked up by hash."""
    hash(loop.without_arrays(problems.neural_network(WithWidths([5, 2]), "breast-cancer", WORKERS)))
