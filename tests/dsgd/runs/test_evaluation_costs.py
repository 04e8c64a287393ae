"""Evaluations on some of the samples, and the warning if evaluations take most of a run's time."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from dsgd import problems
from dsgd.runs import chunks


def values_of(sizes, **options) -> dsgd.Problem:
    """Returns a problem in which the loss of a sample at the start is the sample, 0, 1, ..."""
    numbers = np.arange(float(sum(sizes)))
    model = problems.Model(lambda key: jnp.ones(()), lambda x, inputs: x * inputs)
    return problems.finite_sum(
        model,
        lambda outputs, targets: outputs,
        (numbers, ()),
        len(sizes),
        np.split(np.arange(len(numbers)), np.cumsum(sizes)[:-1]),
        test=(numbers, ()),
        metrics={"tested": lambda outputs, targets: outputs},
        **options,
    )


def evaluate(problem: dsgd.Problem) -> tuple[float, float]:
    """Returns the loss and the metric at the start."""
    method = algorithms.minibatch_sgd(optax.sgd(0.0))
    history = dsgd.run(method, problem, steps=1, key=jax.random.key(0), mesh=1).history
    return history["loss"][0], history["tested"][0]


@pytest.mark.parametrize("sizes", [(10, 9), (1, 40)], ids=["stacked", "pooled"])
def test_loss_and_metrics_are_means_over_evenly_spaced_samples(sizes):
    loss, tested = evaluate(values_of(sizes, evaluation_size=7))
    M = sum(sizes)
    begins = (0, sizes[0])
    kept = [min(4, size) for size in sizes]  # 7 samples of 2 workers, rounded up
    rows = [
        begin + np.arange(k) * size // k for begin, k, size in zip(begins, kept, sizes, strict=True)
    ]
    assert loss == pytest.approx(np.mean([each.mean() for each in rows]), rel=1e-6)
    assert tested == pytest.approx((np.arange(7) * M // 7).mean(), rel=1e-6)


@pytest.mark.parametrize("size", [0, 2 * 32768 + 1])
def test_an_evaluation_size_out_of_range_raises(size):
    with pytest.raises(ValueError, match="evaluation_size"):
        values_of((3, 5), evaluation_size=size)


@pytest.mark.filterwarnings("error")
def test_a_run_warns_once_of_slow_evaluations(monkeypatch):
    def slow(params, data, shared):
        wasted = jax.lax.fori_loop(
            0, 60, lambda i, x: jnp.sin(x), jnp.sum(params) + jnp.arange(1e6)
        )
        return {"loss": jnp.sum(params**2) + 0 * jnp.sum(wasted)}, None

    monkeypatch.setattr(chunks, "_SLOW_CHUNK", 0.1)
    monkeypatch.setattr(chunks, "_LONG_EVALUATIONS", 0.05)
    problem = problems.random_quadratic(2, 2)._replace(evaluate=slow, name="slow problem")
    method = algorithms.minibatch_sgd(optax.sgd(0.1))
    expected = "of the run's time is spent evaluating slow problem.*record_every"
    with pytest.warns(UserWarning, match=expected) as found:
        result = dsgd.run(method, problem, steps=4, key=jax.random.key(0), mesh=1)
    assert len(found) == 1
    assert result.history["step"].tolist() == [0, 1, 2, 3, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast = dsgd.run(
            method, problem._replace(evaluate=None), steps=4, key=jax.random.key(0), mesh=1
        )
    assert (fast.state.server.params == result.state.server.params).all()
