"""Who averages with whom, and how much: the mixing matrices of gossip, validated when made. The
graphs are in the package `topologies`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from operator import add
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from scipy.sparse import block_array, coo_array, csr_array, dia_array, issparse

from dsgd import array_likes, checks
from dsgd.graphs import spectra

# errors that are corrected: of float32 computations, of six printed digits; of coarser types, 16
# epsilons
TOLERANCE = 1e-6 * (1 + 1e-6)
_EXACT = 1e-12  # up to which a sum in float64 counts as 1: such matrices are kept as they are

Label = Callable[[int], str]


@checks.arguments
class Topology:
    r"""A connected graph with its mixing matrix W, or a schedule of such matrices, one a round over
    and over.

    Worker i takes $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2). Columns of W sum to 1, so that the mean
    of the models is kept. It may be more:

    - symmetric (Assumption 7 of the survey): what proofs for undirected graphs need. Negative
      weights are allowed.
    - doubly stochastic: rows sum to 1 as well, so that models that agree stay as they are. Every
      symmetric W is.
    - only columns sum to 1: a directed graph whose senders do not know who receives as much; for
      push-sum methods.

    Args:
        name: as a user would write it, `ring(16)`.
        W: the mixing matrix `[n, n]`, dense or of scipy.sparse; or several, as `[period, n, n]` or
            in a sequence: a schedule. Kept in float64. Errors of at most 1e-6 (of 16 epsilons of a
            coarser type) are corrected: an almost symmetric W becomes symmetric, and the diagonal
            makes columns sum to 1.
        names: what the workers are called in errors and pictures, worker 0 first; None: by their
            numbers.

    Raises:
        ValueError: W is not square, finite and real; columns do not sum to 1; the graph, or all of
            a schedule's together, is not (strongly) connected; or it is but gossip does not
            converge. It names the row, pair, column or component. Also if `names` are not n
            different ones.
    """

    def __init__(self, name: str, W: Any, names: Sequence[Any] | None = None) -> None:
        self.name = name
        self.names: tuple[Any, ...] | None = (
            None
            if names is None
            else tuple(one.item() if isinstance(one, np.generic) else one for one in names)
        )
        """What the workers are called, worker 0 first; None: by their numbers."""
        rounds = _rounds(name, W)
        label = _labels(name, self.names, max(rounds[0].shape, default=0))
        self.matrices: tuple[csr_array, ...] = _validated(name, rounds, label)
        """The mixing matrices of a period, in scipy's compressed rows."""
        _check_connected(name, self.matrices, label)
        if not self._shrinks() and self.rho > 1 - 1e-12:
            raise ValueError(
                f"{name}: rho = {self.rho:.6g}, so gossip does not converge although the graph is "
                "connected; need"
                " rho < 1 (give the workers a positive weight for themselves)"
            )

    def __repr__(self) -> str:
        return f"Topology({self.name})"

    @property
    def n(self) -> int:
        """Number of workers."""
        return spectra.size(self.matrices[0])

    def require_workers(self, name: str, workers: int) -> None:
        """Raises a ValueError if the topology is one of another number of workers.

        Args:
            name: of the method, for the message.
            workers: N.
        """
        if self.n != workers:
            raise ValueError(
                f"{name} on {self.name}: the topology has {self.n} nodes but the problem has "
                f"{workers} workers; need the same number"
            )

    @property
    def period(self) -> int:
        """Rounds after which the schedule begins again; 1 for one matrix."""
        return len(self.matrices)

    @cached_property
    def W(self) -> np.ndarray:
        """The mixing matrix, float64 `[n, n]`; of a schedule, the product over a period: what a
        period makes of the models is W x.
        """
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
        return all(np.abs(W.sum(axis=1) - 1).max() <= 100 * _EXACT for W in self.matrices)

    @cached_property
    def sends(self) -> np.ndarray:
        """To how many others each worker sends in each round of a period: int `[period, n]`."""
        return np.stack([np.bincount(links[:, 0], minlength=self.n) for links in self.links])

    @cached_property
    def receives(self) -> np.ndarray:
        """From how many others each worker receives in each round of a period: int `[period,
        n]`.
        """
        return np.stack([np.bincount(links[:, 1], minlength=self.n) for links in self.links])

    @property
    def degree(self) -> int:
        """Most messages that a worker sends, or receives, in a round."""
        return int(max(self.sends.max(), self.receives.max()))

    @cached_property
    def edges(self) -> np.ndarray:
        """Pairs of workers, int `[m, 2]`: (i, j) with i < j; of a directed graph (sender,
        receiver). A schedule's are of all rounds.
        """
        links = np.unique(np.concatenate(self.links), axis=0)
        return links[links[:, 0] < links[:, 1]] if self.symmetric else links

    @cached_property
    def rho(self) -> float:
        """Second largest absolute eigenvalue of W: what is left of disagreement after a round, of a
        schedule after a period.
        """
        return spectra.second_largest(self.matrices)

    @property
    def spectral_gap(self) -> float:
        """1 - rho."""
        return 1 - self.rho

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """Above -1 if gossip converges, and some methods need more. Of one symmetric W; a
        ValueError of any other, or a schedule.
        """
        if not self.symmetric or self.period > 1:
            raise ValueError(
                f"{self.name}: smallest_eigenvalue is of one symmetric W; this is "
                f"{'a schedule' if self.symmetric else 'not symmetric'}"
            )
        return spectra.smallest(self.matrices[0])

    @cached_property
    def uniform(self) -> bool:
        """Whether W = 11^T / n, which averages everybody at once."""
        W = self.matrices[0]
        return (
            self.period == 1
            and W.nnz == self.n**2
            and bool(np.allclose(W.data, 1 / self.n, rtol=TOLERANCE, atol=0))
        )

    @checks.arguments
    def mixing_time(self, eps: float) -> int:
        r"""Rounds of gossip after which, whatever the start, disagreement is at most eps times what
        it was.

        $$ \min \{ t : \| \mathrm{diag}(P_t 1)^{-1} P_t - 11^T/n \|_2 \le \epsilon \}, \qquad P_t =
        W_t \cdots W_1 $$

        For a symmetric W it is $\lceil \log \epsilon / \log \rho \rceil$. The diagonal is what
        push-sum divides by, 1 if W is doubly stochastic. Where a round may make the norm larger (in
        push-sum, or with negative weights) and so it falls below $\epsilon$ more than once, it is
        one of these times.

        Args:
            eps: between 0 and 1.

        Raises:
            ValueError: another eps; or one below 1e-12 where W is not symmetric or a schedule:
                float64 cannot tell.
        """
        if not 0 < eps < 1:
            raise ValueError(f"mixing_time({eps}): need a number between 0 and 1")
        if self.symmetric and self.period == 1 and self.n > 1:
            return spectra.rounds_at(self.rho, eps)
        if eps < 1e-12:
            raise ValueError(
                f"mixing_time({eps}) of {self.name}: need at least 1e-12, below which float64 "
                "cannot tell"
            )
        return spectra.rounds_until(self.matrices, eps)

    @cached_property
    def links(self) -> list[np.ndarray]:
        """(sender, receiver) of every message of each round."""
        coordinates = [coo_array(W) for W in self.matrices]
        return [np.stack([W.col, W.row], axis=1)[W.row != W.col] for W in coordinates]

    def _shrinks(self) -> bool:
        """Whether it is plain that gossip converges: everybody keeps a positive part of its own,
        and no weight is negative.
        """
        return all(W.data.min() > 0 and W.diagonal().min() > 0 for W in self.matrices)


