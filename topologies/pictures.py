"""Pictures of graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsgd import checks
from dsgd.graphs.topology import Topology

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@checks.arguments
def draw(topology: Topology, axes: Axes | None = None) -> Figure:
    """Draws a topology, with its name, degree and rho as the title. Directed edges are arrows; for
    a schedule, the edges of all rounds are drawn. Workers that have names are labelled with them.

    The nodes of a regular graph are placed on a circle, those of other graphs by a force-directed
    layout (Kamada and Kawai).

    Args:
        topology: the topology to draw.
        axes: matplotlib axes to draw into; None: a new figure.

    Returns:
        The figure.
    """
    import networkx as nx  # noqa: PLC0415 (takes a second to import)
    from matplotlib.axes import Axes  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    if not isinstance(axes, Axes | None):
        raise ValueError(f"draw: axes = {checks.show(axes)}; expected matplotlib axes, or None")
    if axes is None:
        axes = Figure(figsize=(3, 3.3), layout="constrained").subplots()
    graph = nx.Graph() if topology.symmetric else nx.DiGraph()
    graph.add_nodes_from(range(topology.n))
    graph.add_edges_from(topology.edges.tolist())
    size, places = min(120.0, 2500.0 / topology.n), _places(graph)
    nx.draw_networkx_nodes(
        graph, places, ax=axes, node_size=size, node_color="#0072B2", linewidths=0
    )
    arrows = (
        {}
        if topology.symmetric
        else {"arrowsize": 6, "node_size": size, "connectionstyle": "arc3,rad=0.08"}
    )
    nx.draw_networkx_edges(
        graph, places, ax=axes, width=60 / max(60, len(topology.edges)), edge_color="0.35", **arrows
    )
    if topology.names is not None:
        radius = size**0.5 / 2  # points
        for worker, name in enumerate(topology.names):
            axes.annotate(
                str(name),
                tuple(places[worker]),
                (0, radius + 1),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=7,
            )
    rounds = "" if topology.period == 1 else f"\nin {topology.period} rounds"
    axes.set_title(
        f"{topology.name}\ndegree {topology.degree}, " + rf"$\rho$ = {topology.rho:.3g}{rounds}",
        fontsize=9,
    )
    axes.set_axis_off()
    axes.set_aspect("equal")
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure


def _places(graph: nx.Graph) -> dict[int, np.ndarray]:
    import networkx as nx  # noqa: PLC0415

    regular = len({degree for _, degree in graph.degree}) == 1
    return nx.circular_layout(graph) if regular else nx.kamada_kawai_layout(graph.to_undirected())
