r"""DRIVE: Vargaftik, Ben-Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher, "DRIVE: one-bit
distributed mean estimation", 2021.

Published: with uniformly random rotations the error of least-error DRIVE is $(1 - 2/\pi)(1 - 1/d)$
times $|x|^2$, which normal vectors show with any rotation, and the other scale has at most 2.92 for
all d. Errors of means over 10 clients that send the same lognormal vector, in table 1: from memory;
the set-up is that of the authors' code (run_distributed_speed_error.py).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import dsgd
from dsgd import compressors
from experiments.published.outcomes import Claim, Number, Outcome, Panel

SEEDS = 10
DRIVE = {"least error": compressors.drive(), "unbiased": compressors.drive("unbiased")}
HADAMARD = "Hadamard, 1-bit rounding"
TABLE = {(HADAMARD, 128): 0.5308, (HADAMARD, 8_192): 1.3338, ("unbiased", 8_192): 0.0571}


def drive(quick: bool) -> Outcome:
    """Normalised error against the dimension."""
    sizes = [4, 16, 64, 256, 1_024, 4_096][: 4 if quick else None]
    trials = 500 if quick else 2_000
    kinds = {"normal": jax.random.normal, "lognormal": jax.random.lognormal}
    lines, rows = {}, []
    for scale, compressor in DRIVE.items():
        for kind, sample in kinds.items():
            found = [errors(compressor, sample, d, trials) for d in sizes]
            lines[f"{scale}, {kind}"] = (np.array(sizes), np.stack(found, axis=1))
    for d, ours in zip(sizes, lines["least error, normal"][1].T, strict=True):
        rows.append(
            Number(f"least error, d = {d:,}", (1 - 2 / np.pi) * (1 - 1 / d), ours, "theorem")
        )
    largest = max(y.max() for label, (_, y) in lines.items() if "unbiased" in label)
    rows.append(
        Claim("unbiased, largest error", "bounded for all d", largest, "theorem", None, 2.92)
    )
    both = {**DRIVE, HADAMARD: compressors.rotated(compressors.random_quantization(1))}
    for (name, d), value in TABLE.items():
        if d == 128 or not quick:
            ours = errors(both[name], jax.random.lognormal, d, trials // 10, clients=10)
            what = f"10 clients, {name}, d = {d:,}"
            rows.append(Number(what, value, ours, "from memory", tolerance=0.005))
    note = (
        "With one Hadamard transform, small lognormal vectors have smaller errors than normal ones."
    )
    panel = Panel("dimension d", r"$|\hat x - x|^2 / |x|^2$", lines, log="x")
    return Outcome(rows, [panel], note)


def errors(
    compressor: dsgd.Compressor, sample: Callable, d: int, trials: int, clients: int = 1
) -> np.ndarray:
    """Returns the mean normalised error over trials, for each seed, of the mean over clients."""

    def one(key):
        x = sample(key, shape=(d,))
        keys = jax.random.split(jax.random.fold_in(key, 1), clients)
        decoded = jax.vmap(lambda key: compressor.compress(key, x).decoded)(keys).mean(0)
        return jnp.sum((decoded - x) ** 2) / jnp.sum(x * x)

    keys = jax.random.split(jax.random.key(0), trials)
    found = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=50))(keys)
    return np.asarray(found).reshape(SEEDS, -1).mean(1)
