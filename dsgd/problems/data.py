"""Data sets: scikit-learn's bundled ones, arrays, and MNIST and CIFAR-10 files in their published formats. Nothing is downloaded."""

from __future__ import annotations

import gzip
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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


DataSource = str | Dataset | tuple[Any, Any]


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
            return FILES[data](Path(data_dir))
        raise ValueError(f"unknown data {data!r}: need one of {', '.join([*BUNDLED, *FILES])}, or arrays")
    return _from_arrays("arrays", *data)


def _from_arrays(name: str, inputs: Any, targets: Any) -> Dataset:
    from sklearn.model_selection import train_test_split  # noqa: PLC0415 (scikit-learn takes a second to import)

    inputs, targets = np.asarray(inputs, np.float32), np.asarray(targets)
    if inputs.ndim < 2 or targets.shape != inputs.shape[:1]:
        raise ValueError(f"inputs have shape {inputs.shape}, targets {targets.shape}; need [M, ...] and [M]")
    if not np.isfinite(inputs).all():
        raise ValueError("inputs have entries that are not finite")
    if np.issubdtype(targets.dtype, np.floating) and not np.isfinite(targets).all():
        raise ValueError("targets have entries that are not finite")
    labels, classes = np.unique(targets, return_inverse=True)
    if len(labels) < 2:
        raise ValueError(f"targets have {len(labels)} class; need at least 2")
    parts: Any = train_test_split(np.arange(len(classes)), test_size=_TEST_SHARE, random_state=_SPLIT_SEED, stratify=classes)
    train, test = parts
    return Dataset(name, inputs[train], classes[train], inputs[test], classes[test], len(labels))


def _checked(dataset: Dataset) -> Dataset:
    for part, inputs, targets in (
        ("train", dataset.train_inputs, dataset.train_targets),
        ("test", dataset.test_inputs, dataset.test_targets),
    ):
        if len(inputs) != len(targets):
            raise ValueError(f"{dataset.name}: {len(inputs)} {part} inputs, but {len(targets)} labels; need as many")
        if targets.size and not 0 <= targets.min() <= targets.max() < dataset.classes:
            shown = f"{targets.min()} to {targets.max()}"
            raise ValueError(f"{dataset.name}: {part} targets from {shown}, but {dataset.classes} classes; need 0 to {dataset.classes - 1}")
    return dataset


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # noqa: PLC0415

    loaded: Any = load_digits(return_X_y=True)
    inputs, targets = loaded
    return _from_arrays("digits", np.reshape(inputs, (-1, 8, 8, 1)) / 16, targets)


def _breast_cancer() -> Dataset:
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415

    loaded: Any = load_breast_cancer(return_X_y=True)
    inputs, targets = loaded
    dataset = _from_arrays("breast-cancer", inputs, targets)
    centre, scale = dataset.train_inputs.mean(axis=0), dataset.train_inputs.std(axis=0)
    return dataset._replace(train_inputs=(dataset.train_inputs - centre) / scale, test_inputs=(dataset.test_inputs - centre) / scale)


def _mnist(folder: Path) -> Dataset:
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        arrays[f"{part}_inputs"] = _read_idx(folder, f"{prefix}-images-idx3-ubyte", 3)[..., None].astype(np.float32) / 255
        arrays[f"{part}_targets"] = _read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1).astype(np.int64)
        _need_ten_classes(folder / f"{prefix}-labels-idx1-ubyte", arrays[f"{part}_targets"])
    return _checked(Dataset(name="mnist", classes=10, **arrays))


def _need_ten_classes(path: Path, labels: np.ndarray) -> None:
    if labels.size and not 0 <= labels.min() <= labels.max() <= 9:
        raise ValueError(f"{path}: labels from {labels.min()} to {labels.max()}; need 0 to 9")


def _read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """An IDX file: two zero bytes, type 0x08 (unsigned byte), the number of dimensions, big-endian sizes, then the bytes."""
    path = _first_there(folder / name, folder / f"{name}.gz")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
    header = 4 + 4 * dimensions
    if len(raw) < header or raw[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"{path}: its first bytes are {raw[:4].hex(' ')}; need an IDX file of unsigned bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:header])
    if len(raw) - header != int(np.prod(shape)):
        raise ValueError(f"{path}: {len(raw) - header} bytes of data, but its header says {shape}")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


_CIFAR_PIXELS = 3 * 32 * 32


def _cifar_10(folder: Path) -> Dataset:
    for inner in ("cifar-10-batches-bin", "cifar-10-batches-py"):
        if (folder / inner).is_dir():
            folder = folder / inner
    train = [_read_cifar(folder, f"data_batch_{i}") for i in range(1, 6)]
    test = _read_cifar(folder, "test_batch")
    inputs, targets = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return Dataset("cifar-10", inputs, targets, *test, classes=10)


def _read_cifar(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """One batch: `name.bin` is records of a label byte and 3,072 pixels (red, green, blue planes); `name` is a pickled dictionary."""
    path = _first_there(folder / f"{name}.bin", folder / name)
    labels, pixels = _read_cifar_records(path) if path.suffix == ".bin" else _read_cifar_pickle(path)
    _need_ten_classes(path, labels)
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(np.float32) / 255
    return images, labels.astype(np.int64)


def _read_cifar_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    if raw.size == 0 or raw.size % (1 + _CIFAR_PIXELS):
        raise ValueError(f"{path}: {raw.size} bytes; need a multiple of {1 + _CIFAR_PIXELS} (a label and 32x32x3 pixels)")
    records = raw.reshape(-1, 1 + _CIFAR_PIXELS)
    return records[:, 0], records[:, 1:]


def _read_cifar_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file:
            batch = _ArraysOnly(file, encoding="bytes").load()
        labels, pixels = np.asarray(batch[b"labels"]), np.asarray(batch[b"data"])
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a pickled CIFAR-10 batch ({error}); need a dictionary with b'labels' and b'data'") from error
    if labels.ndim != 1 or pixels.shape != (len(labels), _CIFAR_PIXELS):
        raise ValueError(f"{path}: labels of shape {labels.shape}, data {pixels.shape}; need [M] and [M, {_CIFAR_PIXELS}]")
    return labels, pixels


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled numpy arrays and refuses anything else: a pickle can otherwise run any code."""

    _ALLOWED = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise ValueError(f"a CIFAR-10 batch holds numpy arrays; this file asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _first_there(*paths: Path) -> Path:
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(f"no file {' or '.join(str(path) for path in paths)}: need it as published (--data-dir names its folder)")


BUNDLED = {"digits": _digits, "breast-cancer": _breast_cancer}
FILES = {"mnist": _mnist, "cifar-10": _cifar_10}
