"""Suggestions for names that do not exist."""

from __future__ import annotations

import pytest

import algorithms
import dsgd
import topologies
from dsgd import clusters, compressors, problems, spelling


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (algorithms.local_sgd, "H", "^local_sgd: .*'H'; did you mean period?"),
        (algorithms.local_sgd, "perod", "'perod'; did you mean period?"),
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


@pytest.mark.parametrize(
    ("package", "name", "suggested"),
    [
        (algorithms, "choco", "choco_sgd"),
        (algorithms, "sgp", "stochastic_gradient_push"),  # an alias in its facts
        (algorithms.kimad, "monitor", "Monitor"),
        (clusters, "log_normal", "lognormal"),
        (compressors, "topk", "top_k"),
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
