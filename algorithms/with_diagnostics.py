"""A wrapper that adds the workers' measurements to a method's history."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd import Algorithm, Query, Round, Timings, checks, workers
from dsgd.extend import Gradients
from dsgd.work import weight_sums


@checks.arguments
def with_diagnostics(method: Algorithm) -> Algorithm:
    r"""Returns the method with the measurements that controllers of local work need added to the
    history, `[records, N]`.

    $$ |\bar g_n|^2, \quad |g|^2 = \Big|\frac1N \sum_n g_n\Big|^2, \qquad \bar g_n = g_n \Big/
    \sum_m w_{nm} $$

    `local_sqnorms` are the squared norms of the mean over each worker's samples (NaN if the worker
    computed nothing or did not participate); `global_sqnorm` (`[records]`) is that of the mean over
    workers. If a method asks only some workers for gradients, the mean is over those; if it has
    several queries in a round, the gradients are those of the first one. On several
    devices this needs one more all-reduce, which is not counted as traffic.

    On a cluster, `measured_compute` is the seconds of all micro-batches that a worker computed,
    `measured_up` and `measured_down` are the seconds for which its ports were busy, and
    `measured_bits_up` and `measured_bits_down` are the bits that they carried. If messages overlap
    with the computation, `measured_backward` is the seconds of the last backward pass, and
    `measured_first` is the seconds until its first bucket was ready. All of these are timings of
    the round before the record's last round. They are NaN if nothing was measured: before the
    second round, for workers that computed nothing, and for methods with their own clock.

    Args:
        method: any method; its own metrics are kept.

    Raises:
        ValueError: if it is not a method.

    Source: Nie et al., "Cannikin", section 4.4, for the gradient noise scale.
    """

    def update(state, answer, round):
        after = method.update(state, answer, round)
        with round.unrecorded():
            query, first = method.query(state, round), answer
            if not isinstance(query, Query):
                query, first = query[0], answer[0]
            seen = _sqnorms(query, first[1] if query.loss else first, round)
        round.log(**seen, **({} if round.timings is None else _worker_timings(round.timings)))
        return after

    return method._replace(name=f"with_diagnostics({method.name})", update=update)


def _sqnorms(query: Query, gradients: Gradients, round: Round) -> dict[str, jax.Array]:
    """Returns, by name, the squared norms of the gradients that the query asked for."""
    if query.workers is None:
        local, whole = workers.sqnorms(gradients)
    else:
        some = workers.sqnorm_rows(gradients)
        local = jnp.full(round.workers, jnp.nan, some.dtype).at[query.workers].set(some)
        whole = workers.sqnorm_rows(
            jax.tree.map(lambda leaf: workers.mean_rows(leaf)[None], gradients)
        )[0]
    if round.present is not None:
        local = jnp.where(round.present, local, jnp.nan)
    if round.work is not None:
        M = 1 if query.work is None else query.work.samples.shape[1]
        own = weight_sums(jax.tree.map(lambda each: each[:, :M], round.work)).astype(local.dtype)
        local = local / jnp.where(own > 0, own, jnp.nan) ** 2
    return {"local_sqnorms": local, "global_sqnorm": whole}


def _worker_timings(measured: Timings) -> dict[str, jax.Array]:
    some = jnp.any(~jnp.isnan(measured.compute), axis=1)
    totals = measured._replace(
        compute=jnp.where(some, jnp.nansum(measured.compute, axis=1), jnp.nan)
    )
    return {
        f"measured_{name}": value for name, value in totals._asdict().items() if value is not None
    }
