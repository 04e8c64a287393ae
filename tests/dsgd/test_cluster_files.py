"""Clusters in files: saved clusters are loaded, and invalid files are refused."""

from __future__ import annotations

import json
import math

import pytest

from dsgd import clusters
from dsgd.clusters import Collectives, Hardware

MEASURED = Hardware(latency=1.25e-4, bandwidth=3.1e9, compute=2.0e-4, per_sample=7.3e-7)


def test_a_saved_cluster_is_loaded(tmp_path):
    path = tmp_path / "cluster.json"
    clusters.save(path, MEASURED, {"what": "2 processes", "interval": (1.0, math.inf)})
    assert clusters.load(path) == MEASURED
    assert json.loads(path.read_text())["about"] == {"what": "2 processes", "interval": [1.0, None]}
    made = clusters.load(str(path)).cluster
    like = clusters.Cluster(
        clusters.constant(2.0e-4),
        up=clusters.constant(3.1e9),
        latency=1.25e-4,
        per_sample=clusters.constant(7.3e-7),
    )
    assert made.name == like.name
    assert made.workers is None


def test_buckets_and_collectives_of_a_file(tmp_path):
    path = tmp_path / "cluster.json"
    numbers = '"latency": 2e-3, "bandwidth": 3e6, "bucket": 0'
    path.write_text(f'{{{numbers}, "collectives": {{"permute": [2, 1.5]}}}}')
    found = clusters.load(path)
    assert found == Hardware(2e-3, 3e6, bucket=0, collectives=Collectives(permute=(2.0, 1.5)))
    assert found.cluster.bucket == 0
    assert found.cluster.collectives == found.collectives
    clusters.save(path, found)
    assert clusters.load(path) == found
    for wrong, words in {
        '{"permutes": [2, 1.5]}': "expected factors of latency and transfer time for some of all_",
        '{"permute": [2]}': "permute = .*; expected two numbers",
        '{"permute": [2, true]}': "permute = .*; expected two numbers",
        '{"permute": [2, 0]}': "permute = 0.0; expected a finite number > 0",
        "2": " = 2; expected factors",
    }.items():
        path.write_text(f'{{{numbers}, "collectives": {wrong}}}')
        with pytest.raises(ValueError, match=rf"clusters\.load: .*: collectives.*{words}"):
            clusters.load(path)


def test_files_of_equal_workers_that_older_versions_wrote_are_loaded(tmp_path):
    path = tmp_path / "cluster.json"
    numbers = {"latency": 1.25e-4, "bandwidth": 3.1e9, "compute": 2.0e-4, "per_sample": 7.3e-7}
    old = {"kind": "dsgd cluster of equal workers", **numbers, "about": {"what": "2 processes"}}
    path.write_text(json.dumps(old))
    assert clusters.load(path) == MEASURED


