"""EDEN: Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "EDEN:
communication-efficient and robust distributed mean estimation for federated learning", 2022.

Published: the centroids in the authors' code (quantization_constants.py). For large d the
normalised error is $D / (1 - D)$, or D with the scale of least error; D is the distortion of the
optimal quantizer of normal numbers (Max, 1960). The errors of n clients average out: 1/n. That
EDEN improves on stochastic quantization in the rotated basis is in the abstract.
"""

from __future__ import annotations

import jax
import numpy as np

from dsgd import compressors
from dsgd.compressors.rotations import centroids
from experiments.published.drive import errors
from experiments.published.outcomes import Claim, Number, Outcome, Panel

CLIENTS = 20
DISTORTIONS = {1: 0.3634, 2: 0.1175, 3: 0.03454, 4: 0.009497}
CENTROIDS = {  # the positive ones
    1: [0.7978845608],
    2: [0.4527800399, 1.5104176087],
    3: [0.2450941631, 0.756005249, 1.3439092614, 2.1519456699],
    4: [0.128395, 0.3880482, 0.656759, 0.9423403, 1.256231, 1.6180461, 2.0690167, 2.7325888],
}


def eden(quick: bool) -> Outcome:
    """Normalised error against bits, of lognormal vectors with 4,096 elements."""
    d, trials = (1_024, 200) if quick else (4_096, 2_000)
    kinds = {
        "EDEN, unbiased": lambda bits: compressors.eden(bits, "unbiased"),
        "EDEN, least error": compressors.eden,
        "Hadamard + rounding": lambda b: compressors.rotated(compressors.random_quantization(b)),
    }
    bits = np.array(list(DISTORTIONS))
    found = {
        name: np.stack([errors(make(int(b)), jax.random.lognormal, d, trials) for b in bits], 1)
        for name, make in kinds.items()
    }
    rows = []
    for i, (b, distortion) in enumerate(DISTORTIONS.items()):
        apart = np.max(np.abs(centroids(b)[2 ** (b - 1) :] - CENTROIDS[b]))
        rows.append(Claim(f"{b} bits, centroids", "equal", apart, "authors' code", at_most=1e-6))
        for name, value in zip(kinds, (distortion / (1 - distortion), distortion), strict=False):
            ours = found[name][:, i]
            rows.append(Number(f"{b} bits, {name}", value, ours, "theorem", tolerance=0.02))
    better = found["EDEN, unbiased"].mean(0) / found["Hadamard + rounding"].mean(0)
    rows.append(Claim("EDEN / rounding, 1-4 bits", "smaller", better, "paper's text", None, 1))
    unbiased, sample = compressors.eden(2, "unbiased"), jax.random.lognormal
    together = errors(unbiased, sample, d, trials // 10, CLIENTS)
    value = DISTORTIONS[2] / (1 - DISTORTIONS[2]) / CLIENTS
    what = f"2 bits, {CLIENTS} clients"
    rows.append(Number(what, value, together, "theorem", tolerance=0.02))
    lines = {name: (bits, y) for name, y in found.items()}
    distortions = np.array(list(DISTORTIONS.values()))
    published = {
        name: (bits, y)
        for name, y in zip(kinds, (distortions / (1 - distortions), distortions), strict=False)
    }
    panel = Panel("bits per element", r"$|\hat x - x|^2 / |x|^2$", lines, published)
    return Outcome(rows, [panel], "For d = 4,096 the error is up to 1 % below its limit.")
