"""Regularizers of a problem: with a proximal step, or smooth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import array_likes, checks, sameness, workers, xla
from dsgd.base import Params, Problem, Regularizer
from dsgd.causes import refuse_errors
from dsgd.engine import leaves, protocol

# The mean of feasible local models may violate the constraints by rounding.
_ROUNDINGS = 1024
_PENALTIES = "[0, 1e30]"  # within float32, with room for products


@checks.arguments
def regularized(
    problem: Problem,
    regularizer: Annotated[
        Regularizer, "a dsgd.Regularizer; a SmoothRegularizer is an argument of finite_sum"
    ],
) -> Problem:
    r"""Returns the problem $\min_x f(x) + r(x)$, for a problem $\min_x f(x)$.

    A method uses r by its proximal step, `round.prox`; a run refuses methods that do not. The
    history then has `objective`, $f(x) + r(x)$, and `prox_grad_sqnorm`, $|x - \mathrm{prox}_r(x -
    f'(x))|^2$, in addition to `loss`, which remains f(x).

    Args:
        problem: f.
        regularizer: r, such as `l1(0.01)`; or a custom `dsgd.Regularizer(value, prox, name)`.

    Returns:
        The problem without the constants that hold for f only: minimum, minimizer and
        heterogeneity. `solved` computes minimum and minimizer of f + r.

    Raises:
        ValueError: if the problem already has a regularizer, or the functions of r do not return a
            scalar and a tree like the parameters.
    """
    if problem.regularizer is not None:
        raise ValueError(
            f"regularized: {problem.name} has the regularizer {problem.regularizer.name}; expected "
            "a problem without one: pass a dsgd.Regularizer of the sum, with its proximal step"
        )
    _require_functions(problem, regularizer)
    return problem._replace(
        regularizer=regularizer,
        constants=problem.constants._replace(minimum=None, minimizer=None, heterogeneity=None),
        name=f"{problem.name} + {regularizer.name}",
    )


@checks.arguments
@dataclass(frozen=True, eq=False)
class SmoothRegularizer(sameness.Compared):
    r"""A smooth function r that is part of every $f_n$, so that its gradient is part of all
    gradients. It need not be convex.

    Problems accept it as `regularizer`; `nonconvex` constructs it.

    Args:
        value: params -> r(x), a scalar.
        smoothness: L, a Lipschitz constant of r'.
        strong_convexity: mu, a lower bound of the eigenvalues of the Hessian; negative if r is not
            convex.
        name: name in tables and error messages.

    Raises:
        ValueError: unless $-L \le \mu \le L < \infty$.
    """

    value: Annotated[Callable[[Params], Any], "(parameters)"]
    smoothness: float
    strong_convexity: float
    name: str

    def __post_init__(self) -> None:
        if not abs(self.strong_convexity) <= self.smoothness < np.inf:
            raise ValueError(
                f"SmoothRegularizer: smoothness = {self.smoothness}, strong_convexity = "
                f"{self.strong_convexity}; expected a finite L, and mu from -L to L"
            )

    def __repr__(self) -> str:
        return f"SmoothRegularizer({self.name})"


@checks.arguments
def nonconvex(penalty: float) -> SmoothRegularizer:
    r"""Bounded penalty of large elements, the usual regularizer of non-convex test problems.

    $$ r(x) = \lambda \sum_i \frac{x_i^2}{1 + x_i^2}, \qquad -\tfrac{\lambda}{2} \le
    \frac{\partial^2 r}{\partial x_i^2} \le 2 \lambda $$

    Args:
        penalty: $\lambda$, from 0 to 1e30.

    Raises:
        ValueError: if the penalty is outside of this interval.
    """
    checks.number("nonconvex: penalty", penalty, _PENALTIES)
    return SmoothRegularizer(
        partial(_saturating, penalty), 2 * penalty, -penalty / 2, f"nonconvex({penalty})"
    )


def _saturating(penalty: float, params: Params) -> jax.Array:
    def sum_of_leaf(x):
        return jnp.sum(x**2 / (1 + x**2))

    return penalty * _sum(jax.tree.map(sum_of_leaf, workers.widen(params)))


def require_value(where: str, problem: Problem, r: Regularizer | SmoothRegularizer) -> None:
    """Raises a ValueError unless r(x) is a floating-point scalar for the problem's parameters."""

    def value(params):
        given = r.value(params)
        floating = checks.is_number(given) and jnp.issubdtype(jnp.result_type(given), jnp.floating)
        if not floating:
            raise ValueError(f"returns {checks.kind(given)}; expected a floating-point scalar")
        return given

    with refuse_errors(f"{where}: value of {r.name}"):
        jax.eval_shape(value, protocol.parameters(problem))


def _require_functions(problem: Problem, r: Regularizer) -> None:
    def prox(params):
        return leaves.require_arrays("the function", r.prox(params, 1.0))

    require_value("regularized", problem, r)
    params = protocol.parameters(problem)
    with refuse_errors(f"regularized: prox of {r.name}"):
        after = jax.eval_shape(prox, params)
    checks.require_same(f"regularized: prox of {r.name} returns a tree", after, params)


@checks.arguments
def l1(penalty: float) -> Regularizer:
    r"""Sum of absolute values, which makes the minimizer sparse.

    $$ r(x) = \lambda \sum_i |x_i|, \qquad \mathrm{prox}_{s r}(x)_i = \mathrm{sign}(x_i) \max(|x_i|
    - s \lambda, 0) $$

    Args:
        penalty: $\lambda$, from 0 to 1e30.

    Raises:
        ValueError: if the penalty is outside of this interval.
    """
    checks.number("l1: penalty", penalty, _PENALTIES)
    return Regularizer(partial(_l1, penalty), partial(_soft_threshold, penalty), f"l1({penalty})")


def _l1(penalty: float, params: Params) -> jax.Array:
    return penalty * _sum(jax.tree.map(lambda x: jnp.sum(jnp.abs(x)), workers.widen(params)))


def _soft_threshold(penalty: float, params: Params, step: Any) -> Params:
    return jax.tree.map(lambda x: jnp.sign(x) * jnp.maximum(jnp.abs(x) - step * penalty, 0), params)


@checks.arguments
def group_lasso(penalty: float, groups: str = "rows") -> Regularizer:
    r"""Sum of the norms of groups of elements, which makes whole groups of the minimizer 0.

    $$ r(x) = \lambda \sum_g \sqrt{d_g}\, |x_g|, \qquad \mathrm{prox}_{s r}(x)_g = \max\Big(1 -
    \frac{s \lambda \sqrt{d_g}}{|x_g|}, 0\Big) x_g $$

    $d_g$ is the number of elements of group g, and $|x_g|$ its Euclidean norm.

    Args:
        penalty: $\lambda$, from 0 to 1e30.
        groups: "rows": each row of each leaf, that is, of its first axis; an element of a vector is
            a group. In a linear model with a kernel `[features, classes]` a group is a feature.
            "leaves": each leaf.

    Raises:
        ValueError: if the penalty is outside of this interval, or `groups` is unknown.

    Source: Yuan and Lin, "Model selection and estimation in regression with grouped variables",
    2006.
    """
    checks.number("group_lasso: penalty", penalty, _PENALTIES)
    if groups not in ("rows", "leaves"):
        raise ValueError(f"group_lasso: groups = {groups!r}; expected 'rows' or 'leaves'")
    of = (penalty, groups == "rows")
    name = f"group_lasso({penalty}, {groups!r})"
    return Regularizer(partial(_group_norms, *of), partial(_shrink_groups, *of), name)


def _groups(rows: bool, x: jax.Array) -> jax.Array:
    """Returns a leaf as a matrix with one row for each group."""
    return x.reshape(x.shape[0] if rows and x.ndim else 1, -1)


def _group_norms(penalty: float, rows: bool, params: Params) -> jax.Array:
    def norms_of_leaf(x):
        groups, powers = jax.vmap(xla.rescale)(_groups(rows, x))
        return groups.shape[1] ** 0.5 * jnp.sum(powers * optax.safe_norm(groups, 0.0, axis=1))

    return penalty * _sum(jax.tree.map(norms_of_leaf, params))


def _shrink_groups(penalty: float, rows: bool, params: Params, step: Any) -> Params:
    def shrink_leaf(x):
        groups = _groups(rows, x)
        rescaled, powers = jax.vmap(xla.rescale)(groups)
        least = step * penalty * groups.shape[1] ** 0.5 / powers
        norm = optax.safe_norm(rescaled, jnp.finfo(rescaled.dtype).tiny, axis=1)
        factors = jnp.maximum(1 - least / norm, 0)[:, None]
        return (groups * factors).astype(x.dtype).reshape(x.shape)

    return jax.tree.map(shrink_leaf, params)


@checks.arguments
def box(low: float, high: float) -> Regularizer:
    r"""Constraints $l \le x_i \le u$ on all elements.

    $$ r(x) = \begin{cases} 0 & l \le x_i \le u \text{ for all } i \\ \infty & \text{otherwise}
    \end{cases}, \qquad \mathrm{prox}_{s r}(x)_i = \min(\max(x_i, l), u) $$

    In `value`, elements may violate the constraints by the rounding of a mean over workers, 1,024
    times the precision of the parameters' type.

    Args:
        low, high: l and u; may be infinite.

    Raises:
        ValueError: unless $l \le u$, or if a finite bound is outside the range of JAX's default
            float type.
    """
    if not low <= high:
        raise ValueError(f"box: low = {low}, high = {high}; expected low <= high")
    array_likes.narrow("box: bounds", np.array([low, high]))
    return Regularizer(
        partial(_inside, low, high), partial(_clip, low, high), f"box({low}, {high})"
    )


@checks.arguments
def nonnegative() -> Regularizer:
    r"""Constraints $x_i \ge 0$ on all elements: `box(0, inf)`."""
    return replace(box(0.0, float("inf")), name="nonnegative")


def _inside(low: float, high: float, params: Params) -> jax.Array:
    def contains(x):
        tolerance = _ROUNDINGS * jnp.finfo(x.dtype).eps * jnp.abs(x)
        return jnp.all((x >= low - tolerance) & (x <= high + tolerance))

    feasible = jax.tree.map(contains, params)
    return jnp.where(jnp.all(jnp.stack(jax.tree.leaves(feasible))), 0.0, jnp.inf)


def _clip(low: float, high: float, params: Params, step: Any) -> Params:
    return jax.tree.map(lambda x: jnp.clip(x, low, high), params)


def _sum(scalars: Any) -> jax.Array:
    return jnp.sum(jnp.stack(jax.tree.leaves(scalars)))
