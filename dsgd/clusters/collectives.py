"""How the collectives of a library compare with the messages of the switch."""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass

from dsgd import checks
from dsgd.base import Pattern
from dsgd.clusters.quantity import require_number
from dsgd.network import AllGather, AllReduce, NServers, OneServer, PointToPoint

Factors = tuple[float, float]
_SWITCH = (1.0, 1.0)


@checks.arguments
@dataclass(frozen=True)
class Collectives:
    r"""Latencies and transfer times of a library's collectives, relative to those of messages on
    the switch.

    A library may pass messages on in other ways than the switch: gloo's permutes send and receive
    one after the other, and its all-to-all sends to all workers at once. Each argument is a pair of
    factors (f, g), by which an exchange on the switch with the latency l and the transfer time r
    has the latency $f l$ and the transfer time $g r$.

    Args:
        all_reduce: of means and sums over all workers.
        all_gather: of messages to all workers.
        all_to_all: of messages to N servers. Their replies are all-gathers: the exchange has the
            mean of both factors.
        permute: of messages to neighbours.

    Raises:
        ValueError: if a factor is not a finite number, or is not positive.
    """

    all_reduce: Factors = _SWITCH
    all_gather: Factors = _SWITCH
    all_to_all: Factors = _SWITCH
    permute: Factors = _SWITCH

    def __post_init__(self) -> None:
        for name, factors in asdict(self).items():
            if len(factors) != 2:
                raise ValueError(
                    f"Collectives: {name} = {checks.show(factors)}; expected a pair, the factors "
                    "of the latency and of the transfer time"
                )
            for factor in factors:
                require_number(f"Collectives: {name}", factor, least=0, more=True)

    @property
    def name(self) -> str:
        """A description that contains all factors."""
        pairs = (f"{latency:.9g}, {transfer:.9g}" for latency, transfer in astuple(self))
        return f"collectives({'; '.join(pairs)})"

    def factors(self, pattern: Pattern) -> Factors:
        """Returns the factors of the latency and of the transfer time of an exchange. Those of one
        server, which is no worker, and of methods without rounds are 1.
        """
        if isinstance(pattern, NServers):
            (a, b), (c, d) = self.all_to_all, self.all_gather
            return (a + c) / 2, (b + d) / 2
        if isinstance(pattern, PointToPoint):
            return self.permute
        if isinstance(pattern, AllGather):
            return self.all_gather
        if isinstance(pattern, AllReduce) and not isinstance(pattern, OneServer):
            return self.all_reduce
        return _SWITCH
