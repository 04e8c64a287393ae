"""The job in dsgd."""

from __future__ import annotations

import sys

from experiments.benchmark.jobs.laps import Laps


def logistic(laps: Laps) -> float:
    import jax
    import optax

    import algorithms
    import dsgd
    import topologies
    from dsgd import problems

    laps.lap("imports")
    laps.watch_jax()
    dsgd.cache.enable()
    problem = problems.logistic_regression("digits", workers=16, partition="by-label")
    laps.lap("problem")
    method = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(16))
    result = dsgd.run(method, problem, steps=1_000, key=jax.random.key(0), mesh=1)
    laps.lap("rounds")
    return float(result.history["loss"][-1])


def transformer(laps: Laps) -> float:
    import jax
    import jax.numpy as jnp
    import optax

    import algorithms
    import dsgd
    import topologies
    from experiments.benchmark.jobs import text

    laps.lap("imports")
    laps.watch_jax()
    dsgd.cache.enable()
    data, model = jnp.asarray(text.load()), text.Transformer()
    problem = dsgd.Problem(
        init=lambda key: model.init(key, data[0, :1, :-1]),
        loss=lambda params, sequences: text.loss(model, params, sequences),
        data=data,
        sample=lambda key, mine: mine[jax.random.randint(key, (text.BATCH,), 0, mine.shape[0])],
    )
    laps.lap("problem")
    method = algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(text.WORKERS))
    result = dsgd.run(method, problem, steps=text.ROUNDS, key=jax.random.key(0), mesh=1)
    laps.lap("rounds")
    return float(result.history["loss"][-1])


if __name__ == "__main__":
    laps = Laps()
    laps.finish({"logistic": logistic, "transformer": transformer}[sys.argv[1]](laps))
