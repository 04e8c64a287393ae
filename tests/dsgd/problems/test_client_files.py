"""Samples of clients that are read from files, compared with what was written."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import optax
import pytest

from dsgd import problems
from dsgd.engine.pooled import Pooled, worker_data

RNG = np.random.default_rng(5)
SIZES = {"f7": 3, "f2": 1, "f5": 4}
SAMPLES = {
    user: (RNG.normal(size=(m, 6)).astype(np.float32), RNG.integers(0, 62, m))
    for user, m in SIZES.items()
}


def leaf(samples: dict[str, Any] | None = None, **changes: Any) -> str:
    """Returns a file of LEAF as text."""
    given = SAMPLES if samples is None else samples
    data = {
        user: {"x": np.asarray(x).tolist(), "y": np.asarray(y).tolist()}
        for user, (x, y) in given.items()
    }
    counts = [len(of["y"]) for of in data.values()]
    return json.dumps({"users": list(data), "num_samples": counts, "user_data": data} | changes)


def require_samples(clients: problems.ClientData, users: list[str]) -> None:
    assert clients.names == users
    for user, part in zip(users, clients.parts, strict=True):
        np.testing.assert_array_equal(clients.inputs[part], SAMPLES[user][0])
        np.testing.assert_array_equal(clients.targets[part], SAMPLES[user][1])


def table_rows() -> list[tuple[str, int, np.ndarray]]:
    """Returns the samples of all clients in random order."""
    rows = [(user, y, x) for user, (xs, ys) in SAMPLES.items() for x, y in zip(xs, ys, strict=True)]
    return [rows[i] for i in RNG.permutation(len(rows))]


def test_files_of_leaf_in_a_folder(tmp_path):
    (tmp_path / "a.json").write_text(leaf({user: SAMPLES[user] for user in ("f7", "f2")}))
    (tmp_path / "b.json").write_text(leaf({"f5": SAMPLES["f5"]}))
    require_samples(problems.read_clients(tmp_path), ["f7", "f2", "f5"])
    (tmp_path / "c.json").write_text(leaf({"f2": SAMPLES["f2"]}))
    with pytest.raises(ValueError, match=r"^read_clients: client 'f2' is given twice"):
        problems.read_clients(tmp_path)


def test_one_file_for_each_client(tmp_path):
    for kind in ("npz", "csv"):
        folder = tmp_path / kind
        folder.mkdir()
        for user, (x, y) in SAMPLES.items():
            if kind == "npz":
                np.savez(folder / f"{user}.npz", x=x, y=y)
                continue
            lines = [",".join(map(str, [*row, int(c)])) for row, c in zip(x, y, strict=True)]
            (folder / f"{user}.csv").write_text("\n".join(["a,b,c,d,e,f,y", *lines]))
        require_samples(problems.read_clients(folder), sorted(SAMPLES))
    np.savez(tmp_path / "npz" / "f9.npz", x=np.ones((2, 5)), y=[1, 2])
    with pytest.raises(
        ValueError, match=r"client 'f9' has samples of shape \(5,\); expected \(6,\)"
    ):
        problems.read_clients(tmp_path / "npz")


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5"])
def test_tables_with_a_column_of_clients(tmp_path, kind):
    path, rows = tmp_path / f"all.{kind}", table_rows()
    if kind == "csv":
        lines = [",".join(map(str, [user, *x, int(y)])) for user, y, x in rows]
        path.write_text("\n".join(["who,a,b,c,d,e,f,digit", *lines]))
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        pandas = pytest.importorskip("pandas")
        columns = {name: [x[i] for _, _, x in rows] for i, name in enumerate("abcdef")}
        who, digit = [user for user, _, _ in rows], [y for _, y, _ in rows]
        pandas.DataFrame({"who": who, **columns, "digit": digit}).to_parquet(path)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["who"], file["digit"] = [user for user, _, _ in rows], [y for _, y, _ in rows]
            file["pixels"] = np.stack([x for _, _, x in rows])
    clients = problems.read_clients(path, client="who", target="digit")
    assert clients.names == sorted(SAMPLES)
    for user, part in zip(clients.names, clients.parts, strict=True):
        of_user = [(x, y) for each, y, x in rows if each == user]
        np.testing.assert_array_equal(clients.inputs[part], [x for x, _ in of_user])
        np.testing.assert_array_equal(clients.targets[part], [y for _, y in of_user])
    for options, words in (
        ({"client": "name", "target": "digit"}, "client = 'name', but"),
        ({"client": "who"}, "target = None, but"),
    ):
        with pytest.raises(ValueError, match=f"^read_clients: {words}"):
            problems.read_clients(path, **options)


def test_groups_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "emnist.h5", "w") as file:
        for user, (x, y) in SAMPLES.items():
            file[f"examples/{user}/pixels"], file[f"examples/{user}/label"] = x, y
    require_samples(problems.read_clients(tmp_path / "emnist.h5"), sorted(SAMPLES))


def test_texts_become_bytes(tmp_path):
    """Windows and next characters of Shakespeare; texts of Sent140, padded with zeros."""
    path = tmp_path / "shakespeare.json"
    path.write_text(
        leaf({"ROMEO": (["to be, ", "o be, o"], ["o", "r"]), "PUCK": (["abcdefg"], ["h"])})
    )
    clients = problems.read_clients(path)
    assert [bytes(row) for row in clients.inputs] == [b"to be, ", b"o be, o", b"abcdefg"]
    assert clients.inputs.dtype == np.uint8
    assert clients.targets.tolist() == [ord("o"), ord("r"), ord("h")]
    tweets = [["1", "Mon", "q", "me", text, "x"] for text in ("sad", "so glad")]
    data = {"me": {"x": tweets, "y": [0, 1]}}
    path.write_text(json.dumps({"users": ["me"], "num_samples": [2], "user_data": data}))
    assert [bytes(row) for row in problems.read_clients(path).inputs] == [
        b"sad\0\0\0\0",
        b"so glad",
    ]


WRONG: dict[str, str] = {
    r"client 'f2' of .* num_samples = 2, but 1 x and 1 y": leaf(num_samples=[3, 2, 4]),
    r"client 'f9' of .* has no x and y in user_data": leaf(
        users=["f7", "f2", "f5", "f9"], num_samples=[3, 1, 4, 2]
    ),
    r"client 'f5' of .* not in users": leaf(users=["f7", "f2"], num_samples=[3, 1]),
    r"client 'f3' has no samples": leaf({"f7": SAMPLES["f7"], "f3": ([], [])}),
    r"client 'f2' is given twice": leaf(users=["f7", "f2", "f2", "f5"], num_samples=[3, 1, 1, 4]),
    r"client 'u': sample 1 has 3 bytes; expected 2": leaf({"u": (["ab", "abc"], ["c", "d"])}),
    r"client 'u' has entries that are not finite": leaf({"u": ([[0.5, float("nan")]], [3])}),
    "is no file of LEAF": "[3, 4]",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_client_is_named(words, tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(WRONG[words])
    with pytest.raises(ValueError, match=f"^read_clients: .*(?:{words})") as caught:
        problems.read_clients(path)
    assert "\n" not in str(caught.value)


def test_a_ragged_sample_is_named(tmp_path):
    data = {"f4": {"x": [[0.5, 2.0], [0.5, 2.0, 3.0]], "y": [3, 4]}}
    path = tmp_path / "ragged.json"
    path.write_text(json.dumps({"users": ["f4"], "num_samples": [2], "user_data": data}))
    with pytest.raises(ValueError, match=r"client 'f4': sample 1 has 3 entries; expected 2"):
        problems.read_clients(path)


def test_clients_of_1_to_10_000_samples_are_trained_on(tmp_path):
    """Their samples are pooled; the loss is the mean over clients of their mean losses."""
    sizes = [1, 10_000, 2, 30, *[3] * 60]
    inputs = RNG.normal(size=(sum(sizes), 12)).astype(np.float32)
    classes = RNG.integers(4, 7, sum(sizes))
    users = np.repeat([f"c{n:02}" for n in range(len(sizes))], sizes)
    np.savez(tmp_path / "test.npz", x=inputs[:20], y=classes[:20])
    for user in np.unique(users):
        mine = users == user
        (tmp_path / "train").mkdir(exist_ok=True)
        np.savez(tmp_path / "train" / f"{user}.npz", x=inputs[mine], y=classes[mine])
    (tmp_path / "held").mkdir()
    (tmp_path / "test.npz").rename(tmp_path / "held" / "c00.npz")
    train, test = (problems.read_clients(tmp_path / folder) for folder in ("train", "held"))
    problem: Any = problems.logistic_regression(
        train.dataset(test), len(train.parts), train.parts, weights="samples", l2=0.0
    )
    assert isinstance(problem.data, Pooled)
    assert problem.sample.local_samples == tuple(sizes)
    np.testing.assert_array_equal(problems.class_counts(problem).samples, sizes)
    kernel = RNG.normal(size=(12, 3)).astype(np.float32)
    params = problem.init(jax.random.key(0))._replace(kernel=kernel)
    losses = optax.softmax_cross_entropy_with_integer_labels(inputs @ kernel, classes - 4)
    for n, user in ((0, "c00"), (1, "c01"), (63, "c63")):
        batch = worker_data(problem.data, n)
        mean = float(np.mean(np.asarray(losses)[users == user]))
        np.testing.assert_allclose(problem.loss(params, batch), mean, rtol=1e-5)
