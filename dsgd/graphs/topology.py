"""Who averages with whom, and how much: the mixing matrices of gossip, validated when made. The graphs are in the package `topologies`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from operator import add
from typing import Any, NoReturn

import numpy as np
from scipy.sparse import coo_array, csr_array, dia_array, issparse

from dsgd import checks
from dsgd.graphs import spectra

_TOLERANCE = 1e-8  # of a float64 matrix that somebody wrote down or computed; of a coarser type, 16 of its epsilons


@checks.arguments
class Topology:
    r"""A connected graph with its mixing matrix W, or a schedule of such matrices, one a round over and over.

    Worker i takes $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2). Columns of W sum to 1, so that the mean of the models is kept. It may be more:

    - symmetric (Assumption 7 of the survey): what proofs for undirected graphs need. Negative weights are allowed.
    - doubly stochastic: rows sum to 1 as well, so that models that agree stay as they are. Every symmetric W is.
    - only columns sum to 1: a directed graph whose senders do not know who receives as much; for push-sum methods.

    Args:
        name: as a user would write it, `ring(16)`.
        W: the mixing matrix `[n, n]`, dense or of scipy.sparse; or several, as `[period, n, n]` or in a sequence: a schedule. Kept in
            float64, where rounding errors of the type that it came in are put right: of float32 or float16 the diagonal makes columns sum
            to 1.

    Raises:
        ValueError: W is not square, finite and real; columns do not sum to 1; the graph, or all of a schedule's together, is not
            (strongly) connected; or it is but gossip does not converge. It names the row, pair, column or component.
    """

    def __init__(self, name: str, W: Any) -> None:
        self.name = name
        self.matrices: tuple[csr_array, ...]
        self.matrices, self._tolerance = _validated(name, W)
        """The mixing matrices of a period, in scipy's compressed rows."""
        _check_connected(name, self.matrices)
        if not self._shrinks() and self.rho > 1 - 1e-12:
            raise ValueError(
                f"{name}: rho = {self.rho:.6g}, so gossip does not converge although the graph is connected; need"
                " rho < 1 (give the workers a positive weight for themselves)"
            )

    def __repr__(self) -> str:
        return f"Topology({self.name})"

    @property
    def n(self) -> int:
        """Number of workers."""
        return spectra.size(self.matrices[0])

    @property
    def period(self) -> int:
        """Rounds after which the schedule begins again; 1 for one matrix."""
        return len(self.matrices)

    @cached_property
    def W(self) -> np.ndarray:
        """The mixing matrix, float64 `[n, n]`; of a schedule, the product over a period: what a period makes of the models is W x."""
        W = spectra.product(self.matrices)
        W.setflags(write=False)
        return W

    @cached_property
    def symmetric(self) -> bool:
        """Whether every round's matrix is."""
        return all(spectra.symmetric(W) for W in self.matrices)

    @cached_property
    def doubly_stochastic(self) -> bool:
        """Whether rows sum to 1, too, in every round."""
        return all(np.abs(W.sum(axis=1) - 1).max() <= self._tolerance for W in self.matrices)

    @cached_property
    def sends(self) -> np.ndarray:
        """To how many others each worker sends in each round of a period: int `[period, n]`."""
        return np.stack([np.bincount(links[:, 0], minlength=self.n) for links in self.links])

    @cached_property
    def receives(self) -> np.ndarray:
        """From how many others each worker receives in each round of a period: int `[period, n]`."""
        return np.stack([np.bincount(links[:, 1], minlength=self.n) for links in self.links])

    @property
    def degree(self) -> int:
        """Most messages that a worker sends, or receives, in a round."""
        return int(max(self.sends.max(), self.receives.max()))

    @cached_property
    def edges(self) -> np.ndarray:
        """Pairs of workers, int `[m, 2]`: (i, j) with i < j; of a directed graph (sender, receiver). A schedule's are of all rounds."""
        links = np.unique(np.concatenate(self.links), axis=0)
        return links[links[:, 0] < links[:, 1]] if self.symmetric else links

    @cached_property
    def rho(self) -> float:
        """Second largest absolute eigenvalue of W: what is left of disagreement after a round, of a schedule after a period."""
        return spectra.second_largest(self.matrices)

    @property
    def spectral_gap(self) -> float:
        """1 - rho."""
        return 1 - self.rho

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """Above -1 if gossip converges, and some methods need more. Of one symmetric W; a ValueError of any other, or a schedule."""
        if not self.symmetric or self.period > 1:
            raise ValueError(
                f"{self.name}: smallest_eigenvalue is of one symmetric W; this is {'a schedule' if self.symmetric else 'not symmetric'}"
            )
        return spectra.smallest(self.matrices[0])

    @cached_property
    def uniform(self) -> bool:
        """Whether W = 11^T / n, which averages everybody at once."""
        W = self.matrices[0]
        return self.period == 1 and W.nnz == self.n**2 and bool(np.allclose(W.data, 1 / self.n, rtol=self._tolerance, atol=0))

    @checks.arguments
    def mixing_time(self, eps: float) -> int:
        r"""Rounds of gossip after which, whatever the start, disagreement is at most eps times what it was.

        $$ \min \{ t : \| \mathrm{diag}(P_t 1)^{-1} P_t - 11^T/n \|_2 \le \epsilon \}, \qquad P_t = W_t \cdots W_1 $$

        For a symmetric W it is $\lceil \log \epsilon / \log \rho \rceil$. The diagonal is what push-sum divides by, 1 if W is doubly
        stochastic. Where a round may make the norm larger (in push-sum, or with negative weights) and so it falls below $\epsilon$ more
        than once, it is one of these times.

        Args:
            eps: between 0 and 1.

        Raises:
            ValueError: another eps; or one below 1e-12 where W is not symmetric or a schedule: float64 cannot tell.
        """
        if not 0 < eps < 1:
            raise ValueError(f"mixing_time({eps}): need a number between 0 and 1")
        if self.symmetric and self.period == 1 and self.n > 1:
            return spectra.rounds_at(self.rho, eps)
        if eps < 1e-12:
            raise ValueError(f"mixing_time({eps}) of {self.name}: need at least 1e-12, below which float64 cannot tell")
        return spectra.rounds_until(self.matrices, eps)

    @cached_property
    def links(self) -> list[np.ndarray]:
        """(sender, receiver) of every message of each round."""
        coordinates = [coo_array(W) for W in self.matrices]
        return [np.stack([W.col, W.row], axis=1)[W.row != W.col] for W in coordinates]

    def _shrinks(self) -> bool:
        """Whether it is plain that gossip converges: everybody keeps a positive part of its own, and no weight is negative."""
        return all(W.data.min() > 0 and W.diagonal().min() > 0 for W in self.matrices)


