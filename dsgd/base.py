"""The types that all rooms share: what a method, a problem and a compressor are, and what flows
between them.

Everything here is a plain tuple or frozen dataclass of pure functions, so that a method is data: it
can be built inside a trace (`dsgd.sweep`), compared by identity (the compile cache of `dsgd.run`),
and read in one screen.

Shapes. N is the number of workers, D the number of devices, n = N / D the workers of one device's
*block*. Code inside the loop sees blocks: a leaf with a worker axis is `[n, ...]`. With D = 1 the
block is everybody.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import sameness

PyTree = Any
Params = PyTree
Key = Annotated[jax.Array, "one key of JAX, jax.random.key(0), say"]
Period = Annotated[int | jax.Array, "an integer"]  # of rounds; a traced one where it is swept
Gradients = PyTree  # a pytree like the parameters; every leaf has a leading worker axis [n, ...]


class State(NamedTuple):
    """What a method carries from round to round.

    Args:
        server: held once, the same on every device (a global model, the server's error memory, its
            optimiser state).
        workers: every leaf has a leading worker axis (local models, error memories, local optimiser
            states).
        step: int32 scalar, rounds done; the engine counts them.
        fixed: the leaves of the parameters that are not trained (`Parameters.trainable`); a run
            puts them here, methods leave it ().
    """

    server: PyTree = ()
    workers: PyTree = ()
    step: Any = np.int32(0)
    fixed: PyTree = ()


class Work(NamedTuple):
    r"""How much each worker computes in a round: at most M micro-batches, one after the other, of
    which each is one draw of the problem.

    $$ g_n = \sum_{m=1}^M w_{nm} \frac{1}{b_{nm}} \sum_{i=1}^{b_{nm}} f_n'(x; \xi_{nmi}) $$

    Args:
        samples: b, int32 `[N, M]`, the same on every device: the samples of each micro-batch, at
            most `Problem.batch_size`; 0: it is not computed. Problems without that word have 0 or
            1, for a whole draw. Or bool, of any problem: whether it is computed, whole
            (`Round.work` has it in samples). A worker whose batches are smaller
            (`Problem.batch_sizes`) computes at most so many.
        weights: w, float `[N, M]`, likewise, at least 0; where nothing is computed, they do not
            matter. Of a method that takes the mean over workers, its estimate is
            $\frac1N \sum_{nm} w_{nm} \bar g_{nm}$.
        draws: the number of each worker's first micro-batch of this round, int32 `[N]`, the same on
            every device, in a stream of its own that goes on through the run: the same number is
            the same batch again; None: draws of this round only.

    `dsgd.work` makes them.
    """

    samples: jax.Array | np.ndarray
    weights: jax.Array | np.ndarray
    draws: jax.Array | None = None


class Measured(NamedTuple):
    """What workers measured in the last round, with the noise of their clocks; NaN before the
    first, and where nothing was to be measured.

    Args:
        compute: seconds of each micro-batch, `[N, M]`.
        up: seconds for which each worker's sending port was busy, `[N]`.
        down: of its receiving port, `[N]`.
        bits_up, bits_down: what went through them meanwhile, float `[N]`.
        backward: seconds of the last micro-batch's backward pass, `[N]`, on clusters with an
            overlap; None on others.
        first: of them, those until its first bucket was ready, likewise.
    """

    compute: jax.Array
    up: jax.Array
    down: jax.Array
    bits_up: jax.Array
    bits_down: jax.Array
    backward: jax.Array | None = None
    first: jax.Array | None = None


class Now(NamedTuple):
    """A cluster as it is in one round.

    Args:
        cluster: the `dsgd.clusters.Cluster` that the run is on.
        clock: simulated seconds so far, a float scalar.
        measured: what the workers measured in the last round; None before the cluster's clock is
            carried, and for methods that do not read it.
        present: which workers participate in this round, bool `[N]`, the same on every device;
            None: all.
    """

    cluster: Any
    clock: jax.Array | float = 0.0
    measured: Measured | None = None
    present: jax.Array | None = None


class Round(NamedTuple):
    """What a method may know of the present round besides its own state.

    In an update it is a `dsgd.Communicator`, which can also send.

    Args:
        step: int32 scalar, rounds done before this one: one number for all runs that share a
            program, so that `lax.cond` on it is a branch.
        workers: N, a Python int.
        key: of this round and the same for all workers, for choices that come before the gradients
            (which worker is asked).
        now: the cluster, its clock and who participates; None: the run has no cluster.
        work: in the update, what the query said of it; None: one batch each.
        problem: that the method runs on, without its arrays; None: not known.
    """

    step: jax.Array
    workers: int
    key: jax.Array
    now: Now | None = None
    work: Work | None = None
    problem: Any = None

    @property
    def cluster(self) -> Any:
        """The cluster that the run is on, or None."""
        return self.now and self.now.cluster

    @property
    def clock(self) -> jax.Array | float:
        """Simulated seconds so far; 0 without a cluster."""
        return self.now.clock if self.now else 0.0

    @property
    def measured(self) -> Measured | None:
        """What the workers measured in the last round; None without a cluster."""
        return self.now and self.now.measured

    @property
    def present(self) -> jax.Array | None:
        """Which workers participate in this round, bool `[N]`; None: all."""
        return self.now and self.now.present


class Query(NamedTuple):
    """Where the workers ask the first-order oracle for gradients.

    Args:
        params: the model, one for all workers, or the workers' models stacked, leaves `[n, ...]`.
        workers: None: all; or int32 `[k]`, the same on every device: only these workers compute, at
            the one model or at their rows of the stacked ones, and the gradients come back as
            `[k, ...]`, the same on every device.
        exact: ask for the exact gradients f_n'(x) instead of stochastic ones.
        work: how much each worker computes; None: one batch, which counts once.
    """

    params: PyTree
    workers: jax.Array | None = None
    exact: bool = False
    work: Work | None = None


class Pattern(NamedTuple):
    """How the messages of one exchange flow through the switch. `dsgd.network` has them all.

    Args:
        name: as a user would write it.
        seconds: (N, latency, transfer, convention) -> seconds of one exchange in closed form.
        vectors: N -> how many full vectors each worker sends in an exchange, on average.
        messages: N -> the messages of one exchange, for `network.simulate`; None: they are not
            listed.
        clock: (finish `[N]`, `network.Ports`, convention, step) -> the `network.Timing`; None: all
            begin when the last worker is ready, and the slowest port sets the pace.
    """

    name: str
    seconds: Callable
    vectors: Callable
    messages: Callable | None = None
    clock: Callable | None = None


class Algorithm(NamedTuple):
    """A distributed first-order method: it asks for gradients at points of its choosing,
    communicates, and updates its state.

    Args:
        name: for tables and error messages.
        init: (params, workers: N) -> State, in the global view: leaves of `State.workers` are
            `[N, ...]`.
        query: (State, Round) -> Query.
        update: (State, Gradients, Communicator) -> State. All that is sent is sent by the
            communicator, which records it.
        model: State -> params, the model that a user would take home; or the local models, leaves
            `[n, ...]`: their mean is taken home, and their consensus distance recorded (that of the
            query's models, if it has such and this is one model).
        absent: (`State.workers` before a round, and after it) -> what a worker has after it that
            did not participate, leaves `[n, ...]`; None: what it had before.
    """

    name: str
    init: Callable
    query: Callable
    update: Callable
    model: Callable
    absent: Callable | None = None


class Encoded(NamedTuple):
    """What `Compressor.compress` may return instead of the message alone, so that on one device
    nothing is packed or unpacked.

    Args:
        message: what travels, a pytree of packed arrays.
        decoded: `[d]`, exactly `decompress(message, d)`, made without the packed arrays: XLA drops
            the message from programs in which nobody reads it, as on one device. On several devices
            it is made in any case, and the sender decodes it as its receivers do.
    """

    message: PyTree
    decoded: jax.Array


class Compressor(NamedTuple):
    """A map to few bits and back. All members act on one flat vector.

    Args:
        compress: (key, x: [d]) -> message, a pytree of packed arrays: what travels; or `Encoded`,
            the message and what its receivers decode. A compressor that starts warm takes a third
            argument, `last=None`, the previous message of this vector: zeros before the first one,
            None from methods that do not keep messages.
        decompress: (message, d: int) -> decoded: [d]; where the message is lossy, float64 of
            float64 elements and float32 of all others.
        bits: message -> bits of this message on the wire: an int if all messages for d elements
            have the same size, else a uint32 scalar.
        name: for tables and error messages.
        omega: d -> w with E|Q(x) - x|^2 <= w |x|^2, or None if no such constant is known; None: the
            compressor is biased.
        delta: d -> a with E|C(x) - x|^2 <= (1 - a) |x|^2, or None if there is none for d; None: it
            states no contraction.
    """

    compress: Callable
    decompress: Callable
    bits: Callable
    name: str
    omega: Callable | None = None
    delta: Callable | None = None

    @property
    def unbiased(self) -> bool:
        """Whether E Q(x) = x."""
        return self.omega is not None

    @property
    def layer_wise(self) -> bool:
        """Whether each leaf of a tree is compressed as a vector, or the tree as one vector
        (`compressors.whole_model`).
        """
        return True

    @property
    def warm(self) -> bool:
        """Whether it starts from the previous message: whether `compress` has a parameter
        `last`.
        """
        try:
            return "last" in inspect.signature(self.compress).parameters
        except (ValueError, TypeError):  # a function written in C
            return False


class Constants(NamedTuple):
    """What a problem knows of itself; None where it does not know.

    Args:
        smoothness: L, a Lipschitz constant of f', of every f_n' and of every w_n f_n'.
        strong_convexity: mu.
        minimum: f*; where f is not convex, a lower bound of f.
        minimizer: x*, a pytree like the parameters.
        noise: sigma, E|g_n - f_n'|^2 <= sigma^2.
        heterogeneity: varsigma, (1/N) sum |f_n' - f'|^2 <= varsigma^2: everywhere, but of
            quadratics whose Hessians differ at x* only.
    """

    smoothness: float | None = None
    strong_convexity: float | None = None
    minimum: float | None = None
    minimizer: PyTree | None = None
    noise: float | None = None
    heterogeneity: float | None = None


# Parameters, Sampler and Loss are called like functions, so they are not tuples: `jax.jit` keeps
# weak references to functions, which tuples do not allow.


@dataclass(frozen=True, eq=False)
class Parameters(sameness.Compared):
    """The parameters that a run starts from, and which of them are trained.

    Methods see only leaves that are trainable and floating point, as a tree with None in place of
    the others. The others stay as `init` makes them: they are neither differentiated nor sent, and
    cost no bits.

    Args:
        init: key -> params.
        trainable: which leaves are trained, a tree of bools that is a prefix of the parameters, or
            a function from the parameters (their shapes and types) to it; None: all.
    """

    init: Callable
    trainable: Any = None

    def __call__(self, key: jax.Array) -> Params:
        return self.init(key)


@dataclass(frozen=True, eq=False)
class Sampler(sameness.Compared):
    """How a worker draws its batches, and what is known of them. `dsgd.problems.minibatch` makes
    one.

    Args:
        draw: (key, data[n]) -> a batch of worker n; if `numbered`, (key, data[n], int32 k) -> batch
            k.
        batch_size: samples in a batch; None: batches do not consist of samples.
        samples: the largest number of samples of a worker, from which an exact gradient is
            computed; None: data do not consist of samples.
        take: (batch, int32 b) -> the batch, of which only the first b samples count in the loss and
            its gradient, 1 <= b <= batch_size; None: batches cannot be cut.
        batch_sizes: samples in each worker's batch, `[N]`, if some workers have fewer than
            `batch_size` samples and the rest of their batch does not count; None: all batches have
            `batch_size` samples.
        numbered: whether batches are numbered from 0 through the run, with a key of the run and the
            worker that is the same for all k, so that a batch may depend on the ones before, as in
            epochs.
        keyed: (key, batch from outside) -> the batch with the key of the loss's random numbers, as
            `draw` returns it; None: the loss draws none.
        refuses: batches from outside, on the host, leaves `[rounds, N, ...]` -> in words why the
            loss is not defined on them, or ""; None: they are not checked.
    """

    draw: Callable
    batch_size: int | None = None
    samples: int | None = None
    take: Callable | None = None
    batch_sizes: tuple[int, ...] | None = None
    numbered: bool = False
    keyed: Callable | None = None
    refuses: Callable | None = None

    def __call__(self, key: jax.Array, data: PyTree, *number: jax.Array) -> PyTree:
        return self.draw(key, data, *number)


@dataclass(frozen=True, eq=False)
class Loss(sameness.Compared):
    """A loss with a gradient function, which is used in place of `jax.grad(value)`.

    Args:
        value: (params, batch) -> scalar, the mean loss of the batch.
        gradient: (params, batch) -> its gradient, a tree like the parameters.
    """

    value: Callable
    gradient: Callable

    def __call__(self, params: Params, batch: PyTree) -> jax.Array:
        return self.value(params, batch)


@dataclass(frozen=True, eq=False)
class Evaluation(sameness.Compared):
    """How the objective is evaluated for the history. What it costs is never counted as traffic.

    Args:
        function: (params, data block, shared) -> (scalars by name, with "loss" = f(x); f'(x), or
            None: it is not computed, and the history's `grad_sqnorm` is NaN); None: the mean of the
            loss and of its gradient over all workers and all data. It reads the workers' weights
            with `workers.weights()`, or takes `workers.mean` over the workers, which has them.
        shared: arguments of `function` that all devices hold (held-out data, averages), a pytree.
        statistics: (params, data block) -> params, in which leaves that are not trained are
            estimated from the data: running averages of batch norm. For `function`, and for the
            model that a run returns; None: there are none.
    """

    function: Callable | None = None
    shared: PyTree = ()
    statistics: Callable | None = None


class Problem(NamedTuple):
    r"""$\min_x f(x) = \frac1N \sum_n w_n f_n(x)$, where worker n sees only its own data; with all
    $w_n = 1$ it is (5.1).

    Args:
        init: key -> params, of which all floating-point leaves are trained. Or `Parameters`, which
            may name some of them.
        loss: (params, batch) -> scalar, the mean loss of worker n's batch; of its whole data it is
            f_n. Or a `Loss`, with a gradient.
        data: a pytree, every leaf `[N, ...]`; `data[n]` is all that worker n has. Or a pool of the
            samples of workers that have very different numbers of them (`dsgd.engine.pooled`).
        sample: (key, data[n]) -> a batch of worker n. Or a `Sampler`.
        evaluate: (params, data block, shared) -> (scalars by name, gradient or None), see
            `Evaluation`. Or an `Evaluation`; None: the mean of the loss and of its gradient over
            all workers and all data.
        weights: w, at least 0 and of mean 1, `[N]`; None: all are 1. Workers' gradients are those
            of $w_n f_n$; in methods that call `round.weighted_mean`, `average` or `aggregate` these
            have the weights instead.
        constants: what is known of f.
        name: for tables and error messages.
    """

    init: Callable
    loss: Callable
    data: PyTree
    sample: Callable
    evaluate: Callable | Evaluation | None = None
    weights: Any = None
    constants: Constants = Constants()
    name: str = "problem"

    @property
    def workers(self) -> int:
        """N, the leading axis of the data."""
        leaves = jax.tree.leaves(self.data)
        if not leaves or jnp.ndim(leaves[0]) < 1:
            raise ValueError(f"{self.name}: data without a worker axis; need arrays [N, ...]")
        return leaves[0].shape[0]

    @property
    def parameters(self) -> Parameters:
        """`init` as `Parameters`."""
        return self.init if isinstance(self.init, Parameters) else Parameters(self.init)

    @property
    def sampler(self) -> Sampler:
        """`sample` as a `Sampler`."""
        return self.sample if isinstance(self.sample, Sampler) else Sampler(self.sample)

    @property
    def evaluation(self) -> Evaluation:
        """`evaluate` as an `Evaluation`."""
        return self.evaluate if isinstance(self.evaluate, Evaluation) else Evaluation(self.evaluate)

    @property
    def gradient(self) -> Callable | None:
        """`Loss.gradient`; None: gradients are `jax.grad(loss)`."""
        return self.loss.gradient if isinstance(self.loss, Loss) else None

    @property
    def trainable(self) -> Any:
        """`Parameters.trainable`."""
        return self.parameters.trainable

    @property
    def batch_size(self) -> int | None:
        """`Sampler.batch_size`."""
        return self.sampler.batch_size

    @property
    def samples(self) -> int | None:
        """`Sampler.samples`."""
        return self.sampler.samples

    @property
    def take(self) -> Callable | None:
        """`Sampler.take`."""
        return self.sampler.take

    @property
    def batch_sizes(self) -> tuple[int, ...] | None:
        """`Sampler.batch_sizes`."""
        return self.sampler.batch_sizes

    @property
    def numbered(self) -> bool:
        """`Sampler.numbered`."""
        return self.sampler.numbered

    @property
    def keyed(self) -> Callable | None:
        """`Sampler.keyed`."""
        return self.sampler.keyed

    @property
    def refuses(self) -> Callable | None:
        """`Sampler.refuses`."""
        return self.sampler.refuses

    @property
    def shared(self) -> PyTree:
        """`Evaluation.shared`."""
        return self.evaluation.shared

    @property
    def statistics(self) -> Callable | None:
        """`Evaluation.statistics`."""
        return self.evaluation.statistics


class Result(NamedTuple):
    """What a run gives back.

    Args:
        state: the last state; leaves `[seeds?, ...]`, those of `state.workers` `[seeds?, N, ...]`.
        history: numpy arrays by name, `[seeds?, records]` (`step` is `[records]`; what has one
            number a worker, `[seeds?, records, N]`).
        params: the model to take home, leaves `[seeds?, ...]`.
    """

    state: State
    history: dict[str, np.ndarray]
    params: PyTree
