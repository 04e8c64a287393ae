"""Real asynchrony: the recorded events of processes, recomputed by loops in the same order; and
killed processes.

The order of gradients depends on the machine. Each run is compared with the recursion in its own
order.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial, wraps
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import algorithms
import dsgd
import topologies
from algorithms import on_ray, optimizers
from algorithms.asynchronous.asynchronous_server import Counted, LocalRuns
from algorithms.asynchronous.on_ray import gossip, peer, server, with_servers
from algorithms.asynchronous.on_ray import worker as on_worker
from algorithms.asynchronous.on_ray.server import Pushed
from dsgd import clusters, problems
from tests.methods.compressors import shard, unshard

N, GAMMA, D = 3, 0.3, 62
KEY = jax.random.key(3)
STEP = optax.sgd(GAMMA)


@cache
def problem() -> dsgd.Problem:
    return problems.logistic_regression("breast-cancer", N, "blocks", batch_size=4, seed=1)


@pytest.fixture(scope="module")
def ray():
    """One Ray cluster for the module, in its own folder, because names of sockets must be short."""
    if find_spec("ray") is None:  # `importorskip` would import it before the session does
        pytest.skip("Ray is not installed")
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    # Each of its about twenty processes imports jsonschema, which builds a parser of addresses for
    # a second if Jupyter's packages are installed.
    Path(folder, "rfc3987_syntax.py").write_text("raise ImportError('not needed')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
        try:
            with on_ray.session(N + 3) as module:
                yield module
        finally:
            shutil.rmtree(folder, ignore_errors=True)


# --- Reference loops.


@cache
def params():
    """Returns the initial parameters."""
    return problem().init(jax.random.split(KEY)[0])


@cache
def _slope():
    each, unravel = problem(), ravel_pytree(params())[1]
    stream = jax.random.fold_in(jax.random.split(KEY)[1], np.uint32(2**32 - 1))

    def of(worker, draw, x):
        mine = jax.tree.map(lambda leaf: leaf[worker], each.data)
        batch = each.sample(jax.random.fold_in(jax.random.fold_in(stream, draw), worker), mine)
        return ravel_pytree(jax.grad(each.loss)(unravel(x), batch))[0]

    return jax.jit(of)


def g(worker: int, draw: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(_slope()(worker, draw, x.astype(np.float32)), float)


def flat(params) -> np.ndarray:
    return np.asarray(ravel_pytree(params)[0], float)


def shift_params(by: float):
    """Returns the initial parameters plus a constant."""
    return jax.tree.map(lambda leaf: leaf + np.float32(by), params())


def assert_columns(found, **expected) -> None:
    """Checks the columns of a history, or of updates, by name."""
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def server_loop(updates, P: int, aware: bool) -> np.ndarray:
    """Returns the last model `[d]` after each server's steps in its own order, with the parts at
    which each gradient was computed.
    """
    worker, draw, staleness = (
        updates[name].reshape(-1, P) for name in ("worker", "draw", "staleness")
    )
    own = np.arange(len(worker))[:, None] - staleness
    reads = updates["read"] if P > 1 else own[:, :, None]
    np.testing.assert_array_equal(np.diagonal(reads, axis1=1, axis2=2), own)
    parts = [[part] for part in shard(flat(params()), P)]
    gradient = cache(
        lambda worker, draw, read: shard(g(worker, draw, whole([parts[q][v] for q, v in read])), P)
    )

    def whole(rows):
        return unshard(np.stack(rows), D)

    def one(p):
        """Applies the next step of a server, if the model of its gradient exists."""
        t = len(parts[p]) - 1
        if t == len(worker) or any(v >= len(parts[q]) for q, v in enumerate(reads[t, p])):
            return False
        slope = gradient(worker[t, p], draw[t, p], tuple(enumerate(reads[t, p])))[p]
        factor = max(1, staleness[t, p]) if aware else 1
        parts[p].append(parts[p][-1] - GAMMA * slope / factor)
        return True

    while any(one(p) for p in range(P)):
        pass
    assert [len(each) - 1 for each in parts] == [len(worker)] * P, (
        "an order in which gradients follow what they are of"
    )
    return whole([each[-1] for each in parts])


def slow(worker: int, draw: int) -> float:
    """Makes worker 0 slower."""
    return 0.03 if worker == 0 else 0.005


def slow_thread(worker: int, draw: int) -> float:
    return 0.008 if worker == 0 else 0.001


def assert_history(trained, steps) -> None:
    """Checks that the history has the form of `dsgd.run`."""
    history = trained.history
    assert_columns(history, step=steps)
    assert all(len(values) == len(steps) for values in history.values())
    assert (np.diff(history["clock"], prepend=0) >= 0).all()
    assert history["loss"][-1] < history["loss"][0]
    exact = dsgd.run(algorithms.sgd(STEP), problem(), steps=1, key=KEY, mesh=1).history
    for name in ("loss", "grad_sqnorm"):
        np.testing.assert_allclose(history[name][0], exact[name][0], rtol=1e-5)


# --- Real runs.


@pytest.mark.long
def test_local_processes_listen_at_the_loopback_address(ray):
    """Not at the others of the machine, to which 127.0.0.2 belongs."""
    host, port = ray.get_runtime_context().gcs_address.split(":")
    assert host == "127.0.0.1"
    socket.create_connection((host, int(port)), 10).close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", int(port)), 10).close()


@pytest.mark.parametrize("given", [None, "1"])
def test_ray_is_imported_with_the_setting_for_the_loopback_address(monkeypatch, given):
    name, seen = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", []
    running = SimpleNamespace(is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 2})
    monkeypatch.delenv(name, raising=False)
    if given:
        monkeypatch.setenv(name, given)
    monkeypatch.setattr(
        sys.modules["dsgd.machines.ray_session"],
        "require_ray",
        lambda: seen.append(os.environ[name]) or running,
    )
    with on_ray.session(2):
        assert seen == [given or "0"]
        assert os.environ.get(name) == given


@pytest.mark.long
def test_independent_calls_are_tasks_and_a_lost_one_is_made_again(ray, tmp_path):
    killed = tmp_path / "killed"

    def divide(x):
        if x == 4 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 12 / x, os.getpid()

    found = dsgd.parallel_map(divide, [3, 4, 6], on="ray")
    assert [result for result, _ in found] == [4.0, 3.0, 2.0]
    assert killed.exists()
    assert os.getpid() not in {process for _, process in found}
    with pytest.raises(ZeroDivisionError):
        dsgd.parallel_map(divide, [0], on="ray")


@pytest.mark.long
def test_two_servers_make_the_steps_of_their_orders(ray):
    run = {"steps": 40, "key": KEY, "record_every": 15, "delay": slow, "patience": 300.0}
    method = algorithms.asynchronous_sgd(STEP, servers=2, staleness_aware=True)
    trained = on_ray.run(method, problem(), **run)
    assert_history(trained, [0, 15, 30, 40])
    assert trained.updates["worker"].shape == (40, 2)
    assert trained.updates["staleness"].max() > 1
    np.testing.assert_allclose(
        flat(trained.params), server_loop(trained.updates, 2, aware=True), rtol=1e-4, atol=1e-6
    )
    steps = np.array([0, 15, 30, 40])
    np.testing.assert_allclose(trained.history["bits"], 2 * 32 * D * steps / N)
    assert not ray.util.list_named_actors()


def kill_server(pattern: str) -> None:
    """Kills the processes with this name, except this one, by SIGKILL, as in a failure of the
    machine.
    """
    own = Path(f"/proc/{os.getpid()}/stat").read_text().rsplit(")", 1)[1].split()[1]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            name, parent = (
                path.read_bytes().decode(),
                (path.parent / "stat").read_text().rsplit(")", 1)[1].split()[1],
            )
        except OSError:
            continue
        if name.startswith(pattern) and parent == own:
            os.kill(int(path.parent.name), signal.SIGKILL)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(folder: str, kills: dict, worker: int, draw: int) -> float:
    """Returns the seconds of a draw, in which a worker may kill itself, or the server, once. The
    run does not end before worker 1, which was killed, is back.
    """
    for (who, when), kill in kills.items():
        marker = Path(folder, str(who))
        if (worker, draw) == (who, when) and not marker.exists():
            marker.touch()
            kill()
    back = Path(folder, "back")
    if worker == 1 and draw > 5:
        back.touch()
    return 0.02 if draw < 50 or back.exists() else 1.0


@pytest.mark.long
def test_a_killed_worker_is_left_out_and_rejoins_and_a_killed_server_resumes(ray, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    kills = {(1, 5): kill_self, (2, 12): partial(kill_server, "ray::Server")}
    method = algorithms.asynchronous_sgd(STEP, bound=3)
    run = {"steps": 400, "key": KEY, "record_every": 5, "patience": 300.0}
    run |= {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0}
    trained = on_ray.run(method, problem(), delay=partial(deadly, str(marks), kills), **run)
    assert {path.name for path in marks.iterdir()} == {"1", "2", "back"}, (
        "both were killed, and worker 1 came back"
    )
    updates = trained.updates
    assert updates["staleness"].max() <= 3
    assert len(updates["worker"]) == 400
    assert (np.diff(updates["clock"]) > 0).all(), "the seconds of the server's absence count"
    np.testing.assert_allclose(
        flat(trained.params), server_loop(updates, 1, aware=False), rtol=1e-4, atol=1e-6
    )
    again = on_ray.run(method, problem(), **run)
    np.testing.assert_array_equal(flat(again.params), flat(trained.params))
    assert_columns(again.updates, clock=updates["clock"])
    with pytest.raises(ValueError, match="another run"):
        on_ray.run(algorithms.asynchronous_sgd(optax.sgd(0.2), bound=3), problem(), **run)


def pair_loop(updates, steps: int | None = None) -> np.ndarray:
    """Returns the models by the recursion of AD-PSGD in an order of exchanges, `[N, d]`."""
    X = np.tile(flat(params()), (N, 1))
    read = X.copy()
    order = zip(*(updates[name][:steps] for name in ("worker", "partner", "draw")), strict=True)
    for i, j, draw in order:
        slope = g(i, draw, read[i])
        X[[i, j]] = (X[i] + X[j]) / 2
        X[i] -= GAMMA * slope
        read[i] = X[i]
    return X


@pytest.mark.long
def test_pairs_average_in_one_global_order(ray):
    run = {"steps": 60, "key": KEY, "record_every": 9, "delay": slow, "patience": 300.0}
    trained = on_ray.asynchronous_gossip_sgd(problem(), STEP, topologies.ring(N), **run)
    updates, steps = trained.updates, trained.history["step"].tolist()
    assert_history(trained, steps)
    assert 60 <= steps[-1] == len(updates["worker"])
    assert set(updates["partner"]) == set(range(N))
    assert (updates["worker"] != updates["partner"]).all()
    for record in (2, -1):
        models = pair_loop(updates, steps[record])
        apart = np.mean(np.sum((models - models.mean(axis=0)) ** 2, axis=1))
        np.testing.assert_allclose(
            trained.history["consensus"][record], apart, rtol=1e-3, atol=1e-9
        )
    np.testing.assert_allclose(flat(trained.params), models.mean(axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_neighbours_continue_without_a_killed_worker_which_rejoins(ray, tmp_path):
    delay = partial(deadly, str(tmp_path), {(1, 5): kill_self})
    run = {"steps": 500, "key": KEY, "delay": delay, "record_every": 60, "patience": 300.0}
    trained = on_ray.asynchronous_gossip_sgd(problem(), STEP, topologies.ring(N), **run)
    assert {path.name for path in tmp_path.iterdir()} == {"1", "back"}
    assert trained.history["loss"][-1] < 0.5 * trained.history["loss"][0]


# --- A server by itself, in this process: the gradients that it applies, and when.

PART = {"w": np.array([1.0, -2.0], np.float32)}


def settings(method=None, **options) -> server.Settings:
    given = {
        "steps": 100,
        "record_every": 1,
        "together": False,
        "seconds": 0.0,
        "folder": None,
        "about": {"method": "test"},
    }
    rule = (method or algorithms.asynchronous_sgd(STEP)).init.__self__
    return server.Settings(rule, **given | options)


BOUNDED = {tau: algorithms.asynchronous_sgd(STEP, bound=tau) for tau in (2, 3)}


@pytest.fixture
def alone(monkeypatch):
    """Returns a factory of servers that are not actors."""
    monkeypatch.setattr(server, "is_replacement", lambda: False)
    return lambda workers=2, **options: server.Server(PART, settings(**options), workers)


def gradient(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(2, value, np.float32)}


async def push_gradient(
    to: server.Server, worker: int, reply, incarnation: int = 0, value: float = 1.0
) -> server.Reply:
    """Pushes a gradient at the model of that reply; None: the first gradient."""
    if reply is None and to.queues[worker]:
        await to.pull(worker, incarnation)
    version, server_incarnation = (
        (0, 0) if reply is None else (reply.version, reply.server_incarnation)
    )
    return await to.push(
        gradient(value),
        Pushed(worker, incarnation, version, (version,), server_incarnation, 0, 0.0, math.nan),
    )


def story(tell):
    """Runs this coroutine function as a test, for at most 30 s."""

    @wraps(tell)
    def test(**fixtures):
        asyncio.run(asyncio.wait_for(tell(**fixtures), 30))

    return test


async def is_held(waiting) -> bool:
    """Returns whether it still waits when all other tasks have run."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not waiting.done()


