r"""EF21-SGDM: Fatkhullin, Tyurin and Richtarik, "Momentum provably improves error feedback!", 2023.

The example of theorem 1, its bound and the claims of figure 1 are stated from memory; step sizes
and numbers of rounds are ours. A worker draws one sample in a round, $g(x) = x + \xi$ with $\xi$
uniform on $\sqrt{3/10} \sigma \{(2, 0), (0, 1), (-2, -1)\}$, so that $f(x) = \frac12 |x|^2$ in two
dimensions and the variance is $\sigma^2 = 1$; x starts at (0, -1), and C is top-1. The theorem is
about EF21-SGD with a perfect memory, the exact gradient: $x \leftarrow x - \gamma (f'(x) + \frac1N
\sum_n C(g_n(x) - f'(x)))$ has $E|f'(x)|^2 \geq \frac{1}{60} \min(\sigma^2, |f'(x_0)|^2)$ in all
rounds, for any N.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import compressors
from experiments.published.outcomes import Claim, Outcome, Panel

NOISE = np.sqrt(0.3) * np.array([[2, 0], [0, 1], [-2, -1]])
RATE, ETA, BOUND = 0.01, 0.01, 1 / 60
TOP_1 = compressors.whole_model(compressors.top_k(k=1))
WORKERS = (1, 10, 100)
DIFFERENCES = """EF21-SGD with its own memory, which follows the noise, is biased less than
with the perfect memory of the theorem, but does not converge either."""
PERFECT, PLAIN, MOMENTUM = "EF21-SGD, perfect memory", "EF21-SGD", "EF21-SGDM"


def problem(workers: int) -> dsgd.Problem:
    """Returns the example of theorem 1."""

    def loss(x, samples):
        return jnp.mean(0.5 * jnp.sum(x**2) + samples @ x)

    def sample(key, samples):
        return samples[jax.random.randint(key, (1,), 0, len(samples))]

    data = np.tile(NOISE, (workers, 1, 1))
    return dsgd.Problem(lambda key: jnp.array([0.0, -1.0]), loss, data, sample)


def with_perfect_memory(learning_rate: float) -> dsgd.Algorithm:
    """Returns the method of theorem 1."""

    def query(state, round):
        return dsgd.Query(state.server, exact=True), dsgd.Query(state.server)

    def update(state, answer, round):
        exact, noisy = answer
        noise = round.mean_of_messages(TOP_1, optax.tree.sub(noisy, exact)).received
        return dsgd.State(state.server - learning_rate * (round.mean(exact) + noise))

    return dsgd.Algorithm(
        PERFECT, lambda x, N: dsgd.State(x), query, update, lambda state: state.server
    )


def ef21_sgdm_1(quick: bool) -> Outcome:
    """Figure 1 and theorem 1: EF21-SGD and EF21-SGDM with noisy gradients."""
    rounds, seeds = 2_000 if quick else 6_000, 4 if quick else 16
    cases = {
        PERFECT: with_perfect_memory(RATE),
        PLAIN: algorithms.ef21(optax.sgd(RATE), TOP_1),
        MOMENTUM: algorithms.ef21_sgdm(optax.sgd(RATE), TOP_1, ETA),
    }
    panels, last = [], {}
    for N in WORKERS:
        lines = {}
        for name, method in cases.items():
            history = dsgd.run(
                method,
                problem(N),
                steps=rounds,
                key=jax.random.key(0),
                seeds=seeds,
                record_every=20,
            ).history
            lines[name] = history["step"], history["grad_sqnorm"]
            last[name, N] = history["grad_sqnorm"][:, -100:].mean()
        panels.append(Panel("rounds", "$|f'(x)|^2$", lines, title=f"N = {N}"))
    rows = [
        Claim(f"{PERFECT}, N = {N}: |f'|^2", "stalls", last[PERFECT, N], "from memory", BOUND)
        for N in WORKERS
    ]
    for name, claim, bounds in (
        (PLAIN, "workers do not help", (None, 2)),
        (MOMENTUM, "workers help", (4, None)),
    ):
        ratio = last[name, 10] / last[name, 100]
        what = f"{name}: |f'|^2, N = 10 / N = 100"
        rows.append(Claim(what, claim, ratio, "from memory", *bounds))
    ratio = last[PLAIN, 100] / last[MOMENTUM, 100]
    what = f"|f'|^2 of {PLAIN} / {MOMENTUM}, N = 100"
    rows.append(Claim(what, "EF21-SGD stalls", ratio, "from memory", 10))
    return Outcome(rows, panels, DIFFERENCES)
