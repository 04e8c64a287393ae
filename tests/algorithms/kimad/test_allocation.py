"""Allocations of a budget of bits, compared with all allocations: in exact integers, and with
errors whose sums are exact in float32.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.kimad import allocation
from algorithms.kimad.allocation import allocate, uniform
from tests.methods import kimad_sgd as papers

LAYERS, CHOICES, R = 4, 4, 20  # rounding may lose a fifth of the budget
COMBINATIONS = np.array(list(itertools.product(range(CHOICES), repeat=LAYERS)))
MOST = 2**32 - 1


class Instances(NamedTuple):
    """Errors and sizes `[n, layers, choices]`, budgets `[n]`; sizes and budgets in int64."""

    errors: np.ndarray
    sizes: np.ndarray
    budgets: np.ndarray


def draw_instances(n: int) -> Instances:
    """Returns sizes from a few bits to 2^32 in total, in any order, some of them equal, and budgets
    from below the smallest to above the largest.
    """
    rng = np.random.default_rng(0)
    shape = (n, LAYERS, CHOICES)
    errors = rng.integers(0, 1000, shape).astype(np.float32)
    sizes = np.floor(rng.random(shape) * 2.0 ** rng.uniform(2, 30, n)[:, None, None]).astype(
        np.int64
    )
    sizes[: n // 4] = np.sort(sizes[: n // 4], axis=2)
    errors[: n // 4] = -np.sort(-errors[: n // 4], axis=2)
    least, most = sizes.min(axis=2).sum(axis=1), sizes.max(axis=2).sum(axis=1)
    budgets = (least + (most - least) * rng.uniform(-0.1, 1.1, n)).astype(np.int64)
    budgets[::10] = least[::10]
    budgets[1::10] = sizes[1::10].sum(axis=1).min(axis=1)  # exactly enough for one choice
    return Instances(errors, sizes, np.clip(budgets, 0, MOST))


@pytest.fixture(scope="module")
def program():
    """Returns a program for any number of instances; everything is traced."""
    methods = {"allocate": partial(allocate, resolution=R), "uniform": uniform}

    @jax.jit
    @jax.vmap
    def both(errors, sizes, budget):
        return {name: method(errors, sizes, budget) for name, method in methods.items()}

    def run(instances: Instances) -> dict[str, np.ndarray]:
        given = (
            instances.errors,
            instances.sizes.astype(np.uint32),
            instances.budgets.astype(np.uint32),
        )
        return jax.tree.map(np.asarray, both(*given))

    return run


def total(table: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Returns entries of the choices `[..., layers]`, summed in float64 or int64."""
    return table[np.arange(len(table)), choices].sum(
        axis=-1, dtype=np.float64 if table.dtype.kind == "f" else np.int64
    )


EDGES = [
    0,
    1,
    2,
    3,
    999,
    1000,
    1001,
    65_535,
    65_536,
    2**24 - 1,
    2**24,
    2**24 + 1,
    2**31 - 1,
    2**31,
    2**31 + 1,
    MOST - 1,
    MOST,
]


@pytest.mark.parametrize("resolution", [1, 7, 1000, 65_535])
def test_sizes_in_units_are_exact(resolution):
    """At edges, and at multiples of a unit plus or minus one bit, for which float32 alone is
    wrong.
    """
    rng = np.random.default_rng(resolution)
    drawn_budgets = (2.0 ** rng.uniform(0, 32, 80)).astype(np.int64)
    budgets = np.array([*EDGES, *drawn_budgets])[:, None]
    multiples = budgets * rng.integers(0, resolution + 1, (len(budgets), 20)) // resolution
    shared = np.broadcast_to(EDGES, (len(budgets), len(EDGES)))
    near = np.concatenate([multiples, budgets], axis=1)
    sizes = np.clip(np.concatenate([near - 1, near, near + 1, shared], axis=1), 0, MOST)
    units = jax.jit(jax.vmap(partial(allocation.count_units, R=resolution)))(
        sizes.astype(np.uint32), budgets[:, 0].astype(np.uint32)
    )
    exact = np.where(
        sizes > budgets, resolution + 1, -(-sizes * resolution // np.maximum(budgets, 1))
    )
    np.testing.assert_array_equal(units, exact)


def test_budgets_of_any_kind_are_whole_bits():
    """Traced budgets are truncated to the range of sizes; NaN gives the smallest."""
    validated = partial(allocation._validated_budget, "allocate")
    floats = [0.99, 1.0, 2.0**24 + 2, 2.0**31 + 256, 2.0**32 - 256, 2.0**32, np.inf]
    bits = [0, 1, 2**24 + 2, 2**31 + 256, 2**32 - 256, MOST, MOST]
    assert [int(validated(np.float32(each))) for each in floats] == bits
    traced = jax.jit(jax.vmap(validated))
    assert traced(np.float32([*floats, np.nan, -1.0, -np.inf])).tolist() == [*bits, 0, 0, 0]
    assert traced(np.int32([-1, 0, 2**31 - 1])).tolist() == [0, 0, 2**31 - 1]
    assert traced(np.float16([2.5, np.inf])).tolist() == [2, MOST]
    known = [2.99, np.uint32(MOST), 2.0**32 - 0.5, 10**30]
    assert [int(validated(each)) for each in known] == [2, *[MOST] * 3]


def test_allocations_are_nearly_optimal(program):
    """Optimal among all combinations within the budget minus the loss by rounding; for sizes that
    are whole units, within the budget. Kimad's allocation, one choice for all layers, is the best
    uniform one, or the smallest.
    """
    rng, instances = np.random.default_rng(1), draw_instances(100)
    budgets = R * 123_457 * rng.integers(1, 100, 100)
    even = Instances(
        instances.errors,
        rng.integers(0, 10, (100, LAYERS, CHOICES)) * (budgets // R)[:, None, None],
        budgets,
    )
    for some, lost in ((instances, LAYERS / R), (even, 0)):
        found = program(some)
        for errors, sizes, budget, choices, single in zip(
            *some, found["allocate"], found["uniform"], strict=True
        ):
            fits = total(sizes, COMBINATIONS) <= budget * (1 - lost)
            assert total(errors, choices) <= min(total(errors, COMBINATIONS)[fits], default=np.inf)
            assert total(sizes, choices) <= max(budget, sizes.min(axis=1).sum())
            assert set(single) == {papers.uniform(errors, sizes, int(budget))[0]}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30, -1.0])
