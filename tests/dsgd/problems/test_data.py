from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import pickle
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits

from dsgd import problems

SPARSE = sp.random_array((40, 30), density=0.1, rng=np.random.default_rng(1), format="csr")
CLASSES = np.arange(40) % 3

TRAIN, TEST = 10, 3
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


class Files(NamedTuple):
    """What was written to disk: images `[M, height, width, channels]` uint8 and labels `[M]`, the
    first `TRAIN` of them for training.
    """

    folder: Path
    paths: dict[str, Path]
    images: np.ndarray
    labels: np.ndarray


def planes(image: np.ndarray) -> bytes:
    """3,072 bytes: the red plane row by row, then green, then blue."""
    return b"".join(
        bytes([image[row, column, channel]])
        for channel in range(3)
        for row in range(32)
        for column in range(32)
    )


def binary_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(
        bytes([label]) + planes(image) for image, label in zip(images, labels, strict=True)
    )


def python_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    pixels = np.frombuffer(b"".join(planes(image) for image in images), np.uint8).reshape(-1, 3072)
    return python_2_pickle(
        {"batch_label": "training batch 1 of 5", "labels": labels.tolist(), "data": pixels}
    )


def python_2_pickle(value: Any) -> bytes:
    """As Python 2's `cPickle.dump(value, file, 2)` wrote the published batches: byte strings, and
    numpy's module path of the time.
    """
    return b"\x80\x02" + _python_2(value) + b"."


def _python_2(value: Any) -> bytes:
    match value:
        case dict():
            return (
                b"}("
                + b"".join(_python_2(key) + _python_2(item) for key, item in value.items())
                + b"u"
            )
        case list():
            return b"](" + b"".join(_python_2(item) for item in value) + b"e"
        case int():
            return b"J" + struct.pack("<i", value)
        case str() | bytes():
            raw = value.encode() if isinstance(value, str) else value
            return b"T" + struct.pack("<i", len(raw)) + raw
        case np.ndarray():
            empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            shape = b"(" + b"".join(_python_2(size) for size in value.shape) + b"t"
            order, code = value.dtype.str[:1].encode(), value.dtype.str[1:].encode()
            dtype = (
                b"cnumpy\ndtype\nU\x02"
                + code
                + b"K\x00K\x01\x87R(K\x03U\x01"
                + order
                + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            )
            return empty + b"(K\x01" + shape + dtype + b"\x89" + _python_2(value.tobytes()) + b"tb"
    raise TypeError(type(value))


