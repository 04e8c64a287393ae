r"""Linear convergence rates and largest stable step sizes on strongly convex quadratics, computed
from a method's own rounds.

On a quadratic, the state of a linear method follows $s_{t+1} = M_t s_t + c_t$, where $M_t$ repeats
after a period P (of the topology's schedule, or of the local steps). With $M = M_{t+P-1} \cdots
M_t$, differences of states that are P rounds apart follow $\delta_{k+1} = M \delta_k$. They
decrease by the factor $\varrho(M)^{1/P}$ per round. The spectral radius $\varrho$ is that of M on
the vectors that are orthogonal to all invariants: y with $y^T M = y^T$ and $y^T \delta_0 = 0$, such
as the mean of the corrections of exact diffusion, which stays 0.

M is the derivative of the method's own `query` and `update`, and the $\delta_0$ are derivatives
with respect to the start $x_0$ and to the linear terms $b_n$ of the workers' objectives. The states
must be affine in these two, which is validated. Push-sum's weights depend on neither; their limit
enters M.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dsgd import checks
from dsgd.base import Algorithm, Problem
from theory_checks.machinery import moments
from theory_checks.machinery.rounds import Build, Instance, Rounds, place_on_one_device

_LONGEST = 64  # the longest period that is found
_SETTLED = 2048  # rounds after which push-sum's weights have converged
_SMALL = 1e-3  # the step size at which rounds are probed, times 1 / L
_GROWTH = 1.1  # ratio of the steps among which the first unstable one is searched
_LARGEST = 1e6  # the largest step size that is tried, times 1 / L
_KEYS = 256  # random keys with which a round is probed
_ROUNDING = 1e-9  # relative differences up to this are rounding errors


@checks.arguments
def linear_rate(method: Callable, problem: Problem, step: float) -> float:
    r"""Returns the factor by which a round reduces the distance to the limit, asymptotically and
    for the worst start and the worst differences between workers: $\varrho(M)^{1/P}$.

    The method converges if and only if it is below 1. The limit is the optimum only for exact
    methods. Gradients are exact.

    Args:
        method: step size -> the method, such as `lambda step: algorithms.extra(optax.sgd(step),
            topologies.ring(8))`.
        problem: from `problems.quadratic`; its noise is ignored.
        step: the step size, positive.

    Raises:
        ValueError: if the problem is not a quadratic, or the method is not linear in the start and
            the gradients, draws random numbers, or has rounds that do not repeat within 64 rounds.
    """
    checks.number("linear_rate: step", step, "(0, inf)")
    with jax.enable_x64(True):
        return _linear("linear_rate", method, problem).rate(step)


@checks.arguments
def stable_step(method: Callable, problem: Problem) -> float:
    r"""Returns the largest step size up to which a method converges on a quadratic: the first
    $\gamma$ at which $\varrho(M) = 1$.

    It depends on the method, the Hessians and the topology; for gradient descent it is 2 / L. The
    search multiplies the step by 1.1 from 0.001 / L on, and then bisects to a relative accuracy of
    1e-8.

    Args:
        method, problem: as in `linear_rate`. The mean of the Hessians must be positive definite.

    Returns:
        The step size; infinity if the method converges with all steps up to 1e6 / L.

    Raises:
        ValueError: as in `linear_rate`, or if the method does not converge with the step 0.001 / L.
    """
    with jax.enable_x64(True):
        linear = _linear("stable_step", method, problem)
        smallest = _SMALL / _smoothness(linear.of)
        if not (rate := linear.rate(smallest)) < 1:
            raise ValueError(
                f"stable_step: on {problem.name} the method does not converge with the step 0.001 "
                f"/ L = {smallest:.3g} (factor per round: {rate:.9g}); expected a method that "
                "converges with small steps, and Hessians with a positive definite mean"
            )
        step = smallest
        while linear.rate(_GROWTH * step) < 1:
            step *= _GROWTH
            if step > _LARGEST / _SMALL * smallest:
                return float("inf")
        low, high = step, _GROWTH * step
        while high - low > 1e-8 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if linear.rate(middle) < 1 else (low, middle)
        return low


class _Linear(NamedTuple):
    """A method on a quadratic as a linear iteration.

    Args:
        build, gradient, of: see `Rounds`; the step size of the instance is not used.
        settled: a late state, in which push-sum's weights have converged.
        period: P.
    """

    build: Build
    gradient: Callable | None
    of: Instance
    settled: jax.Array
    period: int

    def rate(self, step: float) -> float:
        """Returns the factor per round; infinity if numbers overflow."""
        of = self.of._replace(learning_rate=jnp.asarray(step, float))
        M, directions = map(np.asarray, _iteration(of, self.settled, **self._static()))
        if not (np.isfinite(M).all() and np.isfinite(directions).all()):
            return float("inf")
        moves = _dependent(M, directions)
        M, directions = M[np.ix_(moves, moves)], directions[moves]
        basis = _complement_of_invariants(M, directions)
        radius = np.abs(np.linalg.eigvals(basis.T @ M @ basis)).max(initial=0.0)
        return float(radius ** (1 / self.period))

    def _static(self) -> dict:
        return {"build": self.build, "gradient": self.gradient, "period": self.period}


def _linear(name: str, method: Callable, problem: Problem) -> _Linear:
    """Returns the method's iteration, after the validation that it is linear."""
    of = moments.instance(problem, 0.0)
    of = of._replace(learning_rate=_SMALL / _smoothness(of))
    build = _builder(method)
    settled, derivatives, wrong = _probe(of, build=build, gradient=problem.gradient)
    signs, size = np.asarray(derivatives), np.abs(derivatives).max()
    repeats = [
        P
        for P in range(1, _LONGEST + 1)
        if np.abs(signs[P:] - signs[:-P]).max() <= _ROUNDING * size
    ]
    found = [text for kind, text in _WRONG.items() if bool(wrong[kind])]
    if not found and not repeats:
        found = [f"its rounds do not repeat within {_LONGEST} rounds"]
    if found:
        raise ValueError(
            f"{name}: the method on {problem.name} is not a linear iteration: {'; '.join(found)}; "
            "expected a method that is linear in the start and the gradients, such as "
            "algorithms.extra with optax.sgd"
        )
    return _Linear(build, problem.gradient, of, settled, repeats[0])


