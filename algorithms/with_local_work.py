"""A wrapper that sets the local work of a method's workers."""

from __future__ import annotations

from collections.abc import Callable

import jax

from dsgd import Algorithm, LocalWork, Query, Round, State, checks
from dsgd.machines.arrays import copy_arrays
from dsgd.work import require_arrays, to_samples


@checks.arguments
def with_local_work(
    method: Algorithm, work: LocalWork | Callable[[State, Round], LocalWork]
) -> Algorithm:
    r"""Returns the method with gradients of the local work that each worker does in a round.

    $$ g_n = \sum_{m=1}^M w_{nm} \frac{1}{b_{nm}} \sum_{i=1}^{b_{nm}} f_n'(x; \xi_{nmi}) $$

    Methods that average gradients over workers step along the estimate that `dsgd.work` documents.
    Methods with local steps, or with one worker's gradient at a time, step along each worker's own
    gradient: with `average="workers"` it is a mean, otherwise it grows with the worker's share of
    all samples. If some workers do not participate, means are over the others, and their weights
    are unchanged (they add up to 1 only on average), unless the work is computed for the
    participating workers, with `present=round.present`. If a method has several queries in a
    round, each has this work. The history contains `samples`, `[records, N]`.

    Args:
        method: any method whose queries do not set the local work.
        work: b and w, from `dsgd.work`; or a function (State, Round) -> LocalWork of one static
            shape, whose values may change during training.

    Raises:
        ValueError: if the work is not valid. During a run: if the work is for another number of
            workers, the problem cannot compute it, or the method's queries set their own local work
            or choose their samples.
    """
    what = getattr(work, "__name__", "a function")
    if isinstance(work, LocalWork):
        require_arrays(f"with_local_work: {method.name} with work", work, None)
        what = f"{work.samples.shape[1]} micro-batches"
        work = LocalWork(*copy_arrays(tuple(work)))

    def current_work(state: State, round: Round) -> LocalWork:
        asked = work if isinstance(work, LocalWork) else work(state, round)
        require_arrays(f"with_local_work({method.name}): work", asked, round.workers)
        return asked

    def query(state, round):
        own, problem = current_work(state, round), round.problem
        sizes = () if problem is None else (problem.batch_size, problem.sampler.batch_sizes)
        # A method with its own clock asks the cluster how long this work takes.
        asked = method.query(state, round._replace(work=to_samples(own, *sizes)))

        def add_work(asked: Query) -> Query:
            if asked.work is not None or asked.samples is not None:
                what = "choose their samples" if asked.work is None else "set the local work"
                raise ValueError(
                    f"with_local_work: the queries of {method.name} {what} themselves; expected a "
                    "method with queries that do not"
                )
            return asked._replace(work=own)

        return jax.tree.map(add_work, asked, is_leaf=lambda node: isinstance(node, Query))

    return method._replace(name=f"with_local_work({method.name}, {what})", query=query)
