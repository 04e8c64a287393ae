"""Bad calls, drawn: of one good call each (`GOOD` has what has no default), every argument in turn
becomes each of a pool of wrong values. Prints what escapes as JSON.

A script of its own, without the annotations that pytest checks: users run without them.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
import unittest.mock as mock
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import haste
import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import scipy.sparse
from matplotlib.figure import Figure

import algorithms
import dsgd
import topologies
from algorithms import cannikin, delays, dropcompute, kimad, on_ray
from algorithms.asynchronous.on_ray import gossip, with_servers
from algorithms.cannikin import epochs
from algorithms.cannikin import processes as nodes
from algorithms.dropcompute import processes
from dsgd import clusters, compressors, network, plots, problems, work, workers
from dsgd.machines import local_processes
from dsgd.runs import chunks, driver

PACKAGES = (
    dsgd,
    problems,
    compressors,
    network,
    clusters,
    topologies,
    algorithms,
    delays,
    cannikin,
    dropcompute,
    kimad,
    on_ray,
    work,
    plots,
)
SGD, RING, SIGN, KEY = optax.sgd(0.1), topologies.ring(4), compressors.sign, jax.random.key(0)
QUADRATIC, METHOD = problems.random_quadratic(4, 2), algorithms.minibatch_sgd(SGD)
ARRAYS = (np.arange(120.0).reshape(60, 2) % 7, np.arange(60) % 3)
MODEL = problems.Model(lambda key: jnp.zeros(2), lambda params, inputs: inputs @ params)
ADJACENCY = topologies.graphs._one_way(4, np.arange(4), (np.arange(4) + 1) % 4)
SECONDS = clusters.constant(1.0)
SWEEP = dsgd.Sweep(
    {"x": np.ones(2)},
    {"loss": np.ones((2, 1, 5)), "step": np.arange(5)},
    dsgd.State(jnp.int32(0)),
    (),
)


SHEET = Figure()


class AnyClass:
    """One of the wrong values."""


POOL: dict[str, Any] = {
    "None": None,
    "True": True,
    "'x'": "x",
    "''": "",
    "b'x'": b"x",
    "-1": -1,
    "-2": np.int8(-2),
    "10**400": 10**400,
    "10**5000": 10**5000,
    "10**19": 10**19,
    "2**31": 2**31,
    "[10**400]": [10**400],
    "1e300": 1e300,
    "1e39": 1e39,
    "1e400": 1e400,
    "a Fraction": Fraction(1, 3),
    "0": 0,
    "3": 3,
    "0.5": 0.5,
    "-0.5": -0.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "1j": 1j,
    "[]": [],
    "[None]": [None],
    "[[1.0], [1.0, 2.0]]": [[1.0], [1.0, 2.0]],
    "()": (),
    "{}": {},
    "object()": object(),
    "a class": AnyClass,
    "a lambda": lambda *args, **kwargs: None,
    "no arguments": lambda: None,
    "nine arguments": lambda a, b, c, d, e, f, g, h, i: None,
    "a string's": lambda *args, **kwargs: "x",
    "an array's": lambda *args, **kwargs: np.zeros((2, 7)),
    "an integer's": lambda *args, **kwargs: 1,
    "zeros(())": np.zeros(()),
    "zeros(0)": np.zeros(0),
    "zeros((3, 3))": np.zeros((3, 3)),
    "zeros((2, 2, 2, 2))": np.zeros((2, 2, 2, 2)),
    "strings": np.array(["a", "b"]),
    "objects": np.array([None, {}]),
    "complex": np.ones((4, 4)) * 1j,
    "masked": np.ma.masked_equal(np.eye(4), 0),
    "a mask": np.ma.masked,
    "nans": np.full((2, 2), np.nan),
    "infinite": np.full(4, np.inf),
    "negative": -np.ones(2),
    "int8": np.full(2, 100, np.int8),
    "a bool": np.array(True),
    "jnp.ones(5)": jnp.ones(5),
    "a key": jax.random.key(1),
    "keys": jax.random.split(KEY, 2),
    "optax": optax,
    "a compressor": SIGN,
    "a problem": QUADRATIC,
}

_DATA = {"data": ARRAYS, "workers": 3, "batch_size": 2}
_RUN = {"problem": QUADRATIC, "steps": 1, "key": KEY, "mesh": 1}
_GOSSIP = {"optimizer": SGD, "topology": RING}
_SQUEEZED = {**_GOSSIP, "compressor": SIGN, "consensus_step": 0.5}
_OPTIMIZER = {"optimizer": SGD}
_ON_RAY = {"problem": QUADRATIC, **_OPTIMIZER, "steps": 5, "key": KEY, "address": "local"}
_UPDATES = {"worker": np.zeros(3, int), **dict.fromkeys(("computed", "trip", "busy"), np.ones(3))}
_N = {"n": 4}
_NORMAL = {"mean": 1.0, "std": 0.2, "micro_batches": 4}
_CANNIKIN = cannikin.ClusterModel([0.1, 0.2], [0.5, 0.5], [0.3, 0.4], [0.1, 0.2], 0.2, 1.0, 0.1)
_SEEN = {name: np.ones((2, 2)) for name in ("compute", "backward", "first", "communication")}
_NOISE, _TOTALS = cannikin.NoiseScale(100.0, 1.0), {"total_batch": 16, "initial_batch": 8}
_TABLES = {"errors": [[1.0, 0.0]], "sizes": [[8, 16]], "budget": 20.0}

GOOD: dict[Callable, dict[str, Any]] = {
    dsgd.Topology: {"name": "mine", "W": np.full((2, 2), 0.5)},
    dsgd.Topology.mixing_time: {"self": RING, "eps": 0.1},
    dsgd.run: {
        "algorithm": METHOD,
        **_RUN,
    },
    dsgd.check: {
        "algorithm": METHOD,
        "problem": problems.random_quadratic(1, 2, heterogeneity=0.0),
    },  # on no other devices
    dsgd.exchanges: {
        "algorithm": METHOD,
        "problem": QUADRATIC,
    },
    dsgd.compile_round: {
        "algorithm": METHOD,
        "problem": QUADRATIC,
        "mesh": 1,
    },
    dsgd.sweep: {"factory": lambda x: METHOD, **_RUN, "x": [0.1, 0.2]},
    dsgd.Sweep.best: {
        "self": SWEEP,
    },
    dsgd.Sweep.point: {"self": SWEEP, "index": (1,)},
    dsgd.Sweep.at: {"self": SWEEP, "index": (1,)},
    dsgd.evaluated: {"history": SWEEP.history},
    dsgd.mean_and_error: {"values": np.ones((2, 5))},
    dsgd.frame: {"runs": {"one": SWEEP}},
    plots.curves: {
        "runs": {"one": SWEEP},
    },
    plots.draw_lines: {"axes": SHEET.subplots(), "lines": {"one": (np.ones(5), np.ones((2, 5)))}},
    plots.figure: {
        "columns": 1,
    },
    plots.panels: {
        "sheet": Figure(),
        "columns": 1,
    },
    plots.plain_log: {"axis": SHEET.axes[0].xaxis},
    dsgd.tail_mean: {
        "values": np.ones((2, 5)),
    },
    problems.language_model: {},
    problems.load: {
        "data": ARRAYS,
    },
    problems.sparse_rows: {
        "matrix": scipy.sparse.eye_array(3),
    },
    problems.finite_sum: {
        "model": MODEL,
        "loss": optax.squared_error,
        "data": (ARRAYS[0], ARRAYS[1]),
        **{name: value for name, value in _DATA.items() if name != "data"},
    },
    problems.per_sample: {
        "problem": problems.logistic_regression("digits", workers=2, batch_size=2),
        "transform": problems.clipped(1.0),
    },
    problems.clipped: {"norm": 1.0},
    problems.Model: {"init": MODEL.init, "apply": MODEL.apply},
    problems.logistic_regression: {
        **_DATA,
    },
    problems.neural_network: {
        **_DATA,
    },
    problems.minibatch: {
        "batch_size": 2,
    },
    problems.quadratic: {
        "A": np.ones((2, 3)),
        "b": np.ones((2, 3)),
    },
    problems.random_quadratic: {
        "workers": 2,
        "dimension": 3,
    },
    problems.robust_regression: {
        "workers": 2,
        "dimension": 3,
    },
    problems.split: {
        "labels": ARRAYS[1],
        "workers": 3,
    },
    problems.sparse_rows: {
        "matrix": scipy.sparse.csr_array(np.eye(3)),
    },
    compressors.apply: {"compressor": SIGN, "key": KEY, "x": np.ones(3)},
    compressors.buckets: {"compressor": SIGN, "size": 8},
    compressors.check: {
        "compressor": SIGN,
        "d": 8,
    },
    compressors.clipping: {"bits": 4},
    compressors.contraction: {"compressor": compressors.natural},
    compressors.encode: {
        "compressor": SIGN,
        "key": KEY,
        "x": jnp.ones(3),
    },
    compressors.low_rank: {
        "rank": 2,
    },
    compressors.mean_bits: {"compressor": SIGN, "d": 8},
    compressors.qsgd: {"levels": 4},
    compressors.random_k: {
        "fraction": 0.5,
    },
    compressors.random_quantization: {
        "bits": 4,
    },
    compressors.random_sparsification: {"probability": 0.5},
    compressors.top_k: {
        "fraction": 0.5,
    },
    compressors.whole_model: {"compressor": SIGN},
    network.asynchronous_server_messages: {
        "compute": [[1, 2], [1, 2]],
    },
    network.cost: {
        "pattern": network.gossip(RING),
        "workers": 4,
        "latency": 1.0,
        "transfer": 1.0,
    },
    network.elapse: {
        "pattern": network.multi_server,
        "finish": jnp.ones(4),
        "ports": network.Ports(0.1, jnp.ones(4), jnp.ones(4)),
        "convention": "blocking",
        "step": jnp.int32(0),
    },
    network.exchange: {
        "pattern": network.multi_server,
        "finish": jnp.ones(4),
        "ports": network.Ports(0.1, jnp.ones(4), jnp.ones(4)),
        "convention": "blocking",
        "step": jnp.int32(0),
    },
    network.gossip: {"topology": RING},
    network.round_seconds: {
        "pattern": network.multi_server,
        "workers": 4,
        "bits_up": 8.0,
        "latency": 0.1,
        "bandwidth": 8.0,
    },
    network.simulate: {
        "messages": [network.Message(0, 1)],
        "latency": 0.1,
        "transfer": [1.0, 1.0],
    },
    clusters.Cluster: {
        "compute": SECONDS,
    },
    clusters.Overlap: {
        "backward": SECONDS,
        "backward_per_sample": SECONDS,
        "first": 0.5,
        "last": 0.1,
    },
    clusters.Quantity: {
        "sample": lambda key, clock, worker: 1.0,
        "name": "one",
        "positive": True,
    },
    clusters.bernoulli: {"probability": 0.5, "value": 1.0},
    clusters.bounded: {"quantity": SECONDS, "most": 2.0},
    clusters.constant: {"value": [1.0, 2.0]},
    clusters.save: {
        "path": "measured.json",
        "cluster": clusters.Equal(1e-3, 1e8),
    },
    clusters.load: {"path": "measured.json"},  # which has just been saved
    clusters.exponential: {"mean": 1.0},
    clusters.gamma: {"shape": 1.0, "scale": 1.0},
    clusters.lognormal: {"mu": 0.0, "sigma": 1.0},
    clusters.measured: {"values": [1.0, 2.0]},
    clusters.normal: {"mean": 1.0, "std": 1.0},
    clusters.per_server: {"quantity": SECONDS, "size": 2},
    clusters.sampled: {"k": 2, "of": 4},
    clusters.sinusoid: {
        "eta": 1.0,
        "theta": 1.0,
        "delta": 1.0,
    },
    clusters.slow: {"quantity": SECONDS, "workers": [0, 1], "factor": 2.0},
    clusters.square_wave: {
        "high": 2.0,
        "low": 1.0,
        "period": 1.0,
    },
    clusters.trace: {"values": [1.0, 2.0], "interval": 1.0},
    work.local_batches: {
        "sizes": [2, 1],
        "batch_size": 2,
    },
    work.micro_batches: {
        "counted": np.eye(2) > 0,
    },
    work.weighted: {"weights": np.eye(2)},
    workers.mesh: {},
    topologies.chain: {
        **_N,
    },
    topologies.complete: _N,
    topologies.draw: {
        "topology": RING,
    },
    topologies.erdos_renyi: {
        **_N,
        "probability": 0.9,
    },
    topologies.exponential: _N,
    topologies.from_graph: {
        "graph": nx.path_graph(3),
    },
    topologies.from_matrix: {
        "W": np.full((2, 2), 0.5),
    },
    topologies.hypercube: {
        "dimension": 2,
    },
    topologies.lazy: {"adjacency": ADJACENCY + ADJACENCY.T},
    topologies.max_degree: {"adjacency": ADJACENCY + ADJACENCY.T},
    topologies.metropolis: {"adjacency": ADJACENCY + ADJACENCY.T},
    topologies.one_peer_exponential: _N,
    topologies.random_matchings: {
        **_N,
    },
    topologies.random_regular: {
        **_N,
        "degree": 2,
    },
    topologies.ring: {
        **_N,
    },
    topologies.star: {
        **_N,
    },
    topologies.torus: {
        "rows": 2,
        "columns": 2,
    },
    topologies.uniform: {"adjacency": ADJACENCY},
    algorithms.asynchronous_gossip_sgd: _GOSSIP,
    algorithms.asynchronous_server: {
        "name": "mine",
        **_OPTIMIZER,
        "step": lambda model, gradient, arrival, read: model,
    },
    algorithms.asynchronous_sgd: {
        **_OPTIMIZER,
    },
    algorithms.backup_workers_sgd: {**_OPTIMIZER, "backups": 1},
    algorithms.choco_sgd: _SQUEEZED,
    algorithms.compressed_sgd: {
        **_OPTIMIZER,
        "compressor": compressors.random_k(0.5),
    },
    algorithms.d2: {**_OPTIMIZER, "topology": topologies.ring(4, weights=topologies.lazy)},
    algorithms.decentralized_sgd: _GOSSIP,
    algorithms.deepsqueeze: _SQUEEZED,
    algorithms.drop_compute: {
        "method": METHOD,
        "threshold": 1.0,
        "micro_batches": 2,
    },
    algorithms.ef21: {**_OPTIMIZER, "up": SIGN, "down": SIGN},
    algorithms.error_compensated_sgd: {
        **_OPTIMIZER,
        "up": SIGN,
        "down": SIGN,
    },
    algorithms.exact_diffusion: _GOSSIP,
    algorithms.extra: _GOSSIP,
    algorithms.gradient_descent: _OPTIMIZER,
    algorithms.gradient_tracking: _GOSSIP,
    algorithms.kimad_sgd: {
        **_OPTIMIZER,
        "compressors": [SIGN],
        "round_time": 1.0,
    },
    algorithms.local_sgd: {
        **_OPTIMIZER,
        "period": 2,
    },
    algorithms.make: {"name": "dsgd", **_OPTIMIZER, "workers": 4},
    algorithms.minibatch_sgd: _OPTIMIZER,
    algorithms.model_averaging_sgd: _OPTIMIZER,
    algorithms.observed: {"method": METHOD},
    algorithms.parameter_server_sgd: _OPTIMIZER,
    algorithms.scaffold: {**_OPTIMIZER, "period": 2},
    algorithms.sgd: _OPTIMIZER,
    algorithms.stochastic_gradient_push: _GOSSIP,
    algorithms.unequal_work: {"method": METHOD, "work": work.micro_batches(np.eye(4, 2) > 0)},
    cannikin.adaptdl: {"total_batches": [8, 16], "initial_batch": 8},
    cannikin.adascale: {"noise": _NOISE, **_TOTALS},
    cannikin.cannikin: {
        "total_batches": [8, 16],
    },
    cannikin.constant: {"noise": _NOISE, **_TOTALS},
    cannikin.efficiency: {"total_batch": [8, 16], "noise_scale": 100.0, "initial_batch": 8},
    cannikin.equal_split: {"total_batch": 8},
    cannikin.goodput: {
        "seconds": [1.0, 2.0],
        "total_batch": [8, 16],
        "noise_scale": 100.0,
        "initial_batch": 8,
    },
    cannikin.lb_bsp: {
        "total_batch": 8,
    },
    cannikin.scalable: _OPTIMIZER,
    cannikin.square_root: {"noise": _NOISE, **_TOTALS},
    cannikin.train: {
        "method": METHOD,
        "problem": QUADRATIC._replace(
            sample=dsgd.Sampler(QUADRATIC.sample, batch_size=2, take=lambda batch, samples: batch)
        ),
        "system": cannikin.equal_split(8),
        "cluster": clusters.Cluster(
            SECONDS, at_once=True, overlap=clusters.Overlap(SECONDS, SECONDS, 0.5, 0.1)
        ),
        "epochs": 1,
        "key": KEY,
        "micro_batches": 2,
    },
    cannikin.train_processes: {
        "problem": problems.logistic_regression("digits", workers=1, batch_size=2),
        **_OPTIMIZER,
        "system": cannikin.equal_split(4),
        "epochs": 1,
        "key": KEY,
        "micro_batches": 2,
    },
    delays.constant: {"bound": 4},
    delays.given: {
        "D": [0, 0, 1],
    },
    delays.uniform: {"bound": 4},
    delays.worst_case: {"bound": 4},
    cannikin.ClusterModel: {
        **{name: [0.1, 0.2] for name in ("q", "s", "k", "m")},
        "gamma": 0.2,
        "t_overlap": 1.0,
        "t_last": 0.1,
    },
    cannikin.ClusterModel.optperf: {"self": _CANNIKIN, "total_batch": [4.0, 8.0]},
    cannikin.ClusterModel.optperf_integer: {"self": _CANNIKIN, "total_batch": 8},
    cannikin.Learner.joined: {
        "self": cannikin.learner(2, 0.1),
        "count": 2,
    },
    cannikin.Learner.model: {
        "self": cannikin.learner(2, 0.1),
    },
    cannikin.Learner.next_batches: {"self": cannikin.learner(2, 0.1), "total": 8.0},
    cannikin.Learner.observed: {"self": cannikin.learner(2, 0.1), "batches": [1.0, 2.0], **_SEEN},
    cannikin.Learner.without: {"self": cannikin.learner(2, 0.1), "nodes": [1]},
    cannikin.gradient_noise_scale: {
        "local_sqnorms": [1.0, 2.0],
        "global_sqnorm": 1.0,
        "batches": [4, 2],
    },
    cannikin.learner: {
        "nodes": 2,
        "last_share": 0.1,
    },
    cannikin.published_optperf: {"model": _CANNIKIN, "total": 8.0},
    cannikin.smoothed: {
        "before": cannikin.NoiseScale(0.0, 0.0, 0.0),
        "new": cannikin.NoiseScale(1.0, 2.0),
        "weight": 0.1,
    },
    dropcompute.accumulate: {
        "gradient": lambda x, batch: 1.0,
        "params": 1.0,
        "batches": [1, 2],
        "threshold": 1.0,
    },
    dropcompute.chosen_after: {"rounds": 5},
    dropcompute.drop_rate: {
        "latencies": np.ones((2, 3, 4)),
        "thresholds": [1.0, 2.0],
    },
    dropcompute.effective_speedup: {
        "latencies": np.ones((2, 3, 4)),
        "communication": [0.1, 0.2],
        "thresholds": [1.0, 2.0],
    },
    dropcompute.expected_micro_batches: {
        "thresholds": [4.0],
        **_NORMAL,
    },
    dropcompute.expected_speedup: {
        "thresholds": [4.0],
        **_NORMAL,
        "workers": 4,
    },
    dropcompute.expected_step_time: {
        **_NORMAL,
        "workers": [4],
    },
    dropcompute.expected_threshold: {
        **_NORMAL,
    },
    dropcompute.extra_steps: {"steps": 10, "drop_rate": 0.1},
    dropcompute.larger_batch: {"size": 10, "drop_rate": 0.1},
    dropcompute.latencies: {
        "cluster": clusters.Cluster(SECONDS),
        "workers": 2,
        "micro_batches": 2,
        "iterations": 2,
        "key": KEY,
    },
    dsgd.join: {},
    dsgd.loopback: {
        "processes": 2,
        "function": jax.process_index,
    },
    dropcompute.simulated: {
        "cluster": clusters.Cluster(SECONDS),
        "workers": 2,
        "micro_batches": 2,
        "thresholds": [1.0, 2.0],
        "rounds": 3,
        "key": KEY,
    },
    dropcompute.step_time: {
        "latencies": np.ones((2, 3, 4)),
        "thresholds": 1.0,
    },
    dropcompute.threshold: {
        "latencies": np.ones((2, 3, 4)),
        "communication": 0.1,
    },
    dropcompute.train_processes: {
        "problem": problems.quadratic(np.ones((1, 2)), np.ones((1, 2))),
        **_OPTIMIZER,
        "threshold": dropcompute.chosen_after(2),
        "micro_batches": 2,
        "steps": 4,
        "key": KEY,
    },
    kimad.allocate: {
        **_TABLES,
    },
    kimad.any_of: {"compressors": [SIGN]},
    kimad.budget: {
        "up": 1e6,
        "round_time": 1.0,
    },
    kimad.exponential_average: {"weight": 0.3},
    kimad.harmonic_mean: {"window": 3},
    kimad.local_steps: {**_OPTIMIZER, "period": 2},
    kimad.one_for_all: _TABLES,
    kimad.top_k: {"ratios": [0.1, 0.5]},
    kimad.whole_model: {"choices": kimad.top_k([0.1])},
    on_ray.asynchronous_gossip_sgd: {**_ON_RAY, "topology": RING},
    on_ray.asynchronous_sgd: {
        **_ON_RAY,
    },
    on_ray.measured_cluster: {
        "trained": on_ray.Trained((), {}, _UPDATES, 1, 32),
    },
    on_ray.minibatch_sgd: {**_ON_RAY},
    on_ray.session: {
        "processes": 2,
    },
}


MESSAGES = {  # what the wrong value is answered, one case of each kind of need
    "run(method, problem, steps=1, key=0)": "key = 0; expected one JAX key, such as jax.random.key(0)",
    "run(method, problem, steps=1, key=key, mesh=99)": "mesh: devices = 99",
    "run(method, problem, steps=1, key=key, mesh='2')": "mesh = '2'; expected a mesh, such as dsgd.workers.mesh(4), an integer, or None",
    "run(method, problem, steps=1, key=key, mesh=1, checkpoint=5)": "checkpoint = 5; expected a string, a path or None",
    "run(method, problem, steps=1, key=key, mesh=1, batches=7)": "batches = 7; expected an iterator or None",
    "run(method, problem, steps=1, key=key, start=3)": "start = 3; expected a dsgd.Result, as returned by dsgd.run, a dsgd.State, such as the `state` of a dsgd.Result, or None",
    "run(method, problem, steps=1, key=key, until=0.1)": "until = 0.1; expected a function or None",
    "run(algorithms.minibatch_sgd, problem, steps=1, key=key)": "expected a dsgd.Algorithm",
    "run(method, problem.data, steps=1, key=key)": "expected a dsgd.Problem",
    "algorithms.minibatch_sgd(0.1)": "optimizer = 0.1; expected an optax optimiser",
    "algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring)": "expected a topology, such as topologies.ring(16) or topologies.from_matrix(W)",
    "algorithms.local_sgd(optax.sgd(0.1), topologies.ring(2))": "local_sgd: period = Topology(ring(2)); expected an integer",
    "algorithms.choco_sgd(optax.sgd(0.1), ring, dsgd.compressors.sign, None)": "choco_sgd: consensus_step = None; expected a number in (0, 1]",
    "algorithms.deepsqueeze(optax.sgd(0.1), ring, dsgd.compressors.top_k, 0.1)": "compressor = the function top_k; expected",
    "algorithms.asynchronous_sgd(optax.sgd(0.1), algorithms.delays.uniform)": "delays = the function uniform; expected one of",
    "algorithms.delays.given([0.0, 1.0])": "given: D = [0.0, 1.0]; expected a list, each an integer, or an array of numbers",
    "problems.load((np.zeros((20, 3)), np.zeros(20), 3))": "data has 3 elements; expected a name, a file's path, a Dataset, or a pair (inputs, classes)",
    "problems.finite_sum(linear, optax.squared_error, np.eye(3))": "expected a pair (inputs, targets)",
    "problems.finite_sum(linear, optax.squared_error, *three, batch_size=1, test=three[0], metrics={'a': 3})": "metrics['a'] = 3; expected functions",
    "problems.finite_sum(problems.MLP, optax.squared_error, *three, batch_size=1)": "model = the class MLP; expected an instance of a flax module",
    "algorithms.kimad_sgd(optax.sgd(0.1), kimad.top_k([0.1]), 1.0, too_small='stop')": "too_small = 'stop'; expected 'wait' or 'error'",
    "kimad.budget('fast', 1.0)": "budget: up = 'fast'; expected a number, or a list or an array of numbers",
    "dropcompute.train_processes(problem, optax.sgd(0.1), 'fast', 4, steps=2, key=key)": "threshold = 'fast'; expected a number or a Chosen",
    "dropcompute.train_processes(problem, optax.sgd(0.1), 1, 4, steps=2, key=key, correction='all')": "correction = 'all'; expected 'none', 's",
    "dropcompute.threshold('slow', 0.5)": "threshold: latencies = 'slow'; expected seconds [iterations, workers, micro-batches]",
    "dropcompute.simulated(cluster, 2, 3, 1.0, rounds=4, key=key, stop='after')": "simulated: stop = 'after'; expected 'preempt' or 'between'",
    "topologies.ring(4, 'lazy')": "ring: weights = 'lazy'; expected one of topologies.metropolis, topologies.max_degree",
    "topologies.ring(4, lambda adjacency: np.full((3, 3), 1 / 3))": "the weights function returned a matrix of shape (3, 3) for an adjacency matrix of shape (4, 4)",
    "topologies.ring(6, lambda adjacency: np.full((6, 6), 1 / 6))": "although worker 2 does not send to worker 0; expected nonzero weights on edges only",
    "dsgd.Topology('mine', None)": "mine: W: got a NoneType; expected an array of numbers",
    "topologies.exponential(8).smallest_eigenvalue": "smallest_eigenvalue of a W that is not symmetric; expected a single symmetric W",
    "topologies.exponential(6).mixing_time(1e-17)": "expected at least 1e-12, the resolution of float64",
    "dsgd.workers.mesh('cpu')": "mesh: devices = 'cpu'; expected an integer, a list or None",
    "dsgd.workers.mesh([jax.devices()[0]] * 2)": "more than once; expected different devices",
    "dsgd.network.cost('ring', 4, 1.0, 1.0)": "cost: pattern = 'ring'; expected a pattern of dsgd.network",
    "dsgd.network.cost(dsgd.network.gossip(topologies.exponential(16)), 4, 1.0, 1.0)": "of 16 workers, for 4 workers; expected the same number",
    "problems.minibatch(4, 'no')": "minibatch: replacement = 'no'; expected True, False or 'epoch'",
    "run(method, problem, steps=2, key=key, mesh=1, batches=[None] * 2)": "batch 0 = None has no arrays; expected leaves [N, ...]",
    "problems.load((np.zeros((20, 3)), np.arange(20) % 2 + 0.9))": "data: targets have the entry 0.9; expected classes as whole numbers",
    "problems.load(digits._replace(test_inputs=digits.test_inputs * np.nan))": "digits: test inputs have entries that are not finite",
    "problems.load(digits._replace(train_targets=digits.train_targets + 0.9))": "digits: train targets have the entry",
    "dsgd.sweep(algorithms.delays.constant, problem, steps=1, key=key, bound=[1, -1])": "bound = -1; expected an integer, at least 0",
    "dsgd.sweep(tuned, problem, steps=1, key=key, step=[0.5, 1.5])": "choco_sgd: consensus_step = 1.5; expected a number in (0, 1]",
    "plots.curves(swept, yscale='cubic')": "curves: yscale = 'cubic'; expected 'linear' or 'log'",
    "dsgd.frame(problem)": "expected a dsgd.Result, a dsgd.Sweep, a history, or a dictionary of these by method name",
    "swept.best(share=-1)": "share = -1; expected a fraction of the records, in (0, 1]",
}


def defaults(function: Callable) -> dict[str, Any]:
    """The arguments that a call need not give."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def public() -> Iterator[Callable]:
    """The functions of all packages, and `workers.mesh` (what else `workers` has is called inside
    compiled code).
    """
    for package in PACKAGES:
        for name in getattr(package, "__all__", dir(package)):
            member = getattr(package, name)
            if (
                inspect.isfunction(member)
                and not name.startswith("_")
                and member.__module__.partition(".")[0] == package.__name__.partition(".")[0]
            ):
                yield member
    yield workers.mesh