def idx(array: np.ndarray) -> bytes:
    """The MNIST page's format: magic number 2049 (labels) or 2051 (images), big-endian sizes, bytes
    row by row.
    """
    magic = {1: 2049, 3: 2051}[array.ndim]
    return (
        struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_mnist(
    folder: Path,
    inner: str = "",
    mark: str = "-",
    packed: str = "",
    prefix: str = "",
    test: str = "t10k",
    first: int = 0,
) -> Files:
    """The four files, whose paths are those by the name `{prefix}train-images` and so on; labels
    count from `first`.
    """
    rng = np.random.default_rng(0)
    images, labels = (
        rng.integers(0, 256, (TRAIN + TEST, 28, 28, 1)),
        rng.permutation(TRAIN + TEST) % 10 + first,
    )
    (folder / inner).mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, part in (("train", slice(TRAIN)), (test, slice(TRAIN, None))):
        for kind, array in (("images", images[part, ..., 0]), ("labels", labels[part])):
            paths[f"{name}-{kind}"] = (
                folder / inner / f"{prefix}{name}-{kind}{mark}idx{array.ndim}-ubyte{packed}"
            )
            write_idx(paths[f"{name}-{kind}"], idx(array))
    return Files(folder, paths, images, labels)


@pytest.fixture(params=[""])
def mnist(request, tmp_path) -> Files:
    return write_mnist(tmp_path, packed=request.param)


def read_idx(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def write_idx(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_cifar(folder: Path, version: str) -> Files:
    inner, suffix, encode = {
        "binary": ("cifar-10-batches-bin", ".bin", binary_batch),
        "python": ("cifar-10-batches-py", "", python_batch),
    }[version]
    rng = np.random.default_rng(1)
    images, labels = (
        rng.integers(0, 256, (TRAIN + TEST, 32, 32, 3)),
        rng.integers(0, 10, TRAIN + TEST),
    )
    (folder / inner).mkdir()
    ends = [*range(0, TRAIN + 1, TRAIN // 5), TRAIN + TEST]
    paths = {}
    for name, start, stop in zip(BATCHES, ends[:-1], ends[1:], strict=True):
        paths[name] = folder / inner / f"{name}{suffix}"
        paths[name].write_bytes(encode(images[start:stop], labels[start:stop]))
    return Files(folder, paths, images, labels)


@pytest.fixture(params=["binary", "python"])
def cifar(request, tmp_path) -> Files:
    return write_cifar(tmp_path, request.param)


@pytest.fixture
def python_cifar(tmp_path) -> Files:
    return write_cifar(tmp_path, "python")


def assert_read_back(dataset: problems.Dataset, files: Files, classes: int = 10):
    assert dataset.classes == classes
    pixels = (files.images / 255).astype(np.float32)
    np.testing.assert_allclose(dataset.train_inputs, pixels[:TRAIN], rtol=1e-6, strict=True)
    np.testing.assert_allclose(dataset.test_inputs, pixels[TRAIN:], rtol=1e-6, strict=True)
    np.testing.assert_array_equal(dataset.train_targets, files.labels[:TRAIN])
    np.testing.assert_array_equal(dataset.test_targets, files.labels[TRAIN:])


def rows(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Samples with their classes, in an order that does not depend on the order they came in."""
    table = np.column_stack([np.reshape(inputs, (len(inputs), -1)), targets])
    return table[np.lexsort(table.T)]


def everything(dataset: problems.Dataset) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.concatenate([dataset.train_inputs, dataset.test_inputs]),
        np.concatenate([dataset.train_targets, dataset.test_targets]),
    )


@pytest.mark.parametrize(
    ("name", "samples", "shape", "classes"),
    [("digits", 1797, (8, 8, 1), 10), ("breast-cancer", 569, (30,), 2)],
)
def test_bundled_data_have_their_published_sizes(name, samples, shape, classes):
    dataset = problems.load(name)
    assert dataset.train_inputs.shape[1:] == dataset.test_inputs.shape[1:] == shape
    assert len(dataset.train_inputs) + len(dataset.test_inputs) == samples
    assert dataset.train_inputs.dtype == dataset.test_inputs.dtype == np.float32
    assert dataset.classes == classes
    assert set(dataset.train_targets) == set(dataset.test_targets) == set(range(classes))


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
def test_bundled_data_hold_out_a_stratified_fifth_that_is_the_same_every_time(name):
    dataset, again = problems.load(name), problems.load(name)
    total = len(dataset.train_targets) + len(dataset.test_targets)
    assert abs(len(dataset.test_targets) - total / 5) <= 1
    held_out, train = np.bincount(dataset.test_targets), np.bincount(dataset.train_targets)
    assert np.abs(held_out - (held_out + train) / 5).max() <= 1
    for first, second in zip(dataset[1:], again[1:], strict=True):
        np.testing.assert_array_equal(first, second)


def test_digits_are_in_the_train_or_the_test_set_and_never_in_both():
    """As a multiset, the two are scikit-learn's images, whose pixels go from 0 to 16."""
    pixels, labels = load_digits(return_X_y=True)
    np.testing.assert_array_equal(
        rows(*everything(problems.load("digits"))), rows(pixels / 16, labels)
    )


def test_digits_are_upright_images():
    images = {image.tobytes() for image in load_digits().images.astype(np.float32)}
    assert all(
        (16 * image[..., 0]).tobytes() in images for image in problems.load("digits").test_inputs
    )


def test_breast_cancer_is_standardised_by_its_training_samples():
    dataset = problems.load("breast-cancer")
    np.testing.assert_allclose(dataset.train_inputs.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(dataset.train_inputs.std(axis=0), 1, atol=1e-4)
    # One increasing affine map a feature for train and test: the sorted columns are collinear with
    # those of the raw data.
    raw = np.sort(load_breast_cancer(return_X_y=True)[0], axis=0)
    ours = np.sort(everything(dataset)[0].astype(np.float64), axis=0)
    for feature in range(30):
        slope, intercept = np.polyfit(raw[:, feature], ours[:, feature], 1)
        np.testing.assert_allclose(slope * raw[:, feature] + intercept, ours[:, feature], atol=1e-3)


def test_cifar_files_are_read_back_exactly(cifar):
    """Planes become channels, red first; the five batches keep their order; the folder is the
    archive's, or the one above it.
    """
    for folder in (cifar.folder, cifar.paths["test_batch"].parent, str(cifar.folder)):
        assert_read_back(problems.load("cifar-10", folder), cifar)


def test_missing_files_are_named(mnist, python_cifar):
    for data, files, missing in (
        ("mnist", mnist, "t10k-labels"),
        ("cifar-10", python_cifar, "test_batch"),
    ):
        files.paths[missing].unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(str(files.paths[missing]))):
            problems.load(data, files.folder)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda raw: b"", id="empty"),
        pytest.param(lambda raw: raw[:7], id="cut in the header"),
        pytest.param(lambda raw: raw[:-1], id="one byte too few"),
        pytest.param(lambda raw: raw + b"\0", id="one byte too many"),
        pytest.param(lambda raw: raw[:2] + b"\x0d" + raw[3:], id="of floats"),
        pytest.param(lambda raw: b"\x01" + raw[1:], id="wrong magic number"),
        pytest.param(lambda raw: idx(np.zeros(TRAIN)), id="labels in place of images"),
    ],
)
@pytest.mark.parametrize("mnist", ["", ".gz"], indirect=True)
def test_malformed_mnist_file_is_refused(mnist, spoil):
    path = mnist.paths["train-images"]
    write_idx(path, spoil(read_idx(path)))
    with pytest.raises(ValueError, match="train-images"):
        problems.load("mnist", mnist.folder)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda raw: raw[: len(raw) // 2], id="truncated"),
        pytest.param(lambda raw: b"no gzip" + raw, id="not compressed"),
    ],
)
@pytest.mark.parametrize("mnist", [".gz"], indirect=True)
def test_broken_gzip_file_is_refused(mnist, spoil):
    path = mnist.paths["train-images"]
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        problems.load("mnist", mnist.folder)


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("train-labels", np.zeros(TRAIN - 1), r"10 inputs; expected shape"),
        ("train-labels", np.zeros(TRAIN + 1), r"10 inputs; expected shape"),
        ("t10k-labels", np.array([0, 10, 9]), "t10k-labels-idx1-ubyte: labels from 0 to 10"),
    ],
)
def test_mnist_labels_that_are_not_classes_of_the_images_are_refused(mnist, name, labels, message):
    write_idx(mnist.paths[name], idx(labels))
    with pytest.raises(ValueError, match=message):
        problems.load("mnist", mnist.folder)


