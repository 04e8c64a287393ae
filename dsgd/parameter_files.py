"""Parameters by name: to and from files of safetensors, and from nested dictionaries."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd import array_likes, checks, optional
from dsgd.base import PyTree
from dsgd.records import replacing, user_path

_SAFETENSORS = ("safetensors.numpy", "safetensors")  # the module and the extra
_TYPES = {
    "F64": jnp.float64,
    "F32": jnp.float32,
    "F16": jnp.float16,
    "BF16": jnp.bfloat16,
    **{
        f"{kind}{bits}": jnp.dtype(f"{name}{bits}")
        for kind, name in (("I", "int"), ("U", "uint"))
        for bits in (8, 16, 32, 64)
    },
    "BOOL": jnp.bool_,
}  # of safetensors
_WHOLE = "parameters"  # name of a tree that is one array


@checks.arguments
def save_safetensors(params: PyTree, path: str | Path) -> None:
    """Writes parameters to a file in the format of safetensors (the extra `safetensors`).

    The name of an array is its path in the tree, "Dense_0.kernel" for the leaf
    `params["Dense_0"]["kernel"]`; a single array is named "parameters". Types, among them bfloat16,
    are kept. In a run of several processes, call this function in one of them.

    Args:
        params: a pytree of arrays: dictionaries, lists, named tuples, or a state of nnx; for
            example `result.params`.
        path: the file, which is replaced atomically.

    Raises:
        ValueError: if a leaf is not an array of numbers, two leaves have the same name, or `path`
            is a folder.
        ImportError: if safetensors is not installed.
    """
    save_file = optional.load("save_safetensors", *_SAFETENSORS).save_file
    arrays = {}
    for name, leaf in leaves_by_name("save_safetensors: params", params).items():
        array = array_likes.numbers(f"save_safetensors: params: {name}", leaf)
        # `save_file` writes the memory as it is, in the order of its strides.
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
    file = user_path("save_safetensors: path", path)
    if file.is_dir():
        raise ValueError(f"save_safetensors: path = {str(path)!r} is a folder; expected a file")
    with replacing(file) as temporary:
        save_file(arrays, temporary)


@checks.arguments
def load_safetensors(path: str | Path, like: PyTree) -> PyTree:
    """Reads parameters from a file in the format of safetensors (the extra `safetensors`).

    Args:
        path: the file. Its names are those of `save_safetensors`.
        like: arrays, or shapes and types (`jax.eval_shape`), in the structure of the result.

    Returns:
        The arrays of the file in the structure of `like`, with its types: floating-point numbers of
        lower precision are widened.

    Raises:
        ValueError: if the file is damaged, an array is missing, or one has no place in `like`,
            another shape, or a type that `like` does not contain. The message names it.
        FileNotFoundError: if the file does not exist.
        ImportError: if safetensors is not installed.
    """
    where = user_path("load_safetensors: path", path)
    load_file = optional.load("load_safetensors", *_SAFETENSORS).load_file
    try:
        arrays = load_file(where)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"load_safetensors: there is no file {where}; expected a file that save_safetensors "
            "or another program wrote"
        ) from None
    except Exception as error:  # safetensors' error is a subclass of Exception only
        raise ValueError(
            f"load_safetensors: {where} is not a file of safetensors, or is damaged ({error}); "
            "expected the file as it was written"
        ) from error
    return _fill(f"load_safetensors: {where}", arrays, like)


@checks.arguments
def load_shapes(path: str | Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Reads the shapes and types of a model's parameters, without its numbers.

    Args:
        path: a file of safetensors (the extra `safetensors`); or a JSON file of shapes by name,
            `{"dense.kernel": [768, 3072], "dense.bias": [3072]}`, in float32.

    Raises:
        ValueError: if the file is damaged, or a shape is not a list of positive integers.
        FileNotFoundError: if the file does not exist.
        ImportError: if safetensors is not installed.
    """
    where = user_path("load_shapes: path", path)
    if not where.exists():
        raise FileNotFoundError(
            f"load_shapes: there is no file {where}; expected a file of safetensors, or shapes by "
            "name as JSON"
        )
    if where.suffix == ".safetensors":
        return _read_header(where)
    try:
        given = json.loads(where.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"load_shapes: {where} is not JSON ({error}); expected shapes by name, such as "
            '{"kernel": [768, 3072]}, or a file that ends in .safetensors'
        ) from error
    if not isinstance(given, dict) or not given:
        raise ValueError(
            f"load_shapes: {where} has {checks.show(given)}; expected shapes by name, such as "
            '{"kernel": [768, 3072]}'
        )
    for name, shape in given.items():
        if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
            raise ValueError(
                f"load_shapes: {where}: {name} = {checks.show(shape)}; expected a list of positive "
                "integers"
            )
    return {name: jax.ShapeDtypeStruct(tuple(given[name]), jnp.float32) for name in given}


