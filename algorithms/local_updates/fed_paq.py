"""FedPAQ, FedCOMGATE and Fed-EF: clients that send compressed changes to a server."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax

from algorithms.facts import method
from algorithms.mechanisms.outer import (
    Inner,
    Outer,
    compressed_change,
    error_memory,
    local_updates,
    mean_of_messages,
    outer_gradient,
)
from dsgd import Algorithm, Communicator, Compressor, checks, compressors, network, workers
from dsgd.extend import Gradients, Period, Real


@method(
    sends="compressed changes every H-th round, the model back, through a server",
    needs=("unbiased compressor",),
    paper="FedPAQ: Reisizadeh et al., 2020",
    page="reference/compressors.md",
    settings={
        "period": 4,
        "compressor": compressors.whole_model(compressors.random_quantization(4)),
    },
)
@checks.arguments
def fed_paq(
    optimizer: optax.GradientTransformation,
    period: Period,
    compressor: Compressor,
    *,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""FedPAQ: FedAvg with quantized changes.

    $$ \Delta_n = x_t - y_H^{(n)}, \qquad
       x_{t+1} = x_t - \frac{\sum_{n \in S_t} p_n Q(\Delta_n)}{\sum_{n \in S_t} p_n} $$

    A round is one gradient per client. Every H-th round each client of $S_t$ sends one message of Q
    to the server, and receives its model, uncompressed. The clients are drawn by the cluster, and
    $p_n$ are the problem's worker weights divided by N, as in `fed_avg`, with which the method is
    the same if Q is the identity. The limit is biased as that of FedAvg. If the clients' data
    differ, their changes do not vanish, and neither does the error of Q, in which the model
    fluctuates.

    Args:
        optimizer: each client's step; `optax.sgd(gamma)` gives the equation. Its state starts again
            in each period, as in `fed_avg`.
        period: H. It may be swept.
        compressor: Q, unbiased; the paper's is `compressors.qsgd`.
        via: communication pattern: a link to the server for each client (`network.star`), or one
            port of the server for all (`network.parameter_server`).

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or the compressor is biased.

    Source: Reisizadeh et al., "FedPAQ: a communication-efficient federated learning method with
    periodic averaging and quantization", 2020.
    """
    _require_unbiased("fed_paq", compressor)
    period = checks.period("fed_paq: period", period)

    def change(x: Outer, y: Inner, round: Communicator, via: network.OneServer):
        sent = mean_of_messages(compressor, outer_gradient(x, y), round, via)
        return sent.received, x.memory, y.memory

    return local_updates(
        f"fed_paq({period}, {compressor.name})",
        optimizer,
        optax.sgd(1.0),
        period,
        via=via,
        fresh=True,
        change=change,
    )


