"""`exchanges`: what a method's rounds send, and how it flows, before anything is compiled."""

from __future__ import annotations

from typing import NamedTuple

from dsgd import checks, modes
from dsgd.base import Algorithm, Pattern, Problem
from dsgd.clusters import Cluster
from dsgd.engine import loop
from dsgd.runs import plans


class Exchange(NamedTuple):
    """One exchange of messages in the rounds of a method.

    Args:
        call: the call of the round, in words: "mix on ring(8)".
        pattern: how the messages flow.
        period: rounds from one such exchange to the next; 0: the method decides in each round.
        turns: exchanges after which a schedule of topologies repeats.
        simulated: whether other collectives stand for the messages on several devices (one server, pairs of workers).
    """

    call: str
    pattern: Pattern
    period: int = 1
    turns: int = 1
    simulated: bool = False


@checks.arguments
@modes.outermost
def exchanges(algorithm: Algorithm, problem: Problem, *, cluster: Cluster | None = None) -> tuple[Exchange, ...]:
    r"""The exchanges of a method's rounds, in order. Nothing is compiled or run.

    A round of N workers takes on average

    $$ \sum_e \frac{c_e(N, l, r)}{H_e} $$

    seconds on a network with latency l and transfer time r, where $c_e$ is `dsgd.network.cost` of the pattern of exchange e, and $H_e$ its
    period:

        sum(network.cost(each.pattern, N, l, r) / each.period for each in dsgd.exchanges(method, problem))

    Args:
        algorithm: the method.
        problem: that it runs on, which has the number of workers.
        cluster: that it runs on, of methods that look at it.

    Returns:
        One for each call that sends, or for each `round.joint`; () if the method sends nothing.

    Raises:
        ValueError: the method and the problem, or the cluster, do not fit together.
    """
    plan = plans.make_plan(plans.Always(algorithm), algorithm, problem, 1, runs=0, size=1, record_every=1, cluster=cluster)
    return tuple(
        Exchange(sending.call, sending.pattern, int(sending.period), sending.turns, sending.simulated)
        for sending in loop.describe(plan, algorithm).sendings
    )