@pytest.mark.parametrize(
    "spoil",
    [pytest.param(lambda raw: b"", id="empty"), pytest.param(lambda raw: raw[:-1], id="truncated")],
)
def test_malformed_cifar_file_is_refused(cifar, spoil):
    path = cifar.paths["data_batch_3"]
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match="data_batch_3"):
        problems.load("cifar-10", cifar.folder)


def test_cifar_label_beyond_its_ten_classes_is_refused(cifar):
    encode = binary_batch if cifar.paths["data_batch_2"].suffix == ".bin" else python_batch
    cifar.paths["data_batch_2"].write_bytes(encode(cifar.images[:2], np.array([3, 10])))
    with pytest.raises(ValueError, match="data_batch_2"):
        problems.load("cifar-10", cifar.folder)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param([1, 2], id="no dictionary"),
        pytest.param({"labels": [1, 2]}, id="no data"),
        pytest.param({"data": np.zeros((2, 3072), np.uint8)}, id="no labels"),
        pytest.param(
            {"labels": [1, 2], "data": np.zeros((2, 3071), np.uint8)}, id="a pixel is missing"
        ),
        pytest.param(
            {"labels": [1, 2, 3], "data": np.zeros((2, 3072), np.uint8)}, id="a label too many"
        ),
        pytest.param(
            {"labels": [1, 2], "data": np.zeros((2, 3072), np.float32)}, id="pixels are no bytes"
        ),
    ],
)
def test_pickled_cifar_batch_of_other_content_is_refused(python_cifar, content):
    python_cifar.paths["data_batch_4"].write_bytes(python_2_pickle(content))
    with pytest.raises(ValueError, match="data_batch_4"):
        problems.load("cifar-10", python_cifar.folder)


