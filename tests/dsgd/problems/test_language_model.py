"""Language models: texts, windows of their bytes, and runs of the transformer."""

from __future__ import annotations

import math
from functools import cache
from itertools import chain, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dsgd import problems
from dsgd.problems import grammar, texts
from dsgd.problems.language_model import bits

CONTEXT, WORKERS = 5, 3
RNG = np.random.default_rng(0)


class Bigram(nn.Module):
    """A model in which the next byte's logits depend only on the byte."""

    @nn.compact
    def __call__(self, tokens):
        return nn.Embed(256, 256, embedding_init=nn.initializers.zeros)(tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with files of random bytes of different lengths, two of which are equal, and
    one too short for a window.
    """
    path = tmp_path_factory.mktemp("files")
    for i, size in enumerate((90, 40, 4, 130, 61, 50, 200, 90)):
        (path / f"{i}").write_bytes(RNG.integers(0, 256, size, np.uint8).tobytes())
    return path


def small(text, partition="blocks", **options):
    options = {"model": Bigram(), "context": CONTEXT, "batch_size": 2, **options}
    return problems.language_model(text, WORKERS, partition, **options)


Windows = list[tuple[bytes, bytes]]


def real_windows(data) -> Windows:
    """Returns the windows, without the padding."""
    real = np.asarray(data.weights) > 0
    rows = zip(np.asarray(data.inputs)[real], np.asarray(data.targets)[real], strict=True)
    return [(inputs.tobytes(), targets.tobytes()) for inputs, targets in rows]


def windows(text: bytes) -> Windows:
    begins = range(0, len(text) - CONTEXT, CONTEXT)
    return [(text[at : at + CONTEXT], text[at + 1 : at + CONTEXT + 1]) for at in begins]


def blocks(trained: list[Windows]) -> list[Windows]:
    size, more = divmod(len(trained[0]), WORKERS)
    ends = [n * size + min(n, more) for n in range(WORKERS + 1)]
    return [trained[0][begin:end] for begin, end in pairwise(ends)]


def files(trained: list[Windows]) -> list[Windows]:
    """Returns the partition of whole files: the largest file first, to the worker with the fewest
    windows; ties go to the first file and the first worker; each worker has its files in their
    order.
    """
    dealt, has = [[] for _ in range(WORKERS)], [0] * WORKERS
    for file in sorted(range(len(trained)), key=lambda file: -len(trained[file])):
        worker = has.index(min(has))
        dealt[worker].append(file)
        has[worker] += len(trained[file])
    return [list(chain(*(trained[file] for file in sorted(own)))) for own in dealt]


@pytest.mark.parametrize("deal", [blocks, files])
def test_windows_of_the_workers_and_of_the_test_are_those_of_loops(folder, deal):
    """Each byte is predicted once, except for remaining ones at the end, and the last tenth is the
    test set.
    """
    read = [path.read_bytes() for path in sorted(folder.iterdir())]
    read = [b"".join(read)] if deal is blocks else read
    cuts = [len(text) - math.ceil(0.1 * len(text)) for text in read]
    problem = small(folder, deal.__name__)
    own = [real_windows(jax.tree.map(lambda leaf: leaf[n], problem.data)) for n in range(WORKERS)]  # noqa: B023
    assert own == deal([windows(text[:cut]) for text, cut in zip(read, cuts, strict=True)])
    tails = (windows(text[cut:]) for text, cut in zip(read, cuts, strict=True))
    assert real_windows(problem.evaluation.replicated) == list(chain(*tails))
    assert problem.data.inputs.dtype == problem.data.targets.dtype == np.uint8


def test_bits_are_those_of_a_loop_over_all_bytes():
    """Including bytes above 127."""
    logits = RNG.normal(size=(1, 256, 256)).astype(np.float32)
    expected = [[np.log2(np.exp(row).sum() / np.exp(row[b])) for b, row in enumerate(logits[0])]]
    targets = jnp.arange(256, dtype=jnp.uint8)[None]
    np.testing.assert_allclose(bits(jnp.asarray(logits), targets), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 10, "heads": 4}, "width = 10, heads = 4"),
        ({"test_share": 0.001}, "test_share .*6 bytes"),
        ({"partition": "iid"}, "partition = 'iid'.* blocks, files"),
        ({"text": "nowhere"}, "text = 'nowhere'.*'docstrings', 'grammar'"),
        ({"text": ""}, "text = ''"),
        ({"text": "once upon a time " * 100}, r"text = 'once upon .* \.\.\."),
        ({"context": 250}, "2 windows .* 251 bytes .*workers = 3"),
        ({"context": 100, "partition": "files"}, "8 files, 2 of them .*101 bytes .*workers = 3"),
        ({"model": nn.Embed(256, 255)}, r"model .*255.*\[m, T, 256\]"),
    ],
)
def test_invalid_arguments_are_refused(folder, options, words):
    with pytest.raises(ValueError, match=f"language_model: {words}|language_model: .*{words}"):
        small(**{"text": folder, **options})


# Texts


def test_files_below_a_folder_are_sorted_and_neither_hidden_nor_empty(tmp_path):
    for name, raw in {
        "b": b"2",
        "a/z": b"1\xff\r\n",
        "c": b"",
        ".hidden": b"x",
        ".git/d": b"x",
        "a/.e": b"x",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    assert texts.documents(tmp_path, 0) == [b"1\xff\r\n", b"2"]
    assert texts.documents(str(tmp_path / "b"), 0) == [b"2"]


def test_docstrings_are_those_of_modules_classes_and_functions_in_order(tmp_path):
    (tmp_path / "b.py").write_text(
        '"""B."""\nclass A:\n    """  In\n    two lines."""\n    async def f(): "F."\ndef g(): '
        'pass\ndef h(): "H."\n'
    )
    (tmp_path / "a.py").write_text('"""A."""\n')
    (tmp_path / "_private.py").write_text('"""P."""\n')
    (tmp_path / "silent.py").write_text("x = 'no docstring'\n")
    assert texts.docstrings(tmp_path) == [b"A.\n\n", b"B.\n\nIn\ntwo lines.\n\nF.\n\nH.\n\n"]


def test_entropy_of_a_grammar_that_can_be_summed_by_hand():
    """Two bits per sentence, of two words on average, each with one byte after it, and the end of a
    line.
    """
    rules = {"SENTENCE": {"x REST": 1.0}, "REST": {"SENTENCE": 0.5, "DONE": 0.5}, "DONE": {"": 1.0}}
    assert grammar.bits_per_byte(rules) == pytest.approx(2 / (2 * 2 + 1))


def derivations(sentence: str) -> list[float]:
    """Returns the probability of each derivation of the sentence, by trying all words from which
    its words could be derived.
    """
    words = sentence.removesuffix(".\n").split()

    @cache
    def parse(part: str, begin: int) -> tuple[tuple[int, float], ...]:
        if part not in grammar.RULES:
            return ((begin + 1, 1.0),) if begin < len(words) and words[begin] == part else ()
        found = []
        for expansion, probability in grammar.RULES[part].items():
            ends = [(begin, probability)]
            for inner in expansion.split():
                ends = [(end, p * q) for at, p in ends for end, q in parse(inner, at)]
            found += ends
        return tuple(found)

    return [p for end, p in parse(grammar.START, 0) if end == len(words)]


def test_no_sentence_has_two_derivations_and_their_code_is_as_long_as_the_entropy():
    """The mean of -log2 p over drawn sentences is the entropy, within four standard errors."""
    sentences = b"".join(grammar.documents(0)[:32]).decode().splitlines(keepends=True)
    found = [derivations(sentence) for sentence in sentences]
    assert all(len(each) == 1 for each in found)
    bits = np.array([-math.log2(each[0]) for each in found])
    excess = bits - grammar.bits_per_byte() * np.array([len(sentence) for sentence in sentences])
    assert abs(excess.mean()) < 4 * excess.std() / math.sqrt(len(excess))


def test_the_docstring_states_the_entropy_and_the_sizes():
    doc = problems.language_model.__doc__ or ""
    assert f"{grammar.bits_per_byte():.3f} bits per byte" in doc
    documents = grammar.documents(0)
    assert f"{len(documents)} documents" in doc
    assert f"({sum(map(len, documents)) / 1e6:.2f} MB)" in doc
