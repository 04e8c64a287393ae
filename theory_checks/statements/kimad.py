r"""Kimad with one worker and compressed messages to the server only: Theorem 1 with compressors
that change from round to round.

The derivation is that of `statements.ef21`. It does not require that $C_i^k$ is the same in every
round, only that each contracts its layer by at least $\alpha_i$. Bandwidth and rule choose
compressors from a set; for every such choice, $\alpha_i$ is the smallest contraction in the set,
`CompressorSet.delta`. The bound is `bounds.ef21`, and the initial estimates are the first message,
$u^0 = C(f'(x^0))$.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import jax
import numpy as np

import algorithms
import dsgd
from algorithms.kimad import CompressorSet, allocate, from_compressors, oracle, top_k, uniform
from dsgd import clusters, compressors
from dsgd.base import Algorithm
from theory_checks.machinery.statement import Draws, Outcome, Statement
from theory_checks.statements import ef21
from theory_checks.statements.ef21 import Layered

_BITS = 64.0 * sum(ef21.SIZES)  # bits of a model
_LINK = clusters.sinusoid(eta=_BITS, theta=0.7, delta=0.1 * _BITS)
CLUSTER = clusters.Cluster(clusters.constant(0.0), _LINK, clusters.constant(1e9 * _BITS))
"""The bandwidth of a worker's link varies between a tenth of a model and a whole model per second;
the time of the server's messages is negligible.
"""

RATIOS = top_k((0.25, 0.5, 0.75, 1.0))
MANTISSAS = from_compressors([compressors.clipping(bits) for bits in (5, 7, 8)])


@cache
def _factory(
    choices: CompressorSet, rule: Callable, weights: tuple[float, ...]
) -> Callable[..., Algorithm]:
    """Returns a function (learning rate, round time) -> Kimad whose layers have the step sizes
    gamma w_i, and whose server sends its model uncompressed.
    """

    def factory(learning_rate, round_time):
        options = {
            "computation": 0.0,
            "congestion": 0.0,
            "rule": rule,
            "monitor": oracle,
            "down": [compressors.identity],
        }
        return algorithms.kimad_sgd(
            ef21.stepping(learning_rate, weights), choices, round_time, **options
        )

    return factory


def check(
    layered: Layered,
    choices: CompressorSet,
    rule: Callable,
    *,
    steps: int,
    weights: Sequence[float],
    round_time: float,
    learning_rate: float | None = None,
) -> tuple[Outcome, np.ndarray]:
    """Checks the bound against a run on `CLUSTER`.

    Args:
        layered: a problem from `ef21.split_layers`.
        choices: Omega, contractions; each contracts a layer by at least `choices.delta`.
        rule: selects one of them for each layer.
        steps: K.
        weights: w_i.
        round_time: t, seconds.
        learning_rate: gamma; None: the largest.

    Returns:
        The outcome, and the bits sent to the server per round, `[steps]`.
    """
    sent: list[np.ndarray] = []

    def run(gamma):
        factory = _factory(choices, rule, tuple(weights))
        with jax.enable_x64(True):
            axes = {"learning_rate": np.array([gamma]), "round_time": np.array([round_time])}
            found = dsgd.sweep(
                factory,
                layered.problem,
                steps=steps,
                key=jax.random.key(0),
                cluster=CLUSTER,
                mesh=1,
                **axes,
            )
        history = found.at((0, 0))
        sent.append(history["message_up"][0, 1:, 0])
        return history

    alphas = [choices.delta(size) or 0.0 for size in layered.sizes]
    name = f"{choices.name}, {rule.__name__}, t = {round_time:.3g}"
    outcome = ef21.compare(
        layered, run, alphas, weights, steps=steps, learning_rate=learning_rate, name=name
    )
    return outcome, sent[0]


TRIED = (
    (RATIOS, uniform, ef21.UNEQUAL, ef21.quadratic),
    (MANTISSAS, uniform, ef21.UNEQUAL, ef21.quadratic),
    (RATIOS, allocate, (1.0, 1.0, 1.0), ef21.wells),
)
"""Sets, rules, weights w_i, and problems; each combination is compiled separately."""


def trial(draws: Draws) -> list[Outcome]:
    """Checks an instance of EF21 with a random round time; the bandwidth determines how much of a
    message is sent.
    """
    choices, rule, weights, problem = draws.choice(TRIED)
    made, steps, round_time = problem(draws), draws.choice((1, 10, 1000)), draws.real(0.1, 2.0)
    numbers = {
        "contractions": [choices.delta(size) for size in ef21.SIZES],
        "layers": made.layers,
        "weights": weights,
    }
    limit = ef21.step_size(**numbers, smoothness=float(made.problem.constants.smoothness or 0))
    gamma = draws.choice((None, draws.real(0.01, 1.0) * limit))
    options = {"steps": steps, "weights": weights, "round_time": round_time, "learning_rate": gamma}
    return [check(made, choices, rule, **options)[0]]


def mantissas() -> list[Outcome]:
    """Checks compressors that omit little, with which the bound is attained. Also checks that the
    compressors changed: messages had as many different lengths as there are choices.
    """
    choices, rule, weights, _ = TRIED[1]
    outcome, sent = check(ef21.bowl(), choices, rule, steps=50, weights=weights, round_time=0.35)
    lengths = min(len(np.unique(sent)), choices.number)
    return [
        outcome,
        Outcome(
            lengths, choices.number, case=f"distinct message lengths, {outcome.case}", equality=True
        ),
    ]


STATEMENTS = [
    Statement(
        "Kimad, varying compressors",
        "Kimad, Theorem 1",
        "all C of the set contract layers; gamma within (9)",
        trial,
        (mantissas,),
    )
]
