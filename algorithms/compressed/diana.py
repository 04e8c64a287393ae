"""DIANA and EF-BV: compressed differences from shifts, with two step sizes."""

from __future__ import annotations

from typing import Any

import optax

from algorithms.facts import method
from algorithms.mechanisms.memories import Up, with_memories
from dsgd import Algorithm, Compressor, checks, compressors, network
from dsgd.extend import Real


@method(
    sends="compressed differences to shifts that learn the gradients, to one server",
    exact="any data",
    needs=("unbiased compressor",),
    regularizer=True,
    paper="Mishchenko et al., 2019",
    page="how_to/compression.md#combine-memories",
    settings={"compressor": compressors.whole_model(compressors.random_quantization(4))},
)
@checks.arguments
def diana(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    memory_step: Real | None = None,
    *,
    via: network.OneServer | network.NServers = network.star,
) -> Algorithm:
    r"""DIANA: workers send the compressed difference between their gradient and a shift, which
    learns their gradient at the optimum.

    $$ m_n = Q(g_n(x_t) - h_n), \qquad \hat g = \bar h + \frac1N \sum_n m_n, \qquad
       x_{t+1} = \mathrm{prox}_{\gamma r}(x_t - \gamma \hat g) $$
    $$ h_n \leftarrow h_n + \alpha m_n, \qquad \bar h \leftarrow \bar h + \alpha \frac1N \sum_n m_n
    $$

    $\hat g$ is unbiased. The shifts start at 0, and $\bar h$ is their mean at all times. With exact
    gradients the limit is exact: $h_n \to f_n'(x^\star)$, so that the messages vanish. With $\alpha
    = 0$ the method is compressed SGD; with the identity, SGD.

    Each worker sends one message to the server, which replies with $\hat g$, uncompressed. Through
    one server workers may be absent and messages may be lost: the others keep $h_n$, and $\hat g =
    \bar h + \frac{1}{|S|} \sum_{n \in S} m_n$ over the workers S from which messages arrive is
    unbiased if all workers are equally likely to be in S.

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation, and with momentum DIANA with
            momentum. On problems with a regularizer it must have no momentum; $\gamma$ may be a
            schedule.
        compressor: Q, unbiased, with $E|Q(x) - x|^2 \le \omega |x|^2$.
        memory_step: $\alpha$, in [0, 1]; None: $1 / (1 + \omega)$, with the largest $\omega$ of the
            vectors that are compressed. Larger numbers may let the shifts diverge.
        via: one server, `network.star` or `network.parameter_server`; or N servers,
            `network.multi_server`, for which all workers must participate.

    Raises:
        ValueError: if the compressor is biased, the step is not in [0, 1], or `via` is another
            pattern. At the start of a run: if the compressor states no $\omega$ for a vector and
            the step is None.

    Source: Mishchenko, Gorbunov, Takáč and Richtárik, "Distributed learning with compressed
    gradient differences", 2019; for any unbiased Q, Horváth et al., "Stochastic distributed
    learning with gradient quantization and variance reduction", 2019.
    """
    if not compressor.unbiased:
        raise ValueError(
            f"diana: the compressor {compressor.name} is biased; expected an unbiased one, such as "
            "compressors.random_k(0.1): use ef21 for biased ones"
        )
    if memory_step is None:
        alpha, name = (lambda sizes, N: 1 / (1 + largest_omega("diana", compressor, sizes))), ""
    else:
        alpha, name = checks.number("diana: memory_step", memory_step, "[0, 1]"), f", {memory_step}"
    up = Up(compressor, shift=alpha, over="arrived")
    return with_memories(f"diana({compressor.name}{name})", optimizer, up, None, via=via)


