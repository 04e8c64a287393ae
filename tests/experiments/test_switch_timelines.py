"""The survey's timelines: printed, simulated, and drawn."""

from __future__ import annotations

from fractions import Fraction

import pytest
import scripts

from dsgd import network
from experiments import switch_timelines
from experiments.switch_timelines import Args

SETTINGS = [
    Args(),
    Args(convention="pipelined"),
    Args(workers=2, latency=0.1, transfer=0.7),
    Args(workers=3, latency=20.0, compute=0.0, convention="pipelined"),
    Args(workers=7, latency=0.0, slow=1.0),
    Args(workers=3, transfer=0.0),
]


@pytest.fixture(scope="module")
def timeline_run(tmp_path_factory):
    """The files of a run, its arguments and printed lines."""
    args = Args(workers=3, out=tmp_path_factory.mktemp("timelines"))
    return args, scripts.ran(switch_timelines.main, args)


def test_its_timeline_has_every_passage(timeline_run):
    args, _ = timeline_run
    passages: dict[str, list[tuple[str, ...]]] = {}
    for figure, *times in map(dict.values, scripts.rows(args.out / "timeline.csv")):
        passages.setdefault(figure, []).append(tuple(times))
    assert list(passages) == ["1.3", "1.4", "1.6", "1.7", "3.4", "3.5", "4.1", "4.2", "5.2", "5.3"]
    third = ("worker 3", "worker 1", "6.0", "6.0", "12.5", "19.0", "12.5", "19.0")
    assert passages["1.3"][-1] == third
    assert max(float(computing) for _, _, computing, *_ in passages["4.2"]) < 92
    receivers = {receiver for _, receiver, *_ in passages["1.6"]}
    assert receivers == {"worker 1", "worker 2", "worker 3", "server"}


def test_its_costs_are_those_printed_in_the_survey(timeline_run):
    args, lines = timeline_run
    cells = {
        tuple(row.values())[:2]: list(row.values())[2:]
        for row in scripts.rows(args.out / "costs.csv")
    }
    assert cells["1.3", "three messages"] == ["1 + 2(l + r)", "14", "14", "12.5"]
    assert cells["1.4", "2x compressed"] == ["1 + 2(l + r/2)", "9", "9", "7.5"]
    assert cells["1.4", "speedup"] == ["their ratio", "1.556", "1.556", "1.667"]
    assert cells["1.6", "parameter server"] == ["2N(l + r)", "39", "39", "33"]
    assert not any("≠" in line for line in lines)
    pictures = {row["fig."]: row["messages"] for row in scripts.rows(args.out / "pictures.csv")}
    assert pictures["4.2"] == "asynchronous server: 11 updates, staleness up to 4"


@pytest.mark.parametrize("args", SETTINGS, ids=str)
def test_every_formula_agrees_with_the_simulation(args):
    rows = switch_timelines.rows(args)
    assert len(rows) == 10
    for row in rows:
        assert list(row.closed) == list(row.simulated), row.what


def test_staleness_by_hand():
    """Messages take no time, workers 2 and 5: updates at 2, 4, 5, 6, 8, 10, 10."""
    messages = network.asynchronous_server_messages([[2] * 5, [5] * 2])
    passages = network.simulate(messages, 0, 0).passages
    assert switch_timelines.staleness(passages, server=2, end=Fraction(9)) == [0, 0, 2, 1, 0]
