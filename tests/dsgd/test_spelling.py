"""Suggestions for names that do not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import registry
from dsgd import checks, clusters, compressors, plots, problems, spelling
from dsgd.base import Key


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (algorithms.local_sgd, "H", "^local_sgd: .*'H'; did you mean period?"),
        (algorithms.local_sgd, "perod", "'perod'; did you mean period?"),
        (algorithms.local_sgd, "lr", "did you mean optimizer?"),
        (algorithms.gradient_descent, "learning_rate", "did you mean optimizer?"),
        (algorithms.zero_one_adam, "eta", "did you mean step_size?"),
        (algorithms.dgd, "step_size", "did you mean optimizer?"),
        (algorithms.fed_avg, "local_epochs", "did you mean period?"),
        (algorithms.choco_sgd, "quantizer", "did you mean compressor?"),
        (algorithms.decentralized_sgd, "graph", "did you mean topology?"),
        (compressors.qsgd, "bits", "did you mean levels?"),
        (compressors.top_k, "ratio", "did you mean fraction?"),
        (dsgd.run, "seed", "did you mean key?"),
        (dsgd.run, "rounds", "did you mean steps?"),
        (dsgd.run, "iterations", "did you mean steps?"),
        (dsgd.run, "num_steps", "did you mean steps?"),
        (dsgd.run, "callback", "did you mean on_record?"),
        (dsgd.run, "log", "did you mean on_record?"),
        (dsgd.run, "log_every", "did you mean record_every or evaluate_every?"),
        (problems.logistic_regression, "n_workers", "did you mean workers?"),
        (problems.logistic_regression, "num_clients", "did you mean workers?"),
        (problems.logistic_regression, "weight_decay", "did you mean l2?"),
        (problems.finite_sum, "batch", "did you mean batch_size?"),
        (topologies.ring, "num_workers", "did you mean n?"),
        (algorithms.ditto, "proximal_mu", "did you mean penalty?"),
        (algorithms.fed_rep, "personal_layers", "did you mean local?"),
        (algorithms.power_of_choice, "clients_per_round", "did you mean m?"),
        (clusters.sampled, "cohort_size", "did you mean k?"),
        (compressors.qsgd, "Norm", "'Norm'; did you mean norm?"),
        (clusters.bernoulli, "chance", "'chance'; expected probability, value"),
    ],
)
def test_unknown_keywords_name_the_nearest_argument(function, argument, message):
    with pytest.raises(TypeError, match=message):
        function(**{argument: 4})


def test_a_synonym_comes_before_a_similar_name():
    assert spelling.suggest("H", ["h", "period"]) == "; did you mean period?"
    assert spelling.suggest("H", ["h"]) == "; did you mean h?"
    assert not spelling.suggest("H", ["topology"])
    assert spelling.suggest("bandwidth", ["compute", "up", "down"]) == "; did you mean up?"


@pytest.mark.parametrize(
    ("package", "name", "suggested"),
    [
        (algorithms, "choco", "choco_sgd"),
        (algorithms, "sgp", "stochastic_gradient_push"),  # an alias in its facts
        (algorithms, "EF", "error_compensated_sgd"),
        (algorithms.kimad, "monitor", "Monitor"),
        (clusters, "log_normal", "lognormal"),
        (algorithms, "FedAvg", "fed_avg"),
        (algorithms, "fedavg", "fed_avg"),
        (algorithms, "gt", "gradient_tracking"),
        (algorithms, "dsgd", "decentralized_sgd"),
        (algorithms, "qffl", "q_fed_avg"),
        (algorithms, "pow_d", "power_of_choice"),
        (clusters, "uniform_sampling", "sampled"),
        (clusters, "pps", "systematic"),
        (clusters, "diurnal", "square_wave"),
        (clusters, "two_state", "markov"),
        (problems, "load_leaf", "read_clients"),
        (compressors, "topk", "top_k"),
        (compressors, "randk", "random_k"),
        (topologies, "fully_connected", "complete"),
        (topologies, "path", "chain"),
        (dsgd, "sweeps_", "sweep"),
        (problems, "logistic", "logistic_regression"),
        (topologies, "Erdos_Reny", "erdos_renyi"),
    ],
)
def test_unknown_attributes_of_packages_suggest_a_public_name(package, name, suggested):
    with pytest.raises(
        AttributeError, match=rf"^module '{package.__name__}' .*mean {suggested}\?$"
    ):
        getattr(package, name)


def test_private_and_distant_names_are_not_suggested():
    for name in ("_choco_sgd", "nothing_like_it"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
            getattr(algorithms, name)


RING = topologies.ring(3)
HISTORY = {
    name: np.zeros(2) for name in ("step", "loss", "grad_sqnorm", "bits", "clock", "test_accuracy")
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "todense": (lambda: cast("Any", RING).todense(), "no attribute 'todense'; did you mean W?"),
    "lambda2": (lambda: cast("Any", RING).lambda2, "did you mean spectral_gap or rho?"),
    "adjacency": (lambda: cast("Any", RING).adjacency, "did you mean edges?"),
    "neighbors": (lambda: cast("Any", RING).neighbors, "did you mean links?"),
    "rounds": (lambda: plots.curves(HISTORY, x="rounds"), "x = 'rounds' .* did you mean step?"),
    "grad_norm": (lambda: plots.curves(HISTORY, y="grad_norm"), "did you mean grad_sqnorm?"),
    "accuracy": (lambda: plots.curves(HISTORY, y="accuracy"), "did you mean test_accuracy?"),
    "xscale": (lambda: cast("Any", plots.curves)(HISTORY, xscale="log"), "did you mean logx?"),
    "time": (lambda: plots.curves(HISTORY, x="time"), "did you mean clock?"),
    "noniid": (lambda: problems.split(np.arange(4), 2, "noniid"), "did you mean by-label?"),
    "scafold": (lambda: algorithms.make("scafold", optax.sgd(0.1), 3), "did you mean scaffold?"),
    "zzz": (
        lambda: algorithms.make("zzz", optax.sgd(0.1), 3),
        "'zzz'; expected one of .*choco_sgd",
    ),
    "optax.sgd": (lambda: algorithms.local_sgd(cast("Any", optax.sgd), 3), "the function sgd"),
    "sgd": (
        lambda: algorithms.local_sgd(cast("Any", lambda lr: optax.sgd(2 * lr)), 3),
        "optimizer =",
    ),
    "large key": (lambda: checks.require("run: key", 2**40, Key), "run: key = .* at most"),
    "negative key": (lambda: checks.require("run: key", -3, Key), "run: key = -3; .* at least 0"),
    "True": (lambda: checks.require("run: key", True, Key), "or an integer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_terms_of_the_field_are_answered_with_the_name(name):
    call, message = REFUSED[name]
    with pytest.raises((AttributeError, TypeError, ValueError), match=message):
        call()


METHODS = {
    "choco": "choco_sgd",
    "CHOCO-SGD": "choco_sgd",
    "EF": "error_compensated_sgd",
    "FedAvg": "fed_avg",
    "fedavg": "fed_avg",
    "LocalSGD": "local_sgd",
    "DSGD": "decentralized_sgd",
    "D-PSGD": "dgd",
    "gt": "gradient_tracking",
    "DGT": "gradient_tracking",
    "GT-HSGD": "gt_hsgd",
    "signSGD": "majority_vote",
    "dsgd-complete": "decentralized_sgd_complete",
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_their_other_names_in_any_spelling(name):
    assert registry.full_name(name) == METHODS[name]


def test_partitions_have_underscores_and_capitals():
    labels = np.array([1, 0, 2, 0, 1, 2])
    for name in ("by_label", "By-Label"):
        for mine, reference in zip(
            problems.split(labels, 3, name), problems.split(labels, 3, "by-label"), strict=True
        ):
            np.testing.assert_array_equal(mine, reference)


def test_integers_are_keys():
    for given in (7, np.int64(7), np.array(7)):
        key = checks.require("run: key", given, Key)
        assert jax.random.key_data(key).tolist() == [0, 7]
        assert jax.random.key_impl(key) == jax.random.key_impl(jax.random.key(0))


def test_learning_rates_stand_for_sgd():
    def change(optimizer: Any, count: int) -> float:
        made = checks.require("x: optimizer", optimizer, optax.GradientTransformation)
        states = made.init(2.0)
        for _ in range(count):
            _, states = made.update(np.float32(3.0), states)
        return float(made.update(np.float32(3.0), states)[0])

    assert change(0.5, 2) == change(optax.sgd(0.5), 2) == -1.5
    assert change(lambda k: 1 / (k + 2), 2) == -0.75
    traced = jax.eval_shape(lambda rate: algorithms.diloco(rate, 3, outer=rate).init(2.0, 2), 0.1)
    assert traced.step.shape == ()
