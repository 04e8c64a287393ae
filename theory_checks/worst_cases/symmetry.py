r"""Coordinates in which the Gram matrix of the inputs is block diagonal.

If a permutation of the workers leaves a run's coefficients unchanged, the worst case may be
averaged over it. The Gram matrix then commutes with the permutation of the inputs. Let $v_{a,n}$ be
the vectors of slot a (one for each worker). With an orthonormal basis U of $\mathbb R^N$, the
transformed vectors $w_{a,m} = \sum_n U_{nm} v_{a,n}$ of different modes m are orthogonal:

- All permutations: the first mode is the mean over the workers, with a Gram matrix $G_0$ of all
  slots and the shared inputs; the other N - 1 modes have the same Gram matrix $G_1$.
- Rotations and reflections of a ring: U is the real Fourier basis. Both modes of frequency k have
  the same Gram matrix $G_k$.

Conditions on one worker's function are then sufficient. The invariance is checked on the
coefficients themselves, for generators of the group.

Source: Colla and Hendrickx, "Exploiting agent symmetries for performance analysis of distributed
optimization methods", 2024, for all permutations.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from theory_checks.worst_cases.layout import Layout

Symmetry = Literal["none", "ring", "all"]

_EQUAL = 1e-9  # relative difference of coefficients that counts as none


class Basis(NamedTuple):
    """Coordinates of the vectors.

    Args:
        symmetry: the group: "all" permutations, those of a "ring", or "none".
        blocks: one array for each block of the Gram matrix, `[modes, inputs, n]`: from coefficients
            to coordinates in each of the block's modes, in units of the inputs.
        workers: the workers with conditions; the others follow by symmetry.
        growth: a bound on the trace of a Gram matrix in these coordinates, as a multiple of that in
            orthonormal ones.
    """

    symmetry: Symmetry
    blocks: list[np.ndarray]
    workers: range
    growth: float = 1.0

    @property
    def sizes(self) -> list[int]:
        """The sizes of the blocks of the Gram matrix."""
        return [block.shape[-1] for block in self.blocks]

    def coordinates(self, vectors: np.ndarray) -> list[np.ndarray]:
        """Returns the coordinates of vectors `[..., inputs]` in each block, `[..., modes, n]`."""
        return [np.einsum("...b,mbn->...mn", vectors, block) for block in self.blocks]

    def rescale(self, grams: list[np.ndarray], smallest: float) -> Basis:
        """Returns coordinates in which the Gram matrices `grams` of these coordinates are the
        identity, but for eigenvalues below `smallest` or above its inverse.
        """
        blocks, shortest = [], 1.0
        for block, gram in zip(self.blocks, grams, strict=True):
            squares, axes = np.linalg.eigh(gram)
            squares = np.clip(squares, smallest, 1 / smallest)
            blocks.append(block @ (axes * np.sqrt(squares)))
            shortest = min(shortest, squares.min())
        return self._replace(blocks=blocks, growth=self.growth / shortest)

    def inputs(self, factors: list[np.ndarray]) -> np.ndarray:
        """Returns the vectors of the inputs, `[inputs, p]`, from factors of the blocks, `[n, p_k]`:
        their Gram matrices are those of the blocks.
        """
        return np.concatenate(
            [
                mode @ factor
                for block, factor in zip(self.blocks, factors, strict=True)
                for mode in block
            ],
            axis=1,
        )


def find(layout: Layout, vectors: np.ndarray) -> Symmetry:
    """Returns the largest group of permutations under which the coefficients are invariant.

    Args:
        layout: of the run.
        vectors: its coefficients, `[K, inputs]`.
    """
    N = layout.rows.N
    n = np.arange(N)
    turned, mirrored, swapped = (n + 1) % N, -n % N, np.array([1, 0, *range(2, N)])
    if N == 1 or not _invariant(layout, vectors, turned):
        return "none"
    if _invariant(layout, vectors, swapped):
        return "all"
    return "ring" if _invariant(layout, vectors, mirrored) else "none"


def basis(layout: Layout, symmetry: Symmetry, units: np.ndarray) -> Basis:
    """Returns coordinates for a group.

    Args:
        layout: of the run.
        symmetry: the group.
        units: size of each input, `[inputs]`.
    """
    N, shared = layout.rows.N, layout.shared
    # The gradients at the optimum sum to 0: they have no mean.
    without_optimum = [slot for name, slot in layout.slots.items() if name != ("optimum",)]
    optimum = [slot for name, slot in layout.slots.items() if name == ("optimum",)]
    slots = [*without_optimum, *optimum]
    if symmetry == "none":
        columns = [*_units(shared, units), *(c for s in without_optimum for c in _units(s, units))]
        columns += [c for s in optimum for c in _combine(s, _means(N)[:, 1:], units).T]
        return Basis(symmetry, [np.stack(columns, axis=1)[None]], range(N))
    U, frequencies = _fourier(N) if symmetry == "ring" else (_means(N), np.arange(N).clip(max=1))
    first = [
        *_units(shared, units),
        *(_combine(s, U[:, :1], units)[:, 0] for s in without_optimum),
    ]
    blocks = [np.stack(first, axis=1)[None]]
    for k in range(1, frequencies.max() + 1):
        modes = np.stack([_combine(s, U[:, frequencies == k], units) for s in slots], axis=-1)
        blocks.append(np.moveaxis(modes, 1, 0))
    return Basis(symmetry, blocks, range(1))


def _units(inputs, units: np.ndarray) -> np.ndarray:
    """Returns unit vectors of inputs as rows, `[number, inputs]`."""
    return (np.eye(len(units)) * units)[np.asarray(inputs, int)]


def _combine(slot: np.ndarray, U: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Returns the columns of U, `[N, m]`, on the inputs of a slot, `[inputs, m]`."""
    combined = np.zeros((len(units), U.shape[1]))
    combined[slot] = U * units[slot][:, None]
    return combined


