from __future__ import annotations

import math
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import algorithms
import dsgd
from dsgd import problems
from dsgd.problems.language_model import bits, spread, windows

CONTEXT, WORKERS = 5, 3
RNG = np.random.default_rng(0)


class Bigram(nn.Module):
    """The next byte's logits hang on the byte alone."""

    @nn.compact
    def __call__(self, tokens):
        return nn.Embed(256, 256, embedding_init=nn.initializers.zeros)(tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of different lengths, of random bytes; one too short for a window."""
    path = tmp_path_factory.mktemp("files")
    for i, size in enumerate((90, 40, 4, 130, 61, 50, 200)):
        (path / f"{i}").write_bytes(RNG.integers(0, 256, size, np.uint8).tobytes())
    return path


def small(text, partition="blocks", **options):
    return problems.language_model(
        text,
        WORKERS,
        partition,
        **{"model": Bigram(), "context": CONTEXT, "batch_size": 2, **options},
    )


def held(problem) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each worker's windows, without the padding."""
    data = jax.tree.map(np.asarray, problem.data)
    return [
        (data.inputs[n][real], data.targets[n][real]) for n, real in enumerate(data.weights > 0)
    ]


def by_hand(text: bytes) -> list[tuple[bytes, bytes]]:
    found, begin = [], 0
    while begin + CONTEXT < len(text):
        found.append((text[begin : begin + CONTEXT], text[begin + 1 : begin + CONTEXT + 1]))
        begin += CONTEXT
    return found


@pytest.mark.parametrize("length", [0, 5, 6, 11, 23])
def test_windows_are_those_of_a_loop(length):
    text = bytes(range(length))
    inputs, targets = windows(text, CONTEXT)
    assert inputs.dtype == targets.dtype == np.uint8
    assert inputs.shape == targets.shape == (len(by_hand(text)), CONTEXT)
    assert [(a.tobytes(), b.tobytes()) for a, b in zip(inputs, targets, strict=True)] == by_hand(
        text
    )


def test_blocks_are_contiguous_and_predict_each_byte_once(folder):
    text = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    train = text[: len(text) - math.ceil(0.1 * len(text))]
    parts = held(small(folder))
    sizes = [len(inputs) for inputs, _ in parts]
    assert max(sizes) - min(sizes) <= 1
    predicted = b"".join(targets.tobytes() for _, targets in parts)
    assert predicted == train[1 : 1 + len(predicted)]
    assert len(train) - 1 - len(predicted) < CONTEXT


@pytest.mark.parametrize("partition", ["blocks", "files"])
def test_held_out_bytes_are_in_no_worker_s_data(tmp_path, partition):
    """The last fifth of each file is of one byte that is nowhere else."""
    for i in range(6):
        (tmp_path / f"{i}").write_bytes(
            b"a" * 40 + b"#" * 10 if partition == "files" else b"a#"[i == 5 :][:1] * 50
        )
    problem = small(tmp_path, partition, test_share=0.2 if partition == "files" else 1 / 6)
    assert all(set(np.unique(np.concatenate(part))) == {ord("a")} for part in held(problem))
    assert set(np.unique(np.concatenate([problem.shared.inputs, problem.shared.targets]))) == {
        ord("#")
    }


def test_bits_are_those_of_a_loop_over_all_bytes():
    """Also of bytes above 127."""
    logits = RNG.normal(size=(2, 128, 256)).astype(np.float32)
    targets = np.arange(256, dtype=np.uint8).reshape(2, 128)
    rows = zip(logits.reshape(-1, 256), targets.ravel(), strict=True)
    expected = np.reshape(
        [np.log2(np.exp(row).sum()) - row[b] / np.log(2) for row, b in rows], (2, 128)
    )
    np.testing.assert_allclose(bits(jnp.asarray(logits), jnp.asarray(targets)), expected, rtol=1e-5)


def test_a_run_begins_at_8_bits_and_learns_what_there_is_to_learn(tmp_path, mesh):
    """After "a" comes "b" or "c", after those "a": half a bit a byte, where a model has one byte to
    go by.
    """
    coins = RNG.integers(0, 2, 2_000)
    (tmp_path / "text").write_bytes(b"".join(b"ac" if coin else b"ab" for coin in coins))
    problem = small(tmp_path / "text", batch_size=32)
    method, key = algorithms.minibatch_sgd(optax.sgd(4.0)), jax.random.key(0)
    history = dsgd.run(method, problem, steps=300, record_every=100, key=key, mesh=mesh).history
    assert history["test_bits_per_byte"][0] == pytest.approx(8, rel=1e-6)
    assert history["loss"][0] == pytest.approx(math.log(256), rel=1e-6)
    assert history["test_bits_per_byte"][-1] == pytest.approx(0.5, abs=0.05)
    assert history["loss"][-1] == pytest.approx(0.5 * math.log(2), abs=0.03)


def test_the_default_model_is_a_transformer(folder):
    problem = small(folder, model=None, width=8, layers=1, heads=2)
    key = jax.random.key(0)
    shapes = jax.eval_shape(
        problems.Transformer(256, CONTEXT, 8, 1, 2).init, key, jnp.zeros((1, CONTEXT), jnp.uint8)
    )
    assert jax.eval_shape(problem.init, key) == shapes["params"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"width": 10, "heads": 4},
            "width = 10, heads = 4; expected a width that is a multiple of heads",
        ),
        ({"test_share": 1.0}, r"test_share = 1.0; expected a fraction of the text, in \(0, 1\)"),
        ({"test_share": 0.001}, "test_share holds out no windows of context [+] 1 = 6 bytes"),
        ({"partition": "iid"}, "partition = 'iid'; expected one of blocks, files"),
        ({"text": "nowhere"}, "text = 'nowhere', and there is no such file"),
        (
            {"context": 250},
            r"text with 2 windows of context \+ 1 = 251 bytes to train on, workers = 3",
        ),
        (
            {"context": 100, "partition": "files"},
            r"text of 7 files, 2 of them with windows of context \+ 1 = 101 bytes .*workers = 3",
        ),
        ({"model": nn.Embed(256, 255)}, r"model returned .*255.*; expected logits \[m, T, 256\]"),
    ],
)
def test_what_cannot_be_is_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        small(**{"text": folder, **options})


