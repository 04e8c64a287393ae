"""Allocations of a budget of bits, beside all that there are: in exact integers, and errors whose sums float32 holds exactly."""

from __future__ import annotations

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import dsgd
from algorithms.kimad import allocation
from algorithms.kimad.allocation import allocate, one_for_all
from theory_checks.recursions.allocation import knapsack

LAYERS, CHOICES, R = 4, 4, 20  # a fifth of the budget may be lost to rounding
COMBINATIONS = np.array(list(itertools.product(range(CHOICES), repeat=LAYERS)))
UNIT = 123_457  # bits, of instances that divide evenly
MOST = 2**32 - 1


class Instances(NamedTuple):
    """Errors and sizes `[n, layers, choices]`, budgets `[n]`; sizes and budgets in int64."""

    errors: np.ndarray
    sizes: np.ndarray
    budgets: np.ndarray


def drawn(n: int) -> Instances:
    """From sizes of a few bits to 2^32 in all, in any order, some alike; budgets from less than the smallest to more than the largest."""
    rng = np.random.default_rng(0)
    shape = (n, LAYERS, CHOICES)
    errors = rng.integers(0, 1000, shape).astype(np.float32)
    sizes = np.floor(rng.random(shape) * 2.0 ** rng.uniform(2, 30, n)[:, None, None]).astype(np.int64)
    sizes[: n // 4] = np.sort(sizes[: n // 4], axis=2)
    errors[: n // 4] = -np.sort(-errors[: n // 4], axis=2)
    least, most = sizes.min(axis=2).sum(axis=1), sizes.max(axis=2).sum(axis=1)
    budgets = (least + (most - least) * rng.uniform(-0.1, 1.1, n)).astype(np.int64)
    budgets[::10] = least[::10]
    budgets[1::10] = sizes[1::10].sum(axis=1).min(axis=1)  # just enough for one choice
    return Instances(errors, sizes, np.clip(budgets, 0, MOST))


def dividing(n: int) -> Instances:
    """Sizes are whole units of the budgets."""
    rng = np.random.default_rng(1)
    shape = (n, LAYERS, CHOICES)
    budgets = R * UNIT * rng.integers(1, 100, n)
    return Instances(rng.integers(0, 1000, shape).astype(np.float32), rng.integers(0, 10, shape) * (budgets // R)[:, None, None], budgets)


@pytest.fixture(scope="module")
def program():
    """Of any number of instances; everything is traced."""
    methods = {"allocate": partial(allocate, resolution=R), "one_for_all": one_for_all}

    @jax.jit
    @jax.vmap
    def both(errors, sizes, budget):
        return {name: method(errors, sizes, budget) for name, method in methods.items()}

    def run(instances: Instances) -> dict[str, np.ndarray]:
        given = (instances.errors, instances.sizes.astype(np.uint32), instances.budgets.astype(np.uint32))
        return jax.tree.map(np.asarray, both(*given))

    return run


@pytest.fixture(scope="module")
def solved(program):
    """Instances of all kinds, and what becomes of them: one call."""
    parts = drawn(400), dividing(200)
    instances = Instances(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return instances, program(instances)


def of(table: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Entries of the choices `[..., layers]`, added up in float64 or int64."""
    return table[np.arange(len(table)), choices].sum(axis=-1, dtype=np.float64 if table.dtype.kind == "f" else np.int64)


def least(errors: np.ndarray, sizes: np.ndarray, budget: float) -> float:
    """The least error within the budget, of all combinations; infinite where none fits."""
    return min(of(errors, COMBINATIONS)[of(sizes, COMBINATIONS) <= budget], default=np.inf)


def each(solved, name: str = "allocate"):
    """Instance by instance, with its answer."""
    instances, answers = solved
    return zip(*instances, answers[name], strict=True)


def test_allocations_are_within_the_budget_and_nearly_the_best(solved):
    better = 0
    for errors, sizes, budget, choices in each(solved):
        bits, error = of(sizes, choices), of(errors, choices)
        if least(errors, sizes, budget) == np.inf:
            np.testing.assert_array_equal(sizes[np.arange(LAYERS), choices], sizes.min(axis=1))
            continue
        assert bits <= budget
        assert least(errors, sizes, budget) <= error <= least(errors, sizes, budget * (1 - LAYERS / R))
        better += error < min(of(errors, np.full(LAYERS, j)) if sizes[:, j].sum() <= budget else np.inf for j in range(CHOICES))
    assert better > 200  # than one choice for all layers


def test_allocations_are_those_of_the_dynamic_program_or_better(solved):
    for errors, sizes, budget, choices in each(solved):
        if 0 < budget >= sizes.min(axis=1).sum():
            found, error = knapsack(errors, sizes, int(budget), R)
            single = min((of(errors, np.full(LAYERS, j)) for j in range(CHOICES) if sizes[:, j].sum() <= budget), default=np.inf)
            ends = (of(errors, table.argmin(axis=1)) if of(sizes, table.argmin(axis=1)) <= budget else np.inf for table in (errors, sizes))
            assert error == np.inf or (of(errors, found), of(sizes, found) <= budget) == (error, True)
            assert of(errors, choices) <= min(error, single, *ends)


def test_allocations_are_the_best_where_sizes_divide_evenly(solved):
    instances, answers = solved
    even = Instances(*(array[400:] for array in instances)), {"allocate": answers["allocate"][400:]}
    found = [
        (of(errors, choices), least(errors, sizes, budget)) for errors, sizes, budget, choices in each(even) if budget >= sizes.min(1).sum()
    ]
    assert len(found) > 150
    assert all(error == best for error, best in found)


def test_one_for_all_is_the_best_choice_that_fits(solved):
    none = 0
    for errors, sizes, budget, choices in each(solved, "one_for_all"):
        together = sizes.sum(axis=0)
        ranked = [
            (total > budget, 0 if total > budget else error, total) for total, error in zip(together, errors.sum(axis=0), strict=True)
        ]
        best = min(ranked)
        none += best[0]
        assert [ranked[j] for j in choices] == [best] * LAYERS
        assert len(set(choices)) == 1
    assert 0 < none < 300


def test_workers_decide_as_one_alone_does():
    """Sizes that are known where it is traced; through a scan, on two devices."""
    (errors, all_sizes, _), N, rounds = drawn(12), 4, 3
    errors, sizes = errors.reshape(rounds, N, LAYERS, CHOICES), all_sizes[0]
    least, most = sizes.min(axis=1).sum(), sizes.max(axis=1).sum()
    budgets = np.linspace(0.9 * least, most, rounds * N).reshape(rounds, N).astype(np.float32)

    def decide(errors, budget):
        return allocate(errors, sizes, budget, R)

    def several(errors, budgets):
        return jax.lax.scan(lambda _, given: ((), jax.vmap(decide)(*given)), (), (errors, budgets))[1]

    spread = P(None, dsgd.workers.AXIS)
    mapped = jax.jit(jax.shard_map(several, mesh=dsgd.workers.mesh(2), in_specs=spread, out_specs=spread, check_vma=False))
    found, alone = np.asarray(mapped(errors, budgets)), jax.jit(decide)
    assert len(np.unique(found.reshape(-1, LAYERS), axis=0)) > N
    for at in np.ndindex(rounds, N):
        np.testing.assert_array_equal(found[at], alone(errors[at], budgets[at]))


EDGES = [0, 1, 2, 3, 999, 1000, 1001, 65_535, 65_536, 2**24 - 1, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 1, MOST - 1, MOST]


@pytest.mark.parametrize("resolution", [1, 7, 1000, 65_535])
def test_sizes_in_units_are_exact(resolution):
    """At edges; at multiples of a unit, and one bit beside them, where float32 alone is wrong."""
    rng = np.random.default_rng(resolution)
    budgets = np.array([*EDGES, *rng.integers(1, MOST, 40), *(2.0 ** rng.uniform(0, 32, 40)).astype(np.int64)])
    whole = [int(w) * int(c) // resolution for c in budgets for w in rng.integers(0, resolution + 1, 20)]
    beside = (np.array(whole).reshape(-1, 1, 20) + np.array([[-1], [0], [1]])).reshape(len(budgets), -1)
    shared = np.broadcast_to([*EDGES, *rng.integers(0, MOST, 20)], (len(budgets), len(EDGES) + 20))
    sizes = np.clip(np.concatenate([beside, shared, budgets[:, None], budgets[:, None] - 1, budgets[:, None] + 1], axis=1), 0, MOST)
    units = jax.jit(jax.vmap(partial(allocation.in_units, R=resolution)))(sizes.astype(np.uint32), budgets.astype(np.uint32))
    for c, row, found in zip(budgets.tolist(), sizes.tolist(), np.asarray(units).tolist(), strict=True):
        assert found == [resolution + 1 if s > c else -(-s * resolution // max(c, 1)) for s in row]


def test_one_choice_for_all_is_found_where_rounding_leaves_no_room(program):
    """4 layers of 5.01 of 20 units: rounded up, 24. So do the smallest of each, which differ, where nothing else fits."""
    sizes = np.broadcast_to([501, 502, 503, 504], (3, LAYERS, CHOICES)).copy()
    sizes[1:, 0] = [504, 503, 502, 501]
    errors = np.broadcast_to(np.float32([4, 3, 2, 1]), sizes.shape)
    errors = np.concatenate([errors[:2], np.flip(errors[2:], axis=2)])
    found = program(Instances(errors, sizes, np.array([2008, 2004, 2004])))["allocate"]
    assert found.tolist() == [[1, 1, 1, 1], [3, 0, 0, 0], [3, 0, 0, 0]]


def test_the_least_error_of_every_layer_is_taken_where_it_fits(program):
    """Though rounded up it does not, and of no order."""
    sizes = np.full((2, LAYERS, CHOICES), 501)
    errors = np.float32([[[1, 0, 2, 3], [0, 1, 2, 3], [3, 2, 1, 0], [0, 0, 0, 0]]] * 2)
    sizes[:, 3, 0] = 600  # of equal errors the smaller
    found = program(Instances(errors, sizes, np.array([4 * 501, MOST])))["allocate"]
    assert found.tolist() == [[1, 0, 3, 1]] * 2


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30, -1.0])
def test_errors_that_are_no_numbers_stay_within_the_budget(program, wrong):
    """Of a run that diverges. What can still be told apart, is."""
    instances = drawn(100)
    errors = instances.errors.copy()
    errors[:, 0] = wrong  # of one layer, with every choice
    errors[:50, 1:, ::2] = wrong
    found = program(instances._replace(errors=errors))
    for sizes, budget, choices, single in zip(instances.sizes, instances.budgets, found["allocate"], found["one_for_all"], strict=True):
        assert of(sizes, choices) <= max(budget, sizes.min(axis=1).sum())
        assert of(sizes, single) <= max(budget, sizes.sum(axis=0).min())
    if wrong > 0 or np.isnan(wrong):
        for errors, sizes, budget, choices in zip(*(array[50:] for array in (*instances, found["allocate"])), strict=True):
            if budget >= sizes.min(axis=1).sum():
                assert of(errors[1:], choices[1:]) <= least(
                    np.where(np.arange(LAYERS)[:, None] == 0, 0, errors), sizes, budget * (1 - LAYERS / R)
                )


def test_budgets_of_any_kind_are_whole_bits():
    """Traced ones are cut to what there is: nothing that is NaN."""
    given = [0.99, 1.0, 2.0**24 + 2, 2.0**31 + 256, 2.0**32 - 256, 2.0**32, np.inf, np.nan, -1.0, -np.inf]
    need = [0, 1, 2**24 + 2, 2**31 + 256, 2**32 - 256, MOST, MOST, 0, 0, 0]
    validated = jax.jit(jax.vmap(partial(allocation._validated_budget, "allocate")))
    assert validated(np.float32(given)).tolist() == need
    assert validated(np.int32([-1, 0, 2**31 - 1])).tolist() == [0, 0, 2**31 - 1]
    assert validated(np.uint32([0, MOST])).tolist() == [0, MOST]
    assert validated(np.float16([2.5, np.inf])).tolist() == [2, MOST]
    known = [0, 2.99, np.float32(2.99), np.uint32(MOST), jnp.float32(7.5), 2.0**32 - 0.5, 2**32, 10**30, np.inf]
    assert [int(allocation._validated_budget("allocate", value)) for value in known] == [0, 2, 2, MOST, 7, MOST, MOST, MOST, MOST]


TABLE = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("method", [allocate, one_for_all])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"errors": TABLE[0]}, r"errors = float64\[3\]: need numbers \[layers, choices\]"),
        ({"errors": TABLE[:0]}, r"errors = float64\[0, 3\]: need numbers \[layers, choices\], at least one of each"),
        ({"sizes": TABLE[:, :0]}, r"sizes = float64\[2, 0\]: need"),
        ({"sizes": TABLE.T}, r"errors \[2, 3\] for sizes \[3, 2\]: need the same"),
        ({"errors": TABLE - 1}, r"errors with the entry -1.0: need numbers, at least 0"),
        ({"errors": TABLE + np.nan}, r"errors with the entry nan"),
        ({"sizes": TABLE - 1}, r"sizes with the entry -1.0: need whole bits, at least 0"),
        ({"sizes": TABLE + 0.5}, r"sizes with the entry 0.5"),
        ({"sizes": TABLE + np.inf}, r"sizes with the entry inf"),
        ({"sizes": TABLE * 2**30}, r"the largest sizes of all layers are 7,516,192,768 bits: need fewer than 2\^32"),
        ({"budget": -1}, r"budget = -1: need a number of bits, at least 0"),
        ({"budget": float("nan")}, r"budget = nan: need a number of bits, at least 0"),
        ({"budget": [3, 4]}, r"budget = a list: need one number of bits"),
        ({"budget": jnp.ones(2)}, r"budget = float32\[2\]: need one number of bits"),
        (
            {"sizes": TABLE + 1000, "budget": 1234.9},
            r"budget = 1,234 bits: need at least 2,003, for the smallest choice .*; 769 are missing",
        ),
    ],
)
def test_what_cannot_be_is_refused(method, arguments, message):
    with pytest.raises(ValueError, match=f"{method.__name__}: {message}"):
        method(**{"errors": TABLE, "sizes": TABLE, "budget": 10.0, **arguments})


@pytest.mark.parametrize("resolution", [0, -1, 65_536])
def test_a_resolution_is_a_whole_number_in_range(resolution):
    with pytest.raises(ValueError, match=r"allocate: resolution = .*: need"):
        allocate(TABLE, TABLE, 10, resolution)


def test_traced_sizes_are_integers():
    with pytest.raises(ValueError, match=r"allocate: sizes = float32\[2, 3\]: need integers where they are traced"):
        jax.eval_shape(allocate, TABLE, jax.ShapeDtypeStruct((2, 3), jnp.float32), 10)
