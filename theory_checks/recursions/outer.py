"""Methods with local steps, after which a server makes a step on the mean of the workers' changes;
methods whose averages have different periods; and elastic averages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory_checks.recursions.shared import Gradients, Rounds, Steps

# (x, Delta) -> the next x; some have memory
Outer = Callable[[np.ndarray, np.ndarray], np.ndarray]


def local_steps(
    x: np.ndarray,
    G: Gradients,
    N: int,
    steps: Steps,
    H: int,
    outer: Outer,
    *,
    fresh: bool,
    proximal: float = 0.0,
) -> Rounds:
    r"""H local steps from x, $y_n \leftarrow y_n - \gamma (g_n(y_n) + \mu (y_n - x))$, then
    $x \leftarrow \mathrm{Outer}(x, \frac1N \sum_n (x - y_n))$.

    Args:
        steps: makes the local step.
        outer: the step of the server.
        fresh: whether the local step's memory is empty after each synchronization.
        proximal: mu.

    Source: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 1; Douillard et al.,
    "DiLoCo", 2023, Algorithm 1; with mu, Li et al., "Federated optimization in heterogeneous
    networks", 2020, Algorithm 2.
    """
    t, step = 0, steps()
    while True:
        y = np.tile(x, (N, 1))
        step = steps() if fresh else step
        for h in range(H):
            y = y + step(G(t, y) + proximal * (y - x))
            t += 1
            if h + 1 < H:
                yield {"params": y, "server": x}
        x = outer(x, (x - y).mean(axis=0))
        yield {"params": np.tile(x, (N, 1)), "server": x}


def averaging(x: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Returns the mean of the models (FedAvg)."""
    return x - delta


def nesterov(eta: float, mu: float) -> Outer:
    r"""DiLoCo's outer step: $u \leftarrow \mu u + \Delta$, $x \leftarrow x - \eta (\Delta + \mu
    u)$.
    """
    u = np.zeros(())

    def outer(x, delta):
        nonlocal u
        u = mu * u + delta
        return x - eta * (delta + mu * u)

    return outer


def slow_momentum(gamma: float, alpha: float, beta: float) -> Outer:
    r"""SlowMo: $u \leftarrow \beta u + \frac1\gamma \Delta$, $x \leftarrow x - \alpha \gamma u$.

    Source: Wang et al., "SlowMo", 2020, Algorithm 1.
    """
    u = np.zeros(())

    def outer(x, delta):
        nonlocal u
        u = beta * u + delta / gamma
        return x - alpha * gamma * u

    return outer


def block_momentum(zeta: float, beta: float) -> Outer:
    r"""BMUF with classical block momentum: $D \leftarrow \beta D + \zeta (\bar y - x)$, $x
    \leftarrow x + D$.

    Source: Chen and Huo, "Scalable training of deep learning machines ...", 2016.
    """
    change = np.zeros(())

    def outer(x, delta):
        nonlocal change
        change = beta * change - zeta * delta
        return x + change

    return outer


def adaptive(kind: str, eta: float, beta1: float, beta2: float, tau: float) -> Outer:
    r"""FedAdagrad, FedYogi and FedAdam, with the ascent direction $D = -\Delta$ of the paper:
    $m \leftarrow \beta_1 m + (1 - \beta_1) D$, $x \leftarrow x + \eta m / (\sqrt v + \tau)$, from
    $m = 0$ and $v = \tau^2$.

    Args:
        kind: "adagrad", "yogi" or "adam", which determines v.

    Source: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2.
    """
    m, v = np.zeros(()), np.array(tau**2)

    def outer(x, delta):
        nonlocal m, v
        D = -delta
        m = beta1 * m + (1 - beta1) * D
        v = {
            "adagrad": v + D**2,
            "yogi": v - (1 - beta2) * D**2 * np.sign(v - D**2),
            "adam": beta2 * v + (1 - beta2) * D**2,
        }[kind]
        return x + eta * m / (np.sqrt(v) + tau)

    return outer


