"""Images in the published file formats of MNIST (also Fashion-MNIST, KMNIST and EMNIST) and CIFAR.

Reading is limited to the published size of a file, whatever size its header states.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import string
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

# "train_inputs", "train_targets", "test_inputs", "test_targets", "classes", "labels", as in
# `Dataset`
Arrays = dict[str, Any]


class _Images(NamedTuple):
    """A data set in IDX files.

    Args:
        folder: name of its folder in torchvision's root.
        most: largest number of images in a file.
        labels: names of the classes, in order.
        prefix, test: parts of the file names, `{prefix}train-images-idx3-ubyte` and
            `{prefix}{test}-images-idx3-ubyte`.
        first: the first label in the files.
        transposed: whether rows and columns of the images are exchanged in the files.
    """

    folder: str
    most: int
    labels: Sequence[str]
    prefix: str = ""
    test: str = "t10k"
    first: int = 0
    transposed: bool = False


class _Cifar(NamedTuple):
    """A data set in CIFAR's batches.

    Args:
        name: name as published.
        folders: names of the unpacked folders of the binary and of the pickled archive.
        train, test: names of the batches.
        records: largest number of images in a batch.
        labels: names of a record's labels, in the order of its bytes.
        label: the label that is the class.
        classes: number of classes.
    """

    name: str
    folders: tuple[str, str]
    train: Sequence[str]
    test: str
    records: int
    labels: tuple[str, ...]
    label: str
    classes: int


_DIGITS = string.digits
_BOTH_CASES = _DIGITS + string.ascii_uppercase + string.ascii_lowercase
# EMNIST merges lower-case letters that look like their upper-case forms.
_MERGED = _DIGITS + string.ascii_uppercase + "abdefghnqrt"
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_KANA = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def _emnist(split: str, most: int, labels: str, first: int = 0) -> _Images:
    return _Images("EMNIST", most, labels, f"emnist-{split}-", "test", first, transposed=True)


_IMAGES = {
    "mnist": _Images("MNIST", 60_000, _DIGITS),
    "fashion-mnist": _Images("FashionMNIST", 60_000, _CLOTHES),
    "kmnist": _Images("KMNIST", 60_000, _KANA),
    "emnist-byclass": _emnist("byclass", 697_932, _BOTH_CASES),
    "emnist-bymerge": _emnist("bymerge", 697_932, _MERGED),
    "emnist-balanced": _emnist("balanced", 112_800, _MERGED),
    "emnist-letters": _emnist("letters", 124_800, string.ascii_uppercase, first=1),
    "emnist-digits": _emnist("digits", 240_000, _DIGITS),
    "emnist-mnist": _emnist("mnist", 60_000, _DIGITS),
}
_CIFAR_100 = _Cifar(
    "CIFAR-100",
    ("cifar-100-binary", "cifar-100-python"),
    ("train",),
    "test",
    50_000,
    ("coarse_labels", "fine_labels"),
    "fine_labels",
    100,
)
_CIFARS = {
    "cifar-10": _Cifar(
        "CIFAR-10",
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        [f"data_batch_{i}" for i in range(1, 6)],
        "test_batch",
        10_000,
        ("labels",),
        "labels",
        10,
    ),
    "cifar-100": _CIFAR_100,
    "cifar-100-coarse": _CIFAR_100._replace(label="coarse_labels", classes=20),
}
NAMES = (*_IMAGES, *_CIFARS)
_SIDE = 28  # pixels
_PIXELS = 3 * 32 * 32
# Limits for each image of a pickled batch. Bytes: a pixel takes up to two if it is written as text;
# labels and a file name are added.
_RECORD = 2 * _PIXELS + 64
_OPCODES = 16  # pickle instructions


def read(name: str, folder: Path) -> Arrays:
    """Reads one of the data sets in `NAMES`. Images are `[M, height, width, channels]` with values
    from 0 to 1.

    Args:
        name: name of the data set.
        folder: folder with the files, or its parent folder after unpacking an archive, or
            torchvision's root.

    Raises:
        ValueError: if a file is malformed.
        FileNotFoundError: if a file does not exist.
    """
    return (
        _read_images(_IMAGES[name], folder)
        if name in _IMAGES
        else _read_cifar(_CIFARS[name], folder)
    )


def _read_images(images: _Images, folder: Path) -> Arrays:
    """Reads the four IDX files `train-images-idx3-ubyte`, ..., plain or `.gz`."""
    arrays: Arrays = {"classes": len(images.labels), "labels": np.array(list(images.labels))}
    for part, name in (("train", "train"), ("test", images.test)):
        pixels = _read_idx(images, folder, f"{images.prefix}{name}-images", 3)
        pixels = pixels.swapaxes(1, 2) if images.transposed else pixels
        labels = _read_idx(images, folder, f"{images.prefix}{name}-labels", 1).astype(np.int64)
        arrays[f"{part}_inputs"] = pixels[..., None].astype(np.float32) / 255
        arrays[f"{part}_targets"] = labels - images.first
        _require_labels(
            folder / f"{images.prefix}{name}-labels-idx1-ubyte",
            labels,
            images.first,
            len(images.labels),
        )
    return arrays


def _require_labels(path: Path, labels: np.ndarray, first: int, classes: int) -> None:
    last = first + classes - 1
    if labels.size and not first <= labels.min() <= labels.max() <= last:
        raise ValueError(
            f"{path}: labels from {labels.min()} to {labels.max()}; expected {first} to {last}"
        )


def _read_idx(images: _Images, folder: Path, name: str, dimensions: int) -> np.ndarray:
    """Reads an IDX file: two zero bytes, the type 0x08 (unsigned byte), the number of dimensions,
    the sizes as big-endian 32-bit integers, then the data bytes.
    """
    path = _idx_file(images, folder, name, dimensions)
    most = (images.most, _SIDE, _SIDE)[:dimensions]
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, 8, dimensions]):
                raise ValueError(
                    f"{path}: the first bytes are {header[:4].hex(' ')}; expected an IDX file of "
                    f"unsigned bytes with {dimensions} dimensions"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            if any(size > limit for size, limit in zip(shape, most, strict=True)):
                raise ValueError(
                    f"{path}: the header states the shape {shape}; expected at most {most}, as "
                    "published"
                )
            count = math.prod(shape)
            raw = file.read(count + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged ({error}); expected an intact gzip file") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error}); expected an IDX file") from error
    if len(raw) != count:
        raise ValueError(
            f"{path}: {len(raw) if len(raw) < count else f'more than {count}'} bytes of data; "
            f"expected {count}, since the header states the shape {shape}"
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _idx_file(images: _Images, folder: Path, name: str, dimensions: int) -> Path:
    """Returns the path of an IDX file, with a dash or a dot in its name, in the folder or in one
    that archives are unpacked to.
    """
    folders = [
        folder,
        folder / images.folder / "raw",
        folder / "raw",
        folder / images.folder,
        folder / "gzip",
    ]
    names = [f"{name}{mark}idx{dimensions}-ubyte" for mark in "-."]
    plain = [
        each / file for file in names for each in (*folders, *(folder / file for file in names))
    ]
    return _first_there(
        [path.with_name(f"{path.name}{packed}") for path in plain for packed in ("", ".gz")]
    )


def _read_cifar(cifar: _Cifar, folder: Path) -> Arrays:
    """Reads the batches, binary (`data_batch_1.bin`, ...) or pickled (`data_batch_1`, ...)."""
    folder = next(
        (folder / inner for inner in cifar.folders if is_there(folder / inner, Path.is_dir)), folder
    )
    train = [_read_batch(cifar, folder, name) for name in cifar.train]
    test = _read_batch(cifar, folder, cifar.test)
    inputs, targets = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return {
        "train_inputs": inputs,
        "train_targets": targets,
        "test_inputs": test[0],
        "test_targets": test[1],
        "classes": cifar.classes,
    }


def _read_batch(cifar: _Cifar, folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads a batch. `name.bin` consists of records of label bytes and 3,072 pixels (red, green and
    blue planes); `name` is a pickled dictionary.
    """
    path = _first_there([folder / f"{name}.bin", folder / name])
    try:
        labels, pixels = (
            _read_records(path, cifar) if path.suffix == ".bin" else _read_pickle(path, cifar)
        )
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); expected a {cifar.name} batch"
        ) from error
    _require_labels(path, labels, 0, cifar.classes)
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(np.float32) / 255
    return images, labels.astype(np.int64)


