"""What the facts about compressors, batches, gossip and costs would catch: each mistake in the place of the project's own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from budgets import briefly

import topologies
from dsgd import compressors, network, workers
from dsgd.base import Compressor, Pattern
from dsgd.compressors import quantization, sparsification
from dsgd.compressors.combinators import identity
from dsgd.graphs import spectra
from dsgd.problems.examples import Examples, Minibatch, pad
from tests.theory_checks.mistakes import decoding, of_one_key
from theory_checks.machinery import registry
from theory_checks.machinery.statement import Outcome
from theory_checks.recursions import graphs
from theory_checks.statements import batches, compression, costs, deterministic_compression, mixing

Extreme = Callable[[], list[Outcome]]
ROWS = {statement.name: statement for statement in registry.STATEMENTS}
BUILT = {built.compressor.name: built for built in compression.BUILT}
WORST = {of.compressor.name: of for of in compression.WORST}
CERTAIN = {of[0].name: of for of in deterministic_compression.CERTAIN}


def caught(row: str, extremes: Sequence[Extreme]) -> bool:
    """Whether the statement fails, of which these instances are of the mistake and the drawn ones are not."""
    found = registry.hold(ROWS[row]._replace(extremes=extremes), trials=3)
    assert not any("raised" in outcome.case for outcome in found.violations), found.violations
    return not found.holds and found.how == "built"


def test_bounds_are_reached():
    """By what was built for them, so that a constant that is a few percent off shows."""
    bounds = ("E|Q(x) - x|^2 <= omega |x|^2", "E|C(x) - x|^2 <= (1-delta)|x|^2", "gossip contracts by rho", "gap of the ring")
    for name in bounds:
        ratios = [outcome.ratio for extreme in ROWS[name].extremes for outcome in extreme() if not outcome.equality]
        assert max(ratios) > 0.999, name
        if "gossip" not in name:
            assert min(ratios) > 0.98, name


# --- Compressors.


def scaled(compressor: Compressor, by: float) -> Compressor:
    return decoding(compressor, lambda decoded: by * decoded)


def in_float32(compressor: Compressor) -> Compressor:
    return compressor._replace(compress=lambda key, x: compressor.compress(key, x.astype(jnp.float32)))


def one_percent_more(key: jax.Array, place: jax.Array) -> jax.Array:
    floor = jnp.floor(place)
    return floor + (jax.random.uniform(key, place.shape) < 1.01 * (place - floor))


def patched(where: object, name: str, mistake: Callable, make: Callable[[], Extreme]) -> Extreme:
    """An instance that is made, and traced, while the mistake is in the source."""

    def extreme() -> list[Outcome]:
        with mock.patch.object(where, name, mistake):
            return make()()

    return extreme


def unlike(built: compression.Built, compressor: Compressor) -> list[Extreme]:
    return [partial(compression.halfway, compressor, built.halfway), partial(compression.exact, compressor, built.exact)]


BIASED = {f"{name}, 1 % too large": unlike(built, scaled(built.compressor, 1.01)) for name, built in BUILT.items()}
BIASED |= {
    f"{name}, probabilities 1 % too large": [
        patched(quantization, "_round_randomly", one_percent_more, lambda make=make, name=name: unlike(BUILT[name], make())[0])
    ]
    for name, make in {
        "random_quantization(1)": lambda: compressors.random_quantization(1),
        "random_quantization(3)": lambda: compressors.random_quantization(3),
        "qsgd(2)": lambda: compressors.qsgd(2),
        "ternary": quantization._ternary,
    }.items()
}
BIASED |= {
    "natural, probabilities 1 % too large": [
        patched(
            quantization.draws,
            "words",
            lambda key, d: (0.99 * jax.random.bits(key, (d,), jnp.uint32)).astype(jnp.uint32),
            lambda: unlike(BUILT["natural"], quantization._natural())[0],
        )
    ],
    "random_sparsification, probability 1 % too large": unlike(
        BUILT["random_sparsification(0.5)"],
        compressors.random_sparsification(0.5)._replace(compress=compressors.random_sparsification(0.505).compress),
    ),
    "random_k, the same places for all keys": unlike(BUILT["random_k(0.25)"], of_one_key(compressors.random_k(0.25))),
    "random_quantization, knobs one step off": unlike(
        BUILT["random_quantization(3)"],
        decoding(BUILT["random_quantization(3)"].compressor, lambda decoded: decoded + 1 / 7),
    ),
}


# Of those that round, some each way; all others.
BRIEFLY = {"random_quantization(3), 1 % too large", "qsgd(2), probabilities 1 % too large", "natural, probabilities 1 % too large"}
BRIEFLY |= {"random_k(0.25), 1 % too large", "random_sparsification, probability 1 % too large", "random_k, the same places for all keys"}
BRIEFLY |= {"random_quantization, knobs one step off"}


@pytest.mark.parametrize("mistake", briefly(BIASED, BRIEFLY))
def test_a_bias_is_found(mistake):
    assert caught("E Q(x) = x", BIASED[mistake])


@pytest.mark.parametrize("by", [0.97, 1.03])
@pytest.mark.parametrize("name", WORST)
def test_a_constant_that_is_a_few_percent_off_is_found(name, by):
    """Too small, it is a bound that does not hold; too large, one that nothing reaches."""
    of = WORST[name]
    constant = "omega" if of.compressor.unbiased else "delta"
    right = getattr(of.compressor, constant)
    stated = (lambda d: by * right(d)) if of.compressor.unbiased else lambda d: 1 - by * (1 - right(d))
    wrong = of._replace(compressor=of.compressor._replace(**{constant: stated}))
    row = "E|Q(x) - x|^2 <= omega |x|^2" if of.compressor.unbiased else "E|C(x) - x|^2 <= (1-delta)|x|^2"
    assert caught("omega and delta are reached", [partial(compression.worst, wrong, equality=True)])
    assert caught(row, [partial(compression.worst, wrong, equality=False)]) == (by < 1)


def test_an_error_that_is_larger_than_stated_is_found():
    for name, mistake in {
        "top_k(0.25)": compressors.top_k(2 / 12),  # one too few
        "contraction(random_k(0.25))": scaled(WORST["contraction(random_k(0.25))"].compressor, 1.1),
        "contraction(ternary)": scaled(WORST["contraction(ternary)"].compressor, 1.2),
        "sign": scaled(compressors.sign, 1.5),
    }.items():
        wrong = WORST[name]._replace(compressor=mistake._replace(delta=WORST[name].compressor.delta))
        assert caught("E|C(x) - x|^2 <= (1-delta)|x|^2", [partial(compression.worst, wrong, equality=False)]), name


SMALLEST = sparsification._sparse("top_k", 0.25, identity, lambda key, x: jnp.abs(x).max() - jnp.abs(x), lambda d: 1.0)
ELEMENTS = {
    "top_k, the smallest": ("top_k(0.25)", SMALLEST),
    "top_k, one too few": ("top_k(0.25)", compressors.top_k(2 / 12)),
    "top_k, one too many": ("top_k(0.25)", compressors.top_k(4 / 12)),
    "top_k, sent as float32": ("top_k(0.25)", in_float32(compressors.top_k(0.25))),
    "identity, sent as float32": ("identity", in_float32(compressors.identity)),
    "clipping, another bit": ("clipping(1)", compressors.clipping(2)),
    "sign of nothing": ("sign", compressors.sign._replace(compress=lambda key, x: compressors.sign.compress(key, jnp.abs(x)))),
    "sign, 1 % too large": ("sign", scaled(compressors.sign, 1.01)),
}


@pytest.mark.parametrize("mistake", ELEMENTS)
def test_an_element_that_is_not_what_it_should_be_is_found(mistake):
    name, wrong = ELEMENTS[mistake]
    extremes = [partial(deterministic_compression.elementwise, (wrong, *CERTAIN[name][1:]), np.linspace(-1, 2, 12), np.float64)]
    assert caught("C(x), element by element", extremes)


def test_a_whole_model_that_is_not_is_found():
    x = np.r_[np.ones(5), np.full(7, 2.0)] + np.arange(12) / 100
    sound = partial(deterministic_compression.of_tree, compressors.whole_model(compressors.top_k(0.25)), x)
    assert all(outcome.holds for outcome in sound())
    assert caught("whole_model is of one vector", [partial(deterministic_compression.of_tree, compressors.top_k(0.25), x)])


def test_a_warm_start_that_is_lost_is_found():
    cold = compressors.low_rank(1)._replace(compress=lambda key, x, last=None: compressors.low_rank(1).compress(key, x))
    instance = (np.eye(3), np.array([1.0, 0.5, 0.25]), np.eye(4))
    assert all(outcome.holds for outcome in deterministic_compression.best_of_rank(compressors.low_rank(1), *instance))
    assert caught("warm low rank finds the best", [partial(deterministic_compression.best_of_rank, cold, *instance)])


# --- Gossip.


def signed(matrices) -> float:
    """The second largest eigenvalue, not the second largest in absolute value."""
    return float(np.sort(np.linalg.eigvals(spectra.product(matrices)).real)[-2])


def test_a_rho_without_the_absolute_value_is_found():
    assert caught("rho of graphs, closed forms", [patched(spectra, "second_largest", signed, lambda: mixing.negative)])


def transposed(x, topology, t):
    W = jnp.asarray(np.stack([W.toarray().T for W in topology.matrices]))
    return W[t % topology.period] @ x


MIXES = {
    "the transpose": transposed,
    "the next round's": lambda x, topology, t: workers.mix(x, topology, t + 1),
    "always the first": lambda x, topology, t: workers.mix(x, topology, 0 * t),
    "nothing": lambda x, topology, t: x,
    "the mean": lambda x, topology, t: x - x + workers.mean(x)[None],
    "1 % too little": lambda x, topology, t: x + 0.99 * workers.pull(x, topology, t),
}


@pytest.mark.parametrize("mistake", MIXES)
def test_gossip_with_another_matrix_is_found(mistake):
    assert caught("gossip is a product with W", [partial(mixing.sent_on, kind, mix=MIXES[mistake]) for kind in mixing.GOSSIPS])


def test_gossip_that_shrinks_less_is_found():
    less = MIXES["1 % too little"]
    assert caught("gossip contracts by rho", [partial(mixing.slowest, less)])
    assert caught("gossip contracts by rho", [partial(mixing.alternating, mix=lambda x, topology, t: 1.01 * workers.mix(x, topology, t))])


@pytest.mark.parametrize(("name", "other"), [(one, other) for one in graphs.WEIGHTS for other in graphs.WEIGHTS if one != other])
def test_other_weights_are_found(name, other):
    assert caught("weights of graphs", [partial(mixing.of_graph, name, mixing.TADPOLE, {name: topologies.WEIGHTS[other]})])


SUMS = {
    "one row too few": {"sum": lambda x: workers.sum(x[:-1])},
    "over N - 1": {"mean": lambda x: workers.sum(x) / (x.shape[0] - 1)},
    "added up in bfloat16": {"sum": lambda x: jnp.cumsum(x.astype(jnp.bfloat16), axis=0)[-1].astype(x.dtype)},
}


@pytest.mark.parametrize("mistake", SUMS)
def test_wrong_sums_are_found(mistake):
    numbers = np.random.default_rng(0).integers(-128, 128, (8, 5_000))
    assert caught("sums over workers", [partial(mixing.of_rows, dtype, numbers, **SUMS[mistake]) for dtype in mixing.TYPES])


# --- Batches.


@dataclass(frozen=True)
class Blind(Minibatch):
    """Draws from the whole table, padding and all."""

    def __call__(self, key, mine):
        return super().__call__(key, mine._replace(weights=jnp.ones_like(mine.weights)))


@dataclass(frozen=True)
class Twice(Minibatch):
    """Draws with replacement, whatever it says."""

    def __call__(self, key, mine):
        return Minibatch(self.batch_size)(key, mine)


@dataclass(frozen=True)
class Partial(Minibatch):
    """Never draws a worker's last sample."""

    def __call__(self, key, mine):
        fewer = mine.weights * (jnp.cumsum(mine.weights) < jnp.maximum(jnp.sum(mine.weights), 4))
        return super().__call__(key, mine._replace(weights=fewer))


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("mistake", [Blind, Partial])
def test_batches_with_padding_or_without_a_sample_are_found(mistake, replacement):
    assert caught("a batch has no padding", [partial(batches.of_sizes, (3, 5, 8), mistake(3, replacement))])


