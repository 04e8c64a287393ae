"""Rounds over real processes: what their parts take, what the survey's switch makes of them, and what they take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, counts, network, problems, workers
from dsgd.base import Compressor, State
from dsgd.compressors.sizes import message_shape
from dsgd.engine import loop
from dsgd.machines import arrays, nodes
from dsgd.runs.plans import Always, make_plan
from experiments.survey import break_even, collectives, link_fits
from experiments.survey.link_fits import BITS, Line

CLASSES = 10
MORE = 8  # times as many samples, from which follows what one takes
TINY = float(np.finfo(np.float32).tiny)  # seconds of a byte where bandwidth has no end
STEP = optax.sgd(0.01)


class Method(NamedTuple):
    """How it is made for N workers; and its compressor, of both directions."""

    build: Callable[[int], dsgd.Algorithm]
    compressor: Compressor | None = None


def _compressed(make: Callable[..., dsgd.Algorithm], compressor: Compressor, both: bool) -> Method:
    each = [compressors.whole_model(compressor)] * (1 + both)
    return Method(lambda N: make(STEP, *each), compressor)


METHODS = {
    "mb-sgd": Method(lambda N: algorithms.minibatch_sgd(STEP)),
    "csgd": _compressed(algorithms.compressed_sgd, compressors.random_quantization(4), both=False),
    "ec-sgd": _compressed(algorithms.error_compensated_sgd, compressors.sign, both=True),
    "ef21": _compressed(algorithms.ef21, compressors.top_k(0.1), both=True),
    "dsgd": Method(lambda N: algorithms.decentralized_sgd(STEP, topologies.ring(N))),
}


class Parts(NamedTuple):
    """Of one method at one model size.

    Args:
        elements: of the model.
        compute: seconds of one worker's gradient and step, without anybody else.
        codec: seconds that compressing and decompressing take, 0 where nothing is compressed.
        bits: that a worker sends in a round.
        arrays: of which a message consists; each is sent by itself.
        seconds: of every round, measured.
    """

    elements: int
    compute: float
    codec: float
    bits: float
    arrays: int
    seconds: np.ndarray

    @property
    def measured(self) -> float:
        """The median round."""
        return float(np.median(self.seconds))


Rounds = dict[tuple[str, int], Parts]  # by method and width


class Found(NamedTuple):
    """What was measured: collectives, rounds, and seconds of a gradient, besides those of its samples, and of each of these."""

    collectives: collectives.Measured
    rounds: Rounds
    compute: float
    per_sample: float


class Calibration(NamedTuple):
    """What was measured, and what the switch makes of it.

    Args:
        N: workers.
        found: what was measured.
        lines: latency and seconds of a byte that explain one collective alone, by name.
        switch: those that explain all of them.
    """

    N: int
    found: Found
    lines: dict[str, Line]
    switch: Line

    @property
    def cluster(self) -> clusters.Equal:
        """Of the fitted numbers."""
        bandwidth = BITS / max(self.switch.beta.value, TINY)
        return clusters.Equal(self.switch.alpha.value, bandwidth, self.found.compute, self.found.per_sample)

    def explained(self, name: str, size: float) -> float:
        """Seconds of a collective on the switch."""
        cost = collectives.COLLECTIVES[name].cost(self.N)
        return cost.latencies * self.switch.alpha.value + cost.vectors * size * self.switch.beta.value


class Tasks(NamedTuple):
    """What is computed, made before there are many processes, so that each can compute alone, too.

    Args:
        networks: of one worker, and of all of them, by width.
        few, many: logistic regression of one worker, and with `MORE` times as many samples.
    """

    networks: dict[int, tuple[dsgd.Problem, dsgd.Problem]]
    few: dsgd.Problem
    many: dsgd.Problem


def tasks(widths: Sequence[int], N: int, batch_size: int) -> Tasks:
    """On digits.

    Args:
        widths: of the networks' hidden layers.
        N: workers.
        batch_size: samples of each worker's gradient.
    """

    def network(width, workers):
        return problems.neural_network(problems.MLP(CLASSES, (width,)), workers=workers, batch_size=batch_size)

    few, many = (problems.logistic_regression(workers=1, batch_size=size) for size in (batch_size, MORE * batch_size))
    return Tasks({width: (network(width, 1), network(width, N)) for width in widths}, few, many)


def measure_all(work: Tasks, sizes: Sequence[int], repeats: int, longest: float) -> Found:
    """Called in every process, of which each is a worker.

    Args:
        work: what is computed.
        sizes: of `collectives.measure`.
        repeats, longest: of every measurement.
    """
    seconds = collectives.measure(sizes, repeats, longest)
    rounds = measure(work, repeats, longest)
    few, many = (_alone(problem, repeats, longest) for problem in (work.few, work.many))
    assert work.few.batch_size is not None
    samples = work.few.batch_size
    per_sample = max(0.0, many - few) / ((MORE - 1) * samples)
    return Found(seconds, rounds, max(0.0, few - samples * per_sample), per_sample)


def explain(found: Found, N: int, seed: int) -> Calibration:
    """The fits.

    Args:
        found: what was measured.
        N: workers.
        seed: of the intervals.
    """
    costs = {name: collectives.COLLECTIVES[name].cost(N) for name in found.collectives}
    lines = {name: link_fits.switch({name: times}, costs, seed) for name, times in found.collectives.items()}
    return Calibration(N, found, lines, link_fits.switch(found.collectives, costs, seed))


def measure(work: Tasks, repeats: int, longest: float) -> Rounds:
    """Called in every process, of which each is a worker.

    Args:
        work: whose networks.
        repeats, longest: as of `collectives.timed`.
    """
    N = jax.process_count()
    everybody = nodes.mesh("calibrate", N)
    found: Rounds = {}
    for width, (own, whole) in work.networks.items():
        leaves = jax.tree.leaves(jax.eval_shape(own.init, jax.random.key(0)))
        d = sum(leaf.size for leaf in leaves)
        one = _alone(own, repeats, longest)
        for name, method in METHODS.items():
            codec, arrays = 0.0, len(leaves)
            if method.compressor is not None:
                arrays = _arrays(method.compressor, d)
                mine = break_even.codec_seconds(method.compressor, N, d, max(collectives.FEWEST, repeats // 3))
                codec = max(0.0, float(nodes.gathered([[mine]]).mean()))
            bits, seconds = _round(method, whole, everybody, repeats, longest)
            found[name, width] = Parts(d, one, codec, bits, arrays, seconds)
    return found


def _arrays(compressor: Compressor, d: int) -> int:
    """Of which a message is made."""
    return len(jax.tree.leaves(message_shape(compressor, d)))


def _alone(problem: dsgd.Problem, repeats: int, longest: float) -> float:
    """Seconds of one worker's gradient and step, while the other processes do the same."""
    here = workers.mesh([jax.local_devices()[0]])
    return float(np.median(_round(METHODS["mb-sgd"], problem, here, repeats, longest)[1]))