@method(
    sends="compressed differences to shifts that learn the gradients, to one server",
    exact="any data",
    regularizer=True,
    paper="Condat et al., 2022",
    page="how_to/compression.md#combine-memories",
    settings={"compressor": compressors.whole_model(compressors.random_quantization(4))},
)
@checks.arguments
def ef_bv(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    memory_step: Real | None = None,
    gain: Real | None = None,
    *,
    via: network.OneServer | network.NServers = network.star,
) -> Algorithm:
    r"""EF-BV: compressed differences from shifts, with one step size for the shifts and one for the
    direction. DIANA and EF21 are special cases.

    $$ m_n = C(g_n(x_t) - h_n), \qquad \hat g = \bar h + \nu \frac1N \sum_n m_n, \qquad
       x_{t+1} = \mathrm{prox}_{\gamma r}(x_t - \gamma \hat g) $$
    $$ h_n \leftarrow h_n + \lambda m_n, \qquad \bar h \leftarrow \bar h + \lambda \frac1N \sum_n
       m_n $$

    $\lambda = \nu = 1$ with a contraction is EF21; $\lambda = 1 / (1 + \omega)$, $\nu = 1$ with an
    unbiased compressor is DIANA. The shifts start at 0. With exact gradients the limit is exact.

    The messages are those of `diana`. If workers are absent or messages are lost, sums are over the
    messages that arrive, divided by N, and the other workers keep $h_n$; the method is then that of
    the compressor that returns 0 for them.

    Args:
        optimizer: as in `diana`.
        compressor: C, unbiased or a contraction.
        memory_step: $\lambda$, in [0, 1]. None: the number for which $\lambda C$ has the smallest
            error bound, $1 / (1 + \omega)$ for an unbiased compressor, 1 for a contraction.
        gain: $\nu$, above 0. None: the same for the mean of N independent messages, with
            $\omega / N$ in the place of $\omega$: $1 / (1 + \omega / N)$; 1 for a contraction.
        via: as in `diana`.

    Raises:
        ValueError: if a number is out of range, or `via` is another pattern. At the start of a run:
            if the compressor is biased and states no contraction for a vector; or it is unbiased,
            states no $\omega$ and a number is None.

    Source: Condat, Yi and Richtárik, "EF-BV: a unified theory of error feedback and variance
    reduction mechanisms for biased and unbiased compression in distributed optimization", 2022.
    """

    def least(workers):
        """Returns the smallest-error factor of a mean of as many messages as `workers` returns."""
        if not compressor.unbiased:
            return 1.0
        return lambda sizes, N: 1 / (1 + largest_omega("ef_bv", compressor, sizes) / workers(N))

    numbers = [f"{number}" for number in (memory_step, gain) if number is not None]
    if memory_step is not None:
        checks.number("ef_bv: memory_step", memory_step, "[0, 1]")
    if gain is not None:
        checks.number("ef_bv: gain", gain, "(0, inf)")
    up = Up(
        compressor,
        shift=least(lambda N: 1) if memory_step is None else memory_step,
        gain=least(lambda N: N) if gain is None else gain,
    )
    contracting = () if compressor.unbiased else (compressor,)
    name = f"ef_bv({', '.join([compressor.name, *numbers])})"
    return with_memories(name, optimizer, up, None, via=via, contracting=contracting)


def largest_omega(
    method: str,
    compressor: Compressor,
    sizes: tuple[int, ...],
    instead: str = ", or the step size of the shifts as an argument",
) -> float:
    """Returns the largest omega of the compressor for vectors of these sizes.

    Args:
        method: for the error message.
        compressor, sizes: as there.
        instead: what else a user can do if the compressor states none.

    Raises:
        ValueError: if the compressor states none.
    """
    omegas: list[Any] = [compressor.omega and compressor.omega(size) for size in sizes]
    for size, omega in zip(sizes, omegas, strict=True):
        if not (checks.is_number(omega) and omega >= 0):
            raise ValueError(
                f"{method}: {compressor.name} states omega = {checks.kind(omega)} for vectors of "
                f"{size} elements; expected a number{instead}"
            )
    return max(omegas)
