"""Data of users: every value is kept, or refused with the reason and a remedy."""

from __future__ import annotations

import array
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import scipy.sparse as sp
from jax.experimental.sparse import BCOO

import algorithms
import dsgd
import topologies
from dsgd import array_likes, problems

KEY = jax.random.key(0)
X = np.arange(12.0).reshape(6, 2)
BIG = np.array([0, 3_000_000_000, 2, 3, 4, 5])
MASKED = np.ma.array(X, mask=X == 3)
HUGE = np.full((2, 2), 1e300)
LINEAR = problems.Model(lambda key: jnp.zeros(2), lambda x, inputs: inputs @ x)
SGD = algorithms.minibatch_sgd(optax.sgd(0.1))


def risk(inputs: Any, targets: Any = X[:, 0], **options: Any) -> dsgd.Problem:
    options = {"workers": 2, "batch_size": 1, **options}
    return problems.finite_sum(LINEAR, optax.squared_error, (inputs, targets), **options)


class OnlyDLPack:
    def __init__(self, values: np.ndarray):
        self.__dlpack__, self.__dlpack_device__ = values.__dlpack__, values.__dlpack_device__


class Tensor:
    """An object like PyTorch's tensors, which are not converted while they require gradients, or
    are on a GPU.
    """

    dtype = "torch.float32"

    def detach(self) -> None:
        """Marks the tensor as detached."""

    def __array__(self, *options: Any, **more: Any) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


ALIKE = {
    "jax": jnp.array([1.0, 2.0]),
    "list": [1, 2],
    "list of arrays": [np.array(1.0), jnp.array(2.0)],
    "tuple": (1.0, 2.0),
    "range": range(1, 3),
    "buffer": array.array("d", [1, 2]),
    "memoryview": memoryview(b"\x01\x02"),
    "dlpack": OnlyDLPack(np.array([1.0, 2.0])),
    "series": pd.Series([1, 2], index=[5, 3]),
    "nullable series": pd.Series([1, 2], dtype="Int64"),
    "sparse series": pd.Series(pd.arrays.SparseArray([1, 2])),
    "index": pd.Index([1, 2]),
    "mask without masked entries": np.ma.array([1.0, 2.0], mask=[False, False]),
    "long doubles": np.array([1.0, 2.0], np.longdouble),
}


@pytest.mark.parametrize("name", ALIKE)
def test_containers_of_numbers_are_converted(name):
    found = array_likes.numbers(name, ALIKE[name])
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, [1, 2])


def test_tables_become_matrices():
    table = pd.DataFrame({"a": pd.array([1, 2], "Int64"), "b": [0.5, 1.5], "c": [True, False]})
    np.testing.assert_array_equal(array_likes.numbers("table", table), [[1, 0.5, 1], [2, 1.5, 0]])
    np.testing.assert_array_equal(risk(pd.DataFrame(X)).data.inputs, risk(X).data.inputs)


def test_other_libraries_are_converted():
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"a": [1, 2], "b": [3, 4]})
    np.testing.assert_array_equal(array_likes.numbers("table", table), [[1, 3], [2, 4]])
    for wrong, words in (
        (polars.Series([1, None]), "1 missing"),
        (polars.Series(["a", "b"], dtype=polars.Categorical), r"to_physical\(\)"),
        (table.lazy(), r"\.collect\(\)"),
    ):
        with pytest.raises(ValueError, match=words):
            array_likes.numbers("table", wrong)


def test_lists_of_numbers_are_arrays_and_other_containers_structure():
    given = {"a": [[1, 2], [3, 4]], "b": ([1, 2], np.ones(3)), "c": [np.ones(2), np.zeros(1)]}
    found = array_likes.tree("here", given)
    assert jax.tree.map(np.shape, found) == {"a": (2, 2), "b": ((2,), (3,)), "c": [(2,), (1,)]}
    assert risk([[1, 2]] * 6, [0.5] * 6).data.inputs.shape[-1] == 2