@story
async def test_a_bounded_server_delays_a_gradient_that_would_make_another_too_old(alone):
    to = alone(method=BOUNDED[2])
    fast = await push_gradient(to, 0, await push_gradient(to, 0, None))
    third = asyncio.ensure_future(push_gradient(to, 0, fast))
    assert await is_held(third), "worker 1's gradient of model 0 is to be update 2"
    late = await push_gradient(to, 1, None)
    assert (late.version, (await third).version) == (3, 4)
    assert [(update.worker, update.step - update.version) for update in to.updates] == [
        (0, 0),
        (0, 0),
        (1, 2),
        (0, 1),
    ]
    fast = await push_gradient(to, 0, await third)
    stuck = asyncio.ensure_future(push_gradient(to, 0, fast))
    assert await is_held(stuck)
    await to.progress({0: 0, 1: 1})
    assert (await stuck).version == 6, "worker 1 has died, and is not waited for"


@story
async def test_only_gradients_of_the_last_model_read_by_the_current_process_are_applied(alone):
    to = alone(method=BOUNDED[3])
    one = await push_gradient(to, 0, None)
    assert (await push_gradient(to, 0, None)).version == 1, "of the version before"
    assert (await push_gradient(to, 0, one._replace(version=2))).version == 1
    await to.progress({0: 0, 1: 1})
    assert (await push_gradient(to, 1, None)).version == 1, "of a worker that has died"
    back = await to.pull(1, 1)
    assert (back.version, back.draw) == (1, 0)
    assert (await push_gradient(to, 1, back, incarnation=1)).version == 2
    assert (await push_gradient(to, 1, back)).version == 2, "its first incarnation again"
    assert (await to.pull(1, 1)).draw == 1, "batches that it has drawn are not drawn again"


