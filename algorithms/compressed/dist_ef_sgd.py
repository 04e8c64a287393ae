"""dist-EF-blockSGD: error memories at both ends in units of the step, with momentum and signs."""

from __future__ import annotations

import optax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms.memories import Down, Up, steps, with_memories
from dsgd import Algorithm, Compressor, checks, compressors, network


@method(
    sends="compressed steps plus error memory, in both directions, through one server",
    needs=("contractive compressor", "all workers"),
    paper="Zheng et al., 2019; dist-EF-blockSGD with `compressors.buckets`",
    page="how_to/compression.md#combine-memories",
    settings={"compressor": compressors.whole_model(compressors.sign)},
)
@checks.arguments
def dist_ef_sgd(
    optimizer: optax.GradientTransformation,
    compressor: Compressor = compressors.sign,
    *,
    via: network.OneServer | network.NServers = network.star,
) -> Algorithm:
    r"""dist-EF-SGD: workers and server compress steps, with error memories. With signs that share a
    scale in each block, and momentum, it is dist-EF-blockSGD.

    $$ p_n = \gamma_t v_n + e_n, \qquad m_n = C(p_n), \qquad e_n \leftarrow p_n - m_n $$
    $$ p = \frac1N \sum_n m_n + e, \qquad m = C(p), \qquad e \leftarrow p - m, \qquad x_{t+1} = x_t
       - m $$

    $v_n$ is the direction of the worker's optimizer, the gradient for SGD. The memories are in
    units of the step, and start at 0. In units of the gradient they would have to be multiplied by
    $\gamma_{t-1} / \gamma_t$ in each round, $p_n = v_n + \frac{\gamma_{t-1}}{\gamma_t} e_n$, as the
    paper has it: both forms are equal if $C(a x) = a C(x)$ for a > 0. With a constant $\gamma$ and
    plain SGD the method is error-compensated SGD through one server.

    For a constant $\gamma$ the limit is biased by $O(\gamma)$ if the workers' gradients differ at
    the optimum.

    Each worker sends one message, and receives one; all must participate.

    Args:
        optimizer: each worker's step; its state stays local; `optax.sgd(schedule)` gives the
            equation, and `optax.sgd(schedule, momentum=0.9, nesterov=True)` the paper's momentum.
        compressor: C, a contraction. `compressors.sign` has one scale for each leaf,
            `compressors.buckets(compressors.sign, size)` one for each block of `size` elements.
        via: one server, `network.star` or `network.parameter_server`; or N servers,
            `network.multi_server`.

    Raises:
        ValueError: if `via` is another pattern. At the start of a run: if the compressor states no
            contraction for a vector, workers are absent, or the problem has a regularizer.

    Source: Zheng, Huang and Kwok, "Communication-efficient distributed blockwise momentum SGD with
    error-feedback", 2019. EF-signSGD (Karimireddy et al., "Error feedback fixes signSGD and other
    gradient compression schemes", 2019) has no compression at the server:
    `error_feedback(optax.sgd(1.0), memories.Up(compressors.sign, error=1.0),
    vector=memories.steps(optimizer))`.
    """
    optimizers.require_descent(optimizer)
    return with_memories(
        f"dist_ef_sgd({compressor.name})",
        optax.sgd(1.0),
        Up(compressor, error=1.0),
        Down(compressor, "error"),
        vector=steps(optimizer),
        via=via,
        contracting=(compressor,),
    )
