"""Methods with partial participation and lost messages, each compared with a readable numpy loop
with the same masks.

Models are the rows of X `[N, d]`. A round takes a second, so that masks are recordings by the
clock: `HERE[t, n]`, and `ARRIVES[t, number]` by the number of a link, or of a worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest

import algorithms
import dsgd
import topologies
from algorithms import facts
from dsgd import clusters, compressors, network, problems
from dsgd.communication.communicator import GOES_ON
from theory_checks.recursions.compressed import largest_half, packed
from theory_checks.recursions.outer import averaging, nesterov

N, D, T, H, GAMMA, BETA = 8, 4, 12, 3, 0.1, 0.5
INCLUSION = np.linspace(0.3, 0.9, N)
DRAW = np.random.default_rng(3)
HERE = DRAW.random((T, N)) < 0.6
HERE[4:6] = False  # no worker participates, also in a round in which local methods average
ARRIVES = DRAW.random((T, N * N)) < 0.7
ARRIVES[8, :N] = False  # the message of every worker is lost
HERE[10:], ARRIVES[10:] = True, True
PROBLEM = problems.random_quadratic(N, D, heterogeneity=2.0, seed=1)
A, B = (np.asarray(leaf, float) for leaf in PROBLEM.data[:2])
WORD = 32 * D  # bits of a model

LINKS = clusters.Quantity(
    lambda key, clock, number: jnp.asarray(ARRIVES, jnp.float32)[jnp.int32(clock), number],
    "given by the clock",
    positive=False,
)
CLUSTER = clusters.Cluster(
    clusters.constant(1.0), present=clusters.trace(HERE.T.astype(float), 1.0), delivered=LINKS
)
# A deterministic compressor that DIANA accepts; the loops do not use that it is unbiased.
ACCEPTED = compressors.top_k(0.5)._replace(omega=lambda d: 1.0)
SGD, MOMENTUM = optax.sgd(GAMMA), optax.sgd(GAMMA, momentum=BETA)
RING, CHAIN, STAR, COMPLETE, PUSH, MATCHED = (
    topologies.ring(N),
    topologies.chain(N),
    topologies.star(N),
    topologies.complete(N),
    topologies.one_peer_exponential(N),
    topologies.random_matchings(N),
)
PUSHES = topologies.random_pushes(N, 5)
PULLS = topologies.random_pushes(N, 5, weights=topologies.pull)
TREE = nx.DiGraph([(n // 2, n) for n in range(N)])  # with a loop, which is ignored
DOWN = topologies.from_graph(TREE, topologies.pull)
UP = topologies.from_graph(TREE.reverse(), topologies.push)


def slopes(X: np.ndarray) -> np.ndarray:
    """Returns every worker's gradient at its own model."""
    return np.einsum("nij,nj->ni", A, X) - B


def counted(t: int) -> np.ndarray:
    """Returns the workers that participate and whose messages arrive, bool `[N]`."""
    return HERE[t] & ARRIVES[t, :N]


def ring_bits(t: int, vectors: float = 1) -> int:
    """Returns the bits that participating workers send in an all-reduce."""
    m = HERE[t].sum()
    return m * round(2 * (m - 1) / m * vectors * WORD) if m else 0


def gossip(t: int, topology: dsgd.Topology, columns: bool = False) -> tuple[np.ndarray, int]:
    """Returns W', whose rows (or columns) sum to 1, and the messages sent and received."""
    W = topology.matrices[t % topology.period].toarray()
    mixed, messages = np.zeros_like(W), 0
    for i in range(N):
        for j in range(N):
            if i == j or not W[i, j] or not (HERE[t, i] and HERE[t, j]):
                continue
            messages += 1  # j has sent its message
            if ARRIVES[t, min(i, j) * N + max(i, j)]:
                messages += 1
                mixed[i, j] = W[i, j]
    return mixed + np.diag(1 - mixed.sum(axis=0 if columns else 1)), messages


def gradients_averaged() -> tuple[dict, float]:
    x, memory, bits = np.zeros(D), np.zeros(D), 0.0
    for t in range(T):
        if counted(t).any():
            memory = BETA * memory + slopes(np.tile(x, (N, 1)))[counted(t)].mean(axis=0)
            x = x - GAMMA * memory
        bits += 2 * ring_bits(t)
    return {"params": x}, bits


def voted(beta1: float, beta2: float) -> tuple[dict, float]:
    """Eight bits up and eight bits down for four elements; a tie, and 0, count as positive."""
    x, m, bits = np.zeros(D), np.zeros((N, D)), 0.0
    for t in range(T):
        g = slopes(np.tile(x, (N, 1)))
        votes = np.where(beta1 * m + (1 - beta1) * g < 0, -1, 1)[counted(t)]
        m = np.where(HERE[t][:, None], beta2 * m + (1 - beta2) * g, m)
        if len(votes):
            x = x - GAMMA * np.where(votes.sum(axis=0) < 0, -1, 1)
        bits += 2 * 8 * HERE[t].sum()
    return {"params": x}, bits


def sketched() -> tuple[dict, float]:
    """One of two candidates; sketches of four elements in four counters are exact."""
    x, u, v, bits = np.zeros(D), np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        S, bits = counted(t), bits + 2 * (ring_bits(t) + ring_bits(t, 0.5))
        if S.any():
            u[S] = BETA * u[S] + slopes(np.tile(x, (N, 1)))[S]
            v[S] += u[S]
            largest = np.argmax(np.abs(v[S].mean(axis=0)))
            x[largest] -= GAMMA * v[S, largest].mean()
            u[S, largest] = v[S, largest] = 0
    return {"u": u, "v": v}, bits


