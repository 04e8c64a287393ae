r"""What a batch is of: workers have unequally many samples, and what fills up their tables is neither drawn nor counted.

Of a worker with m samples, in a table of M >= m rows:

- with replacement, each of B draws is any of the m with probability 1/m;
- without, all B are different ($B \le m$), and each of the m is among them with probability B/m; for B = m that is all of them;
- a loss over all rows is the mean over the m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd.problems.examples import Examples, Minibatch, pad
from dsgd.problems.finite_sum import MeanLoss
from theory_checks.machinery.statement import Draws, Outcome, Statement

_ROWS, _BATCH, _DRAWS = 8, 3, 4096
_PADDING = -1.0  # what is in the rows that are nobody's sample


def table(sizes: Sequence[int]) -> Examples:
    """Workers whose samples are numbered, `[workers, 8]`."""
    ids = np.tile(np.arange(float(_ROWS)), (len(sizes), 1))
    real = ids < np.asarray(sizes)[:, None]
    return Examples(jnp.asarray(np.where(real, ids, _PADDING)), jnp.zeros(ids.shape, jnp.int32), jnp.asarray(real.astype(float)))


@partial(jax.jit, static_argnames="sample")
def _drawn(sample: Minibatch, key: jax.Array, workers: Examples) -> jax.Array:
    """The numbers in many batches of each worker, `[workers, draws, B]`."""

    def of(key, mine):
        return jax.vmap(lambda key: sample(key, mine).inputs)(jax.random.split(key, _DRAWS))

    return jax.vmap(of)(jax.random.split(key, workers.weights.shape[0]), workers)


def batches(draws: Draws) -> list[Outcome]:
    """Three workers of 3 to 8 samples."""
    sizes = [draws.integer(_BATCH, _ROWS) for _ in range(3)]
    return of_sizes(sizes, Minibatch(_BATCH, replacement=draws.choice((True, False))), draws.integer(0, 2**31 - 1))


def of_sizes(sizes: Sequence[int], sample: Minibatch, seed: int = 0) -> list[Outcome]:
    """Padding in batches, samples twice in a batch, and the sample that is drawn too often or too seldom."""
    drawn = np.asarray(_drawn(sample, jax.random.key(seed), table(sizes)))
    name = f"{'with' if sample.replacement else 'without'} replacement, {tuple(sizes)} samples"
    found = [Outcome(float((drawn == _PADDING).sum()), 0.0, case=f"{name}: padding", equality=True)]
    if not sample.replacement:
        twice = (np.diff(np.sort(drawn, axis=-1), axis=-1) == 0).sum()
        found.append(Outcome(float(twice), 0.0, case=f"{name}: twice in a batch", equality=True))
    for m, of_worker in zip(sizes, drawn, strict=True):
        times = np.stack([(of_worker == i).sum(axis=1) for i in range(m)], axis=1)
        # In each batch: binomial with replacement; without, there or not.
        variance = _BATCH / m * (1 - (1 / m if sample.replacement else _BATCH / m))
        error = math.sqrt(variance / _DRAWS)
        outcomes = [Outcome(float(share), _BATCH / m, error, f"{name}: each of {m}", equality=True) for share in times.mean(axis=0)]
        found.append(max(outcomes, key=lambda outcome: outcome.badness))
    return found


@partial(jax.jit, static_argnames="loss")
def _loss(loss, params, mine):
    return loss(params, mine)


_CLASSES, _FEATURES = 3, 2


def _apply(params: jax.Array, inputs: jax.Array) -> jax.Array:
    return inputs @ params


LOSS = MeanLoss(_apply, optax.softmax_cross_entropy_with_integer_labels, 0.1)


def counted(draws: Draws) -> list[Outcome]:
    """A worker with random samples, fewer than another one."""
    return of_loss(draws.integer(1, _ROWS - 1), np.random.default_rng(draws.integer(0, 2**32 - 1)))


def of_loss(m: int, rng: np.random.Generator, loss: Callable = LOSS, pad: Callable[..., Examples] = pad) -> list[Outcome]:
    """The mean over m samples, written down once more, beside that of the table."""
    inputs, targets = rng.normal(size=(m + _ROWS, _FEATURES)), rng.integers(_CLASSES, size=m + _ROWS)
    params = rng.normal(size=(_FEATURES, _CLASSES))
    mine = jax.tree.map(lambda leaf: leaf[0], pad(inputs, targets, [np.arange(m), m + np.arange(_ROWS)]))
    logits = inputs[:m] @ params
    right = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(m), targets[:m]]) + 0.05 * (params**2).sum()
    return [
        Outcome(float(_loss(loss, jnp.asarray(params), mine)), float(right), case=f"{m} samples of {_ROWS} rows", equality=True, scale=1.0)
    ]


STATEMENTS = [
    Statement(
        "a batch has no padding",
        "section 1.2.3",
        "unequal workers, every sample equally likely",
        batches,
        [partial(of_sizes, (_BATCH, 5, _ROWS), Minibatch(_BATCH, replacement)) for replacement in (True, False)],
    ),
    Statement("padding has no loss", "(5.1)", "unequal workers", counted),
]