def _read_records(path: Path, cifar: _Cifar) -> tuple[np.ndarray, np.ndarray]:
    record = len(cifar.labels) + _PIXELS
    raw = np.frombuffer(_read_at_most(path, cifar.records * record, cifar), np.uint8)
    if raw.size == 0 or raw.size % record:
        raise ValueError(
            f"{path}: {raw.size} bytes; expected a multiple of {record} "
            f"({' and '.join(cifar.labels)} and 32x32x3 pixels)"
        )
    records = raw.reshape(-1, record)
    return records[:, cifar.labels.index(cifar.label)], records[:, len(cifar.labels) :]


def _read_at_most(path: Path, most: int, cifar: _Cifar) -> bytes:
    if path.stat().st_size > most:
        raise ValueError(
            f"{path}: {path.stat().st_size} bytes; expected at most {most}, a {cifar.name} batch "
            f"of {cifar.records} images"
        )
    return path.read_bytes()


def _read_pickle(path: Path, cifar: _Cifar) -> tuple[np.ndarray, np.ndarray]:
    raw = _read_at_most(path, cifar.records * _RECORD, cifar)
    key = cifar.label.encode()
    try:
        _check_opcodes(raw, cifar.records)
        batch = _Inert(raw).load()
        # Nested lists that share one list could become an array of any size.
        if not all(isinstance(label, int) for label in batch[key]):
            raise ValueError("its labels are not integers")
        labels, pixels = np.asarray(batch[key]), batch[b"data"].bytes_of_rows()
    except Exception as error:  # a damaged pickle may raise any exception
        raise ValueError(
            f"{path}: not a pickled {cifar.name} batch ({error}); expected a dictionary with {key} "
            "and b'data'"
        ) from error
    if (
        labels.dtype.kind not in "iu"
        or pixels.shape != (*labels.shape, _PIXELS)
        or labels.ndim != 1
    ):
        raise ValueError(
            f"{path}: labels of shape {labels.shape}, data {pixels.shape}; expected integers [M] "
            f"and [M, {_PIXELS}]"
        )
    return labels, pixels


