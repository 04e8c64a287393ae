"""Gossip is the product with W on one device, two and eight, by every road; and it sends no more
than the neighbours' rows.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from matrices import circulant

import topologies
from dsgd import Topology, workers
from dsgd.contract import elsewhere
from dsgd.workers import routes

N = 16
SEEDS = 3
STEPS = 8  # two of the longest period
FLOAT = 4  # bytes
BLOCKS, SAME = P(workers.AXIS), P()
SENDS = re.compile(
    r"(\S+) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast)(?:-start)?\("
)
# of what LLVM makes of the program, not of the program
FAST = {"xla_backend_optimization_level": 0}


def directed(n: int, seed: int) -> nx.DiGraph:
    """A cycle in a random order, and one random arc more for everybody."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(n)
    graph = nx.empty_graph(n, create_using=nx.DiGraph)
    graph.add_edges_from(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    graph.add_edges_from((i, int(draw.integers(n))) for i in range(n))
    return graph


@cache
def fixed(n: int) -> dict[str, Topology]:
    graphs = [
        topologies.ring(n),
        topologies.complete(n),
        topologies.star(n),
        topologies.erdos_renyi(n, 0.4, seed=5),
        topologies.from_graph(directed(n, seed=n), name="push-sum"),
        topologies.from_matrix(circulant(n, {1: 0.3, 2: -0.05}), "negative weights"),
    ]
    return {graph.name: graph for graph in graphs}


@cache
def schedules(n: int) -> dict[str, Topology]:
    mixed = [
        topologies.ring(n),
        topologies.star(n),
        topologies.from_graph(directed(n, seed=1)),
        topologies.ring(n),
    ]
    graphs = [
        topologies.one_peer_exponential(n),
        topologies.from_matrix([graph.W for graph in mixed], "ring, star, directed, ring"),
    ]
    return {graph.name: graph for graph in graphs}


def graphs(n: int) -> dict[str, Topology]:
    return fixed(n) | schedules(n)


@cache
def rows(n: int) -> dict[str, np.ndarray]:
    """Everybody's rows `[n, ...]`: several leaves, ranks and dtypes."""
    draw = np.random.default_rng(n)
    return {
        "matrix": draw.normal(size=(n, 3, 2)).astype(np.float32),
        "scalar": draw.normal(size=n).astype(np.float32),
        "half": draw.normal(size=(n, 5)).astype(jnp.bfloat16),
    }


@cache
def seeds(n: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(SEEDS, n, 3)).astype(np.float32)


@cache
def codes(n: int) -> np.ndarray:
    """A worker's number, from 1, and what it says."""
    said = np.random.default_rng(2).integers(0, 256, (n, 3), np.uint8)
    return np.concatenate([np.arange(1, n + 1, dtype=np.uint8)[:, None], said], axis=1)


@cache
def counts(n: int) -> np.ndarray:
    """So large that float32 would round them, and that fifteen of them are below 2^32."""
    return np.random.default_rng(3).integers(2**27, 2**28, (n, 2)).astype(np.uint32) | np.uint32(1)


@cache
def agreed(n: int) -> dict[str, np.ndarray]:
    """Models that agree."""
    one = np.random.default_rng(4).normal(size=5).astype(np.float32)
    return {"float": np.tile(one, (n, 1)), "half": np.tile(one.astype(jnp.bfloat16), (n, 1))}


@cache
def near(n: int) -> np.ndarray:
    """Models that nearly agree: 4096 and less than 1/32."""
    return (4096 + np.random.default_rng(5).integers(0, 64, (n, 3)) / 2048).astype(np.float32)


def spread(function, devices: int = 2):
    return jax.shard_map(
        function, mesh=workers.mesh(devices), in_specs=BLOCKS, out_specs=BLOCKS, check_vma=False
    )


def on_every_graph(rows, seeds, codes, counts, step, agreed, near):
    """Results by what is called, and by graph."""
    n = len(jax.tree.leaves(rows)[0]) * workers.devices()
    results: dict[str, dict[str, Any]] = {
        what: {} for what in ("mix", "codes", "heard", "pulled", "by hand", "stay")
    }
    vmapped, zero = {}, jnp.float32(0)
    for name, graph in graphs(n).items():

        def after(tree, zero=zero):
            """The tree, once the last graph's are there: XLA may run independent collectives in
            another order on each device.
            """
            return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), tree)

        mine, table = (
            after(rows),
            workers.fetch(after({"codes": codes, "counts": counts}), graph, step),
        )
        results["codes"][name] = table["codes"]
        results["heard"][name] = workers.sum_of_others(table["counts"], graph, step)
        results["mix"][name] = workers.mix(mine, graph, step)
        results["pulled"][name] = workers.pull(after(near), graph, step)
        told = 2 * workers.fetch(mine["matrix"], graph, step)
        results["by hand"][name] = workers.pull(mine["matrix"], graph, step, table=told)
        if not graph.uniform:
            results["stay"][name] = workers.mix(after(agreed), graph, step)
        if name.startswith(("ring(", "one_peer")):
            vmapped[name] = jax.vmap(lambda x, graph=graph: workers.mix(x, graph, step))(
                after(seeds)
            )
        zero = 0 * results["mix"][name]["scalar"][0] + 0 * results["pulled"][name][0, 0]
    return results, vmapped


