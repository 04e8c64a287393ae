"""SGD with backup workers: Chen et al., "Revisiting distributed synchronous SGD", 2016. The
gradients of the first N - k workers are counted; ties go to the lowest id. N servers have one shard
of the model each.
"""

import numpy as np

from algorithms import backup_workers_sgd
from tests.methods import events
from tests.methods.given import Case, Given, Rounds
from theory_checks.machinery.statement import Draws

BACKUPS = 2


def recursion(given: Given) -> Rounds:
    N, x, step, shard = given.N, given.x, given.step(), -(-given.model // given.N)
    for t in given.rounds:
        seconds = np.array([given.more.seconds(n, float(t)) for n in range(N)])
        first = sorted(range(N), key=lambda n: (seconds[n], n))[: N - BACKUPS]
        x = x + step(given.gradients_at(t, x)[first].sum(axis=0) / (N - BACKUPS))
        counted = np.isin(np.arange(N), first)
        yield {
            "x": x,
            "compute": np.minimum(seconds, max(seconds[n] for n in first)),
            # to the other servers, and their sums to all others
            "bits up": shard * (N - 1) * (counted + 1),
            "bits down": shard * (N - BACKUPS - counted + N - 1),
        }


def with_ties(draws: Draws) -> events.Numbers:
    """Draws a cluster with workers that compute for one, two or three eighths of a second."""
    numbers = events.cluster(draws)
    return numbers._replace(compute=(8 * numbers.compute - 1) % 3 / 8 + 1 / 8)


CASES = {
    "": Case(
        lambda given: backup_workers_sgd(given.optimizer, BACKUPS),
        recursion,
        optimizer="momentum",
        symbols={"compute": lambda found: found.compute},
        more=with_ties,
        place=events.place,
    )
}
