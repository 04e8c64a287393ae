"""MindFlayer and Vecna: gradients that take too long are cut and begun again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import methods, optimizers
from algorithms.asynchronous.asynchronous_server import asynchronous_server
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Params, PyTree

SETTINGS: dict[str, Any] = {"trials": 2, "timeouts": 1.5}


class Trials(NamedTuple):
    """The server's state: a model, the number of its steps, and the weighted sum of gradients and
    each worker's number of trials, int32 `[N]`, at this model.
    """

    params: Params
    optimizer: PyTree
    steps: jax.Array
    total: Params
    made: jax.Array


@method(
    sends="one gradient to the server, the model back",
    needs=("all workers",),
    paper="Maranjyan et al., 2024, MindFlayer",
    page="how_to/clusters/asynchronous.md",
    aliases=("mindflayer", "mindflayer_sgd"),
    settings=SETTINGS,
)
@checks.arguments
def mind_flayer_sgd(
    optimizer: optax.GradientTransformation,
    trials: int | Sequence[int],
    timeouts: float | Sequence[float],
    probability: float | Sequence[float] = 1.0,
) -> Algorithm:
    r"""MindFlayer: each worker makes a number of trials to compute a gradient at the current model,
    each of which it cuts after its time-out. When all trials have been made, the server makes a
    step with the gradients that were not cut.

    $$ x_{k+1} = x_k - \frac{\gamma}{B} \sum_n \sum_{b \le B_n,\, \eta_{nb} \le t_n} g_{nb}(x_k),
       \qquad B = \sum_n p_n B_n $$

    $\eta_{nb}$ is the random time of trial b. After its trials a worker waits for the next model.
    A round is one trial; the history has `lost`, whether it was cut, and `server_steps`. If no
    trial is cut, B gradients are collected as in Rennala, but a fixed number from each worker.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        trials: B_n, at least 0, not all 0; one number, or one for each worker. The first gradient
            of a worker with 0 trials is ignored, and it computes no other.
        timeouts: t_n, seconds; one number, or one for each worker.
        probability: p_n, in (0, 1], probability that a trial of worker n is not cut, which depends
            on the cluster; one number, or one for each worker.

    Raises:
        ValueError: if a number is out of its range; during a run: if there are not as many numbers
            as workers.

    Source: Maranjyan, Shaikh Omar and Richtarik, "MindFlayer SGD: efficient parallel SGD in the
    presence of heterogeneous and random worker compute times", 2024, MindFlayer SGD.
    """

    def weigh(trials, probability):
        return np.full(len(trials), 1 / (probability @ trials))

    return _with_trials("mind_flayer_sgd", optimizer, trials, timeouts, probability, weigh)


@method(
    sends="one gradient to the server, the model back",
    exact="any data",
    needs=("all workers",),
    paper="Maranjyan et al., 2024, Vecna",
    page="how_to/clusters/asynchronous.md",
    aliases=("vecna",),
    settings=SETTINGS,
)
@checks.arguments
def vecna_sgd(
    optimizer: optax.GradientTransformation,
    trials: int | Sequence[int],
    timeouts: float | Sequence[float],
    probability: float | Sequence[float] = 1.0,
) -> Algorithm:
    r"""Vecna: MindFlayer for different data, in which all workers have equal weight.

    $$ x_{k+1} = x_k - \frac{\gamma}{N} \sum_n \frac{1}{p_n B_n}
       \sum_{b \le B_n,\, \eta_{nb} \le t_n} g_{nb}(x_k) $$

    The step is unbiased for any data. Without cuts, it is a mini-batch step with $B_n$ gradients
    of worker n; with cuts, its variance does not vanish at the optimum, even if gradients are
    exact. A round is one trial; the history is that of `mind_flayer_sgd`.

    Args:
        optimizer, timeouts, probability: see `mind_flayer_sgd`.
        trials: B_n, at least 1; one number, or one for each worker.

    Raises:
        ValueError: if a number is out of its range; during a run: if there are not as many numbers
            as workers.

    Source: Maranjyan, Shaikh Omar and Richtarik, "MindFlayer SGD: efficient parallel SGD in the
    presence of heterogeneous and random worker compute times", 2024, Vecna SGD.
    """
    for one in np.ravel(trials).tolist():
        checks.positive_int("vecna_sgd: trials", one)

    def weigh(trials, probability):
        return 1 / (len(trials) * probability * trials)

    return _with_trials("vecna_sgd", optimizer, trials, timeouts, probability, weigh)


def _with_trials(
    name: str,
    optimizer: optax.GradientTransformation,
    trials: int | Sequence[int],
    timeouts: float | Sequence[float],
    probability: float | Sequence[float],
    weigh: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Algorithm:
    """Returns the method with the weights of gradients (B `[N]`, p `[N]`) -> `[N]`."""
    for one in np.ravel(trials).tolist():
        checks.natural(f"{name}: trials", one)
    for one in np.ravel(probability).tolist():
        checks.number(f"{name}: probability", one, "(0, 1]")
    if not np.any(trials):
        raise ValueError(f"{name}: trials are all 0, so that no step is ever made; expected some")

    def for_each(N):
        return (
            methods.by_worker(f"{name}: trials", trials, N),
            methods.by_worker(f"{name}: probability", probability, N),
        )

    def start(model, N):
        for_each(N)
        zeros = optax.tree.zeros_like(model.params)
        return Trials(model.params, model.optimizer, jnp.int32(0), zeros, jnp.zeros(N, jnp.int32))

    def step(model, gradient, arrival, read):
        n, (B, p) = arrival.worker, for_each(len(model.made))
        counts = model.made[n] < jnp.asarray(B, jnp.int32)[n]  # not the first of no trials
        weight = jnp.where(counts, jnp.asarray(weigh(B, p))[n], 0)
        total = jax.tree.map(lambda sum, g: sum + weight.astype(g.dtype) * g, model.total, gradient)
        made = model.made.at[n].add(counts)
        stepped = optimizers.step(optimizer, optimizers.Model(model.params, model.optimizer), total)
        after = Trials(*stepped, model.steps + 1, *optax.tree.zeros_like((total, made)))
        going_on = model._replace(total=total, made=made)
        done = jnp.all(made >= jnp.asarray(B, jnp.int32))
        return jax.tree.map(partial(jnp.where, done), after, going_on)

    def order(model, arrival, jobs, key):
        left = model.made < jnp.asarray(for_each(len(model.made))[0], jnp.int32)
        return jnp.where(jobs.waiting & left[jobs.worker], jobs.worker, -1)

    return asynchronous_server(name, optimizer, step, start=start, order=order, timeouts=timeouts)
