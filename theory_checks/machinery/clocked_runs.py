r"""Runs of the project's rounds on workers of given speeds, and exact moments of asynchronous
methods on quadratics.

Seconds, step size and data are arguments of the compiled program, which all clusters share.

**Exact moments.** If the seconds are not random, the order of the gradients is not random either,
and the state of a method that only adds gradients is affine in their noise, for each direction of
eigenvectors that all workers share:

$$ x_k = m_k + \sum_j c_{kj} \xi_j, \qquad E x_k^2 = m_k^2 + \sum_j c_{kj}^2\, E\xi_j^2. $$

So the method is run on the vectors $(m_k, c_{k1}, c_{k2}, \dots)$ of all directions: the mean has
the first column, and the noise of each gradient has a column of its own, to which its oracle adds
the standard deviation. The sum of squares of $f'$ at such a model is $E|f'(x_k)|^2$.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import clusters, workers
from dsgd.base import Algorithm, Loss, Problem
from dsgd.engine import clock, columns, oracle, plan, rounds
from theory_checks.machinery.rounds import place_on_one_device
from theory_checks.machinery.statement import ROUNDING

_KEPT = (columns.CLOCK, "delay", "server_steps", "staleness", "worker")
_Factory = Callable[..., Algorithm]


class Clocked(NamedTuple):
    """Records of a run, `[..., rounds]` each.

    Args:
        seconds: the clock after each round.
        steps: number of the server's steps after each round.
        slope: |f'|^2 at the model before each round.
        events: other numbers that the method logs, by name.
    """

    seconds: np.ndarray
    steps: np.ndarray
    slope: np.ndarray
    events: dict[str, np.ndarray]

    def seconds_to(self, epsilon: float) -> float:
        r"""Returns the seconds until $\frac1K \sum_{k<K} |f'(x_k)|^2 \le \epsilon$ for the models
        before the first K steps, the last of which is complete; inf if they never are.
        """
        ends = np.flatnonzero(np.diff(self.steps, prepend=0))
        means = np.cumsum(self.slope[ends]) / np.arange(1, len(ends) + 1)
        reached = ends[means <= epsilon * (1 + ROUNDING)]
        return float(self.seconds[reached[0]]) if len(reached) else np.inf


def run(
    factory: _Factory,
    problem: Problem,
    learning_rate: float,
    times: Sequence[float] | np.ndarray,
    *,
    length: int,
    latency: float = 0.0,
    seeds: int | None = None,
    batch: Callable[[Any, jax.Array], Any] | None = None,
) -> Clocked:
    """Runs a method on workers of given speeds.

    Args:
        factory: learning_rate -> method, such as from `runs.with_step`; pass the same object to
            compile once.
        problem: with exact evaluations from its loss.
        learning_rate: gamma.
        times: h_i, seconds of a gradient by worker.
        length: number of rounds.
        latency: seconds of a message.
        seeds: number of runs, the leading axis of the records; None: one run, without this axis.
        batch: (data, number of the round) -> batches of all workers; None: the problem draws them.
    """
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), seeds or 1)
        found = _run(
            jnp.asarray(problem.init(keys[0]), float),
            problem.data,
            jnp.asarray(learning_rate, float),
            jnp.asarray(times, jnp.float32),
            jnp.float32(latency),
            keys,
            factory=factory,
            problem=plan.drop_arrays(problem)._replace(init=None),
            length=length,
            batch=batch,
        )
        found = {name: np.asarray(values, np.float64) for name, values in found.items()}
    found = found if seeds else {name: values[0] for name, values in found.items()}
    seconds = clock.to_seconds(found.pop(columns.CLOCK))
    steps = found.get(
        "server_steps", np.broadcast_to(np.arange(1, length + 1), found["slope"].shape)
    )
    return Clocked(seconds, steps, found.pop("slope"), found)


@partial(jax.jit, static_argnames=("factory", "problem", "length", "batch"))
def _run(start, data, learning_rate, times, latency, keys, *, factory, problem, length, batch):
    N, of_start = len(times), Problem(lambda key: jnp.zeros(start.shape), *problem[1:])

    def everything(start, data, learning_rate, times, latency, keys):
        compute = clusters.Quantity(
            lambda key, clock, worker: times[worker], "times", positive=True, time_invariant=True
        )
        of = plan.Plan(
            lambda point: factory(**point),
            of_start,
            workers.mesh(1),
            N,
            runs=0,
            record_every=1,
            capacity=1,
            cluster=clusters.Cluster(compute, latency=latency),
        )
        method = of.method({"learning_rate": learning_rate})

        def one_run(key):
            def one_round(carry, t):
                model = method.models(carry.state)[0]
                slope = oracle.evaluate(of_start, model, data, ())[1]
                assert slope is not None  # it is that of the loss
                batches = None if batch is None else batch(data, t)
                after, values = rounds.run_round(of, method, key, carry, data, batches, t, t == 0)
                kept = {name: values[name] for name in _KEPT if name in values}
                return after, {"slope": jnp.sum(slope**2), **kept}

            first = plan.Carry(method.init(start), clock.start(N))
            return lax.scan(one_round, first, jnp.arange(length, dtype=jnp.int32))[1]

        return jax.vmap(one_run)(keys)

    return place_on_one_device(everything)(start, data, learning_rate, times, latency, keys)


# --- Exact moments.


class Directions(NamedTuple):
    """Quadratics whose Hessians are diagonal, and the standard deviation of the noise.

    Args:
        A, b: diagonals of the Hessians and linear terms, `[N, d]`.
        scale: sigma / sqrt(d), `[N]`.
        column: column of the noise of each worker's gradient, int32 `[N]`; None: no noise.
    """

    A: jax.Array
    b: jax.Array
    scale: jax.Array
    column: jax.Array | None = None


def quadratic(
    A: np.ndarray, b: np.ndarray, *, noise: float, start: np.ndarray, length: int
) -> Problem:
    """Returns quadratics on which runs give exact moments; a run needs the batches `one_column` or
    `column_each`.

    Args:
        A, b: diagonals of the Hessians and linear terms, `[N, d]`.
        noise: sigma.
        start: x_1, `[d]`.
        length: number of gradients.
    """
    N, d = b.shape
    first = np.concatenate([start[:, None], np.zeros((d, length))], axis=1)
    with jax.enable_x64(True):
        data = Directions(*map(jnp.asarray, (A, b, np.full(N, noise / np.sqrt(d)))))
    return Problem(lambda key: first, Loss(_loss, _gradient), data, _no_draws)


def one_column(data: Directions, t: jax.Array) -> Directions:
    """Returns the batches of round t of a method that queries one worker in each round."""
    return data._replace(column=jnp.full(len(data.scale), t + 1))


def column_each(data: Directions, t: jax.Array) -> Directions:
    """Returns the batches of round t of a method that queries all workers in each round."""
    N = len(data.scale)
    return data._replace(column=1 + t * N + jnp.arange(N, dtype=jnp.int32))


def _gradient(x: jax.Array, batch: Directions) -> jax.Array:
    exact = (batch.A[:, None] * x).at[:, 0].add(-batch.b)
    return exact if batch.column is None else exact.at[:, batch.column].add(batch.scale)


def _loss(x: jax.Array, batch: Directions) -> jax.Array:
    return jnp.sum(batch.A[:, None] * x**2) / 2 - batch.b @ x[:, 0]


def _no_draws(key: jax.Array, data: Directions) -> None:
    raise NotImplementedError("batches are given")
