"""Images in the published formats of MNIST, its likes, and CIFAR.

No more is read of a file than such a file can hold, whatever it says of itself.
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
        folder: its name in torchvision's root.
        most: images in a file.
        labels: what the classes are called, in their order.
        prefix, test: of the files' names: `{prefix}train-images-idx3-ubyte`,
            `{prefix}{test}-images-idx3-ubyte`.
        first: the first label in the files.
        transposed: whether rows and columns are exchanged in the files.
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
        name: as published.
        folders: of the binary archive and of the pickled one.
        train, test: names of the batches.
        records: images in a batch, at most.
        labels: names of a record's labels, in the order of its bytes.
        label: the one that is the class.
        classes: how many.
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
# without small letters that look like large ones
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
# bytes of one that is pickled: as text, a pixel may take two; labels and a file's name
_RECORD = 2 * _PIXELS + 64
_OPCODES = 16  # instructions that it may take


def read(name: str, folder: Path) -> Arrays:
    """A data set of the `NAMES`; images `[M, height, width, channels]` between 0 and 1.

    Args:
        name: of the data set.
        folder: with its files, or above them as archives unpack, or torchvision's root.

    Raises:
        ValueError: if a file is malformed.
        FileNotFoundError: if one is not there.
    """
    return (
        _read_images(_IMAGES[name], folder)
        if name in _IMAGES
        else _read_cifar(_CIFARS[name], folder)
    )


def _read_images(images: _Images, folder: Path) -> Arrays:
    """The four IDX files `train-images-idx3-ubyte`, ..., plain or `.gz`."""
    arrays: Arrays = {"classes": len(images.labels), "labels": np.array(list(images.labels))}
    for part, name in (("train", "train"), ("test", images.test)):
        pixels = _read_idx(images, folder, f"{images.prefix}{name}-images", 3)
        pixels = pixels.swapaxes(1, 2) if images.transposed else pixels
        labels = _read_idx(images, folder, f"{images.prefix}{name}-labels", 1).astype(np.int64)
        arrays[f"{part}_inputs"] = pixels[..., None].astype(np.float32) / 255
        arrays[f"{part}_targets"] = labels - images.first
        _need_labels(
            folder / f"{images.prefix}{name}-labels-idx1-ubyte",
            labels,
            images.first,
            len(images.labels),
        )
    return arrays


def _need_labels(path: Path, labels: np.ndarray, first: int, classes: int) -> None:
    last = first + classes - 1
    if labels.size and not first <= labels.min() <= labels.max() <= last:
        raise ValueError(
            f"{path}: labels from {labels.min()} to {labels.max()}; need {first} to {last}"
        )


def _read_idx(images: _Images, folder: Path, name: str, dimensions: int) -> np.ndarray:
    """An IDX file: two zero bytes, type 0x08 (unsigned byte), the number of dimensions, big-endian
    sizes, then the bytes.
    """
    path = _idx_file(images, folder, name, dimensions)
    most = (images.most, _SIDE, _SIDE)[:dimensions]
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, 8, dimensions]):
                raise ValueError(
                    f"{path}: its first bytes are {header[:4].hex(' ')}; need an IDX file of "
                    f"unsigned bytes with {dimensions} dimensions"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            if any(size > limit for size, limit in zip(shape, most, strict=True)):
                raise ValueError(
                    f"{path}: its header says {shape}; need at most {most}, as published"
                )
            count = math.prod(shape)
            raw = file.read(count + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error}); need an IDX file") from error
    if len(raw) != count:
        raise ValueError(
            f"{path}: {len(raw) if len(raw) < count else 'more'} bytes of data, but its header "
            f"says {shape}, {count} bytes"
        )
    return np.frombuffer(raw, np.uint8).reshape(shape)


def _idx_file(images: _Images, folder: Path, name: str, dimensions: int) -> Path:
    """The file with a dash or a dot in its name, in the folder or one that archives make."""
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
    """The batches, binary (`data_batch_1.bin`, ...) or pickled (`data_batch_1`, ...)."""
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
    """One batch: `name.bin` is records of label bytes and 3,072 pixels (red, green, blue planes);
    `name` is a pickled dictionary.
    """
    path = _first_there([folder / f"{name}.bin", folder / name])
    try:
        labels, pixels = (
            _read_records(path, cifar) if path.suffix == ".bin" else _read_pickle(path, cifar)
        )
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error}); need a {cifar.name} batch") from error
    _need_labels(path, labels, 0, cifar.classes)
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(np.float32) / 255
    return images, labels.astype(np.int64)


def _read_records(path: Path, cifar: _Cifar) -> tuple[np.ndarray, np.ndarray]:
    record = len(cifar.labels) + _PIXELS
    raw = np.frombuffer(_read_at_most(path, cifar.records * record, cifar), np.uint8)
    if raw.size == 0 or raw.size % record:
        raise ValueError(
            f"{path}: {raw.size} bytes; need a multiple of {record} ({' and '.join(cifar.labels)} "
            "and 32x32x3 pixels)"
        )
    records = raw.reshape(-1, record)
    return records[:, cifar.labels.index(cifar.label)], records[:, len(cifar.labels) :]


def _read_at_most(path: Path, most: int, cifar: _Cifar) -> bytes:
    if path.stat().st_size > most:
        raise ValueError(
            f"{path}: {path.stat().st_size} bytes; need at most {most}, a {cifar.name} batch of "
            f"{cifar.records} images"
        )
    return path.read_bytes()


def _read_pickle(path: Path, cifar: _Cifar) -> tuple[np.ndarray, np.ndarray]:
    raw = _read_at_most(path, cifar.records * _RECORD, cifar)
    key = cifar.label.encode()
    try:
        _check_opcodes(raw, cifar.records)
        batch = _Inert(raw).load()
        # lists of lists of one list would be arrays of any size
        if not all(isinstance(label, int) for label in batch[key]):
            raise ValueError("its labels are no integers")
        labels, pixels = np.asarray(batch[key]), batch[b"data"].bytes_of_rows()
    except Exception as error:  # what a broken pickle raises is anything
        raise ValueError(
            f"{path}: not a pickled {cifar.name} batch ({error}); need a dictionary with {key} "
            "and b'data'"
        ) from error
    if (
        labels.dtype.kind not in "iu"
        or pixels.shape != (*labels.shape, _PIXELS)
        or labels.ndim != 1
    ):
        raise ValueError(
            f"{path}: labels of shape {labels.shape}, data {pixels.shape}; need [M] integers and "
            f"[M, {_PIXELS}]"
        )
    return labels, pixels


def _check_opcodes(raw: bytes, records: int) -> None:
    """Raises a ValueError where a pickle's code would make more of it than it is: strings longer
    than the file, places in the memo (one may be at 2^32) that are not the next one, or as many
    objects as no batch of so many records has."""
    stored = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if count > _OPCODES * records:
            raise ValueError(f"more than {_OPCODES} instructions for each of {records} images")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument is not None:
            stored += 1
            if argument > stored:
                raise ValueError(f"its memo's {stored}th object is stored at {argument}")


class _Pickled:
    """What stands in a pickle for an array or its dtype: it keeps what it is given, and runs
    nothing, numpy's own code included.
    """

    def __init__(self, *arguments: Any):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_of_rows(self) -> np.ndarray:
        _, shape, dtype, fortran, raw = self.state
        if dtype.arguments[0] not in (b"u1", "u1") or fortran:
            raise ValueError(f"its array has dtype {dtype.arguments[0]!r}; need 'u1', in rows")
        return np.frombuffer(raw, np.uint8).reshape(shape)


class _Inert(pickle.Unpickler):
    """Reads what pickled numpy arrays are made of and refuses anything else: a pickle can otherwise
    run any code.
    """

    _ALLOWED: ClassVar = {
        ("numpy.core.multiarray", "_reconstruct"): _Pickled,
        ("numpy._core.multiarray", "_reconstruct"): _Pickled,
        ("numpy", "ndarray"): _Pickled,
        ("numpy", "dtype"): _Pickled,
    }

    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self.left = len(raw)  # bytes that may still be made of texts

    def _encode(self, text: str, encoding: str) -> bytes:
        self.left -= len(text)
        if self.left < 0:
            raise ValueError("the same text is used again and again")
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # as Python 3 writes bytes for Python 2
            return self._encode
        if (module, name) not in self._ALLOWED:
            raise ValueError(
                f"a CIFAR batch holds numpy arrays; this file asks for {module}.{name}"
            )
        return self._ALLOWED[module, name]


def is_there(path: Path, kind: Callable[[Path], bool] = Path.is_file) -> bool:
    """Whether there is such a file, or folder; also of names too long, or with null bytes, or in
    folders that are closed.
    """
    try:
        return kind(path)
    except (OSError, ValueError):
        return False


def _first_there(paths: Sequence[Path]) -> Path:
    for path in paths:
        if is_there(path):
            return path
    others = f", nor {len(paths) - 2} like them" if len(paths) > 2 else ""
    first = repr(str(paths[0]))[1:-1]  # null bytes as they are written
    raise FileNotFoundError(
        f"no file {first} or {paths[1].name}{others}: need it as published (--data-dir names its "
        "folder)"
    )
