"""Sparse features give the results of dense ones, in less memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import dsgd
from dsgd import problems

KEY = jax.random.key(0)
SPARSE = sp.random_array((40, 90), density=0.03, rng=np.random.default_rng(1), format="csr")
CLASSES = np.arange(40) % 3


def test_sparse_features_give_the_losses_and_gradients_of_dense_ones():
    given = (sp.csc_matrix(SPARSE), SPARSE.toarray())
    sparse, dense = (
        problems.logistic_regression((inputs, CLASSES), 3, batch_size=4) for inputs in given
    )
    assert isinstance(sparse.data.inputs, problems.SparseRows)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(sparse.data.inputs))
    assert size < dense.data.inputs.nbytes
    assert sparse.constants.smoothness == pytest.approx(dense.constants.smoothness)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), dense.init(KEY))

    def answers(problem: dsgd.Problem) -> list[jax.Array]:
        """Returns worker 1's batch loss and gradient."""
        mine = jax.tree.map(lambda leaf: leaf[1], problem.data)
        batch = problem.sample(KEY, mine)
        return jax.tree.leaves(jax.jit(jax.value_and_grad(problem.loss))(params, batch))

    for one, other in zip(answers(sparse), answers(dense), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_sparse_rows_are_the_matrix():
    # two entries at one position, and a zero
    matrix = sp.coo_array(([1.0, 2, 3, 0], ([0, 0, 2, 1], [4, 4, 0, 2])), (3, 5))
    rows = problems.sparse_rows(matrix, longest=2)
    assert rows.shape == (3, 5)
    assert rows.columns.shape == (3, 2)
    np.testing.assert_array_equal(rows.toarray(), [[0, 0, 0, 0, 3], [0] * 5, [3, 0, 0, 0, 0]])
    kernel = jnp.arange(10.0).reshape(5, 2)
    for each in (kernel, kernel[:, 0]):
        np.testing.assert_array_equal(rows @ each, rows.toarray() @ each)
    with pytest.raises(ValueError, match=r"kernel .*\(4, 2\)"):
        rows @ kernel[:4]
    # an empty column
    assert jnp.isnan(problems.SparseRows(np.array([[5]]), np.ones((1, 1)), 5) @ kernel).all()
    with pytest.raises(ValueError, match="2 entries and 2 features, but longest = 1"):
        problems.sparse_rows(sp.csr_array(np.ones((2, 2))), longest=1)


@pytest.mark.parametrize(
    ("entry", "words"), [(np.nan, "not finite"), (1e300, r"1e\+300"), (1j, "complex")]
)
def test_sparse_entries_that_do_not_fit_are_refused(entry, words):
    inputs = sp.csr_array(([entry], ([0], [0])), (40, 30))
    with pytest.raises(ValueError, match=f"data: inputs.*{words}"):
        problems.logistic_regression((inputs, CLASSES), 2)


@pytest.mark.parametrize(
    ("features", "limit", "stored"),
    [(79, 10_000, False), (81, 10_000, True), (79, 3_000, True), (19, 100, False)],
)
def test_small_matrices_are_stored_as_dense_arrays(features, limit, stored, monkeypatch):
    """40 rows with up to 10 entries take the memory of 20 features, and a quarter of that of 80."""
    monkeypatch.setattr(problems.sparse, "_SMALL", limit)
    matrix = np.zeros((40, features))
    matrix[:, :10] = np.arange(1, 11)
    data = problems.load((sp.csr_array(matrix), CLASSES), hold_out=False)
    assert isinstance(data.train_inputs, problems.SparseRows) == stored
    found = data.train_inputs.toarray() if stored else data.train_inputs
    np.testing.assert_array_equal(found, matrix)
