r"""CHOCO-gossip and DeepSqueeze without gradients: how disagreement and what compression leaves out
follow each other.

Rows are workers, W symmetric, $\beta = |I - W|_2$, $\delta = 1 - \rho$, $|C(x) - x| \le s |x|$ with
$s = \sqrt{1 - \omega}$, $r = \max_{\lambda \ne 1} |1 - \eta (1 - \lambda)| \le 1 - \eta\delta$.
$\tilde X = (I - J) X$; the mean stays as it is.

CHOCO-gossip. $\hat X_{t+1} = \hat X_t + C(X_t - \hat X_t)$,
$X_{t+1} = X_t + \eta (W - I) \hat X_{t+1}$. With $z_t = (|\tilde X_t|, |X_t - \hat X_{t+1}|)$:
$\tilde X_{t+1} = (I + \eta(W - I)) \tilde X_t + \eta (W - I)(\hat X_{t+1} - X_t)$, and
$X_{t+1} - \hat X_{t+1} = (I - \eta(W - I))(X_t - \hat X_{t+1}) + \eta(W - I) \tilde X_t$, of which
C leaves out at most s times as much:

$$ z_{t+1} \le M z_t, \qquad M = \begin{pmatrix} r & \eta\beta \\ s\eta\beta & s(1 + \eta\beta)
\end{pmatrix}. $$

$\det(I - M) > 0$ where $\eta < \frac{\delta (1 - s)}{s \beta (\delta + \beta)}$: all larger than
the step of Koloskova, Stich and Jaggi,
$\eta = \delta^2\omega / (16\delta + \delta^2 + 4\beta^2 + 2\delta\beta^2 - 8\delta\omega)$, for
which they show $|z_{t+1}|^2 \le (1 - \delta^2\omega/82) |z_t|^2$ (Theorem 2).

DeepSqueeze. $V_t = X_t + \Delta_{t-1}$, $\Delta_t = V_t - C(V_t)$,
$X_{t+1} = X_t + \eta (W - I) C(V_t)$. It compresses the models, not what they differ by:
$|\Delta_t| \le s (|\tilde X_t| + \sqrt N |\bar x| + |\Delta_{t-1}|)$, and
$C(V_t) = X_t + \Delta_{t-1} - \Delta_t$ gives
$|\tilde X_{t+1}| \le r |\tilde X_t| + \eta\beta (|\Delta_{t-1}| + |\Delta_t|)$. So
$z_t = (|\tilde X_t|, |\Delta_{t-1}|, \sqrt N |\bar x|)$ has

$$ z_{t+1} \le \begin{pmatrix} r + \eta\beta s & \eta\beta (1 + s) & \eta\beta s \\ s & s & s \\ 0 &
0 & 1 \end{pmatrix} z_t, $$

in which disagreement does not vanish, but follows the size of the mean, at most in proportion to
$\eta$ per round.

Source: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms
with compressed communication", 2019; Tang et al., "DeepSqueeze", 2019. The matrices are derived
here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import optax

import algorithms
import topologies
from dsgd import compressors, problems
from dsgd.base import State
from dsgd.graphs.topology import Topology
from theory_checks.machinery import paths
from theory_checks.machinery.rounds import Build
from theory_checks.machinery.statement import Draws, Method, Outcome, Statement
from theory_checks.statements.decentralized_sgd import one_rho

_STEPS = 60
# times the largest z: what its rounding, of 1e-9, is relative to where z is nearly 0
_ROUNDED = 1e-4


_LARGEST = compressors.top_k(1e-6)  # one element


@cache
def _build(method: Method, topology: Topology) -> Build:
    """The method with a consensus step that is an argument of the program."""
    return lambda of, additive: method(optax.sgd(of.learning_rate), topology, _LARGEST, of.more)


def _follow(method: Method, topology: Topology, models: np.ndarray, eta: float) -> State:
    """Gossip alone, from `models`, `[N, d]`, which the others do not know yet."""
    still = problems.quadratic(np.ones_like(models), np.zeros_like(models))
    return paths.follow(
        _build(method, topology), still, 0.0, steps=_STEPS, models=models, more=np.float64(eta)
    )


def _numbers(topology: Topology, eta: float, dimension: int) -> tuple[float, float, float]:
    """r, eta beta, s."""
    gaps = 1 - np.linalg.eigvalsh(topology.W)[:-1]
    return (
        float(np.abs(1 - eta * gaps).max()),
        eta * float(gaps.max()),
        float(np.sqrt(1 - 1 / dimension)),
    )


def choco_matrix(topology: Topology, eta: float, dimension: int) -> np.ndarray:
    """M, `[2, 2]`, of a compressor that keeps one element of so many."""
    r, pull, s = _numbers(topology, eta, dimension)
    return np.array([[r, pull], [s * pull, s * (1 + pull)]])


def deepsqueeze_matrix(topology: Topology, eta: float, dimension: int) -> np.ndarray:
    """Its matrix, `[3, 3]`, likewise."""
    r, pull, s = _numbers(topology, eta, dimension)
    return np.array([[r + pull * s, pull * (1 + s), pull * s], [s, s, s], [0.0, 0.0, 1.0]])


def recommended_consensus_step(*, delta: float, beta: float, omega: float) -> float:
    """That of Koloskova, Stich and Jaggi's Theorem 2."""
    return (
        delta**2
        * omega
        / (16 * delta + delta**2 + 4 * beta**2 + 2 * delta * beta**2 - 8 * delta * omega)
    )


