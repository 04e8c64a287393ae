"""Data sets: those bundled with scikit-learn, arrays, and files of published images, in LIBSVM's
format or CSV. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.sparse import issparse

from dsgd import array_likes, checks, records
from dsgd.problems import files, sparse, svmlight, tables
from dsgd.problems.sparse import SparseRows

_LOGGER = logging.getLogger(__name__)
_TEST_SHARE = 0.2
_WHOLE = 2**53  # float64 represents all integers below this exactly
_SPLIT_SEED = 0  # fixed, so that the test set does not depend on the seed of a run


class Dataset(NamedTuple):
    """Training and test samples of a classification data set.

    Args:
        name: name in tables and error messages.
        train_inputs: float `[M, ...]`; images are `[M, height, width, channels]`; sparse data are
            `SparseRows`.
        train_targets: int `[M]`, classes from 0.
        test_inputs, test_targets: as `train_inputs` and `train_targets`; may have no samples.
        classes: number of classes.
        labels: original labels of the classes, `[classes]`; None: 0, 1, ...
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
    data: DataSource,
    data_dir: str | Path | None = None,
    *,
    target: str | None = None,
    hold_out: bool = True,
) -> Dataset:
    """Loads a data set by name, from a file, or from arrays.

    Classes are numbered from 0 in the order of their labels, which `Dataset.labels` keeps. If there
    is no test set, a stratified fifth of the samples is held out for testing, which is logged for
    files.

    Args:
        data: "digits" (1,797 images of 8x8 pixels), "breast-cancer" (569 x 30), images in files as
            published ("mnist", "fashion-mnist", "kmnist", "emnist-letters" and EMNIST's other
            splits, "cifar-10", "cifar-100", "cifar-100-coarse"), a file in LIBSVM's format, given
            as a name such as "a9a" or "rcv1" or as a path, a CSV file (`.csv`, `.csv.gz`), a
            `Dataset`, or a pair (inputs `[M, ...]`, classes `[M]`).
        data_dir: the folder with the files. For images, the folder that holds
            `train-images-idx3-ubyte`, `train-images.idx3-ubyte`, ... (plain or `.gz`), or
            `data_batch_1.bin`, `train.bin`, ... (binary or pickled), or its parent folder after
            unpacking an archive, or torchvision's root. For LIBSVM, the folder that holds e.g.
            `a9a` and, if present, `a9a.t` for testing (plain, `.bz2`, `.gz` or `.xz`). For CSV, the
            folder of the file. None: the current folder, for LIBSVM and CSV files only.
        target: the column of a CSV file with the classes.
        hold_out: whether samples are held out for testing if there is no test set; if not, all
            samples are for training, in their order.

    Raises:
        ValueError: if the name is unknown, images are given without data_dir, a file is malformed,
            or the shapes of arrays do not fit.
        FileNotFoundError: if a file does not exist; the message names its path.
    """
    if target is not None and not (
        isinstance(data, str | Path) and str(data).endswith(tables.ENDS)
    ):
        raise ValueError(
            f"load: target = {target!r} for data = {checks.show(data)}; expected target for CSV "
            "files only"
        )
    if isinstance(data, Dataset):
        return _validate(data)
    if not isinstance(data, str | Path):
        return _from_arrays("arrays", *_pair(data), hold_out=hold_out)
    if str(data) in BUNDLED:
        return BUNDLED[str(data)](hold_out)
    if str(data) in FILES:
        if data_dir is None:
            raise ValueError(
                f"load: data = {data!r} is read from files; pass data_dir (--data-dir), the "
                "folder that holds them"
            )
        return _validate(
            Dataset(
                name=str(data), **files.read(str(data), records.user_path("data_dir", data_dir))
            )
        )
    return _from_file(
        records.user_path("data_dir", data_dir or "") / records.user_path("data", data),
        str(data),
        target,
        hold_out,
    )


def dense(dataset: Dataset) -> Dataset:
    """Returns the data set with `SparseRows` converted to dense arrays, which the layers of neural
    networks need.
    """
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
            f"load: data has {len(data)} elements; expected a name, a file's path, a Dataset, or "
            "a pair (inputs, classes)"
        )
    return data[0], data[1]


def _from_file(path: Path, data: str, target: str | None, hold_out: bool) -> Dataset:
    """Loads a file in LIBSVM's format or CSV."""
    if path.name.endswith(tables.ENDS) and files.is_there(path):
        return _report_split(
            _from_arrays(path.name, *tables.read(path, target), f"{path}", hold_out)
        )
    found = svmlight.find(path)
    if found is None:
        names = ", ".join([*BUNDLED, *FILES])
        raise ValueError(
            f"load: data = {checks.show(data)}; expected one of {names}, a LIBSVM or CSV file "
            f"(there is no {checks.show(str(path))}), or arrays"
        )
    train, test = found
    (inputs, targets), *held_out = svmlight.read(*(each for each in found if each))
    if test is None:
        return _report_split(_from_arrays(train.name, inputs, targets, f"{train}", hold_out))
    labels, classes = np.unique(
        _classes(f"{train}: labels", np.concatenate([targets, held_out[0][1]])), return_inverse=True
    )
    _require_two(f"{train}: labels", labels)
    inputs = sparse.smaller(f"{train}", inputs, held_out[0][0])
    targets = np.split(classes, [len(targets)])
    return Dataset(train.name, inputs[0], targets[0], inputs[1], targets[1], len(labels), labels)