def test_damaged_array_type_in_a_pickle_does_not_end_the_interpreter(python_cifar):
    """Handed to numpy, that one byte is a segmentation fault. What it says of the array is not
    needed.
    """
    path = python_cifar.paths["data_batch_1"]
    raw = path.read_bytes()
    assert raw.count(b"|NNNJ") == 1
    path.write_bytes(raw.replace(b"|NNNJ", b"|NN0J"))
    with contextlib.suppress(ValueError):
        problems.load("cifar-10", python_cifar.folder)


def peak(folder: Path, data: str, match: str) -> int:
    """The most bytes that Python and numpy hold while they refuse it."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=match):
            problems.load(data, folder)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(2**32 - 1, 28, 28), (2, 2**16, 2**16), (60_001, 28, 28)])
def test_sizes_that_no_mnist_file_has_are_refused_unread(mnist, shape):
    write_idx(mnist.paths["train-images"], struct.pack(">HBB3I", 0, 8, 3, *shape))
    assert (
        peak(
            mnist.folder,
            "mnist",
            r"train-images.* the header states .*expected at most \(60000, 28, 28\)",
        )
        < 1 << 20
    )


@pytest.mark.parametrize("mnist", [".gz"], indirect=True)
def test_what_a_gzip_file_has_beyond_its_header_is_not_unpacked(mnist):
    """32 MiB of zeros in 32 KiB: two images are declared."""
    write_idx(
        mnist.paths["train-images"], struct.pack(">HBB3I", 0, 8, 3, 2, 28, 28) + bytes(32 << 20)
    )
    assert peak(mnist.folder, "mnist", "train-images.* more than 1568 bytes of data") < 1 << 20


@pytest.mark.parametrize("suffix", [".bin", ""], ids=["binary", "pickled"])
def test_a_cifar_file_longer_than_any_batch_is_refused(tmp_path, suffix):
    """A file with a hole: it takes no room on the disk."""
    path = tmp_path / f"data_batch_1{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(
        ValueError,
        match=r"data_batch_1.* 1099511627776 bytes; expected at most \d+, a CIFAR-10 batch of 10000 images",
    ):
        problems.load("cifar-10", tmp_path)


def doubled(times: int) -> list:
    """A list of the same list twice, and so on: numpy would make an array of 2^30 numbers of it."""
    return [inner := doubled(times - 1), inner] if times else [1, 2]


BOMBS = {
    "memo": (b"\x80\x02Nr\xff\xff\xff\x7f.", "stored at index 2147483647"),
    "memo in text": (b"Np2147483647\n.", "stored at index 2147483647"),
    "bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.", "bytes"),
    "string": (b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"x.", "bytes"),
    "objects": (b"\x80\x02(" + b"]" * 200_000 + b"t.", "more than 16 instructions"),
    "labels": (pickle.dumps({b"labels": doubled(30)}, 3), "not integers"),
    # The same text, 1 MB, as bytes again and again.
    "text": (
        b"\x80\x02c_codecs\nencode\nq\x00X"
        + struct.pack("<I", 1 << 20)
        + b"x" * (1 << 20)
        + b"X\x06\x00\x00\x00latin1\x86q\x01"
        b"](" + b"h\x00h\x01R" * 50 + b"e.",
        "one is used repeatedly",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_would_grow_is_refused(python_cifar, name):
    raw, why = BOMBS[name]
    path = python_cifar.paths["data_batch_1"]
    path.write_bytes(raw)
    assert peak(python_cifar.folder, "cifar-10", rf"data_batch_1.*{why}") < (1 << 20) + 8 * len(raw)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_pickle_that_would_run_code_is_refused_and_not_run(python_cifar, tmp_path, protocol):
    made = tmp_path / "made"
    attack = pickle.dumps({"labels": [1, 2], "data": Payload(made)}, protocol)
    python_cifar.paths["data_batch_1"].write_bytes(attack)
    with pytest.raises(ValueError, match="mkdir"):
        problems.load("cifar-10", python_cifar.folder)
    assert not made.exists()
    pickle.loads(attack)
    assert made.exists()


def test_arrays_keep_every_sample_with_its_class_and_classes_count_from_zero():
    labels = np.repeat([7, -3, 40], [10, 20, 30])
    inputs = np.random.default_rng(0).normal(size=(60, 4, 5)).astype(np.float32)
    dataset = problems.load((inputs, labels))
    assert dataset.classes == 3
    assert dataset.train_inputs.shape == (48, 4, 5)
    np.testing.assert_array_equal(np.bincount(dataset.test_targets), [4, 2, 6])
    np.testing.assert_array_equal(
        rows(*everything(dataset)), rows(inputs, np.repeat([1, 0, 2], [10, 20, 30]))
    )


def changed(inputs: np.ndarray, entry: float) -> np.ndarray:
    inputs[3, 2] = entry
    return inputs


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.zeros(20), np.zeros(20)), r"\(20,\).*\(20,\)"),
        ((np.zeros((20, 3)), np.zeros(19)), r"\(20, 3\).*\(19,\)"),
        ((np.zeros((20, 3)), np.zeros((20, 1))), r"\(20, 3\).*\(20, 1\)"),
        ((np.zeros((20, 3)), np.zeros(())), r"\(20, 3\).*\(\)"),
        ((np.zeros((20, 3)), np.full(20, 5)), "1 class"),
        ((changed(np.zeros((20, 3)), np.nan), np.arange(20) % 2), "not finite"),
        ((changed(np.zeros((20, 3)), -np.inf), np.arange(20) % 2), "not finite"),
        (
            (np.zeros((30, 3)), np.resize([0.0, 1.0, np.nan], 30)),
            "targets have entries that are not finite",
        ),
        (
            (np.zeros((30, 3)), np.linspace(0, 1, 30)),
            "targets have the entry .*; expected classes as whole numbers",
        ),
        ("mnist", "'mnist'.*data_dir"),
        ("mnits", "'mnits'.*digits, breast-cancer, mnist.*cifar-10"),
    ],
)
def test_data_that_are_none_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        problems.load(data)


# LIBSVM's files


def svmlight(matrix: sp.csr_array, labels: Any, first: int = 1) -> bytes:
    rows = []
    for i, label in enumerate(labels):
        begin, end = matrix.indptr[i : i + 2]
        pairs = (
            f"{place + first}:{value:.9g}"
            for place, value in zip(matrix.indices[begin:end], matrix.data[begin:end], strict=True)
        )
        rows.append(" ".join([str(label), *pairs]))
    return ("\n".join(rows) + "\n").encode()


@pytest.mark.parametrize(("labels", "kept"), [(["-1", "+1"], [-1, 1]), (["3.0", "7"], [3, 7])])
def test_libsvm_files_are_read_with_the_test_file_of_fewer_features(tmp_path, labels, kept):
    classes = np.arange(40) % 2
    narrow = SPARSE[:10, :20]
    (tmp_path / "a9a").write_bytes(svmlight(SPARSE, [labels[c] for c in classes]))
    (tmp_path / "a9a.t").write_bytes(
        svmlight(sp.csr_array(narrow), [labels[c] for c in classes[:10]])
    )
    found = problems.load("a9a", tmp_path)
    np.testing.assert_array_equal(found.labels, kept)
    np.testing.assert_array_equal(found.train_targets, classes)
    np.testing.assert_allclose(found.train_inputs.toarray(), SPARSE.toarray(), rtol=1e-6)
    np.testing.assert_allclose(
        found.test_inputs.toarray(), np.pad(narrow.toarray(), ((0, 0), (0, 10))), rtol=1e-6
    )
    assert (
        problems.logistic_regression("a9a", 2, data_dir=tmp_path).name
        == "logistic_regression(a9a, iid)"
    )


@pytest.mark.parametrize(
    ("name", "data", "first"),
    [
        ("w8a.txt.gz", "w8a", 1),
        ("w8a.xz", "w8a.xz", 0),
        ("rcv1_train.binary.bz2", "rcv1", 0),
        ("real.svm", "real", 1),
    ],
)
def test_libsvm_files_are_found_by_their_published_names(tmp_path, name, data, first):
    packed = {".bz2": bz2, ".gz": gzip, ".xz": lzma}
    raw = svmlight(SPARSE, CLASSES, first)
    path = tmp_path / name
    path.write_bytes(packed[path.suffix].compress(raw) if path.suffix in packed else raw)
    for found in (problems.load(data, tmp_path), problems.load(str(path)), problems.load(path)):
        assert found.train_inputs.shape == (32, 30)
        assert found.classes == 3


def test_libsvm_test_files_are_found_by_their_published_names(tmp_path):
    for train, test in (
        ("rcv1_train.binary.bz2", "rcv1_test.binary.bz2"),
        ("ijcnn1.tr.bz2", "ijcnn1.t.bz2"),
        ("w1a.txt", "w1a.t.txt"),
    ):
        for name, rows in ((train, 40), (test, 7)):
            raw = svmlight(SPARSE[:rows], CLASSES[:rows])
            (tmp_path / name).write_bytes(bz2.compress(raw) if name.endswith("bz2") else raw)
        assert problems.load(train.split("_")[0].split(".")[0], tmp_path).test_inputs.shape[0] == 7


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"1 1:2\n1,2 3:1\n", r"line 2: '1,2 3:1"),
        (b"1 1:2\n2 3\n", "line 2: '2 3"),
        (b"1 3:2 2:1\n", "line 1: '1 3:2 2:1.*increasing indices"),
        (b"1 99999999999:1\n", "line 1: '1 99999999999:1"),
        (b"\x00\xff\n", "line 1"),
        (b"1,2,3\n4,5,6\n", r"CSV files end in \.csv"),
        (b"1 1:nan\n2 1:1\n", "not finite"),
        (b"0.5 1:1\n0.7 1:1\n", "the entry 0.5; expected classes as whole numbers"),
        (b"1 1:1\n1 2:1\n", "1 class; expected at least 2"),
    ],
)
def test_damaged_libsvm_files_are_named(tmp_path, raw, message):
    path = tmp_path / "damaged.libsvm"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=rf"damaged\.libsvm.*{message}") as error:
        problems.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("end", "library"), [(".bz2", bz2), (".gz", gzip), (".xz", lzma)])
def test_truncated_libsvm_archives_are_named(tmp_path, end, library):
    path = tmp_path / f"cut{end}"
    for raw in (library.compress(svmlight(SPARSE, CLASSES))[:-30], b"not compressed"):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=rf"cut\{end}: cannot be read"):
            problems.load("cut", tmp_path)


# CSV files


def test_csv_files_are_read_by_the_column_of_the_classes(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(
        '\ufeffa,kind,"b, quoted"\n' + "".join(f"{i},{'xyz'[i % 3]},{i / 2}\n" for i in range(30)),
        encoding="utf-8",
    )
    for found in (
        problems.load("table.csv", tmp_path, target="kind"),
        problems.load(path, target="kind"),
    ):
        assert list(found.labels) == ["x", "y", "z"]
        np.testing.assert_array_equal(found.train_inputs[:, 0], 2 * found.train_inputs[:, 1])
        np.testing.assert_array_equal(found.train_inputs[:, 0] % 3, found.train_targets)


@pytest.mark.parametrize(
    ("raw", "target", "message"),
    [
        (b"a,y\n1,0\n2,1\n", "z", r"target = 'z', but the columns are \['a', 'y'\]"),
        (b"a,y\n1,0\n2,1\n", None, "target = None, but the columns are .*; expected the name"),
        (b"a,y\nred,0\n2,1\n", "y", r"column 'a' has 'red' in row 1.*pandas\.get_dummies"),
        (b"a,y\n1,0\n,1\n", "y", "column 'a' has '' in row 2.*fill it"),
        (b"a,y\n1,\n2,1\n", "y", "column 'y' has empty entries"),
        (b"a,y\n1,0,5\n", "y", "row 1 below the header has 3 entries"),
        (b"a;y\n1;0\n", "y", "at least two different names"),
        (b"\xff\xfe\x00", "y", "expected a CSV file in UTF-8"),
    ],
)
def test_damaged_csv_files_are_named(tmp_path, raw, target, message):
    (tmp_path / "table.csv").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"table\.csv.*{message}"):
        problems.load("table.csv", tmp_path, target=target)


def test_target_is_for_csv_files_only():
    with pytest.raises(ValueError, match="target = 'y' for data = 'digits'"):
        problems.load("digits", target="y")


# Variants of image files


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
    found = problems.load(data, (files := write_mnist(tmp_path, inner, mark, packed)).folder)
    assert_read_back(found, files)
    assert len(found.labels) == 10


@pytest.mark.parametrize(
    ("split", "first", "classes", "label"),
    [
        ("letters", 1, 26, "C"),
        ("balanced", 0, 47, "2"),
        ("byclass", 0, 62, "2"),
        ("digits", 0, 10, "2"),
    ],
)
def test_emnist_images_are_upright_and_classes_count_from_zero(
    tmp_path, split, first, classes, label
):
    files = write_mnist(tmp_path, "gzip", "-", ".gz", f"emnist-{split}-", "test", first)
    found = problems.load(f"emnist-{split}", tmp_path)
    upright = files._replace(images=files.images.swapaxes(1, 2), labels=files.labels - first)
    assert_read_back(found, upright, classes)
    assert found.labels[2] == label


def test_emnist_letters_with_a_label_of_zero_are_refused(tmp_path):
    write_mnist(tmp_path, "", "-", "", "emnist-letters-", "test")
    with pytest.raises(ValueError, match="labels from 0 to 9; expected 1 to 26"):
        problems.load("emnist-letters", tmp_path)


@pytest.mark.parametrize(
    ("data", "classes", "label", "binary"),
    [("cifar-100", 100, "fine_labels", True), ("cifar-100-coarse", 20, "coarse_labels", False)],
)
def test_cifar_100_is_read_binary_and_pickled(tmp_path, data, classes, label, binary):
    rng = np.random.default_rng(0)
    pixels, labels = (
        rng.integers(0, 256, (3, 3072), np.uint8),
        {"coarse_labels": [19, 0, 3], "fine_labels": [99, 1, 2]},
    )
    folder = tmp_path / ("cifar-100-binary" if binary else "cifar-100-python")
    folder.mkdir()
    for part in ("train", "test"):
        if binary:
            (folder / f"{part}.bin").write_bytes(
                np.column_stack([*labels.values(), pixels]).astype(np.uint8).tobytes()
            )
        else:
            content = {b"data": pixels, **{name.encode(): each for name, each in labels.items()}}
            (folder / part).write_bytes(pickle.dumps(content, 2))
    found = problems.load(data, tmp_path)
    assert found.classes == classes
    np.testing.assert_array_equal(found.train_targets, labels[label])
    np.testing.assert_allclose(
        found.train_inputs.transpose(0, 3, 1, 2).reshape(3, -1) * 255, pixels, rtol=1e-6
    )
    damaged = next(folder.iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with pytest.raises(
        ValueError,
        match=f"{damaged.name}.*(expected a multiple of 3074|not a pickled CIFAR-100 batch)",
    ):
        problems.load(data, tmp_path)


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(),
    reason="needs a file that no one can read from its beginning",
)
@pytest.mark.parametrize("load", [problems.load, problems.language_model], ids=["data", "text"])
def test_files_that_cannot_be_read_are_named(load, tmp_path):
    for name, inner in (("closed.csv", ""), ("closed", ""), ("folder/a.txt", "folder")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to("/proc/self/mem")
        given = tmp_path / inner if inner and load is problems.language_model else path
        options = {"target": "y"} if name.endswith(".csv") and load is problems.load else {}
        with pytest.raises(ValueError, match=rf"{name}.*cannot be read .*; expected") as error:
            load(given, **options)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("data", "folder"),
    [("mnist", "nul\0byte"), ("cifar-10", "x" * 5000), ("a9a", "x" * 5000), ("nul\0byte", "")],
)
def test_paths_that_cannot_be_are_one_line(data, folder):
    with pytest.raises(
        (ValueError, FileNotFoundError), match=r"no file|there is no|without null bytes"
    ) as error:
        problems.load(data, folder)
    assert "\n" not in str(error.value)