@story
async def test_a_synchronous_server_averages_all_live_workers(alone):
    to = alone(3, together=True)
    first = [
        asyncio.ensure_future(push_gradient(to, worker, None, value=float(worker)))
        for worker in (2, 0)
    ]
    assert await is_held(first[0])
    reply = await push_gradient(to, 1, None, value=1.0)
    assert (reply.version, [each.done() for each in first]) == (1, [False, False])
    assert to.messages == 6
    np.testing.assert_allclose(reply.part["w"], PART["w"] - GAMMA * 1.0)
    two = [asyncio.ensure_future(push_gradient(to, worker, reply, value=3.0)) for worker in (0, 2)]
    assert await is_held(two[0])
    await to.progress({0: 0, 1: 1, 2: 0})
    np.testing.assert_allclose((await two[0]).part["w"], PART["w"] - GAMMA * 4.0, rtol=1e-6)
    back, reply = await to.pull(1, 1), await two[0]
    await to.progress({0: 0, 1: 1, 2: 1})
    waiting = asyncio.ensure_future(push_gradient(to, 0, reply))
    assert await is_held(waiting), "worker 1 is there again, though another has died"
    assert (await push_gradient(to, 1, back, incarnation=1)).version == (await waiting).version == 3


@story
async def test_a_stopped_gradient_is_discarded_and_its_worker_continues_at_the_current_model(alone):
    """Jobs are stopped when their models are 2 steps old; worker 2 has not asked for its own."""

    def order(model, arrival, jobs, key):
        return jnp.where((jobs.delay >= 2) | jobs.waiting, jobs.worker, -1)

    to = alone(3, method=server_method(order=order))
    old, reply = await to.pull(1, 0), None
    for version in (1, 2, 3):
        reply = await push_gradient(to, 0, reply)
        assert to.away == ({1} if version > 1 else set())
    assert to.messages == 3 + 5, "3 gradients, and 5 models, two of them to workers 1 and 2"
    assert to._table().delay.tolist() == [0, 0, 1]
    back = await push_gradient(to, 1, old)
    assert (back.version, to.version, to.messages) == (3, 3, 9)
    reply = await push_gradient(to, 0, reply)
    assert (await push_gradient(to, 1, back, value=0.5)).version == 5
    assert [(each.worker, each.delay) for each in to.updates[3:]] == [(0, 0), (1, 1)]
    np.testing.assert_allclose(to.model.params["w"], PART["w"] - GAMMA * 4.5, rtol=1e-6)