def _validated(name: str, rounds: list[Any], label: Label) -> tuple[csr_array, ...]:
    """The matrices of a period, corrected."""
    where = [name if len(rounds) == 1 else f"{name}, round {t}" for t in range(len(rounds))]
    read = [_read(at, matrix, label) for at, matrix in zip(where, rounds, strict=True)]
    for at, (matrix, _) in zip(where, read, strict=True):
        if matrix.shape != read[0][0].shape:
            raise ValueError(
                f"{at}: W has shape {matrix.shape}, the first round's {read[0][0].shape}; need as "
                "many workers in every round"
            )
    return tuple(
        _corrected(at, matrix, tolerance, label)
        for at, (matrix, tolerance) in zip(where, read, strict=True)
    )


def _rounds(name: str, W: Any) -> list[Any]:
    """The matrices that were given, one or several: at least one, square."""
    if issparse(W) or (
        isinstance(W, list | tuple)
        and all(issparse(matrix) or getattr(matrix, "ndim", 0) == 2 for matrix in W)
    ):
        rounds = list(W) if isinstance(W, list | tuple) else [W]
    else:
        given = _dense(name, W)
        rounds = list(given) if given.ndim == 3 else [given]
    if not rounds:
        raise ValueError(f"{name}: W is a schedule of no rounds; need at least one mixing matrix")
    return [matrix if issparse(matrix) else _dense(name, matrix) for matrix in rounds]


