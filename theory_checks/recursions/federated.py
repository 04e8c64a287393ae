"""Federated methods whose clients make different numbers of steps or have memory, and methods with
corrected local steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory_checks.recursions.shared import Gradients, Rounds


def fed_nova(
    x: np.ndarray, G: Gradients, gamma: float, rho: float, tau: np.ndarray, H: int, beta: float
) -> Rounds:
    r"""FedNova with local momentum: $a_n$ has the weights of the client's gradients in its change.

    Args:
        rho: the clients' momentum.
        tau: numbers of steps, `[N]`, at most H; client n computes in the first tau_n of H rounds,
            and is absent if tau_n = 0.
        beta: the server's momentum.

    Source: Wang et al., "Tackling the objective inconsistency problem", 2020.
    """
    N, S, m, t = len(tau), tau > 0, np.zeros_like(x), 0
    norms = np.array([sum((1 - rho**k) / (1 - rho) for k in range(1, steps + 1)) for steps in tau])
    while True:
        y, u = np.tile(x, (N, 1)), np.zeros((N, len(x)))
        for h in range(H):
            u = rho * u + G(t, y)
            y = np.where((h < tau)[:, None], y - gamma * u, y)
            t += 1
            if h + 1 < H:
                yield {"params": y, "server": x}
        d = (x - y)[S] / (gamma * norms[S, None])
        m = beta * m + gamma * norms[S].mean() * d.mean(axis=0)
        x = x - m
        yield {"params": np.tile(x, (N, 1)), "server": x}


def fed_dyn(x: np.ndarray, G: Gradients, N: int, gamma: float, alpha: float, H: int) -> Rounds:
    """FedDyn with all clients; their problems are solved by H gradient steps.

    Source: Acar et al., "Federated learning based on dynamic regularization", 2021, Algorithm 1.
    """
    h, memory, t = np.zeros_like(x), np.zeros((N, len(x))), 0
    while True:
        theta = np.tile(x, (N, 1))
        for k in range(H):
            theta = theta - gamma * (G(t, theta) - memory + alpha * (theta - x))
            t += 1
            if k + 1 < H:
                yield {"params": theta, "memory": memory, "server": x, "h": h}
        memory = memory - alpha * (theta - x)
        h = h - alpha / N * (theta - x).sum(axis=0)
        x = theta.mean(axis=0) - h / alpha
        yield {"params": np.tile(x, (N, 1)), "memory": memory, "server": x, "h": h}


def fed_paq(
    x: np.ndarray, G: Gradients, N: int, gamma: float, H: int, q: Callable[[np.ndarray], np.ndarray]
) -> Rounds:
    """FedPAQ with all clients.

    Source: Reisizadeh et al., "FedPAQ", 2020.
    """
    t = 0
    while True:
        y = np.tile(x, (N, 1))
        for h in range(H):
            y = y - gamma * G(t, y)
            t += 1
            if h + 1 < H:
                yield {"params": y}
        x = x + np.mean([q(each - x) for each in y], axis=0)
        yield {"params": np.tile(x, (N, 1))}


def fed_comgate(
    x: np.ndarray,
    G: Gradients,
    N: int,
    eta: float,
    gamma: float,
    H: int,
    q: Callable[[np.ndarray], np.ndarray],
) -> Rounds:
    r"""FedCOMGATE with all clients, from messages that are multiplied by $\eta$.

    Args:
        eta: step of the clients.
        gamma: step of the server.

    Source: Haddadpour et al., "Federated learning with compression", 2021.
    """
    delta, t = np.zeros((N, len(x))), 0
    while True:
        w = np.tile(x, (N, 1))
        for c in range(H):
            w = w - eta * (G(t, w) - delta)
            t += 1
            if c + 1 < H:
                yield {"params": w, "memory": delta}
        messages = np.array([q(x - each) / eta for each in w])
        delta = delta + (messages - messages.mean(axis=0)) / H
        x = x - eta * gamma * messages.mean(axis=0)
        yield {"params": np.tile(x, (N, 1)), "memory": delta}


def scaffnew(X: np.ndarray, G: Gradients, gamma: float, p: float, coins: np.ndarray) -> Rounds:
    """Scaffnew.

    Args:
        coins: theta, bool `[T]`.

    Source: Mishchenko et al., "ProxSkip", 2022, Algorithm 2.
    """
    h = np.zeros_like(X)
    for t, coin in enumerate(coins):
        hat = X - gamma * (G(t, X) - h)
        X = np.tile(hat.mean(axis=0), (len(X), 1)) if coin else hat
        h = h + p / gamma * (X - hat)
        yield {"params": X, "control": h}


def mime_lite(
    x: np.ndarray, G: Gradients, N: int, gamma: float, beta: float, H: int, eta: float
) -> Rounds:
    r"""MimeLite with momentum: $\mathcal U(g, m) = g + \beta m$, $\mathcal V(c, m) = c + \beta m$.
    The first local gradients are those at x.

    Args:
        eta: the server's step.

    Source: Karimireddy et al., "Mime", 2020, Algorithm 1.
    """
    m, t = np.zeros_like(x), 0
    while True:
        y = np.tile(x, (N, 1))
        c = G(t, y).mean(axis=0)
        for h in range(H):
            y = y - gamma * (G(t, y) + beta * m)
            t += 1
            if h + 1 < H:
                yield {"params": y, "server": x, "momentum": m}
        x, m = x + eta * (y.mean(axis=0) - x), c + beta * m
        yield {"params": np.tile(x, (N, 1)), "server": x, "momentum": m}


def mime(
    x: np.ndarray,
    G: Gradients,
    exact: Gradients,
    N: int,
    gamma: float,
    beta: float,
    H: int,
    eta: float,
) -> Rounds:
    """Mime with momentum, as `mime_lite`. The two gradients of a step have the same draw; c is the
    mean of exact gradients.
    """
    m, t = np.zeros_like(x), 0
    while True:
        start = np.tile(x, (N, 1))
        c, y = exact(t, start).mean(axis=0), start
        for h in range(H):
            y = y - gamma * (G(t, y) - G(t, start) + c + beta * m)
            t += 1
            if h + 1 < H:
                yield {"params": y, "server": x, "momentum": m}
        x, m = x + eta * (y.mean(axis=0) - x), c + beta * m
        yield {"params": np.tile(x, (N, 1)), "server": x, "momentum": m}
