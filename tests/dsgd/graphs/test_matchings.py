"""Messages in groups in which no worker occurs twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsgd.graphs.matchings import matchings


@st.composite
def bipartite(draw) -> tuple[int, list[tuple[int, int]]]:
    size = draw(st.integers(1, 9))
    pairs = [(i, j) for i in range(size) for j in range(size)]
    return size, draw(st.lists(st.sampled_from(pairs), max_size=40))


@given(bipartite())
def test_matchings_have_every_pair_once_in_the_fewest_groups(graph):
    """The number of groups is the largest number of pairs of a worker; pairs may be repeated."""
    size, pairs = graph
    groups = matchings(pairs, size)
    assert sorted(pair for group in groups for pair in group) == sorted(pairs)
    for group in groups:
        firsts, seconds = zip(*group, strict=True)
        assert len(set(firsts)) == len(set(seconds)) == len(group)
    ends = [[pair[end] for pair in pairs].count(i) for end in (0, 1) for i in range(size)]
    assert len(groups) == max(ends)