def _report_split(dataset: Dataset) -> Dataset:
    """Logs, on the standard error by default, that samples of a file are held out, and returns the
    data set.
    """
    if len(dataset.test_targets):
        _LOGGER.warning(
            "%s: %s of its samples, a stratified fifth, are held out for testing and not trained "
            "on; pass load(..., hold_out=False), or a dsgd.problems.Dataset for another split",
            dataset.name,
            f"{len(dataset.test_targets):,}",
        )
    return dataset


def test_options(dataset: Dataset, metric: Callable[..., Any]) -> dict[str, Any]:
    """Returns the arguments `test` and `metrics` of `finite_sum`, by which the history has the mean
    of a metric over the test set as `test_accuracy`; nothing if there is no test set.
    """
    if not len(dataset.test_targets):
        return {}
    test = dataset.test_inputs, dataset.test_targets
    return {"test": test, "metrics": {"test_accuracy": metric}}


def _from_arrays(
    name: str, inputs: Any, targets: Any, where: str = "data", hold_out: bool = True
) -> Dataset:
    if not issparse(inputs):
        inputs = array_likes.numbers(f"{where}: inputs", inputs)
    targets = _classes(f"{where}: targets", targets)
    if inputs.ndim < 2 or targets.shape != inputs.shape[:1]:
        raise ValueError(
            f"{where}: inputs have shape {inputs.shape}, targets {targets.shape}; expected [M, "
            "...] and [M]"
        )
    labels, classes = np.unique(targets, return_inverse=True)
    _require_two(f"{where}: targets", labels)
    sizes = np.bincount(classes)
    if hold_out and (sizes.min() < 2 or len(classes) * _TEST_SHARE < len(labels)):
        smallest = f"the smallest ({labels[sizes.argmin()]}) with {sizes.min()}"
        raise ValueError(
            f"{where}: targets have {len(labels)} classes in {len(classes)} samples, {smallest}; "
            "expected at least 2 samples of each class, and one in the held-out fifth"
        )
    parts = (
        _split(classes, sizes) if hold_out else np.split(np.arange(len(classes)), [len(classes)])
    )
    if issparse(inputs):
        rows = sparse.compressed_rows(f"{where}: inputs", inputs)
        train, test = sparse.smaller(f"{where}: inputs", *(rows[part] for part in parts))
    else:
        train, test = (_real(f"{where}: inputs", inputs)[part] for part in parts)
    return Dataset(name, train, classes[parts[0]], test, classes[parts[1]], len(labels), labels)


def _real(where: str, inputs: np.ndarray) -> np.ndarray:
    """Returns the inputs in JAX's default float type."""
    if 0 in inputs.shape[1:]:
        raise ValueError(
            f"{where} have shape {inputs.shape}; expected at least one element per sample"
        )
    if not np.isfinite(inputs).all():
        raise ValueError(f"{where} have entries that are not finite; expected finite numbers")
    kind = jnp.result_type(float)
    return (inputs if inputs.dtype.kind in "iub" else array_likes.narrow(where, inputs)).astype(
        kind, copy=False
    )


def _classes(where: str, targets: Any) -> np.ndarray:
    """Returns the labels as an array of numbers or of strings."""
    texts = _texts(targets)
    if texts is not None:
        return texts
    targets = array_likes.numbers(where, targets)
    if jnp.issubdtype(targets.dtype, jnp.floating):
        targets = targets.astype(np.float64)
        if not np.isfinite(targets).all():
            raise ValueError(f"{where} have entries that are not finite; expected finite numbers")
        _require_whole(where, targets)
        if np.abs(targets).max(initial=0) < _WHOLE:
            return targets.astype(np.int64)
    return targets


def _texts(targets: Any) -> np.ndarray | None:
    """Returns the labels as an array of strings if all of them are strings, else None. Categories
    become their names.
    """
    try:
        texts = np.asarray(targets)
    except Exception:
        # A class may raise any exception when it is converted; `array_likes.numbers` reports it.
        return None
    all_text = texts.dtype.kind in "UT" or (
        texts.dtype == object and all(isinstance(each, str) for each in texts.flat)
    )
    return (
        texts.astype(str) if all_text and texts.size and not np.ma.isMaskedArray(targets) else None
    )


