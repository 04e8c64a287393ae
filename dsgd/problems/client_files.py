"""Samples of clients from LEAF's JSON, one file for each client, tables and HDF5 files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dsgd import checks, optional, records
from dsgd.problems import tables
from dsgd.problems.data import Dataset
from dsgd.problems.partition import by_user

_TEXT = 4  # the place of the text in a sample of LEAF's Sent140
_HDF5 = (".h5", ".hdf5")
_FORMS = (
    "a LEAF .json file, a .csv, .parquet, .h5 or .hdf5 file, or a folder of .json, .npz or .csv"
)
_Client = tuple[str, Any, Any]  # name, inputs, targets


class ClientData(NamedTuple):
    """Samples of clients, for `finite_sum(model, loss, (inputs, targets), len(parts), parts)`.

    Args:
        inputs: `[M, ...]`.
        targets: `[M, ...]`, numbers; or strings `[M]`, which `dataset` numbers.
        parts: indices of each client's samples.
        names: names of the clients.
    """

    inputs: np.ndarray
    targets: np.ndarray
    parts: list[np.ndarray]
    names: list[str]

    def dataset(self, test: ClientData) -> Dataset:
        """Returns a data set with these samples for training and others for testing, in which
        classes are numbered from 0 in the order of their labels:
        `logistic_regression(train.dataset(test), len(train.parts), train.parts)`.

        Args:
            test: samples of the same shape, of these or other clients.

        Raises:
            ValueError: if the samples differ in shape.
        """
        if self.inputs.shape[1:] != test.inputs.shape[1:]:
            raise ValueError(
                f"dataset: samples of test have shape {test.inputs.shape[1:]}; expected "
                f"{self.inputs.shape[1:]}, as for training"
            )
        both = np.concatenate([self.targets, test.targets])
        labels, classes = np.unique(both, return_inverse=True)
        train_targets, test_targets = np.split(classes, [len(self.targets)])
        return Dataset(
            "clients", self.inputs, train_targets, test.inputs, test_targets, len(labels), labels
        )


@checks.arguments
def read_clients(
    path: str | Path, *, client: str | None = None, target: str | None = None
) -> ClientData:
    """Reads the samples of clients from files.

    Args:
        path: a file of LEAF (`.json` with `users`, `num_samples` and `user_data`), or a folder of
            such files; a folder with one file for each client, `.npz` (with arrays `x` and the
            target) or `.csv`, whose name without the ending is that of the client; a table (`.csv`,
            or `.parquet`, which needs pandas and pyarrow) with a column `client`; or an HDF5 file
            (which needs h5py) with groups `examples/<client>` of two arrays, as TensorFlow
            Federated has them, or with a flat table of arrays `[M, ...]`.
            Inputs that are strings (Shakespeare), or lists whose fifth entry is the text (Sent140),
            become bytes of UTF-8, uint8 `[M, T]`; texts of Sent140 are padded with zeros. Columns
            of a table become inputs `[M, d]`.
        client: the column with the client of each sample, of tables only.
        target: the column or array with the targets; None: "y" or "label". LEAF has "y" only.

    Returns:
        The samples. Clients are in the order of the files, those of tables sorted.

    Raises:
        ValueError: if the files have another form, or a client has no samples, another number of
            them than the file states, or samples of different shapes; if entries are not finite
            numbers; or if two clients have the same name. The message names the client.
        ImportError: if a package that reads the file is not installed.
    """
    found = records.user_path("read_clients: path", path)
    if client is not None and target is not None and client == target:
        raise ValueError(f"read_clients: client = target = {client!r}; expected two columns")
    end = found.suffix.lower()
    if found.is_dir():
        if client is not None:
            raise ValueError(
                f"read_clients: client = {client!r} for the folder {str(found)!r}; expected it for "
                "tables only"
            )
        return _join(_in_folder(found, target))
    if not found.is_file() or end not in (".json", ".csv", ".parquet", *_HDF5):
        raise ValueError(f"read_clients: path = {str(path)!r}; expected {_FORMS} that exists")
    if end == ".json":
        return _join(_leaf(found))
    if end in _HDF5:
        h5py = optional.load("read_clients", "h5py", "clients")
        with h5py.File(found) as file:
            if "examples" in file and client is None:
                return _join(_groups(found, file["examples"], target))
            columns = {name: _decoded(file[name][()]) for name in file}
    elif end == ".parquet":
        frame = optional.load("read_clients", "pandas", "clients").read_parquet(found)
        columns = {str(name): _decoded(frame[name].to_numpy()) for name in frame.columns}
    else:
        columns = {name: np.array(column) for name, column in tables.columns(found).items()}
    return _from_table(found, columns, client, target)


def _in_folder(folder: Path, target: str | None) -> Iterator[_Client]:
    """Yields the clients in the files of a folder."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".npz", ".csv"))
    if len({path.suffix for path in files}) != 1:
        found = ", ".join(sorted({path.suffix for path in files})) or "none of these"
        raise ValueError(
            f"read_clients: the folder {str(folder)!r} has {found}; expected files .json, .npz or "
            ".csv, of one kind"
        )
    for path in files:
        if path.suffix == ".json":
            yield from _leaf(path)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                name = _target(path, list(file), target)
                if "x" not in file:
                    raise ValueError(
                        f"read_clients: client {path.stem!r} has the arrays "
                        f"{', '.join(file)}; expected x and {name}"
                    )
                yield path.stem, file["x"], file[name]
        else:
            columns = tables.columns(path)
            name = _target(path, list(columns), target)
            yield path.stem, *_features(f"client {path.stem!r}", columns, name)


