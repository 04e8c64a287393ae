"""Every method's history, on clusters and where workers do not participate, as it was when it was recorded.

`reference_histories.json` has each case's history and final parameters. A case whose results are to change is deleted there, with the reason
in the commit message; `python -m tests.algorithms.test_reference_histories` then records all cases that the file does not have.

Bits and other integers are equal. Real numbers differ by rounding only: a sum of eight float32 terms in another order differs by about
5e-7 of its terms, and rounds of step size 0.1 add such errors up, but do not amplify them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import cannikin, delays, drop_compute, dropcompute, kimad, kimad_sgd, observed, unequal_work
from dsgd import clusters, compressors, problems, work

FILE = Path(__file__).with_name("reference_histories.json")
N, D, STEPS = 8, 13, 8
SGD, MOMENTUM, ADAM = optax.sgd(0.1), optax.sgd(0.1, momentum=0.5), optax.adam(0.05)
DRAW = np.random.default_rng(5)

# --- Problems.


@cache
def quadratic() -> dsgd.Problem:
    return problems.random_quadratic(N, D, heterogeneity=1.0, noise=0.5, seed=3)


@cache
def robust(replacement: Any = True) -> dsgd.Problem:
    """With batches of three samples of ten, in which the last of an epoch begins the next one."""
    return problems.robust_regression(N, 6, samples=10, batch_size=3, replacement=replacement, seed=2)


@cache
def classes() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 96)
    return rng.normal(size=(96, 5)) + labels[:, None], labels


@cache
def weighted() -> dsgd.Problem:
    """Workers with unequally many samples, and weights to match."""
    return problems.logistic_regression(classes(), N, "dirichlet", alpha=0.7, weights="samples", batch_size=4, l2=0.01)


@cache
def layers(replacement: Any = True) -> dsgd.Problem:
    """A network of two layers."""

    def init(key):
        first, second = jax.random.split(key)
        hidden = {"kernel": jax.random.normal(first, (5, 4)) / 2, "bias": jnp.zeros(4)}
        return {"hidden": hidden, "out": {"kernel": jax.random.normal(second, (4, 3)) / 2, "bias": jnp.zeros(3)}}

    def apply(params, inputs):
        hidden = jnp.tanh(inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"][None])
        return hidden @ params["out"]["kernel"] + params["out"]["bias"][None]

    loss = optax.softmax_cross_entropy_with_integer_labels
    return problems.finite_sum(problems.Model(init, apply), loss, classes(), N, batch_size=4, replacement=replacement)


# --- Clusters.

STEADY = clusters.Cluster(
    clusters.constant([1.0, 1.5, 0.7, 2.0, 1.1, 0.9, 1.3, 0.6]),
    up=clusters.constant([900.0, 500.0, 700.0, 800.0, 1000.0, 400.0, 650.0, 720.0]),
    down=clusters.constant([800.0, 520.0, 740.0, 870.0, 1100.0, 450.0, 750.0, 620.0]),
    latency=0.05,
)
PIPELINED = replace(STEADY, convention="pipelined")
CHANGING = clusters.Cluster(
    clusters.lognormal(-0.5, 0.4) + clusters.constant(0.2),
    up=clusters.trace(DRAW.integers(300, 1500, (N, 7)).astype(float), 0.5),
    down=clusters.sinusoid(600.0, 0.7, 300.0, noise=0.1),
    latency=0.03,
    overlap=clusters.Overlap(clusters.constant(0.3), clusters.constant(0.05), 0.25, 0.2),
)
NOISY = clusters.Cluster(
    clusters.constant(0.45) + clusters.exponential(0.225),
    up=clusters.constant(2e3),
    latency=0.01,
    per_sample=clusters.constant(0.02),
    micro_batches=3,
    noise=0.1,
)
HERE = DRAW.random((N, 11)) < 0.6
HERE[:, 4] = False
PARTLY = replace(STEADY, present=clusters.trace(HERE.astype(float), 1.7), delivered=clusters.bernoulli(0.8, 1.0))


def sampled(rounds: int) -> clusters.Cluster:
    """Five clients of eight, drawn again after so many rounds."""
    return replace(STEADY, present=clusters.sampled(5, of=N), present_for=rounds)


CLUSTERS: dict[str, clusters.Cluster | None] = {
    "no cluster": None,
    "blocking": STEADY,
    "pipelined": PIPELINED,
    "changing": CHANGING,
    "noisy": NOISY,
    "partly": PARTLY,
    "lossy": replace(PIPELINED, delivered=clusters.bernoulli(0.7, 1.0)),
    "sampled": sampled(1),
    "sampled for 2": sampled(2),
    "sampled for 4": sampled(4),
}
WITH_MEASUREMENTS = {"pipelined", "changing", "partly"}  # whose history has also what each worker sent, received and measured

# --- Cases.


class Case(NamedTuple):
    """A run, `run(mesh)` gives its history by name; `brief`: also without --long."""

    run: Callable[[int], dict[str, np.ndarray]]
    brief: bool = False


def results(history: Mapping[str, Any], params: Any) -> dict[str, np.ndarray]:
    parameters = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    return {**{name: np.asarray(history[name]) for name in sorted(history)}, "params": parameters}


def run(method: Callable[[], dsgd.Algorithm], problem: Callable[[], dsgd.Problem], cluster: str, mesh: int, **options: Any):
    given = {"steps": STEPS, "key": jax.random.key(1), "cluster": CLUSTERS[cluster], "mesh": mesh, **options}
    running = observed(method()) if cluster in WITH_MEASUREMENTS else method()
    found = dsgd.run(running, problem(), **given)
    return results(found.history, found.params)


def made(name: str) -> dsgd.Algorithm:
    return algorithms.make(name, MOMENTUM, N)


PERIODS = {"local-sgd": 4, "scaffold": 4}


def registered() -> dict[str, Case]:
    """Briefly, without a cluster and on one: where workers do not participate, if the method accepts that."""
    found = {}
    for name in algorithms.ALGORITHMS:
        refuses = REFERENCES.get(f"{name}, partly") == REFUSED
        for cluster in CLUSTERS:
            if cluster.startswith("sampled") and cluster != f"sampled for {PERIODS.get(name, 1)}".removesuffix(" for 1"):
                continue
            brief = cluster in ("no cluster", "partly") or (refuses and cluster in ("pipelined", "lossy"))
            found[f"{name}, {cluster}"] = Case(partial(run, partial(made, name), quadratic, cluster), brief)
    return found


REFUSED = {"refused": [1]}


def outcome(name: str, mesh: int = 1) -> dict[str, np.ndarray]:
    """Of the case; that it was refused where it raises a ValueError."""
    try:
        return CASES[name].run(mesh)
    except ValueError:
        return {"refused": np.array([True])}


REFERENCES: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}
CASES: dict[str, Case] = registered()

# --- Comparisons.

EXACT = ("bits", "step", "worker", "staleness", "samples", "measured_bits", "message", "missing", "refused", "batches", "rounds")
RELATIVE, ABSOLUTE = 1e-5, 1e-9  # the latter of differences between models that agree, which are rounding errors


def is_exact(key: str) -> bool:
    return key.startswith(EXACT)


def assert_same(found: Mapping[str, np.ndarray], reference: Mapping[str, Any]) -> None:
    assert sorted(found) == sorted(reference)
    for key, values in found.items():
        expected = np.array(reference[key], float)
        assert values.shape == expected.shape, key
        if is_exact(key):
            np.testing.assert_array_equal(values, expected, err_msg=key)
        else:
            largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0)
            np.testing.assert_allclose(values, expected, RELATIVE, RELATIVE * largest + ABSOLUTE, err_msg=key)


def marked(cases: Mapping[str, Case]) -> list[Any]:
    return [pytest.param(name, marks=() if case.brief else pytest.mark.long) for name, case in cases.items()]


@pytest.mark.parametrize("name", marked(CASES))
def test_a_history_is_the_recorded_one(name):
    assert_same(outcome(name), REFERENCES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_history_is_the_recorded_one_on_four_devices(name):
    if REFERENCES[name] != REFUSED:
        assert_same(outcome(name, 4), REFERENCES[name])


def test_each_record_is_of_a_case():
    assert list(REFERENCES) == list(CASES)


# --- Recording.


def rounded(value: float, key: str) -> float | int | None:
    if np.isnan(value):
        return None
    number = float(value) if is_exact(key) else float(f"{value:.7g}")
    return int(number) if number.is_integer() else number


def as_lists(values: np.ndarray, key: str) -> Any:
    return [as_lists(row, key) for row in values] if values.ndim else rounded(float(values), key)


def record() -> None:
    """Writes the file, in the order of the cases, one line for each array; cases that it has stay as they are."""
    texts = []
    for name in CASES:
        found = REFERENCES.get(name) or {key: as_lists(values, key) for key, values in outcome(name).items()}
        lines = [f"  {json.dumps(key)}: {json.dumps(values, separators=(',', ':'))}" for key, values in found.items()]
        texts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n")


if __name__ == "__main__":
    record()
