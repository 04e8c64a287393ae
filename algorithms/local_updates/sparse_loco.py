"""Outer gradients that are compressed with error memory: SparseLoCo, MuLoCo, Qsparse-local-SGD."""

from __future__ import annotations

from functools import partial

import optax

from algorithms.facts import method
from algorithms.mechanisms.outer import compressed_change, error_memory, local_updates
from dsgd import Algorithm, Compressor, checks, compressors, network
from dsgd.compressors import chunked_top_k, contraction, qsgd, top_k, two_bit
from dsgd.extend import Period, Real

_SPARSE = chunked_top_k(64, 4096, two_bit)  # of SparseLoCo's paper


@method(
    sends="sparse changes with error memory every H-th round, by an all-gather",
    needs=("contractive compressor", "all workers"),
    paper="SparseLoCo: Sarfi et al., 2025",
    page="reference/compressors.md",
    settings={"period": 4, "compressor": compressors.chunked_top_k(4, 8, compressors.two_bit)},
    candidates={"language models": [{"compressor": _SPARSE}]},
)
@checks.arguments
def sparse_loco(
    optimizer: optax.GradientTransformation,
    period: Period = 30,
    compressor: Compressor | None = None,
    outer: optax.GradientTransformation | None = None,
    *,
    decay: Real = 0.95,
) -> Algorithm:
    r"""SparseLoCo: H local steps, then an outer step along the mean of sparse outer gradients. The
    error memory, which decays, takes the place of outer momentum.

    $$ e^{(n)} \leftarrow \beta e^{(n)} + x_t - y_H^{(n)}, \qquad m^{(n)} = C(e^{(n)}), \qquad
       e^{(n)} \leftarrow e^{(n)} - m^{(n)}, \qquad
       x_{t+1} = x_t - \eta \frac1N \sum_n m^{(n)} $$

    A round is one gradient per worker. Every H-th round all workers gather the messages of all
    others, so that all must participate. The mean is over all N workers (Templar's implementation
    clips messages to their median norm, and divides each element by the number of workers that sent
    it). It is weighted by the problem's worker weights. The limit is biased, as that of local SGD;
    a memory with $\beta < 1$ adds to the bias, because it loses a part of the errors. If C is the
    identity, the memory stays 0, and the method is `diloco` with the same outer step.

    Args:
        optimizer: each worker's inner step, for example `optax.adamw(4e-4)`; its state is kept.
        period: H. It may be swept.
        compressor: C, a contraction; None: the paper's, `chunked_top_k(64, 4096, two_bit)`. It is
            applied to each leaf, or to the whole model with `compressors.whole_model`.
        outer: the outer step; None: `optax.sgd(1)`, the equation with $\eta = 1$.
        decay: $\beta$, in [0, 1].

    Raises:
        ValueError: if the period is less than 1, the compressor states no contraction, or $\beta$
            is not in [0, 1].

    Source: Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025.
    """
    compressor = _SPARSE if compressor is None else compressor
    outer = optax.sgd(1.0) if outer is None else outer
    return _compressed_updates("sparse_loco", optimizer, period, compressor, outer, decay)