def test_columns_of_equally_long_lists_are_matrices():
    rows = pd.Series([np.array([1.5, 2]), np.array([3, 4.5])])
    assert array_likes.numbers("here", rows).tolist() == [[1.5, 2], [3, 4.5]]
    with pytest.raises(ValueError, match=r"here: got rows of shapes \(1,\) and \(2,\)"):
        array_likes.numbers("here", pd.Series([np.ones(2), np.ones(1)]))


@pytest.mark.parametrize(
    "values",
    [
        np.array([-(2**31), 2**31 - 1]),
        np.array([2**32 - 1], np.uint64),
        np.array([1.0, 1e-300]),
        np.array([np.inf, np.nan, 3e38]),
        np.array([0.0, -0.0]),
        np.full(2, 3.5, np.longdouble),
        np.array([0.5, 3e38], ">f4"),
        np.array([-7, 2**31 - 1], ">i8"),
        np.array([3, 2**16 - 1], ">u2"),
        np.full((3, 2), 2.5).view(np.matrix),
        np.zeros(0, np.int64),
        np.array([True]),
        np.ones(2, jnp.bfloat16),
        np.arange(3, dtype=np.uint8),
    ],
)
def test_values_that_jax_stores_are_kept_up_to_rounding(values):
    kept = array_likes.narrow("here", array_likes.numbers("here", values))
    assert type(kept) is np.ndarray
    np.testing.assert_allclose(kept.astype(float), values.astype(float), rtol=1e-6, atol=1e-37)
    assert kept.dtype == jax.device_put(kept).dtype


def test_x64_keeps_what_float32_cannot_hold():
    with jax.enable_x64(True):
        for values in (BIG, HUGE):
            np.testing.assert_array_equal(array_likes.narrow("here", values), values)
        assert problems.load((np.ones((20, 2)), np.arange(20) % 2)).train_inputs.dtype == np.float64


circular: list[Any] = []
circular.append(circular)
REFUSED = {
    "masked": (MASKED, r"masked array with 1 of 12 .*\.filled"),
    "a masked entry": ([1.0, np.ma.masked], "masked array"),
    "csr": (sp.csr_matrix(np.eye(2)), r"sparse csr_matrix.*\.toarray\(\)"),
    "bcoo": (BCOO.fromdense(jnp.eye(2)), r"sparse BCOO.*\.todense\(\)"),
    "tensor": (Tensor(), r"Tensor .*\.detach\(\)\.cpu\(\)\.numpy\(\)"),
    "missing": (pd.Series([1, None], dtype="Int64"), "1 missing"),
    "missing in a column": (pd.DataFrame({"a": pd.array([None], "Float64")}), "'a', 1 missing"),
    "categories": (pd.Series(["a"], dtype="category"), r"categories; .*\.cat\.codes"),
    "text": (["a", "b"], r"text \(a\).*numpy\.unique"),
    "bytes": (b"abc", "text"),
    "complex": (np.ones(2, complex), r"complex numbers.*\.real"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), "dates or times"),
    "seconds": (np.ones(2, "m8[s]"), "dates or times"),
    "objects": (np.array([1, 2.5], object), r"Python objects; .*\.astype\(float\)"),
    "None": ([1, None], "NoneType"),
    "dict": ({"a": 1}, "a dict"),
    "fields": (np.ones(2, [("a", float)]), "structured_to_unstructured"),
    "ragged": ([[1, 2], [3]], "different lengths; .*pad"),
    "ragged arrays": ([np.ones(2), np.ones(3)], r"shapes \(2,\) and \(3,\)"),
    "huge": ([2**70], "64 bits"),
    "huge and negative": ([2**63, -1], "64 bits"),
    "int64 and uint64": (
        pd.DataFrame({"a": [-1], "b": np.array([2**63], np.uint64)}),
        "signed and unsigned",
    ),
    "circular": (circular, "32 deep"),
    "key": (KEY, "PRNGKey"),
}
BEYOND = {
    "int64": (BIG, "3000000000 in int64; expected int32"),
    "negative int64": (-BIG, "-3000000000 in int64; expected int32"),
    "uint64": (np.array([2**32], np.uint64), "4294967296 in uint64; expected uint32"),
    "float64": (np.array([1.0, -1e300]), r"-1e\+300 in float64"),
    "all of float64 too small": (np.array([0.0, 1e-300]), "1e-300 in float64"),
    "long double": (np.array([1, 2.0**130], np.longdouble), r"1\.36.*e\+39"),
}


