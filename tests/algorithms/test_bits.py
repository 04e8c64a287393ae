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

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import algorithms
from dsgd.base import Query, Round
from dsgd.communication import communicate
from dsgd.wire import counts
from theory_checks.machinery.rounds import on_one_device
from theory_checks.recursions.compressed import packed

FLOAT, PERIOD = 32, 4
# (N, d) -> bits, of all workers or `[N]`; a pair: bits up and down
Form = Callable[[int, int], Any]


def all_reduce(N: int, d: int) -> float:
    """Returns the bits of an all-reduce of one vector, in each direction."""
    return round(2 * (N - 1) / N * d * FLOAT)


def degree(N: int) -> int:
    """Returns the number of neighbours on a ring."""
    return min(2, N - 1)


def on_chain(N: int) -> np.ndarray:
    """Returns the numbers of neighbours on a chain, `[N]`."""
    return np.minimum(np.arange(N), 1) + np.minimum(np.arange(N)[::-1], 1)


def exchanges(N: int) -> int:
    """Returns OPAPC's number of exchanges on a ring, from the extreme eigenvalues of I - W, which
    are 2/3 (1 - cos(2 pi k / N)).
    """
    gaps = 1 - np.cos(2 * np.pi * np.arange(1, N) / N)
    return math.floor(math.sqrt(gaps.max() / gaps.min()) + 1e-9)


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


def ranged(p: int) -> int:
    """Returns the bits of a message of `random_quantization(8)`."""
    return packed(8, p) + 2 * FLOAT if p > 2 else p * FLOAT


def five_values(p: int) -> int:
    """Returns the bits of a message of `qsgd(2, "linf")`."""
    return packed(3, p) + FLOAT


def frequencies(k: int, d: int) -> int:
    """Of k coefficients of each chunk, the largest divisor of d that is at most 64, and their
    places.
    """
    chunk = max(c for c in range(1, 65) if d % c == 0)
    sent = d // chunk * k
    return FLOAT * sent + packed((chunk - 1).bit_length(), sent)


def chunked(k: int, chunk: int, d: int) -> int:
    """Returns the bits of k of the elements of each chunk: their indices in the chunk, and codes of
    two bits with a table of four numbers.
    """
    sent = d // chunk * k + min(k, d % chunk)
    return packed((chunk - 1).bit_length(), sent) + packed(2, sent) + 4 * FLOAT


def _with_reply(message: Callable[[int], int]) -> Form:
    """Returns the bits of a message to one server, which replies with d floats."""
    return lambda N, d: (message(d), d * FLOAT)


