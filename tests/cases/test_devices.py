"""Methods with numbers for each worker: on several devices each worker has its own number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import optax
import pytest
from budgets import sampled

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, problems
from tests.dsgd.by_hand import run

N, D = 4, 3
SGD, RING = optax.sgd(0.1), topologies.ring(N)
NUMBERS = [0.2, 0.7, 0.4, 0.9]
PROBLEM = problems.random_quadratic(N, D, heterogeneity=2.0, seed=0)
WEIGHTED = PROBLEM._replace(weights=(0.5, 1.75, 0.25, 1.5), evaluate=None)
ABSENT = clusters.Cluster(clusters.constant(1.0), present=clusters.bernoulli(0.6, 1.0))
METHODS: dict[str, tuple[Callable[[], dsgd.Algorithm], dsgd.Problem, clusters.Cluster | None]] = {
    "aug_dgm": (lambda: algorithms.aug_dgm(SGD, RING, NUMBERS), PROBLEM, None),
    "nids": (lambda: algorithms.nids(NUMBERS, RING), PROBLEM, None),
    "eager_diloco": (lambda: algorithms.eager_diloco(SGD, 2), WEIGHTED, None),
    "fed_avg": (lambda: algorithms.fed_avg(SGD, 1, inclusion=NUMBERS), PROBLEM, ABSENT),
    "marina": (
        lambda: algorithms.marina(SGD, compressors.random_k(0.5), 0.3, clients=2),
        PROBLEM,
        None,
    ),
}


@pytest.mark.parametrize("name", sampled(METHODS))
def test_a_run_does_not_depend_on_the_number_of_devices(name):
    method, problem, cluster = METHODS[name]
    one, two = (run(method(), problem, 5, mesh=mesh, cluster=cluster) for mesh in (1, 2))
    assert np.ptp(one.params) > 1e-2
    np.testing.assert_allclose(one.params, two.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(one.history["bits"], two.history["bits"])
