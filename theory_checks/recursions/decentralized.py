"""Methods on graphs. `W(t)` is the matrix of round t, whose entry ij is the weight that i gives to
j's model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from theory_checks.recursions.compressed import Q
from theory_checks.recursions.shared import Gradients, Matrices, Rounds, Step


def decentralized(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """Decentralized SGD: Liu and Zhang, (5.2)."""
    t = 0
    while True:
        X = W(t) @ (X + step(G(t, X)))
        t += 1
        yield {"params": X}


def combine_then_adapt(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """DGD: Nedic and Ozdaglar, 2009."""
    t = 0
    while True:
        X = W(t) @ X + step(G(t, X))
        t += 1
        yield {"params": X}


def synchronized_momentum(
    X: np.ndarray, G: Gradients, W: Matrices, gamma: float, beta: float
) -> Rounds:
    """Decentralized SGD with averaged momenta: Yu, Jin and Yang, 2019."""
    u, t = np.zeros_like(X), 0
    while True:
        u = beta * u + G(t, X)
        X, u = W(t) @ (X - gamma * u), W(t) @ u
        t += 1
        yield {"params": X}


def quasi_global(
    X: np.ndarray,
    G: Gradients,
    W: Matrices,
    gamma: float,
    beta: float,
    mu: float,
    nesterov: bool = False,
) -> Rounds:
    """QG-DSGDm: Lin, Karimireddy, Stich and Jaggi, 2021. The symbol `momentum` is gamma times the
    paper's.
    """
    m, t = np.zeros_like(X), 0
    while True:
        g, before = G(t, X), X
        direction = beta * m + g
        if nesterov:
            direction = g + beta * direction
        X = W(t) @ (X - gamma * direction)
        m = mu * m + (1 - mu) * (before - X) / gamma
        t += 1
        yield {"params": X, "momentum": gamma * m}


def decentlam(X: np.ndarray, G: Gradients, W: Matrices, gamma: float, beta: float) -> Rounds:
    """DecentLaM: Yuan et al., 2021. The symbol `momentum` is gamma times the paper's."""
    m, t = np.zeros_like(X), 0
    while True:
        g = (X - W(t) @ (X - gamma * G(t, X))) / gamma
        m = beta * m + g
        X = X - gamma * m
        t += 1
        yield {"params": X, "momentum": gamma * m}


