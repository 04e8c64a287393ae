"""Core types of the package: methods, problems, compressors, and the data that passes between them.

All types are named tuples or frozen dataclasses of pure functions, so a method is data: it can be
constructed inside a trace (`dsgd.sweep`) and compared by identity (in the compilation cache of
`dsgd.run`).

Shapes: N is the number of workers, D the number of devices, and n = N / D the number of workers in
the *block* of one device. Code inside the compiled loop sees blocks: a leaf with a worker axis has
shape `[n, ...]`. With D = 1 the block contains all workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import sameness

if TYPE_CHECKING:  # communication is built on this module
    from dsgd.communication import Communicator

PyTree = Any
Params = PyTree
Key = Annotated[jax.Array | int, "one JAX key, such as jax.random.key(0), or an integer"]
"""A JAX key; old-style keys, and integers i for `jax.random.key(i)`, are converted."""
Real = Annotated[float | jax.Array, "a number"]
"""A real number, or a traced value of a sweep."""
Period = Annotated[int | jax.Array, "an integer"]
"""A number of rounds, or a traced value of a sweep."""
Gradients = PyTree  # a pytree like the parameters; every leaf has a leading worker axis [n, ...]

_SAMPLES = 0x73616D70  # folded into a round's key for chosen samples, far from small numbers
_COMMON = 0x636F6D6D  # folded into an exchange's key for `Common.key`, far from workers' ids


def _short_repr(value: Any) -> str:
    """Returns a short `repr`, which signatures and containers show."""
    return f"{type(value).__name__}({value.name})"


def _range(values: Any) -> str:
    """Returns the smallest and the largest of several numbers as text."""
    least, most = f"{min(values):g}", f"{max(values):g}"
    return least if least == most else f"{least} to {most}"


class State(NamedTuple):
    """State that a method carries from round to round.

    Args:
        server: values that exist once and are equal on every device (the global model, the server's
            error memory, its optimiser state).
        workers: pytree whose leaves have a leading worker axis (local models, error memories, local
            optimiser states).
        step: int32 scalar, the number of completed rounds. The engine counts them.
        fixed: leaves of the parameters that are not trained (see `Parameters.trainable`). The
            engine sets them; methods leave this field `()`.
    """

    server: PyTree = ()
    workers: PyTree = ()
    step: Any = np.int32(0)
    fixed: PyTree = ()


class LocalWork(NamedTuple):
    r"""Local work of each worker in a round: at most M micro-batches, computed one after the other.

    Each micro-batch is one draw of the problem. The gradient of worker n is

    $$ g_n = \sum_{m=1}^M w_{nm} \frac{1}{b_{nm}} \sum_{i=1}^{b_{nm}} f_n'(x; \xi_{nmi}) $$

    Use the functions of `dsgd.work` to construct it.

    Args:
        samples: b, int32 `[N, M]`, equal on every device: the number of samples of each
            micro-batch, from 0 (it is not computed) to `Problem.batch_size`. For problems without a
            batch size, use 0 (skip) or 1 (one full draw). Alternatively bool `[N, M]`, for any
            problem: whether the whole micro-batch is computed; `Round.work` then contains the
            corresponding numbers of samples. A worker with smaller batches (`Sampler.batch_sizes`)
            computes at most its own batch size.
        weights: w, float `[N, M]`, equal on every device, at least 0. Weights of micro-batches that
            are not computed have no effect. A method that takes the mean over workers estimates the
            gradient by $\frac1N \sum_{nm} w_{nm} \bar g_{nm}$.
        first_batch: int32 `[N]`, equal on every device: the number of each worker's first
            micro-batch of this round in a stream of draws that continues through the run. Equal
            numbers yield equal batches. None: the draws belong to this round only.
    """

    samples: jax.Array | np.ndarray
    weights: jax.Array | np.ndarray
    first_batch: jax.Array | None = None


class Timings(NamedTuple):
    """Timings that the workers measured in the last round, including the noise of their clocks.

    Entries are NaN before the first round and if there was nothing to measure.

    Args:
        compute: seconds of each micro-batch, `[N, M]`.
        up: seconds for which each worker's sending port was busy, `[N]`.
        down: seconds for which each worker's receiving port was busy, `[N]`.
        bits_up, bits_down: bits that passed through the two ports in these times, float `[N]`.
        backward: seconds of the backward pass of the last micro-batch, `[N]`; None on clusters
            without an overlap of computation and communication.
        first: seconds of that backward pass until its first bucket of gradients was ready, `[N]`;
            None on clusters without an overlap.
    """

    compute: jax.Array
    up: jax.Array
    down: jax.Array
    bits_up: jax.Array
    bits_down: jax.Array
    backward: jax.Array | None = None
    first: jax.Array | None = None


class Now(NamedTuple):
    """State of the cluster in one round.

    Args:
        cluster: the `dsgd.clusters.Cluster` that the run simulates.
        clock: simulated seconds so far, a float scalar.
        timings: timings that the workers measured in the last round; None for methods that do not
            read them, and before the run carries the cluster's clock.
        present: participation in this round, bool `[N]`, equal on every device; None: all workers
            participate.
        message_noise: noise on the messages of the round, a `dsgd.clusters.MessageNoise`, which
            the communicator adds; None: no noise.
    """

    cluster: Any
    clock: jax.Array | float = 0.0
    timings: Timings | None = None
    present: jax.Array | None = None
    message_noise: Any = None


class Round(NamedTuple):
    """Information about the current round that a method may use besides its state.

    In an update it is a `dsgd.Communicator`, which can also send.

    Args:
        step: int32 scalar, the number of rounds completed before this one. All runs of one program
            share it, so a `lax.cond` on it executes only one branch.
        workers: N, a Python int.
        key: JAX key of this round, equal for all workers, for choices that are made before the
            gradients are computed (for example which worker computes).
        now: the cluster, its clock and the participation; None: the run has no cluster.
        work: in the update, the local work that the query requested; if it is a tuple of queries,
            their micro-batches one after the other. None: one batch per worker.
        problem: the problem, without its arrays; None: not known.
    """

    step: jax.Array
    workers: int
    key: jax.Array
    now: Now | None = None
    work: LocalWork | None = None
    problem: Any = None

    @property
    def cluster(self) -> Any:
        """The cluster of the run, or None."""
        return self.now and self.now.cluster

    @property
    def clock(self) -> jax.Array | float:
        """Simulated seconds so far; 0 without a cluster."""
        return self.now.clock if self.now else 0.0

    @property
    def timings(self) -> Timings | None:
        """Timings that the workers measured in the last round; None without a cluster."""
        return self.now and self.now.timings

    @property
    def present(self) -> jax.Array | None:
        """Participation in this round, bool `[N]`; None: all workers participate."""
        return self.now and self.now.present

    def draw_samples(self, count: int = 1) -> jax.Array:
        """Draws samples of each worker uniformly with replacement, for `Query.samples`. The query
        and the update of a round receive the same numbers.

        Args:
            count: number of samples of each worker.

        Returns:
            Numbers of the samples, int32 `[N, count]`, equal on every device; those of worker n are
            from 0 to m_n - 1, where m_n is its number of samples.

        Raises:
            ValueError: if the numbers of samples are not known (`Problem.local_samples`).
        """
        sizes = self.problem and self.problem.local_samples
        if sizes is None:
            name = self.problem.name if self.problem else "the problem"
            raise ValueError(
                f"round.draw_samples: the workers' numbers of samples are not known for {name}; "
                "expected a problem with a finite number of samples, such as problems.finite_sum, "
                "or a dsgd.Sampler with local_samples"
            )
        key = jax.random.fold_in(self.key, _SAMPLES)
        limits = np.asarray(sizes, np.int32)[:, None]
        return jax.random.randint(key, (self.workers, count), 0, limits, jnp.int32)


class Query(NamedTuple):
    """Points at which the workers query the first-order oracle, which answers with gradients.

    Args:
        params: one model for all workers, or the workers' models stacked, with leaves `[n, ...]`.
        workers: None: all workers compute. Otherwise int32 `[k]`, equal on every device: only these
            workers compute, at the one model or at their rows of the stacked models. Their
            gradients are then `[k, ...]`, equal on every device.
        exact: whether to compute the exact gradients f_n'(x) instead of stochastic ones.
        work: local work of each worker; None: one batch per worker, with weight 1.
        active: workers that compute the gradient in this round, bool `[N]` or a bool scalar, equal
            on every device; it may be traced. The gradients (and losses) of the other workers are
            0. If no worker of a device is active, nothing is computed. None: all workers.
        samples: numbers of the samples in each worker's batch, from 0, integers `[N]` or `[N, b]`,
            equal on every device: the gradient is that of the mean loss of these samples. None: the
            problem draws the batches.
        loss: whether to return the losses at the same batches, too. The answer is then a pair
            (losses, gradients), where the losses are `[n]`, of the parameters' type, at least
            float32.
    """

    params: PyTree
    workers: jax.Array | None = None
    exact: bool = False
    work: LocalWork | None = None
    active: jax.Array | np.ndarray | bool | None = None
    samples: jax.Array | np.ndarray | None = None
    loss: bool = False


class Pattern(NamedTuple):
    """How the messages of one exchange pass through the switch. `dsgd.network` contains all
    patterns.

    What a pattern carries is its type: a custom one for `round.mean`, or for the argument `via` of
    a method that averages, is a `network.AllReduce`. A plain `Pattern` carries nothing.

    Args:
        name: the expression with which a user constructs the pattern.
        seconds: (N, latency, transfer, convention) -> seconds of one exchange in closed form.
        volume: N -> the number of full vectors that each worker sends in an exchange, on average.
        messages: N -> the messages of one exchange, for `network.simulate`; None: they are not
            listed.
        clock: (finish `[N]`, `network.Ports`, convention, step) -> the `network.Timing`; None: all
            messages begin when the last worker is ready, and the slowest port determines the
            duration. A `network.Clocks` also has the clock on machines with several workers;
            without one, the kind of the pattern determines it, if possible.
    """

    name: str
    seconds: Callable
    volume: Callable
    messages: Callable | None = None
    clock: Callable | None = None

    def __repr__(self) -> str:
        return _short_repr(self)


@runtime_checkable
class Init(Protocol):
    """`Algorithm.init`."""

    def __call__(self, params: Params, N: int, /) -> State:
        """Returns the state at the start."""
        ...


@runtime_checkable
class Ask(Protocol):
    """`Algorithm.query`."""

    def __call__(self, state: State, round: Round, /) -> Any:
        """Returns a `Query`, or a tuple of them."""
        ...


@runtime_checkable
class Update(Protocol):
    """`Algorithm.update`."""

    def __call__(self, state: State, answer: Any, round: Communicator, /) -> State:
        """Returns the state after the round."""
        ...


class Algorithm(NamedTuple):
    """A distributed first-order method: it queries gradients, communicates, and updates its state.

    Args:
        name: name in tables and error messages.
        init: (params, workers: N) -> State, in the global view: leaves of `State.workers` are
            `[N, ...]`.
        query: (State, Round) -> Query; or a tuple (or named tuple) of queries. All queries of a
            round draw the same samples.
        update: (State, answer, Communicator) -> State. The answer to a query is its gradients (a
            pair (losses, gradients) if `Query.loss`); to a tuple of queries, it is the tuple of
            their answers. The update sends all messages by calls of the communicator, which records
            them.
        model: State -> params, the final model; or the local models, with leaves `[n, ...]`. In the
            second case the final model is their mean, and the history records their consensus
            distance. If `model` returns one model, the history records the consensus distance of
            the (first) query's models, provided that these are stacked.
        absent: (`State.workers` before the round, `State.workers` after it) -> the state of workers
            that did not participate, with leaves `[n, ...]`; None: they keep their state from
            before the round. Leaves that it takes from the state after the round must be equal at
            all workers after a synchronization, as an averaged model is: they are then stored once,
            and not for each worker. If they are not equal, pass `AllRows(absent)`.
        personal: State -> the models that the workers use themselves, with leaves `[n, ...]`, for
            methods that train one for each worker next to the final model; None: all workers use
            the final model.
    """

    name: str
    init: Init
    query: Ask
    update: Update
    model: Callable[[State], PyTree]
    absent: Callable[[PyTree, PyTree], PyTree] | None = None
    personal: Callable[[State], PyTree] | None = None

    def __repr__(self) -> str:
        return _short_repr(self)


@dataclass(frozen=True, eq=False)
class AllRows(sameness.Compared):
    """`Algorithm.absent` of a method that does not make workers equal when they synchronize: the
    rows of all workers are computed in each round, also of those that do not participate.

    Args:
        function: as `Algorithm.absent`.
    """

    function: Callable[[PyTree, PyTree], PyTree]

    def __call__(self, before: PyTree, after: PyTree) -> PyTree:
        return self.function(before, after)


class Encoded(NamedTuple):
    """A message together with its decoded value, which `Compressor.compress` may return.

    It avoids packing and unpacking on a single device.

    Args:
        message: the data that is sent, a pytree of packed arrays.
        decoded: `[d]`, exactly equal to `decompress(message, d)` but computed without the packed
            arrays. If a program does not use the message, as on one device, XLA eliminates it. On
            several devices the message is always built, and the sender decodes it as the receivers
            do.
    """

    message: PyTree
    decoded: jax.Array


class Common(NamedTuple):
    """What the sender of a message shares with the other senders of its exchange: a compressor that
    draws from this key makes choices that all of them know, and can divide them by number.

    Args:
        key: key of the exchange, the same for all senders.
        worker: number of the sender, from 0 to N - 1; `[n]` for a block of workers.
        workers: N, a Python int.
    """

    key: jax.Array
    worker: jax.Array
    workers: int

    @classmethod
    def of_exchange(cls, key: jax.Array, ids: jax.Array, workers: int) -> Common:
        """Returns what the workers with these ids share, for an exchange with this key. The common
        key differs from `fold_in(key, id)`, which are the workers' own keys.
        """
        return cls(jax.random.fold_in(key, _COMMON), ids, workers)

    def fold_in(self, part: int | jax.Array) -> Common:
        """Returns the same with another key for each part of a vector."""
        return self._replace(key=jax.random.fold_in(self.key, part))


class Compressor(NamedTuple):
    """A map from vectors to short messages, and back. All members act on one flat vector.

    Args:
        compress: (key, x: [d]) -> message, a pytree of the packed arrays that are sent; or an
            `Encoded`, the message with its decoded value. A compressor with a warm start takes a
            third argument `last=None`, the previous message of this vector: zeros before the first
            message, None from methods that do not keep messages. One that draws the same for all
            senders takes an argument `common=None`, a `Common`; None: the sender is alone.
        decompress: (message, d: int) -> decoded: [d]. Lossy messages decode to float64 if the
            elements were float64, otherwise to float32.
        bits: message -> size of this message in bits: an int if all messages for d elements have
            the same size, otherwise a uint32 scalar.
        name: name in tables and error messages.
        omega: d -> w with E|Q(x) - x|^2 <= w |x|^2, or None if no such constant is known. The field
            is None if the compressor is biased.
        delta: d -> a with E|C(x) - x|^2 <= (1 - a) |x|^2, or None if there is no such constant for
            d. The field is None if no contraction is stated.
    """

    compress: Callable
    decompress: Callable
    bits: Callable
    name: str
    omega: Callable | None = None
    delta: Callable | None = None

    def __repr__(self) -> str:
        return _short_repr(self)

    @property
    def unbiased(self) -> bool:
        """Whether E Q(x) = x."""
        return self.omega is not None

    @property
    def layer_wise(self) -> bool:
        """Whether each leaf of a tree is compressed separately (True), or the whole tree as one
        vector (`compressors.whole_model`).
        """
        return True

    @property
    def warm(self) -> bool:
        """Whether the compressor starts from its previous message, that is, whether `compress` has
        a parameter `last`.
        """
        return self._takes("last")

    @property
    def shares(self) -> bool:
        """Whether the compressor receives what all senders of an exchange share, that is, whether
        `compress` has a parameter `common`.
        """
        return self._takes("common")

    def _takes(self, argument: str) -> bool:
        try:
            return argument in inspect.signature(self.compress).parameters
        except (ValueError, TypeError):  # functions written in C may have no signature
            return False


class _Constants(NamedTuple):
    smoothness: Any = None
    strong_convexity: float | None = None
    minimum: float | None = None
    minimizer: PyTree | None = None
    noise: float | None = None
    heterogeneity: float | None = None


class Constants(_Constants):
    """Known constants of a problem; None for those that are not known.

    Args:
        smoothness: L, a Lipschitz constant of f', of every f_n' and of every w_n f_n'. Or a
            function without arguments that returns it, which is called when L is read: in a run of
            several processes, all of them must read it.
        strong_convexity: mu; 0 if f is convex, but not strongly.
        minimum: f*, the minimum of f, or of f + r if the problem has a regularizer; a lower bound
            if it is not convex.
        minimizer: x*, a pytree like the parameters.
        noise: sigma, with E|g_n - f_n'|^2 <= sigma^2.
        heterogeneity: varsigma, with (1/N) sum |f_n' - f'|^2 <= varsigma^2. It holds everywhere,
            except for quadratics with different Hessians, for which it holds at x* only.
    """

    __slots__ = ()

    @property
    def smoothness(self) -> float | None:
        """L."""
        return self[0]() if callable(self[0]) else self[0]

    def __repr__(self) -> str:
        return _Constants.__repr__(self._replace(smoothness=self.smoothness))


# Parameters, Sampler and Loss are callable, so they are not tuples: `jax.jit` keeps weak
# references to functions, which tuples do not support.


@dataclass(frozen=True, eq=False)
class Parameters(sameness.Compared):
    """Initial parameters of a run, and the selection of those that are trained.

    Methods see only trainable floating-point leaves, in a tree with None in place of the others.
    The other leaves keep their values from `init`: they are neither differentiated nor sent, and
    add no bits.

    Args:
        init: key -> params.
        trainable: which leaves are trained: a tree of bools that is a prefix of the parameters, or
            a function from the parameters (only shapes and types) to such a tree; None: all.
    """

    init: Callable
    trainable: Any = None

    def __call__(self, key: jax.Array) -> Params:
        return self.init(key)


@dataclass(frozen=True, eq=False)
class Sampler(sameness.Compared):
    """How a worker draws its batches, and properties of these batches.

    `dsgd.problems.minibatch` constructs one.

    Args:
        draw: (key, data[n]) -> a batch of worker n. If `numbered`, (key, data[n], int32 k) -> batch
            k.
        batch_size: number of samples in a batch; None: batches do not consist of samples.
        local_samples: number of samples of each worker, over which exact gradients are computed, a
            tuple of N ints; None: data do not consist of samples.
        truncate: (batch, int32 b) -> the same batch in which only the first b samples contribute to
            the loss and its gradient, 1 <= b <= batch_size; None: batches cannot be truncated.
        batch_sizes: number of samples in each worker's batch, a tuple of N ints, if some workers
            have fewer than `batch_size` samples; the rest of such a batch is not counted. None: all
            batches have `batch_size` samples.
        numbered: whether batches are numbered from 0 through the run. The key of `draw` is then the
            same for all k and depends only on the run and the worker, so a batch may depend on
            earlier ones, as in epochs.
        keyed: (key, streamed batch) -> the batch together with the key for the random numbers of
            the loss, in the form that `draw` returns; None: the loss draws no random numbers.
        read: (where, streamed batch on the host, N) -> the batch in the form that `draw` returns,
            leaves `[N, ...]`. If the batch does not fit, it raises a ValueError that begins with
            `where`. None: batches are streamed in this form.
        batch_error: streamed batches on the host, leaves `[rounds, N, ...]` -> the reason why the
            loss is not defined on them, or "" if it is; None: they are not validated.
        choose: (data[n], int32 `[b]`) -> the batch of the samples with these numbers; None: methods
            cannot choose samples (`Query.samples`).
    """

    draw: Callable
    batch_size: int | None = None
    local_samples: tuple[int, ...] | None = None
    truncate: Callable | None = None
    batch_sizes: tuple[int, ...] | None = None
    numbered: bool = False
    keyed: Callable | None = None
    read: Callable | None = None
    batch_error: Callable | None = None
    choose: Callable | None = None

    def __call__(self, key: jax.Array, data: PyTree, *number: jax.Array) -> PyTree:
        return self.draw(key, data, *number)

    def draws_all(self, data: PyTree) -> bool:
        """Whether batches of a block's data, leaves `[n, ...]`, have all samples of their workers,
        in any order: their gradients are then the exact ones, which need no draw.
        """
        draws_all = getattr(self.draw, "draws_all", None)
        return draws_all is not None and draws_all(data)


@dataclass(frozen=True, eq=False)
class Loss(sameness.Compared):
    """A loss with a custom gradient function, which replaces `jax.grad(value)`.

    Args:
        value: (params, batch) -> scalar, the mean loss of the batch.
        gradient: (params, batch) -> the gradient of `value`, a tree like the parameters.
    """

    value: Callable
    gradient: Callable

    def __call__(self, params: Params, batch: PyTree) -> jax.Array:
        return self.value(params, batch)


@dataclass(frozen=True, eq=False)
class Evaluation(sameness.Compared):
    """How the objective is evaluated for the history. Evaluation is never counted as traffic.

    Args:
        function: (params, data block, shared) -> (scalars by name, among them "loss" = f(x); the
            gradient f'(x), or None if it is not computed, in which case `grad_sqnorm` in the
            history is NaN). To respect the workers' weights, it reads them with
            `workers.weights()`, or uses `workers.mean`, which applies them. None: the mean of the
            loss and of its gradient over all data of all workers.
        replicated: arguments of `function` that every device holds (held-out data, averages), a
            pytree.
        statistics: (params, data block) -> params in which leaves that are not trained, such as the
            running averages of batch norm, are estimated from the data. It is applied before
            `function` and to the model that a run returns. None: nothing is estimated.
    """

    function: Callable | None = None
    replicated: PyTree = ()
    statistics: Callable | None = None


@dataclass(frozen=True, eq=False)
class Regularizer(sameness.Compared):
    r"""A convex function r that is added to the objective, and that methods use by its proximal
    step.

    `dsgd.problems.regularized` adds it to a problem; `dsgd.problems.l1` and others construct it.

    Args:
        value: params -> r(x), a scalar; inf outside of the domain of r.
        prox: (params, step s > 0, a scalar) -> $\mathrm{prox}_{s r}(x) = \arg\min_z r(z) +
            \frac1{2 s} |z - x|^2$, a tree like the parameters.
        name: name in tables and error messages.
    """

    value: Callable
    prox: Callable
    name: str

    def __repr__(self) -> str:
        return _short_repr(self)


class Problem(NamedTuple):
    r"""A distributed problem $\min_x f(x) = \frac1N \sum_n w_n f_n(x)$, in which worker n accesses
    only its own data; with a regularizer r, $\min_x f(x) + r(x)$.

    With all $w_n = 1$ and no regularizer this is problem (5.1) of the survey.

    Args:
        init: key -> params, all floating-point leaves of which are trained; or a `Parameters`,
            which can select some of them.
        loss: (params, batch) -> scalar, the mean loss of a batch of worker n; on all data of worker
            n it equals f_n. Or a `Loss`, which has its own gradient.
        data: a pytree whose leaves are `[N, ...]`; `data[n]` is all data of worker n. Or a pool of
            the samples of workers with very different numbers of samples (`dsgd.engine.pooled`).
        sample: (key, data[n]) -> a batch of worker n. Or a `Sampler`.
        evaluate: (params, data block, shared) -> (scalars by name, gradient or None), see
            `Evaluation`; or an `Evaluation`. None: the mean of the loss and of its gradient over
            all data of all workers.
        weights: w, `[N]`, at least 0 and with mean 1; None: all are 1. Workers compute gradients of
            $w_n f_n$, except in methods that call `round.weighted_mean`, `average` or `aggregate`:
            these compute gradients of $f_n$ and apply the weights in the mean.
        constants: known constants of f; minimum and minimizer are those of f + r.
        name: name in tables and error messages.
        regularizer: r, known to all workers; None: r = 0. Set it by `dsgd.problems.regularized`. A
            run refuses methods that do not call `round.prox`.
    """

    init: Callable
    loss: Callable
    data: PyTree
    sample: Callable
    evaluate: Callable | Evaluation | None = None
    weights: Any = None
    constants: Constants = Constants()
    name: str = "problem"
    regularizer: Regularizer | None = None

    def __repr__(self) -> str:
        if not self.local_samples:
            return _short_repr(self)
        test = getattr(self.evaluation.replicated, "weights", None)
        given = {
            "workers": len(self.local_samples),
            "samples": _range(self.local_samples),
            "test_samples": 0 if test is None else len(test),
            "batch_size": self.batch_size,
            "l2": f"{getattr(self.loss, 'l2', 0):g}",
            "weights": "equal" if self.weights is None else _range(self.weights),
        }
        shown = ", ".join(f"{name}={value}" for name, value in given.items())
        return f"Problem({self.name}, {shown})"

    @property
    def workers(self) -> int:
        """N, the length of the leading axis of the data."""
        leaves = jax.tree.leaves(self.data)
        if not leaves or jnp.ndim(leaves[0]) < 1:
            raise ValueError(
                f"{self.name}: data have no worker axis; expected arrays of shape [N, ...]"
            )
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
        """`Loss.gradient`; None: gradients are computed by `jax.grad(loss)`."""
        return self.loss.gradient if isinstance(self.loss, Loss) else None

    @property
    def batch_size(self) -> int | None:
        """`Sampler.batch_size`."""
        return self.sampler.batch_size

    @property
    def local_samples(self) -> tuple[int, ...] | None:
        """`Sampler.local_samples`."""
        return self.sampler.local_samples

    @property
    def max_local_samples(self) -> int | None:
        """The largest number of samples of any worker, or None."""
        return max(self.local_samples) if self.local_samples else None
