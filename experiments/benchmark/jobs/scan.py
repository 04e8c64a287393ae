"""The job as a JAX scan, written by hand for this one method and problem."""

from __future__ import annotations

import sys

from experiments.benchmark.jobs.laps import Laps


def logistic(laps: Laps) -> float:
    import jax
    import jax.numpy as jnp

    from experiments.benchmark.jobs import digits

    laps.lap("imports")
    laps.watch_jax()
    inputs, targets, test_inputs, test_targets = map(jnp.asarray, digits.load())
    laps.lap("problem")

    def loss(w, x, y):
        logits = x @ w[:-1] + w[-1]
        losses = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
        return losses.mean() + 0.5e-4 * jnp.sum(w**2)

    def whole(w):
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(w, inputs, targets))

    def gradient(w, x, y, key):
        chosen = jax.random.randint(key, (16,), 0, digits.PER_WORKER)
        return jax.grad(loss)(w, x[chosen], y[chosen])

    def one_round(w, key):
        half = w - 0.1 * jax.vmap(gradient)(w, inputs, targets, jax.random.split(key, digits.WORKERS))
        w = (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3
        middle = w.mean(axis=0)
        value, slope = jax.value_and_grad(whole)(middle)
        right = jnp.argmax(test_inputs @ middle[:-1] + middle[-1], axis=-1) == test_targets
        return w, (value, jnp.sum(slope**2), jnp.sum((w - middle) ** 2) / digits.WORKERS, right.mean())

    @jax.jit
    def run(w, key):
        return jax.lax.scan(one_round, w, jax.random.split(key, 1_000))

    _, history = jax.block_until_ready(run(jnp.zeros((digits.WORKERS, 65, digits.CLASSES)), jax.random.key(0)))
    laps.lap("rounds")
    return float(history[0][-1])


def transformer(laps: Laps) -> float:
    import jax
    import jax.numpy as jnp

    from experiments.benchmark.jobs import text

    laps.lap("imports")
    laps.watch_jax()
    data, model = jnp.asarray(text.load()), text.Transformer()
    params = model.init(jax.random.key(0), data[0, :1, :-1])
    laps.lap("problem")

    def whole(params):
        return jnp.mean(jax.vmap(lambda mine: text.loss(model, params, mine))(data))

    def gradient(params, mine, key):
        chosen = jax.random.randint(key, (text.BATCH,), 0, mine.shape[0])
        return jax.grad(lambda params: text.loss(model, params, mine[chosen]))(params)

    def mix(half):
        return (half + jnp.roll(half, 1, axis=0) + jnp.roll(half, -1, axis=0)) / 3

    def one_round(models, key):
        gradients = jax.vmap(gradient)(models, data, jax.random.split(key, text.WORKERS))
        models = jax.tree.map(lambda x, g: mix(x - 0.1 * g), models, gradients)
        middle = jax.tree.map(lambda x: x.mean(axis=0), models)
        value, slope = jax.value_and_grad(whole)(middle)
        away = jax.tree.map(lambda x, m: jnp.sum((x - m) ** 2), models, middle)
        size = sum(jnp.sum(g**2) for g in jax.tree.leaves(slope))
        return models, (value, size, sum(jax.tree.leaves(away)) / text.WORKERS)

    @jax.jit
    def run(models, key):
        return jax.lax.scan(one_round, models, jax.random.split(key, text.ROUNDS))

    models = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (text.WORKERS, *leaf.shape)), params)
    _, history = jax.block_until_ready(run(models, jax.random.key(0)))
    laps.lap("rounds")
    return float(history[0][-1])


if __name__ == "__main__":
    laps = Laps()
    laps.finish({"logistic": logistic, "transformer": transformer}[sys.argv[1]](laps))