def _leaf(path: Path) -> Iterator[_Client]:
    """Yields the clients of a file of LEAF."""
    try:
        file = json.loads(path.read_bytes())
        users, counts, data = file["users"], file["num_samples"], file["user_data"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"read_clients: {path} is no file of LEAF ({type(error).__name__}: {error}); expected "
            "JSON with users, num_samples and user_data"
        ) from error
    if len(users) != len(counts):
        raise ValueError(
            f"read_clients: {path} has {len(users)} users and {len(counts)} num_samples; expected "
            "one number for each user"
        )
    if others := sorted(data.keys() - set(users)):
        raise ValueError(
            f"read_clients: client {others[0]!r} of {path} is in user_data, but not in users; "
            "expected the same clients in both"
        )
    for user, count in zip(users, counts, strict=True):
        if not {"x", "y"} <= set(data.get(user, ())):
            raise ValueError(
                f"read_clients: client {user!r} of {path} has no x and y in user_data; expected "
                "the samples of each of the users"
            )
        x, y = data[user]["x"], data[user]["y"]
        if not len(x) == len(y) == count:
            raise ValueError(
                f"read_clients: client {user!r} of {path} has num_samples = {count}, but "
                f"{len(x)} x and {len(y)} y; expected equal numbers"
            )
        yield user, x, y


def _groups(path: Path, groups: Any, target: str | None) -> Iterator[_Client]:
    """Yields the clients of groups of an HDF5 file."""
    for user, group in groups.items():
        name = _target(path, list(group), target)
        others = [each for each in group if each != name]
        if len(others) != 1:
            raise ValueError(
                f"read_clients: client {user!r} of {path} has the arrays {', '.join(group)}; "
                "expected the inputs and the target only"
            )
        yield user, group[others[0]][()], _decoded(group[name][()])


def _from_table(
    path: Path, columns: dict[str, np.ndarray], client: str | None, target: str | None
) -> ClientData:
    if client not in columns:
        raise ValueError(
            f"read_clients: client = {client!r}, but {path} has the columns "
            f"{checks.show(list(columns))}; expected the column with the client of each sample"
        )
    users = columns.pop(client)
    name = _target(path, list(columns), target)
    names, rows = np.unique(users.astype(str), return_inverse=True)
    if not names.size or {"", "nan", "None", "<NA>"} & set(names.tolist()):
        raise ValueError(
            f"read_clients: {path} has no client in some row of the column {client!r}; expected "
            "one in each row"
        )
    inputs, targets = _features(f"{path}", columns, name)
    return ClientData(
        _numbers(f"{path}", inputs), _numbers(f"{path}", targets), by_user(rows), names.tolist()
    )


