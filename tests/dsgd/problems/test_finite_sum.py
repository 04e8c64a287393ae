"""`finite_sum`: models and losses of one's own, against loops in numpy; in pieces as in one; and
what it refuses.
"""

from __future__ import annotations

from functools import partial
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
from dsgd.engine import accumulate, oracle
from dsgd.engine.queries import Asked

N, M, FEATURES, LENGTH, VOCABULARY = 8, 61, 3, 5, 7
RNG = np.random.default_rng(0)
PARTS = np.split(RNG.permutation(M), [3, 20, 21, 30, 33, 40, 55])  # of 1 to 17 samples
INPUTS = {"left": RNG.normal(size=(M, FEATURES)), "right": RNG.normal(size=(M, 2))}
TARGETS = RNG.normal(size=M)
TOKENS = RNG.integers(0, VOCABULARY, (M, LENGTH + 1)).astype(np.uint8)
X = RNG.normal(size=FEATURES + 2)
TABLE = RNG.normal(size=(VOCABULARY, VOCABULARY))


def predict(x: jax.Array, inputs: dict[str, jax.Array]) -> jax.Array:
    return inputs["left"] @ x[:FEATURES] + inputs["right"] @ x[FEATURES:]


def looked_up(table: jax.Array, tokens: jax.Array) -> jax.Array:
    return table[tokens]


LINEAR = problems.Model(lambda key: jnp.zeros(FEATURES + 2), predict)
BIGRAMS = problems.Model(lambda key: jnp.zeros((VOCABULARY, VOCABULARY)), looked_up)
SGD = algorithms.minibatch_sgd(optax.sgd(0.1))
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def regression(**options: Any) -> dsgd.Problem:
    test = (jax.tree.map(lambda leaf: leaf[:11], INPUTS), TARGETS[:11])
    options = {
        "batch_size": 1,
        "test": test,
        "metrics": {"test_loss": optax.squared_error},
        **options,
    }
    return problems.finite_sum(LINEAR, optax.squared_error, (INPUTS, TARGETS), N, PARTS, **options)


def sequences(**options: Any) -> dsgd.Problem:
    test, metrics = (
        (TOKENS[:4, :-1], TOKENS[:4, 1:]),
        {"test_bits": lambda *outputs: cross_entropy(*outputs) / np.log(2)},
    )
    options = {"batch_size": 1, "test": test, "metrics": metrics, **options}
    return problems.finite_sum(
        BIGRAMS, cross_entropy, (TOKENS[:, :-1], TOKENS[:, 1:]), N, PARTS, **options
    )


class Linen(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(self.width)(x)))[:, 0]


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(FEATURES, 4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x)))[:, 0]


def made(rngs: nnx.Rngs) -> Nnx:
    return Nnx(rngs)


def of_module(model: Any) -> dsgd.Problem:
    return problems.finite_sum(
        model, optax.squared_error, (INPUTS["left"], TARGETS), 4, batch_size=2
    )


def on(mesh: jax.sharding.Mesh, problem: dsgd.Problem, function: Any, out: Any, params: Any) -> Any:
    """Of (params, data, shared), in one program."""
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=(P(), P("workers"), P()), out_specs=out, check_vma=False
    )
    return jax.jit(mapped)(params, problem.data, problem.shared)


def evaluate(problem: dsgd.Problem, params: Any, mesh: jax.sharding.Mesh) -> Any:
    return on(mesh, problem, partial(oracle.evaluate, problem), P(), params)


def evaluate_and_ask(problem: dsgd.Problem, params: Any, mesh: jax.sharding.Mesh) -> Any:
    """With every worker's gradient on all it has."""

    def both(params, data, shared):
        each = oracle.gradients(problem, Asked(params, exact=True), jax.random.key(0), data, N)
        return *oracle.evaluate(problem, params, data, shared), each

    return on(mesh, problem, both, (P(), P(), P("workers")), params)


