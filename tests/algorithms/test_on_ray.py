"""Real asynchrony: what the machines did, in the order in which they did it, computed again by
loops; and processes that are killed.

The machine decides which gradient is taken when. Each run is compared with the recursion on its own
order.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
import sys
import tempfile
from concurrent.futures import Future
from functools import cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import algorithms
import dsgd
import topologies
from algorithms import on_ray
from algorithms.asynchronous.on_ray import gossip, peer, server, with_servers
from algorithms.asynchronous.on_ray import worker as on_worker
from algorithms.asynchronous.on_ray.server import Pushed
from dsgd import problems
from theory_checks.recursions.compressed import cut, join

N, GAMMA = 3, 0.3
KEY = jax.random.key(3)
STEP = optax.sgd(GAMMA)


@cache
def problem() -> dsgd.Problem:
    return problems.logistic_regression("breast-cancer", N, "blocks", batch_size=4, seed=1)


@pytest.fixture(scope="module")
def ray():
    """One Ray for the module, in a folder of its own: names of sockets are short."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    # Each of its some twenty processes imports jsonschema, which makes a parser of addresses for a
    # second where Jupyter has brought one.
    Path(folder, "rfc3987_syntax.py").write_text("raise ImportError('not needed')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
        try:
            with on_ray.session(N + 3) as module:
                yield module
        finally:
            shutil.rmtree(folder, ignore_errors=True)


# --- The oracles.


@cache
def _slope():
    each = problem()
    stream = jax.random.fold_in(jax.random.split(KEY)[1], np.uint32(2**32 - 1))

    def of(worker, draw, x):
        mine = jax.tree.map(lambda leaf: leaf[worker], each.data)
        batch = each.sample(jax.random.fold_in(jax.random.fold_in(stream, draw), worker), mine)
        return ravel_pytree(jax.grad(each.loss)(unravel(x), batch))[0]

    first, unravel = ravel_pytree(each.init(jax.random.split(KEY)[0]))
    return np.asarray(first, float), jax.jit(of)


def start() -> np.ndarray:
    return _slope()[0]


def g(worker: int, draw: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(_slope()[1](worker, draw, x.astype(np.float32)), float)


def flat(params) -> np.ndarray:
    return np.asarray(ravel_pytree(params)[0], float)


def by_servers(updates, P: int, aware: bool) -> np.ndarray:
    """Each server's steps in its own order, with the parts that each gradient was computed at,
    `[T, d]` to the last model.
    """
    rows = {
        name: values.reshape(len(values), P) for name, values in updates.items() if name != "read"
    }
    own = np.arange(len(rows["staleness"]))[:, None] - rows["staleness"]
    reads = updates["read"] if P > 1 else own[:, :, None]
    np.testing.assert_array_equal(np.diagonal(reads, axis1=1, axis2=2), own)
    parts = [[part] for part in cut(start(), P)]
    gradients = {}

    def one(p):
        """The next step of a server, if what it is computed at is there."""
        t = len(parts[p]) - 1
        if t == len(rows["worker"]):
            return False
        who = rows["worker"][t, p], rows["draw"][t, p]
        if any(version >= len(parts[q]) for q, version in enumerate(reads[t, p])):
            return False
        if who not in gradients:
            gradients[who] = cut(
                g(
                    *who,
                    join(np.stack([parts[q][v] for q, v in enumerate(reads[t, p])]), len(start())),
                ),
                P,
            )
        factor = max(1, rows["staleness"][t, p]) if aware else 1
        parts[p].append(parts[p][-1] - GAMMA * gradients[who][p] / factor)
        return True

    while any(one(p) for p in range(P)):
        pass
    assert [len(each) - 1 for each in parts] == [len(rows["worker"])] * P, (
        "an order in which gradients follow what they are of"
    )
    return join(np.stack([each[-1] for each in parts]), len(start()))


def slow(worker: int, draw: int) -> float:
    """Worker 0 is slower."""
    return 0.03 if worker == 0 else 0.005


def assert_history(trained, steps) -> None:
    """As `dsgd.run` would have it."""
    history = trained.history
    assert history["step"].tolist() == steps
    assert all(len(values) == len(steps) for values in history.values())
    assert {
        "loss",
        "grad_sqnorm",
        "consensus",
        "bits",
        "clock",
        "staleness",
        "worker",
        "step",
    } <= set(history)
    assert history["clock"][0] == 0
    assert (np.diff(history["clock"]) >= 0).all()
    assert history["loss"][-1] < history["loss"][0]
    exact = dsgd.run(algorithms.sgd(STEP), problem(), steps=1, key=KEY, mesh=1).history
    np.testing.assert_allclose(history["loss"][0], exact["loss"][0], rtol=1e-6)
    np.testing.assert_allclose(history["grad_sqnorm"][0], exact["grad_sqnorm"][0], rtol=1e-5)


# --- Real runs.


@pytest.mark.long
def test_two_servers_make_the_steps_of_their_orders(ray):
    run = {"steps": 40, "key": KEY, "record_every": 15, "delay": slow, "patience": 300.0}
    trained = on_ray.asynchronous_sgd(problem(), STEP, servers=2, staleness_aware=True, **run)
    assert_history(trained, [0, 15, 30, 40])
    assert trained.updates["worker"].shape == (40, 2)
    assert trained.updates["staleness"].max() > 1
    np.testing.assert_allclose(
        flat(trained.params), by_servers(trained.updates, 2, aware=True), rtol=1e-4, atol=1e-6
    )
    bits = 32 * len(start())
    np.testing.assert_allclose(trained.history["bits"], 2 * bits * np.array([0, 15, 30, 40]) / N)
    assert not ray.util.list_named_actors()


def kill_server(pattern: str) -> None:
    """As a machine that fails would: SIGKILL to the processes of that name, beside this one."""
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


def pace(folder: str, worker: int, draw: int, died: int) -> float:
    """Seconds of a draw: however long worker 1, which died at that draw, takes to be there again,
    the run has not come to its end.
    """
    back = Path(folder, "back")
    if worker == 1 and draw > died:
        back.touch()
    return 0.02 if draw < 50 or back.exists() else 1.0


def deadly(folder: str, worker: int, draw: int) -> float:
    """Worker 1 kills itself once, and later worker 2 the server."""
    for who, when, kill in (
        (1, 4, lambda: os.kill(os.getpid(), signal.SIGKILL)),
        (2, 12, lambda: kill_server("ray::Server")),
    ):
        marker = Path(folder, str(who))
        if (worker, draw) == (who, when) and not marker.exists():
            marker.touch()
            kill()
    return pace(folder, worker, draw, died=4)


@pytest.mark.long
def test_who_dies_is_left_out_and_comes_back_and_a_server_goes_on(ray, tmp_path):
    folder = tmp_path / "run"
    marks = tmp_path / "marks"
    marks.mkdir()
    run = {
        "key": KEY,
        "record_every": 50,
        "bound": 3,
        "checkpoint": folder,
        "checkpoint_seconds": 0.0,
        "patience": 300.0,
    }
    trained = on_ray.asynchronous_sgd(
        problem(), STEP, steps=400, delay=partial(deadly, str(marks)), **run | {"record_every": 5}
    )
    assert {path.name for path in marks.iterdir()} == {"1", "2", "back"}, (
        "both were killed, and worker 1 came back"
    )
    updates = trained.updates
    assert updates["staleness"].max() <= 3
    mine = updates["draw"][updates["worker"] == 1]
    assert mine.max() > 6, "worker 1 is there again"
    assert len(updates["worker"]) == 400
    assert (np.diff(updates["clock"]) > 0).all(), "the seconds of the server's absence count"
    np.testing.assert_allclose(
        flat(trained.params), by_servers(updates, 1, aware=False), rtol=1e-4, atol=1e-6
    )
    again = on_ray.asynchronous_sgd(problem(), STEP, steps=400, **run | {"record_every": 5})
    np.testing.assert_array_equal(flat(again.params), flat(trained.params))
    np.testing.assert_array_equal(again.updates["clock"], updates["clock"])
    with pytest.raises(
        ValueError, match=r"contains another run \(step size = 0.3.* there, 0.2.* here\)"
    ):
        on_ray.asynchronous_sgd(problem(), optax.sgd(0.2), steps=400, **run | {"record_every": 5})


def by_pairs(updates) -> np.ndarray:
    """The recursion of AD-PSGD on an order of exchanges: the models in the end, `[N, d]`."""
    X = np.tile(start(), (N, 1))
    read = X.copy()
    for i, j, draw in zip(*(updates[name] for name in ("worker", "partner", "draw")), strict=True):
        slope = g(i, draw, read[i])
        X[[i, j]] = (X[i] + X[j]) / 2
        X[i] -= GAMMA * slope
        read[i] = X[i]
    return X


@pytest.mark.long
def test_pairs_average_in_an_order_that_all_have_seen(ray):
    graph = topologies.ring(N)
    trained = on_ray.asynchronous_gossip_sgd(
        problem(), STEP, graph, steps=60, key=KEY, record_every=9, delay=slow, patience=300.0
    )
    assert_history(trained, trained.history["step"].tolist())
    assert 60 <= trained.history["step"][-1] == len(trained.updates["worker"])
    assert set(trained.updates["partner"]) == set(range(N))
    assert (trained.updates["worker"] != trained.updates["partner"]).all()
    for records in (len(trained.history["step"]) - 1, 2):
        models = by_pairs(
            {
                name: values[: trained.history["step"][records]]
                for name, values in trained.updates.items()
            }
        )
        apart = np.mean(np.sum((models - models.mean(axis=0)) ** 2, axis=1))
        np.testing.assert_allclose(
            trained.history["consensus"][records], apart, rtol=1e-3, atol=1e-9
        )
    np.testing.assert_allclose(
        flat(trained.params), models_mean(trained.updates), rtol=1e-4, atol=1e-6
    )


def models_mean(updates) -> np.ndarray:
    return by_pairs(updates).mean(axis=0)


def dies_once(folder: str, worker: int, draw: int) -> float:
    marker = Path(folder, "gone")
    if (worker, draw) == (1, 5) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return pace(folder, worker, draw, died=5)


@pytest.mark.long
def test_neighbours_go_on_without_one_that_dies_and_it_comes_back(ray, tmp_path):
    run = {"delay": partial(dies_once, str(tmp_path)), "record_every": 60, "patience": 300.0}
    trained = on_ray.asynchronous_gossip_sgd(
        problem(), STEP, topologies.ring(N), steps=500, key=KEY, **run
    )
    assert (tmp_path / "gone").exists()
    assert trained.updates["draw"][trained.updates["worker"] == 1].max() > 8, (
        "worker 1 is there again"
    )
    assert trained.history["loss"][-1] < 0.5 * trained.history["loss"][0]


# --- A server on its own, in this process: whose gradients it takes when.

PART = {"w": np.array([1.0, -2.0], np.float32)}


def rules(**options) -> server.Rules:
    given = {
        "steps": 100,
        "record_every": 1,
        "together": False,
        "bound": None,
        "staleness_aware": False,
    }
    return server.Rules(
        STEP, **given | {"folder": None, "about": {"method": "test"}, "seconds": 0.0} | options
    )


@pytest.fixture
def alone(monkeypatch):
    """Makes servers that are no actors."""
    monkeypatch.setattr(server, "reconstructed", lambda: False)
    return lambda workers=2, **options: server.Server(PART, rules(**options), workers)


def gradient(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(2, value, np.float32)}


async def pushed(
    to: server.Server, worker: int, reply, life: int = 0, value: float = 1.0
) -> server.Reply:
    """A gradient at the model of that reply; None: the first one."""
    version, era = (0, 0) if reply is None else (reply.version, reply.era)
    return await to.push(
        gradient(value), Pushed(worker, life, version, (version,), era, 0, 0.0, math.nan)
    )


def story(tell):
    """A test that runs this coroutine function, for at most 30 s."""

    @wraps(tell)
    def test(**fixtures):
        asyncio.run(asyncio.wait_for(tell(**fixtures), 30))

    return test


async def held(waiting) -> bool:
    """Whether it waits, when all others have had their turns."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not waiting.done()


@story
async def test_a_bounded_server_holds_a_gradient_that_would_make_another_too_old(alone):
    to = alone(bound=2)
    fast = await pushed(to, 0, await pushed(to, 0, None))
    third = asyncio.ensure_future(pushed(to, 0, fast))
    assert await held(third), "worker 1's gradient of model 0 is to be update 2"
    late = await pushed(to, 1, None)
    assert (late.version, (await third).version) == (4, 4)
    assert [(update.worker, update.step - update.version) for update in to.updates] == [
        (0, 0),
        (0, 0),
        (1, 2),
        (0, 1),
    ]
    fast = await pushed(to, 0, await pushed(to, 0, await third))
    stuck = asyncio.ensure_future(pushed(to, 0, fast))
    assert await held(stuck)
    await to.news({0: 0, 1: 1})
    assert (await stuck).version == 7, "worker 1 has died, and is not waited for"


@story
async def test_held_gradients_are_answered_and_not_taken_when_the_server_is_done(alone):
    to = alone(bound=2, steps=3)
    fast = await pushed(to, 0, await pushed(to, 0, None))
    third = asyncio.ensure_future(pushed(to, 0, fast))
    assert await held(third)
    assert (await pushed(to, 1, None)).done
    assert ((await third).version, (await third).done) == (3, True)
    assert [update.worker for update in to.updates] == [0, 0, 1]
    assert not to.waiting


@story
async def test_only_a_gradient_of_the_model_and_the_life_that_read_last_is_taken(alone):
    to = alone(bound=3)
    one = await pushed(to, 0, None)
    assert (await pushed(to, 0, None)).version == 1, "of the version before"
    assert (await pushed(to, 0, one._replace(version=2))).version == 1
    await to.news({0: 0, 1: 1})
    assert (await pushed(to, 1, None)).version == 1, "of a worker that has died"
    back = await to.pull(1, 1)
    assert (back.version, back.draw) == (1, 0)
    assert (await pushed(to, 1, back, life=1)).version == 2
    assert (await pushed(to, 1, back)).version == 2, "its first life again"
    assert (await to.pull(1, 1)).draw == 1, "batches that it has drawn are not drawn again"


@story
async def test_a_synchronous_server_takes_the_mean_of_all_workers_that_are_there(alone):
    to = alone(3, together=True)
    first = [
        asyncio.ensure_future(pushed(to, worker, None, value=float(worker))) for worker in (2, 0)
    ]
    assert await held(first[0])
    reply = await pushed(to, 1, None, value=1.0)
    assert (reply.version, [each.done() for each in first]) == (1, [False, False])
    np.testing.assert_allclose(reply.part["w"], PART["w"] - GAMMA * 1.0)
    two = [asyncio.ensure_future(pushed(to, worker, reply, value=3.0)) for worker in (0, 2)]
    assert await held(two[0])
    await to.news({0: 0, 1: 1, 2: 0})
    np.testing.assert_allclose((await two[0]).part["w"], PART["w"] - GAMMA * 4.0, rtol=1e-6)
    back, reply = await to.pull(1, 1), await two[0]
    await to.news({0: 0, 1: 1, 2: 1})
    waiting = asyncio.ensure_future(pushed(to, 0, reply))
    assert await held(waiting), "worker 1 is there again, though another has died"
    assert (await pushed(to, 1, back, life=1)).version == (await waiting).version == 3


@story
async def test_a_gradient_that_a_dead_process_has_left_is_not_taken_when_its_worker_comes_back(
    alone,
):
    to = alone(together=True)
    left = asyncio.ensure_future(pushed(to, 1, None))
    assert await held(left)
    back = await to.pull(1, 1)
    waiting = asyncio.ensure_future(pushed(to, 0, None))
    assert await held(waiting)
    assert (await pushed(to, 1, back, life=1)).version == 1


@story
async def test_a_server_goes_on_from_its_checkpoint_and_refuses_what_was_computed_before(
    alone, tmp_path, monkeypatch
):
    first = alone(folder=str(tmp_path))
    await first.restore()
    await first.begin()
    reply = await pushed(first, 1, await pushed(first, 0, None))
    reply = await pushed(first, 1, reply)
    first.checkpoint.__exit__()
    second = alone(folder=str(tmp_path))
    assert tuple(await second.restore()) == (2, 1, True)
    await second.begin()
    np.testing.assert_array_equal(second.model.params["w"], reply.part["w"])
    jax.tree.map(np.testing.assert_array_equal, second.updates, first.updates)
    assert (await pushed(second, 1, reply)).version == 2, "of the era before"
    back = await second.pull(1, 0)
    assert (back.version, back.era, back.draw) == (2, 1, 1), (
        "batches that were drawn before are not drawn again"
    )
    assert (await pushed(second, 1, reply)).version == 2, (
        "of the era before, though its version has been read again"
    )
    assert (await pushed(second, 1, back)).version == 3
    assert second.updates[-1].at > second.updates[-2].at
    assert len((await second.history())[1]) == 4
    second.checkpoint.__exit__()
    monkeypatch.setattr(server, "reconstructed", lambda: True)
    for era in (2, 3):  # it dies again before it has made an update
        again = server.Server(PART, first.rules, 2)
        assert (await again.news({})).era == era
        again.checkpoint.__exit__()


@pytest.mark.parametrize("aware", [False, True])
def test_a_step_with_several_gradients_is_as_stale_as_the_oldest(alone, aware):
    to = alone(3, staleness_aware=aware)
    to.version = 5
    abouts = [
        Pushed(worker, 0, version, (version,), 0, 7 + worker, 0.5, 0.25)
        for worker, version in enumerate((4, 1, 3))
    ]
    to._update(abouts, [gradient(value) for value in (1.0, 2.0, 6.0)], to.zero)
    np.testing.assert_allclose(
        to.model.params["w"], PART["w"] - GAMMA * 3.0 / (4 if aware else 1), rtol=1e-6
    )
    assert to.version == 6
    rows = [
        (each.step, each.worker, each.version, each.read, each.draw, each.computed, each.trip)
        for each in to.updates
    ]
    assert rows == [
        (5, 0, 4, (4,), 7, 0.5, 0.25),
        (5, 1, 1, (1,), 8, 0.5, 0.25),
        (5, 2, 3, (3,), 9, 0.5, 0.25),
    ]
    assert len({each.at for each in to.updates}) == 1
    assert sum(each.busy for each in to.updates) == pytest.approx(to.updates[0].at)


@story
async def test_a_server_keeps_records_until_it_is_done_or_not_finite(alone):
    to, reply = alone(1, record_every=3, steps=7), None
    for version in range(1, 8):
        reply = await pushed(to, 0, reply)
        assert (reply.version, reply.done) == (version, version == 7)
    assert (await pushed(to, 0, reply)).version == 7, "it takes no more"
    np.testing.assert_allclose(
        [record["w"][0] for record in to.records],
        PART["w"][0] - GAMMA * np.array([0, 3, 6, 7]),
        rtol=1e-5,
    )
    broken = alone(1, record_every=2)
    reply = await pushed(broken, 0, None, value=math.nan)
    assert not reply.done
    assert (await pushed(broken, 0, reply)).done
    assert not (await broken.news({})).finite


# --- A worker of AD-PSGD on its own, in this process.


class Named:
    """Of an actor, what a peer calls: each member answers with what a function gives."""

    def __init__(self, **members) -> None:
        for name, answer in members.items():
            setattr(self, name, SimpleNamespace(remote=answer))


class Dead(Exception):
    """Stands for Ray's RayActorError."""


class Answer:
    """A future of Ray's, which is there when it is asked for; before that, if it is not late."""

    def __init__(self, value=None, late: bool = False) -> None:
        self.value, self.late = value, late


def found(answers, timeout=None):
    """Stands for `ray.get`; what is no future is itself."""
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


@pytest.fixture
def lonely(monkeypatch):
    """Makes workers that are no actors; their slope is 1 everywhere."""
    monkeypatch.setattr(peer, "reconstructed", lambda: False)
    monkeypatch.setattr(peer, "need_ray", lambda: NO_RAY)
    first = jax.tree.map(np.asarray, problem().init(KEY))
    task = with_servers.tasks(problem(), KEY, first, None)
    return lambda worker, patience=30.0: peer.Peer(worker, task(worker), STEP, first, 10, patience)


def neighbour(asked: list, answer) -> Named:
    """A peer that notes what it is asked, and gives this answer: a result, an exception, or a
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
    """Gives a peer its neighbours, `_2=` that of number 2."""
    one.peers = {int(name[1:]): other for name, other in peers.items()}
    one.there = set(one.peers)


ABOUT = peer.Exchange(0, 2, 1, 4, 0.5, 0.25, 0.0, 3)


@story
async def test_no_two_workers_of_a_pair_wait_for_each_other(lonely):
    """Worker 2 asks while worker 1 is about to ask it, and worker 0, which was first, has not yet
    been answered.
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
async def test_a_worker_that_comes_back_waits_for_a_model_to_go_on_with(lonely):
    one = lonely(1)
    one.restarted = True
    with pytest.raises(peer.Restarted):
        await one.average(0, one.model.params, ABOUT)
    with pytest.raises(peer.Restarted):
        await one.look()
    taking = asyncio.ensure_future(one._take_over())
    assert await held(taking), "no neighbour is there"

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
    one.ready, stamps = True, []
    for own, theirs in ((0, 0), (1, 7), (9, 3)):
        one.stamp = own
        mean, stamp = await one.average(theirs, other, ABOUT)
        stamps.append(stamp)
        assert one.stamp == stamp
    assert stamps == [1, 8, 10]
    np.testing.assert_allclose(flat(mean), flat(model) + 2 - 0.25, rtol=1e-5)
    np.testing.assert_array_equal(flat(mean), flat(one.model.params))
    news = await one.news()
    assert [each.stamp for each in news.exchanges] == [1, 8, 10]
    assert all(each[1:6] == (2, 1, 4, 0.5, 0.25) and each.read == 3 for each in news.exchanges)
    assert (await one.news()).exchanges == []
    assert (await one.look())[1] == 10


@story
async def test_a_peer_that_asks_takes_over_the_stamp_and_steps_from_the_mean(lonely):
    one, asked = lonely(0), []
    model, slope = one.model.params, jax.tree.map(np.ones_like, one.model.params)
    middle = jax.tree.map(lambda leaf: leaf + 3, model)
    one.stamp, one.read, one.next = 4, 2, 10
    knows(one, _2=neighbour(asked, (middle, 15)))
    await one._exchange(slope, 6, 0.5)
    stamp, about = asked[0]
    assert (stamp, about[:5], about.read) == (4, (0, 0, 2, 6, 0.5), 2)
    assert math.isnan(about.trip)
    assert (one.stamp, one.read, one.next) == (15, 0, 20)
    np.testing.assert_allclose(flat(one.model.params), flat(model) + 3 - GAMMA, rtol=1e-5)
    assert [at for at, _ in one.records] == [10], "what it had before the exchange"
    np.testing.assert_array_equal(flat(one.records[0][1]), flat(model))
    await one._exchange(slope, 7, 0.5)
    assert (asked[1][0], asked[1][1].read) == (15, 0)
    assert asked[1][1].trip >= 0


@story
async def test_a_partner_that_has_died_is_left_out_until_it_asks(lonely):
    """Alone, a worker gives itself the next stamp."""
    one, asked = lonely(1), []
    slope, before = jax.tree.map(np.ones_like, one.model.params), flat(one.model.params)
    one.ready, one.stamp = True, 4
    knows(one, _0=neighbour(asked, peer.Restarted()), _2=neighbour(asked, Dead()))
    await one._exchange(slope, 2, 0.5)
    assert sorted(about.partner for _, about in asked) == [0, 2]
    assert [(each.stamp, each.worker, each.partner, each.draw) for each in one.exchanges] == [
        (5, 1, 1, 2)
    ]
    assert one.stamp == 5
    np.testing.assert_allclose(flat(one.model.params), before - GAMMA, rtol=1e-5)
    await one.average(0, one.model.params, ABOUT)
    assert one.there == {2}


def test_models_are_kept_at_the_stamps_of_records_before_what_comes_after(lonely):
    one = lonely(0)
    for stamp, kept in (
        (9, []),
        (10, []),
        (11, [10]),
        (31, [10, 20, 30]),
        (40, [10, 20, 30]),
        (41, [10, 20, 30, 40]),
    ):
        assert one._at(stamp) == one.stamp == stamp
        assert [at for at, _ in one.records] == kept


@pytest.mark.parametrize("restarted", [False, True])
@story
async def test_a_peer_computes_one_draw_after_the_other_until_it_is_stopped(lonely, restarted):
    """Its clock continues from the seconds of the run, and it begins with its own model or with a
    neighbour's.
    """
    one = lonely(1)
    slope, before = jax.tree.map(np.ones_like, one.model.params), flat(one.model.params)

    async def look():
        return jax.tree.map(lambda leaf: leaf + 1, one.model.params), 14

    def gradients(params, draw):
        one.stopped = draw == 6
        return slope, 0.25 * draw

    one.gradients, one.restarted = gradients, restarted
    one._rehearse = lambda: None
    await one.run({2: Named(look=look, average=neighbour([], Dead()).average.remote)}, 3, 1000.0)
    assert one.ready
    assert [(each.draw, each.computed) for each in one.exchanges] == [
        (3, 0.75),
        (4, 1.0),
        (5, 1.25),
    ]
    assert all(1000.0 <= each.at < 1030.0 for each in one.exchanges)
    np.testing.assert_allclose(flat(one.model.params), before + restarted - 3 * GAMMA, rtol=1e-5)


# --- The driver of AD-PSGD.


def test_what_is_heard_last_is_not_lost():
    """The run has its updates while one worker's answer, with an exchange that it tells once, is
    under way.
    """

    def worker(number: int) -> Named:
        exchanges = [
            peer.Exchange(stamp, number, 1 - number, 0, 0.0, 0.0, 0.0)
            for stamp in (1 + number, 3 + number)
        ]
        nothing = dict.fromkeys(("rehearse", "stop"), Answer)
        run, look = lambda *_: Answer(late=True), lambda: Answer((number, 4))
        return Named(
            **nothing,
            run=run,
            look=look,
            news=lambda: Answer(peer.News([exchanges.pop(0)], [], True), late=number == 1),
        )

    run = gossip._Run(NO_RAY, "gossip", [worker(0), worker(1)], topologies.ring(2), 1, 5.0)
    assert run.until_done() == {0: (0, 4), 1: (1, 4)}
    assert sorted(each.stamp for each in run.exchanges) == [1, 2, 3, 4]


def test_staleness_counts_from_the_model_that_was_read():
    """Worker 1 died after its update of stamp 2, and came back with a model of stamp 5: two updates
    were made since.
    """
    worker, read = np.array([0, 1, 0, 2, 0, 2, 0, 1, 1]), np.array([0] * 7 + [5, 0])
    assert gossip._staleness(worker, np.arange(1, 10), read).tolist() == [0, 1, 1, 3, 1, 1, 1, 2, 0]


# --- Refusals.


RUN = {"steps": 5, "key": KEY}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: on_ray.asynchronous_sgd(problem(), STEP, bound=1, **RUN),
            "bound = 1 with 3 workers; expected at least N - 1 = 2",
        ),
        (
            lambda: on_ray.asynchronous_sgd(problem(), STEP, patience=0.0, **RUN),
            "patience = 0; expected finite seconds > 0",
        ),
        (
            lambda: on_ray.minibatch_sgd(problem(), STEP, checkpoint_seconds=-1.0, **RUN),
            "checkpoint_seconds = -1",
        ),
        (
            lambda: on_ray.asynchronous_gossip_sgd(problem(), STEP, topologies.ring(4), **RUN),
            "the topology has 4 nodes but the problem has 3 workers",
        ),
        (
            lambda: on_ray.asynchronous_gossip_sgd(
                problem(), STEP, topologies.one_peer_exponential(4), **RUN
            ),
            "schedule",
        ),
        (
            lambda: on_ray.asynchronous_sgd(problem(), STEP, **RUN),
            r"Ray is not installed; expected the optional dependency: pip install 'dsgd\[ray\]'",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_a_process_starts(call, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=message):
        call()


# --- What was measured, as a cluster.


def test_a_measured_cluster_has_each_workers_seconds_and_the_servers_port():
    rng = np.random.default_rng(0)
    worker = np.arange(300) % 3
    updates = {
        "worker": worker,
        "staleness": np.zeros(300, int),
        "computed": (1 + worker) * rng.uniform(0.9, 1.1, 300),
        "trip": np.where(np.arange(300) < 3, np.nan, 0.25),
        "busy": np.full(300, 0.125),
    }
    trained = on_ray.Trained((), {}, updates, 3, 64)
    cluster = on_ray.measured_cluster(trained)
    assert (cluster.latency, cluster.convention) == (0.125, "pipelined")
    this = dsgd.Round(0, 3, jax.random.key(0), dsgd.Now(cluster))
    draws = np.array(
        [cluster.seconds(this._replace(key=key), np.arange(3)) for key in jax.random.split(KEY, 40)]
    )
    np.testing.assert_allclose(draws.mean(axis=0), [1, 2, 3], rtol=0.05)
    assert cluster.sending(this, np.arange(1), 64)[0] == 0.125
    assert on_ray.measured_cluster(trained, bits=32).sending(this, np.arange(1), 32)[0] == 0.125
    with pytest.raises(ValueError, match="no gradient of worker 3 was taken"):
        on_ray.measured_cluster(trained._replace(workers=4))


# --- What servers and workers have noted, put together.


def update(
    step: int, worker: int, version: int, at: float, draw: int = 0, read: tuple[int, ...] = (0, 0)
) -> server.Update:
    return server.Update(step, worker, version, read, draw, 0.5 * worker, 0.25, at, 0.125)


def models(count: int, size: int) -> list[np.ndarray]:
    """Parts `[size]` of the records, which differ."""
    return [np.full(size, 0.1 * i, np.float32) for i in range(count)]


def put_together(
    P: int, parts, steps: int, record_every: int, is_together: bool = False
) -> on_ray.Trained:
    given = rules(steps=steps, record_every=record_every, together=is_together)
    return with_servers._trained(
        "a method", problem(), given, with_servers.first_params(problem(), KEY), parts
    )


def test_bits_count_gradients_and_not_steps():
    """A step with the mean of N gradients is N messages up and N down; N - 1 if a worker has
    died.
    """
    d, params = (
        flat(with_servers.first_params(problem(), KEY)).size,
        with_servers.first_params(problem(), KEY),
    )
    taken = [(step, worker) for step in range(5) for worker in range(N) if (step, worker) != (1, 2)]
    rows = [update(step, worker, step, at=1.0 + step, read=(step,)) for step, worker in taken]
    records = [jax.tree.map(lambda leaf, i=i: leaf + np.float32(0.1 * i), params) for i in range(4)]
    found = put_together(1, [(rows, records, records[-1], 0.0)], 5, 2, True)
    gradients = np.array([0, N + N - 1, 4 * N - 1, 5 * N - 1])
    np.testing.assert_array_equal(found.history["step"], [0, 2, 4, 5])
    np.testing.assert_array_equal(found.history["bits"], 2 * 32 * d * gradients / N)
    np.testing.assert_array_equal(found.history["clock"], [0.0, 2.0, 4.0, 5.0])
    np.testing.assert_array_equal(found.history["staleness"], [np.nan, 0.0, 0.0, 0.0])
    np.testing.assert_array_equal(found.history["worker"], [np.nan, 1.0, 2.0, 2.0])
    assert found.bits == 32 * d
    assert "read" not in found.updates
    np.testing.assert_array_equal(found.updates["worker"], [worker for _, worker in taken])


def test_of_several_servers_the_oldest_part_and_the_last_count():
    """One has seen an update more than the other."""
    size = -(-flat(with_servers.first_params(problem(), KEY)).size // 2)
    one = [
        update(0, 0, 0, 1.0),
        update(1, 1, 0, 2.5, 3),
        update(2, 0, 1, 3.0, read=(1, 0)),
        update(3, 1, 1, 9.0),
    ]
    other = [update(0, 1, 0, 1.5, 3), update(1, 0, 0, 2.0), update(2, 2, 0, 3.5, 4, read=(0, 2))]
    found = put_together(
        2,
        [
            (one, models(5, size), models(5, size)[4], 9.0),
            (other, models(4, size), models(4, size)[3], 3.5),
        ],
        3,
        1,
    )
    np.testing.assert_array_equal(found.history["step"], [0, 1, 2, 3])
    np.testing.assert_array_equal(found.history["staleness"], [np.nan, 0, 1, 2])
    np.testing.assert_array_equal(found.history["clock"], [0.0, 1.5, 2.5, 3.5])
    np.testing.assert_array_equal(found.history["worker"], [np.nan, 0, 1, 0])
    np.testing.assert_array_equal(found.updates["staleness"], [[0, 0], [1, 1], [1, 2]])
    np.testing.assert_array_equal(found.updates["worker"], [[0, 1], [1, 0], [0, 2]])
    np.testing.assert_array_equal(found.updates["draw"], [[0, 3], [3, 0], [0, 4]])
    np.testing.assert_array_equal(found.updates["computed"], 0.5 * found.updates["worker"])
    np.testing.assert_array_equal(found.updates["read"][2], [[1, 0], [0, 2]])
    d = flat(with_servers.first_params(problem(), KEY)).size
    np.testing.assert_array_equal(found.history["bits"], 2 * 32 * d * np.arange(4) / N)


def test_gossip_is_put_in_the_order_of_stamps():
    """Three workers, records at every second stamp; one has ended at the last of them."""
    params, d = (
        with_servers.first_params(problem(), KEY),
        flat(with_servers.first_params(problem(), KEY)).size,
    )

    def moved(by: float):
        return jax.tree.map(lambda leaf: leaf + np.float32(by), params)

    run = gossip._Run(None, "gossip", [None] * 3, topologies.ring(3), 5, 1.0)
    # stamp, worker, partner, seconds
    exchanges = [(2, 1, 0, 2.5), (1, 0, 1, 1.0), (4, 2, 0, 2.0), (2, 0, 2, 3.0), (5, 1, 2, 4.0)]
    run.exchanges = [
        peer.Exchange(stamp, worker, partner, 7, 0.5, 0.25, at)
        for stamp, worker, partner, at in exchanges
    ]
    run.records = {2: {0: moved(1), 1: moved(2), 2: moved(6)}, 4: {1: moved(3), 2: moved(5)}}
    found = gossip._trained(
        "gossip", problem(), params, run, {0: (moved(4), 4), 1: (moved(2), 5), 2: (moved(0), 5)}, 2
    )
    assert found.updates["worker"].tolist() == [0, 1, 0, 2, 1]
    assert found.updates["partner"].tolist() == [1, 0, 2, 0, 2]
    np.testing.assert_array_equal(found.updates["clock"], [1.0, 2.5, 3.0, 3.0, 4.0])
    history = found.history
    assert history["step"].tolist() == [0, 3, 4, 5]
    np.testing.assert_array_equal(history["bits"], 4 * 32 * d * np.array([0, 3, 4, 5]) / N)
    np.testing.assert_array_equal(history["clock"], [0.0, 3.0, 3.0, 4.0])
    np.testing.assert_array_equal(history["worker"], [np.nan, 0, 2, 1])
    np.testing.assert_array_equal(history["staleness"], [np.nan, 1, 3, 2])
    spread = [np.var(each) * d for each in ([0, 0, 0], [1, 2, 6], [4, 3, 5], [4, 2, 0])]
    np.testing.assert_allclose(history["consensus"], spread, rtol=1e-4)
    np.testing.assert_allclose(flat(found.params), flat(params) + 2, rtol=1e-5)


def test_a_workers_messages_have_the_versions_of_all_parts_it_read(monkeypatch):
    """With two servers; its stream continues after the largest number of draws that a server
    knows.
    """
    monkeypatch.setattr(on_worker, "need_ray", lambda: NO_RAY)
    params = with_servers.first_params(problem(), KEY)
    asked, parts = {0: [], 1: []}, on_worker.parted(params, 2)

    def served(
        p: int, draw: int, version: int, era: int, served_seconds: float, last: int
    ) -> Named:
        def push(part, about):
            asked[p].append((part, about))
            return server.Reply(
                parts[p], version + len(asked[p]), era, 0, served_seconds, len(asked[p]) >= last
            )

        return Named(
            pull=lambda worker, life: server.Reply(parts[p], version, era, draw, 0.0, False),
            push=push,
        )

    one = on_worker.Worker(1, with_servers.tasks(problem(), KEY, params, None)(1))
    assert one.run([served(0, 4, 10, 2, -5.0, 2), served(1, 6, 20, 3, -7.0, 3)], 8) == 3
    for p, version, era in ((0, 10, 2), (1, 20, 3)):
        abouts = [about for _, about in asked[p]]
        assert [about.draw for about in abouts] == [6, 7, 8]
        assert [about.version for about in abouts] == [version, version + 1, version + 2]
        assert [about.read for about in abouts] == [(10 + i, 20 + i) for i in range(3)]
        assert {(about.worker, about.life, about.era) for about in abouts} == {(1, 8, era)}
        assert math.isnan(abouts[0].trip)
        assert all(5.0 < about.trip < 6.0 for about in abouts[1:]), (
            "less what the slower server had"
        )
    slope, _ = one.gradients(params, 6)
    for p, part in enumerate(on_worker.parted(slope, 2)):
        np.testing.assert_array_equal(asked[p][0][0], part)