def _features(where: str, columns: Any, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs, `[M, d]`, or the only array `[M, ...]`, and the targets."""
    inputs = [np.asarray(column) for name, column in columns.items() if name != target]
    if not inputs:
        raise ValueError(f"read_clients: {where} has no columns of inputs; expected at least one")
    one = len(inputs) == 1 and inputs[0].ndim > 1
    try:
        stacked = inputs[0] if one else np.stack([each.astype(float) for each in inputs], axis=1)
    except ValueError as error:
        raise ValueError(
            f"read_clients: {where} has columns that are not numbers ({error}); expected numbers"
        ) from error
    return stacked, np.asarray(columns[target])


def _target(path: Path, names: list[str], target: str | None) -> str:
    """Returns the name of the targets."""
    for name in ("y", "label") if target is None else (target,):
        if name in names:
            return name
    raise ValueError(
        f"read_clients: target = {target!r}, but {path} has {checks.show(names)}; expected the "
        "name of the targets"
    )


def _decoded(values: np.ndarray) -> np.ndarray:
    """Returns strings that are bytes as text, as HDF5 and Parquet store them."""
    if values.dtype == object:
        return np.array([v.decode() if isinstance(v, bytes) else v for v in values])
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def _join(clients: Iterator[_Client]) -> ClientData:
    """Returns the samples of clients, one after the other."""
    xs: dict[str, np.ndarray] = {}
    ys: list[np.ndarray] = []
    shape: tuple[Any, ...] | None = None
    for name, x, y in clients:
        where = f"client {name!r}"
        if name in xs:
            raise ValueError(
                f"read_clients: {where} is given twice; expected different names: join its samples"
            )
        if not len(x):
            raise ValueError(
                f"read_clients: {where} has no samples; expected at least one: remove it"
            )
        xs[name], kind = _inputs(where, x)
        ys.append(_numbers(where, y))
        if len(ys[-1]) != len(xs[name]):
            raise ValueError(
                f"read_clients: {where} has {len(x)} inputs and {len(y)} targets; expected "
                "equal numbers"
            )
        shape = kind if shape is None else shape
        if kind != shape:
            raise ValueError(
                f"read_clients: {where} has samples of shape {kind}; expected {shape}, as "
                f"those of client {next(iter(xs))!r}"
            )
    if not xs:
        raise ValueError("read_clients: there are no clients; expected at least one")
    inputs = np.concatenate(list(xs.values()))
    if inputs.dtype.kind == "S":
        inputs = inputs.view(np.uint8).reshape(len(inputs), -1)
    sizes = [len(x) for x in xs.values()]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return ClientData(inputs, _characters(np.concatenate(ys)), parts, list(xs))


def _inputs(where: str, x: Any) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Returns a client's inputs, texts as bytes `[m]`, and the shape of a sample."""
    first = x[0]
    if isinstance(first, str):
        texts = [each.encode() for each in x]
        if other := next((i for i, t in enumerate(texts) if len(t) != len(texts[0])), 0):
            raise ValueError(
                f"read_clients: {where}: sample {other} has {len(texts[other])} bytes; expected "
                f"{len(texts[0])}, as sample 0"
            )
        return np.array(texts), (len(texts[0]), "bytes")
    if isinstance(first, list) and any(isinstance(each, str) for each in first):
        short = next((i for i, each in enumerate(x) if len(each) <= _TEXT), None)
        if short is not None:
            raise ValueError(
                f"read_clients: {where}: sample {short} has {len(x[short])} entries; expected the "
                "text as the fifth"
            )
        return np.array([str(each[_TEXT]).encode() for each in x]), ("text",)
    numbers = _numbers(where, x)
    if numbers.dtype.kind == "U":
        raise ValueError(f"read_clients: {where}: inputs are strings; expected numbers")
    return numbers, numbers.shape[1:]


def _numbers(where: str, values: Any) -> np.ndarray:
    """Returns finite numbers, floats in JAX's default type, or strings."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        sizes = [np.size(each) for each in values]
        other = next((i for i, size in enumerate(sizes) if size != sizes[0]), 0)
        raise ValueError(
            f"read_clients: {where}: sample {other} has {sizes[other]} entries; expected "
            f"{sizes[0]}, as sample 0"
        ) from error
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind not in "iufb":
        raise ValueError(
            f"read_clients: {where} has entries of type {array.dtype}; expected numbers"
        )
    if array.dtype.kind == "f":
        array = array.astype(jnp.result_type(float), copy=False)
        if not np.isfinite(array).all():
            raise ValueError(
                f"read_clients: {where} has entries that are not finite; expected finite numbers"
            )
    return array


def _characters(targets: np.ndarray) -> np.ndarray:
    """Returns targets that are all single ASCII characters as their bytes, as in the inputs."""
    if targets.dtype == "<U1" and all(each.isascii() for each in np.unique(targets)):
        return np.char.encode(targets, "ascii").view(np.uint8).astype(np.int32)
    return targets
