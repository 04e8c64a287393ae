"""What users pass to public functions: numbers of other types and sizes, and functions of other
arguments or results.
"""

from __future__ import annotations

import functools
import inspect
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
import topologies
from algorithms import delays
from dsgd import checks, clusters, codecs, compressors, counts, network, problems
from theory_checks import Rate, bounds

KEY = jax.random.key(0)
PROBLEM, METHOD = problems.random_quadratic(2, 2), algorithms.minibatch_sgd(optax.sgd(0.1))
RUN = {"steps": 1, "key": KEY, "mesh": 1}
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


@pytest.mark.parametrize(
    "value", [np.int8(100), np.uint64(100), np.array(100, np.int16), jnp.int8(100)], ids=repr
)
def test_small_integers_become_ones_that_do_not_overflow(value):
    for name in ("whole", "number", "seed"):
        got = door(**{name: value})[name]
        assert type(got) is int
        assert got * 100 == 10_000


def test_other_scalars_of_numpy_become_those_of_python():
    assert type(door(number=np.float16(0.5))["number"]) is float
    assert type(door(number=jnp.bfloat16(0.5))["number"]) is float
    assert door(truth=np.bool_(False))["truth"] is False
    assert door(truth=np.array(False))["truth"] is False
    assert [type(each) for each in door(several=[np.int8(1), 2])["several"]] == [int, int]
    assert type(door(either=np.int8(3))["either"]) is int


def test_what_may_be_an_array_of_jax_is_not_converted():
    for name in ("either", "step"):
        array = jnp.asarray(3)
        assert door(**{name: array})[name] is array


def test_exact_numbers_stay_exact_where_they_may():
    assert door(exact=Fraction(1, 3))["exact"] == Fraction(1, 3)
    assert door(number=Fraction(1, 4))["number"] == 0.25
    assert network.round_seconds(network.star, 2, 8, latency=Fraction(1, 4), bandwidth=8) > 0


@pytest.mark.parametrize(
    "value", [4.0, np.float32(4.0), np.array(4.0), "4", True, np.array([4]), np.ma.masked], ids=repr
)
def test_an_integer_is_no_other_number(value):
    with pytest.raises(ValueError, match=r"door: whole = .*: need an integer"):
        door(whole=value)


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("whole", 10**19, "whole = 10000000000000000000: need an integer of at most 64 bits"),
        ("whole", 10**400, "whole = an integer of 1329 bits: need an integer of at most 64 bits"),
        ("whole", -(10**5000), "whole = an integer of 16610 bits: need an integer"),
        ("number", 10**400, "number = an integer of 1329 bits: need a number of at most 64 bits"),
        ("several", [1, 10**5000], "several = a list: need a list, each an integer"),
        ("seed", 10**400, "seed = an integer of 1329 bits: need an integer"),
    ],
    ids=lambda value: checks.shown(value)[:20],
)
def test_huge_numbers_are_refused_by_name(argument, value, message):
    with pytest.raises(ValueError, match=f"door: {message}"):
        door(**{argument: value})


def test_large_numbers_that_have_a_meaning_are_taken():
    assert door(seed=2**100)["seed"] == 2**100  # as numpy's SeedSequence draws them
    assert door(number=10**19)["number"] == 1e19
    assert problems.random_quadratic(2, 2, seed=2**100).workers == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda huge: algorithms.local_sgd(optax.sgd(0.1), huge),
        delays.constant,
        lambda huge: clusters.per_server(clusters.constant(1.0), huge),
        lambda huge: clusters.sampled(1, huge),
        topologies.ring,
        lambda huge: topologies.torus(huge // 2, 2),
        topologies.hypercube,
        lambda huge: dsgd.run(METHOD, PROBLEM, steps=huge, key=KEY),
        lambda huge: problems.random_quadratic(huge, 2),
    ],
)
def test_what_is_counted_in_int32_is_refused_beyond(call):
    with pytest.raises(ValueError, match=r"= \d+: need .*(at most \d+|fewer than 2\^31)"):
        call(2**31)


