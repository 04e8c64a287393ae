"""Errors that come out of a user's functions: the last line of what is printed names the function,
the cause and a remedy.

The error keeps its type, its message and its traceback: what is added is a note. JAX adds notes of
its own to errors that pass through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

_MARK = "dsgd: "

# The first class of each error's bases counts.
_REMEDIES: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: "a traced value in if, while, and, or, not or bool(); pass jnp.where, jax.lax.cond, &, | or ~",
    jax.errors.TracerIntegerConversionError: "a traced value where Python needs an integer; index a jax.Array, or use a static number",
    jax.errors.TracerArrayConversionError: "a traced value in a function of NumPy; use that of jax.numpy",
    jax.errors.NonConcreteBooleanIndexError: "a traced mask as an index, whose result has no fixed shape; use jnp.where(mask, x, 0)",
    jax.errors.UnexpectedTracerError: "a traced value of an earlier call was kept in a global or an attribute; return it in the State",
    jax.errors.ConcretizationTypeError: "a traced value where a number must be known at compile time (float(), int(), a shape)",
}


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Errors that come out of here say where they come from; the innermost place counts.

    Args:
        where: the function, "update of minibatch_sgd".
    """
    try:
        yield
    except Exception as error:
        if not _ours(error):
            error.add_note(f"{_MARK}{_cause(where, error)}")
        raise


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Errors from a user's function become ValueErrors that begin with where and why, and do not
    end in JAX's note on tracebacks.

    Args:
        where: the function, "finite_sum: loss".
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    except Exception as error:
        raise ValueError(f"{where}: {type(error).__name__}: {remedy(error)}") from error


def put_last(error: Exception) -> None:
    """Our note, if there is one, comes after those of JAX. If there is none, the error is ours, and
    ends with its message: JAX's note that it leaves out frames is dropped."""
    if ours := _ours(error):
        error.__notes__ = [*(note for note in error.__notes__ if note not in ours), *ours]
    elif isinstance(error, ValueError) and hasattr(error, "__notes__"):
        error.__notes__ = [
            note for note in error.__notes__ if "JAX_TRACEBACK_FILTERING" not in note
        ]


def of(error: Exception) -> str:
    """The note of where it comes from, or "" if there is none."""
    return " ".join(note.removeprefix(_MARK) for note in _ours(error))


def _ours(error: Exception) -> list[str]:
    return [note for note in getattr(error, "__notes__", []) if note.startswith(_MARK)]


def _cause(where: str, error: Exception) -> str:
    return f"{where} raised {type(error).__name__}: {remedy(error)}"


def remedy(error: Exception) -> str:
    """The first line of an error's message, with a remedy if one is known; of JAX's errors on
    traced values the cause and the remedy.
    """
    if words := next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), ""):
        return words
    said = " ".join((str(error).splitlines() or [""])[0].split())
    if isinstance(error, AttributeError):
        if fields := getattr(error.obj, "_fields", None):
            return f"{said}; {type(error.obj).__name__} has {', '.join(fields)}"
        if said.startswith("can't set attribute"):
            return f"{said}; named tuples are changed by ._replace(name=value), which returns a new one"
    return said
