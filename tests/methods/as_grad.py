"""AsGrad: Islamov, Safaryan and Alistarh, 2023."""

from typing import Any

import numpy as np

from algorithms import as_grad, asynchronous_sgd
from tests.methods.given import SGD, Case, Given
from tests.methods.server_events import Order, Rule, server_case

WAIT = 4


def bits(t: int, N: int, d: int) -> None:
    """They depend on the server's choices; the cases compare them."""


def rule(given: Given, order: str, wait: int) -> tuple[Rule, Order]:
    """The random choices of workers are those of the method; that the shuffled ones are
    permutations is checked here.
    """
    step, collected, gone = given.step(), list[np.ndarray](), list[int]()
    chosen = given.found.states.server.events.worker[-given.length :]

    def arrive(now):
        collected.append(now.g)
        if len(collected) < wait:
            return None
        change = step(np.mean(collected, axis=0))
        collected.clear()
        return change

    def choose(now, jobs):
        if collected:
            return {}
        waiting = [j for j, job in enumerate(jobs) if job.waiting]
        assert len(waiting) == wait
        begins = {j: jobs[j].worker if order == "pure" else int(chosen[now.t][j]) for j in waiting}
        gone.extend(begins.values())
        for k in range(0, len(gone) * (order == "shuffled"), given.N):
            assert len(set(gone[k : k + given.N])) == len(gone[k : k + given.N])
        return begins

    return arrive, choose


def case(order: Any, wait: int, optimizer: str = "plain") -> Case:
    return server_case(
        lambda given: as_grad(given.optimizer, order, wait),
        lambda given: rule(given, order, wait),
        optimizer,
    )


CASES = {
    "": case("random", 1),
    "random, waiting": case("random", WAIT, "momentum"),
    "pure": case("pure", WAIT, "momentum"),
    "shuffled": case("shuffled", 1),
    "shuffled, waiting": case("shuffled", WAIT),
}
EQUALS = {"workers that begin again": (lambda: as_grad(SGD, "pure"), lambda: asynchronous_sgd(SGD))}
