"""The first-order oracle: gradients at the points that a method asks for, and the objective for the
history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import checks, sameness, workers, xla
from dsgd.base import Constants, LocalWork, Loss, Params, Problem, PyTree
from dsgd.engine import accumulate, columns, leaves, pooled, protocol, queries, run_keys, units
from dsgd.engine.queries import Asked

# Micro-batch m > 0 has the round's key with this number plus m folded in; workers' ids are smaller.
_LATER = 1 << 31


class Oracle(NamedTuple):
    """Computes the workers' gradients of one round.

    Args:
        problem: the problem.
        N: number of workers.
        data: the block's data, leaves `[n, ...]`.
        batches: the block's batches if the user supplies them, leaves `[n, ...]`, M micro-batches
            one after the other; None: batches are drawn from the data.
        weigh: whether gradients are multiplied by the workers' weights; if not, they are those of
            f_n.
    """

    problem: Problem
    N: int
    data: PyTree
    batches: PyTree = None
    weigh: bool = True

    def gradients(self, query: Asked, key: jax.Array) -> Any:
        """Returns one gradient for each worker that the query asks, at the query's models: of one
        batch, or the weighted sum over the query's local work. By default it is multiplied by the
        worker's weight in the problem. If the query asks for losses, returns a pair (losses,
        gradients), in which the losses are multiplied by the same weights.

        Args:
            query: from `queries.convert`; its work is in samples.
            key: key of this round; worker i draws with `fold_in(key, i)`, and micro-batch m > 0
                with `fold_in(fold_in(key, 2^31 + m), i)`. If the query numbers its draws, the key
                of the run: number k is drawn with `fold_in(fold_in(key, k), i)`.

        Returns:
            Leaves `[n, ...]`; or `[k, ...]`, the same on every device, if the query asks k workers.

        Raises:
            ValueError: if batches are supplied by the user and the query asks for exact gradients,
                chooses samples or numbers its draws, or their length is not a multiple of M.
        """
        if query.loss:
            return self.loss_and_gradients(query, key)[1]

        def gradient_only(params, batch):
            return None, slope(params, batch)

        slope = _gradient(self.problem)
        _, slopes = self._evaluate(gradient_only, query, key)
        return self._weigh_rows(query, slopes) if self.weigh else slopes

    def loss_and_gradients(
        self, query: Asked, key: jax.Array, present: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Returns the mean loss on the batches, a scalar, and the result of `gradients`. The loss
        is from the gradients' forward pass, unless the problem has its own gradient function.

        The mean is over the workers that participate (`present`, bool `[N]`; None: all); if the
        query has local work, it is over the samples with a positive weight (NaN if there are none).
        Losses are multiplied by the workers' weights even if gradients are not.
        """
        losses, slopes = self._evaluate(value_and_grad(self.problem), query, key)
        work, all_workers = query.work, query.workers is None
        own, weighed = losses, self._weigh_rows(query, losses)
        if work is None:
            mean = _mean(weighed, present) if all_workers else jnp.mean(weighed)
        else:
            counted = (
                _samples_with_weight(work)
                if all_workers
                else _samples_with_weight(work)[query.workers]
            )
            total = workers.widen(weighed)
            total = workers.sum(total) if all_workers else jnp.sum(total)
            mean = total / jnp.sum(counted).astype(total.dtype)
            each = jnp.sum(counted, axis=1)
            each = workers.local_block(each, self.N) if all_workers else each
            own = losses / jnp.maximum(each, 1).astype(losses.dtype)
        slopes = self._weigh_rows(query, slopes) if self.weigh else slopes
        if not query.loss:
            return mean, slopes
        own = self._weigh_rows(query, own) if self.weigh else own
        return mean, (own.astype(queries.loss_type(query.params)), slopes)

    def _weigh_rows(self, query: Asked, tree: PyTree) -> PyTree:
        """Multiplies rows of the workers that the query asks by the workers' weights."""
        if self.problem.weights is None:
            return tree
        weights = jnp.asarray(self.problem.weights, jnp.result_type(float))
        return units.scale_rows(
            workers.local_block(weights, self.N)
            if query.workers is None
            else weights[query.workers],
            tree,
        )

    def _evaluate(self, function: Callable, query: Asked, key: jax.Array) -> tuple[Any, PyTree]:
        """Evaluates `function`, which returns a pair (loss or None, gradient), at each worker's
        model and batch. With local work, gradients are summed with their weights, and losses over
        the samples with a positive weight.
        """
        problem, batches = self.problem, self.batches
        if (query.exact or query.samples is not None) and batches is not None:
            asks = (
                "asks for exact gradients" if query.exact else "chooses the samples of its batches"
            )
            raise ValueError(
                f"{problem.name}: the method {asks}, but batches are given; expected a method that "
                "uses stochastic gradients, or batches=None"
            )
        if query.first_batch is not None and batches is not None:
            raise ValueError(
                f"{problem.name}: the method draws batches again by their numbers, but batches are "
                "given; expected batches that the problem draws, batches=None"
            )
        draws = batches is None and query.samples is None and not query.exact
        if problem.sampler.numbered and query.first_batch is None and draws:
            raise ValueError(
                f"{problem.name}: its batches are numbered, but the query has no draws; expected "
                "Asked(first_batch=int32 [N])"
            )
        if draws and query.work is None and problem.sampler.draws_all(self.data):
            query = query._replace(exact=True)  # without work, no batch is truncated
        oracle = self._replace(data=pooled.block_data(self.data)) if batches is None else self
        ids = workers.ids(self.N) if query.workers is None else query.workers
        local, places = (None, None) if query.workers is None else workers.locate(ids, self.N)
        # With a cohort the data are those of all workers, and the models those of the cohort.
        block = _Block(
            function, oracle, query, key, ids, places, ids if workers.cohort() else places
        )
        if query.work is not None:
            computed = _compute_work(block, query.work)
        else:
            computed = block.exact() if query.exact else block.compute(None, None, None)
        return computed if local is None else workers.collect(local, computed)


