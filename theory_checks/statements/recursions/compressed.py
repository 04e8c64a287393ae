"""Methods that send compressed gradients, compared with their recursions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import block_diag

import algorithms
from dsgd import compressors
from theory_checks.machinery import trajectories
from theory_checks.machinery.cases import Case, Inputs, Symbols, on_server
from theory_checks.machinery.statement import Method
from theory_checks.machinery.trajectories import LAYERS, WEIGHTS, D, N, Trajectory
from theory_checks.recursions import compressed
from theory_checks.recursions.compressed import Parts, clipped, largest_half, mean_size_times_sign
from theory_checks.recursions.shared import Step, momentum
from theory_checks.statements.compressed_sgd import Via
from theory_checks.statements.recursions.shared import HALF, HALF_OF_ALL, SHORT, SHORT_OF_ALL, SIGN

IN_LAYERS, WHOLE = Parts(LAYERS, N), Parts((D,), N)


def _with_errors(cutting: Parts, found: Trajectory, papers: Symbols) -> Symbols:
    memory = found.states.workers
    return {
        **on_server(found, papers),
        "delta_worker": cutting.unshard(concatenate_parts(memory.worker.error)),
        "delta_server": cutting.unshard(concatenate_parts(memory.server.error)),
    }


def _with_estimates(cutting: Parts, found: Trajectory, papers: Symbols) -> Symbols:
    memory = found.states.workers
    return {
        "x": cutting.unshard(concatenate_parts(memory.server.model.params)),
        "x_hat": trajectories.rows(found.states.server, 1),
        "u_hat": cutting.unshard(concatenate_parts(memory.worker.shift)),
        "mean of u_hat": cutting.unshard(concatenate_parts(memory.server.shift)),
    }


def concatenate_parts(parts: Any) -> np.ndarray:
    """Concatenates the parts of all layers, `[..., N, part]`. Parts that contain only padding,
    which are not stored, are zeros.
    """
    each = [np.asarray(leaf) for leaf in (parts.values() if isinstance(parts, dict) else [parts])]
    return np.concatenate(
        [
            np.pad(leaf, [*[(0, 0)] * (leaf.ndim - 2), (0, N - leaf.shape[-2]), (0, 0)])
            for leaf in each
        ],
        axis=-1,
    )


def _estimated(
    inputs: Inputs, up: compressed.Q, down: compressed.Q, cutting: Parts
) -> Iterator[Symbols]:
    for symbols in compressed.ef21(inputs.x, inputs.G, inputs.step, up, down, cutting):
        yield {**symbols, "mean of u_hat": symbols["u_hat"].mean(axis=0)}


def _csgd(
    name: str,
    reference: str,
    via: Via,
    exchange: compressed.Exchange,
    Q: Any,
    q: compressed.Q,
    cutting: Parts,
) -> Case:
    return Case(
        f"CSGD, {name}",
        reference,
        lambda optimizer, of: algorithms.compressed_sgd(optimizer, Q, via, allow_biased=True),
        lambda inputs: compressed.csgd(inputs.x, inputs.G, inputs.step, exchange, q, cutting),
        on_server,
        f"Q: {Q.name}",
    )


def _two(
    name: str,
    reference: str,
    method: Method,
    recursion: Callable,
    seen: Callable,
    up: Any,
    down: Any,
    cutting: Parts,
    **more,
) -> Case:
    (Up, u), (Down, d) = up, down
    return Case(
        name,
        reference,
        lambda optimizer, of: method(optimizer, Up, Down),
        lambda inputs: recursion(inputs, u, d, cutting),
        partial(seen, cutting),
        f"{Up.name} up, {Down.name} down",
        **more,
    )


def _squeezed_twice(
    inputs: Inputs, up: compressed.Q, down: compressed.Q, cutting: Parts
) -> Iterator[Symbols]:
    return compressed.double_squeeze(inputs.x, inputs.G, inputs.step, up, down, cutting)


LAYER = compressed.Layers(*WEIGHTS)
RANK, MU = 2, 0.9


def _start(inputs: Inputs) -> np.ndarray:
    """Returns a right factor from which one power iteration yields the factor that the method has
    after the first round. The method draws its own right factor in the first round and does not
    store it.
    """
    gradient = LAYER.split(inputs.G(0, inputs.X))[1].mean(axis=0)
    Q = inputs.found.states.server.Q[0][1]
    return np.linalg.pinv(gradient) @ np.linalg.pinv(gradient.T) @ Q


def _factored(symbol: str, found: Trajectory, papers: Symbols) -> Symbols:
    Q = found.states.server.Q[0]
    return {
        **on_server(found, papers),
        symbol: found.states.workers[0],
        "Q Q^T": Q @ np.swapaxes(Q, 1, 2),
    }


def _powersgd_momentum(inputs: Inputs) -> Step:
    """Returns the step x - gamma (delta + m), with the m of `momentum`."""
    m = momentum(inputs.gamma)
    return lambda delta: m(delta) - inputs.gamma * delta


def _demo(name: str, k: int, chunk: int, T: np.ndarray, chunks: tuple[int, ...]) -> Case:
    """Runs DeMo's recursion on chunks of the given sizes; the coefficients are T x, one chunk after
    the other.
    """
    ends = np.cumsum(chunks)[:-1]

    def top(coefficients):
        return np.concatenate(
            [compressed.largest(each, min(k, len(each))) for each in np.split(coefficients, ends)]
        )

    def rounds(inputs):
        for paper in compressed.demo(inputs.x, inputs.G, inputs.gamma, N, 0.9, T, top):
            # The method's m lacks the factor gamma, which changes neither `top` nor the sign.
            yield {"x": paper["x"], "m": paper["m"] / inputs.gamma}

    return Case(
        name,
        "DeMo, algorithm 1",
        lambda optimizer, of: algorithms.demo(optimizer, 0.9, k, chunk),
        rounds,
        lambda found, papers: {
            **on_server(found, papers),
            "m": trajectories.rows(found.states.workers),
        },
        f"noisy gradients; workers differ; k = {k}",
    )


H, MOMENTUM, THETA, STAGE = 3, 0.7, 15.0, 5


def _in_layers(C: compressed.Q) -> compressed.Q:
    """Returns the compressor of each layer separately."""
    return lambda x: np.concatenate([C(part) for part in np.split(x, LAYERS[:1])])


def _with_models(found: Trajectory, papers: Symbols) -> Symbols:
    """Returns the workers' models, which are the sum of the common part and the errors."""
    error = trajectories.rows(found.states.workers.error)
    common = trajectories.rows(found.states.server, 1)
    return {"params": common[:, None] + error, "error": error}


