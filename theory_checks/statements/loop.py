r"""A run is its rounds: `dsgd.sweep` beside the recursion of decentralized SGD on a schedule, with records every few rounds.

Round t of a run with key k draws with `split(fold_in(split(k)[1], t), 3)[1]`, and worker n with `fold_in(_, n)` of that. Recomputed here,
these numbers are the noise of the recursion, whatever chunks, records and runs side by side do. Models, the model to take home and all of
the history are then equal up to rounding: $f$, $|f'|^2$, the consensus distance $\frac1N \sum_n |x_n - \bar x|^2$, and bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import problems
from dsgd.base import Algorithm
from theory_checks.machinery import cases, trajectories
from theory_checks.machinery.cases import Method
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.machinery.trajectories import D, N
from theory_checks.recursions import decentralized
from theory_checks.recursions.shared import plain, quadratic
from theory_checks.statements.recursions.shared import graph, matrices

STEPS, EVERY, SEEDS = 11, 4, 2
RECORDED = (0, 4, 8, 11)


@cache
def _factory(method: Method) -> Callable[..., Algorithm]:
    return lambda gamma: method(optax.sgd(gamma), graph("one peer"))


@jax.jit
def _noise(key: jax.Array) -> jax.Array:
    """Standard normal, of every round and worker of a run with this key, `[STEPS, N, D]`."""

    def of_round(t):
        samples = jax.random.split(jax.random.fold_in(jax.random.split(key)[1], t), 3)[1]
        return jax.vmap(lambda n: jax.random.normal(jax.random.fold_in(samples, n), (D,)))(jnp.arange(N))

    return jax.vmap(of_round)(jnp.arange(STEPS))


def trial(draws: Draws, method: Method = algorithms.decentralized_sgd) -> list[Outcome]:
    """Two runs side by side at two step sizes."""
    of, sigma = trajectories.instance(draws), draws.real(0.1, 2.0)
    A, b = np.asarray(of.A), np.asarray(of.b)
    problem, key = problems.quadratic(A, b, noise=sigma), jax.random.key(draws.integer(0, 2**31 - 1))
    rates = np.array([float(of.learning_rate), 0.05])
    found = dsgd.sweep(_factory(method), problem, steps=STEPS, key=key, seeds=SEEDS, mesh=1, record_every=EVERY, gamma=rates)
    expected = []
    for gamma in rates:
        for own in jax.random.split(key, SEEDS):
            G = quadratic(A, b, sigma / np.sqrt(D) * np.asarray(_noise(own)))
            rounds = decentralized.decentralized(np.zeros((N, D)), G, matrices("one peer"), plain(gamma))
            expected.append([np.zeros((N, D)), *(symbols["params"] for symbols in islice(rounds, STEPS))])
    return _compared(found, np.array(expected), A.mean(axis=0), b.mean(axis=0))


def _compared(found: Any, X: np.ndarray, A: np.ndarray, b: np.ndarray) -> list[Outcome]:
    """With the models of every round `[runs, STEPS + 1, N, D]`; what is recorded of each run is one row of history."""
    records = X[:, list(RECORDED)]
    mean = records.mean(axis=2)
    slopes = mean @ A - b
    papers = {
        "step": np.tile(RECORDED, (len(X), 1)),
        "loss": np.einsum("rti,ij,rtj->rt", mean, A, mean) / 2 - mean @ b,
        "grad_sqnorm": (slopes**2).sum(axis=-1),
        "consensus": ((records - mean[:, :, None]) ** 2).sum(axis=-1).mean(axis=-1),
        "bits": np.tile(np.array(RECORDED) * 2 * 64 * D, (len(X), 1)),  # of a worker: one peer, up and down
    }
    history = {name: np.broadcast_to(values, (2, SEEDS, len(RECORDED))) for name, values in found.history.items()}
    compare = partial(_of_runs, "a run")
    return [
        compare("models", found.state.workers.params, X[:, -1]),
        compare("model to take home", found.params, mean[:, -1]),
        *(compare(name, history[name], values) for name, values in papers.items()),
    ]


def _of_runs(case: str, name: str, got: Any, expected: np.ndarray) -> Outcome:
    """Leaves `[2, SEEDS, ...]` for `[2 SEEDS, ...]`."""
    return cases.compare(f"{case}: {name}, run for round,", np.asarray(got).reshape(expected.shape), expected)


STATEMENTS = [Statement("a run is its rounds", "(5.2)", "on a schedule; records every 4 rounds", trial)]