@pytest.mark.parametrize(("chunk", "devices"), [(None, 1), (9, 8)])
def test_regression_is_that_of_numpy(chunk, devices):
    """Inputs of two parts, workers with 1 to 17 samples, in pieces that do not divide them."""
    features = np.concatenate([INPUTS["left"], INPUTS["right"]], axis=1)
    errors = features @ X - TARGETS
    slopes = np.array([2 * errors[part] @ features[part] / len(part) for part in PARTS]) + 0.3 * X
    value = np.mean([np.mean(errors[part] ** 2) for part in PARTS]) + 0.15 * X @ X
    mesh = dsgd.workers.mesh(devices)
    with jax.enable_x64(True):
        problem = regression(chunk=chunk, l2=0.3)
        scalars, slope, each = evaluate_and_ask(problem, jnp.asarray(X), mesh)
    assert set(scalars) == {"loss", "test_loss"}
    np.testing.assert_allclose(scalars["loss"], value, rtol=1e-12)
    np.testing.assert_allclose(scalars["test_loss"], np.mean(errors[:11] ** 2), rtol=1e-12)
    np.testing.assert_allclose(slope, slopes.mean(axis=0), rtol=1e-11)
    np.testing.assert_allclose(each, slopes, rtol=1e-11)


def test_a_loss_of_every_position_is_averaged_over_them(mesh):
    logits = TABLE[TOKENS[:, :-1]]
    of_position = (
        np.log(np.exp(logits).sum(axis=-1))
        - np.take_along_axis(logits, TOKENS[:, 1:, None].astype(int), axis=-1)[..., 0]
    )
    expected = np.mean([of_position[part].mean() for part in PARTS])
    with jax.enable_x64(True):
        problem = sequences(chunk=7)
        assert problem.data.inputs.dtype == problem.data.targets.dtype == jnp.uint8
        scalars, _ = evaluate(problem, jnp.asarray(TABLE), mesh)
    np.testing.assert_allclose(scalars["loss"], expected, rtol=1e-12)
    np.testing.assert_allclose(scalars["test_bits"], of_position[:4].mean() / np.log(2), rtol=1e-12)


@pytest.mark.parametrize(
    "model", [Linen(), made, Nnx(nnx.Rngs(3))], ids=["linen", "function", "module"]
)
def test_each_seed_has_its_own_start_if_the_model_draws_it(model):
    start = jax.jit(of_module(model).init)
    one, other = (jax.tree.leaves(start(jax.random.key(seed)))[-1] for seed in (0, 1))
    assert np.array_equal(one, other) == isinstance(model, nnx.Module)


def test_of_a_batch_the_first_samples_may_count_alone():
    problem = problems.finite_sum(
        LINEAR, optax.squared_error, (INPUTS, TARGETS), 2, batch_size=6, l2=0.2
    )
    assert problem.take is not None
    batch = jax.jit(problem.sample)(
        jax.random.key(0), jax.tree.map(lambda leaf: leaf[1], problem.data)
    )
    slope, take, x = (
        jax.jit(jax.value_and_grad(problem.loss)),
        jax.jit(problem.take),
        X.astype(np.float32),
    )
    for b in (1, 4, 6):
        alone = jax.tree.map(lambda leaf: np.asarray(leaf)[:b], batch)  # noqa: B023 (called at once)
        found, expected = slope(x, take(batch, b)), slope(x, alone)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize("what", ["evaluation", "exact gradient"])
def test_a_text_of_14_megabytes_is_evaluated_in_a_few(what, mesh, optimised):
    """In one piece, the logits of its 215,000 windows alone would be 14 GB."""
    model = problems.Model(lambda key: jnp.zeros((256, 256)), looked_up)
    windows = np.zeros((215_000, 64), np.uint8)
    problem = problems.finite_sum(model, cross_entropy, (windows, windows), 16, "blocks")
    shapes = jax.eval_shape(
        lambda *arrays: arrays, problem.init(jax.random.key(0)), problem.data, problem.shared
    )

    def run(params, data, shared):
        if what == "evaluation":
            return oracle.evaluate(problem, params, data, shared)
        return oracle.gradients(problem, Asked(params, exact=True), jax.random.key(0), data, 16)

    sharded = jax.shard_map(
        run, mesh=mesh, in_specs=(P(), P("workers"), P()), out_specs=P(), check_vma=False
    )
    analysis = jax.jit(sharded).lower(*shapes).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < accumulate.BUDGET


class Keeps(nn.Module):
    layer: str

    @nn.compact
    def __call__(self, x):
        x = (
            nn.BatchNorm(use_running_average=True)(x)
            if self.layer == "norm"
            else nn.Dropout(0.1, deterministic=False)(x)
        )
        return nn.Dense(1)(x)[:, 0]


