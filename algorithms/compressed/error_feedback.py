"""Gradients that are compressed with any combination of memories."""

from __future__ import annotations

import optax

from algorithms.facts import method
from algorithms.mechanisms.memories import Down, Up, Vector, gradient, validate, with_memories
from dsgd import Algorithm, checks, network


@method(
    sends="any combination of shifts, error memories and momenta, to servers",
    paper="Seide et al., 2014; see its parts",
    page="how_to/compression.md#combine-memories",
    settings=None,
)
@checks.arguments
def error_feedback(
    optimizer: optax.GradientTransformation,
    up: Up,
    down: Down | None = None,
    *,
    vector: Vector = gradient,
    via: network.OneServer | network.NServers = network.star,
) -> Algorithm:
    r"""Gradients that are compressed with any combination of memories. EC-SGD, EF21,
    EF21-SGDM, EControl, DIANA and EF-BV are special cases.

    $$ m_n = C(\eta e_n + v_n - h_n), \qquad \hat g = \bar h + \nu \frac1N \sum_n m_n, \qquad
       x \leftarrow \mathrm{prox}_{\gamma r}(x - \gamma \hat g) $$
    $$ e_n \leftarrow \beta e_n + v_n - h_n - m_n, \qquad h_n \leftarrow h_n + \lambda m_n, \qquad
       \bar h \leftarrow \bar h + \lambda \frac1N \sum_n m_n $$

    v is the gradient or an estimate made of gradients, `vector`. All memories start at 0. Whether
    the method converges depends on the combination: an error memory needs a contraction, a shift
    with $\lambda = 1$ too, and a shift with an unbiased C needs $\lambda \le 1 / (1 + \omega)$. The
    limit is exact with shifts, since $h_n$ approaches $v_n$, and biased without.

    Through one server, it replies with $\hat g$ or, with `down`, compressed. Workers may be absent
    and messages to it may be lost if it replies uncompressed: sums are over the messages that
    arrive, and the other workers keep $h_n$ and $e_n$. Through N servers, `network.multi_server`,
    with one shard of the vector each, all must participate.

    Args:
        optimizer: the step along $\hat g$; `optax.sgd(gamma)` gives the equation. On problems with
            a regularizer it must have no momentum; $\gamma$ may be a schedule.
        up: messages of the workers.
        down: messages of the servers; None: they reply uncompressed.
        vector: v: `memories.gradient`, `memories.momentum(eta)`, `memories.double_momentum(eta)` or
            `memories.steps(optimizer)`.
        via: one server, `network.star` or `network.parameter_server`; or `network.multi_server`.

    Raises:
        ValueError: if a number is out of range, `via` is another pattern, or, with N servers, only
            one of the compressors works layer by layer.
    """
    validate("error_feedback", up, down)
    parts = [up.compressor.name, *([down.compressor.name] if down else [])]
    numbers = [
        f"{name}={checks.show(number)}"
        for name, number in zip(Up._fields[1:5], up[1:5], strict=True)
        if number is not None
    ]
    memory = [f"memory={down.memory}"] if down else []
    name = f"error_feedback({', '.join([*parts, *numbers, *memory, *filter(None, [vector.name])])})"
    return with_memories(name, optimizer, up, down, vector=vector, via=via)
