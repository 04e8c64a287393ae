"""Files appear completely or not at all, and contain every digit."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from dsgd import records


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_replacing_shows_the_old_file_until_the_new_one_is_whole(tmp_path):
    """It creates the folder, and leaves only the file in it."""
    path = tmp_path / "a" / "b" / "table.csv"
    for old, new in (
        (None, "old, and longer than the new"),
        ("old, and longer than the new", "new"),
    ):
        with records.replacing(path) as temporary:
            temporary.write_text(new)
            assert temporary.suffix == ".csv"
            assert (path.read_text() if path.exists() else None) == old
        assert path.read_text() == new
        assert names(path.parent) == ["table.csv"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", ["old", None])
def test_replacing_changes_nothing_if_the_block_fails(tmp_path, error, before):
    path = tmp_path / "table.csv"
    if before:
        path.write_text(before)

    def fail():
        with records.replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == (["table.csv"] if before else [])
    assert not before or path.read_text() == before


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_quote_special_characters(tmp_path):
    path = tmp_path / "table.csv"
    records.write_rows(path, ["name", "value"], [['dsgd, "ring"', 0.1], ["two\nlines", None]])
    assert read(path) == [
        {"name": 'dsgd, "ring"', "value": "0.1"},
        {"name": "two\nlines", "value": ""},
    ]


def test_written_histories_are_read(tmp_path):
    draw = np.random.default_rng(0)
    histories = {
        method: {
            "step": 5 * np.arange(records),
            "loss": draw.normal(size=(seeds, records)),
            "samples": draw.integers(9, size=(seeds, records, 2)),
            "evaluated": np.ones((seeds, records), bool),
        }
        for method, seeds, records in (("a, b", 2, 3), ("c", 1, 4))
    }
    histories["c"]["own"] = np.full((1, 4), 0.5)
    records.write_histories(tmp_path / "history.csv", histories)
    found = records.read_histories(tmp_path / "history.csv")
    for method, expected in histories.items():
        workers = {f"samples[{i}]": expected["samples"][..., i] for i in range(2)}
        kept = {k: v for k, v in expected.items() if k not in ("samples", "evaluated")}
        np.testing.assert_equal(found[method], {**kept, **workers})
