"""EF21: compresses the changes of gradients and model, in both directions."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.memories import Down, Up, with_memories
from dsgd import Algorithm, Compressor, checks, compressors, network


@method(
    sends="compressed differences, of gradients to the servers, of models back",
    exact="any data",
    needs=("contractive compressor", "all workers"),
    paper="Richtarik et al., 2021; Fatkhullin et al., 2021",
    page="how_to/compression.md",
    settings={
        "up": compressors.whole_model(compressors.top_k(0.1)),
        "down": compressors.whole_model(compressors.top_k(0.1)),
    },
    candidates={"any problem": [{}]},
)
@checks.arguments
def ef21(
    optimizer: optax.GradientTransformation,
    up: Compressor,
    down: Compressor | None = None,
    *,
    via: network.OneServer | network.NServers | None = None,
) -> Algorithm:
    r"""EF21 in both directions: workers send the compressed difference between their gradient and
    its estimate, servers that between the model and its estimate.

    $$ u_t^{(n)} = u_{t-1}^{(n)} + C(g_n(\hat x_t) - u_{t-1}^{(n)}), \qquad x_{t+1} = x_t - \gamma
    \frac1N \sum_n u_t^{(n)} $$
    $$ \hat x_{t+1} = \hat x_t + C'(x_{t+1} - \hat x_t) $$

    Without `down`, $\hat x = x$; this is EF21 as first published. The estimates of the gradients
    start at 0, that of the model at $x_0$.

    Variants: with `optax.sgd(gamma, momentum=beta)` the method is EF21-HB (heavy ball). Through one
    server with `down=None`, workers may be absent and messages may be lost (EF21-PP):

    $$ u_t^{(n)} = u_{t-1}^{(n)} \text{ if } n \notin S_t, \qquad \bar u_t = \bar u_{t-1} + \frac1N
    \sum_{n \in S_t} C(g_n(x_t) - u_{t-1}^{(n)}) $$

    On problems with a regularizer the method is EF21-Prox, $x_{t+1} = \mathrm{prox}_{\gamma r}(x_t
    - \gamma \bar u_t)$, if workers or one server make the step on the whole model: N servers with
    `down` are refused.

    Args:
        optimizer: the step of each server on its shard; `optax.sgd(gamma)` gives the equation. An
            elementwise optimizer (SGD, momentum, Adam) makes the same step as on the whole vector.
            On problems with a regularizer it must have no momentum; $\gamma$ may be a schedule.
        up: C, a contraction.
        down: C', a contraction; None: uncompressed.
        via: N servers, `network.multi_server`, or one, `network.star` or
            `network.parameter_server`; None: N servers if `down` is given, else a star. With N
            servers C compresses each shard, so `top_k(k=1)` sends N elements, and each worker also
            sends the replies of its shard.

    Raises:
        ValueError: if `via` is another pattern, or, with N servers, only one of the compressors
            works layer by layer. At the start of a run: if a compressor declares no contraction for
            a vector; if workers are absent and there are N servers, or one with `down`.

    Source: Richtarik, Sokolov and Fatkhullin, "EF21", 2021; in both directions, with partial
    participation, heavy ball and proximal steps, Fatkhullin et al., "EF21 with bells and whistles",
    2021, and Algorithm 3 of Kimad. Departure: with `down` N servers by default, each with one
    shard, instead of one server.
    """
    if via is None:
        via = network.multi_server if down else network.star
    compressors = [up, *([down] if down else [])]
    names = [compressor.name for compressor in compressors]
    return with_memories(
        f"ef21({', '.join(names)})",
        optimizer,
        Up(up, shift=1.0),
        Down(down, "difference") if down else None,
        via=via,
        contracting=tuple(compressors),
    )
