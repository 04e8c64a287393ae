"""What a round makes of workers that do not participate: their rows, their samples, their
losses.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dsgd import Now, Round, State, clusters, problems, workers
from dsgd.engine import participation
from dsgd.engine.protocol import Method
from tests.dsgd.by_hand import method

N = 4
SOME = np.array([True, False, False, True])
PROBLEM = problems.random_quadratic(N, 3, noise=0.3, seed=0)
CLUSTER = clusters.Cluster(clusters.constant(1.0))
BOTH = {"nothing stated": None, "absent": lambda before, after: 100 * before + after}


def a_round(present: np.ndarray | None) -> Round:
    return Round(
        jnp.int32(0),
        N,
        jax.random.key(0),
        Now(CLUSTER, present=None if present is None else jnp.asarray(present)),
    )


def on_devices(function: Any, *rows: Any, D: int, out: Any = None) -> Any:
    return jax.jit(
        jax.shard_map(
            function,
            mesh=workers.mesh(D),
            in_specs=P(workers.AXIS),
            out_specs=out or P(),
            check_vma=False,
        )
    )(*rows)


@pytest.mark.parametrize("present", [SOME, ~SOME, np.ones(N, bool), np.zeros(N, bool), None])
@pytest.mark.parametrize("stated", BOTH)
@pytest.mark.parametrize("D", [2])
def test_workers_that_do_not_participate_keep_their_state_or_get_what_the_method_states(
    present, stated, D
):
    """If none participates, the server keeps its state, too. Rounds are counted."""
    before, after = np.arange(1.0, N + 1), 10 * np.arange(1.0, N + 1)

    def block(before, after):
        one, other = (
            State({"x": jnp.float32(1)}, before, jnp.int32(3)),
            State({"x": jnp.float32(2)}, after, jnp.int32(4)),
        )
        found = participation.state(
            Method(method(absent=BOTH[stated]), PROBLEM, N), one, other, a_round(present)
        )
        return found.step, found.server["x"], found.workers

    step, server, rows = on_devices(block, before, after, D=D, out=(P(), P(), P(workers.AXIS)))
    there = np.ones(N, bool) if present is None else present
    assert step == 4
    assert server == (2 if there.any() else 1)
    np.testing.assert_array_equal(
        rows, np.where(there, after, 100 * before + after if BOTH[stated] else before)
    )
