"""`python -m experiments.slow_links` with a tiny budget: its files, its tables, and the seconds on
its links, which are those of a simulated cluster.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scripts

import dsgd
from dsgd import clusters, problems
from experiments import slow_links
from experiments.shared import studies

METHODS = ("minibatch_sgd, AdamW", "streaming_diloco")


def arguments(**options) -> slow_links.Args:
    return slow_links.Args(
        **{
            "text": "grammar",
            "workers": 4,
            "batch_size": 1,
            "steps": 16,
            "period": 8,
            "fragments": 2,
            "learning_rates": (1e-3, 1e-2),
            "outer_rates": (0.4,),
            "seeds": 1,
            "progress": False,
            **options,
        }
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """Two of the methods, so that few programs are compiled."""
    args = arguments(out=tmp_path_factory.mktemp("slow_links"))
    make = slow_links.make_cases
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            slow_links, "make_cases", lambda *given: {name: make(*given)[name] for name in METHODS}
        )
        patch.setitem(slow_links.MODELS, "small", slow_links.Size(8, 8, 1, 2, 16))
        scripts.ran(slow_links.main, args)
    return args


def test_it_writes_a_history_of_each_method_at_its_best_rates(ran):
    rows = scripts.rows(ran.out / "history.csv")
    assert {row["method"] for row in rows} == set(METHODS)
    assert {row["step"] for row in rows} == {"0", "8", "16"}
    # the grid is 1e-3 and 1e-2, extended by its ratio
    powers = np.log10([float(row["learning_rate"]) for row in rows])
    np.testing.assert_allclose(powers, np.round(powers), atol=1e-6)
    assert {row["outer_rate"] for row in rows if row["method"] == METHODS[1]} == {"0.4"}
    assert (ran.out / "figure.png").exists()


@pytest.mark.parametrize("name", [METHODS[1], "powersgd"])
def test_seconds_on_links_are_those_of_a_simulated_cluster(name, long):
    """Messages that take longer than the computation that hides them, and one exchange after the
    other.
    """
    args = arguments(workers=2, bandwidths=(2e5,), compute=0.01, rank=1)
    problem = problems.neural_network("mlp", "digits", args.workers, batch_size=1)
    case = slow_links.make_cases(args, problem)[name]
    rates = studies.candidates(args, case)
    method = case.build(**{rate: values[0] for rate, values in rates.items()})
    history = dsgd.run(
        method,
        problem,
        steps=args.steps,
        record_every=args.period,
        key=jax.random.key(0),
        seeds=1,
        mesh=1,
        cluster=clusters.Cluster(
            clusters.constant(args.compute), up=clusters.constant(2e5), latency=args.latency
        ),
    ).history
    seconds = slow_links.seconds_on_link(method, problem, history, args.compute, args.latency, 2e5)
    assert seconds[-1] > 1.2 * args.steps * args.compute, "the workers wait for messages"
    np.testing.assert_allclose(seconds, history["clock"][0], rtol=2e-3)


def test_steps_that_are_no_multiple_of_the_period_are_an_error():
    with pytest.raises(ValueError, match="--steps 17: expected a multiple of --period 8"):
        slow_links.main(arguments(steps=17))
