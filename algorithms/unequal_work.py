"""Any method, with workers that do not all compute as much."""

from __future__ import annotations

from collections.abc import Callable

from dsgd import checks
from dsgd.base import Algorithm, Round, State, Work
from dsgd.machines.arrays import owned
from dsgd.work import in_samples, need_arrays


@checks.arguments
def unequal_work(method: Algorithm, work: Work | Callable[[State, Round], Work]) -> Algorithm:
    r"""The same method, whose gradients are those of the work that each worker does in a round.

    $$ g_n = \sum_{m=1}^M w_{nm} \frac{1}{b_{nm}} \sum_{i=1}^{b_{nm}} f_n'(x; \xi_{nmi}) $$

    Methods that take the mean over workers then step along the estimate that `dsgd.work` says; those of one worker's gradient at a time,
    or of local steps, along each worker's own: its length is that of a mean with `average="workers"`, else it grows with the worker's
    share of all samples. Where workers are away, means are over the others, whose weights are as they were (they add up to 1 only on
    average), unless the work is made for those who are there, with `present=round.present`. The history has `samples`, `[records, N]`.

    Args:
        method: any that does not say itself what its workers compute.
        work: b and w, of `dsgd.work`; or a function (State, Round) -> Work of one static shape, which may change while training.

    Raises:
        ValueError: no method, no work, or one for another number of workers than the method. When it runs: work that the problem cannot
            do, or a method that says its own.
    """
    what = getattr(work, "__name__", "a function")
    if isinstance(work, Work):
        need_arrays(f"unequal_work: {method.name} with work", work, None)
        what = f"{work.samples.shape[1]} micro-batches"
        work = Work(*owned(tuple(work)))
    name = f"unequal_work({method.name}, {what})"

    def given(state: State, round: Round) -> Work:
        asked = work if isinstance(work, Work) else work(state, round)
        need_arrays(f"unequal_work({method.name}): work", asked, round.workers)
        return asked

    def init(params, N):
        if isinstance(work, Work):
            need_arrays(f"{name}: work", work, N)
        return method.init(params, N)

    def query(state, round):
        own = given(state, round)
        # Who keeps its own time asks the cluster how long this work takes.
        asked = method.query(state, round._replace(work=_in_samples(own, round)))
        if asked.work is not None:
            raise ValueError(f"unequal_work: {method.name} says itself what its workers compute; need a method that does not")
        return asked._replace(work=own)

    return method._replace(name=name, init=init, query=query)


def _in_samples(work: Work, round: Round) -> Work:
    if round.problem is None:
        return in_samples(work, None)
    return in_samples(work, round.problem.batch_size, round.problem.batch_sizes)