def arguments(n: int, step: int):
    return rows(n), seeds(n), codes(n), counts(n), np.int32(step), agreed(n), near(n)


def rounds(devices: int, n: int) -> tuple[list[Any], str]:
    """What `on_every_graph` gives in each round, by one program for all graphs, and its text."""
    across = P(None, workers.AXIS)
    places = {
        "in_specs": (BLOCKS, across, BLOCKS, BLOCKS, SAME, BLOCKS, BLOCKS),
        "out_specs": (BLOCKS, across),
    }
    spread = jax.shard_map(on_every_graph, mesh=workers.mesh(devices), check_vma=False, **places)
    program = jax.jit(spread).lower(*arguments(n, 0)).compile(compiler_options=FAST)
    return [
        jax.tree.map(np.asarray, program(*arguments(n, step))) for step in range(STEPS)
    ], program.as_text()


@cache
def of_rounds(devices: int, n: int) -> tuple[list[Any], str]:
    """On eight devices in a process of its own: in whole runs of the tests, XLA has stopped in this
    program four times (seven devices waited for each other in a permute, one in a gather) and then
    ended the process; in fresh processes not once in 8,000 rounds."""
    return elsewhere.call(devices, rounds, devices, n) if devices == 8 else rounds(devices, n)


def results(devices: int, n: int, step: int):
    return of_rounds(devices, n)[0][step]


def W_at(graph: Topology, step: int) -> np.ndarray:
    return graph.matrices[step % graph.period].toarray()


def close(result: np.ndarray, expected: np.ndarray, message: str, *, roundings: float = 4) -> None:
    """Up to a few roundings at the size of the largest element; `expected` in float64."""
    atol = roundings * float(jnp.finfo(result.dtype).eps) * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(
        np.asarray(result, np.float64), expected, rtol=0, atol=atol, err_msg=message
    )


def product(W: np.ndarray, leaf: np.ndarray) -> np.ndarray:
    return np.einsum("ij,j...->i...", W, np.asarray(leaf, np.float64))


SIZES = [(1, N), (4, N), pytest.param(8, 8, marks=pytest.mark.long)]
every_n = pytest.mark.parametrize(("devices", "n"), SIZES, ids=str)


@every_n
def test_mix_is_the_product_with_W_in_every_round(devices, n):
    for step in range(STEPS):
        for name, mixed in results(devices, n, step)[0]["mix"].items():
            for leaf, row in rows(n).items():
                assert mixed[leaf].dtype == row.dtype
                close(
                    mixed[leaf],
                    product(W_at(graphs(n)[name], step), row),
                    f"{name}, {leaf}, {step}",
                )


@every_n
def test_a_schedule_takes_its_rounds_in_turn(devices, n):
    """Not the same one, and again after a period, to the bit."""
    for name, graph in schedules(n).items():
        taken = [
            results(devices, n, step)[0]["mix"][name]["matrix"] for step in range(2 * graph.period)
        ]
        for step in range(graph.period):
            np.testing.assert_array_equal(taken[step], taken[step + graph.period])
        assert any((taken[0] != other).any() for other in taken[1:])


