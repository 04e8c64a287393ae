"""DeMo: each worker keeps its own momentum and sends its largest frequencies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from algorithms import optimizers
from algorithms.facts import method
from algorithms.mechanisms import matrices
from dsgd import Algorithm, Query, State, checks, workers
from dsgd.compressors import dct_top_k
from dsgd.extend import Real, wide


@method(
    sends="largest DCT coefficients of momenta, by an all-gather",
    needs=("all workers",),
    paper="DeMo: Peng et al., 2024",
    page="reference/compressors.md",
    settings={"k": 4},
    candidates={"language models": [{"optimizer": optax.sgd}]},
)
@checks.arguments
def demo(
    optimizer: optax.GradientTransformation, decay: Real = 0.999, k: int = 32, chunk: int = 64
) -> Algorithm:
    r"""DeMo (decoupled momentum): each worker sends the largest DCT coefficients of its momentum to
    all others and removes them from it; all workers step along the sign of the mean.

    $$ m_n \leftarrow \beta m_n + g_n(x), \qquad q_n = \mathrm{TopK}(T m_n), \qquad m_n \leftarrow
    m_n - T^{-1} q_n $$
    $$ u = T^{-1} \frac1N \sum_n q_n, \qquad x \leftarrow x - \gamma\, \mathrm{sign}(u) $$

    T is the orthonormal discrete cosine transform (DCT-II) of the chunks of each leaf, in two
    dimensions for matrices, and TopK keeps the k largest coefficients of each chunk: see
    `compressors.dct_top_k`. The momenta start at 0 and differ between workers; x does not. The mean
    is over all N workers, also for coefficients that only some of them send, with the problem's
    worker weights. If an element of u is 0, that element of x does not change. With k at least the
    number of elements of a chunk, m is 0 after each round, and the method is SGD along the sign of
    the mean gradient. Steps have a constant size, so that x approaches a minimum only if $\gamma$
    decreases.

    Sends k values and k indices for each chunk, by an all-gather.

    Args:
        optimizer: the step along sign(u); `optax.sgd(gamma)` gives the equation.
            `optax.chain(optax.add_decayed_weights(lambda_), optax.sgd(gamma))` also multiplies x by
            $1 - \gamma\lambda$; the paper has 0 or 0.1 for $\lambda$.
        decay: beta, in [0, 1).
        k: number of coefficients that are sent for each chunk; the paper has 1 to 32.
        chunk: largest side of a chunk. A side of a leaf is cut into chunks of its largest divisor
            that is at most `chunk`.

    Raises:
        ValueError: if decay is outside [0, 1), or k or chunk < 1. At the start of a run: if workers
            may be absent or messages may be lost, since x would then differ between workers.

    Source: Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", 2024. Departures:
    $m_n$ accumulates $g_n$ instead of $\gamma g_n$; for constant $\gamma$ the iterates are the
    same, since TopK and sign are invariant to scaling; with a schedule, old gradients are not
    weighted by the step sizes of their rounds. The authors' code divides the sum of a coefficient
    by the number of workers that sent it, not by N.
    """
    optimizers.require_descent(optimizer)
    checks.number("demo: decay", decay, "[0, 1)")
    checks.positive_int("demo: k", k)
    checks.positive_int("demo: chunk", chunk)

    def compressor(leaf):
        shape = matrices.sides(leaf.shape[1:])
        return dct_top_k(k, chunk, None if shape is None else shape[1])

    def init(params, N):
        momenta = jax.tree.map(lambda leaf: jnp.zeros_like(wide(leaf)), params)
        return State(optimizers.init(optimizer, params), workers.replicate(momenta, N))

    def update(state, gradients, round):
        m = jax.tree.map(lambda m, g: jnp.asarray(decay, m.dtype) * m + g, state.workers, gradients)
        leaves, treedef = jax.tree.flatten(m)
        with round.joint():
            sent = [round.mean_of_messages(compressor(leaf), leaf) for leaf in leaves]
        m = optax.tree.sub(m, treedef.unflatten(each.decoded for each in sent))
        u = treedef.unflatten(each.received for each in sent)
        signs = jax.tree.map(lambda u, x: jnp.sign(u).astype(x.dtype), u, state.server.params)
        return State(optimizers.step(optimizer, state.server, signs), m)

    return Algorithm(
        f"demo({decay}, {k}, {chunk})",
        init,
        lambda state, round: Query(state.server.params),
        update,
        lambda state: state.server.params,
    )
