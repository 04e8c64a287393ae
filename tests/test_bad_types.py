"""What a newcomer gets wrong, without the annotations that pytest checks: a ValueError that says what was given and what is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "run(method, problem, steps=1, key=0)": "key = 0: need one key of JAX, jax.random.key(0), say",
    "run(method, problem, steps=1, key=jax.random.split(key))": "need one key of JAX",
    "run(method, problem, steps=1e2, key=key)": "steps = 100.0: need an integer, at least 1",
    "run(method, problem, steps=1, key=key, seeds=1.5)": "seeds = 1.5: need an integer",
    "run(method, problem, steps=1, key=key, record_every=2.0)": "record_every = 2.0: need an integer",
    "run(method, problem, steps=1, key=key, mesh=99)": "mesh of 99 devices",
    "run(method, problem, steps=1, key=key, mesh='2')": "mesh = 2: need an integer, at least 1",
    "run(method, problem, steps=1, key=key, mesh=1, checkpoint=5)": "checkpoint = 5: need a folder",
    "run(method, problem, steps=1, key=key, mesh=1, batches=7)": "batches = 7: need an iterable of worker-stacked batches",
    "run(method, problem, steps=1, key=key, start=3)": "start = int: need a dsgd.Result or its State",
    "dsgd.Batches([], 7)": "identity = 7: need a text",
    "run(algorithms.minibatch_sgd, problem, steps=1, key=key)": "need a dsgd.Algorithm",
    "run(method, problem.data, steps=1, key=key)": "need a dsgd.Problem",
    "algorithms.minibatch_sgd(0.1)": "optimizer = 0.1: need an optax optimiser",
    "algorithms.decentralized_sgd(optax.sgd(0.1), np.eye(3))": "decentralized_sgd: topology = array([[1., 0., 0.],",
    "algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring)": "need a topology, topologies.ring(16) or topologies.from_matrix(W)",
    "algorithms.local_sgd(optax.sgd(0.1), 2.5)": "local_sgd: period = 2.5: need an integer, at least 1",
    "algorithms.local_sgd(optax.sgd(0.1), True)": "local_sgd: period = True: need an integer, at least 1",
    "algorithms.local_sgd(optax.sgd(0.1), 4, 'ring')": "local_sgd: topology = 'ring': need a topology",
    "algorithms.local_sgd(optax.sgd(0.1), topologies.ring(2))": "local_sgd: period = Topology(ring(2)): need an integer, at least 1",
    "algorithms.d2(optax.sgd(0.1), 8)": "d2: topology = 8: need a topology",
    "algorithms.extra(optax.sgd(0.1), None)": "extra: topology = None: need a topology",
    "algorithms.exact_diffusion(optax.sgd(0.1), [[1.0]])": "exact_diffusion: topology = [[1.0]]: need a topology",
    "algorithms.gradient_tracking(optax.sgd(0.1), 'ring')": "gradient_tracking: topology = 'ring': need a topology",
    "algorithms.stochastic_gradient_push(optax.sgd(0.1), nx.DiGraph())": "stochastic_gradient_push: topology = <networkx",
    "algorithms.choco_sgd(optax.sgd(0.1), 'ring', dsgd.compressors.sign, 0.1)": "choco_sgd: topology = 'ring': need a topology",
    "algorithms.choco_sgd(optax.sgd(0.1), ring, 0.1, dsgd.compressors.sign)": "choco_sgd: given 0.1; need a dsgd.Compressor",
    "algorithms.choco_sgd(optax.sgd(0.1), ring, dsgd.compressors.sign, '1')": "choco_sgd: consensus_step = '1': need a number in (0, 1]",
    "algorithms.choco_sgd(optax.sgd(0.1), ring, dsgd.compressors.sign, None)": "choco_sgd: consensus_step = None: need a number in (0, 1]",
    "algorithms.deepsqueeze(optax.sgd(0.1), np.eye(2), dsgd.compressors.sign, 0.1)": "deepsqueeze: topology = array(",
    "algorithms.deepsqueeze(optax.sgd(0.1), ring, dsgd.compressors.top_k, 0.1)": "deepsqueeze: given the function top_k; need",
    "algorithms.deepsqueeze(optax.sgd(0.1), ring, dsgd.compressors.sign, [0.1])": "deepsqueeze: consensus_step = [0.1]: need a number",
    "algorithms.deepsqueeze(optax.sgd(0.1), ring, dsgd.compressors.sign, np.ones(2))": "consensus_step = array([1., 1.]): need a number",
    "algorithms.asynchronous_sgd(0.1)": "optimizer = 0.1: need an optax optimiser",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), 4)": "asynchronous_sgd: delays = 4: need one of algorithms.delays",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), algorithms.delays.uniform)": "delays = <function uniform at",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), servers=2.0)": "asynchronous_sgd: servers = 2.0: need an integer, at least 1",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), bound=2.5)": "asynchronous_sgd: bound = 2.5: need an integer, at least 0",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), bound=True)": "asynchronous_sgd: bound = True: need an integer, at least 0",
    "algorithms.delays.constant(2.5)": "delays.constant: bound = 2.5: need an integer, at least 0",
    "algorithms.delays.uniform('4')": "delays.uniform: bound = 4: need an integer, at least 0",
    "algorithms.delays.worst_case(None)": "delays.worst_case: bound = None: need an integer, at least 0",
    "algorithms.delays.given(None)": "delays.given: D of shape () and type object: need integers [T] or [T, parts]",
    "algorithms.delays.given([0.0, 1.0])": "delays.given: D of shape (2,) and type float64: need integers",
    "algorithms.delays.given([0, 0], 1.0)": "delays.given: bound = 1.0: need an integer, at least 0",
    "algorithms.asynchronous_gossip_sgd(optax.sgd(0.1), 'ring')": "asynchronous_gossip_sgd: topology = 'ring': need a topology",
    "algorithms.asynchronous_gossip_sgd(0.1, ring)": "optimizer = 0.1: need an optax optimiser",
    "algorithms.backup_workers_sgd(optax.sgd(0.1), 1.0)": "backup_workers_sgd: backups = 1.0: need an integer, at least 0",
    "algorithms.backup_workers_sgd(0.1, 1)": "optimizer = 0.1: need an optax optimiser",
    "problems.load(np.zeros((20, 3)))": "need a name, a Dataset, or a pair (inputs, classes)",
    "problems.load((np.zeros((20, 3)), np.zeros(20), 3))": "need a name, a Dataset, or a pair (inputs, classes)",
    "problems.logistic_regression('digits', batch_size=2.5)": "batch_size = 2.5: need an integer",
    "problems.logistic_regression('digits', workers=2.0)": "workers = 2.0: need an integer",
    "dsgd.compressors.random_quantization(4.5)": "random_quantization(4.5): need bits between 1 and 8",
    "dsgd.compressors.random_quantization(True)": "random_quantization(True): need bits between 1 and 8, an integer",
    "dsgd.compressors.top_k('a')": "top_k: fraction = 'a'; need a number in (0, 1]",
    "dsgd.compressors.top_k(0.1, 4)": "top_k: given 4; need a dsgd.Compressor",
    "dsgd.compressors.buckets(dsgd.compressors.top_k, 8)": "buckets: given the function top_k; need a dsgd.Compressor",
    "algorithms.compressed_sgd(optax.sgd(0.1), dsgd.compressors.top_k)": "compressed_sgd: given the function top_k; need a dsgd.Compressor",
    "algorithms.ef21(optax.sgd(0.1), dsgd.compressors.sign, None)": "ef21 down: given None; need a dsgd.Compressor",
    "algorithms.error_compensated_sgd(optax.sgd(0.1), 'sign', dsgd.compressors.sign)": "error_compensated_sgd up: given 'sign'; need",
    "topologies.ring(4, 'lazy')": "weights = 'lazy'; need one of topologies.metropolis, topologies.max_degree",
    "topologies.ring(4.0)": "ring(4.0): need at least 1 worker, an integer",
    "topologies.torus(2.0, 3)": "rows = 2.0: need an integer, at least 1",
    "topologies.random_matchings(4, 2.5)": "period = 2.5: need an integer, at least 1",
    "topologies.erdos_renyi(8, 0.9, None)": "seed = None: need an integer, at least 0",
    "topologies.ring(4, lambda adjacency: np.full((3, 3), 1 / 3))": "the weights function gave (3, 3) for an adjacency of (4, 4)",
    "topologies.ring(6, lambda adjacency: np.full((6, 6), 1 / 6))": "where 2 does not send to 0; need weights on edges",
    "dsgd.Topology('mine', None)": "mine: W has type object; need real numbers",
    "topologies.exponential(8).smallest_eigenvalue": "smallest_eigenvalue is of one symmetric W; this is not symmetric",
    "topologies.exponential(6).mixing_time(1e-17)": "need at least 1e-12, below which float64 cannot tell",
    "dsgd.sweep(lambda x: method, problem, steps=1, key=key, seeds=2.0, x=[1.0])": "seeds = 2.0: need an integer",
}
SCRIPT = """
import json, sys
import jax, networkx as nx, numpy as np, optax
import algorithms, dsgd, topologies
from dsgd import problems, run
key, problem, method = jax.random.key(0), problems.random_quadratic(2, 2), algorithms.minibatch_sgd(optax.sgd(0.1))
ring = topologies.ring(2)
for case in json.load(sys.stdin):
    try:
        eval(case)
        print(json.dumps("nothing raised"))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""


@pytest.fixture(scope="module")
def raised() -> dict[str, str]:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(list(CASES)), capture_output=True, text=True, check=True, cwd=root
    )
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_value_error_that_says_what_is_needed(case, raised):
    assert raised[case].startswith("ValueError: ")
    assert CASES[case] in raised[case]
