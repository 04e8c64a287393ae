"""The methods that `experiments.map` compares, each with the settings that it may choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import algorithms
import topologies
from dsgd import Algorithm, compressors
from dsgd.base import Compressor

SWEPT_PERIODS = (("H", (4, 16, 64)),)


class Candidate(NamedTuple):
    """A method with fixed settings, and with others that one compiled program sweeps.

    Args:
        method: name in tables and figures.
        settings: the fixed settings, for tables.
        build: (optimizer, number of workers, and the names of `swept`) -> method.
        swept: values of further hyperparameters by name, besides the step size.
    """

    method: str
    settings: str
    build: Callable[..., Algorithm]
    swept: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __str__(self) -> str:
        return f"{self.method}, {self.settings}" if self.settings else self.method


def _local(method: str, make: Callable[..., Algorithm]) -> Candidate:
    """Returns a method with H local steps."""
    return Candidate(method, "", make, SWEPT_PERIODS)


def _both_ways(method: str, make: Callable[..., Algorithm], compressor: Compressor) -> Candidate:
    """Returns a method with compressed messages in both directions."""
    whole = compressors.whole_model(compressor)
    return Candidate(
        method, compressor.name, lambda optimizer, workers: make(optimizer, whole, whole)
    )


CODES = compressors.random_quantization(4)
CANDIDATES = (
    Candidate("mini-batch SGD", "", lambda optimizer, workers: algorithms.minibatch_sgd(optimizer)),
    _local("local SGD", lambda optimizer, workers, H: algorithms.local_sgd(optimizer, H)),
    _local("DiLoCo", lambda optimizer, workers, H: algorithms.diloco(optimizer, H)),
    _local("SCAFFOLD", lambda optimizer, workers, H: algorithms.scaffold(optimizer, H)),
    Candidate(
        "compressed SGD",
        CODES.name,
        lambda optimizer, workers: algorithms.compressed_sgd(
            optimizer, compressors.whole_model(CODES)
        ),
    ),
    *(
        _both_ways("EC-SGD", algorithms.error_compensated_sgd, compressor)
        for compressor in (compressors.sign, compressors.top_k(0.1), compressors.top_k(0.03))
    ),
    _both_ways("EF21", algorithms.ef21, compressors.top_k(0.1)),
    *(
        Candidate(
            "Qsparse-local-SGD",
            compressor.name,
            lambda optimizer, workers, H, compressor=compressor: algorithms.qsparse_local_sgd(
                optimizer, H, compressors.whole_model(compressor)
            ),
            SWEPT_PERIODS,
        )
        for compressor in (compressors.sign, compressors.top_k(0.01))
    ),
    Candidate(
        "decentralized SGD",
        "ring",
        lambda optimizer, workers: algorithms.decentralized_sgd(
            optimizer, topologies.ring(workers)
        ),
    ),
    Candidate(
        "decentralized SGD",
        "one-peer exponential",
        lambda optimizer, workers: algorithms.decentralized_sgd(
            optimizer, topologies.one_peer_exponential(workers)
        ),
    ),
    Candidate(
        "exact diffusion",
        "ring",
        lambda optimizer, workers: algorithms.exact_diffusion(
            optimizer, topologies.ring(workers, topologies.lazy)
        ),
    ),
    _local(
        "LED",
        lambda optimizer, workers, H: algorithms.local_exact_diffusion(
            optimizer, topologies.ring(workers, topologies.lazy), H
        ),
    ),
    Candidate(
        "CHOCO-SGD",
        "ring, sign",
        lambda optimizer, workers: algorithms.choco_sgd(
            optimizer, topologies.ring(workers), compressors.whole_model(compressors.sign), 0.5
        ),
    ),
    Candidate(
        "LEAD",
        "ring, qsgd(2, linf)",
        lambda optimizer, workers: algorithms.lead(
            optimizer,
            topologies.ring(workers),
            compressors.whole_model(compressors.qsgd(2, "linf")),
        ),
    ),
)
"""The synchronous baseline first. Methods of all families: their iterates do not depend
on the clock. Asynchronous methods would need a run on every cluster."""
