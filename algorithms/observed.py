"""Any method, with what its workers can see of themselves in the history."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd import checks, workers
from dsgd.base import Algorithm, Gradients, Measured, Query, Round
from dsgd.work import of_each


@checks.arguments
def observed(method: Algorithm) -> Algorithm:
    r"""The same method, with what controllers of the work go by in the history, `[records, N]` each but one.

    $$ |\bar g_n|^2, \quad |g|^2 = \Big|\frac1N \sum_n g_n\Big|^2, \qquad \bar g_n = g_n \Big/ \sum_m w_{nm} $$

    `local_sqnorms` are of the mean over each worker's own samples (NaN of who computed nothing, or was away), `global_sqnorm` (`[records]`)
    is of the estimate that all of them make; of methods that take some workers' gradients in a round, the mean is over those. On several
    devices that is one more all-reduce, which is not counted as traffic.

    With a cluster, `measured_compute` are seconds of all micro-batches that were computed, `measured_up` and `measured_down` those for
    which ports were busy, `measured_bits_up` and `measured_bits_down` what went through them, and where messages overlap with the
    computation `measured_backward` those of the last backward pass, `measured_first` until its first bucket was ready: of the round
    before the record's last one.
    NaN where nothing was measured: before the second round, of workers that computed nothing, and of methods that keep their own time.

    Args:
        method: any; its own metrics stay.

    Raises:
        ValueError: not a method.

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
    """By name, of the gradients that the query asked for."""
    if query.workers is None:
        local, whole = workers.sqnorms(gradients)
    else:
        some = workers.sqnorm_rows(gradients)
        local = jnp.full(round.workers, jnp.nan, some.dtype).at[query.workers].set(some)
        whole = workers.sqnorm_rows(jax.tree.map(lambda leaf: workers.mean_rows(leaf)[None], gradients))[0]
    if round.present is not None:
        local = jnp.where(round.present, local, jnp.nan)
    if round.work is not None:
        own = of_each(round.work).astype(local.dtype)
        local = local / jnp.where(own > 0, own, jnp.nan) ** 2
    return {"local_sqnorms": local, "global_sqnorm": whole}


def _by_worker(measured: Measured) -> dict[str, jax.Array]:
    some = jnp.any(~jnp.isnan(measured.compute), axis=1)
    totals = measured._replace(compute=jnp.where(some, jnp.nansum(measured.compute, axis=1), jnp.nan))
    return {f"measured_{name}": value for name, value in totals._asdict().items() if value is not None}
