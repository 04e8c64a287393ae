"""`python -m experiments.federated` with a tiny budget: its files, its table and its clients."""

from __future__ import annotations

import numpy as np
import pytest
import scripts

from experiments import federated

METHODS = ("fed_dyn", "scaffold", "scaffnew_all")
ARGS = federated.Args(
    batch_size=100,
    clients=6,
    sampled=2,
    epochs=1,
    rounds=4,
    seeds=1,
    learning_rates=(0.1, 0.3),
    target=0.2,
    progress=False,
)
MODEL = 4_810  # elements of the model


@pytest.fixture(scope="module")
def ran(tmp_path_factory, long):
    """Three of the methods, one of each group; also the printed lines."""
    args = federated.Args(**vars(ARGS) | {"out": tmp_path_factory.mktemp("federated")})
    make = federated.make_cases
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            federated,
            "make_cases",
            lambda *given: {key: case for key, case in make(*given).items() if key[1] in METHODS},
        )
        lines = scripts.ran(federated.main, args)
    return args.out, lines


def test_clients_make_as_many_steps_as_their_epochs_need():
    clients = federated.make_clients(ARGS)
    sizes = 1_437 * np.array(clients.problem.weights) / ARGS.clients
    assert clients.steps.tolist() == [np.ceil(m / min(m, ARGS.batch_size)) for m in sizes.round()]
    assert len(set(clients.steps)) > 1, "the clients differ"
    assert clients.equal == np.ceil(clients.steps.mean())


def test_sampled_clients_send_and_receive_models_and_all_clients_those_of_scaffnew(ran):
    out, _ = ran
    rows = scripts.rows(out / "history.csv")
    sent = {
        name: np.diff([float(row["megabits"]) for row in rows if row["method"] == name])
        for name in METHODS
    }
    model = 2 * 32 * MODEL / 1e6  # of a client in a communication round
    assert sent["fed_dyn"] == pytest.approx(2 * model, rel=1e-3)
    assert sent["scaffold"] == pytest.approx(2 * 2 * model, rel=1e-3)
    averages = sent["scaffnew_all"] / (6 * model)
    assert averages == pytest.approx(averages.round(), rel=1e-3)
    assert averages.sum() > 0
