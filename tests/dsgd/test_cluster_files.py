"""Clusters in files: saved clusters are loaded, and invalid files are refused."""

from __future__ import annotations

import json
import math

import pytest

from dsgd import clusters
from dsgd.clusters import Equal

MEASURED = Equal(latency=1.25e-4, bandwidth=3.1e9, compute=2.0e-4, per_sample=7.3e-7)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"it cannot be read \(No such file"),
        ('{"latency": 1, "bandwidth": 1}', "kind = None; expected"),
        ({"bandwidth": 0}, "bandwidth = 0; expected a finite number > 0"),
        ({"latency": -1e-3}, "latency = -0.001; expected a finite number >= 0"),
        ({"down": 1e6}, "unknown down; expected only latency, bandwidth, compute, per_sample"),
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
