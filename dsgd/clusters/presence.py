"""Participation in a round on a cluster, and delivery of messages: draws of its quantities."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks, workers
from dsgd.base import Round
from dsgd.clusters.cluster import Cluster
from dsgd.clusters.quantity import Quantity

# The numbers are far from the small numbers that methods fold into a round's key.
_PRESENT, _DELIVERED = 0x70726573, 0x64656C69
# Folded into the run's key, for selections by period.
_PRESENT_BY_PERIOD, _DELIVERED_BY_PERIOD = 0xF0726573, 0xF0656C69
_DRAWS = 256


def present(cluster: Cluster, round: Round, key: jax.Array, run: jax.Array) -> jax.Array | None:
    """Returns which workers participate, bool `[N]`; None: all.

    Args:
        cluster: the cluster.
        round: the present round.
        key: key of the first of the `participation_period` rounds that share a draw.
        run: key of the run's rounds, the same in all of them, for selections by period.
    """
    quantity, number = cluster.present, jnp.arange(round.workers)
    if quantity is None:
        return None
    keys = jax.random.fold_in(key, _PRESENT), jax.random.fold_in(run, _PRESENT_BY_PERIOD)
    return _some(quantity, *keys, round, number, cluster.participation_period)


def is_drawn(quantity: Quantity, N: int) -> bool:
    """Returns whether participation changes between participation periods, not only with the worker
    and the clock. If the quantity does not state it, it is determined from 256 draws.
    """
    if quantity.by_period is not None:
        return True
    if quantity.inclusion is not None:
        return any(0 < probability < 1 for probability in np.ravel(quantity.inclusion))

    def some(key: jax.Array) -> jax.Array:
        return (
            jax.vmap(lambda worker: quantity.sample(key, jnp.float32(0), worker))(jnp.arange(N)) > 0
        )

    draws = jax.vmap(some)(jax.random.split(checks.typed_key(), _DRAWS))
    return bool((draws != draws[:1]).any())


def participation(cluster: Cluster, round: Round, run: jax.Array) -> workers.Participation | None:
    """Returns the participation and delivery of a round, which collectives of `dsgd.workers` read;
    None: all workers participate and all messages arrive.

    Args:
        cluster: the cluster.
        round: the round, with its `present`.
        run: as in `present`.
    """
    if cluster.present is None and cluster.delivered is None:
        return None
    N, delivered = round.workers, cluster.delivered
    participating = jnp.ones(N, bool) if round.present is None else round.present
    chances = _chances(cluster)
    if delivered is None:
        return workers.Participation(
            participating, participating, lambda i, j: participating[i] & participating[j], *chances
        )
    keys = jax.random.fold_in(round.key, _DELIVERED), jax.random.fold_in(run, _DELIVERED_BY_PERIOD)

    def arrives(i: jax.Array, j: jax.Array) -> jax.Array:
        # A pair of workers has one link with one number, so that it is down in both directions.
        i, j = jnp.broadcast_arrays(i, j)
        return (
            participating[i]
            & participating[j]
            & _some(delivered, *keys, round, jnp.minimum(i, j) * N + jnp.maximum(i, j))
        )

    return workers.Participation(
        participating,
        participating & _some(delivered, *keys, round, jnp.arange(N)),
        arrives,
        *chances,
    )


def _chances(cluster: Cluster) -> tuple[tuple[float, ...] | float | None, str]:
    """Returns the probability with which a worker participates and its message arrives, or None if
    it is unknown; and the name of what determines it.
    """
    given = {"present": cluster.present, "delivered": cluster.delivered}
    each = {what: quantity for what, quantity in given.items() if quantity is not None}
    unknown = [what for what, quantity in each.items() if quantity.inclusion is None]
    name = ", ".join(f"{what} = {each[what].name}" for what in unknown or each)
    if unknown:
        return None, name
    product = np.prod([np.asarray(quantity.inclusion) for quantity in each.values()], axis=0)
    return (tuple(product.tolist()) if product.ndim else float(product)), name


def _some(
    quantity: Quantity,
    key: jax.Array,
    run: jax.Array,
    round: Round,
    numbers: jax.Array,
    rounds: int = 1,
) -> jax.Array:
    """Returns for which numbers the quantity is positive, bool of their shape.

    Args:
        quantity: the quantity.
        key: key of the draw.
        run: key of a selection by periods, the same in all rounds of a run.
        round: the present round.
        numbers: numbers of workers or links.
        rounds: number of rounds of a period.
    """
    draw = partial(quantity.sample, key)
    if quantity.by_period is not None:
        period = jnp.asarray(round.step, jnp.int32) // rounds
        draw = partial(quantity.by_period, run, period)
    sample = jax.vmap(partial(draw, jnp.float32(round.clock)))
    return (sample(numbers.reshape(-1)) > 0).reshape(numbers.shape)
