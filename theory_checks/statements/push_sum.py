r"""Push-sum without gradients: the de-biased values converge to the average of the initial values.

Rows are workers. $X_{t+1} = W_t X_t$, $w_{t+1} = W_t w_t$, $w_0 = 1$. The columns of $W_t$ sum to
1, so that the sums over workers of X and of w are constant. The values $z_t = x_t / w_t$ satisfy

$$ Z_{t+1} = P_t Z_t, \qquad P_t = \mathrm{diag}(w_{t+1})^{-1} W_t\, \mathrm{diag}(w_t), $$

where $P_t$ is nonnegative with rows that sum to 1. Such a matrix multiplies the spread, the largest
difference between two workers' values in an element, by at most its Dobrushin coefficient,

$$ \max_{i,j} |z_{t,i} - z_{t,j}| \le \tau(P_{t-1} \cdots P_s) \max_{i,j} |z_{s,i} - z_{s,j}|,
\qquad
   \tau(P) = \frac12 \max_{i,j} \sum_k |P_{ik} - P_{jk}|, $$

which is attained for every P by values 0 and 1. Products of sufficiently many rounds on a strongly
connected graph have $\tau < 1$. Hence all values have the same limit, which is the mean of the
initial values, because the sums are constant.

Source: Kempe, Dobra and Gehrke, "Gossip-based computation of aggregate information", 2003; Seneta,
"Non-negative matrices and Markov chains", 1981 (the coefficient); Assran, Loizou, Ballas and
Rabbat, "Stochastic gradient push", 2019.
"""

from __future__ import annotations

from functools import cache

import numpy as np

import algorithms
import topologies
from dsgd.base import State
from dsgd.graphs.topology import Topology
from theory_checks.machinery import moments, paths
from theory_checks.machinery.statement import Draws, Outcome, Statement

_STEPS = 60


def dobrushin(P: np.ndarray) -> float:
    """Returns tau(P) of a matrix whose rows sum to 1."""
    return float(np.abs(P[:, None] - P[None]).sum(axis=2).max()) / 2


def _follow(topology: Topology, models: np.ndarray) -> State:
    build = moments.with_step(algorithms.stochastic_gradient_push, topology)
    return paths.follow_gossip(build, models, steps=_STEPS)


def check(topology: Topology, models: np.ndarray) -> list[Outcome]:
    """Checks the spread of the de-biased values against the coefficients of every round, and of the
    product of all rounds since the start.

    Args:
        topology: any topology or schedule whose columns sum to 1.
        models: initial models, `[N, d]`.
    """
    workers = _follow(topology, models).workers
    spread = np.ptp(workers.params / workers.weight[:, :, None], axis=1)
    w, product, every, since = np.ones(topology.n), np.eye(topology.n), [], []
    for t in range(_STEPS):
        W = topology.matrices[t % topology.period].toarray()
        P = W * w / (W @ w)[:, None]
        w, product = W @ w, P @ product
        every.append(dobrushin(P) * spread[t])
        since.append(dobrushin(product) * spread[0])
    scale = paths.ROUNDED * float(np.abs(models).max())
    return [
        *paths.worst(
            spread[1:], np.stack(every), case=f"{topology.name}, round by round", scale=scale
        ),
        *paths.worst(
            spread[1:], np.stack(since), case=f"{topology.name}, from the start", scale=scale
        ),
    ]


@cache
def graphs() -> tuple[Topology, ...]:
    """Returns two directed topologies: one whose rows do not sum to 1, and a schedule of two such
    matrices.
    """
    one = np.array(
        [[0.5, 0.0, 0.2, 0.0], [0.25, 0.7, 0.0, 0.0], [0.25, 0.3, 0.4, 0.1], [0.0, 0.0, 0.4, 0.9]]
    )
    other = np.array(
        [[0.9, 0.5, 0.0, 0.0], [0.0, 0.5, 0.3, 0.0], [0.0, 0.0, 0.7, 0.6], [0.1, 0.0, 0.0, 0.4]]
    )
    return topologies.from_matrix(one, "unequal(4)"), topologies.from_matrix(
        [one, other], "alternating(4)"
    )


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random directed graph from random models, which have arbitrary values or two
    values.
    """
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    models = rng.choice(
        [rng.normal(size=(4, 2)), rng.integers(0, 2, (4, 2)).astype(float)]
    ) + draws.real(-3.0, 3.0)
    return check(draws.choice(graphs()), models)


def two_values() -> list[Outcome]:
    """Checks runs from models of 0 and 1: some of them attain the coefficient of the first round,
    others that of many rounds.
    """
    starts = [
        np.stack([(np.arange(4) == k).astype(float), np.arange(4) >= k], axis=1)
        for k in range(1, 4)
    ]
    return [
        outcome for topology in graphs() for models in starts for outcome in check(topology, models)
    ]


def sums_are_kept() -> list[Outcome]:
    """Checks that the sums of models and of weights are constant, and that the mean of the initial
    models stays between the values, which converge to each other.
    """
    models, found = np.random.default_rng(3).normal(size=(4, 2)), []
    for topology in graphs():
        workers = _follow(topology, models).workers
        for kind, values in (("models", workers.params), ("weights", workers.weight[:, :, None])):
            total = values.sum(axis=1)
            found += paths.worst(
                total,
                np.broadcast_to(total[0], total.shape),
                case=f"{topology.name}, sum of {kind}",
                equality=True,
                scale=1.0,
            )
        values = workers.params / workers.weight[:, :, None]
        distance = np.abs(values - models.mean(axis=0)).max(axis=1)
        found += paths.worst(
            distance, np.ptp(values, axis=1), case=f"{topology.name}, limit", scale=paths.ROUNDED
        )
    return found


STATEMENTS = [
    Statement(
        "push-sum, spread",
        "Assran et al. 2019; Dobrushin",
        "columns of W_t sum to 1, no gradients",
        trial,
        (two_values, sums_are_kept),
    ),
]
