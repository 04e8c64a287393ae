"""No bad call ends in anything but a ValueError that names what is wrong: see `bad_calls.py`, which
draws them in a process of its own.
"""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pytest
from bad_calls import MESSAGES

from dsgd import checks, compressors


@pytest.fixture(scope="module")
def drawn(request, tmp_path_factory) -> dict[str, Any]:
    """In a folder of its own, where a checkpoint may end up: a twelfth of the calls, all of them
    with --long.
    """
    root = Path(__file__).parents[1]
    script = "import runpy, sys; sys.path[:0] = sys.argv[1:]; runpy.run_module('bad_calls', run_name='__main__')"
    every = 1 if request.config.getoption("--long") else 12
    command = [sys.executable, "-c", script, str(root), str(root / "tests"), str(every)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=tmp_path_factory.mktemp("drawn")
    )
    return json.loads(done.stdout)


def test_good_calls_are_good(drawn):
    assert drawn["good"] == {}


def test_every_public_function_has_a_good_call(drawn):
    assert drawn["missing"] == []


def test_nothing_but_a_value_error_that_names_it_escapes(drawn):
    assert drawn["drawn"] > 2_500
    assert drawn["escaped"] == {}


@pytest.mark.parametrize("case", MESSAGES)
def test_the_message_says_what_is_needed(case, drawn):
    assert drawn["messages"][case].startswith("ValueError: ")
    assert MESSAGES[case] in drawn["messages"][case]


def test_what_the_body_raises_passes():
    @checks.arguments
    def fails(n: int) -> None:
        raise KeyError(n)

    with pytest.raises(KeyError, match="3"):
        fails(3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        fails()  # type: ignore[call-arg]


def test_traced_values_pass():
    @checks.arguments
    def double(x: float) -> Any:
        return 2 * x

    assert jax.eval_shape(double, 1.0).shape == ()
    assert jax.eval_shape(double, jax.numpy.ones(3)).shape == (3,)
    with pytest.raises(ValueError, match=r"double: x = array\(\[1., 1., 1.\]\); expected a number"):
        double(np.ones(3))  # type: ignore[arg-type]


def test_functions_stay_what_they_are():
    assert pickle.loads(pickle.dumps(compressors.top_k)) is compressors.top_k
    assert compressors.top_k.__name__ == "top_k"
    assert "biased" in (compressors.top_k.__doc__ or "")
    assert list(inspect.signature(compressors.top_k).parameters) == ["fraction", "values"]


def test_words_of_an_annotation_are_the_message():
    @checks.arguments
    def load(pair: Annotated[tuple[int, int] | None, "a pair"]) -> None: ...

    load((1, 2))
    load(None)
    with pytest.raises(ValueError, match=r"^load: pair = 3; expected a pair$"):
        load(3)  # type: ignore[arg-type]
