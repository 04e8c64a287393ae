"""What a run sees besides what its method looks at."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dsgd import checks
from dsgd.base import Algorithm, Measured


@checks.arguments
def observed(method: Algorithm) -> Algorithm:
    """The same method, with what its workers measured in the history, `[records, N]` each.

    `measured_compute` are seconds of all micro-batches that were computed, `measured_up` and `measured_down` those for which ports were
    busy, `measured_bits_up` and `measured_bits_down` what went through them: of the round before the record's last one. NaN where nothing
    was measured: before the second round, of workers that computed nothing, and of methods that keep their own time.

    Args:
        method: which.

    Raises:
        ValueError: not a method. When it runs: no cluster, by whose clock one measures.
    """

    def update(key, state, gradients, round):
        if round.measured is None:
            raise ValueError(f"observed({method.name}) without a cluster, by whose clock workers measure: need run(..., cluster=...)")
        state, info = method.update(key, state, gradients, round)
        return state, info._replace(metrics={**info.metrics, **_by_worker(round.measured)})

    return method._replace(update=update, name=f"observed({method.name})", measures=method.measures or True)


def _by_worker(measured: Measured) -> dict[str, jax.Array]:
    some = jnp.any(~jnp.isnan(measured.compute), axis=1)
    totals = measured._replace(compute=jnp.where(some, jnp.nansum(measured.compute, axis=1), jnp.nan))
    return {f"measured_{name}": value for name, value in totals._asdict().items()}
