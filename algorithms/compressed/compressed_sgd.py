"""SGD with lossy communication compression: the survey's section 3.1.2."""

from __future__ import annotations

from typing import Literal

import optax

from algorithms import methods, optimizers
from dsgd import Algorithm, Compressor, checks, communication


@checks.arguments
def compressed_sgd(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    via: Literal["server", "ring"] = "server",
    allow_biased: bool = False,
) -> Algorithm:
    r"""CSGD: all that is sent is compressed, through N servers, each of one part of the vector, or
    around a ring.

    $$ x_{t+1} = x_t - \gamma\, Q\Big(\frac1N \sum_n Q(g_n(x_t))\Big) \tag{3.4, 3.6} $$
    $$ x_{t+1} = x_t - \gamma\, \frac1N Q(\cdots Q(Q(g_1(x_t)) + g_2(x_t)) + \cdots + g_N(x_t))
    \tag{3.5, 3.6} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` is the equation.
        compressor: Q, unbiased. It works on parts of d/N elements: many workers and few elements,
            or small leaves (see `compressors.whole_model`), send little but headers. The last parts
            are padded, which is sent and told; an all-reduce pads nothing, so that `minibatch_sgd`
            tells fewer bits than this with `compressors.identity` where N does not divide d.
        via: "server" (3.4) or "ring" (3.5).
        allow_biased: take a biased compressor, with which CSGD need not converge.

    Raises:
        ValueError: no compressor, another `via`, or a biased compressor without `allow_biased`.

    Source: Liu and Zhang, section 3.1.2. Departure: (3.5) is printed without 1/N. Every part is
    compressed on its own.
    """
    if via not in ("server", "ring"):
        raise ValueError(f"compressed_sgd via {via!r}: need one of server, ring")
    if not compressor.unbiased and not allow_biased:
        raise ValueError(
            f"compressed_sgd with {compressor.name}, which is biased: need an unbiased compressor, "
            "error_compensated_sgd or ef21, or allow_biased=True"
        )

    def update(x, gradients, round):
        shards = communication.shards(gradients, round.workers, compressor)
        if via == "ring":
            mean = round.around_ring(compressor, shards)
        else:
            mean = round.from_servers(
                compressor, round.to_servers(compressor, shards).received
            ).received
        return optimizers.step(optimizer, x, communication.unshard(mean, x.params, compressor))

    said = ", ".join(
        [compressor.name, *[via] * (via != "server"), *["allow_biased"] * (not compressor.unbiased)]
    )
    return methods.one_model(f"compressed_sgd({said})", optimizer, update)
