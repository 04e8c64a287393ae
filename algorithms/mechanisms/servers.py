"""Two routes of compressed vectors: through N servers on the workers, with a shard each,
or through one server, which is no worker and tolerates workers that do not participate.

The functions of a route have the same meaning for both:

- `start`: zeros of the shape of the workers' vectors, and the vectors of the servers at the model;
- `compression_parts`: both in the form in which they are compressed, leaves `[..., d]`;
- `parts`: the workers' vectors of leaves `[n, ...]`;
- `sizes`: the numbers of elements of the vectors that are compressed;
- `send`, `reply`: the two messages of a round;
- `whole`: the model's leaves of a reply;
- `first`, `step`: the servers' models, and a step of their optimizer;
- `gather`: the model's leaves of the servers' vectors;
- `pack`, `unpack`: `State` of what all workers know, what a worker keeps, and what a server keeps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from algorithms import optimizers
from algorithms.optimizers import Model
from dsgd import Communicator, Compressor, State, communication, compressors, network, workers
from dsgd.communication import Delivery
from dsgd.extend import Gradients, Params, PyTree

Parts = PyTree


class Sharded(NamedTuple):
    """`State.workers` with N servers: what each worker keeps, leaves `[n, ...]`, and what it keeps
    as the server of a shard, leaves `[n, part]`.
    """

    worker: Any
    server: Any


class Central(NamedTuple):
    """`State.server` with one server: what all workers know, and what only the server keeps, leaves
    `[...]`.
    """

    shared: Any
    server: Any


class NServers(NamedTuple):
    """N servers on the workers. Workers' vectors have leaves `[n, M, part]`, those of servers
    `[n, part]`. All workers must participate.

    Args:
        up, down: compressors of the workers and of the servers.
        via: `network.multi_server`.
    """

    up: Compressor
    down: Compressor
    via: network.NServers
    sharded: bool = True

    def start(self, params: Params, N: int) -> tuple[Parts, Parts]:
        return communication.start_shards("", params, N, self.up, self.down, None)

    def compression_parts(self, vectors: Parts, served: Parts) -> tuple[Parts, Parts]:
        return vectors, served

    def parts(self, tree: Gradients, N: int) -> Parts:
        return communication.shards(tree, N, self.up)

    def sizes(self, vectors: Parts) -> tuple[int, ...]:
        return tuple(leaf.shape[-1] for leaf in jax.tree.leaves(vectors))

    def send(self, round: Communicator, vectors: Parts, last: Any) -> Delivery:
        return round.to_servers(self.up, vectors, last, via=self.via)

    def reply(self, round: Communicator, vectors: Parts, last: Any) -> Delivery:
        return round.from_servers(self.down, vectors, last)

    def whole(self, parts: Parts, like: Params) -> Params:
        return communication.unshard(parts, like, self.up)

    def first(self, optimizer: optax.GradientTransformation, served: Parts) -> Model:
        return optimizers.init_each(optimizer, served)

    def step(
        self, optimizer: optax.GradientTransformation, x: Model, by: Parts, round: Communicator
    ) -> Model:
        return optimizers.step_local(optimizer, x, by)

    def gather(self, parts: Parts, like: Params) -> Params:
        return self.whole(workers.gather(parts), like)

    def pack(self, shared: Any, worker: Any, server: Any) -> State:
        return State(shared, Sharded(worker, server))

    def unpack(self, state: State) -> tuple[Any, Any, Any]:
        return state.server, *state.workers


class OneServer(NamedTuple):
    """One server, which is no worker. Workers' vectors have the model's leaves, `[n, ...]`, and
    those of the server `[...]`.

    Args:
        up: compressor of the workers.
        down: that of the server; None: it replies uncompressed, so that workers may be absent.
        via: `network.star` or `network.parameter_server`.
    """

    up: Compressor
    down: Compressor | None
    via: network.OneServer
    sharded: bool = False

    def start(self, params: Params, N: int) -> tuple[Parts, Parts]:
        return workers.replicate(optax.tree.zeros_like(params), N), params

    def compression_parts(self, vectors: Parts, served: Parts) -> tuple[Parts, Parts]:
        rows, down = workers.replicate(served, 1), self.down or self.up
        return (
            communication.flatten(vectors, self.up.layer_wise),
            communication.flatten(rows, down.layer_wise),
        )

    def parts(self, tree: Gradients, N: int) -> Parts:
        return tree

    def sizes(self, vectors: Parts) -> tuple[int, ...]:
        sizes = tuple(leaf[0].size for leaf in jax.tree.leaves(vectors))
        return sizes if self.up.layer_wise else (sum(sizes),)

    def send(self, round: Communicator, vectors: Parts, last: Any) -> Delivery:
        if self.down is not None:
            round.require_all("each worker's model is made of all replies of the server")
        return round.to_server(self.up, vectors, last, via=self.via)

    def reply(self, round: Communicator, vectors: Parts, last: Any) -> Delivery:
        return round.from_server(vectors, self.down, last)

    def whole(self, parts: Parts, like: Params) -> Params:
        return parts

    def first(self, optimizer: optax.GradientTransformation, served: Parts) -> Model:
        return optimizers.init(optimizer, served)

    def step(
        self, optimizer: optax.GradientTransformation, x: Model, by: Parts, round: Communicator
    ) -> Model:
        return proximal_step(optimizer, x, by, round)

    def gather(self, parts: Parts, like: Params) -> Params:
        return parts

    def pack(self, shared: Any, worker: Any, server: Any) -> State:
        return State(Central(shared, server), worker)

    def unpack(self, state: State) -> tuple[Any, Any, Any]:
        return state.server.shared, state.workers, state.server.server


Route = NServers | OneServer


def make_route(
    method: str,
    up: Compressor,
    down: Compressor | None,
    via: network.OneServer | network.NServers,
) -> Route:
    """Returns the route of a method's messages.

    Args:
        method: its name, for error messages.
        up, down: compressors of workers and servers; None: the servers reply uncompressed.
        via: `network.multi_server`, `network.star` or `network.parameter_server`.

    Raises:
        ValueError: if, with N servers, only one of the compressors works layer by layer.
    """
    if isinstance(via, network.NServers):
        if down is None:
            layer_wise = up.layer_wise
            down = compressors.identity
            down = down if layer_wise else compressors.whole_model(down)
        communication.require_two(method, up, down)
        return NServers(up, down, via)
    return OneServer(up, down, via)


def is_regularized(round: Communicator) -> bool:
    """Returns whether the problem has a regularizer."""
    return round.problem is not None and round.problem.regularizer is not None


def proximal_step(
    optimizer: optax.GradientTransformation, x: Model, by: Params, round: Communicator
) -> Model:
    r"""Makes one step of a single model, and the proximal step of the problem's regularizer, if it
    has one, of the optimizer's step size; none if no message was delivered.

    Raises:
        ValueError: if there is a regularizer, and the optimizer is not SGD without momentum.
    """
    after = optimizers.step(optimizer, x, by)
    if is_regularized(round):
        gamma = optimizers.step_size(optimizer, at=x.optimizer)
        after = after._replace(params=round.prox(after.params, gamma))
    return workers.if_nonempty(after, x)
