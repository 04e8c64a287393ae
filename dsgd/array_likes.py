"""Conversion of array-likes to numpy arrays, without any change of values.

If a conversion would change values, an error reports the reason and how to fix it.
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
_LONG = np.dtype(np.longdouble).char  # JAX has no type for long doubles
_DEEPEST = 32  # maximum depth of nested lists
_RECTANGULAR = (
    "expected equal shapes; pad the rows, or pass several arrays as a tuple or a dictionary"
)
_ENCODED = (
    "expected numbers; encode it, for example labels with "
    "numpy.unique(labels, return_inverse=True)[1]"
)


def numbers(where: str, values: Any) -> np.ndarray:
    """Converts any object that contains real numbers to a numpy array.

    Args:
        where: name of the values, for messages.
        values: an array of numpy, JAX, PyTorch or any library with `__array__` or DLPack; a pandas,
            polars or pyarrow column or table of numbers, or a column of equally long lists; a
            buffer; a number; or nested lists of these.

    Returns:
        An array of integers, bools or floating-point numbers with any number of axes, in a type
        that JAX accepts (`is_native`). It may share memory with `values`.

    Raises:
        ValueError: if a value would be changed or dropped: masks, missing entries, text,
            categories, dates, complex numbers, sparse matrices, tensors that PyTorch does not
            convert, rows of different lengths, integers of more than 64 bits.
    """
    try:
        array = _read(values)
    except _Refused as reason:
        raise ValueError(f"{where}: got {reason}") from None
    if is_native(array):
        return array
    kind = float if array.dtype.char == _LONG else array.dtype.newbyteorder("=")
    return _cast(where, np.asarray(array), np.dtype(kind))


def is_native(values: Any) -> bool:
    """Whether the values are a numpy array, or a scalar, that JAX accepts: one in the machine's
    byte order, of at most 64 bits. Matrices, masked arrays and other subclasses are not.
    """
    dtype = getattr(values, "dtype", None)
    plain = type(values) is np.ndarray or isinstance(values, np.generic)
    return plain and isinstance(dtype, np.dtype) and dtype.isnative and dtype.char != _LONG


def refusal(values: Any) -> str | None:
    """Returns the reason why `numbers` does not accept the values, with a remedy; None if it
    accepts them.
    """
    if _is_plain(values):
        return None if _is_real(values.dtype) else _reason(values)
    try:
        _read(values)
    except _Refused as reason:
        return str(reason)
    return None


def hint(values: Any) -> str:
    """Returns the reason of `refusal` in brackets, to append to a message.

    It is "" for values that `numbers` accepts, and for objects that are not array-like, such as
    lists of results.
    """
    plain = isinstance(values, list | tuple) and not any(
        hasattr(each, "_fields") for each in (values, *values)
    )
    like = plain or any(hasattr(values, name) for name in ("__array__", "__dlpack__", "toarray"))
    reason = refusal(values) if like else None
    return f" (got {reason})" if reason else ""


def tree(where: str, values: PyTree, convert: Callable[[str, Any], Any] = numbers) -> PyTree:
    """Converts each leaf of a pytree.

    A list of numbers, or of lists of numbers, is one array, as in JSON; so is a tuple of numbers.
    Dictionaries, other tuples, and lists that contain arrays are structure.

    Args:
        where: name of the tree, for messages.
        values: the tree.
        convert: (name of the leaf, leaf) -> the converted leaf.

    Raises:
        ValueError: as in `numbers`.
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


def narrow(where: str, array: np.ndarray) -> np.ndarray:
    """Converts an array to the type in which JAX stores it: at most 32 bits unless x64 is
    enabled.

    Floating-point numbers may be rounded.

    Args:
        where: name of the array, for messages.
        array: real numbers, as returned by `numbers`.

    Raises:
        ValueError: if integers would wrap around, a floating-point number would become infinite, or
            all of them would become zero.
    """
    return _cast(where, array, np.dtype(jnp.result_type(array)))


