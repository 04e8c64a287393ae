"""`finite_sum` with custom models and losses, compared with loops in numpy; evaluation in pieces;
and invalid arguments.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import dsgd
from dsgd import problems
from dsgd.engine import accumulate, oracle
from dsgd.engine.oracle import Oracle
from dsgd.engine.queries import Asked

N, M, FEATURES, LENGTH, VOCABULARY = 8, 61, 3, 5, 7
RNG = np.random.default_rng(0)
PARTS = np.split(RNG.permutation(M), [3, 20, 21, 30, 33, 40, 55])  # of 1 to 17 samples
INPUTS = {"left": RNG.normal(size=(M, FEATURES)), "right": RNG.normal(size=(M, 2))}
TARGETS = RNG.normal(size=M)
X = RNG.normal(size=FEATURES + 2)


def predict(x: jax.Array, inputs: dict[str, jax.Array]) -> jax.Array:
    return inputs["left"] @ x[:FEATURES] + inputs["right"] @ x[FEATURES:]


def bigrams(size: int) -> problems.Model:
    """Returns logits of the next token, which depend only on the token."""
    return problems.Model(lambda key: jnp.zeros((size, size)), lambda table, tokens: table[tokens])


LINEAR = problems.Model(lambda key: jnp.zeros(FEATURES + 2), predict)
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def compile_on(mesh: jax.sharding.Mesh, problem: dsgd.Problem, function: Any, out: Any) -> Any:
    """Returns a program (params, data, shared) -> result."""
    over = {"mesh": mesh, "out_specs": out, "check_vma": False}
    return jax.jit(jax.shard_map(function, in_specs=(P(), P("workers"), P()), **over))


@pytest.mark.parametrize(("chunk", "devices"), [(None, 1), (9, 8)])
def test_regression_is_that_of_numpy(chunk, devices):
    """Inputs of two parts, workers with 1 to 17 samples, in pieces that do not divide them: the
    evaluation, and every worker's exact gradient.
    """
    features = np.concatenate([INPUTS["left"], INPUTS["right"]], axis=1)
    errors = features @ X - TARGETS
    slopes = np.array([2 * errors[part] @ features[part] / len(part) for part in PARTS]) + 0.3 * X
    value = np.mean([np.mean(errors[part] ** 2) for part in PARTS]) + 0.15 * X @ X

    def both(params, data, shared):
        each = Oracle(problem, N, data).gradients(Asked(params, exact=True), jax.random.key(0))
        return *oracle.evaluate(problem, params, data, shared), each

    with jax.enable_x64(True):
        problem = problems.finite_sum(
            LINEAR,
            optax.squared_error,
            (INPUTS, TARGETS),
            N,
            PARTS,
            l2=0.3,
            chunk=chunk,
            test=(jax.tree.map(lambda leaf: leaf[:11], INPUTS), TARGETS[:11]),
            metrics={"test_loss": optax.squared_error},
        )
        run = compile_on(dsgd.workers.mesh(devices), problem, both, (P(), P(), P("workers")))
        scalars, slope, each = run(jnp.asarray(X), problem.data, problem.evaluation.replicated)
    assert set(scalars) == {"loss", "test_loss"}
    np.testing.assert_allclose(scalars["loss"], value, rtol=1e-12)
    np.testing.assert_allclose(scalars["test_loss"], np.mean(errors[:11] ** 2), rtol=1e-12)
    np.testing.assert_allclose(slope, slopes.mean(axis=0), rtol=1e-11)
    np.testing.assert_allclose(each, slopes, rtol=1e-11)


@pytest.mark.parametrize("what", ["evaluation", "exact gradient"])
def test_a_text_of_14_megabytes_is_evaluated_in_a_few(what, mesh, optimised):
    """In one piece, the logits of its 215,000 windows alone would take 14 GB."""
    windows = np.zeros((215_000, 64), np.uint8)
    problem = problems.finite_sum(bigrams(256), cross_entropy, (windows, windows), 16, "blocks")

    def run(params, data, shared):
        if what == "evaluation":
            return oracle.evaluate(problem, params, data, shared)
        return Oracle(problem, 16, data).gradients(Asked(params, exact=True), jax.random.key(0))

    given = problem.init(jax.random.key(0)), problem.data, problem.evaluation.replicated
    analysis = compile_on(mesh, problem, run, P()).lower(*given).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < accumulate.BUDGET


def linear(x: jax.Array, inputs: jax.Array) -> jax.Array:
    return inputs @ x


def column(x: jax.Array, inputs: jax.Array) -> jax.Array:
    return (inputs @ x)[:, None]


def broadcast(outputs, targets):
    return (outputs - targets[None]) ** 2


def mean(outputs, targets):
    return jnp.mean(outputs)


ROWS = INPUTS["left"]
PAIR, METRIC = (ROWS, TARGETS), {"test_loss": optax.squared_error}
GOOD: dict[str, Any] = {
    "model": problems.Model(lambda key: jnp.zeros(FEATURES), linear),
    "loss": optax.squared_error,
    "data": PAIR,
    "workers": 3,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"model": problems.Model(lambda key: jnp.zeros(FEATURES), column), "loss": broadcast},
            r"loss returned float32\[2, 2\] for 2 samples, float32\[3, 3\] for 3",
        ),
        ({"loss": mean}, r"loss returned float32\[\] for 2 samples.*; expected floating"),
        ({"loss": lambda outputs, targets: outputs > targets}, r"loss returned bool\[2\]"),
        ({"data": (ROWS, TARGETS[:-1])}, r"data: targets has shape \(60,\)"),
        ({"data": (np.ones((61, 0)), TARGETS)}, r"data: inputs has shape \(61, 0\)"),
        ({"data": [PAIR] * 3}, r"data of 3 workers .*problems\.ByWorker"),
        ({"data": (PAIR, (ROWS[:4], TARGETS[:4]))}, r"shape .*problems\.ByWorker"),
        ({"data": ((), TARGETS)}, r"inputs = \(\)"),
        ({"data": (ROWS, np.where(TARGETS > 0, np.nan, 0))}, "data: targets .*not finite"),
        ({"data": ({"a": [["x"]]}, TARGETS)}, r"data: inputs\['a'\]: got text"),
        ({"partition": "by-label"}, r"'by-label'.*integers \[61\]"),
        ({"partition": "random"}, "partition = 'random'"),
        ({"partition": [[0, 1], [2], [61]]}, "partition: worker 2 has"),
        (
            {"partition": [[*range(16)], [2], [3]], "min_samples": 2},
            "worker 1 has 1 samples; .*min_samples = 2",
        ),
        ({"l2": float("nan")}, "l2 = nan"),
        ({"test": PAIR}, "metrics = None"),
        ({"metrics": METRIC}, "test = None, metrics = "),
        ({"test": (INPUTS["right"], TARGETS), "metrics": METRIC}, "test: inputs of a sample"),
        ({"test": PAIR, "metrics": {"bits": optax.squared_error}}, "metrics.*'bits'.* = .*arrived"),
        (
            {"test": PAIR, "metrics": {"mean": mean}},
            r"finite_sum: mean returned float32.*; expected \[m, \.\.\.\], one .* not their mean$",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        problems.finite_sum(**{**GOOD, **change})
