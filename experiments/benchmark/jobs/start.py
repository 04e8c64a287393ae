"""Whole programs that do the same job, which `benchmark start` runs in separate processes.

    python -m experiments.benchmark.jobs.start dsgd

The job is logistic regression on digits, sorted by label over 16 workers, 1,000 rounds of ring DSGD
on batches of 16. In every round f, |f'|^2, the consensus distance and the test accuracy are
recorded. Versions import only the modules that they need, and read the same file.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

WORKERS, CLASSES, PER_WORKER = 16, 10, 89
_TRACE = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
)
_COMPILE = ("/jax/core/compile/backend_compile_duration",)


class Laps:
    """Records the seconds of each lap by name, from the end of the previous lap. The seconds in
    which JAX traces (and lowers) and compiles are recorded under their own names, and are not part
    of a lap.
    """

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._seconds: dict[str, float] = {}
        # intervals of JAX's events: start, end, whether it compiled; some are nested
        self._spans: list[tuple[float, float, bool]] = []

    def watch_jax(self) -> None:
        """Records JAX's events from now on."""
        from jax import monitoring

        monitoring.register_event_duration_secs_listener(self._add_span)

    def lap(self, name: str) -> None:
        """Ends a lap, and records its seconds under this name."""
        began, self._at = self._at, time.perf_counter()
        self._seconds[name] = (
            self._at - began - _union_length([span for span in self._spans if span[0] >= began])
        )

    def finish(self, loss: float) -> None:
        """Prints the seconds and the last loss as one line of JSON."""
        compiling = _union_length([span for span in self._spans if span[2]])
        print(
            json.dumps(
                {
                    **self._seconds,
                    "trace": _union_length(self._spans) - compiling,
                    "compile": compiling,
                    "loss": loss,
                }
            )
        )

    def _add_span(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in _TRACE + _COMPILE:
            now = time.perf_counter()
            self._spans.append((now - duration_secs, now, event in _COMPILE))


def _union_length(spans: list[tuple[float, float, bool]]) -> float:
    """Returns the length of the union of intervals."""
    total, until = 0.0, 0.0
    for begin, end, _ in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def load_digits() -> tuple[Any, Any, Any, Any]:
    """Returns inputs `[16, 89, 64]` and classes `[16, 89]` of workers with few classes each, and
    those of the test set, `[373, 64]`, `[373]`.
    """
    import numpy as np

    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    table = np.loadtxt(
        Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz",
        delimiter=",",
        dtype=np.float32,
    )
    table = np.random.default_rng(0).permutation(table)
    train, test = np.split(table, [WORKERS * PER_WORKER])
    train = train[np.argsort(train[:, -1], kind="stable")].reshape(WORKERS, PER_WORKER, -1)
    return (
        train[..., :-1] / 16,
        train[..., -1].astype(np.int32),
        test[:, :-1] / 16,
        test[:, -1].astype(np.int32),
    )


def dsgd_run(laps: Laps) -> float:
    import jax
    import optax

    import algorithms
    import dsgd
    import topologies
    from dsgd import problems

    laps.lap("imports")
    laps.watch_jax()
    problem = problems.logistic_regression("digits", workers=16, partition="by-label")
    laps.lap("problem")
    method = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(16))
    result = dsgd.run(method, problem, steps=1_000, key=jax.random.key(0), mesh=1)
    laps.lap("rounds")
    return float(result.history["loss"][-1])


def scan(laps: Laps) -> float:
    import jax
    import jax.numpy as jnp

    laps.lap("imports")
    laps.watch_jax()
    inputs, targets, test_inputs, test_targets = map(jnp.asarray, load_digits())
    laps.lap("problem")

    def loss(w, x, y):
        logits = x @ w[:-1] + w[-1]
        losses = (
            jax.nn.logsumexp(logits, axis=-1)
            - jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
        )
        return losses.mean() + 0.5e-4 * jnp.sum(w**2)

    def whole(w):
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(w, inputs, targets))

    def gradient(w, x, y, key):
        chosen = jax.random.randint(key, (16,), 0, PER_WORKER)
        return jax.grad(loss)(w, x[chosen], y[chosen])

    def one_round(w, key):
        half = w - 0.1 * jax.vmap(gradient)(w, inputs, targets, jax.random.split(key, WORKERS))
        w = (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3
        middle = w.mean(axis=0)
        value, slope = jax.value_and_grad(whole)(middle)
        right = jnp.argmax(test_inputs @ middle[:-1] + middle[-1], axis=-1) == test_targets
        return w, (value, jnp.sum(slope**2), jnp.sum((w - middle) ** 2) / WORKERS, right.mean())

    @jax.jit
    def run(w, key):
        return jax.lax.scan(one_round, w, jax.random.split(key, 1_000))

    _, history = jax.block_until_ready(run(jnp.zeros((WORKERS, 65, CLASSES)), jax.random.key(0)))
    laps.lap("rounds")
    return float(history[0][-1])


def numpy_loop(laps: Laps) -> float:
    import numpy as np

    laps.lap("imports")
    rng = np.random.default_rng(0)
    inputs, targets, test_inputs, test_targets = load_digits()
    laps.lap("problem")
    hot, rows = np.eye(CLASSES, dtype=np.float32)[targets], np.arange(WORKERS)[:, None]

    def loss_and_gradient(w, x, y):
        """Returns losses and gradients of models `[n, 65, 10]` on samples `[n, m, 64]`, or of one
        model on all of them.
        """
        logits = x @ w[..., :-1, :] + w[..., -1:, :]
        logits -= logits.max(axis=-1, keepdims=True)
        size = np.exp(logits)
        total = size.sum(axis=-1, keepdims=True)
        losses = (np.log(total) - np.sum(logits * y, axis=-1, keepdims=True)).mean(axis=(-2, -1))
        error = (size / total - y) / x.shape[-2]
        slope = np.concatenate(
            [np.swapaxes(x, -1, -2) @ error, error.sum(axis=-2, keepdims=True)], axis=-2
        )
        return losses + 0.5e-4 * np.sum(w**2, axis=(-1, -2)), slope + np.float32(1e-4) * w

    def one_round(w):
        chosen = rng.integers(0, PER_WORKER, (WORKERS, 16))
        _, gradient = loss_and_gradient(w, inputs[rows, chosen], hot[rows, chosen])
        half = w - np.float32(0.1) * gradient
        w = (half + np.roll(half, 1, axis=0) + np.roll(half, -1, axis=0)) / np.float32(3)
        middle = w.mean(axis=0)
        values, slopes = loss_and_gradient(middle, inputs, hot)
        right = np.argmax(test_inputs @ middle[:-1] + middle[-1], axis=-1) == test_targets
        record = (
            values.mean(),
            np.sum(slopes.mean(axis=0) ** 2),
            np.sum((w - middle) ** 2) / WORKERS,
            right.mean(),
        )
        return w, record

    w, history = np.zeros((WORKERS, 65, CLASSES), np.float32), []
    for _ in range(1_000):
        w, record = one_round(w)
        history.append(record)
    laps.lap("rounds")
    return float(history[-1][0])


VERSIONS = {"dsgd": dsgd_run, "scan": scan, "numpy": numpy_loop}

if __name__ == "__main__":
    laps = Laps()
    laps.finish(VERSIONS[sys.argv[1]](laps))
