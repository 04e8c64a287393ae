"""Pictures show every worker, every edge, and where messages go."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import topologies

GRAPHS = {
    graph.name: graph
    for graph in (
        topologies.ring(1),
        topologies.ring(7),
        topologies.star(6),
        topologies.chain(5),
        topologies.torus(3, 4),
        topologies.exponential(8),
        topologies.from_graph(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]), name="directed"),
        topologies.one_peer_exponential(8),
    )
}


def drawn(axes) -> tuple[np.ndarray, int, int]:
    """Where workers stand, and how many lines and arrows there are."""
    points = [
        collection for collection in axes.collections if isinstance(collection, PathCollection)
    ]
    lines = [
        collection for collection in axes.collections if isinstance(collection, LineCollection)
    ]
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    return (
        np.concatenate([one.get_offsets() for one in points]),
        sum(len(one.get_segments()) for one in lines),
        len(arrows),
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_a_picture_has_every_worker_every_edge_and_a_title(name):
    graph = GRAPHS[name]
    figure = topologies.draw(graph)
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    places, lines, arrows = drawn(axes)
    assert len(places) == graph.n
    assert len(np.unique(places.round(6), axis=0)) == graph.n
    assert (lines, arrows) == ((len(graph.edges), 0) if graph.symmetric else (0, len(graph.edges)))
    figure.canvas.draw()
    first, second, *rest = axes.get_title().split("\n")
    assert first == graph.name
    assert second.startswith(f"degree {graph.degree}, ")
    assert float(second.rpartition("= ")[2]) == pytest.approx(graph.rho, rel=6e-3, abs=1e-300)
    assert rest == ([] if graph.period == 1 else [f"in {graph.period} rounds"])


def test_lines_join_the_workers_of_the_edges():
    graph = topologies.star(5)
    (axes,) = topologies.draw(graph).axes
    places, _, _ = drawn(axes)
    (lines,) = (
        collection for collection in axes.collections if isinstance(collection, LineCollection)
    )
    joined = {
        tuple(int(np.abs(places - end).sum(axis=1).argmin()) for end in segment)
        for segment in lines.get_segments()
    }
    assert joined == set(map(tuple, graph.edges.tolist()))


def test_workers_of_a_symmetric_graph_stand_on_a_circle_and_others_do_not():
    for name, circle in {
        "ring(7)": True,
        "torus(3, 4)": True,
        "exponential(8)": True,
        "star(6)": False,
        "chain(5)": False,
    }.items():
        (axes,) = topologies.draw(GRAPHS[name]).axes
        radius = np.linalg.norm(drawn(axes)[0], axis=1)
        assert (np.ptp(radius) < 1e-6) == circle


def test_a_picture_goes_where_it_is_told():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert topologies.draw(GRAPHS["ring(7)"], right) is figure
    assert len(drawn(right)[0]) == 7
    assert not left.collections
    outer = Figure()
    assert topologies.draw(GRAPHS["star(6)"], outer.subfigures(1, 2)[0].subplots()) is outer
