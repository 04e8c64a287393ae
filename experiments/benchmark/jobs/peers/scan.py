"""The job as a JAX loop by hand. Products as einsum are the fastest of six forms on CPUs (matmul is as fast, broadcasts are far slower)."""

from __future__ import annotations

from experiments.benchmark.jobs.peers import job


def build(what: job.Job) -> job.Run:
    import jax
    import jax.numpy as jnp

    inputs, targets = map(jnp.asarray, what.load())
    N, m, d = inputs.shape
    rate = what.learning_rate / m

    def ring(x, inputs, targets):
        error = jax.nn.sigmoid(jnp.einsum("nmd,nd->nm", inputs, x)) - targets
        half = x - rate * jnp.einsum("nmd,nm->nd", inputs, error)
        return (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3

    def mean(x, inputs, targets):
        error = jax.nn.sigmoid(inputs.reshape(N * m, d) @ x) - targets.reshape(N * m)
        return x - rate / N * (error @ inputs.reshape(N * m, d))

    one_round, shape = {"dsgd": (ring, (N, d)), "mb-sgd": (mean, (d,))}[what.method]

    @jax.jit
    def many(rounds, inputs, targets):
        return jax.lax.fori_loop(0, rounds, lambda _, x: one_round(x, inputs, targets), jnp.zeros(shape))

    return lambda rounds: jax.block_until_ready(many(rounds, inputs, targets))


if __name__ == "__main__":
    job.main(build, "jax", "jaxlib", "numpy")
