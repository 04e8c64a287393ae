"""Data that people have: each case keeps every value, or is refused with the reason and the
remedy.
"""

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
from dsgd import array_likes, clusters, problems, work

KEY = jax.random.key(0)
X = np.arange(12.0).reshape(6, 2)
LINEAR = problems.Model(lambda key: jnp.zeros(2), lambda x, inputs: inputs @ x)


def risk(inputs: Any, targets: Any = X[:, 0]) -> dsgd.Problem:
    return problems.finite_sum(LINEAR, optax.squared_error, (inputs, targets), 2, batch_size=1)


# Values that do not fit

BEYOND = {
    "int64": (np.array([0, 3_000_000_000]), r"got the entry 3000000000 in int64; expected int32"),
    "negative int64": (
        np.array([-(2**31) - 1, 0]),
        r"got the entry -2147483649 in int64; expected int32",
    ),
    "uint64": (
        np.array([0, 2**32], np.uint64),
        r"got the entry 4294967296 in uint64; expected uint32",
    ),
    "float64": (
        np.array([1.0, -1e300]),
        r"got the entry -1e\+300 in float64; expected magnitudes between",
    ),
    "all of float64 too small": (
        np.array([0.0, 1e-300]),
        r"got the entry 1e-300 in float64; expected magnitudes between",
    ),
    "long double": (
        np.array([1, 2.0**130], np.longdouble),
        r"got the entry 1\.36.*e\+39 in .*; expected magnitudes between",
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_values_that_jax_cannot_store_are_refused(name):
    values, message = BEYOND[name]
    with pytest.raises(ValueError, match=rf"here: {message}.*jax_enable_x64"):
        array_likes.kept("here", values)


@pytest.mark.parametrize(
    "values",
    [
        np.array([-(2**31), 2**31 - 1]),
        np.array([2**32 - 1], np.uint64),
        np.array([1.0, 1e-300]),
        np.array([np.inf, np.nan, 3e38]),
        np.array([0.0, -0.0]),
        np.ones(2, np.longdouble),
        np.zeros(0, np.int64),
        np.array([True]),
        np.ones(2, np.float16),
        np.ones(2, jnp.bfloat16),
        np.arange(3, dtype=np.uint8),
    ],
)
def test_values_that_jax_stores_are_kept_up_to_rounding(values):
    kept = array_likes.kept("here", values)
    np.testing.assert_allclose(kept.astype(float), values.astype(float), rtol=1e-6, atol=1e-37)
    assert kept.dtype == jax.device_put(kept).dtype


def test_x64_keeps_what_float32_cannot_hold():
    with jax.enable_x64(True):
        np.testing.assert_array_equal(
            array_likes.kept("here", np.array([3_000_000_000])), [3_000_000_000]
        )
        np.testing.assert_array_equal(array_likes.kept("here", np.array([1e300])), [1e300])
        assert problems.load((np.ones((20, 2)), np.arange(20) % 2)).train_inputs.dtype == np.float64


BIG = np.array([0, 3_000_000_000, 2, 3, 4, 5])
MASKED = np.ma.array(X, mask=X == 3)
DOORS = {
    "targets": lambda: risk(X, BIG),
    "inputs": lambda: risk(X * 1e300),
    "masked inputs": lambda: risk(MASKED),
    "test": lambda: problems.finite_sum(
        LINEAR,
        optax.squared_error,
        (X, X[:, 0]),
        2,
        batch_size=1,
        test=(X, BIG),
        metrics={"m": optax.l2_loss},
    ),
    "by worker": lambda: problems.finite_sum(
        LINEAR, optax.squared_error, problems.ByWorker(lambda n: (X, BIG)), 2, batch_size=1
    ),
    "masked classes": lambda: problems.load(
        (np.ones((20, 2)), np.ma.array(np.arange(20) % 2, mask=np.arange(20) == 3))
    ),
    "inputs of classes": lambda: problems.load((np.full((20, 2), 1e300), np.arange(20) % 2)),
    "quadratic": lambda: problems.quadratic(np.ones((2, 3)), np.full((2, 3), 1e300)),
    "noise": lambda: problems.quadratic(np.ones((2, 3)), np.ones((2, 3)), noise=1e300),
    "weights of work": lambda: work.weighted(np.full((2, 1), 1e300)),
    "start": lambda: problems.quadratic(np.ones((2, 3)), np.ones((2, 3)), start=np.full(3, 1e300)),
    "seconds of float64": lambda: clusters.constant([1.0, 1e300]),
    "grid": lambda: sweep([1e300]),
    "matrix": lambda: topologies.from_matrix(np.ma.array(np.full((2, 2), 0.5), mask=np.eye(2))),
    "labels": lambda: problems.split(np.ma.array([0, 1, 0, 1], mask=[0, 0, 0, 1]), 2),
    "partition": lambda: problems.finite_sum(
        LINEAR,
        optax.squared_error,
        (X, X[:, 0]),
        2,
        [np.ma.array([0, 1], mask=[0, 1]), np.array([2])],
        batch_size=1,
    ),
}


def sweep(rates: Any) -> Any:
    return dsgd.sweep(
        lambda rate: algorithms.minibatch_sgd(optax.sgd(rate)),
        risk(X),
        steps=1,
        key=KEY,
        rate=rates,
    )


@pytest.mark.parametrize("door", DOORS)
def test_values_that_do_not_fit_are_refused_at_every_door(door):
    with pytest.raises(ValueError, match=r"mask|got the entry|1e\+300|1e-300"):
        DOORS[door]()


def test_batches_may_be_dictionaries_of_json_lists_and_are_refused_where_they_do_not_fit():
    rows, y = [[[1.0, 2.0]], [[3, 4]]], [[1], [0]]
    assert fed({"x": rows, "y": y}).history["step"][-1] == 2
    for wrong, message in (
        (np.array([[3_000_000_000], [0]]), "got the entry 3000000000"),
        (np.ma.array([[1.0], [2.0]], mask=[[0], [1]]), "got a masked array"),
        ([[1.0], [2.0, 3.0]], "got rows of different lengths"),
    ):
        with pytest.raises(ValueError, match=rf"batches: batch 0\['y'\]: {message}"):
            fed({"x": rows, "y": wrong})


def fed(batch: Any) -> Any:
    def loss(x: jax.Array, batch: Any) -> jax.Array:
        return jnp.mean((batch["x"] @ x - batch["y"]) ** 2)

    whole = {"x": np.ones((2, 1, 2)), "y": np.ones((2, 1))}
    problem = dsgd.Problem(lambda key: jnp.zeros(2), loss, whole, lambda key, own: own)
    return dsgd.run(
        algorithms.minibatch_sgd(optax.sgd(0.1)),
        problem,
        steps=2,
        key=KEY,
        mesh=1,
        batches=[batch] * 2,
    )


@pytest.mark.parametrize(
    ("part", "values"),
    [("data", BIG), ("data", MASKED), ("shared", X * 1e300), ("data", pd.DataFrame(X))],
)
def test_a_problem_s_own_arrays_that_do_not_fit_are_refused(part, values):
    problem = dsgd.Problem(
        lambda key: jnp.zeros(2), lambda x, batch: jnp.sum(x), X, lambda key, own: own
    )
    arrays = {"a": values}
    changed = problem._replace(
        **{"data": arrays} if part == "data" else {"evaluate": dsgd.Evaluation(shared=arrays)}
    )
    with pytest.raises(
        ValueError, match=rf"problem: {part}.*(got the entry|masked|pass numpy\.asarray)"
    ):
        dsgd.run(algorithms.minibatch_sgd(optax.sgd(0.1)), changed, steps=1, key=KEY)


# One conversion of all array-likes


class OnlyDLPack:
    def __init__(self, values: np.ndarray):
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Tensor:
    """As PyTorch's, which is not converted while it takes part in gradients, or lies on a GPU."""

    dtype = "torch.float32"

    def detach(self) -> None:
        """Marks a tensor."""

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
    "matrix": np.array([1.0, 2.0], np.longdouble),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_holds_numbers_is_converted(name):
    found = array_likes.numbers(name, ALIKE[name])
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, [1, 2])


def test_tables_become_matrices():
    table = pd.DataFrame({"a": pd.array([1, 2], "Int64"), "b": [0.5, 1.5], "c": [True, False]})
    np.testing.assert_array_equal(array_likes.numbers("table", table), [[1, 0.5, 1], [2, 1.5, 0]])
    np.testing.assert_array_equal(risk(pd.DataFrame(X)).data.inputs, risk(X).data.inputs)


def test_other_libraries_are_converted():
    polars = pytest.importorskip("polars")
    np.testing.assert_array_equal(
        array_likes.numbers("table", polars.DataFrame({"a": [1, 2], "b": [3, 4]})), [[1, 3], [2, 4]]
    )
    for wrong, message in (
        (polars.Series([1, None]), "1 missing entries"),
        (polars.Series(["a", "b"], dtype=polars.Categorical), r"to_physical\(\)"),
        (polars.DataFrame({"a": [1]}).lazy(), r"\.collect\(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            array_likes.numbers("table", wrong)


@pytest.mark.long  # to import PyTorch takes a second
def test_tensors_are_converted():
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(
        array_likes.numbers("tensor", [torch.ones(2), torch.zeros(2)]), [[1, 1], [0, 0]]
    )
    for wrong in (
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, device="meta"),
    ):
        with pytest.raises(ValueError, match=r"\.detach\(\)\.cpu\(\)\.numpy\(\)"):
            array_likes.numbers("tensor", wrong)


circular: list[Any] = []
circular.append(circular)
REFUSED = {
    "masked": (
        np.ma.array([1, 2], mask=[0, 1]),
        r"masked array with 1 of 2 entries masked.*\.filled",
    ),
    "a masked entry": ([1.0, np.ma.masked], "masked array"),
    "csr": (sp.csr_matrix(np.eye(2)), r"sparse csr_matrix; .*\.toarray\(\)"),
    "bcoo": (BCOO.fromdense(jnp.eye(2)), r"sparse BCOO; .*\.todense\(\)"),
    "tensor": (Tensor(), r"Tensor that numpy does not convert.*\.detach\(\)\.cpu\(\)\.numpy\(\)"),
    "missing": (pd.Series([1, None], dtype="Int64"), "1 missing entries; .*fill"),
    "missing in a column": (
        pd.DataFrame({"a": [1], "b": pd.array([None], "Float64")}),
        "column 'b', 1 missing",
    ),
    "categories": (
        pd.Series(["a"], dtype="category"),
        r"categories; .*\.cat\.codes, or pandas\.get_dummies",
    ),
    "text": (["a", "b"], r"text \(a\); expected numbers.*numpy\.unique"),
    "bytes": (b"abc", "text"),
    "complex": (np.ones(2, complex), r"complex numbers; .*\.real and \.imag"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), "dates or times"),
    "seconds": (np.ones(2, "m8[s]"), "dates or times"),
    "objects": (np.array([1, 2.5], object), r"Python objects; .*\.astype\(float\)"),
    "None": ([1, None], "NoneType"),
    "dict": ({"a": 1}, "a dict"),
    "fields": (np.ones(2, [("a", float)]), "structured_to_unstructured"),
    "ragged": ([[1, 2], [3]], "rows of different lengths; .*pad"),
    "ragged arrays": ([np.ones(2), np.ones(3)], r"rows of shapes \(2,\) and \(3,\)"),
    "huge": ([2**70], "at most 64 bits"),
    "huge and negative": ([2**63, -1], "beyond 64 bits"),
    "int64 and uint64": (
        pd.DataFrame({"a": [-1], "b": np.array([2**63], np.uint64)}),
        "signed and unsigned",
    ),
    "circular": (circular, "nested more than 32 deep"),
    "key": (jax.random.key(0), "PRNGKey"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_no_numbers_is_refused_with_the_remedy(name):
    values, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"here: got .*{message}"):
        array_likes.numbers("here", values)
    assert array_likes.refusal(values) is not None


def test_lists_of_numbers_are_arrays_and_other_containers_structure():
    found = array_likes.tree(
        "here", {"a": [[1, 2], [3, 4]], "b": ([1, 2], np.ones(3)), "c": [np.ones(2), np.zeros(1)]}
    )
    assert jax.tree.map(np.shape, found) == {"a": (2, 2), "b": ((2,), (3,)), "c": [(2,), (1,)]}
    assert risk([[1, 2]] * 6, [0.5] * 6).data.inputs.shape[-1] == 2


def dataset(**changes: Any) -> problems.Dataset:
    inputs, classes = np.ones((6, 2), np.float32), np.arange(6) % 2
    return problems.Dataset("mine", inputs, classes, inputs, classes, 2)._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 2.5}, "classes = 2.5; expected .* an integer"),
        ({"classes": 0}, "classes = 0; expected .* at least 1"),
        ({"name": 3}, "name = 3"),
        ({"classes": 1}, "targets from 0 to 1, but 1 classes; expected 0 to 0"),
        ({"train_targets": np.arange(6) - 3}, "targets from -3 to 2"),
        ({"train_targets": np.ones((6, 1))}, r"targets have shape \(6, 1\)"),
        (
            {"train_targets": np.arange(6) / 2},
            "train targets have the entry 0.5; expected classes as whole numbers",
        ),
        ({"test_inputs": np.ones((6, 3))}, "expected samples of the same shape"),
        ({"train_inputs": np.ones((6, 0))}, "at least one element per sample"),
        ({"train_inputs": np.ones((5, 2))}, "there are 5 inputs"),
        ({"test_inputs": MASKED}, "test inputs: got a masked array"),
        ({"labels": np.array(["a"])}, "1 labels, but 2 classes"),
    ],
)
def test_data_sets_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"mine: .*{message}|Dataset: .*{message}"):
        problems.load(dataset(**changes))


