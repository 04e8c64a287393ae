"""Candidates follow from what the methods state about themselves."""

from __future__ import annotations

import optax

import algorithms
import dsgd
from algorithms.candidates import ASYNCHRONOUS, candidate
from dsgd import compressors
from dsgd.planning import candidates

N, RATE = 4, 0.003
SYNCHRONOUS = [
    "minibatch_sgd",
    "choco_sgd, ring, sign",
    "compressed_sgd, random_quantization(4)",
    "decentralized_sgd, one peer exponential",
    "decentralized_sgd, ring",
    "diloco, H",
    "ef21, top_k(0.1)",
    "error_compensated_sgd, sign",
    "error_compensated_sgd, top_k(0.03)",
    "error_compensated_sgd, top_k(0.1)",
    "exact_diffusion, ring",
    "lead, ring, qsgd(2, linf)",
    "local_exact_diffusion, ring, H",
    "local_sgd, H",
    "qsparse_local_sgd, sign, H",
    "qsparse_local_sgd, top_k(0.01), H",
    "scaffold, H",
]
ASYNCHRONOUS_ONES = [
    "asynchronous_gossip_sgd, complete",
    "asynchronous_sgd",
    "malenia_sgd, batch",
    "rennala_sgd, batch",
    "ringleader_sgd",
    "ringmaster_sgd, threshold",
]
ADAMW, SGD = "optax.adamw(0.003, weight_decay=0.1)", "optax.sgd(0.003)"
FOR_MODELS = {  # function: its calls, with the first values of its grids
    "minibatch_sgd": ADAMW,
    "local_sgd": f"{ADAMW}, 10",
    "diloco": f"{ADAMW}, 10",
    "delayed_diloco": f"{ADAMW}, 10",
    "streaming_diloco": f"{ADAMW}, 4, 10",
    "sparse_loco": f"{ADAMW}, 10, compressors.chunked_top_k(64, 4096, compressors.two_bit)",
    "des_loc": f"{ADAMW}, 10",
    "noloco": f"{ADAMW}, topologies.random_matchings(4, 32, 0), 10",
    "sparta": ADAMW,
    "demo": SGD,
    "dgc": f"{SGD}, compressors.top_k(0.001)",
    "one_bit_adam": f"{SGD}, 100, compressors.sign",
    "powersgd": "algorithms.powersgd_momentum(0.003)",
    "dion": "algorithms.dion_with_adamw(0.003)",
}


def label(each: dsgd.Candidate) -> str:
    return ", ".join([str(each), *each.swept])


def first_values(each: dsgd.Candidate) -> dict[str, float]:
    return {name: grid[0] for name, grid in each.swept.items()}


def test_candidates_of_any_problem_begin_with_the_baseline():
    synchronous = [*map(label, algorithms.SYNCHRONOUS)]
    assert synchronous[0] == SYNCHRONOUS[0]
    assert sorted(synchronous[1:]) == SYNCHRONOUS[1:]
    assert sorted(map(label, ASYNCHRONOUS)) == ASYNCHRONOUS_ONES
    assert (*algorithms.SYNCHRONOUS, *ASYNCHRONOUS) == algorithms.CANDIDATES
    assert all(each.optimizer is None for each in algorithms.CANDIDATES)
    grids = {name: grid for each in algorithms.CANDIDATES for name, grid in each.swept.items()}
    assert grids["H"] == grids["threshold"] == (4, 16, 64)


def test_candidates_for_models_have_the_optimizers_and_arguments_of_their_papers():
    assert algorithms.FOR_MODELS[0].name == "minibatch_sgd"
    found = {
        each.name: each.expression(
            candidates.call(each.optimizer or optax.sgd, f"{RATE}"), N, first_values(each)
        )
        for each in algorithms.FOR_MODELS
    }
    assert found == {name: f"algorithms.{name}({call})" for name, call in FOR_MODELS.items()}
    for each in algorithms.FOR_MODELS:
        assert each.learning_rates is not None
        assert (min(each.learning_rates) < 0.01) == (each.name not in {"dgc", "powersgd"})
        if "H" in each.swept:
            assert each.swept["H"] == (10, 30, 100, 500)


def test_changes_are_values_or_grids():
    each = candidate(algorithms.diloco, period=(5, 9), optimizer=optax.adam)
    assert (each.swept, each.optimizer) == ({"H": (5, 9)}, optax.adam)
    assert candidate(algorithms.diloco, period=7).arguments == (7,)
    # the arguments before one that is given keep their defaults
    assert candidate(algorithms.demo).expression("opt", N, {}) == "algorithms.demo(opt, 0.999, 4)"
    sign = compressors.sign
    assert candidate(algorithms.muloco, compressor=sign).arguments == ("H", sign)
