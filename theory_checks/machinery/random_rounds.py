r"""Rounds of a method on a quadratic that depend on random draws with finitely many outcomes, such
as the places of random-k, and their exact second moments.

With exact gradients, each outcome i of the draws gives an affine round, $s_{t+1} = M_i s_t + c_i$.
If all of them have the same fixed point, the differences $\delta$ to it follow $\delta_{t+1} = M_i
\delta_t$, and with the probabilities $p_i$

$$ E\, \delta_{t+1} \delta_{t+1}^T = \sum_i p_i M_i (E\, \delta_t \delta_t^T) M_i^T, \qquad
E\, \Psi(\delta_{t+1}) = \delta_t^T \Big( \sum_i p_i M_i^T P M_i \Big) \delta_t, \quad
\Psi(\delta) = \delta^T P \delta. $$

The spectral radius of the first map is the factor by which second moments decrease per round. The
largest eigenvalue of the second matrix relative to P is the largest factor of a Lyapunov function
in one round, over all states.

The $M_i$ are derivatives of the method's own `query` and `update` for many keys; different ones are
different outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dsgd.base import Problem, State
from theory_checks.machinery import moments
from theory_checks.machinery.rounds import Build, Instance, Rounds, place_on_one_device

_KEYS = 512
_LATER = 1  # the first rounds of some methods differ
_ROUNDING = 1e-9
_DEPENDENT = 1e-6  # a vector this near to others, relative to its size, is in their span
_STANDARD_ERRORS = 5.0


class RandomRounds(NamedTuple):
    """A method's rounds as a random linear iteration of differences.

    Args:
        matrices: M of each outcome, `[k, s, s]`.
        probabilities: of the outcomes, `[k]`.
        directions: vectors that span, together with their images, the differences to the fixed
            point, `[s, m]`.
        values: the linear parts of quantities, by name, `[values, s]`.
    """

    matrices: np.ndarray
    probabilities: np.ndarray
    directions: np.ndarray
    values: dict[str, np.ndarray]

    def factor(self, weights: Mapping[str, float]) -> float:
        r"""Returns the largest $E \Psi(\delta_{t+1}) / \Psi(\delta_t)$ in one round, over all
        reachable states; infinity if $\Psi$ can be 0 before a round and not after it.

        Args:
            weights: $\Psi$ is the sum of the squares of these quantities with these weights.
        """
        M, basis = self._reachable()
        values = [np.sqrt(weight) * self.values[name] @ basis for name, weight in weights.items()]
        root = np.concatenate(values)
        P = root.T @ root
        after = np.einsum("k,kji,jl,klm->im", self.probabilities, M, P, M)
        sizes, vectors = np.linalg.eigh(P)
        seen = sizes > _ROUNDING * sizes.max()
        hidden = vectors[:, ~seen]
        if np.abs(after @ hidden).max(initial=0.0) > _ROUNDING * sizes.max():
            return float("inf")
        scaled = vectors[:, seen] / np.sqrt(sizes[seen])
        return float(np.linalg.eigvalsh(scaled.T @ after @ scaled).max())

    def rate(self) -> float:
        """Returns the factor per round of the second moments of the differences, asymptotically."""
        M, _ = self._reachable()
        squares = np.einsum("k,kij,klm->iljm", self.probabilities, M, M)
        size = M.shape[1] ** 2
        return float(np.abs(np.linalg.eigvals(squares.reshape(size, size))).max(initial=0.0))

    def _reachable(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the matrices on the span of all reachable differences, and its orthonormal
        basis.
        """
        basis = np.zeros((self.directions.shape[0], 0))
        more = self.directions / np.linalg.norm(self.directions, axis=0).max()
        while more.shape[1]:
            left, values, _ = np.linalg.svd(more - basis @ (basis.T @ more), full_matrices=False)
            new = left[:, values > _DEPENDENT]
            basis = np.linalg.qr(np.concatenate([basis, new], axis=1))[0]
            more = np.concatenate([*(self.matrices @ new)], axis=1)
        return np.einsum("ji,kjl,lm->kim", basis, self.matrices, basis), basis