_WRONG = {
    "nonlinear": "its states are not affine in the start and the gradients",
    "by_key": "it draws random numbers",
    "counters": "its states contain numbers other than floating-point ones that change",
}


def _smoothness(of: Instance) -> float:
    """Returns L of the workers' objectives."""
    return float(np.linalg.eigvalsh(np.asarray(of.A)).max())


@cache
def _builder(method: Callable) -> Build:
    """Returns the builder of a method. It is the same for the same function, so that the rounds are
    compiled once.
    """

    def build(of: Instance, compressor) -> Algorithm:
        return method(of.learning_rate)

    return build


@partial(jax.jit, static_argnames=("build", "gradient"))
def _probe(of, *, build, gradient):
    """Returns a late state, the derivatives of later rounds in one direction, and which of the
    violations `_WRONG` are found.
    """

    def probe(of):
        rounds = Rounds(build, gradient, of, jax.random.key(0), None)
        silence, zero = rounds.silence(1), jnp.zeros(rounds.shape)

        def run(start, b, key, steps):
            moved = rounds._replace(of=of._replace(start=start, b=b), key=key)
            return lax.fori_loop(
                0, steps, lambda t, s: moved.next_state(t, s, zero, silence), moved.first()
            )

        settled = run(of.start, of.b, rounds.key, _SETTLED)
        turns = jnp.sin(1.0 + jnp.arange(settled.size))

        def derivative(t, key):
            after = partial(rounds._replace(key=key).next_state, t, z=zero, rows=silence)
            return jax.jvp(after, (settled,), (turns,))[1]

        times = _SETTLED + jnp.arange(3 * _LONGEST, dtype=jnp.int32)
        derivatives = lax.map(lambda t: derivative(t, rounds.key), times)
        # All rounds have the key of `rounds`: a rare event needs many keys to be seen.
        keys = jax.random.split(rounds.key, _KEYS)
        differs = lax.map(lambda key: derivative(times[0], key), keys) - derivatives[:1]
        sizes = jnp.array([1e-3, 1.0, 1e3])
        bends = lax.map(lambda size: _bend(run, of, size, rounds.key), sizes)
        wrong = {
            "nonlinear": ~jnp.all(bends <= _ROUNDING),
            "by_key": ~(jnp.abs(differs).max() <= _ROUNDING * jnp.abs(derivatives).max()),
            "counters": ~rounds.keeps_counters(silence),
        }
        return settled, derivatives, wrong

    return place_on_one_device(probe)(of)