def test_batches_with_a_sample_twice_are_found():
    assert caught("a batch has no padding", [partial(batches.of_sizes, (3, 5, 8), Twice(3, replacement=False))])


def test_a_loss_that_counts_padding_is_found():
    def with_ones(*arguments) -> Examples:
        padded = pad(*arguments)
        return padded._replace(weights=jnp.ones_like(padded.weights))

    assert caught("padding has no loss", [partial(batches.of_loss, 3, np.random.default_rng(0), pad=with_ones)])


# --- Costs.


def listed(name: str, N: int) -> list[network.Message]:
    messages = PATTERNS[name](N).messages
    assert messages is not None
    return messages(N)


def with_cost(pattern: Pattern, *, messages: Callable | None = None, **costs: Callable) -> Pattern:
    """With other messages, or with the seconds (N, latency, transfer) of a convention."""

    def seconds(N, latency, transfer, convention):
        if convention in costs:
            return costs[convention](N, latency, transfer)
        return pattern.seconds(N, latency, transfer, convention)

    return pattern._replace(seconds=seconds, messages=messages or pattern.messages)


def as_if(pattern: Pattern, convention: str) -> Callable:
    """(N, latency, transfer) -> seconds of the pattern by this convention."""
    return lambda N, latency, transfer: pattern.seconds(N, latency, transfer, convention)


