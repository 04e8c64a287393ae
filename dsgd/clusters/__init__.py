r"""Simulated clusters: computation times and bandwidths of workers, participation and losses of
messages. Runs on a cluster have a simulated clock.

A `Quantity` is a number of seconds or of bits per second that may vary between workers, over time
and at random: a pure function of a key, the clock and a worker's number. Quantities can be added
and multiplied by numbers: `constant(0.45) + exponential(0.2)`, `2 * trace(measured, 1.0)`.

    cluster = clusters.Cluster(
        clusters.lognormal(-1.84, 0.83) + clusters.constant(0.45),
        up=clusters.sinusoid(3e8, 0.1, 3e7),
        latency=1e-3,
    )
    dsgd.run(method, problem, steps=1_000, key=key, cluster=cluster).history["clock"]

A file can store the numbers of a cluster: `clusters.save(path, clusters.Hardware(1e-3, 1e9))`,
`clusters.load(path).cluster`.

A cluster also determines which workers participate in a round and which messages arrive:
`present=sampled(4, of=16)`, `delivered=bernoulli(0.9, 1.0)`.
"""

from dsgd import signatures, spelling
from dsgd.clusters.cluster import Cluster, Overlap
from dsgd.clusters.collectives import Collectives
from dsgd.clusters.files import Group, Hardware, load, save
from dsgd.clusters.message_noise import MessageNoise
from dsgd.clusters.nodes import Nodes
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
    sinusoid,
    slow,
    square_wave,
    trace,
)
from dsgd.clusters.quantity import Quantity
from dsgd.clusters.selections import (
    bursts,
    cyclic,
    lifetimes,
    markov,
    poisson_intervals,
    round_robin,
    sampled,
    systematic,
)

__all__ = [
    "Cluster",
    "Collectives",
    "Group",
    "Hardware",
    "MessageNoise",
    "Nodes",
    "Overlap",
    "Quantity",
    "bernoulli",
    "bounded",
    "bursts",
    "constant",
    "cyclic",
    "exponential",
    "gamma",
    "lifetimes",
    "load",
    "lognormal",
    "markov",
    "measured",
    "normal",
    "per_server",
    "poisson_intervals",
    "round_robin",
    "sampled",
    "save",
    "sinusoid",
    "slow",
    "square_wave",
    "systematic",
    "trace",
]

signatures.simplify(__name__)
spelling.add_suggestions(__name__)