def test_errors_that_are_not_finite_stay_within_the_budget(program, wrong):
    """In a run that diverges, the errors of one layer are not finite for any choice. The other
    layers get the same allocation as with equal errors in that layer.
    """
    instances = draw_instances(100)
    errors = instances.errors.copy()
    errors[:, 0] = wrong
    found, equal = (
        program(instances._replace(errors=np.where(np.arange(LAYERS)[:, None] == 0, value, errors)))
        for value in (wrong, 0)
    )
    for sizes, budget, choices, single in zip(
        instances.sizes, instances.budgets, found["allocate"], found["uniform"], strict=True
    ):
        assert total(sizes, choices) <= max(budget, sizes.min(axis=1).sum())
        assert total(sizes, single) <= max(budget, sizes.sum(axis=0).min())
    np.testing.assert_array_equal(found["uniform"], equal["uniform"])


TABLE = np.arange(6.0).reshape(2, 3)
REFUSED = [
    ({"errors": TABLE[0]}, r"errors = float64\[3\]; expected numbers \[layers, choices\]"),
    (
        {"sizes": TABLE[:, :0]},
        r"sizes = float64\[2, 0\]; expected numbers \[layers, choices\], with at least one",
    ),
    ({"sizes": TABLE.T}, r"errors \[2, 3\] for sizes \[3, 2\]; expected the same"),
    ({"errors": TABLE + np.nan}, r"errors contain nan; expected numbers >= 0"),
    ({"sizes": TABLE - 1}, r"sizes contain -1.0; expected integer numbers of bits >= 0"),
    ({"sizes": TABLE + 0.5}, r"sizes contain 0.5"),
    (
        {"sizes": TABLE * 2**30},
        r"the largest sizes of all layers add up to 7,516,192,768 bits; expected less than 2\^32",
    ),
    ({"budget": float("nan")}, r"budget = nan; expected a number of bits >= 0"),
    ({"budget": jnp.ones(2)}, r"budget = float32\[2\]; expected one number of bits"),
    (
        {"sizes": TABLE + 1000, "budget": 1234.9},
        r"budget = 1,234 bits; expected at least 2,003, the size of the smallest choice .*\(769 "
        r"bits are missing",
    ),
    (
        {"sizes": jax.ShapeDtypeStruct((2, 3), jnp.float32)},
        r"sizes = float32\[2, 3\]; expected integers when traced",
    ),
    ({"resolution": 65_536}, r"resolution = 65,536; expected at most 65,535"),
]


def test_invalid_arguments_are_refused():
    for arguments, message in REFUSED:
        for method in (allocate, uniform)[: 1 if "resolution" in arguments else 2]:
            given = {"errors": TABLE, "sizes": TABLE, "budget": 10.0, **arguments}
            traced = {
                name: value
                for name, value in given.items()
                if isinstance(value, jax.ShapeDtypeStruct)
            }
            known = {name: value for name, value in given.items() if name not in traced}
            with pytest.raises(ValueError, match=f"{method.__name__}: {message}"):
                jax.eval_shape(partial(method, **known), **traced)