def fetched() -> tuple[dict, float]:
    x, u, e, bits = np.zeros(D), np.zeros(D), np.zeros(D), 0.0
    for t in range(T):
        bits += 2 * ring_bits(t)
        if counted(t).any():
            u = BETA * u + slopes(np.tile(x, (N, 1)))[counted(t)].mean(axis=0)
            e += u
            largest = np.argmax(np.abs(e))
            x[largest] -= GAMMA * e[largest]
            e[largest] = 0
    return {"params": x}, bits


def averaged_every(period: int) -> Iterator[np.ndarray]:
    """Yields X before the first round, and after each. If the clients are drawn once per averaging
    period, the method is FedAvg.
    """
    X = np.zeros((N, D))
    yield X
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        if (t + 1) % period == 0 and counted(t).any():
            X = np.tile(X[counted(t)].mean(axis=0), (N, 1))
        yield X


def models_averaged(period: int) -> tuple[dict, float]:
    return {"params": list(averaged_every(period))[-1]}, sum(
        2 * ring_bits(t) for t in range(period - 1, T, period)
    )


def models_mixed(topology: dsgd.Topology, period: int) -> tuple[dict, float]:
    X, bits = np.zeros((N, D)), 0.0
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        if (t + 1) % period == 0:
            W, messages = gossip(t, topology)
            X, bits = W @ X, bits + messages * WORD
    return {"params": X}, bits


def controlled() -> tuple[dict, float]:
    """Returns the final states of SCAFFOLD, and the bits. If a worker misses a round, its control
    variate replaces the gradient.
    """
    Y, own, c, total, bits = np.zeros((N, D)), np.zeros((N, D)), np.zeros(D), np.zeros((N, D)), 0.0
    for t in range(T):
        g = slopes(Y)
        total += np.where(HERE[t][:, None], g, own)
        Y = np.where(HERE[t][:, None], Y - GAMMA * (g - own + c), Y)
        if (t + 1) % H == 0:
            S, bits = counted(t), bits + 2 * ring_bits(t, 2)
            new = np.where(S[:, None], total / H, own)
            c, own, total = c + (new - own).sum(axis=0) / N, new, np.zeros((N, D))
            if S.any():
                Y = np.tile(Y[S].mean(axis=0), (N, 1))
    return {"params": Y, "control": own, "server": c}, bits


def outer_steps(outer: Callable[[np.ndarray, np.ndarray], np.ndarray], ratio: bool) -> np.ndarray:
    """Returns the workers' final models. All workers continue from the server's model after every H
    rounds.

    Args:
        outer: (x, Delta) -> the next x, if any message arrives.
        ratio: whether Delta is the mean over the workers whose messages arrive, or a sum of the
            changes divided by N and the probabilities `INCLUSION`.
    """
    X, x = np.zeros((N, D)), np.zeros(D)
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        if (t + 1) % H == 0:
            S = counted(t)
            if S.any():
                changes = (x - X)[S]
                parts = changes / S.sum() if ratio else changes / (N * INCLUSION[S, None])
                x = outer(x, parts.sum(axis=0))
            X = np.tile(x, (N, 1))
    return X


def outer_momentum() -> tuple[dict, float]:
    X = outer_steps(nesterov(0.7, 0.9), ratio=True)
    return {"params": X}, models_averaged(H)[1]


def unbiased() -> tuple[dict, float]:
    """Returns the final models if clients send their models to the server and receive its model."""
    X = outer_steps(averaging, ratio=False)
    return {"params": X}, sum(2 * HERE[t].sum() * WORD for t in range(H - 1, T, H))


def normalized() -> tuple[dict, float]:
    """Returns the final models of FedNova: the server averages the changes per step, over the
    clients that made a step.
    """
    X, x, tau, bits = np.zeros((N, D)), np.zeros(D), np.zeros(N), 0
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        tau += HERE[t]
        if (t + 1) % H == 0:
            S = counted(t) & (tau > 0)
            if S.any():
                d = (x - X)[S] / (GAMMA * tau[S, None])
                x = x - GAMMA * tau[S].mean() * d.mean(axis=0)
            X, tau, bits = np.tile(x, (N, 1)), np.zeros(N), bits + 2 * HERE[t].sum() * (WORD + 64)
    return {"params": X}, bits


def regularized(alpha: float) -> tuple[dict, float]:
    """Returns the final models of FedDyn. A client whose message is lost keeps its memory."""
    X, x, h, memory, bits = np.zeros((N, D)), np.zeros(D), np.zeros(D), np.zeros((N, D)), 0
    for t in range(T):
        step = slopes(X) - memory + alpha * (X - x)
        X = np.where(HERE[t][:, None], X - GAMMA * step, X)
        if (t + 1) % H == 0:
            S = counted(t)
            memory = np.where(S[:, None], memory - alpha * (X - x), memory)
            h = h - alpha / N * (X - x)[S].sum(axis=0)
            if S.any():
                x = X[S].mean(axis=0) - h / alpha
            X, bits = np.tile(x, (N, 1)), bits + 2 * HERE[t].sum() * (WORD + 32)
    np.testing.assert_allclose(h, memory.mean(axis=0))
    return {"params": X, "memory": memory}, bits


def stale_errors() -> tuple[dict, float]:
    """Returns the final models and memories of Fed-EF with half of the elements: values, and
    2-bit places.
    """
    X, x, e, bits = np.zeros((N, D)), np.zeros(D), np.zeros((N, D)), 0
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        if (t + 1) % H == 0:
            S, total = counted(t), e + x - X
            m = np.array([largest_half(row) for row in total])
            e = np.where(S[:, None], total - m, e)
            if S.any():
                x = x - m[S].mean(axis=0)
            X, bits = np.tile(x, (N, 1)), bits + HERE[t].sum() * (WORD / 2 + 8 + WORD)
    return {"params": X, "memory": e}, bits


