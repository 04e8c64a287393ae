"""Memory of methods in addition to their state, for large models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import loops
import numpy as np
import optax

import algorithms
import dsgd
from dsgd import problems

N, SAMPLES, INPUTS, WIDTH, CLASSES = 1024, 4, 64, 1000, 10
SHAPES = {"first": (INPUTS, WIDTH), "second": (WIDTH, WIDTH), "last": (WIDTH, CLASSES)}
PARAMETERS = sum(a * b for a, b in SHAPES.values())  # 1,074,000 parameters


def shapes_of_a_network() -> dsgd.Problem:
    """Returns the shapes of a network with 1 M parameters on 1,024 workers: 4.1 GiB of models,
    which are not allocated here.
    """

    def loss(params, batch):
        inputs, targets = batch
        logits = jnp.tanh(jnp.tanh(inputs @ params["first"]) @ params["second"]) @ params["last"]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

    inputs, targets = np.zeros((N, SAMPLES, INPUTS), np.float32), np.zeros((N, SAMPLES), np.int32)
    return dsgd.Problem(
        init=lambda key: {name: jnp.zeros(shape) for name, shape in SHAPES.items()},
        loss=loss,
        data=(inputs, targets),
        sample=lambda key, mine: mine,
    )


def test_a_thousand_workers_of_a_million_parameters_take_the_memory_of_state_and_gradients(
    optimised,
):
    """Ring DSGD on one device: the state is updated in place, and no other array is as large,
    except the gradients.
    """
    compiled = (
        loops.traced(algorithms.make("dsgd", optax.sgd(0.1, 0.9), N), shapes_of_a_network(), 1)
        .lower()
        .compile()
    )
    memory, models = compiled.memory_analysis(), 4 * N * PARAMETERS
    assert memory.alias_size_in_bytes >= 2 * models
    more = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert models * 0.9 < more < models * 1.05


def test_steps_in_the_gradients_place_are_the_same_steps(monkeypatch, mesh):
    """Up to rounding: in another buffer, sums may be contracted."""
    problem = problems.random_quadratic(4, 6, heterogeneity=1.0, noise=0.5)

    def run():
        method = algorithms.make("dsgd", optax.adam(0.1), 4)
        return dsgd.run(method, problem, steps=5, key=jax.random.key(0), seeds=2, mesh=mesh)

    plain = run()
    monkeypatch.setattr("dsgd.xla.steps.LARGE", 0)
    in_place = run()
    for one, other in zip(
        jax.tree.leaves(plain.state), jax.tree.leaves(in_place.state), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
