from __future__ import annotations

import gzip
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from dsgd import problems

TRAIN, TEST = 10, 3
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


class Files(NamedTuple):
    """What was written to disk: images `[M, height, width, channels]` uint8 and labels `[M]`, the first `TRAIN` of them for training."""

    folder: Path
    paths: dict[str, Path]
    images: np.ndarray
    labels: np.ndarray


def idx(array: np.ndarray) -> bytes:
    """The MNIST page's format: magic number 2049 (labels) or 2051 (images), big-endian sizes, bytes row by row."""
    magic = {1: 2049, 3: 2051}[array.ndim]
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()


def planes(image: np.ndarray) -> bytes:
    """3,072 bytes: the red plane row by row, then green, then blue."""
    return b"".join(bytes([image[row, column, channel]]) for channel in range(3) for row in range(32) for column in range(32))


def binary_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([label]) + planes(image) for image, label in zip(images, labels, strict=True))


def python_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    pixels = np.frombuffer(b"".join(planes(image) for image in images), np.uint8).reshape(-1, 3072)
    return python_2_pickle({"batch_label": "training batch 1 of 5", "labels": labels.tolist(), "data": pixels})


def python_2_pickle(value: Any) -> bytes:
    """As Python 2's `cPickle.dump(value, file, 2)` wrote the published batches: byte strings, and numpy's module path of the time."""
    return b"\x80\x02" + _python_2(value) + b"."


def _python_2(value: Any) -> bytes:
    match value:
        case dict():
            return b"}(" + b"".join(_python_2(key) + _python_2(item) for key, item in value.items()) + b"u"
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
            dtype = b"cnumpy\ndtype\nU\x02" + code + b"K\x00K\x01\x87R(K\x03U\x01" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            return empty + b"(K\x01" + shape + dtype + b"\x89" + _python_2(value.tobytes()) + b"tb"
    raise TypeError(type(value))


@pytest.fixture(params=["plain", "gz"])
def mnist(request, tmp_path) -> Files:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (TRAIN + TEST, 28, 28, 1)), rng.integers(0, 10, TRAIN + TEST)
    paths = {}
    for prefix, part in (("train", slice(TRAIN)), ("t10k", slice(TRAIN, None))):
        for name, array in ((f"{prefix}-images-idx3-ubyte", images[part, ..., 0]), (f"{prefix}-labels-idx1-ubyte", labels[part])):
            paths[name] = tmp_path / (name if request.param == "plain" else f"{name}.gz")
            write_idx(paths[name], idx(array))
    return Files(tmp_path, paths, images, labels)


def read_idx(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def write_idx(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_cifar(folder: Path, version: str) -> Files:
    inner, suffix, encode = {"binary": ("cifar-10-batches-bin", ".bin", binary_batch), "python": ("cifar-10-batches-py", "", python_batch)}[
        version
    ]
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (TRAIN + TEST, 32, 32, 3)), rng.integers(0, 10, TRAIN + TEST)
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


def assert_read_back(dataset: problems.Dataset, files: Files):
    assert dataset.classes == 10
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


@pytest.mark.parametrize(("name", "samples", "shape", "classes"), [("digits", 1797, (8, 8, 1), 10), ("breast-cancer", 569, (30,), 2)])
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
    np.testing.assert_array_equal(rows(*everything(problems.load("digits"))), rows(pixels / 16, labels))


def test_digits_are_upright_images():
    images = {image.tobytes() for image in load_digits().images.astype(np.float32)}
    assert all((16 * image[..., 0]).tobytes() in images for image in problems.load("digits").test_inputs)


def test_breast_cancer_is_standardised_by_its_training_samples():
    dataset = problems.load("breast-cancer")
    np.testing.assert_allclose(dataset.train_inputs.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(dataset.train_inputs.std(axis=0), 1, atol=1e-4)
    # One increasing affine map a feature for train and test: the sorted columns are collinear with those of the raw data.
    raw = np.sort(load_breast_cancer(return_X_y=True)[0], axis=0)
    ours = np.sort(everything(dataset)[0].astype(np.float64), axis=0)
    for feature in range(30):
        slope, intercept = np.polyfit(raw[:, feature], ours[:, feature], 1)
        np.testing.assert_allclose(slope * raw[:, feature] + intercept, ours[:, feature], atol=1e-3)


def test_mnist_files_are_read_back_exactly(mnist):
    assert_read_back(problems.load("mnist", mnist.folder), mnist)


def test_cifar_files_are_read_back_exactly(cifar):
    """Planes become channels, red first; the five batches keep their order; the folder is the archive's, or the one above it."""
    for folder in (cifar.folder, cifar.paths["test_batch"].parent, str(cifar.folder)):
        assert_read_back(problems.load("cifar-10", folder), cifar)


@pytest.mark.parametrize("data", ["mnist", "cifar-10"])
def test_file_data_need_a_folder(data):
    with pytest.raises(ValueError, match=f"'{data}'.*data_dir"):
        problems.load(data)


@pytest.mark.parametrize(
    "missing", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
)
def test_missing_mnist_file_is_named(mnist, missing):
    mnist.paths[missing].unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(mnist.folder / missing))):
        problems.load("mnist", mnist.folder)