def compensated(eta: float) -> tuple[dict, float]:
    """Returns the final models and corrections of FedCOMGATE."""
    X, x, delta, bits = np.zeros((N, D)), np.zeros(D), np.zeros((N, D)), 0
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * (slopes(X) - delta), X)
        if (t + 1) % H == 0:
            S, q = counted(t), x - X
            if S.any():
                mean = q[S].mean(axis=0)
                delta = np.where(S[:, None], delta + (q - mean) / (H * GAMMA), delta)
                x = x - eta * mean
            X, bits = np.tile(x, (N, 1)), bits + HERE[t].sum() * 2 * WORD
    np.testing.assert_allclose(delta.sum(axis=0), 0, atol=1e-12)
    return {"params": X, "memory": delta}, bits


def reset() -> tuple[dict, float]:
    """Returns the final errors and the common model of CSER, whose resets send all elements."""
    x, e, bits = np.zeros(D), np.zeros((N, D)), 0.0
    for t in range(T):
        e = np.where(HERE[t][:, None], e - GAMMA * slopes(x + e), e)
        if (t + 1) % H == 0:
            S, bits = counted(t), bits + 2 * ring_bits(t)
            if S.any():
                x, e = x + e[S].mean(axis=0), np.where(S[:, None], 0, e)
    return {"error": e, "server": x}, bits


def frozen_momentum() -> tuple[dict, float]:
    """Returns the final models of MimeLite. The server's momentum accumulates the gradients of each
    client's first step in a period, which are those at the server's model.
    """
    X, x, m, bits = np.zeros((N, D)), np.zeros(D), np.zeros(D), 0
    for t in range(T):
        g, there, S = slopes(X), HERE[t][:, None], counted(t)
        first = slopes(np.tile(x, (N, 1)))
        X = np.where(there, X - GAMMA * (g + BETA * m), X)
        if (t + 1) % H == 0:
            if S.any():
                x, m = X[S].mean(axis=0), first[S].mean(axis=0) + BETA * m
            X, bits = np.tile(x, (N, 1)), bits + 2 * HERE[t].sum() * 2 * WORD
    return {"params": X, "momentum": m}, bits


def corrected_momentum() -> tuple[dict, float]:
    """Returns the final models of Mime. The mean gradient is that of the clients which participate
    in the first round of a period.
    """
    X, x, m, c, bits = np.zeros((N, D)), np.zeros(D), np.zeros(D), np.zeros(D), 0
    for t in range(T):
        S, there, at_x = counted(t), HERE[t][:, None], slopes(np.tile(x, (N, 1)))
        if t % H == 0:
            c = at_x[S].mean(axis=0) if S.any() else c
            bits += 2 * HERE[t].sum() * WORD
        X = np.where(there, X - GAMMA * (slopes(X) - at_x + c + BETA * m), X)
        if (t + 1) % H == 0:
            if S.any():
                x, m = X[S].mean(axis=0), c + BETA * m
            X, bits = np.tile(x, (N, 1)), bits + 2 * HERE[t].sum() * WORD
    return {"params": X, "momentum": m}, bits