# Of every worker, each way, or up and down, in a round in which it sends.
FORMS: dict[str, Form] = {
    "gradient_descent": all_reduce,
    "sgd": lambda N, d: 0,
    **dict.fromkeys(
        ("minibatch_sgd", "proximal_gradient", "proximal_sgd", "page", "loopless_svrg"), all_reduce
    ),
    "model_averaging_sgd": all_reduce,
    "parameter_server_sgd": lambda N, d: d * FLOAT,
    "compressed_sgd": _parts(quantized),
    "compressed_sgd_ring": _parts(quantized),
    "error_compensated_sgd": _parts(signs),
    "ef21": _parts(lambda p: largest(-(-p // 10), p)),
    **dict.fromkeys(("diana", "ef_bv"), _with_reply(quantized)),
    **dict.fromkeys(("ef21_sgdm", "econtrol"), _with_reply(lambda d: largest(-(-d // 10), d))),
    "dist_ef_sgd": lambda N, d: signs(d),
    **dict.fromkeys(("marina", "vr_marina"), _with_reply(lambda d: largest(-(-d // 4), d))),
    "three_point": _with_reply(lambda d: largest(-(-d // 10), d) + largest(-(-d // 4), d)),
    "lag": _with_reply(lambda d: d * FLOAT),
    "clag": _with_reply(lambda d: largest(-(-d // 10), d)),
    "asynchronous_sgd": lambda N, d: d * FLOAT,
    **dict.fromkeys(("decentralized_sgd", "dgd", "quasi_global_momentum", "decentlam"), _models()),
    "decentralized_sgd_complete": lambda N, d: (N - 1) * d * FLOAT,
    "local_sgd": all_reduce,
    "scaffold": lambda N, d: all_reduce(N, 2 * d),
    "d2": _models(),
    **dict.fromkeys(("extra", "pg_extra", "nids"), _models()),
    "proximal_tracking": _models(2),  # tracker and model, one after the other
    "exact_diffusion": _models(),
    # model and tracker
    **dict.fromkeys(("gradient_tracking", "atc_tracking"), _models(2)),
    "k_gt": _models(2),  # model and change
    **dict.fromkeys(("local_exact_diffusion", "prox_skip"), _models()),
    **dict.fromkeys(("aug_dgm", "momentum_tracking"), _models(2)),
    **dict.fromkeys(("gt_svrg", "gt_vr", "gt_sarah", "gt_hsgd"), _models(2)),
    "stochastic_gradient_push": lambda N, d: (
        min(1, N - 1) * (d + 1) * FLOAT
    ),  # one peer, which also receives the weight
    "push_diging": lambda N, d: min(1, N - 1) * (2 * d + 1) * FLOAT,  # model, tracker and weight
    # model and tracker, to the workers that are a power of 2 further
    **dict.fromkeys(("push_pull", "ab"), lambda N, d: (N - 1).bit_length() * 2 * d * FLOAT),
    **dict.fromkeys(("dlm", "lt_admm", "lt_admm_vr"), _models()),
    "relay_sgd": lambda N, d: on_chain(N) * (d + 1) * FLOAT,  # model and count
    "opapc": lambda N, d: exchanges(N) * degree(N) * d * FLOAT,
    "choco_sgd": lambda N, d: degree(N) * signs(d),
    "deepsqueeze": lambda N, d: degree(N) * signs(d),
    **dict.fromkeys(("dcd_sgd", "ecd_sgd"), lambda N, d: degree(N) * ranged(d)),
    "lead": lambda N, d: degree(N) * five_values(d),
    "c_gt": lambda N, d: degree(N) * 2 * five_values(d),  # of model and tracker
    **dict.fromkeys(("beer", "motef"), lambda N, d: degree(N) * 2 * largest(-(-d // 10), d)),
    "asynchronous_gossip_sgd": lambda N, d: min(1, N - 1) * d * FLOAT,
    # vectors are not compressed
    "powersgd": all_reduce,
    "dion": all_reduce,
    # sketches of 5 rows, then four times as many elements as are applied
    "sketched_sgd": lambda N, d: all_reduce(N, 5 * 32) + all_reduce(N, min(4 * -(-d // 10), d)),
    "fetch_sgd": lambda N, d: all_reduce(N, 5 * 32),
    **dict.fromkeys(("majority_vote", "distributed_lion"), lambda N, d: packed(1, d)),
    # its largest magnitude to all others, and ternary digits, five in a byte
    "tern_grad": lambda N, d: (
        (N - 1) * FLOAT + 8 * -(-d // 5),
        (N - 1) * FLOAT + packed((2 * N).bit_length(), d),
    ),
    "one_bit_adam": _parts(signs),
    "zero_one_adam": _parts(signs),
    "demo": lambda N, d: (N - 1) * frequencies(4, d),
    **dict.fromkeys(("diloco", "slowmo", "post_local_sgd", "des_loc"), all_reduce),
    **dict.fromkeys(("delayed_diloco", "eager_diloco", "scaffnew"), all_reduce),
    **dict.fromkeys(("easgd", "eamsgd", "fed_avg", "fed_prox", "fed_avgm"), lambda N, d: d * FLOAT),
    **dict.fromkeys(("fed_adagrad", "fed_yogi", "fed_adam"), lambda N, d: d * FLOAT),
    "adacomm": lambda N, d: all_reduce(N, d + 1),  # model and loss
    "mime": lambda N, d: d * FLOAT,
    "mime_lite": lambda N, d: 2 * d * FLOAT,  # model and gradient
    "fed_nova": lambda N, d: (d + 2) * FLOAT,  # change, its scale, and whether there is one
    "fed_dyn": lambda N, d: (d + 1) * FLOAT,  # change, and the share of clients
    **dict.fromkeys(("fed_paq", "fed_comgate"), _with_reply(quantized)),
    "fed_ef": _with_reply(lambda d: largest(-(-d // 10), d)),
    **dict.fromkeys(("dgc", "qsparse_local_sgd"), lambda N, d: (N - 1) * largest(-(-d // 10), d)),
    "streaming_diloco": lambda N, d: (N - 1) * (packed(4, d) + FLOAT),
    "sparse_loco": lambda N, d: (N - 1) * chunked(4, 8, d),
    "muloco": lambda N, d: (N - 1) * (packed(2, d) + 4 * FLOAT),
    "noloco": lambda N, d: min(1, N - 1) * 2 * d * FLOAT,  # to one peer
    "cser": lambda N, d: all_reduce(N, -(-d // 10)),
    "sparta": lambda N, d: all_reduce(N, -(-d // 5)),
}
# of all-reduces of the first rounds: their number, and whether they take the place of the messages
FIRST: dict[str, tuple[int, bool]] = {"one_bit_adam": (3, True), "zero_one_adam": (4, False)}
# numbers of the rounds, modulo the period, that send messages; the others send nothing
ROUNDS: dict[str, tuple[int, set[int]]] = {
    **dict.fromkeys(("local_sgd", "scaffold", "diloco", "slowmo", "fed_avg"), (4, {3})),
    **dict.fromkeys(("fed_prox", "fed_avgm", "fed_adagrad", "fed_yogi", "fed_adam"), (4, {3})),
    **dict.fromkeys(("fed_nova", "fed_dyn", "mime_lite", "streaming_diloco"), (4, {3})),
    **dict.fromkeys(("sparse_loco", "muloco", "delayed_diloco", "eager_diloco"), (4, {3})),
    **dict.fromkeys(("fed_paq", "fed_comgate", "fed_ef", "qsparse_local_sgd"), (4, {3})),
    **dict.fromkeys(("des_loc", "easgd", "eamsgd"), (2, {1})),
    "adacomm": (4, {3}),  # the first period
    **dict.fromkeys(("noloco", "k_gt", "local_exact_diffusion", "lt_admm", "lt_admm_vr"), (4, {3})),
    "mime": (4, {0, 3}),
    "nids": (PERIOD, {1, 2, 3}),  # nothing in the run's first round
}
# further exchanges, in some rounds only
ALSO: dict[str, tuple[int, set[int], Form]] = {
    "cser": (4, {3}, lambda N, d: all_reduce(N, math.ceil(0.4 * d))),  # the resets
}
# number of sending workers of N, if not all; the first round that sends is tested
FEW: dict[str, Callable[[int], int]] = {
    "asynchronous_sgd": lambda N: 1,
    "asynchronous_gossip_sgd": lambda N: 2,
    "noloco": lambda N: N // 2 * 2,
    # later only those whose gradients have changed
    **dict.fromkeys(("lag", "clag"), lambda N: N),
}
BY_CHANCE = {"scaffnew", "prox_skip"}  # one draw of each round decides whether all send
# One draw of each round decides whether whole gradients are sent, as in the first round.
WHOLE_BY_CHANCE = {"marina", "vr_marina"}


def expected(name: str, t: int, N: int, d: int) -> list[np.ndarray]:
    """Returns the sorted bits that workers send, and those that they receive, in round t, each
    `[N]`.
    """
    number = min(N, FEW[name](N) if name in FEW else N)
    usual = (*ROUNDS.get(name, (1, {0})), FORMS[name])
    first, replaces = FIRST.get(name, (0, False))
    exchanges = [] if t < first and replaces else [usual]
    exchanges += [ALSO[name]] if name in ALSO else []
    exchanges += [(1, {0}, all_reduce)] if t < first else []
    total = np.zeros((2, N))
    for period, rounds, form in exchanges:
        bits = form(N, d)
        senders = number if t % period in rounds else 0
        for way, each in enumerate(bits if isinstance(bits, tuple) else (bits, bits)):
            total[way] += np.where(np.arange(N) < senders, each, 0)
    return list(np.sort(total))


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

        def ones(query):
            asked = N if query.workers is None else query.workers.shape[0]
            gradients = jnp.ones((asked, d), jnp.float32)
            return (jnp.ones(asked), gradients) if query.loss else gradients

        query = method.query(state, this)
        gradients = jax.tree.map(ones, query, is_leaf=lambda node: isinstance(node, Query))
        bits = communicate(method, state, gradients, this, jax.random.key(1))[1].statistics(N).bits
        return bits.up, bits.down

    program = jax.jit(on_one_device(one_round))  # the program computes only the bits
    for t in range(1 if name in FEW and name not in ROUNDS else PERIOD):
        for sent, form in zip(program(jnp.int32(t)), expected(name, t, N, d), strict=True):
            bits = np.sort(counts.to_int(np.asarray(sent)))
            if name in BY_CHANCE and not bits.any():
                continue
            if name in WHOLE_BY_CHANCE and (bits == d * FLOAT).all():
                continue
            np.testing.assert_array_equal(bits, form)