def _validated(name: str, W: Any) -> tuple[tuple[csr_array, ...], float]:
    """The matrices of a period, and how far off their sums may be."""
    rounds = _rounds(name, W)
    if not rounds:
        raise ValueError(f"{name}: W is a schedule of no rounds; need at least one mixing matrix")
    where = [name if len(rounds) == 1 else f"{name}, round {t}" for t in range(len(rounds))]
    read = [_read(at, matrix) for at, matrix in zip(where, rounds, strict=True)]
    for at, (matrix, _) in zip(where, read, strict=True):
        if matrix.shape != read[0][0].shape:
            raise ValueError(f"{at}: W has shape {matrix.shape}, the first round's {read[0][0].shape}; need as many workers in every round")
    tolerance = max(tolerance for _, tolerance in read)
    return tuple(_check_weights(at, matrix, tolerance) for at, (matrix, _) in zip(where, read, strict=True)), tolerance


def _rounds(name: str, W: Any) -> list[Any]:
    """The matrices that were given, one or several."""
    if issparse(W):
        return [W]
    if isinstance(W, list | tuple) and all(issparse(matrix) or getattr(matrix, "ndim", 0) == 2 for matrix in W):
        return list(W)
    try:
        given = np.asarray(W)
    except (ValueError, TypeError) as error:  # rows of different lengths; JAX's keys
        raise ValueError(f"{name}: W is no matrix of numbers ({error}); need a square matrix [n, n]") from error
    return list(given) if given.ndim == 3 else [given]


