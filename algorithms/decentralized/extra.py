"""EXTRA: decentralized gradient descent, corrected by its own past."""

from __future__ import annotations

import jax
import optax

from algorithms import absence, gossip, optimizers
from algorithms.decentralized.exact_diffusion import Corrected, add_up, start_corrected
from dsgd import checks, workers
from dsgd.base import Algorithm, State
from dsgd.graphs.topology import Topology
from dsgd.network import told


@checks.arguments
def extra(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""EXTRA: two rounds of decentralized gradient descent, subtracted, so that what is wrong with each cancels.

    $$ X_{t+1} = X_t (I + W) - X_{t-1} \tfrac{I + W}{2} - \gamma (G(X_t) - G(X_{t-1})), \qquad X_1 = X_0 W - \gamma G(X_0) $$

    Summed over the rounds it is $X_{t+1} = X_t W - \gamma G(X_t) + \frac12 \sum_{s<t} X_s (W - I)$, and computed as such: one model goes to
    each neighbour, and what is added up has mean 0, so that rounding errors do not become a drift of the mean.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` is the equation. Another one's change stands for $-\gamma G$.
        topology: W, symmetric, the same in all rounds.

    Raises:
        ValueError: not a topology, one that is not symmetric, or a schedule.

    Source: Shi, Ling, Wu and Yin, "EXTRA: an exact first-order algorithm for decentralized consensus optimization", 2015, (2.13).
    """
    gossip.need("extra", topology, symmetric=True, fixed=True)

    def init(params, N):
        return start_corrected(optimizer, params, N)

    def update(key, state, gradients, round):
        x, _, correction, _ = state.workers
        change, memory = optimizers.change_local(optimizer, state.workers, gradients)
        pulled = workers.pull(x, topology)  # X (W - I)
        new = jax.tree.map(lambda x, p, u, c: x + (p + u + c), x, pulled, change, correction)
        models = Corrected(new, memory, *add_up(state.workers, jax.tree.map(lambda pulled: pulled / 2, pulled)))
        return State(state.step + 1, workers=models), told.to_neighbours(x, topology, round.step)

    return gossip.algorithm(f"extra({topology.name})", init, update, optimizer, topology, absence.ONE_W)