@method(
    sends="compressed changes with error memory every H-th round, by an all-gather",
    needs=("contractive compressor", "all workers"),
    paper="MuLoCo: Thérien et al., 2025",
    page="reference/compressors.md",
    settings={"period": 4},
)
@checks.arguments
def muloco(
    optimizer: optax.GradientTransformation,
    period: Period = 30,
    compressor: Compressor = two_bit,
    outer: optax.GradientTransformation | None = None,
    *,
    decay: Real = 0.9,
) -> Algorithm:
    r"""MuLoCo: DiLoCo with Muon as inner optimizer and compressed outer gradients with error
    memory.

    $$ e^{(n)} \leftarrow \beta e^{(n)} + x_t - y_H^{(n)}, \qquad m^{(n)} = C(e^{(n)}), \qquad
       e^{(n)} \leftarrow e^{(n)} - m^{(n)} $$
    $$ \Delta_t = \frac1N \sum_n m^{(n)}, \qquad u_{t+1} = \mu u_t + \Delta_t, \qquad
       x_{t+1} = x_t - \eta (\Delta_t + \mu u_{t+1}) $$

    It is `sparse_loco` with Nesterov momentum in the outer step; communication, participation and
    weights are the same. Muon orthogonalizes the momentum of each matrix, so that the inner
    optimizer must receive the model's leaves in their shapes.

    Args:
        optimizer: each worker's inner step, for example `optax.contrib.muon(0.02)`, which makes
            steps of Muon for matrices and of AdamW for other leaves; its state is kept.
        period: H. It may be swept.
        compressor: C, a contraction. It is applied to each leaf, or to the whole model with
            `compressors.whole_model`.
        outer: the outer step; None: `optax.sgd(0.7, momentum=0.9, nesterov=True)`.
        decay: $\beta$, in [0, 1].

    Raises:
        ValueError: as in `sparse_loco`.

    Source: Thérien et al., "MuLoCo: Muon is a practical inner optimizer for DiLoCo", 2025.
    """
    outer = optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
    return _compressed_updates("muloco", optimizer, period, compressor, outer, decay)


@method(
    sends="compressed changes with error memory every H-th round, by an all-gather",
    needs=("contractive compressor", "all workers"),
    paper="Qsparse-local-SGD: Basu et al., 2019, Algorithm 1",
    page="reference/compressors.md",
    settings={"period": 4, "compressor": compressors.whole_model(compressors.top_k(0.1))},
    candidates={
        "any problem": [
            {"compressor": compressors.whole_model(each)}
            for each in (compressors.sign, top_k(0.01))
        ]
    },
)
@checks.arguments
def qsparse_local_sgd(
    optimizer: optax.GradientTransformation,
    period: Period = 4,
    compressor: Compressor | None = None,
) -> Algorithm:
    r"""Qsparse-local-SGD: local SGD that averages changes which are first sparsified and then
    quantized, with error memory.

    $$ e^{(n)} \leftarrow e^{(n)} + x_t - y_H^{(n)}, \qquad m^{(n)} = C(e^{(n)}), \qquad
       e^{(n)} \leftarrow e^{(n)} - m^{(n)}, \qquad
       x_{t+1} = x_t - \frac1N \sum_n m^{(n)} $$

    It is `sparse_loco` with $\beta = 1$ and an outer step of 1; communication, participation and
    weights are the same. With $H = 1$ it is `error_compensated_sgd` with the identity for the
    servers, and if C is the identity, local SGD. The limit is biased, as that of local SGD.

    Args:
        optimizer: each worker's step; `optax.sgd(gamma)` gives the equation. Its state is kept.
        period: H; the paper has 4 to 8. It may be swept.
        compressor: C, a contraction; None: the largest 1 % of the elements of each leaf, in codes
            of 4 bits, `top_k(0.01, contraction(qsgd(7)))`. A quantizer of the largest elements must
            itself be a contraction; `compressors.contraction` scales an unbiased one by
            $1 / (1 + \omega)$.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1. At the start of a run: if
            the compressor states no contraction.

    Source: Basu, Data, Karakus and Diggavi, "Qsparse-local-SGD: distributed SGD with quantization,
    sparsification, and local computations", 2019; the version in which all workers synchronize in
    the same rounds.
    """
    compressor = top_k(0.01, contraction(qsgd(7))) if compressor is None else compressor
    return _compressed_updates(
        "qsparse_local_sgd", optimizer, period, compressor, optax.sgd(1.0), 1.0
    )


def _compressed_updates(
    name: str,
    optimizer: optax.GradientTransformation,
    period: Period,
    compressor: Compressor,
    outer: optax.GradientTransformation,
    decay: Real,
) -> Algorithm:
    period = checks.period(f"{name}: period", period)
    checks.number(f"{name}: decay", decay, "[0, 1]")
    return local_updates(
        f"{name}({period}, {compressor.name})",
        optimizer,
        outer,
        period,
        via=network.all_gather,
        change=partial(compressed_change, compressor, decay),
        own=partial(error_memory, name, compressor),
    )