def decided() -> tuple[dict, float]:
    """Returns the final models of AdaComm, which averages in the next round if no message arrives.
    A worker sends the loss of its first step after the last average in which it participated.
    """
    X, x, period, bits = np.zeros((N, D)), np.zeros(D), 4, 0
    due, last, start = 4, 0, None
    losses, known = np.zeros(N), np.zeros(N, bool)
    for t in range(T):
        S, there = counted(t), HERE[t]
        values = 0.5 * np.einsum("ni,nij,nj->n", X, A, X) - (B * X).sum(axis=1)
        losses, known = np.where(there & ~known, values, losses), known | there
        X = np.where(there[:, None], X - GAMMA * slopes(X), X)
        if t + 1 < due or not there.any():
            continue
        bits += 2 * there.sum() * round(2 * (1 - 1 / there.sum()) * (WORD + 32))
        known = known & ~there
        if S.any():
            x, F = X[S].mean(axis=0), losses[S].mean()
            start = F if start is None else start
            if t + 1 - last >= 3:
                target = int(np.ceil(np.sqrt((F + 5) / (start + 5)) * 4))
                period, last = (target if target < period else -(-period // 2)), t + 1
            due = t + 1 + period
        X = np.tile(x, (N, 1))
    return {"params": X}, bits


def desynced() -> tuple[dict, float]:
    """Returns the final models of DES-LOC, with averages of models every H rounds and of momenta
    every second round.
    """
    X, memory, bits = np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        S, there = counted(t), HERE[t][:, None]
        memory = np.where(there, BETA * memory + slopes(X), memory)
        X = np.where(there, X - GAMMA * memory, X)
        if (t + 1) % H == 0:
            X, bits = np.tile(X[S].mean(axis=0), (N, 1)) if S.any() else X, bits + 2 * ring_bits(t)
        if (t + 1) % 2 == 0:
            bits += 2 * ring_bits(t)
            memory = np.where(there, memory[S].mean(axis=0), memory) if S.any() else memory
    return {"params": X, "momentum": memory}, bits


def elastic() -> tuple[dict, float]:
    """Returns the final models of EASGD. A worker whose message is lost is not moved, so that the
    sum of models and center is preserved.
    """
    X, center, bits = np.zeros((N, D)), np.zeros(D), 0
    for t in range(T):
        moved = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        if (t + 1) % H == 0:
            pull = np.where(counted(t)[:, None], 0.8 / N * (X - center), 0)
            moved, center = moved - pull, center + pull.sum(axis=0)
            bits += 2 * HERE[t].sum() * WORD
        X = moved
    return {"params": X, "server": center}, bits


def remembered(eta: float | None, lambda_: float, of_those: bool) -> tuple[dict, float]:
    """Returns the final memories of clients that send half of each vector to one server. The mean
    in the direction is over the clients whose messages arrive (`of_those`), or over all.
    """
    x, h, e, bits = np.zeros(D), np.zeros((N, D)), np.zeros((N, D)), 0
    for t in range(T):
        S, rest = counted(t)[:, None], slopes(np.tile(x, (N, 1))) - h
        m = np.where(S, [largest_half(row) for row in rest + (eta or 0) * e], 0)
        mean = m.sum(axis=0) / (max(S.sum(), 1) if of_those else N)
        if S.any():
            x = x - GAMMA * (h.mean(axis=0) + mean)
        e, h = np.where(S, e + rest - m, e), h + lambda_ * m
        bits += HERE[t].sum() * (largest(2, D) + WORD)
    return {"final": x, "shift": h, **({} if eta is None else {"error": e})}, bits


def largest(k: int, d: int) -> int:
    """Returns the bits of k of d elements with their indices."""
    return 32 * k + packed((d - 1).bit_length(), k)


def decentralized(topology: dsgd.Topology) -> tuple[dict, float]:
    X, memory, bits = np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        memory = np.where(HERE[t][:, None], BETA * memory + slopes(X), memory)
        W, messages = gossip(t, topology)
        X, bits = W @ np.where(HERE[t][:, None], X - GAMMA * memory, X), bits + messages * WORD
    return {"params": X}, bits


def combined_first(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final models of DGD."""
    X, bits = np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        X = W @ X - np.where(HERE[t][:, None], GAMMA * slopes(X), 0)
        bits += messages * WORD
    return {"params": X}, bits


def with_averaged_momenta(topology: dsgd.Topology) -> tuple[dict, float]:
    X, memory, bits = np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        there = HERE[t][:, None]
        memory = np.where(there, BETA * memory + slopes(X), memory)
        X = W @ np.where(there, X - GAMMA * memory, X)
        memory, bits = W @ memory, bits + 2 * messages * WORD
    return {"params": X, "momentum": memory}, bits


def quasi_global(topology: dsgd.Topology) -> tuple[dict, float]:
    X, change, bits = np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        there, before = HERE[t][:, None], X
        X = W @ np.where(there, X - BETA * change - GAMMA * slopes(X), X)
        change = np.where(there, BETA * change + (1 - BETA) * (before - X), change)
        bits += messages * WORD
    return {"params": X, "momentum": change}, bits


def heavy_balls(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final models of DecentLaM."""
    X, V, bits = np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        there = HERE[t][:, None]
        V = np.where(there, BETA * V + X - W @ np.where(there, X - GAMMA * slopes(X), X), V)
        X, bits = np.where(there, X - V, X), bits + messages * WORD
    return {"params": X, "momentum": V}, bits


def tracked(topology: dsgd.Topology, beta: float = 0.0) -> tuple[dict, float]:
    """Returns the final states of gradient tracking, or of momentum tracking."""
    X, Y, last, bits = np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        g = np.where(HERE[t][:, None], beta * last + slopes(X), last)
        Y, last, bits = W @ Y + g - last, g, bits + 2 * messages * WORD
        X = W @ X - GAMMA * np.where(HERE[t][:, None], Y, 0)
        np.testing.assert_allclose(Y.mean(axis=0), g.mean(axis=0))
    return {"params": X, "tracker": Y, "gradient": last}, bits


def tracked_after_the_step(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final states of ATC tracking. A worker that does not participate keeps its
    tracker and its last gradient.
    """
    X, mixed, last, bits = np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        g = np.where(HERE[t][:, None], slopes(X), last)
        Y, last, bits = mixed + g - last, g, bits + 2 * messages * WORD
        X, mixed = W @ (X - GAMMA * np.where(HERE[t][:, None], Y, 0)), W @ Y
        np.testing.assert_allclose(mixed.mean(axis=0), g.mean(axis=0))
    return {"params": X, "tracker": mixed, "gradient": last}, bits


def tracked_locally(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final models and corrections of K-GT, -H gamma c. A worker that does not
    participate in an exchange continues from its model.
    """
    x, y, c, bits = np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        there = HERE[t][:, None]
        y = np.where(there, y - GAMMA * (slopes(y) + c), y)
        if (t + 1) % H == 0:
            W, messages = gossip(t, topology)
            z = (x - y) / (H * GAMMA)
            c, bits = c - z + W @ z, bits + messages * 2 * WORD
            x = np.where(there, W @ y, x)
            y = np.where(there, x, y)
            np.testing.assert_allclose(c.sum(axis=0), 0, atol=1e-12)
    return {"params": y, "start": x, "correction": -H * GAMMA * c}, bits


def tracked_in_two_exchanges(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final states of Aug-DGM."""
    X, Y, last, bits = np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        g = np.where(HERE[t][:, None], slopes(X), last)
        Y, last, bits = W @ (Y + g - last), g, bits + 2 * messages * WORD
        X = W @ (X - GAMMA * np.where(HERE[t][:, None], Y, 0))
        np.testing.assert_allclose(Y.mean(axis=0), g.mean(axis=0))
    return {"params": X, "tracker": Y, "gradient": last}, bits


def tracked_with_two_exchanges(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final states of proximal tracking without a regularizer, which are scaled with
    the step size.
    """
    X, Y, last, bits = np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        W, messages = gossip(t, topology)
        g = np.where(HERE[t][:, None], slopes(X), last)
        Y, last, bits = W @ Y + g - last, g, bits + 2 * messages * WORD
        X = W @ (X - GAMMA * np.where(HERE[t][:, None], Y, 0))
        np.testing.assert_allclose(Y.mean(axis=0), g.mean(axis=0))
    scaled = {"tracker": GAMMA * Y, "change": -GAMMA * last, "shift": np.zeros((N, D))}
    return {"params": X, **scaled}, bits


def pushed(topology: dsgd.Topology) -> tuple[dict, float]:
    X, mass, bits = np.zeros((N, D)), np.ones(N), 0.0
    for t in range(T):
        W, messages = gossip(t, topology, columns=True)
        X = W @ np.where(HERE[t][:, None], X - GAMMA * slopes(X / mass[:, None]), X)
        mass, bits = W @ mass, bits + messages * (WORD + 32)
    return {"params": X, "weight": mass}, bits


def pushed_and_tracked(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final states of Push-DIGing. A sender keeps what does not arrive: the sums of
    all three vectors are preserved.
    """
    U, mixed, last = np.zeros((3, N, D))
    mass, bits = np.ones(N), 0.0
    for t in range(T):
        P, messages = gossip(t, topology, columns=True)
        there = HERE[t][:, None]
        g = np.where(there, slopes(U / mass[:, None]), last)
        Y, last, bits = mixed + g - last, g, bits + messages * (2 * WORD + 32)
        U, mass, mixed = P @ (U - GAMMA * np.where(there, Y, 0)), P @ mass, P @ Y
        np.testing.assert_allclose(mixed.sum(axis=0), g.sum(axis=0))
    return {"params": U, "weight": mass, "tracker": mixed, "gradient": last}, bits


def pulled_and_pushed(
    pull: dsgd.Topology, push: dsgd.Topology, adapt_first: bool
) -> tuple[dict, float]:
    """Returns the final states of Push-Pull, or of AB. The rows of R and the columns of P sum to 1
    in every round.
    """
    X, mixed, last = np.zeros((3, N, D))
    bits = 0.0
    for t in range(T):
        (R, pulls), (P, pushes) = gossip(t, pull), gossip(t, push, columns=True)
        there = HERE[t][:, None]
        g = np.where(there, slopes(X), last)
        Y, last, bits = mixed + g - last, g, bits + (pulls + pushes) * WORD
        change = -GAMMA * np.where(there, Y, 0)
        X, mixed = R @ (X + change) if adapt_first else R @ X + change, P @ Y
        np.testing.assert_allclose(mixed.sum(axis=0), g.sum(axis=0))
    return {"params": X, "tracker": mixed, "gradient": last}, bits


def squeezed(topology: dsgd.Topology, eta: float) -> tuple[dict, float]:
    X, error, bits = np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        half = X - GAMMA * slopes(X)
        sent = np.apply_along_axis(largest_half, 1, half + error)
        W, messages = gossip(t, topology)
        there = HERE[t][:, None]
        X, error = (
            np.where(there, half + eta * (W @ sent - sent), X),
            np.where(there, half + error - sent, error),
        )
        bits += messages * compressors.mean_bits(compressors.top_k(0.5), D)
    return {"params": X, "error": error}, bits


def lazily(zeta: float) -> tuple[dict, float]:
    """Returns the final estimates of CLAG, which count although their workers are absent. A message
    that is lost changes neither the estimate nor the last gradient.
    """
    x, h, y, bits = np.zeros(D), np.zeros((N, D)), np.zeros((N, D)), 0.0
    size = compressors.mean_bits(compressors.top_k(0.5), D)
    for t in range(T):
        g = slopes(np.tile(x, (N, 1)))
        last = y if t else g
        changed = np.sum((g - h) ** 2, axis=1) > zeta * np.sum((g - last) ** 2, axis=1)
        message = np.apply_along_axis(largest_half, 1, g - h)
        h = h + np.where((changed & counted(t))[:, None], message, 0)
        y = np.where(counted(t)[:, None], g, y)
        x = x - GAMMA * h.mean(axis=0) * HERE[t].any()
        bits += (changed & HERE[t]).sum() * size + HERE[t].sum() * WORD
    return {"estimate": h, "gradient": y}, bits


def streamed() -> tuple[dict, float]:
    """Returns the final models of Streaming DiLoCo with one fragment. It is sent uncompressed and
    merged a round later, also into the models of workers that do not participate.
    """
    X, x, u, bits = np.zeros((N, D)), np.zeros(D), np.zeros(D), 0.0
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        if t > 0 and t % H == 0:
            X = 0.5 * X + 0.5 * x
        if (t + 1) % H == 0:
            bits += 2 * ring_bits(t)
            if counted(t).any():
                change = (x - X)[counted(t)].mean(axis=0)
                u = 0.9 * u + change
                x = x - 0.4 * (change + 0.9 * u)
    return {"params": X}, bits


def paired(topology: dsgd.Topology) -> tuple[dict, float]:
    """Returns the final models of NoLoCo. A worker that does not participate in an exchange
    continues from its model.
    """
    X, slow, v, bits = np.zeros((N, D)), np.zeros((N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        X = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        if (t + 1) % H == 0:
            W, messages = gossip(t, topology)
            after = 0.5 * v + 0.7 * W @ (X - slow) + 0.7 * (W @ slow - slow)
            there = HERE[t][:, None]
            v = np.where(there, after, v)
            slow = np.where(there, slow + after, slow)
            X, bits = np.where(there, slow, X), bits + messages * 2 * WORD
    return {"params": X, "slow": slow, "momentum": v}, bits


def local_admm(A: np.ndarray, rho: float, beta: float) -> tuple[dict, float]:
    """Returns the final models of LT-ADMM. A worker keeps its variable of an edge if the message
    does not arrive, and all of its state if it does not participate.
    """
    X, z, correction, bits = np.zeros((N, D)), np.zeros((N, N, D)), np.zeros((N, D)), 0.0
    for t in range(T):
        there = HERE[t][:, None]
        X = np.where(there, X - GAMMA * slopes(X) - beta * correction, X)
        if (t + 1) % H == 0:
            message = z - 2 * rho * X[:, None]
            arrives, sent = along(t, A)
            z = np.where(arrives[..., None], z / 2 - message.swapaxes(0, 1) / 2, z)
            after = rho * A.sum(axis=1)[:, None] * X - z.sum(axis=1)
            correction = np.where(there, after, correction)
            bits += (sent + arrives.sum()) * WORD
    return {"params": X, "correction": correction}, bits


def relayed(A: np.ndarray) -> tuple[dict, float]:
    """Returns the final models of RelaySGD. The last message of a neighbour is used again if none
    arrives.
    """
    X, m, c, bits = np.zeros((N, D)), np.zeros((N, N, D)), np.zeros((N, N)), 0.0
    for t in range(T):
        Y = np.where(HERE[t][:, None], X - GAMMA * slopes(X), X)
        arrives, sent = along(t, A)
        message = (Y + m.sum(axis=0))[:, None] - m.swapaxes(0, 1)
        number = (1 + c.sum(axis=0))[:, None] - c.T
        m, c = np.where(arrives[..., None], message, m), np.where(arrives, number, c)
        # x_0 = 0
        X = np.where(HERE[t][:, None], (Y + m.sum(axis=0)) / N, X)
        bits += (sent + arrives.sum()) * (WORD + 32)
    return {"params": X}, bits


def neighbours(topology: dsgd.Topology) -> np.ndarray:
    """Returns the adjacency matrix of an undirected graph."""
    return np.where(np.eye(N), 0, topology.W != 0)


def along(t: int, A: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns on which links between neighbours messages arrive, bool `[N, N]`, and the number of
    messages sent.
    """
    sent = (A > 0) & HERE[t] & HERE[t][:, None]
    numbers = np.minimum.outer(np.arange(N), np.arange(N)) * N
    numbers = numbers + np.maximum.outer(np.arange(N), np.arange(N))
    return sent & ARRIVES[t, numbers], int(sent.sum())


METHODS: dict[str, tuple[dsgd.Algorithm, Callable[[], tuple[dict, float]]]] = {
    "minibatch_sgd": (algorithms.minibatch_sgd(MOMENTUM), gradients_averaged),
    "sketched_sgd": (algorithms.sketched_sgd(SGD, 1 / D, D, 1, 2, BETA), sketched),
    "fetch_sgd": (algorithms.fetch_sgd(SGD, 1 / D, D, 1, BETA, "subtract"), fetched),
    "local_sgd": (algorithms.local_sgd(SGD, H), lambda: models_averaged(H)),
    "local_sgd on a ring": (algorithms.local_sgd(SGD, H, RING), lambda: models_mixed(RING, H)),
    "scaffold": (algorithms.scaffold(SGD, H), controlled),
    "adacomm": (algorithms.adacomm(SGD, 4, 3, minimum=-5.0), decided),
    "diloco": (algorithms.diloco(SGD, H), outer_momentum),
    "fed_avg, unbiased": (algorithms.fed_avg(SGD, H, inclusion=INCLUSION.tolist()), unbiased),
    "fed_nova": (algorithms.fed_nova(SGD, H), normalized),
    "fed_dyn": (algorithms.fed_dyn(SGD, H, 0.7), lambda: regularized(0.7)),
    "fed_ef": (algorithms.fed_ef(SGD, H, compressors.top_k(0.5)), stale_errors),
    "fed_comgate": (
        algorithms.fed_comgate(GAMMA, H, compressors.identity, step=0.7),
        lambda: compensated(0.7),
    ),
    "cser": (algorithms.cser(SGD, H, compressors.random_places(1.0, unbiased=False)), reset),
    "mime_lite": (algorithms.mime_lite(MOMENTUM, H), frozen_momentum),
    "mime": (algorithms.mime(MOMENTUM, H), corrected_momentum),
    "easgd": (algorithms.easgd(SGD, H, 0.8), elastic),
    "des_loc": (algorithms.des_loc(MOMENTUM, H, 2), desynced),
    "clag": (
        algorithms.clag(SGD, compressors.whole_model(compressors.top_k(0.5)), 2.0),
        lambda: lazily(2.0),
    ),
    "streaming_diloco": (
        algorithms.streaming_diloco(SGD, 1, H, compressor=None),
        streamed,
    ),
    "noloco": (algorithms.noloco(SGD, RING, H), lambda: paired(RING)),
    "lt_admm": (
        algorithms.lt_admm(SGD, STAR, H, penalty=0.4, correction_step=0.2),
        lambda: local_admm(neighbours(STAR), 0.4, 0.2),
    ),
    "relay_sgd": (algorithms.relay_sgd(SGD, CHAIN), lambda: relayed(neighbours(CHAIN))),
    "majority_vote": (algorithms.majority_vote(SGD), lambda: voted(0.9, 0.9)),
    "distributed_lion": (algorithms.distributed_lion(SGD), lambda: voted(0.9, 0.99)),
    "sparta": (algorithms.sparta(SGD, 1.0), lambda: models_averaged(1)),
    "decentralized_sgd_complete": (
        algorithms.decentralized_sgd(MOMENTUM, COMPLETE),
        lambda: decentralized(COMPLETE),
    ),
    "dgd": (algorithms.dgd(SGD, RING), lambda: combined_first(RING)),
    "decentralized_sgd, averaged momenta": (
        algorithms.decentralized_sgd(MOMENTUM, RING, average_momentum=True),
        lambda: with_averaged_momenta(RING),
    ),
    "quasi_global_momentum": (
        algorithms.quasi_global_momentum(SGD, RING, BETA),
        lambda: quasi_global(RING),
    ),
    "decentlam": (algorithms.decentlam(SGD, RING, BETA), lambda: heavy_balls(RING)),
    "gradient_tracking": (algorithms.gradient_tracking(SGD, MATCHED), lambda: tracked(MATCHED)),
    "atc_tracking": (
        algorithms.atc_tracking(SGD, MATCHED),
        lambda: tracked_after_the_step(MATCHED),
    ),
    "k_gt": (algorithms.k_gt(SGD, RING, H), lambda: tracked_locally(RING)),
    "aug_dgm": (algorithms.aug_dgm(SGD, MATCHED), lambda: tracked_in_two_exchanges(MATCHED)),
    "momentum_tracking": (
        algorithms.momentum_tracking(SGD, MATCHED, BETA),
        lambda: tracked(MATCHED, BETA),
    ),
    "proximal_tracking": (
        algorithms.proximal_tracking(GAMMA, MATCHED),
        lambda: tracked_with_two_exchanges(MATCHED),
    ),
    "stochastic_gradient_push": (
        algorithms.stochastic_gradient_push(SGD, PUSH),
        lambda: pushed(PUSH),
    ),
    "push_diging": (
        algorithms.push_diging(SGD, PUSHES),
        lambda: pushed_and_tracked(PUSHES),
    ),
    "push_pull": (
        algorithms.push_pull(SGD, PULLS, PUSHES),
        lambda: pulled_and_pushed(PULLS, PUSHES, True),
    ),
    "ab": (
        algorithms.ab(SGD, DOWN, UP),
        lambda: pulled_and_pushed(DOWN, UP, False),
    ),
    "ef21, one server": (
        algorithms.ef21(SGD, compressors.top_k(0.5), None, via=network.star),
        lambda: remembered(None, 1.0, False),
    ),
    "diana": (algorithms.diana(SGD, ACCEPTED, 0.4), lambda: remembered(None, 0.4, True)),
    "econtrol": (
        algorithms.econtrol(SGD, compressors.top_k(0.5), 0.2),
        lambda: remembered(0.2, 1.0, False),
    ),
    "deepsqueeze": (
        algorithms.deepsqueeze(SGD, RING, compressors.whole_model(compressors.top_k(0.5)), 0.3),
        lambda: squeezed(RING, 0.3),
    ),
}


def run(
    method: dsgd.Algorithm, cluster: clusters.Cluster | None = CLUSTER, **options: Any
) -> dsgd.Result:
    return dsgd.run(
        method,
        PROBLEM,
        **({"steps": T, "key": jax.random.key(0), "cluster": cluster, "mesh": 1} | options),
    )


def named(result: dsgd.Result) -> dict[str, np.ndarray]:
    """Returns the leaves of the state by the names of the numpy loops."""
    server, rows = result.state.server, result.state.workers
    parts = rows._asdict() if hasattr(rows, "_asdict") else {"params": server.params}
    momentum = optax.tree.get(result.state, "trace")
    if momentum is not None:
        parts["momentum"] = momentum
    return {**parts, "server": server, "final": result.params}


@cache
def masked(name: str) -> dsgd.Result:
    """Runs with masks on two devices, so that some neighbours of a worker are on its own device,
    and some on the other.
    """
    cluster = CLUSTER
    if name == "mime":  # with gradients at two points in all rounds but the first of a period
        single = (np.arange(T) % H == 0) | ~HERE.any(axis=1)
        seconds = np.tile(np.where(single, 1.0, 0.5), (N, 1))
        cluster = replace(CLUSTER, compute=clusters.trace(seconds, 1.0))
    return run(METHODS[name][0], cluster, mesh=2, train_loss=name == "local_sgd")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_continues_with_the_workers_that_participate(name):
    expected, bits = METHODS[name][1]()
    result = masked(name)
    found = named(result)
    for part, values in expected.items():
        np.testing.assert_allclose(found[part], values, rtol=2e-5, atol=2e-6, err_msg=part)
    assert result.history["bits"][-1] * N == bits
    np.testing.assert_allclose(result.history["present"][1:], HERE.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(result.history["clock"], np.arange(T + 1))


def test_scaffold_with_sampled_clients_is_the_papers_algorithm_1():
    """The clients S are drawn once for each averaging period of H local steps."""
    S = np.array([np.random.default_rng(t).permutation(N) < 3 for t in range(T // H)])
    cluster = clusters.Cluster(
        clusters.constant(1.0), present=clusters.trace(S.T.astype(float), float(H))
    )
    x, c, own = np.zeros(D), np.zeros(D), np.zeros((N, D))
    for chosen in S:
        y = np.tile(x, (N, 1))
        for _ in range(H):
            y -= GAMMA * (slopes(y) - own + c)
        plus = own - c + (x - y) / (H * GAMMA)
        x = x + (y - x)[chosen].mean(axis=0)
        c = c + (plus - own)[chosen].sum(axis=0) / N
        own = np.where(chosen[:, None], plus, own)
    found = run(METHODS["scaffold"][0], cluster)
    np.testing.assert_allclose(found.params, x, rtol=2e-5)
    np.testing.assert_allclose(found.state.server, c, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found.state.workers.control, own, rtol=2e-5, atol=1e-6)


def test_the_training_loss_is_that_of_the_workers_that_participate():
    found = masked("local_sgd").history["train_loss"]
    for t, X in zip(range(T), averaged_every(H), strict=False):
        losses = 0.5 * np.einsum("ni,nij,nj->n", X, A, X) - (B * X).sum(axis=1)
        expected = losses[HERE[t]].mean() if HERE[t].any() else np.nan
        np.testing.assert_allclose(found[t + 1], expected, rtol=1e-5, atol=1e-6)


def test_a_worker_that_does_not_participate_has_no_work():
    """With weighted micro-batches, the mean is over those of the participating workers."""
    weights = DRAW.random((N, 2)).astype(np.float32)
    method = algorithms.with_local_work(algorithms.minibatch_sgd(SGD), dsgd.work.weighted(weights))
    cluster = clusters.Cluster(
        clusters.constant(0.5), present=clusters.trace(HERE.T.astype(float), 1.0)
    )
    history = run(algorithms.with_diagnostics(method), cluster, steps=4).history
    np.testing.assert_array_equal(history["samples"][1:], 2 * HERE[:4])
    np.testing.assert_allclose(history["clock"], np.arange(5))
    np.testing.assert_array_equal(np.isnan(history["local_sqnorms"][1:]), ~HERE[:4])
    x, sums = np.zeros(D), weights.sum(axis=1)
    for t in range(4):
        g = (sums[:, None] * slopes(np.tile(x, (N, 1))))[HERE[t]].mean(axis=0)
        np.testing.assert_allclose(history["global_sqnorm"][t + 1], g @ g, rtol=1e-4)
        x = x - GAMMA * g


REFUSED = [name for name in algorithms.ALGORITHMS if "all workers" in facts.find(name).needs]


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_methods_that_need_all_workers_are_refused_and_the_error_names_others(name):
    method = algorithms.make(name, SGD, N)
    if name not in REFUSED:
        assert dsgd.exchanges(method, PROBLEM, cluster=CLUSTER)
        return
    with pytest.raises(ValueError, match="workers do not participate") as error:
        dsgd.exchanges(method, PROBLEM, cluster=CLUSTER)
    assert str(error.value).startswith(method.name)
    assert str(error.value).endswith(GOES_ON)


def test_the_methods_that_errors_name_support_partial_participation():
    named = {
        algorithms.ALGORITHMS[name](SGD, N).name.partition("(")[0]
        for name in algorithms.ALGORITHMS.keys() - REFUSED
    }
    assert set(re.findall(r"\w+_\w+|scaffold", GOES_ON)) <= named


KIMAD = algorithms.kimad_sgd(SGD, algorithms.kimad.top_k([0.3]), 2.0)
CERTAIN, HALF = clusters.bernoulli(1.0, 1.0), clusters.bernoulli(0.5, 1.0)
NEGATIVE = topologies.from_matrix(
    1.1 * topologies.ring(N, topologies.lazy).W - 0.1 * COMPLETE.W, "mine"
)
ONE_SIDED = r"W of one_peer_exponential\(8\) is not symmetric"
UNFIT = [
    # a worker that misses a message of the server no longer has its estimate of the model
    (KIMAD, {"present": CERTAIN}, "misses a message of the server"),
    (KIMAD, {"delivered": CERTAIN}, "misses a message of the server"),
    (
        algorithms.ef21(SGD, *[compressors.sign] * 2, via=network.star),
        {"present": CERTAIN},
        "each worker's model is made of all replies of the server",
    ),
    # directed graphs are for push-sum, whose weights must remain positive
    (algorithms.decentralized_sgd(SGD, PUSH), {"delivered": HALF}, ONE_SIDED),
    (algorithms.gradient_tracking(SGD, PUSH), {"delivered": HALF}, ONE_SIDED),
    (algorithms.atc_tracking(SGD, PUSH), {"delivered": HALF}, ONE_SIDED),
    (algorithms.k_gt(SGD, PUSH, H), {"delivered": HALF}, ONE_SIDED),
    (algorithms.proximal_tracking(GAMMA, PUSH), {"delivered": HALF}, ONE_SIDED),
    (algorithms.local_sgd(SGD, H, PUSH), {"delivered": HALF}, ONE_SIDED),
    (
        algorithms.stochastic_gradient_push(SGD, NEGATIVE),
        {"present": CERTAIN},
        "W of mine has negative weights",
    ),
    (
        algorithms.decentralized_sgd(SGD, RING)._replace(
            absent=lambda before, after: before.params
        ),
        {"present": CERTAIN},
        "absent .* State.workers",
    ),
]


@pytest.mark.parametrize(("method", "missing", "words"), UNFIT)
def test_methods_that_do_not_fit_the_cluster_are_refused(method, missing, words):
    with pytest.raises(ValueError, match=words):
        run(method, clusters.Cluster(clusters.constant(1.0), **missing))


def test_states_are_kept_without_participation_unless_the_method_says_otherwise():
    """In a method that counts rounds, a worker counts the rounds in which it participates, and the
    server those in which any worker participates.
    """
    counting = dsgd.Algorithm(
        "counting",
        init=lambda params, N: dsgd.State((params, jnp.int32(0)), jnp.zeros(N, jnp.int32)),
        query=lambda state, round: dsgd.Query(state.server[0]),
        update=lambda state, gradients, round: state._replace(
            server=(state.server[0], state.server[1] + 1), workers=state.workers + 1
        ),
        model=lambda state: state.server[0],
    )
    found = run(counting).state
    np.testing.assert_array_equal(found.workers, HERE.sum(axis=0))
    assert found.server[1] == HERE.any(axis=1).sum() < T
    twice = counting._replace(absent=lambda before, after: before + 2 * (after - before))
    np.testing.assert_array_equal(run(twice).state.workers, 2 * T - HERE.sum(axis=0))
