"""Schedules that compute the exact mean in one period, with few neighbours in each round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, diags_array

from dsgd import checks
from dsgd.graphs.sizes import require_memory
from dsgd.graphs.topology import Topology


@checks.arguments
def one_peer_hypercube(dimension: int) -> Topology:
    r"""Returns the one-peer hypercube of $n = 2^{\text{dimension}}$ workers: in round t worker i
    averages with the worker $i \oplus 2^{t \bmod \text{dimension}}$. It is symmetric in every
    round, and one period computes the exact mean.

    Args:
        dimension: number of rounds of a period, at least 1.

    Raises:
        ValueError: if the dimension is less than 1.
    """
    checks.positive_int("one_peer_hypercube: dimension", dimension)
    name = f"one_peer_hypercube({dimension})"
    require_memory(name, 2.0 ** min(dimension, 1000) * 2 * dimension)
    n = 1 << dimension
    return Topology(name, _matrices(n, _cliques(np.arange(n), [2] * dimension)))


@checks.arguments
def base_graph(n: int, degree: int = 1) -> Topology:
    r"""Returns the Base-(k+1) graph: a schedule for any number of workers in which each worker
    averages with at most k others in a round, and one period, of at most
    $2 \log_{k+1} n + 2$ rounds, computes the exact mean. It is symmetric in every round.

    If the prime factors of n are at most k + 1, the rounds average in groups, one for each factor
    (the hyper-hypercube). Otherwise, with the digits of n in base k + 1, $n = \sum_l a_l
    (k+1)^{p_l}$, parts of $a_l (k+1)^{p_l}$ workers first average among themselves. Then part j
    exchanges with all later parts, from the largest part on: each worker of a later part takes the
    share $|V_j| / \sum_{l \ge j} |V_l|$ from $a_j$ workers of part j. After its exchange, part j
    averages in groups of $(k+1)^{p_j}$. If this is shorter, n is first divided by all its prime
    factors up to k + 1.

    Args:
        n: number of workers, at least 1.
        degree: k, the largest number of neighbours in a round, at least 1.

    Raises:
        ValueError: if n or the degree is less than 1.

    Source: Takezawa, Sato, Bao, Niwa and Yamada, "Beyond exponential graph: communication-efficient
    topologies for decentralized learning via finite-time convergence", 2023.
    """
    checks.positive_int("base_graph: n", n)
    checks.positive_int("base_graph: degree", degree)
    base = degree + 1
    require_memory(f"base_graph({n}, {degree})", n * min(n, base) * (2 * math.log(n, base) + 2))
    smooth = _smooth_part(n, base)
    rough = n // smooth
    rounds = _digits(np.arange(n), base)
    if rough > 1:
        nodes = np.arange(n).reshape(smooth, rough)
        within = [_digits(copy, base) for copy in nodes]
        across = [_cliques(group, _factors(smooth, base)) for group in nodes.T]
        divided = [*_together(within), *_together(across)]
        rounds = min(rounds, divided, key=len)
    return Topology(f"base_graph({n}, {degree})", _matrices(n, rounds or [[]]))


class _Links(NamedTuple):
    """Links of a round, in both directions: the nodes at the two ends, and the weight."""

    ends: np.ndarray
    others: np.ndarray
    weight: float


_Round = list[_Links]


def _matrices(n: int, rounds: Sequence[_Round]) -> list[csr_array]:
    """Returns the mixing matrices of the rounds; the diagonal is the remainder to 1."""
    found = []
    for links in rounds:
        no_link = (np.zeros(0), np.zeros(0, int), np.zeros(0, int))
        entries = [
            (np.full(len(rows), weight), rows, columns)
            for ends, others, weight in links
            for rows, columns in ((ends, others), (others, ends))
        ]
        weights, rows, columns = map(np.concatenate, zip(no_link, *entries, strict=True))
        W = csr_array((weights, (rows, columns)), shape=(n, n))
        found.append(csr_array(W + diags_array(1 - W.sum(axis=1))))
    return found


def _together(schedules: Sequence[list[_Round]]) -> list[_Round]:
    """Returns the rounds in which several schedules run at the same time."""
    length = max(map(len, schedules), default=0)
    return [
        [links for schedule in schedules for links in (schedule[t] if t < len(schedule) else [])]
        for t in range(length)
    ]


def _cliques(nodes: np.ndarray, factors: Sequence[int]) -> list[_Round]:
    """Returns the hyper-hypercube of these nodes, which are as many as the product of the factors:
    for each factor, a round in which groups of this size average.
    """
    rounds, stride = [], 1
    for size in factors:
        groups = np.moveaxis(nodes.reshape(-1, size, stride), 1, 0).reshape(size, -1)
        pairs = [(a, b) for a in range(size) for b in range(a)]
        rounds.append([_Links(groups[a], groups[b], 1 / size) for a, b in pairs])
        stride *= size
    return rounds


def _digits(nodes: np.ndarray, base: int) -> list[_Round]:
    """Returns the simple Base-(k+1) graph of these nodes, with k + 1 = `base`."""
    n = len(nodes)
    if _smooth_part(n, base) == n:
        return _cliques(nodes, _factors(n, base))
    parts, digits, rest = [], [], nodes
    while len(rest):
        power = base ** (_digit_count(len(rest), base) - 1)
        digit = len(rest) // power
        digits.append((digit, power))
        parts.append(rest[: digit * power])
        rest = rest[digit * power :]
    first = _together([_cliques(part, _factors(len(part), base)) for part in parts])
    schedules = []
    for j, (part, (digit, power)) in enumerate(zip(parts, digits, strict=True)):
        later = np.concatenate([nodes[:0], *parts[j + 1 :]])
        weight = len(part) / (len(part) + len(later)) / digit
        groups = part.reshape(digit, power)
        exchange = [_Links(group[: len(later)], later, weight) for group in groups if len(later)]
        finish = [_cliques(group, _factors(power, base)) for group in groups]
        # The last part has nothing left to do: its workers have the mean.
        schedules.append([*[[]] * j, exchange, *_together(finish)] if len(later) else [])
    return [*first, *_together(schedules)]


def _digit_count(n: int, base: int) -> int:
    """Returns the number of digits of n in this base."""
    count = 0
    while n:
        n, count = n // base, count + 1
    return count


def _smooth_part(n: int, most: int) -> int:
    """Returns the largest divisor of n that has no prime factor above `most`."""
    smooth = 1
    for factor in range(2, most + 1):
        while n % factor == 0:
            n, smooth = n // factor, smooth * factor
    return smooth


def _factors(n: int, most: int) -> list[int]:
    """Returns as few factors of n as possible that are at most `most`, for an n without larger
    prime factors.
    """
    if n == 1:
        return []
    options = [d for d in range(most, 1, -1) if n % d == 0]
    return min(([d, *_factors(n // d, most)] for d in options), key=len)
