r"""Bits of a round, up and down, of every worker: closed forms for every registered method, in N
and d.

Models are float32 with d elements. An all-reduce sends each of N parts N - 1 times, twice. Methods
that compress through servers or around a ring have $p = \lceil d/N \rceil$ elements in each
message, and send 2 (N - 1) messages: to the servers and from their own, or in N - 1 hops and N - 1
forwards. Messages: 4-bit codes and two ends, $8\lceil p/2 \rceil + 64$, or up to two elements, 32
p; signs and a scale, $8 \lceil p/8 \rceil + 32$; k of p elements with their indices, 32 k plus k
indices of $\lceil \log_2 p \rceil$ bits, in planes of whole bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
from dsgd.base import Round
from dsgd.communication import communicate
from dsgd.wire import counts
from theory_checks.machinery.rounds import on_one_device
from theory_checks.recursions.compressed import packed

FLOAT, PERIOD = 32, 4
Form = Callable[[int, int], float]  # (N, d) -> bits


def all_reduce(N: int, d: int) -> float:
    """Returns the bits of an all-reduce of one vector, in each direction."""
    return round(2 * (N - 1) / N * d * FLOAT)


def degree(N: int) -> int:
    """Returns the number of neighbours on a ring."""
    return min(2, N - 1)


def _parts(message: Callable[[int], int]) -> Form:
    """Returns the bits of 2 (N - 1) messages of a part."""
    return lambda N, d: 2 * (N - 1) * message(-(-d // N))


def _models(number: float = 1) -> Form:
    """Returns the bits of the given number of models to each neighbour on the ring."""
    return lambda N, d: degree(N) * number * d * FLOAT


def quantized(p: int) -> int:
    """Returns the bits of a message of `random_quantization(4)`."""
    return packed(4, p) + 2 * FLOAT if p > 2 else p * FLOAT


def signs(p: int) -> int:
    """Returns the bits of a message of `sign`."""
    return packed(1, p) + FLOAT


def largest(k: int, p: int) -> int:
    """Returns the bits of k of p elements with their indices."""
    return FLOAT * k + packed((p - 1).bit_length(), k)


def frequencies(k: int, d: int) -> int:
    """Of k coefficients of each chunk, the largest divisor of d that is at most 64, and their
    places.
    """
    chunk = max(c for c in range(1, 65) if d % c == 0)
    sent = d // chunk * k
    return FLOAT * sent + packed((chunk - 1).bit_length(), sent)


# Of every worker, each way, in a round in which it sends.
FORMS: dict[str, Form] = {
    "gd": all_reduce,
    "sgd": lambda N, d: 0,
    "mb-sgd": all_reduce,
    "mb-sgd-model": all_reduce,
    "mb-sgd-server": lambda N, d: d * FLOAT,
    "csgd": _parts(quantized),
    "csgd-ring": _parts(quantized),
    "ec-sgd": _parts(signs),
    "ef21": _parts(lambda p: largest(-(-p // 10), p)),
    "asgd": lambda N, d: d * FLOAT,
    "dsgd": _models(),
    "dsgd-complete": lambda N, d: (N - 1) * d * FLOAT,
    "local-sgd": all_reduce,
    "scaffold": lambda N, d: all_reduce(N, 2 * d),
    "d2": _models(),
    "extra": _models(),
    "exact-diffusion": _models(),
    "gradient-tracking": _models(2),  # model and tracker
    "sgp": lambda N, d: min(1, N - 1) * (d + 1) * FLOAT,  # one peer, which also receives the weight
    "choco-sgd": lambda N, d: degree(N) * signs(d),
    "deepsqueeze": lambda N, d: degree(N) * signs(d),
    "ad-psgd": lambda N, d: min(1, N - 1) * d * FLOAT,
    # vectors are not compressed
    "powersgd": all_reduce,
    "dion": all_reduce,
    "demo": lambda N, d: (N - 1) * frequencies(4, d),
}
LAST_OF_FOUR = {"local-sgd", "scaffold"}  # these methods send nothing in the other rounds
# number of sending workers, if not all; their first round is tested
FEW = {"asgd": 1, "ad-psgd": 2}


def expected(name: str, t: int, N: int, d: int) -> np.ndarray:
    """Returns the sorted bits that workers send, and receive, in round t, `[N]`."""
    silent = name in LAST_OF_FOUR and (t + 1) % PERIOD
    senders = 0 if silent else min(N, FEW.get(name, N))
    return np.sort(np.where(np.arange(N) < senders, FORMS[name](N, d), 0))


@pytest.mark.parametrize(
    ("N", "d"),
    [
        (6, 5),
        pytest.param(2, 5, marks=pytest.mark.long),
        pytest.param(5, 300, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_bits_of_a_round_are_the_closed_forms(name, N, d):
    """In each round of a period. With fewer elements than workers some parts are only padding."""

    def one_round(t):
        method = algorithms.make(name, optax.sgd(0.1), N)
        state = method.init(jnp.ones(d, jnp.float32), N)
        this = Round(t, N, jax.random.key(0))
        query = method.query(state, this)
        asked = N if query.workers is None else query.workers.shape[0]
        gradients = jnp.ones((asked, d), jnp.float32)
        bits = communicate(method, state, gradients, this, jax.random.key(1))[1].statistics(N).bits
        return bits.up, bits.down

    program = jax.jit(on_one_device(one_round))  # the program computes only the bits
    for t in range(1 if name in FEW else PERIOD):
        for sent in program(jnp.int32(t)):
            np.testing.assert_array_equal(
                np.sort(counts.to_int(np.asarray(sent))), expected(name, t, N, d)
            )
