"""The types that all rooms share: what a method, a problem and a compressor are, and what flows between them.

Everything here is a plain tuple of pure functions, so that a method is data: it can be built inside a trace
(`dsgd.sweep`), compared by identity (the compile cache of `dsgd.run`), and read in one screen.

Shapes. N is the number of workers, D the number of devices, n = N / D the workers of one device's *block*.
Code inside the loop sees blocks: a leaf with a worker axis is `[n, ...]`. With D = 1 the block is everybody.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any
Params = PyTree
Key = Annotated[jax.Array, "one key of JAX, jax.random.key(0), say"]
Period = Annotated[int | jax.Array, "an integer"]  # of rounds; a traced one where it is swept
Gradients = PyTree  # a pytree like the parameters; every leaf has a leading worker axis [n, ...]


class State(NamedTuple):
    """What a method carries from round to round.

    Args:
        step: int32 scalar, rounds done.
        server: held once, the same on every device (a global model, the server's error memory, its optimiser state).
        workers: every leaf has a leading worker axis (local models, error memories, local optimiser states).
        fixed: the leaves of the parameters that are not trained (`Problem.trainable`); a run puts them here, methods leave it ().
    """

    step: jax.Array
    server: PyTree = ()
    workers: PyTree = ()
    fixed: PyTree = ()


class Work(NamedTuple):
    r"""How much each worker computes in a round: at most M micro-batches, one after the other, of which each is one draw of the problem.

    $$ g_n = \sum_{m=1}^M w_{nm} \frac{1}{b_{nm}} \sum_{i=1}^{b_{nm}} f_n'(x; \xi_{nmi}) $$

    Args:
        samples: b, int32 `[N, M]`, the same on every device: the samples of each micro-batch, at most `Problem.batch_size`; 0: it is not
            computed. Problems without that word have 0 or 1, for a whole draw. Or bool, of any problem: whether it is computed, whole
            (`Round.work` has it in samples). A worker whose batches are smaller (`Problem.batch_sizes`) computes at most so many.
        weights: w, float `[N, M]`, likewise, at least 0; where nothing is computed, they do not matter. Of a method that takes the mean
            over workers, its estimate is $\frac1N \sum_{nm} w_{nm} \bar g_{nm}$.

    `dsgd.work` makes them.
    """

    samples: jax.Array | np.ndarray
    weights: jax.Array | np.ndarray


class Measured(NamedTuple):
    """What workers measured in the last round, with the noise of their clocks; NaN before the first, and where nothing was to be measured.

    Args:
        compute: seconds of each micro-batch, `[N, M]`.
        up: seconds for which each worker's sending port was busy, `[N]`.
        down: of its receiving port, `[N]`.
        bits_up, bits_down: what went through them meanwhile, float `[N]`.
        backward: seconds of the last micro-batch's backward pass, `[N]`, on clusters with an overlap; None on others.
        first: of them, those until its first bucket was ready, likewise.
    """

    compute: jax.Array
    up: jax.Array
    down: jax.Array
    bits_up: jax.Array
    bits_down: jax.Array
    backward: jax.Array | None = None
    first: jax.Array | None = None


class Round(NamedTuple):
    """What a method may know of the present round besides its own state.

    Args:
        step: int32 scalar, rounds done before this one: one number for all runs that share a program, so that `lax.cond` on it is a branch.
        workers: N, a Python int.
        key: of this round and the same for everybody, for choices that come before the gradients (who is asked).
        cluster: the `dsgd.clusters.Cluster` that the run is on; None: it has no clock.
        clock: simulated seconds so far, a float scalar; 0 without a cluster.
        measured: what the workers measured in the last round; None without a cluster, and where `Algorithm.measures` is False.
        present: who takes part in this round, bool `[N]`, the same on every device; None: everybody.
        work: in the update, what the query said of it; None: a batch each.
        batch_size: of the problem, a Python int; None where the word has no meaning.
        batch_sizes: of the problem, if some workers' batches are smaller.
        weights: of the problem's workers, if they have any.
    """

    step: jax.Array
    workers: int
    key: jax.Array
    cluster: Any = None
    clock: jax.Array | float = 0.0
    measured: Measured | None = None
    present: jax.Array | None = None
    work: Work | None = None
    batch_size: int | None = None
    batch_sizes: tuple[int, ...] | None = None
    weights: tuple[float, ...] | None = None


class Query(NamedTuple):
    """Where the workers ask the first-order oracle for gradients.

    Args:
        params: the models, one for all (`axis=None`) or stacked `[n, ...]` (`axis=0`), as in `jax.vmap`.
        axis: None or 0.
        workers: None for everybody, or int32 `[k]`, the same on every device: only these workers compute, at the one model or
            at their rows of the stacked ones, and the gradients come back as `[k, ...]`, the same on every device.
        exact: ask for the exact gradients f_n'(x) instead of stochastic ones.
        work: how much each worker computes; None: one batch, which counts once.
        draws: with work, the number of each worker's first micro-batch of this round, int32 `[N]`, the same on every device, in a stream of
            its own that goes on through the run: whoever asks for a number again gets that batch again; None: draws of this round only, or
            of `Problem.numbered` the next ones, which the run counts.
    """

    params: PyTree
    axis: int | None = None
    workers: jax.Array | None = None
    exact: bool = False
    work: Work | None = None
    draws: jax.Array | None = None


class Info(NamedTuple):
    """What one round sent, and what the method wants recorded.

    Args:
        bits_up: bits that each worker sent, from `dsgd.counts` `[n, 4]`.
        bits_down: bits that each worker received, likewise.
        metrics: the method's own numbers by name, scalars or `[N]` (one a worker), the same on every device.
        compute: seconds that each worker computed for this round, `[N]`, the same on every device, where the method cut it short;
            None: as long as its gradient takes on the run's cluster.
        elapsed: seconds that this round took, of methods that are driven by events and so keep their own time; None: as long as
            the run's cluster needs for it.
        lost: bits of messages to each worker that were sent and did not arrive, likewise; None: none. Its port was busy as long.
        messages: how many messages each worker sent, and how many arrived at it, uint32 `[n, 2]`: of all-reduces and of servers, its part
            of the sum. The history then has `arrived`. None: they are not counted, as on clusters where all arrive.
        outside: indices from users' functions that are outside their range, by what is wrong in words with {} for the index: codes of
            `dsgd.engine.indices.outside`, the same on every device. The run ends with a ValueError.
    """

    bits_up: jax.Array
    bits_down: jax.Array
    metrics: dict[str, jax.Array] = {}  # noqa: RUF012 (a NamedTuple default; never mutated)
    compute: jax.Array | None = None
    elapsed: jax.Array | None = None
    lost: jax.Array | None = None
    messages: jax.Array | None = None
    outside: dict[str, jax.Array] = {}  # noqa: RUF012 (a NamedTuple default; never mutated)


class Pattern(NamedTuple):
    """How the messages of one round flow through the switch. `dsgd.network` has them all.

    Args:
        name: as a user would write it.
        blocking: (N, latency, transfer) -> seconds, where a message holds both ports for latency + transfer.
        pipelined: the same where latency holds no port.
        vectors: N -> how many full vectors each worker sends in a round, on average.
        messages: N -> the messages of one round, for `network.simulate`; None: they are not listed.
        clock: (finish `[N]`, `network.Ports`, convention, step) -> when each worker is done `[N]`, or the `network.Exchange`; None: all
            begin when the last one is ready, and the slowest port sets the pace.
        rounds: the patterns of a period, of those that take turns.
        stands_in: on several devices its methods are simulated by other collectives than it has messages (one server, one worker after
            the other): what they tell is not what crosses.
        period: rounds from one with messages to the next; a traced one where it is swept.
    """

    name: str
    blocking: Callable
    pipelined: Callable
    vectors: Callable
    messages: Callable | None = None
    clock: Callable | None = None
    rounds: tuple[Pattern, ...] = ()
    stands_in: bool = False
    period: Period = 1


class Algorithm(NamedTuple):
    """A distributed first-order method: it asks for gradients at points of its choosing, and updates.

    Args:
        init: (params, workers: N) -> State, in the global view: leaves of `State.workers` are `[N, ...]`.
        query: (State, Round) -> Query.
        update: (key, State, Gradients, Round) -> (State, Info).
        model: State -> params, what a user would take home: x, or the mean of the local models.
        pattern: how its messages flow, for the clock.
        name: for tables and error messages.
        learning_rate: step size of the first update, or NaN where the optimiser does not tell (see `algorithms.optimizers`).
        workers: N where the method is built for one N (a topology), or None for any.
        local: State -> the local models, leaves `[n, ...]`, whose consensus distance is recorded; None: those of the query, if it has such.
        away: (`State.workers` before a round, and after it, Round) -> what a worker has after it that was away meanwhile, leaves
            `[n, ...]`; or, in words, why the method cannot go on without one of its workers or messages: it is refused on such clusters.
        measures: whether it wants `Round.measured`, which is carried for those that do; or M, where its query looks at the seconds of
            micro-batches and asks for another number of them than the cluster's `micro_batches`.
        refuses: the newest records of the history, by name -> in words why the run must end there, or ""; None: nothing in them ends it.
        averages_models: on problems with weights, whether `workers.mean` in `update` and `model` has them, as FedAvg's averages of models
            after local steps do; gradients are then those of f_n. False: gradients are those of w_n f_n, and means have equal weights.
    """

    init: Callable
    query: Callable
    update: Callable
    model: Callable
    pattern: Pattern
    name: str
    learning_rate: Any = float("nan")
    workers: int | None = None
    local: Callable | None = None
    away: Callable | str = "it does not say what becomes of a worker that is away (Algorithm.away)"
    measures: bool | int = False
    refuses: Callable | None = None
    averages_models: bool = False


class Encoded(NamedTuple):
    """What `Compressor.compress` may return instead of the message alone, so that on one device nothing is packed or unpacked.

    Args:
        message: what travels, a pytree of packed arrays.
        decoded: `[d]`, exactly `decompress(message, d)`, made without the packed arrays: XLA drops the message from programs in which
            nobody reads it, as on one device. On several devices it is made in any case, and the sender decodes it as its receivers do.
    """

    message: PyTree
    decoded: jax.Array


class Compressor(NamedTuple):
    """A map to few bits and back. All members act on one flat vector.

    Args:
        compress: (key, x: [d]) -> message, a pytree of packed arrays: what travels; or `Encoded`, the message and what its receivers
            decode. A compressor that starts warm takes a third argument, `last=None`, the previous message of this vector: zeros before the
            first one, None from methods that do not keep messages.
        decompress: (message, d: int) -> decoded: [d]; where the message is lossy, float64 of float64 elements and float32 of all others.
        bits: message -> bits of this message on the wire: an int if all messages for d elements have the same size, else a uint32 scalar.
        name: for tables and error messages.
        omega: d -> w with E|Q(x) - x|^2 <= w |x|^2, or None if no such constant is known; None: the compressor is biased.
        delta: d -> a with E|C(x) - x|^2 <= (1 - a) |x|^2, or None if there is none for d; None: it states no contraction.
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
        """Whether each leaf of a tree is compressed as a vector, or the tree as one vector (`compressors.whole_model`)."""
        return True

    @property
    def warm(self) -> bool:
        """Whether it starts from the previous message: whether `compress` has a parameter `last`."""
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
        heterogeneity: varsigma, (1/N) sum |f_n' - f'|^2 <= varsigma^2: everywhere, but of quadratics whose Hessians
            differ at x* only.
    """

    smoothness: float | None = None
    strong_convexity: float | None = None
    minimum: float | None = None
    minimizer: PyTree | None = None
    noise: float | None = None
    heterogeneity: float | None = None


class Problem(NamedTuple):
    r"""$\min_x f(x) = \frac1N \sum_n w_n f_n(x)$, where worker n sees only its own data; with all $w_n = 1$ it is (5.1).

    Args:
        init: key -> params.
        loss: (params, batch) -> scalar, the mean loss of worker n's batch; of its whole data it is f_n.
        data: a pytree, every leaf `[N, ...]`; `data[n]` is all that worker n has. Or a pool of the samples of workers that have very
            different numbers of them (`dsgd.engine.pooled`).
        sample: (key, data[n]) -> a batch of worker n. `dsgd.problems.minibatch(...)` makes one.
        gradient: (params, batch) -> gradient; None: `jax.grad(loss)`.
        evaluate: (params, data block, shared) -> (scalars by name, with "loss" = f(x); f'(x), or None: it is not computed, and
            the history's `grad_sqnorm` is NaN); None: the mean of `loss` and of its gradient over all workers and all data. What it
            costs is never counted as traffic.
        shared: a pytree that everybody holds (held-out data, averages), handed to `evaluate`.
        constants: what is known of f.
        name: for tables and error messages.
        batch_size: samples in one worker's batch, None where the word has no meaning.
        samples: how many the worker with the most has, of which an exact gradient is; None where the word has no meaning.
        take: (batch, int32 b) -> the batch, of which only the first b samples count in `loss` and `gradient`, 1 <= b <= batch_size;
            None: batches are whole.
        weights: w, at least 0 and of mean 1, `[N]`; None: all are 1. What workers compute is scaled, gradients are those of $w_n f_n$; of
            methods that average models (`Algorithm.averages_models`) the averages have the weights instead. `evaluate` reads them with
            `workers.weights()`, or takes `workers.mean` over the workers, which has them.
        batch_sizes: samples in each worker's batch, `[N]`, where those of some have fewer than `batch_size`, and the rest of the batch does
            not count; None: all have `batch_size`.
        numbered: whether `sample` is (key, data[n], int32 k) -> batch k of worker n's stream, counted from 0 through the run, with a key
            that is the run's and the worker's, the same for all k: so that a batch may depend on those before, as in epochs.
        refuses: batches from outside, on the host, leaves `[rounds, N, ...]` -> in words why the loss has no meaning on them, or ""; None:
            they are not looked at.
        keyed: (key, batch from outside) -> the batch, with the key of what its loss draws at random, as `sample` makes it; None: it draws
            nothing.
        trainable: which leaves of the parameters are trained, a tree of bools that is a prefix of them, or a function from the parameters
            (their shapes and types) to it; None: all. Methods see only leaves that are trainable and floating point, as a tree with None in
            place of the others, which stay as they are: they are neither differentiated nor sent, and cost no bits.
        statistics: (params, data block) -> params, of which leaves that are not trained are estimated from the data: running averages of
            batch norm. For `evaluate` and for the model to take home; None: there are none.
    """

    init: Callable
    loss: Callable
    data: PyTree
    sample: Callable
    gradient: Callable | None = None
    evaluate: Callable | None = None
    shared: PyTree = ()
    constants: Constants = Constants()
    name: str = "problem"
    batch_size: int | None = None
    samples: int | None = None
    take: Callable | None = None
    weights: Any = None
    batch_sizes: tuple[int, ...] | None = None
    numbered: bool = False
    refuses: Callable | None = None
    keyed: Callable | None = None
    trainable: Any = None
    statistics: Callable | None = None

    @property
    def workers(self) -> int:
        """N, the leading axis of the data."""
        leaves = jax.tree.leaves(self.data)
        if not leaves or jnp.ndim(leaves[0]) < 1:
            raise ValueError(f"{self.name}: data without a worker axis; need arrays [N, ...]")
        return leaves[0].shape[0]


class Result(NamedTuple):
    """What a run gives back.

    Args:
        state: the last state; leaves `[seeds?, ...]`, those of `state.workers` `[seeds?, N, ...]`.
        history: numpy arrays by name, `[seeds?, records]` (`step` is `[records]`; what has one number a worker, `[seeds?, records, N]`).
        params: the model to take home, leaves `[seeds?, ...]`.
    """

    state: State
    history: dict[str, np.ndarray]
    params: PyTree
