"""Losses and metrics of each client (worker), during a run and after it; held-out samples of each
client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import array_likes, checks, sameness, workers
from dsgd.base import Constants, Params, Problem, PyTree
from dsgd.engine import accumulate, leaves, pooled
from dsgd.engine.client_pool import ClientPool
from dsgd.engine.pooled import Pooled
from dsgd.machines import agreement, host_calls
from dsgd.problems.examples import Examples, one, stack
from dsgd.problems.finite_sum import (
    LossAndMetrics,
    MeanLoss,
    Metrics,
    require_per_sample,
    sample_means,
    with_pieces,
    with_sizes,
)

MEAN, STD, LOWEST, HIGHEST = "mean", "std", "lowest_decile", "highest_decile"
# Number of samples whose evaluation takes about as long as starting a step.
_STEP = 100
_BY_METRIC = dict[str, jax.Array]


def summarize(values: Any, weights: Any = None, xp: Any = np) -> dict[str, Any]:
    r"""Returns statistics of clients' values `[k]`: the mean $\sum_n w_n v_n / \sum_n w_n$; and
    over the clients, which count equally: the standard deviation, and the means of the
    $\lceil k / 10 \rceil$ smallest and of as many largest values.

    Args:
        values: v.
        weights: w, `[k]`; None: all are equal.
        xp: numpy or jax.numpy.
    """
    ordered = xp.sort(values)
    tenth = -(-len(values) // 10)
    return {
        MEAN: values.mean() if weights is None else xp.sum(weights * values) / xp.sum(weights),
        STD: values.std(),
        LOWEST: ordered[:tenth].mean(),
        HIGHEST: ordered[-tenth:].mean(),
    }


def column(metric: str, statistic: str) -> str:
    """Returns the name of a statistic in the history."""
    return f"client_{metric}" if statistic == MEAN else f"client_{metric}_{statistic}"


@dataclass(frozen=True, eq=False)
class ByClient(sameness.Compared):
    """(models, samples) -> f_n and the means of the metrics over the samples of each client, `[k]`
    by name.

    Clients of similar size are evaluated together, and a group takes as many steps as its largest
    client needs, so that the computation is proportional to the number of samples. Clients without
    samples cost almost nothing; their values are meaningless.

    Args:
        loss: the loss of a batch.
        metrics: names and functions, (outputs, targets) -> `[m, ...]`.
        rows: number of samples of a client that are evaluated at a time.
        clients: number of clients that are evaluated at a time.
        stacked: for each leaf of the models, whether each client has its own, `[k, ...]`; (): all
            clients have the same model.
    """

    loss: MeanLoss
    metrics: Metrics
    rows: int
    clients: int
    stacked: tuple[bool, ...] = ()

    def __call__(self, models: PyTree, data: Pooled) -> _BY_METRIC:
        k = len(data.size)
        c = min(self.clients, k)
        groups = -(-k // c)
        # The smallest client is repeated, so that all groups are full.
        order = jnp.pad(jnp.argsort(data.size), (groups * c - k, 0), mode="edge")

        def evaluate(at: jax.Array) -> _BY_METRIC:
            return self._group(self._map_stacked(lambda leaf: leaf[at], models), data, at)

        values = lax.map(evaluate, order.reshape(groups, c))
        return jax.tree.map(
            lambda leaf: jnp.zeros(k, leaf.dtype).at[order].set(leaf.reshape(-1)), values
        )

    def _group(self, models: PyTree, data: Pooled, at: jax.Array) -> _BY_METRIC:
        """Returns the values of the clients with these numbers, int32 `[c]`."""
        own, axes = pooled.row_data(data, at), pooled.axes(data)
        size = own.size[:, None]

        def sums(i: Any) -> _BY_METRIC:
            places = i * self.rows + jnp.arange(self.rows, dtype=jnp.int32)[None]
            real = places < size
            batch = jax.vmap(
                lambda of, rows, weights: of.batch(of.offset + rows, weights), (axes, 0, 0)
            )(own, jnp.where(real, places, 0), real.astype(jnp.result_type(float)))
            return jax.tree.map(
                lambda values: jnp.sum(jnp.where(real, values, 0), axis=1),
                self._samples(models, batch),
            )

        def add(i: jax.Array, totals: _BY_METRIC) -> _BY_METRIC:
            return jax.tree.map(jnp.add, totals, sums(i))

        zeros = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(sums, jnp.int32(0))
        )
        steps = (jnp.max(size) + self.rows - 1) // self.rows
        totals = lax.fori_loop(0, steps, add, zeros)
        values = {name: total / jnp.maximum(size[:, 0], 1) for name, total in totals.items()}
        penalty = self._over_clients(lambda params: self.loss.penalty(self.loss.split(params)[0]))
        return {**values, "loss": values["loss"] + penalty(models)}

    def _samples(self, models: PyTree, batch: Examples) -> _BY_METRIC:
        """Returns the loss and the metrics of each sample, `[c, rows]` by name."""

        def evaluate(params: Params, inputs: PyTree, targets: PyTree) -> _BY_METRIC:
            outputs = self.loss.apply(params, inputs)
            functions = {"loss": self.loss.per_sample, **dict(self.metrics)}
            return {name: sample_means(of(outputs, targets)) for name, of in functions.items()}

        samples = batch.inputs, batch.targets
        if any(self.stacked):
            return self._over_clients(evaluate, 0, 0)(models, *samples)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), samples)
        return jax.tree.map(
            lambda values: values.reshape(batch.weights.shape), evaluate(models, *flat)
        )

    def _over_clients(self, function: Callable, *axes: Any) -> Callable:
        """Returns the function for the models of all clients of a group, or the function itself if
        these are the same.
        """
        if not any(self.stacked):
            return function

        def call(models: PyTree, *arguments: Any) -> Any:
            structure = jax.tree.structure(models)
            of_models = structure.unflatten([0 if each else None for each in self.stacked])
            return jax.vmap(function, (of_models, *axes))(models, *arguments)

        return call

    def _map_stacked(self, function: Callable, models: PyTree) -> PyTree:
        if not any(self.stacked):
            return models
        found, structure = jax.tree.flatten(models)
        return structure.unflatten(
            [
                function(leaf) if each else leaf
                for leaf, each in zip(found, self.stacked, strict=True)
            ]
        )


class Shared(NamedTuple):
    """What every device holds for an evaluation by client.

    Args:
        test: the last argument of the problem's own evaluation.
        held_out: held-out samples of the evaluated clients.
    """

    test: Any
    held_out: Pooled

    @property
    def weights(self) -> Any:
        """Weights of the test samples, or None."""
        return getattr(self.test, "weights", None)


@dataclass(frozen=True, eq=False)
class WithClientMetrics(sameness.Compared):
    """(params, data block, test samples or `Shared`) -> (the scalars of `whole`, and statistics of
    the clients' values; the gradient or None).

    Args:
        whole: evaluates all workers.
        of_data: evaluates clients on their samples in the problem.
        of_held_out: evaluates them on their held-out samples; None: they have none.
        workers: N.
        chosen: numbers of the evaluated clients; None: all.
        sampled: whether the loss is that of the chosen clients, without a gradient, in place of the
            loss and the gradient of `whole`.
    """

    whole: LossAndMetrics
    of_data: ByClient
    of_held_out: ByClient | None
    workers: int
    chosen: tuple[int, ...] | None
    sampled: bool

    def __call__(
        self, params: Params, data: Examples | Pooled, shared: Any
    ) -> tuple[_BY_METRIC, PyTree]:
        test, held_out = shared if isinstance(shared, Shared) else (shared, None)
        chosen = np.arange(self.workers) if self.chosen is None else np.array(self.chosen)
        by = workers.weights()
        weights = (
            None if by is None else jnp.asarray(np.asarray(by)[chosen], jnp.result_type(float))
        )
        here, rows = workers.locate(jnp.asarray(chosen, jnp.int32), self.workers)

        def evaluate(of: ByClient, samples: Pooled) -> _BY_METRIC:
            # Each device evaluates its own clients.
            samples = replace(samples, size=jnp.where(here, samples.size, 0))
            return workers.collect(here, of(params, samples))

        values, scalars, slope = {}, {}, None
        if held_out is None or self.sampled:
            block = as_pool(pooled.block_data(data))
            values = evaluate(self.of_data, pooled.row_data(block, rows))
        if self.sampled:
            loss = summarize(values["loss"], weights, jnp)[MEAN]
            scalars = {"loss": loss, **self.whole.test_means(params, test)}
        else:
            scalars, slope = self.whole(params, data, test)
        if held_out is not None:
            assert self.of_held_out is not None
            values = evaluate(self.of_held_out, held_out)
        for name, each in values.items():
            for statistic, value in summarize(each, weights, jnp).items():
                scalars = {**scalars, column(name, statistic): value}
        return scalars, slope


def as_pool(data: Examples | Pooled) -> Pooled:
    """Returns a block's samples as a flat pool, without a copy."""
    if isinstance(data, Pooled):
        return data
    n, longest = data.weights.shape
    inputs, targets = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (data.inputs, data.targets)
    )
    size = jnp.sum(data.weights > 0, axis=1, dtype=jnp.int32)
    return Pooled(
        inputs, targets, jnp.arange(n, dtype=jnp.int32) * longest, size, Examples, longest
    )


