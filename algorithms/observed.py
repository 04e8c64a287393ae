"""Any method, with what its workers can observe in the history."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd import checks, workers
from dsgd.base import Algorithm, Gradients, Query, Round
from dsgd.work import of_each


@checks.arguments
def observed(method: Algorithm) -> Algorithm:
    r"""The same method, which records what controllers of the work go by.

    $$ |\bar g_n|^2, \quad |g|^2 = \Big|\frac1N \sum_n g_n\Big|^2, \qquad \bar g_n = g_n \Big/ \sum_m w_{nm} $$

    The history has `local_sqnorms` `[records, N]`, of the mean over each worker's own samples (NaN of who computed nothing), and
    `global_sqnorm`, of the estimate that all of them make; of methods that take some workers' gradients in a round, the mean is over
    those. What it costs is not counted as traffic: on several devices one more all-reduce.

    Args:
        method: any; its own metrics stay.

    Raises:
        ValueError: no method.

    Source: Nie et al., "Cannikin", section 4.4, for the gradient noise scale.
    """

    def update(key, state, gradients, round):
        after, info = method.update(key, state, gradients, round)
        return after, info._replace(metrics={**info.metrics, **_sqnorms(method.query(state, round), gradients, round)})

    return method._replace(update=update, name=f"observed({method.name})")


def _sqnorms(query: Query, gradients: Gradients, round: Round) -> dict[str, jax.Array]:
    """By name, of the gradients that the query asked for."""
    own = None if round.work is None else of_each(round.work)
    if query.workers is None:
        local, whole = workers.sqnorms(gradients)
    else:
        some = workers.sqnorm_rows(gradients)
        local = jnp.full(round.workers, jnp.nan, some.dtype).at[query.workers].set(some)
        whole = workers.sqnorm_rows(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, keepdims=True), gradients))[0]
    return {
        "local_sqnorms": local if own is None else local / jnp.where(own > 0, own, jnp.nan).astype(local.dtype) ** 2,
        "global_sqnorm": whole,
    }
