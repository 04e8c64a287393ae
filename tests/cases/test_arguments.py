"""Which function and which argument a refusal names."""

from __future__ import annotations

import optax
import pytest

import algorithms
from algorithms import cannikin
from dsgd import checks, compressors, problems

SGD = optax.sgd(0.1)
DELEGATED = {
    "lag: threshold": lambda: algorithms.lag(SGD, -1),
    "proximal_gradient: step_size": lambda: algorithms.proximal_gradient(-1),
    "drive: rounds": lambda: compressors.drive(rounds=-1),
    "random_quantization: bucket": lambda: compressors.random_quantization(4, -1),
    "sketched_sgd: rows": lambda: algorithms.sketched_sgd(SGD, 0.5, 8, rows=-1),
    "random_quadratic: noise": lambda: problems.random_quadratic(4, 2, noise=-1),
    "goodput: noise_scale": lambda: cannikin.goodput(1.0, 8, -1, 8),
}


@pytest.mark.parametrize("where", DELEGATED)
def test_a_refusal_names_the_function_that_was_called(where):
    """Also if it passes the argument on to another public function."""
    with pytest.raises(ValueError, match=rf"^{where} = -1"):
        DELEGATED[where]()


def test_a_refusal_in_a_users_function_names_the_function_that_it_calls():
    """Although the user's function has the argument that the library passes on."""
    users = eval("lambda rounds: drive(rounds=rounds)", {"drive": compressors.drive})
    library = {"__name__": "dsgd.outer", "users": users}
    exec("def outer(rounds): return users(rounds)", library)
    with pytest.raises(ValueError, match=r"^drive: rounds = -1"):
        checks.arguments(library["outer"])(-1)