def _mean(losses: jax.Array, present: jax.Array | None) -> jax.Array:
    """Returns the mean over the workers that participate, bool `[N]`; NaN if none does."""
    if present is None:
        return workers.mean(losses)
    counted = workers.where_rows(present, workers.widen(losses), jnp.zeros_like(losses))
    return workers.sum(counted) / jnp.sum(present)


def _samples_with_weight(work: LocalWork) -> jax.Array:
    """Returns the number of samples of each micro-batch, `[N, M]`; 0 if its weight is 0."""
    return jnp.where(work.weights > 0, work.samples, 0)


def _compute_work(block: _Block, work: LocalWork) -> tuple[Any, PyTree]:
    """Returns the result of `Oracle._evaluate` for all micro-batches of each worker."""
    # NumPy arrays cannot be indexed by traced integers.
    factors = tuple(map(jnp.asarray, (work.samples, _samples_with_weight(work), work.weights)))
    samples, *factors = (
        workers.local_block(each, block.oracle.N) if block.places is None else each[block.ids]
        for each in factors
    )
    active = jnp.any(samples > 0, axis=1)

    def compute_exact():
        totals = tuple(jnp.sum(jnp.where(samples > 0, each, 0), axis=1) for each in factors)
        return jax.tree.map(units.scale_rows, totals, block.exact(active))

    def compute_drawn():
        M = samples.shape[1]
        parts, keys = _split(block.oracle, M), microbatch_keys(block.key, M)
        turns = jnp.cumsum(work.samples > 0, axis=1, dtype=jnp.int32) - 1
        return units.weighted_sums(
            replace(block, parts=parts, keys=keys, turns=turns).compute, samples, tuple(factors)
        )

    compute = compute_exact if block.query.exact else compute_drawn
    return compute() if block.query.active is None else units.if_any(active, compute)