def pull(W: np.ndarray, leaf: np.ndarray, *, told: float = 1) -> np.ndarray:
    """Neighbour by neighbour, of what they tell."""
    x = np.asarray(leaf, np.float64)
    return np.stack(
        [
            sum(W[i, j] * (told * x[j] - x[i]) for j in range(len(W)) if j != i)
            for i in range(len(W))
        ]
    )


@every_n
def test_pull_takes_the_table_that_it_is_given(devices, n):
    """Here of neighbours that tell twice what they have."""
    for step in (0, 1, 6):
        for name, pulled in results(devices, n, step)[0]["by hand"].items():
            close(pulled, pull(W_at(graphs(n)[name], step), rows(n)["matrix"], told=2), name)


@every_n
def test_errors_of_a_pull_are_as_small_as_the_disagreement(devices, n):
    """Which is 2^17 times smaller than the models, whose roundings would drown it; a mean over all
    is rounded as a model is.
    """
    for step in (0, 1):
        for name, pulled in results(devices, n, step)[0]["pulled"].items():
            expected = pull(W_at(graphs(n)[name], step), near(n))
            size = near(n).max() if graphs(n)[name].uniform else np.ptp(near(n))
            np.testing.assert_allclose(
                pulled,
                expected,
                rtol=0,
                atol=8 * float(size * np.finfo(np.float32).eps),
                err_msg=name,
            )


@every_n
def test_models_that_agree_stay_bit_for_bit(devices, n):
    """Where rows sum to 1; under push-sum they are scaled by what rows sum to."""
    for step in (0, 1, 2, 3):
        for name, stay in results(devices, n, step)[0]["stay"].items():
            for leaf, model in agreed(n).items():
                if graphs(n)[name].doubly_stochastic:
                    np.testing.assert_array_equal(stay[leaf], model, err_msg=name)
                else:
                    close(stay[leaf], product(W_at(graphs(n)[name], step), model), name)


@every_n
def test_mix_of_many_seeds_is_mix_of_each(devices, n):
    for step in (0, 1, 3):
        for name, mixed in results(devices, n, step)[1].items():
            for seed in range(SEEDS):
                close(mixed[seed], product(W_at(graphs(n)[name], step), seeds(n)[seed]), name)


@every_n
def test_fetch_brings_what_neighbours_say_exactly(devices, n):
    """And whoever a device hears, it hears right: rows of zeros fill the table up."""
    block = n // devices
    said = np.concatenate([np.zeros((1, 4), np.uint8), codes(n)])
    for step in (0, 1, 2):
        for name, table in results(devices, n, step)[0]["codes"].items():
            assert table.dtype == np.uint8
            for device, brought in enumerate(table.reshape(devices, -1, 4)):
                np.testing.assert_array_equal(brought, said[brought[:, 0]])
                own = np.arange(device * block, (device + 1) * block)
                needed = np.flatnonzero((W_at(graphs(n)[name], step)[own] != 0).any(axis=0))
                assert {*needed, *own} <= set(brought[:, 0].astype(int) - 1), name


@every_n
def test_a_table_has_no_more_rows_than_everybody(devices, n):
    tables = results(devices, n, 0)[0]["codes"]
    assert all(len(table) <= devices * n for table in tables.values())
    if devices > 1:
        block = n // devices
        assert len(tables[f"ring({n})"]) == devices * (block + 2)
        assert len(tables[f"one_peer_exponential({n})"]) == devices * 2 * block


@every_n
def test_sum_of_others_is_exact(devices, n):
    for step in (0, 1, 2):
        for name, heard in results(devices, n, step)[0]["heard"].items():
            others = (W_at(graphs(n)[name], step) != 0) & ~np.eye(n, dtype=bool)
            assert heard.dtype == np.uint32
            np.testing.assert_array_equal(
                heard, others.astype(np.int64) @ counts(n).astype(np.int64), err_msg=name
            )


@pytest.mark.parametrize("devices", [1, 4])
def test_only_many_devices_send(devices):
    kinds = {kind for _, kind in SENDS.findall(of_rounds(devices, N)[1])}
    assert kinds == (set() if devices == 1 else {"all-gather", "all-reduce", "collective-permute"})


@pytest.fixture
def most(monkeypatch):
    """Sets the number of neighbours up to which rows are summed one by one."""

    def set_most(number: int) -> None:
        monkeypatch.setattr(routes, "_MOST", number)
        routes.routes_of.cache_clear()

    yield set_most
    routes.routes_of.cache_clear()


