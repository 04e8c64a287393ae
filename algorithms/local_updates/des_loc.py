"""DES-LOC: parameters and moments of a local optimizer are averaged with different periods."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax

from algorithms import methods, optimizers
from algorithms.facts import method
from algorithms.optimizers import FIRST, SECOND
from dsgd import Algorithm, Communicator, checks, network
from dsgd.extend import Period, PyTree


@method(
    sends="models and moments of local Adam, each with its own period, by an all-reduce",
    paper="DES-LOC: Iacob et al., 2025",
    settings={"period": 2},
    candidates={"language models": [{}]},
)
@checks.arguments
def des_loc(
    optimizer: optax.GradientTransformation,
    period: Period,
    first: Period | None = None,
    second: Period | None = None,
    *,
    via: network.AllReduce = network.ring_all_reduce,
) -> Algorithm:
    r"""DES-LOC: each worker makes local steps of Adam; the models are averaged every $K_x$ rounds,
    the first moments every $K_u$ and the second moments every $K_v$ rounds.

    $$ u^{(n)} \leftarrow \beta_1 u^{(n)} + (1 - \beta_1) g_n, \quad
       v^{(n)} \leftarrow \beta_2 v^{(n)} + (1 - \beta_2) g_n^2, \quad
       x^{(n)} \leftarrow x^{(n)} - \gamma \frac{\hat u^{(n)}}{\sqrt{\hat v^{(n)}} + \epsilon} $$

    $$ x^{(n)} \leftarrow \frac1N \sum_m x^{(m)} \ \text{ if } K_x \mid t + 1, \qquad
       u^{(n)} \leftarrow \frac1N \sum_m u^{(m)} \ \text{ if } K_u \mid t + 1, \qquad
       v^{(n)} \leftarrow \frac1N \sum_m v^{(m)} \ \text{ if } K_v \mid t + 1 $$

    The paper states the averages at the beginning of a step. They are made at the end of the step
    before, so that a gradient is always computed at the averaged model. A round is one gradient per
    worker, and each average is an all-reduce of one vector. With $K_u = K_v = K_x$ this is local
    Adam. Local AdamW with local moments is `local_sgd(optax.adamw(...), period)`; `diloco`
    adds an outer step to it. With all periods 1 the method is not mini-batch Adam: v is the mean of
    squares, not the square of the mean.

    Counts of steps stay local. A worker that does not participate when the models are averaged
    adopts the average when it returns, and keeps its moments. Averages are weighted by the
    problem's worker weights.

    Args:
        optimizer: each worker's step, for example `optax.chain(optax.clip_by_global_norm(1),
            optax.adamw(1e-3))`. First moments are the fields `mu` and `trace` of optax's states,
            second moments are `nu` and `nu_max`. With SGD with momentum there are only first
            moments, and if all periods are 1 the method is mini-batch SGD with momentum. With
            plain SGD there are none, and the method is `local_sgd`.
        period: $K_x$.
        first: $K_u$; None: the paper's $3 K_x$.
        second: $K_v$; None: the paper's $6 K_x$.
        via: as in `local_sgd`.

    Raises:
        ValueError: if a period is less than 1 or more than 2^31 - 1, or the optimizer's state has
            vectors but no moments of these names.

    Source: Iacob et al., "DES-LOC: desynced low communication adaptive optimizers for training
    foundation models", 2025; local Adam, Cheng and Glasgow, "Convergence of distributed adaptive
    optimization with local updates", 2025.
    """
    period = checks.period("des_loc: period", period)
    of_first = checks.period("des_loc: first", 3 * period if first is None else first)
    of_second = checks.period("des_loc: second", 6 * period if second is None else second)

    def start(models: optimizers.Model) -> optimizers.Model:
        _require_names(optimizer, models.optimizer)
        return models

    def update(y: optimizers.Model, gradients, round: Communicator) -> optimizers.Model:
        params, memory = optimizers.local_step(optimizer, y, gradients, round)
        params = round.every(period, partial(round.average, via=via), params)
        for each, names in ((of_first, FIRST), (of_second, SECOND)):
            if optimizers.moments(names, memory):
                memory = round.every(each, partial(_average_moments, names, round, via), memory)
        return optimizers.Model(params, memory)

    return methods.local_models(
        f"des_loc({period}, {of_first}, {of_second})",
        optimizer,
        update,
        start=start,
        absent=methods.gets_average,
    )


def _require_names(optimizer: optax.GradientTransformation, states: PyTree) -> None:
    """Raises ValueError if states contain vectors, leaves `[N, ...]`, but no moments with known
    names.
    """
    vectors = [
        leaf
        for leaf in jax.tree.leaves(states)
        if leaf.ndim > 1 and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    if vectors and not optimizers.moments(FIRST + SECOND, states):
        raise ValueError(
            f"des_loc: the state of optimizer {optimizers.display_name(optimizer)} has no field "
            f"{', '.join(FIRST + SECOND)}; expected an optimizer with moments of these names, "
            "such as optax.adamw(1e-3)"
        )


def _average_moments(
    names: tuple[str, ...], round: Communicator, via: network.AllReduce, states: PyTree
) -> PyTree:
    """Returns the states, leaves `[n, ...]`, in which the moments with the given names are averaged
    over the workers.
    """
    means = round.average(optimizers.moments(names, states), via)
    return optimizers.with_moments(names, states, means)
