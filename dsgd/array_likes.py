"""The one conversion of array-likes to numpy arrays: values are kept as they are, or refused with
the reason and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import PyTree

_SCALARS = (bool, int, float, complex, str, bytes, np.generic, np.number, Fraction)
_DEEPEST = 32  # lists in lists
_RECTANGULAR = (
    "expected equal shapes: pad the rows, or pass several arrays as a tuple or a dictionary"
)


def numbers(where: str, values: Any) -> np.ndarray:
    """Converts anything that holds real numbers to a numpy array.

    Args:
        where: names the values in messages.
        values: an array of numpy, JAX, PyTorch or any library with `__array__` or DLPack, a pandas,
            polars or pyarrow column or table of numbers, a buffer, a number, or nested lists of
            these.

    Returns:
        An array of integers, bool or floating-point numbers, of any number of axes. It may share
        memory with `values`.

    Raises:
        ValueError: if a value would be changed or dropped: masks, missing entries, text,
            categories, dates, complex numbers, sparse matrices, tensors that PyTorch does not
            convert, rows of different lengths, integers beyond 64 bits.
    """
    try:
        return _read(values)
    except _Refused as reason:
        raise ValueError(f"{where}: got {reason}") from None


def refusal(values: Any) -> str | None:
    """Returns why `numbers` refuses the values, with the remedy; None if it converts them."""
    if _is_plain(values):
        return None if _is_real(values.dtype) else _reason(values)
    try:
        _read(values)
    except _Refused as reason:
        return str(reason)
    return None


def hint(values: Any) -> str:
    """Returns the reason in brackets, for the end of a message, or nothing: for numbers, and for
    values that no one would call an array.
    """
    like = isinstance(values, list | tuple) or any(
        hasattr(values, name) for name in ("__array__", "__dlpack__", "toarray")
    )
    reason = refusal(values) if like else None
    return f" (got {reason})" if reason else ""


def tree(where: str, values: PyTree, convert: Callable[[str, Any], Any] = numbers) -> PyTree:
    """Converts each leaf of a pytree.

    A list of numbers, or of lists of numbers, is one array, as in JSON, and so is a tuple of
    numbers. Dictionaries, other tuples and lists with arrays are structure.

    Args:
        where: names the tree in messages.
        values: the tree.
        convert: (name of the leaf, leaf) -> the converted leaf.

    Raises:
        ValueError: as `numbers`.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: convert(f"{where}{jax.tree_util.keystr(path)}", leaf),
        values,
        is_leaf=is_leaf,
    )


def is_leaf(node: Any) -> bool:
    """Whether a node of a pytree is one array in the sense of `tree`."""
    if isinstance(node, list):
        return bool(node) and _scalars_only(node)
    if type(node) is tuple:
        return bool(node) and all(isinstance(each, _SCALARS) for each in node)
    return _is_jax_sparse(node)


def kept(where: str, array: np.ndarray) -> np.ndarray:
    """Returns the array in the type that JAX stores it in, without x64 at most 32 bits, if that
    keeps the values.

    Rounding of floating-point numbers counts as keeping them.

    Args:
        where: names the array in messages.
        array: real numbers, as `numbers` returns them.

    Raises:
        ValueError: if integers would wrap around, or floating-point numbers would become infinite,
            or all of them zero.
    """
    kind = _stored(array.dtype)
    if kind == array.dtype or array.size == 0:
        return array.astype(kind, copy=False)
    if array.dtype.kind in "iu":
        limits = np.iinfo(kind)
        for value in (array.min(), array.max()):
            if not limits.min <= value <= limits.max:
                remedy = "pass smaller numbers, floating-point numbers, or set jax_enable_x64"
                raise ValueError(
                    f"{where}: got the entry {value} in {array.dtype}; expected {kind.name}, as "
                    f"JAX stores it: {remedy}"
                )
        return array.astype(kind)
    with np.errstate(all="ignore"):
        rounded = array.astype(kind)
        beyond = np.isinf(rounded) & np.isfinite(array)
    if beyond.any():
        raise ValueError(_out_of_range(where, array[beyond][0], array.dtype, kind))
    if np.abs(rounded).max() < np.finfo(kind).tiny and array.any():
        raise ValueError(
            _out_of_range(where, array.ravel()[np.abs(array).argmax()], array.dtype, kind)
        )
    return rounded


