from __future__ import annotations

import math
import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from dsgd.problems import grammar, language_model, texts


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


def test_a_text_that_is_not_there_or_empty_is_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match=r"text = 'digits', and there is no such file.*expected 'docstrings', 'grammar', a file or a folder",
    ):
        texts.documents("digits", 0)
    with pytest.raises(ValueError, match="text = '', and there is no such file"):
        texts.documents("", 0)
    with pytest.raises(ValueError, match=r"text = 'once upon .* \.\.\., and there is no such file"):
        texts.documents("once upon a time " * 100, 0)
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="expected some text"):
        texts.documents(tmp_path, 0)


def test_docstrings_are_those_of_modules_classes_and_functions_in_order(tmp_path):
    (tmp_path / "b.py").write_text(
        '"""B."""\nclass A:\n    """  In\n    two lines."""\n    async def f(): "F."\ndef g(): '
        'pass\ndef h(): "H."\n'
    )
    (tmp_path / "a.py").write_text('"""A."""\n')
    (tmp_path / "_private.py").write_text('"""P."""\n')
    (tmp_path / "silent.py").write_text("x = 'no docstring'\n")
    assert texts.docstrings(tmp_path) == [b"A.\n\n", b"B.\n\nIn\ntwo lines.\n\nF.\n\nH.\n\n"]


def test_an_installation_without_sources_is_told(tmp_path):
    with pytest.raises(
        ValueError, match=r"'docstrings'.*has no sources with docstrings; pass 'grammar', or"
    ):
        texts.docstrings(tmp_path)


def test_python_says_enough_about_itself():
    documents = texts.documents("docstrings", 0)
    assert sum(map(len, documents)) > 300_000
    assert len(documents) > 100
    assert len(list(Path(sysconfig.get_path("stdlib")).glob("[!_]*.py"))) >= len(documents)


def test_the_grammars_probabilities_add_up_to_1():
    for symbol, becomes in grammar.RULES.items():
        assert sum(becomes.values()) == pytest.approx(1), symbol
        words = [part for expansion in becomes for part in expansion.split()]
        assert all(word.islower() or word in grammar.RULES for word in words)


def test_entropy_of_a_grammar_that_can_be_summed_by_hand():
    """Two bits a sentence, of two words on average, each with one byte after it, and a line's
    end.
    """
    rules = {"SENTENCE": {"x REST": 1.0}, "REST": {"SENTENCE": 0.5, "DONE": 0.5}, "DONE": {"": 1.0}}
    assert grammar.bits_per_byte(rules) == pytest.approx(2 / (2 * 2 + 1))


def derivations(sentence: str) -> list[float]:
    """The probability of each derivation of the sentence: one of what its words could come from, by
    trying all.
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
    """The mean of -log2 p over sentences that are drawn is the entropy, within four standard
    errors.
    """
    sentences = b"".join(grammar.documents(0)[:32]).decode().splitlines(keepends=True)
    found = [derivations(sentence) for sentence in sentences]
    assert all(len(each) == 1 for each in found)
    bits = np.array([-math.log2(each[0]) for each in found])
    excess = bits - grammar.bits_per_byte() * np.array([len(sentence) for sentence in sentences])
    assert abs(excess.mean()) < 4 * excess.std() / math.sqrt(len(excess))


def test_the_docstring_says_the_entropy_and_the_sizes():
    doc = language_model.__doc__ or ""
    assert f"{grammar.bits_per_byte():.3f} bits per byte" in doc
    documents = grammar.documents(0)
    assert f"{len(documents)} documents" in doc
    assert f"({sum(map(len, documents)) / 1e6:.2f} MB)" in doc


def test_the_grammars_text_hangs_on_the_seed_alone():
    assert grammar.documents(3) == grammar.documents(3)
    assert grammar.documents(3)[0] != grammar.documents(4)[0]
