"""Streaming DiLoCo: fragments of the model are synchronized in turn, while training goes on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath, SequenceKey

from algorithms import methods, optimizers
from algorithms.facts import method
from algorithms.optimizers import Model
from dsgd import Algorithm, AllRows, Communicator, Compressor, checks, compressors, network
from dsgd.extend import Params, Period, Real

Leaves = list[jax.Array]  # of a fragment


@method(
    sends=(
        "changes of one fragment of the model at a time, during the next steps, by an all-"
        "reduce or compressed by an all-gather"
    ),
    needs=("all workers",),
    paper="Douillard et al., 2025, Algorithm 2",
    settings={"fragments": 1, "period": 4},
    candidates={"language models": [{"fragments": 4}]},
)
@checks.arguments
def streaming_diloco(
    optimizer: optax.GradientTransformation,
    fragments: int,
    period: Period = 100,
    outer: optax.GradientTransformation | None = None,
    *,
    delay: int = 1,
    local_share: Real = 0.5,
    compressor: Compressor | None = compressors.e3m0,
    via: network.AllReduce | None = None,
) -> Algorithm:
    r"""Streaming DiLoCo: each of P fragments of the model is synchronized every H steps, one after
    the other, while the workers make their next steps.

    Fragment p is sent after the steps t with $t \equiv \lfloor (p + 1) H / P \rfloor$ modulo H, p =
    0, ..., P - 1, and merged into the models $\tau$ steps later:

    $$ \Delta_p = \frac1N \sum_n C\big(x_p - y_p^{(n)}\big), \qquad
       u_p \leftarrow \mu u_p + \Delta_p, \qquad x_p \leftarrow x_p - \eta (\Delta_p + \mu u_p) $$
    $$ y_p^{(n)} \leftarrow \alpha y_p^{(n)} + (1 - \alpha) x_p \quad \tau \text{ steps later} $$

    A round is one gradient per worker. Layer l belongs to fragment l modulo P. The layers are the
    entries of the first list in the model, if it has one, otherwise of its outermost dictionary or
    structure with more than one entry.

    The only difference to the paper's state is the time of the outer step: $x_p$ is updated when
    the fragment is sent, not when it is merged. It is not used in between. With P = 1, $\tau = 0$,
    $\alpha = 0$ and no compressor the method is `diloco`. The limit is biased, as that of local
    SGD. The mean is weighted by the problem's worker weights. On the clock of a cluster a
    fragment's messages are sent while the workers compute their next $\tau$ gradients, after which
    they wait for the messages (`round.delayed`). C without error memory adds a bias that does not
    vanish with the step size.

    Args:
        optimizer: each worker's inner step, for example `optax.adamw(4e-4)`; its state is kept.
        fragments: P.
        period: H, at least P. It may be swept.
        outer: the outer step on $\Delta_p$, which has a state for each fragment; None: the paper's
            Nesterov momentum, `optax.sgd(0.4, momentum=0.9, nesterov=True)`.
        delay: $\tau$, in rounds, less than H.
        local_share: $\alpha$, the share of the local value in a merged model, in [0, 1].
        compressor: C; all workers gather the compressed messages, so that all must participate.
            None: fragments are sent uncompressed by `via`, and a worker that does not participate
            makes no step, but merges the fragments when it returns.
        via: communication pattern without a compressor, as in `diloco`; None: `ring_all_reduce`, or
            `all_gather` with a compressor.

    Raises:
        ValueError: if P is less than 1, or more than H or the number of layers; $\tau$ is negative
            or at least H; $\alpha$ is not in [0, 1]; or `via` is not `network.all_gather` although
            there is a compressor.

    Source: Douillard et al., "Streaming DiLoCo with overlapping communication: towards a
    distributed free lunch", 2025, Algorithm 2. The paper does not state the offsets; these are
    those of torchft.
    """
    period = checks.period("streaming_diloco: period", period)
    checks.natural("streaming_diloco: delay", delay)
    checks.positive_int("streaming_diloco: fragments", fragments)
    if isinstance(period, int) and not max(fragments, delay + 1) <= period:
        raise ValueError(
            f"streaming_diloco: period = {period} with {fragments} fragments and delay = {delay}; "
            f"expected period >= {max(fragments, delay + 1)}: at least the number of fragments, "
            "and more than the delay"
        )
    checks.number("streaming_diloco: local_share", local_share, "[0, 1]")
    if compressor is not None and via not in (None, network.all_gather):
        raise ValueError(
            f"streaming_diloco: via = {checks.show(via)} with the compressor {compressor.name}; "
            "expected network.all_gather, by which workers send such messages, or compressor=None"
        )
    outer = optax.sgd(0.4, momentum=0.9, nesterov=True) if outer is None else outer
    optimizers.require_descent(outer)

    def mean(round: Communicator, changes: Leaves):
        if compressor is None:
            return round.weighted_mean(changes, via or network.ring_all_reduce)
        return round.mean_of_messages(compressor, changes).received

    def update(x: list[Model], y: Model, gradients, round: Communicator):
        y = optimizers.local_step(optimizer, y, gradients, round)
        leaves, treedef = jax.tree.flatten(y.params)
        members, x = fragment_leaves(y.params, fragments), list(x)
        for p, member in enumerate(members):
            offset = (p + 1) * period // fragments % period
            rows = [leaves[i] for i in member]

            def send(x_p: Model, rows: Leaves = rows):
                changes = [x[None] - y for x, y in zip(x_p.params, rows, strict=True)]
                with round.delayed(delay):
                    delta = mean(round, changes)
                return optimizers.server_step(outer, x_p, delta)

            x[p] = round.every(period, send, x[p], offset=offset)
            sent = round.step + 1 - delay
            merged = (sent > 0) & (sent % period == offset)
            for i, x_i in zip(member, x[p].params, strict=True):
                mixed = local_share * leaves[i] + (1 - local_share) * x_i[None]
                # Without a branch, so that XLA computes it together with the local step.
                leaves[i] = jnp.where(merged, mixed.astype(leaves[i].dtype), leaves[i])
        return x, y._replace(params=treedef.unflatten(leaves))

    def start(params: Params) -> list[Model]:
        leaves = jax.tree.leaves(params)
        return [
            optimizers.init(outer, [leaves[i] for i in member])
            for member in fragment_leaves(params, fragments)
        ]

    return methods.with_server(
        f"streaming_diloco({fragments}, {period}, {delay})",
        optimizer,
        update,
        server=start,
        start=lambda y: y,
        absent=AllRows(lambda before, after: after),
    )


def fragment_leaves(model: Params, P: int) -> list[list[int]]:
    """Returns, for each fragment, the indices of its leaves in the flattened model.

    Raises:
        ValueError: if the model has fewer than P layers.
    """
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(model)]
    shared = 0
    while min(map(len, paths)) > shared + 1 and len({path[shared] for path in paths}) == 1:
        shared += 1

    def layer(path: KeyPath) -> KeyPath:
        lists = [i for i, key in enumerate(path) if isinstance(key, SequenceKey)]
        return path[: (lists[0] if lists else shared) + 1]

    layers = list(dict.fromkeys(map(layer, paths)))
    if len(layers) < P:
        raise ValueError(
            f"streaming_diloco: fragments = {P}, but the model has {len(layers)} layers; expected "
            f"at most {len(layers)} fragments"
        )
    return [
        [i for i, path in enumerate(paths) if layers.index(layer(path)) % P == p] for p in range(P)
    ]
