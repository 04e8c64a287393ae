"""Graphs with their mixing matrices: `ring`, `complete`, `from_matrix`."""

from topologies.graphs import complete, from_matrix, ring

__all__ = ["complete", "from_matrix", "ring"]
