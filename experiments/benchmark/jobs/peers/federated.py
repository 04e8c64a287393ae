"""Mini-batch SGD in fedjax: federated averaging with one step of each client, on all of its samples."""

from __future__ import annotations

from typing import Any

from experiments.benchmark.jobs.peers import job


def build(what: job.Job) -> job.Run:
    import fedjax  # pyright: ignore[reportMissingImports]
    import jax
    import jax.numpy as jnp
    from fedjax.algorithms import fed_avg  # pyright: ignore[reportMissingImports]

    inputs, targets = what.load()

    def loss(x, batch, key):
        logits = batch["x"] @ x
        return jnp.mean(jnp.logaddexp(0, logits) - batch["y"] * logits)

    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=targets.shape[1], num_epochs=1)
    client, server = fedjax.optimizers.sgd(what.learning_rate), fedjax.optimizers.sgd(1.0)
    method = fed_avg.federated_averaging(jax.grad(loss), client, server, batches)
    keys = jax.random.split(jax.random.key(0), len(inputs))
    clients = [(n, fedjax.ClientDataset({"x": inputs[n], "y": targets[n]}), keys[n]) for n in range(len(inputs))]

    def run(rounds: int) -> Any:
        state = method.init(jnp.zeros(inputs.shape[-1]))
        for _ in range(rounds):
            state, _ = method.apply(state, clients)
        return jax.block_until_ready(state.params)

    return run


if __name__ == "__main__":
    job.main(build, "fedjax", "jax", "jaxlib", "numpy")
