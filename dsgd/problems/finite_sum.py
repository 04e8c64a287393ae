"""Empirical risks: worker n's objective is the mean loss of a model over its own samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import causes, checks, modes, sameness, workers
from dsgd.base import Evaluation, Problem, PyTree, Regularizer, Sampler
from dsgd.engine import accumulate, columns, leaves, pooled
from dsgd.engine.client_pool import ClientPool
from dsgd.engine.pooled import Pooled
from dsgd.machines import agreement
from dsgd.machines.arrays import own
from dsgd.problems import targets as meaning
from dsgd.problems.adapters import Network, adapt
from dsgd.problems.averages import Statistics, Training, counted_rows
from dsgd.problems.blocks import ByWorker, Loaded
from dsgd.problems.examples import (
    EPOCH,
    Examples,
    Keyed,
    Streamed,
    arrays,
    minibatch,
    one,
    stack,
    to_device,
    with_keys,
)
from dsgd.problems.partition import (
    BY_CLASS,
    partition_name,
    partition_options,
    require_parts,
    split,
)
from dsgd.problems.regularizers import SmoothRegularizer, regularized, require_value

PerSample = Callable[[PyTree, PyTree], jax.Array]  # (outputs, targets) -> [m, ...]
WEIGHTS = ("equal", "samples")
_MOST_EVALUATED = 1 << 15  # of a worker; the squares of such numbers fit int32
Metrics = tuple[tuple[str, PerSample], ...]

# The functions of a problem are frozen dataclasses with `__call__` that are equal if their fields
# are, so that the same problem built twice is compiled once.


@dataclass(frozen=True, eq=False)
class MeanLoss(sameness.Compared):
    r"""(params, batch) -> $\sum_i w_i \ell_i / \sum_i w_i + \frac{l_2}{2} |x|^2 + r(x)$ over the
    batch's samples with weights w.

    Args:
        apply: as in `Model`.
        per_sample: (outputs, targets) -> losses `[m, ...]`; further axes are averaged.
        l2: weight of the squared norm.
        chunk_size: number of samples whose losses are computed at a time, which bounds the memory
            of a gradient; None: all.
        training: how the model differs in training mode, which is used for batches with a key;
            None: it does not differ. In exact gradients, which have no key, dropout is off, and
            batch norm uses the statistics of the samples that are computed at a time.
        trained: which leaves of the parameters are trained and therefore part of the norm and of
            r; None: all.
        regularizer: r; None: 0.
    """

    apply: Callable[[PyTree, PyTree], PyTree]
    per_sample: PerSample
    l2: float = 0.0
    chunk_size: int | None = None
    training: Training | None = None
    trained: tuple[bool, ...] | None = None
    regularizer: SmoothRegularizer | None = None

    def __call__(self, params: PyTree, batch: Examples | PyTree) -> jax.Array:
        if not isinstance(batch, Examples):
            raise ValueError(
                f"loss of finite_sum: batch is a {type(batch).__name__}; expected "
                "problems.Examples(inputs, targets, weights)"
            )
        return self.mean_over_samples(params, batch) + self.penalty(self.split(params)[0])

    def mean_over_samples(self, params: PyTree, batch: Examples) -> jax.Array:
        """Returns the mean loss of the batch in training mode, without the penalty."""
        if self.training is None:
            losses = accumulate.total(self.total, params, batch, self.chunk_size)
        else:
            # Batch norm needs the statistics of the whole batch, so the batch must not be split.
            whole = isinstance(batch.key, jax.Array)
            in_training = partial(self.total, key=batch.key)
            losses = accumulate.total(
                in_training, params, batch._replace(key=()), None if whole else self.chunk_size
            )
        return losses / jnp.sum(batch.weights)

    def total(
        self, params: PyTree, batch: Examples, counted: jax.Array, key: Any = None
    ) -> jax.Array:
        """Returns the weighted sum of the losses of the samples marked in `counted`, bool `[m]`. If
        `key` is a key or (), the model is in training mode; None: in evaluation mode.
        """
        outputs = (
            self.apply(params, batch.inputs)
            if key is None
            else self._training_outputs(params, batch, key)
        )
        losses = sample_means(self.per_sample(outputs, batch.targets))
        return jnp.sum(losses * jnp.where(counted, batch.weights, 0))

    def outputs(self, params: PyTree, batch: Examples) -> PyTree:
        """Returns the model's outputs in evaluation mode, for messages."""
        return self.apply(params, batch.inputs)

    def _training_outputs(self, params: PyTree, batch: Examples, key: Any) -> PyTree:
        assert self.training is not None
        if self.training.random and not isinstance(key, jax.Array):
            if any(self.training.averages):
                raise ValueError(
                    "the exact gradient of a model with batch norm and dropout is not a mean "
                    "over the samples; expected a method that draws batches, such as "
                    "minibatch_sgd"
                )
            return self.apply(params, batch.inputs)
        inputs = counted_rows(batch) if any(self.training.averages) else batch.inputs
        return self.training.apply(params, inputs, key if self.training.random else None)[0]

    def total_and_slope(
        self, params: PyTree, batch: Examples, counted: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Returns `total` and its gradient with respect to the trained leaves."""
        trained, fixed = self.split(params)

        def sum_of_losses(trained: PyTree) -> jax.Array:
            return self.total(
                leaves.merge(self.trained or (), params, trained, fixed), batch, counted
            )

        return jax.value_and_grad(sum_of_losses)(trained)

    def split(self, params: PyTree) -> tuple[PyTree, tuple[Any, ...]]:
        """Returns the trained part of the parameters, and the other leaves."""
        return leaves.split(self.trained, params) if self.trained else (params, ())

    @property
    def has_penalty(self) -> bool:
        """Whether there is a term that does not depend on samples."""
        return bool(self.l2) or self.regularizer is not None

    def penalty(self, trained: PyTree) -> jax.Array | float:
        """Returns the terms that do not depend on samples."""
        r = 0.0 if self.regularizer is None else self.regularizer.value(trained)
        if not self.l2:
            return r
        return r + 0.5 * self.l2 * optax.tree.norm(workers.widen(trained), squared=True)


@dataclass(frozen=True, eq=False)
class LossAndMetrics(sameness.Compared):
    """(params, data block, test set) -> (the loss and the means of the metrics over the test set,
    the gradient). It is computed in pieces of `chunk_size` samples.

    Args:
        loss: the loss of a batch.
        metrics: names and functions, (outputs, targets) -> `[m, ...]`.
        chunk_size: number of samples in a piece.
        of_worker: number of samples of each worker that are evaluated; None: all.
        given: whether the test set is a pair (samples that are evaluated in place of the data, test
            set).
    """

    loss: MeanLoss
    metrics: Metrics
    chunk_size: int
    of_worker: int | None = None
    given: bool = False

    def __call__(
        self, params: PyTree, data: Examples | Pooled, test: Any
    ) -> tuple[dict[str, jax.Array], PyTree]:
        if self.given:
            workers.weights()  # the samples have them
            rows, _ = test
        else:
            block = pooled.block_data(data)
            rows = _rows(
                block if self.of_worker is None else _space_evenly(block, self.of_worker), _shares
            )
        of_piece = self.loss.total_and_slope
        if 0 in (workers.weights() or ()):
            of_piece = accumulate.skip_zero_weights(of_piece, lambda piece: piece.weights)
        summed = accumulate.total(of_piece, params, rows, self.chunk_size)
        value, slope = workers.mean_over_devices(summed)
        if self.loss.has_penalty:
            penalty = jax.value_and_grad(self.loss.penalty)(self.loss.split(params)[0])
            value, slope = jax.tree.map(jnp.add, (value, slope), penalty)
        return {"loss": value, **self.test_means(params, test)}, slope

    def test_means(self, params: PyTree, test: Any) -> dict[str, jax.Array]:
        """Returns the means of the metrics over the test set; nothing if there is none."""
        if self.given:
            _, test = test
        if not isinstance(test, Examples):
            return {}

        def sums_of_piece(params, piece, counted):
            outputs = self.loss.apply(params, piece.inputs)
            weights = jnp.where(counted, piece.weights, 0)
            return {
                name: jnp.sum(sample_means(metric(outputs, piece.targets)) * weights)
                for name, metric in self.metrics
            }

        summed = accumulate.total(sums_of_piece, params, test, self.chunk_size)
        return jax.tree.map(lambda value: value / len(test.weights), summed)


def _shares(sizes: jax.Array) -> jax.Array:
    """Returns the weight of a single sample of each of the block's workers in f, `[n]`, given their
    numbers of samples.
    """
    shares = 1 / (len(sizes) * sizes)
    if by := workers.weights():
        shares = shares * workers.local_block(jnp.asarray(by, shares.dtype), len(by))
    return shares


def _rows(
    data: Examples | Pooled, shares: Callable[[jax.Array], jax.Array] = jnp.ones_like
) -> Examples:
    """Returns the samples of all workers, leaves `[rows, ...]`, weighted by a function of their
    worker's number of samples; padding has weight 0.
    """
    if isinstance(data, Pooled):
        owner, real = pooled.owners(data)
        weights = jnp.where(real, shares(data.size.astype(jnp.result_type(float)))[owner], 0)
        return Examples(data.inputs, data.targets, weights)
    each = data.weights * shares(jnp.sum(data.weights, axis=1))[:, None]
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), data._replace(weights=each))


def _space_evenly(data: Examples | Pooled, count: int) -> Examples:
    """Returns `count` evenly spaced samples of each of the block's workers, leaves `[n, count,
    ...]`. A worker with fewer samples has all of them, and padding of weight 0.
    """
    sizes = data.size if isinstance(data, Pooled) else jnp.sum(data.weights > 0, axis=1)
    sizes = sizes.astype(jnp.int32)[:, None]
    kept, places = jnp.minimum(sizes, count), jnp.arange(count, dtype=jnp.int32)[None]
    quotient, remainder = jnp.divmod(sizes, kept)
    real = places < kept
    # places * sizes // kept, without a product that overflows
    at = jnp.where(real, places * quotient + places * remainder // kept, 0)
    weights = real.astype(jnp.result_type(float))
    if isinstance(data, Pooled):
        return data.batch(data.offset[:, None] + at, weights)
    of = jnp.arange(len(sizes))[:, None]
    return jax.tree.map(lambda leaf: leaf[of, at], data)._replace(weights=weights)


def right(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Whether the largest logit, `[m, classes]`, is that of the target, bool `[m]`. The mean is the
    accuracy.
    """
    return jnp.argmax(logits, axis=-1) == targets


def sample_means(values: jax.Array) -> jax.Array:
    """Returns means over all axes but the first: `[m, ...]` to floating-point `[m]`."""
    values = values.astype(modes.wide_type(values.dtype))
    return jnp.mean(values, axis=tuple(range(1, values.ndim))) if values.ndim > 1 else values


@checks.arguments
def finite_sum(
    model: Any,
    loss: Callable[[PyTree, PyTree], jax.Array],
    data: Annotated[Sequence[Any] | ByWorker, "a pair (inputs, targets), or problems.ByWorker"],
    workers: int = 16,
    partition: str | Sequence[Any] = "iid",
    *,
    alpha: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    similarity: float | None = None,
    min_samples: int = 1,
    weights: str | Sequence[float] | np.ndarray = "equal",
    batch_size: int | None = 16,
    replacement: bool | Literal["epoch"] = True,
    l2: float = 0.0,
    regularizer: Regularizer | SmoothRegularizer | None = None,
    seed: int = 0,
    test: Annotated[tuple[Any, Any] | None, "a pair (inputs, targets), or None"] = None,
    metrics: dict[str, Callable[..., Any]] | None = None,
    trainable: Any = None,
    chunk: int | None = None,
    evaluation_size: int | None = None,
    name: str = "finite_sum",
) -> Problem:
    r"""Returns an empirical risk: $f = \frac1N \sum_n w_n f_n$ with $f_n(x) = \frac1{m_n} \sum_i
    \ell(h_x(a_i), y_i) + \frac{l_2}{2} |x|^2$ over worker n's $m_n$ samples.

    Args:
        model: h: a flax linen module, whose parameters are drawn by each seed of a run; an nnx
            module, whose parameters are the start for all seeds; a function from `nnx.Rngs` to an
            nnx module, which is called for each seed; or a `problems.Model(init, apply)`.
        loss: (outputs, targets) -> the loss of each sample, `[m, ...]`, as in optax; further axes,
            such as those of a sequence, are averaged.
        data: (inputs, targets), each a pytree of arrays `[M, ...]`; targets are () if the loss
            needs none. Real numbers are converted to JAX's default float type, integers are not
            converted. Inputs that are scipy.sparse matrices are passed to the model as
            `problems.SparseRows`, or as dense arrays if these take little memory; `inputs @ kernel`
            works for both. Or `problems.ByWorker(load)`: a function loads the data of each worker,
            on the processes that need them only; `partition` is then ignored.
        workers: N.
        partition: a name, see `dsgd.problems.split` ("iid", "blocks", "by-label", "dirichlet",
            "dirichlet-sizes", "classes", "shards", "similarity"; partitions by class need classes
            `[M]` as targets); or N arrays with the indices of each worker's samples.
        alpha, classes, shards, similarity, min_samples: options of partitions, as in
            `dsgd.problems.split`.
        weights: w. "equal": all are 1, as in (5.1); "samples": $w_n = N m_n / M$, so that f is the
            mean over all M samples; or N numbers, at least 0, which are divided by their mean. The
            objective, the gradients and the averages of models use them (`dsgd.Problem`). In
            decentralized methods, an optimizer that divides by the size of the gradient on each
            worker (Adam) cancels the weights; runs warn of it.
        batch_size: B, the number of samples that each worker draws in a round; None: all of its
            samples, so that gradients are exact, whatever `replacement`.
        replacement: whether batches are drawn with replacement. Without replacement, the batch of a
            worker with m < B samples has all m, and its mean is over those. "epoch": each worker
            passes through its samples in random order, again and again, in batches of min(B, m);
            see `dsgd.problems.minibatch`.
        l2: weight of the squared norm.
        regularizer: a function that is added to f: a smooth one, such as `nonconvex(0.1)`, is part
            of every $f_n$; with one that has a proximal step, such as `l1(0.01)`, the problem is
            `regularized(problem, regularizer)`. None: 0.
        seed: seed of the partition.
        test: (inputs, targets) of a test set.
        metrics: name -> function (outputs, targets) -> values of the samples, `[m, ...]`. The
            history records their means over `test`.
        trainable: which leaves of the parameters are trained: a tree of bools that is a prefix of
            the parameters, like optax's masks, or a function from the parameters to such a tree;
            None: all. Gradients, messages, bits and the norm contain these leaves only. The others,
            and integers in any case, keep the values of `init`.
        chunk: number of samples that are evaluated at a time, on each device and for each run;
            None: as many as need about a quarter of a gigabyte. An exact gradient takes chunk / N
            samples of each worker at a time; a batch is never split.
        evaluation_size: number of samples of all workers together on which the history's loss and
            `grad_sqnorm` are evaluated, and of the test set on which the metrics are, if this is
            too expensive on all samples. Each worker contributes the same number (rounded up, or
            all that it has), evenly spaced and the same in all records. None: all samples.
        name: name in tables and error messages.

    Raises:
        ValueError: if the data do not fit together or are not finite; if the model is none of
            these, or `adapters.adapt` rejects it; if the losses or metrics are not those of single
            samples; if targets are outside the classes or probabilities that the loss expects; if a
            worker has fewer than `min_samples` samples; if `evaluation_size` is less than 1 or more
            than 32,768 N; if an index is outside the data; if the
            weights are none of these; if l2 < 0; or if only one of `metrics` and `test` is given.
    """
    numbers = {
        "batch_size": 1 if batch_size is None else batch_size,
        "workers": workers,
        "min_samples": min_samples,
        "chunk": 1 if chunk is None else chunk,
        "evaluation_size": 1 if evaluation_size is None else evaluation_size,
    }
    for what, number in numbers.items():
        checks.positive_int(f"{name}: {what}", number)
    if not 0 <= l2 < np.inf:
        raise ValueError(f"{name}: l2 = {l2}; expected a finite number >= 0")
    if isinstance(data, ByWorker):
        loaded = data.load_workers(workers)
    else:
        options = {"alpha": alpha, "classes": classes, "shards": shards, "similarity": similarity}
        loaded = _load(data, workers, partition, options, seed, min_samples)
    examples, sizes, some, evaluated = loaded
    _require_samples(name, sizes, min_samples)
    if batch_size is None:
        batch_size, replacement = max(sizes), False
    if replacement == EPOCH and max(sizes) * batch_size >= 1 << 32:
        raise ValueError(
            f"{name}: epochs of {max(sizes)} samples in batches of {batch_size}; expected a "
            "product below 2^32"
        )
    of_worker = _evaluated_of_worker(name, evaluation_size, workers, max(sizes))
    shared = _held_out(test, metrics, some, evaluation_size)
    weights_of_workers = _weights(name, weights, sizes)
    rows = (
        jax.eval_shape(
            lambda data: _rows(pooled.flatten(data) if isinstance(data, Pooled) else data), examples
        )
        if evaluated is None
        else evaluated.rows(weights_of_workers)
    )
    functions, measured = adapt(model, rows.inputs), tuple((metrics or {}).items())
    params, trained = _parameters(name, functions, trainable)
    smooth = regularizer if isinstance(regularizer, SmoothRegularizer) else None
    mean = MeanLoss(
        functions.apply,
        loss,
        l2,
        training=functions.training,
        trained=trained,
        regularizer=smooth,
    )
    require_per_sample(name, mean, measured, params, rows)
    outputs = jax.eval_shape(
        partial(functions.apply), params, accumulate.row_shapes(rows.inputs, 1)
    )
    _require_meaning(name, loss, measured, outputs, rows if evaluated else examples, shared)
    if isinstance(examples, ClientPool) and examples.source:
        examples.source.refusal = partial(meaning.refusal_of_loss, loss, outputs)
    chunk_size = chunk or accumulate.chunk_size(mean.total_and_slope, params, rows)
    piece = max(batch_size, chunk_size // workers)
    mean = replace(mean, chunk_size=piece)
    sampler = replace(
        with_sizes(minibatch(batch_size, replacement), sizes),
        read=Streamed((one(rows.inputs), one(rows.targets))),
        batch_error=meaning.OfBatches(loss, outputs)
        if isinstance(outputs, jax.ShapeDtypeStruct)
        else None,
    )
    problem = Problem(
        init=replace(functions.parameters, trainable=leaves.Flags(trained)),
        loss=mean,
        data=with_pieces(examples, sizes, piece),
        sample=with_keys(sampler) if functions.training else sampler,
        evaluate=Evaluation(
            LossAndMetrics(mean, measured, chunk_size, of_worker, evaluated is not None),
            shared if evaluated is None else (rows, shared),
            _statistics(functions.training, batch_size, replacement),
        ),
        weights=weights_of_workers,
        name=name if smooth is None else f"{name} + {smooth.name}",
    )
    if smooth is not None:
        require_value(name, problem, smooth)
    return regularized(problem, regularizer) if isinstance(regularizer, Regularizer) else problem


def with_sizes(sampler: Sampler, sizes: Sequence[int]) -> Sampler:
    """Returns a sampler of mini-batches for workers with these numbers of samples."""
    assert sampler.batch_size is not None
    draw = sampler.draw.sample if isinstance(sampler.draw, Keyed) else sampler.draw
    # With replacement, a batch has B samples even if a worker has fewer.
    replacement = getattr(draw, "replacement", True)
    whole = replacement != EPOCH and bool(replacement)
    return replace(
        sampler,
        local_samples=tuple(sizes),
        batch_sizes=None
        if whole or min(sizes) >= sampler.batch_size
        else tuple(min(sampler.batch_size, size) for size in sizes),
    )


def with_pieces(examples: Examples | Pooled, sizes: Sequence[int], most: int) -> Examples | Pooled:
    """Returns the samples such that exact gradients of a pool's workers are computed in pieces of
    at most this many samples.
    """
    if not isinstance(examples, Pooled):
        return examples
    return replace(examples, piece=min(-(-sum(sizes) // len(sizes)), most))


def _evaluated_of_worker(name: str, size: int | None, workers: int, longest: int) -> int | None:
    """Returns the number of samples of each worker that are evaluated; None if these are all."""
    if size is None:
        return None
    count = -(-size // workers)
    if count > _MOST_EVALUATED:
        raise ValueError(
            f"{name}: evaluation_size = {size}; expected at most {_MOST_EVALUATED:,} samples of "
            f"each of the {workers} workers; pass None to evaluate on all samples"
        )
    return count if count < longest else None


def _parameters(name: str, model: Network, trainable: Any) -> tuple[PyTree, tuple[bool, ...]]:
    """Returns the shapes and types of a model's parameters, and which leaves are trained: those
    that both the model and the user select.
    """
    with causes.refuse_errors(name):
        params = leaves.init_shapes("init of the model", model.parameters.init)
    chosen = (
        leaves.trained_flags(name, params, of) for of in (model.parameters.trainable, trainable)
    )
    return params, tuple(map(all, zip(*chosen, strict=True)))


def _statistics(
    training: Training | None, batch_size: int, replacement: bool | Literal["epoch"]
) -> Statistics | None:
    """Returns the estimator of running averages, or None if the model has none. It uses batches as
    in training, without replacement in place of epochs.
    """
    if training is None or not any(training.averages):
        return None
    return Statistics(
        training,
        with_keys(minibatch(batch_size, False if replacement == EPOCH else replacement)).draw,
    )


def _load(
    data: Any,
    workers: int,
    partition: str | Sequence[Any],
    options: dict[str, Any],
    seed: int,
    least: int,
) -> Loaded:
    """Partitions the data over the workers."""
    inputs, targets = arrays("data", data)
    M = len(jax.tree.leaves(inputs)[0])
    parts = _parts(targets, M, workers, partition, options, seed, least)
    return Loaded(stack(inputs, targets, parts), list(map(len, parts)), (inputs, targets))


def _parts(
    targets: PyTree,
    M: int,
    workers: int,
    partition: str | Sequence[Any],
    options: dict[str, Any],
    seed: int,
    least: int,
) -> list[np.ndarray]:
    """Returns the indices of each worker's samples."""
    if not isinstance(partition, str):
        partition_options(None, options)
        return require_parts(partition, M, workers)
    partition = partition_name(partition)
    classes = (
        isinstance(targets, np.ndarray)
        and targets.ndim == 1
        and np.issubdtype(targets.dtype, np.integer)
    )
    if partition in BY_CLASS and not classes:
        raise ValueError(
            f"finite_sum: partition = {partition!r}, but the targets are not classes; expected "
            f"targets as integers [{M}], or the partition 'iid', 'blocks' or 'dirichlet-sizes'"
        )
    return split(
        targets if classes else np.zeros(M, int),
        workers,
        partition,
        seed=seed,
        min_samples=least,
        **options,
    )


def _require_samples(name: str, sizes: list[int], least: int) -> None:
    smallest = int(np.argmin(sizes))
    if sizes[smallest] < least:
        raise ValueError(
            f"{name}: worker {smallest} has {sizes[smallest]} samples; expected at least "
            f"min_samples = {least} for every worker"
        )


def _weights(
    name: str, weights: str | Sequence[float] | np.ndarray, sizes: list[int]
) -> tuple[float, ...] | None:
    """Returns the weights of the workers, with mean 1; None if all are equal."""
    if isinstance(weights, str):
        if weights not in WEIGHTS:
            raise ValueError(
                f"{name}: weights = {weights!r}; expected {', '.join(map(repr, WEIGHTS))}, or "
                f"{len(sizes)} numbers"
            )
        numbers = np.array(sizes, float) if weights == "samples" else np.ones(len(sizes))
    else:
        given = np.asarray(weights) if checks.is_numeric(weights) else np.empty(0)
        numbers = given.astype(float) if given.dtype.kind in "iuf" else np.empty(0)
        if (
            numbers.shape != (len(sizes),)
            or not np.isfinite(numbers).all()
            or (numbers < 0).any()
            or not numbers.any()
        ):
            need = f"{len(sizes)} finite numbers, one for each worker, at least 0 and not all 0"
            raise ValueError(
                f"{name}: weights = {checks.show(weights)}; expected {need}, or one of "
                f"{', '.join(map(repr, WEIGHTS))}"
            )
    return None if np.ptp(numbers) == 0 else tuple((numbers / numbers.mean()).tolist())


def _held_out(
    test: tuple[Any, Any] | None,
    metrics: dict[str, Callable[..., Any]] | None,
    data: tuple[PyTree, PyTree],
    size: int | None,
) -> Examples | tuple[()]:
    """Returns the samples on which metrics are measured, at most `size` of them, evenly spaced; or
    () if there are none.
    """
    if (test is None) != (not metrics):
        raise ValueError(
            f"finite_sum: test = {checks.show(test)}, metrics = {checks.show(metrics)}; "
            "expected both, or neither"
        )
    if test is None or not metrics:
        return ()
    for metric, function in metrics.items():
        if not callable(function) or metric in columns.RESERVED | {"loss"}:
            taken = ", ".join(sorted(columns.RESERVED | {"loss"}))
            raise ValueError(
                f"finite_sum: metrics[{metric!r}] = {checks.show(function)}; expected functions "
                f"with names other than {taken}"
            )
    held_out = arrays("test", test)
    for what, given, expected in zip(("inputs", "targets"), held_out, data, strict=True):
        checks.require_same(f"test: {what} of a sample", one(given), one(expected))
    M = len(jax.tree.leaves(held_out[0])[0])
    if size is not None and size < M:
        held_out = jax.tree.map(lambda leaf: leaf[np.arange(size) * M // size], held_out)
    return to_device(*held_out)


def require_per_sample(
    name: str, loss: MeanLoss, metrics: Metrics, params: PyTree, rows: Examples
) -> None:
    """Raises a ValueError unless the losses and metrics have one value for each sample."""
    for what, function in metrics:
        checks.require_call(f"{name}: metric {what!r}", function, "outputs", "targets")

    def values(m):
        piece = accumulate.row_shapes(rows, m)
        with causes.refuse_errors(f"{name}: model"):
            outputs = jax.eval_shape(
                lambda params, inputs: leaves.require_arrays("it", loss.apply(params, inputs)),
                params,
                piece.inputs,
            )
        given = {}
        for what, function in (("loss", loss.per_sample), *metrics):
            with causes.refuse_errors(f"{name}: {what}"):
                given[what] = jax.eval_shape(
                    lambda outputs, targets, of=function: leaves.require_arrays(
                        "it", of(outputs, targets)
                    ),
                    outputs,
                    piece.targets,
                )
        return given

    # Shapes for 2 and for 3 samples are compared: outputs [m, 1] and targets [m] broadcast to
    # [m, m], which for a single m could not be distinguished from the [m, T] of sequences.
    found = [values(m) for m in (2, 3)]
    for what in found[0]:
        two, three = (value[what] for value in found)
        fits = (
            isinstance(two, jax.ShapeDtypeStruct)
            and two.shape[:1] == (2,)
            and three.shape == (3, *two.shape[1:])
        )
        if not fits or not (what != "loss" or jnp.issubdtype(two.dtype, jnp.floating)):
            given = f"{checks.kind(two)} for 2 samples, {checks.kind(three)} for 3"
            shape = "floating point [m, ...]" if what == "loss" else "[m, ...]"
            raise ValueError(
                f"{name}: {what} returned {given}; expected {shape}, one value (or row) for each "
                "sample, not their mean"
            )


def _require_meaning(
    name: str,
    loss: PerSample,
    metrics: Metrics,
    outputs: PyTree,
    data: Examples | Pooled,
    test: Examples | tuple[()],
) -> None:
    """Raises a ValueError, in all processes, if the targets are invalid for the loss or a
    metric.
    """
    # Each process checks its own workers' targets on the host, since a program on global arrays
    # would have to be run by all processes.
    on_host = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), jax.tree.map(own, data.targets)
    )
    why = next(
        filter(
            None,
            agreement.all_gather(
                f"targets of {name}", meaning.refusal_of_loss(loss, outputs, on_host)
            ),
        ),
        "",
    )
    if why:
        raise ValueError(f"{name}: {why}")
    held_out = jax.tree.map(np.asarray, test.targets) if isinstance(test, Examples) else ()
    for what, function in (("loss", loss), *metrics):
        check = meaning.refusal_of_loss if function is loss else meaning.refusal
        if why := check(function, outputs, held_out):
            raise ValueError(f"{name}: test set, {what}: {why}")
