"""Error-compensated SGD (DoubleSqueeze): the survey's section 3.3."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.memories import Down, Up, with_memories
from dsgd import Algorithm, Compressor, checks, compressors, network

_BOTH = tuple(
    {"up": each, "down": each}
    for each in map(
        compressors.whole_model,
        (compressors.sign, compressors.top_k(0.1), compressors.top_k(0.03)),
    )
)


@method(
    sends="compressed gradients plus error memory, in both directions, through N servers",
    needs=("contractive compressor", "all workers"),
    regularizer=True,
    paper="(3.10) to (3.14); DoubleSqueeze, 2019",
    page="how_to/compression.md",
    aliases=("ec_sgd", "ef", "ef_sgd", "mem_sgd"),
    settings=_BOTH[0],
    candidates={"any problem": _BOTH},
)
@checks.arguments
def error_compensated_sgd(
    optimizer: optax.GradientTransformation,
    up: Compressor,
    down: Compressor,
    *,
    allow_expanding: bool = False,
) -> Algorithm:
    r"""Error-compensated SGD (EC-SGD): workers and servers add the error of earlier compressions to
    the next vector before they compress it.

    $$ v_t^{(n)} = g_n(x_t) + \delta_{t-1}^{(n)}, \qquad \delta_t^{(n)} = v_t^{(n)} - Q(v_t^{(n)})
    \tag{3.10, 3.11} $$
    $$ v_t = \frac1N \sum_n Q(v_t^{(n)}) + \delta_{t-1}, \qquad \delta_t = v_t - Q(v_t) \tag{3.12,
    3.13} $$
    $$ x_{t+1} = x_t - \gamma\, Q(v_t) \tag{3.14} $$

    No part of a gradient is lost:
    $\tilde x_t = x_t - \gamma (\delta_{t-1} + \frac1N \sum_n \delta_{t-1}^{(n)})$ follows SGD with
    the gradients at $x_t$, for any Q (Lemma 3.4.1).

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        up: Q of the workers. It may be biased, but must be a contraction, so that the error memory
            stays bounded; `compressors.contraction` turns any unbiased compressor into one.
        down: Q of the servers, with the same requirements.
        allow_expanding: whether compressors that declare no contraction are accepted. With them the
            error memories may grow without bound: Lemma 3.4.1 holds, but the distance between
            $\tilde x$ and $x$ may grow.

    Raises:
        ValueError: if only one of the compressors works layer by layer. At the start of a run: if a
            compressor declares no contraction for a shard and `allow_expanding` is not set.

    Source: Liu and Zhang, section 3.3; Tang et al., "DoubleSqueeze", 2019. Departure: N servers,
    each with one shard, as in section 3.1.2; the equations have one server.
    """
    return with_memories(
        f"error_compensated_sgd({up.name}, {down.name}{', allow_expanding' * allow_expanding})",
        optimizer,
        Up(up, error=1.0),
        Down(down, "error"),
        via=network.multi_server,
        contracting=() if allow_expanding else (up, down),
        insist="allow_expanding=True",
    )