def _check_opcodes(raw: bytes, records: int) -> None:
    """Raises a ValueError if loading a pickle could take much more memory than the file has bytes:
    if it stores an object at a memo index that is not the next one (an index may be 2^32), or has
    more instructions than a batch of `records` images. `pickletools` itself raises if a string is
    longer than the file.
    """
    stored = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if count > _OPCODES * records:
            raise ValueError(f"more than {_OPCODES} instructions for each of {records} images")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument is not None:
            stored += 1
            if argument > stored:
                raise ValueError(f"object {stored} of its memo is stored at index {argument}")


class _Pickled:
    """Placeholder for an array or dtype in a pickle. It stores its arguments and state and runs no
    code, not even numpy's.
    """

    def __init__(self, *arguments: Any):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_of_rows(self) -> np.ndarray:
        _, shape, dtype, fortran, raw = self.state
        if dtype.arguments[0] not in (b"u1", "u1") or fortran:
            raise ValueError(
                f"its array has dtype {dtype.arguments[0]!r}; expected 'u1', in C order"
            )
        return np.frombuffer(raw, np.uint8).reshape(shape)


class _Inert(pickle.Unpickler):
    """An unpickler that accepts only the parts of pickled numpy arrays, since a pickle can
    otherwise run any code.
    """

    _ALLOWED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): _Pickled,
        ("numpy._core.multiarray", "_reconstruct"): _Pickled,
        ("numpy", "ndarray"): _Pickled,
        ("numpy", "dtype"): _Pickled,
    }

    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self.left = len(raw)  # remaining number of bytes that may be decoded from strings

    def _encode(self, text: str, encoding: str) -> bytes:
        self.left -= len(text)
        if self.left < 0:
            raise ValueError("its strings are longer than the file, since one is used repeatedly")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (
            "_codecs",
            "encode",
        ):  # Python 3 pickles bytes in this way for Python 2
            return self._encode
        if (module, name) not in self._ALLOWED:
            raise ValueError(
                f"it refers to {module}.{name}; a CIFAR batch contains numpy arrays only"
            )
        return self._ALLOWED[module, name]


def is_there(path: Path, kind: Callable[[Path], bool] = Path.is_file) -> bool:
    """Whether a file (or folder) exists. Returns False for names that are too long or contain null
    bytes, and in folders without permission.
    """
    try:
        return kind(path)
    except (OSError, ValueError):
        return False


def _first_there(paths: Sequence[Path]) -> Path:
    for path in paths:
        if is_there(path):
            return path
    others = f", nor {len(paths) - 2} similar names" if len(paths) > 2 else ""
    first = repr(str(paths[0]))[1:-1]  # null bytes as escape sequences
    raise FileNotFoundError(
        f"no file {first} or {paths[1].name}{others}; expected the file as published (data_dir, "
        "--data-dir, is its folder)"
    )
