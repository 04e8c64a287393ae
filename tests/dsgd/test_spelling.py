"""Suggestions for names that do not exist."""

from __future__ import annotations

import pytest

import algorithms
from dsgd import clusters, compressors, spelling


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
