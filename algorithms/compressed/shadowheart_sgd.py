"""Shadowheart SGD: as many gradients and compressed messages as fit into a budget of seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from algorithms import methods, optimizers
from algorithms.compressed.diana import largest_omega
from algorithms.facts import method
from dsgd import Algorithm, Compressor, Encoded, Query, checks, compressors, work, workers
from dsgd.extend import Params


class Plan(NamedTuple):
    """What the workers do in a round: the number of gradients, the number of messages, and the
    weight of each message, `[N]` each.
    """

    gradients: np.ndarray
    messages: np.ndarray
    weights: np.ndarray


@method(
    sends="several compressed messages of one gradient to one server, the model back",
    needs=("unbiased compressor", "all workers"),
    paper="Tyurin et al., 2024",
    page="how_to/clusters/asynchronous.md",
    aliases=("shadowheart",),
    settings={
        "compressor": compressors.whole_model(compressors.random_quantization(4)),
        "compute": 0.5,
        "send": 0.25,
        "noise": 0.75,
    },
)
@checks.arguments
def shadowheart_sgd(
    optimizer: optax.GradientTransformation,
    compressor: Compressor,
    compute: float | Sequence[float],
    send: float | Sequence[float],
    noise: float,
    budget: float | None = None,
) -> Algorithm:
    r"""Shadowheart SGD: in each round, worker n computes as many gradients as fit into a budget of
    t seconds, and sends as many compressed messages of their sum as fit into t seconds.

    $$ x_{k+1} = x_k - \gamma \frac{\sum_n w_n \sum_{j=1}^{m_n} Q_{nj}\big(\sum_{l=1}^{b_n}
       g_{nl}(x_k)\big)}{\sum_n w_n m_n b_n}, \qquad
       w_n = \Big(b_n \omega + \omega \frac{\sigma^2}{\epsilon} +
       m_n \frac{\sigma^2}{\epsilon}\Big)^{-1} $$

    with $b_n = \lfloor t / h_n \rfloor$, $m_n = \lfloor t / \tau_n \rfloor$ and independent draws
    of Q; workers for which one of them is 0 do nothing. The server replies with the model. With
    the equilibrium time

    $$ t^* = \min_k \max\{\max(h_{\pi_k}, \tau_{\pi_k}), s_k\}, \qquad
       \frac{1}{s_k} = \sum_{i \le k} \Big(2 \tau_{\pi_i} \omega +
       4 \tau_{\pi_i} h_{\pi_i} \frac{\sigma^2 \omega}{s_k \epsilon} +
       2 h_{\pi_i} \frac{\sigma^2}{\epsilon}\Big)^{-1} $$

    as the budget, where $\pi$ sorts the workers by $\max(h_n, \tau_n)$, the time to reach
    $E|f'|^2 \le \epsilon$ is optimal among methods with compressed messages to a server, for
    workers with equal data and $\gamma = 1/(2L)$. A round takes the run's cluster at most 2t if h
    and $\tau$ are its times, and the server's link to each worker is its own (`network.star`),
    without the reply.

    Args:
        optimizer: the server's step; `optax.sgd(gamma)` gives the equation.
        compressor: Q, unbiased, with $E|Q(x) - x|^2 \le \omega |x|^2$.
        compute: h_n, seconds of a gradient, greater than 0; one number, or one for each worker.
        send: tau_n, seconds of a message, greater than 0; one number, or one for each worker.
        noise: $\sigma^2/\epsilon$, at least 0.
        budget: t, in seconds; None: t*.

    Raises:
        ValueError: if the compressor is biased, or a number is out of its range. At the start of a
            run: if there are not as many numbers as workers, if the compressor states no omega,
            or if no worker can compute and send within the budget.

    Source: Tyurin, Pozzi, Ilin and Richtarik, "Shadowheart SGD: distributed asynchronous SGD with
    optimal time complexity under arbitrary computation and communication heterogeneity", 2024.
    """
    if not compressor.unbiased:
        raise ValueError(
            f"shadowheart_sgd: the compressor {compressor.name} is biased; expected an unbiased "
            "one, such as compressors.random_k(0.1)"
        )
    for what, given in (("compute", compute), ("send", send)):
        for one in np.ravel(given).tolist():
            checks.number(f"shadowheart_sgd: {what}", one, "(0, inf)")
    checks.number("shadowheart_sgd: noise", noise, "[0, inf)")
    if budget is not None:
        checks.number("shadowheart_sgd: budget", budget, "(0, inf)")

    def plan(params: Params, N: int) -> Plan:
        sizes = tuple(leaf.size for leaf in jax.tree.leaves(params))
        sizes = sizes if compressor.layer_wise else (sum(sizes),)
        omega = largest_omega("shadowheart_sgd", compressor, sizes, "")
        h = methods.by_worker("shadowheart_sgd: compute", compute, N)
        tau = methods.by_worker("shadowheart_sgd: send", send, N)
        t = equilibrium_time(h, tau, omega, noise) if budget is None else budget
        return make_plan(h, tau, omega, noise, t)

    def ask(model, round):
        counts = plan(model.params, round.workers).gradients
        batches = np.arange(counts.max()) < counts[:, None]
        return Query(model.params, work=work.weighted(batches.astype(np.float32)))

    def update(model, gradients, round):
        N = round.workers
        round.require_all("the server's weights are those of the messages of all workers")
        counts, messages, weights = plan(model.params, N)
        several = weighted_messages(compressor, messages, weights)
        sends = workers.local_block(jnp.asarray(messages > 0), N)
        mean = round.to_server(several, gradients, senders=sends).received
        scale = N / np.sum(weights * messages * counts)
        total = jax.tree.map(lambda leaf: leaf * jnp.asarray(scale, leaf.dtype), mean)
        after = optimizers.step(optimizer, model, total)
        return after._replace(params=round.from_server(after.params).received)

    return methods.one_model(f"shadowheart_sgd({compressor.name})", optimizer, update, ask)


def equilibrium_time(h: np.ndarray, tau: np.ndarray, omega: float, noise: float) -> float:
    r"""Returns t*.

    Args:
        h, tau: seconds of a gradient and of a message, `[N]`.
        omega, noise: $\omega$ and $\sigma^2/\epsilon$.
    """
    order = np.argsort(np.maximum(h, tau), kind="stable")
    h, tau, budgets = h[order], tau[order], list[float]()
    if not (omega or noise):
        return float(max(h[0], tau[0]))
    for k in range(1, len(h) + 1):
        fixed = 2 * tau[:k] * omega + 2 * h[:k] * noise
        product = 4 * tau[:k] * h[:k] * noise * omega
        low, high = 0.0, 2 * float(np.max(fixed) + np.sqrt(np.max(product)))
        # s sum_i 1 / (...) increases in s, and is above 1 at `high`
        while (middle := (low + high) / 2) not in (low, high):
            rate = np.sum(middle / (fixed * middle + product))
            low, high = (middle, high) if middle * rate < 1 else (low, middle)
        budgets.append(max(float(np.maximum(h, tau)[k - 1]), high))
    return min(budgets)


def make_plan(h: np.ndarray, tau: np.ndarray, omega: float, noise: float, t: float) -> Plan:
    """Returns what the workers do in the budget t; other arguments as in `equilibrium_time`."""
    b, m = (np.floor(t / each).astype(np.int32) for each in (h, tau))
    active = (b > 0) & (m > 0)
    if not active.any():
        raise ValueError(
            f"shadowheart_sgd: budget = {t} s, in which no worker computes a gradient and sends a "
            f"message; expected at least {np.min(np.maximum(h, tau))}"
        )
    noisy = omega > 0 or noise > 0
    variance = b * omega + omega * noise + m * noise if noisy else np.ones(len(h))
    weights = np.divide(1.0, variance, where=active, out=np.zeros(len(h)))
    return Plan(np.where(active, b, 0), np.where(active, m, 0), weights)


def weighted_messages(compressor: Compressor, times: np.ndarray, weights: np.ndarray) -> Compressor:
    """Returns the compressor with which each worker sends several messages of one vector, with
    independent draws, of which the server decodes the weighted sum.

    Args:
        compressor: of each message.
        times: numbers of messages, `[N]`.
        weights: of the messages, `[N]`.
    """
    most = int(times.max())

    def compress(key, x, common=None):
        assert common is not None
        times_, weights_ = jnp.asarray(times), jnp.asarray(weights, x.dtype)
        count, weight = times_[common.worker], weights_[common.worker]

        def add(total, numbered):
            j, key = numbered
            message, decoded = compressors.encode(compressor, key, x, common=common.fold_in(j))
            return total + jnp.where(j < count, weight, 0) * decoded.astype(x.dtype), message

        keyed = (jnp.arange(most), jax.random.split(key, most))
        total, sent = lax.scan(add, jnp.zeros_like(x), keyed)
        return Encoded((sent, count, weight), total)

    def decompress(message, d):
        sent, count, weight = message
        decoded = jax.vmap(lambda one: compressor.decompress(one, d))(sent)
        return weight * jnp.sum(decoded, axis=0, where=(jnp.arange(most) < count)[:, None])

    def bits(message):
        sent, count, _ = message
        one = compressor.bits(jax.tree.map(lambda leaf: leaf[0], sent))
        if isinstance(one, int):
            if most * one >= 2**32:
                raise ValueError(
                    f"shadowheart_sgd: {most} messages of {one} bits in a round; expected less "
                    "than 2^32 bits: use a compressor with shorter messages, or a smaller budget"
                )
            return count.astype(jnp.uint32) * jnp.uint32(one)
        each = jax.vmap(compressor.bits)(sent)
        return jnp.sum(each, where=jnp.arange(most) < count, dtype=jnp.uint32)

    return compressor._replace(compress=compress, decompress=decompress, bits=bits)
