r"""SGD with gradients of earlier models within a distance R: theorem 2.4 of Birch SGD.

One statement holds for many methods. The main branch of a method is $x_{k+1} = x_k - \gamma
g(z_k)$, one gradient after the other. It contains all gradients from which $z_k$ was made, and at
most R more, and the noise of $g(z_k)$ is independent of them: R = 0 for SGD, B - 1 for Rennala with
batches of B gradients (its main branch adds gradients one by one, with $\gamma$ equal to its step
size divided by B), and one less than the threshold for Ringmaster. A worker may also make local
steps with $\gamma$ before the server adds their sum. The distance of $x_k$ and $z_k$ is then the
number of gradients of the branch since the model from which the worker began, which includes its
own: R = N H - 1 for local SGD with H steps of N workers, and $n^2/s - 1$ for Cycle SGD, in which
groups of s of the n workers synchronize one after the other, each after n/s steps. (The paper
states B - 1 for B = N H gradients in all, and $n^2/s$.) Then

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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
import dsgd
from algorithms.asynchronous.asynchronous_server import Counted, LocalRuns
from dsgd import clusters
from dsgd.base import Algorithm, Problem
from theory_checks.machinery import instances, moments, ranges, runs
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


class Branch(NamedTuple):
    """The main branch of a method whose workers make local steps.

    Args:
        base: number of gradients of the branch in the model from which each gradient's worker began
            its run, `[K]`.
        run: number of gradients of the branch before the first one of this run, `[K]`.
    """

    base: np.ndarray
    run: np.ndarray

    @property
    def distances(self) -> np.ndarray:
        """Returns dist(x_k, z_k), `[K]`."""
        return np.arange(len(self.base)) - self.base


def local_branch(history: Mapping[str, np.ndarray]) -> Branch:
    """Returns the main branch of a method whose workers make local runs, measured in a run. It has
    one run after the other, in the order in which the server adds them.

    Args:
        history: of every round of a method on `algorithms.asynchronous_server` with local runs,
            each of which the server adds when it arrives: `server_steps`, `delay` and `worker`.
    """
    steps, delay, worker = (
        history[name][1:].astype(int) for name in ("server_steps", "delay", "worker")
    )
    before = np.concatenate([[0], steps[:-1]])
    ends = np.flatnonzero(steps > before)  # the last gradient of each run
    begun, base, run, lengths = {}, [], [], [0]
    for end in ends:
        first, n = begun.get(worker[end], 0), worker[end]
        count = int(np.sum(worker[first : end + 1] == n))
        base += count * [lengths[before[end] - delay[end]]]
        run += count * [lengths[-1]]
        lengths.append(lengths[-1] + count)
        begun[n] = end + 1
    return Branch(np.array(base), np.array(run))


def slopes(problem: Problem, branch: Branch, learning_rate: float) -> np.ndarray:
    r"""Returns $E|f'(x_k)|^2$ before each gradient of a branch, `[K]`, exactly: the mean, and the
    factor of the noise of each gradient, are followed along the branch for each eigenvector.

    Args:
        problem: a quadratic whose workers have equal data.
        branch: the branch.
        learning_rate: gamma.
    """
    of = moments.instance(problem, learning_rate, one_worker=True)
    A, b, root, start = (np.asarray(array) for array in (of.A[0], of.b[0], of.root, of.start))
    values, vectors = np.linalg.eigh(A)
    K = len(branch.base)
    models, gradients = (np.zeros((K + 1, len(A), K + 1)) for _ in range(2))
    models[0, :, -1] = vectors.T @ (start - np.linalg.solve(A, b))
    for k, (base, run) in enumerate(zip(*branch, strict=True)):
        z = models[base] - learning_rate * gradients[run:k].sum(axis=0)
        gradients[k] = values[:, None] * z
        gradients[k, :, k] += root[0, 0]  # a multiple of the identity
        models[k + 1] = models[k] - learning_rate * gradients[k]
    return np.sum((values[:, None] * models[:-1]) ** 2, axis=(1, 2))


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


def check(
    problem: Problem, distances: np.ndarray | Branch, *, tree_distance: int, steps: int
) -> Outcome:
    """Checks the bound against the exact moments, at the step size of the theorem.

    Args:
        problem: a quadratic whose workers have equal data.
        distances: dist(x_k, z_k) of the first gradients, at most `OLDEST`; repeated. If all are 0,
            the method is SGD. Or the branch of a method with local steps, of K gradients or more.
        tree_distance: R.
        steps: K, at most 64.

    Raises:
        ValueError: if the problem is another, or a distance is larger than R.
    """
    noise = total_noise(problem)
    far = distances.distances if isinstance(distances, Branch) else distances
    numbers = {"noise": noise, "steps": steps, "tree_distance": tree_distance}

    def epsilon_step(*, gap: float, smoothness: float, **_: float) -> float:
        epsilon = bound(gap=gap, smoothness=smoothness, **numbers)
        return step_size(
            smoothness=smoothness, noise=noise, tree_distance=tree_distance, epsilon=epsilon
        )

    def measure(gamma):
        if isinstance(distances, Branch):
            return float(slopes(problem, distances, gamma)[:steps].mean()), 0.0
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
        lambda gamma: hypotheses(far, tree_distance),
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


def local_steps(optimizer: optax.GradientTransformation, steps: int, group: int) -> Algorithm:
    """Returns the method whose workers make local steps and whose server adds the sum of each run.
    A worker begins again when the runs of its group are added.

    Args:
        optimizer: of the workers.
        steps: H, number of local steps of a run.
        group: s, number of workers that synchronize together; N: local SGD.
    """

    def start(model, N):
        return Counted(model.params, model.optimizer, jnp.int32(0))

    def step(model, change, arrival, read):
        return model._replace(
            params=jax.tree.map(jnp.subtract, model.params, change), steps=model.steps + 1
        )

    def order(model, arrival, jobs, key):
        groups = jnp.arange(len(jobs.worker)) // group
        mine = groups == groups[arrival.job]
        return jnp.where(mine & jnp.all(jobs.waiting | ~mine), jobs.worker, -1)

    local = LocalRuns(optimizer, steps)
    return algorithms.asynchronous_server(
        f"local_steps({steps}, {group})", optimizer, step, start=start, order=order, local=local
    )


LOCAL_METHODS = {
    "local SGD": (partial(local_steps, steps=2, group=_WORKERS), 2 * _WORKERS - 1),
    "Cycle SGD": (partial(local_steps, steps=_WORKERS // 2, group=2), _WORKERS**2 // 2 - 1),
}
"""(optimizer -> method, R on workers that are equally fast)."""


@cache
def history(method: str, profile: str) -> Mapping[str, np.ndarray]:
    """Returns the history of a method of `METHODS` or `LOCAL_METHODS` on a cluster of `PROFILES`,
    or on equally fast workers ("equal").
    """
    seconds = PROFILES.get(profile, np.full(_WORKERS, 1.75))
    return dsgd.run(
        (METHODS | LOCAL_METHODS)[method][0](optax.sgd(0.1)),
        instances.unit_bowl(_WORKERS, [1.0]),
        steps=6 * _LENGTH,
        key=jax.random.key(0),
        cluster=clusters.Cluster(clusters.constant(seconds)),
        mesh=1,
    ).history


def trial(draws: Draws) -> list[Outcome]:
    """Checks a random quadratic with the distances of a method on a cluster."""
    problem = instances.quadratic(draws, 3, 2, hessians=("isotropic", "equal"), alike=True)
    method = draws.choice(("sgd", *METHODS, *LOCAL_METHODS))
    profile, steps = draws.choice(tuple(PROFILES)), draws.choice((3, 20, _LENGTH))
    if method in LOCAL_METHODS:
        branch = local_branch(history(method, "equal"))
        return [check(problem, branch, tree_distance=LOCAL_METHODS[method][1], steps=steps)]
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
            *(
                (local_branch(history(method, "equal")), R)
                for method, (_, R) in LOCAL_METHODS.items()
            ),
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
