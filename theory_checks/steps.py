r"""The step sizes of the theorems from a problem's constants, named after the methods.

    c = problems.constants(problem)
    gamma = steps.ef21(c, compressors.top_k(0.01))
    gamma = steps.sgd(c, steps=1_000)

The constants are those of `dsgd.problems.constants`: $L$ of f is `mean_smoothness`, $L_{\max}$ of
all workers `smoothness`, and $\tilde L$ `rms_smoothness`. Theorems with noise need sigma and
varsigma that hold everywhere: those of `problem.constants`, or the arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import numpy as np

import topologies
from algorithms.mechanisms.three_points import ThreePoint
from dsgd import checks
from dsgd.base import Compressor
from dsgd.compressors.members import constant_at
from dsgd.graphs.topology import Topology
from dsgd.problems import ProblemConstants
from theory_checks import bounds
from theory_checks.machinery import instances
from theory_checks.machinery.statement import need
from theory_checks.statements import asynchronous_sgd as of_asynchronous_sgd
from theory_checks.statements import birch_sgd as of_birch_sgd
from theory_checks.statements import compressed_sgd as of_compressed_sgd
from theory_checks.statements import decentralized_sgd as of_decentralized_sgd
from theory_checks.statements import error_compensated_sgd as of_error_compensated_sgd
from theory_checks.statements import gradient_tracking as of_gradient_tracking
from theory_checks.statements import local_sgd as of_local_sgd
from theory_checks.statements import minibatch_sgd as of_minibatch_sgd
from theory_checks.statements import sgd as of_sgd

__all__ = [
    "asynchronous_sgd",
    "birch_sgd",
    "compressed_sgd",
    "d2",
    "decentralized_sgd",
    "diana",
    "ef21",
    "ef_bv",
    "error_compensated_sgd",
    "exact_diffusion",
    "extra",
    "gradient_descent",
    "gradient_tracking",
    "local_sgd",
    "marina",
    "minibatch_sgd",
    "scaffnew",
    "sgd",
    "three_point",
]

# --- Exact gradients.


@checks.arguments
def gradient_descent(constants: ProblemConstants) -> float:
    r"""Returns $\frac1L$, which minimizes the bound of gradient descent.

    Args:
        constants: of the problem.

    Raises:
        ValueError: if a constant cannot be computed.

    Source: Liu and Zhang, Theorem 1.1.1.
    """
    return 1 / constants.mean_smoothness


@checks.arguments
def ef21(constants: ProblemConstants, compressor: Compressor, *, linear: bool = False) -> float:
    r"""Returns the largest step size of EF21, $\frac{1}{L + \tilde L \sqrt{\beta / \theta}}$ with
    $\theta = 1 - \sqrt{1 - \delta}$ and $\beta = \frac{1 - \delta}{\theta}$.

    Args:
        constants: of the problem.
        compressor: C, which states its contraction delta.
        linear: the step size of the linear rate for strongly convex f, `bounds.ef_bv_step`.

    Raises:
        ValueError: if the compressor states no delta, or a constant cannot be computed.

    Source: Richtarik, Sokolov and Fatkhullin, "EF21", 2021, Theorem 1.
    """
    left = 1 - _delta("ef21", constants, compressor)
    if linear:
        return _ef_bv(constants, left, left)
    root = math.sqrt(left)  # sqrt(beta / theta) = root / (1 - root)
    return 1 / (constants.mean_smoothness + constants.rms_smoothness * root / (1 - root))


@checks.arguments
def ef_bv(constants: ProblemConstants, compressor: Compressor) -> float:
    r"""Returns the largest step size of EF-BV with its default $\lambda$ and $\nu$: that of
    `bounds.ef_bv_step` with $r = \frac{\omega}{1 + \omega}$ and $r_{av} = \frac{\omega}{N +
    \omega}$ for unbiased compressors, $1 - \delta$ for contractions.

    Args:
        constants: of the problem.
        compressor: C, which states its omega or its delta.

    Raises:
        ValueError: if the compressor states neither, or a constant cannot be computed.

    Source: Condat, Yi and Richtarik, "EF-BV", 2022.
    """
    if not compressor.unbiased:
        left = 1 - _delta("ef_bv", constants, compressor)
        return _ef_bv(constants, left, left)
    omega, N = _omega("ef_bv", constants, compressor), constants.problem.workers
    return _ef_bv(constants, omega / (1 + omega), omega / (N + omega))


def _ef_bv(constants: ProblemConstants, residual: float, mean_residual: float) -> float:
    return bounds.ef_bv_step(
        smoothness=constants.mean_smoothness,
        rms_smoothness=constants.rms_smoothness,
        residual=residual,
        mean_residual=mean_residual,
    )


@checks.arguments
def three_point(constants: ProblemConstants, point: ThreePoint) -> float:
    r"""Returns the largest step size of 3PC, $\frac{1}{L + \tilde L \sqrt{B / A}}$.

    Args:
        constants: of the problem.
        point: the three-point compressor, which has A and B.

    Raises:
        ValueError: if a constant cannot be computed.

    Source: Richtarik et al., "3PC", 2022, Theorem 5.5.
    """
    pairs = [point.constants(size) for size in _sizes(constants)]
    root = math.sqrt(max(B for _, B in pairs) / min(A for A, _ in pairs))
    return 1 / (constants.mean_smoothness + constants.rms_smoothness * root)


@checks.arguments
def diana(
    constants: ProblemConstants, compressor: Compressor, memory_step: float | None = None
) -> float:
    r"""Returns the largest step size of DIANA, $\frac{1}{L_{\max} (1 + 6 \omega / N)}$ with the
    default $\alpha$; see `bounds.diana_step`.

    Args:
        constants: of the problem, in which all $f_n$ are convex.
        compressor: Q, unbiased, which states its omega.
        memory_step: $\alpha$; None: $1 / (1 + \omega)$.

    Raises:
        ValueError: if the compressor states no omega, `memory_step` is larger than $1 / (1 +
            \omega)$, or a constant cannot be computed.

    Source: Gorbunov, Hanzely and Richtarik, "A unified theory of SGD", 2020.
    """
    return bounds.diana_step(
        smoothness=constants.smoothness,
        omega=_omega("diana", constants, compressor),
        workers=constants.problem.workers,
        shift=memory_step,
    )


@checks.arguments
def marina(
    constants: ProblemConstants,
    compressor: Compressor,
    probability: float,
    *,
    clients: int | None = None,
    linear: bool = False,
) -> float:
    r"""Returns the largest step size of MARINA, $\frac{1}{L + \tilde L \sqrt{(1 - p) \omega / (p
    N)}}$; with r sampled clients, $(1 - p) (1 + \omega) / (p r)$ in the root.

    Args:
        constants: of the problem.
        compressor: Q, unbiased, which states its omega.
        probability: p of a full gradient.
        clients: r; None: all workers send.
        linear: the step size of the linear rate for strongly convex f, which has twice the number
            in the root and is at most $p / (2 \mu)$.

    Raises:
        ValueError: if the compressor states no omega, p is not in (0, 1], `clients` is not between
            1 and N, or a constant cannot be computed.

    Source: Gorbunov, Burlachenko, Li and Richtarik, "MARINA", 2021, Theorems 2.1, 2.2 and 4.1, with
    L of f in place of $\tilde L$ in the first term.
    """
    checks.number("marina: probability", probability, "(0, 1]")
    N, omega = constants.problem.workers, _omega("marina", constants, compressor)
    if clients is not None and not 1 <= clients <= N:
        raise ValueError(f"marina: clients = {clients}; expected 1 to {N}, the number of workers")
    variance = omega / N if clients is None else (1 + omega) / clients
    noise = (1 + linear) * (1 - probability) * variance / probability
    step = 1 / (constants.mean_smoothness + constants.rms_smoothness * math.sqrt(noise))
    return min(step, probability / (2 * _positive("marina", constants))) if linear else step


@checks.arguments
def scaffnew(constants: ProblemConstants) -> float:
    r"""Returns the largest step size of Scaffnew, $\gamma = \frac{1}{L_{\max}}$. The fewest
    communications are those with the probability $p = \sqrt{\gamma \mu}$.

    Args:
        constants: of the problem, in which all $f_n$ are convex.

    Raises:
        ValueError: if a constant cannot be computed.

    Source: Mishchenko et al., "ProxSkip", 2022, Theorem 3.6.
    """
    return 1 / constants.smoothness


@checks.arguments
def exact_diffusion(constants: ProblemConstants) -> float:
    r"""Returns $\frac{2}{L_{\max} + \mu}$, the step size with the smallest factor in the bound of
    exact diffusion and NIDS. It does not depend on the graph.

    Args:
        constants: of the problem, in which all $f_n$ are $\mu$-strongly convex.

    Raises:
        ValueError: if a constant cannot be computed.

    Source: Li, Shi and Yan, "A decentralized proximal-gradient method with network independent
    step-sizes and separated convergence rates", 2019.
    """
    return 2 / (constants.smoothness + constants.strong_convexity)


@checks.arguments
def d2(constants: ProblemConstants, topology: Topology) -> float:
    r"""Returns $\frac{2}{L_{\max} + \mu}$, as for `exact_diffusion`, for a graph with $W \ge 0$.

    Args:
        constants: of the problem, in which all $f_n$ are $\mu$-strongly convex.
        topology: W, symmetric, without negative eigenvalues.

    Raises:
        ValueError: if W is another matrix, or a constant cannot be computed.

    Source: Tang, Lian, Yan, Zhang and Liu, "D2", 2018; the bound is that of `exact_diffusion`.
    """
    least = _least_eigenvalue("d2", constants, topology)
    if least < -_ROUNDING:
        raise ValueError(
            f"d2: {topology.name} has the eigenvalue {least:.3g}; expected none below 0; pass "
            "weights=topologies.lazy"
        )
    return exact_diffusion(constants)


@checks.arguments
def extra(constants: ProblemConstants, topology: Topology) -> float:
    r"""Returns $\frac{1 + \lambda_{\min}(W)}{2 L_{\max}}$, half of the step size below which EXTRA
    converges.

    Args:
        constants: of the problem, in which all $f_n$ are convex.
        topology: W, symmetric.

    Raises:
        ValueError: if W is another matrix, or a constant cannot be computed.

    Source: Shi, Ling, Wu and Yin, "EXTRA", 2015, Theorem 3.3.
    """
    return (1 + _least_eigenvalue("extra", constants, topology)) / (2 * constants.smoothness)


@checks.arguments
def gradient_tracking(constants: ProblemConstants, topology: Topology) -> float:
    """Returns half of the step size below which the errors of gradient tracking decrease linearly,
    by the 3 x 3 matrix of the module `theory_checks.statements.gradient_tracking`.

    Args:
        constants: of the problem, in which f is strongly convex.
        topology: W, doubly stochastic.

    Raises:
        ValueError: if W is another matrix, or a constant cannot be computed.

    Source: as in that module.
    """
    matrix = instances.one_matrix(
        constants.problem, topology, "doubly stochastic", topology.doubly_stochastic
    )
    need("gradient_tracking", matrix)
    limit = of_gradient_tracking.largest_step(
        smoothness=constants.smoothness,
        strong_convexity=_positive("gradient_tracking", constants),
        topology=topology,
    )
    return limit / 2


# --- Stochastic gradients: the recommended step sizes for a number of steps.


@checks.arguments
def sgd(constants: ProblemConstants, *, steps: int, noise: float | None = None) -> float:
    r"""Returns the recommended step size of SGD with the gradient of one worker,
    $\frac1\gamma = L + \sigma \sqrt{\frac{LT}{2D}}$.

    Args:
        constants: of the problem.
        steps: T.
        noise: sigma of the gradient of a random worker; None: $\sqrt{\sigma^2 + \varsigma^2}$ of
            `problem.constants`.

    Raises:
        ValueError: if a constant is not known or cannot be computed.

    Source: Liu and Zhang, Theorem 1.2.1.
    """
    if noise is None:
        noise = math.hypot(*_everywhere("sgd", constants, ("noise", "heterogeneity")))
    return of_sgd.step_size(
        gap=constants.gap, smoothness=constants.mean_smoothness, noise=noise, steps=steps
    )


@checks.arguments
def minibatch_sgd(constants: ProblemConstants, *, steps: int, noise: float | None = None) -> float:
    r"""Returns the recommended step size of mini-batch SGD, $\frac1\gamma = L +
    \frac{\sigma}{\sqrt N} \sqrt{\frac{LT}{2D}}$.

    Args:
        constants: of the problem.
        steps: T.
        noise: sigma of the gradient of one worker's batch; None: that of `problem.constants`.

    Raises:
        ValueError: if a constant is not known or cannot be computed.

    Source: Liu and Zhang, (1.20) and (2.2).
    """
    (sigma,) = _everywhere("minibatch_sgd", constants, ("noise",), noise)
    return of_minibatch_sgd.step_size(
        gap=constants.gap,
        smoothness=constants.mean_smoothness,
        noise=sigma,
        workers=constants.problem.workers,
        steps=steps,
    )


@checks.arguments
def asynchronous_sgd(
    constants: ProblemConstants, *, staleness: int, steps: int, noise: float | None = None
) -> float:
    r"""Returns the recommended step size of asynchronous SGD, $\frac1\gamma = 2L (\tau + 1) +
    \sigma \sqrt{\frac{LT}{D}}$.

    Args:
        constants: of the problem.
        staleness: $\tau$, the largest number of updates since a gradient's model.
        steps: T, number of updates.
        noise: as for `sgd`.

    Raises:
        ValueError: if a constant is not known or cannot be computed.

    Source: Liu and Zhang, Theorem 4.2.3.
    """
    if noise is None:
        noise = math.hypot(*_everywhere("asynchronous_sgd", constants, ("noise", "heterogeneity")))
    return of_asynchronous_sgd.step_size(
        gap=constants.gap,
        smoothness=constants.mean_smoothness,
        noise=noise,
        staleness=staleness,
        steps=steps,
    )


@checks.arguments
def birch_sgd(
    constants: ProblemConstants, *, tree_distance: int, epsilon: float, noise: float | None = None
) -> float:
    r"""Returns the step size of one gradient for an accuracy, $\gamma = \min\big(\frac1{2L},
    \frac1{2RL}, \frac\epsilon{4\sigma^2L}\big)$. Rennala's step size is B times it, with R = B - 1.

    Args:
        constants: of the problem, whose workers have equal data.
        tree_distance: R, one less than the threshold of Ringmaster.
        epsilon: the accuracy $\epsilon$ of the mean of $|f'|^2$.
        noise: as for `sgd`.

    Raises:
        ValueError: if a constant is not known or cannot be computed.

    Source: Tyurin and Sivtsov, "Birch SGD", 2025, Theorem 2.4.
    """
    if noise is None:
        noise = math.hypot(*_everywhere("birch_sgd", constants, ("noise", "heterogeneity")))
    return of_birch_sgd.step_size(
        smoothness=constants.mean_smoothness,
        noise=noise,
        tree_distance=tree_distance,
        epsilon=epsilon,
    )


@checks.arguments
def compressed_sgd(
    constants: ProblemConstants,
    compressor: Compressor,
    *,
    steps: int,
    ring: bool = False,
    noise: float | None = None,
    heterogeneity: float | None = None,
) -> float:
    r"""Returns the recommended step size of compressed SGD, $\frac1\gamma = L' + c
    \sqrt{\frac{LT}{2D}}$ with $L'$ and c of `theory_checks.compressed_sgd`.

    Args:
        constants: of the problem.
        compressor: Q, unbiased, which states its omega.
        steps: T.
        ring: as in `algorithms.compressed_sgd`.
        noise, heterogeneity: sigma of a worker, and varsigma; None: those of `problem.constants`.

    Raises:
        ValueError: if the compressor states no omega, or a constant is not known or cannot be
            computed.

    Source: Liu and Zhang, (3.7) and (3.8).
    """
    sigma, varsigma = _everywhere(
        "compressed_sgd", constants, ("noise", "heterogeneity"), noise, heterogeneity
    )
    omega = of_compressed_sgd.omega_of(compressor, constants.problem)
    if omega is None:
        raise ValueError(
            f"compressed_sgd: {compressor.name} states no omega; expected an unbiased compressor "
            "that does, such as compressors.random_quantization"
        )
    errors = of_compressed_sgd.effect(
        noise=sigma,
        workers=constants.problem.workers,
        omega=omega,
        heterogeneity=varsigma,
        via="ring" if ring else "server",
    )
    return of_compressed_sgd.step_size(
        gap=constants.gap, smoothness=constants.mean_smoothness, effect=errors, steps=steps
    )


@checks.arguments
def error_compensated_sgd(
    constants: ProblemConstants, *, compression: float, steps: int, noise: float | None = None
) -> float:
    r"""Returns the recommended step size of error-compensated SGD, $\frac1\gamma = 2L + \sigma
    \sqrt{\frac{LT}{ND}} + \big(\frac{4 L^2 \sigma'^2 T}{D}\big)^{1/3}$.

    Args:
        constants: of the problem.
        compression: sigma', of the errors of every worker and of the server.
        steps: T.
        noise: sigma of a worker; None: that of `problem.constants`.

    Raises:
        ValueError: if a constant is not known or cannot be computed.

    Source: Liu and Zhang, Theorem 3.4.3.
    """
    (sigma,) = _everywhere("error_compensated_sgd", constants, ("noise",), noise)
    return of_error_compensated_sgd.step_size(
        gap=constants.gap,
        smoothness=constants.mean_smoothness,
        noise=sigma,
        compression=compression,
        workers=constants.problem.workers,
        steps=steps,
    )


@checks.arguments
def decentralized_sgd(
    constants: ProblemConstants,
    topology: Topology,
    *,
    steps: int,
    noise: float | None = None,
    heterogeneity: float | None = None,
) -> float:
    r"""Returns the recommended step size of decentralized SGD, $\frac1\gamma = L_{\max} \frac{1 +
    \rho}{1 - \rho} + \sigma \sqrt{\frac{L_{\max} T}{2ND}} + \big(\frac{cT}{D}\big)^{1/3}$ with c of
    `theory_checks.decentralized_sgd`.

    Args:
        constants: of the problem.
        topology: one symmetric W.
        steps: T.
        noise, heterogeneity: as for `compressed_sgd`.

    Raises:
        ValueError: if W is another matrix, or a constant is not known or cannot be computed.

    Source: Liu and Zhang, Theorem 5.2.11.
    """
    matrix = instances.one_matrix(constants.problem, topology, "symmetric", topology.symmetric)
    need("decentralized_sgd", matrix)
    sigma, varsigma = _everywhere(
        "decentralized_sgd", constants, ("noise", "heterogeneity"), noise, heterogeneity
    )
    return of_decentralized_sgd.step_size(
        gap=constants.gap,
        smoothness=constants.smoothness,
        noise=sigma,
        heterogeneity=varsigma,
        workers=constants.problem.workers,
        rho=topology.rho,
        steps=steps,
    )


@checks.arguments
def local_sgd(
    constants: ProblemConstants,
    period: int,
    topology: Topology | None = None,
    *,
    steps: int,
    noise: float | None = None,
    heterogeneity: float | None = None,
) -> float:
    r"""Returns the recommended step size of local SGD, and of decentralized SGD on schedules,
    $\frac1\gamma = L_{\max} (1 + 2\kappa) + \dots$ of `theory_checks.local_sgd`.

    Args:
        constants: of the problem.
        period: H.
        topology: W, doubly stochastic, in one of H rounds; None: the mean of all workers.
        steps: T.
        noise, heterogeneity: as for `compressed_sgd`.

    Raises:
        ValueError: if W is not doubly stochastic, or a constant is not known or cannot be computed.

    Source: derived in `theory_checks.local_sgd`; Koloskova et al., 2020, Theorem 2, without
    constants.
    """
    sigma, varsigma = _everywhere(
        "local_sgd", constants, ("noise", "heterogeneity"), noise, heterogeneity
    )
    mixing = topologies.complete(constants.problem.workers) if topology is None else topology
    need("local_sgd", [instances.same_workers(constants.problem, mixing)])
    return of_local_sgd.step_size(
        gap=constants.gap,
        smoothness=constants.smoothness,
        noise=sigma,
        heterogeneity=varsigma,
        workers=constants.problem.workers,
        memory=of_local_sgd.memory(mixing, period),
        steps=steps,
    )


# --- Constants of compressors, graphs and problems.

_ROUNDING = 1e-12


def _sizes(constants: ProblemConstants) -> list[int]:
    """Returns the numbers of elements of the leaves, which are compressed separately."""
    shapes = jax.eval_shape(constants.problem.init, jax.random.key(0))
    return [leaf.size for leaf in jax.tree.leaves(shapes)]


def _delta(where: str, constants: ProblemConstants, compressor: Compressor) -> float:
    return min(_stated(where, constants, compressor.delta, compressor, "contraction delta"))


def _omega(where: str, constants: ProblemConstants, compressor: Compressor) -> float:
    return max(_stated(where, constants, compressor.omega, compressor, "omega"))


def _stated(
    where: str,
    constants: ProblemConstants,
    constant: Callable | None,
    compressor: Compressor,
    name: str,
) -> list[float]:
    found = [constant_at(constant, size) for size in _sizes(constants)]
    if None in found:
        raise ValueError(
            f"{where}: {compressor.name} states no {name} for vectors of {_sizes(constants)} "
            "elements; expected a compressor that does: top_k and sign state a contraction, "
            "random_k and qsgd omega"
        )
    return found


def _least_eigenvalue(where: str, constants: ProblemConstants, topology: Topology) -> float:
    need(where, instances.one_matrix(constants.problem, topology, "symmetric", topology.symmetric))
    return float(np.linalg.eigvalsh(topology.W)[0])


def _positive(where: str, constants: ProblemConstants) -> float:
    if not constants.strong_convexity > 0:
        raise ValueError(
            f"{where}: {constants.problem.name} has mu = 0; expected a strongly convex problem, "
            "such as one with l2 > 0"
        )
    return constants.strong_convexity


def _everywhere(
    where: str, constants: ProblemConstants, names: tuple[str, ...], *given: float | None
) -> list[float]:
    """Returns constants that hold at all x: the given ones, or else those of the problem."""
    found = []
    for name, number in zip(names, given or (None,) * len(names), strict=True):
        known = getattr(constants.problem.constants, name) if number is None else number
        if known is None:
            raise ValueError(
                f"{where}: {name} of {constants.problem.name} is not known at all x; expected the "
                f"argument {name}, such as {name}=problems.constants(problem).{name}, which holds "
                "at x*"
            )
        found.append(float(known))
    return found
