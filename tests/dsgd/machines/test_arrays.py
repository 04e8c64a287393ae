"""What arrays of the host become on a device of one process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dsgd import problems
from dsgd.machines import arrays


def aligned(values: np.ndarray) -> np.ndarray:
    """Where XLA would take the memory as it is."""
    room = np.empty(values.nbytes + 64, np.uint8)
    begin = -room.ctypes.data % 64
    there = room[begin : begin + values.nbytes].view(values.dtype).reshape(values.shape)
    there[...] = values
    return there


def test_they_are_copies_of_their_own_type_or_of_that_given():
    values = aligned(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    there = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    same, short, put = (
        arrays.from_host(values),
        arrays.from_host(values, jnp.bfloat16),
        arrays.put({"x": values}, there)["x"],
    )
    values += 1
    assert put.sharding == there
    for found, kind in ((same, jnp.float32), (short, jnp.bfloat16), (put, jnp.float32)):
        assert (found.dtype, found.weak_type) == (kind, False)
        np.testing.assert_array_equal(found, np.arange(6.0).reshape(2, 3))


def test_problems_do_not_see_what_becomes_of_the_arrays_that_they_were_made_of():
    with jax.enable_x64(True):
        A, b = aligned(np.ones((3, 8))), aligned(np.arange(24.0).reshape(3, 8))
        inputs, classes = aligned(np.arange(48.0).reshape(6, 8)), aligned(np.arange(6) % 2)
        quadratic = problems.quadratic(A, b)
        model = problems.Model(lambda key: jnp.zeros(8), lambda params, inputs: inputs @ params)
        samples = inputs, classes
        regression = problems.finite_sum(
            model,
            optax.l2_loss,
            samples,
            3,
            batch_size=1,
            test=samples,
            metrics={"test_loss": optax.l2_loss},
        )
        held = quadratic.data, quadratic.shared, regression.data, regression.shared
        before = jax.tree.map(np.array, held)
        for given in (A, b, *samples):
            np.add(given, 1, out=given)
        jax.tree.map(np.testing.assert_array_equal, held, before)


def test_no_program_is_compiled_for_the_shapes_of_a_problem(caplog):
    def compiled(make) -> list[str]:
        caplog.clear()
        with jax.log_compiles():
            make()
        return [
            record.getMessage()
            for record in caplog.records
            if "XLA compilation" in record.getMessage()
        ]

    assert compiled(lambda: jnp.ones((3, 29, 1)) + 1)
    assert not compiled(lambda: problems.random_quadratic(3, 29, noise=0.1))
    inputs, classes = np.linspace(-1, 1, 31 * 29).reshape(31, 29), np.arange(31) % 3
    assert not compiled(lambda: problems.logistic_regression((inputs, classes), 3, batch_size=1))