def _read_header(where: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and types of a file of safetensors."""
    safetensors = optional.load("load_shapes", "safetensors", "safetensors")
    try:
        with safetensors.safe_open(where, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            return {
                name: jax.ShapeDtypeStruct(tuple(each.get_shape()), _TYPES[each.get_dtype()])
                for name, each in slices.items()
            }
    except Exception as error:  # safetensors' error is a subclass of Exception only
        raise ValueError(
            f"load_shapes: {where} is not a file of safetensors, or is damaged ({error!r}); "
            "expected the file as it was written"
        ) from error


def leaves_by_name(where: str, tree: PyTree) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths, with dots between the entries.

    Raises:
        ValueError: if two leaves have the same name.
    """
    paths = [path for path, _ in tree_leaves_with_path(tree, is_leaf=_is_variable)]
    found: dict[str, Any] = {}
    for path, leaf in zip(paths, jax.tree.leaves(tree), strict=True):
        name = keystr(path, simple=True, separator=".") or _WHOLE
        if name in found:
            raise ValueError(
                f"{where}: two leaves are named {name!r}; expected keys without dots, or other keys"
            )
        found[name] = leaf
    return found


def _fill(where: str, given: Mapping[str, np.ndarray], like: PyTree) -> PyTree:
    """Returns arrays, given by name, in the structure and with the types of `like`.

    Args:
        where: beginning of messages.
        given: the arrays by name, see `leaves_by_name`.
        like: arrays, or shapes and types.

    Raises:
        ValueError: if names, shapes or types differ.
    """
    needed = leaves_by_name(where, like)
    for name, want in needed.items():
        is_array = isinstance(want, int | float) or hasattr(want, "shape")
        if not is_array or not _is_number(_dtype(want)):
            raise ValueError(
                f"{where}: {name} of `like` is {checks.kind(want)}; expected an array, or its "
                "shape and type"
            )
    for what, names in (
        ("has no", [name for name in needed if name not in given]),
        ("has in addition", [name for name in given if name not in needed]),
    ):
        if names:
            shown = ", ".join(names[:6]) + (f", ... ({len(names)})" if len(names) > 6 else "")
            raise ValueError(f"{where} {what} {shown}; expected {', '.join(list(needed)[:6])}")
    leaves = []
    for name, want in needed.items():
        leaf, kind = given[name], _dtype(want)
        is_wider = (
            jnp.issubdtype(leaf.dtype, jnp.floating) and jnp.promote_types(leaf.dtype, kind) == kind
        )
        if leaf.shape != jnp.shape(want) or not (leaf.dtype == kind or is_wider):
            expected = checks.kind(jax.ShapeDtypeStruct(jnp.shape(want), kind))
            raise ValueError(f"{where}: {name} is {checks.kind(leaf)}; expected {expected}")
        leaves.append(leaf if leaf.dtype == kind else leaf.astype(kind))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _dtype(leaf: Any) -> np.dtype:
    """Returns the type of a leaf in the machine's byte order."""
    kind = leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)
    return kind.newbyteorder("=") if isinstance(kind, np.dtype) else kind


def _is_number(kind: Any) -> bool:
    """Whether JAX computes with numbers of this type."""
    try:
        jnp.promote_types(kind, kind)
    except (TypeError, ValueError):  # keys; text, long double
        return False
    return True


def _is_variable(node: Any) -> bool:
    """Whether a node is a variable of nnx, which holds one array."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(node, nnx.Variable)
