"""Fingerprints of runs depend on all values, types, shapes and names; differences are reported by
name.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.runs import fingerprint
from dsgd.runs.fingerprint import PROGRAM, agreement, json

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), (np.int32(5), np.zeros(0))
TREE = {"a": A, "b": B}
ROWS = {
    "a value": {"a": A + np.float32(1e-6)},
    "a value far in": {"a": np.where(A == 5, 7, A).astype(np.float32)},
    "a type of the same bytes": {"a": A.view(np.int32)},
    "a shape": {"a": A.reshape(3, 2)},
    "a name": {"aa": A},
    "the sign of 0": {"a": np.where(A == 0, np.float32(-0.0), A)},
    "rows in another order": {"a": A[::-1]},
    "columns in another order": {"a": A[:, ::-1]},
}
OTHERS = {what: rows | {"b": B} for what, rows in ROWS.items()} | {
    "a scalar": {"a": A, "b": (np.int32(6), B[1])},
    "a type": {"a": A, "b": (np.int64(5), B[1])},
    "a shape without elements": {"a": A, "b": (B[0], np.zeros((0, 2)))},
    "names that are exchanged": {"a": B, "b": A},
    "a leaf less": {"a": A, "b": B[:1]},
}


def test_equal_trees_have_one_digest_wherever_they_are():
    for same in (np.copy, jnp.asarray, np.asfortranarray):
        assert fingerprint.digest({"a": same(A), "b": B}) == fingerprint.digest(TREE)
        assert fingerprint._rows_digest({"a": same(A)}) == fingerprint._rows_digest({"a": A})


@pytest.mark.parametrize("what", OTHERS)
def test_a_digest_depends_on_names_types_shapes_and_all_values(what):
    """Also for the workers' data, which is read row by row."""
    assert fingerprint.digest(OTHERS[what]) != fingerprint.digest(TREE)
    if what in ROWS:
        assert fingerprint._rows_digest(ROWS[what]) != fingerprint._rows_digest({"a": A})


def test_a_digest_depends_on_extra_words_and_on_the_data_of_keys():
    assert len({fingerprint.digest(TREE, words) for words in ("", "a", "b")}) == 3
    keys = jax.random.key(0), jax.random.key(1), jax.random.split(jax.random.key(0))
    assert len({fingerprint.digest(key) for key in keys}) == 3


RUN = {"method": "m", "workers": "4", "jax": "1", "platform": "cpu", PROGRAM: "p"}
DIFFERENCES = [
    ({}, ""),
    ({"workers": "8"}, "workers = 4 in the checkpoint, 8 in this run"),
    (
        {"workers": "8", "method": "n"},
        "method = m in the checkpoint, n in this run; workers = 4 in the checkpoint, 8 in this run",
    ),
    ({"jax": "2"}, ""),  # this version lowers it to the same program
    ({"platform": "gpu"}, ""),
    ({"jax": "2", PROGRAM: "q"}, "jax = 1 in the checkpoint, 2 in this run"),
    ({"jax": "2", "workers": "8"}, "workers = 4 in the checkpoint, 8 in this run"),
    ({PROGRAM: "q"}, "the compiled programs differ: another hyperparameter"),
    ({PROGRAM: "q", "workers": "8"}, "workers = 4 in the checkpoint, 8 in this run"),
    ({"seeds": "3"}, "seeds = None in the checkpoint, 3 in this run"),
]


@pytest.mark.parametrize(("here", "reported"), DIFFERENCES)
def test_differences_are_reported_by_name(here, reported, monkeypatch):
    """Also between processes, all of which refuse to run."""
    found = fingerprint.differences(RUN, RUN | here)
    assert found.startswith(reported)
    assert bool(found) == bool(reported)
    runs = [json.dumps(each) for each in (RUN, RUN, RUN | here)]
    monkeypatch.setattr(agreement, "all_gather", lambda what, words: runs)
    if not reported:
        fingerprint.require_same(RUN)
        return
    elsewhere = reported.replace("in the checkpoint", "in process 0").replace(
        "in this run", "in process 2"
    )
    with pytest.raises(ValueError) as error:
        fingerprint.require_same(RUN)
    assert elsewhere in str(error.value)
