r"""Runs in which only some workers have rows: at most m of the N workers participate in a period.

A round then has rows for c workers, the *cohort*: those that participate, and if necessary others
that do not. Between two cohorts, the state of a worker consists of

- what it keeps, the *store*, leaves `[N, ...]`: gathered at the beginning of a participation period
  and written back at its end;
- what all workers have after a synchronization, which is stored once (the common model, a restarted
  optimizer): the leaves that `Algorithm.absent` takes from the state after the round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dsgd import workers
from dsgd.base import PyTree
from dsgd.engine import stores
from dsgd.machines import host_calls


class Layout(NamedTuple):
    """Which rows a round has, static.

    Args:
        rows: c, the number of workers in a cohort; D divides it.
        most: m, the largest number of workers that participate at once.
        period: rounds for which the cohort stays the same.
        synchronized: rounds after which the common leaves are equal at all workers; it divides
            `period`.
        kept: for each leaf of `State.workers`, whether a worker keeps it between its periods;
            otherwise the leaf is common.
        common_models: whether the local models that the history measures depend on common leaves
            only.
        hosted: the leaves that workers keep in a `Store` of the host; the devices have the others.
    """

    rows: int
    most: int
    period: int
    synchronized: int
    kept: tuple[bool, ...]
    common_models: bool
    hosted: tuple[int, ...] = ()


class Clients(NamedTuple):
    """`State.workers` of a run in which only a cohort has rows.

    Args:
        rows: the rows of the cohort, leaves `[c, ...]`, as the method sees them.
        ids: numbers of the cohort's workers, int32 `[c]`; those that participate come first.
        present: participation, bool `[N]`.
        store: for each leaf of the rows, what all workers keep, `[N', ...]`, where N' >= N is
            divisible by D; None for common leaves and those in `host`. The rows of the cohort are
            written back at the end of its period.
        common: for each leaf of the rows, its value after the last synchronization, `[...]`; None
            for leaves that workers keep.
        host: the `Store`s of leaves that the host keeps, one for each seed; during a run their
            numbers, int32; (): there are none.
    """

    rows: PyTree
    ids: Any
    present: Any
    store: list[Any]
    common: list[Any]
    host: Any = ()


def first(rows: PyTree, layout: Layout, N: int, devices: int) -> Clients:
    """Returns the state before the first cohort is drawn, from the rows of all N workers."""
    padding, store, common, mine = -N % devices, [], [], []
    for i, (leaf, keeps) in enumerate(zip(jax.tree.leaves(rows), layout.kept, strict=True)):
        widths = [(0, padding), *[(0, 0)] * (leaf.ndim - 1)]
        store.append(jnp.pad(leaf, widths) if keeps and i not in layout.hosted else None)
        # One of equal rows, so that the rows of all workers need not be in memory.
        common.append(None if keeps else leaf[0])
        mine.append(leaf[: layout.rows] if keeps else None)
    ids = jnp.arange(layout.rows, dtype=jnp.int32)
    host = jnp.int32(0) if layout.hosted else ()
    clients = Clients(rows, ids, jnp.zeros(N, bool), store, common, host)
    return clients._replace(rows=_join(clients, mine, layout.rows))


def exchange(
    layout: Layout, clients: Clients, present: jax.Array, then: jax.Array | None
) -> Clients:
    """Writes back what the cohort's workers keep and gathers the rows of the next cohort.

    Args:
        layout: static.
        clients: the present cohort; leaves of its rows and its store are blocks.
        present: participation in the next period, bool `[N]`.
        then: participation in the period after it, as far as it is known, if leaves are hosted.
    """
    rows, count = jax.tree.leaves(clients.rows), len(clients.ids)
    store = [
        None if leaf is None else _write(leaf, row, clients.ids)
        for leaf, row in zip(clients.store, rows, strict=True)
    ]
    ids = order(present, count)
    kept = [None if leaf is None else _read(leaf, ids) for leaf in store]
    if layout.hosted:
        assert then is not None
        hosted = [rows[i] for i in layout.hosted]
        hosted = _exchange_with_host(clients, hosted, ids, order(then, count))
        for i, leaf in zip(layout.hosted, hosted, strict=True):
            kept[i] = leaf
    clients = clients._replace(ids=ids, present=present, store=store)
    return clients._replace(rows=_join(clients, kept, count // workers.devices()))


def _exchange_with_host(
    clients: Clients, rows: list[jax.Array], ids: jax.Array, then: jax.Array
) -> list[jax.Array]:
    """Writes rows `[n, ...]` of the cohort to the store of the host and returns those of the next
    cohort; `then` are the numbers of the cohort after it.
    """
    before, ids, then = (workers.local_block(each, len(ids)) for each in (clients.ids, ids, then))
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in rows]
    done = jax.ShapeDtypeStruct((), jnp.int32)
    written = host_calls.call(stores.write, done, clients.host, before, rows)
    # A worker may have been in a row of another device.
    written = workers.sum_over_devices(written)
    place = workers.ids(len(clients.ids))[0]
    return host_calls.call(stores.read, shapes, clients.host, ids, then, place, written)


def end_round(layout: Layout, clients: Clients, step: Any) -> tuple[Clients, jax.Array]:
    """Returns the state after a round, with the common leaves of a synchronization; and the number
    of common leaves that differ between workers, although they must be equal.
    """
    zero = jnp.zeros((), jnp.int32)
    if all(layout.kept):
        return clients, zero

    def synchronize(before):
        some, N = jnp.any(clients.present), len(clients.present)
        mine, common, differ = workers.local_block(clients.present, N), [], zero
        for leaf, old in zip(jax.tree.leaves(clients.rows), before, strict=True):
            if old is None:
                common.append(None)
                continue
            # Workers that participate come first in the cohort.
            one = jnp.where(some, workers.first_row(leaf), old)
            equal = (leaf == one[None]) | ((leaf != leaf) & (one != one)[None])  # both NaN
            differ += jnp.any(~equal & workers.align(mine, leaf)).astype(jnp.int32)
            common.append(one)
        return common, workers.sum_over_devices(differ)

    common, differ = lax.cond(
        (step + 1) % layout.synchronized == 0,
        synchronize,
        lambda before: (before, zero),
        clients.common,
    )
    return clients._replace(common=common), differ


def errors(layout: Layout, name: str, clients: Clients, differ: jax.Array) -> dict[str, jax.Array]:
    """Returns error messages with {} for a number, and that number, or NaN if there is no error.

    Args:
        layout, clients: as in `exchange`.
        name: name of the method.
        differ: from `end_round`.
    """
    many = jnp.sum(clients.present)
    words = (
        f"{{}} parts of the state of {name} that absent workers adopt (its `absent` takes them "
        "from the state after the round) differ between workers after a synchronization; expected "
        "equal ones; pass absent=dsgd.AllRows(absent), with which all workers have rows"
    )
    crowd = (
        f"{{}} workers participate in a round; expected at most the {layout.most} that the "
        "quantity `present` of the cluster states (Quantity.most)"
    )
    return {
        words: jnp.where(differ > 0, differ, jnp.nan),
        crowd: jnp.where(many > layout.most, many, jnp.nan),
    }


def order(present: jax.Array, count: int) -> jax.Array:
    """Returns the numbers of `count` workers, int32: those that participate, then others, each in
    increasing order.
    """
    number = jnp.cumsum(present, dtype=jnp.int32)
    others = number[-1] + jnp.cumsum(~present, dtype=jnp.int32)
    places = jnp.where(present, number, others) - 1
    ids = jnp.arange(len(present), dtype=jnp.int32)
    return jnp.zeros(count, jnp.int32).at[places].set(ids, mode="drop", unique_indices=True)


def _write(store: jax.Array, rows: jax.Array, ids: jax.Array) -> jax.Array:
    """Writes rows `[n, ...]` of the cohort to the block of the store."""
    block = len(store)
    here, places = workers.locate(ids, block * workers.devices())
    return store.at[jnp.where(here, places, block)].set(workers.all_gather(rows), mode="drop")


def _read(store: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns the cohort's rows on this device, `[n, ...]`."""
    here, places = workers.locate(ids, len(store) * workers.devices())
    return workers.local_block(workers.collect(here, store[places]), len(ids))


def common_rows(clients: Clients) -> PyTree:
    """Returns the cohort's rows with the common leaves of a worker that does not participate."""
    rows = jax.tree.leaves(clients.rows)
    kept = [leaf if one is None else None for leaf, one in zip(rows, clients.common, strict=True)]
    return _join(clients, kept, len(rows[0]) if rows else 0)


def all_rows(clients: Clients) -> PyTree:
    """Returns `State.workers` of all workers on every device, leaves `[N, ...]`, if the
    devices store all of them.
    """
    N, ids = len(clients.present), clients.ids
    rows, store = workers.all_gather((jax.tree.leaves(clients.rows), clients.store))
    everyone = [
        (jnp.broadcast_to(one, (N, *one.shape)) if kept is None else kept[:N]).at[ids].set(row)
        for kept, one, row in zip(store, clients.common, rows, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(clients.rows), everyone)


def _join(clients: Clients, kept: list[Any], count: int) -> PyTree:
    """Returns `count` rows from the leaves that workers keep and the common ones."""
    leaves = [
        jnp.broadcast_to(one, (count, *one.shape)) if leaf is None else leaf
        for leaf, one in zip(kept, clients.common, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(clients.rows), leaves)
