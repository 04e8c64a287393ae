"""The stores of a run, one for each seed, if workers keep more than the devices can hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dsgd.base import State
from dsgd.engine.cohorts import Clients
from dsgd.engine.plan import Carry, Plan
from dsgd.engine.stores import Store
from dsgd.machines import arrays
from dsgd.records import user_path

Stores = tuple[Store, ...]
_START, _IDS = "start", "ids"


def folder_of(given: str | Path) -> Path:
    """Creates the folder for the files of a store.

    Raises:
        ValueError: if it cannot be created.
    """
    path = user_path("run: store", given).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"run: store = {str(given)!r}: {error.strerror}; expected a folder that can be created"
        ) from error
    return path


def from_carry(carry: Carry, plan: Plan, folder: Path | None) -> Stores:
    """Returns the stores at the beginning of a run, in which all workers have equal rows."""
    rows = _hosted_rows(carry.state, plan)
    return tuple(
        Store([np.asarray(leaf[0]) for leaf in each], plan.N, folder)
        for each in _by_run(rows, plan)
    )


def from_state(state: State, plan: Plan, folder: Path | None) -> Stores:
    """Returns the stores of a run that continues a state, which has rows of all workers or stores;
    these are not modified.
    """
    rows = _by_run(_hosted_rows(state, plan), plan)
    if isinstance(state.workers, Clients):
        stores = tuple(store.copy(folder) for store in state.workers.host)
        ids = np.asarray(state.workers.ids).reshape(len(stores), -1)
    else:
        stores = tuple(Store([leaf[0] for leaf in each], plan.N, folder) for each in rows)
        ids = [np.arange(plan.N)] * len(stores)
    for store, of_run, leaves in zip(stores, ids, rows, strict=True):
        store.write(of_run, leaves)
    return stores


def from_pieces(
    pieces: Iterable[tuple[str, np.ndarray]], like: State, plan: Plan, folder: Path | None
) -> Stores:
    """Returns the stores from the result of `pieces`; `like` has the types of the rows."""
    types = [leaf.dtype for leaf in _hosted_rows(like, plan)]
    stores, gathered, ids = list[Store](), list[np.ndarray](), np.empty(0, int)
    for name, array in pieces:
        part = name.split("/")[1]
        if name.endswith(_IDS):
            ids = array
            continue
        # Types that numpy does not have, such as bfloat16, are read as bytes.
        kind = types[len(gathered)]
        gathered.append(array.view(kind) if array.dtype.kind == "V" else array)
        if len(gathered) < len(types):
            continue
        if part == _START:
            stores.append(Store(gathered, plan.N, folder))
        else:
            stores[-1].write(ids, gathered)
        gathered = []
    return tuple(stores)


def pieces(stores: Stores) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the contents of the stores as named arrays, a few rows at a time."""
    for r, store in enumerate(stores):
        for j, leaf in enumerate(store.start):
            yield f"{r}/{_START}/{j}", leaf
        for p, (ids, rows) in enumerate(store.pieces()):
            yield f"{r}/{p}/{_IDS}", ids
            for j, leaf in enumerate(rows):
                yield f"{r}/{p}/{j}", leaf


def with_numbers(carry: Carry, stores: Stores) -> Carry:
    """Returns the carry with the numbers by which the program finds the stores."""
    if not stores:
        return carry
    before = carry.state.workers.host
    numbers = np.reshape([store.number for store in stores], before.shape).astype(np.int32)
    clients = carry.state.workers._replace(host=arrays.put(numbers, before.sharding))
    return carry._replace(state=carry.state._replace(workers=clients))


def with_stores(state: State, stores: Stores) -> State:
    """Returns the state of a result, with the stores themselves."""
    return state._replace(workers=state.workers._replace(host=stores)) if stores else state


def on_device(state: State) -> State:
    """Returns the state with all rows of the stores in arrays."""
    clients = state.workers
    everyone = np.arange(clients.present.shape[-1])
    read = [store.read(everyone) for store in clients.host]
    store, N = list(clients.store), len(everyone)
    hosted = [
        i
        for i, (kept, common) in enumerate(zip(clients.store, clients.common, strict=True))
        if kept is None and common is None
    ]
    for i, each in zip(hosted, zip(*read, strict=True), strict=True):
        stacked = np.stack(each)
        store[i] = arrays.from_host(stacked.reshape(*np.shape(state.step), N, *stacked.shape[2:]))
    return state._replace(workers=clients._replace(store=store, host=()))


def _hosted_rows(state: State, plan: Plan) -> list[Any]:
    """Returns the rows of the leaves that the host keeps."""
    assert plan.cohort is not None
    given = state.workers
    leaves = jax.tree.leaves(given.rows if isinstance(given, Clients) else given)
    return [leaves[i] for i in plan.cohort.hosted]


def _by_run(rows: list[Any], plan: Plan) -> list[list[np.ndarray]]:
    """Returns for each run its rows, leaves `[n, ...]`."""
    host = [np.asarray(leaf) for leaf in rows]
    if plan.runs == 0:
        return [host]
    return [[leaf[r] for leaf in host] for r in range(len(host[0]))]
