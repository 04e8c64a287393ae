"""Time-varying graphs: periodic schedules of mixing matrices."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from dsgd import checks
from dsgd.graphs.sizes import require_memory
from dsgd.graphs.topology import Topology
from topologies.graphs import Weights, make_topology, one_way
from topologies.weights import uniform


@checks.arguments
def one_peer_exponential(n: int) -> Topology:
    r"""Returns the one-peer exponential graph: in round t worker i sends one message, with weight
    1/2, to $i + 2^{t \bmod k}$, where $k = \lceil \log_2 n \rceil$. It is doubly stochastic.

    If n is a power of 2, k rounds compute the exact mean, so $\rho = 0$.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: if n < 1.

    Source: Ying et al., "Exponential graph is provably efficient for decentralized deep training",
    2021; Assran et al., 2019.
    """
    period = max(1, (checks.positive_int("one_peer_exponential: n", n) - 1).bit_length())
    require_memory(f"one_peer_exponential({n})", 2 * n * period)
    ids = np.arange(n)
    rounds = [_halves(ids, (ids - (1 << k)) % n) for k in range(period)]
    return Topology(f"one_peer_exponential({n})", rounds)


@checks.arguments
def random_matchings(n: int, period: int = 32, seed: int = 0) -> Topology:
    """Returns a schedule of random matchings: in each round the workers are paired at random (one
    worker stays alone if n is odd), and each pair averages. It is symmetric in every round.

    Args:
        n: number of workers, at least 2.
        period: number of rounds that are drawn, at least 1; the schedule repeats them.
        seed: seed of the draw.

    Raises:
        ValueError: if n < 2 or period < 1, or if the union of all rounds is not connected.

    Source: the randomised gossip of Boyd et al., "Randomized gossip algorithms", 2006, with all
    pairs of a round at once.
    """
    name = f"random_matchings({n}, {period}, {seed})"
    if checks.positive_int(f"{name}: n", n) < 2:
        raise ValueError(f"{name}: n = {n}; expected at least 2 workers")
    checks.positive_int(f"{name}: period", period)
    checks.natural(f"{name}: seed", seed, most=None)
    require_memory(name, 2 * n * period)
    draw = np.random.default_rng(seed)
    return Topology(
        name, [_halves(np.arange(n), _partners(draw.permutation(n))) for _ in range(period)]
    )


@checks.arguments
def random_pushes(n: int, period: int = 32, seed: int = 0, weights: Weights = uniform) -> Topology:
    """Returns a schedule of directed graphs: in each round every worker sends to one other worker
    that is drawn at random. A worker may receive several messages in a round, or none.

    Args:
        n: number of workers, at least 2.
        period: number of rounds that are drawn, at least 1; the schedule repeats them.
        seed: seed of the draw.
        weights: `topologies.uniform`, so that the columns of W sum to 1; `topologies.pull`, which
            gives the same graphs rows that sum to 1; or another function as in `ring`.

    Raises:
        ValueError: if n < 2 or period < 1, or if the union of all rounds is not strongly connected.

    Source: the push-sum protocol of Kempe, Dobra and Gehrke, "Gossip-based computation of aggregate
    information", 2003.
    """
    name = f"random_pushes({n}, {period}, {seed})"
    if checks.positive_int(f"{name}: n", n) < 2:
        raise ValueError(f"{name}: n = {n}; expected at least 2 workers")
    checks.positive_int(f"{name}: period", period)
    checks.natural(f"{name}: seed", seed, most=None)
    require_memory(name, 2 * n * period)
    draw, ids = np.random.default_rng(seed), np.arange(n)
    rounds = [one_way(n, ids, (ids + draw.integers(1, n, n)) % n) for _ in range(period)]
    return make_topology(name, rounds, weights, usual=uniform)


def _partners(order: np.ndarray) -> np.ndarray:
    """Returns each worker's partner, int `[n]`, if neighbours in this order are paired. A last
    worker without a neighbour is its own partner.
    """
    partner = np.arange(len(order))
    first, second = order[: len(order) // 2 * 2].reshape(-1, 2).T
    partner[first], partner[second] = second, first
    return partner


def _halves(ids: np.ndarray, sender: np.ndarray) -> csr_array:
    """Returns the mixing matrix in which each worker takes half of its own model and half of its
    sender's.
    """
    n = len(ids)
    return csr_array(
        (np.full(2 * n, 0.5), (np.tile(ids, 2), np.concatenate([ids, sender]))), shape=(n, n)
    )
