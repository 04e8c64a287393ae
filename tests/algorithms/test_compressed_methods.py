"""Methods that compress, each against a readable numpy loop straight from its paper, and what each must keep, lose or refuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rounds
from budgets import briefly
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

import algorithms
import dsgd
from algorithms import compressed_sgd, ef21, error_compensated_sgd
from dsgd import compressors, problems
from dsgd.compressors.low_rank import Factors
from theory_checks.machinery.trajectories import rows
from theory_checks.recursions.compressed import (
    Parts,
    Q,
    around_ring,
    clipped,
    csgd,
    double_squeeze,
    join,
    largest_half,
    mean_size_times_sign,
    quantize,
    through_servers,
)
from theory_checks.recursions.compressed import ef21 as ef21_recursion
from theory_checks.recursions.shared import Gradients, Rounds, plain, quadratic

N, D, STEPS, LEARNING_RATE = 3, 10, 8, 0.2  # parts of four elements, the last with two of padding
STEP = optax.sgd(LEARNING_RATE)
METHODS: dict[str, Callable[[optax.GradientTransformation, dsgd.Compressor], dsgd.Algorithm]] = {
    "csgd": lambda optimizer, Q: compressed_sgd(optimizer, Q, allow_biased=True),
    "csgd-ring": lambda optimizer, Q: compressed_sgd(optimizer, Q, via="ring", allow_biased=True),
    "ec-sgd": lambda optimizer, Q: error_compensated_sgd(optimizer, Q, Q, allow_expanding=True),
    "ef21": lambda optimizer, Q: ef21(optimizer, Q, Q),
}


class Trajectory(NamedTuple):
    """Every round's gradients `[steps, N, ...]` and bits, and the states `[steps + 1, ...]` before, between and after."""

    states: dsgd.State
    gradients: dsgd.Gradients
    sent: np.ndarray
    received: np.ndarray


def drive(algorithm: dsgd.Algorithm, problem: dsgd.Problem, *, steps: int = STEPS, devices: int = 1) -> Trajectory:
    """The rounds one by one, with all that the loop of `dsgd.run` does not show."""
    workers = problem.workers

    def several(state, data, key):
        def one_round(state, key):
            draw, messages = jax.random.split(key)
            this = dsgd.Round(state.step, workers, key)
            after, gradients, statistics = rounds.one(algorithm, problem, state, this, data, draw, messages)
            return after, (after, gradients, statistics)

        return jax.lax.scan(one_round, state, jax.random.split(key, steps))[1]

    out = (rounds.states_over(None), P(None, "workers"), rounds.statistics_over(None))
    specs = {"in_specs": (rounds.STATE, P("workers"), P()), "out_specs": out}
    spread = jax.shard_map(several, mesh=dsgd.workers.mesh(devices), check_vma=False, **specs)

    def everything(data, key):
        first = algorithm.init(problem.init(jax.random.key(0)), workers)
        return first, spread(first, data, key)

    first, (states, gradients, statistics) = jax.tree.map(np.asarray, jax.jit(everything)(problem.data, jax.random.key(1)))
    states = jax.tree.map(lambda start, rest: np.concatenate([start[None], rest]), first, states)
    return Trajectory(states, gradients, *map(dsgd.counts.to_int, statistics.bits[:2]))


def exact(d: int = D, workers: int = N) -> dsgd.Problem:
    """Without noise, so that with a deterministic compressor everything is."""
    return problems.random_quadratic(workers, d, heterogeneity=2.0 if workers > 1 else 0.0, seed=1)


def fixed(gradients: dsgd.Gradients) -> dsgd.Problem:
    """Whatever the model, worker n's gradient is `gradients[n]`."""
    return dsgd.Problem(
        init=lambda key: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), gradients),
        loss=lambda params, batch: sum(jnp.vdot(x, g) for x, g in zip(jax.tree.leaves(params), jax.tree.leaves(batch), strict=True)),
        sample=lambda key, mine: mine,
        data=gradients,
    )


def gradient(problem: dsgd.Problem, n: int, x: np.ndarray) -> np.ndarray:
    return np.asarray(problem.data.A[n]) @ x - np.asarray(problem.data.b[n])


# --- The papers' recursions, of one layer through N servers.

CUTTING = Parts((D,), N)


