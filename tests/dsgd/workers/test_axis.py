"""Every collective means the same on one device, two and eight, and is what numpy says."""

from __future__ import annotations

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dsgd import workers

N = 16
CHOSEN = np.array([3, 15, 0, 3, 8], np.int32)
KEY = 7
BLOCKS, SAME = P(workers.AXIS), P()
SENDS = re.compile(
    r"\S+ (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast)(?:-start)?\("
)


@cache
def rows() -> dict[str, np.ndarray]:
    """Everybody's rows `[N, ...]`: several leaves, ranks and dtypes."""
    draw = np.random.default_rng(0)
    return {
        "matrix": draw.normal(size=(N, 3, 2)).astype(np.float32),
        "scalar": draw.normal(size=N).astype(np.float32),
        "half": draw.normal(size=(N, 5)).astype(jnp.bfloat16),
        "count": draw.integers(-1000, 1000, (N, 4), np.int32),
        "flag": draw.random((N, 2)) < 0.5,
    }


@cache
def messages() -> dict[str, np.ndarray]:
    """`[sender, receiver, ...]`"""
    draw = np.random.default_rng(1)
    return {
        "vector": draw.normal(size=(N, N, 3)).astype(np.float32),
        "byte": draw.integers(0, 255, (N, N), np.uint8),
    }


def some(*names: str) -> dict[str, np.ndarray]:
    return {name: rows()[name] for name in names}


def on_every_device(tree):
    return jax.tree.map(lambda leaf: leaf[None], tree)


def every_collective(rows, messages, everybody, chosen, key):
    """What each function gives: by worker, and as each device sees it (a leading device axis)."""
    here, place = workers.find(chosen, N)
    asked = workers.select(here, jax.tree.map(lambda leaf: leaf[place], rows))
    numbers = {name: rows[name] for name in ("matrix", "scalar", "half")}
    centers = {name: everybody[name][0] for name in ("matrix", "scalar")}
    by_worker = {
        "ids": workers.ids(N),
        "keys": jax.random.key_data(workers.keys(key, N)),
        "own": workers.own(everybody, N),
        "all_to_all": workers.all_to_all(messages),
        "shift": {
            by: workers.shift({"matrix": rows["matrix"], "flag": rows["flag"]}, by)
            for by in range(-N, N + 1)
        },
    }
    by_device = {
        "sum": workers.sum(rows),
        "mean": workers.mean(numbers),
        "mean_over_devices": workers.mean_over_devices(
            {"a": jnp.max(rows["scalar"]), "b": jnp.max(rows["matrix"], axis=0)}
        ),
        "mean_sqdist": workers.mean_sqdist({name: rows[name] for name in centers}, centers),
        "gather": workers.gather(rows),
        "select": asked,
        "devices": jnp.int32(workers.devices()),
    }
    return by_worker, on_every_device(by_device)


@cache
def compiled(mesh):
    args = (rows(), messages(), rows(), CHOSEN, jax.random.key(KEY))
    spread = jax.shard_map(
        every_collective,
        mesh=mesh,
        in_specs=(BLOCKS, BLOCKS, SAME, SAME, SAME),
        out_specs=BLOCKS,
        check_vma=False,
    )
    program = (
        jax.jit(spread).lower(*args).compile(compiler_options={"xla_backend_optimization_level": 0})
    )
    by_worker, by_device = jax.tree.map(np.asarray, program(*args))
    return by_worker, by_device, program.as_text()


def by_worker(mesh, name: str):
    return compiled(mesh)[0][name]


def by_device(mesh, name: str):
    """What every device holds, once it is known that they all hold the same."""

    def one(leaf):
        assert leaf.shape[0] == mesh.size
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        return leaf[0]

    return jax.tree.map(one, compiled(mesh)[1][name])


def assert_identical(result, expected):
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def assert_close(result, expected, *, roundings: float = 8):
    """Up to a few roundings at the size of the largest element; `expected` in float64."""
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        atol = roundings * float(jnp.finfo(got.dtype).eps) * max(1.0, np.abs(want).max())
        np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0, atol=atol)


