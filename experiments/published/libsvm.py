"""The data sets of the LIBSVM collection that papers use, as files in a folder."""

from __future__ import annotations

import os

from dsgd import problems
from dsgd.problems.data import dense

FOLDER = "DSGD_DATA"  # in the environment
PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
SIZES = {"a9a": (32_561, 123), "mushrooms": (8_124, 112), "phishing": (11_055, 68)}
SIZES |= {"w8a": (49_749, 300)}  # samples and features


def load(name: str) -> problems.Dataset:
    """Returns a data set with all samples in their order, as dense arrays.

    Args:
        name: of `SIZES`.

    Raises:
        ValueError: if the folder has no such file, or another one of the same name.
    """
    folder = os.environ.get(FOLDER)
    try:
        found = problems.load(name, folder, hold_out=False)
    except ValueError as error:
        raise ValueError(
            f"the data set {name} is not in {folder or 'the current folder'} ({error}); download "
            f"{name} from {PAGE} and set {FOLDER} to its folder"
        ) from error
    shape = found.train_inputs.shape
    if shape != SIZES[name]:
        raise ValueError(
            f"the data set {name} in {folder or 'the current folder'} has {shape[0]:,} samples of "
            f"{shape[1]} features; expected {SIZES[name]}, as in {PAGE}"
        )
    return dense(found)