def _round(method: Method, problem: dsgd.Problem, mesh: Mesh, repeats: int, longest: float) -> tuple[float, np.ndarray]:
    """Bits that a worker sends in a round, and the seconds of every round; state in place, as in a run."""
    algorithm, key = method.build(problem.workers), jax.random.key(0)
    plan = make_plan(Always(algorithm), algorithm, problem, mesh, runs=0, size=1, record_every=1)
    state, data, key = _placed(algorithm, problem, mesh, key)
    program = jax.jit(partial(loop.one_round, plan), donate_argnums=0)
    sent: Any = None

    def run():
        nonlocal state, sent
        state, sent = program(state, key, data)
        return state

    seconds = collectives.timed(run, repeats, longest, None)
    assert seconds is not None
    return float(counts.to_int(nodes.own(sent.bits.up))[0]), seconds


def _placed(algorithm: dsgd.Algorithm, problem: dsgd.Problem, mesh: Mesh, key: jax.Array) -> tuple[State, Any, jax.Array]:
    """The start, the data and the key on the processes' devices, of each process its own rows."""
    mine = jax.process_index() if mesh.size > 1 else 0
    state = jax.jit(lambda key: algorithm.init(problem.init(key), problem.workers))(key)

    def row(tree):
        return jax.tree.map(lambda leaf: leaf[mine : mine + 1], tree)

    shared, key = arrays.put((state._replace(workers=()), key), NamedSharding(mesh, P()))
    return shared._replace(workers=nodes.rows(row(state.workers), mesh)), nodes.rows(row(problem.data), mesh), key


def predicted(name: str, parts: Parts, N: int, link: Line) -> float:
    """Seconds of a round on the switch: the gradient, the codec, and the messages in the method's pattern, a latency for each array.

    Args:
        name: of the method.
        parts: of which `seconds` are not looked at.
        N: workers.
        link: latency, and seconds of a byte.
    """
    pattern = _pattern(name, N)
    bandwidth = BITS / max(link.beta.value, TINY)
    latency = parts.arrays * link.alpha.value
    return parts.compute + parts.codec + network.round_seconds(pattern, N, parts.bits, latency=latency, bandwidth=bandwidth)


@cache
def _pattern(name: str, N: int) -> dsgd.Pattern:
    """Of the method's one exchange in a round; it does not depend on the problem."""
    problem = problems.quadratic(np.ones((N, N)), np.zeros((N, N)))
    (exchange,) = dsgd.exchanges(METHODS[name].build(N), problem)
    return exchange.pattern


def crossovers(sizes: Sequence[float], first: Sequence[float], second: Sequence[float]) -> list[float]:
    """The sizes at which the second method becomes faster than the first, or slower again: where the logarithm of the ratio of their
    seconds, a line between two sizes, is 0.

    Args:
        sizes: rising.
        first, second: seconds of the two at these sizes.
    """
    ratio = np.log(np.asarray(second) / np.asarray(first))
    logs = np.log(np.asarray(sizes, float))
    return [
        float(np.exp(x - a * (y - x) / (b - a)))
        for (x, y), (a, b) in zip(itertools.pairwise(logs), itertools.pairwise(ratio), strict=True)
        if a * b < 0
    ]