def _cast(where: str, array: np.ndarray, kind: np.dtype) -> np.ndarray:
    if kind == array.dtype or array.size == 0:
        return array.astype(kind, copy=False)
    if array.dtype.kind in "iu":
        limits = np.iinfo(kind)
        for value in (array.min(), array.max()):
            if not limits.min <= value <= limits.max:
                remedy = "pass smaller numbers, floating-point numbers, or set jax_enable_x64"
                raise ValueError(
                    f"{where}: got the entry {value} in {array.dtype}; expected {kind.name}, as "
                    f"JAX stores it; {remedy}"
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
    sizes = f"magnitudes between {limits.tiny:.2g} and {limits.max:.2g}"
    return (
        f"{where}: got the entry {value!s} in {given}; expected {sizes}, as JAX stores "
        f"{kind.name}; rescale the values, or set jax_enable_x64"
    )


class _Refused(Exception):
    """A reason with a remedy, as the continuation of "got "."""


def _read(values: Any, depth: int = 0) -> np.ndarray:
    if isinstance(values, list | tuple):
        return _read_list(values, depth)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        masked = f"a masked array with {np.ma.count_masked(values)} of {values.size} entries masked"
        raise _Refused(
            f"{masked}; expected no mask; fill it with .filled(value), or remove these samples"
        )
    if hasattr(values, "toarray") or hasattr(values, "todense") or _is_jax_sparse(values):
        remedy = ".toarray()" if hasattr(values, "toarray") else ".todense()"
        raise _Refused(f"a sparse {type(values).__name__}; expected a dense array; pass {remedy}")
    columns = _columns(values)
    if columns is None:
        return _read_column(values)
    read = [_read_column(column, f"column {name!r}, ") for name, column in columns]
    return _stack(read, axis=1) if read else np.empty((len(values), 0))


def _read_column(values: Any, which: str = "") -> np.ndarray:
    """Converts one array of any library, or one column of a table."""
    kind = str(getattr(values, "dtype", getattr(values, "type", ""))).lower()
    if kind.startswith(("categor", "enum", "dictionary")):
        remedy = {
            "pandas": ".cat.codes, or pandas.get_dummies(table)",
            "polars": ".to_physical(), or table.to_dummies()",
        }
        raise _Refused(
            f"{which}categories; expected numbers; pass "
            f"{remedy.get(_library(values), 'their codes')}"
        )
    if missing := _missing(values):
        raise _Refused(
            f"{which}{missing} missing entries; expected none; fill them or drop these rows first"
        )
    array = _to_numpy(values, which)
    if array.dtype == object and array.ndim == 1 and _arrays_only(array):
        return _stack([_read(each) for each in array], axis=0)
    if not _is_real(array.dtype):
        raise _Refused(f"{which}{_reason(array)}")
    return array


def _to_numpy(values: Any, which: str) -> np.ndarray:
    # Nullable types of pandas would become Python objects.
    inner = getattr(getattr(values, "dtype", None), "numpy_dtype", None)
    try:
        if isinstance(inner, np.dtype) and inner.kind in "biuf":
            return values.to_numpy(dtype=inner)
        if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
            return np.from_dlpack(values)
        return np.asarray(values)
    except Exception as error:  # an object's own conversion may raise anything
        if str(getattr(values, "dtype", "")) == "torch.bfloat16" and not values.requires_grad:
            return np.asarray(jnp.from_dlpack(values.contiguous().cpu()))
        remedy = (
            ".detach().cpu().numpy(), of a dense float32 tensor"
            if hasattr(values, "detach")
            else "an object that numpy.asarray converts"
        )
        message = " ".join(str(error).split())[:120]
        raise _Refused(
            f"{which}a {type(values).__name__} that numpy does not convert ({message}); "
            f"pass {remedy}"
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
    """Stacks rows or columns to one array."""
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
    """Returns the names and columns of a table; None if the object is not a table."""
    if _library(values) == "pandas" and getattr(values, "ndim", 0) == 2:
        return list(values.items())
    if _library(values) == "polars" and hasattr(values, "collect"):
        raise _Refused(
            f"a {type(values).__name__} that is not computed yet; expected numbers; pass .collect()"
        )
    if _library(values) == "polars" and hasattr(values, "get_columns"):
        return [(column.name, column) for column in values.get_columns()]
    if _library(values) == "pyarrow" and hasattr(values, "column_names"):
        return list(zip(values.column_names, values.columns, strict=True))
    return None


def _missing(values: Any) -> int:
    """Returns the number of missing entries of a column. NaN is a floating-point number, not a
    missing entry.
    """
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
    """Whether only the element type matters: true for arrays, and for JAX's tracers and shapes,
    which have no values.
    """
    return isinstance(
        values, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic
    ) and not isinstance(values, np.ma.MaskedArray)


def _is_real(dtype: Any) -> bool:
    real = (
        jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating) or dtype == np.bool_
    )
    # numpy classifies time differences as integers.
    return bool(real) and getattr(dtype, "kind", "") != "m"


def _scalars_only(values: list | tuple) -> bool:
    """Whether nested lists contain only scalars. (numpy would drop the masks of arrays in
    lists.)
    """
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


def _arrays_only(array: np.ndarray) -> bool:
    """Whether the elements of an object array `[m]` are arrays, such as the lists of a column."""
    return array.size > 0 and all(type(each) is np.ndarray for each in array)


def _flat(values: Any) -> Iterable[Any]:
    return (
        chain.from_iterable(map(_flat, values)) if isinstance(values, list | tuple) else (values,)
    )


def _reason(array: Any) -> str:
    """Returns why the type of an array is not one of real numbers, with a remedy."""
    kind = getattr(array.dtype, "kind", "")
    if jnp.issubdtype(array.dtype, np.complexfloating):
        return "complex numbers; expected real numbers; pass .real and .imag as two columns"
    if kind in ("U", "S", "T"):
        return f"text{_example(array)}; {_ENCODED}"
    if kind in ("M", "m"):
        return (
            "dates or times; expected numbers; subtract a start and divide by a unit, "
            "(t - t[0]) / numpy.timedelta64(1, 's')"
        )
    if kind == "V" and getattr(array.dtype, "names", None):
        return (
            "records with named fields; expected numbers; pass "
            "numpy.lib.recfunctions.structured_to_unstructured(array)"
        )
    if kind != "O":
        return f"an array of {array.dtype}; expected real numbers"
    if array.ndim == 0:
        return f"a {type(array.item()).__name__}; expected an array of numbers"
    odd = next(
        (each for each in array.flat if not isinstance(each, int | float | np.number | Fraction)),
        None,
    )
    if isinstance(odd, str):
        return f"text ({odd!r}); {_ENCODED}"
    if all(isinstance(each, int) for each in array.flat):
        return (
            "integers as Python objects; expected integers of at most 64 bits; pass "
            ".astype(numpy.int64) if they fit"
        )
    if odd is None and not any(each is None for each in array.flat):
        return "an array of Python objects; expected numbers; pass .astype(float)"
    return (
        f"Python objects with a {type(odd).__name__}; expected numbers; fill or drop missing "
        "entries, then pass .astype(float)"
    )


def _example(array: Any) -> str:
    return f" ({array.flat[0]!s})" if getattr(array, "size", 0) else ""
