"""Every invalid call raises a ValueError that names the mistake: see `bad_calls.py`, which draws
them in a separate process.
"""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import pytest
from bad_calls import MESSAGES, good_call

import algorithms
import dsgd
import topologies
from dsgd import checks, clusters, compressors, network


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory) -> dict[str, Any]:
    """Runs in a temporary folder, where a checkpoint may be written: a twelfth of the calls, a
    quarter with --long, and all of them with --exhaustive.
    """
    root = Path(__file__).parents[1]
    script = (
        "import runpy, sys; sys.path[:0] = sys.argv[1:]; "
        "runpy.run_module('bad_calls', run_name='__main__')"
    )
    asked = request.config.getoption
    every = 1 if asked("--exhaustive") else 4 if asked("--long") else 12
    command = [sys.executable, "-c", script, str(root), str(root / "tests"), str(every)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=tmp_path_factory.mktemp("drawn")
    )
    return json.loads(done.stdout)


def test_valid_calls_succeed(outcomes):
    assert outcomes["good"] == {}


def test_results_share_no_array_or_list_with_the_arguments(outcomes):
    """The caller may modify them later."""
    assert outcomes["kept"] == {}


def test_only_value_errors_that_name_the_argument_are_raised(outcomes):
    assert outcomes["drawn"] > 2_500
    assert outcomes["escaped"] == {}


