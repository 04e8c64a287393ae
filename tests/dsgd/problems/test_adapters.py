"""Modules of flax: differences in training, constants, and invalid models."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from dsgd import problems
from dsgd.engine import queries, run_keys
from dsgd.engine.oracle import Oracle

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
CLASSES = np.arange(24) % 2
LABELS = optax.softmax_cross_entropy_with_integer_labels
SGD, GD = algorithms.minibatch_sgd(optax.sgd(0.1)), algorithms.gradient_descent(optax.sgd(0.1))


def classifier(model: Any, loss: Any = LABELS, **options: Any) -> dsgd.Problem:
    options = {"workers": 2, "batch_size": 2, **options}
    return problems.finite_sum(model, loss, (X, CLASSES), **options)


class Linen(nn.Module):
    rate: float = 0.5
    norm: bool = True
    outputs: int = 2

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x) if self.norm else x
        return nn.Dropout(self.rate, deterministic=not train)(nn.Dense(self.outputs)(x))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.layer = nnx.BatchNorm(3, rngs=rngs), nnx.Linear(3, 2, rngs=rngs)
        self.drop, self.scale = nnx.Dropout(0.5, rngs=rngs), jnp.ones(2)

    def __call__(self, x):
        return self.drop(self.layer(self.norm(x))) * self.scale[None]


def evaluate(model: Any, params: Any) -> Any:
    """Returns the outputs of flax."""
    if isinstance(model, nn.Module):
        variables = params if "params" in params else {"params": params}
        return jax.jit(model.apply, static_argnames="train")(variables, X, train=False)
    module = Nnx(nnx.Rngs(7))
    nnx.update(module, params)
    module.eval()
    return module(X)


@cache
def train_once(model: Any) -> tuple[dsgd.Problem, dsgd.Result]:
    options: Any = {"test": (X, CLASSES), "metrics": {"test_loss": LABELS}, "batch_size": 4}
    problem = classifier(model, **options)
    return problem, dsgd.run(SGD, problem, steps=2, key=jax.random.key(0), mesh=1, record_every=2)


@pytest.mark.parametrize("model", [Linen(), Nnx], ids=["linen", "nnx class"])
def test_evaluation_is_that_of_flax_with_the_averaged_statistics(model):
    _, result = train_once(model)
    losses = LABELS(evaluate(model, result.params), CLASSES)
    for name in ("loss", "test_loss"):
        np.testing.assert_allclose(result.history[name][-1], losses.mean(), rtol=1e-5)
    assert result.history["loss"][-1] != result.history["loss"][0]


def test_running_averages_are_the_means_over_batches_of_the_workers():
    """The norm is applied to the inputs, so that averages do not depend on trained parameters."""
    problem, result = train_once(Linen())
    statistics = result.params["batch_stats"]["BatchNorm_0"]
    batches, sample = [], jax.jit(problem.sample)
    for n in range(2):
        mine = jax.tree.map(lambda leaf: leaf[n], problem.data)  # noqa: B023 (called immediately)
        keys = [jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), n) for k in range(16)]
        batches += [np.asarray(sample(own, mine).inputs) for own in keys]
    mean, var = ([of(batch, axis=0) for batch in batches] for of in (np.mean, np.var))
    np.testing.assert_allclose(statistics["mean"], np.mean(mean, axis=0), atol=1e-5)
    np.testing.assert_allclose(statistics["var"], np.mean(var, axis=0), rtol=1e-4)


@pytest.mark.parametrize(
    ("method", "model"),
    [(SGD, Linen(rate=0.0)), (GD, Linen(norm=False))],
    ids=["batches", "exact gradients"],
)
def test_a_step_is_that_of_flax(method, model, key):
    """Batches, here all data of a worker, are in training mode; exact gradients have no dropout."""
    problem = classifier(model, batch_size=12, replacement=False)
    start = problem.init(run_keys.split(key)[0])
    params = start.get("params", start)

    def loss(params, x, y):
        variables, training = {**start, "params": params}, method is SGD
        return LABELS(model.apply(variables, x, train=training, mutable=training)[0], y).mean()

    def exact(params, x, y):
        return LABELS(model.apply({"params": params}, x, train=False), y).mean()

    slope = jax.jit(jax.grad(loss if method is SGD else exact))
    slopes = [slope(params, problem.data.inputs[n], problem.data.targets[n]) for n in range(2)]
    expected = jax.tree.map(lambda x, *slopes: x - 0.1 * sum(slopes) / 2, params, *slopes)
    found: Any = dsgd.run(method, problem, steps=1, key=key, mesh=1).params
    found = found.get("params", found)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def flat(params: Any, batch: Any) -> jax.Array:
    return 0 * params["w"].sum()


VECTOR = problems.Model(lambda key: {"w": jnp.zeros(3)}, lambda params, x: x @ params["w"])
DROPPED = classifier(
    Linen(norm=False, outputs=9), lambda outputs, targets: outputs.sum(axis=-1), batch_size=12
)
NOISY = problems.per_sample(
    classifier(VECTOR, optax.squared_error, batch_size=8)._replace(loss=flat),
    problems.clipped(1.0),
    noise=2.0,
)
OUTSIDE = problems.Examples(np.zeros((2, 12, 3), np.float32), np.ones((2, 12)), np.ones((2, 12)))


@pytest.mark.parametrize(
    ("problem", "batches"),
    [(DROPPED, None), (DROPPED, OUTSIDE), (NOISY, None)],
    ids=["dropout", "dropout in batches from outside", "noise"],
)
def test_random_numbers_of_gradients_depend_on_worker_round_and_seed_but_not_on_devices(
    problem, batches
):
    """The gradient of the sum of the outputs with respect to the bias is the number of elements
    that are not dropped.
    """

    def draw_numbers(devices: int, rounds: int) -> np.ndarray:
        def ask(key, data, batches):
            query = queries.Asked(problem.init(jax.random.key(0)))
            found = Oracle(problem, 2, data, batches).gradients(query, key)
            return found["w"] if problem is NOISY else found["Dense_0"]["bias"]

        specs = (P(), P("workers"), P("workers"))
        over = {"mesh": dsgd.workers.mesh(devices), "out_specs": P("workers"), "check_vma": False}
        mapped = jax.jit(jax.shard_map(ask, in_specs=specs, **over))
        keys = map(jax.random.key, range(rounds))
        return np.concatenate([mapped(key, problem.data, batches) for key in keys])

    rows = draw_numbers(1, 60 if problem is NOISY else 2)
    np.testing.assert_allclose(draw_numbers(2, 1), rows[:2], rtol=1e-6)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert problem is not NOISY or np.std(rows) == pytest.approx(2 / 8, rel=0.12)


# Leaves of a module that are kept


class Constants(nnx.Module):
    def __init__(self, rngs):
        self.layer, self.number = nnx.Linear(3, 2, rngs=rngs), 2.0
        self.array, self.numpy, self.count = jnp.ones((1, 2)), np.ones((1, 2)), jnp.arange(1)
        self.variable, self.cache = nnx.Variable(jnp.ones((1, 2))), nnx.Cache(jnp.zeros(2))
        self.arrays, self.key = nnx.List([jnp.ones((1, 2))]), jax.random.key(3)

    def __call__(self, x):
        outputs = self.layer(x) * self.array * self.numpy * self.variable[...] * self.arrays[0]
        return outputs + self.count[None] + 0 * jax.random.normal(self.key)


def test_constants_of_an_nnx_module_stay_as_they_are(key):
    params: Any = dsgd.run(SGD, classifier(Constants), steps=2, key=key, mesh=1).params
    np.testing.assert_array_equal(params["array"], np.ones((1, 2)))
    np.testing.assert_array_equal(params["variable"], np.ones((1, 2)))
    assert np.abs(params["layer"]["bias"]).min() > 0


class Broken(nn.Module):
    what: str

    @nn.compact
    def __call__(self, x, train: bool = False):
        if self.what == "attribute":
            return nn.Dense(self.width)(x)
        if self.what == "counter":
            counter = self.variable("counter", "n", lambda: jnp.zeros(()))
            if train:
                counter.value += 1
        if self.what == "spectral":
            return nn.SpectralNorm(nn.Dense(2))(x, update_stats=train)
        return nn.Dense(2)(x)


class Keeps(nn.Module):
    layer: nn.Module | None

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(self.layer(x)) if self.layer else x


class Missing(nnx.Module):
    def __init__(self, rngs):
        self.layer, self.drop = nnx.Linear(3, 2, rngs=rngs), nnx.Dropout(0.5)

    def __call__(self, x):
        return self.drop(self.layer(x))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Broken("attribute"), r'^model Broken: init: AttributeError: "Broken" .* "width".$'),
        (Broken("counter"), r"^model Broken: \['counter'\]\['n'\] changes in training"),
        (Broken("spectral"), "^model Broken: .* running averages .batch_stats."),
        (Keeps(nn.BatchNorm(use_running_average=True)), "^model Keeps keeps batch_stats"),
        (Keeps(nn.Dropout(0.1, deterministic=False)), "^model Keeps keeps dropout .* training"),
        (Keeps(None), "^model Keeps keeps no parameters"),
        (Missing, r"^model Missing in training: .*no `rngs` argument.* Dropout"),
        (lambda: Missing(nnx.Rngs(0)), r"^model = the function <lambda>.* 1 argument \(rngs\)$"),
        (problems.Model(lambda key: 1.0, lambda params, x: len(params)), "model: TypeError: "),
        (Linen, "^model = the class Linen; "),
        (lambda rngs: 3, " 3; expected"),
        ("mlp", "^model = 'mlp'; .*flax.*nnx.Rngs"),
    ],
)
def test_invalid_models_are_refused_with_the_cause(model, words):
    with pytest.raises(ValueError, match=words) as caught:
        classifier(model)
    assert not getattr(caught.value, "__notes__", [])