class Callable2:
    def __call__(self, first, second):
        return first


def outer(function):
    """A decorator that keeps the signature of what it wraps."""
    return functools.wraps(function)(lambda *args: function(*args, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda first, second: 1,
        lambda *both: 1,
        functools.partial(lambda zero, first, second: 1, 0),
        Callable2(),
        jax.jit(lambda first, second: first),
        outer(lambda first, second, third: 1),
        max,
        np.add,
    ],
)
def test_functions_that_take_the_arguments_are_taken(function):
    assert door(function=function)["function"] is function


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (lambda: 1, r"\(\)"),
        (lambda first: 1, r"\(first\)"),
        (lambda first, second, *, third: 1, r"\(first, second, \*, third\)"),
        (functools.partial(lambda first, second: 1, 0), r"\(second\)"),
    ],
)
def test_functions_of_another_number_of_arguments_are_refused(function, taken):
    with pytest.raises(
        ValueError,
        match=rf"door: function = .*, which takes {taken}: need a function of 2 arguments",
    ):
        door(function=function)


def test_arguments_are_named():
    with pytest.raises(
        ValueError,
        match=r"door: named = .*, which takes \(\): need a function of 1 argument \(worker\)",
    ):
        door(named=lambda: 1)


def finite_sum(**changed: Any) -> dsgd.Problem:
    return problems.finite_sum(
        changed.pop("model", LINEAR),
        changed.pop("loss", optax.squared_error),
        DATA,
        2,
        batch_size=1,
        test=DATA,
        **changed,
    )


def delayed(staleness: Callable) -> Any:
    return dsgd.run(
        algorithms.asynchronous_sgd(optax.sgd(0.1), delays.Delays(2, staleness, "mine")),
        PROBLEM,
        **RUN,
    )


def on(**quantities: clusters.Quantity) -> Any:
    return dsgd.run(
        METHOD,
        PROBLEM,
        cluster=clusters.Cluster(**{"compute": clusters.constant(1.0), **quantities}),
        **RUN,
    )


def quantity(sample: Callable, integral: Any = None) -> clusters.Quantity:
    return clusters.Quantity(sample, "mine", True, integral=integral)


ARITY = {
    r"integral = .*4 arguments \(key, clock, seconds, worker\)": lambda: quantity(
        lambda key, clock, worker: 1.0, lambda seconds: seconds
    ),
    r"'close' = .*2 arguments \(outputs, targets\)": lambda: finite_sum(
        metrics={"close": lambda outputs: outputs}
    ),
    r"mine: staleness = .*4 arguments \(key, t, parts, moved\)": lambda: delayed(lambda key, t: 0),
    r"minibatch_sgd: query = .*2 arguments \(state, round\)": lambda: dsgd.run(
        METHOD._replace(query=lambda state: state), PROBLEM, **RUN
    ),
    r"quadratic.*: loss\.gradient = .*2 arguments \(params, batch\)": lambda: dsgd.run(
        METHOD, PROBLEM._replace(loss=dsgd.Loss(PROBLEM.loss, lambda params: params)), **RUN
    ),
    r"quadratic.*: sample\.draw = .*3 arguments \(key, data, k\)": lambda: dsgd.run(
        METHOD, PROBLEM._replace(sample=dsgd.Sampler(lambda key, data: data, numbered=True)), **RUN
    ),
    r"quadratic.*: sample\.take = .*2 arguments \(batch, b\)": lambda: dsgd.run(
        METHOD,
        PROBLEM._replace(
            sample=dsgd.Sampler(PROBLEM.sample, batch_size=2, take=lambda batch: batch)
        ),
        **RUN,
    ),
    r"sign: compress = .*2 arguments \(key, x\)": lambda: algorithms.ef21(
        optax.sgd(0.1), compressors.sign._replace(compress=lambda x: x), compressors.sign
    ),
    r"star.*: seconds = .*4 arguments \(N, latency, transfer, convention\)": lambda: network.cost(
        network.star._replace(seconds=lambda N: N), 4, 0.1, 0.1
    ),
}


