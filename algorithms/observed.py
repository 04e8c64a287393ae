"""Any method, with what its workers measure in the history."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd import checks, workers
from dsgd.base import Algorithm, Gradients, Measured, Query, Round
from dsgd.work import of_each


@checks.arguments
def observed(method: Algorithm) -> Algorithm:
    r"""Returns the same method with the measurements that controllers of local work need in the
    history, `[records, N]`.

    $$ |\bar g_n|^2, \quad |g|^2 = \Big|\frac1N \sum_n g_n\Big|^2, \qquad \bar g_n = g_n \Big/
    \sum_m w_{nm} $$

    `local_sqnorms` are of the mean over each worker's samples (NaN of a worker that computed
    nothing or did not participate), `global_sqnorm` (`[records]`) is of the mean over workers. Of
    methods that ask only some workers for gradients, the mean is over those. On several devices
    that is one more all-reduce, which is not counted as traffic.

    On a cluster, `measured_compute` is the seconds of all micro-batches that a worker computed,
    `measured_up` and `measured_down` are the seconds for which its ports were busy, and
    `measured_bits_up` and `measured_bits_down` the bits that they carried. If messages overlap with
    the computation, `measured_backward` is the seconds of the last backward pass and
    `measured_first` those until its first bucket was ready. All of them are of the round before the
    record's last one; NaN if nothing was measured: before the second round, of workers that
    computed nothing, and of methods that keep their own time.

    Args:
        method: any; its own metrics stay.

    Raises:
        ValueError: if it is not a method.

    Source: Nie et al., "Cannikin", section 4.4, for the gradient noise scale.
    """

    def update(state, gradients, round):
        after = method.update(state, gradients, round)
        with round.unrecorded():
            seen = _sqnorms(method.query(state, round), gradients, round)
        round.log(**seen, **({} if round.measured is None else _by_worker(round.measured)))
        return after

    return method._replace(name=f"observed({method.name})", update=update)


def _sqnorms(query: Query, gradients: Gradients, round: Round) -> dict[str, jax.Array]:
    """Square norms, by name, of the gradients that the query asked for."""
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
        own = of_each(round.work).astype(local.dtype)
        local = local / jnp.where(own > 0, own, jnp.nan) ** 2
    return {"local_sqnorms": local, "global_sqnorm": whole}


def _by_worker(measured: Measured) -> dict[str, jax.Array]:
    some = jnp.any(~jnp.isnan(measured.compute), axis=1)
    totals = measured._replace(
        compute=jnp.where(some, jnp.nansum(measured.compute, axis=1), jnp.nan)
    )
    return {
        f"measured_{name}": value for name, value in totals._asdict().items() if value is not None
    }