def _choco_path(models: np.ndarray, topology: Topology, eta: float) -> np.ndarray:
    """z_t, `[T, 2]`."""
    known = _follow(algorithms.choco_sgd, topology, models, eta).workers
    X = known.params[:-1]
    return np.stack([paths.size(paths.apart(X)), paths.size(X - known.x_hat[1:])], axis=1)


def check_choco(models: np.ndarray, topology: Topology, *, eta: float) -> list[Outcome]:
    """Holds every round of CHOCO-gossip, where the largest element is sent, to its matrix.

    Args:
        models: where workers begin, `[N, d]`; known of them is 0.
        topology: W, symmetric.
        eta: the consensus step.
    """
    z = _choco_path(models, topology, eta)
    return _held(
        z, choco_matrix(topology, eta, models.shape[1]), f"{topology.name}, eta = {eta:.3g}"
    )


def _held(z: np.ndarray, M: np.ndarray, case: str) -> list[Outcome]:
    """The worst rounds of z_{t+1} <= M z_t, of disagreement and of what is left out."""
    right, scale = z[:-1] @ M.T, _ROUNDED * float(z.max(initial=0.0))
    return [
        outcome
        for k, part in enumerate(("disagreement", "left out"))
        for outcome in paths.worst(z[1:, k], right[:, k], case=f"{case}, {part}", scale=scale)
    ]


def check_deepsqueeze(models: np.ndarray, topology: Topology, *, eta: float) -> list[Outcome]:
    """Holds every round of DeepSqueeze, likewise, to its matrix. Arguments as of `check_choco`."""
    memory = _follow(algorithms.deepsqueeze, topology, models, eta).workers
    mean = np.sqrt(topology.n) * np.linalg.norm(memory.params.mean(axis=1), axis=1)
    z = np.stack([paths.size(paths.apart(memory.params)), paths.size(memory.error), mean], axis=1)
    return _held(
        z, deepsqueeze_matrix(topology, eta, models.shape[1]), f"{topology.name}, eta = {eta:.3g}"
    )


@cache
def graphs() -> tuple[Topology, ...]:
    """Undirected ones."""
    return topologies.chain(3), topologies.star(5)


def _drawn(draws: Draws) -> tuple[np.ndarray, Topology, float]:
    """Models of four parameters, of sizes over several orders; a graph; a consensus step."""
    topology = draws.choice(graphs())
    rng = np.random.default_rng(draws.integer(0, 2**32 - 1))
    sizes = 10 ** rng.uniform(-draws.real(0.0, 2.0), 0, (topology.n, 1))
    together = draws.real(0.0, 3.0) * rng.normal(size=4)
    return (
        together + sizes * rng.choice([rng.normal(size=(topology.n, 4)), np.ones((topology.n, 4))]),
        topology,
        draws.real(0.01, 1.0),
    )


def trial_choco(draws: Draws) -> list[Outcome]:
    """One start on one graph."""
    models, topology, eta = _drawn(draws)
    return check_choco(models, topology, eta=eta)


def trial_theorem(draws: Draws) -> list[Outcome]:
    """One start on one graph at the recommended step: the squares of both, together."""
    models, topology, _ = _drawn(draws)
    delta, beta, omega = 1 - topology.rho, 1 - topology.smallest_eigenvalue, 1 / 4
    eta = recommended_consensus_step(delta=delta, beta=beta, omega=omega)
    e = np.sum(_choco_path(models, topology, eta) ** 2, axis=1)
    return paths.worst(
        e[1:], (1 - delta**2 * omega / 82) * e[:-1], case=topology.name, scale=_ROUNDED * e[0]
    )


def trial_deepsqueeze(draws: Draws) -> list[Outcome]:
    """One start on one graph."""
    models, topology, eta = _drawn(draws)
    return check_deepsqueeze(models, topology, eta=eta)


def _opposite(dimension: int) -> np.ndarray:
    """Two and two workers of opposite models, all parameters alike: of which compression leaves out
    most.
    """
    return np.outer([1.0, -1.0, 1.0, -1.0], np.ones(dimension))


def equal_parameters() -> list[Outcome]:
    """CHOCO-gossip from opposite models, on a graph whose eigenvalues are all one."""
    return check_choco(_opposite(32), one_rho(4, 0.5), eta=0.02)


def equal_parameters_squeezed() -> list[Outcome]:
    """DeepSqueeze from there."""
    return check_deepsqueeze(_opposite(32), one_rho(4, 0.5), eta=0.02)


_GOSSIP = "W symmetric, the largest of d elements is sent, no gradients"
_DERIVED = "matrix derived"
STATEMENTS = [
    Statement(
        "CHOCO-gossip, round by round",
        f"Koloskova et al. 2019; {_DERIVED}",
        _GOSSIP,
        trial_choco,
        (equal_parameters,),
    ),
    Statement(
        "CHOCO-gossip, linear",
        "Koloskova et al. 2019, Theorem 2",
        f"{_GOSSIP}; their consensus step",
        trial_theorem,
    ),
    Statement(
        "DeepSqueeze, round by round",
        f"Tang et al. 2019; {_DERIVED}",
        _GOSSIP,
        trial_deepsqueeze,
        (equal_parameters_squeezed,),
    ),
]
