"""Random invalid calls: of one valid call of each function, every argument in turn is replaced by
each value of a pool of wrong values. Prints unexpected outcomes as JSON.

It is a separate script, without the annotations that pytest checks, because users run without them.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import json
import re
import sys
import tempfile
import unittest.mock as mock
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fast_compile
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
from dsgd import (
    array_likes,
    clusters,
    compressors,
    network,
    planning,
    plots,
    problems,
    reports,
    work,
    workers,
)
from dsgd.engine import randomness
from dsgd.machines import local_processes, tasks
from dsgd.planning import planner
from dsgd.runs import chunks, driver, saved, tuning

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
CLIENTS = problems.logistic_regression("digits", workers=2, batch_size=2)
ARRAYS = (np.arange(120.0).reshape(60, 2) % 7, np.arange(60) % 3)
MODEL = problems.Model(lambda key: jnp.zeros(2), lambda params, inputs: inputs @ params)
ADJACENCY = topologies.graphs.one_way(4, np.arange(4), (np.arange(4) + 1) % 4)
SECONDS = clusters.constant(1.0)
SWEEP = dsgd.Sweep(
    {"x": np.ones(2)},
    {"loss": np.ones((2, 1, 5)), "step": np.arange(5)},
    dsgd.State(jnp.int32(0)),
    (),
)
TAPED = dsgd.run(METHOD, QUADRATIC, steps=1, key=KEY, mesh=1, taped=True)
USERS = {"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1], [2]], "y": [0, 1]}}}
FOLDER = tempfile.TemporaryDirectory()
FILE = Path(FOLDER.name) / "clients.json"
FILE.write_text(json.dumps(USERS))
CURVE = planning.Curve("one", {}, 0.1, 5, [(np.arange(3.0), np.array([3.0, 2.0, 1.0]))])
SHAPES = Path(FOLDER.name) / "shapes.json"
SHAPES.write_text(json.dumps({"kernel": [2]}))


SHEET = Figure()
TIMELINE = {name: np.arange(4.0) for name in ("step", "loss", "clock", "bits_up")} | {
    name: np.arange(4.0) % 2 for name in ("worker", "began", "ended", "resumed")
}


class AnyClass:
    """One of the wrong values."""


class Unreadable:
    """An array that cannot be converted."""

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise RuntimeError("not on this device")


class Traced(NamedTuple):
    """Wrong values: what this transformation passes to a function of the value."""

    transform: Callable
    value: Any


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
    "a method": METHOD,
    "a Decimal": Decimal("0.5"),
    "a long double": np.longdouble(0.5),
    "big-endian": np.full(4, 0.5, ">f4"),
    "long doubles": np.full((4, 4), 0.25, np.longdouble),
    "a matrix": np.full((4, 4), 0.25).view(np.matrix),
    "dates": np.array(["2026-01-01"], "datetime64[D]"),
    "records": np.zeros(4, [("a", ">f4")]),
    "sparse": scipy.sparse.csr_array(np.full((4, 4), 0.25)),
    "unreadable": Unreadable(),
    "traced": Traced(jax.make_jaxpr, jnp.ones(4)),
    "differentiated": Traced(jax.grad, 0.5),
    "mapped": Traced(jax.vmap, jnp.arange(2)),
}

MUTABLE = (
    np.full(2, 0.25),
    np.full(4, 0.25),
    np.full(4, 2),
    np.full((2, 2), 0.5),
    np.full((4, 4), 0.25),
    np.full((4, 2), 3),
    np.arange(4) < 3,
)

_UPDATES = {
    "worker": np.zeros(3, int),
    **dict.fromkeys(("computed", "round_trip", "busy"), np.ones(3)),
}
_LEARNER = cannikin.learner(2, 0.1)
_CANNIKIN = cannikin.ClusterModel([0.1, 0.2], [0.5, 0.5], [0.3, 0.4], [0.1, 0.2], 0.2, 1.0, 0.1)
_SEEN = {name: np.ones((2, 2)) for name in ("compute", "backward", "first", "communication")}

BY_NAME: dict[str, Any] = {
    "name": "mine",
    "W": np.full((2, 2), 0.5),
    "eps": 0.1,
    "algorithm": METHOD,
    "problem": QUADRATIC,
    "steps": 5,
    "fragments": 2,
    "key": KEY,
    "index": (1,),
    "values": np.ones((2, 5)),
    "runs": {"one": SWEEP},
    "columns": 1,
    "data": ARRAYS,
    "matrix": scipy.sparse.eye_array(3),
    "model": MODEL,
    "loss": optax.squared_error,
    "transform": problems.clipped(1.0),
    "norm": 1.0,
    "init": MODEL.init,
    "apply": MODEL.apply,
    "batch_size": 2,
    "A": np.ones((2, 3)),
    "b": np.ones((2, 3)),
    "workers": 2,
    "dimension": 3,
    "labels": ARRAYS[1],
    "compressor": SIGN,
    "size": 8,
    "d": 8,
    "bits": 4,
    "rank": 2,
    "levels": 4,
    "fraction": 0.5,
    "probability": 0.5,
    "compute": [[1, 2], [1, 2]],
    "pattern": network.multi_server,
    "latency": 0.1,
    "transfer": 1.0,
    "finish": jnp.ones(4),
    "ports": network.Ports(0.1, jnp.ones(4), jnp.ones(4)),
    "convention": "blocking",
    "step": jnp.int32(0),
    "topology": RING,
    "bits_up": 8.0,
    "bandwidth": 8.0,
    "messages": [network.Message(0, 1)],
    "backward": SECONDS,
    "backward_per_sample": SECONDS,
    "first": 0.5,
    "last": 0.1,
    "sample": lambda key, clock, worker: 1.0,
    "positive": True,
    "value": 1.0,
    "quantity": SECONDS,
    "most": 2.0,
    "path": "measured.json",
    "cluster": clusters.Cluster(SECONDS),
    "mean": 1.0,
    "shape": 1.0,
    "scale": 1.0,
    "mu": 0.0,
    "sigma": 1.0,
    "std": 0.2,
    "k": 2,
    "of": 4,
    "eta": 1.0,
    "theta": 1.0,
    "delta": 1.0,
    "factor": 2.0,
    "high": 2.0,
    "low": 1.0,
    "period": 2,
    "samples": 2,
    "models": np.zeros((4, 2)),
    "interval": 1.0,
    "sizes": [[8, 16]],
    "counted": np.eye(2) > 0,
    "weights": np.eye(2),
    "n": 4,
    "graph": nx.path_graph(3),
    "adjacency": ADJACENCY + ADJACENCY.T,
    "degree": 2,
    "rows": 2,
    "optimizer": SGD,
    "outer": SGD,
    "penalty": 0.1,
    "regularizer": problems.l1(0.1),
    "step_size": 0.1,
    "step_sizes": [0.1, 0.2, 0.3, 0.4],
    "switch": 2,
    "warm_up": 2,
    "freeze": 2,
    "backups": 1,
    **dict.fromkeys(("consensus_step", "error_weight", "memory_step", "momentum_step"), 0.5),
    "method": METHOD,
    "threshold": 1.0,
    "micro_batches": 2,
    "up": SIGN,
    "down": SIGN,
    "compressors": [SIGN],
    "round_time": 1.0,
    "work": work.micro_batches(np.eye(4, 2) > 0),
    "total_batches": [8, 16],
    "initial_batch": 8,
    "block": 4,
    "dtype": "float8_e4m3fn",
    "times": 2,
    "v": 0.5,
    "biased": SIGN,
    "unbiased": compressors.natural,
    "reset": SIGN,
    "point": algorithms.three_points.ef21(SIGN),
    "noise": cannikin.NoiseScale(100.0, 1.0),
    "total_batch": 16,
    "noise_scale": 100.0,
    "seconds": [1.0, 2.0],
    "system": cannikin.equal_split(8),
    "epochs": 1,
    "bound": 4,
    "D": [0, 0, 1],
    "gamma": 0.2,
    "t_overlap": 1.0,
    "t_last": 0.1,
    "count": 2,
    "total": 8.0,
    "batches": [1.0, 2.0],
    "nodes": [1],
    "local_sqnorms": [1.0, 2.0],
    "global_sqnorm": 1.0,
    "last_share": 0.1,
    "before": cannikin.NoiseScale(0.0, 0.0, 0.0),
    "new": cannikin.NoiseScale(1.0, 2.0),
    "weight": 0.1,
    "gradient": lambda x, batch: 1.0,
    "params": 1.0,
    "rounds": 5,
    "latencies": np.ones((2, 3, 4)),
    "thresholds": [1.0, 2.0],
    "communication": [0.1, 0.2],
    "drop_rate": 0.1,
    "iterations": 2,
    "processes": 2,
    "function": jax.process_index,
    "errors": [[1.0, 0.0]],
    "budget": 20.0,
    "window": 3,
    "ratios": [0.1, 0.5],
    "choices": kimad.top_k([0.1]),
    "trained": on_ray.Trained((), {}, _UPDATES, 1, 32),
}

"""A valid value of each argument without a default."""

GOOD: dict[Callable, dict[str, Any]] = {  # other values, and functions outside the packages
    dsgd.Topology: {},
    dsgd.Topology.mixing_time: {"self": RING},
    algorithms.q_fed_avg: {"q": 0.5},
    algorithms.amelie_sgd: {"batch": 2.5},
    algorithms.as_grad: {"order": "random"},
    algorithms.fragile_sgd: {"batch": 2},
    algorithms.malenia_sgd: {"batch": 2.5},
    algorithms.mind_flayer_sgd: {"trials": 2, "timeouts": 1.5},
    algorithms.picky_sgd: {"distance": 0.5},
    algorithms.rennala_sgd: {"batch": 2},
    algorithms.ringmaster_sgd: {"threshold": 2},
    algorithms.shadowheart_sgd: {
        "compressor": compressors.random_k(0.5),
        "compute": 0.5,
        "send": 0.25,
        "noise": 0.75,
    },
    algorithms.vecna_sgd: {"trials": 2, "timeouts": 1.5},
    algorithms.asynchronous_diloco: {"steps": 2},
    algorithms.fed_async: {"steps": 2},
    algorithms.fed_buff: {"steps": 2},
    algorithms.power_of_choice: {"m": 2},
    algorithms.hierarchical_local_sgd: {"block": 2, "period": 3, "blocks_period": 2},
    algorithms.fed_per: {"local": [True, False]},
    algorithms.fed_rep: {"local": True, "head_steps": 1, "period": 3},
    dsgd.run: {"steps": 1, "mesh": 1},
    dsgd.check: {"problem": problems.random_quadratic(1, 2, heterogeneity=0.0)},
    dsgd.compile_round: {"mesh": 1},
    dsgd.replay: {"result": TAPED},
    dsgd.Candidate: {"name": "one", "function": algorithms.minibatch_sgd},
    dsgd.parallel_map: {"function": repr, "items": [-1, 2]},
    dsgd.plan: {
        "candidates": [dsgd.Candidate("one", algorithms.minibatch_sgd)],
        "target": 0.1,
        "steps": 8,
        "mesh": 1,
    },
    dsgd.Pilot: {"curves": [CURVE]},
    dsgd.forecast: {"shapes": {"a": np.ones(2)}},
    dsgd.sweep: {"factory": lambda x: METHOD, "steps": 1, "mesh": 1, "x": [0.1, 0.2]},
    dsgd.tune: {
        "factory": lambda x: METHOD,
        "steps": 1,
        "over": "x",
        "x": [0.1, 0.2],
        "extensions": 1,
    },
    dsgd.Sweep.best: {"self": SWEEP},
    dsgd.Sweep.point: {"self": SWEEP},
    dsgd.Sweep.at: {"self": SWEEP},
    dsgd.report: {"path": "report.html"},
    saved.save: {"result": SWEEP, "path": "run.npz"},
    dsgd.load_result: {"path": "run.npz"},
    dsgd.all_rows: {"state": dsgd.State()},
    dsgd.save_safetensors: {"params": {"a": np.ones(2)}, "path": "model.safetensors"},
    dsgd.load_safetensors: {"like": {"a": np.ones(2)}, "path": "model.safetensors"},
    dsgd.load_shapes: {"path": SHAPES},
    dsgd.history.evaluated_records: {"history": SWEEP.history},
    plots.draw_lines: {"axes": SHEET.subplots(), "lines": {"one": (np.ones(5), np.ones((2, 5)))}},
    plots.panels: {"sheet": Figure()},
    plots.save: {"sheet": Figure(), "path": "figure.png"},
    plots.partition: {"data": [ARRAYS[1]] * 2},
    plots.timeline: {"run": TIMELINE},
    plots.class_colours: {"classes": 3},
    problems.class_counts: {"data": [ARRAYS[1]] * 2},
    plots.clients: {"measured": problems.client_metrics(CLIENTS, CLIENTS.init(KEY))},
    problems.with_client_metrics: {"problem": CLIENTS, "clients": 1},
    problems.client_metrics: {"problem": CLIENTS, "params": CLIENTS.init(KEY)},
    problems.hold_out: {"problem": CLIENTS},
    plots.log_scale: {"axes": SHEET.axes[0]},
    problems.finite_sum: {"workers": 3},
    problems.per_sample: {"problem": CLIENTS},
    problems.clipped: {},
    problems.Model: {},
    problems.logistic_regression: {"data": ARRAYS, "workers": 3, "batch_size": 2},
    problems.binary_logistic_regression: {"workers": 3},
    problems.random_linear_regression: {"spectrum": [0.5, 2.0]},
    problems.SmoothRegularizer: {
        "value": lambda params: 0.0,
        "smoothness": 2.0,
        "strong_convexity": -0.5,
    },
    problems.neural_network: {"data": ARRAYS, "workers": 3, "batch_size": 2},
    problems.split: {"workers": 3},
    problems.read_clients: {"path": str(FILE)},
    problems.by_user: {"users": ARRAYS[1]},
    problems.clients: {"sizes": [3, 5], "load": lambda client: ARRAYS},
    compressors.apply: {"x": np.ones(3)},
    compressors.top_k: {"fraction": 0.5},
    compressors.random_k: {"fraction": 0.5},
    compressors.block_top_k: {"fraction": 0.5, "block": 2},
    compressors.shared_random_k: {"fraction": 0.5},
    compressors.random_places: {"fraction": 0.5},
    compressors.random_block: {"fraction": 0.5},
    compressors.cast: {"dtype": "float16"},
    compressors.contraction: {"compressor": compressors.natural},
    compressors.count_sketch: {"rows": 3},
    compressors.with_seed: {"code": compressors.random_places(0.5)},
    compressors.encode: {"x": jnp.ones(3)},
    compressors.fixed_size: {
        "compress": compressors.identity.compress,
        "decompress": compressors.identity.decompress,
    },
    network.cost: {"pattern": network.gossip(RING), "workers": 4, "latency": 1.0},
    network.round_seconds: {"workers": 4},
    network.simulate: {"transfer": [1.0, 1.0]},
    clusters.Cluster: {"compute": SECONDS},
    clusters.Overlap: {},
    clusters.Collectives: {},
    clusters.Quantity: {"name": "one"},
    clusters.constant: {"value": [1.0, 2.0]},
    clusters.Hardware: {"latency": 0.001, "bandwidth": 1e8},
    clusters.Group: {"workers": 3},
    clusters.save: {"cluster": clusters.Hardware(0.001, 1e8)},
    clusters.measured: {"values": [1.0, 2.0]},
    clusters.normal: {"std": 1.0},
    clusters.per_server: {"size": 2},
    clusters.slow: {"workers": [0, 1]},
    clusters.square_wave: {"period": 1.0},
    clusters.sampled: {"k": 2, "of": 4},
    clusters.systematic: {"k": 2, "weights": [1.0, 2.0, 4.0]},
    clusters.round_robin: {"k": 2, "of": 4},
    clusters.cyclic: {"on": 2, "off": 3},
    clusters.markov: {"on": 2.0, "off": 5.0},
    clusters.poisson_intervals: {"mean": 2.5},
    clusters.MessageNoise: {"std": 0.25},
    clusters.Nodes: {"size": 2},
    clusters.bursts: {"rate": 0.25, "mean": 3.0},
    clusters.lifetimes: {"begins": [0.0, 2.0], "ends": [5.0, 9.0]},
    algorithms.adacomm: {"interval": 2},
    algorithms.with_starts: {"method": algorithms.decentralized_sgd(SGD, RING)},
    topologies.matcha: {"budget": 0.5},
    clusters.trace: {"values": [1.0, 2.0]},
    work.local_batches: {"sizes": [2, 1]},
    topologies.erdos_renyi: {"probability": 0.9},
    topologies.hypercube: {"dimension": 2},
    topologies.torus: {"columns": 2},
    topologies.grid: {"columns": 2},
    topologies.geometric: {"radius": 0.9},
    topologies.chebyshev: {"rounds": 2},
    topologies.fast_mix: {"rounds": 2},
    topologies.uniform: {"adjacency": ADJACENCY},
    topologies.pull: {"adjacency": ADJACENCY},
    topologies.push: {"adjacency": ADJACENCY},
    algorithms.dion_with_adamw: {"learning_rate": 0.1},
    algorithms.powersgd_momentum: {"learning_rate": 0.1},
    algorithms.sketched_sgd: {"fraction": 0.5, "columns": 4, "rows": 3},
    algorithms.fetch_sgd: {"fraction": 0.5, "columns": 4, "rows": 3},
    algorithms.zero_one_adam: {"step_size": 0.1},
    algorithms.asynchronous_server: {"step": lambda model, gradient, arrival, read: model},
    **{
        method: {"compressor": compressors.random_k(0.5)}
        for method in (
            algorithms.compressed_sgd,
            algorithms.diana,
            algorithms.lead,
            algorithms.dcd_sgd,
            algorithms.ecd_sgd,
            algorithms.fed_comgate,
            algorithms.fed_paq,
            algorithms.marina,
            algorithms.vr_marina,
        )
    },
    algorithms.ab: {"pull": RING, "push": RING},
    algorithms.push_pull: {"pull": RING, "push": RING},
    algorithms.r_fast: {"pull": RING, "push": RING},
    algorithms.d2: {"topology": topologies.ring(4, weights=topologies.lazy)},
    algorithms.local_exact_diffusion: {"topology": topologies.ring(4, weights=topologies.lazy)},
    algorithms.fed_adagrad: {"outer_step": 0.1},
    algorithms.fed_adam: {"outer_step": 0.1},
    algorithms.fed_yogi: {"outer_step": 0.1},
    algorithms.relay_sgd: {"topology": topologies.chain(4)},
    algorithms.opapc: {"smoothness": 1.0, "strong_convexity": 0.1},
    algorithms.error_feedback: {
        "up": algorithms.memories.Up(SIGN),
        "down": algorithms.memories.Down(SIGN),
    },
    algorithms.make: {"name": "dsgd", "workers": 4},
    cannikin.efficiency: {"total_batch": [8, 16]},
    cannikin.equal_split: {"total_batch": 8},
    cannikin.goodput: {"total_batch": [8, 16]},
    cannikin.lb_bsp: {"total_batch": 8},
    cannikin.train: {
        "problem": QUADRATIC._replace(
            sample=dsgd.Sampler(
                QUADRATIC.sample, batch_size=2, truncate=lambda batch, samples: batch
            )
        ),
        "cluster": clusters.Cluster(
            SECONDS, single_batch=True, overlap=clusters.Overlap(SECONDS, SECONDS, 0.5, 0.1)
        ),
    },
    cannikin.train_processes: {
        "problem": problems.logistic_regression("digits", workers=1, batch_size=2),
        "system": cannikin.equal_split(4),
    },
    cannikin.ClusterModel: {name: [0.1, 0.2] for name in ("q", "s", "k", "m")},
    cannikin.ClusterModel.optperf: {"self": _CANNIKIN, "total_batch": [4.0, 8.0]},
    cannikin.ClusterModel.optperf_integer: {"self": _CANNIKIN, "total_batch": 8},
    cannikin.Learner.add: {"self": _LEARNER},
    cannikin.Learner.model: {"self": _LEARNER},
    cannikin.Learner.next_batches: {"self": _LEARNER},
    cannikin.Learner.observe: {"self": _LEARNER, **_SEEN},
    cannikin.Learner.remove: {"self": _LEARNER},
    cannikin.gradient_noise_scale: {"batches": [4, 2]},
    cannikin.learner: {"nodes": 2},
    cannikin.published_optperf: {"model": _CANNIKIN},
    dropcompute.accumulate: {"batches": [1, 2]},
    dropcompute.expected_effect: {"thresholds": [4.0], "micro_batches": 4, "workers": [4]},
    dropcompute.expected_threshold: {"micro_batches": 4},
    dropcompute.extra_steps: {"steps": 10},
    dropcompute.larger_batch: {"size": 10},
    dropcompute.measured_effect: {"thresholds": 1.0},
    dropcompute.simulated_effect: {"rounds": 3},
    dropcompute.threshold: {"communication": 0.1},
    dropcompute.train_processes: {
        "problem": problems.quadratic(np.ones((1, 2)), np.ones((1, 2))),
        "threshold": dropcompute.auto_threshold(2),
        "steps": 4,
    },
    kimad.budget: {"up": 1000000.0},
    kimad.exponential_average: {"weight": 0.3},
    on_ray.asynchronous_gossip_sgd: {"address": "local"},
    on_ray.run: {
        "method": algorithms.asynchronous_sgd(optax.sgd(0.1)),
        "address": "local",
    },
    on_ray.minibatch_sgd: {"address": "local"},
}


MESSAGES = {  # the message for the wrong value, one case for each kind of requirement
    "run(method, problem, steps=1, key=0.5)": "key = 0.5",
    "run(method, problem, steps=1, key=2**32)": "run: key = 4294967296; expected an integer",
    "run(method, problem, steps=1, key=key, mesh=99)": "99",
    "run(method, problem, steps=1, key=key, mesh='2')": "mesh = '2'",
    "run(method, problem, steps=1, key=key, mesh=1, checkpoint=5)": "checkpoint = 5",
    "run(method, problem, steps=1, key=key, mesh=1, batches=7)": "batches = 7",
    "run(method, problem, steps=1, key=key, start=3)": "start = 3",
    "run(method, problem, steps=1, key=key, until=0.1)": "until = 0.1",
    "run(algorithms.minibatch_sgd, problem, steps=1, key=key)": "a dsgd.Algorithm",
    "run(method, problem.data, steps=1, key=key)": "a dsgd.Problem",
    "algorithms.minibatch_sgd(optax.sgd)": "optimizer = the function sgd; expected an optax",
    "algorithms.decentralized_sgd(SGD, topologies.ring)": "a topology",
    "algorithms.local_sgd(SGD, topologies.ring(2))": "local_sgd: period = Topology(ring(2))",
    "algorithms.fed_avg(SGD, 2, inclusion='sampled')": "'sampled'; expected 'selection', a number",
    "algorithms.fed_avg(SGD, 2, inclusion=[0.5, 2.0])": "fed_avg: inclusion = 2.0; expected a num",
    "algorithms.fed_dyn(SGD, 2, 0)": "fed_dyn: penalty = 0; expected a number in (0, inf)",
    "algorithms.malenia_sgd(SGD, 0.0)": "malenia_sgd: batch = 0.0; expected a number in (0, inf)",
    "algorithms.ringmaster_sgd(SGD, 0)": "ringmaster_sgd: threshold = 0; expected",
    "algorithms.as_grad(SGD, 'cyclic')": "as_grad: order = 'cyclic'; expected",
    "algorithms.as_grad(SGD, 'pure', 0)": "as_grad: wait = 0; expected",
    "algorithms.dc_asgd(SGD, -0.5)": "dc_asgd: weight = -0.5; expected",
    "algorithms.dc_asgd(SGD, 0.5, 1.0)": "dc_asgd: decay = 1.0; expected",
    "algorithms.delay_adaptive_sgd(SGD, -0.5)": "delay_adaptive_sgd: late = -0.5; expected",
    "algorithms.mind_flayer_sgd(SGD, [0, 0], 1.5)": "mind_flayer_sgd: trials are all 0",
    "algorithms.mind_flayer_sgd(SGD, 2, 0.0)": "mind_flayer_sgd: timeouts = 0.0; expected",
    "algorithms.mind_flayer_sgd(SGD, 2, 1.5, 0.0)": "mind_flayer_sgd: probability = 0.0; expected",
    "algorithms.picky_sgd(SGD, -0.5)": "picky_sgd: distance = -0.5; expected",
    "algorithms.shadowheart_sgd(SGD, compressors.sign, 2, 2, 2)": "shadowheart_sgd: the compressor",
    "algorithms.shadowheart_sgd(SGD, compressors.identity, 2, [2, 0], 2)": "send = 0; expected",
    "algorithms.shadowheart_sgd(SGD, compressors.identity, 2, 2, 2, 0)": "budget = 0; expected",
    "algorithms.vecna_sgd(SGD, 0, 1.5)": "vecna_sgd: trials = 0; expected",
    "algorithms.asynchronous_diloco(SGD, 2, share=2.0)": "_diloco: share = 2.0; expected",
    "algorithms.fed_async(SGD, 2, 1.5)": "fed_async: mixing = 1.5; expected a number in (0, 1]",
    "algorithms.fed_async(SGD, 2, hinge=(0, 4))": "fed_async: hinge[0] = 0; expected a number in",
    "algorithms.fed_buff(SGD, 2, 3, concurrency=0)": "fed_buff: concurrency = 0; expected",
    "algorithms.fed_buff(SGD, 2, 0)": "fed_buff: buffer = 0; expected",
    "algorithms.fed_buff(SGD, [2, 0], 3)": "fed_buff: steps of local runs = 0; expected",
    "algorithms.q_fed_avg(SGD, 2, -0.5)": "q_fed_avg: q = -0.5; expected a number in [0, inf)",
    "algorithms.ditto(SGD, 2, -0.5)": "ditto: penalty = -0.5; expected a number in [0, inf)",
    "algorithms.apfl(SGD, 2, 1.5)": "apfl: mixture = 1.5; expected a number in [0, 1]",
    "algorithms.fed_per(SGD, 2, None)": "fed_per: local = None; expected which leaves stay",
    "algorithms.fed_per(SGD, 2, {'head': 1})": "fed_per: local = {'head': 1}; expected a tree of",
    "algorithms.fed_rep(SGD, 2, 2, True)": "fed_rep: head_steps = 2 with period = 2; expected",
    "algorithms.scaffnew(SGD, 1.5)": "scaffnew: probability = 1.5; expected a number in (0, 1]",
    "algorithms.fetch_sgd(SGD, 0.1, 4, error='add')": "fetch_sgd: error = 'add'; expected 'zero'",
    "algorithms.fetch_sgd(SGD, 0.1, 4, momentum=1.0)": "fetch_sgd: momentum = 1.0; expected",
    "algorithms.sketched_sgd(SGD, 2.0, 4)": "sketched_sgd: fraction = 2.0; expected",
    "algorithms.diana(SGD, compressors.random_k(0.5), 2.0)": "diana: memory_step = 2.0; expected",
    "algorithms.diana(SGD, compressors.sign)": "diana: the compressor sign is biased; expected an",
    "algorithms.ef_bv(SGD, compressors.sign, gain=0)": "ef_bv: gain = 0; expected a number in (0",
    "algorithms.ef21_sgdm(SGD, compressors.sign, 0)": "ef21_sgdm: momentum_step = 0; expected",
    "algorithms.econtrol(SGD, compressors.sign, -1)": "econtrol: error_weight = -1; expected",
    "algorithms.mime(SGD, 0)": "mime: period = 0",
    "algorithms.distributed_lion(SGD, 'sum')": "distributed_lion: aggregate = 'sum'; expected",
    "algorithms.fed_adam(SGD, 2, 0.1, epsilon=0)": "fed_adam: epsilon = 0; expected",
    "algorithms.choco_sgd(SGD, ring, compressors.sign, None)": "choco_sgd: consensus_step = None",
    "algorithms.lead(SGD, ring, compressors.ternary, 2)": "lead: consensus_step = 2",
    "algorithms.motef(SGD, ring, compressors.sign, 0.1, 0)": "motef: momentum_step = 0",
    "compressors.qsgd(2, 'l1')": "qsgd: norm = 'l1'; expected 'l2' or 'linf'",
    "compressors.natural_dithering(2, 'l1')": "norm = 'l1'; expected 'l2' or 'linf'",
    "compressors.cast('float64')": "cast: dtype = 'float64'; expected one of float16, bfloat16",
    "compressors.cast('float16', 'row')": "scale = 'row'; expected 'none', 'largest' or 'power'",
    "algorithms.deepsqueeze(SGD, ring, compressors.top_k, 0.1)": "compressor = the function top_k",
    "algorithms.asynchronous_sgd(SGD, delays.uniform)": "delays = the function uniform",
    "delays.given([0.0, 1.0])": "given: D = [0.0, 1.0]",
    "problems.load((np.zeros((20, 3)), np.zeros(20), 3))": "a name",
    "problems.finite_sum(linear, squared, np.eye(3))": "a pair (inputs, targets)",
    "problems.finite_sum(linear, squared, *three, test=three[0], metrics={'a': 3})": "metrics",
    "problems.finite_sum(problems.MLP, squared, *three, batch_size=1)": "model = the class MLP",
    "algorithms.kimad_sgd(SGD, kimad.top_k([0.1]), 1.0, too_small='stop')": "too_small = 'stop'",
    "kimad.budget('fast', 1.0)": "budget: up = 'fast'",
    "dropcompute.train_processes(problem, SGD, 'fast', 4, steps=2, key=key)": "threshold = 'fast'",
    "dropcompute.train_processes(problem, SGD, 1, 4, steps=2, key=key, correction='all')": "'all'",
    "dropcompute.threshold('slow', 0.5)": "threshold: latencies = 'slow'",
    "dropcompute.simulated_effect(cluster, 2, 3, 1.0, stop='after', rounds=4, key=key)": "'after'",
    "topologies.ring(4, 'lazy')": "ring: weights = 'lazy'",
    "topologies.ring(4, lambda adjacency: np.eye(3))": "(3, 3)",
    "topologies.ring(6, lambda adjacency: np.ones((6, 6)) / 6)": "does not send to",
    "dsgd.Topology('mine', None)": "mine: W: got a NoneType",
    "topologies.from_matrix(np.eye(1), role='both')": "from_matrix: role = 'both'; expected one of",
    "topologies.exponential(8).smallest_eigenvalue": "not symmetric",
    "topologies.exponential(6).mixing_time(1e-17)": "at least 1e-12",
    "workers.mesh('cpu')": "mesh: devices = 'cpu'",
    "workers.mesh([jax.devices()[0]] * 2)": "more than once",
    "network.cost('ring', 4, 1.0, 1.0)": "cost: pattern = 'ring'",
    "network.cost(network.gossip(topologies.exponential(16)), 4, 1.0, 1.0)": "16 workers",
    "problems.minibatch(4, 'no')": "minibatch: replacement = 'no'",
    "run(method, problem, steps=2, key=key, mesh=1, batches=[None] * 2)": "batch 0 = None",
    "problems.load((np.zeros((20, 3)), np.arange(20) % 2 + 0.9))": "entry 0.9",
    "problems.load(digits._replace(test_inputs=digits.test_inputs * np.nan))": "digits: test",
    "problems.load(digits._replace(train_targets=digits.train_targets + 0.9))": "digits: train",
    "dsgd.sweep(delays.constant, problem, steps=1, key=key, bound=[1])": "returned the Delays",
    "dsgd.sweep(delayed, problem, steps=1, key=key, bound=[1, -1])": "bound = -1",
    "dsgd.sweep(tuned, problem, steps=1, key=key, step=[0.5, 1.5])": "consensus_step = 1.5",
    "dsgd.sweep(tuned, problem, **steady)": (
        "sweep: cluster is a function of (value), but the grids are step"
    ),
    "dsgd.sweep(tuned, problem, **steady, value=[2.0], taped=True)": (
        "sweep: taped, with a function that returns clusters"
    ),
    "dsgd.sweep(tuned, problem, **steady, value=[2.0])": ("sweep: cluster returned"),
    "plots.curves(swept, band='deviation')": "curves: band = 'deviation'",
    "dsgd.frame(problem)": "a dsgd.Result, a dsgd.Sweep, a history",
    "swept.best(share=-1)": "share = -1",
    "-1.0 * clusters.exponential(1.0)": "factor",
    "clusters.exponential(1.0) + 1": "other",
    "clusters.constant([1, 2]) + clusters.constant([1, 2, 3])": "different numbers of workers",
    "clusters.Cluster(clusters.constant([1, 2]), up=clusters.constant([1, 2, 3]))": "different num",
    "clusters.Hardware('1 ms', 1e6)": "Hardware: latency = '1 ms'; expected a number",
    "clusters.Hardware(np.nan, 1e6)": "Hardware: latency = nan; expected a finite number >= 0",
    "clusters.Hardware(0.0, 0)": "Hardware: bandwidth = 0",
    "clusters.Hardware(0.0, 1e39)": "float32",
    "clusters.Hardware(0.0, 1e6, compute=None)": "Hardware: compute = None; expected a number",
    "clusters.Hardware(0.0, 1e6, groups=[3])": "Hardware: groups = [3]; expected",
    "clusters.Hardware(0.0, 1e6).kinds()": "kinds: workers = None; expected an integer",
    "clusters.Hardware(0.0, 1e6, groups=(clusters.Group(3),)).kinds(4)": "the groups have 3",
    "clusters.Group(0)": "Group: workers = 0; expected an integer, at least 1",
    "clusters.Group(2, memory=0.0)": "Group: memory = 0.0; expected a finite number > 0",
    "problems.quadratic(np.ones((4, 4)), np.ones((4, 3)))": "A has shape (4, 4), b (4, 3)",
    "problems.quadratic(np.eye(3), np.ones(3))": "b (3,)",
    "problems.quadratic([np.eye(3) + np.eye(3, k=1)], np.ones((1, 3)))": "A[0] is not symmetric",
    "problems.quadratic(np.full((2, 3), np.nan), np.ones((2, 3)))": "not finite",
    "problems.quadratic(-np.ones((2, 3)), np.ones((2, 3)))": "eigenvalue -",
    "problems.quadratic(np.ones((2, 3)) * [1, 0, 1], np.ones((2, 3)))": "eigenvalue 0",
    "problems.quadratic(np.ones((2, 3)), np.ones((2, 3)), noise=np.inf)": "noise = inf",
    "problems.quadratic(np.ones((2, 3)), np.ones((2, 3)), start=[0.0] * 4)": "start has shape (4,)",
    "problems.random_quadratic(3, 3, strong_convexity=2.0, smoothness=1.0)": "smoothness = 1.0",
    "problems.random_quadratic(1, 3, heterogeneity=1.0)": "heterogeneity = 1.0 with 1 workers",
    "problems.random_quadratic(3, 1, strong_convexity=0.1, smoothness=1.0)": "dimension 1",
    "problems.random_quadratic(3, 2, spectrum=[1.0, -2.0])": "expected numbers in (0, 1e+30]",
    "problems.random_quadratic(3, 2, spectrum=[1.0] * 3)": "3 eigenvalues in dimension 2",
    "problems.random_quadratic(3, 2, spectrum=[1.0, 2.0], smoothness=2.0)": "only the spectrum",
    "problems.random_quadratic(3, 2, distance=-2.0)": "distance = -2.0",
    "problems.random_linear_regression(3, np.ones((2, 4)))": "expected [d] or [3, d]",
    "problems.random_linear_regression(3, [1.0, 0.0])": "expected numbers in (0, 1e+30]",
    "problems.random_linear_regression(3, np.ones(40))": "samples = 32 for 40 eigenvalues",
    "problems.random_linear_regression(1, [2.0])": "heterogeneity = 1.0 with one worker",
    "problems.split(np.arange(20) % 3, 4, 'blocks', remainder='first')": "remainder = 'first'",
    "problems.split(np.arange(20) % 3, 4, 'sorted')": "'sorted'",
    "problems.split(np.arange(20) % 3, 4, 'dirichlet', alpha=np.inf)": "alpha = inf",
    "problems.split([0, 1, 0], 5, 'by-label')": "worker 3 without samples",
    "problems.split(np.arange(20) % 3, 4, 'iid', alpha=0.3)": "the partition 'iid', which does not",
    "problems.split(np.arange(20) % 3, 4, 'classes', classes=4)": "expected 1 to 3",
    "problems.split(np.arange(20) % 7, 3, 'classes', classes=2)": "expected 3 to 7",
    "problems.split(np.arange(20) % 3, 4, 'shards', shards=6)": "but 20 samples",
    "problems.split(np.arange(20) % 3, 4, 'similarity', similarity=1.5)": "a number in [0, 1]",
    "problems.split([0, 1, 0], 5, 'dirichlet-sizes')": "without samples",
    "problems.by_user(np.ones((2, 3)))": "users = ",
    "problems.read_clients('missing.json')": "path = 'missing.json'",
    "problems.clients([4, 0], len)": "clients: sizes = [4, 0]",
    "problems.l1(-1.0)": "l1: penalty = -1.0",
    "problems.group_lasso(0.1, 'columns')": "group_lasso: groups = 'columns'",
    "problems.nonconvex(-2.0)": "nonconvex: penalty = -2.0",
    "problems.SmoothRegularizer(L1.value, 2.0, 3.0, 'r')": "strong_convexity = 3.0",
    "problems.regularized(problem, problems.nonconvex(2.0))": "is an argument of finite_sum",
    "problems.box(0.0, 1e300)": "box: bounds: got",
    "problems.box(1.0, 0.0)": "box: low = 1.0, high = 0.0; expected low <= high",
    "problems.regularized(problems.regularized(problem, L1), L1)": "expected a problem without one",
    "problems.regularized(problem, dsgd.Regularizer(abs, L1.prox, 'vector'))": "returns float32[2]",
    "problems.regularized(problem, dsgd.Regularizer(sum, lambda x, s: x[:1], 'short'))": "a tree",
    "work.local_batches([7, 1], batch_size=2, micro_batches=3)": "sizes = [7, 1]",
    "work.local_batches([1.5, 1], batch_size=2)": "sizes = float64[2]",
    "work.local_batches([0, 0], batch_size=2)": "sizes: ",
    "work.local_batches([1], batch_size=1, average='all')": "average = 'all'",
    "work.local_batches([9, 1], batch_size=9, present=np.ones(3, bool))": "present = bool[3]",
    "work.micro_batches([[1, 0]])": "counted = int64[1, 2]",
    "work.weighted([[-1.0, 2.0]])": "weights -1 to 2",
    "work.weighted([[0.0]])": "weights: ",
    "network.simulate([Message(0, 1)], 1, 1, receive=[0, 1, np.nan])": "receive of worker 2 = nan",
    "network.simulate([Message(0, 1, np.inf)], 1, 1)": "message 0: size = inf",
    "network.simulate([Message(0, 1), Message(0, -1)], 1, 1)": "message 1 is to worker -1",
    "network.simulate([Message(3, 0)], 1, [1, 1, 1])": "message 0 is from worker 3",
    "network.simulate([Message(3, 3)], 1, 1)": "message 0 is from worker 3 to itself",
    "network.simulate([Message(0, 1, after=(1,))], 1, 1)": "message 0 comes after message 1",
    "network.simulate(chain([0]), 1, 1)": "messages 0 after 0",
    "network.simulate(chain([1], [0]), 1, 1)": "messages 0 after 1 after 0",
    "network.simulate(chain([], [0, 3], [1], [2]), 1, 1)": "messages 1 after 3 after 2 after 1",
    "network.simulate(chain([1, 2], [], [3], [1, 4], [2]), 1, 1)": "2 after 3 after 4 after 2",
    "dsgd.sweep(delayed, problem, steps=1, key=key)": "sweep: no grid given",
    "dsgd.sweep(delayed, problem, steps=1, key=key, bound=[])": "expected a non-empty sequence",
    "dsgd.sweep(delayed, problem, steps=1, key=key, bound=[1.0, np.nan])": "finite",
    "dsgd.sweep(delayed, problem, steps=1, key=key, bound=[True])": "expected numbers",
    "dsgd.sweep(delayed, problem, steps=1, key=key, bound=[1, 2**32])": "out of range for int32",
    "dsgd.sweep(delayed, problem, steps=1, key=key, bound=[1.0, 1e300])": "range for float32",
    "dsgd.Candidate('x', algorithms.local_sgd, ('H',))": "arguments ['H'] and grids of []",
    "dsgd.Candidate('x', algorithms.local_sgd, (), {'H': (1, 2)})": "[] and grids of ['H']",
    "dsgd.Candidate('x', algorithms.dgd, learning_rates=[])": "grid learning_rates = []",
    "dsgd.Candidate('x', algorithms.dgd, optimizer=lambda: 0)": "Candidate: optimizer = ",
    "compressors.buckets(compressors.low_rank(1), 4)": "without warm start",
    "compressors.induced(compressors.low_rank(1), compressors.natural)": "without warm start",
    "compressors.induced(compressors.natural, SIGN)": "sign is biased; expected an unbiased",
    "compressors.repeated(SIGN, 0)": "repeated(sign, 0): times = 0",
    "compressors.repeated(compressors.low_rank(1), 2)": "without warm start",
    "compressors.contraction(SIGN)": "unbiased compressor with an omega",
    "compressors.contraction(compressors.random_k(0.5, SIGN))": "unbiased compressor with an",
    "compressors.apply(SIGN, key, {'b': np.float32([1, np.nan])})": "['b']: element 1 is nan (1",
    "compressors.apply(compressors.whole_model(SIGN), key, [jnp.ones(3), jnp.arange(3)])": "[1]",
    "compressors.low_rank(3).compress(key, jnp.ones(4))": "low_rank(3) of 4 elements as a 2 x 2",
    "compressors.low_rank(3, 5).compress(key, jnp.ones(7))": "of 7 elements as a 2 x 5 matrix",
    "compressors.eden(0.5)": "eden: bits = 0.5; expected a number in [1, 4]",
    "compressors.rotated(SIGN, 0)": "rounds = 0",
    "compressors.rotated(compressors.low_rank(1))": "without warm start",
    "compressors.cast('bfloat16', 'power')": "scale = 'power' for bfloat16; expected 'none'",
    "compressors.cast('float4_e2m1fn', 'none')": "scale = 'none' for float4_e2m1fn; expected",
    "compressors.cast('float16', 'none', stochastic=True)": "scale = 'none' for stochastic float16",
}


def good_call(function: Callable) -> dict[str, Any]:
    """Returns the function's arguments: defaults, valid values by name, and those of `GOOD`."""
    parameters = inspect.signature(function).parameters
    known = {
        name: each.default for name, each in parameters.items() if each.default is not each.empty
    }
    by_name = {name: BY_NAME[name] for name in parameters.keys() - known if name in BY_NAME}
    given = known | by_name | GOOD.get(function, {})
    return {name: given[name] for name in (*parameters, *given) if name in given}


