"""Data loaded worker by worker, so that each process loads only its own workers' data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd import checks
from dsgd.base import PyTree
from dsgd.engine.pooled import Pooled
from dsgd.machines import agreement
from dsgd.machines.arrays import array_of_rows, copy_arrays, own_workers
from dsgd.problems.examples import Examples, arrays, convert, stack


class Loaded(NamedTuple):
    """The data of all workers.

    Args:
        examples: the samples, with a leading worker axis or pooled.
        sizes: number of samples of each worker.
        some: samples of one worker (or all samples) on the host, (inputs, targets) with leaves `[m,
            ...]`, as an example of their shapes and types.
    """

    examples: Examples | Pooled
    sizes: list[int]
    some: tuple[PyTree, PyTree]


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
