"""Weights of graphs that papers compute."""

from __future__ import annotations

import numpy as np
from scipy import optimize

import dsgd
import topologies


def fastest(graph: dsgd.Topology) -> dsgd.Topology:
    """Returns the topology with the weights of its edges for which the spectral norm of W - 11^T/n
    is smallest.
    """
    n, (i, j) = graph.n, np.nonzero(np.triu(graph.W, 1))

    def matrix(weights):
        W = np.zeros((n, n))
        W[i, j] = W[j, i] = weights
        return W + np.diag(1 - W.sum(axis=1))

    def smoothed(weights, sharpness):  # log of a sum of exponentials, and its gradient
        values, vectors = np.linalg.eigh(matrix(weights) - 1 / n)
        norm = np.abs(values).max()
        shares = np.exp(sharpness * (np.abs(values) - norm))
        slope = -((vectors[i] - vectors[j]) ** 2) @ (shares / shares.sum() * np.sign(values))
        return norm + np.log(shares.sum()) / sharpness, slope

    weights = np.full(len(i), 1 / n)
    for sharpness in np.geomspace(30, 10_000, 6):
        weights = optimize.minimize(smoothed, weights, sharpness, "L-BFGS-B", jac=True).x
    return topologies.from_matrix(matrix(weights), graph.name)


def spectral_norm(W: dsgd.Topology) -> float:
    """Returns the spectral norm of W - J."""
    return float(np.linalg.norm(W.W - 1 / W.n, 2))
