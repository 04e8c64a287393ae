r"""SGD with gradients of earlier models within a distance R: theorem 2.4 of Birch SGD.

One statement holds for many methods. The main branch of a method is $x_{k+1} = x_k - \gamma
g(z_k)$, one gradient after the other. It contains all gradients from which $z_k$ was made, and at
most R more, and the noise of $g(z_k)$ is independent of them: R = 0 for SGD, B - 1 for Rennala with
batches of B gradients (its main branch adds gradients one by one, with $\gamma$ equal to its step
size divided by B), and one less than the threshold for Ringmaster. Then

$$ \gamma = \min\Big(\frac1{2L}, \frac1{2RL}, \frac\epsilon{4\sigma^2 L}\Big), \quad
K \ge \frac{4(R+1)LD}\epsilon + \frac{8\sigma^2 LD}{\epsilon^2} \quad\Rightarrow\quad
\frac1K \sum_k E|f'(x_k)|^2 \le \epsilon. $$

The constants follow from Theorem 4.2.3 (`theory_checks.asynchronous_sgd`). With averages
$A = \frac1K\sum E|f'(x_k)|^2$, $Z = \frac1K\sum E|f'(z_k)|^2$ and $W = \frac{L^2}K\sum E|x_k -
z_k|^2$, its proof gives

$$ A + (1 - \gamma L) Z - W \le \frac{2D}{\gamma K} + \gamma L\sigma^2, \qquad
W \le 2(\gamma LR)^2 Z + 2\gamma^2L^2R\sigma^2. $$

Let $b = 2\sigma^2/\epsilon$, so that $\frac1\gamma = 2L\max(1, R, b)$ and $\frac{2D}{\gamma K} \le
\epsilon \frac{\max(1, R, b)}{R + 1 + b}$. For $b \le \max(1, R)$ the terms with Z are not negative
together, and

$$ \frac A\epsilon \le \frac{\max(1, R)}{R + 1 + b} + \frac b{4\max(1, R)} \Big(1 +
\frac R{\max(1, R)}\Big) \le 1, $$

since it is convex in b and at most 1 at both ends. For larger b this sum exceeds 1, so that Z must
be kept: $A \le 2Z + 2W$. With $\rho = R/b$, $s = \gamma L$ and $\kappa = \frac{1 - s -
\rho^2/2}{1 + \rho^2/2}$, an A of at least $\epsilon$ would imply

$$ 1 + \kappa \frac{2 - \rho}4 \le \frac1{1 + \rho + 2s} + \frac{1 + \rho}4, $$

which is false for $0 \le \rho \le 1$ and $0 < s \le \frac12$.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, partial

import jax
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import clusters
from dsgd.base import Problem
from theory_checks.machinery import instances, ranges, runs
from theory_checks.machinery.statement import Condition, Draws, Outcome, Statement
from theory_checks.statements.asynchronous_sgd import OLDEST, with_table
from theory_checks.statements.sgd import total_noise

# Length of all tables of distances: that of `asynchronous_sgd`, so that they share one program.
_LENGTH = 64


@ranges.validate("birch_sgd.step_size")
def step_size(*, smoothness: float, noise: float, tree_distance: int, epsilon: float) -> float:
    r"""Returns $\gamma = \min\big(\frac1{2L}, \frac1{2RL}, \frac\epsilon{4\sigma^2L}\big)$.

    Args:
        smoothness: L.
        noise: sigma, of one gradient.
        tree_distance: R.
        epsilon: the accuracy.

    Source: Tyurin and Sivtsov, "Birch SGD", 2025, Theorem 2.4.
    """
    return 1 / (2 * smoothness * max(1, tree_distance, 2 * noise**2 / epsilon))


@ranges.validate("birch_sgd.iterations")
def iterations(
    *, gap: float, smoothness: float, noise: float, tree_distance: int, epsilon: float
) -> int:
    r"""Returns $K = \big\lceil \frac{4(R+1)LD}\epsilon + \frac{8\sigma^2LD}{\epsilon^2}
    \big\rceil$, the number of gradients of the main branch.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        tree_distance: R.
        epsilon: the accuracy.

    Source: Tyurin and Sivtsov, "Birch SGD", 2025, Theorem 2.4.
    """
    cost = 4 * smoothness * gap / epsilon
    return max(1, math.ceil(cost * (tree_distance + 1 + 2 * noise**2 / epsilon)))


@ranges.validate("bounds.birch_sgd")
def bound(*, gap: float, smoothness: float, noise: float, steps: int, tree_distance: int) -> float:
    r"""Returns the bound on $\frac1K \sum_k E|f'(x_k)|^2$ at the step size of Theorem 2.4: the
    smallest $\epsilon$ for which K gradients are enough, the root of
    $K\epsilon^2 = 4(R+1)LD\,\epsilon + 8\sigma^2LD$.

    Args:
        gap: D = f(x_1) - f*.
        smoothness: L.
        noise: sigma, of one gradient.
        steps: K, number of gradients of the main branch.
        tree_distance: R, the largest number of its gradients that the model of a gradient lacks.

    Source: Tyurin and Sivtsov, "Birch SGD", 2025, Theorem 2.4.
    """
    half = 2 * (tree_distance + 1) * smoothness * gap / steps
    return half + math.sqrt(half**2 + 8 * noise**2 * smoothness * gap / steps)


def distances(history: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the distance dist(x_k, z_k) of each gradient of a method's main branch, measured in a
    run: the number of gradients of the branch that its model lacks, `[K]`.

    A gradient belongs to the branch if the server makes a step with it, or if it is one of the
    current model, which Rennala collects.

    Args:
        history: of every round of a method on `algorithms.asynchronous_server` whose state counts
            its steps: `server_steps` and `delay`.
    """
    steps, delay = (history[name][1:].astype(int) for name in ("server_steps", "delay"))
    before = np.concatenate([[0], steps[:-1]])
    used = (steps > before) | (delay == 0)
    branch = np.cumsum(used) - used  # length of the branch before each gradient
    first = np.searchsorted(before, np.arange(before.max() + 1))  # the first round of each model
    return (branch - branch[first[before - delay]])[used]


