"""Pictures of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd import checks
from dsgd.base import Problem
from dsgd.graphs.topology import Topology

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@checks.arguments
def draw(
    topology: Topology, axes: Axes | None = None, *, data: Problem | Sequence[Any] | None = None
) -> Figure:
    """Draws a topology, with its name, degree and rho as the title. Directed edges are arrows; for
    a schedule, the edges of all rounds are drawn. Workers that have names are labelled with them.

    The nodes of regular graphs and of chains are placed on a circle, those of other graphs by a
    force-directed layout (Kamada and Kawai).

    Args:
        topology: the topology to draw.
        axes: matplotlib axes to draw into; None: a new figure.
        data: as in `dsgd.problems.class_counts`, for the same number of workers: each node is a pie
            of the classes of its samples; None: nodes are dots.

    Returns:
        The figure.

    Raises:
        ValueError: if the data have another number of workers, and as for
            `dsgd.problems.class_counts`.
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
    size, places = min(120.0, 2500.0 / topology.n) * (1 if data is None else 2), _places(graph)
    if data is None:
        nx.draw_networkx_nodes(
            graph, places, ax=axes, node_size=size, node_color="#0072B2", linewidths=0
        )
    else:
        _draw_pies(axes, np.array([places[worker] for worker in range(topology.n)]), size, data)
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

    degrees = {degree for _, degree in graph.degree}
    if len(degrees) == 1 or (degrees == {1, 2} and nx.is_connected(graph.to_undirected())):
        return nx.circular_layout(graph)
    return nx.kamada_kawai_layout(graph.to_undirected())


def _draw_pies(axes: Axes, places: np.ndarray, size: float, data: Any) -> None:
    """Draws a pie of the classes of each worker's samples, with a legend of the classes.

    Args:
        axes: the axes.
        places: positions of the workers, `[N, 2]`.
        size: squared diameter of the pies, points.
        data: as in `draw`.
    """
    from matplotlib.collections import PathCollection  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415
    from matplotlib.path import Path  # noqa: PLC0415
    from matplotlib.transforms import IdentityTransform  # noqa: PLC0415

    from dsgd import plots  # noqa: PLC0415 (imports matplotlib)
    from dsgd.problems.partition import count_classes  # noqa: PLC0415

    counted = count_classes("draw", data)
    if len(counted.counts) != len(places):
        raise ValueError(
            f"draw: the topology has {len(places)} nodes but the data have {len(counted.counts)} "
            "workers; expected as many"
        )
    colours = plots.class_colours(len(counted.classes))
    ends = 360 * np.cumsum(counted.shares, axis=1)
    workers, classes = np.nonzero(counted.counts)
    pies = PathCollection(
        [
            Path(np.asarray(wedge.vertices) / 2, wedge.codes)
            for wedge in (
                Path.wedge(90 - end, 90 - end + 360 * share)
                for end, share in zip(
                    ends[workers, classes], counted.shares[workers, classes], strict=True
                )
            )
        ],
        [size],
        facecolors=[colours[label] for label in classes],
        offsets=places[workers],
        offset_transform=axes.transData,
        transform=IdentityTransform(),
        zorder=2,
    )
    axes.add_collection(pies)
    shown = range(0, len(colours), -(-len(colours) // 12))
    axes.legend(
        handles=[Patch(color=colours[label], label=str(counted.classes[label])) for label in shown],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=6,
        frameon=False,
        fontsize=7,
        handlelength=0.8,
        columnspacing=0.8,
    )