def G(problem: dsgd.Problem) -> Gradients:
    return quadratic(np.asarray(problem.data.A), np.asarray(problem.data.b))


def oracle(recursion: Callable[..., Rounds], problem: dsgd.Problem, *arguments: Any) -> Rounds:
    """From 0 on, by plain steps."""
    return recursion(np.zeros(D), G(problem), plain(LEARNING_RATE), *arguments, CUTTING)


def rounding_compressor() -> dsgd.Compressor:
    """Three quarters of the nearest multiple of 1/16: Q(Q(x)) is not Q(x), as it is for so many others."""

    def compress(key, x):
        return jnp.round(x.astype(jnp.float32) * 16).astype(jnp.int16)

    return dsgd.Compressor(
        compress=compress,
        decompress=lambda message, d: message.astype(jnp.float32) / 16 * 0.75,
        bits=lambda message: 16 * message.size,
        delta=lambda d: 0.5,  # of all but the smallest
        name="rounding",
    )


def rounding(x: np.ndarray) -> np.ndarray:
    return np.round(x.astype(np.float32) * 16).astype(float) / 16 * 0.75


LOSSY: dict[str, tuple[dsgd.Compressor, Q]] = {
    "identity": (compressors.identity, lambda x: x),
    "rounding": (rounding_compressor(), rounding),
    "top_k": (compressors.top_k(0.5), largest_half),
    "sign": (compressors.sign, mean_size_times_sign),
    "clipping": (compressors.clipping(3), clipped),
}
PAIRS = [("sign", "rounding"), ("rounding", "top_k")]  # others are rows of `theory_checks`


def compare(got: dict[str, np.ndarray], rounds: Rounds) -> None:
    """Round by round."""
    for t, expected in enumerate(islice(rounds, STEPS), start=1):
        assert set(got) == set(expected)
        for symbol in got:
            np.testing.assert_allclose(got[symbol][t], expected[symbol], rtol=0, atol=1e-12, err_msg=f"{symbol} of round {t}")


@pytest.mark.parametrize("name", ["rounding", "sign"])
@pytest.mark.parametrize(("via", "exchange"), [("server", through_servers), ("ring", around_ring)])
def test_compressed_sgd_is_equation_3_4_or_3_5(via, exchange, name):
    with jax.enable_x64(True):
        problem, (compressor, q) = exact(), LOSSY[name]
        run = drive(compressed_sgd(STEP, compressor, via, allow_biased=True), problem)
        compare({"x": run.states.server.params}, oracle(csgd, problem, exchange, q))


@pytest.mark.parametrize(("up", "down"), PAIRS)
def test_error_compensated_sgd_is_equations_3_10_to_3_14(up, down):
    with jax.enable_x64(True):
        problem = exact()
        states = drive(error_compensated_sgd(STEP, LOSSY[up][0], LOSSY[down][0], allow_expanding=True), problem).states
        memory = states.workers
        got = {"x": states.server.params, "delta_worker": join(memory.worker, D), "delta_server": join(memory.server, D)}
        compare(got, oracle(double_squeeze, problem, LOSSY[up][1], LOSSY[down][1]))


@pytest.mark.parametrize(("up", "down"), [*PAIRS, ("top_k", "identity")])
def test_ef21_is_kimads_algorithm_3(up, down):
    with jax.enable_x64(True):
        problem = exact()
        states = drive(ef21(STEP, LOSSY[up][0], LOSSY[down][0]), problem).states
        known = states.workers
        got = {"x": join(known.model.params, D), "x_hat": states.server, "u_hat": join(known.gradient, D)}
        compare(got, oracle(ef21_recursion, problem, LOSSY[up][1], LOSSY[down][1]))
        # The servers' means are of what they know of each worker, which they never see again as a whole.
        np.testing.assert_allclose(known.mean, known.gradient.mean(axis=1), atol=1e-12)
        if down == "identity":
            np.testing.assert_allclose(got["x_hat"], got["x"], atol=1e-12)


