"""`compressors.check` finds mistakes in compressors, and none in correct ones."""

from __future__ import annotations

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import optax
import pytest

import algorithms
import dsgd
from dsgd import compressors, problems

D = 40
Q4 = compressors.random_quantization(4)
COUNT = itertools.count()
OURS = {
    c.name: c
    for c in (
        Q4,
        compressors.top_k(0.1),
        compressors.random_sparsification(0.1),
        compressors.natural,
    )
}


@cache
def findings_of(name: str):
    return compressors.check(OURS[name], D)


def message_alone(compressor: dsgd.Compressor):
    """Returns a compressor whose `compress` does not return the decoded message."""
    return lambda key, x: compressors.encode(compressor, key, x).message


@pytest.mark.parametrize("name", OURS)
def test_the_packages_compressors_pass_the_check(name):
    findings = findings_of(name)
    findings.require()
    assert {finding.what for finding in findings.findings} >= {
        "wire",
        "again",
        "decoded",
        "finite",
        "unbiased",
        "omega",
        "delta",
    }
    assert max(map(len, str(findings).splitlines())) <= 80


def test_extreme_points_are_among_the_vectors():
    """Rounding to powers of two has its largest error at 4/3, top-k on equal elements: the stated
    constants are attained.
    """
    found = {finding.what: finding.found for finding in findings_of("top_k(0.1)").findings}
    assert found["delta"] == "0.1 stated; E|Q(x) - x|^2 is 0.9 |x|^2 (equal), at most 0.9 allowed"
    found = {finding.what: finding.found for finding in findings_of("natural").findings}
    assert "(four thirds), at most 0.125 allowed" in found["omega"]


WRONG = {
    "omega of fewer bits": (compressors.random_quantization(1)._replace(omega=Q4.omega), {"omega"}),
    "delta of more": (compressors.top_k(0.1)._replace(delta=lambda d: 0.11), {"delta"}),
    "a little biased": (
        Q4._replace(
            compress=message_alone(Q4),
            decompress=lambda message, d: 1.01 * Q4.decompress(message, d),
        ),
        {"unbiased"},
    ),
    "receivers decode something else, fewer bits counted": (
        Q4._replace(
            decompress=lambda message, d: 1.00001 * Q4.decompress(message, d),
            bits=lambda message: 4 * D,
        ),
        {"decoded", "wire"},
    ),
    "squares of large numbers": (
        Q4._replace(
            compress=message_alone(Q4),
            decompress=lambda message, d: jnp.where(
                jnp.abs(draw := Q4.decompress(message, d)) > 1e20, draw**2, draw
            ),
        ),
        {"finite"},
    ),
    "draws of its own, more bits than there is room for": (
        Q4._replace(
            compress=lambda key, x: Q4.compress(jax.random.fold_in(key, next(COUNT)), x),
            bits=lambda message: jnp.uint32(10**6),
        ),
        {"again", "bits"},
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_found_by_the_check(mistake):
    compressor, wrong = WRONG[mistake]
    findings = compressors.check(compressor, D)
    assert {finding.what for finding in findings.findings if finding.holds is False} == wrong
    assert not findings.holds


ALONE = Q4._replace(compress=message_alone(Q4))
BROKEN = {
    "no message": (
        Q4._replace(compress=lambda key, x: dsgd.Encoded((), x)),
        "compress returned a tuple; expected a message",
    ),
    "another shape decoded": (
        Q4._replace(compress=lambda key, x: dsgd.Encoded(x, jnp.zeros(x.shape[0] + 1))),
        "compress returned float32[{}]; expected a",
    ),
    "another shape": (
        ALONE._replace(decompress=lambda message, d: jnp.zeros(d + 1)),
        "decompress returned float32[{}]; expected a",
    ),
    "another type": (
        ALONE._replace(decompress=lambda message, d: jnp.zeros(d, jnp.int32)),
        "decompress returned int32[{}]; expected a",
    ),
    "float bits": (
        Q4._replace(bits=lambda message: 4.0),
        "bits returned 4.0; expected an int, or a uint32 scalar",
    ),
    "bits of each": (
        Q4._replace(bits=lambda message: jnp.zeros(3, jnp.uint32)),
        "bits returned uint32[3]; expected an int",
    ),
}


@pytest.mark.parametrize("part", BROKEN)
def test_invalid_results_of_members_are_refused_by_name_in_checks_and_in_runs(part, key, mesh):
    compressor, message = BROKEN[part]
    with pytest.raises(ValueError, match="of 40 elements violates the contract") as caught:
        compressors.check(compressor, D).require()
    given = D + part.startswith("another shape")
    assert f"random_quantization(4): {message.format(given)}" in str(caught.value)
    problem, method = (
        problems.random_quadratic(2, 8, seed=0),
        algorithms.compressed_sgd(optax.sgd(0.1), compressor),
    )
    with pytest.raises(ValueError) as caught:
        dsgd.run(method, problem, steps=1, key=key, mesh=mesh)
    given = 4 + part.startswith("another shape")  # a server's part
    assert f"random_quantization(4): {message.format(given)}" in str(caught.value)
