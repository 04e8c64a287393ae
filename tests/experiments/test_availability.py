"""`python -m experiments.availability` with a tiny budget: its files and its tables."""

from __future__ import annotations

import pytest
import scripts

from experiments import availability

METHODS = ("local_sgd", "stochastic_gradient_push")


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """Two of the methods, so that few programs are compiled; also the printed lines."""
    out = tmp_path_factory.mktemp("availability")
    args = availability.Args(
        shares=(0.5, 1.0),
        workers=4,
        steps=24,
        seeds=1,
        learning_rates=(0.1, 0.3),
        out=out,
        progress=False,
    )
    build = availability.make_methods
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            availability,
            "make_methods",
            lambda *given: {name: build(*given)[name] for name in METHODS},
        )
        scripts.ran(availability.main, args)
    return args


def test_it_writes_a_history_for_each_share_and_a_figure(ran):
    rows = scripts.rows(ran.out / "history.csv")
    last = {(row["method"], row["seed"]): row for row in rows if row["step"] == "24"}
    assert len(last) == 2 * 2 * 2
    for name in METHODS:
        for seed in "0":
            whole, alike, away, lost = (
                {
                    key: float(last[f"{name}, {case}", seed][key])
                    for key in ("loss", "clock", "bits")
                }
                for case in ("present 1", "delivered 1", "present 0.5", "delivered 0.5")
            )
            assert whole == alike
            assert away["clock"] < whole["clock"], "the round does not wait for absent workers"
            assert away["bits"] < whole["bits"]
            assert lost["clock"] == pytest.approx(whole["clock"], rel=1e-5), (
                "who waits for a message that is lost waits as long"
            )
            assert (lost["bits"] < whole["bits"]) == (name == "stochastic_gradient_push"), (
                "lost messages are sent, and of an average only parts are lost"
            )
            assert len({whole["loss"], away["loss"], lost["loss"]}) == 3
