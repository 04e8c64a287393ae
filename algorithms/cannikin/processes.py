"""Cannikin in real time: one process per node, which measures its own timings."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from algorithms import optimizers
from algorithms.cannikin import epochs as own
from algorithms.cannikin import scalings
from algorithms.cannikin.epochs import Epoch, EpochMeasurements, Limits, Training
from algorithms.cannikin.policies import System
from algorithms.optimizers import Model
from algorithms.real_workers import RealWorker
from dsgd import checks
from dsgd.base import Key, Params, Problem, PyTree
from dsgd.engine import oracle

Pull = Callable[[jax.Array], tuple[Params]]  # 1 -> (the gradient,); a pytree
_ONE_BUCKET = 1.0  # T_u / T_comm: the gradient is sent in one bucket, after the backward pass


@checks.arguments
def train_processes(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    system: System,
    *,
    epochs: int,
    key: Key,
    micro_batches: int,
    samples: int | None = None,
    limits: Limits | None = None,
    scaling: scalings.Scaling = scalings.constant,
    initial_batch: int | None = None,
    smoothing: float = 0.3,
    until: Annotated[Callable[[list[Epoch]], bool], "(epochs)"] | None = None,
) -> Training:
    r"""Mini-batch SGD in real time: each process is a node, whose local batch a system decides from
    the measurements of all nodes.

    $$ x_{t+1} = x_t - \eta \sum_i \frac{b_i}{B} \bar g_i(x_t) \quad (9) $$

    Every process of an initialized `jax.distributed` makes this call with the same arguments;
    `dsgd.run_local_processes` starts several processes on one machine. A node measures its forward
    pass including the draw of its batch and the optimizer's step (a), its backward pass (P), and
    the all-reduce, which includes waiting for the other nodes. The last node does not wait, so the
    minimum over nodes in each round is $T_{comm}$ for all of them. The gradient is sent in one
    bucket: $\gamma = 1$, $T_o = 0$. Timings are exchanged after an epoch. Programs are compiled,
    and called once, before the clock of an epoch starts. Random draws are those of
    `cannikin.train`: with the same local batches the iterates are those of its `minibatch_sgd`, up
    to the order of sums.

    Args:
        problem: with as many workers as there are processes; process n has the data of worker n.
        optimizer: the step; wrapped in `cannikin.scalable` if there is a `scaling`.
        system, epochs, key, samples, limits, scaling, initial_batch, smoothing, until: see
            `cannikin.train`. They receive the same numbers in every process, and must make the same
            decisions.
        micro_batches: M; a node may have at most M batch_size samples. A node computes its batch at
            once, in pieces of batch_size samples, of which the last one may be used in part.

    Returns:
        As `cannikin.train`, the same in all processes. Each epoch's `scalars` contain "train_loss",
        the mean over all computed samples.

    Raises:
        ValueError: see `cannikin.train`; also if the number of workers differs from the number of
            processes.

    Source: Nie et al., "Cannikin", sections 4.2 and 4.5.
    """
    decides = {
        "scaling": scaling,
        "initial_batch": initial_batch,
        "smoothing": smoothing,
        "until": until,
    }
    lengths = {
        "epochs": epochs,
        "micro_batches": micro_batches,
        "samples": samples,
        "limits": limits,
    }
    plan = own.make_plan("train_processes", problem, system, _ONE_BUCKET, **lengths, **decides)
    node = _Node(problem, optimizer, micro_batches, key)
    found = own.run_epochs(plan, node.epoch)
    return Training(found, node.model, node.model.params)


class _Own(NamedTuple):
    """A node's part of a round: what it sends, |g_n|^2, and when it began and ended its forward and
    its backward pass.
    """

    message: PyTree
    sqnorm: jax.Array
    began: float
    forward: float
    backward: float


class _Node(RealWorker):
    """This process as a node that measures its timings."""

    def __init__(
        self, problem: Problem, optimizer: optax.GradientTransformation, M: int, key: Key
    ) -> None:
        super().__init__("train_processes", problem, optimizer, key)
        self.M = M

    def epoch(self, sizes: np.ndarray, factor: float, rounds: int) -> EpochMeasurements:
        """Runs `rounds` rounds, and returns the measurements of all nodes."""
        self.model = scalings.rescale("train_processes", self.model, factor)
        seen = self.run(rounds, partial(self._compute, sizes), self._finish)
        forward, backward, communication, update, sqnorm, loss, global_sqnorm, whole = np.moveaxis(
            seen, 2, 0
        )
        least = np.broadcast_to(communication.min(axis=1, keepdims=True), communication.shape)
        scalars = {"train_loss": float(loss[:, 0].mean())}
        compute = forward + backward + update
        return EpochMeasurements(
            float(whole.sum(axis=0).max()),
            compute,
            backward,
            backward,
            least,
            sqnorm,
            global_sqnorm[:, 0],
            scalars,
        )

    def _compute(self, sizes: np.ndarray, step: int | None) -> _Own:
        began = time.monotonic()
        loss, pull = jax.block_until_ready(self._forward(int(sizes[self.n]), step or 0))
        forward = time.monotonic()
        message, sqnorm = jax.block_until_ready(
            _backward(pull, loss, np.float32(sizes[self.n] / sizes.sum()))
        )
        return _Own(message, sqnorm, began, forward, time.monotonic())

    def _finish(self, own: _Own) -> tuple[Model, list[float]]:
        """Returns the next model, the seconds of each part of the round, |g_n|^2, the loss, and
        |g|^2.
        """
        mean = self.sum(own.message)
        received = time.monotonic()
        model, loss, global_sqnorm = jax.block_until_ready(
            _update(self.optimizer, self.model, *mean)
        )
        times = [own.began, own.forward, own.backward, received, time.monotonic()]
        return model, [*np.diff(times), float(own.sqnorm), float(loss), float(global_sqnorm)]

    def _forward(self, samples: int, step: int) -> tuple[jax.Array, Pull]:
        """Returns the loss of the node's batch, and the function that computes its gradient; both
        are 0 without samples.
        """
        if not samples:
            return jnp.float32(0), Partial(
                _return_slope, jax.tree.map(jnp.zeros_like, self.model.params)
            )
        pieces = -(-samples // (self.problem.batch_size or 1))
        at = np.int32(step), np.int32(samples)
        return _forward(
            self.problem, self.M, pieces, self.n, self.model.params, self.data, self.key, *at
        )


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _forward(
    problem: Problem,
    M: int,
    pieces: int,
    n: int,
    params: Params,
    data: PyTree,
    key: jax.Array,
    step: jax.Array,
    samples: jax.Array,
) -> tuple[jax.Array, Pull]:
    """Returns the loss of the samples, drawn as the compiled loop draws its micro-batches, and the
    function 1 -> (its gradient,).
    """
    assert problem.batch_size is not None
    assert problem.sampler.truncate is not None
    size, take = problem.batch_size, problem.sampler.truncate
    drawn = jax.vmap(lambda m: oracle.draw_batch(problem, key, step, n, data, M, m))(
        jnp.arange(pieces)
    )
    counts = jnp.clip(samples - size * jnp.arange(pieces), 1, size)

    def mean(function, params):
        each = jax.vmap(lambda piece, count: function(params, take(piece, count)))(drawn, counts)
        return jax.tree.map(
            lambda leaf: jnp.tensordot((counts / samples).astype(leaf.dtype), leaf, 1), each
        )

    if problem.gradient is not None:
        return mean(problem.loss, params), Partial(_return_slope, mean(problem.gradient, params))
    return jax.vjp(partial(mean, problem.loss), params)


def _return_slope(slope: Params, _: jax.Array) -> tuple[Params]:
    return (slope,)


@jax.jit
def _backward(pull: Pull, loss: jax.Array, share: jax.Array) -> tuple[PyTree, jax.Array]:
    """Returns the weighted gradient and loss to be summed over nodes, leaves `[1, ...]`, and
    |g_n|^2.
    """
    (slope,) = pull(jnp.ones_like(loss))
    message = jax.tree.map(lambda leaf: share.astype(leaf.dtype) * leaf[None], (slope, loss))
    return message, optax.tree.norm(slope, squared=True)


@partial(jax.jit, static_argnums=0)
def _update(
    optimizer: optax.GradientTransformation, model: Model, slope: Params, loss: jax.Array
) -> tuple[Model, jax.Array, jax.Array]:
    """Makes the optimizer's step; returns the model, the loss and |g|^2."""
    return optimizers.step(optimizer, model, slope), loss, optax.tree.norm(slope, squared=True)
