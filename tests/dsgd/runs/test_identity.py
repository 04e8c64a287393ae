"""Fingerprints of runs depend on all values, types, shapes and names; differences are reported by
name.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsgd.runs import identity

TREE = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": (np.int32(5), np.zeros(0))}


def changed(**parts: Any) -> dict[str, Any]:
    return {**TREE, **parts}


OTHERS = {
    "a value": changed(a=TREE["a"] + np.float32(1e-6)),
    "a value far in": changed(
        a=np.where(np.arange(6).reshape(2, 3) == 5, 7, TREE["a"]).astype(np.float32)
    ),
    "a scalar": changed(b=(np.int32(6), np.zeros(0))),
    "a type": changed(b=(np.int64(5), np.zeros(0))),
    "a type of the same bytes": changed(a=TREE["a"].view(np.int32)),
    "a shape": changed(a=TREE["a"].reshape(3, 2)),
    "a shape without elements": changed(b=(np.int32(5), np.zeros((0, 2)))),
    "a name": {"aa": TREE["a"], "b": TREE["b"]},
    "names that are exchanged": {"a": TREE["b"], "b": TREE["a"]},
    "a leaf less": {"a": TREE["a"], "b": (np.int32(5),)},
    "the sign of 0": changed(a=np.where(TREE["a"] == 0, np.float32(-0.0), TREE["a"])),
    "rows in another order": changed(a=TREE["a"][::-1]),
    "columns in another order": changed(a=TREE["a"][:, ::-1]),
}


def test_equal_trees_have_one_digest_wherever_they_are():
    assert identity.digest(TREE) == identity.digest(jax.tree.map(np.copy, TREE))
    small = {"a": TREE["a"], "b": np.int32(5)}
    assert identity.digest(small) == identity.digest(jax.tree.map(jnp.asarray, small))
    assert identity.digest(changed(a=np.asfortranarray(TREE["a"]))) == identity.digest(TREE)


@pytest.mark.parametrize("what", OTHERS)
def test_a_digest_is_of_names_types_shapes_and_all_values(what):
    assert identity.digest(OTHERS[what]) != identity.digest(TREE)


def test_a_digest_is_of_further_words_too():
    assert len({identity.digest(TREE, words) for words in ("", "a", "b")}) == 3
    assert identity.digest(TREE, "a") == identity.digest(TREE, "a")


def test_a_digest_of_keys_is_of_their_data():
    found = [
        identity.digest(each)
        for each in (jax.random.key(0), jax.random.key(1), jax.random.split(jax.random.key(0)))
    ]
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    "what",
    ["a value", "a value far in", "a name", "a type of the same bytes", "rows in another order"],
)
def test_digests_of_the_workers_data_are_row_by_row(what):
    """Of both workers, each by itself."""
    data = {"a": TREE["a"]}
    other = {name: leaf for name, leaf in OTHERS[what].items() if name != "b"}
    assert identity._rows_digest(data) == identity._rows_digest({"a": TREE["a"].copy()})
    assert identity._rows_digest(other) != identity._rows_digest(data)


RUN = {"method": "m", "workers": "4", "jax": "1", "platform": "cpu", identity.PROGRAM: "p"}


@pytest.mark.parametrize(
    ("here", "reported"),
    [
        ({}, ""),
        ({"workers": "8"}, "workers = 4 in the checkpoint, 8 in this run"),
        (
            {"workers": "8", "method": "n"},
            "method = m in the checkpoint, n in this run; workers = 4 in the checkpoint, 8 in this run",
        ),
        ({"jax": "2"}, ""),  # which lowers it to the same program
        ({"platform": "gpu"}, ""),
        ({"jax": "2", identity.PROGRAM: "q"}, "jax = 1 in the checkpoint, 2 in this run"),
        ({"jax": "2", "workers": "8"}, "workers = 4 in the checkpoint, 8 in this run"),
        (
            {identity.PROGRAM: "q"},
            "the compiled programs differ: another hyperparameter, schedule, topology, loss or "
            "version of the code",
        ),
        ({identity.PROGRAM: "q", "workers": "8"}, "workers = 4 in the checkpoint, 8 in this run"),
        ({"seeds": "3"}, "seeds = None in the checkpoint, 3 in this run"),
    ],
)
def test_differences_are_reported_by_name(here, reported):
    assert identity.differences(RUN, {**RUN, **here}) == reported
    elsewhere = reported.replace("in the checkpoint", "in process 0").replace(
        "in this run", "in process 1"
    )
    assert identity.differences(RUN, {**RUN, **here}, ("in process 0", "in process 1")) == elsewhere


def test_processes_with_another_configuration_are_refused_by_what_differs(monkeypatch):
    from dsgd.runs.identity import agreement, json

    def others(*runs):
        monkeypatch.setattr(
            agreement, "exchange", lambda what, words: [json.dumps(each) for each in runs]
        )

    others(RUN, RUN, RUN)
    identity.need_same(RUN)
    others(RUN, RUN, {**RUN, "workers": "8"})
    with pytest.raises(
        ValueError,
        match=r"workers = 4 in process 0, 8 in process 2\); expected the same call in every process",
    ):
        identity.need_same(RUN)
    others(RUN, {**RUN, identity.PROGRAM: "q"})
    with pytest.raises(ValueError, match="the compiled programs differ"):
        identity.need_same(RUN)