@pytest.mark.parametrize("devices", [1, 8])
def test_rows_one_by_one_and_the_product_agree(devices, most):
    some = [graphs(N)[name] for name in ("push-sum", "one_peer_exponential(16)")]

    def both(x, counted, step):
        results = []
        for number in (0, 32):
            most(number)
            assert all(
                (routes.routes_of(graph, devices).places is None) == (number == 0) for graph in some
            )
            heard = [
                workers.sum_of_others(workers.fetch(counted, graph, step), graph, step)
                for graph in some
            ]
            results.append(([workers.mix(x, graph, step) for graph in some], heard))
        return results

    places = {"in_specs": (BLOCKS, BLOCKS, SAME), "out_specs": BLOCKS, "check_vma": False}
    spread = jax.jit(jax.shard_map(both, mesh=workers.mesh(devices), **places))
    x = rows(N)["matrix"]
    program = spread.lower(x, counts(N), jnp.int32(0)).compile(compiler_options=FAST)
    for step in (0, 3):
        (by_product, counted), (one_by_one, counted_too) = jax.tree.map(
            np.asarray, program(x, counts(N), np.int32(step))
        )
        for graph, left, right, heard, heard_too in zip(
            some, by_product, one_by_one, counted, counted_too, strict=True
        ):
            for mixed in (left, right):
                close(mixed, product(W_at(graph, step), x), graph.name)
            others = (W_at(graph, step) != 0) & ~np.eye(N, dtype=bool)
            for exact in (heard, heard_too):
                np.testing.assert_array_equal(
                    exact, others.astype(np.int64) @ counts(N).astype(np.int64)
                )


def test_gradients_flow_through_mix():
    """The derivative of c . W x is W^T c; and in double precision roundings are of float64."""
    graph = graphs(N)["push-sum"]
    with jax.enable_x64(True):
        x, c = np.random.default_rng(0).normal(size=(2, N, 2))
        mix = spread(lambda x: workers.mix(x, graph))
        derived = jax.jit(jax.value_and_grad(lambda x: jnp.sum(c * mix(x))))
        value, gradient = derived.lower(x).compile(compiler_options=FAST)(x)
    np.testing.assert_allclose(value, np.sum(c * product(graph.W, x)), rtol=0, atol=1e-13)
    np.testing.assert_allclose(gradient, product(graph.W.T, c), rtol=0, atol=1e-14)


def sends_of_a_mix(
    graph: Topology, devices: int = 8
) -> tuple[list[tuple[str, str]], dict[str, int | float]]:
    """Shape and kind of each of the devices' messages, for rows of three numbers; and the bytes
    that a device sends.
    """

    def mix(x, step):
        return workers.mix(x, graph, step)

    spread = jax.shard_map(
        mix, mesh=workers.mesh(devices), in_specs=(BLOCKS, SAME), out_specs=BLOCKS, check_vma=False
    )
    program = (
        jax.jit(spread).lower(jnp.zeros((graph.n, 3)), jnp.int32(0)).compile(compiler_options=FAST)
    )
    return SENDS.findall(program.as_text()), workers.traffic(program)


ROW = 3 * FLOAT


