"""The mixing matrix of a gossip round, validated when made. The graphs themselves are in the package `topologies`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

_TOLERANCE = 1e-8  # of a float64 matrix that somebody wrote down or computed; of a coarser type, 16 of its epsilons
_MOST_SHIFTS = 8  # a circulant matrix with more non-zeros in a row costs less as one product


@dataclass(frozen=True, eq=False)
class Topology:
    r"""A connected graph with symmetric weights W whose rows sum to 1 (Assumption 7).

    Worker i takes $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2). Negative weights are allowed: the proofs need only symmetry,
    $W 1 = 1$ and $\rho < 1$.

    Args:
        name: as a user would write it, `ring(16)`.
        W: the mixing matrix, `[n, n]`, kept as float64. Rounding errors of the type that it came in are put right: it is made
            symmetric, and of a type coarser than float64 the diagonal makes rows sum to 1.

    Raises:
        ValueError: W is not a square matrix of finite numbers, not symmetric, a row does not sum to 1, the graph is not
            connected, or it is but gossip does not converge (rho = 1: W permutes two halves). It names the row, pair or component.
    """

    name: str
    W: np.ndarray

    def __post_init__(self):
        W, tolerance = _read(self.name, self.W)
        _check_entries(self.name, W, tolerance)
        _check_connected(self.name, W)
        W = (W + W.T) / 2
        if tolerance > _TOLERANCE:
            np.fill_diagonal(W, W.diagonal() + 1 - W.sum(axis=1))
        W.setflags(write=False)
        object.__setattr__(self, "W", W)
        if self.rho > 1 - 1e-12:
            raise ValueError(
                f"{self.name}: rho = {self.rho:.6g}, so gossip does not converge although the graph is connected; need"
                " rho < 1 (give the workers a positive weight for themselves)"
            )

    @property
    def n(self) -> int:
        """Number of workers."""
        return self.W.shape[0]

    @cached_property
    def neighbours(self) -> np.ndarray:
        """How many neighbours each worker has, itself not counted: int `[n]`."""
        return np.count_nonzero(self.W - np.diag(np.diag(self.W)), axis=1)

    @cached_property
    def degree(self) -> int:
        """Most neighbours that a worker has."""
        return int(self.neighbours.max())

    @cached_property
    def rho(self) -> float:
        """Second largest absolute eigenvalue of W, exact."""
        if self.n == 1:
            return 0.0
        if self._circulant:
            return float(np.abs(np.fft.fft(self.W[0])[1:]).max())
        return float(np.abs(np.linalg.eigvalsh(self.W - 1 / self.n)).max())

    @property
    def spectral_gap(self) -> float:
        """1 - rho."""
        return 1 - self.rho

    @cached_property
    def uniform(self) -> bool:
        """Whether W = 11^T / n, which averages everybody at once."""
        return bool(np.allclose(self.W, 1 / self.n, rtol=0, atol=_TOLERANCE))

    @cached_property
    def shifts(self) -> dict[int, float] | None:
        """Weights by shift, {s: W[i, i - s]} with |s| <= n/2, if W is circulant with few non-zeros in a row; else None."""
        if not self._circulant:
            return None
        row = self.W[0]
        by = {int(-j if 2 * j <= self.n else self.n - j): float(row[j]) for j in np.flatnonzero(row)}
        return by if len(by) <= _MOST_SHIFTS else None

    @cached_property
    def _circulant(self) -> bool:
        index = (np.arange(self.n)[None, :] - np.arange(self.n)[:, None]) % self.n
        return bool(np.array_equal(self.W[0][index], self.W))


def _read(name: str, W: np.ndarray) -> tuple[np.ndarray, float]:
    """W in float64, and how far off its entries may be."""
    if W.dtype.kind not in "fiub":
        raise ValueError(f"{name}: W has type {W.dtype}; need real numbers")
    return W.astype(np.float64), max(_TOLERANCE, 16 * float(np.finfo(W.dtype).eps) if W.dtype.kind == "f" else 0.0)


def _check_entries(name: str, W: np.ndarray, tolerance: float) -> None:
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise ValueError(f"{name}: W has shape {W.shape}; need a square matrix [n, n] with n >= 1")
    if not np.isfinite(W).all():
        i, j = np.argwhere(~np.isfinite(W))[0]
        raise ValueError(f"{name}: W[{i}, {j}] = {W[i, j]}; need finite weights")
    asymmetry = np.abs(W - W.T)
    if asymmetry.max() > tolerance:
        i, j = np.unravel_index(asymmetry.argmax(), W.shape)
        given = f"W[{i}, {j}] = {W[i, j]:.6g} but W[{j}, {i}] = {W[j, i]:.6g}"
        raise ValueError(f"{name}: {given} (off by {asymmetry[i, j]:.2g}); need a symmetric W")
    off = np.abs(W.sum(axis=1) - 1)
    if off.max() > tolerance:
        row = int(off.argmax())
        raise ValueError(f"{name}: row {row} of W sums to {W[row].sum():.6g}, not 1 (off by {off[row]:.2g})")


def _check_connected(name: str, W: np.ndarray) -> None:
    parts, label = connected_components(csr_array(W != 0), directed=False)
    if parts > 1:
        first = np.flatnonzero(label == label[0]).tolist()
        shown = ", ".join(map(str, first[:8])) + (", ..." if len(first) > 8 else "")
        raise ValueError(
            f"{name}: the graph falls into {parts} components, one of them workers {{{shown}}}; need a connected graph,"
            " or the workers never agree"
        )