def _with_momenta(found: Trajectory, papers: Symbols) -> Symbols:
    memory = found.states.workers
    return {
        **on_server(found, papers),
        "u": trajectories.rows(memory.momentum),
        "v": trajectories.rows(memory.error),
    }


def _dgc(name: str, nesterov: bool, masking: bool, hypotheses: str) -> Case:
    """Runs DGC's recursion, which sends half of the elements in the warm-up and then a fifth."""

    def rounds(inputs):
        def masks(t):
            share = 2 if t < STAGE else 5
            return _in_layers(lambda v: compressed.largest(v, -(-len(v) // share)) != 0)

        return compressed.dgc(
            inputs.x, inputs.G, inputs.step, N, MOMENTUM, masks, THETA, nesterov, masking
        )

    return Case(
        name,
        "Lin et al. 2018, section 3",
        lambda optimizer, of: algorithms.dgc(
            optimizer,
            compressors.top_k(0.2),
            MOMENTUM,
            nesterov=nesterov,
            factor_masking=masking,
            clip=THETA,
            warm_up=[HALF],
            stage=STAGE,
        ),
        rounds,
        _with_momenta,
        hypotheses,
    )


_BLOCKS = np.asarray(block_diag(compressed.dct(7), np.kron(compressed.dct(3), compressed.dct(5))))
# 7 is a prime number above 4, and so is 5: chunks of one element, and columns of three.
_COLUMNS = np.asarray(
    block_diag(np.eye(7), np.einsum("kh,jw->jkhw", compressed.dct(3), np.eye(5)).reshape(15, 15))
)
_EC, _EF = algorithms.error_compensated_sgd, algorithms.ef21
_ALL = compressors.whole_model
CASES = (
    _csgd(
        "server", "(3.4), (3.6)", "server", compressed.through_servers, SHORT, clipped, IN_LAYERS
    ),
    _csgd("ring", "(3.5), (3.6)", "ring", compressed.around_ring, HALF, largest_half, IN_LAYERS),
    _two(
        "EC-SGD",
        "(3.10) to (3.14)",
        _EC,
        _squeezed_twice,
        _with_errors,
        (HALF, largest_half),
        (SHORT, clipped),
        IN_LAYERS,
    ),
    _two(
        "EC-SGD, whole model",
        "(3.10) to (3.14)",
        _EC,
        _squeezed_twice,
        _with_errors,
        (_ALL(SIGN), mean_size_times_sign),
        (_ALL(compressors.identity), lambda x: x),
        WHOLE,
        optimizer="momentum",
    ),
    _two(
        "EF21",
        "Kimad, algorithm 3",
        _EF,
        _estimated,
        _with_estimates,
        (HALF, largest_half),
        (SHORT, clipped),
        IN_LAYERS,
        optimizer="momentum",
    ),
    _two(
        "EF21, whole model",
        "Kimad, algorithm 3",
        _EF,
        _estimated,
        _with_estimates,
        (HALF_OF_ALL, largest_half),
        (SHORT_OF_ALL, clipped),
        WHOLE,
    ),
    Case(
        "PowerSGD",
        "PowerSGD, algorithm 1",
        lambda optimizer, of: algorithms.powersgd(optimizer, RANK),
        lambda inputs: compressed.powersgd(
            inputs.x, inputs.G, inputs.step, LAYER, N, _start(inputs)
        ),
        partial(_factored, "e"),
    ),
    Case(
        "PowerSGD, rank 1, momentum",
        "PowerSGD, algorithms 1 and 2",
        lambda optimizer, of: algorithms.powersgd(
            algorithms.powersgd_momentum(of.learning_rate), 1
        ),
        lambda inputs: compressed.powersgd(
            inputs.x, inputs.G, _powersgd_momentum(inputs), LAYER, N, _start(inputs)
        ),
        partial(_factored, "e"),
    ),
    Case(
        "Dion",
        "Dion, algorithm 1",
        lambda optimizer, of: algorithms.dion(optimizer, 0.5, MU),
        lambda inputs: compressed.dion(
            inputs.x, inputs.G, inputs.step, LAYER, N, _start(inputs), MU
        ),
        partial(_factored, "M"),
        optimizer="momentum",
    ),
    _demo("DeMo, blocks", 4, 7, _BLOCKS, (7, 15)),
    _demo("DeMo, columns", 2, 4, _COLUMNS, (1,) * 7 + (3,) * 5),
    _dgc("DGC", False, True, "a warm-up of five rounds; local clipping"),
    _dgc("DGC, Nesterov", True, False, "without factor masking"),
    Case(
        "CSER",
        "Xie et al. 2020",
        lambda optimizer, of: algorithms.cser(optimizer, H, HALF, SHORT),
        lambda inputs: compressed.cser(
            inputs.X, inputs.G, inputs.step, H, _in_layers(largest_half), clipped
        ),
        _with_models,
        f"C1: {HALF.name}, C2: {SHORT.name}",
    ),
    Case(
        "CSER, momentum",
        "Xie et al. 2020",
        lambda optimizer, of: algorithms.cser(optimizer, H, SHORT, HALF),
        lambda inputs: compressed.cser(
            inputs.X, inputs.G, inputs.step, H, clipped, _in_layers(largest_half)
        ),
        _with_models,
        f"C1: {SHORT.name}, C2: {HALF.name}",
        "momentum",
    ),
)