@dataclass(frozen=True, eq=False)  # compared by identity: its arrays have no hash
class _Block:
    """The workers of a block that a query asks, and their computation.

    In its methods, `rows` are indices of these workers, int32 `[g]` (None: all), and `m` are
    indices of the workers' micro-batches, int32 `[g]` (None: the first).

    Args:
        function: (params, batch) -> the result for one worker.
        oracle: the round's oracle; a pool in its data is flat.
        query, key: as in `Oracle.gradients`.
        ids: ids of the workers.
        places: rows of the workers' models in the block; None: they are the whole block.
        data_places: rows of the workers' data, as `places`.
        parts: the batches as micro-batches, leaves `[n, M, ...]`.
        keys: keys of the round's micro-batches, `[M]`.
        turns: position of each micro-batch among its worker's draws in this round, int32 `[N, M]`.
    """

    function: Callable
    oracle: Oracle
    query: Asked
    key: jax.Array
    ids: jax.Array
    places: jax.Array | None
    data_places: jax.Array | None
    parts: PyTree = None
    keys: Any = None
    turns: Any = None

    def compute(
        self, rows: jax.Array | None, m: jax.Array | None, samples: jax.Array | None
    ) -> PyTree:
        """Returns the results that `units.weighted_sums` sums.

        Args:
            rows, m: see the class.
            samples: number of samples of each micro-batch, int32 `[g]`; None: whole batches.
        """
        batch = self._batch(rows, m)
        if samples is not None and self.oracle.problem.sampler.truncate is not None:
            with protocol.error_context(f"take of {self.oracle.problem.name}"):
                batch = jax.vmap(self.oracle.problem.sampler.truncate)(batch, samples)
        return self._apply(rows, batch)

    def exact(self, active: jax.Array | None = None) -> PyTree:
        """Returns the results for all data of each worker. Pools are computed piece by piece, so
        that the cost of a worker does not depend on the largest worker.

        Args:
            active: workers with results that are used, bool `[n]`; None: all.
        """
        if not isinstance(self.oracle.data, pooled.Pooled):
            return self.compute(None, None, None)

        def compute_piece(rows, m, samples):
            data = self._rows(self.oracle.data, rows)
            m = jnp.zeros_like(samples) if m is None else m
            piece = jax.vmap(pooled.piece_of, (pooled.axes(data), 0, 0))
            return self._apply(rows, piece(data, m, samples))

        data = self._rows(self.oracle.data, None)
        samples = pooled.pieces(data)
        if active is not None:
            samples = jnp.where(active[:, None], samples, 0)
        shares = samples / data.size[:, None].astype(jnp.result_type(float))
        return units.weighted_sums(compute_piece, samples, (shares, shares))

    def _rows(self, tree: PyTree, rows: jax.Array | None) -> PyTree:
        """Returns the given workers' rows of the data or of supplied batches."""
        return pooled.row_data(tree, _select(self.data_places, rows))

    def _apply(self, rows: jax.Array | None, batch: PyTree) -> PyTree:
        """Returns the results of `function` at the workers' models and batches."""
        params, axis = self.query.params, self.query.axis
        if axis == 0:
            params = pooled.row_data(params, _select(self.places, rows))
        return jax.vmap(self.function, (axis, 0))(params, batch)

    def _batch(self, rows: jax.Array | None, m: jax.Array | None) -> PyTree:
        """Returns one batch for each worker: all of its data for an exact gradient, or a batch
        that the user supplies, the method chooses or the problem draws.
        """
        if self.query.exact:
            return self._rows(self.oracle.data, rows)
        if self.oracle.batches is not None:
            return self._supplied_batch(rows, m)
        data, problem = self._rows(self.oracle.data, rows), self.oracle.problem
        if self.query.samples is not None:
            assert problem.sampler.choose is not None
            with protocol.error_context(f"choose of {problem.name}"):
                batch = jax.vmap(problem.sampler.choose, (pooled.axes(self.oracle.data), 0))(
                    data, jnp.asarray(self.query.samples)[self._ids(rows)]
                )
            return (
                jax.vmap(problem.sampler.keyed)(self._keys(rows, m), batch)
                if problem.sampler.keyed
                else batch
            )
        if not problem.sampler.numbered:
            with protocol.error_context(f"sample of {problem.name}"):
                draw = jax.vmap(problem.sample, (0, pooled.axes(self.oracle.data)))
                return protocol.require_batch(problem, draw(self._keys(rows, m), data))
        ids = self._ids(rows)
        numbers = jnp.asarray(self.query.first_batch)[ids] + (
            0 if m is None else self.turns[ids, m]
        )
        streams = jax.vmap(partial(jax.random.fold_in, self.key))(ids)
        with protocol.error_context(f"sample of {problem.name}"):
            draw = jax.vmap(problem.sample, (0, pooled.axes(self.oracle.data), 0))
            return protocol.require_batch(problem, draw(streams, data, numbers))

    def _supplied_batch(self, rows: jax.Array | None, m: jax.Array | None) -> PyTree:
        """Returns micro-batches of the batches that the user supplies."""
        if m is None:
            batch = self._rows(self.oracle.batches, rows)
        else:
            batch = jax.tree.map(
                lambda leaf: leaf[jnp.arange(len(m)), m], self._rows(self.parts, rows)
            )
        return (
            jax.vmap(self.oracle.problem.sampler.keyed)(self._keys(rows, m), batch)
            if self.oracle.problem.sampler.keyed
            else batch
        )

    def _ids(self, rows: jax.Array | None) -> jax.Array:
        return self.ids if rows is None else self.ids[rows]

    def _keys(self, rows: jax.Array | None, m: jax.Array | None) -> jax.Array:
        """Returns the keys with which the workers draw, as described in `Oracle.gradients`."""
        ids = self._ids(rows)
        if self.query.first_batch is not None:
            keys = jax.vmap(partial(jax.random.fold_in, self.key))(
                jnp.asarray(self.query.first_batch)[ids] + (0 if m is None else m)
            )
            return jax.vmap(jax.random.fold_in)(keys, ids)
        return (
            jax.vmap(partial(jax.random.fold_in, self.key))(ids)
            if m is None
            else jax.vmap(jax.random.fold_in)(self.keys[m], ids)
        )


