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
    changes of all workers; their step sizes may differ.
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
    """SUDA; the exact methods on graphs are instances: Alghunaim and Yuan, "A unified and
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


def push_tracking(X: np.ndarray, G: Gradients, W: Matrices, step: Step) -> Rounds:
    """Push-DIGing: Nedic, Olshevsky and Shi, 2017. The tracker of the state is the sum that the
    round's messages give.
    """
    U, v, t = X, np.ones(len(X)), 0
    g = y = G(0, X)
    while True:
        U, v, mixed = W(t) @ (U + step(y)), W(t) @ v, W(t) @ y
        t += 1
        yield {"params": U, "weight": v, "tracker": mixed, "gradient": g}
        last, g = g, G(t, np.stack([U[n] / v[n] for n in range(len(X))]))
        y = mixed + g - last


def push_pull(X: np.ndarray, G: Gradients, R: Matrices, P: Matrices, step: Step) -> Rounds:
    """Push-Pull: Pu, Shi, Xu and Nedic, 2021. The tracker of the state is the sum that the round's
    messages give.
    """
    t = 0
    g = y = G(0, X)
    while True:
        X, mixed = R(t) @ (X + step(y)), P(t) @ y
        t += 1
        yield {"params": X, "tracker": mixed, "gradient": g}
        last, g = g, G(t, X)
        y = mixed + g - last


def ab(X: np.ndarray, G: Gradients, A: Matrices, B: Matrices, step: Step) -> Rounds:
    """AB: Xin and Khan, 2018; otherwise as `push_pull`."""
    t = 0
    g = y = G(0, X)
    while True:
        X, mixed = A(t) @ X + step(y), B(t) @ y
        t += 1
        yield {"params": X, "tracker": mixed, "gradient": g}
        last, g = g, G(t, X)
        y = mixed + g - last


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


def lead(
    X: np.ndarray, G: Gradients, W: Matrices, step: Step, q: Q, eta: float, alpha: float
) -> Rounds:
    """LEAD: Liu et al., 2021, with a fixed step size. Departures: no step without gossip before the
    first round, and H starts at the common x_0.
    """
    W_, gamma, t = W(0), -step(np.ones(())), 0
    D, H, H_w = np.zeros_like(X), X, W_ @ X
    while True:
        g = G(t, X)
        Y = X - gamma * g - gamma * D
        Q = _each(q, Y - H)
        Y_hat, Y_hat_w = H + Q, H_w + W_ @ Q
        H, H_w = (1 - alpha) * H + alpha * Y_hat, (1 - alpha) * H_w + alpha * Y_hat_w
        D = D + eta / (2 * gamma) * (Y_hat - Y_hat_w)
        X = X - gamma * g - gamma * D
        t += 1
        yield {"params": X, "correction": -gamma * D}


def dcd(X: np.ndarray, G: Gradients, W: Matrices, step: Step, q: Q) -> Rounds:
    """DCD-PSGD: Tang et al., 2018."""
    t = 0
    while True:
        half = W(0) @ X + step(G(t, X))
        X = X + _each(q, half - X)
        t += 1
        yield {"params": X, "laplacian": W(0) @ X - X}


def ecd(X: np.ndarray, G: Gradients, W: Matrices, step: Step, q: Q) -> Rounds:
    """ECD-PSGD: Tang et al., 2018."""
    X_hat, t = X, 1
    while True:
        after = W(0) @ X_hat + step(G(t - 1, X))
        z = (1 - t / 2) * X + t / 2 * after
        X_hat = (1 - 2 / t) * X_hat + 2 / t * _each(q, z)
        X = after
        t += 1
        yield {"params": X, "x_hat": X_hat}


def motef(
    X: np.ndarray, G: Gradients, W: Matrices, step: Step, q: Q, eta: float, momentum: float
) -> Rounds:
    """MoTEF: Islamov, Gao and Stich, 2024; BEER if the momentum step is 1. Departure: the copies
    start at the common x_0 and at C(V_0) instead of 0.
    """
    pull, M, H, t = W(0) - np.eye(len(X)), G(0, X), X, 0
    V, C_V = M, _each(q, M)
    while True:
        X = X + eta * pull @ H + step(V)
        yield {"params": X, "correction": V + eta * pull @ C_V - M}
        H = H + _each(q, X - H)
        t += 1
        before, M = M, (1 - momentum) * M + momentum * G(t, X)
        V = V + eta * pull @ C_V + M - before
        C_V = C_V + _each(q, V - C_V)


def c_gt(
    X: np.ndarray, G: Gradients, W: Matrices, step: Step, q: Q, eta: float, alpha: float
) -> Rounds:
    """C-GT: Liao, Li, Huang and Pu, 2022. Departure: the copies start at the common x_0 and 0."""
    I_W, g, H, t = np.eye(len(X)) - W(0), G(0, X), X, 0
    Y, H_Y = g, np.zeros_like(X)
    while True:
        Q, Q_Y = _each(q, X - H), _each(q, Y - H_Y)
        X_hat, Y_hat = H + Q, H_Y + Q_Y
        H, H_Y = H + alpha * Q, H_Y + alpha * Q_Y
        X = X - eta * I_W @ X_hat + step(Y)
        yield {"params": X, "correction": Y - eta * I_W @ Y_hat - g}
        t += 1
        last, g = g, G(t, X)
        Y = Y - eta * I_W @ Y_hat + g - last


def _each(q: Q, X: np.ndarray) -> np.ndarray:
    """Returns the messages of all workers, `[N, d]`."""
    return np.stack([q(x) for x in X])


def by_layers(q: Q, layers: Sequence[int]) -> Q:
    """Returns the compressor of a model that compresses each layer of these sizes separately."""
    return lambda x: np.concatenate([q(layer) for layer in np.split(x, np.cumsum(layers)[:-1])])
