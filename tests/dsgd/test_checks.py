"""Arguments of public functions: numbers of other types and sizes, and functions with other
arguments or results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
import dsgd
from algorithms import delays
from dsgd import checks, clusters, compressors, network, problems
from dsgd.wire import codecs, counts
from tests.dsgd.by_hand import run

PROBLEM, METHOD = problems.random_quadratic(2, 2), algorithms.minibatch_sgd(optax.sgd(0.1))
DATA = (np.eye(4, 3), np.ones(4))
LINEAR = problems.Model(lambda key: jnp.zeros(3), lambda params, inputs: inputs @ params)


@checks.arguments
def door(
    n: Any = 1,
    *,
    whole: int = 1,
    number: float = 1.0,
    truth: bool = True,
    several: Sequence[int] = (),
    either: int | jax.Array = 1,
    step: float | jax.Array = 1.0,
    exact: float | Fraction = 1.0,
    seed: int = 0,
    function: Annotated[Callable[[int, int], int] | None, "a rule"] = None,
    named: Annotated[Callable[[int], int], "(worker)"] = lambda worker: worker,
) -> dict[str, Any]:
    return locals()


SMALL = np.int8(100), np.uint64(100), np.array(100, np.int16), jnp.int8(100)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        *((name, value, 100) for name in ("whole", "number", "seed") for value in SMALL),
        ("number", np.float16(0.5), 0.5),
        ("number", jnp.bfloat16(0.5), 0.5),
        ("number", Fraction(1, 4), 0.25),
        ("number", 10**19, 1e19),
        ("truth", np.bool_(False), False),
        ("truth", np.array(False), False),
        ("several", [np.int8(1), 2], [1, 2]),
        ("either", np.int8(3), 3),
        ("exact", Fraction(1, 3), Fraction(1, 3)),  # exact if allowed
        ("seed", 2**100, 2**100),  # as numpy's SeedSequence draws them
    ],
)
def test_numbers_become_python_numbers_which_do_not_overflow(argument, value, expected):
    assert repr(door(**{argument: value})[argument]) == repr(expected)


def test_arguments_that_may_be_jax_arrays_are_not_converted():
    array = jnp.asarray(3)
    assert door(either=array, step=array).items() >= {"either": array, "step": array}.items()


class Broken:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        *(
            ("whole", value, "expected an integer")
            for value in (4.0, np.float32(4), np.array(4.0), "4", True, np.array([4]), np.ma.masked)
        ),
        ("whole", Broken(), "a Broken; expected an integer"),
        ("whole", 10**19, "10000000000000000000; expected an integer of at most 64 bits"),
        ("whole", 10**400, "an integer of 1329 bits; expected an integer of at most 64 bits"),
        ("whole", -(10**5000), "an integer of 16610 bits; expected an integer"),
        ("number", 10**400, "an integer of 1329 bits; expected a number of at most 64 bits"),
        ("several", [1, 10**5000], "a list; expected a list, each an integer"),
        ("seed", 10**400, "an integer of 1329 bits; expected an integer"),
        ("function", lambda: 1, r"takes \(\); expected a function of 2 arguments"),
        ("function", lambda first: 1, r"takes \(first\); expected"),
        ("function", lambda a, b, *, c: 1, r"takes \(a, b, \*, c\); expected"),
        ("function", functools.partial(lambda a, b: 1, 0), r"takes \(b\); expected"),
        ("named", lambda: 1, r"takes \(\); expected a function of 1 argument \(worker\)"),
    ],
    ids=lambda value: checks.show(value)[:20],
)
def test_other_numbers_and_functions_are_refused_by_name(argument, value, message):
    with pytest.raises(ValueError, match=f"door: {argument} = .*{message}"):
        door(**{argument: value})


class TakesTwo:
    def __call__(self, first, second):
        return first


def outer(function):
    """A decorator that keeps the signature of the wrapped function."""
    return functools.wraps(function)(lambda *args: function(*args, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda first, second: 1,
        lambda *both: 1,
        functools.partial(lambda zero, first, second: 1, 0),
        TakesTwo(),
        jax.jit(lambda first, second: first),
        outer(lambda first, second, third: 1),
        max,
        np.add,
    ],
)
def test_functions_that_accept_the_arguments_are_accepted(function):
    assert door(function=function)["function"] is function


# --- Arguments and results of users' functions.


def change(**members: Any) -> Any:
    """Runs a problem with other members."""
    return run(METHOD, PROBLEM._replace(**members), 1)


def evaluate(metric: Callable, model: Any = LINEAR) -> dsgd.Problem:
    options = {"batch_size": 1, "test": DATA, "metrics": {"close": metric}}
    return problems.finite_sum(model, optax.squared_error, DATA, 2, **options)


def delay(staleness: Callable) -> Any:
    late = delays.Delays(2, staleness, "mine")
    return run(algorithms.asynchronous_sgd(optax.sgd(0.1), late), PROBLEM, 1)


def run_at(sample: Callable, integral: Any = None) -> Any:
    """Runs on a cluster with such bandwidths."""
    quantity = clusters.Quantity(sample, "mine", True, integral=integral)
    return run(METHOD, PROBLEM, 1, cluster=clusters.Cluster(clusters.constant(1.0), up=quantity))


def compress(**members: Any) -> Any:
    sign = compressors.sign
    return run(algorithms.ef21(optax.sgd(0.1), sign._replace(**members), sign), PROBLEM, 1)


USERS = {
    r"integral = .*4 arguments \(key, clock, seconds, worker\)": lambda: run_at(
        lambda key, clock, worker: 1.0, lambda seconds: seconds
    ),
    r"'close' = .*2 arguments \(outputs, targets\)": lambda: evaluate(lambda outputs: outputs),
    r"mine: staleness = .*4 arguments \(key, t, parts, moved\)": lambda: delay(lambda key, t: 0),
    r"minibatch_sgd: query = .*2 arguments \(state, round\)": lambda: run(
        METHOD._replace(query=lambda state: state), PROBLEM, 1
    ),
    r"quadratic.*: loss\.gradient = .*2 arguments \(params, batch\)": lambda: change(
        loss=dsgd.Loss(PROBLEM.loss, lambda params: params)
    ),
    r"quadratic.*: sample\.draw = .*3 arguments \(key, data, k\)": lambda: change(
        sample=dsgd.Sampler(lambda key, data: data, numbered=True)
    ),
    r"quadratic.*: sample\.truncate = .*2 arguments \(batch, b\)": lambda: change(
        sample=dsgd.Sampler(PROBLEM.sample, batch_size=2, truncate=lambda batch: batch)
    ),
    r"sign: compress = .*2 arguments \(key, x\)": lambda: compress(compress=lambda x: x),
    r"star.*: seconds = .*4 arguments \(N, latency, transfer, convention\)": lambda: network.cost(
        network.star._replace(seconds=lambda N: N), 4, 0.1, 0.1
    ),
    r"'mine': sample = .* returned float32\[2\]": lambda: run_at(
        lambda key, clock, worker: jnp.ones(2)
    ),
    "finite_sum: close: it returned 'x'": lambda: evaluate(lambda outputs, targets: "x"),
    "init of the model returned 'x'": lambda: evaluate(
        optax.squared_error, problems.Model(lambda key: "x", lambda params, inputs: inputs)
    ),
    r"delays.mine: staleness returned int32\[3\]; expected int32 \[1\]": lambda: delay(
        lambda *args: jnp.zeros(3, jnp.int32)
    ),
    "sign: compress returned None": lambda: compress(compress=lambda key, x: None),
    "delta of sign returns 'x'": lambda: compress(delta=lambda d: "x"),
    r"pack: codes = uint8\[5\] for bits = 9": lambda: codecs.pack(
        jnp.arange(5, dtype=jnp.uint8), 9
    ),
    "counts: bits = an integer of 1329 bits": lambda: counts.from_bits(10**400, 2),
    r"counts.from_bits: bits = uint32\[3\]": lambda: counts.from_bits(jnp.ones(3, jnp.uint32), 2),
}


@pytest.mark.parametrize("message", USERS)
def test_users_functions_and_codes_are_checked(message):
    with pytest.raises(ValueError, match=message):
        USERS[message]()