@pytest.mark.parametrize("message", ARITY)
def test_functions_of_users_are_checked_for_their_arguments(message):
    with pytest.raises(ValueError, match=message):
        ARITY[message]()


RESULTS = {
    r"'mine': sample = .* returned float32\[2\]": lambda: on(
        compute=quantity(lambda key, clock, worker: jnp.ones(2))
    ),
    "'mine': integral = .* returned None": lambda: on(
        up=quantity(
            lambda key, clock, worker: 1.0 + clock, lambda key, clock, seconds, worker: None
        )
    ),
    "finite_sum: close: it returned 'x'": lambda: finite_sum(
        metrics={"close": lambda outputs, targets: "x"}
    ),
    "init of the model returned 'x'": lambda: finite_sum(
        model=problems.Model(lambda key: "x", lambda params, inputs: inputs),
        metrics={"close": optax.squared_error},
    ),
    "init of the problem returned None": lambda: dsgd.run(
        METHOD, PROBLEM._replace(init=lambda key: None), **RUN
    ),
    r"delays.mine: staleness returned int32\[3\]; expected int32 \[1\]": lambda: delayed(
        lambda *args: jnp.zeros(3, jnp.int32)
    ),
    "sign: compress returned None": lambda: dsgd.run(
        algorithms.ef21(
            optax.sgd(0.1),
            compressors.sign._replace(compress=lambda key, x: None),
            compressors.sign,
        ),
        PROBLEM,
        **RUN,
    ),
    "delta of sign gives 'x'": lambda: dsgd.run(
        algorithms.ef21(
            optax.sgd(0.1), compressors.sign._replace(delta=lambda d: "x"), compressors.sign
        ),
        PROBLEM,
        **RUN,
    ),
}


@pytest.mark.parametrize("message", RESULTS)
def test_results_of_users_functions_are_checked(message):
    with pytest.raises(ValueError, match=message):
        RESULTS[message]()


def test_a_repr_that_fails_does_not_hide_the_error():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(ValueError, match="door: whole = a Broken: need an integer"):
        door(whole=Broken())


BITS = {
    r"pack: bits = 33: need an integer from 0 to 32": lambda: codecs.pack(
        jnp.zeros(3, jnp.uint32), 33
    ),
    r"unpack: bits = -1: need an integer from 0 to 32": lambda: codecs.unpack((), -1, 3),
    r"pack: codes = uint8\[5\] for bits = 9: need uint32 \[d\]": lambda: codecs.pack(
        jnp.arange(5, dtype=jnp.uint8), 9
    ),
    r"a count of an integer of 1329 bits": lambda: counts.of(10**400, 2),
    r"counts.of: bits = uint32\[3\]: need an integer, or uint32 \[..., 2\]": lambda: counts.of(
        jnp.ones(3, jnp.uint32), 2
    ),
}


@pytest.mark.parametrize("message", BITS)
def test_codes_and_counts_that_would_lose_bits_are_refused(message):
    with pytest.raises(ValueError, match=message):
        BITS[message]()


def test_counts_take_small_integers():
    assert inspect.unwrap(codecs.packed_bits)(3, np.int8(100)) == codecs.packed_bits(3, 100)
    assert counts.to_int(inspect.unwrap(counts.table)([np.int8(100), 1])).tolist() == [100, 1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 10**400}, "bounds.sgd: steps = an integer of 1329 bits: need an integer"),
        (
            {"gap": 1e300, "learning_rate": 1e-320},
            "bounds.sgd: .*: expected numbers whose products float64 holds",
        ),
        ({"noise": "large"}, "bounds.sgd: noise = 'large': need a finite number"),
    ],
    ids=["steps", "overflow", "text"],
)
def test_bounds_beyond_float64_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        bounds.sgd(
            **{"gap": 1.0, "smoothness": 1.0, "noise": 1e200, "steps": 100, "learning_rate": 0.001}
            | changed
        )
    with pytest.raises(ValueError, match=r"epsilon = 1e-320: need one that .* reaches"):
        Rate(1.0, 1.0).iterations(1e-320)