@pytest.mark.parametrize("devices", [1, 3])
def test_ef21_takes_home_the_servers_model_not_what_the_workers_know_of_it(devices):
    with jax.enable_x64(True):
        problem, method = exact(), ef21(STEP, LOSSY["top_k"][0], LOSSY["clipping"][0])
        result = dsgd.run(method, problem, steps=STEPS, key=jax.random.key(0), mesh=devices)
        *_, last = islice(oracle(ef21_recursion, problem, largest_half, clipped), STEPS)
    np.testing.assert_allclose(result.params, last["x"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.state.server, last["x_hat"], rtol=0, atol=1e-12)
    assert np.abs(last["x"] - last["x_hat"]).max() > 1e-4


# --- Randomness.


def test_compressed_sgd_is_unbiased_with_the_variance_of_two_roundings(mesh):
    """One step is -gamma Q(mean Q(g_n)): its mean is the exact step, its variance that of a numpy loop of equation 3.4."""
    check_moments("server", through_servers, mesh)


def test_around_the_ring_it_is_unbiased_with_the_variance_of_n_roundings(mesh):
    """One step is -gamma / N Q(... Q(Q(g_1) + g_2) ... + g_N) in every part, in the order of its own workers."""
    check_moments("ring", around_ring, mesh)


def check_moments(via: str, exchange: Callable, mesh: jax.sharding.Mesh) -> None:
    bits, d, seeds = 2, 7, 2_500
    problem = problems.random_quadratic(N, d, heterogeneity=2.0, seed=4)
    method = compressed_sgd(optax.sgd(1.0), compressors.random_quantization(bits), via)
    got = np.asarray(dsgd.run(method, problem, steps=1, key=jax.random.key(0), seeds=seeds, mesh=mesh).params, np.float64)
    gradients = [gradient(problem, n, np.zeros(d)) for n in range(N)]
    rng = np.random.default_rng(0)
    stepped = -np.stack([exchange(np.array(gradients), lambda x: quantize(x, bits, rng), Parts((d,), N)) for _ in range(seeds)])
    error = got.std(axis=0, ddof=1) / np.sqrt(seeds)
    assert (np.abs(got.mean(axis=0) + np.mean(gradients, axis=0)) <= 4.5 * error + 1e-6).all()
    # Variances of so many draws, bounded kurtosis: a relative standard error of about sqrt(2 / seeds).
    for ours, theirs in zip(got.var(axis=0), stepped.var(axis=0), strict=True):
        assert ours == pytest.approx(theirs, rel=6 * np.sqrt(2 * 2 / seeds), abs=1e-10)


NOISY = dsgd.Compressor(
    compress=lambda key, x: x + jax.random.normal(key, x.shape, x.dtype),
    decompress=lambda message, d: message,
    bits=lambda message: 64 * message.size,
    omega=lambda d: 0.0,
    delta=lambda d: 1.0,
    name="noisy",
)
"""Shows what it has drawn."""


def test_every_message_has_numbers_of_its_own():
    """Of every worker, for every server, of every layer, on both ways. Around the ring of every hop, too: were those of a worker the same,
    all parts would collect the same."""
    with jax.enable_x64(True):
        g = np.random.default_rng(0).normal(size=(N, 9))
        problem = fixed({"one": jnp.asarray(g), "other": jnp.asarray(g)})
        memory = drive(METHODS["ec-sgd"](STEP, NOISY), problem, steps=1).states.workers
        left_out = [leaf[-1] for leaf in jax.tree.leaves((memory.worker, memory.server))]
        models = [drive(METHODS[name](STEP, NOISY), problem, steps=1).states.server.params for name in ("csgd", "csgd-ring")]
        collected = [leaf[-1] + LEARNING_RATE * g.mean(axis=0) for leaf in jax.tree.leaves(models)]
    for noise in (left_out, collected):
        numbers = np.sort(np.concatenate([np.ravel(leaf) for leaf in noise]))
        assert np.diff(numbers).min() > 1e-9


FEW = {  # gradients of fewer elements than workers, which draw for each, or send as many as they draw, or start warm
    "csgd": compressors.natural,
    "csgd-ring": compressors.natural,
    "ec-sgd": compressors.random_sparsification(0.4),
    "ef21": compressors.low_rank(1),
}


@pytest.mark.parametrize("name", briefly(FEW, {"csgd", "ec-sgd", "ef21"}))  # around the ring all N parts are made, also of padding
def test_servers_without_elements_are_sent_padding_which_nobody_holds(name):
    """One device computes no more than elements, eight send each other padding: the numbers, and the bits of every worker, are the same."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        problem = fixed({"biases": jnp.asarray(rng.normal(size=(8, 3))), "weights": jnp.asarray(rng.normal(size=(8, 4, 5)))})
        here, apart = (drive(METHODS[name](STEP, FEW[name]), problem, steps=3, devices=devices) for devices in (1, 8))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-12), here.states, apart.states)
    np.testing.assert_array_equal(here.sent, apart.sent)
    np.testing.assert_array_equal(here.received, apart.received)
    if name in ("ec-sgd", "ef21"):
        held = here.states.workers.worker if name == "ec-sgd" else here.states.workers.gradient
        assert {layer: leaf.shape[2:] for layer, leaf in held.items()} == {"biases": (3, 1), "weights": (7, 3)}
        assert all(np.abs(leaf[1:]).max() > 0 for leaf in held.values())


# --- Lemma 3.4.1.


def layers(problem: dsgd.Problem) -> dsgd.Problem:
    """The same problem of 25 parameters as a layer's 7 biases and its 3 x 6 weights."""
    unravel = ravel_pytree({"biases": jnp.zeros(7), "weights": jnp.zeros((3, 6))})[1]
    gradient = problem.gradient
    assert gradient is not None
    loss = dsgd.Loss(
        lambda params, batch: problem.loss(ravel_pytree(params)[0], batch),
        lambda params, batch: unravel(gradient(ravel_pytree(params)[0], batch)),
    )
    return problem._replace(init=lambda key: unravel(problem.init(key)), loss=loss, evaluate=None)


def whole_of_parts(parts: dsgd.base.Params) -> np.ndarray:
    """Leaves `[*axes, N, part]` without what they were padded with, one after another."""
    leaves = jax.tree.leaves(parts)
    sizes = [7, 18] if len(leaves) == 2 else [25]
    return np.concatenate([join(leaf, size) for leaf, size in zip(leaves, sizes, strict=True)], axis=-1)


LEMMA = [  # of each kind of message one
    compressors.random_quantization(2, bucket=4),
    compressors.random_sparsification(0.4),
    compressors.top_k(0.3, compressors.random_quantization(4)),
    compressors.sign,
    compressors.natural,
    compressors.low_rank(2),
    compressors.identity,
    compressors.contraction(compressors.random_k(0.3)),
]
LEMMA_OF_LAYERS = [compressors.random_quantization(4), compressors.low_rank(1), compressors.whole_model(compressors.sign)]


@pytest.mark.parametrize(
    ("compressor", "layered"),
    [*((compressor, False) for compressor in LEMMA), *((compressor, True) for compressor in LEMMA_OF_LAYERS)],
    ids=lambda case: "layers" if case is True else getattr(case, "name", "vector"),
)
def test_lemma_3_4_1_holds_for_every_compressor(compressor, layered):
    r"""$\tilde x_{t+1} = \tilde x_t - \gamma \frac1N \sum_n g_n(x_t)$ with $\tilde x_t = x_t - \gamma (\delta_{t-1} +
    \frac1N \sum_n \delta_{t-1}^{(n)})$: whatever is left out is sent in the end, biased or not, expanding or not. To rounding errors of
    what has piled up."""
    gamma = 0.05
    with jax.enable_x64(True):
        problem = problems.random_quadratic(N, 25, heterogeneity=1.0, noise=0.5, seed=2)
        problem = layers(problem) if layered else problem
        run = drive(error_compensated_sgd(optax.sgd(gamma), compressor, compressor, allow_expanding=True), problem, steps=4)
    memory = whole_of_parts(run.states.workers.server) + whole_of_parts(run.states.workers.worker).mean(axis=1)
    ahead = rows(run.states.server.params, 1) - gamma * memory
    scale = max(1.0, np.abs(memory).max())
    np.testing.assert_allclose(np.diff(ahead, axis=0), -gamma * rows(run.gradients, 2).mean(axis=1), rtol=0, atol=1e-13 * scale)
    assert (np.abs(memory[-1]).max() > 1e-9 * scale) == (compressor is not compressors.identity)
    assert run.sent.sum() == run.received.sum()


@pytest.mark.parametrize(
    "compressor",
    [compressors.natural, compressors.random_k(0.3), compressors.random_sparsification(0.4), compressors.low_rank(1), compressors.sign],
    ids=lambda compressor: compressor.name,
)
def test_messages_are_the_same_in_double_precision(compressor):
    """In which tests here run, and in which JAX draws 64 bits at a time unless told otherwise. Of float32, float32 is sent all the same."""
    x, key = jax.random.normal(jax.random.key(6), (40,), jnp.float32), jax.random.key(7)
    compress = jax.jit(lambda key, x: compressors.encode(compressor, key, x).message)
    single = jax.tree.leaves(compress(key, x))
    with jax.enable_x64(True):
        double = jax.tree.leaves(compress(key, x))
    for expected, got in zip(single, double, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


# --- Identities between methods.


@pytest.mark.parametrize("whole_model", [False, True], ids=["layer-wise", "whole-model"])
@pytest.mark.parametrize("method", METHODS)
def test_the_identity_compressor_is_minibatch_sgd(method, whole_model):
    """With momentum, of whose memory ef21's servers hold a part each."""
    optimizer = optax.sgd(LEARNING_RATE, momentum=0.9)
    compressor = compressors.whole_model(compressors.identity) if whole_model else compressors.identity
    with jax.enable_x64(True):
        problem = layers(exact(25))
        states = drive(METHODS[method](optimizer, compressor), problem).states
        plain = drive(algorithms.minibatch_sgd(optimizer), problem).states
    got = states.server if method == "ef21" else states.server.params
    np.testing.assert_allclose(rows(got, 1), rows(plain.server.params, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_compresses_for_itself_and_sends_nothing(method):
    """Twice through its own server, once around a ring of itself; and with a compressor of random sizes the bits are 0 as well."""
    with jax.enable_x64(True):
        problem = exact(workers=1)
        states = drive(METHODS[method](STEP, rounding_compressor()), problem, steps=1).states
        g = gradient(problem, 0, np.zeros(D))
        step = {"csgd": rounding(rounding(g)), "csgd-ring": rounding(g), "ec-sgd": rounding(rounding(g)), "ef21": None}[method]
        if step is None:
            np.testing.assert_allclose(states.server[-1], rounding(-LEARNING_RATE * rounding(g)), atol=1e-12)
        else:
            np.testing.assert_allclose(states.server.params[-1], -LEARNING_RATE * step, atol=1e-12)
    sparse = compressors.random_sparsification(0.6)
    run = drive(METHODS[method](STEP, sparse), problems.random_quadratic(1, D, heterogeneity=0.0), steps=2)
    assert not run.sent.any()
    assert not run.received.any()


# --- Convergence.


def counterexample() -> dsgd.Problem:
    r"""Three workers in R^3 with $f_n(x) = \langle a_n, x\rangle^2 + \frac14 |x|^2$, three times over: one for each of three servers.

    From x = (1, 1, 1) t worker 1's gradient is t (-11/2, 9/2, 9/2): its largest element points the wrong way, as do the others'. So each
    step along largest elements multiplies one coordinate by 1 + 11/6 gamma, whereas $f' = \frac76 t (1, 1, 1)$.

    Source: Beznosikov, Horvath, Richtarik and Safaryan, "On biased compression for distributed learning", 2020, example 1.
    """
    a = np.array([[-3, 2, 2], [2, -3, 2], [2, 2, -3]])
    one = 2 * a[:, :, None] * a[:, None, :] + np.eye(3) / 2
    A = np.stack([np.kron(np.eye(3), hessian) for hessian in one])
    return problems.quadratic(A, np.zeros((3, 9)), start=np.ones(9))


def gaps(algorithm: dsgd.Algorithm, problem: dsgd.Problem, steps: int) -> np.ndarray:
    """f(x) - f* at 11 times."""
    history = dsgd.run(algorithm, problem, steps=steps, key=jax.random.key(0), record_every=steps // 10, mesh=1).history
    assert problem.constants.minimum is not None
    return history["loss"] - problem.constants.minimum


LARGEST = compressors.top_k(1 / 3)  # of three elements
DRAWN = compressors.contraction(compressors.random_k(1 / 3))


def test_compressed_sgd_with_a_biased_compressor_diverges_on_the_counterexample():
    """Growth by about (1 + 11/6 gamma) every three rounds, one coordinate at a time."""
    gap = gaps(compressed_sgd(optax.sgd(0.01), LARGEST, allow_biased=True), counterexample(), steps=1_000)
    assert (np.diff(np.log(gap)) > 11 / 6 * 0.01 * 100 / 3).all()


def test_around_the_ring_it_comes_to_rest_farther_away_than_it_started():
    """What a worker adds displaces what the workers before it found largest."""
    gap = gaps(compressed_sgd(optax.sgd(0.01), LARGEST, via="ring", allow_biased=True), counterexample(), steps=1_000)
    assert (gap[1:] > gap[0]).all()


@pytest.mark.parametrize("compressor", [LARGEST, DRAWN], ids=lambda compressor: compressor.name)
@pytest.mark.parametrize("method", [error_compensated_sgd, ef21], ids=lambda method: method.__name__)
def test_with_memory_the_same_compressor_converges_on_the_counterexample(method, compressor):
    """Curvature 7/6 along (1, 1, 1): after 4,000 steps of 0.004 gradient descent's gap is e^-37 of what it was."""
    gap = gaps(method(optax.sgd(0.004), compressor, compressor), counterexample(), steps=4_000)
    assert gap[0] > 1
    assert gap[-1] < 1e-6


def heterogeneous(workers: int = 3, d: int = 9, heterogeneity: float = 1.0) -> dsgd.Problem:
    """At x* the workers' gradients are not 0, only their mean is."""
    return problems.random_quadratic(workers, d, smoothness=1.0, strong_convexity=0.5, heterogeneity=heterogeneity, seed=5)


@pytest.mark.parametrize("compressor", [LARGEST, compressors.sign], ids=lambda compressor: compressor.name)
def test_compressed_sgd_with_a_biased_compressor_stalls_where_gradients_differ(compressor):
    """However small the step."""
    assert gaps(compressed_sgd(optax.sgd(0.01), compressor, allow_biased=True), heterogeneous(), steps=5_000)[-3:].min() > 1e-2


@pytest.mark.parametrize("d", [20, 21, 22], ids=lambda d: f"padding={-d % 4}")
def test_ef21_converges_with_a_constant_step_where_gradients_differ(d):
    """Four servers have parts of 5 or 6. Estimates of what the last is padded with must not keep elements from being sent."""
    largest = compressors.top_k(0.2)
    gap = gaps(ef21(optax.sgd(0.05), largest, largest), heterogeneous(4, d), steps=2_000)
    assert gap[0] > 1e-2
    assert np.abs(gap[-1]) < 1e-6


def test_error_compensated_sgd_comes_as_close_as_its_step_is_small():
    """x is off by gamma times what is in the memories, which stays: the gap is of the order of gamma^2."""
    near, nearer = (
        gaps(error_compensated_sgd(optax.sgd(gamma), DRAWN, DRAWN), heterogeneous(3, 10, heterogeneity=0.5), steps)[-5:].mean()
        for gamma, steps in ((1e-2, 1_500), (2.5e-3, 8_000))
    )
    assert nearer < 1e-6
    assert 16 / 2 < near / nearer < 16 * 2


# --- Devices.


@cache
def kernel_and_bias() -> dsgd.Problem:
    """Inputs are Gaussian: of integer ones, gradients at 0 cancel exactly, and their sign is then one of rounding."""
    rng = np.random.default_rng(0)
    return problems.logistic_regression((rng.normal(size=(800, 64)), np.arange(800) % 10), workers=8, batch_size=4)


SPREAD = {
    "csgd-ring": compressed_sgd(STEP, compressors.random_quantization(4), via="ring"),
    "ec-sgd": error_compensated_sgd(STEP, compressors.low_rank(1), compressors.random_sparsification(0.6)),
    "ef21": ef21(STEP, compressors.top_k(0.2), compressors.sign),
}


@cache
def spread(method: str, devices: int) -> Trajectory:
    return drive(SPREAD[method], kernel_and_bias(), steps=6, devices=devices)


@pytest.mark.long  # on 4 and 8 registered ones are under `test_contract`
@pytest.mark.parametrize("devices", [2])
@pytest.mark.parametrize("method", SPREAD)
def test_any_number_of_devices_runs_the_same_rounds(method, devices):
    """Weights and biases layer by layer; rounding errors of sums may be others, drawn numbers and bits not."""
    one, many = spread(method, 1), spread(method, devices)
    for alone, shared in zip(jax.tree.leaves(one.states), jax.tree.leaves(many.states), strict=True):
        np.testing.assert_allclose(shared, alone, rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(many.sent, one.sent)
    np.testing.assert_array_equal(many.received, one.received)
    np.testing.assert_array_equal(one.sent.sum(axis=1), one.received.sum(axis=1))
    assert np.abs(rows(one.gradients, 2)).max() > 1e-2


# --- Layers.


def test_a_small_layer_keeps_its_precision_unless_the_model_is_one_vector():
    """A message has one range. Of the model as one vector, in two parts of six, all small elements share theirs with large ones."""
    bits, workers = 6, 2
    rng = np.random.default_rng(0)
    gradients = {"large": rng.normal(size=(workers, 9)), "small": 1e-4 * rng.normal(size=(workers, 3))}
    problem = fixed(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), gradients))
    layer_wise = compressors.random_quantization(bits)
    errors, sent = {}, {}
    for compressor in (layer_wise, compressors.whole_model(layer_wise)):
        run = drive(error_compensated_sgd(optax.sgd(1.0), compressor, compressor), problem, steps=1)
        step = jax.tree.map(lambda leaf: leaf[-1], run.states.server.params)
        errors[compressor.layer_wise] = {name: np.abs(step[name] + g.mean(axis=0)).max() for name, g in gradients.items()}
        sent[compressor.layer_wise] = run.sent
    rounded = 2 * 2 * 3 / (2**bits - 1)  # up and down by at most a knob, of elements between -3 and 3
    assert errors[True]["large"] < rounded
    assert errors[True]["small"] < 1e-4 * rounded
    assert errors[False]["small"] > 10 * 1e-4 * rounded
    # To the other server and to the other worker. Parts of 5 and 2, or of 6: codes in planes of four and two bits, and two ends; of two
    # elements, these.
    np.testing.assert_array_equal(sent[True], 2 * 8 * ((3 + 2 + 8) + 8))
    np.testing.assert_array_equal(sent[False], 2 * 8 * (3 + 2 + 8))


# --- Warm starts.


def matrices(parts: np.ndarray) -> np.ndarray:
    """Parts `[..., 20]` as `low_rank` sees them, `[..., 4, 5]`."""
    return parts.reshape(*parts.shape[:-1], 4, 5)


def directions(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v, axis=-2, keepdims=True)


def follows(v: np.ndarray, message: Factors, start: np.ndarray) -> None:
    """One step of power iteration on v `[..., 4, 5]` from the right factor `start` `[..., 5, 1]`, up to the sign of the left factor."""
    left = directions(v @ start)
    cosine = np.sum(left * message.left, axis=(-2, -1))
    np.testing.assert_allclose(np.abs(cosine), 1, atol=1e-5)
    np.testing.assert_allclose(message.right, np.swapaxes(v, -1, -2) @ message.left, atol=1e-4 * np.abs(v).max())


@pytest.mark.parametrize("method", [error_compensated_sgd, ef21], ids=lambda method: method.__name__)
def test_low_rank_messages_start_from_the_last_right_factor(method):
    """Kept in the state, of every worker's message to every server and of every server's own."""
    rank_one = compressors.low_rank(1)
    gradients = jnp.asarray(np.random.default_rng(0).normal(size=(2, 40)), jnp.float32)
    states = drive(method(STEP, rank_one, rank_one), fixed(gradients), steps=5).states
    memory = states.workers
    (up,), (down,) = memory.up, memory.down
    assert up.right.shape == (6, 2, 2, 5, 1)
    assert down.right.shape == (6, 2, 5, 1)
    parts = np.asarray(gradients).reshape(2, 2, 20)
    for t in range(1, 5):
        before, after = (jax.tree.map(lambda leaf, i=i: leaf[i], memory) for i in (t, t + 1))
        if method is error_compensated_sgd:
            v_worker, v_server = parts + before.worker, (parts + before.worker - after.worker).mean(axis=0) + before.server
        else:
            v_worker, v_server = parts - before.gradient, after.model.params - states.server[t].reshape(2, 20)
        follows(matrices(v_worker), after.up[0], before.up[0].right)
        follows(matrices(v_server), after.down[0], before.down[0].right)


def test_on_a_constant_gradient_factors_find_the_top_singular_vector_and_memories_stay_bounded():
    """The second singular value is a thousandth of the first: a cold start would be off by a thousandth in every round."""
    rng = np.random.default_rng(1)
    left, right = np.linalg.qr(rng.normal(size=(4, 4)))[0], np.linalg.qr(rng.normal(size=(5, 5)))[0][:, :4]
    one_part = (left * [1000, 1, 0.5, 0.2]) @ right.T
    gradients = jnp.asarray(np.tile(one_part.ravel(), (2, 2)), jnp.float32)
    method = error_compensated_sgd(STEP, compressors.low_rank(1), compressors.low_rank(1))
    states = drive(method, fixed(gradients), steps=4).states
    for message in (states.workers.up[0], states.workers.down[0]):
        off = np.linalg.norm(left[:, 1:].T @ message.left[-1], axis=-2)
        assert off.max() < 3e-5

    # A matrix of full rank. Of a contraction a, memories stay below sqrt(1 - a) / (1 - sqrt(1 - a)) |g|, here a = 1/5.
    flat = jnp.asarray(rng.normal(size=(2, 40)), jnp.float32)
    memory = drive(method, fixed(flat), steps=300).states.workers.worker.reshape(301, 2, 2, 20)
    sizes = np.linalg.norm(memory, axis=-1) / np.linalg.norm(np.asarray(flat).reshape(2, 2, 20), axis=-1)
    assert sizes.max() < np.sqrt(4 / 5) / (1 - np.sqrt(4 / 5))


# --- Refusals.


def test_a_biased_compressor_is_refused():
    biased = compressors.identity._replace(omega=None, name="biased")
    with pytest.raises(
        ValueError, match=r"compressed_sgd with biased, .*need an unbiased .*error_compensated_sgd or ef21, or allow_biased"
    ):
        compressed_sgd(optax.sgd(0.1), biased)


def test_an_exchange_that_is_none_is_refused():
    with pytest.raises(ValueError, match="compressed_sgd via 'tree': need one of server, ring"):
        inspect.unwrap(compressed_sgd)(STEP, compressors.identity, "tree")


@pytest.mark.parametrize("method", [error_compensated_sgd, ef21], ids=lambda method: method.__name__)
def test_layers_one_way_and_the_whole_model_the_other_are_refused(method):
    layer_wise, one_vector = compressors.sign, compressors.whole_model(compressors.top_k(0.1))
    for up, down in ((layer_wise, one_vector), (one_vector, layer_wise)):
        with pytest.raises(ValueError, match=f"{method.__name__} with .*{up.name[:5]}.* up and .*{down.name[:5]}.* down: need both"):
            method(STEP, up, down)
    method(STEP, one_vector, one_vector)


@pytest.mark.parametrize("method", [error_compensated_sgd, ef21], ids=lambda method: method.__name__)
def test_a_compressor_that_is_no_contraction_of_its_parts_is_refused(method):
    """25 elements are parts of 9 for three servers. Biases of 7 are parts of 3, of which omega = 1/2 leaves a contraction, and weights
    of 18 parts of 6, of which omega = 2 leaves none."""
    rough = compressors.random_quantization(1)
    for up, down in ((rough, compressors.identity), (compressors.identity, rough)):
        with pytest.raises(ValueError, match=rf"{method.__name__} with random_quantization\(1\), .* vectors of 9 elements: .*contraction"):
            method(STEP, up, down).init(jnp.zeros(25), N)
        with pytest.raises(ValueError, match=r"vectors of 6 elements"):
            method(STEP, up, down).init({"biases": jnp.zeros(7), "weights": jnp.zeros((3, 6))}, N)
        method(STEP, up, down).init(jnp.zeros(7), N)


def test_error_compensated_sgd_takes_one_that_is_none_from_those_who_insist():
    rough = compressors.random_quantization(1)
    with pytest.raises(ValueError, match=r"which states no contraction .* \(or allow_expanding=True\)"):
        error_compensated_sgd(STEP, rough, rough).init(jnp.zeros(25), N)
    error_compensated_sgd(STEP, rough, rough, allow_expanding=True).init(jnp.zeros(25), N)


@pytest.mark.parametrize("method", METHODS)
def test_a_rank_that_parts_do_not_have_is_refused(method, mesh):
    with pytest.raises(ValueError, match=r"low_rank\(3\) of 3 elements as a 2 x 2 matrix: need a rank of at most 2"):
        dsgd.run(METHODS[method](STEP, compressors.low_rank(3)), exact(7), steps=1, key=jax.random.key(0), mesh=mesh)