def handed_out(sizes: list[int], workers: int) -> list[list[int]]:
    """Files by worker: the largest file first, to the worker with the fewest samples; ties go to
    the first file and the first worker.
    """
    files, has = [[] for _ in range(workers)], [0] * workers
    left = [file for file in range(len(sizes)) if sizes[file]]
    while left:
        file = max(left, key=lambda each: (sizes[each], -each))
        worker = has.index(min(has))
        left.remove(file)
        files[worker].append(file)
        has[worker] += sizes[file]
    return [sorted(mine) for mine in files]


@pytest.mark.parametrize("sizes", [[4, 7, 0, 3, 5, 4, 1], [9, 1, 1, 1, 1, 1], [3, 0, 3, 3]])
@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_has_its_files_in_their_order(sizes, workers):
    begins = np.cumsum([0, *sizes])
    for part, files in zip(spread(sizes, workers), handed_out(sizes, workers), strict=True):
        np.testing.assert_array_equal(
            part, np.concatenate([np.arange(begins[file], begins[file + 1]) for file in files])
        )


def test_windows_of_files_are_handed_out_in_the_order_of_the_files(folder):
    """Each worker's own, one file after the other, as the folder is sorted."""
    texts = [path.read_bytes() for path in sorted(folder.iterdir())]
    train = [by_hand(text[: len(text) - math.ceil(0.1 * len(text))]) for text in texts]
    parts = [
        [(a.tobytes(), b.tobytes()) for a, b in zip(*part, strict=True)]
        for part in held(small(folder, "files"))
    ]
    for part, files in zip(parts, handed_out(list(map(len, train)), WORKERS), strict=True):
        assert part == list(chain(*(train[file] for file in files)))


def test_held_out_windows_are_in_the_order_of_the_files(folder):
    texts = [path.read_bytes() for path in sorted(folder.iterdir())]
    test = list(chain(*(by_hand(text[len(text) - math.ceil(0.1 * len(text)) :]) for text in texts)))
    shared = small(folder, "files").shared
    real = np.asarray(shared.weights) > 0
    rows = zip(np.asarray(shared.inputs)[real], np.asarray(shared.targets)[real], strict=True)
    assert [(a.tobytes(), b.tobytes()) for a, b in rows] == test