@story
async def test_a_worker_that_died_loses_its_job_and_its_next_ones_read_the_current_model(alone):
    """All jobs go to worker 0, except for one that is lost."""

    def order(model, arrival, jobs, key):
        return jnp.where(jobs.waiting, jnp.where(arrival.lost, 2, 0), -1)

    to = alone(3, method=server_method(order=order))
    reply = await to.pull(0, 0)
    waiting = asyncio.ensure_future(push_gradient(to, 1, None))
    assert await is_held(waiting)
    assert to.queues == {0: [1], 1: [], 2: [2]}
    await to.progress({0: 1, 1: 0, 2: 0})
    assert (await push_gradient(to, 0, reply)).version == 1
    assert to.version == 1, "of a process that died"
    also = asyncio.ensure_future(push_gradient(to, 2, None))
    assert await is_held(also)
    back = await to.pull(0, 1)
    assert (back.version, back.draw) == (2, 0), "job 1, which was given to it at version 1"
    assert (to.computing, to.queues) == ({0: 1}, {0: [2], 1: [], 2: [0]})
    assert await is_held(waiting)
    assert (await also).version == 2
    waiting.cancel()


@story
async def test_a_server_refuses_to_wait_for_workers_that_wait_for_it(alone):
    to = alone(1, method=server_method(order=lambda model, *_: jnp.full(1, -1, jnp.int32)))
    with pytest.raises(ValueError, match="a_method: all workers wait for the server"):
        await push_gradient(to, 0, None)
    to = alone(2, method=server_method(order=lambda model, *_: jnp.full(2, 2, jnp.int32)))
    with pytest.raises(ValueError, match=r"gives the workers \[2, 2\]; expected -1 to 1"):
        await push_gradient(to, 0, None)


@story
async def test_a_server_resumes_from_its_checkpoint_and_refuses_earlier_gradients(
    alone, tmp_path, monkeypatch
):
    first = alone(folder=tmp_path)
    await first.restore()
    await first.begin()
    reply = await push_gradient(first, 1, await push_gradient(first, 0, None))
    reply = await push_gradient(first, 1, reply)
    first.checkpoint.__exit__()
    second = alone(folder=tmp_path)
    assert tuple(await second.restore()) == (2, 1, True)
    await second.begin()
    np.testing.assert_array_equal(second.model.params["w"], reply.part["w"])
    jax.tree.map(np.testing.assert_array_equal, second.updates, first.updates)
    assert (await push_gradient(second, 1, reply)).version == 2, "of the incarnation before"
    back = await second.pull(1, 0)
    assert (back.version, back.server_incarnation, back.draw) == (2, 1, 1), (
        "batches that were drawn before are not drawn again"
    )
    assert (await push_gradient(second, 1, reply)).version == 2, (
        "of the incarnation before, though its version has been read again"
    )
    assert (await push_gradient(second, 1, back)).version == 3
    assert second.updates[-1].at > second.updates[-2].at
    assert len((await second.history())[1]) == 4
    second.checkpoint.__exit__()
    monkeypatch.setattr(server, "is_replacement", lambda: True)
    for incarnation in (2, 3):  # it is killed again before it has made an update
        again = server.Server(PART, first.settings, 2)
        assert (await again.progress({})).server_incarnation == incarnation
        again.checkpoint.__exit__()


@story
async def test_a_server_keeps_records_until_it_is_done_or_not_finite(alone):
    to, reply = alone(1, record_every=3, steps=7), None
    for version in range(1, 8):
        reply = await push_gradient(to, 0, reply)
        assert (reply.version, reply.done) == (version, version == 7)
    assert (await push_gradient(to, 0, reply)).version == 7, "it takes no more"
    np.testing.assert_allclose(
        [record["w"][0] for record in to.records],
        PART["w"][0] - GAMMA * np.array([0, 3, 6, 7]),
        rtol=1e-5,
    )
    broken = alone(1, record_every=2)
    reply = await push_gradient(broken, 0, None, value=math.nan)
    assert not reply.done
    assert (await push_gradient(broken, 0, reply)).done
    assert not (await broken.progress({})).finite


# --- The simulation with the arrivals of a real run.


def server_method(count: bool = True, **options):
    """Returns an asynchronous method whose server makes a step with each gradient."""

    def start(model, N):
        return Counted(*model, jnp.int32(0))

    def step(model, gradient, arrival, read):
        stepped = optimizers.step(STEP, optimizers.Model(*model[:2]), gradient)
        return Counted(*stepped, model.steps + 1) if count else stepped

    options = ({"start": start} if count else {}) | options
    return algorithms.asynchronous_server("a_method", STEP, step, **options)


def wait_for_all(model, arrival, jobs, key):
    return jnp.where(jnp.all(jobs.waiting), jobs.worker, -1)


def assign_next(model, arrival, jobs, key):
    """The arrival's job is given to the worker whose turn it is; others may be without a job."""
    return jnp.where(jobs.waiting, model.steps * 2 % N, -1)


LOCAL = LocalRuns(optax.sgd(0.2, momentum=0.7), (2, 4, 3), 0.5)
REPLAYED = {
    "rennala_sgd": algorithms.rennala_sgd(STEP, 2),
    "ringmaster_sgd": algorithms.ringmaster_sgd(optax.sgd(GAMMA, momentum=0.6), 2),
    "malenia_sgd": algorithms.malenia_sgd(STEP, 4.5),
    "fed_buff": algorithms.fed_buff(*LOCAL[:2], 2, optax.sgd(0.8)),
    "local runs": server_method(local=LOCAL),
    "bounded": BOUNDED[3],
    "waiting": server_method(order=wait_for_all),
    "assigned": server_method(order=assign_next),
}