def mixture(probability: float, one: RandomRounds, other: RandomRounds) -> RandomRounds:
    """Returns the rounds that are those of `one` with a probability, else those of `other`."""
    return one._replace(
        matrices=np.concatenate([one.matrices, other.matrices]),
        probabilities=np.concatenate(
            [probability * one.probabilities, (1 - probability) * other.probabilities]
        ),
        directions=np.concatenate([one.directions, other.directions], axis=1),
    )


def random_rounds(
    build: Build,
    problem: Problem,
    learning_rate: float,
    *,
    more: Any = (),
    quantities: Callable[[State], dict[str, jax.Array]] | None = None,
) -> RandomRounds:
    """Returns the rounds of a method on a quadratic, without the noise of its gradients.

    Args:
        build: from `moments.with_step` or the like.
        problem: from `problems.quadratic`.
        learning_rate: gamma.
        more: additional arrays from which the method is built.
        quantities: additional quantities, affine in the state, `state -> {name: array}`. Those of
            `moments.second_moments` are always available.

    Raises:
        ValueError: if the problem is not a quadratic, rounds are not affine in the state, or their
            outcomes are not equally likely.
    """
    with jax.enable_x64(True):
        of = moments.instance(problem, learning_rate, more=more)
        found = _sample_rounds(of, build=build, gradient=problem.gradient, quantities=quantities)
        M, directions, values, bend = jax.tree.map(np.asarray, found)
    if not bend <= _ROUNDING:
        raise ValueError(
            f"random_rounds on {problem.name}: a round is not affine in the state; expected a "
            "method with a linear compressor, such as random-k"
        )
    rounded = np.round(M / np.abs(M).max(), 9).reshape(len(M), -1) + 0.0  # no negative zeros
    _, first, counts = np.unique(rounded, axis=0, return_index=True, return_counts=True)
    k = len(first)
    if np.abs(counts - _KEYS / k).max() > _STANDARD_ERRORS * np.sqrt(_KEYS / k):
        raise ValueError(
            f"random_rounds on {problem.name}: {k} different rounds occur {counts.min()} to "
            f"{counts.max()} times for {_KEYS} keys; expected equally likely ones"
        )
    spanning = np.concatenate([*directions[first]], axis=1)
    return RandomRounds(M[first], np.full(k, 1 / k), spanning, values)


@partial(jax.jit, static_argnames=("build", "gradient", "quantities"))
def _sample_rounds(of: Instance, *, build, gradient, quantities):
    """Returns for each key the matrix of a round, `[keys, s, s]`, and derivatives of the change in
    it with respect to the start and b, `[keys, s, d + N d]`; the linear parts of the quantities;
    and by how much rounds are not affine.
    """

    def everything(of):
        keys = jax.random.split(jax.random.key(0), _KEYS)
        rounds = Rounds(build, gradient, of, keys[0], quantities)
        z, silence, first = jnp.zeros(rounds.shape), rounds.silence(1), rounds.first()
        t = jnp.int32(_LATER)

        def state_after(key, s, t=t, of=of):
            return rounds._replace(key=key, of=of).next_state(t, s, z, silence)

        def change(key, start, b):
            moved = of._replace(start=start, b=b)
            s = rounds._replace(of=moved).first()
            for early in range(_LATER):
                s = state_after(keys[early], s, jnp.int32(early), moved)
            return state_after(key, s, of=moved) - s

        def linearize(key):
            M = jax.jacfwd(partial(state_after, key))(first)
            parts = jax.jacfwd(partial(change, key), (0, 1))(of.start, of.b)
            columns = [part.reshape(first.size, -1) for part in parts]
            return M, jnp.concatenate(columns, axis=1)

        def bend(key):
            one, other = (wave(1.0 + jnp.arange(first.size)) for wave in (jnp.sin, jnp.cos))
            none, a, b, both = (state_after(key, s) for s in (0 * one, one, other, one + other))
            return jnp.max(jnp.abs(both - a - b + none)) / jnp.max(jnp.abs(both))

        M, directions = jax.lax.map(linearize, keys)
        values = jax.jacfwd(lambda s: rounds.quantities_at(t, s))(first)
        values = {name: value.reshape(-1, first.size) for name, value in values.items()}
        return M, directions, values, jnp.max(jax.lax.map(bend, keys[:8]))

    return place_on_one_device(everything)(of)
