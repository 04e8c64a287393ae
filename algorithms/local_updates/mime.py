"""Mime and MimeLite: local steps with an optimizer; only the server updates its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from algorithms.mechanisms.outer import Inner, Outer, outer_gradient, repeat_rows, scale
from dsgd import Algorithm, Communicator, Query, Round, State, checks, network, workers
from dsgd.extend import Gradients, Params, Period, PyTree, Real


@method(
    sends="changes and gradients every H-th round, the model back, through a server",
    paper="MimeLite: Karimireddy et al., 2020, Algorithm 1",
    settings={"period": 4},
)
@checks.arguments
def mime_lite(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer_step: Real = 1.0,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""MimeLite: clients make local steps of an optimizer with a frozen state; the server updates
    the state with the mean gradient at $x_t$.

    $$ y^{(n)} \leftarrow y^{(n)} - \gamma\, \mathcal U(g_n(y^{(n)}), s_t) \quad H \text{ times from
       } x_t, \qquad c = \frac{1}{|S_t|} \sum_{n \in S_t} g_n(x_t) $$

    $$ x_{t+1} = x_t + \eta_s \frac{1}{|S_t|} \sum_{n \in S_t} (y^{(n)} - x_t), \qquad
       s_{t+1} = \mathcal V(c, s_t) $$

    $\mathcal U$ and $\mathcal V$ are the updates and the next state of the optimizer. $g_n(x_t)$ is
    the gradient of the client's first local step of the period; the paper computes that of all
    samples of a client. A client that computes nothing in a period sends its last such gradient. A
    round is one gradient per client; every H-th round sends $y^{(n)}$ and $g_n(x_t)$. Clients
    participate as in `fed_avg`. If the problem has weights, means are weighted. With $\eta_s = 1$
    the method is mini-batch SGD with momentum if H = 1 and the optimizer has momentum, and FedAvg
    if the optimizer has no state. The limit is biased by $O(\gamma (H - 1))$ if the clients' data
    differ.

    Args:
        optimizer: for example `optax.sgd(gamma, momentum=0.9)`. As in fedjax's `mime_lite`, a local
            step is the whole update of the optimizer, and the new state is discarded: Adam's
            moments contain the gradient of that step, which the paper's do not.
        period: H. It may be swept.
        outer_step: $\eta_s$, positive; fedjax has the same. With 1 the server takes the mean of
            $y^{(n)}$. It may be swept.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or $\eta_s$ is not positive.

    Source: Karimireddy et al., "Mime: mimicking centralized stochastic algorithms in federated
    learning", 2020, Algorithm 1 (MimeLite).
    """
    period = checks.period("mime_lite: period", period)
    checks.number("mime_lite: outer_step", outer_step, "(0, inf)")

    def update(x: Outer, y: Inner, gradients: Gradients, round: Communicator):
        at_start = round.step % period == 0
        memory, known = y.memory.gradient, y.memory.known & ~at_start
        yes = jnp.ones_like(known)
        computed = Reference(jax.vmap(optax.tree.where)(known, memory, gradients), yes)
        y = y._replace(memory=round.if_active(computed, Reference(memory, known)))
        y = _frozen_step(optimizer, x, y, gradients, round)

        def synchronize(x: Outer, y: Inner):
            sent = outer_gradient(x, y), y.memory.gradient
            delta, c = round.weighted_mean(sent, via)
            y = y._replace(memory=y.memory._replace(known=jnp.zeros_like(y.memory.known)))
            return _synchronize(optimizer, x, y, scale(outer_step, delta), c)

        return round.every(period, synchronize, x, y)

    name = f"mime_lite({period})"
    return _clients(name, optimizer, update, lambda params: (), _unknown)


