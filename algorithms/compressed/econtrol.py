"""EControl: EF21 with an error memory of adjustable weight."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.memories import Up, with_memories
from dsgd import Algorithm, Compressor, checks, compressors, network
from dsgd.extend import Real


@method(
    sends="compressed differences plus a part of the error memory, to one server",
    exact="any data",
    needs=("contractive compressor",),
    regularizer=True,
    paper="Gao et al., 2024",
    page="how_to/compression.md#combine-memories",
    settings={"compressor": compressors.whole_model(compressors.top_k(0.1)), "error_weight": 0.1},
)
@checks.arguments
def econtrol(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    error_weight: Real,
    *,
    via: network.OneServer | network.NServers = network.star,
) -> Algorithm:
    r"""EControl: workers send the compressed difference between their gradient and its estimate,
    to which they add a part of the error that compression has left out so far.

    $$ m_n = C(\eta e_n + g_n(x_t) - h_n), \qquad e_n \leftarrow e_n + g_n(x_t) - h_n - m_n, \qquad
       h_n \leftarrow h_n + m_n, \qquad x_{t+1} = x_t - \gamma \frac1N \sum_n h_n $$

    With $\eta = 0$ the method is EF21. The memories start at 0. With exact gradients the limit is
    exact, where error feedback without the estimates is biased by $O(\gamma)$; with noisy gradients
    the error memory keeps what EF21 loses. If $\eta$ is too large for the contraction, the memories
    grow.

    Each worker sends one message to the server, which replies with the mean of the estimates,
    uncompressed. Through one server workers may be absent and messages may be lost: the mean is
    updated by the messages that arrive, divided by N, and the other workers keep $h_n$ and $e_n$.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation. On problems with a regularizer a
            proximal step of $\gamma$ follows, and it must have no momentum.
        compressor: C, a contraction.
        error_weight: $\eta$, at least 0. The theory has a small multiple of the contraction
            $\delta$; in practice it is tuned, from about $\delta$ to 0.3.
        via: one server, `network.star` or `network.parameter_server`; or N servers,
            `network.multi_server`, for which all workers must participate.

    Raises:
        ValueError: if the weight is negative, or `via` is another pattern. At the start of a run:
            if the compressor states no contraction for a vector.

    Source: Gao, Islamov and Stich, "EControl: fast distributed optimization with compression and
    error control", 2024. Departure: $h_n$ starts at 0 instead of $g_n(x_0)$.
    """
    checks.number("econtrol: error_weight", error_weight, "[0, inf)")
    return with_memories(
        f"econtrol({compressor.name}, {error_weight})",
        optimizer,
        Up(compressor, error=error_weight, shift=1.0),
        None,
        via=via,
        contracting=(compressor,),
    )
