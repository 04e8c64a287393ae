"""What a newcomer gets wrong, without the annotations that pytest checks: a ValueError that says what was given and what is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "run(method, problem, steps=1, key=0)": "key = 0: need one key of JAX, jax.random.key(0), say",
    "run(method, problem, steps=1, key=jax.random.split(key))": "need one key of JAX",
    "run(method, problem, steps=1e2, key=key)": "steps = 100.0: need an integer, at least 1",
    "run(method, problem, steps=1, key=key, seeds=1.5)": "seeds = 1.5: need an integer",
    "run(method, problem, steps=1, key=key, record_every=2.0)": "record_every = 2.0: need an integer",
    "run(method, problem, steps=1, key=key, mesh=99)": "mesh of 99 devices",
    "run(algorithms.minibatch_sgd, problem, steps=1, key=key)": "need a dsgd.Algorithm",
    "run(method, problem.data, steps=1, key=key)": "need a dsgd.Problem",
    "algorithms.minibatch_sgd(0.1)": "optimizer = 0.1: need an optax optimiser",
    "algorithms.decentralized_sgd(optax.sgd(0.1), np.eye(3))": "need a topology",
    "problems.load(np.zeros((20, 3)))": "need a name, a Dataset, or a pair (inputs, classes)",
    "problems.load((np.zeros((20, 3)), np.zeros(20), 3))": "need a name, a Dataset, or a pair (inputs, classes)",
    "problems.logistic_regression('digits', batch_size=2.5)": "batch_size = 2.5: need an integer",
    "problems.logistic_regression('digits', workers=2.0)": "workers = 2.0: need an integer",
    "dsgd.compressors.random_quantization(4.5)": "random_quantization(4.5): need bits between 1 and 8",
    "dsgd.compressors.random_quantization(True)": "random_quantization(True): need bits between 1 and 8, an integer",
    "dsgd.compressors.top_k('a')": "top_k: fraction = 'a'; need a number in (0, 1]",
    "dsgd.compressors.top_k(0.1, 4)": "top_k: given 4; need a dsgd.Compressor",
    "dsgd.compressors.buckets(dsgd.compressors.top_k, 8)": "buckets: given the function top_k; need a dsgd.Compressor",
    "algorithms.compressed_sgd(optax.sgd(0.1), dsgd.compressors.top_k)": "compressed_sgd: given the function top_k; need a dsgd.Compressor",
    "algorithms.ef21(optax.sgd(0.1), dsgd.compressors.sign, None)": "ef21 down: given None; need a dsgd.Compressor",
    "algorithms.error_compensated_sgd(optax.sgd(0.1), 'sign', dsgd.compressors.sign)": "error_compensated_sgd up: given 'sign'; need",
    "dsgd.sweep(lambda x: method, problem, steps=1, key=key, seeds=2.0, x=[1.0])": "seeds = 2.0: need an integer",
}
SCRIPT = """
import json, sys
import jax, numpy as np, optax
import algorithms, dsgd
from dsgd import problems, run
key, problem, method = jax.random.key(0), problems.random_quadratic(2, 2), algorithms.minibatch_sgd(optax.sgd(0.1))
for case in json.load(sys.stdin):
    try:
        eval(case)
        print(json.dumps("nothing raised"))
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"))
"""


@pytest.fixture(scope="module")
def raised() -> dict[str, str]:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(list(CASES)), capture_output=True, text=True, check=True, cwd=root
    )
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_value_error_that_says_what_is_needed(case, raised):
    assert raised[case].startswith("ValueError: ")
    assert CASES[case] in raised[case]
