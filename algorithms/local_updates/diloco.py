"""DiLoCo, and the related methods SlowMo and BMUF with heavy-ball momentum."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.outer import local_updates
from dsgd import Algorithm, checks, network
from dsgd.extend import Period, Real


@method(
    sends="changes of the models every H-th round, by an all-reduce",
    paper="DiLoCo: Douillard et al., 2023, Algorithm 1",
    settings={"period": 4},
    candidates={"any problem": [{}], "language models": [{}]},
)
@checks.arguments
def diloco(
    optimizer: optax.GradientTransformation,
    period: Period = 500,
    outer: optax.GradientTransformation | None = None,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""DiLoCo: H local steps of an inner optimizer, usually AdamW, then one step with Nesterov
    momentum on the mean of the workers' changes.

    $$ \Delta_t = \frac1N \sum_n \big(x_t - y_H^{(n)}\big), \qquad
       u_{t+1} = \mu u_t + \Delta_t, \qquad x_{t+1} = x_t - \eta (\Delta_t + \mu u_{t+1}) $$

    A round is one gradient per worker; every H-th round all-reduces one vector. The states of the
    inner optimizers stay local and are kept. A schedule of the inner step size counts inner steps.
    The outer optimizer's state is the same on all workers. A worker that does not participate in a
    synchronization adopts the common model when it returns. The mean is weighted by the problem's
    worker weights. The limit is that of local SGD with the same inner optimizer: biased by
    $O(\gamma (H - 1))$ if the workers' data differ.

    Args:
        optimizer: each worker's inner step, for example `optax.adamw(4e-4, weight_decay=0.1)`.
        period: H. It may be swept.
        outer: the outer step on $\Delta_t$; None: the paper's Nesterov momentum,
            `optax.sgd(0.7, momentum=0.9, nesterov=True)`. With `optax.sgd(1)` the method is
            `local_sgd`.
        via: communication pattern: all-reduce among the workers, or clients of a server
            (`network.star`, `network.parameter_server`).

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1.

    Source: Douillard et al., "DiLoCo: distributed low-communication training of language models",
    2023, Algorithm 1.
    """
    period = checks.period("diloco: period", period)
    outer = optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
    return local_updates(f"diloco({period})", optimizer, outer, period, via=via)


@method(
    sends="changes of the models every H-th round, by an all-reduce",
    paper="SlowMo: Wang et al., 2020, Algorithm 1; BMUF",
    settings={"period": 4},
)
@checks.arguments
def slowmo(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer_step: Real = 1.0,
    momentum: Real = 0.7,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""SlowMo: local steps, then slow momentum on the mean of the workers' changes. With $\zeta$
    for $\alpha$ this is BMUF with classical block momentum.

    $$ u_{t+1} = \beta u_t + \frac1\gamma \Big(x_t - \frac1N \sum_n y_H^{(n)}\Big), \qquad
       x_{t+1} = x_t - \alpha \gamma u_{t+1} $$

    This is `diloco` with heavy-ball instead of Nesterov momentum; communication, participation and
    weights are the same. $\gamma u$ is stored instead of u, so that $\gamma$ is not needed; if
    the inner step size changes over time, the paper rescales u; this method does not.

    Args:
        optimizer: each worker's inner step; its state is kept.
        period: H. It may be swept.
        outer_step: $\alpha$, the slow step size, in units of the inner step size.
        momentum: $\beta$, in [0, 1). With $\beta = 0$ and $\alpha = 1$ the method is `local_sgd`.
        via: as in `diloco`.

    Raises:
        ValueError: if the period is less than 1, $\alpha$ is not positive, or $\beta$ is not in
            [0, 1).

    Source: Wang et al., "SlowMo: improving communication-efficient distributed SGD with slow
    momentum", 2020, Algorithm 1. Chen and Huo, "Scalable training of deep learning machines by
    incremental block training with intra-block parallel optimization and blockwise model-update
    filtering", 2016.
    """
    period = checks.period("slowmo: period", period)
    checks.number("slowmo: outer_step", outer_step, "(0, 3e38]")
    checks.number("slowmo: momentum", momentum, "[0, 1)")
    outer = optax.sgd(outer_step, momentum=momentum)
    return local_updates(f"slowmo({period}, {momentum})", optimizer, outer, period, via=via)
