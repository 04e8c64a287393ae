"""The messages of a round: those of all workers, the server's step, and the server's answer. The
rule chooses the compressor of each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import optimizers
from algorithms.kimad import budgets
from algorithms.kimad.choices import CompressorSet
from algorithms.kimad.monitors import Monitor
from dsgd import checks, communication, network, workers
from dsgd.base import Gradients, Params, PyTree
from dsgd.communication import Communicator
from dsgd.engine import indices
from dsgd.wire import codecs, counts


class Server(NamedTuple):
    r"""The server's state.

    Args:
        model: x, and its optimizer's state.
        updates: $\sum_m w_m \hat u_m$, the weighted sum of the estimates of the workers' updates.
        estimate: $\hat x$, which the workers also have.
        links: the states of the links' monitors.
        missing: the largest number of bits so far by which a message exceeded its budget.
    """

    model: optimizers.Model
    updates: Params
    estimate: Params
    links: budgets.Memory
    missing: jax.Array


class Worker(NamedTuple):
    r"""Each worker's state in addition to $\hat x$, leaves `[n, ...]`.

    Args:
        estimate: $\hat u_m$.
        memory: the state of its $A^{update}$.
    """

    estimate: PyTree
    memory: PyTree


class Config(NamedTuple):
    """Arguments of `kimad_sgd`, with a set of compressors for each direction, and T_comp and w_m as
    arrays or None.
    """

    optimizer: optax.GradientTransformation
    up: CompressorSet
    down: CompressorSet
    rule: Callable
    monitor: Monitor
    round_time: float | jax.Array
    computation: np.ndarray | jax.Array | None
    congestion: float | jax.Array
    weights: np.ndarray | None
    period: int
    warm_up: int


def exchange(
    terms: Config, server: Server, known: PyTree, own: Gradients, round: Communicator
) -> tuple[Server, PyTree]:
    """Lines 10 to 15 of Algorithm 1, and lines 3 to 8 of the next round.

    Args:
        terms: options of the method.
        server: its state.
        known: the estimates of the workers' updates, leaves `[n, ...]`.
        own: the workers' updates, leaves `[n, ...]`.
        round: the current round.

    Returns:
        The server's next state and the next estimates.
    """
    N = round.workers
    plan = budgets.budget_of_round(
        terms.monitor,
        server.links,
        round,
        terms.round_time,
        terms.computation,
        terms.congestion,
        terms.period,
    )
    everything = round.step // terms.period < terms.warm_up
    up_key, down_key = jax.random.split(round.next_key())

    def compress_worker(key, news, budget):
        return compress(terms.up, terms.rule, key, news, budget, everything)

    difference = jax.tree.map(jnp.subtract, own, known)
    sent = jax.vmap(compress_worker)(
        workers.keys(up_key, N),
        communication.flatten(difference, terms.up.layer_wise),
        workers.local_block(plan.up, N),
    )
    seen = communication.unflatten(sent.seen, difference, terms.up.layer_wise)
    # The server computes this sum from the messages, which are recorded below.
    with round.unrecorded():
        news = _weighted_sum(seen, terms.weights, N)
        bits, errors, missing, wrong = workers.gather(
            (sent.bits, sent.error, sent.missing, sent.outside)
        )
    total = jax.tree.map(jnp.add, server.updates, news)
    model = optimizers.step(terms.optimizer, server.model, total)

    lag = workers.replicate(jax.tree.map(jnp.subtract, model.params, server.estimate), 1)
    vectors = jax.tree.map(lambda row: row[0], communication.flatten(lag, terms.down.layer_wise))
    answer = compress(terms.down, terms.rule, down_key, vectors, plan.down, everything)
    moved = communication.unflatten(workers.replicate(answer.seen, 1), lag, terms.down.layer_wise)
    estimate = jax.tree.map(lambda x, change: x + change[0], server.estimate, moved)

    most = jnp.maximum(server.missing, jnp.maximum(jnp.max(missing), answer.missing))
    after = server._replace(model=model, updates=total, estimate=estimate, missing=most)
    sizes = {
        "message_up": bits.astype(jnp.float32),
        "message_down": answer.bits.astype(jnp.float32),
    }
    round.log(**plan.shown, **sizes, error_up=errors, error_down=answer.error)
    for words, choice in (
        (_words("to", terms.up), indices.first(wrong)),
        (_words("from", terms.down), answer.outside),
    ):
        round.refuse_if(~jnp.isnan(choice), words, choice)
    n = sent.bits.shape[0]
    round.sent(
        counts.from_bits(sent.bits, n),
        counts.from_bits(jnp.broadcast_to(answer.bits, (n,)), n),
        network.star,
        simulated=True,
    )
    return after, jax.tree.map(jnp.add, known, seen)


def _words(way: str, choices: CompressorSet) -> str:
    return (
        f"the rule returned the choice {{}} for messages {way} the server; expected an index into "
        f"{choices.name}"
    )


def _weighted_sum(seen: Gradients, shares: np.ndarray | None, N: int) -> Params:
    if shares is None:
        return workers.mean(seen)
    mine = workers.local_block(jnp.asarray(shares, float), N)

    def weigh(leaf):
        return jnp.expand_dims(mine, tuple(range(1, leaf.ndim))).astype(leaf.dtype) * leaf

    return workers.narrow(workers.sum(jax.tree.map(weigh, workers.widen(seen))), seen)


# --- One message.


class Message(NamedTuple):
    """One message.

    Args:
        seen: the vector that the receiver decodes, in the structure of the vector that was sent.
        bits: uint32.
        error: |seen - sent|^2.
        missing: bits by which it exceeds the budget; 0 if it does not.
        outside: a choice of the rule that does not exist; NaN if all exist (`dsgd.engine.indices`).
    """

    seen: PyTree
    bits: jax.Array
    error: jax.Array
    missing: jax.Array
    outside: jax.Array


def compress(
    choices: CompressorSet,
    rule: Callable,
    key: jax.Array,
    tree: PyTree,
    budget: jax.Array,
    everything: jax.Array,
) -> Message:
    """Returns one sender's message for a tree of vectors `[d]`: each vector with the compressor
    that the rule chooses, or all uncompressed.
    """
    vectors, treedef = jax.tree.flatten(tree)
    # [layers, choices]
    sizes = np.array([choices.sizes(x.shape[0], x.dtype) for x in vectors], np.int64)
    whole = sum(8 * x.dtype.itemsize * x.shape[0] for x in vectors)
    header = header_bits(len(vectors), choices.number)
    smallest = int(sizes.min(axis=1).sum())
    if max(whole, int(sizes.max(axis=1).sum()) + header) >= 1 << 32:
        raise ValueError(
            f"kimad_sgd: a message has {whole:,} bits uncompressed; expected less than 2^32"
        )
    available = budgets.whole_bits(budget)
    fits = available >= smallest + header
    for_layers = jnp.where(fits, available - jnp.uint32(header), jnp.uint32(smallest))

    errors, found = zip(
        *_map_equal_layers(choices.profile, jax.random.split(key, len(vectors)), vectors),
        strict=True,
    )
    errors = jnp.stack(errors)
    chosen = _require_choices(rule(errors, sizes, for_layers), len(vectors))
    seen = _map_equal_layers(choices.apply, vectors, found, chosen)
    one = (np.arange(len(vectors)), chosen)
    bits = jnp.sum(jnp.asarray(sizes, jnp.uint32)[one], dtype=jnp.uint32) + jnp.uint32(header)
    missing = jnp.where(bits > available, bits - available, 0).astype(jnp.float32)
    return Message(
        treedef.unflatten(
            jnp.where(everything, x, part) for x, part in zip(vectors, seen, strict=True)
        ),
        jnp.where(everything, jnp.uint32(whole), bits),
        jnp.where(everything, 0, jnp.sum(errors[one])),
        jnp.where(everything, 0, missing),
        indices.first_outside(chosen, errors.shape[1] - 1),
    )


def _require_choices(chosen: Any, layers: int) -> jax.Array | np.ndarray:
    """Validates the return value of a custom rule: one choice for each layer."""
    if (
        not isinstance(chosen, jax.Array | np.ndarray)
        or chosen.shape != (layers,)
        or not jnp.issubdtype(chosen.dtype, jnp.integer)
    ):
        raise ValueError(
            f"kimad_sgd: the rule returned {checks.kind(chosen)}; expected the choice of each "
            f"layer, int32 [{layers}]"
        )
    return chosen


def header_bits(layers: int, choices: int) -> int:
    """Returns the bits that encode which compressor each layer has, packed with the width that
    needs the fewest bits; with few layers this is one byte each.
    """
    bits = codecs.index_bits(choices)
    return min(
        codecs.packed_bits(width, layers)
        for width in range(bits, codecs.BYTE * -(-bits // codecs.BYTE) + 1)
    )


def _map_equal_layers(function: Callable, *arguments: Any) -> list[Any]:
    """Applies the function to each layer's arguments. Layers of equal shapes share one `vmap`, so
    that a deep model compiles only one program for each shape.
    """
    layers = list(zip(*arguments, strict=True))
    kinds: dict[Any, list[int]] = {}
    for i, layer in enumerate(layers):
        kinds.setdefault(
            tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(layer)), []
        ).append(i)
    results: list[Any] = [None] * len(layers)
    for alike in kinds.values():
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layers[i] for i in alike))
        together = jax.vmap(function)(*stacked)
        for row, i in enumerate(alike):
            results[i] = jax.tree.map(lambda leaf, row=row: leaf[row], together)
    return results