def _read(name: str, W: Any) -> tuple[csr_array, float]:
    """W in float64, and how far off its entries may be."""
    W = W if issparse(W) else np.asarray(W)
    if W.dtype.kind not in "fiub":
        raise ValueError(f"{name}: W has type {W.dtype}; need real numbers")
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise ValueError(f"{name}: W has shape {W.shape}; need a square matrix [n, n] with n >= 1")
    coarse = 16 * float(np.finfo(W.dtype).eps) if W.dtype.kind == "f" else 0.0
    sparse = csr_array(W, dtype=np.float64, copy=True)
    sparse.sum_duplicates()
    sparse.eliminate_zeros()
    finite = np.isfinite(sparse.data)
    if not finite.all():
        entry = coo_array(sparse)
        i, j, value = (values[~finite][0] for values in (entry.row, entry.col, entry.data))
        raise ValueError(f"{name}: W[{i}, {j}] = {value}; need finite weights")
    return sparse, max(_TOLERANCE, coarse)


def _check_weights(name: str, W: csr_array, tolerance: float) -> csr_array:
    """The same with its rounding errors put right."""
    asymmetry = abs(W - W.T)
    symmetric = asymmetry.max() <= tolerance
    off = np.abs(W.sum(axis=0) - 1)
    if off.max() > tolerance:
        _refuse_sums(name, W, off, None if symmetric else coo_array(asymmetry), tolerance)
    rows_off = np.abs(W.sum(axis=1) - 1)
    if rows_off.max() > tolerance:  # a directed graph for push-sum, which divides by what arrives of 1
        entry = coo_array(W)
        if entry.data.min() < 0:
            at = entry.data.argmin()
            raise ValueError(
                f"{name}: row {rows_off.argmax()} of W sums to {W.sum(axis=1)[rows_off.argmax()]:.6g}, not 1, as for push-sum, and"
                f" W[{entry.row[at]}, {entry.col[at]}] = {entry.data[at]:.6g}; need weights >= 0"
            )
        if W.diagonal().min() <= 0:
            raise ValueError(
                f"{name}: W[{W.diagonal().argmin()}, {W.diagonal().argmin()}] = 0; need a part that each worker keeps, for push-sum"
            )
    W = csr_array((W + W.T) / 2) if symmetric else W
    if tolerance > _TOLERANCE:
        W = csr_array(W + dia_array(((1 - W.sum(axis=0))[None, :], [0]), shape=W.shape))
    W.sort_indices()
    return W


def _refuse_sums(name: str, W: csr_array, off: np.ndarray, asymmetry: coo_array | None, tolerance: float) -> NoReturn:
    worst = int(off.argmax())
    total = W.sum(axis=0)[worst]
    if asymmetry is None:
        raise ValueError(f"{name}: row {worst} of W sums to {total:.6g}, not 1 (off by {off[worst]:.2g})")
    at = asymmetry.data.argmax()
    i, j = int(asymmetry.row[at]), int(asymmetry.col[at])
    pair = f"W[{i}, {j}] = {W[i, j]:.6g} but W[{j}, {i}] = {W[j, i]:.6g} (off by {asymmetry.data[at]:.2g})"
    transposed = " (its rows do: is it the transpose?)" if np.abs(W.sum(axis=1) - 1).max() <= tolerance else ""
    raise ValueError(
        f"{name}: {pair}, and column {worst} sums to {total:.6g}; need a symmetric W with rows that sum to 1, or for a directed graph"
        f" columns that do{transposed}"
    )


def _check_connected(name: str, matrices: Sequence[csr_array]) -> None:
    links: Any = reduce(add, map(abs, matrices))
    if spectra.circulant(links) and np.gcd.reduce(links[[0]].indices, initial=links.shape[0]) == 1:
        return  # around the ring in steps of which 1 is a sum
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 (a tenth of a second that rings are spared)

    parts, label = connected_components(links, directed=True, connection="strong")
    if parts > 1:
        first = np.flatnonzero(label == label[0]).tolist()
        shown = ", ".join(map(str, first[:8])) + (", ..." if len(first) > 8 else "")
        raise ValueError(
            f"{name}: the graph falls into {parts} components, one of them workers {{{shown}}}; need a connected graph"
            f"{' (a directed one strongly)' if any(not spectra.symmetric(W) for W in matrices) else ''}, or the workers never agree"
        )