def _means(N: int) -> np.ndarray:
    """Returns an orthonormal basis in columns; the first vector is constant."""
    U = np.zeros((N, N))
    U[:, 0] = 1 / np.sqrt(N)
    for k in range(1, N):
        U[:k, k], U[k, k] = 1, -k
        U[:, k] /= np.sqrt(k * (k + 1))
    return U


def _fourier(N: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the real Fourier basis in columns, and the frequency of each."""
    n, columns, frequencies = np.arange(N), [np.full(N, 1 / np.sqrt(N))], [0]
    for k in range(1, N // 2 + 1):
        angles = 2 * np.pi * k * n / N
        pair = [np.cos(angles)] if 2 * k == N else [np.cos(angles), np.sin(angles)]
        columns += [wave / np.linalg.norm(wave) for wave in pair]
        frequencies += [k] * len(pair)
    return np.stack(columns, axis=1), np.array(frequencies)


def _invariant(layout: Layout, vectors: np.ndarray, permutation: np.ndarray) -> bool:
    """Whether renaming worker n to permutation[n] leaves all coefficients unchanged."""
    rows, N = layout.rows, layout.rows.N
    moved = np.arange(vectors.shape[1])
    for slot in layout.slots.values():
        moved[slot] = slot[permutation]
    renamed = np.empty_like(vectors)
    renamed[:, moved] = vectors
    pairs = [(rows.model(t), rows.model(t)) for t in range(rows.T + 1)]
    for n, to in enumerate(permutation):
        pairs += [(rows.local_model(t, n), rows.local_model(t, to)) for t in range(rows.T + 1)]
        mine, others = layout.points[n], layout.points[to]
        if len(mine) != len(others):
            return False
        for point, other in zip(mine, others, strict=True):
            if moved[point.gradient] != other.gradient:
                return False
            pairs.append((point.row, other.row))
    by_error = {message.error: message for message in layout.messages}
    for message in layout.messages:
        pairs.append((message.row, by_error[moved[message.error]].row))
    old, new = np.array(pairs).T
    differences = np.abs(renamed[old] - vectors[new])
    return N > 1 and bool(differences.max() <= _EQUAL * (1 + np.abs(vectors).max()))
