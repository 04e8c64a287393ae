"""`python -m experiments.compression` with a tiny budget, and the break-even of compression."""

from __future__ import annotations

import pytest
import scripts

from dsgd import compressors
from experiments import compression
from experiments.survey import break_even


@pytest.fixture(scope="module")
def compression_run(tmp_path_factory, long):
    args = compression.Args(
        models=("logistic",),
        partitions=("by-label",),
        compressors=("identity", "sign"),
        workers=4,
        steps=60,
        seeds=2,
        learning_rates=(0.1, 1.0),
        sizes=(1000,),
        frontier=("identity", "sign", "random_k(0.1)"),
        megabits=1.0,
        out=tmp_path_factory.mktemp("compression"),
        progress=False,
    )
    scripts.ran(compression.main, args)
    return args


def test_it_writes_its_histories_break_even_and_figures(compression_run):
    args = compression_run
    assert scripts.figures(args.out) == {"figure", "frontier", "logistic-by-label"}
    pays = {
        (row["compressor"], int(row["dimension"])): float(row["bits_per_second"])
        for row in scripts.rows(args.out / "break_even.csv")
    }
    assert set(pays) == {(name, d) for name in args.compressors for d in (650, 1000)}
    assert pays["identity", 650] == 0 < pays["sign", 650]


def test_memory_makes_sign_learn(compression_run):
    """With data by label, the loss of sign without memory stays near ln 10, whereas all others
    decrease.
    """
    args = compression_run
    last = {
        row["method"]: float(row["loss"])
        for row in scripts.rows(args.out / "history.csv")
        if row["method"].startswith("logistic")
    }
    assert len(last) == 2 * len(args.compressors)
    with_memory, without = (
        last[f"logistic, by-label, sign, {memory}"]
        for memory in (compression.WITH, compression.WITHOUT)
    )
    assert with_memory < 0.5 * without


def test_unbiased_elements_diverge_with_error_memory_and_identity_has_the_same_loss_with_both(
    compression_run,
):
    """random_k without scaling is no contraction, which error memories and shifts of step 1 need;
    EF-BV scales it. Each worker sends 1 Mbit, in at most 2,000 rounds.
    """
    table = {row["compressor"]: row for row in scripts.rows(compression_run.out / "frontier.csv")}
    diverging = table["random_k(0.1)"]["diverges with"].split()
    assert diverging == ["ec_sgd", "ef21", "ef21_sgdm", "econtrol"]
    assert table["identity"]["diverges with"] == ""
    assert float(table["sign"]["best"]) < float(table["identity"]["best"])
    assert float(table["sign"]["no memory"]) > 3 * float(table["sign"]["best"])
    steps = {}
    for row in scripts.rows(compression_run.out / "history.csv"):
        steps[row["method"]] = int(row["step"])
    bits = {"identity": 650 * 32, "sign": 8 * -(-650 // 8) + 32, "random_k(0.1)": 65 * 32 + 656}
    for name, each in bits.items():
        assert steps[f"frontier, {name}, none"] == 1_000_000 // each


def test_at_break_even_the_saved_bits_take_as_long_as_the_codec(monkeypatch):
    """2(N - 1) messages of 125 floats compared with 125 bits and a float, if encoding takes a
    second.
    """
    monkeypatch.setattr(break_even, "codec_seconds", lambda *_: 1.0)
    assert break_even.bandwidth(compressors.sign, 8, 1000) == 2 * 7 * (32 * 125 - (128 + 32))
    assert break_even.bandwidth(compressors.identity, 8, 1000) == 0
    monkeypatch.setattr(break_even, "codec_seconds", lambda *_: -1e-9)
    assert break_even.bandwidth(compressors.sign, 8, 1000) == float("inf")
    shown = {
        bandwidth: break_even.megabits(bandwidth)
        for bandwidth in (0, 1234567, 999.4e6, 1.2345e9, 47123e6, 12345, float("inf"))
    }
    assert list(shown.values()) == ["-", "1.23", "999", "1,230", "47,100", "0.0123", "any"]
