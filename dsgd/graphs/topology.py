"""Gossip topologies: mixing matrices, validated at construction. The package `topologies` has
functions that make them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import jax.numpy as jnp
import numpy as np
from scipy.sparse import block_array, coo_array, csr_array, dia_array, eye_array, issparse

from dsgd import array_likes, checks, spelling
from dsgd.graphs import spectra
from dsgd.graphs.sizes import require_memory

# Errors up to this are corrected: those of float32 computations or of six printed digits. For
# coarser types the limit is 16 epsilons.
TOLERANCE = 1e-6 * (1 + 1e-6)
_ENTRY = 16  # bytes of each entry of a dense matrix, with its copy
_EXACT = 1e-12  # float64 sums within this distance of 1 are not corrected

Label = Callable[[int], str]
Role = Literal["gossip", "pull", "push"]


@checks.arguments
class Topology:
    r"""A connected graph with its mixing matrix W, or a periodic schedule of such matrices, one for
    each round.

    Worker i computes $x_i \leftarrow \sum_j W_{ij} x_j$ (5.2). The columns of W sum to 1, so that
    gossip keeps the mean of the models. A mixing matrix can be

    - symmetric (Assumption 7 of the survey), which the proofs for undirected graphs need. Negative
      weights are allowed.
    - doubly stochastic: the rows sum to 1 as well, so that gossip does not change models that are
      all equal. Every symmetric W is doubly stochastic.
    - column-stochastic only: a directed graph, for push-sum methods.

    Push-pull methods also use matrices that do not mix to a mean. Such a matrix has another *role*,
    and all other methods refuse it:

    - "pull": the rows sum to 1, so that gossip does not change models that are all equal. One
      worker must reach all others along the edges.
    - "push": the columns sum to 1, so that gossip keeps sums over workers. All other workers must
      reach one worker.

    Args:
        name: the expression that makes the topology, such as `ring(16)`; for tables and error
            messages.
        W: the mixing matrix `[n, n]`, dense or scipy.sparse; or a schedule of several, `[period, n,
            n]` or a sequence of matrices. It is stored in float64. Errors of at most 1e-6 (16
            epsilons for types coarser than float32) are corrected: an almost symmetric W is made
            symmetric, and the diagonal is adjusted so that the columns sum to 1.
        names: names of the workers in error messages and pictures, worker 0 first; None: their
            numbers.
        role: what W is for: "gossip", or "pull" or "push" in a push-pull method.

    Raises:
        ValueError: if W is not square, finite and real; if its columns (rows for "pull") do not sum
            to 1; if the graph (of a schedule: the union of all rounds) is not connected, or
            strongly connected if directed (for the other roles: as stated above); or if it is
            connected but gossip does not converge. The message names the row, pair, column or
            component. Also if `names` are not n different names.
    """

    role: Role = "gossip"
    """What W is for: "gossip", "pull" or "push"."""

    def __init__(
        self, name: str, W: Any, names: Sequence[Any] | None = None, role: Role = "gossip"
    ) -> None:
        if role not in get_args(Role):
            raise ValueError(
                f"{name}: role = {role!r}; expected one of {', '.join(map(repr, get_args(Role)))}"
            )
        self.name = name
        self.role = role
        self.names: tuple[Any, ...] | None = (
            None
            if names is None
            else tuple(one.item() if isinstance(one, np.generic) else one for one in names)
        )
        """Names of the workers, worker 0 first; None: they have numbers only."""
        rounds = _rounds(name, W)
        label = _labels(name, self.names, max(rounds[0].shape, default=0))
        self.matrices: tuple[csr_array, ...] = _validate(name, rounds, label, role)
        """The mixing matrices of a period, as scipy.sparse.csr_array."""
        _check_connected(name, self.matrices, label, role)
        if not self._shrinks() and self.rho > 1 - 1e-12:
            raise ValueError(
                f"{name}: rho = {self.rho:.6g}, so gossip does not converge although the graph is "
                "connected; expected rho < 1: give each worker a positive weight for itself"
            )

    def __repr__(self) -> str:
        return f"Topology({self.name})"

    if not TYPE_CHECKING:  # type checkers report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            known = [each for each in vars(Topology) if not each.startswith("_")]
            end = "" if name.startswith("_") else spelling.suggest(name, known)
            raise AttributeError(f"'Topology' object has no attribute {name!r}{end}")

    @property
    def n(self) -> int:
        """Number of workers."""
        return spectra.size(self.matrices[0])

    def require_workers(self, name: str, workers: int) -> None:
        """Raises a ValueError unless the topology has this number of workers.

        Args:
            name: name of the method, for the message.
            workers: N.
        """
        if self.n != workers:
            raise ValueError(
                f"{name} on {self.name}: the topology has {self.n} nodes but the problem has "
                f"{workers} workers; expected the same number"
            )

    def require_one_exchange(self, name: str) -> None:
        """Raises a ValueError if a round of gossip has several exchanges (`topologies.chebyshev`).

        Args:
            name: where it is used, for the message.
        """

    @property
    def period(self) -> int:
        """Number of rounds after which the schedule repeats; 1 for a single matrix."""
        return len(self.matrices)

    @cached_property
    def W(self) -> np.ndarray:
        """The mixing matrix, float64 `[n, n]`; for a schedule, the product over a period."""
        require_memory(f"{self.name}: W", self.n**2, _ENTRY)
        W = spectra.product(self.matrices)
        W.setflags(write=False)
        return W

    @cached_property
    def symmetric(self) -> bool:
        """Whether the matrix of every round is symmetric."""
        return all(spectra.symmetric(W) for W in self.matrices)

    @cached_property
    def row_stochastic(self) -> bool:
        """Whether the rows sum to 1 in every round."""
        return all(np.abs(W.sum(axis=1) - 1).max() <= 100 * _EXACT for W in self.matrices)

    @cached_property
    def column_stochastic(self) -> bool:
        """Whether the columns sum to 1 in every round."""
        return all(np.abs(W.sum(axis=0) - 1).max() <= 100 * _EXACT for W in self.matrices)

    @property
    def doubly_stochastic(self) -> bool:
        """Whether the rows and the columns sum to 1 in every round."""
        return self.row_stochastic and self.column_stochastic

    @cached_property
    def roots(self) -> np.ndarray:
        """The workers that reach all others along the edges (for the role "push": that all others
        reach), int `[m]`. If the graph is strongly connected, these are all workers.
        """
        return np.flatnonzero(_ends(_all_links(self.matrices), self.role))

    @cached_property
    def out_degrees(self) -> np.ndarray:
        """Number of workers that each worker sends to in each round of a period, int `[period,
        n]`.
        """
        return np.stack([np.bincount(links[:, 0], minlength=self.n) for links in self.links])

    @cached_property
    def in_degrees(self) -> np.ndarray:
        """Number of workers that each worker receives from in each round of a period, int `[period,
        n]`.
        """
        return np.stack([np.bincount(links[:, 1], minlength=self.n) for links in self.links])

    @property
    def degree(self) -> int:
        """Largest number of messages that a worker sends, or receives, in a round."""
        return int(max(self.out_degrees.max(), self.in_degrees.max()))

    @cached_property
    def edges(self) -> np.ndarray:
        """The edges as pairs of workers, int `[m, 2]`: (i, j) with i < j; for a directed graph
        (sender, receiver). For a schedule, the edges of all rounds.
        """
        links = np.unique(np.concatenate(self.links), axis=0)
        return links[links[:, 0] < links[:, 1]] if self.symmetric else links

    @cached_property
    def rho(self) -> float:
        """Second largest absolute eigenvalue of W: the asymptotic factor by which a round (of a
        schedule: a period) reduces disagreement.
        """
        return spectra.second_largest(self.matrices)

    @property
    def spectral_gap(self) -> float:
        """The spectral gap, 1 - rho."""
        return 1 - self.rho

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """Smallest eigenvalue of W. It is above -1 if gossip converges; some methods need a larger
        one.

        Raises:
            ValueError: if W is not symmetric, or the topology is a schedule.
        """
        return spectra.smallest(self._single("smallest_eigenvalue"))

    @cached_property
    def second_eigenvalue(self) -> float:
        """Second largest eigenvalue of W, with its sign; 0 for one worker.

        Raises:
            ValueError: if W is not symmetric, or the topology is a schedule.
        """
        # The eigenvalues of I + W are not negative.
        W = self._single("second_eigenvalue")
        return spectra.second_largest([csr_array(W + eye_array(self.n))]) - 1 if self.n > 1 else 0.0

    def _single(self, what: str) -> csr_array:
        """Returns W, or raises ValueError if it is not one symmetric matrix."""
        if not self.symmetric or self.period > 1:
            raise ValueError(
                f"{self.name}: {what} of "
                f"{'a schedule' if self.symmetric else 'a W that is not symmetric'}; expected a "
                "single symmetric W"
            )
        return self.matrices[0]

    @cached_property
    def uniform(self) -> bool:
        """Whether W = 11^T / n, that is, whether one round computes the exact mean."""
        W = self.matrices[0]
        return (
            self.period == 1
            and W.nnz == self.n**2
            and bool(np.allclose(W.data, 1 / self.n, rtol=TOLERANCE, atol=0))
        )

    @checks.arguments
    def mixing_time(self, eps: float) -> int:
        r"""Returns the number of gossip rounds after which, for any start, the disagreement is at
        most eps times the initial one.

        $$ \min \{ t : \| \mathrm{diag}(P_t 1)^{-1} P_t - 11^T/n \|_2 \le \epsilon \}, \qquad P_t =
        W_t \cdots W_1 $$

        For a symmetric W it is $\lceil \log \epsilon / \log \rho \rceil$. The diagonal matrix holds
        the weights that push-sum divides by; it is the identity if W is doubly stochastic. The norm
        need not decrease in every round (in push-sum, or with negative weights); if it falls below
        $\epsilon$ more than once, one of these times is returned.

        Args:
            eps: accuracy, between 0 and 1.

        Raises:
            ValueError: if eps is not between 0 and 1; or if it is below 1e-12, the resolution of
                float64, and W is not symmetric or a schedule; or if W does not mix to the mean,
                because its role is "pull" or "push".
        """
        if self.role != "gossip" and not self.doubly_stochastic:
            raise ValueError(
                f"mixing_time: {self.name} is a topology for {self.role!r}, which does not mix to "
                "the mean; expected one for 'gossip'"
            )
        if not 0 < eps < 1:
            raise ValueError(f"mixing_time: eps = {eps}; expected a number between 0 and 1")
        if self.symmetric and self.period == 1 and self.n > 1:
            return spectra.rounds_at(self.rho, eps)
        if eps < 1e-12:
            raise ValueError(
                f"mixing_time: eps = {eps} for {self.name}; expected at least 1e-12, the "
                "resolution of float64"
            )
        return spectra.rounds_until(self.matrices, eps)

    @cached_property
    def links(self) -> list[np.ndarray]:
        """(sender, receiver) of every message, int `[messages, 2]` for each round of a period."""
        coordinates = [coo_array(W) for W in self.matrices]
        return [np.stack([W.col, W.row], axis=1)[W.row != W.col] for W in coordinates]

    def same_links(self, other: Topology) -> bool:
        """Whether the same workers send to each other in every round, with whatever weights.

        Args:
            other: another topology.
        """
        return self.period == other.period and all(
            np.array_equal(*links) for links in zip(self.links, other.links, strict=True)
        )

    def _shrinks(self) -> bool:
        """Whether a sufficient condition for convergence holds: every worker has a positive weight
        for itself, and no weight is negative.
        """
        return all(W.data.min() > 0 and W.diagonal().min() > 0 for W in self.matrices)


def _validate(name: str, rounds: list[Any], label: Label, role: Role) -> tuple[csr_array, ...]:
    """Returns the matrices of a period, validated and corrected."""
    where = [name if len(rounds) == 1 else f"{name}, round {t}" for t in range(len(rounds))]
    read = [_read(at, matrix, label) for at, matrix in zip(where, rounds, strict=True)]
    for at, (matrix, _) in zip(where, read, strict=True):
        if matrix.shape != read[0][0].shape:
            raise ValueError(
                f"{at}: W has shape {matrix.shape}, that of the first round {read[0][0].shape}; "
                "expected the same number of workers in every round"
            )
    correct = _correct_rows if role == "pull" else _correct
    return tuple(
        correct(at, matrix, tolerance, label)
        for at, (matrix, tolerance) in zip(where, read, strict=True)
    )


def _rounds(name: str, W: Any) -> list[Any]:
    """Returns the given matrices as a list with at least one element."""
    if issparse(W) or (
        isinstance(W, list | tuple)
        and all(issparse(matrix) or getattr(matrix, "ndim", 0) == 2 for matrix in W)
    ):
        rounds = list(W) if isinstance(W, list | tuple) else [W]
    else:
        given = _dense(name, W)
        rounds = list(given) if given.ndim == 3 else [given]
    if not rounds:
        raise ValueError(f"{name}: W is an empty schedule; expected at least one mixing matrix")
    return [matrix if issparse(matrix) else _dense(name, matrix) for matrix in rounds]


def _dense(name: str, W: Any) -> np.ndarray:
    """Returns the matrix as a numpy array of numbers."""
    for attribute, remedy in (
        ("adj", "topologies.from_graph(W)"),
        ("todense", "W.todense()"),
        ("matrices", "W itself"),
    ):
        if hasattr(W, attribute):  # a graph of networkx, a sparse array of JAX, a topology
            raise ValueError(
                f"{name}: W is a {type(W).__name__}; expected a matrix [n, n]: pass {remedy}"
            )
    if isinstance(W, np.ma.MaskedArray) and np.ma.is_masked(W):
        raise ValueError(
            f"{name}: W has masked entries; expected numbers only: pass W.filled(0) if these pairs "
            "do not communicate"
        )
    return array_likes.numbers(f"{name}: W", W)


def _read(name: str, W: Any, label: Label) -> tuple[csr_array, float]:
    """Returns W in float64 without zeros, and the tolerance for its sums."""
    floating = jnp.issubdtype(W.dtype, jnp.floating)  # unlike `dtype.kind`, includes bfloat16
    if not floating and W.dtype.kind not in "iub":
        raise ValueError(
            f"{name}: W has type {W.dtype}; expected real numbers{array_likes.hint(W)}"
        )
    if W.ndim != 2 or W.shape[0] != W.shape[1] or W.shape[0] == 0:
        raise ValueError(
            f"{name}: W has shape {W.shape}; expected a square matrix [n, n] with n >= 1"
        )
    coarse = 16 * float(jnp.finfo(W.dtype).eps) if floating else 0.0
    sparse = csr_array(W.astype(np.float64), copy=True)
    sparse.sum_duplicates()
    sparse.eliminate_zeros()
    finite = np.isfinite(sparse.data)
    if not finite.all():
        entry = coo_array(sparse)
        i, j, value = (values[~finite][0] for values in (entry.row, entry.col, entry.data))
        raise ValueError(f"{name}: W[{label(i)}, {label(j)}] = {value}; expected finite weights")
    return sparse, max(TOLERANCE, coarse)


def _correct(name: str, W: csr_array, tolerance: float, label: Label) -> csr_array:
    """Returns W with errors up to the tolerance corrected.

    Raises:
        ValueError: if the columns are further from summing to 1, or if W is of use for push-sum
            only and does not satisfy its conditions.
    """
    off_diagonal = coo_array(W)
    largest = np.abs(off_diagonal.data[off_diagonal.row != off_diagonal.col]).max(initial=0)
    # If all weights are tiny, a small asymmetry is no rounding error: W may be slow and directed.
    small = min(tolerance, largest / 64)
    negative = (W.data < 0) & (W.data >= -min(TOLERANCE, small))
    if negative.any():
        W.data[negative] = 0
        W.eliminate_zeros()
    asymmetry = abs(W - W.T)
    symmetric = asymmetry.max() <= small
    deviation = np.abs(W.sum(axis=0) - 1)
    if deviation.max() > tolerance:
        _refuse_sums(
            name, W, deviation, None if symmetric else coo_array(asymmetry), tolerance, label
        )
    if symmetric:
        W = csr_array((W + W.T) / 2)
    elif _EXACT < _off_rows(W) <= small:
        W = _balance(W)
    if not symmetric and _off_rows(W) > _EXACT:
        _check_push_sum(name, W, label)
    missing = 1 - W.sum(axis=0)
    missing[np.abs(missing) <= _EXACT] = 0
    if missing.any():
        W = csr_array(W + dia_array((missing[None, :], [0]), shape=W.shape))
    W.sort_indices()
    return W


def _correct_rows(name: str, W: csr_array, tolerance: float, label: Label) -> csr_array:
    """Returns W, for the role "pull", with errors up to the tolerance corrected.

    Raises:
        ValueError: if the rows are further from summing to 1, a weight is negative, or a diagonal
            entry is not positive.
    """
    sums = W.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > tolerance:
        columns = np.abs(W.sum(axis=0) - 1).max() <= tolerance
        transposed = " (the columns do: is W transposed?)" if columns else ""
        raise ValueError(
            f'{name}: role = "pull", but row {label(worst)} of W sums to {_apart(sums[worst], 1)}; '
            f"expected 1, as in W / W.sum(axis=1, keepdims=True){transposed}"
        )
    entry = coo_array(W)
    at = int(entry.data.argmin())
    i, j, diagonal = int(entry.row[at]), int(entry.col[at]), W.diagonal()
    if entry.data[at] > 0 and diagonal.min() <= 0:
        i = j = int(diagonal.argmin())
    if W[i, j] <= 0:
        raise ValueError(
            f'{name}: role = "pull", but W[{label(i)}, {label(j)}] = {W[i, j]:.6g}; expected '
            "weights >= 0 and a positive diagonal"
        )
    corrected = csr_array(_correct(name, csr_array(W.T), tolerance, label).T)
    corrected.sort_indices()
    return corrected


def _off_rows(W: csr_array) -> float:
    return float(np.abs(W.sum(axis=1) - 1).max())


def _balance(W: csr_array) -> csr_array:
    """Returns a doubly stochastic matrix $W_{ij} (1 + a_i + b_j)$ near W, whose rows and columns
    almost sum to 1. It takes two linearised steps.
    """
    from scipy.sparse.linalg import lsqr  # noqa: PLC0415 (takes a tenth of a second to import)

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
    """Raises a ValueError if W, whose rows do not sum to 1, cannot be used by push-sum: it needs
    nonnegative weights and a positive diagonal.
    """
    entry, sums = coo_array(W), W.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if entry.data.min() < 0:
        at = entry.data.argmin()
        raise ValueError(
            f"{name}: row {label(worst)} of W sums to {_apart(sums[worst], 1)}, so W is for "
            f"push-sum, but W[{label(int(entry.row[at]))}, {label(int(entry.col[at]))}] = "
            f"{entry.data[at]:.6g}; expected weights >= 0, or rows that sum to 1"
        )
    if W.diagonal().min() <= 0:
        at = label(int(W.diagonal().argmin()))
        raise ValueError(
            f"{name}: W[{at}, {at}] = 0; expected a positive diagonal, as push-sum needs, or rows "
            "that sum to 1"
        )


def _refuse_sums(
    name: str,
    W: csr_array,
    deviation: np.ndarray,
    asymmetry: coo_array | None,
    tolerance: float,
    label: Label,
) -> NoReturn:
    worst = int(deviation.argmax())
    column = _apart(W.sum(axis=0)[worst], 1)
    hint = f"errors up to {tolerance:.2g} are corrected"
    if asymmetry is None:
        remedy = f"{hint}; pass W + np.diag(1 - W.sum(axis=0))"
        if (W.data == 1).all():
            remedy = "for an adjacency matrix pass topologies.from_graph(networkx.Graph(W))"
        raise ValueError(
            f"{name}: row {label(worst)} of W sums to {column} (off by {deviation[worst]:.2g}); "
            f"expected 1; {remedy}"
        )
    at = asymmetry.data.argmax()
    i, j = int(asymmetry.row[at]), int(asymmetry.col[at])
    first, second = (
        f"W[{label(a)}, {label(b)}] = {_apart(W[a, b], W[b, a])}" for a, b in ((i, j), (j, i))
    )
    transposed = " (the rows do: is W transposed?)" if _off_rows(W) <= tolerance else ""
    raise ValueError(
        f"{name}: {first} but {second} (off by {asymmetry.data[at]:.2g}), and column "
        f"{label(worst)} sums to {column}; expected a symmetric W with rows that sum to 1 (it is "
        f"off by {deviation[worst]:.2g}; {hint}), or, for a directed graph, columns that sum to "
        f"1, as in W / W.sum(axis=0){transposed}"
    )


def _apart(value: float, other: float) -> str:
    """Returns the value with enough digits to distinguish it from another one."""
    difference = abs(value - other)
    return f"{value:.{max(6, 2 - math.floor(math.log10(difference))) if difference else 6}g}"


def _labels(name: str, names: tuple[Any, ...] | None, n: int) -> Label:
    """Returns the function that names a worker in messages."""
    if names is None:
        return str
    if len(names) != n or _has_repetitions(names):
        raise ValueError(
            f"{name}: names = {checks.show(names)}; expected {n} different names, one for each "
            "worker"
        )
    return lambda worker: repr(names[worker])


def _has_repetitions(names: tuple[Any, ...]) -> bool:
    try:
        return len(set(names)) < len(names)
    except TypeError:  # some names are not hashable
        return len({repr(one) for one in names}) < len(names)


def _check_connected(name: str, matrices: Sequence[csr_array], label: Label, role: Role) -> None:
    links: Any = _all_links(matrices)
    if spectra.circulant(links) and np.gcd.reduce(links[[0]].indices, initial=links.shape[0]) == 1:
        return  # A circulant graph is connected if its offsets have no common divisor with n.
    component = _components(links)
    parts = len(set(component if role == "gossip" else component[_ends(links, role)]))
    if parts == 1:
        return
    smallest = component[int(np.bincount(component)[component].argmin())]
    first = np.flatnonzero(component == smallest).tolist()
    shown, called = (
        ", ".join(map(say, first[:8])) + (", ..." if len(first) > 8 else "") for say in (str, label)
    )
    expected = {
        "gossip": "a connected graph"
        if all(spectra.symmetric(W) for W in matrices)
        else "a strongly connected graph",
        "pull": "a worker that reaches all others along the edges",
        "push": "a worker that all others reach along the edges",
    }[role]
    raise ValueError(
        f"{name}: the graph has {component.max() + 1} components, one of them workers "
        f"{{{shown}}}{f' ({called})' * (called != shown)}; expected {expected}, or the workers "
        "never agree"
    )


def _all_links(matrices: Sequence[csr_array]) -> csr_array:
    """Returns a matrix with nonzero entries where a round of the period has a weight."""
    return csr_array(reduce(add, map(abs, matrices)))


def _components(links: csr_array) -> np.ndarray:
    """Returns the number of each worker's strongly connected component, int `[n]`."""
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 (takes a tenth of a second to import)

    _, component = connected_components(links, directed=True, connection="strong")
    return component


def _ends(links: csr_array, role: Role) -> np.ndarray:
    """Returns which workers are in components that receive from no other component (for "push":
    that send to no other), bool `[n]`.
    """
    component, entry = _components(links), coo_array(links)
    between = component[entry.row] != component[entry.col]
    inner = entry.col if role == "push" else entry.row
    return ~np.isin(component, component[inner[between]])
