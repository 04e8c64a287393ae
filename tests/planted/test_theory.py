"""Mistakes in methods that theory finds, in bounds, and in the computation of left sides."""

from __future__ import annotations

from planted import mistakes
from planted.mistakes import Mistake

TESTS = "tests/theory_checks"
VALUES = f"{TESTS}/test_bounds.py::test_values_are_those_computed_by_hand"
MOMENTS = f"{TESTS}/test_moments.py"
OUTCOMES = f"{TESTS}/test_outcomes.py"
S = "theory_checks/statements"
M = "theory_checks/machinery"


def holds(name: str) -> str:
    """Returns the test of a statement."""
    return f"'{TESTS}/test_statements.py::test_statement_holds[{name}]'"


METHODS = [
    Mistake(
        "algorithms/compressed/memories.py",
        "_plus(h_bar, lambda_, mean)",
        "_plus(h_bar, 1.0, mean)",
        holds("DIANA, linear, exact"),
    ),
    Mistake(
        "algorithms/optimizers.py",
        '("mu", "trace"), ("nu", "nu_max")',
        '("nu", "trace"), ("mu", "nu_max")',
        holds("DES-LOC, every round"),
    ),
    Mistake(
        "algorithms/local_updates/fed_opt.py",
        "jnp.sign(v - delta**2)",
        "jnp.sign(delta**2 - v)",
        holds("FedYogi, every round"),
    ),
    Mistake(
        "algorithms/decentralized/exact_diffusion.py",
        "lambda pull: jnp.asarray(share, pull.dtype) * pull, pull",
        "lambda pull: pull, pull",
        holds("exact diffusion, linear"),
    ),
    Mistake(
        "algorithms/decentralized/extra.py",
        "lambda pull: pull / 2, pull",
        "lambda pull: pull, pull",
        holds("EXTRA, every round"),
    ),
    Mistake(
        "algorithms/decentralized/gradient_tracking.py",
        "optax.tree.sub(gradients, last))",
        "gradients)",
        holds("gradient tracking, every round"),
    ),
    Mistake(
        "algorithms/variance_reduction.py",
        "Query(snapshot, active=~new)",
        "Query(x, active=~new)",
        holds("GT-SVRG, every round"),
    ),
    Mistake(
        "algorithms/variance_reduction.py",
        "round.if_active((estimated, x), (v, last))",
        "round.if_active((estimated, last), (v, last))",
        holds("GT-HSGD, every round"),
    ),
    Mistake(
        "algorithms/variance_reduction.py",
        "at = _places(s[:, -1])",
        "at = _places(s[:, 0])",
        '"tests/algorithms/test_variance_reduction.py::test_gt_saga_follows_its_recursion[1]"',
    ),
    Mistake(
        "algorithms/decentralized/gradient_tracking.py",
        "round.mix((half, y), topology)",
        "half, round.mix(y, topology)",
        holds("ATC tracking, schedule, every round"),
    ),
    Mistake(
        "algorithms/decentralized/decentralized_sgd.py",
        "optax.tree.add(after.params, pull)",
        "round.mix(after.params, topology)",
        holds("DGD, every round"),
    ),
    Mistake(
        "algorithms/decentralized/decentralized_sgd.py",
        "half.optimizer, momenta)",
        "half.optimizer, optimizers.moments(optimizers.FIRST, half.optimizer))",
        holds("DSGD, averaged momenta, every round"),
    ),
    Mistake(
        "algorithms/decentralized/quasi_global_momentum.py",
        "(before - after)",
        "(before - before)",
        holds("QG-DSGDm, every round"),
    ),
    Mistake(
        "algorithms/decentralized/decentlam.py",
        "momentum * v + (before",
        "momentum * (v + before",
        holds("DecentLaM, every round"),
    ),
    Mistake(
        "algorithms/decentralized/gradient_tracking.py",
        "jnp.asarray(step_factors)",
        "jnp.ones(topology.n)",
        holds("Aug-DGM, every round"),
    ),
    Mistake(
        "algorithms/decentralized/gradient_tracking.py",
        "jnp.asarray(momentum, u.dtype) * u + g",
        "jnp.asarray(momentum, u.dtype) * (u + g)",
        holds("momentum tracking, every round"),
    ),
    Mistake(
        "algorithms/decentralized/push_diging.py",
        "Query(divided(state.workers))",
        "Query(state.workers.params)",
        holds("Push-DIGing, every round"),
    ),
    Mistake(
        "algorithms/decentralized/push_pull.py",
        "round.pull(half, pull)",
        "optax.apply_updates(round.pull(state.params, pull), change)",
        holds("Push-Pull, every round"),
    ),
    Mistake(
        "algorithms/decentralized/push_pull.py",
        "optax.apply_updates(x, change)",
        "optax.apply_updates(state.params, change)",
        holds("AB, every round"),
    ),
    Mistake(
        "algorithms/decentralized/choco_sgd.py",
        "half.params, laplacian\n",
        "half.params, sent.received\n",
        holds("CHOCO, every round"),
    ),
    Mistake(
        "algorithms/decentralized/deepsqueeze.py",
        "optax.tree.sub(v, sent.decoded)",
        "optax.tree.sub(half.params, sent.decoded)",
        holds("DeepSqueeze, every round"),
    ),
    Mistake(
        "algorithms/compressed/memories.py",
        "_plus(direction, 1.0, server.error)",
        "direction",
        holds("EC-SGD, virtual iterates"),
    ),
    Mistake(
        "algorithms/compressed/memories.py",
        "_plus(h, lambda_, m), _plus(h_bar, lambda_, mean)",
        "_plus(h, lambda_, m), h_bar",
        holds("EF21, every round"),
    ),
    Mistake(
        "algorithms/compressed/powersgd.py",
        "D - delta[None], D, delta",
        "D - delta[None] / 2, D, delta",
        holds("PowerSGD, every round"),
    ),
    Mistake(
        "algorithms/compressed/powersgd.py",
        "optax.tree.add(updates, m)",
        "m",
        holds("PowerSGD, rank 1, momentum, every round"),
    ),
    Mistake(
        "algorithms/compressed/dion.py",
        "jnp.asarray(1 - momentum, M.dtype)",
        "jnp.asarray(1, M.dtype)",
        holds("Dion, every round"),
    ),
    Mistake(
        "algorithms/compressed/demo.py",
        "each.decoded for each",
        "each.decoded / 2 for each",
        holds("DeMo, columns, every round"),
    ),
    Mistake(
        "algorithms/compressed/demo.py",
        "jnp.asarray(decay, m.dtype) * m + g",
        "m + g",
        holds("DeMo, blocks, every round"),
    ),
    Mistake(
        "theory_checks/recursions/compressed.py",
        "q.mean(axis=0)",
        "(q.sum(axis=0) / np.maximum(1, np.count_nonzero(q, axis=0)))",
        holds("DeMo, blocks, every round"),
    ),
    Mistake(
        "algorithms/local_updates/scaffold.py",
        "g - c_n + c[None]",
        "g - c_n",
        holds("SCAFFOLD, every round"),
    ),
    Mistake(
        "algorithms/synchronous/backup_workers_sgd.py",
        "leaf / counted",
        "leaf / N",
        holds("backup workers, every round"),
    ),
    Mistake(
        "algorithms/asynchronous/asynchronous_sgd.py",
        "/ jnp.maximum(1, staleness), new)",
        "/ jnp.maximum(1, staleness - 1), new)",
        holds("ASGD, given delays, staleness-aware, every round"),
    ),
    Mistake(
        "algorithms/dropcompute/stopping.py",
        "done = ends < threshold",
        "done = ends <= threshold",
        holds("DropCompute, every round"),
    ),
]
CONSTANTS = [
    Mistake(
        "dsgd/compressors/ternary.py",
        "omega=lambda d: (math.sqrt(d) - 1) / 2)",
        "omega=lambda d: (math.sqrt(d) - 1) / 2.1)",
        holds("omega of ternary"),
    ),
    Mistake(
        "dsgd/compressors/quantization.py",
        "thirds / (1 + 9 * thirds)",
        "thirds / (1 + 10 * thirds)",
        holds("delta of e3m0"),
    ),
    Mistake(
        "dsgd/compressors/low_rank.py",
        "rank / min(shape(d)))",
        "rank / max(1, min(shape(d)) - 1))",
        holds("delta of low_rank(1)"),
    ),
    Mistake(
        f"{S}/compressor_constants.py",
        "(x - low) * (high - x)",
        "(x - low) * (high - x) / 2",
        f"{TESTS}/test_compressor_constants.py",
    ),
]
BOUNDS = [
    Mistake(
        f"{S}/sgd.py", "return noisy / (2 - learning_rate * smoothness)", "return noisy / 2", VALUES
    ),
    Mistake(
        f"{S}/compressed_sgd.py",
        "inflation = w + w * (1 + w) / N",
        "inflation = w + w * (1 + w)",
        VALUES,
    ),
    Mistake(
        f"{S}/asynchronous_sgd.py",
        "1 / (2 * smoothness * (staleness + 1)",
        "1 / (smoothness * (staleness + 1)",
        VALUES,
    ),
    Mistake(
        f"{S}/decentralized_sgd.py",
        "math.hypot(p, math.sqrt(1 - q**2) * r)",
        "math.hypot(p, r)",
        VALUES,
    ),
    Mistake(f"{S}/ef21.py", "np.sqrt(c**2 + 4 * a)", "np.sqrt(c**2 + a)", VALUES),
    Mistake(
        f"{S}/dropcompute_convex.py",
        "noisy /= 1 - learning_rate * smoothness * batch_size",
        "noisy /= 1 - learning_rate * smoothness",
        VALUES,
    ),
    Mistake(
        f"{S}/local_sgd.py",
        "return drift / (1 - size)",
        "return drift",
        f"{TESTS}/test_decentralized_theory.py",
    ),
    Mistake(
        f"{S}/compressed_linear.py", "1 + (c + 2 * rest)", "1 + (c + rest)", f"{VALUES} -k diana"
    ),
    Mistake(
        f"{S}/compressed_linear.py",
        "noise = 2 * (1 - probability)",
        "noise = (1 - probability)",
        f"{VALUES} -k marina",
    ),
    Mistake(
        f"{S}/compressed_linear.py",
        '{"x": 1.0, "h": c * gamma**2}',
        '{"x": 1.0, "h": c * gamma**2 / 2}',
        holds("DIANA, linear, exact"),
    ),
    Mistake(
        f"{S}/consensus_lemmas.py",
        "return 8 / 7 *",
        "return 5 / 7 *",
        holds("consensus, by gradients at the mean"),
    ),
    Mistake(
        f"{M}/ranges.py",
        '"rho": _numbers(lambda x: 0 <= x < 1',
        '"rho": _numbers(lambda x: 0 <= x <= 1',
        f"{TESTS}/test_bounds.py",
    ),
]
MACHINERY = [
    Mistake(
        f"{M}/moments.py",
        "(problem.constants.noise or 0.0) ** 2 / d",
        "(problem.constants.noise or 0.0) ** 2",
        holds("local SGD, consensus"),
    ),
    Mistake(
        f"{M}/moments.py",
        "deviations.T @ deviations / N",
        "deviations.T @ deviations",
        f"{MOMENTS} -k draws_a_worker",
    ),
    Mistake(
        f"{M}/moments.py",
        "noise = noise + C @ C.T",
        "noise = noise + C @ C.T / 2",
        f"{MOMENTS} -k server",
    ),
    Mistake(
        f"{M}/rounds.py",
        '"stale": slope - local.mean(axis=0)',
        '"stale": slope + local.mean(axis=0)',
        f"{MOMENTS} -k table",
    ),
    Mistake(
        f"{M}/rounds.py",
        "self.of.compression / jnp.sqrt(d)",
        "self.of.compression / jnp.sqrt(d * N)",
        f"{MOMENTS} -k compensated",
    ),
    Mistake(
        f"{M}/probes.py",
        '"by_key": one - one[:, :, :1]',
        '"by_key": 0 * one',
        f"{TESTS}/test_moments.py",
    ),
    Mistake(
        f"{M}/random_rounds.py",
        '"k,kji,jl,klm->im"',
        '"k,kij,jl,klm->im"',
        f"{TESTS}/test_random_rounds.py",
    ),
    Mistake(
        f"{M}/random_rounds.py",
        "probability * one.probabilities",
        "one.probabilities",
        f"{TESTS}/test_random_rounds.py",
    ),
    Mistake(f"{M}/search.py", "/ (1 - 2 * _EDGES)", "/ (1 - _EDGES)", OUTCOMES),
    Mistake(
        f"{M}/statement.py",
        "self.measured <= self.bound + room",
        "abs(self.measured) <= abs(self.bound) + room",
        OUTCOMES,
    ),
    Mistake(
        "theory_checks/machinery/mixing_matrices.py",
        "np.maximum(degrees",
        "np.minimum(degrees",
        holds("EXTRA, every round"),
    ),
]


MISTAKES = [*METHODS, *CONSTANTS, *BOUNDS, *MACHINERY]


def test_mistakes_are_found(stride):
    assert mistakes.survivors(MISTAKES[::stride]) == []
