"""Sentences of a small probabilistic grammar with a known entropy, which bounds the cross-entropy
of a language model from below.
"""

from __future__ import annotations

import math
from bisect import bisect
from itertools import accumulate

import numpy as np

# For each symbol, its expansions and their probabilities. Parts of an expansion that are not
# symbols are words.
Rules = dict[str, dict[str, float]]

DOCUMENTS, SENTENCES = 128, 32  # number of documents, and of sentences in each document


def _rank(words: str) -> dict[str, float]:
    """Returns the words with probabilities by Zipf's law, proportional to 1/r for rank r."""
    ranks = {word: 1 / rank for rank, word in enumerate(words.split(), 1)}
    return {word: share / sum(ranks.values()) for word, share in ranks.items()}


def _add_ending(words: dict[str, float], end: str) -> dict[str, float]:
    return {word + end: share for word, share in words.items()}


_NOUNS = _rank("dog cat bird farmer river teacher horse doctor garden robot painter king")
_TRANSITIVE = _rank("see follow help find hear know paint remember")
_INTRANSITIVE = _rank("sleep run sing wait work fall jump laugh")


def _phrases(number: str) -> Rules:
    """Returns the rules of one grammatical number. A noun and its verb agree in number, however
    long the clause between them is.
    """
    noun, determiner, clause, verb = (
        f"NOUN{number}",
        f"DETERMINER{number}",
        f"CLAUSE{number}",
        f"VERB{number}",
    )
    return {
        f"NP{number}": {
            f"{determiner} {noun}": 0.5,
            f"{determiner} ADJECTIVE {noun}": 0.3,
            f"{determiner} {noun} that {clause}": 0.15,
            f"{determiner} ADJECTIVE {noun} that {clause}": 0.05,
        },
        clause: {
            f"{verb}T NP1": 0.3,
            f"{verb}T NP2": 0.3,
            f"{verb}I": 0.25,
            f"{verb}I ADVERB": 0.15,
        },
        determiner: _rank("the this every" if number == "1" else "the some many"),
        noun: _NOUNS if number == "1" else _add_ending(_NOUNS, "s"),
        f"{verb}T": _add_ending(_TRANSITIVE, "s") if number == "1" else _TRANSITIVE,
        f"{verb}I": _add_ending(_INTRANSITIVE, "s") if number == "1" else _INTRANSITIVE,
    }


START = "SENTENCE"
RULES: Rules = {
    START: {"NP1 CLAUSE1": 0.5, "NP2 CLAUSE2": 0.5},
    **_phrases("1"),
    **_phrases("2"),
    "ADJECTIVE": _rank("old small red quiet clever happy tired green"),
    "ADVERB": _rank("often slowly again alone today well"),
}


def documents(seed: int) -> list[bytes]:
    """Returns the grammar's text: 128 documents of 32 sentences, one sentence a line, all drawn
    independently from the same distribution.

    Args:
        seed: seed of the draws.
    """
    rng = np.random.default_rng(seed)
    choices = {
        symbol: (list(becomes), list(accumulate(becomes.values())))
        for symbol, becomes in RULES.items()
    }

    def words(symbol: str) -> list[str]:
        if symbol not in choices:
            return [symbol]
        expansions, ends = choices[symbol]
        chosen = expansions[min(bisect(ends, rng.random()), len(ends) - 1)]
        return [word for part in chosen.split() for word in words(part)]

    def sentence() -> str:
        return " ".join(words(START)) + ".\n"

    return ["".join(sentence() for _ in range(SENTENCES)).encode() for _ in range(DOCUMENTS)]


def bits_per_byte(rules: Rules = RULES) -> float:
    """Returns the entropy of the sentences divided by their mean length, $H(S) / E|S|$, in bits per
    byte. No sentence may have two derivations.

    Let $M_{st}$ be the expected number of symbols t in an expansion of s. Then $H = h + M H$ and $L
    = l + M L$, where h is the entropy of the choice of an expansion and l the expected number of
    bytes of its words, each including the space or full stop after it. Each sentence has a newline
    in addition.

    Args:
        rules: rules of a grammar whose derivations end with probability 1, with a start symbol
            SENTENCE.
    """
    symbols = list(rules)
    M, h, length = np.zeros((len(rules), len(rules))), np.zeros(len(rules)), np.zeros(len(rules))
    for s, becomes in enumerate(rules.values()):
        for expansion, p in becomes.items():
            h[s] -= p * math.log2(p)
            for part in expansion.split():
                if part in rules:
                    M[s, symbols.index(part)] += p
                else:
                    length[s] += p * (len(part) + 1)
    system, at = np.eye(len(rules)) - M, symbols.index(START)
    return float(np.linalg.solve(system, h)[at] / (np.linalg.solve(system, length)[at] + 1))