def _require_two(where: str, labels: np.ndarray) -> None:
    if len(labels) < 2:
        raise ValueError(f"{where} have {len(labels)} class; expected at least 2")


def _require_whole(what: str, targets: np.ndarray) -> None:
    """Raises a ValueError if targets are not whole numbers, since such classes would be truncated
    silently.
    """
    if targets.dtype.kind == "f" and (targets != np.round(targets)).any():
        raise ValueError(
            f"{what} have the entry {targets[targets != np.round(targets)][0]}; expected classes "
            "as whole numbers"
        )


def _split(classes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices of a stratified split into four fifths and one fifth. They equal those of
    scikit-learn's `train_test_split`, which takes a second to import.

    Args:
        classes: int `[M]`.
        sizes: number of samples of each class.
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
    """Apportions `seats` in proportion to sizes by the largest-remainder method: integer parts of
    the quotas first, then the largest remainders, with ties broken at random.
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


def _validate(dataset: Dataset) -> Dataset:
    """Validates a data set and returns it with arrays in place of array-like objects."""
    name = dataset.name
    if not isinstance(name, str) or not checks.is_integer(dataset.classes) or dataset.classes < 1:
        given = f"name = {checks.show(name)}, classes = {checks.show(dataset.classes)}"
        raise ValueError(
            f"Dataset: {given}; expected a string, and a number of classes that is an integer, at "
            "least 1"
        )
    if dataset.labels is not None and len(dataset.labels) != dataset.classes:
        raise ValueError(
            f"{name}: {len(dataset.labels)} labels, but {dataset.classes} classes; expected as "
            "many labels as classes"
        )
    inputs = _checked_inputs(name, dataset.train_inputs, dataset.test_inputs)
    targets = [
        array_likes.numbers(f"{name}: {part} targets", getattr(dataset, f"{part}_targets"))
        for part in ("train", "test")
    ]
    for part, rows, classes in zip(("train", "test"), inputs, targets, strict=True):
        _require_classes(f"{name}: {part} targets", classes, len(rows), dataset.classes)
    converted = (inputs[0], targets[0], inputs[1], targets[1])
    return (
        dataset
        if all(map(operator.is_, converted, dataset[1:5]))
        else Dataset(name, *converted, dataset.classes, dataset.labels)
    )


def _checked_inputs(name: str, *given: Any) -> tuple[Any, Any]:
    """Validates the inputs for training and for testing and returns them as arrays or
    `SparseRows`.
    """
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
                f"{where} have shape {rows.shape}; expected an array of numbers [M, ...] with at "
                "least one element per sample"
            )
        if not np.isfinite(rows.values if isinstance(rows, SparseRows) else rows).all():
            raise ValueError(f"{where} have entries that are not finite; expected finite numbers")
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"{name}: train inputs have shape {train.shape}, test inputs {test.shape}; expected "
            "samples of the same shape"
        )
    return train, test


def _require_classes(where: str, targets: np.ndarray, samples: int, classes: int) -> None:
    if targets.ndim != 1 or len(targets) != samples:
        raise ValueError(
            f"{where} have shape {targets.shape}, but there are {samples} inputs; expected shape "
            f"[{samples}]"
        )
    if not np.isfinite(targets).all():
        raise ValueError(f"{where} have entries that are not finite; expected finite numbers")
    _require_whole(where, targets)
    if targets.size and not 0 <= targets.min() <= targets.max() < classes:
        raise ValueError(
            f"{where} from {targets.min()} to {targets.max()}, but {classes} classes; expected 0 "
            f"to {classes - 1}"
        )


def _digits(hold_out: bool) -> Dataset:
    table = np.loadtxt(_find_bundled("digits.csv.gz"), delimiter=",")
    images = np.reshape(table[:, :-1], (-1, 8, 8, 1)) / 16
    return _from_arrays("digits", images, table[:, -1].astype(int), hold_out=hold_out)


def _breast_cancer(hold_out: bool) -> Dataset:
    table = np.loadtxt(_find_bundled("breast_cancer.csv"), delimiter=",", skiprows=1)
    inputs, targets = table[:, :-1], table[:, -1].astype(int)
    dataset = _from_arrays("breast-cancer", inputs, targets, hold_out=hold_out)
    centre, scale = dataset.train_inputs.mean(axis=0), dataset.train_inputs.std(axis=0)
    return dataset._replace(
        train_inputs=(dataset.train_inputs - centre) / scale,
        test_inputs=(dataset.test_inputs - centre) / scale,
    )


def _find_bundled(name: str) -> Path:
    """Returns the path of a file that scikit-learn ships, without importing scikit-learn, which
    takes a second.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            f"{name} comes with scikit-learn, which is not installed; to install it, run: "
            "pip install scikit-learn"
        )
    return Path(spec.origin).parent / "datasets" / "data" / name


BUNDLED = {"digits": _digits, "breast-cancer": _breast_cancer}
FILES = files.NAMES
