"""A worker of AD-PSGD: a process with a model of its own, which averages with one neighbour at a
time.

An exchange is atomic: who begins one holds its own model until it has the answer, and whom it asks
answers at once, between two of its own. Two that hold theirs and ask each other would wait for
ever. So a worker with a smaller number may wait for one with a larger one, which is refused
instead, and asks again: no circle of workers ever waits, on any graph. (The paper's way is a
bipartite one.)

Exchanges have Lamport's stamps: sorted by them, they are in an order that every worker has seen.
What all workers' models were after all exchanges up to a stamp is a state that the run could have
been in, though nobody waited to look at it.

A neighbour whose process has died is left out until it asks itself: then Ray has restarted it, and
it has taken over a neighbour's model.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import gossip, optimizers
from algorithms.asynchronous.on_ray.server import in_numpy
from algorithms.asynchronous.on_ray.session import need_ray, reconstructed
from algorithms.asynchronous.on_ray.worker import Gradients, Task
from algorithms.optimizers import Model
from dsgd.base import Params, PyTree
from dsgd.engine import randomness

_REFUSED = 0.002  # seconds, about, until one who was refused asks again
_LOOK = 0.2  # seconds until one that has no model looks again for a neighbour that has one


class Restarted(Exception):
    """The worker has died, and has no model yet."""


class Exchange(NamedTuple):
    """An update, as the partner has seen it.

    Args:
        stamp: Lamport's.
        worker: whose gradient, and who asked.
        partner: who was asked; the worker itself, where there was nobody.
        draw: the number of its batch in the worker's stream.
        computed: seconds of the gradient.
        trip: of the worker's last exchange; NaN before the first.
        at: seconds of the run.
        read: the stamp at which a worker that has died took over the model that the gradient is of;
            0: it is that of its last update.
    """

    stamp: int
    worker: int
    partner: int
    draw: int
    computed: float
    trip: float
    at: float
    read: int = 0


class News(NamedTuple):
    """What has happened since it was asked last: exchanges in which it was the partner, and models
    by their stamps. And whether it is ready to be asked by others."""

    exchanges: list[Exchange]
    records: list[tuple[int, PyTree]]
    ready: bool


class Peer:
    """An actor.

    Args:
        worker: its number.
        task: what it computes.
        optimizer: of its step.
        params: the start.
        every: stamps between two models that it keeps for the history.
        patience: seconds that an exchange may take.
    """

    def __init__(
        self,
        worker: int,
        task: Task,
        optimizer: optax.GradientTransformation,
        params: Params,
        every: int,
        patience: float,
    ) -> None:
        self.worker: int = worker
        self.every: int = every
        self.patience: float = patience
        self.gradients: Gradients = Gradients(worker, task)
        numbers, kind = task.stream
        key = jax.random.wrap_key_data(jnp.asarray(numbers), impl=kind)
        self.model: Model = randomness.of_owner(
            optimizers.start(optimizer, params), key, np.uint32(worker)
        )
        self.step: Callable[[Model, Params, PyTree], Model] = jax.jit(partial(_stepped, optimizer))
        self.peers: dict[int, Any] = {}
        self.there: set[int] = set()  # of the neighbours, those that may be asked
        self.restarted: bool = reconstructed()
        self.stamp: int = 0
        self.next: int = every
        self.read: int = 0  # of a model that was taken over, until there is an update of its own
        self.exchanges: list[Exchange] = []
        self.records: list[tuple[int, PyTree]] = []
        self.ready: bool = False
        self.asking: bool = False
        self.stopped: bool = False
        self.lock: asyncio.Lock = asyncio.Lock()
        self.zero: float = time.monotonic()
        self.trip: float = float("nan")
        self.chance: random.Random = random.Random(worker)

    async def rehearse(self) -> None:
        """Compiles, while others may ask how it is."""
        await asyncio.get_running_loop().run_in_executor(None, self._rehearse)

    async def run(self, peers: dict[int, Any], draw: int, elapsed: float) -> None:
        """Computes, averages with a neighbour, steps, and begins again, until it is stopped. A
        worker that has died begins with a neighbour's model.

        Args:
            peers: its neighbours, by their numbers.
            draw: its first batch.
            elapsed: seconds of the run so far.
        """
        self.zero = time.monotonic() - elapsed
        self.peers, self.there = peers, set(peers)
        if self.restarted:
            await self.rehearse()
            await self._take_over()
        self.ready = True
        while not self.stopped:
            computing = asyncio.get_running_loop().run_in_executor(
                None, self.gradients, self.model.params, draw
            )
            slope, computed = await computing
            await self._exchange(slope, draw, computed)
            draw += 1

    async def average(
        self, stamp: int, params: Params, about: Exchange
    ) -> tuple[PyTree, int] | None:
        """The mean of both models, which is now this one's, and the exchange's stamp; None: this
        one is asking somebody, or about to, or has not begun (its first gradient is of its own
        start).

        Raises:
            Restarted: it has died, and has no model yet.
        """
        if self.restarted and not self.ready:
            raise Restarted
        self.there.add(about.worker)
        if not self.ready or (self.asking and about.worker > self.worker):
            return None
        async with self.lock:
            stamp = self._at(max(self.stamp, stamp) + 1)
            mean = jax.tree.map(gossip.midpoint, in_numpy(self.model.params), params)
            self.model = self.model._replace(params=mean)
            self.exchanges.append(about._replace(stamp=stamp, at=time.monotonic() - self.zero))
            return mean, stamp

    async def look(self) -> tuple[PyTree, int]:
        """The model, and its stamp.

        Raises:
            Restarted: it has died, and has no model yet.
        """
        if self.restarted and not self.ready:
            raise Restarted
        async with self.lock:
            return in_numpy(self.model.params), self.stamp

    async def stop(self) -> None:
        """It asks nobody any more, once what is under way has ended."""
        self.stopped = True
        async with self.lock:
            pass

    async def news(self) -> News:
        """What has happened since this was last asked."""
        told = News(self.exchanges, self.records, self.ready)
        self.exchanges, self.records = [], []
        return told

    async def _take_over(self) -> None:
        """A neighbour's model. Where none is there, it waits for one: to begin anew would undo what
        the others have done.
        """
        ray = need_ray()

        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            for peer in self.peers.values():
                try:
                    params, stamp = await asyncio.wait_for(peer.look.remote(), self.patience)
                except (ray.exceptions.RayActorError, Restarted):
                    continue
                self.model = self.model._replace(params=params)
                self.read = self.stamp = stamp
                self.next = stamp - stamp % self.every + self.every
                return
            await asyncio.sleep(_LOOK)
        raise TimeoutError(
            f"on_ray: worker {self.worker} has died, and for {self.patience:g} s no neighbour was "
            "there to go on with"
        )

    async def _exchange(self, slope: PyTree, draw: int, computed: float) -> None:
        """With a neighbour, drawn uniformly; then the step. Alone, where none is there."""
        ray = need_ray()

        partner = self._drawn()
        while not self.stopped:
            async with self._holding():
                about = Exchange(
                    0,
                    self.worker,
                    partner,
                    draw,
                    computed,
                    self.trip,
                    time.monotonic() - self.zero,
                    self.read,
                )
                began = time.monotonic()
                try:
                    answer = await self._asked(partner, about)
                except (ray.exceptions.RayActorError, Restarted):
                    self.there.discard(partner)
                    partner = self._drawn()
                    continue
                if answer is not None:
                    middle, stamp = answer
                    self._at(stamp)
                    self.model = jax.block_until_ready(self.step(self.model, middle, slope))
                    self.trip, self.read = time.monotonic() - began, 0
                    return
            await asyncio.sleep(_REFUSED * (0.5 + self.chance.random()))

    def _drawn(self) -> int:
        return self.chance.choice(sorted(self.there)) if self.there else self.worker

    @asynccontextmanager
    async def _holding(self) -> AsyncIterator[None]:
        """Holds its own model, to ask for another. It says so before it waits for the lock: who was
        there before only answers, and is soon done; one with a larger number who came later would
        wait for it while it asks."""
        self.asking = True
        try:
            async with self.lock:
                yield
        finally:
            self.asking = False

    async def _asked(self, partner: int, about: Exchange) -> tuple[PyTree, int] | None:
        """What the partner answers."""
        if partner == self.worker:
            self.exchanges.append(about._replace(stamp=self.stamp + 1))
            return self.model.params, self.stamp + 1
        asked = self.peers[partner].average.remote(self.stamp, in_numpy(self.model.params), about)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked.future()), self.patience)
        except TimeoutError as error:
            why = f"on_ray: worker {partner} has not answered worker {self.worker} for {self.patience:g} s"
            raise TimeoutError(why) from error

    def _at(self, stamp: int) -> int:
        """Before an exchange of this stamp: keeps the model that was there at the stamps of
        records.
        """
        while self.next < stamp:
            self.records.append((self.next, in_numpy(self.model.params)))
            self.next += self.every
        self.stamp = stamp
        return stamp

    def _rehearse(self) -> None:
        self.gradients.rehearse()
        jax.block_until_ready(self.step(self.model, self.model.params, self.model.params))


def _stepped(
    optimizer: optax.GradientTransformation, model: Model, middle: Params, slope: PyTree
) -> Model:
    """As in `algorithms.asynchronous_gossip_sgd`: the optimiser sees its own model, and steps from
    the mean.
    """
    change, memory = optimizers.change(optimizer, slope, model.optimizer, model.params)
    return Model(optax.apply_updates(middle, change), memory)