@method(
    sends="compressed changes every H-th round, the model back, through a server",
    exact="any data",
    needs=("unbiased compressor",),
    paper="FedCOMGATE: Haddadpour et al., 2021",
    page="reference/compressors.md",
    settings={
        "period": 4,
        "compressor": compressors.whole_model(compressors.random_quantization(4)),
    },
)
@checks.arguments
def fed_comgate(
    step_size: Real,
    period: Period,
    compressor: Compressor,
    *,
    outer_step: Real = 1.0,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""FedCOMGATE: FedPAQ with local steps that are corrected by the differences between the
    clients' messages.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma \big(g_n(y^{(n)}) - \delta_n\big) \quad H \text{ times
       from } x_t, \qquad q_n = Q(x_t - y_H^{(n)}), \qquad \bar q = \frac{\sum_{n \in S_t} p_n q_n}
       {\sum_{n \in S_t} p_n} $$
    $$ x_{t+1} = x_t - \eta \bar q, \qquad
       \delta_n \leftarrow \delta_n + \frac{1}{H \gamma} (q_n - \bar q) \text{ for } n \in S_t $$

    The corrections start at 0, and $\sum_n p_n \delta_n = 0$ in every round. With exact gradients
    the limit is the optimum, for any data: there $\delta_n = f_n'(x)$ and all changes are 0, so
    that Q makes no error. If Q is the identity, all clients participate, and $\eta = 1$, the method
    is `scaffold`.

    Messages, participation and weights are those of `fed_paq`; a client that does not participate,
    or has its message lost, keeps its correction.

    Args:
        step_size: $\gamma$, positive. It may be swept.
        period, compressor, via: as in `fed_paq`.
        outer_step: $\eta$, the step of the server, positive.

    Raises:
        ValueError: as in `fed_paq`, or if a step is not positive.

    Source: Haddadpour, Kamani, Mokhtari and Mahdavi, "Federated learning with compression: unified
    analysis and sharp guarantees", 2021; messages are multiplied by $\gamma$ here, which changes
    nothing if Q commutes with this.
    """
    _require_unbiased("fed_comgate", compressor)
    period = checks.period("fed_comgate: period", period)
    for name, value in {"step_size": step_size, "outer_step": outer_step}.items():
        checks.number(f"fed_comgate: {name}", value, "(0, 3e38]")

    def direction(gradients: Gradients, x: Outer, y: Inner) -> Gradients:
        return optax.tree.sub(gradients, y.memory)

    def change(x: Outer, y: Inner, round: Communicator, via: network.OneServer):
        sent = mean_of_messages(compressor, outer_gradient(x, y), round, via)
        corrections = jax.tree.map(
            lambda delta, q, mean: (
                delta + (q - mean[None]) / jnp.asarray(period * step_size, q.dtype)
            ),
            y.memory,
            sent.decoded,
            sent.received,
        )
        return sent.received, x.memory, workers.where_delivered(corrections, y.memory)

    return local_updates(
        f"fed_comgate({period}, {compressor.name})",
        optax.sgd(step_size),
        optax.sgd(outer_step),
        period,
        via=via,
        direction=direction,
        change=change,
        own=optax.tree.zeros_like,
    )


@method(
    sends="compressed changes with error memory every H-th round, the model back, through a server",
    needs=("contractive compressor",),
    paper="Fed-EF: Li and Li, 2023",
    page="reference/compressors.md",
    settings={"period": 4, "compressor": compressors.whole_model(compressors.top_k(0.1))},
)
@checks.arguments
def fed_ef(
    optimizer: optax.GradientTransformation,
    period: Period,
    compressor: Compressor,
    outer: optax.GradientTransformation | None = None,
    *,
    via: network.OneServer = network.star,
) -> Algorithm:
    r"""Fed-EF: clients send compressed changes with error memory, and the server makes a step along
    their mean.

    $$ v_n = e_n + x_t - y_H^{(n)}, \qquad m_n = C(v_n), \qquad e_n \leftarrow v_n - m_n, \qquad
       x_{t+1} = x_t - \eta \frac{\sum_{n \in S_t} p_n m_n}{\sum_{n \in S_t} p_n} $$

    A client that does not participate, or loses its message, keeps its memory, which belongs to an
    older model when it returns. Messages, participation and weights are those of `fed_paq`. If
    all clients participate, the method makes the steps of `qsparse_local_sgd`. The limit is biased,
    as that of FedAvg.

    Args:
        optimizer: each client's step; `optax.sgd(gamma)` gives the equation. Its state starts again
            in each period.
        period: H. It may be swept.
        compressor: C, a contraction.
        outer: the server's step, for example `optax.amsgrad(eta)`; None: `optax.sgd(1)`, the
            equation with $\eta = 1$.
        via: as in `fed_paq`.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1. At the start of a run: if
            the compressor states no contraction.

    Source: Li and Li, "Analysis of error feedback in federated non-convex optimization with biased
    compression: fast convergence and partial participation", 2023.
    """
    period = checks.period("fed_ef: period", period)
    return local_updates(
        f"fed_ef({period}, {compressor.name})",
        optimizer,
        optax.sgd(1.0) if outer is None else outer,
        period,
        via=via,
        fresh=True,
        change=partial(compressed_change, compressor, 1.0),
        own=partial(error_memory, "fed_ef", compressor),
    )


def _require_unbiased(method: str, compressor: Compressor) -> None:
    if not compressor.unbiased:
        raise ValueError(
            f"{method}: the compressor {compressor.name} is biased; expected an unbiased one: use "
            "fed_ef"
        )
