"""The first-order oracle: gradients where a method asks for them, and the whole objective for the
history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, sameness, workers
from dsgd.base import Constants, Gradients, Loss, Params, Problem, PyTree, Work
from dsgd.engine import accumulate, leaves, pooled, protocol, units
from dsgd.engine.queries import Asked

# The history's own names.
RESERVED = {
    "step",
    "clock",
    "bits",
    "grad_sqnorm",
    "consensus",
    "train_loss",
    "evaluated",
    "samples",
    "present",
    "arrived",
}
# with m, what a round's key is folded with for micro-batch m > 0: workers' ids are below
_LATER = 1 << 31


def gradients(
    problem: Problem,
    query: Asked,
    key: jax.Array,
    data: PyTree,
    N: int,
    batches: PyTree = None,
    *,
    weigh: bool = True,
) -> Gradients:
    """One gradient for each worker that the query names, at the models that it names: of a batch,
    or of all the work that it says. It is multiplied by the worker's weight in the problem.

    Args:
        problem: whose oracle it is.
        query: of `queries.asked`; its work in samples.
        key: of this round; worker i draws with `fold_in(key, i)`, micro-batch m > 0 with
            `fold_in(fold_in(key, 2^31 + m), i)`. Where the query numbers its draws, of the run:
            number k is drawn with `fold_in(fold_in(key, k), i)`.
        data: the block's data, leaves `[n, ...]`.
        N: number of workers.
        batches: the block's batches where they come from outside, leaves `[n, ...]`, of M
            micro-batches one after the other; None: drawn from the data.
        weigh: False: gradients are those of f_n, whatever its weight.

    Returns:
        Leaves `[n, ...]`; or `[k, ...]`, the same on every device, where the query names k workers.

    Raises:
        ValueError: exact gradients, or numbered draws, but the data come from outside; batches from
            outside that M does not divide.
    """

    def unmeasured(params, batch):
        return None, slope(params, batch)

    slope = _gradient(problem)
    _, slopes = _asked(unmeasured, problem, query, key, data, N, batches)
    return _weighed(problem, query, slopes, N) if weigh else slopes


def loss_and_gradients(
    problem: Problem,
    query: Asked,
    key: jax.Array,
    data: PyTree,
    N: int,
    batches: PyTree = None,
    present: jax.Array | None = None,
    *,
    weigh: bool = True,
) -> tuple[jax.Array, Gradients]:
    """As `gradients`, and before them the mean loss on the same batches, a scalar. The gradients'
    own forward pass, where the problem has no gradient function of its own.

    The mean is over the workers that are `present`, bool `[N]`; where the query says of work, over
    the samples that count (NaN: there are none). Losses have the workers' weights, whether
    gradients do or not.
    """
    losses, slopes = _asked(with_loss(problem), problem, query, key, data, N, batches)
    losses, slopes = (
        _weighed(problem, query, losses, N),
        _weighed(problem, query, slopes, N) if weigh else slopes,
    )
    everybody = query.workers is None
    if query.work is None:
        return _mean(losses, present) if everybody else jnp.mean(losses), slopes
    counted = _counted(query.work) if everybody else _counted(query.work)[query.workers]
    losses = workers.widened(losses)
    total = workers.sum(losses) if everybody else jnp.sum(losses)
    return total / jnp.sum(counted).astype(losses.dtype), slopes


def _mean(losses: jax.Array, present: jax.Array | None) -> jax.Array:
    """The mean over the workers that participate in the round, bool `[N]`; NaN if none does."""
    if present is None:
        return workers.mean(losses)
    counted = workers.where_rows(present, workers.widened(losses), jnp.zeros_like(losses))
    return workers.sum(counted) / jnp.sum(present)


def samples(query: Asked) -> jax.Array:
    """How many each worker computes, int32 `[N]`, where the query says it."""
    assert query.work is not None
    each = jnp.sum(query.work.samples, axis=1)
    return (
        each
        if query.workers is None
        else jnp.zeros_like(each).at[query.workers].set(each[query.workers])
    )


def _weighed(problem: Problem, query: Asked, tree: PyTree, N: int) -> PyTree:
    """Rows of those that the query names, times their weights."""
    if problem.weights is None:
        return tree
    weights = jnp.asarray(problem.weights, jnp.result_type(float))
    return units.scaled(
        workers.own(weights, N) if query.workers is None else weights[query.workers], tree
    )


def _counted(work: Work) -> jax.Array:
    """Samples that have a weight, `[N, M]`."""
    return jnp.where(work.weights > 0, work.samples, 0)


def _asked(
    function: Callable,
    problem: Problem,
    query: Asked,
    key: jax.Array,
    data: PyTree,
    N: int,
    batches: PyTree,
) -> tuple[Any, PyTree]:
    """`function`, which gives a pair (loss or None, gradient), of each worker's model and batch.
    With work, gradients are summed with their weights, and losses over the samples that count."""
    if query.exact and batches is not None:
        raise ValueError(
            "a method that asks for exact gradients, with batches from outside: need a method on "
            "batches"
        )
    if query.draws is not None and batches is not None:
        raise ValueError(
            "a method that draws batches once more, with batches from outside: need those that "
            "the problem draws"
        )
    if problem.numbered and query.draws is None and batches is None and not query.exact:
        raise ValueError(
            f"{problem.name}: its batches are numbered, but the query has no draws; expected "
            "Asked(draws=int32 [N])"
        )
    data = pooled.of_block(data) if batches is None else data
    ids = workers.ids(N) if query.workers is None else query.workers
    here, places = (None, None) if query.workers is None else workers.find(ids, N)
    block = _Block(function, problem, query, key, data, batches, ids, places)
    if query.work is not None:
        computed = _of_work(block, query.work, N)
    else:
        computed = block.exact() if query.exact else block.compute(None, None, None)
    return computed if here is None else workers.select(here, computed)


def _of_work(block: _Block, work: Work, N: int) -> tuple[Any, PyTree]:
    """What is computed of all micro-batches of each worker, as `_asked` returns it."""
    # numpy's take no traced index
    factors = tuple(map(jnp.asarray, (work.samples, _counted(work), work.weights)))
    samples, *factors = (
        workers.own(each, N) if block.places is None else each[block.ids] for each in factors
    )
    if block.query.exact:
        totals = tuple(jnp.sum(jnp.where(samples > 0, each, 0), axis=1) for each in factors)
        return jax.tree.map(units.scaled, totals, block.exact())
    M = samples.shape[1]
    parts, keys = _split(block.problem, block.batches, M), of_turns(block.key, M)
    turns = jnp.cumsum(work.samples > 0, axis=1, dtype=jnp.int32) - 1
    return units.summed(
        replace(block, parts=parts, keys=keys, turns=turns).compute, samples, tuple(factors)
    )


@dataclass(frozen=True, eq=False)  # compared by identity: its arrays have no hash
class _Block:
    """The workers of a block that a query asks, and what they compute. In its methods `rows` are
    indices of them, int32 `[g]`, None: all; `m` are the indices of their micro-batches, int32
    `[g]`, None: the first.

    Args:
        function: (params, batch) -> what is computed of one worker.
        problem, query, key: as in `gradients`.
        data: the block's data, a pool flat.
        batches: the block's batches from outside; None: they are drawn from the data.
        ids: the workers' ids.
        places: their rows in the block; None: they are all of it.
        parts: `batches` as micro-batches, leaves `[n, M, ...]`.
        keys: the round's keys of its micro-batches, `[M]`.
        turns: of each micro-batch its place among its worker's draws in this round, int32 `[N, M]`.
    """

    function: Callable
    problem: Problem
    query: Asked
    key: jax.Array
    data: PyTree
    batches: PyTree
    ids: jax.Array
    places: jax.Array | None
    parts: PyTree = None
    keys: Any = None
    turns: Any = None

    def compute(
        self, rows: jax.Array | None, m: jax.Array | None, samples: jax.Array | None
    ) -> PyTree:
        """What `units.summed` sums.

        Args:
            rows, m: as above.
            samples: of each micro-batch, int32 `[g]`; None: all of the batch.
        """
        batch = self._batch(rows, m)
        if samples is not None and self.problem.take is not None:
            with protocol.noted(f"take of {self.problem.name}"):
                batch = jax.vmap(self.problem.take)(batch, samples)
        return self._at_models(rows, batch)

    def exact(self) -> PyTree:
        """What is computed of all data; of pools piece by piece, so that no worker computes as many
        rows as the one with the most.
        """
        if not isinstance(self.data, pooled.Pooled):
            return self.compute(None, None, None)

        def of_piece(rows, m, samples):
            mine = self._rows(self.data, rows)
            m = jnp.zeros_like(samples) if m is None else m
            return self._at_models(
                rows, jax.vmap(pooled.piece_of, (pooled.axes(self.data), 0, 0))(mine, m, samples)
            )

        mine = self._rows(self.data, None)
        samples = pooled.pieces(mine)
        shares = samples / mine.size[:, None].astype(jnp.result_type(float))
        return units.summed(of_piece, samples, (shares, shares))

    def _rows(self, tree: PyTree, rows: jax.Array | None) -> PyTree:
        """Of the block's leaves, those of these workers."""
        at = self.places if rows is None else (rows if self.places is None else self.places[rows])
        return pooled.of_rows(tree, at)

    def _at_models(self, rows: jax.Array | None, batch: PyTree) -> PyTree:
        params, axis = self.query.params, self.query.axis
        return jax.vmap(self.function, (axis, 0))(
            params if axis is None else self._rows(params, rows), batch
        )

    def _batch(self, rows: jax.Array | None, m: jax.Array | None) -> PyTree:
        if self.query.exact:
            return self._rows(self.data, rows)
        if self.batches is not None:
            return self._given(rows, m)
        mine, problem = self._rows(self.data, rows), self.problem
        if not problem.numbered:
            with protocol.noted(f"sample of {problem.name}"):
                return jax.vmap(problem.sample, (0, pooled.axes(self.data)))(
                    self._keys(rows, m), mine
                )
        ids = self._ids(rows)
        numbers = jnp.asarray(self.query.draws)[ids] + (0 if m is None else self.turns[ids, m])
        streams = jax.vmap(partial(jax.random.fold_in, self.key))(ids)
        with protocol.noted(f"sample of {problem.name}"):
            return jax.vmap(problem.sample, (0, pooled.axes(self.data), 0))(streams, mine, numbers)

    def _given(self, rows: jax.Array | None, m: jax.Array | None) -> PyTree:
        """Micro-batches from outside."""
        if m is None:
            batch = self._rows(self.batches, rows)
        else:
            batch = jax.tree.map(
                lambda leaf: leaf[jnp.arange(len(m)), m], self._rows(self.parts, rows)
            )
        return (
            jax.vmap(self.problem.keyed)(self._keys(rows, m), batch)
            if self.problem.keyed
            else batch
        )

    def _ids(self, rows: jax.Array | None) -> jax.Array:
        return self.ids if rows is None else self.ids[rows]

    def _keys(self, rows: jax.Array | None, m: jax.Array | None) -> jax.Array:
        """With which the workers draw, as in `gradients`."""
        ids = self._ids(rows)
        if self.query.draws is not None:
            of_draws = jax.vmap(partial(jax.random.fold_in, self.key))(
                jnp.asarray(self.query.draws)[ids] + (0 if m is None else m)
            )
            return jax.vmap(jax.random.fold_in)(of_draws, ids)
        return (
            jax.vmap(partial(jax.random.fold_in, self.key))(ids)
            if m is None
            else jax.vmap(jax.random.fold_in)(self.keys[m], ids)
        )


