"""Methods on graphs, compared with their recursions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

import algorithms
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_workers
from theory_checks.machinery.statement import Method
from theory_checks.machinery.trajectories import LAYERS, D
from theory_checks.recursions import compressed, decentralized, local_gossip, synchronous
from theory_checks.recursions.compressed import clipped, largest_half, mean_size_times_sign, packed
from theory_checks.recursions.shared import Step
from theory_checks.statements.recursions.shared import (
    BITS,
    DOUBLE,
    HALF,
    HALF_OF_ALL,
    SHORT_OF_ALL,
    SIGN,
    between_neighbours,
    graph,
    matrices,
    on_graph,
)

ETA, BETA, K, P, CHI = 0.3, 0.7, 3, 0.5, 0.75
# Deterministic compressors in the place of unbiased ones: the recursions hold for any map.
HALF_FOR_LEAD, SHORT_FOR_DCD = (
    C._replace(delta=None, omega=lambda d: 1.0) for C in (HALF, SHORT_OF_ALL)
)
FACTORS = [0.5, 1.0, 1.5, 0.7, 1.2, 0.9]  # of the workers' steps
GAMMA = attrgetter("gamma")


def _gossip(
    name: str,
    reference: str,
    method: Callable,
    recursion: Callable,
    on: str,
    optimizer: str = "plain",
    message: float = BITS,
    step: Callable[[Inputs], Any] = attrgetter("step"),
) -> Case:
    """Returns the case of a method (optimizer, topology) and its recursion (X, G, W, step), where
    the step is that of the optimizer or, with `GAMMA`, a number.
    """
    return on_graph(
        name,
        reference,
        lambda optimizer: method(optimizer, graph(on)),
        lambda inputs: recursion(inputs.X, inputs.G, matrices(on), step(inputs)),
        on,
        message,
        optimizer=optimizer,
    )


def _push_pull(
    name: str,
    reference: str,
    method: Callable,
    recursion: Callable,
    on: tuple[str, str],
    optimizer: str = "plain",
) -> Case:
    pull, push = on
    return on_graph(
        name,
        reference,
        lambda optimizer: method(optimizer, graph(pull), graph(push)),
        lambda inputs: recursion(inputs.X, inputs.G, matrices(pull), matrices(push), inputs.step),
        on,
        optimizer=optimizer,
    )


def _lossy_gossip(
    name: str,
    reference: str,
    method: Method,
    recursion: Callable,
    on: str,
    C: Any,
    q: compressed.Q,
    message: float,
    **more: Any,
) -> Case:
    return on_graph(
        name,
        reference,
        lambda optimizer: method(optimizer, graph(on), C, ETA),
        lambda inputs: recursion(inputs.X, inputs.G, matrices(on), inputs.step, q, ETA),
        on,
        message,
        hypotheses=f"on {on}; {C.name}",
        **more,
    )


def _scaled(step: Step) -> Step:
    """Returns the step with each worker's change multiplied by its factor in `FACTORS`."""
    return lambda y: np.array(FACTORS)[:, None] * step(y)


def _largest(k: int, d: int) -> int:
    """Returns the bits of k of d elements with their indices."""
    return k * DOUBLE + packed((d - 1).bit_length(), k)


def _prox_skip(inputs: Inputs) -> Iterator[Symbols]:
    """Yields the rounds with the coins of the method, and the bits of all messages if it sends
    any.
    """
    coins = inputs.found.sent[:, 0] > 0
    rounds = local_gossip.prox_skip(
        inputs.X, inputs.G, matrices("irregular"), inputs.gamma, P, CHI, coins
    )
    for coin, symbols in zip(coins, between_neighbours(rounds, "irregular", BITS), strict=True):
        yield symbols | {bits: coin * symbols[bits] for bits in ("bits up", "bits down")}


TRACKED: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "BEER": (
        "Zhao et al. 2022",
        algorithms.beer,
        lambda *given: decentralized.motef(*given, momentum=1.0),
    ),
    "C-GT": (
        "Liao et al. 2022",
        lambda *given: algorithms.c_gt(*given, memory_step=0.6),
        lambda *given: decentralized.c_gt(*given, alpha=0.6),
    ),
    "MoTEF": (
        "Islamov et al. 2024",
        lambda *given: algorithms.motef(*given, momentum_step=0.4),
        lambda *given: decentralized.motef(*given, momentum=0.4),
    ),
}


def _in_layers(q: compressed.Q) -> compressed.Q:
    return decentralized.by_layers(q, LAYERS)