def _bend(run: Callable, of: Instance, size: jax.Array, key: jax.Array) -> jax.Array:
    """Returns by how much states are not affine in the start and in b: f(p + q) - f(p) - f(q) +
    f(0), relative to their size.
    """
    waves = (jnp.sin, jnp.cos)

    def state(p, q):
        start, b = (
            size * (p * waves[0](1.0 + k) + q * waves[1](2.5 * k + 0.3)).reshape(leaf.shape)
            for leaf in (of.start, of.b)
            for k in (jnp.arange(leaf.size),)
        )
        return run(start, b, key, 2 * _LONGEST)

    none, one, other, both = (state(p, q) for p, q in ((0, 0), (1, 0), (0, 1), (1, 1)))
    largest = jnp.max(jnp.abs(jnp.stack([one, other, both])))
    return jnp.max(jnp.abs(both - one - other + none)) / largest


@partial(jax.jit, static_argnames=("build", "gradient", "period"))
def _iteration(of, settled, *, build, gradient, period):
    """Returns M, `[s, s]`, and the directions of the first differences, `[s, d + N d]`."""

    def iteration(of, settled):
        rounds = Rounds(build, gradient, of, jax.random.key(0), None)
        silence, zero = rounds.silence(1), jnp.zeros(rounds.shape)

        def state_after(rounds, first, last, s):
            def body(s, t):
                return rounds.next_state(t, s, zero, silence), None

            return lax.scan(body, s, jnp.arange(first, last, dtype=jnp.int32))[0]

        # The first rounds of some methods differ. The phase of the period is that of `settled`.
        first = _SETTLED % period + period

        def states(start, b):
            early = rounds._replace(of=of._replace(start=start, b=b))
            s = state_after(early, 0, first, early.first())
            return s, state_after(early, first, first + period, s)

        M = jax.jacfwd(partial(state_after, rounds, _SETTLED, _SETTLED + period))(settled)
        of_start = jax.jacfwd(lambda start: states(start, of.b)[0])(of.start)
        before, then = jax.jacfwd(lambda b: states(of.start, b))(of.b)
        columns = (of_start, then - before)
        return M, jnp.concatenate([leaf.reshape(settled.size, -1) for leaf in columns], axis=1)

    return place_on_one_device(iteration)(of, settled)


def _dependent(M: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Returns which elements of the state depend on the start or on b, bool `[s]`. Push-sum's
    weights do not.
    """
    moves = (directions != 0).any(axis=1)
    while (further := moves | (M[:, moves] != 0).any(axis=1)).sum() > moves.sum():
        moves = further
    return moves


def _complement_of_invariants(M: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Returns an orthonormal basis, `[s, r]`, of the vectors with $y^T v = 0$ for all invariants y:
    $y^T M = y^T$, and $y^T \\delta = 0$ for all columns of `directions`. M maps them to each other.
    """
    left, values, _ = np.linalg.svd(M - np.eye(len(M)))
    fixed = left[:, values <= _ROUNDING * _SMALL * values.max()]
    sizes = np.linalg.norm(directions, axis=0)
    seen = fixed.T @ (directions / np.where(sizes > 0, sizes, 1))
    left, values, _ = np.linalg.svd(seen)
    zeros = np.pad(values, (0, len(left) - len(values))) <= _ROUNDING
    invariants = fixed @ left[:, zeros]
    return np.linalg.svd(invariants, full_matrices=True)[0][:, invariants.shape[1] :]