def _dense(name: str, W: Any) -> np.ndarray:
    for attribute, remedy in (
        ("adj", "topologies.from_graph(W)"),
        ("todense", "W.todense()"),
        ("matrices", "W itself"),
    ):
        if hasattr(W, attribute):  # a graph of networkx, a sparse array of JAX, a topology
            raise ValueError(
                f"{name}: W is a {type(W).__name__}; need a matrix [n, n]: pass {remedy}"
            )
    if isinstance(W, np.ma.MaskedArray) and np.ma.is_masked(W):
        raise ValueError(
            f"{name}: W has masked entries; need numbers only: W.filled(0), if these pairs do not "
            "communicate"
        )
    return array_likes.numbers(f"{name}: W", W)


def _read(name: str, W: Any, label: Label) -> tuple[csr_array, float]:
    """W in float64, and how far off its sums may be."""
    floating = jnp.issubdtype(W.dtype, jnp.floating)  # bfloat16, too
    if not floating and W.dtype.kind not in "iub":
        raise ValueError(f"{name}: W has type {W.dtype}; need real numbers{array_likes.hint(W)}")
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise ValueError(f"{name}: W has shape {W.shape}; need a square matrix [n, n] with n >= 1")
    coarse = 16 * float(jnp.finfo(W.dtype).eps) if floating else 0.0
    sparse = csr_array(W.astype(np.float64), copy=True)
    sparse.sum_duplicates()
    sparse.eliminate_zeros()
    finite = np.isfinite(sparse.data)
    if not finite.all():
        entry = coo_array(sparse)
        i, j, value = (values[~finite][0] for values in (entry.row, entry.col, entry.data))
        raise ValueError(f"{name}: W[{label(i)}, {label(j)}] = {value}; need finite weights")
    return sparse, max(TOLERANCE, coarse)


def _corrected(name: str, W: csr_array, tolerance: float, label: Label) -> csr_array:
    """W without errors up to the tolerance, which are those of rounding; larger ones are
    refused.
    """
    off_diagonal = coo_array(W)
    largest = np.abs(off_diagonal.data[off_diagonal.row != off_diagonal.col]).max(initial=0)
    # where all weights are tiny, so are the errors: W may be slow and directed
    small = min(tolerance, largest / 64)
    negative = (W.data < 0) & (W.data >= -min(TOLERANCE, small))
    if negative.any():
        W.data[negative] = 0
        W.eliminate_zeros()
    asymmetry = abs(W - W.T)
    symmetric = asymmetry.max() <= small
    off = np.abs(W.sum(axis=0) - 1)
    if off.max() > tolerance:
        _refuse_sums(name, W, off, None if symmetric else coo_array(asymmetry), tolerance, label)
    if symmetric:
        W = csr_array((W + W.T) / 2)
    elif _EXACT < _off_rows(W) <= small:
        W = _balanced(W)
    if not symmetric and _off_rows(W) > _EXACT:
        _check_push_sum(name, W, label)
    missing = 1 - W.sum(axis=0)
    missing[np.abs(missing) <= _EXACT] = 0
    if missing.any():
        W = csr_array(W + dia_array((missing[None, :], [0]), shape=W.shape))
    W.sort_indices()
    return W


def _off_rows(W: csr_array) -> float:
    return float(np.abs(W.sum(axis=1) - 1).max())


def _balanced(W: csr_array) -> csr_array:
    r"""The doubly stochastic matrix $W_{ij} (1 + a_i + b_j)$ near one whose rows and columns almost
    sum to 1: linearised, twice.
    """
    from scipy.sparse.linalg import lsqr  # noqa: PLC0415 (a tenth of a second that exact matrices are spared)

    for _ in range(2):
        rows, columns = W.sum(axis=1), W.sum(axis=0)
        system = block_array(
            [
                [dia_array((rows[None], [0]), shape=W.shape), W],
                [W.T, dia_array((columns[None], [0]), shape=W.shape)],
            ]
        )
        a, b = np.split(
            lsqr(system, np.concatenate([1 - rows, 1 - columns]), atol=1e-15, btol=1e-15)[0], 2
        )
        entry = coo_array(W)
        W = csr_array(
            (entry.data * (1 + a[entry.row] + b[entry.col]), (entry.row, entry.col)), shape=W.shape
        )
    return W