@pytest.mark.parametrize("name", [*REFUSED, *BEYOND])
def test_containers_without_numbers_are_refused_with_a_remedy(name):
    values, words = (REFUSED | BEYOND)[name]
    assert (array_likes.refusal(values) is None) == (name in BEYOND)
    remedy = ".*jax_enable_x64" if name in BEYOND else ""
    with pytest.raises(ValueError, match=f"here: got .*{words}{remedy}"):
        array_likes.narrow("here", array_likes.numbers("here", values))


def fed(*batches: Any) -> Any:
    def loss(x: jax.Array, batch: Any) -> jax.Array:
        return jnp.mean((batch["x"] @ x - batch["y"]) ** 2)

    whole = {"x": np.ones((2, 1, 2)), "y": np.ones((2, 1))}
    problem = dsgd.Problem(lambda key: jnp.zeros(2), loss, whole, lambda key, own: own)
    return dsgd.run(SGD, problem, steps=len(batches), key=KEY, mesh=1, batches=batches)


ROWS = [[[1.0, 2.0]], [[3, 4]]]


def test_batches_may_be_dictionaries_of_json_lists():
    assert fed(*[{"x": ROWS, "y": [[1], [0]]}] * 2).history["step"][-1] == 2


def own(**changes: Any) -> Any:
    problem = dsgd.Problem(
        lambda key: jnp.zeros(2), lambda x, batch: x @ x, X, lambda key, own: own
    )
    return dsgd.run(SGD, problem._replace(**changes), steps=1, key=KEY)


TWENTY, ONES = np.arange(20), np.ones((2, 2))
DOORS = {
    "inputs": lambda: risk(X * 1e300),
    "partition": lambda: risk(X, partition=[np.ma.array([0, 1], mask=[0, 1]), [2]]),
    "by worker": lambda: problems.finite_sum(
        LINEAR, optax.squared_error, problems.ByWorker(lambda n: (X, BIG)), 2
    ),
    "masked classes": lambda: problems.load(
        (np.ones((20, 2)), np.ma.array(TWENTY % 2, mask=TWENTY == 3))
    ),
    "quadratic": lambda: problems.quadratic(ONES, HUGE),
    "matrix": lambda: topologies.from_matrix(np.ma.array(ONES / 2, mask=np.eye(2))),
    "problem: data.*got the entry": lambda: own(data={"a": BIG}),
    "problem: data.*masked": lambda: own(data={"a": MASKED}),
    r"problem: data.*numpy\.asarray": lambda: own(data={"a": pd.DataFrame(X)}),
    r"batches: batch 0\['y'\]: got the entry": lambda: fed({"x": ROWS, "y": BIG[:2, None]}),
    r"batches: batch 0\['y'\]: got a masked": lambda: fed({"x": ROWS, "y": MASKED[1]}),
    r"batches: batch 0\['y'\]: got rows": lambda: fed({"x": ROWS, "y": [[1.0], [2.0, 3.0]]}),
}


@pytest.mark.parametrize("door", DOORS)
def test_values_that_do_not_fit_are_refused_by_every_function(door):
    where = door if ":" in door else r"mask|got the entry|1e\+300"
    with pytest.raises(ValueError, match=where):
        DOORS[door]()