def _flat(data: Examples | Pooled) -> Pooled:
    """Returns the data of a problem as a flat pool."""
    return as_pool(pooled.flatten(data) if isinstance(data, Pooled) else data)


@checks.arguments
def with_client_metrics(
    problem: Problem,
    clients: int | None = None,
    *,
    held_out: Problem | None = None,
    metrics: dict[str, Callable[..., Any]] | None = None,
    seed: int = 0,
) -> Problem:
    r"""Returns the problem with statistics of the clients' losses and metrics in its history.

    For the loss and for each metric, with $v_n$ the mean over the samples of client n, the columns
    are `client_loss`, the mean $\sum_n w_n v_n / \sum_n w_n$; `client_loss_std`, the standard
    deviation; `client_loss_lowest_decile` and `client_loss_highest_decile`, the means of the
    smallest and of the largest tenth of the values (rounded up). Clients count equally in the last
    three. Clients of weight 0 are not counted.

    Args:
        problem: a finite sum.
        clients: k, the number of clients that are evaluated, a fixed uniform sample. The columns
            `loss` and `objective` are then estimates, those of these clients, and `grad_sqnorm`
            is NaN, so that the cost of a record is proportional to the samples of k clients. None:
            all clients, in addition to the problem's evaluation.
        held_out: a problem of the same workers whose data are the clients' held-out samples, such
            as the second of `hold_out`, on which `client_` columns are measured. Every device
            stores those of the evaluated clients. None: the clients' samples in `problem`.
        metrics: name -> function, as in `finite_sum`; None: those of the problem, without "test_"
            at the beginning of their names.
        seed: seed of the sample of clients.

    Raises:
        ValueError: if a problem is not a finite sum; if `clients` is not between 1 and the number
            of clients with a positive weight; if `held_out` has another number of workers or other
            kinds of samples, or there are several processes; or if metrics are not those of single
            samples, or are named "loss".

    Source: Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning", 2020,
    table 1.
    """
    where = "with_client_metrics"
    whole, test = _whole(where, problem)
    measured = _metrics(where, problem, whole, metrics)
    N, sizes = problem.workers, np.array(problem.local_samples)
    counted = np.arange(N) if problem.weights is None else np.flatnonzero(problem.weights)
    if clients is not None and not 1 <= clients <= len(counted):
        raise ValueError(
            f"{where}: clients = {clients}; expected between 1 and the {len(counted)} clients of "
            f"{problem.name} with a positive weight, or None for all"
        )
    checks.natural(f"{where}: seed", seed, most=None)
    sampled = clients is not None and clients < len(counted)
    if sampled:
        counted = np.sort(np.random.default_rng(seed).choice(counted, clients, replace=False))
    chosen = None if len(counted) == N else tuple(counted.tolist())
    of_data = _by_client(whole, measured, sizes[counted])
    of_held_out, shared = None, test
    if held_out is not None:
        samples = _samples_of(where, problem, held_out, counted)
        of_held_out = _by_client(whole, measured, np.asarray(samples.size))
        shared = Shared(test, samples)
    function = WithClientMetrics(whole, of_data, of_held_out, N, chosen, sampled)
    return problem._replace(
        evaluate=replace(problem.evaluation, function=function, replicated=shared)
    )