PATTERNS = {name: known.make for name, known in costs.PATTERNS.items()}
COSTS = {
    "ring, 2N steps": ("ring all-reduce", {"blocking": lambda N, l, r: 2 * N * (l + r / N)}),
    "ring, no 1/N": ("ring all-reduce", {"pipelined": as_if(network.ring_all_reduce_unpartitioned, "pipelined")}),
    "ring, messages of whole vectors": ("ring all-reduce", {"messages": network.ring_all_reduce_unpartitioned.messages}),
    "server, pipelined as if blocking": ("one server", {"pipelined": as_if(network.parameter_server, "blocking")}),
    "server, blocking as if pipelined": ("one server", {"blocking": as_if(network.parameter_server, "pipelined")}),
    "star, one port": ("star", {"messages": network.parameter_server.messages}),
    "star, one way": ("star", {"messages": lambda N: listed("star", N)[:N]}),
    "star, one latency": ("star", {"pipelined": lambda N, l, r: l + 2 * r}),
    "N servers, N messages": ("N servers", {"blocking": lambda N, l, r: 2 * N * (l + r / N)}),
    "N servers, one latency": ("N servers", {"pipelined": lambda N, l, r: l + 2 * (N - 1) * r / N}),
    "N servers, no answers": ("N servers", {"messages": lambda N: listed("N servers", N)[: N * (N - 1)]}),
    "N servers, answers before sums": (
        "N servers",
        {"messages": lambda N: [message._replace(after=()) for message in listed("N servers", N)[1:]]},
    ),
    "all-gather, one message": ("all-gather", {"pipelined": lambda N, l, r: l + r}),
    "ring shift, no latency": ("ring shift", {"blocking": lambda N, l, r: r}),
    "gossip, one neighbour": ("gossip on a ring", {"blocking": lambda N, l, r: l + r}),
}


