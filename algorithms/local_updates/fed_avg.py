"""FedAvg and FedProx: local steps of the clients of a server, which averages their changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms.facts import method
from algorithms.mechanisms.clients import Inclusion, client_updates
from algorithms.mechanisms.outer import Inner, Outer
from dsgd import Algorithm, checks, network
from dsgd.extend import Gradients, Period, Real


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="FedAvg: McMahan et al., 2017, Algorithm 1",
    page="reference/clusters.md",
    settings={"period": 4},
)
@checks.arguments
def fed_avg(
    optimizer: optax.GradientTransformation,
    period: Period,
    *,
    inclusion: Inclusion = None,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedAvg: the clients that participate make H local steps from the server's model, and the
    server adds the weighted mean of their changes.

    $$ \Delta_n = x_t - y_H^{(n)}, \qquad
       x_{t+1} = x_t - \frac{\sum_{n \in S_t} p_n \Delta_n}{\sum_{n \in S_t} p_n}
       \quad \text{or} \quad x_{t+1} = x_t - \sum_{n \in S_t} \frac{p_n}{\pi_n} \Delta_n $$

    A round is one gradient per client; every H-th round sends the models. The clients $S_t$ are
    drawn by the cluster: `clusters.Cluster(..., present=clusters.sampled(m, of=N),
    participation_period=H)` draws m of N clients without replacement for each H rounds, and
    `present=clusters.bernoulli(probability, 1.0)` draws them independently. Without a cluster all
    participate. $p_n$ are the problem's worker weights divided by N: $1/N$, or the shares of the
    samples with `weights="samples"`.

    The first form, the paper's, is a ratio: its expectation is $\sum_n p_n \Delta_n$ only if all
    clients participate or all $p_n$ and inclusion probabilities are equal. The second form
    (Horvitz and Thompson) has this expectation for every way to draw clients, but its weights do
    not sum to 1, so that even equal changes become noisy. With both forms, and if all clients
    participate, the limit differs from the optimum by $O(\gamma (H - 1))$ if the clients' data
    differ.

    Args:
        optimizer: each client's step; `optax.sgd(gamma)` is the paper's. Its state starts again in
            each period, so that a schedule counts the steps of one period; `local_sgd` keeps it.
        period: H. It may be swept.
        inclusion: $\pi_n$, the probability that client n participates, in (0, 1], for the second
            form: a number for all, for example m / N, or one for each client; "selection": the
            probabilities of the cluster's `present` (`clusters.Quantity.inclusion`), times those of
            its `delivered`; None: the first form.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1; a probability is not in
            (0, 1], their number is not N, those of the selection are unknown, or they are given
            and all clients participate.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", 2017, Algorithm 1; the second form, Horvitz and Thompson, "A generalization of sampling
    without replacement from a finite universe", 1952.
    """
    return client_updates("fed_avg", optimizer, period, optax.sgd(1.0), inclusion, via)


@method(
    sends="changes of the participating clients every H-th round, the model back, through a server",
    paper="FedProx: Li et al., 2020, Algorithm 2",
    settings={"period": 4, "penalty": 0.1},
)
@checks.arguments
def fed_prox(
    optimizer: optax.GradientTransformation,
    period: Period,
    penalty: Real,
    *,
    inclusion: Inclusion = None,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedProx: FedAvg with local steps on $f_n(y) + \frac\mu2 |y - x_t|^2$.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma \big(g_n(y^{(n)}) + \mu (y^{(n)} - x_t)\big) \quad H
       \text{ times from } x_t $$

    Communication, participation and weights are those of `fed_avg`. With $\mu = 0$ or $H = 1$ the
    method is FedAvg. Clients that compute less than others (`with_local_work`, or clients that
    participate in a part of a period's rounds) send the model that they have. The limit is biased
    as in FedAvg. For many steps it is the minimizer of the mean of the Moreau envelopes of $f_n$
    with parameter $\mu$.

    Args:
        optimizer: as in `fed_avg`; `optax.sgd(gamma)` needs $\gamma (L + \mu) < 2$.
        period: H. It may be swept.
        penalty: $\mu$, at least 0. The paper tunes it over 0.001, 0.01, 0.1 and 1.
        inclusion: as in `fed_avg`. The paper draws clients with probability $p_n$, with
            replacement, and gives equal weights to their models; the second form of `fed_avg` has
            the same expectation.
        via: as in `fed_avg`.

    Raises:
        ValueError: as `fed_avg`, or if $\mu$ is negative.

    Source: Li et al., "Federated optimization in heterogeneous networks", 2020, Algorithm 2.
    """
    checks.number("fed_prox: penalty", penalty, "[0, inf)")

    def direction(gradients: Gradients, x: Outer, y: Inner) -> Gradients:
        return jax.tree.map(
            lambda g, y, x: g + jnp.asarray(penalty, g.dtype) * (y - x[None]),
            gradients,
            y.params,
            x.params,
        )

    return client_updates("fed_prox", optimizer, period, optax.sgd(1.0), inclusion, via, direction)
