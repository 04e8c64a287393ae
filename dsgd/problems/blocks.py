"""Data loaded worker by worker, so that each process loads only its own workers' data."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import PyTree
from dsgd.engine.client_pool import Source, client_pool
from dsgd.engine.pooled import Pooled
from dsgd.machines import agreement
from dsgd.machines.arrays import array_of_rows, copy_arrays, from_host, own_workers
from dsgd.problems.examples import Examples, arrays, convert, stack, to_device


class Loaded(NamedTuple):
    """The data of all workers.

    Args:
        examples: the samples, with a leading worker axis or pooled.
        sizes: number of samples of each worker.
        some: samples of one worker (or all samples) on the host, (inputs, targets) with leaves `[m,
            ...]`, as an example of their shapes and types.
        evaluated: samples of the workers on which the objective is evaluated; None: of all.
    """

    examples: Examples | Pooled
    sizes: list[int]
    some: tuple[PyTree, PyTree]
    evaluated: Evaluated | None = None


class Evaluated(NamedTuple):
    """Samples of some workers, on the host.

    Args:
        workers: numbers of the workers, int `[k]`.
        inputs, targets: their samples, leaves `[M, ...]`.
        owner: the index in `workers` of the worker of each sample, int `[M]`.
    """

    workers: np.ndarray
    inputs: PyTree
    targets: PyTree
    owner: np.ndarray

    def rows(self, weights: Sequence[float] | None) -> Examples:
        r"""Returns the samples with weights, of which the sum with the losses is $\sum_n w_n f_n /
        \sum_n w_n$ over these workers.
        """
        by = np.ones(len(self.workers)) if weights is None else np.asarray(weights)[self.workers]
        shares = by / by.sum() / np.bincount(self.owner)
        return to_device(self.inputs, self.targets)._replace(
            weights=from_host(shares[self.owner], jnp.result_type(float))
        )


@checks.arguments
@dataclass(frozen=True)
class ByWorker:
    """The data of a problem as a function of the worker. Each process calls it for its own workers
    only, so that no process needs the data of the others.

    Args:
        load: worker -> its (inputs, targets), pytrees of arrays `[m, ...]`, with the same
            structure, shapes and types of a sample for all workers; m may differ.
    """

    load: Callable[[int], tuple[Any, Any]]

    def load_workers(self, N: int) -> Loaded:
        """Loads the data of N workers. All processes must call it together.

        Raises:
            ValueError: if the workers' samples differ in kind, as for `arrays`, or if the number of
                processes does not divide N.
        """
        with agreement.all_or_none("the data of the workers"):
            ids = own_workers(N)
            # Copied, since `load` may reuse its arrays for the next worker.
            pairs = {
                n: copy_arrays(jax.tree.map(convert, arrays(f"data of worker {n}", self.load(n))))
                for n in ids
            }
            summaries = {
                n: (len(jax.tree.leaves(pair)[0]), _kind(pair)) for n, pair in pairs.items()
            }
            texts = agreement.all_gather("data by worker", json.dumps(summaries))
            by_id = {int(n): each for words in texts for n, each in json.loads(words).items()}
        kinds = [by_id[n][1] for n in range(N)]
        if other := next((n for n in range(N) if kinds[n] != kinds[0]), 0):
            sparse = any("columns" in kind for kind in kinds)
            remedy = (
                "; for sparse matrices pass problems.sparse_rows(matrix, longest) with the same "
                "longest"
                if sparse
                else ""
            )
            raise ValueError(
                f"ByWorker: the samples of worker {other} are {kinds[other]}, those of worker 0 "
                f"{kinds[0]}; expected the same shapes and types for all workers{remedy}"
            )
        sizes = [by_id[n][0] for n in range(N)]
        if agreement.is_single_process():
            inputs, targets = jax.tree.map(
                lambda *of_workers: np.concatenate(of_workers), *(pairs[n] for n in range(N))
            )
            parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
            return Loaded(stack(inputs, targets, parts), sizes, pairs[0])
        longest = max(sizes)

        def pad_leaf(at: int) -> jax.Array:
            def rows(some: slice) -> np.ndarray:
                return np.stack(
                    [_pad(jax.tree.leaves(pairs[n])[at], longest) for n in range(N)[some]]
                )

            return array_of_rows(rows, N, all_rows=False)

        some = pairs[ids[0]]
        inputs, targets = jax.tree.unflatten(
            jax.tree.structure(some), [pad_leaf(at) for at in range(len(jax.tree.leaves(some)))]
        )
        real = np.arange(longest)[None, :] < np.array(sizes)[:, None]
        weights = array_of_rows(lambda some: real[some].astype(jnp.result_type(float)), N)
        return Loaded(Examples(inputs, targets, weights), sizes, some)


def _kind(pair: PyTree) -> str:
    """Returns the structure, types and shapes of a sample as text."""
    return ", ".join(
        f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape[1:])}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(pair)
    )


def _pad(leaf: np.ndarray, longest: int) -> np.ndarray:
    """Pads an array to `longest` rows by repeating the last row."""
    return np.pad(leaf, [(0, longest - len(leaf)), *[(0, 0)] * (leaf.ndim - 1)], mode="edge")


@checks.arguments
def clients(
    sizes: int | Sequence[int] | np.ndarray,
    load: Annotated[Callable[[int], tuple[Any, Any]], "(client)"],
    *,
    cache: int = 1024,
    evaluated: int = 128,
    fingerprint: str | None = None,
) -> ByWorker:
    """Returns data for `finite_sum` of clients that are loaded when they are drawn, so that the
    samples of all clients need not fit in memory.

    Args:
        sizes: number of samples of each client, `[N]`; or N: each client is then loaded once to
            count its samples.
        load: client -> its (inputs, targets), pytrees of arrays `[m, ...]`, with the same
            structure, shapes and types of a sample for all clients. It is called in another thread
            while the run waits for the samples.
        cache: number of clients that are kept in memory: those that were drawn last.
        evaluated: number of clients on which the history's loss and `grad_sqnorm` are evaluated,
            evenly spaced and the same in all records; all their samples are in memory.
        fingerprint: a text that distinguishes these data from all others, which a run with a
            checkpoint needs. None: runs with a checkpoint are refused.

    Raises:
        ValueError: if a size is less than 1, or if a client has another number of samples, or
            samples of another kind than client 0; during a run, when the client is drawn.
    """
    checks.positive_int("clients: cache", cache)
    checks.positive_int("clients: evaluated", evaluated)
    if isinstance(sizes, int):
        checks.positive_int("clients: sizes", sizes)
    elif not np.issubdtype(np.asarray(sizes).dtype, np.integer) or np.min(sizes, initial=1) < 1:
        raise ValueError(
            f"clients: sizes = {checks.show(sizes)}; expected the number of clients, or an integer "
            "at least 1 for each: the number of its samples"
        )
    given = sizes if isinstance(sizes, int) else tuple(np.asarray(sizes).tolist())
    return _Clients(load, given, cache, evaluated, fingerprint)


@dataclass(frozen=True)
class _Clients(ByWorker):
    """See `clients`."""

    sizes: int | tuple[int, ...] = 1
    cache: int = 1024
    evaluated: int = 128
    fingerprint: str | None = None

    def load_workers(self, N: int) -> Loaded:
        count = self.sizes if isinstance(self.sizes, int) else len(self.sizes)
        if count != N:
            raise ValueError(
                f"finite_sum: workers = {N}, data of {count} clients; pass workers={count}"
            )
        if not agreement.is_single_process():
            raise ValueError(
                "clients: loaded in a run of several processes; expected one process; pass "
                "problems.ByWorker(load)"
            )
        some = _samples(self.load, 0)
        if isinstance(self.sizes, int):
            lengths = [
                len(jax.tree.leaves(_samples(self.load, n, some))[0]) for n in range(self.sizes)
            ]
        else:
            lengths = list(self.sizes)
        source = Source(_Drawn(self.load, some, tuple(lengths)), self.cache, self.fingerprint)
        chosen = np.unique(np.arange(min(self.evaluated, N)) * N // min(self.evaluated, N))
        pairs = [source.samples(int(n)) for n in chosen]
        inputs, targets = jax.tree.map(lambda *leaves: np.concatenate(leaves), *pairs)
        owner = np.repeat(np.arange(len(chosen)), np.asarray(lengths)[chosen])
        pool = client_pool(source, np.asarray(lengths), some, Examples)
        return Loaded(pool, lengths, some, Evaluated(chosen, inputs, targets, owner))


@dataclass(frozen=True)
class _Drawn:
    """worker -> its samples, validated."""

    load: Callable[[int], tuple[Any, Any]]
    like: tuple[PyTree, PyTree]
    sizes: tuple[int, ...]

    def __call__(self, n: int) -> tuple[PyTree, PyTree]:
        samples = _samples(self.load, n, self.like)
        if (count := len(jax.tree.leaves(samples)[0])) != self.sizes[n]:
            raise ValueError(
                f"clients: client {n} has {count} samples; expected {self.sizes[n]}, as in sizes"
            )
        return samples


def _samples(
    load: Callable[[int], tuple[Any, Any]], n: int, like: tuple[PyTree, PyTree] | None = None
) -> tuple[PyTree, PyTree]:
    """Returns the samples of client n as copies in the types of the program."""
    samples = jax.tree.map(
        lambda leaf: np.array(convert(leaf)), arrays(f"clients: data of client {n}", load(n))
    )
    if like is not None and _kind(samples) != _kind(like):
        raise ValueError(
            f"clients: the samples of client {n} are {_kind(samples)}, those of client 0 "
            f"{_kind(like)}; expected the same structure, shapes and types for all clients"
        )
    return samples