def hypotheses(distances: np.ndarray, tree_distance: int) -> list[Condition]:
    """Returns the condition dist(x_k, z_k) <= R."""
    farthest = int(distances.max())
    return [
        Condition(
            "dist(x_k, z_k) <= R",
            farthest <= tree_distance,
            f"dist = {farthest}, R = {tree_distance}",
        )
    ]


def check(problem: Problem, distances: np.ndarray, *, tree_distance: int, steps: int) -> Outcome:
    """Checks the bound against the exact moments, at the step size of the theorem.

    Args:
        problem: a quadratic whose workers have equal data.
        distances: dist(x_k, z_k) of the first gradients, at most `OLDEST`; repeated. If all are 0,
            the method is SGD.
        tree_distance: R.
        steps: K, at most 64.

    Raises:
        ValueError: if the problem is another, or a distance is larger than R.
    """
    noise = total_noise(problem)
    numbers = {"noise": noise, "steps": steps, "tree_distance": tree_distance}

    def epsilon_step(*, gap: float, smoothness: float, **_: float) -> float:
        epsilon = bound(gap=gap, smoothness=smoothness, **numbers)
        return step_size(
            smoothness=smoothness, noise=noise, tree_distance=tree_distance, epsilon=epsilon
        )

    def measure(gamma):
        if not distances.any():
            return runs.gradient(algorithms.sgd, problem, gamma, steps, one_worker=True)
        table = np.resize(distances, _LENGTH).astype(np.int32)
        options = {"one_worker": True, "varying": True, "more": table}
        return runs.exact_gradient(with_table(OLDEST), problem, gamma, steps, **options)

    return runs.compare(
        "birch_sgd",
        problem,
        measure,
        lambda learning_rate, **given: bound(**given),
        epsilon_step,
        lambda gamma: hypotheses(distances, tree_distance),
        None,
        case=f"R = {tree_distance}, ",
        **numbers,
    )


# --- Instances.

_WORKERS = 6
PROFILES: dict[str, np.ndarray] = {
    "i": np.arange(1.0, _WORKERS + 1),
    "sqrt(i)": np.sqrt(np.arange(1.0, _WORKERS + 1)),
    "one slow": np.array([1.0, 1.1, 1.2, 1.3, 1.4, 30.0]),
}
"""Seconds of a gradient, by worker."""
METHODS = {
    "ringmaster": (partial(algorithms.ringmaster_sgd, threshold=4), 3),
    "rennala": (partial(algorithms.rennala_sgd, batch=6), 5),
}
"""(optimizer -> method, R of the paper)."""
_NONE = np.zeros(1, int)  # the distances of SGD


@cache
def history(method: str, profile: str) -> Mapping[str, np.ndarray]:
    """Returns the history of a method of `METHODS` on a cluster of `PROFILES`."""
    return dsgd.run(
        METHODS[method][0](optax.sgd(0.1)),
        instances.unit_bowl(_WORKERS, [1.0]),
        steps=6 * _LENGTH,
        key=jax.random.key(0),
        cluster=clusters.Cluster(clusters.constant(PROFILES[profile])),
        mesh=1,
    ).history


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random quadratic with the distances of a method on a cluster."""
    problem = instances.quadratic(draws, 3, 2, hessians=("isotropic", "equal"), alike=True)
    method = draws.choice(("sgd", *METHODS))
    profile, steps = draws.choice(tuple(PROFILES)), draws.choice((3, 20, _LENGTH))
    if method == "sgd":
        return [check(problem, _NONE, tree_distance=0, steps=steps)]
    of = distances(history(method, profile))
    return [check(problem, of, tree_distance=METHODS[method][1], steps=steps)]


def bowls() -> list[Outcome]:
    """Checks quadratics on which only the start or the noise matters, with the largest constant
    distances and with those of the methods.
    """
    found = []
    for away, noise in ((1.0, 0.0), (0.3, 2.0)):
        problem = instances.bowl(3, 2, distance=away, smoothness=2.0, noise=noise)
        for of, R in (
            (_NONE, 0),
            (np.full(1, OLDEST), OLDEST),
            *((distances(history(method, "one slow")), R) for method, (_, R) in METHODS.items()),
        ):
            found.append(check(problem, of, tree_distance=R, steps=_LENGTH))
    return found


STATEMENTS = [
    Statement(
        "Birch SGD, exact",
        "Birch SGD, Theorem 2.4",
        "dist(x_k, z_k) <= R; noise independent of the branch",
        trial,
        (bowls,),
    )
]
