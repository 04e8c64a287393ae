"""SGD with lossy communication compression: the survey's section 3.1.2."""

from __future__ import annotations

import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from dsgd import Algorithm, Compressor, checks, communication, compressors


@method(
    sends="compressed gradients, through N servers or around a ring",
    needs=("unbiased compressor", "all workers"),
    paper="(3.4), (3.5)",
    page="how_to/compression.md",
    aliases=("csgd",),
    settings={"compressor": compressors.whole_model(compressors.random_quantization(4))},
    candidates={"any problem": [{}]},
    variants={"ring": {"ring": True}},
)
@checks.arguments
def compressed_sgd(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    ring: bool = False,
    allow_biased: bool = False,
) -> Algorithm:
    r"""Compressed SGD (CSGD): all messages are compressed. They go through N servers, each of which
    owns one shard of the vector, or around a ring.

    $$ x_{t+1} = x_t - \gamma\, Q\Big(\frac1N \sum_n Q(g_n(x_t))\Big) \tag{3.4, 3.6} $$
    $$ x_{t+1} = x_t - \gamma\, \frac1N Q(\cdots Q(Q(g_1(x_t)) + g_2(x_t)) + \cdots + g_N(x_t))
    \tag{3.5, 3.6} $$

    Args:
        optimizer: the step; `optax.sgd(gamma)` gives the equation.
        compressor: Q, unbiased. It compresses shards of d/N elements, so with many workers and few
            elements, or with small leaves (see `compressors.whole_model`), messages consist mostly
            of headers. The last shards are padded, and the padding is sent and counted. An
            all-reduce pads nothing; so if N does not divide d, `minibatch_sgd` counts fewer bits
            than this method with `compressors.identity`.
        ring: whether messages go around a ring (3.5) instead of through N servers (3.4).
        allow_biased: whether a biased compressor is accepted. CSGD need not converge with one.

    Raises:
        ValueError: if the compressor is biased and `allow_biased` is not set.

    Source: Liu and Zhang, section 3.1.2. Departure: (3.5) is printed without 1/N. Each shard is
    compressed separately.
    """
    if not compressor.unbiased and not allow_biased:
        raise ValueError(
            f"compressed_sgd: the compressor {compressor.name} is biased; expected an unbiased "
            "one: use error_compensated_sgd or ef21, or pass allow_biased=True"
        )

    def update(x, gradients, round):
        shards = communication.shards(gradients, round.workers, compressor)
        if ring:
            mean = round.around_ring(compressor, shards)
        else:
            mean = round.from_servers(
                compressor, round.to_servers(compressor, shards).received
            ).received
        return optimizers.step(optimizer, x, communication.unshard(mean, x.params, compressor))

    options = ", ".join(
        [compressor.name, *["ring"] * ring, *["allow_biased"] * (not compressor.unbiased)]
    )
    return methods.one_model(f"compressed_sgd({options})", optimizer, update)
