"""Methods for training over slow links, compared with their recursions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import optax

import algorithms
from dsgd import compressors
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_workers
from theory_checks.machinery.trajectories import LAYERS, D, N, Trajectory
from theory_checks.recursions import slow_links
from theory_checks.recursions.compressed import clipped, largest_half
from theory_checks.recursions.outer import Outer, nesterov
from theory_checks.statements.recursions.shared import DOUBLE, SHORT, graph, matrices

H, TAU, ALPHA = 4, 3, 0.25
QSPARSE_H = 3
DECAY = 0.85
MOMENTUM, ETA, CONSENSUS = 0.8, 0.6, 0.35  # of NoLoCo
CHUNK, K = 4, 2
DENSITY = 0.3
PARTS = (slice(0, LAYERS[0]), slice(LAYERS[0], D))
OUTER = optax.sgd(0.6, momentum=0.8, nesterov=True)


def _outer() -> Outer:
    return nesterov(0.6, 0.8)


def _e3m0_bits(d: int) -> int:
    """Returns the bits of a message of d elements to each of the other workers: two elements in a
    byte, and the scale.
    """
    return (N - 1) * (8 * -(-d // 2) + DOUBLE)


def _streaming(inputs: Inputs) -> Iterator[Symbols]:
    return slow_links.streaming(
        inputs.X,
        inputs.G,
        inputs.step,
        H,
        PARTS,
        (H // 2, 0),
        (_outer(), _outer()),
        TAU,
        ALPHA,
        slow_links.e3m0,
        _e3m0_bits,
    )


def _sparse(inputs: Inputs) -> Iterator[Symbols]:
    return slow_links.remembered(
        inputs.x,
        inputs.G,
        N,
        inputs.step,
        H,
        lambda x, delta: x - 0.9 * delta,
        DECAY,
        slow_links.largest_of_chunks(K, CHUNK),
        PARTS,
    )


def _quantized(inputs: Inputs) -> Iterator[Symbols]:
    return slow_links.remembered(
        inputs.x, inputs.G, N, inputs.step, H, _outer(), DECAY, clipped, PARTS
    )


def drawn(found: Trajectory) -> np.ndarray:
    """Returns the elements that are equal in all models after each round, bool `[T, d]`."""
    X = trajectories.rows(found.states.workers.params)[1:]
    return np.ptp(X, axis=1) == 0


def _sparta(inputs: Inputs) -> Iterator[Symbols]:
    """Runs SPARTA's recursion with the elements that the method drew, and checks their number,
    which is not random.
    """
    mask = drawn(inputs.found)
    number = sum(int(np.ceil(DENSITY * size)) for size in LAYERS)
    assert (mask.sum(axis=1) == number).all()
    return slow_links.sparta(inputs.X, inputs.G, inputs.step, mask)


CASES = (
    Case(
        "Streaming DiLoCo",
        "Douillard et al. 2025, algorithm 2",
        lambda optimizer, of: algorithms.streaming_diloco(
            optimizer, 2, H, OUTER, delay=TAU, local_share=ALPHA
        ),
        _streaming,
        on_workers,
        "two fragments, E3M0, a delay of one step",
        "adam",
    ),
    Case(
        "SparseLoCo",
        "Sarfi et al. 2025",
        lambda optimizer, of: algorithms.sparse_loco(
            optimizer, H, compressors.chunked_top_k(K, CHUNK), optax.sgd(0.9), decay=DECAY
        ),
        _sparse,
        on_workers,
        "half of the elements of each chunk",
        "adam",
    ),
    Case(
        "MuLoCo",
        "Thérien et al. 2025",
        lambda optimizer, of: algorithms.muloco(optimizer, H, SHORT, OUTER, decay=DECAY),
        _quantized,
        on_workers,
        f"C: {SHORT.name}; inner steps with momentum",
        "momentum",
    ),
    Case(
        "Qsparse-local-SGD",
        "Basu et al. 2019, algorithm 1",
        lambda optimizer, of: algorithms.qsparse_local_sgd(
            optimizer, QSPARSE_H, compressors.top_k(0.5, SHORT)
        ),
        lambda inputs: slow_links.remembered(
            inputs.x,
            inputs.G,
            N,
            inputs.step,
            QSPARSE_H,
            lambda x, delta: x - delta,
            1.0,
            lambda x: clipped(largest_half(x)),
            PARTS,
        ),
        on_workers,
        "half of the elements of each layer, in few bits",
        "momentum",
    ),
    Case(
        "DiLoCo, delayed",
        "Kale et al. 2025, section 3",
        lambda optimizer, of: algorithms.delayed_diloco(optimizer, H, OUTER),
        lambda inputs: slow_links.delayed(inputs.x, inputs.G, N, inputs.step, H, _outer()),
        on_workers,
        optimizer="momentum",
    ),
    Case(
        "DiLoCo, eager",
        "Kale et al. 2025, section 3",
        lambda optimizer, of: algorithms.eager_diloco(optimizer, H, OUTER),
        lambda inputs: slow_links.eager(
            inputs.x, inputs.G, N, inputs.step, H, [_outer() for _ in range(N)]
        ),
        on_workers,
        optimizer="momentum",
    ),
    Case(
        "NoLoCo",
        "Kolehmainen et al. 2025",
        lambda optimizer, of: algorithms.noloco(
            optimizer, graph("matchings"), H, step=ETA, consensus=CONSENSUS, momentum=MOMENTUM
        ),
        lambda inputs: slow_links.noloco(
            inputs.X, inputs.G, matrices("matchings"), inputs.step, H, MOMENTUM, ETA, CONSENSUS
        ),
        on_workers,
        "random pairs",
        "momentum",
    ),
    Case(
        "SPARTA",
        "EXO Labs 2025",
        lambda optimizer, of: algorithms.sparta(optimizer, DENSITY),
        _sparta,
        on_workers,
        "with these elements",
        "momentum",
    ),
)
