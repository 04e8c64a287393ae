r"""CHOCO-gossip and DeepSqueeze without gradients: joint bounds on the disagreement and on the
compression error.

Rows are workers, W is symmetric, $\beta = |I - W|_2$, $\delta = 1 - \rho$,
$|C(x) - x| \le s |x|$ with $s = \sqrt{1 - \omega}$,
$r = \max_{\lambda \ne 1} |1 - \eta (1 - \lambda)| \le 1 - \eta\delta$.
$\tilde X = (I - J) X$; the mean of the models does not change.

CHOCO-gossip. $\hat X_{t+1} = \hat X_t + C(X_t - \hat X_t)$,
$X_{t+1} = X_t + \eta (W - I) \hat X_{t+1}$. With $z_t = (|\tilde X_t|, |X_t - \hat X_{t+1}|)$:
$\tilde X_{t+1} = (I + \eta(W - I)) \tilde X_t + \eta (W - I)(\hat X_{t+1} - X_t)$, and
$X_{t+1} - \hat X_{t+1} = (I - \eta(W - I))(X_t - \hat X_{t+1}) + \eta(W - I) \tilde X_t$, whose
compression error is at most s times its norm:

$$ z_{t+1} \le M z_t, \qquad M = \begin{pmatrix} r & \eta\beta \\ s\eta\beta & s(1 + \eta\beta)
\end{pmatrix}. $$

$\det(I - M) > 0$ if $\eta < \frac{\delta (1 - s)}{s \beta (\delta + \beta)}$. This limit is always
larger than the step of Koloskova, Stich and Jaggi,
$\eta = \delta^2\omega / (16\delta + \delta^2 + 4\beta^2 + 2\delta\beta^2 - 8\delta\omega)$, for
which they show $|z_{t+1}|^2 \le (1 - \delta^2\omega/82) |z_t|^2$ (Theorem 2).

DeepSqueeze. $V_t = X_t + \Delta_{t-1}$, $\Delta_t = V_t - C(V_t)$,
$X_{t+1} = X_t + \eta (W - I) C(V_t)$. It compresses the models, not their differences:
$|\Delta_t| \le s (|\tilde X_t| + \sqrt N |\bar x| + |\Delta_{t-1}|)$, and
$C(V_t) = X_t + \Delta_{t-1} - \Delta_t$ gives
$|\tilde X_{t+1}| \le r |\tilde X_t| + \eta\beta (|\Delta_{t-1}| + |\Delta_t|)$. So
$z_t = (|\tilde X_t|, |\Delta_{t-1}|, \sqrt N |\bar x|)$ has

$$ z_{t+1} \le \begin{pmatrix} r + \eta\beta s & \eta\beta (1 + s) & \eta\beta s \\ s & s & s \\ 0 &
0 & 1 \end{pmatrix} z_t, $$

in which the disagreement does not vanish: it is driven by the norm of the mean, at most in
proportion to $\eta$ per round.

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
from dsgd import compressors
from dsgd.base import State
from dsgd.graphs.topology import Topology
from theory_checks.machinery import paths
from theory_checks.machinery.rounds import Build
from theory_checks.machinery.statement import Draws, Method, Outcome, Statement
from theory_checks.statements.decentralized_sgd import one_rho

_STEPS = 60


_LARGEST = compressors.top_k(1e-6)  # one element


@cache
def _build(method: Method, topology: Topology) -> Build:
    """Returns a builder of the method with the consensus step as an argument of the program."""
    return lambda of, additive: method(optax.sgd(of.learning_rate), topology, _LARGEST, of.more)


def _follow(method: Method, topology: Topology, models: np.ndarray, eta: float) -> State:
    """Runs gossip without gradients from `models`, `[N, d]`; the neighbours' estimates start at
    0.
    """
    build = _build(method, topology)
    return paths.follow_gossip(build, models, steps=_STEPS, more=np.float64(eta))


def _numbers(topology: Topology, eta: float, dimension: int) -> tuple[float, float, float]:
    """Returns the entries of the matrices: r = max |1 - eta (1 - lambda)|, eta beta = eta max (1 -
    lambda) and s = sqrt(1 - 1/d), with the eigenvalues lambda of W except the largest.
    """
    gaps = 1 - np.linalg.eigvalsh(topology.W)[:-1]
    return (
        float(np.abs(1 - eta * gaps).max()),
        eta * float(gaps.max()),
        float(np.sqrt(1 - 1 / dimension)),
    )


def choco_matrix(topology: Topology, eta: float, dimension: int) -> np.ndarray:
    """Returns M, `[2, 2]`, for a compressor that keeps one of `dimension` elements."""
    r, pull, s = _numbers(topology, eta, dimension)
    return np.array([[r, pull], [s * pull, s * (1 + pull)]])


def deepsqueeze_matrix(topology: Topology, eta: float, dimension: int) -> np.ndarray:
    """Returns the matrix of DeepSqueeze, `[3, 3]`, for a compressor that keeps one of `dimension`
    elements.
    """
    r, pull, s = _numbers(topology, eta, dimension)
    return np.array([[r + pull * s, pull * (1 + s), pull * s], [s, s, s], [0.0, 0.0, 1.0]])


def recommended_consensus_step(*, delta: float, beta: float, omega: float) -> float:
    """Returns the consensus step of Koloskova, Stich and Jaggi, Theorem 2."""
    return (
        delta**2
        * omega
        / (16 * delta + delta**2 + 4 * beta**2 + 2 * delta * beta**2 - 8 * delta * omega)
    )


def _choco_path(models: np.ndarray, topology: Topology, eta: float) -> np.ndarray:
    """Returns z_t, `[T, 2]`."""
    memory = _follow(algorithms.choco_sgd, topology, models, eta).workers
    X = memory.params[:-1]
    return np.stack([paths.size(paths.apart(X)), paths.size(X - memory.x_hat[1:])], axis=1)


def check_choco(models: np.ndarray, topology: Topology, *, eta: float) -> list[Outcome]:
    """Checks z_{t+1} <= M z_t in every round of CHOCO-gossip whose compressor sends the largest
    element.

    Args:
        models: the initial models, `[N, d]`; the neighbours' estimates of them start at 0.
        topology: W, symmetric.
        eta: the consensus step.
    """
    z = _choco_path(models, topology, eta)
    return _compare_rounds(
        z, choco_matrix(topology, eta, models.shape[1]), f"{topology.name}, eta = {eta:.3g}"
    )


def _compare_rounds(z: np.ndarray, M: np.ndarray, case: str) -> list[Outcome]:
    """Returns the worst rounds of z_{t+1} <= M z_t, for the disagreement and for the compression
    error.
    """
    scale = paths.ROUNDED * float(z.max(initial=0.0))
    parts = ("disagreement", "compression error")
    return paths.worst_parts(z[1:], z[:-1] @ M.T, parts, case=case, scale=scale)


def check_deepsqueeze(models: np.ndarray, topology: Topology, *, eta: float) -> list[Outcome]:
    """Checks z_{t+1} <= M z_t in every round of DeepSqueeze. Arguments as of `check_choco`."""
    memory = _follow(algorithms.deepsqueeze, topology, models, eta).workers
    mean = np.sqrt(topology.n) * np.linalg.norm(memory.params.mean(axis=1), axis=1)
    z = np.stack([paths.size(paths.apart(memory.params)), paths.size(memory.error), mean], axis=1)
    return _compare_rounds(
        z, deepsqueeze_matrix(topology, eta, models.shape[1]), f"{topology.name}, eta = {eta:.3g}"
    )


@cache
def graphs() -> tuple[Topology, ...]:
    """Returns two undirected graphs."""
    return topologies.chain(3), topologies.star(5)


def _draw(draws: Draws) -> tuple[np.ndarray, Topology, float]:
    """Draws models of four parameters, whose sizes span several orders of magnitude, a graph, and a
    consensus step.
    """
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
    """Checks CHOCO-gossip from random models on a random graph."""
    models, topology, eta = _draw(draws)
    return check_choco(models, topology, eta=eta)


def trial_theorem(draws: Draws) -> list[Outcome]:
    """Checks the linear rate of the sum of both squares, from random models on a random graph, at
    the recommended consensus step.
    """
    models, topology, _ = _draw(draws)
    delta, beta, omega = 1 - topology.rho, 1 - topology.smallest_eigenvalue, 1 / 4
    eta = recommended_consensus_step(delta=delta, beta=beta, omega=omega)
    e = np.sum(_choco_path(models, topology, eta) ** 2, axis=1)
    return paths.worst(
        e[1:], (1 - delta**2 * omega / 82) * e[:-1], case=topology.name, scale=paths.ROUNDED * e[0]
    )


def trial_deepsqueeze(draws: Draws) -> list[Outcome]:
    """Checks DeepSqueeze from random models on a random graph."""
    models, topology, eta = _draw(draws)
    return check_deepsqueeze(models, topology, eta=eta)


def _opposite(dimension: int) -> np.ndarray:
    """Returns the models of two pairs of workers with opposite signs and equal parameters, for
    which the compression error is largest.
    """
    return np.outer([1.0, -1.0, 1.0, -1.0], np.ones(dimension))


def equal_parameters() -> list[Outcome]:
    """Checks CHOCO-gossip from opposite models on a graph whose eigenvalues other than 1 are all
    equal.
    """
    return check_choco(_opposite(32), one_rho(4, 0.5), eta=0.02)


def equal_parameters_squeezed() -> list[Outcome]:
    """Checks DeepSqueeze from opposite models on the same graph."""
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
