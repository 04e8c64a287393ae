"""Validates what a method's and a problem's functions return while they are traced. Error messages
name the function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import keystr, tree_leaves_with_path

from dsgd import checks, work, workers
from dsgd.base import Algorithm, Gradients, Params, Problem, PyTree, Query, Round, State
from dsgd.causes import error_context
from dsgd.communication import Communicator, Record, communicate
from dsgd.engine import leaves, queries
from dsgd.engine.queries import AllAsked, Asked


class Method(NamedTuple):
    """A method on a problem, whose members raise ValueError if they return something that the
    protocol does not allow.

    Args:
        algorithm: the method, not validated.
        problem: the problem that it runs on.
        N: number of workers.
    """

    algorithm: Algorithm
    problem: Problem
    N: int

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.algorithm.name

    def init(self, params: Params) -> State:
        """Returns the first state, in the global view; `params` are all leaves of the
        parameters.
        """
        trained, fixed = leaves.split(leaves.flags(self.problem), params)
        with error_context(f"init of {self.name}"):
            state = self.algorithm.init(trained, self.N)
        _require_state(f"{self.name}: init", state)
        for path, leaf in tree_leaves_with_path(state.workers):
            if jnp.shape(leaf)[:1] != (self.N,):
                where = f"{self.name}: init returns State.workers{keystr(path)}"
                raise ValueError(
                    f"{where} of shape {jnp.shape(leaf)}; expected a leading axis of the {self.N} "
                    "workers (put what all workers share into State.server)"
                )
        return state._replace(step=jnp.int32(0), fixed=fixed)

    def query(self, state: State, round: Round) -> AllAsked:
        """Returns the query of a round, or its queries."""
        with error_context(f"query of {self.name}"):
            query = self._query(state, round)
        if isinstance(query, Query) or not (isinstance(query, tuple) and query):
            return _validate_query(self.name, query, self.problem, self.N)
        for one in query:
            if isinstance(one, Query) and one.workers is not None:
                raise ValueError(
                    f"{self.name}: query returns {len(query)} queries, one of them with workers; "
                    "expected workers in a single query only; pass active = bool [N] instead"
                )
        asked = (_validate_query(self.name, one, self.problem, self.N) for one in query)
        return type(query)(*asked) if hasattr(query, "_fields") else tuple(asked)

    def _query(self, state: State, round: Round) -> Any:
        """Calls the method's query; a call that only `update` can make raises ValueError."""
        try:
            return self.algorithm.query(state, round)
        except AttributeError as error:
            if isinstance(error.obj, Round) and hasattr(Communicator, error.name or ""):
                raise ValueError(
                    f"{self.name}: query calls round.{error.name}; expected this call in update, "
                    "since only update can send"
                ) from error
            raise

    def update(
        self, state: State, gradients: Gradients, round: Round, key: jax.Array
    ) -> tuple[State, Record]:
        """Returns the state after a round, and the record of what was sent."""
        with error_context(f"update of {self.name}"):
            after, record = communicate(self.algorithm, state, gradients, round, key)
        _require_state(f"{self.name}: update", after)
        for part in ("server", "workers"):
            checks.require_same(
                f"{self.name}: update returns State.{part}",
                getattr(after, part),
                getattr(state, part),
                types=True,
            )
        return after, record

    def absent(self, before: PyTree, after: PyTree) -> PyTree:
        """Returns the rows of `State.workers` for workers that did not participate."""
        if self.algorithm.absent is None:
            return before
        with error_context(f"absent of {self.name}"):
            rows = self.algorithm.absent(before, after)
        checks.require_same(f"{self.name}: absent returns State.workers", rows, before, types=True)
        return rows

    def models(self, state: State) -> tuple[Params, bool]:
        """Returns the model that a run returns and False, or the local models, leaves `[n, ...]`,
        and True.
        """
        with error_context(f"model of {self.name}"):
            params = self.algorithm.model(state)
        like = parameters(self.problem)
        if stacked := queries.is_stacked(params, like):
            checks.require_same(
                f"{self.name}: model returns local models",
                params,
                like,
                (workers.block_size(self.N),),
            )
        else:
            checks.require_same(f"{self.name}: model returns params", params, like)
        return params, stacked

    def personal(self, state: State) -> Params | None:
        """Returns the models that the workers use themselves, leaves `[n, ...]`; None: all use the
        model that a run returns.
        """
        if self.algorithm.personal is None:
            return None
        with error_context(f"personal of {self.name}"):
            rows = self.algorithm.personal(state)
        checks.require_same(
            f"{self.name}: personal returns models",
            rows,
            parameters(self.problem),
            (workers.block_size(self.N),),
        )
        return rows


def parameters(problem: Problem) -> Params:
    """Returns the shapes and types of the problem's trained parameters, which a method sees."""
    return leaves.split(leaves.flags(problem), leaves.shapes(problem))[0]


def _require_state(where: str, state: Any) -> None:
    if not isinstance(state, State):
        raise ValueError(f"{where} returns {checks.kind(state)}; expected a dsgd.State")


