"""The messages of a round: those of all workers, the server's step, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import optimizers
from algorithms.kimad import messages, plans
from algorithms.kimad.choices import Choices
from algorithms.kimad.monitors import Monitor
from dsgd import communication, counts, network, workers
from dsgd.base import Gradients, Params, PyTree
from dsgd.communication import Communicator
from dsgd.engine import indices


class Server(NamedTuple):
    r"""The server's state.

    Args:
        model: x, and its optimiser's state.
        updates: $\sum_m w_m \hat u_m$, of the estimators of the workers' updates.
        estimate: $\hat x$, which the workers have, too.
        links: the memory of their monitors.
        missing: the largest number of bits so far by which a message exceeded its budget.
    """

    model: optimizers.Model
    updates: Params
    estimate: Params
    links: plans.Memory
    missing: jax.Array


class Worker(NamedTuple):
    r"""Each worker's state besides $\hat x$: $\hat u_m$ and the memory of its $A^{update}$; leaves `[n, ...]`."""

    estimate: PyTree
    memory: PyTree


class Terms(NamedTuple):
    """Arguments of `kimad_sgd`: the set of compressors of each end; T_comp and w_m as arrays, or None."""

    optimizer: optax.GradientTransformation
    up: Choices
    down: Choices
    rule: Callable
    monitor: Monitor
    round_time: float | jax.Array
    computation: np.ndarray | jax.Array | None
    congestion: float | jax.Array
    weights: np.ndarray | None
    period: int
    warm_up: int


def exchange(terms: Terms, server: Server, known: PyTree, own: Gradients, round: Communicator) -> tuple[Server, PyTree]:
    """Lines 10 to 15 of Algorithm 1, and 3 to 8 of the next round.

    Args:
        terms: of the method.
        server: its state.
        known: the estimators of the workers' updates, leaves `[n, ...]`.
        own: their updates, likewise.
        round: the present one.

    Returns:
        The server's state and the estimators after it.
    """
    N = round.workers
    plan = plans.of_round(terms.monitor, server.links, round, terms.round_time, terms.computation, terms.congestion, terms.period)
    everything = round.step // terms.period < terms.warm_up
    up_key, down_key = jax.random.split(round.next_key())

    def of_worker(key, news, budget):
        return messages.compress(terms.up, terms.rule, key, news, budget, everything)

    difference = jax.tree.map(jnp.subtract, own, known)
    sent = jax.vmap(of_worker)(workers.keys(up_key, N), communication.flat(difference, terms.up.layer_wise), workers.own(plan.up, N))
    seen = communication.shaped(sent.seen, difference, terms.up.layer_wise)
    with round.unrecorded():  # the sum, which the server makes of the messages
        news = _weighted_sum(seen, terms.weights, N)
        bits, errors, missing, wrong = workers.gather((sent.bits, sent.error, sent.missing, sent.outside))
    total = jax.tree.map(jnp.add, server.updates, news)
    model = optimizers.step(terms.optimizer, server.model, total)

    lag = workers.stack(jax.tree.map(jnp.subtract, model.params, server.estimate), 1)
    vectors = jax.tree.map(lambda row: row[0], communication.flat(lag, terms.down.layer_wise))
    answer = messages.compress(terms.down, terms.rule, down_key, vectors, plan.down, everything)
    moved = communication.shaped(workers.stack(answer.seen, 1), lag, terms.down.layer_wise)
    estimate = jax.tree.map(lambda x, change: x + change[0], server.estimate, moved)

    most = jnp.maximum(server.missing, jnp.maximum(jnp.max(missing), answer.missing))
    after = server._replace(model=model, updates=total, estimate=estimate, missing=most)
    sizes = {"message_up": bits.astype(jnp.float32), "message_down": answer.bits.astype(jnp.float32)}
    round.log(**plan.shown, **sizes, error_up=errors, error_down=answer.error)
    for words, choice in ((_words("to", terms.up), indices.first(wrong)), (_words("from", terms.down), answer.outside)):
        round.refuse_if(~jnp.isnan(choice), words, choice)
    n = sent.bits.shape[0]
    round.sent(counts.of(sent.bits, n), counts.of(jnp.broadcast_to(answer.bits, (n,)), n), network.star, simulated=True)
    return after, jax.tree.map(jnp.add, known, seen)


def _words(way: str, choices: Choices) -> str:
    return f"the rule gives the choice {{}} for messages {way} the server; expected the index of one of {choices.name}"


def _weighted_sum(seen: Gradients, shares: np.ndarray | None, N: int) -> Params:
    if shares is None:
        return workers.mean(seen)
    mine = workers.own(jnp.asarray(shares, float), N)

    def weighted(leaf):
        return jnp.expand_dims(mine, tuple(range(1, leaf.ndim))).astype(leaf.dtype) * leaf

    return workers.narrowed(workers.sum(jax.tree.map(weighted, workers.widened(seen))), seen)
