"""ProxSkip on graphs: corrected local steps, and gossip by chance."""

from __future__ import annotations

import jax
import optax
from jax.core import Tracer

import topologies
from algorithms import gossip
from algorithms.facts import method
from algorithms.mechanisms.corrections import adapt_correct_combine
from dsgd import Algorithm, Topology, checks
from dsgd.extend import Real


@method(
    sends="models, to neighbours, in each round with probability p",
    exact="any data",
    needs=("symmetric W", "one W", "all workers"),
    paper="ProxSkip: Mishchenko et al., 2022; Guo et al., 2023",
    page="how_to/decentralized.md#local-steps",
    graph=topologies.ring,
    settings={"probability": 0.5},
)
@checks.arguments
def prox_skip(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    probability: Real,
    consensus_step: gossip.Step = 0.5,
) -> Algorithm:
    r"""Decentralized ProxSkip: exact diffusion that combines in each round with probability p only,
    and makes corrected local steps in the others.

    $$ Z_t = X_t - \gamma G(X_t) - Y_t, \qquad
       X_{t+1} = \begin{cases} Z_t + s\, Z_t (W - I) & \theta_t = 1 \\ Z_t & \theta_t = 0
       \end{cases}, \qquad Y_{t+1} = Y_t + p\, (Z_t - X_{t+1}) $$

    $\theta_t \sim \mathrm{Bernoulli}(p)$ is one coin for all workers, and $s = 1 / (2 \chi)$ with
    the paper's $\chi$. A round is one gradient per worker; a worker sends one vector to each
    neighbour if $\theta_t = 1$, and nothing otherwise. Y starts at 0, and the sum of its columns is
    0 always. With exact gradients the limit is the optimum for any data, and $y_i \to -\gamma
    f_i'(x^\star)$. With $p = 1$ and $s = 1/2$ the method is exact diffusion; on the complete graph
    with $s = 1$ it is `scaffnew` (on a problem without weights).

    All workers must participate.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equations. The update of any
            other optimizer replaces $-\gamma G$.
        topology: W, symmetric, the same in all rounds.
        probability: p, in (0, 1]. It may be swept.
        consensus_step: s, in (0, 1], such that $I + s (W - I)$ has no negative eigenvalue. With
            $s = 1/2$, the paper's $\chi = 1$, this holds for all W.

    Raises:
        ValueError: if the topology is not symmetric or is a schedule, p or s is not in (0, 1], or
            $I + s (W - I)$ has a negative eigenvalue. In a run: if workers or messages are missing.

    Source: Mishchenko et al., "ProxSkip: yes! Local gradient steps provably lead to communication
    acceleration! Finally!", 2022; Guo, Alghunaim, Yuan, Condat and Cao, "Revisiting decentralized
    ProxSkip: achieving linear speedup", 2023.
    """
    gossip.require_topology("prox_skip", topology, symmetric=True, fixed=True)
    checks.number("prox_skip: probability", probability, "(0, 1]")
    gossip.require_step("prox_skip", consensus_step)
    largest = 1 / (1 - min(topology.smallest_eigenvalue, 0.0))
    if not isinstance(consensus_step, Tracer) and float(consensus_step) > largest + 1e-9:
        raise ValueError(
            f"prox_skip: consensus_step = {float(consensus_step):.6g} on {topology.name}, where "
            f"the smallest eigenvalue of W is {topology.smallest_eigenvalue:.6g}; expected at most "
            f"{largest:.6g}, so that I + s (W - I) has no negative eigenvalue"
        )

    def combine_randomly(round, combine, x):
        return round.when(jax.random.bernoulli(round.next_key(), probability), combine, x)

    return adapt_correct_combine(
        f"prox_skip({probability}, {topology.name}, {consensus_step})",
        optimizer,
        topology,
        consensus_step,
        weight=probability,
        sends=combine_randomly,
    )
