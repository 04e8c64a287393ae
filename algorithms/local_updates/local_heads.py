"""FedPer and FedRep: some leaves, such as those of a network's last layer, stay with the client."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from algorithms.facts import method
from algorithms.mechanisms import personal
from algorithms.mechanisms.personal import Parts
from dsgd import Algorithm, checks, network
from dsgd.extend import Params, Period, PyTree, require_flags


@method(
    sends="shared leaves of the participating clients every H-th round, and back, through a server",
    paper="FedPer: Arivazhagan et al., 2019, Algorithms 1 and 2",
    settings=None,
)
@checks.arguments
def fed_per(
    optimizer: optax.GradientTransformation,
    period: Period,
    local: Any,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedPer: FedAvg in which some leaves of the model, the head $h_n$, stay with the client.

    $$ (y^{(n)}, h_n) \leftarrow (y^{(n)}, h_n) - \gamma g_n(y^{(n)}, h_n) \quad H \text{ times from
       } (x_t, h_n), \qquad
       x_{t+1} = \frac{\sum_{n \in S_t} p_n y^{(n)}}{\sum_{n \in S_t} p_n} $$

    Only the other leaves, the body x, are sent and counted. All clients start from the same head,
    and a client that does not participate keeps its own. Participation and the weights $p_n$ are
    those of `fed_avg`; without local leaves the method is FedAvg, and if all leaves are local,
    clients train alone and nothing is sent. `Algorithm.personal` returns the clients' models $(x,
    h_n)$; the final model has the mean of their heads.

    Args:
        optimizer: each client's step on body and head, as in `fed_avg`.
        period: H. It may be swept.
        local: which leaves stay with the client, in the form of `Parameters.trainable`: a tree of
            bools that is a prefix of the parameters, such as `{"Dense_0": False, "Dense_1": True}`,
            or a function from the parameters to such a tree.
        via: communication pattern; by default each client has its own link to the server.

    Raises:
        ValueError: if the period is less than 1 or more than 2^31 - 1, or `local` is not a function
            or a tree of bools. In a run: if `local` does not fit the parameters.

    Source: Arivazhagan et al., "Federated learning with personalization layers", 2019, Algorithms 1
    and 2.
    """
    return _method("fed_per", optimizer, personal.joined(optimizer), period, local, via)


@method(
    sends="shared leaves of the participating clients every H-th round, and back, through a server",
    paper="FedRep: Collins et al., 2021, Algorithm 1",
    settings=None,
)
@checks.arguments
def fed_rep(
    optimizer: optax.GradientTransformation,
    period: Period,
    head_steps: Period,
    local: Any,
    *,
    via: network.AllReduce = network.star,
) -> Algorithm:
    r"""FedRep: in each period clients first make $\tau$ steps on their heads, then $H - \tau$ steps
    on the body.

    $$ h_n \leftarrow h_n - \gamma \nabla_h f_n(x_t, h_n) \quad \tau \text{ times}, \qquad
       y^{(n)} \leftarrow y^{(n)} - \gamma \nabla_x f_n(y^{(n)}, h_n) \quad H - \tau \text{ times
       from } x_t $$

    All else is as in `fed_per`. Head and body have their own optimizers, which start again in each
    period; the steps of a client are counted from its first one in the period. In the paper $H -
    \tau = 1$; the authors' code makes several steps on the body.

    Args:
        optimizer: each client's step.
        period: H. It may be swept.
        head_steps: $\tau$, from 1 to H - 1. It may be swept.
        local: the leaves of the head, as in `fed_per`.
        via: as in `fed_per`.

    Raises:
        ValueError: as `fed_per`, or if $\tau$ is less than 1, or not less than H.

    Source: Collins et al., "Exploiting shared representations for personalized federated learning",
    2021, Algorithm 1.
    """
    head_steps = checks.period("fed_rep: head_steps", head_steps)
    period = checks.period("fed_rep: period", period)
    swept = isinstance(head_steps, Tracer) or isinstance(period, Tracer)
    if not swept and head_steps >= period:
        raise ValueError(
            f"fed_rep: head_steps = {head_steps} with period = {period}; expected fewer steps on "
            "the head than the period, which leaves at least one for the body"
        )
    inner = _head_then_body(optimizer, head_steps)
    return _method("fed_rep", optimizer, inner, period, local, via)


class Phase(NamedTuple):
    """State of the optimizer of `fed_rep`.

    Args:
        step: number of steps so far, int32.
        states: states of the body's and the head's optimizer.
    """

    step: jax.Array
    states: Parts


def _head_then_body(
    optimizer: optax.GradientTransformation, head_steps: Period
) -> optax.GradientTransformation:
    """Returns the optimizer of `Parts` that makes its first steps on the local part only, and the
    others on the shared part only.
    """
    both: Any = personal.each(optimizer)

    def init(params: Any) -> Phase:
        return Phase(jnp.int32(0), both.init(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, after = both.update(updates, state.states, params)
        on_head = state.step < head_steps
        moving = Parts(~on_head, on_head)

        def choose(moves: jax.Array, new: PyTree, old: PyTree) -> PyTree:
            return jax.tree.map(lambda new, old: jnp.where(moves, new, old), new, old)

        steps = Parts(*map(choose, moving, steps, optax.tree.zeros_like(steps)))
        return steps, Phase(state.step + 1, Parts(*map(choose, moving, after, state.states)))

    return optax.GradientTransformation(init, update)


def _method(
    name: str,
    optimizer: optax.GradientTransformation,
    inner: optax.GradientTransformation,
    period: Period,
    local: Any,
    via: network.AllReduce,
) -> Algorithm:
    """Returns the method with local leaves; arguments as in `personal_updates`."""
    if local is None:
        raise ValueError(
            f"{name}: local = None; expected which leaves stay with the client, a tree of True and "
            "False or a function from the parameters to it"
        )
    if not callable(local):
        require_flags(f"{name}: local", local)
        local = jax.tree.map(bool, local)  # the caller may change its own tree

    def gradients(x: Params, parts: Parts, answers: tuple[Any, ...]) -> Parts:
        (gradients,) = answers
        return personal.split_like(gradients, parts)

    return personal.personal_updates(
        name,
        optimizer,
        inner,
        period,
        via,
        start=lambda params: personal.split(name, local, params),
        points=lambda parts: (personal.join(parts),),
        gradients=gradients,
        personal=personal.join,
        model=personal.join,
    )
