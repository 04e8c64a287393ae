"""Next-byte prediction on texts that every installation has, or on the user's files."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import checks
from dsgd.base import Problem
from dsgd.problems import texts
from dsgd.problems.finite_sum import finite_sum

BYTES = 256
PARTITIONS = ("blocks", "files")
Windows = tuple[np.ndarray, np.ndarray]  # bytes and their successors, both uint8 `[M, T]`


@checks.arguments
def language_model(
    text: str | Path = "docstrings",
    workers: int = 16,
    partition: str = "blocks",
    *,
    model: Any = None,
    context: int = 64,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    weights: str | Sequence[float] | np.ndarray = "equal",
    batch_size: int = 8,
    test_share: float = 0.1,
    seed: int = 0,
    chunk: int | None = None,
    evaluation_size: int | None = 256,
) -> Problem:
    r"""Returns next-byte prediction: $f_n(x) = -\frac1{m_n T} \sum_{i,t} \log p_x(b_{i,t+1} \mid
    b_{i,1 \ldots t})$ over worker n's windows of T + 1 bytes, in nats.

    The last bytes are held out; `test_bits_per_byte` in the history is the model's cross-entropy on
    them. A uniform prediction has 8 bits per byte.

    Args:
        text: "docstrings": the docstrings of Python's standard library (0.8 MB, which differ
            between versions of Python); "grammar": 128 documents of sentences of a small grammar
            (0.14 MB), whose entropy is 0.609 bits per byte; or the path of a file, or of a folder,
            of which all files at any depth that are not hidden are read.
        workers: N.
        partition: "blocks": N contiguous parts of the whole text; "files": whole documents
            (docstrings of modules, documents of the grammar, files) distributed so that the
            workers' numbers of windows are balanced (greedily, largest document first); documents
            shorter than a window are left out.
        model: as in `finite_sum`, from bytes, uint8 `[m, T]`, to logits `[m, T, 256]`; None: a
            `problems.Transformer`.
        context: T. Consecutive windows overlap by one byte: each byte is predicted once, except for
            those left over at the end.
        width, layers, heads: of the transformer.
        weights: as in `finite_sum`; the samples of "samples" are windows.
        batch_size: B, windows that each worker draws in a round.
        test_share: fraction in (0, 1) that is held out at the end of the text ("blocks") or of each
            document ("files").
        seed: seed of the grammar's sentences.
        chunk: number of windows that are evaluated at a time, as in `finite_sum`.
        evaluation_size: number of windows of all workers together on which the history's loss and
            `grad_sqnorm` are evaluated, and of held-out windows, evenly spaced and the same in all
            records; None: all. An evaluation on all windows of "docstrings" costs as much as about
            90 rounds with the default batches.

    Raises:
        ValueError: if the text does not exist, the partition is unknown, there are too few windows
            or documents for the workers or none is held out, the width is not a multiple of the
            heads, the model returns other logits, and as for `finite_sum`.
    """
    for what, value in (
        ("workers", workers),
        ("context", context),
        ("width", width),
        ("layers", layers),
        ("heads", heads),
    ):
        checks.positive_int(f"language_model: {what}", value)
    checks.natural("language_model: seed", seed, most=None)
    if width % heads:
        raise ValueError(
            f"language_model: width = {width}, heads = {heads}; expected a width that is a "
            "multiple of heads"
        )
    if not 0 < test_share < 1:
        raise ValueError(
            f"language_model: test_share = {test_share}; expected a fraction of the text, in (0, 1)"
        )
    if partition not in PARTITIONS:
        raise ValueError(
            f"language_model: partition = {partition!r}; expected one of {', '.join(PARTITIONS)}"
        )
    documents = texts.documents(text, seed)
    if partition == "blocks":
        documents = [b"".join(documents)]
    ends = [len(document) - math.ceil(test_share * len(document)) for document in documents]
    train = [
        windows(document[:end], context) for document, end in zip(documents, ends, strict=True)
    ]
    test = [windows(document[end:], context) for document, end in zip(documents, ends, strict=True)]
    _require_windows(train, test, workers, partition, context)
    if model is None:
        from dsgd.problems.models import Transformer  # noqa: PLC0415 (importing flax takes a quarter of a second)

        model = Transformer(BYTES, context, width, layers, heads)
    return finite_sum(
        model,
        next_byte,
        _concatenate(train),
        workers,
        spread([len(inputs) for inputs, _ in train], workers) if partition == "files" else "blocks",
        weights=weights,
        batch_size=batch_size,
        test=_concatenate(test),
        metrics={"test_bits_per_byte": bits},
        chunk=chunk,
        evaluation_size=evaluation_size,
        name=f"language_model({Path(text).resolve().name}, {partition})",
    )


def next_byte(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the cross-entropy of each next byte in nats: logits `[m, T, 256]` and bytes `[m, T]`
    to `[m, T]`.

    Raises:
        ValueError: if the logits have another shape.
    """
    if getattr(logits, "shape", None) != (*targets.shape, BYTES):
        raise ValueError(
            f"language_model: model returned {checks.kind(logits)} for bytes "
            f"{list(targets.shape)}; expected logits [m, T, {BYTES}]"
        )
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets.astype(jnp.int32))


