"""The compiled loop: between two records, devices exchange nothing but messages."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

import algorithms
import topologies
from dsgd import communication, compressors, problems
from dsgd.contract import collectives
from dsgd.engine import loop
from dsgd.engine.plan import Chunk
from dsgd.runs.plans import ConstantFactory, make_plan

N = 4
SIGN = compressors.whole_model(compressors.sign)


def round_collectives(jaxpr, loops=0, message=False):
    """Yields the collectives in the loop over the rounds of a record, which is the second of two
    nested loops, and whether each belongs to a message.
    """
    for equation in jaxpr.eqns:
        inside = message or communication.MESSAGE in str(equation.source_info.name_stack)
        if loops >= 2 and collectives._sends(equation):
            yield inside
        for inner in jaxprs_in_params(equation.params):
            yield from round_collectives(
                inner, loops + (equation.primitive.name == "while"), inside
            )


@pytest.mark.parametrize(
    "method",
    [
        algorithms.minibatch_sgd(optax.sgd(0.1)),
        algorithms.local_sgd(optax.sgd(0.1), 2),
        algorithms.error_compensated_sgd(optax.sgd(0.1), SIGN, SIGN),
        algorithms.decentralized_sgd(optax.sgd(0.1), topologies.ring(N)),
    ],
    ids=lambda method: method.name,
)
def test_rounds_between_records_send_only_messages(method):
    """Over a network each collective takes a latency, also that of a counter."""
    problem = problems.quadratic(np.ones((N, 3)), np.zeros((N, 3)))
    plan = make_plan(ConstantFactory(method), method, problem, 2, runs=0, size=1, record_every=5)
    key = jax.random.key(0)
    carry = jax.eval_shape(partial(loop.first_carry, plan), {}, key)
    chunk = Chunk(*np.zeros(4, np.int32))
    program = jax.make_jaxpr(partial(loop.advance, plan))(
        carry, {}, key, problem.data, (problem.evaluation.replicated, None), None, chunk
    )
    found = list(round_collectives(program.jaxpr))
    assert found
    assert all(found)
