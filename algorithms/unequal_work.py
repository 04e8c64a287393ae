"""Any method, with workers that compute unequal amounts of work."""

from __future__ import annotations

from collections.abc import Callable

from dsgd import checks
from dsgd.base import Algorithm, Round, State, Work
from dsgd.machines.arrays import owned
from dsgd.work import in_samples, need_arrays


@checks.arguments
def unequal_work(method: Algorithm, work: Work | Callable[[State, Round], Work]) -> Algorithm:
    r"""Returns the same method with gradients of the work that each worker does in a round.

    $$ g_n = \sum_{m=1}^M w_{nm} \frac{1}{b_{nm}} \sum_{i=1}^{b_{nm}} f_n'(x; \xi_{nmi}) $$

    Methods that take the mean over workers step along the estimate that `dsgd.work` states. Methods
    with local steps, or with one worker's gradient at a time, step along each worker's own
    gradient: its length is that of a mean with `average="workers"`, else it grows with the worker's
    share of all samples. If some workers do not participate, means are over the others, whose
    weights stay as they are (they add up to 1 only on average), unless the work is made for those
    that participate, with `present=round.present`. The history has `samples`, `[records, N]`.

    Args:
        method: any whose queries state no work.
        work: b and w, of `dsgd.work`; or a function (State, Round) -> Work of one static shape,
            whose values may change while training.

    Raises:
        ValueError: no method, or no work. When it runs: work for another number of workers, work
            that the problem cannot do, or a method whose queries state their own.
    """
    what = getattr(work, "__name__", "a function")
    if isinstance(work, Work):
        need_arrays(f"unequal_work: {method.name} with work", work, None)
        what = f"{work.samples.shape[1]} micro-batches"
        work = Work(*owned(tuple(work)))

    def given(state: State, round: Round) -> Work:
        asked = work if isinstance(work, Work) else work(state, round)
        need_arrays(f"unequal_work({method.name}): work", asked, round.workers)
        return asked

    def query(state, round):
        own, problem = given(state, round), round.problem
        sizes = () if problem is None else (problem.batch_size, problem.batch_sizes)
        # A method that keeps its own time asks the cluster how long this work takes.
        asked = method.query(state, round._replace(work=in_samples(own, *sizes)))
        if asked.work is not None:
            raise ValueError(
                f"unequal_work: {method.name} states itself what its workers compute; expected a "
                "method that does not"
            )
        return asked._replace(work=own)

    return method._replace(name=f"unequal_work({method.name}, {what})", query=query)