@pytest.mark.parametrize("missing", BATCHES)
def test_missing_cifar_file_is_named(cifar, missing):
    cifar.paths[missing].unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(cifar.paths[missing]))):
        problems.load("cifar-10", cifar.folder)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda raw: b"", id="empty"),
        pytest.param(lambda raw: raw[:7], id="cut in the header"),
        pytest.param(lambda raw: raw[:-1], id="one byte too few"),
        pytest.param(lambda raw: raw + b"\0", id="one byte too many"),
        pytest.param(lambda raw: raw[:2] + b"\x0d" + raw[3:], id="of floats"),
        pytest.param(lambda raw: b"\x01" + raw[1:], id="wrong magic number"),
    ],
)
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_malformed_mnist_file_is_refused(mnist, name, spoil):
    write_idx(mnist.paths[name], spoil(read_idx(mnist.paths[name])))
    with pytest.raises(ValueError, match=name):
        problems.load("mnist", mnist.folder)


def test_mnist_labels_in_place_of_images_are_refused(mnist):
    name = "train-images-idx3-ubyte"
    write_idx(mnist.paths[name], read_idx(mnist.paths["train-labels-idx1-ubyte"]))
    with pytest.raises(ValueError, match=name):
        problems.load("mnist", mnist.folder)


@pytest.mark.parametrize(
    "spoil",
    [pytest.param(lambda raw: raw[: len(raw) // 2], id="truncated"), pytest.param(lambda raw: b"no gzip" + raw, id="not compressed")],
)
@pytest.mark.parametrize("mnist", ["gz"], indirect=True)
def test_broken_gzip_file_is_refused(mnist, spoil):
    path = mnist.paths["train-images-idx3-ubyte"]
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        problems.load("mnist", mnist.folder)


@pytest.mark.parametrize("labels", [TRAIN - 1, TRAIN + 1])
def test_mnist_with_another_number_of_labels_than_of_images_is_refused(mnist, labels):
    write_idx(mnist.paths["train-labels-idx1-ubyte"], idx(np.zeros(labels)))
    with pytest.raises(ValueError, match="labels"):
        problems.load("mnist", mnist.folder)


def test_mnist_label_beyond_its_ten_classes_is_refused(mnist):
    write_idx(mnist.paths["t10k-labels-idx1-ubyte"], idx(np.array([0, 10, 9])))
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte"):
        problems.load("mnist", mnist.folder)


@pytest.mark.parametrize("spoil", [pytest.param(lambda raw: b"", id="empty"), pytest.param(lambda raw: raw[:-1], id="truncated")])
@pytest.mark.parametrize("name", ["data_batch_3", "test_batch"])
def test_malformed_cifar_file_is_refused(cifar, name, spoil):
    cifar.paths[name].write_bytes(spoil(cifar.paths[name].read_bytes()))
    with pytest.raises(ValueError, match=name):
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
        pytest.param({"labels": [1, 2], "data": np.zeros((2, 3071), np.uint8)}, id="a pixel is missing"),
        pytest.param({"labels": [1, 2, 3], "data": np.zeros((2, 3072), np.uint8)}, id="a label too many"),
        pytest.param({"labels": [1, 2], "data": np.zeros((2, 3072), np.float32)}, id="pixels are no bytes"),
    ],
)
def test_pickled_cifar_batch_of_other_content_is_refused(python_cifar, content):
    python_cifar.paths["data_batch_4"].write_bytes(python_2_pickle(content))
    with pytest.raises(ValueError, match="data_batch_4"):
        problems.load("cifar-10", python_cifar.folder)


def test_damaged_array_type_in_a_pickle_does_not_end_the_interpreter(python_cifar):
    """Handed to numpy, that one byte is a segmentation fault: tried in a process of its own. What it says of the array is not needed."""
    path = python_cifar.paths["data_batch_1"]
    raw = path.read_bytes()
    assert raw.count(b"|NNNJ") == 1
    path.write_bytes(raw.replace(b"|NNNJ", b"|NN0J"))
    script = """if True:
        import contextlib, sys
        from dsgd import problems
        with contextlib.suppress(ValueError):
            problems.load("cifar-10", sys.argv[1])
    """
    root = Path(problems.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, str(python_cifar.folder)], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
    name = "train-images-idx3-ubyte"
    write_idx(mnist.paths[name], struct.pack(">HBB3I", 0, 8, 3, *shape))
    assert peak(mnist.folder, "mnist", rf"{name}.* its header says .*need at most \(60000, 28, 28\)") < 1 << 20


@pytest.mark.parametrize("mnist", ["gz"], indirect=True)
def test_what_a_gzip_file_has_beyond_its_header_is_not_unpacked(mnist):
    """32 MiB of zeros in 32 KiB: two images are declared."""
    name = "train-images-idx3-ubyte"
    write_idx(mnist.paths[name], struct.pack(">HBB3I", 0, 8, 3, 2, 28, 28) + bytes(32 << 20))
    assert peak(mnist.folder, "mnist", f"{name}.* more bytes of data") < 1 << 20


@pytest.mark.parametrize("suffix", [".bin", ""], ids=["binary", "pickled"])
def test_a_cifar_file_longer_than_any_batch_is_refused(tmp_path, suffix):
    """A file with a hole: it takes no room on the disk."""
    path = tmp_path / f"data_batch_1{suffix}"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"data_batch_1.* 1099511627776 bytes; need at most \d+, a CIFAR-10 batch of 10000 images"):
        problems.load("cifar-10", tmp_path)


