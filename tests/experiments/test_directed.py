"""`python -m experiments.directed` with a tiny budget: its files, its results, its graphs and its
problem.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scripts

from experiments import directed

METHODS = ("stochastic_gradient_push", "push_diging", "push_pull")


def arguments(**options) -> directed.Args:
    small = {"workers": 6, "degree": 2, "dimension": 3, "condition": 1.0, "progress": False}
    return directed.Args(**small, **options)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """Three of the methods, so that few programs are compiled."""
    out = tmp_path_factory.mktemp("directed")
    args = arguments(steps=160, seeds=2, learning_rates=(0.1, 0.2), target=1e-2, out=out)
    build = directed.make_methods
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            directed, "make_methods", lambda on: {name: build(on)[name] for name in METHODS}
        )
        scripts.ran(directed.main, args)
    return args


def test_only_stochastic_gradient_push_stalls(ran):
    rows = scripts.rows(ran.out / "costs.csv")
    assert len(rows) == 2 * len(METHODS)
    for row in rows:
        end = float(row[f"after {ran.steps}"])
        assert end > 1e-5 if row["method"] == METHODS[0] else end < 1e-10
        assert row["step size"] in ("*0.1", "*0.2")
        assert row["method"] == METHODS[0] or int(row["rounds"]) < ran.steps


@pytest.mark.parametrize("graph", [directed.FIXED, directed.CHANGING])
def test_graphs_of_one_comparison_send_as_many_messages(graph):
    push, pull, balanced = directed.make_graphs(directed.Args())[graph]
    assert push.same_links(pull)
    assert (push.out_degrees == balanced.out_degrees[0, 0]).all()
    assert (push.role, pull.role, balanced.doubly_stochastic) == ("gossip", "pull", True)
    assert np.ptp(push.in_degrees) > 0


def test_a_degree_of_all_workers_is_an_error():
    with pytest.raises(ValueError, match="degree = 6; expected an integer from 1 to n - 1"):
        directed.make_graphs(replace(arguments(), degree=6))
