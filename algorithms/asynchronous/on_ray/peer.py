"""A worker of AD-PSGD: a process with its own model, which averages with one neighbour at a time.

An exchange is atomic: the worker that starts it locks its own model until it has the answer, and
the worker that it asks answers immediately, between two of its own exchanges. Two workers that lock
their models and ask each other would deadlock. Therefore a worker may wait only for one with a
larger number if that one is asking, too; in the other direction the request is refused, and
repeated later. So no cycle of workers ever waits, on any graph. (The paper uses bipartite graphs
instead.)

Exchanges have Lamport stamps; sorted by them, they are in an order that is consistent with every
worker's own order. The workers' models after all exchanges up to a stamp are a state that the run
could have been in, although no worker waited to record it.

A neighbour whose process died is left out until it asks again: then Ray has restarted it, and it
has taken over a neighbour's model.
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
from algorithms.asynchronous.on_ray.actors import is_replacement
from algorithms.asynchronous.on_ray.server import to_numpy
from algorithms.asynchronous.on_ray.worker import Gradients, Task
from algorithms.optimizers import Model
from dsgd.base import Params, PyTree
from dsgd.engine import randomness
from dsgd.machines.ray_session import require_ray

_REFUSED = 0.002  # approximate seconds until a refused request is repeated
_LOOK = 0.2  # seconds between two searches for a neighbour with a model


class Restarted(Exception):
    """The worker died and has no model yet."""


class Exchange(NamedTuple):
    """An update, as recorded by the partner.

    Args:
        stamp: Lamport stamp.
        worker: the worker that computed the gradient and asked.
        partner: the worker that was asked; the worker itself if no neighbour was available.
        draw: the number of the gradient's batch in the worker's stream.
        computed: seconds of the gradient.
        round_trip: seconds of the worker's last exchange; NaN before the first.
        at: seconds since the start of the run.
        read: if the gradient was computed at a model that a restarted worker took over, the stamp
            of that model; 0: it was computed at the model of the worker's last update.
    """

    stamp: int
    worker: int
    partner: int
    draw: int
    computed: float
    round_trip: float
    at: float
    read: int = 0


class Report(NamedTuple):
    """Events since the last request: the exchanges in which the worker was the partner, and its
    models by stamp; and whether other workers may ask it.
    """

    exchanges: list[Exchange]
    records: list[tuple[int, PyTree]]
    ready: bool


class Peer:
    """Ray actor of a worker of AD-PSGD.

    Args:
        worker: its number.
        task: what it computes.
        optimizer: the optimizer of its step.
        params: the initial model.
        every: stamps between two models that it keeps for the history.
        patience: the longest time of an exchange, seconds.
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
        self.model: Model = randomness.fold_owner(
            optimizers.init(optimizer, params), key, np.uint32(worker)
        )
        self.step: Callable[[Model, Params, PyTree], Model] = jax.jit(partial(_step, optimizer))
        self.peers: dict[int, Any] = {}
        self.there: set[int] = set()  # the neighbours that may be asked
        self.restarted: bool = is_replacement()
        self.stamp: int = 0
        self.next: int = every
        self.read: int = 0  # stamp of a model that was taken over, until the worker's next update
        self.exchanges: list[Exchange] = []
        self.records: list[tuple[int, PyTree]] = []
        self.ready: bool = False
        self.asking: bool = False
        self.stopped: bool = False
        self.lock: asyncio.Lock = asyncio.Lock()
        self.zero: float = time.monotonic()
        self.round_trip: float = float("nan")
        self.chance: random.Random = random.Random(worker)

    async def compile(self) -> None:
        """Compiles the worker's programs, while it can still answer requests."""
        await asyncio.get_running_loop().run_in_executor(None, self._compile)

    async def run(self, peers: dict[int, Any], draw: int, elapsed: float) -> None:
        """Computes, averages with a neighbour, and makes a step, repeatedly, until it is stopped. A
        restarted worker first takes over a neighbour's model.

        Args:
            peers: its neighbours, by number.
            draw: number of its first batch.
            elapsed: seconds of the run so far.
        """
        self.zero = time.monotonic() - elapsed
        self.peers, self.there = peers, set(peers)
        if self.restarted:
            await self.compile()
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
        """Averages this worker's model with `params`; returns the mean and the stamp of the
        exchange. None: the request is refused, because this worker is asking another one, is about
        to, or has not started (its first gradient is computed at its own initial model).

        Raises:
            Restarted: if the worker died and has no model yet.
        """
        if self.restarted and not self.ready:
            raise Restarted
        self.there.add(about.worker)
        if not self.ready or (self.asking and about.worker > self.worker):
            return None
        async with self.lock:
            stamp = self._advance_stamp(max(self.stamp, stamp) + 1)
            mean = jax.tree.map(gossip.midpoint, to_numpy(self.model.params), params)
            self.model = self.model._replace(params=mean)
            self.exchanges.append(about._replace(stamp=stamp, at=time.monotonic() - self.zero))
            return mean, stamp

    async def look(self) -> tuple[PyTree, int]:
        """Returns the model and its stamp.

        Raises:
            Restarted: if the worker died and has no model yet.
        """
        if self.restarted and not self.ready:
            raise Restarted
        async with self.lock:
            return to_numpy(self.model.params), self.stamp

    async def stop(self) -> None:
        """Stops the worker after its current exchange."""
        self.stopped = True
        async with self.lock:
            pass

    async def report(self) -> Report:
        """Returns the events since the last call."""
        report = Report(self.exchanges, self.records, self.ready)
        self.exchanges, self.records = [], []
        return report

    async def _take_over(self) -> None:
        """Takes over a neighbour's model. If no neighbour has one, it waits: starting again from
        the initial model would undo the progress of the others.
        """
        ray = require_ray()

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
            f"on_ray: worker {self.worker} was restarted, but no neighbour had a model to continue "
            f"from for {self.patience:g} s"
        )

    async def _exchange(self, slope: PyTree, draw: int, computed: float) -> None:
        """Averages with a neighbour, drawn uniformly, then makes the step; without an available
        neighbour it steps alone.
        """
        ray = require_ray()

        partner = self._draw_partner()
        while not self.stopped:
            async with self._holding():
                about = Exchange(
                    0,
                    self.worker,
                    partner,
                    draw,
                    computed,
                    self.round_trip,
                    time.monotonic() - self.zero,
                    self.read,
                )
                began = time.monotonic()
                try:
                    answer = await self._ask(partner, about)
                except (ray.exceptions.RayActorError, Restarted):
                    self.there.discard(partner)
                    partner = self._draw_partner()
                    continue
                if answer is not None:
                    middle, stamp = answer
                    self._advance_stamp(stamp)
                    self.model = jax.block_until_ready(self.step(self.model, middle, slope))
                    self.round_trip, self.read = time.monotonic() - began, 0
                    return
            await asyncio.sleep(_REFUSED * (0.5 + self.chance.random()))

    def _draw_partner(self) -> int:
        return self.chance.choice(sorted(self.there)) if self.there else self.worker

    @asynccontextmanager
    async def _holding(self) -> AsyncIterator[None]:
        """Locks its own model to ask for another one. It sets `asking` before it waits for the
        lock: requests that already hold the lock only answer and finish soon, but a later request
        by a worker with a larger number would wait for this one while it asks.
        """
        self.asking = True
        try:
            async with self.lock:
                yield
        finally:
            self.asking = False

    async def _ask(self, partner: int, about: Exchange) -> tuple[PyTree, int] | None:
        """Returns the partner's answer."""
        if partner == self.worker:
            self.exchanges.append(about._replace(stamp=self.stamp + 1))
            return self.model.params, self.stamp + 1
        asked = self.peers[partner].average.remote(self.stamp, to_numpy(self.model.params), about)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked.future()), self.patience)
        except TimeoutError as error:
            why = (
                f"on_ray: worker {partner} has not answered worker {self.worker} for "
                f"{self.patience:g} s"
            )
            raise TimeoutError(why) from error

    def _advance_stamp(self, stamp: int) -> int:
        """Sets the stamp for an exchange, and first records the model at all record stamps before
        it.
        """
        while self.next < stamp:
            self.records.append((self.next, to_numpy(self.model.params)))
            self.next += self.every
        self.stamp = stamp
        return stamp

    def _compile(self) -> None:
        self.gradients.compile()
        jax.block_until_ready(self.step(self.model, self.model.params, self.model.params))


def _step(
    optimizer: optax.GradientTransformation, model: Model, middle: Params, slope: PyTree
) -> Model:
    """Makes the step as in `algorithms.asynchronous_gossip_sgd`: the optimizer receives its own
    model, and the step starts from the mean.
    """
    change, memory = optimizers.update(optimizer, slope, model.optimizer, model.params)
    return Model(optax.apply_updates(middle, change), memory)