def doubled(times: int) -> list:
    """A list of the same list twice, and so on: numpy would make an array of 2^30 numbers of it."""
    return [inner := doubled(times - 1), inner] if times else [1, 2]


BOMBS = {
    "memo": (b"\x80\x02Nr\xff\xff\xff\x7f.", "stored at 2147483647"),
    "memo in text": (b"Np2147483647\n.", "stored at 2147483647"),
    "bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.", "bytes"),
    "string": (b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"x.", "bytes"),
    "objects": (b"\x80\x02(" + b"]" * 200_000 + b"t.", "more than 16 instructions"),
    "labels": (pickle.dumps({b"labels": doubled(30)}, 3), "no integers"),
    # The same text, 1 MB, as bytes again and again.
    "text": (
        b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20) + b"X\x06\x00\x00\x00latin1\x86q\x01"
        b"](" + b"h\x00h\x01R" * 50 + b"e.",
        "again and again",
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


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "wrap", [lambda payload: payload, lambda payload: {"labels": [1, 2], "data": payload}], ids=["alone", "in the batch"]
)
def test_pickle_that_would_run_code_is_refused_and_not_run(python_cifar, tmp_path, protocol, wrap):
    made = tmp_path / "made"
    attack = pickle.dumps(wrap(Payload(made)), protocol)
    python_cifar.paths["data_batch_1"].write_bytes(attack)
    with pytest.raises(ValueError, match="mkdir"):
        problems.load("cifar-10", python_cifar.folder)
    assert not made.exists()
    pickle.loads(attack)
    assert made.exists()


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="'mnits'") as error:
        problems.load("mnits")
    assert all(name in str(error.value) for name in ("digits", "breast-cancer", "mnist", "cifar-10"))


def test_data_set_is_taken_as_it_is():
    dataset = problems.load("breast-cancer")
    assert problems.load(dataset) is dataset


def test_arrays_keep_every_sample_with_its_class_and_classes_count_from_zero():
    labels = np.repeat([7, -3, 40], [10, 20, 30])
    inputs = np.random.default_rng(0).normal(size=(60, 4, 5)).astype(np.float32)
    dataset = problems.load((inputs, labels))
    assert dataset.classes == 3
    assert dataset.train_inputs.shape == (48, 4, 5)
    np.testing.assert_array_equal(np.bincount(dataset.test_targets), [4, 2, 6])
    np.testing.assert_array_equal(rows(*everything(dataset)), rows(inputs, np.repeat([1, 0, 2], [10, 20, 30])))


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        ((20,), (20,)),
        ((), ()),
        ((20, 3), (19,)),
        ((20, 3), (20, 1)),
        ((20, 3), ()),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_their_shapes(inputs, targets):
    labels = np.resize([0, 1], targets) if targets else np.array(0)
    with pytest.raises(ValueError, match=re.escape(str(inputs)) + ".*" + re.escape(str(targets))):
        problems.load((np.zeros(inputs), labels))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="1 class"):
        problems.load((np.zeros((20, 3)), np.full(20, 5)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_are_refused(bad):
    inputs = np.zeros((20, 3))
    inputs[13, 2] = bad
    with pytest.raises(ValueError, match="not finite"):
        problems.load((inputs, np.arange(20) % 2))


def test_targets_that_are_not_finite_are_refused():
    """A missing class is not a class of its own."""
    targets = np.resize([0.0, 1.0, np.nan], 30)
    with pytest.raises(ValueError, match="targets"):
        problems.load((np.zeros((30, 3)), targets))


def test_targets_of_a_regression_are_refused():
    with pytest.raises(ValueError, match=r"targets have the entry .*: need classes, whole numbers"):
        problems.load((np.zeros((30, 3)), np.linspace(0, 1, 30)))
