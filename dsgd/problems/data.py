"""Data sets: scikit-learn's bundled ones, arrays, and MNIST and CIFAR-10 files in their published formats. Nothing is downloaded."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from dsgd import checks, records
from dsgd.problems import files

_TEST_SHARE = 0.2
_SPLIT_SEED = 0  # everybody's test set is the same, whatever the seed of a run


class Dataset(NamedTuple):
    """Train and test samples.

    Args:
        name: for tables.
        train_inputs: float `[M, ...]`; images are `[M, height, width, channels]`.
        train_targets: int `[M]`, classes from 0.
        test_inputs, test_targets: likewise.
        classes: number of classes.
    """

    name: str
    train_inputs: np.ndarray
    train_targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray
    classes: int


DataSource = Annotated[str | Dataset | tuple[Any, Any], "a name, a Dataset, or a pair (inputs, classes)"]


@checks.arguments
def load(data: DataSource, data_dir: str | Path | None = None) -> Dataset:
    """The data set of that name, or the given arrays.

    Args:
        data: "digits" (1,797 images 8x8), "breast-cancer" (569 x 30), "mnist", "cifar-10", a `Dataset`, or (inputs `[M, ...]`,
            classes `[M]`), of which a fifth, stratified, is held out for testing, as it is of the two bundled sets.
        data_dir: the folder with the files of "mnist" (`train-images-idx3-ubyte`, ..., plain or `.gz`) or "cifar-10"
            (`data_batch_1.bin`, ..., or `data_batch_1`, ..., or the folder above them as the archives unpack).

    Raises:
        ValueError: an unknown name, no data_dir where one is needed, a malformed file, arrays that do not fit.
        FileNotFoundError: a file that is not there, by its path.
    """
    if isinstance(data, Dataset):
        return _checked(data)
    if isinstance(data, str):
        if data in BUNDLED:
            return BUNDLED[data]()
        if data in FILES:
            if data_dir is None:
                raise ValueError(f"data {data!r} is read from files: need data_dir (--data-dir), the folder that holds them")
            return FILES[data](records.expanded("data_dir", data_dir))
        raise ValueError(f"unknown data {data!r}: need one of {', '.join([*BUNDLED, *FILES])}, or arrays")
    if len(data) != 2:
        raise ValueError(f"data of {len(data)} arrays: need a name, a Dataset, or a pair (inputs, classes)")
    return _from_arrays("arrays", *data)


def _from_arrays(name: str, inputs: Any, targets: Any) -> Dataset:
    if not checks.is_numeric(inputs):
        raise ValueError(f"data: inputs = {checks.shown(inputs)}: need numbers [M, ...]")
    inputs, targets = np.asarray(inputs, np.float32), np.asarray(targets)
    if inputs.ndim < 2 or targets.shape != inputs.shape[:1]:
        raise ValueError(f"data: inputs have shape {inputs.shape}, targets {targets.shape}; need [M, ...] and [M]")
    if not np.isfinite(inputs).all():
        raise ValueError("data: inputs have entries that are not finite")
    if np.issubdtype(targets.dtype, np.floating) and not np.isfinite(targets).all():
        raise ValueError("data: targets have entries that are not finite")
    _need_whole("data: targets", targets)
    labels, classes = np.unique(targets, return_inverse=True)
    if len(labels) < 2:
        raise ValueError(f"data: targets have {len(labels)} class; need at least 2")
    sizes = np.bincount(classes)
    if sizes.min() < 2 or len(classes) * _TEST_SHARE < len(labels):
        shown = f"{len(labels)} classes in {len(classes)} samples, the smallest ({labels[sizes.argmin()]}) with {sizes.min()}"
        raise ValueError(f"data: targets have {shown}; need classes with at least 2 samples, and one in the held-out fifth")
    train, test = _split(classes, sizes)
    return Dataset(name, inputs[train], classes[train], inputs[test], classes[test], len(labels))


def _need_whole(what: str, targets: np.ndarray) -> None:
    """Raises a ValueError where targets are fractions: they are not classes, and would be cut off."""
    if targets.dtype.kind == "f" and (targets != np.round(targets)).any():
        raise ValueError(f"{what} have the entry {targets[targets != np.round(targets)][0]}: need classes, whole numbers")


def _split(classes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of a stratified four fifths and of the rest: those that scikit-learn's `train_test_split` draws, whose import takes a second.

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
    """So many seats, in proportion to sizes: whole quotas, then the largest remainders, equal ones by lot."""
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
    for part, inputs, targets in (
        ("train", dataset.train_inputs, dataset.train_targets),
        ("test", dataset.test_inputs, dataset.test_targets),
    ):
        for what, values, least in (("inputs", inputs, 2), ("targets", targets, 1)):
            if not checks.is_numeric(values) or np.ndim(values) < least:
                shape = "[M, ...]" if least > 1 else "[M]"
                raise ValueError(f"{dataset.name}: {part} {what} = {checks.shown(values)}: need an array of numbers {shape}")
            if not np.isfinite(values).all():
                raise ValueError(f"{dataset.name}: {part} {what} have entries that are not finite")
        if len(inputs) != len(targets):
            raise ValueError(f"{dataset.name}: {len(inputs)} {part} inputs, but {len(targets)} labels; need as many")
        _need_whole(f"{dataset.name}: {part} targets", targets)
        if targets.size and not 0 <= targets.min() <= targets.max() < dataset.classes:
            shown = f"{targets.min()} to {targets.max()}"
            raise ValueError(f"{dataset.name}: {part} targets from {shown}, but {dataset.classes} classes; need 0 to {dataset.classes - 1}")
    return dataset


def _digits() -> Dataset:
    table = np.loadtxt(_bundled("digits.csv.gz"), delimiter=",")
    return _from_arrays("digits", np.reshape(table[:, :-1], (-1, 8, 8, 1)) / 16, table[:, -1].astype(int))


def _breast_cancer() -> Dataset:
    table = np.loadtxt(_bundled("breast_cancer.csv"), delimiter=",", skiprows=1)
    dataset = _from_arrays("breast-cancer", table[:, :-1], table[:, -1].astype(int))
    centre, scale = dataset.train_inputs.mean(axis=0), dataset.train_inputs.std(axis=0)
    return dataset._replace(train_inputs=(dataset.train_inputs - centre) / scale, test_inputs=(dataset.test_inputs - centre) / scale)


def _bundled(name: str) -> Path:
    """A file that scikit-learn ships, found without importing it, which takes a second."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{name} comes with scikit-learn, which is not installed: need pip install scikit-learn")
    return Path(spec.origin).parent / "datasets" / "data" / name


def _mnist(folder: Path) -> Dataset:
    return _checked(Dataset(name="mnist", classes=10, **files.mnist(folder)))


def _cifar_10(folder: Path) -> Dataset:
    return _checked(Dataset(name="cifar-10", classes=10, **files.cifar_10(folder)))


BUNDLED = {"digits": _digits, "breast-cancer": _breast_cancer}
FILES = {"mnist": _mnist, "cifar-10": _cifar_10}
