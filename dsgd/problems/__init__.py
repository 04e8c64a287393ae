"""Problems on synthetic and real data, each with the constants that are known for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsgd import signatures, spelling
from dsgd.problems.adapters import Model
from dsgd.problems.blocks import ByWorker, clients
from dsgd.problems.client_files import ClientData, read_clients
from dsgd.problems.constants import ProblemConstants, constants
from dsgd.problems.data import Dataset, load
from dsgd.problems.examples import Examples, minibatch
from dsgd.problems.fairness import (
    ClientMetrics,
    client_metrics,
    hold_out,
    with_client_metrics,
)
from dsgd.problems.finite_sum import finite_sum
from dsgd.problems.language_model import language_model
from dsgd.problems.linear_regression import random_linear_regression
from dsgd.problems.logistic_regression import (
    binary_logistic_regression,
    logistic_regression,
    sparse_logistic_regression,
)
from dsgd.problems.neural_network import neural_network
from dsgd.problems.partition import PARTITIONS, ClassCounts, by_user, class_counts, split
from dsgd.problems.per_sample import clipped, per_sample
from dsgd.problems.quadratic import quadratic, random_quadratic
from dsgd.problems.regularizers import (
    SmoothRegularizer,
    box,
    group_lasso,
    l1,
    nonconvex,
    nonnegative,
    regularized,
)
from dsgd.problems.robust_regression import robust_regression
from dsgd.problems.solutions import solved
from dsgd.problems.sparse import SparseRows, sparse_rows

if TYPE_CHECKING:
    from dsgd.problems.models import CNN, MLP, ResNet18, Transformer

__all__ = [
    "CNN",
    "MLP",
    "PARTITIONS",
    "ByWorker",
    "ClassCounts",
    "ClientData",
    "ClientMetrics",
    "Dataset",
    "Examples",
    "Model",
    "ProblemConstants",
    "ResNet18",
    "SmoothRegularizer",
    "SparseRows",
    "Transformer",
    "binary_logistic_regression",
    "box",
    "by_user",
    "class_counts",
    "client_metrics",
    "clients",
    "clipped",
    "constants",
    "finite_sum",
    "group_lasso",
    "hold_out",
    "l1",
    "language_model",
    "load",
    "logistic_regression",
    "minibatch",
    "neural_network",
    "nonconvex",
    "nonnegative",
    "per_sample",
    "quadratic",
    "random_linear_regression",
    "random_quadratic",
    "read_clients",
    "regularized",
    "robust_regression",
    "solved",
    "sparse_logistic_regression",
    "sparse_rows",
    "split",
    "with_client_metrics",
]

signatures.simplify(__name__)


def __getattr__(name: str) -> Any:
    """Imports the models on first access, since importing flax takes a quarter of a second."""
    if name not in ("CNN", "MLP", "ResNet18", "Transformer"):
        raise spelling.missing(__name__, name, __all__)
    from dsgd.problems import models  # noqa: PLC0415

    return getattr(models, name)
