"""MNIST and CIFAR-10 files in their published formats. No more is read of a file than such a file can hold, whatever it says of itself."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
import struct
import zlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

_MNIST = (60_000, 28, 28)  # at most
_CIFAR_RECORDS, _CIFAR_PIXELS = 10_000, 3 * 32 * 32  # of a batch
_RECORD = 2 * _CIFAR_PIXELS + 64  # bytes of one that is pickled: as text, a pixel may take two; a label and a file's name
_OPCODES = 16  # instructions that it may take
Arrays = dict[str, np.ndarray]  # "train_inputs", "train_targets", "test_inputs", "test_targets", as in `Dataset`


def mnist(folder: Path) -> Arrays:
    """The four IDX files `train-images-idx3-ubyte`, ..., plain or `.gz`; images `[M, 28, 28, 1]` between 0 and 1."""
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        arrays[f"{part}_inputs"] = _read_idx(folder, f"{prefix}-images-idx3-ubyte", 3)[..., None].astype(np.float32) / 255
        arrays[f"{part}_targets"] = _read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1).astype(np.int64)
        _need_ten_classes(folder / f"{prefix}-labels-idx1-ubyte", arrays[f"{part}_targets"])
    return arrays


def _need_ten_classes(path: Path, labels: np.ndarray) -> None:
    if labels.size and not 0 <= labels.min() <= labels.max() <= 9:
        raise ValueError(f"{path}: labels from {labels.min()} to {labels.max()}; need 0 to 9")


def _read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """An IDX file: two zero bytes, type 0x08 (unsigned byte), the number of dimensions, big-endian sizes, then the bytes."""
    path = _first_there(folder / name, folder / f"{name}.gz")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, 8, dimensions]):
                raise ValueError(
                    f"{path}: its first bytes are {header[:4].hex(' ')}; need an IDX file of unsigned bytes with {dimensions} dimensions"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            if any(size > most for size, most in zip(shape, _MNIST, strict=False)):
                raise ValueError(f"{path}: its header says {shape}; need at most {_MNIST[:dimensions]}, as published")
            count = math.prod(shape)
            raw = file.read(count + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a whole gzip file ({error})") from error
    if len(raw) != count:
        raise ValueError(f"{path}: {len(raw) if len(raw) < count else 'more'} bytes of data, but its header says {shape}, {count} bytes")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def cifar_10(folder: Path) -> Arrays:
    """The six batches, binary (`data_batch_1.bin`, ...) or pickled (`data_batch_1`, ...); images `[M, 32, 32, 3]` between 0 and 1."""
    for inner in ("cifar-10-batches-bin", "cifar-10-batches-py"):
        if (folder / inner).is_dir():
            folder = folder / inner
    train = [_read_cifar(folder, f"data_batch_{i}") for i in range(1, 6)]
    test = _read_cifar(folder, "test_batch")
    inputs, targets = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
    return {"train_inputs": inputs, "train_targets": targets, "test_inputs": test[0], "test_targets": test[1]}


def _read_cifar(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """One batch: `name.bin` is records of a label byte and 3,072 pixels (red, green, blue planes); `name` is a pickled dictionary."""
    path = _first_there(folder / f"{name}.bin", folder / name)
    labels, pixels = _read_cifar_records(path) if path.suffix == ".bin" else _read_cifar_pickle(path)
    _need_ten_classes(path, labels)
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(np.float32) / 255
    return images, labels.astype(np.int64)


def _read_cifar_records(path: Path) -> tuple[np.ndarray, np.ndarray]:
    raw = np.frombuffer(_read_at_most(path, _CIFAR_RECORDS * (1 + _CIFAR_PIXELS)), np.uint8)
    if raw.size == 0 or raw.size % (1 + _CIFAR_PIXELS):
        raise ValueError(f"{path}: {raw.size} bytes; need a multiple of {1 + _CIFAR_PIXELS} (a label and 32x32x3 pixels)")
    records = raw.reshape(-1, 1 + _CIFAR_PIXELS)
    return records[:, 0], records[:, 1:]


def _read_at_most(path: Path, most: int) -> bytes:
    if path.stat().st_size > most:
        raise ValueError(f"{path}: {path.stat().st_size} bytes; need at most {most}, a CIFAR-10 batch of {_CIFAR_RECORDS} images")
    return path.read_bytes()


def _read_cifar_pickle(path: Path) -> tuple[np.ndarray, np.ndarray]:
    raw = _read_at_most(path, _CIFAR_RECORDS * _RECORD)
    try:
        _check_opcodes(raw)
        batch = _Inert(raw).load()
        if not all(isinstance(label, int) for label in batch[b"labels"]):  # lists of lists of one list would be arrays of any size
            raise ValueError("its labels are no integers")
        labels, pixels = np.asarray(batch[b"labels"]), batch[b"data"].bytes_of_rows()
    except Exception as error:  # what a broken pickle raises is anything
        raise ValueError(f"{path}: not a pickled CIFAR-10 batch ({error}); need a dictionary with b'labels' and b'data'") from error
    if labels.dtype.kind not in "iu" or pixels.shape != (*labels.shape, _CIFAR_PIXELS) or labels.ndim != 1:
        raise ValueError(f"{path}: labels of shape {labels.shape}, data {pixels.shape}; need [M] integers and [M, {_CIFAR_PIXELS}]")
    return labels, pixels


def _check_opcodes(raw: bytes) -> None:
    """Raises a ValueError where a pickle's code would make more of it than it is: strings longer than the file, places in the memo (one may
    be at 2^32) that are not the next one, or as many objects as no batch has."""
    stored = 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
        if count > _OPCODES * _CIFAR_RECORDS:
            raise ValueError(f"more than {_OPCODES} instructions for each of {_CIFAR_RECORDS} images")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and argument is not None:
            stored += 1
            if argument > stored:
                raise ValueError(f"its memo's {stored}th object is stored at {argument}")


class _Pickled:
    """What stands in a pickle for an array or its dtype: it keeps what it is given, and runs nothing, numpy's own code included."""

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
    """Reads what pickled numpy arrays are made of and refuses anything else: a pickle can otherwise run any code."""

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
            raise ValueError(f"a CIFAR-10 batch holds numpy arrays; this file asks for {module}.{name}")
        return self._ALLOWED[module, name]


def _first_there(*paths: Path) -> Path:
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(f"no file {' or '.join(str(path) for path in paths)}: need it as published (--data-dir names its folder)")