def exact(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def test_devices_is_their_number(any_mesh):
    assert by_device(any_mesh, "devices") == any_mesh.size


def test_ids_count_all_workers_once(any_mesh):
    assert_identical(by_worker(any_mesh, "ids"), np.arange(N, dtype=np.int32))


def test_a_workers_key_depends_on_its_id_only(any_mesh):
    expected = np.stack(
        [jax.random.key_data(jax.random.fold_in(jax.random.key(KEY), i)) for i in range(N)]
    )
    assert_identical(by_worker(any_mesh, "keys"), expected)


def test_own_takes_the_blocks_rows(any_mesh):
    assert_identical(by_worker(any_mesh, "own"), rows())


def test_stack_repeats_every_leaf():
    tree = {"scalar": jnp.float32(2), "vector": jnp.arange(3, dtype=jnp.int32), "number": 1.5}
    stacked = workers.stack(tree, 4)
    assert_identical(
        jax.tree.map(np.asarray, stacked),
        {
            "scalar": np.full(4, 2, np.float32),
            "vector": np.tile(np.arange(3, dtype=np.int32), (4, 1)),
            "number": np.full(4, 1.5, np.float32),
        },
    )


def test_sum_is_over_all_workers_and_keeps_the_dtype(any_mesh):
    result = by_device(any_mesh, "sum")
    names = ("matrix", "scalar", "half", "count")
    assert {name: result[name].dtype for name in names} == {
        name: rows()[name].dtype for name in names
    }
    assert_close(
        {name: result[name] for name in names[:3]},
        jax.tree.map(lambda leaf: leaf.sum(0), exact(some(*names[:3]))),
        roundings=4,
    )
    np.testing.assert_array_equal(result["count"], rows()["count"].sum(0))


def test_sum_of_flags_counts_them(any_mesh):
    np.testing.assert_array_equal(by_device(any_mesh, "sum")["flag"], rows()["flag"].sum(0))


def test_mean_is_over_all_workers(any_mesh):
    result = by_device(any_mesh, "mean")
    assert result["half"].dtype == jnp.bfloat16
    assert_close(
        result, jax.tree.map(lambda leaf: leaf.mean(0), exact(some("matrix", "scalar", "half")))
    )


def test_mean_over_devices_averages_what_the_blocks_gave(any_mesh):
    blocks = {
        name: exact(rows()[name]).reshape(any_mesh.size, -1, *rows()[name].shape[1:])
        for name in ("scalar", "matrix")
    }
    expected = {"a": blocks["scalar"].max(1).mean(0), "b": blocks["matrix"].max(1).mean(0)}
    assert_close(by_device(any_mesh, "mean_over_devices"), expected)


def test_mean_sqdist_is_the_mean_square_distance_over_all_leaves(any_mesh):
    tree = exact(some("matrix", "scalar"))
    expected = sum(((leaf - leaf[0]) ** 2).sum() for leaf in tree.values()) / N
    assert_close(by_device(any_mesh, "mean_sqdist"), expected)


def test_gather_gives_everybodys_rows_to_every_device(any_mesh):
    assert_identical(by_device(any_mesh, "gather"), rows())


@pytest.mark.parametrize("name", ["matrix", "scalar", "half", "count", "flag"])
def test_find_and_select_give_the_chosen_rows_to_every_device(any_mesh, name):
    assert_identical(by_device(any_mesh, "select")[name], rows()[name][CHOSEN])


def test_all_to_all_delivers_each_message_to_its_receiver(any_mesh):
    assert_identical(
        by_worker(any_mesh, "all_to_all"),
        jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), messages()),
    )


def test_shift_rolls_the_workers_by_any_number(any_mesh):
    for by, shifted in by_worker(any_mesh, "shift").items():
        assert_identical(
            shifted,
            jax.tree.map(lambda leaf, by=by: np.roll(leaf, by, axis=0), some("matrix", "flag")),
        )


def test_only_many_devices_send(any_mesh):
    kinds = set(SENDS.findall(compiled(any_mesh)[2]))
    assert kinds == (
        set()
        if any_mesh.size == 1
        else {"all-gather", "all-reduce", "all-to-all", "collective-permute"}
    )


def test_mesh_takes_devices_from_the_front():
    assert list(workers.mesh(3).devices) == jax.devices()[:3]
    assert list(workers.mesh().devices) == jax.devices()
    assert list(workers.mesh(jax.devices()[5:2:-1]).devices) == jax.devices()[5:2:-1]
    assert workers.mesh(2).axis_names == ("workers",)


@pytest.mark.parametrize("devices", [0, -1, 9])
def test_mesh_of_an_impossible_number_of_devices(devices):
    with pytest.raises(
        ValueError, match=rf"mesh: devices = {devices}; expected between 1 and the 8"
    ):
        workers.mesh(devices)


def test_mesh_of_an_empty_list_of_devices():
    with pytest.raises(ValueError, match=r"mesh: devices = \[\]; expected at least one"):
        workers.mesh([])