@method(
    sends="changes and gradients every H-th round, the model back, through a server",
    exact="any data",
    needs=("some exact gradients",),
    paper="Mime: Karimireddy et al., 2020, Algorithm 1",
    settings={"period": 4},
)
@checks.arguments
def mime(
    optimizer: optax.GradientTransformation,
    period: Period,
    outer_step: Real = 1.0,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""Mime: MimeLite with local gradients that are corrected as in SVRG.

    $$ c = \frac{1}{|S_t|} \sum_{n \in S_t} f_n'(x_t), \qquad
       y^{(n)} \leftarrow y^{(n)} - \gamma\, \mathcal U\big(g_n(y^{(n)}; \xi) - g_n(x_t; \xi) + c,
       s_t\big) \quad H \text{ times from } x_t $$

    $x_{t+1}$, $s_{t+1}$, participation and weights are those of `mime_lite`. If all clients
    participate, the limit is exact, the optimum of the mean objective for any data, also with
    gradients of batches.

    A round is one local step. The first round of a period computes the exact gradients $f_n'(x_t)$,
    which are sent, averaged and sent back as c; its step is along c, since $y^{(n)} = x_t$. Each
    further round computes $g_n(y^{(n)}; \xi)$ and $g_n(x_t; \xi)$ for the same draw $\xi$. The last
    round averages $y^{(n)}$. The clients $S_t$ should be drawn once per period; if no gradient
    arrives in its first round, c does not change.

    Args:
        optimizer: as in `mime_lite`.
        period: H, the number of local steps. It may be swept.
        outer_step, via: as in `mime_lite`.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or $\eta_s$ is not
            positive. During a run: if the user supplies the batches, because exact gradients
            are then not known.

    Source: Karimireddy et al., "Mime: mimicking centralized stochastic algorithms in federated
    learning", 2020, Algorithm 1 (Mime).
    """
    period = checks.period("mime: period", period)
    checks.number("mime: outer_step", outer_step, "(0, inf)")

    def query(state: State, round: Round) -> tuple[Query, Query, Query]:
        x, y, at_start = state.server.params, state.workers.params, round.step % period == 0
        pair = Query(y, active=~at_start), Query(x, active=~at_start)
        return *pair, Query(x, exact=True, active=at_start)

    def update(x: Outer, y: Inner, answer: tuple[Gradients, ...], round: Communicator):
        at_y, at_x, exact = answer

        def share(x: Outer) -> Outer:
            return x._replace(memory=workers.if_nonempty(round.weighted_mean(exact, via), x.memory))

        x = round.every(period, share, x, offset=1 % period)
        # In the first round the pair is not computed and its gradients are 0.
        corrected = jax.tree.map(lambda g, g_x, c: g - g_x + c[None], at_y, at_x, x.memory)
        y = _frozen_step(optimizer, x, y, corrected, round)

        def synchronize(x: Outer, y: Inner):
            delta = round.weighted_mean(outer_gradient(x, y), via)
            return _synchronize(optimizer, x, y, scale(outer_step, delta), x.memory)

        return round.every(period, synchronize, x, y)

    name = f"mime({period})"
    return _clients(name, optimizer, update, optax.tree.zeros_like, lambda models: ())._replace(
        query=query
    )


class Reference(NamedTuple):
    """A client's gradient at the server's model, for the current period.

    Args:
        gradient: the gradient.
        known: whether the client has computed it, bool.
    """

    gradient: Params
    known: jax.Array


def _unknown(models: Params) -> Reference:
    """Returns the clients' gradients before the first round, from equal models `[N, ...]`."""
    rows = jax.tree.leaves(models)[0].shape[0]
    return Reference(optax.tree.zeros_like(models), jnp.zeros(rows, bool))


def _frozen_step(
    optimizer: optax.GradientTransformation,
    x: Outer,
    y: Inner,
    gradients: Gradients,
    round: Communicator,
) -> Inner:
    """Makes a step of each client that is active. The state of the optimizer is the server's and
    does not change; random numbers are the client's own.
    """
    updates = optimizers.update_frozen(optimizer, gradients, x.optimizer, y.params, round)
    after = optax.apply_updates(y.params, updates)
    return y._replace(params=round.if_active(after, y.params))


def _synchronize(
    optimizer: optax.GradientTransformation, x: Outer, y: Inner, delta: Params, c: Params
) -> tuple[Outer, Inner]:
    """Returns the states after the averaging, from the server's step `delta` and the mean gradient
    `c`.
    """
    _, state = optimizers.update(optimizer, c, x.optimizer, x.params)
    after = x._replace(params=optax.tree.sub(x.params, delta), optimizer=state)
    x = workers.if_nonempty(after, x)
    return x, y._replace(params=repeat_rows(x.params, y.params))


def _absent(before: Inner, after: Inner) -> Inner:
    """Returns the state of clients that did not participate: they have the server's model, and
    their own last gradients. Updates use `if_active`.
    """
    memory = after.memory
    if isinstance(memory, Reference):
        memory = memory._replace(gradient=before.memory.gradient)
    return after._replace(memory=memory)


def _clients(
    name: str,
    optimizer: optax.GradientTransformation,
    update: Callable,
    shared: Callable[[Params], PyTree],
    own: Callable[[Params], PyTree],
) -> Algorithm:
    """Returns a method that stores the optimizer's state on the server. Arguments are as in
    `methods.with_server` and `local_updates`.
    """
    return methods.with_server(
        name,
        optimizer,
        update,
        server=lambda params: Outer(*optimizers.init(optimizer, params), shared(params)),
        start=lambda models: Inner(models.params, (), own(models.params)),
        absent=_absent,
    )
