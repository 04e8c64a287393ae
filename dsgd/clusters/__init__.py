r"""Simulated clusters: how long workers compute, how fast their ports are, and the clock that
follows from both.

A `Quantity` is seconds or bits per second: it differs from worker to worker, from time to time, and
by chance, and is a pure function of a key, the clock and a worker's number. They add, and are
scaled: `constant(0.45) + exponential(0.2)`, `2 * trace(measured, 1.0)`.

    cluster = clusters.Cluster(clusters.lognormal(-1.84, 0.83) + clusters.constant(0.45),
    up=clusters.sinusoid(3e8, 0.1, 3e7), latency=1e-3) dsgd.run(method, problem, steps=1_000,
    key=key, cluster=cluster).history["clock"]

Numbers that were measured are kept in a file:
`clusters.save(path, clusters.Equal(latency, bandwidth))`, `clusters.load(path).cluster`.

It also says who takes part in a round and which messages arrive: `present=sampled(4, of=16)`,
`delivered=bernoulli(0.9, 1.0)`.
"""

from dsgd.clusters.cluster import Cluster, Overlap
from dsgd.clusters.files import Equal, load, save
from dsgd.clusters.quantities import (
    bernoulli,
    bounded,
    constant,
    exponential,
    gamma,
    lognormal,
    measured,
    normal,
    per_server,
    sampled,
    sinusoid,
    slow,
    square_wave,
    trace,
)
from dsgd.clusters.quantity import Quantity

__all__ = [
    "Cluster",
    "Equal",
    "Overlap",
    "Quantity",
    "bernoulli",
    "bounded",
    "constant",
    "exponential",
    "gamma",
    "load",
    "lognormal",
    "measured",
    "normal",
    "per_server",
    "sampled",
    "save",
    "sinusoid",
    "slow",
    "square_wave",
    "trace",
]
