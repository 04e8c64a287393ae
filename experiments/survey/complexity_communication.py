"""Communication cost of an iteration of the survey's methods: closed form, bits of a run, and
seconds on a network.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from rich.table import Table

import algorithms
import dsgd
from dsgd import network, problems
from experiments.shared import tables

# Names in `algorithms.ALGORITHMS`, and the printed costs of the survey.
REGISTERED = {
    "GD": ("gradient_descent", "-"),
    "SGD": ("sgd", "-"),
    "mb-SGD": ("minibatch_sgd", "Nα + β"),
    "CSGD": ("compressed_sgd", "Nα + βη"),
    "EC-SGD": ("error_compensated_sgd", "Nα + βη"),
    "ASGD": ("asynchronous_sgd", "Nα + β"),
    "DSGD": ("decentralized_sgd", "deg(α + β)"),
}


class Link(NamedTuple):
    """A network: seconds of latency per message, bits per second of a port."""

    latency: float
    bandwidth: float


class Cost(NamedTuple):
    """Cost of a round for one worker.

    Args:
        pattern: communication pattern; with several exchanges, all of them.
        latencies, transfers: number of latencies, and of transfers of full vectors, one after the
            other: the factors of alpha and beta.
        vectors: number of vectors that a worker sends, on average.
        bits: bits that a worker sends and receives.
        seconds: duration on the network.
    """

    pattern: str
    latencies: Fraction
    transfers: Fraction
    vectors: float
    bits: float
    seconds: float


def cost(name: str, workers: int, d: int, link: Link) -> Cost:
    """Returns the cost of a method with its usual compressors; the bits are those of a run.

    Args:
        name: as in the survey.
        workers: N.
        d: elements of the model.
        link: the network.
    """
    rounds = 2 * workers
    method = algorithms.make(REGISTERED[name][0], optax.sgd(0.1), workers)
    problem = problems.quadratic(
        np.ones((workers, d)), np.zeros((workers, d)), start=np.linspace(-1, 1, d)
    )
    history = dsgd.run(
        method, problem, steps=rounds, key=jax.random.key(0), record_every=rounds, mesh=1
    ).history
    bits = float(np.ravel(history["bits"])[-1]) / rounds
    exchanges = dsgd.exchanges(method, problem)

    def total(latency: Any, transfer: Any) -> Any:
        return sum(
            (
                network.cost(each.pattern, workers, latency, transfer) / each.period
                for each in exchanges
            ),
            Fraction(0),
        )

    vectors = float(sum(each.pattern.volume(workers) / each.period for each in exchanges))
    # a worker receives as many bits as it sends
    transfer = bits / 2 / vectors / link.bandwidth if vectors else 0.0
    names = ", ".join(each.pattern.name for each in exchanges) or network.local.name
    one, none = Fraction(1), Fraction(0)
    return Cost(
        names,
        total(one, none),
        total(none, one),
        vectors,
        bits,
        float(total(link.latency, transfer)),
    )


def tabulate(costs: Mapping[str, Cost], workers: int, d: int, link: Link) -> Table:
    """Tabulates the communication per iteration: as printed, exact, and on a network."""
    caption = (
        f"N = {workers}, blocking. α: latency, {link.latency * 1e6:g} µs. β: transfer of\n{d:,} "
        f"float32, {link.bandwidth / 1e9:g} Gbit/s. Mbit: sent and\nreceived by a worker. η: bits "
        "relative to float32. The\nsurvey's GD runs on one machine; here it averages gradients."
    )
    table = tables.table(
        "communication of one iteration",
        ("method", "survey: O(·)", "exact", "Mbit", "η", "ms"),
        caption,
    )
    for name, each in costs.items():
        if not each.vectors:
            table.add_row(name, REGISTERED[name][1], *("-",) * 4)
            continue
        eta = each.bits / (2 * 32 * d * each.vectors)
        exact = f"{each.latencies}α + {each.transfers}β{'η' if eta < 0.99 else ''}"
        table.add_row(
            name,
            REGISTERED[name][1],
            exact,
            f"{each.bits / 1e6:.3f}",
            f"{eta:.3f}",
            f"{each.seconds * 1e3:.3f}",
        )
    return table
