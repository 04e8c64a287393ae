"""Data sets that are bundled, given as arrays, and read from files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import re
import struct
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_breast_cancer
from sklearn.model_selection import train_test_split

from dsgd import problems

SPARSE = sp.random_array((40, 90), density=0.03, rng=np.random.default_rng(1), format="csr")
CLASSES = np.arange(40) % 3
TRAIN, TEST = 10, 3
PARTS = ("train", "test")
PACKED: dict[str, Any] = {".bz2": bz2, ".gz": gzip, ".xz": lzma}


def write(path: Path, raw: bytes) -> None:
    """Writes a file, compressed if its name ends so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACKED[path.suffix].compress(raw) if path.suffix in PACKED else raw)


def idx(array: np.ndarray) -> bytes:
    """Returns the MNIST format: magic number 2049 (labels) or 2051 (images), big-endian sizes,
    bytes row by row.
    """
    magic, raw = {1: 2049, 3: 2051}[array.ndim], array.astype(np.uint8).tobytes()
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + raw


def write_mnist(
    folder: Path, mark: str = "-", packed: str = "", prefix: str = "", test: str = "t10k", first=0
) -> tuple[np.ndarray, np.ndarray]:
    """Writes images `[M, height, width, channels]` and labels `[M]`, which start at `first`."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (TRAIN + TEST, 28, 28, 1))
    labels = rng.permutation(TRAIN + TEST) % 10 + first
    for name, part in (("train", slice(TRAIN)), (test, slice(TRAIN, None))):
        for kind, array in (("images", images[part, ..., 0]), ("labels", labels[part])):
            file = f"{prefix}{name}-{kind}{mark}idx{array.ndim}-ubyte{packed}"
            write(folder / file, idx(array))
    return images, labels


class Python2(pickle._Pickler):
    """Writes byte strings as Python 2's `cPickle.dump(value, file, 2)` wrote the published batches,
    with numpy's module path of that time.
    """

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_text(self, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)

    dispatch[str] = dispatch[bytes] = save_text


def pickle_batch(content: Any) -> bytes:
    Python2(file := io.BytesIO(), 2).dump(content)
    return file.getvalue().replace(b"numpy._core", b"numpy.core")


def planes(images: np.ndarray) -> np.ndarray:
    """Returns 3,072 bytes of each image: the red plane row by row, then green, then blue."""
    rows = [np.concatenate([image[..., c].ravel() for c in range(3)]) for image in images]
    return np.array(rows, np.uint8)


def write_cifar(folder: Path, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (TRAIN + TEST, 32, 32, 3))
    labels = rng.integers(0, 10, TRAIN + TEST)
    ends = [*range(0, TRAIN + 1, TRAIN // 5), TRAIN + TEST]
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        part = slice(*ends[i : i + 2])
        pixels, own = planes(images[part]), labels[part]
        if binary:
            raw = np.column_stack([own, pixels]).astype(np.uint8).tobytes()
            write(folder / "cifar-10-batches-bin" / f"{name}.bin", raw)
        else:
            content = {"batch_label": "1 of 5", "labels": own.tolist(), "data": pixels}
            write(folder / "cifar-10-batches-py" / name, pickle_batch(content))
    return images, labels


COARSE, FINE = [19, 0, 3], [99, 1, 2]


def write_cifar_100(folder: Path, binary: bool) -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3072), np.uint8)
    content = {b"data": pixels, b"coarse_labels": COARSE, b"fine_labels": FINE}
    for part in ("train", "test"):
        if binary:
            raw = np.column_stack([COARSE, FINE, pixels]).astype(np.uint8).tobytes()
            write(folder / "cifar-100-binary" / f"{part}.bin", raw)
        else:
            write(folder / "cifar-100-python" / part, pickle.dumps(content, 2))
    return pixels


def assert_read_back(
    dataset: problems.Dataset, images: np.ndarray, labels: np.ndarray, classes: int = 10
):
    assert dataset.classes == classes
    pixels = (images / 255).astype(np.float32)
    assert_is_split(dataset, pixels[:TRAIN], pixels[TRAIN:], labels[:TRAIN], labels[TRAIN:])


def split(inputs: Any, classes: Any) -> list[np.ndarray]:
    """Returns inputs for training and for testing, then classes, as split by scikit-learn: a fifth,
    stratified.
    """
    return train_test_split(inputs, classes, test_size=0.2, random_state=0, stratify=classes)


def assert_is_split(dataset: problems.Dataset, *expected: np.ndarray):
    found = (getattr(dataset, f"{part}_{what}") for what in ("inputs", "targets") for part in PARTS)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_breast_cancer_is_standardised_by_its_training_samples():
    inputs, classes = load_breast_cancer(return_X_y=True)
    train, test, *classes = split(inputs.astype(np.float32), classes)
    center, scale = train.mean(axis=0), train.std(axis=0)
    dataset = problems.load("breast-cancer")
    assert_is_split(dataset, (train - center) / scale, (test - center) / scale, *classes)


THIRDS = np.arange(60) % 3


@pytest.mark.parametrize(
    "labels",
    [
        np.repeat([7, -3, 40], [10, 20, 30]),
        np.where(THIRDS, "cat", "ant"),
        pd.Series(["b", "a"] * 30, dtype="category"),
    ],
    ids=["numbers", "texts", "categories"],
)
def test_arrays_keep_every_sample_with_its_class_and_its_label(labels):
    inputs = np.random.default_rng(0).normal(size=(60, 4, 5)).astype(np.float32)
    names, classes = np.unique(np.asarray(labels), return_inverse=True)
    dataset = problems.load((inputs, labels))
    np.testing.assert_array_equal(dataset.labels, names)
    assert_is_split(dataset, *split(inputs, classes))


# Files


@pytest.mark.parametrize(
    ("data", "inner", "mark", "packed"),
    [
        ("mnist", "MNIST/raw", "-", ".gz"),
        ("mnist", "raw", ".", ""),
        ("fashion-mnist", "FashionMNIST/raw", ".", ".gz"),
        ("kmnist", "", "-", ""),
    ],
)
def test_images_in_the_format_of_mnist_are_read_back(tmp_path, data, inner, mark, packed):
    files = write_mnist(tmp_path / inner, mark, packed)
    found = problems.load(data, tmp_path)
    assert_read_back(found, *files)
    assert len(found.labels) == 10


@pytest.mark.parametrize("binary", [True, False])
def test_cifar_files_are_read_back_exactly(tmp_path, binary):
    """Planes become channels, red first; the five batches keep their order; the folder may be the
    archive's, or the one above it.
    """
    files = write_cifar(tmp_path, binary)
    for folder in (tmp_path, *tmp_path.iterdir(), str(tmp_path)):
        assert_read_back(problems.load("cifar-10", folder), *files)


@pytest.mark.parametrize(
    ("data", "classes", "labels", "binary"),
    [("cifar-100", 100, FINE, True), ("cifar-100-coarse", 20, COARSE, False)],
)
def test_cifar_100_is_read_binary_and_pickled(tmp_path, data, classes, labels, binary):
    pixels = write_cifar_100(tmp_path, binary)
    found = problems.load(data, tmp_path)
    assert found.classes == classes
    np.testing.assert_array_equal(found.train_targets, labels)
    np.testing.assert_allclose(
        found.train_inputs.transpose(0, 3, 1, 2).reshape(3, -1) * 255, pixels, rtol=1e-6
    )


def svmlight(matrix: Any, labels: Any, first: int = 1) -> bytes:
    lines = []
    for row, label in zip(matrix.toarray(), labels, strict=True):
        pairs = [f"{place + first}:{row[place]:.9g}" for place in np.flatnonzero(row)]
        lines.append(" ".join([str(label), *pairs]))
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize(("labels", "kept"), [(["-1", "+1"], [-1, 1]), (["3.0", "7"], [3, 7])])
def test_libsvm_files_are_read_with_the_test_file_of_fewer_features(tmp_path, labels, kept):
    classes, narrow = np.arange(40) % 2, SPARSE[:10, :70]
    given = [labels[c] for c in classes]
    write(tmp_path / "a9a", svmlight(SPARSE, given))
    write(tmp_path / "a9a.t", svmlight(narrow, given[:10]))
    found = problems.load("a9a", tmp_path)
    np.testing.assert_array_equal(found.labels, kept)
    np.testing.assert_array_equal(found.train_targets, classes)
    np.testing.assert_allclose(found.train_inputs.toarray(), SPARSE.toarray(), rtol=1e-6)
    wide = np.pad(narrow.toarray(), ((0, 0), (0, 20)))
    np.testing.assert_allclose(found.test_inputs.toarray(), wide, rtol=1e-6)
    made = problems.logistic_regression("a9a", 2, data_dir=tmp_path)
    assert made.name == "logistic_regression(a9a, iid)"


def test_samples_of_a_file_that_are_held_out_are_logged_and_shown(tmp_path, caplog):
    write(tmp_path / "w1a", svmlight(SPARSE, np.arange(40) % 2))
    options: dict[str, Any] = {"weights": [1, 2, 5], "batch_size": 7, "l2": 0.25}
    made = problems.logistic_regression("w1a", 3, data_dir=tmp_path, **options)
    assert "w1a: 8 of its samples, a stratified fifth" in caplog.text
    assert repr(made) == (
        "Problem(logistic_regression(w1a, iid), workers=3, samples=10 to 11, test_samples=8, "
        "batch_size=7, l2=0.25, weights=0.375 to 1.875)"
    )
    caplog.clear()
    write(tmp_path / "w1a.t", svmlight(SPARSE[:9], np.arange(9) % 2))
    assert len(problems.load("w1a", tmp_path).test_targets) == 9
    assert not caplog.text


def test_csv_files_are_read_by_the_column_of_the_classes(tmp_path):
    path = tmp_path / "table.csv"
    lines = "".join(f"{i},{'xyz'[i % 3]},{i / 2}\n" for i in range(30))
    path.write_text('\ufeffa,kind,"b, quoted"\n' + lines, encoding="utf-8")
    for given in (("table.csv", tmp_path), (path,)):
        found = problems.load(*given, target="kind")
        assert list(found.labels) == ["x", "y", "z"]
        np.testing.assert_array_equal(found.train_inputs[:, 0], 2 * found.train_inputs[:, 1])
        np.testing.assert_array_equal(found.train_inputs[:, 0] % 3, found.train_targets)


# Damaged files: each is named in one line, and uses no more memory than its bytes


def nest(times: int) -> list:
    """Returns nested lists of the same list twice: numpy would make an array of 2^30 numbers of
    them.
    """
    return [inner := nest(times - 1), inner] if times else [1, 2]


def bytes_as(kind: type, count: int) -> np.ndarray:
    return np.zeros((2, count), kind)


SIZED = struct.Struct(">HBB3I")  # header of an IDX file
WHOLE = bytes_as(np.uint8, 3072)
BATCH = "cifar-10-batches-py/data_batch_1"
IMAGES = "train-images-idx3-ubyte"
# By the written data set, its name, and the damaged file: a function of its bytes (or other
# contents), and words of the message.
DAMAGED: dict[tuple[Any, str, str], list[tuple[Any, str]]] = {
    (write_mnist, "mnist", IMAGES): [
        (lambda raw: raw[:-1], "7839 bytes"),
        (lambda raw: raw + b"\0", "more than"),
        (lambda raw: raw[:2] + b"\x0d" + raw[3:], "00 00 0d 03"),
        (SIZED.pack(0, 8, 3, 2, 2**16, 2**16), "60000, 28, 28"),
    ],
    (partial(write_mnist, packed=".gz"), "mnist", f"{IMAGES}.gz"): [
        (lambda raw: raw[: len(raw) // 2], "gzip"),
        # 32 MiB of zeros in 32 KiB: two images are declared
        (gzip.compress(SIZED.pack(0, 8, 3, 2, 28, 28) + bytes(32 << 20)), "more than"),
    ],
    (write_mnist, "mnist", "train-labels-idx1-ubyte"): [
        (idx(np.zeros(TRAIN - 1)), "mnist: .*10 inputs"),
    ],
    (write_mnist, "mnist", "t10k-labels-idx1-ubyte"): [(idx(np.array([0, 10, 9])), "0 to 10")],
    (
        partial(write_mnist, prefix="emnist-letters-", test="test", first=1),
        "emnist-letters",
        "emnist-letters-test-labels-idx1-ubyte",
    ): [(idx(np.arange(3)), "0 to 2; .*1 to 26")],
    (
        partial(write_cifar, binary=True),
        "cifar-10",
        "cifar-10-batches-bin/data_batch_3.bin",
    ): [
        (lambda raw: raw[:-1], "multiple of 3073"),
        (lambda raw: b"\x0a" + raw[1:], "10"),
    ],
    (partial(write_cifar, binary=False), "cifar-10", BATCH): [
        (b"", "not a pickled"),
        (pickle_batch({"labels": [3, 10], "data": WHOLE}), "3 to 10"),
        (pickle_batch({"data": WHOLE}), "labels"),
        (pickle_batch({"labels": [1, 2], "data": bytes_as(np.uint8, 3071)}), "3071"),
        # pickles that would grow when they are loaded
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "stored at .*2147483647"),
        (b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"x.", "bytes"),
        (b"\x80\x02(" + b"]" * 200_000 + b"t.", "16 instructions"),
        (pickle.dumps({b"labels": nest(30)}, 3), "integers"),
        # the same text, 1 MB, as bytes repeatedly
        (
            b"\x80\x02c_codecs\nencode\nq\x00X"
            + struct.pack("<I", 1 << 20)
            + b"x" * (1 << 20)
            + b"X\x06\x00\x00\x00latin1\x86q\x01"
            b"](" + b"h\x00h\x01R" * 50 + b"e.",
            "repeatedly",
        ),
    ],
    (partial(write_cifar_100, binary=True), "cifar-100", "cifar-100-binary/test.bin"): [
        (lambda raw: raw[:-7], "multiple of 3074")
    ],
    (None, "damaged", "damaged.libsvm"): [
        (b"1 1:2\n1,2 3:1\n", r"line 2: '1,2 3:1"),
        (b"1 3:2 2:1\n", "line 1: '1 3:2 2:1.*indices"),
        (b"1,2,3\n4,5,6\n", r"\.csv"),
        (b"1 1:nan\n2 1:1\n", "not finite"),
    ],
    **{
        (None, "cut", f"cut{end}"): [
            (library.compress(svmlight(SPARSE, CLASSES))[:-30], "cannot be read"),
            (b"not compressed", "cannot be read"),
        ]
        for end, library in PACKED.items()
    },
    (None, "table.csv", "table.csv"): [
        (b"a,z\n1,0\n2,1\n", r"'y'.*\['a', 'z'\]"),
        (b"a,y\nred,0\n2,1\n", r"'a' has 'red' in row 1.*get_dummies"),
        (b"a,y\n1,0\n,1\n", "'a' has '' in row 2.*fill it"),
        (b"a,y\n1,0,5\n", "row 1 .* 3 entries"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
}


@pytest.mark.parametrize(
    ("written", "data", "file", "damage", "words"),
    [(*changed_dataset, *case) for changed_dataset, cases in DAMAGED.items() for case in cases],
    ids=[changed_dataset[2] for changed_dataset, cases in DAMAGED.items() for _ in cases],
)
def test_damaged_files_are_named_and_not_unpacked(tmp_path, written, data, file, damage, words):
    if written:
        written(tmp_path)
    path = tmp_path / file
    path.write_bytes(raw := damage(path.read_bytes()) if callable(damage) else damage)
    tracemalloc.start()
    try:
        name = "" if words.startswith("mnist") else rf"{re.escape(path.name)}\b.*"
        with pytest.raises(ValueError, match=f"{name}{words}") as error:
            problems.load(data, tmp_path, target="y" if file.endswith(".csv") else None)
        assert not written or tracemalloc.get_traced_memory()[1] < (1 << 20) + 8 * len(raw)
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".bin", ""], ids=["binary", "pickled"])
def test_a_cifar_file_longer_than_any_batch_is_refused(tmp_path, suffix):
    """A sparse file, which takes no space on the disk."""
    path = tmp_path / f"data_batch_1{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"data_batch_1.* 1099511627776 bytes"):
        problems.load("cifar-10", tmp_path)


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_pickle_that_would_run_code_is_refused_and_not_run(tmp_path, protocol):
    write_cifar(tmp_path, binary=False)
    made = tmp_path / "made"
    attack = pickle.dumps({"labels": [1, 2], "data": Payload(made)}, protocol)
    (tmp_path / BATCH).write_bytes(attack)
    with pytest.raises(ValueError, match="mkdir"):
        problems.load("cifar-10", tmp_path)
    assert not made.exists()
    pickle.loads(attack)
    assert made.exists()


# Invalid arrays of data


ONES, HALVES = np.ones((20, 3)), np.arange(20) % 2


def changed_dataset(**changes: Any) -> problems.Dataset:
    whole = problems.Dataset("mine", ONES, HALVES, ONES, HALVES, 2)
    return whole._replace(**changes)


def entry(value: float) -> np.ndarray:
    return np.where(np.arange(60).reshape(20, 3) == 11, value, 1.0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((ONES, HALVES[:19]), r"\(20, 3\).*\(19,\)"),
        ((ONES, np.full(20, 5)), "1 class"),
        ((entry(np.nan), HALVES), "inputs .*not finite"),
        ((ONES, np.where(HALVES, np.nan, 0)), "targets .*not finite"),
        ((ONES, HALVES / 2), "targets .*0.5; .*whole numbers"),
        ("mnist", "'mnist'.*data_dir"),
        ("mnits", "'mnits'.*digits, breast-cancer, mnist.*cifar-10"),
        (changed_dataset(classes=1), "mine: train targets from 0 to 1, .* 0 to 0"),
        (changed_dataset(train_targets=HALVES / 2), "mine: train targets .*0.5"),
        (changed_dataset(test_inputs=np.ones((20, 4))), "mine: .*samples of the same shape"),
        (
            changed_dataset(test_inputs=np.ma.masked_equal(entry(2), 2)),
            "mine: test inputs: .*masked",
        ),
        (changed_dataset(labels=np.array(["a"])), "mine: 1 labels"),
    ],
)
def test_invalid_data_are_refused(data, words):
    with pytest.raises(ValueError, match=words):
        problems.load(data)


def test_target_is_for_csv_files_only():
    with pytest.raises(ValueError, match="target = 'y' for data = 'digits'"):
        problems.load("digits", target="y")


def test_without_held_out_samples_all_are_for_training_in_their_order(tmp_path, caplog):
    inputs = np.arange(1.0, 19.0).reshape(6, 3)
    targets = np.array([2, 7, 7, 2, 2, 7])
    dump_svmlight_file(inputs, targets, str(tmp_path / "six"), zero_based=False)
    for found in (
        problems.load("six", tmp_path, hold_out=False),
        problems.load((inputs, targets), hold_out=False),
    ):
        np.testing.assert_array_equal(found.train_inputs, inputs)
        np.testing.assert_array_equal(found.train_targets, [0, 1, 1, 0, 0, 1])
        assert found.test_inputs.shape == (0, 3)
        assert "test_accuracy" not in problems.logistic_regression(found, 2).evaluation.replicated
    assert not caplog.records
    assert len(problems.load("digits", hold_out=False).train_targets) == 1_797
