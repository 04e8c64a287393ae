"""The job in dsgd, as a user would write it: a loss, data, and a registered method."""

from __future__ import annotations

from experiments.benchmark.jobs.peers import job

RARELY = 1 << 20  # rounds between two records: of those here only the last round has one


def build(what: job.Job) -> job.Run:
    import jax
    import jax.numpy as jnp
    import optax

    import algorithms
    import dsgd

    dsgd.cache.enable()
    inputs, targets = what.load()

    def loss(x, samples):
        return optax.sigmoid_binary_cross_entropy(samples[0] @ x, samples[1]).mean()

    start = jnp.zeros(inputs.shape[-1])
    data = jnp.asarray(inputs), jnp.asarray(targets)
    problem = dsgd.Problem(init=lambda key: start, loss=loss, data=data, sample=lambda key, mine: mine)
    method = algorithms.make(what.method, optax.sgd(what.learning_rate), len(inputs))
    key, mesh = jax.random.key(0), dsgd.workers.mesh(1)

    def run(rounds: int) -> jax.Array:
        result = dsgd.run(method, problem, steps=rounds, key=key, record_every=RARELY, mesh=mesh)
        return jax.block_until_ready(result.state.workers.params if what.method != "mb-sgd" else result.params)

    return run


if __name__ == "__main__":
    job.main(build, "dsgd", "jax", "jaxlib", "numpy")
