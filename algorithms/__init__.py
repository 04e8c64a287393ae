"""Distributed first-order methods: one file for each method or small family."""

from collections.abc import Mapping, Sequence

from dsgd import spelling


def _synonyms() -> Mapping[str, Sequence[str]]:
    from algorithms import registry  # noqa: PLC0415 (imports all methods)

    return registry.ALIASES


# A name is imported at its first use, since a program uses few of the methods.
__getattr__, __dir__, __all__ = spelling.attach(__name__, __file__, _synonyms)
