"""Measurements of `calibrate` over real processes: seconds of JAX's collectives, of rounds and
their parts, and of each machine's gradients.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
import topologies
from dsgd import compressors, problems, workers
from dsgd.base import Compressor, State
from dsgd.compressors.sizes import message_shape
from dsgd.engine import loop
from dsgd.machines import agreement, arrays, nodes
from dsgd.runs.plans import ConstantFactory, make_plan
from dsgd.wire import counts
from experiments.survey import break_even

FEWEST = 3  # minimal number of repeats of a slow measurement
ELEMENT = 4  # bytes of a float32
CLASSES = 10
# factor by which the second problem has more samples; the seconds per sample follow from the
# difference
MORE = 8
STEP = optax.sgd(0.01)
PASSED = 2**26  # bytes of the vector that measures the bandwidth of the memory


class Cost(NamedTuple):
    """Cost of a collective on the survey's switch: a number of latencies, and a number of transfers
    of the whole vector on a port.
    """

    latencies: float
    vectors: float


class Collective(NamedTuple):
    """A collective of JAX on a vector of b bytes.

    Args:
        run: function of the vector as this worker has it, float32 `[N, b / 4N]`, that calls the
            collective.
        own: the share of the vector that a worker has at the start, as a function of N.
        cost: N -> its cost on the switch.
        formula: the cost as a formula; l: latency, r: transfer of the vector.
    """

    run: Callable[[jax.Array], jax.Array]
    own: Callable[[int], float]
    cost: Callable[[int], Cost]
    formula: str

    def columns(self, size: float, N: int) -> int:
        """Returns the number of columns of the worker's array if the whole vector has about the
        given bytes.
        """
        return max(1, round(size * self.own(N) / (ELEMENT * N)))


def _shift(x: jax.Array) -> jax.Array:
    """Sends x to the next worker on a ring."""
    D = lax.axis_size(workers.AXIS)
    return lax.ppermute(x, workers.AXIS, [(i, (i + 1) % D) for i in range(D)])


COLLECTIVES = {
    "all-reduce": Collective(
        lambda x: lax.psum(x, workers.AXIS),
        lambda N: 1.0,
        lambda N: Cost(2 * (N - 1), 2 * (N - 1) / N),
        "2(N-1)(l + r/N)",
    ),
    "all-gather": Collective(
        lambda x: lax.all_gather(x, workers.AXIS),
        lambda N: 1 / N,
        lambda N: Cost(N - 1, (N - 1) / N),
        "(N-1)(l + r/N)",
    ),
    "all-to-all": Collective(
        lambda x: lax.all_to_all(x, workers.AXIS, 0, 0),
        lambda N: 1.0,
        lambda N: Cost(N - 1, (N - 1) / N),
        "(N-1)(l + r/N)",
    ),
    "collective-permute": Collective(_shift, lambda N: 1.0, lambda N: Cost(1.0, 1.0), "l + r"),
}
"""Collectives by name. All-reduce: around a ring. All-gather, all-to-all: the two halves of a round
of N servers. Permute: every worker sends to the next on a ring.
"""

Times = dict[str, dict[float, np.ndarray]]  # seconds of every repeat, by collective and bytes


class Method(NamedTuple):
    """A function of N that builds the method, and its compressor in both directions."""

    build: Callable[[int], dsgd.Algorithm]
    compressor: Compressor | None = None


def _make_compressed(
    make: Callable[..., dsgd.Algorithm], compressor: Compressor, both: bool
) -> Method:
    each = [compressors.whole_model(compressor)] * (1 + both)
    return Method(lambda N: make(STEP, *each), compressor)


METHODS = {
    "minibatch_sgd": Method(lambda N: algorithms.minibatch_sgd(STEP)),
    "compressed_sgd": _make_compressed(
        algorithms.compressed_sgd, compressors.random_quantization(4), both=False
    ),
    "error_compensated_sgd": _make_compressed(
        algorithms.error_compensated_sgd, compressors.sign, both=True
    ),
    "ef21": _make_compressed(algorithms.ef21, compressors.top_k(0.1), both=True),
    "decentralized_sgd": Method(lambda N: algorithms.decentralized_sgd(STEP, topologies.ring(N))),
}


class Parts(NamedTuple):
    """The parts of a round of one method at one model size.

    Args:
        elements: elements of the model.
        compute: seconds of one worker's gradient and step, without other workers.
        codec: seconds that compressing and decompressing take; 0 if nothing is compressed.
        bits: bits that a worker sends in a round.
        arrays: number of arrays of a message; each is sent separately.
        seconds: measured seconds of every round.
    """

    elements: int
    compute: float
    codec: float
    bits: float
    arrays: int
    seconds: np.ndarray

    @property
    def median(self) -> float:
        """Returns the median seconds of a round."""
        return float(np.median(self.seconds))


Rounds = dict[tuple[str, int], Parts]  # by method and width of the network


class Device(NamedTuple):
    """What a worker of one machine needs and has.

    Args:
        host: name of the machine.
        gradients: seconds of every gradient of the batch size, which the next two numbers describe;
            the means over the machine's processes.
        compute: seconds of a gradient, in addition to `per_sample`.
        per_sample: seconds of a gradient per sample.
        memory_bandwidth: bytes per second that a worker's device reads and writes.
        memory: bytes of its memory; None: it does not report them.
    """

    host: str
    gradients: np.ndarray
    compute: float
    per_sample: float
    memory_bandwidth: float
    memory: float | None

    @property
    def seconds(self) -> float:
        """Returns the median seconds of a gradient."""
        return float(np.median(self.gradients))


class Found(NamedTuple):
    """Measurements.

    Args:
        collectives: of all workers.
        rounds: by method and width.
        devices: of each machine.
        size: number of workers on each machine.
        inside: collectives of the workers of each machine, at the same time on all machines; None:
            there is one machine, or one worker on each.
        between: collectives of the workers with the same number on each machine, at the same time
            for all numbers, so that those of a machine share its network card; None: as `inside`.
    """

    collectives: Times
    rounds: Rounds
    devices: list[Device]
    size: int
    inside: Times | None = None
    between: Times | None = None


class Places(NamedTuple):
    """The workers of a run, one on each device, by machine.

    Args:
        hosts: names of the machines.
        devices: `[machines, size]`.
    """

    hosts: tuple[str, ...]
    devices: np.ndarray

    @property
    def whole(self) -> Mesh:
        """The mesh of all workers; those of a machine are consecutive."""
        return Mesh(self.devices.ravel(), (workers.AXIS,))

    @property
    def inside(self) -> Mesh:
        """The mesh with the workers of one machine on its worker axis."""
        return Mesh(self.devices, ("machines", workers.AXIS))

    @property
    def between(self) -> Mesh:
        """The mesh with one worker of each machine on its worker axis."""
        return Mesh(self.devices, (workers.AXIS, "number on its machine"))

    def means(self, by_process: np.ndarray) -> np.ndarray:
        """Returns the means over each machine's processes, `[..., machines]`.

        Args:
            by_process: numbers of each process, `[..., processes]`.
        """
        indices = [[device.process_index for device in row] for row in self.devices]
        return by_process[..., indices].mean(axis=-1)


def find_places(hosts: Sequence[str] | None = None) -> Places:
    """Returns the workers by machine: the devices of the processes with the same host name; called
    in every process.

    Args:
        hosts: host name of each process; None: as the system reports them.

    Raises:
        ValueError: if machines have different numbers of workers.
    """
    names = list(hosts or agreement.all_gather("host names", socket.gethostname()))
    in_order = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    found: dict[str, list[Any]] = {}
    for device in in_order:
        found.setdefault(names[device.process_index], []).append(device)
    if len({len(devices) for devices in found.values()}) > 1:
        given = ", ".join(f"{len(devices)} on {host}" for host, devices in found.items())
        raise ValueError(f"calibrate: workers: {given}; expected the same number on each machine")
    return Places(tuple(found), np.array(list(found.values())))


class Tasks(NamedTuple):
    """The computations to measure.

    Args:
        networks: the problems of one worker and of all workers, by width.
        few, many: logistic regression of one worker; the second has `MORE` times as many samples.
    """

    networks: dict[int, tuple[dsgd.Problem, dsgd.Problem]]
    few: dsgd.Problem
    many: dsgd.Problem


def tasks(widths: Sequence[int], N: int, batch_size: int) -> Tasks:
    """Returns the computations on the digits data.

    Args:
        widths: widths of the networks' hidden layers.
        N: number of workers.
        batch_size: samples of each worker's gradient.
    """

    def network(width, workers):
        return problems.neural_network(
            problems.MLP(CLASSES, (width,)), workers=workers, batch_size=batch_size
        )

    few, many = (
        problems.logistic_regression(workers=1, batch_size=size)
        for size in (batch_size, MORE * batch_size)
    )
    return Tasks({width: (network(width, 1), network(width, N)) for width in widths}, few, many)


def measure_all(
    work: Tasks,
    sizes: Sequence[int],
    repeats: int,
    longest: float,
    hosts: Sequence[str] | None = None,
) -> Found:
    """Measures everything; called in every process, with one worker on each of its devices.

    Args:
        work: the computations.
        sizes: as for `measure_collectives`.
        repeats, longest: as for `time_repeats`.
        hosts: as for `find_places`.
    """
    places = find_places(hosts)
    machines, size = places.devices.shape
    measure = partial(measure_collectives, sizes, repeats, longest)
    return Found(
        measure(mesh=places.whole),
        measure_rounds(work, places, repeats, longest),
        measure_devices(work, places, repeats, longest),
        size,
        *(
            (measure(mesh=places.inside), measure(mesh=places.between))
            if machines > 1 and size > 1
            else ()
        ),
    )


def measure_devices(work: Tasks, places: Places, repeats: int, longest: float) -> list[Device]:
    """Measures the first device of each process, while the others do the same; called in every
    process.

    Args:
        work: the computations.
        places: the workers by machine.
        repeats, longest: as for `time_repeats`.
    """
    few, many = (
        places.means(_measure_alone(problem, repeats, longest)).T
        for problem in (work.few, work.many)
    )
    assert work.few.batch_size is not None
    samples = work.few.batch_size
    rates = places.means(_measure_memory(longest))
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", np.nan)
    memories = places.means(nodes.gather([[memory]])[0, :, 0])
    found = []
    for host, one, more, rate, own in zip(places.hosts, few, many, rates, memories, strict=True):
        seconds = float(np.median(one))
        per_sample = max(0.0, float(np.median(more)) - seconds) / ((MORE - 1) * samples)
        compute = max(0.0, seconds - samples * per_sample)
        memory = None if np.isnan(own) else float(own)
        found.append(Device(host, one, compute, per_sample, float(rate), memory))
    return found


def _measure_memory(longest: float) -> np.ndarray:
    """Returns the bytes per second that a device reads and writes, `[processes]`."""
    vector = jnp.ones(PASSED // ELEMENT, jnp.float32)
    increase = jax.jit(lambda x: x + 1, donate_argnums=0)  # in place

    def run():
        nonlocal vector
        vector = increase(vector)
        return vector

    seconds = time_repeats(run, FEWEST, longest, None)
    assert seconds is not None
    return 2 * PASSED / np.median(seconds, axis=0)


def measure_collectives(
    sizes: Sequence[int],
    repeats: int,
    longest: float,
    per_call: int = 1,
    mesh: Mesh | None = None,
) -> Times:
    """Measures the collectives along the worker axis; called in every process.

    Args:
        sizes: bytes of the vector, increasing.
        repeats: repeats of each measurement; fewer if that would take longer than `longest`.
        longest: maximal seconds for the repeats of one collective at one size. If three repeats
            would take longer, this size and all larger ones are skipped, except for the first two
            sizes.
        per_call: number of collectives that one call of a program executes; to start a call takes
            time, which the rounds of a run do not spend.
        mesh: the workers; None: the first device of each process.
    """
    mesh = mesh or nodes.mesh("calibrate", jax.process_count())
    return {
        name: _measure_collective(collective, mesh, sizes, repeats, longest, per_call)
        for name, collective in COLLECTIVES.items()
    }


def _measure_collective(
    collective: Collective,
    mesh: Mesh,
    sizes: Sequence[int],
    repeats: int,
    longest: float,
    per_call: int,
) -> dict[float, np.ndarray]:
    """Returns the seconds of every repeat of one collective, by bytes of the vector."""
    N, own = mesh.shape[workers.AXIS], P(mesh.axis_names)

    def again(_, x):
        # Each collective needs the result of the last one. An all-gather's has one more axis.
        return collective.run(x).reshape(-1, *x.shape)[0]

    program = jax.jit(
        jax.shard_map(
            lambda x: lax.fori_loop(0, per_call, again, x[0])[None],
            mesh=mesh,
            in_specs=own,
            out_specs=own,
            check_vma=False,
        )
    )
    found: dict[float, np.ndarray] = {}
    for size in sizes:
        columns = collective.columns(size, N)
        row = np.ones((1, N, columns), np.float32)
        x = jax.make_array_from_callback(
            (mesh.size, N, columns), NamedSharding(mesh, own), lambda _, row=row: row
        )
        seconds = time_repeats(
            lambda x=x: program(x), repeats, longest, None if len(found) < 2 else longest
        )
        if seconds is None:
            break
        found[ELEMENT * N * columns / collective.own(N)] = seconds.mean(axis=1) / per_call
    return found


def time_repeats(
    run: Callable[[], Any], repeats: int, longest: float, at_most: float | None
) -> np.ndarray | None:
    """Returns the seconds of every repeat in each process, `[repeats, processes]`, in all of them;
    None if it would take too long.

    The first calls, which compile and open connections, are not counted. Each repeat starts when
    the previous one has ended.

    Args:
        run: function that all processes call together.
        repeats: maximal number of repeats.
        longest: maximal seconds of all repeats; the minimal number of repeats is always made.
        at_most: maximal seconds of the minimal number of repeats, above which nothing is measured;
            None: always measure.
    """
    jax.block_until_ready(run())
    _, one = _time_calls(run, 1)
    alike = float(nodes.gather([[one[0]]]).max())
    if at_most is not None and FEWEST * alike > at_most:
        return None
    count = int(np.clip(longest / alike, FEWEST, max(FEWEST, repeats)))
    result, seconds = _time_calls(run, count)
    del result
    return nodes.gather([[each] for each in seconds])[:, :, 0]


def _time_calls(run: Callable[[], Any], count: int) -> tuple[Any, list[float]]:
    """Returns the last result, and the seconds of each call."""
    result, seconds, last = None, [], time.perf_counter()
    for _ in range(count):
        result = jax.block_until_ready(run())
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    return result, seconds


def measure_rounds(work: Tasks, places: Places, repeats: int, longest: float) -> Rounds:
    """Measures the rounds of all workers; called in every process.

    Args:
        work: the computations, which contain the networks.
        places: the workers by machine.
        repeats, longest: as for `time_repeats`.
    """
    mesh = places.whole
    N = mesh.size
    found: Rounds = {}
    for width, (own, whole) in work.networks.items():
        leaves = jax.tree.leaves(jax.eval_shape(own.init, jax.random.key(0)))
        d = sum(leaf.size for leaf in leaves)
        alone = places.means(_measure_alone(own, repeats, longest))
        one = float(np.median(alone, axis=0).max())  # all workers wait for the slowest machine
        for name, method in METHODS.items():
            codec, arrays = 0.0, len(leaves)
            if method.compressor is not None:
                arrays = _count_arrays(method.compressor, d)
                mine = break_even.codec_seconds(method.compressor, N, d, max(FEWEST, repeats // 3))
                codec = max(0.0, float(nodes.gather([[mine]]).mean()))
            bits, seconds = _measure_round(method, whole, mesh, repeats, longest)
            found[name, width] = Parts(d, one, codec, bits, arrays, seconds.mean(axis=1))
    return found


def _count_arrays(compressor: Compressor, d: int) -> int:
    """Returns the number of arrays of a message."""
    return len(jax.tree.leaves(message_shape(compressor, d)))


def _measure_alone(problem: dsgd.Problem, repeats: int, longest: float) -> np.ndarray:
    """Returns the seconds of one worker's gradients and steps in each process, `[repeats,
    processes]`, while the others do the same.
    """
    here = workers.mesh([jax.local_devices()[0]])
    return _measure_round(METHODS["minibatch_sgd"], problem, here, repeats, longest)[1]


def _measure_round(
    method: Method, problem: dsgd.Problem, mesh: Mesh, repeats: int, longest: float
) -> tuple[float, np.ndarray]:
    """Returns the bits that a worker sends in a round, and the seconds of every round in each
    process, `[repeats, processes]`; the state is updated in place, as in a run.
    """
    algorithm, key = method.build(problem.workers), jax.random.key(0)
    plan = make_plan(
        ConstantFactory(algorithm), algorithm, problem, mesh, runs=0, size=1, record_every=1
    )
    state, data, key = _place(algorithm, problem, mesh, key)
    program = jax.jit(partial(loop.one_round, plan), donate_argnums=0)
    sent: Any = None

    def run():
        nonlocal state, sent
        state, sent = program(state, key, data)
        return state

    seconds = time_repeats(run, repeats, longest, None)
    assert seconds is not None
    return float(counts.to_int(nodes.own(sent.bits.up))[0]), seconds


def _place(
    algorithm: dsgd.Algorithm, problem: dsgd.Problem, mesh: Mesh, key: jax.Array
) -> tuple[State, Any, jax.Array]:
    """Returns the initial state, the data and the key on the devices of the processes; each process
    holds its own rows.
    """
    state = jax.jit(lambda key: algorithm.init(problem.init(key), problem.workers))(key)
    shared, key = arrays.put((state._replace(workers=()), key), NamedSharding(mesh, P()))
    by_worker = NamedSharding(mesh, P(workers.AXIS))
    rows, data = arrays.put((state.workers, problem.data), by_worker)
    return shared._replace(workers=rows), data, key