class Flatten(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x[:, 0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Keeps("norm"),
            "model Keeps keeps batch_stats that are never updated; expected an argument of its "
            "__call__",
        ),
        (
            Keeps("drop"),
            "model Keeps keeps dropout or batch norm that is always in training mode .*; expected "
            "an argument",
        ),
        (Flatten(), "model Flatten keeps no parameters; expected a module with parameters"),
        (Linen, "model = the class Linen; expected an instance of a flax module"),
        (lambda rngs: 3, "returned 3; expected an instance of a flax module"),
        ("mlp", "model = 'mlp'; expected an instance of a flax module.*, a function from nnx.Rngs"),
    ],
)
def test_what_is_no_model_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        of_module(model)


COLUMN = problems.Model(lambda key: jnp.zeros(FEATURES), lambda x, inputs: (inputs @ x)[:, None])
VECTOR = problems.Model(lambda key: jnp.zeros(FEATURES), lambda x, inputs: inputs @ x)
X_AND_Y = INPUTS["left"], TARGETS
GOOD: dict[str, Any] = {
    "model": VECTOR,
    "loss": optax.squared_error,
    "data": (INPUTS["left"], TARGETS),
    "workers": 3,
}


def broadcast(outputs, targets):
    return (outputs - targets[None]) ** 2


METRIC = {"test_loss": optax.squared_error}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": COLUMN, "loss": broadcast},
            r"finite_sum: loss returned float32\[2, 2\] for 2 samples, float32\[3, 3\] for 3; expected",
        ),
        (
            {"loss": lambda outputs, targets: jnp.mean(outputs)},
            r"loss returned float32\[\] for 2 samples",
        ),
        ({"loss": lambda outputs, targets: outputs > targets}, r"loss returned bool\[2\]"),
        (
            {"data": (INPUTS["left"], TARGETS[:-1])},
            r"data: targets has shape \(60,\); expected \[M, ...\] with the same M",
        ),
        (
            {"data": (np.ones((61, 0)), TARGETS)},
            r"data: inputs has shape \(61, 0\); expected .* at least one element per sample",
        ),
        ({"data": [X_AND_Y] * 3}, r"for separate data of 3 workers pass problems\.ByWorker"),
        (
            {"data": (X_AND_Y, (INPUTS["left"][:4], TARGETS[:4]))},
            r"expected .* for all arrays; for separate data of the workers pass problems\.ByWorker",
        ),
        ({"data": ((), TARGETS)}, r"inputs = \(\) has no arrays"),
        (
            {"data": (INPUTS["left"], np.where(TARGETS > 0, np.nan, 0))},
            "data: targets has entries that are not finite",
        ),
        (
            {"data": ({"a": [["x"]]}, TARGETS)},
            r"data: inputs\['a'\]: got text .*; expected numbers",
        ),
        (
            {"partition": "by-label"},
            r"partition = 'by-label', but the targets are not classes; expected targets as integers \[61\]",
        ),
        ({"partition": "random"}, "split: partition = 'random'; expected"),
        ({"partition": [[0, 1], [2], [61]]}, "partition: worker 2 has"),
        ({"batch_size": 0}, "batch_size = 0; expected an integer, at least 1"),
        ({"l2": -1e-9}, "l2 = -1e-09"),
        ({"l2": float("nan")}, "l2 = nan"),
        (
            {"partition": [[*range(16)], [2], [3]], "min_samples": 2},
            "worker 1 has 1 samples; expected at least min_samples = 2",
        ),
        ({"chunk": 0}, "chunk = 0; expected an integer, at least 1"),
        ({"test": (INPUTS["left"], TARGETS)}, "metrics = None; expected both, or neither"),
        ({"metrics": METRIC}, "test = None, metrics = .*; expected both, or neither"),
        (
            {"test": (INPUTS["right"], TARGETS), "metrics": METRIC},
            r"test: inputs of a sample as float32\[\d\]; expected",
        ),
        (
            {"test": (INPUTS["left"], TARGETS), "metrics": {"bits": optax.squared_error}},
            r"metrics\['bits'\] = .* with names other than arrived",
        ),
        (
            {
                "test": (INPUTS["left"], TARGETS),
                "metrics": {"mean": lambda outputs, targets: jnp.mean(outputs)},
            },
            "finite_sum: mean returned float32",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        problems.finite_sum(**{**GOOD, **change})