def _select(places: jax.Array | None, rows: jax.Array | None) -> jax.Array | None:
    """Returns the places of the given rows; None: all of them, in order."""
    if places is None or rows is None:
        return places if rows is None else rows
    return places[rows]


def microbatch_keys(key: jax.Array, M: int) -> jax.Array:
    """Returns the keys of the round's micro-batches, `[M]`."""
    later = jax.vmap(partial(jax.random.fold_in, key))(
        np.uint32(_LATER) + np.arange(1, M, dtype=np.uint32)
    )
    return jnp.concatenate([key[None], later])


def draw_batch(
    problem: Problem, key: jax.Array, step: Any, n: int, data: PyTree, M: int = 1, m: Any = 0
) -> PyTree:
    """Draws the batch of one worker in a round, equal to its batch in the loop.

    Args:
        problem: the problem.
        key: key of the run's rounds.
        step: number of the round.
        n: number of the worker.
        data: the worker's data.
        M, m: number of micro-batches of a round, and index of this one. If batches are numbered,
            every round counts M of them.
    """
    if problem.sampler.numbered:
        return problem.sample(
            jax.random.fold_in(run_keys.stream(key), n), data, jnp.int32(step * M + m)
        )
    return problem.sample(
        jax.random.fold_in(microbatch_keys(run_keys.round_keys(key, step)[1], M)[m], n), data
    )


