"""The data sets of published figures: the folder, the partition, and what to do without them."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.published import libsvm

ROWS = "-1 1:0.5 3:2\n+1 2:1.5\n-1 3:4\n+1 1:3\n-1 2:2.5\n"


def test_samples_are_dense_and_in_the_order_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "a9a.txt").write_text(ROWS)
    monkeypatch.setenv(libsvm.FOLDER, str(tmp_path))
    monkeypatch.setitem(libsvm.SIZES, "a9a", (5, 3))
    found = libsvm.load("a9a")
    expected = [[0.5, 0, 2], [0, 1.5, 0], [0, 0, 4], [3, 0, 0], [0, 2.5, 0]]
    np.testing.assert_array_equal(found.train_inputs, expected)
    np.testing.assert_array_equal(found.train_targets, [0, 1, 0, 1, 0])


@pytest.mark.parametrize("there", [False, True])
def test_without_the_file_the_error_says_where_it_is(tmp_path, monkeypatch, there):
    """There is no file, or one of another size."""
    if there:
        (tmp_path / "a9a.txt").write_text(ROWS)
    monkeypatch.setenv(libsvm.FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match=f"the data set a9a .*{libsvm.PAGE}") as error:
        libsvm.load("a9a")
    assert str(tmp_path) in str(error.value)
    assert ("5 samples of 3 features" in str(error.value)) == there
    assert (f"set {libsvm.FOLDER}" in str(error.value)) != there