NAN, INFINITE = float("nan"), float("inf")
NEGATIVE = (-1.0, NAN, INFINITE)
NOT_POSITIVE = (0, *NEGATIVE)
NO_COUNT = (0, -1)
NO_SHARE = (0.0, -0.1, 1.5, NAN, INFINITE)
NO_PROBABILITY = (-0.1, 1.01, NAN)
OUTSIDE: dict[Any, dict[str, tuple]] = {
    topologies.ring: {"n": NO_COUNT},
    topologies.complete: {"n": NO_COUNT},
    topologies.star: {"n": NO_COUNT},
    topologies.chain: {"n": NO_COUNT},
    topologies.exponential: {"n": NO_COUNT},
    topologies.one_peer_exponential: {"n": NO_COUNT},
    topologies.torus: {"rows": NO_COUNT, "columns": NO_COUNT},
    topologies.grid: {"rows": NO_COUNT, "columns": NO_COUNT},
    topologies.geometric: {"n": NO_COUNT, "radius": NOT_POSITIVE},
    topologies.hypercube: {"dimension": (-1,)},
    topologies.erdos_renyi: {"n": NO_COUNT, "probability": NO_SHARE},
    topologies.random_regular: {"n": NO_COUNT, "degree": (-1,)},
    topologies.random_matchings: {"n": NO_COUNT, "period": NO_COUNT},
    topologies.random_directed: {"n": NO_COUNT, "degree": NO_COUNT},
    topologies.random_pushes: {"n": NO_COUNT, "period": NO_COUNT},
    dsgd.Topology.mixing_time: {"eps": (0.0, 1.0, NAN)},
    compressors.top_k: {"fraction": NO_SHARE},
    compressors.dct_top_k: {"k": NO_COUNT, "chunk": NO_COUNT, "columns": NO_COUNT},
    compressors.random_k: {"fraction": NO_SHARE},
    compressors.random_sparsification: {"probability": NO_SHARE},
    compressors.random_quantization: {"bits": (0, 9), "bucket": NO_COUNT},
    compressors.clipped_ternary: {"limit": (0.9, -1.0, NAN, INFINITE)},
    compressors.clipping: {"bits": (0, 9)},
    compressors.qsgd: {"levels": (0, 128)},
    compressors.natural_dithering: {"levels": (0, 128)},
    compressors.buckets: {"size": NO_COUNT},
    compressors.threshold: {"v": (0.0, -1.0, NAN)},
    compressors.sampled_top_k: {"fraction": NO_SHARE, "sample": NO_SHARE},
    compressors.sidco: {"fraction": NO_SHARE, "stages": NO_COUNT},
    compressors.variance_optimal: {"fraction": NO_SHARE},
    compressors.random_places: {"fraction": NO_SHARE},
    compressors.random_block: {"fraction": NO_SHARE},
    compressors.shared_random_k: {"fraction": NO_SHARE},
    compressors.count_sketch: {"rows": (0, 4), "columns": NO_COUNT},
    compressors.perm_k: {"workers": NO_COUNT},
    compressors.correlated_quantization: {"bits": (0, 9)},
    compressors.low_rank: {"rank": NO_COUNT, "columns": (0, 1)},
    compressors.mean_bits: {"d": NO_COUNT},
    clusters.constant: {"value": (*NEGATIVE, [1.0, NAN], np.ones((1, 2)), np.array(["a"]))},
    clusters.normal: {"mean": NEGATIVE, "std": NEGATIVE},
    clusters.lognormal: {"mu": (NAN, INFINITE), "sigma": NEGATIVE},
    clusters.exponential: {"mean": NEGATIVE},
    clusters.gamma: {"shape": NOT_POSITIVE, "scale": NEGATIVE},
    clusters.bernoulli: {"probability": (*NO_PROBABILITY, [0.5, 1.5]), "value": NEGATIVE},
    clusters.measured: {"values": ([1, -1], [])},
    clusters.trace: {
        "values": (np.array([[1, INFINITE]]), np.ones((1, 1, 1))),
        "interval": NOT_POSITIVE,
    },
    clusters.sinusoid: {
        "eta": NEGATIVE,
        "theta": NEGATIVE,
        "delta": NOT_POSITIVE,
        "noise": NEGATIVE,
        "phase": (-1.0, NAN, [2.0, -1.0], []),
    },
    clusters.square_wave: {
        "high": NEGATIVE,
        "low": NEGATIVE,
        "period": NOT_POSITIVE,
        "duty": NO_PROBABILITY,
        "phase": (-1.0, INFINITE, np.ones((2, 2))),
    },
    clusters.sampled: {"k": (0, 5), "weights": ([1, 0, 2, 3], [1, 2, -1, 3], [1.0, 2.0])},
    clusters.systematic: {"k": (0, 5), "weights": ([1, 0], [2, -1], [[1.0, 2.0]], [NAN, 2.0])},
    clusters.round_robin: {"k": (0, 5), "of": NO_COUNT},
    clusters.cyclic: {"on": NO_COUNT, "off": (-1,), "offset": (-1, [0, -2], np.ones((2, 2)))},
    clusters.markov: {"on": (0.5, 20_000.0, NAN), "off": (0.0, INFINITE)},
    clusters.poisson_intervals: {"mean": (0.0, 20_000.0, NAN)},
    clusters.bursts: {
        "rate": (-0.1, 1.0, NAN, 1e-7, 0.9),
        "mean": (0.5, 20_000.0),
        "bad": (0.0, 1.5),
        "good": (-0.1, 1.0, 0.5),
    },
    clusters.MessageNoise: {"std": NEGATIVE, "snr": (NAN, INFINITE, 3.0)},
    clusters.lifetimes: {
        "begins": ([0.0, -1.0], [NAN, 2.0], [0.0], [[0.0, 9.0], 2.0], 2.0),
        "ends": ([5.0, 2.0], [5.0, NAN], [[5.0], [9.0, 8.0]]),
    },
    clusters.bounded: {"most": NEGATIVE},
    clusters.slow: {"factor": NOT_POSITIVE, "workers": ([0, -1],)},
    clusters.per_server: {"size": NO_COUNT},
    clusters.Collectives: {"permute": ((0.0, 2.0), (2.0, NAN))},
    clusters.Overlap: {"first": NO_PROBABILITY, "last": NO_PROBABILITY},
    clusters.Cluster: {
        "latency": NEGATIVE,
        "noise": NEGATIVE,
        "participation_period": (0, 4),
        "micro_batches": NO_COUNT,
        "bucket": (-1.0, NAN),
        "delivered": (
            clusters.sampled(2, of=3),
            clusters.slow(clusters.constant(1.0), [4], 2.0),
        ),
    },
    network.cost: {
        "workers": NO_COUNT,
        "latency": (*NEGATIVE, np.array([1.0, -1.0])),
        "transfer": NEGATIVE,
    },
    network.round_seconds: {
        "workers": NO_COUNT,
        "bits_up": (-1.0, NAN),
        "latency": (-1.0, NAN),
        "bandwidth": (0.0, NAN),
    },
    network.asynchronous_server_messages: {"servers": NO_COUNT, "compute": ([],)},
    network.simulate: {
        "latency": NEGATIVE,
        "transfer": (INFINITE, [0, -1e-9]),
        "receive": ([0, NAN],),
    },
}


