"""Pictures show every worker, every edge, and where messages go."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import topologies

# With whether its workers are on a circle, as in graphs that look the same from each of them.
GRAPHS = {
    topologies.ring(1): None,
    topologies.ring(7): True,
    topologies.star(6): False,
    topologies.chain(5): True,
    topologies.torus(3, 4): True,
    topologies.exponential(8): True,
    topologies.from_graph(nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)]), name="directed"): None,
    topologies.from_graph(nx.star_graph(["hub", "x", "y", "z"])): False,
    topologies.from_graph(nx.DiGraph([("root", "a"), ("a", "b")]), topologies.pull): True,
    topologies.one_peer_exponential(8): None,
}


def draw_curve(axes) -> tuple[np.ndarray, list, int]:
    """Returns the positions of workers, the ends of lines, and the number of arrows."""
    kinds = [
        [one for one in axes.collections if isinstance(one, kind)]
        for kind in (PathCollection, LineCollection)
    ]
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    places = np.concatenate([one.get_offsets() for one in kinds[0]])
    return places, [ends for one in kinds[1] for ends in one.get_segments()], len(arrows)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_a_picture_has_every_worker_every_edge_and_a_title(graph):
    figure = topologies.draw(graph)
    (axes,) = figure.axes
    places, lines, arrows = draw_curve(axes)
    assert len(np.unique(places.round(6), axis=0)) == len(places) == graph.n
    if graph.symmetric:
        joined = [
            [int(np.abs(places - end).sum(axis=1).argmin()) for end in ends] for ends in lines
        ]
        assert sorted(joined) == graph.edges.tolist()
    else:
        assert (len(lines), arrows) == (0, len(graph.edges))
    if GRAPHS[graph] is not None:
        assert (np.ptp(np.linalg.norm(places, axis=1)) < 1e-6) == GRAPHS[graph]
    figure.canvas.draw()
    first, second, *rest = axes.get_title().split("\n")
    assert first == graph.name
    assert second.startswith(f"degree {graph.degree}, ")
    assert float(second.rpartition("= ")[2]) == pytest.approx(graph.rho, rel=6e-3, abs=1e-300)
    assert rest == ([] if graph.period == 1 else [f"in {graph.period} rounds"])
    if graph.names:
        assert [text.get_text() for text in axes.texts] == list(graph.names)
        for text, place in zip(axes.texts, axes.transData.transform(places), strict=True):
            assert text.get_window_extent().y0 > place[1] + 5, "above the node"


def test_a_picture_is_drawn_on_the_given_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert topologies.draw(topologies.ring(7), right) is figure
    assert len(draw_curve(right)[0]) == 7
    assert not left.collections
    outer = Figure()
    axes = outer.subfigures(1, 2)[0].subplots()
    assert topologies.draw(topologies.star(6), axes) is outer


def test_nodes_are_pies_of_the_classes_of_their_data():
    labels, ring = [[0, 0, 0, 1], [2], [1, 2, 2]], topologies.from_graph(nx.path_graph(3))
    (axes,) = topologies.draw(ring, data=labels).axes
    plain = topologies.draw(ring)
    (pies,) = [one for one in axes.collections if isinstance(one, PathCollection)]
    assert len(pies.get_paths()) == 5
    places = draw_curve(plain.axes[0])[0]
    np.testing.assert_allclose(pies.get_offsets(), places[[0, 0, 1, 2, 2]])
    # the share of a circle with the diameter 1, by its polygon
    areas = [
        abs(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2
        for x, y in (path.interpolated(1).to_polygons()[0].T for path in pies.get_paths())
    ]
    np.testing.assert_allclose(
        np.array(areas) / (np.pi / 4), [3 / 4, 1 / 4, 1, 1 / 3, 2 / 3], rtol=0.01
    )
    colours = [tuple(colour) for colour in pies.get_facecolor()]
    assert colours[1] == colours[3] != colours[0] != colours[2] == colours[4]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "2"]
    with pytest.raises(ValueError, match="topology has 4 nodes but the data have 3 workers"):
        topologies.draw(topologies.ring(4), data=labels)