def of_turns(key: jax.Array, M: int) -> jax.Array:
    """The round's keys of its micro-batches, `[M]`."""
    later = jax.vmap(partial(jax.random.fold_in, key))(
        np.uint32(_LATER) + np.arange(1, M, dtype=np.uint32)
    )
    return jnp.concatenate([key[None], later])


def _split(problem: Problem, batches: PyTree, M: int) -> PyTree:
    """Batches from outside, leaves `[n, m, ...]`, as M micro-batches, `[n, M, m / M, ...]`."""
    whole = None if problem.take is None or problem.batch_size is None else M * problem.batch_size

    def split(leaf):
        length = leaf.shape[1] if leaf.ndim > 1 else None
        if (M > 1 and (length is None or length % M)) or (whole and length not in (None, whole)):
            needed = (
                f"a multiple of {M}"
                if whole is None
                else f"{whole} ({M} x batch_size = {problem.batch_size})"
            )
            raise ValueError(
                f"batches: {length or 'no'} samples a worker, for {M} micro-batches of "
                f"{problem.name}; need {needed}"
            )
        return (
            leaf if length is None else leaf.reshape(leaf.shape[0], M, length // M, *leaf.shape[2:])
        )

    return jax.tree.map(split, batches)


def with_loss(problem: Problem) -> Callable:
    """(params, batch) -> the batch's loss, and its gradient."""
    loss, slope = protocol.loss(problem), _gradient(problem)

    def both(params, batch):
        return loss(params, batch), slope(params, batch)

    return both if problem.gradient else jax.value_and_grad(loss)


@dataclass(frozen=True)
class _Scaled:
    """A loss or gradient of (params, batch), times a worker's weight."""

    function: Callable
    weight: float

    def __call__(self, params: Params, batch: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf: leaf * jnp.asarray(self.weight, leaf.dtype), self.function(params, batch)
        )


def of_worker(problem: Problem, n: int) -> Problem:
    """What worker n computes alone, on a device of its own: the functions of $w_n f_n$, hashable,
    without arrays.
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
    """(params, batch) -> a tree like the parameters: the problem's own, or that of its loss."""

    def its_own(params, batch):
        assert problem.gradient is not None
        with protocol.noted(f"gradient of {problem.name}"):
            slope = problem.gradient(params, batch)
        checks.require_same(f"{problem.name}: gradient gives a tree", slope, params)
        return slope

    return its_own if problem.gradient else jax.grad(protocol.loss(problem))


def mean_loss(
    loss: Callable, params: Params, data: PyTree, weights: Sequence[float] | None = None
) -> tuple[jax.Array, Params]:
    """f(params), f'(params) with f = (1/N) sum_n w_n loss(., data[n]), the same on every device: of
    as many workers at a time as fit.
    """

    def block(params, rows, counted):
        data, factors = rows
        losses = jax.vmap(loss, (None, 0))(params, data)
        losses = losses if factors is None else units.scaled(factors, losses)
        return jnp.sum(jnp.where(counted, losses, 0)) / n

    n = jax.tree.leaves(data)[0].shape[0]
    factors = (
        None
        if weights is None
        else workers.own(jnp.asarray(weights, jnp.result_type(float)), len(weights))
    )
    rows = (data, factors)
    both = jax.jit(jax.value_and_grad(block), inline=True)  # traced once where all fit
    return workers.mean_over_devices(
        accumulate.total(both, params, rows, accumulate.fitting(both, params, rows))
    )


def evaluate(
    problem: Problem, params: Params, data: PyTree, shared: PyTree
) -> tuple[dict[str, jax.Array], Params | None]:
    """Scalars by name, with "loss" = f(params), and f' in what is trained, or None, the same on
    every device; params are all of them.
    """
    if problem.statistics is not None:
        params = problem.statistics(params, data)
    trained, fixed = leaves.split(leaves.flags(problem), params)
    if problem.evaluation.function is not None:
        given = _evaluated(problem, params, data, shared)
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Mapping)):
            raise ValueError(
                f"{problem.name}: evaluate gives {checks.typed(given)}; need a pair (scalars by "
                "name, gradient or None)"
            )
        scalars, slope = given
        if "loss" not in scalars or RESERVED & set(scalars):
            raise ValueError(
                f"{problem.name}: evaluate gives {sorted(scalars)}; need 'loss', and none of "
                f"{sorted(RESERVED)}"
            )
        for name, value in scalars.items():
            checks.require_scalar(f"{problem.name}: evaluate gives {name!r}", value)
        if slope is not None:
            slope = leaves.trained_part(problem, slope)
            checks.require_same(f"{problem.name}: evaluate gives a slope", slope, trained)
        return scalars, slope
    if isinstance(data, pooled.Pooled):
        value, slope = _mean_of_pool(leaves.bound(problem, fixed), trained, data)
    else:
        value, slope = mean_loss(
            protocol.loss(leaves.bound(problem, fixed)), trained, data, problem.weights
        )
    return {"loss": value}, slope


