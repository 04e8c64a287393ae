"""Notes on errors that user functions raise, which name the function, the cause and a remedy.

The note is the last line that is printed. The error keeps its type, its message and its traceback.
JAX adds notes of its own to errors that pass through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

_MARK = "dsgd: "

# The first entry of which an error is an instance applies, so subclasses come first.
_REMEDIES: dict[type[Exception], str] = {
    jax.errors.TracerBoolConversionError: (
        "a traced value in if, while, and, or, not or bool(); pass jnp.where, jax.lax.cond, "
        "&, | or ~"
    ),
    jax.errors.TracerIntegerConversionError: (
        "a traced value where Python needs an integer; index a jax.Array, or use a static number"
    ),
    jax.errors.TracerArrayConversionError: (
        "a traced value in a NumPy function; use the same function of jax.numpy"
    ),
    jax.errors.NonConcreteBooleanIndexError: (
        "a traced mask as an index, so the result has no fixed shape; use jnp.where(mask, x, 0)"
    ),
    jax.errors.UnexpectedTracerError: (
        "a traced value of an earlier call was kept in a global or an attribute; return it in the "
        "State"
    ),
    jax.errors.ConcretizationTypeError: (
        "a traced value where a number must be known at compile time (float(), int(), a shape)"
    ),
}

TRACING = tuple(_REMEDIES)
"""JAX's errors for Python code that needs the value of a traced number."""


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Adds a note to errors of the block that names the function which raised them.

    In nested blocks only the innermost one adds a note.

    Args:
        where: the function, for example "update of minibatch_sgd".
    """
    try:
        yield
    except Exception as error:
        if not _ours(error):
            error.add_note(f"{_MARK}{_cause(where, error)}")
        raise


@contextmanager
def refuse_errors(where: str) -> Iterator[None]:
    """Converts errors of a user function to ValueErrors that begin with the function and the
    reason.

    They do not end with JAX's note on tracebacks.

    Args:
        where: the function, for example "finite_sum: loss".
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    except Exception as error:
        raise ValueError(f"{where}: {type(error).__name__}: {remedy(error)}") from error


def put_last(error: Exception) -> None:
    """Moves the project's note on an error behind the notes of JAX.

    An error without our note is one of our own and should end with its message, so JAX's note on
    omitted frames is removed.
    """
    if ours := _ours(error):
        error.__notes__ = [*(note for note in error.__notes__ if note not in ours), *ours]
    elif isinstance(error, ValueError) and hasattr(error, "__notes__"):
        error.__notes__ = [
            note for note in error.__notes__ if "JAX_TRACEBACK_FILTERING" not in note
        ]


def note_on(error: Exception) -> str:
    """Returns our note on the origin of an error; "" if there is none."""
    return " ".join(note.removeprefix(_MARK) for note in _ours(error))


def _ours(error: Exception) -> list[str]:
    return [note for note in getattr(error, "__notes__", []) if note.startswith(_MARK)]


def _cause(where: str, error: Exception) -> str:
    return f"{where} raised {type(error).__name__}: {remedy(error)}"


def remedy(error: Exception) -> str:
    """Returns the first line of an error's message, with a remedy if one is known.

    For JAX's errors on traced values it is the cause and the remedy instead.
    """
    if words := next((words for kind, words in _REMEDIES.items() if isinstance(error, kind)), ""):
        return words
    message = " ".join((str(error).splitlines() or [""])[0].split())
    if isinstance(error, AttributeError):
        if fields := getattr(error.obj, "_fields", None):
            return f"{message}; {type(error.obj).__name__} has {', '.join(fields)}"
        if message.startswith("can't set attribute"):
            return f"{message}; use ._replace(name=value), which returns a new named tuple"
    return message
