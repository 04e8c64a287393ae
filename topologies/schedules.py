"""Graphs that change from round to round, with a period."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from dsgd import checks
from dsgd.graphs.topology import Topology


@checks.arguments
def one_peer_exponential(n: int) -> Topology:
    r"""One message a round: in round t worker i sends half to $i + 2^{t \bmod k}$,
    $k = \lceil \log_2 n \rceil$. Doubly stochastic.

    For n a power of 2, k rounds are the exact mean, $\rho = 0$.

    Args:
        n: number of workers, at least 1.

    Raises:
        ValueError: n < 1.

    Source: Ying et al., "Exponential graph is provably efficient for decentralized deep training",
    2021; Assran et al., 2019.
    """
    checks.positive_int("one_peer_exponential: n", n)
    own = np.arange(n)
    rounds = [_halves(own, (own - (1 << k)) % n) for k in range(max(1, (n - 1).bit_length()))]
    return Topology(f"one_peer_exponential({n})", rounds)


@checks.arguments
def random_matchings(n: int, period: int = 32, seed: int = 0) -> Topology:
    r"""In each round everybody (but one, if n is odd) meets one other, drawn at random, and both
    take the mean. Symmetric in every round.

    Args:
        n: number of workers, at least 2.
        period: rounds that are drawn; then they begin again.
        seed: of the draw.

    Raises:
        ValueError: n < 2, period < 1, or rounds that together do not connect everybody.

    Source: randomised gossip of Boyd et al., "Randomized gossip algorithms", 2006, with all pairs
    of a round at once.
    """
    name = f"random_matchings({n}, {period}, {seed})"
    if checks.positive_int(f"{name}: n", n) < 2:
        raise ValueError(f"{name}: need at least 2 workers")
    checks.positive_int(f"{name}: period", period)
    checks.natural(f"{name}: seed", seed, most=None)
    draw = np.random.default_rng(seed)
    return Topology(
        name, [_halves(np.arange(n), _partners(draw.permutation(n))) for _ in range(period)]
    )


def _partners(order: np.ndarray) -> np.ndarray:
    """Who meets whom where neighbours in this order do; a last one without a neighbour meets
    itself.
    """
    partner = np.arange(len(order))
    first, second = order[: len(order) // 2 * 2].reshape(-1, 2).T
    partner[first], partner[second] = second, first
    return partner


def _halves(own: np.ndarray, sender: np.ndarray) -> csr_array:
    """Everybody keeps half, and takes half of one other's."""
    n = len(own)
    return csr_array(
        (np.full(2 * n, 0.5), (np.tile(own, 2), np.concatenate([own, sender]))), shape=(n, n)
    )