class ClientMetrics(NamedTuple):
    r"""The loss and metrics of each client; `str` returns a table of their distribution.

    Args:
        values: "loss", $f_n$, and the metrics by name: means over each client's samples, `[N]`.
        samples: number of samples of each client, int `[N]`.
        weights: w, `[N]`, with mean 1.
    """

    values: dict[str, np.ndarray]
    samples: np.ndarray
    weights: np.ndarray

    @property
    def statistics(self) -> dict[str, dict[str, float]]:
        """Statistics by name and metric: "mean", with the weights; and over the clients with a
        positive weight, which count equally, "std", "lowest_decile" and "highest_decile", the means
        of the smallest and of the largest tenth (rounded up).
        """
        counted = self.weights > 0
        return {
            name: {
                key: float(value)
                for key, value in summarize(values[counted], self.weights[counted]).items()
            }
            for name, values in self.values.items()
        }

    def __str__(self) -> str:
        found = self.statistics
        deciles = np.arange(1, 10) / 10
        quantiles = [
            np.quantile(values[self.weights > 0], deciles) for values in self.values.values()
        ]
        rows = [(f"{len(self.samples)} clients", *found)]

        def add(label, numbers):
            rows.append((label, *(f"{number:.4g}" for number in numbers)))

        add("mean", (of[MEAN] for of in found.values()))
        add("standard deviation", (of[STD] for of in found.values()))
        add("mean of lowest 10%", (of[LOWEST] for of in found.values()))
        for share, numbers in zip(deciles, zip(*quantiles, strict=True), strict=True):
            add(f"decile {share:.0%}", numbers)
        add("mean of highest 10%", (of[HIGHEST] for of in found.values()))
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([label.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
            for label, *cells in rows
        )


@checks.arguments
def client_metrics(
    problem: Problem,
    params: Any,
    *,
    metrics: dict[str, Callable[..., Any]] | None = None,
) -> ClientMetrics:
    """Evaluates the loss and metrics of each client on its samples, at one model or at a model of
    each client.

    Args:
        problem: a finite sum; the second problem of `hold_out` to evaluate held-out samples.
        params: the model, such as `Result.params`; or the clients' models, leaves `[N, ...]`.
            Leaves that all clients share may be without the leading axis. Arrays on the host
            (memory-mapped ones, too) are copied to the device for a group of clients at a time.
        metrics: as in `with_client_metrics`.

    Raises:
        ValueError: if the problem is not a finite sum, its data are distributed over several
            processes, the parameters are not those of its model, or metrics are not those of single
            samples, or are named "loss".
    """
    where = "client_metrics"
    whole, _ = _whole(where, problem)
    measured = _metrics(where, problem, whole, metrics)
    _require_single_process(where)
    N, sizes = problem.workers, np.array(problem.local_samples)
    params = array_likes.tree(f"{where}: params", params, _native)
    stacked = _stacked(where, problem, params)
    of = replace(_by_client(whole, measured, sizes), stacked=stacked)
    blocks = [np.arange(N)]
    if any(stacked):
        size = sum(
            leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(leaves.shapes(problem))
        )
        count = max(1, min(N, accumulate.BUDGET // max(1, size)))
        # The smallest client is repeated, so that one program serves all blocks.
        order = np.pad(np.argsort(sizes, kind="stable"), (-N % count, 0), mode="edge")
        blocks = np.split(order, len(order) // count)
    data = jax.device_put(problem.data)
    values: dict[str, np.ndarray] = {}
    for at in blocks:
        models = of._map_stacked(lambda leaf, at=at: leaf[at], params)
        evaluated = jax.device_get(_evaluate(of, models, data, at))
        host_calls.raise_error()
        for name, each in evaluated.items():
            values.setdefault(name, np.empty(N, each.dtype))[at] = each
    weights = np.ones(N) if problem.weights is None else np.array(problem.weights, float)
    # JAX sorts the names of a dictionary.
    names = ("loss", *(name for name, _ in measured))
    return ClientMetrics({name: values[name] for name in names}, sizes, weights)


@partial(jax.jit, static_argnums=0)
def _evaluate(of: ByClient, models: PyTree, data: Examples | Pooled, at: jax.Array) -> _BY_METRIC:
    return of(models, pooled.row_data(_flat(data), at))


@checks.arguments
def hold_out(problem: Problem, share: float = 0.2, *, seed: int = 0) -> tuple[Problem, Problem]:
    """Splits the samples of each client into samples for training and held-out samples, drawn
    uniformly.

        training, held_out = problems.hold_out(problem, 0.2)
        problem = problems.with_client_metrics(training, held_out=held_out)

    Args:
        problem: a finite sum whose data are on one process.
        share: share of each client's samples that is held out, at least one sample.
        seed: seed of the draws; that of a client depends only on the seed and its number.

    Returns:
        The problem with the samples for training, and the problem with the held-out samples. Both
        have the weights of the given problem. Constants that depend on the data are not known.

    Raises:
        ValueError: if the problem is not a finite sum, share is not between 0 and 1, a client would
            have no samples for training, or there are several processes.
    """
    whole, _ = _whole("hold_out", problem)
    _require_single_process("hold_out")
    checks.natural("hold_out: seed", seed, most=None)
    if not 0 < share < 1:
        raise ValueError(f"hold_out: share = {share}; expected a number between 0 and 1")
    sizes = np.array(problem.local_samples)
    held = np.maximum(1, np.rint(share * sizes).astype(int))
    if (held >= sizes).any():
        n = int(np.argmax(held >= sizes))
        raise ValueError(
            f"hold_out: client {n} has {sizes[n]} samples, of which {held[n]} would be held out; "
            "expected at least one for training; pass min_samples=2 or more to the problem, or a "
            "smaller share"
        )
    flat = _flat(problem.data)
    inputs, targets = jax.tree.map(np.asarray, (flat.inputs, flat.targets))
    orders = [
        np.random.default_rng((seed, n)).permutation(size) + offset
        for n, (size, offset) in enumerate(zip(sizes, np.asarray(flat.offset), strict=True))
    ]
    cut = [np.split(order, [count]) for order, count in zip(orders, held, strict=True)]

    def select(part: int, name: str) -> Problem:
        parts = [np.sort(pair[part]) for pair in cut]
        numbers = list(map(len, parts))
        piece = whole.loss.chunk_size or max(numbers)
        return problem._replace(
            data=with_pieces(stack(inputs, targets, parts), numbers, piece),
            sample=with_sizes(problem.sampler, numbers),
            constants=Constants(),
            name=f"{problem.name}, {name}",
        )

    return select(1, "training"), select(0, "held out")


def _whole(where: str, problem: Problem) -> tuple[LossAndMetrics, Any]:
    """Returns the evaluation of a finite sum at all workers, and its last argument."""
    function, shared = problem.evaluation.function, problem.evaluation.replicated
    if isinstance(function, WithClientMetrics):
        function = function.whole
    if isinstance(problem.data, ClientPool) and where == "hold_out":
        raise ValueError(
            f"{where}: the clients of {problem.name} are loaded when they are drawn; expected "
            "samples in memory; pass other samples of a client in a second problems.clients"
        )
    if not isinstance(function, LossAndMetrics):
        raise ValueError(
            f"{where}: problem = {problem.name}, which has no samples with a loss each; expected a "
            "finite sum, such as problems.finite_sum or problems.neural_network"
        )
    return function, shared.test if isinstance(shared, Shared) else shared


def _metrics(
    where: str, problem: Problem, whole: LossAndMetrics, given: dict[str, Callable] | None
) -> Metrics:
    """Returns the metrics of single samples."""
    if given is None:
        return tuple((name.removeprefix("test_"), of) for name, of in whole.metrics)
    if "loss" in given:
        raise ValueError(
            f"{where}: metrics['loss'] = {checks.show(given['loss'])}; expected another name; the "
            "loss of the problem is always evaluated"
        )
    measured = tuple(given.items())
    rows = jax.eval_shape(_flat, problem.data)
    require_per_sample(
        where,
        whole.loss,
        measured,
        leaves.shapes(problem),
        Examples(rows.inputs, rows.targets, rows.size),
    )
    return measured


def _by_client(whole: LossAndMetrics, metrics: Metrics, sizes: np.ndarray) -> ByClient:
    """Returns the evaluation of clients of these sizes, in pieces of at most as many samples as
    those of `whole`, with little padding in few steps.
    """
    ordered, best = np.sort(sizes), (np.inf, 1, 1)
    most = min(whole.chunk_size, int(ordered[-1]))
    for rows in {*_powers(most), most}:
        for c in {*_powers(min(whole.chunk_size // rows, len(sizes)))}:
            largest = ordered[::-1][::c]  # of each group, which end with the largest client
            cost = np.sum(-(-largest // rows)) * (rows * c + _STEP)
            best = min(best, (float(cost), rows, c))
    return ByClient(whole.loss, metrics, *best[1:])


def _powers(most: int) -> list[int]:
    """Returns the powers of two up to a number."""
    return [1 << i for i in range(most.bit_length())]


def _samples_of(where: str, problem: Problem, held_out: Problem, chosen: np.ndarray) -> Pooled:
    """Returns the held-out samples of the chosen clients, a flat pool."""
    _whole(where, held_out)
    _require_single_process(f"{where}: held_out")
    if held_out.workers != problem.workers:
        raise ValueError(
            f"{where}: held_out has {held_out.workers} workers, the problem {problem.workers}; "
            "expected held-out samples of the same clients"
        )
    for what in ("inputs", "targets"):
        given, expected = (getattr(each.data, what) for each in (held_out, problem))
        checks.require_same(
            f"{where}: held_out: {what} of a sample", one(one(given)), one(one(expected))
        )
    sizes = np.array(held_out.local_samples)[chosen]
    batches = [pooled.worker_data(held_out.data, int(n)) for n in chosen]
    inputs, targets = jax.tree.map(
        lambda *rows: np.concatenate([row[:size] for row, size in zip(rows, sizes, strict=True)]),
        *((batch.inputs, batch.targets) for batch in batches),
    )
    offset = (np.cumsum(sizes) - sizes).astype(np.int32)
    return Pooled(inputs, targets, offset, sizes.astype(np.int32), Examples, int(sizes.max()))


def _require_single_process(where: str) -> None:
    if not agreement.is_single_process():
        raise ValueError(
            f"{where}: the data are distributed over {agreement.process_count()} processes; "
            "expected a single process"
        )


def _native(where: str, leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else array_likes.numbers(where, leaf)


def _stacked(where: str, problem: Problem, params: Any) -> tuple[bool, ...]:
    """Returns which leaves have one row for each client."""
    expected, N = leaves.shapes(problem), problem.workers
    if jax.tree.structure(params) != jax.tree.structure(expected):
        raise ValueError(
            f"{where}: params is {checks.outline(params)}; expected {checks.outline(expected)}"
        )
    stacked = []
    for leaf, like in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        shape = tuple(np.shape(leaf))
        if shape not in (like.shape, (N, *like.shape)):
            raise ValueError(
                f"{where}: params has a leaf of shape {shape}; expected {like.shape}, or "
                f"{(N, *like.shape)} for the models of {N} clients"
            )
        stacked.append(shape != like.shape)
    return tuple(stacked)