def _mean_of_pool(
    problem: Problem, params: Params, data: pooled.Pooled
) -> tuple[jax.Array, Params]:
    """f(params), f'(params) of a pool, the same on every device."""
    n = data.size.shape[0]
    N = n * workers.devices()
    query, both = Asked(params, exact=True), jax.value_and_grad(protocol.loss(problem))
    both = _asked(both, problem, query, jax.random.key(0), data, N, None)
    rows = _weighed(problem, query, both, N)
    return workers.mean_over_devices(jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / n, rows))


@lru_cache(maxsize=64)
def _reads_weights(evaluate_and_weights: sameness.Key) -> list[bool]:
    """Empty until it has read them: a function that is jitted itself is not traced again."""
    return []


def _evaluated(problem: Problem, params: Params, data: PyTree, shared: PyTree) -> Any:
    function = problem.evaluation.function
    assert function is not None
    with (
        workers.weighted(problem.weights) as weights,
        protocol.noted(f"evaluate of {problem.name}"),
    ):
        given = function(params, data, shared)
    if weights is None:
        return given
    known = _reads_weights(sameness.Key((function, weights.numbers)))
    if weights.read:
        known.append(True)
    if not known:
        raise ValueError(
            f"{problem.name}: the problem has weights, but its evaluate gives f without them; "
            "take workers.mean over the workers' losses in"
            " evaluate, or read workers.weights(); or pass evaluate=None, which evaluates the "
            "weighted mean of loss"
        )
    return given