def _out_of_range(where: str, value: Any, given: np.dtype, kind: np.dtype) -> str:
    limits = np.finfo(kind)
    need = f"sizes between {limits.tiny:.2g} and {limits.max:.2g}, as JAX stores {kind.name}"
    return f"{where}: got the entry {value!s} in {given}; expected {need}: rescale the values, or set jax_enable_x64"


def _stored(dtype: np.dtype) -> np.dtype:
    """JAX's type for it. JAX has no type for long doubles."""
    return np.dtype(
        jnp.result_type(float if dtype.kind == "f" and dtype.itemsize > 8 else np.empty(0, dtype))
    )


class _Refused(Exception):
    """A reason and a remedy, to follow "got "."""


def _read(values: Any, depth: int = 0) -> np.ndarray:
    if isinstance(values, list | tuple):
        return _read_list(values, depth)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        masked = f"a masked array with {np.ma.count_masked(values)} of {values.size} entries masked"
        raise _Refused(
            f"{masked}; expected no mask: fill it with .filled(value), or leave these samples out"
        )
    if hasattr(values, "toarray") or hasattr(values, "todense") or _is_jax_sparse(values):
        remedy = ".toarray()" if hasattr(values, "toarray") else ".todense()"
        raise _Refused(f"a sparse {type(values).__name__}; expected a dense array: pass {remedy}")
    columns = _columns(values)
    if columns is None:
        return _read_column(values)
    read = [_read_column(column, f"column {name!r}, ") for name, column in columns]
    return _stack(read, axis=1) if read else np.empty((len(values), 0))


def _read_column(values: Any, which: str = "") -> np.ndarray:
    """One array of any library, or a column of a table."""
    kind = str(getattr(values, "dtype", getattr(values, "type", ""))).lower()
    if kind.startswith(("categor", "enum", "dictionary")):
        remedy = {
            "pandas": ".cat.codes, or pandas.get_dummies(table)",
            "polars": ".to_physical(), or table.to_dummies()",
        }
        raise _Refused(
            f"{which}categories; expected numbers: pass "
            f"{remedy.get(_library(values), 'their codes')}"
        )
    if missing := _missing(values):
        raise _Refused(
            f"{which}{missing} missing entries; expected none: fill them or drop these rows first"
        )
    array = _as_numpy(values, which)
    if not _is_real(array.dtype):
        raise _Refused(f"{which}{_reason(array)}")
    return array


def _as_numpy(values: Any, which: str) -> np.ndarray:
    # pandas' nullable types would become objects
    inner = getattr(getattr(values, "dtype", None), "numpy_dtype", None)
    try:
        if isinstance(inner, np.dtype) and inner.kind in "biuf":
            return values.to_numpy(dtype=inner)
        if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
            return np.from_dlpack(values)
        return np.asarray(values)
    except Exception as error:  # an object's own conversion may raise anything
        remedy = (
            ".detach().cpu().numpy(), of a dense float32 tensor"
            if hasattr(values, "detach")
            else "what numpy.asarray converts"
        )
        said = " ".join(str(error).split())[:120]
        raise _Refused(
            f"{which}a {type(values).__name__} that numpy does not convert ({said}); pass {remedy}"
        ) from None


def _read_list(values: list | tuple, depth: int) -> np.ndarray:
    if depth > _DEEPEST:
        raise _Refused(f"lists nested more than {_DEEPEST} deep; expected an array of numbers")
    if not _scalars_only(values):
        return _stack([_read(each, depth + 1) for each in values], axis=0)
    try:
        array = np.asarray(values)
    except ValueError:
        raise _Refused(f"rows of different lengths; {_RECTANGULAR}") from None
    except OverflowError:
        raise _Refused(
            "an integer beyond 64 bits; expected smaller integers or floating-point numbers"
        ) from None
    if (
        array.dtype.kind == "f"
        and array.size
        and all(isinstance(each, int | np.integer) for each in _flat(values))
    ):
        raise _Refused(
            "integers beyond 64 bits; expected smaller integers or floating-point numbers"
        )
    if not _is_real(array.dtype):
        raise _Refused(_reason(array))
    return array


def _stack(rows: list[np.ndarray], axis: int) -> np.ndarray:
    """Rows or columns as one array."""
    if not rows:
        return np.empty(0)
    if len({row.shape for row in rows}) > 1:
        shapes = " and ".join(map(str, sorted({row.shape for row in rows})[:2]))
        raise _Refused(f"rows of shapes {shapes}; {_RECTANGULAR}")
    stacked = np.stack(rows, axis=axis)
    if stacked.dtype.kind == "f" and all(row.dtype.kind in "iub" for row in rows):
        raise _Refused("signed and unsigned 64-bit integers together; expected one integer type")
    return stacked