@pytest.mark.parametrize("mistake", COSTS)
def test_a_wrong_cost_is_found(mistake):
    name, changed = COSTS[mistake]
    wrong = partial(costs.of_pattern, name, 4, Fraction(3, 2), Fraction(5), lambda N: with_cost(PATTERNS[name](N), **changed))
    assert caught("cost of a round of messages", [wrong])


@pytest.mark.parametrize("name", PATTERNS)
def test_a_clock_that_is_early_is_found(name):
    def early(N: int) -> Pattern:
        pattern = PATTERNS[name](N)
        return pattern._replace(clock=lambda *arguments: 0.99 * network.elapse(pattern, *arguments))

    assert caught("cost of a round of messages", [partial(costs.clocks, name, 4, early)])


def test_an_asynchronous_server_that_is_too_quick_is_found():
    wrong = with_cost(network.asynchronous_server, blocking=lambda N, l, r: (l + r) / min(N, 2))
    assert caught("cost of an asynchronous server", [partial(costs.of_laps, 3, Fraction(3, 2), Fraction(5), wrong)])


def test_a_switch_with_another_convention_is_found():
    wrong = partial(network.simulate, convention="pipelined")
    assert caught("three messages take 14, or 9", [partial(costs.example, Fraction(3, 2), Fraction(5), Fraction(14), wrong)])
