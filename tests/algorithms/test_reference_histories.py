"""Histories on clusters and with partial participation, compared with recorded ones.

`reference_histories.json` has the history and the final parameters of each case in `references.py`.
To replace some, delete them, give the reason in the commit message, and run `python -m
tests.algorithms.test_reference_histories`, which records the cases that are missing.

Bits and other integers are equal. Real numbers differ by rounding only: a sum of eight float32
terms in another order differs by about 5e-7 of its terms, and eight rounds of step size 0.1 add
such errors up, but do not amplify them. Other compiler settings, four devices and the file's six
digits changed results by at most a sixth of what is allowed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import multiprocess_cases
import numpy as np
import pytest
from budgets import smoke_cases

from tests.algorithms.references import CASES, FILE

REFERENCES: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
REFUSED = {"refused": [1]}
EXACT = (
    "bits",
    "step",
    "worker",
    "staleness",
    "samples",
    "measured_bits",
    "message",
    "missing",
    "refused",
    "batches",
    "rounds",
)
# the second tolerance is for differences between equal models, which are rounding errors
RELATIVE, ABSOLUTE = 2e-5, 1e-9
BRIEFLY = {
    "drop_compute around minibatch_sgd on samples, noisy",
    "kimad on layers, pipelined",
    "local_sgd swept, partly",
    "scaffold, partly",
    "unequal work, decentralized_sgd on samples, partly",
}


def outcome(name: str, devices: int = 1) -> dict[str, np.ndarray]:
    """Returns the outcome of the case; a ValueError is recorded as a refusal."""
    try:
        return CASES[name](devices)
    except ValueError:
        return {"refused": np.array([1])}


def brief(name: str) -> bool:
    """Returns whether it is one of one method of each exchange on a cluster, with partial
    participation if supported.
    """
    method, _, cluster = name.rpartition(", ")
    if method not in multiprocess_cases.METHODS.values():
        return name in BRIEFLY
    return cluster == ("pipelined" if REFERENCES.get(f"{method}, partly") == REFUSED else "partly")


def is_exact(key: str) -> bool:
    return key.startswith(EXACT)


def assert_same(found: Mapping[str, np.ndarray], reference: Mapping[str, Any]) -> None:
    assert sorted(found) == sorted(reference)
    for key, values in found.items():
        expected = np.array(reference[key], float)
        assert values.shape == expected.shape, key
        if is_exact(key):
            np.testing.assert_array_equal(values, expected, err_msg=key)
        else:
            largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=0.0)
            np.testing.assert_allclose(
                values, expected, RELATIVE, RELATIVE * largest + ABSOLUTE, err_msg=key
            )


BRIEF = [name for name in CASES if brief(name)]


@pytest.mark.parametrize("name", smoke_cases(CASES, {*BRIEF[::3], *BRIEFLY}, often={*BRIEF}))
def test_a_history_is_the_recorded_one(name):
    assert_same(outcome(name), REFERENCES[name])


@pytest.mark.long
@pytest.mark.parametrize("name", BRIEF[::3])
def test_a_history_is_the_recorded_one_on_four_devices(name):
    assert_same(outcome(name, 4), REFERENCES[name])


def test_each_recorded_history_belongs_to_a_case():
    assert list(REFERENCES) == list(CASES)


# --- Recording.


def round_number(value: float, key: str) -> float | int | None:
    if np.isnan(value):
        return None
    number = float(value) if is_exact(key) else float(f"{value:.6g}")
    return int(number) if number.is_integer() else number


def to_lists(values: np.ndarray, key: str) -> Any:
    return (
        [to_lists(row, key) for row in values] if values.ndim else round_number(float(values), key)
    )


def record() -> None:
    """Writes the file in the order of the cases, one line for each array; existing cases stay
    unchanged.
    """
    texts = []
    for name in CASES:
        if name not in REFERENCES:
            print(name, flush=True)
            REFERENCES[name] = {key: to_lists(values, key) for key, values in outcome(name).items()}
        lines = [
            f"  {json.dumps(key)}: {json.dumps(values, separators=(',', ':'))}"
            for key, values in REFERENCES[name].items()
        ]
        texts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    FILE.write_text("{\n" + ",\n".join(texts) + "\n}\n")


if __name__ == "__main__":
    record()