def test_labels_of_classes_are_kept():
    inputs = np.random.default_rng(0).normal(size=(20, 2))
    thirds = np.arange(20) % 3
    for labels in (
        np.where(thirds, 1, -1),
        np.where(thirds, "cat", "ant"),
        pd.Series(["b", "a"] * 10, dtype="category"),
    ):
        found = problems.load((inputs, labels))
        np.testing.assert_array_equal(found.labels, np.unique(np.asarray(labels)))
        rows = {
            tuple(row.tolist()): label
            for row, label in zip(inputs.astype(np.float32), labels, strict=True)
        }
        assert all(
            rows[tuple(row.tolist())] == found.labels[c]
            for row, c in zip(found.test_inputs, found.test_targets, strict=True)
        )


# Sparse features

SPARSE = sp.random_array((40, 30), density=0.1, rng=np.random.default_rng(1), format="csr")
CLASSES = np.arange(40) % 3


def test_sparse_features_give_the_losses_and_gradients_of_dense_ones():
    given = (sp.csc_matrix(SPARSE), SPARSE.toarray())
    sparse, dense = (
        problems.logistic_regression((inputs, CLASSES), 3, batch_size=4) for inputs in given
    )
    assert isinstance(sparse.data.inputs, problems.SparseRows)
    assert (
        sum(leaf.nbytes for leaf in jax.tree.leaves(sparse.data.inputs)) < dense.data.inputs.nbytes
    )
    assert sparse.constants.smoothness == pytest.approx(dense.constants.smoothness)
    params = jax.tree.map(
        lambda leaf: np.random.default_rng(0).normal(size=leaf.shape).astype(np.float32),
        dense.init(KEY),
    )
    for one, other in zip(of(sparse, params), of(dense, params), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def of(problem: dsgd.Problem, params: Any) -> list[jax.Array]:
    """Worker 1's batch loss and gradient."""
    mine = jax.tree.map(lambda leaf: leaf[1], problem.data)
    return jax.tree.leaves(
        jax.jit(
            lambda params, mine: jax.value_and_grad(problem.loss)(params, problem.sample(KEY, mine))
        )(params, mine)
    )


def test_sparse_rows_are_the_matrix():
    # two entries at one place, and a zero
    matrix = sp.coo_array(([1.0, 2, 3, 0], ([0, 0, 2, 1], [4, 4, 0, 2])), (3, 5))
    rows = problems.sparse_rows(matrix, longest=2)
    assert rows.shape == (3, 5)
    assert rows.columns.shape == (3, 2)
    np.testing.assert_array_equal(rows.toarray(), [[0, 0, 0, 0, 3], [0] * 5, [3, 0, 0, 0, 0]])
    kernel = jnp.arange(10.0).reshape(5, 2)
    np.testing.assert_array_equal(rows @ kernel, rows.toarray() @ kernel)
    np.testing.assert_array_equal(rows @ kernel[:, 0], rows.toarray() @ kernel[:, 0])
    with pytest.raises(
        ValueError, match=r"kernel has shape \(4, 2\); expected \(5,\) or \(5, classes\)"
    ):
        rows @ kernel[:4]
    # a column that is not there
    assert jnp.isnan(problems.SparseRows(np.array([[5]]), np.ones((1, 1)), 5) @ kernel).all()
    with pytest.raises(
        ValueError, match="a row with 2 entries and 2 features, but longest = 1; expected"
    ):
        problems.sparse_rows(sp.csr_array(np.ones((2, 2))), longest=1)


def test_sparse_features_go_through_finite_sum_with_a_test_set_whose_rows_are_longer():
    def made(inputs: Any, test: Any) -> dsgd.Problem:
        model = problems.Model(lambda key: jnp.ones(30), lambda x, inputs: inputs @ x)
        metrics = {"error": optax.squared_error}
        return problems.finite_sum(
            model,
            optax.squared_error,
            (inputs, CLASSES * 1.0),
            4,
            batch_size=2,
            test=(test, np.ones(2)),
            metrics=metrics,
        )

    longer = sp.csr_array(np.pad(np.ones((2, 9)), ((0, 0), (0, 21))))
    sparse, dense = made(SPARSE, longer), made(SPARSE.toarray(), longer.toarray())
    assert isinstance(sparse.shared.inputs, problems.SparseRows)
    np.testing.assert_allclose(
        sparse.shared.inputs @ jnp.arange(30.0), dense.shared.inputs @ jnp.arange(30.0)
    )
    assert isinstance(risk(sp.csr_array(X)).data.inputs, jax.Array)  # which is smaller
    assert (
        problems.neural_network("mlp", (SPARSE, CLASSES), 2, batch_size=2).data.inputs.shape[-1]
        == 30
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [(np.nan, "not finite"), (1e300, r"1e\+300"), (1j, "complex"), (np.inf, "not finite")],
)
def test_sparse_entries_that_do_not_fit_are_refused(entry, message):
    with pytest.raises(ValueError, match=f"data: inputs.*{message}"):
        problems.logistic_regression(
            (sp.csr_array(([entry], ([0], [0])), (40, 30)), CLASSES), 2, batch_size=2
        )
