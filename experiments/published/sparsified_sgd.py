r"""Sparsified SGD with memory: Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018.

Published values are those that `results/eps-th` of the authors' repository epfml/sparsifiedSGD
stores, of one run; settings are those of its code. Its data set, epsilon with 400,000 samples of
2,000 features, takes hours here and is replaced by w8a of LIBSVM with 49,749 of 300, which is read
from the folder `DSGD_DATA` of the environment and scaled to rows of unit length, as epsilon is. The
gaps are compared with those of SGD.

One worker passes three times through the samples in random order, with single samples and $l_2 = 1
/ n$. It adds $\eta_t$ times the gradient to its memory, $\eta_t = 2 / (l_2 (t + a))$, and sends the
largest element of the memory, or k at random. The model is the mean of $x_t$ with weights $(t +
a)^2$. The delay is a = d, and a = 1 without it.
"""

from __future__ import annotations

import jax
import numpy as np
import optax

import algorithms
import dsgd
from algorithms.mechanisms.memories import Up, steps
from dsgd import compressors, problems
from experiments.published import libsvm
from experiments.published.outcomes import Claim, Outcome, Panel

FEATURES, EPOCHS = 300, 3
PUBLISHED = {  # the gap after one and three epochs divided by that of SGD
    "SGD, no delay": (1.013, 1.006),
    "top 1": (0.595, 0.528),
    "top 1, no delay": (0.613, 0.529),
    "random 1": (2.4, 1.61),
    "random 1, no delay": (85.5, 7.95),
    "random 3": (1.14, 1.11),
    "random 3, no delay": (1.8, 1.2),
    "top 1, no memory": (251, 4_270),
}
DIFFERENCES = """The data set is another one; the claims are that factors differ by at most 2,
and that what beats SGD on epsilon does here. On w8a, top 1 is as good as SGD, not
better as on epsilon.
Random 1 without delay starts with steps that throw it far off, and its gap depends on
the draws: one run was published, and one of our three has the published factor."""


def averaged(method: dsgd.Algorithm, a: int) -> dsgd.Algorithm:
    """Returns the method whose model is the mean of all of its models with weights (t + a)^2."""

    def init(params, N):
        inner = method.init(params, N)
        return inner._replace(server=(inner.server, params))

    def update(state, gradients, round):
        after, t = method.update(inner(state), gradients, round), 1.0 * round.step
        total = (1 + t) * (6 * a**2 + t + 6 * t * a + 2 * t**2) / 6
        mean, x = state.server[1], method.model(after)
        return after._replace(server=(after.server, mean + (t + a) ** 2 / total * (x - mean)))

    def inner(state):
        return state._replace(server=state.server[0])

    return dsgd.Algorithm(
        f"averaged({method.name})",
        init,
        lambda state, round: method.query(inner(state), round),
        update,
        lambda state: state.server[1],
    )


def sparsified_sgd_2(quick: bool) -> Outcome:
    """Figure 2: SGD that sends one to three elements, with and without memory and delay."""
    data = libsvm.load("w8a")
    A = data.train_inputs / np.maximum(np.linalg.norm(data.train_inputs, axis=1), 1e-9)[:, None]
    n = len(A)
    given = problems.binary_logistic_regression(
        data._replace(train_inputs=A), 1, l2=1 / n, batch_size=1, replacement="epoch"
    )
    given = problems.solved(given)._replace(
        init=lambda key: 0.01 * jax.random.normal(key, (FEATURES,))
    )

    def build(compressor, a=FEATURES, memory=1.0):
        step = optax.sgd(lambda t: 2 * n / (t + a))
        up = Up(compressor, error=memory)
        return averaged(algorithms.error_feedback(optax.sgd(1.0), up, vector=steps(step)), a)

    one, top = compressors.identity, compressors.top_k(k=1)
    some = {k: compressors.contraction(compressors.random_k(k=k)) for k in (1, 3)}
    cases = {"SGD": build(one), "SGD, no delay": build(one, 1)}
    cases |= {"top 1": build(top), "top 1, no delay": build(top, 1)}
    for k, compressor in some.items():
        cases |= {f"random {k}": build(compressor), f"random {k}, no delay": build(compressor, 1)}
    cases["top 1, no memory"] = build(top, memory=0.0)
    rounds, seeds = n * (1 if quick else EPOCHS), 1 if quick else 3
    lines, key = {}, jax.random.key(0)
    for name, method in cases.items():
        history = dsgd.run(
            method, given, steps=rounds, key=key, seeds=seeds, record_every=n // 10
        ).history
        lines[name] = history["step"] / n, history["gap"]
    rows = []
    for name, factors in PUBLISHED.items():
        factor = factors[0 if quick else 1]
        ours = lines[name][1][:, -1] / lines["SGD"][1][:, -1]
        what, claim = f"{name}: gap / gap of SGD", f"{factor:g} on epsilon"
        bounds = factor / 2, 1.0 if factor < 1 else 2 * factor
        rows.append(Claim(what, claim, ours, "authors' outputs", *bounds))
    return Outcome(rows, [Panel("epochs", r"$f - f^\star$", lines)], DIFFERENCES)