def public() -> Iterator[Callable]:
    """Yields the functions of all packages, and `workers.mesh` (other functions of `workers` are
    called inside compiled code).
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
    """Returns the errors that the calls of `MESSAGES` raise, with their types."""
    ring = topologies.ring(2)
    given = {
        "problem": problems.random_quadratic(2, 2),
        "method": METHOD,
        "linear": MODEL,
        "squared": optax.squared_error,
        "three": ((np.eye(3), np.ones(3)), 1),
    }
    given |= {
        "digits": problems.load("digits"),
        "swept": SWEEP,
        "key": KEY,
        "ring": ring,
        "cluster": clusters.Cluster(SECONDS),
        "L1": problems.l1(0.1),
        "Message": network.Message,
        "chain": lambda *after: [network.Message(0, 1, after=tuple(each)) for each in after],
    }
    given |= {
        "run": dsgd.run,
        "delayed": lambda bound: algorithms.asynchronous_sgd(SGD, delays.constant(bound)),
        "tuned": lambda step: algorithms.choco_sgd(SGD, ring, SIGN, step),
        "steady": {"steps": 1, "key": KEY, "step": [0.5], "cluster": clusters.constant},
    }
    raised = dict.fromkeys(MESSAGES, "nothing raised")
    for case in MESSAGES:
        try:
            eval(case, globals() | given)
        except Exception as error:
            raised[case] = f"{type(error).__name__}: {error}"
    return raised


def other_types(value: Any) -> dict[str, Any]:
    """Returns the value with its arrays in other types, and inside a transformation."""
    leaves = jax.tree.leaves(value)
    numeric = all(isinstance(leaf, np.ndarray | jax.Array | float | int) for leaf in leaves)
    if not leaves or not numeric or any(map(randomness.may_be_key, leaves)):
        return {}

    def numpys(change: Callable) -> Any:
        return jax.tree.map(lambda leaf: change(np.asarray(leaf)) if np.ndim(leaf) else leaf, value)

    return {
        "its own, traced": Traced(jax.make_jaxpr, value),
        "its own, big-endian": numpys(lambda leaf: leaf.astype(leaf.dtype.newbyteorder(">"))),
        "its own, strided": numpys(lambda leaf: np.repeat(leaf, 2, axis=-1)[..., ::2]),
    }


@cache
def names() -> set[str]:
    """Returns the names of all public functions."""
    return {function.__name__ for function in (*GOOD, *public())}


def _first_word(error: Exception) -> str:
    """Returns the name, without modules and classes, with which a message begins."""
    return (re.match(r"[\w.]+(?=: )", str(error)) or [""])[0].rpartition(".")[2]


def outcome(function: Callable, arguments: dict[str, Any], changed: str) -> str | None:
    """Returns the mistake in the outcome of the call; None if it succeeds, or raises a ValueError
    that names the function, the argument, or the file, and does not begin with the name of another
    public function. With unchanged arguments, the call must succeed.
    """
    if isinstance(traced := arguments.get(changed), Traced):
        found = []

        def call(value):
            found.append(outcome(function, {**arguments, changed: value}, changed))
            return value

        traced.transform(call)(traced.value)
        return found[0]
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
            and _first_word(error) not in names() - {function.__name__, *arguments}
        )
        return None if said else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def find_kept(calls: dict[Callable, dict[str, Any]]) -> dict[str, str]:
    """Returns the arguments of valid calls whose arrays or lists are part of the result."""
    found = {}
    for function, arguments in calls.items():
        for name, given in arguments.items():
            own = [given] if isinstance(given, np.ndarray) or array_likes.is_leaf(given) else []
            for array in map(np.array, (*own, *MUTABLE)):
                for value in (array.copy(), array.tolist()):
                    try:
                        result = function(**{**arguments, name: value})
                    except Exception:
                        continue
                    if any(_is_part(value, each) for each in reachable(result)):
                        case = f"{function.__module__}.{function.__qualname__}({name})"
                        found[case] = f"{type(value).__name__} {value}"
    return found


def _is_part(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) and isinstance(other, np.ndarray | jax.Array):
        try:
            return np.shares_memory(value, np.asarray(other))
        except TypeError:
            return False  # a random key
    return value is other


def reachable(result: Any) -> Iterator[Any]:
    """Yields all objects that an object refers to, without those of modules and classes."""
    seen, waiting = {}, [result]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or inspect.isclass(one) or inspect.ismodule(one):
            continue
        seen[id(one)] = one
        yield one
        if inspect.isfunction(one):
            waiting += [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]
        elif not isinstance(one, jax.Array):
            waiting += gc.get_referents(one)


def main(every: int) -> None:
    """Tries one random value of the pool in `every` for each argument."""
    fast_compile.trace_quickly()
    # Nothing is compiled or run.
    seen = dict.fromkeys(
        ("local_sqnorms", *(f"measured_{name}" for name in ("compute", "backward", "first", "up"))),
        np.ones((3, 4)),
    )
    seen |= dict.fromkeys(("loss", "global_sqnorm", "clock", "bits"), np.ones(3))

    def execute(job, *args):
        """Returns the result of a stage, or of no round at each point of a grid."""
        points = map(len, list(job.points.values())[:1])
        return dsgd.Result(
            job.start or (),
            seen if job.start else {"bits": np.ones((*points, *job.keys.shape, 1))},
            (),
        )

    measured = epochs.EpochMeasurements(
        1.0, *4 * [np.ones((2, 1))], np.ones((2, 1)), np.ones(2), {}
    )
    for owner, name, stub in (  # a stub of a name that is gone raises an error
        (chunks, "execute", execute),
        (driver, "programs", mock.MagicMock()),
        (tasks, "completed", lambda where, function, items, **options: enumerate(items)),
        (reports, "render_curves", lambda lines: ""),
        (reports, "render_page", lambda title, body: ""),
        (planner, "_rank_candidates", lambda *args: None),
        (tuning, "search", lambda *args: None),
        (local_processes, "_results", lambda *args: []),
        (processes, "_run", lambda *args: []),
        (gossip, "_train", lambda *args: []),
        (with_servers, "_train", lambda *args: []),
        (nodes._Node, "epoch", lambda *args: measured),
    ):
        mock.patch.object(owner, name, stub).start()
    warnings.simplefilter("error")
    calls = {function: good_call(function) for function in (*GOOD, *public())}
    good = {
        f"{function.__module__}.{function.__qualname__}": outcome(function, arguments, "")
        for function, arguments in calls.items()
    }
    shared = find_kept(calls)
    drawn, escaped, first = 0, {}, itertools.count()
    for function, arguments in calls.items():
        outcomes: dict[str, str | None] = {}

        def inside(function=function, arguments=arguments, outcomes=outcomes):
            outcomes["inside jit"] = outcome(function, arguments, function.__name__)

        if next(first) % every == 0:
            jax.eval_shape(inside)
        for name in sorted(arguments.keys() - {"self"}):
            wrong_values = POOL | other_types(arguments[name])
            for shown, value in list(wrong_values.items())[next(first) % every :: every]:
                outcomes[f"{name}={shown}"] = outcome(function, {**arguments, name: value}, name)
        drawn += len(outcomes)
        escaped |= {
            f"{function.__module__}.{function.__qualname__}({call})": wrong
            for call, wrong in outcomes.items()
            if wrong
        }
    found = {
        "good": {name: wrong for name, wrong in good.items() if wrong},
        "kept": shared,
        "drawn": drawn,
        "escaped": escaped,
    }
    print(json.dumps(found | {"messages": messages()}))


if __name__ == "__main__":
    main(int(sys.argv[-1]))
