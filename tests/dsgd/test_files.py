"""Files of users: paths, and damaged files of clusters. One line has the file's name and the
expected contents.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
from dsgd import clusters, problems, records
from dsgd.clusters import Hardware
from dsgd.problems import texts
from tests.dsgd.by_hand import run

GOOD = '{"kind": "dsgd cluster of equal workers", "latency": 1e-4, "bandwidth": 1e9}'
EQUAL = Hardware(1e-4, 1e9)


def saved_run(path) -> None:
    method, problem = algorithms.minibatch_sgd(optax.sgd(0.1)), problems.random_quadratic(2, 2)
    run(method, problem, 1, checkpoint=path)


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_home_folder_is_known_wherever_a_path_is_taken(home):
    clusters.save("~/cluster.json", EQUAL)
    assert clusters.load(Path("~/cluster.json")) == EQUAL
    saved_run("~/run")
    assert (home / "run" / "dsgd-run.npz").exists()
    (home / "book.txt").write_text("to be or not to be")
    assert texts.documents("~/book.txt", 0) == [b"to be or not to be"]
    with pytest.raises(FileNotFoundError, match=str(home / "files")):
        problems.load("mnist", "~/files")
    assert not Path("~").exists()


PATHS = {
    "save": lambda path: clusters.save(path, EQUAL),
    "load": clusters.load,
    "checkpoint": saved_run,
    "data": lambda path: problems.load("mnist", path),
    "text": lambda path: problems.language_model(text=path),
}


@pytest.mark.parametrize("call", PATHS)
@pytest.mark.parametrize(
    ("path", "message"),
    [("a\0b", "expected a path without null"), ("~nobody-there/x", "home folder of '~' is not")],
)
def test_invalid_paths_are_refused_in_one_line(call, path, message):
    with pytest.raises(ValueError, match=message):
        PATHS[call](path)


@pytest.mark.parametrize("call", ["load", "save"])
def test_paths_that_are_no_files_are_refused(call, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / ("x" * 300), tmp_path / "file" / "cluster.json"):
        with pytest.raises(ValueError, match=r"it is not a file|cannot be (read|written) \("):
            PATHS[call](path)


def latency_file(value: str) -> bytes:
    return GOOD.replace("1e-4", value).encode()


DAMAGED = {
    "a huge integer": (latency_file("1" + "0" * 400), "latency = an integer of 1329 bits"),
    "an integer of 5,001 digits": (latency_file("1" * 5001), "digits.*; expected each name once"),
    "nested ten thousand deep": (b"[" * 10_000, "nested too deep"),
    "objects nested deep": (b'{"a":' * 100_000, "nested too deep"),
    "a name twice": (GOOD.replace("}", ', "latency": 2}').encode(), "'latency' occurs twice"),
    "NaN": (latency_file("NaN"), "NaN is not a JSON number"),
    "overflow": (latency_file("1e400"), "latency = inf; expected a finite number"),
    "UTF-16": (GOOD.encode("utf-16"), r"not UTF-8 text \(byte 0\)"),
    "nothing": (b"", "it is not JSON, in line 1, column 1"),
    "a list": (b"[1, 2]", r"\[1, 2\]; expected names and values in braces"),
    "a text as a number": (latency_file('"1 ms"'), "latency = '1 ms'; expected a number"),
    "true": (latency_file("true"), "latency = True; expected a number"),
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
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())  # a byte order mark is valid
    assert clusters.load(path) == EQUAL


def circle() -> dict:
    made = {"list": []}
    made["list"].append(made)
    return made


NO_JSON = [circle(), {(1, 2): 3}, {"deep": {b"bytes": 1}}, {"long": 10**5000}, {float("nan"): 1}]


@pytest.mark.parametrize("about", NO_JSON)
def test_values_without_a_json_form_are_not_saved(about, tmp_path):
    message = "cluster.json: the data cannot be represented"
    with pytest.raises(ValueError, match=message) as raised:
        clusters.save(tmp_path / "cluster.json", EQUAL, about)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [np.float32, np.array, jnp.float32, Fraction, np.float16])
def test_numbers_of_any_type_are_saved_as_numbers(number, tmp_path, as_users_call):
    path, about = tmp_path / "cluster.json", {"seconds": np.arange(3), "what": np.float32(0.5)}
    clusters.save(path, Hardware(number(0.25), np.int64(8)), about)
    assert clusters.load(path) == Hardware(0.25, 8.0)
    assert json.loads(path.read_text())["about"] == {"seconds": [0, 1, 2], "what": 0.5}
    for given, written in (
        (np.float32(np.nan), None),
        ([np.int8(1), np.bool_(True)], [1, True]),
        (np.array([[1.0, np.inf]]), [[1.0, None]]),
    ):
        assert records.finite(given) == written
