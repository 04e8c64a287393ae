"""What an iteration of the survey's methods costs in messages: its closed form, bits of a run, and
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

# Names in `algorithms.ALGORITHMS`, and what the survey prints.
REGISTERED = {
    "GD": ("gd", "-"),
    "SGD": ("sgd", "-"),
    "mb-SGD": ("mb-sgd", "Nα + β"),
    "CSGD": ("csgd", "Nα + βη"),
    "EC-SGD": ("ec-sgd", "Nα + βη"),
    "ASGD": ("asgd", "Nα + β"),
    "DSGD": ("dsgd", "deg(α + β)"),
}


class Link(NamedTuple):
    """Seconds of a message's latency, bits per second of a port."""

    latency: float
    bandwidth: float


class Cost(NamedTuple):
    """What a round costs one worker.

    Args:
        pattern: how messages flow; of several exchanges, all.
        latencies, transfers: of full vectors, one after the other: alpha's and beta's factors.
        vectors: that a worker sends, on average.
        bits: that a worker sends and receives.
        seconds: on the network.
    """

    pattern: str
    latencies: Fraction
    transfers: Fraction
    vectors: float
    bits: float
    seconds: float


def cost(name: str, workers: int, d: int, link: Link) -> Cost:
    """Of a method with its usual compressors; its bits are those of a run.

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
    # as much is received as sent
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
    """The survey's column of communication: as printed, exactly, and on a network."""
    caption = (
        f"N = {workers}, blocking. α: latency, {link.latency * 1e6:g} µs. β: transfer of\n"
        f"{d:,} float32, {link.bandwidth / 1e9:g} Gbit/s. Mbit: that a worker sends\n"
        "and receives. η: those, relative to float32. The survey's\nGD is on one machine; here it "
        "averages gradients."
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