def replay(method: dsgd.Algorithm, updates) -> dsgd.Result:
    """Simulates a method on a cluster on which gradient t, or the last one of local run t, arrives
    after t + 1 seconds, and with the recorded batches.
    """
    workers, T = updates["worker"], len(updates["worker"])
    local = method.init.__self__.options(N).steps
    each = np.ones(N, int) if local is None else local
    arrives = np.full((T + 1, N), 2.0**10)  # of a worker that begins after t seconds; or never
    for t in reversed(range(T)):
        arrives[t] = np.where(np.arange(N) == workers[t], t + 1, arrives[t + 1])
    short = 1 / 64  # seconds of the gradients of a run except the first

    def seconds(key, clock, worker):
        before = (jnp.asarray(each)[worker] - 1) * short
        first = jnp.asarray(arrives)[jnp.int32(clock), worker] - before - clock
        return jnp.where(clock == jnp.floor(clock), first, short)

    numbers = zip(updates["draw"], each[workers], strict=True)
    draws = np.concatenate([np.arange(draw - H + 1, draw + 1) for draw, H in numbers])

    def query(state, round):
        batch = jnp.full(N, jnp.asarray(draws, jnp.int32)[round.step])
        work = dsgd.LocalWork(np.ones((N, 1), bool), np.ones((N, 1), np.float32), batch)
        return method.query(state, round)._replace(work=work)

    cluster = clusters.Cluster(clusters.Quantity(seconds, "recorded", positive=True))
    run = {"steps": len(draws), "key": KEY, "cluster": cluster, "mesh": 1}
    return dsgd.run(method._replace(query=query), problem(), **run)


ALONE = ["rennala_sgd", "local runs", "bounded", "waiting", "assigned"]
"""Those that run in this process; `--long` runs the others in real processes."""