@pytest.mark.parametrize("function", OUTSIDE, ids=lambda function: function.__qualname__)
def test_values_outside_the_range_of_an_argument_are_refused(function):
    """Random calls find refusals without a name; these also find missing refusals."""
    for name, values in OUTSIDE[function].items():
        for value in values:
            with pytest.raises(ValueError, match=rf"\b({function.__name__}|{name})\b"):
                function(**good_call(function) | {name: value})


def returns(function: Any) -> str:
    kind = inspect.formatannotation(function.__annotations__["return"])
    return kind.strip("'").rpartition(".")[2]


WITH_SHARES = [
    *(
        each
        for each in vars(compressors).values()
        if inspect.isfunction(each) and returns(each) in ("Compressor", "LinearCode")
    ),
    algorithms.dion,
    algorithms.fetch_sgd,
    algorithms.sketched_sgd,
    algorithms.sparta,
]


@pytest.mark.parametrize("function", WITH_SHARES, ids=lambda function: function.__name__)
def test_a_share_is_no_integer_and_a_number_of_elements_no_float(function):
    """Papers write Top-1 for one element; the share 1 is all of them."""
    parameters = inspect.signature(function).parameters
    good = good_call(function)

    def refusal(name: str, value: float) -> str:
        given = good | {"fraction": None} if name == "k" and "fraction" in good else good
        try:
            function(**given | {name: value})
        except ValueError as error:
            return str(error)
        return ""

    shares = 0
    for name, parameter in parameters.items():
        kind = inspect.formatannotation(parameter.annotation).strip("'")
        if kind in ("int", "int | None"):
            assert f"{name} = 0.1" in refusal(name, 0.1)
            assert f"{name} = 1.0" in refusal(name, 1.0)
        elif kind in ("float", "float | None"):
            is_share = not refusal(name, 0.1) and refusal(name, 1.5)
            for value in (1, 10) if is_share else ():
                assert f"{name} = {value}" in refusal(name, value)
                assert "k" not in parameters or f"(k={value})" in refusal(name, value)
            shares += bool(is_share)
    assert shares >= len({"fraction", "rank_fraction", "probability"} & parameters.keys())


@pytest.mark.parametrize("case", MESSAGES)
def test_the_message_names_what_is_wrong(case, outcomes):
    assert outcomes["messages"][case].startswith("ValueError: ")
    assert MESSAGES[case] in outcomes["messages"][case]


def test_errors_of_the_body_pass_unchanged():
    @checks.arguments
    def fails(n: int) -> None:
        raise KeyError(n)

    with pytest.raises(KeyError, match="3"):
        fails(3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        fails()  # type: ignore[call-arg]


def test_traced_numbers_pass():
    @checks.arguments
    def double(x: float) -> Any:
        return 2 * x

    assert jax.eval_shape(double, 1.0).shape == ()
    assert jax.vmap(double)(jax.numpy.ones(3)).shape == (3,)
    with pytest.raises(
        ValueError, match=r"double: x is traced .* needs a number, not float32\[3\]"
    ):
        jax.eval_shape(double, jax.numpy.ones(3))
    with pytest.raises(ValueError, match=r"double: x = array\(\[1., 1., 1.\]\); expected a number"):
        double(np.ones(3))  # type: ignore[arg-type]


def test_checked_functions_keep_their_name_and_signature():
    assert pickle.loads(pickle.dumps(compressors.top_k)) is compressors.top_k
    assert compressors.top_k.__name__ == "top_k"
    assert "biased" in (compressors.top_k.__doc__ or "")
    assert list(inspect.signature(compressors.top_k).parameters) == ["fraction", "values", "k"]


def test_the_message_quotes_the_annotation():
    @checks.arguments
    def load(pair: Annotated[tuple[int, int] | None, "a pair"]) -> None: ...

    load((1, 2))
    load(None)
    with pytest.raises(ValueError, match=r"^load: pair = 3; expected a pair$"):
        load(3)  # type: ignore[arg-type]
