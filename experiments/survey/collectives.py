"""Seconds of JAX's collectives over real processes, and what the survey's switch says of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from dsgd import workers
from dsgd.machines import nodes
from experiments.survey.link_fits import Cost

FEWEST = 3  # repeats of what takes long
ELEMENT = 4  # bytes


class Collective(NamedTuple):
    """One of JAX's, of a whole vector of b bytes.

    Args:
        run: the vector as this worker has it, float32 `[N, b / 4N]`, -> what the collective makes of it.
        own: the share of the vector that a worker begins with, as a function of N.
        cost: N -> what it takes on the switch.
        formula: the same in words; l: latency, r: transfer of the vector.
    """

    run: Callable[[jax.Array], jax.Array]
    own: Callable[[int], float]
    cost: Callable[[int], Cost]
    formula: str

    def columns(self, size: float, N: int) -> int:
        """Of the vector as a worker has it, where it has about so many bytes in all."""
        return max(1, round(size * self.own(N) / (ELEMENT * N)))


def _shift(x: jax.Array) -> jax.Array:
    D = lax.axis_size(workers.AXIS)
    return lax.ppermute(x, workers.AXIS, [(i, (i + 1) % D) for i in range(D)])


COLLECTIVES = {
    "all-reduce": Collective(
        lambda x: lax.psum(x, workers.AXIS), lambda N: 1.0, lambda N: Cost(2 * (N - 1), 2 * (N - 1) / N), "2(N-1)(l + r/N)"
    ),
    "all-gather": Collective(
        lambda x: lax.all_gather(x, workers.AXIS), lambda N: 1 / N, lambda N: Cost(N - 1, (N - 1) / N), "(N-1)(l + r/N)"
    ),
    "all-to-all": Collective(
        lambda x: lax.all_to_all(x, workers.AXIS, 0, 0), lambda N: 1.0, lambda N: Cost(N - 1, (N - 1) / N), "(N-1)(l + r/N)"
    ),
    "collective-permute": Collective(_shift, lambda N: 1.0, lambda N: Cost(1.0, 1.0), "l + r"),
}
"""All-reduce: round a ring. All-gather and all-to-all: the two halves of a round of N servers. Permute: everybody to the next on a ring."""

Measured = dict[str, dict[float, np.ndarray]]  # seconds of every repeat, by collective and bytes


def measure(sizes: Sequence[int], repeats: int, longest: float) -> Measured:
    """Called in every process, of which each is a worker.

    Args:
        sizes: bytes of the vector, rising.
        repeats: of each, but fewer where that would take longer than `longest`.
        longest: seconds for the repeats of one collective at one size; where three would take longer, this size and larger ones are
            left out, but for the first two.
    """
    mesh = nodes.mesh("calibrate", jax.process_count())
    return {name: _one(collective, mesh, sizes, repeats, longest) for name, collective in COLLECTIVES.items()}


def _one(collective: Collective, mesh: Mesh, sizes: Sequence[int], repeats: int, longest: float) -> dict[float, np.ndarray]:
    N, own = mesh.size, P(workers.AXIS)
    program = jax.jit(jax.shard_map(lambda x: collective.run(x[0])[None], mesh=mesh, in_specs=own, out_specs=own, check_vma=False))
    found: dict[float, np.ndarray] = {}
    for size in sizes:
        columns = collective.columns(size, N)
        x = nodes.rows(jnp.ones((1, N, columns), jnp.float32), mesh)
        seconds = timed(lambda x=x: program(x), repeats, longest, None if len(found) < 2 else longest)
        if seconds is None:
            break
        found[ELEMENT * N * columns / collective.own(N)] = seconds
    return found


def timed(run: Callable[[], Any], repeats: int, longest: float, at_most: float | None) -> np.ndarray | None:
    """Seconds of every repeat, each the mean over processes, the same in all of them; None where that would take too long.

    The first calls, which compile and open connections, do not count. One repeat begins where the last one ended.

    Args:
        run: what all processes call together.
        repeats: at most.
        longest: seconds of all repeats, unless these are the fewest.
        at_most: seconds of the fewest repeats, above which nothing is measured; None: it is measured anyway.
    """
    jax.block_until_ready(run())
    _, one = _clocked(run, 1)
    alike = float(nodes.gathered([[one[0]]]).max())
    if at_most is not None and FEWEST * alike > at_most:
        return None
    count = int(np.clip(longest / alike, FEWEST, max(FEWEST, repeats)))
    result, seconds = _clocked(run, count)
    del result
    return nodes.gathered([list(seconds)]).mean(axis=(0, 1))


def _clocked(run: Callable[[], Any], count: int) -> tuple[Any, list[float]]:
    """The last result, and the seconds of each call."""
    result, seconds, last = None, [], time.perf_counter()
    for _ in range(count):
        result = jax.block_until_ready(run())
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    return result, seconds