def _validate_query(name: str, query: Any, problem: Problem, N: int) -> Asked:
    """Validates a query. Returns it with `exact` as a Python bool and `workers` as int32."""
    if not isinstance(query, Query):
        raise ValueError(
            f"{name}: query returns {checks.kind(query)}; expected a dsgd.Query, or a tuple of "
            "queries"
        )
    exact = query.exact
    if isinstance(exact, Tracer) or not (
        isinstance(exact, bool | np.bool_)
        or (_is_array(exact) and exact.shape == () and exact.dtype == bool)
    ):
        raise ValueError(
            f"{name}: query returns exact = {_static(exact)}; expected True or False, the same in "
            "all rounds, since the program depends on it. For exact gradients in some rounds, "
            "return two queries: (Query(x), Query(x, exact=True, active=condition))"
        )
    if not isinstance(query.loss, bool | np.bool_):
        raise ValueError(
            f"{name}: query returns loss = {_static(query.loss)}; expected True or False, the same "
            "in all rounds"
        )
    like = parameters(problem)
    leading = (workers.block_size(N),) if queries.is_stacked(query.params, like) else ()
    checks.require_same(f"{name}: query returns params", query.params, like, leading)
    chosen, given = query.workers, query.work
    if chosen is not None and not (
        _is_array(chosen)
        and chosen.ndim == 1
        and chosen.size
        and jnp.issubdtype(chosen.dtype, jnp.integer)
    ):
        raise ValueError(
            f"{name}: query returns workers = {checks.kind(chosen)}; expected None, or int32 [k], "
            "k >= 1"
        )
    if given is not None:
        work.require_work(f"{name}: query returns work", given, N, problem)
        given = work.to_samples(given, problem.batch_size, problem.sampler.batch_sizes)
        if given.first_batch is not None and exact:
            raise ValueError(
                f"{name}: query returns work with draws and exact = True; expected draws only for "
                "stochastic gradients"
            )
    fields = {
        "workers": None if chosen is None else jnp.asarray(chosen, jnp.int32),
        "exact": bool(exact),
        "work": given,
        "active": _active(name, query.active, N),
        "samples": _samples(name, query, problem, N),
        "loss": bool(query.loss),
    }
    return queries.convert(query._replace(**fields), like, problem, N)


def _active(name: str, active: Any, N: int) -> jax.Array | None:
    """Validates the active workers of a query and returns them as bool `[N]`, or None."""
    if active is None:
        return None
    if not (
        isinstance(active, bool | np.bool_) or (_is_array(active) and active.dtype == bool)
    ) or (jnp.shape(active) not in ((), (N,))):
        raise ValueError(
            f"{name}: query returns active = {checks.kind(active)}; expected None, a bool scalar, "
            f"or bool [{N}]"
        )
    return jnp.broadcast_to(active, (N,))


def _samples(name: str, query: Query, problem: Problem, N: int) -> jax.Array | None:
    """Validates the samples that a query chooses and returns them as int32 `[N, b]`, or None."""
    samples = query.samples
    if samples is None:
        return None
    if not (
        _is_array(samples)
        and jnp.issubdtype(samples.dtype, jnp.integer)
        and samples.shape[:1] == (N,)
        and samples.ndim <= 2
        and samples.size
    ):
        raise ValueError(
            f"{name}: query returns samples = {checks.kind(samples)}; expected None, integers "
            f"[{N}], or integers [{N}, b] with b >= 1"
        )
    if problem.sampler.choose is None or problem.local_samples is None:
        raise ValueError(
            f"{name}: query returns samples, but samples of {problem.name} cannot be chosen; "
            "expected a problem with a finite number of samples, such as problems.finite_sum, or a "
            "dsgd.Sampler with choose and local_samples"
        )
    if query.exact or query.work is not None:
        other = "exact = True" if query.exact else "work"
        raise ValueError(
            f"{name}: query returns samples and {other}; expected samples alone, which are the "
            "batch, or no samples"
        )
    return jnp.asarray(samples, jnp.int32).reshape(N, -1)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _static(value: Any) -> str:
    """Formats a value that must be known during tracing, for an error message."""
    return f"a traced {checks.kind(value)}" if isinstance(value, Tracer) else checks.show(value)


def require_batch(problem: Problem, batch: PyTree) -> PyTree:
    """Returns the batch that the problem drew, which must have arrays."""
    if not jax.tree.leaves(batch):
        raise ValueError(
            f"{problem.name}: sample returns {checks.show(batch)}; expected a batch, a pytree of "
            "arrays"
        )
    return batch


def loss(problem: Problem) -> Callable:
    """Returns the problem's loss, which raises ValueError if it is not a floating-point scalar."""

    def batch_loss(params, batch):
        with error_context(f"loss of {problem.name}"):
            value = problem.loss(params, batch)
        if (
            not isinstance(value, jax.Array)
            or value.shape != ()
            or not jnp.issubdtype(value.dtype, jnp.floating)
        ):
            raise ValueError(
                f"{problem.name}: loss returns {checks.kind(value)}; expected one floating-point "
                "scalar, the mean over the batch"
            )
        return value

    return batch_loss