def _columns(values: Any) -> list[tuple[Any, Any]] | None:
    """Names and columns of a table; None if it is no table."""
    if _library(values) == "pandas" and getattr(values, "ndim", 0) == 2:
        return list(values.items())
    if _library(values) == "polars" and hasattr(values, "collect"):
        raise _Refused(
            f"a {type(values).__name__} that is not computed yet; expected numbers: pass .collect()"
        )
    if _library(values) == "polars" and hasattr(values, "get_columns"):
        return [(column.name, column) for column in values.get_columns()]
    if _library(values) == "pyarrow" and hasattr(values, "column_names"):
        return list(zip(values.column_names, values.columns, strict=True))
    return None


def _missing(values: Any) -> int:
    """How many entries a column lacks. NaN is a floating-point number, which is not lacking."""
    if _library(values) == "pandas":
        nullable = not isinstance(getattr(values, "dtype", None), np.dtype)
        return int(values.isna().sum()) if nullable and hasattr(values, "isna") else 0
    count: Any = (
        getattr(values, "null_count", 0) if _library(values) in ("polars", "pyarrow") else 0
    )
    number: Any = count() if callable(count) else count
    return int(number)


def _library(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _is_jax_sparse(values: Any) -> bool:
    return type(values).__module__.startswith("jax.experimental.sparse")


def _is_plain(values: Any) -> bool:
    """Whether the type of its elements is all that matters: also of JAX's tracers and shapes, which
    have no values.
    """
    return isinstance(
        values, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic
    ) and not isinstance(values, np.ma.MaskedArray)


def _is_real(dtype: Any) -> bool:
    real = (
        jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating) or dtype == np.bool_
    )
    # numpy counts time differences among the integers
    return bool(real) and getattr(dtype, "kind", "") != "m"


def _scalars_only(values: list | tuple) -> bool:
    """Whether nested lists hold nothing but scalars: no arrays, whose masks numpy would drop."""
    level: Iterable[Any] = values
    for _ in range(_DEEPEST):
        kinds = set(map(type, level))
        if not kinds & {list, tuple}:
            return all(issubclass(kind, _SCALARS) for kind in kinds)
        if not all(kind in (list, tuple) or issubclass(kind, _SCALARS) for kind in kinds):
            return False
        level = list(
            chain.from_iterable(
                each if isinstance(each, list | tuple) else (each,) for each in level
            )
        )
    return False


def _flat(values: Any) -> Iterable[Any]:
    return (
        chain.from_iterable(map(_flat, values)) if isinstance(values, list | tuple) else (values,)
    )


def _reason(array: Any) -> str:
    """Why an array's type is none of real numbers, and what to do."""
    kind = getattr(array.dtype, "kind", "")
    if jnp.issubdtype(array.dtype, np.complexfloating):
        return "complex numbers; expected real numbers: pass .real and .imag as two columns"
    if kind in ("U", "S", "T"):
        return f"text{_example(array)}; expected numbers: encode it, labels by numpy.unique(labels, return_inverse=True)[1]"
    if kind in ("M", "m"):
        return "dates or times; expected numbers: subtract a start and divide by a unit, (t - t[0]) / numpy.timedelta64(1, 's')"
    if kind == "V" and getattr(array.dtype, "names", None):
        return "records with named fields; expected numbers: numpy.lib.recfunctions.structured_to_unstructured(array)"
    if kind != "O":
        return f"an array of {array.dtype}; expected real numbers"
    if array.ndim == 0:
        return f"a {type(array.item()).__name__}; expected an array of numbers"
    odd = next(
        (each for each in array.flat if not isinstance(each, int | float | np.number | Fraction)),
        None,
    )
    if isinstance(odd, str):
        return f"text ({odd!r}); expected numbers: encode it, labels by numpy.unique(labels, return_inverse=True)[1]"
    if all(isinstance(each, int) for each in array.flat):
        return "integers as Python objects; expected integers of at most 64 bits: pass .astype(numpy.int64) if they fit"
    if odd is None and not any(each is None for each in array.flat):
        return "an array of Python objects; expected numbers: pass .astype(float)"
    return f"Python objects with a {type(odd).__name__}; expected numbers: fill or drop what is missing, then pass .astype(float)"


def _example(array: Any) -> str:
    return f" ({array.flat[0]!s})" if getattr(array, "size", 0) else ""
