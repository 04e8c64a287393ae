"""Files of clusters, damaged and hostile: one line with the file's name and what was expected."""

from __future__ import annotations

import json
import os
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from dsgd import clusters, records
from dsgd.clusters import Equal

GOOD = '{"kind": "dsgd cluster of equal workers", "latency": 1e-4, "bandwidth": 1e9}'


def with_latency(value: str) -> bytes:
    return GOOD.replace("1e-4", value).encode()


DAMAGED = {
    "a huge integer": (
        with_latency("1" + "0" * 400),
        "latency = an integer of 1329 bits; expected a number",
    ),
    "an integer of 5,001 digits": (
        with_latency("1" * 5001),
        "digits.*; expected each name once, with a finite number",
    ),
    "nested ten thousand deep": (b"[" * 10_000, "nested too deep"),
    "objects nested deep": (b'{"a":' * 100_000, "nested too deep"),
    "a name twice": (GOOD.replace("}", ', "latency": 2}').encode(), "'latency' occurs twice"),
    "NaN": (with_latency("NaN"), "NaN is not a JSON number"),
    "overflow": (with_latency("1e400"), "latency = inf; expected a finite number"),
    "UTF-16": (GOOD.encode("utf-16"), r"not UTF-8 text \(byte 0\)"),
    "nothing": (b"", "it is not JSON, in line 1, column 1"),
    "cut off": (GOOD[:-10].encode(), "it is not JSON, in line 1"),
    "a list": (b"[1, 2]", r"kind = \[1, 2\]; expected 'dsgd cluster"),
    "a text as a number": (with_latency('"1 ms"'), "latency = '1 ms'; expected a number"),
    "true": (with_latency("true"), "latency = True; expected a number"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line_with_its_name(damage, tmp_path):
    content, message = DAMAGED[damage]
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        clusters.load(path)
    assert str(raised.value).startswith(f"clusters.load: {path}: ")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400 + len(str(path))


def test_a_byte_order_mark_is_no_damage(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert clusters.load(path) == Equal(1e-4, 1e9)


@pytest.mark.parametrize(
    "function",
    [clusters.load, lambda path: clusters.save(path, Equal(0.0, 1.0))],
    ids=["load", "save"],
)
def test_paths_that_are_none_are_refused(function, tmp_path):
    for path in (tmp_path, tmp_path / ("x" * 300)):
        with pytest.raises(ValueError, match=r"it is not a file|cannot be (read|written) \("):
            function(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be (read|written) \("):
        function(tmp_path / "file" / "cluster.json")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is not a file; expected a JSON file"):
        clusters.load(tmp_path / "pipe")


@pytest.mark.parametrize("latency", ["fast", True, 10**400, 1j], ids=repr)
def test_what_is_no_number_is_not_saved(latency, tmp_path):
    with pytest.raises(ValueError, match=r"clusters.save: latency = .*; expected a number"):
        clusters.save(tmp_path / "cluster.json", Equal(latency, 1.0))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "latency",
    [np.float32(0.25), np.array(0.25), jnp.float32(0.25), Fraction(1, 4), np.float16(0.25)],
    ids=repr,
)
def test_numbers_of_any_type_are_saved_as_numbers(latency, tmp_path):
    clusters.save(
        tmp_path / "cluster.json",
        Equal(latency, np.int64(8)),
        about={"seconds": np.arange(3), "what": np.float32(0.5)},
    )
    assert clusters.load(tmp_path / "cluster.json") == Equal(0.25, 8.0)
    assert json.loads((tmp_path / "cluster.json").read_text())["about"] == {
        "seconds": [0, 1, 2],
        "what": 0.5,
    }


def circle() -> dict:
    made = {"list": []}
    made["list"].append(made)
    return made


@pytest.mark.parametrize(
    "about",
    [circle(), {(1, 2): 3}, {"deep": {b"bytes": 1}}, {"long": 10**5000}, {float("nan"): 1}],
    ids=["circle", "tuple", "bytes", "long", "nan"],
)
def test_what_has_no_form_in_json_is_not_saved(about, tmp_path):
    path = tmp_path / "cluster.json"
    with pytest.raises(
        ValueError,
        match=r"cluster.json: the data cannot be represented in JSON \(.*\); expected keys that are texts",
    ) as raised:
        clusters.save(path, Equal(0.0, 1.0), about)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_are_numbers_in_json():
    assert records.finite(
        {"a": np.float32(np.nan), "b": [np.int8(1), np.bool_(True)], "c": np.array([[1.0, np.inf]])}
    ) == {
        "a": None,
        "b": [1, True],
        "c": [[1.0, None]],
    }
