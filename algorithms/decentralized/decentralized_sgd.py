"""Decentralized SGD: the survey's chapter 5, and DGD, its form that combines first."""

from __future__ import annotations

import optax

import topologies
from algorithms import gossip, methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Topology, checks


@method(
    sends="models, to neighbours",
    needs=("doubly stochastic W",),
    paper="(5.2)",
    page="how_to/decentralized.md",
    aliases=("dsgd",),
    graph=topologies.ring,
    candidates={"any problem": [{}, {"graph": topologies.one_peer_exponential}]},
    variants={"complete": {"graph": topologies.complete}},
)
@checks.arguments
def decentralized_sgd(
    optimizer: optax.GradientTransformation,
    topology: Topology,
    *,
    average_momentum: bool = False,
) -> Algorithm:
    r"""Decentralized SGD: every worker makes its own step, then averages with its neighbours.

    $$ X_{t+1} = (X_t - \gamma\, G(X_t; \xi_t))\, W_t^T \tag{5.2} $$

    X has a column for each worker; the survey's W is symmetric.

    With `optax.sgd(gamma, momentum=beta)` this is DmSGD, $M \leftarrow \beta M + G$,
    $X \leftarrow (X - \gamma M) W^T$. With exact gradients and a constant step size its fixed point
    is that of decentralized SGD with the step size $\gamma / (1 - \beta)$: if the workers' data
    differ, it is about $1 / (1 - \beta)$ times as far from the optimum. `quasi_global_momentum` and
    `decentlam` keep the fixed point of decentralized SGD, and `momentum_tracking` is exact.

    If the momenta are averaged, too,

    $$ M' = \beta M + G, \qquad X \leftarrow (X - \gamma M')\, W^T, \qquad M \leftarrow M' W^T, $$

    the models' differences along an eigenvector of a symmetric W with eigenvalue $\lambda$ are, to
    first order in $\gamma$, $1 / (1 - \beta \lambda)$ times those of decentralized SGD, instead of
    $1 / (1 - \beta)$ times.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The states of momentum
            and Adam stay local.
        topology: W, doubly stochastic, with as many nodes as the problem has workers. With a
            schedule, round t uses W_t.
        average_momentum: whether workers also average the first moments of their optimizers (the
            fields `trace` and `mu` of optax's states), in the same message, which is twice as long.

    Raises:
        ValueError: if the topology is not doubly stochastic. At the start of a run: if the momenta
            are to be averaged, but the optimizer has none.

    Source: Liu and Zhang, section 5.1. Averages of momenta: Yu, Jin and Yang, "On the linear
    speedup analysis of communication efficient momentum SGD for distributed non-convex
    optimization", 2019.
    """
    gossip.require_topology("decentralized_sgd", topology)

    def start(x: optimizers.Model) -> optimizers.Model:
        if average_momentum and not optimizers.moments(optimizers.FIRST, x.optimizer):
            raise ValueError(
                "decentralized_sgd: average_momentum = True, but the state of optimizer "
                f"{optimizers.display_name(optimizer)} has no field "
                f"{' or '.join(optimizers.FIRST)}; expected an optimizer with momentum, such as "
                "optax.sgd(0.1, momentum=0.9)"
            )
        return x

    def update(x, gradients, round):
        half = optimizers.local_step(optimizer, x, gradients, round)  # X - gamma G
        if not average_momentum:
            return half._replace(params=round.mix(half.params, topology))  # (...) W
        momenta = optimizers.moments(optimizers.FIRST, half.optimizer)
        x, momenta = round.mix((half.params, momenta), topology)
        return optimizers.Model(
            x, optimizers.with_moments(optimizers.FIRST, half.optimizer, momenta)
        )

    name = f"decentralized_sgd({topology.name}{', average_momentum' * average_momentum})"
    return methods.local_models(name, optimizer, update, start=start, topology=topology)


@method(
    sends="models, to neighbours, while the gradient is computed",
    needs=("doubly stochastic W",),
    paper="DGD: Nedic and Ozdaglar, 2009; D-PSGD: Lian et al., 2017",
    aliases=("d_psgd",),
    page="how_to/decentralized.md",
    graph=topologies.ring,
)
@checks.arguments
def dgd(optimizer: optax.GradientTransformation, topology: Topology) -> Algorithm:
    r"""Decentralized gradient descent (DGD): every worker averages its model with its neighbours,
    and steps along the gradient at its model before the average.

    $$ X_{t+1} = X_t W_t^T - \gamma\, G(X_t; \xi_t) $$

    `decentralized_sgd` adapts, then combines; this method combines, then adapts. Each worker sends
    one model to each neighbour. It has the model before it computes the gradient, so both can take
    place at the same time. On the simulated clock messages are sent after the gradient, unless the
    cluster has an overlap: if a gradient takes s seconds, `clusters.Overlap(clusters.constant(s),
    clusters.constant(0.0), first=0.0, last=0.0)` sends the messages meanwhile.

    The mean of the models moves by $-\gamma \bar g$. With exact gradients, a constant step size and
    the same symmetric W in all rounds, the fixed point minimizes
    $\sum_n f_n(x_n) + \frac{1}{2 \gamma} \langle X, X (I - W) \rangle$: if the workers' data
    differ, its distance to the optimum is $O(\gamma / (1 - \rho))$. For convex objectives the
    method converges to it if $\gamma < (1 + \lambda_N) / L$, where $\lambda_N$ is the smallest
    eigenvalue of W. A worker that does not participate keeps its state, and messages may be lost if
    W is symmetric.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. The states of momentum
            and Adam stay local.
        topology: W, doubly stochastic. With a schedule, round t uses W_t.

    Raises:
        ValueError: if the topology is not doubly stochastic.

    Source: Nedic and Ozdaglar, "Distributed subgradient methods for multi-agent optimization",
    2009; Yuan, Ling and Yin, "On the convergence of decentralized gradient descent", 2016. With
    stochastic gradients: D-PSGD, Lian et al., 2017.
    """
    gossip.require_topology("dgd", topology)

    def update(x, gradients, round):
        pull = round.laplacian(x.params, topology)  # X (W - I)
        after = optimizers.local_step(optimizer, x, gradients, round)  # X - gamma G
        return after._replace(params=optax.tree.add(after.params, pull))

    return methods.local_models(f"dgd({topology.name})", optimizer, update, topology=topology)