def assert_replays(method: dsgd.Algorithm, trained: on_ray.Trained, steps: int) -> None:
    """Checks every model of a real run with a record of each update against the simulation."""
    updates, found = trained.updates, trained.history
    assert len(updates["worker"]) == steps
    local = method.init.__self__.options(N).steps
    ends = np.cumsum(np.ones(steps, int) if local is None else local[updates["worker"]])
    simulated = replay(method, updates)
    history = {name: values[[0, *ends]] for name, values in simulated.history.items()}
    assert_columns(history, worker=found["worker"], clock=np.arange(steps + 1))
    counted = [name for name in ("delay", "server_steps") if name in history]
    assert_columns(history, **{name: found[name] for name in counted})
    if local is None:
        assert_columns(history, staleness=found["staleness"])
    for name in ("loss", "grad_sqnorm"):
        np.testing.assert_allclose(found[name], history[name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(flat(trained.params), flat(simulated.params), rtol=1e-4, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rennala_sgd", "ringmaster_sgd", "malenia_sgd", "fed_buff"])
def test_the_simulation_finds_the_models_of_a_real_run_from_its_arrivals(ray, name):
    method = REPLAYED[name]
    trained = on_ray.run(method, problem(), steps=40, key=KEY, delay=slow, patience=300.0)
    assert trained.updates["staleness"].max() > 1
    assert_replays(method, trained, 40)


@pytest.mark.parametrize("name", ALONE)
def test_the_simulation_finds_the_models_of_a_server_from_its_arrivals(alone, monkeypatch, name):
    """Workers are threads of this process; worker 0 is slower."""
    monkeypatch.setattr(on_worker, "require_ray", lambda: THREADS)
    method, steps = REPLAYED[name], 40
    given = settings(method, steps=steps, record_every=1)
    first = jax.tree.map(np.asarray, params())
    to = server.Server(first, given, N)
    task = with_servers.tasks(problem(), KEY, first, slow_thread)
    local = given.rule.options(N).steps
    steps_of = np.ones(N, int) if local is None else local

    async def run():
        loop = asyncio.get_running_loop()
        handle = Named(
            pull=lambda *args: asyncio.run_coroutine_threadsafe(to.pull(*args), loop),
            push=lambda *args: asyncio.run_coroutine_threadsafe(to.push(*args), loop),
        )
        await to.restore()
        with ThreadPoolExecutor(N) as threads:
            tasks = [
                task(worker)._replace(local=given.rule.local, steps=int(steps_of[worker]))
                for worker in range(N)
            ]
            each = [on_worker.Worker(worker, one) for worker, one in enumerate(tasks)]
            runs = [loop.run_in_executor(threads, one.run, [handle], 0) for one in each]
            await asyncio.wait_for(asyncio.gather(*runs), 60)
        return await to.history()

    history = asyncio.run(run())
    assert_replays(
        method, with_servers._combine(name, problem(), given, params(), [history]), steps
    )


# --- A worker of AD-PSGD by itself, in this process.


class Named:
    """The methods of an actor that a peer calls: each member returns the result of a function."""

    def __init__(self, **members) -> None:
        for name, answer in members.items():
            setattr(self, name, SimpleNamespace(remote=answer))


class Dead(Exception):
    """Replaces Ray's RayActorError."""


class Answer:
    """Replaces a future of Ray, which is ready when it is awaited, or earlier if it is not late."""

    def __init__(self, value=None, late: bool = False) -> None:
        self.value, self.late = value, late


def found(answers, timeout=None):
    """Replaces `ray.get`; other objects than futures are returned unchanged."""
    return (
        [found(each) for each in answers]
        if isinstance(answers, list)
        else getattr(answers, "value", answers)
    )


NO_RAY = SimpleNamespace(
    exceptions=SimpleNamespace(RayActorError=Dead, ActorDiedError=Dead, RayTaskError=KeyError),
    wait=lambda answers, **_: (
        [each for each in answers if not each.late],
        [each for each in answers if each.late],
    ),
    get=found,
)


THREADS = SimpleNamespace(get=lambda answers: [answer.result(60) for answer in answers])


@pytest.fixture
def lonely(monkeypatch):
    """Returns a factory of workers that are not actors, with gradient 1 everywhere."""
    monkeypatch.setattr(peer, "is_replacement", lambda: False)
    monkeypatch.setattr(peer, "require_ray", lambda: NO_RAY)
    first = jax.tree.map(np.asarray, params())
    task = with_servers.tasks(problem(), KEY, first, None)
    return lambda worker, patience=30.0: peer.Peer(worker, task(worker), STEP, first, 10, patience)


def neighbour(asked: list, answer) -> Named:
    """Returns a peer that records its calls, and returns this answer: a result, an exception, or a
    future.
    """

    def average(stamp, params, about):
        asked.append((stamp, about))
        if isinstance(answer, Future):
            return SimpleNamespace(future=lambda: answer)
        there = Future()
        there.set_exception(answer) if isinstance(answer, Exception) else there.set_result(answer)
        return SimpleNamespace(future=lambda: there)

    return Named(average=average)


def knows(one: peer.Peer, **peers: Named) -> None:
    """Gives a peer its neighbours; `_2=` is number 2."""
    one.peers = {int(name[1:]): other for name, other in peers.items()}
    one.there = set(one.peers)


ABOUT = peer.Exchange(0, 2, 1, 4, 0.5, 0.25, 0.0, 3)


@story
async def test_no_two_workers_of_a_pair_wait_for_each_other(lonely):
    """Worker 2 calls worker 1 while worker 1 is about to call it, and worker 0, which was first,
    has not yet been answered.
    """
    one, answer = lonely(1), Future()
    one.ready, model = True, one.model.params
    knows(one, _0=neighbour([], answer), _2=neighbour([], answer))
    await one.lock.acquire()
    earlier = asyncio.ensure_future(one.average(0, model, ABOUT._replace(worker=0)))
    await asyncio.sleep(0)
    own = asyncio.ensure_future(one._exchange(model, 0, 0.0))
    await asyncio.sleep(0)
    one.lock.release()
    assert await asyncio.wait_for(one.average(0, model, ABOUT), 5) is None, "it is to ask again"
    assert (await earlier)[1] == 1
    answer.set_result((model, 7))
    await own
    assert one.stamp == 7
    assert (await one.average(7, model, ABOUT))[1] == 8


@story
async def test_a_worker_that_rejoins_waits_for_a_model(lonely):
    one = lonely(1)
    one.restarted = True
    with pytest.raises(peer.Restarted):
        await one.average(0, one.model.params, ABOUT)
    with pytest.raises(peer.Restarted):
        await one.look()
    taking = asyncio.ensure_future(one._take_over())
    assert await is_held(taking), "no neighbour is there"

    async def away():
        raise Dead

    async def look():
        return jax.tree.map(lambda leaf: leaf + 1, one.model.params), 14

    knows(one, _2=Named(look=away), _0=Named(look=look))
    await taking
    assert (one.stamp, one.next, one.read) == (14, 20, 14)
    np.testing.assert_array_equal(flat(one.model.params), flat(lonely(1).model.params) + 1)
    with pytest.raises(
        TimeoutError,
        match=r"worker 1 was restarted, but no neighbour had a model to continue from for 0\.01 s",
    ):
        await lonely(1, patience=0.01)._take_over()


@story
async def test_a_partner_averages_with_a_stamp_above_both_once_it_has_begun(lonely):
    one = lonely(1)
    model = one.model.params
    other = jax.tree.map(lambda leaf: leaf + 2, model)
    assert await one.average(0, other, ABOUT) is None, "its first gradient is of its own start"
    one.ready = True
    for own, theirs, stamp in ((0, 0, 1), (1, 7, 8), (9, 3, 10)):
        one.stamp = own
        mean, found = await one.average(theirs, other, ABOUT)
        assert one.stamp == found == stamp
    np.testing.assert_allclose(flat(mean), flat(model) + 2 - 0.25, rtol=1e-5)
    assert [each.stamp for each in (await one.report()).exchanges] == [1, 8, 10]
    assert (await one.report()).exchanges == []
    assert (await one.look())[1] == 10


def actor(of: peer.Peer) -> Named:
    """Returns the actor as its neighbours call it."""

    def average(*given):
        loop = asyncio.get_running_loop()
        return SimpleNamespace(
            future=lambda: asyncio.run_coroutine_threadsafe(of.average(*given), loop)
        )

    return Named(average=average)


@pytest.mark.parametrize("dead", [(), (2,), (1, 2)])
@story
async def test_peers_average_in_one_global_order(lonely, dead):
    """Killed workers are left out until they call again; a worker without partners gives itself the
    next stamp. Models are stored at the stamps of records, before later updates.
    """
    peers, asked = [lonely(n) for n in range(N)], []
    actors = [neighbour(asked, Dead()) if n in dead else actor(one) for n, one in enumerate(peers)]
    there = [n for n in range(N) if n not in dead]
    running = [
        asyncio.ensure_future(peers[n].run({m: actors[m] for m in range(N) if m != n}, 3, 1000.0))
        for n in there
    ]
    while sum(len(one.exchanges) for one in peers) < 45:
        await asyncio.sleep(0.01)
    await asyncio.gather(*(peers[n].stop() for n in there), *running)
    reports = [await one.report() for one in peers]
    order = sorted((e for each in reports for e in each.exchanges), key=lambda each: each.stamp)
    updates = {
        name: np.array([getattr(each, name) for each in order])
        for name in ("stamp", "worker", "partner", "draw", "computed", "at")
    }
    for n, each in enumerate(pair_loop(updates)):
        np.testing.assert_allclose(flat(peers[n].model.params), each, rtol=1e-4, atol=1e-6)
        draws = updates["draw"][updates["worker"] == n]
        np.testing.assert_array_equal(draws, np.arange(3, 3 + len(draws)))
        for stamp, model in reports[n].records:
            before = pair_loop(updates, np.sum(updates["stamp"] <= stamp))
            np.testing.assert_allclose(flat(model), before[n], rtol=1e-4, atol=1e-6)
    assert [stamp for stamp, _ in reports[0].records][:2] == [10, 20]
    assert ((updates["at"] >= 1000) & (updates["at"] < 1030) & (updates["computed"] > 0)).all()
    assert len(asked) <= len(there) * len(dead), "each asks each of them once"
    for n in dead:
        await peers[0].average(0, peers[0].model.params, ABOUT._replace(worker=n))
        assert n in peers[0].there


# --- The driver of AD-PSGD.


def test_the_last_message_is_not_lost():
    """The run reaches its number of updates while the answer of one worker, with an exchange that
    it reports once, is still in flight.
    """

    def worker(number: int) -> Named:
        exchanges = [
            peer.Exchange(stamp, number, 1 - number, 0, 0.0, 0.0, 0.0)
            for stamp in (1 + number, 3 + number)
        ]
        nothing = dict.fromkeys(("compile", "stop"), Answer)
        run, look = lambda *_: Answer(late=True), lambda: Answer((number, 4))
        return Named(
            **nothing,
            run=run,
            look=look,
            report=lambda: Answer(peer.Report([exchanges.pop(0)], [], True), late=number == 1),
        )

    run = gossip._Run(NO_RAY, "gossip", [worker(0), worker(1)], topologies.ring(2), 1, 5.0)
    assert run.wait_for_updates() == {0: (0, 4), 1: (1, 4)}
    assert sorted(each.stamp for each in run.exchanges) == [1, 2, 3, 4]


# --- Invalid arguments.


RUN = partial(on_ray.run, algorithms.asynchronous_sgd(STEP))
PAIRS = partial(on_ray.asynchronous_gossip_sgd, optimizer=STEP)
REFUSED = [
    (on_ray.run, {"method": BOUNDED[2]._replace(update=BOUNDED[3].update)}, "no asynchronous serv"),
    (on_ray.run, {"method": algorithms.sgd(STEP)}, "run: .* has no asynchronous server; expected"),
    (
        on_ray.run,
        {"method": algorithms.asynchronous_sgd(STEP, bound=1)},
        "bound = 1 with 3 workers",
    ),
    (on_ray.run, {"method": server_method(timeouts=2.0)}, "interrupted; expected timeouts=None"),
    (
        on_ray.run,
        {"method": algorithms.asynchronous_sgd(STEP, algorithms.delays.constant(2))},
        "has delays, .* expected delays=None",
    ),
    (
        on_ray.run,
        {"method": server_method(local=LocalRuns(STEP, [2, 4]))},
        "local runs: 2 numbers for 3 workers",
    ),
    (RUN, {"patience": 0.0}, "patience"),
    (partial(on_ray.minibatch_sgd, optimizer=STEP), {"checkpoint_seconds": -1.0}, "checkpoint_sec"),
    (PAIRS, {"topology": topologies.ring(4)}, "4 nodes .* problem has 3"),
    (PAIRS, {"topology": topologies.one_peer_exponential(4)}, "schedule"),
    (RUN, {}, r"Ray is not installed; .*'dsgd\[ray\]'"),
]


@pytest.mark.parametrize(("call", "given", "words"), REFUSED)
def test_invalid_arguments_are_refused_before_a_process_starts(call, given, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=words):
        call(problem=problem(), steps=5, key=KEY, **given)


# --- Measurements as a cluster.


def test_a_measured_cluster_has_each_workers_seconds_and_the_servers_port():
    worker, ones = np.arange(300) % 3, np.ones(300)
    updates = {
        "worker": worker,
        "computed": (1 + worker) * np.random.default_rng(0).uniform(0.9, 1.1, 300),
        "round_trip": np.where(np.arange(300) < 3, np.nan, 0.25),
        "busy": 0.125 * ones,
    }
    trained = on_ray.Trained((), {}, updates, 3, 64)
    cluster = on_ray.measured_cluster(trained)
    assert (cluster.latency, cluster.convention) == (0.125, "pipelined")
    this = dsgd.Round(0, 3, jax.random.key(0), dsgd.Now(cluster))
    draws = [
        cluster.seconds(this._replace(key=key), np.arange(3)) for key in jax.random.split(KEY, 40)
    ]
    np.testing.assert_allclose(np.mean(draws, axis=0), [1, 2, 3], rtol=0.05)
    for bits in (None, 32):
        sending = on_ray.measured_cluster(trained, bits).sending(this, np.arange(1), bits or 64)
        assert sending[0] == 0.125
    with pytest.raises(ValueError, match="no gradient of worker 3"):
        on_ray.measured_cluster(trained._replace(workers=4))


# --- Records of servers and workers, combined.


def update(
    step: int, worker: int, version: int, at: float, draw: int = 0, read: tuple[int, ...] = (0, 0)
) -> server.Update:
    """Returns an update of a server that makes a step with every second arrival, to which 3
    messages belong.
    """
    row = (step, worker, version, read, draw, 0.5 * worker, 0.25)
    steps, messages = (step + 1) // 2, 3 * (step + 1)
    return server.Update(*row, steps - (version + 1) // 2, steps, messages, at, 0.125)


def put_together(P: int, parts, **given) -> on_ray.Trained:
    return with_servers._combine("a method", problem(), settings(**given), params(), parts)


def test_the_history_has_the_last_update_of_each_record():
    """One gradient of a worker that was killed is missing."""
    taken = [(step, worker) for step in range(5) for worker in range(N) if (step, worker) != (1, 2)]
    rows = [update(step, worker, step, at=1.0 + step, read=(step,)) for step, worker in taken]
    records = [shift_params(0.1 * i) for i in range(4)]
    parts = [(rows, records, records[-1])]
    found = put_together(1, parts, steps=5, record_every=2, together=True)
    assert_columns(
        found.history,
        step=[0, 2, 4, 5],
        bits=32 * D * np.array([0, 6, 12, 15]) / N,
        clock=[0.0, 2.0, 4.0, 5.0],
        staleness=[np.nan, 0.0, 0.0, 0.0],
        delay=[np.nan, 0.0, 0.0, 0.0],
        server_steps=[np.nan, 1.0, 2.0, 2.0],
        worker=[np.nan, 1.0, 2.0, 2.0],
    )
    assert found.bits == 32 * D
    assert "read" not in found.updates
    assert_columns(found.updates, worker=[worker for _, worker in taken])


def test_with_several_servers_staleness_is_that_of_the_oldest_part():
    """One server has one update more than the other."""
    one = [
        update(0, 0, 0, 1.0),
        update(1, 1, 0, 2.5, 3),
        update(2, 0, 1, 3.0, read=(1, 0)),
        update(3, 1, 1, 9.0),
    ]
    other = [update(0, 1, 0, 1.5, 3), update(1, 0, 0, 2.0), update(2, 2, 0, 3.5, 4, read=(0, 2))]
    parts = []
    for updates in (one, other):
        records = [np.full(-(-D // 2), 0.1 * i, np.float32) for i in range(len(updates) + 1)]
        parts.append((updates, records, records[-1]))
    found = put_together(2, parts, steps=3, record_every=1)
    assert_columns(
        found.history,
        step=[0, 1, 2, 3],
        staleness=[np.nan, 0, 1, 2],
        clock=[0.0, 1.5, 2.5, 3.5],
        worker=[np.nan, 0, 1, 0],
        bits=3 * 32 * D * np.arange(4) / N,
    )
    assert_columns(
        found.updates,
        staleness=[[0, 0], [1, 1], [1, 2]],
        worker=[[0, 1], [1, 0], [0, 2]],
        draw=[[0, 3], [3, 0], [0, 4]],
        computed=0.5 * found.updates["worker"],
    )
    np.testing.assert_array_equal(found.updates["read"][2], [[1, 0], [0, 2]])


def test_gossip_is_put_in_the_order_of_stamps():
    """Three workers, records at every second stamp; one worker has ended at the last of them."""
    run = gossip._Run(None, "gossip", [None] * 3, topologies.ring(3), 5, 1.0)
    # stamp, worker, partner, seconds
    exchanges = [(2, 1, 0, 2.5), (1, 0, 1, 1.0), (4, 2, 0, 2.0), (2, 0, 2, 3.0), (5, 1, 2, 4.0)]
    run.exchanges = [peer.Exchange(*three, 7, 0.5, 0.25, at) for *three, at in exchanges]
    run.records = {
        2: {0: shift_params(1), 1: shift_params(2), 2: shift_params(6)},
        4: {1: shift_params(3), 2: shift_params(5)},
    }
    last = {0: (shift_params(4), 4), 1: (shift_params(2), 5), 2: (shift_params(0), 5)}
    found = gossip._combine("gossip", problem(), params(), run, last, 2)
    assert_columns(
        found.updates,
        worker=[0, 1, 0, 2, 1],
        partner=[1, 0, 2, 0, 2],
        clock=[1.0, 2.5, 3.0, 3.0, 4.0],
    )
    assert_columns(
        found.history,
        step=[0, 3, 4, 5],
        bits=4 * 32 * D * np.array([0, 3, 4, 5]) / N,
        clock=[0.0, 3.0, 3.0, 4.0],
        worker=[np.nan, 0, 2, 1],
        staleness=[np.nan, 1, 3, 2],
    )
    spread = [np.var(each) * D for each in ([0, 0, 0], [1, 2, 6], [4, 3, 5], [4, 2, 0])]
    np.testing.assert_allclose(found.history["consensus"], spread, rtol=1e-4)
    np.testing.assert_allclose(flat(found.params), flat(params()) + 2, rtol=1e-5)


def test_a_workers_messages_have_the_versions_of_all_parts_it_read(monkeypatch):
    """With two servers, its stream continues after the largest number of draws that a server knows.
    Only updates known to both servers count for a message.
    """
    monkeypatch.setattr(on_worker, "require_ray", lambda: NO_RAY)
    asked, parts = {0: [], 1: []}, on_worker.split(params(), 2)

    def serve(
        p: int, draw: int, version: int, server_incarnation: int, seconds: float, last: int
    ) -> Named:
        def reply(seconds=0.0, drawn=0):
            now, done = version + len(asked[p]), len(asked[p]) >= last
            return server.Reply(parts[p], now, server_incarnation, drawn, seconds, done)

        def push(part, about):
            asked[p].append((part, about))
            return reply(seconds)

        return Named(pull=lambda worker, incarnation: reply(drawn=draw), push=push)

    one = on_worker.Worker(1, with_servers.tasks(problem(), KEY, params(), None)(1))
    assert one.run([serve(0, 4, 10, 2, -5.0, 2), serve(1, 6, 20, 3, -7.0, 3)], 8) == 3
    slope, _ = one.gradients(params(), 6)
    for p, part in enumerate(on_worker.split(slope, 2)):
        np.testing.assert_array_equal(asked[p][0][0], part)
        abouts = [about for _, about in asked[p]]
        round_trips = [about.round_trip for about in abouts]
        assert math.isnan(round_trips[0])
        assert all(5.0 < round_trip < 6.0 for round_trip in round_trips[1:])
        for i, about in enumerate(abouts):
            versions = 10 + i, 20 + i
            assert about[:6] == (1, 8, versions[p], versions, 2 + p, 6 + i)