def d_squared(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """D2: Tang et al., "D2: decentralized training over decentralized data", 2018, algorithm 1."""
    before, change = X, step(G(0, X))
    X, t = W(0) @ (before + change), 1
    yield {"params": X}
    while True:
        last, change = change, step(G(t, X))
        before, X = X, W(0) @ (2 * X - before + change - last)
        t += 1
        yield {"params": X}


def extra(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """EXTRA, with W~ = (I + W) / 2: Shi et al., 2015, (2.13)."""
    before, change, eye = X, step(G(0, X)), np.eye(len(X))
    X, t = W(0) @ before + change, 1
    yield {"params": X}
    while True:
        last, change = change, step(G(t, X))
        before, X = X, (eye + W(0)) @ X - (eye + W(0)) / 2 @ before + change - last
        t += 1
        yield {"params": X}


def nids(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """NIDS: Li, Shi and Yan, 2019, with equal step sizes. The first round applies W as in exact
    diffusion.
    """
    return d_squared(X, G, lambda t: (np.eye(len(X)) + W(t)) / 2, step)


def tracking(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """Gradient tracking: Nedic, Olshevsky and Shi, 2017, DIGing. Departure for schedules: trackers
    are mixed by the round's matrix, as the models are.
    """
    g = y = G(0, X)
    X, t = W(0) @ X + step(y), 1
    yield {"params": X, "tracker": y, "gradient": g}
    while True:
        last, g = g, G(t, X)
        y = W(t) @ y + g - last
        X = W(t) @ X + step(y)
        t += 1
        yield {"params": X, "tracker": y, "gradient": g}


def adapt_then_combine_tracking(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """Gradient tracking that adapts, then combines: Di Lorenzo and Scutari, 2016, NEXT with linear
    surrogates. The tracker of the state is the average that the round's messages give.
    """
    g = y = G(0, X)
    t = 0
    while True:
        X, mixed = W(t) @ (X + step(y)), W(t) @ y
        t += 1
        yield {"params": X, "tracker": mixed, "gradient": g}
        last, g = g, G(t, X)
        y = mixed + g - last


def augmented_tracking(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """Aug-DGM: Xu, Zhu, Soh and Xie, 2015. The first trackers are mixed, too. `step` gives the
    changes of all workers, whose step sizes may differ.
    """
    g, t = G(0, X), 0
    y = W(0) @ g
    while True:
        X = W(t) @ (X + step(y))
        t += 1
        yield {"params": X, "tracker": y, "gradient": g}
        last, g = g, G(t, X)
        y = W(t) @ (y + g - last)


def momentum_tracking(X: np.ndarray, G: Gradients, W: Matrices, step: Step, beta: float) -> Rounds:
    """MT-DSGDm: Takezawa et al., 2023. Momenta and corrections start at 0. The corrections of a
    round are mixed in the next, together with its models.
    """
    u, c, t = np.zeros_like(X), np.zeros_like(X), 0
    while True:
        last = u
        u = beta * u + G(t, X)
        # of the paper's previous round: C = (C - U) W + U
        c = W(t) @ (c - last) + last
        X = W(t) @ X + step(u - c)
        t += 1
        yield {"params": X, "tracker": u - c, "gradient": u}


def suda(
    X: np.ndarray, G: Gradients, step: Step, A: np.ndarray, B: np.ndarray, C: np.ndarray
) -> Rounds:
    """SUDA, of which the exact methods on graphs are instances: Alghunaim and Yuan, "A unified and
    refined convergence analysis for non-convex decentralized learning", 2022. A, B and C are
    polynomials in a symmetric W, or square roots of them; the models start equal.
    """
    Y, t = np.zeros_like(X), 0
    while True:
        X = A @ (C @ X + step(G(t, X))) - B @ Y
        Y = Y + B @ X
        t += 1
        yield {"params": X}


def push(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """Stochastic gradient push: Assran et al., 2019, algorithm 1."""
    w, t = np.ones(len(X)), 0
    while True:
        z = np.stack([X[n] / w[n] for n in range(len(X))])
        X = W(t) @ (X + step(G(t, z)))
        w = W(t) @ w
        t += 1
        yield {"params": X, "weight": w}


def choco(X: np.ndarray, G: Gradients, W: Matrices, step: Step, q: Q, eta: float) -> Rounds:
    """CHOCO-SGD: Koloskova, Stich and Jaggi, 2019, algorithm 2. Every worker i keeps its own copy
    of each neighbour's x-hat, here `hat[i, j]`; all start at the common x_0 instead of 0.
    """
    N, t = len(X), 0
    hat = np.tile(X[0], (N, N, 1))
    while True:
        half = X + step(G(t, X))
        messages = [q(half[i] - hat[i, i]) for i in range(N)]
        for i in range(N):
            for j in range(N):
                if W(0)[i, j] != 0 or i == j:
                    hat[i, j] = hat[i, j] + messages[j]
        X = np.stack(
            [
                half[i] + eta * sum(W(0)[i, j] * (hat[i, j] - hat[i, i]) for j in range(N))
                for i in range(N)
            ]
        )
        x_hat = np.stack([hat[i, i] for i in range(N)])
        t += 1
        yield {
            "params": X,
            "x_hat": x_hat,
            "laplacian": np.einsum("ij,ijk->ik", W(0), hat - x_hat[:, None]),
        }


def squeeze(X: np.ndarray, G: Gradients, W: Matrices, step: Step, q: Q, eta: float) -> Rounds:
    """DeepSqueeze: Tang et al., 2019, algorithm 1."""
    delta, t, N = np.zeros_like(X), 0, len(X)
    while True:
        half = X + step(G(t, X))
        v = half + delta
        C = np.stack([q(v[i]) for i in range(N)])
        delta = v - C
        X = np.stack(
            [
                half[i] + eta * sum((W(t) - np.eye(N))[i, j] * C[j] for j in range(N))
                for i in range(N)
            ]
        )
        t += 1
        yield {"params": X, "error": delta}


def by_layers(q: Q, layers: Sequence[int]) -> Q:
    """Returns the compressor of a model that compresses each layer of these sizes separately."""
    return lambda x: np.concatenate([q(layer) for layer in np.split(x, np.cumsum(layers)[:-1])])
