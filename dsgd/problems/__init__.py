"""Problems on synthetic and on real data, each with the constants it knows."""

from dsgd.problems.data import Dataset, load
from dsgd.problems.finite_sum import Examples, minibatch
from dsgd.problems.logistic_regression import logistic_regression
from dsgd.problems.neural_network import CNN, MLP, neural_network
from dsgd.problems.partition import PARTITIONS, split
from dsgd.problems.quadratic import quadratic, random_quadratic
from dsgd.problems.robust_regression import robust_regression

__all__ = [
    "CNN",
    "MLP",
    "PARTITIONS",
    "Dataset",
    "Examples",
    "load",
    "logistic_regression",
    "minibatch",
    "neural_network",
    "quadratic",
    "random_quadratic",
    "robust_regression",
    "split",
]
