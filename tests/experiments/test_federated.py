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


def test_its_history_has_a_record_for_each_communication_round(ran):
    out, _ = ran
    rows = scripts.rows(out / "history.csv")
    assert [(row["method"], float(row["rounds"])) for row in rows] == [
        (name, number) for name in METHODS for number in range(ARGS.rounds + 1)
    ]
    assert not [name for name in rows[0] if name.startswith("samples")]
    assert all(float(row["test_accuracy"]) > 0.2 for row in rows if row["rounds"] == "4.0")


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


def test_its_table_has_a_group_for_each_way_to_count_local_steps(ran):
    out, lines = ran
    table = scripts.rows(out / "costs.csv")
    assert [row["method"].partition(":")[0] for row in table] == [
        "epochs",
        "fed_dyn",
        "equal",
        "scaffold",
        "all clients",
        "scaffnew_all",
    ]
    assert len(scripts.cells(lines)) == len(table)
    assert "…" not in "".join(lines), "no cell is cut"
    for row in table[1::2]:
        assert float(row["rounds to 20%"]) <= ARGS.rounds
        assert float(row["Mbit to 20%"]) > 0
    assert "α 0." in table[1]["parameters"]
    assert scripts.figures(out) == {"figure"}


def test_a_window_averages_the_records_so_far():
    values = np.arange(7.0)[None] ** 2
    expected = [[values[0, max(0, i + 1 - federated.WINDOW) : i + 1].mean() for i in range(7)]]
    np.testing.assert_allclose(federated.smooth(values), expected)
