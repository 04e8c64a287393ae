r"""Three-point compressors $\mathcal C_{h,y}(x)$: what a worker sends, if it and the server know h,
its last estimate of the gradient, and it also knows y, its last gradient.

The constants of a three-point compressor are A and B with

$$ E|\mathcal C_{h,y}(x) - x|^2 \le (1 - A) |h - y|^2 + B |x - y|^2 $$

`three_point` then converges with the step $1 / (L_- + L_+ \sqrt{B / A})$.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.mechanisms.estimates import coin
from dsgd import Compressor, checks, compressors, signatures, workers
from dsgd.extend import Gradients, Real

# (compressor, vectors [n, ...], workers that send, bool [n], or None: all) -> decoded [n, ...]
Send = Callable[..., Gradients]


class ThreePoint(NamedTuple):
    r"""A three-point compressor.

    Args:
        name: for tables and error messages.
        apply: (send, x, h, y, round) -> $\mathcal C_{h,y}(x)$, leaves `[n, ...]`. It must be h plus
            the values of all its calls `send(compressor, vectors, senders=None)`, which return the
            decoded messages and 0 for workers that send none.
        constants: d -> (A, B), for models of d elements; A is in (0, 1].
        contractions: its compressors that must be contractions for the vectors of a model.
    """

    name: str
    apply: Callable
    constants: Callable
    contractions: tuple[Compressor, ...] = ()


@checks.arguments
def ef21(C: Compressor) -> ThreePoint:
    r"""EF21: $\mathcal C_{h,y}(x) = h + C(x - h)$.

    $A = 1 - \sqrt{1 - \delta}$, $B = (1 - \delta) / A$, where C is a contraction with $\delta$.

    Args:
        C: a contraction.

    Raises:
        ValueError: if the compressor states no contraction.
    """
    delta = _contraction("ef21", C)

    def apply(send, x, h, y, round):
        return _sum(h, send(C, optax.tree.sub(x, h)))

    return ThreePoint(f"ef21({C.name})", apply, lambda d: _ef21_constants(delta(d)), (C,))


@checks.arguments
def lag(threshold: Real) -> ThreePoint:
    r"""LAG (lazily aggregated gradients): x if $|x - h|^2 > \zeta |x - y|^2$, else h, without a
    message.

    $A = 1$, $B = \zeta$.

    Args:
        threshold: $\zeta$, at least 0. It may be swept.

    Raises:
        ValueError: if $\zeta$ is negative.
    """
    lazy = clag(compressors.identity, threshold)
    return lazy._replace(name=f"lag({threshold})", constants=lambda d: (1.0, threshold))


@checks.arguments
def clag(C: Compressor, threshold: Real) -> ThreePoint:
    r"""CLAG: $h + C(x - h)$ if $|x - h|^2 > \zeta |x - y|^2$, else h, without a message.

    A is that of `ef21`, and B the larger of that of `ef21` and $\zeta$.

    Args:
        C: a contraction.
        threshold: $\zeta$, at least 0. It may be swept.

    Raises:
        ValueError: if the compressor states no contraction, or $\zeta$ is negative.
    """
    checks.number("clag: threshold", threshold, "[0, inf)")
    delta = _contraction("clag", C)

    def apply(send, x, h, y, round):
        needed = optax.tree.sub(x, h)
        lazy = threshold * workers.sqnorm_rows(optax.tree.sub(x, y))
        return _sum(h, send(C, needed, workers.sqnorm_rows(needed) > lazy))

    def constants(d):
        A, B = _ef21_constants(delta(d))
        return A, max(B, threshold)

    return ThreePoint(f"clag({C.name}, {threshold})", apply, constants, (C,))


@checks.arguments
def v1(C: Compressor) -> ThreePoint:
    r"""3PCv1: $\mathcal C_{h,y}(x) = y + C(x - y)$.

    $A = 1$, $B = 1 - \delta$. The server does not know y, so y - h is sent uncompressed, in
    addition to C(x - y): this compressor is of theoretical interest.

    Args:
        C: a contraction.

    Raises:
        ValueError: if the compressor states no contraction.
    """
    delta = _contraction("v1", C)

    def apply(send, x, h, y, round):
        y_sent = _sum(h, send(compressors.identity, optax.tree.sub(y, h)))
        return _sum(y_sent, send(C, optax.tree.sub(x, y)))

    return ThreePoint(f"v1({C.name})", apply, lambda d: (1.0, 1 - delta(d)), (C,))


@checks.arguments
def v2(C: Compressor, Q: Compressor) -> ThreePoint:
    r"""3PCv2: $\mathcal C_{h,y}(x) = b + C(x - b)$ with $b = h + Q(x - y)$.

    $A = \delta$, $B = (1 - \delta) \omega$.

    Args:
        C: a contraction with $\delta$.
        Q: an unbiased compressor with $\omega$.

    Raises:
        ValueError: if C states no contraction, or Q is biased.
    """
    delta, omega = _contraction("v2", C), _variance("v2", Q)

    def apply(send, x, h, y, round):
        b = _sum(h, send(Q, optax.tree.sub(x, y)))
        return _sum(b, send(C, optax.tree.sub(x, b)))

    def constants(d):
        return delta(d), (1 - delta(d)) * omega(d)

    return ThreePoint(f"v2({C.name}, {Q.name})", apply, constants, (C,))


@checks.arguments
def v3(C: Compressor, first: ThreePoint) -> ThreePoint:
    r"""3PCv3: $\mathcal C_{h,y}(x) = b + C(x - b)$ with $b = \mathcal C^1_{h,y}(x)$.

    $A = 1 - (1 - \delta)(1 - A_1)$, $B = (1 - \delta) B_1$.

    Args:
        C: a contraction.
        first: $\mathcal C^1$, with $A_1$ and $B_1$.

    Raises:
        ValueError: if C states no contraction.
    """
    delta = _contraction("v3", C)

    def apply(send, x, h, y, round):
        b = first.apply(send, x, h, y, round)
        return _sum(b, send(C, optax.tree.sub(x, b)))

    def constants(d):
        A, B = first.constants(d)
        return 1 - (1 - delta(d)) * (1 - A), (1 - delta(d)) * B

    contractions = (C, *first.contractions)
    return ThreePoint(f"v3({C.name}, {first.name})", apply, constants, contractions)


@checks.arguments
def v4(C1: Compressor, C2: Compressor) -> ThreePoint:
    r"""3PCv4: $\mathcal C_{h,y}(x) = b + C_2(x - b)$ with $b = h + C_1(x - h)$.

    A and B are those of `ef21` with $1 - \delta = (1 - \delta_1) (1 - \delta_2)$.

    Args:
        C1, C2: contractions with $\delta_1$ and $\delta_2$.

    Raises:
        ValueError: if a compressor states no contraction.
    """
    delta1, delta2 = _contraction("v4", C1), _contraction("v4", C2)

    def apply(send, x, h, y, round):
        b = _sum(h, send(C1, optax.tree.sub(x, h)))
        return _sum(b, send(C2, optax.tree.sub(x, b)))

    def constants(d):
        return _ef21_constants(1 - (1 - delta1(d)) * (1 - delta2(d)))

    return ThreePoint(f"v4({C1.name}, {C2.name})", apply, constants, (C1, C2))


@checks.arguments
def v5(Q: Compressor, probability: Real) -> ThreePoint:
    r"""3PCv5: $\mathcal C_{h,y}(x)$ is x with probability p, else $h + Q(x - y)$. This is `marina`,
    which does without the workers' h.

    $A = p$, $B = (1 - p) \omega$. One coin is drawn for all workers; the first round sends x.

    Args:
        Q: an unbiased compressor with $\omega$.
        probability: p, in (0, 1]. It may be swept.

    Raises:
        ValueError: if Q is biased, or p is not in (0, 1].
    """
    checks.number("v5: probability", probability, "(0, 1]")
    omega = _variance("v5", Q)

    def apply(send, x, h, y, round):
        coins = jnp.broadcast_to(coin(round, probability), jax.tree.leaves(x)[0].shape[:1])
        whole = send(compressors.identity, optax.tree.sub(x, h), coins)
        return _sum(_sum(h, whole), send(Q, optax.tree.sub(x, y), ~coins))

    def constants(d):
        return probability, (1 - probability) * omega(d)

    return ThreePoint(f"v5({Q.name}, {probability})", apply, constants)


def _sum(a: Gradients, b: Gradients) -> Any:
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), a, b)


def _ef21_constants(delta: float) -> tuple[float, float]:
    """Returns A and B of EF21."""
    A = 1 - math.sqrt(1 - delta)
    return A, (1 - delta) / A


def _contraction(name: str, C: Compressor) -> Callable[[int], float]:
    """Returns d -> delta of C."""
    if C.delta is None:
        raise ValueError(
            f"three_points.{name}: the compressor {C.name} states no contraction; expected a "
            "compressor with delta, such as compressors.top_k(0.1) or "
            "compressors.contraction(compressors.random_k(0.1))"
        )
    return C.delta


def _variance(name: str, Q: Compressor) -> Callable[[int], float]:
    """Returns d -> omega of Q."""
    if Q.omega is None:
        raise ValueError(
            f"three_points.{name}: the compressor {Q.name} is biased; expected an unbiased one, "
            "such as compressors.random_k(0.1)"
        )
    return Q.omega


signatures.simplify(__name__)
