"""What a newcomer gets wrong, without the annotations that pytest checks: a ValueError that says what was given and what is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "run(method, problem, steps=1, key=0)": "key = 0: need one key of JAX, jax.random.key(0), say",
    "run(method, problem, steps=1, key=jax.random.split(key))": "key = key<fry>[2]: expected one key",
    "run(method, problem, steps=1e2, key=key)": "run: steps = 100.0: need an integer",
    "run(method, problem, steps=1, key=key, seeds=1.5)": "seeds = 1.5: need an integer",
    "run(method, problem, steps=1, key=key, record_every=2.0)": "record_every = 2.0: need an integer",
    "run(method, problem, steps=1, key=key, mesh=99)": "mesh of 99 devices",
    "run(method, problem, steps=1, key=key, mesh='2')": "mesh = '2': need a mesh, dsgd.workers.mesh(4), say, an integer, or None",
    "run(method, problem, steps=1, key=key, mesh=1, checkpoint=5)": "checkpoint = 5: need a string, a path or None",
    "run(method, problem, steps=1, key=key, mesh=1, batches=7)": "batches = 7: need an iterator or None",
    "run(method, problem, steps=1, key=key, start=3)": "start = 3: need a dsgd.Result, of dsgd.run, its State, or None",
    "run(method, problem, steps=1, key=key, until=0.1)": "until = 0.1: need a function or None",
    "dsgd.Batches([], 7)": "Batches: identity = 7: need a string",
    "run(algorithms.minibatch_sgd, problem, steps=1, key=key)": "need a dsgd.Algorithm",
    "run(method, problem.data, steps=1, key=key)": "need a dsgd.Problem",
    "algorithms.minibatch_sgd(0.1)": "optimizer = 0.1: need an optax optimiser",
    "algorithms.decentralized_sgd(optax.sgd(0.1), np.eye(3))": "decentralized_sgd: topology = array([[1., 0., 0.],",
    "algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring)": "need a topology, topologies.ring(16) or topologies.from_matrix(W)",
    "algorithms.local_sgd(optax.sgd(0.1), 2.5)": "local_sgd: period = 2.5: need an integer",
    "algorithms.local_sgd(optax.sgd(0.1), True)": "local_sgd: period = True: need an integer",
    "algorithms.local_sgd(optax.sgd(0.1), 4, 'ring')": "local_sgd: topology = 'ring': need a topology",
    "algorithms.local_sgd(optax.sgd(0.1), topologies.ring(2))": "local_sgd: period = Topology(ring(2)): need an integer",
    "algorithms.d2(optax.sgd(0.1), 8)": "d2: topology = 8: need a topology",
    "algorithms.extra(optax.sgd(0.1), None)": "extra: topology = None: need a topology",
    "algorithms.exact_diffusion(optax.sgd(0.1), [[1.0]])": "exact_diffusion: topology = [[1.0]]: need a topology",
    "algorithms.gradient_tracking(optax.sgd(0.1), 'ring')": "gradient_tracking: topology = 'ring': need a topology",
    "algorithms.stochastic_gradient_push(optax.sgd(0.1), nx.DiGraph())": "stochastic_gradient_push: topology = <networkx",
    "algorithms.choco_sgd(optax.sgd(0.1), 'ring', dsgd.compressors.sign, 0.1)": "choco_sgd: topology = 'ring': need a topology",
    "algorithms.choco_sgd(optax.sgd(0.1), ring, 0.1, dsgd.compressors.sign)": "choco_sgd: compressor = 0.1: need a dsgd.Compressor",
    "algorithms.choco_sgd(optax.sgd(0.1), ring, dsgd.compressors.sign, '1')": "choco_sgd: consensus_step = '1': need a number in (0, 1]",
    "algorithms.choco_sgd(optax.sgd(0.1), ring, dsgd.compressors.sign, None)": "choco_sgd: consensus_step = None: need a number in (0, 1]",
    "algorithms.deepsqueeze(optax.sgd(0.1), np.eye(2), dsgd.compressors.sign, 0.1)": "deepsqueeze: topology = array(",
    "algorithms.deepsqueeze(optax.sgd(0.1), ring, dsgd.compressors.top_k, 0.1)": "compressor = the function top_k: need",
    "algorithms.deepsqueeze(optax.sgd(0.1), ring, dsgd.compressors.sign, [0.1])": "deepsqueeze: consensus_step = [0.1]: need a number",
    "algorithms.deepsqueeze(optax.sgd(0.1), ring, dsgd.compressors.sign, np.ones(2))": "consensus_step = array([1., 1.]): need a number",
    "algorithms.asynchronous_sgd(0.1)": "optimizer = 0.1: need an optax optimiser",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), 4)": "asynchronous_sgd: delays = 4: need one of algorithms.delays",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), algorithms.delays.uniform)": "delays = the function uniform: need one of",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), servers=2.0)": "asynchronous_sgd: servers = 2.0: need an integer",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), bound=2.5)": "asynchronous_sgd: bound = 2.5: need an integer or None",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), bound=True)": "asynchronous_sgd: bound = True: need an integer or None",
    "algorithms.delays.constant(2.5)": "constant: bound = 2.5: need an integer",
    "algorithms.delays.uniform('4')": "uniform: bound = '4': need an integer",
    "algorithms.delays.worst_case(None)": "worst_case: bound = None: need an integer",
    "algorithms.delays.given(None)": "given: D = None: need a list, each an integer, or an array of numbers",
    "algorithms.delays.given([0.0, 1.0])": "given: D = [0.0, 1.0]: need a list, each an integer, or an array of numbers",
    "algorithms.delays.given([0, 0], 1.0)": "given: bound = 1.0: need an integer or None",
    "algorithms.asynchronous_gossip_sgd(optax.sgd(0.1), 'ring')": "asynchronous_gossip_sgd: topology = 'ring': need a topology",
    "algorithms.asynchronous_gossip_sgd(0.1, ring)": "optimizer = 0.1: need an optax optimiser",
    "algorithms.backup_workers_sgd(optax.sgd(0.1), 1.0)": "backup_workers_sgd: backups = 1.0: need an integer",
    "algorithms.backup_workers_sgd(0.1, 1)": "optimizer = 0.1: need an optax optimiser",
    "problems.load(np.zeros((20, 3)))": "need a name, a file's path, a Dataset, or a pair (inputs, classes)",
    "problems.load((np.zeros((20, 3)), np.zeros(20), 3))": "need a name, a file's path, a Dataset, or a pair (inputs, classes)",
    "problems.finite_sum(linear, optax.squared_error, (np.eye(3),))": "data = (array([[1., 0., 0.],",
    "problems.finite_sum(linear, optax.squared_error, np.eye(3))": "need a pair (inputs, targets)",
    "problems.finite_sum(linear, optax, (np.eye(3), np.ones(3)))": "finite_sum: loss = <module 'optax'",
    "problems.finite_sum(linear, optax.squared_error, *three, batch_size=1, test=three[0], metrics={'a': 3})": "metrics: 'a' = 3: need",
    "problems.finite_sum(problems.MLP, optax.squared_error, *three, batch_size=1)": "model = the class MLP: need a flax module",
    "problems.logistic_regression('digits', batch_size=2.5)": "batch_size = 2.5: need an integer",
    "problems.logistic_regression('digits', workers=2.0)": "workers = 2.0: need an integer",
    "dsgd.compressors.random_quantization(4.5)": "random_quantization: bits = 4.5: need an integer",
    "dsgd.compressors.random_quantization(True)": "random_quantization: bits = True: need an integer",
    "dsgd.compressors.top_k('a')": "top_k: fraction = 'a': need a number",
    "dsgd.compressors.top_k(0.1, 4)": "top_k: values = 4: need a dsgd.Compressor",
    "dsgd.compressors.buckets(dsgd.compressors.top_k, 8)": "buckets: compressor = the function top_k: need a dsgd.Compressor",
    "algorithms.compressed_sgd(optax.sgd(0.1), dsgd.compressors.top_k)": "compressor = the function top_k: need a dsgd.Compressor",
    "algorithms.ef21(optax.sgd(0.1), dsgd.compressors.sign, None)": "ef21: down = None: need a dsgd.Compressor",
    "algorithms.error_compensated_sgd(optax.sgd(0.1), 'sign', dsgd.compressors.sign)": "up = 'sign': need a dsgd.Compressor",
    "algorithms.kimad_sgd(optax.sgd(0.1), dsgd.compressors.sign, 1.0)": "kimad_sgd: compressors = Compressor(",
    "algorithms.kimad_sgd(optax.sgd(0.1), 0.1, 1.0)": "kimad_sgd: compressors = 0.1: need",
    "algorithms.kimad_sgd(optax.sgd(0.1), [0.1], 1.0)": "kimad_sgd: compressors = [0.1]: need",
    "algorithms.kimad_sgd(optax.sgd(0.1), kimad.top_k([0.1]), [1.0])": "kimad_sgd: round_time = [1.0]: need a number",
    "algorithms.kimad_sgd(optax.sgd(0.1), kimad.top_k([0.1]), 1.0, monitor='last')": "kimad_sgd: monitor = 'last': need",
    "algorithms.kimad_sgd(optax.sgd(0.1), kimad.top_k([0.1]), 1.0, rule='allocate')": "kimad_sgd: rule = 'allocate': need a function",
    "algorithms.kimad_sgd(optax.sgd(0.1), kimad.top_k([0.1]), 1.0, too_small='stop')": "too_small = 'stop'; need 'wait' or 'error'",
    "kimad.top_k(0.1)": "top_k: ratios = 0.1: need a list",
    "kimad.budget('fast', 1.0)": "budget: up = 'fast': need a number, or a list or an array of numbers",
    "dropcompute.chosen_after(2.5)": "chosen_after: rounds = 2.5: need an integer",
    "dsgd.join('node1:12345', '2', 0)": "join: processes = '2': need an integer",
    "dsgd.join(timeout='soon')": "join: timeout = 'soon': need a number",
    "dsgd.loopback(2, 'train')": "loopback: function = 'train': need a function",
    "dropcompute.train_processes(problem, optax.sgd(0.1), 'fast', 4, steps=2, key=key)": "threshold = 'fast': need a number or a Chosen",
    "dropcompute.train_processes(problem, optax.sgd(0.1), 1, 4, steps=2, key=key, correction='all')": "correction = 'all': need 'none', 's",
    "dropcompute.threshold('slow', 0.5)": "threshold: latencies = 'slow': need seconds [iterations, workers, micro-batches]",
    "dropcompute.threshold(np.ones((2, 3, 4)), 0.5, 'after')": "dropcompute.threshold: stop = 'after': need 'preempt' or 'between'",
    "dropcompute.effective_speedup(np.ones((2, 3, 4)), 0.5, None)": "effective_speedup: thresholds = None: need seconds, at least 0",
    "dropcompute.simulated(cluster, 2, 3, 1.0, rounds=4, key=key, stop='after')": "simulated: stop = 'after': need 'preempt' or 'between'",
    "dropcompute.expected_step_time(1.0, 0.3, 12, 4, stop='after')": "expected_step_time: stop = 'after': need 'preempt' or 'between'",
    "dropcompute.expected_step_time(1.0, 0.3, 1.5, 4)": "expected_step_time: micro_batches = 1.5: need an integer",
    "kimad.local_steps(0.1, 4)": "local_steps: optimizer = 0.1: need an optax optimiser",
    "kimad.exponential_average(None)": "exponential_average: weight = None: need a number",
    "topologies.ring(4, 'lazy')": "ring: weights = 'lazy': need one of topologies.metropolis, topologies.max_degree",
    "topologies.ring(4.0)": "ring: n = 4.0: need an integer",
    "topologies.torus(2.0, 3)": "torus: rows = 2.0: need an integer",
    "topologies.random_matchings(4, 2.5)": "random_matchings: period = 2.5: need an integer",
    "topologies.erdos_renyi(8, 0.9, None)": "erdos_renyi: seed = None: need an integer",
    "topologies.ring(4, lambda adjacency: np.full((3, 3), 1 / 3))": "the weights function gave (3, 3) for an adjacency of (4, 4)",
    "topologies.ring(6, lambda adjacency: np.full((6, 6), 1 / 6))": "where 2 does not send to 0; need weights on edges",
    "dsgd.Topology('mine', None)": "mine: W: got a NoneType; expected an array of numbers",
    "topologies.exponential(8).smallest_eigenvalue": "smallest_eigenvalue is of one symmetric W; this is not symmetric",
    "topologies.exponential(6).mixing_time(1e-17)": "need at least 1e-12, below which float64 cannot tell",
    "dsgd.sweep(lambda x: method, problem, steps=1, key=key, seeds=2.0, x=[1.0])": "seeds = 2.0: need an integer",
    "dsgd.workers.mesh('cpu')": "mesh: devices = 'cpu': need an integer, a list or None",
    "dsgd.workers.mesh([jax.devices()[0]] * 2)": "more than once: need different devices",
    "problems.neural_network(problems.MLP)": "model = the class MLP: need a flax module with its fields",
    "dsgd.network.gossip(None)": "gossip: topology = None: need a topology",
    "dsgd.network.cost('ring', 4, 1.0, 1.0)": "cost: pattern = 'ring': need a pattern of dsgd.network",
    "dsgd.network.cost(dsgd.network.gossip(topologies.exponential(16)), 4, 1.0, 1.0)": "of 16 workers, for 4 workers: need the same number",
    "dsgd.compressors.top_k(True)": "top_k: fraction = True: need a number",
    "problems.minibatch(0)": "minibatch: batch_size = 0: need an integer, at least 1",
    "problems.minibatch(4, 'no')": "minibatch: replacement = 'no'; expected True, False or 'epoch'",
    "problems.random_quadratic(2, 2, seed=None)": "random_quadratic: seed = None: need an integer",
    "run(method, problem, steps=2, key=key, mesh=1, batches=[None] * 2)": "batch 0 = None has no arrays; need leaves [N, ...]",
    "problems.load((np.zeros((20, 3)), np.arange(20) % 2 + 0.9))": "data: targets have the entry 0.9: need classes, whole numbers",
    "problems.load(digits._replace(test_inputs=digits.test_inputs * np.nan))": "digits: test inputs have entries that are not finite",
    "problems.load(digits._replace(train_targets=digits.train_targets + 0.9))": "digits: train targets have the entry",
    "dsgd.sweep(algorithms.delays.constant, problem, steps=1, key=key, bound=[1, -1])": "bound = -1: need an integer, at least 0",
    "dsgd.sweep(tuned, problem, steps=1, key=key, step=[0.5, 1.5])": "choco_sgd: consensus_step = 1.5: need a number in (0, 1]",
    "plots.curves(swept, yscale='cubic')": "curves: yscale = 'cubic': need 'linear' or 'log'",
    "dsgd.frame(problem)": "need a dsgd.Result, a dsgd.Sweep, a history, or a dictionary of these by the names of their methods",
    "swept.best(share=-1)": "share = -1: need a part of the records, in (0, 1]",
}
SCRIPT = """
import json, sys
import jax, networkx as nx, numpy as np, optax
import algorithms, dsgd, topologies
from algorithms import dropcompute, kimad
from dsgd import plots, problems, run
key, problem, method = jax.random.key(0), problems.random_quadratic(2, 2), algorithms.minibatch_sgd(optax.sgd(0.1))
cluster = dsgd.clusters.Cluster(dsgd.clusters.constant(1.0))
ring = topologies.ring(2)
linear, three = problems.Model(lambda key: np.zeros(3), lambda x, inputs: inputs @ x), ((np.eye(3), np.ones(3)), 1)
digits = problems.load("digits")
tuned = lambda step: algorithms.choco_sgd(optax.sgd(0.1), ring, dsgd.compressors.sign, step)
swept = dsgd.Sweep({"x": np.ones(2)}, {"loss": np.ones((2, 1, 5))}, None, None)
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
