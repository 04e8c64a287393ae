"""EquiTopo: graphs of random shifts, with a spectral gap that does not depend on their size."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from dsgd import checks
from dsgd.graphs.sizes import require_memory
from dsgd.graphs.topology import Topology


@checks.arguments
def equi_static(n: int, degree: int, seed: int = 0, symmetric: bool = False) -> Topology:
    r"""Returns a graph in which each worker sends to the workers that are M random numbers of
    places further (D-EquiStatic); symmetric: also to those that are as many places before
    (U-EquiStatic).

    $$ W = \frac1M \sum_{m=1}^M A^{(u_m)}, \qquad A^{(u)} = \frac{n-1}{n} P^u + \frac1n I $$

    P is the cyclic shift by one place, and $u_m$ is uniform in 1, ..., n - 1. W is doubly
    stochastic. With probability $1 - p$, $\rho \le \epsilon$ if $M \ge \frac{8}{3 \epsilon^2} \ln
    \frac{2n}{p}$. The symmetric W is $(W + W^T) / 2$.

    Args:
        n: number of workers, at least 2.
        degree: M, number of shifts, which may coincide; at least 1.
        seed: seed of the draw.
        symmetric: whether the graph is undirected, with up to 2 M neighbours.

    Raises:
        ValueError: if n < 2 or M < 1; or if the graph is not connected, because all shifts have a
            common divisor with n.

    Source: Song, Li, Jin, Shi, Yan, Yin and Yuan, "Communication-efficient topologies for
    decentralized learning with O(1) consensus rate", 2022.
    """
    name = f"equi_static({n}, {degree}, {seed}{', symmetric=True' * symmetric})"
    draw = _generator(name, n, seed)
    checks.positive_int(f"{name}: degree", degree)
    require_memory(name, (degree * (1 + symmetric) + 1) * n)
    shifts = draw.integers(1, n, degree)
    W = sum((_shift(n, int(u)) for u in shifts), csr_array((n, n))) / degree
    return Topology(name, (W + W.T) / 2 if symmetric else W)


@checks.arguments
def equi_dynamic(n: int, period: int = 32, seed: int = 0, symmetric: bool = False) -> Topology:
    r"""Returns a schedule in which each worker sends to the worker that is a random number of
    places further (OD-EquiDyn); symmetric: each round averages disjoint pairs of workers that are
    this number of places apart (OU-EquiDyn).

    $$ W_t = \tfrac12 I + \tfrac12 A^{(u_t)}, \qquad A^{(u)} = \frac{n-1}{n} P^u + \frac1n I $$

    P and $u_t$ are as in `equi_static`. W is doubly stochastic, and in expectation a round reduces
    the squared disagreement to $\frac12 - \frac1{2n}$ of its value, for every n. The symmetric
    schedule pairs workers greedily, from a random one on; workers without a partner keep their
    model.

    Args:
        n: number of workers, at least 2.
        period: number of rounds that are drawn, at least 1; the schedule repeats them.
        seed: seed of the draw.
        symmetric: whether a round consists of pairs.

    Raises:
        ValueError: if n < 2 or period < 1, or if the union of all rounds is not connected.

    Source: as `equi_static`, with $\eta = 1/2$ (the authors' code has 1, for which the squared
    disagreement is only reduced to $1 - 2/n$).
    """
    name = f"equi_dynamic({n}, {period}, {seed}{', symmetric=True' * symmetric})"
    draw = _generator(name, n, seed)
    checks.positive_int(f"{name}: period", period)
    require_memory(name, 2 * n * period)
    rounds = []
    for _ in range(period):
        u, first = draw.integers(1, n), draw.integers(n)
        A = _pairs(n, int(u), int(first)) if symmetric else _shift(n, int(u))
        rounds.append((_shift(n, 0) + A) / 2)
    return Topology(name, rounds)


def _generator(name: str, n: int, seed: int) -> np.random.Generator:
    """Returns the generator of the draws, after the validation of n and seed."""
    if checks.positive_int(f"{name}: n", n) < 2:
        raise ValueError(f"{name}: n = {n}; expected at least 2 workers")
    return np.random.default_rng(checks.natural(f"{name}: seed", seed, most=None))


def _shift(n: int, u: int) -> csr_array:
    """Returns $A^{(u)}$, in which worker i receives from the worker that is u places before."""
    return _matrix_of_sender(n, (np.arange(n) - u) % n)


def _pairs(n: int, u: int, first: int) -> csr_array:
    """Returns $A^{(u)}$ restricted to disjoint pairs, which are made greedily from a worker on."""
    partner = np.arange(n)
    for i in (first + np.arange(n)) % n:
        j = (i + u) % n
        if partner[i] == i and partner[j] == j:
            partner[i], partner[j] = j, i
    return _matrix_of_sender(n, partner)


def _matrix_of_sender(n: int, sender: np.ndarray) -> csr_array:
    """Returns the matrix with weight (n - 1) / n for the model of the sender, and 1 / n for the
    worker's own.
    """
    ids = np.arange(n)
    weights = np.repeat([(n - 1) / n, 1 / n], n)
    return csr_array((weights, (np.tile(ids, 2), np.concatenate([sender, ids]))), shape=(n, n))