CASES = (
    _gossip(
        "DSGD",
        "(5.2)",
        algorithms.decentralized_sgd,
        decentralized.decentralized,
        "exponential",
        "momentum",
    ),
    _gossip(
        "DSGD, schedule",
        "(5.2)",
        algorithms.decentralized_sgd,
        decentralized.decentralized,
        "one peer",
    ),
    _gossip(
        "DGD",
        "Nedic and Ozdaglar 2009",
        algorithms.dgd,
        decentralized.combine_then_adapt,
        "one peer",
        "momentum",
    ),
    _gossip(
        "DSGD, averaged momenta",
        "Yu, Jin and Yang 2019",
        partial(algorithms.decentralized_sgd, average_momentum=True),
        partial(decentralized.synchronized_momentum, beta=0.9),
        "one peer",
        "momentum",
        2 * BITS,
        GAMMA,
    ),
    _gossip(
        "QG-DSGDm",
        "Lin et al. 2021",
        partial(algorithms.quasi_global_momentum, momentum=BETA, decay=0.6),
        partial(decentralized.quasi_global, beta=BETA, mu=0.6),
        "one peer",
        step=GAMMA,
    ),
    _gossip(
        "QG-DSGDm-N",
        "Lin et al. 2021",
        partial(algorithms.quasi_global_momentum, momentum=BETA, nesterov=True),
        partial(decentralized.quasi_global, beta=BETA, mu=BETA, nesterov=True),
        "star",
        step=GAMMA,
    ),
    _gossip(
        "DecentLaM",
        "Yuan et al. 2021",
        partial(algorithms.decentlam, momentum=BETA),
        partial(decentralized.decentlam, beta=BETA),
        "one peer",
        step=GAMMA,
    ),
    Case(
        "local SGD, schedule",
        "Koloskova et al. 2020",
        lambda optimizer, of: algorithms.local_sgd(optimizer, 2, graph("one peer")),
        lambda inputs: between_neighbours(
            synchronous.local(inputs.X, inputs.G, matrices("one peer"), inputs.step, 2),
            "one peer",
            BITS,
            2,
        ),
        on_workers,
        "on one peer, every other round",
    ),
    _gossip(
        "D2",
        "Tang et al. 2018, algorithm 1",
        algorithms.d2,
        decentralized.d_squared,
        "lazy",
        "momentum",
    ),
    _gossip(
        "EXTRA",
        "Shi et al. 2015, (2.13)",
        algorithms.extra,
        decentralized.extra,
        "irregular",
        "momentum",
    ),
    _gossip(
        "exact diffusion",
        "Li et al. 2019, NIDS",
        algorithms.exact_diffusion,
        decentralized.nids,
        "star",
    ),
    _gossip(
        "gradient tracking",
        "Nedic et al. 2017, DIGing",
        algorithms.gradient_tracking,
        decentralized.tracking,
        "exponential",
        message=2 * BITS,
    ),
    _gossip(
        "gradient tracking, schedule",
        "Nedic et al. 2017, DIGing",
        algorithms.gradient_tracking,
        decentralized.tracking,
        "one peer",
        "momentum",
        2 * BITS,
    ),
    Case(
        "K-GT, schedule",
        "Liu et al. 2024",
        lambda optimizer, of: algorithms.k_gt(optimizer, graph("one peer"), K, ETA),
        lambda inputs: between_neighbours(
            local_gossip.k_gt(inputs.X, inputs.G, matrices("one peer"), inputs.gamma, K, ETA),
            "one peer",
            2 * BITS,
            K,
        ),
        on_workers,
        "on one peer, every third round",
    ),
    Case(
        "LED",
        "Alghunaim 2024",
        lambda optimizer, of: algorithms.local_exact_diffusion(optimizer, graph("lazy"), K, ETA),
        lambda inputs: between_neighbours(
            local_gossip.led(inputs.X, inputs.G, matrices("lazy"), inputs.gamma, K, ETA),
            "lazy",
            BITS,
            K,
        ),
        on_workers,
        "on lazy, every third round",
    ),
    Case(
        "ProxSkip on graphs",
        "Guo et al. 2023",
        lambda optimizer, of: algorithms.prox_skip(optimizer, graph("irregular"), P, 1 / (2 * CHI)),
        _prox_skip,
        on_workers,
        "on irregular",
    ),
    _gossip(
        "ATC tracking, schedule",
        "Di Lorenzo and Scutari 2016, NEXT",
        algorithms.atc_tracking,
        decentralized.adapt_then_combine_tracking,
        "one peer",
        "momentum",
        2 * BITS,
    ),
    Case(
        "Aug-DGM",
        "Xu et al. 2015",
        lambda optimizer, of: algorithms.aug_dgm(optimizer, graph("irregular"), FACTORS),
        lambda inputs: between_neighbours(
            decentralized.augmented_tracking(
                inputs.X, inputs.G, matrices("irregular"), _scaled(inputs.step)
            ),
            "irregular",
            2 * BITS,
        ),
        on_workers,
        "on irregular; step sizes differ",
        "momentum",
    ),
    Case(
        "momentum tracking",
        "Takezawa et al. 2023",
        lambda optimizer, of: algorithms.momentum_tracking(optimizer, graph("one peer"), BETA),
        lambda inputs: between_neighbours(
            decentralized.momentum_tracking(
                inputs.X, inputs.G, matrices("one peer"), inputs.step, BETA
            ),
            "one peer",
            2 * BITS,
        ),
        on_workers,
        "on one peer",
    ),
    _gossip(
        "SGP",
        "Assran et al. 2019, algorithm 1",
        algorithms.stochastic_gradient_push,
        decentralized.push,
        "directed",
        "momentum",
        BITS + DOUBLE,
    ),
    _gossip(
        "SGP, schedule",
        "Assran et al. 2019, algorithm 1",
        algorithms.stochastic_gradient_push,
        decentralized.push,
        "one peer",
        message=BITS + DOUBLE,
    ),
    _gossip(
        "Push-DIGing",
        "Nedic et al. 2017, Push-DIGing",
        algorithms.push_diging,
        decentralized.push_tracking,
        "directed",
        "momentum",
        2 * BITS + DOUBLE,
    ),
    _gossip(
        "Push-DIGing, schedule",
        "Nedic et al. 2017, Push-DIGing",
        algorithms.push_diging,
        decentralized.push_tracking,
        "pushes",
        message=2 * BITS + DOUBLE,
    ),
    _push_pull(
        "Push-Pull",
        "Pu et al. 2021",
        algorithms.push_pull,
        decentralized.push_pull,
        ("directed, pull", "directed"),
        "momentum",
    ),
    _push_pull(
        "Push-Pull, schedule",
        "Pu et al. 2021",
        algorithms.push_pull,
        decentralized.push_pull,
        ("pushes, pull", "pushes"),
    ),
    _push_pull(
        "Push-Pull, tree",
        "Pu et al. 2021",
        algorithms.push_pull,
        decentralized.push_pull,
        ("tree, pull", "tree, push"),
    ),
    _push_pull(
        "AB",
        "Xin and Khan 2018",
        algorithms.ab,
        decentralized.ab,
        ("directed, pull", "directed"),
    ),
    _lossy_gossip(
        "CHOCO",
        "Koloskova et al. 2019, algorithm 2",
        algorithms.choco_sgd,
        decentralized.choco,
        "irregular",
        HALF,
        _in_layers(largest_half),
        sum(_largest(-(-size // 2), size) for size in LAYERS),
        optimizer="momentum",
    ),
    _lossy_gossip(
        "CHOCO, whole model",
        "Koloskova et al. 2019, algorithm 2",
        algorithms.choco_sgd,
        decentralized.choco,
        "star",
        SHORT_OF_ALL,
        clipped,
        packed(12, D),
    ),
    _lossy_gossip(
        "DeepSqueeze",
        "Tang et al. 2019, algorithm 1",
        algorithms.deepsqueeze,
        decentralized.squeeze,
        "irregular",
        SIGN,
        _in_layers(mean_size_times_sign),
        sum(packed(1, size) + DOUBLE for size in LAYERS),
    ),
    _lossy_gossip(
        "DeepSqueeze, schedule",
        "Tang et al. 2019, algorithm 1",
        algorithms.deepsqueeze,
        decentralized.squeeze,
        "matchings",
        HALF_OF_ALL,
        largest_half,
        _largest(D // 2, D),
        optimizer="momentum",
    ),
    _lossy_gossip(
        "LEAD",
        "Liu et al. 2021",
        lambda *given: algorithms.lead(*given, memory_step=0.4),
        lambda *given: decentralized.lead(*given, alpha=0.4),
        "irregular",
        HALF_FOR_LEAD,
        _in_layers(largest_half),
        sum(_largest(-(-size // 2), size) for size in LAYERS),
    ),
    _lossy_gossip(
        "DCD",
        "Tang et al. 2018",
        lambda optimizer, graph, C, eta: algorithms.dcd_sgd(optimizer, graph, C),
        lambda X, G, W, step, q, eta: decentralized.dcd(X, G, W, step, q),
        "star",
        SHORT_FOR_DCD,
        clipped,
        packed(12, D),
        optimizer="momentum",
    ),
    _lossy_gossip(
        "ECD",
        "Tang et al. 2018",
        lambda optimizer, graph, C, eta: algorithms.ecd_sgd(optimizer, graph, C),
        lambda X, G, W, step, q, eta: decentralized.ecd(X, G, W, step, q),
        "irregular",
        SHORT_FOR_DCD,
        clipped,
        packed(12, D),
    ),
    *(
        _lossy_gossip(
            name,
            reference,
            method,
            recursion,
            "irregular",
            HALF_OF_ALL,
            largest_half,
            2 * _largest(D // 2, D),
            optimizer="momentum",
        )
        for name, (reference, method, recursion) in TRACKED.items()
    ),
)
