"""Ringmaster: asynchronous SGD that ignores gradients with a large delay."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.asynchronous.asynchronous_server import Counted, asynchronous_server
from algorithms.facts import method
from dsgd import Algorithm, checks
from dsgd.extend import Period


@method(
    sends="one gradient to the server, the model back",
    needs=("all workers",),
    paper="Maranjyan et al., 2025, algorithms 4 and 5",
    page="how_to/clusters/asynchronous.md",
    aliases=("ringmaster", "ringmaster_asgd"),
    settings={"threshold": 3},
    candidates={"any problem": [{"threshold": (4, 16, 64)}]},
    variants={"stops": {"stops": True}},
)
@checks.arguments
def ringmaster_sgd(
    optimizer: optax.GradientTransformation, threshold: Period, *, stops: bool = False
) -> Algorithm:
    r"""Ringmaster: asynchronous SGD in which the server ignores a gradient if it made R or more
    steps since the model was read at which the gradient was computed.

    $$ x_{k+1} = x_k - \gamma\, g(x_{k-\delta_k}) \quad \text{if } \delta_k < R $$

    A worker receives the current model after each of its gradients, also after an ignored one. With
    `stops`, a computation is stopped as soon as its delay reaches R, and its worker receives the
    current model, so that no gradient is ignored.

    For workers with equal data, $R = \max(1, \lceil \sigma^2 / \epsilon \rceil)$ and
    $\gamma = \min(1/(2RL), \epsilon/(4L\sigma^2))$ reach $E|f'|^2 \le \epsilon$ in optimal time.
    A round is one gradient; the history has `server_steps`, and the `delay` of the last gradient.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        threshold: R, at least 1. With R = 1 only gradients at the current model count. It may be
            swept.
        stops: whether computations that would be ignored are stopped.

    Raises:
        ValueError: if the threshold is less than 1.

    Source: Maranjyan, Tyurin and Richtarik, "Ringmaster ASGD: the first asynchronous SGD with
    optimal time complexity", 2025, algorithm 4, and with stops algorithm 5. With the optimizers
    that they step with, momentum and `optax.contrib.muon`: Sadiev et al., "Ringmaster LMO", 2026.
    """
    threshold = checks.period("ringmaster_sgd: threshold", threshold)

    def start(model, N):
        return Counted(model.params, model.optimizer, jnp.int32(0))

    def step(model, gradient, arrival, read):
        stepped = optimizers.step(
            optimizer, optimizers.Model(model.params, model.optimizer), gradient
        )
        after = Counted(stepped.params, stepped.optimizer, model.steps + 1)
        return jax.tree.map(partial(jnp.where, arrival.delay < threshold), after, model)

    def order(model, arrival, jobs, key):
        return jnp.where(jobs.waiting | (jobs.delay >= threshold), jobs.worker, -1)

    name = f"ringmaster_sgd({threshold}{', stops' * stops})"
    return asynchronous_server(name, optimizer, step, start=start, order=order if stops else None)
