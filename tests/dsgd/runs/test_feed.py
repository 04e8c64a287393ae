"""Streamed batches: what is stacked and split, and what is refused, with the name of the leaf."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dsgd
from dsgd import problems, workers
from dsgd.engine.plan import Plan, drop_arrays
from dsgd.runs.feed import Feed

N, M, CLASSES = 2, 3, 4
SHAPE = (5, 6, 2)  # height, width, channels
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(40, *SHAPE)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, 40)
MODEL = problems.Model(
    lambda key: jnp.zeros((np.prod(SHAPE), CLASSES)),
    lambda W, images: images.reshape(len(images), -1) @ W,
)
LOSS = optax.softmax_cross_entropy_with_integer_labels
PROBLEM = drop_arrays(problems.finite_sum(MODEL, LOSS, (IMAGES, LABELS), workers=N))


def take(batches: Any, rounds: int, problem: Any = PROBLEM) -> Any:
    """Returns the batches as a run would place them on the devices, leaves `[rounds, N, ...]`."""
    plan = Plan(lambda points: None, problem, workers.mesh(1), N, 0, 4, 1)  # type: ignore[arg-type]
    return jax.tree.map(lambda leaf: leaf[:rounds], Feed(plan, batches, rounds).take(rounds))


def pair(begin: int, count: int, images: Any = IMAGES) -> list[Any]:
    """Returns a batch as DataLoader makes it, a list of two arrays."""
    return [images[begin : begin + count], LABELS[begin : begin + count]]


def test_a_batch_of_all_workers_is_split_in_order_and_its_source_begins_again():
    source = [pair(0, N * M), pair(10, N * M)]
    taken = take(dsgd.Batches.split(source, N), 3)
    expected = IMAGES[[*range(6), *range(10, 16), *range(6)]]
    np.testing.assert_array_equal(taken.inputs, expected.reshape(3, N, M, *SHAPE))
    assert taken.targets.dtype == np.int32
    np.testing.assert_array_equal(taken.targets[1], LABELS[10:16].reshape(N, M))
    np.testing.assert_array_equal(taken.weights, np.ones((3, N, M)))


def test_sources_of_different_lengths_are_stacked_and_begin_again_on_their_own():
    sources = [[pair(0, M), pair(3, M)], [pair(20, M), pair(23, M), pair(26, M)]]
    batches = dsgd.Batches.stack(sources)
    for _ in range(2):  # iterating again begins again
        begins = np.asarray(take(batches, 5).targets[:, :, 0])
        np.testing.assert_array_equal(begins[:, 0], LABELS[[0, 3, 0, 3, 0]])
        np.testing.assert_array_equal(begins[:, 1], LABELS[[20, 23, 26, 20, 23]])


def test_pairs_are_examples_with_the_given_or_equal_weights():
    images, labels = (leaf.reshape(N, M, *leaf.shape[1:]) for leaf in pair(0, N * M))
    weights = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    given = take([problems.Examples(images, labels, jnp.asarray(weights))], 1)
    np.testing.assert_array_equal(given.weights[0], weights)
    np.testing.assert_array_equal(take([(images, labels)], 1).inputs, given.inputs)


def test_lower_precision_is_kept_and_double_precision_is_narrowed():
    for dtype, kept in ((jnp.bfloat16, jnp.bfloat16), (np.float64, np.float32)):
        batches = dsgd.Batches.split([pair(4, N * M, IMAGES.astype(dtype))], N)
        inputs = take(batches, 1).inputs
        assert inputs.dtype == kept
        expected = IMAGES[4:10].astype(dtype).astype(kept).reshape(1, N, M, *SHAPE)
        np.testing.assert_array_equal(inputs, expected)


def test_memory_maps_are_read_batch_by_batch(tmp_path):
    """The file has a terabyte, nearly all of it a hole."""
    file = tmp_path / "images.npy"
    kind = np.lib.format.open_memmap(file, "w+", np.float32, (1 << 33, 32))
    kind[7], kind[1 << 32] = 7, 32
    del kind
    images = np.load(file, mmap_mode="r")

    def source(begin):
        for i in itertools.count(begin, 5):
            yield {"x": images[[i]], "row": images[i : i + 1]}

    batches = dsgd.Batches.stack([source(2), source((1 << 32) - 5)])
    taken = take(batches, 2, drop_arrays(problems.random_quadratic(N, 2, seed=0)))
    assert taken["x"][:, :, 0, 31].tolist() == [[0, 0], [7, 32]]
    np.testing.assert_array_equal(taken["x"], taken["row"])


X, Y = pair(0, N * M)
IMAGE = type("Image", (), {"__module__": "PIL.Image", "__array__": lambda self, *a, **k: X[0]})()
ROWS = X.reshape(N, M, *SHAPE)
LOADER = [pair(0, 6), pair(6, 6), pair(12, 4)]  # the last batch of its epoch is smaller
REFUSED: dict[str, Any] = {
    r"batch 0: inputs is float32\[6, 5, 6, 2\]; expected \[2, m, 5, 6, 2\].*Batches\.split\(batc": [
        (X, Y)
    ],
    r"batch 0: inputs is float32\[3, 2, 5, 6, 2\]; expected \[2, m, 5": dsgd.Batches.split(
        [(X, Y)], 3
    ),
    r"batch 0\[0\] has shape \(6, 5, 6, 2\); expected a number of samples that 4 workers share eq"
    r"ually, such as 4; drop": dsgd.Batches.split([(X, Y)], 4),
    r"batch 0: inputs is float32\[2, 3, 2, 5, 6\]; expected \[2, m, 5, 6, 2\].*moveaxis": [
        (np.moveaxis(ROWS, -1, -3), Y.reshape(N, M))
    ],
    r"batch 0: inputs is uint8.*; expected float32\[2, m, 5.*astype\(numpy.float32\).* / 255": [
        (ROWS.astype(np.uint8), Y.reshape(N, M))
    ],
    r"batch 0: targets is float32\[2, 3\]; expected int32\[2, m\], .*astype\(numpy.int32\)$": [
        (ROWS, Y.reshape(N, M).astype(float))
    ],
    r"batch 0: targets has shape \(2, 2\); expected 3 samples": [(ROWS, Y[:4].reshape(N, 2))],
    r"batch 0: weights has shape \(2, 4\); expected 3": [
        problems.Examples(ROWS, Y.reshape(N, M), np.ones((2, 4)))  # type: ignore[arg-type]
    ],
    r"batch 0 is a dictionary with 'image', 'label'; expected a pair .*\(batch\['image'\], batch\['"
    r"label'\]\)": [{"image": ROWS, "label": Y.reshape(N, M)}],
    r"batch 0 is a tuple with leaves \[0\], \[1\], \[2\]; expected a pair": [(ROWS, Y, Y)],
    r"batch 0: inputs is a dict with leaves \['x'\]; expected one array": [({"x": ROWS}, Y)],
    r"batch 0: inputs is a list .*numpy\.stack": [([ROWS, ROWS], Y)],
    r"batch 0 of source 1\[0\]\[2\] is one image.*numpy\.stack\(images\)": dsgd.Batches.stack(
        [[(X[:3], Y[:3])], [([X[0], X[1], IMAGE], Y[:3])]]
    ),
    r"batch 0\[1\]: got text \(cat\)": [(ROWS, ["cat", "dog"])],
    r"batch 2\.inputs is float32\[2, 2, 5, 6, 2\]; expected float32\[2, 3, 5, 6, 2\], as in the fir"
    r"st batch.*drop_last=True": dsgd.Batches.split(LOADER, N),
    r"batch 1 of source 1\[0\] is float32\[4, .*; expected float32\[6, .*, as in source 0; drop": (
        dsgd.Batches.stack([LOADER[:2], LOADER[1:]])
    ),
    r"batch 0 of source 1 is a tuple with .*; expected a list with": dsgd.Batches.stack(
        [LOADER, [(X, Y)]]
    ),
    r"source 1, a list, has no batches": dsgd.Batches.stack([LOADER, []]),
    r"ended after round 2; expected one for each of the 4 rounds; .*begin again": (
        dsgd.Batches.split(iter(LOADER[:2]), N)
    ),
    r"batches = 'images\.npy'; expected an iterable of batches": "images.npy",
    r"batches = {'image': array": {"image": ROWS},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused_by_name(words):
    with pytest.raises(ValueError, match=words):
        take(REFUSED[words], 4)


@pytest.mark.parametrize("source", ["train.parquet", {"image": X}])
def test_sources_are_iterables_of_batches(source):
    for name, make in (
        ("split: source", lambda: dsgd.Batches.split(source, N)),
        ("stack: source 1", lambda: dsgd.Batches.stack([[], source])),
    ):
        with pytest.raises(ValueError, match=rf"Batches\.{name}.* = .*; expected an iterable"):
            make()
