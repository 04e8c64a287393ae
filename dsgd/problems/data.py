"""Data sets: scikit-learn's bundled ones, arrays, and files: images as published, LIBSVM's, CSV.
Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array, issparse

from dsgd import array_likes, checks, records
from dsgd.problems import files, sparse, svmlight, tables
from dsgd.problems.sparse import SparseRows

_TEST_SHARE = 0.2
_WHOLE = 2**53  # up to which floating-point numbers are as fine as integers
_SPLIT_SEED = 0  # everybody's test set is the same, whatever the seed of a run


class Dataset(NamedTuple):
    """Train and test samples.

    Args:
        name: for tables.
        train_inputs: float `[M, ...]`; images are `[M, height, width, channels]`; `SparseRows` of
            sparse data.
        train_targets: int `[M]`, classes from 0.
        test_inputs, test_targets: likewise.
        classes: number of classes.
        labels: what the classes were called where they come from, `[classes]`; None: 0, 1, ...
    """

    name: str
    train_inputs: Any
    train_targets: np.ndarray
    test_inputs: Any
    test_targets: np.ndarray
    classes: int
    labels: np.ndarray | None = None


DataSource = Annotated[
    str | Path | Dataset | Sequence[Any],
    "a name, a file's path, a Dataset, or a pair (inputs, classes)",
]


@checks.arguments
def load(
    data: DataSource, data_dir: str | Path | None = None, *, target: str | None = None
) -> Dataset:
    """The data set of that name, of a file, or of the given arrays.

    Classes count from 0 in the order of their labels, which `Dataset.labels` keeps. Where there is
    no test set, a fifth, stratified, is held out for testing.

    Args:
        data: "digits" (1,797 images 8x8), "breast-cancer" (569 x 30), images in files as published
            ("mnist", "fashion-mnist", "kmnist", "emnist-letters" and EMNIST's other splits,
            "cifar-10", "cifar-100", "cifar-100-coarse"), a file in LIBSVM's format, as "a9a",
            "rcv1" or a path, a CSV file (`.csv`, `.csv.gz`), a `Dataset`, or (inputs `[M, ...]`,
            classes `[M]`).
        data_dir: the folder with the files: of images (`train-images-idx3-ubyte`,
            `train-images.idx3-ubyte`, ..., plain or `.gz`; `data_batch_1.bin`, `train.bin`, ..., or
            pickled; or the folder above them as archives unpack, or torchvision's root); of LIBSVM
            (`a9a`, and `a9a.t` for testing if it is there, plain, `.bz2`, `.gz` or `.xz`); of a CSV
            file. None: the current one, for LIBSVM and CSV files.
        target: the column of a CSV file with the classes.

    Raises:
        ValueError: an unknown name, no data_dir for images, a malformed file, arrays that do not
            fit.
        FileNotFoundError: a file that is not there, by its path.
    """
    if target is not None and not (
        isinstance(data, str | Path) and str(data).endswith(tables.ENDS)
    ):
        raise ValueError(
            f"load: target = {target!r} for data = {checks.shown(data)}: need it for CSV files only"
        )
    if isinstance(data, Dataset):
        return _checked(data)
    if not isinstance(data, str | Path):
        return _from_arrays("arrays", *_pair(data))
    if str(data) in BUNDLED:
        return BUNDLED[str(data)]()
    if str(data) in FILES:
        if data_dir is None:
            raise ValueError(
                f"data {data!r} is read from files: need data_dir (--data-dir), the folder that "
                "holds them"
            )
        return _checked(
            Dataset(name=str(data), **files.read(str(data), records.expanded("data_dir", data_dir)))
        )
    return _from_file(
        records.expanded("data_dir", data_dir or "") / records.expanded("data", data),
        str(data),
        target,
    )


def dense(dataset: Dataset) -> Dataset:
    """The data set with arrays for `SparseRows`, as the layers of neural networks take them."""
    train, test = (
        rows.toarray() if isinstance(rows, SparseRows) else rows
        for rows in (dataset.train_inputs, dataset.test_inputs)
    )
    return (
        dataset
        if train is dataset.train_inputs
        else dataset._replace(train_inputs=train, test_inputs=test)
    )


def _pair(data: Any) -> tuple[Any, Any]:
    if len(data) != 2:
        raise ValueError(
            f"data of {len(data)} arrays: need a name, a file's path, a Dataset, or a pair "
            "(inputs, classes)"
        )
    return data[0], data[1]


def _from_file(path: Path, data: str, target: str | None) -> Dataset:
    """Of a file in LIBSVM's format or of CSV."""
    if path.name.endswith(tables.ENDS) and files.is_there(path):
        return _from_arrays(path.name, *tables.read(path, target), f"{path}")
    found = svmlight.find(path)
    if found is None:
        known = f"{', '.join([*BUNDLED, *FILES])}, a LIBSVM or CSV file (there is no {checks.shown(str(path))}), or arrays"
        raise ValueError(f"unknown data {checks.shown(data)}: need one of {known}")
    train, test = found
    (inputs, targets), *held_out = svmlight.read(*(each for each in found if each))
    if test is None:
        return _from_arrays(train.name, inputs, targets, f"{train}")
    labels, classes = np.unique(
        _classes(f"{train}: labels", np.concatenate([targets, held_out[0][1]])), return_inverse=True
    )
    _need_two(f"{train}: labels", labels)
    inputs = sparse.smaller(f"{train}", inputs, held_out[0][0])
    targets = np.split(classes, [len(targets)])
    return Dataset(train.name, inputs[0], targets[0], inputs[1], targets[1], len(labels), labels)


def _from_arrays(name: str, inputs: Any, targets: Any, where: str = "data") -> Dataset:
    if not issparse(inputs):
        inputs = array_likes.numbers(f"{where}: inputs", inputs)
    targets = _classes(f"{where}: targets", targets)
    if inputs.ndim < 2 or targets.shape != inputs.shape[:1]:
        raise ValueError(
            f"{where}: inputs have shape {inputs.shape}, targets {targets.shape}; need [M, ...] "
            "and [M]"
        )
    labels, classes = np.unique(targets, return_inverse=True)
    _need_two(f"{where}: targets", labels)
    sizes = np.bincount(classes)
    if sizes.min() < 2 or len(classes) * _TEST_SHARE < len(labels):
        shown = f"{len(labels)} classes in {len(classes)} samples, the smallest ({labels[sizes.argmin()]}) with {sizes.min()}"
        raise ValueError(
            f"{where}: targets have {shown}; need classes with at least 2 samples, and one in the "
            "held-out fifth"
        )
    parts = _split(classes, sizes)
    if issparse(inputs):
        train, test = sparse.smaller(
            f"{where}: inputs", *(csr_array(inputs)[part] for part in parts)
        )
    else:
        train, test = (_real(f"{where}: inputs", inputs)[part] for part in parts)
    return Dataset(name, train, classes[parts[0]], test, classes[parts[1]], len(labels), labels)


def _real(where: str, inputs: np.ndarray) -> np.ndarray:
    """Inputs in JAX's default type."""
    if 0 in inputs.shape[1:]:
        raise ValueError(f"{where} have shape {inputs.shape}; need at least one element a sample")
    if not np.isfinite(inputs).all():
        raise ValueError(f"{where} have entries that are not finite")
    kind = jnp.result_type(float)
    return (inputs if inputs.dtype.kind in "iub" else array_likes.kept(where, inputs)).astype(
        kind, copy=False
    )


def _classes(where: str, targets: Any) -> np.ndarray:
    """Labels as they are: numbers or texts."""
    texts = _texts(targets)
    if texts is not None:
        return texts
    targets = array_likes.numbers(where, targets)
    if jnp.issubdtype(targets.dtype, jnp.floating):
        targets = targets.astype(np.float64)
        if not np.isfinite(targets).all():
            raise ValueError(f"{where} have entries that are not finite")
        _need_whole(where, targets)
        if np.abs(targets).max(initial=0) < _WHOLE:
            return targets.astype(np.int64)
    return targets


def _texts(targets: Any) -> np.ndarray | None:
    """The labels as numpy's texts, if all are; categories by their names."""
    try:
        texts = np.asarray(targets)
    except Exception:
        # an object's own conversion may raise anything; `array_likes.numbers` says what
        return None
    all_text = texts.dtype.kind in "UT" or (
        texts.dtype == object and all(isinstance(each, str) for each in texts.flat)
    )
    return (
        texts.astype(str) if all_text and texts.size and not np.ma.isMaskedArray(targets) else None
    )


def _need_two(where: str, labels: np.ndarray) -> None:
    if len(labels) < 2:
        raise ValueError(f"{where} have {len(labels)} class; need at least 2")


def _need_whole(what: str, targets: np.ndarray) -> None:
    """Raises a ValueError where targets are fractions: they are not classes, and would be cut
    off.
    """
    if targets.dtype.kind == "f" and (targets != np.round(targets)).any():
        raise ValueError(
            f"{what} have the entry {targets[targets != np.round(targets)][0]}: need classes, "
            "whole numbers"
        )


def _split(classes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a stratified four fifths and of the rest: those that scikit-learn's
    `train_test_split` draws, whose import takes a second.

    Args:
        classes: int `[M]`.
        sizes: of the classes.
    """
    rng = np.random.RandomState(_SPLIT_SEED)
    tests = math.ceil(len(classes) * _TEST_SHARE)
    train_sizes = _apportion(sizes, len(classes) - tests, rng)
    test_sizes = _apportion(sizes - train_sizes, tests, rng)
    train, test = [], []
    for label, (first, second) in enumerate(zip(train_sizes, test_sizes, strict=True)):
        members = np.flatnonzero(classes == label)[rng.permutation(sizes[label])]
        train.append(members[:first])
        test.append(members[first : first + second])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def _apportion(sizes: np.ndarray, seats: int, rng: np.random.RandomState) -> np.ndarray:
    """So many seats, in proportion to sizes: whole quotas, then the largest remainders, equal ones
    by lot.
    """
    quotas = sizes / sizes.sum() * seats
    given = np.floor(quotas)
    for remainder in np.unique(quotas - given)[::-1]:
        left = int(seats - given.sum())
        if left == 0:
            break
        equal = np.flatnonzero(quotas - np.floor(quotas) == remainder)
        given[rng.choice(equal, min(left, len(equal)), replace=False)] += 1
    return given.astype(int)


def _checked(dataset: Dataset) -> Dataset:
    """The same, with arrays for what is like them."""
    name = dataset.name
    if not isinstance(name, str) or not checks.is_integer(dataset.classes) or dataset.classes < 1:
        given = f"name = {checks.shown(name)}, classes = {checks.shown(dataset.classes)}"
        raise ValueError(
            f"Dataset: {given}; need a text, and a number of classes, an integer, at least 1"
        )
    if dataset.labels is not None and len(dataset.labels) != dataset.classes:
        raise ValueError(
            f"{name}: {len(dataset.labels)} labels, but {dataset.classes} classes; need as many"
        )
    inputs = _checked_inputs(name, dataset.train_inputs, dataset.test_inputs)
    targets = [
        array_likes.numbers(f"{name}: {part} targets", getattr(dataset, f"{part}_targets"))
        for part in ("train", "test")
    ]
    for part, rows, classes in zip(("train", "test"), inputs, targets, strict=True):
        _need_classes(f"{name}: {part} targets", classes, len(rows), dataset.classes)
    mine = (inputs[0], targets[0], inputs[1], targets[1])
    return (
        dataset
        if all(map(operator.is_, mine, dataset[1:5]))
        else Dataset(name, *mine, dataset.classes, dataset.labels)
    )


def _checked_inputs(name: str, *given: Any) -> tuple[Any, Any]:
    """Of training and test."""
    what = [f"{name}: {part} inputs" for part in ("train", "test")]
    if all(map(issparse, given)):
        train, test = sparse.smaller(f"{name}: inputs", *given)
    else:
        pairs = zip(what, given, strict=True)
        train, test = (
            rows if isinstance(rows, SparseRows) else array_likes.numbers(where, rows)
            for where, rows in pairs
        )
    for where, rows in zip(what, (train, test), strict=True):
        if rows.ndim < 2 or 0 in rows.shape[1:]:
            raise ValueError(
                f"{where} have shape {rows.shape}; need an array of numbers [M, ...] with at "
                "least one element a sample"
            )
        if not np.isfinite(rows.values if isinstance(rows, SparseRows) else rows).all():
            raise ValueError(f"{where} have entries that are not finite")
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"{name}: train inputs have shape {train.shape}, test inputs {test.shape}; need "
            "samples of one shape"
        )
    return train, test


def _need_classes(where: str, targets: np.ndarray, samples: int, classes: int) -> None:
    if targets.ndim != 1 or len(targets) != samples:
        raise ValueError(
            f"{where} have shape {targets.shape}, but there are {samples} inputs; need labels "
            f"[{samples}], as many"
        )
    if not np.isfinite(targets).all():
        raise ValueError(f"{where} have entries that are not finite")
    _need_whole(where, targets)
    if targets.size and not 0 <= targets.min() <= targets.max() < classes:
        raise ValueError(
            f"{where} from {targets.min()} to {targets.max()}, but {classes} classes; need 0 to "
            f"{classes - 1}"
        )


def _digits() -> Dataset:
    table = np.loadtxt(_bundled("digits.csv.gz"), delimiter=",")
    return _from_arrays(
        "digits", np.reshape(table[:, :-1], (-1, 8, 8, 1)) / 16, table[:, -1].astype(int)
    )


def _breast_cancer() -> Dataset:
    table = np.loadtxt(_bundled("breast_cancer.csv"), delimiter=",", skiprows=1)
    dataset = _from_arrays("breast-cancer", table[:, :-1], table[:, -1].astype(int))
    centre, scale = dataset.train_inputs.mean(axis=0), dataset.train_inputs.std(axis=0)
    return dataset._replace(
        train_inputs=(dataset.train_inputs - centre) / scale,
        test_inputs=(dataset.test_inputs - centre) / scale,
    )


def _bundled(name: str) -> Path:
    """A file that scikit-learn ships, found without importing it, which takes a second."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            f"{name} comes with scikit-learn, which is not installed: need pip install scikit-learn"
        )
    return Path(spec.origin).parent / "datasets" / "data" / name


BUNDLED = {"digits": _digits, "breast-cancer": _breast_cancer}
FILES = files.NAMES