@pytest.mark.parametrize(
    ("graph", "rows_each_way"),
    [
        (topologies.ring(16), 1),
        (
            topologies.from_matrix(
                circulant(32, {0: 0.5, 1: 0.1, 2: 0.15}), "two hops in blocks of four"
            ),
            2,
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_neighbouring_blocks_exchange_one_message_each_way(graph, rows_each_way):
    sends, total = sends_of_a_mix(graph)
    assert [kind for _, kind in sends] == ["collective-permute"] * 2
    assert all(re.match(rf"\(?f32\[{rows_each_way},3\]", shape) for shape, _ in sends)
    assert total == {"collective-permute": 2 * rows_each_way * ROW}


@pytest.mark.parametrize(
    "graph",
    [
        topologies.random_regular(8, 3),
        topologies.from_graph(directed(8, seed=3), name="push-sum"),
        topologies.from_graph(
            nx.Graph([(0, i) for i in range(1, 6)] + [(6, 7), (5, 6)]), name="a star with a tail"
        ),
    ],
    ids=lambda graph: graph.name,
)
def test_single_workers_send_their_row_to_each_neighbour(graph):
    """In as many permutes as one has neighbours; the mean over devices sends the mean degree."""
    sends, total = sends_of_a_mix(graph)
    assert [kind for _, kind in sends] == ["collective-permute"] * graph.degree
    assert all(re.match(r"\(?f32\[1,3\]", shape) for shape, _ in sends)
    assert total == {"collective-permute": graph.sends.mean() * ROW}


def test_a_star_gathers_what_permutes_would_bring():
    """The hub needs everybody's row."""
    n = 16
    sends, total = sends_of_a_mix(topologies.star(n))
    assert [kind for _, kind in sends] == ["all-gather"]
    assert total == {"all-gather": 7 * n // 8 * ROW}


def test_a_complete_graph_sends_one_mean():
    sends, _ = sends_of_a_mix(topologies.complete(16))
    assert [kind for _, kind in sends] == ["all-reduce"]
    assert re.match(r"\(?f32\[3\]", sends[0][0])


def test_a_round_of_a_schedule_sends_its_own_rows_only():
    """One branch for each of the three rounds, of which a step takes one."""
    sends, total = sends_of_a_mix(topologies.one_peer_exponential(8))
    assert [kind for _, kind in sends] == ["collective-permute"] * 3
    assert total == {"collective-permute": ROW}


def test_rounds_between_equal_pairs_are_one_branch():
    W = topologies.ring(8).W
    sends, total = sends_of_a_mix(topologies.from_matrix(np.stack([W, (np.eye(8) + W) / 2, W])))
    assert [kind for _, kind in sends] == ["collective-permute"] * 2
    assert total == {"collective-permute": 2 * ROW}


@pytest.mark.parametrize("graph", [topologies.star(8), topologies.one_peer_exponential(8)])
def test_one_device_sends_nothing(graph):
    assert sends_of_a_mix(graph, devices=1) == ([], {})


@pytest.mark.parametrize(
    "graph", [topologies.ring(N), topologies.complete(N)], ids=lambda graph: graph.name
)
@pytest.mark.parametrize(
    ("leaf", "given"),
    [
        (np.zeros((8, 2), np.float32), "8 workers, float32"),
        (np.zeros((N, 2), np.int32), f"{N} workers, int32"),
    ],
)
def test_mix_refuses_other_workers_and_integers(leaf, given, graph):
    """A ring of 16 on 8 rows would be a ring of 8; 1/3 as an integer is 0."""
    needed = rf"; expected floating-point leaves of {N} workers"
    for gossip in (workers.mix, workers.pull):
        with pytest.raises(
            ValueError, match=rf"gossip on {re.escape(graph.name)}: a leaf of {given}{needed}"
        ):
            spread(lambda x, gossip=gossip: gossip(x, graph))(leaf)


def test_one_worker_keeps_what_it_has():
    """Nobody is there to hear, also in a schedule."""
    once, twice = topologies.complete(1), topologies.from_matrix(np.ones((2, 1, 1)))
    x, count = np.array([[1.5, -2.0]], np.float32), np.array([[7]], np.uint32)
    for graph in (once, twice):

        def alone(x, count, graph=graph):
            step = jnp.int32(1)
            table = workers.fetch(count, graph, step)
            return (
                workers.mix(x, graph, step),
                workers.pull(x, graph, step),
                workers.sum_of_others(table, graph, step),
            )

        mixed, pulled, heard = jax.jit(spread(alone, 1))(x, count)
        np.testing.assert_array_equal(mixed, x)
        np.testing.assert_array_equal(pulled, np.zeros_like(x))
        np.testing.assert_array_equal(heard, [[0]])


@pytest.mark.parametrize("devices", [1, 8])
def test_a_schedule_needs_the_step(devices):
    graph = topologies.one_peer_exponential(8)
    calls = [lambda x: workers.mix(x, graph), lambda x: workers.pull(x, graph)]
    if devices > 1:
        calls.append(lambda x: workers.fetch(x, graph))
    for call in calls:
        with pytest.raises(
            ValueError,
            match=r"gossip on one_peer_exponential\(8\), a schedule of 3 rounds: step = None; expected",
        ):
            spread(call, devices)(np.zeros((8, 2), np.float32))
