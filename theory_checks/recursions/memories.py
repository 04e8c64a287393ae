"""Methods with memories of compressed messages at workers and servers, and deterministic
compressors. One server receives one vector from each worker; `compressed` has methods with N
servers.
"""

from __future__ import annotations

import numpy as np

from theory_checks.recursions.compressed import Q
from theory_checks.recursions.shared import Gradients, Rounds, Step, at_one


def ef_bv(
    x: np.ndarray,
    G: Gradients,
    step: Step,
    N: int,
    q: Q,
    lambda_: float,
    nu: float,
    prox: Q = lambda x: x,
) -> Rounds:
    """Shifts h_n that learn the gradients; `prox` is the proximal step. DIANA has nu = 1.

    Source: Condat, Yi and Richtarik, "EF-BV", 2022; DIANA: Mishchenko et al., 2019.
    """
    h, t = np.zeros((N, len(x))), 0
    while True:
        g = at_one(G, t, x, N)
        sent = np.array([q(g[n] - h[n]) for n in range(N)])
        x = prox(x + step(h.mean(axis=0) + nu * sent.mean(axis=0)))
        h = h + lambda_ * sent
        t += 1
        yield {"x": x, "h_n": h, "h": h.mean(axis=0)}


def ef21_sgdm(
    x: np.ndarray, G: Gradients, step: Step, N: int, q: Q, eta: float, double: bool = False
) -> Rounds:
    """EF21 on momenta v_n or, if `double`, on momenta u_n of momenta. They start at 0, and the
    server makes its first step after the first messages.

    Source: Fatkhullin, Tyurin and Richtarik, "Momentum provably improves error feedback!", 2023.
    """
    v, u, g_n, t = (*np.zeros((3, N, len(x))), 0)
    while True:
        v = (1 - eta) * v + eta * at_one(G, t, x, N)
        u = (1 - eta) * u + eta * v
        target = u if double else v
        g_n = g_n + np.array([q(target[n] - g_n[n]) for n in range(N)])
        x = x + step(g_n.mean(axis=0))
        t += 1
        yield {"x": x, "v_n": v, "g_n": g_n, "g": g_n.mean(axis=0)}


def econtrol(x: np.ndarray, G: Gradients, step: Step, N: int, q: Q, eta: float) -> Rounds:
    """EF21 with an error memory e_n of weight eta.

    Source: Gao, Islamov and Stich, "EControl", 2024.
    """
    e, h, t = (*np.zeros((2, N, len(x))), 0)
    while True:
        g = at_one(G, t, x, N)
        delta = np.array([q(eta * e[n] + g[n] - h[n]) for n in range(N)])
        e = e + g - h - delta
        h = h + delta
        x = x + step(h.mean(axis=0))
        t += 1
        yield {"x": x, "e_n": e, "h_n": h, "h": h.mean(axis=0)}


def dist_ef_sgd(
    x: np.ndarray, G: Gradients, N: int, q: Q, gamma: list[float], mu: float = 0.0
) -> Rounds:
    """Memories in units of the gradient, which are multiplied by the ratio of two step sizes, at
    workers and server; Nesterov momentum of each worker.

    Source: Zheng, Huang and Kwok, "Communication-efficient distributed blockwise momentum SGD with
    error-feedback", 2019, algorithms 1 and 3; gamma_{-1} = 0.
    """
    (m, e), e_server, t, last = np.zeros((2, N, len(x))), np.zeros(len(x)), 0, 0.0
    while True:
        g, ratio = at_one(G, t, x, N), last / gamma[t]
        m = mu * m + g
        p = mu * m + g + ratio * e
        sent = np.array([q(p[n]) for n in range(N)])
        e = p - sent
        p_server = sent.mean(axis=0) + ratio * e_server
        answer = q(p_server)
        e_server = p_server - answer
        x = x - gamma[t] * answer
        last = gamma[t]
        t += 1
        yield {"x": x, "e_n": last * e, "e": last * e_server}
