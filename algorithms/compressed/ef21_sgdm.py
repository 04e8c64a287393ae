"""EF21-SGDM: EF21 on the workers' momentum, so that it tolerates noise."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.memories import Up, double_momentum, momentum, with_memories
from dsgd import Algorithm, Compressor, checks, compressors, network
from dsgd.extend import Real


@method(
    sends="compressed differences of momenta, to one server",
    exact="any data",
    needs=("contractive compressor",),
    regularizer=True,
    paper="Fatkhullin et al., 2023",
    page="how_to/compression.md#combine-memories",
    settings={"compressor": compressors.whole_model(compressors.top_k(0.1))},
)
@checks.arguments
def ef21_sgdm(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    momentum_step: Real = 0.1,
    *,
    double: bool = False,
    via: network.OneServer | network.NServers = network.star,
) -> Algorithm:
    r"""EF21-SGDM: workers average their gradients over rounds, and send the compressed difference
    between this momentum and its estimate.

    $$ v_n \leftarrow (1 - \eta) v_n + \eta g_n(x_t), \qquad u_n \leftarrow u_n + C(v_n - u_n),
       \qquad x_{t+1} = x_t - \gamma \frac1N \sum_n u_n $$

    With `double` (EF21-SGD2M) the vector that is compressed is averaged twice, $w_n \leftarrow (1 -
    \eta) w_n + \eta v_n$ in place of $v_n$.

    EF21 with noisy gradients of a constant variance stalls, since each contraction keeps old noise;
    the momentum averages the noise before it is compressed. With $\eta = 1$ the method is EF21;
    with the identity, SGD with momentum $1 - \eta$ of step size $\gamma \eta$. With exact gradients
    the limit is exact.

    Each worker sends one message to the server, which replies with the mean of the estimates,
    uncompressed. Through one server workers may be absent: they keep $v_n$ and $u_n$. If a message
    is lost, its worker keeps $u_n$.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation. On problems with a regularizer a
            proximal step of $\gamma$ follows, and it must have no momentum.
        compressor: C, a contraction.
        momentum_step: $\eta$, in (0, 1].
        double: whether the momentum is averaged a second time.
        via: one server, `network.star` or `network.parameter_server`; or N servers,
            `network.multi_server`, for which all workers must participate.

    Raises:
        ValueError: if the momentum step is not in (0, 1], or `via` is another pattern. At the
            start of a run: if the compressor states no contraction for a vector.

    Source: Fatkhullin, Tyurin and Richtárik, "Momentum provably improves error feedback!", 2023.
    Departure: $v_n$, $w_n$ and $u_n$ start at 0; the paper's start at a gradient of a mini-batch at
    $x_0$.
    """
    checks.number("ef21_sgdm: momentum_step", momentum_step, "(0, 1]")
    return with_memories(
        f"ef21_sgdm({compressor.name}, {momentum_step}{', double' * double})",
        optimizer,
        Up(compressor, shift=1.0),
        None,
        vector=(double_momentum if double else momentum)(momentum_step),
        via=via,
        contracting=(compressor,),
    )