def _split(oracle: Oracle, M: int) -> PyTree:
    """Splits supplied batches, leaves `[n, m, ...]`, into M micro-batches, `[n, M, m / M, ...]`."""
    problem = oracle.problem
    whole = (
        None
        if problem.sampler.truncate is None or problem.batch_size is None
        else M * problem.batch_size
    )

    def split(leaf):
        length = leaf.shape[1] if leaf.ndim > 1 else None
        if (M > 1 and (length is None or length % M)) or (whole and length not in (None, whole)):
            needed = (
                f"a multiple of {M}"
                if whole is None
                else f"{whole} ({M} x batch_size = {problem.batch_size})"
            )
            raise ValueError(
                f"batches: {length or 'no'} samples per worker, for {M} micro-batches of "
                f"{problem.name}; expected {needed}"
            )
        return (
            leaf if length is None else leaf.reshape(leaf.shape[0], M, length // M, *leaf.shape[2:])
        )

    return jax.tree.map(split, oracle.batches)


def value_and_grad(problem: Problem) -> Callable:
    """Returns the function (params, batch) -> (the batch's loss, its gradient)."""
    loss, slope = protocol.loss(problem), _gradient(problem)

    def loss_and_slope(params, batch):
        return loss(params, batch), slope(params, batch)

    return loss_and_slope if problem.gradient else jax.value_and_grad(loss)


@dataclass(frozen=True)
class _Scaled:
    """A loss or gradient, as a function of (params, batch), times a worker's weight."""

    function: Callable
    weight: float

    def __call__(self, params: Params, batch: PyTree) -> PyTree:
        if self.weight == 0:  # also if the value or a derivative is not finite
            shapes = jax.eval_shape(self.function, params, batch)
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.tree.map(
            lambda leaf: leaf * jnp.asarray(self.weight, leaf.dtype), self.function(params, batch)
        )


def worker_problem(problem: Problem, n: int) -> Problem:
    """Returns the problem as worker n computes it in its own process: the functions of $w_n f_n$,
    hashable and without arrays.
    """
    functions = problem._replace(data=(), constants=Constants(), evaluate=None, weights=None)
    if problem.weights is None:
        return functions
    weight = float(problem.weights[n])
    loss = _Scaled(problem.loss, weight)
    return functions._replace(
        loss=Loss(loss, _Scaled(problem.gradient, weight)) if problem.gradient else loss
    )


def _gradient(problem: Problem) -> Callable:
    """Returns the function (params, batch) -> gradient, a tree like the parameters: the problem's
    own, or the derivative of its loss.
    """

    def gradient(params, batch):
        assert problem.gradient is not None
        with protocol.error_context(f"gradient of {problem.name}"):
            slope = problem.gradient(params, batch)
        checks.require_same(f"{problem.name}: gradient returns a tree", slope, params)
        return slope

    return gradient if problem.gradient else jax.grad(protocol.loss(problem))


def mean_loss(
    loss: Callable, params: Params, data: PyTree, weights: Sequence[float] | None = None
) -> tuple[jax.Array, Params]:
    """Returns f(params) and f'(params) with f = (1/N) sum_n w_n loss(., data[n]), the same on every
    device. As many workers are computed at a time as fit in memory.
    """

    def block(params, rows, counted):
        data, factors = rows
        losses = jax.vmap(loss, (None, 0))(params, data)
        losses = losses if factors is None else units.scale_rows(factors, losses)
        return jnp.sum(jnp.where(counted, losses, 0)) / n

    n = jax.tree.leaves(data)[0].shape[0]
    factors = (
        None
        if weights is None
        else workers.local_block(jnp.asarray(weights, jnp.result_type(float)), len(weights))
    )
    rows = (data, factors)
    both = jax.value_and_grad(block)
    if weights is not None and 0 in weights:
        both = accumulate.skip_zero_weights(both, lambda rows: rows[1])
    both = jax.jit(both, inline=True)  # traced once if all workers fit
    return workers.mean_over_devices(
        accumulate.total(both, params, rows, accumulate.chunk_size(both, params, rows))
    )


def evaluate(
    problem: Problem, params: Params, data: PyTree, shared: PyTree
) -> tuple[dict[str, jax.Array], Params | None]:
    r"""Returns scalars by name, with "loss" = f(params), and the gradient f' with respect to the
    trained leaves or None, both the same on every device. `params` are all leaves.

    With a regularizer r the scalars include "objective" = f + r, and "prox_grad_sqnorm" = $|x -
    \mathrm{prox}_r(x - f'(x))|^2$, which is 0 at the minimizers only, and $|f'(x)|^2$ if r = 0.
    """
    params = add_statistics(problem, params, data)
    trained, fixed = leaves.split(leaves.flags(problem), params)
    scalars, slope = _loss_and_slope(problem, params, trained, fixed, data, shared)
    r = problem.regularizer
    if r is None:
        return scalars, slope
    sqnorm = jnp.asarray(jnp.nan)
    if slope is not None:
        after = r.prox(optax.tree.sub(trained, slope), 1.0)
        sqnorm = xla.sqnorm(optax.tree.sub(trained, after))
    objective = scalars["loss"] + r.value(trained)
    return {**scalars, "objective": objective, "prox_grad_sqnorm": sqnorm}, slope


def add_statistics(problem: Problem, params: Params, data: PyTree) -> Params:
    """Returns all parameters, including the leaves that are estimated from the data."""
    if problem.evaluation.statistics is None:
        return params
    return _call_with_weights(problem, "statistics", problem.evaluation.statistics, params, data)


def _loss_and_slope(
    problem: Problem,
    params: Params,
    trained: Params,
    fixed: leaves.Fixed,
    data: PyTree,
    shared: PyTree,
) -> tuple[dict[str, jax.Array], Params | None]:
    """Returns the scalars and the gradient of `evaluate` without those of a regularizer, from the
    problem's `evaluate` if it has one.
    """
    if problem.evaluation.function is not None:
        result = _call_with_weights(
            problem, "evaluate", problem.evaluation.function, params, data, shared
        )
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise ValueError(
                f"{problem.name}: evaluate returns {checks.kind(result)}; expected a pair "
                "(scalars by name, gradient or None)"
            )
        scalars, slope = result
        if "loss" not in scalars or columns.RESERVED & set(scalars):
            raise ValueError(
                f"{problem.name}: evaluate returns {sorted(scalars)}; expected 'loss', and none of "
                f"{sorted(columns.RESERVED)}"
            )
        for name, value in scalars.items():
            checks.require_scalar(f"{problem.name}: evaluate returns {name!r}", value)
        if slope is not None:
            slope = leaves.trained_part(problem, slope)
            checks.require_same(f"{problem.name}: evaluate returns a gradient", slope, trained)
        return scalars, slope
    if isinstance(data, pooled.Pooled):
        value, slope = _mean_of_pool(leaves.bind(problem, fixed), trained, data)
    else:
        value, slope = mean_loss(
            protocol.loss(leaves.bind(problem, fixed)), trained, data, problem.weights
        )
    return {"loss": value}, slope


def _mean_of_pool(
    problem: Problem, params: Params, data: pooled.Pooled
) -> tuple[jax.Array, Params]:
    """Returns f(params) and f'(params) for pooled data, the same on every device."""
    n = data.size.shape[0]
    N = n * workers.devices()
    query, both = Asked(params, exact=True), jax.value_and_grad(protocol.loss(problem))
    oracle = Oracle(problem, N, data)
    rows = oracle._weigh_rows(query, oracle._evaluate(both, query, jax.random.key(0)))
    return workers.mean_over_devices(jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / n, rows))


@lru_cache(maxsize=64)
def _reads_weights(function_and_weights: sameness.Key) -> list[bool]:
    """Returns a list that is empty until the function has read the weights. It is cached because a
    function that is itself jitted is not traced again.
    """
    return []


def _call_with_weights(problem: Problem, name: str, function: Callable, *arguments: Any) -> Any:
    """Calls a problem's function of the data of all workers, within which `workers.weights()` are
    the problem's weights.

    Raises:
        ValueError: if the problem has weights that the function does not read.
    """
    with (
        workers.with_weights(problem.weights) as weights,
        protocol.error_context(f"{name} of {problem.name}"),
    ):
        result = function(*arguments)
    if weights is None:
        return result
    reads = _reads_weights(sameness.Key((function, weights.numbers)))
    if weights.read:
        reads.append(True)
    if not reads:
        hint = ", or evaluate=None, which evaluates the weighted mean of loss"
        raise ValueError(
            f"{problem.name}: the problem has weights, but its {name} does not use them; "
            f"expected {name} to take workers.mean over the workers or to read workers.weights()"
            f"{hint if name == 'evaluate' else ''}"
        )
    return result