NEEDED = r"need|expected|pass |must|makes weights|cannot be"


def messages() -> dict[str, str]:
    """What the calls of `MESSAGES` raise, with its type."""
    ring = topologies.ring(2)
    given = {
        "problem": problems.random_quadratic(2, 2),
        "method": METHOD,
        "linear": MODEL,
        "three": ((np.eye(3), np.ones(3)), 1),
    }
    given |= {
        "digits": problems.load("digits"),
        "swept": SWEEP,
        "key": KEY,
        "ring": ring,
        "cluster": clusters.Cluster(SECONDS),
    }
    given |= {"run": dsgd.run, "tuned": lambda step: algorithms.choco_sgd(SGD, ring, SIGN, step)}
    raised = dict.fromkeys(MESSAGES, "nothing raised")
    for case in MESSAGES:
        try:
            eval(case, globals() | given)
        except Exception as error:
            raised[case] = f"{type(error).__name__}: {error}"
    return raised


def outcome(function: Callable, arguments: dict[str, Any], changed: str) -> str | None:
    """What is wrong with how the call ends; None: it works, or says what is wrong in a ValueError
    that names the function, the argument, or the file. With nothing changed, the call must work."""
    try:
        function(**arguments)
    except ValueError as error:
        file = (
            re.escape(given)
            if isinstance(given := arguments.get(changed), str) and given
            else changed
        )
        named = rf"\b({function.__name__}|{changed}|{file})\b"
        said = (
            changed
            and type(error) is ValueError
            and re.search(named, str(error))
            and re.search(NEEDED, str(error))
        )
        return None if said else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(every: int) -> None:
    """Draws one value of the pool in `every`, others for each argument."""
    haste.trace_quickly()
    # Nothing is compiled: what would run is not run.
    seen = dict.fromkeys(
        ("local_sqnorms", *(f"measured_{name}" for name in ("compute", "backward", "first", "up"))),
        np.ones((3, 4)),
    )
    seen |= dict.fromkeys(("loss", "global_sqnorm", "clock", "bits"), np.ones(3))

    def executed(job, *args):
        """A stage's, or that of no round at each point of a grid."""
        points = map(len, list(job.points.values())[:1])
        return dsgd.Result(
            job.start or (),
            seen if job.start else {"bits": np.ones((*points, *job.keys.shape, 1))},
            (),
        )

    chunks.execute = executed
    driver.programs = mock.MagicMock()
    local_processes._results = processes._run = gossip._train = with_servers._train = lambda *args: []
    nodes._Node.epoch = lambda *args: epochs.Ran(
        1.0, *4 * [np.ones((2, 1))], np.ones((2, 1)), np.ones(2), {}
    )
    warnings.simplefilter("error")
    calls = {function: defaults(function) | given for function, given in GOOD.items()}
    good = {
        function.__qualname__: outcome(function, arguments, "")
        for function, arguments in calls.items()
    }
    missing = [function.__qualname__ for function in public() if function not in GOOD]
    drawn, escaped, first = 0, {}, itertools.count()
    for function, arguments in calls.items():
        for name in arguments:
            for shown, value in (
                list(POOL.items())[next(first) % every :: every] if name != "self" else ()
            ):
                drawn += 1
                wrong = outcome(function, {**arguments, name: value}, name)
                if wrong:
                    escaped[f"{function.__module__}.{function.__qualname__}({name}={shown})"] = (
                        wrong
                    )
    found = {
        "good": {name: wrong for name, wrong in good.items() if wrong},
        "missing": missing,
        "drawn": drawn,
        "escaped": escaped,
    }
    print(json.dumps(found | {"messages": messages()}))


if __name__ == "__main__":
    main(int(sys.argv[-1]))
