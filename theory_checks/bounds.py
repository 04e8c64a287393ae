"""The right-hand sides of the theorems as plain functions of keyword arguments, named after the
methods.

    bounds.sgd(gap=1.0, smoothness=1.0, noise=0.5, steps=1_000, learning_rate=0.01)

Those of linear rates return the factor per round; their largest step sizes are next to them. Those
named `seconds` return times on clusters. The
module of each family contains the hypotheses, the recommended step size, and the rate at that
step size.
"""

from theory_checks.statements.asynchronous_sgd import bound as asynchronous_sgd
from theory_checks.statements.birch_sgd import bound as birch_sgd
from theory_checks.statements.compressed_linear import (
    diana,
    diana_step,
    ef_bv,
    ef_bv_residuals,
    ef_bv_step,
    marina,
    marina_step,
)
from theory_checks.statements.compressed_sgd import bound as compressed_sgd
from theory_checks.statements.decentralized_sgd import bound as decentralized_sgd
from theory_checks.statements.decentralized_sgd import consensus
from theory_checks.statements.dropcompute import bound as dropcompute
from theory_checks.statements.dropcompute_convex import bound as dropcompute_convex
from theory_checks.statements.ef21 import bound as ef21
from theory_checks.statements.error_compensated_sgd import bound as error_compensated_sgd
from theory_checks.statements.gradient_descent import bound as gradient_descent
from theory_checks.statements.graph_seconds import (
    amelie_seconds,
    fragile_seconds,
    optimal_seconds_on_graph,
    optimal_seconds_on_graph_different_data,
)
from theory_checks.statements.local_sgd import bound as local_sgd
from theory_checks.statements.lower_bound import bound as lower_seconds
from theory_checks.statements.minibatch_sgd import bound as minibatch_sgd
from theory_checks.statements.seconds import (
    asynchronous_seconds,
    backup_workers_seconds,
    batch_seconds,
    delay_adaptive_seconds,
    malenia_seconds,
    minibatch_seconds,
    optimal_seconds,
    optimal_seconds_different_data,
    rennala_seconds,
    ringleader_seconds,
    ringmaster_seconds,
)
from theory_checks.statements.sgd import bound as sgd

__all__ = [
    "amelie_seconds",
    "asynchronous_seconds",
    "asynchronous_sgd",
    "backup_workers_seconds",
    "batch_seconds",
    "birch_sgd",
    "compressed_sgd",
    "consensus",
    "decentralized_sgd",
    "delay_adaptive_seconds",
    "diana",
    "diana_step",
    "dropcompute",
    "dropcompute_convex",
    "ef21",
    "ef_bv",
    "ef_bv_residuals",
    "ef_bv_step",
    "error_compensated_sgd",
    "fragile_seconds",
    "gradient_descent",
    "local_sgd",
    "lower_seconds",
    "malenia_seconds",
    "marina",
    "marina_step",
    "minibatch_seconds",
    "minibatch_sgd",
    "optimal_seconds",
    "optimal_seconds_different_data",
    "optimal_seconds_on_graph",
    "optimal_seconds_on_graph_different_data",
    "rennala_seconds",
    "ringleader_seconds",
    "ringmaster_seconds",
    "sgd",
]