def post_local(X: np.ndarray, G: Gradients, N: int, steps: Steps, switch: int, H: int) -> Rounds:
    """Post-local SGD: models are averaged in each of the first rounds, then every H rounds.

    Args:
        switch: number of the first local round.

    Source: Lin et al., "Don't use large mini-batches, use local SGD", 2020.
    """
    step, t, since = steps(), 0, 0
    while True:
        X = X + step(G(t, X))
        since += 1
        if since >= (1 if t < switch else H):
            X, since = np.tile(X.mean(axis=0), (N, 1)), 0
        t += 1
        yield {"params": X}


def desynced(X: np.ndarray, G: Gradients, gamma: float, periods: tuple[int, int, int]) -> Rounds:
    """DES-LOC with Adam: before the gradient of round t is computed and added, models, first and
    second moments are replaced by their means if t is a multiple of their period.

    Args:
        periods: K_x, K_u and K_v.

    Source: Iacob et al., "DES-LOC", 2025.
    """
    u, v, t = np.zeros_like(X), np.zeros_like(X), 0

    def mean_if(period, rows):
        return np.tile(rows.mean(axis=0), (len(rows), 1)) if t % period == 0 else rows

    while True:
        g = G(t, X)
        u, v = 0.9 * u + 0.1 * g, 0.999 * v + 0.001 * g**2
        t += 1
        X = X - gamma * (u / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        X, u, v = (mean_if(K, rows) for K, rows in zip(periods, (X, u, v), strict=True))
        yield {"params": X, "mu": u, "nu": v}


def elastic_momentum(
    X: np.ndarray,
    center: np.ndarray,
    G: Gradients,
    gamma: float,
    mu: float,
    alpha: float,
    H: int,
) -> Rounds:
    """Synchronous EAMSGD.

    Source: Zhang et al., "Deep learning with elastic averaging SGD", 2015.
    """
    v, t = np.zeros_like(X), 0
    while True:
        v = mu * v - gamma * G(t, X + mu * v)
        t += 1
        pull = alpha * (X - center) if t % H == 0 else 0 * X
        X, center = X + v - pull, center + pull.sum(axis=0)
        yield {"params": X, "velocity": v, "x": center}


def elastic(
    X: np.ndarray, center: np.ndarray, G: Gradients, steps: Steps, alpha: float, H: int
) -> Rounds:
    """Synchronous EASGD; models and center attract each other in rounds H, 2H, ...

    Source: Zhang et al., "Deep learning with elastic averaging SGD", 2015, (5) and (6).
    """
    step, t = steps(), 0
    while True:
        moved, pull = X + step(G(t, X)), alpha * (X - center)
        t += 1
        if t % H == 0:
            moved, center = moved - pull, center + pull.sum(axis=0)
        X = moved
        yield {"params": X, "x": center}


def adacomm(
    X: np.ndarray,
    G: Gradients,
    losses: Gradients,
    gammas: Callable[[int], float],
    H: int,
    interval: int,
    minimum: float,
) -> Rounds:
    r"""AdaComm: $H \leftarrow \lceil \sqrt{\gamma_0 (F - F_{inf}) / (\gamma_t (F_0 - F_{inf}))} H_0
    \rceil$, or $\lceil H / 2 \rceil$ if that is not less than H.

    Args:
        losses: losses of all workers, (t, X) -> `[N]`.
        gammas: the step size of each round.
        H: the first period.
        interval: the least number of rounds between decisions.
        minimum: F_inf.

    Source: Wang and Joshi, "Adaptive communication strategies", 2019, AdaComm.
    """
    first, start, t, decided = H, losses(0, X).mean(), 0, 0
    while True:
        F = losses(t, X).mean()
        for h in range(H):
            X = X - gammas(t) * G(t, X)
            t += 1
            if h + 1 < H:
                yield {"params": X, "period": np.array(H)}
        X = np.tile(X.mean(axis=0), (len(X), 1))
        if t - decided >= interval:
            ratio = gammas(0) * (max(F, minimum) - minimum) / (gammas(t) * (start - minimum))
            target = int(np.ceil(np.sqrt(ratio) * first))
            H, decided = (max(target, 1) if target < H else -(-H // 2)), t
        yield {"params": X, "period": np.array(H)}
