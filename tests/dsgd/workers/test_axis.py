"""Every collective agrees with numpy on one device, two and eight."""

from __future__ import annotations

import re
from functools import cache, partial

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
    r"\S+ (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    r"|collective-broadcast)(?:-start)?\("
)


@cache
def rows() -> dict[str, np.ndarray]:
    """Returns the rows of all workers `[N, ...]`: several leaves, ranks and dtypes."""
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
    """Returns messages `[sender, receiver, ...]`."""
    draw = np.random.default_rng(1)
    return {
        "vector": draw.normal(size=(N, N, 3)).astype(np.float32),
        "byte": draw.integers(0, 255, (N, N), np.uint8),
    }


def add_device_axis(tree):
    return jax.tree.map(lambda leaf: leaf[None], tree)


def every_collective(rows, messages, everybody, chosen, key):
    """Returns the result of each function: by worker, and as each device sees it (a leading device
    axis).
    """
    here, place = workers.locate(chosen, N)
    asked = workers.collect(here, jax.tree.map(lambda leaf: leaf[place], rows))
    numbers = {name: rows[name] for name in ("matrix", "scalar", "half")}
    centers = {name: everybody[name][0] for name in ("matrix", "scalar")}
    by_worker = {
        "ids": workers.ids(N),
        "keys": jax.random.key_data(workers.keys(key, N)),
        "own": workers.local_block(everybody, N),
        "all_to_all": workers.all_to_all(messages),
        "shift": {
            by: workers.ring_shift({"matrix": rows["matrix"], "flag": rows["flag"]}, by)
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
    return by_worker, add_device_axis(by_device)


def numpy_results(devices: int):
    """Returns numpy's results: by worker, exact; on every device, exact; and sums and means, in
    float64, up to a few roundings.
    """
    everything = rows()
    exact = {name: np.asarray(leaf, np.float64) for name, leaf in everything.items()}
    blocks = {
        name: exact[name].reshape(devices, -1, *exact[name].shape[1:])
        for name in ("scalar", "matrix")
    }
    keys = [jax.random.key_data(jax.random.fold_in(jax.random.key(KEY), i)) for i in range(N)]
    by_worker = {
        "ids": np.arange(N, dtype=np.int32),
        "keys": np.stack(keys),
        "own": everything,
        "all_to_all": jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), messages()),
        "shift": {
            by: {name: np.roll(everything[name], by, axis=0) for name in ("matrix", "flag")}
            for by in range(-N, N + 1)
        },
    }
    to_the_bit = {
        "gather": everything,
        "select": {name: leaf[CHOSEN] for name, leaf in everything.items()},
        "devices": np.int32(devices),
    }
    rounded = {
        "sum": {name: leaf.sum(axis=0) for name, leaf in exact.items()},
        "mean": {name: exact[name].mean(axis=0) for name in ("matrix", "scalar", "half")},
        "mean_over_devices": {
            "a": blocks["scalar"].max(axis=1).mean(axis=0),
            "b": blocks["matrix"].max(axis=1).mean(axis=0),
        },
        "mean_sqdist": sum(
            ((exact[name] - exact[name][0]) ** 2).sum() for name in ("matrix", "scalar")
        )
        / N,
    }
    return by_worker, to_the_bit, rounded


def identical(got, want):
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def close(got, want, roundings: float = 8):
    """Checks equality up to a few roundings at the size of the largest element; for integers
    exactly.
    """
    floating = jnp.issubdtype(got.dtype, jnp.floating)
    eps = float(jnp.finfo(got.dtype).eps) if floating else 0.0
    atol = roundings * eps * max(1.0, np.abs(want).max())
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0, atol=atol)


def test_every_collective_agrees_with_numpy(any_mesh):
    """The result is the same on every device, and sums and means keep the type; only several
    devices send.
    """
    args = (rows(), messages(), rows(), CHOSEN, jax.random.key(KEY))
    spread = jax.shard_map(
        every_collective,
        mesh=any_mesh,
        in_specs=(BLOCKS, BLOCKS, SAME, SAME, SAME),
        out_specs=BLOCKS,
        check_vma=False,
    )
    program = (
        jax.jit(spread).lower(*args).compile(compiler_options={"xla_backend_optimization_level": 0})
    )
    by_worker, on_devices = jax.tree.map(np.asarray, program(*args))
    workers_expected, to_the_bit, rounded = numpy_results(any_mesh.size)
    jax.tree.map(identical, by_worker, workers_expected)
    on_each = [
        jax.tree.map(lambda leaf, device=device: leaf[device], on_devices)
        for device in range(any_mesh.size)
    ]
    for one in on_each:
        jax.tree.map(np.testing.assert_array_equal, one, on_each[0])
    found = on_each[0]
    jax.tree.map(identical, {name: found[name] for name in to_the_bit}, to_the_bit)
    jax.tree.map(close, {name: found[name] for name in rounded}, rounded)
    jax.tree.map(partial(close, roundings=4), found["sum"], rounded["sum"])
    for name in ("matrix", "scalar", "half", "count"):
        assert found["sum"][name].dtype == rows()[name].dtype
    assert found["mean"]["half"].dtype == jnp.bfloat16
    kinds = {"all-gather", "all-reduce", "all-to-all", "collective-permute"}
    assert set(SENDS.findall(program.as_text())) == (kinds if any_mesh.size > 1 else set())


def test_mesh_takes_devices_from_the_front():
    assert list(workers.mesh(3).devices) == jax.devices()[:3]
    assert list(workers.mesh().devices) == jax.devices()
    assert list(workers.mesh(jax.devices()[5:2:-1]).devices) == jax.devices()[5:2:-1]
    assert workers.mesh(2).axis_names == ("workers",)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [3, 6, 8])
def test_means_of_blocks_agree_with_numpy(any_mesh, size, weighted):
    """Of 24 workers: devices hold whole blocks, equal parts of blocks, or others; only in the last
    case all rows are gathered, and in the first nothing is sent.
    """
    draw, number = np.random.default_rng(size), 24
    by = tuple(draw.uniform(0.5, 3.0, number).tolist()) if weighted else None
    given = {
        "matrix": draw.normal(size=(number, 3, 2)).astype(np.float32),
        "half": draw.normal(size=(number, 5)).astype(jnp.bfloat16),
    }

    def means(rows):
        with workers.with_weights(by):
            return workers.block_means(rows, size)

    spread = jax.shard_map(means, mesh=any_mesh, in_specs=BLOCKS, out_specs=BLOCKS, check_vma=False)
    program = jax.jit(spread).lower(given).compile()
    each = np.ones(number) if by is None else np.array(by)
    for name, found in program(given).items():
        exact = np.asarray(given[name], np.float64).reshape(number, -1)
        totals = (each[:, None] * exact).reshape(-1, size, exact.shape[1]).sum(axis=1)
        expected = totals / each.reshape(-1, size).sum(axis=1)[:, None]
        close(np.asarray(found).reshape(number, -1), np.repeat(expected, size, axis=0))
        assert found.dtype == given[name].dtype
    rows = number // any_mesh.size
    sends = set() if rows % size == 0 else {"all-gather" if size % rows else "all-reduce"}
    assert set(SENDS.findall(program.as_text())) == sends