def _check_push_sum(name: str, W: csr_array, label: Label) -> None:
    """Raises a ValueError if push-sum, which divides by what arrives of 1, cannot use W, whose rows
    do not sum to 1.
    """
    entry, sums = coo_array(W), W.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if entry.data.min() < 0:
        at = entry.data.argmin()
        raise ValueError(
            f"{name}: row {label(worst)} of W sums to {_apart(sums[worst], 1)}, not 1, as for "
            "push-sum, and"
            f" W[{label(int(entry.row[at]))}, {label(int(entry.col[at]))}] = "
            f"{entry.data[at]:.6g}; need weights >= 0"
        )
    if W.diagonal().min() <= 0:
        at = label(int(W.diagonal().argmin()))
        raise ValueError(
            f"{name}: W[{at}, {at}] = 0; need a part that each worker keeps, for push-sum"
        )


def _refuse_sums(
    name: str,
    W: csr_array,
    off: np.ndarray,
    asymmetry: coo_array | None,
    tolerance: float,
    label: Label,
) -> NoReturn:
    worst = int(off.argmax())
    column = _apart(W.sum(axis=0)[worst], 1)
    hint = f"errors up to {tolerance:.2g} are corrected"
    if asymmetry is None:
        remedy = f"{hint}; W + np.diag(1 - W.sum(axis=0)) has sums of 1"
        if (W.data == 1).all():
            remedy = (
                "of a graph's 0s and 1s, topologies.from_graph(networkx.Graph(W)) makes weights"
            )
        raise ValueError(
            f"{name}: row {label(worst)} of W sums to {column}, not 1 (off by {off[worst]:.2g}); "
            f"{remedy}"
        )
    at = asymmetry.data.argmax()
    i, j = int(asymmetry.row[at]), int(asymmetry.col[at])
    first, second = (
        f"W[{label(a)}, {label(b)}] = {_apart(W[a, b], W[b, a])}" for a, b in ((i, j), (j, i))
    )
    transposed = " (its rows do: is it the transpose?)" if _off_rows(W) <= tolerance else ""
    raise ValueError(
        f"{name}: {first} but {second} (off by {asymmetry.data[at]:.2g}), and column "
        f"{label(worst)} sums to {column}; need a symmetric W"
        f" with rows that sum to 1 (it is off by {off[worst]:.2g}; {hint}), or for a directed "
        "graph, as W / W.sum(axis=0), columns that"
        f" do{transposed}"
    )


def _apart(value: float, other: float) -> str:
    """A value with as many digits as show that it is another."""
    off = abs(value - other)
    return f"{value:.{max(6, 2 - math.floor(math.log10(off))) if off else 6}g}"


def _labels(name: str, names: tuple[Any, ...] | None, n: int) -> Label:
    """What errors call a worker."""
    if names is None:
        return str
    if len(names) != n or _repeated(names):
        raise ValueError(
            f"{name}: names = {checks.shown(names)}: need {n} different names, one for each worker"
        )
    return lambda worker: repr(names[worker])


def _repeated(names: tuple[Any, ...]) -> bool:
    try:
        return len(set(names)) < len(names)
    except TypeError:  # without a hash
        return len({repr(one) for one in names}) < len(names)


def _check_connected(name: str, matrices: Sequence[csr_array], label: Label) -> None:
    links: Any = reduce(add, map(abs, matrices))
    if spectra.circulant(links) and np.gcd.reduce(links[[0]].indices, initial=links.shape[0]) == 1:
        return  # around the ring in steps of which 1 is a sum
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 (a tenth of a second that rings are spared)

    parts, component = connected_components(links, directed=True, connection="strong")
    if parts > 1:
        smallest = component[int(np.bincount(component)[component].argmin())]
        first = np.flatnonzero(component == smallest).tolist()
        shown, called = (
            ", ".join(map(say, first[:8])) + (", ..." if len(first) > 8 else "")
            for say in (str, label)
        )
        raise ValueError(
            f"{name}: the graph falls into {parts} components, one of them workers "
            f"{{{shown}}}{f' ({called})' * (called != shown)};"
            " need a connected graph"
            f"{' (a directed one strongly)' if any(not spectra.symmetric(W) for W in matrices) else ''}, or the workers never agree"
        )