def test_unequal_workers_of_a_file(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(
        """
        {
            "latency": 5e-5, "bandwidth": 2.5e10, "compute": 0.02, "per_sample": 0.003,
            "price": 2.5, "memory": 8e10, "bucket": 2e8,
            "groups": [
                {"workers": 3},
                {"workers": 2, "compute": 0.05, "bandwidth": 1e10, "price": 1.5, "memory": 2.4e10}
            ]
        }
        """
    )
    found = clusters.load(path)
    assert found.workers == 5
    assert found.hourly_price() == 3 * 2.5 + 2 * 1.5
    assert [(n, kind.memory) for n, kind in found.kinds(5)] == [(3, 8e10), (2, 2.4e10)]
    like = clusters.Cluster(
        clusters.constant([0.02] * 3 + [0.05] * 2),
        up=clusters.constant([2.5e10] * 3 + [1e10] * 2),
        latency=5e-5,
        per_sample=clusters.constant(0.003),
        bucket=2e8,
    )
    assert found.cluster.name == like.name
    clusters.save(path, found)
    assert clusters.load(path) == found
    with pytest.raises(ValueError, match="kinds: workers = 4, but the groups have 5"):
        found.kinds(4)


def test_machines_of_several_workers(tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(
        """
        {
            "latency": 5e-5, "bandwidth": 2.5e10, "price": 20, "bucket": 0,
            "nodes": {"size": 4, "bandwidth": 2e12, "latency": 3e-6},
            "groups": [{"workers": 8}, {"workers": 4, "price": 30.5}]
        }
        """
    )
    found = clusters.load(path)
    nodes = clusters.Nodes(4, 2e12, 3e-6)
    assert found.nodes == nodes
    assert found.cluster.nodes == nodes
    assert found.cluster.bucket == 0
    assert found.hourly_price(12) == 2 * 20 + 30.5
    assert Hardware(1e-4, 1e9, price=20, nodes=nodes).hourly_price(16) == 4 * 20
    clusters.save(path, found)
    assert clusters.load(path) == found


def test_equal_workers_have_prices_of_their_number():
    found = Hardware(1e-4, 1e9, price=2.5)
    assert found.hourly_price(7) == 17.5
    assert Hardware(1e-4, 1e9).hourly_price(7) is None
    unknown = Hardware(1e-4, 1e9, groups=(clusters.Group(2, price=3.0), clusters.Group(3)))
    assert unknown.hourly_price() is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"it cannot be read \(No such file"),
        ({"kind": "a run"}, "kind = 'a run'; expected 'dsgd cluster'"),
        ({"bandwidth": 0}, "bandwidth = 0; expected a finite number > 0"),
        ({"latency": -1e-3}, "latency = -0.001; expected a finite number >= 0"),
        ({"down": 1e6}, "unknown down; expected only latency, bandwidth, compute, per_sample"),
        ({"computes": 1.0}, "unknown computes; expected only .*; did you mean compute?"),
        ({"price": "2 dollars"}, "price = '2 dollars'; expected a number"),
        ({"memory": 0}, "memory = 0; expected a finite number > 0"),
        ({"latency": 1e39}, "latency: given 1e[+]39; expected .* that float32 can represent"),
        ({"nodes": 8}, "nodes = 8; expected names and values in braces"),
        ({"nodes": {"size": 8}}, "nodes: missing bandwidth"),
        ({"nodes": {"size": 2.5, "bandwidth": 1e12}}, "nodes: size = 2.5; expected an integer"),
        ({"nodes": {"size": 8, "bandwidth": 0}}, "nodes: bandwidth = 0; expected a finite number"),
        (
            {"nodes": {"size": 3, "bandwidth": 1e12}, "groups": [{"workers": 6}, {"workers": 4}]},
            r"groups\[1\]: workers = 4 in nodes of 3; expected a multiple of 3",
        ),
        ({"bucket": -3}, "bucket = -3; expected a finite number >= 0"),
        ({"groups": {"workers": 2}}, r"groups = {'workers': 2}; expected a list"),
        ({"groups": [3]}, r"groups\[0\] = 3; expected names and values in braces"),
        ({"groups": [{"workers": 3}, {"compute": 0.5}]}, r"groups\[1\]: missing workers"),
        ({"groups": [{"workers": 2.5}]}, r"groups\[0\]: workers = 2.5; expected an integer"),
        ({"groups": [{"workers": 3, "compute": -2}]}, r"groups\[0\]: compute = -2; expected a fi"),
        ({"groups": [{"workers": 3, "latency": 1}]}, r"groups\[0\]: unknown latency; expected"),
        ("missing", "missing latency; expected a number"),
    ],
)
def test_invalid_cluster_files_are_refused(text, message, tmp_path):
    path = tmp_path / "cluster.json"
    clusters.save(path, MEASURED)
    found = json.loads(path.read_text())
    if text is None:
        path.unlink()
    elif text == "missing":
        del found["latency"]
        path.write_text(json.dumps(found))
    else:
        path.write_text(text if isinstance(text, str) else json.dumps({**found, **text}))
    with pytest.raises(ValueError, match=f"clusters.load: {path}: {message}"):
        clusters.load(path)