def bits(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the cross-entropy of each next byte in bits, as `next_byte` does in nats."""
    return next_byte(logits, targets) / math.log(2)


def windows(text: bytes, context: int) -> Windows:
    """Cuts a text into windows that overlap by one byte, so that each byte but the first is
    predicted once. Fewer than T bytes are left over at the end.

    Args:
        text: bytes.
        context: T.

    Returns:
        Inputs and targets, uint8 `[M, T]`.
    """
    count = max(len(text) - 1, 0) // context
    values = np.array(bytearray(text), np.uint8)
    inputs, targets = values[: count * context], values[1 : count * context + 1]
    return inputs.reshape(count, context), targets.reshape(count, context)


def _concatenate(parts: list[Windows]) -> Windows:
    inputs, targets = zip(*parts, strict=True)
    return np.concatenate(inputs), np.concatenate(targets)


def _require_windows(
    train: list[Windows], test: list[Windows], workers: int, partition: str, context: int
) -> None:
    """Raises a ValueError if a worker would have no window, or if no window is held out."""
    what = f"windows of context + 1 = {context + 1} bytes"
    found = sum(len(inputs) for inputs, _ in train)
    files = sum(len(inputs) > 0 for inputs, _ in train)
    if partition == "blocks" and found < workers:
        raise ValueError(
            f"language_model: text with {found} {what} to train on, workers = {workers}; expected "
            "at least one window for each worker"
        )
    if partition == "files" and files < workers:
        given = f"text of {len(train)} files, {files} of them with {what} to train on"
        raise ValueError(
            f"language_model: {given}, workers = {workers}; expected at least one file for each "
            "worker"
        )
    if not any(len(inputs) for inputs, _ in test):
        raise ValueError(
            f"language_model: test_share holds out no {what}; expected a larger test_share, or a "
            "longer text"
        )


def spread(sizes: list[int], workers: int) -> list[np.ndarray]:
    """Returns each worker's samples if whole files are assigned to workers: largest file first,
    each to the worker with the fewest samples so far.

    Args:
        sizes: number of samples of each file; the samples of the files follow each other.
        workers: N.

    Returns:
        Indices of samples for each worker.
    """
    begins = np.cumsum([0, *sizes])
    heap = [(0, n) for n in range(workers)]
    files: list[list[int]] = [[] for _ in range(workers)]
    for size, file in sorted(
        ((size, file) for file, size in enumerate(sizes) if size),
        key=lambda pair: (-pair[0], pair[1]),
    ):
        has, n = heap[0]
        files[n].append(file)
        heapq.heapreplace(heap, (has + size, n))
    return [
        np.concatenate([np.arange(begins[file], begins[file + 1]) for file in sorted(indices)])
        for indices in files
    ]
