"""Candidates follow from what the methods state about themselves."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import optax
import pytest

import algorithms
import dsgd
from algorithms.candidates import ASYNCHRONOUS, candidate
from dsgd import compressors, problems
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
    "hierarchical_local_sgd": f"{ADAMW}, 4, 5, 2",
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
            hierarchical = each.name == "hierarchical_local_sgd"
            assert each.swept["H"] == ((5, 10, 50) if hierarchical else (10, 30, 100, 500))


@pytest.fixture(scope="module")
def language_model():
    return problems.language_model(
        "grammar", workers=N, context=2, width=4, layers=1, heads=1, batch_size=1, evaluation_size=2
    )


def build(each: dsgd.Candidate) -> dsgd.Algorithm:
    assert each.optimizer is not None
    return each.build(each.optimizer(RATE), N, **first_values(each))


@pytest.mark.parametrize("each", algorithms.FOR_MODELS, ids=str)
def test_exchanges_of_candidates_for_models_are_found(each, language_model):
    periods = {found.period for found in dsgd.exchanges(build(each), language_model)}
    values = first_values(each)
    if each.name == "one_bit_adam":
        assert periods == {0}  # two kinds, before and after the warm-up
    else:
        assert min(periods) == values.get("H", 1)


def test_a_candidate_with_an_optimizer_by_kinds_of_leaves_trains_a_language_model(language_model):
    (each,) = (each for each in algorithms.FOR_MODELS if each.name == "dion")
    run = {"steps": 4, "key": jax.random.key(0), "mesh": 1, "record_every": 4}
    start, end = dsgd.run(build(each), language_model, **run).history["loss"]
    assert end < start - RATE


def test_the_documentation_names_the_candidates():
    text = (Path(__file__).parents[2] / "docs/how_to/which_method.md").read_text()
    for title, known in (
        ("candidates", ASYNCHRONOUS),
        ("candidates for language models", algorithms.FOR_MODELS),
    ):
        (item,) = re.findall(rf"\n- \*\*The {title}\*\* (.*?)\n(?! )", text, re.DOTALL)
        assert {*re.findall(r"`(\w+)`", item)} == {each.name for each in known}


def test_changes_are_values_or_grids():
    each = candidate(algorithms.diloco, period=(5, 9), optimizer=optax.adam)
    assert (each.swept, each.optimizer) == ({"H": (5, 9)}, optax.adam)
    assert candidate(algorithms.diloco, period=7).arguments == (7,)
    # the arguments before one that is given keep their defaults
    assert candidate(algorithms.demo).expression("opt", N, {}) == "algorithms.demo(opt, 0.999, 4)"
    sign = compressors.sign
    assert candidate(algorithms.muloco, compressor=sign).arguments == ("H", sign)
